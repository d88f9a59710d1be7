package dlock

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/dlock/internal/protocol"
	"github.com/seed951563bd/distsync/membackend"
)

func TestReadersShare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newScript(membackend.New())
		c := New(b, quiet())
		defer c.Close()
		rw := c.RWLocker("x")
		for range 10 {
			rw.RLock()
		}
		if n := b.acquire.count(); n != 1 {
			t.Errorf("%d acquisitions for ten readers who came at once", n)
		}
		time.Sleep(DefaultHandover)
		rw.RLock()
		if n := b.acquire.count(); n != 2 {
			t.Errorf("%d acquisitions; want a second one after the hand-over time", n)
		}
		if n, err := rw.Reader().HoldCount(t.Context()); n != 11 || err != nil {
			t.Errorf("HoldCount = %d, %v", n, err)
		}
		for range 10 {
			rw.RUnlock()
		}
		if n := b.release.count(); n != 1 {
			t.Errorf("%d releases when all but one have gone", n)
		}
		if held, err := rw.Reader().IsHeld(t.Context()); !held || err != nil {
			t.Errorf("IsHeld = %v, %v while one reads", held, err)
		}
		rw.RUnlock()
		if ok, err := rw.Writer().TryLock(t.Context()); !ok || err != nil {
			t.Fatalf("TryLock to write when nobody reads = %v, %v", ok, err)
		}
		rw.Unlock()
		empty(t, c)
	})
}

func TestReadersAndWritersExclude(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := membackend.New()
		var clients []*Client
		for range 3 {
			c := New(store, quiet())
			defer c.Close()
			clients = append(clients, c)
		}
		var readers, writers, torn atomic.Int32
		pair := [2]int{}
		var all sync.WaitGroup
		for i := range 24 {
			rw := clients[i%3].RWLocker("x")
			r := rand.New(rand.NewPCG(uint64(i), 7))
			all.Go(func() {
				for range 200 {
					time.Sleep(time.Duration(r.IntN(3)) * time.Millisecond)
					if r.IntN(4) > 0 {
						rw.RLock()
						readers.Add(1)
						if writers.Load() != 0 || pair[0] != pair[1] {
							torn.Add(1)
						}
						time.Sleep(time.Duration(r.IntN(1000)) * time.Microsecond)
						readers.Add(-1)
						rw.RUnlock()
						continue
					}
					rw.Lock()
					if writers.Add(1) != 1 || readers.Load() != 0 {
						torn.Add(1)
					}
					pair[0]++
					time.Sleep(time.Duration(r.IntN(300)) * time.Microsecond)
					pair[1]++
					writers.Add(-1)
					rw.Unlock()
				}
			})
		}
		all.Wait()
		if torn.Load() > 0 {
			t.Errorf("%d times somebody wasn't alone", torn.Load())
		}
		time.Sleep(2 * DefaultLease)
		for _, c := range clients {
			empty(t, c)
		}
	})
}

// A writer that waits isn't starved by readers that keep coming, in its own client and in another.
func TestWritersAreNotStarved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := membackend.New()
		c, other := New(store, quiet()), New(store, quiet())
		defer c.Close()
		defer other.Close()
		ctx, cancel := context.WithCancel(t.Context())
		var all sync.WaitGroup
		for i := range 8 {
			rw := []*Client{c, other}[i%2].RWLocker("x")
			all.Go(func() {
				for ctx.Err() == nil {
					rw.RLock()
					time.Sleep(20 * time.Millisecond)
					rw.RUnlock()
				}
			})
			time.Sleep(3 * time.Millisecond)
		}
		for _, client := range []*Client{c, other} {
			began := time.Now()
			rw := client.RWLocker("x")
			rw.Lock()
			if d := time.Since(began); d > 200*time.Millisecond {
				t.Errorf("the writer waited for %v", d)
			}
			rw.Unlock()
		}
		cancel()
		all.Wait()
	})
}

// A writer that gives up its wait keeps no reader out any more.
func TestAWriterThatGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := membackend.New()
		c, other := New(store, quiet()), New(store, quiet())
		defer c.Close()
		defer other.Close()
		rw := c.RWLocker("x")
		rw.RLock()
		ctx, cancel := context.WithCancel(t.Context())
		waiting := make(chan error)
		go func() { waiting <- other.RWLocker("x").Writer().LockContext(ctx) }()
		time.Sleep(time.Second)
		third := New(store, quiet())
		defer third.Close()
		if ok, err := third.RWLocker("x").Reader().TryLock(t.Context()); ok || err != nil {
			t.Errorf("a reader that came after a waiting writer: %v, %v", ok, err)
		}
		cancel()
		if err := <-waiting; !errors.Is(err, context.Canceled) || !errors.Is(err, ErrHeld) {
			t.Errorf("the writer: %v", err)
		}
		synctest.Wait()
		if ok, err := third.RWLocker("x").Reader().TryLock(t.Context()); !ok || err != nil {
			t.Errorf("a reader after the writer has given up: %v, %v", ok, err)
		}
	})
}

