package dlock

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/membackend"
)

// onlyLease returns the lease of all that a client holds, which isn't nothing.
func onlyLease(t *testing.T, c *Client) (lease time.Duration, renewed bool) {
	t.Helper()
	holds := c.Holds()
	if len(holds) == 0 {
		t.Fatal("nothing is held")
	}
	for _, h := range holds {
		if h.Lease != holds[0].Lease || h.Renewed != holds[0].Renewed {
			t.Errorf("of several holds one is %+v, and another %+v", h, holds[0])
		}
	}
	return holds[0].Lease, holds[0].Renewed
}

// callsOf are the ways to acquire a Locker's lock, each of which calls inside while it is held.
var callsOf = map[string]func(
	ctx context.Context, l *Locker, inside func(), opts ...AcquireOption,
) error{
	"LockContext": func(
		ctx context.Context, l *Locker, inside func(), opts ...AcquireOption,
	) error {
		err := l.LockContext(ctx, opts...)
		if err == nil {
			inside()
			err = l.UnlockContext(ctx)
		}
		return err
	},
	"TryLock": func(ctx context.Context, l *Locker, inside func(), opts ...AcquireOption) error {
		ok, err := l.TryLock(ctx, opts...)
		if ok {
			inside()
			err = l.UnlockContext(ctx)
		}
		return err
	},
	"Acquire": func(ctx context.Context, l *Locker, inside func(), opts ...AcquireOption) error {
		h, err := l.Acquire(ctx, opts...)
		if err == nil {
			inside()
			err = h.Release(ctx)
		}
		return err
	},
	"Do": func(ctx context.Context, l *Locker, inside func(), opts ...AcquireOption) error {
		return l.Do(ctx, func(context.Context) error { inside(); return nil }, opts...)
	},
	"All": func(ctx context.Context, l *Locker, inside func(), opts ...AcquireOption) error {
		return All(l).Do(ctx, func(context.Context) error { inside(); return nil }, opts...)
	},
}

func TestWith(t *testing.T) {
	const short, long = 2 * time.Second, time.Hour
	for name, c := range map[string]struct {
		with    func(l *Locker) *Locker
		opts    []AcquireOption // of the call
		lease   time.Duration
		renewed bool
	}{
		"a renewed lease": {func(l *Locker) *Locker {
			return l.With(RenewedLease(short))
		}, nil, short, true},
		"a fixed one": {func(l *Locker) *Locker {
			return l.With(FixedLease(long))
		}, nil, long, false},
		"none": {func(l *Locker) *Locker {
			return l.With()
		}, nil, DefaultLease, true},
		"the call's wins": {
			func(l *Locker) *Locker { return l.With(FixedLease(long)) },
			[]AcquireOption{RenewedLease(short)}, short, true,
		},
		"the call says another": {
			func(l *Locker) *Locker { return l.With(FixedLease(long)) },
			[]AcquireOption{Wait(time.Minute)}, long, false,
		},
		"the last of several": {func(l *Locker) *Locker {
			return l.With(FixedLease(long), RenewedLease(short))
		}, nil, short, true},
		"With on With": {func(l *Locker) *Locker {
			return l.With(Wait(0), FixedLease(long)).With(RenewedLease(short))
		}, nil, short, true},
		"With on With keeps others": {func(l *Locker) *Locker {
			return l.With(FixedLease(long)).With(Wait(0))
		}, nil, long, false},
		"For after With": {func(l *Locker) *Locker {
			return l.With(RenewedLease(short)).For(NewOwner())
		}, nil, short, true},
		"With after For": {func(l *Locker) *Locker {
			return l.For(NewOwner()).With(RenewedLease(short))
		}, nil, short, true},
	} {
		for call, acquire := range callsOf {
			t.Run(name+", "+call, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					client := New(membackend.New(), quiet())
					defer client.Close()
					inside := false
					must(t, acquire(t.Context(), c.with(client.Locker("x")), func() {
						inside = true
						if lease, renewed := onlyLease(t, client); lease != c.lease ||
							renewed != c.renewed {
							t.Errorf("the lease is %v, renewed %v; want %v, %v", lease, renewed,
								c.lease, c.renewed)
						}
					}, c.opts...))
					if !inside {
						t.Error("it was not acquired")
					}
					empty(t, client)
				})
			})
		}
	}
}

