package dlock

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/membackend"
)

// A renewal under way asks for less than a lock is to stay taken from now on, and may be carried
// out after the one that asks for that.
func TestALateRenewalOfWhatStaysTaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New(membackend.New(), quiet())
		defer c.Close()
		// so that it may stay taken for longer
		h, err := c.Locker("x").Acquire(t.Context(), AtLeast(time.Second))
		must(t, err)
		cl := h.hold.claim
		c.mu.Lock()
		cl.RenewalSent(c.now(), cl.Lease(), cl.Lease()) // and no answer comes
		c.mu.Unlock()
		time.Sleep(time.Second)
		h.hold.keepFromNow(c, time.Hour)
		sent := c.now()
		c.mu.Lock()
		cl.RenewalSent(sent, time.Hour, time.Hour)
		c.mu.Unlock()
		cl.renewalAnswered(c, cl.kind, sent, time.Hour, backend.RenewResult{Held: true}, nil)
		if left := time.Until(h.Until()); left > DefaultLease {
			t.Errorf("believed in for %v, though a renewal for %v may come late", left,
				DefaultLease)
		}
		must(t, h.Release(t.Context()))
	})
}

// A re-entry under way asks for less than a lock is to stay taken from now on, and may be carried
// out after the renewal that asks for that.
func TestALateReentryOfWhatStaysTaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newScript(membackend.New())
		c := New(store, quiet())
		defer c.Close()
		ctx := WithOwner(t.Context(), NewOwner())
		l := c.Locker("x")
		h, err := l.Acquire(ctx)
		must(t, err)
		store.acquire.delay(time.Second, 0)
		time.Sleep(time.Second)
		again := wait(ctx, l)
		h.hold.keepFromNow(c, time.Hour)
		must(t, <-again.in)
		time.Sleep(2 * time.Second)
		left, err := l.TTL(t.Context())
		must(t, err)
		if until := time.Until(h.Until()); until > left {
			t.Errorf("relied on for another %v, and the store keeps it for %v", until, left)
		}
		mustUnlock(t, ctx, l)
		must(t, h.Release(t.Context()))
	})
}

// keepable is a lock of one kind that can be kept, as a client sees it.
type keepable struct {
	acquire func(ctx context.Context, opts ...AcquireOption) (*Hold, error)
	ttl     func() time.Duration
	force   func(ctx context.Context) (bool, error)
}

// keepables are all of them, for one permit where there are permits.
var keepables = map[string]func(*testing.T, *Client) keepable{
	"exclusive": func(t *testing.T, c *Client) keepable { return keepableLocker(t, c.Locker("x")) },
	"fenced": func(t *testing.T, c *Client) keepable {
		return keepableLocker(t, c.FencedLocker("x"))
	},
	"fair": func(t *testing.T, c *Client) keepable {
		return keepableLocker(t, c.FairLocker("x"))
	},
	"write": func(t *testing.T, c *Client) keepable {
		return keepableLocker(t, c.RWLocker("x").Writer())
	},
	"permits": func(t *testing.T, c *Client) keepable {
		s := c.Semaphore("x", 1)
		k := keepableLocker(t, &s.locker)
		k.force = s.ForceRelease
		k.acquire = func(ctx context.Context, opts ...AcquireOption) (*Hold, error) {
			return s.Acquire(ctx, 1, opts...)
		}
		k.ttl = func() time.Duration {
			res, err := s.locker.lookFor(t.Context(), backend.LookRequest{
				Kind: backend.Permits, Name: "x", Limit: 1,
			})
			must(t, err)
			return res.Remaining
		}
		return k
	},
}

func keepableLocker(t *testing.T, l *Locker) keepable {
	return keepable{l.Acquire, func() time.Duration {
		left, err := l.TTL(t.Context())
		must(t, err)
		return left
	}, l.ForceUnlock}
}

func (k keepable) mustAcquire(t *testing.T, opts ...AcquireOption) *Hold {
	t.Helper()
	h, err := k.acquire(t.Context(), opts...)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func (k keepable) wantHeld(t *testing.T) {
	t.Helper()
	if _, err := k.acquire(t.Context(), Wait(0)); !errors.Is(err, ErrHeld) {
		t.Fatalf("an attempt: %v; want ErrHeld", err)
	}
}

// eachKeepable runs a test, in a bubble, with two clients and for each kind of lock.
func eachKeepable(
	t *testing.T, test func(t *testing.T, store *script, mine, others keepable, c *Client),
	opts ...Option,
) {
	for kind, of := range keepables {
		t.Run(kind, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := newScript(membackend.New())
				c, other := New(store, append(opts, quiet())...), New(store.Backend, quiet())
				defer c.Close()
				defer other.Close()
				test(t, store, of(t, c), of(t, other), c)
				time.Sleep(2 * DefaultLease)
				empty(t, c)
				empty(t, other)
			})
		})
	}
}

