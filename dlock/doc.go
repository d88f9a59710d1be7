// Package dlock provides distributed locks that behave like the locks you know: mutexes, read-write
// locks and semaphores that exclude other processes and machines too, and leader election.
//
//	rdb := redis.NewClient(&redis.Options{Addr: "localhost:6379"})
//	client := dlock.New(redisbackend.New(rdb))
//	defer client.Close()
//
//	err := client.Locker("orders:42").Do(ctx, func(ctx context.Context) error {
//		return ship(ctx, 42) // nobody else is in here; ctx ends if the lock is lost
//	})
//
// A [Locker] is a [sync.Locker] that excludes other processes too. It is made by a [Client], of which
// a program needs one, and a Client by [New] from a store, which is one of
//
//   - [github.com/seed951563bd/distsync/redisbackend], on Redis, by go-redis
//   - [github.com/seed951563bd/distsync/valkeybackend], on Valkey or Redis, by valkey-go
//   - [github.com/seed951563bd/distsync/etcdbackend], on etcd
//   - [github.com/seed951563bd/distsync/postgresbackend], on PostgreSQL
//   - [github.com/seed951563bd/distsync/quorumbackend], on several of these that know nothing of each other
//   - [github.com/seed951563bd/distsync/membackend], in this process, for tests
//
// No other code depends on which one you chose. What a store promises, and needs, its package says.
//
// To lock there are [Locker.Do]; [Locker.Acquire], for what can't be one function; [Locker.TryLock], which
// doesn't wait; and Lock and Unlock, for code that takes a sync.Locker. For how long a call waits its
// context says, or [Wait].
//
// # What is guaranteed
//
// A lock is held on a lease: the store frees it when the lease runs out, so that a holder that dies
// does not keep everybody out for ever. While a program holds a lock, its client renews the lease
// each time a third of it has passed. How long it is says [WithLease], or [RenewedLease] for one acquisition; one of [FixedLease] isn't
// renewed. This does not guarantee that only one holder is acting at any
// moment (that takes fencing: a resource that refuses stale writers): a process that is paused for
// longer than its lease finds out only when it wakes.
//
// What is guaranteed is this: if several clients believe they hold the lock and each checks, at
// most one check succeeds, provided that the store keeps what it has acknowledged, that nobody
// forces the lock, and that clocks run at the same rate, to within 1 %. Clocks need not show the
// same time: a client counts its lease from before it sent the request, on the monotonic clock, and
// treats 99 % of it as safe. To check is to call Err of the very context that [Locker.Do] passed,
// or [Locker.IsHeld]. Channels, and contexts derived from that one, need a goroutine to run first:
// in a process that is running they tell when the lease is over at the latest, even if the store
// never answers again; just after a pause they may be a moment late. Lost is final: no late answer
// brings a hold back.
//
// A store that forgets (a Redis that fails over to a replica that lags, or restarts without its
// data), and a ForceUnlock, can let a second holder in; the first is told when it next renews or,
// with a fixed [FixedLease], when that ends. (A failover that forgets a re-entry, and nothing else, is
// noticed at the next unlock only.) Where that is a disaster rather than a waste, let the resource
// itself refuse the stale writer.
//
// # Waiting
//
// The goroutines of a client that wait for one lock form a queue, first come first served. Only the
// first of them talks to the store, which tells it of releases. A lock that was taken a moment ago,
// and that is renewed, is handed to the next in the queue without asking the store, which is a
// thousand times faster; [WithHandover] says for how long that may go on before other processes get
// their turn, and what it means for a lock that is forced elsewhere.
//
// A client that has given the lock back, and wants it again, lets the other clients that wait come
// first, each once, where the store can count them. It asks how many there are along with the
// release; if there are none it doesn't wait, and if they don't come, for a few milliseconds only.
//
// None of this is so for fair locks: all who want one stand in line in the store, see [Client.FairLocker].
//
// # Who owns a lock
//
// By default a Locker is like a mutex variable: one hold at a time, a second Lock waits, any
// goroutine may unlock. To re-enter a lock that you hold, say who you are: [WithOwner] and
// [NewOwner] make everything that is done with a context one party; [Locker.For] does it for code
// that takes a sync.Locker; and the context of a [Hold], such as Do passes to fn, re-enters that lock. Of what a context says the
// innermost counts, an owner or a hold of this lock. [WithGoroutineOwners] is
// for code that was written for locks owned by threads.
//
// # Kinds of lock
//
//   - [Client.Locker] makes plain locks: one holder at a time.
//   - [Client.RWLocker] makes read-write locks, whose two sides are Lockers: any number of readers or one writer.
//   - [Client.FencedLocker] makes locks whose acquisitions are numbered, so that a resource can refuse a
//     holder that was paused for longer than its lease: [Token].
//   - [Client.FairLocker] makes locks that go to those who wait in the order of their arrival.
//   - [Client.Semaphore] makes semaphores, whose permits any number of holders have.
//   - [All] makes several locks one.
//   - [Client.Election] is a layer on fenced locks: [Election.Run] has a function run by one of all who
//     campaign, and by another when that is over.
//   - [Client.Once] runs a function once for each occasion, such as the hour for which every replica starts it.
//
// Locks of different kinds should have different names; where a store can tell that they haven't, that is [ErrConflict].
//
// # Seen from outside
//
// How a lock was lost says a [Loss], which every error about it wraps. [Client.Holds], [Client.Waits], [Client.Losses] and [Client.Stats] are what a
// client knows itself; [Locker.Holder], [Client.Inspect] and [Client.Locks] ask the store, which knows a holder by the id of
// its client, host and process by default, and a number. [WithTrace] has functions called as things happen. The log ([WithLogger]) has warnings, for
// what needs somebody, records of level info, which explain, and at level debug each acquisition and release. What a program logs
// itself with log/slog, errors, Holds and Lockers among it, has the same attributes: see [Error.LogValue].
//
// # When things go wrong
//
// A reply that is lost leaves it open whether a lock was taken or given back. No request is ever
// repeated blindly; every acquisition is known to the store under a number of its own, and an
// acquisition that nobody uses any more is released in the background, and retried until the store
// confirms. A call returns when its context ends, even while the store hangs.
//
// Errors are an [*Error] that wraps [ErrNotAcquired], [ErrNotHeld], [ErrLost], [ErrClosed],
// [ErrConflict], [ErrUpgrade], [ErrTooMany], [ErrNoLimit], the error and cause of the context, or what the
// store said: use [errors.Is]. A wait that ended also says which it was: [ErrHeld], another has the lock, or
// too few permits are left, or [ErrUnavailable], the store couldn't say. Two methods have no error to return. Lock goes on trying, and panics only where that
// can't help; Unlock panics if the lock was never held, and logs if it was lost.
package dlock
