package postgresbackend

import (
	"context"
	"time"
)

// pagesAtOnce is how many pages of the tables a sweep looks at in one transaction.
const pagesAtOnce = 200

// sweepNowAndThen has what is over be deleted, if this session hasn't done so for a while. One
// session of all does it.
func (s *session) sweepNowAndThen() {
	every := s.b.options.sweep
	if every <= 0 {
		return
	}
	now, last := time.Since(s.opened), time.Duration(s.swept.Load())
	if now-last < every || !s.swept.CompareAndSwap(int64(last), int64(now)) {
		return
	}
	s.busy.run(func() { _, _ = s.sweep(s.ctx) }) // what fails is done the next time
}

// sweep deletes what has been over for a day, and says how much that was.
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
