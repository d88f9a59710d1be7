package dlock

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/membackend"
)

// wantOnce calls Once for the occasion "now" of the job "job", and fails the test if that goes
// otherwise.
func wantOnce(t *testing.T, c *Client, fn func(context.Context) error, ran bool, want error) {
	t.Helper()
	did, err := c.Once(t.Context(), "job", "now", time.Minute, fn)
	if did != ran || !errors.Is(err, want) {
		t.Errorf("Once = %v, %v; want %v, %v", did, err, ran, want)
	}
	if e, ok := errors.AsType[*Error](err); want == ErrHeld &&
		(!ok || e.Op != "once" || e.Name != "once:job@now") {
		t.Errorf("the error is %+v; want an Error of once that names the lock", err)
	}
}

// onces runs a test of two clients in a bubble.
func onces(t *testing.T, test func(t *testing.T, store *script, c, other *Client)) {
	synctest.Test(t, func(t *testing.T) {
		store := newScript(membackend.New())
		var told, others ledger
		c, other := New(store, quiet(), told.trace()), New(store.Backend, quiet(), others.trace())
		defer other.Close()
		defer c.Close()
		test(t, store, c, other)
		time.Sleep(3 * DefaultLease)
		for c, l := range map[*Client]*ledger{c: &told, other: &others} {
			empty(t, c)
			l.closed(t)
		}
	})
}

func TestOnce(t *testing.T) {
	onces(t, func(t *testing.T, _ *script, c, other *Client) {
		wantOnce(t, c, func(ctx context.Context) error {
			time.Sleep(2 * DefaultLease) // it is renewed
			wantOnce(t, other, succeed, false, ErrHeld)
			return ctx.Err()
		}, true, nil)
		for range 2 {
			wantOnce(t, other, succeed, false, nil)
			wantOnce(t, c, succeed, false, nil)
			time.Sleep(time.Minute/2 - time.Millisecond)
		}
		wantOnce(t, other, succeed, false, nil)
		time.Sleep(2 * time.Millisecond)
		wantOnce(t, other, succeed, true, nil)
	})
}

// A call within it isn't let in, whichever owner it names.
func TestOnceWithinOnce(t *testing.T) {
	onces(t, func(t *testing.T, _ *script, c, _ *Client) {
		owned := WithOwner(t.Context(), NewOwner())
		ran, err := c.Once(owned, "job", "now", time.Minute, func(ctx context.Context) error {
			for _, ctx := range []context.Context{ctx, owned} {
				if ran, err := c.Once(ctx, "job", "now", time.Minute, succeed); ran ||
					!errors.Is(err, ErrHeld) {
					t.Errorf("Once within Once = %v, %v", ran, err)
				}
			}
			if ran, err := c.Once(ctx, "job", "later", time.Minute, succeed); !ran || err != nil {
				t.Errorf("Once for another occasion = %v, %v", ran, err)
			}
			return nil
		})
		if !ran || err != nil {
			t.Errorf("Once = %v, %v", ran, err)
		}
	})
}

// A function that fails can be run again at once, however it ends.
func TestOnceThatFails(t *testing.T) {
	onces(t, func(t *testing.T, _ *script, c, other *Client) {
		failure := errors.New("a failure")
		wantOnce(t, c, func(context.Context) error { return failure }, true, failure)
		var panicked any
		func() {
			defer func() { panicked = recover() }()
			wantOnce(t, other, func(context.Context) error { panic("oh") }, true, nil)
		}()
		if panicked != "oh" {
			t.Errorf("recovered %v; want the panic of the job", panicked)
		}
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			c.Once(t.Context(), "job", "now", time.Minute, func(context.Context) error {
				runtime.Goexit()
				return nil
			})
		}()
		<-ended
		wantOnce(t, other, succeed, true, nil)
	})
}

// It may have been done, and not be known to have been: the call that did it returns ErrLost.
func TestOnceThatIsLostMeanwhile(t *testing.T) {
	onces(t, func(t *testing.T, _ *script, c, other *Client) {
		wantOnce(t, c, func(ctx context.Context) error {
			if released, err := other.Locker("once:job@now").ForceUnlock(t.Context()); !released ||
				err != nil {
				t.Fatalf("ForceUnlock = %v, %v", released, err)
			}
			<-ctx.Done()
			return nil
		}, true, ErrLost)
		wantOnce(t, other, succeed, true, nil)
	})
}

// So, too, where the store is gone when it is done. It may come back in time.
func TestOnceWhoseEndIsNotNoted(t *testing.T) {
	for name, carriedOut := range map[string]bool{
		"no request arrives": false,
		"no answer arrives":  true,
	} {
		t.Run(name, func(t *testing.T) {
			onces(t, func(t *testing.T, store *script, c, other *Client) {
				began := time.Now()
				wantOnce(t, c, func(ctx context.Context) error {
					store.release.set(func(s *releaseStep) {
						if carriedOut {
							s.do()
						}
						s.fail(errSevered)
					})
					return nil
				}, true, ErrUnavailable)
				store.release.set(nil)
				time.Sleep(5 * time.Second)
				wantOnce(t, other, succeed, false, nil)
				left, err := other.Locker("once:job@now").TTL(t.Context())
				if err != nil || left < time.Minute-time.Since(began) || left > time.Minute {
					t.Errorf("it is kept for %v more, %v", left, err)
				}
				time.Sleep(left)
				wantOnce(t, other, succeed, true, nil)
			})
		})
	}
}

