package redisson

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/seed951563bd/distsync/backend"
)

// inspected words what a name holds.
func (s *store) inspected(name string) string {
	s.t.Helper()
	reply, err := s.run(Inspect(name))
	if err != nil {
		return wordError(err)
	}
	found, err := ParseInspect(reply)
	if err != nil {
		return wordError(err)
	}
	return wordInspection(found.Inspection(name))
}

func wordError(err error) string {
	if errors.Is(err, backend.ErrConflict) && backend.KindOf(err) == backend.Refused {
		return "conflict"
	}
	return err.Error()
}

func wordInspection(i backend.Inspection) string {
	words := []string{i.Kind.String()}
	if i.Kind == backend.Write &&
		!slices.ContainsFunc(i.Holders, func(h backend.Holder) bool {
			return h.Kind == backend.Write
		}) {
		// readers come in any order
		slices.SortFunc(i.Holders, func(a, b backend.Holder) int {
			return strings.Compare(a.Owner, b.Owner)
		})
	}
	for _, h := range i.Holders {
		words = append(words, fmt.Sprintf("%v %s:%d for %s", h.Kind, h.Owner, h.Count,
			units(h.Remaining.Milliseconds())))
	}
	if i.More > 0 {
		words = append(words, fmt.Sprint("more ", i.More))
	}
	if len(i.Line) > 0 {
		words = append(words, fmt.Sprint("line ", i.Line))
	}
	if i.Limit > 0 {
		words = append(words, fmt.Sprint("of ", i.Limit))
	}
	return strings.Join(words, ", ")
}

// in a store are what steps on a name have left there, by owners as a session calls them.
func (s *store) acquired(kind backend.Kind, name, owner string, lease, place int, limits ...int) {
	s.t.Helper()
	k := kindOf(kind)
	req := backend.AcquireRequest{
		Name: name, Owner: k.called(owner), Lease: time.Duration(lease) * unit,
		Place: time.Duration(place) * unit,
	}
	if len(limits) > 0 {
		req.Permits, req.Limit = limits[0], limits[1]
		req.Lease -= 10 * time.Millisecond // as leaseOf
	}
	reply, err := s.run(k.acquire(s.dialect, req))
	if err == nil {
		_, err = k.acquired(reply)
	}
	if err != nil {
		s.t.Fatal(err)
	}
}

const javas = "71b96ce8-0f5e-4f4e-a5a2-5d1f3b7c9d10:42"

func owned(owner string) string { return hex.EncodeToString([]byte(holder(owner))) }

