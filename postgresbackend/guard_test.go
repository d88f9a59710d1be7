package postgresbackend_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/dlock"
	"github.com/seed951563bd/distsync/internal/test/testservers"
	"github.com/seed951563bd/distsync/internal/test/wiretest"
	"github.com/seed951563bd/distsync/postgresbackend"
)

var isolations = []pgx.TxIsoLevel{pgx.ReadCommitted, pgx.RepeatableRead, pgx.Serializable}

// A claimed is a hold as Guard wants it.
type claimed struct {
	name, owner string
	token       uint64
}

func (c claimed) Name() string          { return c.name }
func (c claimed) HolderID() string      { return c.owner }
func (c claimed) Token() (uint64, bool) { return c.token, c.token != 0 }

var _ postgresbackend.Hold = (*dlock.Hold)(nil)

// A flaw is a change of the SQL that looks innocent, and with which the guard isn't exact any more.
// A test that finds nothing with it would find nothing at all.
type flaw struct {
	schema  string
	changes []string // the first text becomes the second, and so on
}

// Ways to take over a plain lock: by waiting, unless its row is locked, and for many locks at a
// time.
const (
	locksRow = `			SELECT * INTO l FROM "distsync".distsync_v1_lock k WHERE k.name = p_name FOR UPDATE;
`
	locksFree = `			SELECT * INTO l FROM "distsync".distsync_v1_lock k WHERE k.name = p_name FOR UPDATE SKIP LOCKED;
`
	locksMany = `(k.owner IS NULL OR k.expires <= clock_timestamp()) FOR UPDATE SKIP LOCKED) q;
`
	updatesRow = `		UPDATE "distsync".distsync_v1_lock k
			SET kind = 1, shared = false, owner = p_owner, count = 1, kept = false,
				expires = t + lease, token = greatest(k.token + 1, "distsync".distsync_v1_us(t))
			WHERE k.name = p_name RETURNING k.token INTO num;
`
	updatesMany = `	RETURN QUERY UPDATE "distsync".distsync_v1_lock k
		SET owner = u.owner, count = 1, kept = false, shared = false,
			expires = t + u.lease * interval '1 millisecond',
			token = greatest(k.token + 1, "distsync".distsync_v1_us(t))
		FROM unnest(p_names, p_owners, p_leases) WITH ORDINALITY AS u (name, owner, lease, i)
		WHERE k.name = ANY (won) AND k.name = u.name
		RETURNING u.i, k.token, NULL::bigint, k.asked > t;
`
)

// without returns a text without another that is in it.
func without(text, part string) string { return strings.Replace(text, part, "", 1) }

// inASavepoint returns a statement in a subtransaction of its own.
func inASavepoint(sql string) string {
	return "BEGIN\n" + sql + "EXCEPTION WHEN division_by_zero THEN NULL; END;\n"
}

// weaker returns a statement that takes a weaker lock.
func weaker(sql string) string {
	return strings.Replace(sql, " FOR UPDATE", " FOR NO KEY UPDATE", 1)
}

var (
	unlocked = &flaw{"unlocked", []string{
		locksRow, without(locksRow, " FOR UPDATE"),
		locksFree, without(locksFree, " FOR UPDATE SKIP LOCKED"),
		locksMany, without(locksMany, " FOR UPDATE SKIP LOCKED"),
	}}
	subtransaction = &flaw{"subtransaction",
		[]string{updatesRow, inASavepoint(updatesRow), updatesMany, inASavepoint(updatesMany)}}
	upgrade = &flaw{"upgrade", []string{locksRow, weaker(locksRow) + locksRow}}
)

// install creates the tables and functions with a flaw, or without, and returns a backend on them.
// Acquisitions wait for guards for as long as the test has patience.
func install(t *testing.T, pool *pgxpool.Pool, f *flaw) *postgresbackend.Backend {
	t.Helper()
	schema, text := "sound", postgresbackend.Schema(postgresbackend.DefaultSchema)
	if f != nil {
		schema = f.schema
		for i := 0; i < len(f.changes); i += 2 {
			if strings.Count(text, f.changes[i]) != 1 {
				t.Fatalf("the schema doesn't have just one\n%s", f.changes[i])
			}
			text = strings.Replace(text, f.changes[i], f.changes[i+1], 1)
		}
	}
	text = strings.ReplaceAll(text, "SET lock_timeout = '250ms'", "SET lock_timeout = '30s'")
	text = strings.NewReplacer(`"distsync"`, schema, `'distsync'`, "'"+schema+"'").Replace(text)
	execute(t, pool, text, pgx.QueryExecModeSimpleProtocol)
	return postgresbackend.New(pool, postgresbackend.WithSchema(schema))
}

