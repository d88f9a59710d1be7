package recipes

import (
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/seed951563bd/distsync/internal/test/testservers"
	"github.com/seed951563bd/distsync/postgresbackend"
)

// migrated is a database whose migrations are a function.
type migrated func(ctx context.Context) error

func (up migrated) HasPending(context.Context) (bool, error) { return true, nil }
func (up migrated) Up(ctx context.Context) error             { return up(ctx) }

const advisory = `FROM pg_locks WHERE locktype = 'advisory' AND granted`

func TestAnAdvisoryLockOfAPoolStays(t *testing.T) {
	t.Parallel()
	c := newCellar(t)
	pool := c.pool()
	busy := func(ctx context.Context) error { // another part of the program takes that connection
		for {
			conn, err := pool.Acquire(ctx)
			must(t, err)
			t.Cleanup(conn.Release)
			var has bool
			own := `SELECT EXISTS (SELECT ` + advisory + ` AND pid = pg_backend_pid())`
			must(t, conn.QueryRow(ctx, own).Scan(&has))
			if has {
				return nil
			}
		}
	}
	must(t, advisoryWrong(t.Context(), pool, migrated(busy)))
	if n := c.SQL(`SELECT count(*) ` + advisory); n != "1" {
		t.Errorf("the unlock has left %s locks", n)
	}
}

func TestAnAdvisoryLockIsLostUnseen(t *testing.T) {
	t.Parallel()
	c := newCellar(t)
	var runs gauge
	up := migrated(func(context.Context) error {
		runs.around(func() {
			testservers.Until(t, "another migrates", func() bool {
				return runs.entered.Load() == 2
			})
		})
		return nil
	})
	var both sync.WaitGroup
	for _, pool := range []*pgxpool.Pool{c.pool(), c.pool()} {
		both.Go(func() {
			if err := advisoryWrongToo(t.Context(), pool, up); err != nil {
				t.Error(err)
			}
		})
	}
	testservers.Until(t, "one migrates", func() bool { return runs.entered.Load() == 1 })
	c.SQL(`SELECT pg_terminate_backend(pid) ` + advisory) // a pooler or a firewall does as much
	both.Wait()
	if n := runs.most.Load(); n != 2 {
		t.Errorf("%d replicas have migrated at the same time", n)
	}
}

func TestGuardedMigrationsRunOnce(t *testing.T) {
	t.Parallel()
	c := newCellar(t)
	migrations := []string{
		`CREATE TABLE orders (id integer)`,
		`ALTER TABLE orders ADD paid boolean; CREATE INDEX ON orders (id)`,
	}
	var all sync.WaitGroup
	for range 3 {
		pool, locks, client := c.replica()
		all.Go(func() {
			if err := migrateGuarded(t.Context(), client, locks, pool, migrations); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if n := c.SQL(`SELECT count(*) FROM migration`); n != "2" {
		t.Errorf("%s migrations", n)
	}
}

// A replica that has lost its lock in the middle of a migration ends that, and begins no other. The
// next waits for the end of that one, and goes on.
func TestAMigrationIsOverBeforeTheNextReplicaMigrates(t *testing.T) {
	t.Parallel()
	c := newCellar(t)
	c.SQL(`CREATE TABLE gate ()`)
	migrations := []string{
		`LOCK TABLE gate; CREATE TABLE orders (id integer)`,
		`ALTER TABLE orders ADD paid boolean`,
	}
	closed, err := c.pool().Begin(t.Context())
	must(t, err)
	_, err = closed.Exec(t.Context(), `LOCK TABLE gate`)
	must(t, err)
	begin := func() <-chan error {
		pool, locks, client := c.replica()
		ended := make(chan error, 1)
		go func() { ended <- migrateGuarded(t.Context(), client, locks, pool, migrations) }()
		return ended
	}
	first := begin()
	testservers.Until(t, "the first is in the middle", func() bool { return c.blocked() == "1" })
	c.force("lock:migrations")
	second := begin()
	testservers.Until(t, "the second waits for it", func() bool { return c.blocked() == "2" })
	must(t, closed.Rollback(t.Context()))
	if err := <-first; !errors.Is(err, postgresbackend.ErrLost) {
		t.Errorf("the replica that has lost its lock: %v", err)
	}
	must(t, <-second)
	if n := c.SQL(`SELECT count(paid) FROM orders; SELECT count(*) FROM migration`); n != "0\n2" {
		t.Errorf("the database has %q", n)
	}
}
