package dlock

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/membackend"
)

// An onceResult is what a call of Locker.Once has come to.
type onceResult struct {
	ran    bool
	err    error
	waited time.Duration
}

// waitOnce calls Once for the lock x, which waits for so long at most, and tells what comes of it.
func waitOnce(
	ctx context.Context, c *Client, wait time.Duration, fn func(context.Context) error,
) <-chan onceResult {
	done := make(chan onceResult, 1)
	go func() {
		began := time.Now()
		ran, err := c.Locker("x").Once(ctx, time.Hour, fn, Wait(wait))
		done <- onceResult{ran, err, time.Since(began)}
	}()
	synctest.Wait()
	return done
}

// takes returns a function that takes so long, and then returns err.
func takes(d time.Duration, err error) func(context.Context) error {
	return func(context.Context) error { time.Sleep(d); return err }
}

// Others wait until it is done, and are told at that moment, in the same client and in another.
func TestOnceWithWait(t *testing.T) {
	onces(t, func(t *testing.T, _ *script, c, other *Client) {
		all := []<-chan onceResult{waitOnce(t.Context(), c, 0, takes(3*time.Second, nil))}
		for i := range 10 {
			all = append(all, waitOnce(t.Context(), []*Client{c, other}[i%2], time.Minute,
				func(context.Context) error {
					t.Error("it runs again")
					return nil
				}))
		}
		for i, done := range all {
			if res := <-done; res != (onceResult{ran: i == 0, waited: 3 * time.Second}) {
				t.Errorf("call %d: %+v", i, res)
			}
		}
		if res := <-waitOnce(t.Context(), other, time.Minute, succeed); res != (onceResult{}) {
			t.Errorf("later: %+v; want that it is done, without a wait", res)
		}
	})
}

// To wait costs next to nothing where the store tells of changes.
func TestOnceWithWaitAsksSeldom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newScript(membackend.New())
		c, other := New(store.Backend, quiet()), New(store, quiet())
		defer c.Close()
		defer other.Close()
		waitOnce(t.Context(), c, 0, takes(35*time.Second, nil))
		<-waitOnce(t.Context(), other, time.Minute, succeed)
		// One at first, one when it is told of changes, three in between, and the last.
		if l, n := store.look.count(), store.acquire.count(); l > 6 || n != 1 {
			t.Errorf("%d looks and %d attempts to acquire it; want 6 at most, and 1", l, n)
		}
	})
}

// After each failure one of the waiters runs it, at once, and one at a time.
func TestOnceThatFailsWithOthersWaiting(t *testing.T) {
	onces(t, func(t *testing.T, _ *script, c, other *Client) {
		failure := errors.New("a failure")
		var running, runs atomic.Int32
		fn := func(context.Context) error {
			if running.Add(1) > 1 {
				t.Error("two run it at a time")
			}
			defer running.Add(-1)
			time.Sleep(time.Second)
			if runs.Add(1) < 4 {
				return failure
			}
			return nil
		}
		var all []<-chan onceResult
		for i := range 10 {
			all = append(all, waitOnce(t.Context(), []*Client{c, other}[i%2], time.Minute, fn))
		}
		var ran, failed int
		for _, done := range all {
			res := <-done
			if res.ran {
				ran++
			}
			if res.err != nil {
				failed++
				if !errors.Is(res.err, failure) || !res.ran {
					t.Errorf("%+v", res)
				}
			}
			if res.waited > 4*time.Second+100*time.Millisecond {
				t.Errorf("%+v; four runs take 4s", res)
			}
		}
		if ran != 4 || failed != 3 {
			t.Errorf("%d have run it, %d have failed; want 4, 3", ran, failed)
		}
	})
}

// When the process dies in the middle the next one runs it, as soon as the lease is over, and the
// rest wait for that one.
func TestOnceWhoseProcessDiesWithOthersWaiting(t *testing.T) {
	onces(t, func(t *testing.T, _ *script, c, other *Client) {
		dead := make(chan struct{})
		began := time.Now()
		first := waitOnce(t.Context(), c, 0, func(context.Context) error {
			<-dead
			runtime.Goexit()
			return nil
		})
		c.mu.Lock()
		cl := heldOf(c, "x").claim
		cl.Want(cl.Lease(), false) // as others see it: it isn't renewed
		c.mu.Unlock()
		var all []<-chan onceResult
		for range 5 {
			all = append(all, waitOnce(t.Context(), other, time.Hour, takes(time.Second, nil)))
		}
		ran := 0
		for _, done := range all {
			res := <-done
			if res.ran {
				ran++
			}
			if after := time.Since(began); res.err != nil || after < DefaultLease ||
				after > DefaultLease+time.Second+20*time.Millisecond {
				t.Errorf("after %v: %+v", after, res)
			}
		}
		if ran != 1 {
			t.Errorf("%d have run it; want 1", ran)
		}
		close(dead)
		select {
		case <-first:
			t.Error("it has returned")
		default:
		}
	})
}

