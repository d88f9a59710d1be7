package dlock

import (
	"context"
	"time"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/dlock/internal/protocol"
)

// Calls that wait for a lock stand in a queue of the client. These functions only keep the queues.
// The rules in lead.go and line.go decide which call asks the store, and when.

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

// A subscription records whether a queue gets the store's messages about releases of its lock, and
// when that began.
type subscription struct {
	subscribed subState
	cancel     context.CancelFunc   // ends a pending Subscribe call, or nil
	sub        backend.Subscription // nil until the subscription is active
	stood      instant              // when the subscription became active
}

type subState uint8

const (
	unsubscribed subState = iota
	due                   // settle will subscribe
	subscribing
	failing  // the last attempt failed, and another follows
	denied   // the store refuses, so the calls poll
	standing // the subscription is active
)

// keeping is the state of a queue that keeps places in line.
type keeping struct {
	look    alarm   // of the next look
	looking bool    // a look is under way
	soon    bool    // whether another look must follow the one under way
	looks   backoff // pauses between looks if the store sends no notifications
	fails   backoff
	reports backoff // pauses between failures in the log
	report  instant // when the next failure may be logged

	trip time.Duration // how long the last answer took
	slow bool          // the last look wasn't answered in time
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

// slot returns a pointer to the object's field that refers to the queue.
func (q *queue) slot() **queue {
	if q.placed {
		return &q.object.line
	}
	return &q.object.queue
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

// parked reports whether an acquisition waits for its Locker to be unlocked.
func (a *acquisition) parked() bool {
	v := a.variable()
	return v != nil && v.hold != nil && !a.kind.Shared()
}

// variable returns the call's party if this is a plain call of a Locker. Otherwise it returns nil.
func (c *call) variable() *variable {
	v, _ := c.party.(*variable)
	return v
}

// notify wakes a waiting call, so that it checks for changes.
func (a *acquisition) notify() {
	select {
	case a.signal <- struct{}{}:
	default:
	}
}

// A move is what a call does next.
type move uint8

const (
	toWait    move = iota // until it is woken
	toTry                 // to ask the store for the lock
	toReenter             // to ask the store for one more count of its party's hold
	toLeave               // to leave the queue, since it can't go on
	toEnd                 // nothing: it has the lock, or can't go on
)

// wait makes the channel that wakes the call, and returns toWait.
func (a *acquisition) wait() move {
	if a.signal == nil {
		a.signal = make(chan struct{}, 1)
	}
	return toWait
}

// hand passes a hold to a call that has left the queue. If an attempt of that call is under way,
// its answer might never come, so hand sets the call's alarm, which soon ends the attempt.
func (a *acquisition) hand(s *state, h *hold) {
	a.handed = h
	a.notify()
	if a.trying && a.kind.Many() {
		a.spare = true
		h.claim.object.spare++
	}
	if a.trying && a.cut != nil {
		s.schedule(&a.alarm, s.now()+handedPatience)
	}
}

// handedPatience is the longest time that a call waits for the answer to its attempt once it has
// been handed a hold. Then the attempt is cut. That is dear: the store might still carry it out, so
// the claim is taken back again and again, until its lease is over.
const handedPatience = 4 * shortestWait

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

// mustHear makes settle subscribe a queue to the store's messages, unless it already has.
func (q *queue) mustHear(s *state) {
	if q.subscribed == unsubscribed && s.notifies {
		q.subscribed = due
		q.object.mark(s, markChanged)
	}
}

// placeLease returns how long the store remembers, after each request, that this call is waiting to
// write. It returns 0 if the call doesn't want to write.
func (a *acquisition) placeLease() time.Duration {
	if !a.kind.Notes() {
		return 0
	}
	return min(longestPlace, max(a.o.lease, shortestPlace))
}

// The store remembers a waiting writer after each request, for the length of the lease that the
// writer wants, but within these limits. The first call in the queue repeats its request three
// times in that period.
const (
	longestPlace  = 3 * time.Second
	shortestPlace = 300 * time.Millisecond
)

// A message is the state of the store's message about this client's own release.
type message uint8

const (
	unheard message = iota // this client doesn't listen
	toCome                 // it is expected
	heard                  // it has come
)

// postpone is called just before the last release of a claim is sent. It delays the next request of
// the first call in the queue until that release is answered, but at most for a third of the lease.
// Without the delay, that call would be ahead of other clients, which wait for a notification from
// the store. postpone returns the queue.
func (cl *claim) postpone(s *state) *queue {
	q := cl.queue(s)
	if q == nil {
		return nil
	}
	q.releasing++
	if a := q.lead; a != nil && a.alarm.place > 0 {
		s.schedule(&a.alarm, max(a.alarm.at, s.now()+cl.Lease()/3))
	}
	return q
}

// released records that a last release is over. It returns whether the store's message about the
// release has arrived, or is expected.
func (q *queue) released() message {
	own := unheard
	switch {
	case q.heard:
		own = heard
	case q.subscribed == standing && q.first != nil:
		own = toCome
	}
	q.releasing--
	if q.releasing == 0 {
		q.heard = false
	}
	return own
}

// staysTaken records that a claim was released but its lock stays taken for a while. Waiting calls
// look again only after that time.
func (cl *claim) staysTaken(s *state) {
	o := cl.present(s)
	if o == nil {
		return
	}
	over := s.now() + kept(cl.Left(s.now())) + endJitter
	if q := o.line; q != nil {
		q.soon = q.soon || q.looking // the current look might have missed it
		s.hasten(&q.look, over)
	}
	switch q := o.queue; {
	case q == nil || q.lead == nil:
	case cl.kind.Many():
		o.mark(s, markFree) // the lead might not have asked yet
	default:
		if q.again == 0 || over < q.again {
			q.again = over // an attempt under way might predate this
		}
		s.hasten(&q.lead.alarm, over)
	}
}
