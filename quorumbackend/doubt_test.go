package quorumbackend_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/membackend"
	"github.com/seed951563bd/distsync/quorumbackend"
)

// leave lets a store that hangs go on, but for what it was asked by now. It returns what has it do that.
func (s *ill) leave() (late func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	hangs := s.hangs
	s.hangs = nil
	return func() { close(hangs) }
}

// One store has forgotten a lock, and another is slow to say that it has it: nothing is known until it does.
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
					t.Errorf("store %d has forgotten it, and store %d is slow: %+v, %v", forgets, late, res, err)
				}
				time.Sleep(2 * time.Second) // nothing is believed to be down
				a.releases(alice, backend.Freed)
			}
		}
	})
}

// An acquisition comes after its store has said that it doesn't have the hold, and after that was released: it is given back.
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

// Another kind of lock has taken the name of a read under a write that ran out: a release of it is refused as such, and so is what follows.
func TestConflictUnderALostWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := quorumbackend.New(membackend.New(), membackend.New(), membackend.New())
		c, a := open(t, b), open(t, b)
		ctx := t.Context()
		for _, k := range []backend.Kind{backend.Write, backend.Read} {
			if res, err := c.s.Acquire(ctx, backend.AcquireRequest{Kind: k, Name: "n", Owner: alice, Lease: lease}); err != nil || !res.Acquired {
				t.Fatal(res, err)
			}
		}
		time.Sleep(lease)
		a.acquires(bob, true)
		_, err := c.s.Release(ctx, backend.ReleaseRequest{Kind: backend.Read, Name: "n", Owner: alice, Lease: lease})
		c.fails(err, backend.Refused)
		_, err = c.s.Acquire(ctx, backend.AcquireRequest{Kind: backend.Read, Name: "n", Owner: alice, Lease: lease})
		c.fails(err, backend.Refused)
	})
}
