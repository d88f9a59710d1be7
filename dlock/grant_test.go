package dlock

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed951563bd/distsync/membackend"
)

// An attempt that is cut short because its owner got in elsewhere isn't repeated: its call has
// returned long before that, and may be another's by then.
func TestAnAttemptThatIsCutShortInLineIsNotRepeated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newScript(membackend.New())
		cs := fairClients(t, store, 2)
		holder := cs[0].FairLocker("x")
		mustTry(t, holder)
		ctx := WithOwner(t.Context(), NewOwner())
		first := wait(ctx, cs[1].FairLocker("x"))
		behind := wait(t.Context(), cs[1].FairLocker("x"))
		hang := make(chan struct{})
		store.acquire.set(func(s *acquireStep) {
			<-hang
		})
		second := wait(ctx, cs[1].FairLocker("x"))
		store.acquire.set(nil)
		mustUnlock(t, t.Context(), holder)
		first.mustBeIn(t)
		second.mustBeIn(t)
		mustUnlock(t, ctx, first.l)
		mustUnlock(t, ctx, second.l)
		behind.mustBeIn(t)
		mustUnlock(t, t.Context(), behind.l)
		close(hang)
		time.Sleep(2 * DefaultLease) // the step that hung is taken back by then
		empty(t, cs[1])
	})
}

// A lease begins when its holder hears of it: one that is shorter than that takes is no reason to
// be given the lock for ever.
func TestALeaseShorterThanTheWayOfAGrant(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newScript(membackend.New())
		store.places.delay(20*time.Millisecond, 0)
		cs := fairClients(t, store, 2)
		holder := cs[0].FairLocker("x")
		mustTry(t, holder)
		short := wait(t.Context(), cs[1].FairLocker("x"), FixedLease(10*time.Millisecond))
		next := wait(t.Context(), cs[0].FairLocker("x"))
		store.grants.set(linger)
		mustUnlock(t, t.Context(), holder)
		time.Sleep(20 * time.Millisecond)
		store.grants.deliver()
		store.grants.set(arrive)
		time.Sleep(200 * time.Millisecond)
		if !short.isIn(t) || !next.isIn(t) {
			t.Fatalf("nobody had the lock for long, and who waits isn't in after %d looks",
				store.places.count())
		}
		mustUnlock(t, t.Context(), next.l)
		if err := short.l.UnlockContext(t.Context()); !errors.Is(err, ErrLost) {
			t.Error(err)
		}
	})
}

// A call of a Locker that is lost and not unlocked is given the lock as it asks for it, and
// answered after that.
func TestAGrantToABarredCallThatIsJustAsking(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newScript(membackend.New())
		cs := fairClients(t, store, 2)
		l := cs[0].FairLocker("x")
		mustTry(t, l, FixedLease(time.Second))
		hang := make(chan struct{})
		store.acquire.set(func(s *acquireStep) {
			switch s.n {
			case 1:
				s.lose()
			case 3:
				<-hang
			}
		})
		w := wait(t.Context(), l)
		ctx, cancel := context.WithCancel(t.Context())
		other := wait(ctx, cs[0].FairLocker("x")) // has its client hear of grants
		cancel()
		<-other.in
		<-l.Lost(t.Context())
		time.Sleep(500 * time.Millisecond) // it was given to w, who is asking a second time
		close(hang)
		synctest.Wait()
		if err := l.UnlockContext(t.Context()); !errors.Is(err, ErrLost) {
			t.Error(err)
		}
		if err := <-w.in; err != nil {
			t.Error(err)
		}
		mustUnlock(t, t.Context(), l)
		mustTry(t, cs[1].FairLocker("x"))
	})
}

// A lock is granted, another client forces it, and another goroutine of this client gets it. The
// call that hears of the grant late doesn't have it.
func TestAGrantFromBeforeAnAcquisition(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newScript(membackend.New())
		cs := fairClients(t, store, 2)
		holder := cs[0].FairLocker("x")
		mustTry(t, holder)
		struck := wait(t.Context(), cs[1].FairLocker("x"))
		store.grants.set(linger)
		store.places.fail(errNoLook) // nor does it look
		mustUnlock(t, t.Context(), holder)
		if ok, err := cs[0].FairLocker("x").ForceUnlock(t.Context()); !ok || err != nil {
			t.Fatal(ok, err)
		}
		time.Sleep(time.Millisecond)
		hold, err := cs[1].FairLocker("x").Acquire(t.Context(), Wait(0))
		must(t, err)
		store.grants.deliver()
		store.grants.set(arrive)
		store.places.set(nil)
		time.Sleep(5 * time.Second)
		if struck.isIn(t) || hold.Context().Err() != nil {
			t.Errorf("it was taken from its holder: %v", context.Cause(hold.Context()))
		}
		must(t, hold.Release(t.Context()))
		struck.mustBeIn(t)
		mustUnlock(t, struck.ctx, struck.l)
	})
}

// A grant from before this client forced the lock, which is heard of later, gives it to no call.
func TestAGrantFromBeforeAForce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newScript(membackend.New())
		cs := fairClients(t, store, 3)
		holder := cs[0].FairLocker("x")
		mustTry(t, holder)
		struck := wait(t.Context(), cs[1].FairLocker("x"))
		next := wait(t.Context(), cs[2].FairLocker("x"))
		store.grants.set(linger)
		mustUnlock(t, t.Context(), holder) // to struck, who hasn't heard of it
		time.Sleep(10 * time.Millisecond)
		if ok, err := cs[1].FairLocker("x").ForceUnlock(t.Context()); !ok || err != nil {
			t.Fatal(ok, err)
		}
		store.grants.deliver()
		store.grants.set(arrive)
		next.mustBeIn(t)
		if struck.isIn(t) {
			t.Fatal("two are in")
		}
		mustUnlock(t, t.Context(), next.l)
		struck.mustBeIn(t)
		mustUnlock(t, t.Context(), struck.l)
	})
}

// A call is given the lock before its client listens, and its answer comes only after the look that
// is made then. Another look tells it.
func TestAGrantBeforeTheSubscriptionAndTheAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newScript(membackend.New())
		c, other := New(store, quiet()), New(store.Backend, quiet())
		defer c.Close()
		defer other.Close()
		first, err := other.FairLocker("x").Acquire(t.Context())
		must(t, err)
		placed := make(chan struct{})
		late := make(chan struct{})
		store.acquire.set(func(s *acquireStep) {
			store.acquire.set(nil)
			s.do()
			close(placed)
			<-late
		})
		a := wait(t.Context(), c.FairLocker("x"))
		<-placed
		must(t, first.Release(t.Context())) // it is a's now
		b := wait(t.Context(), c.FairLocker("x"))
		synctest.Wait() // b stands in line, its client listens, and has looked
		begin := time.Now()
		close(late)
		a.mustBeIn(t)
		if took := time.Since(begin); took > 100*time.Millisecond {
			t.Errorf("a was told after %v that it has the lock", took)
		}
		a.leave()
		b.mustBeIn(t)
		b.leave()
		empty(t, c)
	})
}
