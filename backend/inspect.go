package backend

import (
	"context"
	"time"
)

// Inspector is an optional interface of a [Session] that can name the holders of a lock. It is for
// operators: clients don't need it for their own locks.
type Inspector interface {
	// Inspect reports on the lock of a name, of any kind, and changes nothing. The report was true
	// at one moment between call and return, unless the lock has so many holders that reading them
	// takes several steps. If the name belongs to something other than a lock, Inspect fails with
	// [ErrConflict].
	Inspect(ctx context.Context, req InspectRequest) (Inspection, error)
}

// InspectRequest is a request to inspect the lock of a name.
type InspectRequest struct {
	Name string
}

// Inspection is a report on the lock of one name.
type Inspection struct {
	Name string

	// Kind is Exclusive for a plain, fenced or fair lock, since a store need not tell them apart.
	// It is Write for a read-write lock, even if there are only readers, and Permits for a
	// semaphore. If the lock is free, Kind is meaningless, unless it is Permits: then the name
	// still belongs to a semaphore, and can't be used for another kind.
	Kind Kind

	// Holders are the first [MostHolders] holders of the lock, a writer before readers.
	Holders []Holder
	// More is the number of holders that Holders omits.
	More int

	// Line lists the owners in line for a Fair lock, in order, up to [MostHolders] of them.
	Line []string

	// Limit is the last limit of permits that the store was given, or 0 if the store knows none.
	Limit int
}

// MostHolders is the largest number of holders that an [Inspection] lists.
const MostHolders = 1000

// Free reports whether the lock has no holder.
func (i *Inspection) Free() bool { return len(i.Holders) == 0 }

// Holder is a holder of a lock.
type Holder struct {
	// Owner is the owner of the request that acquired the lock, or a shorter form of it if that is
	// all the store keeps.
	Owner string
	Kind  Kind // as in Inspection, and Read for a reader
	Count int  // number of holds, or permits

	// Remaining is how long the hold lasts without renewal. It is negative if the hold never ends.
	Remaining time.Duration

	// Kept reports whether the owner has released the lock, but the lock stays taken: see
	// [ReleaseRequest].Keep.
	Kept bool
}

// Lister is an optional interface of a [Session] that can list the locks of its store. Listing must
// not block the store's other work, however much other data the store holds.
type Lister interface {
	// List returns the next locks whose names begin with the request's prefix, in any order. A lock
	// that was held from the first call to the last is listed, perhaps more than once. A lock that
	// was acquired or released in between may be listed or not. Other data that looks like a lock
	// may be listed.
	List(ctx context.Context, req ListRequest) (ListResult, error)
}

// ListRequest is a request for some of a store's locks.
type ListRequest struct {
	Prefix string // prefix of the names; may be empty
	After  string // ListResult.Next of the last call; empty in the first
	// the number of locks wanted, positive; the store may return fewer, even none, or a few more
	Limit int
}

// ListResult is the answer to a [ListRequest].
type ListResult struct {
	Locks []Inspection // none of them is free
	Next  string       // for ListRequest.After of the next call; empty if there are no more
}
