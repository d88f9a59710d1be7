package dlock

import (
	"errors"
	"fmt"
	"strings"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/dlock/internal/steps"
)

// Errors returned by this package. Calls also return the errors of the store and the context. Test
// for them with [errors.Is].
var (
	// ErrNotAcquired says that the lock was not acquired within the time given with [Wait].
	ErrNotAcquired = errors.New("not acquired in time")

	// ErrHeld says that someone else holds the lock, or did when the store last answered. For an
	// [RWLocker] it can also mean that a writer is waiting, and began to wait before this reader,
	// or before an earlier reader of this client. For a [Semaphore] it means that too few permits
	// are left, even if the caller itself holds those that are taken. The call's error also wraps
	// the reason why the call stopped waiting, which is [ErrNotAcquired] or the error of the
	// context. If the holder belongs to the same client, the text of the error says so. A call made
	// with the hold's context, or in its owner's name, would re-enter the lock.
	ErrHeld = errors.New("held by another")

	// ErrUnavailable says that the store didn't answer, or refused, so it is unknown who holds the
	// lock. The call's error also wraps the error of the store or its client library. From
	// [Locker.Do] it can also mean that fn has run, but the unlock wasn't confirmed. Then the Op of
	// the [Error] is "unlock".
	ErrUnavailable = errors.New("store unavailable")

	// ErrNotHeld says that the caller tried to unlock a lock that it doesn't hold.
	ErrNotHeld = errors.New("not held")

	// ErrLost says that the caller's lock ended before it was unlocked. Its lease ran out, or the
	// store reports that the lock is gone or held by another. If the cause is known, the error is a
	// [*Loss]. So test for ErrLost with errors.Is, even in the result of [context.Cause].
	ErrLost = backend.ErrLost

	// ErrUpgrade says that a reader tried to lock for writing. It must release its read lock first.
	ErrUpgrade = errors.New("cannot write while reading: give the read lock back first")

	// ErrClosed says that the client is closed.
	ErrClosed = errors.New("client closed")

	// ErrResigned is the cancellation cause of a leader's context after [Election.Resign].
	ErrResigned = errors.New("resigned")

	// ErrConflict says that the lock's name belongs to a lock of another kind, or to data that
	// isn't a lock. It can also mean that the caller already holds this lock itself, but as another
	// kind.
	ErrConflict = backend.ErrConflict

	// ErrTooMany says that the call asked for more permits than the semaphore has, so it would wait
	// forever.
	ErrTooMany = backend.ErrTooMany

	// ErrNoLimit says that a [Semaphore] was made with 0 permits, and the store doesn't know the
	// number of permits either.
	ErrNoLimit = backend.ErrNoLimit
)

// Error is the type of all errors of this package. It wraps one or more of the errors above, or the
// error of the context or the store.
type Error struct {
	// Op is the operation: "lock", "trylock", "unlock", "acquire", "release", "do", "trydo",
	// "forceunlock", "forcerelease", "islocked", "isheld", "holdcount", "ttl", "available",
	// "holder", "inspect", "list", "once", "run", "leader" or "changes". On the reading side of an
	// [RWLocker], it begins with an additional "r". For a [Latch], it is "set", "countdown",
	// "count" or "wait". If the error is about a hold itself, Op is "hold".
	Op string

	// Name is the name of the lock. If Op is "list", it is the prefix. For a [MultiLocker], it is
	// all names, unless the error is about one of its locks.
	Name string

	// Err is the underlying error.
	Err error
}

// Error returns the operation, the lock's name and the text of Err.
func (e *Error) Error() string { return fmt.Sprintf("dlock: %s %q: %v", e.Op, e.Name, e.Err) }

// Unwrap returns Err.
func (e *Error) Unwrap() error { return e.Err }

// These errors aren't exported, because a program can't react to them.
var (
	errEmptyName   = errors.New("the name is empty")
	errLate        = errors.New("the answer came after the lease that it promised had passed")
	errUnanswered  = steps.ErrUnanswered
	errNotUnlocked = fmt.Errorf("the last hold of this Locker is over, but not unlocked: %w",
		ErrLost)
	errOtherKind = fmt.Errorf("%w: the caller has it as a lock of another kind", ErrConflict)
	errBrief     = errors.New("it was over before the others were acquired")
	errPanicked  = errors.New("a step of the store panicked, or ended its goroutine")
	errNoToken   = errors.New("the store gave no fencing token")
	errElsewhere = fmt.Errorf("%w by this Locker; another Locker of this client has it",
		ErrNotHeld)
	errOwners = fmt.Errorf("%w by this Locker's plain calls; an owner or a Do of this client "+
		"has it: unlock with the context that locked it", ErrNotHeld)
)

// unavailable wraps an error of the store with ErrUnavailable. It returns some errors unchanged,
// since they don't mean that the store is unavailable. These are errors about the data under the
// name or about the request itself, and the error of a closed client.
func unavailable(err error) error {
	if err == nil {
		return nil
	}
	for _, plain := range []error{ErrConflict, ErrClosed, ErrUnavailable, ErrTooMany, ErrNoLimit,
		errors.ErrUnsupported} {
		if errors.Is(err, plain) {
			return err
		}
	}
	if backend.KindOf(err) == backend.Refused {
		return fmt.Errorf("%w: it refuses this for as long as nobody puts it right: %w",
			ErrUnavailable, err)
	}
	return fmt.Errorf("%w: %w", ErrUnavailable, err)
}

// isDisplaced reports whether err means that a claim was lost because the store now contains other
// data under the lock's name.
func isDisplaced(err error) bool {
	return backend.KindOf(err) == backend.Refused && errors.Is(err, ErrConflict)
}

// withUnlock joins the error of fn with the error of the unlock. If both are about the same loss,
// its text appears once.
func withUnlock(fn, unlock error) error {
	if e, ok := unlock.(*Error); ok && fn != nil {
		if l, ok := e.Err.(*Loss); ok && strings.Contains(fn.Error(), l.Error()) {
			return told{fn, unlock}
		}
	}
	return both(fn, unlock)
}

// told wraps two errors. Its text is that of the first error, which includes the text of the
// second.
type told struct {
	error
	also error
}

func (t told) Unwrap() []error { return []error{t.error, t.also} }

// both joins two errors into one, whose text is a single line. Either error may be nil.
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

// wrap wraps err in an [Error] with the given Op. A nil error stays nil.
func (l *Locker) wrap(op string, err error) error {
	if err == nil {
		return nil
	}
	if l.kind.Shared() {
		op = "r" + op
	}
	return &Error{Op: op, Name: l.name, Err: err}
}
