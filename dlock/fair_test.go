package dlock

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/dlock/internal/protocol"
	"github.com/seed951563bd/distsync/membackend"
)

var errNoLook = &backend.Error{Kind: backend.Retry, Err: errors.New("no look")}

func TestFairLocksGoInTheOrderOfArrival(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newScript(membackend.New())
		cs := fairClients(t, store, 3)
		first := cs[0].FairLocker("x")
		mustTry(t, first)
		var all []*tenant
		shared := cs[0].FairLocker("x")
		for i := range 12 {
			l := cs[i%3].FairLocker("x")
			if i%4 == 0 {
				l = shared // several plain calls of one Locker
			}
			all = append(all, wait(t.Context(), l))
		}
		time.Sleep(time.Minute)
		mustUnlock(t, t.Context(), first)
		for i, w := range all {
			w.mustBeIn(t)
			for _, later := range all[i+1:] {
				if later.isIn(t) {
					t.Fatal("two are in")
				}
			}
			mustUnlock(t, w.ctx, w.l)
		}
		for _, c := range cs {
			empty(t, c)
		}
	})
}

// Under load an acquisition costs two steps: one to stand in line, one to release.
func TestFairLocksCostTwoSteps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newScript(membackend.New())
		cs := fairClients(t, store, 4)
		const rounds = 50
		var all sync.WaitGroup
		var inside atomic.Int32
		for i := range 16 {
			l := cs[i%4].FairLocker("x")
			all.Go(func() {
				for range rounds {
					l.Lock()
					if inside.Add(1) != 1 {
						t.Error("two are in")
					}
					time.Sleep(time.Millisecond)
					inside.Add(-1)
					l.Unlock()
				}
			})
		}
		all.Wait()
		if n := store.steps(); n > 2*16*rounds+20 {
			t.Errorf("%d steps for %d acquisitions", n, 16*rounds)
		}
		if n := store.places.count(); n > 20 {
			t.Errorf("%d looks", n)
		}
		synctest.Wait()
		for _, c := range cs {
			empty(t, c)
		}
	})
}

// Places are kept for as long as somebody waits, with one look a second for all of a client.
func TestPlacesAreKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newScript(membackend.New())
		cs := fairClients(t, store, 2)
		holder := cs[0].FairLocker("x")
		mustTry(t, holder)
		var all []*tenant
		for range 100 {
			all = append(all, wait(t.Context(), cs[1].FairLocker("x")))
		}
		steps, looks := store.steps(), store.places.count()
		time.Sleep(60 * time.Second)
		if n := store.places.count() - looks; n > 65 {
			t.Errorf("%d looks in a minute", n)
		}
		if n := store.steps() - steps; n > 10 {
			t.Errorf("%d other steps in a minute", n)
		}
		mustUnlock(t, t.Context(), holder)
		for _, w := range all {
			w.mustBeIn(t)
			mustUnlock(t, w.ctx, w.l)
		}
	})
}

// A lock that the store grants is held for a short time, and renewed before that is over.
func TestAGrantIsRenewed(t *testing.T) {
	for name, opts := range map[string][]AcquireOption{
		"watched":       nil,
		"a fixed lease": {FixedLease(20 * time.Second)},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := newScript(membackend.New())
				cs := fairClients(t, store, 2)
				holder := cs[0].FairLocker("x")
				mustTry(t, holder)
				l := cs[1].FairLocker("x")
				w := wait(t.Context(), l, opts...)
				mustUnlock(t, t.Context(), holder)
				w.mustBeIn(t)
				time.Sleep(10 * time.Second)
				if held, err := l.IsHeld(t.Context()); !held || err != nil {
					t.Errorf("IsHeld = %v, %v", held, err)
				}
				time.Sleep(15 * time.Second)
				held, err := l.IsHeld(t.Context())
				if want := opts == nil; held != want || err != nil {
					t.Errorf("IsHeld = %v, %v after 25 s", held, err)
				}
				l.UnlockContext(t.Context())
				synctest.Wait()
				empty(t, cs[1])
			})
		})
	}
}

