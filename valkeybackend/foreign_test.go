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

func TestForeignAfterRenewal(t *testing.T) {
	wiretest.ForeignAfterRenewal(t, this, testservers.Valkey(t))
}

func TestFullMemory(t *testing.T) {
	onServers(t, func(t *testing.T, server *testservers.Server) {
		wiretest.FullMemory(t, this, server)
	})
}
