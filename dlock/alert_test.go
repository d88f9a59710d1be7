package dlock

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/membackend"
)

// alerting is a store that alerts the client that was opened last when it is told to. Its looks can be made to fail.
type alerting struct {
	*membackend.Backend
	alert func(name string)
	down  atomic.Bool

	refuses atomic.Bool // to look
	looks   atomic.Int64
	first   func() // is called in each look, before that

	acquired func() // is called in each acquisition, after that
}

func (b *alerting) Open() backend.Session {
	s := b.Backend.Open()
	return &alertingSession{s, s.(backend.Liner), s.(backend.Inspector), b}
}

type alertingSession struct {
	backend.Session
	backend.Liner
	backend.Inspector
	b *alerting
}

var _ backend.Alerter = (*alertingSession)(nil)

func (s *alertingSession) OnAlert(alert func(string)) { s.b.alert = alert }

func (s *alertingSession) Acquire(ctx context.Context, req backend.AcquireRequest) (backend.AcquireResult, error) {
	res, err := s.Session.Acquire(ctx, req)
	if s.b.acquired != nil {
		s.b.acquired()
	}
	return res, err
}

func (s *alertingSession) Look(ctx context.Context, req backend.LookRequest) (backend.LookResult, error) {
	s.b.looks.Add(1)
	if s.b.first != nil {
		s.b.first()
	}
	if s.b.down.Load() {
		return backend.LookResult{}, errSevered
	}
	if s.b.refuses.Load() {
		return backend.LookResult{}, errNoPermission
	}
	return s.Session.Look(ctx, req)
}

var errNoPermission = &backend.Error{Kind: backend.Refused, Err: errors.New("NOPERM")}

// withAlerts runs a test with a client that is alerted, and another that takes its locks away.
func withAlerts(t *testing.T, test func(t *testing.T, store *alerting, c, other *Client)) {
	synctest.Test(t, func(t *testing.T) {
		store := &alerting{Backend: membackend.New()}
		other, c := New(store, quiet(), WithClientID("other")), New(store, quiet(), WithClientID("mine"))
		defer other.Close()
		defer c.Close()
		test(t, store, c, other)
	})
}

// Whoever has lost a lock is told when the store alerts his client, and not only at the next renewal: of each kind, and with a
// fixed lease, too.
func TestAlerts(t *testing.T) {
	permits := func(c *Client) *Locker { return c.Semaphore("x", 3).mustBeMade() }
	for name, test := range map[string]struct {
		of   func(*Client) *Locker
		opts []AcquireOption
	}{
		"plain":                            {of: func(c *Client) *Locker { return c.Locker("x") }},
		"fixed lease":                      {of: func(c *Client) *Locker { return c.Locker("x") }, opts: []AcquireOption{FixedLease(time.Hour)}},
		"fenced":                           {of: func(c *Client) *Locker { return c.FencedLocker("x") }},
		"fair":                             {of: func(c *Client) *Locker { return c.FairLocker("x") }},
		"write":                            {of: func(c *Client) *Locker { return c.RWLocker("x").Writer() }},
		"read":                             {of: func(c *Client) *Locker { return c.RWLocker("x").Reader() }},
		"permits":                          {of: permits},
		"permits of nobody knows how many": {of: permits, opts: []AcquireOption{FixedLease(time.Hour)}},
	} {
		t.Run(name, func(t *testing.T) {
			withAlerts(t, func(t *testing.T, store *alerting, c, other *Client) {
				acquire := test.of(c).Acquire
				switch name {
				case "permits":
					acquire = func(ctx context.Context, opts ...AcquireOption) (*Hold, error) {
						return c.Semaphore("x", 3).Acquire(ctx, 2, opts...)
					}
				case "permits of nobody knows how many":
					acquire = func(ctx context.Context, opts ...AcquireOption) (*Hold, error) {
						_, err := other.Semaphore("x", 3).Acquire(ctx, 1, opts...)
						must(t, err)
						return c.Semaphore("x", 0).Acquire(ctx, 2, opts...)
					}
				}
				h, err := acquire(t.Context(), test.opts...)
				must(t, err)
				ctx, until := h.Context(), h.Until()

				store.alert("y")
				synctest.Wait()
				if n := store.looks.Load(); n != 0 {
					t.Errorf("an alert of another lock costs %d looks", n)
				}
				time.Sleep(time.Second)
				store.alert("x")
				synctest.Wait()
				if h.Err() != nil || ctx.Err() != nil || !h.Until().Equal(until) {
					t.Fatalf("an alert without a reason: %v, %v, until %v and not %v", h.Err(), ctx.Err(), h.Until(), until)
				}

				began := time.Now()
				if freed, err := test.of(other).force(t.Context()); !freed || err != nil {
					t.Fatalf("force: %v, %v", freed, err)
				}
				synctest.Wait()
				if ctx.Err() != nil {
					t.Fatal("told without an alert")
				}
				store.alert("x")
				<-ctx.Done()
				if l, ok := errors.AsType[*Loss](context.Cause(ctx)); !ok || l.Reason != LossGone || time.Since(began) > 0 {
					t.Errorf("after %v: %v", time.Since(began), context.Cause(ctx))
				}
			})
		})
	}
}

