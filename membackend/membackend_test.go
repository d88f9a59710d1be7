package membackend_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/dlock"
	"github.com/seed951563bd/distsync/membackend"
)

type session interface {
	backend.Session
	backend.Notifier
	backend.BatchRenewer
	backend.Liner
	backend.Inspector
	backend.Lister
}

var _ backend.Backend = (*membackend.Backend)(nil)

func open(b *membackend.Backend) session { return b.Open().(session) }

const lease = 30 * time.Second

func acquire(t *testing.T, s backend.Session, name string, lease time.Duration) {
	t.Helper()
	res, err := s.Acquire(t.Context(), backend.AcquireRequest{Name: name, Owner: "a", Lease: lease})
	if err != nil || !res.Acquired {
		t.Fatalf("Acquire(%s) = %+v, %v; want acquired", name, res, err)
	}
}

func release(t *testing.T, s backend.Session, name string, want backend.ReleaseOutcome) {
	t.Helper()
	res, err := s.Release(t.Context(), backend.ReleaseRequest{Name: name, Owner: "a", Lease: lease})
	if err != nil || res.Outcome != want {
		t.Fatalf("Release(%s) = %v, %v; want %v", name, res.Outcome, err, want)
	}
}

// Nothing may be left of locks that are over, or a process that uses ever new names grows for ever.
func TestNothingIsLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := membackend.New()
		s := open(b)
		for i := range 1000 {
			name := strconv.Itoa(i)
			acquire(t, s, name, time.Duration(1+i*7%1000)*time.Millisecond)
			sub, err := s.Subscribe(t.Context(), backend.SubscribeRequest{
				Name: name, Wake: func(backend.Wakeup) {},
			})
			if err != nil {
				t.Fatal(err)
			}
			if i%3 == 0 {
				release(t, s, name, backend.Freed)
			}
			if i%2 == 0 {
				sub.Close()
			}
		}
		acquire(t, s, "long", time.Hour)
		time.Sleep(1100 * time.Millisecond)
		synctest.Wait()
		if locks, subs, timer := b.Size(); locks != 1 || subs != 500 || !timer {
			t.Errorf("after a second: %d locks, %d subscriptions, timer %v; want 1, 500, true",
				locks, subs, timer)
		}
		// Renewing moves the end of the lease, not that of the memory.
		if res, err := s.Renew(t.Context(), backend.RenewRequest{
			Name: "long", Owner: "a", Lease: 2 * time.Hour,
		}); err != nil || !res.Held {
			t.Fatalf("Renew = %v, %v; want held", res.Held, err)
		}
		s.Close()
		time.Sleep(time.Hour + time.Minute)
		if locks, _, _ := b.Size(); locks != 1 {
			t.Errorf("a lock that was renewed has gone after its first lease")
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		if locks, subs, timer := b.Size(); locks+subs != 0 || timer {
			t.Errorf("in the end: %d locks, %d subscriptions, timer %v; want nothing", locks, subs,
				timer)
		}
	})
}

// A lease is over to the nanosecond, though the timer that clears the table may be late.
func TestLeaseIsExact(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := open(membackend.New())
		for i := range 10_000 { // so many that the table is cleared now and then only
			acquire(t, s, strconv.Itoa(i), lease-time.Duration(i))
		}
		acquire(t, s, "lock", lease)
		time.Sleep(lease - time.Nanosecond)
		if res, _ := s.Look(t.Context(), backend.LookRequest{Name: "lock"}); !res.Held ||
			res.Remaining != 1 {
			t.Errorf("1 ns before the end: %+v; want held, 1 ns remaining", res)
		}
		time.Sleep(time.Nanosecond)
		if res, _ := s.Look(t.Context(), backend.LookRequest{Name: "lock"}); res.Held {
			t.Errorf("at the end: %+v; want free", res)
		}
	})
}

