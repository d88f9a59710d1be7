package quorumbackend_test

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/membackend"
	"github.com/seed951563bd/distsync/quorumbackend"
)

// leave lets a store that hangs go on, but for what it was asked by now. It returns what has it do
// that.
func (s *ill) leave() (late func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	hangs := s.hangs
	s.hangs = nil
	return func() { close(hangs) }
}

// One store has forgotten a lock, and another is slow to say that it has it: nothing is known until
// it does.
func TestLookWaitsForAMajority(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stores, b := illStores()
		a := open(t, b)
		for late := range stores {
			for forgets := range stores {
				if late == forgets {
					continue
				}
				a.acquires(alice, true)
				synctest.Wait()
				stores[forgets].wipe(t)
				stores[late].hang()
				time.AfterFunc(5*time.Second, stores[late].wake)
				res, err := a.s.Look(t.Context(), backend.LookRequest{Name: "n", Owner: alice})
				if err != nil || !res.Held || res.Count != 1 {
					t.Errorf("store %d has forgotten it, and store %d is slow: %+v, %v", forgets,
						late, res, err)
				}
				time.Sleep(2 * time.Second) // nothing is believed to be down
				a.releases(alice, backend.Freed)
			}
		}
	})
}

// An acquisition comes after its store has said that it doesn't have the hold, and after that was
// released: it is given back.
func TestLateVoteOfAStruckStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stores, b := illStores()
		a := open(t, b)
		stores[2].hang()
		a.acquires(alice, true)
		late := stores[2].leave()
		time.Sleep(2 * time.Second)
		a.renews(alice, true)
		a.releases(alice, backend.Freed)
		synctest.Wait()
		late()
		synctest.Wait()
		a.wantHeld(stores, 1)
		time.Sleep(lease * 2 / 3)
		a.wantHeld(stores, 0)
	})
}

// inVain takes a step that two of three stores hang in, and are left with. It returns what has them
// carry it out.
func (x tester) inVain(stores []*ill, step func(context.Context) error) (late func()) {
	x.Helper()
	ctx, cancel := context.WithTimeout(x.Context(), time.Second)
	defer cancel()
	stores[1].hang()
	stores[2].hang()
	x.fails(step(ctx), backend.Unknown)
	one, two := stores[1].leave(), stores[2].leave()
	return func() { one(); two() }
}

// An unlock of one of two holds has no answer from a majority, and may yet shorten the lease: the
// other is still to be released, and isn't lost.
func TestPartialReleaseWithoutAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stores, b := illStores()
		a := open(t, b)
		a.acquires(alice, true)
		a.acquires(alice, true)
		late := a.inVain(stores, func(ctx context.Context) error {
			_, err := a.s.Release(ctx, backend.ReleaseRequest{
				Name: "n", Owner: alice, Lease: lease - time.Second,
			})
			return err
		})
		a.releases(alice, backend.Freed)
		a.wantHeld(stores, 0)
		late()
		synctest.Wait()
		a.wantHeld(stores, 0)
	})
}

// Stores that have a hold, and may yet carry out an older renewal of it with a shorter lease, don't
// promise a longer one; but nor is it lost.
func TestRenewalBehindAShorterOne(t *testing.T) {
	for name, renew := range oneAndBatch {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				stores, b := illStores()
				a := open(t, b)
				a.acquires(alice, true)
				const shorter = lease - time.Second
				late := a.inVain(stores, func(ctx context.Context) error {
					_, err := renew(a, ctx, shorter)
					return err
				})
				time.Sleep(2 * time.Second) // nothing is believed to be down
				held, err := renew(a, t.Context(), lease)
				if a.fails(err, backend.Unknown); held ||
					!strings.Contains(err.Error(), "a shorter lease may yet arrive") {
					t.Errorf("a longer lease: held %v, %v", held, err)
				}
				if held, err := renew(a, t.Context(), shorter); !held || err != nil {
					t.Errorf("the same lease: held %v, %v", held, err)
				}
				a.wantHeld(stores, 3)
				late()
				a.releases(alice, backend.Freed)
				a.wantHeld(stores, 0)
			})
		})
	}
}

