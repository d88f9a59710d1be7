package dlock

import (
	"context"
	"slices"
	"time"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/dlock/internal/protocol"
)

// A hold is what one party has: from the moment that it gets the lock until its last unlock begins,
// or the lock is lost.
type hold struct {
	claim *claim // on which it rests
	party party
	slot  chan struct{} // taken by the one who has a counting step under way; nil where there is only one such step
	kind  backend.Kind

	// The rest is guarded by Client.mu.
	state       holdState
	offered     bool          // to a waiter that has not taken it yet: nobody's to unlock
	told        bool          // its end is to be told: see Trace
	site        site          // where it was acquired
	count       int32         // at most what the store counts; of a reader, how many calls
	renewedFrom int32         // the count from which on it is renewed; 0: never
	later       time.Duration // for how long its claim had been there when it began
	watchers    *watchers     // who wants to know when it is over
}

// watchers are who is told when a hold is over before it was released.
type watchers struct {
	over     []*notice              // given when it is lost
	contexts map[*lifeline]struct{} // ended when it is lost or released
	loss     *Loss                  // nil if it isn't lost
}

// A notice tells of a loss. Several holds may give it, one after the other.
type notice struct {
	over  chan struct{} // closed when it is given
	given bool
}

func (n *notice) give() {
	if !n.given {
		n.given = true
		close(n.over)
	}
}

// A claim is what the store has granted to one owner string. Each outermost acquisition has a claim
// of its own, so that no late request of an earlier one can touch a later one. Holds of several
// parties may rest on it: one after the other, see [Client.handOn], or, of readers, together.
type claim struct {
	object *object
	owner  string // in the store

	// The rest is guarded by Client.mu, but for what [protocol.Promise.Until] says.
	protocol.Promise
	began   instant // when the request that the store granted was sent
	alarm   alarm
	kind    backend.Kind
	handed  bool   // from one holder to another
	back    bool   // it is being taken back
	noted   bool   // the store may have a note that somebody waits for it
	leaving bool   // its last release is under way
	dead    bool   // its last release has begun, or it is lost: nothing re-enters, joins or renews it
	after   uint32 // the number of the last attempt that this client had sent when the store granted it; it may overflow
	more    *more  // what claims of plain locks have no use for: nil there
}

// more is what only claims of some kinds have.
type more struct {
	token uint64 // that the store has given it; 0: none

	holds int    // of those who share it, that are not given back
	joins uint64 // how often somebody joined it
	lent  alarm  // when readers no longer share what was claimed for writing
	under *hold  // the write that its holder reads under, while that lasts
	inner *claim // of a write: what its holder reads, or has read
	other *claim // while it is downgraded: its other side, which the store may have as well

	permit // of a semaphore

	noted bool // its owner string ends in a note, so that nobody joins it

}

type holdState uint8

const (
	live     holdState = iota
	released           // its last release has begun
	lost               // ended before it was released
	forsaken           // the client was closed; it may still be released
)

// Limits of the memory of lost holds.
const (
	maxLosses  = 1024 // lost holds of owners that are remembered
	lossMemory = 10   // and for how many leases
)

// valid says whether the hold can be relied on at this instant.
func (h *hold) valid(now instant) bool { return h.state == live && now < h.claim.Until() }

// passes says whether a claim may pass from one holder to another, or be joined, the hand-over time
// apart.
func (cl *claim) passes(now instant) bool { return !cl.dead && cl.Passes(now) }

// suits says whether a claim is what an acquisition asks for, its kind apart.
func (cl *claim) suits(a *acquisition) bool {
	return !a.o.fixed && !a.o.keeps && !a.o.noted && a.o.lease == cl.Lease()
}

// token returns the claim's fencing token, or 0.
func (cl *claim) token() uint64 {
	if cl.more == nil {
		return 0
	}
	return cl.more.token
}

// newHold returns a party's hold on a claim.
func newHold(p party, kind backend.Kind, cl *claim) *hold {
	h := new(hold)
	h.rest(p, kind, cl)
	return h
}

