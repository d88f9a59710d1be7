package redisson

import (
	"context"
	_ "embed"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/seed951563bd/distsync/backend"
)

//go:embed inspect.lua
var inspectText string

var inspectScript = newScript(undeclared + inspectText)

// Inspect asks who holds a lock of any kind, and who waits in line for it. [ParseInspect] reads its
// reply.
func Inspect(name string) Call {
	keys := []string{name}
	if _, ok := unbraced(name); !ok { // a name in braces has the same keys as the name without them
		keys = append(fairKeys(name)[:4], ids(name))
	}
	return Call{inspectScript, keys, []string{strconv.Itoa(backend.MostHolders)}}
}

// These strings stand for kinds of locks in the script's reply. For a read-write lock, the reply
// contains the lock's mode instead.
const (
	nothing    = ""
	plainLock  = "lock"
	permitsOut = "permits"
)

// Found is the state of a lock as the store keeps it.
type Found struct {
	what    string
	limit   int
	rest    int // the number of further holders or permits
	holders []held
	line    []string
}

// held is a hold as the store keeps it: a field of a lock's hash, or a permit.
type held struct {
	owner string
	count int
	left  time.Duration
}

// ParseInspect reads the reply to [Inspect].
func ParseInspect(reply any) (Found, error) {
	if reply == foreign {
		return Found{}, errForeign
	}
	words, _ := reply.([]any)
	if len(words) != 5 {
		return Found{}, unexpected("inspect", reply)
	}
	what, ok1 := words[0].(string)
	limit, ok2 := words[1].(int64)
	rest, ok3 := words[2].(int64)
	holders, ok4 := words[3].([]any)
	line, ok5 := words[4].([]any)
	known := slices.Contains([]string{nothing, plainLock, reading, writing, permitsOut}, what)
	if !ok1 || !ok2 || !ok3 || !ok4 || !ok5 || !known || limit < 0 || rest < 0 ||
		len(holders)%3 != 0 {
		return Found{}, unexpected("inspect", reply)
	}
	f := Found{what: what, limit: int(limit), rest: int(rest)}
	for words := range slices.Chunk(holders, 3) {
		owner, ok1 := words[0].(string)
		count, ok2 := words[1].(int64)
		left, ok3 := words[2].(int64)
		if !ok1 || !ok2 || !ok3 || count < 1 || left < -1 {
			return Found{}, unexpected("inspect", reply)
		}
		f.holders = append(f.holders, held{owner, int(count), duration(left)})
	}
	for _, word := range line {
		owner, ok := word.(string)
		if !ok {
			return Found{}, unexpected("inspect", reply)
		}
		f.line = append(f.line, owner)
	}
	return f, nil
}

// Inspection translates f into the types of package backend.
func (f Found) Inspection(name string) backend.Inspection {
	i := backend.Inspection{Name: name, More: f.rest, Limit: f.limit}
	switch f.what {
	case reading, writing:
		i.Kind = backend.Write
		i.Holders = f.shared()
	case permitsOut:
		i.Kind = backend.Permits
		i.Holders = f.permits()
	default:
		for _, h := range f.holders {
			owner, kept := strings.CutSuffix(outOfLine(h.owner), keptSuffix)
			i.Holders = append(i.Holders, backend.Holder{
				Owner: owner, Count: h.count, Remaining: h.left, Kept: kept,
			})
		}
	}
	if over := len(i.Holders) - backend.MostHolders; over > 0 {
		i.Holders, i.More = i.Holders[:backend.MostHolders], i.More+over
	}
	for _, owner := range f.line {
		i.Line = append(i.Line, outOfLine(owner))
	}
	return i
}

// shared returns the holders of a read-write lock, the writer first.
func (f Found) shared() (all []backend.Holder) {
	for _, h := range f.holders {
		owner, writes := strings.CutSuffix(h.owner, writerSuffix)
		if writes && f.what == writing {
			owner, kept := strings.CutSuffix(owner, keptSuffix)
			all = slices.Insert(all, 0, backend.Holder{
				Owner: outside(owner), Kind: backend.Write, Count: h.count, Remaining: h.left,
				Kept: kept,
			})
		} else {
			all = append(all, backend.Holder{
				Owner: outside(h.owner), Kind: backend.Read, Count: h.count, Remaining: h.left,
			})
		}
	}
	return all
}

// permits returns the holders of permits, ordered by when their first permit expires. If an owner
// has several permits, its hold ends with the first of them.
func (f Found) permits() (all []backend.Holder) {
	type holder struct {
		owner string
		kept  bool
	}
	index := make(map[holder]int)
	for _, h := range f.holders {
		owner, kept := holderOf(h.owner)
		i, known := index[holder{owner, kept}]
		if !known {
			i = len(all)
			index[holder{owner, kept}] = i
			all = append(all, backend.Holder{
				Owner: owner, Kind: backend.Permits, Remaining: h.left, Kept: kept,
			})
		}
		all[i].Count++
	}
	return all
}

