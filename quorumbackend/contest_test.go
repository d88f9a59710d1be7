package quorumbackend_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/dlock"
	"github.com/seed951563bd/distsync/quorumbackend"
)

// contests has the session learn that others want the lock "n", too.
func (x tester) contests() {
	x.Helper()
	x.acquires(alice, true)
	x.acquires(bob, false)
	x.releases(alice, backend.Freed)
}

// asked takes a step while the stores hang. It returns how many requests each had before any has
// answered.
func (x tester) asked(stores []*ill, step func()) (n [3]int) {
	x.Helper()
	for _, s := range stores {
		s.steps()
		s.hang()
	}
	time.AfterFunc(time.Millisecond, func() {
		for i, s := range stores {
			n[i] = len(s.steps())
		}
		for _, s := range stores {
			s.wake()
		}
	})
	step()
	return n
}

// wantAsked checks in which stores the steps of a lock begin.
func (x tester) wantAsked(stores []*ill, when string, acquire, release [3]int) {
	x.Helper()
	if n := x.asked(stores, func() { x.acquires(alice, true) }); n != acquire {
		x.Errorf("%s: before any store has answered an acquisition they had %v requests; want %v",
			when, n, acquire)
	}
	if n := x.asked(stores, func() { x.releases(alice, backend.Freed) }); n != release {
		x.Errorf("%s: before any store has answered a release they had %v requests; want %v",
			when, n, release)
	}
	x.wantHeld(stores, 0)
}

var (
	allAtOnce   = [3]int{1, 1, 1}
	firstBefore = [3]int{1, 0, 0}
	firstAfter  = [3]int{0, 1, 1}
)

// The stores are asked at once for a lock, and for its release. For a while after a sign that
// others want it, one store is asked for it before the others, and is released after them.
func TestAllStoresAreAskedAtOnce(t *testing.T) {
	for name, contest := range map[string]func(stores []*ill, a, other tester){
		"an attempt was refused": func(_ []*ill, a, other tester) {
			other.acquires(bob, true)
			a.acquires(alice, false)
			other.releases(bob, backend.Freed)
		},
		"one store refused an attempt": func(stores []*ill, a, _ tester) {
			foe := a.direct(stores[2])
			a.gets(foe, backend.Exclusive, bob, lease, true)
			a.acquires(alice, true)
			a.gives(foe, backend.Exclusive, bob, backend.Freed)
			a.releases(alice, backend.Freed)
		},
		"a release was told that another waits": func(_ []*ill, a, other tester) {
			sub, err := other.s.(backend.Notifier).Subscribe(a.Context(), backend.SubscribeRequest{
				Name: "n", Wake: func(backend.Wakeup) {},
			})
			if err != nil {
				a.Fatal(err)
			}
			defer sub.Close()
			a.acquires(alice, true)
			res, err := a.s.Release(a.Context(), backend.ReleaseRequest{
				Name: "n", Owner: alice, Lease: lease, AskWaiting: true,
			})
			if err != nil || res.Waiting != 1 {
				a.Fatalf("Release: %+v, %v; want one that waits", res, err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				stores, b := illStores()
				a, other := open(t, b), open(t, b)
				for range 2 {
					a.wantAsked(stores, "nobody else wants it", allAtOnce, allAtOnce)
				}
				contest(stores, a, other)
				begin := time.Now()
				for range 2 {
					a.wantAsked(stores, name, firstBefore, firstAfter)
				}
				time.Sleep(quorumbackend.ContestFor - 10*time.Millisecond - time.Since(begin))
				a.wantAsked(stores, name+" a while ago", firstBefore, firstAfter)
				time.Sleep(10 * time.Millisecond)
				for range 2 {
					a.wantAsked(stores, name+" long ago", allAtOnce, allAtOnce)
				}
			})
		})
	}
}

