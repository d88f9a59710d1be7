package dlock

import (
	"context"
	"errors"
	"math"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/membackend"
)

// hooked is a store with a hook around each of some steps.
type hooked struct {
	backend.Backend
	mu      sync.Mutex
	acquire func(ctx context.Context, req backend.AcquireRequest, do func(context.Context) (backend.AcquireResult, error)) (backend.AcquireResult, error)
	release func(ctx context.Context, req backend.ReleaseRequest, do func(context.Context) (backend.ReleaseResult, error)) (backend.ReleaseResult, error)
	look    func(ctx context.Context, do func(context.Context) (backend.LookResult, error)) (backend.LookResult, error)
}

func (b *hooked) Open() backend.Session { return &hookedSession{b.Backend.Open(), b} }

type hookedSession struct {
	backend.Session
	b *hooked
}

func (s *hookedSession) Acquire(ctx context.Context, req backend.AcquireRequest) (backend.AcquireResult, error) {
	s.b.mu.Lock()
	f := s.b.acquire
	s.b.mu.Unlock()
	do := func(ctx context.Context) (backend.AcquireResult, error) { return s.Session.Acquire(ctx, req) }
	if f == nil {
		return do(ctx)
	}
	return f(ctx, req, do)
}
func (s *hookedSession) Release(ctx context.Context, req backend.ReleaseRequest) (backend.ReleaseResult, error) {
	s.b.mu.Lock()
	f := s.b.release
	s.b.mu.Unlock()
	do := func(ctx context.Context) (backend.ReleaseResult, error) { return s.Session.Release(ctx, req) }
	if f == nil {
		return do(ctx)
	}
	return f(ctx, req, do)
}
func (s *hookedSession) Look(ctx context.Context, req backend.LookRequest) (backend.LookResult, error) {
	do := func(ctx context.Context) (backend.LookResult, error) { return s.Session.Look(ctx, req) }
	if s.b.look == nil {
		return do(ctx)
	}
	return s.b.look(ctx, do)
}
func (s *hookedSession) Subscribe(ctx context.Context, req backend.SubscribeRequest) (backend.Subscription, error) {
	return s.Session.(backend.Notifier).Subscribe(ctx, req)
}

// Do decides twice who is calling.
func TestDoDecidesOnceWhoCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New(membackend.New(), quiet())
		defer c.Close()
		l := c.Locker("x")
		l.Do(t.Context(), func(ctx context.Context) error {
			lateOpt := func(*acquireOptions) { time.Sleep(2 * time.Second) } // a pause between the two looks
			err := l.Do(context.WithoutCancel(ctx), func(ctx context.Context) error { return nil }, lateOpt)
			t.Log("inner Do:", err)
			return nil
		}, FixedLease(time.Second))
		ok, err := l.TryLock(t.Context())
		if !ok || err != nil {
			t.Errorf("nobody holds anything, TryLock = %v, %v", ok, err)
		} else {
			l.Unlock()
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		if err := l.LockContext(ctx); err != nil {
			t.Errorf("LockContext for an hour: %v", err)
		}
	})
}

// Shut asks the store without a context.
func TestWaitAtTheGateEndsWhileTheStoreHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		open := make(chan struct{})
		b := &hooked{Backend: membackend.New()}
		b.acquire = func(ctx context.Context, _ backend.AcquireRequest, do func(context.Context) (backend.AcquireResult, error)) (backend.AcquireResult, error) {
			<-open
			return do(ctx)
		}
		b.look = func(ctx context.Context, do func(context.Context) (backend.LookResult, error)) (backend.LookResult, error) {
			<-open
			return do(ctx)
		}
		c := New(b, quiet())
		l := c.Locker("x")
		go l.Lock()
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		done := make(chan struct{})
		go func() { l.TryLock(ctx, Wait(100*time.Millisecond)); close(done) }()
		time.Sleep(time.Hour)
		select {
		case <-done:
		default:
			t.Error("TryLock(ctx 1s, Wait 100ms) hasn't returned after an hour")
		}
		close(open)
		time.Sleep(time.Second) // its answer came too late: it asks again
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

