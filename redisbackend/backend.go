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

// Backend keeps locks in the Redis that a client is connected to. Make it with [New].
type Backend struct {
	client  redis.UniversalClient
	options options
}

var _ backend.Backend = (*Backend)(nil)

// An Option changes how a [Backend] works.
type Option func(*options)

type options struct {
	replicas   redisson.Replicas
	sharded    bool
	prefix     string
	checkEvery time.Duration // how long a silent connection for subscriptions is trusted
	apart      bool          // no step goes together with another
}

// WithPrefix sets a prefix of the keys of locks. The default is none: then a lock's name is its
// key, and must not be that of other data. All programs that share locks must use the same prefix.
// For Redisson it is part of the name, or what a NameMapper adds: with the prefix "lock:", its
// getLock("lock:orders:42") is the lock "orders:42" here. In a cluster a prefix with a pair of
// braces puts all locks into one slot.
func WithPrefix(prefix string) Option {
	return func(o *options) { o.prefix = prefix }
}

// New returns a backend on a go-redis client: a [redis.Client], also one that follows Sentinel, or
// a [redis.ClusterClient]. The client stays the caller's: close it after the client of the locks.
//
// In a cluster a lock and its channel must be in one slot, or it could be taken but never released.
// Names without braces are good, and so are names with one pair of braces around some part. Other
// names whose two slots differ are refused when the lock is used, before anything is sent.
//
// New panics if client is nil, or anything else:
//
//   - A [redis.Ring] stops using a server that this client can't reach and asks another instead, so
//     two clients would lock one name on two servers.
//   - A [redis.AutoPipeliner], or a type of your own around a client, doesn't show whether there is
//     a cluster behind it. In one, steps and subscriptions must go to the right server together.
//     Pass the client inside, and use a hook for what should happen around its commands.
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

// unusable returns why there can be no locks by way of the client, or nothing.
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
		return "a redis.Ring cannot keep locks: it replaces a server that this client cannot reach by" +
			" another, so two clients would lock one name on two servers"
	default:
		return fmt.Sprintf("a %T cannot keep locks: it doesn't show whether there is a cluster behind it;"+
			" pass the redis.Client or redis.ClusterClient that is inside", client)
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
		return redisson.Open(o) // what goes together must be for one server, and not wait for another
	}
	t.sender = gather.New(func(ctx context.Context, cmds []*command) []*command {
		t.sendNow(ctx, cmds...)
		return cmds
	}, recall)
	o.Settle = t.sender.Settle
	return redisson.Open(o)
}

// Limits says which kinds of lock there are. Redis counts leases in milliseconds.
func (b *Backend) Limits() backend.Limits { return backend.Limits{Kinds: redisson.Kinds, Keeps: true} }
