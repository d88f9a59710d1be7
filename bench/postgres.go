package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/dlock"
	"github.com/seed951563bd/distsync/internal/test/testservers"
	"github.com/seed951563bd/distsync/postgresbackend"
)

const (
	pgConns = 64   // the maximum number of connections in a pool
	pgBatch = 1000 // the number of locks that are renewed together
)

var postgresContenders = []contender{
	{name: "two UPDATEs", store: onPostgres, in: []string{"W1"}, role: floor,
		open: openBarePostgres},
	{name: "two UPDATEs", store: onPostgres, in: []string{"W2", "W3"}, role: bare,
		open: openBarePostgres},
	{name: "two UPDATEs, alone", store: onPostgres, in: []string{"W2", "W3", "W11", "W13"},
		role: solo, open: openBarePostgres},
	{name: "our functions, bare", store: onPostgres, in: []string{"W1"}, role: twin,
		open: openPostgresFunctions},
	{name: "advisory locks", store: onPostgres, in: []string{"W1", "W2", "W3", "W4"},
		open: openAdvisory},
	{name: "lease table", store: onPostgres, in: []string{"W1", "W2", "W3"}, open: openLeaseTable},
	{name: "commit, NOTIFY, commit", store: onPostgres, in: []string{"W4"}, role: floor,
		open: openPostgresNotice},
	{name: "one UPDATE of 1,000 rows", store: onPostgres, in: []string{"W19"}, role: floor,
		open: openBareRows},
	{name: "postgresbackend", store: onPostgres, in: []string{"W19"}, role: ours,
		open: openRenewals},
	{name: "dlock", store: onPostgres,
		in:   []string{"W1", "W2", "W3", "W4", "W5", "W6", "W11", "W13"},
		role: ours, open: withPostgres()},
	{name: "dlock, fair", store: onPostgres, in: []string{"W3", "W4"}, kind: fairLocks, role: ours,
		open: withPostgres()},
	{name: "dlock, no hand-over", store: onPostgres, in: []string{"W2", "W3"}, role: ours,
		open: withPostgres(dlock.WithHandover(0))},
}

var workload19 = workload{
	id: "W19", title: "PostgreSQL: 1,000 renewals at once",
	about: "A pair is one call that renews 1,000 locks, or one statement that updates as " +
		"many rows.",
	metrics: []metric{
		{"p50", "p50 µs", 0}, {"ratio", "÷ floor", 2}, {"p99", "p99 µs", 0},
		{"rate", "a second", 0},
	},
	stores:  []store{onPostgres},
	ratioOf: "p50",
	common: trial{Job: jobLoop, Duration: 2 * time.Second, Lease: time.Hour, Naming: ownNames,
		Goroutines: 1, Endless: true},
	points: []point{{label: "one goroutine", quick: true}},
	run:    runPairs,
}

// flushes is the setting that makes commits wait for the disk, as in production.
var flushes = "fsync=on"

// startPostgres starts a server with the tables that the contenders need.
func startPostgres(t testservers.TB, settings ...string) *testservers.Server {
	s := testservers.Postgres(t, append(settings, flushes, "max_connections=400")...)
	s.SQL(postgresbackend.Schema(postgresbackend.DefaultSchema) + `;
CREATE TABLE bare (name text PRIMARY KEY, owner text) WITH (fillfactor = 50);
CREATE TABLE many (name text PRIMARY KEY, n integer NOT NULL) WITH (fillfactor = 50);
INSERT INTO many SELECT i::text, 0 FROM generate_series(1, ` + strconv.Itoa(pgBatch) + `) i;
CREATE TABLE leases (name text PRIMARY KEY, version bigint, owner text);
CREATE SEQUENCE versions CYCLE;`)
	return s
}

// lookPostgres returns the usage of a PostgreSQL server. Each transaction that writes counts as one
// command. The CPU time includes all processes of the server.
func lookPostgres(addr string) (u usage, err error) {
	answer, err := testservers.SQL(addr, `SELECT pg_snapshot_xmax(pg_current_snapshot()),
		split_part(pg_read_file('postmaster.pid'), E'\n', 1);`)
	if err != nil {
		return u, err
	}
	commands, pid, _ := strings.Cut(answer, "|")
	if u.commands, err = strconv.ParseFloat(commands, 64); err != nil {
		return u, err
	}
	u.cpu, err = cpuOf(pid)
	return u, err
}

