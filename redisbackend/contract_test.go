package redisbackend_test

import (
	"os/exec"
	"testing"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/contract"
	"github.com/seed951563bd/distsync/contract/faults"
	"github.com/seed951563bd/distsync/internal/test/depth"
	"github.com/seed951563bd/distsync/internal/test/testservers"
	"github.com/seed951563bd/distsync/internal/test/wiretest"
	"github.com/seed951563bd/distsync/redisbackend"
)

func TestContractOnRedis(t *testing.T) {
	wiretest.Suite(t, 12, nil, func() contract.Harness {
		server := testservers.Redis(t)
		all := []*testservers.Server{server}
		return contract.Harness{NewStore: func(t *testing.T) contract.Store {
			at := func(addr string) backend.Backend {
				return this.Server(t, addr, wiretest.Options{})
			}
			store := wiretest.Store(t, all, func(t *testing.T) backend.Backend {
				return this.Server(t, server.Addr, wiretest.Options{})
			})
			store.Fragile = wiretest.Fragile(t, server.Addr, faults.RESP, at)
			return store
		}}
	})
}

func TestContractOnMiniredis(t *testing.T) {
	const panics = "list/bytes" // its SCAN does, when it is given a pattern that is no UTF-8
	choice := func(c contract.Case) bool {
		return c.Name != panics && (depth.Now() > depth.Quick || wiretest.Essential(c))
	}
	if _, missing := exec.LookPath("redis-server"); missing == nil {
		depth.Needs(t, depth.Change)
		// The other parts are run on that. So are steps that may be under way when a lease ends,
		// because keys of miniredis may end in the middle of a script. On a server they never do.
		choice = func(c contract.Case) bool {
			midway := c.Tags.Has(contract.InLine) || c.Name == "inspect/over"
			return c.Part == "steps" && !midway && c.Name != panics
		}
	}
	newStore := func(t *testing.T) contract.Store {
		s := miniredis.NewMiniRedis()
		s.ClockTTL(true)
		if err := s.StartAddr("127.0.0.1:0"); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(s.Close)
		patient := func(o *redis.Options) {
			o.ReadTimeout = testservers.Patience // miniredis interprets scripts slowly
		}
		return contract.Store{
			Backend: func() backend.Backend {
				return redisbackend.New(connect(t, s.Addr(), patient))
			},
			PutForeign: func(name string) { s.Set(name, "foreign") },
			ForeignIntact: func(name string) bool {
				value, err := s.Get(name)
				return err == nil && value == "foreign"
			},
			Wipe: s.FlushAll, // it knows no CLIENT KILL
			Fragile: wiretest.Fragile(t, s.Addr(), faults.RESP, func(addr string) backend.Backend {
				return redisbackend.New(connect(t, addr))
			}),
		}
	}
	wiretest.Suite(t, 3, choice, func() contract.Harness {
		return contract.Harness{NewStore: newStore}
	})
}

func TestContractOnCluster(t *testing.T) {
	choice := depth.Of[wiretest.Choice](wiretest.Essential, nil, nil)
	wiretest.Suite(t, 4, choice, func() contract.Harness {
		nodes := testservers.RedisCluster(t, 3)
		return contract.Harness{NewStore: func(t *testing.T) contract.Store {
			return wiretest.Store(t, nodes, func(t *testing.T) backend.Backend {
				return this.Cluster(t, nodes, wiretest.Options{})
			})
		}}
	})
}

// A node of a cluster that hangs delays nobody whose locks are at other nodes. The locks at that
// node wait for it, as where the only server hangs: so each part is a node that has none of the
// case's locks. It takes minutes, in real time.
func TestContractOnClusterWithParts(t *testing.T) {
	depth.Needs(t, depth.Night)
	nodes := testservers.RedisCluster(t, 4)
	contract.Run(t, contract.Harness{
		Choose: wiretest.PartHangs,
		NewStore: func(t *testing.T) contract.Store {
			store := wiretest.Store(t, nodes, func(t *testing.T) backend.Backend {
				return this.Cluster(t, nodes, wiretest.Options{})
			})
			store.Parts = wiretest.NodesWithout(t, nodes)
			return store
		},
	})
}

func TestContractOnClusterWithShardedPubSub(t *testing.T) {
	depth.Needs(t, depth.Change)
	wiretest.Suite(t, 1, wiretest.StepsAndModel, func() contract.Harness {
		nodes := testservers.RedisCluster(t, 3)
		return contract.Harness{NewStore: func(t *testing.T) contract.Store {
			return wiretest.Store(t, nodes, func(t *testing.T) backend.Backend {
				return this.Cluster(t, nodes, wiretest.Options{Sharded: true})
			})
		}}
	})
}

func TestContractOnSentinel(t *testing.T) {
	depth.Needs(t, depth.Change)
	wiretest.Suite(t, 1, wiretest.StepsAndModel, func() contract.Harness {
		s := testservers.RedisSentinel(t, 1, wiretest.Never)
		master := []*testservers.Server{s.Master}
		return contract.Harness{NewStore: func(t *testing.T) contract.Store {
			return wiretest.Store(t, master, func(t *testing.T) backend.Backend {
				return this.Sentinel(t, s, wiretest.Options{})
			})
		}}
	})
}

func TestContractOnSentinelWithReplicas(t *testing.T) {
	depth.Needs(t, depth.Change)
	wiretest.Suite(t, 1, wiretest.StepsAndModel, func() contract.Harness {
		s := testservers.RedisSentinel(t, 2, wiretest.Never)
		master := []*testservers.Server{s.Master}
		return contract.Harness{NewStore: func(t *testing.T) contract.Store {
			return wiretest.Store(t, master, func(t *testing.T) backend.Backend {
				return this.Sentinel(t, s, wiretest.Options{Replicas: 2, Timeout: wiretest.Ample})
			})
		}}
	})
}
