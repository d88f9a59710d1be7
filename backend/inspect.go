package backend

import (
	"context"
	"time"
)

// Inspector is an optional interface of a [Session] that can say who has a lock, for people who
// look from outside. Clients don't need it for their own locks.
type Inspector interface {
	// Inspect reports what a name holds, of any kind, and changes nothing. The report was true at
	// one moment between call and return, unless the lock has so many holders that it takes several
	// steps to read. If the name holds something that is no lock, the answer is [ErrConflict].
	Inspect(ctx context.Context, req InspectRequest) (Inspection, error)
}

// InspectRequest asks what a name holds.
type InspectRequest struct {
	Name string
}

// Inspection is what is in the store under one name.
type Inspection struct {
	Name string

	// Kind is Exclusive for a plain, fenced or fair lock, which a store need not tell apart; Write
	// for a read-write lock, also if there are only readers; and Permits for a semaphore. If nobody
	// has the lock it may be any kind, except that Permits says that the name is a semaphore's and
	// can't be used for another kind.
	Kind Kind

	// Holders have the lock, a writer before readers: all of them, or [MostHolders].
	Holders []Holder
	// More is how many other holders there are.
	More int

	// Line has the owners in line for a Fair lock, in order: all of them, or [MostHolders].
	Line []string

	// Limit is how many permits there are, as the store was told last; 0 if it doesn't know.
	Limit int
}

// MostHolders is how many holders an [Inspection] lists.
const MostHolders = 1000

// Free says whether the lock has no holder.
func (i *Inspection) Free() bool { return len(i.Holders) == 0 }

// Holder is a holder of a lock.
type Holder struct {
	// Owner is the owner of the request that acquired it. If a store keeps only something shorter,
	// it is that.
	Owner string
	Kind  Kind // as in Inspection, and Read for a reader
	Count int  // how many holds, or permits

	// Remaining is how long the hold lasts without renewal; negative if it never ends.
	Remaining time.Duration

	// Kept says that the owner has given it back, and that it stays taken: see
	// [ReleaseRequest].Keep.
	Kept bool
}

// Lister is an optional interface of a [Session] that can list the locks of its store. A list must
// not keep the store from other work, however much other data it has.
type Lister interface {
	// List returns the next of the locks whose names begin with the request's prefix, in any order.
	// A lock that was held from the first call to the last is listed, perhaps more than once. One
	// that was acquired or released meanwhile may be listed or not. Data that looks like a lock may
	// be listed.
	List(ctx context.Context, req ListRequest) (ListResult, error)
}

// ListRequest asks for some of a store's locks.
type ListRequest struct {
	Prefix string // of their names; may be empty
	After  string // where the last call ended: ListResult.Next; empty at first
	Limit  int    // about how many are wanted, positive: the store may return fewer, even none, or somewhat more
}

// ListResult is the answer to a [ListRequest].
type ListResult struct {
	Locks []Inspection // none of them free
	Next  string       // for ListRequest.After of the next call; empty if there are no more
}
