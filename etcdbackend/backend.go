package etcdbackend

import (
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/seed951563bd/distsync/backend"
)

// DefaultPrefix is the prefix of the keys of locks unless [WithPrefix] sets another.
const DefaultPrefix = "distsync/locks/"

// Backend keeps locks in the etcd cluster that a client is connected to. Use [New] to create one.
type Backend struct {
	store *store
}

var _ backend.Backend = (*Backend)(nil)

// An Option configures a [Backend].
type Option func(*options)

type options struct {
	prefix     string
	checkEvery time.Duration // the time between two checks of a watch stream
}

// WithPrefix sets a prefix for the keys of locks. The default is [DefaultPrefix]. All programs that
// share locks must use the same prefix, and nothing else may be stored under it.
func WithPrefix(prefix string) Option {
	return func(o *options) { o.prefix = prefix }
}

// New returns a backend that uses an etcd client. The caller must close that client after the dlock
// client. New panics if cli is nil.
//
// Give the client all members as endpoints. Then the client keeps working when a member dies, and
// skips a member that is a learner. Set the client's DialKeepAliveTime to ten seconds, the minimum
// that gRPC allows, and its DialKeepAliveTimeout to three. Then, if a member hangs, or its machine
// fails without closing connections, the client sends it no more requests until it is back.
// Otherwise some requests still go to that member and are slow, for as long as the member hangs or,
// if its machine has vanished, for many minutes.
func New(cli *clientv3.Client, opts ...Option) *Backend {
	if cli == nil {
		panic("etcdbackend: nil client")
	}
	o := options{prefix: DefaultPrefix, checkEvery: 2 * time.Second}
	for _, opt := range opts {
		opt(&o)
	}
	return &Backend{store: newStore(cli, o)}
}

// Open returns a new session.
func (b *Backend) Open() backend.Session {
	return newSession(b.store)
}

// Limits reports that etcd supports all kinds of lock, and counts leases in whole seconds. With
// etcd's default election timeout of a second, the shortest lease is 2 s: one and a half election
// timeouts, rounded up.
func (b *Backend) Limits() backend.Limits {
	return backend.Limits{MinLease: 2 * time.Second, LeaseStep: time.Second, Kinds: supported,
		Keeps: true}
}
