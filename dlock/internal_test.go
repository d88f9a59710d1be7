package dlock

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/membackend"
)

// quiet is a logger for tests in which losses are expected.
func quiet() Option { return WithLogger(slog.New(slog.DiscardHandler)) }

// empty fails the test if a client that nobody uses still has something in its tables.
func empty(t *testing.T, c *Client) {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	for table, n := range map[string]int{
		"locks": len(c.objects[locks]), "read-write locks": len(c.objects[readWrites]), "semaphores": len(c.objects[semaphores]), "alarms": len(c.alarms.heap),
		"lost": len(c.lost), "losses": len(c.losses), "ends": len(c.ends), "records": len(c.records),
	} {
		if n != 0 {
			t.Errorf("%d entries in the table of %s of an idle client", n, table)
		}
	}
}

// heldOf returns who has a plain lock, or nil. The client's mutex is held.
func heldOf(c *Client, name string) *hold {
	if o := c.objectLocked(backend.Exclusive, name); o != nil {
		return o.alone
	}
	return nil
}

func TestTablesAreEmptyWhenIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := membackend.New()
		c, other := New(store, quiet()), New(store, quiet())
		defer c.Close()
		defer other.Close()
		ctx := context.Background()
		for i := range 10_000 {
			l := c.Locker(fmt.Sprint("name", i))
			mustTry(t, l)
			l.Unlock()
		}
		empty(t, c)

		// Waiters that get in, that give up, and a hold that is lost before it is unlocked.
		l := c.Locker("x")
		mustTry(t, other.Locker("x"), FixedLease(time.Second))
		var all sync.WaitGroup
		for range 3 {
			all.Go(func() {
				if err := l.Do(ctx, func(context.Context) error { return nil }); err != nil {
					t.Error(err)
				}
			})
			all.Go(func() {
				if ok, err := c.Locker("x").TryLock(ctx, Wait(time.Millisecond)); ok || err != nil {
					t.Errorf("TryLock of a lock that is held = %v, %v", ok, err)
				}
			})
		}
		all.Wait()
		owned := WithOwner(ctx, NewOwner())
		if err := l.LockContext(owned, FixedLease(time.Second)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Second)
		if err := l.UnlockContext(owned); !errors.Is(err, ErrLost) {
			t.Fatalf("unlock of a hold whose lease is over: %v", err)
		}
		time.Sleep(2 * DefaultLease) // an attempt that was cut short is taken back for a lease
		empty(t, c)
	})
}

// What a lock costs that is held, or waited for, is mostly these.
func TestSizes(t *testing.T) {
	if unsafe.Sizeof(uintptr(0)) != 8 {
		t.Skip("the sizes are those of a machine of 64 bits")
	}
	held := unsafe.Sizeof(hold{}) + unsafe.Sizeof(claim{}) + unsafe.Sizeof(object{})
	if held > 288 {
		t.Errorf("a hold, a claim and an object take %d bytes, more than 288", held)
	}
	if call := unsafe.Sizeof(acquisition{}); call > 384 {
		t.Errorf("an acquisition takes %d bytes, more than 384", call)
	}
}

func TestLossesAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New(membackend.New(), quiet(), WithLease(time.Second))
		defer c.Close()
		for i := range maxLosses + 100 {
			ctx := WithOwner(t.Context(), NewOwner())
			if err := c.Locker(fmt.Sprint(i)).LockContext(ctx, FixedLease(time.Millisecond)); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(time.Second)
		c.mu.Lock()
		kept := len(c.losses)
		c.mu.Unlock()
		if kept != maxLosses {
			t.Errorf("%d losses are remembered, not %d", kept, maxLosses)
		}
		time.Sleep(lossMemory * time.Second)
		empty(t, c)
	})
}

// counting counts the renewals that reach the store.
type counting struct {
	backend.Backend
	batches, renewals atomic.Int64
}

func (b *counting) Open() backend.Session { return countingSession{b.Backend.Open(), b} }

