package backend

import (
	"context"
	"fmt"
	"time"
)

// Backend is a store that can hold locks: a Redis, an etcd cluster, a map in memory. It serves any
// number of clients at once, and its methods may be called concurrently. If it is a [fmt.Stringer],
// errors name the store by that; otherwise by its Go type.
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

	// Kinds is which kinds of lock the store knows beside [Exclusive].
	Kinds Kinds

	// Keeps says that the store can keep a released lock taken for a while: see
	// [ReleaseRequest].Keep. It can then do so for all kinds that it has except Read.
	Keeps bool
}

// Session is one client's access to the store: five atomic steps, and Close.
//
// All methods may be called concurrently, for the same name too. Each step is one atomic operation
// of the store: it happens wholly or not at all, at one moment between call and return. If it
// returns an error of kind [Unknown], it may also happen later.
//
// The backend must not retry a step that may have been carried out, nor may the client library that
// it uses: acquiring and releasing count, so a repeated request is a different request. The backend
// doesn't log or undo either. The caller does each of these, once, for all stores. A step that
// certainly wasn't carried out, such as a compare-and-swap that lost or a transaction that was
// rolled back in a conflict, may be begun again, and is no error.
//
// A lock's name is any text that isn't empty. A store may refuse some names: then every step
// answers with an error of kind [Refused], before anything is done.
//
// A step should return soon after its context ends. If the request may have reached the store by
// then, the error is of kind [Unknown]. A step that can't be interrupted may return later: the
// caller doesn't wait for it.
//
// Errors are, or wrap, an [*Error] that says which of three kinds they are. Any other error counts
// as [Unknown]. The result of a step that returns an error is ignored.
type Session interface {
	// Acquire takes the lock for the request's owner if it is free. If that owner holds it already,
	// Acquire counts one more hold. In both cases the lock expires after the request's lease,
	// counted from now. If another holds it, nothing changes. A step never shortens a Read or
	// Write, since its expiry may be one for several holds.
	Acquire(ctx context.Context, req AcquireRequest) (AcquireResult, error)

	// Release gives back one hold of the request's owner. With the last one the lock is free, and
	// the store wakes the waiters (see [Notifier]). If holds are left, the lock expires after the
	// request's lease, counted from now. If the owner holds nothing, nothing changes, and no waiter
	// is woken.
	Release(ctx context.Context, req ReleaseRequest) (ReleaseResult, error)

	// Renew lets the lock expire after the request's lease, counted from now, if the request's
	// owner holds it. Otherwise nothing changes.
	Renew(ctx context.Context, req RenewRequest) (RenewResult, error)

	// ForceRelease frees the lock, whichever owner holds it and however often, and wakes the
	// waiters. The line of a Fair lock stays, and the first in line gets the lock. For Permits it
	// gives back all. For a Read it frees nothing while another writes. For a Write it frees
	// nothing if there are only readers; otherwise it frees the Read of the Write's owner, too.
	ForceRelease(ctx context.Context, req ForceReleaseRequest) (ForceReleaseResult, error)

	// Look reports on the lock and changes nothing. What it reports was so at one moment between
	// call and return.
	Look(ctx context.Context, req LookRequest) (LookResult, error)

	// Close ends what the session started: its subscriptions, its own connections, its goroutines.
	// It must not release locks and must not wait for the store. The client that the backend was
	// made with stays open, since it belongs to the user. Close is called once, perhaps during
	// steps whose contexts have ended. Release may still be called afterwards, and must work if the
	// store can be reached.
	Close() error
}

// Kind is a kind of lock. Every store knows [Exclusive], and of the others those that its [Limits]
// declare. A session answers a request of any other kind with [UnknownKind], an error of kind
// [Refused] that names the store and the kind.
//
// Exclusive, Fenced and Fair are three ways to one lock: each excludes the others under the same
// name. Read and Write are the sides of a read-write lock. Permits are those of a semaphore. A name
// belongs to one of these three. A step of another kind answers [ErrConflict] at once, and leaves
// the name untouched.
type Kind uint8

