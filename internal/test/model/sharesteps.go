package main

import "fmt"

// This file contains the events of the Shares model.

type sharesEmitter func(SharesState, string, ...any)

// Next emits the successors of s.
func (m *Shares) Next(s SharesState, calm bool, emit func(SharesState, string, ...any)) {
	do := func(t SharesState, format string, args ...any) {
		m.tidy(&t)
		emit(t, format, args...)
	}
	for i, r := range s.requests[:m.Requests] {
		if r.kind != none && (i == 0 || r != s.requests[i-1]) {
			m.network(s, i, calm, do)
		}
	}
	m.time(s, calm, do)
	for n := uint8(1); n <= m.strings(); n++ {
		if !m.Rival || n != m.rival() {
			m.background(s, n, reads, do)
			m.background(s, n, writes, do)
		}
	}
	m.rivalSteps(s, calm, do)
	for p := range m.all() {
		m.step(s, p, calm, do)
	}
	if !calm {
		m.accidents(s, do)
	}
}

func (m *Shares) name(p int) string {
	c := m.client(p)
	return fmt.Sprintf("%c%d", 'A'+c, p-c*m.Parties[0]+1)
}

func (m *Shares) who(r sharesRequest) string {
	switch r.who {
	case watchdog:
		return "watchdog"
	case downgrader:
		return "downgrade"
	}
	return m.name(int(r.who))
}

// has describes the store's data.
func (s *SharesState) has() string {
	text := ""
	if s.write.number != 0 {
		text = fmt.Sprintf("#%d writes x%d, ttl %d; ", s.write.number, s.write.count, s.write.left)
	}
	for n, left := range s.read {
		if left > 0 {
			text += fmt.Sprintf("#%d reads, ttl %d; ", n, left-1)
		}
	}
	if text == "" {
		return "free"
	}
	return text[:len(text)-2]
}

// send puts a request into the network. It returns false if the model's bounds don't allow it.
func (m *Shares) send(s *SharesState, r sharesRequest) bool {
	if r.kind == acquisition && r.side == writes {
		most := uint8(1)
		if s.write.number == r.number {
			most += s.write.count
		}
		for _, q := range s.requests {
			if q.kind == acquisition && q.side == writes && q.number == r.number &&
				q.reply == pending {
				most++
			}
		}
		if most > m.Count {
			return false
		}
	}
	for i := range m.Requests {
		if s.requests[i].kind == none {
			r.left = m.Lease
			s.requests[i] = r
			return true
		}
	}
	return false
}

// carryOut carries out a request in the store.
func (m *Shares) carryOut(s *SharesState, kind, side, n uint8) (reply uint8) {
	w := &s.write
	switch {
	case kind == acquisition && side == reads:
		if w.number != 0 && w.number != n {
			return heldByAnother
		}
		s.read[n] = 1 + m.Lease
		return acquired
	case kind == acquisition && w.number == n:
		w.count++
		w.left = m.Lease
		return acquired
	case kind == acquisition:
		if w.number != 0 || s.anyRead() {
			return heldByAnother
		}
		*w = entry{n, 1, m.Lease}
		return acquired
	case side == reads && s.read[n] == 0, side == writes && w.number != n:
		if kind == renewal {
			return renewedNot
		}
		return notHeld
	case kind == renewal && side == reads:
		s.read[n] = 1 + m.Lease
		return renewed
	case kind == renewal:
		w.left = m.Lease
		return renewed
	case side == reads:
		s.read[n] = 0
		return freed
	}
	w.left = m.Lease
	if w.count--; w.count > 0 {
		return left
	}
	*w = entry{}
	return freed
}

func (s *SharesState) anyRead() bool { return s.read != [maxStrings + 1]uint8{} }