type countingSession struct {
	backend.Session
	b *counting
}

func (s countingSession) RenewBatch(ctx context.Context, reqs []backend.RenewRequest, answer func(int, backend.RenewResult, error)) {
	s.b.batches.Add(1)
	s.b.renewals.Add(int64(len(reqs)))
	s.Session.(backend.BatchRenewer).RenewBatch(ctx, reqs, answer)
}

func TestManyHoldsAreRenewedInFewBatchesWithoutAGoroutineEach(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n, lease = 10_000, 30 * time.Second
		b := &counting{Backend: membackend.New()}
		c := New(b, WithLease(lease), quiet())
		defer c.Close()
		before := runtime.NumGoroutine()
		for i := range n {
			mustTry(t, c.Locker(fmt.Sprint(i)))
			time.Sleep(lease / n) // so that no two were acquired together
		}
		b.batches.Store(0)
		b.renewals.Store(0)
		time.Sleep(lease)
		if g := runtime.NumGoroutine() - before; g > 10 {
			t.Errorf("%d goroutines for %d holds", g, n)
		}
		if r, n := b.renewals.Load(), int64(3*n); r < n || b.batches.Load() > 17 {
			t.Errorf("%d renewals in %d batches within a lease; want at least %d in at most 17", r, b.batches.Load(), n)
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		if held := len(c.objects[locks]); held != n {
			t.Errorf("%d of %d holds were lost", n-held, n)
		}
	})
}

func TestErrOfDoContextLooksAtTheClock(t *testing.T) {
	c := New(membackend.New(), quiet())
	defer c.Close()
	err := c.Locker("x").Do(t.Context(), func(ctx context.Context) error {
		child, cancel := context.WithCancel(ctx)
		defer cancel()
		if ctx.Err() != nil {
			t.Error("the context is over from the start")
		}
		// As after a pause of the process: the deadline has passed, and no timer has run yet.
		c.mu.Lock()
		heldOf(c, "x").claim.Gone(0)
		c.mu.Unlock()
		if ctx.Err() == nil || !errors.Is(context.Cause(ctx), ErrLost) {
			t.Errorf("after the deadline: Err() = %v, cause %v", ctx.Err(), context.Cause(ctx))
		}
		if !errors.Is(context.Cause(child), ErrLost) {
			t.Errorf("a child's cause: %v", context.Cause(child))
		}
		return nil
	})
	if !errors.Is(err, ErrLost) {
		t.Errorf("Do returned %v", err)
	}
}

// A renewal is answered after the lease is over, before a timer has run: the hold is lost all the
// same.
func TestARenewalThatIsAnsweredAfterItsLease(t *testing.T) {
	c := New(membackend.New(), quiet())
	defer c.Close()
	h, err := c.Locker("x").Acquire(t.Context())
	must(t, err)
	c.mu.Lock()
	cl := heldOf(c, "x").claim
	cl.Gone(0)
	cl.RenewalSent(c.now(), cl.Lease(), cl.Lease())
	c.mu.Unlock()
	c.renewed(cl, cl.kind, c.now(), cl.Lease(), backend.RenewResult{Held: true}, nil)
	if !errors.Is(h.Err(), ErrLost) {
		t.Errorf("a hold whose lease was over: %v", h.Err())
	}
}

func TestNewID(t *testing.T) {
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	shape := regexp.MustCompile(fmt.Sprintf("^%s/%d/[A-Z2-7]{16}$", regexp.QuoteMeta(host), os.Getpid()))
	a, b := newID(), newID()
	if !shape.MatchString(a) || a == b {
		t.Errorf("client ids %q, %q", a, b)
	}
}

