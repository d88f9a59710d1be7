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
	if !c.tracesSteps {
		return untraced(ctx, c, do, req)
	}
	began := c.now()
	res, err := untraced(ctx, c, do, req)
	c.stepDone(ctx, req, began, err)
	return res, err
}

func untraced[Req, Res any](ctx context.Context, c *Client, do func(backend.Session, context.Context, Req) (Res, error), req Req) (Res, error) {
	if c.prompt {
		return do(c.session, ctx, req)
	}
	if !c.begin() {
		var none Res
		return none, &backend.Error{Kind: backend.Retry, Err: ErrClosed}
	}
	ctx, stop := c.untilClosed(ctx)
	defer stop()
	if c.leavable != nil {
		defer c.running.Done()
		return here(ctx, c, do, req)
	}
	return aside(ctx, c, c.running.Done, do, req)
}

// begin counts what Close waits for, unless the client is closed.
func (c *Client) begin() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.closed {
		c.running.Add(1)
	}
	return !c.closed
}

// here runs a step that can be left.
func here[Req, Res any](ctx context.Context, c *Client, do func(backend.Session, context.Context, Req) (Res, error), req Req) (Res, error) {
	res, err := do(c.session, ctx, req)
	return res, unanswered(ctx, err)
}

// unanswered returns the error of a step without what it says of the end of ctx, which isn't news.
func unanswered(ctx context.Context, err error) error {
	if err != nil && ctx.Err() != nil && errors.Is(err, ctx.Err()) {
		return &backend.Error{Kind: backend.KindOf(err), Err: errUnanswered}
	}
	return err
}

// aside runs a step in a goroutine, which calls done at its end, and returns early if ctx ends.
func aside[Req, Res any](ctx context.Context, c *Client, done func(), do func(backend.Session, context.Context, Req) (Res, error), req Req) (Res, error) {
	type answer struct {
		res Res
		err error
	}
	answers := make(chan answer, 1)
	go func() {
		defer done()
		res, err := do(c.session, ctx, req)
		answers <- answer{res, err}
	}()
	select {
	case a := <-answers:
		return a.res, unanswered(ctx, a.err)
	case <-ctx.Done():
	}
	select {
	case a := <-answers:
		return a.res, unanswered(ctx, a.err)
	default:
		var none Res
		return none, errUnanswered
	}
}

// untilClosed returns a context that ends with ctx, and also when the client is closed.
func (c *Client) untilClosed(ctx context.Context) (context.Context, func()) {
	if p, ok := ctx.(*patience); ok {
		return p.untilClosed, func() {}
	}
	switch {
	case ctx == context.Background():
		return c.ctx, func() {}
	case ctx.Done() == nil:
		return closing{c.ctx, ctx}, func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(c.ctx, cancel)
	return ctx, func() { stop(); cancel() }
}

// withCancelCause is [context.WithCancelCause] for contexts that are ended in any goroutine: that doesn't hang because the
// context of a caller does.
func withCancelCause(ctx context.Context) (context.Context, context.CancelCauseFunc) {
	if ctx.Done() != nil {
		ctx = gate{ctx, ctx.Value(cancelKey)}
	}
	return context.WithCancelCause(ctx)
}

// A gate is a caller's context that is asked only once, by the caller, what a cancel asks the parent of a context.
type gate struct {
	context.Context
	parent any // under cancelKey
}

func (g gate) Value(key any) any {
	if key == cancelKey {
		return g.parent
	}
	return g.Context.Value(key)
}

// cancelKey is the key for which a cancel asks. Package context doesn't say which that is.
var cancelKey = func() any {
	never, stop := context.WithCancel(context.Background())
	defer stop()
	p := &probe{Context: never}
	_, cancel := context.WithCancel(p)
	cancel()
	return p.asked
}()

// A probe notes for which key it was asked last.
type probe struct {
	context.Context
	asked any
}

func (p *probe) Value(key any) any {
	p.asked = key
	return nil
}

// closing is the context of a client, with the values of a caller's.
type closing struct {
	context.Context
	caller context.Context
}

func (c closing) Value(key any) any {
	if v := c.caller.Value(key); v != nil {
		return v
	}
	return c.Context.Value(key)
}

// A patience is a context that ends when an unlock has taken too long, with cause errUnanswered. Those
// that begin at about the same time share one, and so need no timer each.
type patience struct {
	context.Context
	untilClosed context.Context // ends when the client is closed, too
	end         instant
}

// patience returns a context that ends after longestRelease, or up to an eighth of it earlier.
func (c *Client) patience() *patience {
	end := c.now() + longestRelease
	if p := c.patient.Load(); p != nil && p.end >= end-longestRelease/8 {
		return p
	}
	forAll, endForAll := context.WithCancelCause(context.Background())
	untilClosed, endUntilClosed := context.WithCancelCause(c.ctx)
	time.AfterFunc(longestRelease, func() {
		endForAll(errUnanswered)
		endUntilClosed(errUnanswered)
	})
	p := &patience{forAll, untilClosed, end}
	c.patient.Store(p)
	return p
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

// longestPause returns for how long nothing is asked of the store by one who waits with that lease: long
// leases are no reason to notice late that it is back, or that a message was lost.
func longestPause(lease time.Duration) time.Duration { return min(lease, DefaultLease) / 3 }

// A backoff doubles from a first delay up to a limit.
type backoff struct{ delay time.Duration }

// next returns the next delay, with jitter: clients that failed together shouldn't return together.
func (b *backoff) next(first, limit time.Duration) time.Duration {
	b.delay = min(max(2*b.delay, first), max(limit, first))
	return b.delay/2 + rand.N(b.delay/2+1)
}

func (b *backoff) reset() { b.delay = 0 }
