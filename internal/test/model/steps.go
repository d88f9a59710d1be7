package main

// This file contains the events of the Holds model.

type emitter func(HoldsState, string, ...any)

// Next emits the successors of s.
func (m *Holds) Next(s HoldsState, calm bool, emit func(HoldsState, string, ...any)) {
	do := func(t HoldsState, format string, args ...any) {
		m.tidy(&t)
		emit(t, format, args...)
	}
	for i, r := range s.requests[:m.Requests] {
		if r.kind != none && (i == 0 || r != s.requests[i-1]) {
			m.network(s, i, calm, do)
		}
	}
	m.time(s, calm, do)
	for n := uint8(1); n <= m.numbers(); n++ {
		m.background(s, n, calm, do)
	}
	m.rivalSteps(s, calm, do)
	for g := range m.goroutines() {
		m.step(s, g, calm, do)
	}
	if !calm {
		m.accidents(s, do)
	}
}

// network emits the possible events of request i.
func (m *Holds) network(s HoldsState, i int, calm bool, do emitter) {
	r := s.requests[i]
	expired := m.Punctual && r.left == 0
	if r.reply != pending {
		t := s
		t.requests[i] = request{}
		m.answer(&t, r)
		do(t, "%s gets answer to %s of #%d: %s%s", m.who(r), kinds[r.kind], r.number,
			replies[r.reply], t.account(r.number))
	} else if !expired {
		t := s
		m.carryOut(&t, &t.requests[i])
		reply, late := t.requests[i].reply, ""
		if r.who == nobody {
			t.requests[i] = request{}
			if r.kind != force {
				late = "LATE "
			}
		}
		do(t, "store: %s%s of #%d -> %s (now %s)", late, kinds[r.kind], r.number, replies[reply],
			t.store)
	}
	if r.who == nobody && (!calm || expired) {
		t := s
		t.requests[i] = request{}
		do(t, "network loses %s of #%d", kinds[r.kind], r.number)
	}
	if m.Mutation == libraryRepeats && !calm && r.who != nobody && r.reply == pending &&
		!s.repeated {
		t := s
		t.repeated = true
		if m.send(&t, request{kind: r.kind, number: r.number, who: nobody, lease: r.lease}) {
			do(t, "client library repeats %s of #%d", kinds[r.kind], r.number)
		}
	}
	if r.who == nobody || r.kind <= partialRelease && m.answered(&s) ||
		calm && !(expired && r.reply == pending) {
		return
	}
	t := s
	if r.reply == pending && (r.kind != renewal || m.Fixed > 0) {
		// without fixed leases, a late renewal could only extend a lease, so the model drops it
		t.requests[i].who = nobody
	} else {
		t.requests[i] = request{}
	}
	m.giveUp(&t, r)
	do(t, "%s gives up waiting for %s of #%d: outcome unknown", m.who(r), kinds[r.kind], r.number)
}

// answered reports whether all requests that acquire the lock or change its count are answered in
// time.
func (m *Holds) answered(s *HoldsState) bool { return m.Answered && !(m.Later && s.handOvers == 0) }

// time emits the events that occur as time passes: a tick, and the expiry of the store's entry.
func (m *Holds) time(s HoldsState, calm bool, do emitter) {
	if s.store.number != 0 && s.store.left == 0 {
		t := s
		t.store = entry{}
		do(t, "store: the lease of #%d runs out, key free", s.store.number)
	}
	if s.replica.number != 0 && s.replica.left == 0 {
		s.replica = entry{}
	}
	if m.due(&s, calm) {
		return
	}
	t := s
	lower(&t.store.left)
	lower(&t.replica.left)
	note := ""
	for i := range t.numbers {
		if m.tick(&t.numbers[i]) {
			note = ", a hold's own deadline passes: lost"
		}
	}
	for i := range t.requests {
		lower(&t.requests[i].left)
	}
	do(t, "tick%s", note)
}

func lower(b *uint8) {
	if *b > 0 {
		*b--
	}
}

// tick lets one tick pass for a number, and reports whether its hold is lost as a result.
func (m *Holds) tick(x *number) (isLost bool) {
	if m.Mutation == doubtEnds && x.fading == 1 {
		x.doubt = 0
	}
	lower(&x.fading)
	if x.age > 0 {
		x.age++
	}
	if x.struck > 0 {
		x.struck++
	}
	was := x.valid()
	lower(&x.left)
	if was && x.left == 0 {
		x.lose()
		isLost = true
	}
	if x.unsure > 1 {
		x.unsure--
	}
	if m.Mutation == takenBackInTimeOnly && x.use == retired && x.unsure <= 1 {
		x.use = over
	}
	return isLost
}

