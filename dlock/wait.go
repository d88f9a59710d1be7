package dlock

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/seed951563bd/distsync/backend"
)

// A queue is who in this client waits for one name, first come first served. Only the head talks to
// the store, by itself and when it is woken. There is a queue, and its subscription, only while
// somebody waits.
type queue struct {
	name       string
	head, tail *acquisition
	woken      bool // something happened since the head's last attempt was sent
	subscribed subState
	cancel     context.CancelFunc   // ends the subscribing; nil when that is over
	sub        backend.Subscription // while it stands
	warned     bool
	refused    uint64 // the number of the last attempt that was answered
	failure    error  // of the head's last attempt; nil if it was answered
}

type subState uint8

const (
	unasked subState = iota
	asked
	failing // asked, and it failed at least once
	refused
	standing
)

// shortestWait is the least time between two looks at a lock that were not asked for by a wake-up.
const shortestWait = 5 * time.Millisecond

// longestJitter bounds what is added to a wait so that clients which wait for the same moment don't
// come at the same moment.
const longestJitter = 100 * time.Millisecond

// A head that must poll begins with short pauses, and never lets a release wait for long.
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
	if c.reenterableLocked(a) != nil {
		return false
	}
	q := c.queues[a.name]
	if q == nil {
		q = c.newQueue(a.name)
	}
	a.joined = false
	a.alarm.task = a
	if a.seen == 0 {
		a.seen = c.asked
	}
	a.prev, a.next = q.tail, nil
	if q.tail != nil {
		q.tail.next = a
	} else {
		q.head = a
		c.lead(q)
	}
	if q.head != a && a.o.bounded {
		c.schedule(&a.alarm, c.now()+a.o.wait/newsShare)
	}
	q.tail = a
	return true
}

// newQueue makes an empty queue. c.mu is held.
func (c *Client) newQueue(name string) *queue {
	q := c.spare
	if q == nil {
		q = new(queue)
	}
	c.spare = nil
	*q = queue{name: name}
	c.queues[name] = q
	return q
}

// dequeue takes an acquisition out of its queue; who is the head then is told. c.mu is held.
func (c *Client) dequeue(a *acquisition) {
	q := c.queues[a.name]
	if q == nil || a.prev == nil && q.head != a {
		return // it was taken out before
	}
	wasHead := q.head == a
	if a.prev != nil {
		a.prev.next = a.next
	} else {
		q.head = a.next
	}
	if a.next != nil {
		a.next.prev = a.prev
	} else {
		q.tail = a.prev
	}
	a.prev, a.next = nil, nil
	c.unschedule(&a.alarm)
	switch {
	case q.head == nil:
		c.dissolve(q)
	case wasHead:
		c.lead(q)
		if q.head.fresh || q.woken {
			q.head.notify()
		}
	}
}

// lead tells a waiter that it is the head of its queue. Every new head tries before it waits, but for
// one that is likely to be handed the lock, or is to let others have a turn. c.mu is held.
func (c *Client) lead(q *queue) { q.head.fresh = !c.expects(q.head) && !c.yields(q) }

// expects says whether a head is likely to be handed the lock, and if so has it look again when that
// is over. c.mu is held.
func (c *Client) expects(a *acquisition) bool {
	h := c.holds[a.name]
	if h == nil || c.handover == 0 || !h.suits(a) {
		return false
	}
	now, until := c.now(), c.handoverEnd(h)+shortestWait
	if now >= until || !h.handsOn(now) {
		return false
	}
	if a.alarm.place == 0 || until < a.alarm.at {
		c.schedule(&a.alarm, until)
	}
	return true
}

// newsShare is the part of a bounded wait after which those behind the head want to know whether the
// lock is held, which is what they say when the wait is over.
const newsShare = 4

// inquire has the head ask the store, unless it has asked since so many attempts. c.mu is held.
func (q *queue) inquire(seen uint64) {
	if q.refused <= seen {
		q.head.fresh = true
		q.head.notify()
	}
}

// inquire has whoever is at the head of the queue for a name ask the store, unless it has asked since
// so many attempts.
func (c *Client) inquire(name string, seen uint64) {
	c.mu.Lock()
	defer c.unlock()
	if q := c.queues[name]; q != nil {
		q.inquire(seen)
	}
}

