package postgresbackend

import (
	"context"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/internal/gather"
)

// What many goroutines acquire and release at about the same time goes together, in one statement
// and so one commit: plain locks that are free, and those that are held once. Whoever is alone
// waits for nobody. What such a statement leaves out, since somebody is at it or it isn't that
// simple, is done by a step of its own.

// A gained is what came of an acquisition that went together with others.
type gained struct {
	left bool // to a step of its own
	res  backend.AcquireResult
	err  error
}

// A given is what came of a release.
type given struct {
	left bool
	res  backend.ReleaseResult
	err  error
}

// A pending is a request that goes together with others, unless it is alone. One that has no
// connection yet can be called back.
type pending[Req any] struct {
	req   Req
	state atomic.Int32
}

const (
	isSent   = 1
	isCalled = 2 // back
)

// sends says whether the request may be sent now: it can't be called back any more.
func (p *pending[Req]) sends() bool {
	return p.state.CompareAndSwap(0, isSent) || p.state.Load() == isSent
}

// recall calls a request back, and says whether it will never be sent.
func recall[Req any](all []*pending[Req]) bool { return all[0].state.CompareAndSwap(0, isCalled) }

func requests[Req any](all []*pending[Req]) []Req {
	reqs := make([]Req, len(all))
	for i, p := range all {
		reqs[i] = p.req
	}
	return reqs
}

// together is how steps go together.
type together struct {
	acquires *gather.Sender[*pending[backend.AcquireRequest], gained]
	releases *gather.Sender[*pending[backend.ReleaseRequest], given]
}

// flights is how many statements are under way before what comes goes together in the next.
const flights = 1

func (s *session) gatherSteps() {
	s.acquires = gather.New(func(ctx context.Context, all []*pending[backend.AcquireRequest]) []gained {
		if len(all) == 1 {
			return []gained{s.acquireUnlessLocked(ctx, all[0])}
		}
		return s.acquireAll(ctx, requests(all))
	}, recall).Limit(flights)
	s.releases = gather.New(func(ctx context.Context, all []*pending[backend.ReleaseRequest]) []given {
		if len(all) == 1 {
			res, err := s.release(ctx, all[0].req, all[0].sends)
			return []given{{res: res, err: err}}
		}
		return s.releaseAll(ctx, requests(all))
	}, recall).Limit(flights)
}

// simple says whether a request may go together with others.
func simple(req backend.AcquireRequest) bool {
	return (req.Kind == backend.Exclusive || req.Kind == backend.Fenced) && !req.Reentry
}

// simpleRelease says whether a request may go together with others.
func simpleRelease(req backend.ReleaseRequest) bool {
	return (req.Kind == backend.Exclusive || req.Kind == backend.Fenced) && req.Keep == 0 && !req.AskWaiting
}

// acquireUnlessLocked is Acquire in a statement of its own that waits for nobody: those who come
// meanwhile wait for it.
func (s *session) acquireUnlessLocked(ctx context.Context, p *pending[backend.AcquireRequest]) gained {
	req, name := p.req, encode(p.req.Name)
	var a answer
	c := s.acquiring(req, name, &a, false)
	c.sends = p.sends
	if err := s.do(ctx, s.b.pool, c); err != nil {
		return gained{err: err}
	}
	if a.status == isAgain {
		return gained{left: true}
	}
	res, err := s.acquired(req, name, &a)
	return gained{res: res, err: err}
}

// acquireAll acquires what several have asked for.
func (s *session) acquireAll(ctx context.Context, all []backend.AcquireRequest) []gained {
	names, owners, leases := make([]string, len(all)), make([]string, len(all)), make([]int64, len(all))
	gains := make([]gained, len(all))
	for i, req := range all {
		names[i], owners[i], leases[i] = encode(req.Name), encode(req.Owner), ms(req.Lease)
		gains[i].left = true
	}
	var i int64
	var token, left *int64
	var noted *bool
	one := int32(1)
	err := s.forEach(ctx, s.b.pool, []any{&i, &token, &left, &noted}, func() {
		a := answer{status: isHeld, left: left, noted: noted}
		if token != nil {
			a = answer{status: isDone, held: &one, token: token}
		}
		g := &gains[i-1]
		g.left = false
		g.res, g.err = s.acquired(all[i-1], names[i-1], &a)
	}, nil, `SELECT i, num, remaining, noted FROM `+s.b.q+`distsync_v1_acquire_all($1::text[], $2::text[], $3::bigint[])`, names, owners, leases)
	if err != nil {
		for i := range gains {
			gains[i] = gained{left: !inDoubt(err), err: err}
		}
	}
	return gains
}

