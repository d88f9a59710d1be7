package backend

import (
	"context"
	"fmt"
	"time"
)

// Backend is a store that can hold locks: a Redis, an etcd cluster, a map in memory. It serves any
// number of clients at once, and its methods may be called concurrently.
// Where an error has to name the store, a Backend that is a [fmt.Stringer] says how; others are called by their Go type.
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

	// Keeps says that the store can keep what is released taken for a while, see [ReleaseRequest].Keep: what
	// it knows of Exclusive, Fenced and Fair locks, of Write and of Permits. Of Read there is no such thing.
	Keeps bool
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
	// from now, whatever it was before. If another holds it, nothing changes. A Read or Write lasts no
	// shorter than it did before, in all steps: its expiry may be one for several holds.
	Acquire(ctx context.Context, req AcquireRequest) (AcquireResult, error)

	// Release gives back one hold of the request's owner. With the last one the lock is free, and
	// the store wakes those who wait for it (see [Notifier]). If holds are left, the lock expires
	// after the request's lease, counted from now. If the owner holds nothing, nothing changes,
	// and nobody is woken.
	Release(ctx context.Context, req ReleaseRequest) (ReleaseResult, error)

	// Renew lets the lock expire after the request's lease, counted from now, if the request's
	// owner holds it. Otherwise nothing changes.
	Renew(ctx context.Context, req RenewRequest) (RenewResult, error)

	// ForceRelease frees the lock whoever holds it and however often, and wakes those who wait. Who is in
	// line for a Fair lock stays there, and the first gets it. That of Permits gives back all that are out.
	// That of a Read frees nothing while somebody writes, and that of a Write nothing while somebody only
	// reads; else it takes what the owner of the Write reads, too.
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

// Kind is a kind of lock. A store knows [Exclusive], and of the others those that its [Limits] declare. A
// session answers a request of any other with an error of kind [Refused] that names the store and
// the kind: [UnknownKind].
//
// Exclusive, Fenced and Fair are three ways to one lock: each excludes the others under the same name. Read and Write
// are the sides of a read-write lock. Permits are those of a semaphore. What a name holds belongs to one of the three, and a step
// of another finds no lock there, but [ErrConflict], at once, and leaves it untouched.
type Kind uint8

const (
	// Exclusive is a lock held by one owner at a time, who may hold it several times.
	Exclusive Kind = iota

	// Fenced is an Exclusive lock whose acquisitions are numbered: see [AcquireResult].Token.
	Fenced

	// Read is a lock held by any number of owners, each of them once, while nobody else has it for
	// writing. To acquire it again makes sure that it doesn't end before the lease.
	Read

	// Write is a lock held by one owner at a time, who may hold it several times, while nobody else reads.
	// The owner of a Write may acquire the Read of that name, too, and keeps it after the last release of the
	// Write. To the owner of a Read alone a Write is held by another: nobody gets from reading to writing.
	Write

	// Fair is an Exclusive lock for which those who wait stand in line, in the order in which they came. When
	// it gets free the store itself gives it to the first of them: see [Liner].
	Fair

	// Permits are some of a number of permits, which are out with any number of owners. An owner has as many
	// as it has asked for at once, or none.
	Permits

	// Latch is no kind of lock: it is asked for in a [SubscribeRequest] alone, see [Latcher], and is in no
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
	Owner string        // who asks; opaque, never empty, compared for equality only
	Lease time.Duration // positive, a multiple of Limits.LeaseStep, at least Limits.MinLease

	// Reentry says that the owner believes it holds the lock already. The step does the same either way, but
	// its result must then carry Count. Only for a Fair lock it makes a difference: without it an owner that
	// holds the lock isn't counted once more. So an attempt may be repeated, and one that was given the lock
	// as it asked has it once.
	Reentry bool

	// Waited is for how long the owner has waited for the lock, and Place, unless it is zero, says that it
	// goes on waiting if it isn't acquired now: it will ask again, or release, before that time is over.
	//
	// A Write that isn't acquired leaves a note where Place isn't zero: that this owner has waited since now
	// less Waited. The note ends with Place, unless the owner asks again; when it acquires the Write; and
	// when it releases, also where it held nothing. A Read isn't acquired, though nobody writes, while there
	// is a note of somebody who has waited for longer, and its result says for how long, at the most: so
	// writers get their turn, however many read. That doesn't apply to an owner who reads or writes already.
	//
	// A Fair lock that isn't acquired is stood in line for where Place isn't zero: an owner that
	// isn't in line comes last, and one that is keeps its place, which ends with Place from now,
	// unless it is kept for longer ([Liner]). Where Place is zero nothing changes. Waited, unless
	// it is zero, says that the owner was given the lock, and heard of that too late to keep it.
	// Where the store gives locks for about a second such an owner comes first if it isn't in line,
	// and gets the lock at once if it is free; other stores ignore it. Other kinds ignore both.
	Waited, Place time.Duration

	// Permits is how many are asked for: 1 or more. Limit is how many there are, in all; 0: as many as the store
	// has last been told, by anybody. Other kinds have neither.
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

	// Remaining is, where the lock was not acquired, how long the present hold would last if
	// nobody renewed it; negative if it never ends or the store doesn't know. Where a Read is kept out by a note
	// it is what is left of that, and more than zero.
	Remaining time.Duration

	// Token is the number of a Fenced lock that was acquired: never zero, and larger than that of every
	// acquisition before it of that name and kind that found the lock free, by whomever, also when that was
	// lost or forced or ran out long ago. Whoever holds the lock already gets the number that its hold has.
	// Other kinds have none.
	Token uint64
}

