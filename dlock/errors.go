package dlock

import (
	"errors"
	"fmt"
	"strings"

	"github.com/seed951563bd/distsync/backend"
)

// Errors of this package; calls also return those of the store and the context. Test with
// [errors.Is].
var (
	// ErrNotAcquired says that the lock was not acquired within the time given with [Wait].
	ErrNotAcquired = errors.New("not acquired in time")

	// ErrHeld says that another has the lock, or had it when the store last answered. For an
	// [RWLocker] it may also mean that another has waited to write for longer than a reader. For a
	// [Semaphore] it means that too few permits are left, even if the caller has the others. It
	// comes with the reason why the call didn't wait any longer: [ErrNotAcquired], or the error of
	// the context. If the other is a call of the same client, the text says so: with the context of
	// that hold or owner, this call would re-enter.
	ErrHeld = errors.New("held by another")

	// ErrUnavailable says that the store didn't answer, or refused, so it is unknown who has the
	// lock. It comes with the error of the store or its client. From [Locker.Do] it may also mean
	// that fn has run, and only the unlock was not confirmed: then the Op of the [Error] is
	// "unlock".
	ErrUnavailable = errors.New("store unavailable")

	// ErrNotHeld says that the caller tried to unlock a lock that it doesn't hold.
	ErrNotHeld = errors.New("not held")

	// ErrLost says that the caller's lock ended before it was unlocked: its lease ran out, or the
	// store reports it gone, or held by another. It comes as a [*Loss] if it is known how, so test
	// with errors.Is, also in the cause of a context.
	ErrLost = backend.ErrLost

	// ErrUpgrade says that a reader wanted to write: it must give up reading first.
	ErrUpgrade = errors.New("cannot write while reading: give the read lock back first")

	// ErrClosed says that the client is closed.
	ErrClosed = errors.New("client closed")

	// ErrResigned is the cause with which the context of a leader ends after [Election.Resign].
	ErrResigned = errors.New("resigned")

	// ErrConflict says that the lock's name holds something that is not a lock, or a lock of
	// another kind, or that the caller itself has it as another kind.
	ErrConflict = backend.ErrConflict

	// ErrTooMany says that more permits were asked for than there are, so the call would wait
	// forever.
	ErrTooMany = backend.ErrTooMany

	// ErrNoLimit says that a [Semaphore] was made with 0 permits, and the store doesn't know their
	// number either.
	ErrNoLimit = backend.ErrNoLimit
)

// Error is the type of all errors of this package. It wraps one or more of the errors above, the
// error of the context, or the store's.
type Error struct {
	// Op is the call: lock, trylock, unlock, acquire, release, do, trydo, forceunlock, forcerelease,
	// islocked, isheld, holdcount, ttl, available, holder, inspect, list, once, run, leader or changes,
	// of the reading side of an [RWLocker] with an r before it; set, countdown, count or wait of a
	// [Latch]; or hold, where the error is about a hold itself.
	Op string

	// Name is the lock's. For list it is the prefix. For a [MultiLocker] it is all names, if the
	// error isn't about one of its locks.
	Name string

	// Err is what happened.
	Err error
}

// Error returns the operation, the lock's name and what happened.
func (e *Error) Error() string { return fmt.Sprintf("dlock: %s %q: %v", e.Op, e.Name, e.Err) }

// Unwrap returns what happened.
func (e *Error) Unwrap() error { return e.Err }

// These are found in the errors of calls, but nobody can do more about them than read them.
var (
	errEmptyName   = errors.New("the name is empty")
	errLate        = errors.New("the answer came after the lease that it promised had passed")
	errUnanswered  = errors.New("the store has not answered")
	errNotUnlocked = fmt.Errorf("the last hold of this Locker is over, but not unlocked: %w", ErrLost)
	errOtherKind   = fmt.Errorf("%w: the caller has it as a lock of another kind", ErrConflict)
	errBrief       = errors.New("it was over before the others were acquired")
	errPanicked    = errors.New("a step of the store panicked, or ended its goroutine")
	errNoToken     = errors.New("the store gave no fencing token")
	errElsewhere   = fmt.Errorf("%w by this Locker; another Locker of this client has it", ErrNotHeld)
	errOwners      = fmt.Errorf("%w by this Locker's plain calls; an owner or a Do of this client has it: unlock with the context that locked it", ErrNotHeld)
)

// unavailable returns an error of the store as one that says so. What the store found under the
// name, or misses in the request, and that the client is closed, says nothing against the store.
func unavailable(err error) error {
	if err == nil {
		return nil
	}
	for _, plain := range []error{ErrConflict, ErrClosed, ErrUnavailable, ErrTooMany, ErrNoLimit, errors.ErrUnsupported} {
		if errors.Is(err, plain) {
			return err
		}
	}
	if backend.KindOf(err) == backend.Refused {
		return fmt.Errorf("%w: it refuses this for as long as nobody puts it right: %w", ErrUnavailable, err)
	}
	return fmt.Errorf("%w: %w", ErrUnavailable, err)
}

// isDisplaced says whether an error about a claim means that the store has it no more: something
// else is under its name.
func isDisplaced(err error) bool {
	return backend.KindOf(err) == backend.Refused && errors.Is(err, ErrConflict)
}

// withUnlock returns what fn has returned, and with it the error of the unlock. Where both tell of
// the same loss the text does so once.
func withUnlock(fn, unlock error) error {
	if e, ok := unlock.(*Error); ok && fn != nil {
		if l, ok := e.Err.(*Loss); ok && strings.Contains(fn.Error(), l.Error()) {
			return told{fn, unlock}
		}
	}
	return both(fn, unlock)
}

// told is an error, and another of which it tells already.
type told struct {
	error
	also error
}

func (t told) Unwrap() []error { return []error{t.error, t.also} }

// both returns an error that is each of two, one of which may be nil, in one line.
func both(a, b error) error {
	switch {
	case a == nil:
		return b
	case b == nil:
		return a
	default:
		return fmt.Errorf("%w; %w", a, b)
	}
}
