package postgresbackend

import (
	"context"
	"crypto/rand"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/seed951563bd/distsync/backend"
)

// session is one client's access to the store.
type session struct {
	b      *Backend
	id     string          // the session's name in the store, and in the name of its channel
	ctx    context.Context // ends with the session
	stop   context.CancelFunc
	closed atomic.Bool
	busy   errands
	swept  atomic.Int64 // when the last sweep began, in nanoseconds since opened
	opened time.Time

	mu     sync.Mutex
	urgent *pgxpool.Pool // pool of two connections; nil before its first use and after Close
	over   bool          // set by Close, after which the pool isn't created again

	listener
	together
}

func newSession(b *Backend) *session {
	ctx, stop := context.WithCancel(context.Background())
	s := &session{b: b, id: strings.ToLower(rand.Text()), ctx: ctx, stop: stop, opened: time.Now()}
	s.listener.init()
	s.gatherSteps()
	return s
}

// check returns an error if a step can't be carried out. The name and the owners must already be
// encoded for the database.
func (s *session) check(
	ctx context.Context, kind backend.Kind, name string, owners ...string,
) error {
	if s.closed.Load() {
		return refused(errClosed)
	}
	return s.checkRequest(ctx, kind, name, owners...)
}

// checkRequest is like check, but for steps that are allowed after Close.
func (s *session) checkRequest(
	ctx context.Context, kind backend.Kind, name string, owners ...string,
) error {
	if !kinds.Has(kind) {
		return backend.UnknownKind(s.b.String(), kind)
	}
	if err := checkNames(name, owners...); err != nil {
		return err
	}
	return ended(ctx)
}

// lane returns the pool for renewals, for releases, and for steps that are carried out together in
// one transaction. Because the pool is separate, they don't wait behind the program's own queries.
// They don't delay each other either, since none of them waits for a guarded transaction.
func (s *session) lane() *pgxpool.Pool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.urgent != nil || s.over {
		return s.laneOr(s.b.pool)
	}
	config := s.b.pool.Config()
	config.MaxConns, config.MinConns, config.MinIdleConns = 2, 0, 0
	config.ShouldPing = idleForLong
	config.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec // for batches
	if pool, err := pgxpool.NewWithConfig(s.ctx, config); err == nil {
		s.urgent = pool
	}
	return s.laneOr(s.b.pool)
}

func (s *session) laneOr(other *pgxpool.Pool) *pgxpool.Pool {
	if s.urgent != nil {
		return s.urgent
	}
	return other
}

// mostRepeats limits how many times a step is sent. It is sent again if it had no effect, because
// other transactions had locked its rows.
const mostRepeats = 5

// A call is an SQL statement that carries out a step. dest says where to store its answer.
type call struct {
	sql  string
	args []any
	dest []any
	// after is a function that runs on the connection once the step is done. It runs in another
	// goroutine, so that the step doesn't wait for it.
	after func(ctx context.Context, conn *pgxpool.Conn)
	some  func() bool // reports whether to run after; nil means always
	// sends is called, unless it is nil, when a connection is available. If it returns false, the
	// step isn't sent.
	sends func() bool
}

// do carries out a call. It repeats the call after a deadlock, which can happen with transactions
// that are guarded by several locks.
func (s *session) do(ctx context.Context, pool *pgxpool.Pool, c *call) error {
	if err := s.b.ready(ctx); err != nil {
		return err
	}
	for n := 1; ; n++ {
		err := s.once(ctx, pool, c)
		if err == nil || n >= 3 || !isCode(err, deadlock) {
			return err
		}
	}
}

func (s *session) once(ctx context.Context, pool *pgxpool.Pool, c *call) error {
	conn, err := s.conn(ctx, pool)
	if err != nil {
		return err
	}
	if err := s.b.prepare(ctx, conn.Conn(), c.sql); err != nil {
		s.leave(conn, pool, err)
		return retry(err)
	}
	if c.sends != nil && !c.sends() {
		conn.Release()
		return retry(context.Canceled)
	}
	args := append([]any{pgx.QueryExecModeExec}, c.args...)
	err = conn.QueryRow(ctx, c.sql, args...).Scan(c.dest...)
	if err != nil && forgets(ctx, conn.Conn(), err) {
		err = conn.QueryRow(ctx, c.sql, args...).Scan(c.dest...)
	}
	if err != nil {
		s.leave(conn, pool, err)
		return failed(err)
	}
	if c.after == nil || c.some != nil && !c.some() {
		conn.Release()
		return nil
	}
	s.afterwards(ctx, conn, c.after)
	return nil
}

