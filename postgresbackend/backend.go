package postgresbackend

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/seed951563bd/distsync/backend"
)

// Backend keeps locks in the database that a pool is connected to. Make it with [New] or [Connect].
type Backend struct {
	pool    *pgxpool.Pool
	options options
	own     bool   // the pool was made by Connect
	q       string // the schema as it is written before a name in SQL

	prepares bool // statements, on connections that no pooler shares

	creating sync.Mutex // one creates at a time
	created  atomic.Bool
}

var _ backend.Backend = (*Backend)(nil)

// An Option changes how a [Backend] works.
type Option func(*options)

type options struct {
	schema    string
	create    bool
	polls     bool
	sweep     time.Duration // how often what is over is deleted; 0: never
	pingAfter time.Duration // how long a silent connection that listens is trusted
}

// WithSchema sets the schema of the tables and functions; the default is [DefaultSchema]. All
// programs that share locks must use the same database and schema. It panics unless the name
// consists of lower-case letters, digits and underscores.
func WithSchema(schema string) Option {
	mustBeSchema(schema)
	return func(o *options) { o.schema = schema }
}

// WithCreate has the first step run the text of [Schema], which creates what is missing. By default
// a migration does that. The role must be allowed to create the schema, and then owns it.
func WithCreate() Option { return func(o *options) { o.create = true } }

// Polling has waiters ask now and then; by default they are told of releases. No connection listens
// then, and releases send nothing. PostgreSQL wakes every listening process of the database for
// each message, so with some hundred of them polling costs less.
func Polling() Option { return func(o *options) { o.polls = true } }

// New returns a backend on a pool, which stays the caller's: close it after the client of the
// locks. A step takes one of its connections for one round trip. Renewals, releases and
// acquisitions of plain and fenced locks have two connections of their own, made with the pool's
// configuration, so that they don't wait behind a program's own queries. Listening takes one more.
//
// No parameters are set, so the pool may be connected by way of a pooler. With PgBouncer in
// transaction mode nobody can be told of releases: waiters poll, and the client logs that once.
// Repeated statements are prepared, unless there is a pooler, or the pool's DefaultQueryExecMode
// isn't pgx's own default.
//
// New panics if pool is nil.
func New(pool *pgxpool.Pool, opts ...Option) *Backend {
	if pool == nil {
		panic("postgresbackend: nil pool")
	}
	o := options{schema: DefaultSchema, sweep: 10 * time.Minute, pingAfter: 5 * time.Second}
	for _, opt := range opts {
		opt(&o)
	}
	return &Backend{
		pool: pool, options: o, q: pgx.Identifier{o.schema}.Sanitize() + ".",
		prepares: pool.Config().ConnConfig.DefaultQueryExecMode == pgx.QueryExecModeCacheStatement,
	}
}

// Connect returns a backend with a pool of its own, for programs that don't use PostgreSQL
// otherwise. The pool has four connections, unless the URL says otherwise (pool_max_conns). Close
// it after the locks are closed. The URL is one for [pgxpool.ParseConfig]:
// "postgres://app@localhost:5432/orders". It may have several hosts, separated by commas, and
// target_session_attrs=read-write to find the one that is no standby. Connect doesn't connect yet:
// if the server can't be reached, the steps fail.
func Connect(url string, opts ...Option) (*Backend, error) {
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, fmt.Errorf("postgresbackend: %w", err)
	}
	config.ShouldPing = idleForLong
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	if err != nil {
		return nil, fmt.Errorf("postgresbackend: %w", err)
	}
	b := New(pool, opts...)
	b.own = true
	return b, nil
}

// idleForLong says whether a connection is looked at before it is used: by default each one is that
// was idle for a second, so that a lock that is used every other second takes two round trips
// instead of one.
func idleForLong(_ context.Context, p pgxpool.ShouldPingParams) bool {
	return p.IdleDuration > time.Minute
}

// Close closes the pool that [Connect] has made, and waits until its connections are given back. It
// leaves a pool of [New] alone.
func (b *Backend) Close() {
	if b.own {
		b.pool.Close()
	}
}

// String says postgres.
func (b *Backend) String() string { return "postgres" }

// Limits says that PostgreSQL counts leases in milliseconds, and that there are all kinds of lock.
func (b *Backend) Limits() backend.Limits { return backend.Limits{Kinds: kinds, Keeps: true} }

var kinds = backend.KindsOf(backend.Fenced, backend.Read, backend.Write, backend.Fair, backend.Permits)

// Open returns a new session.
func (b *Backend) Open() backend.Session { return newSession(b) }

// ready creates what the steps need, if that is asked for and wasn't done.
func (b *Backend) ready(ctx context.Context) error {
	if !b.options.create || b.created.Load() {
		return nil
	}
	b.creating.Lock()
	defer b.creating.Unlock()
	if b.created.Load() {
		return nil
	}
	if err := create(ctx, b.pool, b.options.schema); err != nil {
		if failed := failed(fmt.Errorf("creating the schema: %w", err)); backend.KindOf(failed) == backend.Refused {
			return failed
		}
		return retry(err) // of the step itself nothing was done
	}
	b.created.Store(true)
	return nil
}
