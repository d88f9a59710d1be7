package valkeybackend_test

import (
	"testing"

	"github.com/seed951563bd/distsync/internal/test/testservers"
	"github.com/seed951563bd/distsync/internal/test/wiretest"
)

func TestFair(t *testing.T) { wiretest.Fair(t, this, testservers.Valkey(t)) }

func TestFairBreaks(t *testing.T) { wiretest.FairBreaks(t, this, testservers.Valkey(t)) }

func TestFairPermitted(t *testing.T) { wiretest.FairPermitted(t, this, testservers.Valkey(t)) }

func TestFairInCluster(t *testing.T) {
	t.Parallel()
	wiretest.FairInCluster(t, this, testservers.ValkeyCluster(t, 3))
}

func TestFairWithReplicas(t *testing.T) {
	t.Parallel()
	master, slaves := testservers.ValkeyReplicated(t, 2)
	wiretest.FairReplicated(t, this, master, slaves)
}
