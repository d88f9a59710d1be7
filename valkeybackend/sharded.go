package valkeybackend

// WithShardedPubSub makes clients use SPUBLISH and SSUBSCRIBE for messages about releases, instead
// of PUBLISH and SUBSCRIBE. In a cluster, sharded messages stay within the lock's shard, while
// other messages go to every server. With the option, a session opens one connection for
// subscriptions to each master where it waits for a lock. Without it, a session opens only one.
//
// All programs that share locks must agree on this option. A client doesn't receive messages of the
// other kind, so it would learn of such releases only by polling. Redisson from 3.22 on uses
// sharded channels with a cluster of Redis 7 or later, or of Valkey, unless it is configured
// otherwise. Without a cluster it doesn't.
//
// The option needs Valkey, or Redis 7. With an older server, every attempt to lock fails.
//
// The client's user on the server needs permission for the commands SPUBLISH, SSUBSCRIBE and
// SUNSUBSCRIBE instead of PUBLISH, SUBSCRIBE and UNSUBSCRIBE, and in a cluster also for CLUSTER
// SLOTS.
func WithShardedPubSub() Option {
	return func(o *options) { o.sharded = true }
}
