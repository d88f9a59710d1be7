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

// hangingReleases has the release of a lock hang, or, without a name, all.
func hangingReleases(names string) func(ctx context.Context, op, name string, do func()) error {
	return func(ctx context.Context, op, name string, do func()) error {
		if op == "release" && (names == "" || names == name) {
			select {
			case <-ctx.Done():
			case <-time.After(time.Minute):
			}
			return &backend.Error{Kind: backend.Unknown, Err: errors.New("timeout")}
		}
		do()
		return nil
	}
}

// What was waited for is kept for the others for a second at most, though their store never answers.
func TestAllKeepsNothingForAStoreThatHangsAfterAWait(t *testing.T) {
	withAll(t, func(l *allLab) {
		if l.relay == nil {
			return
		}
		a := l.other.Locker("a")
		a.Lock()
		hang := make(chan struct{})
		l.relay.set(func(ctx context.Context, op, name string, do func()) error {
			if name == "b" && op == "acquire" {
				select {
				case <-ctx.Done():
					return &backend.Error{Kind: backend.Unknown, Err: ctx.Err()}
				case <-hang:
				}
			}
			do()
			return nil
		})
		ctx, cancel := context.WithCancel(l.Context())
		done := make(chan error)
		go func() { done <- l.all("a", "b").LockContext(ctx) }()
		time.Sleep(3 * time.Second)
		a.Unlock()
		time.Sleep(time.Second)
		// From here on somebody else wants a: it should be had within a second or so.
		began := time.Now()
		err := a.LockContext(l.Context(), Wait(20*time.Second))
		if took := time.Since(began); err != nil || took > 2*time.Second {
			l.Errorf("a was kept for b, whose store hangs: %v after %v", err, took)
		}
		if err == nil {
			a.Unlock()
		}
		cancel()
		<-done
		close(hang)
	})
}

// That second isn't prolonged by a refusal that comes late.
func TestAllALateRefusal(t *testing.T) {
	withAll(t, func(l *allLab) {
		if l.relay == nil {
			return
		}
		b := l.other.Locker("b")
		b.Lock()
		l.relay.set(func(ctx context.Context, op, name string, do func()) error {
			switch {
			case op != "acquire":
			case name == "b":
				time.Sleep(900 * time.Millisecond)
			case name == "c":
				<-ctx.Done()
				return &backend.Error{Kind: backend.Unknown, Err: ctx.Err()}
			}
			do()
			return nil
		})
		began := time.Now()
		done := make(chan error)
		go func() { _, err := l.all(abc...).TryLock(l.Context()); done <- err }()
		time.Sleep(1200 * time.Millisecond)
		held := l.holds()
		<-done
		if held != "b" {
			l.Errorf("after 1.2 s %q are held; TryLock took %v", held, time.Since(began))
		}
		b.Unlock()
		l.relay.set(nil)
	})
}

// An unlock of several locks takes no longer than one of a single lock, though all releases hang.
func TestAllUnlockInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &relay{Backend: membackend.New()}
		c := New(r, quiet())
		defer c.Close()
		rw := c.RWLocker("r")
		m := All(c.Locker("a"), c.Locker("b"), c.Locker("c"), rw.Reader())
		m.Lock()
		done := make(chan error)
		go func() { done <- c.Locker("a").LockContext(t.Context()) }()
		synctest.Wait() // it waits, and is to be handed the lock
		r.set(hangingReleases(""))
		began := time.Now()
		err := m.UnlockContext(context.Background())
		if took := time.Since(began); took > longestRelease {
			t.Errorf("the unlock took %v: %v", took, err)
		}
		r.set(nil)
		<-done
	})
}

// A lock for which somebody waits here is handed on, though the release of another hangs.
func TestAllHandsOnBesideAReleaseThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &relay{Backend: membackend.New()}
		c := New(r, quiet())
		defer c.Close()
		m := All(c.Locker("a"), c.Locker("b"))
		m.Lock()
		done := make(chan error)
		began := time.Now()
		go func() { done <- c.Locker("a").LockContext(t.Context()) }()
		synctest.Wait()
		r.set(hangingReleases("b"))
		go m.UnlockContext(context.Background())
		if err := <-done; err != nil || time.Since(began) > time.Second {
			t.Errorf("a was had %v after its unlock: %v", time.Since(began), err)
		}
		r.set(nil)
		time.Sleep(2 * time.Minute)
	})
}

