package history

import (
	"fmt"
	"hash/maphash"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/seed951563bd/distsync/backend"
)

// A lock is the state of a lock in the model, between two calls.
type lock interface {
	// next reports whether the lock could give the recorded answer to the call, and returns its
	// state after the call.
	next(o *op) (bool, lock)
	String() string
}

// untouched returns the state of o's lock before its first call.
func untouched(o *op) lock {
	switch {
	case o.shares():
		return sides{}
	case o.side == backend.Permits:
		return pool{}
	default:
		return state{}
	}
}

// A hold is the state of one user's hold. The zero value means that there is none.
type hold struct {
	count int32
	// renewed is the value of count when renewal began, if the first acquisition had a fixed lease.
	renewed int32
	end     time.Duration // earliest time at which the hold may expire
	until   time.Duration // latest time at which it ends in the store
	fixed   time.Duration // value of end once the count falls below renewed
	// over reports whether the holder knows that the hold has ended. The store may still keep it.
	over   bool
	shaken bool
	lent   bool // whether the store may have recorded this Read as a Write
}

// begun returns the hold that a call acquired.
func begun(o *op) hold {
	return hold{count: 1, end: o.end, until: o.until, shaken: o.shaken, lent: o.lent}
}

// mayHaveEnded reports whether the hold may have expired by the end of call o.
func (h *hold) mayHaveEnded(o *op) bool { return h.over || o.ret >= h.end }

// held reports whether call o could have found that this hold exists.
func (h *hold) held(o *op) bool { return h.count > 0 && o.call <= h.until }

// free reports whether call o could have found that this hold doesn't exist.
func (h *hold) free(o *op) bool { return h.count == 0 || h.mayHaveEnded(o) }

// valid reports whether the hold exists, and its holder doesn't know that it has ended.
func (h *hold) valid(o *op) bool { return h.held(o) && !h.over }

// reenter increments the count.
func (h *hold) reenter(o *op) {
	h.count++
	if o.prolongs == forever && h.end != forever {
		h.renewed, h.fixed = h.count, h.end
	}
	h.end = max(h.end, o.prolongs)
	h.until = max(h.until, o.until)
}

// leave decrements the count.
func (h *hold) leave() {
	if h.count--; h.count == 0 {
		*h = hold{}
	} else if h.count < h.renewed {
		h.end, h.renewed = h.fixed, 0
	}
}

// strike ends the hold by force, and returns the latest time at which the user might still rely on
// it. If there is no hold, or if its holder knows that it has ended, strike returns its argument.
// The argument is the result of the previous strike for this user, or 0.
func (h *hold) strike(before time.Duration) time.Duration {
	until := before
	if h.count > 0 && !h.over {
		until = h.until
		if h.shaken {
			until = forever
		}
	}
	*h = hold{}
	return until
}

// unlocks reports whether an unlock of this hold could have returned the recorded answer, and
// updates the hold. deluded reports whether the hold may have been ended by force without its
// holder's knowledge.
func (h *hold) unlocks(o *op, deluded bool) bool {
	if o.held == 0 {
		return o.result == notHeld
	}
	switch o.result {
	case yes:
		if !h.valid(o) {
			return deluded && o.murky
		}
		h.leave()
		return true
	case lost:
		return h.free(o)
	case notHeld:
		return false
	default: // the unlock continues in the background
		if h.count > 1 {
			h.leave()
		}
		return true
	}
}

// ended reports whether unlock o told the holder that the hold has ended.
func (h *hold) ended(o *op) bool {
	return o.held > 0 && (o.result == lost || o.result == failed && h.count <= 1)
}

// answers reports whether a query by the holder about this hold could have returned the recorded
// answer.
func (h *hold) answers(o *op, deluded bool) bool {
	switch {
	case o.result == yes && deluded:
		return true
	case o.result == yes:
		return h.valid(o) && (o.kind != holdCount || o.count == int(h.count))
	default:
		return h.free(o)
	}
}

// String describes the hold of a user.
func (h *hold) String() string {
	text := fmt.Sprintf("%d times", h.count)
	switch {
	case h.over:
		text += ", over"
	case h.end != forever:
		text += fmt.Sprintf(", until %v at least", h.end.Round(time.Microsecond))
	}
	return text
}

// struck holds, for each user, the latest time at which the user might still rely on a hold that
// was ended by force.
type struck [maxUsers + 1]time.Duration

// maxUsers is the maximum number of users. It is a constant because states must be comparable.
const maxUsers = 16

// deluded reports whether the user might still rely on a hold that was ended by force.
func (s *struck) deluded(o *op) bool { return o.call <= s[o.user+1] }

// othersDeluded reports whether another user might still rely on a hold that was ended by force.
func (s *struck) othersDeluded(o *op) bool {
	for i, until := range s {
		if i != o.user+1 && o.call <= until {
			return true
		}
	}
	return false
}

func (s *struck) String() (text string) {
	for user, until := range s {
		if until > 0 {
			text += fmt.Sprintf("; user %d was struck", user-1)
		}
	}
	return text
}

// A state is the state of a lock with one holder at a time.
type state struct {
	holder int // the user that holds the lock, counted from 1; 0 if none
	hold
	token  uint64 // the last fencing token
	struck struck
}

// his returns the hold if the user of call o has it, and a new hold otherwise.
func (s *state) his(o *op) *hold {
	if s.holder == o.user+1 {
		return &s.hold
	}
	return new(hold)
}

