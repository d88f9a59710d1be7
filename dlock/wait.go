package dlock

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/seed951563bd/distsync/backend"
)

// A queue is who in this client waits for one lock, first come first served. One of them talks to the
// store, by itself and when it is woken: the first whose Locker isn't locked already. There is a
// queue, and its subscription, only while somebody waits.
type queue struct {
	object      *object
	first, last *acquisition
	length      int
	placed      bool         // who waits has a place in the store: nobody leads
	partners    int          // how many whose party others may call for
	writers     int          // how many want it for themselves, and not to share it
	lead        *acquisition // who talks to the store; nil if nobody does
	woken       bool         // something happened since the lead's last attempt was sent
	again       instant      // when it looks again whatever that is answered; 0: it isn't bound to
	releasing   int          // last releases of this client that are under way
	heard       bool         // and a message came since
	subscription
	*keeping // nil if there are no places
	overdue  alarm
	refused  uint64 // the number of the last attempt that was answered
	refusal  refusal
	failure  error // of the lead's last attempt; nil if it was answered
}

// shortestWait is the least time between two looks at a lock that were not asked for by a wake-up.
const shortestWait = 5 * time.Millisecond

// What is added to a wait so that clients which wait for the same moment don't come at the same
// moment: for the end of a lease little, since there is one lead a client.
const (
	longestJitter = 100 * time.Millisecond
	endJitter     = 2 * time.Millisecond
)

// A lead that must poll begins with short pauses, and never lets a release wait for long.
const (
	firstPoll   = 10 * time.Millisecond
	longestPoll = time.Second
)

// queueUp waits in the queue until the lock is acquired or handed on, the party has it in another
// way, or the call cannot go on.
func (c *Client) queueUp(ctx context.Context, a *acquisition) (*hold, error) {
	if !c.enqueue(a) {
		return nil, errAgain
	}
	for {
		switch c.turn(a) {
		case toLeave:
			c.abandon(a)
			return nil, errAgain
		case toTake:
			return c.take(ctx, a)
		case toEnd:
			return c.leave(ctx, a)
		case toTry:
			if ctx.Err() != nil {
				return c.leave(ctx, a) // whoever follows tries
			}
			if h, err := c.tryInTurn(ctx, a); err != nil || h != nil {
				return h, err
			}
		case toWait:
			select {
			case <-a.signal:
			case <-ctx.Done():
				return c.leave(ctx, a)
			}
		}
	}
}

// enqueue puts an acquisition at the end of its queue, unless its party can re-enter by now.
func (c *Client) enqueue(a *acquisition) bool {
	c.mu.Lock()
	defer c.unlock()
	if c.reentersLocked(a) {
		return false
	}
	o := c.objectLocked(a.kind, a.name)
	if o == nil { // it will be the first to ask the store
		if a.h == nil {
			a.h = c.claimForLocked(a)
		}
		o = c.openLocked(a.h.claim.object)
	}
	if c.knownHeldLocked(o, a) {
		a.answered = true // we know without asking
	}
	q := *o.waitsFor(a.kind)
	if q == nil {
		q = c.newQueueLocked(o, a.kind)
	}
	a.joined, a.trying = false, false
	a.alarm.task = a
	if a.seen == 0 {
		a.seen = c.attempts
	}
	a.in, a.prev, a.next = q, q.last, nil
	if q.last != nil {
		q.last.next = a
	} else {
		q.first = a
	}
	q.last = a
	q.countLocked(a, 1)
	if q.refused > 0 {
		a.exclude()
	}
	if q.placed {
		if a.h == nil {
			a.h = c.claimForLocked(a)
		}
		a.fresh = true
		return true
	}
	if q.lead == nil {
		c.leadLocked(q)
	}
	if q.lead != a && a.budget > 0 {
		c.scheduleLocked(&a.alarm, c.now()+a.budget/newsShare)
	}
	return true
}

