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
func (c *Client) releaseParty(ctx context.Context, l *Locker, p party) error {
	for {
		h := c.latest(l, p)
		if h == nil {
			return ErrNotHeld
		}
		if err := c.giveUpHold(ctx, h); err != errAgain {
			return err
		}
	}
}

// latest returns what p would unlock, lost or not, or nil.
func (c *Client) latest(l *Locker, p party) *hold {
	c.mu.Lock()
	defer c.mu.Unlock()
	if h := c.presentHoldLocked(l, p); h != nil && !h.offered {
		return h
	}
	return c.lastLossLocked(l.lostKey(p))
}

// presentHoldLocked returns what a party has on a Locker's lock, valid or not, or nil.
func (c *Client) presentHoldLocked(l *Locker, p party) *hold {
	o := c.objectLocked(l.kind, l.name)
	if rules[l.kind].shared || o == nil {
		return o.reader(p)
	}
	if h := o.alone; h != nil && h.party == p && h.kind == l.kind {
		return h
	}
	return nil
}

// releaseWithin gives back one hold of a Do, with its own context or one from inside it.
func (c *Client) releaseWithin(ctx context.Context, h *hold) error {
	if err := c.giveUpHold(ctx, h); err != errAgain {
		return err
	}
	return ErrNotHeld // it gave back more than it took
}

// releaseUntold gives back one hold. It is errAgain if the last one was given back before.
func (c *Client) releaseUntold(ctx context.Context, h *hold) error {
	if c.handOn(h) {
		return nil
	}
	return c.releaseToStore(ctx, h)
}

// releaseToStore gives back one hold that isn't handed on.
func (c *Client) releaseToStore(ctx context.Context, h *hold) error {
	if rules[h.kind].shared {
		return c.releaseShared(ctx, h)
	}
	ctx, cancel := c.releaseContext(ctx, h, false)
	defer cancel()
	if h.slot != nil {
		if !h.takeSlot(ctx) {
			return c.releaseLater(h, unavailable(ended(ctx)))
		}
		defer func() { <-h.slot }()
	}
	c.mu.Lock()
	now := c.now()
	switch {
	case h.state == released, h.count <= 0:
		c.unlock()
		return errAgain
	case h.state == forsaken:
		return c.releaseForsakenLocked(ctx, h)
	case !h.valid(now):
		if h.state == live {
			c.loseLocked(h, c.ranOutLocked(h.claim, now))
		}
		c.releaseLostLocked(h)
		c.unlock()
		return ErrLost
	case h.count > 1:
		return c.releaseOneLocked(ctx, h, now)
	default:
		return c.releaseLastLocked(ctx, h, now)
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
	left := h.claim.Until() - now
	if left <= 0 {
		return longestRelease // it is lost, and no store is asked
	}
	return min(left, longestRelease)
}

// releaseContext returns a context in which to release. One that is over already doesn't keep
// anybody from it, nor does that of a Do whose hold it is, which ends as the release begins.
func (c *Client) releaseContext(ctx context.Context, h *hold, last bool) (context.Context, context.CancelFunc) {
	budget := longestRelease
	switch {
	case ctx.Err() != nil:
		ctx = withoutCancel(ctx)
	case h.within(ctx) && (last || c.isLast(h)):
		if end, ok := ctx.Deadline(); ok {
			budget = min(budget, time.Until(end))
		}
		ctx = withoutCancel(ctx)
	}
	if c.prompt {
		return ctx, func() {} // it takes no time
	}
	budget = min(budget, h.budget(c.now()))
	if ctx == context.Background() && budget == longestRelease {
		return c.patience(&c.patient, longestRelease), func() {}
	}
	return context.WithTimeoutCause(ctx, budget, errUnanswered)
}

// isLast says whether giving back one of a hold ends it.
func (c *Client) isLast(h *hold) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return h.count == 1
}

