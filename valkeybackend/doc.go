// Package valkeybackend keeps distributed locks in Valkey, or in Redis, by way of valkey-go: on a
// single server, behind Sentinel, or in a cluster.
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
// Package [github.com/seed951563bd/distsync/dlock] says what you can do with a lock. This page is about
// Valkey. [New] takes the client that a program already has.
//
// # What is promised, and what is not
//
// While the server keeps its data and its clock doesn't jump, Valkey records at most one owner of a
// lock. A client that was paused may still believe that it is one: see package dlock. Every step is
// one script, which the server runs as a whole. Leases are durations, and a client never compares
// its clock with the server's; but Valkey itself expires keys by its wall clock, and so does a
// replica that is promoted: those clocks must agree, and must not be stepped.
//
// A server that loses its data lets a second owner in while the first still believes it holds the
// lock; the first hears of that when it next renews or, if its lease is fixed, when that ends. A
// server that evicts keys (maxmemory-policy) evicts locks.
//
// A server whose memory is full, and that evicts nothing, grants no locks, but renews and releases
// held ones.
//
// # Names are keys
//
// A lock's name is its key, so it must not be the key of other data. The steps leave other data alone,
// and report it as [backend.ErrConflict]: anything that is no hash, and a hash without an expiry that
// has more in it than an owner and a count. Waiters take a hash that expires for a lock, until it is
// gone. A forced unlock deletes only what looks like a lock and expires. Names like lock:orders:42, or
// [WithPrefix], avoid all that.
//
// # Kinds of lock
//
// A fenced lock is a plain lock with another key that has the number of the last acquisition, and
// stays. A read-write lock is a hash with a mode and its holders, a key for each reader that says how
// long it reads, and a hash with the notes of waiting writers.
//
// A fair lock is a plain lock with a list of its waiters, and two sorted sets with their times. Any
// script that frees it or looks gives it to the first waiter, for a second, and publishes that for its
// client. All waiters keep their places with one script a second, which also returns the server's
// clock: from that the client knows since when it has the lock. If that clock is put forward in
// between, by less than the message takes, the client may believe in the lock for as much too long as
// the message was late. With [WithReplicas] a client that is given a lock asks first, and waits for the
// replicas.
//
// A semaphore is a key with the number of available permits, and a sorted set with an id and an end for
// each taken permit. The ends are compared with the server's clock, and the number of ids decides who
// gets in. The key with the number stays when all permits are back, since a Java program may go by it.
// So the name remains a semaphore's until the key is deleted. A key that is a whole number for another
// reason is taken for a semaphore, and overwritten. One call gets 10,000 permits at most, since the
// server does nothing else meanwhile. A name that is another in braces, as {orders}, is refused: both
// would have their ids under one key.
//
// A name that holds a read-write lock, or a semaphore, is refused to the other kinds with
// [backend.ErrConflict], and the other way round. Redisson's script for plain locks, which is used
// here, doesn't tell a read-write lock. So a call that is refused a plain lock asks what that is, with
// one more command, unless its client waits for the lock already. Redisson itself doesn't look: its
// read-write lock enters beside a held lock of that name.
//
// # Replicas and failover
//
// Valkey copies its data to replicas after it has answered. A master that dies, or is cut off,
// before it has copied an acquisition is replaced by a replica that doesn't know the lock, and a
// second owner gets in. [WithReplicas] makes that less likely: a lock then counts as acquired only
// when so many replicas have it. It doesn't make it impossible, and it says nothing about renewals,
// so a lock that is held for longer than its lease may end too early on a new master. If there must
// never be two owners, whatever fails, use a store that agrees before it answers, such as etcd.
//
// During a failover attempts to lock fail and are repeated, as are renewals and the last unlock; it
// must be over within a lease (30 s by default), or locks that are held are lost. A client with a
// Sentinel.MasterSet asks the sentinels for the master. A release that the new master has not heard of
// leaves the lock held there until its lease is over.
//
// An old master that has become a replica may still be asked, over old connections. It refuses writes,
// without any effect. It answers questions about holders from its own data, which may be old. Its
// answer that an owner has no hold would end that hold. So after such an answer to a renewal or an
// unlock the server is asked whether it would carry out a write, and only then is believed. A replica
// that takes writes (replica-read-only no) is believed.
//
// # Clusters
//
// Each lock is on the one master that has the slot of its name. While a slot is migrated, its locks
// can't be released: the server finds the lock and its channel on different sides, and asks to try
// again. An unlock tries for up to 5 s, and then in the background. Meanwhile nobody gets in twice.
// With WithReplicas new locks can't be acquired in such a slot either. Slots with few keys migrate
// within milliseconds.
//
// Every release is passed on to every server of a cluster. [WithShardedPubSub] keeps it on the
// server that has the lock, if all clients agree on that, and it is what Redisson does there.
//
// # Many goroutines
//
// On one server, also behind Sentinel, the steps of many goroutines share writes: the first six go at
// once, and what comes while these are under way goes in one piece when the first of them is
// answered, which is more than valkey-go's own pipelining does. The locks that one client holds are
// renewed together, a hundred in each script. In a cluster, and with [WithReplicas],
// [WithShardedPubSub] or [WithContextValues], every step goes by itself, as valkey-go sends it.
//
// # On the wire
//
// The protocol is that of Redisson's RLock: the lock is a hash with one field, and its release is
// published on a channel. Fenced, read-write and fair locks, and permits, are kept as Redisson's
// RFencedLock, RReadWriteLock, RFairLock and RPermitExpirableSemaphore keep them, by other scripts.
// So Java programs with Redisson, Go programs with package
// [github.com/seed951563bd/distsync/redisbackend], and those with this one exclude and wake each other.
// With a cluster of Redis 7 or Valkey use [WithShardedPubSub] everywhere, or nowhere and a Redisson
// that is told not to use sharded channels.
//
// The user that the client logs in as needs the commands EVAL, EVALSHA, EXISTS, HEXISTS, HINCRBY,
// HGET, HKEYS, HLEN, HVALS, PEXPIRE, PTTL, DEL, PUBLISH, SUBSCRIBE, UNSUBSCRIBE and PING, besides
// those that valkey-go needs for itself. With PUBSUB, an unlock learns on the way whether
// others wait. The names of channels are arguments in the place of keys, so besides the lock names
// the user needs the pattern redisson_lock__channel:* twice: among its keys and among its channels.
// The options say which commands they need besides.
//
// For fenced locks the user needs besides HMGET, GET, SET, INCR, PERSIST and TIME, and among the
// keys redisson_lock_token:*. For read-write locks it is HMGET, HSET, HDEL, HGETALL, GET, SET and
// TIME; among the keys distsync_rwlock_notes:* and {NAME}:*:rwlock_timeout:*, without these braces
// where the name has some; and redisson_rwlock:* twice. For permits it is GET, SET, INCRBY,
// PERSIST, TIME, ZADD, ZCARD, ZCOUNT, ZRANGE, ZREM, ZREMRANGEBYSCORE and ZSCORE; among the keys
// {NAME}:timeout, likewise; and redisson_sc:* twice. For fair locks it is GET, HDEL, HKEYS, HMGET,
// HSET, LINDEX, LLEN, LPOP, LPUSH, LRANGE, LREM, PERSIST, PEXPIREAT, RPUSH, TIME, ZADD, ZCARD,
// ZRANGEBYSCORE, ZREM and ZSCORE; among the keys redisson_lock_queue:*, redisson_lock_timeout:* and
// distsync_fair_places:*; and among the channels distsync_fair_grants:*.
//
// For latches it is GET, SET and DECR; and redisson_countdownlatch__channel__* twice.
//
// To ask who has a lock the user needs EVAL, EVALSHA, GET, HGET, HLEN, HSCAN, LRANGE, PTTL, STRLEN,
// TIME, TYPE, ZCARD, ZCOUNT, ZRANGEBYSCORE and ZSCORE, and to list locks SCAN besides; among the keys
// those of locks, {NAME}:timeout, {NAME}:*:rwlock_timeout:*, redisson_lock_queue:*,
// redisson_lock_timeout:* and distsync_fair_places:*, whatever kinds of lock there are; and no
// channels. Without these permissions such a call returns an error that says so.
//
// # Connections
//
// Steps share the client's connections with its other commands; valkey-go sends simultaneous commands
// together. Each dlock.Client that waits for a lock adds one connection for all its subscriptions, or
// with WithShardedPubSub one to each master of a cluster. It is closed after a minute without a
// subscription. The client's own pings notice when it has fallen silent; its Dialer.KeepAlive and
// ConnWriteTimeout control these.
package valkeybackend
