package dlock

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/membackend"
)

// waitLatch waits for the latch x, and tells what comes of it and how long that took.
func waitLatch(ctx context.Context, c *Client) <-chan onceResult {
	done := make(chan onceResult, 1)
	go func() {
		began := time.Now()
		err := c.Latch("x").Wait(ctx)
		done <- onceResult{err: err, waited: time.Since(began)}
	}()
	synctest.Wait()
	return done
}

func setLatch(t *testing.T, l *Latch, n int64, want bool) {
	t.Helper()
	if set, err := l.Set(t.Context(), n); set != want || err != nil {
		t.Errorf("Set(%d) = %v, %v; want %v", n, set, err, want)
	}
}

// The waiters go on at the moment at which the last counts down, and have asked seldom before.
func TestLatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var looks atomic.Int32
		store := newScript(membackend.New())
		store.latch.set(func(s *latchStep) {
			if s.req.Step == backend.LookAtLatch {
				looks.Add(1)
			}
		})
		c, other := New(store, quiet()), New(store.Backend, quiet())
		defer c.Close()
		defer other.Close()
		l := other.Latch("x")
		must(t, l.Wait(t.Context()))
		must(t, l.CountDown(t.Context()))
		for range 2 {
			setLatch(t, l, 2, true)
			setLatch(t, c.Latch("x"), 5, false)
			looks.Store(0)
			waits := []<-chan onceResult{waitLatch(t.Context(), c), waitLatch(t.Context(), other)}
			time.Sleep(15 * time.Second)
			must(t, l.CountDown(t.Context()))
			time.Sleep(10 * time.Second)
			must(t, c.Latch("x").CountDown(t.Context()))
			for _, w := range waits {
				if res := <-w; res != (onceResult{waited: 25 * time.Second}) {
					t.Errorf("%+v", res)
				}
			}
			if n := looks.Load(); n > 5 {
				// one, when it is told of changes, two in between, and the last
				t.Errorf("%d looks", n)
			}
			if n, err := l.Count(t.Context()); n != 0 || err != nil {
				t.Errorf("Count = %d, %v", n, err)
			}
		}
	})
}

// A count that wasn't carried out is tried again. One that may have been isn't: it could open the
// latch too early.
func TestLatchCountsDownOnce(t *testing.T) {
	for name, test := range map[string]struct {
		kind    backend.ErrorKind
		carries bool // the first is carried out all the same
		left    int64
		want    error
	}{
		"not carried out":              {backend.Retry, false, 2, nil},
		"no answer":                    {backend.Unknown, true, 2, ErrUnavailable},
		"no answer, not carried out":   {backend.Unknown, false, 3, ErrUnavailable},
		"refused, and not carried out": {backend.Refused, false, 3, ErrUnavailable},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := newScript(membackend.New())
				c := New(store, quiet())
				defer c.Close()
				setLatch(t, c.Latch("x"), 3, true)
				first := true
				store.latch.set(func(s *latchStep) {
					if s.req.Step != backend.CountDown || !first {
						return
					}
					first = false
					if test.carries {
						s.do()
					}
					s.fail(&backend.Error{Kind: test.kind, Err: errors.New("trouble")})
				})
				err := c.Latch("x").CountDown(t.Context())
				if !errors.Is(err, test.want) {
					t.Errorf("CountDown: %v; want %v", err, test.want)
				}
				if e, ok := errors.AsType[*Error](err); err != nil &&
					(!ok || e.Op != "countdown" || e.Name != "x") {
					t.Errorf("CountDown: %v", err)
				}
				if n, err := c.Latch("x").Count(t.Context()); n != test.left || err != nil {
					t.Errorf("Count = %d, %v; want %d", n, err, test.left)
				}
			})
		})
	}
	synctest.Test(t, func(t *testing.T) { // and not for ever
		store := newScript(membackend.New())
		c := New(store, quiet())
		defer c.Close()
		store.latch.fail(&backend.Error{Kind: backend.Retry, Err: errors.New("down")})
		began := time.Now()
		if err := c.Latch("x").CountDown(t.Context()); !errors.Is(err, ErrUnavailable) ||
			time.Since(began) != longestRelease {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
	})
}

