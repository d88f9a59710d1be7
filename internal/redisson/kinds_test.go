package redisson

import (
	"fmt"
	"slices"
	"testing"

	"github.com/seed951563bd/distsync/backend"
)

func TestOwnersInside(t *testing.T) {
	for owner, want := range map[string]string{
		"id:7": "id:07", "id:07": "id:007", "a:b:12": "a:b:012",
		"a": "a:0", "a:": "a::0", "7": "7:0", "a:7b": "a:7b:0", "a:0": "a:00", ":1": ":01",
	} {
		for _, k := range []backend.Kind{backend.Read, backend.Write} {
			if got := kindOf(k).called(owner); got != want {
				t.Errorf("%v: %q is called %q, want %q", k, owner, got, want)
			}
		}
		for _, k := range []backend.Kind{backend.Exclusive, backend.Fenced} {
			if got := kindOf(k).called(owner); got != owner {
				t.Errorf("%v: %q is called %q", k, owner, got)
			}
		}
	}
	if got := kindOf(backend.Read).called(""); got != "" {
		t.Errorf("nobody is called %q", got)
	}
}

// No two owners are one in there.
func FuzzOwnersInside(f *testing.F) {
	f.Add("a", "a:0")
	f.Add("a:1", "a:01")
	f.Fuzz(func(t *testing.T, one, other string) {
		if one != other && inside(one) == inside(other) {
			t.Errorf("%q and %q are called %q", one, other, inside(one))
		}
	})
}

// The suite leaves out each kind that isn't declared, and doesn't say so.
func TestAllKindsAreDeclared(t *testing.T) {
	for k := backend.Exclusive; k <= backend.Permits; k++ {
		if !Kinds.Has(k) {
			t.Errorf("%v isn't declared", k)
		}
	}
}

// Locks with the names n and {n} are two. They share a channel, and their tokens. Kinds that would
// share more refuse one of the names.
func TestShareInBraces(t *testing.T) {
	s := &session{Options: Options{Store: "redis"}}
	for kind, want := range map[backend.Kind]string{
		backend.Exclusive: "[redisson_lock__channel:{n}]",
		backend.Fenced:    "[redisson_lock__channel:{n} redisson_lock_token:{n}]",
		backend.Read:      "[redisson_rwlock:{n}]",
		backend.Write:     "[redisson_rwlock:{n}]",
		backend.Fair:      "refused",
		backend.Permits:   "refused",
	} {
		if _, err := s.check(t.Context(), kind, "n", "A:1"); err != nil {
			t.Errorf("%v: n: %v", kind, err)
		}
		if _, err := s.check(t.Context(), kind, "{n}", "A:2"); (err != nil) != (want == "refused") ||
			err != nil && backend.KindOf(err) != backend.Refused {
			t.Errorf("%v: {n}: %v", kind, err)
		}
		if want == "refused" {
			continue
		}
		k := kindOf(kind)
		others := k.keys("{n}", "A:2")
		both := slices.DeleteFunc(k.keys("n", "A:1"), func(key string) bool {
			return !slices.Contains(others, key)
		})
		if got := fmt.Sprint(both); got != want {
			t.Errorf("%v: they share %s, want %s", kind, got, want)
		}
	}
}
