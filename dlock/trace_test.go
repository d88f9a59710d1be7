package dlock

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/dlock/internal/protocol"
	"github.com/seed951563bd/distsync/membackend"
)

// traced runs a test in a bubble, with a client that is traced and another on the same store.
func traced(t *testing.T, run func(t *testing.T, l *ledger, c, other *Client), opts ...Option) {
	synctest.Test(t, func(t *testing.T) {
		var l ledger
		store := membackend.New()
		c := New(store, append([]Option{quiet(), l.trace()}, opts...)...)
		defer c.Close()
		other := New(store, quiet())
		defer other.Close()
		run(t, &l, c, other)
		l.balance(t)
		empty(t, c)
	})
}

func TestTraceOfALock(t *testing.T) {
	traced(t, func(t *testing.T, l *ledger, c, other *Client) {
		ctx := WithOwner(t.Context(), NewOwner())
		lk := c.Locker("x")
		must(t, lk.LockContext(ctx))
		l.want(t, "lock exclusive acquired store")
		must(t, lk.LockContext(ctx))
		l.want(t, "lock exclusive acquired reentry")
		if _, err := c.Locker("x").TryLock(t.Context()); err != nil {
			t.Fatal(err)
		}
		l.want(t, "lock exclusive timeout store")
		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := c.Locker("x").LockContext(short); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatal(err)
		}
		l.want(t, "lock exclusive canceled store")
		must(t, lk.UnlockContext(ctx))
		l.want(t, "unlock exclusive held")
		must(t, lk.UnlockContext(ctx))
		l.want(t, "unlock exclusive released")
		if err := lk.UnlockContext(ctx); !errors.Is(err, ErrNotHeld) {
			t.Fatal(err)
		}
		l.want(t) // there was nothing to give back
	})
}

func TestTraceOfAHandover(t *testing.T) {
	traced(t, func(t *testing.T, l *ledger, c, other *Client) {
		h, err := c.Locker("x").Acquire(t.Context())
		must(t, err)
		next := wait(t.Context(), c.Locker("x"))
		synctest.Wait()
		must(t, h.Release(t.Context()))
		next.mustBeIn(t)
		next.l.Unlock()
		l.mu.Lock()
		slices.Sort(l.lines) // both sides of a hand-over report at the same time
		l.mu.Unlock()
		l.want(t, "lock exclusive acquired handover", "lock exclusive acquired store",
			"unlock exclusive handover", "unlock exclusive released")
	})
}

func TestTraceOfReaders(t *testing.T) {
	traced(t, func(t *testing.T, l *ledger, c, other *Client) {
		rw := c.RWLocker("x")
		rw.RLock()
		rw.RLock() // the same variable: one hold, counted twice
		h, err := rw.Reader().Acquire(t.Context())
		must(t, err)
		l.want(t, "lock read acquired store", "lock read acquired reentry",
			"lock read acquired joined")
		rw.RUnlock()
		rw.RUnlock()
		must(t, h.Release(t.Context()))
		l.want(t, "unlock read held", "unlock read released", "unlock read released")
	})
}

func TestTraceOfAFairLock(t *testing.T) {
	traced(t, func(t *testing.T, l *ledger, c, other *Client) {
		must(t, other.FairLocker("x").LockContext(WithOwner(t.Context(), NewOwner())))
		first, err := other.FairLocker("y").Acquire(t.Context())
		must(t, err)
		next := wait(t.Context(), c.FairLocker("y"))
		synctest.Wait()
		must(t, first.Release(t.Context()))
		next.mustBeIn(t)
		must(t, next.l.UnlockContext(t.Context()))
		l.want(t, "lock fair acquired granted", "unlock fair released")
	})
}

func TestTraceOfPermits(t *testing.T) {
	traced(t, func(t *testing.T, l *ledger, c, other *Client) {
		s := c.Semaphore("x", 2)
		h, err := s.Acquire(t.Context(), 2)
		must(t, err)
		if released, err := s.ForceRelease(t.Context()); !released || err != nil {
			t.Fatal(released, err)
		}
		l.want(t, "lock permits acquired store", "lost permits forced")
		if err := h.Release(t.Context()); !errors.Is(err, ErrLost) {
			t.Fatal(err)
		}
		l.want(t, "unlock permits lost")
	})
}

