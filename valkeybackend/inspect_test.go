package valkeybackend_test

import (
	"testing"

	"github.com/seed951563bd/distsync/internal/test/testservers"
	"github.com/seed951563bd/distsync/internal/test/wiretest"
)

func TestInspect(t *testing.T) { wiretest.Inspect(t, this, testservers.Valkey(t)) }

func TestList(t *testing.T) { wiretest.List(t, this, testservers.Valkey(t)) }

func TestInspectPermitted(t *testing.T) { wiretest.InspectPermitted(t, this, testservers.Valkey(t)) }

func TestListInCluster(t *testing.T) {
	t.Parallel()
	wiretest.ListInCluster(t, this, testservers.ValkeyCluster(t, 3))
}
