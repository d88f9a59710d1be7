// Package redisbackend keeps distributed locks in Redis, by way of go-redis: on a single server,
// behind Sentinel, or in a cluster.
//
//	rdb := redis.NewClient(&redis.Options{Addr: "localhost:6379"})
//	client := dlock.New(redisbackend.New(rdb))
//
// # What is promised, and what is not
//
// While the Redis server keeps its data, a lock has at most one owner. Every step is one script,
// which the server runs as a whole, and leases run on the server's clock: clocks of different
// machines are never compared.
//
// Redis copies its data to replicas after it has answered. A server that dies before it has copied
// an acquisition, or that loses its data, lets a second owner in while the first still believes it
// holds the lock; it hears of that when it next renews, at the latest. Where this must not happen
// use a store that agrees before it answers, such as etcd.
//
// # On the wire
//
// The protocol is that of Redisson's RLock: the lock is a hash with one field, and its release is
// published on a channel. Java programs that use Redisson and Go programs that use this package
// exclude and wake each other.
//
// The user that the client logs in as needs the commands EVAL, EVALSHA, EXISTS, HEXISTS, HINCRBY,
// HGET, HLEN, PEXPIRE, PTTL, DEL, PUBLISH, SUBSCRIBE, UNSUBSCRIBE and PING. The names of channels
// are arguments in the place of keys, so besides the lock names it needs the pattern
// redisson_lock__channel:* twice: among its keys and among its channels.
package redisbackend
