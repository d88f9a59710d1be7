package recipes

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/seed951563bd/distsync/dlock"
)

// A counter returns each number only once. Its files are on a disk that several machines share.
type counter struct {
	lock   *dlock.Locker // client.FencedLocker("lock:invoices")
	folder string
	write  func(file string, n int) error // writeNumber
}

func (c *counter) nextWrong(ctx context.Context) (n int, err error) {
	file := filepath.Join(c.folder, "count")
	err = c.lock.Do(ctx, func(ctx context.Context) error {
		last, err := readNumber(file)
		if err != nil {
			return err
		}
		n = last + 1
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return c.write(file, n) // a pause here goes unnoticed
	})
	return n, err
}

var errStale = errors.New("another has counted meanwhile")

// next returns the next number. If it returns an error, the number must not be used. Another caller
// may then get the same number.
func (c *counter) next(ctx context.Context) (n int, err error) {
	err = c.lock.Do(ctx, func(ctx context.Context) error {
		token, _ := dlock.Token(ctx)
		// Nobody else writes to this file.
		mine := filepath.Join(c.folder, fmt.Sprintf("count-%020d", token))
		files, err := filepath.Glob(filepath.Join(c.folder, "count-????????????????????"))
		if err != nil {
			return err
		}
		slices.Sort(files)
		if len(files) > 0 {
			latest := len(files) - 1 // the file with the largest token
			if files[latest] > mine {
				return errStale
			}
			if n, err = readNumber(files[latest]); err != nil {
				return err
			}
			for _, old := range files[:latest] {
				os.Remove(old)
			}
		}
		n++
		return c.write(mine, n) // harmless if late: newer files take precedence
	})
	return n, err // if nil, the lock was held throughout
}

func readNumber(file string) (int, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(string(text))
}

// writeNumber writes a file atomically: the file is complete when it appears.
func writeNumber(file string, n int) error {
	if err := os.WriteFile(file+".part", []byte(strconv.Itoa(n)), 0o600); err != nil {
		return err
	}
	return os.Rename(file+".part", file)
}
