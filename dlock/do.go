package dlock

import (
	"context"
	"errors"
)

// Do locks, calls fn, and unlocks, also when fn panics or ends its goroutine. It waits for the lock
// as [Locker.LockContext] does; with Wait(0) it gives up with [ErrNotAcquired] if another is at it
// already.
//
// The context that fn gets ends, with cause [ErrLost], when the lock is lost, at the latest when
// the lease has run out on this machine's clock. After a pause of the process the first call of its
// Err reports it; its Done channel, and contexts derived from it, follow a moment later. It also
// ends with cause [ErrClosed] when the client is closed, with ctx, and when fn returns. It carries
// this hold: Do and LockContext of the same lock re-enter with it, in any goroutine, also within a Do
// of another lock. Once the hold is over they return [ErrLost], or [ErrNotHeld] if it was given back.
// For other locks the context says what ctx says.
//
// Do returns fn's error, joined with an [*Error] whose Op is "unlock" if the lock was lost
// meanwhile, even if fn returned nil (it wraps [ErrLost]: test for that first, since fn's error may
// be that of its context), or if the release failed. Whether ctx has ended by then makes no difference:
// the release takes at most 5 s, or what is left of the lease. If the lock was not acquired the error
// is an *Error whose Op is "do". If fn panics, what the release says is logged.
func (l *Locker) Do(ctx context.Context, fn func(context.Context) error, opts ...AcquireOption) error {
	if fn == nil {
		return l.wrap("do", errors.New("the function is nil"))
	}
	who := l.caller(ctx)
	if who.party == party(l) {
		who = caller{party: NewOwner(), alone: true} // its hold is its own
	}
	h, err := l.acquire(ctx, who, acquireOptions{}, opts)
	if err != nil {
		return l.wrap("do", err)
	}
	return l.run(ctx, h, fn)
}

// run calls fn while h is held, and releases it.
func (l *Locker) run(ctx context.Context, h *hold, fn func(context.Context) error) (err error) {
	inside, cancel := l.client.inside(ctx, h)
	returned := false
	defer func() {
		cancel()
		e := l.wrap("unlock", l.client.releaseWithin(withoutCancel(ctx), h))
		if e != nil && !returned {
			l.client.warn("unlock, after a panic", "name", l.name, "err", e)
		}
		err = both(err, e)
	}()
	err = fn(inside)
	returned = true
	return err
}

// withoutCancel is [context.WithoutCancel], for less where ctx never ends.
func withoutCancel(ctx context.Context) context.Context {
	if ctx.Done() == nil {
		return ctx
	}
	return context.WithoutCancel(ctx)
}

// doContext is the context of a Do. Its Err looks at the clock, and so it is right even when no
// timer has run since the process was paused.
type doContext struct {
	context.Context // ends with the caller's, with the hold, and when fn returns
	cancel          context.CancelCauseFunc
	client          *Client
	hold            *hold
}

// Err says whether the context is over.
func (d *doContext) Err() error {
	if err := d.Context.Err(); err != nil || d.client.now() < d.hold.claim.until() {
		return err
	}
	if d.client.isLost(d.hold) {
		d.cancel(ErrLost)
	}
	return d.Context.Err()
}

// inside returns the context for what is done while h is held, and what ends it.
func (c *Client) inside(ctx context.Context, h *hold) (context.Context, func()) {
	ctx = context.WithValue(ctx, identityKey{}, &identity{party: h.party, client: c, hold: h, outer: identityOf(ctx)})
	ctx, cancel := context.WithCancelCause(ctx)
	d := &doContext{ctx, cancel, c, h}
	c.mu.Lock()
	defer c.unlock()
	if h.inside == nil {
		h.inside = make(map[*doContext]struct{})
	}
	h.inside[d] = struct{}{}
	if h.state != live {
		c.endContextsLocked(h, h.state.overError())
	}
	return d, func() {
		cancel(nil)
		c.mu.Lock()
		delete(h.inside, d)
		c.mu.Unlock()
	}
}

// within says whether ctx comes from a Do for which h is held.
func (h *hold) within(ctx context.Context) bool {
	for id := identityOf(ctx); id != nil; id = id.outer {
		if id.hold == h {
			return true
		}
	}
	return false
}