// What can't be released in one request with the others isn't kept by them.
func TestAllReleasesAReaderBesideAReleaseThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := membackend.New()
		r := &relay{Backend: mem}
		c, other := New(r, quiet()), New(mem, quiet())
		defer c.Close()
		defer other.Close()
		m := All(c.Locker("a"), c.Locker("b"), c.RWLocker("r").Reader())
		m.Lock()
		time.Sleep(time.Second)
		r.set(hangingReleases("b"))
		go m.UnlockContext(context.Background())
		time.Sleep(time.Second)
		if is, err := other.Locker("a").IsLocked(t.Context()); is || err != nil {
			t.Errorf("a: %v, %v", is, err)
		}
		if is, err := other.RWLocker("r").Reader().IsLocked(t.Context()); is || err != nil {
			t.Errorf("a second after the unlock of all, r, for which the store answers: %v, %v", is, err)
		}
		r.set(nil)
		time.Sleep(2 * time.Minute)
	})
}

// The same where a call gives back what it has got.
func TestAllGivesBackBesideAReleaseThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := membackend.New()
		r := &relay{Backend: mem}
		c, other := New(r, quiet()), New(mem, quiet())
		defer c.Close()
		defer other.Close()
		o := other.Locker("c")
		o.Lock()
		r.set(hangingReleases("b"))
		done := make(chan struct{})
		go func() {
			defer close(done)
			if ok, err := All(c.Locker("a"), c.Locker("b"), c.Locker("c"), c.RWLocker("r").Reader()).TryLock(t.Context()); ok {
				t.Errorf("it has what another holds: %v", err)
			}
		}()
		time.Sleep(2 * time.Second)
		if ok, err := other.RWLocker("r").Writer().TryLock(t.Context()); !ok || err != nil {
			t.Errorf("2 s after a TryLock that was refused began, r can't be had: %v, %v", ok, err)
		}
		<-done
		o.Unlock()
		r.set(nil)
		time.Sleep(2 * time.Minute)
	})
}

// Calls return when their context ends, also where they give back, and all releases hang.
func TestAllGivesBackUntilTheContextEnds(t *testing.T) {
	for _, simple := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			mem := membackend.New()
			r := &relay{Backend: mem, simple: simple}
			c, other := New(r, quiet()), New(mem, quiet())
			defer c.Close()
			defer other.Close()
			m := All(c.Locker("a"), c.Locker("b"), c.Locker("c"), c.RWLocker("r").Reader())

			m.Lock()
			next := make(chan error)
			go func() { next <- c.Locker("a").LockContext(t.Context()) }()
			synctest.Wait()
			r.set(hangingReleases(""))
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			began := time.Now()
			err := m.UnlockContext(ctx)
			if took := time.Since(began); took > time.Second {
				t.Errorf("simple %v: UnlockContext with a context of 1 s took %v: %v", simple, took, err)
			}
			r.set(nil)
			<-next
			time.Sleep(2 * time.Minute)
			c.Locker("a").ForceUnlock(t.Context())
			time.Sleep(2 * time.Minute)

			o := other.Locker("c")
			o.Lock()
			r.set(hangingReleases(""))
			for _, with := range []string{"ctx", "Wait"} {
				ctx, opts := t.Context(), []AcquireOption{Wait(time.Second)}
				if with == "ctx" {
					var cancel func()
					ctx, cancel = context.WithTimeout(ctx, time.Second)
					defer cancel()
					opts = nil
				}
				began := time.Now()
				err = m.LockContext(ctx, opts...)
				if took := time.Since(began); took > time.Second {
					t.Errorf("simple %v: LockContext with a %s of 1 s took %v: %v", simple, with, took, err)
				}
			}
			o.Unlock()
			r.set(nil)
			time.Sleep(2 * time.Minute)
		})
	}
}

// What a wait begins with is old when it ends: the Locker was unlocked meanwhile, and another has the lock.
func TestAllForgetsThatALockerWasNotUnlocked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := membackend.New()
		c, other := New(mem, quiet()), New(mem, quiet())
		defer c.Close()
		defer other.Close()
		run := func(try func(l *Locker) (bool, error)) {
			l := c.Locker("a")
			l.Lock()
			if _, err := other.Locker("a").ForceUnlock(t.Context()); err != nil {
				t.Fatal(err)
			}
			o := other.Locker("a")
			o.Lock()
			time.Sleep(DefaultLease) // it is found to be lost
			// somebody of this client waits before, and leads
			first := make(chan error)
			go func() { first <- c.Locker("a").LockContext(t.Context(), Wait(5*time.Minute)) }()
			time.Sleep(time.Second)
			type res struct {
				ok  bool
				err error
			}
			done := make(chan res)
			go func() { ok, err := try(l); done <- res{ok, err} }()
			time.Sleep(time.Second)
			if err := l.UnlockContext(t.Context()); !errors.Is(err, ErrLost) {
				t.Fatal(err)
			}
			r := <-done
			if r.ok || r.err != nil {
				t.Errorf("TryLock: %v, %v; another has the lock, and the Locker was unlocked a minute ago", r.ok, r.err)
			}
			o.Unlock()
			<-first
			c.Locker("a").ForceUnlock(t.Context())
			time.Sleep(time.Second)
		}
		run(func(l *Locker) (bool, error) { return l.TryLock(t.Context(), Wait(time.Minute)) })
		run(func(l *Locker) (bool, error) { return All(l, c.Locker("b")).TryLock(t.Context(), Wait(time.Minute)) })
	})
}