// Owners with leases that are far too short write in guarded transactions, which often begin, or
// have a snapshot, before the lock is renewed, lost or given back. The numbers of what was
// committed, in the order in which it was written, never go back.
func TestGuardIsExact(t *testing.T) {
	t.Parallel()
	pool := connect(t, testservers.Postgres(t).Addr, size(30))
	sound, flawed := install(t, pool, nil), install(t, pool, unlocked)
	execute(t, pool, `CREATE TABLE written (id bigserial, token bigint)`)
	for _, isolation := range isolations {
		t.Run(string(isolation), func(t *testing.T) {
			r := &guardRace{t: t, pool: pool, isolation: isolation}
			if wrong := r.run(sound, true, 150, nil); wrong > 0 {
				t.Errorf("%d were committed after one with a larger number", wrong)
			}
			found := func(wrong int) bool { return wrong > 0 }
			if r.run(sound, false, 1_000_000, found) == 0 {
				t.Error("nothing was wrong without Guard: the test can't find anything")
			}
			if r.run(flawed, true, 1_000_000, found) == 0 {
				t.Error("nothing was wrong where takeovers don't wait for guards: the test can't " +
					"find anything")
			}
		})
	}
}

type guardRace struct {
	t         *testing.T
	pool      *pgxpool.Pool
	isolation pgx.TxIsoLevel

	mu        sync.Mutex
	committed int
}

// run lets owners write until there are so many commits, or enough are wrong, and returns how many
// are.
func (r *guardRace) run(b *postgresbackend.Backend, guarded bool, commits int,
	enough func(wrong int) bool) (wrong int) {
	r.t.Helper()
	execute(r.t, r.pool, `TRUNCATE written`)
	r.committed = 0
	ctx, stop := context.WithTimeout(r.t.Context(), testservers.Patience)
	defer stop()
	var all sync.WaitGroup
	for w := range 8 {
		s := b.Open()
		defer s.Close()
		all.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				r.turn(ctx, b, s, w, n, guarded)
			}
		})
	}
	count := func() (wrong int) {
		return query[int](r.t, r.pool, `SELECT count(*) FROM
			(SELECT token < max(token) OVER (ORDER BY id) AS back FROM written) q WHERE back`)
	}
	for ctx.Err() == nil {
		time.Sleep(20 * time.Millisecond) // between two looks
		r.mu.Lock()
		committed := r.committed
		r.mu.Unlock()
		if committed >= commits || enough != nil && enough(count()) {
			break
		}
	}
	if ctx.Err() != nil && enough == nil {
		r.t.Errorf("only %d commits", r.committed)
	}
	stop()
	all.Wait()
	return count()
}

// turn is one attempt of one owner.
func (r *guardRace) turn(ctx context.Context, b *postgresbackend.Backend, s backend.Session,
	w, n int, guarded bool) {
	const short = 5 * time.Millisecond
	owner := fmt.Sprint(w, ":", n)
	res, err := s.Acquire(ctx, backend.AcquireRequest{Kind: backend.Fenced, Name: "l", Owner: owner,
		Lease: short})
	if err != nil || !res.Acquired {
		time.Sleep(time.Millisecond) // nobody tells
		return
	}
	err = pgx.BeginTxFunc(ctx, r.pool, pgx.TxOptions{IsoLevel: r.isolation}, func(tx pgx.Tx) error {
		if n%2 == 1 {
			// a snapshot that is older than what comes before the guard: a renewal, or a loss
			if _, err := tx.Exec(ctx, `SELECT count(*) FROM written`); err != nil {
				return err
			}
			if n%4 == 1 {
				_, _ = s.Renew(ctx, backend.RenewRequest{Kind: backend.Fenced, Name: "l",
					Owner: owner,
					Lease: short})
			} else {
				time.Sleep(short + time.Millisecond)
			}
		}
		if guarded {
			if err := b.Guard(ctx, tx, claimed{"l", owner, res.Token}); err != nil {
				return err
			}
		}
		time.Sleep(time.Duration(w) * 2 * time.Millisecond) // mostly longer than the lease
		if n%3 == 0 {                                       // too early
			_, _ = s.Release(ctx, backend.ReleaseRequest{Kind: backend.Fenced, Name: "l",
				Owner: owner,
				Lease: time.Second})
		}
		_, err := tx.Exec(ctx, `INSERT INTO written (token) VALUES ($1)`, int64(res.Token))
		return err
	})
	var pgErr *pgconn.PgError
	switch {
	case err == nil:
		r.mu.Lock()
		r.committed++
		r.mu.Unlock()
	case errors.Is(err, postgresbackend.ErrLost), ctx.Err() != nil,
		errors.As(err, &pgErr) && pgErr.Code == "40001":
	default:
		r.t.Error(err)
	}
}

