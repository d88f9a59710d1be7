package dlock

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/dlock/internal/protocol"
	"github.com/seed951563bd/distsync/membackend"
)

// leasables are the ways in which a call acquires a lock, of every kind, with what gives it back.
var leasables = map[string]func(c *Client, opts ...AcquireOption) (func() error, error){
	"plain": func(c *Client, opts ...AcquireOption) (func() error, error) {
		return acquireOf(c.Locker("x"), opts)
	},
	"fenced": func(c *Client, opts ...AcquireOption) (func() error, error) {
		return acquireOf(c.FencedLocker("x"), opts)
	},
	"fair": func(c *Client, opts ...AcquireOption) (func() error, error) {
		return acquireOf(c.FairLocker("x"), opts)
	},
	"write": func(c *Client, opts ...AcquireOption) (func() error, error) {
		return acquireOf(c.RWLocker("x").Writer(), opts)
	},
	"read": func(c *Client, opts ...AcquireOption) (func() error, error) {
		return acquireOf(c.RWLocker("x").Reader(), opts)
	},
	"permits": func(c *Client, opts ...AcquireOption) (func() error, error) {
		h, err := c.Semaphore("x", 1).Acquire(context.Background(), 1, opts...)
		if err != nil {
			return nil, err
		}
		return func() error { return h.Release(context.Background()) }, nil
	},
	"all": func(c *Client, opts ...AcquireOption) (func() error, error) {
		h, err := All(c.Locker("x"), c.RWLocker("y").Reader()).
			Acquire(context.Background(), opts...)
		if err != nil {
			return nil, err
		}
		return func() error { return h.Release(context.Background()) }, nil
	},
	"LockContext": func(c *Client, opts ...AcquireOption) (func() error, error) {
		l := c.Locker("x")
		return func() error { return l.UnlockContext(context.Background()) },
			l.LockContext(context.Background(), opts...)
	},
	"TryLock": func(c *Client, opts ...AcquireOption) (func() error, error) {
		l := c.Locker("x")
		_, err := l.TryLock(context.Background(), opts...)
		return func() error { return l.UnlockContext(context.Background()) }, err
	},
	"Do": func(c *Client, opts ...AcquireOption) (func() error, error) {
		in, leave, done := make(chan error, 2), make(chan struct{}), make(chan error, 1)
		go func() {
			err := c.Locker("x").Do(context.Background(), func(context.Context) error {
				in <- nil
				<-leave
				return nil
			}, opts...)
			in <- err
			done <- err
		}()
		return func() error { close(leave); return <-done }, <-in
	},
}

func acquireOf(l *Locker, opts []AcquireOption) (func() error, error) {
	h, err := l.Acquire(context.Background(), opts...)
	if err != nil {
		return nil, err
	}
	return func() error { return h.Release(context.Background()) }, nil
}

// isHeldInStore says whether anybody has a lock of those above, in the store.
func isHeldInStore(t *testing.T, s backend.Session) bool {
	t.Helper()
	for _, kind := range []backend.Kind{backend.Exclusive, backend.Write, backend.Read,
		backend.Permits} {
		for _, name := range []string{"x", "y"} {
			res, err := s.Look(t.Context(), backend.LookRequest{Kind: kind, Name: name, Limit: 1})
			if err == nil && (res.Held || kind == backend.Permits && res.Available == 0) {
				return true
			}
		}
	}
	return false
}

// renewals returns the leases that renewals asked for, each once, and how many renewals there were
// of one lock.
func (b *script) renewals() (leases []time.Duration, n int) {
	for _, req := range b.renew.took() {
		if !slices.Contains(leases, req.Lease) {
			leases = append(leases, req.Lease)
		}
		if req.Name == "x" {
			n++
		}
	}
	return leases, n
}

