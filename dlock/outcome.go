package dlock

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/seed951563bd/distsync/backend"
)

// How a call that acquires a lock ends: the errors for it, and what they say about the lock.

// errHeld is the error of a call that mustn't wait and finds the lock held.
var errHeld = fmt.Errorf("%w: %w", ErrNotAcquired, ErrHeld)

// heldHere is an ErrHeld whose text says that this client holds the lock.
type heldHere struct{}

func (heldHere) Error() string {
	return "held by another call of this client, and this call isn't made in its name"
}

func (heldHere) Is(target error) bool { return target == ErrHeld }

// errHeldHere is like errHeld, but says that this client itself holds the lock, for another party
// or as a different kind of lock.
var errHeldHere = fmt.Errorf("%w: %w", ErrNotAcquired, heldHere{})

// isHeld reports whether a call ended with errHeld. It returns false for an error that comes from
// the caller, such as the cause of its context, even if that error wraps an earlier errHeld.
func isHeld(err error) bool {
	if end, ok := err.(endError); ok {
		err = end.error
	}
	return isErrHeld(err)
}

// isErrHeld reports whether err means that an attempt found the lock held by someone else.
func isErrHeld(err error) bool { return err == errHeld || err == errHeldHere }

// errWaited is the cause of a call's context when the wait has run out. It is never returned to
// callers, so a context that a caller passes can't have this cause.
var errWaited = errors.New("the wait is over")

// waitContext returns a context that ends with the cause errWaited when the call's wait runs out.
func waitContext(ctx context.Context, o acquireOptions) (context.Context, context.CancelFunc) {
	if !o.bounded || o.wait == 0 {
		return ctx, func() {}
	}
	return context.WithTimeoutCause(ctx, o.wait, errWaited)
}

// An endError is an error that ends a wait. The call makes no further attempt.
type endError struct{ error }

func (e endError) Unwrap() error { return e.error }

// over returns the reason why a call can't go on, or nil.
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

// giveUp returns the error for a call that ends for the given reason. The error also says what is
// known about the lock. It mentions another holder only if the store reported one during the call,
// or this client knew of one.
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
	case a.answered && waited && a.here:
		return endError{errHeldHere}
	case a.answered && waited:
		return endError{errHeld}
	case a.answered && a.here:
		return endError{both(why, heldHere{})}
	case a.answered:
		return endError{both(why, ErrHeld)}
	case waited || a.budget > 0 && a.since > 0:
		return endError{both(why, unavailable(errUnanswered))}
	default:
		return endError{why}
	}
}

// final returns the error to report to the caller if the call ends with err. It wraps the store's
// errors in ErrUnavailable.
func final(err error) error {
	if isFinal(err) {
		return err
	}
	if _, end := errors.AsType[endError](err); end {
		return err
	}
	return unavailable(err)
}

// isFinal reports whether err is one of this package's errors that end a call.
func isFinal(err error) bool {
	switch err {
	case errHeld, errHeldHere, errNotUnlocked, errOtherKind, ErrUpgrade, ErrLost, ErrNotHeld,
		ErrClosed:
		return true
	}
	_, lost := err.(*Loss)
	return lost
}

// single reports whether the call mustn't wait. Such a call makes one attempt.
func (a *acquisition) single() bool { return a.o.bounded && a.o.wait == 0 }

// retries reports whether the call tries again after err. A call that mustn't wait tries again only
// if its context has ended or the client is closed. That try sends no request, but returns the
// context's error or ErrClosed.
func (a *acquisition) retries(ctx context.Context, err error) bool {
	if isFinal(err) {
		return false
	}
	if _, end := errors.AsType[endError](err); end {
		return false
	}
	return backend.KindOf(err) != backend.Refused && (!a.single() || a.client.over(ctx) != nil)
}

// fail records err as the reason why an attempt failed. If cut is set, the attempt failed only
// because the call ended. Such an error says little, so it is ignored if the store has answered
// another attempt, or if another failure is recorded.
func (a *acquisition) fail(cut bool, err error) {
	if !cut || !a.answered && a.failure == nil {
		a.failure = err
	}
}

// Pauses between log messages while the store doesn't answer a call.
const (
	firstReport   = time.Second
	longestReport = time.Minute
)

// reportFailure occasionally logs the failed attempts of a call whose wait is unbounded.
func (a *acquisition) reportFailure(err error) {
	now := a.client.now()
	if a.quiet || now < a.report {
		return
	}
	a.report = now + a.reports.next(firstReport, longestReport)
	a.client.warn("cannot lock yet", "name", a.name, "err", err)
}