// It is kept from when it succeeded on, whenever the store hears of that.
func TestOnceIsKeptFromItsSuccess(t *testing.T) {
	onces(t, func(t *testing.T, store *script, c, other *Client) {
		store.release.delay(2*time.Second, 0)
		began := time.Now()
		wantOnce(t, c, func(context.Context) error {
			time.Sleep(10 * time.Second)
			return nil
		}, true, nil)
		if took := time.Since(began); took != 12*time.Second {
			t.Errorf("it took %v", took)
		}
		if left, err := other.Locker("once:job@now").TTL(t.Context()); err != nil ||
			left < time.Minute-2*time.Second || left > time.Minute {
			t.Errorf("it is kept for %v, %v", left, err)
		}
		store.release.delay(0, 0)
	})
}

// When the process dies in the middle it is done again once the lease is over, and not before.
func TestOnceWhoseProcessDies(t *testing.T) {
	onces(t, func(t *testing.T, _ *script, c, other *Client) {
		began, dead := make(chan struct{}), make(chan struct{})
		go c.Once(t.Context(), "job", "now", time.Minute, func(context.Context) error {
			close(began)
			<-dead
			runtime.Goexit()
			return nil
		})
		<-began
		c.mu.Lock()
		cl := heldOf(c, "once:job@now").claim
		cl.Want(cl.Lease(), false) // as others see it: it isn't renewed
		c.mu.Unlock()
		time.Sleep(DefaultLease - time.Millisecond)
		wantOnce(t, other, succeed, false, ErrHeld)
		time.Sleep(time.Millisecond)
		wantOnce(t, other, succeed, true, nil)
		close(dead)
	})
}

// A job that succeeds as its client is closed has succeeded.
func TestOnceThatOutlivesItsClient(t *testing.T) {
	onces(t, func(t *testing.T, _ *script, c, other *Client) {
		wantOnce(t, c, func(ctx context.Context) error {
			c.Close()
			if err := context.Cause(ctx); !errors.Is(err, ErrClosed) {
				t.Errorf("the context ended with %v", err)
			}
			return nil
		}, true, nil)
		wantOnce(t, other, succeed, false, nil)
		wantOnce(t, c, succeed, false, ErrClosed)
	})
}

// It is never handed to a call that waits for the lock by its name.
func TestOnceHandsNothingOn(t *testing.T) {
	onces(t, func(t *testing.T, _ *script, c, other *Client) {
		done := make(chan time.Time)
		wantOnce(t, c, func(context.Context) error {
			go func() {
				l := c.Locker("once:job@now")
				l.Lock()
				done <- time.Now()
				l.Unlock()
			}()
			synctest.Wait()
			return nil
		}, true, nil)
		ended := time.Now()
		wantOnce(t, other, succeed, false, nil)
		if waited := (<-done).Sub(ended); waited < time.Minute ||
			waited > time.Minute+50*time.Millisecond {
			t.Errorf("one who waited for the lock got it after %v of a minute", waited)
		}
	})
}

// Whether it runs or has succeeded isn't guessed.
func TestOnceThatCannotAsk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newScript(membackend.New())
		c, other := New(store, quiet()), New(store.Backend, quiet())
		defer c.Close()
		defer other.Close()
		wantOnce(t, other, succeed, true, nil)
		store.look.fail(errSevered)
		ran, err := c.Once(t.Context(), "job", "now", time.Minute, succeed)
		if ran || !errors.Is(err, ErrUnavailable) || errors.Is(err, ErrHeld) {
			t.Errorf("Once = %v, %v; want ErrUnavailable alone", ran, err)
		}
		store.acquire.fail(errSevered)
		if ran, err := c.Once(t.Context(), "job", "now", time.Minute, succeed); ran ||
			!errors.Is(err, ErrUnavailable) || errors.Is(err, ErrHeld) {
			t.Errorf("Once = %v, %v; want ErrUnavailable alone", ran, err)
		}
	})
}

