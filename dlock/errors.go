package dlock

import (
	"errors"
	"fmt"

	"github.com/seed951563bd/distsync/backend"
)

// What can be wrong with a call, besides what the store or the context say. Test with [errors.Is].
var (
	// ErrNotAcquired says that the lock was not acquired within the time given with [Wait].
	ErrNotAcquired = errors.New("not acquired in time")

	// ErrNotHeld says that the caller gave back a lock that it doesn't hold.
	ErrNotHeld = errors.New("not held")

	// ErrLost says that the caller had the lock, and that it ended before it was given back: its
	// lease ran out, or the store says that it is gone or another's.
	ErrLost = errors.New("lost")

	// ErrClosed says that the client is closed.
	ErrClosed = errors.New("client closed")

	// ErrConflict says that something which is no lock is stored under the lock's name.
	ErrConflict = backend.ErrConflict
)

// Error is the error of every call in this package that returns one. It wraps one or more of the
// errors above, the error of the context that ended, or what the store said.
type Error struct {
	Op   string // "lock", "trylock", "unlock", "do", "forceunlock", …
	Name string // the lock's
	Err  error
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
	errNotUnlocked = errors.New("the last hold of this Locker is over, but not unlocked")
)
