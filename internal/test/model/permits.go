package main

import (
	"fmt"
	"slices"
)

// Permits is the model of a semaphore. Each party makes a single acquisition, of several permits,
// under its own owner string. The party's index represents its owner string. The release of a
// party's permits is a single step, as in the Line model. A client of another library, with a clock
// that is ahead, can take over some of a party's permits before they expire. The fields of Permits
// limit the exploration.
type Permits struct {
	Wants    [maxHolders]uint8 // how many permits each party asks for; 0 means no such party
	Limits   [maxHolders]uint8 // the limit that each party passes to the store
	Requests int
	Unknowns uint8
	Lease    uint8
	Reclaims uint8 // how many times a permit is taken away too early
	Forces   uint8
	Punctual bool
	Mutation mutation
}

const maxHolders = 3

// had is the store's record of a party: its permits, and their remaining time.
type had struct{ permits, left uint8 }

// PermitsState is a state of the model. Its requests and calls are like those of the Line model.
// The number of a request is the index of a party.
type PermitsState struct {
	out      [maxHolders]had
	calls    [maxHolders]call
	requests [maxRequests]lineRequest
	unknowns uint8
	reclaims uint8
	forces   uint8
}

// Init returns the state in which no permits are held.
func (m *Permits) Init() PermitsState { return PermitsState{} }

func (s *PermitsState) total() (n uint8) {
	for _, x := range s.out {
		n += x.permits
	}
	return n
}

// Bad checks these rules. S1: all parties together rely on no more permits than the largest limit.
// S2: the store counts the permits on which a party relies. G: all permits in the store are in use
// or being released.
func (m *Permits) Bad(s PermitsState) []string {
	var bad []string
	believed, counted, haunted := uint8(0), true, false
	for n := range s.calls {
		x := &s.calls[n]
		if x.believes() && !x.struck {
			believed += m.Wants[n]
			counted = counted && s.out[n].permits == m.Wants[n]
		}
		haunted = haunted || x.at == past && s.out[n].permits > 0 && s.out[n].left > 0
	}
	if believed > slices.Max(m.Limits[:]) {
		bad = append(bad, "S1")
	}
	if !counted {
		bad = append(bad, "S2")
	}
	if haunted && m.Punctual {
		bad = append(bad, "G")
	}
	return bad
}

// Done reports whether all calls have ended and no permits are held.
func (m *Permits) Done(s PermitsState) bool {
	for _, x := range s.calls {
		if x.at != notCome && x.at != past {
			return false
		}
	}
	return s.total() == 0 && s.requests == [maxRequests]lineRequest{}
}

type permitsEmitter func(PermitsState, string, ...any)

// Next emits the successors of s.
func (m *Permits) Next(s PermitsState, calm bool, emit func(PermitsState, string, ...any)) {
	do := func(t PermitsState, format string, args ...any) {
		m.tidy(&t)
		emit(t, format, args...)
	}
	for i, r := range s.requests[:m.Requests] {
		if r.kind != none && (i == 0 || r != s.requests[i-1]) {
			m.network(s, i, calm, do)
		}
	}
	for n := range m.Wants {
		if m.Wants[n] > 0 {
			m.step(s, n, calm, do)
		}
		if s.out[n].permits > 0 && s.out[n].left == 0 {
			t := s
			t.out[n] = had{}
			do(t, "store: the time of %s is over", m.name(n))
		}
		if !calm && s.reclaims < m.Reclaims && s.out[n].permits > 1 {
			t := s
			t.reclaims++
			t.strike(n)
			t.out[n].permits--
			do(t, "somebody reclaims one of %s", m.name(n))
		}
	}
	if !calm && s.forces < m.Forces && s.total() > 0 {
		t := s
		t.forces++
		for n := range t.out {
			t.strike(n)
			t.out[n] = had{}
		}
		do(t, "store: ForceUnlock")
	}
	m.tick(s, do)
}

func (m *Permits) name(n int) string { return fmt.Sprintf("#%d", n) }

// strike records that the store revokes party n's permits before their lease expires.
func (s *PermitsState) strike(n int) {
	s.calls[n].struck = s.calls[n].believes()
	for i := range s.requests {
		if r := &s.requests[i]; r.kind != none && int(r.number) == n && r.reply != pending {
			r.before = true
		}
	}
}

func (m *Permits) tidy(s *PermitsState) {
	for n := range s.calls {
		switch x := &s.calls[n]; x.at {
		case takenOut:
			*x = call{at: takenOut, unsure: x.unsure}
		case past:
			*x = call{at: past}
		}
	}
	for i := range s.requests {
		if r := &s.requests[i]; r.kind != none && !r.awaited {
			if r.reply != pending {
				*r = lineRequest{}
			} else if !m.Punctual {
				r.left = 0
			}
		}
	}
	slices.SortFunc(s.requests[:], lineRequest.compare)
}

func (m *Permits) tick(s PermitsState, do permitsEmitter) {
	for n := range s.out {
		lower(&s.out[n].left)
		s.calls[n].tick()
	}
	for i := range s.requests {
		lower(&s.requests[i].left)
	}
	do(s, "tick")
}

func (m *Permits) send(s *PermitsState, kind uint8, n int) bool {
	for i := range m.Requests {
		if s.requests[i].kind == none {
			s.requests[i] = lineRequest{kind: kind, number: uint8(n), left: m.Lease, awaited: true}
			return true
		}
	}
	return false
}

