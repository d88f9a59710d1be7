package postgresbackend_test

import (
	"context"
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/internal/test/testservers"
	"github.com/seed951563bd/distsync/internal/test/wiretest"
)

// lockRow locks a row of the schema that install makes, in a transaction of its own.
func lockRow(t *testing.T, pool *pgxpool.Pool, name string) pgx.Tx {
	t.Helper()
	tx := wiretest.Must[pgx.Tx](t)(pool.Begin(t.Context()))
	t.Cleanup(func() { _ = tx.Rollback(context.Background()) })
	_, err := tx.Exec(t.Context(),
		`SELECT FROM sound.distsync_v1_lock WHERE name = $1 FOR UPDATE`, name)
	if err != nil {
		t.Fatal(err)
	}
	return tx
}

// waiting returns how many steps wait for a lock of the server's.
func waiting(t *testing.T, pool *pgxpool.Pool, event string) int {
	t.Helper()
	return query[int](t, pool, `SELECT count(*) FROM pg_stat_activity
		WHERE wait_event_type = 'Lock' AND wait_event LIKE $1`, event)
}

// Of the readers that come together after a writer one takes the lock over. The others wait for it
// all at once, and not in line for the row.
func TestReadersThatComeTogether(t *testing.T) {
	t.Parallel()
	pool := connect(t, testservers.Postgres(t).Addr, size(10))
	ctx, s := t.Context(), install(t, pool, nil).Open()
	defer s.Close()
	write := backend.AcquireRequest{Kind: backend.Write, Name: "n", Owner: "writer", Lease: lease}
	wiretest.Must[backend.AcquireResult](t)(s.Acquire(ctx, write))
	wiretest.Must[backend.ReleaseResult](t)(s.Release(ctx, backend.ReleaseRequest{
		Kind: backend.Write, Name: "n", Owner: "writer", Lease: lease}))
	guarded := lockRow(t, pool, "n")
	owners := []string{"a", "b", "c", "d"}
	results := make(chan backend.AcquireResult)
	for _, owner := range owners {
		go func() {
			req := backend.AcquireRequest{Kind: backend.Read, Name: "n", Owner: owner, Lease: lease}
			results <- wiretest.Must[backend.AcquireResult](t)(s.Acquire(ctx, req))
		}()
	}
	testservers.Until(t, "one waits for the row, and the others for that one", func() bool {
		return waiting(t, pool, "advisory") == len(owners)-1 && waiting(t, pool, "%") == len(owners)
	})
	if err := guarded.Rollback(ctx); err != nil {
		t.Fatal(err)
	}
	for range owners {
		if res := <-results; !res.Acquired {
			t.Errorf("%+v; want that all read", res)
		}
	}
}

// A Read whose step has to be sent again has waited for longer by then: a writer that has come
// meanwhile doesn't go before it.
func TestAReadThatIsSentAgain(t *testing.T) {
	t.Parallel()
	pool := connect(t, testservers.Postgres(t).Addr)
	ctx, s := t.Context(), install(t, pool, nil).Open()
	defer s.Close()
	execute(t, pool, `INSERT INTO sound.distsync_v1_lock (name, kind) VALUES ('n', 2)`)
	other := lockRow(t, pool, "n")
	result := make(chan backend.AcquireResult)
	go func() {
		req := backend.AcquireRequest{Kind: backend.Read, Name: "n", Owner: alice, Lease: lease}
		result <- wiretest.Must[backend.AcquireResult](t)(s.Acquire(ctx, req))
	}()
	testservers.Until(t, "the Read waits", func() bool { return waiting(t, pool, "%") == 1 })
	execute(t, pool, `INSERT INTO sound.distsync_v1_part (name, role, owner, since, expires)
		VALUES ('n', 2, $1, clock_timestamp(), clock_timestamp() + interval '1 hour')`, bob)
	_, err := other.Exec(ctx, `UPDATE sound.distsync_v1_lock SET shared = true WHERE name = 'n'`)
	if err != nil {
		t.Fatal(err)
	}
	if err := other.Commit(ctx); err != nil {
		t.Fatal(err)
	}
	if res := <-result; !res.Acquired {
		t.Errorf("%+v, behind a writer that came later", res)
	}
}

// An attempt that has waited for the row of a lock, and finds that another has got it, has nothing
// to flush. Otherwise many attempts at once would flush one after the other. An acquisition is
// flushed.
func TestAnAttemptThatComesSecondIsNotFlushed(t *testing.T) {
	t.Parallel()
	pool := connect(t, testservers.Postgres(t).Addr)
	ctx := t.Context()
	install(t, pool, nil)
	kinds := map[string]int{"plain": 1, "write": 2}
	for name, step := range map[string]string{
		"plain": `SELECT status FROM sound.distsync_v1_acquire($1, $2, 3600000, true)`,
		"write": `SELECT status FROM sound.distsync_v1_write($1, $2, 3600000, 0, 0)`,
	} {
		for _, free := range []bool{false, true} {
			execute(t, pool, `INSERT INTO sound.distsync_v1_lock (name, kind) VALUES ($1, $2)
				ON CONFLICT (name) DO UPDATE SET owner = NULL`, name, kinds[name])
			first := lockRow(t, pool, name)
			second := wiretest.Must[pgx.Tx](t)(pool.Begin(ctx))
			defer second.Rollback(context.Background())
			done := make(chan error)
			var status int
			go func() { done <- second.QueryRow(ctx, step, name, alice).Scan(&status) }()
			testservers.Until(t, "it waits", func() bool { return waiting(t, pool, "%") == 1 })
			if !free {
				_, err := first.Exec(ctx, `UPDATE sound.distsync_v1_lock SET owner = $2, count = 1,
					expires = clock_timestamp() + interval '1 hour' WHERE name = $1`, name, bob)
				if err != nil {
					t.Fatal(err)
				}
			}
			if err := errors.Join(first.Commit(ctx), <-done); err != nil {
				t.Fatal(err)
			}
			var commit string
			err := second.QueryRow(ctx, `SHOW synchronous_commit`).Scan(&commit)
			if err != nil || (commit == "off") == free || (status == 1) != free {
				t.Errorf("%s, free %v: status %d, synchronous_commit %s; %v",
					name, free, status, commit, err)
			}
			if err := second.Rollback(ctx); err != nil {
				t.Fatal(err)
			}
		}
	}
}
