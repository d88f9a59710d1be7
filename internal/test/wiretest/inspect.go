package wiretest

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/contract/faults"
	"github.com/seed951563bd/distsync/internal/test/testservers"
)

// held contains locks of all kinds, each with the expected text of its report.
var held = map[string]struct {
	hold []backend.AcquireRequest
	want string
}{
	"plain": {
		[]backend.AcquireRequest{{Owner: Alice}, {Owner: Alice}},
		"exclusive: exclusive " + Alice + " 2",
	},
	"fenced": {
		[]backend.AcquireRequest{{Kind: backend.Fenced, Owner: Alice}},
		"exclusive: exclusive " + Alice + " 1",
	},
	"fair": {[]backend.AcquireRequest{
		{Kind: backend.Fair, Owner: Alice}, {Kind: backend.Fair, Owner: Bob, Place: Lease},
		{Kind: backend.Fair, Owner: "c", Place: Lease},
	},
		"exclusive: exclusive " + Alice + " 1 before " + Bob + " c"},
	"read": {
		[]backend.AcquireRequest{{Kind: backend.Read, Owner: Alice}}, "write: read " + Alice + " 1",
	},
	"reads": {
		[]backend.AcquireRequest{{Kind: backend.Read, Owner: "a"},
			{Kind: backend.Read, Owner: "b"}}, "write: read a 1, read b 1",
	},
	"write": {
		[]backend.AcquireRequest{{Kind: backend.Write, Owner: Alice},
			{Kind: backend.Write, Owner: Bob, Place: Lease}}, "write: write " + Alice + " 1",
	},
	"write and read": {[]backend.AcquireRequest{
		{Kind: backend.Write, Owner: Alice}, {Kind: backend.Write, Owner: Alice},
		{Kind: backend.Read, Owner: Alice},
	},
		"write: write " + Alice + " 2, read " + Alice + " 1"},
	"permits": {[]backend.AcquireRequest{
		{Kind: backend.Permits, Owner: Alice, Permits: 3, Limit: 5},
		{Kind: backend.Permits, Owner: Bob, Permits: 1, Limit: 5},
	},
		"permits: " + strings.Join(slices.Sorted(slices.Values([]string{
			"permits " + hex.EncodeToString([]byte(alicesPermits)) + " 3",
			"permits " + hex.EncodeToString([]byte(bobsPermits)) + " 1"})), ", ") + " of 5"},
}

// hold sends the requests in held[what].hold, for the lock with the given name.
func hold(t testing.TB, s backend.Session, what, name string) {
	t.Helper()
	for _, req := range held[what].hold {
		req.Name, req.Lease = name, Lease
		Must[backend.AcquireResult](t)(s.Acquire(t.Context(), req))
	}
}

// wordInspection returns a report as text. It checks the remaining times itself, and omits them,
// because they vary.
func wordInspection(t testing.TB, i backend.Inspection) string {
	t.Helper()
	var holders []string
	for n, h := range i.Holders {
		if h.Remaining <= 0 || h.Remaining > Lease {
			t.Errorf("%q: %s has it for %v", i.Name, h.Owner, h.Remaining)
		}
		holders = append(holders, fmt.Sprint(h.Kind, " ", h.Owner, " ", h.Count))
		if h.Kind == backend.Write && n > 0 {
			t.Errorf("%q: a writer comes after readers", i.Name)
		}
	}
	if len(holders) > 0 && i.Holders[0].Kind != backend.Write {
		slices.Sort(holders) // their order is arbitrary
	}
	text := fmt.Sprint(i.Kind, ": ", strings.Join(holders, ", "))
	if len(i.Line) > 0 {
		text += " before " + strings.Join(i.Line, " ")
	}
	if i.Limit > 0 {
		text += fmt.Sprint(" of ", i.Limit)
	}
	if i.More > 0 {
		text += fmt.Sprint(" and ", i.More)
	}
	return text
}

func inspect(t testing.TB, s backend.Session, name string) backend.Inspection {
	t.Helper()
	i := Must[backend.Inspection](t)(
		s.(backend.Inspector).Inspect(t.Context(), backend.InspectRequest{Name: name}))
	if i.Name != name {
		t.Errorf("%q is said of %q", i.Name, name)
	}
	return i
}