// Steps are made with the context that AcquireStart returned, the context of a hold isn't that, and
// several traces are all told.
func TestTraceContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		type key struct{}
		var seen []string
		steps := func(name string) Option {
			return WithTrace(&Trace{
				AcquireStart: func(ctx context.Context, e AcquireStart) context.Context {
					before, _ := ctx.Value(key{}).(string)
					return context.WithValue(ctx, key{}, before+name)
				},
				AcquireDone: func(ctx context.Context, e AcquireDone) {
					seen = append(seen, fmt.Sprint(name, " done ", ctx.Value(key{}), " ", e.Waited))
				},
				StepDone: func(ctx context.Context, e StepDone) {
					seen = append(seen, fmt.Sprint(name, " ", e.Op, " ", e.Name, " ",
						ctx.Value(key{}), " ", e.Took))
				},
			})
		}
		store := newScript(membackend.New())
		store.acquire.set(func(s *acquireStep) {
			if s.ctx.Value(key{}) != "ab" {
				t.Errorf("the store is called with %v", s.ctx.Value(key{}))
			}
			time.Sleep(time.Millisecond)
		})
		c := New(store, quiet(), steps("a"), steps("b"))
		defer c.Close()
		must(t, c.Locker("x").Do(context.WithValue(t.Context(), key{}, ""), func(
			ctx context.Context,
		) error {
			if ctx.Value(key{}) != "" {
				t.Errorf("the context of the hold has %v", ctx.Value(key{}))
			}
			return nil
		}))
		want := "a acquire x ab 1ms,b acquire x ab 1ms,a done ab 1ms,b done ab 1ms,a release x  " +
			"0s,b release x  0s"
		if got := strings.Join(seen, ","); got != want {
			t.Errorf("told of\n%s\nwant\n%s", got, want)
		}
	})
}

func TestTraceOfRenewalsAndSubscriptions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newScript(membackend.New())
		var mu sync.Mutex
		var rounds, failed int
		var changes []string
		c := New(store, quiet(), WithTrace(&Trace{
			RenewDone: func(e RenewDone) {
				mu.Lock()
				defer mu.Unlock()
				rounds += e.Locks
				failed += e.Failed
			},
			Subscription: func(e SubscriptionChange) {
				mu.Lock()
				defer mu.Unlock()
				changes = append(changes, fmt.Sprint(e.Name, " ", e.Up, " ", e.Err))
			},
		}))
		defer c.Close()
		c.Locker("x").Lock()
		time.Sleep(DefaultLease)
		mu.Lock()
		if rounds != 3 || failed != 0 {
			t.Errorf("%d renewals, %d of them failed", rounds, failed)
		}
		mu.Unlock()
		store.subscribe.fail(&backend.Error{Kind: backend.Retry, Err: errors.New("deaf")})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		c.Locker("x").LockContext(ctx)
		waitless, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		go func() {
			time.Sleep(time.Second)
			store.subscribe.set(nil)
		}()
		other := New(store, quiet())
		defer other.Close()
		h, err := other.Locker("y").Acquire(t.Context())
		must(t, err)
		c.Locker("y").LockContext(waitless)
		must(t, h.Release(t.Context()))
		mu.Lock()
		defer mu.Unlock()
		if got, want := strings.Join(changes,
			","), "x false deaf,y false deaf,y true <nil>"; got != want {
			t.Errorf("subscriptions: %s, want %s", got, want)
		}
		if s := c.Stats(); s.Renewed != uint64(rounds) || s.NotRenewed != 0 || s.FromStore != 1 ||
			s.Canceled != 2 {
			t.Errorf("Stats = %+v", s)
		}
	})
}

// Acquisitions and releases are logged at the level of debugging, and add nothing to the log at
// higher levels.
func TestDebugLog(t *testing.T) {
	for _, level := range []slog.Level{slog.LevelDebug, slog.LevelInfo} {
		t.Run(level.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var l logs
				c := New(membackend.New(),
					WithLogger(slog.New(slog.NewTextHandler(&l,
						&slog.HandlerOptions{Level: level}))))
				defer c.Close()
				c.Locker("x").Do(t.Context(), func(context.Context) error { return nil })
				synctest.Wait()
				want := 0
				if level == slog.LevelDebug {
					want = 1
				}
				if locked, unlocked := l.count(`"dlock: lock"`, "x"), l.count(`"dlock: unlock"`,
					"x"); locked != want || unlocked != want {
					t.Errorf("logged %d and %d times, want %d: %s", locked, unlocked, want,
						l.lines.String())
				}
			})
		})
	}
}

