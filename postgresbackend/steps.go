package postgresbackend

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/seed951563bd/distsync/backend"
)

// guardedFor is the pause before the next attempt to acquire a lock that nobody holds, but whose
// row another transaction has locked.
const guardedFor = 100 * time.Millisecond

// answer is the answer to a step that acquires a lock. Some steps don't set all fields.
type answer struct {
	status      int16
	held        *int32
	token, left *int64
	noted, tell *bool
	most        *int32
}

func (s *session) Acquire(
	ctx context.Context, req backend.AcquireRequest,
) (res backend.AcquireResult, err error) {
	name, owner := encode(req.Name), encode(req.Owner)
	if err := s.check(ctx, req.Kind, name, owner); err != nil {
		return res, err
	}
	s.sweepNowAndThen()
	if simple(&req) {
		own := req // a copy, because the batch may outlast this call
		results, err := s.steps.Send(ctx, &step{acquire: &own})
		if err != nil {
			return res, err
		}
		if !results[0].left {
			return results[0].acquired, results[0].err
		}
	}
	return s.acquireAlone(ctx, req)
}

// acquireAlone implements Acquire with a separate statement.
func (s *session) acquireAlone(
	ctx context.Context, req backend.AcquireRequest,
) (res backend.AcquireResult, err error) {
	name, owner := encode(req.Name), encode(req.Owner)
	if err := s.check(ctx, req.Kind, name, owner); err != nil {
		return res, err
	}
	if req.Kind == backend.Fair {
		return s.acquireFair(ctx, req, name, owner)
	}
	var a answer
	c := &call{}
	switch req.Kind {
	case backend.Read:
		c.sql = `SELECT status, remaining, noted FROM ` + s.b.q + `distsync_v1_read($1, $2, $3, $4)`
		c.args = []any{name, owner, ms(req.Lease), ms(req.Waited)}
		c.dest = []any{&a.status, &a.left, &a.noted}
	case backend.Write:
		c.sql = `SELECT status, held, remaining, noted FROM ` + s.b.q +
			`distsync_v1_write($1, $2, $3, $4, $5)`
		c.args = []any{name, owner, ms(req.Lease), ms(req.Waited), ms(req.Place)}
		c.dest = []any{&a.status, &a.held, &a.left, &a.noted}
	case backend.Permits:
		c.sql = `SELECT status, remaining, noted, tell, most FROM ` + s.b.q +
			`distsync_v1_permits($1, $2, $3, $4, $5)`
		c.args = []any{name, owner, int32(req.Permits), int32(req.Limit), ms(req.Lease)}
		c.dest = []any{&a.status, &a.left, &a.noted, &a.tell, &a.most}
		c.some = func() bool { return is(a.tell) }
		c.after = s.telling(name, tellFreed)
	default:
		c = s.acquiring(req, name, &a, true)
	}
	began := time.Now()
	for n := 1; ; n++ {
		if req.Kind == backend.Read || req.Kind == backend.Write {
			c.args[3] = ms(req.Waited + time.Since(began)) // longer each time it is sent
		}
		err := s.do(ctx, s.b.pool, c)
		switch {
		case isCode(err, lockTimeout) && req.Reentry && n < mostRepeats:
			// A guard doesn't block a re-entry, so slow steps of other clients must have locked the
			// row. The owner may still hold the lock, so try again.
			continue
		case isCode(err, lockTimeout) && !req.Reentry:
			// The row is locked by a transaction that the last holder guarded, or by one whose
			// commit waits for a standby.
			return backend.AcquireResult{Remaining: guardedFor}, nil
		case err != nil:
			return res, err
		case a.status == isAgain && n < mostRepeats:
			continue
		}
		return s.acquired(req, name, &a)
	}
}

// acquiring returns the statement that acquires a plain lock. If waits is false and the row is
// locked, the statement does nothing and returns the status isAgain.
func (s *session) acquiring(req backend.AcquireRequest, name string, a *answer, waits bool) *call {
	return &call{
		sql: `SELECT status, held, num, remaining, noted FROM ` + s.b.q +
			`distsync_v1_acquire($1, $2, $3, $4)`,
		args: []any{name, encode(req.Owner), ms(req.Lease), waits},
		dest: []any{&a.status, &a.held, &a.token, &a.left, &a.noted},
	}
}

