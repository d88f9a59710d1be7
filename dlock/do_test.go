package dlock

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/dlock/internal/protocol"
	"github.com/seed951563bd/distsync/membackend"
)

const notGivenBack = "isn't given back"

// A re-entry that fn doesn't give back keeps the lock when Do has returned, since a goroutine of
// fn's may be inside still. Nobody else would notice, so it is logged.
func TestADoThatGivesBackLessThanItTook(t *testing.T) {
	type locked struct {
		main *Locker
		also *Locker // fn locks it, too, with its context, and doesn't unlock it; nil: nothing
		ctx  func(*testing.T) context.Context
		do   func(l *Locker, ctx context.Context, fn func(context.Context) error) error
		logs int
	}
	plain := (*testing.T).Context
	owned := func(t *testing.T) context.Context { return WithOwner(t.Context(), NewOwner()) }
	do := func(l *Locker, ctx context.Context, fn func(context.Context) error) error {
		return l.Do(ctx, fn)
	}
	for name, lock := range map[string]func(c *Client) locked{
		"nothing": func(c *Client) locked { return locked{c.Locker("x"), nil, plain, do, 0} },
		"a lock":  func(c *Client) locked { l := c.Locker("x"); return locked{l, l, plain, do, 1} },
		"a read": func(c *Client) locked {
			l := c.RWLocker("x").Reader()
			return locked{l, l, plain, do, 1}
		},
		"a read under a write": func(c *Client) locked {
			rw := c.RWLocker("x")
			return locked{rw.Writer(), rw.Reader(), plain, do, 1}
		},
		"one of several": func(c *Client) locked {
			l := c.Locker("x")
			return locked{l, l, plain, func(
				l *Locker, ctx context.Context, fn func(context.Context) error,
			) error {
				return All(l, c.Locker("y")).Do(ctx, fn)
			}, 1}
		},
		"of an owner, which may have it before and after": func(c *Client) locked {
			l := c.Locker("x")
			return locked{l, l, owned, do, 0}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store, log := membackend.New(), new(logs)
				c, other := New(store, WithLogger(log.logger())), New(store, quiet())
				defer c.Close()
				defer other.Close()
				x := lock(c)
				var inside context.Context
				must(t, x.do(x.main, x.ctx(t), func(ctx context.Context) error {
					inside = ctx
					if x.also == nil {
						return nil
					}
					return x.also.LockContext(ctx)
				}))
				time.Sleep(time.Hour)
				if n := log.count(notGivenBack, "x"); n != x.logs {
					t.Errorf("it was logged %d times, not %d", n, x.logs)
				}
				if x.also != nil {
					if held, err := x.also.IsLocked(t.Context()); !held || err != nil {
						t.Errorf("IsLocked = %v, %v", held, err)
					}
					must(t, x.also.UnlockContext(inside)) // so it can be mended
				}
				mustTry(t, map[bool]*Locker{
					true: other.RWLocker("x").Writer(), false: other.Locker("x"),
				}[x.main.kind.Family() == protocol.ReadWrites])
				empty(t, c)
			})
		})
	}
}

// The context of a call that fails is one of a Do of the same client, whose hold's time has just
// passed: its Err takes the client's mutex.
func TestAFailedAttemptInADoWhoseTimeIsOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newScript(membackend.New())
		c := New(b, quiet())
		defer c.Close()
		b.acquire.set(func(s *acquireStep) {
			if s.req.Name == "y" {
				c.mu.Lock()
				if h := heldOf(c, "x"); h != nil {
					h.claim.Gone(0) // and no timer has run
				}
				c.mu.Unlock()
				s.fail(&backend.Error{Kind: backend.Retry, Err: errors.New("no connection")})
			}
		})
		err := c.Locker("x").Do(t.Context(), func(ctx context.Context) error {
			return c.Locker("y").LockContext(ctx)
		})
		if !errors.Is(err, ErrLost) {
			t.Errorf("Do = %v, want ErrLost", err)
		}
	})
}