func TestNewPanicsOnWhatItCannotUse(t *testing.T) {
	coarse := limited{membackend.New(), backend.Limits{MinLease: 2 * time.Second, LeaseStep: time.Second}}
	for name, c := range map[string]struct {
		b    backend.Backend
		opt  Option
		says string
	}{
		"nil backend":            {nil, WithClientID("a"), "backend is nil"},
		"nil option":             {membackend.New(), nil, "option is nil"},
		"empty client id":        {membackend.New(), WithClientID(""), "client id is empty"},
		"nil logger":             {membackend.New(), WithLogger(nil), "logger is nil"},
		"no lease":               {membackend.New(), WithLease(0), "shorter than 1ms"},
		"short lease":            {membackend.New(), WithLease(time.Millisecond - 1), "shorter than 1ms"},
		"less than no hand-over": {membackend.New(), WithHandover(-1), "is negative"},
		"endless hand-over":      {membackend.New(), WithHandover(math.MaxInt64), "longer than ten years"},
		"below limits":           {coarse, WithLease(time.Second), "store's minimum of 2s"},
	} {
		t.Run(name, func(t *testing.T) {
			defer func() {
				if p := fmt.Sprint(recover()); !strings.Contains(p, c.says) || !strings.HasPrefix(p, "dlock: New: ") {
					t.Errorf("panic %q, want one that says %q", p, c.says)
				}
			}()
			New(c.b, c.opt)
		})
	}
}

// limited is a store with limits.
type limited struct {
	backend.Backend
	limits backend.Limits
}

func (b limited) Limits() backend.Limits { return b.limits }

func TestStoredLease(t *testing.T) {
	fine := New(membackend.New())
	defer fine.Close()
	coarse := New(limited{membackend.New(), backend.Limits{MinLease: 2 * time.Second, LeaseStep: time.Second}})
	defer coarse.Close()
	for _, c := range []struct {
		client    *Client
		ask, want time.Duration
	}{
		{fine, time.Millisecond, time.Millisecond},
		{fine, 30 * time.Second, 30 * time.Second},
		{coarse, time.Millisecond, 2 * time.Second},
		{coarse, 2 * time.Second, 2 * time.Second},
		{coarse, 2*time.Second + time.Millisecond, 3 * time.Second},
	} {
		if got := c.client.stored(c.ask); got != c.want {
			t.Errorf("a lease of %v is %v in the store, not %v", c.ask, got, c.want)
		}
	}
}

func TestRenewalsComeInTimeAndOnAGrid(t *testing.T) {
	for _, lease := range []time.Duration{time.Millisecond, 10 * time.Millisecond, time.Second, 30 * time.Second} {
		for name, test := range map[string]struct {
			kind  backend.Kind
			lease time.Duration
		}{
			"a lock": {backend.Exclusive, lease},
			"a read with a lease longer than the client's": {backend.Read, 100 * lease},
		} {
			c, h := &Client{lease: lease}, &claim{kind: test.kind}
			h.Granted(time.Hour, test.lease)
			h.Want(test.lease, true)
			cells := map[instant]bool{}
			for sent := instant(0); sent < lease; sent += lease / 1000 {
				at := c.nextLook(h, sent)
				cells[at] = true
				if at <= sent || at > sent+lease/3 {
					t.Fatalf("%s, lease %v: the renewal after a request at %v is due at %v", name, lease, sent, at)
				}
			}
			if len(cells) > 18 {
				t.Errorf("%s, lease %v: %d different times of renewal within one lease", name, lease, len(cells))
			}
		}
	}
}

func TestBackoffStaysInBounds(t *testing.T) {
	var b backoff
	for i := range 100 {
		d := b.next(50*time.Millisecond, time.Second)
		if d < 25*time.Millisecond || d > time.Second {
			t.Fatalf("pause %d is %v", i, d)
		}
	}
	if b.delay != time.Second {
		t.Errorf("after 100 failures the delay is %v, not the limit", b.delay)
	}
	b.reset()
	if d := b.next(50*time.Millisecond, time.Second); d > 50*time.Millisecond {
		t.Errorf("the first pause after a success is %v", d)
	}
	if d := b.next(50*time.Millisecond, time.Millisecond); d < 25*time.Millisecond {
		t.Errorf("a limit below the first pause leads to a pause of %v", d)
	}
}

