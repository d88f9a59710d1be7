package dlock

import (
	"context"

	"github.com/seed951563bd/distsync/backend"
)

// A takeBack releases a hold that nobody has any more, until the store has answered. Where a
// request without an answer may yet bring it about, it does so again and again until the latest of
// them would have run out anyway, and once more after that.
type takeBack struct {
	alarm alarm
	hold  *hold
	tries backoff
}

// takeBack begins to take a hold back. No request that could lock may follow for it. c.mu is held.
func (c *Client) takeBack(h *hold) {
	if h.back || c.closed {
		return
	}
	h.back = true
	t := &takeBack{hold: h}
	t.alarm.task = t
	c.schedule(&t.alarm, c.now())
}

// ring makes one attempt. c.mu is held.
func (t *takeBack) ring(c *Client, now instant) {
	c.background(func() { c.releaseAgain(t, now) })
}

func (c *Client) releaseAgain(t *takeBack, now instant) {
	h := t.hold
	lease := c.stored(h.lease)
	ctx, cancel := context.WithTimeout(c.ctx, longestRelease)
	defer cancel()
	res, err := step(ctx, c, c.session.Release, h.releaseRequest(lease))

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
		c.wake(h.name) // if it is free now, that may be our doing
	}
	answered := err == nil || backend.KindOf(err) == backend.Refused
	if answered && (now >= h.horizon || !h.unsure) {
		h.back = false
		return
	}
	next := c.now() + t.tries.next(firstBackoff, lease/3)
	if now < h.horizon {
		next = min(next, max(h.horizon, c.now()))
	}
	c.schedule(&t.alarm, next)
}
