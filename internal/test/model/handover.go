package main

// When a goroutine unlocks, its client can hand the hold over to another of its goroutines, which
// waits for the lock. This is only done with a hold that the watchdog renews. The store isn't
// notified, and keeps the hold under the same number. A goroutine's tenure is the time for which it
// has the hold.

// handOn emits the possible hand-overs of goroutine g's hold.
func (m *Holds) handOn(s HoldsState, g int, do emitter) {
	n := s.routines[g].number
	if s.handOvers >= m.HandOvers || s.hasCrashed(m.client(g)) || !m.mayHandOn(&s.numbers[n]) {
		return
	}
	for to := range m.goroutines() {
		at := s.routines[to].at
		if m.client(to) == m.client(g) && m.party(to) != m.party(g) &&
			(at == idle || at == waiting) {
			t := s
			m.handTo(&t, g, to)
			do(t, "%s unlocks, hands #%d over to %s%s", m.name(g), n, m.name(to), t.account(n))
		}
	}
}

// mayHandOn reports whether a number may be handed over.
func (m *Holds) mayHandOn(x *number) bool {
	valid := x.use == live && x.count == 1 && x.lost == 0 && x.left > 0
	switch m.Mutation {
	case handsOnLate:
		valid = x.use == live
	case handsOnLost:
		valid = x.use == live && x.left > 0
	case handsOnReleased:
		valid = valid || x.use == live && x.left > 0
	case handsOnNested:
		valid = x.valid()
	}
	switch {
	case !valid || x.watch == 0:
		return false
	case m.SureOnly && m.Mutation != handsOnUnsure && (x.unsure > 0 || x.doubt > 0):
		return false
	}
	return m.Chain == 0 || m.Mutation == handsOnForever || x.age <= 1+m.Chain
}

// handTo hands g's number over to a waiter. If the store may have granted the waiter's own request,
// the client releases that request's number in the background.
func (m *Holds) handTo(s *HoldsState, g, to int) {
	n := s.routines[g].number
	q := &s.routines[to]
	late := q.late
	switch q.at {
	case idle:
		late = s.anyStruck() // the waiter is just calling Lock
	case waiting:
		m.retire(s, q.number, s.numbers[q.number].unsure > 0 && m.Mutation != attemptForgotten)
	}
	for i := range s.requests {
		if r := &s.requests[i]; r.kind == lastRelease && r.who == uint8(g) { // only in a mutation
			*r = request{kind: r.kind, number: r.number, who: nobody, lease: r.lease, left: r.left}
		}
	}
	s.handOvers++
	x := &s.numbers[n]
	if x.count == 1 || m.Mutation != handsOnNested {
		s.routines[g] = goroutine{}
	}
	*q = goroutine{at: handed, number: n}
	x.count, x.party = 1, m.party(to)
	switch m.Mutation {
	case handOverIsNewLease:
		x.left, x.lost = x.lease, 0
	case handsOnLost, handsOnLate:
		x.lost = 0
	case handOverForgetsUnsure:
		x.unsure = 0
	case handOverForgetsDoubt:
		x.doubt = 0
	case chainFromFirstHandOver:
		x.age = max(x.age, 1)
	}
	if x.struck > 0 {
		s.outOfDate = s.outOfDate || late > 0
		s.unvouched = s.unvouched || m.Chain > 0 && x.struck > 1+m.Chain
	}
}

// notice emits what a goroutine can do when it learns that it was handed a hold. Its call might
// have been canceled meanwhile, or the hold might have been lost.
func (m *Holds) notice(s HoldsState, g int, calm bool, do emitter) {
	n := s.routines[g].number
	x := &s.numbers[n]
	if x.lost != 0 && m.Mutation != handedUnseen {
		m.unlockLost(s, g, do) // the goroutine keeps waiting
		return
	}
	t := s
	m.enter(&t, &t.routines[g], n)
	do(t, "%s notices that it has #%d", m.name(g), n)
	if calm {
		return
	}
	if m.Mutation == handedDropped {
		s.routines[g] = goroutine{}
		do(s, "%s was cancelled as it was handed #%d, and leaves it", m.name(g), n)
		return
	}
	m.unlock(s, g, calm, do) // its call was cancelled meanwhile
}
