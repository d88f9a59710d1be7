package dlock

import "github.com/seed951563bd/distsync/backend"

// Kind is a kind of lock, or one side of a read-write lock. Events, holds and losses carry a Kind.
// Its String method returns its name.
type Kind = backend.Kind

// The kinds of lock, with the methods that create a lock of each kind.
const (
	KindPlain   = backend.Exclusive // [Client.Locker]
	KindFenced  = backend.Fenced    // [Client.FencedLocker], and [Client.Election]
	KindRead    = backend.Read      // [RWLocker.Reader]
	KindWrite   = backend.Write     // [RWLocker.Writer]
	KindFair    = backend.Fair      // [Client.FairLocker]
	KindPermits = backend.Permits   // [Client.Semaphore]
)
