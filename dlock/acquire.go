package dlock

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/seed951563bd/distsync/backend"
)

// An acquisition is one acquiring call under way. All its attempts share one owner string, so that
// an attempt without an answer which the store carries out late is part of the same hold.
type acquisition struct {
	name  string
	party party
	o     acquireOptions
	h     *hold // what the attempts ask for

	// For the waiting, guarded by Client.mu.
	prev, next *acquisition
	signal     chan struct{} // look again: at the head of the queue, woken, joined, or handed the lock
	alarm      alarm         // when the head looks again at the latest
	begin      instant       // when it first looked again
	fresh      bool          // at the head, and to try
	trying     bool          // an attempt is under way
	joined     bool          // the same party got in elsewhere: it can re-enter
	handed     *hold         // what it was handed by whoever had it before
	cut        func()        // ends the attempt under way, if a joined one need not wait for it

	within   *hold  // what the call began to re-enter
	seen     uint64 // how many attempts this client had sent before the call
	attempt  uint64 // the number of its own latest
	answered bool   // the store said during the call that another has the lock
	failure  error  // why the last attempt failed; nil if it was answered
	tries    backoff
	polls    backoff
}

// newAcquisition returns an acquisition, perhaps one that is over: nothing refers to that once its
// call has returned. A signal may be left in it, and one too many does no harm.
func (c *Client) newAcquisition() *acquisition {
	if a, ok := c.acquisitions.Get().(*acquisition); ok {
		return a
	}
	return new(acquisition)
}

// errAgain says that what the call began with has changed: the hold that it wanted to re-enter is
// gone, or there is one now.
var errAgain = errors.New("again")

// acquire gets the lock for a party: re-enters what it holds, or acquires and waits. What it
// returns instead of a hold is the reason, not yet wrapped; errHeld if the wait is over. Seen is how
// many attempts were sent before the call, or 0 for now.
func (c *Client) acquire(ctx context.Context, name string, p party, o acquireOptions, seen uint64) (*hold, error) {
	a := c.newAcquisition()
	*a = acquisition{name: name, party: p, o: o, seen: seen, signal: a.signal}
	defer c.acquisitions.Put(a)
	for {
		if err := c.over(ctx); err != nil {
			return nil, a.giveUp(err)
		}
		h, err := c.acquireOnce(ctx, a)
		switch {
		case err == nil:
			return h, nil
		case err == errAgain:
			continue
		case !c.retries(ctx, a, err):
			return nil, err
		}
		a.fail(ctx, err)
		c.logPatience(a, err)
		if !c.pause(ctx, a.tries.next(firstBackoff, o.lease/3)) {
			return nil, a.giveUp(c.over(ctx))
		}
	}
}

// firstBackoff is the first pause after an attempt that failed.
const firstBackoff = 50 * time.Millisecond

// acquireOnce re-enters, or acquires afresh, and waits for that if it may.
func (c *Client) acquireOnce(ctx context.Context, a *acquisition) (*hold, error) {
	if h := c.reenterable(a); h != nil {
		a.within = h
		return h, c.reenter(ctx, h, a)
	}
	if a.within != nil && c.isLost(a.within) {
		return nil, ErrLost // a fresh acquisition is not what the call began as
	}
	if a.single() {
		return c.tryNow(ctx, a)
	}
	return c.queueUp(ctx, a)
}

// reenterable returns the hold that a call can re-enter, or nil.
func (c *Client) reenterable(a *acquisition) *hold {
	if a.plain() {
		return nil
	}
	c.mu.Lock()
	defer c.unlock()
	return c.reenterableLocked(a)
}

// reenterableLocked is reenterable with c.mu held. Plain calls re-enter nothing: a hold of their
// Locker's is one that is being given back.
func (c *Client) reenterableLocked(a *acquisition) *hold {
	if a.plain() {
		return nil
	}
	return c.current(a.name, a.party)
}

// plain says that the call names no owner.
func (a *acquisition) plain() bool {
	_, plain := a.party.(*Locker)
	return plain
}

// single says that the call may not wait.
func (a *acquisition) single() bool { return a.o.bounded && a.o.wait == 0 }

