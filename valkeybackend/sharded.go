package valkeybackend

// WithShardedPubSub publishes releases with SPUBLISH and listens with SSUBSCRIBE, in the place of
// PUBLISH and SUBSCRIBE, which are the default. In a cluster such a message stays within the shard
// that has the lock, while others go to every server; a session then has one connection for
// subscriptions to each master where it waits for a lock, instead of one.
//
// All who share locks must agree on it: a message of one kind isn't heard by those who listen for
// the other, and they find a lock free only when they look again by themselves. Redisson from 3.22
// on uses sharded channels with a cluster of Redis 7 or later, or of Valkey, unless it is told
// otherwise; with all that isn't a cluster it doesn't.
//
// It needs Valkey, or Redis 7. An older server is noticed when a lock is first used, and every
// attempt to lock is refused.
//
// The user that the client logs in as needs the commands SPUBLISH, SSUBSCRIBE and SUNSUBSCRIBE in the
// place of those without the S, and in a cluster CLUSTER SLOTS.
func WithShardedPubSub() Option {
	return func(o *options) { o.sharded = true }
}