func TestUpgradeAndDowngrade(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := membackend.New()
		c, other := New(store, quiet()), New(store, quiet())
		defer c.Close()
		defer other.Close()
		rw, theirs := c.RWLocker("x"), other.RWLocker("x")
		err := rw.Reader().Do(t.Context(), func(ctx context.Context) error {
			if err := rw.Writer().LockContext(ctx); !errors.Is(err, ErrUpgrade) {
				t.Errorf("writing while reading: %v", err)
			}
			return rw.Reader().Do(ctx, func(context.Context) error { return nil })
		})
		if err != nil {
			t.Error(err)
		}

		ctx := WithOwner(t.Context(), NewOwner())
		for range 2 { // the second time the read is asked for again
			must(t, rw.Writer().LockContext(ctx))
			must(t, rw.Writer().LockContext(ctx))
			must(t, rw.Reader().LockContext(ctx))
			must(t, rw.Reader().UnlockContext(ctx))
			must(t, rw.Reader().LockContext(ctx))
			must(t, rw.Writer().UnlockContext(ctx))
			if ok, err := theirs.Reader().TryLock(t.Context()); ok || err != nil {
				t.Errorf("reading while another writes: %v, %v", ok, err)
			}
			must(t, rw.Writer().UnlockContext(ctx))
			if ok, err := theirs.Reader().TryLock(t.Context()); !ok || err != nil {
				t.Errorf("reading after a downgrade: %v, %v", ok, err)
			}
			if ok, err := theirs.Writer().TryLock(t.Context()); ok || err != nil {
				t.Errorf("writing while two read: %v, %v", ok, err)
			}
			must(t, theirs.Reader().UnlockContext(t.Context()))
			if err := rw.Writer().LockContext(ctx); !errors.Is(err, ErrUpgrade) {
				t.Errorf("writing again after a downgrade: %v", err)
			}
			must(t, rw.Reader().UnlockContext(ctx))
			if ok, err := theirs.Writer().TryLock(t.Context()); !ok || err != nil {
				t.Errorf("writing when nobody reads: %v, %v", ok, err)
			}
			must(t, theirs.Writer().UnlockContext(t.Context()))
		}
		// A read under a write that was given back goes with the write.
		must(t, rw.Writer().LockContext(ctx))
		must(t, rw.Reader().LockContext(ctx))
		must(t, rw.Reader().UnlockContext(ctx))
		must(t, rw.Writer().UnlockContext(ctx))
		if ok, err := theirs.Writer().TryLock(t.Context()); !ok || err != nil {
			t.Errorf("writing when nobody reads: %v, %v", ok, err)
		}
		must(t, theirs.Writer().UnlockContext(t.Context()))
		time.Sleep(2 * DefaultLease)
		empty(t, c)
		empty(t, other)
	})
}

// Each reader that shares a hold is told when it is lost, and no reader is told of another's
// unlock.
func TestALostReadIsToldToEach(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := membackend.New()
		c, other := New(store, quiet()), New(store, quiet())
		defer c.Close()
		defer other.Close()
		rw := c.RWLocker("x")
		const n = 5
		var lost, inside atomic.Int32
		var all sync.WaitGroup
		for i := range n {
			all.Go(func() {
				err := rw.Reader().Do(t.Context(), func(ctx context.Context) error {
					inside.Add(1)
					defer inside.Add(-1)
					if i == 0 {
						return nil // leaves before
					}
					<-ctx.Done()
					if errors.Is(context.Cause(ctx), ErrLost) {
						lost.Add(1)
					}
					return nil
				})
				if (i == 0) != (err == nil) || err != nil && !errors.Is(err, ErrLost) {
					t.Errorf("reader %d: %v", i, err)
				}
			})
		}
		rw.RLock()
		plain := rw.Reader().Lost(t.Context())
		time.Sleep(10 * DefaultLease)
		if lost.Load() != 0 || inside.Load() != n-1 {
			t.Fatalf("%d are inside and %d have lost it, and one has left", inside.Load(),
				lost.Load())
		}
		if ok, err := other.RWLocker("x").Reader().ForceUnlock(t.Context()); !ok || err != nil {
			t.Fatalf("ForceUnlock = %v, %v", ok, err)
		}
		all.Wait()
		if lost.Load() != n-1 {
			t.Errorf("%d of %d were told", lost.Load(), n-1)
		}
		<-plain
		if err := rw.Reader().UnlockContext(t.Context()); !errors.Is(err, ErrLost) {
			t.Errorf("a plain unlock of what was lost: %v", err)
		}
		if err := rw.Reader().UnlockContext(t.Context()); !errors.Is(err, ErrNotHeld) {
			t.Errorf("one unlock too many: %v", err)
		}
		time.Sleep(lossMemory * DefaultLease)
		empty(t, c)
	})
}