// retries says whether the call goes on after an error, if only to find that its time is over.
func (c *Client) retries(ctx context.Context, a *acquisition, err error) bool {
	if _, end := errors.AsType[endError](err); end || err == errHeld || err == ErrLost || err == ErrClosed {
		return false
	}
	return backend.KindOf(err) != backend.Refused && (!a.single() || c.over(ctx) != nil)
}

// fail notes why an attempt failed. One that was cut short by the call's own end says nothing that
// the attempts before it, if there were any, did not.
func (a *acquisition) fail(ctx context.Context, err error) {
	if ctx.Err() == nil || !a.answered && a.failure == nil {
		a.failure = err
	}
}

// errHeld says that another has the lock.
var errHeld = fmt.Errorf("held by another: %w", ErrNotAcquired)

// isHeld says whether a call ended with errHeld, and not with an error of the caller's that wraps
// it, such as the cause of its context.
func isHeld(err error) bool {
	if end, ok := err.(endError); ok {
		err = end.error
	}
	return err == errHeld
}

// errWaited is the cause of a context whose wait is over. No caller ever sees it, so that none can
// bring it back as the cause of a context of its own.
var errWaited = errors.New("the wait is over")

// An endError ended a wait: no further attempt follows.
type endError struct{ error }

func (e endError) Unwrap() error { return e.error }

// over returns why a call cannot go on, or nil.
func (c *Client) over(ctx context.Context) error {
	if c.ctx.Err() != nil {
		return ErrClosed
	}
	if ctx.Err() == nil {
		return nil
	}
	if context.Cause(ctx) == errWaited {
		return errWaited
	}
	return ended(ctx)
}

// giveUp returns the error of a call that ends because of why: with what failed last, if anything
// did. That the wait is over means that another holds the lock only if the store said so.
func (a *acquisition) giveUp(why error) error {
	if why == errWaited {
		if a.answered && a.failure == nil {
			return endError{errHeld}
		}
		why = ErrNotAcquired
		if a.failure == nil {
			a.failure = errUnanswered
		}
	}
	return endError{both(why, a.failure)}
}

// waitContext returns a context that ends with the call's wait, cause errWaited.
func waitContext(ctx context.Context, o acquireOptions) (context.Context, context.CancelFunc) {
	if !o.bounded || o.wait == 0 {
		return ctx, func() {}
	}
	return context.WithTimeoutCause(ctx, o.wait, errWaited)
}

// logPatience logs a failed attempt of a call that cannot return it.
func (c *Client) logPatience(a *acquisition, err error) {
	if a.o.patient {
		c.logger.Warn("dlock: cannot lock yet", "name", a.name, "err", err)
	}
}

// tryNow makes the one attempt of a call that doesn't wait, out of turn.
func (c *Client) tryNow(ctx context.Context, a *acquisition) (*hold, error) {
	c.mu.Lock()
	h := c.holds[a.name]
	taken := h != nil && (h.party != a.party || a.plain()) && c.check(h)
	c.unlock()
	if taken {
		return nil, errHeld
	}
	_, err := c.attempt(ctx, a)
	if err == nil {
		return a.h, nil
	}
	c.abandon(a)
	if err == errHeld && c.reenterable(a) != nil {
		err = errAgain // held by another goroutine in the same party's name
	}
	return nil, err
}

// attempt asks the store for the lock once. A nil error means that a.h is held now. If it is
// errHeld, remaining is how long the present hold would last.
func (c *Client) attempt(ctx context.Context, a *acquisition) (remaining time.Duration, err error) {
	c.mu.Lock()
	if a.h == nil {
		a.h = c.claimFor(a)
	}
	h, lease := a.h, c.stored(a.o.lease)
	sent := c.now()
	h.sending(sent, lease)
	c.asked++
	a.attempt = c.asked
	c.mu.Unlock()

	res, err := step(ctx, c, backend.Session.Acquire, h.acquireRequest(lease, false))

	c.mu.Lock()
	defer c.unlock()
	now := c.now()
	switch {
	case err != nil:
		if backend.KindOf(err) == backend.Unknown {
			h.unsure = true
			h.doubted(a.o.lease)
		}
		if c.closed && backend.KindOf(err) == backend.Refused {
			err = both(ErrClosed, err) // the session is closed, too
		}
		return 0, err
	case !res.Acquired:
		return res.Remaining, errHeld
	}
	h.extend(sent, a.o.lease)
	if c.closed || !h.valid(now) || a.joined {
		h.unsure = true // it may be in the store, and nobody has it
		return 0, c.unusable(a)
	}
	h.count = 1
	c.grant(h, sent)
	c.dequeue(a)
	return 0, nil
}