// inDoubt says whether what an error is about may have been done. Else each is told why it wasn't
// by a step of its own.
func inDoubt(err error) bool { return backend.KindOf(err) == backend.Unknown }

// releaseAll releases what several give back.
func (s *session) releaseAll(ctx context.Context, all []backend.ReleaseRequest) []given {
	names, owners := make([]string, len(all)), make([]string, len(all))
	back := make([]given, len(all))
	for i, req := range all {
		names[i], owners[i] = encode(req.Name), encode(req.Owner)
		back[i].left = true
	}
	var i int64
	var tell bool
	var woken []string
	err := s.forEach(ctx, s.lane(), []any{&i, &tell}, func() {
		back[i-1] = given{res: backend.ReleaseResult{Outcome: backend.Freed}}
		if tell {
			woken = append(woken, names[i-1])
		}
	}, func(ctx context.Context, conn *pgxpool.Conn) {
		if len(woken) > 0 {
			s.say(ctx, conn, `SELECT `+s.b.q+`distsync_v1_tell(u, $2) FROM unnest($1::text[]) u`, woken, tellFreed)
		}
	}, `SELECT i, tell FROM `+s.b.q+`distsync_v1_release_all($1::text[], $2::text[])`, names, owners)
	if err != nil {
		for i := range back {
			back[i] = given{left: !inDoubt(err), err: err}
		}
	}
	return back
}

// forEach carries out a statement, and calls row for each line of its answer; then, unless it
// failed, after by another goroutine.
func (s *session) forEach(ctx context.Context, pool *pgxpool.Pool, dest []any, row func(), after func(context.Context, *pgxpool.Conn), sql string, args ...any) error {
	if err := s.b.ready(ctx); err != nil {
		return err
	}
	conn, err := s.conn(ctx, pool)
	if err != nil {
		return err
	}
	if err := s.b.prepare(ctx, conn.Conn(), sql); err != nil {
		s.leave(conn, pool, err)
		return retry(err)
	}
	each := func() error {
		rows, err := conn.Query(ctx, sql, append([]any{pgx.QueryExecModeExec}, args...)...)
		if err == nil {
			_, err = pgx.ForEachRow(rows, dest, func() error { row(); return nil })
		}
		return err
	}
	err = each()
	if err != nil && forgets(ctx, conn.Conn(), err) {
		err = each() // no row has come
	}
	if err != nil {
		s.leave(conn, pool, err)
		return failed(err)
	}
	if after == nil {
		conn.Release()
		return nil
	}
	s.afterwards(ctx, conn, after)
	return nil
}

// AcquireBatch implements [backend.Batcher].
func (s *session) AcquireBatch(ctx context.Context, reqs []backend.AcquireRequest, answer func(i int, res backend.AcquireResult, err error)) {
	var all []backend.AcquireRequest
	var at []int
	for i, req := range reqs {
		if simple(req) && s.check(ctx, req.Kind, encode(req.Name), encode(req.Owner)) == nil {
			all, at = append(all, req), append(at, i)
		}
	}
	done := make([]bool, len(reqs))
	if len(all) > 1 {
		for k, g := range s.acquireAll(ctx, all) {
			if done[at[k]] = !g.left; !g.left {
				answer(at[k], g.res, g.err)
			}
		}
	}
	for i, req := range reqs {
		if !done[i] {
			res, err := s.acquireAlone(ctx, req)
			answer(i, res, err)
		}
	}
}

// ReleaseBatch implements [backend.Batcher].
func (s *session) ReleaseBatch(ctx context.Context, reqs []backend.ReleaseRequest, answer func(i int, res backend.ReleaseResult, err error)) {
	var all []backend.ReleaseRequest
	var at []int
	for i, req := range reqs {
		if simpleRelease(req) && s.checkRequest(ctx, req.Kind, encode(req.Name), encode(req.Owner)) == nil {
			all, at = append(all, req), append(at, i)
		}
	}
	done := make([]bool, len(reqs))
	if len(all) > 1 {
		for k, g := range s.releaseAll(ctx, all) {
			if done[at[k]] = !g.left; !g.left {
				answer(at[k], g.res, g.err)
			}
		}
	}
	for i, req := range reqs {
		if !done[i] {
			res, err := s.release(ctx, req, nil)
			answer(i, res, err)
		}
	}
}
