package redisbackend_test

import (
	"testing"

	"github.com/seed951563bd/distsync/internal/test/testservers"
	"github.com/seed951563bd/distsync/internal/test/wiretest"
)

func TestWaiting(t *testing.T) { wiretest.Waiting(t, this, testservers.Redis(t)) }

func TestWaitingInCluster(t *testing.T) {
	t.Parallel()
	wiretest.WaitingInCluster(t, this, testservers.RedisCluster(t, 3))
}
