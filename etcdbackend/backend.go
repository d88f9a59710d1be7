package etcdbackend

import (
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/seed951563bd/distsync/backend"
)

// DefaultPrefix is the prefix of the keys of locks unless [WithPrefix] sets another.
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

// WithPrefix sets a prefix of the keys of locks; the default is [DefaultPrefix]. All programs that
// share locks must use the same prefix, and no other data may have keys with it.
func WithPrefix(prefix string) Option {
	return func(o *options) { o.prefix = prefix }
}

// New returns a backend on an etcd client, which stays the caller's: close it after the client of
// the locks. New panics if cli is nil.
//
// Give the client all members as endpoints: it then goes on when one of them dies, and passes over
// a learner. Set its DialKeepAliveTime to ten seconds, the least that gRPC knows, and its
// DialKeepAliveTimeout to three. Then the client stops asking a member that hangs, or a machine
// that fails without closing connections, until it is back. Otherwise one request after the other
// goes there, and waits as long as it hangs, or for many minutes if it has vanished.
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

// Limits says that etcd has all kinds of lock, and counts leases in whole seconds. The shortest is
// 2 s by default: one and a half election timeouts, of a second each, rounded up.
func (b *Backend) Limits() backend.Limits {
	return backend.Limits{MinLease: 2 * time.Second, LeaseStep: time.Second, Kinds: kinds, Keeps: true}
}

var kinds = backend.KindsOf(backend.Fenced, backend.Read, backend.Write, backend.Permits, backend.Fair)
