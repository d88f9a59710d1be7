package dlock

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/dlock/internal/protocol"
	"github.com/seed951563bd/distsync/membackend"
)

// severed is a store that can be cut off.
type severed struct {
	*membackend.Backend
	cut atomic.Bool
}

func (b *severed) Open() backend.Session { return &severedSession{b.Backend.Open(), b} }

var errSevered = &backend.Error{Kind: backend.Unknown, Err: errors.New("connection refused")}

type severedSession struct {
	backend.Session
	b *severed
}

func (s *severedSession) Renew(ctx context.Context, req backend.RenewRequest) (backend.RenewResult, error) {
	if s.b.cut.Load() {
		return backend.RenewResult{}, errSevered
	}
	return s.Session.Renew(ctx, req)
}

func (s *severedSession) Inspect(ctx context.Context, req backend.InspectRequest) (backend.Inspection, error) {
	if s.b.cut.Load() {
		return backend.Inspection{}, errSevered
	}
	return s.Session.(backend.Inspector).Inspect(ctx, req)
}

// A loss has a reason, and whoever asks hears the same of it.
func TestLossReasons(t *testing.T) {
	for name, test := range map[string]struct {
		lose func(t *testing.T, store *severed, c, other *Client)
		want Loss
		text string
		opts []AcquireOption
	}{
		"expired": {
			lose: func(t *testing.T, store *severed, c, other *Client) { store.cut.Store(true) },
			want: Loss{Reason: LossExpired, Held: 40 * time.Second, Unconfirmed: protocol.Promised(DefaultLease), Err: errSevered},
			text: `connection refused`,
		},
		"gone": {
			lose: func(t *testing.T, store *severed, c, other *Client) { other.Locker("x").ForceUnlock(t.Context()) },
			want: Loss{Reason: LossGone, Held: 20 * time.Second, Unconfirmed: 10 * time.Second},
			text: `the store has it no more, and had it 9.375s ago`,
		},
		"taken": {
			lose: func(t *testing.T, store *severed, c, other *Client) {
				other.Locker("x").ForceUnlock(t.Context())
				other.Locker("x").Lock()
			},
			want: Loss{Reason: LossTaken, Held: 20 * time.Second, Unconfirmed: 10 * time.Second, TakenBy: "other:1"},
			text: `another has it: "other:1"`,
		},
		"forced": {
			lose: func(t *testing.T, store *severed, c, other *Client) { c.Locker("x").ForceUnlock(t.Context()) },
			want: Loss{Reason: LossForced, Held: 15 * time.Second, Unconfirmed: 5 * time.Second},
			text: `this client has forced it`,
		},
		"paused": {
			lose: func(t *testing.T, store *severed, c, other *Client) {
				c.mu.Lock()
				defer c.mu.Unlock()
				c.timer.Stop() // nothing runs until the end of the pause
				time.AfterFunc(time.Minute, c.ring)
			},
			want: Loss{Reason: LossPaused, Held: 40 * time.Second, Unconfirmed: time.Minute + 5*time.Second, Paused: 55 * time.Second},
			text: `the lease ran out while this process stood still for 55s`,
		},
		"lease": {
			lose: func(t *testing.T, store *severed, c, other *Client) {},
			want: Loss{Reason: LossLease, Held: protocol.Promised(20 * time.Second), Unconfirmed: protocol.Promised(20 * time.Second)},
			text: `its fixed lease ran out`,
			opts: []AcquireOption{FixedLease(20 * time.Second)},
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var l ledger
				var log logs
				store := &severed{Backend: membackend.New()}
				c := New(store, WithLogger(log.logger()), WithClientID("mine"), l.trace())
				defer c.Close()
				other := New(store, quiet(), WithClientID("other"))
				defer other.Close()
				other.mu.Lock()
				other.number = 0
				other.mu.Unlock()
				h, err := c.Locker("x").Acquire(t.Context(), test.opts...)
				must(t, err)
				ctx := h.Context()
				if h.Err() != nil {
					t.Errorf("Err, held: %v", h.Err())
				}
				until := h.Until()
				time.Sleep(15 * time.Second)
				if renewed := h.Until().Sub(until); test.opts == nil && (renewed <= 9*time.Second || renewed > 10*time.Second) {
					t.Errorf("Until is %v later after a renewal", renewed)
				}
				test.lose(t, store, c, other)
				<-ctx.Done()
				got, ok := errors.AsType[*Loss](context.Cause(ctx))
				if !ok {
					t.Fatalf("the cause is %v", context.Cause(ctx))
				}
				want := test.want
				want.Name, want.Holder, want.At = "x", h.HolderID(), got.At
				// Renewals are made a little early, so that they are made together.
				if late := 2 * time.Second; (got.Held-want.Held).Abs() < late && (got.Unconfirmed-want.Unconfirmed).Abs() < late && (got.Paused-want.Paused).Abs() < 6*time.Second {
					want.Held, want.Unconfirmed, want.Paused = got.Held, got.Unconfirmed, got.Paused
				}
				want.Renewed, want.By = want.Unconfirmed, want.TakenBy // the old names
				if *got != want {
					t.Errorf("lost: %+v, want %+v", *got, want)
				}
				for what, err := range map[string]error{"Cause": context.Cause(ctx), "Err": h.Err(), "Release": h.Release(t.Context())} {
					if e, ok := errors.AsType[*Loss](err); !ok || e != got || !errors.Is(err, ErrLost) {
						t.Errorf("%s: %v, want %v", what, err, got)
					}
					if part, _, _ := strings.Cut(test.text, " for 55s"); !strings.Contains(err.Error(), part) {
						t.Errorf("%s says %q, want %q", what, err, test.text)
					}
				}
				if all := c.Losses(); len(all) != 1 || all[0] != *got {
					t.Errorf("Losses = %+v", all)
				}
				l.want(t, "lock exclusive acquired store", "lost exclusive "+name, "unlock exclusive lost")
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

// A release that finds nothing in the store says who has it.
func TestReleaseFindsALoss(t *testing.T) {
	traced(t, func(t *testing.T, l *ledger, c, other *Client) {
		h, err := c.Locker("x").Acquire(t.Context())
		must(t, err)
		other.Locker("x").ForceUnlock(t.Context())
		theirs, err := other.Locker("x").Acquire(t.Context())
		must(t, err)
		err = h.Release(t.Context())
		if got, ok := errors.AsType[*Loss](err); !ok || got.Reason != LossTaken || got.TakenBy != theirs.HolderID() {
			t.Errorf("Release = %v", err)
		}
		l.want(t, "lock exclusive acquired store", "lost exclusive taken", "unlock exclusive lost")
		if len(c.Losses()) != 1 {
			t.Errorf("Losses = %v", c.Losses())
		}
	})
}

// Nobody relies on a lock that the store has given away while the store is asked to whom.
func TestNothingIsHeldWhileTheStoreIsAsked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &slowInspect{membackend.New(), make(chan struct{})}
		c, other := New(store, quiet()), New(store, quiet())
		defer c.Close()
		defer other.Close()
		h, err := c.Locker("x").Acquire(t.Context())
		must(t, err)
		ctx := h.Context()
		other.Locker("x").ForceUnlock(t.Context())
		<-store.asked
		if ctx.Err() == nil || h.Err() == nil || len(c.Holds()) > 0 {
			t.Error("the lock is believed in")
		}
		<-ctx.Done()
		if l, ok := errors.AsType[*Loss](context.Cause(ctx)); !ok || l.Reason != LossGone {
			t.Errorf("the cause is %v", context.Cause(ctx))
		}
	})
}