// network emits the possible events of request i.
func (m *Shares) network(s SharesState, i int, calm bool, do sharesEmitter) {
	r := s.requests[i]
	what := fmt.Sprintf("%s of #%d for %s",
		[...]string{acquisition: "acquisition", lastRelease: "release", renewal: "renewal"}[r.kind],
		r.number, sides[r.side])
	expired := m.Punctual && r.left == 0
	if r.reply != pending {
		t := s
		t.requests[i] = sharesRequest{}
		m.answer(&t, r)
		do(t, "%s gets answer to %s: %s%s", m.who(r), what, replies[r.reply],
			t.account(r.number, r.side))
	} else if !expired {
		t := s
		q := &t.requests[i]
		q.reply = m.carryOut(&t, r.kind, r.side, r.number)
		reply, late := q.reply, ""
		if r.who == nobody {
			*q = sharesRequest{}
			late = "LATE "
		}
		do(t, "store: %s%s -> %s (now %s)", late, what, replies[reply], t.has())
	}
	if r.who == nobody && (!calm || expired) {
		t := s
		t.requests[i] = sharesRequest{}
		do(t, "network loses %s", what)
	}
	if r.who == nobody || m.Answered && r.kind != renewal ||
		calm && !(expired && r.reply == pending) {
		return
	}
	t := s
	t.requests[i].who = nobody
	if r.reply != pending || r.kind != acquisition && m.Mutation != nestedReleasedEarly {
		// The model can forget the request, because it no longer matters: a late renewal only
		// extends a lease, and a late release affects no claim in use.
		t.requests[i] = sharesRequest{}
	}
	m.giveUp(&t, r)
	do(t, "%s gives up waiting for %s: outcome unknown", m.who(r), what)
}

func (s *SharesState) account(n, side uint8) string {
	x := &s.claims[n][side]
	switch {
	case x.use == live && x.lost != 0:
		return " (its account: lost)"
	case x.use == live:
		return fmt.Sprintf(" (its account: deadline in %d)", x.left)
	case x.use == retired:
		return " (to be taken back)"
	}
	return ""
}

// answer delivers a reply to its waiter.
func (m *Shares) answer(s *SharesState, r sharesRequest) {
	x := &s.claims[r.number][r.side]
	switch r.who {
	case watchdog:
		m.answerRenewal(s, x, r)
		return
	case downgrader:
		m.answerDowngrade(s, r)
		return
	}
	p := &s.parties[r.who]
	if r.kind == lastRelease {
		p.at = idle
		if r.reply == left {
			p.at = undrained
			return
		}
		if r.reply == notHeld && m.Mutation != lossUnheard {
			m.tell(s, r.number)
		}
		m.retire(s, r.number, r.side, x.unsure > 0)
		return
	}
	nested := p.under
	switch {
	case r.reply == heldByAnother && nested:
		if w := &s.claims[r.number][writes]; w.use == live {
			w.lose()
		}
		p.at = idle
	case r.reply == heldByAnother:
		p.at = waiting
	case r.left == 0 || x.lost != 0 || x.use != live && m.Mutation != grantsEnded:
		x.unsure = max(x.unsure, 1)
		p.at = idle
		if !nested || x.use != live {
			m.retire(s, r.number, r.side, true)
		}
	case !nested && m.readsBy(s, int(r.who), r.side) != 0:
		m.enter(s, int(r.who), m.readsBy(s, int(r.who), r.side), reads)
		m.retire(s, r.number, reads, true)
	default:
		x.use, x.age = live, 1+m.Lease-r.left
		m.extend(x, r)
		m.enter(s, int(r.who), r.number, r.side)
		if r.side == reads && (!nested || m.Mutation == joinsNested) {
			m.grant(s, m.client(int(r.who)), r.number)
		}
	}
}

// readsBy returns the owner string under which another party of p's owner already reads, or 0 if
// there is none. p must share such a read: if the owner had two reads, an unlock couldn't tell
// which of them to end.
func (m *Shares) readsBy(s *SharesState, p int, side uint8) uint8 {
	for q := range m.all() {
		if n := s.parties[q].reading; side == reads && q != p && m.owner(q) == m.owner(p) &&
			n != 0 && s.on(n).valid() {
			return n
		}
	}
	return 0
}