// A transaction in REPEATABLE READ whose snapshot is older than a renewal, the end of the hold and
// another's acquisition, is told that it isn't guarded. With each of the flaws it is told that it
// is.
func TestGuardWithAnOldSnapshot(t *testing.T) {
	t.Parallel()
	pool := connect(t, testservers.Postgres(t).Addr, size(30))
	for _, f := range []*flaw{nil, unlocked, subtransaction, upgrade} {
		schema := "sound"
		if f != nil {
			schema = f.schema
		}
		t.Run(schema, func(t *testing.T) {
			b := install(t, pool, f)
			for _, way := range []staleness{{}, {beside: true}, {many: true}} {
				err := way.guard(t, pool, b, schema)
				switch wrong := err == nil; {
				case f == nil && wrong:
					t.Errorf("%+v: the guard holds after another has got the lock", way)
				case f == nil && !isSerialization(err) && !errors.Is(err, postgresbackend.ErrLost):
					t.Errorf("%+v: %v", way, err)
				case f != nil && !wrong && (f != upgrade || way.beside):
					t.Errorf("%+v: %v; want that the test finds the flaw", way, err)
				}
			}
		})
	}
}

func isSerialization(err error) bool {
	pgErr, ok := errors.AsType[*pgconn.PgError](err)
	return ok && pgErr.Code == "40001"
}

// A staleness is how another gets the lock before a guard comes.
type staleness struct {
	beside bool // after a guard of the first hold, for which it waits
	many   bool // together with another lock
}

// guard returns what a guard says that comes too late.
func (w staleness) guard(t *testing.T, pool *pgxpool.Pool, b *postgresbackend.Backend,
	schema string) error {
	t.Helper()
	ctx, s := t.Context(), b.Open().(interface {
		backend.Session
		backend.Batcher
	})
	defer s.Close()
	name, other := fmt.Sprintf("%+v", w), fmt.Sprintf("beside %+v", w)
	var hold claimed
	for _, n := range []string{other, name} {
		first := wiretest.Must[backend.AcquireResult](t)(s.Acquire(ctx,
			backend.AcquireRequest{Kind: backend.Fenced, Name: n, Owner: alice, Lease: lease}))
		hold = claimed{n, alice, first.Token}
	}
	tx := wiretest.Must[pgx.Tx](t)(pool.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.RepeatableRead}))
	defer tx.Rollback(ctx)
	if _, err := tx.Exec(ctx, `SELECT count(*) FROM pg_class`); err != nil { // the snapshot
		t.Fatal(err)
	}
	wiretest.Must[backend.RenewResult](t)(s.Renew(ctx,
		backend.RenewRequest{Kind: backend.Fenced, Name: name, Owner: alice, Lease: lease}))
	guarded := wiretest.Must[pgx.Tx](t)(pool.Begin(ctx))
	defer guarded.Rollback(ctx)
	if w.beside {
		if err := b.Guard(ctx, guarded, hold); err != nil {
			t.Fatal(err)
		}
	}
	for _, n := range []string{other, name} {
		wiretest.Must[backend.ForceReleaseResult](t)(s.ForceRelease(ctx,
			backend.ForceReleaseRequest{Kind: backend.Fenced, Name: n}))
	}
	var reqs []backend.AcquireRequest
	for _, n := range []string{name, other} {
		reqs = append(reqs, backend.AcquireRequest{Kind: backend.Fenced, Name: n, Owner: bob,
			Lease: lease})
	}
	acquired := make(chan error, 2)
	answered := func(_ int, res backend.AcquireResult, err error) {
		if err == nil && !res.Acquired {
			err = errors.New("not acquired")
		}
		acquired <- err
	}
	go func() {
		if w.many {
			s.AcquireBatch(ctx, reqs, answered)
			return
		}
		res, err := s.Acquire(ctx, reqs[0])
		answered(0, res, err)
	}()
	if w.beside {
		testservers.Until(t, "the next waits for the guard, or has passed it", func() bool {
			return len(acquired) > 0 ||
				query[bool](t, pool, `SELECT EXISTS (SELECT FROM pg_stat_activity
				WHERE wait_event_type = 'Lock' AND query LIKE '%' || $1 || '%acquire%')`, schema)
		})
		if err := guarded.Commit(ctx); err != nil {
			t.Fatal(err)
		}
	}
	if err := <-acquired; err != nil {
		t.Fatal(err)
	}
	if w.many {
		if err := <-acquired; err != nil {
			t.Fatal(err)
		}
	}
	return b.Guard(ctx, tx, hold)
}

