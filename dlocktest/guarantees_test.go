package dlocktest_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed951563bd/distsync/dlock"
	"github.com/seed951563bd/distsync/dlocktest"
)

// These tests check the section "What is guaranteed, and what is not" of docs/guide.md, sentence by
// sentence, as far as a Store can show it. They run in bubbles of testing/synctest, where times are
// exact and cost nothing.

// guarantee runs a test of two clients that share a store, as two processes do. At its end no lock
// may be held or waited for.
func guarantee(t *testing.T, test func(t *testing.T, store *dlocktest.Store, a, b *dlock.Client)) {
	synctest.Test(t, func(t *testing.T) {
		store := dlocktest.New(t)
		test(t, store, clientOf(t, store, "a"), clientOf(t, store, "b"))
	})
}

const lease = dlock.DefaultLease

// docs/guide.md quotes this test: a function that must stop when its lock is lost does stop.
func TestImportStopsWhenItsLockIsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // leases and waits take no time in here
		store := dlocktest.New(t) // at the end nothing may be held or waited for
		client := dlock.New(store)
		defer client.Close()

		done := make(chan error)
		go func() { done <- importOrders(t.Context(), client) }()
		synctest.Wait() // it has its lock, and works

		store.Lose("import")
		if err := <-done; !errors.Is(err, dlock.ErrLost) {
			t.Errorf("it ended with %v", err)
		}
	})
}

// importOrders is an example of a user's function.
func importOrders(ctx context.Context, client *dlock.Client) error {
	return client.Locker("import").Do(ctx, func(ctx context.Context) error {
		for ctx.Err() == nil {
			time.Sleep(time.Second) // one order after the other
		}
		return context.Cause(ctx)
	})
}

// "If several clients believe that they hold a lock and each checks, at most one check succeeds":
// the second client acquires the lock only after the first has stopped believing, although the
// first got no message.
func TestAtMostOneCheckSucceeds(t *testing.T) {
	guarantee(t, func(t *testing.T, store *dlocktest.Store, a, b *dlock.Client) {
		first := acquire(t, a.Locker("x"))
		store.PauseRenewals() // a is cut off
		second := acquire(t, b.Locker("x"))
		if first.Err() == nil {
			t.Error("both believe that they hold the lock")
		}
		must(t, second.Err())
		must(t, second.Release(t.Context()))
	})
}

// "A holder that is running is told that its lock is lost when its lease ends at the latest, even
// if the store never answers again": the context of Do ends, and Lost channels are closed.
func TestToldWhenTheLeaseEnds(t *testing.T) {
	guarantee(t, func(t *testing.T, store *dlocktest.Store, a, b *dlock.Client) {
		began := time.Now()
		err := a.Locker("x").Do(t.Context(), func(ctx context.Context) error {
			store.Hang(-1) // the store never answers again
			<-ctx.Done()
			return context.Cause(ctx)
		})
		if told := time.Since(began); !errors.Is(err, dlock.ErrLost) || told > lease {
			t.Errorf("told after %v: %v", told, err)
		}
	})
}

