package valkeybackend_test

import (
	"testing"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/internal/test/testservers"
	"github.com/seed951563bd/distsync/internal/test/wiretest"
	"github.com/seed951563bd/distsync/valkeybackend"
)

func fences(b backend.Backend) func(uint64) wiretest.Fence {
	return func(token uint64) wiretest.Fence { return b.(*valkeybackend.Backend).Fence(token) }
}

func TestFence(t *testing.T) {
	server := testservers.Valkey(t)
	b := this.Server(t, server.Addr, wiretest.Options{Prefix: "lock:"}) // which concerns locks only
	wiretest.Fences(t, server, fences(b))
}

func TestFenceAgainstLateWrites(t *testing.T) {
	t.Parallel()
	server := testservers.Valkey(t)
	b := this.Server(t, server.Addr, wiretest.Options{})
	wiretest.LateWrites(t, server, b, fences(b))
}

func TestFenceInCluster(t *testing.T) {
	t.Parallel()
	nodes := testservers.ValkeyCluster(t, 3)
	wiretest.FencesInCluster(t, nodes, fences(this.Cluster(t, nodes, wiretest.Options{})))
}
