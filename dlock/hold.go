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
	*claim // on which it rests
	party  party
	slot   chan struct{} // taken by the one who has a counting step under way; nil where there is only one such step

	// The rest is guarded by Client.mu.
	state  holdState
	count  int           // at most what the store counts
	over   chan struct{} // closed when it is lost; made when somebody asks
	inside map[*doContext]struct{}
}

// A claim is what the store has granted to one owner string. Each outermost acquisition has a claim
// of its own, so that no late request of an earlier one can touch a later one. Holds of several
// parties may rest on it, one after the other: see [Client.handOver].
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
func (h *hold) valid(now instant) bool { return h.state == live && now < instant(h.deadline.Load()) }

// extend notes that the store granted lease to a request that was sent at that instant.
func (cl *claim) extend(sent instant, lease time.Duration) {
	if cl.doubt > 0 {
		lease = min(lease, cl.doubt) // a late request may yet shorten it to that
	}
	if until := sent + promised(lease); until > instant(cl.deadline.Load()) {
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

// rest makes h a party's hold on a claim, which has no other holder.
func (h *hold) rest(p party, cl *claim) {
	h.claim, h.party = cl, p
	if _, plain := p.(*Locker); !plain {
		h.slot = make(chan struct{}, 1)
	}
	cl.holder = h
}

// grant makes a hold of an acquisition that the store has just answered. c.mu is held.
func (c *Client) grant(h *hold, sent instant) {
	if old := c.holds[h.name]; old != nil {
		c.lose(old, ErrLost) // the store says that it is ours now, in another name
	}
	c.holds[h.name] = h
	h.began = sent
	h.alarm.task = h.claim
	c.schedule(&h.alarm, c.nextLook(h.claim, sent))
	c.join(h)
}

// current returns the hold that p has, or nil. c.mu is held.
func (c *Client) current(name string, p party) *hold {
	h := c.holds[name]
	if h == nil || h.party != p || !c.check(h) {
		return nil
	}
	return h
}

// isLost says whether a hold was lost.
func (c *Client) isLost(h *hold) bool {
	c.mu.Lock()
	defer c.unlock()
	return !c.check(h) && h.state == lost
}

// check says whether a hold can be relied on now, and ends it if its time is over. c.mu is held.
func (c *Client) check(h *hold) bool { return c.checkAt(h, c.now()) }

func (c *Client) checkAt(h *hold, now instant) bool {
	if h.valid(now) {
		return true
	}
	c.lose(h, ErrLost)
	return false
}

// lose ends a hold for good before it was released, and tells whoever wants to know. c.mu is held.
func (c *Client) lose(h *hold, cause error) {
	if h.state != live {
		return
	}
	h.state = lost
	c.drop(h)
	c.tell(h, cause)
	if _, plain := h.party.(*Locker); !plain {
		c.remember(h)
	}
	if c.stored(h.lease) > h.lease {
		c.takeBack(h.claim) // the store keeps it for longer than it was asked for
	}
	c.wake(h.name)
	if h.watched {
		c.warn("lock lost", "name", h.name, "owner", h.owner)
	} // a fixed lease is meant to end
}

// forsake ends a hold because the client is closed. c.mu is held.
func (c *Client) forsake(h *hold) {
	h.state = forsaken
	c.tell(h, ErrClosed)
	c.unschedule(&h.alarm)
}

// drop takes a hold out of the tables. c.mu is held.
func (c *Client) drop(h *hold) {
	if c.holds[h.name] == h {
		delete(c.holds, h.name)
	}
	c.unschedule(&h.alarm)
}

// tell ends what hangs on a hold. c.mu is held.
func (c *Client) tell(h *hold, cause error) {
	if h.over != nil {
		close(h.over)
	}
	c.endContexts(h, cause)
}

// endContexts ends the contexts of the Dos that a hold is for. c.mu is held, and contexts call code
// that isn't ours.
func (c *Client) endContexts(h *hold, cause error) {
	for d := range h.inside {
		c.later(func() { d.cancel(cause) })
	}
	h.inside = nil
}

// A lostKey is what an unlock of an owner names.
type lostKey struct {
	name  string
	party party
}

// remember keeps a lost hold, so that its unlocks are told that it was lost. c.mu is held.
func (c *Client) remember(h *hold) {
	key := lostKey{h.name, h.party}
	c.lost[key] = append(c.lost[key], h)
	c.losses = append(c.losses, h)
	if len(c.losses) > maxLosses {
		c.forget(c.losses[0])
	}
	c.schedule(&h.alarm, c.now()+lossMemory*c.lease)
}

// forget drops what remember kept. c.mu is held.
func (c *Client) forget(h *hold) {
	c.unschedule(&h.alarm)
	if i := slices.Index(c.losses, h); i >= 0 {
		c.losses = slices.Delete(c.losses, i, i+1)
	}
	key := lostKey{h.name, h.party}
	left := slices.DeleteFunc(c.lost[key], func(x *hold) bool { return x == h })
	if len(left) == 0 {
		delete(c.lost, key)
	} else {
		c.lost[key] = left
	}
}

// lastLoss returns the latest lost hold of p that isn't unlocked, or nil. c.mu is held.
func (c *Client) lastLoss(name string, p party) *hold {
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