func (m *Shares) answerRenewal(s *SharesState, x *claim, r sharesRequest) {
	switch read := &s.claims[r.number][reads]; {
	case x.proves > 0 && read.use == live && m.Mutation == believesOldRenewal:
		if r.reply == renewed {
			m.extend(read, r)
		}
	case x.use != live: // after a last release or a downgrade, the reply has no effect
	case r.reply == renewed && (x.lost == 0 || m.Mutation == revivesClaim):
		x.lost = 0
		m.extend(x, r)
	case r.reply == renewed:
	case m.Mutation == tellsOne && s.readers(r.number) > 1:
		x.struck = 0
		for i := range s.parties {
			if p := &s.parties[i]; p.reading == r.number {
				*p = party{}
				return
			}
		}
	default:
		x.lose()
	}
}

// extend extends the deadline after a reply that grants a lease.
func (m *Shares) extend(x *claim, r sharesRequest) {
	x.left = max(x.left, r.left)
	if r.before == 0 {
		x.struck = 0
	}
}

// enter gives a party the claim that it asked for.
func (m *Shares) enter(s *SharesState, p int, n, side uint8) {
	q := &s.parties[p]
	q.at = idle
	if side == writes {
		q.writing = n
	} else {
		q.reading = n
	}
	x := &s.claims[n][side]
	if side == reads {
		x = s.on(n)
	}
	if x.struck == 0 && (x.left == 0 || x.lost != 0) {
		s.tooLate = true
		x.lose()
	}
}

// grant lets the readers of client c join claim n. Queued readers join it at once.
func (m *Shares) grant(s *SharesState, c int, n uint8) {
	s.shared[c] = n
	for i := range m.all() {
		if p := &s.parties[i]; m.client(i) == c && p.at == queued {
			p.at, p.reading = handed, n
		}
	}
}

// tell is called when a plain call has learned that a hold was lost. The client's other plain calls
// whose holds were lost then count as notified, too, because a plain call isn't tied to a
// particular hold.
func (m *Shares) tell(s *SharesState, n uint8) {
	for i := range s.parties {
		if p := &s.parties[i]; m.Plain && m.client(i) == m.clientOf(n) && p.torn == 1 {
			p.torn = 2
		}
	}
}

// giveUp ends the wait for a reply. The client doesn't learn whether the request was carried out.
func (m *Shares) giveUp(s *SharesState, r sharesRequest) {
	x := &s.claims[r.number][r.side]
	if r.kind == acquisition {
		x.unsure = max(x.unsure, 1+r.left)
	}
	switch r.who {
	case watchdog:
		return
	case downgrader:
		if w := &s.claims[r.number][writes]; x.use == asked && (w.use != live || w.lost != 0) {
			m.endDowngrade(s, r.number)
		}
		return
	}
	p := &s.parties[r.who]
	switch {
	case r.kind == lastRelease:
		p.at = undrained
	case p.under:
		p.at = idle
		if x.use == over && m.Mutation != endedForgotten {
			x.use, x.unsure = retired, max(1, 1+r.left)
		}
	default:
		p.at = waiting
	}
}

// retire ends the use of a claim. If back is true, the client then releases it in the background.
// The end of a write also ends the read under it, unless a party continues to read.
func (m *Shares) retire(s *SharesState, n, side uint8, back bool) {
	x := &s.claims[n][side]
	x.use = over
	if back {
		x.use = retired
	}
	if side == writes {
		m.endNested(s, n)
	}
}

// endNested is called when a write has ended. It also ends the read under that write, unless a
// party continues to read.
func (m *Shares) endNested(s *SharesState, n uint8) {
	if x := &s.claims[n][reads]; x.use == live && s.readers(n) == 0 {
		x.use = retired
	}
}

