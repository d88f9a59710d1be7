package redisbackend_test

import (
	"testing"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/internal/test/apart"
	"github.com/seed951563bd/distsync/internal/test/testservers"
	"github.com/seed951563bd/distsync/internal/test/wiretest"
	"github.com/seed951563bd/distsync/redisbackend"
)

func TestMain(m *testing.M) {
	apart.SideBySide(16)
	wiretest.VerifyTestMain(m)
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
	wantHash = wiretest.WantHash
)

type session = wiretest.Session

// anywhere runs a test on miniredis, and on a real server where there is one.
func anywhere(t *testing.T, test func(t *testing.T, addr string)) {
	t.Helper()
	t.Run("miniredis", func(t *testing.T) { test(t, miniredis.RunT(t).Addr()) })
	t.Run("redis", func(t *testing.T) { test(t, testservers.Redis(t).Addr) })
}

func connect(t testing.TB, addr string, change ...func(*redis.Options)) *redis.Client {
	t.Helper()
	opts := &redis.Options{Addr: addr}
	for _, c := range change {
		c(opts)
	}
	client := redis.NewClient(opts)
	t.Cleanup(func() { client.Close() })
	return client
}

// on makes a backend with go-redis's defaults.
func on(t testing.TB, addr string) backend.Backend { return redisbackend.New(connect(t, addr)) }

// this makes the backends of this package.
var this = wiretest.Package{
	Server: func(t testing.TB, addr string, o wiretest.Options) backend.Backend {
		return redisbackend.New(connect(t, addr, as(o.User)), options(o)...)
	},
	Cluster: func(t testing.TB, nodes []*testservers.Server, o wiretest.Options) backend.Backend {
		login := func(opts *redis.ClusterOptions) {
			opts.Username, opts.Password = o.User, password(o.User)
		}
		return redisbackend.New(connectCluster(t, nodes, login), options(o)...)
	},
	Sentinel: func(t testing.TB, s *testservers.Sentinel, o wiretest.Options) backend.Backend {
		return redisbackend.New(connectSentinel(t, s), options(o)...)
	},
}

func options(o wiretest.Options) (opts []redisbackend.Option) {
	if o.Replicas > 0 {
		opts = append(opts, redisbackend.WithReplicas(o.Replicas, o.Timeout))
	}
	if o.Sharded {
		opts = append(opts, redisbackend.WithShardedPubSub())
	}
	if o.Prefix != "" {
		opts = append(opts, redisbackend.WithPrefix(o.Prefix))
	}
	return opts
}

func connectSentinel(t testing.TB, s *testservers.Sentinel) *redis.Client {
	t.Helper()
	client := redis.NewFailoverClient(&redis.FailoverOptions{
		MasterName: s.Name, SentinelAddrs: s.SentinelAddrs(),
	})
	t.Cleanup(func() { client.Close() })
	return client
}

func as(user string) func(*redis.Options) {
	return func(o *redis.Options) { o.Username, o.Password = user, password(user) }
}

// password is that of a user of the tests.
func password(user string) string {
	if user == "" {
		return ""
	}
	return "secret"
}

func open(t testing.TB, client redis.UniversalClient, opts ...redisbackend.Option) session {
	t.Helper()
	s := redisbackend.New(client, opts...).Open().(session)
	t.Cleanup(func() { s.Close() })
	return s
}
