//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

// Newbackend shows how to write a store for dlock. The store is in dirbackend.go. It is a directory
// with a file for each lock, which names the holder. contract_test.go tests it.
//
//	go run ./examples/newbackend
//	go test ./examples/newbackend
//
// This file uses the store: several processes increment a number in a file, and only the lock
// prevents them from doing that at the same time.
package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/seed951563bd/distsync/dlock"
)

const (
	processes = 3
	each      = 5 // the number of increments of each process
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	var err error
	if len(os.Args) == 3 && os.Args[1] == "count" {
		err = count(ctx, os.Args[2])
	} else {
		err = run(ctx)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "newbackend:", err)
		os.Exit(1)
	}
}

// run starts several processes, which run this program with other arguments, and checks the result.
func run(ctx context.Context) error {
	program, err := os.Executable()
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "newbackend")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)

	var running []*exec.Cmd
	for range processes {
		cmd := exec.CommandContext(ctx, program, "count", dir)
		cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
		if err = cmd.Start(); err != nil {
			break
		}
		running = append(running, cmd)
	}
	for _, cmd := range running {
		err = errors.Join(err, cmd.Wait())
	}
	if err != nil {
		return err
	}
	n, err := readNumber(numberFile(dir))
	if err != nil {
		return err
	}
	if n != processes*each {
		return fmt.Errorf("%d processes counted to %d each, and the number is %d: the lock "+
			"is broken", processes, each, n)
	}
	fmt.Printf("%d processes counted to %d each, and the number is %d.\n", processes, each, n)
	return nil
}

// count is the work of each process.
func count(ctx context.Context, dir string) error {
	store, err := NewDirBackend(filepath.Join(dir, "locks"))
	if err != nil {
		return err
	}
	// Without notifications, a waiter polls after 10 ms, and then at growing intervals of up to a
	// third of the lease. So this lease is shorter than the default of 30 s. But it is longer than
	// a process might pause on a busy machine.
	client := dlock.New(store, dlock.WithLease(5*time.Second))
	defer client.Close()
	lock := client.Locker("the number")
	for range each {
		if err := lock.Do(ctx, func(context.Context) error {
			return increment(numberFile(dir))
		}); err != nil {
			return err
		}
		time.Sleep(50 * time.Millisecond) // otherwise this process would lock again first
	}
	return nil
}

func numberFile(dir string) string { return filepath.Join(dir, "number") }

// increment adds 1 to the number in a file. Without a lock, concurrent calls would lose increments.
func increment(file string) error {
	n, err := readNumber(file)
	if err != nil {
		return err
	}
	time.Sleep(20 * time.Millisecond) // without the lock, others would interfere now
	fmt.Printf("process %d: %d + 1 = %d\n", os.Getpid(), n, n+1)
	return os.WriteFile(file, []byte(strconv.Itoa(n+1)), 0o600)
}

// readNumber returns the number in a file, or 0 if there is no file.
func readNumber(file string) (int, error) {
	text, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(text)))
}