func TestAtLeastStaysTakenAfterTheUnlock(t *testing.T) {
	eachKeepable(t, func(t *testing.T, _ *script, mine, others keepable, _ *Client) {
		h := mine.mustAcquire(t, AtLeast(10*time.Second))
		time.Sleep(time.Second)
		mustRelease(t, h)
		if left := others.ttl(); left != 9*time.Second {
			t.Errorf("it stays taken for %v after a second of ten", left)
		}
		others.wantHeld(t)
		mine.wantHeld(t)
		time.Sleep(9*time.Second - time.Millisecond)
		others.wantHeld(t)
		time.Sleep(time.Millisecond)
		mustRelease(t, others.mustAcquire(t, Wait(0)))
	})
}

// For longer than the lease, too, before and after renewals.
func TestAtLeastStaysTakenAfterACrash(t *testing.T) {
	const d = 100 * time.Second
	for _, after := range []time.Duration{0, 40 * time.Second, 95 * time.Second} {
		eachKeepable(t, func(t *testing.T, _ *script, mine, others keepable, c *Client) {
			h := mine.mustAcquire(t, AtLeast(d))
			time.Sleep(after)
			if err := h.Err(); err != nil {
				t.Error(err)
			}
			c.Close() // as others see it: nobody renews or releases any more
			time.Sleep(d - after - time.Millisecond)
			others.wantHeld(t)
			time.Sleep(max(0, after+DefaultLease-d) + time.Second) // the lease, if that is longer
			mustRelease(t, others.mustAcquire(t, Wait(0)))
			if err := h.Release(t.Context()); !errors.Is(err, ErrLost) {
				t.Errorf("a late release: %v", err)
			}
		})
	}
}

// Every request asks for what is left, and for no more than the lease when that is less.
func TestAtLeastInRequests(t *testing.T) {
	eachKeepable(t, func(t *testing.T, store *script, mine, _ keepable, _ *Client) {
		began := time.Now()
		const d = 100 * time.Second
		h := mine.mustAcquire(t, AtLeast(d))
		for time.Since(began) < 2*d {
			time.Sleep(DefaultLease / 3)
			renewals := store.renew.took()
			if len(renewals) == 0 {
				t.Fatalf("no renewal in a third of a lease, after %v", time.Since(began))
			}
			for _, req := range renewals {
				left := d - time.Since(began)
				if req.Lease < max(left, DefaultLease) ||
					req.Lease > max(left+DefaultLease/3, DefaultLease) {
					t.Errorf("after %v a renewal asked for %v", time.Since(began), req.Lease)
				}
			}
		}
		mustRelease(t, h)
		if leases, keeps := store.asked(); !slices.Equal(leases, []time.Duration{d}) ||
			!slices.Equal(keeps, []time.Duration{0}) {
			t.Errorf("acquired for %v, released to be kept for %v; want %v, and not at all", leases,
				keeps, d)
		}
	})
}

// An unlock after that time wakes others, as any does.
func TestAnUnlockAfterAtLeastIsAnOrdinaryOne(t *testing.T) {
	eachKeepable(t, func(t *testing.T, _ *script, mine, others keepable, _ *Client) {
		h := mine.mustAcquire(t, AtLeast(time.Second))
		in := make(chan *Hold)
		go func() { in <- others.mustAcquire(t) }()
		time.Sleep(1500 * time.Millisecond)
		synctest.Wait()
		released := time.Now()
		mustRelease(t, h)
		mustRelease(t, <-in)
		if waited := time.Since(released); waited > 0 {
			t.Errorf("another got in %v after the unlock", waited)
		}
	})
}

