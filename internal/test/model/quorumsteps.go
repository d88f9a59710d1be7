package main

import (
	"math/bits"
)

type quorumEmitter func(QuorumState, string, ...any)

// Next emits the successors of s.
func (m *Quorum) Next(s QuorumState, calm bool, emit func(QuorumState, string, ...any)) {
	do := func(t QuorumState, format string, args ...any) {
		m.tidy(&t)
		emit(t, format, args...)
	}
	for c := range s.clients {
		for k := range s.stores {
			m.network(s, c, k, calm, do)
		}
		m.step(s, c, calm, do)
	}
	for n := uint8(1); n <= 2*maxNames; n++ {
		for k := range s.stores {
			m.background(s, n, k, calm, do)
		}
	}
	m.store(s, calm, do)
}

// store emits the restarts of the stores, the late releases, and the ticks of the clock.
func (m *Quorum) store(s QuorumState, calm bool, do quorumEmitter) {
	for k := range s.stores {
		if !calm && s.restarts < m.Restarts && s.oneWell(k) && m.mayRestart(&s) {
			t := s
			t.restarts++
			t.again, t.rounds = 0, 0
			m.free(&t, k)
			if m.Away {
				t.stores[k].away = m.Lease
			}
			do(t, "store %d restarts, and is empty", k+1)
		}
	}
	if g := s.ghost; g[0] != 0 {
		t, k := s, int(g[0]-1)
		if t.stores[k].away == 0 {
			m.release(&t, k, g[1])
			do(t, "store %d: LATE give-back of %s", k+1, m.nameText(g[1]))
		}
		t = s
		t.ghost = [2]uint8{}
		do(t, "network loses the give-back of %s", m.nameText(g[1]))
	}
	if m.timeless() {
		return
	}
	for k := range s.stores {
		e := &s.stores[k]
		if e.left == 1 {
			m.free(&s, k)
		}
		lower(&e.left)
		if e.away != forGood {
			lower(&e.away)
		}
	}
	for c := range s.clients {
		lower(&s.clients[c].left)
		lower(&s.clients[c].promise)
	}
	do(s, "tick")
}

// mayRestart reports whether a store is allowed to restart. If Spaced is set, that requires enough
// renewals since the last restart, and no late acquisitions.
func (m *Quorum) mayRestart(s *QuorumState) bool {
	return !m.Spaced || s.rounds == enough && s.lates() == 0
}

// oneWell reports whether all stores, not only store k, are up.
func (s *QuorumState) oneWell(k int) bool {
	for i := range s.stores {
		if i != k && s.stores[i].away > 0 {
			return false
		}
	}
	return s.stores[k].away == 0
}

// free empties a store, and wakes the clients that listen there, even the client that released the
// lock. When a hold expires, a real store sends no message, but the timers of those clients fire.
// So a wake-up after an expiry stands for a timer.
func (m *Quorum) free(s *QuorumState, k int) {
	had := s.stores[k].name
	s.stores[k] = ballot{away: s.stores[k].away}
	for c := range s.clients {
		if x := &s.clients[c]; (x.at == asks || x.at == sleeps) && int(x.listens) == k+1 &&
			(m.Mutation != ownUnheard || had == 0 || m.client(had) != c) {
			x.woken = true
		}
	}
}

// acquire carries out an acquisition in a store.
func (m *Quorum) acquire(s *QuorumState, k int, name uint8) uint8 {
	e := &s.stores[k]
	switch e.name {
	case 0:
		*e = ballot{name: name, count: 1, left: m.Lease}
	case name:
		e.left = m.Lease
		e.count++
	default:
		return no
	}
	return yes
}

// release decrements a name's count in a store, and reports whether the count is still above zero.
func (m *Quorum) release(s *QuorumState, k int, name uint8) (more bool) {
	e := &s.stores[k]
	if e.name != name {
		return false
	}
	if e.count--; e.count == 0 {
		m.free(s, k)
	}
	return e.name == name && m.Mutation != freedOnce
}

