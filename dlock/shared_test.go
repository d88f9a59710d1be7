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

func TestASharedLockerIsHandedOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newScript(membackend.New())
		c := New(store, quiet())
		defer c.Close()
		l := c.Locker("x")
		var all sync.WaitGroup
		inside := 0
		for range 8 {
			all.Go(func() {
				for range 10 {
					l.Lock()
					inside++
					if inside != 1 {
						t.Error("two are in")
					}
					time.Sleep(10 * time.Microsecond)
					inside--
					l.Unlock()
				}
			})
		}
		all.Wait()
		store.wantSteps(t, 1, 1)
		empty(t, c)
	})
}

// Callers that wait for a Locker to be unlocked, and callers with a Locker of their own, get the
// lock in the order of their arrival.
func TestASharedLockerIsFair(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		c := New(membackend.New(), quiet())
		defer c.Close()
		l := c.Locker("x")
		mustTry(t, l)
		all := []*tenant{
			wait(ctx, l), wait(ctx, c.Locker("x")), wait(ctx, l), wait(ctx, c.Locker("x")),
		}
		mustUnlock(t, ctx, l)
		for i, w := range all {
			w.mustBeIn(t)
			if i+1 < len(all) && all[i+1].isIn(t) {
				t.Fatal("two are in")
			}
			mustUnlock(t, ctx, w.l)
		}
		empty(t, c)
	})
}

func TestWhoGivesUpAtTheGateLeavesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New(membackend.New(), quiet())
		defer c.Close()
		for i := range 200 {
			l := c.Locker("x")
			l.Lock()
			ctx, cancel := context.WithCancel(t.Context())
			quitter := wait(ctx, l)
			var next *tenant
			if i%2 == 0 {
				next = wait(t.Context(), l)
			}
			cancel()
			l.Unlock()
			if err := <-quitter.in; err == nil {
				mustUnlock(t, t.Context(), l)
			} else if !errors.Is(err, context.Canceled) {
				t.Fatal(err)
			}
			if next != nil {
				next.mustBeIn(t)
				mustUnlock(t, t.Context(), l)
			}
			synctest.Wait()
			mustTry(t, c.Locker("y")) // and the client goes on
			if ok, err := l.TryLock(t.Context()); !ok || err != nil {
				t.Fatalf("round %d: nobody has the lock: TryLock = %v, %v", i, ok, err)
			}
			l.Unlock()
			c.Locker("y").ForceUnlock(t.Context())
			synctest.Wait()
			empty(t, c)
		}
	})
}

// Nobody can unlock a lock that was handed to a waiter which has not looked yet.
func TestUnlockOfWhatIsOffered(t *testing.T) {
	for name, ctx := range map[string]context.Context{
		"plain": t.Context(),
		"owner": WithOwner(t.Context(), NewOwner()),
	} {
		t.Run(name, func(t *testing.T) {
			c := New(membackend.New(), quiet(), WithHandover(time.Hour))
			defer c.Close()
			l := c.Locker("x")
			if err := l.LockContext(ctx); err != nil {
				t.Fatal(err)
			}
			a := &acquisition{client: c, call: call{
				name: "x", party: l.caller(ctx).party, o: acquireOptions{lease: c.lease},
			}}
			if a.variable() == nil {
				a.party = NewOwner() // the owner itself would re-enter
				ctx = WithOwner(ctx, a.party.(Owner))
			}
			a.wait()
			lineUp(a)
			h := heldOf(c, "x")
			if !h.handOn(c) {
				t.Fatal("the hold isn't handed on")
			}
			if err := l.UnlockContext(ctx); !errors.Is(err, ErrNotHeld) {
				t.Errorf("UnlockContext of what is offered = %v, want ErrNotHeld", err)
			}
			if _, err := take(ctx, a); err != nil {
				t.Fatal(err)
			}
			mustUnlock(t, ctx, l)
			empty(t, c)
		})
	}
}

