package redisbackend

import (
	"context"
	"reflect"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/internal/gather"
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
	replicas   replicas
	sharded    bool
	prefix     string
	checkEvery time.Duration // how long a silent connection for subscriptions is trusted
}

// WithPrefix sets what the keys of locks begin with; default nothing: then a lock's name is its key, and
// must not be that of other data. All who share locks must use the same prefix. For Redisson it is a
// part of the name, or what a NameMapper adds: with the prefix "lock:", its getLock("lock:orders:42") is
// the lock "orders:42" here. In a cluster a prefix with a pair of braces puts all locks into one slot.
func WithPrefix(prefix string) Option {
	return func(o *options) { o.prefix = prefix }
}

// New returns a backend on a go-redis client: a [redis.Client], also of the kind that follows
// Sentinel, or a [redis.ClusterClient]. The client stays the caller's, who closes it after the
// locks are closed.
//
// In a cluster a lock and its channel must be in one slot, or it could be taken but never released.
// Names without braces are good, as are those with one pair of braces around some part; any other
// whose two slots differ is refused when the lock is used, before anything is sent.
//
// New panics if client is nil, or a [redis.Ring]: a Ring stops using a server that this client
// cannot reach and asks another instead, so two clients would lock one name on two servers.
func New(client redis.UniversalClient, opts ...Option) *Backend {
	if isNil(client) {
		panic("redisbackend: nil client")
	}
	if _, ok := client.(*redis.Ring); ok {
		panic("redisbackend: a redis.Ring cannot keep locks: it replaces a server that this client" +
			" cannot reach by another, so two clients would lock one name on two servers")
	}
	b := &Backend{client: client, options: options{checkEvery: 10 * time.Second}}
	for _, opt := range opts {
		opt(&b.options)
	}
	b.options.replicas.check(client)
	return b
}

// isNil says whether the client is nil or a nil pointer.
func isNil(client redis.UniversalClient) bool {
	if client == nil {
		return true
	}
	v := reflect.ValueOf(client)
	return v.Kind() == reflect.Pointer && v.IsNil()
}

// Open returns a new session.
func (b *Backend) Open() backend.Session {
	s := &session{
		client:     b.client,
		replicas:   b.options.replicas,
		prefix:     b.options.prefix,
		subscriber: newSubscriber(b),
	}
	s.dialect.Sharded = b.options.sharded
	s.cluster, _ = b.client.(*redis.ClusterClient)
	if s.cluster != nil || s.replicas.n > 0 || s.dialect.Sharded {
		return s // what goes together must be for one server, and not wait for another
	}
	s.sender = gather.New(func(ctx context.Context, cmds []command) []command {
		s.sendNow(ctx, cmds...)
		return cmds
	})
	return gathering{s}
}

// Limits returns the zero value: Redis counts leases in milliseconds.
func (b *Backend) Limits() backend.Limits { return backend.Limits{} }
