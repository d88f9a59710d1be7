package dlock

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/seed951563bd/distsync/backend"
)

// step runs one step of the store so that the caller can leave when its context ends, when the
// client is closed, or when it has taken too long, whatever the store's client does. What it leaves
// behind has an unknown outcome. Where steps never wait that is not needed.
func step[Req, Res any](ctx context.Context, c *Client, do doing[Req, Res], req Req) (Res, error) {
	return stepWithin(ctx, c, patienceWith(c.lease), nil, do, req)
}

// acquireStep is a step that asks for a claim with that lease. What is granted when nobody waits
// for it any more is taken back.
func (c *Client) acquireStep(ctx context.Context, cl *claim, lease time.Duration, req backend.AcquireRequest) (backend.AcquireResult, error) {
	if c.prompt {
		return step(ctx, c, backend.Session.Acquire, req)
	}
	late := func(res backend.AcquireResult, err error) { c.answeredLate(cl, res, err) }
	return stepWithin(ctx, c, patienceWith(lease), late, backend.Session.Acquire, req)
}

// doing is how a session takes a step.
type doing[Req, Res any] = func(backend.Session, context.Context, Req) (Res, error)

// beside is how it takes one that not every session can: by way of one of its capabilities.
func beside[Req, Res any](do func(context.Context, Req) (Res, error)) doing[Req, Res] {
	return func(_ backend.Session, ctx context.Context, req Req) (Res, error) { return do(ctx, req) }
}

// stepWithin is step that is left after that time, unless that is 0. If it is answered then, late
// hears of it, unless that is nil.
func stepWithin[Req, Res any](ctx context.Context, c *Client, patience time.Duration, late func(Res, error), do doing[Req, Res], req Req) (Res, error) {
	if !c.tracesSteps {
		return untraced(ctx, c, patience, late, do, req)
	}
	began := c.now()
	res, err := untraced(ctx, c, patience, late, do, req)
	c.stepDone(ctx, req, began, err)
	return res, err
}

func untraced[Req, Res any](ctx context.Context, c *Client, patience time.Duration, late func(Res, error), do doing[Req, Res], req Req) (Res, error) {
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
func here[Req, Res any](ctx context.Context, c *Client, do doing[Req, Res], req Req) (Res, error) {
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

// aside runs a step in a goroutine, which calls done at its end, and returns early if ctx ends:
// late hears of an answer that comes after that, unless it is nil.
func aside[Req, Res any](ctx context.Context, c *Client, done func(), late func(Res, error), do doing[Req, Res], req Req) (Res, error) {
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
			case a := <-answers: // nobody has it
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

// answeredLate notes the answer to a request for a claim that came when nobody waited for it any
// more.
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

// Steps are waited for as long as their answers may be of use, which is a lease, but not for very
// long where that is, nor for less than a slow store needs to say no.
const (
	shortestPatience = time.Second
	longestPatience  = DefaultLease
)

// patienceWith returns for how long a step is waited for that has to do with that lease.
func patienceWith(lease time.Duration) time.Duration {
	return min(max(lease, shortestPatience), longestPatience)
}

// bounded returns a context for a step, which ends with ctx, when the client is closed, and after
// that time, unless it is 0.
func (c *Client) bounded(ctx context.Context, d time.Duration) (context.Context, func()) {
	if end, ok := ctx.Deadline(); d == 0 || ok && time.Until(end) <= d {
		return c.untilClosed(ctx)
	}
	if _, ok := ctx.(*patience); ok {
		return c.untilClosed(ctx) // it ends in time
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

// withCancelCause is [context.WithCancelCause] for contexts that are ended in any goroutine: that
// doesn't hang because the context of a caller does.
func withCancelCause(ctx context.Context) (context.Context, context.CancelCauseFunc) {
	if ctx.Done() != nil {
		ctx = gate{ctx, ctx.Value(cancelKey)}
	}
	return context.WithCancelCause(ctx)
}

// A gate is a caller's context that is asked only once, by the caller, what a cancel asks the
// parent of a context.
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

// A patience is a context that ends when an unlock, or a step, has taken too long, with cause
// errUnanswered. Those that begin at about the same time share one, and so need no timer each.
type patience struct {
	context.Context
	untilClosed context.Context // ends when the client is closed, too
	end         instant
}

// patience returns a context that ends after that time, or up to an eighth of it earlier: the
// latest of its sort, if it will do.
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