func TestInspect(t *testing.T) {
	t.Parallel()
	later := func(n int) string {
		return strconv.FormatInt(time.Now().Add(time.Duration(n)*unit).UnixMilli(), 10)
	}
	for what, c := range map[string]struct {
		put  func(s *store)
		want string
	}{
		"nothing": {func(*store) {}, "exclusive"},
		"a lock": {func(s *store) {
			s.acquired(backend.Exclusive, "n", "a:1", 10, 0)
			s.acquired(backend.Exclusive, "n", "a:1", 20, 0)
		}, "exclusive, exclusive a:1:2 for 20"},
		"a lock of Java's": {
			func(s *store) { s.do("hset", "n", javas, "1"); s.do("pexpire", "n", "9500000") },
			"exclusive, exclusive " + javas + ":1 for 10",
		},
		"one who is called mode": {
			func(s *store) { s.do("hset", "n", "mode", "3"); s.do("pexpire", "n", "9500000") },
			"exclusive, exclusive mode:3 for 10",
		},
		"one that never ends": {
			func(s *store) { s.do("hset", "n", javas, "1") },
			"exclusive, exclusive " + javas + ":1 for for ever",
		},
		"a fenced lock": {
			func(s *store) { s.acquired(backend.Fenced, "n", "a:1", 10, 0) },
			"exclusive, exclusive a:1:1 for 10",
		},
		"a fair lock": {func(s *store) {
			s.acquired(backend.Fair, "n", "a:1", 10, 0)
			s.acquired(backend.Fair, "n", "b:1", 10, 5)
			s.acquired(backend.Fair, "n", "b:2", 10, 5)
			s.do("rpush", fairKeys("n")[1], javas)
			s.do("zadd", fairKeys("n")[2], later(10), javas)
			s.acquired(backend.Fair, "n", "c:1", 10, 5)
		}, "exclusive, exclusive a:1:1 for 10, line [b:1 b:2 " + javas + " c:1]"},
		"a line, and nobody holds it": {func(s *store) {
			s.do("rpush", fairKeys("n")[1], javas)
			s.do("zadd", fairKeys("n")[2], later(10), javas)
		}, "exclusive, line [" + javas + "]"},
		"a line where some are overdue": {func(s *store) {
			s.acquired(backend.Fair, "n", "a:1", 10, 0)
			s.acquired(backend.Fair, "n", "b:1", 10, 5)
			s.acquired(backend.Fair, "n", "b:2", 10, 5)
			s.do("zadd", fairKeys("n")[3], "1000", "b:1:fair")
			s.do("rpush", fairKeys("n")[1], javas, "another", "without a time")
			s.do("zadd", fairKeys("n")[2], "1000", javas, later(3), "another")
		}, "exclusive, exclusive a:1:1 for 10, line [b:2 another]"},
		"a line whose places were lost": {func(s *store) {
			s.acquired(backend.Fair, "n", "a:1", 10, 0)
			s.acquired(backend.Fair, "n", "b:1", 10, 5)
			s.do("del", fairKeys("n")[3])
		}, "exclusive, exclusive a:1:1 for 10, line [b:1]"},
		"a line that is text": {func(s *store) {
			s.acquired(backend.Exclusive, "n", "a:1", 10, 0)
			s.do("set", fairKeys("n")[1], "text")
		}, "exclusive, exclusive a:1:1 for 10"},
		"readers": {func(s *store) {
			s.acquired(backend.Read, "n", "a:1", 10, 0)
			s.acquired(backend.Read, "n", "a", 20, 0)
			s.do("pexpire", "n", "14500000") // as Java's renewal may
		}, "write, read a:1 for 15, read a:1:1 for 10"},
		"readers of Java's": {func(s *store) {
			s.do("hset", "n", "mode", "read", javas, "2")
			s.do("set", "{n}:"+javas+":rwlock_timeout:1", "1", "px", "19500000")
			s.do("set", "{n}:"+javas+":rwlock_timeout:2", "1", "px", "9500000")
			s.do("pexpire", "n", "19500000")
		}, "write, read " + javas + ":2 for 20"},
		"a reader who is dead": {func(s *store) {
			s.acquired(backend.Read, "n", "a:1", 10, 0)
			s.acquired(backend.Read, "n", "b:1", 20, 0)
			s.do("del", "{n}:b:01:rwlock_timeout:1")
		}, "write, read a:1:1 for 10"},
		"only dead readers": {func(s *store) {
			s.acquired(backend.Read, "n", "a:1", 10, 0)
			s.do("del", "{n}:a:01:rwlock_timeout:1")
		}, "write"},
		"a writer who reads": {func(s *store) {
			s.acquired(backend.Write, "n", "a:1", 20, 0)
			s.acquired(backend.Write, "n", "a:1", 20, 0)
			s.acquired(backend.Read, "n", "a:1", 10, 0)
			s.acquired(backend.Write, "n", "b:1", 10, 5) // leaves a note
		}, "write, write a:1:2 for 20, read a:1:1 for 10"},
		"permits": {func(s *store) {
			s.acquired(backend.Permits, "n", "a:1", 20, 0, 2, 10)
			s.acquired(backend.Permits, "n", "b:1", 10, 0, 1, 10)
			s.do("zadd", ids("n"), "922337203685477", "0123456789abcdef")
			s.do("decr", "n")
		}, "permits, permits " + owned("b:1") + ":1 for 10, permits " + owned("a:1") +
			":2 for 20, permits " +
			hex.EncodeToString([]byte("0123456789abcdef")) + ":1 for for ever, of 10"},
		"permits that are over": {func(s *store) {
			s.acquired(backend.Permits, "n", "a:1", 20, 0, 2, 10)
			s.do("zadd", ids("n"), "1000", "0123456789abcdef")
			s.do("decr", "n")
		}, "permits, permits " + owned("a:1") + ":2 for 20, of 10"},
		"a semaphore that ends": {func(s *store) {
			s.do("set", "n", "3", "px", "4500000")
			s.acquired(backend.Permits, "n", "a:1", 20, 0, 2, 0)
		}, "permits, permits " + owned("a:1") + ":2 for 5, of 3"},
		"a semaphore that was lowered": {func(s *store) { s.do("set", "n", "-3") }, "permits"},
		"permits, and nobody knows how many": {func(s *store) {
			s.acquired(backend.Permits, "n", "a:1", 20, 0, 2, 10)
			s.do("del", "n")
		}, "permits, permits " + owned("a:1") + ":2 for 20"},
		"no permits are out": {func(s *store) {
			s.do("set", "n", "7")
		}, "permits, of 7"},
		"only permits that are over": {func(s *store) {
			s.do("zadd", ids("n"), "1000", "0123456789abcdef")
		}, "exclusive"},
		"ids of something else": {func(s *store) {
			s.do("set", ids("n"), "text")
		}, "exclusive"},
		"a number, with ids of other type": {func(s *store) {
			s.do("set", "n", "7")
			s.do("set", ids("n"), "text")
		}, "conflict"},
		"text": {func(s *store) {
			s.do("set", "n", "text")
		}, "conflict"},
		"a long text": {func(s *store) {
			s.do("set", "n", strings.Repeat("1", 1000))
		}, "conflict"},
		"a list": {func(s *store) {
			s.do("rpush", "n", "1")
		}, "conflict"},
		"a user": {func(s *store) {
			s.do("hset", "n", "name", "bob")
		}, "conflict"},
		"a user that ends": {func(s *store) {
			s.do("hset", "n", "name", "bob")
			s.do("pexpire", "n", "1000000")
		}, "conflict"},
		"counters": {func(s *store) {
			s.do("hset", "n", "a", "1", "b", "2")
		}, "conflict"},
		"a mode and data": {func(s *store) {
			s.do("hset", "n", "mode", "read", "name", "bob")
		}, "conflict"},
		"a mode and nothing": {func(s *store) {
			s.do("hset", "n", "mode", "read")
		}, "conflict"},
		"another mode": {func(s *store) {
			s.do("hset", "n", "mode", "dark", "a:1", "1")
		}, "conflict"},
		"a count of zero": {func(s *store) {
			s.do("hset", "n", "a:1", "0")
		}, "conflict"},
		"a count that is none": {func(s *store) {
			s.do("hset", "n", "a:1", "12345678901234567890")
		}, "conflict"},
	} {
		t.Run(what, func(t *testing.T) {
			everywhere(t, func(t *testing.T, s *store) {
				c.put(s)
				before := s.dump()
				s.published()
				if got := s.inspected("n"); got != c.want {
					t.Errorf("%s\nwant %s", got, c.want)
				}
				if after := s.dump(); after != before {
					t.Errorf("there was %s\nthere is %s", before, after)
				}
				if got := s.published(); got != "" {
					t.Errorf("published: %s", got)
				}
			})
		})
	}
}

