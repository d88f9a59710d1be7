package dlock

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/membackend"
)

// The store tells nothing, and a waiter would ask it later: it is woken by the take-back that
// has freed the lock.
func TestATakeBackWakesAWaiter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newScript(membackend.New()).but(onlySteps)
		var freed time.Time
		b.acquire.set(func(s *acquireStep) {
			if s.n == 1 {
				s.lose()
			}
		})
		b.release.set(func(s *releaseStep) {
			time.Sleep(500 * time.Millisecond)
			s.do()
			if freed.IsZero() && s.res.Outcome == backend.Freed {
				freed = time.Now()
			}
		})
		c := New(b, quiet())
		defer c.Close()
		if ok, err := c.Locker("x").TryLock(t.Context(), FixedLease(time.Hour)); ok || err == nil {
			t.Fatalf("an attempt without an answer: %v, %v", ok, err)
		}
		time.Sleep(400 * time.Millisecond)
		l := c.Locker("x")
		must(t, l.LockContext(t.Context()))
		if late := time.Since(freed); late > 0 {
			t.Errorf("in %v after the lock was free", late)
		}
		must(t, l.UnlockContext(t.Context()))
		time.Sleep(2 * time.Hour) // until nothing is taken back any more
	})
}

// During an outage take-backs don't add up: not in the requests that they send, and not for ever.
func TestTakeBacksAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newScript(membackend.New())
		c := New(store, quiet())
		defer c.Close()
		store.acquire.fail(errors.New("timeout"))
		var running, most atomic.Int64
		store.release.set(func(s *releaseStep) {
			most.Store(max(most.Load(), running.Add(1)))
			time.Sleep(time.Millisecond)
			running.Add(-1)
			s.fail(errors.New("timeout"))
		})
		const calls = 1000
		for i := range calls {
			c.Locker(fmt.Sprint(i)).TryLock(t.Context())
			time.Sleep(time.Millisecond)
		}
		before := store.release.count()
		time.Sleep(time.Minute)
		if n := store.release.count() - before; n > 60*4*mostTakeBacks {
			t.Errorf("%d requests in a minute to a store that doesn't answer", n)
		}
		if n := most.Load(); n > mostTakeBacks {
			t.Errorf("%d requests at a time", n)
		}
		time.Sleep(time.Hour)
		empty(t, c)
	})
}

// Once the store answers again, everything is taken back soon.
func TestTakeBacksAfterAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := membackend.New()
		b := newScript(mem)
		var up atomic.Bool
		b.acquire.set(func(s *acquireStep) {
			s.do()
			s.fail(errors.New("no answer")) // but carried out
		})
		b.release.set(func(s *releaseStep) {
			if !up.Load() {
				s.fail(errors.New("no answer"))
			}
		})
		c, other := New(b, quiet(), WithLease(time.Hour)), New(mem, quiet())
		defer c.Close()
		defer other.Close()
		const locks = 500
		for i := range locks {
			c.Locker(fmt.Sprint(i)).TryLock(t.Context())
		}
		time.Sleep(time.Minute)
		up.Store(true)
		time.Sleep(time.Minute)
		for i := range locks {
			mustTry(t, other.Locker(fmt.Sprint(i)))
		}
	})
}

// One node of a cluster hangs: what is to be taken back from it keeps what is to be taken back from
// the others waiting, for longer than a lease.
func TestAHungNodeDoesNotDelayTakeBacksOfOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := membackend.New()
		b := newScript(mem)
		b.acquire.set(func(s *acquireStep) {
			switch {
			case strings.HasPrefix(s.req.Name, "hung"):
				s.hang()
				return
			case s.req.Name == "well":
				s.do()
				s.fail(errors.New("the reply is lost"))
			}
		})
		b.release.set(func(s *releaseStep) {
			if strings.HasPrefix(s.req.Name, "hung") {
				s.hang()
			}
		})
		c := New(b, quiet())
		defer c.Close()
		for i := range 200 {
			go func() {
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				c.Locker(fmt.Sprint("hung", i)).TryLock(ctx)
			}()
		}
		time.Sleep(2 * time.Second)
		l := c.Locker("well")
		// its reply is lost: nobody has it, and it is to be taken back
		l.TryLock(t.Context(), FixedLease(time.Hour))
		began := time.Now()
		for range 600 {
			if locked, err := l.IsLocked(t.Context()); err == nil && !locked {
				break
			}
			time.Sleep(time.Second)
		}
		if took := time.Since(began); took > 10*time.Second {
			t.Errorf("a lock on a node that is well, with nobody, was taken back after %v", took)
		}
	})
}

