package dlock

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/dlock/internal/protocol"
	"github.com/seed951563bd/distsync/membackend"
)

// A loss has a reason, and all that ask hear the same of it.
func TestLossReasons(t *testing.T) {
	for name, test := range map[string]struct {
		lose func(t *testing.T, store *script, c, other *Client)
		want Loss
		text string
		opts []AcquireOption
	}{
		"expired": {
			lose: func(t *testing.T, store *script, c, other *Client) { store.cut(true) },
			want: Loss{
				Reason: LossExpired, Held: 40 * time.Second,
				Unconfirmed: protocol.Promised(DefaultLease), Err: errSevered,
			},
			text: `connection refused`,
		},
		"gone": {
			lose: func(t *testing.T, store *script, c, other *Client) {
				other.Locker("x").ForceUnlock(t.Context())
			},
			want: Loss{Reason: LossGone, Held: 20 * time.Second, Unconfirmed: 10 * time.Second},
			text: `the store has it no more, and had it 9.375s ago`,
		},
		"taken": {
			lose: func(t *testing.T, store *script, c, other *Client) {
				other.Locker("x").ForceUnlock(t.Context())
				other.Locker("x").Lock()
			},
			want: Loss{
				Reason: LossTaken, Held: 20 * time.Second, Unconfirmed: 10 * time.Second,
				TakenBy: "other:1",
			},
			text: `another has it: "other:1"`,
		},
		"forced": {
			lose: func(t *testing.T, store *script, c, other *Client) {
				c.Locker("x").ForceUnlock(t.Context())
			},
			want: Loss{Reason: LossForced, Held: 15 * time.Second, Unconfirmed: 5 * time.Second},
			text: `this client has forced it`,
		},
		"paused": {
			lose: func(t *testing.T, store *script, c, other *Client) {
				c.mu.Lock()
				defer c.mu.Unlock()
				c.state.timer.Stop() // nothing runs until the end of the pause
				time.AfterFunc(time.Minute, c.ring)
			},
			want: Loss{
				Reason: LossPaused, Held: 40 * time.Second,
				Unconfirmed: time.Minute + 5*time.Second, Paused: 55 * time.Second,
			},
			text: `the lease ran out while this process stood still for 55s`,
		},
		"lease": {
			lose: func(t *testing.T, store *script, c, other *Client) {},
			want: Loss{
				Reason: LossLease, Held: protocol.Promised(20 * time.Second),
				Unconfirmed: protocol.Promised(20 * time.Second),
			},
			text: `its fixed lease ran out`,
			opts: []AcquireOption{FixedLease(20 * time.Second)},
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var l ledger
				var log logs
				store := newScript(membackend.New())
				c := New(store, WithLogger(log.logger()), WithClientID("mine"), l.trace())
				defer c.Close()
				other := New(store, quiet(), WithClientID("other"))
				defer other.Close()
				other.mu.Lock()
				other.state.number = 0
				other.mu.Unlock()
				h, err := c.Locker("x").Acquire(t.Context(), test.opts...)
				must(t, err)
				ctx := h.Context()
				if h.Err() != nil {
					t.Errorf("Err, held: %v", h.Err())
				}
				until := h.Until()
				time.Sleep(15 * time.Second)
				if renewed := h.Until().Sub(until); test.opts == nil &&
					(renewed <= 9*time.Second || renewed > 10*time.Second) {
					t.Errorf("Until is %v later after a renewal", renewed)
				}
				test.lose(t, store, c, other)
				<-ctx.Done()
				synctest.Wait() // until all are told, in whatever order
				got, ok := errors.AsType[*Loss](context.Cause(ctx))
				if !ok {
					t.Fatalf("the cause is %v", context.Cause(ctx))
				}
				want := test.want
				want.Name, want.Holder, want.At = "x", h.HolderID(), got.At
				// Renewals are made a little early, so that they are made together.
				if late := 2 * time.Second; (got.Held-want.Held).Abs() < late &&
					(got.Unconfirmed-want.Unconfirmed).Abs() < late &&
					(got.Paused-want.Paused).Abs() < 6*time.Second {
					want.Held, want.Unconfirmed, want.Paused = got.Held, got.Unconfirmed, got.Paused
				}
				want.Renewed, want.By = want.Unconfirmed, want.TakenBy // the old names
				if *got != want {
					t.Errorf("lost: %+v, want %+v", *got, want)
				}
				for what, err := range map[string]error{
					"Cause":   context.Cause(ctx),
					"Err":     h.Err(),
					"Release": h.Release(t.Context()),
				} {
					if e, ok := errors.AsType[*Loss](err); !ok || e != got ||
						!errors.Is(err, ErrLost) {
						t.Errorf("%s: %v, want %v", what, err, got)
					}
					if part, _, _ := strings.Cut(test.text,
						" for 55s"); !strings.Contains(err.Error(), part) {
						t.Errorf("%s says %q, want %q", what, err, test.text)
					}
				}
				if all := c.Losses(); len(all) != 1 || all[0] != *got {
					t.Errorf("Losses = %+v", all)
				}
				l.want(t, "lock exclusive acquired store", "lost exclusive "+name,
					"unlock exclusive lost")
				level := slog.LevelWarn
				if name == "lease" {
					level = slog.LevelInfo
				}
				if n := log.count("level="+level.String()+` msg="dlock: lock lost"`, "x"); n != 1 {
					t.Errorf("logged %d times at %v: %s", n, level, log.lines.String())
				}
			})
		})
	}
}