// Read-write locks are always asked for in order, since a writer that waits leaves its note in one
// store only.
func TestReadsAndWritesAreAskedInOrder(t *testing.T) {
	for _, k := range []backend.Kind{backend.Read, backend.Write} {
		synctest.Test(t, func(t *testing.T) {
			stores, b := illStores()
			a := open(t, b)
			n := a.asked(stores, func() { a.gets(a.s, k, alice, lease, true) })
			if n != firstBefore {
				t.Errorf("%v: before any store has answered they had %v requests", k, n)
			}
			n = a.asked(stores, func() { a.gives(a.s, k, alice, backend.Freed) })
			if n != firstAfter {
				t.Errorf("%v: before any store has answered its release they had %v requests", k,
					n)
			}
		})
	}
}

// If a store can't tell waiters of a release, another store does so after the release there.
func TestReleaseWhereAStoreIsDeaf(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stores, _ := illStores()
		home := quorumbackend.Home("n", len(stores))
		backends := make([]backend.Backend, len(stores))
		for i, s := range stores {
			backends[(home+i)%len(stores)] = s
		}
		backends[(home+1)%len(stores)] = deaf{stores[1]}
		a := open(t, quorumbackend.New(backends...))
		a.wantAsked(stores, "one is deaf", allAtOnce, firstAfter)
	})
}

// A lock is held while one store is down. Another client doesn't ask that store for it, since the
// other stores refuse.
func TestNobodyAsksInVain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stores, b := illStores()
		a, other := open(t, b), open(t, b)
		a.acquires(alice, true)
		stores[2].fail(errDown)
		if _, err := other.s.Look(t.Context(), backend.LookRequest{Name: "n"}); err != nil {
			t.Fatal(err)
		}
		stores[2].steps()
		other.acquires(bob, false)
		for _, what := range stores[2].steps() {
			if strings.HasPrefix(what, "acquire ") {
				t.Errorf("a store that is down was asked to %s", what)
			}
		}
	})
}

// waysOf returns backends over the same three stores, each with its own way to each store. The ways
// are in the order in which the stores are asked for the lock "n".
func waysOf(n int) (ways [][]*ill, backends []backend.Backend) {
	stores, _ := illStores()
	for range n {
		mine, b := illStores()
		for i, s := range mine {
			s.Backend = stores[i].Backend
		}
		ways, backends = append(ways, mine), append(backends, b)
	}
	return ways, backends
}

// A contest is long over, and the first store has a leftover now. Its refusal isn't believed alone,
// though the lock was acquired in the other stores.
func TestLeftoverAfterAContest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stores, b := illStores()
		a := open(t, b)
		a.contests()
		time.Sleep(quorumbackend.ContestFor)
		a.gets(a.direct(stores[0]), backend.Exclusive, bob, time.Hour, true)
		for range 3 {
			a.acquires(alice, true)
			a.releases(alice, backend.Freed)
		}
	})
}

// Three ask for a lock at the same time, and each gets one vote of three. Then each asks the first
// store first. So one of them gets the lock, without another call.
func TestEachHasOneVote(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ways, backends := waysOf(3)
		const split, freed = 2 * time.Millisecond, 3 * time.Millisecond
		var all sync.WaitGroup
		var mu sync.Mutex
		begin, got := time.Now(), 0
		again := make([][]int, len(ways)) // the stores that each asks again
		for i, b := range backends {
			x, owner := open(t, b), fmt.Sprint("owner ", i)
			for j, s := range ways[i] {
				if j == i { // it grants the lock, and gets it back when all have been refused
					time.AfterFunc(time.Millisecond, s.hang)
					time.AfterFunc(freed, s.wake)
				} else {
					s.hang()
					time.AfterFunc(split, s.wake)
				}
				s.then(func(what string) {
					mu.Lock()
					defer mu.Unlock()
					if time.Since(begin) >= split && strings.HasPrefix(what, "acquire ") {
						again[i] = append(again[i], j)
					}
				})
			}
			all.Go(func() {
				res, err := x.s.Acquire(t.Context(), acquire(owner))
				if err != nil {
					t.Error(err)
				}
				mu.Lock()
				defer mu.Unlock()
				if res.Acquired {
					got++
				}
			})
		}
		all.Wait()
		if got != 1 {
			t.Errorf("%d of three got the lock; want one", got)
		}
		for i, at := range again {
			if len(at) == 0 || at[0] != 0 {
				t.Errorf("owner %d asked the stores %v again; want the first before others", i, at)
			}
		}
	})
}