// dump returns what there is, with types.
func (s *store) dump() string {
	s.t.Helper()
	ctx := context.Background()
	keys := s.client.Keys(ctx, "*").Val()
	slices.Sort(keys)
	for i, key := range keys {
		keys[i] += fmt.Sprint(s.client.Type(ctx, key).Val(), s.client.HGetAll(ctx, key).Val(),
			s.client.LRange(ctx, key, 0, -1).Val(),
			s.client.ZRangeWithScores(ctx, key, 0, -1).Val())
	}
	return strings.Join(keys, "\n")
}

// A braced name has no permits of its own, and a name may be anything.
func TestInspectNames(t *testing.T) {
	everywhere(t, func(t *testing.T, s *store) {
		s.acquired(backend.Permits, "n", "a:1", 10, 0, 1, 3)
		s.acquired(backend.Exclusive, "{n}", "b:1", 10, 0)
		if got, want := s.inspected("{n}"), "exclusive, exclusive b:1:1 for 10"; got != want {
			t.Errorf("{n}: %s, want %s", got, want)
		}
		s.do("set", "{n}", "3")
		if got := s.inspected("{n}"); got != "conflict" {
			t.Errorf("{n}, a number: %s", got)
		}
		s.do("del", "{n}")
		if got := s.inspected("{n}"); got != "exclusive" {
			t.Errorf("{n}, nothing: %s", got)
		}
		for _, name := range []string{"", "a{b}c", "a*[?]", "a\x00\r\n\x1b[31mé", "<b>", "a}b",
			"x{"} {
			s.acquired(backend.Read, name, "a:1", 10, 0)
			if got, want := s.inspected(name), "write, read a:1:1 for 10"; got != want {
				t.Errorf("%q: %s, want %s", name, got, want)
			}
			s.do("del", name)
			s.acquired(backend.Permits, name, "a:1", 10, 0, 1, 3)
			if got, want := s.inspected(name), "permits, permits "+owned("a:1")+
				":1 for 10, of 3"; got != want {
				t.Errorf("%q: %s, want %s", name, got, want)
			}
		}
	})
}

