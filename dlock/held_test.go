package dlock

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/membackend"
)

// Under nothing but contention, TryLock of a shared Locker says true or false.
func TestTryLockOfASharedLockerUnderContention(t *testing.T) {
	c := New(membackend.New(), quiet())
	defer c.Close()
	l := c.Locker("x")
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for range 5000 {
				ok, err := l.TryLock(t.Context())
				if err != nil {
					t.Error(err)
					return
				}
				if ok {
					l.Unlock()
				}
			}
		})
	}
	all.Wait()
	empty(t, c)
}

// Held and unavailable are told apart, whatever ended the wait.
func TestHeldOrUnavailable(t *testing.T) {
	down := errors.New("connection refused")
	for name, test := range map[string]struct {
		store error
		want  error
		not   error
	}{
		"held":        {nil, ErrHeld, ErrUnavailable},
		"unavailable": {&backend.Error{Kind: backend.Retry, Err: down}, ErrUnavailable, ErrHeld},
		"unknown":     {down, ErrUnavailable, ErrHeld},
		"refused":     {&backend.Error{Kind: backend.Refused, Err: down}, ErrUnavailable, ErrHeld},
	} {
		calls := map[string]func(ctx context.Context, l *Locker) error{
			"LockContext, deadline": func(ctx context.Context, l *Locker) error {
				return l.LockContext(ctx)
			},
			"LockContext, Wait": func(_ context.Context, l *Locker) error {
				return l.LockContext(context.Background(), Wait(time.Second))
			},
			"LockContext, Wait(0)": func(_ context.Context, l *Locker) error {
				return l.LockContext(context.Background(), Wait(0))
			},
			"Do, deadline": func(ctx context.Context, l *Locker) error {
				return l.Do(ctx, func(context.Context) error { return nil })
			},
			"TryLock, deadline": func(ctx context.Context, l *Locker) error {
				_, err := l.TryLock(ctx, Wait(time.Hour))
				return err
			},
		}
		for call, do := range calls {
			t.Run(name+", "+call, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					mem := membackend.New()
					b := newScript(mem)
					b.acquire.set(func(s *acquireStep) {
						if test.store != nil {
							s.fail(test.store)
						}
					})
					c, other := New(b, quiet()), New(mem, quiet())
					defer c.Close()
					defer other.Close()
					mustTry(t, other.Locker("x"))
					for _, l := range []*Locker{c.Locker("x"), c.Locker("x")} {
						// the first in the queue, and one behind it
						ctx, cancel := context.WithTimeout(t.Context(), time.Second)
						defer cancel()
						err := do(ctx, l)
						if !errors.Is(err, test.want) || errors.Is(err, test.not) {
							t.Errorf("%v; want one that is %q", err, test.want)
						}
						if test.store != nil && !errors.Is(err, down) {
							t.Errorf("%v; want what the store said in it", err)
						}
						w := wait(t.Context(), c.Locker("x"), Wait(time.Hour))
						defer func() { <-w.in }()
					}
					b.acquire.set(nil)
					c.Close()
				})
			})
		}
	}
}

// A call that waited, then re-enters what its own party got meanwhile, and has no answer to that
// when its wait ends, says that another has the lock.
func TestFalseIsNotSaidOfOnesOwnParty(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newScript(membackend.New())
		b.acquire.set(func(s *acquireStep) {
			if s.req.Reentry {
				s.hang()
			}
		})
		c := New(b, quiet())
		defer c.Close()
		ctx := WithOwner(t.Context(), NewOwner())
		holder := c.Locker("x")
		mustTry(t, holder, FixedLease(time.Hour))
		first := wait(ctx, c.Locker("x"))
		l := c.Locker("x")
		type answer struct {
			ok  bool
			err error
		}
		got := make(chan answer, 1)
		go func() {
			ok, err := l.TryLock(ctx, Wait(time.Second))
			got <- answer{ok, err}
		}()
		time.Sleep(500 * time.Millisecond)
		mustUnlock(t, t.Context(), holder)
		first.mustBeIn(t) // and the other re-enters
		if a := <-got; !a.ok && a.err == nil {
			t.Error("another holds it, says TryLock; it is held by the caller's own owner")
		}
		first.leave()
	})
}

// Whether or not there was time to ask the store.
func TestAWaitBehindTheClientsOwnHoldEndsWithFalse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New(membackend.New())
		defer c.Close()
		held := c.Locker("x")
		held.Lock()
		defer held.Unlock()
		for _, wait := range []time.Duration{time.Microsecond, time.Millisecond, time.Second} {
			if ok, err := c.Locker("x").TryLock(t.Context(), Wait(wait)); ok || err != nil {
				t.Errorf("TryLock with a wait of %v = %v, %v", wait, ok, err)
			}
		}
	})
}

// Behind a head whose attempt hangs.
func TestFalseMeansHeld_behindAHungHead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		open := make(chan struct{})
		b := newScript(membackend.New())
		b.acquire.set(func(s *acquireStep) { s.waitFor(open) })
		c := New(b, quiet())
		go c.Locker("x").Lock()
		synctest.Wait()
		ok, err := c.Locker("x").TryLock(t.Context(), Wait(time.Second))
		if err == nil {
			t.Errorf("the lock is free and the store has never answered: TryLock = %v, nil", ok)
		}
		close(open)
		synctest.Wait()
		c.Close()
	})
}

