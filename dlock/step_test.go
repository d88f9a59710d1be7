package dlock

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/dlock/internal/steps"
	"github.com/seed951563bd/distsync/membackend"
)

// stuck says which steps of a store don't return before they go on, whatever becomes of their
// contexts. Then they are carried out.
type stuck struct {
	next atomic.Int64  // how many acquisitions are to hang
	goOn chan struct{} // lets them go on
}

// onStuck runs a test with a client of such a store, and with another of the store behind it.
func onStuck(t *testing.T, simple bool, test func(t *testing.T, b *stuck, c, direct *Client)) {
	synctest.Test(t, func(t *testing.T) {
		mem := membackend.New()
		store, b := newScript(mem).together(!simple), &stuck{goOn: make(chan struct{})}
		store.acquire.set(func(*acquireStep) {
			if b.next.Add(-1) >= 0 {
				<-b.goOn
			}
		})
		c, direct := New(store, quiet()), New(mem, quiet())
		test(t, b, c, direct)
		time.Sleep(2 * DefaultLease) // so that take-backs are over
		c.Close()
		direct.Close()
	})
}

// soon is when a call has what it wants though one of its steps hangs.
const soon = steps.Longest + steps.Longest/3

// mustBeFree fails the test if anybody has a lock in the store.
func mustBeFree(t *testing.T, direct *Client, names ...string) {
	t.Helper()
	for _, name := range names {
		i, err := direct.Inspect(context.Background(), name)
		must(t, err)
		if len(i.Holders) > 0 {
			t.Errorf("%s has %v", i.Holders[0].ID, name)
		}
	}
}

// One step never returns, and the store is well: the waiter gets in by a later attempt. When the
// step goes on at last, long after the lock was given back, what it has got is taken back.
func TestAStepThatHangs(t *testing.T) {
	type giveBack func() error
	hold := func(h *Hold, err error) (giveBack, error) {
		return func() error { return h.Release(context.Background()) }, err
	}
	locker := func(l *Locker, ctx context.Context) (giveBack, error) {
		return func() error { return l.UnlockContext(ctx) }, l.LockContext(ctx)
	}
	for name, acquire := range map[string]func(
		t *testing.T, c *Client, hang func(n int64),
	) (giveBack, error){
		"a lock": func(t *testing.T, c *Client, hang func(n int64)) (giveBack, error) {
			hang(1)
			return locker(c.Locker("x"), context.Background())
		},
		"a lock, with a context that may end": func(
			t *testing.T, c *Client, hang func(n int64),
		) (giveBack, error) {
			hang(1)
			return locker(c.Locker("x"), t.Context())
		},
		"a lock, with a context that ends much later": func(
			t *testing.T, c *Client, hang func(n int64),
		) (giveBack, error) {
			hang(1)
			ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
			defer cancel()
			return locker(c.Locker("x"), ctx)
		},
		"a lock with a lease of its own": func(
			t *testing.T, c *Client, hang func(n int64),
		) (giveBack, error) {
			hang(1)
			return hold(c.Locker("x").Acquire(t.Context(), RenewedLease(time.Hour)))
		},
		"a re-entry": func(t *testing.T, c *Client, hang func(n int64)) (giveBack, error) {
			ctx := WithOwner(t.Context(), NewOwner())
			l := c.Locker("x")
			must(t, l.LockContext(ctx))
			hang(1)
			again, err := locker(l, ctx)
			must(t, err)
			must(t, again())
			return again, nil
		},
		"a read": func(t *testing.T, c *Client, hang func(n int64)) (giveBack, error) {
			hang(1)
			return hold(c.RWLocker("x").Reader().Acquire(t.Context()))
		},
		"a read under a write": func(
			t *testing.T, c *Client, hang func(n int64),
		) (giveBack, error) {
			ctx := WithOwner(t.Context(), NewOwner())
			write, err := locker(c.RWLocker("x").Writer(), ctx)
			must(t, err)
			hang(1)
			read, err := locker(c.RWLocker("x").Reader(), ctx)
			return func() error { return errors.Join(read(), write()) }, err
		},
		"permits": func(t *testing.T, c *Client, hang func(n int64)) (giveBack, error) {
			hang(1)
			return hold(c.Semaphore("x", 1).Acquire(t.Context(), 1))
		},
		"a fair lock": func(t *testing.T, c *Client, hang func(n int64)) (giveBack, error) {
			hang(1)
			return hold(c.FairLocker("x").Acquire(t.Context()))
		},
		"several": func(t *testing.T, c *Client, hang func(n int64)) (giveBack, error) {
			hang(2)
			return hold(All(lockers(c, "x", "y")...).Acquire(t.Context()))
		},
	} {
		for _, simple := range []bool{true, false} {
			if name != "several" && !simple {
				continue // they don't go together
			}
			t.Run(name, func(t *testing.T) {
				onStuck(t, simple, func(t *testing.T, b *stuck, c, direct *Client) {
					began := time.Now()
					release, err := acquire(t, c, b.next.Store)
					must(t, err)
					if took := time.Since(began); took > soon {
						t.Errorf("in after %v", took)
					}
					must(t, release())
					time.Sleep(3 * time.Hour) // until nobody reckons with it
					mustBeFree(t, direct, "x", "y")
					close(b.goOn)
					time.Sleep(time.Millisecond)
					mustBeFree(t, direct, "x", "y")
				})
			})
		}
	}
}