// A store has renewed a hold, and lost it, as a later renewal was told. The answer to the first
// renewal comes after that, and is no vote: another may have got the lock with that store by then.
func TestLateAnswerOfAStruckStore(t *testing.T) {
	for name, renew := range oneAndBatch {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				stores, b := illStores()
				a := open(t, b)
				a.acquires(alice, true)
				stores[1].fail(errDown)
				answer, first := make(chan struct{}), make(chan bool)
				stores[2].then(func(string) { <-answer })
				go func() {
					held, err := renew(a, t.Context(), lease)
					first <- held && err == nil
				}()
				synctest.Wait()
				stores[2].wipe(t)
				stores[2].then(func(string) { stores[2].fail(errDown) }) // it isn't repaired
				if held, err := renew(a, t.Context(), lease); held || err == nil {
					t.Errorf("one of three stores has it: held %v, %v", held, err)
				}
				close(answer)
				if <-first {
					t.Error("it is held, by the word of a store that has lost it")
				}
			})
		})
	}
}

// oneAndBatch are the steps that renew a hold, and nothing else.
var oneAndBatch = map[string]func(tester, context.Context, time.Duration) (bool, error){
	"one":   tester.renewOne,
	"batch": tester.renewBatch,
}

func (x tester) renewOne(ctx context.Context, lease time.Duration) (bool, error) {
	res, err := x.s.Renew(ctx, backend.RenewRequest{Name: "n", Owner: alice, Lease: lease})
	return res.Held, err
}

func (x tester) renewBatch(ctx context.Context, lease time.Duration) (held bool, err error) {
	reqs := []backend.RenewRequest{{Name: "n", Owner: alice, Lease: lease}}
	x.s.(backend.BatchRenewer).RenewBatch(ctx, reqs, func(_ int, res backend.RenewResult, e error) {
		held, err = res.Held, e
	})
	return held, err
}

// A step that one store has carried out, and no majority, may have been carried out, and its error
// says so. Otherwise its caller would rely on a hold that is over, or is soon.
func TestPartlyCarriedOut(t *testing.T) {
	const shorter = lease - time.Second
	release := func(a tester) error {
		_, err := a.s.Release(a.Context(), backend.ReleaseRequest{
			Name: "n", Owner: alice, Lease: shorter,
		})
		return err
	}
	for _, c := range []struct {
		name  string
		holds int
		step  func(tester) error
	}{
		{"renew", 1, func(a tester) error {
			_, err := a.renewOne(a.Context(), shorter)
			return err
		}},
		{"batch", 1, func(a tester) error {
			_, err := a.renewBatch(a.Context(), shorter)
			return err
		}},
		{"re-entry", 1, func(a tester) error {
			_, err := a.s.Acquire(a.Context(), backend.AcquireRequest{
				Name: "n", Owner: alice, Lease: shorter, Reentry: true,
			})
			return err
		}},
		{"release of one of two", 2, release},
		{"release", 1, release},
		{"force", 1, func(a tester) error {
			_, err := a.s.ForceRelease(a.Context(), backend.ForceReleaseRequest{Name: "n"})
			return err
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				stores, b := illStores()
				a := open(t, b)
				for range c.holds {
					a.acquires(alice, true)
				}
				stores[0].fail(errDown)
				stores[2].fail(errDown)
				a.fails(c.step(a), backend.Unknown)
			})
		})
	}
}

// A renewal of what ran out long ago, and is forgotten, has an answer at last: it ends no hold but
// its own.
func TestRenewalOfAForgottenHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stores, b := illStores()
		a := open(t, b)
		acquireOther := func(i int) {
			name := "n" + strconv.Itoa(i)
			if res, err := a.s.Acquire(t.Context(), backend.AcquireRequest{
				Name: name, Owner: alice, Lease: time.Hour,
			}); err != nil || !res.Acquired {
				t.Fatal(res, err)
			}
		}
		a.acquires(alice, true)
		const many = 1024 // when a session has so many holds it forgets what is over
		for i := range many - 1 {
			acquireOther(i)
		}
		for _, s := range stores {
			s.hang()
		}
		done := make(chan struct{})
		go func() {
			defer close(done)
			a.renewBatch(t.Context(), lease)
		}()
		synctest.Wait()
		var late []func()
		for _, s := range stores {
			late = append(late, s.leave())
		}
		time.Sleep(lease + time.Second)
		acquireOther(many)
		a.acquires(alice, true)
		for _, f := range late {
			f()
		}
		<-done
		a.renews(alice, true)
		a.releases(alice, backend.Freed)
	})
}

