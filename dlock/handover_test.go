package dlock

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/membackend"
)

func TestHandoverAsksTheStoreOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		store := newScript(membackend.New())
		c := New(store, quiet())
		defer c.Close()
		first := c.Locker("x")
		mustTry(t, first)
		var all []*tenant
		for range 5 {
			all = append(all, wait(ctx, c.Locker("x")))
		}
		mustUnlock(t, ctx, first)
		for i, w := range all {
			w.mustBeIn(t)
			if i+1 < len(all) && all[i+1].isIn(t) {
				t.Fatal("two are in")
			}
			if held, err := w.l.IsHeld(ctx); !held || err != nil {
				t.Errorf("IsHeld of one who was handed the lock = %v, %v", held, err)
			}
			mustUnlock(t, ctx, w.l)
		}
		store.wantSteps(t, 1, 1)
		empty(t, c)
	})
}

func TestHandoverIsBoundedSinceTheChainBegan(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		store := newScript(membackend.New())
		c, other := New(store, quiet(), WithHandover(10*time.Millisecond)),
			New(store.Backend, quiet())
		defer c.Close()
		defer other.Close()
		first := c.Locker("x")
		mustTry(t, first)
		foreigner := wait(ctx, other.Locker("x"))
		a, b := wait(ctx, c.Locker("x")), wait(ctx, c.Locker("x"))
		time.Sleep(6 * time.Millisecond)
		mustUnlock(t, ctx, first)
		a.mustBeIn(t) // 6 ms since the beginning
		time.Sleep(6 * time.Millisecond)
		mustUnlock(t, ctx, a.l)
		synctest.Wait()
		switch { // 12 ms: the store decides
		case foreigner.isIn(t):
			mustUnlock(t, ctx, foreigner.l)
			b.mustBeIn(t)
		default:
			b.mustBeIn(t)
			mustUnlock(t, ctx, b.l)
			foreigner.mustBeIn(t)
		}
		if store.release.count() == 0 || store.acquire.count() < 2 {
			t.Errorf("%d acquisitions, %d releases: the lock was not released in the store",
				store.acquire.count(), store.release.count())
		}
	})
}

// The time counts from when the store may have let the lock go again, at the earliest.
func TestTheChainBeginsWithTheRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		store := newScript(membackend.New())
		store.acquire.delay(6*time.Millisecond, 0)
		c := New(store, quiet(), WithHandover(10*time.Millisecond))
		defer c.Close()
		l := c.Locker("x")
		mustTry(t, l)
		w := wait(ctx, c.Locker("x"))
		time.Sleep(5 * time.Millisecond)
		mustUnlock(t, ctx, l)
		if w.isIn(t) {
			t.Error("handed on 11 ms after the request was sent")
			return
		}
		time.Sleep(time.Second)
		w.mustBeIn(t)
		mustUnlock(t, ctx, w.l)
	})
}

// The message of the last release is lost.
func TestAfterAChainTheNextDoesNotWaitForLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		c := New(membackend.New(), quiet())
		defer c.Close()
		c.store.Notifier = deaf{}
		first := c.Locker("x")
		mustTry(t, first)
		a, b := wait(ctx, c.Locker("x")), wait(ctx, c.Locker("x"))
		mustUnlock(t, ctx, first)
		a.mustBeIn(t)
		time.Sleep(time.Second) // in which b asks the store itself
		mustUnlock(t, ctx, a.l)
		time.Sleep(2 * shortestWait)
		b.mustBeIn(t)
		mustUnlock(t, ctx, b.l)
	})
}

// The lock is forced elsewhere while this client has it: the next call here finds out.
func TestTheNextAsksTheStoreIfNothingIsHandedOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		mem := membackend.New()
		c, other := New(mem, quiet()), New(mem, quiet())
		defer c.Close()
		defer other.Close()
		l := c.Locker("x")
		mustTry(t, l)
		w := wait(ctx, c.Locker("x"))
		if _, err := other.Locker("x").ForceUnlock(ctx); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * DefaultHandover)
		w.mustBeIn(t)
		if err := l.UnlockContext(ctx); !errors.Is(err, ErrLost) {
			t.Errorf("unlock of a lock that was forced: %v", err)
		}
		mustUnlock(t, ctx, w.l)
	})
}

