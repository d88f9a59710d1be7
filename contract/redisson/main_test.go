// Package redisson_test runs Redisson itself, in a Java program of its own, against clients in Go,
// on the same servers and for the same locks. The program is src/main/java/Peer.java, and pom.xml
// says how to build it. docs/redisson-commands.md lists the commands that the tests see on the
// wire.
//
// Tests download nothing. To make Maven download what they need, run once for each version
//
//	mvn -q -B -f contract/redisson -Dredisson.version=VERSION
//
// Without that, or without Java and Maven, the tests are skipped. They fail instead if
// DISTSYNC_REQUIRE_SERVERS=1 is set.
package redisson_test

import (
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/valkey-io/valkey-go"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/dlock"
	"github.com/seed951563bd/distsync/internal/test/apart"
	"github.com/seed951563bd/distsync/internal/test/depth"
	"github.com/seed951563bd/distsync/internal/test/testservers"
	"github.com/seed951563bd/distsync/internal/test/wiretest"
	"github.com/seed951563bd/distsync/redisbackend"
	"github.com/seed951563bd/distsync/valkeybackend"
)

func TestMain(m *testing.M) {
	apart.SideBySide(12)
	wiretest.VerifyTestMain(m, wiretest.ValkeyLingers()...)
}

// versions are the releases of Redisson that the tests run. One is the newest. The other one has
// the old scripts of locks: 3.24 introduced another way to unlock.
var versions = []string{"4.7.0", "3.23.5"}

// undecided is a release of Redisson that asks one node of a cluster whether to use sharded
// channels. Few nodes answer its question, so it mostly doesn't use them.
const undecided = "3.27.2"

// loadVersions are the releases that take part in loads. The undecided one has the new way to
// unlock and the old way to renew.
var loadVersions = append(slices.Clone(versions), undecided)

const (
	// longLease is a lease that no test waits for: ten times a test's patience. Waiters poll no
	// sooner than after a third of it.
	longLease = 10 * testservers.Patience

	// shortLease is for leases that are renewed in time, or that the test lets expire.
	shortLease = 3 * time.Second

	// startPatience is how long a JVM may take to start on a busy machine.
	startPatience = 4 * testservers.Patience
)

// A place is a store of locks, with the ways in which the two sides connect.
type place struct {
	servers []*testservers.Server
	config  redissonConfig
	admin   redis.UniversalClient // for the tests' own requests
	sharded bool                  // releases are published on sharded channels
	monitor *monitor
	backend func(t *testing.T) backend.Backend // returns a new client of the place
}

// A lab is a place with a Java process. For cases that run for several kinds of lock it also has
// the kind.
type lab struct {
	*place
	java *peer
	kind
}

var places = []struct {
	name     string
	start    func(t *testing.T) *place
	versions []string // of Redisson
	needs    depth.Depth
}{
	{"redis", redisPlace, versions, depth.Quick},
	{"redis by valkey-go", redisByValkeyPlace, versions, depth.Change},
	{"valkey by valkey-go", valkeyPlace, versions[:1], depth.Quick},
	{"cluster", clusterPlace, versions, depth.Change},
	{"cluster by valkey-go", clusterByValkeyPlace, versions[:1], depth.Change},
	// 3.23.5 has no setting for that.
	{"cluster without sharded channels", unshardedPlace, versions[:1], depth.Change},
}

func TestRedisson(t *testing.T) {
	needJava(t)
	t.Parallel()
	for _, where := range places {
		t.Run(where.name, func(t *testing.T) {
			depth.Needs(t, where.needs)
			t.Parallel()
			p := where.start(t)
			for i, version := range where.versions {
				t.Run(version, func(t *testing.T) {
					switch { // a version speaks in the same way to each server
					case i == 0:
					case where.name == "redis":
						depth.Needs(t, depth.Change)
					default:
						depth.Needs(t, depth.Night)
					}
					t.Parallel()
					java := startPeer(t, version, p.config, longLease)
					for _, k := range exclusive {
						t.Run(k.name, func(t *testing.T) {
							run(t, &lab{p, java, k}, exclusiveCases)
						})
					}
					t.Run("read and write", func(t *testing.T) {
						run(t, &lab{p, java, kind{}}, readWriteCases)
					})
					t.Run("permits", func(t *testing.T) {
						run(t, &lab{p, java, kind{}}, permitCases)
					})
					t.Run("fair", func(t *testing.T) {
						run(t, &lab{p, java, fair}, fairLockerCases)
					})
					t.Run("in line", func(t *testing.T) {
						run(t, &lab{p, java, kind{}}, fairCases)
					})
					t.Run("tokens", func(t *testing.T) {
						run(t, &lab{p, java, kind{}}, fencedCases)
					})
					t.Run("latches", func(t *testing.T) {
						run(t, &lab{p, java, kind{}}, latchCases)
					})
					t.Run("seen from outside", func(t *testing.T) {
						run(t, &lab{p, java, kind{}}, inspectCases)
					})
					t.Run("kept", func(t *testing.T) { run(t, &lab{p, java, kind{}}, keepCases) })
				})
			}
		})
	}
}

