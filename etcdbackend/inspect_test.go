package etcdbackend_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/etcdbackend"
	"github.com/seed951563bd/distsync/internal/test/testservers"
	"github.com/seed951563bd/distsync/internal/test/wiretest"
)

func inspect(t *testing.T, s session, name string) backend.Inspection {
	t.Helper()
	return wiretest.Must[backend.Inspection](t)(
		s.Inspect(t.Context(), backend.InspectRequest{Name: name}))
}

// list returns all locks, and the number of pages that they were on.
func list(
	t *testing.T, s session, prefix string, limit int,
) (locks []backend.Inspection, pages int) {
	t.Helper()
	req := backend.ListRequest{Prefix: prefix, Limit: limit}
	marks := make(map[string]bool)
	for {
		res := wiretest.Must[backend.ListResult](t)(s.List(t.Context(), req))
		if len(res.Locks) > limit+10 {
			t.Errorf("%d locks on a page of %d", len(res.Locks), limit)
		}
		locks = append(locks, res.Locks...)
		pages++
		if res.Next == "" {
			return locks, pages
		}
		if marks[res.Next] {
			t.Fatalf("after %q comes %q again", req.After, res.Next)
		}
		marks[res.Next] = true
		req.After = res.Next
	}
}

// put writes keys as they are, some at a time.
func put(t *testing.T, cli *clientv3.Client, all map[string]string) {
	t.Helper()
	var ops []clientv3.Op
	for k, v := range all {
		ops = append(ops, clientv3.OpPut(k, v))
	}
	for some := range slices.Chunk(ops, 100) {
		wiretest.Must[*clientv3.TxnResponse](t)(cli.Txn(t.Context()).Then(some...).Commit())
	}
}

// TestInspectFirst: the first in line has the lock while nobody has its key.
func TestInspectFirst(t *testing.T) {
	t.Parallel()
	a, b, c, admin := parties(t)
	looker := open(t, connect(t, admin.Endpoints()[0]))
	want := func(owner string, line ...string) {
		t.Helper()
		got := inspect(t, looker, "n")
		if len(got.Holders) != 1 || got.Holders[0].Owner != owner || got.Holders[0].Count != 1 ||
			got.Kind != backend.Exclusive || !slices.Equal(got.Line, line) {
			t.Errorf("%+v; want that %.8s has it, and %.8s wait", got, owner, line)
		}
		listed, _ := list(t, looker, "", 100)
		if len(listed) != 1 || listed[0].Holders[0].Owner != owner ||
			!slices.Equal(listed[0].Line, line) {
			t.Errorf("listed %+v; want that %.8s has it, and %.8s wait", listed, owner, line)
		}
	}
	a.gets(backend.Fair)
	b.stands()
	c.stands()
	want(alice, bob, carol)
	a.releases(backend.Fair, backend.Freed)
	want(bob, carol)
	if left := inspect(t, looker, "n").Holders[0].Remaining; left > 3*time.Second {
		t.Errorf("the first in line has the lock for %v", left)
	}
	b.renews(backend.Fair, true) // takes the key
	want(bob, carol)
	// An owner that says it was in line, and isn't any more, comes back before all others.
	wiretest.Must[backend.PlacesResult](t)(a.s.KeepPlaces(t.Context(), backend.PlacesRequest{
		Kind: backend.Fair, Name: "n", Owners: []string{"d", alice}, Place: place,
	}))
	want(bob, "d", alice, carol)
	b.releases(backend.Fair, backend.Freed)
	want("d", alice, carol)
}

