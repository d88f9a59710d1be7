package dlock

import (
	"cmp"
	"context"
	"log/slog"
	"runtime"
	"time"

	"github.com/seed951563bd/distsync/backend"
)

// longestRelease limits how long an unlock tries to reach the store before it continues in the
// background.
const longestRelease = 5 * time.Second

// releaseParty performs one release of p's latest hold on a Locker's lock.
func (l *Locker) releaseParty(ctx context.Context, p party) error {
	for {
		h := l.latest(p)
		if h == nil {
			return ErrNotHeld
		}
		if err := h.giveUp(ctx, l.client); err != errAgain {
			return err
		}
	}
}

// latest returns the hold that an unlock by p would release, or nil. The hold might be lost.
func (l *Locker) latest(p party) *hold {
	s := l.client.lock()
	defer l.client.mu.Unlock()
	if h := l.presentHold(s, p); h != nil && !h.offered {
		return h
	}
	return s.lastLoss(l.lostKey(p))
}

// presentHold returns a party's hold on a Locker's lock, or nil. The hold might have expired.
func (l *Locker) presentHold(s *state, p party) *hold {
	o := s.object(l.kind, l.name)
	if l.kind.Shared() || o == nil {
		return o.reader(p)
	}
	if h := o.alone; h != nil && h.party == p && h.kind == l.kind {
		return h
	}
	return nil
}

// releaseWithin performs one release of a hold that belongs to a Do or a [Hold]. ctx is the
// caller's context, or a context of the hold.
func (h *hold) releaseWithin(ctx context.Context, c *Client) error {
	if err := h.giveUp(ctx, c); err != errAgain {
		return err
	}
	return ErrNotHeld // the function released more than it took
}

// giveUp performs one release of a hold on behalf of a caller, and reports the release.
func (h *hold) giveUp(ctx context.Context, c *Client) error {
	debug := c.log.logger.Enabled(ctx, slog.LevelDebug)
	if len(c.traces) == 0 && !debug {
		err := h.explained(c, h.releaseUntold(ctx, c))
		if err != errAgain {
			c.counts.released.Add(1)
		}
		return err
	}
	e, tell := h.releaseTold(ctx, c)
	return c.gaveUp(ctx, e, tell, debug)
}

// gaveUp reports the outcome of an unlock to the traces, the log and the counters.
func (c *Client) gaveUp(ctx context.Context, e ReleaseDone, tell, debug bool) error {
	if e.Err == errAgain {
		return e.Err
	}
	c.counts.released.Add(1)
	if tell {
		c.traces.releaseDone(ctx, e)
	}
	if debug {
		c.debug("unlock", "name", e.Name, "kind", e.Kind.String(), "holder", e.HolderID,
			"outcome", e.Outcome.String(), "held", e.Held, "err", e.Err)
	}
	return e.Err
}

// release performs one release of a hold for the client itself, not for a caller. Plain readers of
// one Locker can't be told apart. If another of them has already released this hold, one of their
// other holds is released instead. If there is none, release returns errAgain.
func (h *hold) release(ctx context.Context, c *Client) error {
	for {
		err := h.releaseQuietly(ctx, c)
		v := h.variable()
		if err != errAgain || v == nil || !h.kind.Shared() {
			return err
		}
		s := c.lock()
		h, err = v.plainShared(s, h.claim.object.key(), h.kind)
		c.mu.Unlock()
		if h == nil {
			return cmp.Or(err, errAgain)
		}
	}
}

func (h *hold) releaseQuietly(ctx context.Context, c *Client) error {
	if len(c.traces) == 0 {
		return h.releaseUntold(ctx, c)
	}
	e, tell := h.releaseTold(ctx, c)
	if tell && e.Outcome != StillHeld && e.Outcome != AlreadyLost {
		c.traces.releaseDone(ctx, e)
	}
	return e.Err
}

// releaseTold performs one release of a hold. It returns the event for the release, and whether the
// traces must be told.
func (h *hold) releaseTold(ctx context.Context, c *Client) (e ReleaseDone, tell bool) {
	e = ReleaseDone{
		Name: h.claim.object.name, Kind: backend.Kind(h.kind), HolderID: h.claim.owner,
		Err: errPanicked,
	}
	c.mu.Lock()
	since := h.since()
	c.mu.Unlock()
	began, handed := c.now(), false
	defer func() {
		if e.Err == errAgain {
			return
		}
		e.Held, e.Took = began-since, c.now()-began
		if tell = h.setOutcome(c, &e, handed); tell && e.Err == errPanicked {
			c.traces.releaseDone(ctx, e) // the caller can't, since this panics
		}
	}()
	if handed = h.handOn(c); handed {
		e.Err = nil
	} else {
		e.Err = h.explained(c, h.releaseToStore(ctx, c))
	}
	return
}

// releaseUntold performs one release of a hold, without reporting it to the traces. It returns
// errAgain if the hold's last release has already begun.
func (h *hold) releaseUntold(ctx context.Context, c *Client) error {
	if h.handOn(c) {
		return nil
	}
	return h.releaseToStore(ctx, c)
}

