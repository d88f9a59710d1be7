package backend

import (
	"context"
	"fmt"
	"time"
)

// Backend is a store that can hold locks: a Redis, an etcd cluster, a map in memory. It serves any
// number of clients at once, and its methods may be called concurrently. Errors name the store by
// its String method or, if it isn't a [fmt.Stringer], by its Go type.
type Backend interface {
	// Open returns a new session. A session belongs to one client, which stands for one process.
	// Open does no I/O: if the store can't be reached, the steps fail, not Open. Sessions of one
	// Backend are independent: they see each other's steps only through the store.
	Open() Session

	// Limits returns the store's restrictions. It always returns the same value.
	Limits() Limits
}

// Limits are a store's restrictions. The zero value is a store without restrictions: leases of
// whole milliseconds, from 1 ms.
type Limits struct {
	// MinLease is the shortest lease that the store supports. No request has a shorter lease.
	MinLease time.Duration

	// LeaseStep is the unit in which the store counts leases. The lease of every request is a
	// whole multiple of it. Zero means a millisecond.
	LeaseStep time.Duration

	// Kinds is the set of kinds of lock that the store supports besides [Exclusive].
	Kinds Kinds

	// Keeps reports whether the store can keep a released lock taken for a while: see
	// [ReleaseRequest].Keep. If so, it can do that for all its kinds except Read.
	Keeps bool
}

// Session is one client's access to the store: five atomic steps, and Close.
//
// All methods may be called concurrently, for the same name too. Each step is one atomic operation
// of the store: it happens wholly or not at all, at one moment between call and return. If it
// returns an error of kind [Unknown], it may also happen later.
//
// The backend must not retry a step that may have been carried out, nor may the client library that
// it uses: acquisitions and releases are counted, so a repeated request would count twice. The
// backend doesn't log or undo steps either. The caller repeats, logs and undoes steps, in the same
// way for all stores. The backend may begin a step again if the step certainly wasn't carried out.
// Examples are a compare-and-swap that failed, and a transaction that was rolled back in a
// conflict. Such a failure isn't an error.
//
// A lock's name is any text that isn't empty. A store may refuse some names: then every step
// answers with an error of kind [Refused], before anything is done.
//
// A step should return soon after its context ends. If the request may have reached the store by
// then, the error is of kind [Unknown]. A step that can't be interrupted may return later: the
// caller doesn't wait for it.
//
// An error of a step is, or wraps, an [*Error] with one of three kinds. Any other error counts as
// [Unknown]. A step's result is ignored if it returns an error.
type Session interface {
	// Acquire takes the lock for the request's owner if it is free. If that owner holds it already,
	// Acquire counts one more hold. In both cases the lock expires after the request's lease,
	// counted from now. If another owner holds it, nothing changes. For Read and Write no step
	// makes the end earlier, since several holds may share one end.
	Acquire(ctx context.Context, req AcquireRequest) (AcquireResult, error)

	// Release gives back one hold of the request's owner. With the last hold the lock becomes free,
	// and the store wakes the waiters (see [Notifier]). If holds are left, the lock expires after
	// the request's lease, counted from now. If the owner holds nothing, nothing changes, and no
	// waiter is woken.
	Release(ctx context.Context, req ReleaseRequest) (ReleaseResult, error)

	// Renew makes the lock expire after the request's lease, counted from now, if the request's
	// owner holds it. Otherwise nothing changes.
	Renew(ctx context.Context, req RenewRequest) (RenewResult, error)

	// ForceRelease frees the lock, whichever owner holds it and however often, and wakes the
	// waiters. The line of a Fair lock stays, and the first in line gets the lock. For Permits it
	// gives back all permits of all owners. For a Read it frees nothing while an owner writes. For
	// a Write it frees nothing if there are only readers. Otherwise it also frees the Read of the
	// Write's owner.
	ForceRelease(ctx context.Context, req ForceReleaseRequest) (ForceReleaseResult, error)

	// Look reports on the lock and changes nothing. Its report was true at one moment between call
	// and return.
	Look(ctx context.Context, req LookRequest) (LookResult, error)

	// Close ends what the session started: its subscriptions, its own connections, its goroutines.
	// It must not release locks and must not wait for the store. The client that the backend was
	// made with stays open, since it belongs to the user. Close is called once, perhaps during
	// steps whose contexts have ended. Release may still be called afterwards, and must work if the
	// store can be reached.
	Close() error
}