// A renewal is overtaken by the release of its hold, and by its owner's next attempt: it is none of
// that.
func TestRenewalDuringTheNextAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stores, b := illStores()
		a := open(t, b)
		stores[0].hang()
		time.AfterFunc(time.Millisecond, func() {
			held, err := quorumbackend.RenewLate(t.Context(), a.s, backend.RenewRequest{
				Name: "n", Owner: alice, Lease: lease,
			})
			if held || err != nil {
				t.Errorf("held %v, %v", held, err)
			}
			stores[0].wake()
		})
		a.acquires(alice, true)
		a.renews(alice, true)
	})
}

// A renewal of a read under a write may be answered after that read was released. The answer
// doesn't count for the next read, which has the same name in the stores.
func TestRenewalOfTheLastReadUnderAWrite(t *testing.T) {
	req := backend.RenewRequest{Kind: backend.Read, Name: "n", Owner: alice, Lease: lease}
	for name, renew := range map[string]func(context.Context, backend.Session){
		"one": func(ctx context.Context, s backend.Session) { s.Renew(ctx, req) },
		"batch": func(ctx context.Context, s backend.Session) {
			s.(backend.BatchRenewer).RenewBatch(ctx, []backend.RenewRequest{req}, func(
				int, backend.RenewResult, error,
			) {
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				stores, b := illStores()
				a := open(t, b)
				a.gets(a.s, backend.Write, alice, lease, true)
				a.gets(a.s, backend.Read, alice, lease, true)
				for _, s := range stores {
					s.hang()
				}
				var all sync.WaitGroup
				all.Go(func() { renew(t.Context(), a.s) })
				synctest.Wait()
				var renewals []func()
				for _, s := range stores {
					renewals = append(renewals, s.leave())
				}
				stores[0].hang()
				all.Go(func() { a.gives(a.s, backend.Read, alice, backend.Freed) })
				synctest.Wait()
				// waits for its turn
				all.Go(func() { a.gets(a.s, backend.Read, alice, lease, true) })
				synctest.Wait()
				release := stores[0].leave()
				for _, s := range stores {
					s.hang()
				}
				release() // so the next attempt begins
				synctest.Wait()
				for _, f := range renewals {
					f()
				}
				synctest.Wait()
				for _, s := range stores {
					s.wake()
				}
				all.Wait()
				if res, err := a.s.Renew(t.Context(), req); err != nil || !res.Held {
					t.Errorf("Renew of the second read: %+v, %v", res, err)
				}
			})
		})
	}
}

// Stores have another kind of lock when an attempt is taken back there, and may yet carry out its
// acquisition: it is taken back again, later, and that doesn't hit the owner's next attempt.
func TestConflictBeforeALateAcquisition(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stores, b := illStores()
		a, other := open(t, b), open(t, b)
		kinds := []backend.Kind{backend.Exclusive, backend.Exclusive, backend.Read}
		direct := make([]backend.Session, len(stores))
		for i, s := range stores {
			direct[i] = s.Backend.Open()
			defer direct[i].Close()
			a.gets(direct[i], kinds[i], bob, time.Minute, true)
			s.hang()
		}
		time.AfterFunc(2500*time.Millisecond, func() {
			t.Cleanup(stores[0].leave())
			t.Cleanup(stores[1].leave())
			stores[2].wake()
		})
		write := backend.AcquireRequest{
			Kind: backend.Write, Name: "n", Owner: alice, Lease: lease, Place: 2 * time.Minute,
		}
		if res, err := a.s.Acquire(t.Context(), write); err != nil || res.Acquired {
			t.Fatal(res, err)
		}
		for i, s := range direct {
			a.gives(s, kinds[i], bob, backend.Freed)
		}
		if res, err := a.s.Acquire(t.Context(), write); err != nil || !res.Acquired {
			t.Fatal(res, err)
		}
		time.Sleep(lease / 3)
		other.gets(other.s, backend.Write, bob, lease, false)
	})
}