// acquired returns the result of an acquisition, given the answer to its statement.
func (s *session) acquired(
	req backend.AcquireRequest, name string, a *answer,
) (res backend.AcquireResult, err error) {
	switch a.status {
	case isDone:
		res = backend.AcquireResult{Acquired: true, Count: 1}
		if a.held != nil {
			res.Count = int(*a.held)
		}
		switch req.Kind {
		case backend.Fenced:
			res.Token = uint64(*a.token)
		case backend.Permits:
			res.Count = req.Permits
		}
		return res, nil
	case isHeld:
		if !is(a.noted) {
			s.askAgain(name)
		}
		return backend.AcquireResult{Remaining: span(a.left)}, nil
	case isForeign:
		return res, errConflict
	case hasNoLimit:
		return res, refused(backend.ErrNoLimit)
	case hasTooFew:
		return res, refused(fmt.Errorf("%w: %d of %d", backend.ErrTooMany, req.Permits, *a.most))
	default: // on every attempt, other transactions had locked the row
		if req.Reentry {
			return res, retry(errors.New("other clients changed the lock during each attempt"))
		}
		return backend.AcquireResult{Remaining: time.Millisecond}, nil
	}
}

func is(b *bool) bool { return b != nil && *b }

// The ways to notify waiters.
const (
	tellFreed  = "o"
	tellUnread = "r" // tellFreed, unless there are readers
	tellKept   = "k" // only subscribers that watch
	tellProof  = "p" // a session's test message to itself; not for subscribers
)

// telling returns a function that notifies subscribers after a step.
func (s *session) telling(name, how string) func(context.Context, *pgxpool.Conn) {
	return func(ctx context.Context, conn *pgxpool.Conn) {
		s.say(ctx, conn, `SELECT `+s.b.q+`distsync_v1_tell($1, $2)`, name, how)
	}
}

// say executes a statement that sends a message. If the message is lost, waiters notice the change
// when they poll.
func (s *session) say(ctx context.Context, conn *pgxpool.Conn, sql string, args ...any) {
	if s.b.prepare(ctx, conn.Conn(), sql) != nil {
		return
	}
	args = append([]any{pgx.QueryExecModeExec}, args...)
	if _, err := conn.Exec(ctx, sql, args...); err != nil && forgets(ctx, conn.Conn(), err) {
		_, _ = conn.Exec(ctx, sql, args...)
	}
}

func (s *session) Release(
	ctx context.Context, req backend.ReleaseRequest,
) (res backend.ReleaseResult, err error) {
	name, owner := encode(req.Name), encode(req.Owner)
	if err := s.checkRequest(ctx, req.Kind, name, owner); err != nil {
		return res, err
	}
	if simpleRelease(&req) {
		own := req
		results, err := s.steps.Send(ctx, &step{release: &own})
		if err != nil {
			return res, err
		}
		if !results[0].left {
			return results[0].released, results[0].err
		}
	}
	return s.release(ctx, req, nil)
}

// release implements Release with a separate statement. If the parameter sends isn't nil, the
// statement is sent only if sends returns true.
func (s *session) release(
	ctx context.Context, req backend.ReleaseRequest, sends func() bool,
) (res backend.ReleaseResult, err error) {
	name, owner := encode(req.Name), encode(req.Owner)
	if err := s.checkRequest(ctx, req.Kind, name, owner); err != nil {
		return res, err
	}
	if req.Kind == backend.Fair {
		return s.releaseFair(ctx, req, name, owner)
	}
	var status int16
	var tell bool
	var waiting *int64
	c := &call{dest: []any{&status, &tell, &waiting}, some: func() bool {
		return tell
	}, sends: sends}
	lock, role := stored(req.Kind)
	if role != 0 {
		n, keep := int32(1), int64(0)
		if req.Kind == backend.Permits {
			n, keep = int32(req.Permits), ms(req.Keep)
		}
		c.sql = `SELECT status, tell, waiting FROM ` + s.b.q +
			`distsync_v1_leave($1, $2, $3, $4, $5, $6, $7)`
		c.args = []any{role, name, owner, s.id, n, keep, req.AskWaiting}
	} else {
		c.sql = `SELECT status, tell, waiting FROM ` + s.b.q +
			`distsync_v1_release($1, $2, $3, $4, $5, $6, $7)`
		c.args = []any{lock, name, owner, s.id, ms(req.Lease), ms(req.Keep), req.AskWaiting}
	}
	c.after = s.telling(name, tellFreed)
	if req.Kind == backend.Read {
		c.after = s.telling(name, tellUnread)
	}
	if lock == plain && req.Keep > 0 {
		c.some = func() bool { return tell || status == isKept }
		c.after = func(ctx context.Context, conn *pgxpool.Conn) {
			if status != isKept {
				s.telling(name, tellFreed)(ctx, conn)
				return
			}
			// If this message is lost, watchers notice the change when they poll.
			_, _ = conn.Exec(ctx, `SELECT `+s.b.q+`distsync_v1_tell_kept($1)`,
				pgx.QueryExecModeExec, name)
		}
	}
	if err := s.do(ctx, s.lane(), c); err != nil {
		return res, err
	}
	res.Outcome, err = outcome(status)
	if waiting != nil && res.Outcome == backend.Freed {
		res.Counted, res.Waiting = true, int(*waiting)
	}
	return res, err
}