// slowInspect is a store that never says who has a lock.
type slowInspect struct {
	*membackend.Backend
	asked chan struct{} // closed when it is asked
}

func (b *slowInspect) Open() backend.Session { return &slowInspectSession{b.Backend.Open(), b} }

type slowInspectSession struct {
	backend.Session
	b *slowInspect
}

func (s *slowInspectSession) Inspect(ctx context.Context, req backend.InspectRequest) (backend.Inspection, error) {
	close(s.b.asked)
	<-ctx.Done()
	return backend.Inspection{}, ctx.Err()
}

// Renewals that fail are logged with the names of the locks and what is left of them, but for those that are over.
func TestFailedRenewalsAreNamed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log logs
		store := &severed{Backend: membackend.New()}
		c := New(store, WithLogger(log.logger()))
		defer c.Close()
		c.Locker("x").Lock()
		h, err := c.Locker("y").Acquire(t.Context())
		must(t, err)
		must(t, h.Release(t.Context()))
		store.cut.Store(true)
		time.Sleep(DefaultLease / 2)
		synctest.Wait()
		c.log.mu.Lock()
		defer c.log.mu.Unlock()
		if text := log.lines.String(); !strings.Contains(text, "names=[x] left=") || !strings.Contains(text, "connection refused") {
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
				b := &relay{Backend: membackend.New(), simple: true}
				began, sent := time.Now(), atomic.Int64{}
				b.set(func(ctx context.Context, op, _ string, do func()) error {
					if op != "renew" {
						do()
						return nil
					}
					if sent.Add(1); time.Since(began) < test.hangs {
						select {
						case <-time.After(time.Until(began.Add(test.hangs))):
						case <-ctx.Done():
						}
						return errSevered
					}
					return errSevered
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
				if n := sent.Load(); n < 3 {
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

// A renewal under way when the store says that it has a lock no more makes no difference to why that is lost.
func TestWhatIsGoneIsGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &slowInspect{membackend.New(), make(chan struct{})}
		c, other := New(store, quiet()), New(store, quiet())
		defer c.Close()
		defer other.Close()
		h, err := c.Locker("x").Acquire(t.Context())
		must(t, err)
		cl, ctx := h.hold.claim, h.Context()
		other.Locker("x").ForceUnlock(t.Context())
		<-store.asked
		c.renewed(cl, cl.kind, c.now(), cl.Lease(), backend.RenewResult{}, errSevered)
		c.renewed(cl, cl.kind, c.now(), cl.Lease(), backend.RenewResult{}, nil)
		<-ctx.Done()
		if l, ok := errors.AsType[*Loss](context.Cause(ctx)); !ok || l.Reason != LossGone || l.Unconfirmed > DefaultLease/2 {
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
		c.timer.Stop() // as in a process that is paused
		c.mu.Unlock()
		time.Sleep(time.Until(h.Until()) - time.Millisecond)
		sent := c.now()
		time.Sleep(2 * time.Millisecond)
		cl := h.hold.claim
		c.renewed(cl, cl.kind, sent, cl.Lease(), backend.RenewResult{Held: true}, nil)
		if err := h.Err(); !errors.Is(err, ErrLost) {
			t.Errorf("a millisecond after its lease: %v", err)
		}
	})
}

// severedLines is a store with fair locks that can be cut off.
type severedLines struct{ severed }

func (b *severedLines) Open() backend.Session {
	s := b.Backend.Open()
	return &severedLine{severedSession{s, &b.severed}, s.(backend.Liner)}
}

type severedLine struct {
	severedSession
	backend.Liner
}

// A fixed lease that the store doesn't answer for any more, before it was over, didn't run out as it was meant to.
func TestAGrantThatIsNotProlongedIsALoss(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &severedLines{severed{Backend: membackend.New()}}
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
		store.cut.Store(true)
		must(t, first.Release(t.Context()))
		h := <-got
		began := time.Now()
		ctx := h.Context()
		<-ctx.Done()
		if l, ok := errors.AsType[*Loss](context.Cause(ctx)); !ok || l.Reason != LossExpired || time.Since(began) > time.Minute {
			t.Errorf("after %v: %+v", time.Since(began), l)
		}
	})
}

