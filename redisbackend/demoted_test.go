package redisbackend_test

import (
	"context"
	"net"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/internal/test/testservers"
	"github.com/seed951563bd/distsync/internal/test/wiretest"
	"github.com/seed951563bd/distsync/redisbackend"
)

func TestDemoted(t *testing.T) {
	t.Parallel()
	wiretest.Demoted(t, testservers.Redis, func(
		t *testing.T, dial func(context.Context) (net.Conn, error),
	) backend.Backend {
		return redisbackend.New(connect(t, "master", func(o *redis.Options) {
			o.Dialer = func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx) }
		}))
	})
}
