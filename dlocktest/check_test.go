package dlocktest_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed951563bd/distsync/dlock"
	"github.com/seed951563bd/distsync/dlocktest"
)

// ending runs use as a test with a Store, and returns the errors of the check at its end.
func ending(
	t *testing.T, use func(t *testing.T, r *recorder, store *dlocktest.Store), want ...[]string,
) {
	t.Helper()
	everywhere(t, func(t *testing.T) {
		r := new(recorder)
		store := dlocktest.New(r)
		use(t, r, store)
		r.end()
		r.wants(t, want...)
	})
}

// A test that leaves no lock and no waiter gets no error.
func TestEndOfATestThatLeavesNothing(t *testing.T) {
	ending(t, func(t *testing.T, r *recorder, store *dlocktest.Store) {
		c := clientOf(t, store, "a")
		for _, take := range kinds {
			h, err := take(c, t.Context())
			must(t, err)
			must(t, h.Release(t.Context()))
		}
	})
}

// The check reports a lock that is still held, with its holder, and whether the holder's client is
// closed.
func TestEndOfATestThatLeavesLocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := new(recorder)
		store := dlocktest.New(r)
		a, b := clientOf(t, store, "a"), clientOf(t, store, "b")
		a.Locker("plain").Lock()
		b.FairLocker("fair").Lock()
		a.RWLocker("rw").RLock()
		b.RWLocker("rw").RLock()
		_, err := b.Semaphore("slots", 3).Acquire(t.Context(), 2)
		must(t, err)
		must(t, b.Close())
		r.end()
		r.wants(t,
			[]string{
				"at the end of the test", `the lock "fair" is held by client "b", which is closed`,
			},
			[]string{`the lock "plain" is held by client "a"`},
			[]string{
				`the lock "rw" is held by`, `client "a" (read)`,
				`client "b", which is closed (read)`,
			},
			[]string{`the lock "slots" is held by client "b", which is closed (2 permits)`},
		)
	})
}

// The check also reports waiters, even those in line and election candidates.
func TestEndOfATestInWhichSomebodyWaits(t *testing.T) {
	for name, wait := range map[string]func(c *dlock.Client, ctx context.Context) error{
		"plain": func(c *dlock.Client, ctx context.Context) error {
			return c.FencedLocker("x").LockContext(ctx)
		},
		"fair": func(c *dlock.Client, ctx context.Context) error {
			return c.FairLocker("x").LockContext(ctx)
		},
		"election": func(c *dlock.Client, ctx context.Context) error {
			return c.Election("x").Run(ctx, func(context.Context) error { return nil })
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := new(recorder)
				store := dlocktest.New(r)
				clientOf(t, store, "a").Locker("x").Lock()
				ctx, cancel := context.WithCancel(t.Context())
				waited := make(chan error)
				go func() { waited <- wait(clientOf(t, store, "b"), ctx) }()
				synctest.Wait()
				r.end()
				r.wants(t, []string{`the lock "x" is held by client "a"`}, []string{
					"at the end of the test", `client "b" waits for the lock "x"`,
				})
				cancel()
				if err := <-waited; !errors.Is(err, context.Canceled) {
					t.Errorf("the wait: %v", err)
				}
			})
		})
	}
}

// A client that has given up, was closed, or only observes doesn't count as waiting.
func TestEndOfATestInWhichNobodyWaitsAnyMore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := new(recorder)
		store := dlocktest.New(r)
		a, b, c := clientOf(t, store, "a"), clientOf(t, store, "b"), clientOf(t, store, "c")
		held := acquire(t, a.FencedLocker("x"))
		if err := b.Locker("x").LockContext(t.Context(), dlock.Wait(time.Second)); !errors.Is(err,
			dlock.ErrNotAcquired) {
			t.Errorf("Lock = %v", err)
		}
		closed := make(chan error)
		go func() { closed <- c.Locker("x").LockContext(t.Context()) }()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go func() {
			for range b.Election("x").Changes(ctx) {
			}
		}()
		synctest.Wait()
		must(t, c.Close())
		if err := <-closed; !errors.Is(err, dlock.ErrClosed) {
			t.Errorf("Lock = %v", err)
		}
		must(t, held.Release(t.Context()))
		r.end()
		r.wants(t)
	})
}

