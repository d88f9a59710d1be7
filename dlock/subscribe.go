package dlock

import (
	"context"

	"github.com/seed951563bd/distsync/backend"
)

// A subscription is how a queue is told of releases.
type subscription struct {
	subscribed subState
	cancel     context.CancelFunc   // ends the subscribing; nil when that is over
	sub        backend.Subscription // while it stands
	stood      instant              // since when it stands
}

type subState uint8

const (
	unsubscribed subState = iota
	subscribing
	failing // and it goes on trying
	denied
	standing
)

// subscribeLocked asks to be woken when the name of a queue is released. That it stands counts as a
// wake-up, so that an attempt is always made after it.
func (c *Client) subscribeLocked(q *queue) {
	ctx, cancel := context.WithCancel(c.ctx)
	q.subscribed, q.cancel = subscribing, cancel
	req := backend.SubscribeRequest{Kind: q.object.family.representative(), Name: q.object.name, Wake: func(backend.Wakeup) { c.told(q) }}
	if q.placed {
		req.Kind, req.Granted = backend.Fair, func(g backend.Grant) { c.granted(q, g) }
	}
	if len(c.traces) > 0 {
		req.Changed = func(broken error) { c.subscriptionChanged(q, broken) }
	}
	c.backgroundLocked(func() {
		var b backoff
		for {
			sub, err := c.notifier.Subscribe(ctx, req)
			if err == nil {
				c.subscribed(ctx, q, sub)
				return
			}
			if !c.unsubscribed(ctx, q, err) || !c.pause(ctx, b.next(firstBackoff, longestPause(c.lease))) {
				return
			}
		}
	})
}

// told is a wake-up from the store.
func (c *Client) told(q *queue) {
	c.mu.Lock()
	defer c.unlock()
	switch {
	case *q.slot() != q:
	case q.placed:
		c.lookAtLineLocked(q)
	case q.releasing > 0:
		// It is our own, or will be followed by the answer to ours, which says more.
		q.heard = true
		if q.lead != nil {
			c.hearLocked(q, c.now()+shortestWait)
		}
	case !c.passLocked(q):
		c.wakeQueueLocked(q)
	}
}

// subscribed notes that a subscription stands, or gives it up if nobody waits any more.
func (c *Client) subscribed(ctx context.Context, q *queue, sub backend.Subscription) {
	over := ctx.Err() != nil
	c.mu.Lock()
	defer c.unlock()
	if over || *q.slot() != q {
		c.laterLocked(sub.Close)
		return
	}
	if q.subscribed == failing {
		c.traceLocked(func() { c.subscriptionChanged(q, nil) })
	}
	q.sub, q.subscribed, q.stood = sub, standing, c.now()
	c.laterLocked(q.cancel) // else the context stays for as long as somebody waits
	q.cancel = nil
	switch {
	case q.placed:
		c.lookAtLineLocked(q)
	case q.lead == nil || !c.sitsOutLocked(q): // or it tries in a moment
		c.wakeQueueLocked(q)
	}
}

// unsubscribed notes that a subscription failed, and says whether to go on trying.
func (c *Client) unsubscribed(ctx context.Context, q *queue, err error) bool {
	c.mu.Lock()
	defer c.unlock()
	if ctx.Err() != nil || *q.slot() != q {
		return false
	}
	retry := backend.KindOf(err) != backend.Refused
	if q.subscribed == subscribing {
		c.traceLocked(func() { c.subscriptionChanged(q, err) })
		c.wakeQueueLocked(q) // it must poll from now on
		if q.placed {
			c.lookAtLineLocked(q)
		}
	}
	q.subscribed = failing
	if !retry {
		q.subscribed = denied
		c.reportPollingLocked(err)
	}
	return retry
}

// reportPollingLocked says once that the store refuses to notify this client.
func (c *Client) reportPollingLocked(err error) {
	if !c.polls {
		c.polls = true
		c.warnLocked("the store refuses to tell this client of releases: waiters poll", "err", err)
	}
}
