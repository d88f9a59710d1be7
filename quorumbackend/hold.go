package quorumbackend

import (
	"context"
	"strconv"
	"time"

	"github.com/seed951563bd/distsync/backend"
)

// A key identifies a hold by its kind, its name, and the owner that holds or wants the lock.
type key struct {
	kind        backend.Kind
	name, owner string
}

// A hold records how many times an owner has acquired a lock, and which stores granted it. The
// session's mutex guards its fields.
type hold struct {
	key
	turn  chan struct{} // full while a step has the exclusive right to change count
	users int           // the number of steps that use the hold or wait for it

	// attempt is the owner name in requests to the stores: the owner's name with a number. Each
	// attempt has a new number, since stores might still carry out requests of the previous
	// attempt. But if the previous attempt got no vote, its number is reused.
	attempt  string
	borrowed bool // whether this is a Read that uses the attempt name of its owner's Write
	// serial is the number of this set of votes. It distinguishes answers about these votes from
	// answers about earlier ones.
	serial uint64

	count  int
	noted  bool   // whether stores might have notes that this Write is waiting
	dying  bool   // it is being released
	first  *store // the first store that granted it
	votes  []vote
	rounds uint32        // the number of renewals (see vote.since)
	lease  time.Duration // the last lease
	ends   time.Time     // when every requested lease has expired
	// barred is the set of stores that might still carry out the release of an earlier Read with
	// the same attempt name. Such a release would also end a new Read. barred is used for a Write
	// and for the Read within it.
	barred set
}

// A vote records the state of a hold in one store, as far as the session knows it.
type vote struct {
	state verdict

	// refuted is set when the store turns out to lack the hold. It stays set after the store has
	// the hold again, until a majority of other stores has confirmed the hold. Meanwhile a renewal
	// counts this store among those that lack the hold, even if the store renews it.
	refuted bool
	since   uint32 // the number of the last renewal before the hold was found again

	asking bool // whether a repair of this vote is under way or due
	late   int  // the number of acquisitions that might still be carried out

	// doubt is the shortest lease of an unanswered request to the store, or zero. The store might
	// carry out that request at any time, so the hold can't be relied on for longer.
	doubt time.Duration
}

// A verdict is a store's latest answer about a hold.
type verdict uint8

const (
	unasked  verdict = iota // not asked, or certainly didn't carry out the request
	granted                 // has the hold
	doubtful                // was asked, and hasn't answered
	denied                  // another owner has the lock there; a Write might have left a note
	struck                  // reported that it no longer has the hold
	freed                   // has released the hold
)

// clear empties a hold.
func (h *hold) clear() { h.count, h.noted, h.dying, h.first, h.votes = 0, false, false, nil, nil }

// enter begins a step that can change the count of a hold. No other such step with the same key
// begins before leave is called.
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

// unuse ends a step's use of a hold. If the hold is empty and no other step uses it, unuse deletes
// it.
func (s *session) unuse(h *hold) {
	s.mu.Lock()
	defer s.mu.Unlock()
	h.users--
	if h.users == 0 && h.count == 0 && h.votes == nil {
		delete(s.holds, h.key)
	}
}

// sweepLocked occasionally deletes holds whose leases have expired, since the client might never
// ask for them again.
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

// nameLocked gives a hold without votes the name for its next attempt.
func (s *session) nameLocked(h *hold) {
	if h.kind == backend.Read {
		// The stores grant a Read within a Write only if both have the same owner name.
		if w := s.holds[key{backend.Write, h.name, h.owner}]; w != nil && w.count > 0 {
			h.attempt, h.borrowed = w.attempt, true
			h.votes = make([]vote, len(s.stores))
			h.serial++
			return
		}
	}
	if h.votes != nil {
		return // the last attempt got no vote, so its name can be reused
	}
	s.attempts++
	h.barred = 0 // the set applied only to the last name
	h.attempt, h.borrowed = h.owner+"."+strconv.FormatUint(uint64(s.attempts), 10), false
	h.votes = make([]vote, len(s.stores))
	h.serial++
}

// lenderLocked returns the Write whose attempt name a Read uses, or nil if the Write isn't held
// anymore.
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

// in returns the stores whose votes are in one of the given states.
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

// doubtLocked records that a store left a request unanswered, and might still carry it out.
func (h *hold) doubtLocked(st *store, lease time.Duration) {
	if h.kind == backend.Read || h.kind == backend.Write || h.votes == nil {
		return // the request can't shorten the hold
	}
	v := &h.votes[st.number]
	if v.doubt == 0 || lease < v.doubt {
		v.doubt = lease
	}
}

// renewedLocked records a store's answer to a renewal. It reports whether the store has the hold,
// and whether the hold stays there for the whole lease, even if the store carries out an earlier
// request late.
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
