package quorumbackend_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/quorumbackend"
)

// direct opens a session on one store, past the quorum.
func (x tester) direct(s *ill) backend.Session {
	x.Helper()
	session := s.Backend.Open()
	x.Cleanup(func() { session.Close() })
	return session
}

// wantNames checks that stores know the lock "n" by the name that the first of them has for it.
func (x tester) wantNames(stores ...*ill) {
	x.Helper()
	synctest.Wait()
	for _, s := range stores {
		if got, want := s.held(x.T), stores[0].held(x.T); got != want || got == "" {
			x.Fatalf("a store has %q held, another %q", got, want)
		}
	}
}

// The ways to renew a hold.
var renewals = map[string]func(tester, context.Context, time.Duration) (bool, error){
	"one":   tester.renewOne,
	"batch": tester.renewBatch,
	"re-entry": func(x tester, ctx context.Context, lease time.Duration) (bool, error) {
		res, err := x.s.Acquire(ctx, backend.AcquireRequest{
			Name: "n", Owner: alice, Lease: lease, Reentry: true,
		})
		return res.Acquired, err
	},
}

// A store that lacks a hold has it again after a renewal, whatever the reason was. So the hold
// stands the loss of another store after that, and nothing is left behind in any.
func TestRenewalRepairs(t *testing.T) {
	for name, harm := range map[string]func(a tester, at *ill, acquire func()){
		"it was down": func(a tester, at *ill, acquire func()) {
			at.fail(errDown)
			acquire()
			at.fail(nil)
		},
		"it had failed just before": func(a tester, at *ill, acquire func()) {
			at.fail(errDown)
			acquire()
			a.releases(alice, backend.Freed)
			at.fail(nil)
			acquire() // it isn't asked, as it is believed to be down
		},
		"another had it": func(a tester, at *ill, acquire func()) {
			foe := a.direct(at)
			a.gets(foe, backend.Exclusive, bob, lease, true)
			acquire()
			a.gives(foe, backend.Exclusive, bob, backend.Freed)
		},
		"it has lost it": func(a tester, at *ill, acquire func()) {
			acquire()
			at.wipe(a.T)
		},
		"it was slow, and has lost it": func(a tester, at *ill, acquire func()) {
			at.hang()
			acquire()
			at.wake()
			synctest.Wait()
			at.wipe(a.T)
		},
		"it has lost it twice": func(a tester, at *ill, acquire func()) {
			acquire()
			for range 2 {
				at.wipe(a.T)
				a.renews(alice, true)
				synctest.Wait()
			}
			at.wipe(a.T)
		},
	} {
		for how, renew := range renewals {
			for i := range 3 {
				t.Run(fmt.Sprintf("%s, store %d, %s", name, i+1, how), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						stores, b := illStores()
						a := open(t, b)
						harm(a, stores[i], func() { a.acquires(alice, true) })
						if held, err := renew(a, t.Context(), lease); !held || err != nil {
							t.Fatal(held, err)
						}
						a.wantNames(stores...)
						for _, s := range stores {
							if s != stores[i] {
								s.wipe(t)
								break
							}
						}
						a.renews(alice, true)
						a.wantNames(stores...)
						if how == "re-entry" {
							a.releases(alice, backend.Left)
						}
						a.releases(alice, backend.Freed)
						synctest.Wait()
						a.wantHeld(stores, 0)
					})
				})
			}
		}
	}
}

// A store that lacks a hold is asked for it at each renewal, until it has it.
func TestRepairIsTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stores, b := illStores()
		a := open(t, b)
		foe := a.direct(stores[2])
		a.gets(foe, backend.Exclusive, bob, lease, true)
		a.acquires(alice, true)
		for _, harm := range []func(){
			func() {}, // another has it there
			func() { a.gives(foe, backend.Exclusive, bob, backend.Freed); stores[2].fail(errDown) },
			func() { stores[2].fail(errors.New("connection lost")) },
		} {
			harm()
			a.renews(alice, true)
			time.Sleep(2 * time.Second)
			if got := stores[2].held(t); strings.HasPrefix(got, alice) {
				t.Fatalf("a store that doesn't answer has it held by %s", got)
			}
		}
		stores[2].fail(nil)
		// it may have carried out the last request, so it is asked whether it has
		a.renews(alice, true)
		synctest.Wait()
		a.renews(alice, true)
		a.wantNames(stores...)
	})
}

