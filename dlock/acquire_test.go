package dlock

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/membackend"
)

// answering returns a store whose answers to acquisitions the function changes.
func answering(change func(*backend.AcquireResult)) backend.Backend {
	store := newScript(membackend.New())
	store.acquire.set(func(s *acquireStep) {
		s.do()
		change(&s.res)
	})
	return store
}

// An answer that comes when its lease is over is no lock: the store is asked again.
func TestAnAnswerThatIsLaterThanItsLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow := true
		c := New(answering(func(*backend.AcquireResult) {
			if slow {
				slow = false
				time.Sleep(900 * time.Millisecond) // a step is waited for a second at least
			}
		}), quiet())
		defer c.Close()
		h, err := c.Locker("x").Acquire(t.Context(), FixedLease(800*time.Millisecond))
		must(t, err)
		must(t, h.Err())
		must(t, h.Release(t.Context()))
		time.Sleep(time.Minute) // until nothing is taken back any more
	})
}

// A store that grants a fenced lock without a token has granted nothing to rely on.
func TestAFencedLockWithoutAToken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New(answering(func(res *backend.AcquireResult) { res.Token = 0 }), quiet())
		defer c.Close()
		ok, err := c.FencedLocker("x").TryLock(t.Context())
		if ok || !errors.Is(err, errNoToken) {
			t.Errorf("%v, %v", ok, err)
		}
		time.Sleep(time.Minute)
		empty(t, c)
	})
}
