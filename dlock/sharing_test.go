package dlock

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/dlock/internal/protocol"
	"github.com/seed951563bd/distsync/membackend"
)

// Plain readers whose holds are of different age leave at the same time.
func TestPlainReadersLeaveTogether(t *testing.T) {
	c := New(membackend.New(), quiet(), WithHandover(0))
	defer c.Close()
	rw := c.RWLocker("x")
	const readers, rounds = 8, 300
	for range rounds {
		for range readers {
			rw.RLock()
		}
		var all sync.WaitGroup
		begin := make(chan struct{})
		for range readers {
			all.Go(func() {
				<-begin
				must(t, rw.Reader().UnlockContext(t.Context()))
			})
		}
		close(begin)
		all.Wait()
	}
	empty(t, c)
}

// A call that ends without anybody to hear of it gives back what it got by a plain read. Another's
// unlock may have given back that very hold just before.
func TestAPlainReadOfNobodyIsGivenBack(t *testing.T) {
	onScript(t, func(t *testing.T, b *script, c, other *Client) {
		rw := c.RWLocker("x")
		rw.RLock()
		first := rw.Reader().plain.hold
		time.Sleep(time.Second)
		rw.RLock()
		must(t, rw.Reader().UnlockContext(t.Context()))
		first.letGo(c)
		synctest.Wait()
		wantFree(t, other, "x")
		empty(t, c)
	})
}

// Several goroutines begin to read as one owner, and the store grants each of them a read. The
// owner has one hold: what was granted beside it is given back.
func TestOneOwnerBeginsToReadTwiceAtOnce(t *testing.T) {
	onScript(t, func(t *testing.T, b *script, c, other *Client) {
		b.acquire.delay(0, time.Second)
		ctx, l := WithOwner(t.Context(), NewOwner()), c.RWLocker("x").Reader()
		var all sync.WaitGroup
		for range 3 {
			all.Go(func() {
				if ok, err := l.TryLock(ctx); !ok || err != nil {
					t.Errorf("TryLock = %v, %v", ok, err)
				}
			})
		}
		all.Wait()
		synctest.Wait()
		if n := len(c.Holds()); n != 1 {
			t.Errorf("the owner has %d holds", n)
		}
		if info, err := other.Inspect(t.Context(), "x"); len(info.Holders) != 1 || err != nil {
			t.Errorf("in the store: %+v, %v", info.Holders, err)
		}
		for left := 3; left > 0; left-- {
			if n, err := l.HoldCount(ctx); n != left || err != nil {
				t.Errorf("HoldCount = %d, %v; want %d", n, err, left)
			}
			if err := l.UnlockContext(ctx); err != nil {
				t.Errorf("with %d left: %v", left, err)
			}
		}
		wantFree(t, other, "x")
		empty(t, c)
	})
}

// One goroutine of an owner reads in a Do, and another begins and ends a read meanwhile: that is
// none of the Do's business.
func TestAnOwnerReadsBesideItsOwnDo(t *testing.T) {
	onScript(t, func(t *testing.T, b *script, c, other *Client) {
		b.acquire.delay(10*time.Millisecond, 0)
		ctx, l := WithOwner(t.Context(), NewOwner()), c.RWLocker("x").Reader()
		var all sync.WaitGroup
		all.Go(func() {
			must(t, l.LockContext(ctx))
			time.Sleep(50 * time.Millisecond)
			must(t, l.UnlockContext(ctx))
		})
		time.Sleep(5 * time.Millisecond)
		ran, err := l.TryDo(ctx, func(ctx context.Context) error {
			time.Sleep(200 * time.Millisecond)
			return context.Cause(ctx)
		})
		if !ran || err != nil {
			t.Errorf("TryDo = %v, %v", ran, err)
		}
		all.Wait()
		wantFree(t, other, "x")
		time.Sleep(time.Second)
		empty(t, c)
	})
}

// A call of an owner joins other readers while another of its calls waits for a read of another
// lease: that one re-enters at once.
func TestWhoJoinsTakesItsPartyAlong(t *testing.T) {
	onScript(t, func(t *testing.T, b *script, c, other *Client) {
		rw, ctx := c.RWLocker("x"), WithOwner(t.Context(), NewOwner())
		rw.RLock()
		b.acquire.set(func(s *acquireStep) {
			time.Sleep(time.Minute)
			s.fail(errors.New("no answer"))
		})
		waiting := wait(ctx, rw.Reader(), FixedLease(time.Hour))
		must(t, rw.Reader().LockContext(ctx))
		began := time.Now()
		waiting.mustBeIn(t)
		if d := time.Since(began); d > time.Second {
			t.Errorf("the other call of the owner got in after %v", d)
		}
		if n := len(c.Holds()); n != 2 {
			t.Errorf("%d holds of a plain reader and an owner", n)
		}
		must(t, waiting.leave())
		must(t, rw.Reader().UnlockContext(ctx))
		rw.RUnlock()
		wantFree(t, other, "x")
		time.Sleep(time.Minute)
	})
}