// abandon makes a client stop waiting for a store's answer.
func (m *Quorum) abandon(s *QuorumState, c, k int) {
	x := &s.clients[c]
	if acquires := x.at == asks ||
		x.at == reenters && m.Mutation == reentriesCounted; acquires && x.votes[k] == sent &&
		s.lates() < m.Late {
		s.names[x.name].add(k)
	}
	x.votes[k] = silent
}

func (s *QuorumState) lates() (n int) {
	for _, x := range s.names {
		n += bits.OnesCount8(x.late) + bits.OnesCount8(x.later)
	}
	return n
}

// add records another acquisition that store k might still carry out. It returns false if two are
// already recorded.
func (x *ballotName) add(k int) bool {
	switch {
	case !inSet(x.late, k):
		x.late |= 1 << k
	case !inSet(x.later, k):
		x.later |= 1 << k
	default:
		return false
	}
	return true
}

// remove records that an acquisition was carried out or lost.
func (x *ballotName) remove(k int) {
	if inSet(x.later, k) {
		x.later &^= 1 << k
	} else {
		x.late &^= 1 << k
	}
}

// network emits the possible events of a client's request to a store. In this model, a request
// takes time to reach the store, but the answer arrives at once. A delayed answer would make a
// difference only to a client that relies on a hold in the meantime.
func (m *Quorum) network(s QuorumState, c, k int, calm bool, do quorumEmitter) {
	x := &s.clients[c]
	if x.at != asks && x.at != renews && x.at != reenters || x.votes[k] != sent {
		return
	}
	there := s.stores[k].away == 0
	silences := !there || m.silent(&s) && !calm
	if m.Mutation == waitsForTheLast && x.at == asks && m.splitBut(x, k) {
		silences = false
	}
	if there {
		t := s
		word, answer := m.carryOut(&t, c, k)
		if silences {
			u := t
			m.silence(&u, k)
			m.hear(&u, c, k, silent)
			do(u, "store %d: %s of %s -> %s, but %c gives up waiting%s", k+1, word,
				m.nameText(x.name), answers[answer], 'A'+c, m.account(&u, c))
		}
		m.hear(&t, c, k, answer)
		do(t, "store %d: %s of %s -> %s%s", k+1, word, m.nameText(x.name), answers[answer],
			m.account(&t, c))
	}
	if !silences {
		return
	}
	if t := s; m.Slow && x.at == asks && k == int(x.lead) {
		m.silence(&t, k)
		t.clients[c].down |= 1 << k
		if m.askNext(&t, c) {
			do(t, "%c asks the next as store %d is slow", 'A'+c, k+1)
		}
	}
	t := s
	m.silence(&t, k)
	m.abandon(&t, c, k)
	m.hear(&t, c, k, silent)
	do(t, "%c gives up waiting for store %d%s", 'A'+c, k+1, m.account(&t, c))
}

// splitBut reports whether a client has one yes and one no, and still waits for store k.
func (m *Quorum) splitBut(x *voter, k int) bool {
	yeas, nays, open := m.votes(x)
	return yeas == 1 && nays == 1 && open == 1 && x.votes[k] == sent
}

// silent reports whether the limit m.Silent still allows a client to give up waiting for a store
// that is up.
func (m *Quorum) silent(s *QuorumState) bool { return m.Silent == often || s.silent < m.Silent }

func (m *Quorum) silence(s *QuorumState, k int) {
	if m.Silent != often && s.stores[k].away == 0 {
		s.silent++
	}
}

var answers = [...]string{yes: "yes", no: "no", silent: ""}

// carryOut carries out a client's request in a store.
func (m *Quorum) carryOut(s *QuorumState, c, k int) (word string, answer uint8) {
	x := &s.clients[c]
	e := &s.stores[k]
	switch {
	case x.at == asks:
		return "acquisition", m.acquire(s, k, x.name)
	case x.at == reenters && m.Mutation == reentriesCounted:
		return "re-entry", m.acquire(s, k, x.name)
	case e.name == x.name:
		e.left = m.Lease
		return "renewal", yes
	default:
		return "renewal", no
	}
}