// A fixed lease that is shorter than what the store gives is over when it is, also for others.
func TestAShortLeaseOfWhoWasGranted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cs := fairClients(t, membackend.New(), 2)
		holder := cs[0].FairLocker("x")
		mustTry(t, holder)
		l := cs[1].FairLocker("x")
		w := wait(t.Context(), l, FixedLease(100*time.Millisecond))
		next := wait(t.Context(), cs[0].FairLocker("x"))
		mustUnlock(t, t.Context(), holder)
		w.mustBeIn(t)
		lost := l.Lost(t.Context())
		began := time.Now()
		<-lost
		if took := time.Since(began); took > 100*time.Millisecond {
			t.Errorf("lost after %v", took)
		}
		next.mustBeIn(t)
		mustUnlock(t, t.Context(), next.l)
		if err := l.UnlockContext(t.Context()); !errors.Is(err, ErrLost) {
			t.Error(err)
		}
	})
}

// A call that gives up has left the line, and no other waits for it.
func TestWhoLeavesTheLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newScript(membackend.New())
		cs := fairClients(t, store, 2)
		holder := cs[0].FairLocker("x")
		mustTry(t, holder)
		ctx, cancel := context.WithCancel(t.Context())
		quitter := wait(ctx, cs[1].FairLocker("x"))
		next := wait(t.Context(), cs[1].FairLocker("x"))
		cancel()
		if err := <-quitter.in; !errors.Is(err, context.Canceled) || !errors.Is(err, ErrHeld) {
			t.Errorf("who gave up: %v", err)
		}
		synctest.Wait()
		mustUnlock(t, t.Context(), holder)
		next.mustBeIn(t)
		if ok, err := cs[1].FairLocker("x").TryLock(t.Context(), Wait(time.Second)); ok ||
			err != nil {
			t.Errorf("TryLock = %v, %v", ok, err)
		}
		synctest.Wait()
		mustUnlock(t, t.Context(), next.l)
		mustTry(t, cs[0].FairLocker("x"))
	})
}

// A call without a wait doesn't overtake the waiters.
func TestWhoDoesNotWaitStaysBehindTheLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newScript(membackend.New())
		cs := fairClients(t, store, 3)
		holder := cs[0].FairLocker("x")
		mustTry(t, holder)
		w := wait(t.Context(), cs[1].FairLocker("x"))
		store.grants.set(vanish) // the store gives it to w, who doesn't hear of it
		mustUnlock(t, t.Context(), holder)
		if ok, err := cs[2].FairLocker("x").TryLock(t.Context()); ok || err != nil {
			t.Errorf("TryLock = %v, %v", ok, err)
		}
		if err := <-w.in; err != nil { // the next look tells
			t.Fatal(err)
		}
		mustUnlock(t, t.Context(), w.l)
	})
}

// A lock that the store grants to the first in line lasts for a moment, and for the whole lease
// once a third of that is over.
func TestAGrantIsRenewedForTheWholeLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clients := fairClients(t, membackend.New(), 2)
		first, err := clients[0].FairLocker("x").Acquire(t.Context())
		must(t, err)
		time.AfterFunc(time.Second, func() { must(t, first.Release(t.Context())) })
		h, err := clients[1].FairLocker("x").Acquire(t.Context())
		must(t, err)
		granted := time.Until(h.Until())
		if granted > 5*time.Second {
			t.Errorf("it was given for %v", granted)
		}
		time.Sleep(granted/3 + time.Millisecond)
		if left := time.Until(h.Until()); left < protocol.Promised(DefaultLease)-granted/3 {
			t.Errorf("a third of that later it has %v", left)
		}
		must(t, h.Release(t.Context()))
	})
}