func mustTry(t *testing.T, l *Locker, opts ...AcquireOption) {
	t.Helper()
	if ok, err := l.TryLock(t.Context(), opts...); !ok || err != nil {
		t.Fatalf("TryLock(%q) = %v, %v", l.Name(), ok, err)
	}
}

// Names leave nothing behind once nobody uses them any more.
func TestManyNames(t *testing.T) {
	c := New(membackend.New(), quiet())
	defer c.Close()
	ctx := t.Context()
	use := func(names, parties int) {
		var all sync.WaitGroup
		for first := range parties {
			all.Go(func() {
				for i := range names / parties {
					name := strconv.Itoa(first) + ":" + strconv.Itoa(i)
					l, other := c.Locker(name), c.Locker(name)
					l.Lock()
					if ok, err := other.TryLock(ctx); ok || err != nil {
						t.Errorf("TryLock of what another holds = %v, %v", ok, err)
					}
					l.Unlock()
				}
			})
		}
		all.Wait()
	}
	heap := func() uint64 {
		runtime.GC()
		runtime.GC() // what pools let go of
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	const parties = 8
	const names = 100_000 // of which a byte each would be noticed
	use(1000, parties)
	before := heap()
	use(names, parties)
	after := heap()
	for range 100 { // the cleanups of Lockers run when they come to it
		if after <= before+100_000 {
			break
		}
		time.Sleep(10 * time.Millisecond)
		after = heap()
	}
	if after > before+100_000 {
		t.Errorf("%d bytes stay", after-before)
	}
	empty(t, c)
}

// Unlocks that may not take as long as others don't share a context with them, nor replace the one
// that these share.
func TestPatience(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New(slowed{membackend.New(), 0}, quiet())
		defer c.Close()
		unlock := func(opts ...AcquireOption) *patience {
			l := c.Locker("x")
			mustTry(t, l, opts...)
			l.Unlock()
			return c.patient.Load()
		}
		first := unlock()
		if first == nil {
			t.Fatal("an unlock has a context of its own")
		}
		for range 10 {
			if p := unlock(FixedLease(2 * time.Second)); p != first {
				t.Fatal("a short lease has replaced the context of others")
			}
			if p := unlock(); p != first {
				t.Fatal("unlocks at the same time don't share their context")
			}
		}
		time.Sleep(longestRelease)
		synctest.Wait()
		if context.Cause(first) != errUnanswered || context.Cause(first.untilClosed) != errUnanswered {
			t.Errorf("the contexts of old unlocks: %v, %v", context.Cause(first), context.Cause(first.untilClosed))
		}
		if p := unlock(); p == first {
			t.Error("an unlock has a context that is over")
		}
	})
}

// A stepSession is one whose steps can be left, and take a moment for that.
type stepSession struct {
	backend.Session
	left chan struct{}
}

func (s stepSession) Acquire(ctx context.Context, req backend.AcquireRequest) (backend.AcquireResult, error) {
	<-ctx.Done()
	time.Sleep(time.Millisecond)
	close(s.left)
	return backend.AcquireResult{}, &backend.Error{Kind: backend.Unknown, Err: ctx.Err()}
}

// Close waits for steps that are under way in their callers' goroutines.
func TestCloseWaitsForSteps(t *testing.T) {
	for name, context := range map[string]func(*testing.T) context.Context{
		"background":  func(*testing.T) context.Context { return context.Background() },
		"cancellable": (*testing.T).Context,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx := context(t)
				c := New(slowed{membackend.New(), 0}, quiet())
				s := stepSession{c.session, make(chan struct{})}
				c.session, c.leavable = s, true
				locked := make(chan error, 1)
				go func() { locked <- c.Locker("x").LockContext(ctx) }()
				synctest.Wait()
				c.Close()
				select {
				case <-s.left:
				default:
					t.Error("a step goes on after Close")
				}
				if err := <-locked; !errors.Is(err, ErrClosed) {
					t.Errorf("LockContext = %v, want ErrClosed", err)
				}
			})
		})
	}
}
