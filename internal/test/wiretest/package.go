package wiretest

import (
	"testing"
	"time"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/dlock"
	"github.com/seed951563bd/distsync/internal/test/testservers"
)

// A Package creates backends of the package under test. Each backend has a new client, which is
// closed when the test ends.
type Package struct {
	Server   func(t testing.TB, addr string, o Options) backend.Backend
	Cluster  func(t testing.TB, nodes []*testservers.Server, o Options) backend.Backend
	Sentinel func(t testing.TB, s *testservers.Sentinel, o Options) backend.Backend
}

// Options are the options of backends. The zero value sets none.
type Options struct {
	User     string        // name of the user; the password is "secret"
	Replicas int           // number of replicas to wait for
	Timeout  time.Duration // timeout of the wait for replicas
	Sharded  bool          // sharded pub/sub
	Prefix   string        // prefix of keys
	Simple   bool          // the client doesn't use HELLO and CLIENT
}

// Timeouts for replicas that answer, and for replicas that don't.
const (
	Ample = 4 * time.Second
	Scant = 50 * time.Millisecond
)

// Never is a timeout for sentinels. It is so long that they don't declare the master dead just
// because the machine is busy.
const Never = time.Hour

// open returns a session that is closed when the test ends.
func open(t testing.TB, b backend.Backend) Session {
	s := b.Open().(Session)
	t.Cleanup(func() { s.Close() })
	return s
}

// locks returns a client that is closed when the test ends.
func locks(t testing.TB, b backend.Backend, opts ...dlock.Option) *dlock.Client {
	c := dlock.New(b, opts...)
	t.Cleanup(func() { c.Close() })
	return c
}
