package dlock

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/dlock/internal/protocol"
	"github.com/seed951563bd/distsync/internal/test/depth"
	"github.com/seed951563bd/distsync/membackend"
)

// standStill has a client's process stand still for so long. No timer of the client runs until
// then: only calls that come look at what is due.
func standStill(c *Client, d time.Duration) {
	c.mu.Lock()
	if c.state.timer != nil {
		c.state.timer.Stop()
	}
	c.mu.Unlock()
	time.Sleep(d)
}

// A plain read through a Locker whose last read was over while the process stood still gets the
// lock, and the unlock of that which is lost is told so.
func TestReadAfterStandstill(t *testing.T) {
	for name, lock := range map[string]func(*Locker) (bool, error){
		"TryLock":     func(l *Locker) (bool, error) { return l.TryLock(t.Context()) },
		"LockContext": func(l *Locker) (bool, error) { return true, l.LockContext(t.Context()) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := New(membackend.New(), quiet(), WithLease(time.Second))
				defer c.Close()
				r := c.RWLocker("a").Reader()
				must(t, r.LockContext(context.Background()))
				standStill(c, 2*time.Second)
				if ok, err := lock(r); !ok || err != nil {
					t.Fatalf("a read after the loss of another: %v, %v", ok, err)
				}
				if err := r.UnlockContext(context.Background()); !errors.Is(err, ErrLost) {
					t.Errorf("the unlock of what was lost: %v", err)
				}
				must(t, r.UnlockContext(context.Background()))
			})
		})
	}
}

var (
	shortHistories = flag.Int("histories", 0,
		"how many short histories are run; 0: as many as usual")
	firstHistory = flag.Uint64("history", 0, "the first of them; with -histories=1, the only one")
	historiesFor = flag.Duration("histories-for", 0, "run short histories for so long")
)

// Very many short histories, in which also processes stand still and subscriptions are cut. One is
// run again with -history and -histories=1.
func TestShortHistories(t *testing.T) {
	n := uint64(depth.Of(500, 500, 2000))
	if *shortHistories > 0 {
		n = uint64(*shortHistories)
	}
	i, began := uint64(0), time.Now()
	for ; i < n || time.Since(began) < *historiesFor; i++ {
		if seed := *firstHistory + i; !shortHistory(t, seed) {
			t.Fatalf("run it again with -run 'TestShortHistories$' -history=%d -histories=1", seed)
		}
	}
	t.Logf("%d histories", i)
}

// shortHistory runs one history, and says whether it was as it should be.
func shortHistory(t *testing.T, seed uint64) bool {
	before := contradictions.Load()
	ok := t.Run(fmt.Sprint(seed), func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 5))
			h := &history{T: t, harsh: true, many: 2 + r.IntN(4), acts: 1 + r.IntN(4)}
			h.forces, h.closes = r.IntN(4) == 0, r.IntN(4) == 0
			leases := []time.Duration{time.Second, 3 * time.Second, time.Minute}
			opts := []Option{WithLease(leases[r.IntN(len(leases))])}
			if r.IntN(3) == 0 {
				opts = append(opts, WithHandover([]time.Duration{0, time.Second}[r.IntN(2)]))
			}
			if r.IntN(4) == 0 {
				opts = append(opts, WithGoroutineOwners())
			}
			h.begin(seed, 2+r.IntN(2), opts)
			h.run(r)
		})
	})
	return ok && contradictions.Load() == before
}

// lend has a writer of a client hand on to a reader of it, and returns what that reads under.
func lend(t *testing.T, c *Client) (*claim, *RWLocker) {
	t.Helper()
	rw := c.RWLocker("a")
	must(t, rw.Writer().LockContext(context.Background()))
	go rw.Reader().Lock()
	synctest.Wait()
	must(t, rw.Writer().UnlockContext(context.Background()))
	synctest.Wait()
	cl := rw.Reader().lent()
	if cl == nil {
		t.Fatal("nothing is lent")
	}
	return cl, rw
}

// A downgrade that is granted when the write's lease is over doesn't let its readers go on: another
// may have written in between.
func TestDowngradeAfterTheLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New(membackend.New(), quiet(), WithLease(time.Second))
		defer c.Close()
		cl, rw := lend(t, c)
		standStill(c, 2*time.Second)
		read := &claim{object: cl.object, kind: protocol.Kind(backend.Read), owner: cl.owner,
			more: new(more)}
		read.Want(cl.Lease(), false)
		written, done := cl.downgraded(c, read, c.now(), backend.AcquireResult{Acquired: true}, nil)
		if written != nil || !done {
			t.Errorf("it goes on: %v, %v", written, done)
		}
		if err := rw.Reader().UnlockContext(context.Background()); !errors.Is(err, ErrLost) {
			t.Errorf("the reader's unlock: %v", err)
		}
	})
}