// takeBack emits a background release of a claim. The client repeats the release as long as the
// store's count might not be 0, or an unanswered request might still acquire the lock.
func (m *Shares) takeBack(s SharesState, n, side uint8, do sharesEmitter) {
	x := &s.claims[n][side]
	reply := m.carryOut(&s, lastRelease, side, n)
	if read := &s.claims[n][reads]; x.proves > 0 && reply == notHeld && read.use == live &&
		m.Mutation != downgradeUnheard {
		read.lose()
	}
	x.proves = 0
	if x.use == retired && x.unsure <= 1 && reply != left {
		x.use = over
	}
	do(s, "background takes #%d back for %s: %s (now %s)", n, sides[side], replies[reply], s.has())
}

// time emits the events that occur as time passes: a tick, and the expiry of the store's data.
func (m *Shares) time(s SharesState, calm bool, do sharesEmitter) {
	if s.write.number != 0 && s.write.left == 0 {
		t := s
		t.write = entry{}
		do(t, "store: the lease of #%d's write runs out (now %s)", s.write.number, t.has())
	}
	for n, left := range s.read {
		if left == 1 {
			t := s
			t.read[n] = 0
			do(t, "store: the lease of #%d's read runs out (now %s)", n, t.has())
		}
	}
	if calm && m.due(&s) {
		return
	}
	note := ""
	lower(&s.write.left)
	for n := range s.claims {
		if s.read[n] > 1 {
			s.read[n]--
		}
		for side := range s.claims[n] {
			x := &s.claims[n][side]
			if x.age > 0 {
				x.age++
			}
			if x.struck > 0 {
				x.struck++
			}
			was := x.valid()
			lower(&x.left)
			if was && x.left == 0 &&
				(side == int(writes) || s.readers(uint8(n)) > 0 || m.Rival && n == int(m.rival())) {
				x.lose()
				note = ", a claim's own deadline passes: lost"
			}
			if x.unsure > 1 {
				x.unsure--
			}
		}
	}
	for i := range s.requests {
		lower(&s.requests[i].left)
	}
	do(s, "tick%s", note)
}

// due reports whether a renewal must come before the next tick.
func (m *Shares) due(s *SharesState) bool {
	for n := range s.claims {
		for side := range s.claims[n] {
			x := &s.claims[n][side]
			if x.valid() && x.left == 1 && (side == int(writes) || m.renewed(s, uint8(n))) &&
				!(m.Rival && n == int(m.rival())) {
				return true
			}
		}
	}
	return false
}

// renewed reports whether a read is renewed. A read under a write is renewed only while a party
// uses the read.
func (m *Shares) renewed(s *SharesState, n uint8) bool {
	nested := s.claims[n][writes].use == live
	return s.readers(n) > 0 || !nested
}

// background emits the background events of a claim: renewal, release and downgrade.
func (m *Shares) background(s SharesState, n, side uint8, do sharesEmitter) {
	x := &s.claims[n][side]
	if s.crashed&(1<<m.clientOf(n)) != 0 {
		return
	}
	alive := x.valid() || m.Mutation == revivesClaim && x.use == live
	if alive && (side == writes || m.renewed(&s, n)) && !s.renews(n, side) && s.held(n, side) {
		t := s
		if !m.Renewals {
			r := sharesRequest{kind: renewal, side: side, number: n, left: m.Lease}
			r.reply = m.carryOut(&t, r.kind, side, n)
			m.answerRenewal(&t, &t.claims[n][side], r)
			do(t, "watchdog renews #%d for %s: %s%s", n, sides[side], replies[r.reply],
				t.account(n, side))
		} else if m.send(&t, sharesRequest{kind: renewal, side: side, number: n, who: watchdog}) {
			do(t, "watchdog sends renewal of #%d for %s", n, sides[side])
		}
	}
	early := m.Mutation == nestedTakenBackEarly && side == reads && x.use == live && x.unsure > 0 &&
		s.claims[n][writes].use == live
	if x.use == retired || early {
		m.takeBack(s, n, side, do)
	}
	if side == writes {
		m.downgrade(s, n, do)
	}
}

