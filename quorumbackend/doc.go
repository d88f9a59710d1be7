// Package quorumbackend combines several independent stores into one store for distributed locks.
// The holder of a lock holds it in a majority of them. So no lock is lost when one store is lost,
// fails over, or is cut off.
//
//	b := quorumbackend.New(
//		redisbackend.New(redis.NewClient(&redis.Options{Addr: "10.0.0.1:6379"})),
//		redisbackend.New(redis.NewClient(&redis.Options{Addr: "10.0.1.1:6379"})),
//		redisbackend.New(redis.NewClient(&redis.Options{Addr: "10.0.2.1:6379"})),
//	)
//	client := dlock.New(b)
//	defer client.Close()
//
// The stores are servers that know nothing of each other: neither replicas of one server nor nodes
// of one cluster. They may be of any kind, and of different kinds. Every program that shares the
// locks must name the same stores, in the same order. Otherwise two programs may both hold a lock.
// Use three stores, or five to survive the loss of two. An even number works, but the extra server
// gains nothing. A majority of four is three, so four stores survive the loss of only one, as three
// do.
//
// This store supports plain locks and, if all of its stores do, read-write locks. Calls for other
// kinds fail with [errors.ErrUnsupported], for these reasons. The largest token in a majority
// doesn't always grow. The lines in several stores don't always agree on who is first. Permits in
// different stores can't be added up. Without fenced locks, dlock's Election doesn't work either.
// There are no latches, since a store that was down would open its latch late, or never. A released
// lock can't stay taken. So dlock's AtLeast and Once fail, and the adapters for gocron and cron
// need WithAtLeast(0).
//
// # What it protects against
//
// With a single Redis, a lock is as safe as that server. If the server is lost, its locks are gone.
// If a lagging replica takes over, two clients may hold the lock. Here such a store has only one
// vote of three. The same applies to a store that is cut off from some clients. The other two
// continue: held locks stay held, and free ones can be acquired. A lock is lost only when a
// majority of the stores no longer has it.
//
// # What it doesn't protect against
//
//   - A pause. If a process stops for longer than the lease, in a garbage collection or because the
//     machine is suspended, it has lost the lock, and may write once more before it looks at its
//     clock. Leases can't prevent that, in any store. A resource can, if it refuses late writers by
//     their fencing tokens (dlock's FencedLocker). But this store has no fencing tokens.
//
//   - Clocks that run at different speeds. Each store counts the lease on its own clock, and the
//     client relies on 99 % of it. A store whose clock jumps ahead loses its vote. If the clocks of
//     two stores jump within one lease, two clients may hold the lock.
//
//   - A store that restarts empty, or fails over to a replica that lags, within a lease. It grants
//     the lock a second time. That does no harm to a lock that all three stores have granted. But
//     perhaps only two have granted it, because the third was down or busy with another's attempt.
//     Then the lock isn't safe until its next renewal, when the third also grants it. So a store
//     without a disk must stay down after a crash for the longest lease that is used (30 s, unless
//     a program asks for more). The same is true of a store that writes to disk only every second.
//     With "appendfsync always" a restart is harmless. To delay the restart, set RestartSec= in the
//     systemd unit.
//
//   - Two stores that are down one after the other, without time for a renewal in between. If a
//     store comes back without a hold, the next renewal asks it for the hold again, after a third
//     of a lease at the latest. Before you restart the next server, wait until two thirds of a
//     lease have passed since the first came back. A lock with a fixed lease isn't renewed. If an
//     owner reads under its write, a store that lacks the read is asked for it again only after the
//     write has ended.
//
//   - A store that is much slower than the others. A new client doesn't know yet how slow it is,
//     and may release a lock before that store has carried out the acquisition. Then the client
//     releases that vote about 50 ms later. A call that asks that store first within these 50 ms
//     doesn't get the lock, and waits a little longer. If that call isn't allowed to wait, it is
//     told that another holds the lock. This never gives the lock to two owners, and stops once the
//     client has had an answer or two from that store.
//
//   - A forced unlock isn't atomic in several stores. A call that is just acquiring the lock may
//     not get it, although in the end no call holds it.
//
//   - A store that loses its data also loses the notes of waiting writers, which keep new readers
//     out. Only the store that is asked first has a writer's note, and it gets the note again when
//     the writer next asks.
//
//   - A read under a write. If a store has lost the write, a forced unlock of the write doesn't
//     free the read there. The read stays until its next renewal.
//
// # The debate
//
// This is the algorithm that Redis calls Redlock. Two experts argued about it in public in 2016,
// and both texts are worth reading.
//
// [Martin Kleppmann] says, in "How to do distributed locking": a lock is either for efficiency, so
// that work isn't done twice, or for correctness. For the first, one Redis is enough, and five are
// a waste. For the second, an algorithm must not depend on time: clocks jump, processes pause and
// packets are late. So the lock must come with a growing number that the resource checks. Redlock
// has no such number. If your resource checks such a number, you don't need Redlock, and if it
// doesn't, Redlock doesn't save you.
//
// [Salvatore Sanfilippo], who made Redis, says, in "Is Redlock safe?": the algorithm looks at the
// clock after it has obtained the majority, so it notices every delay before that moment. A delay
// after it, between the check and the write, is a problem of every lock with a lease, in any store.
// The clocks must run at about the same speed, but need not show the same time, and with some care
// that is possible. Most resources can't check numbers. For those, a lock that survives the loss of
// a server is better than one that doesn't.
//
// The two agree more than one would think. A lease is a promise about time. If a second writer
// would be a disaster, the resource must refuse it, and the lock only saves work. If a second
// writer would be bad, but is acceptable when it is rare, several stores make it rarer than one
// store does.
//
// # When to use etcd instead
//
// An etcd cluster decides by consensus, writes to disk before it answers, and numbers its
// changes. A member that restarts has forgotten nothing, and the backend for etcd supports all
// kinds of lock. If you run etcd, or can, use [github.com/seed951563bd/distsync/etcdbackend]. Use
// this package if you have several Redis or Valkey servers, or can have them cheaply, and need
// locks that survive the loss of one of them and are faster than a disk.
//
// # How it works
//
// A call for a plain lock that nobody else wants asks all stores at the same time. So an
// acquisition takes one round trip, and so does a release. If several clients did that again and
// again, their votes might be split, and none would have a majority. So when a store has refused
// the lock, or has told a release that others wait, the lock counts as contested for the next ten
// seconds. A call that waits looks again within that time, so the lock counts as contested for as
// long as the call waits. Read-write locks always count as contested, since the note of a waiting
// writer is in only one store.
//
// For a contested lock, a call asks one of the stores first. The lock's name decides which one, so
// that the load is spread. If that store grants the lock, the call asks all the others at the same
// time. So an acquisition takes two round trips. If the first store refuses, the call asks no other
// store for a vote. So if many clients want the lock, one of them gets all votes. If the first
// store is down or slow, the call asks the next store instead. A release frees the other stores
// first, and the first store last, since the waiters listen there. If that store dies, they listen
// at the next one. If it hangs without closing its connections, they notice that when they look
// again, within a third of a lease.
//
// A call waits for a store for four of that store's usual round trips, but at least 20 ms, and at
// most a second unless a majority of the stores is as slow. A store that doesn't answer in time is
// asked last during the next second. A call without a majority releases its votes at once, and
// doesn't wait for a store that hangs. If it had asked all stores at the same time, it then asks
// one of them first, as others do now.
//
// A session might release a lock in all stores at the same time although another client waits. If
// the first store is the fastest, that client is woken too early, and the other stores refuse it.
// Then it listens at one of these. A client that only watches the lock is told of each release a
// little later, when all stores have freed the lock.
//
// A single store that refuses doesn't block the lock. It may still have a hold that ended in the
// others, because it hung during the release, or because its clock stands still. So a call that the
// first store refused looks at the others, once a second at most. If the lock is free in them, and
// still is about 20 ms later, the call asks them without the first store. Readers do that only if
// the first store has a write, since the note of a waiting writer is in only one store. While one
// store has such an old hold, read-write locks change hands more slowly: their waiters look again
// only after a third of a lease.
//
// Each attempt has its own name in the stores: the owner's name, a dot and a number. So a late
// request of an old attempt can't be mistaken for one of the next attempt. The session releases the
// old attempt in the background, until the store has answered. The session counts the holder's
// re-entries, and in the stores a re-entry is a renewal. Renewals go to all stores at the same
// time, and succeed if a majority of them confirms the hold.
//
// After a renewal, a store may turn out to lack the hold, because it was down, refused it or lost
// it. The session then asks that store for the hold by the same name. When the store has granted
// it, its vote counts again. But the session remembers the gap until a majority of other stores has
// confirmed the hold later. If one of these other stores has also lost the hold, another client may
// have held the lock in that store and in the one with the gap. Then the hold has ended, although
// two stores have it now.
//
// [Martin Kleppmann]: https://martin.kleppmann.com/2016/02/08/how-to-do-distributed-locking.html
// [Salvatore Sanfilippo]: http://antirez.com/news/101
package quorumbackend
