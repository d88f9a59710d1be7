package dlock

import (
	"context"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/dlock/internal/protocol"
	"github.com/seed951563bd/distsync/dlock/internal/steps"
)

// If the last release of a hold begins while another call of the client waits for the lock, the
// client hands the lock over without asking the store. The claim stays, with a new holder.
// Hand-overs of one claim go on for a bounded time, so that the clients of other processes get
// their turn. The bound also limits how long a lock can be handed over after the store has lost it
// unnoticed.

// handoverEnd returns the time until which a claim may be handed over. While strangers wait, which
// don't hand locks over, this client doesn't either, since it would have many turns for each of
// theirs. The exception: if only strangers wait, and there are several of them, the claim may be
// handed over once.
func (c *Client) handoverEnd(cl *claim) instant {
	cr := c.crowds[cl.object.key()]
	if cr != nil && cr.strangers > 0 && (cl.handed || cr.mixed || cr.strangers == 1) {
		return cl.began
	}
	return cl.began + c.handover
}

// passing returns the claim that this client may hand over: the claim of the holder that excludes
// all others, or the write that is lent to readers.
func (o *object) passing() *claim {
	switch {
	case o == nil:
		return nil
	case o.alone != nil:
		return o.alone.claim
	case o.reading != nil:
		return o.reading.lent
	default:
		return nil
	}
}

// passesTo reports whether a claim satisfies an acquisition, and may be handed to it. A write also
// satisfies an acquisition for reading. But a write isn't handed over if its holder has read under
// it. The store couldn't tell another party's reads under the same owner string from those of the
// old holder.
func (cl *claim) passesTo(a *acquisition) bool {
	return cl.kind.Passes() && (a.kind == cl.kind || a.kind.Shared()) &&
		(cl.more == nil || cl.more.inner == nil && cl.more.many == a.o.permits &&
			cl.more.limit == a.o.limit) && cl.suits(a)
}

// handOn hands a hold that would be released to the next call in the queue. It returns false if
// there is no such call.
func (c *Client) handOn(h *hold) bool {
	if h.kind.Shared() {
		return false // readers share its claim
	}
	c.mu.Lock()
	defer c.unlock()
	a := c.successorLocked(h)
	if a == nil {
		return false
	}
	h.state = released
	h.count = 0
	c.endContextsLocked(h, ErrNotHeld) // it has contexts only if fn released more than it took
	if v := h.variable(); v != nil {
		v.hold = nil
	}
	if a.kind.Shared() {
		c.lendLocked(h)
	} else {
		c.inheritLocked(a, h.claim)
	}
	return true
}

// successorLocked returns the call to which a hold can be handed over, or nil if the hold must be
// released.
func (c *Client) successorLocked(h *hold) *acquisition {
	if h.count != 1 || len(h.slot) > 0 || h.state != live { // or its owner goes on with it
		return nil
	}
	return c.nextLocked(h.claim, h)
}

// nextLocked returns the call to which a claim can be handed over, or nil. h is the hold that ends,
// or nil.
func (c *Client) nextLocked(cl *claim, h *hold) *acquisition {
	q, now := c.queueLocked(cl), c.now()
	if q == nil || now >= c.handoverEnd(cl) || !cl.passes(now) {
		return nil
	}
	if a := q.nextLocked(h); a != nil && (!a.trying || a.kind.Many()) && cl.passesTo(a) {
		return a
	}
	return nil
}

// inheritLocked makes a waiting call the holder of a claim.
func (c *Client) inheritLocked(a *acquisition, cl *claim) {
	cl.handed = true
	heir := newHold(a.party, a.kind, cl).beginsLater(c.now())
	heir.count, heir.renewedFrom, heir.offered = 1, 1, true
	cl.object.keep(heir) // first, since an object without a queue and a hold would be dropped
	c.dequeueLocked(a)
	c.installLocked(heir)
	a.via = ViaHandover
	c.handLocked(a, heir)
}

// handLocked tells a call that has left the queue which hold it was handed. The answer to the
// call's own attempt may be lost. So if such an attempt is under way, the alarm ends it soon.
func (c *Client) handLocked(a *acquisition, h *hold) {
	a.handed = h
	a.notify()
	if a.trying && a.cut != nil {
		c.scheduleLocked(&a.alarm, c.now()+shortestWait)
	}
}

// lendLocked lends the write of h to the waiting readers. If they still read when the hand-over
// time ends, the write is downgraded to a read.
func (c *Client) lendLocked(h *hold) {
	cl, o := h.claim, h.claim.object
	cl.handed = true
	o.alone = nil
	if o.reading == nil {
		o.reading = &reading{holds: make(map[party]*hold)}
	}
	o.reading.lent, o.reading.young = cl, cl
	cl.more.lent.task = lent{cl}
	c.scheduleLocked(&cl.more.lent, c.handoverEnd(cl))
	c.admitReadersLocked(o, cl)
	if q := o.queue; q != nil {
		c.leadLocked(q)
	}
}

// passOnLocked is called when the last reader has left a lent write. It hands the write to the next
// call in the queue if that call wants to write, and reports whether it did.
func (c *Client) passOnLocked(cl *claim) bool {
	if cl.kind.Shared() {
		return false
	}
	a := c.nextLocked(cl, nil)
	if a == nil || a.kind.Shared() {
		return false
	}
	c.unscheduleLocked(&cl.more.lent)
	cl.object.retire(cl)
	c.inheritLocked(a, cl)
	return true
}

// lent is a write that is lent to readers.
type lent struct{ *claim }

