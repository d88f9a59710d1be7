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
	"github.com/seed951563bd/distsync/membackend"
)

// A ledger is what a Trace is told, one line for each event, and of which holds the end wasn't told.
type ledger struct {
	mu    sync.Mutex
	lines []string
	open  map[string]int // by name and holder
	calls int            // acquiring calls under way
}

func (l *ledger) note(hold string, n int, format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, fmt.Sprintf(format, args...))
	if l.open == nil {
		l.open = make(map[string]int)
	}
	if l.open[hold] += n; l.open[hold] == 0 {
		delete(l.open, hold)
	}
}

// trace returns a Trace that writes into the ledger.
func (l *ledger) trace() Option {
	return WithTrace(&Trace{
		AcquireStart: func(ctx context.Context, e AcquireStart) context.Context {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.calls++
			return ctx
		},
		AcquireDone: func(_ context.Context, e AcquireDone) {
			n := 0
			if e.Outcome == OutcomeAcquired && e.Via != ViaReentry {
				n = 1
			}
			l.note(e.Name+e.HolderID, n, "lock %v %v %v", e.Kind, e.Outcome, e.Via)
			l.mu.Lock()
			defer l.mu.Unlock()
			l.calls--
		},
		ReleaseDone: func(_ context.Context, e ReleaseDone) {
			n := 0
			if e.Outcome == UnlockReleased || e.Outcome == UnlockHandedOn || e.Outcome == UnlockFailed || e.Outcome == UnlockForsaken {
				n = -1
			}
			l.note(e.Name+e.HolderID, n, "unlock %v %v", e.Kind, e.Outcome)
		},
		Lost: func(e *Loss) { l.note(e.Name+e.Holder, -1, "lost %v %v", e.Kind, e.Reason) },
	})
}

// want fails the test if these aren't the events since the last call.
func (l *ledger) want(t *testing.T, lines ...string) {
	t.Helper()
	synctest.Wait()
	l.mu.Lock()
	defer l.mu.Unlock()
	if got, want := strings.Join(l.lines, "\n"), strings.Join(lines, "\n"); got != want {
		t.Errorf("told of\n%s\nwant\n%s", got, want)
	}
	l.lines = nil
}

// balance fails the test if something was told to have begun that hasn't ended.
func (l *ledger) balance(t *testing.T) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.open) > 0 || l.calls != 0 {
		t.Errorf("begun and not ended: holds %v, %d calls", l.open, l.calls)
	}
}

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
		slices.Sort(l.lines) // who hands it on and who gets it tell of that at the same time
		l.mu.Unlock()
		l.want(t, "lock exclusive acquired handover", "lock exclusive acquired store", "unlock exclusive handover", "unlock exclusive released")
	})
}

func TestTraceOfReaders(t *testing.T) {
	traced(t, func(t *testing.T, l *ledger, c, other *Client) {
		rw := c.RWLocker("x")
		rw.RLock()
		rw.RLock() // the same variable: one hold, counted twice
		h, err := rw.Reader().Acquire(t.Context())
		must(t, err)
		l.want(t, "lock read acquired store", "lock read acquired reentry", "lock read acquired joined")
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

// Steps are made with the context that AcquireStart returned, the context of a hold isn't that, and several traces are all told.
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
					seen = append(seen, fmt.Sprint(name, " ", e.Op, " ", e.Name, " ", ctx.Value(key{}), " ", e.Took))
				},
			})
		}
		store := &hooked{Backend: membackend.New()}
		store.acquire = func(ctx context.Context, _ backend.AcquireRequest, do func(context.Context) (backend.AcquireResult, error)) (backend.AcquireResult, error) {
			if ctx.Value(key{}) != "ab" {
				t.Errorf("the store is called with %v", ctx.Value(key{}))
			}
			time.Sleep(time.Millisecond)
			return do(ctx)
		}
		c := New(store, quiet(), steps("a"), steps("b"))
		defer c.Close()
		must(t, c.Locker("x").Do(context.WithValue(t.Context(), key{}, ""), func(ctx context.Context) error {
			if ctx.Value(key{}) != "" {
				t.Errorf("the context of the hold has %v", ctx.Value(key{}))
			}
			return nil
		}))
		want := "a acquire x ab 1ms,b acquire x ab 1ms,a done ab 1ms,b done ab 1ms,a release x  0s,b release x  0s"
		if got := strings.Join(seen, ","); got != want {
			t.Errorf("told of\n%s\nwant\n%s", got, want)
		}
	})
}

