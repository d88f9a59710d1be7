// Package backend describes what a store must do to hold distributed locks.
//
// Application code uses package [github.com/seed951563bd/distsync/dlock] and the constructor of one
// of the backends. This package is for those who write a backend: implement [Backend] and
// [Session], the optional [Notifier] and [BatchRenewer] if the store can do more, and run the
// contract suite ([github.com/seed951563bd/distsync/contract]) on the result.
//
// A store needs little: one atomic step each to acquire, release, renew, force-release and look at
// a lock, and holds that end by themselves when their lease runs out, judged by the store's own
// clock. Who re-enters, when to renew, in what order to wait, what to do when a reply is lost: all
// of that is done in dlock, once for every store.
//
// The store knows a lock by its name, and its holder by an opaque string, the owner. Per name it
// keeps at most one owner, how often that owner holds the lock, and when the hold ends:
//
//	Acquire: free, or held by the same owner     count + 1, expires after the lease
//	Acquire: held by another                     unchanged; says how long it lasts
//	Release: the owner's, count > 1              count - 1, expires after the lease
//	Release: the owner's, count = 1              free; waiters are woken
//	Release: free, or held by another            unchanged
//	Renew:   the owner's                         expires after the lease
//	Renew:   free, or held by another            unchanged
//	ForceRelease                                 free; waiters are woken if it was held
//	the lease runs out                           free; nobody need be woken
//
// What else a session can do it says by implementing an optional interface: [Notifier] if the store can
// tell of releases, [BatchRenewer] if it renews many holds for the price of few, [Leavable] if its
// steps return when their context ends whatever the store does, [Prompt] if none of them ever waits. Each
// says what is done without it.
//
// Requests and results are structs so that they can grow fields without breaking backends written
// elsewhere. The zero value of a new field means the earlier behaviour.
package backend
