// Package etcdbackend keeps distributed locks in etcd, with its v3 client. Use it if a failover
// must never let two owners hold a lock. etcd answers a step only after a majority of its members
// has agreed on it.
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
// Package [github.com/seed951563bd/distsync/dlock] describes what you can do with a lock. This page
// is about etcd. [New] takes the client that a program already has. That client logs each retry
// itself. To silence it, see "What client libraries log" in [docs/kubernetes.md].
//
// # What is promised, and what is not
//
// Steps are linearizable. A lock has at most one owner while a majority of the members keeps its
// data, whichever members die. Clocks of different machines aren't compared. An etcd without a
// majority doesn't answer. Then no lock can be acquired, and holders lose their locks when their
// leases end. Holders also lose their locks when all data is lost, or is restored from a snapshot.
// A holder that lost its lock in this way is notified at its next renewal, and its late requests
// don't affect a later owner's lock.
//
// If a member hangs, each request to it waits for a twelfth of the lease, but at least half a
// second and at most a second. Then another member is asked. Acquiring a lock takes up to three
// requests, so during a hang it usually takes two or three seconds longer. It can take still longer
// if many requests run at the same time, since a request may go to that member again. A waiter
// whose watch goes through that member notices within four seconds. Until the client notices the
// hang, it keeps sending some of its requests to that member. The DialKeepAliveTime of its
// configuration determines how long that takes (see [New]). If the leader hangs, the others elect a
// new one within about two seconds. No step is carried out until then, so a lock with a lease below
// five seconds may be lost.
//
// As with every lock that has a lease, a process that was stopped for longer than its lease may act
// before it notices. The guarded resource must tolerate such late requests, or refuse them.
//
// # Which etcd
//
// Use 3.6.5, 3.5.23 or later. Before 3.5.13 and 3.4.31, a leader whose disk hung could revoke
// leases that had been renewed at its successor. Then a valid lock is lost. Its holder is notified
// at its next renewal, up to a third of a lease after another owner may have acquired the lock.
// Before 3.6.5 and 3.5.23, a renewal could succeed at the moment at which the lease was revoked.
// Then the holder learns of the loss only at the renewal after that one.
//
// When a leader resumes after a pause of its whole process, for example of its virtual machine, it
// may revoke leases that were renewed at its successor during the pause. That can happen if the
// pause was longer than the remaining time of the lease. Version 3.6.15 did so after three of eight
// such pauses. Then a valid lock is also lost. Pauses shorter than two thirds of the lease do no
// harm. Restart a member that was paused for longer. If two holders would do harm, let the resource
// compare fencing tokens.
//
// A full store (NOSPACE) grants no locks, but renews and releases the locks that are held.
//
// # In etcd
//
// A lock is one key: a prefix, by default [DefaultPrefix], and the lock's name. Its value holds the
// owner and the owner's number of holds:
//
//	$ etcdctl get distsync/locks/orders:42
//	distsync/locks/orders:42
//	{"owner":"6ab0…:17","count":1}
//
// An owner that isn't valid UTF-8 is stored as "owner_base64" instead. If the key has a value of
// another form, a step changes nothing, and fails with [backend.ErrConflict].
//
// Each hold has its own etcd lease, to which the key is attached. If the process dies, the lease
// runs out, and etcd deletes the key. After a release, the client uses the lease for its next hold,
// if that begins within a few seconds, and otherwise revokes it. If a request of the hold is
// unanswered, the client revokes the lease before the release returns. A forced release also
// revokes it. So a late request fails. The client chooses the ids of leases, so it can revoke a
// lease even if the answer to the grant was lost.
//
// A fenced lock uses the same key, so it and a plain lock of that name exclude each other. Its
// token is the revision in which the key was created. etcd's revision grows with every write. After
// a loss of data, or a restored snapshot, tokens may be smaller than before.
//
// The writer of a read-write lock uses the lock's key, so that it and a plain lock of that name
// exclude each other. Each reader has its own key, which ends with the owner. The "kind" in a value
// tells writes from reads:
//
//	distsync/locks/prices
//	{"owner":"6ab0…:18","count":1,"kind":"write"}
//	distsync/locks/prices\x01read/6ab0…:19
//	{"owner":"6ab0…:19","count":1,"kind":"read"}
//
// A holder of permits also has its own key, with the number of its permits and the semaphore's
// limit:
//
//	distsync/locks/calls\x01permits/6ab0…:20
//	{"owner":"6ab0…:20","count":2,"kind":"permits","limit":10}
//
// A call that gives no limit uses the one that was given last. That is the limit in the key with
// the highest revision. But a renewal, which gives no limit, can also write a key. The value of
// such a key has another field, "said": the revision in which its limit was given. That revision
// counts instead of the key's. While no permits are held, there is no such key, so the limit is
// unknown.
//
// A waiter in line for a fair lock also has its own key. The order in which these keys were created
// is the line:
//
//	distsync/locks/report\x01line/6ab0…:21
//	{"owner":"6ab0…:21","kind":"line"}
//
// While the lock's own key doesn't exist, the first in line holds the lock for three seconds. In
// that time it creates the key, or releases the lock. So a release only has to delete a key, and
// the next in line sees that. If a waiter lost its place, because its client was silent for too
// long, its new key has "front", and the waiter comes first. But if the first in line holds the
// lock at that time, the returning waiter comes second. Then the fields "behind_rev" and
// "behind_front" of its key identify the place ahead of it.
//
// If the name of a lock looks like one of these keys, and the key exists, calls for that lock fail
// with [backend.ErrConflict].
//
// A lock that stays taken after its last release (AtLeast and Once of package dlock) belongs to an
// owner that no client uses: the former owner's name with a suffix. It has its own lease:
//
//	distsync/locks/report
//	{"owner":"6ab0…:22-kept","count":1}
//
// The client that released the lock revokes this lease when the time has passed. So the lock of a
// job that runs every second can stay taken for 900 ms. If the process has died or the client was
// closed by then, or if the time is longer than ten minutes, the lease runs out up to three seconds
// later.
//
// A client that waits for a lock has a key without a value. The key consists of the lock's key, a
// zero byte and a number. If the client dies, the key is deleted within about 15 s. A waiting
// writer leaves a note, so that later readers also wait. The note is a key like a reader's, with
// "waits" instead of "read". If the client dies, the note is deleted within about six seconds.
//
// # When a lock is free
//
// A released lock is free at once. The lock of a dead process is free when its etcd lease has run
// out, up to three seconds after the lock's own lease. There are three reasons. etcd counts leases
// in whole seconds, they are a second longer than the locks' leases, and etcd ends them up to a
// second late. With its default election timeout, etcd has no lease shorter than 2 s. A new leader
// restarts all leases, so each change of the leader can add a whole lease.
//
// If a process dies in line for a fair lock, its place ends when its time is over, or up to two
// seconds later. If the place ends before its turn, it delays nobody. If the place is still there
// at its turn, the waiters behind it, which look about once a second, pass it over after three
// seconds. If a hold runs out, the first in line gets the lock when etcd deletes the key.
//
// # Turns
//
// The backend knows only to the second whether a writer or a reader came first, unless the reader's
// client had already been told that the lock isn't free. If they came in the same second, the
// writer goes first.
//
// Waiting clients ask one after the other, in the order in which they began to wait. All of them
// are notified of a release, and each leaves the lock to the earlier ones for some milliseconds. A
// dead or unreachable waiter costs the others these milliseconds. A call that hasn't waited and
// finds the lock free may get it before them. After a write, all clients that tried to read are
// woken at once. When several permits are released, one waiter after the other is woken, as long as
// permits are left.
//
// # Costs
//
// Locking a free lock takes one round trip, and unlocking it another. Both are writes. A client's
// first lock after a pause of a few seconds takes three round trips: one to read the lock's keys,
// one to grant a lease, and one to lock. If the lease was used for another lock before, and is
// older than a second, the client also sends a keep-alive. A call that finds the lock held takes
// two round trips. Both are reads if the client knew that the lock was held.
//
// A release after which the lock stays taken takes three requests: one grants a lease, one
// releases, and one revokes the lease at the end.
//
// A read takes as many round trips as a plain lock. A write that finds up to 16 readers takes a
// request for each, to ask how long its lease lasts. A read that finds waiting writers takes such a
// request for each writer. Eight of these requests run at a time. A writer's note takes one more
// write.
//
// If no permits are acquired, a call takes one round trip, as for a lock. Otherwise the call looks
// at all permits, and then sends a request that takes effect only if none were granted since. If
// some were, the answer contains the current permits, and the call sends the request again. A call
// that finds too few permits asks for each of up to 16 holders how long its lease lasts. Counting
// the permits that are left takes such a request for each holder, eight at a time.
//
// A call for permits, or for a write, gets the keys of all holders. With 30,000 holders of permits,
// or as many readers, it gets 5 MB. The client's MaxCallRecvMsgSize doesn't apply to these answers.
// A forced release deletes all keys at once, and then revokes a lease for each, eight at a time.
// With so many holders, that can take longer than the call waits. Then its error says that the
// store has not answered, but the lock is free.
//
// Standing in line for a fair lock takes one request, and the release another. The release makes no
// other waiter send a request. A lock that is held for longer than a second takes a third request,
// its first renewal. The first waiter of a client also looks at the line and watches it, which
// takes two more requests. etcd sends each waiting process a message for each waiter that comes or
// leaves. To keep places, a client sends three requests a second for each name, however many of its
// calls wait: a keep-alive, a look at the whole line, and a question about how much longer the
// current hold lasts.
//
// With many waiting processes, six to eight requests are sent each time a lock that isn't fair
// changes hands, however many processes wait. Four of the requests are writes. Each time, etcd
// sends two messages to each waiting process. Waiting takes one stream and four goroutines for each
// client, however many names it waits for.
//
// Renewals take a read for every 128 locks, and one message for each lock. The messages go on a
// stream that all locks of a client share, and the server handles them one after the other. A
// leader takes about 30 µs for each. For 10,000 locks that is 0.3 s in every ten seconds, with
// the default lease. Another member passes each message on to the leader, with a round trip for
// each. If that takes 1 ms, 10,000 locks take 10 s, and need a longer lease. The client replaces
// the stream if no answer comes within a twelfth of the shortest lease whose renewal is unanswered.
// But it waits for at least half a second and at most a second.
//
// Inspecting a lock takes two round trips: the first reads all its keys, and the second asks how
// long each lease lasts, eight at a time. For each page, a list takes one read or more, two round
// trips for each lock of which only some keys would fit on the page, and a question for each lease.
// None of these requests is a write. For the first page the server counts all keys with the prefix,
// and blocks writes for a few tenths of a microsecond per key. Keys with other prefixes cost
// nothing.
//
// # Access
//
// The backend uses the client's connection directly, without wrappers such as clientv3/namespace.
// [WithPrefix] has the same effect. With authentication on, the user needs permission to read and
// write all keys with the prefix. A user with permission only for the keys of single locks can
// acquire these, but waits out of turn. It also doesn't notice readers, permits, or the line of a
// fair lock under that name, even if the first in line holds the lock. Read-write locks, semaphores
// and fair locks need permission for all keys that begin with the lock's key. To inspect a lock,
// the user needs permission to read all of these keys. To list locks, it needs permission to read
// all keys with the prefix of the list.
//
// [docs/kubernetes.md]: https://github.com/seed951563bd/distsync/blob/main/docs/kubernetes.md
package etcdbackend