func (s *SharesState) renews(n, side uint8) bool {
	for _, r := range s.requests {
		if r.kind == renewal && r.number == n && r.side == side {
			return true
		}
	}
	return false
}

// held reports whether a claim was granted, not just requested.
func (s *SharesState) held(n, side uint8) bool {
	for _, p := range s.parties {
		if (p.at == trying || p.at == waiting) && p.number == n && p.side == side {
			return false
		}
	}
	return true
}

// rivalSteps emits the events of the rival, an ideal client whose requests take no time.
func (m *Shares) rivalSteps(s SharesState, calm bool, do sharesEmitter) {
	if !m.Rival {
		return
	}
	n := m.rival()
	for side := range uint8(2) {
		if side == reads && m.Writers[0] == 0 {
			continue // readers don't exclude readers
		}
		x := s.claims[n][side]
		gone := s
		gone.claims[n][side] = claim{}
		switch {
		case x.use == unused && !calm && s.claims[n][1-side].use == unused:
			t := s
			if s.write.number != n && s.read[n] == 0 &&
				m.carryOut(&t, acquisition, side, n) == acquired {
				t.claims[n][side] = claim{use: live, left: m.Lease}
				do(t, "B gets in to %s", sides[side])
			}
		case x.use == live && x.lost != 0:
			do(gone, "B finds its %s lost", sides[side])
		case x.use == live &&
			(side == reads && s.read[n] == 0 || side == writes && s.write.number != n):
			do(gone, "B releases its %s: it was lost", sides[side])
		case x.use == live:
			m.carryOut(&gone, lastRelease, side, n)
			do(gone, "B releases its %s (now %s)", sides[side], gone.has())
		}
	}
}

// accidents emits unplanned events: ForceUnlock calls and client crashes.
func (m *Shares) accidents(s SharesState, do sharesEmitter) {
	if s.forces < m.Forces {
		t := s
		t.forces++
		if s.write.number != 0 {
			m.letGo(&t, s.write.number, writes)
			m.letGo(&t, s.write.number, reads)
			do(t, "store: ForceUnlock of the writer (now %s)", t.has())
		} else if s.anyRead() {
			for n := range s.read {
				m.letGo(&t, uint8(n), reads)
			}
			do(t, "store: ForceUnlock of the readers (now %s)", t.has())
		}
	}
	if m.Crashes > 0 && s.crashed == 0 {
		m.crash(s, do)
	}
}

// letGo makes the store end a hold before its lease expires.
func (m *Shares) letGo(s *SharesState, n, side uint8) {
	if side == writes {
		s.write = entry{}
	} else if s.read[n] == 0 {
		return
	} else {
		s.read[n] = 0
	}
	if x := &s.claims[n][side]; x.use == live {
		x.struck = 1
	}
	for i := range s.requests {
		if r := &s.requests[i]; r.reply != pending && r.number == n && r.side == side {
			r.before = 1
		}
	}
}

// crash makes client A crash.
func (m *Shares) crash(s SharesState, do sharesEmitter) {
	s.crashed, s.lent = 1, 0
	for p := range m.Parties[0] {
		s.parties[p] = party{at: gone}
	}
	for n := 1; n <= m.Numbers[0]; n++ {
		s.claims[n] = [2]claim{{use: over}, {use: over}}
	}
	for i := range s.requests {
		r := &s.requests[i]
		switch {
		case r.number == 0 || m.clientOf(r.number) != 0:
		case r.reply != pending || r.kind == renewal:
			*r = sharesRequest{}
		default:
			r.who = nobody
		}
	}
	do(s, "client A crashes")
}

