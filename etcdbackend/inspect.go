package etcdbackend

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"

	"github.com/seed951563bd/distsync/backend"
)

// The holders of a lock are read from its keys, and their remaining times from their leases.
// Neither request writes anything, so neither goes through etcd's log.

// A finding holds the keys that were found under one name.
type finding struct {
	name string
	keys map[role][]record // of holds and places

	more    int              // the number of holders whose keys weren't read
	strange *mvccpb.KeyValue // a key read with the lock's keys that isn't one of them
}

// add adds the key of a hold or of a waiter.
func (f *finding) add(as role, r record) {
	if f.keys == nil {
		f.keys = make(map[role][]record)
	}
	f.keys[as] = append(f.keys[as], r)
}

// whose returns the role of a key, and the hold or place to which the key belongs. It needs the
// key's value to tell which part of the key is the lock's name.
func (st *store) whose(kv *mvccpb.KeyValue) (id holdID, r record, ok bool) {
	var v struct{ Kind role }
	name, ours := bytes.CutPrefix(kv.Key, []byte(st.options.prefix))
	if !ours || json.Unmarshal(kv.Value, &v) != nil {
		return holdID{}, record{}, false
	}
	switch v.Kind {
	case lockRole, writeRole, lineRole, permitRole, readRole:
	default:
		return holdID{}, record{}, false
	}
	r, err := decode(v.Kind, kv)
	if ours = err == nil; ours && v.Kind.beside() {
		name, ours = bytes.CutSuffix(name, []byte("\x01"+string(v.Kind)+"/"+r.owner))
	}
	return holdID{string(name), r.owner, v.Kind}, r, ours && len(name) > 0
}

// inspect reads all keys of a lock, at one revision.
func (s *session) inspect(ctx context.Context, name string) (*finding, error) {
	own, st := s.store.key(name), s.store
	// The latest permits are read first, since they contain the limit that applies. The line is
	// read as a whole, since the first in line might be an owner whose lost place was restored. The
	// key of such an owner sorts last in every order that etcd offers.
	permits, reads := st.all(name, permitRole).findOp(backend.MostHolders),
		st.all(name, readRole).findOp(backend.MostHolders)
	order := permits.GetRequestRange()
	order.SortTarget, order.SortOrder = pb.RangeRequest_MOD, pb.RangeRequest_DESCEND
	res, err := st.look(ctx, 0, rangeOp(own), st.all(name, lineRole).findOp(0), permits, reads)
	if err != nil {
		return nil, mayNotRead(err, span{own, st.all(name, readRole).end})
	}
	f := &finding{name: name}
	for i := range 4 {
		if i >= len(res.Responses) || res.Responses[i].GetResponseRange() == nil {
			return nil, notDone(errShape)
		}
		found := res.Responses[i].GetResponseRange()
		for _, kv := range found.Kvs {
			if id, r, ok := st.whose(kv); ok && id.name == name {
				f.add(id.role, r)
			} else {
				f.strange = kv
			}
		}
		f.more += max(int(found.Count)-len(found.Kvs), 0)
	}
	return f, nil
}

// mayNotRead adds the range of keys to an error about missing permissions.
func mayNotRead(err error, sp span) error {
	if !is(err, rpctypes.ErrPermissionDenied) {
		return err
	}
	return &backend.Error{Kind: backend.Refused,
		Err: fmt.Errorf("etcd: reading the keys from %q to %q: %w", sp.key, sp.end, err)}
}

// A holding describes one holder.
type holding struct {
	record
	kind    backend.Kind
	byPlace bool // it holds the lock as the first in line
}

// families lists, for each kind of lock, the kinds of hold that it can have.
var families = [...][]backend.Kind{
	{backend.Exclusive}, {backend.Write, backend.Read}, {backend.Permits},
}

// holders returns the holders of the lock. They all belong to one kind of lock, unless another
// program wrote keys. In that case holders returns only those of the first kind that it finds.
func (f *finding) holders() (all []holding) {
	for _, family := range families {
		for _, kind := range family {
			some := f.keys[kinds[kind].role]
			slices.SortFunc(some, byAge)
			for _, r := range some {
				all = append(all, holding{record: r, kind: kind})
			}
		}
		if len(all) > 0 {
			return all
		}
	}
	if places := f.places(); len(places) > 0 {
		first := places[0]
		first.count = 1
		all = append(all, holding{first, backend.Exclusive, true})
	}
	return all
}

func byAge(a, b record) int { return cmp.Compare(a.created, b.created) }

// places returns the places in line, in order.
func (f *finding) places() []record {
	inOrder(f.keys[lineRole])
	return f.keys[lineRole]
}

// kinds returns the number of kinds of lock to which the keys belong.
func (f *finding) kinds() (n int) {
	for i, family := range families {
		is := i == 0 && len(f.keys[lineRole]) > 0
		for _, kind := range family {
			is = is || len(f.keys[kinds[kind].role]) > 0
		}
		if is {
			n++
		}
	}
	return n
}

