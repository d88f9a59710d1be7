package dlock_test

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/dlock"
	"github.com/seed951563bd/distsync/membackend"
)

// These tests see a client from outside: its calls, and what it asks of a store.

// A meddler is a store that other code stands in front of. It has none of the optional interfaces.
type meddler struct {
	backend.Backend
	limits  backend.Limits
	acquire meddling[backend.AcquireRequest, backend.AcquireResult]
	release meddling[backend.ReleaseRequest, backend.ReleaseResult]
	renew   meddling[backend.RenewRequest, backend.RenewResult]
}

// meddling stands in front of a step, which do takes. A nil one does nothing else.
type meddling[Req, Res any] func(ctx context.Context, req Req, do func(context.Context, Req) (Res, error)) (Res, error)

func (m meddling[Req, Res]) step(ctx context.Context, req Req, do func(context.Context, Req) (Res, error)) (Res, error) {
	if m == nil {
		return do(ctx, req)
	}
	return m(ctx, req, do)
}

func (b *meddler) Open() backend.Session  { return meddlerSession{b.Backend.Open(), b} }
func (b *meddler) Limits() backend.Limits { return b.limits }

type meddlerSession struct {
	backend.Session
	b *meddler
}

func (s meddlerSession) Acquire(ctx context.Context, req backend.AcquireRequest) (backend.AcquireResult, error) {
	return s.b.acquire.step(ctx, req, s.Session.Acquire)
}

func (s meddlerSession) Release(ctx context.Context, req backend.ReleaseRequest) (backend.ReleaseResult, error) {
	return s.b.release.step(ctx, req, s.Session.Release)
}

func (s meddlerSession) Renew(ctx context.Context, req backend.RenewRequest) (backend.RenewResult, error) {
	return s.b.renew.step(ctx, req, s.Session.Renew)
}

var errCut = &backend.Error{Kind: backend.Unknown, Err: errors.New("the connection was cut")}

// A bench is a client and the store that it is on, in a bubble.
type bench struct {
	*testing.T
	*meddler
	client *dlock.Client
	direct backend.Session
}

// onBench runs a test in a bubble. What is set up of the store is set up by prepare.
func onBench(t *testing.T, prepare func(*meddler), run func(b *bench), opts ...dlock.Option) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		mem := membackend.New()
		m := &meddler{Backend: mem}
		prepare(m)
		c := dlock.New(m, append([]dlock.Option{dlock.WithLogger(slog.New(slog.DiscardHandler))}, opts...)...)
		defer c.Close()
		run(&bench{t, m, c, mem.Open()})
	})
}

// owner returns a context that names an owner.
func (b *bench) owner() context.Context { return dlock.WithOwner(b.Context(), dlock.NewOwner()) }

func (b *bench) must(err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}

// wantFree fails the test if the lock "x" is held in the store.
func (b *bench) wantFree(when string) {
	b.Helper()
	res, err := b.direct.Look(b.Context(), backend.LookRequest{Name: "x"})
	b.must(err)
	if res.Held {
		b.Errorf("%s: the store holds the lock, for %v more", when, res.Remaining)
	}
}

