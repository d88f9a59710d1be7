package main

import (
	"cmp"
	"slices"
)

// This file contains the events of the Line model, except the store's.

type lineEmitter func(LineState, string, ...any)

// Next emits the successors of s.
func (m *Line) Next(s LineState, calm bool, emit func(LineState, string, ...any)) {
	do := func(t LineState, format string, args ...any) {
		m.tidy(&t)
		emit(t, format, args...)
	}
	for i, r := range s.requests[:m.Requests] {
		if r.kind != none && (i == 0 || r != s.requests[i-1]) {
			m.network(s, i, calm, do)
		}
	}
	for i := range s.messages {
		if s.messages[i].number != 0 {
			m.hear(s, i, calm, do)
		}
	}
	m.time(s, calm, do)
	for client := range 2 {
		if !s.gone(client) {
			m.keep(s, client, do)
		}
	}
	for n := uint8(1); n <= m.numbers(); n++ {
		if n == m.rival() {
			m.other(s, n, calm, do)
		} else if !s.gone(m.client(n)) {
			m.step(s, n, calm, do)
		}
	}
	if !calm {
		m.accidents(s, do)
	}
}

// tidy clears irrelevant data, and sorts requests and messages.
func (m *Line) tidy(s *LineState) {
	for n := uint8(1); n <= m.numbers(); n++ {
		x := &s.calls[n]
		if n != m.rival() && s.gone(m.client(n)) {
			*x = call{at: past}
		}
		if x.at == queues {
			continue
		}
		x.came, x.missed, x.behind = false, false, 0
		for q := range s.calls {
			s.calls[q].behind &^= 1 << n
		}
		if x.at == takenOut {
			*x = call{at: takenOut, unsure: x.unsure}
		}
		if x.at == past {
			*x = call{at: past}
		}
	}
	for i := range s.requests {
		r := &s.requests[i]
		switch {
		case r.kind == none:
		case !r.awaited && r.reply != pending:
			*r = lineRequest{}
		case !r.awaited && !m.Punctual:
			r.left = 0
		}
	}
	slices.SortFunc(s.requests[:], lineRequest.compare)
	for i := range s.messages {
		if x := &s.messages[i]; x.number != 0 && s.calls[x.number].at == past {
			*x = message{}
		}
	}
	slices.SortFunc(s.messages[:], func(a, b message) int {
		// The boolean field isn't compared, because messages that differ only there are rare.
		return int(b.number)<<4 + int(b.left) - int(a.number)<<4 - int(a.left)
	})
}

func (r lineRequest) compare(q lineRequest) int { return cmp.Compare(q.key(), r.key()) }

func (r lineRequest) key() (k uint64) {
	bits := uint8(0)
	if r.awaited {
		bits = 1
	}
	if r.before {
		bits |= 2
	}
	for _, f := range [...]uint8{r.kind, r.number, r.set, bits, r.left, r.reply, r.holder, r.lasts,
		r.count} {
		k = k<<6 | uint64(f)
	}
	return k
}

// send puts a request into the network. It returns false if the bounds don't allow it.
func (m *Line) send(s *LineState, r lineRequest) bool {
	for i := range m.Requests {
		if s.requests[i].kind == none {
			r.left, r.awaited = m.Lease, true
			if r.number != 0 {
				r.left = m.lease(r.number)
			}
			s.requests[i] = r
			return true
		}
	}
	return false
}

// awaits reports whether the client awaits the reply to a request about call n. If kinds are given,
// only requests of these kinds count.
func (s *LineState) awaits(n uint8, kinds ...uint8) bool {
	for _, r := range s.requests {
		if r.kind != none && r.awaited && r.about(n) &&
			(len(kinds) == 0 || slices.Contains(kinds, r.kind)) {
			return true
		}
	}
	return false
}

// network emits the possible events of request i.
func (m *Line) network(s LineState, i int, calm bool, do lineEmitter) {
	r := s.requests[i]
	expired := m.Punctual && r.left == 0
	name := m.request(&r)
	if r.reply != pending {
		t := s
		t.requests[i] = lineRequest{}
		m.answer(&t, r)
		do(t, "%s is answered: %s%s", name, m.replyText(&r), m.accounts(&t, &r))
	} else if !expired {
		t := s
		q := &t.requests[i]
		m.carryOut(&t, q)
		late := ""
		if !r.awaited {
			late = "LATE "
		}
		do(t, "store: %s%s -> %s (now %s)", late, name, m.replyText(q), m.storeText(&t))
	}
	if !r.awaited && (!calm || expired) {
		t := s
		t.requests[i] = lineRequest{}
		do(t, "network loses %s", name)
	}
	if !r.awaited || calm && !(expired && r.reply == pending) ||
		!calm && s.unknowns >= m.Unknowns && !expired {
		return
	}
	t := s
	t.requests[i].awaited = false
	t.unknowns = min(t.unknowns+1, m.Unknowns)
	if r.kind == renewal && m.Fixed == 0 { // drop the renewal, which could only extend the lease
		t.requests[i] = lineRequest{}
	}
	for n := uint8(1); n <= m.numbers(); n++ {
		if r.about(n) {
			m.unknown(&t, n, r)
		}
	}
	do(t, "nobody waits for the answer to %s any more", name)
}

