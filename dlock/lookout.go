package dlock

import (
	"context"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/seed951563bd/distsync/backend"
)

// A lookout lets a call look into the store repeatedly, until it sees the expected state. The store
// tells it when to look. It also polls now and then, since messages get lost, and leases end
// without one.
type lookout struct {
	client   *Client
	end      context.CancelFunc // stops listening
	woken    chan struct{}
	told     atomic.Bool // the store sends messages about changes
	polls    backoff     // pauses between looks if it doesn't send any
	failures backoff
}

// lookOut returns a lookout, which listens until its close is called or ctx ends. lookOut sets Wake
// and Watches of the request.
func (c *Client) lookOut(ctx context.Context, req backend.SubscribeRequest) *lookout {
	ctx, end := context.WithCancel(ctx)
	w := &lookout{client: c, end: end, woken: make(chan struct{}, 1)}
	if c.store.Notifier == nil {
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

// wait waits until the next look is due. remaining is how long the state that the last look saw
// will last; it is 0 or less if unknown. wait returns false if the call or the client has ended, so
// that no look follows.
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

// waitAfter waits for the next look after a look that failed with err. It returns false if no look
// follows.
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
