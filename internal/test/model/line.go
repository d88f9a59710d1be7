package main

import "slices"

// Line is the model of a fair lock. Calls wait in a line in the store. The store grants the lock
// to the first call in line, for a short time, and notifies the client of that call. A client
// refreshes the places of all its calls with one request. Each call has its own owner string,
// represented by the call's number. A rival, whose steps take no time, competes with the clients.
// The release of a call's hold, which also gives up its place, is a single step that takes no time
// either. That is accurate enough, because the client repeats the release, and the release doesn't
// affect other calls. The fields of Line limit the exploration.
//
// Holds expire as in the Holds model. Places have no timers: a place can end at any time once its
// call no longer waits. A message contains the remaining time of the granted hold. The Clocks model
// shows how a client computes that time.
type Line struct {
	Calls    [2]int // the number of calls of each client
	Rival    uint8  // how many times the rival gets the lock
	Requests int    // the maximum number of requests in the network at a time
	Unknowns uint8  // the maximum number of unanswered requests
	Renewals bool   // renewals take time
	Grants   int    // the maximum number of messages in the network at a time
	Short    uint8  // the lease of a grant, in ticks
	Lease    uint8
	Fixed    uint8 // the fixed lease of the first call; 0 means it has none
	Depth    uint8 // how deeply calls re-enter; 0 means not at all
	Lapses   uint8 // how many times a waiting call loses its place
	Doubles  uint8 // the number of messages that arrive twice
	Forces   uint8 // how many times ForceUnlock is sent
	Crashes  uint8
	Punctual bool // no request is carried out later than one lease after it was sent
	Deaf     bool // no message arrives
	Mutation mutation
}

const (
	maxCalls  = 5
	maxGrants = 2
)

// The states of a call.
const (
	notCome  uint8 = iota
	queues         // it waits for a reply, or stands in line
	within         // it holds the lock, or has lost it
	takenOut       // it has ended, and its number is released in the background
	past           // its number is no longer used
)

// keeping is the kind of a client's request to refresh the places of its calls in line.
const keeping = force + 1

const kept = renewedNot + 1

// A call records the state of one call of Lock. Its index in LineState is the call's number.
type call struct {
	at    uint8
	stood bool  // its client knows that the call had a place
	count uint8 // its holds, as its client counts them
	left  uint8 // ticks until its client's deadline
	// unsure is 0 if the call has no unanswered request. Otherwise it is 1 + the number of ticks
	// for which such a request can still take effect.
	unsure uint8
	lost   bool
	struck bool // the store ended the hold before its lease expired

	came   bool  // it had a place, so later calls must not overtake it
	missed bool  // it lost its place
	behind uint8 // bit set of the calls that came earlier and still wait
}

func (x *call) believes() bool { return x.at == within && !x.lost && x.left > 0 }

// A lineRequest is a request in the network. A request to refresh places (of kind keeping) concerns
// the calls in its set, which all belong to one client. Any other request concerns the one call
// that its number identifies.
type lineRequest struct {
	kind    uint8
	number  uint8
	set     uint8
	awaited bool
	left    uint8 // remaining time of the requested lease, which begins when the request is sent
	reply   uint8
	holder  uint8 // the number of the call that holds the lock, or 0 if that call isn't in the set
	lasts   uint8 // remaining time of that hold, never longer than in the store
	count   uint8
	before  bool // whether the request was carried out before the store ended the hold
}

func (r *lineRequest) about(n uint8) bool { return r.number == n || r.set&(1<<n) != 0 }

// A message reports that the lock was granted to the call with the given number.
type message struct {
	number, left uint8
	before       bool
}

// LineState is a state of the model.
type LineState struct {
	store    entry
	line     [maxCalls]uint8
	ranOut   bool // the hold expired, and the store has carried out no step since
	calls    [maxCalls + 1]call
	requests [maxRequests]lineRequest
	messages [maxGrants]message
	rivals   uint8
	unknowns uint8
	lapses   uint8
	doubles  uint8
	forces   uint8
	crashed  uint8

	overtook bool // O is violated
	misled   bool // N is violated
}

// Init returns the initial state, with a free lock and no calls.
func (m *Line) Init() LineState { return LineState{} }

func (m *Line) numbers() uint8 {
	n := uint8(m.Calls[0] + m.Calls[1])
	if m.Rival > 0 {
		n++
	}
	return n
}

// rival returns the rival's number.
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

// of returns the numbers of a client's first and last calls.
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
		haunted = haunted || x.at == past &&
			(s.store.number == n && s.store.left > 0 || s.inLine(n)) &&
			!(n != m.rival() && s.gone(m.client(n))) && n != m.rival()
	}
	check("S1", believers <= 1)
	check("S2", counted)
	check("G", !m.Punctual || !haunted)
	check("O", !s.overtook)
	check("H", s.store.number != 0 || s.line[0] == 0 || s.ranOut)
	check("N", !s.misled)
	return bad
}

// Done reports whether all calls have ended and the store is empty.
func (m *Line) Done(s LineState) bool {
	for n := uint8(1); n <= m.numbers(); n++ {
		if at := s.calls[n].at; at != notCome && at != past {
			return false
		}
	}
	return s.store.number == 0 && s.line[0] == 0 && s.requests == [maxRequests]lineRequest{}
}
