package postgresbackend_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/internal/test/testservers"
	"github.com/seed951563bd/distsync/internal/test/wiretest"
	"github.com/seed951563bd/distsync/postgresbackend"
)

func TestExamples(t *testing.T) {
	t.Parallel()
	addr := testservers.Postgres(t).Addr
	pool := connect(t, addr)
	defer func(other string) { url = other }(url)
	url = testservers.PostgresURL(addr)

	ExampleConnect()
	if owner := query[*string](t, pool,
		`SELECT owner FROM `+lockTable+` WHERE name = 'orders:42'`); owner == nil {
		t.Error("the lock of the example that connects isn't there")
	}
	execute(t, pool, `TRUNCATE `+lockTable)
	Example()
	ExampleBackend_Guard()
	if n := query[int](t, pool,
		`SELECT count(*) FROM `+lockTable+` WHERE token > 0 AND owner IS NULL`); n != 2 {
		t.Errorf("after the examples %d locks were acquired and released; want 2", n)
	}
	execute(t, pool, `TRUNCATE `+lockTable)
	ExampleBackend_GuardSQL()
	if n := query[int](t, pool,
		`SELECT count(*) FROM `+lockTable+` WHERE token > 0 AND owner IS NULL`); n != 1 {
		t.Errorf("after the example with database/sql %d locks were acquired and released; want 1",
			n)
	}
}

// parameter sets one that each connection has.
func parameter(name, value string) func(*pgxpool.Config) {
	return func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams[name] = value }
}

// A session whose commits aren't waited for has its locks flushed nevertheless; one in which steps
// would go by an old snapshot is refused.
func TestSessionParameters(t *testing.T) {
	t.Parallel()
	addr := testservers.Postgres(t).Addr
	migrate(t, connect(t, addr))
	for _, isolation := range []string{"repeatable read", "serializable"} {
		s := open(t, connect(t, addr, parameter("default_transaction_isolation", isolation)))
		for _, step := range wiretest.Steps[:wiretest.Writing] {
			if step.Name == "look" || step.Name == "look for nobody" {
				continue // they look once
			}
			err := step.Run(t.Context(), s)
			if wiretest.WantKind(t, err, backend.Refused); err == nil ||
				!strings.Contains(err.Error(), "default_transaction_isolation") {
				t.Errorf("%s in %s: %v", step.Name, isolation, err)
			}
		}
	}
	pool := connect(t, addr, parameter("synchronous_commit", "off"), size(1))
	s := open(t, pool)
	flushed := func(what string, step func()) {
		t.Helper()
		step()
		if behind := query[bool](t, pool,
			`SELECT pg_current_wal_insert_lsn() > pg_current_wal_flush_lsn()`); behind {
			// Others write, too: what counts is that it isn't so each time.
			testservers.Until(t, what+" is flushed", func() bool {
				step()
				return !query[bool](t, pool,
					`SELECT pg_current_wal_insert_lsn() > pg_current_wal_flush_lsn()`)
			})
		}
	}
	flushed("a lock", func() {
		wiretest.Must[backend.AcquireResult](t)(s.Acquire(t.Context(), wiretest.Acquire(alice)))
	})
	flushed("a renewal", func() {
		wiretest.Must[backend.RenewResult](t)(s.Renew(t.Context(), wiretest.Renew(alice)))
	})
}

// In a read-only session, as on a standby, held locks are found held. Errors of steps that write
// say that they may be repeated later, or elsewhere.
func TestReadOnly(t *testing.T) {
	t.Parallel()
	addr := testservers.Postgres(t).Addr
	pool := connect(t, addr)
	migrate(t, pool)
	wiretest.Must[backend.AcquireResult](t)(open(t, pool).Acquire(t.Context(),
		wiretest.Acquire(alice)))
	s := open(t, connect(t, addr, parameter("default_transaction_read_only", "on")))
	if res := wiretest.Must[backend.AcquireResult](t)(s.Acquire(t.Context(),
		wiretest.Acquire(bob))); res.Acquired || res.Remaining <= 0 {
		t.Errorf("a try: %+v", res)
	}
	if res := wiretest.Must[backend.LookResult](t)(s.Look(t.Context(),
		backend.LookRequest{Name: "n"})); !res.Held {
		t.Errorf("a look: %+v", res)
	}
	_, err := s.Release(t.Context(), wiretest.Release(alice))
	wiretest.WantKind(t, err, backend.Retry)
}

