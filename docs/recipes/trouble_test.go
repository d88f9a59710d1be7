package recipes

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/membackend"
)

// A line is one process's way to the store, which can break.
type line struct {
	backend.Backend
	takes        time.Duration // each request
	down, silent atomic.Bool
}

func lineTo(store *membackend.Backend) *line { return &line{Backend: store} }

var errNoConnection = errors.New("connection refused")

func (l *line) Open() backend.Session { return &lineSession{l.Backend.Open(), l} }

// lineSession is a session of a line. Its waiters poll.
type lineSession struct {
	backend.Session
	line *line
}

func (s *lineSession) broken(ctx context.Context) error {
	time.Sleep(s.line.takes)
	if s.line.silent.Load() {
		<-ctx.Done()
		return ctx.Err()
	}
	if s.line.down.Load() {
		return errNoConnection
	}
	return nil
}

func (s *lineSession) Acquire(
	ctx context.Context, req backend.AcquireRequest,
) (backend.AcquireResult, error) {
	if err := s.broken(ctx); err != nil {
		return backend.AcquireResult{}, err
	}
	return s.Session.Acquire(ctx, req)
}

func (s *lineSession) Release(
	ctx context.Context, req backend.ReleaseRequest,
) (backend.ReleaseResult, error) {
	if err := s.broken(ctx); err != nil {
		return backend.ReleaseResult{}, err
	}
	return s.Session.Release(ctx, req)
}

func (s *lineSession) Renew(
	ctx context.Context, req backend.RenewRequest,
) (backend.RenewResult, error) {
	if err := s.broken(ctx); err != nil {
		return backend.RenewResult{}, err
	}
	return s.Session.Renew(ctx, req)
}

func (s *lineSession) Look(
	ctx context.Context, req backend.LookRequest,
) (backend.LookResult, error) {
	if err := s.broken(ctx); err != nil {
		return backend.LookResult{}, err
	}
	return s.Session.Look(ctx, req)
}
