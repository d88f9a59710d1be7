package dlock

import (
	"context"
	"time"

	"github.com/seed951563bd/distsync/backend"
)

// shortestWait is the minimum time between two looks at a lock, unless something wakes the lead
// earlier.
const shortestWait = 5 * time.Millisecond

// Each wait is extended by a random time of up to longestJitter, so that clients that wait for the
// same moment don't all ask at once. A wait for the end of a lease is extended by up to endJitter.
// That is short, since only the lead of each client asks.
const (
	longestJitter = 100 * time.Millisecond
	endJitter     = 2 * time.Millisecond
)

// The first and the longest pause between polls. A release is noticed after longestPoll at the
// latest.
const (
	firstPoll   = 10 * time.Millisecond
	longestPoll = time.Second
)

// enqueue puts an acquisition at the end of its queue.
func (a *acquisition) enqueue(s *state) {
	o := s.object(a.kind, a.name)
	if o == nil { // no other call has asked the store
		if a.h == nil {
			a.h = a.newClaim(s)
		}
		o = s.open(a.h.claim.object)
	}
	if o.knownHeld(s, a) {
		a.answered = true // no need to ask the store
	}
	q := *o.waitsFor(a.kind)
	if q == nil {
		q = o.newQueue(s, a.kind)
	}
	a.joined, a.trying = false, false
	a.alarm.task = a
	if a.seen == 0 {
		a.seen = s.attempts
	}
	a.in, a.prev, a.next = q, q.last, nil
	if q.last != nil {
		q.last.next = a
	} else {
		q.first = a
	}
	q.last = a
	q.count(a, 1)
	if q.refused > 0 {
		a.exclude()
	}
	if q.placed {
		if a.h == nil {
			a.h = a.newClaim(s)
		}
		a.fresh = true
		return
	}
	if q.lead == nil {
		q.chooseLead(s)
	}
	if q.lead != a && a.budget > 0 {
		s.schedule(&a.alarm, s.now()+a.budget/newsShare)
	}
}

// turn returns the next move of a call in a queue.
func (a *acquisition) turn(s *state) move {
	q := a.in
	if q.placed {
		return a.placeTurn(s, q)
	}
	if q.lead != a || !a.fresh && !q.woken {
		q.watch(s, a)
		return a.wait()
	}
	// These flags are cleared before the attempt, never after it, so that any later event counts
	// for the next attempt. If a holder in this client is expected to hand the lock over, the
	// wake-up is stale, because it came from a release before that hold.
	stale, woken := !a.fresh && a.expects(s), q.woken
	a.fresh = false
	q.woken = stale && q.object.spare > 0 // the refusal of a spare attempt might be older
	if stale {
		return a.wait()
	}
	a.trying = true
	q.again, q.refusal = 0, refusal{}
	s.tries(q.object.key(), woken)
	return toTry
}

// triedInTurn concludes an attempt of a call in a queue. The parameter cut says whether the call
// has ended meanwhile. If triedInTurn returns neither a hold nor an error, the call keeps waiting.
func (a *acquisition) triedInTurn(cut bool, remaining time.Duration, err error) (*hold, error) {
	switch {
	case a.wasHanded():
		if err == errHeld {
			a.keptOut(remaining)
		}
		return nil, nil
	case err == nil:
		return a.h, nil
	case err == errHeld:
		a.tries.reset()
		a.keptOut(remaining)
		return nil, nil
	case err == errAgain, err == errLate, err == ErrClosed, backend.KindOf(err) == backend.Refused:
		// A call that starts over joins the end of the queue as a new acquisition. If the call was
		// just handed a hold, quit returns nil.
		return nil, a.quit(err)
	}
	if a.failed(cut, err) {
		a.reportFailure(err)
	}
	return nil, nil
}

// wasHanded reports whether a call was handed the lock, or permits, during its own attempt.
func (a *acquisition) wasHanded() bool {
	if !a.kind.Many() && !a.kind.Placed() {
		return false
	}
	a.client.mu.Lock()
	defer a.client.unlock()
	return a.handed != nil
}

// failed records that the lead's attempt failed, and schedules the next one. cut means that the
// attempt was cut short. failed returns false if there is no next attempt.
func (a *acquisition) failed(cut bool, err error) bool {
	c := a.client
	s := c.lock()
	defer c.unlock()
	q := a.in
	if q == nil || q.lead != a && !q.placed {
		a.dropClaim(s) // it has a hold, or its Locker is locked
		return false
	}
	a.answered = a.answered || q.refused > a.seen
	a.fail(cut, err)
	q.failure = a.failure
	s.schedule(&a.alarm, c.now()+a.tries.next(firstBackoff, longestPause(a.o.lease)))
	return true
}

