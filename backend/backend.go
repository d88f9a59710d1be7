package backend

import (
	"context"
	"fmt"
	"time"
)

// Backend is a store that can hold locks, such as a Redis server, an etcd cluster or a map in
// memory. It serves any number of clients, and its methods may be called concurrently. Errors name
// the store by its String method or, if it isn't a [fmt.Stringer], by its Go type.
type Backend interface {
	// Open returns a new session for one client. The store treats each client like a separate
	// process. Open does no I/O: if the store can't be reached, the methods of the session fail.
	// Sessions of one Backend are independent: each sees the changes of the others only through the
	// store.
	Open() Session

	// Limits returns the store's restrictions. It always returns the same value.
	Limits() Limits
}

// Limits are a store's restrictions. The zero value is for a store that supports only [Exclusive]
// locks, and leases of any whole number of milliseconds.
type Limits struct {
	// MinLease is the shortest lease that the store supports. No request asks for a shorter one.
	MinLease time.Duration

	// LeaseStep is the unit in which the store counts leases. Every request's lease is a multiple
	// of it. Zero means a millisecond.
	LeaseStep time.Duration

	// Kinds is the set of kinds of lock that the store supports besides [Exclusive].
	Kinds Kinds

	// Keeps reports whether the store supports [ReleaseRequest].Keep, which keeps a lock taken for
	// a while after its release. Such a store supports it for all its kinds except Read.
	Keeps bool
}

// Session is one client's access to the store. Acquire, Release, Renew, ForceRelease and Look are
// its steps.
//
// All methods may be called concurrently, even for the same name. Each step is one atomic operation
// of the store: it happens completely or not at all, at some point between the call and its return.
// If a step returns an error of kind [Unknown], the operation may still happen later.
//
// A backend must not retry a step that may have been carried out, and neither may the client
// library that it uses. Acquisitions and releases are counted, so a repeated request would count
// twice. A backend doesn't log or undo steps either. Its caller repeats, logs and undoes steps in
// the same way for every store. A backend may start a step over if the step certainly wasn't
// carried out, for example after a failed compare-and-swap or a transaction that was rolled back.
// Such a failure isn't an error.
//
// A lock's name is any nonempty text. A store may refuse some names. Every step for such a name
// fails with an error of kind [Refused], and does nothing.
//
// A step should return soon after its context ends. If the request may have reached the store by
// then, the error is of kind [Unknown]. A step that can't be interrupted may return later, and its
// caller doesn't wait for it.
//
// The error of a step is, or wraps, an [*Error] with one of three kinds. Any other error counts as
// [Unknown]. If a step returns an error, its result is ignored.
type Session interface {
	// Acquire takes the lock for the request's owner if it is free. If that owner already holds it,
	// Acquire adds one hold. In both cases the lock then expires after the request's lease, counted
	// from now. If another owner holds the lock, nothing changes. No step moves the expiry of a
	// Read or a Write to an earlier time, since several holds may share one expiry.
	Acquire(ctx context.Context, req AcquireRequest) (AcquireResult, error)

	// Release gives back one hold of the request's owner. If that was its last hold, the lock
	// becomes free, and the store wakes the waiters (see [Notifier]). If the owner has holds left,
	// the lock expires after the request's lease, counted from now. If the owner holds nothing,
	// nothing changes, and no waiter is woken.
	Release(ctx context.Context, req ReleaseRequest) (ReleaseResult, error)

	// Renew makes the lock expire after the request's lease, counted from now, if the request's
	// owner holds it. Otherwise nothing changes.
	Renew(ctx context.Context, req RenewRequest) (RenewResult, error)

	// ForceRelease frees the lock, regardless of its owner and the number of holds, and wakes the
	// waiters. A Fair lock goes to the first waiter in line. For Permits, all owners lose their
	// permits. For Read, all readers lose the lock, unless an owner holds the Write. For Write, the
	// writer loses the Write and, if it also reads, the Read. If there is no writer, nothing
	// changes.
	ForceRelease(ctx context.Context, req ForceReleaseRequest) (ForceReleaseResult, error)

	// Look reports the state of the lock and changes nothing. The report was true at some
	// point between the call and its return.
	Look(ctx context.Context, req LookRequest) (LookResult, error)

	// Close ends what the session started: its subscriptions, its own connections and its
	// goroutines. It must not release locks or wait for the store. It doesn't close the client that
	// the backend was made with, which belongs to the user. Close is called once, perhaps while
	// steps whose contexts have ended are still running. Release may be called after Close, and
	// must work if the store can be reached.
	Close() error
}

