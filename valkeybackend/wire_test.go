package valkeybackend_test

import (
	"testing"

	"github.com/seed951563bd/distsync/internal/test/testservers"
	"github.com/seed951563bd/distsync/internal/test/wiretest"
)

func TestWire(t *testing.T) {
	onServers(t, func(t *testing.T, server *testservers.Server) {
		wiretest.Protocol(t, server, open(t, connect(t, server.Addr)))
	})
}

func TestWireUncontended(t *testing.T) {
	onServers(t, func(t *testing.T, server *testservers.Server) {
		wiretest.Uncontended(t, server, open(t, connect(t, server.Addr)))
	})
}

func TestWireRenewTogether(t *testing.T) {
	onServers(t, func(t *testing.T, server *testservers.Server) {
		wiretest.RenewTogether(t, server, open(t, connect(t, server.Addr)))
	})
}

func TestWireBraces(t *testing.T) {
	server := testservers.Valkey(t)
	wiretest.Braces(t, server, open(t, connect(t, server.Addr)))
}
