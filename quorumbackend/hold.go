package quorumbackend

import (
	"context"
	"strconv"
	"time"

	"github.com/seed951563bd/distsync/backend"
)

// A key is what an owner has, or wants to have.
type key struct {
	kind        backend.Kind
	name, owner string
}

// A hold is what a session knows of one key: how often its owner has the lock, and where. Its fields are guarded by the mutex of the session.
type hold struct {
	key
	turn  chan struct{} // has whoever takes a counting step
	users int           // who have a turn, or wait for it

	// attempt is whom the stores know the hold by: the owner with a number. Every attempt has another, since the stores may yet carry
	// out what the last one has asked for, and what was sent to take it back; but for one that has asked and got nothing.
	attempt  string
	borrowed bool   // a Read under the name of its owner's Write
	serial   uint64 // of the votes: it tells answers about an earlier hold of the same name from those about this one

	count  int
	noted  bool   // there may be notes of a Write that waits, under that name
	dying  bool   // it is being given back
	first  *store // which of them gave it first
	votes  []vote
	rounds uint32        // renewals so far, see vote.since
	lease  time.Duration // the last
	ends   time.Time     // when all that was asked for is over
	barred set           // of a Write, and the Read under it: stores that may yet release a Read of that name
}

// A vote is what a store has said of a hold.
type vote struct {
	state verdict

	// refuted says that the store has lacked the hold, and that no majority of others has been seen
	// to have it since the store has it again. Until then it counts as one that lacks it, too.
	refuted bool
	since   uint32 // of one that has it again: the last renewal that was sent before that was known

	asking bool // it is being asked for the hold again, or is about to be
	late   int  // so many acquisitions may yet be carried out, whatever has been said since

	// doubt is the shortest lease of a request that the store hasn't answered, or zero. As it may carry that out at any time, it doesn't
	// stand by a longer one.
	doubt time.Duration
}

// A verdict is a kind of vote.
type verdict uint8

const (
	unasked  verdict = iota // or has certainly not done what it was asked
	granted                 // has it
	doubtful                // was asked, and hasn't answered
	denied                  // another has it there; of a Write it may have a note
	struck                  // said that it doesn't have what it was to have
	freed                   // has given it back
)

// clear makes a hold one of nothing.
func (h *hold) clear() { h.count, h.noted, h.dying, h.first, h.votes = 0, false, false, nil, nil }

// enter begins a counting step: no other of the same key begins before leave.
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

// unuse forgets a hold that is none, once nobody needs it.
func (s *session) unuse(h *hold) {
	s.mu.Lock()
	defer s.mu.Unlock()
	h.users--
	if h.users == 0 && h.count == 0 && h.votes == nil {
		delete(s.holds, h.key)
	}
}

// sweepLocked forgets what is long over, now and then: the client may never have asked for it again.
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

// nameLocked gives a hold that has nothing a name for the next attempt.
func (s *session) nameLocked(h *hold) {
	if h.kind == backend.Read {
		// The stores know by the owner's name that it may read what it writes.
		if w := s.holds[key{backend.Write, h.name, h.owner}]; w != nil && w.count > 0 {
			h.attempt, h.borrowed = w.attempt, true
			h.votes = make([]vote, len(s.stores))
			h.serial++
			return
		}
	}
	if h.votes != nil {
		return // it has asked before, and got nothing
	}
	s.attempts++
	h.barred = 0 // that was about the last name
	h.attempt, h.borrowed = h.owner+"."+strconv.FormatUint(uint64(s.attempts), 10), false
	h.votes = make([]vote, len(s.stores))
	h.serial++
}

// lenderLocked returns the Write whose name a Read has, if it is still held.
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

// in returns the stores that have voted in one of these ways.
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

// doubtLocked notes that a store may or may not have carried out a request.
func (h *hold) doubtLocked(st *store, lease time.Duration) {
	if h.kind == backend.Read || h.kind == backend.Write || h.votes == nil {
		return // they last no shorter for it
	}
	v := &h.votes[st.number]
	if v.doubt == 0 || lease < v.doubt {
		v.doubt = lease
	}
}

// renewedLocked notes what a store has said to a renewal, and says whether it has the hold, and stands by the lease.
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

// foundLocked notes that a store has a hold.
func (h *hold) foundLocked(v *vote) {
	if v.state != granted { // so an acquisition has been carried out that hadn't been before
		v.late = max(v.late-1, 0)
		v.since = h.rounds
	}
	v.state = granted
}
