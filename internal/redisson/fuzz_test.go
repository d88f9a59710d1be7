package redisson

import (
	"bytes"
	"errors"
	"io"
	"math/big"
	"strings"
	"testing"
	"time"

	"github.com/seed951563bd/distsync/backend"
)

// Whatever a lock is called: its channel says so, a cluster keeps the two in one slot or the name
// is refused, and a name without braces is never refused.
func FuzzNames(f *testing.F) {
	for _, name := range []string{"n", "orders:42", "{a}b", "a{b}c", "{}", "{}{a}", "a}b", "a{b",
		"}{", "{{a}}", "a\x00b\xff", "ü"} {
		f.Add(name, "{"+name+"}")
	}
	f.Fuzz(func(t *testing.T, name, other string) {
		if name == "" || other == "" {
			return // no backend is asked for that
		}
		channel := Channel(name)
		want := channelPrefix + "{" + name + "}"
		if strings.Contains(name, "{") {
			want = channelPrefix + name
		}
		if channel != want {
			t.Errorf("the channel of %q is %q", name, channel)
		}
		if name != other && channel == Channel(other) && name != "{"+other+"}" &&
			other != "{"+name+"}" {
			t.Errorf("%q and %q have one channel, %q", name, other, channel)
		}
		if Slot(name) >= Slots || Slot(channel) >= Slots {
			t.Errorf("%q: slots %d and %d", name, Slot(name), Slot(channel))
		}
		err := checkSlots(name, kindOf(backend.Exclusive).keys(name, other)...)
		if (err == nil) != (Slot(name) == Slot(channel)) {
			t.Errorf("%q: slots %d and %d, %v", name, Slot(name), Slot(channel), err)
		}
		if err != nil &&
			(backend.KindOf(err) != backend.Refused || !strings.ContainsAny(name, "{}")) {
			t.Errorf("%q is refused: %v", name, err)
		}
	})
}

// Names and owners go to the server as they are, and leases as whole milliseconds, never as none.
func FuzzCalls(f *testing.F) {
	f.Add("n", "11111111-1111-1111-1111-111111111111:1", int64(30*time.Second), false)
	f.Add("a\x00\r\nb", "", int64(time.Millisecond), true)
	f.Add("", "*-1\r\n", int64(1<<62), true)
	f.Fuzz(func(t *testing.T, name, owner string, lease int64, sharded bool) {
		d := Dialect{Sharded: sharded}
		l := max(time.Duration(lease), time.Millisecond).Truncate(time.Millisecond)
		check := func(what string, c Call, keys, args []string) {
			if strings.Join(c.Keys, "|") != strings.Join(keys, "|") ||
				strings.Join(c.Args, "|") != strings.Join(args, "|") {
				t.Errorf("%s: keys %q, arguments %q; want %q, %q", what, c.Keys, c.Args, keys, args)
			}
			if ms, ok := new(big.Int).SetString(millis(l), 10); !ok ||
				ms.Int64()*int64(time.Millisecond) != int64(l) {
				t.Errorf("the lease %v is sent as %s", l, millis(l))
			}
			text := strings.ReplaceAll(c.Script.Text, "'spublish'", "'publish'")
			if !sharded && text != c.Script.Text ||
				strings.Contains(c.Script.Text, name) && len(name) > 40 {
				t.Errorf("%s: the script is %q", what, c.Script.Text)
			}
		}
		check("acquire", Acquire(backend.AcquireRequest{Name: name, Owner: owner, Lease: l}),
			[]string{name}, []string{millis(l), owner})
		check("release", d.Release(backend.ReleaseRequest{Name: name, Owner: owner, Lease: l}),
			[]string{name, Channel(name)}, []string{unlockMessage, millis(l), owner})
		check("release again", d.ReleaseAgain(backend.ReleaseRequest{
			Name: name, Owner: owner, Lease: l,
		}),
			[]string{name, Channel(name)}, []string{unlockMessage, millis(l), owner})
		check("renew again", RenewAgain(backend.RenewRequest{Name: name, Owner: owner, Lease: l}),
			[]string{name, Channel(name)}, []string{millis(l), owner})
		check("renew", Renew(backend.RenewRequest{Name: name, Owner: owner, Lease: l}),
			[]string{name}, []string{millis(l), owner})
		check("force release", d.ForceRelease(backend.ForceReleaseRequest{Name: name}),
			[]string{name, Channel(name)}, []string{unlockMessage})
	})
}