func TestBadOnce(t *testing.T) {
	store := newScript(membackend.New())
	c, noKeeps := New(store, quiet()),
		New(newScript(membackend.New()).with(backend.Limits{}), quiet())
	defer c.Close()
	defer noKeeps.Close()
	over, end := context.WithCancel(t.Context())
	end()
	for what, call := range map[string]func() (bool, error){
		"no name": func() (bool, error) {
			return c.Once(t.Context(), "", "now", time.Minute, succeed)
		},
		"no occasion": func() (bool, error) {
			return c.Once(t.Context(), "job", "", time.Minute, succeed)
		},
		"no function": func() (bool, error) {
			return c.Once(t.Context(), "job", "now", time.Minute, nil)
		},
		"no keep": func() (bool, error) {
			return c.Once(t.Context(), "job", "now", 0, succeed)
		},
		"a negative keep": func() (bool, error) {
			return c.Once(t.Context(), "job", "now", -1, succeed)
		},
		"a very long keep": func() (bool, error) {
			return c.Once(t.Context(), "job", "now", longestLease+1, succeed)
		},
		"a store that can't": func() (bool, error) {
			return noKeeps.Once(t.Context(), "job", "now", time.Minute, succeed)
		},
		"a context that is over": func() (bool, error) {
			return c.Once(over, "job", "now", time.Minute, succeed)
		},
	} {
		ran, err := call()
		if e, ok := errors.AsType[*Error](err); ran || !ok || e.Op != "once" ||
			errors.Is(err, ErrUnavailable) || errors.Is(err, ErrHeld) {
			t.Errorf("%s: %v, %v", what, ran, err)
		}
		if (what == "a store that can't") != errors.Is(err, errors.ErrUnsupported) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if leases, _ := store.asked(); len(leases) > 0 {
		t.Errorf("%d attempts", len(leases))
	}
	if ran, err := c.Once(t.Context(), "job", "now", longestLease, succeed); !ran || err != nil {
		t.Errorf("ten years: %v, %v", ran, err)
	}
}

// No two have the same lock, and only the braces of the job's name say where a cluster keeps it.
func TestNamesOfOnce(t *testing.T) {
	parts := []string{
		"a", "@", "%", "%40", "a@b", "@@", "b", "{", "}", "{a}", "%7B", "a%", "25", ":", "a:b",
	}
	names := make(map[string]string)
	for _, name := range parts {
		for _, occasion := range parts {
			got := onceName(name, occasion)
			if before, taken := names[got]; taken {
				t.Errorf("%q and %q have the lock %q of %s", name, occasion, got, before)
			}
			names[got] = fmt.Sprintf("%q and %q", name, occasion)
			if strings.Count(got, "{") != strings.Count(name, "{") ||
				strings.Count(got, "}") != strings.Count(name, "}") {
				t.Errorf("%q and %q have the lock %q", name, occasion, got)
			}
		}
	}
	if got := onceName("{shop}:report", "2026-11-22"); got != "once:{shop}:report@2026-11-22" {
		t.Errorf("a name with braces: %q", got)
	}
}

// Five replicas with clocks that differ by up to two seconds start a job of 5 ms for each of 200
// occasions, and it runs once for each.
func TestOnceOnEveryReplica(t *testing.T) {
	const replicas, occasions, skew, period = 5, 200, 2 * time.Second, 10 * time.Second
	synctest.Test(t, func(t *testing.T) {
		store, random := membackend.New(), rand.New(rand.NewPCG(1, 2))
		var (
			all  sync.WaitGroup
			runs [occasions]atomic.Int32
			told [3]atomic.Int32 // ran, succeeded before, held
		)
		for range replicas {
			c := New(store, quiet())
			defer c.Close()
			off := time.Duration(random.Int64N(int64(skew)))
			late := make([]time.Duration, occasions)
			for i := range late {
				late[i] = time.Duration(random.Int64N(int64(20 * time.Millisecond)))
			}
			all.Go(func() {
				began := time.Now()
				for i := range occasions {
					time.Sleep(time.Until(began.Add(time.Duration(i)*period + off + late[i])))
					ran, err := c.Once(t.Context(), "job", fmt.Sprint(i), 2*skew, func(
						context.Context,
					) error {
						runs[i].Add(1)
						time.Sleep(5 * time.Millisecond)
						return nil
					})
					switch {
					case ran && err == nil:
						told[0].Add(1)
					case err == nil:
						told[1].Add(1)
					case !ran && errors.Is(err, ErrHeld):
						told[2].Add(1)
					default:
						t.Errorf("occasion %d: %v, %v", i, ran, err)
					}
				}
			})
		}
		all.Wait()
		for i := range runs {
			if n := runs[i].Load(); n != 1 {
				t.Errorf("occasion %d: ran %d times", i, n)
			}
		}
		if n := told[0].Load(); n != occasions || told[1].Load() == 0 ||
			told[0].Load()+told[1].Load()+told[2].Load() != replicas*occasions {
			t.Errorf("%d ran, %d had succeeded before, %d were running", n, told[1].Load(),
				told[2].Load())
		}
	})
}

// A lock is lost, and taken back, just as fn returns, and Once keeps it.
func TestOnceLostAsItReturns(t *testing.T) {
	for range 200 {
		synctest.Test(t, func(t *testing.T) {
			r := newScript(membackend.New())
			r.limits.LeaseStep = time.Second // it rounds leases up, as etcd does
			c := New(r, quiet(), WithLease(1500*time.Millisecond))
			defer c.Close()
			r.renew.fail(&backend.Error{Kind: backend.Retry, Err: errors.New("down")})
			c.Once(t.Context(), "job", "now", time.Hour, func(ctx context.Context) error {
				<-ctx.Done()
				return nil
			})
			time.Sleep(time.Minute)
		})
	}
}