// A process stands still from the very moment at which the lease runs out, since a renewal isn't
// answered. The loss says so.
func TestStandingStillAtTheEndOfALease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newScript(membackend.New()).but(returns)
		store.renew.hang()
		c := New(store, quiet())
		defer c.Close()
		h, err := c.Locker("x").Acquire(t.Context())
		must(t, err)
		time.Sleep(time.Until(h.Until()) - time.Nanosecond)
		c.mu.Lock()
		c.state.timer.Stop()
		time.AfterFunc(time.Minute, c.ring)
		c.mu.Unlock()
		<-h.Context().Done()
		if loss, ok := errors.AsType[*Loss](h.Err()); !ok || loss.Reason != LossPaused {
			t.Errorf("lost: %v", h.Err())
		}
	})
}

// A release that finds nothing in the store says who has it.
func TestReleaseFindsALoss(t *testing.T) {
	traced(t, func(t *testing.T, l *ledger, c, other *Client) {
		h, err := c.Locker("x").Acquire(t.Context())
		must(t, err)
		other.Locker("x").ForceUnlock(t.Context())
		theirs, err := other.Locker("x").Acquire(t.Context())
		must(t, err)
		err = h.Release(t.Context())
		if got, ok := errors.AsType[*Loss](err); !ok || got.Reason != LossTaken ||
			got.TakenBy != theirs.HolderID() {
			t.Errorf("Release = %v", err)
		}
		l.want(t, "lock exclusive acquired store", "lost exclusive taken", "unlock exclusive lost")
		if len(c.Losses()) != 1 {
			t.Errorf("Losses = %v", c.Losses())
		}
	})
}

// hangsWhenInspected returns a store that never says who has a lock, and tells when it is asked.
func hangsWhenInspected() (store *script, isAsked <-chan struct{}) {
	store, c := newScript(membackend.New()), make(chan struct{})
	store.inspect.set(func(s *inspectStep) {
		close(c)
		s.hang()
	})
	return store, c
}

// Nobody relies on a lock that the store has given away while it is asked for the new holder.
func TestNothingIsHeldWhileTheStoreIsAsked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, asked := hangsWhenInspected()
		c, other := New(store, quiet()), New(store, quiet())
		defer c.Close()
		defer other.Close()
		h, err := c.Locker("x").Acquire(t.Context())
		must(t, err)
		ctx := h.Context()
		other.Locker("x").ForceUnlock(t.Context())
		<-asked
		if ctx.Err() == nil || h.Err() == nil || len(c.Holds()) > 0 {
			t.Error("the lock is believed in")
		}
		<-ctx.Done()
		if l, ok := errors.AsType[*Loss](context.Cause(ctx)); !ok || l.Reason != LossGone {
			t.Errorf("the cause is %v", context.Cause(ctx))
		}
	})
}