// TestInspectMany: an inspection of many holders reports, and reads, a bounded number of them.
func TestInspectMany(t *testing.T) {
	t.Parallel()
	cli := connect(t, testservers.Etcd(t).Addr)
	s := open(t, cli)
	const many = backend.MostHolders + 234
	all := map[string]string{
		key("read"): `{"owner":"w","count":2,"kind":"write"}`,
		key("fair"): `{"owner":"f","count":1}`,
	}
	for i := range many {
		all[key(fmt.Sprintf("calls\x01permits/%d", i))] = fmt.Sprintf(
			`{"owner":"%d","count":3,"kind":"permits","limit":5}`, i)
		all[key(fmt.Sprintf("read\x01read/%d", i))] = fmt.Sprintf(
			`{"owner":"%d","count":1,"kind":"read"}`, i)
		all[key(fmt.Sprintf("fair\x01line/%d", i))] = fmt.Sprintf(`{"owner":"%d","kind":"line"}`, i)
	}
	put(t, cli, all)
	// The last that is written is none of the first by name.
	put(t, cli,
		map[string]string{key(
			"calls\x01permits/999"): `{"owner":"999","count":2,"kind":"permits","limit":9999}`})
	check := func(calls, read, fair backend.Inspection) {
		t.Helper()
		if len(calls.Holders) != backend.MostHolders || calls.More != many-backend.MostHolders ||
			calls.Kind != backend.Permits || calls.Limit != 9999 || calls.Line != nil {
			t.Errorf("permits: %d holders and %d more, %v, %d, %v", len(calls.Holders), calls.More,
				calls.Kind, calls.Limit, calls.Line)
		}
		if len(read.Holders) != backend.MostHolders || read.More != many+1-backend.MostHolders ||
			read.Kind != backend.Write || read.Limit != 0 ||
			read.Holders[0] != (backend.Holder{Owner: "w", Kind: backend.Write, Count: 2,
				Remaining: -1}) || read.Holders[1].Kind != backend.Read {
			t.Errorf("reads: %d holders and %d more, %v, %d", len(read.Holders), read.More,
				read.Kind, read.Limit)
		}
		if len(fair.Holders) != 1 || fair.More != 0 || len(fair.Line) != backend.MostHolders ||
			fair.Kind != backend.Exclusive {
			t.Errorf("fair: %+v and %d more, %d in line", fair.Holders, fair.More, len(fair.Line))
		}
	}
	check(inspect(t, s, "calls"), inspect(t, s, "read"), inspect(t, s, "fair"))
	// Keys of the same lock are on many pages, but it is listed once, as a whole.
	for _, limit := range []int{100, 1000, 1_000_000} {
		locks, _ := list(t, s, "", limit)
		if len(locks) != 3 {
			t.Fatalf("%d locks are listed", len(locks))
		}
		byName := make(map[string]backend.Inspection)
		for _, l := range locks {
			byName[l.Name] = l
		}
		check(byName["calls"], byName["read"], byName["fair"])
	}
}

// TestInspectConflict: Inspect refuses a name if the keys there aren't those of one lock.
func TestInspectConflict(t *testing.T) {
	t.Parallel()
	cli := connect(t, testservers.Etcd(t).Addr)
	s := open(t, cli)
	lock, read, permits := `{"owner":"o","count":1}`, `{"owner":"o","count":1,"kind":"read"}`,
		`{"owner":"o","count":1,"kind":"permits","limit":2}`
	for what, keys := range map[string]map[string]string{
		"a foreign key":           {"n": "foreign"},
		"a foreign key beside":    {"n": lock, "n\x01read/o": "foreign"},
		"another's lock":          {"n\x01read/o": lock},
		"a key of another's lock": {"n": read},
		"a lock that is read":     {"n": lock, "n\x01read/o": read},
		"permits that are read":   {"n\x01read/o": read, "n\x01permits/o": permits},
		"another's, or nobody's":  {"n\x01permits/x": permits},
		"a line that is a writer's": {
			"n":           `{"owner":"o","count":1,"kind":"write"}`,
			"n\x01line/p": `{"owner":"p","kind":"line"}`,
		},
	} {
		all := make(map[string]string)
		for k, v := range keys {
			all[key(k)] = v
		}
		put(t, cli, all)
		res, err := s.Inspect(t.Context(), backend.InspectRequest{Name: "n"})
		wantKind(t, err, backend.Refused)
		if !errors.Is(err, backend.ErrConflict) {
			t.Errorf("%s: %+v, %v", what, res, err)
		}
		list(t, s, "", 1) // is not in anybody's way
		wiretest.Must[*clientv3.DeleteResponse](t)(
			cli.Delete(t.Context(), "", clientv3.WithPrefix()))
	}
	// These keys hold no lock, and are in nobody's way.
	put(t, cli, map[string]string{
		key("n\x00x"): "foreign", key("n\x01waits/o"): "foreign", key("n\x01"): "foreign",
	})
	if got := inspect(t, s, "n"); !got.Free() {
		t.Errorf("%+v", got)
	}
}