// A store that has lacked a hold, and has it again, counts as one that lacks it, too, until a
// majority of others has said since that it is held: while it lacked it another may have got the
// lock there, and in a store that loses the hold before it is asked. So when that says so the hold
// is lost.
func TestStruckStore(t *testing.T) {
	for name, c := range map[string]struct {
		between func(stores []*ill, a tester)
		held    bool
	}{
		"nobody has confirmed it": {func([]*ill, tester) {}, false},
		"itself and one other have": {func(stores []*ill, a tester) {
			stores[1].fail(errDown)
			a.renews(alice, true) // it counts
			stores[1].fail(nil)
		}, false},
		"nobody has, and it has said so late": {func(stores []*ill, a tester) {
			stores[2].wipe(a.T)
			stores[2].then(func(what string) { // the answer to a renewal; what comes next hangs
				stores[2].then(nil)
				stores[2].hang()
			})
			a.renews(alice, true)
			synctest.Wait()
			repair := stores[2].leave()
			time.Sleep(2 * time.Second)
			repair()
			synctest.Wait()
			stores[1].fail(errDown)
			a.renews(alice, true) // so it is known that it has it
			stores[1].fail(nil)
		}, false},
		"two others have, before": {func(stores []*ill, a tester) {
			stores[2].wipe(a.T)
			stores[1].hang()
			done := make(chan struct{})
			go func() {
				defer close(done)
				a.renewBatch(a.Context(), lease)
			}()
			synctest.Wait()
			renewal := stores[1].leave()
			failAfterRepair(stores)
			a.renews(alice, true)
			synctest.Wait()
			renewal()
			<-done
			for _, s := range stores {
				s.fail(nil)
			}
			synctest.Wait()
		}, false},
		"two others have": {func(stores []*ill, a tester) { a.renews(alice, true) }, true},
	} {
		for _, how := range []string{"one", "batch"} {
			t.Run(name+", "+how, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					stores, b := illStores()
					a := open(t, b)
					a.acquires(alice, true)
					stores[2].wipe(t)
					failAfterRepair(stores)
					a.renews(alice, true)
					synctest.Wait()
					if stores[2].held(t) == "" {
						t.Fatal("it wasn't asked for it again")
					}
					for _, s := range stores {
						s.fail(nil)
					}
					time.Sleep(2 * time.Second) // nothing is believed to be down
					c.between(stores, a)
					time.Sleep(2 * time.Second)
					stores[1].wipe(t)
					var held bool
					for range 2 { // a renewal may not wait for the third answer
						var err error
						if held, err = renewals[how](a, t.Context(), lease); err != nil {
							t.Fatal(err)
						}
						synctest.Wait()
					}
					if held != c.held {
						t.Errorf("held %v; want %v", held, c.held)
					}
				})
			})
		}
	}
}

// failAfterRepair has the first two of three stores fail once the third has been asked for what it
// lacks: so they don't say that they have it.
func failAfterRepair(stores []*ill) {
	stores[2].then(func(what string) {
		if strings.HasPrefix(what, "acquire ") {
			stores[0].fail(errDown)
			stores[1].fail(errDown)
			stores[2].then(nil)
		}
	})
}

// A repair that gets there after the hold is over is given back as soon as that is known.
func TestLateRepair(t *testing.T) {
	for name, end := range map[string]func(stores []*ill, a tester){
		"released": func(stores []*ill, a tester) { a.releases(alice, backend.Freed) },
		"lost": func(stores []*ill, a tester) {
			stores[0].wipe(a.T)
			stores[1].wipe(a.T)
			a.renews(alice, false)
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				stores, b := illStores()
				a, other := open(t, b), open(t, b)
				a.acquires(alice, true)
				stores[2].wipe(t)
				stores[2].then(func(what string) {
					if strings.HasPrefix(what, "renew ") {
						stores[2].hang()
					}
				})
				a.renews(alice, true)
				synctest.Wait()
				stores[2].then(nil)
				repair := stores[2].leave()
				end(stores, a)
				repair()
				synctest.Wait()
				time.Sleep(100 * time.Millisecond)
				a.wantHeld(stores, 0)
				other.acquires(bob, true)
			})
		})
	}
}