// A call that began before finds what its owner gets in another goroutine, as the other side of the
// lock.
func TestTheOtherSideIsGotMeanwhile(t *testing.T) {
	t.Run("while asking", func(t *testing.T) {
		onScript(t, func(t *testing.T, b *script, c, other *Client) {
			rw, ctx := c.RWLocker("x"), WithOwner(t.Context(), NewOwner())
			b.acquire.set(func(s *acquireStep) {
				b.acquire.set(nil)
				must(t, rw.Writer().LockContext(ctx))
			})
			if ok, err := rw.Reader().TryLock(ctx); !ok || err != nil {
				t.Errorf("reading while the same owner writes: %v, %v", ok, err)
			} else {
				must(t, rw.Reader().UnlockContext(ctx))
			}
			must(t, rw.Writer().UnlockContext(ctx))
			wantFree(t, other, "x")
			empty(t, c)
		})
	})
}

// Plain readers of one RWLocker have leases of different length. The one that lasts longest
// protects those that go on.
func TestPlainReadersWithALease(t *testing.T) {
	t.Run("that runs out", func(t *testing.T) {
		onScript(t, func(t *testing.T, b *script, c, other *Client) {
			l := c.RWLocker("x").Reader()
			l.Lock()
			mustTry(t, l, FixedLease(time.Second))
			time.Sleep(2 * time.Second)
			if n, err := l.HoldCount(t.Context()); n != 1 || err != nil {
				t.Errorf("HoldCount = %d, %v; one reads still", n, err)
			}
			lost := l.Lost(t.Context())
			if over(lost) {
				t.Error("who reads still is told that he doesn't")
			}
			if err := l.UnlockContext(t.Context()); !errors.Is(err, ErrLost) {
				t.Errorf("the first unlock: %v", err)
			}
			time.Sleep(2 * DefaultLease)
			if over(lost) {
				t.Error("lost")
			}
			must(t, l.UnlockContext(t.Context()))
			wantFree(t, other, "x")
			empty(t, c)
		})
	})
	t.Run("that is given back", func(t *testing.T) {
		onScript(t, func(t *testing.T, b *script, c, other *Client) {
			l := c.RWLocker("x").Reader()
			l.Lock()
			lost := l.Lost(t.Context())
			mustTry(t, l, FixedLease(time.Second))
			must(t, l.UnlockContext(t.Context()))
			time.Sleep(2 * DefaultLease)
			if over(lost) {
				t.Error("the lease of one who has gone has ended what another has")
			}
			must(t, l.UnlockContext(t.Context()))
			wantFree(t, other, "x")
			empty(t, c)
		})
	})
	t.Run("that nobody unlocks", func(t *testing.T) {
		onScript(t, func(t *testing.T, b *script, c, other *Client) {
			l := c.RWLocker("x").Reader()
			mustTry(t, l, FixedLease(time.Second))
			time.Sleep(time.Hour)
			l.Lock()
			if err := l.UnlockContext(t.Context()); !errors.Is(err, ErrLost) {
				t.Errorf("the first unlock, which may be for what has run out: %v", err)
			}
			time.Sleep(time.Hour)
			if ok, err := other.RWLocker("x").Writer().TryLock(t.Context()); ok || err != nil {
				t.Errorf("a writer beside one who may be reading still: %v, %v", ok, err)
			}
			must(t, l.UnlockContext(t.Context()))
			wantFree(t, other, "x")
			empty(t, c)
		})
	})
	t.Run("that nobody need unlock", func(t *testing.T) {
		onScript(t, func(t *testing.T, b *script, c, other *Client) {
			l := c.RWLocker("x").Reader()
			_, err := l.Acquire(t.Context(), FixedLease(time.Second))
			must(t, err)
			mustTry(t, l.For(NewOwner()), FixedLease(time.Second))
			mustTry(t, l.With(FixedLease(time.Second)))
			time.Sleep(2 * time.Second)
			l.Lock()
			must(t, l.UnlockContext(t.Context()))
			wantFree(t, other, "x")
			time.Sleep(lossMemory * DefaultLease)
			empty(t, c)
		})
	})
	t.Run("shorter than another", func(t *testing.T) {
		onScript(t, func(t *testing.T, b *script, c, other *Client) {
			l := c.RWLocker("x").Reader()
			mustTry(t, l, FixedLease(time.Minute))
			mustTry(t, l, FixedLease(time.Second))
			must(t, l.UnlockContext(t.Context()))
			time.Sleep(2 * time.Second)
			if held, err := l.IsHeld(t.Context()); !held || err != nil {
				t.Errorf("IsHeld = %v, %v within the longer lease", held, err)
			}
			must(t, l.UnlockContext(t.Context()))
			wantFree(t, other, "x")
			empty(t, c)
		})
	})
}

