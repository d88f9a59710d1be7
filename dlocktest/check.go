package dlocktest

import (
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/seed951563bd/distsync/backend"
)

// These constants limit how long the method check waits at the end of a test.
const (
	patience = 3 * time.Second // for goroutines that are about to unlock
	// for failed unlocks, whose retries may have become rare while the store was down
	longPatience = 15 * time.Second
)

// check fails the test if, after a short time, a lock is still held or a call is still waiting for
// one.
func (s *Store) check() {
	s.t.Helper()
	s.Recover()
	s.ResumeRenewals()
	if s.t.Failed() || s.t.Skipped() {
		return // the test may have stopped before its unlocks
	}
	began := time.Now()
	for pause := time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		left, limit := s.left()
		if len(left) == 0 {
			return
		}
		if time.Since(began) >= limit {
			for _, what := range left {
				s.t.Errorf("dlocktest: at the end of the test %s", what)
			}
			return
		}
		time.Sleep(pause)
	}
}

// left describes the remaining holds and waiters. It also returns how long the check at the end of
// the test waits for them to end.
func (s *Store) left() (left []string, limit time.Duration) {
	limit = patience
	for _, i := range s.list() {
		if len(holders(i)) == 0 {
			continue
		}
		left = append(left, s.describe(i))
		if s.owes(i) {
			limit = longPatience
		}
	}
	return append(left, s.waiters()...), limit
}

// list returns the locks in the store, sorted by name.
func (s *Store) list() []backend.Inspection {
	res, err := s.view.List(context.Background(), backend.ListRequest{Limit: math.MaxInt})
	if err != nil {
		panic(fmt.Sprintf("dlocktest: %v", err)) // membackend returns no error here
	}
	return res.Locks
}

// owes reports whether an unlock by a holder of the lock has failed.
func (s *Store) owes(i backend.Inspection) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.ContainsFunc(i.Holders, func(h backend.Holder) bool { return s.owed[h.Owner] })
}

// waiters describes the waiting clients.
func (s *Store) waiters() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var who []string
	for w := range s.waits {
		who = append(who, fmt.Sprintf("client %q waits for the lock %q", w.s.client, w.name))
	}
	slices.Sort(who)
	return slices.Compact(who)
}
