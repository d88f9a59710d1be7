package dlock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/dlock/internal/protocol"
	"github.com/seed951563bd/distsync/membackend"
)

// Each release of a client puts off when its own first waiter asks again, for as long as others are
// subscribed and don't come: it never does if the client's TryLocks are less than 5 ms apart,
// though the lock is free for most of the time.
func TestReleasesDoNotPutOffTheirOwnWaiter(t *testing.T) {
	for name, opts := range map[string][]AcquireOption{
		"Lease":           {FixedLease(10 * time.Second)},
		"WithHandover(0)": nil,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				mem := membackend.New()
				clientOpts := []Option{quiet()}
				if opts == nil {
					clientOpts = append(clientOpts, WithHandover(0))
				}
				c := New(mem, clientOpts...)
				defer c.Close()
				defer listen(t, mem).Close()
				first := c.Locker("x")
				mustTry(t, first, opts...)
				w := wait(t.Context(), c.Locker("x"), opts...)
				mustUnlock(t, t.Context(), first)
				var in atomic.Bool
				go func() { <-w.in; in.Store(true) }()
				free := time.Duration(0)
				l := c.Locker("x")
				for range 1000 {
					if ok, _ := l.TryLock(t.Context(), opts...); !ok {
						break // w is in
					}
					time.Sleep(time.Millisecond)
					mustUnlock(t, t.Context(), l)
					time.Sleep(3 * time.Millisecond)
					free += 3 * time.Millisecond
				}
				if synctest.Wait(); !in.Load() {
					t.Errorf("a waiter did not ask in 4 s, of which the lock was free for %v", free)
				}
			})
		})
	}
}

// A message that comes during an attempt is dropped if a release of this client has no answer yet:
// the attempt is answered from before, and the waiter sleeps beside a free lock.
func TestAMessageDuringAnAttemptAndARelease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		mem := membackend.New()
		b := newScript(mem)
		c, other := New(b, quiet(), WithHandover(0)), New(mem, quiet())
		defer c.Close()
		defer other.Close()

		l := c.Locker("x")
		mustTry(t, l)
		w := wait(ctx, c.Locker("x"))
		theirs := wait(ctx, other.Locker("x"))

		b.release.set(func(s *releaseStep) {
			s.do()
			<-s.ctx.Done() // the reply is lost
			s.fail(s.ctx.Err())
		})
		answered := make(chan struct{})
		b.acquire.set(func(s *acquireStep) {
			s.do()
			time.Sleep(2 * time.Millisecond)
			if answered != nil {
				close(answered)
				answered = nil
			}
		})
		unlocked := make(chan struct{})
		go func() { l.UnlockContext(ctx); close(unlocked) }()
		theirs.mustBeIn(t)
		time.Sleep(shortestWait + time.Millisecond) // w has asked, and has no answer yet
		theirs.leave()
		free := time.Now()
		<-w.in
		if took := time.Since(free); took > 100*time.Millisecond {
			t.Errorf("the lock was free for %v until who waited for it asked", took)
		}
		w.leave()
		<-unlocked
	})
}

// A wait that is shorter than a turn that is sat out never asks the store, and calls it
// unavailable.
func TestAShortWaitDuringATurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := membackend.New()
		c, other := New(mem, quiet()), New(mem, quiet())
		defer c.Close()
		defer other.Close()
		l := c.Locker("x")
		mustTry(t, l)
		l.Unlock()
		mustTry(t, l) // again
		w := wait(t.Context(), other.Locker("x"))
		time.Sleep(longStreak)
		mustUnlock(t, t.Context(), l)
		w.mustBeIn(t) // the other client has it, and the store answers at once
		ok, err := l.TryLock(t.Context(), Wait(3*time.Millisecond))
		if ok || err != nil {
			t.Errorf("the lock is held, and the store is well: %v, %v", ok, err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Millisecond)
		defer cancel()
		if err := l.LockContext(ctx); errors.Is(err, ErrUnavailable) || !errors.Is(err, ErrHeld) {
			t.Errorf("LockContext, the same: %v", err)
		}
		w.leave()
	})
}

// The same where the lock is free: nothing keeps the caller out but the turn.
func TestAShortWaitDuringATurnThatNobodyTakes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := membackend.New()
		c := New(mem, quiet())
		defer c.Close()
		defer listen(t, mem).Close()
		l := c.Locker("x")
		mustTry(t, l)
		l.Unlock()
		mustTry(t, l) // again
		time.Sleep(longStreak)
		mustUnlock(t, t.Context(), l)
		if ok, err := l.TryLock(t.Context(), Wait(3*time.Millisecond)); !ok || err != nil {
			t.Errorf("the lock is free for all of the wait, and the store is well: %v, %v", ok, err)
		}
	})
}

