package main

import (
	"fmt"
	"math/bits"
)

// Quorum is the model of a quorum of three stores: a lock is held if two of them grant it. Each
// client makes one call at a time, and each of its attempts has its own name in the stores. The
// model reuses the names of finished attempts. When an attempt fails, what it acquired is released
// at once, in the background. The fields of Quorum limit the exploration.
type Quorum struct {
	Comes [2]uint8 // how many times each client locks
	// Rival makes B an ideal client, which asks the stores in any order, and whose requests take no
	// time.
	Rival   bool
	Slow    bool  // if a store is slow, a client can ask the next before the answer comes
	AtOnce  bool  // a client asks all stores at once until a store has refused it
	Names   int   // how many names a client can use at a time
	Depth   uint8 // how many times a client can re-enter its hold
	Lease   uint8 // in ticks; 0 means that time doesn't pass, and no hold expires
	Late    int   // how many late acquisitions and repairs there can be at the same time
	Doubts  bool  // after a refusal by the first store, a client can ask the others
	Repairs bool  // a client acquires the hold again in stores that lack it
	Ghost   bool  // a release can be late, and arrive twice
	// Silent limits how many times clients stop waiting for a store that is up. The constant often
	// stands for no limit.
	Silent   uint8
	Restarts uint8 // how many times stores can restart without their data
	Away     bool  // a store that restarts stays unavailable for one lease
	// Spaced allows a restart only if the hold has been renewed twice since the last restart, and
	// no repair is under way. It is meant for runs without other faults.
	Spaced   bool
	Dead     bool // the first store is unavailable forever
	Crossed  bool // if Dead is set, A believes that the second store is down
	Leftover bool // the first store has a hold that is never released
	Crashes  uint8
	Well     bool // there are no faults, so a client that the first store admits gets the lock
	Mutation mutation
}

const (
	quorumStores = 3
	majority     = 2
	maxNames     = 3
	leftover     = 1 + 2*maxNames // a name that no client uses
	enough       = 2              // the number of renewals between two restarts
	forGood      = 255
	often        = 255
)

// The states of a client.
const (
	absent uint8 = iota
	asks         // an attempt is under way
	sleeps       // until it is woken, or polls
	has
	renews
	reenters
	givesBack
	dead
)

// The states of a client's request to a store.
const (
	unasked uint8 = iota
	sent
	yes
	no
	silent // the client has stopped waiting for the answer
)

// A ballot is the state of a store: the name under which the lock is held there, that hold's count
// and remaining time, and how long the store stays unavailable.
type ballot struct{ name, count, left, away uint8 }

// A voter is the state of a client.
type voter struct {
	at, name uint8
	comes    uint8 // how many more times it will lock
	votes    [quorumStores]uint8
	never    uint8 // bit set of the stores that said they don't have the name
	regained uint8 // stores that are in never but have the name again
	repairs  uint8 // stores from which the client awaits the answer to a repair
	perhaps  uint8 // stores from which the client no longer awaits the answer to a repair
	said     uint8 // like never, but not affected by mutations
	lead     uint8 // the store that askNext asked last
	down     uint8 // stores that it believes to be down
	listens  uint8 // 1 + the index of the store to whose messages it listens; 0 means none yet
	woken    bool
	looks    bool  // it polls soon, with a short timer
	wary     bool  // it knows that the other client wants the lock
	promise  uint8 // time left of the lease that the current step requested
	left     uint8 // time until its own deadline
	depth    uint8
	struck   bool // another client acquired the lock later
}

// A ballotName records what the stores might still do with an attempt's name. The fields are sets
// of stores.
type ballotName struct {
	late  uint8 // stores that might still carry out an acquisition
	later uint8 // stores that might carry out a second acquisition
	back  uint8 // stores in which the name is being released in the background
}

// QuorumState is a state of the model.
type QuorumState struct {
	stores   [quorumStores]ballot
	clients  [2]voter
	names    [leftover + 1]ballotName
	ghost    [2]uint8 // a late release, as 1 + the store's index and the name; 0, 0 if none
	restarts uint8
	crashes  uint8
	silent   uint8
	split    bool  // an attempt failed although the first store had admitted it (V)
	tooLate  bool  // a call returned with a lock that had expired (S4)
	rounds   uint8 // renewals of the hold since the last restart or repair
	robbed   bool  // a hold was lost before it had expired (K)
	// again is how many times a majority refused a client that one store had admitted (Z). It is
	// reset when a client acquires or releases the lock, or a store restarts.
	again uint8
}

// Init returns the initial state, in which no client has a hold.
func (m *Quorum) Init() QuorumState {
	var s QuorumState
	for c := range s.clients {
		s.clients[c].comes = m.Comes[c]
	}
	if m.Dead {
		s.stores[0].away = forGood
	}
	if m.Crossed {
		s.clients[0].down = 1 << 1
	}
	if m.Leftover {
		s.stores[0] = ballot{name: leftover, count: 1}
	}
	return s
}

func (m *Quorum) timeless() bool { return m.Lease == 0 }

// valid reports whether a client has a hold that hasn't expired by the client's clock.
func (m *Quorum) valid(x *voter) bool {
	return (x.at == has || x.at == renews || x.at == reenters) && (x.left > 0 || m.timeless())
}