// newQueueLocked makes an empty queue.
func (c *Client) newQueueLocked(o *object, kind backend.Kind) *queue {
	q := c.spare
	if q == nil {
		q = new(queue)
	}
	c.spare = nil
	*q = queue{object: o, placed: rules[kind].placed}
	if q.placed {
		q.keeping = new(keeping)
		q.look.task = lineLook{q}
	}
	*o.waitsFor(kind) = q
	return q
}

// knownHeldLocked says whether this client itself has what keeps anybody's call from a lock.
func (c *Client) knownHeldLocked(o *object, a *acquisition) bool {
	if rules[a.kind].many {
		return o.exhausts(a)
	}
	now := c.now()
	if o.alone != nil && o.alone.valid(now) {
		return true
	}
	if rules[a.kind].shared || o.reading == nil {
		return false
	}
	for _, h := range o.reading.holds {
		if h.valid(now) {
			return true
		}
	}
	return false
}

// dequeueLocked takes an acquisition out of its queue, if it is in it.
func (c *Client) dequeueLocked(a *acquisition) {
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
	q.countLocked(a, -1)
	c.unscheduleLocked(&a.alarm)
	switch {
	case q.first == nil:
		c.dissolveLocked(q)
	default:
		c.leadLocked(q)
	}
}

// leadLocked finds who is to talk to the store, and tells whoever hasn't so far. Every new lead tries
// before it waits, but for one that is likely to be handed the lock, or is to let others have a turn.
func (c *Client) leadLocked(q *queue) {
	if q.placed || q.lead != nil && q.lead.committed() {
		return
	}
	a, before := q.firstInLocked(), q.lead
	if a == before {
		return
	}
	if before != nil && !before.trying {
		c.abandonLocked(before) // its Locker was locked, and nobody repeats what it asked for
	}
	q.lead = a
	if a == nil {
		return
	}
	q.again = 0
	a.fresh = !c.expectsLocked(a) && !c.refusedLocked(q, a) && !c.sitsOutLocked(q)
	if a.fresh || q.woken {
		a.notify()
	}
}

// nextLocked returns who comes next if that goes by order of arrival: the first whose Locker isn't
// locked, or is by h, which this client has, or is being given back.
func (q *queue) nextLocked(h *hold) *acquisition {
	for a := q.first; a != nil; a = a.next {
		if v := a.variable(); v == nil || v.hold == nil || v.hold == h || v.hold.state == released || rules[a.kind].shared {
			return a
		}
	}
	return nil
}

// committed says whether a lead must go on: it is asking, or may have got what it asked for, and nobody
// else would ask for that again.
func (a *acquisition) committed() bool {
	return !a.parked() && (a.trying || a.h != nil && a.h.claim.Strays())
}

// firstInLocked returns who is to talk to the store: the first, or else whoever does, or the first
// whose Locker isn't locked, or nil.
func (q *queue) firstInLocked() *acquisition {
	switch v := q.first.variable(); {
	case !q.first.parked():
		return q.first
	case int(v.waiting) == q.length:
		return nil // all wait for that Locker
	case q.lead != nil && !q.lead.parked():
		return q.lead // rather than look through all that are parked
	}
	for a := q.first; a != nil; a = a.next {
		if !a.parked() {
			return a
		}
	}
	return nil
}

// countLocked notes that one more waits, or one less.
func (q *queue) countLocked(a *acquisition, n int) {
	q.length += n
	if a.partners {
		q.partners += n
	}
	if !rules[a.kind].shared {
		q.writers += n
	}
	if v := a.variable(); v != nil {
		v.waiting += int32(n)
	}
}

// parked says whether an acquisition waits for its Locker to be unlocked.
func (a *acquisition) parked() bool {
	v := a.variable()
	return v != nil && v.hold != nil && !rules[a.kind].shared
}

// expectsLocked says whether a lead is likely to be handed the lock, and if so has it look again when
// that is over.
func (c *Client) expectsLocked(a *acquisition) bool {
	o := a.in.object
	if rules[a.kind].many {
		return o.exhausts(a) // whoever gives back what this client has out wakes it
	}
	cl := o.passing()
	if cl == nil || c.handover == 0 || !cl.passesTo(a) {
		return false
	}
	now, until := c.now(), c.handoverEnd(cl)+shortestWait
	if now >= until || !cl.passes(now) {
		return false
	}
	c.hastenLocked(&a.alarm, until)
	return true
}