// odd contains names, or prefixes of names, that have a special meaning for some of the software
// that handles them.
var odd = []string{
	"", "orders:42", "a*b", "a?b", "[ab]", `a\b`, `\`, "*", "[", "{tag}rest", "some{tag}",
	"\x00\r\n\x1b[31m\xff", "<b>&", "timeout", ":timeout", "hash 0 ",
}

// Inspect tests a session's Inspect, on one server.
func Inspect(t *testing.T, p Package, server *testservers.Server) {
	client := connect(t, server.Addr)
	for _, prefix := range []string{"", "lock:", "{all}*:"} {
		t.Run("prefix "+prefix, func(t *testing.T) {
			client.FlushAll(t.Context())
			s := open(t, p.Server(t, server.Addr, Options{Prefix: prefix}))
			for what, h := range held {
				for _, name := range odd {
					name += "/" + what
					hold(t, s, what, name)
					if got := wordInspection(t, inspect(t, s, name)); got != h.want {
						t.Errorf("%q: %s\nwant %s", name, got, h.want)
					}
				}
			}
			if i := inspect(t, s, "nothing"); !i.Free() {
				t.Errorf("nothing: %+v", i)
			}
			client.HSet(t.Context(), prefix+"user", "name", "bob")
			_, err := s.(backend.Inspector).Inspect(t.Context(),
				backend.InspectRequest{Name: "user"})
			if WantKind(t, err, backend.Refused); !errors.Is(err, backend.ErrConflict) {
				t.Errorf("somebody's data: %v", err)
			}
		})
	}

	t.Run("on the wire", func(t *testing.T) {
		client.FlushAll(t.Context())
		s := open(t, p.Server(t, server.Addr, Options{}))
		hold(t, s, "read", "n")
		keys := []any{
			5, "n", "redisson_lock_queue:{n}", "redisson_lock_timeout:{n}",
			"distsync_fair_places:{n}", permitsKey, backend.MostHolders,
		}
		server.Do("SCRIPT", "FLUSH")
		m := Watch(t, server.Addr)
		inspect(t, s, "n")
		wantScriptCall(t, m.Commands(), keys...)
		inspect(t, s, "n")
		wantCommands(t, m, `"EVALSHA" "SHA" `+Quoted(keys...))
	})

	t.Run("a context that has ended", func(t *testing.T) {
		s := open(t, p.Server(t, server.Addr, Options{}))
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err := s.(backend.Inspector).Inspect(ctx, backend.InspectRequest{Name: "n"})
		WantKind(t, err, backend.Retry)
		_, err = s.(backend.Lister).List(ctx, backend.ListRequest{Limit: 10})
		WantKind(t, err, backend.Retry)
	})
}

// list returns the reports on all locks as text, keyed by lock name.
func list(t testing.TB, s backend.Session, prefix string, limit int) map[string]string {
	t.Helper()
	all := make(map[string]string)
	req := backend.ListRequest{Prefix: prefix, Limit: limit}
	for range 10_000 {
		res := Must[backend.ListResult](t)(s.(backend.Lister).List(t.Context(), req))
		for _, i := range res.Locks {
			if i.Free() {
				t.Errorf("%q is free", i.Name)
			}
			all[i.Name] = wordInspection(t, i)
		}
		if res.Next == "" {
			return all
		}
		req.After = res.Next
	}
	t.Fatal("the list has no end")
	return nil
}

// List tests a session's List, on one server.
func List(t *testing.T, p Package, server *testservers.Server) {
	lists(t, connect(t, server.Addr), func(o Options) backend.Backend {
		return p.Server(t, server.Addr, o)
	})
	t.Run("where none has ended", func(t *testing.T) {
		s := open(t, p.Server(t, server.Addr, Options{}))
		for _, after := range []string{"x", "hash x ", "set 0 "} {
			_, err := s.(backend.Lister).List(t.Context(),
				backend.ListRequest{After: after, Limit: 10})
			WantKind(t, err, backend.Refused)
		}
	})
}

// ListInCluster is like [List], but for the masters of a cluster.
func ListInCluster(t *testing.T, p Package, nodes []*testservers.Server) {
	client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: Addrs(nodes)})
	t.Cleanup(func() { client.Close() })
	connectBackend := func(o Options) backend.Backend { return p.Cluster(t, nodes, o) }
	lists(t, client, connectBackend)
	s := open(t, connectBackend(Options{}))

	t.Run("inspect", func(t *testing.T) {
		for what, h := range held {
			hold(t, s, what, "one "+what)
			if got := wordInspection(t, inspect(t, s, "one "+what)); got != h.want {
				t.Errorf("%s: %s\nwant %s", what, got, h.want)
			}
		}
		// no lock in a cluster can have this name
		_, err := s.(backend.Inspector).Inspect(t.Context(), backend.InspectRequest{Name: "a}b"})
		WantKind(t, err, backend.Refused)
	})

	t.Run("a master that is none", func(t *testing.T) {
		_, err := s.(backend.Lister).List(t.Context(), backend.ListRequest{
			After: "hash 0 127.0.0.1:1", Limit: 10,
		})
		WantKind(t, err, backend.Retry)
		if err == nil || !strings.Contains(err.Error(), "127.0.0.1:1") {
			t.Errorf("%v", err)
		}
	})
}

// lists tests the listing of locks. It uses client to empty the servers.
func lists(
	t *testing.T, client redis.UniversalClient, connectBackend func(Options) backend.Backend,
) {
	ctx := t.Context()
	wipe := func() {
		if cluster, ok := client.(*redis.ClusterClient); ok {
			if err := cluster.ForEachMaster(ctx, func(
				ctx context.Context, node *redis.Client,
			) error {
				return node.FlushAll(ctx).Err()
			}); err != nil {
				t.Fatal(err)
			}
			return
		}
		client.FlushAll(ctx)
	}
	// data adds other users' data to the server, some of it with an expiry. Its keys have the same
	// prefix as the locks.
	data := func(prefix string) {
		pipe := client.Pipeline()
		for i := range 500 {
			name := fmt.Sprint(prefix, "data", i)
			pipe.HSet(ctx, name+"hash", "name", "bob")
			pipe.HSet(ctx, name+"ends", "name", "bob")
			pipe.PExpire(ctx, name+"ends", time.Hour)
			pipe.HSet(ctx, name+"counter", "visits", "12")
			pipe.HSet(ctx, name+"counters", "visits", "12", "errors", "1")
			pipe.PExpire(ctx, name+"counters", time.Hour)
			pipe.Set(ctx, name+"text", "1", time.Hour)
			pipe.ZAdd(ctx, name+":timeouts", redis.Z{Score: 9e12, Member: "0123456789abcdef"})
			pipe.ZAdd(ctx, "{"+name+"}:timeout", redis.Z{Score: 9e12, Member: "some job"})
			pipe.ZAdd(ctx, "{"+name+"over}:timeout", redis.Z{
				Score: 9e8, Member: "0123456789abcdef",
			})
		}
		if _, err := pipe.Exec(ctx); err != nil {
			t.Fatal(err)
		}
	}
	for _, prefix := range []string{"", "lock:", "{all}*:"} {
		t.Run("prefix "+prefix, func(t *testing.T) {
			wipe()
			s, want := open(t, connectBackend(Options{Prefix: prefix})), make(map[string]string)
			data(prefix)
			if prefix != "" {
				// this lock is not under the prefix
				hold(t, open(t, connectBackend(Options{})), "plain", "another's")
			}
			for what, h := range held {
				for _, name := range append(odd, "some more") {
					name += "/" + what
					hold(t, s, what, name)
					want[name] = h.want
				}
			}
			Must[backend.AcquireResult](t)(s.Acquire(ctx, backend.AcquireRequest{
				Kind: backend.Permits, Name: "free", Owner: Alice, Lease: Lease, Permits: 1,
				Limit: 2,
			}))
			Must[backend.ReleaseResult](t)(s.Release(ctx, backend.ReleaseRequest{
				Kind: backend.Permits, Name: "free", Owner: Alice, Lease: Lease, Permits: 1,
			}))
			for _, limit := range []int{1, 100, 100_000} {
				if got := list(t, s, "", limit); !maps.Equal(got, want) {
					t.Errorf("limit %d: %v\nwant %v", limit, got, want)
				}
			}
			for _, beginning := range append(odd, "nobody's", "o", "orders:42/plain") {
				some := maps.Clone(want)
				maps.DeleteFunc(some, func(name, _ string) bool {
					return !strings.HasPrefix(name, beginning)
				})
				if got := list(t, s, beginning, 1000); !maps.Equal(got, some) {
					t.Errorf("beginning with %q: %v\nwant %v", beginning, got, some)
				}
			}
		})
	}
}

// refusal matches servers' errors about a missing permission.
var refusal = regexp.MustCompile("permission|can't run this command")

// InspectPermitted tests Inspect and List, both for users with the documented permissions and for
// users with fewer.
func InspectPermitted(t *testing.T, p Package, server *testservers.Server) {
	hold(t, open(t, p.Server(t, server.Addr, Options{Prefix: "lock:"})), "plain", "n")
	look := func(user string) (inspected, listed error) {
		s := open(t, p.Server(t, server.Addr, Options{Prefix: "lock:", User: user}))
		_, inspected = s.(backend.Inspector).Inspect(t.Context(), backend.InspectRequest{Name: "n"})
		req := backend.ListRequest{Limit: 10}
		for { // if a server has many keys, a page may be empty
			var res backend.ListResult
			res, listed = s.(backend.Lister).List(t.Context(), req)
			if req.After = res.Next; listed != nil || req.After == "" {
				return inspected, listed
			}
		}
	}

	t.Run("the least", func(t *testing.T) {
		server.Do("ACL", "SETUSER", "least", "on", ">secret", "resetchannels", "-@all", "+hello",
			"+client", "+ping",
			"~lock:*", "~{lock:*", "~redisson_lock_queue:*", "~redisson_lock_timeout:*",
			"~distsync_fair_places:*",
			"+eval", "+evalsha", "+get", "+hget", "+hlen", "+hscan", "+lrange", "+pttl", "+scan",
			"+strlen", "+time", "+type",
			"+zcard", "+zcount", "+zrangebyscore", "+zscore")
		all := open(t, p.Server(t, server.Addr, Options{Prefix: "lock:"}))
		s := open(t, p.Server(t, server.Addr, Options{Prefix: "lock:", User: "least"}))
		want := make(map[string]string)
		for what, h := range held {
			hold(t, all, what, what)
			want[what] = h.want
			if got := wordInspection(t, inspect(t, s, what)); got != h.want {
				t.Errorf("%s: %s", what, got)
			}
			all.ForceRelease(t.Context(), backend.ForceReleaseRequest{Name: "n"})
		}
		if got := list(t, s, "", 1000); !maps.Equal(got, want) {
			t.Errorf("%v\nwant %v", got, want)
		}
	})

	for user, c := range map[string]struct {
		lacks           string
		inspects, lists bool
	}{"noscan": {"-scan", true, false}, "noscripts": {"-eval -evalsha", false, false},
		"notype": {"-type", false, false}, "nokeys": {"resetkeys ~lock:*", false, false}} {
		t.Run("without "+c.lacks, func(t *testing.T) {
			server.Do(append([]string{"ACL", "SETUSER", user, "on", ">secret", "~*", "&*", "+@all"},
				strings.Fields(c.lacks)...)...)
			hold(t, open(t, p.Server(t, server.Addr, Options{Prefix: "lock:"})), "plain", "n")
			inspected, listed := look(user)
			for what, step := range map[string]struct {
				err error
				can bool
			}{"inspect": {inspected, c.inspects}, "list": {listed, c.lists}} {
				switch {
				case step.can && step.err != nil:
					t.Errorf("%s: %v", what, step.err)
				case !step.can &&
					(!IsKind(step.err, backend.Refused) ||
						errors.Is(step.err, backend.ErrConflict) ||
						!refusal.MatchString(step.err.Error())):
					t.Errorf("%s: %v; want it refused", what, step.err)
				}
			}
		})
	}
}

// ListLeft tests that List returns when its context ends, whatever the server does. The function
// connectBackend returns a backend that is connected to the given address by a client with long
// timeouts.
func ListLeft(
	t *testing.T, server *testservers.Server, connectBackend func(addr string) backend.Backend,
) {
	p := NewProxy(t, server.Addr, faults.RESP)
	s := open(t, connectBackend(p.Addr()))
	hold(t, s, "plain", "n")
	list(t, s, "", 100) // makes the script known to the server
	for _, command := range []string{"SCAN", "EVALSHA"} {
		ctx, cancel := context.WithCancel(t.Context())
		held, deliver := p.Hold(func(r faults.Request) bool {
			return strings.EqualFold(r.Words[0], command)
		})
		done := make(chan error, 1)
		go func() {
			_, err := s.(backend.Lister).List(ctx, backend.ListRequest{Limit: 100})
			done <- err
		}()
		<-held
		cancel()
		select {
		case err := <-done:
			if err == nil {
				t.Errorf("%s hangs, and there is a list", command)
			}
		case <-time.After(testservers.Patience):
			t.Errorf("%s hangs, and List does", command)
		}
		deliver()
	}
}