func TestAtLeastWithAFixedLease(t *testing.T) {
	for _, lease := range []time.Duration{time.Second, 20 * time.Second} {
		eachKeepable(t, func(t *testing.T, store *script, mine, others keepable, _ *Client) {
			const d = 10 * time.Second
			h := mine.mustAcquire(t, FixedLease(lease), AtLeast(d))
			if left := others.ttl(); left != max(d, lease) {
				t.Errorf("the lease is %v; want the longer of %v and %v", left, d, lease)
			}
			time.Sleep(max(d, lease) - time.Millisecond)
			others.wantHeld(t)
			time.Sleep(time.Millisecond)
			mustRelease(t, others.mustAcquire(t, Wait(0)))
			if err := h.Release(t.Context()); !errors.Is(err, ErrLost) {
				t.Errorf("Release after the lease: %v", err)
			}
			if n := store.renew.count(); n > 0 {
				t.Errorf("%d renewals of a fixed lease", n)
			}
			h = mine.mustAcquire(t, AtLeast(d), FixedLease(lease))
			mustRelease(t, h)
			if left := others.ttl(); left != d {
				t.Errorf("after the unlock it stays taken for %v; want %v", left, d)
			}
		})
	}
}

// A waiter in the same client gets in when the time is over, and doesn't ask before.
func TestWhoWaitsInTheClientGetsInWhenTheTimeIsOver(t *testing.T) {
	eachKeepable(t, func(t *testing.T, store *script, mine, _ keepable, _ *Client) {
		began := time.Now()
		h := mine.mustAcquire(t, AtLeast(5*time.Second))
		var in sync.WaitGroup
		for range 3 {
			in.Go(func() {
				h := mine.mustAcquire(t)
				if waited := time.Since(began); waited < 5*time.Second ||
					waited > 5*time.Second+50*time.Millisecond {
					t.Errorf("got in after %v of five seconds", waited)
				}
				mustRelease(t, h)
			})
		}
		time.Sleep(time.Second)
		synctest.Wait()
		mustRelease(t, h)
		synctest.Wait()
		store.asked()
		time.Sleep(4*time.Second - time.Millisecond)
		if leases, _ := store.asked(); len(leases) > 0 {
			t.Errorf("%d attempts while it is kept", len(leases))
		}
		in.Wait()
	})
}

// An attempt that is under way as the lock is released may be answered from before that.
func TestAnAttemptUnderWayAsALockIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newScript(membackend.New())
		c := New(store, quiet())
		defer c.Close()
		began := time.Now()
		h, err := c.Locker("x").Acquire(t.Context(), AtLeast(15*time.Second))
		must(t, err)
		in := make(chan *Hold)
		go func() {
			h, err := c.Locker("x").Acquire(t.Context())
			must(t, err)
			in <- h
		}()
		time.Sleep(9 * time.Second)
		store.acquire.delay(0, time.Second)
		// a third of the lease has passed, and the waiter looks whether anything got lost
		time.Sleep(1500 * time.Millisecond)
		mustRelease(t, h)
		mustRelease(t, <-in)
		if waited := time.Since(began); waited < 15*time.Second || waited > 17*time.Second {
			// an answer takes a second
			t.Errorf("got in after %v of 15 s", waited)
		}
	})
}

// Plain calls of one Locker queue for it behind each other.
func TestALockerWhoseLockIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New(membackend.New(), quiet())
		defer c.Close()
		began := time.Now()
		l := c.Locker("x")
		mustTry(t, l, AtLeast(5*time.Second))
		var in sync.WaitGroup
		for range 3 {
			in.Go(func() {
				l.Lock()
				defer l.Unlock()
				if waited := time.Since(began); waited < 5*time.Second ||
					waited > 5*time.Second+50*time.Millisecond {
					t.Errorf("got in after %v of five seconds", waited)
				}
			})
		}
		synctest.Wait()
		l.Unlock()
		in.Wait()
		empty(t, c)
	})
}

// It isn't handed on. A call that wants a lock to stay taken isn't handed one that the store
// doesn't keep for so long.
func TestAtLeastAndHandingOn(t *testing.T) {
	for name, d := range map[string][2]time.Duration{
		"to another":   {5 * time.Second, 0},
		"from another": {0, 5 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			eachKeepable(t, func(t *testing.T, store *script, mine, others keepable, _ *Client) {
				opts := func(d time.Duration) []AcquireOption {
					if d == 0 {
						return nil
					}
					return []AcquireOption{AtLeast(d)}
				}
				h := mine.mustAcquire(t, opts(d[0])...)
				in := make(chan *Hold)
				go func() { in <- mine.mustAcquire(t, opts(d[1])...) }()
				synctest.Wait()
				id := h.HolderID()
				mustRelease(t, h)
				h = <-in
				if h.HolderID() == id {
					t.Error("it was handed on")
				}
				synctest.Wait()
				if left := others.ttl(); left < d[1] {
					t.Errorf("the store keeps it for %v", left)
				}
				mustRelease(t, h)
			}, WithHandover(time.Hour))
		})
	}
}