// A reader that joins others as its call gives up doesn't have the lock, neither before the call
// returns nor while it is given back.
func TestAReadThatIsOfferedIsNotHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New(membackend.New(), quiet())
		defer c.Close()
		first, err := c.RWLocker("x").Reader().Acquire(t.Context())
		must(t, err)
		l := c.RWLocker("x").Reader()
		free := func(when string) {
			t.Helper()
			held, err := l.IsHeld(t.Context())
			must(t, err)
			n, err := l.HoldCount(t.Context())
			must(t, err)
			if held || n != 0 {
				t.Errorf("%s: IsHeld %v, HoldCount %d", when, held, n)
			}
			if all := c.Holds(); len(all) != 1 {
				t.Errorf("%s: Holds: %+v", when, all)
			}
		}
		for range 100 {
			a := &acquisition{client: c, call: call{
				kind: protocol.Kind(backend.Read), name: "x", party: party(l.plain),
				o: acquireOptions{lease: c.lease},
			}}
			a.wait()
			lineUp(a)
			c.mu.Lock()
			c.state.object(protocol.Kind(backend.Read), "x").mark(&c.state, markJoinable)
			c.unlock()
			free("before the call returns")
			over, cancel := context.WithCancel(t.Context())
			cancel()
			if _, err := take(over, a); !errors.Is(err, context.Canceled) {
				t.Fatal(err)
			}
			free("when the call has returned")
			synctest.Wait()
		}
		must(t, l.LockContext(t.Context())) // joins, and is there
		if n, err := l.HoldCount(t.Context()); n != 1 || err != nil {
			t.Errorf("HoldCount of what is held: %d, %v", n, err)
		}
		must(t, l.UnlockContext(t.Context()))
		must(t, first.Release(t.Context()))
		empty(t, c)
	})
}

// A chain that ends because nobody waits any more keeps nobody waiting.
func TestAfterAShortChainNobodyYields(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		store := newScript(membackend.New())
		c := New(store, quiet())
		defer c.Close()
		c.store.Notifier = deaf{}
		for _, pause := range []time.Duration{0, 2 * DefaultHandover} { // in time, and after it
			l := c.Locker("x")
			mustTry(t, l)
			w := wait(ctx, l)
			mustUnlock(t, ctx, l)
			w.mustBeIn(t)
			time.Sleep(pause)
			mustUnlock(t, ctx, l)
			next := wait(ctx, l)
			next.mustBeIn(t)
			mustUnlock(t, ctx, l)
		}
		// Nor does one that ends because the next call wants another lease.
		l := c.Locker("x")
		mustTry(t, l)
		w, fixed := wait(ctx, c.Locker("x")), wait(ctx, c.Locker("x"), FixedLease(time.Minute))
		mustUnlock(t, ctx, l)
		w.mustBeIn(t)
		mustUnlock(t, ctx, w.l)
		fixed.mustBeIn(t)
		mustUnlock(t, ctx, fixed.l)
		empty(t, c)
	})
}

// After a chain at the gate, too, the other clients have a turn first.
func TestASharedLockerLetsOthersHaveATurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		mem := membackend.New()
		slow := newScript(mem)
		slow.acquire.delay(3*time.Millisecond, 0)
		c, other := New(mem, quiet()), New(slow, quiet())
		defer c.Close()
		defer other.Close()
		c.store.Notifier = deaf{} // or it would be told at once, and win or not
		l := c.Locker("x")
		mustTry(t, l)
		a, b := wait(ctx, l), wait(ctx, l)
		foreigner := wait(ctx, other.Locker("x"))
		mustUnlock(t, ctx, l)
		a.mustBeIn(t)
		time.Sleep(DefaultHandover)
		mustUnlock(t, ctx, l)
		time.Sleep(4 * time.Millisecond)
		foreigner.mustBeIn(t)
		mustUnlock(t, ctx, foreigner.l)
		time.Sleep(DefaultLease)
		b.mustBeIn(t)
		mustUnlock(t, ctx, l)
	})
}

func TestCloseWithWaitersAtTheGate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for range 100 {
			c := New(membackend.New(), quiet())
			l := c.Locker("x")
			l.Lock()
			w := wait(t.Context(), l)
			var all sync.WaitGroup
			all.Go(func() { l.Unlock() })
			all.Go(func() { c.Close() })
			all.Wait()
			if err := <-w.in; err != nil && !errors.Is(err, ErrClosed) {
				t.Fatal(err)
			}
		}
	})
}

// That the store's session is closed, too, is no reason to say anything else.
func TestClosedWhileAsking(t *testing.T) {
	for name, lock := range map[string]func(*Locker) error{
		"TryLock": func(l *Locker) error {
			_, err := l.TryLock(t.Context())
			return err
		},
		"LockContext": func(l *Locker) error { return l.LockContext(t.Context()) },
	} {
		t.Run(name, func(t *testing.T) {
			store := newScript(membackend.New()).but(neverWaits)
			c := New(store, quiet())
			store.acquire.set(func(*acquireStep) { c.Close() })
			if err := lock(c.Locker("x")); !errors.Is(err, ErrClosed) {
				t.Errorf("%v, want ErrClosed", err)
			}
		})
	}
}