// guardKinds are how a hold of each kind is acquired, and what another would ask for that it
// excludes.
var guardKinds = []struct{ kind, other backend.Kind }{
	{backend.Exclusive, backend.Exclusive}, {backend.Fenced, backend.Fenced},
	{backend.Fair, backend.Fair},
	{backend.Read, backend.Write}, {backend.Write, backend.Read}, {backend.Write, backend.Write},
	{backend.Permits, backend.Permits},
}

// A hold that is released, by its owner or by force, or lost while a transaction is guarded by it
// keeps others out until the transaction has ended: also the reader that comes after a writer.
func TestGuardKeepsOthersOut(t *testing.T) {
	t.Parallel()
	pool := connect(t, testservers.Postgres(t).Addr)
	migrate(t, pool)
	b, s := postgresbackend.New(pool), open(t, pool)
	ends := map[string]func(t *testing.T, kind backend.Kind, name string) time.Duration{
		"released": func(t *testing.T, kind backend.Kind, name string) time.Duration {
			res := wiretest.Must[backend.ReleaseResult](t)(s.Release(t.Context(),
				backend.ReleaseRequest{Kind: kind, Name: name, Owner: alice, Lease: lease,
					Permits: permitsOf(kind)}))
			if res.Outcome != backend.Freed {
				t.Errorf("the release: %v", res.Outcome)
			}
			return 0
		},
		"forced": func(t *testing.T, kind backend.Kind, name string) time.Duration {
			res := wiretest.Must[backend.ForceReleaseResult](t)(s.ForceRelease(t.Context(),
				backend.ForceReleaseRequest{Kind: kind, Name: name}))
			if !res.Released {
				t.Error("nothing was forced")
			}
			return 0
		},
		"run out": func(t *testing.T, kind backend.Kind, name string) time.Duration {
			renewed := wiretest.Must[backend.RenewResult](t)(s.Renew(t.Context(),
				backend.RenewRequest{Kind: kind, Name: name, Owner: alice, Lease: time.Millisecond,
					Permits: permitsOf(kind)}))
			if !renewed.Held {
				t.Error("it isn't held under the guard")
			}
			return time.Millisecond
		},
	}
	for _, k := range guardKinds {
		for how, end := range ends {
			t.Run(fmt.Sprintf("%v, then %v, %s", k.kind, k.other, how), func(t *testing.T) {
				ctx, name := t.Context(), t.Name()
				first := backend.AcquireRequest{Kind: k.kind, Name: name, Owner: alice,
					Lease:   lease,
					Permits: permitsOf(k.kind), Limit: permitsOf(k.kind)}
				if how == "run out" && (k.kind == backend.Read || k.kind == backend.Write) {
					first.Lease = 300 * time.Millisecond // their ends don't come nearer
				}
				res := wiretest.Must[backend.AcquireResult](t)(s.Acquire(ctx, first))
				tx := wiretest.Must[pgx.Tx](t)(pool.Begin(ctx))
				defer tx.Rollback(ctx)
				if err := b.Guard(ctx, tx, claimed{name, alice, res.Token}); err != nil {
					t.Fatal(err)
				}
				end(t, k.kind, name)
				testservers.Until(t, "the hold is over", func() bool {
					return !wiretest.Must[backend.LookResult](t)(s.Look(ctx,
						backend.LookRequest{Kind: k.kind, Name: name, Permits: permitsOf(k.kind),
							Limit: permitsOf(k.kind)})).Held
				})
				next := backend.AcquireRequest{Kind: k.other, Name: name, Owner: bob, Lease: lease,
					Permits: permitsOf(k.other), Limit: permitsOf(k.other)}
				if res := wiretest.Must[backend.AcquireResult](t)(
					s.Acquire(ctx, next)); res.Acquired {
					t.Error("another has the lock while a transaction is guarded")
				}
				if err := tx.Commit(ctx); err != nil {
					t.Fatal(err)
				}
				testservers.Until(t, "another has the lock when it is over", func() bool {
					return wiretest.Must[backend.AcquireResult](t)(s.Acquire(ctx, next)).Acquired
				})
			})
		}
	}
}