func TestTraceOfRenewalsAndSubscriptions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &deafStore{Backend: membackend.New()}
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
		store.deaf.Store(true)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		c.Locker("x").LockContext(ctx)
		waitless, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		go func() {
			time.Sleep(time.Second)
			store.deaf.Store(false)
		}()
		other := New(store, quiet())
		defer other.Close()
		h, err := other.Locker("y").Acquire(t.Context())
		must(t, err)
		c.Locker("y").LockContext(waitless)
		must(t, h.Release(t.Context()))
		mu.Lock()
		defer mu.Unlock()
		if got, want := strings.Join(changes, ","), "x false deaf,y false deaf,y true <nil>"; got != want {
			t.Errorf("subscriptions: %s, want %s", got, want)
		}
		if s := c.Stats(); s.Renewed != uint64(rounds) || s.NotRenewed != 0 || s.FromStore != 1 || s.Canceled != 2 {
			t.Errorf("Stats = %+v", s)
		}
	})
}

// deafStore can't be subscribed to for a while.
type deafStore struct {
	backend.Backend
	deaf atomic.Bool
}

func (b *deafStore) Open() backend.Session { return &deafSession{b.Backend.Open(), b} }

type deafSession struct {
	backend.Session
	b *deafStore
}

func (s *deafSession) Subscribe(ctx context.Context, req backend.SubscribeRequest) (backend.Subscription, error) {
	if s.b.deaf.Load() {
		return nil, &backend.Error{Kind: backend.Retry, Err: errors.New("deaf")}
	}
	return s.Session.(backend.Notifier).Subscribe(ctx, req)
}

// Acquisitions and releases are logged for those who want to know, and nothing is added to the log for others.
func TestDebugLog(t *testing.T) {
	for _, level := range []slog.Level{slog.LevelDebug, slog.LevelInfo} {
		t.Run(level.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var l logs
				c := New(membackend.New(), WithLogger(slog.New(slog.NewTextHandler(&l, &slog.HandlerOptions{Level: level}))))
				defer c.Close()
				c.Locker("x").Do(t.Context(), func(context.Context) error { return nil })
				synctest.Wait()
				want := 0
				if level == slog.LevelDebug {
					want = 1
				}
				if locked, unlocked := l.count(`"dlock: lock"`, "x"), l.count(`"dlock: unlock"`, "x"); locked != want || unlocked != want {
					t.Errorf("logged %d and %d times, want %d: %s", locked, unlocked, want, l.lines.String())
				}
			})
		})
	}
}

// brokenBatches is a store whose batches of renewals all fail.
type brokenBatches struct{ backend.Backend }

func (b brokenBatches) Open() backend.Session { return brokenBatch{b.Backend.Open()} }

type brokenBatch struct{ backend.Session }

func (brokenBatch) RenewBatch(_ context.Context, reqs []backend.RenewRequest, answer func(int, backend.RenewResult, error)) {
	for i := range reqs {
		answer(i, backend.RenewResult{}, &backend.Error{Kind: backend.Retry, Err: errors.New("down")})
	}
}

// A batch of renewals that fails is told as a step that failed, as one renewal is.
func TestTraceOfABatchThatFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		steps := make(chan StepDone, 100)
		c := New(brokenBatches{membackend.New()}, quiet(), WithTrace(&Trace{StepDone: func(_ context.Context, e StepDone) { steps <- e }}))
		defer c.Close()
		must(t, c.Locker("x").LockContext(t.Context()))
		<-steps // acquire
		time.Sleep(DefaultLease / 2)
		if e := <-steps; e.Op != "renew" || e.Err == nil {
			t.Errorf("told of %+v; want a renewal that failed", e)
		}
	})
}

// What is held when a client is closed ends for a Trace, and only once.
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

// slowReleases is a store whose releases wait until they are let go.
type slowReleases struct {
	backend.Backend
	let chan struct{}
}

func (b slowReleases) Open() backend.Session { return slowRelease{b.Backend.Open(), b.let} }

type slowRelease struct {
	backend.Session
	let chan struct{}
}

func (s slowRelease) Release(ctx context.Context, req backend.ReleaseRequest) (backend.ReleaseResult, error) {
	<-s.let
	return s.Session.Release(ctx, req)
}

// An unlock that is under way when the client is closed is told of: nobody else tells that the hold has ended.
func TestTraceOfAnUnlockDuringClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l ledger
		let := make(chan struct{})
		c := New(slowReleases{membackend.New(), let}, quiet(), l.trace())
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

// Of a lock that was got just before the client was closed it isn't told that it was got and nothing more.
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

// Lost is called once all that was lost has ended: whoever looks on keeps nobody from hearing of it.
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