// refusedLocked says whether a new lead would be refused as the last was, and if so has it look again when that would have.
func (c *Client) refusedLocked(q *queue, a *acquisition) bool {
	if q.woken || !q.refusal.refuses(a) {
		return false
	}
	c.hastenLocked(&a.alarm, q.refusal.again)
	return true
}

// newsShare is the part of a bounded wait after which those who don't talk to the store want to know
// whether the lock is held, which is what they say when the wait is over.
const newsShare = 4

// inquireLocked has the lead ask the store, unless it has asked since so many attempts.
func (q *queue) inquireLocked(seen uint64) {
	if q.lead != nil && q.refused <= seen {
		q.lead.fresh = true
		q.lead.notify()
	}
}

// ring lets a lead try again, and one that isn't hear whether the lock is held.
func (a *acquisition) ring(c *Client, now instant) {
	if a.handed != nil {
		c.laterLocked(a.cut)
		return
	}
	switch q := a.in; {
	case q.lead == a, q.placed:
		a.fresh = true
		a.notify()
	case c.knownHeldLocked(q.object, a):
		a.answered = true // we know without asking
	default:
		q.inquireLocked(a.seen)
	}
}

// watchLocked sees to it that somebody who waits for very long is noticed.
func (c *Client) watchLocked(q *queue, a *acquisition) {
	if a.since == 0 {
		a.since = a.began
	}
	if q.overdue.task == nil {
		q.overdue.task = q
		c.scheduleLocked(&q.overdue, a.since+c.lease)
	}
}

// ring says once if somebody has waited for longer than a lease for what this client holds itself.
func (q *queue) ring(c *Client, now instant) {
	if began := q.first.since; began == 0 || now < began+c.lease {
		c.scheduleLocked(&q.overdue, max(began, now-c.lease/2)+c.lease)
		return
	}
	switch {
	case q.first.parked():
		c.warnLocked("waiting for longer than a lease for a Locker that is locked", "name", q.object.name)
	case c.knownHeldLocked(q.object, q.first):
		c.warnLocked("waiting for longer than a lease for a lock that this client holds itself", "name", q.object.name)
	default:
		c.scheduleLocked(&q.overdue, now+c.lease)
	}
}

// notify lets a waiter look at what has changed.
func (a *acquisition) notify() {
	select {
	case a.signal <- struct{}{}:
	default:
	}
}

// slot returns where the object refers to a queue.
func (q *queue) slot() **queue {
	if q.placed {
		return &q.object.line
	}
	return &q.object.queue
}

// dissolveLocked drops an empty queue.
func (c *Client) dissolveLocked(q *queue) {
	*q.slot() = nil
	c.tidyLocked(q.object)
	c.unscheduleLocked(&q.overdue)
	if q.placed {
		c.unscheduleLocked(&q.look)
	}
	q.lead = nil
	if q.subscribed == unsubscribed && q.releasing == 0 && !q.placed {
		c.spare = q // nothing else refers to it
		return
	}
	if q.cancel != nil {
		c.laterLocked(q.cancel)
	}
	if q.sub != nil {
		c.laterLocked(q.sub.Close)
	}
}

// wakeLocked lets whoever is next for what was claimed try.
func (c *Client) wakeLocked(cl *claim) {
	if q := c.queueLocked(cl); q != nil {
		c.wakeQueueLocked(q)
	}
}

func (c *Client) wakeQueueLocked(q *queue) {
	q.woken, q.refusal = true, refusal{}
	c.leadLocked(q)
	if q.lead != nil {
		q.lead.notify()
	}
}

// joinLocked takes everybody who waits in the name of the new hold's party out of the queue: they can
// re-enter.
func (c *Client) joinLocked(h *hold) {
	if h.variable() == nil {
		for q := range h.claim.object.queues() {
			c.joinPartiesLocked(q, func(a *acquisition) bool { return a.h != h && a.party == h.party })
		}
	}
}

