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
// A [Locker] is a [sync.Locker] that excludes other processes too. A [Client] makes Lockers, and a
// program needs one Client. [New] makes it from a store, which is one of
//
//   - [github.com/seed951563bd/distsync/redisbackend], on Redis, by go-redis
//   - [github.com/seed951563bd/distsync/valkeybackend], on Valkey or Redis, by valkey-go
//   - [github.com/seed951563bd/distsync/etcdbackend], on etcd
//   - [github.com/seed951563bd/distsync/postgresbackend], on PostgreSQL
//   - [github.com/seed951563bd/distsync/quorumbackend], on several independent ones of these
//   - [github.com/seed951563bd/distsync/membackend], in this process, for tests
//
// No other code depends on the store. The store's package says what it promises and needs.
//
// Lock with [Locker.Do]; with [Locker.Acquire], if the code can't be one function; with
// [Locker.TryLock], which doesn't wait; or with Lock and Unlock, for code that takes a sync.Locker.
// The context of a call, or [Wait], bounds its wait.
//
// # What is guaranteed
//
// A lock is held on a lease: the store frees it when the lease runs out, so that a holder that dies
// does not keep everybody out forever. While a program holds a lock, its client renews the lease
// each third of its length. [WithLease] sets the length, and [RenewedLease] that of one acquisition.
// A [FixedLease] isn't renewed.
//
// A lease does not guarantee that only one holder acts at any moment: a process that is paused for
// longer than its lease finds out only when it wakes. That takes fencing, a resource that refuses
// stale writers.
//
// This is guaranteed: if several clients believe that they hold the lock and each checks, at most
// one check succeeds. It assumes that the store keeps what it has acknowledged, that nobody forces
// the lock, and that clocks run at the same rate, to within 1 %. Clocks need not show the same time:
// a client counts its lease from before it sent the request, on the monotonic clock, and treats 99 %
// of it as safe. To check, call Err of the context that [Locker.Do] passed, or [Locker.IsHeld].
// Channels, and derived contexts, need a goroutine to run first. In a running process they tell when
// the lease is over at the latest, even if the store never answers again; just after a pause they
// may be a moment late. A loss is final: no late answer brings a hold back.
//
// A ForceUnlock can let a second holder in, and so can a store that forgets: a Redis that fails over
// to a replica that lags, or restarts without its data. The first holder is told at its next renewal
// or, with a [FixedLease], at the end of that. (If a failover forgets only a re-entry, that is
// noticed at the next unlock.) Where that is a disaster rather than a waste, let the resource itself
// refuse the stale writer.
//
// # Waiting
//
// The goroutines of a client that wait for one lock form a queue, first come first served. Only the
// first of them talks to the store, which tells it of releases. A lock that was taken a moment ago,
// and is renewed, is handed over to the next in the queue without asking the store, which is a
// thousand times faster. [WithHandover] bounds that, so that other processes get their turn, and says
// what it means for a lock that is forced elsewhere.
//
// A client that has given the lock back, and wants it again, lets the other waiting clients come
// first, each once, if the store can count them. It asks for their number along with the release. If
// there are none it doesn't wait, and if they don't come, only for a few milliseconds.
//
// Fair locks are different: all waiters stand in line in the store, see [Client.FairLocker].
//
// # Who owns a lock
//
// By default a Locker is like a mutex variable: one hold at a time, a second Lock waits, any
// goroutine may unlock. To re-enter a lock that you hold, name an owner: with [WithOwner] and
// [NewOwner], all calls with a context have one owner; [Locker.For] does it for code that takes a
// sync.Locker. The context of a [Hold], such as Do passes to fn, re-enters that lock. If a context
// names several, an owner or a hold of this lock, the innermost wins. [WithGoroutineOwners] is for
// code that was written for locks owned by threads.
//
// # Kinds of lock
//
//   - [Client.Locker] makes plain locks: one holder at a time.
//   - [Client.RWLocker] makes read-write locks, whose two sides are Lockers: any number of readers or one writer.
//   - [Client.FencedLocker] makes locks whose acquisitions are numbered, so that a resource can refuse
//     a holder that was paused for longer than its lease: [Token].
//   - [Client.FairLocker] makes locks that go to their waiters in order of arrival.
//   - [Client.Semaphore] makes semaphores, whose permits any number of holders share.
//   - [All] makes several locks one.
//   - [Client.Election] is a layer on fenced locks: [Election.Run] runs a function in one of all
//     candidates, and in another when that one ends.
//   - [Client.Once] runs a function once for each occasion, such as the hour for which every replica
//     starts it.
//   - [Client.Latch] makes count-down latches.
//
// Give locks of different kinds different names. If the store can tell a conflict, that is
// [ErrConflict].
//
// # Seen from outside
//
// A [Loss] says how a lock was lost; every error about it wraps one. [Client.Holds], [Client.Waits],
// [Client.Losses] and [Client.Stats] are what a client knows itself. [Locker.Holder],
// [Client.Inspect] and [Client.Locks] ask the store, which knows a holder by the id of its client,
// host and process by default, and a number. [WithTrace] has functions called as things happen. In
// the log ([WithLogger]) a warning needs somebody, info explains, and debug has each acquisition and
// release. If a program logs an error, a Hold or a Locker with log/slog, it has the same attributes:
// see [Error.LogValue].
//
// # When things go wrong
//
// A lost reply leaves it open whether a lock was taken or given back. No request is ever repeated
// blindly. The store knows every acquisition by its own number. An acquisition that nobody uses any
// more is released in the background, again and again until the store confirms it. A call returns
// when its context ends, even while the store hangs.
//
// Errors are an [*Error] that wraps [ErrNotAcquired], [ErrNotHeld], [ErrLost], [ErrClosed],
// [ErrConflict], [ErrUpgrade], [ErrTooMany], [ErrNoLimit], the error and cause of the context, or the
// store's: use [errors.Is]. A wait that ended also says why: with [ErrHeld] another has the lock, or
// too few permits are left; with [ErrUnavailable] the store couldn't say. Two methods return no
// error. Lock goes on trying, and panics only where that can't help. Unlock panics if the lock was
// never held, and logs if it was lost.
package dlock
