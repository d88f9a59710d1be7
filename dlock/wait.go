package dlock

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/dlock/internal/protocol"
)

// A queue holds the calls of this client that wait for one lock, in order of arrival. The first
// call whose Locker isn't locked is the lead. It asks the store when it is woken, and also polls. A
// queue and its subscription exist only while a call waits.
type queue struct {
	object      *object
	first, last *acquisition
	length      int
	placed      bool         // calls have places, and there's no lead
	partners    int          // calls whose party can have other calls
	writers     int          // calls that want the lock exclusively
	lead        *acquisition // call that asks the store, or nil
	woken       bool         // there is news since the lead's attempt
	again       instant      // latest time for the lead's next look
	releasing   int          // how many last releases are under way
	heard       bool         // a message came during such a release
	subscription
	*keeping // nil if there are no places
	overdue  alarm
	refused  uint64 // the last refused attempt's number, or 0
	refusal  refusal
	failure  error // the lead's last error; nil once answered
}

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

// queueUp waits in the queue. It returns when the call has the lock, when another call of the party
// has acquired it, or when the call can't go on.
func (a *acquisition) queueUp(ctx context.Context) (*hold, error) {
	if !a.enqueue() {
		return nil, errAgain
	}
	for {
		switch a.turn() {
		case toLeave:
			a.abandon()
			return nil, errAgain
		case toTake:
			return a.take(ctx)
		case toEnd:
			return a.leave(ctx)
		case toTry:
			if ctx.Err() != nil {
				return a.leave(ctx) // the next lead tries
			}
			if h, err := a.tryInTurn(ctx); err != nil || h != nil {
				return h, err
			}
		case toWait:
			select {
			case <-a.signal:
			case <-ctx.Done():
				return a.leave(ctx)
			}
		}
	}
}

// enqueue puts an acquisition at the end of its queue. It returns false if the party has acquired
// the lock in the meantime, and so can re-enter.
func (a *acquisition) enqueue() bool {
	c := a.client
	s := c.lock()
	defer c.unlock()
	if a.reenters(s) {
		return false
	}
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
		return true
	}
	if q.lead == nil {
		q.chooseLead(s)
	}
	if q.lead != a && a.budget > 0 {
		s.schedule(&a.alarm, c.now()+a.budget/newsShare)
	}
	return true
}

// newQueue returns an empty queue.
func (o *object) newQueue(s *state, kind protocol.Kind) *queue {
	q := s.spare
	if q == nil {
		q = new(queue)
	}
	s.spare = nil
	*q = queue{object: o, placed: kind.Placed()}
	if q.placed {
		q.keeping = new(keeping)
		q.look.task = lineLook{q}
	}
	*o.waitsFor(kind) = q
	return q
}

// knownHeld reports whether this client itself holds the lock in a way that excludes a waiting
// call.
func (o *object) knownHeld(s *state, a *acquisition) bool {
	if a.kind.Many() {
		return o.exhausts(a)
	}
	now := s.now()
	if o.alone != nil && o.alone.valid(now) {
		return true
	}
	if a.kind.Shared() || o.reading == nil {
		return false
	}
	for _, h := range o.reading.holds {
		if h.valid(now) {
			return true
		}
	}
	return false
}

// dequeue removes an acquisition from its queue, if it is in one.
func (a *acquisition) dequeue(s *state) {
	q := a.in
	if q == nil {
		return
	}
	if a.prev != nil {
		a.prev.next = a.next
	} else {
		q.first = a.next
	}
	if a.next != nil {
		a.next.prev = a.prev
	} else {
		q.last = a.prev
	}
	a.in, a.prev, a.next = nil, nil, nil
	if q.lead == a {
		q.lead = nil
	}
	q.count(a, -1)
	s.unschedule(&a.alarm)
	q.object.mark(s, markChanged)
}