// ... and the unlock reports it, too: UnlockContext returns the loss, and Unlock logs it.
func TestUnlockSaysThatTheLockWasLost(t *testing.T) {
	guarantee(t, func(t *testing.T, store *dlocktest.Store, a, b *dlock.Client) {
		var log bytes.Buffer
		c := dlock.New(store, dlock.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
		l, m := c.Locker("x"), c.Locker("y")
		l.Lock()
		m.Lock()
		lost := l.Lost(t.Context())
		store.Lose("x")
		store.Lose("y")
		<-lost
		if err := l.UnlockContext(t.Context()); !errors.Is(err, dlock.ErrLost) {
			t.Errorf("UnlockContext = %v", err)
		}
		synctest.Wait()
		m.Unlock()
		must(t, c.Close())
		if !strings.Contains(log.String(), `msg="dlock: unlock" name=y`) {
			t.Errorf("logged %s", &log)
		}
	})
}

// "After a pause, Err() of the very context that Do passed is right at once": Err checks the clock,
// and doesn't wait for a message.
func TestErrIsRightAtOnce(t *testing.T) {
	guarantee(t, func(t *testing.T, store *dlocktest.Store, a, b *dlock.Client) {
		h := acquire(t, a.Locker("x"))
		ctx := h.Context()
		store.PauseRenewals()
		time.Sleep(time.Until(h.Until())) // no timer has fired yet
		if ctx.Err() == nil {
			t.Error("Err is nil when the lease is over")
		}
	})
}

// "A loss is final", even if the store still has the hold and renews it later.
func TestALossIsFinal(t *testing.T) {
	guarantee(t, func(t *testing.T, store *dlocktest.Store, a, b *dlock.Client) {
		h := acquire(t, a.Locker("x"))
		store.PauseRenewals()
		<-h.Lost()
		store.ResumeRenewals()
		time.Sleep(time.Hour)
		if !errors.Is(h.Err(), dlock.ErrLost) {
			t.Errorf("Err = %v", h.Err())
		}
	})
}

// "A crash frees the lock within its lease": a closed client sends neither renewals nor releases.
func TestACrashFreesTheLock(t *testing.T) {
	guarantee(t, func(t *testing.T, store *dlocktest.Store, a, b *dlock.Client) {
		began := time.Now()
		a.Locker("x").Lock()
		must(t, a.Close())
		store.Held(t, "x")
		must(t, acquire(t, b.Locker("x")).Release(t.Context()))
		if took := time.Since(began); took > lease+time.Second/10 {
			// some milliseconds more, because waiters try at random times
			t.Errorf("the next got in after %v", took)
		}
	})
}

// "A waiter that is cancelled leaves nothing behind", not even in a line of which it was the first.
func TestAWaiterThatIsCancelledLeavesNothingBehind(t *testing.T) {
	guarantee(t, func(t *testing.T, store *dlocktest.Store, a, b *dlock.Client) {
		held := acquire(t, a.FairLocker("x"))
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := b.FairLocker("x").LockContext(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Lock = %v", err)
		}
		must(t, held.Release(t.Context()))
		synctest.Wait()
		store.Free(t, "x")
	})
}

// ... nor does one "whose request is lost on the way".
func TestARequestThatIsLostLeavesNothingBehind(t *testing.T) {
	guarantee(t, func(t *testing.T, store *dlocktest.Store, a, b *dlock.Client) {
		store.Hang(1)
		if err := a.Locker("x").LockContext(t.Context(), dlock.Wait(time.Second)); !errors.Is(err,
			dlock.ErrUnavailable) {
			t.Errorf("Lock = %v", err)
		}
		if ok, err := b.Locker("x").TryLock(t.Context(), dlock.FixedLease(time.Second)); !ok ||
			err != nil {
			t.Errorf("TryLock = %v, %v", ok, err)
		}
		time.Sleep(time.Second)
		store.Free(t, "x")
	})
}

// "A late unlock never frees another's lock."
func TestALateUnlockFreesNobodyElsesLock(t *testing.T) {
	guarantee(t, func(t *testing.T, store *dlocktest.Store, a, b *dlock.Client) {
		late := acquire(t, a.Locker("x"))
		store.Lose("x")
		held := acquire(t, b.Locker("x"))
		if err := late.Release(t.Context()); !errors.Is(err, dlock.ErrLost) {
			t.Errorf("Release = %v", err)
		}
		store.Held(t, "x")
		must(t, held.Release(t.Context()))
	})
}

// "A request that the network delivers late never touches a later acquisition": here a renewal
// arrives when another client holds the lock.
func TestALateRequestTouchesNoLaterAcquisition(t *testing.T) {
	guarantee(t, func(t *testing.T, store *dlocktest.Store, a, b *dlock.Client) {
		lost := acquire(t, a.Locker("x"))
		store.PauseRenewals()
		time.Sleep(lease / 2) // a renewal is under way
		store.Lose("x")
		held := acquire(t, b.Locker("x"), dlock.FixedLease(time.Second))
		store.ResumeRenewals()
		synctest.Wait()
		must(t, held.Err())
		if lost.Err() == nil {
			t.Error("what was lost is held again")
		}
		time.Sleep(time.Second)
		store.Free(t, "x") // the lease is that of the later acquisition
	})
}

// "The process is paused past its lease between its last check and a write": the write may happen
// while another client holds the lock. "Let the resource refuse stale ones": the resource
// recognizes them by their tokens.
func TestAPausedHolderIsRefused(t *testing.T) {
	guarantee(t, func(t *testing.T, store *dlocktest.Store, a, b *dlock.Client) {
		largest := uint64(0)
		write := func(h *dlock.Hold) (ok bool) {
			token, _ := h.Token()
			ok = token >= largest
			largest = max(largest, token)
			return ok
		}
		paused := acquire(t, a.FencedLocker("account"))
		must(t, paused.Err()) // the last check of the paused holder
		store.PauseRenewals()
		time.Sleep(lease)
		store.ResumeRenewals()
		next := acquire(t, b.FencedLocker("account"))
		if !write(next) {
			t.Error("the next is refused")
		}
		if write(paused) {
			t.Error("the one that was paused isn't refused")
		}
		must(t, next.Release(t.Context()))
	})
}

// "The holder ignores its context: it works on without the lock."
func TestAHolderThatIgnoresItsContext(t *testing.T) {
	guarantee(t, func(t *testing.T, store *dlocktest.Store, a, b *dlock.Client) {
		err := a.Locker("x").Do(t.Context(), func(context.Context) error {
			store.Lose("x")
			// now both functions run
			return b.Locker("x").Do(t.Context(), func(context.Context) error { return nil })
		})
		if !errors.Is(err, dlock.ErrLost) { // a holder that ignores its context finds out here
			t.Errorf("Do = %v", err)
		}
	})
}

// "Redis fails over to a replica that hadn't got the lock yet", or "loses data": "a second client
// can take it. The first finds out at its next renewal, within a third of a lease as a rule."
func TestAStoreThatForgets(t *testing.T) {
	guarantee(t, func(t *testing.T, store *dlocktest.Store, a, b *dlock.Client) {
		first := acquire(t, a.Locker("x"))
		store.Wipe()
		began := time.Now()
		second := acquire(t, b.Locker("x"))
		must(t, first.Err()) // both clients believe that they hold the lock
		<-first.Lost()
		if took := time.Since(began); took > lease/3 {
			t.Errorf("the first was told after %v", took)
		}
		must(t, second.Release(t.Context()))
	})
}

// "Somebody calls ForceUnlock: the next gets in; the holder is told at once if it is in the same
// client, otherwise at its next renewal; with a fixed Lease when that ends."
func TestForceUnlock(t *testing.T) {
	for _, test := range []struct {
		who    string
		opts   []dlock.AcquireOption
		within time.Duration
	}{
		{who: "a", within: 0},
		{who: "b", within: lease / 3},
		{who: "b", opts: []dlock.AcquireOption{dlock.FixedLease(time.Hour)}, within: time.Hour},
	} {
		guarantee(t, func(t *testing.T, store *dlocktest.Store, a, b *dlock.Client) {
			holder := acquire(t, a.Locker("x"), test.opts...)
			began := time.Now()
			forces := map[string]*dlock.Client{"a": a, "b": b}[test.who]
			if was, err := forces.Locker("x").ForceUnlock(t.Context()); !was || err != nil {
				t.Errorf("ForceUnlock = %v, %v", was, err)
			}
			must(t, acquire(t, b.Locker("x")).Release(t.Context()))
			<-holder.Lost()
			if took := time.Since(began); took > test.within {
				t.Errorf("by %s: the holder was told after %v", test.who, took)
			}
		})
	}
}

// "Goroutines of the holder's process may enter for up to 10 ms more", but with WithHandover(0)
// none enters.
func TestForceUnlockAndTheHoldersProcess(t *testing.T) {
	for handover, enters := range map[time.Duration]bool{dlock.DefaultHandover: true, 0: false} {
		guarantee(t, func(t *testing.T, store *dlocktest.Store, _, b *dlock.Client) {
			a := clientOf(t, store, "with a hand-over of its own", dlock.WithHandover(handover))
			holder := acquire(t, a.Locker("x"))
			if _, err := b.Locker("x").ForceUnlock(t.Context()); err != nil {
				t.Error(err)
			}
			next := acquire(t, b.Locker("x"))
			entered := make(chan bool)
			go func() {
				ok, err := a.Locker("x").TryLock(t.Context(), dlock.Wait(time.Second))
				entered <- ok && err == nil
			}()
			synctest.Wait() // it waits while the other holder doesn't know of the loss yet
			holder.Release(t.Context())
			if got := <-entered; got != enters {
				t.Errorf("with a hand-over of %v another goroutine of that process entered: %v; "+
					"want %v", handover, got, enters)
			}
			must(t, next.Release(t.Context()))
		})
	}
}