// Kind is a kind of lock. Every store supports [Exclusive] and the kinds that its [Limits] declare.
// A session answers a request of any other kind with [UnknownKind], an error of kind [Refused] that
// names the store and the kind.
//
// Exclusive, Fenced and Fair are three ways to use one lock: locks of the same name exclude each
// other, whichever of these kinds they are. Read and Write are the sides of a read-write lock.
// Permits belong to a semaphore. A name belongs to one of these three: a lock, a read-write lock,
// or a semaphore. A step of a kind that doesn't fit fails with [ErrConflict] at once, and changes
// nothing.
type Kind uint8

const (
	// Exclusive is a lock with one owner at a time, which may hold it several times.
	Exclusive Kind = iota

	// Fenced is an Exclusive lock whose acquisitions are numbered: see [AcquireResult].Token.
	Fenced

	// Read is a lock with any number of owners, while no other owner holds the Write. Each owner
	// holds it once. If an owner acquires it again, the owner still holds it once, for at least the
	// new lease.
	Read

	// Write is a lock with one owner at a time, which may hold it several times, while no other
	// owner reads. Its owner may also acquire the Read of that name, and keeps it after the last
	// release of the Write. An owner that only reads can't get the Write: there is no upgrade.
	Write

	// Fair is an Exclusive lock whose waiters stand in line, in order of arrival. When the lock
	// becomes free, the store itself gives it to the first of them: see [Liner].
	Fair

	// Permits are the permits of a semaphore. Any number of owners share them. One request gets all
	// the permits that it asks for, or none.
	Permits

	// Latch isn't a kind of lock, and no [Limits] include it. It is used only in a
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

// locks returns the name of the locks of this kind, such as "semaphores".
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
	Kind  Kind
	Name  string        // the lock's name; never empty
	Owner string        // opaque, never empty, only compared for equality
	Lease time.Duration // positive, a multiple of Limits.LeaseStep, at least Limits.MinLease

	// Reentry is set if the owner believes that it already holds the lock. Then the result must
	// include Count. Apart from that, Reentry matters only for a Fair lock: without it, an owner
	// that already holds the lock gets no further hold. So a client may repeat an attempt. If the
	// store gave the owner the lock just before the request, the owner holds it once.
	Reentry bool

	// Waited is how long the owner has waited for the lock. If Place isn't zero, the owner keeps
	// waiting if it doesn't get the lock now. It will then ask again, or release, within that time.
	//
	// If a Write with a Place isn't acquired, the store keeps a note of its owner, with the time
	// when the wait began: now minus Waited. The note ends after Place, unless the owner asks
	// again. It also ends when the owner acquires the Write, and when the owner releases, even if
	// it held nothing. A Read isn't acquired while there is a note whose owner has waited longer,
	// even if nobody writes. The result of that Read reports how long the note lasts at the
	// longest. So writers get their turn, however many owners read. Notes don't keep out an owner
	// that reads or writes already.
	//
	// If a Fair lock with a Place isn't acquired, the owner gets a place at the end of the line, or
	// keeps the one that it has. The place ends after Place, counted from now, unless it is kept
	// for longer (see [Liner]). Without a Place nothing changes. For a Fair lock, a Waited above
	// zero means that the store gave the owner the lock, but the owner heard of it too late to keep
	// it. If a store gives locks for about a second, such an owner comes first in line if it has no
	// place, and gets the lock at once if that is free. Other stores ignore Waited for a Fair lock.
	// Kinds other than Write and Fair ignore both fields.
	Waited, Place time.Duration

	// Permits is the number of permits requested, 1 or more. Limit is the total number of permits.
	// A Limit of 0 stands for the last limit that the store was given. Both fields are 0 for other
	// kinds.
	Permits, Limit int
}

