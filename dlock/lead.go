package dlock

import (
	"math/rand/v2"
	"time"
)

// Of the calls in a queue, the lead alone asks the store. These are the rules for which call leads,
// and when it asks.

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

// committed reports whether an acquisition must stay the lead. It must stay while its request is
// under way. If the answer to a request was lost, it must also stay as long as the store might have
// granted that request, since no other call would repeat it.
func (a *acquisition) committed() bool {
	return !a.parked() && (a.trying || a.h != nil && a.h.claim.Strays())
}

// expects reports whether a holder in this client is likely to hand the lock over to this call, the
// lead of its queue. If so, the lead looks again when the hand-over time ends.
func (a *acquisition) expects(s *state) bool {
	o := a.in.object
	if a.kind.Many() {
		if o.spare > 0 && a.budget > 0 { // its wait might end earlier
			now := s.now()
			s.hasten(&a.alarm, now+max(a.began+a.budget-now, 0)/newsShare)
		}
		// The client's own releases, and the ends of spare attempts, wake the call.
		return o.exhausts(a) || o.spare > 0
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

// endSpare records that a call's spare attempt is over, and has the lead chosen again. An attempt
// is spare if its call was handed permits meanwhile. If a spare attempt is granted, its permits go
// to the next call. So while there is one, the lead waits. Otherwise each lead that is handed
// permits would leave one more attempt behind, and a slow store would get ever slower.
func (a *acquisition) endSpare(s *state) {
	if !a.spare {
		return
	}
	a.spare = false
	o := a.handed.claim.object
	o.spare--
	if o.queue != nil {
		o.queue.lead = nil
	}
	o.mark(s, markChanged)
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

// wake wakes the lead of a queue, so that it tries again.
func (q *queue) wake(s *state) {
	q.woken, q.refusal = true, refusal{}
	q.chooseLead(s)
	if q.lead != nil {
		q.lead.notify()
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

// knownHeld reports whether this client itself holds the lock in a way that excludes a waiting
// call.
func (o *object) knownHeld(s *state, a *acquisition) bool {
	if a.kind.Many() {
		return o.exhausts(a)
	}
	if o.alone != nil && o.alone.valid(s.now()) {
		return true
	}
	if a.kind.Shared() || o.reading == nil {
		return false
	}
	now := s.now()
	for _, h := range o.reading.holds {
		if h.valid(now) {
			return true
		}
	}
	return false
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