// The longest lease: none may be so long that sums with it overflow.
func TestLongestLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := membackend.New()
		c, d := New(b, quiet(), WithLease(longestLease)), New(b, quiet())
		defer c.Close()
		defer d.Close()
		l, m := c.Locker("x"), d.Locker("x")
		if ok, err := l.TryLock(t.Context(), FixedLease(math.MaxInt64)); ok || err == nil {
			t.Errorf("TryLock with a lease of 292 years = %v, %v", ok, err)
		}
		mustTry(t, l, FixedLease(longestLease))
		if ok, err := m.TryLock(t.Context()); ok || err != nil {
			t.Errorf("TryLock while another holds it = %v, %v", ok, err)
		}
		l.ForceUnlock(t.Context()) // remembers a loss
	})
}

// The 1 % is gone after a re-entry into a fixed hold. The store's clock is 0.9 % fast.
type fast struct{ backend.Backend }

func (f fast) Open() backend.Session { return fastSession{f.Backend.Open()} }

type fastSession struct{ backend.Session }

func (s fastSession) Acquire(ctx context.Context, r backend.AcquireRequest) (backend.AcquireResult, error) {
	r.Lease = time.Duration(float64(r.Lease) / 1.009)
	return s.Session.Acquire(ctx, r)
}
func (s fastSession) Release(ctx context.Context, r backend.ReleaseRequest) (backend.ReleaseResult, error) {
	r.Lease = time.Duration(float64(r.Lease) / 1.009)
	return s.Session.Release(ctx, r)
}

func TestReentryKeepsTheReserveForClocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := fast{membackend.New()}
		c, d := New(b, quiet()), New(b, quiet())
		defer c.Close()
		defer d.Close()
		ctx := WithOwner(t.Context(), NewOwner())
		l := c.Locker("x")
		if err := l.LockContext(ctx, FixedLease(100*time.Second)); err != nil {
			t.Fatal(err)
		}
		if err := l.LockContext(ctx, FixedLease(time.Second)); err != nil {
			t.Fatal(err)
		}
		lost := l.Lost(ctx)
		if err := d.Locker("x").LockContext(t.Context()); err != nil {
			t.Fatal(err)
		}
		select {
		case <-lost:
		default:
			n := 0
			for ; ; n++ {
				select {
				case <-lost:
					t.Errorf("two valid holders for %d ms", n)
					return
				default:
					time.Sleep(time.Millisecond)
				}
			}
		}
	})
}

// A re-entry's answer revives a hold whose time had passed, across another's critical section.
func TestNoAnswerRevivesAHoldThatIsOver(t *testing.T) {
	for _, what := range []string{"re-entry", "partial"} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				mem := membackend.New()
				b := &hooked{Backend: mem}
				c, d := New(b, quiet(), WithLease(10*time.Second)), New(mem, quiet())
				defer c.Close()
				defer d.Close()
				ctx := WithOwner(context.Background(), NewOwner())
				c.patientSteps.Store(&patience{ctx, c.ctx, math.MaxInt64}) // in a process that is paused no step is left
				l := c.Locker("x")
				var late func(context.Context) (backend.AcquireResult, error)
				n := 0
				pause := func() {
					c.mu.Lock()
					c.timer.Stop() // the process is paused: no timer runs before the answer is looked at
					c.mu.Unlock()
					time.Sleep(9*time.Second + 950*time.Millisecond) // past the deadline
					time.Sleep(60 * time.Millisecond)                // past the store's lease
					mustTry(t, d.Locker("x"), FixedLease(time.Hour)) // another is inside ...
					d.Locker("x").ForceUnlock(t.Context())           // ... and leaves
				}
				b.acquire = func(ctx context.Context, req backend.AcquireRequest, do func(context.Context) (backend.AcquireResult, error)) (backend.AcquireResult, error) {
					n++
					switch {
					case n == 1:
						late = do
						return backend.AcquireResult{}, errors.New("no answer")
					case req.Reentry && what == "re-entry":
						c.mu.Lock()
						c.timer.Stop()
						c.mu.Unlock()
						time.Sleep(time.Second) // the network is slow
						pause()
						late(context.Background())
						return do(context.Background())
					}
					return do(ctx)
				}
				if err := l.LockContext(ctx, FixedLease(10*time.Second)); err != nil {
					t.Fatal(err)
				}
				lost := l.Lost(ctx)
				if what == "partial" {
					if err := l.LockContext(ctx, FixedLease(time.Second)); err != nil {
						t.Fatal(err)
					}
					b.mu.Lock()
					b.release = func(_ context.Context, req backend.ReleaseRequest, do func(context.Context) (backend.ReleaseResult, error)) (backend.ReleaseResult, error) {
						b.mu.Lock()
						b.release = nil
						b.mu.Unlock()
						pause()
						late(context.Background())
						late(context.Background())
						return do(context.Background())
					}
					b.mu.Unlock()
					// the unlock's own context would end at the deadline; it may, too, not have been looked at
					c.mu.Lock()
					h := heldOf(c, "x")
					c.mu.Unlock()
					c.mu.Lock()
					err := c.releaseOneLocked(context.Background(), h, c.now())
					if err == nil {
						t.Errorf("another was inside since, and the partial unlock says nil")
					}
				} else {
					err := l.LockContext(ctx, FixedLease(10*time.Second))
					if err == nil {
						t.Errorf("another was inside since, and the re-entry says nil")
					}
				}
				select {
				case <-lost:
				default:
					t.Error("Lost isn't closed, though another was inside meanwhile")
				}
			})
		})
	}
}

