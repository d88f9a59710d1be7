package valkeybackend_test

import (
	"testing"

	"github.com/seed951563bd/distsync/internal/test/testservers"
	"github.com/seed951563bd/distsync/internal/test/wiretest"
)

func TestWaiting(t *testing.T) {
	onServers(t, func(t *testing.T, server *testservers.Server) {
		wiretest.Waiting(t, this, server)
	})
}

func TestWaitingInCluster(t *testing.T) {
	t.Parallel()
	wiretest.WaitingInCluster(t, this, testservers.ValkeyCluster(t, 3))
}
