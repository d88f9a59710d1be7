package main

import (
	"fmt"
	"math/bits"
)

// Quorum is the model of three stores that are one: a lock is held where two of them say so. Each client has one call at a time, and its attempts have a name each
// in the stores; those that are dead are used again here. What can't be had is given back at once, in the background. The fields are the bounds.
type Quorum struct {
	Comes    [2]uint8 // how often each client locks
	Rival    bool     // B is an ideal client instead, who asks whom it likes: its requests take no time
	Slow     bool     // a store that takes its time may yet answer when the next is asked
	Names    int      // of each client that aren't dead, at a time
	Depth    uint8    // how deep is re-entered
	Lease    uint8    // in ticks; 0: time stands still, and nothing runs out
	Late     int      // acquisitions that nobody waits for, or repairs, at a time; others are lost
	Doubts   bool     // who is refused by the store that is asked first looks at the others
	Repairs  bool     // stores that lack a hold are asked for it again
	Ghost    bool     // a give-back may be late, and come twice
	Silent   uint8    // times that an answer is given up though its store is there; often: as often as you like
	Restarts uint8    // times that a store restarts empty
	Away     bool     // … and then stays away for a lease
	Spaced   bool     // … and not before the last one, and all repairs, were seen by two renewals of the hold; all else is well
	Dead     bool     // the first store is away for good
	Crossed  bool     // … and A believes the second to be down
	Leftover bool     // the first store has what nobody uses, for good
	Crashes  uint8
	Well     bool // all is well: whoever is let in by the store that is asked first gets in
	Mutation mutation
}

const (
	quorumStores = 3
	majority     = 2
	maxNames     = 3
	leftover     = 1 + 2*maxNames // a name that nobody uses
	enough       = 2              // renewals between two restarts
	forGood      = 255
	often        = 255
)

// Where a client is, in addition to what goroutines of model Holds do.
const (
	absent uint8 = iota
	asks         // an attempt is under way
	sleeps       // until it is woken, or looks
	has
	renews
	reenters
	givesBack
	dead
)

// What a store has said to a client's step.
const (
	unasked uint8 = iota
	sent
	yes
	no
	silent // nobody waits for it any more
)

// A ballot is what a store has under the key: a name, how often, and for how long.
type ballot struct{ name, count, left, away uint8 }

// A voter is a client.
type voter struct {
	at, name uint8
	comes    uint8 // it has yet to lock
	votes    [quorumStores]uint8
	never    uint8 // stores that have said that they don't have the name; a bit for each
	regained uint8 // of those, which have it again
	repairs  uint8 // stores that were asked for it again, and are listened to
	perhaps  uint8 // stores that were asked for it again, and weren't listened to
	said     uint8 // what never is if nothing is forgotten too early
	lead     uint8 // which store was asked first, or is now
	down     uint8 // stores that it believes to be down
	listens  uint8 // at which store; 0: none, yet
	woken    bool
	looks    bool  // it has a short timer
	promise  uint8 // what is left of a lease that counts from the begin of the step
	left     uint8 // until its own deadline
	depth    uint8
	struck   bool // another got in since
}

// A ballotName is what an attempt is called in the stores.
type ballotName struct {
	late  uint8 // where an acquisition may yet be carried out
	later uint8 // … and another one
	back  uint8 // where it is being taken back
}

// QuorumState is a state.
type QuorumState struct {
	stores   [quorumStores]ballot
	clients  [2]voter
	names    [leftover + 1]ballotName
	ghost    [2]uint8 // a give-back that is late: 1 + the store, and the name
	restarts uint8
	crashes  uint8
	silent   uint8
	split    bool  // an attempt failed that the store asked first had let in (V)
	tooLate  bool  // somebody was told that he has a lock which was over (S4)
	rounds   uint8 // renewals of the hold since a store restarted, or was repaired
	robbed   bool  // a hold was lost that wasn't over (K)
	again    uint8 // how often a majority has refused what a store had let in, since anybody last got in, released or restarted (Z)
}

// Init is nothing held.
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

// valid says whether a client relies on a hold.
func (m *Quorum) valid(x *voter) bool {
	return (x.at == has || x.at == renews || x.at == reenters) && (x.left > 0 || m.timeless())
}

// Bad checks S1, S2 and S4 as elsewhere, and what README.md says of quorums.
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
		if e.name != 0 && e.name != leftover && !s.uses(e.name) && !inSet(s.names[e.name].back, k) && s.clients[m.client(e.name)].at != dead {
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

// count returns how many stores have a name.
func (s *QuorumState) count(name uint8) (n int) {
	for _, e := range s.stores {
		if e.name == name {
			n++
		}
	}
	return n
}

// uses says whether a client attempts or holds under this name.
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

// Done says that everybody has come and gone, and nothing is left.
func (m *Quorum) Done(s QuorumState) bool {
	for c := range s.clients {
		if x := &s.clients[c]; x.at != dead && (x.at != absent || x.comes > 0 && !(m.Rival && c == 1)) {
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

// inSet says whether a store is in a set.
func inSet(set uint8, k int) bool { return set&(1<<k) != 0 }

// rival is the only name of the ideal client.
func (m *Quorum) rival() uint8 { return maxNames + 1 }

func (m *Quorum) client(name uint8) int { return (int(name) - 1) / maxNames }

func (m *Quorum) nameText(name uint8) string {
	return fmt.Sprintf("%c.%d", 'A'+m.client(name), (int(name)-1)%maxNames+1)
}

// fresh returns a name of a client that is dead: nothing of it is anywhere. 0: there is none within the bounds.
func (m *Quorum) fresh(s *QuorumState, c int) uint8 {
	for i := range m.Names {
		n := uint8(c*maxNames + i + 1)
		if s.names[n] == (ballotName{}) && s.count(n) == 0 && s.ghost[1] != n {
			return n
		}
	}
	return 0
}

// tidy gives one form to states that can't be told apart, or whose difference can't matter.
func (m *Quorum) tidy(s *QuorumState) {
	for c := range s.clients {
		x := &s.clients[c]
		switch x.at {
		case absent:
			*x = voter{at: absent, comes: x.comes, down: x.down}
		case dead:
			*x = voter{at: dead}
		case sleeps:
			name := uint8(0)
			if m.Mutation == oneName || m.Mutation == keepsSplit {
				name = x.name
			}
			*x = voter{at: sleeps, name: name, comes: x.comes, down: x.down, listens: x.listens, woken: x.woken && !x.looks, looks: x.looks}
		case asks:
			x.left, x.depth, x.struck, x.never, x.said = 0, 0, false, 0, 0
		case has:
			x.votes, x.promise, x.listens, x.woken, x.looks = [quorumStores]uint8{}, 0, 0, false, false
		case renews, reenters:
			x.listens, x.woken, x.looks = 0, false, false
		case givesBack:
			*x = voter{at: givesBack, name: x.name, comes: x.comes, votes: x.votes, never: x.never, down: x.down}
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
		s.clients[1] = voter{at: s.clients[1].at, name: m.rival(), comes: s.clients[1].comes, left: s.clients[1].left, promise: s.clients[1].promise}
	}
	if s.restarts == 0 {
		for c := range s.clients {
			s.clients[c].struck = false
		}
	}
}