// A batch of renewals that fails is told as a step that failed, as one renewal is.
func TestTraceOfABatchThatFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		steps := make(chan StepDone, 100)
		store := newScript(membackend.New())
		store.renewsAtOnce = true
		store.batch.fail(&backend.Error{Kind: backend.Retry, Err: errors.New("down")})
		c := New(store, quiet(), WithTrace(&Trace{StepDone: func(_ context.Context, e StepDone) {
			steps <- e
		}}))
		defer c.Close()
		must(t, c.Locker("x").LockContext(t.Context()))
		<-steps // acquire
		time.Sleep(DefaultLease / 2)
		if e := <-steps; e.Op != "renew" || e.Err == nil {
			t.Errorf("told of %+v; want a renewal that failed", e)
		}
	})
}

// A hold of a client that is closed ends for a Trace, and only once.
func TestTraceOfClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l ledger
		c := New(membackend.New(), quiet(), l.trace())
		h, err := c.Locker("x").Acquire(t.Context())
		must(t, err)
		c.Close()
		h.Release(t.Context())
		l.want(t, "lock exclusive acquired store", "unlock exclusive closed")
		l.balance(t)
		if !c.Stats().Closed {
			t.Error("Stats don't say that it is closed")
		}
	})
}

// An unlock that is under way when the client is closed is told of: nobody else tells that the hold
// has ended.
func TestTraceOfAnUnlockDuringClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l ledger
		let := make(chan struct{})
		store := newScript(membackend.New())
		store.release.set(func(s *releaseStep) { s.waitFor(let) })
		c := New(store, quiet(), l.trace())
		lk := c.Locker("x")
		must(t, lk.LockContext(t.Context()))
		unlocked := make(chan error)
		go func() { unlocked <- lk.UnlockContext(t.Context()) }()
		synctest.Wait()
		closed := make(chan error)
		go func() { closed <- c.Close() }()
		synctest.Wait()
		close(let)
		must(t, <-unlocked)
		must(t, <-closed)
		l.balance(t)
	})
}

// closingLog is a log whose reader closes the client as it is asked about a first record.
type closingLog struct {
	slog.Handler
	once  sync.Once
	close func()
}

func (h *closingLog) Enabled(ctx context.Context, level slog.Level) bool {
	if level == slog.LevelDebug {
		h.once.Do(h.close)
	}
	return false
}

// Of a lock that was got just before the client was closed it isn't told that it was got and
// nothing more.
func TestTraceOfAnAcquisitionDuringClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l ledger
		log := new(closingLog)
		c := New(membackend.New(), WithLogger(slog.New(log)), l.trace())
		log.close = func() { c.Close() }
		lk := c.Locker("x")
		must(t, lk.LockContext(t.Context()))
		lk.UnlockContext(t.Context())
		l.balance(t)
	})
}

// Lost is called once all that was lost has ended: a Trace keeps nobody from hearing of it.
func TestTraceOfALossKeepsNobodyWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var contexts []context.Context
		told := 0
		c := New(membackend.New(), quiet(), WithTrace(&Trace{Lost: func(*Loss) {
			told++
			for _, ctx := range contexts {
				select {
				case <-ctx.Done():
				default:
					t.Error("told of a loss before a context has ended")
				}
			}
		}}))
		defer c.Close()
		r := c.RWLocker("x").Reader()
		for range 2 {
			h, err := r.Acquire(t.Context())
			must(t, err)
			contexts = append(contexts, h.Context())
		}
		if _, err := r.ForceUnlock(t.Context()); err != nil || told != 2 {
			t.Errorf("told of %d losses: %v", told, err)
		}
	})
}

