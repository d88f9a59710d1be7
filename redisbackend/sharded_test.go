package redisbackend_test

import (
	"fmt"
	"testing"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/internal/test/testservers"
	"github.com/seed951563bd/distsync/internal/test/wiretest"
	"github.com/seed951563bd/distsync/redisbackend"
)

func TestShardedPubSub(t *testing.T) {
	t.Parallel()
	for _, protocol := range []int{2, 3} {
		t.Run(fmt.Sprintf("RESP%d", protocol), func(t *testing.T) {
			p := this
			p.Cluster = func(
				t testing.TB, nodes []*testservers.Server, o wiretest.Options,
			) backend.Backend {
				speak := func(o *redis.ClusterOptions) { o.Protocol = protocol }
				return redisbackend.New(connectCluster(t, nodes, speak), options(o)...)
			}
			wiretest.Sharded(t, p, testservers.RedisCluster(t, 3))
		})
	}
}

func TestShardedPubSubOnOneServer(t *testing.T) {
	wiretest.ShardedOnOneServer(t, this, testservers.Redis(t))
}

func TestShardedPubSubTogether(t *testing.T) {
	wiretest.ShardedTogether(t, this, testservers.Redis(t))
}

// Servers before Redis 7 know no sharded channels; miniredis answers as they do.
func TestShardedPubSubOnOldServer(t *testing.T) {
	addr := miniredis.RunT(t).Addr()
	wiretest.ShardedOnOldServer(t, this.Server(t, addr, wiretest.Options{Sharded: true}), addr)
}

func TestShardedPubSubRefused(t *testing.T) {
	t.Parallel()
	wiretest.ShardedRefused(t, this, testservers.RedisCluster(t, 3))
}