// releaseLater lets an unlock that must wait for a step of its own hold go on in the background. Why
// is the reason that it doesn't wait any longer.
func (c *Client) releaseLater(h *hold, why error) error {
	c.mu.Lock()
	defer c.unlock()
	c.backgroundLocked(func() {
		// Of this hold only: its owner may have taken another by then.
		if err := c.release(context.Background(), h); err != nil && err != errAgain {
			c.warn("late unlock", "name", h.claim.object.name, "err", err)
		}
	})
	if h.count > 1 {
		return nil // one of several: the caller has given it back
	}
	return why
}

// releaseLostLocked gives back a hold that is lost.
func (c *Client) releaseLostLocked(h *hold) {
	h.count--
	if h.count > 0 {
		return
	}
	c.forgetLocked(h)
	c.vacateLocked(h)
	if h.leaves() {
		c.takeBackLocked(h.claim)
	}
}

// leaves notes that a hold doesn't rest on its claim any more, and says whether that was the last.
func (h *hold) leaves() bool {
	if !rules[h.kind].shared {
		return true
	}
	h.claim.more.holds--
	return h.claim.more.holds == 0
}

// releaseOneLocked gives back one of several holds. Whatever becomes of the request, the caller has
// given it back: if it wasn't carried out, the store counts more than we do, and the last release
// drains that. It unlocks c.mu.
func (c *Client) releaseOneLocked(ctx context.Context, h *hold, now instant) error {
	cl := h.claim
	h.count--
	lease, asked := cl.PartialRelease(now, h.count < h.renewedFrom)
	if h.count < h.renewedFrom {
		h.renewedFrom = 0 // what is left has a fixed lease
	}
	cl.StepSent(now, asked, c.stored(asked))
	c.unlock()

	res, err := step(ctx, c, backend.Session.Release, cl.releaseRequest(c.stored(asked), false))

	c.mu.Lock()
	defer c.unlock()
	cl.StepOver()
	switch {
	case h.state == forsaken:
		return nil
	case !c.checkLocked(h):
		return ErrLost
	case err != nil && !isDisplaced(err):
		if backend.KindOf(err) == backend.Unknown {
			cl.Unanswered(asked)
		}
		return nil
	case res.Outcome != backend.Left:
		c.loseLocked(h, gone) // the store had lost it, and the last re-entry began a fresh one
		return ErrLost
	}
	c.prolongLocked(h, now, lease, asked)
	return nil
}

// releaseLastLocked gives back the last hold. From here on its number is dead: whatever happens,
// nothing re-enters or renews it any more. It unlocks c.mu.
func (c *Client) releaseLastLocked(ctx context.Context, h *hold, now instant) error {
	return c.freeLocked(ctx, h, c.releasesLocked(h), now)
}

// releasesLocked notes that the last release of a hold begins.
func (c *Client) releasesLocked(h *hold) *queue {
	h.state = released
	h.count = 0
	q := c.postponeLocked(h.claim)
	c.dropLocked(h)
	c.endContextsLocked(h, ErrNotHeld) // there are none, unless fn gave back more than it took
	return q
}

// freeLocked releases the claim of a hold that was the last on it. It unlocks c.mu.
func (c *Client) freeLocked(ctx context.Context, h *hold, q *queue, now instant) error {
	d := c.departLocked(h, q, now)
	c.unlock()
	return c.depart(ctx, d, func() (backend.ReleaseResult, error) { return c.sendRelease(ctx, d.h.claim, d.lease, d.ask) })
}

// A departure is the last release of a claim, under way.
type departure struct {
	h     *hold
	q     *queue // as for releasedLast
	began instant
	lease time.Duration
	ask   bool   // the store is asked who waits
	inner *claim // is to be released before, or it would be read for a moment by nobody; nil: nothing is
}

// departLocked begins the last release of the claim of a hold.
func (c *Client) departLocked(h *hold, q *queue, now instant) departure {
	cl := h.claim
	cl.dead, cl.leaving = true, true
	delete(c.troubles, cl)
	d := departure{h: h, q: q, began: now, lease: c.stored(cl.Lease()), ask: c.asksWhoWaitsLocked(cl, now)}
	cl.Sent(now, max(d.lease, c.stored(cl.Left(now))))
	d.inner = c.endInnerLocked(h)
	return d
}