// If the holds of several plain readers are of different age, it isn't known which of them unlocks.
// Those that stay are protected, and told of a loss.
func TestPlainReadersOfDifferentAge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := membackend.New()
		c, other := New(store, quiet()), New(store, quiet())
		defer c.Close()
		defer other.Close()
		rw := c.RWLocker("x")
		rw.RLock()
		first := rw.Reader().Lost(t.Context())
		time.Sleep(time.Second)
		rw.RLock()
		synctest.Wait()
		rw.RUnlock() // the second, which can't be known
		if ok, err := other.RWLocker("x").Writer().TryLock(t.Context()); ok || err != nil {
			t.Errorf("writing while one reads: %v, %v", ok, err)
		}
		if ok, err := other.RWLocker("x").Reader().ForceUnlock(t.Context()); !ok || err != nil {
			t.Fatalf("ForceUnlock = %v, %v", ok, err)
		}
		time.Sleep(DefaultLease)
		select {
		case <-first:
		default:
			t.Error("who came first isn't told that he has lost it")
		}
		if err := rw.Reader().UnlockContext(t.Context()); !errors.Is(err, ErrLost) {
			t.Error(err)
		}
	})
}

// Readers of one Locker overlap all the time, and each wants to know of a loss. After a thousand of
// them, the questions of those that have left take no more room. A reader that stays is told.
func TestPlainReadersThatOverlapAllTheTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := membackend.New()
		c, other := New(store, quiet()), New(store, quiet())
		defer c.Close()
		defer other.Close()
		rw := c.RWLocker("x")
		rw.RLock()
		early := rw.Reader().Lost(t.Context())
		var late <-chan struct{}
		for range 1000 {
			time.Sleep(2 * c.handover)
			rw.RLock() // before the last one has left
			late = rw.Reader().Lost(t.Context())
			rw.RUnlock()
		}
		n := 0
		c.mu.Lock()
		for h := range c.state.holds() {
			if h.watchers != nil {
				n += len(h.watchers.over)
			}
		}
		c.mu.Unlock()
		if n > 2*mostNotices {
			t.Errorf("one reader is left, and %d channels to be closed", n)
		}
		if over(early) || over(late) {
			t.Error("a channel is closed though nothing is lost")
		}
		if ok, err := other.RWLocker("x").Reader().ForceUnlock(t.Context()); !ok || err != nil {
			t.Fatalf("ForceUnlock = %v, %v", ok, err)
		}
		time.Sleep(DefaultLease)
		if !over(early) || !over(late) {
			t.Error("a channel is open though all is lost")
		}
		if err := rw.Reader().UnlockContext(t.Context()); !errors.Is(err, ErrLost) {
			t.Error(err)
		}
	})
}

func TestFencedLockers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := membackend.New()
		c, other := New(store, quiet()), New(store, quiet())
		defer c.Close()
		defer other.Close()
		last := uint64(0)
		for i := range 10 {
			client := []*Client{c, other}[i%2]
			h, err := client.FencedLocker("x").Acquire(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			token, ok := h.Token()
			if !ok || token <= last {
				t.Errorf("token %d, %v after %d", token, ok, last)
			}
			last = token
			err = client.FencedLocker("x").Do(h.Context(), func(ctx context.Context) error {
				ctx = WithOwner(ctx, NewOwner())
				return client.Locker("y").Do(ctx, func(ctx context.Context) error {
					if again, ok := Token(ctx); !ok || again != token {
						t.Errorf("token of a re-entry: %d, %v; want %d", again, ok, token)
					}
					return nil
				})
			})
			must(t, err)
			if ok, err := client.Locker("x").TryLock(t.Context()); ok || err != nil {
				t.Errorf("a plain lock beside a fenced one: %v, %v", ok, err)
			}
			if err := client.Locker("x").LockContext(h.Context()); !errors.Is(err, ErrConflict) {
				t.Errorf("a plain lock within the fenced one of that name: %v", err)
			}
			if i%3 == 0 {
				time.Sleep(time.Second)
			}
			must(t, h.Release(t.Context()))
			if _, ok := h.Token(); !ok {
				t.Error("no token any more")
			}
		}
		if _, ok := Token(t.Context()); ok {
			t.Error("a token out of nothing")
		}
		// Not handed on: each has a number of its own.
		var tokens sync.Map
		var all sync.WaitGroup
		for range 10 {
			all.Go(func() {
				must(t, c.FencedLocker("x").Do(t.Context(), func(ctx context.Context) error {
					token, _ := Token(ctx)
					if _, dup := tokens.LoadOrStore(token, true); dup {
						t.Errorf("two have the number %d", token)
					}
					return nil
				}))
			})
		}
		all.Wait()
		empty(t, c)
	})
}

func TestAcquire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New(membackend.New(), quiet())
		defer c.Close()
		l := c.Locker("x")
		h, err := l.Acquire(t.Context())
		must(t, err)
		if _, err := l.Acquire(t.Context(), Wait(time.Second)); !errors.Is(err, ErrNotAcquired) {
			t.Errorf("a second contender: %v", err)
		}
		if ok, err := l.TryLock(t.Context()); ok || err != nil {
			t.Errorf("a plain call beside a Hold: %v, %v", ok, err)
		}
		again, err := l.Acquire(h.Context())
		must(t, err)
		must(t, again.Release(t.Context()))
		if h.Context().Err() != nil || again.Context().Err() == nil {
			t.Error("the contexts don't end with their own Holds")
		}
		over, cancel := context.WithCancel(t.Context())
		cancel()
		must(t, h.Release(over))
		if err := h.Release(t.Context()); !errors.Is(err, ErrNotHeld) {
			t.Errorf("the second Release: %v", err)
		}
		if held, err := l.IsLocked(t.Context()); held || err != nil {
			t.Errorf("IsLocked = %v, %v", held, err)
		}
		if _, ok := h.Token(); ok || h.Name() != "x" {
			t.Error("a token of a plain lock, or another name")
		}
		h, err = l.Acquire(t.Context(), FixedLease(time.Second))
		must(t, err)
		<-h.Lost()
		if err := h.Release(t.Context()); !errors.Is(err, ErrLost) {
			t.Errorf("Release of what was lost: %v", err)
		}
		if err := l.Do(h.Context(), func(context.Context) error { return nil }); !errors.Is(err,
			ErrLost) {
			t.Errorf("Do with the context of what was lost: %v", err)
		}
		time.Sleep(lossMemory * DefaultLease)
		empty(t, c)
	})
}

