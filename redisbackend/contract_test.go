package redisbackend_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/contract"
	"github.com/seed951563bd/distsync/internal/testservers"
	"github.com/seed951563bd/distsync/redisbackend"
)

func TestContractOnRedis(t *testing.T) {
	server := testservers.Redis(t)
	contract.Run(t, contract.Harness{NewStore: func(t *testing.T) contract.Store {
		return store(t, single(server.Addr), []string{server.Addr})
	}})
}

func TestContractOnMiniredis(t *testing.T) {
	contract.Run(t, contract.Harness{NewStore: func(t *testing.T) contract.Store {
		s := miniredis.NewMiniRedis()
		s.ClockTTL(true)
		if err := s.StartAddr("127.0.0.1:0"); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(s.Close)
		store := store(t, single(s.Addr()), []string{s.Addr()})
		store.BreakSubscriptions = nil // it knows no CLIENT KILL
		return store
	}})
}

func TestContractOnCluster(t *testing.T) {
	nodes := testservers.RedisCluster(t, 3)
	contract.Run(t, contract.Harness{NewStore: func(t *testing.T) contract.Store {
		return store(t, clustered(nodes), addrs(nodes))
	}})
}

func TestContractOnClusterWithShardedPubSub(t *testing.T) {
	nodes := testservers.RedisCluster(t, 3)
	contract.Run(t, contract.Harness{NewStore: func(t *testing.T) contract.Store {
		exceptLocker(t)
		return store(t, clustered(nodes), addrs(nodes), redisbackend.WithShardedPubSub())
	}})
}

func TestContractOnSentinel(t *testing.T) {
	s := testservers.RedisSentinel(t, 1, never)
	contract.Run(t, contract.Harness{NewStore: func(t *testing.T) contract.Store {
		exceptLocker(t)
		return store(t, failover(s), []string{s.Master.Addr})
	}})
}

func TestContractOnSentinelWithReplicas(t *testing.T) {
	s := testservers.RedisSentinel(t, 2, never)
	contract.Run(t, contract.Harness{NewStore: func(t *testing.T) contract.Store {
		exceptLocker(t)
		return store(t, failover(s), []string{s.Master.Addr}, redisbackend.WithReplicas(2, ample))
	}})
}

// never is how long the sentinels wait where a busy machine should not make them think that the
// master is dead.
const never = time.Hour

// exceptLocker skips the part of the suite that takes a minute of real time. It is run once on a
// single server, where the client is the same, and once on a cluster.
func exceptLocker(t *testing.T) {
	t.Helper()
	if strings.Contains(t.Name(), "/locker/") {
		t.Skip("run on other stores")
	}
}

// A connector makes new clients of one kind.
type connector func(t *testing.T) redis.UniversalClient

func single(addr string) connector {
	return func(t *testing.T) redis.UniversalClient { return connect(t, addr) }
}

func clustered(nodes []*testservers.Server) connector {
	return func(t *testing.T) redis.UniversalClient { return connectCluster(t, nodes) }
}

func failover(s *testservers.Sentinel) connector {
	return func(t *testing.T) redis.UniversalClient {
		t.Helper()
		client := redis.NewFailoverClient(&redis.FailoverOptions{MasterName: s.Name, SentinelAddrs: s.SentinelAddrs()})
		t.Cleanup(func() { client.Close() })
		return client
	}
}

// store is what the suite needs, on masters that are empty.
func store(t *testing.T, connector connector, masters []string, opts ...redisbackend.Option) contract.Store {
	ctx := context.Background()
	admin := connector(t)
	var nodes []*redis.Client
	for _, master := range masters {
		nodes = append(nodes, connect(t, master))
	}
	wipe := func() {
		for _, node := range nodes {
			must[string](t)(node.FlushAll(ctx).Result())
		}
	}
	wipe()
	return contract.Store{
		Backend:    func() backend.Backend { return redisbackend.New(connector(t), opts...) },
		PutForeign: func(name string) { must[string](t)(admin.Set(ctx, name, "foreign", 0).Result()) },
		ForeignIntact: func(name string) bool {
			value, err := admin.Get(ctx, name).Result()
			return err == nil && value == "foreign"
		},
		Wipe: wipe,
		BreakSubscriptions: func() {
			for _, node := range nodes {
				must[int64](t)(node.ClientKillByFilter(ctx, "TYPE", "pubsub").Result())
			}
		},
	}
}