// The same for what is taken back: it is nobody's for as long again as the outage took.
func TestATakeBackOfALongLeaseAfterAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := membackend.New()
		b := newScript(mem)
		up := time.Now().Add(time.Hour)
		b.release.set(func(s *releaseStep) {
			if time.Now().Before(up) {
				s.fail(&backend.Error{Kind: backend.Retry, Err: errors.New("connection refused")})
			}
		})
		c, other := New(b, quiet()), New(mem, quiet())
		defer c.Close()
		defer other.Close()
		l := c.Locker("x")
		mustTry(t, l, FixedLease(24*time.Hour))
		if err := l.UnlockContext(t.Context()); err == nil {
			t.Fatal("unlocked during an outage")
		}
		o := other.Locker("x")
		if err := o.LockContext(t.Context()); err != nil {
			t.Fatal(err)
		}
		if late := time.Since(up); late > time.Minute {
			t.Errorf("the store was back for %v before a lock that had been unlocked was released",
				late)
		}
		mustUnlock(t, t.Context(), o)
	})
}

// lateReentry cuts re-entries off before they reach the store, and carries the first of them out
// when it is called.
func lateReentry(m *script) (deliver func() error) {
	var first func() error
	m.acquire.set(func(s *acquireStep) {
		if !s.req.Reentry {
			return
		}
		if first == nil {
			first = func() error { s.do(); return s.err }
		}
		s.fail(errCut)
	})
	return func() error { return first() }
}

// A re-entry that is carried out after the last release begins a hold that nobody has.
func TestALateReentryIsTakenBackForALeaseAfterTheUnlock(t *testing.T) {
	var deliver func() error
	onBench(t, func(m *script) { deliver = lateReentry(m) }, func(b *bench) {
		const lease = 10 * time.Second
		l, ctx := b.client.Locker("x"), b.owner()
		b.must(l.LockContext(ctx, FixedLease(lease)))
		if _, err := l.TryLock(ctx, FixedLease(lease)); err == nil {
			b.Fatal("a re-entry without an answer: no error")
		}
		time.Sleep(lease * 9 / 10)
		b.must(l.UnlockContext(ctx))
		time.Sleep(lease / 2)
		b.must(deliver())
		time.Sleep(lease * 6 / 10)
		b.wantFree("more than a lease after the unlock")
	})
}

// The same where the hold was renewed, and is lost.
func TestALateReentryIsTakenBackForALeaseAfterTheLastRenewal(t *testing.T) {
	var deliver func() error
	onBench(t, func(m *script) { deliver = lateReentry(m) }, func(b *bench) {
		const lease = DefaultLease
		l, ctx := b.client.Locker("x"), b.owner()
		b.must(l.LockContext(ctx))
		if _, err := l.TryLock(ctx); err == nil {
			b.Fatal("a re-entry without an answer: no error")
		}
		time.Sleep(5 * lease)
		_, err := b.direct.ForceRelease(ctx, backend.ForceReleaseRequest{Name: "x"})
		b.must(err)
		<-l.Lost(ctx)
		if err := l.UnlockContext(ctx); !errors.Is(err, ErrLost) {
			b.Errorf("the unlock of what is lost: %v", err)
		}
		time.Sleep(lease / 6)
		b.must(deliver())
		time.Sleep(lease * 9 / 10)
		b.wantFree("more than a lease after the loss")
	})
}