// joinPartiesLocked takes those out of a queue whose party has got in.
func (c *Client) joinPartiesLocked(q *queue, isIn func(*acquisition) bool) {
	if q == nil {
		return
	}
	for a := q.first; a != nil && q.partners > 0; {
		next := a.next
		if a.partners && isIn(a) {
			c.dequeueLocked(a)
			a.joined = true
			a.notify()
			if a.cut != nil {
				c.laterLocked(a.cut)
			}
		}
		a = next
	}
	if q.first != nil {
		c.leadLocked(q)
	}
}

type move uint8

const (
	toWait move = iota
	toTry
	toTake  // what it was handed
	toLeave // since it can re-enter
	toEnd   // since the client is closed
)

// turn says what a waiter is to do.
func (c *Client) turn(a *acquisition) move {
	c.mu.Lock()
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
		return c.placeTurnLocked(q, a)
	}
	if q.lead != a || !a.fresh && !q.woken {
		c.watchLocked(q, a)
		return a.wait()
	}
	// Cleared before the attempt and never after it: what happens from now on counts for the next.
	stale, woken := !a.fresh && c.expectsLocked(a), q.woken // stale: the message of a release before the present hold
	a.fresh, q.woken = false, false
	if stale {
		return a.wait()
	}
	a.trying = true
	q.again, q.refusal = 0, refusal{}
	c.triesLocked(q.object.key(), woken)
	return toTry
}

// wait prepares a waiter for being told.
func (a *acquisition) wait() move {
	if a.signal == nil {
		a.signal = make(chan struct{}, 1)
	}
	return toWait
}

// tryInTurn makes the lead's next attempt. Without a hold and an error, it is to be repeated.
func (c *Client) tryInTurn(ctx context.Context, a *acquisition) (*hold, error) {
	remaining, err := c.attemptUntilJoined(ctx, a)
	switch {
	case c.wasHanded(a):
		return nil, nil
	case err == nil:
		return a.h, nil
	case err == errHeld:
		a.tries.reset()
		c.keptOut(a, remaining)
		return nil, nil
	case err == errAgain, err == errLate, err == ErrClosed, backend.KindOf(err) == backend.Refused:
		return nil, c.quit(a, err) // if it goes on, it is another acquisition, behind the others; nil if it was handed something just now
	}
	if c.failed(a, ctx.Err() != nil, err) {
		c.report(a, err)
	}
	return nil, nil
}

// wasHanded says whether somebody has handed a call what it was just asking for.
func (c *Client) wasHanded(a *acquisition) bool {
	if !rules[a.kind].many && !rules[a.kind].placed {
		return false
	}
	c.mu.Lock()
	defer c.unlock()
	return a.handed != nil
}

// failed notes that the lead's attempt failed, perhaps because it was cut short, and when it is to be
// repeated. It is false if it is not.
func (c *Client) failed(a *acquisition, cut bool, err error) bool {
	c.mu.Lock()
	defer c.unlock()
	q := a.in
	if q == nil || q.lead != a && !q.placed {
		c.abandonLocked(a) // it was joined or handed something meanwhile, or its Locker was locked
		return false
	}
	a.answered = a.answered || q.refused > a.seen
	a.fail(cut, err)
	q.failure = a.failure
	c.scheduleLocked(&a.alarm, c.now()+a.tries.next(firstBackoff, longestPause(a.o.lease)))
	return true
}

// attemptUntilJoined makes an attempt that is left when the party gets in elsewhere.
func (c *Client) attemptUntilJoined(ctx context.Context, a *acquisition) (time.Duration, error) {
	if (a.variable() != nil && !rules[a.kind].placed) || c.prompt {
		return c.attempt(ctx, a)
	}
	ctx, cancel := withCancelCause(ctx)
	cut := func() { cancel(nil) }
	defer cut()
	c.mu.Lock()
	a.cut = cut
	handed := a.handed != nil
	if a.joined {
		c.laterLocked(cut) // it was, between its turn and now
	}
	c.unlock()
	if handed {
		return 0, errAgain // the same
	}
	return c.attempt(ctx, a)
}