func isOver(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// A store that counts leases in hours keeps a lock for longer than it was asked for.
func TestALeaseThatTheStoreRoundsUpEndsInTime(t *testing.T) {
	for holds := range 4 {
		onBench(t, func(m *meddler) { m.limits.LeaseStep = time.Hour }, func(b *bench) {
			ctx := b.owner()
			for range holds {
				b.must(b.client.Locker("x").LockContext(ctx, dlock.FixedLease(time.Second)))
			}
			time.Sleep(10 * time.Second)
			b.wantFree("ten seconds after a lease of one began")
		}, dlock.WithLease(time.Hour))
	}
}

// Renewals are sent beside one that hangs, and may be answered before it.
func TestAnOlderAnswerShortensNothing(t *testing.T) {
	const lease = 30 * time.Second
	var mu sync.Mutex
	var sent []time.Time
	var answerFirst chan struct{}
	onBench(t, func(m *meddler) {
		answerFirst = make(chan struct{}) // one of the bubble's
		m.renew = func(ctx context.Context, req backend.RenewRequest, do func(context.Context, backend.RenewRequest) (backend.RenewResult, error)) (backend.RenewResult, error) {
			mu.Lock()
			sent = append(sent, time.Now())
			n := len(sent)
			mu.Unlock()
			switch n {
			case 1:
				res, err := do(ctx, req)
				<-answerFirst
				return res, err
			case 2:
				return do(ctx, req)
			default:
				return backend.RenewResult{}, errCut
			}
		}
	}, func(b *bench) {
		l := b.client.Locker("x")
		l.Lock()
		lost := l.Lost(b.Context())
		time.Sleep(lease * 2 / 3)
		mu.Lock()
		if len(sent) < 2 {
			b.Fatalf("%d renewals in two thirds of a lease", len(sent))
		}
		second := sent[1]
		mu.Unlock()
		close(answerFirst)
		<-lost
		if held := time.Since(second); held != lease-lease/100 {
			b.Errorf("lost %v after the last renewal that was answered was sent, want %v", held, lease-lease/100)
		}
	}, dlock.WithLease(lease))
}

// A process may wake up when a lease is over and no timer of its own has run yet.
func TestUnlockLooksAtTheClock(t *testing.T) {
	onBench(t, func(*meddler) {}, func(b *bench) {
		l := b.client.Locker("x")
		for range 500 {
			b.must(l.LockContext(b.Context(), dlock.FixedLease(time.Second)))
			time.Sleep(990 * time.Millisecond) // until the very moment
			if err := l.UnlockContext(b.Context()); !errors.Is(err, dlock.ErrLost) {
				b.Fatalf("an unlock when the lease is over: %v", err)
			}
			synctest.Wait()
		}
	})
}

// lateReentry cuts re-entries off before they reach the store, and carries the first of them out when
// it is called.
func lateReentry(m *meddler) (deliver func() error) {
	var first func() error
	m.acquire = func(ctx context.Context, req backend.AcquireRequest, do func(context.Context, backend.AcquireRequest) (backend.AcquireResult, error)) (backend.AcquireResult, error) {
		if !req.Reentry {
			return do(ctx, req)
		}
		if first == nil {
			first = func() error { _, err := do(context.Background(), req); return err }
		}
		return backend.AcquireResult{}, errCut
	}
	return func() error { return first() }
}

// A re-entry that is carried out after the last release begins a hold that nobody has.
func TestALateReentryIsTakenBackForALeaseAfterTheUnlock(t *testing.T) {
	var deliver func() error
	onBench(t, func(m *meddler) { deliver = lateReentry(m) }, func(b *bench) {
		const lease = 10 * time.Second
		l, ctx := b.client.Locker("x"), b.owner()
		b.must(l.LockContext(ctx, dlock.FixedLease(lease)))
		if _, err := l.TryLock(ctx, dlock.FixedLease(lease)); err == nil {
			b.Fatal("a re-entry without an answer: no error")
		}
		time.Sleep(lease * 9 / 10)
		b.must(l.UnlockContext(ctx))
		time.Sleep(lease / 2)
		b.must(deliver())
		time.Sleep(lease * 6 / 10)
		b.wantFree("more than a lease after the unlock")
	})
}

// The same where the hold was renewed, and is lost.
func TestALateReentryIsTakenBackForALeaseAfterTheLastRenewal(t *testing.T) {
	var deliver func() error
	onBench(t, func(m *meddler) { deliver = lateReentry(m) }, func(b *bench) {
		const lease = dlock.DefaultLease
		l, ctx := b.client.Locker("x"), b.owner()
		b.must(l.LockContext(ctx))
		if _, err := l.TryLock(ctx); err == nil {
			b.Fatal("a re-entry without an answer: no error")
		}
		time.Sleep(5 * lease)
		_, err := b.direct.ForceRelease(ctx, backend.ForceReleaseRequest{Name: "x"})
		b.must(err)
		<-l.Lost(ctx)
		if err := l.UnlockContext(ctx); !errors.Is(err, dlock.ErrLost) {
			b.Errorf("the unlock of what is lost: %v", err)
		}
		time.Sleep(lease / 6)
		b.must(deliver())
		time.Sleep(lease * 9 / 10)
		b.wantFree("more than a lease after the loss")
	})
}

// That nothing is held is news of the moment at which it was asked, and not of that at which it is heard.
func TestATakeBackAsksAgainAfterWhatMayYetCome(t *testing.T) {
	const lease = 10 * time.Second
	for range 100 { // until it asks at such a time
		var begin time.Time
		var late func() error
		var slow atomic.Bool
		onBench(t, func(m *meddler) {
			m.acquire = func(_ context.Context, req backend.AcquireRequest, do func(context.Context, backend.AcquireRequest) (backend.AcquireResult, error)) (backend.AcquireResult, error) {
				late = func() error { _, err := do(context.Background(), req); return err }
				return backend.AcquireResult{}, errCut
			}
			m.release = func(ctx context.Context, req backend.ReleaseRequest, do func(context.Context, backend.ReleaseRequest) (backend.ReleaseResult, error)) (backend.ReleaseResult, error) {
				res, err := do(ctx, req)
				if at := time.Since(begin); at >= lease*8/10 && at < lease {
					slow.Store(true)
					time.Sleep(lease + lease/50 - at)
				}
				return res, err
			}
		}, func(b *bench) {
			begin = time.Now()
			if ok, err := b.client.Locker("x").TryLock(b.Context(), dlock.FixedLease(lease)); ok || err == nil {
				b.Fatalf("TryLock without an answer: %v, %v", ok, err)
			}
			time.Sleep(lease + lease/100)
			if !slow.Load() {
				return
			}
			b.must(late())
			time.Sleep(lease / 2)
			b.wantFree("after a late acquisition, while a release had no answer")
		})
		if slow.Load() {
			return
		}
	}
	t.Error("no release was sent in the last fifth of a lease")
}

// However long the pauses between the requests of a take-back have become, one is sent at the end of
// the lease.
func TestATakeBackAsksAtTheEndOfTheLease(t *testing.T) {
	const lease = 10 * time.Second
	var late func() error
	onBench(t, func(m *meddler) {
		type carryOut = func(context.Context, backend.AcquireRequest) (backend.AcquireResult, error)
		m.acquire = func(
			_ context.Context, req backend.AcquireRequest, do carryOut,
		) (backend.AcquireResult, error) {
			late = func() error { _, err := do(context.Background(), req); return err }
			return backend.AcquireResult{}, errCut
		}
	}, func(b *bench) {
		if ok, err := b.client.Locker("x").TryLock(b.Context(), dlock.FixedLease(lease)); ok || err == nil {
			b.Fatalf("TryLock without an answer: %v, %v", ok, err)
		}
		time.Sleep(lease - time.Nanosecond)
		b.must(late())
		time.Sleep(2 * time.Nanosecond)
		b.wantFree("at the end of the lease")
	})
}

func TestANumberIsTakenBackByOneAtATime(t *testing.T) {
	var under, most atomic.Int32
	onBench(t, func(m *meddler) {
		m.limits.LeaseStep = time.Hour // so that the end of a lease is released, too
		m.release = func(ctx context.Context, req backend.ReleaseRequest, do func(context.Context, backend.ReleaseRequest) (backend.ReleaseResult, error)) (backend.ReleaseResult, error) {
			defer under.Add(-1)
			most.Store(max(most.Load(), under.Add(1)))
			time.Sleep(time.Second / 2)
			return do(ctx, req)
		}
	}, func(b *bench) {
		l := b.client.Locker("x")
		b.must(l.LockContext(b.Context(), dlock.FixedLease(time.Second)))
		time.Sleep(time.Second + time.Second/5)
		if err := l.UnlockContext(b.Context()); !errors.Is(err, dlock.ErrLost) {
			b.Errorf("the unlock of what is lost: %v", err)
		}
		time.Sleep(time.Minute)
		b.wantFree("after the unlock")
		if n := most.Load(); n != 1 {
			b.Errorf("%d releases of one number at a time", n)
		}
	}, dlock.WithLease(time.Hour))
}

func TestRenewalsThatFailAreRepeatedInTime(t *testing.T) {
	var failed atomic.Int32
	onBench(t, func(m *meddler) {
		m.renew = func(ctx context.Context, req backend.RenewRequest, do func(context.Context, backend.RenewRequest) (backend.RenewResult, error)) (backend.RenewResult, error) {
			if failed.Add(1) <= 6 {
				return backend.RenewResult{}, errCut
			}
			return do(ctx, req)
		}
	}, func(b *bench) {
		l := b.client.Locker("x")
		l.Lock()
		for range 5 {
			failed.Store(0)
			time.Sleep(dlock.DefaultLease)
			if held, err := l.IsHeld(b.Context()); !held || err != nil {
				b.Fatalf("after six renewals that failed at once: IsHeld = %v, %v", held, err)
			}
		}
	})
}

// An attempt without an answer may yet shorten the lease to what it asked for: so renewals come as often as
// that needs.
func TestRenewalsMindAShorterLeaseInDoubt(t *testing.T) {
	attempts := 0
	onBench(t, func(m *meddler) {
		m.acquire = func(ctx context.Context, req backend.AcquireRequest, do func(context.Context, backend.AcquireRequest) (backend.AcquireResult, error)) (backend.AcquireResult, error) {
			attempts++
			if attempts == 1 {
				return backend.AcquireResult{}, errCut
			}
			return do(ctx, req)
		}
	}, func(b *bench) {
		l, ctx := b.client.Locker("x"), b.owner()
		b.must(l.LockContext(ctx, dlock.FixedLease(dlock.DefaultLease/10)))
		b.must(l.LockContext(ctx)) // from now on it is renewed
		time.Sleep(10 * dlock.DefaultLease)
		if held, err := l.IsHeld(ctx); !held || err != nil {
			b.Errorf("IsHeld of what is renewed = %v, %v", held, err)
		}
	})
}

// Two goroutines lock in one owner's name at once: whoever comes second re-enters.
func TestOneOwnerTwiceAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := dlock.New(membackend.New())
		defer c.Close()
		l := c.Locker("x")
		for range 2000 {
			ctx, cancel := context.WithTimeout(dlock.WithOwner(t.Context(), dlock.NewOwner()), time.Minute)
			var all sync.WaitGroup
			for range 3 {
				all.Go(func() {
					if err := l.LockContext(ctx); err != nil {
						t.Error(err)
					}
				})
			}
			all.Wait()
			if t.Failed() {
				cancel()
				return
			}
			for range 3 {
				if err := l.UnlockContext(ctx); err != nil {
					t.Fatal(err)
				}
			}
			cancel()
		}
	})
}