// Unlocks that don't wait for a step of their own hold go on in the background, and one of them may
// be the last.
func TestTraceOfUnlocksInTheBackground(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l ledger
		let := make(chan struct{})
		store := newScript(membackend.New())
		store.release.set(func(s *releaseStep) { s.waitFor(let) })
		c := New(store, quiet(), l.trace())
		defer c.Close()
		ctx := WithOwner(t.Context(), NewOwner())
		lk := c.Locker("x")
		for range 3 {
			must(t, lk.LockContext(ctx))
		}
		first := make(chan error)
		go func() { first <- lk.UnlockContext(ctx) }()
		synctest.Wait()
		for range 2 {
			short, cancel := context.WithTimeout(ctx, time.Millisecond)
			must(t, lk.UnlockContext(short))
			cancel()
		}
		close(let)
		must(t, <-first)
		synctest.Wait()
		l.balance(t)
		empty(t, c)
	})
}

// Two readers of one Locker may swap their holds: one gives back the hold that was handed to the
// other. If the other's context has ended by then, it gives back what is left of the first.
func TestTraceOfAReaderWhoGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l ledger
		store := membackend.New()
		c := New(store, quiet(), l.trace())
		defer c.Close()
		lk := c.RWLocker("x").Reader()
		must(t, lk.LockContext(t.Context(), FixedLease(time.Minute)))

		// The next of this Locker is handed another hold, and its context ends before it has taken
		// it.
		a := c.newAcquisition()
		*a = acquisition{
			client: c,
			call: call{kind: protocol.Kind(backend.Read), name: "x", party: party(lk.plain),
				o: acquireOptions{lease: DefaultLease}}, waiting: waiting{signal: a.signal},
		}
		other, err := c.RWLocker("x").Reader().Acquire(t.Context())
		must(t, err)
		c.mu.Lock()
		o := c.state.object(protocol.Kind(backend.Read), "x")
		a.handed = a.joinReaders(&c.state, o, other.hold.claim)
		handed := a.handed
		c.unlock()
		must(t, handed.giveUp(t.Context(), c)) // as an unlock of the other does that finds it
		over, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := take(over, a); err == nil {
			t.Fatal("taken")
		}
		synctest.Wait()
		must(t, other.Release(t.Context()))
		synctest.Wait()
		l.balance(t)
		empty(t, c)
	})
}

// An unlock that panics in the store ends what it was to give back.
func TestTraceOfAnUnlockThatPanics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l ledger
		store := newScript(membackend.New()).but(neverWaits)
		c := New(store, quiet(), l.trace())
		defer c.Close()
		ctx := WithOwner(t.Context(), NewOwner())
		lk := c.Locker("x")
		must(t, lk.LockContext(ctx))
		must(t, lk.LockContext(ctx))
		for range 2 {
			store.release.set(func(s *releaseStep) {
				if s.n == 1 {
					panic("release")
				}
			})
			func() {
				defer func() { recover() }()
				lk.UnlockContext(ctx)
			}()
		}
		l.want(t, "lock exclusive acquired store", "lock exclusive acquired reentry",
			"unlock exclusive held", "unlock exclusive error")
		l.balance(t)
	})
}

// A call whose Trace panics leaves no lock behind: its caller doesn't know that it has one.
func TestTraceThatPanics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l ledger
		c := New(membackend.New(), quiet(), l.trace(), WithTrace(&Trace{AcquireDone: func(
			context.Context, AcquireDone,
		) {
			panic("trace")
		}}))
		defer c.Close()
		func() {
			defer func() { recover() }()
			c.Locker("x").LockContext(t.Context())
		}()
		synctest.Wait()
		if locked, err := c.Locker("x").IsLocked(t.Context()); locked || err != nil {
			t.Error("locked", err)
		}
		l.balance(t)
		empty(t, c)
	})
}

// A writer may begin to read in one goroutine while it ends a read in another.
func TestTraceOfReadingUnderAWrite(t *testing.T) {
	var l ledger
	c := New(membackend.New(), quiet(), l.trace())
	defer c.Close()
	ctx := WithOwner(t.Context(), NewOwner())
	rw := c.RWLocker("x")
	must(t, rw.Writer().LockContext(ctx))
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for range 500 {
				must(t, rw.Reader().LockContext(ctx))
				must(t, rw.Reader().UnlockContext(ctx))
			}
		})
	}
	all.Wait()
	must(t, rw.Writer().UnlockContext(ctx))
	l.balance(t)
}