// A call that waits in vain is told why, and that another has the lock.
func TestOnceThatWaitsInVain(t *testing.T) {
	onces(t, func(t *testing.T, store *script, c, other *Client) {
		cause := errors.New("a cause")
		ctx, end := context.WithCancelCause(t.Context())
		closed := New(store.Backend, quiet())
		go c.Locker("x").Once(t.Context(), time.Hour, takes(time.Minute, nil))
		synctest.Wait()
		waits := waitOnce(t.Context(), other, 20*time.Second, succeed)
		ends := waitOnce(ctx, other, time.Hour, succeed)
		closes := waitOnce(t.Context(), closed, time.Hour, succeed)
		time.Sleep(10 * time.Second)
		end(cause)
		closed.Close()
		for what, test := range map[string]struct {
			done   <-chan onceResult
			waited time.Duration
			want   []error
		}{
			"its wait is over": {waits, 20 * time.Second, []error{ErrHeld, ErrNotAcquired}},
			"its context is over": {
				ends, 10 * time.Second, []error{ErrHeld, context.Canceled, cause},
			},
			"its client was closed": {closes, 10 * time.Second, []error{ErrClosed}},
			"one attempt, and no wait": {
				waitOnce(t.Context(), other, 0, succeed), 0, []error{ErrHeld},
			},
		} {
			res := <-test.done
			e, ok := errors.AsType[*Error](res.err)
			if res.ran || res.waited != test.waited || !ok || e.Op != "once" || e.Name != "x" ||
				errors.Is(res.err, errWaited) {
				t.Errorf("%s: %+v", what, res)
			}
			for _, want := range test.want {
				if !errors.Is(res.err, want) {
					t.Errorf("%s: %v; want %v", what, res.err, want)
				}
			}
		}
	})
}

// A call that was told that another has the lock says so, also if nothing is heard any more when
// its wait ends.
func TestOnceThatWaitsForALook(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newScript(membackend.New())
		store.look.hang()
		c, other := New(store.Backend, quiet()), New(store, quiet())
		defer c.Close()
		defer other.Close()
		runs := waitOnce(t.Context(), c, 0, takes(time.Minute, nil))
		res := <-waitOnce(t.Context(), other, 5*time.Second, succeed)
		<-runs
		if res.ran || res.waited != 5*time.Second || !errors.Is(res.err, ErrHeld) ||
			!errors.Is(res.err, ErrNotAcquired) {
			t.Errorf("%+v", res)
		}
	})
}

// Where no message comes it is noticed all the same: within a second where the store doesn't tell
// of anything, else within a third of a lease.
func TestOnceWithWaitThatIsNotTold(t *testing.T) {
	for name, test := range map[string]struct {
		store func(mem backend.Backend) backend.Backend
		most  time.Duration
	}{
		"a store that never tells": {func(mem backend.Backend) backend.Backend {
			return newScript(mem).but(onlySteps)
		}, longestPoll},
		"one that doesn't answer": {func(mem backend.Backend) backend.Backend {
			store := newScript(mem)
			store.subscribe.fail(errSevered)
			return store
		}, longestPoll},
		"messages that are lost": {func(mem backend.Backend) backend.Backend {
			store := newScript(mem)
			store.subscribe.set(func(s *subscribeStep) { s.pretend() })
			return store
		}, DefaultLease / 3},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				mem := membackend.New()
				c, other := New(mem, quiet()), New(test.store(mem), quiet())
				defer c.Close()
				defer other.Close()
				go c.Locker("x").Once(t.Context(), time.Hour, takes(25*time.Second, nil))
				synctest.Wait()
				res := <-waitOnce(t.Context(), other, time.Minute, succeed)
				if late := res.waited - 25*time.Second; res.ran || res.err != nil || late < 0 ||
					late > test.most*11/10 {
					t.Errorf("%+v", res)
				}
			})
		})
	}
}

// While the store is away the waiters go on, and are in when it is back.
func TestOnceWithWaitWhileTheStoreIsAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := membackend.New()
		r := newScript(mem)
		c, other := New(mem, quiet()), New(r, quiet())
		defer c.Close()
		defer other.Close()
		for what, away := range map[string]func(*anyStep){
			"it answers with errors": func(s *anyStep) {
				s.fail(&backend.Error{Kind: backend.Retry, Err: errors.New("down")})
			},
			"it doesn't answer": (*anyStep).hang,
		} {
			c.Locker("x").ForceUnlock(t.Context())
			go c.Locker("x").Once(t.Context(), time.Hour, takes(5*time.Second, errSevered))
			synctest.Wait()
			done := waitOnce(t.Context(), other, time.Hour, succeed)
			r.set(away)
			time.Sleep(time.Minute)
			r.set(nil)
			if res := <-done; !res.ran || res.err != nil || res.waited > 2*time.Minute {
				t.Errorf("%s: %+v", what, res)
			}
			r.set(away)
			if res := <-waitOnce(t.Context(), other, 5*time.Second, succeed); res.ran ||
				!errors.Is(res.err, ErrUnavailable) ||
				!errors.Is(res.err, ErrNotAcquired) || errors.Is(res.err, ErrHeld) ||
				res.waited != 5*time.Second {
				t.Errorf("%s all the time: %+v", what, res)
			}
			r.set(nil)
		}
		r.set(func(s *anyStep) { s.fail(errNoPermission) })
		if res := <-waitOnce(t.Context(), other, time.Hour, succeed); res.ran ||
			!errors.Is(res.err, ErrUnavailable) || res.waited != 0 {
			t.Errorf("a store that refuses: %+v", res)
		}
		r.set(nil)
	})
}