func (h *hold) rest(p party, kind backend.Kind, cl *claim) {
	h.claim, h.party, h.kind = cl, p, kind
	if h.variable() == nil && !rules[kind].shared && !rules[kind].many {
		h.slot = make(chan struct{}, 1)
	}
}

// since returns when a party got what it has.
func (h *hold) since() instant { return h.claim.began + h.later }

// beginsLater notes that a hold on a claim that is there already begins now.
func (h *hold) beginsLater(now instant) *hold {
	h.later = max(now-h.claim.began, 0)
	return h
}

// variable returns the Locker whose plain calls the hold is for, or nil.
func (h *hold) variable() *variable {
	v, _ := h.party.(*variable)
	return v
}

// grantLocked makes a hold of an acquisition that the store has just answered, and returns it.
func (c *Client) grantLocked(h *hold, sent instant) *hold {
	cl := h.claim
	cl.began = sent
	cl.alarm.task = cl
	cl.after = uint32(c.attempts)
	c.supersedeLocked(cl)
	o := c.openLocked(cl.object)
	cl.object = o
	if rules[cl.kind].shared {
		h = c.grantSharedLocked(o, h)
	} else {
		h.count = 1
		if cl.Renewed() {
			h.renewedFrom = 1
		}
		c.installLocked(h)
	}
	c.scheduleLocked(&cl.alarm, c.nextLook(cl, sent))
	return h
}

// supersedeLocked ends what this client had of a lock, if it can't be that the store has granted that claim
// beside it.
func (c *Client) supersedeLocked(cl *claim) {
	for _, mine := range c.objectLocked(cl.kind, cl.object.name).rivals(cl) {
		c.loseClaimLocked(mine, takenBy(cl.owner))
	}
}

// rivals returns what this client has, or believes it has, and a store that grants that claim hasn't granted beside it.
func (o *object) rivals(cl *claim) (all []*claim) {
	if o == nil || rules[cl.kind].many {
		return nil
	}
	if o.alone == nil || o.alone != cl.retain() {
		if mine := o.passing(); mine != nil {
			all = append(all, mine)
		}
	}
	if rules[cl.kind].shared {
		return all
	}
	for _, h := range o.readers() {
		all = append(all, h.claim)
	}
	if o.reading != nil && o.reading.young != nil {
		all = append(all, o.reading.young) // its last reader is just leaving
	}
	return all
}

// overtakenLocked says whether this client has got the lock with an attempt whose answer was faster than the one to that acquisition's. Who of
// the two has lost it isn't known, as the store may have granted it to either first. It will say so: the acquisition is repeated, and what this client
// has is looked at.
func (c *Client) overtakenLocked(a *acquisition) (overtaken bool) {
	now := c.now()
	for _, mine := range c.objectLocked(a.kind, a.name).rivals(a.h.claim) {
		if int32(mine.after-uint32(a.attempt)) >= 0 && !mine.dead && now < mine.Until() {
			c.lookLocked(mine)
			overtaken = true
		}
	}
	return overtaken
}

// begunLocked says whether this client has got what an acquisition wants with an attempt that it sent after that instant.
func (c *Client) begunLocked(a *acquisition, since instant) bool {
	now := c.now()
	return slices.ContainsFunc(a.in.object.rivals(a.h.claim), func(mine *claim) bool {
		return mine.began > since && !mine.dead && now < mine.Until()
	})
}

// installLocked makes h what this client has for itself, or one of those who have permits.
func (c *Client) installLocked(h *hold) {
	h.claim.object.keep(h)
	if rules[h.kind].many {
		return
	}
	if v := h.variable(); v != nil {
		v.hold = h
	}
	c.joinLocked(h)
}

// currentLocked returns the hold of that kind that p has, or nil.
func (c *Client) currentLocked(o *object, kind backend.Kind, p party) *hold {
	if o == nil {
		return nil
	}
	h := o.alone
	if rules[kind].shared {
		h = o.reader(p)
	}
	if h == nil || h.party != p || h.kind != kind || !c.checkLocked(h) {
		return nil
	}
	return h
}