// The store that is asked first for a lock hasn't got its write: another has the lock there. The
// writer reads all the same, in the stores that let it write. If one of these is slow the writer
// isn't told that it has lost the write.
func TestReadUnderAWriteThatOneStoreHasnt(t *testing.T) {
	for _, slow := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			stores, b := illStores()
			a := open(t, b)
			acquire := func(s backend.Session, k backend.Kind, owner string) (bool, error) {
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				res, err := s.Acquire(ctx, backend.AcquireRequest{
					Kind: k, Name: "n", Owner: owner, Lease: lease,
				})
				return res.Acquired, err
			}
			stores[0].hang()
			if ok, err := acquire(a.s, backend.Write, alice); !ok || err != nil {
				t.Fatal(ok, err)
			}
			defer stores[0].leave()()
			alone := stores[0].Backend.Open()
			defer alone.Close()
			if ok, err := acquire(alone, backend.Write, bob); !ok || err != nil {
				t.Fatal(ok, err)
			}
			time.Sleep(2 * time.Second) // nothing is believed to be down
			if slow {
				stores[1].hang()
				defer stores[1].wake()
			}
			ok, err := acquire(a.s, backend.Read, alice)
			switch {
			case slow && (ok || backend.KindOf(err) != backend.Unknown):
				t.Errorf("a read with one vote, and one that isn't known: acquired %v, %v", ok, err)
			case !slow && (!ok || err != nil):
				t.Errorf("a read under the write: acquired %v, %v", ok, err)
			}
		})
	}
}

// A read under a write was given back where it had got a vote: that store is asked for the next,
// unless a release that it hasn't answered may yet come, and would hit that.
func TestReadUnderAWriteAfterAnotherThatFailed(t *testing.T) {
	for _, answers := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			stores, b := illStores()
			a := open(t, b)
			a.gets(a.s, backend.Write, alice, time.Hour, true)
			stores[1].fail(errDown)
			stores[2].fail(errDown)
			if !answers {
				stores[0].refuseReleases(errors.New("connection lost"))
			}
			read := backend.AcquireRequest{
				Kind: backend.Read, Name: "n", Owner: alice, Lease: lease,
			}
			res, err := a.s.Acquire(t.Context(), read)
			if res.Acquired || err == nil {
				t.Fatal(res, err)
			}
			time.Sleep(time.Second)
			stores[0].refuseReleases(nil)
			time.Sleep(time.Minute)
			stores[1].fail(nil) // so it takes the first, too
			res, err = a.s.Acquire(t.Context(), read)
			if res.Acquired != answers || (err == nil) != answers {
				t.Errorf("releases are answered %v: %+v, %v", answers, res, err)
			}
		})
	}
}

// Of the stores that have given a write one has lost it and one is silent, so a third that may have
// it, too, is asked for a read under it.
func TestReadUnderAWriteInDoubt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stores, b := illStores()
		a := open(t, b)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		stores[0].hang()
		write := backend.AcquireRequest{Kind: backend.Write, Name: "n", Owner: alice, Lease: lease}
		if res, err := a.s.Acquire(ctx, write); err != nil || !res.Acquired {
			t.Fatal(res, err)
		}
		direct := stores[1].Backend.Open()
		defer direct.Close()
		if res, err := direct.ForceRelease(ctx, backend.ForceReleaseRequest{
			Kind: backend.Write, Name: "n",
		}); err != nil || !res.Released {
			t.Fatal(res, err)
		}
		stores[2].hang()
		_, err := a.s.Renew(ctx, backend.RenewRequest{
			Kind: backend.Write, Name: "n", Owner: alice, Lease: lease,
		})
		a.fails(err, backend.Unknown)
		read := write
		read.Kind = backend.Read
		stores[2].wake()
		time.Sleep(2 * time.Second) // nothing is believed to be down
		brief, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if res, err := a.s.Acquire(brief, read); res.Acquired ||
			backend.KindOf(err) != backend.Unknown {
			t.Errorf("a read with one vote, and one that isn't known: %+v, %v", res, err)
		}
		stores[0].wake()
		synctest.Wait()
	})
}

// Another kind of lock has taken the name of a read under a write that ran out: a release of it is
// refused as such, and so is what follows.
func TestConflictUnderALostWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := quorumbackend.New(membackend.New(), membackend.New(), membackend.New())
		c, a := open(t, b), open(t, b)
		ctx := t.Context()
		for _, k := range []backend.Kind{backend.Write, backend.Read} {
			if res, err := c.s.Acquire(ctx, backend.AcquireRequest{
				Kind: k, Name: "n", Owner: alice, Lease: lease,
			}); err != nil || !res.Acquired {
				t.Fatal(res, err)
			}
		}
		time.Sleep(lease)
		a.acquires(bob, true)
		_, err := c.s.Release(ctx, backend.ReleaseRequest{
			Kind: backend.Read, Name: "n", Owner: alice, Lease: lease,
		})
		c.fails(err, backend.Refused)
		_, err = c.s.Acquire(ctx, backend.AcquireRequest{
			Kind: backend.Read, Name: "n", Owner: alice, Lease: lease,
		})
		c.fails(err, backend.Refused)
	})
}
