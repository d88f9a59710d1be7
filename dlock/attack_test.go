package dlock

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
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

// What readers of the code and hostile programs have found, each with what it costs to leave it out.

// The context of a call that fails is one of a Do of the same client, whose hold's time has just
// passed: its Err takes the client's mutex.
func TestAFailedAttemptInADoWhoseTimeIsOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &hooked{Backend: membackend.New()}
		c := New(b, quiet())
		defer c.Close()
		b.acquire = func(ctx context.Context, req backend.AcquireRequest, do func(context.Context) (backend.AcquireResult, error)) (backend.AcquireResult, error) {
			if req.Name == "y" {
				c.mu.Lock()
				if h := heldOf(c, "x"); h != nil {
					h.claim.Gone(0) // and no timer has run
				}
				c.mu.Unlock()
				return backend.AcquireResult{}, &backend.Error{Kind: backend.Retry, Err: errors.New("no connection")}
			}
			return do(ctx)
		}
		err := c.Locker("x").Do(t.Context(), func(ctx context.Context) error {
			return c.Locker("y").LockContext(ctx)
		})
		if !errors.Is(err, ErrLost) {
			t.Errorf("Do = %v, want ErrLost", err)
		}
	})
}

// A hold that was given back before the waiter that was handed it looks rests on a claim that may be
// another's by then.
func TestTakingWhatWasGivenBackLeavesTheClaimAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := membackend.New()
		c, other := New(store, quiet()), New(store, quiet())
		defer c.Close()
		defer other.Close()
		l := c.Locker("x")
		mustTry(t, l)
		heir := &acquisition{call: call{name: "x", party: NewOwner(), o: acquireOptions{lease: c.lease}}}
		heir.wait()
		c.enqueue(heir)
		victim := wait(t.Context(), c.Locker("x"))
		mustUnlock(t, t.Context(), l) // hands on to the heir ...
		if !c.handOn(heir.handed) {   // ... who gives it back, in another goroutine
			t.Fatal("not handed on")
		}
		victim.mustBeIn(t)
		if h, err := c.take(t.Context(), heir); err != errAgain {
			t.Errorf("taking what was given back: %v, %v", h, err)
		}
		time.Sleep(3 * DefaultLease)
		if ok, err := other.Locker("x").TryLock(t.Context()); ok || err != nil {
			t.Errorf("TryLock of another client, while the victim has it: %v, %v", ok, err)
		}
		if held, err := victim.l.IsHeld(t.Context()); !held || err != nil {
			t.Errorf("the victim's IsHeld = %v, %v", held, err)
		}
		victim.leave()
	})
}

// An unlock of what an owner has lost is not one of what its other goroutine is just being handed.
func TestALateUnlockIsNotOneOfWhatIsBeingHandedOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New(membackend.New(), quiet())
		defer c.Close()
		owner := WithOwner(t.Context(), NewOwner())
		late := c.Locker("x")
		if err := late.LockContext(owner, FixedLease(time.Second)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Second)
		l := c.Locker("x")
		mustTry(t, l)
		a := &acquisition{call: call{name: "x", party: late.caller(owner).party, o: acquireOptions{lease: c.lease}}}
		a.wait()
		c.enqueue(a)
		mustUnlock(t, t.Context(), l)
		if err := late.UnlockContext(owner); !errors.Is(err, ErrLost) {
			t.Errorf("the unlock of what was lost: %v", err)
		}
		if h, err := c.take(owner, a); h == nil || err != nil {
			t.Errorf("what it was handed: %v, %v", h, err)
		}
		mustUnlock(t, owner, late)
	})
}

// A hold that is given back between the two halves of a Do has a context that is over.
func TestTheContextOfWhatWasGivenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New(membackend.New(), quiet())
		defer c.Close()
		o := NewOwner()
		l := c.Locker("x")
		h, err := l.acquire(t.Context(), caller{party: o}, acquireOptions{}, nil) // Do's first half
		if err != nil {
			t.Fatal(err)
		}
		mustUnlock(t, WithOwner(t.Context(), o), l) // another goroutine of the owner
		ctx := c.inside(t.Context(), h)             // Do's second half
		defer ctx.end()
		if ctx.Err() == nil || !errors.Is(context.Cause(ctx), ErrNotHeld) {
			t.Errorf("Err() = %v, cause %v", ctx.Err(), context.Cause(ctx))
		}
	})
}

