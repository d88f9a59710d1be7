package dlock

import (
	"context"
	"slices"
	"time"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/dlock/internal/protocol"
	"github.com/seed951563bd/distsync/dlock/internal/steps"
)

// Each call that waits for a fair lock has its own place in a line in the store. The store gives
// the lock to the first call in line, and notifies its client. So a client's waiting calls have no
// leader, and don't hand the lock over among themselves. A place expires unless it is renewed. With
// a single request, called a look, the client renews the places of all its calls that wait for the
// lock. The answer to a look also says who holds the lock.

// Times for places in line.
const (
	linePlace    = longestPlace  // how long a place lasts without renewal
	keepInterval = linePlace / 3 // how often places are renewed

	longestTrip = 10 * time.Second // longest wait for an answer
)

// A lineLook is an alarm task that looks at a line for all calls that wait in it.
type lineLook struct{ *queue }

func (l lineLook) ring(s *state, _ instant) { l.queue.lookAtLine(s) }

// lookAtLine starts a look, which renews the places of all calls in a queue. If a look is under
// way, another one follows it.
func (q *queue) lookAtLine(s *state) {
	if q.looking {
		q.soon = true
		return
	}
	claims := q.claims()
	if len(claims) == 0 {
		return // new calls make attempts of their own
	}
	q.looking, q.soon = true, false
	s.unschedule(&q.look)
	s.background(func(c *Client) { q.keepPlaces(c, claims) })
}

// claims returns the claims of the waiting calls that have a place.
func (q *queue) claims() []*claim {
	var claims []*claim
	for a := q.first; a != nil; a = a.next {
		if a.h != nil && a.h.claim.noted {
			claims = append(claims, a.h.claim)
		}
	}
	return claims
}

// keepPlaces makes one look, which renews the places of the given claims. It also schedules the
// next look.
func (q *queue) keepPlaces(c *Client, claims []*claim) {
	c.mu.Lock()
	place, patience := q.placeLasts(), q.patience()
	c.unlock()
	req := backend.PlacesRequest{Kind: backend.Kind(claims[0].kind), Name: q.object.name,
		Place: place, Owners: make([]string, len(claims))}
	for i, cl := range claims {
		req.Owners[i] = cl.owner
	}
	ctx, cancel := context.WithTimeout(c.ctx, patience)
	defer cancel()
	sent := c.now()
	res, err := steps.Do(ctx, c.store, steps.Of(c.store.Liner.KeepPlaces), req)

	s := c.lock()
	defer c.unlock()
	q.looking = false
	q.took(c.now()-sent, ctx.Err() != nil, err)
	s.looked(claims, sent, place, err)
	if !q.waits(s) {
		return
	}
	now := c.now()
	if err != nil {
		q.failure = err
		q.reportFailure(s, err)
		if backend.KindOf(err) == backend.Refused {
			q.ask(claims) // each call ends with the error of its own attempt
		}
		s.schedule(&q.look, now+q.fails.next(firstBackoff, keepInterval))
		return
	}
	q.fails.reset()
	q.failure = nil
	if a := q.waiting(res.Holder); a != nil {
		lease := res.Remaining
		if lease < 0 {
			lease = keepInterval // unknown, so assume a short lease, which is renewed soon
		}
		q.grant(s, a, sent, lease)
	}
	switch {
	case !q.waits(s):
	case q.soon:
		q.lookAtLine(s)
	default:
		s.schedule(&q.look, q.nextKeep(s, res.Remaining))
	}
}

// placeLasts returns the lease of a place.
func (q *queue) placeLasts() time.Duration { return linePlace + 2*q.trip }

// patience returns how long to wait for the answer to a look. If that answer is lost, the next look
// still renews the places in time, unless a round trip takes about 2 s or longer.
func (q *queue) patience() time.Duration { return max(keepInterval, 2*q.trip) }

// took updates q.trip, the estimate of a round trip to the store, when a look has been answered or
// given up. The parameter trip is the time since the look was sent. The parameter late matters only
// if there was no answer: it reports whether the wait timed out. Two timeouts in a row increase the
// estimate.
func (q *queue) took(trip time.Duration, late bool, err error) {
	switch {
	case err == nil:
		q.trip, q.slow = min(trip, longestTrip/2), false
	case !late:
	case q.slow:
		q.trip = min(q.patience(), longestTrip/2)
	default:
		q.slow = true
	}
}

// far reports whether the store is so far away that a grant with the given lease always comes too
// late to be renewed.
func (q *queue) far(lease time.Duration) bool { return q.trip >= protocol.Promised(lease)/2 }

// ask makes the waiting calls with the given claims send requests of their own to the store.
func (q *queue) ask(claims []*claim) {
	for a := q.first; a != nil; a = a.next {
		if a.h != nil && slices.Contains(claims, a.h.claim) {
			a.h.claim.noted = false
			a.h.claim.Stray()
			a.ask()
		}
	}
}

// looked records which places a look might have renewed in the store. If one of them belongs to a
// call that has left the line in the meantime, looked removes that place in the background.
func (s *state) looked(claims []*claim, sent instant, place time.Duration, err error) {
	unknown := err != nil && backend.KindOf(err) == backend.Unknown
	for _, cl := range claims {
		switch until := sent + place; {
		case unknown:
			cl.StrayUntil(until)
		case cl.dead && err == nil:
			cl.StrayUntil(s.now())
		default:
			continue
		}
		if cl.dead && !cl.leaving {
			cl.takeBack(s)
		}
	}
}

// waits reports whether a queue still has waiting calls.
func (q *queue) waits(s *state) bool { return q.first != nil && !s.closed }

