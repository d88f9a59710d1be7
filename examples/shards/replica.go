package main

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"sync/atomic"

	"github.com/seed951563bd/distsync/backend"
)

// A replica is a process, or a simulated one.
type replica struct {
	name string
	end  func() error // ends the replica after it has handed over its shards
	kill func()
}

// process starts another process of this program.
func process(addr, name string) (*replica, error) {
	cmd := exec.Command(os.Args[0], "-redis", addr, "-replica", name)
	cmd.Env = os.Environ()
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	return &replica{
		name: name,
		end: func() error {
			in.Close()
			return cmd.Wait()
		},
		kill: func() {
			cmd.Process.Kill()
			cmd.Wait()
		},
	}, nil
}

// played runs a replica in this process. After kill, its requests no longer reach the store.
func played(store backend.Backend, name string) *replica {
	mortal := &mortal{Backend: store}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- work(ctx, mortal, name) }()
	end := func() error {
		cancel()
		return <-done
	}
	return &replica{name: name, end: end, kill: func() {
		mortal.dead.Store(true)
		end()
	}}
}

// mortal is the store as one replica sees it. Once the replica is dead, its requests fail.
type mortal struct {
	backend.Backend
	dead atomic.Bool
}

func (m *mortal) Open() backend.Session { return &session{m.Backend.Open().(memory), m} }

// memory lists the methods of membackend's sessions that the example needs.
type memory interface {
	backend.Session
	backend.Notifier
	backend.Inspector
}

type session struct {
	memory
	store *mortal
}

var errDead = &backend.Error{Kind: backend.Unknown, Err: errors.New("the replica is dead")}

func (s *session) Acquire(
	ctx context.Context, req backend.AcquireRequest,
) (backend.AcquireResult, error) {
	if s.store.dead.Load() {
		return backend.AcquireResult{}, errDead
	}
	return s.memory.Acquire(ctx, req)
}

func (s *session) Renew(
	ctx context.Context, req backend.RenewRequest,
) (backend.RenewResult, error) {
	if s.store.dead.Load() {
		return backend.RenewResult{}, errDead
	}
	return s.memory.Renew(ctx, req)
}

func (s *session) Release(
	ctx context.Context, req backend.ReleaseRequest,
) (backend.ReleaseResult, error) {
	if s.store.dead.Load() {
		return backend.ReleaseResult{}, errDead
	}
	return s.memory.Release(ctx, req)
}
