package dlock

import (
	"context"
	"errors"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed951563bd/distsync/membackend"
)

// tryer is what has a TryDo.
type tryer interface {
	TryDo(ctx context.Context, fn func(context.Context) error, opts ...AcquireOption) (bool, error)
}

// tries runs a test for a Locker and for several together, while another client has the lock or
// hasn't.
func tries(t *testing.T, test func(t *testing.T, c *Client, l tryer, theirs *Locker)) {
	for name, of := range map[string]func(c *Client) tryer{
		"Locker":      func(c *Client) tryer { return c.Locker("x") },
		"MultiLocker": func(c *Client) tryer { return All(c.Locker("a"), c.Locker("x")) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := membackend.New()
				c, other := New(store, quiet()), New(store, quiet())
				defer other.Close()
				defer c.Close()
				test(t, c, of(c), other.Locker("x"))
				empty(t, c)
			})
		})
	}
}

func TestTryDo(t *testing.T) {
	tries(t, func(t *testing.T, c *Client, l tryer, theirs *Locker) {
		want := func(
			ctx context.Context, fn func(context.Context) error, ran bool, want error,
			opts ...AcquireOption,
		) {
			t.Helper()
			if did, err := l.TryDo(ctx, fn, opts...); did != ran || !errors.Is(err, want) ||
				want == nil && err != nil {
				t.Errorf("TryDo = %v, %v; want %v, %v", did, err, ran, want)
			}
		}
		broken := errors.New("broken")
		want(t.Context(), func(ctx context.Context) error {
			if ok, err := theirs.TryLock(ctx); ok || err != nil {
				t.Errorf("another's TryLock meanwhile: %v, %v", ok, err)
			}
			return nil
		}, true, nil)
		want(t.Context(), func(context.Context) error { return broken }, true, broken)
		want(t.Context(), func(context.Context) error {
			_, err := c.Locker("x").ForceUnlock(t.Context())
			return err
		}, true, ErrLost)
		want(t.Context(), func(ctx context.Context) error { // a lock in it that is held
			return c.Locker("x").LockContext(t.Context(), Wait(0))
		}, true, ErrHeld)
		want(t.Context(), nil, false, errNoFunction)
		did, err := l.TryDo(t.Context(), succeed, Wait(-1))
		if e, ok := errors.AsType[*Error](err); did || !ok || e.Op != "trydo" {
			t.Errorf("TryDo with a negative Wait = %v, %v; want an Error of trydo", did, err)
		}

		theirs.Lock()
		never := func(context.Context) error { t.Error("fn was called"); return nil }
		want(t.Context(), never, false, nil)
		began := time.Now()
		want(t.Context(), never, false, nil, Wait(time.Second))
		if waited := time.Since(began); waited != time.Second {
			t.Errorf("with a Wait of a second it waited for %v", waited)
		}
		over, cancel := context.WithCancel(t.Context())
		cancel()
		want(over, never, false, context.Canceled)
		time.AfterFunc(time.Second, theirs.Unlock)
		want(t.Context(), succeed, true, nil, Wait(time.Minute))
	})
}

func TestTryDoWhatEndsItsGoroutine(t *testing.T) {
	tries(t, func(t *testing.T, _ *Client, l tryer, theirs *Locker) {
		done := make(chan struct{})
		go func() {
			defer close(done)
			l.TryDo(t.Context(), func(context.Context) error { runtime.Goexit(); return nil })
		}()
		<-done
		if ok, err := theirs.TryLock(t.Context()); !ok || err != nil {
			t.Errorf("TryLock afterwards: %v, %v", ok, err)
		}
		theirs.Unlock()
	})
}