// An unlock that finds that the lock was lost asks nobody who has it for longer than it may take itself.
func TestAnUnlockAsksForNoLongerThanItMay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &slowInspect{membackend.New(), make(chan struct{})}
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
		if l, ok := errors.AsType[*Loss](err); !ok || l.Reason != LossGone || time.Since(began) > time.Millisecond {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
	})
}

// What somebody reads under his write, and the store has no more, isn't believed in again because of an answer that comes late.
func TestAReadThatIsGoneIsNotRevived(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &slowInspect{membackend.New(), make(chan struct{})}
		c := New(store, quiet())
		defer c.Close()
		ctx := WithOwner(t.Context(), NewOwner())
		rw := c.RWLocker("x")
		must(t, rw.Writer().LockContext(ctx))
		r, err := rw.Reader().Acquire(ctx)
		must(t, err)
		c.mu.Lock()
		write := c.objectLocked(backend.Write, "x").alone
		c.goneLocked(r.hold.claim)
		c.unlock()
		a := c.newAcquisition()
		*a = acquisition{call: call{kind: backend.Read, name: "x", party: write.party, o: acquireOptions{lease: DefaultLease}}}
		if _, err := c.readUnder(ctx, write, a); err != errAgain || r.Err() == nil {
			t.Errorf("read again: %v; the hold says %v", err, r.Err())
		}
		must(t, rw.Writer().UnlockContext(ctx))
	})
}