// certain reports whether f is certainly a held lock, rather than other data that looks like one.
// Such other data has no expiry, or has members that aren't ids of permits.
func (f Found) certain() bool {
	for _, h := range f.holders {
		if f.what == permitsOut && len(h.owner) != idLen && len(h.owner) != hex.EncodedLen(idLen) ||
			f.what != permitsOut && h.left < 0 {
			return false
		}
	}
	return len(f.holders) > 0
}

// outside is the inverse of inside: it converts an owner's field in a read-write lock to the
// owner's name. A field that Redisson wrote is already the owner's name.
func outside(field string) string {
	colon := strings.LastIndexByte(field, ':')
	number := field[colon+1:]
	switch {
	case colon < 0 || !strings.HasPrefix(number, "0") || strings.Trim(number, "0123456789") != "":
		return field
	case number == "0":
		return field[:colon]
	default:
		return field[:colon+1] + number[1:]
	}
}

// Inspect runs one script.
func (s *session) Inspect(
	ctx context.Context, req backend.InspectRequest,
) (backend.Inspection, error) {
	name := s.Prefix + req.Name
	if _, err := s.begin(ctx, backend.Exclusive, name, ""); err != nil {
		// any kind will do, since begin would return the same error for all of them
		return backend.Inspection{}, err
	}
	found, err := parse(readOnly(s.run(ctx, Inspect(name))), ParseInspect)
	if err != nil {
		return backend.Inspection{}, err
	}
	return found.Inspection(req.Name), nil
}

// readOnly corrects the error in the reply of a script that only reads. If the server refused a
// part of the script, the error becomes Refused instead of Unknown, since such a script can't have
// changed anything.
func readOnly(r Reply) Reply {
	if r.Refusal != "" && backend.KindOf(r.Err) == backend.Unknown {
		r.Err = &backend.Error{Kind: backend.Refused, Err: r.Err}
	}
	return r
}

const (
	// minPage is the minimum number of keys that a server scans for one page of a list.
	minPage = 10

	// maxPage is the maximum number of keys scanned for one page. The server does nothing else
	// during the scan.
	maxPage = 500

	// maxCandidates is the maximum number of names that are inspected in one pipeline. It bounds
	// how long other clients of the server wait.
	maxCandidates = 100
)

// A position is the point at which the next page of a list begins.
type position struct {
	// kind is the kind of the keys on the page. A list visits hashes before sorted sets.
	kind   string
	cursor string // the cursor of SCAN
	// master is the node to scan in a cluster. A list visits the nodes in the order of their names.
	master string
}

// The kinds of keys that can be locks.
const (
	hashes     = "hash"
	sortedSets = "zset"
)

func (p position) String() string { return strings.Join([]string{p.kind, p.cursor, p.master}, " ") }

func parsePosition(after string) (position, error) {
	words := strings.SplitN(after, " ", 3)
	if len(words) == 3 && (words[0] == hashes || words[0] == sortedSets) {
		if _, err := strconv.ParseUint(words[1], 10, 64); err == nil {
			return position{words[0], words[1], words[2]}, nil
		}
	}
	return position{}, &backend.Error{
		Kind: backend.Refused, Err: fmt.Errorf("%.100q isn't the end of a page of locks", after),
	}
}

// List finds keys with SCAN, and inspects those that can be locks, a hundred per pipeline. It
// visits the masters of a cluster one after the other. On each, it looks first for hashes, and then
// for the sorted sets with the ids of permits. A list may miss locks if another server becomes
// master, or a slot moves, between its pages.
func (s *session) List(ctx context.Context, req backend.ListRequest) (backend.ListResult, error) {
	at, err := s.position(ctx, req.After)
	if err != nil {
		return backend.ListResult{}, err
	}
	prefix := s.Prefix + req.Prefix
	keys, cursor, err := s.scan(ctx, at, prefix, min(max(req.Limit, minPage), maxPage))
	if err != nil {
		return backend.ListResult{}, err
	}
	names := make([]string, 0, len(keys))
	for _, key := range keys {
		name, ok := lockOf(at.kind, key)
		if ok && strings.HasPrefix(name, prefix) &&
			(!s.Cluster || checkSlots(name, ids(name)) == nil) {
			names = append(names, name)
		}
	}
	var locks []backend.Inspection
	for some := range slices.Chunk(names, maxCandidates) {
		found, err := s.inspectAll(ctx, some)
		if err != nil {
			return backend.ListResult{}, err
		}
		locks = append(locks, found...)
	}
	next, err := s.after(ctx, at, cursor)
	if err != nil {
		return backend.ListResult{}, err
	}
	return backend.ListResult{Locks: locks, Next: next}, nil
}

