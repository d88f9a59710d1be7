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
	name   string
	party  party
	o      acquireOptions
	within *hold         // what the call re-enters: what its context is for, or what its party had when it began
	bound  bool          // its context says so
	shared bool          // others may call in the name of its party, and re-enter what that gets
	budget time.Duration // how long the call may wait; 0: nobody knows
	quiet  bool          // the call ends by itself, and returns why: nothing need be logged
	seen   uint64        // how many attempts this client had sent before the call

	h *hold // what the attempts ask for

	// For the waiting, guarded by Client.mu.
	prev, next *acquisition
	signal     chan struct{} // look again: to ask the store, joined, or handed the lock
	alarm      alarm         // when it looks again at the latest
	since      instant       // when it began to wait; 0: it has asked only
	fresh      bool          // to try
	trying     bool          // an attempt is under way
	joined     bool          // the same party got in elsewhere: it can re-enter
	handed     *hold         // what it was handed by whoever had it before
	cut        func()        // ends the attempt under way, if a joined one need not wait for it

	attempt  uint64 // the number of its own latest
	answered bool   // the store said during the call that another has the lock
	failure  error  // why the last attempt failed; nil if it was answered
	tries    backoff
	polls    backoff
	reports  backoff // of failures, in the log
	report   instant // when the next is due
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

// acquire gets the lock for a caller: re-enters what it holds, or acquires and waits. What it
// returns instead of a hold is the reason, not yet wrapped.
func (c *Client) acquire(ctx context.Context, name string, who caller, o acquireOptions) (*hold, error) {
	a := c.newAcquisition()
	*a = acquisition{name: name, party: who.party, o: o, within: who.hold, bound: who.hold != nil, signal: a.signal}
	a.shared = a.locker() == nil && !who.alone
	a.mayTake(ctx)
	over := false
	defer func() {
		if !over { // a step panicked, or ended its goroutine
			c.forgo(a)
			return
		}
		c.acquisitions.Put(a)
	}()
	h, err := c.acquireInTime(ctx, a)
	over = true
	return h, err
}

// mayTake notes how long a call may wait, if that is bounded.
func (a *acquisition) mayTake(ctx context.Context) {
	a.budget = a.o.wait
	a.quiet = a.o.bounded
	if end, ok := ctx.Deadline(); ok {
		a.quiet = true
		if left := time.Until(end); a.budget == 0 || left < a.budget {
			a.budget = left
		}
	}
}

// forgo gives up whatever a call has that will never return.
func (c *Client) forgo(a *acquisition) {
	c.mu.Lock()
	defer c.unlock()
	c.dequeueLocked(a)
	h := a.handed
	switch {
	case a.h == nil:
	case c.holds[a.name] == a.h:
		h, a.h = a.h, nil
	default:
		a.h.claim.unsure = true // an attempt may have been sent
	}
	if h != nil {
		c.backgroundLocked(func() { c.release(context.Background(), h) })
	}
	c.abandonLocked(a)
}

// acquireInTime tries until it has the lock or the call cannot go on.
func (c *Client) acquireInTime(ctx context.Context, a *acquisition) (*hold, error) {
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
			return nil, c.final(a, err)
		}
		a.fail(ctx.Err() != nil, err)
		c.report(a, err)
		if !c.pause(ctx, a.tries.next(firstBackoff, longestPause(a.o.lease))) {
			return nil, a.giveUp(c.over(ctx))
		}
	}
}

// firstBackoff is the first pause after an attempt that failed.
const firstBackoff = 50 * time.Millisecond

// acquireOnce re-enters, or acquires afresh, and waits for that if it may.
func (c *Client) acquireOnce(ctx context.Context, a *acquisition) (*hold, error) {
	h, err := c.reenterable(a)
	switch {
	case err != nil:
		return nil, err
	case h != nil:
		return h, c.reenter(ctx, h, a)
	case a.single():
		return c.tryNow(ctx, a)
	default:
		return c.queueUp(ctx, a)
	}
}

