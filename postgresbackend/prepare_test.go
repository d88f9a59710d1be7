package postgresbackend_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/internal/test/testservers"
	"github.com/seed951563bd/distsync/internal/test/wiretest"
)

// preparedSteps counts the statements of steps that a pool's only connection has prepared.
func preparedSteps(t *testing.T, pool *pgxpool.Pool) int {
	t.Helper()
	return query[int](t, pool, `SELECT count(*) FROM pg_prepared_statements
		WHERE statement LIKE '%distsync\_v1\_%' AND name <> ''`)
}

// lockSome locks and unlocks names, one by one and together, and looks, for long enough that the
// statements for it would have been prepared.
func lockSome(t *testing.T, s backend.Session) {
	t.Helper()
	names := []string{"a", "b"}
	var acquires []backend.AcquireRequest
	var releases []backend.ReleaseRequest
	for _, name := range names {
		acquires = append(acquires, backend.AcquireRequest{Name: name, Owner: alice, Lease: lease})
		releases = append(releases, backend.ReleaseRequest{Name: name, Owner: alice, Lease: lease})
	}
	for range 10 {
		res := wiretest.Must[backend.AcquireResult](t)(s.Acquire(t.Context(), acquires[0]))
		if !res.Acquired {
			t.Fatalf("%+v", res)
		}
		look := backend.LookRequest{Name: "a", Owner: alice}
		if res := wiretest.Must[backend.LookResult](t)(s.Look(t.Context(), look)); res.Count != 1 {
			t.Fatalf("%+v", res)
		}
		wiretest.Must[backend.ReleaseResult](t)(s.Release(t.Context(), releases[0]))
		together := s.(backend.Batcher)
		together.AcquireBatch(t.Context(), acquires,
			func(i int, res backend.AcquireResult, err error) {
				if err != nil || !res.Acquired {
					t.Errorf("%s: %+v, %v", names[i], res, err)
				}
			})
		together.ReleaseBatch(t.Context(), releases,
			func(i int, res backend.ReleaseResult, err error) {
				if err != nil || res.Outcome != backend.Freed {
					t.Errorf("%s: %+v, %v", names[i], res, err)
				}
			})
	}
}

// Statements that a connection repeats are prepared on it, unless the pool is configured otherwise,
// or a pooler is in between.
func TestStatementsArePrepared(t *testing.T) {
	t.Parallel()
	server := testservers.Postgres(t)
	migrate(t, connect(t, server.Addr))
	mode := func(m pgx.QueryExecMode) func(*pgxpool.Config) {
		return func(c *pgxpool.Config) { c.ConnConfig.DefaultQueryExecMode = m }
	}
	direct := connect(t, server.Addr, size(1))
	plain := connect(t, server.Addr, size(1), mode(pgx.QueryExecModeExec))
	lockSome(t, open(t, direct))
	if n := preparedSteps(t, direct); n != 1 { // all but looks go by other connections
		t.Errorf("%d statements are prepared, want 1", n)
	}
	lockSome(t, open(t, plain))
	if n := preparedSteps(t, plain); n != 0 {
		t.Errorf("%d statements are prepared against the configuration of the pool", n)
	}
	for _, how := range []string{"transaction", "session"} {
		t.Run(how, func(t *testing.T) {
			bouncer := testservers.PgBouncer(t, server, "pool_mode = "+how, "default_pool_size = 3")
			pool := connect(t, bouncer.Addr, size(1))
			lockSome(t, open(t, pool))
			plain := connect(t, bouncer.Addr, size(1), mode(pgx.QueryExecModeExec))
			for i := range 3 { // all connections that the pooler may have used
				if n := preparedSteps(t, plain); n != 0 {
					t.Errorf("look %d: %d statements are prepared by way of a pooler", i, n)
				}
			}
		})
	}
}

// Steps go on after prepared statements were discarded, as a hook of the pool may do.
func TestPreparedStatementsAreDiscarded(t *testing.T) {
	t.Parallel()
	server := testservers.Postgres(t)
	migrate(t, connect(t, server.Addr))
	var discarded atomic.Int64
	pool := connect(t, server.Addr, size(1), func(c *pgxpool.Config) {
		c.AfterRelease = func(conn *pgx.Conn) bool {
			_, err := conn.Exec(context.Background(), `DISCARD ALL`, pgx.QueryExecModeExec)
			discarded.Add(1)
			return err == nil
		}
	})
	s := open(t, pool)
	lockSome(t, s)
	backend.CapabilitiesOf(s).Settle()
	if discarded.Load() == 0 {
		t.Error("nothing was discarded")
	}
}

// Renewals that go together don't wait for one whose row another transaction has locked.
func TestRenewalsPassOneThatIsLocked(t *testing.T) {
	t.Parallel()
	pool := connect(t, testservers.Postgres(t).Addr)
	migrate(t, pool)
	s := open(t, pool)
	var reqs []backend.RenewRequest
	for i := range 5 {
		name := fmt.Sprint(i)
		acquire := backend.AcquireRequest{Name: name, Owner: alice, Lease: lease}
		wiretest.Must[backend.AcquireResult](t)(s.Acquire(t.Context(), acquire))
		reqs = append(reqs, backend.RenewRequest{Name: name, Owner: alice, Lease: 2 * lease})
	}
	const locked = 2
	reqs = append(reqs, backend.RenewRequest{Name: "nobody has it", Owner: alice, Lease: lease})
	tx := wiretest.Must[pgx.Tx](t)(pool.Begin(t.Context()))
	defer tx.Rollback(t.Context())
	_, err := tx.Exec(t.Context(), `SELECT FROM `+lockTable+` WHERE name = $1 FOR UPDATE`,
		reqs[locked].Name)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.RenewBatch(t.Context(), reqs, func(i int, res backend.RenewResult, err error) {
			if err != nil || res.Held != (i < 5) {
				t.Errorf("%s: %+v, %v", reqs[i].Name, res, err)
			}
		})
	}()
	testservers.Until(t, "all others are renewed", func() bool {
		return query[int](t, pool, `SELECT count(*) FROM `+lockTable+
			` WHERE expires > clock_timestamp() + $1 * interval '1 second'`, lease.Seconds()+1) == 4
	})
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	<-done
	if n := query[int](t, pool, `SELECT count(*) FROM `+lockTable+
		` WHERE expires > clock_timestamp() + $1 * interval '1 second'`,
		lease.Seconds()+1); n != 5 {
		t.Errorf("%d are renewed, want 5", n)
	}
}