// dropping waits until the collector has found what a test has dropped.
func dropping(t *testing.T, log *logs, name string, drop func()) {
	t.Helper()
	drop()
	for deadline := time.Now().Add(10 * time.Second); time.Now().
		Before(deadline); time.Sleep(time.Millisecond) {
		runtime.GC()
		if log.count("dropped", name) > 0 {
			return
		}
	}
	t.Errorf("nobody has noticed that %s was dropped", name)
}

func TestWhatIsDroppedIsLogged(t *testing.T) {
	log := new(logs)
	c := New(membackend.New(), WithLogger(log.logger()))
	defer c.Close()
	ctx := context.Background()
	dropping(t, log, "locker", func() { c.Locker("locker").Lock() })
	dropping(t, log, "reader", func() { c.RWLocker("reader").RLock() })
	dropping(t, log, "several", func() { All(c.Locker("several")).Lock() })
	dropping(t, log, "hold", func() {
		h, err := c.Locker("hold").Acquire(ctx)
		must(t, err)
		_ = context.WithValue(h.Context(), identityKey{}, nil)
	})
	kept, err := c.Locker("kept").Acquire(ctx)
	must(t, err)
	inside := kept.Context()
	kept = nil
	released, err := c.Locker("released").Acquire(ctx)
	must(t, err)
	must(t, released.Release(ctx))
	released = nil
	c.Locker("unlocked").Lock()
	for i := range 3 {
		dropping(t, log, fmt.Sprint("later", i), func() { c.Locker(fmt.Sprint("later", i)).Lock() })
	}
	if log.count("dropped", "kept")+log.count("dropped", "released") > 0 {
		t.Error("what is in use, or was given back, is taken for dropped")
	}
	must(t, c.Locker("kept").UnlockContext(inside))
	for _, name := range []string{"locker", "reader", "hold"} {
		if n := log.count("dropped", name); n != 1 {
			t.Errorf("%s was logged %d times", name, n)
		}
	}
	if held, err := c.Locker("locker").IsLocked(ctx); !held || err != nil {
		t.Errorf("what was dropped isn't held any more: %v, %v", held, err)
	}
}

func TestNilAndZero(t *testing.T) {
	for name, f := range map[string]func(){
		"nil Locker":    func() { (*Locker)(nil).Lock() },
		"zero Locker":   func() { new(Locker).Unlock() },
		"nil RWLocker":  func() { (*RWLocker)(nil).RLock() },
		"zero RWLocker": func() { new(RWLocker).Lock() },
		"nil Hold":      func() { (*Hold)(nil).Release(context.Background()) },
		"zero Hold":     func() { new(Hold).Context() },
		"zero Client":   func() { new(Client).Locker("x") },
		"nil Client":    func() { (*Client)(nil).RWLocker("x") },
		"Name":          func() { (*Locker)(nil).Name() },
		"TTL":           func() { new(Locker).TTL(context.Background()) },
		"Acquire":       func() { new(Locker).Acquire(context.Background()) },
		"For":           func() { new(Locker).For(NewOwner()) },
	} {
		t.Run(name, func(t *testing.T) {
			defer func() {
				if p, ok := recover().(string); !ok || len(p) < 20 {
					t.Errorf("panic: %v", p)
				}
			}()
			f()
		})
	}
}

