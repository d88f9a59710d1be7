package dlock

import (
	"fmt"
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

// A renewal that was answered isn't carried out any more. So when the lease becomes longer, no late
// one can make it short again, and the lock can be handed on.
func TestAnAnsweredRenewalIsNoReasonForDoubt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New(membackend.New(), WithLease(3*time.Second), quiet())
		defer c.Close()
		h, err := c.Locker("x").Acquire(t.Context())
		must(t, err)
		time.Sleep(10 * time.Second)
		c.mu.Lock()
		cl := heldOf(c, "x").claim
		cl.Lengthens(time.Minute)
		if !cl.passes(c.now()) {
			t.Error("a longer lease is in doubt after renewals that were all answered")
		}
		c.mu.Unlock()
		must(t, h.Release(t.Context()))
	})
}

func TestManyHoldsAreRenewedInFewBatchesWithoutAGoroutineEach(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n, lease = 10_000, 30 * time.Second
		b := newScript(membackend.New())
		b.renewsAtOnce = true
		c := New(b, WithLease(lease), quiet())
		defer c.Close()
		before := runtime.NumGoroutine()
		for i := range n {
			mustTry(t, c.Locker(fmt.Sprint(i)))
			time.Sleep(lease / n) // so that no two were acquired together
		}
		b.batch.took()
		time.Sleep(lease)
		if g := runtime.NumGoroutine() - before; g > 10 {
			t.Errorf("%d goroutines for %d holds", g, n)
		}
		batches, renewals := b.batch.took(), 0
		for _, reqs := range batches {
			renewals += len(reqs)
		}
		if renewals < 3*n || len(batches) > 17 {
			t.Errorf("%d renewals in %d batches within a lease; want at least %d in at most 17",
				renewals, len(batches), 3*n)
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		if held := len(c.state.objects[protocol.Locks]); held != n {
			t.Errorf("%d of %d holds were lost", n-held, n)
		}
	})
}

func TestRenewalsComeInTimeAndOnAGrid(t *testing.T) {
	for _, lease := range []time.Duration{time.Millisecond, 10 * time.Millisecond, time.Second,
		30 * time.Second} {
		for name, test := range map[string]struct {
			kind  backend.Kind
			lease time.Duration
		}{
			"a lock": {backend.Exclusive, lease},
			"a read with a lease longer than the client's": {backend.Read, 100 * lease},
		} {
			s := &state{settings: &settings{lease: lease}}
			h := &claim{kind: protocol.Kind(test.kind)}
			h.Granted(time.Hour, test.lease)
			h.Want(test.lease, true)
			cells := map[instant]bool{}
			for sent := instant(0); sent < lease; sent += lease / 1000 {
				at := h.nextLook(s, sent)
				cells[at] = true
				if at <= sent || at > sent+lease/3 {
					t.Fatalf("%s, lease %v: the renewal after a request at %v is due at %v", name,
						lease, sent, at)
				}
			}
			if len(cells) > 18 {
				t.Errorf("%s, lease %v: %d different times of renewal within one lease", name,
					lease, len(cells))
			}
		}
	}
}

// Renewals are sent beside one that hangs, and may be answered before it.
func TestAnOlderAnswerShortensNothing(t *testing.T) {
	const lease = 30 * time.Second
	var mu sync.Mutex
	var sent []time.Time
	var answerFirst chan struct{}
	onBench(t, func(m *script) {
		answerFirst = make(chan struct{}) // one of the bubble's
		m.renew.set(func(s *renewStep) {
			mu.Lock()
			sent = append(sent, time.Now())
			n := len(sent)
			mu.Unlock()
			switch n {
			case 1:
				s.do()
				<-answerFirst
				return
			case 2:
				return
			default:
				s.fail(errCut)
			}
		})
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
			b.Errorf("lost %v after the last renewal that was answered was sent, want %v", held,
				lease-lease/100)
		}
	}, WithLease(lease))
}

func TestRenewalsThatFailAreRepeatedInTime(t *testing.T) {
	var failed atomic.Int32
	onBench(t, func(m *script) {
		m.renew.set(func(s *renewStep) {
			if failed.Add(1) <= 6 {
				s.fail(errCut)
			}
		})
	}, func(b *bench) {
		l := b.client.Locker("x")
		l.Lock()
		for range 5 {
			failed.Store(0)
			time.Sleep(DefaultLease)
			if held, err := l.IsHeld(b.Context()); !held || err != nil {
				b.Fatalf("after six renewals that failed at once: IsHeld = %v, %v", held, err)
			}
		}
	})
}