// lossOf returns how a hold was lost, as the cause of its context, or nil.
func (c *Client) lossOf(h *hold) error {
	c.mu.Lock()
	defer c.unlock()
	if c.checkLocked(h) || h.state != lost {
		return nil
	}
	return h.ended()
}

// checkLocked says whether a hold can be relied on now, and ends it if its time is over.
func (c *Client) checkLocked(h *hold) bool {
	now := c.now()
	if h.valid(now) {
		return true
	}
	if h.state == live {
		c.loseLocked(h, c.ranOutLocked(h.claim, now))
	}
	return false
}

// loseLocked ends a hold for good before it was released, and tells whoever wants to know: with it all
// that share its claim.
func (c *Client) loseLocked(h *hold, w why) {
	if h.state != live {
		return
	}
	c.loseClaimLocked(h.claim, w)
}

// loseClaimLocked ends a claim for good before it was released, with all that rest on it.
func (c *Client) loseClaimLocked(cl *claim, w why) {
	if cl.dead || c.closed { // who has it was told by Close
		return
	}
	cl.dead = true
	delete(c.troubles, cl)
	c.unscheduleLocked(&cl.alarm)
	before := c.counts.lost.Load()
	switch h := cl.object.alone; {
	case h != nil && h.claim == cl:
		c.loseHoldLocked(h, w)
	case rules[cl.kind].many:
		c.loseHoldLocked(cl.more.holder, w)
	default:
		c.loseReadersLocked(cl, w)
	}
	if c.counts.lost.Load() > before {
		c.reportLossLocked(c.lastLosses[len(c.lastLosses)-1])
	}
	if c.stored(cl.Lease()) > cl.Lease() || cl.Outlives() {
		c.takeBackLocked(cl) // the store keeps it for longer than it is wanted
	}
	c.wakeLocked(cl)
	if q := cl.object.line; q != nil {
		c.lookAtLineLocked(q)
	}
}

// loseHoldLocked ends one hold on a claim that is lost.
func (c *Client) loseHoldLocked(h *hold, w why) {
	l := c.lossLocked(h, w)
	h.state = lost
	c.dropLocked(h)
	c.tellLocked(h, c.lostLocked(h, l))
	switch v := h.variable(); {
	case v == nil:
		c.rememberLocked(h)
	case rules[h.kind].shared:
		if v.hold == h {
			v.hold = nil // others go on reading
		}
		c.rememberLocked(h)
	default:
		c.leavePlacesLocked(h.claim.object, v)
	}
	if inner := c.endInnerLocked(h); inner != nil {
		c.takeBackLocked(inner)
	}
}

// forsakeLocked ends a hold because the client is closed.
func (c *Client) forsakeLocked(h *hold) {
	h.state = forsaken
	c.tellLocked(h, ErrClosed)
	if h.told {
		h.told = false
		e := c.forsakenLocked(h)
		c.traceLocked(func() { c.traceRelease(context.Background(), e) })
	}
	c.unscheduleLocked(&h.claim.alarm)
}

// dropLocked takes a hold out of the tables.
func (c *Client) dropLocked(h *hold) {
	o := h.claim.object
	switch {
	case rules[h.kind].shared:
		c.forgetReaderLocked(o, h)
	case rules[h.kind].many:
		c.forgetPermitsLocked(o, h)
	case o.alone == h:
		o.alone = nil
		c.unscheduleLocked(&h.claim.alarm)
	}
	c.tidyLocked(o)
}

// vacateLocked lets the next plain call have the Locker of a hold that is given back.
func (c *Client) vacateLocked(h *hold) {
	v := h.variable()
	if v == nil || v.hold != h {
		return
	}
	v.hold = nil
	o := c.presentLocked(h.claim)
	if o == nil {
		return
	}
	if o.queue != nil {
		c.leadLocked(o.queue)
	}
	if o.line != nil {
		c.returnLocked(o.line, v)
	}
}

// tellLocked ends what hangs on a hold.
func (c *Client) tellLocked(h *hold, cause error) {
	h.noticeLocked()
	c.endContextsLocked(h, cause)
}

// noticeLocked tells whoever wants to know that a hold is lost.
func (h *hold) noticeLocked() {
	if h.watchers == nil {
		return
	}
	for _, n := range h.watchers.over {
		n.give()
	}
}