// Names that are too long are refused before anything is done.
func TestLongNames(t *testing.T) {
	t.Parallel()
	pool := connect(t, testservers.Postgres(t).Addr)
	migrate(t, pool)
	s := open(t, pool)
	for name, refused := range map[string]bool{
		strings.Repeat("n", 2500): false, strings.Repeat("n", 2501): true,
		strings.Repeat("\xff", 1249): false, strings.Repeat("\xff", 1250): true,
	} {
		for _, kind := range []backend.Kind{backend.Exclusive, backend.Read, backend.Fair,
			backend.Permits} {
			_, err := s.Acquire(t.Context(),
				backend.AcquireRequest{Kind: kind, Name: name, Owner: alice,
					Lease: lease, Permits: 1, Limit: 1})
			if got := wiretest.IsKind(err, backend.Refused); got != refused {
				t.Errorf("%v of a name of %d bytes: %v", kind, len(name), err)
			}
			s.ForceRelease(t.Context(), backend.ForceReleaseRequest{Kind: kind, Name: name})
		}
	}
}

// A try that finds a lock held writes nothing: it has no transaction of its own.
func TestTriesWriteNothing(t *testing.T) {
	t.Parallel()
	pool := connect(t, testservers.Postgres(t).Addr, size(1))
	migrate(t, pool)
	s := open(t, pool)
	for _, kind := range []backend.Kind{backend.Exclusive, backend.Fenced, backend.Fair,
		backend.Read,
		backend.Write, backend.Permits} {
		held := kind
		if kind == backend.Read {
			held = backend.Write
		}
		req := backend.AcquireRequest{Kind: held, Name: kind.String(), Owner: alice, Lease: lease,
			Permits: 1, Limit: 1}
		wiretest.Must[backend.AcquireResult](t)(s.Acquire(t.Context(), req))
		next := func() string {
			return query[string](t, pool, `SELECT pg_snapshot_xmax(pg_current_snapshot())::text`)
		}
		req.Kind, req.Owner = kind, bob
		testservers.Until(t, "nobody else writes during a try of "+kind.String(), func() bool {
			before := next()
			if wiretest.Must[backend.AcquireResult](t)(s.Acquire(t.Context(), req)).Acquired {
				t.Fatal("acquired")
			}
			return next() == before
		})
	}
}

// A re-entry that finds its row busy for longer than an acquisition waits says nothing of a loss:
// it is sent again.
func TestReentryBesideASlowStep(t *testing.T) {
	t.Parallel()
	pool := connect(t, testservers.Postgres(t).Addr)
	migrate(t, pool)
	ctx, s := t.Context(), open(t, pool)
	for _, kind := range []backend.Kind{backend.Exclusive, backend.Fenced, backend.Write} {
		t.Run(kind.String(), func(t *testing.T) {
			req := backend.AcquireRequest{
				Kind: kind, Name: kind.String(), Owner: alice, Lease: lease,
			}
			wiretest.Must[backend.AcquireResult](t)(s.Acquire(ctx, req))
			slow := wiretest.Must[pgx.Tx](t)(pool.Begin(ctx))
			defer slow.Rollback(ctx)
			busy := `SELECT FROM ` + lockTable + ` WHERE name = $1 FOR NO KEY UPDATE`
			if _, err := slow.Exec(ctx, busy, req.Name); err != nil {
				t.Fatal(err)
			}
			req.Reentry = true
			done := make(chan struct{})
			var res backend.AcquireResult
			var err error
			go func() {
				defer close(done)
				res, err = s.Acquire(ctx, req)
			}()
			sent := make(map[time.Time]bool) // when a statement began that waits for the row
			testservers.Until(t, "the re-entry is sent again, or answered", func() bool {
				select {
				case <-done:
					return true
				default:
				}
				began := query[*time.Time](t, pool,
					`SELECT max(query_start) FROM pg_stat_activity WHERE wait_event_type = 'Lock'`)
				if began != nil {
					sent[*began] = true
				}
				return len(sent) > 1
			})
			if err := slow.Rollback(ctx); err != nil {
				t.Fatal(err)
			}
			<-done
			if err != nil || !res.Acquired || res.Count != 2 {
				t.Errorf("the re-entry: %+v, %v", res, err)
			}
		})
	}
}

// A pool that is exhausted keeps steps waiting that may wait for guards, and neither renewals nor
// releases, nor what goes together with others.
func TestExhaustedPool(t *testing.T) {
	t.Parallel()
	pool := connect(t, testservers.Postgres(t).Addr, size(1))
	migrate(t, pool)
	s := open(t, pool)
	wiretest.Must[backend.AcquireResult](t)(s.Acquire(t.Context(), wiretest.Acquire(alice)))
	conn := wiretest.Must[*pgxpool.Conn](t)(pool.Acquire(t.Context()))
	defer conn.Release()
	if res := wiretest.Must[backend.RenewResult](t)(s.Renew(t.Context(),
		wiretest.Renew(alice))); !res.Held {
		t.Error("not renewed")
	}
	if res := wiretest.Must[backend.ReleaseResult](t)(s.Release(t.Context(),
		wiretest.Release(alice))); res.Outcome != backend.Freed {
		t.Error("not released")
	}
	res := wiretest.Must[backend.AcquireResult](t)(s.Acquire(t.Context(), wiretest.Acquire(alice)))
	if !res.Acquired {
		t.Error("not acquired")
	}
	short, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	_, err := s.Acquire(short, backend.AcquireRequest{
		Kind: backend.Read, Name: "read", Owner: alice, Lease: lease,
	})
	wiretest.WantKind(t, err, backend.Retry)
}