// outcome returns the outcome of a release.
func outcome(status int16) (backend.ReleaseOutcome, error) {
	switch status {
	case isDone:
		return backend.Left, nil
	case isFreed:
		return backend.Freed, nil
	case isKept:
		return backend.Kept, nil
	case isForeign:
		return backend.NotHeld, errConflict
	default:
		return backend.NotHeld, nil
	}
}

func (s *session) ForceRelease(
	ctx context.Context, req backend.ForceReleaseRequest,
) (res backend.ForceReleaseResult, err error) {
	name := encode(req.Name)
	if err := s.check(ctx, req.Kind, name); err != nil {
		return res, err
	}
	var status int16
	if req.Kind == backend.Fair {
		f, err := s.fair(ctx, s.lane(), fairRequest{do: fairForce, name: name})
		if err != nil {
			return res, err
		}
		status = f.status
	} else {
		lock, role := stored(req.Kind)
		var tell bool
		err := s.do(ctx, s.lane(), &call{
			sql:  `SELECT status, tell FROM ` + s.b.q + `distsync_v1_force($1, $2, $3)`,
			args: []any{lock, role, name}, dest: []any{&status, &tell},
			some: func() bool { return tell }, after: s.telling(name, tellFreed),
		})
		if err != nil {
			return res, err
		}
	}
	if status == isForeign {
		return res, errConflict
	}
	res.Released = status == isDone
	return res, nil
}

// sight is the row that Look reads.
type sight struct {
	kind      int16
	owner     *string // the owner, if the lock can have only one
	count     int32
	kept      bool
	left      *int64
	limit     int32
	parts     int64 // the number of owners that hold reads or permits
	out, mine int64 // the number of reads or permits, in total and of the given owner
	last      int64 // when the last permit or read expires, in milliseconds from now
}

func (s *session) Look(
	ctx context.Context, req backend.LookRequest,
) (res backend.LookResult, err error) {
	name, owner := encode(req.Name), encode(req.Owner)
	if err := s.check(ctx, req.Kind, name); err != nil {
		return res, err
	}
	var v sight
	err = s.do(ctx, s.b.pool, &call{
		sql: `SELECT kind, owner, count, kept, remaining, lim, parts, taken, mine, last FROM ` +
			s.b.q + `distsync_v1_see($1, $2)`,
		args: []any{name, owner},
		dest: []any{
			&v.kind, &v.owner, &v.count, &v.kept, &v.left, &v.limit, &v.parts, &v.out, &v.mine,
			&v.last,
		},
	})
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return res, err
	}
	lock, role := stored(req.Kind)
	if v.kind > semaphore || v.kind != lock && (v.owner != nil || v.parts > 0) {
		return res, errConflict
	}
	if req.Kind == backend.Permits {
		limit := int64(req.Limit)
		if limit == 0 {
			if limit = int64(v.limit); v.parts == 0 {
				return res, refused(backend.ErrNoLimit)
			}
		}
		res.Available = int(max(0, limit-v.out))
	}
	switch {
	case role != 0:
		res.Held, res.Count, res.Remaining = v.parts > 0, int(v.mine),
			time.Duration(v.last)*time.Millisecond
	case v.owner != nil:
		res.Held, res.Remaining, res.Kept = true, span(v.left), v.kept
		if *v.owner == owner && !v.kept {
			res.Count = int(v.count)
		}
	}
	return res, nil
}