// Behind a head whose attempt hangs.
func TestFalseMeansHeld_behindAHungHead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		open := make(chan struct{})
		b := &hooked{Backend: membackend.New()}
		b.acquire = func(ctx context.Context, _ backend.AcquireRequest, do func(context.Context) (backend.AcquireResult, error)) (backend.AcquireResult, error) {
			<-open
			return do(ctx)
		}
		c := New(b, quiet())
		go c.Locker("x").Lock()
		synctest.Wait()
		ok, err := c.Locker("x").TryLock(t.Context(), Wait(time.Second))
		if err == nil {
			t.Errorf("the lock is free and the store has never answered: TryLock = %v, nil", ok)
		}
		close(open)
		synctest.Wait()
		c.Close()
	})
}

// Gate shut by one who acquires; the lock is free.
func TestFalseMeansHeld_whileTheStoreFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &hooked{Backend: membackend.New()}
		b.acquire = func(ctx context.Context, _ backend.AcquireRequest, do func(context.Context) (backend.AcquireResult, error)) (backend.AcquireResult, error) {
			return backend.AcquireResult{}, &backend.Error{Kind: backend.Retry, Err: errors.New("OOM")}
		}
		c := New(b, quiet())
		l := c.Locker("x")
		ctx, cancel := context.WithCancel(t.Context())
		go l.LockContext(ctx)
		synctest.Wait()
		if ok, err := l.TryLock(t.Context()); err == nil {
			t.Errorf("nobody holds the lock: TryLock = %v, nil", ok)
		}
		cancel()
		synctest.Wait()
		c.Close()
	})
}

// Waiting for the slot of its own hold.
func TestFalseMeansHeld_ownHoldBusy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		open := make(chan struct{})
		b := &hooked{Backend: membackend.New()}
		b.acquire = func(ctx context.Context, req backend.AcquireRequest, do func(context.Context) (backend.AcquireResult, error)) (backend.AcquireResult, error) {
			if req.Reentry {
				<-open
			}
			return do(ctx)
		}
		c := New(b, quiet())
		l := c.Locker("x")
		ctx := WithOwner(t.Context(), NewOwner())
		l.LockContext(ctx)
		go l.LockContext(ctx)
		synctest.Wait()
		if ok, err := l.TryLock(ctx, Wait(time.Second)); err == nil {
			t.Errorf("the owner itself holds it: TryLock = %v, nil", ok)
		}
		// and a partial unlock "succeeds whatever the network did"
		short, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		t.Log("partial unlock: ", l.UnlockContext(short))
		close(open)
		synctest.Wait()
		c.Close()
	})
}

// Two TryLocks of one owner.
func TestOwnerDoesNotExcludeItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &hooked{Backend: membackend.New()}
		n := 0
		b.acquire = func(ctx context.Context, req backend.AcquireRequest, do func(context.Context) (backend.AcquireResult, error)) (backend.AcquireResult, error) {
			b.mu.Lock()
			n++
			first := n == 1
			b.mu.Unlock()
			if first {
				time.Sleep(time.Millisecond)
			}
			return do(ctx)
		}
		c := New(b, quiet())
		defer c.Close()
		l := c.Locker("x")
		ctx := WithOwner(t.Context(), NewOwner())
		var all sync.WaitGroup
		for range 2 {
			all.Go(func() {
				if ok, err := l.TryLock(ctx); !ok {
					t.Errorf("nobody but the owner has it: TryLock = %v, %v", ok, err)
				}
			})
		}
		all.Wait()
	})
}

