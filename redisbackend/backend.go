package redisbackend

import (
	"context"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/internal/gather"
	"github.com/seed951563bd/distsync/internal/redisson"
)

// Backend keeps locks in the Redis server or cluster that a client is connected to. Use [New] to
// create one.
type Backend struct {
	client  redis.UniversalClient
	options options
}

var _ backend.Backend = (*Backend)(nil)

// An Option configures a [Backend].
type Option func(*options)

type options struct {
	replicas redisson.Replicas
	sharded  bool
	prefix   string
	// checkEvery is the time between pings on a connection for subscriptions.
	checkEvery time.Duration
	apart      bool // no two steps share a round trip
}

// WithPrefix sets a prefix for the keys of locks. By default there is none: a lock's name is its
// key, and no other data may use that key. All programs that share locks must use the same prefix.
// In Redisson the prefix is part of the name, or a NameMapper adds it. For example, with the prefix
// "lock:", Redisson's getLock("lock:orders:42") is the lock "orders:42" here. In a cluster, a
// prefix that contains a pair of braces puts all locks into one slot.
func WithPrefix(prefix string) Option {
	return func(o *options) { o.prefix = prefix }
}

// New returns a backend that uses a go-redis client: a [redis.Client], which may use Sentinel, or a
// [redis.ClusterClient]. The caller must close that client after the dlock client.
//
// In a cluster, a lock and its channel must be in one slot. Otherwise, the lock could be acquired
// but never released. They are in one slot if the lock's name has no braces, or has one pair of
// braces around a part of it. For a name whose lock and channel are in two slots, every call fails
// before anything is sent.
//
// New panics if client is nil. It also panics for a client of any other type, for these reasons:
//
//   - If a [redis.Ring] can't reach a server, it asks another instead. So two clients could lock
//     one name on two servers.
//   - With a [redis.AutoPipeliner], or a type of your own that wraps a client, New can't know
//     whether there is a cluster behind it. In a cluster, steps and subscriptions must go to the
//     right server together. Pass the wrapped client instead. Use a hook to add behavior to its
//     commands.
func New(client redis.UniversalClient, opts ...Option) *Backend {
	if reason := unusable(client); reason != "" {
		panic("redisbackend: " + reason)
	}
	b := &Backend{client: client, options: options{checkEvery: 10 * time.Second}}
	for _, opt := range opts {
		opt(&b.options)
	}
	checkReplicas(b.options.replicas, client)
	return b
}

// unusable returns the reason why the client can't be used for locks, or "".
func unusable(client redis.UniversalClient) string {
	null := false
	switch client := client.(type) {
	case nil:
		null = true
	case *redis.Client:
		null = client == nil
	case *redis.ClusterClient:
		null = client == nil
	case *redis.Ring:
		return "a redis.Ring cannot keep locks: it replaces a server that this client cannot " +
			"reach by another, so two clients would lock one name on two servers"
	default:
		return fmt.Sprintf("a %T cannot keep locks: it doesn't show whether there is a cluster "+
			"behind it; pass the redis.Client or redis.ClusterClient that is inside", client)
	}
	if null {
		return "nil client"
	}
	return ""
}

// Open returns a new session.
func (b *Backend) Open() backend.Session {
	t := &transport{client: b.client}
	t.cluster, _ = b.client.(*redis.ClusterClient)
	o := redisson.Options{
		Store:      "redis",
		Transport:  t,
		Subscriber: newSubscriber(b),
		Cluster:    t.cluster != nil,
		Dialect:    redisson.Dialect{Sharded: b.options.sharded},
		Prefix:     b.options.prefix,
		Replicas:   b.options.replicas,
	}
	if o.Cluster || o.Replicas.N > 0 || o.Dialect.Sharded || b.options.apart {
		// Steps may share round trips only if they are for one server and don't delay each other.
		return redisson.Open(o)
	}
	t.sender = gather.New(func(ctx context.Context, cmds []*command) []*command {
		t.sendNow(ctx, cmds...)
		return cmds
	}, recall)
	o.Settle = t.sender.Settle
	return redisson.Open(o)
}

// Limits reports that the store supports all kinds of lock, can keep released locks taken, and
// counts leases in milliseconds.
func (b *Backend) Limits() backend.Limits {
	return backend.Limits{Kinds: redisson.Kinds, Keeps: true}
}
