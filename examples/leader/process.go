package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"sync"
	"time"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/dlock"
)

// campaign campaigns for leadership until ctx ends, and runs the loop while it leads. Each process
// calls it.
func campaign(ctx context.Context, store backend.Backend, say func(line)) error {
	client := dlock.New(store, dlock.WithLease(lease),
		dlock.WithLogger(slog.New(slog.DiscardHandler)))
	defer client.Close()
	err := client.Election(electionName).Run(ctx, func(ctx context.Context) error {
		term, _ := dlock.Token(ctx)
		say(line{What: "leads", Term: term})
		for ctx.Err() == nil { // Err checks the clock: it notices pauses
			say(line{What: "works", Term: term})
			select {
			case <-time.After(lease / 20):
			case <-ctx.Done():
			}
		}
		if errors.Is(context.Cause(ctx), dlock.ErrLost) {
			say(line{What: "lost", Term: term})
		} else {
			say(line{What: "done", Term: term})
		}
		return nil // after a loss, Run campaigns again
	})
	if err != nil && ctx.Err() == nil {
		return err
	}
	// Run also returns an error when ctx ends, but that isn't a failure, because this program was
	// told to end.
	return nil
}

// A process campaigns for leadership until it is told to end, or is killed.
type process struct {
	kill          func()
	pause, resume func() error
	end           func() error
}

// playedProcess returns a simulated process. While it is paused or dead, it prints nothing and
// renews nothing.
func playedProcess(ctx context.Context, store backend.Backend, says func(line)) *process {
	ctx, cancel := context.WithCancel(ctx)
	p := new(pausable)
	ended := make(chan error, 1)
	go func() {
		ended <- campaign(ctx, pausableStore{store, p}, func(l line) {
			p.wait(ctx)
			says(l)
		})
	}()
	return &process{
		kill:   p.pause,
		pause:  func() error { p.pause(); return nil },
		resume: func() error { p.resume(); return nil },
		end:    func() error { cancel(); return <-ended },
	}
}

// A pausable can be paused.
type pausable struct {
	mu sync.Mutex
	on chan struct{} // closed by resume; nil if not paused
}

func (p *pausable) pause() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.on == nil {
		p.on = make(chan struct{})
	}
}

func (p *pausable) resume() {
	p.mu.Lock()
	defer p.mu.Unlock()
	close(p.on)
	p.on = nil
}

// wait waits while p is paused.
func (p *pausable) wait(ctx context.Context) {
	p.mu.Lock()
	on := p.on
	p.mu.Unlock()
	if on == nil {
		return
	}
	select {
	case <-on:
	case <-ctx.Done():
	}
}

// A pausableStore is a store whose renewals wait while p is paused.
type pausableStore struct {
	backend.Backend
	p *pausable
}

func (s pausableStore) Open() backend.Session { return pausableSession{s.Backend.Open(), s.p} }

type pausableSession struct {
	backend.Session
	p *pausable
}

func (s pausableSession) Renew(
	ctx context.Context, req backend.RenewRequest,
) (backend.RenewResult, error) {
	s.p.wait(ctx)
	return s.Session.Renew(ctx, req)
}

// realProcess starts another process of this program.
func realProcess(ctx context.Context, addr string, says func(line)) (*process, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, program, "-redis", addr, "-candidate")
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	heard := make(chan struct{})
	go func() {
		defer close(heard)
		hear(out, says)
	}()
	ended := sync.OnceValue(func() error { <-heard; return cmd.Wait() })
	return &process{
		kill:   func() { cmd.Process.Kill(); ended() },
		pause:  func() error { return stop(cmd.Process) },
		resume: func() error { return resume(cmd.Process) },
		end:    func() error { in.Close(); return ended() },
	}, nil
}

// hear passes on the lines that a process prints, until its output ends.
func hear(out io.Reader, says func(line)) {
	for {
		var l line
		if _, err := fmt.Fscanln(out, &l.What, &l.Term); err != nil {
			return
		}
		says(l)
	}
}