func permitsOf(kind backend.Kind) int {
	if kind == backend.Permits {
		return 2
	}
	return 0
}

// Renewals, re-entries and releases of a hold don't wait for transactions that are guarded by it,
// nor do others' readers.
func TestGuardLetsItsHolderGoOn(t *testing.T) {
	t.Parallel()
	pool := connect(t, testservers.Postgres(t).Addr)
	migrate(t, pool)
	b, s := postgresbackend.New(pool), open(t, pool)
	for _, kind := range []backend.Kind{backend.Exclusive, backend.Fenced, backend.Fair,
		backend.Read,
		backend.Write, backend.Permits} {
		t.Run(kind.String(), func(t *testing.T) {
			ctx, name, n := t.Context(), kind.String(), permitsOf(kind)
			req := backend.AcquireRequest{Kind: kind, Name: name, Owner: alice, Lease: lease,
				Permits: n,
				Limit:   2 * n, Reentry: true}
			res := wiretest.Must[backend.AcquireResult](t)(s.Acquire(ctx, req))
			for range 2 { // several transactions at a time
				tx := wiretest.Must[pgx.Tx](t)(pool.Begin(ctx))
				defer tx.Rollback(ctx)
				if err := b.Guard(ctx, tx, claimed{name, alice, res.Token}); err != nil {
					t.Fatal(err)
				}
			}
			for _, req := range [][]backend.RenewRequest{{{}}, {{}, {}}} {
				for i := range req {
					req[i] = backend.RenewRequest{
						Kind: kind, Name: name, Owner: alice, Lease: lease, Permits: n,
					}
				}
				s.RenewBatch(ctx, req, func(_ int, res backend.RenewResult, err error) {
					if !res.Held {
						t.Errorf("renewal: %+v, %v", res, err)
					}
				})
			}
			if res := wiretest.Must[backend.AcquireResult](t)(s.Acquire(ctx, req)); !res.Acquired {
				t.Error("no re-entry")
			}
			if kind == backend.Read || kind == backend.Permits {
				req.Owner = bob
				if res := wiretest.Must[backend.AcquireResult](t)(
					s.Acquire(ctx, req)); !res.Acquired {
					t.Error("another can't share it")
				}
			}
			release := backend.ReleaseRequest{
				Kind: kind, Name: name, Owner: alice, Lease: lease, Permits: n,
			}
			if res := wiretest.Must[backend.ReleaseResult](t)(s.Release(ctx,
				release)); res.Outcome == backend.NotHeld {
				t.Errorf("release: %v", res.Outcome)
			}
		})
	}
}

// The answers of a guard for holds that don't exist, for kept locks, and in transactions that can't
// be guarded.
func TestGuardRefuses(t *testing.T) {
	t.Parallel()
	pool := connect(t, testservers.Postgres(t, "max_prepared_transactions=5").Addr)
	migrate(t, pool)
	ctx, b, s := t.Context(), postgresbackend.New(pool), open(t, pool)
	acquired := func(name string) claimed {
		res := wiretest.Must[backend.AcquireResult](t)(s.Acquire(ctx,
			backend.AcquireRequest{Kind: backend.Fenced, Name: name, Owner: alice, Lease: lease}))
		return claimed{name, alice, res.Token}
	}
	guard := func(hold claimed, o pgx.TxOptions) error {
		return pgx.BeginTxFunc(ctx, pool, o, func(tx pgx.Tx) error {
			return b.Guard(ctx, tx, hold)
		})
	}
	held := acquired("held")
	kept := acquired("kept")
	wiretest.Must[backend.ReleaseResult](t)(s.Release(ctx,
		backend.ReleaseRequest{Kind: backend.Fenced, Name: "kept", Owner: alice, Lease: lease,
			Keep: lease}))
	for what, hold := range map[string]claimed{
		"a lock that there isn't": {"none", alice, 1}, "another's": {"held", bob, held.token},
		"an earlier acquisition": {"held", alice, held.token - 1}, "one that is kept": kept,
	} {
		if err := guard(hold, pgx.TxOptions{}); !errors.Is(err, postgresbackend.ErrLost) ||
			!errors.Is(err, dlock.ErrLost) || !strings.Contains(err.Error(), hold.name) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if err := guard(held, pgx.TxOptions{AccessMode: pgx.ReadOnly}); err == nil ||
		errors.Is(err, postgresbackend.ErrLost) {
		t.Errorf("a read-only transaction: %v", err)
	}
	tx := wiretest.Must[pgx.Tx](t)(pool.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.RepeatableRead}))
	if _, err := tx.Exec(ctx, `SELECT count(*) FROM pg_class`); err != nil {
		t.Fatal(err)
	}
	if err := b.Guard(ctx, tx, acquired("later")); !errors.Is(err, postgresbackend.ErrLost) {
		t.Errorf("a transaction that has begun before the lock was acquired: %v", err)
	}
	tx.Rollback(ctx)
	execute(t, pool, `ALTER TABLE `+lockTable+` SET UNLOGGED`)
	if err := guard(held, pgx.TxOptions{}); err == nil ||
		!strings.Contains(err.Error(), "unlogged") {
		t.Errorf("tables that are unlogged, where transactions can be prepared: %v", err)
	}
	execute(t, pool, `ALTER TABLE `+lockTable+` SET LOGGED`)
	if err := guard(held, pgx.TxOptions{}); err != nil {
		t.Error(err)
	}
}

