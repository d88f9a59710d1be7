package dlock

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
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

func wantAvailable(t *testing.T, s *Semaphore, want int) {
	t.Helper()
	if n, err := s.Available(t.Context()); n != want || err != nil {
		t.Errorf("Available = %d, %v, want %d", n, err, want)
	}
}

// started returns a channel that gets what an acquisition comes to that waits.
func started(ctx context.Context, s *Semaphore, n int, opts ...AcquireOption) chan *Hold {
	in := make(chan *Hold, 1)
	go func() {
		h, _ := s.Acquire(ctx, n, opts...)
		in <- h
	}()
	synctest.Wait()
	return in
}

func TestPermits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New(membackend.New(), quiet())
		defer c.Close()
		s := c.Semaphore("x", 5)
		wantAvailable(t, s, 5)
		three := mustAcquire(t, s, 3)
		wantAvailable(t, s, 2)
		if _, err := s.Acquire(t.Context(), 3, Wait(0)); !errors.Is(err, ErrHeld) ||
			!errors.Is(err, ErrNotAcquired) {
			t.Errorf("three more: %v", err)
		}
		two := mustAcquire(t, s, 2)
		wantAvailable(t, s, 0)
		time.Sleep(3 * DefaultLease)
		wantAvailable(t, s, 0)
		mustRelease(t, three)
		mustRelease(t, two)
		if err := two.Release(t.Context()); !errors.Is(err, ErrNotHeld) {
			t.Errorf("given back twice: %v", err)
		}
		wantAvailable(t, s, 5)
		empty(t, c)
	})
}

// Permits of a Semaphore that wasn't told how many there are, too, are lost once the store says so.
// A store that has forgotten them may not know how many there are, either.
func TestPermitsWithoutALimitAreLost(t *testing.T) {
	for name, test := range map[string]struct {
		find   func(c *Client)
		within time.Duration
	}{
		"a renewal": {func(*Client) {}, DefaultLease / 2}, // it is due after a third
		"a look":    {func(c *Client) { lookAt(c, "x") }, 0},
	} {
		for _, limit := range []int{5, 0} {
			t.Run(fmt.Sprintf("%s of %d", name, limit), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					store := membackend.New()
					c := New(store, quiet())
					defer c.Close()
					mustAcquire(t, c.Semaphore("x", 5), 1) // so the store knows how many there are
					h := mustAcquire(t, c.Semaphore("x", limit), 2)
					store.Wipe()
					began := time.Now()
					test.find(c)
					<-h.Context().Done()
					if told := time.Since(began); told > test.within {
						t.Errorf("told after %v, want %v at most", told, test.within)
					}
					if err := h.Err(); !errors.Is(err, ErrLost) {
						t.Error(err)
					}
					if err := h.Release(t.Context()); !errors.Is(err, ErrLost) {
						t.Error(err)
					}
				})
			})
		}
	}
}

func TestPermitsThatCanNeverBeHad(t *testing.T) {
	c := New(membackend.New(), quiet())
	defer c.Close()
	s := c.Semaphore("x", 5)
	for n, want := range map[int]error{6: ErrTooMany, 0: errTooFew, -1: errTooFew} {
		if _, err := s.Acquire(t.Context(), n); !errors.Is(err, want) {
			t.Errorf("Acquire(%d): %v", n, err)
		}
		if err := s.Do(t.Context(), n, func(context.Context) error {
			return nil
		}); !errors.Is(err, want) {
			t.Errorf("Do(%d): %v", n, err)
		}
	}
	if _, err := c.Semaphore("y", 0).Acquire(t.Context(), 1); !errors.Is(err, ErrNoLimit) ||
		errors.Is(err, ErrUnavailable) {
		t.Errorf("of a semaphore that nobody has set up: %v", err)
	}
	if _, err := c.Semaphore("y", 0).Available(t.Context()); !errors.Is(err, ErrNoLimit) {
		t.Errorf("Available of a semaphore that nobody has set up: %v", err)
	}
	h := mustAcquire(t, s, 1)
	defer h.Release(t.Context())
	if _, err := c.Semaphore("x", 0).Acquire(t.Context(), 6); !errors.Is(err, ErrTooMany) ||
		errors.Is(err, ErrUnavailable) {
		t.Errorf("more than the store was told: %v", err)
	}
	if _, err := c.Semaphore("", 1).Acquire(t.Context(), 1); !errors.Is(err, errEmptyName) {
		t.Errorf("without a name: %v", err)
	}
	if err := s.Do(t.Context(), 1, nil); !errors.Is(err, errNoFunction) {
		t.Errorf("without a function: %v", err)
	}
	defer func() {
		if recover() == nil {
			t.Error("a semaphore with -1 permits")
		}
	}()
	c.Semaphore("x", -1)
}