// Unlocks that don't wait for a step of their own hold go on in the background, and one of them may be the last.
func TestTraceOfUnlocksInTheBackground(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l ledger
		let := make(chan struct{})
		c := New(slowReleases{membackend.New(), let}, quiet(), l.trace())
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

// A reader who comes too late gives back what is left of another of the same Locker, who has given back what was meant for him.
func TestTraceOfAReaderWhoGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l ledger
		store := membackend.New()
		c := New(store, quiet(), l.trace())
		defer c.Close()
		lk := c.RWLocker("x").Reader()
		must(t, lk.LockContext(t.Context(), FixedLease(time.Minute)))

		// The next of this Locker is handed another hold, and its context ends before it has taken it.
		a := c.newAcquisition()
		*a = acquisition{call: call{kind: backend.Read, name: "x", party: party(lk.plain), o: acquireOptions{lease: DefaultLease}}, waiting: waiting{signal: a.signal}}
		other, err := c.RWLocker("x").Reader().Acquire(t.Context())
		must(t, err)
		c.mu.Lock()
		o := c.objectLocked(backend.Read, "x")
		a.handed = c.joinReadersLocked(o, other.hold.claim, a)
		handed := a.handed
		c.unlock()
		must(t, c.giveUpHold(t.Context(), handed)) // as an unlock of the other does that finds it
		over, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := c.take(over, a); err == nil {
			t.Fatal("taken")
		}
		synctest.Wait()
		must(t, other.Release(t.Context()))
		synctest.Wait()
		l.balance(t)
		empty(t, c)
	})
}

// panickyReleases is a store whose next release panics.
type panickyReleases struct {
	backend.Backend
	panics atomic.Bool
}

func (b *panickyReleases) Open() backend.Session { return &panickyRelease{b.Backend.Open(), b} }

type panickyRelease struct {
	backend.Session
	b *panickyReleases
}

func (*panickyRelease) Capabilities() backend.Capabilities {
	return backend.Capabilities{Steps: backend.StepsNeverWait}
}

func (s *panickyRelease) Release(ctx context.Context, req backend.ReleaseRequest) (backend.ReleaseResult, error) {
	if s.b.panics.CompareAndSwap(true, false) {
		panic("release")
	}
	return s.Session.Release(ctx, req)
}

// An unlock that panics in the store ends what it was to give back.
func TestTraceOfAnUnlockThatPanics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l ledger
		store := &panickyReleases{Backend: membackend.New()}
		c := New(store, quiet(), l.trace())
		defer c.Close()
		ctx := WithOwner(t.Context(), NewOwner())
		lk := c.Locker("x")
		must(t, lk.LockContext(ctx))
		must(t, lk.LockContext(ctx))
		for range 2 {
			store.panics.Store(true)
			func() {
				defer func() { recover() }()
				lk.UnlockContext(ctx)
			}()
		}
		l.want(t, "lock exclusive acquired store", "lock exclusive acquired reentry", "unlock exclusive held", "unlock exclusive error")
		l.balance(t)
	})
}

// Nobody is left with a lock who doesn't know that he has it, since what looks on has panicked.
func TestTraceThatPanics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l ledger
		c := New(membackend.New(), quiet(), l.trace(), WithTrace(&Trace{AcquireDone: func(context.Context, AcquireDone) { panic("trace") }}))
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

// A writer may begin to read in one goroutine while he ends it in another.
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
		r := &relay{Backend: membackend.New()}
		var got []Outcome
		c := New(r, quiet(), WithTrace(&Trace{AcquireDone: func(_ context.Context, e AcquireDone) { got = append(got, e.Outcome) }}))
		defer c.Close()
		r.set(func(ctx context.Context, op, name string, do func()) error {
			if op == "acquire" {
				return &backend.Error{Kind: backend.Retry, Err: context.DeadlineExceeded} // of a node, or of a dial
			}
			do()
			return nil
		})
		ok, err := c.Locker("a").TryLock(context.Background())
		if ok || !errors.Is(err, ErrUnavailable) {
			t.Error(ok, err)
		}
		if len(got) != 1 || got[0] != OutcomeFailed {
			t.Errorf("the outcomes are %v, want error: no context has ended; Stats: %+v", got, c.Stats())
		}
	})
}

// A step that is left is told, also one of a batch.
func TestTraceStepsLeftInABatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &relay{Backend: membackend.New()}
		var acquires atomic.Int64
		c := New(r, quiet(), WithTrace(&Trace{StepDone: func(_ context.Context, e StepDone) {
			if e.Op == "acquire" {
				acquires.Add(1)
			}
		}}))
		defer c.Close()
		over := make(chan struct{})
		r.set(func(ctx context.Context, op, name string, do func()) error {
			if op == "acquire" {
				<-over // whatever ctx says
				return &backend.Error{Kind: backend.Unknown, Err: errors.New("timeout")}
			}
			do()
			return nil
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
			t.Errorf("%d of two steps of a batch that were left are told; at last %d", together, acquires.Load()-1)
		}
	})
}

// Steps are told with the context that AcquireStart returned, also those of a batch.
func TestTraceStepsOfABatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		type key struct{}
		var without atomic.Int64
		c := New(&relay{Backend: membackend.New()}, quiet(), WithTrace(&Trace{
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
			t.Errorf("%d steps of a batch are told with a context that isn't that of their AcquireStart", n)
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
			t.Errorf("the unlock (%v) is told as one that Lost has told of, and it hasn't: %v", err, ends)
		}
	})
}
