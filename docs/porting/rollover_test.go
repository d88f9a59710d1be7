package porting

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-redsync/redsync/v4"

	"github.com/seed951563bd/distsync/dlock"
	"github.com/seed951563bd/distsync/internal/test/testservers"
)

func bothDo(
	ctx context.Context, rs *redsync.Redsync, client *dlock.Client, name string, work job,
) error {
	// As before: what isn't ported yet goes by it.
	mutex := rs.NewMutex(name, redsync.WithExpiry(30*time.Second))
	if err := mutex.LockContext(ctx); err != nil {
		return err
	}
	defer mutex.UnlockContext(context.WithoutCancel(ctx))
	return client.Locker(name).Do(ctx, work) // later programs use only this one
}

// While a deployment runs, the program that takes both locks excludes the one before it, and the
// one after it; and those two don't exclude each other.
func TestRollover(t *testing.T) {
	t.Parallel()
	server := testservers.Redis(t)
	rs := redsyncOpen(connect(t, server.Addr))
	// as two processes have them
	clients := []*dlock.Client{connectLocks(t, server.Addr), connectLocks(t, server.Addr)}
	old := func(ctx context.Context, name string, work job) error {
		return redsyncDo(ctx, rs, name, work)
	}
	both := func(ctx context.Context, name string, work job) error {
		return bothDo(ctx, rs, clients[0], name, work)
	}
	ours := func(ctx context.Context, name string, work job) error {
		return dlockDo(ctx, clients[1], name, work)
	}
	for step, versions := range map[string][2]func(
		ctx context.Context, name string, work job,
	) error{
		"the first deployment":  {old, both},
		"the second deployment": {both, ours},
	} {
		t.Run(step, func(t *testing.T) {
			t.Parallel()
			var turn atomic.Int32
			excludes(t, func(ctx context.Context, work job) error {
				return versions[turn.Add(1)%2](ctx, t.Name(), work)
			})
		})
	}
	t.Run("in one deployment", func(t *testing.T) {
		t.Parallel()
		ctx := bounded(t)
		var inside sync.WaitGroup
		inside.Add(2)
		together := func(context.Context) error {
			inside.Done()
			inside.Wait() // for the other
			return ctx.Err()
		}
		other := make(chan error)
		go func() { other <- old(ctx, t.Name(), together) }()
		must(t, ours(ctx, t.Name(), together))
		must(t, <-other)
	})
}