// A call that doesn't wait says after a lease that the store doesn't answer, and so do questions.
func TestAStepOfACallThatDoesNotWaitHangs(t *testing.T) {
	for _, lease := range []time.Duration{100 * time.Millisecond, 5 * time.Second, time.Hour} {
		onStuck(t, true, func(t *testing.T, b *stuck, c, direct *Client) {
			b.next.Store(1)
			began := time.Now()
			ok, err := c.Locker("x").TryLock(context.Background(), RenewedLease(lease))
			if ok || !errors.Is(err, ErrUnavailable) {
				t.Errorf("TryLock = %v, %v", ok, err)
			}
			if took, want := time.Since(began), steps.About(lease); took < want*7/8 ||
				took > want {
				t.Errorf("with a lease of %v it takes %v", lease, took)
			}
			time.Sleep(3 * time.Hour) // until nobody reckons with it
			close(b.goOn)
			time.Sleep(time.Millisecond)
			mustBeFree(t, direct, "x")
		})
	}
}

// Calls that wait behind one whose step hangs get in, too.
func TestBehindAStepThatHangs(t *testing.T) {
	onStuck(t, true, func(t *testing.T, b *stuck, c, direct *Client) {
		b.next.Store(1)
		var in atomic.Int64
		for range 5 {
			go c.Locker("x").Do(context.Background(), func(context.Context) error {
				in.Add(1)
				return nil
			})
		}
		time.Sleep(soon)
		if n := in.Load(); n != 5 {
			t.Errorf("%d of 5 got in", n)
		}
		close(b.goOn)
		time.Sleep(2 * longestPause(DefaultLease)) // it is being taken back already, now and then
		mustBeFree(t, direct, "x")
	})
}

// A step that panics, which net/http and others recover from, leaves nothing in the way of others.
func TestAStepThatPanics(t *testing.T) {
	for name, test := range map[string]struct {
		acquires, releases int
		call               func(l *Locker)
	}{
		"Lock":    {1, 0, (*Locker).Lock},
		"TryLock": {1, 0, func(l *Locker) { l.TryLock(context.Background()) }},
		"Unlock":  {0, 1, func(l *Locker) { l.Lock(); defer l.Unlock() }},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := newScript(membackend.New()).but(neverWaits)
				store.acquire.set(func(s *acquireStep) {
					if s.n <= test.acquires {
						panic("acquire")
					}
				})
				store.release.set(func(s *releaseStep) {
					if s.n <= test.releases {
						panic("release")
					}
				})
				c := New(store, quiet())
				defer c.Close()
				l := c.Locker("x")
				func() {
					defer func() {
						if recover() == nil {
							t.Fatal("no panic")
						}
					}()
					test.call(l)
				}()
				w := wait(t.Context(), c.Locker("x"))
				time.Sleep(time.Second)
				w.mustBeIn(t)
				w.leave()
				mustTry(t, l)
				l.Unlock()
				time.Sleep(2 * DefaultLease)
				empty(t, c)
			})
		})
	}
}

// An attempt that is cut short because its owner got in elsewhere is logged as one that failed.
func TestAnAttemptThatIsCutShortIsNoFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newScript(membackend.New())
		b.acquire.set(func(s *acquireStep) {
			if s.n == 1 {
				time.Sleep(10 * time.Millisecond)
			}
		})
		logger, lines := slowLogger(0)
		c := New(b, logger)
		defer c.Close()
		ctx := WithOwner(t.Context(), NewOwner())
		w := wait(ctx, c.Locker("x")) // asks, and has no answer yet
		l := c.Locker("x")
		if ok, err := l.TryLock(ctx); !ok || err != nil { // the same owner gets in
			t.Fatal(ok, err)
		}
		w.mustBeIn(t)
		w.leave()
		mustUnlock(t, ctx, l)
		if synctest.Wait(); lines.Load() > 0 {
			t.Error("the store is well, nothing failed, and something is logged")
		}
	})
}

// An attempt that the call's own end cuts short doesn't hide why those before it failed.
func TestLastErrorOutlivesAnAttemptCutShort(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		down := errors.New("connection refused")
		b := newScript(membackend.New())
		b.acquire.set(func(s *acquireStep) {
			if s.n == 1 {
				s.fail(&backend.Error{Kind: backend.Retry, Err: down})
				return
			}
			s.hang()
		})
		c := New(b, quiet())
		defer c.Close()
		ctx, cancel := context.WithTimeout(t.Context(), steps.About(c.lease)/2)
		defer cancel()
		err := c.Locker("x").LockContext(ctx)
		if !errors.Is(err, down) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("the store failed, and then hung: %v", err)
		}
	})
}