// hear delivers a store's answer to a client. If the client stops waiting without an answer, the
// parameter answer is the constant silent.
func (m *Quorum) hear(s *QuorumState, c, k int, answer uint8) {
	x := &s.clients[c]
	x.votes[k] = answer
	switch answer {
	case yes:
		if inSet(x.perhaps, k) {
			x.regained |= 1 << k
		}
	case no:
		m.refute(x, k)
	case silent:
		x.down |= 1 << k
	}
	m.decide(s, c)
}

// refute records that a store doesn't have the client's hold.
func (m *Quorum) refute(x *voter, k int) {
	x.never |= 1 << k
	x.said |= 1 << k
	x.regained &^= 1 << k
	x.perhaps &^= 1 << k
}

func (m *Quorum) account(s *QuorumState, c int) string {
	return map[uint8]string{asks: ", and asks on", sleeps: ", and waits", has: ", and has the lock",
		renews: "", reenters: "", givesBack: ", and has lost the lock"}[s.clients[c].at]
}

// votes counts the answers to a client's step.
func (m *Quorum) votes(x *voter) (yeas, nays, open int) {
	for k, v := range x.votes {
		switch v {
		case unasked, sent:
			if v == sent || x.at == asks {
				open++
			}
		case yes:
			if !inSet(x.never, k) || inSet(x.regained, k) || m.Mutation == refutedCounts {
				yeas++
			}
		case no:
			nays++
		case silent:
			if m.Mutation == silenceCounts {
				yeas++
			}
		}
	}
	return yeas, nays, open
}

// askNext sends an attempt to a store that hasn't been asked yet. Stores that are believed to be
// down come last.
func (m *Quorum) askNext(s *QuorumState, c int) bool {
	x := &s.clients[c]
	for _, down := range [2]bool{false, true} {
		for k, v := range x.votes {
			if v == unasked && inSet(x.down, k) == down {
				x.votes[k], x.lead = sent, uint8(k)
				return true
			}
		}
	}
	return false
}

// askRest sends an attempt to all stores that haven't been asked yet.
func (m *Quorum) askRest(x *voter) {
	for k, v := range x.votes {
		if v == unasked {
			x.votes[k] = sent
		}
	}
}

// decide acts on the votes of a client's step.
func (m *Quorum) decide(s *QuorumState, c int) {
	if s.clients[c].at == asks {
		m.decideAttempt(s, c)
		return
	}
	x := &s.clients[c]
	yeas, nays, open := m.votes(x)
	few := majority
	if m.Mutation == renewedByFew {
		few = 1
	}
	switch m.Mutation {
	case refutedCounts:
	case forgivenAtOnce:
		nays = bits.OnesCount8(x.never &^ x.regained)
	default:
		nays = bits.OnesCount8(x.never)
	}
	switch {
	case m.Spaced && open > 0:
		return // there are no faults, so the other stores will answer
	case nays >= majority:
		s.robbed = s.robbed || x.left > 0
		x.left = 0
		m.endHold(s, c)
		return
	case yeas >= few:
		if x.at == reenters {
			x.depth++
		}
		if x.left > 0 {
			x.left = max(x.left, m.granted(x))
		}
		m.confirm(x)
		m.repair(s, c)
		if s.rounds = min(s.rounds+1, enough); s.lates() > 0 {
			s.rounds = 0
		}
	case open > 0:
		return
	}
	for k, v := range x.votes {
		if v == sent {
			m.abandon(s, c, k)
		}
	}
	x.at = has
}