// However long ago its hold was lost, the context of a Do speaks for no other.
func TestALateUnlockInADoFreesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := membackend.New()
		c, other := New(store, quiet(), WithLease(time.Second)), New(store, quiet())
		defer c.Close()
		defer other.Close()
		l := c.Locker("x") // shared, as a package-level mutex is
		in := make(chan struct{})
		go l.Do(t.Context(), func(ctx context.Context) error {
			if err := l.LockContext(ctx); err != nil {
				t.Error(err)
			}
			close(in)
			other.Locker("x").ForceUnlock(t.Context())
			time.Sleep(2 * lossMemory * time.Second) // without looking at ctx
			if err := l.UnlockContext(ctx); !errors.Is(err, ErrLost) {
				t.Errorf("late unlock: %v", err)
			}
			return nil
		})
		<-in
		time.Sleep(lossMemory * time.Second)
		l.Lock() // another goroutine
		time.Sleep(2 * lossMemory * time.Second)
		if held, err := l.IsHeld(t.Context()); !held || err != nil {
			t.Errorf("nobody but the late one has unlocked; IsHeld = %v, %v", held, err)
		}
		l.Unlock()
	})
}

// The same at once: the Do has given its hold back, and another goroutine has locked.
func TestAnUnlockTooManyInADoFreesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New(membackend.New(), quiet())
		defer c.Close()
		l := c.Locker("x")
		l.Do(t.Context(), func(ctx context.Context) error {
			mustUnlock(t, ctx, l)
			w := wait(t.Context(), l)
			w.mustBeIn(t)
			if held, err := l.IsHeld(context.WithoutCancel(ctx)); held || err != nil {
				t.Errorf("IsHeld of what was given back = %v, %v", held, err)
			}
			if err := l.UnlockContext(ctx); !errors.Is(err, ErrNotHeld) {
				t.Errorf("the second unlock: %v, want ErrNotHeld", err)
			}
			return w.leave()
		})
	})
}

// A program that pairs its calls doesn't panic because its losses are too many, or too long ago.
func TestUnlockOfWhatWasLostDoesNotPanic(t *testing.T) {
	for name, test := range map[string]struct {
		locks int
		after time.Duration
	}{
		"long ago": {1, 2 * lossMemory * DefaultLease},
		"many":     {2 * maxLosses, DefaultLease},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := membackend.New()
				c, other := New(store, quiet()), New(store, quiet())
				defer c.Close()
				defer other.Close()
				var all sync.WaitGroup
				for i := range test.locks {
					all.Go(func() {
						l := c.Locker(fmt.Sprint(i)).For(NewOwner())
						l.Lock()
						other.Locker(fmt.Sprint(i)).ForceUnlock(t.Context())
						time.Sleep(test.after)
						l.Unlock()
					})
				}
				all.Wait()
			})
		})
	}
}

// slowHandler is a logger that takes its time.
type slowHandler struct {
	slog.Handler
	by      time.Duration
	records *atomic.Int64
}

func (h slowHandler) Enabled(_ context.Context, l slog.Level) bool { return l >= slog.LevelInfo }
func (h slowHandler) Handle(context.Context, slog.Record) error {
	time.Sleep(h.by)
	h.records.Add(1)
	return nil
}

func slowLogger(by time.Duration) (Option, *atomic.Int64) {
	records := new(atomic.Int64)
	return WithLogger(slog.New(slowHandler{slog.DiscardHandler, by, records})), records
}

// dead is a store that doesn't renew.
type dead struct{ backend.Backend }

func (b dead) Open() backend.Session { return deadSession{b.Backend.Open()} }

type deadSession struct{ backend.Session }

func (deadSession) Renew(context.Context, backend.RenewRequest) (backend.RenewResult, error) {
	return backend.RenewResult{}, errors.New("no answer")
}

func TestASlowLoggerDelaysNoNews(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		logger, records := slowLogger(50 * time.Millisecond)
		c := New(dead{membackend.New()}, logger)
		begin := time.Now()
		var latest atomic.Int64
		var all sync.WaitGroup
		const holders = 1000
		for i := range holders {
			all.Go(func() {
				c.Locker(fmt.Sprint(i)).Do(t.Context(), func(ctx context.Context) error {
					<-ctx.Done()
					latest.Store(max(latest.Load(), int64(time.Since(begin)-DefaultLease)))
					return nil
				})
			})
		}
		all.Wait()
		if late := time.Duration(latest.Load()); late > 0 {
			t.Errorf("the last of %d holders was told %v after its lease", holders, late)
		}
		time.Sleep(time.Hour)
		if n := records.Load(); n < holders {
			t.Errorf("%d records of %d losses", n, holders)
		}
		c.Close()
	})
}

func TestASlowLoggerLosesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		logger, _ := slowLogger(50 * time.Millisecond)
		store := membackend.New()
		c, other := New(store, WithLease(3*time.Second), logger), New(store, quiet())
		defer other.Close()
		const n = 1000
		var all []*Locker
		for i := range n {
			l := c.Locker(fmt.Sprint(i))
			mustTry(t, l)
			all = append(all, l)
		}
		for i := range n / 2 {
			other.Locker(fmt.Sprint(i)).ForceUnlock(t.Context())
		}
		time.Sleep(20 * time.Second)
		for _, l := range all[n/2:] {
			if held, err := l.IsHeld(t.Context()); !held || err != nil {
				t.Fatalf("a lock that nobody touched was lost: %v, %v", held, err)
			}
		}
		time.Sleep(time.Minute) // the logger needs half of that for what was lost
		c.Close()
		runtime.KeepAlive(all) // a Locker that is let go of while it has a lock is logged by a goroutine of the runtime, in real time
	})
}