// position parses the position at which a list continues. If the string is empty, it returns the
// start of the list.
func (s *session) position(ctx context.Context, after string) (position, error) {
	if after != "" {
		return parsePosition(after)
	}
	p := position{hashes, "0", ""}
	if !s.Cluster {
		return p, nil
	}
	masters, err := s.Transport.Masters(ctx)
	if err != nil {
		return position{}, err
	}
	p.master = masters[0]
	return p, nil
}

// after returns the position that follows p, given the cursor that p's SCAN returned. It returns ""
// at the end of the list.
func (s *session) after(ctx context.Context, p position, cursor string) (string, error) {
	if p.cursor = cursor; cursor != "0" {
		return p.String(), nil
	}
	if p.kind == hashes {
		p.kind = sortedSets
		return p.String(), nil
	}
	if !s.Cluster {
		return "", nil
	}
	masters, err := s.Transport.Masters(ctx)
	if err != nil {
		return "", err
	}
	for _, master := range masters {
		if master > p.master {
			return position{hashes, "0", master}.String(), nil
		}
	}
	return "", nil
}

// scan returns some keys, and the cursor for the next ones.
func (s *session) scan(
	ctx context.Context, at position, prefix string, count int,
) (keys []string, cursor string, err error) {
	if err := ctx.Err(); err != nil {
		return nil, "", &backend.Error{Kind: backend.Retry, Err: err}
	}
	cmd := Command{
		Verb: "SCAN", Args: []string{
			at.cursor, "MATCH", pattern(at.kind, prefix), "COUNT", strconv.Itoa(count), "TYPE",
			at.kind,
		},
	}
	var r Reply
	if s.Cluster {
		r = s.Transport.SendTo(ctx, at.master, cmd)
	} else if err := s.Transport.Reach(ctx, prefix); err != nil {
		return nil, "", err
	} else {
		r = s.Transport.Send(ctx, cmd)
	}
	if r = readOnly(r); r.Err != nil {
		return nil, "", r.Err
	}
	return parseScan(r.Value)
}

func parseScan(reply any) (keys []string, cursor string, err error) {
	if words, _ := reply.([]any); len(words) == 2 {
		cursor, _ = words[0].(string)
		all, ok := words[1].([]any)
		for _, word := range all {
			key, isText := word.(string)
			ok = ok && isText
			keys = append(keys, key)
		}
		if ok && cursor != "" {
			return keys, cursor, nil
		}
	}
	return nil, "", unexpected("SCAN", reply)
}

// pattern returns a pattern for SCAN that matches the keys of all locks whose names begin with a
// prefix. It also matches some other keys.
func pattern(kind, prefix string) string {
	prefix = globs.Replace(prefix)
	if kind == sortedSets {
		return "*" + prefix + "*" + idsSuffix // the name may be in braces
	}
	return prefix + "*"
}

var globs = strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`)

// lockOf returns the name of the lock to which a key of this kind may belong.
func lockOf(kind, key string) (name string, ok bool) {
	if kind == hashes {
		return key, true
	}
	name, _ = strings.CutSuffix(key, idsSuffix)
	if inside, braced := strings.CutPrefix(name, "{"); braced {
		if inside, braced = strings.CutSuffix(inside, "}"); braced &&
			!strings.Contains(inside, "{") {
			name = inside
		}
	}
	_, refused := unbraced(name)
	return name, ids(name) == key && !refused && !strings.HasPrefix(name, timeoutsPrefix) &&
		!strings.HasPrefix(name, placesPrefix)
}

// inspectAll inspects the locks with the given names, and returns those that exist.
func (s *session) inspectAll(
	ctx context.Context, names []string,
) (locks []backend.Inspection, err error) {
	calls := make([]Call, len(names))
	for i, name := range names {
		calls[i] = Inspect(name)
	}
	// Unlike SendBatch, SendTogether always returns when ctx ends.
	send := func(cmds []Command) []Reply { return s.Transport.SendTogether(ctx, cmds...) }
	for i, r := range runAll(calls, send) {
		found, err := parse(readOnly(r), ParseInspect)
		switch {
		case errors.Is(err, backend.ErrConflict):
		case err != nil:
			return nil, err
		case found.certain():
			locks = append(locks, found.Inspection(strings.TrimPrefix(names[i], s.Prefix)))
		}
	}
	return locks, nil
}
