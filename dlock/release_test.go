package dlock

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed951563bd/distsync/membackend"
)

// A hold that was given back before the waiter that was handed it looks rests on a claim that may
// be another's by then.
func TestTakingWhatWasGivenBackLeavesTheClaimAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := membackend.New()
		c, other := New(store, quiet()), New(store, quiet())
		defer c.Close()
		defer other.Close()
		l := c.Locker("x")
		mustTry(t, l)
		heir := &acquisition{client: c, call: call{
			name: "x", party: NewOwner(), o: acquireOptions{lease: c.lease},
		}}
		heir.wait()
		lineUp(heir)
		victim := wait(t.Context(), c.Locker("x"))
		mustUnlock(t, t.Context(), l) // hands on to the heir ...
		if !heir.handed.handOn(c) {   // ... who gives it back, in another goroutine
			t.Fatal("not handed on")
		}
		victim.mustBeIn(t)
		if h, err := take(t.Context(), heir); err != errAgain {
			t.Errorf("taking what was given back: %v, %v", h, err)
		}
		time.Sleep(3 * DefaultLease)
		if ok, err := other.Locker("x").TryLock(t.Context()); ok || err != nil {
			t.Errorf("TryLock of another client, while the victim has it: %v, %v", ok, err)
		}
		if held, err := victim.l.IsHeld(t.Context()); !held || err != nil {
			t.Errorf("the victim's IsHeld = %v, %v", held, err)
		}
		victim.leave()
	})
}

// An unlock of what an owner has lost is not one of what its other goroutine is just being handed.
func TestALateUnlockIsNotOneOfWhatIsBeingHandedOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New(membackend.New(), quiet())
		defer c.Close()
		owner := WithOwner(t.Context(), NewOwner())
		late := c.Locker("x")
		if err := late.LockContext(owner, FixedLease(time.Second)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Second)
		l := c.Locker("x")
		mustTry(t, l)
		a := &acquisition{client: c, call: call{
			name: "x", party: late.caller(owner).party, o: acquireOptions{lease: c.lease},
		}}
		a.wait()
		lineUp(a)
		mustUnlock(t, t.Context(), l)
		if err := late.UnlockContext(owner); !errors.Is(err, ErrLost) {
			t.Errorf("the unlock of what was lost: %v", err)
		}
		if h, err := take(owner, a); h == nil || err != nil {
			t.Errorf("what it was handed: %v, %v", h, err)
		}
		mustUnlock(t, owner, late)
	})
}

// A hold that is given back between the two halves of a Do has a context that is over.
func TestTheContextOfWhatWasGivenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New(membackend.New(), quiet())
		defer c.Close()
		o := NewOwner()
		l := c.Locker("x")
		h, err := l.acquire(t.Context(), caller{party: o}, acquireOptions{}, nil) // Do's first half
		if err != nil {
			t.Fatal(err)
		}
		mustUnlock(t, WithOwner(t.Context(), o), l) // another goroutine of the owner
		ctx := h.inside(t.Context(), c)             // Do's second half
		defer ctx.end()
		if ctx.Err() == nil || !errors.Is(context.Cause(ctx), ErrNotHeld) {
			t.Errorf("Err() = %v, cause %v", ctx.Err(), context.Cause(ctx))
		}
	})
}

// A program that pairs its calls doesn't panic because its losses are too many, or too long ago.
func TestUnlockOfWhatWasLostDoesNotPanic(t *testing.T) {
	for name, test := range map[string]struct {
		locks int
		after time.Duration
	}{
		"long ago": {1, 2 * lossMemory * DefaultLease},
		"many":     {2 * maxLosses, DefaultLease},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := membackend.New()
				c, other := New(store, quiet()), New(store, quiet())
				defer c.Close()
				defer other.Close()
				var all sync.WaitGroup
				for i := range test.locks {
					all.Go(func() {
						l := c.Locker(fmt.Sprint(i)).For(NewOwner())
						l.Lock()
						other.Locker(fmt.Sprint(i)).ForceUnlock(t.Context())
						time.Sleep(test.after)
						l.Unlock()
					})
				}
				all.Wait()
			})
		})
	}
}