// chooseLead chooses the lead. A new lead is woken to try at once, unless it is likely to be handed
// the lock, the store would refuse it, or this client lets others have a turn.
func (q *queue) chooseLead(s *state) {
	if q.placed || q.lead != nil && q.lead.committed() {
		return
	}
	a, before := q.firstIn(), q.lead
	if a == before {
		return
	}
	if before != nil && !before.trying {
		before.dropClaim(s) // its Locker is locked; it stops asking
	}
	q.lead = a
	if a == nil {
		return
	}
	q.again = 0
	a.fresh = !a.expects(s) && !q.wouldRefuse(s, a) && !q.sitsOut(s)
	if a.fresh || q.woken {
		a.notify()
	}
}

// next returns the first call, in order of arrival, whose Locker isn't locked. A Locker also counts
// as unlocked if its hold is h, or is being released.
func (q *queue) next(h *hold) *acquisition {
	for a := q.first; a != nil; a = a.next {
		if v := a.variable(); v == nil || v.hold == nil || v.hold == h ||
			v.hold.state == released || a.kind.Shared() {
			return a
		}
	}
	return nil
}

// committed reports whether an acquisition must stay the lead. It must stay while its request is
// under way. If the answer to a request was lost, it must also stay as long as the store might have
// granted that request, since no other call would repeat it.
func (a *acquisition) committed() bool {
	return !a.parked() && (a.trying || a.h != nil && a.h.claim.Strays())
}

// firstIn returns the call that should be the lead: the first call of the queue that isn't parked,
// or nil if all calls are parked. But if the head of the queue is parked and the current lead is
// not, the current lead stays the lead.
func (q *queue) firstIn() *acquisition {
	switch v := q.first.variable(); {
	case !q.first.parked():
		return q.first
	case int(v.waiting) == q.length:
		return nil // all calls come from that Locker
	case q.lead != nil && !q.lead.parked():
		return q.lead // saves a walk past all parked calls
	}
	for a := q.first; a != nil; a = a.next {
		if !a.parked() {
			return a
		}
	}
	return nil
}

// count updates the queue's counts for a call that joins the queue (n is 1) or leaves it (n is -1).
func (q *queue) count(a *acquisition, n int) {
	q.length += n
	if a.partners {
		q.partners += n
	}
	if !a.kind.Shared() {
		q.writers += n
	}
	if v := a.variable(); v != nil {
		v.waiting += int32(n)
	}
}

// parked reports whether an acquisition waits for its Locker to be unlocked.
func (a *acquisition) parked() bool {
	v := a.variable()
	return v != nil && v.hold != nil && !a.kind.Shared()
}

// expects reports whether a holder in this client is likely to hand the lock over to this call, the
// lead of its queue. If so, the lead looks again when the hand-over time ends.
func (a *acquisition) expects(s *state) bool {
	o := a.in.object
	if a.kind.Many() {
		return o.exhausts(a) // the client's own releases wake the call
	}
	cl := o.passing()
	if cl == nil || s.handover == 0 || !cl.passesTo(a) {
		return false
	}
	now, until := s.now(), cl.handoverEnd(s)+shortestWait
	if now >= until || !cl.passes(now) {
		return false
	}
	s.hasten(&a.alarm, until)
	return true
}

// wouldRefuse reports whether the store would refuse a new lead, for the same reason as the
// previous lead. If so, the new lead looks again when the previous lead would have.
func (q *queue) wouldRefuse(s *state, a *acquisition) bool {
	if q.woken || !q.refusal.refuses(a) {
		return false
	}
	s.hasten(&a.alarm, q.refusal.again)
	return true
}

// newsShare determines when a call that isn't the lead finds out whether the lock is held, so that
// its error can say so. If its wait is bounded, it does that after 1/newsShare of the wait.
const newsShare = 4

