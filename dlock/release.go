package dlock

import (
	"context"
	"errors"
	"time"

	"github.com/seed951563bd/distsync/backend"
)

// longestRelease bounds how long an unlock tries to reach the store before it goes on in the
// background.
const longestRelease = 5 * time.Second

// releaseParty gives back the latest hold of p.
func (c *Client) releaseParty(ctx context.Context, name string, p party) error {
	for {
		h := c.latest(name, p)
		if h == nil {
			return ErrNotHeld
		}
		if err := c.release(ctx, h); !errors.Is(err, errAgain) {
			return err
		}
	}
}

// latest returns what p would unlock, lost or not, or nil.
func (c *Client) latest(name string, p party) *hold {
	c.mu.Lock()
	defer c.unlock()
	if h := c.holds[name]; h != nil && h.party == p {
		return h
	}
	return c.lastLoss(name, p)
}

// release gives back one hold. It is errAgain if another goroutine gave back the last one.
func (c *Client) release(ctx context.Context, h *hold) error {
	if c.handOn(h) {
		return nil
	}
	ctx, cancel := c.releaseContext(ctx, h)
	defer cancel()
	if h.slot != nil {
		if !h.takeSlot(ctx) {
			return c.releaseLater(ctx, h)
		}
		defer func() { <-h.slot }()
	}
	c.mu.Lock()
	now := c.now()
	switch {
	case h.state == released:
		c.unlock()
		return errAgain
	case h.state == forsaken:
		return c.releaseForsaken(ctx, h)
	case !c.checkAt(h, now):
		err := c.releaseLost(h)
		c.unlock()
		return err
	case h.count > 1:
		return c.releaseOne(ctx, h, now)
	default:
		return c.releaseLast(ctx, h, now)
	}
}

// takeSlot waits for the step of the hold that is under way, if there is one, and says whether that
// ended before ctx.
func (h *hold) takeSlot(ctx context.Context) bool {
	select {
	case h.slot <- struct{}{}:
		return true
	default:
	}
	select {
	case h.slot <- struct{}{}:
		return true
	case <-ctx.Done():
		return false
	}
}

// budget returns how long an unlock may take.
func (h *hold) budget(now instant) time.Duration {
	left := instant(h.deadline.Load()) - now
	if left <= 0 {
		return longestRelease // it is lost, and no store is asked
	}
	return min(left, longestRelease)
}

// releaseContext returns a context in which to release. One that is over already doesn't keep
// anybody from it.
func (c *Client) releaseContext(ctx context.Context, h *hold) (context.Context, context.CancelFunc) {
	if ctx.Err() != nil {
		ctx = context.WithoutCancel(ctx)
	}
	if c.prompt {
		return ctx, func() {} // it takes no time
	}
	budget := h.budget(c.now())
	if ctx == context.Background() && budget == longestRelease {
		return c.patience(), func() {}
	}
	return context.WithTimeoutCause(ctx, budget, errUnanswered)
}

// releaseLater lets an unlock that must wait for a step of its own hold go on in the background.
func (c *Client) releaseLater(ctx context.Context, h *hold) error {
	c.mu.Lock()
	defer c.unlock()
	c.background(func() {
		// Of this hold only: its owner may have taken another by then.
		if err := c.release(context.Background(), h); err != nil && err != errAgain {
			c.logger.Warn("dlock: late unlock", "name", h.name, "err", err)
		}
	})
	if h.count > 1 {
		return nil // one of several: the caller has given it back
	}
	return ended(ctx)
}

// releaseLost gives back a hold that is lost. c.mu is held.
func (c *Client) releaseLost(h *hold) error {
	h.count--
	if h.count <= 0 {
		c.forget(h)
		c.takeBack(h.claim)
	}
	return ErrLost
}

