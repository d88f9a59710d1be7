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

// ForceUnlock tells a holder of this client whose answer is under way.
func TestForceUnlockTellsWhoIsJustBeingAnswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newScript(membackend.New())
		slow := make(chan struct{})
		b.acquire.set(func(s *acquireStep) {
			s.do()
			<-slow
		})
		b.look.set(func(s *lookStep) {
			if s.n == 1 {
				s.fail(errors.New("no answer")) // it asks again
			}
		})
		c := New(b, quiet())
		defer c.Close()
		l := c.Locker("x")
		w := wait(t.Context(), l, FixedLease(time.Hour))
		if ok, err := c.Locker("x").ForceUnlock(t.Context()); !ok || err != nil {
			t.Fatal(ok, err)
		}
		close(slow)
		if err := <-w.in; err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		select {
		case <-l.Lost(t.Context()):
		default:
			t.Error("a minute later the holder isn't told")
		}
		w.leave()
	})
}

// The hold that a ForceUnlock of this client may have struck is handed on while the store is asked
// about it: the next holder isn't told, and two believe in it until the next renewal.
func TestForceUnlockTellsWhoWasHandedTheLockMeanwhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		store := newScript(membackend.New())
		store.force.delay(time.Millisecond, time.Millisecond)
		store.look.delay(time.Millisecond, time.Millisecond)
		c, other := New(store, quiet()), New(store.Backend, quiet())
		defer c.Close()
		defer other.Close()
		forced := make(chan error, 1)
		go func() {
			_, err := c.Locker("x").ForceUnlock(ctx)
			forced <- err
		}()
		synctest.Wait()
		l := c.Locker("x")
		mustTry(t, l) // granted while the force is on its way
		w := wait(ctx, c.Locker("x"))
		if err := <-forced; err != nil {
			t.Fatal(err)
		}
		synctest.Wait() // the store is being asked
		mustUnlock(t, ctx, l)
		w.mustBeIn(t)
		lost := w.l.Lost(ctx)
		o := other.Locker("x")
		mustTry(t, o)
		time.Sleep(time.Second)
		select {
		case <-lost:
		default:
			t.Error("this client forced the lock, another client has it, and a second later its " +
				"holder here isn't told")
		}
	})
}

// The client is closed between the store's answer to a ForceUnlock and what that means to its own
// holders.
func TestForceUnlockOvertakenByClose(t *testing.T) {
	for name, side := range map[string]func(*Client) *Locker{
		"plain": func(c *Client) *Locker { return c.Locker("x") },
		"read":  func(c *Client) *Locker { return c.RWLocker("x").Reader() },
	} {
		t.Run(name, func(t *testing.T) {
			onScript(t, func(t *testing.T, b *script, c, other *Client) {
				l := side(c)
				mustTry(t, l)
				lost := l.Lost(t.Context())
				b.force.set(func(s *forceStep) {
					c.store.Steps = backend.StepsNeverWait // as if the answer had come just before
					s.do()
					c.Close()
				})
				c.store.Steps = backend.StepsNeverWait
				if ok, err := l.ForceUnlock(t.Context()); !ok || err != nil {
					t.Errorf("ForceUnlock = %v, %v", ok, err)
				}
				if !over(lost) {
					t.Error("whoever had it isn't told")
				}
				if err := l.UnlockContext(t.Context()); !errors.Is(err, ErrLost) {
					t.Errorf("UnlockContext = %v, want ErrLost", err)
				}
			})
		})
	}
}

// ForceUnlock strikes a hold of this client that was granted while it was under way.
func TestForceUnlockTellsAHoldGrantedMeanwhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newScript(membackend.New())
		store.force.delay(time.Second, 0)
		c := New(store, quiet())
		defer c.Close()
		l := c.Locker("x")
		done := make(chan struct{})
		go func() { c.Locker("x").ForceUnlock(context.Background()); close(done) }()
		synctest.Wait()
		mustTry(t, l)
		<-done
		time.Sleep(time.Millisecond) // it asks the store
		select {
		case <-l.Lost(t.Context()):
		default:
			t.Error("the holder is this client's, and isn't told at once")
		}
	})
}

func TestForceUnlockStrikesWhoWasHandedTheLockMeanwhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		store := newScript(membackend.New())
		store.force.delay(time.Second, 0)
		c := New(store, quiet())
		defer c.Close()
		l := c.Locker("x")
		mustTry(t, l)
		w := wait(ctx, c.Locker("x"))
		forced := make(chan error, 1)
		go func() {
			_, err := c.Locker("x").ForceUnlock(ctx)
			forced <- err
		}()
		synctest.Wait()
		mustUnlock(t, ctx, l)
		w.mustBeIn(t)
		if err := <-forced; err != nil {
			t.Fatal(err)
		}
		select {
		case <-w.l.Lost(ctx):
		default:
			t.Error("who was handed a lock that was forced isn't told")
		}
		w.leave()
	})
}
