package dlock

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/membackend"
)

// A call that asks the store is deposed by one that came earlier, whose Locker is unlocked by now.
// Its reply is lost. It must repeat or take back: otherwise the lock is nobody's for all of its
// lease, and all wait.
func TestALeadWhoseReplyIsLostAsItIsDeposed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		b := newScript(membackend.New())
		c := New(b, quiet(), WithHandover(0))
		defer c.Close()

		l := c.Locker("x")
		mustTry(t, l)
		first := wait(ctx, l)                                       // parked
		second := wait(ctx, c.Locker("x"), FixedLease(time.Minute)) // asks
		b.release.set(func(s *releaseStep) {
			if s.do(); s.n == 1 {
				time.Sleep(10 * time.Millisecond) // the answer is slow
			}
		})
		b.acquire.set(func(s *acquireStep) {
			if s.do(); s.n == 1 {
				time.Sleep(10 * time.Millisecond)
				s.fail(errors.New("the reply is lost"))
			}
		})
		began := time.Now()
		mustUnlock(t, ctx, l)
		select {
		case <-first.in:
			first.leave()
		case <-second.in:
			second.leave()
		}
		if took := time.Since(began); took > 5*time.Second {
			t.Errorf("the lock was nobody's, and two waited for it, for %v", took)
		}
		if first.isIn(t) {
			first.leave()
		}
		if second.isIn(t) {
			second.leave()
		}
	})
}

// Pauses between attempts grow up to a third of the lease that is asked for: with a long one a
// waiter sleeps for as long as the outage took, though the store is back and the lock is free.
func TestAWaiterWithALongLeaseAfterAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newScript(membackend.New())
		up := time.Now().Add(time.Hour)
		b.acquire.set(func(s *acquireStep) {
			if time.Now().Before(up) {
				s.fail(&backend.Error{Kind: backend.Retry, Err: errors.New("connection refused")})
			}
		})
		c := New(b, quiet())
		defer c.Close()
		l := c.Locker("x")
		if err := l.LockContext(t.Context(), FixedLease(24*time.Hour)); err != nil {
			t.Fatal(err)
		}
		if late := time.Since(up); late > time.Minute {
			t.Errorf("the store was back, and the lock free, for %v before it was asked", late)
		}
		mustUnlock(t, t.Context(), l)
	})
}

func TestBackoffStaysInBounds(t *testing.T) {
	var b backoff
	for i := range 100 {
		d := b.next(50*time.Millisecond, time.Second)
		if d < 25*time.Millisecond || d > time.Second {
			t.Fatalf("pause %d is %v", i, d)
		}
	}
	if b.delay != time.Second {
		t.Errorf("after 100 failures the delay is %v, not the limit", b.delay)
	}
	b.reset()
	if d := b.next(50*time.Millisecond, time.Second); d > 50*time.Millisecond {
		t.Errorf("the first pause after a success is %v", d)
	}
	if d := b.next(50*time.Millisecond, time.Millisecond); d < 25*time.Millisecond {
		t.Errorf("a limit below the first pause leads to a pause of %v", d)
	}
}

// A subscription may fail just as the last waiter leaves.
func TestASubscriptionThatFailsWhenNobodyWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New(membackend.New(), quiet())
		defer c.Close()
		for _, l := range []*Locker{c.Locker("x"), c.FairLocker("x")} {
			mustTry(t, l)
			ctx, cancel := context.WithCancel(t.Context())
			other := newLocker(c, l.kind, "x")
			w := wait(ctx, other)
			c.mu.Lock()
			q := *c.state.object(l.kind, "x").waitsFor(l.kind)
			c.mu.Unlock()
			cancel()
			<-w.in
			q.subscribed = subscribing
			q.subscriptionFailed(t.Context(), c, errMood)
			mustUnlock(t, t.Context(), l)
		}
	})
}

// Shut asks the store without a context.
func TestWaitAtTheGateEndsWhileTheStoreHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		open := make(chan struct{})
		b := newScript(membackend.New())
		b.acquire.set(func(s *acquireStep) { s.waitFor(open) })
		b.look.set(func(s *lookStep) { s.waitFor(open) })
		c := New(b, quiet())
		l := c.Locker("x")
		locked := make(chan struct{})
		go func() { l.Lock(); close(locked) }()
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		done := make(chan struct{})
		go func() { l.TryLock(ctx, Wait(100*time.Millisecond)); close(done) }()
		time.Sleep(time.Hour)
		select {
		case <-done:
		default:
			t.Error("TryLock(ctx 1s, Wait 100ms) hasn't returned after an hour")
		}
		close(open)
		<-locked // its answer came too late: it asks again
		c.Close()
	})
}

// LockContext with Wait on a Locker that is lost and not unlocked.
func TestWaitOnALockerThatWasLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New(membackend.New(), quiet())
		defer c.Close()
		l := c.Locker("x")
		mustTry(t, l, FixedLease(time.Second))
		time.Sleep(2 * time.Second)
		err := l.LockContext(t.Context(), Wait(time.Second))
		if !errors.Is(err, ErrNotAcquired) {
			t.Errorf("the wait ran out: %v", err)
		}
	})
}

// The gate hides the store's error
func TestWaitAtTheGateTellsWhatFailed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		oom := errors.New("OOM")
		b := newScript(membackend.New())
		b.acquire.fail(&backend.Error{Kind: backend.Retry, Err: oom})
		c := New(b, quiet())
		l := c.Locker("x")
		bg, stop := context.WithCancel(t.Context())
		go l.LockContext(bg)
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := l.LockContext(ctx); !errors.Is(err, oom) {
			t.Errorf("the store was failing meanwhile: %v", err)
		}
		stop()
		synctest.Wait()
		c.Close()
	})
}

// Calls that wait for their Locker to be unlocked ask the store nothing, however long it is locked.
func TestCallsOfALockedLockerDoNotAsk(t *testing.T) {
	onScript(t, func(t *testing.T, b *script, c, other *Client) {
		l := c.Locker("x")
		mustTry(t, l)
		first, second := wait(t.Context(), l), wait(t.Context(), l)
		mustUnlock(t, t.Context(), l) // hands it to the first
		first.mustBeIn(t)
		time.Sleep(2 * c.handover)
		b.wantSteps(t, 1, 0)
		must(t, first.leave())
		time.Sleep(2 * shortestWait) // others go first, if there are any
		second.mustBeIn(t)
		b.wantSteps(t, 2, 1)
		must(t, second.leave())
		wantFree(t, other, "x")
		empty(t, c)
	})
}
