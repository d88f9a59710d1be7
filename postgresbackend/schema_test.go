package postgresbackend_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/internal/test/testservers"
	"github.com/seed951563bd/distsync/internal/test/wiretest"
	"github.com/seed951563bd/distsync/postgresbackend"
)

// as connects as another role.
func as(role string) func(*pgxpool.Config) {
	return func(c *pgxpool.Config) { c.ConnConfig.User = role }
}

// The text may be run again and again, by many at once, and leaves locks alone.
func TestSchemaAgain(t *testing.T) {
	t.Parallel()
	pool := connect(t, testservers.Postgres(t).Addr)
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			b := postgresbackend.New(pool, postgresbackend.WithCreate())
			s := b.Open()
			defer s.Close()
			req := wiretest.Acquire(alice)
			req.Name = fmt.Sprint(i)
			if res, err := s.Acquire(context.Background(), req); err != nil || !res.Acquired {
				t.Errorf("%+v, %v", res, err)
			}
		})
	}
	all.Wait()
	migrate(t, pool)
	if n := query[int](t, pool, `SELECT count(*) FROM `+lockTable+` WHERE owner = $1`,
		alice); n != 8 {
		t.Errorf("%d locks are left of 8", n)
	}
}

// If nothing was created, or if the role isn't permitted to use it, the errors say what to do.
func TestSchemaIsMissing(t *testing.T) {
	t.Parallel()
	addr := testservers.Postgres(t).Addr
	pool := connect(t, addr)
	for _, step := range wiretest.Steps {
		err := step.Run(t.Context(), open(t, pool))
		if wiretest.WantKind(t, err, backend.Refused); err == nil ||
			!strings.Contains(err.Error(), "Schema") {
			t.Errorf("%s: %v; want that it says what to run", step.Name, err)
		}
	}
	migrate(t, pool)
	execute(t, pool, `CREATE ROLE app LOGIN`)
	app := connect(t, addr, as("app"))
	err := wiretest.Steps[0].Run(t.Context(), open(t, app))
	if wiretest.WantKind(t, err, backend.Refused); !strings.Contains(err.Error(), "USAGE") {
		t.Errorf("a role without any right: %v", err)
	}
	execute(t, pool, `GRANT USAGE ON SCHEMA distsync TO app`)
	for _, step := range wiretest.Steps {
		wiretest.WantKind(t, step.Run(t.Context(), open(t, app)), backend.Refused)
	}
	wiretest.WantKind(t, wiretest.Steps[0].Run(t.Context(),
		open(t, app, postgresbackend.WithCreate())), backend.Refused)
}

// A role needs no right to the tables: it may execute the functions, and guard its transactions.
func TestRole(t *testing.T) {
	t.Parallel()
	addr := testservers.Postgres(t).Addr
	pool := connect(t, addr)
	execute(t, pool,
		`CREATE ROLE locks NOLOGIN; CREATE ROLE app LOGIN;
		GRANT CREATE ON DATABASE postgres TO locks`, pgx.QueryExecModeSimpleProtocol)
	execute(t, pool, "BEGIN; SET LOCAL ROLE locks;\n"+
		postgresbackend.Schema(postgresbackend.DefaultSchema)+"\nCOMMIT",
		pgx.QueryExecModeSimpleProtocol)
	execute(t, pool,
		`GRANT USAGE ON SCHEMA distsync TO app;
		GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA distsync TO app`, pgx.QueryExecModeSimpleProtocol)
	app := connect(t, addr, as("app"))
	s := open(t, app)
	for _, kind := range []backend.Kind{backend.Exclusive, backend.Fenced, backend.Read,
		backend.Write, backend.Fair, backend.Permits} {
		ctx, name, n := t.Context(), kind.String(), permitsOf(kind)
		defer subscribe(t, s, backend.SubscribeRequest{Kind: kind, Name: name,
			Wake: func(backend.Wakeup) {}, Granted: func(backend.Grant) {}}).Close()
		res := wiretest.Must[backend.AcquireResult](t)(s.Acquire(ctx, backend.AcquireRequest{
			Kind: kind, Name: name, Owner: alice, Lease: lease, Permits: n, Limit: n,
		}))
		err := pgx.BeginFunc(ctx, app, func(tx pgx.Tx) error {
			return postgresbackend.New(app).Guard(ctx, tx, claimed{name, alice, res.Token})
		})
		if err != nil {
			t.Error(err)
		}
		renewed := wiretest.Must[backend.RenewResult](t)(s.Renew(ctx, backend.RenewRequest{
			Kind: kind, Name: name, Owner: alice, Lease: lease, Permits: n,
		}))
		wiretest.Must[backend.Inspection](t)(s.Inspect(ctx, backend.InspectRequest{Name: name}))
		released := wiretest.Must[backend.ReleaseResult](t)(
			s.Release(ctx, backend.ReleaseRequest{
				Kind: kind, Name: name, Owner: alice, Lease: lease, Permits: n,
			}))
		if !res.Acquired || !renewed.Held || released.Outcome != backend.Freed {
			t.Errorf("%v: %+v, %+v, %+v", kind, res, renewed, released)
		}
	}
	wiretest.Must[backend.ListResult](t)(s.List(t.Context(), backend.ListRequest{Limit: 10}))
	wiretest.Must[int64](t)(postgresbackend.Sweep(t.Context(), s))
	for _, table := range []string{lockTable, partTable} {
		if _, err := app.Exec(t.Context(), `SELECT FROM `+table); err == nil {
			t.Errorf("the role reads %s", table)
		}
	}
	if _, err := app.Exec(t.Context(), `SELECT distsync.distsync_v1_prune('n')`); err == nil {
		t.Error("the role prunes")
	}
}