// Kind is a kind of lock. Every store supports [Exclusive] and the kinds that its [Limits] declare.
// For any other kind, the steps return an [UnknownKind] error.
//
// Exclusive, Fenced and Fair are three ways to use one lock: locks of the same name exclude each
// other, regardless of which of these kinds they are. Read and Write are the two sides of a
// read-write lock. Permits belong to a semaphore. At any time, a name stands for a lock, a
// read-write lock, or a semaphore. A step whose kind doesn't match fails with [ErrConflict] at
// once, and changes nothing.
type Kind uint8

const (
	// Exclusive is a lock with one owner at a time. The owner may acquire it several times.
	Exclusive Kind = iota

	// Fenced is an Exclusive lock whose acquisitions are numbered: see [AcquireResult].Token.
	Fenced

	// Read is the shared side of a read-write lock. Any number of owners can hold it while no other
	// owner holds the Write. It isn't counted: if an owner acquires it again, the owner still holds
	// it once, for at least the new lease.
	Read

	// Write is the exclusive side of a read-write lock. One owner at a time can hold it, possibly
	// several times, while no other owner holds the Read. The owner may also acquire the Read, and
	// still holds the Read after it has released the Write. An owner that holds only the Read can't
	// acquire the Write: there is no upgrade.
	Write

	// Fair is an Exclusive lock whose waiters get it in order of arrival. When the lock becomes
	// free, the store itself gives it to the first waiter: see [Liner].
	Fair

	// Permits are the permits of a semaphore, shared by any number of owners. A request gets all
	// the permits that it asks for, or none.
	Permits

	// Latch isn't a kind of lock, and is never part of [Limits]. It is used only in a
	// [SubscribeRequest]: see [Latcher].
	Latch
)

// String returns the kind's name, in lower case.
func (k Kind) String() string {
	switch k {
	case Exclusive:
		return "exclusive"
	case Fenced:
		return "fenced"
	case Read:
		return "read"
	case Write:
		return "write"
	case Fair:
		return "fair"
	case Permits:
		return "permits"
	case Latch:
		return "latch"
	default:
		return fmt.Sprintf("kind %d", uint8(k))
	}
}

// locks returns the plural name of this kind for error messages, such as "semaphores".
func (k Kind) locks() string {
	switch k {
	case Permits:
		return "semaphores"
	case Latch:
		return "latches"
	}
	return k.String() + " locks"
}

// Kinds is a set of kinds of lock. Every set contains Exclusive.
type Kinds uint64

// KindsOf returns the set that consists of Exclusive and the given kinds.
func KindsOf(kinds ...Kind) Kinds {
	set := Kinds(0)
	for _, k := range kinds {
		set |= 1 << k
	}
	return set
}

// Has reports whether a kind is in the set.
func (s Kinds) Has(k Kind) bool { return k == Exclusive || s&(1<<k) != 0 }

