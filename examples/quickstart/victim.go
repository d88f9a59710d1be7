package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/dlock"
)

// A victim is a worker that holds the lock, and dies without unlocking it.
type victim struct {
	kill  func()
	death string // how it dies, for the timeline
}

// clientVictim returns a victim in this process, whose death is simulated by closing its client.
// As after a crash, other workers notice only that the lock is no longer renewed, and isn't
// unlocked.
func clientVictim(ctx context.Context, store backend.Backend) (*victim, error) {
	// The log is discarded: a client that is closed while it holds a lock logs that, but a process
	// that crashes can't.
	client := dlock.New(store, dlock.WithLease(lease),
		dlock.WithLogger(slog.New(slog.DiscardHandler)))
	if err := client.Locker(lockName).LockContext(ctx); err != nil {
		client.Close()
		return nil, err
	}
	return &victim{
		kill:  func() { client.Close() },
		death: "its client stopped, and renews no more",
	}, nil
}

// processVictim returns a victim that is another process of this program. It is killed with
// SIGKILL, so it can't unlock.
func processVictim(ctx context.Context, addr string) (*victim, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, program, "-redis", addr, "-victim")
	cmd.Stderr = os.Stderr
	if _, err := cmd.StdinPipe(); err != nil { // open until this process ends
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	v := &victim{
		kill:  func() { cmd.Process.Kill(); cmd.Wait() },
		death: fmt.Sprintf("process %d was killed", cmd.Process.Pid),
	}
	if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		v.kill()
		return nil, fmt.Errorf("the process that was to hold the lock ended: %w", err)
	}
	return v, nil
}

// holdUntilKilled runs in the process that processVictim starts. It holds the lock until that
// process is killed.
func holdUntilKilled(ctx context.Context, store backend.Backend) error {
	client := dlock.New(store, dlock.WithLease(lease))
	defer client.Close()
	return client.Locker(lockName).Do(ctx, func(context.Context) error {
		fmt.Println("locked")
		// Copy returns when the parent process dies, so that the lock doesn't outlive that process.
		_, err := io.Copy(io.Discard, os.Stdin)
		return err
	})
}
