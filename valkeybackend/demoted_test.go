package valkeybackend_test

import (
	"context"
	"crypto/tls"
	"net"
	"testing"

	"github.com/valkey-io/valkey-go"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/internal/test/testservers"
	"github.com/seed951563bd/distsync/internal/test/wiretest"
	"github.com/seed951563bd/distsync/valkeybackend"
)

func TestDemoted(t *testing.T) {
	t.Parallel()
	wiretest.Demoted(t, testservers.Valkey, func(
		t *testing.T, dial func(context.Context) (net.Conn, error),
	) backend.Backend {
		client := wiretest.Must[valkey.Client](t)(valkey.NewClient(valkey.ClientOption{
			InitAddress:       []string{"master:6379"},
			ForceSingleClient: true,
			DialCtxFn: func(
				ctx context.Context, _ string, _ *net.Dialer, _ *tls.Config,
			) (net.Conn, error) {
				return dial(ctx)
			},
		}))
		t.Cleanup(client.Close)
		return valkeybackend.New(client)
	})
}