// However long ago its hold was lost, the context of a Do speaks for no other.
func TestALateUnlockInADoFreesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := membackend.New()
		c, other := New(store, quiet(), WithLease(time.Second)), New(store, quiet())
		defer c.Close()
		defer other.Close()
		l := c.Locker("x") // shared, as a package-level mutex is
		in := make(chan struct{})
		go l.Do(t.Context(), func(ctx context.Context) error {
			if err := l.LockContext(ctx); err != nil {
				t.Error(err)
			}
			close(in)
			other.Locker("x").ForceUnlock(t.Context())
			time.Sleep(2 * lossMemory * time.Second) // without looking at ctx
			if err := l.UnlockContext(ctx); !errors.Is(err, ErrLost) {
				t.Errorf("late unlock: %v", err)
			}
			return nil
		})
		<-in
		time.Sleep(lossMemory * time.Second)
		l.Lock() // another goroutine
		time.Sleep(2 * lossMemory * time.Second)
		if held, err := l.IsHeld(t.Context()); !held || err != nil {
			t.Errorf("nobody but the late one has unlocked; IsHeld = %v, %v", held, err)
		}
		l.Unlock()
	})
}

// The same at once: the Do has given its hold back, and another goroutine has locked.
func TestAnUnlockTooManyInADoFreesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New(membackend.New(), quiet())
		defer c.Close()
		l := c.Locker("x")
		l.Do(t.Context(), func(ctx context.Context) error {
			mustUnlock(t, ctx, l)
			w := wait(t.Context(), l)
			w.mustBeIn(t)
			if held, err := l.IsHeld(context.WithoutCancel(ctx)); held || err != nil {
				t.Errorf("IsHeld of what was given back = %v, %v", held, err)
			}
			if err := l.UnlockContext(ctx); !errors.Is(err, ErrNotHeld) {
				t.Errorf("the second unlock: %v, want ErrNotHeld", err)
			}
			return w.leave()
		})
	})
}

// Whether a Do succeeds doesn't depend on whether its context ends just before or just after fn has
// returned.
func TestADoWhoseContextEndsAsItUnlocks(t *testing.T) {
	for name, work := range map[string]time.Duration{
		"before": 1001 * time.Millisecond,
		"after":  999 * time.Millisecond,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := New(newScript(membackend.New()).far(5*time.Millisecond, 0), quiet())
				defer c.Close()
				ctx, cancel := context.WithTimeout(t.Context(), 1010*time.Millisecond)
				defer cancel()
				if err := c.Locker("x").Do(ctx, func(context.Context) error {
					time.Sleep(work)
					return nil
				}); err != nil {
					t.Errorf("fn returned nil, and the lock was held throughout: %v", err)
				}
			})
		})
	}
}

// An unlock with the context of the Do whose hold it is succeeds, and one that fails has one cause.
func TestUnlockWithTheContextOfItsDo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newScript(membackend.New()).far(time.Millisecond, 0)
		c := New(b, quiet())
		defer c.Close()
		l := c.Locker("x")
		err := l.Do(t.Context(), func(ctx context.Context) error {
			if err := l.UnlockContext(ctx); err != nil {
				t.Errorf("UnlockContext inside Do: %v", err)
			}
			return nil
		})
		if want := `dlock: unlock "x": not held`; fmt.Sprint(err) != want {
			t.Errorf("Do whose hold was given back inside: %q, want %q", err, want)
		}
		b.release.hang()
		l.Do(t.Context(), func(ctx context.Context) error {
			err := l.UnlockContext(ctx)
			if want :=
				`dlock: unlock "x": store unavailable: the store has not answered`; fmt.Sprint(
				err) != want {
				t.Errorf("%q, want %q", err, want)
			}
			return nil
		})
	})
}

func TestErrOfDoContextLooksAtTheClock(t *testing.T) {
	c := New(membackend.New(), quiet())
	defer c.Close()
	err := c.Locker("x").Do(t.Context(), func(ctx context.Context) error {
		child, cancel := context.WithCancel(ctx)
		defer cancel()
		if ctx.Err() != nil {
			t.Error("the context is over from the start")
		}
		// As after a pause of the process: the deadline has passed, and no timer has run yet.
		c.mu.Lock()
		heldOf(c, "x").claim.Gone(0)
		c.mu.Unlock()
		if ctx.Err() == nil || !errors.Is(context.Cause(ctx), ErrLost) {
			t.Errorf("after the deadline: Err() = %v, cause %v", ctx.Err(), context.Cause(ctx))
		}
		if !errors.Is(context.Cause(child), ErrLost) {
			t.Errorf("a child's cause: %v", context.Cause(child))
		}
		return nil
	})
	if !errors.Is(err, ErrLost) {
		t.Errorf("Do returned %v", err)
	}
}

