package quorumbackend_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/dlock"
	"github.com/seed951563bd/distsync/quorumbackend"
)

// The store that is asked first keeps nobody out alone: whatever it has, the lock is had in the
// others.
func TestLeftoverInTheFirstStore(t *testing.T) {
	kinds := []backend.Kind{backend.Exclusive, backend.Write, backend.Read}
	for _, leftover := range []time.Duration{lease, 10 * lease} {
		for _, k := range kinds {
			t.Run(k.String()+", "+leftover.String(), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					stores, b := illStores()
					a, other := open(t, b), open(t, b)
					left := k
					if k == backend.Read {
						left = backend.Write
					}
					a.gets(a.direct(stores[0]), left, bob, leftover, true)
					begin := time.Now()
					for range 3 {
						time.Sleep(time.Second) // so that it looks at the others anew
						a.gets(a.s, k, alice, lease, true)
						if k != backend.Read {
							other.gets(other.s, k, bob, lease, false)
						}
						a.gives(a.s, k, alice, backend.Freed)
						if k == backend.Write {
							time.Sleep(time.Second)
						}
						other.gets(other.s, k, bob, lease, true)
						other.gives(other.s, k, bob, backend.Freed)
					}
					if took := time.Since(begin); took > 7*time.Second {
						t.Errorf("took %v", took)
					}
				})
			})
		}
	}
}

// The store that is asked first has a leftover. In the others the name is a lock of another kind:
// that is said, and isn't taken for a lock that will be free.
func TestLeftoverBesideAnotherKind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stores, b := illStores()
		a := open(t, b)
		a.gets(a.direct(stores[0]), backend.Exclusive, bob, time.Hour, true)
		for _, st := range stores[1:] {
			a.gets(a.direct(st), backend.Write, bob, time.Hour, true)
		}
		res, err := a.s.Acquire(t.Context(), backend.AcquireRequest{
			Name: "n", Owner: alice, Lease: lease,
		})
		if !errors.Is(err, backend.ErrConflict) || backend.KindOf(err) != backend.Refused {
			t.Errorf("%+v, %v; want a conflict", res, err)
		}
	})
}

// A lock is released while the store that is asked first hangs, and the session ends. When that
// store is back it still has the hold, and nobody waits for the end of that.
func TestReleaseWhileTheFirstStoreHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stores, b := illStores()
		s := b.Open()
		a, other := tester{t, s}, open(t, b)
		a.acquires(alice, true)
		stores[0].hang()
		a.releases(alice, backend.Freed)
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		release := stores[0].leave()
		a.wantHeld(stores, 1)
		if res, err := other.s.Look(t.Context(), backend.LookRequest{Name: "n"}); err != nil ||
			res.Held {
			t.Errorf("Look: %+v, %v; want free", res, err)
		}
		other.acquires(bob, true)
		other.releases(bob, backend.Freed)
		release()
		synctest.Wait()
		a.wantHeld(stores, 0)
	})
}

// The store that is asked first has a leftover of a lock. Clients that wait for the lock hear when
// it is released elsewhere. None waits until it would look by itself, after ten seconds.
func TestWaitersBesideALeftover(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stores, b := illStores()
		x := open(t, b)
		x.gets(x.direct(stores[0]), backend.Exclusive, bob, time.Hour, true)
		begin := time.Now()
		const clients, turns = 4, 25
		var all sync.WaitGroup
		for range clients {
			client := dlock.New(b, dlock.WithLease(lease))
			all.Go(func() {
				defer client.Close()
				for range turns {
					err := client.Locker("n").Do(t.Context(), func(context.Context) error {
						time.Sleep(50 * time.Millisecond)
						return nil
					})
					if err != nil {
						t.Error(err)
					}
				}
			})
		}
		all.Wait()
		if took := time.Since(begin); took >= lease/3 {
			t.Errorf("%d turns of 50 ms took %v: somebody had to look by itself", clients*turns,
				took)
		}
	})
}

// A writer that waits keeps new readers out, though nobody has the lock: its note is in one store
// only.
func TestNoteKeepsReadersOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, b := illStores()
		a, other := open(t, b), open(t, b)
		a.gets(a.s, backend.Read, alice, lease, true)
		write := backend.AcquireRequest{
			Kind: backend.Write, Name: "n", Owner: bob, Lease: lease, Place: time.Minute,
		}
		if res, err := other.s.Acquire(t.Context(), write); err != nil || res.Acquired {
			t.Fatal(res, err)
		}
		a.gives(a.s, backend.Read, alice, backend.Freed)
		time.Sleep(time.Second)
		a.gets(a.s, backend.Read, alice, lease, false)
	})
}

