package postgresbackend

import (
	"context"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/internal/gather"
)

// Acquisitions and releases that goroutines make at about the same time share a transaction, and so
// a commit. That applies to plain and fenced locks that are free or held once.
//
// Requests that arrive while a transaction is under way share the next one, so a goroutine that is
// alone never waits for another. Acquisitions and releases share the same transaction. If they had
// separate transactions, a goroutine would wait for more commits. The transaction skips requests
// whose rows other transactions have locked, or whose locks are neither free nor held once. Each
// skipped request gets a separate statement.

// A step is a request that can share a transaction with others. A step that shares its transaction
// with no other can be recalled while it waits for a connection.
type step struct {
	acquire *backend.AcquireRequest // nil for a release
	release *backend.ReleaseRequest // nil for an acquisition
	state   atomic.Int32
}

const (
	isSent   = 1
	isCalled = 2 // recalled
)

// sends marks the step as sent, so that it can no longer be recalled. It returns false if the step
// has been recalled already, and so must not be sent.
func (p *step) sends() bool {
	return p.state.CompareAndSwap(0, isSent) || p.state.Load() == isSent
}

// recall tries to recall a step that is alone. If it returns true, the step will never be sent.
func recall(steps []*step) bool { return steps[0].state.CompareAndSwap(0, isCalled) }

// A result is the outcome of a step.
type result struct {
	left     bool // the step needs a separate statement
	acquired backend.AcquireResult
	released backend.ReleaseResult
	err      error
}

// together collects steps that share transactions.
type together struct {
	steps *gather.Sender[*step, result]
}

// flights is the maximum number of transactions under way at a time. Steps that arrive meanwhile
// share the next transaction.
const flights = 1

func (s *session) gatherSteps() {
	s.steps = gather.New(func(ctx context.Context, steps []*step) []result {
		switch p := steps[0]; {
		case len(steps) > 1:
			return s.carryOut(ctx, steps)
		case p.acquire != nil:
			return []result{s.acquireUnlessLocked(ctx, p)}
		default:
			res, err := s.release(ctx, *p.release, p.sends)
			return []result{{released: res, err: err}}
		}
	}, recall).Limit(flights)
}

// simple reports whether an acquisition can share a transaction with others.
func simple(req *backend.AcquireRequest) bool {
	return (req.Kind == backend.Exclusive || req.Kind == backend.Fenced) && !req.Reentry
}

// simpleRelease reports whether a release can share a transaction with others.
func simpleRelease(req *backend.ReleaseRequest) bool {
	return (req.Kind == backend.Exclusive || req.Kind == backend.Fenced) &&
		req.Keep == 0
}

// acquireUnlessLocked carries out a single acquisition. If another transaction has locked the row,
// it sets left in the result instead of waiting, since other steps may be waiting for this one.
func (s *session) acquireUnlessLocked(ctx context.Context, p *step) result {
	name := encode(p.acquire.Name)
	var a answer
	c := s.acquiring(*p.acquire, name, &a, false)
	c.sends = p.sends
	if err := s.do(ctx, s.lane(), c); err != nil {
		return result{err: err}
	}
	if a.status == isAgain {
		return result{left: true}
	}
	res, err := s.acquired(*p.acquire, name, &a)
	return result{acquired: res, err: err}
}

// lines holds the arguments of a statement that carries out several steps.
type lines struct {
	at            []int // the indexes of the steps
	names, owners []string
	leases        []int64 // of acquisitions
	asks          []bool  // of releases
}

func (l *lines) add(i int, name, owner string) {
	l.at = append(l.at, i)
	l.names, l.owners = append(l.names, encode(name)), append(l.owners, encode(owner))
}

// carryOut carries out several steps in one transaction, acquisitions before releases. A release
// takes only a weak lock on its row, which is compatible with guards. An acquisition needs the
// strong lock, and must take it before a release takes the weak lock on the same row.
func (s *session) carryOut(ctx context.Context, steps []*step) []result {
	var acquires, releases lines
	for i, p := range steps {
		if req := p.acquire; req != nil {
			acquires.add(i, req.Name, req.Owner)
			acquires.leases = append(acquires.leases, ms(req.Lease))
		} else {
			releases.add(i, p.release.Name, p.release.Owner)
			releases.asks = append(releases.asks, p.release.AskWaiting)
		}
	}
	var results []result
	var woken []string
	begin := func() {
		results, woken = make([]result, len(steps)), nil
		for i := range results {
			results[i].left = true
		}
	}
	var all []statement
	if len(acquires.at) > 0 {
		var i int64
		var token, left *int64
		var noted *bool
		one := int32(1)
		all = append(all, statement{
			sql: `SELECT i, num, remaining, noted FROM ` + s.b.q +
				`distsync_v1_acquire_all($1::text[], $2::text[], $3::bigint[])`,
			args: []any{acquires.names, acquires.owners, acquires.leases},
			dest: []any{&i, &token, &left, &noted},
			row: func() {
				a := answer{status: isHeld, left: left, noted: noted}
				if token != nil {
					a = answer{status: isDone, held: &one, token: token}
				}
				at := acquires.at[i-1]
				res, err := s.acquired(*steps[at].acquire, acquires.names[i-1], &a)
				results[at] = result{acquired: res, err: err}
			},
		})
	}
	if len(releases.at) > 0 {
		var i int64
		var tell bool
		var waiting *int64
		all = append(all, statement{
			sql: `SELECT i, tell, waiting FROM ` + s.b.q +
				`distsync_v1_release_all($1::text[], $2::text[], $3, $4::boolean[])`,
			args: []any{releases.names, releases.owners, s.id, releases.asks},
			dest: []any{&i, &tell, &waiting},
			row: func() {
				freed := backend.ReleaseResult{Outcome: backend.Freed}
				if waiting != nil {
					freed.Counted, freed.Waiting = true, int(*waiting)
				}
				results[releases.at[i-1]] = result{released: freed}
				if tell {
					woken = append(woken, releases.names[i-1])
				}
			},
		})
	}
	err := s.transact(ctx, s.lane(), begin, all, func() func(context.Context, *pgxpool.Conn) {
		if len(woken) == 0 {
			return nil
		}
		return func(ctx context.Context, conn *pgxpool.Conn) {
			s.say(ctx, conn, `SELECT `+s.b.q+`distsync_v1_tell(u, $2) FROM unnest($1::text[]) u`,
				woken, tellFreed)
		}
	})
	if err != nil {
		results = make([]result, len(steps))
		for i := range results {
			results[i] = result{left: !inDoubt(err), err: err}
		}
	}
	return results
}

