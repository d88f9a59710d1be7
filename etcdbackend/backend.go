package etcdbackend

import (
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/seed951563bd/distsync/backend"
)

// DefaultPrefix is what the keys of locks begin with if [WithPrefix] says nothing else.
const DefaultPrefix = "distsync/locks/"

// Backend keeps locks in the etcd that a client is connected to. Make it with [New].
type Backend struct {
	store *store
}

var _ backend.Backend = (*Backend)(nil)

// An Option changes how a [Backend] works.
type Option func(*options)

type options struct {
	prefix     string
	checkEvery time.Duration // how long a silent stream of watches is trusted
}

// WithPrefix sets what the keys of locks begin with; default [DefaultPrefix]. All who share locks
// must use the same prefix, and nothing else may use keys that begin with it.
func WithPrefix(prefix string) Option {
	return func(o *options) { o.prefix = prefix }
}

// New returns a backend on an etcd client, which stays the caller's, who closes it after the locks
// are closed. New panics if cli is nil.
//
// Give the client all members as endpoints: it then goes on when one of them dies. A learner among
// them is passed over. Set its DialKeepAliveTime to ten seconds, which is the least that gRPC knows,
// and its DialKeepAliveTimeout to three, too. A member may hang, or a machine or network fail
// without closing connections: the client asks it no more then, until it is back. Otherwise
// one request after the other is sent there, and waits, for as long as it hangs, or for many minutes
// if it has vanished.
func New(cli *clientv3.Client, opts ...Option) *Backend {
	if cli == nil {
		panic("etcdbackend: nil client")
	}
	o := options{prefix: DefaultPrefix, checkEvery: 5 * time.Second}
	for _, opt := range opts {
		opt(&o)
	}
	return &Backend{store: newStore(cli, o)}
}

// Open returns a new session.
func (b *Backend) Open() backend.Session {
	return newSession(b.store)
}

// Limits says that etcd counts leases in whole seconds, and keeps them for at least two: one and a
// half of its election timeouts, which is a second by default, rounded up. It knows all
// kinds.
func (b *Backend) Limits() backend.Limits {
	return backend.Limits{MinLease: 2 * time.Second, LeaseStep: time.Second, Kinds: kinds, Keeps: true}
}

var kinds = backend.KindsOf(backend.Fenced, backend.Read, backend.Write, backend.Permits, backend.Fair)