// step emits the next events of a party.
func (m *Shares) step(s SharesState, p int, calm bool, do sharesEmitter) {
	q := &s.parties[p]
	switch q.at {
	case idle:
		if q.writing == 0 && q.reading == 0 {
			if !calm && !m.nestInPair(s, p, do) {
				m.call(s, p, do)
			}
			return
		}
		if q.writing != 0 {
			if !calm && q.reading == 0 {
				m.nest(s, p, q.writing, do)
			}
			m.unlock(s, p, calm, do)
		}
		if q.reading != 0 {
			m.leave(s, p, "", do)
		}
	case queued:
		if !calm {
			m.call(s, p, do)
		}
		s.parties[p] = party{}
		do(s, "%s gives up, behind others", m.name(p))
	case handed:
		m.notice(s, p, calm, do)
	case waiting:
		m.wait(s, p, calm, do)
	case undrained:
		m.drain(s, p, do)
	}
}

// head returns the head of a client's queue, and whether there is one. Only the head asks the
// store.
func (m *Shares) head(s *SharesState, c int) (*party, bool) {
	for i := range m.all() {
		if q := &s.parties[i]; m.client(i) == c && (q.at == trying || q.at == waiting) && !q.under {
			return q, true
		}
	}
	return nil, false
}

// call emits the start of a party's call.
func (m *Shares) call(s SharesState, p int, do sharesEmitter) {
	c := m.client(p)
	head, busy := m.head(&s, c)
	if busy && head.side == writes {
		return // no reader joins while a writer of its client waits; only the head asks the store
	}
	if n := s.shared[c]; n != 0 && m.joinable(&s, n) {
		t := s
		t.parties[p].reading = n
		side := reads
		if t.isLent(n) {
			side = writes
		}
		m.vouch(&t, n, side)
		t.claims[n][side].use = live
		m.enter(&t, p, n, reads)
		do(t, "%s calls RLock, joins #%d%s", m.name(p), n, t.account(n, side))
		if m.Mutation != joinsReleased { // a reader that can join doesn't ask the store
			return
		}
	}
	if busy {
		if s.parties[p].at != queued {
			s.parties[p].at = queued
			do(s, "%s calls RLock, queues", m.name(p))
		}
		return
	}
	n := m.fresh(&s, c)
	if n == 0 {
		return
	}
	for side := range uint8(2) {
		if side == writes && (!m.mayWrite(p) || s.parties[p].at == queued) {
			continue
		}
		t := s
		t.claims[n] = [2]claim{}
		// A read lock can't become a write lock, but the holder of a write lock can also read.
		t.claims[n][1-side].use = over
		if side == writes {
			t.claims[n][reads].use = unused
		}
		t.claims[n][side].use = live
		t.parties[p] = party{at: trying, side: side, number: n}
		if m.send(&t, sharesRequest{kind: acquisition, side: side, number: n, who: uint8(p)}) {
			do(t, "%s calls %s, sends acquisition of #%d", m.name(p),
				[...]string{"RLock", "Lock"}[side], n)
		}
	}
}

// fresh returns an owner string that has never been used.
func (m *Shares) fresh(s *SharesState, c int) uint8 {
	for n := uint8(1); n <= m.strings(); n++ {
		if m.clientOf(n) == c && s.claims[n] == [2]claim{} {
			return n
		}
	}
	return 0
}

// joinable reports whether a shared claim can be joined without a request to the store.
func (m *Shares) joinable(s *SharesState, n uint8) bool {
	x := s.on(n)
	valid := x.valid() && s.readers(n) > 0
	switch m.Mutation {
	case joinsLost:
		valid = x.use == live && s.readers(n) > 0
	case joinsReleased:
		valid = valid || x.use == leavingIt && x.left > 0 && x.lost == 0
	}
	return valid && (m.young(x) || m.Mutation == joinsForever)
}