// Renewals that fail are logged with the names of the locks and what is left of them, but for those
// that are over.
func TestFailedRenewalsAreNamed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log logs
		store := newScript(membackend.New())
		c := New(store, WithLogger(log.logger()))
		defer c.Close()
		c.Locker("x").Lock()
		h, err := c.Locker("y").Acquire(t.Context())
		must(t, err)
		must(t, h.Release(t.Context()))
		store.cut(true)
		time.Sleep(DefaultLease / 2)
		synctest.Wait()
		c.log.mu.Lock()
		defer c.log.mu.Unlock()
		if text := log.lines.String(); !strings.Contains(text, "names=[x] left=") ||
			!strings.Contains(text, "connection refused") {
			t.Errorf("logged %s", text)
		}
	})
}

// Where a store hangs many renewals of a lock fail at once. That is one line in the log, and none
// once the lock isn't renewed again.
func TestRenewalsThatFailTogether(t *testing.T) {
	for name, test := range map[string]struct {
		hangs time.Duration // for how long they do
		want  int
	}{
		"before the end": {25 * time.Second, 1},
		"at the end":     {protocol.Promised(DefaultLease) - time.Millisecond, 0},
		"for longer":     {time.Hour, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var log logs
				b := newScript(membackend.New())
				began := time.Now()
				b.renew.set(func(s *renewStep) {
					s.hangFor(time.Until(began.Add(test.hangs)))
					s.fail(errSevered)
				})
				c := New(b, WithLogger(log.logger()))
				defer c.Close()
				h, err := c.Locker("x").Acquire(t.Context())
				must(t, err)
				time.Sleep(test.hangs - time.Since(began) + time.Millisecond)
				synctest.Wait()
				c.log.mu.Lock()
				text := log.lines.String()
				c.log.mu.Unlock()
				if n := b.renew.count(); n < 3 {
					t.Errorf("%d renewals hang at once", n)
				}
				if n := strings.Count(text, "renewals failed"); n != test.want {
					t.Errorf("logged %d times, want %d:\n%s", n, test.want, text)
				}
				<-h.Lost()
			})
		})
	}
}

// A renewal under way when the store says that it has a lock no more makes no difference to why
// that is lost.
func TestWhatIsGoneIsGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, asked := hangsWhenInspected()
		c, other := New(store, quiet()), New(store, quiet())
		defer c.Close()
		defer other.Close()
		h, err := c.Locker("x").Acquire(t.Context())
		must(t, err)
		cl, ctx := h.hold.claim, h.Context()
		other.Locker("x").ForceUnlock(t.Context())
		<-asked
		cl.renewalAnswered(c, cl.kind, c.now(), cl.Lease(), backend.RenewResult{}, errSevered)
		cl.renewalAnswered(c, cl.kind, c.now(), cl.Lease(), backend.RenewResult{}, nil)
		<-ctx.Done()
		if l, ok := errors.AsType[*Loss](context.Cause(ctx)); !ok || l.Reason != LossGone ||
			l.Unconfirmed > DefaultLease/2 {
			t.Errorf("the cause is %+v", l)
		}
	})
}

// The answer to a renewal may come when the lease is over and nobody has looked yet: it doesn't
// bring the lock back.
func TestARenewalThatIsAnsweredTooLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New(membackend.New(), quiet())
		defer c.Close()
		h, err := c.Locker("x").Acquire(t.Context())
		must(t, err)
		c.mu.Lock()
		c.state.timer.Stop() // as in a process that is paused
		c.mu.Unlock()
		time.Sleep(time.Until(h.Until()) - time.Millisecond)
		sent := c.now()
		time.Sleep(2 * time.Millisecond)
		cl := h.hold.claim
		cl.renewalAnswered(c, cl.kind, sent, cl.Lease(), backend.RenewResult{Held: true}, nil)
		if err := h.Err(); !errors.Is(err, ErrLost) {
			t.Errorf("a millisecond after its lease: %v", err)
		}
	})
}