// If two have a vote each, neither keeps it to wait for a store that hangs.
func TestSplitVotesBesideAStoreThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stores, b := illStores()
		a, other := open(t, b), open(t, b)
		foe := a.direct(stores[2])
		a.gets(foe, backend.Exclusive, "foe", lease, true) // so both ask in order from now on
		other.acquires(bob, true)                          // so it is known how fast they are
		other.releases(bob, backend.Freed)
		stores[1].fail(errDown)
		a.acquires(alice, false)
		stores[1].fail(nil) // a believes it to be down, and asks the third before it
		a.gives(foe, backend.Exclusive, "foe", backend.Freed)
		stores[0].hang()
		defer stores[0].wake()
		var voted sync.WaitGroup // each has its first vote before either hears of it
		voted.Add(2)
		for _, s := range stores[1:] {
			once := sync.OnceFunc(func() { voted.Done(); voted.Wait() })
			s.then(func(what string) {
				if strings.HasPrefix(what, "acquire ") {
					once()
				}
			})
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		begin := time.Now()
		var both sync.WaitGroup
		for _, x := range []struct {
			tester
			owner string
		}{{a, alice}, {other, bob}} {
			both.Go(func() {
				for n := 1; ; n++ {
					res, err := x.s.Acquire(ctx, acquire(x.owner))
					switch {
					case err != nil || n > 20:
						t.Errorf("attempt %d by %s: %+v, %v", n, x.owner, res, err)
						return
					case res.Acquired:
						x.releases(x.owner, backend.Freed)
						return
					case res.Remaining > time.Second:
						t.Errorf("attempt %d by %s: not again for %v", n, x.owner, res.Remaining)
					}
					time.Sleep(res.Remaining)
				}
			})
		}
		both.Wait()
		if took := time.Since(begin); took > 5*time.Second {
			t.Errorf("both had the lock after %v", took)
		}
	})
}

// Where one store has failed, and another hangs, no vote is kept for longer than a moment: neither
// that of an attempt, nor one that a release has yet to give back.
func TestVoteBesideAFailureAndAStoreThatHangs(t *testing.T) {
	for name, step := range map[string]func(ctx context.Context, stores []*ill, a tester) error{
		"attempt": func(ctx context.Context, _ []*ill, a tester) error {
			_, err := a.s.Acquire(ctx, acquire(alice))
			return err
		},
		"release": func(ctx context.Context, _ []*ill, a tester) error {
			_, err := a.s.Release(ctx, backend.ReleaseRequest{
				Name: "n", Owner: alice, Lease: lease,
			})
			return err
		},
		"renewal": func(ctx context.Context, _ []*ill, a tester) error {
			_, err := a.renewOne(ctx, lease)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				stores, b := illStores()
				a := open(t, b)
				if name != "attempt" {
					a.acquires(alice, true)
				}
				stores[0].hang()
				defer stores[0].wake()
				stores[1].fail(errors.New("connection lost"))
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				begin := time.Now()
				err := step(ctx, stores, a)
				if a.fails(err, backend.Unknown); time.Since(begin) > 5*time.Second {
					t.Errorf("took %v", time.Since(begin))
				}
				if name == "renewal" {
					return
				}
				if got := stores[2].held(t); got != "" {
					t.Errorf("the third store has it held by %s", got)
				}
			})
		})
	}
}