// A logger that stands still keeps no more records than there is room for.
func TestALoggerThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		logger, records := slowLogger(time.Hour)
		c := New(membackend.New(), logger)
		for range 10 * longestLogbook {
			c.warn("x")
		}
		c.log.mu.Lock()
		if n := len(c.log.waiting); n > longestLogbook {
			t.Errorf("%d records wait", n)
		}
		c.log.mu.Unlock()
		c.Close()
		time.Sleep(3 * longestLogbook * time.Hour)
		if n := records.Load(); n < 1 || n > 2*longestLogbook+2 { // what it had taken when it stood still, and what waited
			t.Errorf("%d records were written", n)
		}
	})
}

// Under nothing but contention, TryLock of a shared Locker says true or false.
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
			end:      func(c *Client) { c.Close() },
			acquired: func(ctx context.Context, c *Client) (*Hold, error) { return c.Locker("a").Acquire(ctx) },
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
		b := &hooked{Backend: membackend.New()}
		hangs := func(ctx context.Context, _ backend.AcquireRequest, _ func(context.Context) (backend.AcquireResult, error)) (backend.AcquireResult, error) {
			<-ctx.Done()
			return backend.AcquireResult{}, ctx.Err()
		}
		b.acquire = hangs
		c, owner := New(b, quiet()), NewOwner()
		s := &stubborn{Context: t.Context(), goOn: make(chan struct{})}
		left := make(chan error)
		go func() { left <- c.Locker("x").LockContext(WithOwner(s, owner)) }()
		synctest.Wait()
		b.mu.Lock()
		b.acquire = nil
		b.mu.Unlock()
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

func TestTryLockOfASharedLockerUnderContention(t *testing.T) {
	c := New(membackend.New(), quiet())
	defer c.Close()
	l := c.Locker("x")
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for range 5000 {
				ok, err := l.TryLock(t.Context())
				if err != nil {
					t.Error(err)
					return
				}
				if ok {
					l.Unlock()
				}
			}
		})
	}
	all.Wait()
	empty(t, c)
}

// During an outage take-backs don't add up: not in the requests that they send, and not for ever.
func TestTakeBacksAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newCounted(membackend.New())
		c := New(store, quiet())
		defer c.Close()
		store.before = func(context.Context) error { return errors.New("timeout") }
		var running, most int
		store.release = func(context.Context, backend.ReleaseRequest, func(context.Context) (backend.ReleaseResult, error)) (backend.ReleaseResult, error) {
			store.mu.Lock()
			store.releases++
			running++
			most = max(most, running)
			store.mu.Unlock()
			time.Sleep(time.Millisecond)
			store.mu.Lock()
			running--
			store.mu.Unlock()
			return backend.ReleaseResult{}, errors.New("timeout")
		}
		const calls = 1000
		for i := range calls {
			c.Locker(fmt.Sprint(i)).TryLock(t.Context())
			time.Sleep(time.Millisecond)
		}
		store.mu.Lock()
		before := store.releases
		store.mu.Unlock()
		time.Sleep(time.Minute)
		store.mu.Lock()
		if n := store.releases - before; n > 60*4*mostTakeBacks {
			t.Errorf("%d requests in a minute to a store that doesn't answer", n)
		}
		if most > mostTakeBacks {
			t.Errorf("%d requests at a time", most)
		}
		store.mu.Unlock()
		time.Sleep(time.Hour)
		empty(t, c)
	})
}

// Once the store answers again, everything is taken back soon.
func TestTakeBacksAfterAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := membackend.New()
		b := &hooked{Backend: mem}
		var up atomic.Bool
		b.acquire = func(ctx context.Context, _ backend.AcquireRequest, do func(context.Context) (backend.AcquireResult, error)) (backend.AcquireResult, error) {
			do(ctx)
			return backend.AcquireResult{}, errors.New("no answer") // but carried out
		}
		b.release = func(ctx context.Context, _ backend.ReleaseRequest, do func(context.Context) (backend.ReleaseResult, error)) (backend.ReleaseResult, error) {
			if !up.Load() {
				return backend.ReleaseResult{}, errors.New("no answer")
			}
			return do(ctx)
		}
		c, other := New(b, quiet(), WithLease(time.Hour)), New(mem, quiet())
		defer c.Close()
		defer other.Close()
		const locks = 500
		for i := range locks {
			c.Locker(fmt.Sprint(i)).TryLock(t.Context())
		}
		time.Sleep(time.Minute)
		up.Store(true)
		time.Sleep(time.Minute)
		for i := range locks {
			mustTry(t, other.Locker(fmt.Sprint(i)))
		}
	})
}

// panicking is a session whose first steps of a kind panic, in the goroutine of the caller.
type panicking struct {
	backend.Session
	acquires, releases *int
}