// However many have a lock, or however much somebody's data is, the script doesn't look at all.
func TestInspectMany(t *testing.T) {
	t.Parallel()
	const many = 2500
	everywhere(t, func(t *testing.T, s *store) {
		fill := func(script string) {
			t.Helper()
			s.do("flushall")
			if _, err := s.eval("for i = 1, tonumber(ARGV[1]) do "+script+
				" end; redis.call('pexpire', 'n', 9500000)", nil, strconv.Itoa(many)); err != nil {
				t.Fatal(err)
			}
		}
		inspect := func() backend.Inspection {
			t.Helper()
			reply, err := s.run(Inspect("n"))
			if err != nil {
				t.Fatal(err)
			}
			found, err := ParseInspect(reply)
			if err != nil {
				t.Fatal(err)
			}
			return found.Inspection("n")
		}
		wantMost := func(what string, count int) {
			t.Helper()
			i := inspect()
			if len(i.Holders) != backend.MostHolders || i.More != many-backend.MostHolders {
				t.Errorf("%s: %d holders, %d more", what, len(i.Holders), i.More)
			}
			owners := make(map[string]bool)
			for _, h := range i.Holders {
				owners[h.Owner] = true
				if h.Count != count {
					t.Fatalf("%s: %+v", what, h)
				}
			}
			if len(owners) != len(i.Holders) {
				t.Errorf("%s: only %d are different", what, len(owners))
			}
		}
		fill("redis.call('hset', 'n', 'mode', 'read', 'a:0' .. i, 1); redis.call('set', " +
			"'{n}:a:0' .. i .. ':rwlock_timeout:1', 1, 'px', 9000000)")
		wantMost("readers", 1)
		fill("redis.call('zadd', '{n}:timeout', 9000000000001 + 2 * i, string.format('%012d', i) " +
			".. '\\255\\255\\255\\255', 9000000000001 + 2 * i, string.format('%012d', i) .. " +
			"'\\255\\255\\255\\254')")
		wantMost("permits", 2)

		fill("redis.call('rpush', 'redisson_lock_queue:{n}', i); redis.call('zadd', " +
			"'redisson_lock_timeout:{n}', 9999999999999, i)")
		if i := inspect(); len(i.Line) != backend.MostHolders || i.Line[999] != "1000" {
			t.Errorf("%d in line", len(i.Line))
		}

		// Somebody's data that looks like many holds each, or like a million.
		fill("redis.call('hset', 'n', 'mode', 'read', 'a:0' .. i, 900)")
		if i := inspect(); len(i.Holders) != 0 || i.More != many-11 {
			t.Errorf("with many holds each: %d holders, %d more", len(i.Holders), i.More)
		}
		fill("redis.call('hset', 'n', 'mode', 'read', 'a:0' .. i, 999999999)")
		if i := inspect(); len(i.Holders) != 0 || i.More != many {
			t.Errorf("with a million holds each: %d holders, %d more", len(i.Holders), i.More)
		}
		fill("redis.call('hset', 'n', i, 1)")
		if got := s.inspected("n"); got != "conflict" {
			t.Errorf("counters: %.100s", got)
		}
	})
}

// Outside, an owner of ours has the name that it had before inside changed it.
func FuzzOwnersOutside(f *testing.F) {
	for _, owner := range []string{"a", "a:0", "a:1", "a:01", ":", "", "mode", "a:write",
		"a:7:fair", "0", ":0"} {
		f.Add(owner)
	}
	f.Fuzz(func(t *testing.T, owner string) {
		if got := outside(inside(owner)); got != owner {
			t.Errorf("%q is called %q outside", owner, got)
		}
	})
}

// Redisson's owners keep their names outside.
func TestOwnersOutside(t *testing.T) {
	for _, owner := range []string{javas, "a", "a:b", "a:7b", "a:10"} {
		if got := outside(owner); got != owner {
			t.Errorf("%q is called %q outside", owner, got)
		}
	}
}

func TestHolderOf(t *testing.T) {
	for id, want := range map[string]string{
		"": "", "short": "73686f7274",
		holder("a") + "\xff\xff\xff\xff": owned("a"),
		holder("a") + "\xff\xff\xd8\xf0": owned("a"), // the last of as many as can be had at once
		holder("a") + "\xff\xff\xd8\xef": owned("a") + "ffffd8ef",
		"0123456789abcdef":               hex.EncodeToString([]byte("0123456789abcdef")),
	} {
		if got, _ := holderOf(id); got != want {
			t.Errorf("%q belongs to %q, want %q", id, got, want)
		}
	}
}

