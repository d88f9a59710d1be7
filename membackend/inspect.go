package membackend

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/seed951563bd/distsync/backend"
)

// Inspect implements [backend.Inspector].
func (s *session) Inspect(
	ctx context.Context, req backend.InspectRequest,
) (backend.Inspection, error) {
	s.b.mu.Lock()
	defer s.b.mu.Unlock()
	if err := s.check(ctx, backend.Exclusive); err != nil {
		return backend.Inspection{}, err
	}
	return s.b.inspect(req.Name), nil
}

// inspect returns a report on the named lock. The caller must hold b.mu.
func (b *Backend) inspect(name string) backend.Inspection {
	now := time.Now()
	o := b.objects[name]
	o.prune(now)
	return o.inspect(name, now)
}

// inspect returns a report on an object, which must have been pruned.
func (o *object) inspect(name string, now time.Time) backend.Inspection {
	i := backend.Inspection{Name: name}
	switch {
	case len(o.readers) > 0 || o.alone.kind == backend.Write:
		i.Kind = backend.Write
	case len(o.permits) > 0:
		i.Kind, i.Limit = backend.Permits, o.limit
	}
	if h := o.alone; h.count > 0 {
		i.Holders = []backend.Holder{{
			Owner: h.owner, Kind: i.Kind, Count: h.count, Remaining: h.expires.Sub(now),
			Kept: h.kept,
		}}
	}
	i.Holders = append(i.Holders, o.sharers(backend.MostHolders-len(i.Holders), now)...)
	i.More = min(o.alone.count, 1) + len(o.readers) + len(o.permits) - len(i.Holders)
	for _, p := range o.line[:min(len(o.line), backend.MostHolders)] {
		i.Line = append(i.Line, p.owner)
	}
	return i
}

// sharers returns the readers, or the owners of permits, sorted by owner. The parameter most is the
// maximum number of them.
func (o *object) sharers(most int, now time.Time) (sharers []backend.Holder) {
	for owner, expires := range o.readers {
		if len(sharers) == most {
			break
		}
		sharers = append(sharers, backend.Holder{
			Owner: owner, Kind: backend.Read, Count: 1, Remaining: expires.Sub(now),
		})
	}
	for owner, p := range o.permits {
		if len(sharers) == most {
			break
		}
		sharers = append(sharers, backend.Holder{
			Owner: owner, Kind: backend.Permits, Count: p.n, Remaining: p.expires.Sub(now),
			Kept: p.kept,
		})
	}
	slices.SortFunc(sharers, func(a, b backend.Holder) int { return cmp.Compare(a.Owner, b.Owner) })
	return sharers
}

// listing holds the names that a session found for the first page of a list. Later pages use it
// instead of looking at every lock again. A listing is immutable.
type listing struct {
	prefix string
	names  []string // sorted
}

// List implements [backend.Lister]. For the first page of a list, it looks at all locks of the
// store, a few at a time. The session keeps their names for the later pages, until it has returned
// the last page, begins another list, or is closed. If another list has replaced these names before
// a later page, List looks at all locks again for that page. The locks are sorted by name, and Next
// is the last name of a page.
func (s *session) List(ctx context.Context, req backend.ListRequest) (backend.ListResult, error) {
	l, err := s.listing(ctx, req)
	if err != nil {
		return backend.ListResult{}, err
	}
	from, after := slices.BinarySearch(l.names, req.After)
	if after {
		from++
	}
	var res backend.ListResult
	for n, name := range l.names[from:] {
		s.b.mu.Lock()
		err := s.check(ctx, backend.Exclusive)
		i := s.b.inspect(name)
		s.b.mu.Unlock()
		if err != nil {
			return backend.ListResult{}, err
		}
		if i.Free() {
			continue
		}
		res.Locks = append(res.Locks, i)
		if len(res.Locks) >= req.Limit && from+n+1 < len(l.names) {
			res.Next = name
			return res, nil
		}
	}
	s.b.mu.Lock()
	defer s.b.mu.Unlock()
	if s.list == l {
		s.list = nil
	}
	return res, nil
}

// listing returns the listing for a page. If the session has none that fits, listing makes one,
// and the session keeps it for later pages.
func (s *session) listing(ctx context.Context, req backend.ListRequest) (*listing, error) {
	b := s.b
	b.mu.Lock()
	defer b.mu.Unlock()
	err := s.check(ctx, backend.Exclusive)
	if l := s.list; err != nil || l != nil && req.After != "" && l.prefix == req.Prefix {
		return l, err
	}
	l, seen := &listing{prefix: req.Prefix}, 0
	for name, o := range b.objects {
		if seen++; seen%listStep == 0 {
			// Although the map may change meanwhile, the loop finds each name that stays in it
			// exactly once.
			b.mu.Unlock()
			b.mu.Lock()
			if err := s.check(ctx, backend.Exclusive); err != nil {
				return nil, err
			}
		}
		if strings.HasPrefix(name, req.Prefix) && !o.free() {
			l.names = append(l.names, name)
		}
	}
	b.mu.Unlock()
	slices.Sort(l.names)
	b.mu.Lock()
	if err := s.check(ctx, backend.Exclusive); err != nil {
		return nil, err
	}
	s.list = l
	return l, nil
}

// listStep is the number of locks that List looks at before it briefly unlocks the mutex. This many
// locks take about 50 µs.
const listStep = 1000