// A store that has lost a lock may have something else under its name by then. Whatever finds that
// finds a loss.
func TestWhatIsSomethingElseByNowIsLost(t *testing.T) {
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
		"a re-entry":        func(t *testing.T, ctx context.Context, l *Locker) error { return l.LockContext(ctx) },
		"a partial release": func(t *testing.T, ctx context.Context, l *Locker) error { return l.UnlockContext(ctx) },
		"the last release": func(t *testing.T, ctx context.Context, l *Locker) error {
			h := l.present(l.caller(ctx))
			l.client.mu.Lock()
			h.count = 1 // and the store, where it is 2, has lost both
			l.client.mu.Unlock()
			return l.UnlockContext(ctx)
		},
	} {
		for kind, of := range map[string]func(c *Client) *Locker{
			"plain": func(c *Client) *Locker { return c.Locker("x") },
			"write": func(c *Client) *Locker { return c.RWLocker("x").Writer() },
		} {
			t.Run(name+" "+kind, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					store := membackend.New()
					c, other := New(store, quiet()), New(store, quiet())
					defer c.Close()
					defer other.Close()
					ctx, l := WithOwner(t.Context(), NewOwner()), of(c)
					must(t, l.LockContext(ctx))
					must(t, l.LockContext(ctx))
					store.Wipe()
					theirs, err := other.Semaphore("x", 1).Acquire(t.Context(), 1)
					must(t, err)
					err = find(t, ctx, l)
					if got, ok := errors.AsType[*Loss](err); !ok || got.Reason != LossGone {
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
		looks := 0
		store := &scripted{Backend: membackend.New()}
		store.look = func(func() (backend.LookResult, error)) (backend.LookResult, error) {
			looks++
			return backend.LookResult{}, errNoPermission
		}
		c := New(store, quiet())
		defer c.Close()
		h, err := c.Locker("x").Acquire(t.Context())
		must(t, err)
		lookAt(c, "x")
		time.Sleep(time.Minute)
		synctest.Wait() // orders this read after the looks
		if looks != 1 || h.Err() != nil {
			t.Errorf("%d looks, and the lock: %v", looks, h.Err())
		}
		must(t, h.Release(t.Context()))
	})
}

// A lock that is given back while the client looks at it isn't lost.
func TestALockThatIsGivenBackDuringALookIsNotLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &scripted{Backend: membackend.New()}
		c := New(store, quiet())
		defer c.Close()
		h, err := c.Locker("x").Acquire(t.Context())
		must(t, err)
		store.look = func(do func() (backend.LookResult, error)) (backend.LookResult, error) {
			must(t, h.Release(t.Context()))
			return do()
		}
		lookAt(c, "x")
		synctest.Wait()
		if len(c.Losses()) > 0 || len(c.troubles) > 0 {
			t.Errorf("lost: %v, troubles: %v", c.Losses(), c.troubles)
		}
	})
}

// lookAt has a client ask the store whether it still has what it believes to have of a lock.
func lookAt(c *Client, name string) {
	c.mu.Lock()
	defer c.unlock()
	for _, kind := range []backend.Kind{backend.Exclusive, backend.Write, backend.Read, backend.Permits} {
		for _, cl := range c.claimsLocked(c.objectLocked(kind, name), kind) {
			c.lookLocked(cl)
		}
	}
}