// A large request isn't overtaken by small ones of its client, whatever is free.
func TestPermitsComeInTheOrderOfArrival(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New(membackend.New(), quiet())
		defer c.Close()
		s := c.Semaphore("x", 4)
		first, second := mustAcquire(t, s, 2), mustAcquire(t, s, 1)
		large := started(t.Context(), s, 4)
		small := started(t.Context(), s, 1)
		if _, err := s.Acquire(t.Context(), 1, Wait(0)); !errors.Is(err, ErrHeld) {
			t.Errorf("who doesn't wait overtakes who does: %v", err)
		}
		mustRelease(t, first)
		synctest.Wait()
		if len(large)+len(small) > 0 {
			t.Fatal("somebody got in while too few are left for the first")
		}
		mustRelease(t, second)
		h := <-large
		synctest.Wait()
		if len(small) > 0 {
			t.Fatal("one more than there are")
		}
		mustRelease(t, h)
		mustRelease(t, <-small)
		wantAvailable(t, s, 4)
		empty(t, c)
	})
}

// Permits that are given back pass to a waiter, without a request to the store, until the hand-over
// time is over.
func TestPermitsAreHandedOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newScript(membackend.New())
		c := New(b, quiet())
		defer c.Close()
		s := c.Semaphore("x", 2)
		a, h := mustAcquire(t, s, 1), mustAcquire(t, s, 1)
		for range 20 {
			in := started(t.Context(), s, 1)
			mustRelease(t, h)
			h = <-in
		}
		if n := b.release.count(); n != 0 {
			t.Errorf("%d releases in the store", n)
		}
		if n := b.acquire.count(); n > 3 {
			t.Errorf("%d acquisitions for two permits", n)
		}
		time.Sleep(DefaultHandover)
		in := started(t.Context(), s, 1)
		mustRelease(t, h)
		mustRelease(t, <-in)
		if n := b.release.count(); n != 2 {
			t.Errorf("%d releases in the store after the hand-over time", n)
		}
		mustRelease(t, a)
		wantAvailable(t, s, 2)
		empty(t, c)
	})
}

// A call that asks for another number, another limit or another time isn't handed permits that
// don't fit.
func TestPermitsThatDoNotFitAreNotHandedOn(t *testing.T) {
	for name, want := range map[string]struct {
		n, limit int
		opts     []AcquireOption
	}{
		"more permits":    {n: 2, limit: 2},
		"a smaller whole": {n: 1, limit: 1},
		"a fixed lease":   {n: 1, limit: 2, opts: []AcquireOption{FixedLease(time.Second)}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newScript(membackend.New())
				c := New(b, quiet())
				defer c.Close()
				s := c.Semaphore("x", 2)
				h, other := mustAcquire(t, s, 1), mustAcquire(t, s, 1)
				in := started(t.Context(), c.Semaphore("x", want.limit), want.n, want.opts...)
				mustRelease(t, h)
				mustRelease(t, other)
				mustRelease(t, <-in)
				if n := b.release.count(); n != 3 {
					t.Errorf("%d releases in the store, want 3", n)
				}
				empty(t, c)
			})
		})
	}
}

// hangsAfterOne returns a store that hangs all acquisitions but the first until they are let go.
func hangsAfterOne() (*script, chan struct{}) {
	b, hang := newScript(membackend.New()), make(chan struct{})
	b.acquire.set(func(s *acquireStep) {
		if s.n > 1 {
			s.waitFor(hang)
		}
	})
	return b, hang
}

