// Package valkeybackend keeps distributed locks in Valkey, or in Redis, by way of valkey-go: on a
// single server, behind Sentinel, or in a cluster.
//
//	vk, err := valkey.NewClient(valkey.ClientOption{InitAddress: []string{"localhost:6379"}})
//	…
//	client := dlock.New(valkeybackend.New(vk))
//
// # What is promised, and what is not
//
// While the server keeps its data, a lock has at most one owner. Every step is one script, which
// the server runs as a whole, and leases run on the server's clock: clocks of different machines
// are never compared.
//
// Valkey copies its data to replicas after it has answered. A server that dies before it has copied
// an acquisition, or that loses its data, lets a second owner in while the first still believes it
// holds the lock; it hears of that when it next renews, at the latest. Where this must not happen
// use a store that agrees before it answers, such as etcd.
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