// An option that one With has added counts for no other Locker.
func TestWithIsApart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New(membackend.New(), quiet())
		defer c.Close()
		l := c.Locker("x")
		opts := []AcquireOption{RenewedLease(time.Second), RenewedLease(2 * time.Second)}
		base := l.With(opts...)
		opts[1] = FixedLease(time.Millisecond)
		short, long := base.With(RenewedLease(3*time.Second)),
			base.With(RenewedLease(4*time.Second))
		for _, w := range []struct {
			l     *Locker
			lease time.Duration
		}{{l, DefaultLease}, {base, 2 * time.Second}, {short, 3 * time.Second},
			{long, 4 * time.Second}} {
			w.l.Lock()
			if lease, _ := onlyLease(t, c); lease != w.lease {
				t.Errorf("the lease is %v, want %v", lease, w.lease)
			}
			w.l.Unlock()
		}
	})
}

// A Locker of With is a variable of its own, and one of an owner is the owner's.
func TestWithIsAnotherContender(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, c := t.Context(), New(membackend.New(), quiet())
		defer c.Close()
		l := c.Locker("x")
		with := l.With(RenewedLease(time.Second))
		l.Lock()
		if ok, err := with.TryLock(ctx); ok || err != nil {
			t.Errorf("TryLock of what another has = %v, %v", ok, err)
		}
		if err := with.UnlockContext(ctx); !errors.Is(err, ErrNotHeld) {
			t.Errorf("an unlock of what another has: %v", err)
		}
		l.Unlock()
		mine := l.For(NewOwner())
		mine.Lock()
		again := mine.With(RenewedLease(time.Second))
		mustTry(t, again)
		if n, err := mine.HoldCount(ctx); n != 2 || err != nil {
			t.Errorf("the owner holds it %d times, %v", n, err)
		}
		again.Unlock()
		mine.Unlock()
		empty(t, c)
	})
}

// Lock has a lease, and no end of its wait; and so has that of several locks.
func TestLockWithDefaults(t *testing.T) {
	for name, waits := range map[string]AcquireOption{
		"a wait":           Wait(time.Second),
		"no wait":          Wait(0),
		"one that is none": Wait(-1),
	} {
		for several, locker := range map[string]func(*Locker) sync.Locker{
			"one":     func(l *Locker) sync.Locker { return l },
			"several": func(l *Locker) sync.Locker { return All(l) },
		} {
			t.Run(name+", "+several, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					c := New(membackend.New(), quiet())
					defer c.Close()
					first := c.Locker("x")
					first.Lock()
					l, in := locker(c.Locker("x").With(waits, RenewedLease(3*time.Second))),
						make(chan struct{})
					go func() { l.Lock(); close(in) }()
					time.Sleep(time.Hour)
					select {
					case <-in:
						t.Fatal("two are in")
					default:
					}
					first.Unlock()
					<-in
					if lease, renewed := onlyLease(t, c); lease != 3*time.Second || !renewed {
						t.Errorf("the lease is %v, renewed %v", lease, renewed)
					}
					l.Unlock()
					empty(t, c)
				})
			})
		}
	}
}

// TryLock waits for as long as its Locker does by default, and not at all if it is told so.
func TestTryLockWithAWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, c := t.Context(), New(membackend.New(), quiet())
		defer c.Close()
		c.Locker("x").Lock()
		l := c.Locker("x").With(Wait(time.Minute))
		for want, opts := range map[time.Duration][]AcquireOption{
			time.Minute: nil,
			0:           {Wait(0)},
			time.Second: {Wait(time.Second)},
		} {
			began := time.Now()
			if ok, err := l.TryLock(ctx, opts...); ok || err != nil {
				t.Errorf("TryLock = %v, %v", ok, err)
			}
			if took := time.Since(began); took != want {
				t.Errorf("TryLock took %v, want %v", took, want)
			}
		}
		began := time.Now()
		if err := l.LockContext(ctx); !errors.Is(err, ErrNotAcquired) ||
			time.Since(began) != time.Minute {
			t.Errorf("LockContext: %v, after %v", err, time.Since(began))
		}
	})
}

