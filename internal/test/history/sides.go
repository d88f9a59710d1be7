package history

import (
	"fmt"
	"slices"

	"github.com/seed951563bd/distsync/backend"
)

// sides is the state of a read-write lock. The readers of a client may share one Read in the store,
// or the client's Write, without sending requests of their own. So every Read that was granted and
// hasn't been released counts as a ghost: it may explain the answers "locked" and "held by
// another". See span.
type sides struct {
	write  state
	read   [maxUsers + 1]hold // by user, counted from 1
	struck struck             // for readers; write.struck is for writers
}

// shares reports whether a call is for a side of a read-write lock.
func (o *op) shares() bool { return o.side == backend.Read || o.side == backend.Write }

// next implements [lock].
func (s sides) next(o *op) (bool, lock) {
	if o.side == backend.Read {
		ok := s.nextRead(o)
		return ok, s
	}
	ok := s.nextWrite(o)
	return ok, s
}

func (s *sides) nextRead(o *op) bool {
	his, deluded := &s.read[o.user+1], s.struck.deluded(o)
	switch o.kind {
	case acquire:
		return s.reads(o, his, deluded)
	case unlock:
		ends := his.ended(o)
		ok := his.unlocks(o, deluded)
		if ends {
			s.endsRead(o)
		}
		return ok
	case check, isHeld, holdCount:
		ok := his.answers(o, deluded)
		switch {
		case o.result == yes:
		case o.kind == check, !deluded:
			s.endsRead(o)
		default: // the Read has ended in the store, but the user doesn't know that yet
			*his = hold{}
		}
		return ok
	case isLocked:
		if o.result == yes {
			return o.ghost || s.anyLent(o)
		}
		return s.noReaders(o)
	default: // forceUnlock
		return s.forcesReads(o)
	}
}

func (s *sides) nextWrite(o *op) bool {
	switch o.kind {
	case acquire:
		return s.writes(o)
	case forceUnlock:
		writer := s.write.holder
		ok := s.write.forces(o)
		if o.result != no {
			s.strikeRead(writer) // the writer's Read under it
			s.strikeLent(o)
		}
		return ok
	case wipe:
		s.write.strike()
		s.strikeReads()
		return true
	default: // these calls concern only the Write
		ok, l := s.write.next(o)
		s.write = l.(state)
		return ok
	}
}

// reads acquires a Read.
func (s *sides) reads(o *op, his *hold, deluded bool) bool {
	own := s.write.his(o)
	switch {
	case o.result == conflict:
		return false
	case o.result == no:
		others := s.write.held(o) && (own.count == 0 || own.over)
		return others || o.ghost || o.barred || s.write.struck.othersDeluded(o)
	case o.result == lost: // the user lost its Read, or its Write
		read, written := his.count > 0 && his.free(o), own.count > 0 && own.free(o)
		switch {
		case read && !written:
			s.endsRead(o)
		case written && !read:
			s.write.ends(o)
		}
		return read || written || his.count+own.count == 0
	case o.reentry != fresh && his.valid(o):
		if his.reenter(o); own.count > 0 {
			his.end = min(his.end, own.end)
		}
		return true
	case o.reentry == again:
		// a re-entry restores a lost Read, so the answer doesn't show whether the Read was lost
		return deluded
	case o.granter == nil && o.held > 0 && deluded:
		return true // a re-entry without a request to the store
	case o.granter == nil && !o.joined:
		return false // there was no hold to share
	case o.doomed:
		s.struck[o.user+1] = o.until
		*his = begun(o)
		his.end = o.call // the call may share a hold other than the one ended by force
		return true
	}
	within := own.valid(o)
	ok := within || s.write.free(o)
	*his = begun(o)
	if within { // if the Write is lost before its release, the Read ends with it
		his.end = min(his.end, own.end)
	} else {
		s.write.frees()
	}
	s.struck[o.user+1] = 0
	return ok
}

// writes acquires a Write.
func (s *sides) writes(o *op) bool {
	switch {
	case o.result == upgrade:
		return o.reads > 0 && s.write.his(o).free(o)
	case o.result == no && o.barred:
		return true
	case o.result != yes || o.reentry != fresh && s.write.his(o).valid(o) || o.reentry == again ||
		o.doomed:
		return s.write.acquires(o)
	default:
		return s.noReaders(o) && s.write.acquires(o)
	}
}

// noReaders reports whether call o could have found that there are no readers. If so, all Reads
// have ended, and noReaders removes them. If o isn't an acquisition, noReaders ignores Reads that
// the store may have recorded as a Write.
func (s *sides) noReaders(o *op) bool {
	for user := range s.read {
		r := &s.read[user]
		switch {
		case r.lent && o.kind != acquire: // the store may have recorded this Read as a Write
		case r.free(o):
			*r = hold{}
		default:
			return false
		}
	}
	return true
}

// anyLent reports whether any user might be reading under a hold that the store recorded as a
// Write.
func (s *sides) anyLent(o *op) bool {
	return slices.ContainsFunc(s.read[:], func(r hold) bool { return r.lent && r.held(o) })
}

// strikeLent records that a Write of a client may have been ended by force, together with the Reads
// that share it. For each Read that may share a Write, it allows both outcomes: the Read ended, or
// it continues.
func (s *sides) strikeLent(o *op) {
	for user := range s.read {
		if r := &s.read[user]; r.lent {
			before := *r
			s.strikeRead(user)
			*r = before
			r.end = o.call
		}
	}
}

// endsRead records that the user of call o has learned that its Read ended.
func (s *sides) endsRead(o *op) {
	if his := &s.read[o.user+1]; his.count > 0 {
		his.over = true
	}
	s.struck[o.user+1] = 0
}

// forcesReads reports whether a ForceUnlock of the reading side could have returned the recorded
// answer. If the call may have ended Reads, forcesReads also records that. During a Write, the call
// affects only Reads that share a Write of the caller's client.
func (s *sides) forcesReads(o *op) bool {
	switch o.result {
	case yes:
		if !s.anyLent(o) && (!s.write.free(o) || !o.ghost) {
			return false
		}
	case no:
		return s.write.held(o) || s.noReaders(o)
	default:
		if o.onWrite { // the request may arrive so late that it frees another Write
			s.write.strike()
		}
	}
	s.strikeReads()
	return true
}

func (s *sides) strikeReads() {
	for user := range s.read {
		s.strikeRead(user)
	}
}

func (s *sides) strikeRead(user int) {
	s.struck[user] = s.read[user].strike(s.struck[user])
}

// String describes the state.
func (s sides) String() string {
	text := "not written"
	if s.write.holder != 0 {
		text = "written: " + s.write.String()
	}
	for user := range s.read {
		if r := &s.read[user]; r.count > 0 {
			text += fmt.Sprintf("; read by user %d, %v", user-1, r)
		}
	}
	return text + s.struck.String()
}
