package valkeybackend_test

import (
	"testing"

	"github.com/seed951563bd/distsync/internal/test/testservers"
	"github.com/seed951563bd/distsync/internal/test/wiretest"
)

func TestServices(t *testing.T) { wiretest.Services(t, this, testservers.Valkey(t)) }

func TestServiceInTrouble(t *testing.T) {
	t.Parallel()
	wiretest.Troubled(t, this, testservers.Valkey(t))
}

func TestNodeAloneInItsView(t *testing.T) {
	t.Parallel()
	wiretest.AloneInItsView(t, this, testservers.ValkeyCluster(t, 3))
}
