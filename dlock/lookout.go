package dlock

import (
	"context"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/seed951563bd/distsync/backend"
)

// A lookout tells a call when to ask the store again, until the call finds the state that it waits
// for. It listens for notifications from the store. It also polls now and then, since notifications
// can get lost, and the end of a lease causes none.
type lookout struct {
	client   *Client
	end      context.CancelFunc // stops listening
	woken    chan struct{}
	told     atomic.Bool // whether the store sends notifications
	polls    backoff     // pauses between looks if there are no notifications
	failures backoff
}

// lookOut returns a lookout that listens until it is closed or ctx ends. It sets Watches and Wake
// in req, and subscribes with it.
func (c *Client) lookOut(ctx context.Context, req backend.SubscribeRequest) *lookout {
	ctx, end := context.WithCancel(ctx)
	w := &lookout{client: c, end: end, woken: make(chan struct{}, 1)}
	if !c.notifies {
		return w
	}
	req.Watches = true
	req.Wake = func(backend.Wakeup) { w.wake() }
	c.listen(ctx, req, func() {
		w.told.Store(true)
		w.wake() // the store doesn't report earlier events
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

// wait waits until it is time to ask the store again. remaining says how long the state in the
// store's latest answer will last. It is 0 or less if that is unknown. wait returns false if the
// call or the client has ended. Then the caller must not ask again.
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

// waitAfter waits, after a request has failed with err, until it is time for the next one. It
// returns false if there must be no further request.
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
