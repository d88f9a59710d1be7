package redisson

import (
	"bytes"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/seed951563bd/distsync/backend"
)

// Whatever a server replies to the scripts of the kinds, only what these reply means anything, and
// all else is an error of kind Unknown with a result that says nothing.
func FuzzKindReplies(f *testing.F) {
	for _, seed := range []string{"n", "i\x00", "i\x01", "i\x02i\x02i\x02", "i\xff",
		"I\xff\xff\xff\xff\xff\xff\xff\x7f", "i\x01s5\x00", "i\x01s0\x00",
		"i\x01s18446744073709551616\x00", "i\x01ni\x05", "i\x01s2\x00i\x05", "i\x00ni\xfe",
		"i\x01s1\x00i\xff", "s1\x00", "ai\x01", "m", "e", "f", "t", "b"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		r := bytes.NewReader(data)
		one, two, three := reply(r, 3), reply(r, 3), reply(r, 3)
		replies := []any{one, []any{one}, []any{one, two}, []any{one, two, three}, []any{}, nil}
		for _, reply := range replies {
			words, isArray := reply.([]any)
			number, isInteger := reply.(int64)

			grant, err := ParseGrant(reply)
			wellFormed(t, "grant", reply, err,
				isInteger && number >= -1 || isArray && len(words) == 1 && positive(words[0]))
			if err != nil && grant != (backend.AcquireResult{}) ||
				err == nil &&
					(grant.Acquired != isArray || grant.Token != 0 ||
						grant.Acquired != (grant.Count > 0)) {
				t.Errorf("grant: %v means %+v, %v", reply, grant, err)
			}
			fenced, err := ParseFenced(reply)
			if err != nil &&
				(backend.KindOf(err) != backend.Unknown || fenced != backend.AcquireResult{}) ||
				err == nil &&
					(fenced.Acquired != isArray || fenced.Acquired != (fenced.Token > 0) ||
						fenced.Acquired != (fenced.Count > 0)) {
				t.Errorf("fenced: %v means %+v, %v", reply, fenced, err)
			}
			if fenced.Acquired &&
				strings.TrimLeft(words[1].(string), "0") != strconv.FormatUint(fenced.Token, 10) {
				t.Errorf("fenced: %v means %+v", reply, fenced)
			}
			for n := range 4 {
				held, err := ParseRenewals(reply, n)
				want := isArray && len(words) == n && !slices.ContainsFunc(words, func(w any) bool {
					return w != int64(0) && w != int64(1)
				})
				wellFormed(t, "renewals", reply, err, want)
				for i, h := range held {
					if h.Held != (words[i] == int64(1)) {
						t.Errorf("renewals: %v means %v", reply, held)
					}
				}
			}
			look, err := ParseLookRW(reply)
			if err != nil &&
				(backend.KindOf(err) != backend.Unknown || look != backend.LookResult{}) {
				t.Errorf("look: %v means %+v, %v", reply, look, err)
			}
			if err == nil &&
				(len(words) != 4 || look.Held && (words[0] != int64(1) || words[2] == int64(-2))) {
				t.Errorf("look: %v means %+v", reply, look)
			}
		}
	})
}

func positive(reply any) bool {
	n, ok := reply.(int64)
	return ok && n > 0
}

// The fields of owners differ from each other and from what else is in the hash, and so do their
// timeout keys. A cluster keeps all the keys in one slot, or the name is refused.
func FuzzKindNames(f *testing.F) {
	for _, name := range []string{"n", "{a}b", "a{b}c", "{}", "{}{a}", "a}b", "a{b", "}{", "mode",
		"ü"} {
		f.Add(name, "mode", "mode:")
		f.Add(name, "a", "a:write")
		f.Add(name, "a:write", "a:write:")
		f.Add(name, "a}", "{a")
	}
	f.Fuzz(func(t *testing.T, name, one, two string) {
		if name == "" || one == "" || two == "" {
			return // no backend is asked for that
		}
		fields := []string{"mode", reader(one), writer(one)}
		if one != two {
			fields = append(fields, reader(two), writer(two))
		}
		slices.Sort(fields)
		if len(slices.Compact(slices.Clone(fields))) != len(fields) {
			t.Errorf("%q and %q have the fields %q", one, two, fields)
		}
		for owner, field := range map[string]string{one: reader(one), two: reader(two)} {
			if field != owner && field != owner+":" {
				t.Errorf("%q reads as %q", owner, field)
			}
		}
		if one != two && timeout(name, reader(one)) == timeout(name, reader(two)) {
			t.Errorf("%q and %q have one timeout key", one, two)
		}
		for _, owner := range []string{one, two} {
			for kind, keys := range map[backend.Kind][]string{
				backend.Fenced: {Channel(name), tokenKey(name)},
				backend.Read:   {RWChannel(name), notes(name), timeout(name, reader(owner))},
				backend.Write:  {RWChannel(name), notes(name)},
			} {
				err := checkSlots(name, kindOf(kind).keys(name, owner)...)
				for _, key := range keys {
					if err == nil && Slot(key) != Slot(name) {
						t.Errorf("%v, %q: accepted, though %q is in another slot", kind, name, key)
					}
				}
				if err != nil &&
					(backend.KindOf(err) != backend.Refused || !strings.ContainsAny(name, "{}")) {
					t.Errorf("%v, %q is refused: %v", kind, name, err)
				}
			}
		}
	})
}

