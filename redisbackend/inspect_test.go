package redisbackend_test

import (
	"testing"

	"github.com/seed951563bd/distsync/internal/test/testservers"
	"github.com/seed951563bd/distsync/internal/test/wiretest"
)

func TestInspect(t *testing.T) { wiretest.Inspect(t, this, testservers.Redis(t)) }

func TestList(t *testing.T) { wiretest.List(t, this, testservers.Redis(t)) }

func TestInspectPermitted(t *testing.T) { wiretest.InspectPermitted(t, this, testservers.Redis(t)) }

func TestListInCluster(t *testing.T) {
	t.Parallel()
	wiretest.ListInCluster(t, this, testservers.RedisCluster(t, 3))
}
