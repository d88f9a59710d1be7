package redisbackend_test

import (
	"testing"

	"github.com/seed951563bd/distsync/internal/test/testservers"
	"github.com/seed951563bd/distsync/internal/test/wiretest"
)

func TestFair(t *testing.T) { wiretest.Fair(t, this, testservers.Redis(t)) }

func TestFairBreaks(t *testing.T) { wiretest.FairBreaks(t, this, testservers.Redis(t)) }

func TestFairPermitted(t *testing.T) { wiretest.FairPermitted(t, this, testservers.Redis(t)) }

func TestFairInCluster(t *testing.T) {
	t.Parallel()
	wiretest.FairInCluster(t, this, testservers.RedisCluster(t, 3))
}

func TestFairWithReplicas(t *testing.T) {
	master, slaves := testservers.RedisReplicated(t, 2)
	wiretest.FairReplicated(t, this, master, slaves)
}
