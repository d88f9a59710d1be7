package main

// Here a write is a write lock, and a read is a read lock. A writer that unlocks can lend its write
// to waiting readers of its client. They share the write, and the store still records a write. When
// the write is too old for further hand-overs, the client downgrades it: the client requests a read
// with the same owner string. Once the store grants the read, the readers move from the write to
// the read, and the client releases the write.

// askedFor is the value of claim.use for a read that a downgrade is requesting.
const askedFor = leavingIt + 1

// on returns the claim of the readers with owner string n: the write if it is lent, and otherwise
// the read.
func (s *SharesState) on(n uint8) *claim {
	if s.isLent(n) {
		return &s.claims[n][writes]
	}
	return &s.claims[n][reads]
}

func (s *SharesState) isLent(n uint8) bool { return s.lent&(1<<n) != 0 }

// passes reports whether a write can be handed over. It doesn't check the hand-over time.
func (m *Shares) passes(s *SharesState, n uint8) bool {
	x := &s.claims[n][writes]
	return s.handOvers < m.HandOvers && x.valid() && x.unsure == 0
}

// young reports whether a claim is recent enough to be handed over or joined.
func (m *Shares) young(x *claim) bool { return m.Window == 0 || x.age <= 1+m.Window }

// lend emits the hand-over of a write to all waiting readers in the queue. It emits nothing if the
// head of the queue is a writer, or if the head is waiting for the reply to an attempt.
func (m *Shares) lend(s SharesState, p int, do sharesEmitter) {
	n := s.parties[p].writing
	if !m.Lends || !m.passes(&s, n) || s.claims[n][reads].use != unused ||
		!m.young(&s.claims[n][writes]) && m.Mutation != lendsLate {
		return
	}
	head, busy := m.head(&s, m.client(p))
	for to := range m.all() {
		q := &s.parties[to]
		if m.client(to) != m.client(p) || to == p || q.writing != 0 || q.reading != 0 ||
			busy && (head != q || q.at != waiting || q.side != reads) || !busy && q.at != idle {
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

// passOn emits the hand-over of a lent write to a waiting writer, after the last reader has left.
func (m *Shares) passOn(s SharesState, p int, do sharesEmitter) {
	n := s.parties[p].reading
	s.parties[p] = party{}
	if !m.passes(&s, n) || !m.young(&s.claims[n][writes]) && m.Mutation != passesOnLate {
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
		m.vouch(&t, n, writes)
		t.lent &^= 1 << n
		m.inherit(&t, n, to)
		do(t, "%s leaves #%d as the last, hands it over to %s", m.name(p), n, m.name(to))
	}
}

// inherit gives a write to another writer. If the store may already have granted the other writer a
// claim of its own, the client releases that claim in the background.
func (m *Shares) inherit(s *SharesState, n uint8, to int) {
	if q := &s.parties[to]; q.at == waiting {
		m.retire(s, q.number, writes, s.claims[q.number][writes].unsure > 0)
	}
	s.parties[to] = party{writing: n}
}

// vouch sets s.unvouched if a call gets a claim too long after the store ended the claim.
func (m *Shares) vouch(s *SharesState, n, side uint8) {
	s.unvouched = s.unvouched || m.Window > 0 && s.claims[n][side].struck > 1+m.Window
}

// downgrade emits the downgrade of a lent write that is too old to be handed over. The client
// repeats the request for the read until the store replies or the write ends.
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

// downgrades reports whether a request to downgrade n is in the network.
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

// answerDowngrade handles the answer to a downgrade's request for a read.
func (m *Shares) answerDowngrade(s *SharesState, r sharesRequest) {
	n := r.number
	w, x := &s.claims[n][writes], &s.claims[n][reads]
	if x.use != askedFor {
		return // a mutation has already turned the write into a read
	}
	if r.reply == acquired && (r.left == 0 || w.use != live || w.lost != 0) {
		x.unsure = max(x.unsure, 1)
	}
	switch {
	case w.use != live || w.lost != 0:
		m.endDowngrade(s, n)
	case r.reply != acquired:
		w.lose() // if the store still had the write, it would have granted the read
		m.endDowngrade(s, n)
		if m.Mutation == refusedForgotten {
			x.use = over
		}
	case r.left == 0: // the read has already expired, and is requested again
	default:
		m.flip(s, n, r)
	}
}

// flip moves the readers of a write to the granted read, and releases the write. If the store had
// lost the write, the granted read is a new hold.
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
	if !s.isLent(n) { // a mutation has handed the write to a writer, which keeps it
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