// reenterable returns the hold that a call re-enters, or nil if it is to acquire one. A call that
// began as a re-entry doesn't become anything else: it is an error if that hold is over.
func (c *Client) reenterable(a *acquisition) (*hold, error) {
	if a.locker() != nil {
		return nil, nil
	}
	c.mu.Lock()
	defer c.unlock()
	if !a.bound {
		if h := c.currentLocked(a.name, a.party); h != nil {
			a.within = h
			return h, nil
		}
	}
	switch h := a.within; {
	case h == nil:
		return nil, nil
	case c.checkLocked(h):
		return h, nil
	case a.bound || h.state == lost:
		return nil, h.state.overError()
	default:
		return nil, nil
	}
}

// overError says how a hold that is not live any more ended.
func (s holdState) overError() error {
	switch s {
	case lost:
		return ErrLost
	case forsaken:
		return ErrClosed
	default:
		return ErrNotHeld
	}
}

// whyOver says how the hold that a context is for has ended, if it has.
func (c *Client) whyOver(h *hold) error {
	if h == nil {
		return nil
	}
	c.mu.Lock()
	defer c.unlock()
	if c.checkLocked(h) {
		return nil
	}
	return h.state.overError()
}

// locker returns the Locker whose plain call it is, or nil.
func (a *acquisition) locker() *Locker {
	l, _ := a.party.(*Locker)
	return l
}

// single says that the call may not wait.
func (a *acquisition) single() bool { return a.o.bounded && a.o.wait == 0 }

// retries says whether the call goes on after an error, if only to find that its time is over.
func (c *Client) retries(ctx context.Context, a *acquisition, err error) bool {
	switch err {
	case errHeld, errNotUnlocked, ErrLost, ErrNotHeld, ErrClosed:
		return false
	}
	if _, end := errors.AsType[endError](err); end {
		return false
	}
	return backend.KindOf(err) != backend.Refused && (!a.single() || c.over(ctx) != nil)
}

// final returns the error of a call that ends with err.
func (c *Client) final(a *acquisition, err error) error {
	switch err {
	case errHeld, errNotUnlocked, ErrLost, ErrNotHeld, ErrClosed:
		return err
	}
	if _, end := errors.AsType[endError](err); end {
		return err
	}
	return unavailable(err)
}

// fail notes why an attempt failed. One that was cut short by the call's own end says nothing that
// the attempts before it, if there were any, did not.
func (a *acquisition) fail(cut bool, err error) {
	if !cut || !a.answered && a.failure == nil {
		a.failure = err
	}
}

// errHeld is how a call ends that may not wait for whoever has the lock.
var errHeld = fmt.Errorf("%w: %w", ErrNotAcquired, ErrHeld)

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

// giveUp returns the error of a call that ends because of why, with what is known of the lock. That
// another holds it is known only if the store said so during the call.
func (a *acquisition) giveUp(why error) error {
	waited := why == errWaited
	if waited {
		why = ErrNotAcquired
	}
	switch {
	case why == ErrClosed:
		return endError{why}
	case a.failure == errNotUnlocked:
		return endError{both(why, errNotUnlocked)}
	case a.failure != nil:
		return endError{both(why, unavailable(a.failure))}
	case a.answered && waited:
		return endError{errHeld}
	case a.answered:
		return endError{both(why, ErrHeld)}
	case waited || a.budget > 0 && a.since > 0:
		return endError{both(why, unavailable(errUnanswered))}
	default:
		return endError{why}
	}
}

// waitContext returns a context that ends with the call's wait, cause errWaited.
func waitContext(ctx context.Context, o acquireOptions) (context.Context, context.CancelFunc) {
	if !o.bounded || o.wait == 0 {
		return ctx, func() {}
	}
	return context.WithTimeoutCause(ctx, o.wait, errWaited)
}

// Pauses between two reports of one call that the store doesn't answer.
const (
	firstReport   = time.Second
	longestReport = time.Minute
)

// report logs a failed attempt of a call that goes on trying for as long as that takes, now and then.
func (c *Client) report(a *acquisition, err error) {
	now := c.now()
	if a.quiet || now < a.report {
		return
	}
	a.report = now + a.reports.next(firstReport, longestReport)
	c.warn("cannot lock yet", "name", a.name, "err", err)
}