// A report is the result of an inspection. It is stale if a hold's lease had already ended when the
// lease's remaining time was requested. The key of that hold might have another lease by now.
type report struct {
	backend.Inspection
	stale bool
}

// reports returns a report on each finding. It asks etcd for the remaining times.
func (s *session) reports(ctx context.Context, found []*finding) ([]report, error) {
	holders := make([][]holding, len(found))
	var leases []int64
	for i, f := range found {
		holders[i] = f.holders()
		if over := len(holders[i]) - backend.MostHolders; over > 0 {
			holders[i] = holders[i][:backend.MostHolders]
			f.more += over
		}
		for _, h := range holders[i] {
			leases = append(leases, h.lease)
		}
	}
	left, err := s.remainingAll(ctx, leases)
	if err != nil {
		return nil, err
	}
	all := make([]report, len(found))
	for i, f := range found {
		n := len(holders[i])
		all[i] = s.report(f, holders[i], left[:n])
		left = left[n:]
	}
	return all, nil
}

func (s *session) report(f *finding, holders []holding, left []timeLeft) (r report) {
	r.Name, r.More = f.name, f.more
	places := f.places()
	for i, h := range holders {
		remaining := lasts(left[i].seconds)
		switch {
		case h.byPlace:
			remaining = max(min(remaining, s.places.timeLeft(f.name, h.record)), 0)
			places = places[1:]
		case h.lease == 0:
			remaining = -1
		}
		r.stale = r.stale || left[i].seconds < 0
		owner, kept := h.keptFrom()
		r.Holders = append(r.Holders, backend.Holder{Owner: owner, Kind: h.kind, Count: h.count,
			Remaining: remaining, Kept: kept})
		if r.Kind = h.kind; h.kind == backend.Read {
			r.Kind = backend.Write
		}
	}
	if r.Kind == backend.Exclusive {
		for _, p := range places[:min(len(places), backend.MostHolders)] {
			r.Line = append(r.Line, p.owner)
		}
	}
	if r.Kind == backend.Permits {
		r.Limit = stock{holds: f.keys[permitRole]}.last().limit
	}
	return r
}

func (s *session) Inspect(
	ctx context.Context, req backend.InspectRequest,
) (backend.Inspection, error) {
	f, r, err := s.inspectFresh(ctx, req.Name)
	switch {
	case err != nil:
		return backend.Inspection{}, err
	case f.strange != nil:
		return backend.Inspection{}, conflict(f.strange)
	case f.kinds() > 1:
		return backend.Inspection{},
			refused(fmt.Errorf("%w: the keys of %q are of several kinds", backend.ErrConflict,
				req.Name))
	}
	return r, nil
}

// inspectFresh inspects a lock, and inspects it once more if the report is stale. Further attempts
// wouldn't help: with many holders, some lease has always just ended.
func (s *session) inspectFresh(
	ctx context.Context, name string,
) (*finding, backend.Inspection, error) {
	for again := false; ; again = true {
		if err := ended(ctx); err != nil {
			return nil, backend.Inspection{}, err
		}
		f, err := s.inspect(ctx, name)
		if err != nil {
			return nil, backend.Inspection{}, err
		}
		r, err := s.reports(ctx, []*finding{f})
		if err != nil {
			return nil, backend.Inspection{}, err
		}
		if again || !r[0].stale {
			return f, r[0].Inspection, nil
		}
	}
}

// List reads keys page by page, in their order. A lock may have keys on several pages. Between its
// keys there may be keys of other locks, whose names begin with the lock's name. So if a lock's
// keys go beyond the end of a page, the whole lock is inspected for that page, and omitted from the
// next. The mark between the two pages tells List which locks may have keys on both.
func (s *session) List(
	ctx context.Context, req backend.ListRequest,
) (res backend.ListResult, err error) {
	if err := ended(ctx); err != nil {
		return res, err
	}
	from, err := placeIn(req)
	if err != nil {
		return res, err
	}
	kvs, to, err := s.page(ctx, req, from)
	if err != nil {
		return res, err
	}
	var apart []string
	if to.key != "" {
		res.Next = to.String()
		for i := range len(to.key) {
			if name := to.key[:i]; strings.HasPrefix(name, req.Prefix) && to.cuts(name) &&
				!from.cuts(name) {
				apart = append(apart, name)
			}
		}
	}
	var found []*finding
	byName := make(map[string]*finding)
	for _, kv := range kvs {
		id, r, ok := s.store.whose(kv)
		if !ok || !strings.HasPrefix(id.name, req.Prefix) || from.cuts(id.name) ||
			to.cuts(id.name) {
			continue
		}
		f := byName[id.name]
		if f == nil {
			f = &finding{name: id.name}
			byName[id.name] = f
			found = append(found, f)
		}
		f.add(id.role, r)
	}
	reports, err := s.reports(ctx, found)
	if err != nil {
		return backend.ListResult{}, err
	}
	for _, r := range reports {
		if r.stale {
			apart = append(apart, r.Name)
		} else {
			res.Locks = append(res.Locks, r.Inspection)
		}
	}
	whole, errs := make([]backend.Inspection, len(apart)), make([]error, len(apart))
	each(len(apart), func(i int) { _, whole[i], errs[i] = s.inspectFresh(ctx, apart[i]) })
	if err := cmp.Or(errs...); err != nil {
		return backend.ListResult{}, err
	}
	for _, r := range whole {
		if !r.Free() {
			res.Locks = append(res.Locks, r)
		}
	}
	return res, nil
}