// confirm clears the record that a store lost the hold. It does so only for stores that have the
// hold again, and only if a majority of the stores is known to have it.
func (m *Quorum) confirm(x *voter) {
	sure, surely, asked := 0, 0, uint8(0)
	for k, v := range x.votes {
		if v == yes && (!inSet(x.never, k) || m.Mutation == confirmsItself) {
			sure++
		}
		if v == yes && !inSet(x.said, k) {
			surely++
		}
		if v != unasked {
			asked |= 1 << k
		}
	}
	forgiven := x.never & x.regained & asked &^ x.perhaps
	if surely >= majority {
		x.said &^= forgiven
	}
	if m.Mutation == forgivenUnasked {
		forgiven = x.never & x.regained
	}
	if sure >= majority {
		x.never &^= forgiven
		x.regained &^= forgiven
	}
	x.perhaps &^= x.regained
}

// repair sends an acquisition to the stores that lack the hold.
func (m *Quorum) repair(s *QuorumState, c int) {
	x := &s.clients[c]
	if !m.Repairs || m.Mutation == neverRepaired {
		return
	}
	for k := range quorumStores {
		lacks := inSet(x.never&^(x.regained|x.repairs|x.perhaps), k)
		if lacks && s.lates() < m.Late && s.names[x.name].add(k) {
			x.repairs |= 1 << k
		}
	}
}

// granted returns the remaining time of a lease that a majority granted.
func (m *Quorum) granted(x *voter) uint8 {
	if m.Mutation == deadlineFromReply {
		return m.Lease
	}
	return x.promise
}

func (m *Quorum) decideAttempt(s *QuorumState, c int) {
	x := &s.clients[c]
	yeas, _, _ := m.votes(x)
	if yeas >= majority {
		m.enter(s, c)
		return
	}
	lead := x.votes[x.lead]
	switch {
	case lead == no && yeas == 0 && !m.atOnce(x):
		if !m.doubts(s, c) {
			m.fail(s, c)
			return
		}
		m.askNext(s, c)
	case yeas > 0:
		m.askRest(x)
	case lead == silent:
		m.askNext(s, c)
	}
	if yeas, _, open := m.votes(x); yeas+open < majority {
		m.fail(s, c)
	}
}

// atOnce reports whether a client asks all stores at once, and releases the lock in all at once.
func (m *Quorum) atOnce(x *voter) bool {
	return m.Rival || m.Mutation == asksAllAtOnce || m.AtOnce && !x.wary
}

// doubts reports whether a client continues its attempt after a refusal by the first store. It
// continues if a majority of the stores are free.
func (m *Quorum) doubts(s *QuorumState, c int) bool {
	x := &s.clients[c]
	if !m.Doubts || m.Mutation == believesFirst {
		return false
	}
	name, free := s.stores[x.lead].name, 0
	for k, e := range s.stores {
		if e.name == 0 && e.away == 0 && x.votes[k] == unasked {
			free++
		}
	}
	if y := &s.clients[1-c]; m.Well && y.name == name && (y.at == asks || y.at == givesBack) {
		return false // the other client will soon have all stores, or none
	}
	return free >= majority
}

// elsewhere determines how a client waits after the first store has refused it. If a majority of
// the stores have granted the lock to the same name, but the first store to another, the client
// should listen to a store of that majority. The first result is then 1 + that store's index, and
// otherwise 0. The second result reports whether a name other than the first store's might soon get
// a majority, so that the client should poll.
func (m *Quorum) elsewhere(s *QuorumState, x *voter) (at uint8, soon bool) {
	if !m.Doubts || m.Mutation == listensToLeftover {
		return 0, false
	}
	for k, e := range s.stores {
		if e.name == 0 || x.votes[k] != unasked || e.name == s.stores[x.lead].name {
			continue
		}
		if s.count(e.name) >= majority {
			return uint8(k) + 1, false
		}
		soon = true
	}
	return 0, soon
}

// enter records that a client now holds the lock, unless the lease has already expired.
func (m *Quorum) enter(s *QuorumState, c int) {
	x := &s.clients[c]
	if m.granted(x) == 0 && !m.timeless() {
		if m.Mutation != acceptsLate {
			m.fail(s, c)
			return
		}
		s.tooLate = true
	}
	for k, v := range x.votes {
		switch v {
		case sent:
			m.abandon(s, c, k)
		case no:
			m.refute(x, k)
			x.wary = true
		}
	}
	x.at, x.left, x.depth = has, m.granted(x), 0
	s.again, s.rounds = 0, 0
	if y := &s.clients[1-c]; m.valid(y) {
		y.struck = true
	}
}