// Tables that another role has created are refused: their triggers would run with the rights of the
// functions' owner.
func TestSchemaOfAnother(t *testing.T) {
	t.Parallel()
	pool := connect(t, testservers.Postgres(t).Addr)
	execute(t, pool,
		`CREATE ROLE mallory; CREATE SCHEMA distsync; GRANT ALL ON SCHEMA distsync TO mallory;
		SET ROLE mallory; CREATE TABLE distsync.distsync_v1_part (name text); RESET ROLE;
		CREATE SCHEMA hers AUTHORIZATION mallory`, pgx.QueryExecModeSimpleProtocol)
	for _, schema := range []string{"distsync", "hers"} {
		_, err := pool.Exec(t.Context(), postgresbackend.Schema(schema),
			pgx.QueryExecModeSimpleProtocol)
		if err == nil || !strings.Contains(err.Error(), "belongs to another role") {
			t.Errorf("%s: %v", schema, err)
		}
	}
}

// Names of schemas go into the text as they are.
func TestSchemaName(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"", "Locks", "a b", "a'b", `a"b`, "1a", strings.Repeat("a", 64),
		"größe"} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%q is taken", name)
				}
			}()
			postgresbackend.Schema(name)
		}()
	}
	pool := connect(t, testservers.Postgres(t).Addr)
	// a word of SQL's own
	execute(t, pool, postgresbackend.Schema("user"), pgx.QueryExecModeSimpleProtocol)
	s := open(t, pool, postgresbackend.WithSchema("user"))
	if res := wiretest.Must[backend.AcquireResult](t)(
		s.Acquire(t.Context(), wiretest.Acquire(alice))); !res.Acquired {
		t.Error("not acquired")
	}
}

// Sweep deletes rows that have been over for a day, and nothing else: neither a lock that has a
// note or a part, nor a row of another program.
func TestSweep(t *testing.T) {
	t.Parallel()
	pool := connect(t, testservers.Postgres(t).Addr)
	migrate(t, pool)
	s := open(t, pool)
	for _, age := range []string{"25 hours", "23 hours"} {
		execute(t, pool, `INSERT INTO `+lockTable+
			` (name, expires) SELECT $1 || i, now() - $1::interval FROM generate_series(1, 3000) i`,
			age)
		execute(t, pool, `INSERT INTO `+partTable+
			` (name, role, owner, expires) SELECT $1 || 'parts', 1, i::text, now() - $1::interval
			FROM generate_series(1, 100) i`, age)
	}
	execute(t, pool, `INSERT INTO `+lockTable+
		` (name, kind, asked) VALUES ('asked', 1, now()), ('foreign', 99, 'epoch'),
		('read', 2, 'epoch'), ('old', 1, 'epoch')`)
	execute(t, pool, `INSERT INTO `+partTable+
		` (name, role, owner, expires) VALUES ('read', 1, 'a', now() + interval '1 hour')`)
	wiretest.Must[backend.AcquireResult](t)(s.Acquire(t.Context(), wiretest.Acquire(alice)))
	if gone := wiretest.Must[int64](t)(postgresbackend.Sweep(t.Context(), s)); gone != 3101 {
		t.Errorf(
			"%d rows are deleted; want 3000 locks, 100 parts, and one lock that was never held",
			gone)
	}
	if n := query[int](t, pool,
		`SELECT count(*) FROM `+lockTable+
			` WHERE name IN ('asked', 'foreign', 'read', 'n')`); n != 4 {
		t.Errorf("%d of the rows that are of use are left; want 4", n)
	}
	if gone := wiretest.Must[int64](t)(postgresbackend.Sweep(t.Context(), s)); gone != 0 {
		t.Errorf("%d more rows are deleted", gone)
	}
}

// Locks and unlocks, renewals too, write new versions of rows in the same page, and into no index:
// else the table would grow, and need autovacuum more often than it comes.
func TestUpdatesStayInTheirPages(t *testing.T) {
	t.Parallel()
	pool := connect(t, testservers.Postgres(t).Addr)
	migrate(t, pool)
	const owners, pairs = 8, 200
	s := open(t, pool)
	var all sync.WaitGroup
	for i := range owners {
		req := wiretest.Acquire(alice)
		req.Name = fmt.Sprint(i)
		all.Go(func() {
			for range pairs {
				wiretest.Must[backend.AcquireResult](t)(s.Acquire(t.Context(), req))
				wiretest.Must[backend.RenewResult](t)(s.Renew(t.Context(),
					backend.RenewRequest{Name: req.Name, Owner: alice, Lease: lease}))
				wiretest.Must[backend.ReleaseResult](t)(s.Release(t.Context(),
					backend.ReleaseRequest{Name: req.Name, Owner: alice, Lease: lease}))
			}
		})
	}
	all.Wait()
	s.Close() // the server's processes report their counts when they end
	backend.CapabilitiesOf(s).Settle()
	pool.Reset()
	const least = (3*pairs - 1) * owners // the first acquisition of each makes its row
	testservers.Until(t, "all is counted", func() bool {
		return query[int](t, pool, `SELECT n_tup_upd FROM pg_stat_all_tables
			WHERE relid = '`+lockTable+`'::regclass`) >= least
	})
	hot := query[float64](t, pool, `SELECT 100.0 * n_tup_hot_upd / n_tup_upd
		FROM pg_stat_all_tables WHERE relid = '`+lockTable+`'::regclass`)
	if hot < 99 {
		t.Errorf("%.1f %% of updates stayed in their pages", hot)
	}
}