const (
	// Exclusive is a lock with one owner at a time, which may hold it several times.
	Exclusive Kind = iota

	// Fenced is an Exclusive lock whose acquisitions are numbered: see [AcquireResult].Token.
	Fenced

	// Read is a lock with any number of owners, each of them once, while no other owner has it for
	// writing. Acquiring it again makes sure that it lasts for the lease.
	Read

	// Write is a lock with one owner at a time, which may hold it several times, while no other
	// owner reads. Its owner may acquire the Read of that name, too, and keeps it after the last
	// release of the Write. An owner that only reads can't get the Write: there is no upgrade.
	Write

	// Fair is an Exclusive lock whose waiters stand in line, in order of arrival. When it becomes
	// free the store itself gives it to the first of them: see [Liner].
	Fair

	// Permits are some of a number of permits, which any number of owners share. An owner has as
	// many as it asked for at once, or none.
	Permits

	// Latch is no kind of lock. Only a [SubscribeRequest] names it (see [Latcher]), and it is in no
	// [Limits].
	Latch
)

// String returns the kind in a word.
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

// locks returns what a store has that knows the kind.
func (k Kind) locks() string {
	switch k {
	case Permits:
		return "semaphores"
	case Latch:
		return "latches"
	}
	return k.String() + " locks"
}

// Kinds is a set of kinds of lock. Exclusive is in every one.
type Kinds uint64

// KindsOf returns the set of Exclusive and those given.
func KindsOf(kinds ...Kind) Kinds {
	set := Kinds(0)
	for _, k := range kinds {
		set |= 1 << k
	}
	return set
}

// Has says whether a kind is in the set.
func (s Kinds) Has(k Kind) bool { return k == Exclusive || s&(1<<k) != 0 }

// AcquireRequest asks for a lock, once.
type AcquireRequest struct {
	Kind  Kind
	Name  string        // of the lock; never empty
	Owner string        // of the request; opaque, never empty, compared for equality only
	Lease time.Duration // positive, a multiple of Limits.LeaseStep, at least Limits.MinLease

	// Reentry says that the owner believes it holds the lock already. Then the result must carry
	// Count. Otherwise the step does the same, except for a Fair lock: without Reentry, an owner
	// that holds it isn't counted once more. So an attempt may be repeated, and an owner that was
	// given the lock while it asked has it once.
	Reentry bool

	// Waited is for how long the owner has waited for the lock. Place, unless it is zero, says that
	// it goes on waiting if it isn't acquired now: it will ask again, or release, within that time.
	//
	// A Write that isn't acquired, with a Place, leaves a note that this owner has waited since now
	// less Waited. The note ends with Place, unless the owner asks again; when the owner acquires
	// the Write; and when it releases, even if it held nothing. While there is a note of an owner
	// that waited for longer, a Read isn't acquired, though nobody writes; its result says how long
	// the note lasts at most. So writers get their turn, however many read. An owner that reads or
	// writes already ignores notes.
	//
	// A Fair lock that isn't acquired, with a Place, puts the owner in line: at the end, or, if it
	// is in line already, at its old place. The place ends with Place from now, unless it is kept
	// for longer ([Liner]). Without a Place nothing changes. Waited, unless it is zero, says that
	// the owner was given the lock and heard of it too late to keep it. In a store that gives locks
	// for about a second, such an owner comes first if it isn't in line, and gets the lock at once
	// if it is free. Other stores ignore it. Other kinds ignore both.
	Waited, Place time.Duration

	// Permits is how many are asked for: 1 or more. Limit is how many there are in all; with 0 it
	// is the number that the store was told last. Other kinds have neither.
	Permits, Limit int
}

// AcquireResult is the answer to an [AcquireRequest].
type AcquireResult struct {
	// Acquired says whether the owner holds the lock now, once more than before.
	Acquired bool

	// Count is how many holds the owner has in the store now. It is required of a re-entry that
	// was acquired; otherwise it may be zero. It may be read in a step of its own just after the
	// acquisition.
	Count int

	// Remaining, if the lock was not acquired, is how long the present hold would last without
	// renewal. It is negative if the hold never ends or the store doesn't know. If a note keeps a
	// Read out, it is the rest of that note, and more than zero.
	Remaining time.Duration

	// Token is the number of a Fenced lock that was acquired. It is never zero. It is larger than
	// that of every earlier acquisition of that name and kind that found the lock free, also if
	// that one was lost or forced long ago. An owner that holds the lock already gets the number of
	// its hold. Other kinds have none.
	Token uint64
}