// due reports whether some event must come before the next tick. In a calm run, renewals are such
// events.
func (m *Holds) due(s *HoldsState, calm bool) bool {
	for i := range s.numbers {
		x := &s.numbers[i]
		if m.Mutation == takenBackInTimeOnly && x.use == retired && x.fading == 0 {
			return true // a release must come first, or G1 could fail even without the mutation
		}
		if calm && x.valid() && x.watch != 0 && x.left == 1 && m.same(s, s.store.number, uint8(i)) {
			return true
		}
	}
	return false
}

// background emits the background events of a number: renewal and release.
func (m *Holds) background(s HoldsState, n uint8, calm bool, do emitter) {
	x := &s.numbers[n]
	if s.hasCrashed(m.clientOf(n)) {
		return
	}
	if x.valid() && x.watch != 0 && !s.awaits(watchdog, n) {
		t := s
		if m.send(&t, request{kind: renewal, number: n, who: watchdog, lease: x.lease}) {
			do(t, "watchdog sends renewal of #%d", n)
		}
	}
	unused := x.use == retired || x.use == live && x.lost != 0
	if x.use == retired || x.unsure > 0 &&
		(unused || x.use == live && m.Mutation == takenBackEarly) {
		m.takeBack(s, n, calm, do)
	}
}

func (s *HoldsState) awaits(who, n uint8) bool {
	for _, r := range s.requests {
		if r.kind != none && r.who == who && r.number == n {
			return true
		}
	}
	return false
}

// rivalSteps emits the events of the ideal client.
func (m *Holds) rivalSteps(s HoldsState, calm bool, do emitter) {
	if !m.Rival {
		return
	}
	n := m.rival()
	x := s.numbers[n]
	gone := s
	gone.numbers[n] = number{}
	switch {
	case x.use == unused && s.store.number == 0 && !calm:
		t := s
		t.store = entry{n, 1, m.Lease}
		t.numbers[n] = number{use: live, count: 1, left: m.Lease}
		do(t, "B acquires")
	case x.use == live && x.lost != 0:
		do(gone, "B finds its hold lost")
	case x.use == live && s.store.number != n:
		do(gone, "B releases: it was lost")
	case x.use == live:
		if !calm {
			do(gone, "B crashes")
			if s.store.left < m.Lease {
				t := s
				t.store.left, t.numbers[n].left = m.Lease, m.Lease
				do(t, "B renews")
			}
		}
		gone.store = entry{}
		do(gone, "B releases")
	}
}

// accidents emits unplanned events: ForceUnlock calls, failovers and client crashes.
func (m *Holds) accidents(s HoldsState, do emitter) {
	if s.forces < m.Forces {
		t := s
		if m.send(&t, request{kind: force, who: nobody}) {
			t.forces++
			do(t, "some client sends ForceUnlock")
		}
	}
	if s.failovers < m.Failovers {
		if s.replica != s.store {
			t := s
			t.replica = s.store
			do(t, "replica catches up: %s", t.replica)
		}
		t := s
		t.failovers++
		t.fallBack()
		do(t, "store fails over to its replica (now %s)", t.store)
	}
	if m.Crashes > 0 && s.crashed == 0 {
		m.crash(s, 0, do)
		m.crash(s, 1, do)
	}
}

func (m *Holds) crash(s HoldsState, client int, do emitter) {
	s.crashed |= 1 << client
	for g := range m.goroutines() {
		if m.client(g) == client {
			s.routines[g] = goroutine{at: gone}
		}
	}
	for n := uint8(1); n <= m.numbers(); n++ {
		if m.clientOf(n) == client {
			s.numbers[n].use = over
		}
	}
	for i := range s.requests {
		r := &s.requests[i]
		switch {
		case r.number == 0 || m.clientOf(r.number) != client:
		case r.reply != pending:
			*r = request{}
		default:
			r.who = nobody
		}
	}
	do(s, "client %c crashes", 'A'+client)
}

// step emits the next events of a goroutine.
func (m *Holds) step(s HoldsState, g int, calm bool, do emitter) {
	switch s.routines[g].at {
	case idle:
		if !calm {
			m.call(s, g, do)
		}
	case waiting:
		m.wait(s, g, calm, do)
	case handed:
		m.notice(s, g, calm, do)
	case inside:
		if s.numbers[s.routines[g].number].lost != 0 {
			m.unlockLost(s, g, do)
			return
		}
		if !calm {
			m.nest(s, g, do)
		}
		m.unlock(s, g, calm, do)
	case queued:
		m.enterNested(s, g, do)
	case draining, undrained:
		m.drain(s, g, calm, do)
	}
}