// releaseToStore performs one release of a hold that isn't handed over.
func (h *hold) releaseToStore(ctx context.Context, c *Client) error {
	if h.kind.Shared() {
		return h.releaseShared(ctx, c)
	}
	ctx, cancel := h.releaseContext(ctx, c, false)
	defer cancel()
	if h.slot != nil {
		if !h.takeSlot(ctx) {
			return h.releaseLater(c, unavailable(ended(ctx)))
		}
		defer func() { <-h.slot }()
	}
	s := c.lock()
	now := c.now()
	switch {
	case h.state == released, h.count <= 0:
		c.unlock()
		return errAgain
	case h.state == forsaken:
		tell, before := h.departForsaken(s)
		c.unlock()
		if !tell {
			return nil
		}
		return h.releaseForsaken(ctx, c, before)
	case !h.valid(now):
		if h.state == live {
			h.lose(s, h.claim.ranOut(s, now))
		}
		h.releaseLost(s)
		c.unlock()
		return ErrLost
	case h.count > 1:
		p := h.leavePart(s, now)
		c.unlock()
		return p.release(ctx, c)
	default:
		d := h.depart(s, h.releases(s), now)
		c.unlock()
		return d.free(ctx, c)
	}
}

// takeSlot waits until no other step of the hold is under way, and occupies the hold's slot. It
// returns false if ctx ends first.
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

// budget returns the time limit of an unlock.
func (h *hold) budget(now instant) time.Duration {
	left := h.claim.Until() - now
	if left <= 0 {
		return longestRelease // the hold was lost: no request needed
	}
	return min(left, longestRelease)
}

// releaseContext returns a context for a release. The release goes ahead even if the caller's
// context has ended. It also goes ahead if that is the context of the hold, which ends when the
// last release begins.
func (h *hold) releaseContext(
	ctx context.Context, c *Client, last bool,
) (context.Context, context.CancelFunc) {
	budget := longestRelease
	switch {
	case ctx.Err() != nil:
		ctx = withoutCancel(ctx)
	case h.within(ctx) && (last || h.isLast(c)):
		if end, ok := ctx.Deadline(); ok {
			budget = min(budget, time.Until(end))
		}
		ctx = withoutCancel(ctx)
	}
	if c.store.Prompt() {
		return ctx, func() {} // the store's steps take no time
	}
	budget = min(budget, h.budget(c.now()))
	if ctx == context.Background() && budget == longestRelease {
		return c.releases.Context(), func() {}
	}
	return context.WithTimeoutCause(ctx, budget, errUnanswered)
}

// isLast reports whether the next release of a hold is its last.
func (h *hold) isLast(c *Client) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return h.count == 1
}

// releaseLater continues an unlock in the background, once no other step of the same hold is under
// way. The parameter why is the error that made the caller stop waiting.
func (h *hold) releaseLater(c *Client, why error) error {
	s := c.lock()
	defer c.unlock()
	s.background(func(c *Client) {
		// Only this hold is released. Its owner might have another hold of the lock by now.
		if err := h.release(context.Background(), c); err != nil && err != errAgain {
			c.warn("late unlock", "name", h.claim.object.name, "err", err)
		}
	})
	if h.count > 1 {
		return nil // for the caller, this unlock is done
	}
	return why
}

// releaseForsaken releases a hold after Close, with one request for each claim.
func (h *hold) releaseForsaken(ctx context.Context, c *Client, before []*claim) error {
	ctx, cancel := h.releaseContext(ctx, c, true)
	defer cancel()
	for _, side := range before {
		side.releaseOnce(ctx, c, c.stored(side.Lease()), false)
	}
	_, err := h.claim.releaseOnce(ctx, c, c.stored(h.claim.Lease()), false)
	return err
}

// releaseShared performs one release of a reader's hold.
func (h *hold) releaseShared(ctx context.Context, c *Client) error {
	s := c.lock()
	cl := h.claim
	switch {
	case h.state == released, h.count <= 0:
		c.unlock()
		return errAgain
	case h.state == forsaken:
		tell, before := h.departForsaken(s)
		c.unlock()
		if !tell {
			return nil
		}
		return h.releaseForsaken(ctx, c, before)
	case !h.check(s):
		h.releaseLost(s)
		c.unlock()
		return ErrLost
	}
	h.count--
	if h.count > 0 {
		if h.count < h.renewedFrom {
			h.endRenewal(s)
		}
		c.unlock()
		return nil
	}
	h.state = released
	h.endContexts(s, ErrNotHeld)
	h.drop(s)
	h.bequeath()
	h.vacate(s)
	if !h.leaves() || cl.passOn(s) {
		c.unlock()
		return nil
	}
	if cl.retain() != nil {
		s.unschedule(&cl.alarm) // the claim will be released with the write lock
		c.unlock()
		return nil
	}
	if joins := cl.more.joins; cl.mayBeJoined(s) {
		c.unlock()
		runtime.Gosched() // another goroutine might be about to join
		c.mu.Lock()
		switch {
		case cl.more.holds > 0 || cl.more.joins != joins:
			c.unlock()
			return nil
		case cl.dead:
			cl.takeBack(s) // the claim has been lost
			c.unlock()
			return nil
		}
	}
	q := cl.postpone(s)
	cl.endShared(s)
	c.unlock()
	return h.releaseRead(ctx, c, q)
}

// releaseRead performs the last release of a shared claim whose last hold was h.
func (h *hold) releaseRead(ctx context.Context, c *Client, q *queue) error {
	ctx, cancel := h.releaseContext(ctx, c, true)
	defer cancel()
	s := c.lock()
	d := h.depart(s, q, c.now())
	c.unlock()
	err := d.free(ctx, c)
	if err == ErrLost {
		c.mu.Lock()
		defer c.unlock()
		h.giveNotices() // calls that watch h might still be reading under the lock
	}
	return err
}