// A fixed lease that the store doesn't answer for any more, before it was over, didn't run out as
// it was meant to.
func TestAGrantThatIsNotProlongedIsALoss(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newScript(membackend.New())
		c, other := New(store, quiet()), New(store, quiet())
		defer c.Close()
		defer other.Close()
		first, err := other.FairLocker("x").Acquire(t.Context())
		must(t, err)
		got := make(chan *Hold)
		go func() {
			h, err := c.FairLocker("x").Acquire(t.Context(), FixedLease(time.Hour))
			must(t, err)
			got <- h
		}()
		synctest.Wait()
		store.cut(true)
		must(t, first.Release(t.Context()))
		h := <-got
		began := time.Now()
		ctx := h.Context()
		<-ctx.Done()
		if l, ok := errors.AsType[*Loss](context.Cause(ctx)); !ok || l.Reason != LossExpired ||
			time.Since(began) > time.Minute {
			t.Errorf("after %v: %+v", time.Since(began), l)
		}
	})
}

// An unlock that finds the lock lost asks for the new holder for no longer than it may take itself.
func TestAnUnlockAsksForNoLongerThanItMay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newScript(membackend.New())
		store.inspect.hang()
		c, other := New(store, quiet()), New(store, quiet())
		defer c.Close()
		defer other.Close()
		h, err := c.Locker("x").Acquire(t.Context())
		must(t, err)
		other.Locker("x").ForceUnlock(t.Context())
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		began := time.Now()
		err = h.Release(ctx)
		if l, ok := errors.AsType[*Loss](err); !ok || l.Reason != LossGone ||
			time.Since(began) > time.Millisecond {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
	})
}

// A late answer doesn't revive a read under a write that the store has no more.
func TestAReadThatIsGoneIsNotRevived(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newScript(membackend.New())
		store.inspect.hang()
		c := New(store, quiet())
		defer c.Close()
		ctx := WithOwner(t.Context(), NewOwner())
		rw := c.RWLocker("x")
		must(t, rw.Writer().LockContext(ctx))
		r, err := rw.Reader().Acquire(ctx)
		must(t, err)
		c.mu.Lock()
		write := c.state.object(protocol.Kind(backend.Write), "x").alone
		r.hold.claim.foundGone(&c.state)
		c.unlock()
		a := c.newAcquisition()
		*a = acquisition{client: c, call: call{
			kind: protocol.Kind(backend.Read), name: "x", party: write.party,
			o: acquireOptions{lease: DefaultLease},
		}}
		if _, err := a.readUnder(ctx, write); err != errAgain || r.Err() == nil {
			t.Errorf("read again: %v; the hold says %v", err, r.Err())
		}
		must(t, rw.Writer().UnlockContext(ctx))
	})
}

