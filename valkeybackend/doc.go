// Package valkeybackend keeps distributed locks in Valkey, or in Redis, by way of valkey-go: on a
// single server, behind Sentinel, or in a cluster.
//
//	vk, err := valkey.NewClient(valkey.ClientOption{InitAddress: []string{"localhost:6379"}})
//	…
//	client := dlock.New(valkeybackend.New(vk))
//
// # What is promised, and what is not
//
// While the server keeps its data and its clock doesn't jump, Valkey records at most one owner of a
// lock. A client that was paused may still believe that it is one: see package dlock. Every step is
// one script, which the server runs as a whole. Leases are durations, and a client never compares
// its clock with the server's; but Valkey itself expires keys by its wall clock, and so does a
// replica that is promoted: those clocks must agree, and must not be stepped.
//
// Valkey copies its data to replicas after it has answered. A server that dies before it has copied
// an acquisition, or that loses its data, lets a second owner in while the first still believes it
// holds the lock; the first hears of that when it next renews or, if its lease is fixed, when that
// ends. Where two owners must never be, use a store that agrees before it answers, such as etcd.
//
// # On the wire
//
// The protocol is that of Redisson's RLock: the lock is a hash with one field, and its release is
// published on a channel. Java programs that use Redisson, Go programs that use package
// [github.com/seed951563bd/distsync/redisbackend], and those that use this one exclude and wake
// each other.
//
// The user that the client logs in as needs the commands EVAL, EVALSHA, EXISTS, HEXISTS, HINCRBY,
// HGET, HLEN, PEXPIRE, PTTL, DEL, PUBLISH, SUBSCRIBE, UNSUBSCRIBE and PING, besides those that
// valkey-go needs for itself. The names of channels are arguments in the place of keys, so besides
// the lock names the user needs the pattern redisson_lock__channel:* twice: among its keys and among
// its channels.
//
// # Connections
//
// Steps share the client's connections with everything else that it is used for; valkey-go sends
// together what is asked at once. Each dlock.Client that waits for a lock adds one connection, which
// carries all its subscriptions. That it has fallen silent is noticed by the client's own pings,
// which its Dialer.KeepAlive and ConnWriteTimeout control.
package valkeybackend
