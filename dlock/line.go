package dlock

import (
	"context"
	"slices"
	"time"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/dlock/internal/protocol"
)

// Who waits for a fair lock stands in line in the store: every call by itself, with a place that ends unless it is kept. So
// nobody leads, and nothing passes inside the client. The store gives the lock to the first in line and says so; until then
// one look at a time is made for all who wait here, which keeps their places.

// Places.
const (
	linePlace    = longestPlace  // how long a place lasts that isn't kept
	keepInterval = linePlace / 3 // and when it is kept

	longestTrip = 10 * time.Second // for how long an answer is awaited, at most
)

// keeping is how the places of a queue are kept.
type keeping struct {
	look    alarm   // when that is to be done next
	looking bool    // one is under way
	soon    bool    // and another is to follow at once
	looks   backoff // where nobody tells of grants
	fails   backoff
	reports backoff // of failures, in the log
	report  instant // when the next is due

	trip time.Duration // how long the last answer took
	slow bool          // the last look was left without an answer
}

// A lineLook is the look at a line for all who wait.
type lineLook struct{ *queue }

func (l lineLook) ring(c *Client, _ instant) { c.lookAtLineLocked(l.queue) }

// lookAtLineLocked keeps the places of all who wait in a queue, now.
func (c *Client) lookAtLineLocked(q *queue) {
	if q.looking {
		q.soon = true
		return
	}
	claims := q.claims()
	if len(claims) == 0 {
		return // whoever comes is told by his own attempt
	}
	q.looking, q.soon = true, false
	c.unscheduleLocked(&q.look)
	c.backgroundLocked(func() { c.keepPlaces(q, claims) })
}

// claims returns what those who wait ask for, and have a place for.
func (q *queue) claims() []*claim {
	var claims []*claim
	for a := q.first; a != nil; a = a.next {
		if a.h != nil && a.h.claim.noted {
			claims = append(claims, a.h.claim)
		}
	}
	return claims
}

// keepPlaces makes a look.
func (c *Client) keepPlaces(q *queue, claims []*claim) {
	c.mu.Lock()
	place, patience := q.placeLasts(), q.patience()
	c.unlock()
	req := backend.PlacesRequest{Kind: claims[0].kind, Name: q.object.name, Place: place, Owners: make([]string, len(claims))}
	for i, cl := range claims {
		req.Owners[i] = cl.owner
	}
	ctx, cancel := context.WithTimeout(c.ctx, patience)
	defer cancel()
	sent := c.now()
	res, err := step(ctx, c, beside(c.liner.KeepPlaces), req)

	c.mu.Lock()
	defer c.unlock()
	q.looking = false
	q.took(c.now()-sent, ctx.Err() != nil, err)
	c.lookedLocked(claims, sent, place, err)
	if !c.waitsLocked(q) {
		return
	}
	now := c.now()
	if err != nil {
		q.failure = err
		c.reportLineLocked(q, err)
		if backend.KindOf(err) == backend.Refused {
			q.askLocked(claims) // each will hear why, and end with that
		}
		c.scheduleLocked(&q.look, now+q.fails.next(firstBackoff, keepInterval))
		return
	}
	q.fails.reset()
	q.failure = nil
	if a := q.waiting(res.Holder); a != nil {
		lease := res.Remaining
		if lease < 0 {
			lease = keepInterval // it never ends, until it is renewed
		}
		c.grantedLocked(q, a, sent, lease)
	}
	switch {
	case !c.waitsLocked(q):
	case q.soon:
		c.lookAtLineLocked(q)
	default:
		c.scheduleLocked(&q.look, c.nextKeepLocked(q, res.Remaining))
	}
}

// placeLasts returns for how long places are asked for.
func (q *queue) placeLasts() time.Duration { return linePlace + 2*q.trip }

// patience returns for how long a look may take. Places outlast two lost answers in a row.
func (q *queue) patience() time.Duration { return max(keepInterval, 2*q.trip) }

// took notes how long the store took for an answer, or that none came in time. The second time in
// a row it may be that the way there is so long.
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

// far says whether a grant for so long is heard of too late to be renewed, every time.
func (q *queue) far(lease time.Duration) bool { return q.trip >= protocol.Promised(lease)/2 }

// askLocked has those who wait for some claims ask the store themselves.
func (q *queue) askLocked(claims []*claim) {
	for a := q.first; a != nil; a = a.next {
		if a.h != nil && slices.Contains(claims, a.h.claim) {
			a.h.claim.noted = false
			a.h.claim.Stray()
			a.ask()
		}
	}
}

// lookedLocked notes that a look is over. It gave whoever had left the line meanwhile his place back, perhaps.
func (c *Client) lookedLocked(claims []*claim, sent instant, place time.Duration, err error) {
	unknown := err != nil && backend.KindOf(err) == backend.Unknown
	for _, cl := range claims {
		switch until := sent + place; {
		case unknown:
			cl.StrayUntil(until)
		case cl.dead && err == nil:
			cl.StrayUntil(c.now())
		default:
			continue
		}
		if cl.dead && !cl.leaving {
			c.takeBackLocked(cl)
		}
	}
}

// waitsLocked says whether anybody still waits in a queue.
func (c *Client) waitsLocked(q *queue) bool { return q.first != nil && !c.closed }

// waiting returns the acquisition of that owner, or nil.
func (q *queue) waiting(owner string) *acquisition {
	for a := q.first; a != nil && owner != ""; a = a.next {
		if a.h != nil && a.h.claim.owner == owner {
			return a
		}
	}
	return nil
}

