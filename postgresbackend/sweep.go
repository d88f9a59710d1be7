package postgresbackend

import (
	"context"
	"time"
)

// pagesAtOnce is the number of table pages that a sweep reads in one transaction.
const pagesAtOnce = 200

// sweepNowAndThen starts a sweep, unless this session started one recently. A sweep deletes the
// expired rows of all sessions.
func (s *session) sweepNowAndThen() {
	every := s.b.options.sweep
	if every <= 0 {
		return
	}
	now, last := time.Since(s.opened), time.Duration(s.swept.Load())
	if now-last < every || !s.swept.CompareAndSwap(int64(last), int64(now)) {
		return
	}
	s.busy.run(func() { _, _ = s.sweep(s.ctx) }) // after an error, the next sweep deletes the rest
}

// sweep deletes rows that expired more than a day ago and returns their number.
func (s *session) sweep(ctx context.Context) (gone int64, err error) {
	page := int64(0)
	for next := &page; next != nil; {
		var n int64
		page = *next
		next = nil
		ctx, cancel := context.WithTimeout(ctx, patience)
		err := s.do(ctx, s.lane(), &call{
			sql:  `SELECT gone, next FROM ` + s.b.q + `distsync_v1_sweep($1, $2)`,
			args: []any{page, int32(pagesAtOnce)}, dest: []any{&n, &next},
		})
		cancel()
		if err != nil {
			return gone, err
		}
		gone += n
	}
	return gone, nil
}