// The error of an unlock after a panic is logged, since no caller gets it.
func TestAnUnlockAfterAPanicIsLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var text strings.Builder
		c := New(membackend.New(), WithLogger(slog.New(slog.NewTextHandler(&text, nil))))
		l := c.Locker("x")
		func() {
			defer func() { recover() }()
			l.Do(t.Context(), func(ctx context.Context) error {
				l.ForceUnlock(ctx)
				panic("fn")
			})
		}()
		c.Close()
		if !strings.Contains(text.String(), "after a panic") {
			t.Errorf("logged: %s", text.String())
		}
	})
}

// An unlock by another Locker than the one that locked says so.
func TestUnlockByAnotherLocker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New(membackend.New(), quiet())
		defer c.Close()
		mustTry(t, c.Locker("x"))
		err := c.Locker("x").UnlockContext(t.Context())
		if !errors.Is(err, ErrNotHeld) ||
			!strings.Contains(err.Error(), "another Locker of this client has it") {
			t.Errorf("%v", err)
		}
		err = c.Locker("y").UnlockContext(t.Context())
		if !errors.Is(err, ErrNotHeld) || strings.Contains(err.Error(), "another") {
			t.Errorf("%v", err)
		}
		l := c.Locker("z")
		if err := l.LockContext(WithOwner(t.Context(), NewOwner())); err != nil {
			t.Fatal(err)
		}
		err = l.UnlockContext(t.Context())
		if !errors.Is(err, ErrNotHeld) ||
			!strings.Contains(err.Error(), "unlock with the context that locked it") {
			t.Errorf("%v", err)
		}
	})
}

// Within a Do, the unlock of a re-entry doesn't look at the end of its context.
func TestUnlockOfAReentryTakesAsLongAsItsContextAllows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newScript(membackend.New())
		var hang atomic.Bool
		b.release.set(func(s *releaseStep) {
			if hang.Load() {
				s.hang()
			}
		})
		c := New(b, quiet())
		defer c.Close()
		l := c.Locker("x")
		l.Do(t.Context(), func(ctx context.Context) error {
			if err := l.LockContext(ctx); err != nil {
				t.Fatal(err)
			}
			hang.Store(true)
			soon, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
			defer cancel()
			began := time.Now()
			l.UnlockContext(soon)
			if took := time.Since(began); took > 100*time.Millisecond {
				t.Errorf("an unlock whose context allows 100ms took %v", took)
			}
			hang.Store(false)
			return nil
		})
	})
}

// Unlocks that may not take as long as others don't share a context with them, nor replace the one
// that these share.
func TestPatience(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newScript(membackend.New())
		c := New(store, quiet())
		defer c.Close()
		var sent context.Context
		store.release.set(func(s *releaseStep) { sent = s.ctx })
		unlock := func(opts ...AcquireOption) context.Context {
			l := c.Locker("x")
			mustTry(t, l, opts...)
			l.Unlock()
			return sent
		}
		first := unlock()
		for range 10 {
			if p := unlock(FixedLease(2 * time.Second)); p == first {
				t.Fatal("an unlock with a short lease may take as long as others")
			}
			if p := unlock(); p != first {
				t.Fatal("unlocks at the same time don't share their context")
			}
		}
		time.Sleep(longestRelease)
		synctest.Wait()
		if cause := context.Cause(first); cause != errUnanswered {
			t.Errorf("the context of old unlocks: %v", cause)
		}
		if p := unlock(); p == first {
			t.Error("an unlock has a context that is over")
		}
	})
}

// A process may wake up when a lease is over and no timer of its own has run yet.
func TestUnlockLooksAtTheClock(t *testing.T) {
	onBench(t, func(*script) {}, func(b *bench) {
		l := b.client.Locker("x")
		for range 500 {
			b.must(l.LockContext(b.Context(), FixedLease(time.Second)))
			time.Sleep(990 * time.Millisecond) // until the very moment
			if err := l.UnlockContext(b.Context()); !errors.Is(err, ErrLost) {
				b.Fatalf("an unlock when the lease is over: %v", err)
			}
			synctest.Wait()
		}
	})
}