// ring downgrades the write if readers of this client still share it, so that other clients can
// also read.
func (l lent) ring(c *Client, _ instant) { c.backgroundLocked(func() { c.downgrade(l.claim) }) }

// downgrade turns a lent write into a read. It asks the store for a read under the same owner
// string. Then it releases the write.
func (c *Client) downgrade(cl *claim) {
	read := &claim{object: cl.object, kind: protocol.Kind(backend.Read), owner: cl.owner,
		more: new(more)}
	read.Want(cl.Lease(), false)
	var tries backoff
	for {
		sent, ok := c.mayDowngrade(cl, read)
		if !ok {
			return
		}
		res, err := steps.Do(c.ctx, c.store, backend.Session.Acquire,
			read.acquireRequest(c.stored(cl.Lease()), false))
		written, done := c.downgraded(cl, read, sent, res, err)
		if written != nil {
			c.giveBackWrite(cl, written)
		}
		if done || !c.store.Pause(c.ctx, tries.next(firstBackoff, longestPause(cl.Lease()))) {
			return
		}
	}
}

// mayDowngrade reports whether readers still share the lent write. If so, it records that the read
// is asked for now.
func (c *Client) mayDowngrade(cl, read *claim) (sent instant, ok bool) {
	c.mu.Lock()
	defer c.unlock()
	if cl.dead {
		if read.Strays() {
			c.takeBackLocked(read)
		}
		return 0, false
	}
	sent = c.now()
	read.Sent(sent, c.stored(cl.Lease()))
	cl.more.other = read
	return sent, true
}

// downgraded processes the answer to a downgrade's request for a read. done reports that there is
// nothing left to ask. If the read was granted, downgraded returns the write, which must be
// released.
func (c *Client) downgraded(
	cl, read *claim, sent instant, res backend.AcquireResult, err error,
) (written *claim, done bool) {
	c.mu.Lock()
	defer c.unlock()
	granted := err == nil && res.Acquired
	if err != nil && backend.KindOf(err) == backend.Unknown {
		read.Stray()
	}
	now, until := c.now(), sent+protocol.Promised(cl.Lease())
	switch {
	case c.closed:
		return nil, true
	case cl.dead, now >= cl.Until(), err == nil && !granted: // otherwise it would have been granted
		w := gone
		if err != nil || granted {
			w = c.ranOutLocked(cl, now)
		}
		c.loseClaimLocked(cl, w)
		if read.Strays() || granted {
			c.takeBackLocked(read)
		}
		return nil, true
	case !granted:
		return nil, false
	case now >= until:
		read.Stray()
		return nil, false
	}
	written = &claim{object: cl.object, kind: cl.kind, owner: cl.owner}
	cl.more.other = written
	cl.kind = read.kind
	cl.Becomes(&read.Promise, &written.Promise, until)
	c.scheduleLocked(&cl.alarm, max(c.nextLook(cl, sent), now))
	if r := cl.object.reading; r != nil && r.lent == cl {
		r.lent = nil
	}
	return written, true
}

// giveBackWrite releases the write of a claim that is now a read. If the store no longer has the
// write, the write was lost, perhaps before the read was granted. Then another client may have
// written in between.
func (c *Client) giveBackWrite(cl, written *claim) {
	lease := c.stored(written.Lease())
	sent := c.now()
	res, err := steps.Do(c.ctx, c.store, backend.Session.Release,
		written.releaseRequest(lease, false))
	c.mu.Lock()
	defer c.unlock()
	written.Sent(sent, lease)
	if err == nil && res.Outcome != backend.Left {
		cl.more.other = nil
	}
	switch {
	case err == nil && res.Outcome == backend.NotHeld:
		c.loseClaimLocked(cl, gone)
	case err == nil && res.Outcome == backend.Freed:
		c.wakeLocked(cl)
	}
	if written.Strays() || err != nil || res.Outcome == backend.Left {
		c.takeBackLocked(written)
	}
}

// take accepts the hold that was handed to a waiting call.
func (c *Client) take(ctx context.Context, a *acquisition) (*hold, error) {
	c.abandon(a) // the call may have asked for a claim of its own
	over := c.over(ctx)
	c.mu.Lock()
	defer c.unlock()
	h := a.handed
	a.handed = nil
	c.unscheduleLocked(&a.alarm)
	a.answered, a.failure = true, nil // this client had the lock, so the store wasn't asked
	switch v := a.variable(); {
	case h.state == forsaken:
		c.leaveForsakenLocked(h)
		return nil, ErrClosed
	case over != nil:
		if h.count == 1 {
			h.claim.Forgo(c.now()) // no call has it yet
			h.offered = true       // until it is released
		}
		c.backgroundLocked(func() { c.release(context.Background(), h) }) // it may take long
		return nil, a.giveUp(over)
	case v != nil && h.count == 0 && a.kind.Shared():
		return h, nil // another reader of the Locker released it; the call has that reader's
	case c.checkLocked(h):
		h.offered = false
		return h, nil
	case h.state == lost:
		c.releaseLostLocked(h)
	}
	return nil, errAgain
}

// postponeLocked delays the next look of the queue's lead until the last release is answered, at
// most for a third of the lease. Otherwise the lead would be faster than other clients, which wait
// for the store's message. postponeLocked returns the queue.
func (c *Client) postponeLocked(cl *claim) *queue {
	q := c.queueLocked(cl)
	if q == nil {
		return nil
	}
	q.releasing++
	if a := q.lead; a != nil && a.alarm.place > 0 {
		c.scheduleLocked(&a.alarm, max(a.alarm.at, c.now()+cl.Lease()/3))
	}
	return q
}
