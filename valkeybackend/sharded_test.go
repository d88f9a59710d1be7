package valkeybackend_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"testing"

	"github.com/alicebob/miniredis/v2"
	"github.com/valkey-io/valkey-go"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/internal/test/testservers"
	"github.com/seed951563bd/distsync/internal/test/wiretest"
	"github.com/seed951563bd/distsync/valkeybackend"
)

func TestShardedPubSub(t *testing.T) {
	t.Parallel()
	for _, protocol := range []int{2, 3} {
		t.Run(fmt.Sprintf("RESP%d", protocol), func(t *testing.T) {
			p := this
			p.Cluster = func(
				t testing.TB, nodes []*testservers.Server, o wiretest.Options,
			) backend.Backend {
				speak := func(o *valkey.ClientOption) {
					o.AlwaysRESP2, o.DisableCache = protocol == 2, protocol == 2
				}
				return valkeybackend.New(connectCluster(t, nodes, speak), options(o)...)
			}
			wiretest.Sharded(t, p, testservers.ValkeyCluster(t, 3))
		})
	}
}

func TestShardedPubSubOnOneServer(t *testing.T) {
	onServers(t, func(t *testing.T, server *testservers.Server) {
		wiretest.ShardedOnOneServer(t, this, server)
	})
}

func TestShardedPubSubTogether(t *testing.T) {
	onServers(t, func(t *testing.T, server *testservers.Server) {
		wiretest.ShardedTogether(t, this, server)
	})
}

// Servers before Redis 7 know no sharded channels; miniredis answers as they do.
func TestShardedPubSubOnOldServer(t *testing.T) {
	addr := miniredis.RunT(t).Addr()
	wiretest.ShardedOnOldServer(t,
		valkeybackend.New(connectSimply(t, addr), valkeybackend.WithShardedPubSub()), addr)
}

// That somebody else has no permission to ask does not mean that the server's age can't be known.
func TestShardedPubSubAsksTheServer(t *testing.T) {
	server := testservers.Valkey(t)
	other := connect(t, server.Addr)
	theirs := other.Do(t.Context(),
		other.B().Arbitrary("EVAL", "return redis.error_reply('NOPERM no')", "0").Build()).Error()
	var up atomic.Bool
	client := connectLater(t, miniredis.RunT(t).Addr(), func(o *valkey.ClientOption) {
		o.DisableCache = true
		o.DialCtxFn = func(
			ctx context.Context, addr string, d *net.Dialer, _ *tls.Config,
		) (net.Conn, error) {
			if !up.Load() {
				return nil, theirs
			}
			return d.DialContext(ctx, "tcp", addr)
		}
	})
	s := open(t, client, valkeybackend.WithShardedPubSub())
	if _, err := s.Acquire(t.Context(), acquire(alice)); !errors.Is(err, theirs) {
		t.Errorf("acquire: %v", err)
	}
	up.Store(true)
	_, err := s.Acquire(t.Context(), acquire(alice))
	wantKind(t, err, backend.Refused)
}

func TestShardedPubSubRefused(t *testing.T) {
	t.Parallel()
	wiretest.ShardedRefused(t, this, testservers.ValkeyCluster(t, 3))
}
