package dlock

import (
	"context"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/dlock/internal/protocol"
	"github.com/seed951563bd/distsync/dlock/internal/steps"
)

// The readers of a client share a claim, which one of them acquired. During the hand-over time, new
// readers join the claim without asking the store, unless a writer of this client is waiting. Later
// readers acquire a new claim, so that the store can let a writer of another client go first. The
// last reader of a claim releases it.

// share returns a hold that joins the claim of other readers of this client. It returns nil if the
// call must ask the store.
func (a *acquisition) share(s *state) *hold {
	cl := a.joinable(s)
	if cl == nil {
		return nil
	}
	a.via = ViaJoined
	h := a.joinReaders(s, s.object(a.kind, a.name), cl)
	h.offered = false
	return h
}

// joinable returns the claim that a call may join, or nil.
func (a *acquisition) joinable(s *state) *claim {
	o := s.object(a.kind, a.name)
	if !a.kind.Shared() || s.closed || o == nil || o.reading == nil ||
		o.queue != nil && o.queue.writers > 0 {
		return nil
	}
	cl, now := o.reading.young, s.now()
	if cl == nil || now >= cl.handoverEnd(s) || !cl.passes(now) || !cl.suits(a) {
		return nil
	}
	return cl
}

// joinReaders adds a reading call to a claim, and returns its hold.
func (a *acquisition) joinReaders(s *state, o *object, cl *claim) *hold {
	h := o.reader(a.party)
	if h == nil || h.claim != cl {
		h = newHold(a.party, protocol.Kind(backend.Read), cl).beginsLater(s.now())
	} else {
		a.via = ViaReentry
	}
	o.addReader(s, h)
	return h
}

// admitReaders lets waiting readers join the youngest claim, up to the first waiting writer.
func (o *object) admitReaders(s *state) {
	if o.queue == nil || o.reading == nil || o.reading.young == nil || s.handover == 0 {
		return
	}
	cl := o.reading.young
	for a := o.queue.first; a != nil; {
		next := a.next
		switch {
		case a.parked(), a.kind.Shared() && a.trying: // can't join, or waits for an answer
		case !a.kind.Shared(), !cl.suits(a):
			return
		default:
			a.dequeue(s)
			a.via = ViaJoined
			h := a.joinReaders(s, o, cl)
			if h.count == 1 {
				h.offered = true
			}
			a.hand(s, h)
		}
		a = next
	}
}

// reenterShared re-enters a reader's hold. If the claim is being renewed, that needs no request.
// Otherwise reenterShared first asks the store to keep the claim for longer.
func (a *acquisition) reenterShared(ctx context.Context, h *hold) error {
	c := a.client
	s := c.lock()
	if !h.check(s) {
		c.unlock()
		return errAgain
	}
	cl, now := h.claim, c.now()
	if cl.Renewed() {
		h.count++
		h.offered = false
		c.unlock()
		return nil
	}
	lease, asked := cl.Reentry(now, a.o.lease)
	cl.StepSent(now, asked, c.stored(asked))
	c.unlock()

	res, err := steps.Do(ctx, c.store, backend.Session.Renew, cl.renewRequest(c.stored(asked)))

	c.mu.Lock()
	defer c.unlock()
	cl.StepOver()
	switch {
	case err == nil && !res.Held, isDisplaced(err):
		h.lose(s, gone)
	case err != nil && h.state == live:
		return err
	}
	if !h.check(s) {
		if h.state == released {
			return errAgain // another call of the party released it
		}
		return h.overError()
	}
	h.count++
	h.offered = false
	if !a.o.fixed {
		cl.Renew()
		h.renewedFrom = h.count
	}
	h.prolong(s, now, lease, asked)
	return nil
}

// readUnder acquires a read lock for a party that holds the write lock. As long as the party holds
// the write lock, all its read locks share one claim, with the owner string of the write lock. For
// each further read lock, the request for that claim is sent again.
func (a *acquisition) readUnder(ctx context.Context, w *hold) (*hold, error) {
	c := a.client
	s := c.lock()
	inner, err := w.innerFor(s, a)
	if err != nil {
		c.unlock()
		return nil, err
	}
	sent, lease := c.now(), c.stored(a.o.lease)
	inner.Sent(sent, lease)
	c.unlock()

	res, err := inner.acquireStep(ctx, c, a.o.lease, inner.acquireRequest(lease, false))

	c.mu.Lock()
	defer c.unlock()
	if now := c.now(); inner.more.holds > 0 && now >= inner.Until() {
		inner.lose(s, inner.ranOut(s, now)) // no answer could change that
	}
	switch {
	case err != nil:
		if backend.KindOf(err) == backend.Unknown {
			inner.Stray()
		}
		if inner.dead && inner.Strays() {
			inner.takeBack(s) // the write lock has ended, so the read lock must end, too
		}
		return nil, err
	case !res.Acquired:
		w.lose(s, gone) // the store refuses the writer's read lock only if the write lock is gone
		return nil, errAgain
	case s.closed:
		return nil, ErrClosed
	case inner.dead:
		inner.Stray()
		inner.takeBack(s) // the request might have followed the release
		return nil, errAgain
	}
	inner.Granted(sent, a.o.lease)
	if c.now() >= inner.Until() {
		return nil, errLate
	}
	first := inner.more.holds == 0
	if first { // later read locks don't change these
		inner.began, inner.after = sent, uint32(s.attempts)
	}
	inner.alarm.task = inner
	h := a.joinReaders(s, s.open(inner.object), inner)
	switch {
	case first:
		inner.Want(a.o.lease, !a.o.fixed)
	case !inner.Renewed() && !a.o.fixed:
		inner.Want(a.o.lease, true)
		h.renewedFrom = h.count
	}
	s.schedule(&inner.alarm, inner.nextLook(s, sent))
	return h, nil
}

// innerFor returns the claim for the read locks of the party that has the write hold h. It creates
// the claim if there is none.
func (h *hold) innerFor(s *state, a *acquisition) (*claim, error) {
	if !h.check(s) {
		return nil, errAgain
	}
	inner := h.inner()
	if inner == nil {
		inner = &claim{object: h.claim.object, kind: a.kind, owner: h.claim.owner,
			more: &more{under: h}}
		inner.Want(a.o.lease, false)
		h.claim.more.inner = inner
	}
	if inner.dead {
		return nil, ErrLost
	}
	return inner, nil
}
