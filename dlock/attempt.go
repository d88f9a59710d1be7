package dlock

import (
	"context"
	"time"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/dlock/internal/protocol"
	"github.com/seed951563bd/distsync/dlock/internal/steps"
)

// An attempt is one request to the store for a lock that the party of a call doesn't have. Its
// answer makes the call's claim a hold, or says how long to wait.

// An attempt is a request for the lock, either prepared or under way.
type attempt struct {
	h      *hold
	lease  time.Duration
	sent   instant
	forced uint64 // the number of this client's force-unlocks when the attempt was sent
	late   bool   // an earlier attempt got the lock, with no time left to renew it
	place  time.Duration
	req    backend.AcquireRequest // built with c.mu held, since the claim can change later
}

// attempting prepares an attempt, and records it as sent.
func (a *acquisition) attempting() attempt {
	c := a.client
	s := c.lock()
	defer c.mu.Unlock()
	if a.h == nil {
		a.h = a.newClaim(s)
	}
	at := attempt{
		h: a.h, lease: c.stored(a.o.asked()), sent: c.now(), forced: c.forced.Load(),
		late: a.late, place: linePlace,
	}
	if a.in != nil && a.in.placed {
		at.place = a.in.placeLasts()
	}
	a.late = false
	at.h.claim.Sent(at.sent, at.lease)
	s.attempts++
	a.attempt, a.sent = s.attempts, at.sent
	at.req = at.request(s, a)
	return at
}

// request returns the request that an attempt sends. If the call can wait, the request also
// registers the call as a waiting writer, or gives it a place in the line of a fair lock.
func (at attempt) request(s *state, a *acquisition) backend.AcquireRequest {
	req := at.h.claim.acquireRequest(at.lease, false)
	switch {
	case a.single():
	case a.kind.Family() == protocol.ReadWrites:
		req.Waited, req.Place = s.now()-a.began, a.placeLease()
	case a.kind.Placed():
		req.Place = at.place
		if at.late {
			req.Waited = s.now() - a.began
		}
	}
	return req
}

// acquireStep asks the store for a claim. The lease determines how long acquireStep waits for the
// answer. An answer that comes later is passed to answeredLate.
func (cl *claim) acquireStep(
	ctx context.Context, c *Client, lease time.Duration, req backend.AcquireRequest,
) (backend.AcquireResult, error) {
	if c.store.Prompt() {
		return steps.Do(ctx, c.store, backend.Session.Acquire, req)
	}
	late := func(res backend.AcquireResult, err error) { cl.answeredLate(c, res, err) }
	return steps.DoWithin(ctx, c.store, steps.About(lease), late, backend.Session.Acquire, req)
}

// answeredLate records a grant that came after the caller had stopped waiting for it. If the claim
// had been given up by then, answeredLate releases it in the background.
func (cl *claim) answeredLate(c *Client, res backend.AcquireResult, err error) {
	if err != nil || !res.Acquired {
		return
	}
	s := c.lock()
	defer c.unlock()
	cl.StrayUntil(c.now())
	if cl.dead && !cl.leaving {
		cl.takeBack(s)
	}
}

// attempted processes the answer to an attempt. If the lock was granted, but this client has
// force-unlocked any lock since the attempt was sent, attempted asks the store whether the claim
// still exists.
func (a *acquisition) attempted(
	ctx context.Context, at attempt, res backend.AcquireResult, err error,
) (time.Duration, error) {
	remaining, err := a.conclude(at, res, err)
	if err == nil && a.client.forced.Load() != at.forced {
		at.h.claim.confirm(ctx, a.client, (*claim).forced)
	}
	return remaining, err
}

// conclude processes the answer to an attempt. If it returns a nil error, the call has acquired
// a.h, or was handed a.handed.
func (a *acquisition) conclude(
	at attempt, res backend.AcquireResult, err error,
) (remaining time.Duration, _ error) {
	c := a.client
	h, sent := at.h, at.sent
	s := c.lock()
	defer c.unlock()
	if a.in != nil && a.in.placed && err == nil {
		a.in.took(c.now()-sent, false, nil)
	}
	switch {
	case err != nil:
		a.late = a.late || at.late
		if backend.KindOf(err) == backend.Unknown {
			h.claim.Stray()
			h.claim.Unanswered(a.o.asked())
		}
		if s.closed && backend.KindOf(err) == backend.Refused {
			err = both(ErrClosed, err) // the client has closed the session
		}
		return 0, err
	case a.handed == h: // the notification of the grant came before this answer
		if res.Acquired && h.check(s) {
			h.claim.Granted(sent, a.o.asked())
		}
		return 0, nil
	case !res.Acquired:
		h.claim.noted = h.claim.noted || (a.kind.Notes() || a.kind.Placed()) && !a.single()
		return res.Remaining, errHeld
	}
	h.claim.Granted(sent, a.o.asked())
	h.claim.noted = a.kind.Placed() // abandoning the claim must also give up the place in line
	if h.claim.more != nil {
		h.claim.more.token = res.Token
	}
	if err := a.unusable(s); err != nil {
		h.claim.Stray() // the store might keep the claim, although no call uses it
		return 0, err
	}
	if a.reads(s) {
		h.claim.supersede(s)
		h.claim.takeBack(s) // with two holds, an unlock wouldn't know which one to release
		return 0, errAgain
	}
	if a.handed != nil { // the call needs only the hold that it was handed
		if c.forced.Load() != at.forced {
			h.claim.takeBack(s) // it might be gone already
			return 0, errAgain
		}
		if spare := h.grant(s, sent); !spare.pass(s) {
			s.background(func(c *Client) { spare.release(c.ctx, c) })
		}
		a.h = nil
		return 0, nil
	}
	h.claim.noted = false
	if a.o.keeps {
		h.claim.Keep(c.now()+a.o.atLeast, sent)
	}
	a.h = h.grant(s, sent)
	h.claim.caughtUp(s)
	a.dequeue(s)
	return 0, nil
}