func TestCloseWaitsForStepsThatTakeAMoment(t *testing.T) {
	var ended atomic.Bool
	onBench(t, func(m *meddler) {
		m.acquire = func(ctx context.Context, _ backend.AcquireRequest, _ func(context.Context, backend.AcquireRequest) (backend.AcquireResult, error)) (backend.AcquireResult, error) {
			<-ctx.Done()
			time.Sleep(100 * time.Millisecond)
			ended.Store(true)
			return backend.AcquireResult{}, errCut
		}
	}, func(b *bench) {
		locked := make(chan error)
		go func() { locked <- b.client.Locker("x").LockContext(b.Context()) }()
		synctest.Wait()
		b.must(b.client.Close())
		if !ended.Load() {
			b.Error("a step goes on after Close")
		}
		if err := <-locked; !errors.Is(err, dlock.ErrClosed) {
			b.Errorf("LockContext = %v, want ErrClosed", err)
		}
	})
}

// What fn has left running must not believe in the lock any more when others can have it.
func TestTheContextOfDoEndsBeforeTheRelease(t *testing.T) {
	var inside context.Context
	onBench(t, func(m *meddler) {
		m.release = func(ctx context.Context, req backend.ReleaseRequest, do func(context.Context, backend.ReleaseRequest) (backend.ReleaseResult, error)) (backend.ReleaseResult, error) {
			if !isOver(inside.Done()) || inside.Err() == nil {
				t.Error("the lock is being released, and fn's context says that it is held")
			}
			return do(ctx, req)
		}
	}, func(b *bench) {
		b.must(b.client.Locker("x").Do(b.Context(), func(ctx context.Context) error {
			inside = ctx
			return nil
		}))
	})
}

// A lock can be lost before fn has begun.
func TestDoTellsOfALossBeforeItBegan(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := dlock.New(membackend.New(), dlock.WithLogger(slog.New(slog.DiscardHandler)))
		defer c.Close()
		for range 5000 {
			go c.Locker("x").ForceUnlock(t.Context())
			l := c.Locker("x")
			l.Do(t.Context(), func(ctx context.Context) error {
				time.Sleep(time.Second)
				if isOver(l.Lost(ctx)) && !isOver(ctx.Done()) {
					t.Error("the lock was lost, and the context of Do goes on")
				}
				return nil
			})
			if t.Failed() {
				return
			}
		}
	})
}

// Whether or not there was time to ask the store.
func TestAWaitBehindTheClientsOwnHoldEndsWithFalse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := dlock.New(membackend.New())
		defer c.Close()
		held := c.Locker("x")
		held.Lock()
		defer held.Unlock()
		for _, wait := range []time.Duration{time.Microsecond, time.Millisecond, time.Second} {
			if ok, err := c.Locker("x").TryLock(t.Context(), dlock.Wait(wait)); ok || err != nil {
				t.Errorf("TryLock with a wait of %v = %v, %v", wait, ok, err)
			}
		}
	})
}
