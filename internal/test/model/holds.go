package main

import (
	"cmp"
	"slices"
)

// Holds is the model of holds: the store, the network, leases, and each client's own account of
// what it has. The fields are its bounds. Goroutines are numbered through: those of client A, then
// those of client B.
//
// Time is discrete and relative: a tick lowers every remaining time by one, and nothing says how
// many steps lie between two ticks.
type Holds struct {
	Goroutines [2]int  // of each client
	Numbers    [2]int  // outermost acquisitions of each client
	Nested     [2]bool // the client's first goroutine has an owner, and re-enters
	AllNested  bool    // everybody does
	Pair       bool    // the first two goroutines of A share an owner
	Rival      bool    // B is an ideal client instead: its requests take no time
	Depth      uint8   // how deep is re-entered
	Count      int     // the most that the store may get to count
	Requests   int     // in the network at a time
	Lease      uint8   // of watched holds, in ticks
	Fixed      uint8   // of fixed ones; 0: nobody asks for such
	Forces     uint8   // times that a client sends ForceUnlock
	Failovers  uint8   // times that the store falls back to an earlier state
	Crashes    uint8
	HandOvers  uint8
	Chain      uint8 // ticks since its acquisition was sent for which a number is handed on; 0: unlimited
	SureOnly   bool  // a number with a request in doubt isn't handed on
	Punctual   bool  // no request is carried out later than its lease after it was sent
	Answered   bool  // whatever locks or counts is answered in time
	Later      bool  // … but only from the first hand-over on
	Mutation   mutation
}

const (
	maxGoroutines = 4
	maxNumbers    = 6
	maxRequests   = 4
)

// Where a goroutine is.
const (
	idle      uint8 = iota
	trying          // its acquisition awaits an answer
	waiting         // not acquired (yet): it tries again or gives up
	handed          // was handed a hold, and hasn't noticed yet
	inside          // has the lock
	queued          // will re-enter what its owner holds
	entering        // its re-entry awaits an answer
	leaving         // its partial release awaits an answer
	draining        // its last release awaits an answer
	undrained       // its last release has no answer, or holds were left: to be repeated
	gone            // its client crashed
)

// What a number is to its client.
const (
	unused  uint8 = iota
	live          // a goroutine acquires it, has it or releases it
	retired       // nobody's; taken back in the background
	over          // forgotten
)

// A number is one outermost acquisition, from its first request to the end of its last tenure, as
// its client knows it.
type number struct {
	use    uint8
	count  uint8 // 0 also while it is acquired and from its last release on
	left   uint8 // until the client's own deadline
	unsure uint8 // 0: every request that could lock was answered; else 1 + what is left of the time to carry it out
	lost   uint8
	struck uint8 // 0, or 1 + ticks since the store let go of it, while the client can't know
	age    uint8 // 1 + ticks since the acquisition was sent
	party  uint8 // 1 + whose it is
	watch  uint8 // it is renewed
	lease  uint8 // what the next renewal asks for
	doubt  uint8 // the shortest lease of any request without an answer; 0: none
	fading uint8 // for doubtEnds and takenBackInTimeOnly
}

// lose ends a number for good before its last release.
func (x *number) lose() { x.lost, x.struck = 1, 0 }

func (x *number) valid() bool { return x.use == live && x.count > 0 && x.lost == 0 && x.left > 0 }

type goroutine struct {
	at, number uint8
	late       uint8 // it called Lock after the store let go of a number
}

// HoldsState is a state.
type HoldsState struct {
	store     entry
	replica   entry // what the store falls back to
	numbers   [maxNumbers + 1]number
	routines  [maxGoroutines]goroutine
	requests  [maxRequests]request
	forces    uint8
	failovers uint8
	crashed   uint8 // a bit for each client
	handOvers uint8
	repeated  bool
	mixedUp   bool // a release of one hold counted down another (S3)
	tooLate   bool // somebody was told that he has a lock which was over (S4)
	unvouched bool // somebody got in that late after the store let go (E1)
	outOfDate bool // somebody got in who came after the store let go (E0)
}

// Init is an empty store and nobody doing anything.
func (m *Holds) Init() HoldsState { return HoldsState{} }

func (m *Holds) goroutines() int { return m.Goroutines[0] + m.Goroutines[1] }

func (m *Holds) numbers() uint8 { return uint8(m.Numbers[0] + m.Numbers[1]) }

func (m *Holds) client(g int) int {
	if g < m.Goroutines[0] {
		return 0
	}
	return 1
}

func (m *Holds) clientOf(n uint8) int {
	if int(n) <= m.Numbers[0] {
		return 0
	}
	return 1
}

// party returns 1 + who a goroutine is to the lock.
func (m *Holds) party(g int) uint8 {
	if m.Pair && g == 1 {
		return 1
	}
	return uint8(g) + 1
}

// rival is the number of the ideal client.
func (m *Holds) rival() uint8 { return uint8(m.Numbers[0] + 1) }