// The check accepts a lock that is only kept.
func TestEndOfATestThatLeavesLocksTaken(t *testing.T) {
	ending(t, func(t *testing.T, r *recorder, store *dlocktest.Store) {
		c := clientOf(t, store, "a")
		must(t, acquire(t, c.Locker("x"), dlock.AtLeast(time.Hour)).Release(t.Context()))
		_, err := c.Once(t.Context(), "report", "today", time.Hour, func(context.Context) error {
			return nil
		})
		must(t, err)
	})
}

// The check gives a goroutine time to release its lock.
func TestEndOfATestThatIsAMomentEarly(t *testing.T) {
	ending(t, func(t *testing.T, r *recorder, store *dlocktest.Store) {
		h := acquire(t, clientOf(t, store, "a").Locker("x"))
		go func() {
			time.Sleep(100 * time.Millisecond)
			h.Release(context.Background())
		}()
	})
}

// Faults end with the test. The check waits for releases that faults have delayed: an unlock that
// hangs, and a release that has been repeated in the background with long pauses.
func TestEndOfATestWhoseStoreIsDown(t *testing.T) {
	t.Run("hangs", func(t *testing.T) {
		ending(t, func(t *testing.T, r *recorder, store *dlocktest.Store) {
			h := acquire(t, clientOf(t, store, "a").Locker("x"))
			ctx := h.Context()
			store.Hang(-1)
			go h.Release(context.Background())
			<-ctx.Done() // the unlock has begun
		})
	})
	t.Run("fails", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			for range 50 { // the pauses are random
				r := new(recorder)
				store := dlocktest.New(r)
				h := acquire(t, clientOf(t, store, "a").Locker("x"))
				store.Fail(-1, errTest)
				if err := h.Release(t.Context()); !errors.Is(err, errTest) {
					t.Errorf("Release = %v", err)
				}
				time.Sleep(12 * time.Second)
				store.Held(t, "x")
				r.end()
				r.wants(t)
			}
		})
	})
	t.Run("and its renewals are paused", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			r := new(recorder)
			store := dlocktest.New(r)
			h := acquire(t, clientOf(t, store, "a").Locker("x"))
			store.PauseRenewals()
			time.Sleep(dlock.DefaultLease / 2)
			r.end()
			r.wants(t, []string{`the lock "x" is held by client "a"`})
			time.Sleep(time.Hour)
			must(t, h.Err())
		})
	})
}

// For a test that has failed or was skipped, the check reports nothing and doesn't wait. But the
// faults end.
func TestEndOfATestThatHasFailed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, r := range []*recorder{{errors: []string{"failed"}}, {skipped: true}} {
			store := dlocktest.New(r)
			before := len(r.said())
			c := clientOf(t, store, "a")
			c.Locker("x").Lock()
			store.Hang(-1)
			began := time.Now()
			r.end()
			if n := len(r.said()) - before; n > 0 || time.Since(began) > 0 {
				t.Errorf("%d errors more, after %v", n, time.Since(began))
			}
			if ok, err := c.Locker("x").TryLock(t.Context()); ok || err != nil {
				t.Errorf("TryLock = %v, %v", ok, err)
			}
		}
	})
}

// The check runs after all later cleanups of the test. A client may be closed before or after it.
func TestEndOfATestAndItsClients(t *testing.T) {
	for _, before := range []bool{true, false} {
		r := new(recorder)
		var c *dlock.Client
		closes := func() { must(t, c.Close()) }
		if !before {
			r.Cleanup(closes)
		}
		store := dlocktest.New(r)
		if before {
			r.Cleanup(closes)
		}
		c = dlock.New(store, quiet())
		must(t, acquire(t, c.Locker("x")).Release(t.Context()))
		r.end()
		r.wants(t)
	}
}