// Readers of one Locker give back what others of them have taken, and at the end all is given back.
func TestPlainReadersOfOneLocker(t *testing.T) {
	c := New(membackend.New(), quiet(), WithHandover(100*time.Microsecond))
	defer c.Close()
	rw := c.RWLocker("x")
	written, seen := 0, atomic.Int64{}
	var all sync.WaitGroup
	for i := range 16 {
		all.Go(func() {
			for n := range 2000 {
				if ctx, cancel := context.WithTimeout(t.Context(),
					100*time.Microsecond); (n+i)%50 == 0 {
					if rw.Reader().LockContext(ctx) == nil {
						rw.RUnlock()
					}
					cancel()
				} else {
					cancel()
				}
				if (n+i)%100 == 0 {
					rw.Lock()
					written++
					rw.Unlock()
				}
				rw.RLock()
				seen.Store(int64(written))
				rw.RUnlock()
			}
		})
	}
	all.Wait()
	if ok, err := rw.Writer().TryLock(t.Context(), Wait(time.Minute)); !ok || err != nil {
		t.Fatalf("TryLock = %v, %v", ok, err)
	}
	rw.Unlock()
	for range 1000 { // takebacks
		c.mu.Lock()
		idle := len(c.state.alarms.heap) == 0
		c.mu.Unlock()
		if idle {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	empty(t, c)
}

// A read under a write is on its way when the write ends, and is carried out late; its caller never
// hears of it.
func TestAReadUnderAWriteThatIsLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newScript(membackend.New())
		c := New(b, quiet())
		defer c.Close()
		rw, ctx := c.RWLocker("x"), WithOwner(t.Context(), NewOwner())
		must(t, rw.Writer().LockContext(ctx))
		var late *acquireStep
		asked, over := make(chan bool), make(chan bool)
		b.acquire.set(func(s *acquireStep) {
			b.acquire.set(nil)
			late = s
			asked <- true
			<-over
			s.fail(errors.New("no answer"))
		})
		done := make(chan error)
		go func() {
			_, err := rw.Reader().TryLock(ctx)
			done <- err
		}()
		<-asked
		must(t, rw.Writer().UnlockContext(ctx))
		over <- true
		if err := <-done; !errors.Is(err, ErrUnavailable) {
			t.Errorf("the read: %v", err)
		}
		if late.do(); !late.res.Acquired {
			t.Fatalf("the late read: %+v, %v", late.res, late.err)
		}
		time.Sleep(DefaultLease / 2)
		if ok, err := rw.Writer().TryLock(t.Context()); !ok || err != nil {
			t.Errorf("writing after half a lease: %v, %v; want the late read taken back", ok, err)
		}
	})
}

// A writer that waits leaves a note, which keeps readers out. It gives its note back when its party
// gets the lock by another call, and it re-enters.
func TestAWriterThatReentersInsteadGivesItsNoteBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cs := clientsOf(t, membackend.New(), 2)
		const lease = time.Minute
		ctx := WithOwner(t.Context(), NewOwner())
		held, l := cs[1].RWLocker("x"), cs[0].RWLocker("x")
		if _, err := held.Writer().Acquire(t.Context(), FixedLease(lease)); err != nil {
			t.Fatal(err)
		}
		w := wait(ctx, l.Writer())
		time.Sleep(lease + time.Microsecond)
		if ok, err := l.Writer().TryLock(ctx); !ok || err != nil {
			t.Fatal(ok, err)
		}
		w.mustBeIn(t)
		mustUnlock(t, ctx, l.Writer())
		mustUnlock(t, ctx, l.Writer())
		if ok, err := held.Reader().TryLock(t.Context()); !ok || err != nil {
			t.Error("a note that nobody has any more keeps readers out", ok, err)
		}
	})
}

// A reader behind a writer whose first attempt is under way isn't let in by one that is out of
// turn.
func TestNoReaderIsLetInAheadOfAWriter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newScript(membackend.New())
		c := New(b, quiet())
		defer c.Close()
		rw := c.RWLocker("x")
		asked, over := make(chan bool), make(chan bool)
		b.acquire.set(func(s *acquireStep) {
			b.acquire.set(nil)
			asked <- true
			<-over
		})
		var order []string
		var all sync.WaitGroup
		all.Go(func() {
			must(t, rw.Writer().Do(t.Context(), func(context.Context) error {
				order = append(order, "writer")
				return nil
			}))
		})
		<-asked
		all.Go(func() {
			must(t, rw.Reader().Do(t.Context(), func(context.Context) error {
				order = append(order, "reader")
				return nil
			}))
		})
		synctest.Wait()
		if ok, err := rw.Reader().TryLock(t.Context()); !ok || err != nil {
			t.Fatalf("TryLock = %v, %v", ok, err)
		}
		synctest.Wait()
		over <- true
		rw.RUnlock()
		all.Wait()
		if len(order) != 2 || order[0] != "writer" {
			t.Errorf("%v; want the writer first", order)
		}
	})
}

