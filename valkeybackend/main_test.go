package valkeybackend_test

import (
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/valkey-io/valkey-go"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/internal/test/apart"
	"github.com/seed951563bd/distsync/internal/test/testservers"
	"github.com/seed951563bd/distsync/internal/test/wiretest"
	"github.com/seed951563bd/distsync/valkeybackend"
)

func TestMain(m *testing.M) {
	apart.SideBySide(16)
	wiretest.VerifyTestMain(m, wiretest.ValkeyLingers()...)
}

// These are short names for helpers that the tests use all the time.
const (
	alice = wiretest.Alice
	bob   = wiretest.Bob
	lease = wiretest.Lease
)

var (
	acquire  = wiretest.Acquire
	reenter  = wiretest.Reenter
	release  = wiretest.Release
	renew    = wiretest.Renew
	steps    = wiretest.Steps
	wantKind = wiretest.WantKind

	subscribe = wiretest.Subscribe
)

type session = wiretest.Session

// onServers runs a test on both kinds of real server, where they are installed.
func onServers(t *testing.T, test func(t *testing.T, server *testservers.Server)) {
	t.Helper()
	t.Run("valkey", func(t *testing.T) { test(t, testservers.Valkey(t)) })
	t.Run("redis", func(t *testing.T) { test(t, testservers.Redis(t)) })
}

// anywhere runs a test on miniredis, too.
func anywhere(t *testing.T, test func(t *testing.T, addr string)) {
	t.Helper()
	t.Run("miniredis", func(t *testing.T) { test(t, miniredis.RunT(t).Addr()) })
	onServers(t, func(t *testing.T, server *testservers.Server) { test(t, server.Addr) })
}

type option = func(*valkey.ClientOption)

// connect returns a client with valkey-go's defaults that is closed with the test.
func connect(t testing.TB, addr string, change ...option) valkey.Client {
	t.Helper()
	client, err := dial(t, addr, change...)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// connectSimply returns a client that asks nothing of the server but the essential, for miniredis.
func connectSimply(t testing.TB, addr string, change ...option) valkey.Client {
	t.Helper()
	simple := func(o *valkey.ClientOption) { o.DisableCache, o.ForceSingleClient = true, true }
	return connect(t, addr, append([]option{simple}, change...)...)
}

// connectLater returns a client that has perhaps not reached the server.
func connectLater(t testing.TB, addr string, change ...option) valkey.Client {
	t.Helper()
	single := func(o *valkey.ClientOption) { o.ForceSingleClient = true }
	client, _ := dial(t, addr, append([]option{single}, change...)...)
	if client == nil {
		t.Fatal("no client")
	}
	return client
}

func dial(t testing.TB, addr string, change ...option) (valkey.Client, error) {
	opts := valkey.ClientOption{InitAddress: []string{addr}}
	for _, c := range change {
		c(&opts)
	}
	client, closeAll, err := wiretest.NewValkey(opts)
	t.Cleanup(closeAll)
	return client, err
}

// as is for a user, if there is one, who has this password.
func as(user string) option {
	return func(o *valkey.ClientOption) {
		if user != "" {
			o.Username, o.Password = user, "secret"
		}
	}
}

// simple is for a server without HELLO and CLIENT.
func simple(yes bool) option {
	return func(o *valkey.ClientOption) {
		if yes {
			o.AlwaysRESP2, o.DisableCache, o.ForceSingleClient = true, true, true
			o.ClientSetInfo = valkey.DisableClientSetInfo
		}
	}
}

// impatient lets a client give up a server that hangs.
func impatient(o *valkey.ClientOption) {
	o.Dialer.Timeout = 200 * time.Millisecond
	o.Dialer.KeepAlive = 20 * time.Millisecond
	o.ConnWriteTimeout = 100 * time.Millisecond
}

// admin returns a client of another kind, to look at and change what is on a server.
func admin(t *testing.T, addr string) *redis.Client {
	t.Helper()
	client := redis.NewClient(&redis.Options{Addr: addr})
	t.Cleanup(func() { client.Close() })
	return client
}

func open(t testing.TB, client valkey.Client, opts ...valkeybackend.Option) session {
	t.Helper()
	s := valkeybackend.New(client, opts...).Open().(session)
	t.Cleanup(func() { s.Close() })
	return s
}

// on makes a backend with valkey-go's defaults.
func on(t testing.TB, addr string) backend.Backend { return valkeybackend.New(connect(t, addr)) }

// simply makes a backend for miniredis.
func simply(t testing.TB, addr string) backend.Backend {
	return valkeybackend.New(connectSimply(t, addr))
}

// this makes the backends of this package.
var this = wiretest.Package{
	Server: func(t testing.TB, addr string, o wiretest.Options) backend.Backend {
		return valkeybackend.New(connect(t, addr, as(o.User), simple(o.Simple)), options(o)...)
	},
	Cluster: func(t testing.TB, nodes []*testservers.Server, o wiretest.Options) backend.Backend {
		return valkeybackend.New(connectCluster(t, nodes, as(o.User)), options(o)...)
	},
	Sentinel: func(t testing.TB, s *testservers.Sentinel, o wiretest.Options) backend.Backend {
		return valkeybackend.New(connectSentinel(t, s), options(o)...)
	},
}

func options(o wiretest.Options) (opts []valkeybackend.Option) {
	if o.Replicas > 0 {
		opts = append(opts, valkeybackend.WithReplicas(o.Replicas, o.Timeout))
	}
	if o.Sharded {
		opts = append(opts, valkeybackend.WithShardedPubSub())
	}
	if o.Prefix != "" {
		opts = append(opts, valkeybackend.WithPrefix(o.Prefix))
	}
	return opts
}

// connectCluster returns a client that is told of one node, and learns of the others. If it were
// told of several, it would connect to some twice, and close what is too much after some seconds.
func connectCluster(t testing.TB, nodes []*testservers.Server, change ...option) valkey.Client {
	t.Helper()
	return connect(t, nodes[0].Addr, change...)
}

// connectSentinel returns a client that asks the sentinels for the master.
func connectSentinel(t testing.TB, s *testservers.Sentinel) valkey.Client {
	t.Helper()
	return connect(t, "", func(o *valkey.ClientOption) {
		o.InitAddress, o.Sentinel.MasterSet = s.SentinelAddrs(), s.Name
	})
}