// same says whether two numbers are one to the store.
func (m *Holds) same(s *HoldsState, a, b uint8) bool {
	if a == 0 || b == 0 {
		return false
	}
	if m.Mutation == numberPerOwner {
		return s.numbers[a].party == s.numbers[b].party
	}
	return a == b
}

// isInside says whether a goroutine acts on its hold. One of a pair has one hold of the two.
func (m *Holds) isInside(at uint8) bool {
	return at == inside || !m.Pair && (at == entering || at == leaving)
}

// Bad checks the properties of a state.
func (m *Holds) Bad(s HoldsState) []string {
	var bad []string
	check := func(property string, holds bool) {
		if !holds {
			bad = append(bad, property)
		}
	}
	heirless := m.Later && s.handOvers == 0
	check("S1", heirless || m.believers(&s) <= 1)
	check("S2", heirless || m.counts(&s))
	check("S3", !s.mixedUp)
	check("S4", !s.tooLate)
	check("E0", !s.outOfDate)
	check("E1", !s.unvouched)
	check("G1", !m.Punctual || !m.haunted(&s))
	return bad
}

// believers counts the parties that are inside and whose own deadline has not passed. Whoever was
// struck can't know, and doesn't count.
func (m *Holds) believers(s *HoldsState) int {
	var parties [maxGoroutines + 1]bool
	for g := range m.goroutines() {
		x := &s.numbers[s.routines[g].number]
		if m.isInside(s.routines[g].at) && x.valid() && x.struck == 0 {
			parties[m.party(g)] = true
		}
	}
	n := 0
	for _, is := range parties {
		if is {
			n++
		}
	}
	if x := &s.numbers[m.rival()]; m.Rival && x.valid() && x.struck == 0 {
		n++
	}
	return n
}

// counts says whether the store counts at least what each client does.
func (m *Holds) counts(s *HoldsState) bool {
	for n := uint8(1); n <= m.numbers(); n++ {
		x := &s.numbers[n]
		if x.valid() && x.struck == 0 && s.failovers == 0 && (!m.same(s, s.store.number, n) || s.store.count < x.count) {
			return false
		}
	}
	return true
}

// haunted says whether the key is held by a number that nobody uses or takes back.
func (m *Holds) haunted(s *HoldsState) bool {
	n := s.store.number
	return n != 0 && s.store.left > 0 && s.numbers[n].use == over && !s.hasCrashed(m.clientOf(n))
}

func (s *HoldsState) hasCrashed(client int) bool { return s.crashed&(1<<client) != 0 }

// Done says that the key is free and nothing is left that could lock it.
func (m *Holds) Done(s HoldsState) bool {
	if s.store.number != 0 {
		return false
	}
	for _, r := range s.requests {
		if r.kind != none {
			return false
		}
	}
	for _, g := range s.routines {
		if g.at != idle && g.at != gone {
			return false
		}
	}
	for _, x := range s.numbers {
		if x.use == live || x.use == retired {
			return false
		}
	}
	return true
}

// tidy gives one form to states that can't be told apart, or whose difference can't matter.
func (m *Holds) tidy(s *HoldsState) {
	for i := range s.numbers {
		x := &s.numbers[i]
		party := x.party
		if m.Mutation != numberPerOwner && !m.Pair {
			party = 0
		}
		switch {
		case x.use == over:
			*x = number{use: over, party: party}
		case x.use == retired:
			*x = number{use: retired, party: party, unsure: x.unsure, fading: x.fading}
		case x.lost != 0 && m.Mutation != handsOnLost && m.Mutation != handsOnLate:
			x.count, x.left, x.watch = 1, 0, 0
		case x.count == 0 && m.Mutation != renewsAfterUnlock && m.Mutation != unlocksDuringReentry && m.Mutation != handsOnReleased:
			x.left = 0
		}
		x.party = party
		if !m.Punctual && x.unsure > 1 {
			x.unsure = 1
		}
		if m.Chain == 0 {
			x.age = 0
			x.struck = min(x.struck, 1)
		} else {
			x.age = min(x.age, m.Chain+2)
			x.struck = min(x.struck, m.Chain+2)
		}
	}
	for i := range s.routines {
		if g := &s.routines[i]; g.at == idle || g.at == gone {
			*g = goroutine{at: g.at}
		}
	}
	for i := range s.requests {
		r := &s.requests[i]
		if !m.Punctual && (r.who == nobody || r.kind == lastRelease) || r.reply == heldByAnother || r.reply == freed || r.reply == notHeld {
			r.left = 0
		}
		if r.kind != reentry {
			r.count = 0
		}
		if r.reply != acquired && r.reply != left && r.reply != renewed {
			r.before = 0
		}
	}
	if s.failovers == m.Failovers {
		s.replica = entry{}
	}
	slices.SortFunc(s.requests[:], func(a, b request) int { return cmp.Compare(b.key(), a.key()) })
}
