package valkeybackend_test

import (
	"testing"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/internal/test/testservers"
	"github.com/seed951563bd/distsync/internal/test/wiretest"
)

func TestInspect(t *testing.T) { wiretest.Inspect(t, this, testservers.Valkey(t)) }

func TestList(t *testing.T) {
	t.Parallel()
	wiretest.List(t, this, testservers.Valkey(t))
}

func TestInspectPermitted(t *testing.T) {
	wiretest.InspectPermitted(t, this, testservers.Valkey(t))
}

func TestChanged(t *testing.T) {
	server := testservers.Valkey(t)
	wiretest.Changed(t, []*testservers.Server{server},
		this.Server(t, server.Addr, wiretest.Options{}))
}

func TestInspectInCluster(t *testing.T) {
	t.Parallel()
	nodes := testservers.ValkeyCluster(t, 3)
	wiretest.ListInCluster(t, this, nodes)
	t.Run("changed", func(t *testing.T) {
		wiretest.Changed(t, nodes, this.Cluster(t, nodes, wiretest.Options{}))
	})
	t.Run("changed, sharded", func(t *testing.T) {
		wiretest.Changed(t, nodes, this.Cluster(t, nodes, wiretest.Options{Sharded: true}))
	})
}

func TestListLeft(t *testing.T) {
	wiretest.ListLeft(t, testservers.Valkey(t), func(addr string) backend.Backend {
		return this.Server(t, addr, wiretest.Options{})
	})
}
