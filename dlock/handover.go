package dlock

import (
	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/dlock/internal/protocol"
	"github.com/seed951563bd/distsync/dlock/internal/steps"
)

// A client can hand a lock over from one of its calls to the next without asking the store. It does
// so if another of its calls waits for the lock when the last release of a hold begins. The claim
// in the store stays, and gets a new holder. A claim can be handed over only for a limited time, so
// that the clients of other processes get their turn. The limit also matters if the store has lost
// the claim and the client hasn't noticed: the client can't hand the lock over for long.

// handoverEnd returns the end of the period in which a claim may be handed over. Strangers are
// waiting clients that don't hand locks over. While strangers wait, this client doesn't hand over
// either. Otherwise its calls would get many turns for each turn of a stranger. There is one
// exception: if several strangers wait, and all waiting clients are strangers, the claim may be
// handed over once.
func (cl *claim) handoverEnd(s *state) instant {
	cr := s.crowds[cl.object.key()]
	if cr != nil && cr.strangers > 0 && (cl.handed || cr.mixed || cr.strangers == 1) {
		return cl.began
	}
	return cl.began + s.handover
}

// passesTo reports whether a claim satisfies an acquisition and may be handed to it. A write lock
// also satisfies an acquisition for reading. But a write lock isn't handed over if its holder also
// took read locks while holding it. The new holder's read locks would have the same owner string,
// so the store couldn't tell them from the old holder's.
func (cl *claim) passesTo(a *acquisition) bool {
	return cl.kind.Passes() && (a.kind == cl.kind || a.kind.Shared()) &&
		(cl.more == nil || cl.more.inner == nil && cl.more.many == a.o.permits &&
			cl.more.limit == a.o.limit) && cl.suits(a)
}

// handOn hands the lock of a hold to the next call in the queue, instead of releasing it. It
// returns false if there is no such call.
func (h *hold) handOn(c *Client) bool {
	if h.kind.Shared() {
		return false // readers share its claim
	}
	s := c.lock()
	defer c.unlock()
	return h.pass(s)
}

// pass does the work of handOn.
func (h *hold) pass(s *state) bool {
	a := h.successor(s)
	if a == nil {
		return false
	}
	h.state = released
	h.count = 0
	// h still has contexts only if a function passed to Do unlocked more often than it locked.
	h.endContexts(s, ErrNotHeld)
	if v := h.variable(); v != nil {
		v.hold = nil
	}
	if a.kind.Shared() {
		h.lend(s)
	} else {
		a.inherit(s, h.claim)
	}
	return true
}

// successor returns the call to which a hold can be handed over, or nil if the hold must be
// released.
func (h *hold) successor(s *state) *acquisition {
	if h.count != 1 || len(h.slot) > 0 || h.state != live { // its owner still uses it, or it ended
		return nil
	}
	return h.claim.nextFor(s, h)
}

// nextFor returns the call to which a claim can be handed over, or nil. h is the hold that is
// ending, if there is one.
func (cl *claim) nextFor(s *state, h *hold) *acquisition {
	q := cl.queue(s)
	if q == nil {
		return nil
	}
	if now := s.now(); now >= cl.handoverEnd(s) || !cl.passes(now) {
		return nil
	}
	if a := q.next(h); a != nil && (!a.trying || a.kind.Many()) && cl.passesTo(a) {
		return a
	}
	return nil
}

// inherit makes a waiting call the holder of a claim.
func (a *acquisition) inherit(s *state, cl *claim) {
	cl.handed = true
	heir := newHold(a.party, a.kind, cl).beginsLater(s.now())
	heir.count, heir.renewedFrom, heir.offered = 1, 1, true
	a.dequeue(s)
	heir.install(s)
	a.via = ViaHandover
	a.hand(s, heir)
}

// lend lets waiting readers share the write lock of h, without telling the store. If they are still
// reading when the hand-over time ends, the write lock is downgraded to a read lock.
func (h *hold) lend(s *state) {
	cl, o := h.claim, h.claim.object
	cl.handed = true
	o.alone = nil
	if o.reading == nil {
		o.reading = &reading{holds: make(map[party]*hold)}
	}
	o.reading.lent, o.reading.young = cl, cl
	cl.more.lent.task = lent{cl}
	s.schedule(&cl.more.lent, cl.handoverEnd(s))
	o.mark(s, markJoinable)
}

