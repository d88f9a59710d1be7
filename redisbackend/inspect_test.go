package redisbackend_test

import (
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/internal/test/testservers"
	"github.com/seed951563bd/distsync/internal/test/wiretest"
	"github.com/seed951563bd/distsync/redisbackend"
)

func TestInspect(t *testing.T) { wiretest.Inspect(t, this, testservers.Redis(t)) }

func TestList(t *testing.T) {
	t.Parallel()
	wiretest.List(t, this, testservers.Redis(t))
}

func TestInspectPermitted(t *testing.T) { wiretest.InspectPermitted(t, this, testservers.Redis(t)) }

func TestChanged(t *testing.T) {
	server := testservers.Redis(t)
	wiretest.Changed(t, []*testservers.Server{server},
		this.Server(t, server.Addr, wiretest.Options{}))
}

func TestInspectInCluster(t *testing.T) {
	t.Parallel()
	nodes := testservers.RedisCluster(t, 3)
	wiretest.ListInCluster(t, this, nodes)
	t.Run("changed", func(t *testing.T) {
		wiretest.Changed(t, nodes, this.Cluster(t, nodes, wiretest.Options{}))
	})
	t.Run("changed, sharded", func(t *testing.T) {
		wiretest.Changed(t, nodes, this.Cluster(t, nodes, wiretest.Options{Sharded: true}))
	})
}

func TestListLeft(t *testing.T) {
	wiretest.ListLeft(t, testservers.Redis(t), func(addr string) backend.Backend {
		return redisbackend.New(connect(t, addr, func(o *redis.Options) {
			o.ReadTimeout = 4 * testservers.Patience
		}))
	})
}
