// Package backend describes what a store must do to hold distributed locks.
//
// Application code uses package [github.com/seed951563bd/distsync/dlock] and the constructor of one
// of the backends. To write a backend, implement [Backend] and [Session], and the [Capabilities]
// that the store has. Then run the contract suite on it (see package
// [github.com/seed951563bd/distsync/contract]).
//
// A store needs only five atomic operations, called steps: acquire, release, renew, force-release
// and look. A hold ends when its lease expires on the store's own clock. Re-entry, renewals, the
// order of waiters and lost replies are handled in dlock, once for every store.
//
// The store knows a lock by its name, and its holder by an opaque string, the owner. For each name
// it keeps at most one owner, the number of that owner's holds, and the time when they end:
//
//	Acquire: free, or held by the same owner          count + 1, expires after the lease
//	Acquire: held by another                          unchanged; says how long it lasts
//	Release: the owner's, count > 1                   count - 1, expires after the lease
//	Release: the owner's, count = 1                   free; waiters are woken
//	Release: the owner's, count = 1, with Keep        an unnamed owner holds it until Keep is over
//	Release: kept by that owner's release, with Keep  unchanged, and reported as kept
//	Release: free, or held by another                 unchanged
//	Renew:   the owner's                              expires after the lease
//	Renew:   free, or held by another                 unchanged
//	ForceRelease                                      free; waiters are woken if it was held
//	the lease runs out                                free; waking waiters is optional
//
// The table describes a plain lock, of kind [Exclusive]. A store need not support any other kind.
// Clients use Keep only if the store sets Limits.Keeps. Such a store also supports Keep for its
// other kinds (see below), except [Read].
//
// # Kinds of lock
//
// A store declares its other kinds in its [Limits]. So a store that doesn't support a new kind
// needs no change. Every request names its kind. If the store doesn't declare that kind, the step
// fails at once with [UnknownKind], and [Capabilities].WhyNot says why.
//
// A [Fenced] lock is an Exclusive lock with fencing tokens. The table above also applies to it. A
// Fenced lock and an Exclusive lock of the same name are one lock. The store also keeps a number
// for each name, and keeps it when the lock is free:
//
//	Acquire: free                                the number grows, and is the hold's Token
//	Acquire: held by the same owner              Token is that of the hold
//	everything else                              the number stays, even when the lease runs out
//
// A read-write lock has the sides [Read] and [Write]. For each name the store keeps the readers,
// each with its own end, and at most one writer, with a count and an end. For each waiting writer
// it keeps a note, with the time when the writer began to wait, and the time when the note ends.
// See [AcquireRequest].Waited and Place. An end never moves to an earlier time. A note is "older"
// if it hasn't ended, and its owner has waited longer than the request's owner:
//
//	Acquire Read:  the owner reads, or writes     reads, even if others wait
//	Acquire Read:  another writes                 unchanged; says how long that lasts
//	Acquire Read:  nobody writes, an older note   unchanged; says how long the note lasts, not 0
//	Acquire Read:  nobody writes, no older note   reads, beside others
//	Acquire Write: the owner's                    count + 1
//	Acquire Write: free                           writes, count 1; the owner's note is gone
//	Acquire Write: another writes, anybody reads  with Place, leaves or prolongs the owner's note;
//	                                              says how long the others last
//	Release Read:  the owner's                    gone; waiters are woken if it was the last and
//	                                              nobody writes
//	Release Write: the owner's, count > 1         count - 1
//	Release Write: the owner's, count = 1         gone, the owner's Read stays; all waiters are
//	                                              woken
//	Release Write: the same, with Keep            an unnamed owner writes; the owner's Read stays
//	Release Write: not the owner's                the owner's note is gone; all waiters are woken
//	                                              if there was one
//	Renew:         the owner's                    expires no sooner than after the lease
//	ForceRelease Read:  nobody writes             nobody reads; waiters are woken if somebody did
//	ForceRelease Write: somebody writes           free, with that owner's Read; all waiters are
//	                                              woken
//	everything else                               unchanged
//
// "Anybody reads" includes the owner that wants to write: there is no upgrade. A store may keep one
// end for all readers, besides an end for each. Then a reader whose lease has expired may still
// count as reading while others read. But it must be gone when the last other reader leaves, and it
// must not keep out an owner that would otherwise get the lock.
//
// A [Fair] lock is an Exclusive lock with a line of waiters. Each waiter has a place, which ends
// unless it is kept. The store's session must be a [Liner]. The first table applies to a Fair lock,
// with the changes below. "First" is the head of the line. At the end of each step that finds the
// lock free, or frees it, the first in line gets it:
//
//	Acquire: free, the owner first or nobody in line  held, count 1; the owner's place is gone
//	Acquire: the owner's, Reentry                     count + 1
//	Acquire: the owner's                              count stays, lasts no shorter than the lease
//	Acquire: otherwise                                says how long the lock is held; with Place,
//	                                                  keeps the owner's place, or makes one at the
//	                                                  end
//	Release: not the owner's                          the owner's place is gone
//	Release: the owner's, count = 1, with Keep        held, so the first gets it when Keep is over
//	KeepPlaces                                        owners in line keep their places; others come
//	                                                  first
//	the lease of a hold, or a place, runs out         the next step passes the lock on
//
// Only the Fair lock has a line. Fair, Exclusive and Fenced locks of the same name exclude each
// other. But waiters for Exclusive and Fenced locks don't stand in line, and a release of one kind
// needn't wake the waiters for another. So mixing the kinds is allowed, but unwise.
//
// The kind [Permits] is for semaphores. For each name the store keeps the owners, each with its
// number of permits and its end. It may also keep the last limit that it was given. "Out" is the
// number of permits that all owners hold together. An owner "has as many" if its number of permits
// equals the request's. The limit is the request's, or else the last one that the store was given:
//
//	Acquire: the owner has as many                      lasts for the lease, counted from now
//	Acquire: the owner has none, out + Permits <= limit has them until the lease runs out
//	Acquire: the owner has none, out + Permits > limit  unchanged; says when the first permits that
//	                                                    are out end
//	Release: the owner has as many                      has none; waiters are woken
//	Release: the owner has as many, with Keep           has none, but they stay out until Keep is
//	                                                    over; nobody is woken
//	Release: the permits are kept, with Keep            unchanged, and reported as kept
//	Acquire: the owner's former permits are kept        unchanged, whatever the limit
//	Renew:   the owner has as many                      expires after the lease, counted from now
//	ForceRelease                                        nobody has any; waiters are woken if an
//	                                                    owner had some
//	any of these: the owner has more or fewer           gives those back and wakes waiters; then as
//	                                                    if it had none
//	everything else                                     unchanged
//
// A limit applies to the request that states it. When a request gets permits, the store also keeps
// the request's limit, for requests without one. If that limit is larger than before, waiters are
// woken. If a request has no limit, and the store doesn't know one, the step fails with
// [ErrNoLimit]. The store may forget the limit while no permit is acquired. If Permits exceeds the
// limit, the step fails with [ErrTooMany].
//
// A name belongs to a lock, a read-write lock or a semaphore until that lock or semaphore is free.
// Until then a step of one of the other two fails with [ErrConflict]. A semaphore keeps its name as
// long as the store keeps its limit. A step that fails with ErrConflict changes nothing: the note
// of a Write stays until it ends, even if the step is its owner's Release. Under one name an owner
// has holds of only one of these three. If it also has holds of another, a step may count them as
// another owner's. Notes and places aren't holds.
//
// # Leases and clocks
//
// Only the store's clock decides when a lease ends. The lease is counted from the moment at which
// the step was carried out. Clients count it on their own monotonic clocks, from before they sent
// the request. They rely only on the first 99 % of it, since the store's clock may run 1 % faster
// than theirs. If the store's clock jumps ahead, locks are lost. Never compare the clocks of two
// clients' machines.
//
//   - A hold must not end early. It may end late, for example by a sweep every second. Until then
//     every step finds it held, including its owner's release and renewal, and waiters wait longer.
//   - An expired hold counts as none, even if it wasn't removed: every step looks at the time, and
//     the next hold overwrites it. The store or its operator removes expired holds whose names
//     aren't used again; dlock never does.
//   - Remaining should be exact to one or two units of Limits.LeaseStep, rounded up. If it is too
//     short, a waiter looks too early, and has to look twice. If it is too long, the lock is free
//     until the waiter looks.
//   - In SQL use the database's clock at the moment of the statement, such as PostgreSQL's
//     clock_timestamp. PostgreSQL's now returns the time at which the transaction began, which can
//     be long ago.
//   - Keys that expire by themselves are a clock. If the store has no such keys, and no step can
//     read the time, use the time that the store puts on each write, such as an object's
//     Last-Modified. Without any of these the store can't keep leases. Taking over a hold that
//     hasn't changed for a lease is a poor substitute: the store can't say how long a lock lasts,
//     and every waiter waits for a whole lease.
//
// # Locks without leases
//
// A lock that lasts as long as a connection doesn't fit this interface. PostgreSQL's advisory locks
// are an example. Such a lock has no lease. If its holder hangs, it stays locked as long as the
// connection lasts. If the connection breaks, the holder loses the lock at once, without being
// told. The owner is the connection, so with a connection pool, the next statement may have another
// owner. If a reply is lost, nobody can release the lock that may have been acquired. Other clients
// can't look at it or force its release. Instead, use a row with an owner, a count and an end.
//
// # Further capabilities
//
// A session's [Capabilities] are its optional features. The comment of each describes what happens
// without it:
//
//   - [Notifier]: the store notifies waiters of releases.
//   - [BatchRenewer], [Batcher]: it renews, or acquires and releases, several locks in few
//     requests.
//   - [Liner]: required for [Fair] locks.
//   - [Latcher]: it has count-down latches.
//   - [Inspector], [Lister]: it names the holders of a lock, and lists the locks, for operators.
//
// A session that implements one of these interfaces has that capability. A session that wraps
// another must implement [Capable] and list its capabilities, or it loses all of them. A session
// must also do that for the capabilities that aren't interfaces: Steps and Settle, for steps whose
// context ends, and WhyNot, the reason why it doesn't support a kind of lock.
//
// Requests and results are structs, so that new fields don't break backends written elsewhere. The
// zero value of a new field stands for the earlier behaviour.
package backend
