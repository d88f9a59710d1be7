// Package quorumbackend makes one store for distributed locks out of several independent ones: the
// holder of a lock has it in a majority of them. It keeps the locks when one store is lost, fails over,
// or is cut off.
//
//	b := quorumbackend.New(
//		redisbackend.New(redis.NewClient(&redis.Options{Addr: "10.0.0.1:6379"})),
//		redisbackend.New(redis.NewClient(&redis.Options{Addr: "10.0.1.1:6379"})),
//		redisbackend.New(redis.NewClient(&redis.Options{Addr: "10.0.2.1:6379"})),
//	)
//	client := dlock.New(b)
//	defer client.Close()
//
// The stores are servers that know nothing of each other: no replicas of one, no nodes of one cluster.
// They may be of any make, and of several. Every program that shares the locks must name the same
// stores, in the same order: otherwise two programs may both have a lock. Take three, or five to stand
// the loss of two. An even number works, but the last server gains nothing: a majority of four is
// three, so four stand the loss of one, as three do.
//
// It has plain locks and, if all of the stores do, read-write locks. Other kinds are refused, with
// [errors.ErrUnsupported]. The largest token of a majority need not grow, lines in several stores need
// not agree on the first, and permits in different stores don't add up. So there is no Election of dlock
// here. There are no latches: a store that was away would open its latch late, or never. A released lock
// can't stay taken: dlock's AtLeast and Once are refused, and the adapters for gocron and cron need
// WithAtLeast(0).
//
// # What it closes
//
// With a single Redis, a lock is as safe as that server. If it is lost, its locks are gone. If a replica
// takes over that lags, two may have the lock. Here a store that is lost, fails over to a replica that
// lags, or is cut off from some clients, has one vote of three. The other two go on: held locks stay
// held, and free ones can be had. A lock is lost only when a majority of the stores doesn't have it.
//
// # What it doesn't
//
//   - A pause. A process that stops for longer than the lease, in a garbage collection or because the
//     machine is suspended, has lost the lock, and may write once more before it looks at its clock. No
//     lease helps against that, in any store. A resource that refuses late writers does, by a fencing
//     token (dlock's FencedLocker), which this store doesn't have.
//
//   - Clocks that run at different speeds. Each store counts the lease on its own, and the client stops believing in it a
//     hundredth early. A store whose clock jumps ahead loses its vote. If two do within one lease, two may have the lock.
//
//   - A store that restarts empty, or fails over to a replica that lags, within a lease. It grants the
//     lock a second time. A lock that all three have granted stands that. A lock that only two have
//     granted, because the third was down or busy with another's attempt, doesn't, until its next
//     renewal has the third grant it, too. So a store without a disk must stay away after a crash for
//     the longest lease that is used (30 s, unless a program asks for more). So must one that writes to
//     disk every second: "appendfsync always" makes the restart harmless. Have the service manager wait
//     before it starts it again, with RestartSec= in a unit of systemd.
//
//   - Two stores that are away one after the other, without time for a renewal in between. A store
//     that is back without a hold is asked for it
//     again when that is renewed, after a third of a lease at the latest. Restart the next server
//     two thirds of a lease after that.
//     A lock whose lease is fixed isn't renewed, and what its owner reads under a write is asked
//     for again when the write is over.
//
//   - A store that is much slower than the others. A new client doesn't know yet how slow it is, and may
//     be done with a lock before that store has carried out the acquisition. It takes the vote back
//     about 50 ms later. A call that asks that store first meanwhile is refused: it waits a little
//     longer, or, if it doesn't wait, is told that another has the lock. Two never have it for that
//     reason. It ends once the client has had an answer or two from the store.
//
//   - A forced unlock isn't one step in several stores. A call that is just getting the lock may be
//     refused, though in the end nobody has it. The note of a waiting writer, which keeps new readers
//     out, is in the store that is asked first, and is lost with it until the writer asks again. If a
//     store has forgotten a write, the read under it stays there after a forced unlock of the write,
//     until its next renewal.
//
// # The debate
//
// This is the algorithm that Redis calls Redlock. Two experts argued about it in public in 2016, and
// both are worth reading.
//
// Martin Kleppmann ([How to do distributed locking]) says: a lock is either for efficiency, so that work isn't done twice, or for
// correctness. For the first, one Redis is enough, and five are a waste. For the second, an algorithm must not depend on time: clocks
// jump, processes pause and packets are late, so the lock must come with a number that grows, which the resource checks, and Redlock has none. If you have
// a resource that checks a number you don't need Redlock, and if you don't Redlock doesn't save you.
//
// Salvatore Sanfilippo, who made Redis ([Is Redlock safe?]), says: the algorithm looks at the clock after it has got the majority, so
// that what is late before that moment is noticed; what is late after it, a pause between the check and the write, hits every lock with a
// lease, whatever keeps it. It needs clocks that run at about the same speed, not ones that show the same time, and that can be had with some care.
// Most resources can't check numbers, and for those a lock that survives the loss of a server is better than one that doesn't.
//
// They agree on more than it seems. A lease is a promise about time. If a second writer would be a
// disaster, the resource must refuse it, and the lock only saves work. If it would be bad, and rare is
// good enough, several stores make it rarer than one.
//
// # When to take etcd
//
// A cluster of etcd decides by consensus, writes to disk before it answers, and numbers its changes. A
// member that restarts has forgotten nothing, and it has all kinds of lock. If you run one, or can,
// take [github.com/seed951563bd/distsync/etcdbackend]. Take this if you have several Redis or Valkey
// servers, or can have them cheaply, and need locks that outlive each of them, faster than a disk.
//
// # How it works
//
// One of the stores is asked first. The lock's name decides which, so that load is spread. If it says
// yes the others are asked at once: two round trips. If it says no, no other is asked for a vote; so of
// many that want the lock one gets all the votes, and they don't split them. If it is down, or takes
// longer than 20 ms and four of its usual round trips, the next is asked first, and it is left for last
// for a second. A call without a majority gives its votes back at once, and doesn't wait for a store
// that hangs. A release frees the other stores first, and the first store last, since waiters listen
// there. If that dies meanwhile they listen at the next. If it hangs without closing its connections,
// they notice when they look again, within a third of a lease.
//
// A store that says no alone keeps nobody out. It may have a leftover: it hung during a release, or its
// clock stands still. So a refused call looks at the others, once a second at most. If they are free,
// and still are about 20 ms later, they are asked without it. For readers that is done only if that
// store has a write, since the note of a waiting writer is in one store alone. With a leftover in one
// store, read-write locks change hands more slowly: their waiters look after a third of a lease.
//
// Each attempt has a name of its own in the stores: the owner's, with a dot and a number. So a late
// request of an old attempt can't be taken for the next one; it is given back in the background until
// the store has answered. The session counts the holder's re-entries; a re-entry is a renewal in the
// stores. Renewals go to all stores at once, and hold if a majority says so.
//
// A store that then lacks a hold, because it was down, refused it or lost it, is asked for it again, by
// the same name. From its answer on it counts again. That it lacked the hold is remembered until other
// stores, a majority by themselves, have confirmed it since. If one of them has lost it, too, another
// may have had the lock in these two, and the hold is over, although two have it now.
//
// [How to do distributed locking]: https://martin.kleppmann.com/2016/02/08/how-to-do-distributed-locking.html
// [Is Redlock safe?]: http://antirez.com/news/101
package quorumbackend