// Bad checks S1, S2 and S4 as the other models do, and the rules for quorums in README.md.
func (m *Quorum) Bad(s QuorumState) []string {
	var bad []string
	check := func(property string, holds bool) {
		if !holds {
			bad = append(bad, property)
		}
	}
	believers, counted, told, awake, kept := 0, true, true, true, true
	for c := range s.clients {
		x := &s.clients[c]
		if m.valid(x) {
			believers++
			counted = counted && s.count(x.name) >= majority
			told = told && !(x.struck && bits.OnesCount8(x.said) >= majority)
		}
		if x.at == sleeps && !x.woken && !x.looks {
			awake = awake && s.stores[x.listens-1].name != 0
		}
	}
	for k, e := range s.stores {
		if e.name != 0 && e.name != leftover && !s.uses(e.name) &&
			!inSet(s.names[e.name].back, k) && s.clients[m.client(e.name)].at != dead {
			kept = false
		}
	}
	check("S1", believers <= 1)
	check("S2", counted || s.restarts > 0)
	check("S4", !s.tooLate)
	check("T2", told)
	check("G", kept)
	check("L2", awake)
	check("V", !s.split || !m.Well)
	check("Z", s.again <= 2)
	check("K", !s.robbed)
	return bad
}

// count returns how many stores hold a name.
func (s *QuorumState) count(name uint8) (n int) {
	for _, e := range s.stores {
		if e.name == name {
			n++
		}
	}
	return n
}

// uses reports whether an attempt or a hold of any client has this name.
func (s *QuorumState) uses(name uint8) bool {
	for c := range s.clients {
		switch x := &s.clients[c]; x.at {
		case asks, has, renews, reenters, givesBack:
			if x.name == name {
				return true
			}
		}
	}
	return false
}

// Done reports whether all calls have ended and the stores are empty.
func (m *Quorum) Done(s QuorumState) bool {
	for c := range s.clients {
		if x := &s.clients[c]; x.at != dead &&
			(x.at != absent || x.comes > 0 && !(m.Rival && c == 1)) {
			return false
		}
	}
	for k := range s.stores {
		if name := s.stores[k].name; name != 0 && name != leftover {
			return false
		}
	}
	return s.names == [leftover + 1]ballotName{}
}

// inSet reports whether a store is in a set.
func inSet(set uint8, k int) bool { return set&(1<<k) != 0 }

// rival returns the only name of the ideal client.
func (m *Quorum) rival() uint8 { return maxNames + 1 }

func (m *Quorum) client(name uint8) int { return (int(name) - 1) / maxNames }

func (m *Quorum) nameText(name uint8) string {
	return fmt.Sprintf("%c.%d", 'A'+m.client(name), (int(name)-1)%maxNames+1)
}

// fresh returns a name of the client that no store and no request uses, or 0 if there is none.
func (m *Quorum) fresh(s *QuorumState, c int) uint8 {
	for i := range m.Names {
		n := uint8(c*maxNames + i + 1)
		if s.names[n] == (ballotName{}) && s.count(n) == 0 && s.ghost[1] != n {
			return n
		}
	}
	return 0
}

// tidy normalizes s, so that states that differ only in irrelevant data become equal.
func (m *Quorum) tidy(s *QuorumState) {
	for c := range s.clients {
		x := &s.clients[c]
		x.wary = x.wary && m.AtOnce
		switch x.at {
		case absent:
			*x = voter{at: absent, comes: x.comes, down: x.down, wary: x.wary}
		case dead:
			*x = voter{at: dead}
		case sleeps:
			name := uint8(0)
			if m.Mutation == oneName || m.Mutation == keepsSplit {
				name = x.name
			}
			*x = voter{
				at: sleeps, name: name, comes: x.comes, down: x.down, listens: x.listens,
				woken: x.woken && !x.looks, looks: x.looks, wary: x.wary,
			}
		case asks:
			x.left, x.depth, x.struck, x.never, x.said = 0, 0, false, 0, 0
		case has:
			x.votes, x.promise, x.listens, x.woken, x.looks = [quorumStores]uint8{}, 0, 0, false,
				false
		case renews, reenters:
			x.listens, x.woken, x.looks = 0, false, false
		case givesBack:
			*x = voter{
				at: givesBack, name: x.name, comes: x.comes, votes: x.votes, never: x.never,
				down: x.down, wary: x.wary,
			}
			if m.Mutation != refutedForgotten {
				x.never = 0
			}
		}
	}
	s.split = s.split && m.Well
	if !m.Spaced {
		s.rounds, s.robbed = 0, false
	}
	if m.Rival {
		x := &s.clients[0]
		x.down, x.lead, x.listens, x.woken, x.looks = 0, 0, 1, false, true
		if x.at != sleeps {
			x.listens, x.looks = 0, false
		}
		s.again = 0
		s.clients[1] = voter{
			at: s.clients[1].at, name: m.rival(), comes: s.clients[1].comes,
			left: s.clients[1].left, promise: s.clients[1].promise,
		}
	}
	if s.restarts == 0 {
		for c := range s.clients {
			s.clients[c].struck = false
		}
	}
}
