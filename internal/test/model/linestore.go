package main

import "slices"

// This file contains the store's steps.

// do runs the given function as one step of the store. Then the store grants a free lock to the
// first in line.
func (m *Line) do(s *LineState, what func()) {
	what()
	m.settle(s)
	s.ranOut = false
}

// settle grants a free lock to the first in line.
func (m *Line) settle(s *LineState) {
	n := s.line[0]
	if s.store.number != 0 || n == 0 {
		return
	}
	m.give(s, n, m.Short)
	if n == m.rival() {
		s.calls[n].at, s.calls[n].left = within, m.Short
		return
	}
	if m.Deaf || s.gone(m.client(n)) {
		return
	}
	for i := range m.Grants {
		if s.messages[i].number == 0 {
			s.messages[i] = message{number: n, left: m.Short}
			break
		}
	}
}

// give grants the lock to number n.
func (m *Line) give(s *LineState, n, lease uint8) {
	x := &s.calls[n]
	before := x.behind
	if !x.came {
		before = s.came()
	}
	for q := uint8(1); q <= m.numbers(); q++ {
		y := &s.calls[q]
		if s.waiting(m, n) && q != n && before&(1<<q) != 0 && y.at == queues && !y.missed &&
			s.waiting(m, q) {
			s.overtook = true
		}
	}
	if m.Mutation != grantKeepsPlace {
		s.leave(n)
	}
	s.store = entry{n, 1, lease}
}

// waiting reports whether a call waits and its client hasn't crashed.
func (s *LineState) waiting(m *Line, n uint8) bool {
	return s.calls[n].at == queues && (n == m.rival() || !s.gone(m.client(n)))
}

// came returns the set of calls that had a place and still wait.
func (s *LineState) came() (set uint8) {
	for n := range s.calls {
		if s.calls[n].came && s.calls[n].at == queues {
			set |= 1 << n
		}
	}
	return set
}

func (s *LineState) leave(n uint8) {
	if i := slices.Index(s.line[:], n); i >= 0 {
		copy(s.line[i:], s.line[i+1:])
		s.line[len(s.line)-1] = 0
	}
}

// enqueue adds a number at the end of the line.
func (m *Line) enqueue(s *LineState, n uint8) {
	x := &s.calls[n]
	if !x.came {
		x.came, x.behind = true, s.came()&^(1<<n)
	}
	x.missed = false
	s.line[slices.Index(s.line[:], 0)] = n
}

// comeBack puts the numbers in the set back at the front of the line, except numbers that are in
// line already, and the number that holds the lock.
func (m *Line) comeBack(s *LineState, set uint8) {
	at := 0
	for n := uint8(1); n <= m.numbers(); n++ {
		if set&(1<<n) == 0 || s.store.number == n || s.inLine(n) {
			continue
		}
		if m.Mutation == comesBackLast {
			m.enqueue(s, n)
			continue
		}
		copy(s.line[at+1:], s.line[at:])
		s.line[at] = n
		at++
		x := &s.calls[n]
		if x.behind = 0; !x.stood {
			x.behind = s.came()
		}
		x.came, x.missed = true, false
	}
}

// miss records that the store ended a call's place or grant, and that the client doesn't know this.
// If the client didn't know that the call had a place, the call is treated as if it never had one.
func (s *LineState) miss(n uint8) {
	x := &s.calls[n]
	if x.at != queues || !x.came {
		return
	}
	x.missed = true
	if !x.stood {
		x.came, x.missed, x.behind = false, false, 0
		for q := range s.calls {
			s.calls[q].behind &^= 1 << n
		}
	}
}

// carryOut carries out a request in the store.
func (m *Line) carryOut(s *LineState, r *lineRequest) {
	n, e := r.number, &s.store
	turn := e.number == 0 && (s.line[0] == 0 || s.line[0] == n)
	switch r.kind {
	case acquisition:
		m.do(s, func() {
			switch {
			case e.number == n:
				e.left, r.reply = max(e.left, m.lease(n)), acquired
				if m.Mutation == attemptShortens {
					e.left = m.lease(n)
				}
			case turn:
				m.give(s, n, m.lease(n))
				r.reply = acquired
			default:
				r.reply = heldByAnother
				if !s.inLine(n) {
					// the client sent the request before it knew that the place was lost, so the
					// new place doesn't make up for the loss
					missed := s.calls[n].missed && m.Mutation != asksByAttempt
					m.enqueue(s, n)
					s.calls[n].missed = missed
				}
			}
			r.count = e.count
		})
	case reentry:
		m.do(s, func() {
			switch {
			case e.number == n:
				e.count++
				e.left, r.reply = max(e.left, m.Lease), acquired
			case turn:
				m.give(s, n, m.Lease)
				r.reply = acquired
			default:
				r.reply = heldByAnother
			}
			r.count = e.count
		})
	case renewal:
		m.do(s, func() {
			r.reply = renewedNot
			if e.number == n {
				e.left, r.reply = m.lease(n), renewed
			}
		})
	case keeping:
		m.do(s, func() { m.comeBack(s, r.set) })
		r.reply = kept
		if r.set&(1<<e.number) != 0 && e.number != 0 {
			r.holder, r.lasts = e.number, e.left
			if m.Mutation != keptFromReply {
				r.lasts -= min(r.lasts, m.Lease-r.left)
			}
		}
	}
}

// lease returns the lease that a call asks for.
func (m *Line) lease(n uint8) uint8 {
	if m.Fixed > 0 && n == 1 {
		return m.Fixed
	}
	return m.Lease
}

// release releases a number's hold or place. It reports whether the store holds nothing for that
// number any longer.
func (m *Line) release(s *LineState, n uint8) bool {
	left := false
	change := func() {
		switch e := &s.store; {
		case e.number == n && e.count > 1:
			e.count--
			left = true
		case e.number == n:
			*e = entry{}
		default:
			if m.Mutation != releaseKeepsPlace {
				s.leave(n)
			}
		}
	}
	if m.Mutation == releaseUnsettled {
		change()
	} else {
		m.do(s, change)
	}
	return !left
}
