package valkeybackend

// WithShardedPubSub makes clients use SPUBLISH and SSUBSCRIBE for the messages about releases. The
// default is PUBLISH and SUBSCRIBE. In a cluster, sharded messages stay within the shard that has
// the lock, while other messages go to every server. With the option, a session has one connection
// for subscriptions to each master where it waits for a lock. By default it has only one.
//
// All programs that share locks must agree on this option. A client doesn't get the messages of the
// other kind. Without them, it notices a release only when it polls. Redisson from 3.22 on uses
// sharded channels with a cluster of Redis 7 or later, or of Valkey, unless it is told otherwise.
// Without a cluster it doesn't.
//
// The option needs Valkey, or Redis 7. With an older server, every attempt to lock fails.
//
// The user of the client needs the commands SPUBLISH, SSUBSCRIBE and SUNSUBSCRIBE in place of those
// without the S, and in a cluster CLUSTER SLOTS.
func WithShardedPubSub() Option {
	return func(o *options) { o.sharded = true }
}
