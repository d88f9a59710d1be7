package history

import (
	"fmt"
	"hash/maphash"
	"time"

	"github.com/anishathalye/porcupine"
)

// A state is what is known of one lock, between two calls.
type state struct {
	holder  int // the user who holds it, from 1; 0: nobody
	count   int
	end     time.Duration // until when it cannot end by itself
	until   time.Duration // when it is over at the latest
	fixed   time.Duration // what end is again when fewer than renewed are left
	renewed int           // the count from which on it is renewed, where it was not from the start
	over    bool          // the holder knows that it has ended; the store may keep it until then
	shaken  bool

	// struck is, for each user, until when he may rely on a hold that somebody else has ended by force.
	struck [maxUsers + 1]time.Duration
}

// maxUsers is how many users there may be. States are compared as a whole, so the number is fixed.
const maxUsers = 16

// mayHaveEnded says whether the hold may have ended by itself when o ends.
func (s *state) mayHaveEnded(o *op) bool { return s.over || o.ret >= s.end }

// held says whether anybody may be found to hold the lock.
func (s *state) held(o *op) bool { return s.holder != 0 && o.call <= s.until }

// free says whether the lock may be free.
func (s *state) free(o *op) bool { return s.holder == 0 || s.mayHaveEnded(o) }

// his says whether the hold is that of the user, who doesn't know that it had ended.
func (s *state) his(o *op) bool { return s.holder == o.user+1 && !s.over && o.call <= s.until }

// deluded says whether the user may still rely on a hold that was struck.
func (s *state) deluded(o *op) bool { return o.call <= s.struck[o.user+1] }

// othersDeluded says whether another may.
func (s *state) othersDeluded(o *op) bool {
	for i, until := range s.struck {
		if i != o.user+1 && o.call <= until {
			return true
		}
	}
	return false
}

// ends ends the hold for the user, who has heard of it.
func (s *state) ends(o *op) {
	if s.holder == o.user+1 {
		s.over = true
	}
	s.struck[o.user+1] = 0
}

// frees makes the lock free.
func (s *state) frees() {
	*s = state{struck: s.struck}
}

// reenter counts one hold more.
func (s *state) reenter(o *op) {
	s.count++
	if o.prolongs == forever && s.end != forever {
		s.renewed, s.fixed = s.count, s.end
	}
	s.end = max(s.end, o.prolongs)
	s.until = max(s.until, o.until)
}

// leave counts one hold less.
func (s *state) leave() {
	s.count--
	if s.count < s.renewed {
		s.end, s.renewed = s.fixed, 0
	}
}

// strike ends the hold by force.
func (s *state) strike() {
	if s.holder != 0 && !s.over {
		s.struck[s.holder] = s.until
		if s.shaken {
			s.struck[s.holder] = forever
		}
	}
	s.frees()
}

// next returns whether a lock in this state could answer the call as it did, and what it is then.
func (s state) next(o *op) (bool, state) {
	switch o.kind {
	case acquire:
		ok := s.acquires(o)
		return ok, s
	case unlock:
		ok := s.unlocks(o)
		return ok, s
	case check, isHeld, holdCount:
		return s.answers(o), s.afterAnswer(o)
	case isLocked:
		if o.result == yes {
			return s.held(o) || o.ghost, s
		}
		ok := s.free(o)
		s.frees()
		return ok, s
	case forceUnlock:
		switch {
		case o.result == failed:
		case o.result == yes && !s.held(o) && !o.ghost, o.result == no && !s.free(o):
			return false, s
		}
		s.strike()
		return true, s
	default: // wipe
		s.strike()
		return true, s
	}
}

func (s *state) acquires(o *op) bool {
	switch {
	case o.result == no:
		// A client knows its own holds without asking, also one that was struck.
		others := s.holder != o.user+1 || s.over // or one of his own that he has given up
		return s.held(o) && others || o.ghost || s.othersDeluded(o)
	case o.result == lost:
		ok := s.holder != o.user+1 || s.mayHaveEnded(o)
		s.ends(o)
		return ok
	case o.reentry != fresh && s.his(o):
		s.reenter(o)
		return true
	case o.reentry == again:
		// The store has lost the hold, which the call can't know while another has no answer.
		return s.deluded(o) && o.shaken
	case o.doomed:
		s.struck[o.user+1] = o.until
		return true
	default:
		ok := s.free(o)
		s.frees()
		s.holder, s.count = o.user+1, 1
		s.end, s.until, s.shaken = o.end, o.until, o.shaken
		s.struck[o.user+1] = 0
		return ok
	}
}

func (s *state) unlocks(o *op) bool {
	if o.held == 0 {
		return o.result == notHeld
	}
	switch o.result {
	case yes:
		if !s.his(o) {
			return s.deluded(o) && o.murky
		}
		if s.leave(); s.count == 0 {
			s.frees()
		}
		return true
	case lost:
		ok := s.holder != o.user+1 || s.mayHaveEnded(o)
		s.ends(o)
		return ok
	case notHeld:
		return false
	default: // it goes on in the background
		if s.holder == o.user+1 && s.count > 1 {
			s.leave()
		} else {
			s.ends(o)
		}
		return true
	}
}

// answers says whether the user may be told so of his own hold.
func (s *state) answers(o *op) bool {
	switch {
	case o.result == yes && s.deluded(o):
		return true
	case o.result == yes:
		return s.his(o) && (o.kind != holdCount || o.count == s.count)
	default:
		return s.holder != o.user+1 || s.mayHaveEnded(o)
	}
}

func (s state) afterAnswer(o *op) state {
	if o.result != yes && (o.kind == check || s.holder == o.user+1) {
		s.ends(o)
	}
	return s
}

// String describes the state.
func (s state) String() string {
	text := "free"
	if s.holder != 0 {
		text = fmt.Sprintf("held by user %d, %d times", s.holder-1, s.count)
		switch {
		case s.over:
			text += ", over"
		case s.end != forever:
			text += fmt.Sprintf(", until %v at least", s.end.Round(time.Microsecond))
		}
	}
	for user, until := range s.struck {
		if until > 0 {
			text += fmt.Sprintf("; user %d was struck", user-1)
		}
	}
	return text
}

var seed = maphash.MakeSeed()

// model is the lock's, for porcupine.
var model = porcupine.Model{
	Partition: byName,
	Init:      func() any { return state{} },
	Step: func(before, input, _ any) (bool, any) {
		ok, after := before.(state).next(input.(*op))
		return ok, after
	},
	Hash:              func(s any) uint64 { return maphash.Comparable(seed, s.(state)) },
	DescribeOperation: func(input, _ any) string { return input.(*op).String() },
	DescribeState:     func(s any) string { return s.(state).String() },
	DescribeOperationMetadata: func(details any) string {
		text, _ := details.(string)
		return text
	},
}

// byName tells the calls for different locks apart.
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
	answer := [...]string{"yes", "no", "lost", "not held", "an error"}[o.result]
	switch {
	case o.kind == wipe:
		return o.text
	case o.kind == holdCount && o.result == yes:
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
	return fmt.Sprintf("%s → %s", o.text, answer)
}
