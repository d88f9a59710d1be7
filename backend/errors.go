package backend

import (
	"errors"
	"fmt"
)

// ErrConflict is wrapped by the error of a step if the lock's name is in use for another kind of
// lock, or for something that isn't a lock. Such an error is of kind [Refused], and the step
// changed nothing.
var ErrConflict = errors.New(
	"the name is in use for another kind of lock, or for data that isn't a lock")

// ErrLost means that the caller no longer holds the lock. If a resource refuses a write because a
// later holder has a larger fencing token, the error of that write also wraps ErrLost.
var ErrLost = errors.New("lost")

// Errors about the number of permits. If the error of a step wraps one of them, the error is of
// kind [Refused], and the step changed nothing.
var (
	// ErrNoLimit means that a request for permits states no limit, and the store doesn't know one.
	ErrNoLimit = errors.New("the number of permits is not known")

	// ErrTooMany means that a request asks for more permits than exist, so it can never succeed.
	ErrTooMany = errors.New("more permits than there are")
)

// UnknownKind returns the error of a step for a kind of lock that the store doesn't support. The
// error is of kind [Refused], and wraps [errors.ErrUnsupported].
func UnknownKind(store string, kind Kind) error {
	return &Error{
		Kind: Refused, Err: fmt.Errorf("%s has no %s: %w", store, kind.locks(),
			errors.ErrUnsupported),
	}
}

// ErrorKind classifies the errors of steps by whether the step may have been carried out.
type ErrorKind uint8

// The kinds of error. When in doubt, a backend must choose Unknown, which is always safe.
const (
	// Unknown means that the step may have been carried out, or may still be. Examples are
	// timeouts, connections that broke after the request was written, errors in the middle of a
	// script, and errors of a commit, unless the store says that it rolled back.
	Unknown ErrorKind = iota

	// Retry means that the step was not carried out and never will be, but that trying again may
	// succeed. Examples are a failed connection, a store that is still loading its data, and one
	// without a leader.
	Retry

	// Refused means that the step was not carried out and never will be, and that repeating it
	// would not help. Examples are a wrong password, a missing permission, a key of another type,
	// and a closed client.
	Refused
)

// Error is the error of a step, together with its kind.
type Error struct {
	Kind ErrorKind
	// Err is the underlying error, such as one of the store's client library. It is never nil.
	Err error
}

// Error returns the text of the wrapped error.
func (e *Error) Error() string { return e.Err.Error() }

// Unwrap returns the wrapped error.
func (e *Error) Unwrap() error { return e.Err }

// KindOf returns the kind of the first [*Error] in err's tree, or [Unknown] if there is none.
func KindOf(err error) ErrorKind {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Kind
	}
	return Unknown
}