// Within the hand-over time a lock passes from writers to readers and back without a word to the
// store.
func TestAWriteIsLentToReaders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newScript(membackend.New())
		c, other := New(b, quiet()), New(b, quiet())
		defer c.Close()
		defer other.Close()
		rw := c.RWLocker("x")
		rw.Lock()
		var readers atomic.Int32
		var order []string
		var all sync.WaitGroup
		enter := func(what string) { order = append(order, what) }
		for i := range 6 {
			all.Go(func() {
				time.Sleep(time.Duration(i) * 10 * time.Microsecond)
				if i == 3 {
					must(t, rw.Writer().Do(t.Context(), func(context.Context) error {
						if readers.Load() != 0 {
							t.Error("a writer among readers")
						}
						enter("writer")
						return nil
					}))
					return
				}
				must(t, rw.Reader().Do(t.Context(), func(ctx context.Context) error {
					readers.Add(1)
					defer readers.Add(-1)
					if i == 0 {
						enter("readers")
						if held, err := rw.Reader().IsHeld(ctx); !held || err != nil {
							t.Errorf("IsHeld = %v, %v", held, err)
						}
						if locked, err := rw.Reader().IsLocked(ctx); !locked || err != nil {
							t.Errorf("IsLocked = %v, %v", locked, err)
						}
						if err := rw.Writer().LockContext(ctx); !errors.Is(err, ErrUpgrade) {
							t.Errorf("writing while reading: %v", err)
						}
						if ok, err := other.RWLocker("x").Reader().TryLock(t.Context()); ok ||
							err != nil {
							t.Errorf("a reader elsewhere: %v, %v", ok, err)
						}
					}
					time.Sleep(time.Millisecond)
					return nil
				}))
			})
		}
		time.Sleep(time.Millisecond)
		acquired := b.acquire.count()
		rw.Unlock()
		all.Wait()
		if n := b.acquire.count() - acquired; n > 1+1 {
			// one by the reader elsewhere, and one by the writer when it came
			t.Errorf("%d attempts while the lock passed through this client", n)
		}
		if len(order) != 2 || order[0] != "readers" {
			t.Errorf("%v", order)
		}
		if ok, err := other.RWLocker("x").Writer().TryLock(t.Context()); !ok || err != nil {
			t.Errorf("writing elsewhere when all have left: %v, %v", ok, err)
		}
		time.Sleep(2 * DefaultLease)
		empty(t, c)
	})
}

// Readers that stay for longer than the hand-over time let those elsewhere read, too.
func TestALentWriteIsDowngraded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := membackend.New()
		c, other := New(store, quiet()), New(store, quiet())
		defer c.Close()
		defer other.Close()
		rw, theirs := c.RWLocker("x"), other.RWLocker("x")
		rw.Lock()
		reading := make(chan *Hold)
		for range 2 {
			go func() {
				h, err := rw.Reader().Acquire(t.Context())
				must(t, err)
				reading <- h
			}()
		}
		synctest.Wait()
		rw.Unlock()
		first, second := <-reading, <-reading
		ctx, cancel := context.WithTimeout(t.Context(), 2*DefaultHandover)
		defer cancel()
		must(t, theirs.Reader().LockContext(ctx))
		time.Sleep(2 * DefaultLease) // it is renewed as what it is now
		if ok, err := theirs.Writer().TryLock(t.Context()); ok || err != nil {
			t.Errorf("writing while others read: %v, %v", ok, err)
		}
		must(t, theirs.Reader().UnlockContext(t.Context()))
		if first.Context().Err() != nil || second.Context().Err() != nil {
			t.Error("what was lent is lost")
		}
		must(t, first.Release(t.Context()))
		if ok, err := theirs.Writer().TryLock(t.Context()); ok || err != nil {
			t.Errorf("writing while another reads: %v, %v", ok, err)
		}
		must(t, second.Release(t.Context()))
		if ok, err := theirs.Writer().TryLock(t.Context()); !ok || err != nil {
			t.Errorf("writing when all have left: %v, %v", ok, err)
		}
		time.Sleep(2 * DefaultLease)
		empty(t, c)
	})
}

// The last reader of what was lent leaves while it is being downgraded: what that brings late is
// taken back.
func TestALentWriteIsGivenBackDuringItsDowngrade(t *testing.T) {
	for _, answered := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			b := newScript(membackend.New())
			c := New(b, quiet())
			defer c.Close()
			rw := c.RWLocker("x")
			rw.Lock()
			reading := make(chan *Hold)
			go func() {
				h, err := rw.Reader().Acquire(t.Context())
				must(t, err)
				reading <- h
			}()
			synctest.Wait()
			asked, over := make(chan bool), make(chan bool)
			var once atomic.Bool
			b.acquire.set(func(s *acquireStep) {
				if s.req.Kind != backend.Read || once.Swap(true) {
					return
				}
				asked <- true
				<-over
				s.do()
				if !answered {
					s.fail(errors.New("no answer"))
				}
			})
			rw.Unlock()
			h := <-reading
			<-asked
			must(t, h.Release(t.Context()))
			over <- true
			synctest.Wait()
			time.Sleep(DefaultLease / 2)
			if ok, err := rw.Writer().TryLock(t.Context()); !ok || err != nil {
				t.Errorf("writing after half a lease (the downgrade answered: %v): %v, %v",
					answered, ok, err)
			}
			rw.Unlock()
			time.Sleep(2 * DefaultLease)
			empty(t, c)
		})
	}
}

// Each reader that shares a write that was lent is told when it is lost.
func TestALentWriteIsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := membackend.New()
		c, other := New(store, quiet(), WithHandover(time.Hour)), New(store, quiet())
		defer c.Close()
		defer other.Close()
		rw := c.RWLocker("x")
		rw.Lock()
		var told atomic.Int32
		var all sync.WaitGroup
		for range 3 {
			all.Go(func() {
				err := rw.Reader().Do(t.Context(), func(ctx context.Context) error {
					<-ctx.Done()
					told.Add(1)
					return nil
				})
				if !errors.Is(err, ErrLost) {
					t.Error(err)
				}
			})
		}
		synctest.Wait()
		rw.Unlock()
		synctest.Wait()
		if ok, err := other.RWLocker("x").Reader().ForceUnlock(t.Context()); ok || err != nil {
			t.Errorf("forcing readers: %v, %v; in the store somebody writes", ok, err)
		}
		if ok, err := other.RWLocker("x").Writer().ForceUnlock(t.Context()); !ok || err != nil {
			t.Errorf("forcing a writer: %v, %v", ok, err)
		}
		all.Wait()
		if told.Load() != 3 {
			t.Errorf("%d were told", told.Load())
		}
		time.Sleep(lossMemory * DefaultLease)
		empty(t, c)
	})
}