// Whatever a server replies, only the protocol's own replies mean anything, and all else is an
// error of kind Unknown.
func FuzzReplies(f *testing.F) {
	for _, seed := range []string{"n", "i\x00", "i\x01", "i\x02", "i\xff",
		"I\xff\xff\xff\xff\xff\xff\xff\x7f", "I\x00\x00\x00\x00\x00\x00\x00\x80",
		"s1\x00", "s-1\x00", "s\x00", "s99999999999999999999\x00", "s 1\x00", "s+1\x00", "an", "a",
		"m", "mn", "e", "f", "t", "b", "ai\x01", "aan", "sOK\x00"} {
		f.Add([]byte(seed), uint8(1))
	}
	f.Fuzz(func(t *testing.T, data []byte, replicas uint8) {
		r := bytes.NewReader(data)
		one, two, three := reply(r, 3), reply(r, 3), reply(r, 3)
		n, isInt := one.(int64)

		acquired, err := ParseAcquire(one)
		wellFormed(t, "acquire", one, err, one == nil || isInt && n >= -1)
		if err == nil &&
			(acquired.Acquired != (one == nil) || acquired.Count != 0 ||
				acquired.Remaining < -time.Millisecond) {
			t.Errorf("acquire: %v means %+v", one, acquired)
		}
		released, err := ParseRelease(one)
		wellFormed(t, "release", one, err, one == nil || isInt && (n == 0 || n == 1))
		if want := map[any]backend.ReleaseOutcome{nil: backend.NotHeld, int64(0): backend.Left,
			int64(1): backend.Freed}; err == nil && released.Outcome != want[one] {
			t.Errorf("release: %v means %v", one, released.Outcome)
		}
		renewed, err := ParseRenew(one)
		wellFormed(t, "renew", one, err, isInt && (n == 0 || n == 1))
		if renewed.Held != (err == nil && n == 1) {
			t.Errorf("renew: %v means %+v", one, renewed)
		}
		again, err := ParseReleaseAgain(one)
		orConflict(t, "release again", one, err, one == nil || isInt && (n == 0 || n == 1))
		if again != released {
			t.Errorf("release again: %v means %+v", one, again)
		}
		held, err := ParseRenewAgain(one)
		orConflict(t, "renew again", one, err, isInt && (n == 0 || n == 1))
		if held != renewed {
			t.Errorf("renew again: %v means %+v", one, held)
		}
		forced, err := ParseForceRelease(one)
		orConflict(t, "force release", one, err, isInt && (n == 0 || n == 1))
		if forced.Released != (err == nil && n == 1) {
			t.Errorf("force release: %v means %+v", one, forced)
		}
		count, err := ParseCount(one)
		if s, isString := one.(string); err == nil &&
			(count < 0 || one != nil && (!isString || s == "")) || err != nil && count != 0 {
			t.Errorf("count: %v means %d, %v", one, count, err)
		}
		look, err := ParseLook(one, two, three)
		if err != nil &&
			(backend.KindOf(err) != backend.Unknown || look != (backend.LookResult{})) {
			t.Errorf("look: %v, %v, %v mean %+v, %v", one, two, three, look, err)
		}
		if look.Held &&
			(one != int64(1) || three == int64(-2) || look.Count < 0 ||
				look.Remaining < -time.Millisecond) {
			t.Errorf("look: %v, %v, %v mean %+v", one, two, three, look)
		}
		if err := (Replicas{N: int(replicas)}).acknowledged(
			Reply{Value: one}); (err == nil) != (isInt && n >= int64(replicas)) ||
			err != nil && !errors.Is(err, ErrNotReplicated) {
			t.Errorf("WAIT for %d: %v means %v", replicas, one, err)
		}
	})
}

// orConflict is wellFormed for a script that answers -1 where it finds something that is no lock.
func orConflict(t *testing.T, what string, reply any, err error, known bool) {
	t.Helper()
	if reply != int64(-1) {
		wellFormed(t, what, reply, err, known)
	} else if !errors.Is(err, backend.ErrConflict) || backend.KindOf(err) != backend.Refused {
		t.Errorf("%s: -1 is read with the error %v", what, err)
	}
}

func wellFormed(t *testing.T, what string, reply any, err error, want bool) {
	t.Helper()
	if (err == nil) != want || err != nil && backend.KindOf(err) != backend.Unknown {
		t.Errorf("%s: %v is read with the error %v", what, reply, err)
	}
}

