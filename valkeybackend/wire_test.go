package valkeybackend_test

import (
	"context"
	"crypto/tls"
	"net"
	"testing"

	"github.com/valkey-io/valkey-go"

	"github.com/seed951563bd/distsync/internal/test/testservers"
	"github.com/seed951563bd/distsync/internal/test/wiretest"
	"github.com/seed951563bd/distsync/valkeybackend"
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

func TestWireTogether(t *testing.T) {
	onServers(t, func(t *testing.T, server *testservers.Server) {
		var writes wiretest.Writes
		client := connect(t, server.Addr, func(o *valkey.ClientOption) {
			o.DialCtxFn = func(
				ctx context.Context, addr string, d *net.Dialer, _ *tls.Config,
			) (net.Conn, error) {
				conn, err := d.DialContext(ctx, "tcp", addr)
				if err != nil {
					return nil, err
				}
				return writes.Conn(conn), nil
			}
		})
		wiretest.Together(t, server, valkeybackend.New(client), &writes)
	})
}