// passOn is called when the last reader of a lent write lock has left. If the next call in the
// queue wants to write, passOn hands the write lock to that call and returns true.
func (cl *claim) passOn(s *state) bool {
	if cl.kind.Shared() {
		return false
	}
	a := cl.nextFor(s, nil)
	if a == nil || a.kind.Shared() {
		return false
	}
	s.unschedule(&cl.more.lent)
	cl.object.retire(cl)
	a.inherit(s, cl)
	return true
}

// mayBeJoined reports whether a new reader could join a claim that has no holders left.
func (cl *claim) mayBeJoined(s *state) bool {
	now, reading := s.now(), cl.object.reading
	return now < cl.handoverEnd(s) && cl.passes(now) && reading != nil && reading.young == cl
}

// lent is the alarm task of a write lock that is lent to readers.
type lent struct{ *claim }

// ring downgrades the write lock if readers of this client still share it. Readers of other clients
// can then acquire the lock, too.
func (l lent) ring(s *state, _ instant) { s.background(func(c *Client) { l.claim.downgrade(c) }) }

// downgrade turns a lent write lock into a read lock. It asks the store for a read lock under the
// same owner string, and then releases the write lock.
func (cl *claim) downgrade(c *Client) {
	read := &claim{object: cl.object, kind: protocol.Kind(backend.Read), owner: cl.owner,
		more: new(more)}
	read.Want(cl.Lease(), false)
	var tries backoff
	for {
		sent, ok := cl.mayDowngrade(c, read)
		if !ok {
			return
		}
		res, err := steps.Do(c.ctx, c.store, backend.Session.Acquire,
			read.acquireRequest(c.stored(cl.Lease()), false))
		written, done := cl.downgraded(c, read, sent, res, err)
		if written != nil {
			cl.giveBackWrite(c, written)
		}
		if done || !c.store.Pause(c.ctx, tries.next(firstBackoff, longestPause(cl.Lease()))) {
			return
		}
	}
}

// mayDowngrade reports whether readers still share the lent write lock. If so, it records that the
// read lock is requested now, and returns the current time.
func (cl *claim) mayDowngrade(c *Client, read *claim) (sent instant, ok bool) {
	s := c.lock()
	defer c.unlock()
	if cl.dead {
		if read.Strays() {
			read.takeBack(s)
		}
		return 0, false
	}
	sent = c.now()
	read.Sent(sent, c.stored(cl.Lease()))
	cl.more.other = read
	return sent, true
}

// downgraded processes the store's answer to the request for a read lock. If done is true, no
// further request is needed. If the store granted the read lock, downgraded returns a claim for the
// write lock, which the caller must release.
func (cl *claim) downgraded(
	c *Client, read *claim, sent instant, res backend.AcquireResult, err error,
) (written *claim, done bool) {
	s := c.lock()
	defer c.unlock()
	granted := err == nil && res.Acquired
	if err != nil && backend.KindOf(err) == backend.Unknown {
		read.Stray()
	}
	now, until := c.now(), sent+protocol.Promised(cl.Lease())
	switch {
	case s.closed:
		return nil, true
	case cl.dead, now >= cl.Until(), err == nil && !granted: // otherwise it would have been granted
		w := gone
		if err != nil || granted {
			w = cl.ranOut(s, now)
		}
		cl.lose(s, w)
		if read.Strays() || granted {
			read.takeBack(s)
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
	s.schedule(&cl.alarm, max(cl.nextLook(s, sent), now))
	if r := cl.object.reading; r != nil && r.lent == cl {
		r.lent = nil
	}
	return written, true
}

// giveBackWrite releases the write lock in the store after a claim has been downgraded to a read
// lock. If the store no longer holds the write lock, the claim is lost, because the write lock
// might have ended before the read lock was granted, and another client might have written in the
// meantime.
func (cl *claim) giveBackWrite(c *Client, written *claim) {
	lease := c.stored(written.Lease())
	sent := c.now()
	res, err := steps.Do(c.ctx, c.store, backend.Session.Release,
		written.releaseRequest(lease, false))
	s := c.lock()
	defer c.unlock()
	written.Sent(sent, lease)
	if err == nil && res.Outcome != backend.Left {
		cl.more.other = nil
	}
	switch {
	case err == nil && res.Outcome == backend.NotHeld:
		cl.lose(s, gone)
	case err == nil && res.Outcome == backend.Freed:
		cl.mark(s, markFree)
	}
	if written.Strays() || err != nil || res.Outcome == backend.Left {
		written.takeBack(s)
	}
}
