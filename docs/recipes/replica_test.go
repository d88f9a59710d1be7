package recipes

import (
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

// replicaOn returns the client of a replica, or of another process, on a store.
func replicaOn(t *testing.T, store backend.Backend, opts ...dlock.Option) *dlock.Client {
	c := dlock.New(store, append(opts, dlock.WithLogger(slog.New(slog.DiscardHandler)))...)
	t.Cleanup(func() { c.Close() })
	return c
}

// A gauge counts who is inside at the same time.
type gauge struct{ now, most, entered, left atomic.Int32 }

// around runs fn, and counts it in.
func (g *gauge) around(fn func()) {
	g.entered.Add(1)
	now := g.now.Add(1)
	for most := g.most.Load(); now > most &&
		!g.most.CompareAndSwap(most, now); most = g.most.Load() {
	}
	defer func() {
		g.now.Add(-1)
		g.left.Add(1)
	}()
	fn()
}