// depart makes the last release of a claim, the first request of which is sent, or was, by the function.
func (c *Client) depart(ctx context.Context, d departure, first func() (backend.ReleaseResult, error)) (err error) {
	freed := backend.ReleaseResult{}
	err = errUnanswered // unless a step panics
	defer func() { c.releasedLast(d.h, d.q, d.began, freed, err) }()
	if d.inner != nil {
		c.drainShared(ctx, d.inner)
	}
	res, failed := first()
	freed, err = c.drainOn(ctx, d.h.claim, d.lease, d.ask, res, failed)
	if err == ErrLost {
		c.foundLost(ctx, d.h)
	}
	return err
}

// releasedLast lets others have what was released, or may have been, or was lost: those who wait in q
// since before then, if that isn't nil, or since then.
func (c *Client) releasedLast(h *hold, q *queue, began instant, res backend.ReleaseResult, err error) {
	c.mu.Lock()
	defer c.unlock()
	cl := h.claim
	cl.leaving = false
	own := unheard
	if q != nil {
		own = q.releasedLocked()
	}
	switch {
	case res.Outcome == backend.Freed:
		c.freedLocked(cl, began, res, own)
	case res.Outcome == backend.Kept:
		c.keptLocked(cl)
	default:
		c.wakeLocked(cl) // freed or not: nobody here has it any more
	}
	c.vacateLocked(h)
	if cl.Strays() || err != nil && err != ErrLost {
		c.takeBackLocked(cl)
	}
}

// releasedLocked notes that a last release is over, and says what has become of its message.
func (q *queue) releasedLocked() message {
	own := unheard
	switch {
	case q.heard:
		own = heard
	case q.subscribed == standing && q.first != nil:
		own = toCome
	}
	q.releasing--
	if q.releasing == 0 {
		q.heard = false
	}
	return own
}

// keptLocked notes that what was claimed is released, but kept: who waits looks again when that is over, and not before.
func (c *Client) keptLocked(cl *claim) {
	o := c.presentLocked(cl)
	if o == nil {
		return
	}
	over := c.now() + kept(cl.Left(c.now())) + endJitter
	if q := o.line; q != nil {
		q.soon = q.soon || q.looking // that one may not have seen it
		c.hastenLocked(&q.look, over)
	}
	switch q := o.queue; {
	case q == nil || q.lead == nil:
	case rules[cl.kind].many:
		c.wakeQueueLocked(q) // it may not have asked so far, since this client had too many out itself
	default:
		if q.again == 0 || over < q.again {
			q.again = over // what an attempt under way is answered may be from before
		}
		c.hastenLocked(&q.lead.alarm, over)
	}
}

// lastRelease asks to give back all that is left of a claim, and to keep it for as long as that is wanted, also if the store counts
// more than we do, and something is left.
func (c *Client) lastRelease(cl *claim, lease time.Duration, ask bool) backend.ReleaseRequest {
	req := cl.releaseRequest(lease, ask)
	if left := cl.Left(c.now()); left > 0 {
		req.Keep, req.AskWaiting = kept(left), false
		req.Lease = max(lease, c.stored(left))
	}
	return req
}

// drain repeats a last release until the store holds nothing of that number any more. It says
// how that ended if it was us who freed it.
func (c *Client) drain(ctx context.Context, cl *claim, lease time.Duration, ask bool) (freed backend.ReleaseResult, err error) {
	res, err := c.sendRelease(ctx, cl, lease, ask)
	return c.drainOn(ctx, cl, lease, ask, res, err)
}

func (c *Client) sendRelease(ctx context.Context, cl *claim, lease time.Duration, ask bool) (backend.ReleaseResult, error) {
	return step(ctx, c, backend.Session.Release, c.lastRelease(cl, lease, ask))
}

