package recipes

import (
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/seed951563bd/distsync/dlock"
	"github.com/seed951563bd/distsync/internal/test/testservers"
	"github.com/seed951563bd/distsync/postgresbackend"
)

// A cellar is a PostgreSQL whose tables of locks are there.
type cellar struct {
	*testservers.Server
	t *testing.T
}

func newCellar(t *testing.T) *cellar {
	s := testservers.Postgres(t)
	s.SQL(postgresbackend.Schema(postgresbackend.DefaultSchema))
	return &cellar{s, t}
}

func (c *cellar) pool() *pgxpool.Pool {
	pool, err := pgxpool.New(c.t.Context(), testservers.PostgresURL(c.Addr))
	must(c.t, err)
	c.t.Cleanup(pool.Close)
	return pool
}

// replica returns what a replica has.
func (c *cellar) replica() (*pgxpool.Pool, *postgresbackend.Backend, *dlock.Client) {
	pool := c.pool()
	locks := postgresbackend.New(pool)
	return pool, locks, replicaOn(c.t, locks)
}

// force takes a lock from a replica that looks dead.
func (c *cellar) force(name string) {
	c.t.Helper()
	_, _, client := c.replica()
	had, err := client.FencedLocker(name).ForceUnlock(c.t.Context())
	must(c.t, err)
	if !had {
		c.t.Fatal("nobody has the lock")
	}
}

// blocked returns how many sessions wait for others' transactions.
func (c *cellar) blocked() string {
	return c.SQL(`SELECT count(DISTINCT pid) FROM pg_locks WHERE NOT granted`)
}
