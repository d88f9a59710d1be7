package dlock

import (
	"context"

	"github.com/seed951563bd/distsync/backend"
)

// A takeBack releases a claim that nobody has any more, until the store has answered. Where a
// request without an answer may yet bring it about, it does so again and again until the latest of
// them would have run out anyway, and once more after that.
type takeBack struct {
	alarm alarm
	claim *claim
	tries backoff
}

// takeBack begins to take a claim back. No request that could lock may follow for it. c.mu is held.
func (c *Client) takeBack(cl *claim) {
	if cl.back || c.closed {
		return
	}
	cl.back = true
	t := &takeBack{claim: cl}
	t.alarm.task = t
	c.schedule(&t.alarm, c.now())
}

// ring makes one attempt. c.mu is held.
func (t *takeBack) ring(c *Client, now instant) {
	c.background(func() { c.releaseAgain(t, now) })
}

func (c *Client) releaseAgain(t *takeBack, now instant) {
	cl := t.claim
	lease := c.stored(cl.lease)
	ctx, cancel := context.WithTimeout(c.ctx, longestRelease)
	defer cancel()
	res, err := step(ctx, c, backend.Session.Release, cl.releaseRequest(lease))

	c.mu.Lock()
	defer c.unlock()
	if c.closed {
		return
	}
	switch {
	case err == nil && res.Outcome == backend.Left:
		c.schedule(&t.alarm, c.now())
		return
	case err == nil:
		c.wake(cl.name) // if it is free now, that may be our doing
	}
	answered := err == nil || backend.KindOf(err) == backend.Refused
	if answered && (now >= cl.horizon || !cl.unsure) {
		cl.back = false
		return
	}
	next := c.now() + t.tries.next(firstBackoff, lease/3)
	if now < cl.horizon {
		next = min(next, max(cl.horizon, c.now()))
	}
	c.schedule(&t.alarm, next)
}
