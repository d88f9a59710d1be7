package quorumbackend

import (
	"context"
	"strconv"
	"time"

	"github.com/seed951563bd/distsync/backend"
)

// A key identifies a hold: a kind, a name, and an owner that holds or wants the lock.
type key struct {
	kind        backend.Kind
	name, owner string
}

// A hold is a session's knowledge of one key: how many holds the owner has, and which stores
// granted them. The mutex of the session guards its fields.
type hold struct {
	key
	turn  chan struct{} // occupied by a counting step
	users int           // the number of steps that have the turn, or wait for it

	// attempt is the owner in requests to the stores: the session's owner with a number. Each
	// attempt has a new number, since stores may yet carry out requests and releases of the
	// previous attempt. If that attempt got no vote, its number is reused.
	attempt  string
	borrowed bool // it is a Read with the attempt of its owner's Write
	// serial is the number of this set of votes. It distinguishes answers about this set from
	// answers about an earlier one.
	serial uint64

	count  int
	noted  bool   // stores may have notes of a waiting Write with this attempt
	dying  bool   // it is being released
	first  *store // the first store that granted it
	votes  []vote
	rounds uint32        // the number of renewals: see vote.since
	lease  time.Duration // the last lease
	ends   time.Time     // when every requested lease has expired
	// barred holds, for a Write and the Read under it, the stores that may yet carry out a release
	// of a Read with this attempt.
	barred set
}

// A vote is what a store has said about a hold.
type vote struct {
	state verdict

	// refuted records that the store lacked the hold. It stays set until the store has the hold
	// again and then a majority of other stores confirms the hold. Until then the vote also counts
	// as a refusal.
	refuted bool
	since   uint32 // the last renewal before the store was known to have the hold again

	asking bool // a repair of this vote is under way or due
	late   int  // the number of acquisitions that may yet be carried out

	// doubt is the shortest lease of an unanswered request to the store, or zero. The store may
	// carry out that request at any time, so it can't promise a longer lease.
	doubt time.Duration
}

// A verdict is a store's latest answer about a hold.
type verdict uint8

const (
	unasked  verdict = iota // not asked, or has certainly not carried out the request
	granted                 // has the hold
	doubtful                // was asked, and hasn't answered
	denied                  // another owner has the lock there; a Write may have left a note
	struck                  // reported that it no longer has the hold
	freed                   // has released the hold
)

// clear empties a hold.
func (h *hold) clear() { h.count, h.noted, h.dying, h.first, h.votes = 0, false, false, nil, nil }

// enter begins a counting step. No other step of the same key begins before leave.
func (s *session) enter(ctx context.Context, k key) (*hold, error) {
	s.mu.Lock()
	h := s.holds[k]
	if h == nil {
		h = &hold{key: k, turn: make(chan struct{}, 1)}
		s.sweepLocked()
		s.holds[k] = h
	}
	h.users++
	s.mu.Unlock()
	select {
	case h.turn <- struct{}{}:
		return h, nil
	default:
	}
	select {
	case h.turn <- struct{}{}:
		return h, nil
	case <-ctx.Done():
		s.unuse(h)
		return nil, &backend.Error{Kind: backend.Retry, Err: ctx.Err()}
	}
}

func (s *session) leave(h *hold) {
	<-h.turn
	s.unuse(h)
}

// unuse forgets an empty hold that no step uses.
func (s *session) unuse(h *hold) {
	s.mu.Lock()
	defer s.mu.Unlock()
	h.users--
	if h.users == 0 && h.count == 0 && h.votes == nil {
		delete(s.holds, h.key)
	}
}

// sweepLocked occasionally forgets holds that ended long ago. The client may never ask for them
// again.
func (s *session) sweepLocked() {
	if len(s.holds) < max(s.sweepAt, 1024) {
		return
	}
	now := time.Now()
	for k, h := range s.holds {
		if h.users == 0 && now.After(h.ends) {
			delete(s.holds, k)
		}
	}
	s.sweepAt = 2 * len(s.holds)
}

// nameLocked gives an empty hold the name for its next attempt.
func (s *session) nameLocked(h *hold) {
	if h.kind == backend.Read {
		// The stores let an owner read what it writes only with the same owner string.
		if w := s.holds[key{backend.Write, h.name, h.owner}]; w != nil && w.count > 0 {
			h.attempt, h.borrowed = w.attempt, true
			h.votes = make([]vote, len(s.stores))
			h.serial++
			return
		}
	}
	if h.votes != nil {
		return // its last attempt got no vote, so the name can be reused
	}
	s.attempts++
	h.barred = 0 // barred was about the last name
	h.attempt, h.borrowed = h.owner+"."+strconv.FormatUint(uint64(s.attempts), 10), false
	h.votes = make([]vote, len(s.stores))
	h.serial++
}

// lenderLocked returns the Write whose name a Read uses, if the Write is still held.
func (s *session) lenderLocked(h *hold) *hold {
	if !h.borrowed {
		return nil
	}
	w := s.holds[key{backend.Write, h.name, h.owner}]
	if w == nil || w.count == 0 || w.attempt != h.attempt {
		return nil
	}
	return w
}

// in returns the stores whose votes have one of the given verdicts.
func (s *session) in(h *hold, verdicts ...verdict) []*store {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.inLocked(h, verdicts...)
}

func (s *session) inLocked(h *hold, verdicts ...verdict) []*store {
	stores := make([]*store, 0, len(s.stores))
	for i := range h.votes {
		for _, v := range verdicts {
			if h.votes[i].state == v {
				stores = append(stores, s.stores[i])
			}
		}
	}
	return stores
}

// doubtLocked records that a store may or may not have carried out a request.
func (h *hold) doubtLocked(st *store, lease time.Duration) {
	if h.kind == backend.Read || h.kind == backend.Write || h.votes == nil {
		return // the request can't shorten the hold
	}
	v := &h.votes[st.number]
	if v.doubt == 0 || lease < v.doubt {
		v.doubt = lease
	}
}

// renewedLocked records a store's answer to a renewal. has reports whether the store has the hold,
// and stays whether it won't shorten the lease.
func (h *hold) renewedLocked(st *store, held bool, lease time.Duration) (has, stays bool) {
	if h.votes == nil {
		return false, false
	}
	v := &h.votes[st.number]
	switch {
	case v.state != granted && v.state != doubtful:
		return false, false
	case !held:
		v.state = struck
		return false, false
	}
	h.foundLocked(v)
	return true, v.doubt == 0 || lease <= v.doubt
}

// foundLocked records that a store has a hold.
func (h *hold) foundLocked(v *vote) {
	if v.state != granted { // a late acquisition has been carried out
		v.late = max(v.late-1, 0)
		v.since = h.rounds
	}
	v.state = granted
}
