package dlock

import "github.com/seed951563bd/distsync/backend"

// Kind is a kind of lock, or a side of one. Events, holds and losses have it. String returns it in
// a word.
type Kind = backend.Kind

// Kinds of lock, by what makes them.
const (
	KindPlain   = backend.Exclusive // [Client.Locker]
	KindFenced  = backend.Fenced    // [Client.FencedLocker], and [Client.Election]
	KindRead    = backend.Read      // [RWLocker.Reader]
	KindWrite   = backend.Write     // [RWLocker.Writer]
	KindFair    = backend.Fair      // [Client.FairLocker]
	KindPermits = backend.Permits   // [Client.Semaphore]
)
