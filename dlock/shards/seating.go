package shards

import (
	"cmp"
	"slices"
	"time"
)

// seating decides which seats a member takes and gives up. It does no I/O.
//
// Shards belong to seats, not to members. A member that inherits a seat inherits its shards, and no
// other shard moves. So a newcomer first waits a while for a seat that another member leaves,
// as happens during a deployment. Only then does it take a seat that no member has held.
type seating struct {
	self   note
	settle time.Duration

	known  map[int]bool // seats that were taken while this member waited
	joined time.Time    // when it began to wait
	grown  time.Time    // when it stops being young
}

// sit updates this member's own note from a view of all notes. changed reports whether the note
// must be published now. If not, next is the time after which the note may change even if the view
// stays the same, or 0 if it won't change.
func (s *seating) sit(now time.Time, v *view) (changed bool, next time.Duration) {
	me := v.find(s.self.run)
	if me == nil { // the member is new, or was lost; it keeps those of its seats that are free
		s.self.seats = slices.DeleteFunc(s.self.seats, func(seat int) bool {
			return v.taken[seat] != nil
		})
		s.waitForSeats(now, v)
		return true, 0
	}
	s.self.version = max(s.self.version, me.version)
	s.self.seats, s.self.place, s.self.state = slices.Clone(me.seats), me.place, me.state
	return s.move(now, v)
}

// move implements sit for a member that is in the view.
func (s *seating) move(now time.Time, v *view) (changed bool, next time.Duration) {
	had := len(s.self.seats)
	s.self.seats = slices.DeleteFunc(s.self.seats, func(seat int) bool {
		return v.taken[seat].run != s.self.run
	})
	if s.self.weight < len(s.self.seats) {
		s.self.seats = s.self.seats[:s.self.weight]
	}
	if s.self.state == young {
		if wait := s.grown.Sub(now); wait <= 0 {
			s.self.state, changed = seated, true
		} else {
			next = wait
		}
	}
	switch {
	case len(s.self.seats) < had, s.self.weight > len(s.self.seats) && s.self.place == 0:
		s.waitForSeats(now, v)
		return true, 0
	case s.self.weight == len(s.self.seats):
		changed = changed || s.self.place != 0
		s.self.place = 0
		return changed, next
	}
	took, wait := s.take(now, v)
	if wait > 0 && (next == 0 || wait < next) {
		next = wait
	}
	return changed || took, next
}

// waitForSeats puts this member last among the members that wait for seats, if it has fewer seats
// than it wants.
func (s *seating) waitForSeats(now time.Time, v *view) {
	s.self.place = 0
	if len(s.self.seats) == 0 {
		s.self.state = waits
	}
	if len(s.self.seats) >= s.self.weight {
		return
	}
	last := 0
	for _, m := range v.members {
		last = max(last, m.place)
	}
	s.self.place, s.joined, s.known = last+1, now, map[int]bool{}
}

// take takes the free seats that this member may take now. It may take a seat at once if another
// member left that seat while this one waited, and otherwise only after a while.
func (s *seating) take(now time.Time, v *view) (took bool, next time.Duration) {
	top, lacking, before := -1, 0, 0
	settled := false // another member is seated
	for _, m := range v.members {
		for _, seat := range m.seats {
			s.known[seat] = true // including those of members that leave
			top = max(top, seat)
		}
		lacking += m.lacks()
		settled = settled || m.state == seated && len(m.seats) > 0 && m.run != s.self.run
		if m.run != s.self.run && cmp.Or(m.place-s.self.place, cmp.Compare(m.run, s.self.run)) < 0 {
			before += m.lacks()
		}
	}
	var vacant, others []int
	for seat := range top + lacking + 1 {
		switch {
		case v.taken[seat] != nil:
		case s.known[seat]:
			vacant = append(vacant, seat)
		default:
			others = append(others, seat)
		}
	}
	if wait := s.settle - now.Sub(s.joined); wait <= 0 || !settled {
		vacant = append(vacant, others...)
	} else {
		next = wait
	}
	mine := vacant[min(before, len(vacant)):]
	mine = mine[:min(s.self.weight-len(s.self.seats), len(mine))]
	if len(mine) == 0 {
		return false, next
	}
	if len(s.self.seats) == 0 {
		s.self.state, s.grown = seated, now.Add(s.settle)
		if !settled {
			s.self.state = young
		}
	}
	s.self.seats = append(s.self.seats, mine...)
	slices.Sort(s.self.seats)
	if len(s.self.seats) == s.self.weight {
		s.self.place = 0
	}
	return true, 0
}