// Readers don't share what is to stay taken, and the writer of a lock that is kept reads on by
// itself.
func TestReadersAndALockThatIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New(membackend.New(), quiet(), WithHandover(time.Hour))
		defer c.Close()
		rw, owned := c.RWLocker("x"), WithOwner(t.Context(), NewOwner())
		must(t, rw.Writer().LockContext(owned, AtLeast(5*time.Second)))
		must(t, rw.Reader().LockContext(owned))
		in := make(chan time.Time)
		began := time.Now()
		go func() {
			rw.RLock()
			in <- time.Now()
			rw.RUnlock()
		}()
		synctest.Wait()
		mustUnlock(t, owned, rw.Writer())
		mustUnlock(t, owned, rw.Reader())
		if waited := (<-in).Sub(began); waited < 5*time.Second ||
			waited > 5*time.Second+50*time.Millisecond {
			t.Errorf("a reader got in after %v of five seconds", waited)
		}
	})
}

// Of several times that one party asked for the longest counts, whichever hold is unlocked first.
func TestAtLeastOnReentry(t *testing.T) {
	for _, d := range [][2]time.Duration{{5 * time.Second, 50 * time.Second},
		{50 * time.Second, 5 * time.Second}, {0, 50 * time.Second}} {
		for _, lease := range []time.Duration{0, 3 * time.Second} {
			t.Run(fmt.Sprint(d, lease), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					store := newScript(membackend.New())
					c, other := New(store, quiet()), New(store, quiet())
					defer c.Close()
					defer other.Close()
					l, owned, began := c.FencedLocker("x"), WithOwner(t.Context(), NewOwner()),
						time.Now()
					var opts []AcquireOption
					if lease > 0 {
						opts = append(opts, FixedLease(lease))
					}
					for _, d := range d {
						if d > 0 {
							opts = append(opts[:min(len(opts), 1)], AtLeast(d))
							if lease == 0 {
								opts = opts[len(opts)-1:]
							}
						}
						must(t, l.LockContext(owned, opts...))
						time.Sleep(time.Second)
					}
					end := began.Add(max(d[0], time.Second+d[1]))
					wantUntil := func() {
						t.Helper()
						if left, err := other.Locker("x").TTL(t.Context()); err != nil ||
							left != time.Until(end) {
							t.Errorf("it stays taken for %v, %v; want %v", left, err,
								time.Until(end))
						}
					}
					if left, err := other.Locker("x").TTL(t.Context()); err != nil ||
						left < time.Until(end) {
						t.Errorf(
							"while it is held it would stay taken for %v, %v; want at least %v",
							left, err, time.Until(end))
					}
					mustUnlock(t, owned, l)
					if left, err := other.Locker("x").TTL(t.Context()); err != nil ||
						left < time.Until(end) {
						t.Errorf("after one of two unlocks it stays taken for %v, %v; want at "+
							"least %v", left, err, time.Until(end))
					}
					time.Sleep(time.Second)
					mustUnlock(t, owned, l)
					wantUntil()
					time.Sleep(time.Until(end))
					mustTry(t, other.Locker("x"))
				})
			})
		}
	}
}

// A hold that isn't to stay taken any more is relied on for no longer than the store keeps it.
func TestAHoldThatForgoesStayingTaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New(membackend.New(), quiet())
		defer c.Close()
		l := c.Locker("x")
		h, err := l.Acquire(t.Context(), AtLeast(time.Hour))
		must(t, err)
		c.mu.Lock()
		h.hold.claim.Forgo(c.now())
		c.mu.Unlock()
		time.Sleep(time.Minute)
		left, err := l.TTL(t.Context())
		must(t, err)
		if until := time.Until(h.Until()); until > left || until <= 0 {
			t.Errorf("held for %v more, where the store keeps it for %v", until, left)
		}
		mustRelease(t, h)
	})
}