// nestInPair makes the second goroutine of a pair read while the first writes. It returns false if
// there is no such pair, or the first doesn't write.
func (m *Shares) nestInPair(s SharesState, p int, do sharesEmitter) bool {
	n := s.parties[0].writing
	if !m.Pair || p != 1 || n == 0 || !s.claims[n][writes].valid() {
		return false
	}
	m.nest(s, p, n, do)
	return true
}

// nest makes a party read under the write of its owner.
func (m *Shares) nest(s SharesState, p int, n uint8, do sharesEmitter) {
	q := &s.parties[p]
	if s.under(n) {
		return // another step of this hold is under way
	}
	x := &s.claims[n][reads]
	again := m.Mutation == nestedReleasedEarly && (x.use == over || x.use == retired)
	if !s.claims[n][writes].valid() || x.lost != 0 || x.use != unused && x.use != live && !again {
		return
	}
	if x.valid() && s.readers(n) > 0 {
		q.reading = n
		do(s, "%s calls RLock, too", m.name(p))
		return
	}
	x.use = live
	q.at, q.side, q.number, q.under = trying, reads, n, true
	if m.send(&s, sharesRequest{kind: acquisition, side: reads, number: n, who: uint8(p)}) {
		do(s, "%s calls RLock while it writes, sends acquisition of #%d for read", m.name(p), n)
	}
}

// under reports whether a party is requesting a read under the write with owner string n.
func (s *SharesState) under(n uint8) bool {
	for _, p := range s.parties {
		if p.under && p.number == n && p.at == trying {
			return true
		}
	}
	return false
}

// unlock makes a writer release its write.
func (m *Shares) unlock(s SharesState, p int, calm bool, do sharesEmitter) {
	q := &s.parties[p]
	n := q.writing
	x := &s.claims[n][writes]
	if x.lost != 0 {
		q.writing = 0
		m.retire(&s, n, writes, true)
		do(s, "%s unlocks: ErrLost", m.name(p))
		return
	}
	if !calm {
		m.handOn(s, p, do)
		m.lend(s, p, do)
	}
	q.writing, x.use = 0, leavingIt
	q.at, q.side, q.number = draining, writes, n
	m.endNested(&s, n)
	if m.send(&s, sharesRequest{kind: lastRelease, side: writes, number: n, who: uint8(p)}) {
		do(s, "%s unlocks, sends release of #%d for write", m.name(p), n)
	}
}

// handOn emits the hand-overs of a write.
func (m *Shares) handOn(s SharesState, p int, do sharesEmitter) {
	n := s.parties[p].writing
	if !m.passes(&s, n) || !m.young(&s.claims[n][writes]) {
		return
	}
	if s.claims[n][reads].use != unused && m.Mutation != handsOnRead {
		return
	}
	for to := range m.all() {
		q := &s.parties[to]
		if m.client(to) != m.client(p) || to == p || !m.mayWrite(to) || q.writing != 0 ||
			q.reading != 0 || q.at != idle && !(q.at == waiting && q.side == writes) {
			continue
		}
		t := s
		t.handOvers++
		t.parties[p].writing = 0
		m.inherit(&t, n, to)
		do(t, "%s unlocks, hands #%d over to %s", m.name(p), n, m.name(to))
	}
}

