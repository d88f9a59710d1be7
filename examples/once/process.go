package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"time"

	"github.com/seed951563bd/distsync/backend"
)

// The prefixes of the lines that a replica prints. Each is followed by the day.
const (
	beginning = "begins "
	making    = "made "
	hearing   = "is made "
)

// pause waits for d, or until ctx ends.
func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// A process is a replica. It prints a line for each report.
type process struct {
	lines <-chan string // closed when the process has ended
	kill  func()
}

// next waits for the next line.
func (p process) next(ctx context.Context) (string, error) {
	select {
	case line, ok := <-p.lines:
		if !ok {
			return "", errors.New("a replica has ended")
		}
		return line, nil
	case <-ctx.Done():
		return "", context.Cause(ctx)
	}
}

// scan returns a channel that receives the lines of r.
func scan(r io.Reader) <-chan string {
	lines := make(chan string)
	go func() {
		defer close(lines)
		for s := bufio.NewScanner(r); s.Scan(); {
			lines <- s.Text()
		}
	}()
	return lines
}

// clientProcess returns a replica in this process. This replica dies by hanging forever, while its
// renewals fail. To the other replicas that looks like a crash: the lock is no longer renewed, and
// isn't released.
func clientProcess(
	ctx context.Context, store backend.Backend, job string, late time.Duration, dies bool,
) process {
	alive, die := context.WithCancel(ctx)
	r, w := io.Pipe()
	go func() {
		err := replica(alive, mortal{store, alive}, w, job, late, dies)
		w.CloseWithError(err)
	}()
	return process{scan(r), die}
}

// mortal is a store that makes the renewals of a dead replica fail.
type mortal struct {
	backend.Backend
	alive context.Context
}

func (m mortal) Open() backend.Session { return mortalSession{m.Backend.Open(), m.alive} }

type mortalSession struct {
	backend.Session
	alive context.Context
}

func (s mortalSession) Renew(
	ctx context.Context, req backend.RenewRequest,
) (backend.RenewResult, error) {
	if err := s.alive.Err(); err != nil {
		return backend.RenewResult{}, err
	}
	return s.Session.Renew(ctx, req)
}

// realProcess starts another process of this program.
func realProcess(ctx context.Context, addr, job string, late time.Duration, dies bool) process {
	ctx, kill := context.WithCancel(ctx)
	r, w := io.Pipe()
	program, err := os.Executable()
	if err == nil {
		cmd := exec.CommandContext(ctx, program, "-redis", addr, "-job", job,
			fmt.Sprintf("-late=%v", late), fmt.Sprintf("-dies=%v", dies))
		cmd.Stdout, cmd.Stderr = w, os.Stderr
		go func() { w.CloseWithError(cmd.Run()) }()
	} else {
		w.CloseWithError(err)
	}
	return process{scan(r), kill}
}
