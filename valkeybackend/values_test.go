package valkeybackend_test

import (
	"context"
	"testing"

	"github.com/valkey-io/valkey-go"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/internal/test/testservers"
	"github.com/seed951563bd/distsync/internal/test/wiretest"
	"github.com/seed951563bd/distsync/valkeybackend"
)

// watched is a wrapper around a client, as valkeyhook and valkeyotel make them.
type watched struct {
	valkey.Client
	tenants *wiretest.Tenants
}

func (w watched) Do(ctx context.Context, cmd valkey.Completed) valkey.ValkeyResult {
	w.tenants.Note(ctx, cmd.Commands())
	return w.Client.Do(ctx, cmd)
}

func (w watched) DoMulti(ctx context.Context, cmds ...valkey.Completed) []valkey.ValkeyResult {
	for _, cmd := range cmds {
		w.tenants.Note(ctx, cmd.Commands())
	}
	return w.Client.DoMulti(ctx, cmds...)
}

// A wrapper sees nobody's context values, or with the option those of the step's caller.
func TestContextValues(t *testing.T) {
	server := testservers.Valkey(t)
	for name, opts := range map[string][]valkeybackend.Option{
		"nobody's": nil, "own": {valkeybackend.WithContextValues()},
	} {
		t.Run(name, func(t *testing.T) {
			wiretest.ContextValues(t, len(opts) > 0, func(
				t *testing.T, tenants *wiretest.Tenants,
			) backend.Backend {
				return valkeybackend.New(watched{connect(t, server.Addr), tenants}, opts...)
			})
		})
	}
}