// call makes an idle goroutine call Lock.
func (m *Holds) call(s HoldsState, g int, do emitter) {
	me := m.name(g)
	for q := range m.goroutines() { // only the head of a queue acts
		at := s.routines[q].at
		if m.client(q) != m.client(g) {
			continue
		}
		if at == trying || at == waiting {
			return
		}
		if n := s.routines[q].number; m.Mutation == lockerIsOwner && q != g && at == inside &&
			s.numbers[n].valid() {
			t := s
			t.routines[g] = goroutine{at: entering, number: n}
			if m.send(&t, request{kind: reentry, number: n, who: uint8(g), lease: m.Lease}) {
				do(t, "%s calls Lock, sends re-entry of #%d, which the Locker has", me, n)
			}
			return
		}
	}
	if m.Pair && g <= 1 {
		other := s.routines[1-g]
		if x := &s.numbers[other.number]; x.valid() && x.party == m.party(g) {
			t := s
			t.routines[g] = goroutine{at: queued, number: other.number}
			do(t, "%s calls Lock, and will re-enter #%d", me, other.number)
			return
		}
	}
	first, last := 1, m.Numbers[0]
	if m.client(g) == 1 {
		first, last = m.Numbers[0]+1, m.Numbers[0]+m.Numbers[1]
	}
	for n := first; n <= last; n++ {
		if s.numbers[n].use != unused {
			continue
		}
		for _, lease := range m.leases() {
			t := s
			t.numbers[n] = number{
				use: live, party: m.party(g), lease: lease, watch: m.watches(lease),
			}
			t.routines[g] = goroutine{at: trying, number: uint8(n), late: s.anyStruck()}
			if m.send(&t, request{
				kind: acquisition, number: uint8(n), who: uint8(g), lease: lease,
			}) {
				do(t, "%s calls Lock, sends acquisition of #%d%s", me, n, m.leaseText(lease))
			}
		}
		return
	}
}

func (s *HoldsState) anyStruck() uint8 {
	for i := range s.numbers {
		if s.numbers[i].struck > 0 {
			return 1
		}
	}
	return 0
}

// leases returns the leases that a caller may ask for.
func (m *Holds) leases() []uint8 {
	if m.Fixed > 0 {
		return []uint8{m.Fixed, m.Lease}
	}
	return []uint8{m.Lease}
}

func (m *Holds) watches(lease uint8) uint8 {
	if lease == m.Lease {
		return 1
	}
	return 0
}

// wait emits the events of a waiting goroutine: it tries again or gives up.
func (m *Holds) wait(s HoldsState, g int, calm bool, do emitter) {
	n := s.routines[g].number
	if !calm {
		t := s
		t.routines[g].at = trying
		if m.send(&t, request{
			kind: acquisition, number: n, who: uint8(g), lease: s.numbers[n].lease,
		}) {
			do(t, "%s tries again, sends acquisition of #%d", m.name(g), n)
		}
	}
	m.retire(&s, n, s.numbers[n].unsure > 0)
	s.routines[g] = goroutine{}
	do(s, "%s gives up #%d", m.name(g), n)
}

// nest makes a goroutine re-enter its hold.
func (m *Holds) nest(s HoldsState, g int, do emitter) {
	n := s.routines[g].number
	x := s.numbers[n]
	first := g == 0 || g == m.Goroutines[0]
	if !m.AllNested && !(m.Nested[m.client(g)] && first) || x.count >= m.Depth {
		return
	}
	for _, wanted := range m.leases() {
		lease := max(wanted, x.left)
		if x.watch != 0 {
			lease = x.lease
		}
		if m.Mutation == reentryShortens {
			lease = wanted
		}
		t := s
		t.routines[g].at = entering
		if m.send(&t, request{
			kind: reentry, number: n, who: uint8(g), lease: lease, watch: m.watches(wanted),
		}) {
			do(t, "%s calls Lock again, sends re-entry of #%d%s", m.name(g), n, m.leaseText(lease))
		}
	}
}

// enterNested makes a goroutine re-enter the hold of the other goroutine of its pair. If that hold
// has ended since the call began, the call ends without a re-entry.
func (m *Holds) enterNested(s HoldsState, g int, do emitter) {
	n := s.routines[g].number
	x := &s.numbers[n]
	if s.slotTaken(g) {
		return
	}
	if !x.valid() || x.party != m.party(g) && m.Mutation != entersOthersTenure {
		s.routines[g] = goroutine{}
		do(s, "%s can't re-enter #%d any more", m.name(g), n)
		return
	}
	s.routines[g].at = entering
	if m.send(&s, request{
		kind: reentry, number: n, who: uint8(g), lease: x.lease, watch: x.watch,
	}) {
		do(s, "%s sends re-entry of #%d", m.name(g), n)
	}
}