// A call that gives up as it is granted a lock that is to stay taken keeps nobody out.
func TestGivenUpAsItIsGranted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newScript(membackend.New())
		clients := fairClients(t, store, 2)
		for range 50 { // whether the grant or the end is noticed first is a matter of chance
			first, err := clients[0].FairLocker("x").Acquire(t.Context())
			must(t, err)
			ctx, cancel := context.WithCancel(t.Context())
			got := make(chan error)
			go func() {
				_, err := clients[1].FairLocker("x").Acquire(ctx, AtLeast(time.Hour))
				got <- err
			}()
			synctest.Wait()
			store.grants.set(linger)
			must(t, first.Release(t.Context()))
			synctest.Wait()
			cancel()
			store.grants.deliver()
			store.grants.set(arrive)
			if err := <-got; !errors.Is(err, context.Canceled) {
				t.Fatalf("Acquire = %v", err)
			}
			time.Sleep(2 * linePlace)
			mustTry(t, clients[0].FairLocker("x").For(NewOwner()))
			if ok, err := clients[0].FairLocker("x").ForceUnlock(t.Context()); !ok || err != nil {
				t.Fatal(ok, err)
			}
		}
	})
}

// A grant that comes late is refused; a grant to an owner that has gone is nobody's.
func TestLateGrants(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newScript(membackend.New())
		cs := fairClients(t, store, 2)
		holder := cs[0].FairLocker("x")
		mustTry(t, holder)
		late := wait(t.Context(), cs[1].FairLocker("x"))
		ctx, cancel := context.WithCancel(t.Context())
		quitter := wait(ctx, cs[1].FairLocker("x"))
		store.grants.set(linger)
		store.places.fail(errNoLook)
		mustUnlock(t, t.Context(), holder) // late has it for a second, then quitter
		time.Sleep(1500 * time.Millisecond)
		mustTryNot(t, cs[0].FairLocker("x"))
		cancel()
		<-quitter.in
		store.places.set(nil)
		store.grants.deliver()
		store.grants.set(arrive)
		if err := <-late.in; err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Second)
		if held, err := late.l.IsHeld(t.Context()); !held || err != nil {
			t.Errorf("IsHeld = %v, %v", held, err)
		}
		mustUnlock(t, t.Context(), late.l)
		mustTry(t, cs[0].FairLocker("x"))
		time.Sleep(5 * time.Second)
		empty(t, cs[1])
	})
}

// A look that is under way when a waiter leaves gives the waiter its place back. The client gives
// that place up once more.
func TestWhoLeavesDuringALook(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newScript(membackend.New())
		cs := fairClients(t, store, 2)
		holder := cs[0].FairLocker("x")
		mustTry(t, holder)
		ctx, cancel := context.WithCancel(t.Context())
		quitter := wait(ctx, cs[1].FairLocker("x"))
		stays := wait(t.Context(), cs[1].FairLocker("x"))
		hang := make(chan struct{})
		store.places.set(func(s *placesStep) { s.waitFor(hang) })
		time.Sleep(1100 * time.Millisecond) // a look hangs
		cancel()
		<-quitter.in
		synctest.Wait()
		close(hang)
		synctest.Wait()
		mustUnlock(t, t.Context(), holder)
		stays.mustBeIn(t)
		mustUnlock(t, t.Context(), stays.l)
		mustTry(t, cs[0].FairLocker("x"))
	})
}

func TestFairLocksReenter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cs := fairClients(t, membackend.New(), 2)
		holder := cs[0].FairLocker("x")
		mustTry(t, holder)
		l := cs[1].FairLocker("x")
		done := make(chan error, 1)
		go func() {
			done <- l.Do(t.Context(), func(ctx context.Context) error {
				if err := cs[1].Locker("x").
					LockContext(ctx, Wait(time.Second)); !errors.Is(err, ErrConflict) {
					t.Errorf("as another kind: %v", err)
				}
				if err := l.LockContext(ctx); err != nil {
					return err
				}
				if n, err := l.HoldCount(ctx); n != 2 || err != nil {
					t.Errorf("HoldCount = %d, %v", n, err)
				}
				return l.UnlockContext(ctx)
			})
		}()
		synctest.Wait()
		mustUnlock(t, t.Context(), holder)
		if err := <-done; err != nil {
			t.Error(err)
		}
		mustTry(t, holder)
		mustUnlock(t, t.Context(), holder)
	})
}

