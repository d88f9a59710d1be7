package dlock

import (
	"context"
	"errors"
	"time"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/dlock/internal/steps"
)

// The last release of a claim is repeated until the store counts nothing any more. Only then do the
// client's waiting calls ask for the lock. A release that isn't the last one is sent once.

// A departure is the last release of a claim, in progress.
type departure struct {
	h     *hold
	q     *queue // the lock's queue; nil if no calls waited in it when the release began
	began instant
	lease time.Duration
	ask   bool   // ask the store how many clients wait
	inner *claim // the claim for the party's read locks, to be released first; nil if none
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

// free performs the last release of a claim.
func (d departure) free(ctx context.Context, c *Client) error {
	return d.carryOut(ctx, c, func() (backend.ReleaseResult, error) {
		return d.h.claim.sendRelease(ctx, c, d.lease, d.ask)
	})
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

// drainShared releases a shared claim that has ended.
func (cl *claim) drainShared(ctx context.Context, c *Client) (err error) {
	err = errUnanswered // stays if the step panics
	defer func() {
		s := c.lock()
		defer c.unlock()
		if cl.Strays() || err != nil && err != ErrLost {
			cl.takeBack(s)
		}
	}()
	_, err = cl.drain(ctx, c, c.stored(cl.Lease()), false)
	return err
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
