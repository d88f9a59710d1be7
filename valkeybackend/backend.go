package valkeybackend

import (
	"reflect"

	"github.com/valkey-io/valkey-go"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/internal/gather"
	"github.com/seed951563bd/distsync/internal/redisson"
)

// Backend keeps locks in the Valkey server or cluster that a client is connected to. Use [New] to
// create one.
type Backend struct {
	client  valkey.Client
	options options
}

var _ backend.Backend = (*Backend)(nil)

// An Option configures a [Backend].
type Option func(*options)

type options struct {
	apart    bool // no two steps share a round trip
	replicas redisson.Replicas
	sharded  bool
	prefix   string
}

// WithPrefix sets a prefix for the keys of locks. By default there is none: a lock's name is its
// key, and no other data may use that key. All programs that share locks must use the same prefix.
// In Redisson the prefix is part of the name, or a NameMapper adds it. For example, with the prefix
// "lock:", Redisson's getLock("lock:orders:42") is the lock "orders:42" here. In a cluster, a
// prefix that contains a pair of braces puts all locks into one slot.
func WithPrefix(prefix string) Option {
	return func(o *options) { o.prefix = prefix }
}

// New returns a backend that uses a valkey-go client of any [valkey.ClientMode]. The caller must
// close that client after the dlock client.
//
// In a cluster, a lock and its channel must be in one slot. That is so if the lock's name has no
// braces, or has one pair of braces around a part of it. For a name whose lock and channel are in
// different slots, every call fails.
//
// New panics if client is nil, or was made with a ConnLifetime. At the end of a connection's
// lifetime, valkey-go sends unanswered commands again, and one acquisition could count twice. New
// can't detect the ConnLifetime of a client inside a wrapper, but such a client must not have one
// either.
func New(client valkey.Client, opts ...Option) *Backend {
	if isNil(client) {
		panic("valkeybackend: nil client")
	}
	if expires(client) {
		panic("valkeybackend: a client with a ConnLifetime cannot keep locks: it repeats commands" +
			" that may have been carried out, so one acquisition would count twice")
	}
	b := &Backend{client: client}
	for _, opt := range opts {
		opt(&b.options)
	}
	return b
}

// isNil reports whether the client is nil or a nil pointer.
func isNil(client valkey.Client) bool {
	if client == nil {
		return true
	}
	v := reflect.ValueOf(client)
	return v.Kind() == reflect.Pointer && v.IsNil()
}

// expires reports whether a client's connections have a limited lifetime. It reads unexported
// fields of valkey-go. If these change, a test fails.
func expires(client valkey.Client) bool {
	v := reflect.Indirect(reflect.ValueOf(client))
	if v.Kind() != reflect.Struct {
		return false
	}
	if f := v.FieldByName("hasLftm"); f.IsValid() && f.Kind() == reflect.Bool && f.Bool() {
		return true
	}
	opt := v.FieldByName("opt")
	if !opt.IsValid() || opt.Type() != reflect.TypeFor[*valkey.ClientOption]() || opt.IsNil() {
		return false
	}
	return opt.Elem().FieldByName("ConnLifetime").Int() > 0
}

// Open returns a new session.
func (b *Backend) Open() backend.Session {
	t := &transport{client: b.client}
	if b.client.Mode() == valkey.ClientModeCluster {
		t.slots = newSlots(b.client)
	}
	o := redisson.Options{
		Store:      "valkey",
		Transport:  t,
		Subscriber: newSubscriber(b.client, b.options.sharded, t.slots),
		Cluster:    t.slots != nil,
		Dialect:    redisson.Dialect{Sharded: b.options.sharded},
		Prefix:     b.options.prefix,
		Replicas:   b.options.replicas,
	}
	if o.Cluster || o.Replicas.N > 0 || o.Dialect.Sharded || b.options.apart {
		// Only steps that go to the same server and don't delay each other can share a round trip,
		// so don't gather steps here.
		return redisson.Open(o)
	}
	t.sender = gather.New(t.sendNow, nil)
	o.Settle = t.sender.Settle
	return redisson.Open(o)
}

// Limits reports that the store supports all kinds of lock, can keep released locks taken, and
// counts leases in milliseconds.
func (b *Backend) Limits() backend.Limits {
	return backend.Limits{Kinds: redisson.Kinds, Keeps: true}
}