// An interlude does something before a client's next question for what is left of a lease.
type interlude struct{ next atomic.Pointer[func()] }

func (i *interlude) install(cfg *clientv3.Config) {
	cfg.DialOptions = append(cfg.DialOptions, grpc.WithChainUnaryInterceptor(
		func(
			ctx context.Context, method string, req, res any, cc *grpc.ClientConn,
			invoke grpc.UnaryInvoker, opts ...grpc.CallOption,
		) error {
			if method == rpcTTL {
				if do := i.next.Swap(nil); do != nil {
					(*do)()
				}
			}
			return invoke(ctx, method, req, res, cc, opts...)
		}))
}

// TestInspectWhatMoves: a lock gets another lease, or another holder, or none, just when its lease
// is looked at.
func TestInspectWhatMoves(t *testing.T) {
	t.Parallel()
	a, b, _, admin := parties(t)
	var between interlude
	looker := open(t, connect(t, admin.Endpoints()[0], between.install))
	for what, look := range map[string]func() []backend.Inspection{
		"Inspect": func() []backend.Inspection {
			return []backend.Inspection{inspect(t, looker, "n")}
		},
		"List": func() []backend.Inspection {
			locks, _ := list(t, looker, "", 100)
			return locks
		},
	} {
		a.gets(backend.Exclusive)
		longer := func() {
			a.gets(backend.Exclusive, func(req *backend.AcquireRequest) { req.Lease = 3 * lease })
		}
		between.next.Store(&longer)
		got := look()
		if len(got) != 1 || len(got[0].Holders) != 1 || got[0].Holders[0].Owner != alice ||
			got[0].Holders[0].Count != 2 || got[0].Holders[0].Remaining < 2*lease {
			t.Errorf("%s: %+v", what, got)
		}
		changes := func() {
			a.forces(backend.Exclusive, true)
			b.gets(backend.Exclusive)
		}
		between.next.Store(&changes)
		if got := look(); len(got) != 1 || len(got[0].Holders) != 1 ||
			got[0].Holders[0].Owner != bob {
			t.Errorf("%s: %+v", what, got)
		}
		goes := func() { b.releases(backend.Exclusive, backend.Freed) }
		between.next.Store(&goes)
		for _, i := range look() { // its lease waits for the next hold
			if len(i.Holders) != 1 || i.Holders[0].Owner != bob {
				t.Errorf("%s: %+v", what, i)
			}
		}
	}
}

