package dlock

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed951563bd/distsync/membackend"
)

// A stubborn context takes its time, from some moment on, when it is asked for a value.
type stubborn struct {
	context.Context
	from atomic.Bool
	goOn chan struct{}
}

func (s *stubborn) Value(key any) any {
	if s.from.Load() {
		<-s.goOn
	}
	return s.Context.Value(key)
}

// The context of one caller hangs when what comes from it is over. All others hear of their losses,
// and Close returns.
func TestAContextThatHangs(t *testing.T) {
	for name, test := range map[string]struct {
		end      func(c *Client)
		acquired func(ctx context.Context, c *Client) (*Hold, error)
	}{
		"a loss": {
			end: func(*Client) { time.Sleep(time.Second) },
			acquired: func(ctx context.Context, c *Client) (*Hold, error) {
				return c.Locker("a").Acquire(ctx, FixedLease(time.Second))
			},
		},
		"a loss of several": {
			end: func(*Client) { time.Sleep(time.Second) },
			acquired: func(ctx context.Context, c *Client) (*Hold, error) {
				return All(lockers(c, "a", "A")...).Acquire(ctx, FixedLease(time.Second))
			},
		},
		"the end of the client": {
			end: func(c *Client) { c.Close() },
			acquired: func(ctx context.Context, c *Client) (*Hold, error) {
				return c.Locker("a").Acquire(ctx)
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := New(membackend.New(), quiet())
				s := &stubborn{Context: t.Context(), goOn: make(chan struct{})}
				first, err := test.acquired(s, c)
				must(t, err)
				contexts, lost := []context.Context{first.Context()}, first.Lost()
				for i := range 5 {
					h, err := c.Locker(fmt.Sprint(i)).Acquire(t.Context(), FixedLease(time.Second))
					must(t, err)
					contexts = append(contexts, h.Context())
				}
				s.from.Store(true)
				began := time.Now()
				test.end(c)
				if took := time.Since(began); took > closePatience {
					t.Errorf("it takes %v", took)
				}
				select {
				case <-lost:
				default:
					t.Error("the channel of whose context hangs is open")
				}
				for i, ctx := range contexts {
					select {
					case <-ctx.Done():
					default:
						t.Errorf("context %d goes on", i)
					}
				}
				close(s.goOn)
				c.Close()
			})
		})
	}
}

// The context of a call hangs as its attempt is left, since its owner got in by another call. That
// one doesn't wait for it.
func TestAContextThatHangsInAnAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newScript(membackend.New())
		b.acquire.hang()
		c, owner := New(b, quiet()), NewOwner()
		s := &stubborn{Context: t.Context(), goOn: make(chan struct{})}
		left := make(chan error)
		go func() { left <- c.Locker("x").LockContext(WithOwner(s, owner)) }()
		synctest.Wait()
		b.acquire.set(nil)
		s.from.Store(true)
		tried := make(chan struct{})
		go func() {
			defer close(tried)
			if ok, err := c.Locker("x").TryLock(WithOwner(t.Context(), owner)); !ok || err != nil {
				t.Errorf("TryLock = %v, %v", ok, err)
			}
		}()
		select {
		case <-tried:
		case <-time.After(time.Minute):
			t.Error("TryLock waits for the context of another call")
		}
		close(s.goOn)
		must(t, <-left)
		<-tried
		c.Close()
	})
}

// ErrHeld comes back as a cause.
func TestCauseOfTheCallersContextIsNotOurs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New(membackend.New(), quiet())
		defer c.Close()
		mustTry(t, c.Locker("x"))
		err := c.Locker("x").LockContext(t.Context(), Wait(time.Second)) // ErrNotAcquired
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(err) // as errgroup does
		if ok, err := c.Locker("free").TryLock(ctx); err == nil {
			t.Errorf("TryLock of a free lock with a cancelled context = %v, %v", ok, err)
		}
		if err := c.Locker("free").LockContext(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("LockContext with a cancelled context: %v", err)
		}
	})
}

// User code runs under c.mu
type nosyCtx struct {
	context.Context
	f func()
}

func (n nosyCtx) Value(k any) any {
	if n.f != nil {
		n.f()
	}
	return n.Context.Value(k)
}

func (n nosyCtx) Done() <-chan struct{} {
	if n.f != nil {
		n.f()
	}
	return n.Context.Done()
}

func TestCallersContextIsNotCalledUnderTheMutex(t *testing.T) {
	c := New(membackend.New(), quiet())
	defer c.Close()
	l := c.Locker("x")
	bad := false
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	n := nosyCtx{ctx, func() {
		for range 50 {
			if c.mu.TryLock() {
				c.mu.Unlock()
				return
			}
			time.Sleep(time.Millisecond)
		}
		bad = true
	}}
	l.Do(n, func(ctx context.Context) error {
		l.ForceUnlock(context.Background())
		return nil
	})
	if bad {
		t.Error("the caller's context was called with c.mu held")
	}
}
