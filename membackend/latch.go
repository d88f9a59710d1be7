package membackend

import (
	"context"
	"maps"
	"slices"

	"github.com/seed951563bd/distsync/backend"
)

// latches holds the count-down latches. A latch and a lock may have the same name.
type latches struct {
	counts map[string]int64 // by name; no count is zero
	subs   map[string]map[*subscription]struct{}
}

// Latch implements [backend.Latcher].
func (s *session) Latch(
	ctx context.Context, req backend.LatchRequest,
) (res backend.LatchResult, err error) {
	var n news
	defer n.tell()
	b := s.b
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := s.check(ctx, backend.Exclusive); err != nil {
		return res, err
	}
	l := &b.latches
	switch {
	case req.Step == backend.SetLatch && l.counts[req.Name] == 0:
		l.counts[req.Name], res.Set = req.Count, true
	case req.Step == backend.CountDown && l.counts[req.Name] > 1:
		l.counts[req.Name]--
	case req.Step == backend.CountDown && l.counts[req.Name] == 1:
		delete(l.counts, req.Name)
		n.woken = slices.Collect(maps.Keys(l.subs[req.Name]))
	}
	res.Count = l.counts[req.Name]
	return res, nil
}