// If a message is slow, a client that must let others go first waits for it, but not for ever.
func TestAfterAChainOthersHaveATurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		mem := membackend.New()
		slow := newScript(mem)
		slow.acquire.delay(3*time.Millisecond, 0)
		c, other := New(mem, quiet()), New(slow, quiet())
		defer c.Close()
		defer other.Close()
		first := c.Locker("x")
		mustTry(t, first)
		a, b := wait(ctx, c.Locker("x")), wait(ctx, c.Locker("x"))
		foreigner := wait(ctx, other.Locker("x"))
		time.Sleep(5 * time.Millisecond)
		mustUnlock(t, ctx, first)
		a.mustBeIn(t)
		c.store.Notifier = deaf{}
		time.Sleep(5 * time.Millisecond)
		mustUnlock(t, ctx, a.l)
		time.Sleep(4 * time.Millisecond)
		foreigner.mustBeIn(t)
		if b.isIn(t) {
			t.Fatal("two are in")
		}
		mustUnlock(t, ctx, foreigner.l)
		time.Sleep(DefaultLease)
		b.mustBeIn(t)
	})
}

func (deaf) Subscribe(
	ctx context.Context, req backend.SubscribeRequest,
) (backend.Subscription, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

func TestNotHandedOn(t *testing.T) {
	for _, test := range []struct {
		name    string
		options []Option
		first   []AcquireOption
		second  []AcquireOption
	}{
		{name: "switched off", options: []Option{WithHandover(0)}},
		{name: "a fixed lease", first: []AcquireOption{FixedLease(time.Minute)}},
		{name: "to a fixed lease", second: []AcquireOption{FixedLease(DefaultLease)}},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx := t.Context()
				store := newScript(membackend.New())
				c := New(store, append(test.options, quiet())...)
				defer c.Close()
				l := c.Locker("x")
				mustTry(t, l, test.first...)
				w := wait(ctx, c.Locker("x"), test.second...)
				mustUnlock(t, ctx, l)
				time.Sleep(time.Second)
				w.mustBeIn(t)
				mustUnlock(t, ctx, w.l)
				if owners := slices.Compact(store.owners()); len(owners) < 2 {
					t.Errorf("acquired in the store as %v: it was handed on", owners)
				}
			})
		})
	}
}

// The store may count more than we do, and a late request may shorten the lease.
func TestADoubtfulHoldIsNotHandedOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newScript(membackend.New())
		c := New(store, quiet())
		defer c.Close()
		ctx := WithOwner(t.Context(), NewOwner())
		l := c.Locker("x")
		if err := l.LockContext(ctx); err != nil {
			t.Fatal(err)
		}
		store.acquire.fail(errors.New("no answer"))
		if ok, err := l.TryLock(ctx); ok || err == nil {
			t.Fatalf("a re-entry without an answer: %v, %v", ok, err)
		}
		store.acquire.set(nil)
		w := wait(t.Context(), c.Locker("x"))
		mustUnlock(t, ctx, l)
		time.Sleep(time.Second)
		w.mustBeIn(t)
		if owners := slices.Compact(store.owners()); len(owners) != 2 {
			t.Errorf("acquired in the store as %v, want two owners", owners)
		}
		w.leave()
	})
}

func TestHandoverWhileAStepOfTheHoldIsUnderWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newScript(membackend.New())
		c := New(store, quiet())
		defer c.Close()
		ctx := WithOwner(t.Context(), NewOwner())
		l := c.Locker("x")
		if err := l.LockContext(ctx); err != nil {
			t.Fatal(err)
		}
		w := wait(t.Context(), c.Locker("x"))
		goOn := make(chan struct{})
		store.acquire.set(func(s *acquireStep) { s.waitFor(goOn) })
		reentered := wait(ctx, l)
		unlocked := make(chan error, 1)
		go func() { unlocked <- l.UnlockContext(ctx) }()
		synctest.Wait()
		if w.isIn(t) {
			t.Fatal("handed on while its owner re-enters it")
		}
		close(goOn)
		reentered.mustBeIn(t)
		if err := <-unlocked; err != nil {
			t.Fatal(err)
		}
		if w.isIn(t) {
			t.Fatal("handed on while its owner holds it")
		}
		mustUnlock(t, ctx, l)
		w.mustBeIn(t)
		w.leave()
	})
}

