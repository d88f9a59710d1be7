package dlock

import (
	"context"
	"runtime"
)

// Callers can watch for the end of a hold, by a context or a channel.

// holdContext is the context of a hold. Its Err checks the clock, so it is right even if no timer
// has run since the process was paused. Within this package, only its Hold refers to it, so that a
// dropped Hold can be detected.
type holdContext struct {
	context.Context // ends with the caller's context, with the hold, and at the release
	id              identity
	line            *lifeline
	watch           runtime.Cleanup // for a Hold: detects that it was dropped
}

// A lifeline lets a hold end one of its contexts.
type lifeline struct{ cancel context.CancelCauseFunc }

// inside returns a context for work under h.
func (h *hold) inside(ctx context.Context, c *Client) *holdContext {
	id := identity{party: h.party, client: c, hold: h, outer: identityOf(ctx)}
	ctx, cancel := withCancelCause(ctx)
	d := &holdContext{Context: ctx, id: id, line: &lifeline{cancel}}
	s := c.lock()
	defer c.unlock()
	t := h.watched()
	if t.contexts == nil {
		t.contexts = make(map[*lifeline]struct{})
	}
	t.contexts[d.line] = struct{}{}
	if h.state != live {
		h.endContexts(s, h.ended())
	}
	return d
}

// Err returns an error if the context has ended.
func (d *holdContext) Err() error {
	if err := d.Context.Err(); err != nil || d.id.client.now() < d.id.hold.claim.Until() {
		return err
	}
	if err := d.id.hold.lossError(d.id.client); err != nil {
		d.line.cancel(err)
	}
	return d.Context.Err()
}

// Value returns the value in the caller's context. For the identity key it returns the hold's
// identity, so that calls with this context act for the hold.
func (d *holdContext) Value(key any) any {
	if key == (identityKey{}) {
		return &d.id
	}
	return d.Context.Value(key)
}

// end ends the context, because its hold is being released.
func (d *holdContext) end() {
	d.watch.Stop()
	d.line.cancel(nil)
	c, h := d.id.client, d.id.hold
	c.mu.Lock()
	defer c.mu.Unlock()
	if h.watchers != nil {
		delete(h.watchers.contexts, d.line)
	}
}

// follow ends the context of a lifeline when the hold h ends.
func (h *hold) follow(c *Client, line *lifeline) {
	s := c.lock()
	defer c.unlock()
	t := h.watched()
	if t.contexts == nil {
		t.contexts = make(map[*lifeline]struct{})
	}
	t.contexts[line] = struct{}{}
	if h.state != live {
		h.endContexts(s, h.ended())
	}
}

// unfollow undoes follow. It is called before the hold is released.
func (h *hold) unfollow(c *Client, line *lifeline) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if h.watchers != nil {
		delete(h.watchers.contexts, line)
	}
}

// lostChannel returns a channel that is closed when a hold is lost or the client is closed.
func (h *hold) lostChannel(c *Client) <-chan struct{} {
	s := c.lock()
	defer c.unlock()
	h.check(s)
	t := h.watched()
	if len(t.over) == 0 {
		t.over = []*notice{h.noticeFor()}
		if h.state == lost || h.state == forsaken {
			t.over[0].give()
		}
	}
	return t.over[0].over
}

// stateOf returns the error that says how a hold has ended, or nil if it hasn't. The parameter
// given says whether Release was called.
func (l *Locker) stateOf(h *hold, given bool) error {
	c := l.client
	s := c.lock()
	defer c.unlock()
	switch {
	case h.check(s) && !given:
		return nil
	case h.state == live:
		return l.wrap("hold", ErrNotHeld)
	case h.state == lost:
		return h.ended()
	default:
		return l.wrap("hold", h.overError())
	}
}

// within reports whether ctx is, or is derived from, a context of the hold.
func (h *hold) within(ctx context.Context) bool {
	for id := identityOf(ctx); id != nil; id = id.outer {
		if id.hold == h {
			return true
		}
	}
	return false
}

// withoutCancel is like [context.WithoutCancel], but allocates nothing if ctx never ends.
func withoutCancel(ctx context.Context) context.Context {
	if ctx.Done() == nil {
		return ctx
	}
	return context.WithoutCancel(ctx)
}

// reportLeft logs how many unlocks are missing after the function that ran under the lock has
// returned. They include unlocks of read locks that the function acquired while it held the write
// lock. reportLeft returns how many times the function re-entered the hold without unlocking it. It
// must be called only if no other calls use the hold's party.
func (h *hold) reportLeft(c *Client, released bool) (left int) {
	s := c.lock()
	defer c.unlock()
	if h.state == live {
		left = int(h.count)
	}
	all := left
	if r := h.claim.present(s).reader(h.party); r != nil && r != h && r.state == live {
		all += int(r.count)
	}
	what := "a function has returned, and its lock stays held"
	if released {
		what = "a function has returned, and its lock is released"
	}
	if all > 0 {
		s.warn(what+": what it has re-entered isn't given back", "name", h.claim.object.name,
			"kind", h.kind.String(), "holder", h.claim.owner, "count", all)
	}
	return left
}
