package redisbackend_test

import (
	"context"
	"net"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/seed951563bd/distsync/internal/test/testservers"
	"github.com/seed951563bd/distsync/internal/test/wiretest"
	"github.com/seed951563bd/distsync/redisbackend"
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

func TestWireTogether(t *testing.T) {
	server := testservers.Redis(t)
	var writes wiretest.Writes
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr, Dialer: func(
		ctx context.Context, network, addr string,
	) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return writes.Conn(conn), nil
	}})
	t.Cleanup(func() { rdb.Close() })
	wiretest.Together(t, server, redisbackend.New(rdb), &writes)
}