// A server that is full of connections is asked again.
func TestTooManyConnections(t *testing.T) {
	t.Parallel()
	server := testservers.Postgres(t, "max_connections=5", "superuser_reserved_connections=0")
	pool := connect(t, server.Addr, size(5))
	migrate(t, pool)
	var conns []*pgxpool.Conn
	testservers.Until(t, "no connection is left", func() bool {
		short, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		conn, err := pool.Acquire(short)
		if err == nil {
			conns = append(conns, conn)
		}
		return len(conns) == 5
	})
	s := open(t, connect(t, server.Addr))
	for _, step := range wiretest.Steps {
		wiretest.WantKind(t, step.Run(t.Context(), s), backend.Retry)
	}
	for _, conn := range conns {
		conn.Release()
	}
	pool.Reset()
	testservers.Until(t, "there is room again",
		func() bool { return wiretest.Steps[0].Run(t.Context(), s) == nil })
}

// Connect doesn't connect, and says what is wrong with a URL.
func TestConnect(t *testing.T) {
	if _, err := postgresbackend.Connect("postgres://[::1"); err == nil {
		t.Error("that is no URL")
	}
	const nowhere = "postgres://nobody@127.0.0.1:1/none"
	b := wiretest.Must[*postgresbackend.Backend](t)(postgresbackend.Connect(nowhere))
	defer b.Close()
	s := b.Open()
	defer s.Close()
	_, err := s.Acquire(t.Context(), wiretest.Acquire(alice))
	wiretest.WantKind(t, err, backend.Retry)
}

// A restart of the server while the connections were idle fails no step: requests aren't sent on
// dead connections.
func TestIdleThroughARestart(t *testing.T) {
	t.Parallel()
	server := testservers.Postgres(t)
	pool := connect(t, server.Addr)
	migrate(t, pool)
	s := open(t, pool)
	for range 5 {
		wiretest.Must[backend.AcquireResult](t)(s.Acquire(t.Context(), wiretest.Acquire(alice)))
		if res := wiretest.Must[backend.RenewResult](t)(s.Renew(t.Context(),
			wiretest.Renew(alice))); !res.Held {
			t.Error("not renewed")
		}
		server.Restart()
	}
	if res := wiretest.Must[backend.LookResult](t)(s.Look(t.Context(),
		backend.LookRequest{Name: "n", Owner: alice})); res.Count != 5 {
		t.Errorf("%d holds after restarts of the server; want 5", res.Count)
	}
}

// A client that doesn't know the limit asks for permits while another client acquires the first
// ones. The name becomes a semaphore between two statements of the request: the first finds no
// lock, and the next finds permits. Their limit counts nevertheless.
func TestFirstPermitsBesideARequestWithoutLimit(t *testing.T) {
	t.Parallel()
	server := testservers.Postgres(t)
	pool := connect(t, server.Addr)
	migrate(t, pool)
	ctx, s := t.Context(), open(t, connect(t, server.Addr, size(1)))
	req := backend.AcquireRequest{
		Kind: backend.Permits, Name: "another", Owner: bob, Lease: lease, Permits: 2, Limit: 2,
	}
	// The connection plans its statements, and the session's first sweep ends.
	wiretest.Must[backend.AcquireResult](t)(s.Acquire(ctx, req))
	backend.CapabilitiesOf(s).Settle()
	req.Name, req.Limit = "sem", 0
	tx := wiretest.Must[pgx.Tx](t)(pool.Begin(ctx))
	defer tx.Rollback(ctx)
	for _, sql := range []string{
		`LOCK TABLE ` + partTable, // the second statement has to wait
		`SELECT FROM distsync.distsync_v1_permits('sem', 'a', 2, 3, 60000)`,
	} {
		if _, err := tx.Exec(ctx, sql); err != nil {
			t.Fatal(err)
		}
	}
	done := make(chan backend.AcquireResult)
	go func() {
		done <- wiretest.Must[backend.AcquireResult](t)(s.Acquire(ctx, req))
	}()
	testservers.Until(t, "the request waits", func() bool {
		return waiting(t, pool, "relation") > 0
	})
	if err := tx.Commit(ctx); err != nil {
		t.Fatal(err)
	}
	if res := <-done; res.Acquired || res.Remaining <= 0 {
		t.Errorf("2 of 3 permits were acquired, then 2 more: %+v; want that they are held", res)
	}
}