// A mark is the beginning of a page: the first key that can be on the page, without the store's
// prefix. The server counts all keys of a range, even those that it doesn't return, and can't write
// while it counts. So the method page reads several small ranges in turn, which are called windows.
// The first window begins at the mark, and contains the keys that begin with the first m.bytes
// bytes of the mark's key. Each later window begins where the previous one ends, and the prefix
// that its keys share is shorter by at least one byte.
type mark struct {
	key   string
	bytes int
}

func (m mark) String() string { return fmt.Sprintf("%d %s", m.bytes, m.key) }

// placeIn returns the mark at which a page begins.
func placeIn(req backend.ListRequest) (m mark, err error) {
	if req.After == "" {
		return mark{max(req.Prefix, "\x00"), len(req.Prefix)}, nil
	}
	n, key, _ := strings.Cut(req.After, " ")
	m.key = key
	if m.bytes, err = strconv.Atoi(n); err != nil || m.bytes < len(req.Prefix) ||
		m.bytes > len(key) || !strings.HasPrefix(key, req.Prefix) {
		return mark{}, refused(fmt.Errorf("%.60q isn't the end of a page of locks", req.After))
	}
	return m, nil
}

// cuts reports whether a lock can have keys both before the mark and after it.
func (m mark) cuts(name string) bool {
	rest, ok := strings.CutPrefix(m.key, name)
	return ok && name != "" && rest != "" && rest[0] <= 1
}

const (
	mostWindows = 32 // windows per page
	tooWide     = 8  // if a window's keys fill more pages than this, the next window is narrower
)

// page reads the page of keys that begins at m. It also returns the mark of the next page, or an
// empty mark if there is none.
func (s *session) page(
	ctx context.Context, req backend.ListRequest, m mark,
) (kvs []*mvccpb.KeyValue, next mark, err error) {
	prefix, limit := s.store.options.prefix, min(max(req.Limit, 1), backend.MostHolders)
	end := clientv3.GetPrefixRangeEnd(prefix + req.Prefix)
	for i := 0; i < mostWindows && len(kvs) < limit; i++ {
		window := span{[]byte(prefix + m.key),
			[]byte(clientv3.GetPrefixRangeEnd(prefix + m.key[:m.bytes]))}
		res, err := s.someOf(ctx, window, limit-len(kvs))
		if err != nil {
			return nil, mark{}, err
		}
		kvs = append(kvs, res.Kvs...)
		switch {
		case res.More && len(res.Kvs) > 0:
			first, last := kvs[0].Key[len(prefix):], kvs[len(kvs)-1].Key[len(prefix):]
			if m.key = string(last) + "\x00"; res.Count > int64(tooWide*limit) {
				m.bytes = min(max(m.bytes, common(first, last))+1, len(last))
			}
			return kvs, m, nil
		case string(window.end) == end:
			return kvs, mark{}, nil
		}
		m.key = string(window.end[len(prefix):])
		m.bytes = min(m.bytes, len(m.key)) - 1
	}
	return kvs, m, nil
}

// common returns the length of the common prefix of two keys.
func common(a, b []byte) (n int) {
	for n < min(len(a), len(b)) && a[n] == b[n] {
		n++
	}
	return n
}

// someOf reads the first keys of a span. If the answer would be too long for a page, it reads
// fewer. The values of locks are short, but other keys in the span may have long values.
func (s *session) someOf(ctx context.Context, sp span, limit int) (*pb.RangeResponse, error) {
	for ; ; limit /= 2 {
		read := s.store.readPage
		if limit <= 1 {
			read = s.store.kv.Range
		}
		res, err := insist(ctx, patienceWithMany, read, sp.find(int64(limit)))
		switch {
		case err == nil:
			return res, nil
		case limit <= 1 || !tooLong(err):
			return nil, notDone(mayNotRead(err, sp))
		}
	}
}

// readPage reads a range whose values may be too long for one answer. It fails if the answer is
// longer than longestPage.
func (st *store) readPage(
	ctx context.Context, req *pb.RangeRequest, opts ...grpc.CallOption,
) (*pb.RangeResponse, error) {
	return st.kv.Range(ctx, req, append(opts, grpc.MaxCallRecvMsgSize(longestPage))...)
}

const longestPage = 4 << 20
