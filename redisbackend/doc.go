// Package redisbackend keeps distributed locks in Redis, by way of go-redis: on a single server,
// behind Sentinel, or in a cluster.
//
//	rdb := redis.NewClient(&redis.Options{Addr: "localhost:6379"})
//	client := dlock.New(redisbackend.New(rdb))
//	defer client.Close()
//
//	err := client.Locker("lock:orders:42").Do(ctx, func(ctx context.Context) error {
//		return ship(ctx, 42) // nobody else is in here; ctx ends if the lock is lost
//	})
//
// What one can do with a lock is in package [github.com/seed951563bd/distsync/dlock], and what follows is
// about Redis. [New] takes the client that a program has already, for whatever else.
//
// # What is promised, and what is not
//
// While the server keeps its data and its clock doesn't jump, Redis records at most one owner of a
// lock. A client that was paused may still believe that it is one: see package dlock. Every step is
// one script, which the server runs as a whole. Leases are durations, and a client never compares
// its clock with the server's; but Redis itself expires keys by its wall clock, and so does a
// replica that is promoted: those clocks must agree, and must not be stepped. A server that evicts
// keys (maxmemory-policy) evicts locks.
//
// A server that loses its data lets a second owner in while the first still believes it holds the
// lock; the first hears of that when it next renews or, if its lease is fixed, when that ends.
//
// A server whose memory is full, and that evicts nothing, grants no locks, but renews those that are held
// and lets them go.
//
// # Names are keys
//
// A lock's name is its key, among all others, so it must not be the key of other data. What is no lock
// the steps leave alone, and report as [backend.ErrConflict]: anything but a hash, and a hash without
// an expiry that has other things in it than an owner and a count. A hash that expires is taken for
// a lock by those who wait, until it is gone; but a forced unlock deletes only what looks like a lock
// and expires. Names like lock:orders:42 keep clear of all that, or [WithPrefix].
//
// # Kinds of lock
//
// There are fenced and read-write locks, too. A fenced lock is a plain lock with a key beside it that has the number of the
// last acquisition, and stays. A read-write lock is a hash with a mode and all who hold it, with a key
// for each reader that says how long he reads, and a hash with the notes of writers who wait.
//
// A fair lock is a plain lock with a list of those who wait for it, and two sorted sets with the times by which they do. The server
// itself gives it to the first of them, for a second, by the script of whoever frees it or looks, and publishes that for his client. From what the server's clock said when the client
// last looked it knows since when it has the lock: all that wait keep their places with one script a second. If that clock is put forward between
// the two, by less than the message takes, the client may believe to have the lock for as much too long as the message was late. With
// [WithReplicas] whoever is given a lock asks first, and waits for the replicas.
//
// And there are semaphores. One is a key with how many permits are available, and a sorted set of those that are out: an id for
// each, by when it ends, which is compared with the server's clock. Who gets in is decided by how many ids are out. The key with
// the number stays when all permits are back, since a Java program may go by it. So the name remains a semaphore's, until
// somebody deletes the key; and a key that is a whole number for another reason is taken for one, and overwritten. Nobody can
// have more than 10,000 permits in one call, since the server does nothing else meanwhile. A name that is another in braces, as
// {orders}, is refused: both would have their ids under one key.
//
// A name that holds a read-write lock, or a semaphore, is refused to the other kinds with [backend.ErrConflict], and the other way
// round. Redisson's script for plain locks, which is used here, doesn't tell a read-write lock: so whoever
// is refused a plain lock asks what that is, with one more command, unless his client waits for the lock already.
// Redisson itself looks for nothing of the kind: its read-write lock on the name of a lock that is held enters.
//
// # Replicas and failover
//
// Redis copies its data to replicas after it has answered. A master that dies, or is cut off,
// before it has copied an acquisition is replaced by a replica that doesn't know the lock, and a
// second owner gets in. [WithReplicas] makes that less likely: a lock then counts as acquired only
// when so many replicas have it. It doesn't make it impossible, and it says nothing about renewals,
// so a lock that is held for longer than its lease may end too early on a new master. Where two
// owners must never be, whatever fails, use a store that agrees before it answers, such as etcd.
//
// During a failover attempts to lock fail and are repeated, as are renewals and the last unlock; it
// must be over within a lease (30 s by default), or locks that are held are lost. A client of
// [redis.NewFailoverClient] asks the sentinels for the master. A release that the new master has not
// heard of leaves the lock held there until its lease is over.
//
// An old master that has become a replica may still be asked, over connections that stand. What it
// would have to write it refuses, without any effect. From its own data, which may be old, it says who
// has a lock, and that somebody hasn't. The latter, which would end a hold, counts only if a server
// says it that would carry out a write: after a no to a renewal or an unlock it is asked for that. A
// replica that takes writes (replica-read-only no) is believed.
//
// # Clusters
//
// Each lock is on the one master that has the slot of its name. While a slot is migrated from one
// master to another its locks can be neither released nor unlocked in part, since the server finds
// the lock and its channel on different sides and asks to try again; whoever is about to unlock
// does so for up to 5 s, and in the background after that. Nobody gets in twice meanwhile. With
// WithReplicas, nor can new locks be acquired in such a slot. Slots with few keys migrate within
// milliseconds.
//
// Every release is passed on to every server of a cluster. [WithShardedPubSub] keeps it on the
// server that has the lock, if all clients agree on that, and it is what Redisson does there.
//
// # Many goroutines
//
// On one server, also behind Sentinel, the steps of many goroutines share round trips: the first six go
// at once, each on a connection of its own, and what comes while these are under way goes in one
// pipeline when the first of them is answered, or by another connection if that takes longer than some
// 50 ms. The locks that one client holds are renewed together, a hundred in each script. In a cluster,
// and with [WithReplicas], [WithShardedPubSub] or [WithContextValues], every step goes by itself.
//
// # Hooks
//
// Hooks of the client see single commands and pipelines, and where steps share round trips nobody's
// context values: see [WithContextValues]. A hook must send what it is given, not a copy, and return the
// errors that it gets: a redis.Nil in the place of another would be read as the answer of a server,
// and a lock's answer to an attempt is a null. Arguments that are strings it may change. The last
// argument of a script is none: it has a String method, and notices when it is sent, since that is all
// that tells whether a step that failed may have been carried out.
//
// # Servers that can't be reached
//
// go-redis dials five times before it says so, which takes about 0.4 s (Options.DialerRetries), and
// reports that to its own logger as well (package logging of go-redis switches that off). A call that
// waits for less ends with "the store has not answered".
//
// # TLS
//
// With Options.TLSConfig go-redis dials without heeding contexts. A connection for subscriptions that
// breaks is then replaced twice, one after the other, and a server that doesn't answer is noticed later
// by a DialTimeout. An Options.Dialer that calls DialContext of a [crypto/tls.Dialer] does better.
//
// # On the wire
//
// The protocol is that of Redisson's RLock: the lock is a hash with one field, and its release is
// published on a channel. Fenced, read-write and fair locks are kept as its RFencedLock, RReadWriteLock and RFairLock keep
// them, and permits as its RPermitExpirableSemaphore does, by other scripts. Java programs that use Redisson and Go programs that use this package
// exclude and wake each other. With a cluster of Redis 7 or later that takes [WithShardedPubSub],
// or a Redisson that is told not to use sharded channels.
//
// The user that the client logs in as needs the commands EVAL, EVALSHA, EXISTS, HEXISTS, HINCRBY,
// HGET, HKEYS, HLEN, HVALS, PEXPIRE, PTTL, DEL, PUBLISH, SUBSCRIBE, UNSUBSCRIBE and PING. With
// PUBSUB, whoever unlocks learns on the way whether others wait. The names of channels are
// arguments in the place of keys, so besides the lock names the user needs the pattern
// redisson_lock__channel:* twice: among its keys and among its channels. The options say which
// commands they need besides. A [redis.ClusterClient] itself needs CLUSTER SLOTS.
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
// To ask who has a lock the user needs EVAL, EVALSHA, GET, HGET, HLEN, HSCAN, LRANGE, PTTL, STRLEN, TIME, TYPE, ZCARD, ZCOUNT, ZRANGEBYSCORE and
// ZSCORE, and to list locks SCAN besides; among the keys those of locks, {NAME}:timeout, {NAME}:*:rwlock_timeout:*, redisson_lock_queue:*,
// redisson_lock_timeout:* and distsync_fair_places:*, all of them, whatever kinds of lock there are; and no channels. Without
// these permissions it is an error that says so, and nothing else changes.
//
// Fenced locks, those for reading and writing, fair ones, and permits ask for the time and write after that, in one script: a Redis does this from
// version 5 on.
package redisbackend