// ends records that the user of call o has learned that its hold ended.
func (s *state) ends(o *op) {
	if s.holder == o.user+1 {
		s.over = true
	}
	s.struck[o.user+1] = 0
}

// frees makes the lock free.
func (s *state) frees() { s.holder, s.hold = 0, hold{} }

// strike ends the hold by force.
func (s *state) strike() {
	if s.holder != 0 {
		s.struck[s.holder] = s.hold.strike(s.struck[s.holder])
	}
	s.frees()
}

// next implements [lock].
func (s state) next(o *op) (bool, lock) {
	ok := true
	switch o.kind {
	case acquire:
		ok = s.acquires(o)
	case unlock:
		ok = s.unlocks(o)
	case check, isHeld, holdCount:
		ok = s.answers(o)
	case isLocked:
		if o.result == yes {
			return s.held(o) || o.ghost, s
		}
		ok = s.free(o)
		s.frees()
	case forceUnlock:
		ok = s.forces(o)
	default: // wipe
		s.strike()
		if o.forgets {
			s.token = 0
		}
	}
	return ok, s
}

func (s *state) acquires(o *op) bool {
	switch {
	case o.result == conflict:
		return false // the workload uses each name for one kind of lock
	case o.result == no:
		// A client never reports one of its own holds as held by another, even if that hold was
		// ended by force.
		others := s.holder != o.user+1 || s.over
		return s.held(o) && others || o.ghost || s.struck.othersDeluded(o)
	case o.result == lost:
		ok := s.his(o).free(o)
		s.ends(o)
		return ok
	case o.reentry != fresh && s.his(o).valid(o):
		s.reenter(o)
		return o.granter == nil || o.side != backend.Fenced || o.granter.token == s.token
	case o.reentry == again:
		// The store has lost the hold. The answer is possible only if the user doesn't know that,
		// and a request about the hold went unanswered.
		return s.struck.deluded(o) && o.shaken
	case o.side == backend.Fenced && o.granter == nil:
		return false // each acquisition has its own token, so no hold is handed over
	case o.doomed:
		s.struck[o.user+1] = o.until
		return true
	default:
		ok := s.free(o)
		if o.side == backend.Fenced {
			ok = ok && o.granter.token > s.token
			s.token = o.granter.token
		}
		s.holder, s.hold = o.user+1, begun(o)
		s.struck[o.user+1] = 0
		return ok
	}
}

func (s *state) unlocks(o *op) bool {
	his := s.his(o)
	ends := his.ended(o)
	ok := his.unlocks(o, s.struck.deluded(o))
	if ends {
		s.ends(o)
	}
	if s.count == 0 {
		s.holder = 0
	}
	return ok
}

func (s *state) answers(o *op) bool {
	ok := s.his(o).answers(o, s.struck.deluded(o))
	if o.result != yes && (o.kind == check || s.holder == o.user+1) {
		s.ends(o)
	}
	return ok
}

func (s *state) forces(o *op) bool {
	switch {
	case o.result == failed:
	case o.result == yes && !s.held(o) && !o.ghost, o.result == no && !s.free(o):
		return false
	}
	s.strike()
	return true
}

// String describes the state.
func (s state) String() string {
	text := "free"
	if s.holder != 0 {
		text = fmt.Sprintf("held by user %d, %v", s.holder-1, &s.hold)
	}
	return text + s.struck.String()
}

var seed = maphash.MakeSeed()

// model describes a lock to package porcupine.
var model = porcupine.Model{
	Partition: byName,
	Init:      func() any { return nil }, // the first call determines the kind of lock
	Step: func(before, input, _ any) (bool, any) {
		o := input.(*op)
		l, ok := before.(lock)
		if !ok {
			l = untouched(o)
		}
		ok, l = l.next(o)
		return ok, l
	},
	Hash:              func(s any) uint64 { return maphash.Comparable(seed, s) },
	DescribeOperation: func(input, _ any) string { return input.(*op).String() },
	DescribeState:     func(s any) string { return fmt.Sprint(s) },
	DescribeOperationMetadata: func(details any) string {
		text, _ := details.(string)
		return text
	},
}

// byName separates the calls for different locks.
func byName(all []porcupine.Operation) (parts [][]porcupine.Operation) {
	place := make(map[string]int)
	for _, x := range all {
		name := x.Input.(*op).name
		i, ok := place[name]
		if !ok {
			i = len(parts)
			place[name] = i
			parts = append(parts, nil)
		}
		parts[i] = append(parts[i], x)
	}
	return parts
}

// String describes a call and its answer.
func (o *op) String() string {
	answer := [...]string{"yes", "no", "lost", "not held", "no upgrade", "another kind of lock",
		"nobody has said how many there are", "too many", "an error"}[o.result]
	switch {
	case o.kind == wipe:
		return o.text
	case (o.kind == holdCount || o.kind == available) && o.result == yes:
		answer = fmt.Sprint(o.count)
	case o.kind == acquire && o.result == yes && o.reentry == again:
		answer = "re-entered"
	case o.kind == acquire && o.result == yes:
		answer = "acquired"
	case o.kind == acquire && o.result == no:
		answer = "held by another"
	case o.kind == unlock && o.result == yes:
		answer = "unlocked"
	}
	if o.token != 0 {
		answer += fmt.Sprintf(" as number %d", o.token)
	}
	return fmt.Sprintf("%v: %s → %s", o.side, o.text, answer)
}