// A wait that began while this client had the lock, and ends while it is being released, knows that
// it was held, and says that nothing is known.
func TestAWaitThatEndsDuringARelease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newScript(membackend.New())
		b.release.delay(6*time.Millisecond, 0) // a round trip: shorter than the wait
		c := New(b, quiet())
		defer c.Close()
		l := c.Locker("x")
		mustTry(t, l)
		time.Sleep(5 * time.Millisecond)
		got := make(chan error, 1)
		go func() {
			ok, err := c.Locker("x").TryLock(t.Context(), Wait(8*time.Millisecond))
			if ok {
				err = errors.New("got in")
			}
			got <- err
		}()
		time.Sleep(5500 * time.Microsecond) // the chain is over
		mustUnlock(t, t.Context(), l)
		if err := <-got; errors.Is(err, ErrUnavailable) {
			t.Errorf("held during the wait, by this very client: %v", err)
		}
	})
}

// Clients that lock again and again let each other in, whatever the kind of lease.
func TestClientsTakeTurns(t *testing.T) {
	for name, test := range map[string]struct {
		client []Option
		lock   []AcquireOption
	}{
		"hand-over":       {},
		"fixed lease":     {lock: []AcquireOption{FixedLease(10 * time.Second)}},
		"WithHandover(0)": {client: []Option{WithHandover(0)}},
	} {
		for _, goroutines := range []int{1, 4} {
			t.Run(fmt.Sprint(name, ", goroutines ", goroutines), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					store := newScript(membackend.New()).
						far(250*time.Microsecond, 100*time.Microsecond)
					turns := make([]int, 5)
					until := time.Now().Add(20 * time.Second)
					var all sync.WaitGroup
					var clients []*Client
					for i := range turns {
						c := New(store, append(test.client, quiet())...)
						clients = append(clients, c)
						for range goroutines {
							all.Go(func() {
								for l := c.Locker("x"); time.Now().Before(until); {
									err := l.Do(t.Context(), func(context.Context) error {
										turns[i]++
										time.Sleep(500 * time.Microsecond)
										return nil
									}, test.lock...)
									if err != nil {
										t.Error(err)
									}
								}
							})
						}
					}
					all.Wait()
					sum := 0
					for _, n := range turns {
						sum += n
					}
					for _, n := range turns {
						if fair := sum / len(turns); n < fair/2 || n > 2*fair {
							t.Errorf("turns of each client: %v", turns)
							break
						}
					}
					for _, c := range clients {
						c.Close()
					}
				})
			})
		}
	}
}

// A client that sits out a turn which nobody takes doesn't do so for long.
func TestTurnsThatNobodyTakes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := membackend.New()
		c := New(mem, quiet())
		defer c.Close()
		for range 3 { // subscribed, and asleep
			defer listen(t, mem).Close()
		}
		begin := time.Now()
		l := c.Locker("x")
		const turns = 1000
		for range turns {
			l.Lock()
			time.Sleep(time.Millisecond)
			l.Unlock()
		}
		most := turns * time.Millisecond
		most += (most/longestExcuse + 2) * 2 * shortestWait
		if took := time.Since(begin); took > most {
			t.Errorf("%d turns beside others that never come took %v, want %v at the most", turns,
				took, most)
		}
	})
}

// lettingPass returns a Locker that holds the lock, and a tenant of another client, which lets so
// many releases pass from now on.
func lettingPass(t *testing.T, store backend.Backend, releases int) (holder *Locker, w *tenant) {
	t.Helper()
	all := clientsOf(t, store, 2)
	c, other := all[0], all[1]
	holder = other.Locker("x")
	mustTry(t, holder)
	w = wait(t.Context(), c.Locker("x"))
	c.mu.Lock()
	(&claim{object: &object{name: "x"}}).standBack(&c.state, releases, backend.ReleaseResult{})
	c.unlock()
	return holder, w
}

// The release that a client lets pass comes while its attempt is under way, which is answered from
// before that, and late: nobody else comes.
func TestAMessageThatIsLetPassDuringAnAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newScript(membackend.New())
		holder, w := lettingPass(t, b, 1)
		b.acquire.set(func(s *acquireStep) {
			s.do()
			if !s.res.Acquired {
				holder.Unlock()
				time.Sleep(4 * shortestWait)
			}
		})
		time.Sleep(7 * shortestWait)
		w.mustBeIn(t)
		w.leave()
	})
}