// tryNow makes the one attempt of a call that doesn't wait, out of turn.
func (c *Client) tryNow(ctx context.Context, a *acquisition) (*hold, error) {
	if err := c.known(a); err != nil {
		return nil, err
	}
	_, err := c.attempt(ctx, a)
	if err == nil {
		return a.h, nil
	}
	c.abandon(a)
	if err == errHeld && c.joins(a) {
		err = errAgain // held by another goroutine in the same party's name
	}
	return nil, err
}

// known says what keeps a call out that is known without asking the store.
func (c *Client) known(a *acquisition) error {
	c.mu.Lock()
	defer c.unlock()
	if l := a.locker(); l != nil && l.hold != nil && !c.checkLocked(l.hold) && l.hold.state == lost {
		return errNotUnlocked
	}
	if h := c.holds[a.name]; h != nil && (h.party != a.party || a.locker() != nil) && c.checkLocked(h) {
		return errHeld
	}
	return nil
}

// joins says whether the party of a call has the lock by now.
func (c *Client) joins(a *acquisition) bool {
	c.mu.Lock()
	defer c.unlock()
	return c.reentersLocked(a)
}

// reentersLocked says whether a call can re-enter what its party has.
func (c *Client) reentersLocked(a *acquisition) bool {
	return a.locker() == nil && c.currentLocked(a.name, a.party) != nil
}

// attempt asks the store for the lock once. A nil error means that a.h is held now. If it is
// errHeld, remaining is how long the present hold would last.
func (c *Client) attempt(ctx context.Context, a *acquisition) (remaining time.Duration, err error) {
	c.mu.Lock()
	if a.h == nil {
		a.h = c.claimForLocked(a)
	}
	h, lease := a.h, c.stored(a.o.lease)
	sent, forced := c.now(), c.forced.Load()
	h.claim.sending(sent, lease)
	c.asked++
	a.attempt = c.asked
	c.mu.Unlock()

	res, err := step(ctx, c, backend.Session.Acquire, h.claim.acquireRequest(lease, false))

	if remaining, err = c.answered(a, sent, res, err); err == nil && c.forced.Load() != forced {
		c.confirm(ctx, h.claim)
	}
	return remaining, err
}

// answered notes the answer to an attempt.
func (c *Client) answered(a *acquisition, sent instant, res backend.AcquireResult, err error) (remaining time.Duration, _ error) {
	c.mu.Lock()
	defer c.unlock()
	h := a.h
	switch {
	case err != nil:
		if backend.KindOf(err) == backend.Unknown {
			h.claim.unsure = true
			h.claim.doubted(a.o.lease)
		}
		if c.closed && backend.KindOf(err) == backend.Refused {
			err = both(ErrClosed, err) // the session is closed, too
		}
		return 0, err
	case !res.Acquired:
		return res.Remaining, errHeld
	}
	h.claim.extend(sent, a.o.lease)
	if err := c.unusableLocked(a); err != nil {
		h.claim.unsure = true // it may be in the store, and nobody has it
		return 0, err
	}
	c.grantLocked(h, sent)
	c.caughtUpLocked(a.name)
	c.dequeueLocked(a)
	return 0, nil
}

// unusableLocked says why an acquisition that the store has just granted cannot be used, if so.
func (c *Client) unusableLocked(a *acquisition) error {
	switch l := a.locker(); {
	case c.closed:
		return ErrClosed
	case a.joined:
		return errAgain
	case !a.h.valid(c.now()):
		return errLate
	case l != nil && l.hold != nil && l.hold.state != released:
		return errAgain // the Locker was locked meanwhile, and that hold is lost, or will soon be found to be
	default:
		return nil
	}
}

// confirm asks the store whether a claim that was granted while this client forced a lock has been
// struck, until it has said so. Whoever holds the claim by then is told.
func (c *Client) confirm(ctx context.Context, cl *claim) {
	if c.confirmed(ctx, cl) {
		return
	}
	c.mu.Lock()
	defer c.unlock()
	c.backgroundLocked(func() {
		var tries backoff
		for c.pause(c.ctx, tries.next(firstBackoff, longestPause(c.lease))) && !c.confirmed(c.ctx, cl) {
		}
	})
}

