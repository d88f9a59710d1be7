// Package backend describes what a store must do to hold distributed locks.
//
// Application code uses package [github.com/seed951563bd/distsync/dlock] and the constructor of one
// of the backends. This package is for those who write a backend: implement [Backend] and
// [Session], the optional [Notifier], [BatchRenewer] and [Batcher] if the store can do more, and run the
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
//	Release: the owner's, count = 1, with Keep   nobody's whom a request could name, until Keep is over; nobody is woken
//	Release: kept after that owner's, with Keep  unchanged, and said to be kept
//	Release: free, or held by another            unchanged
//	Renew:   the owner's                         expires after the lease
//	Renew:   free, or held by another            unchanged
//	ForceRelease                                 free; waiters are woken if it was held
//	the lease runs out                           free; nobody need be woken
//
// That is a plain lock, [Exclusive], and all that a store must have, but for Keep: a store that doesn't say Limits.Keeps is never
// asked for that. One that does keeps what it has of the other kinds below in the same way, save [Read].
//
// # Kinds of lock
//
// A store may know other kinds, and says in its [Limits] which: so one that was written before a kind was
// thought of, or can't have it, goes on as it is. Every request names its kind. One that isn't declared is
// refused with [UnknownKind], and then whoever wants such a lock is told at once; why, a store says that is an [Explainer].
//
// A [Fenced] lock is an Exclusive one that is numbered: the table above is its own, too, and both are one lock
// under one name. What it has beside is a number for each name that survives the lock:
//
//	Acquire: free                                the number grows, and is the hold's Token
//	Acquire: held by the same owner              Token is that of the hold
//	everything else                              the number stays, also when the lease runs out
//
// A read-write lock has the sides [Read] and [Write]. Per name the store keeps who reads, each with an end of
// its own, and at most one owner who writes, with count and end; and for each owner who waits to write a note: since
// when, and when it ends (see [AcquireRequest].Waited and Place). Ends only move up: a lease that is shorter than
// what is left changes nothing. "Older" is a note that isn't over, of somebody who has waited for longer than the
// request says that it has:
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
//	Release Write: the same, with Keep            another writes, whom nobody knows; reading goes on; nobody is woken
//	Release Write: not the owner's                the owner's note is gone, and if there was one all waiters are woken
//	Renew:         the owner's                    expires no sooner than after the lease
//	ForceRelease Read:  nobody writes             nobody reads; waiters are woken if somebody did
//	ForceRelease Write: somebody writes           free, with what that owner reads; all waiters are woken
//	everything else                               unchanged
//
// "Anybody reads" includes the owner that wants to write: nobody gets from reading to writing. A reader whose lease
// has run out may be found reading while others do, if the store has one end for all beside their own; but the last
// of them who leaves must not leave it behind, and it must keep nobody out who would get in otherwise.
//
// A [Fair] lock is an Exclusive one with a line of those who wait, each with a place that ends unless it is kept. It has the
// table above, but for what follows, and a session that has it is a [Liner]. "First" is whoever is at the head of the line; at the end of
// each step that finds the lock free, or frees it, the first gets it:
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
// The line is the Fair lock's own: Exclusive and Fenced locks of the same name exclude it and are excluded, but don't stand in
// line, and who waits for one kind needn't be told by a release of the other: to mix them is allowed, and unwise.
//
// [Permits] are what a semaphore has. Per name the store keeps who has how many, each until an end of its own, and perhaps what it was
// last told of how many there are. "Out" is how many anybody has, and the limit that of the request, or what the store was told last:
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
// A limit holds for the request that names it. The store is told of it, for those without one, by who gets permits; where it is larger than
// what was told before, waiters are woken. Without
// a limit a store that wasn't told of any, or doesn't know any more because nothing is out, answers [ErrNoLimit]; and
// [ErrTooMany] if Permits is more than the limit, whoever has said that.
//
// A name that holds one of the three locks is no lock to a step of another, but [ErrConflict], until it is free, or, of a
// semaphore, for as long as the store keeps what it was told of how many permits there are. Such a step changes
// nothing: the note of a Write stays until it ends, also if the step is its owner's Release. No owner is the
// same in two: a step may take what it finds for another's. A note or a place is no hold.
//
// # Leases and clocks
//
// A lease is judged by one clock, that of the store, and counted from the moment at which the step was
// carried out. Clients know it on monotonic clocks of their own, from before they sent the request, and
// stop relying on it a hundredth early: that much faster the store's clock may run than theirs. It may
// jump ahead, which costs locks, but two clients must never compare the times of their own machines.
//
//   - A hold must not end early. It may end late, by a sweep every second or so: until then every step
//     takes it as held, its owner's release and renewal included, and waiters wait for that longer.
//   - An expired hold is as none, whether it was removed or not: every step looks at the time, and
//     what comes next overwrites it. To remove those that nobody asks for again is up to the store, or
//     to its operator: dlock never does it.
//   - Remaining should be right to a unit of Limits.LeaseStep or two, rounded up: a waiter that looks again
//     too early has to do so twice, one that does so too late leaves the lock free for that long.
//   - In SQL take the database's clock at the moment of the statement (clock_timestamp in PostgreSQL; now is the
//     time at which the transaction began, and may be long ago if it had to wait).
//   - Keys that expire by themselves are a clock. Where there are none, and no step can read the time, that which
//     the store puts on what is written will do, as an object's Last-Modified. Without any of
//     these the store can't keep leases: to take what hasn't changed for as long as its lease is how
//     some get by, but then nobody can say how long a lock lasts, and whoever comes waits for a whole lease.
//
// # What isn't a lock
//
// A lock that lasts as long as a connection, as PostgreSQL's advisory locks do, can't be made into one.
// It has no lease: whoever hangs keeps it for as long as the connection does, and one whose connection
// breaks has lost it at that moment without being told, while it goes on believing. Its owner is the
// connection, so that behind a pool the next statement may be another owner's, and after a lost reply nobody
// can give back what was perhaps taken. Nobody else can look at it or force it. Use a row with an owner,
// a count and the time at which it expires.
//
// # What a store can do beside
//
// What else a session can do it says by implementing an optional interface: [Notifier] if the store can
// tell of releases, [BatchRenewer] if it renews many holds for the price of few, [Batcher] if it acquires and releases several so, [Leavable] if its
// steps return when their context ends whatever the store does, [Prompt] if none of them ever waits. Each
// says what is done without it. [Liner] isn't optional for a store that has Fair locks. A [Latcher] has
// count-down latches. For people who look from outside a session may be an
// [Inspector], which says who has a lock, and a [Lister], which says which locks there are.
//
// Requests and results are structs so that they can grow fields without breaking backends written
// elsewhere. The zero value of a new field means the earlier behaviour.
package backend