// A renewal that was under way as a re-entry had the lock stay taken may shorten what the store
// keeps after that: the holder relies on no more than that leaves.
func TestARenewalThatComesAfterAReentryWithAtLeast(t *testing.T) {
	for _, answered := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			store := newScript(membackend.New())
			c, other := New(store, quiet()), New(store.Backend, quiet())
			defer c.Close()
			defer other.Close()
			ctx := WithOwner(t.Context(), NewOwner())
			l := c.Locker("x")
			h, err := l.Acquire(ctx)
			must(t, err)
			store.renew.set(func(s *renewStep) {
				switch {
				case s.n > 1:
					s.fail(errSevered)
				case answered:
					time.Sleep(3 * time.Second) // the re-entry is faster
				default:
					s.fail(errSevered)
					s.doAfter(3 * time.Second)
				}
			})
			time.Sleep(11 * time.Second)
			must(t, l.LockContext(ctx, AtLeast(time.Hour)))
			time.Sleep(10 * time.Second)
			left, err := other.Locker("x").TTL(t.Context())
			must(t, err)
			if until := time.Until(h.Until()); until > left {
				t.Errorf("answered: %v: held for %v more, where the store keeps it for %v",
					answered, until, left)
			}
			store.renew.set(nil)
			time.Sleep(10 * time.Second)
			if err := h.Err(); err != nil {
				t.Error(err)
			}
			must(t, l.UnlockContext(ctx))
			mustRelease(t, h)
		})
	}
}

// The token of several locks may be asked for while one of them is re-entered, and is to stay
// taken.
func TestTokenOfSeveralDuringAReentry(t *testing.T) {
	c := New(membackend.New(), quiet())
	defer c.Close()
	ctx := WithOwner(t.Context(), NewOwner())
	l := c.Locker("x")
	h, err := All(l, c.FencedLocker("y")).Acquire(ctx)
	must(t, err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		must(t, l.LockContext(ctx, AtLeast(time.Millisecond)))
	}()
	if token, ok := h.Token(); token != 1 || !ok {
		t.Errorf("token %d, %v", token, ok)
	}
	<-done
	must(t, l.UnlockContext(ctx))
	mustRelease(t, h)
}

// A re-entry with AtLeast doesn't make the renewals of the hold rarer, or longer than they must be.
func TestAtLeastOnReentryLeavesTheLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newScript(membackend.New())
		c := New(store, quiet())
		defer c.Close()
		l, owned := c.Locker("x"), WithOwner(t.Context(), NewOwner())
		must(t, l.LockContext(owned))
		must(t, l.LockContext(owned, AtLeast(100*time.Second)))
		mustUnlock(t, owned, l)
		time.Sleep(100 * time.Second)
		store.renew.took()
		time.Sleep(100 * time.Second)
		renewals := store.renew.took()
		if n := len(renewals); n < 9 || n > 12 {
			t.Errorf("%d renewals in 100 s; want one in 10 s", n)
		}
		for _, req := range renewals {
			if req.Lease != DefaultLease {
				t.Errorf("a renewal for %v when the time is over", req.Lease)
			}
		}
	})
}

// Whatever becomes of the releases, the lock is taken until the time is over, and not for longer.
func TestAKeptLockWhoseReleasesGetLost(t *testing.T) {
	for name, release := range map[string]func(*releaseStep){
		"no request arrives": func(s *releaseStep) { s.fail(errSevered) },
		"no answer arrives":  func(s *releaseStep) { s.lose() },
		"requests are carried out late": func(s *releaseStep) {
			s.fail(errSevered)
			s.doAfter(3 * time.Second)
		},
	} {
		for _, outage := range []time.Duration{time.Millisecond, 8 * time.Second,
			30 * time.Second} {
			t.Run(fmt.Sprint(name, outage), func(t *testing.T) {
				eachKeepable(t, func(
					t *testing.T, store *script, mine, others keepable, _ *Client,
				) {
					const d = 20 * time.Second
					began := time.Now()
					h := mine.mustAcquire(t, AtLeast(d))
					store.release.set(release)
					time.AfterFunc(outage, func() { store.release.set(nil) })
					if err := h.Release(t.Context()); (err == nil) != (outage < longestRelease) ||
						err != nil && !errors.Is(err, ErrUnavailable) {
						t.Errorf("Release: %v", err)
					}
					in := make(chan *Hold)
					go func() { in <- others.mustAcquire(t) }()
					h = <-in
					got := time.Since(began)
					if got < d {
						t.Errorf("another got in after %v of %v", got, d)
					}
					if most := max(d, outage) + 12*time.Second; got > most {
						// nobody tells it, so it looks each 10 s
						t.Errorf("another got in after %v; want %v at most", got, most)
					}
					time.Sleep(3 * time.Second)
					if err := h.Err(); err != nil {
						t.Errorf("what came late hit another: %v", err)
					}
					mustRelease(t, h)
				})
			})
		}
	}
}

