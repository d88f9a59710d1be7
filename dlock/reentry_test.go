package dlock

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/dlock/internal/protocol"
	"github.com/seed951563bd/distsync/membackend"
)

// A re-entry without a lease has the hold renewed while it lasts. After that the hold ends with the
// lease that it has.
func TestAReentryLeavesTheFixedLeaseFixed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New(membackend.New(), quiet())
		defer c.Close()
		l := c.Locker("x")
		l.Do(t.Context(), func(ctx context.Context) error {
			// something that locks, too
			err := l.Do(ctx, func(context.Context) error { time.Sleep(time.Minute); return nil })
			if err != nil || ctx.Err() != nil {
				t.Errorf("a minute inside: %v, %v", err, ctx.Err())
			}
			time.Sleep(2 * DefaultLease)
			if !errors.Is(context.Cause(ctx), ErrLost) {
				t.Error("what had a fixed lease is renewed for ever")
			}
			return nil
		}, FixedLease(10*time.Second))
	})
}

// Two goroutines lock in one owner's name at once: the second to come re-enters.
func TestOneOwnerTwiceAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New(membackend.New())
		defer c.Close()
		l := c.Locker("x")
		for range 2000 {
			ctx, cancel := context.WithTimeout(WithOwner(t.Context(), NewOwner()), time.Minute)
			var all sync.WaitGroup
			for range 3 {
				all.Go(func() {
					if err := l.LockContext(ctx); err != nil {
						t.Error(err)
					}
				})
			}
			all.Wait()
			if t.Failed() {
				cancel()
				return
			}
			for range 3 {
				if err := l.UnlockContext(ctx); err != nil {
					t.Fatal(err)
				}
			}
			cancel()
		}
	})
}

// The 1 % is gone after a re-entry into a fixed hold. The store's clock is 0.9 % fast.
func TestReentryKeepsTheReserveForClocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fast := func(d time.Duration) time.Duration { return time.Duration(float64(d) / 1.009) }
		b := newScript(membackend.New())
		b.acquire.set(func(s *acquireStep) { s.req.Lease = fast(s.req.Lease) })
		b.release.set(func(s *releaseStep) { s.req.Lease = fast(s.req.Lease) })
		c, d := New(b, quiet()), New(b, quiet())
		defer c.Close()
		defer d.Close()
		ctx := WithOwner(t.Context(), NewOwner())
		l := c.Locker("x")
		if err := l.LockContext(ctx, FixedLease(100*time.Second)); err != nil {
			t.Fatal(err)
		}
		if err := l.LockContext(ctx, FixedLease(time.Second)); err != nil {
			t.Fatal(err)
		}
		lost := l.Lost(ctx)
		if err := d.Locker("x").LockContext(t.Context()); err != nil {
			t.Fatal(err)
		}
		select {
		case <-lost:
		default:
			n := 0
			for ; ; n++ {
				select {
				case <-lost:
					t.Errorf("two valid holders for %d ms", n)
					return
				default:
					time.Sleep(time.Millisecond)
				}
			}
		}
	})
}

// A re-entry's answer revives a hold whose time had passed, across another's critical section.
func TestNoAnswerRevivesAHoldThatIsOver(t *testing.T) {
	for _, what := range []string{"re-entry", "partial"} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				mem := membackend.New()
				b := newScript(mem)
				// in a process that is paused no step is left: see steps.Shortest
				const lease = 500 * time.Millisecond
				c, d := New(b, quiet(), WithLease(lease)), New(mem, quiet())
				defer c.Close()
				defer d.Close()
				ctx := WithOwner(context.Background(), NewOwner())
				l := c.Locker("x")
				var late func()
				pause := func() {
					c.mu.Lock()
					// the process is paused: no timer runs before the answer is looked at
					c.state.timer.Stop()
					c.mu.Unlock()
					time.Sleep(lease - 2*time.Millisecond)           // past the deadline
					time.Sleep(3 * time.Millisecond)                 // past the store's lease
					mustTry(t, d.Locker("x"), FixedLease(time.Hour)) // another is inside ...
					d.Locker("x").ForceUnlock(t.Context())           // ... and leaves
				}
				b.acquire.set(func(s *acquireStep) {
					switch {
					case s.n == 1:
						late = s.do
						s.fail(errors.New("no answer"))
						return
					case s.req.Reentry && what == "re-entry":
						c.mu.Lock()
						c.state.timer.Stop()
						c.mu.Unlock()
						time.Sleep(50 * time.Millisecond) // the network is slow
						pause()
						late()
					}
				})
				if err := l.LockContext(ctx, FixedLease(lease)); err != nil {
					t.Fatal(err)
				}
				lost := l.Lost(ctx)
				if what == "partial" {
					if err := l.LockContext(ctx, FixedLease(lease/10)); err != nil {
						t.Fatal(err)
					}
					b.release.set(func(s *releaseStep) {
						b.release.set(nil)
						pause()
						late()
						late()
					})
					// the unlock's own context would end at the deadline; it may, too, not have
					// been looked at
					c.mu.Lock()
					h := heldOf(c, "x")
					c.mu.Unlock()
					c.mu.Lock()
					p := h.leavePart(&c.state, c.now())
					c.unlock()
					err := p.release(context.Background(), c)
					if err == nil {
						t.Errorf("another was inside since, and the partial unlock says nil")
					}
				} else {
					err := l.LockContext(ctx, FixedLease(lease))
					if err == nil {
						t.Errorf("another was inside since, and the re-entry says nil")
					}
				}
				select {
				case <-lost:
				default:
					t.Error("Lost isn't closed, though another was inside meanwhile")
				}
			})
		})
	}
}