func (panicking) Capabilities() backend.Capabilities {
	return backend.Capabilities{Steps: backend.StepsNeverWait}
}

func (s panicking) Acquire(ctx context.Context, req backend.AcquireRequest) (backend.AcquireResult, error) {
	if *s.acquires--; *s.acquires >= 0 {
		panic("acquire")
	}
	return s.Session.Acquire(ctx, req)
}

func (s panicking) Release(ctx context.Context, req backend.ReleaseRequest) (backend.ReleaseResult, error) {
	if *s.releases--; *s.releases >= 0 {
		panic("release")
	}
	return s.Session.Release(ctx, req)
}

// A step that panics, which net/http and others recover from, leaves nothing in the way of others.
func TestAStepThatPanics(t *testing.T) {
	for name, test := range map[string]struct {
		acquires, releases int
		call               func(l *Locker)
	}{
		"Lock":    {1, 0, (*Locker).Lock},
		"TryLock": {1, 0, func(l *Locker) { l.TryLock(context.Background()) }},
		"Unlock":  {0, 1, func(l *Locker) { l.Lock(); defer l.Unlock() }},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := New(membackend.New(), quiet())
				defer c.Close()
				c.session = panicking{c.session, &test.acquires, &test.releases}
				l := c.Locker("x")
				func() {
					defer func() {
						if recover() == nil {
							t.Fatal("no panic")
						}
					}()
					test.call(l)
				}()
				w := wait(t.Context(), c.Locker("x"))
				time.Sleep(time.Second)
				w.mustBeIn(t)
				w.leave()
				mustTry(t, l)
				l.Unlock()
				time.Sleep(2 * DefaultLease)
				empty(t, c)
			})
		})
	}
}

// Whether a Do succeeds doesn't depend on whether its context ends just before or just after fn has
// returned.
func TestADoWhoseContextEndsAsItUnlocks(t *testing.T) {
	for name, work := range map[string]time.Duration{"before": 1001 * time.Millisecond, "after": 999 * time.Millisecond} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := New(far{membackend.New(), 5 * time.Millisecond, 0}, quiet())
				defer c.Close()
				ctx, cancel := context.WithTimeout(t.Context(), 1010*time.Millisecond)
				defer cancel()
				if err := c.Locker("x").Do(ctx, func(context.Context) error { time.Sleep(work); return nil }); err != nil {
					t.Errorf("fn returned nil, and the lock was held throughout: %v", err)
				}
			})
		})
	}
}

// What is re-entered without a lease is renewed for as long as that takes, and then ends with what it
// has.
func TestAReentryLeavesTheFixedLeaseFixed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New(membackend.New(), quiet())
		defer c.Close()
		l := c.Locker("x")
		l.Do(t.Context(), func(ctx context.Context) error {
			err := l.Do(ctx, func(context.Context) error { time.Sleep(time.Minute); return nil }) // something that locks, too
			if err != nil || ctx.Err() != nil {
				t.Errorf("a minute inside: %v, %v", err, ctx.Err())
			}
			time.Sleep(2 * DefaultLease)
			if !errors.Is(context.Cause(ctx), ErrLost) {
				t.Error("what had a fixed lease is renewed for ever")
			}
			return nil
		}, FixedLease(10*time.Second))
	})
}

// ForceUnlock tells a holder of this client whose answer is under way.
func TestForceUnlockTellsWhoIsJustBeingAnswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &hooked{Backend: membackend.New()}
		slow := make(chan struct{})
		b.acquire = func(ctx context.Context, _ backend.AcquireRequest, do func(context.Context) (backend.AcquireResult, error)) (backend.AcquireResult, error) {
			res, err := do(ctx)
			<-slow
			return res, err
		}
		var looks int
		b.look = func(ctx context.Context, do func(context.Context) (backend.LookResult, error)) (backend.LookResult, error) {
			if looks++; looks == 1 {
				return backend.LookResult{}, errors.New("no answer") // it asks again
			}
			return do(ctx)
		}
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

// What an unlock says after a panic is logged, since nobody can be told.
func TestAnUnlockAfterAPanicIsLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var text strings.Builder
		c := New(membackend.New(), WithLogger(slog.New(slog.NewTextHandler(&text, nil))))
		l := c.Locker("x")
		func() {
			defer func() { recover() }()
			l.Do(t.Context(), func(ctx context.Context) error {
				l.ForceUnlock(ctx)
				panic("fn")
			})
		}()
		c.Close()
		if !strings.Contains(text.String(), "after a panic") {
			t.Errorf("logged: %s", text.String())
		}
	})
}