// The store counts twice what was asked for twice, since the first answer was lost. Then it takes
// two releases, and the second may never arrive.
func TestAKeptLockThatTheStoreCountsTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newScript(membackend.New())
		c, other := New(store, quiet(), WithLease(time.Second)), New(store.Backend, quiet())
		defer c.Close()
		defer other.Close()
		const d = 20 * time.Second
		began := time.Now()
		h, err := c.Locker("x").Acquire(t.Context(), AtLeast(d))
		must(t, err)
		late := backend.AcquireRequest{Name: "x", Owner: h.HolderID(), Lease: d}
		if res, err := store.Backend.Open().Acquire(t.Context(), late); err != nil ||
			res.Count != 2 {
			// as an attempt that comes late
			t.Fatalf("%+v, %v", res, err)
		}
		store.release.set(func(s *releaseStep) {
			if s.n > 1 {
				s.fail(errSevered)
			}
		})
		if err := h.Release(t.Context()); !errors.Is(err, ErrUnavailable) {
			t.Errorf("Release: %v", err)
		}
		time.Sleep(time.Until(began.Add(d - time.Millisecond)))
		if ok, err := other.Locker("x").TryLock(t.Context()); ok || err != nil {
			t.Errorf("TryLock before the time is over = %v, %v", ok, err)
		}
		time.Sleep(time.Millisecond)
		mustTry(t, other.Locker("x"))
	})
}

// A waiter in line in the same client looks as soon as the time is over, whether the store says
// something or not.
func TestALineBehindAKeptLockIsLookedAtInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newScript(membackend.New())
		store.grants.set(vanish)
		c := New(store, quiet())
		defer c.Close()
		const d = 5 * time.Second
		began, l := time.Now(), c.FairLocker("x")
		h, err := l.Acquire(t.Context(), AtLeast(d))
		must(t, err)
		// so that the waiter, which looks each second, wouldn't look just then
		time.Sleep(300 * time.Millisecond)
		in := make(chan *Hold)
		go func() {
			h, err := l.Acquire(t.Context())
			must(t, err)
			in <- h
		}()
		time.Sleep(4300 * time.Millisecond)
		mustRelease(t, h)
		mustRelease(t, <-in)
		if waited := time.Since(began); waited < d || waited > d+50*time.Millisecond {
			t.Errorf("got in after %v of %v", waited, d)
		}
	})
}

// An attempt whose answer was lost, and whose call gave up, has acquired nothing that is to stay
// taken.
func TestAnAttemptThatWasGivenUpKeepsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newScript(membackend.New())
		c, other := New(store, quiet()), New(store.Backend, quiet())
		defer c.Close()
		defer other.Close()
		store.acquire.set(func(s *acquireStep) {
			s.lose()
		})
		if _, err := c.Locker("x").
			TryLock(t.Context(), AtLeast(time.Hour)); !errors.Is(err, ErrUnavailable) {
			t.Fatalf("TryLock: %v", err)
		}
		synctest.Wait()
		mustTry(t, other.Locker("x"))
		time.Sleep(2 * time.Hour) // until nothing can come any more
		empty(t, c)
	})
}

// Nor has a call that gave up just as it was given the lock.
func TestALineThatWasLeftAtItsEndKeepsNothing(t *testing.T) {
	for range 20 { // either may come first
		synctest.Test(t, func(t *testing.T) {
			store := newScript(membackend.New())
			store.grants.set(linger)
			c, other := New(store, quiet()), New(store.Backend, quiet())
			defer c.Close()
			defer other.Close()
			mustTry(t, other.Locker("x"), FixedLease(time.Second))
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			done, l := make(chan error), c.FairLocker("x")
			go func() { done <- l.LockContext(ctx, AtLeast(time.Hour)) }()
			time.Sleep(1100 * time.Millisecond)
			synctest.Wait()
			c.mu.Lock() // so that both come at once
			for _, grant := range store.grants.kept {
				go grant()
			}
			cancel()
			c.mu.Unlock()
			if err := <-done; err == nil {
				l.Unlock()
				return
			}
			time.Sleep(2 * time.Second)
			if held, err := other.Locker("x").IsLocked(t.Context()); held || err != nil {
				t.Errorf("after a call that failed the lock is held: %v, %v", held, err)
			}
		})
	}
}

