package dlock

import "context"

// A lock that is released for the last time, and for which a goroutine of the same client waits, is
// handed on without a word to the store: the claim stays, and somebody else holds it. That goes on
// for a bounded time, so that the clients of other processes get their turn, and so that nobody
// enters for longer than that after the store has let the lock go unnoticed.

// handoverEnd returns until when a claim may be handed on.
func (c *Client) handoverEnd(cl *claim) instant { return cl.began + c.handover }

// suits says whether a hold is what an acquisition asks for, and may be handed to it.
func (h *hold) suits(a *acquisition) bool {
	return a.kind == h.kind && rules[h.kind].passes && h.inner() == nil && h.claim.suits(a)
}

// handOn gives a hold that is to be released to whoever is next in the queue, and says whether it
// did.
func (c *Client) handOn(h *hold) bool {
	c.mu.Lock()
	defer c.unlock()
	q := c.queueLocked(h.claim)
	if q == nil || !c.mayHandOnLocked(h) {
		return false
	}
	a := q.nextLocked(h)
	if a == nil || a.trying || !h.suits(a) {
		return false
	}
	c.dequeueLocked(a)
	a.handed = c.inheritLocked(h, a.party)
	a.notify()
	return true
}

// mayHandOnLocked says whether a hold can be handed on instead of being released.
func (c *Client) mayHandOnLocked(h *hold) bool {
	if h.count != 1 || len(h.slot) > 0 { // or its owner goes on with it
		return false
	}
	now := c.now()
	return now < c.handoverEnd(h.claim) && h.claim.passes(now) && h.state == live
}

// inheritLocked ends a hold, and returns the one that its successor is offered.
func (c *Client) inheritLocked(h *hold, successor party) *hold {
	h.state = released
	h.count = 0
	c.endContextsLocked(h, ErrNotHeld) // there are none, unless fn gave back more than it took
	h.claim.handed = true
	heir := newHold(successor, h.claim)
	heir.count, heir.renewedFrom, heir.offered = 1, 1, true
	if v := h.variable(); v != nil {
		v.hold = nil
	}
	c.installLocked(heir)
	return heir
}

// take accepts the hold that a waiter was handed.
func (c *Client) take(ctx context.Context, a *acquisition) (*hold, error) {
	c.abandon(a) // it may have asked for a claim of its own
	over := c.over(ctx)
	c.mu.Lock()
	defer c.unlock()
	h := a.handed
	a.handed = nil
	a.answered, a.failure = true, nil // this client had it: we know without asking
	switch v := a.variable(); {
	case over != nil:
		c.backgroundLocked(func() { c.giveBack(context.Background(), h) }) // or take it back
		return nil, a.giveUp(over)
	case v != nil && h.count == 0 && rules[a.kind].shared:
		return h, nil // other readers of the same Locker have given this back, and it has theirs
	case c.checkLocked(h):
		h.offered = false
		return h, nil
	case h.state == forsaken:
		return nil, ErrClosed
	case h.state == lost:
		c.releaseLostLocked(h)
	}
	return nil, errAgain
}

// giveBack releases what a waiter was handed and can't use. Plain readers of one Locker can't be told apart: it
// may have been given back by another, and is one of those that are left, then.
func (c *Client) giveBack(ctx context.Context, h *hold) {
	for {
		err := c.release(ctx, h)
		v := h.variable()
		if err != errAgain || v == nil || !rules[h.kind].shared {
			return
		}
		c.mu.Lock()
		h = c.plainSharedLocked(h.claim.object.key(), h.kind, v)
		c.unlock()
		if h == nil {
			return
		}
	}
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
		c.scheduleLocked(&a.alarm, max(a.alarm.at, c.now()+cl.lease/3))
	}
	return q
}