// confirmed asks once, and says whether it is clear now.
func (c *Client) confirmed(ctx context.Context, cl *claim) bool {
	res, err := step(ctx, c, backend.Session.Look, backend.LookRequest{Name: cl.name, Owner: cl.owner})
	c.mu.Lock()
	defer c.unlock()
	if err == nil && res.Count == 0 {
		c.loseLocked(cl.holder, ErrLost)
	}
	return err == nil || !c.checkLocked(cl.holder)
}

// claimForLocked makes what an acquisition asks for, under an owner string of its own.
func (c *Client) claimForLocked(a *acquisition) *hold {
	both := new(struct {
		hold  hold
		claim claim
	})
	both.claim.name, both.claim.owner = a.name, c.nextOwnerLocked()
	both.claim.lease, both.claim.watched = a.o.lease, !a.o.fixed
	both.hold.rest(a.party, &both.claim)
	return &both.hold
}

// abandon ends what an acquisition asked for without having it: no attempt for it follows.
func (c *Client) abandon(a *acquisition) {
	c.mu.Lock()
	defer c.unlock()
	c.abandonLocked(a)
}

func (c *Client) abandonLocked(a *acquisition) {
	if a.h != nil && a.h.claim.unsure {
		c.takeBackLocked(a.h.claim)
	}
	a.h = nil
}

// reenter counts one hold more. Steps that count are made one at a time.
func (c *Client) reenter(ctx context.Context, h *hold, a *acquisition) error {
	a.answered = false // by another, before its own party got in
	select {
	case h.slot <- struct{}{}:
		defer func() { <-h.slot }()
	case <-ctx.Done():
		return a.giveUp(c.over(ctx))
	case <-c.ctx.Done():
		return ErrClosed
	}
	c.mu.Lock()
	if !c.checkLocked(h) {
		c.unlock()
		return errAgain
	}
	cl, now := h.claim, c.now()
	lease, count := cl.reentryLease(a.o, now), h.count+1
	cl.sending(now, c.stored(lease))
	c.unlock()

	res, err := step(ctx, c, backend.Session.Acquire, cl.acquireRequest(c.stored(lease), true))

	c.mu.Lock()
	defer c.unlock()
	if err == nil && res.Acquired && res.Count >= count && c.checkLocked(h) {
		h.count, h.offered = count, false
		if !cl.watched && !a.o.fixed {
			cl.watched, h.renewedFrom = true, count
		}
		c.prolongLocked(h, now, lease)
		return nil
	}
	return c.failReentryLocked(h, lease, res, err)
}

// reentryLease returns the lease to ask for: that of the hold, or, if the hold isn't renewed, what
// the re-entry wants, but no less than what is left.
func (cl *claim) reentryLease(o acquireOptions, now instant) time.Duration {
	if cl.watched {
		return cl.lease
	}
	return max(cl.remaining(now), o.lease)
}

// remaining returns the lease, in whole milliseconds, whose promise lasts no shorter than the one
// that the claim has.
func (cl *claim) remaining(now instant) time.Duration {
	left := cl.until() - now
	left += left / (driftShare - 1)
	return (left + time.Millisecond - 1).Truncate(time.Millisecond)
}

// prolongLocked notes an answer that granted a lease in a counting step.
func (c *Client) prolongLocked(h *hold, sent instant, lease time.Duration) {
	cl := h.claim
	cl.lease = lease
	cl.extend(sent, lease)
	c.scheduleLocked(&cl.alarm, c.nextLook(cl, sent))
}

// failReentryLocked returns what a re-entry that isn't counted any more says, and notes what it told
// us of the hold.
func (c *Client) failReentryLocked(h *hold, lease time.Duration, res backend.AcquireResult, err error) error {
	cl := h.claim
	if err != nil && backend.KindOf(err) == backend.Unknown || err == nil && res.Acquired {
		cl.unsure = true
		cl.doubted(lease)
	}
	switch {
	case h.state == forsaken:
		return ErrClosed
	case h.state == live && err != nil:
		return err
	}
	// The store says that the hold is gone, or our own clock said so meanwhile.
	c.loseLocked(h, ErrLost)
	if cl.unsure {
		c.takeBackLocked(cl)
	}
	return ErrLost
}