// slotTaken reports whether another goroutine's re-entry or partial release of the same hold is
// under way. A hold has one such step at a time.
func (s *HoldsState) slotTaken(g int) bool {
	for q, r := range s.routines {
		if q != g && r.number == s.routines[g].number && (r.at == entering || r.at == leaving) {
			return true
		}
	}
	return false
}

// unlockLost emits the event in which a goroutine unlocks and learns that the hold was lost.
func (m *Holds) unlockLost(s HoldsState, g int, do emitter) {
	n := s.routines[g].number
	if s.slotTaken(g) {
		return
	}
	if m.Mutation == handsOnLate || m.Mutation == handsOnLost {
		m.handOn(s, g, do)
	}
	last := true
	for q, r := range s.routines {
		last = last && (q == g || r.number != n || r.at == idle || r.at == queued)
	}
	if last {
		m.retire(&s, n, m.Mutation != errorNotTakenBack || s.numbers[n].unsure > 0)
	}
	s.routines[g] = goroutine{}
	do(s, "%s unlocks: ErrLost", m.name(g))
}

// unlock makes a goroutine release a hold.
func (m *Holds) unlock(s HoldsState, g int, calm bool, do emitter) {
	n := s.routines[g].number
	x := s.numbers[n]
	if s.slotTaken(g) {
		if m.Mutation == handsOnDuringReentry && !calm && x.count == 1 {
			m.handOn(s, g, do)
		}
		if m.Mutation != unlocksDuringReentry || x.count > 1 {
			return
		}
	}
	if m.Mutation == partialRepeated && s.hasLate(partialRelease, n) {
		t := s
		t.routines[g].at = leaving
		if m.send(&t, request{kind: partialRelease, number: n, who: uint8(g), lease: x.lease}) {
			do(t, "%s repeats the partial release of #%d", m.name(g), n)
		}
	}
	if m.Mutation == handsOnNested && !calm {
		m.handOn(s, g, do)
	}
	if x.count > 1 {
		lease := max(x.lease, x.left)
		if m.Mutation == releaseShortens {
			lease = min(m.Lease, max(m.Fixed, 1))
		}
		t := s
		t.numbers[n].count--
		t.routines[g].at = leaving
		if m.send(&t, request{kind: partialRelease, number: n, who: uint8(g), lease: lease}) {
			do(t, "%s unlocks one of %d, sends partial release of #%d%s", m.name(g), x.count, n,
				m.leaseText(lease))
		}
		return
	}
	m.unlockLast(s, g, do)
	if !calm {
		m.handOn(s, g, do)
	}
}

func (s *HoldsState) hasLate(kind, n uint8) bool {
	for _, r := range s.requests {
		if r.kind == kind && r.number == n && r.who == nobody {
			return true
		}
	}
	return false
}

// unlockLast begins the last release of a hold in the store.
func (m *Holds) unlockLast(s HoldsState, g int, do emitter) {
	n := s.routines[g].number
	s.numbers[n].count = 0
	s.routines[g].at = draining
	if m.send(&s, request{kind: lastRelease, number: n, who: uint8(g), lease: s.numbers[n].lease}) {
		do(s, "%s unlocks, sends last release of #%d", m.name(g), n)
	}
}

// drain resends a last release, or leaves it to a background release when the time for resending is
// over.
func (m *Holds) drain(s HoldsState, g int, calm bool, do emitter) {
	n := s.routines[g].number
	if m.Mutation == handsOnReleased && !calm {
		m.handOn(s, g, do)
	}
	if s.routines[g].at == draining {
		return
	}
	t := s
	t.routines[g].at = draining
	if m.send(&t, request{kind: lastRelease, number: n, who: uint8(g), lease: s.numbers[n].lease}) {
		do(t, "%s repeats the last release of #%d", m.name(g), n)
	}
	s.routines[g] = goroutine{}
	if m.Mutation == renewsAfterUnlock && s.numbers[n].left > 0 {
		s.numbers[n].count = 1
	} else {
		m.retire(&s, n, m.Mutation != errorNotTakenBack || s.numbers[n].unsure > 0)
	}
	do(s, "%s's Unlock ends with an error, its time is over", m.name(g))
}
