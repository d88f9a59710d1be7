package porting

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/dlock"
	"github.com/seed951563bd/distsync/internal/test/fleet"
	"github.com/seed951563bd/distsync/internal/test/testservers"
	"github.com/seed951563bd/distsync/redisbackend"
)

func TestMain(m *testing.M) { fleet.Main(m, nil) }

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// wantErr fails the test unless err wraps all of these errors.
func wantErr(t *testing.T, err error, targets ...error) {
	t.Helper()
	for _, target := range targets {
		if !errors.Is(err, target) {
			t.Errorf("%v, want %v", err, target)
		}
	}
}

// connect returns a client of a Redis.
func connect(t *testing.T, addr string) *redis.Client {
	rdb := redis.NewClient(&redis.Options{Addr: addr})
	t.Cleanup(func() { rdb.Close() })
	return rdb
}

// connectLocks returns a client for locks in a Redis, as a program would have it that comes from
// another package: with a prefix.
func connectLocks(t *testing.T, addr string) *dlock.Client {
	return newClient(t, redisbackend.New(connect(t, addr), redisbackend.WithPrefix("lock:")))
}

// lease is that of all clients, and of the other packages' locks where they are extended. Each
// third of it something is extended.
const lease = 3 * time.Second

func newClient(t *testing.T, b backend.Backend, opts ...dlock.Option) *dlock.Client {
	c := dlock.New(b,
		append([]dlock.Option{dlock.WithLease(lease),
			dlock.WithLogger(slog.New(slog.DiscardHandler))}, opts...)...)
	t.Cleanup(func() { c.Close() })
	return c
}

// A job is what is done by whoever has the lock.
type job = func(ctx context.Context) error

// bounded returns a context for what should happen soon.
func bounded(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), testservers.Patience)
	t.Cleanup(cancel)
	return ctx
}

// sides runs a test for the code before and after.
func sides(t *testing.T, before, after func(t *testing.T)) {
	t.Run("before", func(t *testing.T) { t.Parallel(); before(t) })
	t.Run("after", func(t *testing.T) { t.Parallel(); after(t) })
}

// excludes lets three users go in at the same time. The test fails if two are inside together, or
// one doesn't get in.
func excludes(t *testing.T, enter func(ctx context.Context, work job) error) {
	t.Helper()
	var inside, visits atomic.Int32
	var all sync.WaitGroup
	for range 3 {
		all.Go(func() {
			err := enter(bounded(t), func(context.Context) error {
				if inside.Add(1) != 1 {
					t.Error("two are inside")
				}
				time.Sleep(5 * time.Millisecond) // for the others to try
				inside.Add(-1)
				visits.Add(1)
				return nil
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if n := visits.Load(); n != 3 {
		t.Errorf("%d of 3 were inside", n)
	}
}

// ran returns a job, and whether it has run.
func ran() (job, *atomic.Bool) {
	var done atomic.Bool
	return func(context.Context) error { done.Store(true); return nil }, &done
}

// skips lets a user come while another is inside: it must go away without an error. Then it comes
// again.
func skips(t *testing.T, enter func(ctx context.Context, work job) error) {
	t.Helper()
	must(t, enter(bounded(t), func(ctx context.Context) error {
		work, done := ran()
		if err := enter(bounded(t), work); err != nil || done.Load() {
			t.Errorf("while another is inside: %v, ran: %v", err, done.Load())
		}
		return nil
	}))
	work, done := ran()
	if err := enter(bounded(t), work); err != nil || !done.Load() {
		t.Errorf("when nobody is inside: %v, ran: %v", err, done.Load())
	}
}

// givesUp has somebody come while another stays inside. It returns the error.
func givesUp(t *testing.T, enter func(ctx context.Context, work job) error) (refused error) {
	t.Helper()
	must(t, enter(bounded(t), func(ctx context.Context) error {
		work, done := ran()
		refused = enter(bounded(t), work)
		if refused == nil || done.Load() {
			t.Error("it got in while another was inside")
		}
		return nil
	}))
	return refused
}

// renews has a user stay inside until it sees that the lock's key lasts longer than it did.
func renews(
	t *testing.T, left func(ctx context.Context) time.Duration, enter func(
		ctx context.Context, work job,
	) error,
) {
	t.Helper()
	must(t, enter(bounded(t), func(ctx context.Context) error {
		last := left(ctx)
		testservers.Until(t, "it is renewed", func() bool {
			before := last
			last = left(ctx)
			return last > before
		})
		return ctx.Err()
	}))
}

// pttl returns how long a key lasts.
func pttl(t *testing.T, rdb *redis.Client, key string) func(ctx context.Context) time.Duration {
	return func(ctx context.Context) time.Duration {
		d, err := rdb.PTTL(ctx, key).Result()
		if err != nil || d <= 0 {
			t.Errorf("%s: %v, %v", key, d, err)
		}
		return d
	}
}
