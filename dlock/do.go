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
// this hold and nothing else. Do and LockContext of the same lock re-enter with it, in any
// goroutine. For any other lock it names no owner, whatever ctx does: within a Do of y inside a Do
// of x, use the context of the outer one to re-enter x, or it waits for ever.
//
// Do returns fn's error, joined with an [*Error] whose Op is "unlock" if the lock was lost
// meanwhile, even if fn returned nil (it wraps [ErrLost]: test for that first, since fn's error may
// be that of its context), or if the release failed. If the lock was not acquired it is an *Error
// whose Op is "do".
func (l *Locker) Do(ctx context.Context, fn func(context.Context) error, opts ...AcquireOption) error {
	if fn == nil {
		return l.wrap("do", errors.New("the function is nil"))
	}
	p := l.caller(ctx)
	if p == party(l) {
		p = NewOwner() // its hold is its own: it needs no gate
	}
	h, err := l.acquire(ctx, p, acquireOptions{}, opts)
	if err != nil {
		return l.wrap("do", err)
	}
	return l.run(ctx, h, fn)
}

// run calls fn while h is held, and releases it.
func (l *Locker) run(ctx context.Context, h *hold, fn func(context.Context) error) (err error) {
	inside, cancel := l.client.inside(ctx, h)
	defer func() {
		cancel()
		e := l.client.release(ctx, h)
		if e == errAgain {
			e = ErrNotHeld // fn gave back more than it took
		}
		if e != nil {
			err = both(err, l.wrap("unlock", e))
		}
	}()
	return fn(inside)
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
	if err := d.Context.Err(); err != nil || d.client.now() < instant(d.hold.deadline.Load()) {
		return err
	}
	if d.client.isLost(d.hold) {
		d.cancel(ErrLost)
	}
	return d.Context.Err()
}

// inside returns the context for what is done while h is held, and what ends it.
func (c *Client) inside(ctx context.Context, h *hold) (context.Context, func()) {
	ctx = context.WithValue(ctx, identityKey{}, &identity{party: h.party, client: c, name: h.name})
	ctx, cancel := context.WithCancelCause(ctx)
	d := &doContext{ctx, cancel, c, h}
	c.mu.Lock()
	defer c.unlock()
	if h.inside == nil {
		h.inside = make(map[*doContext]struct{})
	}
	h.inside[d] = struct{}{}
	switch h.state {
	case lost:
		c.endContexts(h, ErrLost)
	case forsaken:
		c.endContexts(h, ErrClosed)
	}
	return d, func() {
		cancel(nil)
		c.mu.Lock()
		delete(h.inside, d)
		c.mu.Unlock()
	}
}