// A plain reader loses what it has, and unlocks so late that the client has forgotten the loss.
// Reads that others have got by the same RWLocker since then are theirs still.
func TestALateUnlockOfALostRead(t *testing.T) {
	for name, c := range map[string]struct {
		others int // locks that are lost in the same outage
		late   time.Duration
	}{
		"long after the loss":                   {0, (lossMemory + 1) * DefaultLease},
		"after an outage that cost many others": {maxLosses, time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			onScript(t, func(t *testing.T, b *script, client, other *Client) {
				var down atomic.Bool
				b.renew.set(func(s *renewStep) {
					if down.Load() {
						s.fail(errors.New("no answer"))
					}
				})
				rw := client.RWLocker("x")
				rw.RLock()
				rw.RLock()
				for i := range c.others {
					_, err := client.Locker(fmt.Sprint(i)).Acquire(t.Context())
					must(t, err)
				}
				down.Store(true)
				time.Sleep(2 * DefaultLease)
				down.Store(false)
				time.Sleep(c.late)
				rw.RLock()
				lost := rw.Reader().Lost(t.Context())
				for range 2 {
					if err := rw.Reader().UnlockContext(t.Context()); !errors.Is(err, ErrLost) {
						t.Errorf("the unlock of what was lost: %v", err)
					}
				}
				if ok, err := other.RWLocker("x").Writer().TryLock(t.Context()); ok || err != nil {
					t.Errorf("a writer beside one who reads: %v, %v", ok, err)
				}
				if over(lost) {
					t.Error("who reads still is told that it doesn't")
				}
				must(t, rw.Reader().UnlockContext(t.Context()))
				wantFree(t, other, "x")
				if err := rw.Reader().UnlockContext(t.Context()); !errors.Is(err, ErrNotHeld) {
					t.Errorf("one unlock too many: %v", err)
				}
				func() {
					defer func() {
						if recover() == nil {
							t.Error("one RUnlock too many doesn't panic")
						}
					}()
					rw.RUnlock()
				}()
				time.Sleep(lossMemory * DefaultLease)
				empty(t, client)
			})
		})
	}
}

// A read under a write that was given back while the write went on is given back after Close, too.
func TestAReadUnderAWriteAndClose(t *testing.T) {
	onScript(t, func(t *testing.T, b *script, c, other *Client) {
		rw, ctx := c.RWLocker("x"), WithOwner(t.Context(), NewOwner())
		must(t, rw.Writer().LockContext(ctx))
		must(t, rw.Reader().LockContext(ctx))
		must(t, rw.Reader().UnlockContext(ctx))
		c.Close()
		must(t, rw.Writer().UnlockContext(ctx))
		wantFree(t, other, "x")
	})
}

// To force readers takes nothing while somebody writes, and so nothing is lost.
func TestReadersAreForcedWhileOneWrites(t *testing.T) {
	onScript(t, func(t *testing.T, b *script, c, other *Client) {
		rw, ctx := c.RWLocker("x"), WithOwner(t.Context(), NewOwner())
		must(t, rw.Writer().LockContext(ctx))
		must(t, rw.Reader().LockContext(ctx))
		if ok, err := rw.Reader().ForceUnlock(t.Context()); ok || err != nil {
			t.Errorf("ForceUnlock of readers while one writes = %v, %v", ok, err)
		}
		must(t, rw.Reader().UnlockContext(ctx))
		must(t, rw.Writer().UnlockContext(ctx))
		wantFree(t, other, "x")
		empty(t, c)
	})
}