// keptOut notes that another has the lock, sees to it that the queue is told when that ends, and that
// its lead looks again at the latest after some time.
func (c *Client) keptOut(a *acquisition, remaining time.Duration) {
	c.mu.Lock()
	defer c.unlock()
	a.answered, a.failure = true, nil
	q := a.in
	if q != nil && q.placed {
		c.placedLocked(q, a, remaining)
		return
	}
	if q == nil || q.lead != a {
		return // it was joined meanwhile, and will be told
	}
	if q.refused == 0 {
		for w := q.first; w != nil; w = w.next {
			w.exclude()
		}
	}
	q.refused, q.failure = a.attempt, nil
	if q.subscribed == unsubscribed && c.notifier != nil {
		c.subscribeLocked(q)
	}
	c.scheduleLocked(&a.alarm, c.nextAttemptLocked(q, a, remaining))
	if !q.woken {
		q.refusal = refusal{a.o.permits, a.o.limit, a.alarm.at}
	}
}

// exclude tells the caller, if it asks, that the store has said that another has the lock.
func (a *acquisition) exclude() {
	if a.excluded != nil {
		a.excluded()
	}
}

// nextAttemptLocked returns when a lead that was told that another has the lock, for so long, looks
// again if it isn't woken.
func (c *Client) nextAttemptLocked(q *queue, a *acquisition, remaining time.Duration) instant {
	now := c.now()
	wait, jitter := longestPause(a.o.lease), longestJitter
	if place := a.placeLease(); place > 0 {
		wait = min(wait, place/3)
	}
	if c.notifier == nil || q.subscribed == failing || q.subscribed == denied {
		wait = a.polls.next(firstPoll, min(wait, longestPoll))
	}
	if remaining >= 0 && remaining < wait+min(wait/10, jitter) { // or it might end just before the look, and nobody be in for so long
		wait, jitter = remaining+time.Millisecond, endJitter
	}
	wait = max(wait, shortestWait)
	at := now + wait + rand.N(min(wait/10, jitter)+1)
	if q.again > 0 {
		at = min(at, max(now, q.again)) // what it was told may be from before a release that it let pass
	}
	return at
}

// leave ends the waiting because the call cannot go on, and returns why.
func (c *Client) leave(ctx context.Context, a *acquisition) (*hold, error) {
	over := c.over(ctx)
	c.mu.Lock()
	if a.handed != nil {
		c.unlock()
		return c.take(ctx, a)
	}
	if q := a.in; q != nil && a.attempt == 0 && (a.failure == errNotUnlocked || q.refused > a.seen) {
		a.failure = nil // what it knew when it began is old
	}
	if q := a.in; q != nil && a.failure == nil {
		a.failure = q.failure
		a.answered = a.answered || q.refused > a.seen
	}
	if c.heldLocked(c.objectLocked(a.kind, a.name), a, nil) {
		a.answered, a.failure = true, nil // we know without asking
		a.here = a.in != nil && a.in.object.hasForItself(a.kind)
	}
	if v := a.variable(); v != nil && v.hold != nil && v.hold.state == lost {
		a.failure = errNotUnlocked
	}
	c.dequeueLocked(a)
	c.unlock()
	if over == ErrClosed {
		c.leaveClosed(a)
	}
	c.abandon(a)
	return nil, a.giveUp(over)
}

// leaveClosed tells the store that one who waited has gone with the client: else others would wait for him until his place is
// over.
func (c *Client) leaveClosed(a *acquisition) {
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
	c.releaseOnce(ctx, cl, c.stored(cl.Lease()), true)
}

// quit takes a waiter out of the queue for good, and returns err. Who is handed something just then stays, to take it.
func (c *Client) quit(a *acquisition, err error) error {
	c.mu.Lock()
	defer c.unlock()
	if a.handed != nil {
		return nil
	}
	c.dequeueLocked(a)
	c.abandonLocked(a)
	return err
}