// ask lets a waiter ask the store.
func (a *acquisition) ask() {
	a.fresh = true
	a.notify()
}

// nextKeepLocked returns when to look again at a line whose lock is held for so long.
func (c *Client) nextKeepLocked(q *queue, remaining time.Duration) instant {
	wait := keepInterval
	if c.notifier == nil || q.subscribed == failing || q.subscribed == denied {
		wait = q.looks.next(firstPoll, wait)
	}
	if remaining >= 0 && remaining < wait {
		wait = remaining + endJitter
	}
	return c.now() + max(wait, shortestWait)
}

// reportLineLocked logs, now and then, that a line can't be looked at, if somebody waits who won't say so himself.
func (c *Client) reportLineLocked(q *queue, err error) {
	now := c.now()
	if now < q.report || c.ctx.Err() != nil {
		return
	}
	for a := q.first; a != nil; a = a.next {
		if !a.quiet {
			q.report = now + q.reports.next(firstReport, longestReport)
			c.warnLocked("cannot lock yet", "name", q.object.name, "err", err)
			return
		}
	}
}

// placeTurnLocked says what one who waits in line is to do.
func (c *Client) placeTurnLocked(q *queue, a *acquisition) move {
	switch {
	case !a.fresh, a.barred():
	case a.h != nil && a.h.claim.noted: // an attempt could put it last
		a.fresh = false
		c.lookAtLineLocked(q)
	default:
		a.fresh, a.trying = false, true
		return toTry
	}
	c.watchLocked(q, a)
	return a.wait()
}

// barred says whether a plain call can't have the lock since what its Locker had before is lost, and not unlocked.
func (a *acquisition) barred() bool {
	v := a.variable()
	return v != nil && v.hold != nil && v.hold.state == lost
}

// placedLocked notes that the store has given a waiter a place.
func (c *Client) placedLocked(q *queue, a *acquisition, remaining time.Duration) {
	if a.barred() {
		c.abandonLocked(a)
		return
	}
	q.failure = nil
	if q.subscribed == unsubscribed && c.notifier != nil {
		c.subscribeLocked(q)
	}
	switch {
	case q.subscribed == standing && a.sent <= q.stood: // it may have been given the lock before anybody listened, and the look since then didn't ask for it
		c.lookAtLineLocked(q)
	case !q.looking:
		c.hastenLocked(&q.look, c.nextKeepLocked(q, remaining))
	}
}

// granted is told by the store who has the lock now.
func (c *Client) granted(q *queue, g backend.Grant) {
	c.mu.Lock()
	defer c.unlock()
	if a := q.waiting(g.Owner); a != nil && !c.closed {
		c.grantedLocked(q, a, g.Since.Sub(c.epoch), g.Lease)
	} // else it is given back already
}

// grantedLocked lets a waiter in which the store has given the lock for so long, if it can renew
// that before it is over. If it can't it has lost its place, or will have. A look gives the place
// back; but where the store is so far away that the next grant would come too late again, the
// waiter asks for the lock with its own lease, before all others.
func (c *Client) grantedLocked(q *queue, a *acquisition, since instant, lease time.Duration) {
	a.h.claim.noted = true
	since, lease = min(since, c.now()), min(lease, longestLease)
	end := since + protocol.Promised(lease)
	switch {
	case a.barred() && a.trying: // the answer says what becomes of it
	case a.barred():
		c.abandonLocked(a)
	case lease <= 0 || since < c.struckAt || c.begunLocked(a, since): // what was forced may be that
		c.lookAtLineLocked(q)
	case c.now()+q.trip >= end && q.far(lease):
		a.h.claim.noted, a.late = false, true
		a.h.claim.Stray()
		a.ask()
	case c.now() >= end:
		c.lookAtLineLocked(q)
	default:
		c.admitLocked(a, since, lease)
	}
}

// admitLocked lets a waiter in whom the store has given the lock, for a short time. What he wanted it for begins now: counted from
// the grant it could be over before he hears of that, each time.
func (c *Client) admitLocked(a *acquisition, since instant, lease time.Duration) {
	if v := a.variable(); v != nil && v.hold != nil && v.hold.state == live {
		c.loseLocked(v.hold, takenBy(a.h.claim.owner)) // the store can't have given away what is held
		return
	}
	h, cl := a.h, a.h.claim
	cl.noted = false
	cl.Given(since, lease, c.now()+protocol.Promised(a.o.lease))
	if a.o.keeps {
		cl.Keep(c.now()+a.o.atLeast, since)
	}
	a.h = nil
	c.dequeueLocked(a)
	a.via = ViaGranted
	c.handLocked(a, c.grantLocked(h, since))
	if a.o.keeps {
		c.hastenLocked(&cl.alarm, c.now()) // until then the store knows nothing of that
	}
	h.offered = true
}

// leavePlacesLocked gives up the places of the plain calls of a Locker: what it had is lost, and nobody gets in before it is
// unlocked.
func (c *Client) leavePlacesLocked(o *object, v *variable) {
	if o.line == nil {
		return
	}
	for a := o.line.first; a != nil; a = a.next {
		if a.variable() == v && !a.trying {
			c.abandonLocked(a)
		}
	}
}

// returnLocked has the plain calls of a Locker that was unlocked stand in line, if they don't already.
func (c *Client) returnLocked(q *queue, v *variable) {
	for a := q.first; a != nil; a = a.next {
		if a.variable() == v && (a.h == nil || !a.h.claim.noted) && !a.trying {
			a.ask()
		}
	}
}