// An inspection names the writer before the readers, wherever the writer's field is.
func TestWriterFirst(t *testing.T) {
	f := Found{
		what: writing, holders: []held{{"a:01", 1, time.Second}, {"a:01:write", 2, time.Second}},
	}
	i := f.Inspection("n")
	if len(i.Holders) != 2 ||
		i.Holders[0] != (backend.Holder{Owner: "a:1", Kind: backend.Write, Count: 2,
			Remaining: time.Second}) || i.Holders[1].Kind != backend.Read {
		t.Errorf("%+v", i)
	}
}

// Whatever a server answers, it is understood or an error of kind Unknown.
func TestInspectReplies(t *testing.T) {
	good := func() []any {
		return []any{"lock", int64(0), int64(0), []any{"a", int64(1), int64(5)}, []any{"b"}}
	}
	if f, err := ParseInspect(good()); err != nil ||
		f.holders[0] != (held{"a", 1, 5 * time.Millisecond}) || f.line[0] != "b" {
		t.Errorf("%+v, %v", f, err)
	}
	for i, words := range map[int][]any{
		0: {"hash", int64(1), nil}, 1: {int64(-1), "1", nil}, 2: {int64(-1), "1"},
		3: {
			nil, "a", []any{"a"}, []any{"a", "1", int64(1)}, []any{"a", int64(0), int64(1)},
			[]any{"a", int64(1), int64(-2)}, []any{int64(1), int64(1), int64(1)},
		},
		4: {nil, "a", []any{int64(1)}, []any{nil}},
	} {
		for _, word := range words {
			reply := good()
			reply[i] = word
			if f, err := ParseInspect(reply); backend.KindOf(err) != backend.Unknown || err == nil {
				t.Errorf("%v is %+v, %v", reply, f, err)
			}
		}
	}
	for _, reply := range []any{nil, int64(0), "lock", []any{}, good()[:4], append(good(), "x"),
		int64(math.MinInt64)} {
		if f, err := ParseInspect(reply); backend.KindOf(err) != backend.Unknown || err == nil {
			t.Errorf("%v is %+v, %v", reply, f, err)
		}
	}
	for _, reply := range []any{nil, int64(0), "0", []any{}, []any{"0"}, []any{int64(0), []any{}},
		[]any{"0", "a"}, []any{"0", []any{int64(1)}}, []any{"0", nil}} {
		if keys, cursor, err := parseScan(reply); backend.KindOf(err) != backend.Unknown ||
			err == nil {
			t.Errorf("%v is %q, %q, %v", reply, keys, cursor, err)
		}
	}
}

func TestPositions(t *testing.T) {
	for _, p := range []position{{hashes, "0", ""},
		{sortedSets, "18446744073709551615", "127.0.0.1:7000"}, {hashes, "5", "a host:1"}} {
		if got, err := parsePosition(p.String()); got != p || err != nil {
			t.Errorf("%v is %v, %v", p, got, err)
		}
	}
	for _, after := range []string{"x", "hash 0", "list 0 ", "hash -1 ", "hash x ",
		"hash 18446744073709551616 "} {
		if p, err := parsePosition(after); backend.KindOf(err) != backend.Refused || err == nil {
			t.Errorf("%q is %v, %v", after, p, err)
		}
	}
}

func TestLockOf(t *testing.T) {
	for _, name := range []string{"n", "", "a{b}c", "{a}b", "x{", "a}b", ":timeout", "n:timeout",
		"{a}{b}"} {
		if got, ok := lockOf(sortedSets, ids(name)); got != name || !ok {
			t.Errorf("the ids of %q belong to %q, %v", name, got, ok)
		}
		if got, ok := lockOf(hashes, name); got != name || !ok {
			t.Errorf("the hash %q belongs to %q, %v", name, got, ok)
		}
	}
	for _, key := range []string{"n", "n:timeout", "{n}", "timeout",
		"redisson_lock_timeout:{x}:timeout", "distsync_fair_places:{x}:timeout", "{a{b}:timeout}"} {
		if got, ok := lockOf(sortedSets, key); ok {
			t.Errorf("%q are the ids of %q", key, got)
		}
	}
}
