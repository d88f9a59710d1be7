package redisbackend_test

import (
	"testing"

	"github.com/seed951563bd/distsync/internal/test/testservers"
	"github.com/seed951563bd/distsync/internal/test/wiretest"
)

func TestKinds(t *testing.T) { wiretest.Kinds(t, this, testservers.Redis(t)) }

func TestKindsConflict(t *testing.T) { wiretest.KindsConflict(t, this, testservers.Redis(t)) }

func TestKindsPermitted(t *testing.T) { wiretest.KindsPermitted(t, this, testservers.Redis(t)) }

func TestKindsTogether(t *testing.T) { wiretest.KindsTogether(t, this, testservers.Redis(t)) }

func TestKindsInCluster(t *testing.T) {
	t.Parallel()
	wiretest.KindsInCluster(t, this, testservers.RedisCluster(t, 3))
}

func TestKindsWithReplicas(t *testing.T) {
	t.Parallel()
	master, slaves := testservers.RedisReplicated(t, 2)
	wiretest.KindsReplicated(t, this, master, slaves)
}

func TestPermits(t *testing.T) { wiretest.Permits(t, this, testservers.Redis(t)) }

func TestKeep(t *testing.T) { wiretest.Keep(t, this, testservers.Redis(t)) }
