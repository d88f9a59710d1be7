package postgresbackend

import (
	"context"

	"github.com/seed951563bd/distsync/backend"
)

// latchNews returns the stored name under which waiters for a latch subscribe. It differs from all
// names of locks, since stored names that begin with \x continue with hexadecimal digits.
func latchNews(name string) string { return escape + "latch:" + name }

// Latch implements [backend.Latcher].
func (s *session) Latch(
	ctx context.Context, req backend.LatchRequest,
) (res backend.LatchResult, err error) {
	name := encode(req.Name)
	news := latchNews(name)
	if err := s.check(ctx, backend.Exclusive, news); err != nil {
		return res, err
	}
	var opens bool
	do := map[backend.LatchStep]int32{backend.SetLatch: 1, backend.CountDown: 2}[req.Step]
	err = s.do(ctx, s.b.pool, &call{
		sql:   `SELECT n, done, opens FROM ` + s.b.q + `distsync_v1_count($1, $2, $3)`,
		args:  []any{name, do, req.Count},
		dest:  []any{&res.Count, &res.Set, &opens},
		some:  func() bool { return opens },
		after: s.telling(news, tellFreed),
	})
	if err != nil {
		return backend.LatchResult{}, err
	}
	return res, nil
}
