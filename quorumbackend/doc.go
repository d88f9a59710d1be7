// Package quorumbackend makes one store for distributed locks out of several independent ones: a lock is held where a majority
// of them says so. It keeps the locks when one store is lost, fails over, or is cut off.
//
//	b := quorumbackend.New(
//		redisbackend.New(redis.NewClient(&redis.Options{Addr: "10.0.0.1:6379"})),
//		redisbackend.New(redis.NewClient(&redis.Options{Addr: "10.0.1.1:6379"})),
//		redisbackend.New(redis.NewClient(&redis.Options{Addr: "10.0.2.1:6379"})),
//	)
//	client := dlock.New(b)
//	defer client.Close()
//
// The stores are servers that know nothing of each other: no replicas of one, no nodes of one cluster. They may
// be of any make, and of several. Every program that shares the locks must name the same stores, in the same
// order: programs that differ in that may both have a lock. Take three, or five to stand the loss of two. An even number works, and costs a
// server that buys nothing: a majority of four is three, so that four stand the loss of one, as three do.
//
// It has plain locks and, if all of the stores do, read-write locks. Other kinds are refused, with an error that is
// [errors.ErrUnsupported]: the largest of the tokens that a majority has given need not grow, lines in several
// stores need not agree on who is first, and permits that are out in different stores don't add up. So there is no Election of
// dlock here. Nor are there latches: each store would count down by itself, and one that was away
// for a while would open its latch later than the others, or never. Nor does it
// keep what is released: dlock's AtLeast and Once are refused in the same way, and the adapters for gocron and cron need WithAtLeast(0).
//
// # What it closes
//
// With a single Redis, a lock is as safe as that server. If it is lost its locks are gone; and if a replica takes over that
// hasn't heard of the last of them, two have the lock. Here a store that is lost, fails over to a replica that lags, or is cut off
// from some of the clients, has one vote of three, and the other two go on: what was held
// is held, and what is free can be had. A lock is lost only when a majority of the stores doesn't have it any more.
//
// # What it doesn't
//
//   - A pause. Whoever stops for longer than the lease, in a garbage collection or because the machine is suspended, has lost the lock,
//     and may write once more before looking at its clock. No lease helps against that, in whatever store. What helps is a
//     resource that refuses those who come late: a fencing token, see dlock's FencedLocker, which is not to be had here.
//
//   - Clocks that run at different speeds. Each store counts the lease on its own, and the client stops believing in it a
//     hundredth early. A store whose clock jumps ahead loses its vote. If two do within one lease, two may have the lock.
//
//   - A store that restarts empty, or fails over to a replica that lags, within a lease. It says yes to the next who asks, though it has
//     said yes already. A lock that all three have granted stands that; one that only two have granted, because the third was down or
//     held up by somebody else's attempt, doesn't, until its next renewal: that has the third grant
//     it, too. So a store that keeps nothing on disk
//     must stay away after a crash for as
//     long as the longest lease that is used (30 s, unless a program asks for more), and so must one that writes to disk every
//     second: "appendfsync always" is what makes the restart harmless. Have the service manager wait before it starts it again, as
//     RestartSec= does in a unit of systemd.
//
//   - Two stores that are away one after the other, without time for a renewal in between. A store
//     that is back without a hold is asked for it
//     again when that is renewed, after a third of a lease at the latest. Restart the next server
//     two thirds of a lease after that.
//     A lock whose lease is fixed isn't renewed, and what its owner reads under a write is asked
//     for again when the write is over.
//
//   - A store that is much slower than the others. A client that has just begun doesn't know yet how slow it is, and may be done with a lock before
//     that store has carried out the acquisition. It takes the vote back some 50 ms later. Whoever asks that store first meanwhile
//     is refused: he waits a little longer, and one who doesn't wait is told that another has the lock. No two have it for that. It is over once
//     the client has had an answer or two from the store.
//
//   - A forced unlock isn't one step in several stores. Whoever is just getting the lock may be refused, though in the end nobody has it. And
//     the note of a writer who waits, which keeps new readers out, is in the store that is asked first, and is lost with it until he asks again.
//     Where a store has forgotten a write, what its owner reads under it stays there after a forced unlock of the write, until his next renewal.
//
// # The debate
//
// This is the algorithm that Redis calls Redlock. Two people who know what they are talking about have quarrelled about it in public, in 2016, and
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
// They agree on more than it seems. A lease is a promise about time. Where a second writer would be a disaster, the resource must refuse it itself,
// and then the lock is there to save work. Where it would be bad, and rare is good enough, several stores make it rarer than one.
//
// # When to take etcd
//
// A cluster of etcd decides by consensus, writes to disk before it answers, and numbers its changes: a member that restarts has forgotten
// nothing, and the fenced, fair and counted kinds are all there. If you run one, or can, take [github.com/seed951563bd/distsync/etcdbackend]
// with it instead of this. Take this if you have several Redis or Valkey servers, or can have them cheaply, and need locks that
// outlive each of them, faster than a disk is.
//
// # How it works
//
// One of the stores is asked first: which, is a matter of the lock's name, so that load is spread.
// If it says yes the others are asked at once: two round trips. If it says no nobody else is asked
// for a vote; so of many who want the lock one gets all the votes, and they don't split them. If it
// is down, or takes longer than 20 ms and four of its usual round trips, the next is asked first,
// and it is left for last for a second. Whoever gets no majority gives back at once what he has
// got, and doesn't wait with it for a store that hangs. A release frees the others first, and that
// which is asked first last: those who wait listen there. If it dies meanwhile they listen at the
// next; one that hangs without closing its connections is noticed when they look again, after a
// third of a lease at the latest.
//
// A store that says no alone keeps nobody out. It may have what nobody uses: it hung while that was
// released, or its clock stands still. So whoever it refuses looks at the others, once a second at
// the most. If they are free, and still are some 20 ms later, they are asked without it. For
// readers that goes only if that store has a write, since the note of a writer who waits is in one
// store alone. Read-write locks of which a store has a leftover change hands more slowly for as
// long: whoever waits there looks after a third of a lease.
//
// Each attempt has a name of its own in the stores: the owner's, with a dot and a number. So what a store carries out late, of an
// attempt that is over, can't be taken for the next one; and it is given back in the background until the store has answered. How often the holder has
// the lock is counted in its session; a re-entry is a renewal in the stores. Renewals go to all stores at once, and hold if a majority says so.
//
// A store that lacks a hold then, since it was down, refused it or has lost it, is asked for it
// again, by the same name. From its answer on it counts again. But that it has lacked the hold is
// remembered until others, a majority by themselves, have said since then that they have it: if one
// of them has lost it, too, then another may have had the lock in these two, and the hold is over,
// although two have it now.
//
// [How to do distributed locking]: https://martin.kleppmann.com/2016/02/08/how-to-do-distributed-locking.html
// [Is Redlock safe?]: http://antirez.com/news/101
package quorumbackend
