package dlock

import (
	"slices"
	"sync/atomic"
	"time"

	"github.com/seed951563bd/distsync/backend"
)

// A hold is what one party has: from the moment that it gets the lock until its last unlock begins,
// or the lock is lost.
type hold struct {
	claim *claim // on which it rests
	party party
	slot  chan struct{} // taken by the one who has a counting step under way; nil where there is only one such step

	// The rest is guarded by Client.mu.
	state       holdState
	offered     bool          // to a waiter that has not taken it yet: nobody's to unlock
	count       int           // at most what the store counts
	renewedFrom int           // the count from which on it is renewed; 0: never
	over        chan struct{} // closed when it is lost; made when somebody asks
	inside      map[*doContext]struct{}
}

// A claim is what the store has granted to one owner string. Each outermost acquisition has a claim
// of its own, so that no late request of an earlier one can touch a later one. Holds of several
// parties may rest on it, one after the other: see [Client.handOn].
type claim struct {
	name  string
	owner string // in the store

	deadline atomic.Int64 // the instant until which the store has promised it

	// The rest is guarded by Client.mu.
	holder  *hold   // the present one
	began   instant // when the request that the store granted was sent
	alarm   alarm
	watched bool
	handed  bool          // from one holder to another
	back    bool          // it is being taken back
	unsure  bool          // an acquisition or re-entry has no answer: the store may count more than we do
	lease   time.Duration // what the next renewal or partial release asks for
	doubt   time.Duration // the shortest lease of any request without an answer; 0: none
	horizon instant       // until when, at the latest, the store keeps it if nothing is sent any more
}

type holdState uint8

const (
	live     holdState = iota
	released           // its last release has begun
	lost               // ended before it was released
	forsaken           // the client was closed; it may still be released
)

// Rules about time.
const (
	driftShare = 100 // a hundredth of each lease is kept back, for clocks that don't run alike

	maxLosses  = 1024 // lost holds of owners that are remembered
	lossMemory = 10   // and for how many leases
)

// promised returns for how long the store's answer to a request for lease can be relied on.
func promised(lease time.Duration) time.Duration { return lease - lease/driftShare }

// valid says whether the hold can be relied on at this instant.
func (h *hold) valid(now instant) bool { return h.state == live && now < h.claim.until() }

// until returns the instant until which the store has promised the claim.
func (cl *claim) until() instant { return instant(cl.deadline.Load()) }

// extend notes that the store granted lease to a request that was sent at that instant.
func (cl *claim) extend(sent instant, lease time.Duration) {
	if cl.doubt > 0 {
		lease = min(lease, cl.doubt) // a late request may yet shorten it to that
	}
	if until := sent + promised(lease); until > cl.until() {
		cl.deadline.Store(int64(until))
	}
}

// sending notes that a request for lease goes out now.
func (cl *claim) sending(now instant, lease time.Duration) {
	cl.horizon = max(cl.horizon, now+lease)
}

// doubted notes that a request for lease has no answer. Time doesn't settle that.
func (cl *claim) doubted(lease time.Duration) {
	if cl.doubt == 0 || lease < cl.doubt {
		cl.doubt = lease
	}
}

// newHold returns a party's hold on a claim, which has no other holder.
func newHold(p party, cl *claim) *hold {
	h := new(hold)
	h.rest(p, cl)
	return h
}

func (h *hold) rest(p party, cl *claim) {
	h.claim, h.party = cl, p
	if h.locker() == nil {
		h.slot = make(chan struct{}, 1)
	}
	cl.holder = h
}

// locker returns the Locker whose plain calls the hold is for, or nil.
func (h *hold) locker() *Locker {
	l, _ := h.party.(*Locker)
	return l
}

// grantLocked makes a hold of an acquisition that the store has just answered.
func (c *Client) grantLocked(h *hold, sent instant) {
	cl := h.claim
	if old := c.holds[cl.name]; old != nil {
		c.loseLocked(old, ErrLost) // the store says that it is ours now, in another name
	}
	h.count = 1
	if cl.watched {
		h.renewedFrom = 1
	}
	cl.began = sent
	cl.alarm.task = cl
	c.scheduleLocked(&cl.alarm, c.nextLook(cl, sent))
	c.installLocked(h)
}

// installLocked makes h what this client has.
func (c *Client) installLocked(h *hold) {
	c.holds[h.claim.name] = h
	if l := h.locker(); l != nil {
		l.hold = h
	}
	c.joinLocked(h)
}

