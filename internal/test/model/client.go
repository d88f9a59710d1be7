package main

// This file models how a client reacts to replies, and to missing replies.

// answer delivers a reply to its waiter.
func (m *Holds) answer(s *HoldsState, r request) {
	x := &s.numbers[r.number]
	if r.who == watchdog {
		m.answerRenewal(x, r)
		return
	}
	g := &s.routines[r.who]
	switch r.kind {
	case acquisition:
		m.answerAcquisition(s, g, r)
	case reentry:
		m.answerReentry(s, g, r)
	case partialRelease:
		g.at = m.afterNested()
		if r.reply == left {
			m.extend(x, r)
		} else {
			x.lose()
		}
	case lastRelease:
		if r.reply == left && m.Mutation != releasesOnce {
			g.at = undrained
			return
		}
		m.retire(s, r.number, x.unsure > 0)
		*g = goroutine{}
	}
}

func (m *Holds) answerRenewal(x *number, r request) {
	switch {
	case x.use != live || x.count == 0: // the last release was sent, so the reply has no effect
	case r.reply == renewed:
		m.extend(x, r)
	default:
		x.lose()
	}
}

func (m *Holds) answerAcquisition(s *HoldsState, g *goroutine, r request) {
	x := &s.numbers[r.number]
	switch {
	case r.reply == heldByAnother:
		g.at = waiting
	case r.left == 0 && m.Mutation != acceptsLate && m.Mutation != deadlineFromReply:
		x.unsure = max(x.unsure, 1)
		m.retire(s, r.number, true)
		*g = goroutine{}
	default:
		for n := uint8(1); n <= m.numbers(); n++ {
			// this grant proves that no other number of the client still holds the lock
			if y := &s.numbers[n]; n != r.number && m.clientOf(n) == m.clientOf(r.number) &&
				y.use == live && y.count > 0 {
				y.lose()
			}
		}
		x.count, x.left = 1, 0
		switch m.Mutation {
		case chainFromFirstHandOver:
		case chainFromAnswer:
			x.age = 1
		default:
			x.age = 1 + r.lease - r.left
		}
		m.extend(x, r)
		m.enter(s, g, r.number)
	}
}

func (m *Holds) answerReentry(s *HoldsState, g *goroutine, r request) {
	x := &s.numbers[r.number]
	at := m.afterNested()
	switch {
	case r.reply == heldByAnother:
		x.lose()
	case x.lost != 0 && m.Mutation != revivesLost:
		x.unsure = max(x.unsure, 1)
	case r.count <= x.count && m.Mutation != countIgnored:
		x.unsure = max(x.unsure, 1)
		x.lose()
	default:
		if m.Mutation == revivesLost && r.left > 0 {
			x.lost = 0
		}
		x.count++
		x.watch = max(x.watch, r.watch)
		m.extend(x, r)
		at = inside
	}
	g.at = at
	if at == idle {
		*g = goroutine{}
	}
}

// afterNested returns the state of a goroutine after a partial release, or after a failed re-entry.
func (m *Holds) afterNested() uint8 {
	if m.Pair {
		return idle
	}
	return inside
}

// extend extends the deadline after a reply that grants a lease.
func (m *Holds) extend(x *number, r request) {
	if x.lost != 0 {
		return
	}
	if r.kind != renewal {
		x.lease = r.lease
	}
	promise := r.left
	if m.Mutation == deadlineFromReply {
		promise = r.lease
	}
	if x.doubt > 0 && x.doubt < r.lease {
		promise -= min(promise, r.lease-x.doubt)
	}
	x.left = max(x.left, promise)
	if r.before == 0 {
		x.struck = 0
	}
}

// enter records that a goroutine now holds the lock under number n.
func (m *Holds) enter(s *HoldsState, g *goroutine, n uint8) {
	*g = goroutine{at: inside, number: n}
	if x := &s.numbers[n]; x.left == 0 && x.struck == 0 {
		s.tooLate = true
		x.lose()
	}
}

// giveUp ends the wait for a reply. The client doesn't learn whether the request was carried out.
func (m *Holds) giveUp(s *HoldsState, r request) {
	m.unknown(s, r)
	if r.who >= watchdog {
		return
	}
	g := &s.routines[r.who]
	x := &s.numbers[r.number]
	switch g.at {
	case trying:
		g.at = waiting
	case entering:
		if m.Mutation == unknownReentryCounts && x.lost == 0 {
			x.count++
		}
		g.at = m.afterNested()
	case leaving:
		g.at = m.afterNested()
	case draining:
		if m.Mutation == releasesOnce {
			m.retire(s, r.number, x.unsure > 0)
			*g = goroutine{}
			break
		}
		g.at = undrained
	}
	if g.at == idle {
		*g = goroutine{}
	}
}

// unknown records that the client stopped waiting for the reply to r.
func (m *Holds) unknown(s *HoldsState, r request) {
	x := &s.numbers[r.number]
	counts := r.kind == acquisition || r.kind == reentry
	if m.Mutation != doubtIgnored && (counts || r.kind == partialRelease) &&
		(x.doubt == 0 || r.lease < x.doubt) {
		x.doubt = r.lease
		if m.Mutation == doubtEnds {
			x.fading = max(1, r.left)
		}
	}
	if counts && !(m.Mutation == reentryNotTakenBack && r.kind == reentry) {
		x.unsure = max(x.unsure, 1+r.left)
	}
}

// retire ends the use of number n. If back is true, the client then releases n in the background.
func (m *Holds) retire(s *HoldsState, n uint8, back bool) {
	x := &s.numbers[n]
	x.use = over
	if back && m.Mutation != neverTakenBack {
		x.use = retired
	}
}

// takeBack emits a background release of a number. The client repeats the release until the store
// replies that nothing is left of the hold, and until none of the number's unanswered requests can
// still acquire the lock. In this model a release and its reply take no time. That is accurate
// enough, because they don't affect numbers in use.
func (m *Holds) takeBack(s HoldsState, n uint8, calm bool, do emitter) {
	t := s
	x := &t.numbers[n]
	r := request{kind: backRelease, number: n, lease: m.Lease}
	m.carryOut(&t, &r)
	if m.Mutation == takenBackInTimeOnly {
		x.fading = 1
	}
	once := m.Mutation == takenBackOnce
	if x.use == retired && (x.unsure <= 1 && r.reply != left || once) {
		x.use = over
	}
	do(t, "background takes #%d back: %s (now %s)", n, replies[r.reply], t.store)
	if once && !calm {
		t = s
		t.numbers[n].use = over
		do(t, "background takes #%d back: lost in the network", n)
	}
}