// A request that is under way is an acquisition of its own.
func TestNothingIsHandedToOneWhoIsJustAsking(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		store := newScript(membackend.New())
		c := New(store, quiet())
		defer c.Close()
		goOn := make(chan struct{})
		store.acquire.set(func(s *acquireStep) { s.waitFor(goOn) })
		w := wait(ctx, c.Locker("x"))
		store.acquire.set(nil)
		l := c.Locker("x")
		mustTry(t, l) // out of turn
		mustUnlock(t, ctx, l)
		store.wantSteps(t, 2, 1)
		close(goOn)
		w.mustBeIn(t)
		mustUnlock(t, ctx, w.l)
	})
}

func TestEachTenureHasItsOwnLostChannel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		store := newScript(membackend.New())
		c, other := New(store, quiet()), New(store.Backend, quiet())
		defer c.Close()
		defer other.Close()
		l := c.Locker("x")
		mustTry(t, l)
		before := l.Lost(ctx)
		w := wait(ctx, c.Locker("x"))
		mustUnlock(t, ctx, l)
		w.mustBeIn(t)
		now := w.l.Lost(ctx)
		if _, err := other.Locker("x").ForceUnlock(ctx); err != nil {
			t.Fatal(err)
		}
		time.Sleep(DefaultLease) // the watchdog goes on for whoever has it
		select {
		case <-now:
		default:
			t.Error("who was handed the lock isn't told that it was lost")
		}
		select {
		case <-before:
			t.Error("who had unlocked it is told that it was lost")
		default:
		}
		if err := w.leave(); !errors.Is(err, ErrLost) {
			t.Errorf("unlock of a lost lock: %v", err)
		}
	})
}

func TestHandedHoldsAreRenewed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		c := New(membackend.New(), quiet())
		defer c.Close()
		l := c.Locker("x")
		mustTry(t, l)
		w := wait(ctx, c.Locker("x"))
		mustUnlock(t, ctx, l)
		w.mustBeIn(t)
		time.Sleep(10 * DefaultLease)
		if held, err := w.l.IsHeld(ctx); !held || err != nil {
			t.Errorf("after ten leases: %v, %v", held, err)
		}
		mustUnlock(t, ctx, w.l)
		empty(t, c)
	})
}

// An unlock too many within a Do doesn't unlock the lock of its next holder.
func TestUnlockTooManyAfterAHandover(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New(membackend.New(), quiet())
		defer c.Close()
		l := c.Locker("x")
		var w *tenant
		err := l.Do(t.Context(), func(ctx context.Context) error {
			w = wait(t.Context(), c.Locker("x"))
			mustUnlock(t, ctx, l)
			w.mustBeIn(t)
			if ctx.Err() == nil {
				t.Error("the context of a Do that gave its hold back goes on")
			}
			return nil
		})
		if !errors.Is(err, ErrNotHeld) {
			t.Errorf("Do: %v", err)
		}
		if held, err := w.l.IsHeld(t.Context()); !held || err != nil {
			t.Errorf("the one who was handed the lock has it: %v, %v", held, err)
		}
		if err := w.leave(); err != nil {
			t.Error(err)
		}
	})
}

// A call that gives up as it is handed the lock passes it on.
func TestHandedToOneWhoGaveUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newScript(membackend.New())
		c := New(store, quiet())
		defer c.Close()
		for range 100 {
			l := c.Locker("x")
			l.Lock()
			ctx, cancel := context.WithCancel(t.Context())
			quitter, next := wait(ctx, c.Locker("x")), wait(t.Context(), c.Locker("x"))
			cancel()
			l.Unlock()
			err := <-quitter.in
			if err == nil {
				t.Fatal("got in after its context had ended")
			}
			if !errors.Is(err, context.Canceled) {
				t.Fatal(err)
			}
			next.mustBeIn(t)
			mustUnlock(t, t.Context(), next.l)
			time.Sleep(time.Second)
			empty(t, c)
		}
	})
}