// A waiter that is let in with other readers lets the rest of its party in, wherever in the queue
// that is.
func TestWhoIsLetInTakesItsPartyAlong(t *testing.T) {
	for name, side := range map[string]func(*RWLocker) *Locker{
		"to read": (*RWLocker).Reader, "to write": (*RWLocker).Writer,
	} {
		t.Run(name, func(t *testing.T) {
			onScript(t, func(t *testing.T, b *script, c, other *Client) {
				theirs := other.RWLocker("x")
				theirs.Lock()
				ctx := WithOwner(t.Context(), NewOwner())
				lead := wait(t.Context(), c.RWLocker("x").Reader())
				first := wait(ctx, c.RWLocker("x").Reader())
				writer := wait(t.Context(), c.RWLocker("x").Writer())
				second := wait(ctx, side(c.RWLocker("x")))
				theirs.Unlock()
				lead.mustBeIn(t)
				first.mustBeIn(t)
				select {
				case err := <-second.in:
					if name == "to read" && err != nil ||
						name == "to write" && !errors.Is(err, ErrUpgrade) {
						t.Errorf("the second call of the party: %v", err)
					}
				case <-time.After(time.Minute):
					t.Error("the second call of the party waits, behind a writer that waits for " +
						"the first")
				}
				must(t, first.leave())
				if name == "to read" {
					must(t, second.leave())
				}
				must(t, lead.leave())
				writer.mustBeIn(t)
				must(t, writer.leave())
			})
		})
	}
}

// A call that comes just as the client is closed doesn't join anybody.
func TestNobodyJoinsAfterClose(t *testing.T) {
	onScript(t, func(t *testing.T, b *script, c, other *Client) {
		rw := c.RWLocker("x")
		rw.RLock()
		a := &acquisition{client: c, call: call{
			kind: protocol.Kind(backend.Read), name: "x", party: NewOwner(),
			o: acquireOptions{lease: c.lease},
		}}
		c.Close()
		if share(a) != nil {
			t.Error("somebody has joined who will never be told that the client is closed")
		}
		must(t, rw.Reader().UnlockContext(t.Context()))
	})
}

// lastLeaves has the only plain reader leave as releaseShared does, as far as to where it lets
// others go first.
func lastLeaves(c *Client, rw *RWLocker) {
	c.mu.Lock()
	defer c.mu.Unlock()
	h := c.state.object(protocol.Kind(backend.Read), rw.Name()).reader(party(rw.reader.plain))
	h.drop(&c.state)
	rw.reader.plain.hold = nil
	h.state = released
	h.claim.more.holds--
}

// Between the last reader's leaving and the release somebody may join: not if the lock was forced
// in that moment.
func TestForcedWhileTheLastReaderLeaves(t *testing.T) {
	onScript(t, func(t *testing.T, b *script, c, other *Client) {
		rw := c.RWLocker("x")
		rw.RLock()
		lastLeaves(c, rw)
		if ok, err := rw.Reader().ForceUnlock(t.Context()); !ok || err != nil {
			t.Fatalf("ForceUnlock = %v, %v", ok, err)
		}
		a := &acquisition{client: c, call: call{
			kind: protocol.Kind(backend.Read), name: "x", party: NewOwner(),
			o: acquireOptions{lease: c.lease},
		}}
		if share(a) != nil {
			t.Error("somebody joins what this client itself has forced")
		}
		time.Sleep(2 * DefaultLease)
		empty(t, c)
	})
}

// Between the last reader's leaving and the release this client gets to write: the read was lost,
// and nobody joins it beside the write.
func TestAWriterGetsInWhileTheLastReaderLeaves(t *testing.T) {
	onScript(t, func(t *testing.T, b *script, c, other *Client) {
		rw := c.RWLocker("x")
		rw.RLock()
		lastLeaves(c, rw)
		if ok, err := other.RWLocker("x").Reader().ForceUnlock(t.Context()); !ok || err != nil {
			t.Fatalf("ForceUnlock = %v, %v", ok, err)
		}
		mustTry(t, rw.Writer())
		a := &acquisition{client: c, call: call{
			kind: protocol.Kind(backend.Read), name: "x", party: NewOwner(),
			o: acquireOptions{lease: c.lease},
		}}
		if share(a) != nil {
			t.Error("somebody reads beside a writer")
		}
		rw.Unlock()
		time.Sleep(2 * DefaultLease)
		empty(t, c)
	})
}