// lending makes a client lend what it has claimed for writing to one reader, and returns what the
// reader got and, through b.acquire, lets the test answer the downgrade.
func lending(t *testing.T, b *script, opts ...Option) (c *Client, h *Hold) {
	t.Helper()
	c = New(b, append([]Option{quiet()}, opts...)...)
	t.Cleanup(func() { c.Close() })
	rw := c.RWLocker("x")
	rw.Lock()
	reading := make(chan *Hold)
	go func() {
		h, err := rw.Reader().Acquire(t.Context())
		must(t, err)
		reading <- h
	}()
	synctest.Wait()
	rw.Unlock()
	return c, <-reading
}

// The reading side of a client answers for those of its readers that share a claim for writing, and
// forces them. To others they are a writer.
func TestTheReadingSideOfWhatIsLent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newScript(membackend.New())
		c, h := lending(t, b, WithHandover(time.Minute))
		other := New(b.Backend, quiet())
		defer other.Close()
		wantSide := func(who string, l *Locker, want bool, kind backend.Kind) {
			t.Helper()
			if locked, err := l.IsLocked(t.Context()); locked != want || err != nil {
				t.Errorf("%s: IsLocked = %v, %v", who, locked, err)
			}
			if ttl, err := l.TTL(t.Context()); ttl > 0 != want || err != nil {
				t.Errorf("%s: TTL = %v, %v", who, ttl, err)
			}
			holders, err := l.Holders(t.Context())
			if err != nil || len(holders) > 0 != want ||
				want &&
					(len(holders) > 1 || holders[0].ID != h.HolderID() || holders[0].Kind != kind) {
				t.Errorf("%s: Holders = %+v, %v", who, holders, err)
			}
		}
		wantSide("this client's readers", c.RWLocker("x").Reader(), true, backend.Write)
		wantSide("its writers", c.RWLocker("x").Writer(), true, backend.Write)
		wantSide("another's readers", other.RWLocker("x").Reader(), false, backend.Read)
		if ok, err := other.RWLocker("x").Reader().ForceUnlock(t.Context()); ok || err != nil {
			t.Errorf("another's readers: ForceUnlock = %v, %v", ok, err)
		}
		if ok, err := c.RWLocker("x").Reader().ForceUnlock(t.Context()); !ok || err != nil ||
			!over(h.Lost()) {
			t.Errorf("ForceUnlock = %v, %v; the reader has lost it: %v", ok, err, over(h.Lost()))
		}
		wantFree(t, other, "x")
		wantSide("this client's readers when it is forced", c.RWLocker("x").Reader(), false,
			backend.Read)
	})
}

// The same while it is downgraded: the store is asked about what it was, and answers when it is
// that no more.
func TestTheReadingSideDuringADowngrade(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var lookedAt, forced atomic.Bool
		wait := func(once *atomic.Bool) {
			if !once.Swap(true) {
				time.Sleep(2 * DefaultHandover)
			}
		}
		b := newScript(membackend.New())
		b.look.set(func(*lookStep) { wait(&lookedAt) })
		b.force.set(func(*forceStep) { wait(&forced) })
		c, h := lending(t, b)
		l := c.RWLocker("x").Reader()
		if locked, err := l.IsLocked(t.Context()); !locked || err != nil {
			t.Errorf("IsLocked = %v, %v", locked, err)
		}
		must(t, h.Release(t.Context()))
		c, h = lending(t, b)
		l = c.RWLocker("x").Reader()
		if ok, err := l.ForceUnlock(t.Context()); !ok || err != nil || !over(h.Lost()) {
			t.Errorf("ForceUnlock = %v, %v; the reader has lost it: %v", ok, err, over(h.Lost()))
		}
	})
}

// A downgrade is answered late: what is relied on counts from when it was asked for, and not from a
// renewal of the write since.
func TestADowngradeThatIsAnsweredLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newScript(membackend.New())
		var silent atomic.Bool
		b.renew.set(func(s *renewStep) {
			if silent.Load() {
				s.fail(errors.New("no answer"))
			}
		})
		var asked atomic.Bool
		b.acquire.set(func(s *acquireStep) {
			if s.req.Kind != backend.Read || asked.Swap(true) {
				return
			}
			s.do()
			time.Sleep(DefaultLease / 2) // the write is renewed meanwhile
			silent.Store(true)
		})
		_, h := lending(t, b)
		began := time.Now()
		<-h.Lost()
		if held := time.Since(began); held > DefaultLease+DefaultHandover {
			t.Errorf("it was relied on for %v after the store was asked for a lease of %v", held,
				DefaultLease)
		}
	})
}

