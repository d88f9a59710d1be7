package dlock

import (
	"context"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/seed951563bd/distsync/backend"
)

// A lookout is how a call waits that looks into the store until it sees what it waits for. It is told
// when to look again, and looks now and then besides: messages get lost, and leases end without one.
type lookout struct {
	client   *Client
	end      context.CancelFunc // of the listening
	woken    chan struct{}
	told     atomic.Bool // the store tells of changes
	polls    backoff     // while it doesn't
	failures backoff
}

// look out listens until close is called. Wake and Watches of the request are set here.
func (c *Client) lookOut(ctx context.Context, req backend.SubscribeRequest) *lookout {
	ctx, end := context.WithCancel(ctx)
	w := &lookout{client: c, end: end, woken: make(chan struct{}, 1)}
	if c.notifier == nil {
		return w
	}
	req.Watches = true
	req.Wake = func(backend.Wakeup) { w.wake() }
	c.listen(ctx, req, func() {
		w.told.Store(true)
		w.wake() // what happened before isn't told
	})
	return w
}

func (w *lookout) close() {
	if w != nil {
		w.end()
	}
}

func (w *lookout) wake() {
	select {
	case w.woken <- struct{}{}:
	default:
	}
}

// wait waits until the next look, after one that has seen something which lasts for so long; 0 or
// less: nobody knows. It says whether there is to be a next look.
func (w *lookout) wait(ctx context.Context, remaining time.Duration) bool {
	w.failures.reset()
	wait, jitter := longestPause(w.client.lease), longestJitter
	if !w.told.Load() {
		wait = w.polls.next(firstPoll, min(wait, longestPoll))
	}
	if remaining > 0 && remaining < wait {
		wait, jitter = remaining+time.Millisecond, endJitter
	}
	wait = max(wait, shortestWait)
	return w.sleep(ctx, wait+rand.N(min(wait/10, jitter)+1))
}

// waitAfter waits until the next look after one that has failed.
func (w *lookout) waitAfter(ctx context.Context, err error) bool {
	return backend.KindOf(err) != backend.Refused &&
		w.sleep(ctx, w.failures.next(firstBackoff, longestPause(w.client.lease)))
}

func (w *lookout) sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-w.woken:
		return true
	case <-ctx.Done():
	case <-w.client.ctx.Done():
	}
	return false
}
