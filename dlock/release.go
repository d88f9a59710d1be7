package dlock

import (
	"context"
	"errors"
	"time"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/dlock/internal/steps"
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

// releaseLost performs one release of a hold that was lost.
func (h *hold) releaseLost(s *state) {
	h.count--
	if h.count > 0 {
		return
	}
	s.forget(h)
	h.vacate(s)
	if h.leaves() {
		h.claim.takeBack(s)
	}
}

// leaves removes the hold from the count of holds that use its claim, and reports whether the claim
// is now unused.
func (h *hold) leaves() bool {
	if !h.kind.Shared() {
		return true
	}
	h.claim.more.holds--
	return h.claim.more.holds == 0
}

// A partial is a release in progress that decrements the hold's count, but leaves the lock held.
type partial struct {
	h            *hold
	began        instant
	lease, asked time.Duration // see protocol.Promise.PartialRelease
}

// leavePart begins a partial release of a hold.
func (h *hold) leavePart(s *state, now instant) partial {
	cl := h.claim
	h.count--
	lease, asked := cl.PartialRelease(now, h.count < h.renewedFrom)
	if h.count < h.renewedFrom {
		h.renewedFrom = 0 // the remaining calls have a fixed lease
	}
	cl.StepSent(now, asked, s.stored(asked))
	return partial{h, now, lease, asked}
}

// release tells the store about a partial release. For the caller the release is complete, even if
// the store fails. If the request wasn't carried out, the store's count is higher than the
// client's. The last release makes up for the difference (see drain).
func (p partial) release(ctx context.Context, c *Client) error {
	h, cl := p.h, p.h.claim
	req := cl.releaseRequest(c.stored(p.asked), false)
	res, err := steps.Do(ctx, c.store, backend.Session.Release, req)

	s := c.lock()
	defer c.unlock()
	cl.StepOver()
	switch {
	case h.state == forsaken:
		return nil
	case !h.check(s):
		return ErrLost
	case err != nil && !isDisplaced(err):
		if backend.KindOf(err) == backend.Unknown {
			cl.Unanswered(p.asked)
		}
		return nil
	case res.Outcome != backend.Left:
		h.lose(s, gone) // the hold was lost, and the re-entry began a new one
		return ErrLost
	}
	h.prolong(s, p.began, p.lease, p.asked)
	return nil
}

// releases begins a hold's last release. From then on the owner string of the hold isn't used for
// re-entries or renewals. releases returns the queue of calls that wait for the lock, or nil. The
// queue's lead waits for the answer to the release before it asks the store.
func (h *hold) releases(s *state) *queue {
	h.state = released
	h.count = 0
	q := h.claim.postpone(s)
	h.drop(s)
	h.endContexts(s, ErrNotHeld) // some remain if fn released too often
	return q
}

// free performs the last release of a claim.
func (d departure) free(ctx context.Context, c *Client) error {
	return d.carryOut(ctx, c, func() (backend.ReleaseResult, error) {
		return d.h.claim.sendRelease(ctx, c, d.lease, d.ask)
	})
}

// A departure is the last release of a claim, in progress.
type departure struct {
	h     *hold
	q     *queue // the lock's queue; nil if no calls waited in it when the release began
	began instant
	lease time.Duration
	ask   bool   // ask the store how many clients wait
	inner *claim // the claim for the party's read locks, to be released first; nil if none
}

// depart begins the last release of a hold's claim.
func (h *hold) depart(s *state, q *queue, now instant) departure {
	cl := h.claim
	cl.dead, cl.leaving = true, true
	delete(s.troubles, cl)
	d := departure{h: h, q: q, began: now, lease: s.stored(cl.Lease()),
		ask: cl.asksWhoWaits(s, now)}
	cl.Sent(now, max(d.lease, s.stored(cl.Left(now))))
	d.inner = h.endInner(s)
	return d
}

// carryOut performs the last release of a claim. The given function returns the answer to the first
// request. It also sends that request, unless a batch has already done so.
func (d departure) carryOut(
	ctx context.Context, c *Client, first func() (backend.ReleaseResult, error),
) (err error) {
	freed := backend.ReleaseResult{}
	err = errUnanswered // stays if a step panics
	defer func() { d.released(c, freed, err) }()
	if d.inner != nil {
		d.inner.drainShared(ctx, c)
	}
	res, failed := first()
	freed, err = d.h.claim.drainOn(ctx, c, d.lease, d.ask, res, failed)
	if err == ErrLost {
		d.h.foundLost(ctx, c)
	}
	return err
}

// released processes the result of a last release, even if the release failed. It decides when
// waiting calls of this client ask for the lock.
func (d departure) released(c *Client, res backend.ReleaseResult, err error) {
	s := c.lock()
	defer c.unlock()
	h, cl := d.h, d.h.claim
	cl.leaving = false
	own := unheard
	if d.q != nil {
		own = d.q.released()
	}
	switch {
	case res.Outcome == backend.Freed:
		cl.freed(s, d.began, res, own)
	case res.Outcome == backend.Kept:
		cl.staysTaken(s)
	default:
		cl.mark(s, markFree) // this client no longer holds the lock
	}
	h.vacate(s)
	if cl.Strays() || err != nil && err != ErrLost {
		cl.takeBack(s)
	}
}

// released records that a last release is over. It returns whether the store's message about the
// release has arrived, or is expected.
func (q *queue) released() message {
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

// staysTaken records that a claim was released but its lock stays taken for a while. Waiting calls
// look again only after that time.
func (cl *claim) staysTaken(s *state) {
	o := cl.present(s)
	if o == nil {
		return
	}
	over := s.now() + kept(cl.Left(s.now())) + endJitter
	if q := o.line; q != nil {
		q.soon = q.soon || q.looking // the current look might have missed it
		s.hasten(&q.look, over)
	}
	switch q := o.queue; {
	case q == nil || q.lead == nil:
	case cl.kind.Many():
		o.mark(s, markFree) // the lead might not have asked yet
	default:
		if q.again == 0 || over < q.again {
			q.again = over // an attempt under way might predate this
		}
		s.hasten(&q.lead.alarm, over)
	}
}

// lastRelease returns the request for the last release of a claim. If the lock must stay taken for
// a while, the request says so. That is also needed when a release is repeated because the store's
// count was higher than the client's.
func (cl *claim) lastRelease(set *settings, lease time.Duration, ask bool) backend.ReleaseRequest {
	req := cl.releaseRequest(lease, ask)
	if left := cl.Left(set.now()); left > 0 {
		req.Keep, req.AskWaiting = kept(left), false
		req.Lease = max(lease, set.stored(left))
	}
	return req
}

// drain sends releases until the store has no hold left under the claim's owner string. It returns
// the answer to the release that freed the lock.
func (cl *claim) drain(
	ctx context.Context, c *Client, lease time.Duration, ask bool,
) (freed backend.ReleaseResult, err error) {
	res, err := cl.sendRelease(ctx, c, lease, ask)
	return cl.drainOn(ctx, c, lease, ask, res, err)
}

func (cl *claim) sendRelease(
	ctx context.Context, c *Client, lease time.Duration, ask bool,
) (backend.ReleaseResult, error) {
	req := cl.lastRelease(&c.settings, lease, ask)
	return steps.Do(ctx, c.store, backend.Session.Release, req)
}

// drainOn continues drain after the first answer.
func (cl *claim) drainOn(
	ctx context.Context, c *Client, lease time.Duration, ask bool, res backend.ReleaseResult,
	err error,
) (freed backend.ReleaseResult, _ error) {
	var tries backoff
	sent := false // whether an earlier release might have arrived
	for ; ; res, err = cl.sendRelease(ctx, c, lease, ask) {
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
		case c.store.Prompt(): // waiting wouldn't help
			return freed, unavailable(err)
		case c.store.Pause(ctx, tries.next(firstBackoff, longestPause(lease))):
		case ctx.Err() == nil: // the client is closed
			return cl.releaseOnce(ctx, c, lease, sent)
		default:
			return freed, undrained(ctx, err)
		}
	}
}

// undrained returns the error of a last release that ended without an answer from the store.
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

// leaveForsaken decrements the count of a hold after Close, and reports whether the store must be
// told.
func (h *hold) leaveForsaken(s *state) (tell bool) {
	h.count--
	if h.count <= 0 {
		h.state = released
		h.drop(s)
		h.vacate(s)
	}
	return !h.kind.Shared() || h.count <= 0 && h.leaves()
}

// departForsaken begins one release of a hold after Close. It reports whether the store must be
// told, and returns the claims that must be released before the claim of this hold.
func (h *hold) departForsaken(s *state) (tell bool, before []*claim) {
	cl := h.claim
	tell = h.leaveForsaken(s)
	if !tell || h.count > 0 {
		return tell, nil
	}
	cl.dead = true
	if inner := h.endInner(s); inner != nil {
		before = append(before, inner)
	}
	if cl.more != nil && cl.more.other != nil {
		before = append(before, cl.more.other)
	}
	return tell, before
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

// releaseOnce sends one release, even if the client is closed. If sent is set, an earlier release
// might have been carried out, so it isn't an error if the store has no hold.
func (cl *claim) releaseOnce(
	ctx context.Context, c *Client, lease time.Duration, sent bool,
) (res backend.ReleaseResult, err error) {
	req := cl.lastRelease(&c.settings, lease, false)
	res, err = steps.Last(ctx, c.store, backend.Session.Release, req)
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