// An owner that has kept permits, and asks for some again while another has the rest, is told when
// that one's lease ends, however soon that is.
func TestPermitsSayWhenTheNextAreOver(t *testing.T) {
	t.Parallel()
	pool := connect(t, testservers.Postgres(t).Addr)
	migrate(t, pool)
	s := open(t, pool)
	const soon = 90 * time.Millisecond
	req := func(owner string) backend.AcquireRequest {
		return backend.AcquireRequest{Kind: backend.Permits, Name: "sem", Owner: owner,
			Lease:   lease,
			Permits: 1, Limit: 2}
	}
	wiretest.Must[backend.AcquireResult](t)(s.Acquire(t.Context(), req(alice)))
	wiretest.Must[backend.ReleaseResult](t)(s.Release(t.Context(), backend.ReleaseRequest{
		Kind: backend.Permits, Name: "sem", Owner: alice, Permits: 1, Lease: lease, Keep: time.Hour,
	}))
	short := req(bob)
	short.Lease = soon
	testservers.Until(t, "somebody has asked while another has a permit", func() bool {
		wiretest.Must[backend.AcquireResult](t)(s.Acquire(t.Context(), short))
		res := wiretest.Must[backend.AcquireResult](t)(s.Acquire(t.Context(), req(alice)))
		renewed := wiretest.Must[backend.RenewResult](t)(s.Renew(t.Context(), backend.RenewRequest{
			Kind: backend.Permits, Name: "sem", Owner: bob, Permits: 1, Lease: soon,
		}))
		if renewed.Held && (res.Acquired || res.Remaining > soon) {
			t.Errorf("%+v, while another has a permit for %v", res, soon)
		}
		return renewed.Held
	})
}

// A Write that waits behind a Read which begins is told when that one's lease ends, however soon
// that is.
func TestWriteSaysWhenTheLastReadIsOver(t *testing.T) {
	t.Parallel()
	pool := connect(t, testservers.Postgres(t).Addr)
	// in which steps wait for each other for long
	ctx, s := t.Context(), install(t, pool, nil).Open()
	defer s.Close()
	const soon = 50 * time.Millisecond
	req := backend.AcquireRequest{Kind: backend.Write, Name: "n", Owner: bob, Lease: lease}
	testservers.Until(t, "a Write was refused while another reads", func() bool {
		wiretest.Must[backend.AcquireResult](t)(s.Acquire(ctx, req)) // so that the name has a row
		force := backend.ForceReleaseRequest{Kind: backend.Write, Name: "n"}
		wiretest.Must[backend.ForceReleaseResult](t)(s.ForceRelease(ctx, force))
		read := wiretest.Must[pgx.Tx](t)(pool.Begin(ctx))
		defer read.Rollback(ctx)
		_, failed := read.Exec(ctx, `SELECT sound.distsync_v1_read('n', $1, 3600000, 0)`, alice)
		if failed != nil {
			t.Fatal(failed)
		}
		done := make(chan struct{})
		var res backend.AcquireResult
		var err error
		go func() {
			defer close(done)
			res, err = s.Acquire(ctx, req)
		}()
		testservers.Until(t, "the Write waits for the Read's step", func() bool {
			return query[bool](t, pool,
				`SELECT count(*) > 0 FROM pg_stat_activity WHERE wait_event_type = 'Lock'`)
		})
		_, failed = read.Exec(ctx,
			`UPDATE sound.distsync_v1_part SET expires = clock_timestamp() + $1 WHERE role = 1`,
			soon)
		if failed = errors.Join(failed, read.Commit(ctx)); failed != nil {
			t.Fatal(failed)
		}
		<-done
		if err != nil || !res.Acquired && (res.Remaining <= 0 || res.Remaining > soon) {
			t.Errorf("%+v, %v, while another reads for %v", res, err, soon)
		}
		return !res.Acquired // else the machine was slow, and the Read over
	})
}

// A Read that ends while a step is at its name, after what is over was taken out, is no reason to
// wait for as long as for one that is over and guarded.
func TestAReadThatEndsDuringAStep(t *testing.T) {
	t.Parallel()
	pool := connect(t, testservers.Postgres(t).Addr)
	migrate(t, pool)
	left := func(ago string) float64 {
		execute(t, pool, `DELETE FROM `+partTable)
		execute(t, pool, `INSERT INTO `+partTable+` (name, role, owner, expires)
			VALUES ('n', 1, $1, clock_timestamp() - $2::interval)`, alice, ago)
		return query[float64](t, pool,
			`SELECT extract(epoch FROM distsync.distsync_v1_out('n') - clock_timestamp())`)
	}
	testservers.Until(t, "one that has just ended is over", func() bool { return left("0") <= 0 })
	if s := left("1 hour"); s <= 0 {
		t.Errorf("one that is long over, and still there, is guarded: look again in %v s", s)
	}
}
