// Package stores gives the tests of the adapters clients on each kind of store.
package stores

import (
	"log/slog"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/dlock"
	"github.com/seed951563bd/distsync/internal/test/testservers"
	"github.com/seed951563bd/distsync/membackend"
	"github.com/seed951563bd/distsync/postgresbackend"
	"github.com/seed951563bd/distsync/redisbackend"
)

// NewClient returns a client that logs nothing. It is closed when the test ends.
func NewClient(t testing.TB, b backend.Backend, opts ...dlock.Option) *dlock.Client {
	c := dlock.New(b, append(opts, dlock.WithLogger(slog.New(slog.DiscardHandler)))...)
	t.Cleanup(func() { c.Close() })
	return c
}

// Redis returns a backend with a connection of its own, which is closed when the test ends.
func Redis(t testing.TB, addr string) backend.Backend {
	rdb := redis.NewClient(&redis.Options{Addr: addr})
	t.Cleanup(func() { rdb.Close() })
	return redisbackend.New(rdb)
}

// Each runs a test in memory, on Redis and on PostgreSQL. Each call of connect returns a new
// client, as another process would have.
func Each(
	t *testing.T, run func(t *testing.T, connect func() *dlock.Client), opts ...dlock.Option,
) {
	on := func(name string, start func(t *testing.T) (connect func() backend.Backend)) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			connect := start(t)
			run(t, func() *dlock.Client { return NewClient(t, connect(), opts...) })
		})
	}
	on("memory", func(t *testing.T) func() backend.Backend {
		store := membackend.New()
		return func() backend.Backend { return store }
	})
	on("redis", func(t *testing.T) func() backend.Backend {
		addr := testservers.Redis(t).Addr
		return func() backend.Backend { return Redis(t, addr) }
	})
	on("postgres", func(t *testing.T) func() backend.Backend {
		url := testservers.PostgresURL(testservers.Postgres(t).Addr)
		return func() backend.Backend {
			b, err := postgresbackend.Connect(url, postgresbackend.WithCreate())
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(b.Close)
			return b
		}
	})
}