// ReleaseRequest gives back one hold. That of a Write also takes back the note that its owner has left as it
// waited, and wakes everybody if there was one. That of a Fair lock whose owner holds nothing gives up the owner's place in line. That
// of Permits gives back all that the owner has.
type ReleaseRequest struct {
	Kind  Kind
	Name  string
	Owner string
	Lease time.Duration // as in AcquireRequest; for the holds that are left

	Permits int // how many the owner has acquired; of the kind Permits only

	// Keep, unless it is zero, is for how long, counted from now, nobody is to get what the release gives
	// back, if it is the owner's last hold: the outcome is [Kept] then, nobody is woken but those who
	// only watch, see SubscribeRequest.Watches, and who has asked before looks when he would have.
	// That time may be longer or shorter than the lease, and when it is over the lock is as one whose
	// lease has run out.
	//
	// Until then it is as if somebody held it whom no request can name: its former owner doesn't acquire or
	// renew it, and no request of his that comes late, or twice, changes anything, or leaves a note or a
	// place; his next release with Keep finds it Kept, and leaves it as it is, and one without is NotHeld. A
	// Look sees it held, and Kept, an Inspector says who has given it back, and a ForceRelease frees it. Who
	// has had a Write and reads, too, goes on reading; the Write may then be kept for as long as what he
	// reads would last. Of Permits others get what is left.
	//
	// Keep is a whole number of milliseconds, also where the limits for leases are coarser. A store
	// that counts in longer steps has the session that was asked end it in time, and if that
	// process dies, or the session is closed, it may end as late as a lease would. It is only
	// asked for where Limits.Keeps; Read ignores it. An owner who holds nothing keeps nothing.
	Keep time.Duration

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
	Left                          // one hold was given back, others of the owner are left
	Freed                         // the owner's last hold was given back
	Kept                          // the same, and nobody gets it for a while: see ReleaseRequest.Keep
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
	// Waiting is how many clients other than this one wait for the lock now that it is free, at least,
	// so that this one can let them come first.
	Waiting int
	// Strangers is how many of them, as far as is known, don't pass a lock on inside, as clients of
	// package dlock do, but have one turn at a time. This one should do nearly the same, or it
	// takes nearly all.
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

	Permits, Limit int // as in AcquireRequest; Permits may be zero where Owner is empty
}

// LookResult is the answer to a [LookRequest]. Read and Write are asked about one by one.
type LookResult struct {
	Held      bool          // by anybody, in this kind
	Count     int           // the holds of the request's owner; how many permits it has
	Remaining time.Duration // until the last of them expires: 0 if there is none, negative if it never does
	Available int           // how many permits aren't out, of the request's limit; never negative

	// Kept says that what is held is what a release has kept ([ReleaseRequest].Keep): nobody is inside, and
	// Remaining is how long that goes on. It isn't said of Read and of Permits.
	Kept bool
}