// unusable returns an error if the client can't use the claim that the store has just granted.
func (a *acquisition) unusable(s *state) error {
	switch v := a.variable(); {
	case s.closed:
		return ErrClosed
	case !a.h.valid(s.now()):
		return errLate
	case a.kind.Numbered() && a.h.claim.token() == 0:
		return errNoToken
	case a.overtaken(s):
		return errAgain
	case v != nil && v.hold != nil && v.hold.state != released && !a.kind.Shared():
		if a.kind.Placed() {
			v.hold.lose(s, takenBy(a.h.claim.owner)) // the store grants only a free lock
		}
		return errAgain // another call locked the Locker in the meantime, and lost the lock
	default:
		return nil
	}
}

// tried returns the result of the single attempt of a call that doesn't wait.
func (a *acquisition) tried(err error) (*hold, error) {
	if err == nil {
		return a.h, nil
	}
	s := a.client.lock()
	defer a.client.unlock()
	a.dropClaim(s)
	if err == errHeld && a.reenters(s) {
		err = errAgain // another goroutine of the same party has acquired the lock
	}
	return nil, err
}

// newClaim creates the claim that an acquisition asks for, with a new owner string. It returns the
// hold for that claim.
func (a *acquisition) newClaim(s *state) *hold {
	all := new(struct {
		hold   hold
		claim  claim
		object object
	})
	o := s.object(a.kind, a.name)
	if o == nil {
		o = &all.object
		o.name, o.family = a.name, a.kind.Family()
	}
	cl := &all.claim
	cl.object, cl.kind, cl.owner = o, a.kind, s.nextOwner(a.o.note)
	cl.Want(a.o.lease, !a.o.fixed)
	if backend.Kind(a.kind) != backend.Exclusive {
		cl.more = &more{permit: permit{many: a.o.permits, limit: a.o.limit}, noted: a.o.noted}
	}
	all.hold.rest(a.party, a.kind, cl)
	return &all.hold
}

// abandon gives up the claim that an acquisition asked for but didn't get. The acquisition doesn't
// ask for that claim again.
func (a *acquisition) abandon() {
	s := a.client.lock()
	defer a.client.unlock()
	a.dropClaim(s)
}

// reenter increments the count of a hold, in the store and in the client. It first waits until no
// other re-entry or release of the hold is under way.
func (a *acquisition) reenter(ctx context.Context, h *hold) error {
	c := a.client
	a.answered = false // an earlier answer was about the previous holder
	select {
	case h.slot <- struct{}{}:
		defer func() { <-h.slot }()
	case <-ctx.Done():
		return a.giveUp(c.over(ctx))
	case <-c.ctx.Done():
		return ErrClosed
	}
	s := c.lock()
	if !h.check(s) {
		c.unlock()
		return errAgain
	}
	cl, now := h.claim, c.now()
	count := h.count + 1
	lease, asked := cl.Reentry(now, a.o.lease)
	asked = max(asked, a.o.atLeast)
	cl.StepSent(now, asked, c.stored(asked))
	c.unlock()

	res, err := cl.acquireStep(ctx, c, lease, cl.acquireRequest(c.stored(asked), true))

	c.mu.Lock()
	defer c.unlock()
	cl.StepOver()
	if err == nil && res.Acquired && res.Count >= int(count) && h.check(s) {
		h.count, h.offered = count, false
		if !cl.Renewed() && !a.o.fixed {
			cl.Renew()
			h.renewedFrom = count
		}
		if a.o.keeps {
			cl.Keep(c.now()+a.o.atLeast, now)
		}
		h.prolong(s, now, lease, asked)
		return nil
	}
	return h.failReentry(s, asked, res, err)
}

// failReentry returns the error of a re-entry that failed. It records what the answer says about
// the hold.
func (h *hold) failReentry(
	s *state, lease time.Duration, res backend.AcquireResult, err error,
) error {
	cl := h.claim
	if err != nil && backend.KindOf(err) == backend.Unknown || err == nil && res.Acquired {
		cl.Stray()
		cl.Unanswered(lease)
	}
	switch {
	case h.state == forsaken:
		return ErrClosed
	case h.state == live && err != nil && !isDisplaced(err):
		return err
	}
	// Either the store says that the hold is gone, or the hold has expired.
	w := gone
	if err != nil && !isDisplaced(err) {
		w = cl.ranOut(s, s.now())
	}
	h.lose(s, w)
	if cl.Strays() {
		cl.takeBack(s)
	}
	return h.overError()
}
