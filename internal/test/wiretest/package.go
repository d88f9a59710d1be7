package wiretest

import (
	"testing"
	"time"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/dlock"
	"github.com/seed951563bd/distsync/internal/test/testservers"
)

// A Package makes the backends of one package, each with a new client that is closed with the test.
type Package struct {
	Server   func(t testing.TB, addr string, o Options) backend.Backend
	Cluster  func(t testing.TB, nodes []*testservers.Server, o Options) backend.Backend
	Sentinel func(t testing.TB, s *testservers.Sentinel, o Options) backend.Backend
}

// Options are those that backends can be made with. The zero value is for none.
type Options struct {
	User     string        // who logs in, with the password "secret"
	Replicas int           // to wait for
	Timeout  time.Duration // for these
	Sharded  bool          // sharded pub/sub
	Prefix   string        // of keys
	Simple   bool          // the client does without HELLO and CLIENT
}

// Times to wait for replicas: for those that answer, and for those that don't.
const (
	Ample = 4 * time.Second
	Scant = 50 * time.Millisecond
)

// Never is how long sentinels wait where a busy machine should not make them think that the master is
// dead.
const Never = time.Hour

// open returns a session that is closed with the test.
func open(t testing.TB, b backend.Backend) Session {
	s := b.Open().(Session)
	t.Cleanup(func() { s.Close() })
	return s
}

// locks returns a client that is closed with the test.
func locks(t testing.TB, b backend.Backend, opts ...dlock.Option) *dlock.Client {
	c := dlock.New(b, opts...)
	t.Cleanup(func() { c.Close() })
	return c
}