// LockContext with Wait on a Locker that is lost and not unlocked.
func TestWaitOnALockerThatWasLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New(membackend.New(), quiet())
		defer c.Close()
		l := c.Locker("x")
		mustTry(t, l, FixedLease(time.Second))
		time.Sleep(2 * time.Second)
		err := l.LockContext(t.Context(), Wait(time.Second))
		if !errors.Is(err, ErrNotAcquired) {
			t.Errorf("the wait ran out: %v", err)
		}
	})
}

// A take-back that ended isn't begun again.
func TestTakeBackBeginsAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := membackend.New()
		b := &hooked{Backend: mem}
		b.acquire = func(ctx context.Context, req backend.AcquireRequest, do func(context.Context) (backend.AcquireResult, error)) (backend.AcquireResult, error) {
			if req.Reentry {
				time.Sleep(time.Second) // on its way past the client's deadline
			}
			return do(context.WithoutCancel(ctx))
		}
		c := New(limited{b, backend.Limits{MinLease: 60 * time.Second, LeaseStep: time.Second}}, quiet(), WithLease(60*time.Second))
		defer c.Close()
		l := c.Locker("x")
		ctx := WithOwner(t.Context(), NewOwner())
		if err := l.LockContext(ctx, FixedLease(500*time.Millisecond)); err != nil {
			t.Fatal(err)
		}
		err := l.LockContext(ctx, FixedLease(500*time.Millisecond))
		t.Log("re-entry:", err)
		t.Log("unlock:", l.UnlockContext(ctx))
		time.Sleep(5 * time.Second)
		if ok, err := New(mem).Locker("x").TryLock(t.Context()); !ok {
			t.Errorf("5 s after the client gave up everything the store still holds it (%v)", err)
		}
	})
}

// A waiter that was joined re-enters at once.
func TestWaiterReentersAtOnceWhenItsOwnerGotIn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		open := make(chan struct{})
		b := &hooked{Backend: membackend.New()}
		n := 0
		b.acquire = func(ctx context.Context, req backend.AcquireRequest, do func(context.Context) (backend.AcquireResult, error)) (backend.AcquireResult, error) {
			b.mu.Lock()
			n++
			first := n == 1
			b.mu.Unlock()
			if first {
				<-open
			}
			return do(ctx)
		}
		c := New(b, quiet())
		l := c.Locker("x")
		ctx, cancel := context.WithCancel(WithOwner(t.Context(), NewOwner()))
		defer cancel()
		done := make(chan struct{})
		go func() { l.LockContext(ctx); close(done) }()
		synctest.Wait()
		if ok, err := l.TryLock(ctx); !ok {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		select {
		case <-done:
		default:
			t.Error("an hour after its owner got in, the waiter still waits")
		}
		close(open)
		synctest.Wait()
		c.Close()
	})
}

// An unlock that Close overtakes.
func TestUnlockOvertakenByClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := membackend.New()
		b := &hooked{Backend: mem}
		n := 0
		b.release = func(ctx context.Context, _ backend.ReleaseRequest, do func(context.Context) (backend.ReleaseResult, error)) (backend.ReleaseResult, error) {
			n++
			if n == 1 {
				return backend.ReleaseResult{}, &backend.Error{Kind: backend.Retry, Err: errors.New("LOADING")}
			}
			return do(ctx)
		}
		c := New(b, quiet())
		l := c.Locker("x")
		mustTry(t, l)
		res := make(chan error)
		go func() { res <- l.UnlockContext(context.Background()) }()
		synctest.Wait()
		c.Close()
		t.Log("unlock:", <-res, "requests:", n)
		if ok, _ := New(mem).Locker("x").TryLock(t.Context()); !ok {
			t.Error("an unlock just before Close leaves the lock held; one just after frees it")
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

// Close and Lock in an uninterruptible step.
func TestCloseFreesAWaiterFromAHungStep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		open := make(chan struct{})
		b := &hooked{Backend: membackend.New()}
		b.acquire = func(ctx context.Context, _ backend.AcquireRequest, do func(context.Context) (backend.AcquireResult, error)) (backend.AcquireResult, error) {
			<-open
			return do(ctx)
		}
		c := New(b, quiet())
		done := make(chan struct{})
		go func() {
			defer close(done)
			c.Locker("x").LockContext(context.Background())
		}()
		synctest.Wait()
		c.Close()
		time.Sleep(time.Hour)
		select {
		case <-done:
		default:
			t.Error("LockContext hasn't returned an hour after Close")
		}
		close(open)
		<-done
	})
}