// AcquireRequest is a request to acquire a lock once.
type AcquireRequest struct {
	Kind Kind
	// Name is the lock's name. It is never empty.
	Name string
	// Owner identifies the owner. It is never empty, and the store only compares it for equality.
	Owner string
	// Lease is how long the hold lasts unless it is renewed. It is at least Limits.MinLease, and a
	// multiple of Limits.LeaseStep.
	Lease time.Duration

	// Reentry is set if the owner believes that it already holds the lock. The result must then
	// include Count. If Reentry isn't set, an owner that already holds a Fair lock doesn't get a
	// second hold. So a client can repeat an attempt to get a Fair lock, and gets only one hold,
	// even if the store has given it the lock in the meantime.
	Reentry bool

	// Waited is how long the owner has waited for the lock. If Place isn't zero and the owner
	// doesn't get the lock now, the owner keeps waiting, and will ask again or release within
	// Place. Write and Fair use both fields, and Read uses Waited. Other kinds use neither.
	//
	// If an attempt to get a Write fails, and its Place isn't zero, the store keeps a note that the
	// owner has been waiting, and for how long. The note ends after Place unless the owner asks
	// again. It also ends when the owner acquires the Write, and when the owner releases, even if
	// it holds nothing. While there is such a note, no owner that has waited for a shorter time can
	// acquire the Read, even if nobody holds the Write. In that case, Remaining in the result of a
	// Read is how long the note can last. So writers get their turn, no matter how many readers
	// there are. Notes don't affect an owner that already holds the Read or the Write.
	//
	// If an attempt to get a Fair lock fails, and its Place isn't zero, the owner gets a place at
	// the end of the line, or keeps the place that it has. That place lasts for the duration Place,
	// counted from now, unless it is kept for longer: see [Liner]. If Place is zero, a failed
	// attempt changes nothing.
	//
	// For a Fair lock, Waited has a different meaning. If it isn't zero, the store gave the owner
	// the lock before, but the owner learned of it too late to keep it. In a store that gives a
	// lock for only about a second, the owner then gets the first place in line if it has no place,
	// and the lock itself if that is free. Other stores ignore Waited for a Fair lock.
	Waited, Place time.Duration

	// Permits is the number of permits requested, at least 1. Limit is the total number of permits.
	// If it is 0, the store uses the last limit that it was given. For other kinds, both fields are
	// 0.
	Permits, Limit int
}

// AcquireResult is the answer to an [AcquireRequest].
type AcquireResult struct {
	// Acquired reports whether the request acquired the lock.
	Acquired bool

	// Count is the number of holds that the owner now has in the store. It must be set if a request
	// with Reentry succeeds, and may be zero otherwise. The backend may read it in a separate step
	// right after the acquisition.
	Count int

	// Remaining is how long the current hold lasts without renewal, if the lock was not acquired.
	// It is negative if the hold never ends, or if its end isn't known. If a waiting writer's note
	// keeps a Read out, Remaining is how long that note lasts, which is more than zero.
	Remaining time.Duration

	// Token is the fencing token of a Fenced lock that was acquired. It is never zero. It is larger
	// than the tokens of all earlier holds of that name and kind, including holds that were lost or
	// force-released. A re-entry returns the token of the current hold. For other kinds, Token is
	// zero.
	Token uint64
}

// ReleaseRequest is a request to give back one hold. For Write, if the owner has a note, it also
// removes the note and wakes all waiters. For a Fair lock that the owner doesn't hold, it gives up
// the owner's place in line. For Permits, it gives back all permits of the owner.
type ReleaseRequest struct {
	Kind  Kind
	Name  string
	Owner string
	// Lease is the new lease if the owner has holds left. The same limits apply as in
	// [AcquireRequest].
	Lease time.Duration

	// Permits is the number of permits that the owner has acquired. Only the kind Permits uses it.
	Permits int

	// Keep, unless it is zero, is how long the lock stays taken after its owner's last release,
	// counted from now. The outcome is then [Kept]. The store wakes only subscribers that watch
	// (see SubscribeRequest.Watches). Waiters aren't woken, and retry as if there had been no
	// release. Keep may be longer or shorter than the lease. After that time, the lock is like one
	// whose lease has expired.
	//
	// Until then, the lock is held by an owner that no request can name. The former owner can't
	// acquire or renew it. Late or repeated requests of the former owner change nothing, and leave
	// no note and no place in line. If it releases again with Keep, the outcome is Kept, and
	// nothing changes. If it releases without Keep, the outcome is NotHeld. A Look reports the lock
	// as held, and as Kept. An Inspector names the former owner. A ForceRelease frees the lock. An
	// owner that held both the Write and the Read keeps the Read. If the Read's lease lasts longer
	// than Keep, the Write may stay taken for as long as that lease. For Permits, other owners can
	// still acquire the permits that aren't kept.
	//
	// Keep is a whole number of milliseconds, even if leases are coarser. If the store counts
	// leases in longer steps, the session itself frees the lock on time. If the session is closed
	// or its process dies before that, the lock stays taken until its lease in the store expires,
	// which can be later. Keep is used only if Limits.Keeps is set. It is ignored for Read, and for
	// an owner that holds nothing.
	Keep time.Duration

	// AskWaiting asks for ReleaseResult.Waiting. A client sets it if it has held the lock for a
	// while and may want it again. A store that would need an extra round trip omits the answer.
	AskWaiting bool
}