// A lock with a renewed lease is kept for as long as it is held, and outlives its client by no more
// than that lease, whatever the client's is.
func TestRenewedLease(t *testing.T) {
	for way, acquire := range leasables {
		for _, d := range []time.Duration{3 * time.Second, 10 * time.Minute} {
			t.Run(fmt.Sprint(way, ", ", d), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					store := newScript(membackend.New())
					c, direct := New(store, quiet()), store.Backend.Open()
					release, err := acquire(c, RenewedLease(d+time.Microsecond))
					must(t, err)
					if asked, _ := store.asked(); slices.Min(asked) != d || slices.Max(asked) != d {
						t.Errorf("the store was asked for %v, want %v", asked, d)
					}
					for _, h := range c.Holds() {
						if !h.Renewed || h.Lease != d {
							t.Errorf("the hold is %+v, want one with a renewed lease of %v", h, d)
						}
					}
					time.Sleep(time.Hour)
					if !isHeldInStore(t, direct) || len(c.Losses()) > 0 {
						t.Fatalf("after an hour the lock isn't held any more: %v", c.Losses())
					}
					pace := d
					if way == "read" {
						// Redisson's renewals may shorten what the store keeps
						pace = min(d, DefaultLease)
					}
					leases, n := store.renewals()
					if least, most := int(time.Hour/(pace/3)), int(
						time.Hour/(pace/4)); !slices.Equal(leases, []time.Duration{d}) ||
						n < least || n > most {
						t.Errorf("in an hour %d renewals asked for leases of %v, want %d to %d "+
							"that ask for %v", n, leases, least, most, d)
					}
					c.Close()
					time.Sleep(d / 2)
					if !isHeldInStore(t, direct) {
						t.Error("half a lease after its client was closed the lock is free")
					}
					time.Sleep(d / 2)
					if isHeldInStore(t, direct) {
						t.Error("a lease after its client was closed the lock is held")
					}
					release()
				})
			})
		}
	}
}

// A lease that is none is an error, and nothing is acquired.
func TestRenewedLeaseThatIsNone(t *testing.T) {
	for way, acquire := range leasables {
		t.Run(way, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := newScript(membackend.New())
				c := New(store, quiet())
				defer c.Close()
				for _, d := range []time.Duration{-time.Second, 0, time.Millisecond - 1,
					longestLease + 1} {
					_, err := acquire(c, RenewedLease(d))
					if e, ok := errors.AsType[*Error](err); !ok || e.Name == "" {
						t.Errorf("a renewed lease of %v: %v", d, err)
					}
				}
				if asked, _ := store.asked(); len(asked) > 0 {
					t.Errorf("the store was asked for %v", asked)
				}
				release, err := acquire(c, RenewedLease(longestLease))
				must(t, err)
				time.Sleep(24 * time.Hour)
				must(t, release())
				empty(t, c)
			})
		})
	}
}

// A store that can't keep a lease for so short a time keeps it for the shortest that it can, which
// is renewed in good time; one that counts in other units keeps it for longer than is relied on.
func TestRenewedLeaseAndTheLimitsOfTheStore(t *testing.T) {
	for _, c := range []struct{ lease, stored, relied time.Duration }{
		{10 * time.Millisecond, 2 * time.Second, 2 * time.Second},
		{2500 * time.Millisecond, 3 * time.Second, 2500 * time.Millisecond},
		{time.Minute, time.Minute, time.Minute},
	} {
		synctest.Test(t, func(t *testing.T) {
			store := newScript(membackend.New())
			client := New(store.with(
				backend.Limits{MinLease: 2 * time.Second, LeaseStep: time.Second}), quiet())
			defer client.Close()
			h, err := client.Locker("x").Acquire(t.Context(), RenewedLease(c.lease))
			must(t, err)
			if asked, _ := store.asked(); !slices.Equal(asked, []time.Duration{c.stored}) {
				t.Errorf("RenewedLease(%v) asks for %v, want %v", c.lease, asked, c.stored)
			}
			if left := time.Until(h.Until()); left != protocol.Promised(c.relied) {
				t.Errorf("RenewedLease(%v) is relied on for %v, want %v", c.lease, left,
					protocol.Promised(c.relied))
			}
			time.Sleep(10 * time.Minute)
			if _, n := store.renewals(); n < int(10*time.Minute/(c.relied/3)) ||
				n > int(10*time.Minute/(c.relied/4)) {
				t.Errorf("RenewedLease(%v) was renewed %d times in ten minutes", c.lease, n)
			}
			must(t, h.Release(t.Context()))
		})
	}
}