// A Locker's plain call has lost the lock: the other plain calls of that Locker stand aside until
// it is unlocked.
func TestFairPlainCallsOfALockerThatWasLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cs := fairClients(t, membackend.New(), 2)
		l := cs[0].FairLocker("x")
		mustTry(t, l, FixedLease(time.Second))
		w := wait(t.Context(), l)
		other := cs[1].FairLocker("x")
		next := wait(t.Context(), other)
		<-l.Lost(t.Context())
		time.Sleep(time.Second)
		next.mustBeIn(t)
		if w.isIn(t) {
			t.Fatal("it got in through a Locker that isn't unlocked")
		}
		if err := l.UnlockContext(t.Context()); !errors.Is(err, ErrLost) {
			t.Error(err)
		}
		synctest.Wait()
		mustUnlock(t, t.Context(), other)
		w.mustBeIn(t)
		mustUnlock(t, t.Context(), l)
	})
}

func TestFairLocksAreForced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cs := fairClients(t, membackend.New(), 2)
		holder := cs[0].FairLocker("x")
		mustTry(t, holder)
		a, b := wait(t.Context(), cs[0].FairLocker("x")), wait(t.Context(), cs[1].FairLocker("x"))
		if ok, err := cs[1].FairLocker("x").ForceUnlock(t.Context()); !ok || err != nil {
			t.Fatalf("ForceUnlock = %v, %v", ok, err)
		}
		a.mustBeIn(t)
		if err := holder.UnlockContext(t.Context()); !errors.Is(err, ErrLost) {
			t.Errorf("the unlock of what was forced: %v", err)
		}
		mustUnlock(t, t.Context(), a.l)
		b.mustBeIn(t)
		mustUnlock(t, t.Context(), b.l)
	})
}

// When a lock was forced, its client looks at once which of its calls the store has given it to,
// even if the message of that is lost.
func TestAForcedFairLockIsLookedAtAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newScript(membackend.New())
		store.grants.set(vanish)
		c := fairClients(t, store, 1)[0]
		holder := c.FairLocker("x")
		mustTry(t, holder)
		next := wait(t.Context(), c.FairLocker("x"))
		if ok, err := holder.ForceUnlock(t.Context()); !ok || err != nil {
			t.Fatalf("ForceUnlock = %v, %v", ok, err)
		}
		next.mustBeIn(t)
		if err := holder.UnlockContext(t.Context()); !errors.Is(err, ErrLost) {
			t.Errorf("the unlock of what was forced: %v", err)
		}
		mustUnlock(t, t.Context(), next.l)
	})
}

// A plain call of a Locker whose hold is lost can't have the lock before that is unlocked. So it
// gives up its place at once.
func TestPlainCallsOfALostLockerLeaveTheLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newScript(membackend.New())
		c := fairClients(t, store, 1)[0]
		l := c.FairLocker("x")
		must(t, l.LockContext(t.Context(), FixedLease(1500*time.Millisecond)))
		same, free := wait(t.Context(), l), wait(t.Context(), c.FairLocker("x"))
		time.Sleep(time.Second + time.Second/10)
		if looks := store.places.took(); len(looks) < 2 || len(looks[1].Owners) != 2 {
			t.Fatalf("before the loss, looks at %v", looks)
		}
		<-l.Lost(t.Context())
		time.Sleep(time.Second)
		free.mustBeIn(t)
		for _, look := range store.places.took() {
			if len(look.Owners) > 1 {
				t.Errorf("after the loss, a look at %d places", len(look.Owners))
			}
		}
		if err := l.UnlockContext(t.Context()); !errors.Is(err, ErrLost) {
			t.Errorf("the unlock of what was lost: %v", err)
		}
		mustUnlock(t, t.Context(), free.l)
		same.mustBeIn(t)
		mustUnlock(t, t.Context(), l)
	})
}

func TestFairLocksAfterClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := membackend.New()
		cs := fairClients(t, store, 2)
		holder := cs[0].FairLocker("x")
		mustTry(t, holder)
		w := wait(t.Context(), cs[1].FairLocker("x"))
		next := wait(t.Context(), cs[0].FairLocker("x"))
		cs[1].Close()
		if err := <-w.in; !errors.Is(err, ErrClosed) {
			t.Errorf("who waited: %v", err)
		}
		mustUnlock(t, t.Context(), holder)
		next.mustBeIn(t) // the closed client's waiter has left the line
		mustUnlock(t, t.Context(), next.l)
	})
}

// While the store fails, everybody keeps trying, and gets in when it is back.
func TestLinesOutliveAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newScript(membackend.New())
		cs := fairClients(t, store, 2)
		holder := cs[0].FairLocker("x")
		mustTry(t, holder)
		w := wait(t.Context(), cs[1].FairLocker("x"))
		bounded := wait(t.Context(), cs[1].FairLocker("x"), Wait(20*time.Second))
		store.places.fail(errNoLook)
		time.Sleep(10 * time.Second) // places are over by now
		mustTryNot(t, cs[1].FairLocker("x"))
		time.Sleep(11 * time.Second)
		if err := <-bounded.in; !errors.Is(err, ErrUnavailable) {
			t.Errorf("who waited while nothing was heard: %v", err)
		}
		store.places.set(nil)
		time.Sleep(2 * time.Second)
		mustUnlock(t, t.Context(), holder)
		w.mustBeIn(t)
		mustUnlock(t, t.Context(), w.l)
	})
}

func TestFairLocksUnderLoad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newScript(membackend.New())
		cs := fairClients(t, store, 3)
		var all sync.WaitGroup
		var inside atomic.Int32
		for i := range 24 {
			c := cs[i%3]
			r := rand.New(rand.NewPCG(uint64(i), 3))
			all.Go(func() {
				l := c.FairLocker("x")
				for range 60 {
					ctx, cancel := context.WithTimeout(t.Context(),
						time.Duration(1+r.IntN(60))*time.Millisecond)
					if r.IntN(10) == 0 {
						ctx, cancel = context.WithCancel(t.Context())
					}
					h, err := l.Acquire(ctx)
					if err == nil {
						if inside.Add(1) != 1 {
							t.Error("two are in")
						}
						time.Sleep(time.Duration(r.IntN(3000)) * time.Microsecond)
						inside.Add(-1)
						mustRelease(t, h)
					}
					cancel()
				}
			})
		}
		all.Wait()
		synctest.Wait()
		mustTry(t, cs[0].FairLocker("x"))
	})
}

// However far away the store is, waiters get a fair lock, and have it for as long as they want:
// also where what they are given is over before they hear of that. Then their order may be another.
func TestFairLockFarAway(t *testing.T) {
	for _, way := range []time.Duration{0, 200, 400, 600, 900, 2000} {
		way *= time.Millisecond
		t.Run(way.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := membackend.New()
				holder := fairClients(t, store, 1)[0].FairLocker("x")
				mustTry(t, holder)
				var all []*tenant
				// until nothing is on its way any more
				t.Cleanup(func() { time.Sleep(time.Minute) })
				away := newScript(store).far(way, 0)
				away.renew.delay(way, way)
				away.places.delay(way, way)
				away.grants.late = way
				for _, c := range fairClients(t, away, 3) {
					all = append(all, wait(t.Context(), c.FairLocker("x")))
					time.Sleep(10 * time.Second)
				}
				mustUnlock(t, t.Context(), holder)
				for len(all) > 0 {
					time.Sleep(time.Minute)
					i := slices.IndexFunc(all, func(w *tenant) bool { return w.isIn(t) })
					if i < 0 {
						t.Fatalf("of %d waiters none is in after a minute", len(all))
					}
					if i > 0 && way < 500*time.Millisecond {
						t.Errorf("the next is waiter %d of those that are left", i)
					}
					w := all[i]
					all = slices.Delete(all, i, i+1)
					if held, err := w.l.IsHeld(t.Context()); !held || err != nil {
						t.Errorf("IsHeld = %v, %v", held, err)
					}
					mustUnlock(t, t.Context(), w.l)
				}
			})
		})
	}
}