// A lock that was handed to a waiter is lost before the waiter looks: it goes on waiting, and has
// nothing to unlock.
func TestHandedAndLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New(membackend.New(), quiet())
		defer c.Close()
		ctx := WithOwner(t.Context(), NewOwner())
		l := c.Locker("x")
		if err := l.LockContext(ctx); err != nil {
			t.Fatal(err)
		}
		c.mu.Lock()
		h := heldOf(c, "x")
		h.lose(&c.state, gone)
		c.unlock()
		if _, err := take(ctx, &acquisition{
			client: c, call: call{name: "x", party: h.party}, waiting: waiting{handed: h},
		}); err != errAgain {
			t.Errorf("taking what is lost: %v", err)
		}
		if err := l.UnlockContext(ctx); !errors.Is(err, ErrNotHeld) {
			t.Errorf("unlock: %v", err)
		}
		synctest.Wait()
		if held, err := l.IsLocked(ctx); held || err != nil {
			t.Errorf("not taken back: IsLocked = %v, %v", held, err)
		}
		empty(t, c)
	})
}

// lostBy has a Locker lose the lock, and not unlock it: its next call waits at its gate.
func lostBy(t *testing.T, l *Locker) {
	t.Helper()
	mustTry(t, l, FixedLease(time.Second))
	time.Sleep(time.Second)
	if held, err := l.IsHeld(t.Context()); held || err != nil {
		t.Fatalf("a lock whose lease is over: IsHeld = %v, %v", held, err)
	}
}

// unlockLost unlocks a Locker that has lost the lock, so that its next call may have it.
func unlockLost(t *testing.T, l *Locker) {
	t.Helper()
	if err := l.UnlockContext(t.Context()); !errors.Is(err, ErrLost) {
		t.Fatalf("the unlock of what is lost: %v", err)
	}
}

// The first in the queue waits for its Locker to be unlocked, and somebody behind it asks the store
// as that happens. At the next wake-up the first has its turn.
func TestTheFirstHasItsTurnAfterSomebodyBehindItHasAsked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := membackend.New()
		store := newScript(mem)
		c, other := New(store, quiet()), New(mem, quiet())
		defer c.Close()
		defer other.Close()
		l := c.Locker("x")
		lostBy(t, l)
		holder := other.Locker("x")
		mustTry(t, holder)
		first := wait(t.Context(), l)
		store.acquire.delay(time.Millisecond, 0)
		second := wait(t.Context(), c.Locker("x"))
		unlockLost(t, l)
		time.Sleep(2 * time.Millisecond) // the second is answered that the lock is held
		synctest.Wait()
		store.acquire.delay(0, 0)
		mustUnlock(t, t.Context(), holder)
		first.mustBeIn(t)
		must(t, first.leave())
		second.mustBeIn(t)
		must(t, second.leave())
	})
}

// An attempt without an answer may have got the lock. Its call asks again before all others, also
// before the first in the queue, which couldn't ask until then.
func TestAnAttemptInDoubtIsRepeatedBeforeOthersAsk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newScript(membackend.New())
		c := New(b, quiet())
		defer c.Close()
		l := c.Locker("x")
		lostBy(t, l)
		first := wait(t.Context(), l)
		b.acquire.set(func(s *acquireStep) {
			if s.n == 1 {
				s.lose()
			}
		})
		second := wait(t.Context(), c.Locker("x"))
		unlockLost(t, l)
		time.Sleep(firstBackoff)
		second.mustBeIn(t)
		must(t, second.leave())
		first.mustBeIn(t)
		must(t, first.leave())
	})
}

// A waiter whose attempt had no answer is handed the lock: the attempt is taken back.
func TestHandedWithAnAttemptInDoubt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		store := newScript(membackend.New())
		c := New(store, quiet())
		defer c.Close()
		store.acquire.fail(errors.New("no answer"))
		w := wait(ctx, c.Locker("x"))
		store.acquire.set(nil)
		l := c.Locker("x")
		mustTry(t, l) // out of turn
		mustUnlock(t, ctx, l)
		w.mustBeIn(t)
		mustUnlock(t, ctx, w.l)
		if n := store.release.count(); n < 2 {
			t.Errorf("%d releases: the doubtful attempt was not taken back", n)
		}
		time.Sleep(2 * DefaultLease)
		empty(t, c)
	})
}

