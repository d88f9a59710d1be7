package dlock

import "context"

// A lock that is released for the last time, and for which a goroutine of the same client waits at
// the head of the queue, is handed on without a word to the store: the claim stays, and somebody
// else holds it. That goes on for a bounded time, so that the clients of other processes get their
// turn, and so that nobody enters for longer than that after the store has let the lock go unnoticed.

// handoverEnd returns until when a hold may be handed on. c.mu is held.
func (c *Client) handoverEnd(h *hold) instant { return h.began + c.handover }

// handsOn says whether a hold may be handed on, its time apart: it rests on a claim that is renewed,
// and that no request without an answer can shorten or count up. c.mu is held.
func (h *hold) handsOn(now instant) bool {
	return h.watched && h.doubt == 0 && h.valid(now)
}

// suits says whether a hold is what an acquisition asks for. c.mu is held.
func (h *hold) suits(a *acquisition) bool { return !a.o.fixed && a.o.lease == h.lease }

// handOn gives a hold that is to be released to whoever is next in the queue, and says whether it
// did.
func (c *Client) handOn(h *hold) bool {
	c.mu.Lock()
	defer c.unlock()
	q := c.queues[h.name]
	if q == nil || q.head.trying || !h.suits(q.head) || !c.mayHandOn(h) {
		return false
	}
	a := q.head
	a.handed = c.inherit(h, a.party)
	c.dequeue(a)
	a.notify()
	c.join(a.handed)
	return true
}

// mayHandOn says whether a hold can be handed on instead of being released. c.mu is held.
func (c *Client) mayHandOn(h *hold) bool {
	if h.count != 1 || len(h.slot) > 0 { // or its owner goes on with it
		return false
	}
	now := c.now()
	return now < c.handoverEnd(h) && h.handsOn(now)
}

// inherit ends a hold, and returns the one that its successor has. c.mu is held.
func (c *Client) inherit(h *hold, successor party) *hold {
	h.state = released
	h.count = 0
	c.endContexts(h, ErrNotHeld) // there are none, unless fn gave back more than it took
	h.handed = true
	heir := &hold{count: 1}
	heir.rest(successor, h.claim)
	c.holds[h.name] = heir
	return heir
}

// take accepts the hold that a waiter was handed.
func (c *Client) take(ctx context.Context, a *acquisition) (*hold, error) {
	c.abandon(a) // it may have asked for a claim of its own
	h, over := a.handed, c.over(ctx)
	a.handed = nil
	a.answered, a.failure = true, nil // this client had it: we know without asking
	c.mu.Lock()
	defer c.unlock()
	switch {
	case over != nil:
		c.background(func() { c.release(context.Background(), h) }) // or take it back
		return nil, a.giveUp(over)
	case !c.check(h):
		c.releaseLost(h)
		return nil, errAgain
	default:
		return h, nil
	}
}

// postpone keeps the head of the queue, who is told when the last release of h is answered, from
// asking before that: it would be faster than the other clients, which wait for the message. c.mu is
// held.
func (c *Client) postpone(h *hold) {
	if q := c.queues[h.name]; q != nil && q.head.alarm.place > 0 {
		c.schedule(&q.head.alarm, max(q.head.alarm.at, c.now()+h.lease/3))
	}
}

// yield lets the other clients have a turn when the lock was handed on here for as long as it may
// be. The next of this client waits for the store's word that the lock was released, as they do, or
// else it would be faster than they every time. c.mu is held.
func (c *Client) yield(h *hold) {
	until := c.now() + shortestWait
	q := c.queues[h.name]
	switch {
	case q != nil && q.head.trying:
		c.wake(h.name) // what it is told may be from before
	case q != nil:
		c.hear(q, until)
	default:
		if l, plain := h.party.(*Locker); plain && l.gate.waiting > 0 {
			l.yields = until // who waits at its gate is going to queue up
		}
	}
}

// yields says whether a new head is to let others have a turn first. c.mu is held.
func (c *Client) yields(q *queue) bool {
	l, plain := q.head.party.(*Locker)
	if !plain || l.yields == 0 {
		return false
	}
	until := l.yields
	l.yields = 0
	if c.now() >= until {
		return false
	}
	c.hear(q, until)
	return true
}

// hear has the head of a queue look again when the store says that the lock was released, or says
// that it will say so, but no later than at that instant. c.mu is held.
func (c *Client) hear(q *queue, until instant) {
	if q.subscribed == unasked && c.notifier != nil {
		c.subscribe(q)
	}
	c.schedule(&q.head.alarm, until)
}

// leave hands the hold of plain calls to the next who waits at the Locker's gate, and says whether it
// did. c.mu is held.
func (l *Locker) leave(h *hold) bool {
	c := l.client
	if l.gate.waiting == 0 || c.queues[l.name] != nil || !c.mayHandOn(h) {
		return false
	}
	l.hold, l.gate.left = c.inherit(h, l), true
	l.gate.open() // whoever comes through it next has the hold
	return true
}

// find returns the hold that was left for whoever came through the gate, or nil. If it isn't what the
// caller wants it is released. An error says that the call is over, and the gate is not the caller's
// any more.
func (l *Locker) find(ctx context.Context, o acquireOptions) (*hold, error) {
	c := l.client
	over := c.over(ctx)
	c.mu.Lock()
	if !l.gate.left {
		c.mu.Unlock()
		return nil, nil
	}
	h := l.hold
	l.gate.left = false
	switch {
	case over != nil:
		l.giveBack(h)
		c.unlock()
		held := acquisition{answered: true} // by this client: we know without asking
		return nil, held.giveUp(over)
	case !o.fixed && c.check(h):
		c.unlock()
		return h, nil
	}
	l.hold = nil
	c.unlock()
	c.release(ctx, h) // or take it back
	return nil, nil
}

// giveBack gives a hold that was left for one who doesn't want it to the next at the gate, or else
// releases it and opens the gate. c.mu is held.
func (l *Locker) giveBack(h *hold) {
	if l.leave(h) {
		return
	}
	l.hold = nil
	l.client.background(func() {
		l.client.release(context.Background(), h) // or take it back
		l.openGate()
	})
}

// giveUpWaiting is called by one who waited at the gate and will not come through it. If a hold was
// left for it, and nobody else is there to take it, that is released.
func (l *Locker) giveUpWaiting() {
	c := l.client
	c.mu.Lock()
	defer c.unlock()
	l.gate.waiting--
	if !l.gate.left || l.gate.waiting > 0 || !l.gate.slip() {
		return // nothing is left, or whoever comes through the gate finds it
	}
	l.gate.left = false
	l.giveBack(l.hold)
}