// A call that is asking the store is handed permits that are given back meanwhile. Those that the
// store grants then go on to another, or back.
func TestPermitsAreHandedToWhoIsJustAsking(t *testing.T) {
	for name, more := range map[string]bool{"nobody else waits": false, "another waits": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b, hang := hangsAfterOne()
				c := New(b, quiet(), WithHandover(time.Hour))
				defer c.Close()
				s := c.Semaphore("x", 2)
				h := mustAcquire(t, s, 1)
				asking := started(t.Context(), s, 1)
				var behind chan *Hold
				if more {
					behind = started(t.Context(), s, 1)
				}
				mustRelease(t, h)
				h = <-asking // though the store hasn't answered
				close(hang)
				if more {
					mustRelease(t, <-behind)
				}
				mustRelease(t, h)
				synctest.Wait()
				wantAvailable(t, s, 2)
				// the attempt's permits, if it got any, are taken back by then
				time.Sleep(2 * DefaultLease)
				empty(t, c)
			})
		})
	}
}

// The store grants permits to a call that was handed others meanwhile. The next call of this client
// has them, without an attempt of its own.
func TestPermitsToSpareGoToWhoeverIsNext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, hang := hangsAfterOne()
		c := New(b, quiet(), WithHandover(time.Hour))
		defer c.Close()
		defer close(hang)
		s := c.Semaphore("x", 2)
		h := mustAcquire(t, s, 1)
		asking, behind := started(t.Context(), s, 1), started(t.Context(), s, 1)
		mustRelease(t, h)
		hang <- struct{}{} // the first gets what it has asked for, too
		h = <-asking
		select {
		case spare := <-behind:
			mustRelease(t, spare)
		case <-time.After(time.Second):
			t.Error("what is spare hasn't gone to who waits for it")
		}
		mustRelease(t, h)
		if n := b.acquire.count(); n != 2 {
			t.Errorf("%d attempts, want 2", n)
		}
	})
}

// Calls are handed permits while they ask a slow store. Only one asks at a time, since the store
// would get slower with each that does. No attempt is cut, since each would be taken back for long.
func TestOneAttemptAtATimeForPermits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newScript(membackend.New())
		c := New(b, quiet(), WithHandover(20*shortestWait))
		defer c.Close()
		var asking, most, had atomic.Int64
		b.acquire.set(func(s *acquireStep) {
			most.Store(max(most.Load(), asking.Add(1)))
			time.Sleep(3 * shortestWait)
			s.do()
			asking.Add(-1)
		})
		s := c.Semaphore("x", 4)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		var all sync.WaitGroup
		for range 16 {
			all.Go(func() {
				for range 100 {
					h, err := s.Acquire(ctx, 1)
					if err != nil {
						t.Error(err)
						return
					}
					time.Sleep(100 * time.Microsecond)
					had.Add(1)
					mustRelease(t, h)
				}
			})
		}
		all.Wait()
		if most.Load() > 1 {
			t.Errorf("%d calls asked the store at a time", most.Load())
		}
		attempts, releases := b.acquire.count(), b.release.count()
		if attempts > int(had.Load()/10) || releases > attempts {
			t.Errorf("%d attempts and %d releases for %d permits", attempts, releases, had.Load())
		}
	})
}

// A call is handed permits while it asks, and its attempt comes to nothing. The next call doesn't
// wait for what that attempt could have brought.
func TestTheNextAsksAfterASpareAttempt(t *testing.T) {
	for name, end := range map[string]func(*acquireStep){
		"it hangs":  (*acquireStep).hang,
		"it fails":  func(s *acquireStep) { time.Sleep(time.Millisecond); s.fail(errMood) },
		"it's no":   func(s *acquireStep) { time.Sleep(time.Millisecond); s.pretend() },
		"it panics": func(s *acquireStep) { time.Sleep(time.Millisecond); runtime.Goexit() },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newScript(membackend.New()).but(returns)
				b.acquire.set(func(s *acquireStep) {
					if s.n == 2 {
						end(s)
					}
				})
				c := New(b, quiet(), WithHandover(time.Hour))
				defer c.Close()
				s := c.Semaphore("x", 3)
				h := mustAcquire(t, s, 1)
				asking := started(t.Context(), s, 1)
				behind := []chan *Hold{started(t.Context(), s, 1), started(t.Context(), s, 1)}
				mustRelease(t, h)
				for i, in := range behind {
					select {
					case h := <-in:
						defer mustRelease(t, h)
					case <-time.After(2 * handedPatience):
						t.Fatalf("call %d behind it doesn't get in", i)
					}
				}
				if name != "it panics" {
					mustRelease(t, <-asking)
				}
			})
		})
	}
}

