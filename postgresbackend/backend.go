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

// Backend keeps locks in a PostgreSQL database. Use [New] or [Connect] to create one.
type Backend struct {
	pool    *pgxpool.Pool
	options options
	own     bool   // the pool was made by Connect
	q       string // the quoted schema and a dot, the prefix of all names in SQL

	prepares bool // whether to prepare statements on connections without a pooler

	creating sync.Mutex // held while the schema is created
	created  atomic.Bool
}

var _ backend.Backend = (*Backend)(nil)

// An Option configures a [Backend].
type Option func(*options)

type options struct {
	schema    string
	create    bool
	polls     bool
	sweep     time.Duration // the time between deletions of expired rows; 0 means never
	pingAfter time.Duration // how long a listening connection may be silent before a ping
}

// WithSchema sets the schema of the tables and functions. The default is [DefaultSchema]. All
// programs that share locks must use the same database and schema. WithSchema panics unless the
// name consists of at most 63 lower-case letters, digits and underscores, and doesn't begin with a
// digit.
func WithSchema(schema string) Option {
	mustBeSchema(schema)
	return func(o *options) { o.schema = schema }
}

// WithCreate makes the first request run the SQL that [Schema] returns, although the tables and
// functions may exist already. Without WithCreate, a migration must run that SQL. The role must be
// the owner of the schema, or be allowed to create it, and then becomes its owner.
func WithCreate() Option { return func(o *options) { o.create = true } }

// Polling makes waiters poll for released locks. By default, they are notified. With Polling, the
// client has no listening connection, and releases send it no messages. PostgreSQL wakes every
// listening process of the database for each message, so polling costs less if there are hundreds
// of them.
func Polling() Option { return func(o *options) { o.polls = true } }

// New returns a backend that uses pool. Close the pool only after the client that uses the backend.
// Renewals and releases, and most acquisitions of plain and fenced locks, share two separate
// connections with the pool's configuration, so they don't wait behind the program's own queries.
// Other steps use a connection of the pool, each for one or two round trips. Listening takes one
// more connection.
//
// No session parameters are set, so the pool can connect through a pooler. Behind PgBouncer in
// transaction mode, waiters can't be notified of releases. They poll, and the client logs that
// once. Repeated statements are prepared, unless there is a pooler or the pool's
// DefaultQueryExecMode isn't pgx's default.
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

// Connect returns a backend with its own pool, for programs that don't use PostgreSQL otherwise.
// Close the backend only after the client that uses it.
//
// The URL has a form that [pgxpool.ParseConfig] accepts, such as
// "postgres://app@localhost:5432/orders". The URL can set the size of the pool with pool_max_conns.
// Otherwise the pool has pgxpool's default size. The URL can list several hosts, separated by
// commas, with target_session_attrs=read-write to find the primary.
//
// Connect doesn't connect yet. If the server can't be reached, later calls fail. Connect returns
// the error of [pgxpool.ParseConfig] or [pgxpool.NewWithConfig].
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

// idleForLong reports whether the pool should ping a connection before using it. By default, a pool
// pings each connection that has been idle for a second. That would double the round trips of a
// lock that is used every other second.
func idleForLong(_ context.Context, p pgxpool.ShouldPingParams) bool {
	return p.IdleDuration > time.Minute
}

// Close closes the pool of [Connect] and waits until all its connections are returned. It doesn't
// close a pool that was passed to [New].
func (b *Backend) Close() {
	if b.own {
		b.pool.Close()
	}
}

// String returns "postgres".
func (b *Backend) String() string { return "postgres" }

// Limits reports that the store supports all kinds of lock, can keep released locks taken, and
// counts leases in milliseconds.
func (b *Backend) Limits() backend.Limits { return backend.Limits{Kinds: kinds, Keeps: true} }

var kinds = backend.KindsOf(backend.Fenced, backend.Read, backend.Write, backend.Fair,
	backend.Permits)

// Open returns a new session.
func (b *Backend) Open() backend.Session { return newSession(b) }

// ready creates the tables and functions once, if WithCreate was used.
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
		if failed := failed(fmt.Errorf("creating the schema: %w", err)); backend.KindOf(
			failed) == backend.Refused {
			return failed
		}
		return retry(err) // the step itself did nothing
	}
	b.created.Store(true)
	return nil
}
