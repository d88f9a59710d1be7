// Package dlock provides distributed locks that behave like the locks you know: mutexes, read-write
// locks and semaphores that also exclude other processes and machines, and leader election.
//
//	rdb := redis.NewClient(&redis.Options{Addr: "localhost:6379"})
//	client := dlock.New(redisbackend.New(rdb))
//	defer client.Close()
//
//	err := client.Locker("orders:42").Do(ctx, func(ctx context.Context) error {
//		return ship(ctx, 42) // nobody else is in here; ctx ends if the lock is lost
//	})
//
// A [Locker] is a [sync.Locker] that also excludes other processes. A [Client] creates Lockers, and
// a program usually needs one Client. [New] creates it from a store. These packages provide stores:
//
//   - [github.com/seed951563bd/distsync/redisbackend], on Redis, with go-redis
//   - [github.com/seed951563bd/distsync/valkeybackend], on Valkey or Redis, with valkey-go
//   - [github.com/seed951563bd/distsync/etcdbackend], on etcd
//   - [github.com/seed951563bd/distsync/postgresbackend], on PostgreSQL
//   - [github.com/seed951563bd/distsync/quorumbackend], on several independent stores of these
//     kinds
//   - [github.com/seed951563bd/distsync/membackend], in the memory of this process, for tests
//
// The rest of a program doesn't depend on the store. The store's package documents what the store
// promises and requires.
//
// To run a function under a lock, use [Locker.Do]. If the code can't be one function, use
// [Locker.Acquire]. [Locker.TryLock] doesn't wait. Lock and Unlock are for code that takes a
// sync.Locker. The context of a call, or the option [Wait], limits how long it waits.
//
// # What is guaranteed
//
// A lock is held on a lease. The store frees the lock when the lease runs out, so a dead holder
// doesn't keep others out forever. While a program holds a lock, its client renews the lease every
// time a third of it has passed. [WithLease] sets the length of leases, and [RenewedLease] sets it
// for a single acquisition. A [FixedLease] isn't renewed.
//
// A lease does not guarantee that only one holder acts at any moment. A process that is paused for
// longer than its lease finds out only when it wakes. For that guarantee use fencing, with which
// the resource itself refuses stale writers.
//
// The guarantee is this: if several clients believe that they hold the lock and each checks, at
// most one check succeeds. The guarantee assumes that the store keeps what it has acknowledged,
// that the lock isn't force-unlocked, and that clocks run at the same rate, to within 1 %. Clocks
// need not show the same time. A client counts its lease from before it sent the request, on the
// monotonic clock, and relies on 99 % of it. To check, call Err of the context that [Locker.Do]
// passed, or [Locker.IsHeld]. A channel or a derived context reports a loss only after a goroutine
// has run. While the process runs, they report it by the end of the lease, even if the store never
// answers again. Just after a pause of the process they might report it a moment late. A loss is
// final, so no late answer brings a hold back.
//
// A ForceUnlock can let a second holder in. So can a store that loses data, such as a Redis that
// fails over to a lagging replica, or restarts without its data. The first holder is told at its
// next renewal or, with a [FixedLease], at the end of its lease. (If a failover forgets only a
// re-entry, the client notices at the next unlock.) If two holders at once would be a disaster
// rather than a waste, let the resource itself refuse the stale writer.
//
// # Waiting
//
// The goroutines of a client that wait for the same lock form a queue, first come, first served.
// Only the first of them sends requests to the store, which notifies it of releases. If a lock was
// acquired a moment ago, and is renewed, an unlock hands it over to the next in the queue without a
// request to the store. That is a thousand times faster. [WithHandover] limits how long this goes
// on, so that other processes get their turn. Its comment says what happens if another client
// force-unlocks such a lock.
//
// If a client has released a lock and wants it again, it first lets each of the other waiting
// clients have it once, if the store can count them. It asks for their number together with the
// release. If no other client waits, it doesn't wait either. If the other clients don't acquire the
// lock, it waits for only a few milliseconds.
//
// Fair locks are different: all their waiters stand in line in the store. See [Client.FairLocker].
//
// # Who owns a lock
//
// By default a Locker is like a mutex variable: it has one hold at a time, a second Lock waits, and
// any goroutine may unlock it. To re-enter a lock that you hold, name an owner. With [WithOwner]
// and [NewOwner], all calls with a context act for the same owner. [Locker.For] does that for code
// that takes a sync.Locker. A call with the context of a [Hold], which Do passes to fn, re-enters
// that lock. If a context has several owners, or holds of this lock, the innermost counts.
// [WithGoroutineOwners] is for code written for locks that are owned by threads.
//
// # Kinds of lock
//
//   - [Client.Locker] returns plain locks: one holder at a time.
//   - [Client.RWLocker] returns read-write locks, whose two sides are Lockers: any number of
//     readers or one writer.
//   - [Client.FencedLocker] returns locks whose acquisitions are numbered, so that a resource can
//     refuse a holder that was paused for longer than its lease: see [Token].
//   - [Client.FairLocker] returns locks that go to their waiters in order of arrival.
//   - [Client.Semaphore] returns semaphores, whose permits any number of holders share.
//   - [All] combines several locks into one.
//   - [Client.Election] elects a leader, with a fenced lock: [Election.Run] runs a function in one
//     of the candidates, and in another when that one ends.
//   - [Client.Once] runs a function once per occasion, for example once an hour, even if every
//     replica starts it.
//   - [Client.Latch] returns count-down latches.
//
// Give locks of different kinds different names. If the store detects a conflict, the error is
// [ErrConflict].
//
// # Seen from outside
//
// A [Loss] says how a lock was lost, and every error about the loss wraps one. [Client.Holds],
// [Client.Waits], [Client.Losses] and [Client.Stats] report what the client itself knows.
// [Locker.Holder], [Client.Inspect] and [Client.Locks] ask the store. The store knows a holder by a
// number and its client's id, which by default contains the host name and the process id. With
// [WithTrace] the client reports events, such as each acquisition, to functions of the program. In
// the log (see [WithLogger]), a warning needs attention, info explains, and debug reports each
// acquisition and release. Errors, Holds and Lockers that a program logs with log/slog have the
// same attributes as in the client's log: see [Error.LogValue].
//
// # When things go wrong
//
// If a reply is lost, the client doesn't know whether the lock was acquired or released. It never
// repeats such a request blindly. Every acquisition has a unique number in the store. If no call
// uses an acquisition any longer, the client releases it in the background, repeatedly until the
// store confirms that. A call returns when its context ends, even while the store hangs.
//
// An error is an [*Error] that wraps [ErrNotAcquired], [ErrNotHeld], [ErrLost], [ErrClosed],
// [ErrConflict], [ErrUpgrade], [ErrTooMany], [ErrNoLimit], the error and the cause of the context,
// or the error of the store. Test for them with [errors.Is]. The error of a wait also says why the
// lock wasn't acquired. If it is [ErrHeld], someone else holds the lock, or too few permits are
// left. If it is [ErrUnavailable], the store couldn't say. Two methods return no error. Lock keeps
// trying, and panics only if that can't help. Unlock panics if the lock was never held, and logs a
// warning if it was lost.
package dlock
