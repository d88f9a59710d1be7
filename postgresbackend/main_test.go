package postgresbackend_test

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/internal/test/apart"
	"github.com/seed951563bd/distsync/internal/test/testservers"
	"github.com/seed951563bd/distsync/internal/test/wiretest"
	"github.com/seed951563bd/distsync/postgresbackend"
)

func TestMain(m *testing.M) {
	apart.SideBySide(16)
	wiretest.VerifyTestMain(m)
}

const (
	alice = wiretest.Alice
	bob   = wiretest.Bob
	lease = wiretest.Lease
)

// connect returns a pool of connections to a server that is closed with the test.
func connect(t testing.TB, addr string, change ...func(*pgxpool.Config)) *pgxpool.Pool {
	t.Helper()
	config, err := pgxpool.ParseConfig(testservers.PostgresURL(addr))
	if err != nil {
		t.Fatal(err)
	}
	config.MaxConns = 8
	for _, c := range change {
		c(config)
	}
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

// size sets how many connections a pool has.
func size(n int32) func(*pgxpool.Config) { return func(c *pgxpool.Config) { c.MaxConns = n } }

// execute carries out a statement, or fails the test.
func execute(t testing.TB, pool *pgxpool.Pool, sql string, args ...any) {
	t.Helper()
	if _, err := pool.Exec(context.Background(), sql, args...); err != nil {
		t.Fatalf("%.100s: %v", sql, err)
	}
}

// migrate does what a migration does, in the default schema.
func migrate(t testing.TB, pool *pgxpool.Pool) {
	t.Helper()
	execute(t, pool, postgresbackend.Schema(postgresbackend.DefaultSchema),
		pgx.QueryExecModeSimpleProtocol)
}

// query returns what a statement answers, in one value.
func query[T any](t testing.TB, pool *pgxpool.Pool, sql string, args ...any) (v T) {
	t.Helper()
	if err := pool.QueryRow(context.Background(), sql, args...).Scan(&v); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return v
}

// subscribe subscribes, and repeats that until it succeeds, as dlock does: on a busy machine the
// first connection may take longer than a step is allowed to.
func subscribe(t testing.TB, s session, req backend.SubscribeRequest) backend.Subscription {
	t.Helper()
	var sub backend.Subscription
	testservers.Until(t, "subscribed to "+req.Name, func() bool {
		var err error
		sub, err = s.Subscribe(t.Context(), req)
		return err == nil
	})
	return sub
}

type session interface {
	wiretest.Session
	backend.Liner
	backend.Inspector
	backend.Lister
}

func open(t testing.TB, pool *pgxpool.Pool, opts ...postgresbackend.Option) session {
	t.Helper()
	s := postgresbackend.New(pool, opts...).Open().(session)
	t.Cleanup(func() { s.Close() })
	return s
}
