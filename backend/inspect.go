package backend

import (
	"context"
	"time"
)

// Inspector is an optional interface of a [Session] that can name the holders of a lock. It is for
// operators: clients don't need it for their own locks.
type Inspector interface {
	// Inspect reports on the lock with the given name, of any kind, and changes nothing. The report
	// was true at one moment between call and return, unless the lock has too many holders to read
	// in one step. If the name belongs to something other than a lock, Inspect fails with
	// [ErrConflict].
	Inspect(ctx context.Context, req InspectRequest) (Inspection, error)
}

// InspectRequest is a request to inspect the lock with a given name.
type InspectRequest struct {
	Name string
}

// Inspection is a report on a lock.
type Inspection struct {
	Name string

	// Kind is Exclusive for a plain, fenced or fair lock, since a store need not tell them apart.
	// It is Write for a read-write lock, even if there are only readers, and Permits for a
	// semaphore. If the lock is free, Kind is meaningless unless it is Permits. Then the name still
	// belongs to a semaphore, and can't be used for another kind of lock.
	Kind Kind

	// Holders lists the holders of the lock, up to [MostHolders] of them. A writer comes before
	// readers.
	Holders []Holder
	// More is the number of holders that Holders omits.
	More int

	// Line lists the owners that wait in line for a Fair lock, in order, up to [MostHolders] of
	// them.
	Line []string

	// Limit is the limit on permits that the store was last given, or 0 if none is known.
	Limit int
}

// MostHolders is the largest number of holders that an [Inspection] lists.
const MostHolders = 1000

// Free reports whether the lock has no holder.
func (i *Inspection) Free() bool { return len(i.Holders) == 0 }

// Holder is a holder of a lock.
type Holder struct {
	// Owner is the owner that acquired the lock. If the store keeps only a shorter form of the
	// owner, that form is used.
	Owner string
	// Kind has the same meaning as in [Inspection], except that it is Read for a reader.
	Kind  Kind
	Count int // number of holds, or permits

	// Remaining is how long the hold lasts without renewal. It is negative if the hold never ends.
	Remaining time.Duration

	// Kept reports whether the lock stays taken although the owner has released it (see the field
	// Keep of [ReleaseRequest]).
	Kept bool
}

// Lister is an optional interface of a [Session] that can list the locks of its store. Listing must
// not block the store's other work, however much other data the store holds.
type Lister interface {
	// List returns the next locks whose names begin with the request's prefix, in any order. A lock
	// that is held from the first call to the last is listed at least once. A lock that is acquired
	// or released in between may or may not be listed. Other data that looks like a lock may also
	// be listed.
	List(ctx context.Context, req ListRequest) (ListResult, error)
}

// ListRequest is a request for some of a store's locks.
type ListRequest struct {
	Prefix string // prefix of the names; may be empty
	// After is the value of ListResult.Next from the previous call. It is empty in the first call.
	After string
	// Limit is the number of locks wanted, which is positive. The store may return fewer, even
	// none, or a few more.
	Limit int
}

// ListResult is the answer to a [ListRequest].
type ListResult struct {
	// Locks contains the locks found. None of them is free.
	Locks []Inspection
	// Next is the value for ListRequest.After in the next call. It is empty if there are no more
	// locks.
	Next string
}