// A lock that is granted to a waiter in line stays taken, too.
func TestAtLeastOfWhoStoodInLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := membackend.New()
		c, other := New(store, quiet()), New(store, quiet())
		defer c.Close()
		defer other.Close()
		l := other.FairLocker("x")
		l.Lock()
		in := make(chan *Hold)
		go func() {
			h, err := c.FairLocker("x").Acquire(t.Context(), AtLeast(5*time.Second))
			must(t, err)
			in <- h
		}()
		synctest.Wait()
		l.Unlock()
		mustRelease(t, <-in)
		if left, err := l.TTL(t.Context()); err != nil || left != 5*time.Second {
			t.Errorf("it stays taken for %v, %v", left, err)
		}
	})
}

// After Close an unlock keeps, too.
func TestAtLeastAfterClose(t *testing.T) {
	eachKeepable(t, func(t *testing.T, store *script, mine, others keepable, c *Client) {
		h := mine.mustAcquire(t, AtLeast(50*time.Second))
		c.Close()
		time.Sleep(time.Second)
		store.asked()
		mustRelease(t, h)
		if _, keeps := store.asked(); !slices.Equal(keeps, []time.Duration{49 * time.Second}) {
			t.Errorf("releases that keep for %v; want one, for 49 s", keeps)
		}
		if left := others.ttl(); left != 49*time.Second {
			t.Errorf("it stays taken for %v; want 49 s", left)
		}
		time.Sleep(49 * time.Second)
		mustRelease(t, others.mustAcquire(t, Wait(0)))
	})
}

func TestForceUnlockOfWhatIsKept(t *testing.T) {
	eachKeepable(t, func(t *testing.T, _ *script, mine, others keepable, c *Client) {
		mustRelease(t, mine.mustAcquire(t, AtLeast(time.Hour)))
		in := make(chan *Hold)
		go func() { in <- mine.mustAcquire(t) }()
		time.Sleep(time.Second)
		synctest.Wait()
		forced := time.Now()
		if released, err := others.force(t.Context()); !released || err != nil {
			t.Errorf("ForceUnlock: %v, %v", released, err)
		}
		mustRelease(t, <-in)
		if waited := time.Since(forced); waited > 0 {
			t.Errorf("who waited got in %v after that", waited)
		}
	})
}

// A look from outside shows that nobody is inside.
func TestHolderOfWhatIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := membackend.New()
		c, other := New(store, quiet(), WithClientID("me")), New(store, quiet())
		defer c.Close()
		defer other.Close()
		l := c.Locker("x")
		mustTry(t, l, AtLeast(time.Hour))
		for _, kept := range []bool{false, true} {
			if kept {
				l.Unlock()
			}
			who, err := other.Locker("x").Holder(t.Context())
			must(t, err)
			if who.Client != "me" || who.Kept != kept {
				t.Errorf("Holder = %+v, want kept %v", who, kept)
			}
		}
	})
}

func TestBadAtLeast(t *testing.T) {
	store := newScript(membackend.New())
	c := New(store, quiet())
	defer c.Close()
	noKeeps := New(newScript(membackend.New()).
		with(backend.Limits{Kinds: backend.KindsOf(backend.Permits)}), quiet())
	defer noKeeps.Close()
	ctx := t.Context()
	for _, d := range []time.Duration{0, -1, -time.Second, longestLease + 1} {
		if err := c.Locker("x").LockContext(ctx, AtLeast(d)); err == nil ||
			errors.Is(err, ErrUnavailable) {
			t.Errorf("AtLeast(%v): %v", d, err)
		}
	}
	for name, err := range map[string]error{
		"a read": c.RWLocker("x").Reader().
			LockContext(ctx, AtLeast(time.Second)),
		"a store that can't": noKeeps.Locker("x").LockContext(ctx, AtLeast(time.Second)),
		"permits in a store that can't": noKeeps.Semaphore("x", 1).
			Do(ctx, 1, nil, AtLeast(time.Second)),
	} {
		if name == "permits in a store that can't" {
			_, err = noKeeps.Semaphore("x", 1).Acquire(ctx, 1, AtLeast(time.Second))
		}
		if !errors.Is(err, errors.ErrUnsupported) || errors.Is(err, ErrUnavailable) {
			t.Errorf("%s: %v; want ErrUnsupported", name, err)
		}
	}
	if leases, _ := store.asked(); len(leases) > 0 {
		t.Errorf("%d attempts", len(leases))
	}
	must(t, c.Locker("x").LockContext(ctx, AtLeast(longestLease)))
	must(t, c.Locker("y").LockContext(ctx, AtLeast(1)))
	if leases, _ := store.asked(); !slices.Equal(leases,
		[]time.Duration{longestLease, DefaultLease}) {
		t.Errorf("leases of %v", leases)
	}
}