// The gate hides the store's error
func TestWaitAtTheGateTellsWhatFailed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		oom := errors.New("OOM")
		b := &hooked{Backend: membackend.New()}
		b.acquire = func(ctx context.Context, _ backend.AcquireRequest, do func(context.Context) (backend.AcquireResult, error)) (backend.AcquireResult, error) {
			return backend.AcquireResult{}, &backend.Error{Kind: backend.Retry, Err: oom}
		}
		c := New(b, quiet())
		l := c.Locker("x")
		bg, stop := context.WithCancel(t.Context())
		go l.LockContext(bg)
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := l.LockContext(ctx); !errors.Is(err, oom) {
			t.Errorf("the store was failing meanwhile: %v", err)
		}
		stop()
		synctest.Wait()
		c.Close()
	})
}

// Wait so short that it is over before the first attempt
func TestFalseMeansHeld_waitTooShort(t *testing.T) {
	c := New(membackend.New(), quiet())
	defer c.Close()
	if ok, err := c.Locker("x").TryLock(t.Context(), Wait(1)); !ok && err == nil {
		t.Errorf("the lock is free: TryLock(Wait(1ns)) = %v, %v", ok, err)
	}
}

// A re-entry that is retried, or waits for its turn, while the hold is lost.
func TestReentryDoesNotBecomeAFreshHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &hooked{Backend: membackend.New()}
		b.acquire = func(ctx context.Context, r backend.AcquireRequest, do func(context.Context) (backend.AcquireResult, error)) (backend.AcquireResult, error) {
			if r.Reentry {
				time.Sleep(time.Second)
				return backend.AcquireResult{}, &backend.Error{Kind: backend.Retry, Err: errors.New("LOADING")}
			}
			return do(ctx)
		}
		c := New(b, quiet())
		defer c.Close()
		l := c.Locker("x")
		ctx := WithOwner(t.Context(), NewOwner())
		l.LockContext(ctx, FixedLease(1020*time.Millisecond))
		lost := l.Lost(ctx)
		err := l.LockContext(ctx)
		<-lost
		if !errors.Is(err, ErrLost) {
			t.Errorf("the hold was lost while the call re-entered it, and it says %v", err)
		}
	})
}

// With the context of a Do whose hold is over nothing is locked, and nothing of another's unlocked.
func TestTheContextOfADoThatIsOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New(membackend.New(), quiet())
		defer c.Close()
		l := c.Locker("x")
		err := l.Do(t.Context(), func(ctx context.Context) error {
			l.ForceUnlock(context.Background()) // the hold is lost
			ctx = context.WithoutCancel(ctx)    // to clean up
			mustTry(t, l)                       // somebody else
			if err := l.LockContext(ctx); !errors.Is(err, ErrLost) {
				t.Errorf("LockContext = %v, want ErrLost", err)
			}
			if ok, err := l.TryLock(ctx); ok || !errors.Is(err, ErrLost) {
				t.Errorf("TryLock = %v, %v, want ErrLost", ok, err)
			}
			if held, err := l.IsHeld(ctx); held || err != nil {
				t.Errorf("IsHeld = %v, %v", held, err)
			}
			if err := l.UnlockContext(ctx); !errors.Is(err, ErrLost) {
				t.Errorf("UnlockContext = %v, want ErrLost", err)
			}
			if err := l.UnlockContext(ctx); !errors.Is(err, ErrNotHeld) {
				t.Errorf("the second UnlockContext = %v, want ErrNotHeld", err)
			}
			return nil
		})
		if !errors.Is(err, ErrNotHeld) { // it gave back more than it took
			t.Errorf("Do = %v", err)
		}
		if held, err := l.IsHeld(t.Context()); !held || err != nil {
			t.Errorf("nobody but the late one has unlocked; IsHeld = %v, %v", held, err)
		}
		l.Unlock()
	})
}