// Between the last reader's leaving and the release another joins and leaves: it releases what they
// had, and nothing is left for the first to give back. The end of the first reader's context brings
// the other in at that moment.
func TestAReaderComesAndGoesWhileTheLastReaderLeaves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newScript(membackend.New())
		c := New(store, quiet())
		defer c.Close()
		l := c.RWLocker("x").Reader()
		h, err := l.Acquire(t.Context())
		must(t, err)
		other, came := WithOwner(t.Context(), NewOwner()), false
		comesAndGoes := &lifeline{func(error) {
			came = true
			must(t, l.LockContext(other))
			store.wantSteps(t, 1, 0) // it has joined
			mustUnlock(t, other, l)
		}}
		c.mu.Lock()
		h.hold.watched().contexts = map[*lifeline]struct{}{comesAndGoes: {}}
		c.mu.Unlock()
		must(t, h.Release(t.Context()))
		if !came {
			t.Fatal("nobody came while it left")
		}
		synctest.Wait()
		store.wantSteps(t, 1, 1)
		empty(t, c)
	})
}

// Two calls of an owner that writes begin to read at once, with different leases: what is to be
// renewed is.
func TestReadsUnderAWriteWithDifferentLeases(t *testing.T) {
	onScript(t, func(t *testing.T, b *script, c, other *Client) {
		rw, ctx := c.RWLocker("x"), WithOwner(t.Context(), NewOwner())
		must(t, rw.Writer().LockContext(ctx))
		b.acquire.set(func(s *acquireStep) {
			if s.n == 1 {
				time.Sleep(time.Second)
			}
		})
		renewed := wait(ctx, rw.Reader())
		must(t, rw.Reader().LockContext(ctx, FixedLease(2*time.Second)))
		time.Sleep(time.Second)
		renewed.mustBeIn(t)
		time.Sleep(3 * DefaultLease)
		if n, err := rw.Reader().HoldCount(ctx); n != 2 || err != nil {
			t.Errorf("HoldCount = %d, %v; one of the reads is renewed until it is unlocked", n, err)
		}
		must(t, rw.Reader().UnlockContext(ctx))
		must(t, rw.Reader().UnlockContext(ctx))
		must(t, rw.Writer().UnlockContext(ctx))
		wantFree(t, other, "x")
		empty(t, c)
	})
}

// A re-entry whose hold is given back meanwhile by the same owner is an acquisition of its own, and
// no loss.
func TestAReadIsGivenBackDuringItsReentry(t *testing.T) {
	onScript(t, func(t *testing.T, b *script, c, other *Client) {
		l, ctx := c.RWLocker("x").Reader(), WithOwner(t.Context(), NewOwner())
		must(t, l.LockContext(ctx, FixedLease(time.Minute)))
		b.renew.delay(time.Second, 0)
		again := wait(ctx, l)
		must(t, l.UnlockContext(ctx))
		if err := <-again.in; err != nil {
			t.Errorf("the re-entry: %v", err)
		} else {
			must(t, l.UnlockContext(ctx))
		}
		wantFree(t, other, "x")
		empty(t, c)
	})
}

// A store that panics as it releases what was read under a write keeps nobody waiting for ever.
func TestAPanicAsAReadUnderAWriteIsReleased(t *testing.T) {
	onScript(t, func(t *testing.T, b *script, c, other *Client) {
		c.store.Steps = backend.StepsNeverWait // or the panic is in a goroutine of its own
		rw, ctx := c.RWLocker("x"), WithOwner(t.Context(), NewOwner())
		must(t, rw.Writer().LockContext(ctx))
		must(t, rw.Reader().LockContext(ctx))
		must(t, rw.Reader().UnlockContext(ctx))
		next := wait(t.Context(), c.RWLocker("x").Writer())
		b.release.set(func(s *releaseStep) {
			b.release.set(nil)
			panic("the store's client")
		})
		func() {
			defer func() { recover() }()
			rw.Writer().UnlockContext(ctx)
		}()
		time.Sleep(time.Second)
		next.mustBeIn(t)
		must(t, next.leave())
		time.Sleep(2 * DefaultLease)
		empty(t, c)
	})
}

// A waiter that was let in with others as the client is closed doesn't keep what those give back.
func TestLetInAsTheClientIsClosed(t *testing.T) {
	onScript(t, func(t *testing.T, b *script, c, other *Client) {
		theirs := other.RWLocker("x")
		theirs.Lock()
		reader := wait(t.Context(), c.RWLocker("x").Reader())
		a := &acquisition{client: c, call: call{
			kind: protocol.Kind(backend.Read), name: "x", party: NewOwner(),
			o: acquireOptions{lease: c.lease},
		}}
		a.wait()
		lineUp(a)
		theirs.Unlock()
		reader.mustBeIn(t)
		if a.handed == nil {
			t.Fatal("not let in")
		}
		c.Close()
		if h, err := take(t.Context(), a); !errors.Is(err, ErrClosed) {
			t.Errorf("after Close: %v, %v", h, err)
		}
		must(t, reader.leave())
		wantFree(t, other, "x")
	})
}