// An attempt without an answer may yet shorten the lease to what it asked for: so renewals come as
// often as that needs.
func TestRenewalsMindAShorterLeaseInDoubt(t *testing.T) {
	onBench(t, func(m *script) {
		m.acquire.set(func(s *acquireStep) {
			if s.n == 1 {
				s.fail(errCut)
			}
		})
	}, func(b *bench) {
		l, ctx := b.client.Locker("x"), b.owner()
		b.must(l.LockContext(ctx, FixedLease(DefaultLease/10)))
		b.must(l.LockContext(ctx)) // from now on it is renewed
		time.Sleep(10 * DefaultLease)
		if held, err := l.IsHeld(ctx); !held || err != nil {
			b.Errorf("IsHeld of what is renewed = %v, %v", held, err)
		}
	})
}

// A renewal from when a lock was still renewed may be carried out after a re-entry has given it a
// longer fixed lease: the holder relies on no more than that leaves.
func TestARenewalThatComesAfterALongerLease(t *testing.T) {
	for kind, side := range map[string]func(*Client) *Locker{
		"plain":  func(c *Client) *Locker { return c.Locker("x") },
		"fenced": func(c *Client) *Locker { return c.FencedLocker("x") },
		"fair":   func(c *Client) *Locker { return c.FairLocker("x") },
		"write":  func(c *Client) *Locker { return c.RWLocker("x").Writer() },
	} {
		for _, answered := range []bool{true, false} {
			t.Run(fmt.Sprint(kind, ", answered ", answered), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					store := newScript(membackend.New())
					c, other := New(store, quiet()), New(store.Backend, quiet())
					defer c.Close()
					defer other.Close()
					ctx := WithOwner(t.Context(), NewOwner())
					l := side(c)
					must(t, l.LockContext(ctx, FixedLease(3*time.Second)))
					must(t, l.LockContext(ctx, RenewedLease(3*time.Second)))
					store.renew.set(func(s *renewStep) {
						if answered {
							time.Sleep(time.Second)
							return
						}
						s.fail(errSevered)
						s.doAfter(time.Second)
					})
					time.Sleep(1100 * time.Millisecond) // a renewal is under way
					mustUnlock(t, ctx, l)
					must(t, l.LockContext(ctx, FixedLease(time.Hour)))
					time.Sleep(1500 * time.Millisecond)
					left, err := side(other).TTL(t.Context())
					must(t, err)
					if until := time.Until(c.Holds()[0].Until); until > left {
						t.Errorf("held for %v more, where the store keeps it for %v", until, left)
					}
				})
			})
		}
	}
}

// A renewal that was carried out before an unlock set what is left of a fixed lease may be answered
// after that: it adds nothing, also if the lock is renewed again by then.
func TestARenewalThatIsAnsweredAfterWhatItGaveIsTakenBack(t *testing.T) {
	for _, again := range []bool{false, true} {
		t.Run(fmt.Sprint("renewed again: ", again), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := newScript(membackend.New())
				c, other := New(store, quiet()), New(store.Backend, quiet())
				defer c.Close()
				defer other.Close()
				ctx, l := WithOwner(t.Context(), NewOwner()), c.Locker("x")
				must(t, l.LockContext(ctx, FixedLease(10*time.Second)))
				must(t, l.LockContext(ctx, RenewedLease(2*time.Second)))
				store.renew.delay(0, time.Second)
				time.Sleep(3500 * time.Millisecond) // a renewal is carried out, and not answered
				mustUnlock(t, ctx, l)
				if again {
					must(t, l.LockContext(ctx, RenewedLease(2*time.Second)))
				}
				time.Sleep(time.Second)
				left, err := other.Locker("x").TTL(t.Context())
				must(t, err)
				if until := time.Until(c.Holds()[0].Until); until > left {
					t.Errorf("held for %v more, where the store keeps it for %v", until, left)
				}
			})
		})
	}
}

// A renewal of what was granted to the first in line goes out, and is carried out, while a longer
// re-entry has no answer.
func TestARenewalWhileAReentryIsUnderWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newScript(membackend.New())
		cs := fairClients(t, store, 2)
		holder := cs[0].FairLocker("x")
		mustTry(t, holder)
		ctx := WithOwner(t.Context(), NewOwner())
		first := wait(ctx, cs[1].FairLocker("x"), FixedLease(3*time.Second))
		mustUnlock(t, t.Context(), holder)
		first.mustBeIn(t)
		store.acquire.set(func(s *acquireStep) {
			s.do()
			if s.req.Reentry {
				// the store gives the lock for a second, and a third of that is over
				time.Sleep(500 * time.Millisecond)
			}
		})
		if ok, err := first.l.TryLock(ctx); !ok || err != nil {
			t.Fatal(ok, err)
		}
		store.acquire.set(nil)
		time.Sleep(5 * time.Second)
		if ok, err := cs[0].FairLocker("x").TryLock(t.Context()); ok || err != nil {
			held, _ := first.l.IsHeld(ctx)
			t.Errorf("another has got it: %v, %v; held: %v", ok, err, held)
		}
		mustUnlock(t, ctx, first.l)
		mustUnlock(t, ctx, first.l)
		mustTry(t, cs[0].FairLocker("x"))
	})
}
