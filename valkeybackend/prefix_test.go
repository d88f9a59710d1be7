package valkeybackend_test

import (
	"testing"

	"github.com/seed951563bd/distsync/internal/test/testservers"
	"github.com/seed951563bd/distsync/internal/test/wiretest"
)

func TestPrefix(t *testing.T) {
	onServers(t, func(t *testing.T, server *testservers.Server) {
		wiretest.Prefix(t, this, server)
	})
}
