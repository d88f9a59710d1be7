package dlock

import (
	"context"
	"time"

	"github.com/seed951563bd/distsync/backend"
)

// A takeBack releases a claim that nobody has any more, until the store has answered. Where a
// request without an answer may yet bring it about, it does so again and again until the latest of
// them would have run out anyway, and once more after that. If the store doesn't answer for a minute
// after that, or as long as the lease again, it ends all the same: a request that is carried out
// still later leaves the lock with nobody for a lease, and at no time with two.
type takeBack struct {
	alarm    alarm
	claim    *claim
	tries    backoff
	patience backoff   // for an answer
	next     *takeBack // that is due
}

// takeBacks are those that are due. During an outage they add up, and the store may not be able to
// answer when it is over if all of them come at once: so they take turns, the latest first, and those
// that were tried before last: where one node of several hangs, they are likely to be its.
type takeBacks struct {
	first, last *takeBack
	running     int
	failing     backoff // since the store last answered one
	resume      instant // no other begins before
	alarm       alarm
}

const (
	mostTakeBacks       = 64          // under way at a time
	firstPatience       = time.Second // for an answer; then twice that
	longestIntermission = time.Second // between two rounds that fail
)

// takeBackLocked begins to take a claim back. No request that could lock may follow for it.
func (c *Client) takeBackLocked(cl *claim) {
	if cl.back || c.closed {
		return
	}
	cl.back = true
	t := &takeBack{claim: cl}
	t.alarm.task = t
	c.scheduleLocked(&t.alarm, c.now())
}

// ring makes the next attempt, in turn.
func (t *takeBack) ring(c *Client, now instant) {
	all := &c.takeBacks
	switch {
	case all.first == nil:
		all.first, all.last = t, t
	case t.tries == backoff{}:
		all.first, t.next = t, all.first
	default:
		all.last.next, all.last = t, t
	}
	all.ring(c, now)
}

// ring begins as many as may be under way.
func (all *takeBacks) ring(c *Client, now instant) {
	for all.first != nil && all.running < mostTakeBacks {
		if now < all.resume {
			all.alarm.task = all
			c.scheduleLocked(&all.alarm, all.resume)
			return
		}
		t := all.first
		all.first, t.next = t.next, nil
		all.running++
		c.backgroundLocked(func() { c.releaseAgain(t) })
	}
}

// releaseAgain makes one attempt.
func (c *Client) releaseAgain(t *takeBack) {
	ctx, cancel := context.WithTimeout(c.ctx, t.patience.next(firstPatience, longestRelease))
	defer cancel()
	sent := c.now()
	c.mu.Lock()
	req := c.lastRelease(t.claim, c.stored(t.claim.Lease()), false) // whoever had it may yet say how long it is to stay taken
	c.mu.Unlock()
	res, err := step(ctx, c, backend.Session.Release, req)

	c.mu.Lock()
	defer c.unlock()
	if c.closed {
		return
	}
	all, now := &c.takeBacks, c.now()
	all.running--
	answered := err == nil || backend.KindOf(err) == backend.Refused
	switch {
	case answered:
		all.failing.reset()
		all.resume = 0
	case now >= all.resume:
		all.resume = now + all.failing.next(firstBackoff, longestIntermission)
	}
	c.tookBackLocked(t, sent, res, err, answered)
	all.ring(c, now)
}

// tookBackLocked says what is to follow an attempt that was sent at that instant.
func (c *Client) tookBackLocked(t *takeBack, sent instant, res backend.ReleaseResult, err error, answered bool) {
	cl, now := t.claim, c.now()
	switch {
	case err == nil && res.Outcome == backend.Left:
		c.scheduleLocked(&t.alarm, now)
		return
	case err == nil && res.Outcome == backend.Freed:
		c.wakeLocked(cl)
	case err == nil && res.Outcome == backend.Kept:
		c.keptLocked(cl)
	}
	if cl.TakenBack(sent, answered) {
		cl.back = false
		return
	}
	next := now + t.tries.next(firstBackoff, longestPause(c.stored(cl.Lease())))
	if sent < cl.Horizon() {
		next = min(next, max(cl.Horizon(), now))
	}
	c.scheduleLocked(&t.alarm, next)
}
