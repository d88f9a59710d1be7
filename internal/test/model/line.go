package main

import "slices"

// Line is the model of a fair lock: a line in the store, which grants the lock to whoever is first, for a short time, and
// tells his client; clients that keep the places of all their calls at once. An owner string is one call's, and its
// number; another party's steps take no time. To release a number and to give its place up is one step, which is repeated,
// and touches no number that anybody uses: so it takes no time here. The fields are the bounds.
//
// Holds have a clock, as in model Holds, and a message carries what is left of the hold that it tells of: how a client comes to know that
// is model Clocks. Places have none: one may end whenever its call doesn't wait.
type Line struct {
	Calls    [2]int // of each client
	Rival    uint8  // how often the other party comes
	Requests int    // in the network at a time
	Unknowns uint8  // requests without an answer
	Renewals bool   // renewals take time
	Grants   int    // messages in the network at a time
	Short    uint8  // for how long the store grants the lock, in ticks
	Lease    uint8
	Fixed    uint8 // the lease of the first call, if it isn't renewed
	Depth    uint8 // how deep calls re-enter; 0: they don't
	Lapses   uint8 // times that the place of somebody who waits ends
	Doubles  uint8 // messages that come twice
	Forces   uint8 // times that somebody sends ForceUnlock
	Crashes  uint8
	Punctual bool // no request is carried out later than its lease after it was sent
	Deaf     bool // no message arrives
	Mutation mutation
}

const (
	maxCalls  = 5
	maxGrants = 2
)

// Where a call is.
const (
	notCome  uint8 = iota
	queues         // for an answer, or for its turn
	within         // it has the lock, or had it
	takenOut       // it is over, and its number is released in the background
	past           // forgotten
)

// keeping is a request to keep the places of all calls of a client that stand in line.
const keeping = force + 1

const kept = renewedNot + 1

// A call and its number.
type call struct {
	at     uint8
	stood  bool  // its client knows that it has had a place
	count  uint8 // as its client counts
	left   uint8 // until its client's deadline
	unsure uint8 // as in Holds: 1 + what is left of the time in which a request without an answer may be carried out
	lost   bool
	struck bool // the store let go of it against its promise

	came   bool  // it has had a place, which is to be respected
	missed bool  // it lost that
	behind uint8 // those who came before it, and still wait
}

func (x *call) believes() bool { return x.at == within && !x.lost && x.left > 0 }

// A lineRequest is in the network. One to keep places has a client and a set of numbers, the others have a number.
type lineRequest struct {
	kind    uint8
	number  uint8
	set     uint8
	awaited bool
	left    uint8 // of the lease that it asks for, counted from before it was sent
	reply   uint8
	holder  uint8 // of those whose places were kept
	lasts   uint8 // what is left of the hold, counted so that it ends no later than that
	count   uint8
	before  bool // it was carried out before the store let go of the number against its promise
}

func (r *lineRequest) about(n uint8) bool { return r.number == n || r.set&(1<<n) != 0 }

// A message tells that a number was granted the lock.
type message struct {
	number, left uint8
	before       bool
}

// LineState is a state.
type LineState struct {
	store    entry
	line     [maxCalls]uint8
	ranOut   bool // what was held ran out, and no step has come since
	calls    [maxCalls + 1]call
	requests [maxRequests]lineRequest
	messages [maxGrants]message
	rivals   uint8
	unknowns uint8
	lapses   uint8
	doubles  uint8
	forces   uint8
	crashed  uint8

	overtook bool // O
	misled   bool // N
}

// Init is a free lock and nobody there.
func (m *Line) Init() LineState { return LineState{} }

func (m *Line) numbers() uint8 {
	n := uint8(m.Calls[0] + m.Calls[1])
	if m.Rival > 0 {
		n++
	}
	return n
}

// rival is the other party's number.
func (m *Line) rival() uint8 {
	if m.Rival == 0 {
		return maxCalls + 1
	}
	return m.numbers()
}

func (m *Line) client(n uint8) int {
	if int(n) <= m.Calls[0] {
		return 0
	}
	return 1
}

// of returns a client's numbers, in the order in which they come.
func (m *Line) of(client int) (first, last uint8) {
	if client == 0 {
		return 1, uint8(m.Calls[0])
	}
	return uint8(m.Calls[0]) + 1, uint8(m.Calls[0] + m.Calls[1])
}

func (s *LineState) gone(client int) bool { return s.crashed&(1<<client) != 0 }

func (s *LineState) inLine(n uint8) bool { return slices.Contains(s.line[:], n) }

// Bad checks the properties of a state.
func (m *Line) Bad(s LineState) []string {
	var bad []string
	check := func(property string, holds bool) {
		if !holds {
			bad = append(bad, property)
		}
	}
	believers, counted, haunted := 0, true, false
	for n := uint8(1); n <= m.numbers(); n++ {
		x := &s.calls[n]
		if x.believes() && !x.struck {
			believers++
			counted = counted && s.store.number == n && s.store.count >= x.count
		}
		haunted = haunted || x.at == past && (s.store.number == n && s.store.left > 0 || s.inLine(n)) && !(n != m.rival() && s.gone(m.client(n))) && n != m.rival()
	}
	check("S1", believers <= 1)
	check("S2", counted)
	check("G", !m.Punctual || !haunted)
	check("O", !s.overtook)
	check("H", s.store.number != 0 || s.line[0] == 0 || s.ranOut)
	check("N", !s.misled)
	return bad
}

// Done says that all is over and nothing is left.
func (m *Line) Done(s LineState) bool {
	for n := uint8(1); n <= m.numbers(); n++ {
		if at := s.calls[n].at; at != notCome && at != past {
			return false
		}
	}
	return s.store.number == 0 && s.line[0] == 0 && s.requests == [maxRequests]lineRequest{}
}
