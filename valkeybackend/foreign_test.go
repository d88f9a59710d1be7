package valkeybackend_test

import (
	"testing"

	"github.com/seed951563bd/distsync/internal/test/testservers"
	"github.com/seed951563bd/distsync/internal/test/wiretest"
)

func TestForeign(t *testing.T) {
	onServers(t, func(t *testing.T, server *testservers.Server) {
		wiretest.Foreign(t, this, server)
	})
}

func TestFullMemory(t *testing.T) {
	onServers(t, func(t *testing.T, server *testservers.Server) {
		wiretest.FullMemory(t, this, server)
	})
}