// sent returns how many attempts this client has sent.
func (c *Client) sent() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.asked
}

// ring lets a head try again, and says so once if the lock that it waits for is this client's own,
// for longer than a lease. c.mu is held.
func (a *acquisition) ring(c *Client, now instant) {
	q := c.queues[a.name]
	if q.head != a {
		if h := c.holds[a.name]; h != nil && h.valid(now) {
			a.answered = true // we know without asking
		} else {
			q.inquire(a.seen)
		}
		return
	}
	a.fresh = true
	a.notify()
	if a.begin == 0 {
		a.begin = now
	}
	if q.warned || now-a.begin < a.o.lease {
		return
	}
	if h := c.holds[a.name]; h != nil {
		q.warned = true
		c.warn("waiting for longer than a lease for a lock that this client holds itself", "name", a.name)
	}
}

// notify lets a waiter look at what has changed.
func (a *acquisition) notify() {
	select {
	case a.signal <- struct{}{}:
	default:
	}
}

// dissolve drops an empty queue. c.mu is held.
func (c *Client) dissolve(q *queue) {
	delete(c.queues, q.name)
	if q.subscribed == unasked {
		c.spare = q // nothing else refers to it
		return
	}
	if q.cancel != nil {
		q.cancel()
	}
	if q.sub != nil {
		c.later(q.sub.Close)
	}
}

// wake lets the head of the queue for name try. c.mu is held.
func (c *Client) wake(name string) {
	if q := c.queues[name]; q != nil {
		q.woken = true
		q.head.notify()
	}
}