// TestListAnyName: names that go on as keys of others do, pages that end anywhere, and what is no
// lock.
func TestListAnyName(t *testing.T) {
	t.Parallel()
	cli := connect(t, testservers.Etcd(t).Addr)
	parts := []string{
		"a", "b", "é", "\x00", "\x01", "\x02", "\xff", "/", "\x01read/", "\x01permits/",
		"\x01line/", "\x01waits/", "\x1b[31m", "<b>", "{\"", "o1", "\n",
	}
	seed := rand.Uint64()
	random := rand.New(rand.NewPCG(seed, 1))
	type held struct {
		kind    backend.Kind
		holders []string
		line    []string
	}
	prefixes := []string{
		"a", "a\x01", "a\x01read/", "b", "a/", "\x00", "\xff", "\xff\xff", "a\xff", "nothing",
	}
	for round := range 3 {
		s := open(t, cli)
		want := make(map[string]held)
		for range 60 {
			name := ""
			for range 1 + random.IntN(4) {
				name += parts[random.IntN(len(parts))]
			}
			if _, twice := want[name]; twice {
				continue
			}
			h := held{kind: backend.Kind(random.IntN(6))}
			for i := range 1 + random.IntN(3) {
				req := backend.AcquireRequest{
					Kind: h.kind, Name: name, Owner: fmt.Sprint("o", i), Lease: lease, Permits: 1,
					Limit: 5,
				}
				if h.kind == backend.Fair {
					req.Place = place
				}
				res, err := s.Acquire(t.Context(), req)
				switch {
				case errors.Is(err, backend.ErrConflict): // of names that are in each other's way
				case err != nil:
					t.Fatal(err)
				case res.Acquired:
					h.holders = append(h.holders, req.Owner)
				case h.kind == backend.Fair:
					h.line = append(h.line, req.Owner)
				}
			}
			if random.IntN(2) == 0 { // somebody waits
				put(t, cli,
					map[string]string{key(name + "\x00" +
						fmt.Sprintf("%016x", random.Uint64())): ""})
			}
			switch h.kind {
			case backend.Read:
				h.kind = backend.Write
			case backend.Fenced, backend.Fair:
				h.kind = backend.Exclusive
			}
			if len(h.holders) > 0 {
				want[name] = h
			} else if _, err := s.Look(t.Context(), backend.LookRequest{Name: name}); err == nil {
				put(t, cli, map[string]string{key(name): "foreign"})
			}
		}
		if len(want) < 20 {
			t.Errorf("only %d locks", len(want))
		}
		put(t, cli, map[string]string{key(""): "foreign", "another": `{"owner":"o","count":1}`})
		for _, prefix := range append([]string{""}, prefixes...) {
			expected := maps.Clone(want)
			maps.DeleteFunc(expected, func(name string, _ held) bool {
				return !strings.HasPrefix(name, prefix)
			})
			for _, limit := range []int{1, 2, 3, 7, 1000} {
				got := make(map[string]held)
				locks, _ := list(t, s, prefix, limit)
				for _, l := range locks {
					h := held{kind: l.Kind, line: l.Line}
					for _, o := range l.Holders {
						h.holders = append(h.holders, o.Owner)
						if o.Remaining <= 0 || o.Remaining > lease+time.Second {
							t.Errorf("%q: %+v", l.Name, o)
						}
					}
					if _, twice := got[l.Name]; twice {
						t.Errorf("%q is listed twice", l.Name)
					}
					got[l.Name] = h
				}
				if !reflect.DeepEqual(got, expected) {
					t.Fatalf("seed %d, round %d, prefix %q, limit %d:\n got %+v\nwant %+v", seed,
						round, prefix, limit, got, expected)
				}
			}
		}
		wiretest.Must[*clientv3.DeleteResponse](t)(
			cli.Delete(t.Context(), "", clientv3.WithPrefix()))
		s.Close()
	}
}

// TestListWhatIsHandedOn: a lock that somebody has all the time is listed, though its keys move
// behind what was read.
func TestListWhatIsHandedOn(t *testing.T) {
	t.Parallel()
	a, b, _, admin := parties(t)
	looker := open(t, connect(t, admin.Endpoints()[0]))
	a.gets(backend.Fair)
	b.stands()
	a.releases(backend.Fair, backend.Freed)
	// The first page ends between the lock's key and the line.
	put(t, admin, map[string]string{key("n\x000123456789abcdef"): ""})
	req := backend.ListRequest{Limit: 1}
	res := wiretest.Must[backend.ListResult](t)(looker.List(t.Context(), req))
	b.renews(backend.Fair, true)
	listed := res.Locks
	for res.Next != "" {
		req.After = res.Next
		res = wiretest.Must[backend.ListResult](t)(looker.List(t.Context(), req))
		listed = append(listed, res.Locks...)
	}
	if len(listed) != 1 || listed[0].Name != "n" || listed[0].Holders[0].Owner != bob {
		t.Errorf("%+v", listed)
	}
}

