package recipes

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"testing"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/dlock"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// replicaOn returns the client of a replica.
func replicaOn(t *testing.T, store backend.Backend, opts ...dlock.Option) *dlock.Client {
	c := dlock.New(store, append(opts, dlock.WithLogger(slog.New(slog.DiscardHandler)))...)
	t.Cleanup(func() { c.Close() })
	return c
}

// A cable is what connects a replica with the store. It can be cut.
type cable struct {
	backend.Backend
	cut atomic.Bool
}

var errCut = errors.New("no route to host")

func (c *cable) Open() backend.Session { return &cableSession{c.Backend.Open(), c} }

// A cable session is one by which nobody is told of releases: who waits looks again and again.
type cableSession struct {
	backend.Session
	cable *cable
}

func (s *cableSession) Acquire(ctx context.Context, req backend.AcquireRequest) (backend.AcquireResult, error) {
	if s.cable.cut.Load() {
		return backend.AcquireResult{}, errCut
	}
	return s.Session.Acquire(ctx, req)
}

func (s *cableSession) Renew(ctx context.Context, req backend.RenewRequest) (backend.RenewResult, error) {
	if s.cable.cut.Load() {
		return backend.RenewResult{}, errCut
	}
	return s.Session.Renew(ctx, req)
}

func (s *cableSession) Release(ctx context.Context, req backend.ReleaseRequest) (backend.ReleaseResult, error) {
	if s.cable.cut.Load() {
		return backend.ReleaseResult{}, errCut
	}
	return s.Session.Release(ctx, req)
}

// A gauge counts who is inside at the same time.
type gauge struct{ now, most, entered, left atomic.Int32 }

// around runs fn, and counts it in.
func (g *gauge) around(fn func()) {
	g.entered.Add(1)
	now := g.now.Add(1)
	for most := g.most.Load(); now > most && !g.most.CompareAndSwap(most, now); most = g.most.Load() {
	}
	defer func() {
		g.now.Add(-1)
		g.left.Add(1)
	}()
	fn()
}
