package dlock

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/seed951563bd/distsync/backend"
)

// step runs one step of the store. The caller can leave when the context ends, when the client is
// closed, or when the step has taken too long, even if the store's client hangs. The outcome of a
// step that the caller has left is unknown. If the store's steps never wait, the caller can't
// leave.
func step[Req, Res any](ctx context.Context, c *Client, do doing[Req, Res], req Req) (Res, error) {
	return stepWithin(ctx, c, patienceWith(c.lease), nil, do, req)
}

// acquireStep is a step that asks for a claim with a lease. If the store grants the claim after the
// caller has left, answeredLate is called.
func (c *Client) acquireStep(
	ctx context.Context, cl *claim, lease time.Duration, req backend.AcquireRequest,
) (backend.AcquireResult, error) {
	if c.prompt {
		return step(ctx, c, backend.Session.Acquire, req)
	}
	late := func(res backend.AcquireResult, err error) { c.answeredLate(cl, res, err) }
	return stepWithin(ctx, c, patienceWith(lease), late, backend.Session.Acquire, req)
}

// doing is a function that makes a step of a session.
type doing[Req, Res any] = func(backend.Session, context.Context, Req) (Res, error)

// beside turns do, a step of one of the session's capabilities, into a doing.
func beside[Req, Res any](do func(context.Context, Req) (Res, error)) doing[Req, Res] {
	return func(_ backend.Session, ctx context.Context, req Req) (Res, error) {
		return do(ctx, req)
	}
}

// stepWithin is step with a time limit, after which the caller leaves the step. 0 means no limit.
// If late isn't nil, it is called with an answer that comes after the caller has left.
func stepWithin[Req, Res any](
	ctx context.Context, c *Client, patience time.Duration, late func(Res, error),
	do doing[Req, Res], req Req,
) (Res, error) {
	if !c.tracesSteps {
		return untraced(ctx, c, patience, late, do, req)
	}
	began := c.now()
	res, err := untraced(ctx, c, patience, late, do, req)
	c.stepDone(ctx, req, began, err)
	return res, err
}

func untraced[Req, Res any](
	ctx context.Context, c *Client, patience time.Duration, late func(Res, error),
	do doing[Req, Res], req Req,
) (Res, error) {
	if c.prompt {
		return do(c.session, ctx, req)
	}
	if !c.begin() {
		var none Res
		return none, &backend.Error{Kind: backend.Retry, Err: ErrClosed}
	}
	ctx, stop := c.bounded(ctx, patience)
	defer stop()
	if c.leavable {
		defer c.running.Done()
		return here(ctx, c, do, req)
	}
	return aside(ctx, c, c.running.Done, late, do, req)
}

// begin counts a step for which Close waits. It returns false if the client is closed.
func (c *Client) begin() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.closed {
		c.running.Add(1)
	}
	return !c.closed
}

// here runs a step in the caller's goroutine. It is for stores whose steps return when their
// context ends.
func here[Req, Res any](ctx context.Context, c *Client, do doing[Req, Res], req Req) (Res, error) {
	res, err := do(c.session, ctx, req)
	return res, unanswered(ctx, err)
}

// unanswered returns the error of a step. It returns errUnanswered instead of the error of ctx,
// since the caller knows that ctx has ended.
func unanswered(ctx context.Context, err error) error {
	if err != nil && ctx.Err() != nil && errors.Is(err, ctx.Err()) {
		return &backend.Error{Kind: backend.KindOf(err), Err: errUnanswered}
	}
	return err
}

// aside runs a step in a goroutine, which calls done at its end. It returns errUnanswered if ctx
// ends before the answer. Then, if late isn't nil, late is called with the answer.
func aside[Req, Res any](
	ctx context.Context, c *Client, done func(), late func(Res, error), do doing[Req, Res], req Req,
) (Res, error) {
	type answer struct {
		res Res
		err error
	}
	answers, left := make(chan answer, 1), new(atomic.Bool)
	go func() {
		defer done()
		res, err := do(c.session, ctx, req)
		answers <- answer{res, err}
		if late != nil && left.Load() {
			select {
			case a := <-answers: // the caller has left without it
				late(a.res, a.err)
			default:
			}
		}
	}()
	select {
	case a := <-answers:
		return a.res, unanswered(ctx, a.err)
	case <-ctx.Done():
	}
	left.Store(true)
	select {
	case a := <-answers:
		return a.res, unanswered(ctx, a.err)
	default:
		var none Res
		return none, errUnanswered
	}
}

// answeredLate records that the store granted a claim after the caller had left. If the claim has
// been given up by then, answeredLate starts its take-back.
func (c *Client) answeredLate(cl *claim, res backend.AcquireResult, err error) {
	if err != nil || !res.Acquired {
		return
	}
	c.mu.Lock()
	defer c.unlock()
	cl.StrayUntil(c.now())
	if cl.dead && !cl.leaving {
		c.takeBackLocked(cl)
	}
}