// TestListThousands: a page takes a request or two, one more for the lock that its end may cut, and
// one for each lease. But for the first of all the server doesn't have to count many more keys than
// are on a page.
func TestListThousands(t *testing.T) {
	t.Parallel()
	server := testservers.Etcd(t)
	cli := connect(t, server.Addr)
	var sent counts
	var counted atomic.Int64
	s := open(t, connect(t, server.Addr, sent.install, func(cfg *clientv3.Config) {
		cfg.DialOptions = append(cfg.DialOptions, grpc.WithChainUnaryInterceptor(
			func(
				ctx context.Context, method string, req, res any, cc *grpc.ClientConn,
				invoke grpc.UnaryInvoker, opts ...grpc.CallOption,
			) error {
				err := invoke(ctx, method, req, res, cc, opts...)
				if page, ok := res.(*pb.RangeResponse); ok {
					counted.Add(page.Count)
				}
				return err
			}))
	}))
	const locks, leased, limit = 6000, 10, 100
	all := make(map[string]string)
	for i := range locks {
		all[key(fmt.Sprintf("orders/%d/%d", i%2, i))] = fmt.Sprintf(`{"owner":"o%d","count":1}`, i)
		all["other/"+fmt.Sprint(i)] = "foreign"
	}
	put(t, cli, all)
	for i := range leased {
		req := backend.AcquireRequest{
			Name: fmt.Sprintf("orders/0/leased%d", i), Owner: alice, Lease: lease,
		}
		wiretest.Must[backend.AcquireResult](t)(open(t, cli).Acquire(t.Context(), req))
	}
	for prefix, want := range map[string]int{
		"":                locks + leased,
		"orders/":         locks + leased,
		"orders/0/":       locks/2 + leased,
		"orders/0/leased": leased,
		"orders/0/0":      1,
		"orders/1/1":      556,
		"other":           0,
	} {
		sent.reset()
		counted.Store(0)
		got, pages := list(t, s, prefix, limit)
		names := make(map[string]bool)
		for _, l := range got {
			names[l.Name] = true
		}
		if least := max((want+limit-1)/limit, 1); len(got) != want || len(names) != want ||
			pages < least || pages > least+1 {
			t.Errorf("%q: %d locks with %d names on %d pages; want %d", prefix, len(got),
				len(names), pages, want)
		}
		requests := maps.Clone(sent.unary)
		// A request that a member is slow to answer is sent once more.
		if requests[rpcRange] > 2*pages+10 || requests[rpcTxn] > 2*pages ||
			requests[rpcTTL] > 2*leased {
			t.Errorf("%q: %d pages have sent %v", prefix, pages, requests)
		}
		if n := counted.Load(); n > int64(want+10*limit*pages) {
			t.Errorf("%q: the server has counted %d keys for %d pages of %d", prefix, n, pages,
				limit)
		}
	}
}

// TestListBesideLongValues: of what is no lock a page may be longer than a client takes.
func TestListBesideLongValues(t *testing.T) {
	t.Parallel()
	cli := connect(t, testservers.Etcd(t).Addr)
	s := open(t, cli, etcdbackend.WithPrefix(""))
	for i := range 6 {
		put(t, cli, map[string]string{fmt.Sprint(i): strings.Repeat("x", 1_000_000)})
	}
	put(t, cli, map[string]string{"n": `{"owner":"o","count":1}`})
	if locks, _ := list(t, s, "", 1000); len(locks) != 1 || locks[0].Name != "n" {
		t.Errorf("%+v", locks)
	}
}