// unknown records that the client stopped waiting for the reply to r, a request about number n.
func (m *Line) unknown(s *LineState, n uint8, r lineRequest) {
	x := &s.calls[n]
	switch {
	case r.kind == renewal, x.at == past:
		return
	case r.kind == keeping && m.Mutation == keepForgotten:
		return
	case r.kind == keeping && m.Mutation == keepForgottenInside && x.at == within:
		return
	case r.kind != keeping && m.Mutation == attemptForgottenInside && x.at == within:
		return
	}
	x.unsure = max(x.unsure, 1+r.left)
}

// answer delivers a reply to a client.
func (m *Line) answer(s *LineState, r lineRequest) {
	x := &s.calls[r.number]
	switch r.kind {
	case acquisition:
		switch {
		case x.at == queues:
			x.stood = true
			if r.reply == acquired && r.left > 0 {
				x.enter(r.left, r.before)
			}
		case x.at == within && r.reply == acquired:
			x.extend(r.left, r.before)
		case x.at == within && m.Mutation == believesOldAnswer && r.reply != acquired && !x.lost:
			s.lose(r.number)
		}
	case reentry:
		switch {
		case x.at != within:
		case r.reply != acquired:
			s.lose(r.number)
		case x.lost || r.count <= x.count:
			x.unsure = max(x.unsure, 1)
			x.lost, x.struck = true, false // the grant is a new hold, so the old one was lost
		default:
			x.count++
			x.extend(r.left, r.before)
		}
	case renewal:
		switch {
		case x.at != within || x.lost:
		case r.reply == renewed:
			x.extend(r.left, r.before)
		default:
			s.lose(r.number)
		}
	case keeping:
		for n := uint8(1); n <= m.numbers(); n++ {
			if x := &s.calls[n]; m.Mutation == believesOldPlaces && r.about(n) && x.at == within &&
				r.holder != n && !x.lost {
				s.lose(n)
			}
		}
		h := &s.calls[r.holder]
		switch {
		case r.holder == 0 || r.lasts == 0 || m.Mutation == keepDeaf:
		case h.at == queues, h.at == takenOut && m.Mutation == keptRevives:
			h.enter(r.lasts, r.before)
		}
	}
}

// enter records that a reply or a message has made a call the holder of the lock. The parameters
// are the remaining time of the lease, and whether the store has ended the hold early since the
// grant.
func (x *call) enter(left uint8, before bool) {
	x.at, x.count, x.left, x.struck = within, 1, left, before
}

// extend extends a deadline after a reply.
func (x *call) extend(left uint8, before bool) {
	if x.lost {
		return
	}
	x.left = max(x.left, left)
	x.struck = x.struck && before
}

// lose records that a client has learned from a reply that its hold is lost.
func (s *LineState) lose(n uint8) {
	x := &s.calls[n]
	if x.believes() && !x.struck && s.store.number == n {
		s.misled = true
	}
	x.lost, x.struck = true, false
}

// hear emits the events of a message.
func (m *Line) hear(s LineState, i int, calm bool, do lineEmitter) {
	g := s.messages[i]
	x := &s.calls[g.number]
	s.messages[i] = message{}
	if !calm {
		do(s, "the message to #%d gets lost", g.number)
	}
	t := s
	if x.at == queues {
		t.calls[g.number].stood = true
		if g.left > 0 {
			do(t, "#%d hears that it was granted, and can't say until when", g.number)
		}
	}
	switch y := &t.calls[g.number]; {
	case m.Mutation == grantFromReceipt && y.at == queues:
		y.enter(m.Short, g.before)
	case g.left > 0 && (y.at == queues || y.at == takenOut && m.Mutation == grantRevives):
		y.enter(g.left, g.before)
	case m.Mutation == grantProlongs && y.at == within:
		y.left = m.Short
	}
	if m.Mutation == grantRevives && x.at == takenOut && g.left > 0 {
		t.calls[g.number].unsure = 0
	}
	do(t, "#%d hears that it was granted, %d left%s", g.number, g.left, t.account(g.number))
	if s.doubles < m.Doubles && !calm {
		t.doubles++
		t.messages[i] = g
		do(t, "#%d hears that it was granted, %d left%s, and will once more", g.number, g.left,
			t.account(g.number))
	}
}

