// Package etcdbackend keeps distributed locks in etcd, by way of its v3 client. Use it if a failover
// must not let two in: a majority agrees on every step before it is answered.
//
//	cli, err := clientv3.New(clientv3.Config{Endpoints: []string{"localhost:2379"}})
//	if err != nil {
//		return err
//	}
//	client := dlock.New(etcdbackend.New(cli))
//	defer client.Close()
//
//	err = client.Locker("orders:42").Do(ctx, func(ctx context.Context) error {
//		return ship(ctx, 42) // nobody else is in here; ctx ends if the lock is lost
//	})
//
// Package [github.com/seed951563bd/distsync/dlock] says what you can do with a lock. This page is about
// etcd. [New] takes the client that a program already has.
//
// # What is promised, and what is not
//
// Steps are linearizable. A lock has at most one owner while a majority of the members keeps its
// data, whichever of them die. Clocks of different machines aren't compared. An etcd without a
// majority answers nothing: then nobody gets a lock, and holders lose theirs when their lease ends.
// They also lose them when all data is lost, or set back to a snapshot. Such a former holder is told
// at its next renewal, and doesn't touch another's later lock.
//
// A member that hangs delays its clients by a twelfth of their lease, from half a second to five,
// before they ask another; a release by a second at most. The client asks it in its turn until it
// notices, by DialKeepAliveTime of its configuration: see [New]. If the leader hangs, the others choose
// another within about two seconds, and no step is done until then: a lease below five seconds may be
// lost.
//
// As with every lock that ends by itself, a process that was stopped for longer than its lease may act
// before it notices. The guarded resource must bear that, or refuse it.
//
// # Which etcd
//
// 3.6.5, 3.5.23 or later. Before 3.5.13 and 3.4.31 a leader whose disk was stuck could revoke leases
// that were renewed with its successor. Then a good lock is lost, and its holder is told at its next
// renewal, up to a third of a lease after another may have got it. Before 3.6.5 and 3.5.23 a lease
// could seem to be renewed at the moment of its revocation, which is noticed a renewal later.
//
// A leader whose whole process stands still, as in a paused virtual machine, and then goes on, may
// revoke leases that were renewed with its successor meanwhile, if it stood still for longer than the
// rest of them. Version 3.6.15 did so in three of eight such pauses. The consequence is the same.
// Pauses shorter than two thirds of the lease do no harm. Restart a member that stood still for
// longer. If two holders would do harm, have the resource compare fencing tokens.
//
// A full store (NOSPACE) grants no locks, but renews and releases held ones.
//
// # In etcd
//
// A lock is one key: a prefix, by default [DefaultPrefix], and the lock's name. Its value has the owner
// and the number of its holds:
//
//	$ etcdctl get distsync/locks/orders:42
//	distsync/locks/orders:42
//	{"owner":"6ab0…:17","count":1}
//
// An owner that is not UTF-8 is kept as "owner_base64" instead. Other values are left alone, and
// reported as [backend.ErrConflict].
//
// Each hold has an etcd lease of its own, to which the key is attached. If the process dies, its lease
// runs out, and the key with it. When a hold is given back, its lease serves the client's next hold
// within some seconds, and is revoked otherwise. If a request of that hold has no answer, the lease is
// revoked before the release is answered; a force revokes it, too. So a late request fails. The client
// chooses the ids of leases, so that none is left unknown.
//
// A fenced lock is the same key: each excludes the other. Its token is the revision in which the key
// was created, and so grows with every write to this etcd. After a loss of data, or a restored
// snapshot, tokens begin again with smaller ones.
//
// A writer has the key of a read-write lock, so that it and a plain lock of that name exclude each
// other. Each reader has a key of its own, which ends with its owner. "kind" in their values tells them
// apart:
//
//	distsync/locks/prices
//	{"owner":"6ab0…:18","count":1,"kind":"write"}
//	distsync/locks/prices\x01read/6ab0…:19
//	{"owner":"6ab0…:19","count":1,"kind":"read"}
//
// A holder of permits has a key of its own, too, with their number and how many there are:
//
//	distsync/locks/calls\x01permits/6ab0…:20
//	{"owner":"6ab0…:20","count":2,"kind":"permits","limit":10}
//
// For a call that doesn't say how many there are, the latest of these numbers counts: by the revision
// of its key, or by "said", in which a renewal notes that revision. So the number is unknown when no
// permit is taken.
//
// A waiter in line for a fair lock has a key there as well, and the order of their creation is the
// line:
//
//	distsync/locks/report\x01line/6ab0…:21
//	{"owner":"6ab0…:21","kind":"line"}
//
// While the lock's own key is free, the first in line has the lock, for three seconds, in which it
// takes that key, or is done. So a release deletes a key, and the next in line sees it. A waiter that
// lost its place, because its client was silent for too long, comes back with "front", and comes first;
// but behind the one that has the lock then as the first in line ("behind_rev", "behind_front").
//
// A lock whose name continues like these keys gets [backend.ErrConflict] if it would be in the way.
//
// A lock that stays taken after its last release (AtLeast and Once of package dlock) belongs to an owner
// that nobody is, with the former's name and a suffix, on a lease of its own:
//
//	distsync/locks/report
//	{"owner":"6ab0…:22-kept","count":1}
//
// The client that gave it back revokes that lease when the time is over: so a job that runs every
// second can be kept for 900 ms. If its process dies before, or the client is closed, or the time is
// longer than ten minutes, the lease runs out by itself, up to three seconds later.
//
// A client that waits for a lock keeps an empty key beside it: the lock's key, a zero byte and a
// number. It goes within about 15 s when the client dies. A waiting writer leaves a note, so that later
// readers wait, too: a key like a reader's, with "waits" instead of "read". It goes within about six
// seconds when the client dies.
//
// # When a lock is free
//
// A released lock is free at once. The lock of a dead process is free when its lease has run out, up
// to three seconds after the lock's own time: etcd counts leases in whole seconds, they are a second
// longer than their locks, and etcd deletes them up to a second late. With its default election
// timeout it keeps no lease for less than 2 s. A new leader begins all leases anew, so each change of
// the leader can add a whole lease.
//
// A process that dies in line for a fair lock delays the others by up to two seconds more than a place
// lasts, or not at all if its place ends before its turn. If it dies just at its turn, the next waiters,
// which look about each second, pass it over after three seconds. A hold that runs out goes to the first
// in line when etcd deletes its key.
//
// # Turns
//
// Whether a writer or a reader came first is known to a second, unless the reader's client was told
// before that the lock isn't free. Of two in the same second the writer goes first.
//
// Waiters are woken one at a time, in the order in which their clients began to wait: all are told of a
// release, and each leaves the lock for some milliseconds to earlier ones. A dead or unreachable waiter
// costs the others these milliseconds. A call that finds the lock free without waiting may come in
// between. After a write, all clients that tried to read are woken at once. When several permits come
// back, the next in line is woken as long as some are left.
//
// # Costs
//
// Locking a free lock takes one round trip, and unlocking it another; both are writes. A client's first
// lock after a pause of some seconds takes three: a look, a lease, and the lock. If the lease has
// served another lock before, and is older than a second, a keep-alive goes with it. Finding a lock held
// takes two round trips, both reads if it was held when last seen.
//
// Keeping a released lock taken takes a lease, the release itself, and a request that ends it.
//
// A read takes as many round trips as a plain lock. Finding up to 16 other readers, or waiting writers,
// takes a request for each of them, eight at a time. A writer's note takes one more write.
//
// Free permits take one round trip, as a lock. While some are taken, a call looks at all of them, and
// then sends a request that compares that none were granted since; one more each time that some were.
// Finding too few takes a request for each of up to 16 holders, and counting the rest one for each
// holder, eight at a time.
//
// Answers contain all keys of a lock: with 30,000 permits taken, or as many readers, each call gets
// 5 MB. The client's MaxCallRecvMsgSize doesn't apply. A force deletes all keys at once, and then
// revokes a lease for each, eight at a time. With so many that can take longer than the call waits:
// its error says then that the store has not answered, and the lock is free.
//
// Standing in line for a fair lock takes a request, and the release another; nobody else sends anything.
// A lock that is held for longer than a second takes a third, its first renewal. A client's first waiter
// looks at the line and watches it, which is two more. Each waiting process is sent a message for each
// waiter that comes or leaves. Places are kept by a message, a look at the whole line, and a question
// for the rest of the present hold, each second for a client and name, however many wait there.
//
// With many waiting processes, a turn of a lock that isn't fair takes six to eight requests, whatever
// their number: four of them are writes. Each waiting process is sent two messages a turn. Waiting takes
// one stream and four goroutines for a client, whatever the number of names.
//
// Renewing takes a read for every 128 locks, and one message for each lock on a stream that all locks
// of a client share, of which the server handles one after the other. A leader takes some 30 µs for
// each; 10,000 locks are half a second every ten, at the default lease. Another member passes each
// message on by itself, with a round trip between the members: if that is 1 ms, 10,000 locks are 10 s,
// and need a longer lease. The stream is replaced after silence for a twelfth of the shortest lease
// that waits for an answer, or five seconds.
//
// Inspecting a lock takes two round trips: all its keys are read at once, and then each lease is asked
// for its rest, eight at a time. A list takes a read and a look for each page, and a question for each
// lease. None of that is a write. At the first page the server counts all keys with the prefix, and
// lets nobody write meanwhile: some tenths of a microsecond for each. Keys with other prefixes cost
// nothing.
//
// # Access
//
// The backend uses the client's connection directly, without wrappers such as clientv3/namespace;
// [WithPrefix] does the same. With authentication on, the user needs permission to read and write the
// prefix. A user with permission for the keys of single locks gets these, but waits out of turn, and
// doesn't notice readers, permits, or the line of a fair lock under that name, whose first may be
// inside: these need permission for all keys that begin with the lock's. So does inspecting a lock, to
// read them. Listing locks needs permission to read all keys with the prefix of the list.
package etcdbackend