// cpuOf returns the CPU time of a process and its children, or 0 if there is no /proc.
func cpuOf(pid string) (all time.Duration, err error) {
	files, err := filepath.Glob("/proc/[0-9]*/stat")
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			continue // the process has ended
		}
		// The state and the parent's PID follow the name, which may contain spaces and parentheses.
		_, rest, _ := strings.Cut(string(text[strings.LastIndexByte(string(text), ')')+1:]), " ")
		fields := strings.Fields(rest)
		own := filepath.Base(filepath.Dir(file)) == pid
		if len(fields) < 15 || !own && fields[1] != pid {
			continue
		}
		sum := fields[11:13]
		if own {
			sum = fields[11:15] // includes children that have ended
		}
		for _, field := range sum {
			ticks, err := strconv.Atoi(field)
			if err != nil {
				return 0, err
			}
			all += time.Duration(ticks) * (time.Second / 100)
		}
	}
	return all, err
}

// postgresPool returns a pool with pgx's defaults, except for its size.
func postgresPool(p place) (*pgxpool.Pool, error) {
	config, err := pgxpool.ParseConfig(testservers.PostgresURL(p.addr))
	if err != nil {
		return nil, err
	}
	config.MaxConns = pgConns
	return pgxpool.NewWithConfig(context.Background(), config)
}

func withPostgres(opts ...dlock.Option) func(place) (system, error) {
	return func(p place) (system, error) {
		b, err := postgresbackend.Connect(testservers.PostgresURL(p.addr))
		if err != nil {
			return nil, err
		}
		return newDlock(b, p, b.Close, opts), nil
	}
}

// barePostgres acquires a lock with an UPDATE of its row, and releases it with another UPDATE. Each
// of them is a transaction. While another client holds the lock, it retries without a pause.
type barePostgres struct{ pool *pgxpool.Pool }

func openBarePostgres(p place) (system, error) {
	pool, err := postgresPool(p)
	return &barePostgres{pool}, err
}

func (s *barePostgres) locker(name string, _ int) (locker, error) {
	return &barePostgresLocker{s, name, rand.Text()}, nil
}

func (s *barePostgres) close() { s.pool.Close() }

// exec executes a statement, and returns the number of rows that it affected.
func (s *barePostgres) exec(ctx context.Context, sql string, args ...any) (int64, error) {
	tag, err := s.pool.Exec(ctx, sql, args...)
	return tag.RowsAffected(), err
}

type barePostgresLocker struct {
	*barePostgres
	name, id string
}

func (l *barePostgresLocker) Lock(ctx context.Context) error {
	for {
		if done, err := l.try(ctx); done || err != nil {
			return err
		}
	}
}

// try makes one attempt.
func (l *barePostgresLocker) try(ctx context.Context) (bool, error) {
	n, err := l.exec(ctx, `UPDATE bare SET owner = $2 WHERE name = $1 AND owner IS NULL`, l.name,
		l.id)
	if n > 0 || err != nil {
		return n > 0, err
	}
	n, err = l.exec(ctx, `INSERT INTO bare (name, owner) SELECT $1::text, $2
		WHERE NOT EXISTS (SELECT FROM bare WHERE name = $1) ON CONFLICT DO NOTHING`, l.name, l.id)
	return n > 0, err
}

func (l *barePostgresLocker) Unlock() error {
	return one(l.exec(context.Background(),
		`UPDATE bare SET owner = NULL WHERE name = $1 AND owner = $2`, l.name, l.id))
}

// postgresFunctions calls the same SQL functions as package postgresbackend, without using that
// package.
type postgresFunctions struct {
	barePostgres
	lease time.Duration
}

func openPostgresFunctions(p place) (system, error) {
	pool, err := postgresPool(p)
	return &postgresFunctions{barePostgres{pool}, p.lease}, err
}

