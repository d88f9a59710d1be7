package dlock

import (
	"context"

	"github.com/seed951563bd/distsync/backend"
)

// subscribe subscribes a queue to the releases of its lock. When the subscription begins, the queue
// is woken, so an attempt always follows.
func (q *queue) subscribe(s *state) {
	if q.subscribed == due {
		q.subscribed = subscribing
		s.start(func(c *Client) { q.listen(c) })
	}
}

// listen asks the store for messages about a queue's lock, in the background. It is called by
// unlock, with the mutex held.
func (q *queue) listen(c *Client) {
	if *q.slot() != q {
		return // all its calls have left meanwhile
	}
	ctx, cancel := context.WithCancel(c.ctx)
	q.cancel = cancel
	req := backend.SubscribeRequest{Kind: q.object.family.Representative(), Name: q.object.name,
		Wake: func(backend.Wakeup) { q.told(c) }}
	if q.placed {
		req.Kind, req.Granted = backend.Fair, func(g backend.Grant) { q.granted(c, g) }
	}
	if len(c.traces) > 0 {
		req.Changed = func(broken error) { q.subscriptionChanged(c, broken) }
	}
	c.store.Go(func() {
		var b backoff
		for {
			sub, err := c.store.Notifier.Subscribe(ctx, req)
			if err == nil {
				q.subscriptionStands(ctx, c, sub)
				return
			}
			if !q.subscriptionFailed(ctx, c, err) || !c.store.Pause(ctx,
				b.next(firstBackoff, longestPause(c.lease))) {
				return
			}
		}
	})
}

// told passes a wake-up from the store on to the calls in a queue.
func (q *queue) told(c *Client) {
	s := c.lock()
	defer c.unlock()
	switch {
	case *q.slot() != q:
	case q.placed:
		q.lookAtLine(s)
	case q.releasing > 0:
		// This client's own release is still unanswered, and the message may be about it. The
		// answer is more precise, so the lead waits a moment for it.
		q.heard = true
		if q.lead != nil {
			q.hear(s, c.now()+shortestWait)
		}
	case !q.letPass(s):
		q.wake(s)
	}
}

// subscriptionStands records that a subscription is active. If no call is waiting any longer, it
// closes the subscription.
func (q *queue) subscriptionStands(ctx context.Context, c *Client, sub backend.Subscription) {
	over := ctx.Err() != nil
	s := c.lock()
	defer c.unlock()
	if over || *q.slot() != q {
		s.later(sub.Close)
		return
	}
	if q.subscribed == failing {
		s.trace(func(c *Client) { q.subscriptionChanged(c, nil) })
	}
	q.sub, q.subscribed, q.stood = sub, standing, c.now()
	s.later(q.cancel) // otherwise the context would outlive the call
	q.cancel = nil
	switch {
	case q.placed:
		q.lookAtLine(s)
	case q.lead == nil || !q.sitsOut(s): // otherwise the lead tries soon
		q.wake(s)
	}
}

// subscriptionFailed records that a subscription failed, and reports whether to try again.
func (q *queue) subscriptionFailed(ctx context.Context, c *Client, err error) bool {
	s := c.lock()
	defer c.unlock()
	if ctx.Err() != nil || *q.slot() != q {
		return false
	}
	retry := backend.KindOf(err) != backend.Refused
	if q.subscribed == subscribing {
		s.trace(func(c *Client) { q.subscriptionChanged(c, err) })
		q.wake(s) // the lead must poll from now on
		if q.placed {
			q.lookAtLine(s)
		}
	}
	q.subscribed = failing
	if !retry {
		q.subscribed = denied
		s.reportPolling(err)
	}
	return retry
}

// reportPolling logs once that the store refuses to notify this client.
func (s *state) reportPolling(err error) {
	if !s.polls {
		s.polls = true
		s.warn("the store refuses to tell this client of releases: waiters poll", "err", err)
	}
}
