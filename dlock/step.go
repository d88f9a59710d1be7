package dlock

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/seed951563bd/distsync/backend"
)

// step runs one step of the store so that the caller can leave when its context ends or the client
// is closed, whatever the store's client does. What it leaves behind has an unknown outcome. Where
// steps never wait that is not needed.
func step[Req, Res any](ctx context.Context, c *Client, do func(backend.Session, context.Context, Req) (Res, error), req Req) (Res, error) {
	var none Res
	if c.prompt {
		return do(c.session, ctx, req)
	}
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return none, &backend.Error{Kind: backend.Retry, Err: ErrClosed}
	}
	c.running.Add(1)
	c.mu.Unlock()
	return leavable(ctx, c, c.ctx.Done(), c.running.Done, do, req)
}

// leavable runs do in a goroutine, which calls done at its end, and returns early if ctx ends or
// closed is closed.
func leavable[Req, Res any](ctx context.Context, c *Client, closed <-chan struct{}, done func(), do func(backend.Session, context.Context, Req) (Res, error), req Req) (Res, error) {
	type answer struct {
		res Res
		err error
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	answers := make(chan answer, 1)
	go func() {
		defer done()
		res, err := do(c.session, ctx, req)
		answers <- answer{res, err}
	}()
	select {
	case a := <-answers:
		return a.res, a.err
	case <-closed:
	case <-ctx.Done():
	}
	var none Res
	select {
	case a := <-answers:
		return a.res, a.err
	default:
		return none, errUnanswered
	}
}

// ended returns why ctx is over: its error and, where they differ, its cause.
func ended(ctx context.Context) error {
	err, cause := ctx.Err(), context.Cause(ctx)
	if cause == nil || errors.Is(cause, err) {
		return cause
	}
	return both(err, cause)
}

// pause waits for d, and says whether it did: not if ctx or the client ended meanwhile.
func (c *Client) pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
	case <-c.ctx.Done():
	}
	return false
}

// A backoff doubles from a first delay up to a limit.
type backoff struct{ delay time.Duration }

// next returns the next delay, with jitter: clients that failed together shouldn't return together.
func (b *backoff) next(first, limit time.Duration) time.Duration {
	b.delay = min(max(2*b.delay, first), max(limit, first))
	return b.delay/2 + rand.N(b.delay/2+1)
}

func (b *backoff) reset() { b.delay = 0 }