// Each release that a client lets pass begins its wait anew: others go on.
func TestAReleaseThatIsLetPassBeginsTheWaitAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		holder, w := lettingPass(t, membackend.New(), 2)
		time.Sleep(shortestWait - time.Millisecond)
		mustUnlock(t, t.Context(), holder)
		passed := time.Now()
		if err := <-w.in; err != nil {
			t.Fatal(err)
		}
		if took := time.Since(passed); took != shortestWait {
			t.Errorf("in %v after the release that it let pass, want %v", took, shortestWait)
		}
		must(t, w.leave())
	})
}

// whoAsk returns how many releases there were, and how many of them asked who waits.
func whoAsk(b *script) (asked, releases int) {
	for _, req := range b.release.took() {
		if releases++; req.AskWaiting {
			asked++
		}
	}
	return asked, releases
}

// A client that locks now and then asks nothing. One that locks again and again asks now and then.
func TestWhoIsAloneHardlyAsks(t *testing.T) {
	for name, test := range map[string]struct {
		names       int
		held, pause time.Duration
		share       float64 // of the releases that ask, at the most
	}{
		"again and again":          {1, 0, 0, 0.05},
		"again, held for long":     {1, time.Second, 0, 1},
		"now and then":             {1, 0, 2 * longestPauseInStreak, 0},
		"now and then, for long":   {1, time.Second, 2 * longestPauseInStreak, 0},
		"one name after the other": {1000, 0, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newScript(membackend.New())
				b.release.delay(100*time.Microsecond, 0)
				c := New(b, quiet())
				defer c.Close()
				for i := range 2000 {
					l := c.Locker(fmt.Sprint(i % test.names))
					l.Lock()
					time.Sleep(test.held)
					l.Unlock()
					time.Sleep(test.pause)
				}
				asked, releases := whoAsk(b)
				if share := float64(asked) / float64(releases); share > test.share {
					t.Errorf("%d of %d releases ask who waits", asked, releases)
				}
				if n := len(c.state.streaks.young) + len(c.state.streaks.old); n > 2*mostStreaks {
					t.Errorf("%d streaks are remembered", n)
				}
			})
		})
	}
}

// A name that is locked again and again is remembered though many others come in between each time.
func TestAStreakBesideManyNames(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newScript(membackend.New())
		b.release.delay(100*time.Microsecond, 0)
		c := New(b, quiet())
		defer c.Close()
		l := c.Locker("x")
		const turns, others = 200, 80 // each of which takes a moment
		for i := range turns * others {
			if i%others == 0 {
				pass(l)
			}
			pass(c.Locker(fmt.Sprint(i)))
		}
		asked, _ := whoAsk(b)
		if least := turns / (2 * shortStreak); asked < least {
			t.Errorf("%d of %d turns ask who waits, want %d", asked, turns, least)
		}
	})
}

// A waiter with enough time lets others come first, also where its wait is bounded.
func TestABoundedWaitSitsOutATurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := membackend.New()
		c := New(mem, quiet())
		defer c.Close()
		defer listen(t, mem).Close()
		l := c.Locker("x")
		mustTry(t, l)
		l.Unlock()
		mustTry(t, l)
		time.Sleep(longStreak)
		l.Unlock()
		began := time.Now()
		mustTry(t, l, Wait(time.Second))
		if took := time.Since(began); took != shortestWait {
			t.Errorf("in after %v, beside one who is counted and doesn't come; want %v", took,
				shortestWait)
		}
		l.Unlock()
	})
}

// A client hands a lock on inside, but not where strangers wait, which don't: then each waiter has
// a turn of its own. If all that wait elsewhere are strangers, and several, every second waiter is
// handed it.
func TestHandoverBesideStrangers(t *testing.T) {
	const waiters = 4
	for _, c := range []struct{ waiting, strangers, releases int }{
		{0, 0, 1}, {2, 0, 1}, {3, 1, waiters}, {1, 1, waiters}, {3, 3, waiters / 2},
	} {
		t.Run(fmt.Sprintf("%d of %d", c.strangers, c.waiting), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				releases := 0
				b := newScript(membackend.New())
				b.release.set(func(s *releaseStep) {
					releases++
					s.do()
					s.res.Counted, s.res.Waiting, s.res.Strangers = true, c.waiting, c.strangers
				})
				client := New(b, quiet(), WithHandover(time.Minute))
				defer client.Close()
				do := func() {
					err := client.Locker("x").Do(t.Context(), func(context.Context) error {
						time.Sleep(time.Millisecond)
						return nil
					})
					if err != nil {
						t.Error(err)
					}
				}
				do() // and learns who waits
				releases = 0
				var running sync.WaitGroup
				for range waiters {
					running.Go(do)
				}
				running.Wait()
				if releases != c.releases {
					t.Errorf("%d waiters released %d times, want %d", waiters, releases, c.releases)
				}
			})
		})
	}
}