// The same of a failure, where the store has said since then that another has the lock.
func TestAllForgetsAFailureOfBefore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, multi := range []bool{false, true} {
			mem := membackend.New()
			r := &relay{Backend: mem}
			c, other := New(r, quiet()), New(mem, quiet())
			o := other.Locker("a")
			o.Lock()
			first := make(chan error)
			go func() { first <- c.Locker("a").LockContext(t.Context(), Wait(5*time.Minute)) }()
			time.Sleep(time.Second)
			failed := false
			r.set(func(ctx context.Context, op, name string, do func()) error {
				if op == "acquire" && name == "a" && !failed {
					failed = true
					return &backend.Error{Kind: backend.Retry, Err: errors.New("once")}
				}
				do()
				return nil
			})
			var ok bool
			var err error
			if multi {
				ok, err = All(c.Locker("a"), c.Locker("b")).TryLock(t.Context(), Wait(time.Minute))
			} else {
				ok, err = c.Locker("a").TryLock(t.Context(), Wait(time.Minute))
			}
			if ok || err != nil {
				t.Errorf("multi %v: after a minute in which the store says that another has it: %v, %v", multi, ok, err)
			}
			o.Unlock()
			<-first
			c.Close()
			other.Close()
			r.set(nil)
		}
	})
}

// The context ends just when a round has been cut short: the error says so, and nothing of a wait.
func TestAllContextEndsAsARoundIsCut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &relay{Backend: membackend.New(), simple: true}
		ctx, cancel := context.WithCancel(t.Context())
		c := New(r, quiet(), WithTrace(&Trace{AcquireDone: func(_ context.Context, e AcquireDone) {
			if e.Outcome != OutcomeAcquired {
				cancel() // something else was tired of it, just now
			}
		}}))
		defer c.Close()
		r.set(func(ctx context.Context, op, name string, do func()) error {
			if op == "acquire" && name == "b" {
				<-ctx.Done()
				return &backend.Error{Kind: backend.Unknown, Err: ctx.Err()}
			}
			do()
			return nil
		})
		err := All(c.Locker("a"), c.Locker("b")).LockContext(ctx)
		if !errors.Is(err, context.Canceled) || errors.Is(err, ErrNotAcquired) {
			t.Errorf("%v; the context was canceled, and there was no wait", err)
		}
		r.set(nil)
	})
}

// Lost is final: Err of a Hold of several locks says so after its Release, too.
func TestAllHoldStaysLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := membackend.New()
		c, other := New(mem, quiet()), New(mem, quiet())
		defer c.Close()
		defer other.Close()
		single, err := c.Locker("x").Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		h, err := All(c.Locker("a"), c.Locker("b")).Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		other.Locker("b").ForceUnlock(t.Context())
		other.Locker("x").ForceUnlock(t.Context())
		time.Sleep(DefaultLease)
		if !errors.Is(h.Err(), ErrLost) || !errors.Is(single.Err(), ErrLost) {
			t.Fatal(h.Err(), single.Err())
		}
		h.Release(t.Context())
		single.Release(t.Context())
		if err := single.Err(); !errors.Is(err, ErrLost) {
			t.Errorf("single: after the Release Err is %v", err)
		}
		if err := h.Err(); !errors.Is(err, ErrLost) {
			t.Errorf("several: after the Release Err is %v", err)
		}
	})
}

// Whoever waits gets ErrClosed soon, though the store hangs.
func TestAllCloseDuringARound(t *testing.T) {
	for _, simple := range []bool{true, false} {
		t.Run("", func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := &relay{Backend: membackend.New(), simple: simple}
				c := New(r, quiet())
				r.set(func(ctx context.Context, op, name string, do func()) error {
					if name == "b" || op == "release" {
						select {
						case <-ctx.Done():
						case <-time.After(time.Minute):
						}
						return &backend.Error{Kind: backend.Unknown, Err: errors.New("timeout")}
					}
					do()
					return nil
				})
				done := make(chan error)
				go func() {
					done <- All(c.Locker("a"), c.Locker("b"), c.RWLocker("r").Reader()).LockContext(t.Context())
				}()
				time.Sleep(500 * time.Millisecond) // a and r are there, and b isn't
				began := time.Now()
				c.Close()
				closed := time.Since(began)
				err := <-done
				if took := time.Since(began); took > closePatience || !errors.Is(err, ErrClosed) {
					t.Errorf("Close took %v, and the call returned %v after it began: %v", closed, took, err)
				}
				time.Sleep(2 * time.Minute)
			})
		})
	}
}