// time emits the events that occur as time passes: a tick, and the expiry of the store's data.
func (m *Line) time(s LineState, calm bool, do lineEmitter) {
	if n := s.store.number; n != 0 && s.store.left == 0 {
		t := s
		t.store, t.ranOut = entry{}, true
		t.miss(n)
		do(t, "store: the time of #%d is over, the lock is free", n)
	}
	for _, n := range s.line {
		if n == 0 {
			break
		}
		unkept := s.calls[n].at != queues || n != m.rival() && s.gone(m.client(n))
		if !unkept && (calm || s.lapses >= m.Lapses || n == m.rival()) {
			continue
		}
		t := s
		t.leave(n)
		if !unkept {
			t.lapses++
			t.miss(n)
		}
		do(t, "store: the place of #%d ends", n)
	}
	if m.Rival > 0 && calm && s.calls[m.rival()].believes() {
		return
	}
	t := s
	lower(&t.store.left)
	for n := range t.calls {
		t.calls[n].tick()
	}
	for i := range t.requests {
		lower(&t.requests[i].left)
		if m.Mutation != keptFromReply {
			lower(&t.requests[i].lasts)
		}
	}
	for i := range t.messages {
		lower(&t.messages[i].left)
	}
	do(t, "tick")
}

func (x *call) tick() {
	if x.believes() && x.left == 1 {
		x.lost, x.struck = true, false
	}
	lower(&x.left)
	if x.unsure > 1 {
		x.unsure--
	}
}

// keep emits a client's request to refresh the places of its waiting calls. The request omits a
// call if the client doesn't know that the call has a place.
func (m *Line) keep(s LineState, client int, do lineEmitter) {
	set := uint8(0)
	first, last := m.of(client)
	for n := first; n <= last; n++ {
		if x := &s.calls[n]; x.at == queues && (x.stood || m.Mutation == keepsUnanswered) {
			set |= 1 << n
		}
	}
	if set != 0 && m.send(&s, lineRequest{kind: keeping, set: set}) {
		do(s, "client %c keeps the places of %s", 'A'+client, numbersText(set))
	}
}

// step emits the next events of a call.
func (m *Line) step(s LineState, n uint8, calm bool, do lineEmitter) {
	x := &s.calls[n]
	t := s
	switch x.at {
	case notCome:
		first, _ := m.of(m.client(n))
		if calm || n > first && s.calls[n-1].at == notCome {
			return
		}
		t.calls[n].at = queues
		m.attempt(t, n, "comes", do)
	case queues:
		under := s.awaits(n, acquisition)
		if !under && (!x.stood || m.Mutation == asksByAttempt) {
			m.attempt(t, n, "tries again", do)
		}
		if !calm && (s.unknowns < m.Unknowns || !under) {
			m.end(s, n, "gives up", do)
		}
	case within:
		m.renew(s, n, calm, do)
		t = s
		if x.believes() && x.count < m.Depth && !calm && !s.awaits(n, reentry) &&
			m.send(&t, lineRequest{kind: reentry, number: n}) {
			do(t, "#%d re-enters", n)
		}
		if s.awaits(n, reentry) || s.awaits(n, acquisition, renewal) && s.unknowns >= m.Unknowns {
			return
		}
		m.end(s, n, "unlocks", do)
	case takenOut:
		m.takeBack(s, n, calm, do)
	}
}

// renew emits a renewal.
func (m *Line) renew(s LineState, n uint8, calm bool, do lineEmitter) {
	x := &s.calls[n]
	if !x.believes() || calm || !m.renews(n) || s.awaits(n, renewal) {
		return
	}
	r := lineRequest{kind: renewal, number: n}
	if m.Renewals {
		if m.send(&s, r) {
			do(s, "#%d renews", n)
		}
		return
	}
	m.carryOut(&s, &r)
	r.left = m.lease(n)
	m.answer(&s, r)
	do(s, "#%d renews: %s", n, replies[r.reply])
}

// renews reports whether a call renews its hold. A call doesn't if it asked for a shorter lease
// than the store granted.
func (m *Line) renews(n uint8) bool {
	return m.lease(n) >= m.Short || m.Mutation == renewalShortens
}

func (m *Line) attempt(s LineState, n uint8, does string, do lineEmitter) {
	if m.send(&s, lineRequest{kind: acquisition, number: n}) {
		do(s, "#%d %s, sends an acquisition", n, does)
	}
}

