package recipes

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed951563bd/distsync/dlock"
	"github.com/seed951563bd/distsync/membackend"
)

// countAroundAPause has one process pause as it writes, for longer than its lease, and cut off, so
// that another counts to five meanwhile, and both once more after that. It returns the numbers that
// were given out, in order.
func countAroundAPause(
	t *testing.T, next func(*counter, context.Context) (int, error),
) (numbers []int) {
	store, folder := membackend.New(), t.TempDir()
	if err := writeNumber(filepath.Join(folder, "count"), 0); err != nil {
		t.Fatal(err)
	}
	way := lineTo(store)
	ann := &counter{replicaOn(t, store).FencedLocker("lock:invoices"), folder, writeNumber}
	sam := &counter{replicaOn(t, way).FencedLocker("lock:invoices"), folder, func(
		file string, n int,
	) error {
		way.down.Store(true)
		time.Sleep(time.Minute)
		way.down.Store(false)
		return writeNumber(file, n)
	}}
	slept := make(chan struct{})
	count := func(c *counter) {
		n, err := next(c, t.Context())
		switch {
		case err == nil:
			numbers = append(numbers, n)
		case c != sam || !errors.Is(err, dlock.ErrLost):
			t.Error(err)
		}
	}
	go func() { defer close(slept); count(sam) }()
	synctest.Wait()
	for range 5 {
		count(ann)
	}
	<-slept
	sam.write = writeNumber
	count(sam)
	count(ann)
	if files, err := filepath.Glob(filepath.Join(folder, "*")); err != nil || len(files) > 3 {
		t.Errorf("the folder has %v; %v", files, err)
	}
	return numbers
}

func TestACounterWithALockOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		if numbers := countAroundAPause(t, (*counter).nextWrong); !slices.Equal(numbers,
			[]int{1, 2, 3, 4, 5, 2, 3}) {
			t.Errorf("numbers %v, but 2 and 3 should be given out twice", numbers)
		}
	})
}

func TestACounterWithTokens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		if numbers := countAroundAPause(t, (*counter).next); !slices.Equal(numbers,
			[]int{1, 2, 3, 4, 5, 6, 7}) {
			t.Errorf("numbers %v", numbers)
		}
	})
}

// A late process doesn't count if another has counted before it looks.
func TestACounterThatIsStaleWhenItLooks(t *testing.T) {
	c := &counter{
		replicaOn(t, membackend.New()).FencedLocker("lock:invoices"), t.TempDir(), writeNumber,
	}
	if err := writeNumber(filepath.Join(c.folder, "count-99999999999999999999"), 7); err != nil {
		t.Fatal(err)
	}
	if n, err := c.next(t.Context()); !errors.Is(err, errStale) {
		t.Errorf("got %d, %v", n, err)
	}
}