// Two TryLocks of one owner.
func TestOwnerDoesNotExcludeItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newScript(membackend.New())
		b.acquire.set(func(s *acquireStep) {
			if s.n == 1 {
				time.Sleep(time.Millisecond)
			}
		})
		c := New(b, quiet())
		defer c.Close()
		l := c.Locker("x")
		ctx := WithOwner(t.Context(), NewOwner())
		var all sync.WaitGroup
		for range 2 {
			all.Go(func() {
				if ok, err := l.TryLock(ctx); !ok {
					t.Errorf("nobody but the owner has it: TryLock = %v, %v", ok, err)
				}
			})
		}
		all.Wait()
	})
}

// A waiter that was joined re-enters at once.
func TestWaiterReentersAtOnceWhenItsOwnerGotIn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		open := make(chan struct{})
		b := newScript(membackend.New())
		b.acquire.set(func(s *acquireStep) {
			if s.n == 1 {
				s.waitFor(open)
			}
		})
		c := New(b, quiet())
		l := c.Locker("x")
		ctx, cancel := context.WithCancel(WithOwner(t.Context(), NewOwner()))
		defer cancel()
		done := make(chan struct{})
		go func() { l.LockContext(ctx); close(done) }()
		synctest.Wait()
		if ok, err := l.TryLock(ctx); !ok {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		select {
		case <-done:
		default:
			t.Error("an hour after its owner got in, the waiter still waits")
		}
		close(open)
		synctest.Wait()
		c.Close()
	})
}

// A re-entry that is retried, or waits for its turn, while the hold is lost.
func TestReentryDoesNotBecomeAFreshHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newScript(membackend.New())
		b.acquire.set(func(s *acquireStep) {
			if s.req.Reentry {
				time.Sleep(time.Second)
				s.fail(&backend.Error{Kind: backend.Retry, Err: errors.New("LOADING")})
			}
		})
		c := New(b, quiet())
		defer c.Close()
		l := c.Locker("x")
		ctx := WithOwner(t.Context(), NewOwner())
		l.LockContext(ctx, FixedLease(1020*time.Millisecond))
		lost := l.Lost(ctx)
		err := l.LockContext(ctx)
		<-lost
		if !errors.Is(err, ErrLost) {
			t.Errorf("the hold was lost while the call re-entered it, and it says %v", err)
		}
	})
}

// HoldCount while a re-entry is under way.
func TestHoldCountLeavesOutWhatIsUnanswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		open := make(chan struct{})
		b := newScript(membackend.New())
		b.acquire.set(func(s *acquireStep) {
			if s.req.Reentry {
				s.waitFor(open)
				s.fail(errors.New("no answer"))
			}
		})
		c := New(b, quiet())
		l := c.Locker("x")
		ctx := WithOwner(t.Context(), NewOwner())
		l.LockContext(ctx)
		go l.TryLock(ctx)
		synctest.Wait()
		if n, _ := l.HoldCount(ctx); n != 1 {
			t.Errorf("count %d", n)
		}
		close(open)
		synctest.Wait()
		c.Close()
	})
}

// An unlock whose time is over and whose turn it is goes on.
func TestAFreeSlotIsTaken(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for range 100 {
		h := &hold{slot: make(chan struct{}, 1)}
		if !h.takeSlot(ctx) {
			t.Fatal("a slot that is free was not taken")
		}
	}
}

// A re-entry that has no answer may have prolonged a fixed lease. When the lease is over for its
// holder it ends in the store, too: the holder may want the lock anew without an unlock before.
func TestAFixedLeaseThatWasPerhapsProlongedIsOver(t *testing.T) {
	for name, of := range map[string]func(*Client) *Locker{
		"plain": func(c *Client) *Locker { return c.Locker("x") },
		"read":  func(c *Client) *Locker { return c.RWLocker("x").Reader() },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := newScript(membackend.New()) // it carries re-entries out, and never says so
				store.renew.lose()
				store.acquire.set(func(s *acquireStep) {
					if s.req.Reentry {
						s.lose()
					}
				})
				c, other := New(store, quiet()), New(store.Backend, quiet())
				defer c.Close()
				defer other.Close()
				ctx := WithOwner(t.Context(), NewOwner())
				l := of(c)
				must(t, l.LockContext(ctx, FixedLease(100*time.Millisecond)))
				if err := l.LockContext(ctx, Wait(50*time.Millisecond)); err == nil {
					t.Fatal("re-entered without an answer")
				}
				began := time.Now()
				next := other.Locker("x")
				if l.kind == protocol.Kind(backend.Read) {
					next = other.RWLocker("x").Writer()
				}
				must(t, next.LockContext(t.Context()))
				must(t, next.UnlockContext(t.Context()))
				if took := time.Since(began); took > time.Second {
					t.Errorf("the next got in after %v", took)
				}
			})
		})
	}
}