// The store refuses a call that is handed permits meanwhile. The next call needn't ask: it would be
// refused, too.
func TestTheRefusalOfASpareAttemptIsRemembered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := membackend.New()
		other := New(store, quiet())
		defer other.Close()
		kept := mustAcquire(t, other.Semaphore("x", 4), 3)
		b := newScript(store)
		b.acquire.delay(time.Millisecond, time.Millisecond)
		c := New(b, quiet(), WithHandover(time.Hour))
		defer c.Close()
		s := c.Semaphore("x", 4)
		end := time.Now().Add(time.Second)
		var had atomic.Int64
		var all sync.WaitGroup
		for range 8 {
			all.Go(func() {
				for time.Now().Before(end) {
					h := mustAcquire(t, s, 1)
					time.Sleep(500 * time.Microsecond)
					had.Add(1)
					mustRelease(t, h)
				}
			})
		}
		all.Wait()
		if n := b.acquire.count(); n > 20 {
			t.Errorf("%d attempts, though nobody gave anything back", n)
		}
		if n := had.Load(); n < 1800 {
			t.Errorf("one permit was had %d times in a second, each time for half a millisecond", n)
		}
		mustRelease(t, kept)
	})
}

// The store refuses a call that is handed permits meanwhile, and another client gives some back
// before that answer comes. The next call asks.
func TestTheRefusalOfASpareAttemptIsOutOfDate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := membackend.New()
		other := New(store, quiet())
		defer other.Close()
		kept := mustAcquire(t, other.Semaphore("x", 3), 2)
		b, answered := newScript(store).but(returns), make(chan struct{})
		c := New(b, quiet(), WithHandover(time.Hour))
		defer c.Close()
		s := c.Semaphore("x", 3)
		h := mustAcquire(t, s, 1)
		refused := started(t.Context(), s, 1) // makes the client subscribe
		b.acquire.set(func(s *acquireStep) {
			if s.n == 1 {
				s.do()
				<-answered
			}
		})
		time.Sleep(longestPause(DefaultLease) + longestJitter) // it asks again
		behind := started(t.Context(), s, 1)
		mustRelease(t, h)
		mustRelease(t, kept)
		synctest.Wait()
		close(answered)
		select {
		case h := <-behind:
			mustRelease(t, h)
		case <-time.After(longestPause(DefaultLease) / 2):
			t.Error("it doesn't ask for what was given back")
		}
		mustRelease(t, <-refused)
	})
}

// A call that has waited for a while, and can wait for longer, asks no earlier than one that can
// wait for ever: it waits for a spare attempt.
func TestALongWaitDuringASpareAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := membackend.New()
		other := New(store, quiet())
		defer other.Close()
		kept := mustAcquire(t, other.Semaphore("x", 3), 2)
		b, answered := newScript(store).but(returns), make(chan struct{})
		c := New(b, quiet(), WithHandover(time.Hour))
		defer c.Close()
		s := c.Semaphore("x", 3)
		h := mustAcquire(t, s, 1)
		asking := started(t.Context(), s, 1)
		behind := started(t.Context(), s, 1, Wait(time.Second))
		time.Sleep(time.Second / 2)
		b.acquire.took()
		b.acquire.set(func(s *acquireStep) { <-answered })
		mustRelease(t, kept) // the first call asks
		synctest.Wait()
		mustRelease(t, h) // to the one that asks
		time.Sleep(handedPatience / 2)
		if n := b.acquire.count(); n != 1 {
			t.Errorf("%d calls ask, want 1", n)
		}
		close(answered)
		mustRelease(t, <-behind)
		mustRelease(t, <-asking)
	})
}

