package redisbackend

// WithShardedPubSub makes clients use SPUBLISH and SSUBSCRIBE for messages about releases, instead
// of PUBLISH and SUBSCRIBE. In a cluster, sharded messages stay within the lock's shard, while
// other messages go to every server. With the option, a session opens one connection for
// subscriptions to each master where it waits for a lock. Without it, a session opens only one.
//
// All programs that share locks must agree on this option. A client doesn't receive messages of the
// other kind, so it would learn of such releases only by polling. By default, Redisson 3.22 and
// later uses sharded channels with a cluster of Redis 7 or later, but not without a cluster.
//
// The option needs Redis 7. With an older server, every attempt to lock fails.
//
// The client's user needs permission for SPUBLISH, SSUBSCRIBE and SUNSUBSCRIBE instead of PUBLISH,
// SUBSCRIBE and UNSUBSCRIBE.
func WithShardedPubSub() Option {
	return func(o *options) { o.sharded = true }
}