// A call that acquires shuts the gate; the lock is free.
func TestFalseMeansHeld_whileTheStoreFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newScript(membackend.New())
		b.acquire.fail(&backend.Error{Kind: backend.Retry, Err: errors.New("OOM")})
		c := New(b, quiet())
		l := c.Locker("x")
		ctx, cancel := context.WithCancel(t.Context())
		go l.LockContext(ctx)
		synctest.Wait()
		if ok, err := l.TryLock(t.Context()); err == nil {
			t.Errorf("nobody holds the lock: TryLock = %v, nil", ok)
		}
		cancel()
		synctest.Wait()
		c.Close()
	})
}

// Waiting for the slot of its own hold.
func TestFalseMeansHeld_ownHoldBusy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		open := make(chan struct{})
		b := newScript(membackend.New())
		b.acquire.set(func(s *acquireStep) {
			if s.req.Reentry {
				s.waitFor(open)
			}
		})
		c := New(b, quiet())
		l := c.Locker("x")
		ctx := WithOwner(t.Context(), NewOwner())
		l.LockContext(ctx)
		go l.LockContext(ctx)
		synctest.Wait()
		if ok, err := l.TryLock(ctx, Wait(time.Second)); err == nil {
			t.Errorf("the owner itself holds it: TryLock = %v, nil", ok)
		}
		// and a partial unlock "succeeds whatever the network did"
		short, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		t.Log("partial unlock: ", l.UnlockContext(short))
		close(open)
		synctest.Wait()
		c.Close()
	})
}

// Wait so short that it is over before the first attempt
func TestFalseMeansHeld_waitTooShort(t *testing.T) {
	c := New(membackend.New(), quiet())
	defer c.Close()
	if ok, err := c.Locker("x").TryLock(t.Context(), Wait(1)); !ok && err == nil {
		t.Errorf("the lock is free: TryLock(Wait(1ns)) = %v, %v", ok, err)
	}
}

// hanging is a store that hangs when it is told to, and a holder of "x" there.
func hanging(t *testing.T) (c *Client, holder *Locker, hang, goOn func()) {
	mem := membackend.New()
	open := make(chan struct{})
	b := newScript(mem)
	c, other := New(b, quiet()), New(mem, quiet())
	t.Cleanup(func() { c.Close(); other.Close() })
	holder = other.Locker("x")
	holder.Lock()
	hang = func() {
		b.acquire.set(func(s *acquireStep) { s.waitFor(open) })
	}
	return c, holder, hang, func() { close(open) }
}

// The head of the queue heard that the lock is held before the call began, and has not heard
// anything since the lock is free.
func TestFalseMeansHeld_oldNews(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, holder, hang, goOn := hanging(t)
		head := wait(t.Context(), c.Locker("x"))
		hang()
		holder.Unlock()
		if ok, err := c.Locker("x").TryLock(t.Context(), Wait(time.Second)); ok || err == nil {
			t.Errorf("behind the head of the queue: the lock is free, and TryLock says %v, %v", ok,
				err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if ok, err := head.l.TryLock(ctx); ok || err == nil {
			t.Errorf("on the same Locker: the lock is free, and TryLock says %v, %v", ok, err)
		}
		if ok, err := head.l.TryLock(t.Context(), Wait(time.Second)); ok || err == nil {
			t.Errorf("on the same Locker, with a wait: the lock is free, and TryLock says %v, %v",
				ok, err)
		}
		goOn()
		head.mustBeIn(t)
		head.leave()
	})
}

// The head asks again for the sake of those behind it.
func TestFalseIsSaidBehindTheHead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, holder, _, _ := hanging(t)
		head := wait(t.Context(), c.Locker("x"))
		for range 3 {
			if ok, err := c.Locker("x").TryLock(t.Context(), Wait(100*time.Millisecond)); ok ||
				err != nil {
				t.Errorf("behind the head of the queue: the lock is held, and TryLock says %v, %v",
					ok, err)
			}
			if ok, err := head.l.TryLock(t.Context(), Wait(100*time.Millisecond)); ok ||
				err != nil {
				t.Errorf("on the same Locker: the lock is held, and TryLock says %v, %v", ok, err)
			}
		}
		holder.Unlock()
		head.mustBeIn(t)
		head.leave()
	})
}

// An answer that was heard at a Locker's gate counts when the wait ends in the queue.
func TestFalseIsSaidByWhoComesThroughTheGateLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, holder, _, _ := hanging(t)
		head := wait(t.Context(), c.Locker("x"))
		shared := c.Locker("x")
		first := make(chan struct{})
		go func() {
			defer close(first)
			if ok, err := shared.TryLock(t.Context(), Wait(2*time.Second)); ok || err != nil {
				t.Errorf("TryLock of the first at the gate = %v, %v", ok, err)
			}
		}()
		synctest.Wait()
		if ok, err := shared.TryLock(t.Context(), Wait(2100*time.Millisecond)); ok || err != nil {
			t.Errorf("TryLock of the one who comes through the gate late = %v, %v", ok, err)
		}
		<-first
		holder.Unlock()
		head.mustBeIn(t)
		head.leave()
	})
}
