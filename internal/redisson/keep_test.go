package redisson

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/internal/test/testservers"
)

// keeps carries out releases of the lock n with Keep, in words.
func (s *store) keeps(kind backend.Kind, owner string, lease, keep int) string {
	s.t.Helper()
	k := kindOf(kind)
	req := backend.ReleaseRequest{
		Kind: kind, Name: "n", Owner: k.called(owner), Lease: time.Duration(lease) * unit,
		Keep: time.Duration(keep) * unit, Permits: 1,
	}
	return say(s, k.keep(s.dialect, req), ParseKeep)
}

// acquires takes the lock n, in words: it is free, or had by that owner.
func (s *store) acquires(kind backend.Kind, owner string, lease int) string {
	s.t.Helper()
	k := kindOf(kind)
	req := backend.AcquireRequest{
		Kind: kind, Name: "n", Owner: k.called(owner), Lease: time.Duration(lease) * unit,
		Permits: 1, Limit: 1, Reentry: true,
	}
	return say(s, k.acquire(s.dialect, req), k.acquired)
}

// After a release with Keep the lock has a single hold, under a name that no owner has. The release
// is told only to those that watch a plain or fenced lock.
func TestKeep(t *testing.T) {
	everywhere(t, func(t *testing.T, s *store) {
		for kind, want := range map[backend.Kind]string{
			backend.Exclusive: "n[A:1-kept:1] 20",
			backend.Fenced:    "n[A:1-kept:1] 20, redisson_lock_token:{n} for ever",
			backend.Fair:      "n[A:1-kept:fair:1] 20",
			backend.Write:     "n[A:01-kept:write:1 mode:write] 20",
		} {
			t.Run(kind.String(), func(t *testing.T) {
				s := *s
				s.t = t
				s.do("flushall")
				s.published()
				s.acquires(kind, "A:1", 10)
				s.acquires(kind, "A:1", 10)
				s.keeps(kind, "A:1", 30, 20)
				before := s.state()
				if got := s.keeps(kind, "A:1", 30, 20); got != "kept" {
					t.Errorf("the last release, where there was %s: %s", before, got)
				}
				state := s.state()
				if kind == backend.Fenced { // its number is one of many
					number, _, _ := strings.Cut(state[strings.LastIndexByte(state, '=')+1:], " ")
					state = strings.Replace(state, "="+number, "", 1)
				}
				if state != want {
					t.Errorf("%s; want %s", state, want)
				}
				if got := s.keeps(kind, "A:1", 30, 50); got != "kept" {
					t.Errorf("again: %s", got)
				}
				if got := s.keeps(kind, "B:1", 30, 50); got != "not held" {
					t.Errorf("by another: %s", got)
				}
				if again := s.state(); !strings.HasPrefix(again,
					want[:strings.IndexByte(want, ']')]) || !strings.Contains(again, "] 20") {
					t.Errorf("later %s; want %s", again, want)
				}
				told := map[backend.Kind]string{backend.Exclusive: keptMessage,
					backend.Fenced: keptMessage}[kind]
				if got := s.published(); !strings.HasSuffix(got, told) || told == "" && got != "" {
					t.Errorf("published %q; want %q, once", got, told)
				}
			})
		}
	})
}

// Inspect says that a lock is kept, and which owner has given it back, even if that owner reads
// under its write.
func TestKeptInspected(t *testing.T) {
	for owner, want := range map[string]string{
		"A:1-kept": "A:1 kept", "A:1-kept:fair": "A:1 kept", "A:1": "A:1", "A:1:fair": "A:1",
		"A-kept:1": "A-kept:1", "A-kept:1:fair": "A-kept:1",
	} {
		f := Found{what: plainLock, holders: []held{{owner, 1, unit}}}
		h := f.Inspection("n").Holders[0]
		if got := strings.TrimSuffix(fmt.Sprint(h.Owner, map[bool]string{true: " kept"}[h.Kept]),
			" "); got != want {
			t.Errorf("%s is %s; want %s", owner, got, want)
		}
	}
	f := Found{what: writing, holders: []held{{"A:01", 1, unit}, {"A:01-kept:write", 1, unit}}}
	all := f.Inspection("n").Holders
	if len(all) != 2 || all[0].Owner != "A:1" || !all[0].Kept || all[1].Owner != "A:1" ||
		all[1].Kept || all[1].Kind != backend.Read {
		t.Errorf("%+v", all)
	}
}

// A server that was a master a moment ago doesn't say that nothing is held, and one whose memory is
// full keeps what is given back.
func TestKeepOnServersInTrouble(t *testing.T) {
	realServers(t, func(t *testing.T, s *store) {
		kinds := []backend.Kind{backend.Exclusive, backend.Fair, backend.Write, backend.Permits}
		for _, kind := range kinds {
			s.do("flushall")
			s.do("replicaof", "127.0.0.1", strconv.Itoa(testservers.FreePort(t)))
			if got := s.keeps(kind, "A:1", 10, 20); !strings.Contains(got, "READONLY") {
				t.Errorf("%v, on a replica: %s", kind, got)
			}
			s.do("replicaof", "no", "one")

			s.acquires(kind, "A:1", 10)
			counts := kind != backend.Permits
			if counts {
				s.acquires(kind, "A:1", 10)
			}
			s.do("config", "set", "maxmemory", "1")
			if counts {
				if got := s.keeps(kind, "A:1", 10, 20); got != "holds left" {
					t.Errorf("%v, without memory: %s; want holds left", kind, got)
				}
			}
			for range 2 {
				if got := s.keeps(kind, "A:1", 10, 20); got != "kept" {
					t.Errorf("%v, without memory: %s; want kept", kind, got)
				}
			}
			s.do("config", "set", "maxmemory", "0")
		}
	})
}

// Somebody's data is left alone.
func TestKeepForeign(t *testing.T) {
	everywhere(t, func(t *testing.T, s *store) {
		for _, words := range [][]string{
			{"set", "n", "text"}, {"hset", "n", "name", "bob"},
			{"hset", "n", "mode", "write", "A:01:write", "1"}, {"rpush", "n", "x"},
		} {
			s.do("flushall")
			s.do(words...)
			s.do("pexpire", "n", "100000")
			if len(words) == 4 && words[0] == "hset" {
				s.do("persist", "n") // a key that expires may be a lock
			}
			before := s.dump()
			if got := s.keeps(backend.Exclusive, "A:1", 1, 1); got != "conflict" {
				t.Errorf("%q: %s; want a conflict", words, got)
			}
			if after := s.dump(); after != before {
				t.Errorf("%q: there is %s now, where there was %s", words, after, before)
			}
		}
	})
}