// A call that can't wait for long doesn't wait for a spare attempt.
func TestAShortWaitDuringASpareAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newScript(membackend.New()).but(returns)
		b.acquire.set(func(s *acquireStep) {
			if s.n == 2 {
				s.hang()
			}
		})
		c := New(b, quiet(), WithHandover(time.Hour))
		defer c.Close()
		s := c.Semaphore("x", 3)
		h := mustAcquire(t, s, 1)
		asking := started(t.Context(), s, 1)
		mustRelease(t, h) // goes to the one that asks
		h, err := s.Acquire(t.Context(), 1, Wait(handedPatience/2))
		if err != nil {
			t.Errorf("two of three permits are free, and the store answers at once: %v", err)
		} else {
			mustRelease(t, h)
		}
		mustRelease(t, <-asking)
	})
}

// Another client's turn comes during a spare attempt. The end of the attempt doesn't end that turn.
func TestASpareAttemptEndsWhileOthersHaveTheirTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := membackend.New()
		third := New(store, quiet())
		defer third.Close()
		b, far := newScript(store), newScript(store).far(0, 2*time.Millisecond)
		c, other := New(b, quiet(), WithHandover(20*time.Millisecond)), New(far, quiet())
		defer c.Close()
		defer other.Close()
		kept := mustAcquire(t, third.Semaphore("x", 3), 1)
		s := c.Semaphore("x", 3)
		h1, h2 := mustAcquire(t, s, 1), mustAcquire(t, s, 1)
		began := time.Now()
		in := started(t.Context(), s, 1)
		mustRelease(t, h2)
		h2 = <-in // it was handed on, so that its release asks who waits
		theirs := started(t.Context(), other.Semaphore("x", 3), 1)
		time.Sleep(19*time.Millisecond - time.Since(began))
		b.acquire.set(func(s *acquireStep) {
			s.do()
			if s.n == 1 { // refused
				time.Sleep(2500 * time.Microsecond)
			}
		})
		asking, behind := started(t.Context(), s, 1), started(t.Context(), s, 1)
		time.Sleep(500 * time.Microsecond)
		mustRelease(t, h1) // to the one that asks
		time.Sleep(time.Millisecond)
		mustRelease(t, h2) // after the hand-over time: to the store, and it is the other's turn
		h1 = <-asking
		select {
		case h := <-theirs:
			mustRelease(t, h1)
			mustRelease(t, h)
			mustRelease(t, <-behind)
		case h := <-behind:
			t.Error("it was the other client's turn")
			mustRelease(t, h1)
			mustRelease(t, h)
			mustRelease(t, <-theirs)
		}
		mustRelease(t, kept)
	})
}

// A client forces a semaphore while an attempt of its own is under way, whose call is handed
// permits. What the attempt gets may be gone by then, so that nobody is let in with it.
func TestWhatASpareAttemptGotIsForced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := membackend.New()
		b := newScript(store).but(returns)
		c, other := New(b, quiet(), WithHandover(time.Hour)), New(store, quiet())
		defer c.Close()
		defer other.Close()
		s := c.Semaphore("x", 2)
		h := mustAcquire(t, s, 1)
		b.acquire.set(func(s *acquireStep) {
			if s.n == 1 {
				s.do()
				time.Sleep(3 * time.Millisecond)
			}
		})
		b.look.delay(time.Millisecond, time.Millisecond)
		_, behind := started(t.Context(), s, 1), started(t.Context(), s, 1)
		mustRelease(t, h)
		time.Sleep(time.Millisecond)
		if _, err := s.ForceRelease(t.Context()); err != nil {
			t.Fatal(err)
		}
		all := mustAcquire(t, other.Semaphore("x", 2), 2)
		time.Sleep(2100 * time.Microsecond)
		synctest.Wait()
		select {
		case h := <-behind:
			t.Errorf("let in, beside another client that has all: Err = %v", h.Err())
			h.Release(t.Context())
		default:
		}
		mustRelease(t, all)
	})
}