// A downgrade is answered when what it has asked for is over, and the write was renewed meanwhile.
// The readers lose nothing, and it is asked for again.
func TestADowngradeThatIsAnsweredAfterItsLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newScript(membackend.New())
		var asked atomic.Int32
		b.acquire.set(func(s *acquireStep) {
			if s.req.Kind != backend.Read || asked.Add(1) > 1 {
				return
			}
			s.do()
			time.Sleep(protocol.Promised(DefaultLease) + time.Millisecond)
		})
		_, h := lending(t, b)
		other := New(b.Backend, quiet())
		defer other.Close()
		time.Sleep(3 * DefaultLease)
		if err := h.Err(); err != nil {
			t.Errorf("it was renewed all the time: %v", err)
		}
		if n := asked.Load(); n < 2 {
			t.Errorf("the store was asked %d times", n)
		}
		beside := other.RWLocker("x").Reader()
		mustTry(t, beside)
		must(t, beside.UnlockContext(t.Context()))
		must(t, h.Release(t.Context()))
		wantFree(t, other, "x")
	})
}

// An attempt to downgrade has no answer, the next one has; the first is carried out when all have
// left.
func TestADowngradeThatIsCarriedOutTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		late := make(chan *acquireStep, 1)
		var asked atomic.Bool
		b := newScript(membackend.New())
		b.acquire.set(func(s *acquireStep) {
			if s.req.Kind != backend.Read || asked.Swap(true) {
				return
			}
			late <- s
			s.fail(errors.New("no answer"))
		})
		c, h := lending(t, b)
		time.Sleep(time.Second)
		must(t, h.Release(t.Context()))
		first := <-late
		if first.do(); !first.res.Acquired {
			t.Fatalf("the late attempt: %+v, %v", first.res, first.err)
		}
		time.Sleep(DefaultLease / 2)
		if ok, err := c.RWLocker("x").Writer().TryLock(t.Context()); !ok || err != nil {
			t.Errorf("writing after half a lease: %v, %v", ok, err)
		}
	})
}

// The lock is forced while it is lent, and somebody else writes before it is downgraded: its
// readers are told.
func TestADowngradeOfWhatWasForced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newScript(membackend.New())
		_, h := lending(t, b)
		other := New(b.Backend, quiet())
		defer other.Close()
		theirs := other.RWLocker("x").Writer()
		if ok, err := theirs.ForceUnlock(t.Context()); !ok || err != nil {
			t.Fatalf("ForceUnlock = %v, %v", ok, err)
		}
		mustTry(t, theirs)
		theirs.Unlock()
		time.Sleep(time.Second)
		select {
		case <-h.Lost():
		default:
			t.Error("another has written since, and the reader isn't told")
		}
		if err := h.Release(t.Context()); !errors.Is(err, ErrLost) {
			t.Errorf("Release = %v", err)
		}
	})
}

// The client is closed in the middle of a downgrade, when the store may have both sides. The last
// reader gives both back.
func TestCloseDuringADowngrade(t *testing.T) {
	const slow = 100 * time.Millisecond
	for name, script := range map[string]func(b *script, closing *atomic.Bool){
		"as the read is asked for": func(b *script, closing *atomic.Bool) {
			b.acquire.set(func(s *acquireStep) {
				s.do()
				if s.req.Kind == backend.Read {
					closing.Store(true)
					time.Sleep(slow)
				}
			})
		},
		"as the write is given back": func(b *script, closing *atomic.Bool) {
			b.release.set(func(s *releaseStep) {
				if s.req.Kind == backend.Write && !closing.Swap(true) {
					time.Sleep(slow)
					s.fail(errors.New("no answer"))
				}
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newScript(membackend.New())
				var closing atomic.Bool
				script(b, &closing)
				c, h := lending(t, b)
				other := New(b.Backend, quiet())
				defer other.Close()
				time.Sleep(DefaultHandover + slow/2)
				if !closing.Load() {
					t.Fatal("there is no downgrade under way")
				}
				c.Close()
				must(t, h.Release(t.Context()))
				wantFree(t, other, "x")
			})
		})
	}
}

// A reader gives back what it has with a context that takes the client's mutex to say whether it is
// over, or with none.
func TestAReaderUnlocksWithAnyContext(t *testing.T) {
	c := New(membackend.New(), quiet())
	defer c.Close()
	y, err := c.Locker("y").Acquire(t.Context())
	must(t, err)
	c.mu.Lock()
	heldOf(c, "y").claim.Gone(0) // and no timer has run
	c.mu.Unlock()
	r, err := c.RWLocker("x").Reader().Acquire(t.Context())
	must(t, err)
	done := make(chan error, 1)
	go func() { done <- r.Release(y.Context()) }()
	select {
	case err := <-done:
		must(t, err)
	case <-time.After(10 * time.Second):
		t.Fatal("the unlock hangs")
	}
	r, err = c.RWLocker("x").Reader().Acquire(t.Context())
	must(t, err)
	func() {
		defer func() {
			if p := recover(); p != "dlock: the context is nil" {
				t.Errorf("panic: %v", p)
			}
		}()
		r.Release(nil) //lint:ignore SA1012 that is what it is about
	}()
	must(t, r.Release(t.Context()))
}