// endContextsLocked ends the contexts that a hold is for.
func (c *Client) endContextsLocked(h *hold, cause error) {
	if h.watchers == nil {
		return
	}
	for line := range h.watchers.contexts {
		c.laterLocked(func() { line.cancel(cause) })
	}
	h.watchers.contexts = nil
}

// A lostKey is what an unlock of an owner names.
type lostKey struct {
	lockKey
	kind  backend.Kind
	party party
}

func (h *hold) lostKey() lostKey { return lostKey{h.claim.object.key(), h.kind, h.party} }

// rememberLocked keeps a lost hold, so that its unlocks are told that it was lost.
func (c *Client) rememberLocked(h *hold) {
	key := h.lostKey()
	c.lost[key] = append(c.lost[key], h)
	c.losses = append(c.losses, h)
	if len(c.losses) > maxLosses {
		c.forgot = true
		c.forgetLocked(c.losses[0])
	}
	c.scheduleLocked(&h.claim.alarm, c.now()+lossMemory*c.lease)
}

// forgetAllLocked drops all holds on a claim that rememberLocked kept.
func (c *Client) forgetAllLocked(cl *claim) {
	c.forgot = true
	for i := len(c.losses) - 1; i >= 0; i-- {
		if h := c.losses[i]; h.claim == cl {
			c.forgetLocked(h)
		}
	}
}

// forgetLocked drops what rememberLocked kept. If that isn't because it was unlocked, its unlock will
// find nothing: c.forgot.
func (c *Client) forgetLocked(h *hold) {
	if i := slices.Index(c.losses, h); i >= 0 {
		c.losses = slices.Delete(c.losses, i, i+1)
	}
	if !slices.ContainsFunc(c.losses, func(x *hold) bool { return x.claim == h.claim }) {
		c.unscheduleLocked(&h.claim.alarm)
	}
	if v := h.variable(); v != nil { // its Locker remembers for as long as it is there
		v.owed += int(h.count)
		h.count = 0
	}
	key := h.lostKey()
	left := slices.DeleteFunc(c.lost[key], func(x *hold) bool { return x == h })
	if len(left) == 0 {
		delete(c.lost, key)
	} else {
		c.lost[key] = left
	}
}

// lastLossLocked returns the latest lost hold of p that isn't unlocked, or nil.
func (c *Client) lastLossLocked(key lostKey) *hold {
	holds := c.lost[key]
	if len(holds) == 0 {
		return nil
	}
	return holds[len(holds)-1]
}

// Requests to the store, each about a claim.

func (cl *claim) acquireRequest(lease time.Duration, reentry bool) backend.AcquireRequest {
	req := backend.AcquireRequest{Kind: cl.kind, Name: cl.object.name, Owner: cl.owner, Lease: lease, Reentry: reentry}
	req.Permits, req.Limit = cl.permits()
	return req
}

func (cl *claim) releaseRequest(lease time.Duration, ask bool) backend.ReleaseRequest {
	n, _ := cl.permits()
	return backend.ReleaseRequest{Kind: cl.kind, Name: cl.object.name, Owner: cl.owner, Lease: lease, AskWaiting: ask, Permits: n}
}

func (cl *claim) renewRequest(lease time.Duration) backend.RenewRequest {
	n, _ := cl.permits()
	return backend.RenewRequest{Kind: cl.kind, Name: cl.object.name, Owner: cl.owner, Lease: lease, Permits: n}
}

// lookRequest asks about the claim itself. A store that has lost it may no longer know how many
// permits there are.
func (cl *claim) lookRequest() backend.LookRequest {
	req := backend.LookRequest{Kind: cl.kind, Name: cl.object.name, Owner: cl.owner}
	n, limit := cl.permits()
	req.Permits, req.Limit = n, max(n, limit)
	return req
}

// permits returns how many permits a claim is for, and of how many.
func (cl *claim) permits() (n, limit int) {
	if !rules[cl.kind].many {
		return 0, 0
	}
	return cl.more.many, cl.more.limit
}