// A goroutine that fn has left running must not believe in the lock any more when others can have
// it.
func TestTheContextOfDoEndsBeforeTheRelease(t *testing.T) {
	var inside context.Context
	onBench(t, func(m *script) {
		m.release.set(func(s *releaseStep) {
			if !over(inside.Done()) || inside.Err() == nil {
				t.Error("the lock is being released, and fn's context says that it is held")
			}
		})
	}, func(b *bench) {
		b.must(b.client.Locker("x").Do(b.Context(), func(ctx context.Context) error {
			inside = ctx
			return nil
		}))
	})
}

// A lock can be lost before fn has begun.
func TestDoTellsOfALossBeforeItBegan(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New(membackend.New(), quiet())
		defer c.Close()
		for range 5000 {
			go c.Locker("x").ForceUnlock(t.Context())
			l := c.Locker("x")
			l.Do(t.Context(), func(ctx context.Context) error {
				time.Sleep(time.Second)
				if over(l.Lost(ctx)) && !over(ctx.Done()) {
					t.Error("the lock was lost, and the context of Do goes on")
				}
				return nil
			})
			if t.Failed() {
				return
			}
		}
	})
}

// Do decides twice who is calling.
func TestDoDecidesOnceWhoCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New(membackend.New(), quiet())
		defer c.Close()
		l := c.Locker("x")
		l.Do(t.Context(), func(ctx context.Context) error {
			// a pause between the two looks
			lateOpt := func(*acquireOptions) { time.Sleep(2 * time.Second) }
			err := l.Do(context.WithoutCancel(ctx), func(ctx context.Context) error {
				return nil
			}, lateOpt)
			t.Log("inner Do:", err)
			return nil
		}, FixedLease(time.Second))
		ok, err := l.TryLock(t.Context())
		if !ok || err != nil {
			t.Errorf("nobody holds anything, TryLock = %v, %v", ok, err)
		} else {
			l.Unlock()
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		if err := l.LockContext(ctx); err != nil {
			t.Errorf("LockContext for an hour: %v", err)
		}
	})
}

// With the context of a Do whose hold is over nothing is locked, and nothing of another's unlocked.
func TestTheContextOfADoThatIsOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New(membackend.New(), quiet())
		defer c.Close()
		l := c.Locker("x")
		err := l.Do(t.Context(), func(ctx context.Context) error {
			l.ForceUnlock(context.Background()) // the hold is lost
			ctx = context.WithoutCancel(ctx)    // to clean up
			mustTry(t, l)                       // somebody else
			if err := l.LockContext(ctx); !errors.Is(err, ErrLost) {
				t.Errorf("LockContext = %v, want ErrLost", err)
			}
			if ok, err := l.TryLock(ctx); ok || !errors.Is(err, ErrLost) {
				t.Errorf("TryLock = %v, %v, want ErrLost", ok, err)
			}
			if held, err := l.IsHeld(ctx); held || err != nil {
				t.Errorf("IsHeld = %v, %v", held, err)
			}
			if err := l.UnlockContext(ctx); !errors.Is(err, ErrLost) {
				t.Errorf("UnlockContext = %v, want ErrLost", err)
			}
			if err := l.UnlockContext(ctx); !errors.Is(err, ErrNotHeld) {
				t.Errorf("the second UnlockContext = %v, want ErrNotHeld", err)
			}
			return nil
		})
		if !errors.Is(err, ErrNotHeld) { // it gave back more than it took
			t.Errorf("Do = %v", err)
		}
		if held, err := l.IsHeld(t.Context()); !held || err != nil {
			t.Errorf("nobody but the late one has unlocked; IsHeld = %v, %v", held, err)
		}
		l.Unlock()
	})
}
