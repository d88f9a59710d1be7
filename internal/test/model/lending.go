package main

// A write that its last holder hands to readers is lent: they are on it together, and in the store it still is a
// write. When its time to be handed on is over, it is downgraded: a read is asked for with the same owner string,
// and once that is granted the readers are on that, and the write is given back.

// askedFor is what a read is while a downgrade asks for it.
const askedFor = leavingIt + 1

// on returns the claim on which those are who read with an owner string.
func (s *SharesState) on(n uint8) *claim {
	if s.isLent(n) {
		return &s.claims[n][writes]
	}
	return &s.claims[n][reads]
}

func (s *SharesState) isLent(n uint8) bool { return s.lent&(1<<n) != 0 }

// passes says whether a write can be handed on, the time apart.
func (m *Shares) passes(s *SharesState, n uint8) bool {
	x := &s.claims[n][writes]
	return s.handOvers < m.HandOvers && x.valid() && x.unsure == 0
}

// young says whether a claim may be handed on or joined without asking the store.
func (m *Shares) young(x *claim) bool { return m.Window == 0 || x.age <= 1+m.Window }

// lend emits how a write is handed to those who wait to read: all who queue, unless a writer heads the queue or
// somebody's attempt is under way.
func (m *Shares) lend(s SharesState, p int, do sharesEmitter) {
	n := s.parties[p].writing
	if !m.Lends || !m.passes(&s, n) || s.claims[n][reads].use != unused || !m.young(&s.claims[n][writes]) && m.Mutation != lendsLate {
		return
	}
	head, busy := m.head(&s, m.client(p))
	for to := range m.all() {
		q := &s.parties[to]
		if m.client(to) != m.client(p) || to == p || q.writing != 0 || q.reading != 0 || busy && (head != q || q.at != waiting || q.side != reads) || !busy && q.at != idle {
			continue
		}
		t := s
		t.handOvers++
		m.vouch(&t, n, writes)
		if busy {
			m.retire(&t, q.number, reads, t.claims[q.number][reads].unsure > 0)
		}
		t.parties[p].writing = 0
		t.parties[to] = party{at: handed, reading: n}
		t.lent |= 1 << n
		m.grant(&t, m.client(p), n)
		do(t, "%s unlocks, lends #%d to %s and whoever queues", m.name(p), n, m.name(to))
	}
}

// passOn emits how what was lent, and the last reader has left, is handed to a writer who waits.
func (m *Shares) passOn(s SharesState, p int, do sharesEmitter) {
	n := s.parties[p].reading
	s.parties[p] = party{}
	if !m.passes(&s, n) || !m.young(&s.claims[n][writes]) && m.Mutation != passesOnLate {
		return
	}
	for to := range m.all() {
		q := &s.parties[to]
		if m.client(to) != m.client(p) || to == p || !m.mayWrite(to) || q.writing != 0 || q.reading != 0 || q.at != idle && !(q.at == waiting && q.side == writes) {
			continue
		}
		t := s
		t.handOvers++
		m.vouch(&t, n, writes)
		t.lent &^= 1 << n
		m.inherit(&t, n, to)
		do(t, "%s leaves #%d as the last, hands it over to %s", m.name(p), n, m.name(to))
	}
}

// inherit lets a writer have the write of another; what he may have got by attempts of his own is taken back.
func (m *Shares) inherit(s *SharesState, n uint8, to int) {
	if q := &s.parties[to]; q.at == waiting {
		m.retire(s, q.number, writes, s.claims[q.number][writes].unsure > 0)
	}
	s.parties[to] = party{writing: n}
}

// vouch notes whether somebody gets a claim long after the store let go of it.
func (m *Shares) vouch(s *SharesState, n, side uint8) {
	s.unvouched = s.unvouched || m.Window > 0 && s.claims[n][side].struck > 1+m.Window
}

// downgrade emits what becomes of a write that is lent when its time is over: its read is asked for until that is
// answered, or until the write is over.
func (m *Shares) downgrade(s SharesState, n uint8, do sharesEmitter) {
	w, x := &s.claims[n][writes], &s.claims[n][reads]
	over := w.use != live || w.lost != 0
	switch {
	case s.downgrades(n):
	case x.use == askedFor && over:
		m.endDowngrade(&s, n)
		do(s, "the downgrade of #%d ends with the write", n)
	case !over && (x.use == askedFor || x.use == unused && s.isLent(n) && !m.young(w)):
		x.use = askedFor
		if !m.send(&s, sharesRequest{kind: acquisition, side: reads, number: n, who: downgrader}) {
			return
		}
		if m.Mutation == flipsEarly && s.isLent(n) {
			m.flip(&s, n, sharesRequest{left: w.left})
		}
		do(s, "#%d is downgraded, sends acquisition of it for read", n)
	}
}

// downgrades says whether the request of a downgrade is on its way.
func (s *SharesState) downgrades(n uint8) bool {
	for _, r := range s.requests {
		if r.kind != none && r.who == downgrader && r.number == n {
			return true
		}
	}
	return false
}

// endDowngrade ends a downgrade without a read.
func (m *Shares) endDowngrade(s *SharesState, n uint8) {
	x := &s.claims[n][reads]
	x.use = over
	if x.unsure > 0 && m.Mutation != downgradeForgotten {
		x.use = retired
	}
}

// answerDowngrade notes the answer to the read that a downgrade asked for.
func (m *Shares) answerDowngrade(s *SharesState, r sharesRequest) {
	n := r.number
	w, x := &s.claims[n][writes], &s.claims[n][reads]
	if x.use != askedFor {
		return // what is broken made it a read before this
	}
	if r.reply == acquired && (r.left == 0 || w.use != live || w.lost != 0) {
		x.unsure = max(x.unsure, 1)
	}
	switch {
	case w.use != live || w.lost != 0:
		m.endDowngrade(s, n)
	case r.reply != acquired:
		w.lose() // else the store would have granted it
		m.endDowngrade(s, n)
		if m.Mutation == refusedForgotten {
			x.use = over
		}
	case r.left == 0: // it can't be relied on, and is asked for again
	default:
		m.flip(s, n, r)
	}
}

// flip puts the readers of a write on the read that was granted, and gives the write back. If the store doesn't have
// that any more, it was lost before, and what was granted is another read.
func (m *Shares) flip(s *SharesState, n uint8, r sharesRequest) {
	w, x := &s.claims[n][writes], &s.claims[n][reads]
	read := claim{use: live, left: r.left, age: w.age, unsure: x.unsure}
	if r.before != 0 {
		read.struck = max(1, w.struck)
	}
	switch m.Mutation {
	case keepsDeadline:
		read.left = max(read.left, w.left)
	case flipForgetsUnsure:
		read.unsure = 0
	}
	if !s.isLent(n) { // what is broken handed it to a writer, who goes on
		x.use = over
		m.carryOut(s, lastRelease, writes, n)
		return
	}
	*x = read
	*w = claim{use: retired, unsure: w.unsure, proves: 1}
	if m.Mutation == writeLeft {
		w.use = over
	}
	s.lent &^= 1 << n
}
