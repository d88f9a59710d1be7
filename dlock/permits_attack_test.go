package dlock

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/membackend"
)

// asked is an error that does something when it is looked at for the second time.
type asked struct {
	n    *atomic.Int32
	then func()
}

func (e asked) Error() string { return "no" }

func (e asked) As(any) bool {
	if e.n.Add(1) == 2 {
		e.then()
	}
	return false
}

// Who is handed permits as the store refuses him has them, and nobody loses them.
func TestPermitsAreHandedToWhoIsJustRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &hooked{Backend: membackend.New()}
		c := New(b, quiet(), WithHandover(time.Hour))
		defer c.Close()
		s := c.Semaphore("x", 2)
		h := mustAcquire(t, s, 1)
		var n atomic.Int32
		b.mu.Lock()
		b.acquire = func(context.Context, backend.AcquireRequest, func(context.Context) (backend.AcquireResult, error)) (backend.AcquireResult, error) {
			return backend.AcquireResult{}, both(asked{&n, func() { mustRelease(t, h) }}, &backend.Error{Kind: backend.Refused, Err: errMood})
		}
		b.mu.Unlock()
		got, err := s.Acquire(t.Context(), 1)
		if err != nil {
			t.Error(err)
		} else {
			mustRelease(t, got)
		}
		synctest.Wait()
		wantAvailable(t, s, 2)
		time.Sleep(2 * DefaultLease)
		empty(t, c)
	})
}

// Who comes first after one who was refused, and was to look again in a moment, looks again in a moment, too.
func TestWhoFollowsOneWhoLetsOthersComeFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := membackend.New()
		c, other, third := New(store, quiet()), New(store, quiet()), New(store, quiet())
		defer c.Close()
		defer other.Close()
		defer third.Close()
		kept := mustAcquire(t, third.Semaphore("x", 2), 1)
		s := c.Semaphore("x", 2)
		h := mustAcquire(t, s, 1)
		in := started(t.Context(), s, 1)
		mustRelease(t, h)
		h = <-in // it was handed on, so that its release asks who waits
		large := started(t.Context(), other.Semaphore("x", 2), 2)
		ctx, cancel := context.WithCancel(t.Context())
		quitter := started(ctx, s, 1)
		time.Sleep(DefaultHandover)
		follows := started(t.Context(), s, 1)
		mustRelease(t, h)
		cancel()
		<-quitter
		began := time.Now()
		h = <-follows
		if took := time.Since(began); took > 100*time.Millisecond {
			t.Errorf("it got in after %v", took)
		}
		mustRelease(t, h)
		mustRelease(t, kept)
		mustRelease(t, <-large)
	})
}

// Who is handed permits before his attempt is sent needn't wait for a store that hangs.
func TestPermitsAreHandedToWhoIsAboutToAsk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &heldBackend{Backend: membackend.New(), hang: make(chan struct{})}
		b.n.Store(1) // all attempts hang
		c := New(b, quiet())
		defer c.Close()
		defer close(b.hang)
		a := c.newAcquisition()
		a.call = call{kind: backend.Permits, name: "x", party: nobody, o: acquireOptions{lease: time.Minute, permits: 1, limit: 1}}
		if !c.enqueue(a) || c.turn(a) != toTry {
			t.Fatal("it doesn't try")
		}
		h := newHold(nobody, backend.Permits, a.h.claim)
		c.mu.Lock()
		c.dequeueLocked(a)
		c.handLocked(a, h)
		c.mu.Unlock()
		done := make(chan struct{})
		go func() { c.attemptUntilJoined(t.Context(), a); close(done) }()
		select {
		case <-done:
		case <-time.After(time.Second):
			t.Error("it waits for the store")
		}
	})
}
