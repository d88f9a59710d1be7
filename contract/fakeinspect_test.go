package contract

import (
	"context"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/seed951563bd/distsync/backend"
)

func (s *fake) Inspect(
	ctx context.Context, req backend.InspectRequest,
) (backend.Inspection, error) {
	if _, err := s.st.over(ctx); err != nil {
		return backend.Inspection{}, err
	}
	if err := s.st.check(req.Name); err != nil {
		if s.st.fault == "foreign: inspect says free" {
			return backend.Inspection{Name: req.Name}, nil
		}
		return backend.Inspection{}, err
	}
	name := req.Name
	if s.st.fault == "inspect folds case" {
		req.Name = strings.ToLower(name)
	}
	i, err := s.in.Inspect(ctx, req)
	i.Name = name
	if s.st.fault == "inspect prolongs" {
		s.prolong(ctx, i)
	}
	s.misreport(ctx, &i)
	return i, err
}

// prolong renews whatever somebody has of a lock.
func (s *fake) prolong(ctx context.Context, i backend.Inspection) {
	for _, h := range i.Holders {
		s.in.Renew(ctx, backend.RenewRequest{
			Kind: h.Kind, Name: i.Name, Owner: h.Owner, Lease: never, Permits: h.Count,
		})
	}
}

// misreport is what goes wrong when the store says who has a lock.
func (s *fake) misreport(ctx context.Context, i *backend.Inspection) {
	st := s.st
	for j := range i.Holders {
		h := &i.Holders[j]
		switch {
		case st.fault == "inspect counts one":
			h.Count = 1
		case st.fault == "inspect tells readers the last end" && h.Kind == backend.Read:
			h.Remaining = s.lastRead(i)
		case st.fault == "inspect doesn't tell owners of permits apart" &&
			h.Kind == backend.Permits:
			h.Owner = "somebody"
		case st.fault == "inspect ends owners at NUL":
			h.Owner, _, _ = strings.Cut(h.Owner, "\x00")
		}
	}
	switch st.fault {
	case "inspect says that a free lock is held":
		if i.Free() {
			i.Holders = []backend.Holder{{Owner: "a", Count: 1}}
		}
	case "inspect lists one reader":
		if i.Kind == backend.Write && len(i.Holders) > 1 {
			i.Holders = i.Holders[:1]
		}
	case "inspect lists the writer last":
		slices.Reverse(i.Holders)
	case "inspect lists each permit":
		var each []backend.Holder
		for _, h := range i.Holders {
			for range h.Count {
				each = append(each, backend.Holder{
					Owner: h.Owner, Kind: h.Kind, Count: 1, Remaining: h.Remaining,
				})
			}
		}
		i.Holders = each
	case "inspect forgets the limit":
		i.Limit = 0
	case "inspect sorts the line":
		slices.Sort(i.Line)
	case "inspect forgets the line":
		i.Line = nil
	case "inspect forgets how many more":
		i.More = 0
	case "inspect lists what is over":
		st.with(func() {
			if last, ok := st.seen[i.Name]; ok && i.Free() {
				*i = last
			} else if !i.Free() {
				st.seen[i.Name] = *i
			}
		})
	case "inspect keeps places":
		if len(i.Line) > 0 {
			s.in.KeepPlaces(ctx, backend.PlacesRequest{
				Kind: backend.Fair, Name: i.Name, Owners: i.Line, Place: time.Hour,
			})
		}
	}
}

// lastRead returns for how long anybody reads.
func (s *fake) lastRead(i *backend.Inspection) (last time.Duration) {
	for _, h := range i.Holders {
		last = max(last, h.Remaining)
	}
	return last
}