// A lock that the store grants to a client that was closed meanwhile locks none of its Lockers.
func TestGrantAfterClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New(membackend.New(), quiet())
		l := c.Locker("a")
		a := l.newCall(t.Context(), l.caller(t.Context()), acquireOptions{lease: c.lease})
		at := a.attempting()
		c.Close()
		if _, err := a.conclude(at, backend.AcquireResult{Acquired: true}, nil); err != ErrClosed {
			t.Errorf("a grant to a closed client: %v", err)
		}
		if l.plain.hold != nil {
			t.Error("its Locker is locked")
		}
	})
}

// A grant that is over when it is heard of lets nobody in: the waiter stays in line.
func TestGrantThatIsOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := membackend.New()
		c, other := New(store, quiet()), New(store, quiet())
		defer c.Close()
		defer other.Close()
		theirs := other.FairLocker("a")
		must(t, theirs.LockContext(context.Background()))
		l, got := c.FairLocker("a"), make(chan error, 1)
		go func() { got <- l.LockContext(context.Background()) }()
		time.Sleep(2 * time.Minute)
		c.mu.Lock()
		q := c.state.objects[protocol.Locks]["a"].line
		a := q.first
		q.grant(&c.state, a, c.now()-time.Minute, time.Second)
		if a.in != q || a.handed != nil {
			t.Error("it has left the line")
		}
		c.unlock()
		synctest.Wait()
		if lost := c.Losses(); len(lost) > 0 || len(got) > 0 {
			t.Errorf("it was let in: %v", lost)
		}
		must(t, theirs.UnlockContext(context.Background()))
		must(t, <-got)
		must(t, l.UnlockContext(context.Background()))
	})
}

// A read that the store doesn't have any more was not taken by another reader: they have it beside
// each other.
func TestReadersTakeNothingFromEachOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := membackend.New()
		c, other := New(store, quiet()), New(store, quiet())
		defer c.Close()
		defer other.Close()
		h, err := c.RWLocker("a").Reader().Acquire(context.Background())
		must(t, err)
		theirs := other.RWLocker("a").Reader()
		if ok, err := theirs.ForceUnlock(context.Background()); !ok || err != nil {
			t.Fatal(ok, err)
		}
		must(t, theirs.LockContext(context.Background()))
		<-h.Lost()
		if l, ok := errors.AsType[*Loss](h.Err()); !ok || l.Reason != LossGone || l.TakenBy != "" {
			t.Errorf("lost: %+v", l)
		}
		if err := h.Release(context.Background()); !errors.Is(err, ErrLost) {
			t.Error(err)
		}
		must(t, theirs.UnlockContext(context.Background()))
	})
}

// inquisitive is a store that notes how often a release asked who waits.
type inquisitive struct {
	backend.Backend
	asked atomic.Int32
}

func (b *inquisitive) Open() backend.Session {
	return &inquisitiveSession{b.Backend.Open(), b}
}

type inquisitiveSession struct {
	backend.Session
	b *inquisitive
}

func (s *inquisitiveSession) Release(
	ctx context.Context, req backend.ReleaseRequest,
) (backend.ReleaseResult, error) {
	if req.AskWaiting {
		s.b.asked.Add(1)
	}
	return s.Session.Release(ctx, req)
}

// A lock that was handed on within the client is released with the question whether others wait: a
// chain may have kept them out for a while. One that was had once isn't.
func TestAChainAsksWhoWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &inquisitive{Backend: membackend.New()}
		c := New(store, quiet())
		defer c.Close()
		first, second := c.Locker("a"), c.Locker("a")
		must(t, first.LockContext(context.Background()))
		must(t, first.UnlockContext(context.Background()))
		if n := store.asked.Load(); n != 0 {
			t.Errorf("asked %d times after a single hold", n)
		}
		time.Sleep(time.Second) // else it is one streak
		must(t, first.LockContext(context.Background()))
		go second.Lock()
		synctest.Wait()
		must(t, first.UnlockContext(context.Background()))
		synctest.Wait()
		must(t, second.UnlockContext(context.Background()))
		if n := store.asked.Load(); n != 1 {
			t.Errorf("asked %d times after a chain", n)
		}
	})
}