// join takes everybody who waits in the name of the new hold's party out of the queue: they can
// re-enter. c.mu is held.
func (c *Client) join(h *hold) {
	q := c.queues[h.name]
	if q == nil || h.slot == nil {
		return // plain calls don't re-enter
	}
	for a := q.head; a != nil; {
		next := a.next
		if a.party == h.party && a.h != h {
			c.dequeue(a)
			a.joined = true
			a.notify()
			if a.cut != nil {
				c.later(a.cut)
			}
		}
		a = next
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
	q := c.queues[a.name]
	if q.head != a || !a.fresh && !q.woken {
		return a.wait()
	}
	// Cleared before the attempt and never after it: what happens from now on counts for the next.
	stale := !a.fresh && c.expects(a) // the message of a release that went before the present hold
	a.fresh, q.woken = false, false
	if stale {
		return a.wait()
	}
	a.trying = true
	return toTry
}

// wait prepares a waiter for being told.
func (a *acquisition) wait() move {
	if a.signal == nil {
		a.signal = make(chan struct{}, 1)
	}
	return toWait
}

// tryInTurn makes the head's next attempt. Without a hold and an error, it is to be repeated.
func (c *Client) tryInTurn(ctx context.Context, a *acquisition) (*hold, error) {
	remaining, err := c.attemptUntilJoined(ctx, a)
	switch {
	case err == nil:
		return a.h, nil
	case err == errHeld:
		a.tries.reset()
		c.held(a, remaining)
		return nil, nil
	case err == errAgain, err == ErrClosed, backend.KindOf(err) == backend.Refused:
		return nil, c.quit(a, err)
	}
	c.logPatience(a, err)
	c.failed(ctx, a, err)
	if err == errLate {
		c.abandon(a) // the store may end it at any moment: the next attempt is another acquisition
	}
	return nil, nil
}

// failed notes that the head's attempt failed, and when it is to be repeated.
func (c *Client) failed(ctx context.Context, a *acquisition, err error) {
	c.mu.Lock()
	defer c.unlock()
	q := c.queues[a.name]
	if q == nil || q.head != a {
		return // it was joined meanwhile, and will be told
	}
	a.answered = a.answered || q.refused > a.seen
	a.fail(ctx, err)
	q.failure = a.failure
	c.schedule(&a.alarm, c.now()+a.tries.next(firstBackoff, a.o.lease/3))
}

// attemptUntilJoined makes an attempt that is left when the party gets in elsewhere.
func (c *Client) attemptUntilJoined(ctx context.Context, a *acquisition) (time.Duration, error) {
	if a.plain() || c.prompt {
		return c.attempt(ctx, a)
	}
	ctx, cut := context.WithCancel(ctx)
	defer cut()
	c.mu.Lock()
	a.cut = cut
	if a.joined {
		c.later(cut) // it was, between its turn and now
	}
	c.unlock()
	return c.attempt(ctx, a)
}

// held notes that another has the lock, sees to it that the queue is told when that ends, and that
// its head looks again at the latest after some time.
func (c *Client) held(a *acquisition, remaining time.Duration) {
	c.mu.Lock()
	defer c.unlock()
	a.answered, a.failure = true, nil
	q := c.queues[a.name]
	if q == nil || q.head != a {
		return // it was joined meanwhile, and will be told
	}
	q.refused, q.failure = a.attempt, nil
	if q.subscribed == unasked && c.notifier != nil {
		c.subscribe(q)
	}
	wait := a.o.lease / 3
	if c.notifier == nil || q.subscribed == failing || q.subscribed == refused {
		wait = a.polls.next(firstPoll, min(wait, longestPoll))
	}
	if remaining >= 0 && remaining < wait {
		wait = remaining + time.Millisecond
	}
	wait = max(wait, shortestWait)
	c.schedule(&a.alarm, c.now()+wait+rand.N(min(wait/10, longestJitter)+1))
}

// leave ends the waiting because the call cannot go on, and returns why.
func (c *Client) leave(ctx context.Context, a *acquisition) (*hold, error) {
	c.mu.Lock()
	if a.handed != nil {
		c.unlock()
		return c.take(ctx, a)
	}
	if q := c.queues[a.name]; q != nil && a.failure == nil {
		a.failure = q.failure
		a.answered = a.answered || q.refused > a.seen
	}
	if h := c.holds[a.name]; h != nil && c.check(h) {
		a.answered = true // we know without asking
	}
	c.dequeue(a)
	c.unlock()
	c.abandon(a)
	return nil, a.giveUp(c.over(ctx))
}

// quit takes a waiter out of the queue for good, and returns err.
func (c *Client) quit(a *acquisition, err error) error {
	c.mu.Lock()
	c.dequeue(a)
	c.unlock()
	c.abandon(a)
	return err
}

// subscribe asks to be woken when the name of a queue is released. That it stands counts as a
// wake-up, so that an attempt is always made after it. c.mu is held.
func (c *Client) subscribe(q *queue) {
	ctx, cancel := context.WithCancel(c.ctx)
	q.subscribed, q.cancel = asked, cancel
	c.background(func() {
		var b backoff
		for {
			sub, err := c.notifier.Subscribe(ctx, backend.SubscribeRequest{
				Name: q.name,
				Wake: func(backend.Wakeup) { c.woken(q) },
			})
			if err == nil {
				c.subscribed(ctx, q, sub)
				return
			}
			if !c.unsubscribed(ctx, q, err) || !c.pause(ctx, b.next(firstBackoff, c.lease/3)) {
				return
			}
		}
	})
}

// woken is a wake-up from the store.
func (c *Client) woken(q *queue) {
	c.mu.Lock()
	defer c.unlock()
	if c.queues[q.name] == q {
		c.wake(q.name)
	}
}

// subscribed notes that a subscription stands, or gives it up if nobody waits any more.
func (c *Client) subscribed(ctx context.Context, q *queue, sub backend.Subscription) {
	c.mu.Lock()
	defer c.unlock()
	if ctx.Err() != nil {
		c.later(sub.Close)
		return
	}
	q.sub, q.subscribed = sub, standing
	c.later(q.cancel) // else the context stays for as long as somebody waits
	q.cancel = nil
	c.wake(q.name)
}

// unsubscribed notes that a subscription failed, and says whether to go on trying.
func (c *Client) unsubscribed(ctx context.Context, q *queue, err error) bool {
	c.mu.Lock()
	defer c.unlock()
	if ctx.Err() != nil {
		return false
	}
	retry := backend.KindOf(err) != backend.Refused
	if q.subscribed == asked {
		c.wake(q.name) // it must poll from now on
	}
	q.subscribed = failing
	if !retry {
		q.subscribed = refused
		c.warnPolling(err)
	}
	return retry
}

// warnPolling says once that the store refuses to notify this client. c.mu is held.
func (c *Client) warnPolling(err error) {
	if !c.polls {
		c.polls = true
		c.warn("the store refuses to tell this client of releases: waiters poll", "err", err)
	}
}
