package dlock

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/membackend"
)

// around is a store with lines, and a hook around acquisitions.
type around struct {
	lined
	acquire func(req backend.AcquireRequest, do func() (backend.AcquireResult, error)) (backend.AcquireResult, error)
	slow    time.Duration // a look takes so long to get there
}

func newAround() *around { return &around{lined: lined{Backend: membackend.New()}} }

func (b *around) Open() backend.Session {
	return &aroundSession{linedSession{b.Backend.Open(), &b.lined}, b}
}

// hook sets what is done instead of an acquisition.
func (b *around) hook(f func(req backend.AcquireRequest, do func() (backend.AcquireResult, error)) (backend.AcquireResult, error)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.acquire = f
}

type aroundSession struct {
	linedSession
	around *around
}

func (s *aroundSession) Acquire(ctx context.Context, req backend.AcquireRequest) (backend.AcquireResult, error) {
	s.b.mu.Lock()
	f := s.around.acquire
	s.b.mu.Unlock()
	do := func() (backend.AcquireResult, error) { return s.linedSession.Acquire(ctx, req) }
	if f == nil {
		return do()
	}
	return f(req, do)
}

func (s *aroundSession) KeepPlaces(ctx context.Context, req backend.PlacesRequest) (backend.PlacesResult, error) {
	time.Sleep(s.around.slow)
	return s.linedSession.KeepPlaces(ctx, req)
}

// An attempt that is cut short because its owner got in elsewhere isn't repeated: its call has returned long before that, and may be
// another's by then.
func TestAnAttemptThatIsCutShortInLineIsNotRepeated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newAround()
		cs := fairClients(t, store, 2)
		holder := cs[0].FairLocker("x")
		mustTry(t, holder)
		ctx := WithOwner(t.Context(), NewOwner())
		first := wait(ctx, cs[1].FairLocker("x"))
		behind := wait(t.Context(), cs[1].FairLocker("x"))
		hang := make(chan struct{})
		store.hook(func(_ backend.AcquireRequest, do func() (backend.AcquireResult, error)) (backend.AcquireResult, error) {
			<-hang
			return do()
		})
		second := wait(ctx, cs[1].FairLocker("x"))
		store.hook(nil)
		mustUnlock(t, t.Context(), holder)
		first.mustBeIn(t)
		second.mustBeIn(t)
		mustUnlock(t, ctx, first.l)
		mustUnlock(t, ctx, second.l)
		behind.mustBeIn(t)
		mustUnlock(t, t.Context(), behind.l)
		close(hang)
		time.Sleep(2 * DefaultLease) // what hung is taken back until then
		empty(t, cs[1])
	})
}

// A lease begins when its holder hears of it: one that is shorter than that takes is no reason to be given the lock for ever.
func TestALeaseShorterThanTheWayOfAGrant(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newAround()
		store.slow = 20 * time.Millisecond
		cs := fairClients(t, store, 2)
		holder := cs[0].FairLocker("x")
		mustTry(t, holder)
		short := wait(t.Context(), cs[1].FairLocker("x"), FixedLease(10*time.Millisecond))
		next := wait(t.Context(), cs[0].FairLocker("x"))
		store.set(false, true)
		mustUnlock(t, t.Context(), holder)
		time.Sleep(20 * time.Millisecond)
		store.deliver()
		store.set(false, false)
		time.Sleep(200 * time.Millisecond)
		if !short.isIn(t) || !next.isIn(t) {
			t.Fatalf("nobody had the lock for long, and who waits isn't in after %d looks", store.looks.Load())
		}
		mustUnlock(t, t.Context(), next.l)
		if err := short.l.UnlockContext(t.Context()); !errors.Is(err, ErrLost) {
			t.Error(err)
		}
	})
}

// A call of a Locker that is lost and not unlocked is given the lock as it asks for it, and answered after that.
func TestAGrantToABarredCallThatIsJustAsking(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newAround()
		cs := fairClients(t, store, 2)
		l := cs[0].FairLocker("x")
		mustTry(t, l, FixedLease(time.Second))
		var n atomic.Int32
		hang := make(chan struct{})
		store.hook(func(req backend.AcquireRequest, do func() (backend.AcquireResult, error)) (backend.AcquireResult, error) {
			switch n.Add(1) {
			case 1:
				do()
				return backend.AcquireResult{}, &backend.Error{Kind: backend.Unknown, Err: errMood}
			case 3:
				<-hang
			}
			return do()
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

// What somebody else has forced since it was granted, and another goroutine of this client has got then, isn't his who hears of that late.
func TestAGrantFromBeforeAnAcquisition(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newAround()
		cs := fairClients(t, store, 2)
		holder := cs[0].FairLocker("x")
		mustTry(t, holder)
		struck := wait(t.Context(), cs[1].FairLocker("x"))
		store.set(false, true)
		store.refuses.Store(true) // nor does it look
		mustUnlock(t, t.Context(), holder)
		if ok, err := cs[0].FairLocker("x").ForceUnlock(t.Context()); !ok || err != nil {
			t.Fatal(ok, err)
		}
		time.Sleep(time.Millisecond)
		hold, err := cs[1].FairLocker("x").Acquire(t.Context(), Wait(0))
		must(t, err)
		store.deliver()
		store.set(false, false)
		store.refuses.Store(false)
		time.Sleep(5 * time.Second)
		if struck.isIn(t) || hold.Context().Err() != nil {
			t.Errorf("it was taken from its holder: %v", context.Cause(hold.Context()))
		}
		must(t, hold.Release(t.Context()))
		struck.mustBeIn(t)
		mustUnlock(t, struck.ctx, struck.l)
	})
}

// What was granted before this client forced the lock, and is heard of later, isn't anybody's.
func TestAGrantFromBeforeAForce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newAround()
		cs := fairClients(t, store, 3)
		holder := cs[0].FairLocker("x")
		mustTry(t, holder)
		struck := wait(t.Context(), cs[1].FairLocker("x"))
		next := wait(t.Context(), cs[2].FairLocker("x"))
		store.set(false, true)
		mustUnlock(t, t.Context(), holder) // to struck, who hasn't heard of it
		time.Sleep(10 * time.Millisecond)
		if ok, err := cs[1].FairLocker("x").ForceUnlock(t.Context()); !ok || err != nil {
			t.Fatal(ok, err)
		}
		store.deliver()
		store.set(false, false)
		next.mustBeIn(t)
		if struck.isIn(t) {
			t.Fatal("two are in")
		}
		mustUnlock(t, t.Context(), next.l)
		struck.mustBeIn(t)
		mustUnlock(t, t.Context(), struck.l)
	})
}

// A subscription may fail just as the last who waits leaves.
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
			q := *c.objectLocked(l.kind, "x").waitsFor(l.kind)
			c.mu.Unlock()
			cancel()
			<-w.in
			q.subscribed = subscribing
			c.unsubscribed(t.Context(), q, errMood)
			mustUnlock(t, t.Context(), l)
		}
	})
}

// Who is given the lock before its client listens, and whose answer comes only after the look that is made then, is told by another.
func TestAGrantBeforeTheSubscriptionAndTheAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newAround()
		c, other := New(store, quiet()), New(store.Backend, quiet())
		defer c.Close()
		defer other.Close()
		first, err := other.FairLocker("x").Acquire(t.Context())
		must(t, err)
		placed := make(chan struct{})
		late := make(chan struct{})
		store.hook(func(_ backend.AcquireRequest, do func() (backend.AcquireResult, error)) (backend.AcquireResult, error) {
			store.hook(nil)
			res, err := do()
			close(placed)
			<-late
			return res, err
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