// Several locks are acquired each with the defaults of its Locker, and wait together for the
// shortest time that any of them has.
func TestAllWithDefaults(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, c := t.Context(), New(membackend.New(), quiet())
		defer c.Close()
		a, b := c.Locker("a").With(RenewedLease(2*time.Second), Wait(time.Minute)),
			c.RWLocker("b").Reader().With(FixedLease(24*time.Hour), Wait(time.Second))
		h, err := All(a, b, c.FairLocker("c")).Acquire(ctx)
		must(t, err)
		for _, info := range c.Holds() {
			want := map[string]HoldInfo{
				"a": {Kind: backend.Exclusive, Lease: 2 * time.Second, Renewed: true},
				"b": {Kind: backend.Read, Lease: 24 * time.Hour}, "c": {
					Kind: backend.Fair, Lease: DefaultLease, Renewed: true,
				},
			}[info.Name]
			if info.Kind != want.Kind || info.Lease != want.Lease || info.Renewed != want.Renewed {
				t.Errorf("%+v, want %+v", info, want)
			}
		}
		for name, w := range map[string]struct {
			lockers []*Locker
			opts    []AcquireOption
			waits   time.Duration
		}{
			"the shortest": {
				[]*Locker{c.Locker("a").With(Wait(time.Minute)),
					c.Locker("b'").With(Wait(time.Second))}, nil, time.Second,
			},
			"the only": {
				[]*Locker{c.Locker("a"), c.Locker("b'").With(Wait(time.Second))}, nil, time.Second,
			},
			"no wait": {
				[]*Locker{c.Locker("a").With(Wait(time.Minute)), c.Locker("b'").With(Wait(0))}, nil,
				0,
			},
			"the call's": {
				[]*Locker{c.Locker("a").With(Wait(time.Second)), c.Locker("b'").With(Wait(0))},
				[]AcquireOption{Wait(time.Minute)}, time.Minute,
			},
			"one that is much later": {
				[]*Locker{c.Locker("b'"), c.Locker("a").With(Wait(time.Hour))}, nil, time.Hour,
			},
		} {
			began := time.Now()
			if err := All(w.lockers...).
				LockContext(ctx, w.opts...); !errors.Is(err, ErrNotAcquired) ||
				time.Since(began) != w.waits {
				t.Errorf("%s: %v after %v, want %v", name, err, time.Since(began), w.waits)
			}
		}
		began := time.Now()
		if ok, err := All(c.Locker("a").With(Wait(time.Minute)),
			c.Locker("d").With(Wait(time.Minute))).TryLock(ctx); ok || err != nil ||
			time.Since(began) != time.Minute {
			t.Errorf("TryLock of several = %v, %v, after %v", ok, err, time.Since(began))
		}
		must(t, h.Release(ctx))
	})
}

// An option that can't be a default is an error of the Locker's calls. With itself reports none.
func TestWithWhatIsNoOption(t *testing.T) {
	for name, opt := range map[string]AcquireOption{
		"nil": nil, "no lease": RenewedLease(0), "no fixed lease": FixedLease(0),
		"a negative wait": Wait(-1), "a time to keep that is none": AtLeast(0),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, store := t.Context(), newScript(membackend.New())
				c := New(store, quiet())
				defer c.Close()
				l := c.Locker("x").With(RenewedLease(time.Second)).With(opt).For(NewOwner())
				for call, acquire := range callsOf {
					err := acquire(ctx, l, func() { t.Errorf("%s has acquired it", call) })
					if e, ok := errors.AsType[*Error](err); !ok || e.Name != "x" {
						t.Errorf("%s: %v", call, err)
					}
				}
				for _, lock := range []func(){l.Lock, All(l).Lock} {
					if name == "a negative wait" {
						continue // it has none
					}
					if e, ok := recovered(lock).(*Error); !ok || e.Op != "lock" || e.Name != "x" {
						t.Errorf("Lock: %v", e)
					}
				}
				if asked, _ := store.asked(); len(asked) > 0 {
					t.Errorf("the store was asked for %v", asked)
				}
				empty(t, c)
			})
		})
	}
}

// Each side of a read-write lock may have defaults, and stays that side.
func TestTheSidesOfAnRWLockerWithDefaults(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, c := t.Context(), New(membackend.New(), quiet())
		defer c.Close()
		rw := c.RWLocker("x")
		one, two := rw.Reader().With(RenewedLease(time.Second)),
			rw.Reader().With(RenewedLease(time.Second))
		one.Lock()
		mustTry(t, two)
		if ok, err := rw.Writer().With(Wait(time.Second)).TryLock(ctx); ok || err != nil {
			t.Errorf("TryLock of the writing side, while others read = %v, %v", ok, err)
		}
		one.Unlock()
		two.Unlock()
	})
}