// A store that has lost a lock may have something else under its name by then. Whatever finds that
// finds a loss.
func TestWhatIsSomethingElseByNowIsLost(t *testing.T) {
	// A client counts a reader's calls itself. Its re-entry asks the store if the lease is fixed.
	readers := []string{"a look", "a re-entry", "the last release"}
	for name, find := range map[string]func(t *testing.T, ctx context.Context, l *Locker) error{
		"a renewal": func(t *testing.T, ctx context.Context, l *Locker) error {
			began := time.Now()
			<-l.Lost(ctx)
			if told := time.Since(began); told > DefaultLease/2 {
				t.Errorf("told after %v", told)
			}
			return l.UnlockContext(ctx)
		},
		"a look": func(t *testing.T, ctx context.Context, l *Locker) error {
			began := time.Now()
			lookAt(l.client, "x")
			<-l.Lost(ctx)
			if told := time.Since(began); told > 0 {
				t.Errorf("told after %v", told)
			}
			return l.UnlockContext(ctx)
		},
		"a re-entry": func(t *testing.T, ctx context.Context, l *Locker) error {
			return l.LockContext(ctx)
		},
		"a partial release": func(t *testing.T, ctx context.Context, l *Locker) error {
			return l.UnlockContext(ctx)
		},
		"the last release": func(t *testing.T, ctx context.Context, l *Locker) error {
			h := l.present(l.caller(ctx))
			l.client.mu.Lock()
			h.count = 1 // and the store, where it is 2, has lost both
			l.client.mu.Unlock()
			return l.UnlockContext(ctx)
		},
		"a release after Close": func(t *testing.T, ctx context.Context, l *Locker) error {
			l.client.Close()
			return l.UnlockContext(ctx)
		},
	} {
		for kind, test := range map[string]struct {
			of   func(c *Client) *Locker
			opts []AcquireOption
		}{
			"plain": {of: func(c *Client) *Locker { return c.Locker("x") }},
			"write": {of: func(c *Client) *Locker { return c.RWLocker("x").Writer() }},
			"read": {
				func(c *Client) *Locker { return c.RWLocker("x").Reader() },
				[]AcquireOption{FixedLease(DefaultLease)},
			},
		} {
			if kind == "read" && !slices.Contains(readers, name) {
				continue
			}
			t.Run(name+" "+kind, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					store := membackend.New()
					c, other := New(store, quiet()), New(store, quiet())
					defer c.Close()
					defer other.Close()
					ctx, l := WithOwner(t.Context(), NewOwner()), test.of(c)
					must(t, l.LockContext(ctx, test.opts...))
					must(t, l.LockContext(ctx, test.opts...))
					store.Wipe()
					theirs, err := other.Semaphore("x", 1).Acquire(t.Context(), 1)
					must(t, err)
					err = find(t, ctx, l)
					got, ok := errors.AsType[*Loss](err)
					switch closed := c.ctx.Err() != nil; {
					case closed && !errors.Is(err, ErrLost): // no more is known by then
						t.Errorf("%v, want %v", err, ErrLost)
					case !closed && (!ok || got.Reason != LossGone):
						t.Errorf("%v, want a loss of what is gone", err)
					}
					must(t, theirs.Err())
					must(t, theirs.Release(t.Context()))
				})
			})
		}
	}
}

// A store that refuses to say whether it has a lock is asked once.
func TestALookThatIsRefusedIsNotRepeated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newScript(membackend.New())
		store.look.fail(errNoPermission)
		c := New(store, quiet())
		defer c.Close()
		h, err := c.Locker("x").Acquire(t.Context())
		must(t, err)
		lookAt(c, "x")
		time.Sleep(time.Minute)
		if looks := store.look.count(); looks != 1 || h.Err() != nil {
			t.Errorf("%d looks, and the lock: %v", looks, h.Err())
		}
		must(t, h.Release(t.Context()))
	})
}

// A lock that is given back while the client looks at it isn't lost.
func TestALockThatIsGivenBackDuringALookIsNotLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newScript(membackend.New())
		c := New(store, quiet())
		defer c.Close()
		h, err := c.Locker("x").Acquire(t.Context())
		must(t, err)
		store.look.set(func(s *lookStep) {
			must(t, h.Release(t.Context()))
		})
		lookAt(c, "x")
		synctest.Wait()
		if len(c.Losses()) > 0 || len(c.state.troubles) > 0 {
			t.Errorf("lost: %v, troubles: %v", c.Losses(), c.state.troubles)
		}
	})
}

// lookAt has a client ask the store whether it still has what it believes to have of a lock.
func lookAt(c *Client, name string) {
	c.mu.Lock()
	defer c.unlock()
	for _, kind := range []backend.Kind{backend.Exclusive, backend.Write, backend.Read,
		backend.Permits} {
		kind := protocol.Kind(kind)
		for _, cl := range c.state.object(kind, name).claims(kind) {
			cl.look(&c.state)
		}
	}
}

func TestLossesAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New(membackend.New(), quiet(), WithLease(time.Second))
		defer c.Close()
		for i := range maxLosses + 100 {
			ctx := WithOwner(t.Context(), NewOwner())
			if err := c.Locker(fmt.Sprint(i)).
				LockContext(ctx, FixedLease(time.Millisecond)); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(time.Second)
		c.mu.Lock()
		kept := len(c.state.losses)
		c.mu.Unlock()
		if kept != maxLosses {
			t.Errorf("%d losses are remembered, not %d", kept, maxLosses)
		}
		time.Sleep(lossMemory * time.Second)
		empty(t, c)
	})
}