// currentLocked returns the hold that p has, or nil.
func (c *Client) currentLocked(name string, p party) *hold {
	h := c.holds[name]
	if h == nil || h.party != p || !c.checkLocked(h) {
		return nil
	}
	return h
}

// isLost says whether a hold was lost.
func (c *Client) isLost(h *hold) bool {
	c.mu.Lock()
	defer c.unlock()
	return !c.checkLocked(h) && h.state == lost
}

// checkLocked says whether a hold can be relied on now, and ends it if its time is over.
func (c *Client) checkLocked(h *hold) bool {
	if h.valid(c.now()) {
		return true
	}
	c.loseLocked(h, ErrLost)
	return false
}

// loseLocked ends a hold for good before it was released, and tells whoever wants to know.
func (c *Client) loseLocked(h *hold, cause error) {
	if h.state != live {
		return
	}
	h.state = lost
	c.dropLocked(h)
	c.tellLocked(h, cause)
	if h.locker() == nil {
		c.rememberLocked(h)
	}
	cl := h.claim
	if c.stored(cl.lease) > cl.lease {
		c.takeBackLocked(cl) // the store keeps it for longer than it was asked for
	}
	c.wakeLocked(cl.name)
	if cl.watched {
		c.warnLocked("lock lost", "name", cl.name, "owner", cl.owner)
	} // a fixed lease is meant to end
}

// forsakeLocked ends a hold because the client is closed.
func (c *Client) forsakeLocked(h *hold) {
	h.state = forsaken
	c.tellLocked(h, ErrClosed)
	c.unscheduleLocked(&h.claim.alarm)
}

// dropLocked takes a hold out of the tables.
func (c *Client) dropLocked(h *hold) {
	if c.holds[h.claim.name] == h {
		delete(c.holds, h.claim.name)
	}
	c.unscheduleLocked(&h.claim.alarm)
}

// vacateLocked lets the next plain call have the Locker of a hold that is given back.
func (c *Client) vacateLocked(h *hold) {
	l := h.locker()
	if l == nil || l.hold != h {
		return
	}
	l.hold = nil
	if q := c.queues[l.name]; q != nil {
		c.leadLocked(q)
	}
}

// tellLocked ends what hangs on a hold.
func (c *Client) tellLocked(h *hold, cause error) {
	if h.over != nil {
		close(h.over)
	}
	c.endContextsLocked(h, cause)
}

// endContextsLocked ends the contexts of the Dos that a hold is for.
func (c *Client) endContextsLocked(h *hold, cause error) {
	for d := range h.inside {
		c.laterLocked(func() { d.cancel(cause) })
	}
	h.inside = nil
}

// A lostKey is what an unlock of an owner names.
type lostKey struct {
	name  string
	party party
}

// rememberLocked keeps a lost hold, so that its unlocks are told that it was lost.
func (c *Client) rememberLocked(h *hold) {
	key := lostKey{h.claim.name, h.party}
	c.lost[key] = append(c.lost[key], h)
	c.losses = append(c.losses, h)
	if len(c.losses) > maxLosses {
		c.forgot = true
		c.forgetLocked(c.losses[0])
	}
	c.scheduleLocked(&h.claim.alarm, c.now()+lossMemory*c.lease)
}

// forgetLocked drops what rememberLocked kept. If that isn't because it was unlocked, its unlock will
// find nothing: c.forgot.
func (c *Client) forgetLocked(h *hold) {
	c.unscheduleLocked(&h.claim.alarm)
	if i := slices.Index(c.losses, h); i >= 0 {
		c.losses = slices.Delete(c.losses, i, i+1)
	}
	key := lostKey{h.claim.name, h.party}
	left := slices.DeleteFunc(c.lost[key], func(x *hold) bool { return x == h })
	if len(left) == 0 {
		delete(c.lost, key)
	} else {
		c.lost[key] = left
	}
}

// lastLossLocked returns the latest lost hold of p that isn't unlocked, or nil.
func (c *Client) lastLossLocked(name string, p party) *hold {
	holds := c.lost[lostKey{name, p}]
	if len(holds) == 0 {
		return nil
	}
	return holds[len(holds)-1]
}

// acquireRequest is what the store is asked for.
func (cl *claim) acquireRequest(lease time.Duration, reentry bool) backend.AcquireRequest {
	return backend.AcquireRequest{Name: cl.name, Owner: cl.owner, Lease: lease, Reentry: reentry}
}