// A reader that reads on with a later hold of the same Locker is told that its first hold was lost,
// if that is found as another gives it back.
func TestALossThatAnotherReaderFinds(t *testing.T) {
	onScript(t, func(t *testing.T, b *script, c, other *Client) {
		l := c.RWLocker("x").Reader()
		l.Lock()
		lost := l.Lost(t.Context())
		if ok, err := other.RWLocker("x").Reader().ForceUnlock(t.Context()); !ok || err != nil {
			t.Fatalf("ForceUnlock = %v, %v", ok, err)
		}
		wantFree(t, other, "x") // somebody writes in between
		time.Sleep(time.Second)
		l.Lock()
		if err := l.UnlockContext(t.Context()); !errors.Is(err, ErrLost) {
			t.Errorf("the first unlock: %v", err)
		}
		if !over(lost) {
			t.Error("who lost it isn't told")
		}
		must(t, l.UnlockContext(t.Context()))
		wantFree(t, other, "x")
		empty(t, c)
	})
}

// The answer to one call comes after another call of the same client has got the lock. The store
// granted it to both, as somebody forced it in between. Only the store knows which has lost it.
func TestAnswerOvertakenByAnother(t *testing.T) {
	plain := func(c *Client) *Locker { return c.Locker("x") }
	fenced := func(c *Client) *Locker { return c.FencedLocker("x") }
	read := func(c *Client) *Locker { return c.RWLocker("x").Reader() }
	write := func(c *Client) *Locker { return c.RWLocker("x").Writer() }
	for name, sides := range map[string]struct{ late, fast func(*Client) *Locker }{
		"plain":              {plain, plain},
		"fenced":             {fenced, fenced},
		"a read":             {read, write},
		"a write":            {write, read},
		"a write, the other": {write, write},
	} {
		for order, lateFirst := range map[string]bool{
			"the slow one first": true,
			"the slow one last":  false,
		} {
			t.Run(name+"/"+order, func(t *testing.T) {
				onScript(t, func(t *testing.T, b *script, c, other *Client) {
					carryOut, tell := make(chan struct{}), make(chan struct{})
					var once sync.Once
					b.acquire.set(func(s *acquireStep) {
						first := false
						once.Do(func() { first = true })
						if !first {
							return
						}
						<-carryOut
						s.do()
						<-tell
					})
					force := func() {
						for _, side := range []func(*Client) *Locker{sides.late, sides.fast} {
							side(other).ForceUnlock(t.Context())
						}
					}

					type outcome struct {
						ok  bool
						err error
					}
					slow := make(chan outcome)
					late := sides.late(c)
					go func() {
						ok, err := late.TryLock(WithOwner(context.Background(), NewOwner()))
						slow <- outcome{ok, err}
					}()
					synctest.Wait()
					if lateFirst {
						close(carryOut)
						synctest.Wait()
						force()
					}
					hold, err := sides.fast(c).Acquire(t.Context(), Wait(0))
					must(t, err)
					if !lateFirst {
						force()
						close(carryOut)
						synctest.Wait()
					}
					close(tell)
					got := <-slow
					synctest.Wait()

					switch {
					case got.err != nil:
						t.Errorf("the slow call: %v", got.err)
					case lateFirst && (got.ok || hold.Context().Err() != nil):
						t.Errorf("who was granted it last has lost it: %v; the other has it: %v",
							context.Cause(hold.Context()), got.ok)
					case !lateFirst && hold.Context().Err() == nil:
						t.Error("who was granted it first, and lost it, isn't told")
					}
					if err := hold.Release(t.Context()); lateFirst {
						must(t, err)
					} else if !errors.Is(err, ErrLost) {
						t.Errorf("Release = %v, want ErrLost", err)
					}
					time.Sleep(time.Second) // so that take-backs are over
					if free, err := sides.fast(other).TryLock(t.Context()); err != nil ||
						!free && !got.ok {
						t.Errorf("nobody has it, and another gets it: %v, %v", free, err)
					}
				})
			})
		}
	}
}