// Names and owners go to the server as they are, and times as whole numbers, no place that isn't
// zero as none.
func FuzzKindCalls(f *testing.F) {
	f.Add("n", "11111111-1111-1111-1111-111111111111:1", int64(30*time.Second), int64(0),
		int64(time.Second), false)
	f.Add("a\x00\r\nb", "*-1\r\n", int64(time.Millisecond), int64(1), int64(1), true)
	f.Add("{a}", "mode", int64(1<<62), int64(1<<63-1), int64(1<<63-1), true)
	f.Fuzz(func(t *testing.T, name, owner string, lease, waited, place int64, sharded bool) {
		d := Dialect{Sharded: sharded}
		l := max(time.Duration(lease), time.Millisecond).Truncate(time.Millisecond)
		w, p := max(time.Duration(waited), 0), max(time.Duration(place), 0)
		r, wr, ms := reader(owner), writer(owner), millis(l)
		for text, d := range map[string]time.Duration{micros(w): w, micros(p): p} {
			n, err := strconv.ParseInt(text, 10, 64)
			if err != nil || n < d.Microseconds() || n > d.Microseconds()+1 ||
				(n == 0) != (d == 0) {
				t.Errorf("%v is sent as %s", d, text)
			}
		}
		check := func(what string, c Call, keys, args []string) {
			t.Helper()
			if !slices.Equal(c.Keys, keys) || !slices.Equal(c.Args, args) {
				t.Errorf("%s: keys %q, arguments %q; want %q, %q", what, c.Keys, c.Args, keys, args)
			}
		}
		acquire := backend.AcquireRequest{Name: name, Owner: owner, Lease: l, Waited: w, Place: p}
		release := backend.ReleaseRequest{Name: name, Owner: owner, Lease: l}
		renew := []backend.RenewRequest{{Name: name, Owner: owner, Lease: l}}
		force := backend.ForceReleaseRequest{Name: name}
		look := backend.LookRequest{Name: name, Owner: owner}
		check("read", AcquireRead(acquire), []string{name, timeout(name, r), notes(name)},
			[]string{ms, r, wr, micros(w)})
		check("write", AcquireWrite(acquire), []string{name, notes(name)},
			[]string{ms, wr, micros(w), micros(p)})
		check("fenced", AcquireFenced(acquire), []string{name, tokenKey(name)}, []string{ms, owner})
		check("release a read", d.ReleaseRead(release),
			[]string{name, RWChannel(name), timeout(name, r)}, []string{"0", r})
		check("release a write", d.ReleaseWrite(release),
			[]string{name, RWChannel(name), notes(name)}, []string{"1", ms, wr})
		check("renew a read", RenewReads(renew), []string{name, timeout(name, r)}, []string{ms, r})
		check("renew a write", RenewWrites(renew), []string{name}, []string{ms, wr})
		check("force reads", d.ForceReleaseRead(force), []string{name, RWChannel(name)},
			[]string{"0", "read"})
		check("force writes", d.ForceReleaseWrite(force), []string{name, RWChannel(name)},
			[]string{"1", "write"})
		check("look for reads", LookRead(look), []string{name, timeout(name, r)},
			[]string{"read", r})
		check("look for writes", LookWrite(look), []string{name}, []string{"write", wr})
	})
}
