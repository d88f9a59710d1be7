package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/dlock"
)

// A sleeper is a holder of the lock that is paused after it has read the balance, and before it
// writes.
type sleeper struct {
	token uint64
	pause string                 // the kind of pause, for the output
	wake  func() (string, error) // resumes the sleeper, and returns its output
	end   func()
}

// playedSleeper returns a sleeper in this process. Its lease is fixed, which means that it isn't
// renewed. So the sleeper loses the lock as a stopped process would.
func playedSleeper(
	ctx context.Context, store backend.Backend, account balance, reports string,
) (*sleeper, error) {
	client := dlock.New(store)
	h, err := client.FencedLocker(lockName).Acquire(ctx, dlock.FixedLease(lease))
	if err != nil {
		client.Close()
		return nil, err
	}
	token, _ := h.Token()
	before, err := account.open(ctx, token)
	if err != nil {
		client.Close()
		return nil, err
	}
	return &sleeper{
		token: token,
		pause: "played",
		wake: func() (string, error) {
			err := commit(ctx, account, reports, token, "sam", before+10)
			return fmt.Sprintf("%v (Release: %v)", err, h.Release(ctx)), nil
		},
		end: func() { client.Close() },
	}, nil
}

// stoppedSleeper returns a sleeper that is another process of this program, stopped by a signal.
func stoppedSleeper(ctx context.Context, addr, reports string) (*sleeper, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, program, "-redis", addr, "-stopped", "-reports", reports)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	end := func() { cmd.Process.Kill(); cmd.Wait() }
	out := bufio.NewReader(pipe)
	line, err := out.ReadString('\n')
	if err != nil {
		end()
		return nil, fmt.Errorf("the process that was to hold the lock ended: %w", err)
	}
	token, err := strconv.ParseUint(strings.TrimSpace(line), 10, 64)
	if err == nil {
		err = stop(cmd.Process)
	}
	if err != nil {
		end()
		return nil, err
	}
	return &sleeper{
		token: token,
		pause: fmt.Sprintf("process %d was stopped", cmd.Process.Pid),
		wake: func() (string, error) {
			if err := resume(cmd.Process); err != nil {
				return "", err
			}
			if _, err := io.WriteString(in, "\n"); err != nil {
				return "", err
			}
			line, err := out.ReadString('\n')
			return strings.TrimSpace(line), err
		},
		end: end,
	}, nil
}

// sleepHere acts as the sleeper, in the process that stoppedSleeper starts.
func sleepHere(ctx context.Context, store backend.Backend, account balance, reports string) error {
	client := dlock.New(store, dlock.WithLease(lease))
	defer client.Close()
	h, err := client.FencedLocker(lockName).Acquire(ctx)
	if err != nil {
		return err
	}
	token, _ := h.Token()
	before, err := account.open(ctx, token)
	if err != nil {
		return err
	}
	fmt.Println(token)
	if _, err := bufio.NewReader(os.Stdin).ReadString('\n'); err != nil { // stopped here
		return err
	}
	err = commit(ctx, account, reports, token, "sam", before+10)
	fmt.Printf("%v (Release: %v)\n", err, h.Release(ctx))
	return nil
}