// TestInspectionRefused: to whom some keys are forbidden, and nothing else.
func TestInspectionRefused(t *testing.T) {
	t.Parallel()
	server := testservers.Etcd(t, "--bcrypt-cost", "4")
	root := connect(t, server.Addr)
	ctx := t.Context()
	for _, user := range []string{"root", "viewer", "locker"} {
		wiretest.Must[*clientv3.AuthUserAddResponse](t)(root.UserAdd(ctx, user, "secret"))
		wiretest.Must[*clientv3.AuthRoleAddResponse](t)(root.RoleAdd(ctx, user))
		wiretest.Must[*clientv3.AuthUserGrantRoleResponse](t)(root.UserGrantRole(ctx, user, user))
	}
	grant := func(user, from, to string, kind clientv3.PermissionType) {
		wiretest.Must[*clientv3.AuthRoleGrantPermissionResponse](t)(
			root.RoleGrantPermission(ctx, user, from, to, kind))
	}
	// looking changes nothing
	grant("viewer", key("mine"), clientv3.GetPrefixRangeEnd(key("mine")),
		clientv3.PermissionType(clientv3.PermRead))
	grant("locker", key("mine1"), "", clientv3.PermissionType(clientv3.PermReadWrite))
	nobody := open(t, connect(t, server.Addr))
	wiretest.Must[*clientv3.AuthEnableResponse](t)(root.AuthEnable(ctx))

	admin := open(t, connect(t, server.Addr, as("root", "secret")))
	viewer := open(t, connect(t, server.Addr, as("viewer", "secret")))
	locker := open(t, connect(t, server.Addr, as("locker", "secret")))
	for _, name := range []string{"mine1", "mine2", "another's"} {
		wiretest.Must[backend.AcquireResult](t)(admin.Acquire(ctx, backend.AcquireRequest{
			Name: name, Owner: alice, Lease: lease,
		}))
	}
	if got := inspect(t, viewer, "mine1"); len(got.Holders) != 1 || got.Holders[0].Owner != alice {
		t.Errorf("%+v", got)
	}
	for _, prefix := range []string{"mine", "mine2", "mine3"} {
		want := map[string]int{"mine": 2, "mine2": 1}[prefix]
		if locks, _ := list(t, viewer, prefix, 1); len(locks) != want {
			t.Errorf("%q: %+v, want %d", prefix, locks, want)
		}
	}
	refused := func(what string, err error, says ...string) {
		t.Helper()
		wantKind(t, err, backend.Refused)
		for _, word := range says {
			if err == nil || !strings.Contains(err.Error(), word) {
				t.Errorf("%s: %v; want it to say %s", what, err, word)
			}
		}
	}
	_, err := viewer.Inspect(ctx, backend.InspectRequest{Name: "another's"})
	refused("another's lock", err, "permission denied", `"distsync/locks/another's"`)
	_, err = viewer.List(ctx, backend.ListRequest{Limit: 10})
	refused("all locks", err, "permission denied", `"distsync/locks/\x00"`, `"distsync/locks0"`)
	_, err = viewer.List(ctx, backend.ListRequest{Prefix: "min", Limit: 10})
	refused("a shorter prefix", err, "permission denied", `"distsync/locks/min"`,
		`"distsync/locks/mio"`)
	// A user that may use a lock's own key alone can't see the other holders.
	_, err = locker.Inspect(ctx, backend.InspectRequest{Name: "mine1"})
	refused("with its key alone", err, "permission denied", `"distsync/locks/mine1"`)
	_, err = nobody.Inspect(ctx, backend.InspectRequest{Name: "mine1"})
	refused("nobody", err, "user name is empty")
	_, err = nobody.List(ctx, backend.ListRequest{Limit: 10})
	refused("nobody", err, "user name is empty")
}