// The lock may be a fenced one, whose number fn has. Other kinds are refused, and so is what is
// wrong.
func TestOnceOfALocker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New(membackend.New(), quiet())
		defer c.Close()
		var tokens []uint64
		fenced := c.FencedLocker("f").With(Wait(time.Minute))
		for range 3 {
			ran, err := fenced.Once(t.Context(), time.Second, func(ctx context.Context) error {
				token, _ := Token(ctx)
				tokens = append(tokens, token)
				return nil
			})
			if !ran || err != nil {
				t.Fatalf("Once of a fenced lock: %v, %v", ran, err)
			}
			time.Sleep(time.Second)
		}
		if !slices.IsSorted(tokens) || tokens[0] == 0 || len(slices.Compact(tokens)) != 3 {
			t.Errorf("tokens %v", tokens)
		}
		rw := c.RWLocker("rw")
		for _, l := range []*Locker{c.FairLocker("x"), rw.Reader(), rw.Writer()} {
			if ran, err := l.Once(t.Context(), time.Hour, succeed); ran ||
				!errors.Is(err, errors.ErrUnsupported) {
				t.Errorf("Once of a %v lock: %v, %v", l.kind, ran, err)
			}
		}
		for what, opts := range map[string][]AcquireOption{
			"a negative wait": {Wait(-1)}, "a nil option": {nil}, "a short lease": {FixedLease(1)},
			"a note": {HolderNote("a=b")},
		} {
			if ran, err := c.Locker("x").Once(t.Context(), time.Hour, succeed, opts...); ran ||
				err == nil || errors.Is(err, ErrUnavailable) {
				t.Errorf("%s: %v, %v", what, ran, err)
			}
		}
		if ran, err := c.Locker("").Once(t.Context(), time.Hour, succeed, Wait(time.Hour)); ran ||
			!errors.Is(err, errEmptyName) || errors.Is(err, ErrNotAcquired) {
			t.Errorf("no name: %v, %v", ran, err)
		}
		// A lock that stays taken by the name of Client.Once counts as the success of that, and the
		// other way round.
		c.Once(t.Context(), "job", "now", time.Hour, succeed)
		if ran, err := c.Locker("once:job@now").Once(t.Context(), time.Hour, succeed); ran ||
			err != nil {
			t.Errorf("after Client.Once: %v, %v", ran, err)
		}
	})
}

// In random runs with failures and deaths it is done exactly once in each period, never by two at a
// time, and each call that had the time to wait knows that.
func TestOnceWithWaitAtRandom(t *testing.T) {
	for seed := range uint64(20) {
		synctest.Test(t, func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 1))
			store := membackend.New()
			var clients []*Client
			for range 4 {
				c := New(store, quiet(), WithLease(3*time.Second))
				defer c.Close()
				clients = append(clients, c)
			}
			var (
				mu   sync.Mutex
				done = make(map[string]int)
				all  sync.WaitGroup
			)
			for occasion := range 20 {
				name := fmt.Sprint(occasion)
				var running atomic.Int32
				for range 8 {
					c := clients[random.IntN(len(clients))]
					late := time.Duration(random.Int64N(int64(2 * time.Second)))
					took := time.Duration(random.Int64N(int64(2 * time.Second)))
					fails := random.IntN(3) == 0
					all.Go(func() {
						time.Sleep(late)
						for {
							ran, err := c.Locker(name).Once(t.Context(), time.Hour, func(
								context.Context,
							) error {
								if running.Add(1) > 1 {
									t.Errorf("two run %s", name)
								}
								defer running.Add(-1)
								time.Sleep(took)
								if fails {
									fails = false
									return errors.New("a failure")
								}
								mu.Lock()
								defer mu.Unlock()
								done[name]++
								return nil
							}, Wait(time.Hour))
							if err == nil {
								mu.Lock()
								if done[name] != 1 {
									t.Errorf("%s, ran %v: done %d times", name, ran, done[name])
								}
								mu.Unlock()
								return
							}
							if !ran {
								t.Errorf("%s: %v", name, err)
								return
							}
						}
					})
				}
			}
			all.Wait()
			if len(done) != 20 {
				t.Errorf("%d of 20 are done", len(done))
			}
		})
	}
}
