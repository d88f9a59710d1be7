package redisson

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"github.com/seed951563bd/distsync/backend"
)

// Whatever a server replies to the scripts of fair locks, only what these reply means anything.
func FuzzTurnReplies(f *testing.F) {
	for _, seed := range []string{"n", "i\x01", "i\x00", "sA\x00i\x05s7\x00i\x00",
		"ni\xfes7\x00i\x01", "ni\xfds7\x00i\x01", "e", "a", "b"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		r := bytes.NewReader(data)
		one, two, three, four := reply(r, 3), reply(r, 3), reply(r, 3), reply(r, 3)
		for _, reply := range []any{one, []any{one}, []any{one, two}, []any{one, two, three},
			[]any{one, two, three, four}, []any{}, nil} {
			turn, err := ParseTurn(reply)
			words, _ := reply.([]any)
			switch {
			case err != nil:
				if backend.KindOf(err) != backend.Unknown || turn != (Turn{}) {
					t.Errorf("%v means %+v, %v", reply, turn, err)
				}
			case turn.Acquired:
				if len(words) != 1 || words[0] != int64(turn.Count) || turn.Count < 1 {
					t.Errorf("%v means %+v", reply, turn)
				}
			default:
				if len(words) != 4 || turn.Redisson != (words[3] == int64(1)) {
					t.Errorf("%v means %+v", reply, turn)
				}
				if holder, _ := words[0].(string); turn.Holder != holder ||
					turn.Remaining < -time.Millisecond {
					t.Errorf("%v means %+v", reply, turn)
				}
			}
			res, odd := ParseQueued(reply)
			if (odd == nil) != (err == nil) || res.Acquired != turn.Acquired ||
				res.Count != turn.Count || res.Remaining != turn.Remaining {
				t.Errorf("%v means %+v, %+v", reply, turn, res)
			}
		}
	})
}

// ParseGranted understands what the script says of a grant, whatever the lock and its owner are
// called. No other message is a grant with a negative lease.
func FuzzGranted(f *testing.F) {
	f.Add("n", "a:1:fair", int64(1_700_000_000_000), int64(1000), "0")
	f.Add("a b", " 1 2 ", int64(0), int64(0), "1 2 3 4")
	f.Fuzz(func(t *testing.T, name, owner string, at, lease int64, any string) {
		if lease >= 0 {
			g, ok := ParseGranted(fmt.Sprintf("%d %d %d %s%s", at, lease, len(name), name, owner))
			if !ok || g.Name != name || g.Owner != owner || g.At.UnixMilli() != at ||
				g.Lease != duration(lease) {
				t.Errorf("%+v, %v; want %q %q %d %d", g, ok, name, owner, at, lease)
			}
		}
		if g, ok := ParseGranted(any); ok && g.Lease < 0 {
			t.Errorf("%q means %+v", any, g)
		}
		// A client is told of its own owners only: one that is called differently is another.
		if other := inLine(owner); outOfLine(other) != owner {
			t.Errorf("%q in line is %q, and %q out of it", owner, other, outOfLine(other))
		}
	})
}

// A cluster keeps what belongs to a fair lock in one slot, or the name is refused.
func FuzzFairNames(f *testing.F) {
	for _, name := range []string{"n", "{a}b", "a{b}c", "{}", "{}{a}", "a}b", "a{b", "}{", "ü"} {
		f.Add(name, "id}{:1")
	}
	f.Fuzz(func(t *testing.T, name, owner string) {
		if name == "" {
			return // no backend is asked for that
		}
		k := kindOf(backend.Fair)
		if checkSlots(name, k.keys(name, k.called(owner))...) != nil {
			return
		}
		d := Dialect{Sharded: true}
		for _, key := range append(fairKeys(name), d.grants(name)+clientOf(owner),
			turnChannel(name, inLine(owner))) {
			if Slot(key) != Slot(name) {
				t.Errorf("%q is accepted, though %q is in another slot", name, key)
			}
		}
	})
}
