package main

import (
	"cmp"
	"slices"
)

// Holds is the model of holds: the store, the network, leases, and each client's own knowledge of
// its holds. The fields of Holds limit the exploration. Goroutines are numbered consecutively,
// first those of client A, then those of client B.
//
// Time is discrete and relative: a tick lowers every remaining time by one. Any number of steps may
// happen between two ticks.
type Holds struct {
	Goroutines [2]int  // the number of each client's goroutines
	Numbers    [2]int  // the number of each client's outermost acquisitions
	Nested     [2]bool // whether each client's first goroutine locks for an owner, and re-enters
	AllNested  bool    // all goroutines re-enter
	Pair       bool    // the first two goroutines of A share an owner
	Rival      bool    // B is an ideal client: its requests take no time
	Depth      uint8   // goroutines stop re-entering at this number of holds
	Count      int     // the highest count in the store
	Requests   int     // the maximum number of requests in the network at a time
	Lease      uint8   // the lease of renewed holds, in ticks
	Fixed      uint8   // the lease of holds that aren't renewed; 0 means there are none
	Forces     uint8   // how many times a client sends ForceUnlock
	Failovers  uint8   // how many times the store falls back to an earlier state
	Crashes    uint8
	HandOvers  uint8
	// Chain limits hand-overs: no number is handed over later than this many ticks after its
	// acquisition was sent. 0 means no limit.
	Chain    uint8
	SureOnly bool // a number with an unanswered request isn't handed over
	Punctual bool // no request is carried out later than one lease after it was sent
	Answered bool // requests that acquire the lock or change its count are answered in time
	Later    bool // Answered applies only after the first hand-over
	Mutation mutation
}

const (
	maxGoroutines = 4
	maxNumbers    = 6
	maxRequests   = 4
)

// The states of a goroutine.
const (
	idle      uint8 = iota
	trying          // its acquisition awaits an answer
	waiting         // it waits to try again, or gives up
	handed          // it was handed a hold, but hasn't noticed it yet
	inside          // it holds the lock
	queued          // it will re-enter its owner's hold
	entering        // its re-entry awaits an answer
	leaving         // its partial release awaits an answer
	draining        // its last release awaits an answer
	undrained       // its last release must be repeated, or left to a background release
	gone            // its client has crashed
)

// The states of a number, as its client sees it.
const (
	unused  uint8 = iota
	live          // a goroutine acquires, holds or releases it
	retired       // unused, but released in the background
	over          // no longer used or released
)

// A number records what a client knows about one of its outermost acquisitions, from the first
// request until the last holder has finished. The acquisitions are numbered, and
// HoldsState.numbers[n] describes acquisition n.
type number struct {
	use   uint8
	count uint8 // the number of holds; 0 before the grant and after the last release was sent
	left  uint8 // the time until the client's own deadline
	// unsure is 0 if all requests that could acquire the lock were answered. Otherwise it is 1 +
	// the number of ticks for which such a request can still take effect.
	unsure uint8
	lost   uint8
	// struck is 0, unless the store has ended the hold and the client doesn't know that. Then it is
	// 1 + the number of ticks since the end of the hold.
	struck uint8
	age    uint8 // 1 + ticks since the acquisition was sent
	party  uint8 // 1 + the party that holds it
	watch  uint8 // 1 if the watchdog renews it
	lease  uint8 // the lease that the next renewal asks for
	doubt  uint8 // the shortest lease of any unanswered request; 0 means none
	fading uint8 // a timer that only mutations use
}

// lose records that the hold is lost, and that the client knows this.
func (x *number) lose() { x.lost, x.struck = 1, 0 }

func (x *number) valid() bool { return x.use == live && x.count > 0 && x.lost == 0 && x.left > 0 }

type goroutine struct {
	at, number uint8
	late       uint8 // 1 if it called Lock after the store had ended a hold
}

// HoldsState is a state of the model.
type HoldsState struct {
	store     entry
	replica   entry // the state to which the store falls back
	numbers   [maxNumbers + 1]number
	routines  [maxGoroutines]goroutine
	requests  [maxRequests]request
	forces    uint8
	failovers uint8
	crashed   uint8 // a bit for each client
	handOvers uint8
	repeated  bool
	mixedUp   bool // a release of one hold decremented the count of another (S3)
	tooLate   bool // a call returned with a lock that had expired (S4)
	unvouched bool // a hold was handed over too long after the store had ended it (E1)
	outOfDate bool // a call was handed a hold that had ended before the call began (E0)
}

// Init returns the initial state, with an empty store and idle goroutines.
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

// party returns 1 + the index of the goroutine's party. The goroutines of a pair are one party.
func (m *Holds) party(g int) uint8 {
	if m.Pair && g == 1 {
		return 1
	}
	return uint8(g) + 1
}

// rival returns the number of the ideal client B's acquisition.
func (m *Holds) rival() uint8 { return uint8(m.Numbers[0] + 1) }

// same reports whether two numbers have the same owner string.
func (m *Holds) same(s *HoldsState, a, b uint8) bool {
	if a == 0 || b == 0 {
		return false
	}
	if m.Mutation == numberPerOwner {
		return s.numbers[a].party == s.numbers[b].party
	}
	return a == b
}

// isInside reports whether a goroutine in the given state uses its hold. A goroutine of a pair
// begins to use the hold when its re-entry is answered, and stops when it sends its partial
// release. Any other goroutine also uses its hold during these requests.
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

// believers counts the parties that are inside and whose own deadline hasn't passed. It doesn't
// count a party whose hold the store ended early, because the party can't know that.
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

// counts reports whether the store contains every hold on which a client relies, with at least the
// client's count. It ignores holds that the store ended early, and all holds after a failover.
func (m *Holds) counts(s *HoldsState) bool {
	for n := uint8(1); n <= m.numbers(); n++ {
		x := &s.numbers[n]
		if x.valid() && x.struck == 0 && s.failovers == 0 &&
			(!m.same(s, s.store.number, n) || s.store.count < x.count) {
			return false
		}
	}
	return true
}

// haunted reports whether the lock is held in the store under a number that its client neither uses
// nor releases.
func (m *Holds) haunted(s *HoldsState) bool {
	n := s.store.number
	return n != 0 && s.store.left > 0 && s.numbers[n].use == over && !s.hasCrashed(m.clientOf(n))
}

func (s *HoldsState) hasCrashed(client int) bool { return s.crashed&(1<<client) != 0 }

// Done reports whether the key is free, and no request is left that could acquire it.
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

// tidy normalizes s, so that states that differ only in irrelevant data become equal.
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
		case x.count == 0 && m.Mutation != renewsAfterUnlock &&
			m.Mutation != unlocksDuringReentry && m.Mutation != handsOnReleased:
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
		if !m.Punctual && (r.who == nobody || r.kind == lastRelease) || r.reply == heldByAnother ||
			r.reply == freed || r.reply == notHeld {
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
