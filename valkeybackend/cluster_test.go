package valkeybackend_test

import (
	"testing"

	"github.com/valkey-io/valkey-go"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/internal/test/testservers"
	"github.com/seed951563bd/distsync/internal/test/wiretest"
)

func TestCluster(t *testing.T) {
	t.Parallel()
	nodes := testservers.ValkeyCluster(t, 3)
	wiretest.InCluster(t, nodes, this, func() backend.Backend {
		return this.Cluster(t, nodes, wiretest.Options{})
	})
	// Nothing that a lock needs goes to a replica, whatever else may.
	t.Run("reading from replicas", func(t *testing.T) {
		wiretest.TakesAllSteps(t, open(t, connectCluster(t, nodes, func(o *valkey.ClientOption) {
			o.SendToReplicas = func(cmd valkey.Completed) bool {
				if cmd.IsReadOnly() && !cmd.NoReply() {
					t.Errorf("%q reads only", cmd.Commands())
				}
				return cmd.IsReadOnly()
			}
		})))
	})
}
