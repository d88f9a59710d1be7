package dlocktest

import (
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/seed951563bd/distsync/backend"
)

// How long the end of a test waits.
const (
	patience     = 3 * time.Second  // for who is about to give a lock back
	longPatience = 15 * time.Second // for a release that is repeated, after a pause that has grown while the store was down
)

// check fails the test if somebody has a lock, or waits for one, and that isn't over soon.
func (s *Store) check() {
	s.t.Helper()
	s.Recover()
	s.ResumeRenewals()
	if s.t.Failed() || s.t.Skipped() {
		return // so it may not have come to an end
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

// left returns who has what, and who waits for what, and how long it may take them to go.
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

// list returns what is in the store, sorted by name.
func (s *Store) list() []backend.Inspection {
	res, err := s.view.List(context.Background(), backend.ListRequest{Limit: math.MaxInt})
	if err != nil {
		panic(fmt.Sprintf("dlocktest: %v", err)) // membackend has no reason for that
	}
	return res.Locks
}

// owes says whether somebody who has a lock wanted to give it back, and couldn't.
func (s *Store) owes(i backend.Inspection) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.ContainsFunc(i.Holders, func(h backend.Holder) bool { return s.owed[h.Owner] })
}

// waiters says who waits.
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