// The last of several leases counts, and AtLeast has its own way beside a renewed one.
func TestRenewedLeaseWithOtherOptions(t *testing.T) {
	const second, minute = time.Second, time.Minute
	for name, c := range map[string]struct {
		opts    []AcquireOption
		asks    time.Duration
		renewed bool
		renews  time.Duration
	}{
		"after a fixed lease": {
			[]AcquireOption{FixedLease(minute), RenewedLease(2 * second)}, 2 * second, true,
			2 * second,
		},
		"before a fixed lease": {
			[]AcquireOption{RenewedLease(2 * second), FixedLease(minute)}, minute, false, 0,
		},
		"after another": {
			[]AcquireOption{RenewedLease(minute), RenewedLease(2 * second)}, 2 * second, true,
			2 * second,
		},
		"with AtLeast": {
			[]AcquireOption{RenewedLease(2 * second), AtLeast(second)}, 2 * second, true,
			2 * second,
		},
		"with Wait": {
			[]AcquireOption{RenewedLease(2 * second), Wait(0)}, 2 * second, true, 2 * second,
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := newScript(membackend.New())
				client := New(store, quiet())
				defer client.Close()
				h, err := client.Locker("x").Acquire(t.Context(), c.opts...)
				must(t, err)
				time.Sleep(30 * time.Second)
				if asked, _ := store.asked(); !slices.Equal(asked, []time.Duration{c.asks}) {
					t.Errorf("the store was asked for %v, want %v", asked, c.asks)
				}
				leases, n := store.renewals()
				if c.renewed != (n > 0) ||
					c.renewed && !slices.Equal(leases, []time.Duration{c.renews}) {
					t.Errorf("%d renewals asked for %v, want %v", n, leases, c.renews)
				}
				must(t, h.Release(t.Context()))
			})
		})
	}
}

// AtLeast longer than a renewed lease: nothing asks for less than what is left of it, and after
// that renewals ask for the lease.
func TestRenewedLeaseBesideALongerAtLeast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newScript(membackend.New())
		c := New(store, quiet())
		defer c.Close()
		h, err := c.Locker("x").Acquire(t.Context(), AtLeast(time.Minute),
			RenewedLease(3*time.Second))
		must(t, err)
		time.Sleep(30 * time.Second)
		if leases, _ := store.renewals(); len(leases) == 0 || slices.Min(leases) < 29*time.Second {
			t.Errorf("while it has to stay taken, renewals asked for %v", leases)
		}
		time.Sleep(time.Minute)
		store.renewals()
		time.Sleep(time.Minute)
		if leases, _ := store.renewals(); !slices.Equal(leases, []time.Duration{3 * time.Second}) {
			t.Errorf("after that renewals asked for %v", leases)
		}
		must(t, h.Release(t.Context()))
	})
}

// A hold has one lease: what re-enters it while it is renewed changes nothing, be its lease shorter
// or longer.
func TestRenewedLeaseOfAReentry(t *testing.T) {
	for name, opt := range map[string]AcquireOption{
		"shorter": RenewedLease(time.Second), "longer": RenewedLease(time.Hour),
		"fixed": FixedLease(time.Hour), "the client's": func(*acquireOptions) {},
	} {
		for kind, side := range map[string]func(*Client) *Locker{
			"plain": func(c *Client) *Locker { return c.Locker("x") },
			"fair":  func(c *Client) *Locker { return c.FairLocker("x") },
			"read":  func(c *Client) *Locker { return c.RWLocker("x").Reader() },
			"write": func(c *Client) *Locker { return c.RWLocker("x").Writer() },
		} {
			t.Run(name+", "+kind, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					const lease = 6 * time.Second
					store := newScript(membackend.New())
					c, ctx := New(store, quiet()), WithOwner(t.Context(), NewOwner())
					defer c.Close()
					l := side(c)
					must(t, l.LockContext(ctx, RenewedLease(lease)))
					must(t, l.LockContext(ctx, opt))
					if h := c.Holds()[0]; h.Lease != lease || !h.Renewed {
						t.Errorf("the hold is %+v after a re-entry", h)
					}
					time.Sleep(time.Minute)
					mustUnlock(t, ctx, l)
					time.Sleep(time.Minute)
					asked, _ := store.asked()
					leases, _ := store.renewals()
					if slices.ContainsFunc(append(asked, leases...), func(d time.Duration) bool {
						return d != lease
					}) {
						t.Errorf("the store was asked for %v, and renewals for %v; want %v", asked,
							leases, lease)
					}
					mustUnlock(t, ctx, l)
					empty(t, c)
				})
			})
		}
	}
}

