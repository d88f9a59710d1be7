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
func hangingReleases(name string) func(s *anyStep) {
	return func(s *anyStep) {
		if s.op == "release" && (name == "" || name == s.name) {
			s.hangFor(time.Minute)
		}
	}
}

// A lock that was waited for is kept for the others for a second at most, though their store never
// answers.
func TestAllKeepsNothingForAStoreThatHangsAfterAWait(t *testing.T) {
	withAll(t, func(l *allLab) {
		if l.relay == nil {
			return
		}
		a := l.other.Locker("a")
		a.Lock()
		hang := make(chan struct{})
		l.relay.set(func(s *anyStep) {
			if s.name == "b" && s.op == "acquire" {
				select {
				case <-s.ctx.Done():
					s.fail(&backend.Error{Kind: backend.Unknown, Err: s.ctx.Err()})
					return
				case <-hang:
				}
			}
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
		l.relay.set(func(s *anyStep) {
			switch {
			case s.op != "acquire":
			case s.name == "b":
				time.Sleep(900 * time.Millisecond)
			case s.name == "c":
				s.hang()
			}
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
		r := newScript(membackend.New()).together(true)
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
		r := newScript(membackend.New()).together(true)
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

// A lock that can't be released in one request with the others isn't kept by them.
func TestAllReleasesAReaderBesideAReleaseThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := membackend.New()
		r := newScript(mem).together(true)
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
			t.Errorf("a second after the unlock of all, r, for which the store answers: %v, %v", is,
				err)
		}
		r.set(nil)
		time.Sleep(2 * time.Minute)
	})
}

// The same where a call gives back what it has got.
func TestAllGivesBackBesideAReleaseThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := membackend.New()
		r := newScript(mem).together(true)
		c, other := New(r, quiet()), New(mem, quiet())
		defer c.Close()
		defer other.Close()
		o := other.Locker("c")
		o.Lock()
		r.set(hangingReleases("b"))
		done := make(chan struct{})
		go func() {
			defer close(done)
			if ok, err := All(c.Locker("a"), c.Locker("b"), c.Locker("c"),
				c.RWLocker("r").Reader()).TryLock(t.Context()); ok {
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
			r := newScript(mem).together(!simple)
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
				t.Errorf("simple %v: UnlockContext with a context of 1 s took %v: %v", simple, took,
					err)
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
					t.Errorf("simple %v: LockContext with a %s of 1 s took %v: %v", simple, with,
						took, err)
				}
			}
			o.Unlock()
			r.set(nil)
			time.Sleep(2 * time.Minute)
		})
	}
}

// Waiters get ErrClosed soon, though the store hangs.
func TestAllCloseDuringARound(t *testing.T) {
	for _, simple := range []bool{true, false} {
		t.Run("", func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newScript(membackend.New()).together(!simple)
				c := New(r, quiet())
				r.set(func(s *anyStep) {
					if s.name == "b" || s.op == "release" {
						s.hangFor(time.Minute)
					}
				})
				done := make(chan error)
				go func() {
					done <- All(c.Locker("a"), c.Locker("b"), c.RWLocker("r").Reader()).
						LockContext(t.Context())
				}()
				time.Sleep(500 * time.Millisecond) // a and r are there, and b isn't
				began := time.Now()
				c.Close()
				closed := time.Since(began)
				err := <-done
				if took := time.Since(began); took > closePatience || !errors.Is(err, ErrClosed) {
					t.Errorf("Close took %v, and the call returned %v after it began: %v", closed,
						took, err)
				}
				time.Sleep(2 * time.Minute)
			})
		})
	}
}

// A store that hangs for one of the names keeps nobody from the others.
func TestAllWhereTheStoreHangsForOne(t *testing.T) {
	withAll(t, func(l *allLab) {
		if l.relay == nil {
			return
		}
		hang := func(s *anyStep) {
			if s.name == "b" {
				s.hangFor(5 * time.Second) // the store's client gives up
			}
		}
		l.relay.set(hang)
		began := time.Now()
		ok, err := l.all(abc...).TryLock(l.Context())
		if ok {
			l.Error("TryLock has got what the store didn't answer about")
		}
		l.wantErr("TryLock", err, "trylock", "b", ErrUnavailable)
		if took := time.Since(began); took > longestRound+time.Second {
			l.Errorf("it took %v", took)
		}
		l.wantHeld("after it", "")

		done := make(chan error)
		go func() {
			done <- l.all(abc...).Do(l.Context(), func(context.Context) error {
				l.wantHeld("at last", "abc")
				return nil
			})
		}()
		time.Sleep(longestRound + time.Second)
		for range 10 {
			l.wantHeld("while it hangs", "")
			time.Sleep(time.Second)
		}
		l.relay.set(nil)
		if err := <-done; err != nil {
			l.Error(err)
		}
		l.relay.set(hang)
		began = time.Now()
		l.wantErr("a wait", l.all(abc...).LockContext(l.Context(), Wait(5*time.Second)), "lock",
			"b", ErrNotAcquired, ErrUnavailable)
		if took := time.Since(began); took != 5*time.Second {
			l.Errorf("a wait of 5 s took %v", took)
		}
	})
}

// A step that hangs when another lock was refused isn't waited for: the rest is given back.
func TestAllGivesBackAtOnce(t *testing.T) {
	withAll(t, func(l *allLab) {
		if l.relay == nil {
			return
		}
		mustTry(l.T, l.other.Locker("a"))
		l.relay.set(func(s *anyStep) {
			if s.name == "b" {
				time.Sleep(10 * time.Second)
			}
		})
		go l.all(abc...).LockContext(l.Context(), Wait(time.Minute))
		time.Sleep(100 * time.Millisecond)
		l.wantHeld("a was refused, and b not answered", "a")
		time.Sleep(time.Minute)
		l.other.Locker("a").ForceUnlock(l.Context())
	})
}