// A wait ends with its context or its client, goes on while the store is away, and does without
// messages.
func TestLatchWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newScript(membackend.New())
		c, deafened := New(store, quiet()), New(newScript(store).but(onlyLatches), quiet())
		defer deafened.Close()
		other := New(store.Backend, quiet())
		defer other.Close()
		l := other.Latch("x")
		setLatch(t, l, 1, true)
		cause := errors.New("a cause")
		ctx, end := context.WithCancelCause(t.Context())
		w := waitLatch(ctx, c)
		time.Sleep(time.Second)
		end(cause)
		if res := <-w; !errors.Is(res.err, context.Canceled) || !errors.Is(res.err, cause) ||
			res.waited != time.Second {
			t.Errorf("its context is over: %+v", res)
		}
		w, late := waitLatch(t.Context(), c), waitLatch(t.Context(), deafened)
		store.latch.fail(errSevered)
		time.Sleep(time.Minute)
		store.latch.set(nil)
		time.Sleep(time.Minute)
		must(t, l.CountDown(t.Context()))
		if res := <-w; res != (onceResult{waited: 2 * time.Minute}) {
			t.Errorf("the store was away: %+v", res)
		}
		if res := <-late; res.err != nil || res.waited < 2*time.Minute ||
			res.waited > 2*time.Minute+longestPoll*11/10 {
			t.Errorf("no messages: %+v", res)
		}
		setLatch(t, l, 1, true)
		w = waitLatch(t.Context(), c)
		time.Sleep(time.Second)
		c.Close()
		if res := <-w; !errors.Is(res.err, ErrClosed) || res.waited != time.Second {
			t.Errorf("its client was closed: %+v", res)
		}
	})
}

// A latch that opens while the subscription is under way is found open once that is there.
func TestLatchThatOpensBeforeItIsToldOf(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := membackend.New()
		other := New(mem, quiet())
		defer other.Close()
		l := other.Latch("x")
		setLatch(t, l, 1, true)
		slow := newScript(mem)
		slow.subscribe.set(func(s *subscribeStep) {
			time.Sleep(10 * time.Second)
			must(t, l.CountDown(t.Context()))
			s.pretend()
		})
		c := New(slow, quiet())
		defer c.Close()
		if res := <-waitLatch(t.Context(), c); res != (onceResult{waited: 10 * time.Second}) {
			t.Errorf("%+v", res)
		}
	})
}

func TestBadLatch(t *testing.T) {
	store := newScript(membackend.New()).but(onlySteps)
	none, c := New(store, quiet()), New(membackend.New(), quiet())
	defer none.Close()
	defer c.Close()
	over, end := context.WithCancel(t.Context())
	end()
	for what, test := range map[string]struct {
		latch *Latch
		n     int64
		ctx   context.Context
		want  error
	}{
		"a store without latches": {none.Latch("x"), 1, t.Context(), errors.ErrUnsupported},
		"no name":                 {c.Latch(""), 1, t.Context(), errEmptyName},
		"no count":                {c.Latch("x"), 0, t.Context(), errTooFew},
		"a context that is over":  {c.Latch("x"), 1, over, context.Canceled},
	} {
		calls := map[string]func() error{
			"set": func() error { _, err := test.latch.Set(test.ctx, test.n); return err },
		}
		if test.want != errTooFew {
			calls["count"] = func() error { _, err := test.latch.Count(test.ctx); return err }
			calls["countdown"] = func() error { return test.latch.CountDown(test.ctx) }
			calls["wait"] = func() error { return test.latch.Wait(test.ctx) }
		}
		for op, call := range calls {
			err := call()
			if e, ok := errors.AsType[*Error](err); !ok || e.Op != op ||
				!errors.Is(err, test.want) || errors.Is(err, ErrUnavailable) {
				t.Errorf("%s: %s: %v", what, op, err)
			}
		}
	}
}