// Five clients take turns while one store of three hangs. Votes that are split cost a moment, not
// the rest of a lease.
func TestContendersBesideAStoreThatHangs(t *testing.T) {
	for victim := range 3 {
		t.Run(fmt.Sprint("store ", victim+1), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ways, backends := waysOf(5)
				var all sync.WaitGroup
				var mu sync.Mutex
				begin, longest := time.Now(), time.Duration(0)
				free := begin
				for i, b := range backends {
					for j, s := range ways[i] {
						s.then(func(string) { time.Sleep(rand.N(2 * time.Millisecond)) })
						if j == victim {
							s.hang()
						}
					}
					client := dlock.New(b, dlock.WithLease(lease))
					all.Go(func() {
						defer client.Close()
						for time.Since(begin) < 4*time.Second {
							err := client.Locker("n").Do(t.Context(), func(context.Context) error {
								mu.Lock()
								if time.Since(begin) < 4*time.Second { // otherwise some have left
									longest = max(longest, time.Since(free))
								}
								mu.Unlock()
								time.Sleep(rand.N(10 * time.Millisecond))
								mu.Lock()
								free = time.Now()
								mu.Unlock()
								return nil
							})
							if err != nil {
								t.Error(err)
							}
							time.Sleep(rand.N(10 * time.Millisecond))
						}
					})
				}
				all.Wait()
				if longest > 500*time.Millisecond {
					t.Errorf("nobody had the lock for %v, though some waited", longest)
				}
				for _, mine := range ways {
					mine[victim].wake()
				}
			})
		})
	}
}

// lateReleases lets a release get to the first store at once, and to the others after a while.
func (x tester) lateReleases(stores []*ill, after time.Duration) (done chan struct{}) {
	x.Helper()
	for _, s := range stores[1:] {
		s.hang()
	}
	done = make(chan struct{})
	go func() {
		defer close(done)
		x.releases(alice, backend.Freed)
	}()
	synctest.Wait()
	for _, s := range stores[1:] {
		time.AfterFunc(after, s.leave())
	}
	return done
}

// A client waits, and the holder doesn't know. The release gets to the first store before the
// others, and wakes the client too early. It gets the lock all the same once it is free.
func TestReleaseBesideAWaiterNobodyKnows(t *testing.T) {
	for _, after := range []time.Duration{time.Millisecond, 15 * time.Millisecond,
		70 * time.Millisecond} {
		t.Run(after.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				stores, b := illStores()
				a := open(t, b)
				client := dlock.New(b, dlock.WithLease(lease))
				defer client.Close()
				a.acquires(alice, true)
				var got time.Time
				var all sync.WaitGroup
				all.Go(func() {
					err := client.Locker("n").Do(t.Context(), func(context.Context) error {
						got = time.Now()
						return nil
					})
					if err != nil {
						t.Error(err)
					}
				})
				time.Sleep(5 * time.Second)
				begin := time.Now()
				done := a.lateReleases(stores, after)
				<-done
				all.Wait()
				if took := got.Sub(begin); took > after+100*time.Millisecond {
					t.Errorf("it got the lock %v after its release began", took)
				}
			})
		})
	}
}

// A release gets to the first store before the others. A client that only watches finds the lock
// free when it is told.
func TestReleaseBesideAWatcher(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stores, b := illStores()
		a, other := open(t, b), open(t, b)
		a.acquires(alice, true)
		told := make(chan struct{}, 100)
		sub, err := other.s.(backend.Notifier).Subscribe(t.Context(), backend.SubscribeRequest{
			Name: "n", Watches: true, Wake: func(backend.Wakeup) { told <- struct{}{} },
		})
		if err != nil {
			t.Fatal(err)
		}
		defer sub.Close()
		done := a.lateReleases(stores, 15*time.Millisecond)
		<-told
		res, err := other.s.Look(t.Context(), backend.LookRequest{Name: "n"})
		if err != nil || res.Held {
			t.Errorf("Look after a message about a release: %+v, %v; want free", res, err)
		}
		<-done
	})
}