// fail ends an attempt, and starts to release in the background what the attempt acquired. The
// client then waits until it is time for the next attempt.
func (m *Quorum) fail(s *QuorumState, c int) {
	x := &s.clients[c]
	yeas, nays, yesses, refused := 0, 0, uint8(0), x.votes[x.lead] == no
	for k, v := range x.votes {
		switch v {
		case unasked:
			continue
		case no:
			nays++
			continue
		case yes:
			yeas++
			yesses |= 1 << k
		case sent:
			m.abandon(s, c, k)
		}
		if m.Mutation == keepsSplit && v == yes || m.Mutation == silentLeft && v == silent ||
			m.Mutation == neverTakenBack {
			continue
		}
		s.names[x.name].back |= 1 << k
	}
	if m.Rival && !m.Ghost {
		m.giveBackAtOnce(s, x.name)
	}
	if yeas > 0 {
		s.split = true
		if nays >= majority && m.valid(&s.clients[1-c]) {
			s.again++
			if m.Mutation != asksSameAgain && !m.atOnce(x) {
				x.down = yesses
			}
		}
	}
	x.at, x.listens = sleeps, x.lead+1
	x.looks = !refused || yeas > 0
	if refused && yeas == 0 {
		at, soon := m.elsewhere(s, x)
		if at != 0 {
			x.listens = at
			x.down |= 1 << x.lead
		}
		x.looks = soon || m.AtOnce && !x.wary // it has yet to subscribe
	}
	x.wary = x.wary || nays > 0
}

// endHold begins the release of a hold.
func (m *Quorum) endHold(s *QuorumState, c int) {
	x := &s.clients[c]
	x.at, x.votes, x.depth, x.regained, x.repairs, x.perhaps, x.said = givesBack,
		[quorumStores]uint8{}, 0, 0, 0, 0, 0
	if m.Rival && !m.Ghost {
		x.at = absent
		s.names[x.name].back = s.names[x.name].late
		m.giveBackAtOnce(s, x.name)
	}
}

// giveBackAtOnce releases a name in all stores in a single step. Slower releases would only keep
// other clients out for longer.
func (m *Quorum) giveBackAtOnce(s *QuorumState, name uint8) {
	for k := range s.stores {
		for m.release(s, k, name) {
		}
	}
	s.names[name].back &= s.names[name].late
}

// attempt begins an attempt.
func (m *Quorum) attempt(s *QuorumState, c int) bool {
	x := &s.clients[c]
	name := x.name
	switch {
	case m.Mutation == oneName && x.at == sleeps:
		s.names[name].back = 0
	case m.Mutation == keepsSplit && x.at == sleeps && s.count(name) > 0:
	default:
		name = m.fresh(s, c)
	}
	if name == 0 {
		return false
	}
	*x = voter{
		at: asks, name: name, comes: x.comes, down: x.down, listens: x.listens, promise: m.Lease,
		wary: x.wary,
	}
	m.askNext(s, c)
	if m.atOnce(x) {
		m.askRest(x)
	}
	return true
}