func TestPermitsOfAnotherClientComeByMessage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := membackend.New()
		c, other := New(store, quiet()), New(store, quiet())
		defer c.Close()
		defer other.Close()
		h := mustAcquire(t, other.Semaphore("x", 2), 2)
		s := c.Semaphore("x", 2)
		a, b := started(t.Context(), s, 1), started(t.Context(), s, 1)
		began := time.Now()
		mustRelease(t, h)
		mustRelease(t, <-a)
		mustRelease(t, <-b)
		if took := time.Since(began); took > 100*time.Millisecond {
			t.Errorf("they were woken after %v", took)
		}
		// A client with a larger number lets more in.
		h = mustAcquire(t, other.Semaphore("x", 2), 2)
		a = started(t.Context(), s, 1)
		mustRelease(t, mustAcquire(t, other.Semaphore("x", 4), 1))
		mustRelease(t, h)
		mustRelease(t, <-a)
		empty(t, c)
		empty(t, other)
	})
}

// A loss ends the context of its holder; the other holders keep their permits.
func TestPermitsAreLostOneByOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New(membackend.New(), quiet())
		defer c.Close()
		s := c.Semaphore("x", 3)
		kept := mustAcquire(t, s, 1)
		short := mustAcquire(t, s, 2, FixedLease(time.Second))
		waiting := started(t.Context(), s, 2)
		<-short.Context().Done()
		if err := context.Cause(short.Context()); !errors.Is(err, ErrLost) {
			t.Errorf("cause %v", err)
		}
		<-short.Lost()
		mustRelease(t, <-waiting)
		if err := short.Release(t.Context()); !errors.Is(err, ErrLost) {
			t.Errorf("Release of what is lost: %v", err)
		}
		if kept.Context().Err() != nil {
			t.Error("another lost what it has")
		}
		mustRelease(t, kept)
		synctest.Wait()
		wantAvailable(t, s, 3)
		empty(t, c)
	})
}

// An acquisition within another's context is one of its own.
func TestPermitsWithinPermits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New(membackend.New(), quiet())
		defer c.Close()
		s := c.Semaphore("x", 2)
		err := s.Do(WithOwner(t.Context(), NewOwner()), 1, func(ctx context.Context) error {
			h, err := s.Acquire(ctx, 1)
			if err != nil {
				return err
			}
			wantAvailable(t, s, 0)
			if err := s.Do(ctx, 1, func(context.Context) error { return nil },
				Wait(time.Second)); !errors.Is(err, ErrHeld) {
				t.Errorf("a third of two: %v", err)
			}
			return h.Release(ctx)
		})
		if err != nil {
			t.Error(err)
		}
		wantAvailable(t, s, 2)
		empty(t, c)
	})
}

func TestPermitsAfterClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := membackend.New()
		c := New(store, quiet())
		s := c.Semaphore("x", 1)
		h := mustAcquire(t, s, 1)
		waits := make(chan error)
		go func() {
			_, err := s.Acquire(t.Context(), 1)
			waits <- err
		}()
		synctest.Wait()
		c.Close()
		if err := <-waits; !errors.Is(err, ErrClosed) {
			t.Errorf("who waits: %v", err)
		}
		<-h.Lost()
		if err := h.Release(t.Context()); err != nil {
			t.Errorf("Release after Close: %v", err)
		}
		if _, err := s.Acquire(t.Context(), 1); !errors.Is(err, ErrClosed) {
			t.Errorf("Acquire after Close: %v", err)
		}
		other := New(store, quiet())
		defer other.Close()
		wantAvailable(t, other.Semaphore("x", 1), 1)
	})
}

// Never more are inside than there are permits, and all come back.
func TestPermitsUnderLoad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := membackend.New()
		var clients []*Client
		for range 3 {
			c := New(store, quiet())
			defer c.Close()
			clients = append(clients, c)
		}
		const permits = 5
		var inside atomic.Int32
		var all sync.WaitGroup
		for i := range 48 {
			c := clients[i%3]
			r := rand.New(rand.NewPCG(uint64(i), 11))
			s := c.Semaphore("x", permits)
			all.Go(func() {
				for range 100 {
					n := 1 + r.IntN(3)
					ctx, cancel := context.WithTimeout(t.Context(),
						time.Duration(1+r.IntN(50))*time.Millisecond)
					h, err := s.Acquire(ctx, n)
					cancel()
					if err != nil {
						continue
					}
					if now := inside.Add(int32(n)); now > permits {
						t.Errorf("%d are inside", now)
					}
					time.Sleep(time.Duration(r.IntN(2000)) * time.Microsecond)
					inside.Add(int32(-n))
					mustRelease(t, h)
				}
			})
		}
		all.Wait()
		synctest.Wait()
		wantAvailable(t, clients[0].Semaphore("x", permits), permits)
		time.Sleep(longestCrowd)
		for _, c := range clients {
			empty(t, c)
		}
	})
}