// afterwards starts a goroutine that runs f on a connection, and then returns the connection to its
// pool.
func (s *session) afterwards(
	ctx context.Context, conn *pgxpool.Conn, f func(context.Context, *pgxpool.Conn),
) {
	s.busy.run(func() {
		defer conn.Release()
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
		defer cancel()
		f(ctx, conn)
	})
}

// conn returns a working connection from a pool.
func (s *session) conn(ctx context.Context, pool *pgxpool.Pool) (*pgxpool.Conn, error) {
	conn, err := s.standing(ctx, pool)
	if err != nil && ctx.Err() == nil && s.closed.Load() && pool != s.b.pool {
		// Close has just closed that pool
		conn, err = s.standing(ctx, s.b.pool)
	}
	if err != nil {
		return nil, unconnected(err)
	}
	return conn, nil
}

// standing returns a connection from a pool. If the connection received data while it was idle,
// standing pings the server first. If that fails, it takes another connection.
func (s *session) standing(ctx context.Context, pool *pgxpool.Pool) (*pgxpool.Conn, error) {
	for {
		conn, err := pool.Acquire(ctx)
		if err != nil || silent(conn.Conn().PgConn().Conn()) {
			return conn, err
		}
		if err := conn.Ping(ctx); err == nil {
			return conn, nil
		}
		s.leave(conn, pool, nil)
	}
}

// patience is the timeout for background work whose failure does no harm.
const patience = 5 * time.Second

// leave returns a connection to its pool after an error. A broken connection is removed from the
// pool instead, because it would count toward the pool's size until pgx has closed it. pgx does so
// in the background, after asking the server to cancel the statement.
func (s *session) leave(conn *pgxpool.Conn, pool *pgxpool.Pool, err error) {
	if conn.Conn().IsClosed() {
		broken := conn.Hijack()
		s.busy.run(func() { <-broken.PgConn().CleanupDone() })
	} else {
		conn.Release()
	}
	if isCode(err, readOnly) {
		pool.Reset() // this server may be a standby now, and another the primary
	}
}

// Capabilities implements [backend.Capable].
func (s *session) Capabilities() backend.Capabilities {
	return backend.Capabilities{
		Notifier: s, BatchRenewer: s, Batcher: s, Inspector: s, Lister: s, Liner: s, Latcher: s,
		Steps: backend.StepsReturn, Settle: s.settle,
	}
}

// settle waits for the goroutines that steps left behind. They send messages, or wait for pgx to
// close a connection in the background.
func (s *session) settle() {
	s.steps.Settle()
	s.busy.wait()
}

// Close ends the session's goroutines and connections.
func (s *session) Close() error {
	s.closed.Store(true)
	s.stop()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.over = true
	if pool := s.urgent; pool != nil {
		s.urgent = nil
		s.busy.run(pool.Close)
	}
	return nil
}

// ms returns a duration in milliseconds.
func ms(d time.Duration) int64 { return d.Milliseconds() }

// span returns milliseconds as a duration.
func span(ms *int64) time.Duration {
	if ms == nil {
		return 0
	}
	return time.Duration(*ms) * time.Millisecond
}

// Outcomes of a step, numbered as in schema.sql.
const (
	isHeld int16 = iota // acquisition: another owner holds the lock; other steps: it isn't held
	isDone
	isFreed
	isKept
	isForeign
	hasNoLimit
	hasTooFew
	isAgain = 9
)

// Kinds of lock and roles of their owners, numbered as in schema.sql.
const (
	plain, readWrite, semaphore int16 = 1, 2, 3

	reading, inLine, permitted int16 = 1, 3, 4
)

// stored returns the code that stands for a kind of lock in the tables, and the role of its
// holders. The role is 0 if there can be only one holder.
func stored(kind backend.Kind) (lock, role int16) {
	switch kind {
	case backend.Read:
		return readWrite, reading
	case backend.Write:
		return readWrite, 0
	case backend.Permits:
		return semaphore, permitted
	default:
		return plain, 0
	}
}