// inDoubt reports whether a failed transaction may have been carried out. If not, each of its steps
// is sent again in a separate statement.
func inDoubt(err error) bool { return backend.KindOf(err) == backend.Unknown }

// A statement is one of the statements of a transaction. The function row is called for each row of
// the answer.
type statement struct {
	sql  string
	args []any
	dest []any
	row  func()
}

// transact carries out statements in one transaction and one round trip. It calls begin before it
// sends the statements, and again if it must send them a second time. On success, it calls the
// function after, unless that is nil. If this call returns a function, transact runs it in another
// goroutine.
func (s *session) transact(ctx context.Context, pool *pgxpool.Pool, begin func(), all []statement,
	after func() func(context.Context, *pgxpool.Conn)) error {
	if err := s.b.ready(ctx); err != nil {
		return err
	}
	conn, err := s.conn(ctx, pool)
	if err != nil {
		return err
	}
	for _, one := range all {
		if err := s.b.prepare(ctx, conn.Conn(), one.sql); err != nil {
			s.leave(conn, pool, err)
			return retry(err)
		}
	}
	if err = send(ctx, conn, begin, all); err != nil && forgets(ctx, conn.Conn(), err) {
		err = send(ctx, conn, begin, all) // everything was rolled back
	}
	if err != nil {
		s.leave(conn, pool, err)
		return failed(err)
	}
	if after != nil {
		if f := after(); f != nil {
			s.afterwards(ctx, conn, f)
			return nil
		}
	}
	conn.Release()
	return nil
}

// send sends statements that form one transaction. If send returns nil, the transaction is
// committed and its answers are valid.
func send(ctx context.Context, conn *pgxpool.Conn, begin func(), all []statement) error {
	begin()
	var batch pgx.Batch
	for _, one := range all {
		batch.Queue(one.sql, one.args...).Query(func(rows pgx.Rows) error {
			_, err := pgx.ForEachRow(rows, one.dest, func() error { one.row(); return nil })
			return err
		})
	}
	return conn.SendBatch(ctx, &batch).Close()
}

// AcquireBatch implements [backend.Batcher].
func (s *session) AcquireBatch(ctx context.Context, reqs []backend.AcquireRequest,
	answer func(i int, res backend.AcquireResult, err error)) {
	var steps []*step
	var at []int
	for i := range reqs {
		req := &reqs[i]
		if simple(req) && s.check(ctx, req.Kind, encode(req.Name), encode(req.Owner)) == nil {
			steps, at = append(steps, &step{acquire: req}), append(at, i)
		}
	}
	s.batch(ctx, steps, at, len(reqs), func(i int, r *result) {
		if r == nil {
			res, err := s.acquireAlone(ctx, reqs[i])
			r = &result{acquired: res, err: err}
		}
		answer(i, r.acquired, r.err)
	})
}

// ReleaseBatch implements [backend.Batcher].
func (s *session) ReleaseBatch(ctx context.Context, reqs []backend.ReleaseRequest,
	answer func(i int, res backend.ReleaseResult, err error)) {
	var steps []*step
	var at []int
	for i := range reqs {
		req := &reqs[i]
		err := s.checkRequest(ctx, req.Kind, encode(req.Name), encode(req.Owner))
		if simpleRelease(req) && err == nil {
			steps, at = append(steps, &step{release: req}), append(at, i)
		}
	}
	s.batch(ctx, steps, at, len(reqs), func(i int, r *result) {
		if r == nil {
			res, err := s.release(ctx, reqs[i], nil)
			r = &result{released: res, err: err}
		}
		answer(i, r.released, r.err)
	})
}

// batch carries out n requests. The parameter steps contains the steps of the requests that can
// share a transaction: steps[k] belongs to request at[k]. If there are several steps, batch carries
// them out in one transaction, and calls done with the result of each. Then it calls done with nil
// for each request that needs a separate statement.
func (s *session) batch(
	ctx context.Context, steps []*step, at []int, n int, done func(i int, r *result),
) {
	over := make([]bool, n)
	if len(steps) > 1 {
		for k, r := range s.carryOut(ctx, steps) {
			if !r.left {
				over[at[k]] = true
				done(at[k], &r)
			}
		}
	}
	for i := range n {
		if !over[i] {
			done(i, nil)
		}
	}
}