// releaseOne gives back one of several holds. Whatever becomes of the request, the caller has given
// it back: if it wasn't carried out, the store counts more than we do, and the last release drains
// that. c.mu is held; it is unlocked on return.
func (c *Client) releaseOne(ctx context.Context, h *hold, now instant) error {
	lease := max(h.lease, h.remaining(now))
	h.count--
	h.sending(now, c.stored(lease))
	c.unlock()

	res, err := step(ctx, c, backend.Session.Release, h.releaseRequest(c.stored(lease)))

	c.mu.Lock()
	defer c.unlock()
	switch {
	case h.state == forsaken:
		return nil
	case !c.check(h):
		return ErrLost
	case err != nil:
		if backend.KindOf(err) == backend.Unknown {
			h.doubted(lease)
		}
		return nil
	case res.Outcome != backend.Left:
		c.lose(h, ErrLost) // the store had lost it, and the last re-entry began a fresh one
		return ErrLost
	}
	c.prolong(h, now, lease, false)
	return nil
}

// releaseLast gives back the last hold. From here on its number is dead: whatever happens, nothing
// re-enters or renews it any more. c.mu is held; it is unlocked on return.
func (c *Client) releaseLast(ctx context.Context, h *hold, now instant) error {
	h.state = released
	h.count = 0
	lease := c.stored(h.lease)
	h.sending(now, lease)
	c.drop(h)
	c.postpone(h)
	c.endContexts(h, ErrNotHeld) // there are none, unless fn gave back more than it took
	c.unlock()

	freed, err := c.drain(ctx, h, lease)

	c.mu.Lock()
	defer c.unlock()
	switch {
	case freed && h.handed && now >= c.handoverEnd(h):
		c.yield(h)
	default: // freed or not: nobody here has it any more
		c.wake(h.name)
	}
	if h.unsure || err != nil && err != ErrLost {
		c.takeBack(h.claim)
	}
	return err
}

// drain repeats a last release until the store holds nothing of that number any more. It says
// whether it was us who freed it.
func (c *Client) drain(ctx context.Context, h *hold, lease time.Duration) (freed bool, err error) {
	var tries backoff
	sent := false // a release of ours may have been carried out
	for {
		res, err := step(ctx, c, backend.Session.Release, h.releaseRequest(lease))
		switch {
		case err == nil && res.Outcome == backend.Freed:
			return true, nil
		case err == nil && res.Outcome == backend.Left:
			sent = true
			if ctx.Err() == nil {
				continue
			}
			err = errUnanswered
		case err == nil && sent:
			return true, nil
		case err == nil:
			return false, ErrLost
		case backend.KindOf(err) == backend.Refused:
			return false, err
		case backend.KindOf(err) == backend.Unknown:
			sent = true
		}
		switch {
		case c.prompt: // nothing is gained by waiting
			return false, err
		case c.pause(ctx, tries.next(firstBackoff, lease/3)):
		case ctx.Err() == nil: // closed
			return c.releaseOnce(ctx, h, lease, sent)
		default:
			return false, c.undrained(ctx, err)
		}
	}
}

// undrained returns why a last release ends without the store's word.
func (c *Client) undrained(ctx context.Context, err error) error {
	cause := context.Cause(ctx)
	switch {
	case errors.Is(err, cause):
		return err
	case cause == errUnanswered:
		return both(errUnanswered, err)
	default:
		return both(ended(ctx), err)
	}
}

// releaseForsaken gives back one hold after Close, with one request. c.mu is held; it is unlocked
// on return.
func (c *Client) releaseForsaken(ctx context.Context, h *hold) error {
	h.count--
	if h.count <= 0 {
		h.state = released
		c.drop(h)
	}
	lease := c.stored(h.lease)
	c.unlock()
	_, err := c.releaseOnce(ctx, h, lease, false)
	return err
}

// releaseOnce sends one release, whether the client is closed or not. If one was sent before, it is
// no surprise that nothing is held.
func (c *Client) releaseOnce(ctx context.Context, h *hold, lease time.Duration, sent bool) (freed bool, err error) {
	var res backend.ReleaseResult
	if req := h.releaseRequest(lease); c.leavable != nil {
		res, err = here(ctx, c, backend.Session.Release, req)
	} else {
		res, err = aside(ctx, c, func() {}, backend.Session.Release, req)
	}
	switch {
	case err != nil:
		return false, err
	case res.Outcome == backend.NotHeld && !sent:
		return false, ErrLost
	default:
		return res.Outcome == backend.Freed, nil
	}
}

func (cl *claim) releaseRequest(lease time.Duration) backend.ReleaseRequest {
	return backend.ReleaseRequest{Name: cl.name, Owner: cl.owner, Lease: lease}
}
