package main

import (
	"cmp"
	"slices"
)

// Shares is the model of what a read-write lock holds: reads that several goroutines of a client share, writes, reads
// under a write, and what the store has of each. Writes nest in model Holds; here they don't. The fields are its
// bounds. Time is as in Holds.
type Shares struct {
	Parties   [2]int // goroutines of each client
	Writers   [2]int // the first so many write too, and read while they do
	Numbers   [2]int // owner strings of each client
	Pair      bool   // the first two goroutines of A have one owner; the second only reads
	Rival     bool   // B is an ideal client instead: its requests take no time
	Count     uint8  // the most that the store may get to count of a write
	Requests  int    // in the network at a time
	Lease     uint8  // in ticks
	Renewals  bool   // renewals take time, too
	Window    uint8  // ticks since its acquisition was sent for which a claim is joined; 0: unlimited
	Plain     bool   // those who read in a client are one variable's plain calls: what is lost, and then what is oldest, is given back first
	Forces    uint8  // times that a client sends ForceUnlock, of either side
	Crashes   uint8
	HandOvers uint8 // of writes
	Lends     bool  // … to readers, too
	Punctual  bool  // no request is carried out later than its lease after it was sent
	Answered  bool  // whatever locks or releases is answered in time
	Mutation  mutation
}

const (
	maxParties = 4
	maxStrings = 5
	maxSends   = 3
)

// The sides of an owner string.
const (
	reads uint8 = iota
	writes
)

var sides = [...]string{"read", "write"}

// leavingIt is what a claim is from its last release on: between live and retired.
const leavingIt = over + 1

// A claim is one side of an owner string, as its client knows it.
type claim struct {
	use    uint8
	left   uint8 // until the client's own deadline
	unsure uint8 // 0: every request that could lock was answered; else 1 + what is left of the time to carry it out
	lost   uint8
	struck uint8 // 0, or 1 + ticks since the store let go of it, while the client can't know
	age    uint8 // 1 + ticks since the acquisition was sent
	proves uint8 // 1: if the store doesn't have this write, the read that it was made is none of those that were lent
}

func (x *claim) lose() { x.lost, x.struck = 1, 0 }

func (x *claim) valid() bool { return x.use == live && x.lost == 0 && x.left > 0 }

// A party is a goroutine: what it has, and what it is about.
type party struct {
	writing, reading uint8 // owner strings
	at, side, number uint8 // of the call that it makes; idle: none
	under            bool  // … while its owner writes
	torn             uint8 // 1: what it reads was once lost; 2: and it has been told
}

// A sharesRequest is in the network.
type sharesRequest struct {
	kind, side, number, who uint8
	left, reply, before     uint8
}

func (r sharesRequest) key() (k uint64) {
	for _, f := range [...]uint8{r.kind, r.side, r.number, r.who, r.reply, r.left, r.before} {
		k = k<<8 | uint64(f)
	}
	return k
}

// SharesState is a state.
type SharesState struct {
	write     entry                 // what the store has
	read      [maxStrings + 1]uint8 // 1 + ticks left, by owner string
	claims    [maxStrings + 1][2]claim
	shared    [2]uint8 // of each client: the claim that may be joined
	parties   [maxParties]party
	requests  [maxSends]sharesRequest
	forces    uint8
	crashed   uint8
	handOvers uint8
	lent      uint8 // owner strings whose readers are on the write, a bit for each
	tooLate   bool  // somebody was told that he has a lock which was over (S4)
	unvouched bool  // somebody joined a claim long after the store let go of it (E1)
}

// Init is an empty store and nobody doing anything.
func (m *Shares) Init() SharesState { return SharesState{} }

func (m *Shares) all() int { return m.Parties[0] + m.Parties[1] }

func (m *Shares) strings() uint8 { return uint8(m.Numbers[0] + m.Numbers[1]) }

func (m *Shares) client(p int) int {
	if p < m.Parties[0] {
		return 0
	}
	return 1
}