// leave makes a reader unlock. The last reader on a claim releases the claim, unless the owner
// still writes.
func (m *Shares) leave(s SharesState, p int, why string, do sharesEmitter) {
	q := &s.parties[p]
	m.swap(&s, p)
	n := q.reading
	x, side := s.on(n), reads
	nested := s.claims[n][writes].use == live
	if s.isLent(n) {
		side, nested = writes, false
		if s.readers(n) == 1 && x.lost == 0 {
			m.passOn(s, p, do)
		}
	}
	q.reading = 0
	if x.lost != 0 {
		m.tell(&s, n)
	}
	if q.at == handed {
		q.at = idle
	}
	switch {
	case s.readers(n) > 0 && m.Mutation != leaverReleases:
		do(s, "%s %sleaves #%d, where others are%s", m.name(p), why, n, s.account(n, side))
	case nested && m.Mutation != nestedReleasedEarly:
		do(s, "%s %sleaves #%d, which stays as long as it writes", m.name(p), why, n)
	case m.Mutation == lastStays && s.readers(n) == 0:
		do(s, "%s %sleaves #%d, as the last", m.name(p), why, n)
	case x.lost != 0:
		m.retire(&s, n, side, true)
		do(s, "%s %sunlocks: ErrLost", m.name(p), why)
	default:
		if s.readers(n) == 0 {
			x.use = leavingIt
		}
		q.at, q.side, q.number = draining, side, n
		if m.send(&s, sharesRequest{kind: lastRelease, side: side, number: n, who: uint8(p)}) {
			do(s, "%s %sleaves #%d, sends release", m.name(p), why, n)
		}
	}
}

// swap is called when reader p unlocks. If p makes plain calls, the hold that ends needn't be p's
// own. swap chooses a lost hold of any plain call or, if there is none, the oldest hold. The party
// with the chosen hold gets p's hold in exchange.
func (m *Shares) swap(s *SharesState, p int) {
	if !m.Plain || s.parties[p].at == handed {
		return
	}
	first := &s.parties[p]
	before := func(a, b uint8) bool {
		if la, lb := s.on(a).lost, s.on(b).lost; la != lb {
			return la > lb
		}
		return a < b
	}
	for i := range s.parties {
		if q := &s.parties[i]; q.reading != 0 && q.at == idle && m.client(i) == m.client(p) &&
			before(q.reading, first.reading) {
			first = q
		}
	}
	q := &s.parties[p]
	q.reading, first.reading = first.reading, q.reading
}

// notice emits the events when a reader notices that it joined a claim. By then, the reader's call
// might have been canceled, or the claim lost.
func (m *Shares) notice(s SharesState, p int, calm bool, do sharesEmitter) {
	n := s.parties[p].reading
	if s.on(n).lost != 0 && m.Mutation != joinedUnseen {
		m.leave(s, p, "sees that what it has joined is lost, ", do) // the party keeps waiting
		return
	}
	t := s
	m.enter(&t, p, n, reads)
	do(t, "%s notices that it has joined #%d", m.name(p), n)
	if calm {
		return
	}
	if m.Mutation == joinedDropped {
		s.parties[p] = party{}
		do(s, "%s was cancelled as it joined #%d, and goes", m.name(p), n)
		return
	}
	m.leave(s, p, "was cancelled as it joined, ", do)
}

// wait emits the events of the head of a queue while it waits: it tries again or gives up.
func (m *Shares) wait(s SharesState, p int, calm bool, do sharesEmitter) {
	q := &s.parties[p]
	n, side := q.number, q.side
	if !calm {
		t := s
		t.parties[p].at = trying
		if m.send(&t, sharesRequest{kind: acquisition, side: side, number: n, who: uint8(p)}) {
			do(t, "%s tries again, sends acquisition of #%d for %s", m.name(p), n, sides[side])
		}
	}
	m.retire(&s, n, side, s.claims[n][side].unsure > 0)
	s.parties[p] = party{}
	do(s, "%s gives up #%d", m.name(p), n)
}

// drain resends a last release, or leaves it to a background release.
func (m *Shares) drain(s SharesState, p int, do sharesEmitter) {
	q := &s.parties[p]
	n, side := q.number, q.side
	t := s
	t.parties[p].at = draining
	if m.send(&t, sharesRequest{kind: lastRelease, side: side, number: n, who: uint8(p)}) {
		do(t, "%s repeats the release of #%d for %s", m.name(p), n, sides[side])
	}
	q.at = idle
	m.retire(&s, n, side, m.Mutation != leftToLease || s.claims[n][side].unsure > 0)
	do(s, "%s's unlock ends with an error, its time is over", m.name(p))
}
