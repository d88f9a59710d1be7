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

// session is one client's view.
type session struct {
	b      *Backend
	id     string          // what it is called in the store: where messages for it go
	ctx    context.Context // ends with the session
	stop   context.CancelFunc
	closed atomic.Bool
	busy   errands
	swept  atomic.Int64 // when what is over was last deleted, in nanoseconds since opened
	opened time.Time

	mu     sync.Mutex
	urgent *pgxpool.Pool // two connections; nil until the first step on them, and after Close
	over   bool          // no such pool is made any more

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

// check says why a step can't be done. Names and owners are as stored.
func (s *session) check(ctx context.Context, kind backend.Kind, name string, owners ...string) error {
	if s.closed.Load() {
		return refused(errClosed)
	}
	return s.checkRequest(ctx, kind, name, owners...)
}

// checkRequest is check for a step that is allowed after Close.
func (s *session) checkRequest(ctx context.Context, kind backend.Kind, name string, owners ...string) error {
	if !kinds.Has(kind) {
		return backend.UnknownKind(s.b.String(), kind)
	}
	if err := checkNames(name, owners...); err != nil {
		return err
	}
	return ended(ctx)
}

// lane returns the pool for renewals, releases and all that goes together, none of which waits for
// guards or stands behind a program's own queries.
func (s *session) lane() *pgxpool.Pool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.urgent != nil || s.over {
		return s.laneOr(s.b.pool)
	}
	config := s.b.pool.Config()
	config.MaxConns, config.MinConns, config.MinIdleConns = 2, 0, 0
	config.ShouldPing = idleForLong
	config.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec // of what is sent together
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

// mostRepeats is how often a step is sent that has done nothing, since others were at the lock: by
// its status, or rolled back in a deadlock with transactions that are guarded by several locks.
const mostRepeats = 5

// A call is a statement that is a step, and where its answer goes.
type call struct {
	sql  string
	args []any
	dest []any
	// after is done on the connection when the step was carried out, by another goroutine: the step
	// doesn't wait for it.
	after func(ctx context.Context, conn *pgxpool.Conn)
	some  func() bool // whether there is anything to do after it
	// sends says, when there is a connection, whether the step is to be sent; nil: it is.
	sends func() bool
}

// do carries out a step.
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

// afterwards does what nobody waits for on a connection, and gives that back.
func (s *session) afterwards(ctx context.Context, conn *pgxpool.Conn, f func(context.Context, *pgxpool.Conn)) {
	s.busy.run(func() {
		defer conn.Release()
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
		defer cancel()
		f(ctx, conn)
	})
}

// conn returns a connection of a pool, one that stands.
func (s *session) conn(ctx context.Context, pool *pgxpool.Pool) (*pgxpool.Conn, error) {
	conn, err := s.standing(ctx, pool)
	if err != nil && ctx.Err() == nil && s.closed.Load() && pool != s.b.pool { // Close has ended that, just now
		conn, err = s.standing(ctx, s.b.pool)
	}
	if err != nil {
		return nil, unconnected(err)
	}
	return conn, nil
}

// standing returns a connection of a pool on which nothing has come while nobody used it; or, if
// that is more than the end of the stream, that answers nevertheless.
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

// patience is for how long something is tried that nobody waits for, and that is no loss if it
// fails.
const patience = 5 * time.Second

// leave gives a connection back after an error. One that has broken is taken out of the pool: to
// end it takes as long as the server takes to be told that it need not go on, and until then the
// pool would count it.
func (s *session) leave(conn *pgxpool.Conn, pool *pgxpool.Pool, err error) {
	if conn.Conn().IsClosed() {
		broken := conn.Hijack()
		s.busy.run(func() { <-broken.PgConn().CleanupDone() })
	} else {
		conn.Release()
	}
	if isCode(err, readOnly) {
		pool.Reset() // it may be a standby now, and another the primary
	}
}

// Capabilities implements [backend.Capable].
func (s *session) Capabilities() backend.Capabilities {
	return backend.Capabilities{
		Notifier: s, BatchRenewer: s, Batcher: s, Inspector: s, Lister: s, Liner: s, Latcher: s,
		Steps: backend.StepsReturn, Settle: s.settle,
	}
}

// settle waits for what goes on behind steps that have returned: pgx leaves a request when its
// context ends, and closes the connection.
func (s *session) settle() {
	s.steps.Settle()
	s.busy.wait()
}

// Close ends what the session has started.
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

// What a step answers, as schema.sql says.
const (
	isHeld int16 = iota // by another; or not held
	isDone
	isFreed
	isKept
	isForeign
	hasNoLimit
	hasTooFew
	isAgain = 9
)

// Kinds of lock and roles of those who have a part of one, as schema.sql says.
const (
	plain, readWrite, semaphore int16 = 1, 2, 3

	reading, inLine, permitted int16 = 1, 3, 4
)

// stored returns the kind of lock that a name then holds, and the role in which several may have
// it, or 0.
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