// A wait that ends with the lease of one who died ends soon after it.
func TestTheEndOfALeaseIsNotMissedByMuch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := membackend.New()
		c := New(mem, quiet())
		defer c.Close()
		dead := mem.Open()
		for range 100 {
			lease := time.Second + rand.N(9*time.Second)
			if _, err := dead.Acquire(t.Context(), backend.AcquireRequest{Name: "x", Owner: "dead", Lease: lease}); err != nil {
				t.Fatal(err)
			}
			begin := time.Now()
			l := c.Locker("x")
			l.Lock()
			if late := time.Since(begin) - lease; late < 0 || late > time.Millisecond+endJitter {
				t.Fatalf("in %v after the end of the lease", late)
			}
			l.Unlock()
		}
	})
}

// Held and unavailable are told apart, whatever ended the wait.
func TestHeldOrUnavailable(t *testing.T) {
	down := errors.New("connection refused")
	for name, test := range map[string]struct {
		store error
		want  error
		not   error
	}{
		"held":        {nil, ErrHeld, ErrUnavailable},
		"unavailable": {&backend.Error{Kind: backend.Retry, Err: down}, ErrUnavailable, ErrHeld},
		"unknown":     {down, ErrUnavailable, ErrHeld},
		"refused":     {&backend.Error{Kind: backend.Refused, Err: down}, ErrUnavailable, ErrHeld},
	} {
		calls := map[string]func(ctx context.Context, l *Locker) error{
			"LockContext, deadline": func(ctx context.Context, l *Locker) error { return l.LockContext(ctx) },
			"LockContext, Wait": func(_ context.Context, l *Locker) error {
				return l.LockContext(context.Background(), Wait(time.Second))
			},
			"LockContext, Wait(0)": func(_ context.Context, l *Locker) error { return l.LockContext(context.Background(), Wait(0)) },
			"Do, deadline": func(ctx context.Context, l *Locker) error {
				return l.Do(ctx, func(context.Context) error { return nil })
			},
			"TryLock, deadline": func(ctx context.Context, l *Locker) error {
				_, err := l.TryLock(ctx, Wait(time.Hour))
				return err
			},
		}
		for call, do := range calls {
			t.Run(name+", "+call, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					mem := membackend.New()
					b := &hooked{Backend: mem}
					b.acquire = func(ctx context.Context, _ backend.AcquireRequest, do func(context.Context) (backend.AcquireResult, error)) (backend.AcquireResult, error) {
						if test.store != nil {
							return backend.AcquireResult{}, test.store
						}
						return do(ctx)
					}
					c, other := New(b, quiet()), New(mem, quiet())
					defer c.Close()
					defer other.Close()
					mustTry(t, other.Locker("x"))
					for _, l := range []*Locker{c.Locker("x"), c.Locker("x")} { // the first in the queue, and one behind it
						ctx, cancel := context.WithTimeout(t.Context(), time.Second)
						defer cancel()
						err := do(ctx, l)
						if !errors.Is(err, test.want) || errors.Is(err, test.not) {
							t.Errorf("%v; want one that is %q", err, test.want)
						}
						if test.store != nil && !errors.Is(err, down) {
							t.Errorf("%v; want what the store said in it", err)
						}
						w := wait(t.Context(), c.Locker("x"), Wait(time.Hour))
						defer func() { <-w.in }()
					}
					b.mu.Lock()
					b.acquire = nil
					b.mu.Unlock()
					c.Close()
				})
			})
		}
	}
}

// Calls that nothing bounds say in the log, now and then, that the store is unavailable; the others
// return it.
func TestWaitingForAStoreIsLogged(t *testing.T) {
	for name, test := range map[string]struct {
		call func(ctx context.Context, l *Locker)
		logs bool
	}{
		"LockContext": {func(ctx context.Context, l *Locker) { l.LockContext(ctx) }, true},
		"Do":          {func(ctx context.Context, l *Locker) { l.Do(ctx, func(context.Context) error { return nil }) }, true},
		"Wait":        {func(ctx context.Context, l *Locker) { l.LockContext(ctx, Wait(time.Minute)) }, false},
		"deadline": {func(ctx context.Context, l *Locker) {
			ctx, cancel := context.WithTimeout(ctx, time.Minute)
			defer cancel()
			l.LockContext(ctx)
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := &hooked{Backend: membackend.New()}
				b.acquire = func(context.Context, backend.AcquireRequest, func(context.Context) (backend.AcquireResult, error)) (backend.AcquireResult, error) {
					return backend.AcquireResult{}, &backend.Error{Kind: backend.Retry, Err: errors.New("no connection")}
				}
				logger, records := slowLogger(0)
				c := New(b, logger)
				ctx, cancel := context.WithCancel(t.Context())
				done := make(chan struct{})
				go func() { test.call(ctx, c.Locker("x")); close(done) }()
				time.Sleep(2 * time.Second)
				synctest.Wait()
				if n := records.Load(); (n > 0) != test.logs || n > 2 {
					t.Errorf("%d records in two seconds", n)
				}
				time.Sleep(time.Hour)
				if n := records.Load(); (n > 30) != test.logs || n > 150 {
					t.Errorf("%d records in an hour", n)
				}
				cancel()
				<-done
				c.Close()
			})
		})
	}
}