// inquire makes the lead ask the store, unless the store has refused an attempt that was made after
// the one with the given number.
func (q *queue) inquire(seen uint64) {
	if q.lead != nil && q.refused <= seen {
		q.lead.fresh = true
		q.lead.notify()
	}
}

// ring makes a lead try again. For any other call, it finds out whether the lock is held.
func (a *acquisition) ring(s *state, now instant) {
	if a.handed != nil {
		s.later(a.cut)
		return
	}
	switch q := a.in; {
	case q.lead == a, q.placed:
		a.fresh = true
		a.notify()
	case q.object.knownHeld(s, a):
		a.answered = true // no need to ask the store
	default:
		q.inquire(a.seen)
	}
}

// watch sets the alarm for reporting that a call has waited for longer than a lease.
func (q *queue) watch(s *state, a *acquisition) {
	if a.since == 0 {
		a.since = a.began
	}
	if q.overdue.task == nil {
		q.overdue.task = q
		s.schedule(&q.overdue, a.since+s.lease)
	}
}

// ring logs, once, that a call has waited for longer than a lease for a lock that this client
// itself holds.
func (q *queue) ring(s *state, now instant) {
	if began := q.first.since; began == 0 || now < began+s.lease {
		s.schedule(&q.overdue, max(began, now-s.lease/2)+s.lease)
		return
	}
	switch {
	case q.first.parked():
		s.warn("waiting for longer than a lease for a Locker that is locked", "name", q.object.name)
	case q.object.knownHeld(s, q.first):
		s.warn("waiting for longer than a lease for a lock that this client holds itself", "name",
			q.object.name)
	default:
		s.schedule(&q.overdue, now+s.lease)
	}
}

// notify wakes a waiting call, so that it checks for changes.
func (a *acquisition) notify() {
	select {
	case a.signal <- struct{}{}:
	default:
	}
}

// slot returns a pointer to the object's field that refers to the queue.
func (q *queue) slot() **queue {
	if q.placed {
		return &q.object.line
	}
	return &q.object.queue
}

// dissolve drops an empty queue.
func (q *queue) dissolve(s *state) {
	*q.slot() = nil
	s.unschedule(&q.overdue)
	if q.placed {
		s.unschedule(&q.look)
	}
	q.lead = nil
	if q.subscribed == unsubscribed && q.releasing == 0 && !q.placed {
		s.spare = q // nothing else refers to it
		return
	}
	if q.cancel != nil {
		s.later(q.cancel)
	}
	if q.sub != nil {
		s.later(q.sub.Close)
	}
}

// wake wakes the lead of a queue, so that it tries again.
func (q *queue) wake(s *state) {
	q.woken, q.refusal = true, refusal{}
	q.chooseLead(s)
	if q.lead != nil {
		q.lead.notify()
	}
}

// letPartiesEnter removes and wakes the calls whose parties have the lock by now, since they can
// re-enter it.
func (q *queue) letPartiesEnter(s *state) {
	for a := q.first; a != nil && q.partners > 0; {
		next := a.next
		if a.partners && q.object.isHeldBy(a.party) {
			a.dequeue(s)
			a.joined = true
			a.notify()
			if a.cut != nil {
				s.later(a.cut)
			}
		}
		a = next
	}
}

type move uint8

const (
	toWait move = iota
	toTry
	toTake  // the call was handed a hold
	toLeave // the call can re-enter
	toEnd   // the client is closed
)

// turn returns the next move of a waiting call.
func (a *acquisition) turn() move {
	c := a.client
	s := c.lock()
	defer c.unlock()
	a.trying = false
	switch {
	case a.joined:
		return toLeave
	case a.handed != nil:
		return toTake
	case c.ctx.Err() != nil:
		return toEnd
	}
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
	a.fresh, q.woken = false, false
	if stale {
		return a.wait()
	}
	a.trying = true
	q.again, q.refusal = 0, refusal{}
	s.tries(q.object.key(), woken)
	return toTry
}