func TestContextOver(t *testing.T) {
	s := open(membackend.New())
	acquire(t, s, "held", lease)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	errs := make(map[string]error)
	_, errs["Acquire"] = s.Acquire(ctx, backend.AcquireRequest{
		Name: "free", Owner: "a", Lease: lease,
	})
	_, errs["Release"] = s.Release(ctx, backend.ReleaseRequest{
		Name: "held", Owner: "a", Lease: lease,
	})
	_, errs["Renew"] = s.Renew(ctx, backend.RenewRequest{Name: "held", Owner: "a", Lease: lease})
	_, errs["ForceRelease"] = s.ForceRelease(ctx, backend.ForceReleaseRequest{Name: "held"})
	_, errs["Look"] = s.Look(ctx, backend.LookRequest{Name: "held"})
	_, errs["Subscribe"] = s.Subscribe(ctx, backend.SubscribeRequest{Name: "held"})
	_, errs["KeepPlaces"] = s.KeepPlaces(ctx, backend.PlacesRequest{
		Kind: backend.Fair, Name: "held", Owners: []string{"b"}, Place: lease,
	})
	_, errs["Inspect"] = s.Inspect(ctx, backend.InspectRequest{Name: "held"})
	_, errs["List"] = s.List(ctx, backend.ListRequest{Limit: 1})
	for step, err := range errs {
		if !errors.Is(err, context.Canceled) || backend.KindOf(err) != backend.Retry {
			t.Errorf("%s with a context that is over: %v, kind %d; want context.Canceled, "+
				"kind Retry", step, err, backend.KindOf(err))
		}
	}
	if res, _ := s.Look(t.Context(), backend.LookRequest{Name: "free"}); res.Held {
		t.Error("Acquire with a context that is over has acquired")
	}
	release(t, s, "held", backend.Freed)
}

func TestRefused(t *testing.T) {
	ctx := t.Context()
	closed, fresh := open(membackend.New()), open(membackend.New())
	acquire(t, closed, "held", lease)
	closed.Close()
	const otherKind = backend.Latch + 1
	for _, c := range []struct {
		what string
		s    session
		kind backend.Kind
	}{{"after Close", closed, backend.Exclusive}, {"of an unknown kind", fresh, otherKind}} {
		errs := make(map[string]error)
		_, errs["Acquire"] = c.s.Acquire(ctx, backend.AcquireRequest{
			Kind: c.kind, Name: "lock", Owner: "a", Lease: lease,
		})
		_, errs["Renew"] = c.s.Renew(ctx, backend.RenewRequest{
			Kind: c.kind, Name: "lock", Owner: "a", Lease: lease,
		})
		_, errs["ForceRelease"] = c.s.ForceRelease(ctx,
			backend.ForceReleaseRequest{Kind: c.kind, Name: "lock"})
		_, errs["Look"] = c.s.Look(ctx, backend.LookRequest{Kind: c.kind, Name: "lock"})
		_, errs["Subscribe"] = c.s.Subscribe(ctx,
			backend.SubscribeRequest{Kind: c.kind, Name: "lock"})
		_, errs["KeepPlaces"] = c.s.KeepPlaces(ctx, backend.PlacesRequest{
			Kind: c.kind, Name: "lock", Owners: []string{"b"}, Place: lease,
		})
		if c.s == closed {
			_, errs["Inspect"] = c.s.Inspect(ctx, backend.InspectRequest{Name: "lock"})
			_, errs["List"] = c.s.List(ctx, backend.ListRequest{Limit: 1})
		}
		if c.kind == otherKind {
			_, errs["Release"] = c.s.Release(ctx, backend.ReleaseRequest{
				Kind: c.kind, Name: "lock", Owner: "a", Lease: lease,
			})
		}
		c.s.RenewBatch(ctx, make([]backend.RenewRequest, 1), func(
			_ int, _ backend.RenewResult, err error,
		) {
			if c.s == closed {
				errs["RenewBatch"] = err
			}
		})
		for step, err := range errs {
			if err == nil || backend.KindOf(err) != backend.Refused {
				t.Errorf("%s %s: %v; want an error of kind Refused", step, c.what, err)
			}
		}
	}
	release(t, closed, "held", backend.Freed) // allowed after Close
}

// Wake may be called without a reason, but each call costs the waiter an attempt.
func TestWakesNobodyInVain(t *testing.T) {
	b := membackend.New()
	s, other := open(b), open(b)
	wakes := 0
	if _, err := other.Subscribe(t.Context(), backend.SubscribeRequest{
		Name: "lock", Wake: func(backend.Wakeup) { wakes++ },
	}); err != nil {
		t.Fatal(err)
	}
	release(t, s, "lock", backend.NotHeld)
	acquire(t, s, "lock", lease)
	acquire(t, s, "lock", lease)
	release(t, s, "lock", backend.Left)
	acquire(t, s, "another", lease)
	release(t, s, "another", backend.Freed)
	if wakes != 0 {
		t.Errorf("%d wake-ups while nobody freed the lock", wakes)
	}
	release(t, s, "lock", backend.Freed)
	if wakes != 1 {
		t.Errorf("%d wake-ups after a release; want 1", wakes)
	}
	if res, err := s.ForceRelease(t.Context(),
		backend.ForceReleaseRequest{Name: "lock"}); err != nil || res.Released || wakes != 1 {
		t.Errorf("ForceRelease of a free lock: released %v, %v, %d wake-ups", res.Released, err,
			wakes-1)
	}
}