func (m *Shares) clientOf(n uint8) int {
	if int(n) <= m.Numbers[0] {
		return 0
	}
	return 1
}

// rival is the owner string of the ideal client.
func (m *Shares) rival() uint8 { return uint8(m.Numbers[0] + 1) }

func (m *Shares) mayWrite(p int) bool {
	c := m.client(p)
	return p-c*m.Parties[0] < m.Writers[c]
}

// readers counts who is on a claim for reading, or is told so just now.
func (s *SharesState) readers(n uint8) (k int) {
	for _, p := range s.parties {
		if n != 0 && p.reading == n {
			k++
		}
	}
	return k
}

// relies says whether somebody relies on a claim.
func (m *Shares) relies(s *SharesState, p int, n, side uint8) bool {
	q, x := &s.parties[p], &s.claims[n][side]
	if side == reads {
		x = s.on(n)
	}
	if n == 0 || !x.valid() || x.struck != 0 {
		return false
	}
	if side == writes {
		return q.writing == n
	}
	return q.reading == n && q.at != handed && q.torn < 2
}

// Bad checks the properties of a state.
func (m *Shares) Bad(s SharesState) []string {
	var bad []string
	check := func(property string, holds bool) {
		if !holds {
			bad = append(bad, property)
		}
	}
	check("S1", m.exclusive(&s))
	check("S2", m.backed(&s))
	check("S4", !s.tooLate)
	check("T1", m.told(&s))
	check("E1", !s.unvouched)
	check("G1", !m.Punctual || !m.haunted(&s))
	return bad
}

// exclusive says that nobody writes while another does anything.
func (m *Shares) exclusive(s *SharesState) bool {
	var writers, all [maxParties + 1]bool // by owner
	for p := range m.all() {
		q := &s.parties[p]
		writes := m.relies(s, p, q.writing, writes)
		writers[m.owner(p)] = writers[m.owner(p)] || writes
		all[m.owner(p)] = all[m.owner(p)] || writes || m.relies(s, p, q.reading, reads)
	}
	if m.Rival {
		relies := func(x *claim) bool { return x.valid() && x.struck == 0 }
		c := &s.claims[m.rival()]
		writers[maxParties] = relies(&c[writes])
		all[maxParties] = relies(&c[writes]) || relies(&c[reads])
	}
	count := func(of []bool) (n int) {
		for _, is := range of {
			if is {
				n++
			}
		}
		return n
	}
	return count(writers[:]) == 0 || count(all[:]) == 1
}

// owner returns whose owner a party shares, or itself.
func (m *Shares) owner(p int) int {
	if m.Pair && p == 1 {
		return 0
	}
	return p
}

// backed says that the store has what a client's account says.
func (m *Shares) backed(s *SharesState) bool {
	for p := range m.all() {
		q := &s.parties[p]
		if m.relies(s, p, q.writing, writes) && s.write.number != q.writing {
			return false
		}
		has := s.read[q.reading] != 0
		if s.isLent(q.reading) {
			has = s.write.number == q.reading
		}
		if m.relies(s, p, q.reading, reads) && !has {
			return false
		}
	}
	return true
}

// told says that nobody goes on reading whose hold was lost meanwhile, unless he has been told, or it
// may yet turn out: the store hasn't been asked since.
func (m *Shares) told(s *SharesState) bool {
	for p := range m.all() {
		if s.parties[p].torn != 1 || !m.relies(s, p, s.parties[p].reading, reads) {
			continue
		}
		asked := true
		for n := range s.claims {
			mine := m.clientOf(uint8(n)) == m.client(p)
			asked = asked && !(mine && (s.on(uint8(n)).struck > 0 || s.claims[n][writes].proves > 0))
		}
		if asked {
			return false
		}
	}
	return true
}

