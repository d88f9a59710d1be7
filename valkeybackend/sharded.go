package valkeybackend

// WithShardedPubSub tells of releases with SPUBLISH and SSUBSCRIBE. The default is PUBLISH and
// SUBSCRIBE. In a cluster, sharded messages stay within the shard that has the lock, while others
// go to every server. A session then has one connection for subscriptions to each master where it
// waits for a lock, instead of one.
//
// All programs that share locks must agree on it: a message of one kind isn't heard by listeners
// for the other, and they find a lock free only when they look again by themselves. Redisson from
// 3.22 on uses sharded channels with a cluster of Redis 7 or later, or of Valkey, unless it is told
// otherwise; without a cluster it doesn't.
//
// It needs Valkey, or Redis 7. An older server is noticed when a lock is first used, and every
// attempt to lock is refused.
//
// The user of the client needs the commands SPUBLISH, SSUBSCRIBE and SUNSUBSCRIBE in place of those
// without the S, and in a cluster CLUSTER SLOTS.
func WithShardedPubSub() Option {
	return func(o *options) { o.sharded = true }
}