// A timeout of the store's own is no end of the caller's context.
func TestTraceOutcomeOfAStoresTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newScript(membackend.New()).together(true)
		var got []Outcome
		c := New(r, quiet(), WithTrace(&Trace{AcquireDone: func(_ context.Context, e AcquireDone) {
			got = append(got, e.Outcome)
		}}))
		defer c.Close()
		r.set(func(s *anyStep) {
			if s.op == "acquire" {
				// of a node, or of a dial
				s.fail(&backend.Error{Kind: backend.Retry, Err: context.DeadlineExceeded})
			}
		})
		ok, err := c.Locker("a").TryLock(context.Background())
		if ok || !errors.Is(err, ErrUnavailable) {
			t.Error(ok, err)
		}
		if len(got) != 1 || got[0] != OutcomeFailed {
			t.Errorf("the outcomes are %v, want error: no context has ended; Stats: %+v", got,
				c.Stats())
		}
	})
}

// A step that is left is told, also one of a batch.
func TestTraceStepsLeftInABatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newScript(membackend.New()).together(true)
		var acquires atomic.Int64
		c := New(r, quiet(), WithTrace(&Trace{StepDone: func(_ context.Context, e StepDone) {
			if e.Op == "acquire" {
				acquires.Add(1)
			}
		}}))
		defer c.Close()
		over := make(chan struct{})
		r.set(func(s *anyStep) {
			if s.op == "acquire" {
				<-over // whatever ctx says
				s.fail(&backend.Error{Kind: backend.Unknown, Err: errors.New("timeout")})
			}
		})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := All(c.Locker("a"), c.Locker("b")).TryLock(ctx)
		if err == nil {
			t.Error("it has what the store didn't answer")
		}
		ctx, cancel = context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		together := acquires.Load()
		c.Locker("a").TryLock(ctx)
		if n := acquires.Load() - together; n != 1 {
			t.Errorf("single: %d told", n)
		}
		r.set(nil)
		close(over)
		synctest.Wait()
		if together != 2 {
			t.Errorf("%d of two steps of a batch that were left are told; at last %d", together,
				acquires.Load()-1)
		}
	})
}

// Steps are told with the context that AcquireStart returned, also those of a batch.
func TestTraceStepsOfABatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		type key struct{}
		var without atomic.Int64
		c := New(newScript(membackend.New()).together(true), quiet(), WithTrace(&Trace{
			AcquireStart: func(ctx context.Context, e AcquireStart) context.Context {
				return context.WithValue(ctx, key{}, e.Name)
			},
			StepDone: func(ctx context.Context, e StepDone) {
				if e.Op == "acquire" && ctx.Value(key{}) != e.Name {
					without.Add(1)
				}
			},
		}))
		defer c.Close()
		nothing := func(context.Context) error { return nil }
		must(t, c.Locker("x").Do(t.Context(), nothing))
		if n := without.Load(); n > 0 {
			t.Errorf("single: %d", n)
		}
		must(t, All(c.Locker("a"), c.Locker("b")).Do(t.Context(), nothing))
		if n := without.Load(); n > 0 {
			t.Errorf("%d steps of a batch are told with a context that isn't that of their "+
				"AcquireStart", n)
		}
	})
}

// UnlockAlreadyLost is what Lost has told of, and not Close.
func TestTraceAlreadyLostAfterClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := membackend.New()
		lost, already := 0, 0
		var ends []ReleaseOutcome
		c := New(mem, quiet(), WithTrace(&Trace{
			Lost:        func(*Loss) { lost++ },
			ReleaseDone: func(_ context.Context, e ReleaseDone) { ends = append(ends, e.Outcome) },
		}))
		l := c.Locker("a")
		l.Lock()
		c.Close()
		time.Sleep(2 * DefaultLease)
		err := l.UnlockContext(t.Context())
		for _, o := range ends {
			if o == UnlockAlreadyLost {
				already++
			}
		}
		if already > lost {
			t.Errorf("the unlock (%v) is told as one that Lost has told of, and it hasn't: %v", err,
				ends)
		}
	})
}