func (s *postgresFunctions) locker(name string, _ int) (locker, error) {
	return &postgresFunctionsLocker{s, name, rand.Text()}, nil
}

type postgresFunctionsLocker struct {
	*postgresFunctions
	name, id string
}

func (l *postgresFunctionsLocker) Lock(ctx context.Context) error {
	for {
		var status int
		var held *int
		var token, left *int64
		var noted *bool
		err := l.pool.QueryRow(ctx, `SELECT status, held, num, remaining, noted
			FROM distsync.distsync_v1_acquire($1, $2, $3, false)`,
			l.name, l.id, l.lease.Milliseconds()).Scan(&status, &held, &token, &left, &noted)
		if status == 1 || err != nil {
			return err
		}
	}
}

func (l *postgresFunctionsLocker) Unlock() error {
	var status int64
	var tell bool
	var waiting *int64
	err := l.pool.QueryRow(context.Background(), `SELECT status, tell, waiting
		FROM distsync.distsync_v1_release(1::smallint, $1, $2, '', $3, 0, false)`,
		l.name, l.id, l.lease.Milliseconds()).Scan(&status, &tell, &waiting)
	if err == nil && status != 2 {
		err = errGone
	}
	return err
}

// advisory uses PostgreSQL's session-level advisory locks. Each holder and each waiter occupies a
// connection.
type advisory struct{ barePostgres }

func openAdvisory(p place) (system, error) {
	pool, err := postgresPool(p)
	return &advisory{barePostgres{pool}}, err
}

func (s *advisory) locker(name string, _ int) (locker, error) {
	return &advisoryLocker{advisory: s, name: name}, nil
}

type advisoryLocker struct {
	*advisory
	name string
	conn *pgxpool.Conn // nil unless the lock is held
}

func (l *advisoryLocker) Lock(ctx context.Context) error {
	conn, err := l.pool.Acquire(ctx)
	if err != nil {
		return err
	}
	_, err = conn.Exec(ctx, `SELECT pg_advisory_lock(hashtextextended($1, 0))`, l.name)
	if err != nil {
		conn.Release()
		return err
	}
	l.conn = conn
	return nil
}

func (l *advisoryLocker) Unlock() error {
	defer l.conn.Release()
	var held bool
	err := l.conn.QueryRow(context.Background(),
		`SELECT pg_advisory_unlock(hashtextextended($1, 0))`, l.name).Scan(&held)
	if err == nil && !held {
		err = errGone
	}
	return err
}

// leaseTable sends the same statements as package pglock. To acquire a lock, it takes a version
// number from a sequence and stores it in the lock's row in a transaction. To release the lock, it
// clears the number in another transaction. A client that finds the lock taken tries again one
// lease later, and succeeds if the version is still the same.
type leaseTable struct {
	barePostgres
	lease time.Duration
}

func openLeaseTable(p place) (system, error) {
	pool, err := postgresPool(p)
	return &leaseTable{barePostgres{pool}, p.lease}, err
}

func (s *leaseTable) locker(name string, _ int) (locker, error) {
	return &leaseTableLocker{leaseTable: s, name: name}, nil
}

type leaseTableLocker struct {
	*leaseTable
	name    string
	version int64 // version of this client's hold, or of the last hold that it saw
}

