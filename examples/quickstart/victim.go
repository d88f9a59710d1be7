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

// A victim has the lock, and dies without unlocking it.
type victim struct {
	kill  func()
	death string // how it died, for the timeline
}

// clientVictim returns a victim in this process. All that others see of a crash is that nobody
// renews the lock any more and nobody unlocks it. A client that is closed does just that.
func clientVictim(ctx context.Context, store backend.Backend) (*victim, error) {
	// A client that is closed while it has a lock says so in the log; one that crashes doesn't.
	client := dlock.New(store, dlock.WithLease(lease), dlock.WithLogger(slog.New(slog.DiscardHandler)))
	if err := client.Locker(lockName).LockContext(ctx); err != nil {
		client.Close()
		return nil, err
	}
	return &victim{
		kill:  func() { client.Close() },
		death: "its client stopped, and renews no more",
	}, nil
}

// processVictim returns a victim that is a process: this program, started once more. It is killed
// in the way that leaves it no time for anything.
func processVictim(ctx context.Context, addr string) (*victim, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, program, "-redis", addr, "-victim")
	cmd.Stderr = os.Stderr
	if _, err := cmd.StdinPipe(); err != nil { // open as long as we live
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

// holdUntilKilled is what that process does.
func holdUntilKilled(ctx context.Context, store backend.Backend) error {
	client := dlock.New(store, dlock.WithLease(lease))
	defer client.Close()
	return client.Locker(lockName).Do(ctx, func(context.Context) error {
		fmt.Println("locked")
		_, err := io.Copy(io.Discard, os.Stdin) // ends if our parent dies: the lock shall not outlive it
		return err
	})
}
