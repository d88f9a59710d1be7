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
	cancel     context.CancelFunc   // ends the subscribing
	sub        backend.Subscription // while it stands
	warned     bool
	answered   bool  // some attempt was
	failure    error // of the head's last attempt; nil if it was answered
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

// queueUp waits in the queue until the lock is acquired, the party has it in another way, or the
// call cannot go on.
func (c *Client) queueUp(ctx context.Context, a *acquisition) (*hold, error) {
	if !c.enqueue(a) {
		return nil, errAgain
	}
	begin := c.now()
	var timer *time.Timer // of a head that has tried
	var again <-chan time.Time
	for {
		switch c.turn(a) {
		case toLeave:
			c.abandon(a)
			return nil, errAgain
		case toTry:
			if ctx.Err() != nil {
				return nil, c.leave(ctx, a) // whoever follows tries
			}
			h, wait, err := c.tryInTurn(ctx, a)
			if err != nil || h != nil {
				return h, err
			}
			if timer == nil {
				timer = time.NewTimer(wait)
				defer timer.Stop()
				again = timer.C
			}
			timer.Reset(wait)
		case toWait:
			select {
			case <-a.signal:
			case <-again:
				c.lookAgain(a, begin)
			case <-ctx.Done():
				return nil, c.leave(ctx, a)
			case <-c.ctx.Done():
				return nil, c.leave(ctx, a)
			}
		}
	}
}

// enqueue puts an acquisition at the end of its queue, unless its party can re-enter by now.
func (c *Client) enqueue(a *acquisition) bool {
	c.mu.Lock()
	defer c.unlock()
	if c.currentLocked(a.name, a.party) != nil {
		return false
	}
	q := c.queues[a.name]
	if q == nil {
		q = &queue{name: a.name}
		c.queues[a.name] = q
	}
	if a.signal == nil {
		a.signal = make(chan struct{}, 1)
	}
	a.joined = false
	a.prev, a.next = q.tail, nil
	if q.tail != nil {
		q.tail.next = a
	} else {
		q.head = a
		a.fresh = true // every new head tries before it waits
	}
	q.tail = a
	return true
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
	switch {
	case q.head == nil:
		c.dissolve(q)
	case wasHead:
		q.head.fresh = true
		q.head.notify()
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
	toLeave
)

// turn says what a waiter is to do.
func (c *Client) turn(a *acquisition) move {
	c.mu.Lock()
	defer c.unlock()
	if a.joined {
		return toLeave
	}
	q := c.queues[a.name]
	if q.head != a || !a.fresh && !q.woken {
		return toWait
	}
	// Cleared before the attempt and never after it: what happens from now on counts for the next.
	a.fresh, q.woken = false, false
	return toTry
}

// tryInTurn makes the head's next attempt. Without a hold and an error, it is to be repeated after
// wait.
func (c *Client) tryInTurn(ctx context.Context, a *acquisition) (h *hold, wait time.Duration, err error) {
	remaining, err := c.attemptUntilJoined(ctx, a)
	switch {
	case err == nil:
		h = a.h
		c.mu.Lock()
		c.dequeue(a)
		c.unlock()
		return h, 0, nil
	case err == errHeld:
		a.tries.reset()
		return nil, c.held(a, remaining), nil
	case err == errAgain, err == ErrClosed, backend.KindOf(err) == backend.Refused:
		return nil, 0, c.quit(a, err)
	}
	c.logPatience(a, err)
	c.mu.Lock()
	if q := c.queues[a.name]; q != nil && q.head == a {
		a.answered = a.answered || q.answered
		a.fail(ctx, err)
		q.failure = a.failure
	}
	c.unlock()
	if err == errLate {
		c.abandon(a) // the store may end it at any moment: the next attempt is another acquisition
	}
	return nil, a.tries.next(firstBackoff, a.o.lease/3), nil
}

// attemptUntilJoined makes an attempt that is left when the party gets in elsewhere.
func (c *Client) attemptUntilJoined(ctx context.Context, a *acquisition) (time.Duration, error) {
	if _, plain := a.party.(*Locker); plain {
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

// held notes that another has the lock, sees to it that the queue is told when that ends, and says
// when to look again at the latest.
func (c *Client) held(a *acquisition, remaining time.Duration) time.Duration {
	c.mu.Lock()
	defer c.unlock()
	a.answered, a.failure = true, nil
	q := c.queues[a.name]
	if q == nil || q.head != a {
		return shortestWait // it was joined meanwhile, and will be told
	}
	q.answered, q.failure = true, nil
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
	return wait + rand.N(min(wait/10, longestJitter)+1)
}

// lookAgain lets a head whose timer fired try, and says so once if the lock that it waits for is
// this client's own, for longer than a lease.
func (c *Client) lookAgain(a *acquisition, begin instant) {
	c.mu.Lock()
	defer c.unlock()
	a.fresh = true
	q := c.queues[a.name]
	if a.joined || q.warned || c.now()-begin < a.o.lease {
		return
	}
	if h := c.holds[a.name]; h != nil {
		q.warned = true
		c.warn("waiting for longer than a lease for a lock that this client holds itself", "name", a.name)
	}
}

// leave ends the waiting because the call cannot go on, and returns why.
func (c *Client) leave(ctx context.Context, a *acquisition) error {
	c.mu.Lock()
	if q := c.queues[a.name]; q != nil && a.failure == nil {
		a.failure = q.failure
		a.answered = a.answered || q.answered
	}
	if h := c.holds[a.name]; h != nil && c.check(h) {
		a.answered = true // we know without asking
	}
	c.unlock()
	return c.quit(a, a.giveUp(c.over(ctx)))
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