// haunted says whether the lock is held by a claim that nobody uses or takes back.
func (m *Shares) haunted(s *SharesState) bool {
	over := func(n, side uint8) bool {
		return s.claims[n][side].use == over && s.crashed&(1<<m.clientOf(n)) == 0
	}
	for n := uint8(1); n <= m.strings(); n++ {
		if s.read[n] > 1 && over(n, reads) && !s.under(n) || s.write.number == n && s.write.left > 0 && over(n, writes) {
			return true
		}
	}
	return false
}

// Done says that the lock is free and nothing is left that could lock it.
func (m *Shares) Done(s SharesState) bool {
	if s.write.number != 0 || s.read != [maxStrings + 1]uint8{} || s.requests != [maxSends]sharesRequest{} {
		return false
	}
	for _, p := range s.parties {
		if p.at != idle && p.at != gone || p.writing != 0 || p.reading != 0 {
			return false
		}
	}
	for n := range s.claims {
		for side := range s.claims[n] {
			if use := s.claims[n][side].use; use != unused && use != over {
				return false
			}
		}
	}
	return true
}

// tidy gives one form to states that can't be told apart, or whose difference can't matter.
func (m *Shares) tidy(s *SharesState) {
	for n := range s.claims {
		for side := range s.claims[n] {
			x := &s.claims[n][side]
			switch {
			case x.use == over:
				*x = claim{use: over}
			case x.use == retired:
				*x = claim{use: retired, unsure: x.unsure, proves: x.proves}
			case x.use == leavingIt:
				x.age = 0
				if !m.Plain {
					x.struck = 0
				}
				if m.Mutation != joinsReleased {
					x.left = 0
				}
			case x.lost != 0 && m.Mutation != joinsLost:
				x.left, x.age = 0, 0
			}
			if !m.Punctual && x.unsure > 1 {
				x.unsure = 1
			}
			if m.Window == 0 {
				x.age, x.struck = 0, min(x.struck, 1)
			} else {
				x.age, x.struck = min(x.age, m.Window+2), min(x.struck, m.Window+2)
			}
		}
	}
	for c, n := range s.shared {
		if x := s.on(n); x.use != live && !(m.Mutation == joinsReleased && x.use == leavingIt) {
			s.shared[c] = 0
		}
	}
	for n := range s.claims {
		if s.claims[n][writes].use == over && s.readers(uint8(n)) == 0 {
			s.lent &^= 1 << n
		}
	}
	for i := range s.parties {
		p := &s.parties[i]
		if x := s.on(p.reading); p.reading == 0 {
			p.torn = 0
		} else if p.torn == 0 && (x.lost != 0 || x.struck != 0) {
			p.torn = 1
		}
		if p.at == idle || p.at == queued || p.at == handed {
			p.side, p.number, p.under = 0, 0, false
		}
	}
	for i := range s.requests {
		r := &s.requests[i]
		if !m.Punctual && (r.who == nobody || r.kind == lastRelease) || r.reply == heldByAnother || r.reply == freed || r.reply == notHeld {
			r.left = 0
		}
		if r.reply != acquired && r.reply != renewed {
			r.before = 0
		}
	}
	slices.SortFunc(s.requests[:], func(a, b sharesRequest) int { return cmp.Compare(b.key(), a.key()) })
	m.alike(s)
}

// alike orders those who only read: they can't be told apart, but by what is on its way to them.
func (m *Shares) alike(s *SharesState) {
	for p := range m.all() {
		q := p + 1
		if q < m.all() && m.client(p) == m.client(q) && !m.mayWrite(p) && !m.Pair && !s.expects(p) && !s.expects(q) &&
			s.parties[p].rank() < s.parties[q].rank() {
			s.parties[p], s.parties[q] = s.parties[q], s.parties[p]
		}
	}
}

func (p party) rank() (k uint64) {
	for _, f := range [...]uint8{p.at, p.reading, p.side, p.number, p.torn} {
		k = k<<8 | uint64(f)
	}
	return k
}

// expects says whether a reply is on its way to a party.
func (s *SharesState) expects(p int) bool {
	for _, r := range s.requests {
		if r.kind != none && int(r.who) == p {
			return true
		}
	}
	return false
}