func run(t *testing.T, l *lab, cases []testCase) {
	t.Parallel()
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			c.run(t, l)
		})
	}
}

func TestWatchdogs(t *testing.T) {
	needJava(t)
	t.Parallel()
	for name, start := range map[string]func(t *testing.T) *place{
		"redis":   redisPlace,
		"cluster": clusterPlace,
	} {
		t.Run(name, func(t *testing.T) {
			if name != "redis" {
				depth.Needs(t, depth.Change)
			}
			t.Parallel()
			watchdogs(t, start(t))
		})
	}
}

func redisPlace(t *testing.T) *place {
	p := single(t, testservers.Redis(t))
	p.backend = byRedis(p)
	return p
}

// byRedis connects by go-redis.
func byRedis(p *place) func(t *testing.T) backend.Backend {
	return func(t *testing.T) backend.Backend {
		rdb := redis.NewClient(&redis.Options{Addr: p.servers[0].Addr})
		t.Cleanup(func() { rdb.Close() })
		return redisbackend.New(rdb)
	}
}

func redisByValkeyPlace(t *testing.T) *place { return byValkey(single(t, testservers.Redis(t))) }
func valkeyPlace(t *testing.T) *place        { return byValkey(single(t, testservers.Valkey(t))) }

func byValkey(p *place) *place {
	p.backend = func(t *testing.T) backend.Backend {
		return valkeybackend.New(connectValkey(t, p.servers))
	}
	return p
}

func single(t *testing.T, server *testservers.Server) *place {
	p := unwatched(t, server)
	p.monitor = watch(t, p.servers)
	return p
}

// unwatched is a place with one server, and without a monitor, which would cost time for each
// command.
func unwatched(t *testing.T, server *testservers.Server) *place {
	admin := redis.NewClient(&redis.Options{Addr: server.Addr})
	t.Cleanup(func() { admin.Close() })
	servers := []*testservers.Server{server}
	return &place{
		servers: servers,
		config:  redissonConfig{Single: &singleConfig{"redis://" + server.Addr, redissonTimeout}},
		admin:   admin,
	}
}

// clusterPlace is a cluster in which Redisson finds out that it can use sharded channels, and does.
func clusterPlace(t *testing.T) *place {
	p := cluster(t, "")
	p.sharded = true
	p.backend = byCluster(p)
	return p
}

// byCluster connects by go-redis, to a cluster with sharded channels.
func byCluster(p *place) func(t *testing.T) backend.Backend {
	return func(t *testing.T) backend.Backend {
		return redisbackend.New(connectCluster(t, p.servers), redisbackend.WithShardedPubSub())
	}
}

func clusterByValkeyPlace(t *testing.T) *place {
	p := clusterPlace(t)
	p.backend = func(t *testing.T) backend.Backend {
		return valkeybackend.New(connectValkey(t, p.servers), valkeybackend.WithShardedPubSub())
	}
	return p
}

// unshardedPlace is a cluster in which Redisson is told not to use sharded channels.
func unshardedPlace(t *testing.T) *place {
	p := cluster(t, "OFF")
	p.backend = byUnshardedCluster(p)
	return p
}

func byUnshardedCluster(p *place) func(t *testing.T) backend.Backend {
	return func(t *testing.T) backend.Backend {
		return redisbackend.New(connectCluster(t, p.servers))
	}
}

func cluster(t *testing.T, sharded string) *place {
	p := unwatchedCluster(t, sharded)
	p.monitor = watch(t, p.servers)
	return p
}

func unwatchedCluster(t *testing.T, sharded string) *place {
	servers := testservers.RedisCluster(t, 3)
	var urls []string
	for _, addr := range addrs(servers) {
		urls = append(urls, "redis://"+addr)
	}
	return &place{
		servers: servers,
		config:  redissonConfig{Cluster: &clusterConfig{urls, sharded, redissonTimeout}},
		admin:   connectCluster(t, servers),
	}
}

func connectCluster(t *testing.T, servers []*testservers.Server) *redis.ClusterClient {
	rdb := redis.NewClusterClient(&redis.ClusterOptions{Addrs: addrs(servers)})
	t.Cleanup(func() { rdb.Close() })
	return rdb
}

func connectValkey(t *testing.T, servers []*testservers.Server) valkey.Client {
	vk, err := valkey.NewClient(valkey.ClientOption{InitAddress: addrs(servers)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(vk.Close)
	return vk
}

func addrs(servers []*testservers.Server) (addrs []string) {
	for _, s := range servers {
		addrs = append(addrs, s.Addr)
	}
	return addrs
}

// client returns a client in Go, as another process would have it.
func (p *place) client(t *testing.T, opts ...dlock.Option) *dlock.Client {
	t.Helper()
	c := dlock.New(p.backend(t), append([]dlock.Option{dlock.WithLease(longLease)}, opts...)...)
	t.Cleanup(func() { c.Close() })
	return c
}