// ReleaseOutcome is the outcome of a release.
type ReleaseOutcome uint8

// The outcomes of a release.
const (
	// NotHeld means that nothing changed, because the owner held nothing.
	NotHeld ReleaseOutcome = iota

	// Left means that one hold was given back, and the owner has others left.
	Left

	// Freed means that the owner's last hold was given back.
	Freed

	// Kept means that the last hold was given back, but the lock stays taken: see
	// [ReleaseRequest].Keep.
	Kept
)

// String returns the outcome as text.
func (o ReleaseOutcome) String() string {
	switch o {
	case Left:
		return "holds left"
	case Freed:
		return "freed"
	case Kept:
		return "kept"
	default:
		return "not held"
	}
}

// ReleaseResult is the answer to a [ReleaseRequest].
type ReleaseResult struct {
	Outcome ReleaseOutcome
	// Counted reports whether Waiting is known. It may be false even if AskWaiting was set.
	Counted bool
	// Waiting is a lower bound on the number of other clients that wait for the freed lock. The
	// client that released the lock lets them go first.
	Waiting int
	// Strangers is the number of waiting clients that, as far as is known, don't use package dlock.
	// A dlock client may hand a lock over among its own callers many times, while a stranger gets a
	// single turn. So a dlock client should hand over less often while strangers wait. Otherwise
	// it would take nearly all turns.
	Strangers int
}

// RenewRequest is a request to renew a hold.
type RenewRequest struct {
	Kind  Kind
	Name  string
	Owner string
	Lease time.Duration // as in AcquireRequest

	Permits int // as in ReleaseRequest
}

// RenewResult is the answer to a [RenewRequest].
type RenewResult struct {
	// Held reports whether the owner holds the lock. If so, the lock now expires after the
	// request's lease.
	Held bool
}

// ForceReleaseRequest is a request to free a lock, regardless of its owner.
type ForceReleaseRequest struct {
	Kind Kind
	Name string
}

// ForceReleaseResult is the answer to a [ForceReleaseRequest].
type ForceReleaseResult struct {
	// Released reports whether the lock was held.
	Released bool
}

// LookRequest is a request for the state of a lock and the holds of one owner.
type LookRequest struct {
	Kind Kind
	Name string
	// Owner is the owner whose holds are counted. It may be empty if Count isn't needed.
	Owner string

	// Permits and Limit are as in [AcquireRequest], but Permits may be zero if Owner is empty.
	Permits, Limit int
}

// LookResult is the answer to a [LookRequest]. For Read it describes only the readers, and for
// Write only the writer.
type LookResult struct {
	// Held reports whether any owner holds the lock as the request's kind.
	Held bool
	// Count is the number of holds, or permits, of the request's owner.
	Count int
	// Remaining is the time until the last hold expires. It is 0 if there is no hold, and negative
	// if a hold never expires.
	Remaining time.Duration
	// Available is the number of permits that are free under the request's limit. It is never
	// negative.
	Available int

	// Kept reports whether the lock was released but stays taken: see [ReleaseRequest].Keep. If so,
	// Remaining is how long it stays taken. Kept is never set for Read or Permits.
	Kept bool
}