func (l *leaseTableLocker) Lock(ctx context.Context) error {
	for {
		var next, now int64
		err := l.pool.QueryRow(ctx, `SELECT nextval('versions')`).Scan(&next)
		if err != nil {
			return err
		}
		err = pgx.BeginTxFunc(ctx, l.pool, pgx.TxOptions{}, func(tx pgx.Tx) error {
			return tx.QueryRow(ctx, `INSERT INTO leases AS l (name, version) VALUES ($1, $2)
				ON CONFLICT (name) DO UPDATE SET version =
					CASE WHEN coalesce(l.version = $3, true) THEN $2 ELSE l.version END
				RETURNING version`, l.name, next, l.version).Scan(&now)
		})
		if l.version = now; now == next || err != nil {
			return err
		}
		select {
		case <-time.After(l.lease):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (l *leaseTableLocker) Unlock() error {
	ctx := context.Background()
	return pgx.BeginTxFunc(ctx, l.pool, pgx.TxOptions{}, func(tx pgx.Tx) error {
		tag, err := tx.Exec(ctx,
			`UPDATE leases SET version = NULL WHERE name = $1 AND version = $2`,
			l.name, l.version)
		return one(tag.RowsAffected(), err)
	})
}

// postgresNotice is like barePostgres, but sends a notification after a release, and waits for the
// notification before it retries.
type postgresNotice struct{ barePostgres }

func openPostgresNotice(p place) (system, error) {
	pool, err := postgresPool(p)
	return &postgresNotice{barePostgres{pool}}, err
}

func (s *postgresNotice) locker(name string, _ int) (locker, error) {
	bare := barePostgresLocker{&s.barePostgres, name, rand.Text()}
	return &postgresNoticeLocker{barePostgresLocker: bare}, nil
}

func (s *postgresNotice) close() {} // listening connections end with the process

type postgresNoticeLocker struct {
	barePostgresLocker
	listens *pgxpool.Conn // nil before the first wait
}

func (l *postgresNoticeLocker) Lock(ctx context.Context) error {
	for {
		if done, err := l.try(ctx); done || err != nil {
			return err
		}
		if l.listens == nil {
			conn, err := l.pool.Acquire(ctx)
			if err != nil {
				return err
			}
			_, err = conn.Exec(ctx, `LISTEN `+pgx.Identifier{l.name}.Sanitize())
			if err != nil {
				return err
			}
			l.listens = conn
			continue
		}
		if _, err := l.listens.Conn().WaitForNotification(ctx); err != nil {
			return err
		}
	}
}

func (l *postgresNoticeLocker) Unlock() error {
	if err := l.barePostgresLocker.Unlock(); err != nil {
		return err
	}
	_, err := l.exec(context.Background(), `SELECT pg_notify($1, '')`, l.name)
	return err
}

// bareRows is the baseline for renewals. It updates as many rows as there are locks in a batch.
type bareRows struct{ barePostgres }

func openBareRows(p place) (system, error) {
	pool, err := postgresPool(p)
	return &bareRows{barePostgres{pool}}, err
}

func (s *bareRows) locker(string, int) (locker, error) { return s, nil }

func (s *bareRows) Lock(ctx context.Context) error {
	n, err := s.exec(ctx, `UPDATE many SET n = n + 1`)
	if err == nil && n != pgBatch {
		err = fmt.Errorf("%d rows", n)
	}
	return err
}

func (s *bareRows) Unlock() error { return nil }

// renewals holds many locks, and renews all of them in one batch.
type renewals struct {
	pool    *pgxpool.Pool
	session backend.Session
	lease   time.Duration
}

func openRenewals(p place) (system, error) {
	pool, err := postgresPool(p)
	if err != nil {
		return nil, err
	}
	return &renewals{pool, postgresbackend.New(pool).Open(), p.lease}, nil
}

func (s *renewals) locker(name string, _ int) (locker, error) {
	r := &renewalsLocker{renewals: s}
	for _, name := range lockNames(name, pgBatch) {
		req := backend.AcquireRequest{Name: name, Owner: rand.Text(), Lease: s.lease}
		res, err := s.session.Acquire(context.Background(), req)
		if err != nil || !res.Acquired {
			return nil, fmt.Errorf("%+v: %w", res, err)
		}
		r.all = append(r.all, backend.RenewRequest{Name: name, Owner: req.Owner, Lease: s.lease})
	}
	return r, nil
}

func (s *renewals) close() {
	s.session.Close()
	s.pool.Close()
}

type renewalsLocker struct {
	*renewals
	all []backend.RenewRequest
}

func (l *renewalsLocker) Lock(ctx context.Context) error {
	var errs []error
	l.session.(backend.BatchRenewer).RenewBatch(ctx, l.all,
		func(_ int, res backend.RenewResult, err error) {
			if err != nil {
				errs = append(errs, err)
			} else if !res.Held {
				errs = append(errs, errGone)
			}
		})
	return errors.Join(errs...)
}

func (l *renewalsLocker) Unlock() error { return nil }