func (s *fake) List(
	ctx context.Context, req backend.ListRequest,
) (res backend.ListResult, err error) {
	st := s.st
	if _, err := st.over(ctx); err != nil {
		return res, err
	}
	switch st.fault {
	case "list takes the prefix for a pattern":
		return s.listSome(ctx, func(name string) bool {
			matches, _ := path.Match(req.Prefix+"*", name)
			return matches
		}), nil
	case "list takes the prefix for text":
		text := strings.ToValidUTF8(req.Prefix, "\ufffd")
		return s.listSome(ctx, func(name string) bool { return strings.HasPrefix(name, text) }), nil
	case "list pages by number":
		return s.listNumbered(ctx, req), nil
	case "foreign: list fails", "foreign: list deletes":
		st.with(func() {
			for name := range st.foreign {
				if st.fault == "foreign: list fails" {
					err = &backend.Error{Kind: backend.Refused, Err: backend.ErrConflict}
				}
				st.foreign[name] = false
			}
		})
		if err != nil {
			return res, err
		}
	}
	res, err = s.in.List(ctx, req)
	for j := range res.Locks {
		i := &res.Locks[j]
		switch st.fault {
		case "list says who, and no more":
			i.Holders, i.Line, i.Limit = []backend.Holder{{Owner: i.Holders[0].Owner,
				Kind: i.Holders[0].Kind}}, nil, 0
		case "list prolongs":
			s.prolong(ctx, *i)
		}
	}
	switch st.fault {
	case "list ends after a page":
		res.Next = ""
	case "list skips a lock in a full page":
		if res.Next != "" && len(res.Locks) > 1 {
			res.Locks = res.Locks[1:]
		}
	case "list has what was there once":
		st.with(func() {
			for name := range st.owners {
				res.Locks = append(res.Locks, backend.Inspection{
					Name: name, Holders: []backend.Holder{{Owner: "a"}},
				})
			}
		})
	case "list has free locks":
		st.with(func() {
			for name := range st.owners {
				res.Locks = append(res.Locks, backend.Inspection{Name: name})
			}
		})
	}
	return res, err
}

// listSome lists all locks of some names at once.
func (s *fake) listSome(ctx context.Context, of func(name string) bool) (res backend.ListResult) {
	all, _ := s.in.List(ctx, backend.ListRequest{Limit: 1 << 30})
	for _, i := range all.Locks {
		if of(i.Name) {
			res.Locks = append(res.Locks, i)
		}
	}
	return res
}

// listNumbered lists the locks from the one of a number.
func (s *fake) listNumbered(ctx context.Context, req backend.ListRequest) backend.ListResult {
	res := s.listSome(ctx, func(name string) bool { return strings.HasPrefix(name, req.Prefix) })
	from, _ := strconv.Atoi(req.After)
	res.Locks = res.Locks[min(from, len(res.Locks)):]
	if len(res.Locks) > req.Limit {
		res.Locks, res.Next = res.Locks[:req.Limit], strconv.Itoa(from+req.Limit)
	}
	return res
}

// inspectFaults are ways in which a store can be wrong about who has a lock, and which there are.
var inspectFaults = []storeFault{
	{"inspect says that a free lock is held", "inspect/free", false},
	{"inspect counts one", "inspect/plain", false},
	{"inspect lists one reader", "inspect/readers", false},
	{"inspect tells readers the last end", "inspect/readers", false},
	{"inspect lists the writer last", "inspect/writer", false},
	{"inspect lists each permit", "inspect/permits", false},
	{"inspect doesn't tell owners of permits apart", "inspect/permits", false},
	{"inspect forgets the limit", "inspect/permits", false},
	{"inspect sorts the line", "inspect/line", false},
	{"inspect forgets the line", "inspect/line", false},
	{"inspect lists what is over", "inspect/over", false},
	{"inspect keeps places", "inspect/over", false},
	{"inspect prolongs", "inspect/over", false},
	{"inspect prolongs", "inspect/unchanged", false},
	{"inspect forgets how many more", "inspect/most", false},
	{"foreign: inspect says free", "inspect/conflict", false},
	{"inspect folds case", "inspect/names", false},
	{"inspect ends owners at NUL", "inspect/names", false},
	{"broken connection: says nothing", "inspect/broken connection", false},
	{"list takes the prefix for a pattern", "list/prefix", false},
	{"list takes the prefix for text", "list/bytes", false},
	{"list ends after a page", "list/pages", false},
	{"list skips a lock in a full page", "list/pages", false},
	{"list pages by number", "list/changes", false},
	{"list says who, and no more", "list/content", false},
	{"list has what was there once", "list/free", false},
	{"list has free locks", "list/free", false},
	{"foreign: list fails", "list/foreign", false},
	{"foreign: list deletes", "list/foreign", false},
	{"list prolongs", "list/unchanged", false},
	{"broken connection: says nothing", "list/broken connection", false},
}