// A lock that isn't handed on, since each hold has its own number, is had twice in a row where one
// that is handed on would be: alone among several strangers.
func TestTwoTurnsBesideStrangers(t *testing.T) {
	for _, c := range []struct {
		waiting, strangers int
		atOnce             []bool // of the turns that follow one of this client's
	}{
		{3, 3, []bool{true, false, true}}, {2, 2, []bool{true, false, true}},
		{3, 2, []bool{false, false, false}}, {1, 1, []bool{false, false, false}},
		{3, 0, []bool{false, false, false}},
	} {
		t.Run(fmt.Sprintf("%d of %d", c.strangers, c.waiting), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newScript(membackend.New())
				b.release.set(func(s *releaseStep) {
					s.do()
					s.res.Counted, s.res.Waiting, s.res.Strangers = true, c.waiting, c.strangers
				})
				client := New(b, quiet())
				defer client.Close()
				must(t, doOnce(t.Context(), client, KindFenced)) // and learns who waits
				var left time.Time
				var atOnce []bool
				var running sync.WaitGroup
				for range len(c.atOnce) + 1 {
					running.Go(func() {
						must(t, client.FencedLocker("x").Do(t.Context(), func(
							context.Context,
						) error {
							if !left.IsZero() {
								atOnce = append(atOnce, time.Now().Equal(left))
							}
							time.Sleep(longestExcuse) // those who didn't come count again
							left = time.Now()
							return nil
						}))
					})
				}
				running.Wait()
				if !slices.Equal(atOnce, c.atOnce) {
					t.Errorf("turns follow at once: %v, want %v", atOnce, c.atOnce)
				}
			})
		})
	}
}

// How many releases a client lets pass depends on how many of the waiters are strangers, and on
// whether it hands such a lock on inside.
func TestReleasesThatPassBesideStrangers(t *testing.T) {
	for _, c := range []struct {
		kind               backend.Kind
		waiting, strangers int
		pass               int
	}{
		{KindPlain, 3, 0, 3}, {KindPlain, 3, 1, 4}, {KindPlain, 3, 2, 3}, {KindPlain, 3, 3, 2},
		{KindPlain, 1, 1, 1},
		{KindWrite, 3, 1, 4}, {KindWrite, 3, 3, 2},
		{KindFenced, 3, 0, 3}, {KindFenced, 3, 1, 4}, {KindFenced, 3, 2, 2}, {KindFenced, 3, 3, 1},
		{KindFenced, 1, 1, 1},
		{KindPermits, 3, 0, 3}, {KindPermits, 3, 1, 2}, {KindPermits, 3, 3, 1},
		{KindPermits, 1, 1, 1},
	} {
		t.Run(fmt.Sprintf("%v, %d of %d", c.kind, c.strangers, c.waiting), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newScript(membackend.New())
				b.release.set(func(s *releaseStep) {
					s.do()
					s.res.Counted, s.res.Waiting, s.res.Strangers = true, c.waiting, c.strangers
				})
				client := New(b, quiet())
				defer client.Close()
				must(t, doOnce(t.Context(), client, c.kind))
				key := lockKey{protocol.Kind(c.kind).Family(), "x"}
				client.mu.Lock()
				defer client.mu.Unlock()
				cr := client.state.crowds[key]
				if cr == nil {
					t.Fatal("nobody is let pass")
				}
				// It doesn't listen, so the message of its own release isn't among those that it
				// hears.
				if got := cr.skip + 1; got != c.pass {
					t.Errorf("%d releases pass, want %d", got, c.pass)
				}
			})
		})
	}
}

// doOnce has the lock x once, of whatever kind.
func doOnce(ctx context.Context, c *Client, kind Kind) error {
	nothing := func(context.Context) error { return nil }
	switch kind {
	case KindFenced:
		return c.FencedLocker("x").Do(ctx, nothing)
	case KindWrite:
		return c.RWLocker("x").Writer().Do(ctx, nothing)
	case KindPermits:
		return c.Semaphore("x", 2).Do(ctx, 1, nothing)
	default:
		return c.Locker("x").Do(ctx, nothing)
	}
}