// ReleaseRequest gives back one hold. For a Write it also removes the note that its owner left as
// it waited, and wakes everybody if there was one. For a Fair lock whose owner holds nothing it
// gives up the owner's place in line. For Permits it gives back all that the owner has.
type ReleaseRequest struct {
	Kind  Kind
	Name  string
	Owner string
	Lease time.Duration // as in AcquireRequest; for the holds that are left

	Permits int // how many the owner has acquired; of the kind Permits only

	// Keep, unless it is zero, is for how long from now the lock stays taken after its owner's last
	// release. The outcome is then [Kept]. No waiter is woken, except those that only watch (see
	// SubscribeRequest.Watches); waiters look again when they would have anyway. The time may be
	// longer or shorter than the lease. When it is over, the lock is as one whose lease has run
	// out.
	//
	// Until then, an owner that no request can name holds the lock. Its former owner can't acquire
	// or renew it. Late or repeated requests of the former owner change nothing, and leave no note
	// and no place. Its next release with Keep finds the lock Kept and leaves it as it is; one
	// without is NotHeld. A Look sees the lock held, and Kept. An Inspector names its former owner.
	// A ForceRelease frees it. An owner that had a Write and reads, too, goes on reading; the Write
	// is then kept at most for as long as the Read would last. Of Permits, others get what is left.
	//
	// Keep is a whole number of milliseconds, even if leases are coarser. A store that counts in
	// longer steps has the session end it in time. If that process dies, or the session is closed,
	// it may end as late as a lease would. Keep is used only if Limits.Keeps. Read ignores it. An
	// owner that holds nothing keeps nothing.
	Keep time.Duration

	// AskWaiting asks for ReleaseResult.Waiting. A client asks if it has had the lock for a while
	// and may want it again. The answer must not cost a round trip: a store that can't answer on
	// the way doesn't.
	AskWaiting bool
}

// ReleaseOutcome is what a release did.
type ReleaseOutcome uint8

// What a release can do.
const (
	NotHeld ReleaseOutcome = iota // nothing: the owner holds nothing
	Left                          // one hold was given back, others of the owner are left
	Freed                         // the owner's last hold was given back
	Kept                          // the same, and it stays taken for a while: see ReleaseRequest.Keep
)

// String returns the outcome in words.
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
	// Counted says that Waiting is known. It may be false whatever the request asked for.
	Counted bool
	// Waiting is how many other clients wait for the free lock, at least. This client lets them
	// come first.
	Waiting int
	// Strangers is how many of them, as far as is known, don't hand a lock over inside, as clients
	// of package dlock do, but have one turn at a time. This client should then do nearly the same,
	// or it takes nearly all turns.
	Strangers int
}

// RenewRequest prolongs a hold.
type RenewRequest struct {
	Kind  Kind
	Name  string
	Owner string
	Lease time.Duration // as in AcquireRequest

	Permits int // as in ReleaseRequest
}

// RenewResult is the answer to a [RenewRequest].
type RenewResult struct {
	// Held says whether the owner holds the lock, which now expires after the request's lease.
	Held bool
}

// ForceReleaseRequest frees a lock, whichever owner holds it.
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

	Permits, Limit int // as in AcquireRequest; Permits may be zero where Owner is empty
}

// LookResult is the answer to a [LookRequest]. Read and Write are separate questions.
type LookResult struct {
	Held      bool          // by anybody, in this kind
	Count     int           // the holds of the request's owner; how many permits it has
	Remaining time.Duration // until the last of them expires: 0 if there is none, negative if it never does
	Available int           // how many permits are free, of the request's limit; never negative

	// Kept says that a release keeps the lock taken ([ReleaseRequest].Keep): nobody is inside, and
	// Remaining is how long that lasts. It is never set for Read and Permits.
	Kept bool
}