// wait makes the channel that wakes the call, and returns toWait.
func (a *acquisition) wait() move {
	if a.signal == nil {
		a.signal = make(chan struct{}, 1)
	}
	return toWait
}

// tryInTurn makes the lead's next attempt. If it returns neither a hold nor an error, the call
// keeps waiting.
func (a *acquisition) tryInTurn(ctx context.Context) (*hold, error) {
	remaining, err := a.tryUntilJoined(ctx)
	switch {
	case a.wasHanded():
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
	if a.failed(ctx.Err() != nil, err) {
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

// tryUntilJoined makes an attempt, but gives it up if another call of the party acquires the lock.
func (a *acquisition) tryUntilJoined(ctx context.Context) (time.Duration, error) {
	c := a.client
	if (a.variable() != nil && !a.kind.Placed()) || c.store.Prompt() {
		return a.tryOnce(ctx)
	}
	ctx, cancel := withCancelCause(ctx)
	cut := func() { cancel(nil) }
	defer cut()
	s := c.lock()
	a.cut = cut
	handed := a.handed != nil
	if a.joined {
		s.later(cut) // it joined after turn was called
	}
	c.unlock()
	if handed {
		return 0, errAgain // the call was just handed a hold
	}
	return a.tryOnce(ctx)
}

// keptOut records that someone else holds the lock. It subscribes the queue to releases, and
// schedules the lead's next look.
func (a *acquisition) keptOut(remaining time.Duration) {
	c := a.client
	s := c.lock()
	defer c.unlock()
	a.answered, a.failure = true, nil
	q := a.in
	if q != nil && q.placed {
		a.tookPlace(s, q, remaining)
		return
	}
	if q == nil || q.lead != a {
		return // it got a hold, and is woken
	}
	if q.refused == 0 {
		for w := q.first; w != nil; w = w.next {
			w.exclude()
		}
	}
	q.refused, q.failure = a.attempt, nil
	if q.subscribed == unsubscribed && c.notifies {
		q.subscribe(s)
	}
	s.schedule(&a.alarm, q.nextAttempt(s, a, remaining))
	if !q.woken {
		q.refusal = refusal{a.o.permits, a.o.limit, a.alarm.at}
	}
}

// exclude calls a.excluded, if it is set, to report that someone else holds the lock.
func (a *acquisition) exclude() {
	if a.excluded != nil {
		a.excluded()
	}
}

// nextAttempt returns the time at which the lead looks next if nothing wakes it earlier. The
// parameter remaining is how much longer someone else holds the lock, according to the store.
func (q *queue) nextAttempt(s *state, a *acquisition, remaining time.Duration) instant {
	now := s.now()
	wait, jitter := longestPause(a.o.lease), longestJitter
	if place := a.placeLease(); place > 0 {
		wait = min(wait, place/3)
	}
	if !s.notifies || q.subscribed == failing || q.subscribed == denied {
		wait = a.polls.next(firstPoll, min(wait, longestPoll))
	}
	// If the lease might end earlier, look at its end, so that the lock doesn't stay free until the
	// planned look.
	if remaining >= 0 && remaining < wait+min(wait/10, jitter) {
		wait, jitter = remaining+time.Millisecond, endJitter
	}
	wait = max(wait, shortestWait)
	at := now + wait + rand.N(min(wait/10, jitter)+1)
	if q.again > 0 {
		// since the answer, this client may have released the lock and let others go first
		at = min(at, max(now, q.again))
	}
	return at
}

// leave ends the wait of a call that can't go on, and returns its error.
func (a *acquisition) leave(ctx context.Context) (*hold, error) {
	c := a.client
	over := c.over(ctx)
	s := c.lock()
	if a.handed != nil {
		c.unlock()
		return a.take(ctx)
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
	c.unlock()
	if over == ErrClosed {
		a.leaveClosed()
	}
	a.abandon()
	return nil, a.giveUp(over)
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