// end emits the end of a call. From then on, only releases are sent for its number.
func (m *Line) end(s LineState, n uint8, does string, do lineEmitter) {
	x := &s.calls[n]
	was := *x
	x.at = takenOut
	for i := range s.requests { // the call stops waiting for replies
		r := &s.requests[i]
		if r.kind == none || r.number != n || !r.awaited {
			continue
		}
		r.awaited = false
		if was.at == within && m.Mutation == attemptForgottenInside {
			continue
		}
		s.unknowns = min(s.unknowns+1, m.Unknowns)
		if r.kind != renewal && r.reply == pending {
			x.unsure = max(x.unsure, 1+r.left)
		}
	}
	do(s, "#%d %s", n, does)
}

// takeBack emits a background release of a number. The client repeats the release until the store
// has nothing left for the number, and no unanswered request can acquire the lock any more. Then
// the number is no longer used.
func (m *Line) takeBack(s LineState, n uint8, calm bool, do lineEmitter) {
	t := s
	out := m.release(&t, n)
	x := &t.calls[n]
	sure := x.unsure <= 1 && (!s.awaits(n) || m.Mutation == keepUnderWayForgotten)
	if out && (sure || m.Mutation == takenBackOnce) {
		x.at = past
	}
	does := "releases"
	if x.at != past {
		does = "releases, not for the last time,"
	}
	do(t, "background %s #%d (now %s)", does, n, m.storeText(&t))
	if m.Mutation == takenBackOnce && !calm {
		t = s
		t.calls[n].at = past
		do(t, "network loses the release of #%d", n)
	}
}

// other emits the events of the rival.
func (m *Line) other(s LineState, n uint8, calm bool, do lineEmitter) {
	x := &s.calls[n]
	t := s
	y := &t.calls[n]
	switch x.at {
	case notCome:
		if calm || s.rivals >= m.Rival {
			return
		}
		t.rivals++
		m.do(&t, func() {
			if t.store.number == 0 && t.line[0] == 0 {
				m.give(&t, n, m.Lease)
				y.at, y.left = within, m.Lease
				return
			}
			y.at = queues
			m.enqueue(&t, n)
		})
		do(t, "B comes (now %s)", m.storeText(&t))
	case queues:
		if !s.inLine(n) && s.store.number != n { // its place was lost
			m.do(&t, func() { m.comeBack(&t, 1<<n) })
			do(t, "B looks, and stands in line again")
			return
		}
		if !calm {
			*y = call{}
			m.release(&t, n)
			do(t, "B gives up (now %s)", m.storeText(&t))
			t = s
			t.calls[n] = call{at: past}
			do(t, "B crashes in line")
		}
		t = s
		m.do(&t, func() {})
		if t != s {
			do(t, "B looks (now %s)", m.storeText(&t))
		}
	case within:
		*y = call{at: past}
		if !x.lost && !x.struck {
			m.release(&t, n)
		}
		do(t, "B releases (now %s)", m.storeText(&t))
		if !calm && x.believes() {
			t = s
			t.calls[n] = call{at: past}
			do(t, "B crashes with the lock")
		}
		if !calm && x.believes() && !x.struck {
			t = s
			t.store.left, y.left = m.Lease, m.Lease
			do(t, "B renews")
		}
	case past:
		if s.store.number != n && !s.inLine(n) && m.Rival > s.rivals {
			*y = call{}
			do(t, "B begins anew")
		}
	}
}

// accidents emits unplanned events: ForceUnlock calls and client crashes.
func (m *Line) accidents(s LineState, do lineEmitter) {
	if n := s.store.number; s.forces < m.Forces && n != 0 {
		t := s
		t.forces++
		t.strike(n)
		t.miss(n)
		m.do(&t, func() { t.store = entry{} })
		do(t, "store: ForceUnlock (now %s)", m.storeText(&t))
	}
	if m.Crashes == 0 || s.crashed != 0 {
		return
	}
	for client := range 2 {
		if m.Calls[client] == 0 {
			continue
		}
		t := s
		t.crashed |= 1 << client
		for i := range t.requests {
			if r := &t.requests[i]; r.kind == keeping && r.set&t.numbersOf(m, client) != 0 ||
				r.kind != none && r.kind != keeping && m.client(r.number) == client {
				r.awaited = false
			}
		}
		do(t, "client %c crashes", 'A'+client)
	}
}

// strike records that the store is about to end a number's hold before the lease expires.
func (s *LineState) strike(n uint8) {
	s.calls[n].struck = s.calls[n].believes()
	for i := range s.requests {
		if r := &s.requests[i]; r.reply != pending && (r.number == n || r.holder == n) {
			r.before = true
		}
	}
	for i := range s.messages {
		s.messages[i].before = s.messages[i].before || s.messages[i].number == n
	}
}

func (s *LineState) numbersOf(m *Line, client int) (set uint8) {
	first, last := m.of(client)
	for n := first; n <= last; n++ {
		set |= 1 << n
	}
	return set
}