// reply makes of bytes a reply as clients decode one. It is nil only where the bytes say so.
func reply(r *bytes.Reader, depth int) any {
	kind, err := r.ReadByte()
	if err != nil {
		return ""
	}
	switch kind {
	case 'n':
		return nil
	case 'i':
		b, _ := r.ReadByte()
		return int64(int8(b))
	case 'I':
		var b [8]byte
		_, _ = io.ReadFull(r, b[:])
		n := uint64(0)
		for i, x := range b {
			n |= uint64(x) << (8 * i)
		}
		return int64(n)
	case 's':
		var s []byte
		for {
			b, err := r.ReadByte()
			if err != nil || b == 0 {
				return string(s)
			}
			s = append(s, b)
		}
	case 'e':
		return errors.New("ERR inside an array")
	case 'f':
		return 1.0
	case 't':
		return true
	case 'b':
		return big.NewInt(1)
	}
	if depth == 0 {
		return []any{}
	}
	inner := reply(r, depth-1)
	if kind == 'm' {
		return map[string]any{"0": inner}
	}
	return []any{inner, int64(1)}
}

// An error may be read as harmless only if its text says that nothing was carried out. Everything
// else is Unknown, and no error gets lost.
func FuzzServerErrors(f *testing.F) {
	for _, text := range []string{"", "ERR unknown command", "MOVED 1 127.0.0.1:1", "LOADING",
		"BUSY script", "NOPERM no permission, in script",
		"WRONGTYPE x", "WRONGTYPE", "OOM command not allowed", "ERR max number of clients reached",
		"NOSCRIPT x",
		"ERR unknown command 'eval' script", "ERR DB index is out of range",
		"ERR Error running script (call to f_0123456789012345678901234567890123456789): " +
			"@user_script:1: WRONGTYPE x",
		"ERR Error running script (call to f_0123456789012345678901234567890123456789): " +
			"@user_script:1: MOVED x", " MOVED", "moved 1"} {
		f.Add(text)
	}
	harmless := []string{"WRONGTYPE", "READONLY", "OOM", "NOREPLICAS", "MISCONF", "LOADING",
		"MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN",
		"BUSY", "MOVED", "ASK", "NOAUTH", "WRONGPASS", "NOPERM", "CROSSSLOT"}
	f.Fuzz(func(t *testing.T, text string) {
		cause := errors.New(text)
		err := ServerError(text, cause)
		if !errors.Is(err, cause) {
			t.Errorf("%q: the error %v does not wrap it", text, err)
		}
		if errors.Is(err, backend.ErrConflict) != (backend.KindOf(err) == backend.Refused &&
			strings.Contains(text, "WRONGTYPE")) {
			t.Errorf("%q: %v, kind %d", text, err, backend.KindOf(err))
		}
		if backend.KindOf(err) == backend.Unknown ||
			strings.HasPrefix(text, "ERR max number of clients") {
			return
		}
		code, _, _ := strings.Cut(text, " ")
		if code == "ERR" && wrappedError.MatchString(text) ||
			adviceOn(text, pointlessErrors) != "" {
			return
		}
		for _, h := range harmless {
			if code == h {
				return
			}
		}
		t.Errorf("%q is of kind %d", text, backend.KindOf(err))
	})
}

// Only the two messages of the protocol wake anybody.
func FuzzMessages(f *testing.F) {
	for _, m := range []string{"0", "1", "", "2", "00", "0\n", "-1"} {
		f.Add(m)
	}
	f.Fuzz(func(t *testing.T, message string) {
		if _, ok := Unlocked(message); ok != (message == "0" || message == "1") {
			t.Errorf("%q: %v", message, ok)
		}
	})
}

// No two names have one line, list of permits or notes, or one of them is refused.
func FuzzNamesApart(f *testing.F) {
	for _, names := range [][2]string{
		{"lock", "{lock}"}, {"{lock}", "{{lock}}"}, {"{}", "}"}, {"a{b}c", "{a{b}c}"},
		{"a}", "{a}}"}, {":{a}", "{a}"},
	} {
		f.Add(names[0], names[1])
	}
	own := map[backend.Kind]func(name string) []string{
		backend.Fair:    func(name string) []string { return fairKeys(name)[1:4] },
		backend.Permits: func(name string) []string { return []string{ids(name)} },
		backend.Write:   func(name string) []string { return []string{notes(name)} },
	}
	f.Fuzz(func(t *testing.T, one, other string) {
		if one == "" || other == "" || one == other {
			return
		}
		for kind, keys := range own {
			k := kindOf(kind)
			refused := func(name string) bool { return k.refuse != nil && k.refuse(name) != nil }
			for i, key := range keys(one) {
				if key == keys(other)[i] && !refused(one) && !refused(other) {
					t.Errorf("%v: %q and %q are both %q", kind, one, other, key)
				}
			}
			if refused(one) && keys(one)[0] != keys(one[1 : len(one)-1])[0] {
				t.Errorf("%v: %q is refused", kind, one)
			}
		}
	})
}
