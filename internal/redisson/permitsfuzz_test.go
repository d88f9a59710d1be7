package redisson

import (
	"bytes"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/seed951563bd/distsync/backend"
)

// Whatever a server replies to the scripts of permits, only what these reply means anything, and
// all else is an error of kind Unknown with a result that says nothing.
func FuzzPermitReplies(f *testing.F) {
	for _, seed := range []string{"n", "i\x00", "i\x01", "i\xfe", "i\xfd", "i\xfc",
		"i\x02i\x01i\x05i\x03", "i\x02i\x01i\x05n", "i\x02i\x03i\x05i\x03", "i\x00i\x00i\x00i\x03",
		"e", "f", "s1\x00"} {
		f.Add([]byte(seed), 0)
		f.Add([]byte(seed), 3)
	}
	f.Fuzz(func(t *testing.T, data []byte, limit int) {
		r := bytes.NewReader(data)
		one, two, three, four := reply(r, 3), reply(r, 3), reply(r, 3), reply(r, 3)
		for _, reply := range []any{one, []any{one}, []any{one, two, three},
			[]any{one, two, three, four}, []any{}, nil} {
			words, isArray := reply.([]any)
			number, isInteger := reply.(int64)

			res, err := ParsePermits(reply)
			if isInteger && number <= -2 && number >= -4 {
				if backend.KindOf(err) != backend.Refused || res != (backend.AcquireResult{}) {
					t.Errorf("acquire: %v means %+v, %v", reply, res, err)
				}
			} else {
				wellFormed(t, "acquire", reply, err,
					isInteger && number >= -1 || isArray && len(words) == 1 && positive(words[0]))
				if err == nil &&
					(res.Acquired != isArray || res.Acquired != (res.Count > 0) || res.Token != 0) {
					t.Errorf("acquire: %v means %+v", reply, res)
				}
			}

			look, err := ParseLookPermits(backend.LookRequest{Limit: max(limit, 0)}, reply)
			switch {
			case err != nil && look != backend.LookResult{}:
				t.Errorf("look: %v means %+v, %v", reply, look, err)
			case err != nil && backend.KindOf(err) == backend.Refused:
				if limit > 0 || len(words) != 4 || words[3] != nil {
					t.Errorf("look: %v, of %d, means %v", reply, limit, err)
				}
			case err != nil:
				if backend.KindOf(err) != backend.Unknown {
					t.Errorf("look: %v means %v", reply, err)
				}
			case len(words) != 4 || look.Held != positive(words[0]) ||
				look.Count > 0 && !look.Held || look.Available < 0 ||
				limit > 0 && look.Available > limit:
				t.Errorf("look: %v, of %d, means %+v", reply, limit, look)
			}
		}
	})
}

// Names go to the server as they are, numbers as numbers that Java can read, and owners as what
// stands for them.
func FuzzPermitCalls(f *testing.F) {
	f.Add("n", "11111111-1111-1111-1111-111111111111:1", int64(30*time.Second), 1, 3, false)
	f.Add("a{b}c", "\x00", int64(time.Millisecond), math.MaxInt, math.MaxInt, true)
	f.Add("{", "", int64(1<<62), 10_001, 0, true)
	f.Fuzz(func(t *testing.T, name, owner string, lease int64, count, limit int, sharded bool) {
		d := Dialect{Sharded: sharded}
		l := max(time.Duration(lease), time.Millisecond).Truncate(time.Millisecond)
		count, limit = max(count, 1), max(limit, 0)
		who := kindOf(backend.Permits).called(owner)
		if owner == "" && who != "" || owner != "" && (len(who) != 12 || who == holder(owner+"1")) {
			t.Errorf("%q is called %q", owner, who)
		}
		n, most := strconv.Itoa(min(count, 10_001)), strconv.Itoa(min(limit, math.MaxInt32))
		tag := name
		if !strings.Contains(name, "{") {
			tag = "{" + name + "}"
		}
		check := func(what string, c Call, keys, args []string) {
			t.Helper()
			if !slices.Equal(c.Keys, keys) || !slices.Equal(c.Args, args) {
				t.Errorf("%s: keys %q, arguments %q; want %q, %q", what, c.Keys, c.Args, keys, args)
			}
		}
		keys := []string{name, tag + ":timeout", "redisson_sc:" + tag}
		check("acquire",
			d.AcquirePermits(backend.AcquireRequest{Name: name, Owner: who, Lease: l,
				Permits: count, Limit: limit}), keys,
			[]string{millis(l), who, n, most, "10000"})
		check("release",
			d.ReleasePermits(backend.ReleaseRequest{Name: name, Owner: who, Permits: count}), keys,
			[]string{who, n})
		renew := backend.RenewRequest{Name: name, Owner: who, Lease: l, Permits: count}
		check("renew", d.RenewPermits([]backend.RenewRequest{renew, renew}),
			slices.Concat(keys, keys), []string{millis(l), who, n, who, n})
		check("force", d.ForceReleasePermits(backend.ForceReleaseRequest{Name: name}), keys, nil)
		check("look", LookPermits(backend.LookRequest{Name: name, Owner: who, Permits: count}),
			keys[:2], []string{who, n})
		err := checkSlots(name, kindOf(backend.Permits).keys(name, who)...)
		for _, key := range keys {
			if err == nil && Slot(key) != Slot(name) {
				t.Errorf("%q: accepted, though %q is in another slot", name, key)
			}
		}
		if err != nil &&
			(backend.KindOf(err) != backend.Refused || !strings.ContainsAny(name, "{}")) {
			t.Errorf("%q is refused: %v", name, err)
		}
	})
}

// Every whole number wakes one, also those below zero, which Redisson sends where it was told of
// fewer permits than are out.
func FuzzAvailable(f *testing.F) {
	for _, seed := range []string{"0", "3", "-2", "", "x", "1.5", "99999999999999999999"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, message string) {
		_, err := strconv.ParseInt(message, 10, 64)
		if _, ok := Available(message); ok != (err == nil) {
			t.Errorf("%q is %v", message, ok)
		}
	})
}