// An unlock that waits in the background for its turn, and Close.
func TestCloseEndsAnUnlockInTheBackground(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		open := make(chan struct{})
		b := &hooked{Backend: membackend.New()}
		b.acquire = func(ctx context.Context, r backend.AcquireRequest, do func(context.Context) (backend.AcquireResult, error)) (backend.AcquireResult, error) {
			if r.Reentry {
				<-open
			}
			return do(ctx)
		}
		c := New(b, quiet())
		l := c.Locker("x")
		o := NewOwner()
		l.For(o).Lock()
		go func() { defer func() { recover() }(); l.For(o).Lock() }()
		synctest.Wait()
		ctx, cancel := context.WithTimeout(WithOwner(t.Context(), o), time.Millisecond)
		defer cancel()
		l.UnlockContext(ctx)
		c.Close()
		buf := make([]byte, 1<<20)
		if s := string(buf[:runtime.Stack(buf, true)]); strings.Contains(s, "releaseLater.func1") {
			t.Error("a goroutine that waits for its turn to unlock is left after Close")
		}
		close(open)
		synctest.Wait()
	})
}

// ForceUnlock strikes a hold of this client that was granted while it was under way.
type forceDelay struct{ backend.Backend }
type forceDelaySession struct{ backend.Session }

func (f forceDelay) Open() backend.Session { return forceDelaySession{f.Backend.Open()} }
func (s forceDelaySession) ForceRelease(ctx context.Context, r backend.ForceReleaseRequest) (backend.ForceReleaseResult, error) {
	time.Sleep(time.Second)
	return s.Session.ForceRelease(ctx, r)
}

func TestForceUnlockTellsAHoldGrantedMeanwhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New(forceDelay{membackend.New()}, quiet())
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

// HoldCount while a re-entry is under way.
func TestHoldCountLeavesOutWhatIsUnanswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		open := make(chan struct{})
		b := &hooked{Backend: membackend.New()}
		b.acquire = func(ctx context.Context, r backend.AcquireRequest, do func(context.Context) (backend.AcquireResult, error)) (backend.AcquireResult, error) {
			if r.Reentry {
				<-open
				return backend.AcquireResult{}, errors.New("no answer")
			}
			return do(ctx)
		}
		c := New(b, quiet())
		l := c.Locker("x")
		ctx := WithOwner(t.Context(), NewOwner())
		l.LockContext(ctx)
		go l.TryLock(ctx)
		synctest.Wait()
		if n, _ := l.HoldCount(ctx); n != 1 {
			t.Errorf("count %d", n)
		}
		close(open)
		synctest.Wait()
		c.Close()
	})
}

// An attempt that the call's own end cuts short doesn't hide why those before it failed.
func TestLastErrorOutlivesAnAttemptCutShort(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		down := errors.New("connection refused")
		b := &hooked{Backend: membackend.New()}
		first := true
		b.acquire = func(ctx context.Context, _ backend.AcquireRequest, do func(context.Context) (backend.AcquireResult, error)) (backend.AcquireResult, error) {
			if first {
				first = false
				return backend.AcquireResult{}, &backend.Error{Kind: backend.Retry, Err: down}
			}
			<-ctx.Done()
			return do(ctx)
		}
		c := New(b, quiet())
		defer c.Close()
		ctx, cancel := context.WithTimeout(t.Context(), patienceWith(c.lease)/2)
		defer cancel()
		err := c.Locker("x").LockContext(ctx)
		if !errors.Is(err, down) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("the store failed, and then hung: %v", err)
		}
	})
}

// hanging is a store that hangs when it is told to, and somebody who holds "x" there.
func hanging(t *testing.T) (c *Client, holder *Locker, hang, goOn func()) {
	mem := membackend.New()
	open := make(chan struct{})
	b := &hooked{Backend: mem}
	c, other := New(b, quiet()), New(mem, quiet())
	t.Cleanup(func() { c.Close(); other.Close() })
	holder = other.Locker("x")
	holder.Lock()
	hang = func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.acquire = func(ctx context.Context, _ backend.AcquireRequest, do func(context.Context) (backend.AcquireResult, error)) (backend.AcquireResult, error) {
			<-open
			return do(ctx)
		}
	}
	return c, holder, hang, func() { close(open) }
}

// The head of the queue heard that the lock is held before the call began, and has not heard anything
// since the lock is free.
func TestFalseMeansHeld_oldNews(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, holder, hang, goOn := hanging(t)
		head := wait(t.Context(), c.Locker("x"))
		hang()
		holder.Unlock()
		if ok, err := c.Locker("x").TryLock(t.Context(), Wait(time.Second)); ok || err == nil {
			t.Errorf("behind the head of the queue: the lock is free, and TryLock says %v, %v", ok, err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if ok, err := head.l.TryLock(ctx); ok || err == nil {
			t.Errorf("on the same Locker: the lock is free, and TryLock says %v, %v", ok, err)
		}
		if ok, err := head.l.TryLock(t.Context(), Wait(time.Second)); ok || err == nil {
			t.Errorf("on the same Locker, with a wait: the lock is free, and TryLock says %v, %v", ok, err)
		}
		goOn()
		head.mustBeIn(t)
		head.leave()
	})
}