func TestHandoverToAnOwnerLetsItsOthersReenter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New(membackend.New(), quiet())
		defer c.Close()
		l := c.Locker("x")
		mustTry(t, l)
		ctx := WithOwner(t.Context(), NewOwner())
		a, stranger, b := wait(ctx, c.Locker("x")), wait(t.Context(), c.Locker("x")),
			wait(ctx, c.Locker("x"))
		mustUnlock(t, t.Context(), l)
		a.mustBeIn(t)
		b.mustBeIn(t)
		a.leave()
		if stranger.isIn(t) {
			t.Fatal("two are in")
		}
		b.leave()
		stranger.mustBeIn(t)
		stranger.leave()
	})
}

func TestCloseAtAHandover(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for range 100 {
			c := New(membackend.New(), quiet())
			l := c.Locker("x")
			mustTry(t, l)
			w := wait(t.Context(), c.Locker("x"))
			var all sync.WaitGroup
			all.Go(func() { l.Unlock() })
			all.Go(func() { c.Close() })
			all.Wait()
			if err := <-w.in; err != nil && !errors.Is(err, ErrClosed) {
				t.Fatal(err)
			} else if err == nil {
				w.leave()
			}
		}
	})
}

// A message that comes when the lock has been taken again must not make the next in the queue ask
// the store: while it asks nothing can be handed on, and the release in the store sends the next
// message.
func TestStaleMessagesDoNotBreakChains(t *testing.T) {
	for _, message := range []time.Duration{20 * time.Microsecond, 300 * time.Microsecond,
		2 * time.Millisecond} {
		synctest.Test(t, func(t *testing.T) {
			store := newScript(membackend.New()).far(250*time.Microsecond, message)
			c := New(store, quiet())
			defer c.Close()
			const sections = 5000
			turns := 0
			var all sync.WaitGroup
			for range 8 {
				all.Go(func() {
					l := c.Locker("x")
					for {
						l.Lock()
						if turns == sections {
							l.Unlock()
							return
						}
						if turns++; turns == 1 {
							time.Sleep(3 * DefaultHandover)
						}
						time.Sleep(100 * time.Microsecond)
						l.Unlock()
					}
				})
			}
			all.Wait()
			if store.acquire.count() > sections/20 {
				t.Errorf("messages %v late: %d acquisitions for %d turns of 100 us", message,
					store.acquire.count(), sections)
			}
		})
	}
}

// The head is asking the store when the chain ends, and the message is lost.
func TestAfterAChainAnAnswerFromBeforeIsNotTrusted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		store := newScript(membackend.New())
		c := New(store, quiet())
		defer c.Close()
		c.store.Notifier = deaf{}
		first := c.Locker("x")
		mustTry(t, first)
		store.acquire.delay(0, 3*time.Millisecond)
		a, b := wait(ctx, c.Locker("x")), wait(ctx, c.Locker("x"))
		mustUnlock(t, ctx, first)
		a.mustBeIn(t)
		time.Sleep(DefaultHandover + shortestWait + time.Millisecond) // b asks the store
		began := time.Now()
		a.l.Unlock()
		if err := <-b.in; err != nil {
			t.Fatal(err)
		}
		if d := time.Since(began); d > time.Second {
			t.Errorf("the next waited %v for a lock that its own client had released", d)
		}
		b.leave()
	})
}

// The head doesn't ask while the release is under way, and so before others hear of it.
func TestTheHeadDoesNotOvertakeTheRelease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		mem := membackend.New()
		c, other := New(newScript(mem).far(4*time.Millisecond, 0), quiet()),
			New(newScript(mem).far(3*time.Millisecond, 0), quiet())
		defer c.Close()
		defer other.Close()
		first := c.Locker("x")
		mustTry(t, first) // sent 8 ms ago
		a, b := wait(ctx, c.Locker("x")), wait(ctx, c.Locker("x"))
		foreigner := wait(ctx, other.Locker("x"))
		mustUnlock(t, ctx, first)
		a.mustBeIn(t)
		time.Sleep(3 * time.Millisecond)
		mustUnlock(t, ctx, a.l) // arrives at 15 ms, when b would ask, and is answered at 19
		time.Sleep(10 * time.Millisecond)
		if b.isIn(t) {
			t.Error("the next of the same client was faster than a message to another")
			b.leave()
		}
		foreigner.mustBeIn(t)
		foreigner.leave()
		time.Sleep(DefaultLease)
		b.mustBeIn(t)
		b.leave()
	})
}