// step emits the next events of a client.
func (m *Quorum) step(s QuorumState, c int, calm bool, do quorumEmitter) {
	if m.Rival && c == 1 {
		m.rivalStep(s, calm, do)
		return
	}
	x := &s.clients[c]
	who := 'A' + c
	t := s
	y := &t.clients[c]
	switch x.at {
	case absent:
		if x.comes == 0 {
			return
		}
		y.comes--
		if m.attempt(&t, c) {
			do(t, "%c asks for the lock, as %s", who, m.nameText(y.name))
		}
	case sleeps:
		if (x.woken || x.looks) && m.attempt(&t, c) {
			do(t, "%c looks, as %s", who, m.nameText(y.name))
		}
		if t = s; !calm {
			t.clients[c].at = absent
			do(t, "%c gives up", who)
		}
	case has:
		m.endHold(&t, c)
		if x.depth > 0 {
			m.leave(s, c, do)
		} else {
			do(t, "%c unlocks", who)
		}
		if !calm && m.valid(x) {
			m.renew(s, c, renews, "renews", do)
			if x.depth < m.Depth {
				m.renew(s, c, reenters, "re-enters", do)
			}
		}
	case givesBack:
		m.giveBack(s, c, calm, do)
	}
	if x.down != 0 && (x.at == sleeps || x.at == absent) {
		t = s
		t.clients[c].down, t.again = 0, 0
		do(t, "%c forgets who was down", who)
	}
	if !calm && x.wary && x.at == absent {
		t = s
		t.clients[c].wary, t.again = false, 0
		do(t, "%c forgets that the other wants the lock", who)
	}
	if !calm && s.crashes < m.Crashes && x.at != dead && x.at != absent {
		t = s
		t.crashes++
		t.clients[c].at = dead
		for i := range m.Names {
			t.names[c*maxNames+i+1].back = 0
		}
		do(t, "%c crashes", who)
	}
}

// renew emits the event in which a client sends a renewal or a re-entry. To the stores, a re-entry
// is a renewal.
func (m *Quorum) renew(s QuorumState, c int, at uint8, words string, do quorumEmitter) {
	x := &s.clients[c]
	x.at, x.promise, x.votes = at, m.Lease, [quorumStores]uint8{}
	for k := range x.votes {
		if !inSet(x.never&^(x.regained|x.perhaps), k) || m.Mutation == refutedCounts ||
			m.Mutation == reentriesCounted {
			x.votes[k] = sent
		}
	}
	do(s, "%c %s", 'A'+c, words)
}

// leave emits the release of a re-entry. The stores don't count re-entries, only the client does.
func (m *Quorum) leave(s QuorumState, c int, do quorumEmitter) {
	x := &s.clients[c]
	x.depth--
	if m.Mutation == reentriesCounted {
		for k := range s.stores {
			if e := &s.stores[k]; e.name == x.name {
				if e.count--; e.count == 0 {
					m.free(&s, k)
				}
			}
		}
	}
	do(s, "%c leaves what it re-entered", 'A'+c)
}

// giveBack emits the release of a hold at the next store. The store that other clients ask first
// comes last. But if the client releases the lock in all stores at once, these carry out the
// releases in any order.
func (m *Quorum) giveBack(s QuorumState, c int, calm bool, do quorumEmitter) {
	x := &s.clients[c]
	first := m.first(x)
	left := 0
	for _, v := range x.votes {
		if v == unasked {
			left++
		}
	}
	for k, v := range x.votes {
		last := k == first
		inOrder := m.Mutation != firstFreedFirst && !(m.AtOnce && m.atOnce(x))
		if v != unasked || last != (left == 1) && inOrder ||
			m.Mutation == firstFreedFirst && left == quorumStores && !last {
			continue
		}
		t := s
		y := &t.clients[c]
		y.votes[k] = yes
		gone := left == 1
		if s.stores[k].away == 0 {
			more := m.release(&t, k, x.name)
			forgotten := m.Mutation == lateVoteLeft ||
				m.Mutation == refutedForgotten && inSet(x.never, k)
			if more || inSet(t.names[x.name].late, k) && !forgotten {
				t.names[x.name].back |= 1 << k
			}
			if gone {
				y.at = absent
			}
			t.again = 0
			do(t, "%c gives %s back to store %d", 'A'+c, m.nameText(x.name), k+1)
		}
		if s.stores[k].away != 0 || m.silent(&s) && !calm {
			t = s
			m.silence(&t, k)
			y = &t.clients[c]
			y.votes[k] = silent
			if m.Mutation != takenBackOnce {
				t.names[x.name].back |= 1 << k
			}
			if gone {
				y.at = absent
			}
			do(t, "%c leaves giving %s back to store %d to the background", 'A'+c,
				m.nameText(x.name), k+1)
		}
	}
}

