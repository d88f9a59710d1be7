package backend

import (
	"context"
	"time"
)

// Backend is a store that can hold locks: a Redis, an etcd cluster, a map in memory. It serves any
// number of clients at once, and its methods may be called concurrently.
type Backend interface {
	// Open returns a new session: the view of one client, which stands for one process. It does no
	// I/O; a store that cannot be reached makes the steps fail, not Open. Sessions of one Backend
	// are independent: what one does, another sees only through the store.
	Open() Session

	// Limits says what the store cannot do. It always returns the same value.
	Limits() Limits
}

// Limits are a store's restrictions. The zero value is a store without any: leases of whole
// milliseconds, from 1 ms.
type Limits struct {
	// MinLease is the shortest lease that the store keeps. A shorter one never reaches it.
	MinLease time.Duration

	// LeaseStep is the unit in which the store counts leases. The lease of every request is a
	// whole multiple of it. Zero means a millisecond.
	LeaseStep time.Duration
}

// Session is one client's access to the store: five atomic steps, and Close.
//
// All methods may be called concurrently, for the same name too. Each step is one atomic operation
// of the store: it happens wholly or not at all, at one moment between call and return, or, when
// it returns an error of kind [Unknown], perhaps later than that.
//
// A step that may have been carried out must not be retried by the backend, nor by the client library
// that it uses: acquiring and releasing count, so a repeated request is a different request. Neither
// does it log or undo. The caller does each of these things, once, for all stores. What certainly
// wasn't carried out is the backend's own affair: a compare-and-swap that lost to another, or a
// transaction that was rolled back in a conflict, is begun again, and is no error.
//
// A lock's name is any text that isn't empty. A store may refuse some names: then every step answers
// with an error of kind [Refused], before anything is done.
//
// A step should return soon after its context ends. Where the request may have reached the store
// by then, the error is of kind [Unknown]. A step that cannot be interrupted may return later: the
// caller doesn't wait for it.
//
// Errors are, or wrap, an [*Error] that says which of three kinds they are; any other error counts
// as [Unknown]. A step that returns an error returns a result that is not looked at.
type Session interface {
	// Acquire takes the lock for the request's owner if nobody holds it, or counts one hold more
	// if that owner holds it; in both cases the lock expires after the request's lease, counted
	// from now, whatever it was before. If another holds it, nothing changes.
	Acquire(ctx context.Context, req AcquireRequest) (AcquireResult, error)

	// Release gives back one hold of the request's owner. With the last one the lock is free, and
	// the store wakes those who wait for it (see [Notifier]). If holds are left, the lock expires
	// after the request's lease, counted from now. If the owner holds nothing, nothing changes,
	// and nobody is woken.
	Release(ctx context.Context, req ReleaseRequest) (ReleaseResult, error)

	// Renew lets the lock expire after the request's lease, counted from now, if the request's
	// owner holds it. Otherwise nothing changes.
	Renew(ctx context.Context, req RenewRequest) (RenewResult, error)

	// ForceRelease frees the lock whoever holds it and however often, and wakes those who wait.
	ForceRelease(ctx context.Context, req ForceReleaseRequest) (ForceReleaseResult, error)

	// Look reports on the lock and changes nothing. What it reports was so at one moment between
	// call and return.
	Look(ctx context.Context, req LookRequest) (LookResult, error)

	// Close ends what the session started: its subscriptions, connections of its own, goroutines.
	// It must not release locks, must not wait for the store, and leaves the client that the
	// backend was made with open: that belongs to the user. It is called once,
	// perhaps while steps are under way, whose contexts have ended by then. After it Release may
	// still be called and must work where the store can be reached.
	Close() error
}

// Kind is a kind of lock. Kinds that share a name in the store exclude each other. A session may
// answer a request of a kind that it doesn't know with an error of kind [Refused].
type Kind uint8

// Exclusive is a lock held by one owner at a time, who may hold it several times.
const Exclusive Kind = 0

// AcquireRequest asks for a lock, once.
type AcquireRequest struct {
	Kind  Kind
	Name  string        // of the lock; never empty
	Owner string        // who asks; opaque, never empty, compared for equality only
	Lease time.Duration // positive, a multiple of Limits.LeaseStep, at least Limits.MinLease

	// Reentry says that the owner believes it holds the lock already. The step does the same
	// either way, but its result must then carry Count.
	Reentry bool
}

// AcquireResult is the answer to an [AcquireRequest].
type AcquireResult struct {
	// Acquired says whether the owner holds the lock now, once more than before.
	Acquired bool

	// Count is how many holds the owner has in the store now. It is required of a re-entry that
	// was acquired; otherwise it may be zero. It may be read in a step of its own just after the
	// acquisition.
	Count int

	// Remaining is, where the lock was not acquired, how long the present hold would last if
	// nobody renewed it; negative if it never ends or the store doesn't know.
	Remaining time.Duration

	// Token is a fencing token: it grows with every acquisition of a name that finds it free.
	// Zero where the store has none. Package dlock doesn't pass it on yet.
	Token uint64
}

// ReleaseRequest gives back one hold.
type ReleaseRequest struct {
	Kind  Kind
	Name  string
	Owner string
	Lease time.Duration // as in AcquireRequest; for the holds that are left

	// AskWaiting asks for ReleaseResult.Waiting. That is done where this client has had the lock for
	// a while and may want it again, and must not cost a round trip: a store that can't answer
	// on the way doesn't.
	AskWaiting bool
}

// ReleaseOutcome is what a release did.
type ReleaseOutcome uint8

// What a release can do.
const (
	NotHeld ReleaseOutcome = iota // nothing: the owner holds nothing
	Left                          // one hold was given back, others are left
	Freed                         // the last hold was given back: the lock is free
)

// String returns the outcome in words.
func (o ReleaseOutcome) String() string {
	switch o {
	case Left:
		return "holds left"
	case Freed:
		return "freed"
	default:
		return "not held"
	}
}

// ReleaseResult is the answer to a [ReleaseRequest].
type ReleaseResult struct {
	Outcome ReleaseOutcome
	// Counted says that Waiting is known. It may be false whatever the request asked for.
	Counted bool
	// Waiting is how many clients other than this one wait for the lock now that it is free, at least,
	// so that this one can let them come first.
	Waiting int
}

// RenewRequest prolongs a hold.
type RenewRequest struct {
	Kind  Kind
	Name  string
	Owner string
	Lease time.Duration // as in AcquireRequest
}

// RenewResult is the answer to a [RenewRequest].
type RenewResult struct {
	// Held says whether the owner holds the lock, which now expires after the request's lease.
	Held bool
}

// ForceReleaseRequest frees a lock whoever holds it.
type ForceReleaseRequest struct {
	Kind Kind
	Name string
}

// ForceReleaseResult is the answer to a [ForceReleaseRequest].
type ForceReleaseResult struct {
	// Released says whether anybody held the lock.
	Released bool
}

// LookRequest asks about a lock and one owner.
type LookRequest struct {
	Kind  Kind
	Name  string
	Owner string // may be empty: then Count is not asked for
}

// LookResult is the answer to a [LookRequest].
type LookResult struct {
	Held      bool          // by anybody
	Count     int           // the holds of the request's owner
	Remaining time.Duration // until the lock expires: 0 if it is free, negative if it never does
}