func (s *PermitsState) awaits(n int, kind uint8) bool {
	for _, r := range s.requests {
		if r.kind == kind && r.awaited && int(r.number) == n {
			return true
		}
	}
	return false
}

// carryOut carries out a request in the store.
func (m *Permits) carryOut(s *PermitsState, r *lineRequest) {
	n := int(r.number)
	x, wants := &s.out[n], m.Wants[n]
	if x.permits != 0 && x.permits != wants && m.Mutation != partKept {
		*x = had{}
	}
	has := x.permits > 0
	switch {
	case r.kind == renewal && has:
		x.left, r.reply = m.Lease, renewed
	case r.kind == renewal:
		r.reply = renewedNot
	case has && m.Mutation != permitsDrawnAnew:
		x.left, r.reply = m.Lease, acquired
	case s.total()+wants <= m.Limits[n]:
		*x = had{x.permits + wants, m.Lease}
		r.reply = acquired
	default:
		r.reply = heldByAnother
	}
}

// release releases the permits of party n.
func (m *Permits) release(s *PermitsState, n int) {
	x := &s.out[n]
	switch {
	case m.Mutation == permitsDrawnAnew:
		x.permits -= min(x.permits, m.Wants[n])
	case m.Mutation == partStays && x.permits != m.Wants[n]:
		return
	default:
		x.permits = 0
	}
	if x.permits == 0 {
		*x = had{}
	}
}

// network emits the possible events of request i.
func (m *Permits) network(s PermitsState, i int, calm bool, do permitsEmitter) {
	r := s.requests[i]
	n := int(r.number)
	expired := m.Punctual && r.left == 0
	name := fmt.Sprintf("%s of %s", kinds[r.kind], m.name(n))
	t := s
	switch {
	case r.reply != pending:
		t.requests[i] = lineRequest{}
		m.answer(&t, r)
		do(t, "%s is answered: %s", name, replies[r.reply])
	case !expired:
		m.carryOut(&t, &t.requests[i])
		late := ""
		if !r.awaited {
			late = "LATE "
		}
		do(t, "store: %s%s -> %s (now %d out)", late, name, replies[t.requests[i].reply], t.total())
	}
	t = s
	if !r.awaited {
		if !calm || expired {
			t.requests[i] = lineRequest{}
			do(t, "network loses %s", name)
		}
		return
	}
	if calm && !(expired && r.reply == pending) || s.unknowns >= m.Unknowns && !expired {
		return
	}
	t.unknowns = min(t.unknowns+1, m.Unknowns)
	m.leave(&t, i)
	do(t, "nobody waits for the answer to %s any more", name)
}

// leave makes the caller of request i stop waiting for the reply.
func (m *Permits) leave(s *PermitsState, i int) {
	r := &s.requests[i]
	r.awaited = false
	if r.kind == acquisition && r.reply == pending ||
		r.kind == acquisition && s.calls[r.number].at == queues {
		x := &s.calls[r.number]
		x.unsure = max(x.unsure, 1+r.left)
	}
}

// answer delivers a reply to a party.
func (m *Permits) answer(s *PermitsState, r lineRequest) {
	x := &s.calls[r.number]
	switch {
	case r.kind == acquisition && x.at == queues && r.reply == acquired && r.left > 0:
		x.enter(r.left, r.before)
	case r.kind == acquisition && x.at == queues && r.reply == acquired:
		x.unsure = max(x.unsure, 1)
	case r.kind == renewal && x.at == within && r.reply == renewed:
		x.extend(r.left, r.before)
	case r.kind == renewal && x.at == within:
		x.lost, x.struck = true, false
	}
}

// step emits the next events of a party.
func (m *Permits) step(s PermitsState, n int, calm bool, do permitsEmitter) {
	x := &s.calls[n]
	t := s
	switch x.at {
	case notCome:
		t.calls[n].at = queues
		if !calm && m.send(&t, acquisition, n) {
			do(t, "%s asks for %d", m.name(n), m.Wants[n])
		}
	case queues:
		if !s.awaits(n, acquisition) && m.send(&t, acquisition, n) {
			do(t, "%s asks again", m.name(n))
		}
		if !calm && !s.awaits(n, acquisition) {
			m.end(s, n, "gives up", do)
		}
	case within:
		if !calm && x.believes() && !s.awaits(n, renewal) && m.send(&t, renewal, n) {
			do(t, "%s renews", m.name(n))
		}
		m.end(s, n, "gives back", do)
	case takenOut:
		m.takeBack(s, n, calm, do)
	}
}

// end emits the end of party n's acquisition. From then on, only releases are sent for the party.
func (m *Permits) end(s PermitsState, n int, does string, do permitsEmitter) {
	s.calls[n].at = takenOut
	for i := range s.requests {
		if r := &s.requests[i]; r.kind == renewal && int(r.number) == n {
			r.awaited = false // the answer no longer has an effect
		}
	}
	do(s, "%s %s", m.name(n), does)
}

// takeBack emits a background release of party n's permits, as in the Line model.
func (m *Permits) takeBack(s PermitsState, n int, calm bool, do permitsEmitter) {
	t := s
	m.release(&t, n)
	if x := &t.calls[n]; x.unsure <= 1 || m.Mutation == takenBackOnce {
		x.at = past
	}
	do(t, "background releases %s (now %d out)", m.name(n), t.total())
	if m.Mutation == takenBackOnce && !calm {
		s.calls[n].at = past
		do(s, "network loses the release of %s", m.name(n))
	}
}