// unusable says why an acquisition that the store granted cannot be used. c.mu is held.
func (c *Client) unusable(a *acquisition) error {
	switch {
	case c.closed:
		return ErrClosed
	case a.joined:
		return errAgain
	default:
		return errLate
	}
}

// claimFor makes what an acquisition asks for, under an owner string of its own. c.mu is held.
func (c *Client) claimFor(a *acquisition) *hold {
	both := new(struct {
		hold  hold
		claim claim
	})
	both.claim.name, both.claim.owner = a.name, c.nextOwner()
	both.claim.lease, both.claim.watched = a.o.lease, !a.o.fixed
	both.hold.rest(a.party, &both.claim)
	return &both.hold
}

// abandon ends what an acquisition asked for without having it: no attempt for it follows.
func (c *Client) abandon(a *acquisition) {
	if a.h == nil {
		return
	}
	c.mu.Lock()
	defer c.unlock()
	if a.h.unsure {
		c.takeBack(a.h.claim)
	}
	a.h = nil
}

// reenter counts one hold more. Steps that count are made one at a time.
func (c *Client) reenter(ctx context.Context, h *hold, a *acquisition) error {
	select {
	case h.slot <- struct{}{}:
		defer func() { <-h.slot }()
	case <-ctx.Done():
		return a.giveUp(c.over(ctx))
	case <-c.ctx.Done():
		return ErrClosed
	}
	c.mu.Lock()
	if !c.check(h) {
		c.unlock()
		return errAgain
	}
	now := c.now()
	lease, count := h.reentryLease(a.o, now), h.count+1
	h.sending(now, c.stored(lease))
	c.unlock()

	res, err := step(ctx, c, backend.Session.Acquire, h.acquireRequest(c.stored(lease), true))

	c.mu.Lock()
	defer c.unlock()
	if err == nil && res.Acquired && res.Count >= count && c.check(h) {
		h.count = count
		c.prolong(h, now, lease, !a.o.fixed)
		return nil
	}
	return c.failReentry(h, lease, res, err)
}

// reentryLease returns the lease to ask for: that of the hold, or, if the hold isn't renewed, what
// the re-entry wants, but no less than what is left. c.mu is held.
func (cl *claim) reentryLease(o acquireOptions, now instant) time.Duration {
	if cl.watched {
		return cl.lease
	}
	return max(cl.remaining(now), o.lease)
}

// remaining returns the lease, in whole milliseconds, whose promise lasts no shorter than the one
// that the claim has.
func (cl *claim) remaining(now instant) time.Duration {
	left := instant(cl.deadline.Load()) - now
	left += left / (driftShare - 1)
	return (left + time.Millisecond - 1).Truncate(time.Millisecond)
}

// prolong notes an answer that granted a lease in a counting step. c.mu is held.
func (c *Client) prolong(h *hold, sent instant, lease time.Duration, watch bool) {
	h.lease = lease
	h.watched = h.watched || watch
	h.extend(sent, lease)
	c.schedule(&h.alarm, c.nextLook(h.claim, sent))
}

// failReentry returns what a re-entry that isn't counted any more says, and notes what it told us
// of the hold. c.mu is held.
func (c *Client) failReentry(h *hold, lease time.Duration, res backend.AcquireResult, err error) error {
	if err != nil && backend.KindOf(err) == backend.Unknown || err == nil && res.Acquired {
		h.unsure = true
		h.doubted(lease)
	}
	switch {
	case h.state == forsaken:
		return ErrClosed
	case h.state == live && err != nil:
		return err
	}
	// The store says that the hold is gone, or our own clock said so meanwhile.
	c.lose(h, ErrLost)
	if h.unsure {
		c.takeBack(h.claim)
	}
	return ErrLost
}
