// Package backend describes what a store must do to hold distributed locks.
//
// Application code uses package [github.com/seed951563bd/distsync/dlock] and the constructor of one
// of the backends. To write a backend, implement [Backend] and [Session], and the [Capabilities]
// that the store has beside, and run the contract suite
// ([github.com/seed951563bd/distsync/contract]) on the result.
//
// A store needs little: one atomic step each to acquire, release, renew, force-release and look at
// a lock, and holds that end by themselves when their lease runs out, by the store's own clock.
// Re-entry, renewals, the order of waiters and lost replies are handled in dlock, once for every
// store.
//
// The store knows a lock by its name, and its holder by an opaque string, the owner. Per name it
// keeps at most one owner, how often that owner holds the lock, and when the hold ends:
//
//	Acquire: free, or held by the same owner     count + 1, expires after the lease
//	Acquire: held by another                     unchanged; says how long it lasts
//	Release: the owner's, count > 1              count - 1, expires after the lease
//	Release: the owner's, count = 1              free; waiters are woken
//	Release: the owner's, count = 1, with Keep   held by an owner that no request names, until Keep is over
//	Release: kept after that owner's, with Keep  unchanged, and reported as kept
//	Release: free, or held by another            unchanged
//	Renew:   the owner's                         expires after the lease
//	Renew:   free, or held by another            unchanged
//	ForceRelease                                 free; waiters are woken if it was held
//	the lease runs out                           free; nobody need be woken
//
// That is a plain lock, [Exclusive], and all that a store must have. Keep is only asked for if the
// store says Limits.Keeps; then it also keeps its other kinds below in the same way, except [Read].
//
// # Kinds of lock
//
// A store declares its other kinds in its [Limits]. So a store without a kind, or older than it, needs
// no change. Every request names its kind. A kind that isn't declared is refused with [UnknownKind], and
// the caller is told at once; [Capabilities].WhyNot says why.
//
// A [Fenced] lock is an Exclusive one that is numbered: the table above is true of it, too, and both
// are one lock under one name. It also has a number for each name, which survives the lock:
//
//	Acquire: free                                the number grows, and is the hold's Token
//	Acquire: held by the same owner              Token is that of the hold
//	everything else                              the number stays, also when the lease runs out
//
// A read-write lock has the sides [Read] and [Write]. Per name the store keeps the readers, each with an
// end of its own; at most one writer, with count and end; and for each waiting writer a note of since
// when it waits, and when the note ends (see [AcquireRequest].Waited and Place). Ends only move up: a
// lease that is shorter than the rest changes nothing. A note is "older" if it isn't over, and its owner
// has waited for longer than the request's owner:
//
//	Acquire Read:  the owner reads, or writes     reads; whatever others wait for
//	Acquire Read:  another writes                 unchanged; says how long that lasts
//	Acquire Read:  nobody writes, an older note   unchanged; says what is left of the note, and not zero
//	Acquire Read:  nobody writes, no older note   reads, beside others
//	Acquire Write: the owner's                    count + 1
//	Acquire Write: free                           writes, count 1; the owner's note is gone
//	Acquire Write: another writes, anybody reads  with Place, the owner's note is left or prolonged; says how long they last
//	Release Read:  the owner's                    gone; if it was the last, and nobody writes, waiters are woken
//	Release Write: the owner's, count > 1         count - 1
//	Release Write: the owner's, count = 1         gone, what the owner reads stays; all waiters are woken
//	Release Write: the same, with Keep            an owner that no request names writes; reading goes on
//	Release Write: not the owner's                the owner's note is gone, and if there was one all waiters are woken
//	Renew:         the owner's                    expires no sooner than after the lease
//	ForceRelease Read:  nobody writes             nobody reads; waiters are woken if somebody did
//	ForceRelease Write: somebody writes           free, with what that owner reads; all waiters are woken
//	everything else                               unchanged
//
// "Anybody reads" includes the owner that wants to write: there is no upgrade. If the store has one end
// for all readers besides their own, a reader whose lease has run out may still be found reading while
// others read. But the last reader to leave must not leave it behind, and it must not keep out an owner
// that would get in otherwise.
//
// A [Fair] lock is an Exclusive one with a line of waiters, each with a place that ends unless it is
// kept. The table above is true of it, except for what follows, and its session is a [Liner]. "First"
// is the head of the line. At the end of each step that finds the lock free, or frees it, the first gets
// it:
//
//	Acquire: free, the owner first or nobody in line  held, count 1; the owner's place is gone
//	Acquire: the owner's, Reentry                     count + 1
//	Acquire: the owner's                              count stays, lasts no shorter than the lease
//	Acquire: else                                     says how long the lock is held; with Place, the owner's
//	                                                  place is kept, or the owner comes last
//	Release: not the owner's                          the owner's place is gone
//	Release: the owner's, count = 1, with Keep        held, so the first gets it when that is over
//	KeepPlaces                                        who is in line keeps the place; who isn't comes first
//	the lease of a hold, or a place, runs out         the next step sees to it
//
// The line is the Fair lock's own. It and the Exclusive and Fenced locks of the same name exclude each
// other. But those don't stand in line, and a release of one kind needn't wake waiters for the other:
// mixing them is allowed, and unwise.
//
// [Permits] are those of a semaphore. Per name the store keeps the owners, each with its number and its
// end, and perhaps the total that it was told last. "Out" is how many all owners have together, and the
// limit is that of the request, or the total that the store was told last:
//
//	Acquire: the owner has as many                      lasts for the lease, counted from now
//	Acquire: the owner has none, out + Permits <= limit has them until the lease runs out
//	Acquire: the owner has none, out + Permits > limit  unchanged; says when the first of those that are out ends
//	Release: the owner has as many                      has none; waiters are woken
//	Release: the owner has as many, with Keep           has none, but they stay out until Keep is over; nobody is woken
//	Release: they are kept, with Keep                   unchanged, and said to be kept
//	Acquire: what the owner had is kept                 unchanged, whatever the limit
//	Renew:   the owner has as many                      expires after the lease, counted from now
//	ForceRelease                                        nobody has any; waiters are woken if somebody did
//	any of these: the owner has another number          what it has is given back, waiters are woken; then as if it had none
//	everything else                                     unchanged
//
// A limit counts for the request that names it. A request that gets permits also tells it to the store,
// for requests without one; if it is larger than before, waiters are woken. If a request has no limit,
// and the store knows none, or no longer because nothing is out, the answer is [ErrNoLimit]. If Permits
// is more than the limit, it is [ErrTooMany].
//
// If a name holds one of the three locks, a step of another is [ErrConflict], until that lock is free.
// For a semaphore that lasts as long as the store keeps its limit. Such a step changes nothing: the note
// of a Write stays until it ends, also if the step is its owner's Release. An owner has holds of one of
// the three locks only: a step may take other holds for another's. A note or a place is no hold.
//
// # Leases and clocks
//
// A lease goes by one clock, that of the store, and is counted from the moment at which the step was
// carried out. Clients count it on their own monotonic clocks, from before they sent the request, and
// stop relying on it a hundredth early: the store's clock may run that much faster than theirs. If it
// jumps ahead, locks are lost. Two clients must never compare the times of their own machines.
//
//   - A hold must not end early. It may end late, by a sweep every second or so: until then every step
//     takes it as held, its owner's release and renewal included, and waiters wait for that longer.
//   - An expired hold is the same as none, whether it was removed or not: every step looks at the time,
//     and the next hold overwrites it. The store or its operator removes expired holds that nobody asks
//     for again; dlock never does.
//   - Remaining should be right to a unit of Limits.LeaseStep or two, rounded up. A waiter that looks too
//     early has to look twice; one that looks too late leaves the lock free for that long.
//   - In SQL use the database's clock at the moment of the statement, clock_timestamp in PostgreSQL. Its
//     now is the time at which the transaction began, which may be long ago.
//   - Keys that expire by themselves are a clock. If there are none, and no step can read the time, use
//     the time that the store puts on a write, such as an object's Last-Modified. Without any of these
//     the store can't keep leases. Taking over what hasn't changed for a lease is a makeshift: it can't
//     say how long a lock lasts, and every waiter waits for a whole lease.
//
// # What isn't a lock
//
// A lock that lasts as long as a connection, as PostgreSQL's advisory locks do, doesn't fit. It has no
// lease: a holder that hangs keeps it as long as the connection lasts, and a holder whose connection
// breaks loses it at that moment, without being told. Its owner is the connection. So behind a pool the
// next statement may be another owner's, and after a lost reply nobody can give back what was perhaps
// taken. Nobody else can look at it or force it. Use a row with an owner, a count and an end instead.
//
// # What a store can do beside
//
// What else a session can do is in its [Capabilities]. Each says what is done without it:
//
//   - [Notifier]: the store can tell of releases.
//   - [BatchRenewer], [Batcher]: it renews, or acquires and releases, several locks in few requests.
//   - [Liner]: required of a store with [Fair] locks.
//   - [Latcher]: it has count-down latches.
//   - [Inspector], [Lister]: it says who has a lock, and which locks there are, for people.
//
// A session that implements one of these interfaces has that capability. A session that wraps another
// is [Capable]: it says itself which it has, or all are lost. So is one with something to say that is
// no interface: what its steps do when their context ends, or why it lacks a kind of lock.
//
// Requests and results are structs so that they can grow fields without breaking backends written
// elsewhere. The zero value of a new field means the earlier behaviour.
package backend