// Another owner has a lock in the stores whose holds end at the same time. If no majority has such
// holds, the attempt is soon worth repeating. Otherwise a waiter listens where that owner releases.
func TestWhoseHoldsEndTogether(t *testing.T) {
	for _, c := range []struct {
		text   string
		leases [3]time.Duration // of the holds in the stores
		soon   bool
		at     []int // the stores of which a waiter listens to one
	}{
		{"in all", [3]time.Duration{lease, lease, lease}, false, []int{0}},
		{"and a leftover in another store", [3]time.Duration{lease, time.Hour, lease}, false,
			[]int{0}},
		{"and a leftover in the first", [3]time.Duration{time.Hour, lease, lease}, false,
			[]int{1, 2}},
		{"and a leftover in the first that ends early",
			[3]time.Duration{lease / 3, lease, lease}, false, []int{1, 2}},
		{"in none", [3]time.Duration{lease, time.Hour, 2 * lease}, true, nil},
	} {
		t.Run(c.text, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				stores, b := illStores()
				a := open(t, b)
				held := make([]backend.Session, len(stores))
				for i, s := range stores {
					held[i] = a.direct(s)
					a.gets(held[i], backend.Exclusive, bob, c.leases[i], true)
				}
				woken := make(chan struct{}, 100)
				sub, err := a.s.(backend.Notifier).Subscribe(t.Context(), backend.SubscribeRequest{
					Name: "n", Wake: func(backend.Wakeup) { woken <- struct{}{} },
				})
				if err != nil {
					t.Fatal(err)
				}
				defer sub.Close()
				res := a.acquires(alice, false)
				if soon := res.Remaining < time.Second; soon != c.soon {
					t.Errorf("not again for %v; want soon %v", res.Remaining, c.soon)
				}
				if c.soon {
					return
				}
				if res.Remaining != lease { // before that no majority is free
					t.Errorf("not again for %v; want %v", res.Remaining, lease)
				}
				synctest.Wait()
				for len(woken) > 0 { // it is woken when it has moved
					<-woken
				}
				heard := -1
				for i, s := range held {
					a.gives(s, backend.Exclusive, bob, backend.Freed)
					if synctest.Wait(); len(woken) > 0 && heard < 0 {
						heard = i
					}
				}
				if !slices.Contains(c.at, heard) {
					t.Errorf("it listens at store %d; want one of %v", heard, c.at)
				}
			})
		})
	}
}

// Votes that were split are asked for again after a pause that differs from one to the next, and
// grows; wake-ups wait for that, too.
func TestPauseAfterASplitVote(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stores, b := illStores()
		a := open(t, b)
		a.gets(a.direct(stores[1]), backend.Exclusive, bob, time.Hour, true)
		stores[2].fail(errDown)
		var pauses []time.Duration
		woken := make(chan time.Time, 100)
		sub, err := a.s.(backend.Notifier).Subscribe(t.Context(), backend.SubscribeRequest{
			Name: "n", Wake: func(backend.Wakeup) { woken <- time.Now() },
		})
		if err != nil {
			t.Fatal(err)
		}
		defer sub.Close()
		for range 20 {
			begin := time.Now()
			res := a.acquires(alice, false)
			at := <-woken // it has heard what it gave back itself
			if res.Remaining < quorumbackend.LeastSplit ||
				at.Sub(begin) < quorumbackend.LeastSplit {
				t.Errorf("not again for %v, and woken after %v; want %v or more", res.Remaining,
					at.Sub(begin), quorumbackend.LeastSplit)
			}
			pauses = append(pauses, res.Remaining)
			time.Sleep(time.Second)
			for len(woken) > 0 {
				<-woken
			}
		}
		same, longest := true, time.Duration(0)
		for _, p := range pauses {
			same, longest = same && p == pauses[0], max(longest, p)
		}
		if same || longest < 4*quorumbackend.LeastSplit {
			t.Errorf("pauses %v", pauses)
		}
	})
}

// A store that had become slow, and then hangs, is waited for no longer than the others, which are
// quick.
func TestASlowStoreHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stores, b := illStores()
		s := b.Open()
		defer s.Close()
		acquire := func() (took time.Duration) {
			t.Helper()
			began := time.Now()
			res, err := s.Acquire(t.Context(), backend.AcquireRequest{
				Name: "n", Owner: alice, Lease: time.Hour,
			})
			if !res.Acquired || err != nil {
				t.Fatal(res, err)
			}
			return time.Since(began)
		}
		for range 8 {
			stores[0].hang()
			acquire()
			time.Sleep(900 * time.Millisecond) // the request goes on for a second
			stores[0].wake()
			time.Sleep(2 * time.Second) // the store isn't taken for down any more
			res, err := s.Release(t.Context(), backend.ReleaseRequest{
				Name: "n", Owner: alice, Lease: time.Hour,
			})
			if res.Outcome != backend.Freed || err != nil {
				t.Fatal(res, err)
			}
			time.Sleep(2 * time.Second)
		}
		stores[0].hang()
		if took := acquire(); took > time.Second {
			t.Errorf("an attempt waited for a store that hangs for %v", took)
		}
		stores[0].wake()
	})
}