// An alert says who has the lock now, if another does.
func TestAlertOfALockThatIsTaken(t *testing.T) {
	withAlerts(t, func(t *testing.T, store *alerting, c, other *Client) {
		h, err := c.Locker("x").Acquire(t.Context())
		must(t, err)
		other.Locker("x").ForceUnlock(t.Context())
		theirs, err := other.Locker("x").Acquire(t.Context())
		must(t, err)
		store.alert("x")
		<-h.Lost()
		if l, ok := errors.AsType[*Loss](h.Err()); !ok || l.Reason != LossTaken || l.By != theirs.HolderID() {
			t.Errorf("lost: %v", h.Err())
		}
		if theirs.Err() != nil {
			t.Errorf("the next: %v", theirs.Err())
		}
	})
}

// All who have something of a lock are told: who shares permits, readers that came at different times, and who reads under
// his own write.
func TestAlertOfSeveralHolds(t *testing.T) {
	t.Run("permits", func(t *testing.T) {
		withAlerts(t, func(t *testing.T, store *alerting, c, other *Client) {
			s := c.Semaphore("x", 3)
			a, b := mustAcquire(t, s, 1), mustAcquire(t, s, 2)
			other.Semaphore("x", 3).ForceRelease(t.Context())
			store.alert("x")
			<-a.Lost()
			<-b.Lost()
		})
	})
	t.Run("readers", func(t *testing.T) {
		withAlerts(t, func(t *testing.T, store *alerting, c, other *Client) {
			reader := c.RWLocker("x").Reader()
			a, err := reader.Acquire(t.Context())
			must(t, err)
			time.Sleep(2 * DefaultHandover)
			b, err := reader.Acquire(t.Context())
			must(t, err)
			if a.hold.claim == b.hold.claim {
				t.Fatal("both share what the store has granted")
			}
			other.RWLocker("x").Reader().ForceUnlock(t.Context())
			store.alert("x")
			<-a.Lost()
			<-b.Lost()
		})
	})
	t.Run("a write and a read under it", func(t *testing.T) {
		withAlerts(t, func(t *testing.T, store *alerting, c, other *Client) {
			rw, ctx := c.RWLocker("x"), WithOwner(t.Context(), NewOwner())
			w, err := rw.Writer().Acquire(ctx)
			must(t, err)
			r, err := rw.Reader().Acquire(ctx)
			must(t, err)
			other.RWLocker("x").Writer().ForceUnlock(t.Context())
			store.alert("x")
			<-w.Lost()
			<-r.Lost()
		})
	})
}

// A lock may be lost, and the store alert its client, before that has heard that it has it: the holder is told all the same.
func TestAlertWhileTheAnswerIsUnderWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &alerting{Backend: membackend.New()}
		other, c := New(store, quiet()), New(store, quiet())
		defer other.Close()
		defer c.Close()
		store.acquired = func() {
			store.acquired = nil
			if ok, err := other.Locker("x").ForceUnlock(t.Context()); !ok || err != nil {
				t.Errorf("force: %v, %v", ok, err)
			}
			store.alert("x")
		}
		h, err := c.Locker("x").Acquire(t.Context(), FixedLease(time.Hour))
		must(t, err)
		synctest.Wait()
		if l, ok := errors.AsType[*Loss](h.Err()); !ok || l.Reason != LossGone {
			t.Errorf("the holder is told: %v", h.Err())
		}
	})
}

// While the store doesn't answer an alert is remembered.
func TestAlertWhileTheStoreIsDown(t *testing.T) {
	withAlerts(t, func(t *testing.T, store *alerting, c, other *Client) {
		h, err := c.Locker("x").Acquire(t.Context(), FixedLease(time.Hour))
		must(t, err)
		other.Locker("x").ForceUnlock(t.Context())
		store.down.Store(true)
		store.alert("x")
		time.Sleep(time.Minute)
		if h.Err() != nil {
			t.Fatalf("lost, though nobody has said so: %v", h.Err())
		}
		store.down.Store(false)
		began := time.Now()
		<-h.Lost()
		if d := time.Since(began); d > 2*DefaultLease/3 {
			t.Errorf("told after %v", d)
		}
	})
}

// A lock that is given back while the client looks at it, or whose client is closed, is not lost.
func TestAlertsThatComeLate(t *testing.T) {
	withAlerts(t, func(t *testing.T, store *alerting, c, other *Client) {
		h, err := c.Locker("x").Acquire(t.Context())
		must(t, err)
		store.first = func() { must(t, h.Release(t.Context())) }
		store.alert("x")
		synctest.Wait()
		if len(c.Losses()) > 0 || len(c.troubles) > 0 {
			t.Errorf("lost: %v, troubles: %v", c.Losses(), c.troubles)
		}
		must(t, c.Close())
		store.alert("x")
	})
}
