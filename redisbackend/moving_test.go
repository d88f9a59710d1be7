package redisbackend_test

import (
	"testing"
	"time"

	"github.com/seed951563bd/distsync/internal/test/testservers"
	"github.com/seed951563bd/distsync/internal/test/wiretest"
)

// dialects are the ways to publish.
var dialects = map[string]wiretest.Options{"plain": {}, "sharded pub/sub": {Sharded: true}}

func TestLockIsMoved(t *testing.T) {
	t.Parallel()
	for name, o := range dialects {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			wiretest.Moved(t, this, testservers.RedisCluster(t, 3), o)
		})
	}
}

func TestFailover(t *testing.T) {
	t.Parallel()
	wiretest.Failover(t, this, testservers.RedisSentinel(t, 1, wiretest.Never))
}

func TestMasterDies(t *testing.T) {
	t.Parallel()
	wiretest.MasterDies(t, this, testservers.RedisSentinel(t, 1, time.Second))
}

func TestClusterMasterDies(t *testing.T) {
	t.Parallel()
	for name, o := range dialects {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			masters := testservers.RedisCluster(t, 3)
			wiretest.ClusterMasterDies(t, this, masters,
				testservers.RedisClusterReplicas(t, masters), o)
		})
	}
}
