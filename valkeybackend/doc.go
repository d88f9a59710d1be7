// Package valkeybackend keeps distributed locks in Valkey, or in Redis, with the client valkey-go:
// on a single server, behind Sentinel, or in a cluster.
//
//	vk, err := valkey.NewClient(valkey.ClientOption{InitAddress: []string{"localhost:6379"}})
//	if err != nil {
//		return err
//	}
//	client := dlock.New(valkeybackend.New(vk))
//	defer client.Close()
//
//	err = client.Locker("lock:orders:42").Do(ctx, func(ctx context.Context) error {
//		return ship(ctx, 42) // nobody else is in here; ctx ends if the lock is lost
//	})
//
// Package [github.com/seed951563bd/distsync/dlock] describes the locks. This page is about Valkey.
// [New] takes the client that a program already has.
//
// # What is promised, and what is not
//
// While the server keeps its data and its clock doesn't jump, Valkey records at most one owner of a
// lock. A client that was paused may still believe that it holds the lock. See package dlock. Every
// step is one script, which the server runs atomically. Leases are durations, and a client never
// compares its clock with the server's. But Valkey itself expires keys by its wall clock, and so
// does a replica that is promoted. So the clocks of a master and its replicas must agree, and must
// not be stepped.
//
// If a server loses its data, a second owner can get the lock while the first still believes that
// it holds it. The first client learns of the loss at its next renewal or, if its lease is fixed,
// at the end of the lease. A server that evicts keys (maxmemory-policy) evicts locks.
//
// If a server's memory is full, and it evicts nothing, it grants no locks. It still renews and
// releases the locks that are held.
//
// # Names are keys
//
// A lock's name is its key, so it must not be the key of other data. A step doesn't change other
// data. It fails with [backend.ErrConflict] if the key is not a hash, or is a hash that has no
// expiry and contains more than an owner and a count. If other data is a hash with an expiry, a
// waiter mistakes it for a lock, and waits until it is gone. A forced unlock deletes only a key
// that looks like a lock and expires. Names like lock:orders:42, or [WithPrefix], avoid all of
// that.
//
// # Kinds of lock
//
// A fenced lock is a plain lock with one more key, which stores the last token and never expires. A
// read-write lock is a hash with a mode and its holders, a key for each reader that expires with
// its lease, and a hash with the notes of waiting writers.
//
// A fair lock is a plain lock with a list of its waiters, and two sorted sets with their times. A
// script that frees the lock, or finds it free, gives it to the first waiter for a second, and
// sends a message to the waiter's client. To keep the places of all its waiters, a client runs one
// script per second. That script also returns the server's time. With it, the client can tell by
// its own clock when the server gave it the lock. If the server's clock is set forward between that
// script and the grant, the client may rely on the lock for too long. But the excess is never more
// than the time that the message about the grant takes. With [WithReplicas], a client that was
// given a lock first asks the server again, and waits for the replicas.
//
// A semaphore is a key with the number of available permits, and a sorted set that stores for each
// acquired permit its id and when it expires. These times are compared with the server's clock, and
// the number of ids decides whether a call gets permits. The key with the number stays when all
// permits are released, since a Java program may use it. So the name belongs to the semaphore until
// the key is deleted. If other data is a whole number, a step mistakes it for a semaphore, and
// overwrites it. A call can acquire 10,000 permits at most, since the server can do nothing else
// during the call.
//
// For fair locks and semaphores, a name that is another name in braces, such as {orders}, is
// refused, since both names would keep their line, or their ids, under the same key. Fenced locks
// with such names draw their tokens from one sequence.
//
// A name belongs to a plain lock (which may be fenced or fair), a read-write lock, or a semaphore.
// While it does, calls for the other two fail with [backend.ErrConflict]. Redisson's script for
// plain locks, which this package uses, can't recognize a read-write lock. So a call that doesn't
// get a plain lock checks the key with one more command, unless its client already waits for the
// lock. Redisson itself makes no such check. It grants a read-write lock even while a plain lock of
// that name is held.
//
// # Replicas and failover
//
// Valkey copies its data to replicas after it has answered. If a master dies, or is cut off, before
// it has copied an acquisition, a replica that doesn't know the lock becomes the master. Then a
// second owner can get the lock. With [WithReplicas], a lock counts as acquired only when a number
// of replicas have it. That makes a second owner less likely, but not impossible. The option
// doesn't apply to renewals, so a lock that is held for longer than its lease may expire too early
// on a new master. If there must never be two owners, whatever fails, use a consensus store, such
// as etcd.
//
// During a failover, attempts to lock, renewals and the last unlock fail, and are retried. The
// failover must end within a lease (30 s by default). Otherwise the held locks are lost. A client
// with a Sentinel.MasterSet asks the sentinels for the master. If the new master doesn't know of a
// release, the lock stays held there until its lease expires.
//
// Over old connections, a client may still ask an old master that has become a replica. Such a
// replica refuses writes, and changes nothing. But it answers questions about holders from its own
// data, which may be out of date. If it wrongly answered that an owner has no hold, and the client
// believed that, the hold would end. So after such an answer to a renewal or an unlock, the client
// checks whether the server carries out writes. If it doesn't, the client ignores the answer. A
// replica that takes writes (replica-read-only no) passes that check.
//
// # Clusters
//
// Each lock is on the one master that serves the slot of its name. While a slot is migrated, its
// locks can't be released. The lock is then on one server and its channel on the other, and the
// answer is TRYAGAIN. An unlock tries for up to 5 s, and then continues in the background. The
// locks still exclude others meanwhile. With WithReplicas new locks can't be acquired in such a
// slot either. Slots with few keys migrate within milliseconds.
//
// A cluster forwards the message about a release to all of its servers. With [WithShardedPubSub] it
// stays on the lock's server. All clients must agree on that option. In a cluster of Valkey, or of
// Redis 7 or later, Redisson from 3.22 on uses such messages by default.
//
// # Many goroutines
//
// On a single server, even behind Sentinel, the steps of many goroutines are sent together. The
// first six steps are sent immediately. Steps that come while these are under way are sent in a
// single write, when the first of the six is answered. So more steps are sent together than with
// valkey-go's own pipelining. The locks that one client holds are renewed together, a hundred in
// each script. In a cluster, and with [WithReplicas], [WithShardedPubSub] or [WithContextValues],
// every step is sent on its own, as valkey-go sends it.
//
// # On the wire
//
// A plain lock uses the protocol of Redisson's RLock. It is a hash with one field, and its release
// is published on a channel. Fenced, read-write and fair locks, and permits, are stored like
// Redisson's RFencedLock, RReadWriteLock, RFairLock and RPermitExpirableSemaphore, but have scripts
// of their own. So Java programs with Redisson, and Go programs with this package or package
// [github.com/seed951563bd/distsync/redisbackend], exclude each other, and wake each other's
// waiters. With a cluster of Redis 7 or Valkey, either use [WithShardedPubSub] in all programs, or
// use it in none, and tell Redisson not to use sharded channels.
//
// The user that the client logs in as needs the commands EVAL, EVALSHA, EXISTS, HEXISTS, HINCRBY,
// HGET, HKEYS, HLEN, HVALS, PEXPIRE, PTTL, DEL, PUBLISH, SUBSCRIBE, UNSUBSCRIBE and PING, besides
// those that valkey-go needs for itself. With permission for PUBSUB, an unlock also learns whether
// others wait. Scripts get the names of channels as keys. So besides the lock names, the user needs
// the pattern redisson_lock__channel:* among its keys, and also among its channels. If an option
// needs other commands, its documentation lists them.
//
// Other kinds of lock need further permissions. {NAME} is written without braces if the name
// already contains braces.
//
//   - For fenced locks, the user needs the commands HMGET, GET, SET, INCR, PERSIST and TIME, and
//     the keys redisson_lock_token:*.
//   - For read-write locks, it needs HMGET, HSET, HDEL, HGETALL, GET, SET and TIME, the keys
//     distsync_rwlock_notes:* and {NAME}:*:rwlock_timeout:*, and redisson_rwlock:* among both keys
//     and channels.
//   - For permits, it needs GET, SET, INCRBY, PERSIST, TIME, ZADD, ZCARD, ZCOUNT, ZRANGE, ZREM,
//     ZREMRANGEBYSCORE and ZSCORE, the keys {NAME}:timeout, and redisson_sc:* among both keys and
//     channels.
//   - For fair locks, it needs GET, HDEL, HKEYS, HMGET, HSET, LINDEX, LLEN, LPOP, LPUSH, LRANGE,
//     LREM, PERSIST, PEXPIREAT, RPUSH, TIME, ZADD, ZCARD, ZRANGEBYSCORE, ZREM and ZSCORE, the keys
//     redisson_lock_queue:*, redisson_lock_timeout:* and distsync_fair_places:*, and the channels
//     distsync_fair_grants:*.
//   - For latches, it needs GET, SET and DECR, and redisson_countdownlatch__channel__* among both
//     keys and channels.
//
// To inspect a lock, of any kind, the user needs EVAL, EVALSHA, GET, HGET, HLEN, HSCAN, LRANGE,
// PTTL, STRLEN, TIME, TYPE, ZCARD, ZCOUNT, ZRANGEBYSCORE and ZSCORE. To list locks, it also needs
// SCAN. It needs the keys of locks, {NAME}:timeout, {NAME}:*:rwlock_timeout:*,
// redisson_lock_queue:*, redisson_lock_timeout:* and distsync_fair_places:*, but no channels.
// Without these permissions, such a call returns an error that says so.
//
// # Connections
//
// Steps share the client's connections with its other commands. valkey-go sends simultaneous
// commands together. Each dlock.Client that waits for a lock adds one connection for all its
// subscriptions, or with WithShardedPubSub one to each master of a cluster. That connection is
// closed after a minute without a subscription. valkey-go's own pings notice when the server no
// longer answers on it. The client's Dialer.KeepAlive and ConnWriteTimeout control these pings.
package valkeybackend