// first returns the store that other clients ask first, as far as this client knows.
func (m *Quorum) first(x *voter) int {
	for k := range quorumStores {
		if !inSet(x.down, k) {
			return k
		}
	}
	return 0
}

// background emits the events of name n in store k that don't involve its client: late
// acquisitions, and releases in the background.
func (m *Quorum) background(s QuorumState, n uint8, k int, calm bool, do quorumEmitter) {
	x := s.names[n]
	m.acquisition(s, n, k, do)
	if !inSet(x.back, k) {
		return
	}
	t := s
	more := s.stores[k].away == 0 && m.release(&t, k, n)
	if !inSet(x.late, k) && !more || m.Mutation == takenBackOnce {
		t.names[n].back &^= 1 << k
	}
	if s.stores[k].away == 0 || s.stores[k].away == forGood {
		do(t, "background takes %s back from store %d", m.nameText(n), k+1)
	}
	if m.Ghost && !calm && s.ghost == [2]uint8{} && s.stores[k].away == 0 {
		t = s
		t.ghost = [2]uint8{uint8(k) + 1, n}
		do(t, "the give-back of %s to store %d has no answer", m.nameText(n), k+1)
	}
}

// acquisition emits the possible events of an acquisition that is still in the network. If the
// client sent it to repair its hold, the client waits for the answer.
func (m *Quorum) acquisition(s QuorumState, n uint8, k int, do quorumEmitter) {
	x := s.names[n]
	if !inSet(x.late, k) {
		return
	}
	c := m.client(n)
	heard := s.clients[c].name == n && inSet(s.clients[c].repairs, k)
	there := s.stores[k].away == 0
	if heard {
		t := s
		y := &t.clients[c]
		y.repairs &^= 1 << k
		if !there || m.silent(&s) {
			u := t
			m.silence(&u, k)
			u.clients[c].perhaps |= 1 << k
			do(u, "%c gives up waiting for store %d to have %s again", 'A'+c, k+1, m.nameText(n))
		}
		if !there {
			return
		}
		t.names[n].remove(k)
		answer := m.acquire(&t, k, n)
		if answer == yes && inSet(y.never, k) {
			y.regained |= 1 << k
		}
		do(t, "store %d: repair of %s -> %s", k+1, m.nameText(n), answers[answer])
	}
	if heard && !inSet(x.later, k) {
		return
	}
	t := s
	t.names[n].remove(k)
	do(t, "network loses the acquisition of %s at store %d", m.nameText(n), k+1)
	if there {
		m.acquire(&t, k, n)
		do(t, "store %d: LATE acquisition of %s", k+1, m.nameText(n))
	}
}

// rivalStep emits the events of the rival, an ideal client (see Quorum.Rival). The rival takes the
// lock in the free stores, one by one, and holds the lock once it has a majority.
func (m *Quorum) rivalStep(s QuorumState, calm bool, do quorumEmitter) {
	x := &s.clients[1]
	for k, e := range s.stores {
		if calm || x.at == absent && x.comes == 0 || e.name != 0 || e.away > 0 {
			continue
		}
		t := s
		y := &t.clients[1]
		if y.at == absent {
			y.at, y.promise, y.comes = asks, m.Lease, y.comes-1
		}
		m.acquire(&t, k, m.rival())
		if y.at == asks && (y.promise > 0 || m.timeless()) && t.count(m.rival()) >= majority {
			m.enter(&t, 1)
		}
		do(t, "B takes store %d%s", k+1, m.account(&t, 1))
	}
	if x.at == absent {
		return
	}
	s.clients[1] = voter{at: absent, comes: x.comes}
	for k := range s.stores {
		m.release(&s, k, m.rival())
	}
	do(s, "B gives back what it has")
}
