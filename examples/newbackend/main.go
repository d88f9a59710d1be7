//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

// Newbackend shows how to write a store for dlock. The store is in dirbackend.go: a directory, in
// which a file per lock says who holds it. contract_test.go shows that it is right.
//
//	go run ./examples/newbackend
//	go test ./examples/newbackend
//
// This file shows it at work: several processes increment a number in a file, which only the lock
// keeps them from doing at the same time.
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
	each      = 5 // how often each process increments
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

// run starts the processes, which are this program with other arguments, and checks the result.
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
		return fmt.Errorf("%d processes counted to %d each, and the number is %d: the lock is broken", processes, each, n)
	}
	fmt.Printf("%d processes counted to %d each, and the number is %d.\n", processes, each, n)
	return nil
}

// count is what each process does.
func count(ctx context.Context, dir string) error {
	store, err := NewDirBackend(filepath.Join(dir, "locks"))
	if err != nil {
		return err
	}
	// Nobody tells those who wait that the lock is free: they look again after 10 ms, then less and less
	// often, down to once in a third of the lease. Hence one that is shorter than 30 s, but longer than a busy machine may
	// stop a process.
	client := dlock.New(store, dlock.WithLease(5*time.Second))
	defer client.Close()
	lock := client.Locker("the number")
	for range each {
		if err := lock.Do(ctx, func(context.Context) error { return increment(numberFile(dir)) }); err != nil {
			return err
		}
		time.Sleep(50 * time.Millisecond) // or it would have the lock again before the others look
	}
	return nil
}

func numberFile(dir string) string { return filepath.Join(dir, "number") }

// increment adds 1 to the number in a file, in a way that needs a lock.
func increment(file string) error {
	n, err := readNumber(file)
	if err != nil {
		return err
	}
	time.Sleep(20 * time.Millisecond) // plenty of time for others to get in between, if they could
	fmt.Printf("process %d: %d + 1 = %d\n", os.Getpid(), n, n+1)
	return os.WriteFile(file, []byte(strconv.Itoa(n+1)), 0o600)
}

// readNumber returns the number in a file, 0 if there is none yet.
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
