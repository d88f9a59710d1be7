package postgresbackend

import (
	"context"

	"github.com/seed951563bd/distsync/backend"
)

func (s *session) Renew(
	ctx context.Context, req backend.RenewRequest,
) (res backend.RenewResult, err error) {
	name, owner := encode(req.Name), encode(req.Owner)
	if err := s.check(ctx, req.Kind, name, owner); err != nil {
		return res, err
	}
	var status int16
	var tell bool
	lock, role := stored(req.Kind)
	c := &call{dest: []any{&status}}
	if role != 0 {
		c.sql = `SELECT status, tell FROM ` + s.b.q + `distsync_v1_renew_part($1, $2, $3, $4, $5)`
		c.args = []any{role, name, owner, count(req), ms(req.Lease)}
		c.dest = append(c.dest, &tell)
		c.some, c.after = func() bool { return tell }, s.telling(name, tellFreed)
	} else {
		c.sql = `SELECT status FROM ` + s.b.q + `distsync_v1_renew($1, $2, $3, $4)`
		c.args = []any{lock, name, owner, ms(req.Lease)}
	}
	if err := s.do(ctx, s.lane(), c); err != nil {
		return res, err
	}
	if status == isForeign {
		return res, errConflict
	}
	res.Held = status == isDone
	if !res.Held && req.Kind == backend.Fair { // the first waiter in line might get the lock now
		_, err = s.fair(ctx, s.lane(), fairRequest{do: fairSee, name: name})
	}
	return res, err
}

// count returns the number of permits that a request renews, or 1 if it renews a lock that isn't a
// semaphore.
func count(req backend.RenewRequest) int32 {
	if req.Kind == backend.Permits {
		return int32(req.Permits)
	}
	return 1
}

// mostTogether is the largest number of holds that one statement renews.
const mostTogether = 1000

// A batch holds the indexes of requests that share a statement.
type batch struct {
	role int16 // the role of the holders, or 0 if each excludes all others
	at   []int
	seen map[string]bool // rows in the batch; a statement can update a row only once
}

// RenewBatch implements [backend.BatchRenewer]. Exclusive holds share one statement, and reads and
// permits share another. A shared statement skips a hold if another transaction has locked its row
// or the lock isn't held. Each skipped hold then gets a statement of its own.
func (s *session) RenewBatch(
	ctx context.Context, reqs []backend.RenewRequest, answer func(
		i int, res backend.RenewResult, err error,
	),
) {
	alone, shared := &batch{}, &batch{role: reading}
	for i, req := range reqs {
		b := alone
		if _, role := stored(req.Kind); role != 0 {
			b = shared
		}
		name, owner := encode(req.Name), encode(req.Owner)
		if err := s.check(ctx, req.Kind, name, owner); err != nil {
			answer(i, backend.RenewResult{}, err)
			continue
		}
		key := name
		if b.role != 0 {
			key += "\x00" + owner
		}
		if b.seen[key] || len(reqs) == 1 {
			res, err := s.Renew(ctx, req)
			answer(i, res, err)
			continue
		}
		if b.seen == nil {
			b.seen = make(map[string]bool)
		}
		b.seen[key] = true
		if b.at = append(b.at, i); len(b.at) == mostTogether {
			s.renewTogether(ctx, b, reqs, answer)
			b.at, b.seen = nil, nil
		}
	}
	for _, b := range []*batch{alone, shared} {
		if len(b.at) > 0 {
			s.renewTogether(ctx, b, reqs, answer)
		}
	}
}

func (s *session) renewTogether(
	ctx context.Context, b *batch, reqs []backend.RenewRequest, answer func(
		i int, res backend.RenewResult, err error,
	),
) {
	held, err := s.renewAll(ctx, b, reqs)
	for k, i := range b.at {
		switch {
		case err != nil:
			answer(i, backend.RenewResult{}, err)
		case held[k]:
			answer(i, backend.RenewResult{Held: true}, nil)
		default:
			res, err := s.Renew(ctx, reqs[i])
			answer(i, res, err)
		}
	}
}

// renewAll renews a batch and reports which of its locks were renewed.
func (s *session) renewAll(
	ctx context.Context, b *batch, reqs []backend.RenewRequest,
) (held []bool, err error) {
	n := len(b.at)
	names, owners, kinds, leases, counts := make([]string, n), make([]string, n), make([]int16, n),
		make([]int64, n), make([]int32, n)
	for k, i := range b.at {
		req := reqs[i]
		lock, role := stored(req.Kind)
		names[k], owners[k], kinds[k], leases[k], counts[k] = encode(req.Name), encode(req.Owner),
			lock, ms(req.Lease), count(req)
		if b.role != 0 {
			kinds[k] = role
		}
	}
	held = make([]bool, n)
	if b.role != 0 {
		var i int64
		begin := func() { clear(held) }
		err = s.transact(ctx, s.lane(), begin, []statement{{
			sql: `SELECT i FROM ` + s.b.q + `distsync_v1_renew_parts(
				$1::text[], $2::smallint[], $3::text[], $4::integer[], $5::bigint[])`,
			args: []any{names, kinds, owners, counts, leases},
			dest: []any{&i}, row: func() { held[i-1] = true },
		}}, nil)
		return held, err
	}
	var some *[]int64
	renew := &call{
		sql: `SELECT ` + s.b.q +
			`distsync_v1_renew_all($1::text[], $2::smallint[], $3::text[], $4::bigint[], $5)`,
		args: []any{names, kinds, owners, leases, false}, dest: []any{&some},
	}
	if err = s.do(ctx, s.lane(), renew); isCode(err, lockTimeout) {
		renew.args[4] = true
		err = s.do(ctx, s.lane(), renew)
	}
	if err != nil {
		return nil, err
	}
	for i := range held {
		held[i] = some == nil
	}
	if some != nil {
		for _, i := range *some {
			held[i-1] = true
		}
	}
	return held, nil
}
