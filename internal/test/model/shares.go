package main

import (
	"cmp"
	"slices"
)

// Shares is the model of the holds of a read-write lock. It covers write locks, read locks that
// several goroutines of a client share, read locks under a write (their owner also holds the write
// lock), and the store's data about each of these. Nested writes are covered by the Holds model,
// not here. Time passes as in the Holds model. The fields of Shares limit the exploration.
type Shares struct {
	Parties  [2]int // the number of each client's goroutines
	Writers  [2]int // how many of these can also write, and can read while they write
	Numbers  [2]int // the number of each client's owner strings
	Pair     bool   // client A's first two goroutines have one owner; the second only reads
	Rival    bool   // client B is ideal: its requests take no time
	Count    uint8  // the maximum count of a write in the store
	Requests int    // the maximum number of requests in the network at a time
	Lease    uint8  // in ticks
	Renewals bool   // renewals take time
	// Window limits how long a claim can be joined. It is the maximum number of ticks since the
	// claim's acquisition was sent. 0 means no limit.
	Window uint8
	// Plain makes a client's readers use one variable, without owners. The release of such a call
	// isn't tied to a particular hold. It ends a lost hold or, if there is none, the oldest hold.
	Plain     bool
	Forces    uint8 // how many times a client sends ForceUnlock
	Crashes   uint8
	HandOvers uint8 // the maximum number of hand-overs of a write
	Lends     bool  // a write can also be handed over to readers
	Punctual  bool  // no request is carried out later than one lease after it was sent
	Answered  bool  // no call gives up waiting for the answer to an acquisition or release
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

// leavingIt is the value of claim.use once the last release has been sent.
const leavingIt = over + 1

// A claim records what a client knows about the read lock or the write lock of an owner string.
type claim struct {
	use  uint8
	left uint8 // the time until the client's own deadline
	// unsure is 0 if all requests that could acquire the lock were answered. Otherwise it is 1 +
	// the number of ticks for which such a request can still take effect.
	unsure uint8
	lost   uint8
	// struck is 0, unless the store has ended the claim and the client doesn't know that. Then it
	// is 1 + the number of ticks since the claim's end.
	struck uint8
	age    uint8 // 1 + ticks since the acquisition was sent
	// proves is 1 after a downgrade, until the write is released. If the store then answers that it
	// no longer had the write, this proves that the readers have lost the lock.
	proves uint8
}

func (x *claim) lose() { x.lost, x.struck = 1, 0 }

func (x *claim) valid() bool { return x.use == live && x.lost == 0 && x.left > 0 }

// A party is a goroutine, with its holds and its current call.
type party struct {
	writing, reading uint8 // owner strings
	at, side, number uint8 // state (idle without a call), side and owner string of its call
	under            bool  // the call reads while its owner writes
	torn             uint8 // 1 if its read was lost; 2 if the party knows that
}

// A sharesRequest is a request in the network.
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

// SharesState is a state of the model.
type SharesState struct {
	write     entry                 // in the store
	read      [maxStrings + 1]uint8 // reads in the store, by owner string: 1 + the ticks left, or 0
	claims    [maxStrings + 1][2]claim
	shared    [2]uint8 // for each client, the claim that can be joined
	parties   [maxParties]party
	requests  [maxSends]sharesRequest
	forces    uint8
	crashed   uint8
	handOvers uint8
	lent      uint8 // bit set of the owner strings whose readers share a lent write
	tooLate   bool  // a call returned with a lock that had expired (S4)
	unvouched bool  // a call joined a claim long after the store ended it (E1)
}

// Init returns the initial state, with an empty store and idle parties.
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

// rival returns the owner string of the ideal client.
func (m *Shares) rival() uint8 { return uint8(m.Numbers[0] + 1) }

func (m *Shares) mayWrite(p int) bool {
	c := m.client(p)
	return p-c*m.Parties[0] < m.Writers[c]
}

// readers counts the parties that read under claim n, including those that don't know it yet.
func (s *SharesState) readers(n uint8) (k int) {
	for _, p := range s.parties {
		if n != 0 && p.reading == n {
			k++
		}
	}
	return k
}

// relies reports whether party p relies on a claim.
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

// exclusive reports whether no party writes while a party with another owner reads or writes.
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

// owner returns the first party with the same owner as p, which may be p itself.
func (m *Shares) owner(p int) int {
	if m.Pair && p == 1 {
		return 0
	}
	return p
}

// backed reports whether every hold that a party relies on exists in the store.
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

// told reports whether every reader that lost its read knows about the loss. A reader needn't know
// about it until its client has asked the store about the read.
func (m *Shares) told(s *SharesState) bool {
	for p := range m.all() {
		if s.parties[p].torn != 1 || !m.relies(s, p, s.parties[p].reading, reads) {
			continue
		}
		asked := true
		for n := range s.claims {
			mine := m.clientOf(uint8(n)) == m.client(p)
			asked = asked &&
				!(mine && (s.on(uint8(n)).struck > 0 || s.claims[n][writes].proves > 0))
		}
		if asked {
			return false
		}
	}
	return true
}

// haunted reports whether the lock is held in the store for a claim that its client neither uses
// nor releases.
func (m *Shares) haunted(s *SharesState) bool {
	over := func(n, side uint8) bool {
		return s.claims[n][side].use == over && s.crashed&(1<<m.clientOf(n)) == 0
	}
	for n := uint8(1); n <= m.strings(); n++ {
		if s.read[n] > 1 && over(n, reads) && !s.under(n) ||
			s.write.number == n && s.write.left > 0 && over(n, writes) {
			return true
		}
	}
	return false
}

// Done reports whether the lock is free and no request is left that could acquire it.
func (m *Shares) Done(s SharesState) bool {
	if s.write.number != 0 || s.read != [maxStrings + 1]uint8{} ||
		s.requests != [maxSends]sharesRequest{} {
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

// tidy normalizes s, so that states that differ only in irrelevant data become equal.
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
		if !m.Punctual && (r.who == nobody || r.kind == lastRelease) || r.reply == heldByAnother ||
			r.reply == freed || r.reply == notHeld {
			r.left = 0
		}
		if r.reply != acquired && r.reply != renewed {
			r.before = 0
		}
	}
	slices.SortFunc(s.requests[:], func(a, b sharesRequest) int {
		return cmp.Compare(b.key(), a.key())
	})
	m.alike(s)
}

// alike sorts the parties that only read. These are interchangeable, except while a request of
// one of them, or the reply to it, is on its way.
func (m *Shares) alike(s *SharesState) {
	for p := range m.all() {
		q := p + 1
		if q < m.all() && m.client(p) == m.client(q) && !m.mayWrite(p) && !m.Pair &&
			!s.expects(p) && !s.expects(q) &&
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

// expects reports whether a party's request, or the reply to it, is on its way.
func (s *SharesState) expects(p int) bool {
	for _, r := range s.requests {
		if r.kind != none && int(r.who) == p {
			return true
		}
	}
	return false
}