// A re-entry with a renewed lease into a hold with a fixed one has it renewed until that is
// unlocked, for no shorter than either.
func TestRenewedLeaseOfAReentryIntoAFixedHold(t *testing.T) {
	const fixed = 10 * time.Second
	for _, d := range []time.Duration{2 * time.Second, time.Minute} {
		for kind, side := range map[string]func(*Client) *Locker{
			"plain": func(c *Client) *Locker { return c.Locker("x") },
			"fair":  func(c *Client) *Locker { return c.FairLocker("x") },
			"read":  func(c *Client) *Locker { return c.RWLocker("x").Reader() },
			"write": func(c *Client) *Locker { return c.RWLocker("x").Writer() },
		} {
			t.Run(fmt.Sprint(kind, ", ", d), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					store := newScript(membackend.New())
					c, ctx := New(store, quiet()), WithOwner(t.Context(), NewOwner())
					defer c.Close()
					l := side(c)
					must(t, l.LockContext(ctx, FixedLease(fixed)))
					until := c.Holds()[0].Until
					must(t, l.LockContext(ctx, RenewedLease(d)))
					h := c.Holds()[0]
					if h.Until.Before(until) || time.Until(h.Until) < protocol.Promised(d) {
						t.Errorf("the re-entry has %v, and there was a lease of %v",
							time.Until(h.Until), fixed)
					}
					time.Sleep(5 * time.Minute)
					if n, err := l.HoldCount(ctx); n != 2 || err != nil {
						t.Fatalf("after five minutes the count is %d, %v: %v", n, err, c.Losses())
					}
					mustUnlock(t, ctx, l)
					time.Sleep(max(d, fixed) + time.Second)
					if err := l.UnlockContext(ctx); !errors.Is(err, ErrLost) {
						t.Errorf("what had a fixed lease was held on: %v", err)
					}
				})
			})
		}
	}
}

// Inside a client a lock passes only to a call that wants the same lease. Any other call would have
// the lock for less time than promised, or believe in it for longer than the store keeps it.
func TestRenewedLeasesAndTheHandover(t *testing.T) {
	const short, long = 2 * time.Second, time.Hour
	for _, c := range []struct {
		first, then []AcquireOption
		lease       time.Duration
		releases    int
	}{
		{[]AcquireOption{RenewedLease(short)}, []AcquireOption{RenewedLease(short)}, short, 1},
		{[]AcquireOption{RenewedLease(DefaultLease)}, nil, DefaultLease, 1},
		{[]AcquireOption{RenewedLease(short)}, []AcquireOption{RenewedLease(long)}, long, 2},
		{[]AcquireOption{RenewedLease(long)}, []AcquireOption{RenewedLease(short)}, short, 2},
		{nil, []AcquireOption{RenewedLease(short)}, short, 2},
		{[]AcquireOption{RenewedLease(short)}, []AcquireOption{FixedLease(short)}, short, 2},
		{[]AcquireOption{FixedLease(short)}, []AcquireOption{RenewedLease(short)}, short, 2},
	} {
		synctest.Test(t, func(t *testing.T) {
			ctx, store := t.Context(), newScript(membackend.New())
			client := New(store, quiet(), WithHandover(time.Minute))
			defer client.Close()
			l := client.Locker("x")
			mustTry(t, l, c.first...)
			w := wait(ctx, client.Locker("x"), c.then...)
			must(t, l.UnlockContext(ctx))
			w.mustBeIn(t)
			h := client.Holds()[0]
			if h.Lease != c.lease || time.Until(h.Until) < protocol.Promised(c.lease) {
				t.Errorf("who waited for %v has it for %v: %+v", c.lease, time.Until(h.Until), h)
			}
			must(t, w.leave())
			if n := store.release.count(); n != c.releases {
				t.Errorf("%d releases in the store, want %d", n, c.releases)
			}
			empty(t, client)
		})
	}
}

