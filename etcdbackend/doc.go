// Package etcdbackend keeps distributed locks in etcd, by way of its v3 client, for those who cannot
// accept that a failover lets two in: every step is agreed on by a majority before it is answered.
//
//	cli, err := clientv3.New(clientv3.Config{Endpoints: []string{"localhost:2379"}})
//	client := dlock.New(etcdbackend.New(cli))
//
// # What is promised, and what is not
//
// Steps are linearizable. A lock has at most one owner while a majority of the members keeps its
// data, whichever of them die, and no clocks of different machines are compared. An etcd without a
// majority answers nothing: then nobody gets a lock, and holders lose theirs when their lease ends.
//
// As with every lock that ends by itself, a process that was stopped for longer than its lease
// may act before it notices. Where that matters pass on the fencing token and let what the lock
// guards compare it.
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
// its lease to run out, and the key with it. Whoever gives a hold back, or takes it away, revokes
// the lease after it has deleted the key: a request of that hold that comes late then fails.
//
// The fencing token is the revision in which the key was created.
//
// # Limits and costs
//
// etcd counts leases in whole seconds and keeps none for less than 2 s (with its default election
// timeout; if a server keeps them longer, so are the locks of a process that has died). It deletes what has run out up
// to a second late, and a leader that takes over begins all leases anew.
//
// To lock takes three round trips, a read and two writes, to find a lock held two reads, to unlock
// two writes. Waiting takes one stream and four goroutines for a client, whatever the number of names.
//
// Renewing takes a read for every 128 locks, and one message for each lock on a stream that all locks
// of a client share, of which the server handles one after the other. A leader takes some 30 µs for
// each; 10,000 locks are half a second every ten, at the default lease. A member that isn't the leader
// passes each message on by itself, and takes a round trip between the members for it: where that is
// 1 ms, 10,000 locks are 10 s, and need a longer lease.
//
// # Access
//
// The backend uses the client's connection directly: what is put in front of it, such as
// clientv3/namespace, is not used; [WithPrefix] does the same. With authentication on, the
// user needs permission to read and write the prefix.
package etcdbackend