// That nothing is held is news of the moment at which it was asked, and not of that at which it is
// heard.
func TestATakeBackAsksAgainAfterWhatMayYetCome(t *testing.T) {
	const lease = 10 * time.Second
	for range 100 { // until it asks at such a time
		var begin time.Time
		var late func() error
		var slow atomic.Bool
		onBench(t, func(m *script) {
			m.acquire.set(func(s *acquireStep) {
				late = func() error { s.do(); return s.err }
				s.fail(errCut)
			})
			m.release.set(func(s *releaseStep) {
				s.do()
				if at := time.Since(begin); at >= lease*8/10 && at < lease {
					slow.Store(true)
					time.Sleep(lease + lease/50 - at)
				}
			})
		}, func(b *bench) {
			begin = time.Now()
			if ok, err := b.client.Locker("x").TryLock(b.Context(), FixedLease(lease)); ok ||
				err == nil {
				b.Fatalf("TryLock without an answer: %v, %v", ok, err)
			}
			time.Sleep(lease + lease/100)
			if !slow.Load() {
				return
			}
			b.must(late())
			time.Sleep(lease / 2)
			b.wantFree("after a late acquisition, while a release had no answer")
		})
		if slow.Load() {
			return
		}
	}
	t.Error("no release was sent in the last fifth of a lease")
}

// However long the pauses between the requests of a take-back have become, one is sent at the end
// of the lease.
func TestATakeBackAsksAtTheEndOfTheLease(t *testing.T) {
	const lease = 10 * time.Second
	var late func() error
	onBench(t, func(m *script) {
		m.acquire.set(func(s *acquireStep) {
			late = func() error { s.do(); return s.err }
			s.fail(errCut)
		})
	}, func(b *bench) {
		if ok, err := b.client.Locker("x").TryLock(b.Context(), FixedLease(lease)); ok ||
			err == nil {
			b.Fatalf("TryLock without an answer: %v, %v", ok, err)
		}
		time.Sleep(lease - time.Nanosecond)
		b.must(late())
		time.Sleep(2 * time.Nanosecond)
		b.wantFree("at the end of the lease")
	})
}

func TestANumberIsTakenBackByOneAtATime(t *testing.T) {
	var under, most atomic.Int32
	onBench(t, func(m *script) {
		m.limits.LeaseStep = time.Hour // so that the end of a lease is released, too
		m.release.set(func(s *releaseStep) {
			defer under.Add(-1)
			most.Store(max(most.Load(), under.Add(1)))
			time.Sleep(time.Second / 2)
		})
	}, func(b *bench) {
		l := b.client.Locker("x")
		b.must(l.LockContext(b.Context(), FixedLease(time.Second)))
		time.Sleep(time.Second + time.Second/5)
		if err := l.UnlockContext(b.Context()); !errors.Is(err, ErrLost) {
			b.Errorf("the unlock of what is lost: %v", err)
		}
		time.Sleep(time.Minute)
		b.wantFree("after the unlock")
		if n := most.Load(); n != 1 {
			b.Errorf("%d releases of one number at a time", n)
		}
	}, WithLease(time.Hour))
}

// A take-back that ended isn't begun again.
func TestTakeBackBeginsAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := membackend.New()
		b := newScript(mem)
		b.acquire.set(func(s *acquireStep) {
			if s.req.Reentry {
				time.Sleep(time.Second) // on its way past the client's deadline
			}
		})
		c := New(b.with(backend.Limits{MinLease: 60 * time.Second, LeaseStep: time.Second}),
			quiet(), WithLease(60*time.Second))
		defer c.Close()
		l := c.Locker("x")
		ctx := WithOwner(t.Context(), NewOwner())
		if err := l.LockContext(ctx, FixedLease(500*time.Millisecond)); err != nil {
			t.Fatal(err)
		}
		err := l.LockContext(ctx, FixedLease(500*time.Millisecond))
		t.Log("re-entry:", err)
		t.Log("unlock:", l.UnlockContext(ctx))
		time.Sleep(5 * time.Second)
		if ok, err := New(mem).Locker("x").TryLock(t.Context()); !ok {
			t.Errorf("5 s after the client gave up everything the store still holds it (%v)", err)
		}
	})
}