// Readers share what was acquired with the lease that they want, and no other.
func TestRenewedLeasesOfReaders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, store := t.Context(), newScript(membackend.New())
		c := New(store, quiet(), WithHandover(time.Hour))
		defer c.Close()
		leases := []time.Duration{
			2 * time.Second, 2 * time.Second, time.Minute, time.Minute, 2 * time.Second,
		}
		var all []*Hold
		for i, d := range leases {
			h, err := c.RWLocker("x").Reader().Acquire(ctx, RenewedLease(d))
			must(t, err)
			if left := time.Until(h.Until()); left != protocol.Promised(d) {
				t.Errorf("reader %d wanted %v, and has %v", i, d, left)
			}
			all = append(all, h)
		}
		store.wantSteps(t, 3, 0)
		time.Sleep(time.Minute)
		for i, h := range all {
			if left := time.Until(h.Until()); left > leases[i] || left < leases[i]/2 {
				t.Errorf("reader %d wanted %v, and has %v after a minute", i, leases[i], left)
			}
			must(t, h.Release(ctx))
		}
		store.wantSteps(t, 3, 3)
		empty(t, c)
	})
}

// A write is lent to readers that want the same lease. The others ask, and get in when it is a
// read.
func TestRenewedLeasesOfAWriteThatIsLent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, store := t.Context(), newScript(membackend.New())
		c := New(store, quiet())
		defer c.Close()
		rw := c.RWLocker("x")
		must(t, rw.Writer().LockContext(ctx, RenewedLease(5*time.Second)))
		same, other := wait(ctx, c.RWLocker("x").Reader(), RenewedLease(5*time.Second)),
			wait(ctx, c.RWLocker("x").Reader(), RenewedLease(time.Minute))
		must(t, rw.Writer().UnlockContext(ctx))
		same.mustBeIn(t)
		time.Sleep(time.Second)
		other.mustBeIn(t)
		for _, h := range c.Holds() {
			if left := time.Until(h.Until); left > protocol.Promised(h.Lease) {
				t.Errorf("a lease of %v is believed in for %v", h.Lease, left)
			}
		}
		time.Sleep(10 * time.Minute)
		must(t, same.leave())
		must(t, other.leave())
		empty(t, c)
	})
}

// Locks with leases of several lengths are renewed side by side, each in its own time; while the
// store doesn't answer each lasts as long as its own.
func TestRenewedLeasesOfSeveralLengths(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newScript(membackend.New())
		c := New(store, quiet(), WithLease(7*time.Second))
		defer c.Close()
		leases := []time.Duration{time.Second, 2 * time.Second, 7 * time.Second, time.Minute}
		holds := make([]*Hold, len(leases))
		for i, d := range leases {
			var err error
			holds[i], err = c.Locker(fmt.Sprint(d)).Acquire(t.Context(), RenewedLease(d))
			must(t, err)
		}
		time.Sleep(5 * time.Minute)
		for _, req := range store.renew.took() {
			if fmt.Sprint(req.Lease) != req.Name {
				t.Errorf("%s was renewed for %v", req.Name, req.Lease)
			}
		}
		store.renew.fail(errSevered)
		silent := time.Now()
		var lost sync.WaitGroup
		for i, h := range holds {
			lost.Go(func() {
				<-h.Lost()
				if after := time.Since(silent); after > leases[i] || after < leases[i]*3/5 {
					t.Errorf("with a lease of %v the lock was lost %v after the store's last word",
						leases[i], after)
				}
			})
		}
		lost.Wait()
	})
}