// An unlock by another Locker than the one that locked says so.
func TestUnlockByAnotherLocker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New(membackend.New(), quiet())
		defer c.Close()
		mustTry(t, c.Locker("x"))
		err := c.Locker("x").UnlockContext(t.Context())
		if !errors.Is(err, ErrNotHeld) || !strings.Contains(err.Error(), "another Locker of this client has it") {
			t.Errorf("%v", err)
		}
		err = c.Locker("y").UnlockContext(t.Context())
		if !errors.Is(err, ErrNotHeld) || strings.Contains(err.Error(), "another") {
			t.Errorf("%v", err)
		}
		l := c.Locker("z")
		if err := l.LockContext(WithOwner(t.Context(), NewOwner())); err != nil {
			t.Fatal(err)
		}
		err = l.UnlockContext(t.Context())
		if !errors.Is(err, ErrNotHeld) || !strings.Contains(err.Error(), "unlock with the context that locked it") {
			t.Errorf("%v", err)
		}
	})
}

// Close says what is held still.
func TestCloseLogsWhatIsHeld(t *testing.T) {
	for _, held := range []bool{true, false} {
		var text strings.Builder
		c := New(membackend.New(), WithLogger(slog.New(slog.NewTextHandler(&text, nil))))
		l := c.Locker("orders:42")
		mustTry(t, l)
		if !held {
			l.Unlock()
		}
		c.Close()
		if got := strings.Contains(text.String(), "orders:42"); got != held {
			t.Errorf("held %v: %q", held, text.String())
		}
	}
}

// An unlock with the context of the Do whose hold it is succeeds, and one that fails has one cause.
func TestUnlockWithTheContextOfItsDo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &hooked{Backend: far{membackend.New(), time.Millisecond, 0}}
		c := New(b, quiet())
		defer c.Close()
		l := c.Locker("x")
		err := l.Do(t.Context(), func(ctx context.Context) error {
			if err := l.UnlockContext(ctx); err != nil {
				t.Errorf("UnlockContext inside Do: %v", err)
			}
			return nil
		})
		if want := `dlock: unlock "x": not held`; fmt.Sprint(err) != want {
			t.Errorf("Do whose hold was given back inside: %q, want %q", err, want)
		}
		b.mu.Lock()
		b.release = func(ctx context.Context, _ backend.ReleaseRequest, _ func(context.Context) (backend.ReleaseResult, error)) (backend.ReleaseResult, error) {
			<-ctx.Done()
			return backend.ReleaseResult{}, ctx.Err()
		}
		b.mu.Unlock()
		l.Do(t.Context(), func(ctx context.Context) error {
			err := l.UnlockContext(ctx)
			if want := `dlock: unlock "x": store unavailable: the store has not answered`; fmt.Sprint(err) != want {
				t.Errorf("%q, want %q", err, want)
			}
			return nil
		})
	})
}

// farForce takes a millisecond each way to force and to look.
type farForce struct{ backend.Backend }

func (b farForce) Open() backend.Session { return farForceSession{b.Backend.Open()} }

type farForceSession struct{ backend.Session }

func (s farForceSession) ForceRelease(ctx context.Context, r backend.ForceReleaseRequest) (backend.ForceReleaseResult, error) {
	time.Sleep(time.Millisecond)
	defer time.Sleep(time.Millisecond)
	return s.Session.ForceRelease(ctx, r)
}

func (s farForceSession) Look(ctx context.Context, r backend.LookRequest) (backend.LookResult, error) {
	time.Sleep(time.Millisecond)
	defer time.Sleep(time.Millisecond)
	return s.Session.Look(ctx, r)
}

func (s farForceSession) Subscribe(ctx context.Context, req backend.SubscribeRequest) (backend.Subscription, error) {
	return s.Session.(backend.Notifier).Subscribe(ctx, req)
}

// The hold that a ForceUnlock of this client may have struck is handed on while the store is asked
// about it: whoever has it then isn't told, and two believe in it until the next renewal.
func TestForceUnlockTellsWhoWasHandedTheLockMeanwhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		mem := membackend.New()
		c, other := New(farForce{mem}, quiet()), New(mem, quiet())
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
			t.Error("this client forced the lock, another client has it, and a second later its holder here isn't told")
		}
	})
}