// Each hold ends once, and a Trace hears of it.
func TestTraceOfWhatIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var told ledger
		c := New(newScript(membackend.New()), quiet(), told.trace())
		defer c.Close()
		mustRelease(t, mustAcquire(t, c.Semaphore("s", 1), 1, AtLeast(time.Second)))
		told.want(t, "lock permits acquired store", "unlock permits released")
		l := c.Locker("x")
		mustTry(t, l, AtLeast(time.Second))
		done := make(chan struct{})
		go func() {
			defer close(done)
			l.Lock()
			defer l.Unlock()
		}()
		synctest.Wait()
		l.Unlock()
		<-done
		told.want(t, "lock exclusive acquired store", "unlock exclusive released",
			"lock exclusive acquired store", "unlock exclusive released")
		told.closed(t)
	})
}

// A loss names the time for which a hold was promised, which may be longer than the lease.
func TestLossOfAHoldThatIsToStayTaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newScript(membackend.New())
		c := New(store, quiet())
		defer c.Close()
		h, err := c.Locker("x").Acquire(t.Context(), AtLeast(100*time.Second))
		must(t, err)
		time.Sleep(15 * time.Second)
		store.renew.fail(errSevered)
		time.Sleep(80 * time.Second)
		must(t, h.Err())
		<-h.Lost()
		l, ok := errors.AsType[*Loss](h.Err())
		if !ok || l.Reason != LossExpired || l.Unconfirmed < 85*time.Second ||
			l.Unconfirmed > 100*time.Second || l.Held < 95*time.Second {
			t.Errorf("lost: %+v", l)
		}
	})
}

// Nobody gets a lock before its last holder's time is over, whatever gets lost or comes late on the
// way.
func TestRandomHistoriesOfLocksThatStayTaken(t *testing.T) {
	for seed := range histories() {
		for _, kind := range []string{"exclusive", "fenced", "write", "permits"} {
			t.Run(fmt.Sprint(kind, seed), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					randomKeeps(t, uint64(seed), keepables[kind])
				})
			})
		}
	}
}

func randomKeeps(t *testing.T, seed uint64, of func(*testing.T, *Client) keepable) {
	notary := newScript(membackend.New())
	granted := new(sync.Map) // when each owner was first granted something
	notary.acquire.set(func(s *acquireStep) {
		if s.do(); s.res.Acquired {
			granted.LoadOrStore(s.req.Owner, time.Now())
		}
	})
	store := &moody{Backend: notary, random: rand.New(rand.NewPCG(seed, 1))}
	type turn struct {
		granted time.Time // in the store
		atLeast time.Duration
	}
	var (
		all   sync.WaitGroup
		mu    sync.Mutex
		turns []turn
	)
	clients := make([]*Client, 3)
	ledgers := make([]ledger, len(clients))
	for i := range clients {
		clients[i] = New(store, quiet(), WithLease(2*time.Second), ledgers[i].trace())
		k := of(t, clients[i])
		for j := range uint64(2) {
			random := rand.New(rand.NewPCG(seed, 2+2*uint64(i)+j))
			all.Go(func() {
				upTo := func(most time.Duration) time.Duration {
					return time.Duration(random.Int64N(int64(most))) + time.Millisecond
				}
				for range 10 {
					d := upTo(6 * time.Second)
					ctx, cancel := context.WithTimeout(t.Context(), upTo(20*time.Second))
					h, err := k.acquire(ctx, AtLeast(d))
					cancel()
					if err != nil {
						time.Sleep(upTo(2 * time.Second))
						continue
					}
					at, _ := granted.Load(h.HolderID())
					mu.Lock()
					turns = append(turns, turn{at.(time.Time), d})
					mu.Unlock()
					time.Sleep(upTo(8 * time.Second))
					h.Release(t.Context())
				}
			})
		}
	}
	all.Wait()
	store.recover()
	time.Sleep(3 * time.Minute) // until everything is taken back
	for i, c := range clients {
		empty(t, c)
		c.Close()
		ledgers[i].closed(t)
	}
	if len(turns) == 0 {
		t.Error("nobody got in")
	}
	for _, x := range turns {
		end := x.granted.Add(x.atLeast)
		for owner, at := range granted.Range {
			if at := at.(time.Time); at.After(x.granted) && at.Before(end) {
				t.Errorf("%s was granted it %v before the time of another was over", owner,
					end.Sub(at))
			}
		}
	}
}