// The head asks again for the sake of those behind it.
func TestFalseIsSaidBehindTheHead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, holder, _, _ := hanging(t)
		head := wait(t.Context(), c.Locker("x"))
		for range 3 {
			if ok, err := c.Locker("x").TryLock(t.Context(), Wait(100*time.Millisecond)); ok || err != nil {
				t.Errorf("behind the head of the queue: the lock is held, and TryLock says %v, %v", ok, err)
			}
			if ok, err := head.l.TryLock(t.Context(), Wait(100*time.Millisecond)); ok || err != nil {
				t.Errorf("on the same Locker: the lock is held, and TryLock says %v, %v", ok, err)
			}
		}
		holder.Unlock()
		head.mustBeIn(t)
		head.leave()
	})
}

// An unlock whose time is over and whose turn it is goes on.
func TestAFreeSlotIsTaken(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for range 100 {
		h := &hold{slot: make(chan struct{}, 1)}
		if !h.takeSlot(ctx) {
			t.Fatal("a slot that is free was not taken")
		}
	}
}

// What was heard at a Locker's gate counts when the wait ends in the queue.
func TestFalseIsSaidByWhoComesThroughTheGateLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, holder, _, _ := hanging(t)
		head := wait(t.Context(), c.Locker("x"))
		shared := c.Locker("x")
		first := make(chan struct{})
		go func() {
			defer close(first)
			if ok, err := shared.TryLock(t.Context(), Wait(2*time.Second)); ok || err != nil {
				t.Errorf("TryLock of the first at the gate = %v, %v", ok, err)
			}
		}()
		synctest.Wait()
		if ok, err := shared.TryLock(t.Context(), Wait(2100*time.Millisecond)); ok || err != nil {
			t.Errorf("TryLock of the one who comes through the gate late = %v, %v", ok, err)
		}
		<-first
		holder.Unlock()
		head.mustBeIn(t)
		head.leave()
	})
}

// forgetful carries re-entries out, and never says so.
type forgetful struct{ backend.Backend }

func (f forgetful) Open() backend.Session { return forgetfulSession{f.Backend.Open()} }

type forgetfulSession struct{ backend.Session }

var errForgotten = &backend.Error{Kind: backend.Unknown, Err: errors.New("forgotten")}

func (s forgetfulSession) Acquire(ctx context.Context, req backend.AcquireRequest) (backend.AcquireResult, error) {
	res, err := s.Session.Acquire(ctx, req)
	if req.Reentry && err == nil {
		err = errForgotten
	}
	return res, err
}

func (s forgetfulSession) Renew(ctx context.Context, req backend.RenewRequest) (backend.RenewResult, error) {
	s.Session.Renew(ctx, req)
	return backend.RenewResult{}, errForgotten
}

// A fixed lease that a re-entry was to prolong, which nobody has heard of, is over in the store, too, when it is over for who
// had it: he may want the lock anew, without having unlocked.
func TestAFixedLeaseThatWasPerhapsProlongedIsOver(t *testing.T) {
	for name, of := range map[string]func(*Client) *Locker{
		"plain": func(c *Client) *Locker { return c.Locker("x") },
		"read":  func(c *Client) *Locker { return c.RWLocker("x").Reader() },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := membackend.New()
				c, other := New(forgetful{store}, quiet()), New(store, quiet())
				defer c.Close()
				defer other.Close()
				ctx := WithOwner(t.Context(), NewOwner())
				l := of(c)
				must(t, l.LockContext(ctx, FixedLease(100*time.Millisecond)))
				if err := l.LockContext(ctx, Wait(50*time.Millisecond)); err == nil {
					t.Fatal("re-entered without an answer")
				}
				began := time.Now()
				next := other.Locker("x")
				if l.kind == backend.Read {
					next = other.RWLocker("x").Writer()
				}
				must(t, next.LockContext(t.Context()))
				must(t, next.UnlockContext(t.Context()))
				if took := time.Since(began); took > time.Second {
					t.Errorf("the next got in after %v", took)
				}
			})
		})
	}
}