// A call that waited, then re-enters what its own party got meanwhile, and has no answer to that when
// its wait ends, says that another has the lock.
func TestFalseIsNotSaidOfOnesOwnParty(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &hooked{Backend: membackend.New()}
		b.acquire = func(ctx context.Context, r backend.AcquireRequest, do func(context.Context) (backend.AcquireResult, error)) (backend.AcquireResult, error) {
			if r.Reentry {
				<-ctx.Done()
				return backend.AcquireResult{}, ctx.Err()
			}
			return do(ctx)
		}
		c := New(b, quiet())
		defer c.Close()
		ctx := WithOwner(t.Context(), NewOwner())
		holder := c.Locker("x")
		mustTry(t, holder, FixedLease(time.Hour))
		first := wait(ctx, c.Locker("x"))
		l := c.Locker("x")
		type answer struct {
			ok  bool
			err error
		}
		got := make(chan answer, 1)
		go func() {
			ok, err := l.TryLock(ctx, Wait(time.Second))
			got <- answer{ok, err}
		}()
		time.Sleep(500 * time.Millisecond)
		mustUnlock(t, t.Context(), holder)
		first.mustBeIn(t) // and the other re-enters
		if a := <-got; !a.ok && a.err == nil {
			t.Error("another holds it, says TryLock; it is held by the caller's own owner")
		}
		first.leave()
	})
}

// One node of a cluster hangs: what is to be taken back from it keeps what is to be taken back from
// the others waiting, for longer than a lease.
func TestAHungNodeDoesNotDelayTakeBacksOfOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := membackend.New()
		b := &hooked{Backend: mem}
		b.acquire = func(ctx context.Context, r backend.AcquireRequest, do func(context.Context) (backend.AcquireResult, error)) (backend.AcquireResult, error) {
			switch {
			case strings.HasPrefix(r.Name, "hung"):
				<-ctx.Done()
				return backend.AcquireResult{}, ctx.Err()
			case r.Name == "well":
				do(ctx)
				return backend.AcquireResult{}, errors.New("the reply is lost")
			}
			return do(ctx)
		}
		b.release = func(ctx context.Context, r backend.ReleaseRequest, do func(context.Context) (backend.ReleaseResult, error)) (backend.ReleaseResult, error) {
			if strings.HasPrefix(r.Name, "hung") {
				<-ctx.Done()
				return backend.ReleaseResult{}, ctx.Err()
			}
			return do(ctx)
		}
		c := New(b, quiet())
		defer c.Close()
		for i := range 200 {
			go func() {
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				c.Locker(fmt.Sprint("hung", i)).TryLock(ctx)
			}()
		}
		time.Sleep(2 * time.Second)
		l := c.Locker("well")
		l.TryLock(t.Context(), FixedLease(time.Hour)) // its reply is lost: nobody has it, and it is to be taken back
		began := time.Now()
		for range 600 {
			if locked, err := l.IsLocked(t.Context()); err == nil && !locked {
				break
			}
			time.Sleep(time.Second)
		}
		if took := time.Since(began); took > 10*time.Second {
			t.Errorf("a lock on a node that is well, with nobody, was taken back after %v", took)
		}
	})
}

// Within a Do, the unlock of a re-entry doesn't look at the end of its context.
func TestUnlockOfAReentryTakesAsLongAsItsContextAllows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &hooked{Backend: membackend.New()}
		var hang atomic.Bool
		b.release = func(ctx context.Context, _ backend.ReleaseRequest, do func(context.Context) (backend.ReleaseResult, error)) (backend.ReleaseResult, error) {
			if hang.Load() {
				<-ctx.Done()
				return backend.ReleaseResult{}, ctx.Err()
			}
			return do(ctx)
		}
		c := New(b, quiet())
		defer c.Close()
		l := c.Locker("x")
		l.Do(t.Context(), func(ctx context.Context) error {
			if err := l.LockContext(ctx); err != nil {
				t.Fatal(err)
			}
			hang.Store(true)
			soon, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
			defer cancel()
			began := time.Now()
			l.UnlockContext(soon)
			if took := time.Since(began); took > 100*time.Millisecond {
				t.Errorf("an unlock whose context allows 100ms took %v", took)
			}
			hang.Store(false)
			return nil
		})
	})
}

// Who asks the store is deposed while it does, by one that came earlier and whose Locker is unlocked
// by now. If its reply is lost then, it neither repeats nor takes back: the lock is nobody's for all
// of its lease, and everybody waits.
func TestALeadWhoseReplyIsLostAsItIsDeposed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		b := &hooked{Backend: membackend.New()}
		c := New(b, quiet(), WithHandover(0))
		defer c.Close()

		l := c.Locker("x")
		mustTry(t, l)
		first := wait(ctx, l)                                       // parked
		second := wait(ctx, c.Locker("x"), FixedLease(time.Minute)) // asks
		once := true
		b.mu.Lock()
		b.release = func(ctx context.Context, _ backend.ReleaseRequest, do func(context.Context) (backend.ReleaseResult, error)) (backend.ReleaseResult, error) {
			if !once {
				return do(ctx)
			}
			defer time.Sleep(10 * time.Millisecond) // the answer is slow
			return do(ctx)
		}
		b.acquire = func(ctx context.Context, _ backend.AcquireRequest, do func(context.Context) (backend.AcquireResult, error)) (backend.AcquireResult, error) {
			if !once {
				return do(ctx)
			}
			once = false
			do(ctx)
			time.Sleep(10 * time.Millisecond)
			return backend.AcquireResult{}, errors.New("the reply is lost")
		}
		b.mu.Unlock()
		began := time.Now()
		mustUnlock(t, ctx, l)
		select {
		case <-first.in:
			first.leave()
		case <-second.in:
			second.leave()
		}
		if took := time.Since(began); took > 5*time.Second {
			t.Errorf("the lock was nobody's, and two waited for it, for %v", took)
		}
		if first.isIn(t) {
			first.leave()
		}
		if second.isIn(t) {
			second.leave()
		}
	})
}

