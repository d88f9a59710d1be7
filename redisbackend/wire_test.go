package redisbackend_test

import (
	"testing"

	"github.com/seed951563bd/distsync/internal/test/testservers"
	"github.com/seed951563bd/distsync/internal/test/wiretest"
)

func TestWire(t *testing.T) {
	server := testservers.Redis(t)
	wiretest.Protocol(t, server, open(t, connect(t, server.Addr)))
}

func TestWireUncontended(t *testing.T) {
	server := testservers.Redis(t)
	wiretest.Uncontended(t, server, open(t, connect(t, server.Addr)))
}

func TestWireRenewTogether(t *testing.T) {
	server := testservers.Redis(t)
	wiretest.RenewTogether(t, server, open(t, connect(t, server.Addr)))
}

func TestWireBraces(t *testing.T) {
	server := testservers.Redis(t)
	wiretest.Braces(t, server, open(t, connect(t, server.Addr)))
}