// waiting returns the waiting call with the given owner string, or nil.
func (q *queue) waiting(owner string) *acquisition {
	for a := q.first; a != nil && owner != ""; a = a.next {
		if a.h != nil && a.h.claim.owner == owner {
			return a
		}
	}
	return nil
}

// ask makes a waiting call send the store a request of its own.
func (a *acquisition) ask() {
	a.fresh = true
	a.notify()
}

// nextKeep returns when to look at a line again. remaining is how long the current hold lasts
// without renewal; it is negative if unknown.
func (q *queue) nextKeep(s *state, remaining time.Duration) instant {
	wait := keepInterval
	if !s.notifies || q.subscribed == failing || q.subscribed == denied {
		wait = q.looks.next(firstPoll, wait)
	}
	if remaining >= 0 && remaining < wait {
		wait = remaining + endJitter
	}
	return s.now() + max(wait, shortestWait)
}

// reportFailure occasionally logs that looks at a line fail. It logs nothing if every waiting call
// has a time limit, since such calls return the error.
func (q *queue) reportFailure(s *state, err error) {
	now := s.now()
	if now < q.report || s.closed {
		return
	}
	for a := q.first; a != nil; a = a.next {
		if !a.quiet {
			q.report = now + q.reports.next(firstReport, longestReport)
			s.warn("cannot lock yet", "name", q.object.name, "err", err)
			return
		}
	}
}

// placeTurn returns the next move of a call in line.
func (a *acquisition) placeTurn(s *state, q *queue) move {
	switch {
	case !a.fresh, a.barred():
	case a.h != nil && a.h.claim.noted: // an attempt could move the call to the end of the line
		a.fresh = false
		q.lookAtLine(s)
	default:
		a.fresh, a.trying = false, true
		return toTry
	}
	q.watch(s, a)
	return a.wait()
}

// barred reports whether a plain call can't have the lock yet, because the last hold of its Locker
// was lost and must be unlocked first.
func (a *acquisition) barred() bool {
	v := a.variable()
	return v != nil && v.hold != nil && v.hold.state == lost
}

// tookPlace records that the store has given a waiting call a place in line.
func (a *acquisition) tookPlace(s *state, q *queue, remaining time.Duration) {
	if a.barred() {
		a.dropClaim(s)
		return
	}
	q.failure = nil
	q.mustHear(s)
	switch {
	case q.subscribed == standing && a.sent <= q.stood:
		// The store might have granted the lock to this call before the subscription began, so that
		// no notification comes. The last look didn't ask about this call, so look again.
		q.lookAtLine(s)
	case !q.looking:
		s.hasten(&q.look, q.nextKeep(s, remaining))
	}
}

// granted is called when the store reports that it has given the lock to a call in line.
func (q *queue) granted(c *Client, g backend.Grant) {
	s := c.lock()
	defer c.unlock()
	if a := q.waiting(g.Owner); a != nil && !s.closed {
		q.grant(s, a, g.Since.Sub(c.epoch), g.Lease)
	} // otherwise it has been released already
}

// grant processes the store's grant of the lock to a waiting call, for the given lease. If the call
// can renew that lease in time, it becomes the holder. Otherwise its place in line is lost, or soon
// will be, and a look restores the place. If the store is so far away that later grants would also
// come too late, a look doesn't help. Instead, the call makes an attempt, which asks for the lock
// with the caller's lease. The store can put this attempt ahead of all others.
func (q *queue) grant(s *state, a *acquisition, since instant, lease time.Duration) {
	a.h.claim.noted = true
	since, lease = min(since, s.now()), min(lease, longestLease)
	end := since + protocol.Promised(lease)
	switch {
	case a.barred() && a.trying: // the answer to its attempt decides
	case a.barred():
		a.dropClaim(s)
	case lease <= 0 || since < s.struckAt || a.begunSince(s, since): // it may be the forced grant
		q.lookAtLine(s)
	case s.now()+q.trip >= end && q.far(lease):
		a.h.claim.noted, a.late = false, true
		a.h.claim.Stray()
		a.ask()
	case s.now() >= end:
		q.lookAtLine(s)
	default:
		a.admit(s, since, lease)
	}
}

// admit makes a waiting call the holder of the lock, which the store has granted to it for a short
// time. The lease that the call asked for begins now. If it had begun with the grant, it could end
// before the call learns of the grant.
func (a *acquisition) admit(s *state, since instant, lease time.Duration) {
	if v := a.variable(); v != nil && v.hold != nil && v.hold.state == live {
		v.hold.lose(s, takenBy(a.h.claim.owner)) // a grant means that the old hold is gone
		return
	}
	h, cl := a.h, a.h.claim
	cl.noted = false
	cl.Given(since, lease, s.now()+protocol.Promised(a.o.lease))
	if a.o.keeps {
		cl.Keep(s.now()+a.o.atLeast, since)
	}
	a.h = nil
	a.dequeue(s)
	a.via = ViaGranted
	a.hand(s, h.grant(s, since))
	if a.o.keeps {
		s.hasten(&cl.alarm, s.now()) // only a renewal tells the store about Keep
	}
	h.offered = true
}

// leavePlaces gives up the places of the plain calls of Lockers whose holds are lost. None of these
// calls can get the lock before the lost hold is unlocked.
func (q *queue) leavePlaces(s *state) {
	for a := q.first; a != nil; a = a.next {
		if a.barred() && !a.trying {
			a.dropClaim(s)
		}
	}
}

// askForPlaces is called after a Locker has been unlocked. It makes the plain calls that have no
// place in line ask the store for one.
func (q *queue) askForPlaces() {
	for a := q.first; a != nil; a = a.next {
		if v := a.variable(); v != nil && v.hold == nil && (a.h == nil || !a.h.claim.noted) &&
			!a.trying {
			a.ask()
		}
	}
}