// Pauses between attempts grow up to a third of the lease that is asked for: with a long one a waiter
// sleeps for as long as the outage took, though the store is back and the lock is free.
func TestAWaiterWithALongLeaseAfterAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &hooked{Backend: membackend.New()}
		up := time.Now().Add(time.Hour)
		b.acquire = func(ctx context.Context, _ backend.AcquireRequest, do func(context.Context) (backend.AcquireResult, error)) (backend.AcquireResult, error) {
			if time.Now().Before(up) {
				return backend.AcquireResult{}, &backend.Error{Kind: backend.Retry, Err: errors.New("connection refused")}
			}
			return do(ctx)
		}
		c := New(b, quiet())
		defer c.Close()
		l := c.Locker("x")
		if err := l.LockContext(t.Context(), FixedLease(24*time.Hour)); err != nil {
			t.Fatal(err)
		}
		if late := time.Since(up); late > time.Minute {
			t.Errorf("the store was back, and the lock free, for %v before it was asked", late)
		}
		mustUnlock(t, t.Context(), l)
	})
}

// The same for what is taken back: it is nobody's for as long again as the outage took.
func TestATakeBackOfALongLeaseAfterAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := membackend.New()
		b := &hooked{Backend: mem}
		up := time.Now().Add(time.Hour)
		b.release = func(ctx context.Context, _ backend.ReleaseRequest, do func(context.Context) (backend.ReleaseResult, error)) (backend.ReleaseResult, error) {
			if time.Now().Before(up) {
				return backend.ReleaseResult{}, &backend.Error{Kind: backend.Retry, Err: errors.New("connection refused")}
			}
			return do(ctx)
		}
		c, other := New(b, quiet()), New(mem, quiet())
		defer c.Close()
		defer other.Close()
		l := c.Locker("x")
		mustTry(t, l, FixedLease(24*time.Hour))
		if err := l.UnlockContext(t.Context()); err == nil {
			t.Fatal("unlocked during an outage")
		}
		o := other.Locker("x")
		if err := o.LockContext(t.Context()); err != nil {
			t.Fatal(err)
		}
		if late := time.Since(up); late > time.Minute {
			t.Errorf("the store was back for %v before a lock that had been unlocked was released", late)
		}
		mustUnlock(t, t.Context(), o)
	})
}

// A waiter whose lease is shorter than the store's answers take keeps the place at the head of the
// queue for ever: nobody else of this client gets in, though the lock is free.
func TestALeaseShorterThanARoundTripBlocksNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &hooked{Backend: membackend.New()}
		attempts := 0
		b.acquire = func(ctx context.Context, r backend.AcquireRequest, do func(context.Context) (backend.AcquireResult, error)) (backend.AcquireResult, error) {
			attempts++
			time.Sleep(10 * time.Millisecond)
			defer time.Sleep(10 * time.Millisecond)
			return do(ctx)
		}
		c := New(b, quiet())
		defer c.Close()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		hopeless := wait(ctx, c.Locker("x"), FixedLease(15*time.Millisecond))
		w := wait(t.Context(), c.Locker("x"))
		time.Sleep(time.Minute)
		in := w.isIn(t)
		if !in {
			t.Errorf("nobody had the lock for a minute, and who waited for it did not get in; %d attempts were sent for another", attempts)
		}
		cancel()
		<-hopeless.in
		if !in {
			<-w.in
		}
		w.leave()
	})
}

// An attempt that is cut short because its owner got in elsewhere is logged as one that failed.
func TestAnAttemptThatIsCutShortIsNoFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &hooked{Backend: membackend.New()}
		slow := true
		b.acquire = func(ctx context.Context, r backend.AcquireRequest, do func(context.Context) (backend.AcquireResult, error)) (backend.AcquireResult, error) {
			if slow {
				slow = false
				time.Sleep(10 * time.Millisecond)
			}
			return do(ctx)
		}
		logger, lines := slowLogger(0)
		c := New(b, logger)
		defer c.Close()
		ctx := WithOwner(t.Context(), NewOwner())
		w := wait(ctx, c.Locker("x")) // asks, and has no answer yet
		l := c.Locker("x")
		if ok, err := l.TryLock(ctx); !ok || err != nil { // the same owner gets in
			t.Fatal(ok, err)
		}
		w.mustBeIn(t)
		w.leave()
		mustUnlock(t, ctx, l)
		if synctest.Wait(); lines.Load() > 0 {
			t.Error("the store is well, nothing failed, and something is logged")
		}
	})
}