// A wait that ends with the lease of a dead holder ends soon after it.
func TestTheEndOfALeaseIsNotMissedByMuch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := membackend.New()
		c := New(mem, quiet())
		defer c.Close()
		dead := mem.Open()
		for range 100 {
			lease := time.Second + rand.N(9*time.Second)
			if _, err := dead.Acquire(t.Context(), backend.AcquireRequest{
				Name: "x", Owner: "dead", Lease: lease,
			}); err != nil {
				t.Fatal(err)
			}
			begin := time.Now()
			l := c.Locker("x")
			l.Lock()
			if late := time.Since(begin) - lease; late < 0 || late > time.Millisecond+endJitter {
				t.Fatalf("in %v after the end of the lease", late)
			}
			l.Unlock()
		}
	})
}

// A waiter whose lease is shorter than the store's answers take keeps the place at the head of the
// queue for ever: nobody else of this client gets in, though the lock is free.
func TestALeaseShorterThanARoundTripBlocksNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newScript(membackend.New())
		b.acquire.delay(10*time.Millisecond, 10*time.Millisecond)
		c := New(b, quiet())
		defer c.Close()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		hopeless := wait(ctx, c.Locker("x"), FixedLease(15*time.Millisecond))
		w := wait(t.Context(), c.Locker("x"))
		time.Sleep(time.Minute)
		in := w.isIn(t)
		if !in {
			t.Errorf("nobody had the lock for a minute, and who waited for it did not get in; %d "+
				"attempts were sent for another", b.acquire.count())
		}
		cancel()
		<-hopeless.in
		if !in {
			<-w.in
		}
		w.leave()
	})
}

func TestStoredLease(t *testing.T) {
	fine := New(membackend.New())
	defer fine.Close()
	coarse := New(newScript(membackend.New()).with(backend.Limits{
		MinLease: 2 * time.Second, LeaseStep: time.Second,
	}))
	defer coarse.Close()
	for _, c := range []struct {
		client    *Client
		ask, want time.Duration
	}{
		{fine, time.Millisecond, time.Millisecond},
		{fine, 30 * time.Second, 30 * time.Second},
		{coarse, time.Millisecond, 2 * time.Second},
		{coarse, 2 * time.Second, 2 * time.Second},
		{coarse, 2*time.Second + time.Millisecond, 3 * time.Second},
	} {
		if got := c.client.stored(c.ask); got != c.want {
			t.Errorf("a lease of %v is %v in the store, not %v", c.ask, got, c.want)
		}
	}
}

// A store that counts leases in hours keeps a lock for longer than it was asked for.
func TestALeaseThatTheStoreRoundsUpEndsInTime(t *testing.T) {
	for holds := range 4 {
		onBench(t, func(m *script) { m.limits.LeaseStep = time.Hour }, func(b *bench) {
			ctx := b.owner()
			for range holds {
				b.must(b.client.Locker("x").LockContext(ctx, FixedLease(time.Second)))
			}
			time.Sleep(10 * time.Second)
			b.wantFree("ten seconds after a lease of one began")
		}, WithLease(time.Hour))
	}
}

// The longest lease: none may be so long that sums with it overflow.
func TestLongestLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := membackend.New()
		c, d := New(b, quiet(), WithLease(longestLease)), New(b, quiet())
		defer c.Close()
		defer d.Close()
		l, m := c.Locker("x"), d.Locker("x")
		if ok, err := l.TryLock(t.Context(), FixedLease(math.MaxInt64)); ok || err == nil {
			t.Errorf("TryLock with a lease of 292 years = %v, %v", ok, err)
		}
		mustTry(t, l, FixedLease(longestLease))
		if ok, err := m.TryLock(t.Context()); ok || err != nil {
			t.Errorf("TryLock while another holds it = %v, %v", ok, err)
		}
		l.ForceUnlock(t.Context()) // remembers a loss
	})
}