// Wake may use the store, since no mutex is held while it runs.
func TestWakeMayUseTheStore(t *testing.T) {
	b := membackend.New()
	s, other := open(b), open(b)
	var sub backend.Subscription
	sub, err := other.Subscribe(t.Context(),
		backend.SubscribeRequest{Name: "lock", Wake: func(backend.Wakeup) {
			acquire(t, other, "lock", lease)
			sub.Close()
		}})
	if err != nil {
		t.Fatal(err)
	}
	acquire(t, s, "lock", lease)
	release(t, s, "lock", backend.Freed)
	if res, _ := s.Look(t.Context(), backend.LookRequest{Name: "lock"}); !res.Held {
		t.Error("Wake could not acquire the lock")
	}
}

func TestBackendsAreIndependent(t *testing.T) {
	acquire(t, membackend.New().Open(), "lock", lease)
	if res, _ := membackend.New().Open().
		Look(t.Context(), backend.LookRequest{Name: "lock"}); res.Held {
		t.Error("a lock of one store is held in another")
	}
}

func Example() {
	ctx := context.Background()
	store := membackend.New()

	// Each client stands for a process.
	one, another := dlock.New(store), dlock.New(store)
	defer one.Close()
	defer another.Close()

	lock := one.Locker("orders:42")
	lock.Lock()
	fmt.Println(another.Locker("orders:42").TryLock(ctx))
	lock.Unlock()
	fmt.Println(another.Locker("orders:42").TryLock(ctx))
	// Output:
	// false <nil>
	// true <nil>
}

// Wipe loses all holds, and waiters get in at once. The holder hears of it at its next renewal.
func TestWipe(t *testing.T) {
	for name, locker := range map[string]func(*dlock.Client) *dlock.Locker{
		"plain":  func(c *dlock.Client) *dlock.Locker { return c.Locker("x") },
		"fenced": func(c *dlock.Client) *dlock.Locker { return c.FencedLocker("x") },
		"fair":   func(c *dlock.Client) *dlock.Locker { return c.FairLocker("x") },
		"write":  func(c *dlock.Client) *dlock.Locker { return c.RWLocker("x").Writer() },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := membackend.New()
				log := dlock.WithLogger(slog.New(slog.DiscardHandler))
				c, other := dlock.New(b, log), dlock.New(b, log)
				defer c.Close()
				defer other.Close()
				held, err := locker(c).Acquire(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				got := make(chan *dlock.Hold)
				go func() {
					h, err := locker(other).Acquire(t.Context())
					if err != nil {
						t.Error(err)
					}
					got <- h
				}()
				synctest.Wait()
				began := time.Now()
				b.Wipe()
				next := <-got
				if time.Since(began) > time.Second { // of a fair lock a place comes back first
					t.Errorf("the next got in after %v", time.Since(began))
				}
				before, _ := held.Token()
				if after, ok := next.Token(); ok && after <= before {
					t.Errorf("token %d after %d", after, before)
				}
				if held.Err() != nil {
					t.Errorf("the holder was told at once: %v", held.Err())
				}
				<-held.Lost()
				if d := time.Since(began); d > dlock.DefaultLease/3 {
					t.Errorf("the holder was told after %v", d)
				}
				if err := next.Release(t.Context()); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// Steps go on while a great many locks are over at once, and what comes meanwhile ends, too.
func TestStepsDuringASweep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := membackend.New()
		s := open(b)
		const many = 100_000
		for i := range many {
			acquire(t, s, strconv.Itoa(i), lease)
		}
		time.Sleep(lease) // the sweep begins now
		during := 0
		for left := many; left > during; left, _, _ = b.Size() {
			if left < many {
				during++
				acquire(t, s, fmt.Sprint("new ", during),
					lease+time.Duration(during)*time.Millisecond)
			}
		}
		if during < 3 {
			t.Errorf("%d steps were made while %d locks were taken out", during, many)
		}
		time.Sleep(lease + time.Second + time.Duration(during)*time.Millisecond)
		synctest.Wait()
		if left, _, timer := b.Size(); left != 0 || timer {
			t.Errorf("%d locks are left, timer %v", left, timer)
		}
	})
}