// startsCuttable records how to end the attempt that a call is about to make, in case the call gets
// the lock without it. It returns true if the call has just been handed a hold.
func (a *acquisition) startsCuttable(cut func()) (handed bool) {
	s := a.client.lock()
	defer a.client.unlock()
	a.cut = cut
	if a.joined {
		s.later(cut)
	}
	return a.handed != nil
}

// keptOut records that someone else holds the lock. It subscribes the queue to releases, and
// schedules the lead's next look. If the attempt was spare, the answer counts for the next lead.
func (a *acquisition) keptOut(remaining time.Duration) {
	c := a.client
	s := c.lock()
	defer c.unlock()
	a.answered, a.failure = true, nil
	q, lead := a.in, a
	if a.spare {
		if q = a.handed.claim.object.queue; q != nil {
			lead = q.lead
		}
	}
	if q != nil && q.placed {
		a.tookPlace(s, q, remaining)
		return
	}
	if q == nil || q.lead != lead {
		return // it got a hold, and is woken
	}
	if q.refused == 0 {
		for w := q.first; w != nil; w = w.next {
			w.exclude()
		}
	}
	q.refused, q.failure = a.attempt, nil
	q.mustHear(s)
	s.schedule(&lead.alarm, q.nextAttempt(s, lead, remaining))
	if !q.woken {
		q.refusal = refusal{a.o.permits, a.o.limit, lead.alarm.at}
	}
}

// exclude calls a.excluded, if it is set, to report that someone else holds the lock.
func (a *acquisition) exclude() {
	if a.excluded != nil {
		a.excluded()
	}
}

// leave ends the wait of a call that can't go on, and returns its error. If the call was handed a
// hold meanwhile, leave returns errAgain.
func (a *acquisition) leave(over error) error {
	s := a.client.lock()
	if a.handed != nil {
		a.client.unlock()
		return errAgain
	}
	if q := a.in; q != nil && a.attempt == 0 && (a.failure == errNotUnlocked ||
		q.refused > a.seen) {
		a.failure = nil // earlier information is out of date
	}
	if q := a.in; q != nil && a.failure == nil {
		a.failure = q.failure
		a.answered = a.answered || q.refused > a.seen
	}
	if s.object(a.kind, a.name).excludes(s, a, nil) {
		a.answered, a.failure = true, nil // no need to ask the store
		a.here = !a.kind.Many()
	}
	if v := a.variable(); v != nil && v.hold != nil && v.hold.state == lost {
		a.failure = errNotUnlocked
	}
	a.dequeue(s)
	a.client.unlock()
	if over == ErrClosed {
		a.leaveClosed()
	}
	a.abandon()
	return a.giveUp(over)
}

// leaveClosed tells the store that a waiting call has ended because the client was closed.
// Otherwise other clients would wait until the store forgets this one.
func (a *acquisition) leaveClosed() {
	c := a.client
	c.mu.Lock()
	var cl *claim
	if a.h != nil && a.h.claim.noted {
		cl = a.h.claim
	}
	c.unlock()
	if cl == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), closePatience)
	defer cancel()
	cl.releaseOnce(ctx, c, c.stored(cl.Lease()), true)
}

// quit removes a call from the queue for good, and returns err. But if the call was just handed a
// hold, quit leaves it in the queue to take that hold, and returns nil.
func (a *acquisition) quit(err error) error {
	s := a.client.lock()
	defer a.client.unlock()
	if a.handed != nil {
		return nil
	}
	a.dequeue(s)
	a.dropClaim(s)
	return err
}

// take accepts the hold that was handed to a waiting call. If the hold is over already, take
// returns errAgain.
func (a *acquisition) take(s *state, over error) (*hold, error) {
	a.endSpare(s)
	a.dropClaim(s) // the call might have asked the store for a claim of its own
	h := a.handed
	a.handed = nil
	s.unschedule(&a.alarm)
	a.answered, a.failure = true, nil // the client knew that it held the lock itself
	switch v := a.variable(); {
	case h.state == forsaken:
		h.leaveForsaken(s)
		return nil, ErrClosed
	case over != nil:
		if h.count == 1 {
			h.claim.Forgo(s.now()) // no call has accepted it yet
			h.offered = true       // until it is released
		}
		s.background(func(c *Client) { h.release(context.Background(), c) }) // this can take long
		return nil, a.giveUp(over)
	case v != nil && h.count == 0 && a.kind.Shared():
		return h, nil // another reader of the Locker released h instead of its own hold
	case h.check(s):
		h.offered = false
		return h, nil
	case h.state == lost:
		h.releaseLost(s)
	}
	return nil, errAgain
}
