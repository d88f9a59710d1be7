package backend

import (
	"context"
	"time"
)

// Inspector is an optional interface of a [Session] that can say who has a lock, for people who look from outside. What
// clients of their own know of a lock doesn't rest on it.
type Inspector interface {
	// Inspect reports what a name holds, of whatever kind, and changes nothing. What it reports was so at one
	// moment between call and return, but for what takes several steps to read: a lock with very many
	// holders. A name that holds something that is no lock is answered with [ErrConflict].
	Inspect(ctx context.Context, req InspectRequest) (Inspection, error)
}

// InspectRequest asks what a name holds.
type InspectRequest struct {
	Name string
}

// Inspection is what is in the store under one name.
type Inspection struct {
	Name string

	// Kind is Exclusive for one of the three ways to a plain lock, which a store need not tell
	// apart; Write for a read-write lock, whoever has it; and Permits for a semaphore. Where nobody
	// has the lock it may be any, but for Permits, which says that the store keeps a semaphore
	// there that is of no use for another kind.
	Kind Kind

	// Holders are those who have the lock, a writer before readers: all, or [MostHolders] of them.
	Holders []Holder
	// More is how many others have it.
	More int

	// Line is who stands in line for a Fair lock, in order, or [MostHolders] of them.
	Line []string

	// Limit is how many permits there are, as the store was told last; 0 if it doesn't know.
	Limit int
}

// MostHolders is how many holders an [Inspection] lists.
const MostHolders = 1000

// Free says whether nobody has the lock.
func (i *Inspection) Free() bool { return len(i.Holders) == 0 }

// Holder is one who has a lock.
type Holder struct {
	// Owner is the owner of the request that acquired it or, where a store keeps only something shorter, what
	// it keeps.
	Owner string
	Kind  Kind // as in Inspection, and Read for a reader
	Count int  // how many holds, or permits

	// Remaining is how long it lasts if nobody renews it; negative if it never ends.
	Remaining time.Duration

	// Kept says that the owner has given it back, and that it is kept: see [ReleaseRequest].Keep.
	Kept bool
}

// Lister is an optional interface of a [Session] that can list the locks of its store. To list them must not
// keep the store from others, however much is in it beside locks.
type Lister interface {
	// List returns the next of the locks whose names begin with the request's prefix, in any order. A lock
	// that somebody had all the time from the first call to the last is listed, and perhaps more than once.
	// One that was acquired or released meanwhile may be listed or not. Something that isn't a lock, but in
	// shape can't be told from one, may be listed.
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
	Next  string       // what to ask for the next with; empty if there are no more
}
