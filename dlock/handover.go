package dlock

import (
	"context"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/dlock/internal/protocol"
)

// A lock that is released for the last time, and for which a goroutine of the same client waits, is
// handed on without a word to the store: the claim stays, and somebody else holds it. That goes on
// for a bounded time, so that the clients of other processes get their turn, and so that nobody
// enters for longer than that after the store has let the lock go unnoticed.

// handoverEnd returns until when a claim may be handed on. Where strangers wait, who don't hand on,
// it isn't: each of their turns would be followed by many of ours. A client that is alone among
// several of them hands on once.
func (c *Client) handoverEnd(cl *claim) instant {
	cr := c.crowds[cl.object.key()]
	if cr != nil && cr.strangers > 0 && (cl.handed || cr.mixed || cr.strangers == 1) {
		return cl.began
	}
	return cl.began + c.handover
}

// passing returns what this client has and may hand on: what somebody has for himself, or what he has lent to
// readers.
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

// passesTo says whether a claim is what an acquisition asks for, and may be handed to it. What was claimed for writing will do
// for reading, too. What has been read under by its holder stays his: another's requests of that number couldn't be told from his.
func (cl *claim) passesTo(a *acquisition) bool {
	return rules[cl.kind].passes && (a.kind == cl.kind || rules[a.kind].shared) &&
		(cl.more == nil || cl.more.inner == nil && cl.more.many == a.o.permits && cl.more.limit == a.o.limit) && cl.suits(a)
}

// handOn gives a hold that is to be released to whoever is next in the queue, and says whether it
// did.
func (c *Client) handOn(h *hold) bool {
	if rules[h.kind].shared {
		return false // its readers share it
	}
	c.mu.Lock()
	defer c.unlock()
	a := c.successorLocked(h)
	if a == nil {
		return false
	}
	h.state = released
	h.count = 0
	c.endContextsLocked(h, ErrNotHeld) // there are none, unless fn gave back more than it took
	if v := h.variable(); v != nil {
		v.hold = nil
	}
	if rules[a.kind].shared {
		c.lendLocked(h)
	} else {
		c.inheritLocked(a, h.claim)
	}
	return true
}

// successorLocked returns whom a hold can be handed to instead of being released, or nil.
func (c *Client) successorLocked(h *hold) *acquisition {
	if h.count != 1 || len(h.slot) > 0 || h.state != live { // or its owner goes on with it
		return nil
	}
	return c.nextLocked(h.claim, h)
}

// nextLocked returns to whom a claim can be handed on, which h has, or nil.
func (c *Client) nextLocked(cl *claim, h *hold) *acquisition {
	q, now := c.queueLocked(cl), c.now()
	if q == nil || now >= c.handoverEnd(cl) || !cl.passes(now) {
		return nil
	}
	if a := q.nextLocked(h); a != nil && (!a.trying || rules[a.kind].many) && cl.passesTo(a) {
		return a
	}
	return nil
}

// inheritLocked makes a waiter the holder of a claim.
func (c *Client) inheritLocked(a *acquisition, cl *claim) {
	cl.handed = true
	heir := newHold(a.party, a.kind, cl).beginsLater(c.now())
	heir.count, heir.renewedFrom, heir.offered = 1, 1, true
	cl.object.keep(heir) // before the queue may be empty, and the object idle
	c.dequeueLocked(a)
	c.installLocked(heir)
	a.via = ViaHandover
	c.handLocked(a, heir)
}

// handLocked tells a waiter that has left the queue what it has. If it is just asking the store itself, the answer may be lost, and it
// needn't wait for that.
func (c *Client) handLocked(a *acquisition, h *hold) {
	a.handed = h
	a.notify()
	if a.trying && a.cut != nil {
		c.scheduleLocked(&a.alarm, c.now()+shortestWait)
	}
}

// lendLocked lets readers who wait share what h has claimed for writing. When that can't be handed on any more, and they
// are still reading, it becomes a claim for reading.
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

// passOnLocked gives what readers had been lent, and the last of them has given back, to who waits to write, if he is next.
func (c *Client) passOnLocked(cl *claim) bool {
	if rules[cl.kind].shared {
		return false
	}
	a := c.nextLocked(cl, nil)
	if a == nil || rules[a.kind].shared {
		return false
	}
	c.unscheduleLocked(&cl.more.lent)
	cl.object.retire(cl)
	c.inheritLocked(a, cl)
	return true
}

// lent is what was claimed for writing, and is being read under.
type lent struct{ *claim }

// ring lets the others in the store read, too, if readers of this client still do.
func (l lent) ring(c *Client, _ instant) { c.backgroundLocked(func() { c.downgrade(l.claim) }) }

// downgrade turns what was claimed for writing, and lent to readers, into a claim for reading: it asks for that under the same
// number, and then gives the write back.
func (c *Client) downgrade(cl *claim) {
	read := &claim{object: cl.object, kind: backend.Read, owner: cl.owner, more: new(more)}
	read.Want(cl.Lease(), false)
	var tries backoff
	for {
		sent, ok := c.mayDowngrade(cl, read)
		if !ok {
			return
		}
		res, err := step(c.ctx, c, backend.Session.Acquire, read.acquireRequest(c.stored(cl.Lease()), false))
		written, done := c.downgraded(cl, read, sent, res, err)
		if written != nil {
			c.giveBackWrite(cl, written)
		}
		if done || !c.pause(c.ctx, tries.next(firstBackoff, longestPause(cl.Lease()))) {
			return
		}
	}
}

// mayDowngrade says whether readers still share what they were lent.
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

// downgraded notes the answer to the read that a downgrade has asked for, and says whether that was all. If it was
// granted, what is left of the write is to be given back.
func (c *Client) downgraded(cl, read *claim, sent instant, res backend.AcquireResult, err error) (written *claim, done bool) {
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
	case cl.dead, now >= cl.Until(), err == nil && !granted: // else the store would have granted it
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

// giveBackWrite releases the write of a claim that is one for reading now. If there is none any more it was lost, perhaps before
// the read was granted, and somebody else may have written in between.
func (c *Client) giveBackWrite(cl, written *claim) {
	lease := c.stored(written.Lease())
	sent := c.now()
	res, err := step(c.ctx, c, backend.Session.Release, written.releaseRequest(lease, false))
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

// take accepts the hold that a waiter was handed.
func (c *Client) take(ctx context.Context, a *acquisition) (*hold, error) {
	c.abandon(a) // it may have asked for a claim of its own
	over := c.over(ctx)
	c.mu.Lock()
	defer c.unlock()
	h := a.handed
	a.handed = nil
	c.unscheduleLocked(&a.alarm)
	a.answered, a.failure = true, nil // this client had it: we know without asking
	switch v := a.variable(); {
	case h.state == forsaken:
		c.leaveForsakenLocked(h)
		return nil, ErrClosed
	case over != nil:
		if h.count == 1 {
			h.claim.Forgo(c.now()) // nobody has acquired it
			h.offered = true       // until it is given back
		}
		c.backgroundLocked(func() { c.release(context.Background(), h) }) // or take it back
		return nil, a.giveUp(over)
	case v != nil && h.count == 0 && rules[a.kind].shared:
		return h, nil // other readers of the same Locker have given this back, and it has theirs
	case c.checkLocked(h):
		h.offered = false
		return h, nil
	case h.state == lost:
		c.releaseLostLocked(h)
	}
	return nil, errAgain
}

// postponeLocked keeps the queue, whose first is told when the last release of h is answered, from
// asking before that: it would be faster than the other clients, which wait for the message.
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