// A store carries out both the acquisition and the repair, which count there: a release gives back
// both.
func TestRepairBesideALateAcquisition(t *testing.T) {
	for _, lost := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			stores, b := illStores()
			a := open(t, b)
			stores[2].hang()
			a.acquires(alice, true)
			acquisition := stores[2].leave()
			time.Sleep(2 * time.Second)
			a.renews(alice, true) // it doesn't have it
			synctest.Wait()
			a.wantNames(stores...)
			acquisition()
			synctest.Wait()
			if lost {
				stores[0].wipe(t)
				stores[1].wipe(t)
				a.renews(alice, false)
			} else {
				a.releases(alice, backend.Freed)
			}
			synctest.Wait()
			time.Sleep(100 * time.Millisecond)
			a.wantHeld(stores, 0)
		})
	}
}

// A read under a write isn't asked for again while its owner writes: what comes late of it couldn't
// be told from the next one. When the write is over it is.
func TestRepairOfAReadUnderAWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stores, b := illStores()
		a := open(t, b)
		a.gets(a.s, backend.Write, alice, lease, true)
		a.gets(a.s, backend.Read, alice, lease, true)
		stores[2].Wipe()
		renew := func() {
			t.Helper()
			req := backend.RenewRequest{Kind: backend.Read, Name: "n", Owner: alice, Lease: lease}
			if res, err := a.s.Renew(t.Context(), req); err != nil || !res.Held {
				t.Fatalf("Renew: %+v, %v", res, err)
			}
			synctest.Wait()
		}
		renew()
		a.wantHeld(stores, 2)
		a.gives(a.s, backend.Write, alice, backend.Freed)
		renew()
		a.wantHeld(stores, 3)
		stores[0].Wipe()
		renew()
		a.gives(a.s, backend.Read, alice, backend.Freed)
		synctest.Wait()
		a.wantHeld(stores, 0)
	})
}

// A store that is back is asked for many holds, but not for all at once, and for no more if it
// doesn't answer.
func TestManyRepairs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stores, b := illStores()
		a := open(t, b)
		const many = 200
		reqs := make([]backend.RenewRequest, many)
		for i := range reqs {
			reqs[i] = backend.RenewRequest{Name: fmt.Sprint("n", i), Owner: alice, Lease: lease}
			res, err := a.s.Acquire(t.Context(), backend.AcquireRequest{
				Name: reqs[i].Name, Owner: alice, Lease: lease,
			})
			if err != nil || !res.Acquired {
				t.Fatal(res, err)
			}
		}
		renew := func() {
			a.s.(backend.BatchRenewer).RenewBatch(t.Context(), reqs, func(
				i int, res backend.RenewResult, err error,
			) {
				if err != nil || !res.Held {
					t.Errorf("%s: %+v, %v", reqs[i].Name, res, err)
				}
			})
		}
		asked := func() (n int) {
			synctest.Wait()
			for _, what := range stores[1].steps() {
				if strings.HasPrefix(what, "acquire ") {
					n++
				}
			}
			return n
		}
		stores[1].Wipe()
		asked()
		answer := make(chan struct{})
		stores[1].then(func(what string) {
			if strings.HasPrefix(what, "acquire ") {
				<-answer
			}
		})
		renew()
		const most = quorumbackend.MostMenders
		if n := asked(); n != most {
			t.Errorf("asked for %d at once; want %d", n, most)
		}
		stores[1].hang()
		close(answer)
		time.Sleep(10 * time.Second)
		if n := asked(); n > most {
			t.Errorf("asked for %d more, though it doesn't answer; want %d at the most", n, most)
		}
		stores[1].wake()
		renew()
		synctest.Wait()
		renew()
		synctest.Wait()
		stores[0].Wipe()
		renew()
		synctest.Wait()
		for _, req := range reqs {
			if res, err := a.s.Release(t.Context(), backend.ReleaseRequest{
				Name: req.Name, Owner: alice, Lease: lease,
			}); err != nil || res.Outcome != backend.Freed {
				t.Fatal(res, err)
			}
		}
	})
}