// A savepoint that is rolled back takes the guard with it. That is how row locks are, and so the
// documentation says it.
func TestGuardInASavepoint(t *testing.T) {
	t.Parallel()
	pool := connect(t, testservers.Postgres(t).Addr)
	migrate(t, pool)
	ctx, b, s := t.Context(), postgresbackend.New(pool), open(t, pool)
	wiretest.Must[backend.AcquireResult](t)(s.Acquire(ctx, wiretest.Acquire(alice)))
	tx := wiretest.Must[pgx.Tx](t)(pool.Begin(ctx))
	defer tx.Rollback(ctx)
	savepoint := wiretest.Must[pgx.Tx](t)(tx.Begin(ctx))
	if err := b.Guard(ctx, savepoint, claimed{"n", alice, 0}); err != nil {
		t.Fatal(err)
	}
	wiretest.Must[backend.ReleaseResult](t)(s.Release(ctx, wiretest.Release(alice)))
	if res := wiretest.Must[backend.AcquireResult](t)(s.Acquire(ctx,
		wiretest.Acquire(bob))); res.Acquired {
		t.Error("acquired while a savepoint is guarded")
	}
	if err := savepoint.Rollback(ctx); err != nil {
		t.Fatal(err)
	}
	if res := wiretest.Must[backend.AcquireResult](t)(s.Acquire(ctx,
		wiretest.Acquire(bob))); !res.Acquired {
		t.Error("not acquired when the savepoint is rolled back")
	}
}

// A transaction that is prepared is guarded until it is committed, through a crash of the server.
func TestGuardOfAPreparedTransaction(t *testing.T) {
	t.Parallel()
	server := testservers.Postgres(t, "max_prepared_transactions=5")
	pool := connect(t, server.Addr)
	migrate(t, pool)
	ctx, b, s := t.Context(), postgresbackend.New(pool), open(t, pool)
	wiretest.Must[backend.AcquireResult](t)(s.Acquire(ctx, wiretest.Acquire(alice)))
	tx := wiretest.Must[pgx.Tx](t)(pool.Begin(ctx))
	if err := b.Guard(ctx, tx, claimed{"n", alice, 0}); err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(ctx, `PREPARE TRANSACTION 'guarded'`); err != nil {
		t.Fatal(err)
	}
	tx.Rollback(ctx) // of what is over
	wiretest.Must[backend.ReleaseResult](t)(s.Release(ctx, wiretest.Release(alice)))
	keptOut := func(when string) {
		t.Helper()
		if res := wiretest.Must[backend.AcquireResult](t)(s.Acquire(ctx,
			wiretest.Acquire(bob))); res.Acquired {
			t.Fatal("acquired " + when)
		}
	}
	keptOut("while the transaction is prepared")
	other := wiretest.Acquire(bob)
	other.Name = "another" // it is flushed, and so the release is
	wiretest.Must[backend.AcquireResult](t)(s.Acquire(ctx, other))
	server.Restart()
	testservers.Until(t, "the server answers", func() bool {
		_, err := s.Look(ctx, backend.LookRequest{Name: "n"})
		return err == nil
	})
	keptOut("after a crash, while the transaction is prepared")
	execute(t, pool, `COMMIT PREPARED 'guarded'`)
	if res := wiretest.Must[backend.AcquireResult](t)(s.Acquire(ctx,
		wiretest.Acquire(bob))); !res.Acquired {
		t.Error("not acquired when it is committed")
	}
}