// drainOn is drain after the first answer.
func (c *Client) drainOn(ctx context.Context, cl *claim, lease time.Duration, ask bool, res backend.ReleaseResult, err error) (freed backend.ReleaseResult, _ error) {
	var tries backoff
	sent := false // a release of ours may have been carried out
	for ; ; res, err = c.sendRelease(ctx, cl, lease, ask) {
		if isDisplaced(err) {
			res, err = backend.ReleaseResult{Outcome: backend.NotHeld}, nil
		}
		switch {
		case err == nil && (res.Outcome == backend.Freed || res.Outcome == backend.Kept):
			return res, nil
		case err == nil && res.Outcome == backend.Left:
			sent = true
			if ctx.Err() == nil {
				continue
			}
			err = errUnanswered
		case err == nil && sent:
			return backend.ReleaseResult{Outcome: backend.Freed}, nil
		case err == nil:
			return freed, ErrLost
		case backend.KindOf(err) == backend.Refused:
			return freed, unavailable(err)
		case backend.KindOf(err) == backend.Unknown:
			sent = true
		}
		switch {
		case c.prompt: // nothing is gained by waiting
			return freed, unavailable(err)
		case c.pause(ctx, tries.next(firstBackoff, longestPause(lease))):
		case ctx.Err() == nil: // closed
			return c.releaseOnce(ctx, cl, lease, sent)
		default:
			return freed, undrained(ctx, err)
		}
	}
}

// undrained returns why a last release ends without the store's word.
func undrained(ctx context.Context, err error) error {
	cause := context.Cause(ctx)
	switch {
	case cause == errUnanswered && errors.Is(err, errUnanswered):
		return unavailable(errUnanswered)
	case cause == errUnanswered:
		return unavailable(both(errUnanswered, err))
	case errors.Is(err, cause):
		return unavailable(err)
	default:
		return both(ended(ctx), unavailable(err))
	}
}

// leaveForsakenLocked counts one less after Close, and says whether the store is to be told.
func (c *Client) leaveForsakenLocked(h *hold) (tell bool) {
	h.count--
	if h.count <= 0 {
		h.state = released
		c.dropLocked(h)
		c.vacateLocked(h)
	}
	return !rules[h.kind].shared || h.count <= 0 && h.leaves()
}

// releaseForsakenLocked gives back one hold after Close, with one request. It unlocks c.mu.
func (c *Client) releaseForsakenLocked(ctx context.Context, h *hold) error {
	cl := h.claim
	last := c.leaveForsakenLocked(h)
	var before []*claim // are released with it
	if last && h.count <= 0 {
		cl.dead = true
		if inner := c.endInnerLocked(h); inner != nil {
			before = append(before, inner)
		}
		if cl.more != nil && cl.more.other != nil {
			before = append(before, cl.more.other)
		}
	}
	c.unlock()
	if !last {
		return nil
	}
	ctx, cancel := c.releaseContext(ctx, h, true)
	defer cancel()
	for _, side := range before {
		c.releaseOnce(ctx, side, c.stored(side.Lease()), false)
	}
	_, err := c.releaseOnce(ctx, cl, c.stored(cl.Lease()), false)
	return err
}

// releaseOnce sends one release, whether the client is closed or not. If one was sent before, it is
// no surprise that nothing is held.
func (c *Client) releaseOnce(ctx context.Context, cl *claim, lease time.Duration, sent bool) (res backend.ReleaseResult, err error) {
	if req := c.lastRelease(cl, lease, false); c.leavable {
		res, err = here(ctx, c, backend.Session.Release, req)
	} else {
		res, err = aside(ctx, c, func() {}, nil, backend.Session.Release, req)
	}
	if isDisplaced(err) {
		res, err = backend.ReleaseResult{Outcome: backend.NotHeld}, nil
	}
	switch {
	case err != nil:
		return res, unavailable(err)
	case res.Outcome == backend.NotHeld && !sent:
		return res, ErrLost
	default:
		return res, nil
	}
}
