package redisbackend_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/internal/test/testservers"
	"github.com/seed951563bd/distsync/internal/test/wiretest"
	"github.com/seed951563bd/distsync/redisbackend"
)

func connectCluster(
	t testing.TB, nodes []*testservers.Server, change ...func(*redis.ClusterOptions),
) *redis.ClusterClient {
	t.Helper()
	opts := &redis.ClusterOptions{Addrs: wiretest.Addrs(nodes)}
	for _, c := range change {
		c(opts)
	}
	client := redis.NewClusterClient(opts)
	t.Cleanup(func() { client.Close() })
	return client
}

// logged gets each line that go-redis logs.
type logged func(line string)

func (l logged) Printf(_ context.Context, format string, args ...any) {
	l(fmt.Sprintf(format, args...))
}

func TestCluster(t *testing.T) {
	t.Parallel()
	nodes := testservers.RedisCluster(t, 3)
	wiretest.InCluster(t, nodes, this, func() backend.Backend {
		return redisbackend.New(connectCluster(t, nodes, func(o *redis.ClusterOptions) {
			o.ReadTimeout = 2 * testservers.Patience
		}))
	})
	t.Run("reading from replicas", func(t *testing.T) {
		redis.SetLogger(logged(func(line string) {
			if strings.Contains(line, "info for cmd=") { // of a command that it doesn't know
				t.Error(line)
			}
		}))
		defer logging.Enable()
		wiretest.TakesAllSteps(t, open(t, connectCluster(t, nodes, func(o *redis.ClusterOptions) {
			o.ReadOnly = true
		})))
	})
}

// TestNothingIsAskedOfReplicas has a client prefer replicas for commands that only read. Those of a
// lock go to masters all the same: a replica may not know yet who has it.
func TestNothingIsAskedOfReplicas(t *testing.T) {
	t.Parallel()
	masters := testservers.RedisCluster(t, 3)
	replicas := testservers.RedisClusterReplicas(t, masters)
	asked := func() (n int) {
		for _, replica := range replicas {
			stats := replica.Do("INFO", "commandstats")
			for _, verb := range []string{"eval", "evalsha", "exists", "hget", "pttl"} {
				n += strings.Count(stats, "cmdstat_"+verb+":")
			}
		}
		return n
	}
	reset := func() {
		for _, replica := range replicas {
			replica.Do("CONFIG", "RESETSTAT")
		}
	}
	reset()
	// A node lists its replica only when that has copied something.
	testservers.Until(t, "a replica is asked what isn't about locks", func() bool {
		opts := &redis.ClusterOptions{Addrs: wiretest.Addrs(masters), ReadOnly: true}
		client := redis.NewClusterClient(opts)
		defer client.Close()
		client.Set(t.Context(), "{n}data", "1", 0)
		client.Exists(t.Context(), "{n}data")
		return asked() > 0
	})
	for name, change := range map[string]func(*redis.ClusterOptions){
		"read only":  func(o *redis.ClusterOptions) { o.ReadOnly = true },
		"by latency": func(o *redis.ClusterOptions) { o.RouteByLatency = true },
		"randomly":   func(o *redis.ClusterOptions) { o.RouteRandomly = true },
	} {
		t.Run(name, func(t *testing.T) {
			reset()
			s := open(t, connectCluster(t, masters, change))
			for range 5 {
				wiretest.TakesAllSteps(t, s)
			}
			if n := asked(); n > 0 {
				t.Errorf("replicas were asked %d kinds of question", n)
			}
		})
	}
}
