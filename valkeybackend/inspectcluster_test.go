package valkeybackend_test

import (
	"context"
	"crypto/tls"
	"net"
	"sync"
	"testing"

	"github.com/valkey-io/valkey-go"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/internal/test/testservers"
)

// A list asks some nodes of a cluster which of them has what, and doesn't wait for all. A
// connection that one of these requests was making isn't made then, and the list asks that node
// next: it doesn't fail for it.
func TestListWhileConnectionsAreGivenUp(t *testing.T) {
	t.Parallel()
	nodes := testservers.ValkeyCluster(t, 3)
	var mu sync.Mutex
	given := map[string]int{} // up, by address
	s := open(t, connectCluster(t, nodes, func(o *valkey.ClientOption) {
		o.DialCtxFn = func(
			ctx context.Context, addr string, d *net.Dialer, _ *tls.Config,
		) (net.Conn, error) {
			mu.Lock()
			defer mu.Unlock()
			if given[addr]++; addr != nodes[0].Addr && given[addr] <= 2 {
				return nil, context.Canceled
			}
			return d.DialContext(ctx, "tcp", addr)
		}
	}))
	after := ""
	for {
		res, err := s.(backend.Lister).List(t.Context(),
			backend.ListRequest{After: after, Limit: 10})
		if err != nil {
			t.Fatal(err)
		}
		if after = res.Next; after == "" {
			return
		}
	}
}
