// Package etcdbackend keeps distributed locks in etcd, by way of its v3 client, for those who cannot
// accept that a failover lets two in: every step is agreed on by a majority before it is answered.
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
// What one can do with a lock is in package [github.com/seed951563bd/distsync/dlock], and what follows is
// about etcd. [New] takes the client that a program has already, for whatever else.
//
// # What is promised, and what is not
//
// Steps are linearizable. A lock has at most one owner while a majority of the members keeps its
// data, whichever of them die, and no clocks of different machines are compared. An etcd without a
// majority answers nothing: then nobody gets a lock, and holders lose theirs when their lease ends.
// So do they when all data is lost, or set back to a snapshot: a former holder does not touch what
// another has taken since, but is told only when it next renews.
//
// A member that hangs costs those who ask it a twelfth of their lease, from half a second to five,
// before they ask another; a release costs a second at the most. The client asks it in its turn until
// it has noticed, which is what DialKeepAliveTime of its configuration is for: see [New]. If it was
// the leader that hangs, the others choose another within two seconds or so, and nothing is done until
// then: a lease of less than five seconds may be lost.
//
// As with every lock that ends by itself, a process that was stopped for longer than its lease
// may act before it notices. What the lock guards has to bear that, or find it out by itself.
//
// # Which etcd
//
// 3.6.5, 3.5.23 or later. Before 3.5.13 and 3.4.31 a leader whose disk was stuck could revoke leases
// that were renewed with its successor: a lock is lost then that was in order, and its holder told at
// its next renewal, up to a third of a lease after another may have got it. Before 3.6.5 and 3.5.23
// a lease could seem to be renewed in the moment in which it was revoked, and that is noticed a renewal later.
//
// A leader whose whole process stands still, as in a virtual machine that is paused, and then goes on,
// may revoke leases that were renewed with its successor meanwhile, if it stood still for longer than was
// left of them. Version 3.6.15 did so in three of eight such pauses. Then, too, a lock is lost that was in
// order, and its holder told up to a third of a lease after another may have got it. Pauses shorter than
// two thirds of the lease do no harm. Restart a member that stood still for longer, rather than
// let it go on; and where two holders would do harm, have what the lock guards compare fencing tokens.
//
// A store that is full (NOSPACE) gives no locks, but renews and releases those that are held.
//
// # In etcd
//
// A lock is one key: a prefix, by default [DefaultPrefix], and the lock's name. Its value says who
// has it, and how often:
//
//	$ etcdctl get distsync/locks/orders:42
//	distsync/locks/orders:42
//	{"owner":"6ab0…:17","count":1}
//
// An owner that is not UTF-8 is kept as "owner_base64" instead. What doesn't look like that is
// left alone, and reported as [backend.ErrConflict].
//
// Each hold has an etcd lease of its own, to which the key is attached. A process that dies leaves
// its lease to run out, and the key with it. When a hold is given back its lease serves the next one of
// this client, if that comes within some seconds, and is revoked otherwise. It is revoked before the
// release is answered if a request of that hold has no answer, and by whoever takes the lock away:
// a request that comes late then fails. Ids of leases are chosen by the client, so that none is left
// which nobody knows of.
//
// A fenced lock is the same key: each excludes the other. Its token is the revision in which the key was created,
// and so grows with all that is written to this etcd. One that was set back to a snapshot, or has lost its data, begins
// again with smaller ones.
//
// Whoever writes has the key of a read-write lock, so that a plain lock of that name and this one exclude each other, too; and
// each reader a key of its own, which ends with its owner. "kind" in their values says which is which:
//
//	distsync/locks/prices
//	{"owner":"6ab0…:18","count":1,"kind":"write"}
//	distsync/locks/prices\x01read/6ab0…:19
//	{"owner":"6ab0…:19","count":1,"kind":"read"}
//
// Whoever has permits of a semaphore has a key of its own, too, with their number and how many there are:
//
//	distsync/locks/calls\x01permits/6ab0…:20
//	{"owner":"6ab0…:20","count":2,"kind":"permits","limit":10}
//
// Who doesn't say how many there are is given as many as was said last of these: in the revision in which that was written, or which a renewal that wrote it again has noted as "said". So nobody knows when none is out.
//
// Who stands in line for a fair lock has a key there as well, and the order is that in which these were created:
//
//	distsync/locks/report\x01line/6ab0…:21
//	{"owner":"6ab0…:21","kind":"line"}
//
// While nobody has the lock's own key the first in line has the lock, for three seconds, in which it takes that key, or is done. So a release
// deletes a key and says nothing, and who is next sees it. Who has lost his place, since nothing was heard of his client for
// as long as places last, and comes back, says so with "front", and comes first; but behind whoever has the lock then as the first in line ("behind_rev",
// "behind_front").
//
// A lock whose name goes on as these keys do is another, and gets [backend.ErrConflict] where it would be in the way.
//
// What is kept when its last owner has given it back (AtLeast and Once of package dlock) is held by
// an owner that nobody is, with the former's name and a word more, on a lease of its own:
//
//	distsync/locks/report
//	{"owner":"6ab0…:22-kept","count":1}
//
// The client that has given it back revokes that lease when the time is over: so a job that is done
// every second can be kept for 900 ms. If its process dies before, or the client is closed, or the
// time is longer than ten minutes, the lease runs out by itself, up to three seconds later.
//
// A client that waits for a lock keeps an empty key beside it: the lock's key, a zero byte and a
// number. It goes within some 15 s when the client dies. One that waits to write leaves a note, so that those who come after
// it to read wait, too: a key like a reader's, with "waits" instead of "read". It goes within some six seconds when the client
// dies.
//
// # When a lock is free
//
// A lock that is released is free at once. That of a process that died is free when its lease has run
// out, up to three seconds after the lock's own time: etcd counts leases in whole seconds, they are a
// second longer than their locks, and what has run out is deleted up to a second late. It keeps none
// for less than 2 s, with its default election timeout; where a server keeps them longer, so are the
// locks of a process that died. A leader that takes over begins all leases anew, so that this can be
// a whole lease later for every change of the leader.
//
// A process that died as it stood in line for a fair lock costs those behind it up to two seconds more than a place lasts, or nothing if it
// wasn't its turn before that was over. Who died just when it was its turn is passed over after three seconds by whoever waits behind it, who looks about each second. A
// hold that runs out goes to the first in line when etcd deletes its key.
//
// # Turns
//
// Whether a writer or a reader has come first is known to a second, if the reader's client was not told before that the lock
// isn't free; of two in the same second the writer goes first.
//
// Those who wait are woken one at a time, in the order in which their clients began to wait: all are told of
// a release, and each leaves the lock for some milliseconds to those who came before. Who died while it
// waited, or can't be reached, costs the others these milliseconds. Who doesn't wait but asks when the
// lock happens to be free may come in between. When somebody has written
// those clients are woken at once that have tried to read, since any number may. When several permits come back the next in
// the line is woken as long as some are left.
//
// # Costs
//
// To lock what nobody else has takes one round trip, and to unlock it another; both are writes. The
// first lock of a client after a pause of some seconds takes three: a look, a lease, and the lock.
// Where the lease has served another lock before, and is older than a second, a keep-alive goes with
// it. To find a lock held takes two round trips, both reads if it was held when last seen.
//
// To keep what is released takes a lease, the request that a release is, and another that ends it.
//
// To read takes as many round trips as to have a lock alone. To find that up to 16 others read, or wait to write, takes a request
// for each of them, eight at a time. A writer's note takes one write more.
//
// Permits that nobody has take one round trip, as a lock. While some are out it takes a look at all of them, and then the request that compares that
// none were given since; one more each time that some were. To find too few takes a request for each of up to 16
// who have some, and to say how many are left one for each of them all, eight at a time.
//
// Answers are as long as what there is of a lock: 30,000 permits that are out, or as many readers,
// are 5 MB for each who asks for another. The client's MaxCallRecvMsgSize doesn't apply. To force
// them revokes a lease for each, eight at a time.
//
// To stand in line for a fair lock takes a request, and when it is its turn a release is another; nobody else sends anything. A lock that is
// held for longer than a second takes a third when it is renewed first. The first of a client who waits looks at the line, and watches it, which is two more; each process
// that waits is sent a message for each who comes, and for each who leaves. Places are kept by a message, a look at the
// whole line, and a question for what is left of the present hold, each second for a client and name, however many wait there.
//
// Where many processes wait for a lock that isn't fair, a turn takes six to eight requests, however many they are: four of them are
// writes. Each process that waits is sent two messages for each turn. Waiting takes one stream and four
// goroutines for a client, whatever the number of names.
//
// Renewing takes a read for every 128 locks, and one message for each lock on a stream that all locks
// of a client share, of which the server handles one after the other. A leader takes some 30 µs for
// each; 10,000 locks are half a second every ten, at the default lease. A member that isn't the leader
// passes each message on by itself, and takes a round trip between the members for it: where that is
// 1 ms, 10,000 locks are 10 s, and need a longer lease. The stream is replaced if nothing is heard on
// it for a twelfth of the shortest lease of those who wait for an answer, or five seconds.
//
// To see who has a lock takes two round trips: all that there is of it is read at once, and then each lease is asked for how long it lasts, eight
// at a time. To list locks takes a read and a look for each page, and a question for each lease. None of that is a write. The server counts all keys that
// begin as the names asked for do when the first page is read, and lets nobody write meanwhile: that is some tenths of a microsecond for each. What has another
// prefix costs nothing.
//
// # Access
//
// The backend uses the client's connection directly: what is put in front of it, such as
// clientv3/namespace, is not used; [WithPrefix] does the same. With authentication on, the
// user needs permission to read and write the prefix. Who has it for the keys of single locks only gets these, but waits out
// of turn, and doesn't notice that the name is read as a read-write lock, or is a semaphore, or has a line of those who wait for it as a fair lock, of whom the
// first may be inside: all these need permission for all keys that begin with the lock's. So does who wants to see who has a lock, to read them; and to
// list locks takes permission to read all keys that begin as the names asked for do.
package etcdbackend