// The client waits for a step for as long as the answer may be useful: for a lease, within these
// limits. A slow store may need longer than a short lease to refuse a request. A step about a very
// long lease shouldn't hang for all of that lease.
const (
	shortestPatience = time.Second
	longestPatience  = DefaultLease
)

// patienceWith returns how long to wait for a step that is about a lease.
func patienceWith(lease time.Duration) time.Duration {
	return min(max(lease, shortestPatience), longestPatience)
}

// bounded returns a context for a step. It ends with ctx, when the client is closed, and after d,
// unless d is 0.
func (c *Client) bounded(ctx context.Context, d time.Duration) (context.Context, func()) {
	if end, ok := ctx.Deadline(); d == 0 || ok && time.Until(end) <= d {
		return c.untilClosed(ctx)
	}
	if _, ok := ctx.(*patience); ok {
		return c.untilClosed(ctx) // ctx ends in time
	}
	if ctx.Done() == nil && d == patienceWith(c.lease) {
		p := c.patience(&c.patientSteps, d)
		if ctx == context.Background() {
			return p.untilClosed, func() {}
		}
		return closing{p.untilClosed, ctx}, func() {}
	}
	ctx, cancel := context.WithTimeout(ctx, d)
	stop := context.AfterFunc(c.ctx, cancel)
	return ctx, func() { stop(); cancel() }
}

// untilClosed returns a context that ends with ctx, and when the client is closed.
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

// withCancelCause is [context.WithCancelCause] for contexts that any goroutine may cancel. A cancel
// doesn't hang even if a method of the caller's context hangs.
func withCancelCause(ctx context.Context) (context.Context, context.CancelCauseFunc) {
	if ctx.Done() != nil {
		ctx = gate{ctx, ctx.Value(cancelKey)}
	}
	return context.WithCancelCause(ctx)
}

// A gate wraps a caller's context. A context that is canceled asks its parent for one value. The
// gate has already asked the caller's context for that value, so a cancel doesn't call the caller's
// context.
type gate struct {
	context.Context
	parent any // the value for cancelKey
}

func (g gate) Value(key any) any {
	if key == cancelKey {
		return g.parent
	}
	return g.Context.Value(key)
}

// cancelKey is the key of the value that a cancel asks for. Package context doesn't export it, so a
// probe finds it.
var cancelKey = func() any {
	never, stop := context.WithCancel(context.Background())
	defer stop()
	p := &probe{Context: never}
	_, cancel := context.WithCancel(p)
	cancel()
	return p.asked
}()

// A probe records the last key that it was asked for.
type probe struct {
	context.Context
	asked any
}

func (p *probe) Value(key any) any {
	p.asked = key
	return nil
}

// closing is a context that ends with the client, with the values of a caller's context.
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

// A patience is a context that ends when an unlock or a step has taken too long, with cause
// errUnanswered. Calls that begin at about the same time share one, and so share its timer.
type patience struct {
	context.Context
	untilClosed context.Context // ends with this context or when the client is closed
	end         instant
}

// patience returns a context that ends after d, or up to an eighth of d earlier. If the context in
// latest ends in time, it is that one. Otherwise the new context replaces it.
func (c *Client) patience(latest *atomic.Pointer[patience], d time.Duration) *patience {
	end := c.now() + d
	if p := latest.Load(); p != nil && p.end >= end-d/8 {
		return p
	}
	forAll, endForAll := context.WithCancelCause(context.Background())
	untilClosed, endUntilClosed := context.WithCancelCause(c.ctx)
	time.AfterFunc(d, func() {
		endForAll(errUnanswered)
		endUntilClosed(errUnanswered)
	})
	p := &patience{forAll, untilClosed, end}
	latest.Store(p)
	return p
}

// ended returns how ctx has ended: its error and, if different, its cause.
func ended(ctx context.Context) error {
	err, cause := ctx.Err(), context.Cause(ctx)
	if cause == nil || errors.Is(cause, err) {
		return cause
	}
	return both(err, cause)
}

// pause waits for d. It returns false if ctx or the client ended before that.
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

// longestPause returns the longest time between requests of a call that waits with a lease. Even
// with long leases, the call soon notices that the store is back, or that a message was lost.
func longestPause(lease time.Duration) time.Duration { return min(lease, DefaultLease) / 3 }

// A backoff doubles from a first delay up to a limit.
type backoff struct{ delay time.Duration }

// next returns the next delay. It is partly random, so that clients that failed together don't come
// back together.
func (b *backoff) next(first, limit time.Duration) time.Duration {
	b.delay = min(max(2*b.delay, first), max(limit, first))
	return b.delay/2 + rand.N(b.delay/2+1)
}

func (b *backoff) reset() { b.delay = 0 }