// Where nobody is told of releases, a client that polls gets in now and then.
func TestChainsDoNotStarveWhoPolls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		store := newScript(membackend.New()).far(250*time.Microsecond, 0)
		c, other := New(store, quiet()), New(store, quiet())
		defer c.Close()
		defer other.Close()
		c.notifies, other.notifies = false, false
		var all sync.WaitGroup
		for range 4 {
			all.Go(func() {
				l := c.Locker("x")
				for l.LockContext(ctx) == nil {
					time.Sleep(100 * time.Microsecond)
					l.Unlock()
				}
			})
		}
		begin := time.Now()
		const turns = 20
		for range turns {
			if err := other.Locker("x").Do(ctx, func(context.Context) error {
				return nil
			}); err != nil {
				t.Fatal(err)
			}
		}
		if mean := time.Since(begin) / turns; mean > time.Second {
			t.Errorf("another client waits for %v on average", mean)
		}
		stop()
		all.Wait()
	})
}

// The last release finds that the lock was forced; the waiter had counted on a hand-over.
func TestWhoExpectsAHandoverIsToldThatThereIsNone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newScript(membackend.New())
		c, other := New(store, quiet(), WithHandover(5*time.Second)), New(store.Backend, quiet())
		defer c.Close()
		defer other.Close()
		ctx := WithOwner(t.Context(), NewOwner())
		l := c.Locker("x")
		for range 2 {
			if err := l.LockContext(ctx); err != nil {
				t.Fatal(err)
			}
		}
		w := wait(t.Context(), c.Locker("x"))
		store.release.fail(errors.New("no answer"))
		mustUnlock(t, ctx, l) // leaves a doubt, so that nothing is handed on
		store.release.set(nil)
		if _, err := other.Locker("x").ForceUnlock(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := l.UnlockContext(ctx); !errors.Is(err, ErrLost) {
			t.Fatal(err)
		}
		time.Sleep(100 * time.Millisecond)
		w.mustBeIn(t)
		w.leave()
	})
}

// A call that waits with a fixed lease, or in a client that hands nothing on, expects nothing.
func TestWhoIsHandedNothingAsksAtOnce(t *testing.T) {
	for name, opts := range map[string]struct {
		client []Option
		lock   []AcquireOption
	}{
		"off":           {client: []Option{WithHandover(0)}},
		"a fixed lease": {lock: []AcquireOption{FixedLease(time.Minute)}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				mem := membackend.New()
				c, other := New(mem, append(opts.client, quiet())...), New(mem, quiet())
				defer c.Close()
				defer other.Close()
				l := c.Locker("x")
				mustTry(t, l)
				w := wait(t.Context(), c.Locker("x"), opts.lock...)
				if _, err := other.Locker("x").ForceUnlock(t.Context()); err != nil {
					t.Fatal(err)
				}
				w.mustBeIn(t)
				w.leave()
				l.UnlockContext(t.Context())
			})
		})
	}
}

// A lease of another length is not handed on.
func TestALongLeaseIsNotHandedOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New(membackend.New(), quiet(), WithLease(time.Second))
		defer c.Close()
		ctx := WithOwner(t.Context(), NewOwner())
		l := c.Locker("x")
		if err := l.LockContext(ctx, FixedLease(time.Hour)); err != nil {
			t.Fatal(err)
		}
		if err := l.LockContext(ctx); err != nil { // it is renewed from now on
			t.Fatal(err)
		}
		w := wait(t.Context(), c.Locker("x"))
		mustUnlock(t, ctx, l)
		mustUnlock(t, ctx, l)
		time.Sleep(time.Second)
		w.mustBeIn(t)
		if ttl, err := w.l.TTL(t.Context()); ttl > time.Second || err != nil {
			t.Errorf("a lock with a lease of a second ends in %v, %v", ttl, err)
		}
		w.leave()
	})
}