// AcquireResult is the answer to an [AcquireRequest].
type AcquireResult struct {
	// Acquired reports whether the request acquired the lock.
	Acquired bool

	// Count is the number of holds that the owner now has in the store. It is required if a
	// re-entry was acquired, and may be zero otherwise. The backend may read it in another step
	// right after the acquisition.
	Count int

	// Remaining, if the lock was not acquired, is how long the present hold lasts without renewal.
	// It is negative if the hold never ends, or if the store doesn't know its end. If a note keeps
	// a Read out, Remaining is how long that note lasts, which is more than zero.
	Remaining time.Duration

	// Token is the fencing token of a Fenced lock that was acquired. It is never zero. It is larger
	// than the tokens of all earlier holds of that name and kind, even of those that were lost or
	// forced long ago. A re-entry returns the token of the present hold. For other kinds Token is
	// zero.
	Token uint64
}

// ReleaseRequest is a request to give back one hold. For a Write it also removes the note of an
// owner that waited, and wakes all waiters if there was such a note. For a Fair lock whose owner
// holds nothing, it gives up the owner's place in line. For Permits it gives back all permits of
// the owner.
type ReleaseRequest struct {
	Kind  Kind
	Name  string
	Owner string
	Lease time.Duration // as in AcquireRequest, if holds are left

	Permits int // for Permits: how many the owner has acquired

	// Keep, unless it is zero, is how long the lock stays taken after its owner's last release,
	// counted from now. The outcome is then [Kept]. The store wakes no waiters, only subscribers
	// that watch (see SubscribeRequest.Watches). The waiters look again at the time at which they
	// would have looked anyway. Keep may be longer or shorter than the lease. After that time, the
	// lock is like one whose lease has expired.
	//
	// Until then, an owner that no request can name holds the lock. Its former owner can't acquire
	// or renew it. Late or repeated requests of the former owner change nothing, and leave no note
	// and no place. If it releases again with Keep, the outcome is Kept, and nothing changes. If it
	// releases without Keep, the outcome is NotHeld. A Look reports the lock as held, and as Kept.
	// An Inspector names the former owner. A ForceRelease frees the lock. An owner that held both
	// the Write and the Read keeps reading. Then the Write may stay kept until the Read would end,
	// if that is later. Other owners can get the Permits that aren't kept.
	//
	// Keep is a whole number of milliseconds, even if leases are coarser. In a store that counts
	// leases in longer steps, the session ends the keep in time. If the session's process dies, or
	// the session is closed, the keep may end as late as a lease would. Keep is used only if
	// Limits.Keeps is set. Read ignores it. An owner that holds nothing keeps nothing.
	Keep time.Duration

	// AskWaiting asks for ReleaseResult.Waiting. A client sets it if it has held the lock for a
	// while and may want it again. If the answer would cost a round trip, the store omits it.
	AskWaiting bool
}

// ReleaseOutcome is the outcome of a release.
type ReleaseOutcome uint8

// The outcomes of a release.
const (
	NotHeld ReleaseOutcome = iota // nothing changed, since the owner holds nothing
	Left                          // one hold was given back, and the owner has others left
	Freed                         // the owner's last hold was given back
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
	// client that released it lets them go first.
	Waiting int
	// Strangers is the number of waiting clients that, as far as is known, don't use package dlock.
	// A client of package dlock hands a lock over between its own callers, but a stranger gets one
	// turn at a time. So a client should hand over less often while strangers wait. Otherwise it
	// would take nearly all turns.
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
	// Held reports whether the owner holds the lock, which now expires after the request's lease.
	Held bool
}

// ForceReleaseRequest is a request to free a lock, whichever owner holds it.
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
	Kind  Kind
	Name  string
	Owner string // may be empty if Count isn't needed

	Permits, Limit int // as in AcquireRequest; Permits may be zero if Owner is empty
}

// LookResult is the answer to a [LookRequest]. For Read it describes only the readers, and for
// Write only the writer.
type LookResult struct {
	Held  bool // any owner holds the lock, in this kind
	Count int  // number of holds, or permits, of the request's owner
	// time until the last hold expires: 0 without a hold, negative if it never expires
	Remaining time.Duration
	Available int // number of the limit's permits that are free; never negative

	// Kept reports whether the lock has been released but stays taken: see [ReleaseRequest].Keep.
	// If so, Remaining is how long it stays taken. Kept is never set for Read and Permits.
	Kept bool
}