func BenchmarkSemaphoreHandedOn(b *testing.B) {
	c := New(membackend.New(), quiet())
	defer c.Close()
	s := c.Semaphore("x", 16)
	ctx := b.Context()
	b.SetParallelism(32)
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			h, err := s.Acquire(ctx, 1)
			if err != nil {
				b.Fatal(err)
			}
			h.Release(ctx)
		}
	})
}

// asked is an error that does something when it is looked at for the second time.
type asked struct {
	n    *atomic.Int32
	then func()
}

func (e asked) Error() string { return "no" }

func (e asked) As(any) bool {
	if e.n.Add(1) == 2 {
		e.then()
	}
	return false
}

// A call is handed permits as the store refuses it: it has them, and none are lost.
func TestPermitsAreHandedToWhoIsJustRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newScript(membackend.New())
		c := New(b, quiet(), WithHandover(time.Hour))
		defer c.Close()
		s := c.Semaphore("x", 2)
		h := mustAcquire(t, s, 1)
		var n atomic.Int32
		b.acquire.fail(both(asked{&n, func() { mustRelease(t, h) }}, &backend.Error{
			Kind: backend.Refused, Err: errMood,
		}))
		got, err := s.Acquire(t.Context(), 1)
		if err != nil {
			t.Error(err)
		} else {
			mustRelease(t, got)
		}
		synctest.Wait()
		wantAvailable(t, s, 2)
		time.Sleep(2 * DefaultLease)
		empty(t, c)
	})
}

// A call that was to look again in a moment leaves. The next in the queue looks again in a moment,
// too.
func TestWhoFollowsOneWhoLetsOthersComeFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := membackend.New()
		c, other, third := New(store, quiet()), New(store, quiet()), New(store, quiet())
		defer c.Close()
		defer other.Close()
		defer third.Close()
		kept := mustAcquire(t, third.Semaphore("x", 2), 1)
		s := c.Semaphore("x", 2)
		h := mustAcquire(t, s, 1)
		in := started(t.Context(), s, 1)
		mustRelease(t, h)
		h = <-in // it was handed on, so that its release asks who waits
		large := started(t.Context(), other.Semaphore("x", 2), 2)
		ctx, cancel := context.WithCancel(t.Context())
		quitter := started(ctx, s, 1)
		time.Sleep(DefaultHandover)
		follows := started(t.Context(), s, 1)
		mustRelease(t, h)
		cancel()
		<-quitter
		began := time.Now()
		h = <-follows
		if took := time.Since(began); took > 100*time.Millisecond {
			t.Errorf("it got in after %v", took)
		}
		mustRelease(t, h)
		mustRelease(t, kept)
		mustRelease(t, <-large)
	})
}

// A call that is handed permits before its attempt is sent doesn't wait for a store that hangs.
func TestPermitsAreHandedToWhoIsAboutToAsk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, hang := newScript(membackend.New()), make(chan struct{})
		b.acquire.set(func(s *acquireStep) { s.waitFor(hang) })
		c := New(b, quiet())
		defer c.Close()
		defer close(hang)
		a := c.newAcquisition()
		a.client = c
		a.call = call{
			kind: protocol.Kind(backend.Permits), name: "x", party: nobody, o: acquireOptions{
				lease: time.Minute, permits: 1, limit: 1,
			},
		}
		if move, _, err := a.nextMove(nil); move != toTry || err != nil {
			t.Fatalf("it doesn't try: %v, %v", move, err)
		}
		h := newHold(nobody, protocol.Kind(backend.Permits), a.h.claim)
		c.mu.Lock()
		a.dequeue(&c.state)
		a.hand(&c.state, h)
		c.unlock()
		done := make(chan struct{})
		go func() { a.try(t.Context()); close(done) }()
		select {
		case <-done:
		case <-time.After(time.Second):
			t.Error("it waits for the store")
		}
	})
}
