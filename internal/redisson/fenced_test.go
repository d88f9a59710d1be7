package redisson

import (
	"fmt"
	"math"
	"strconv"
	"testing"
	"time"

	"github.com/seed951563bd/distsync/backend"
)

// number acquires the lock n with a number, and returns that.
func (s *store) number(owner string) uint64 {
	s.t.Helper()
	reply, err := s.run(AcquireFenced(backend.AcquireRequest{
		Name: "n", Owner: owner, Lease: 10 * unit,
	}))
	if err != nil {
		s.t.Fatal(err)
	}
	res, err := ParseFenced(reply)
	if err != nil || !res.Acquired || res.Token == 0 {
		s.t.Fatalf("%s: %+v, %v", owner, res, err)
	}
	if got, want := s.do("get", "redisson_lock_token:{n}"), strconv.FormatUint(res.Token,
		10); got != want {
		s.t.Fatalf("%s has the number %s, and the key says %v", owner, want, got)
	}
	if left := s.do("pttl", "redisson_lock_token:{n}"); left != int64(-1) {
		s.t.Fatalf("the key with the number ends in %v ms", left)
	}
	return res.Token
}

// free releases the lock n as often as the owner holds it.
func (s *store) free(owner string) {
	s.t.Helper()
	release := s.dialect.Release(backend.ReleaseRequest{Name: "n", Owner: owner, Lease: unit})
	for say(s, release, ParseRelease) == backend.Left.String() {
	}
}

func TestNumbersGrow(t *testing.T) {
	between := map[string]func(s *store){
		"it was released": func(s *store) { s.free("A") },
		"it was forced": func(s *store) {
			say(s, s.dialect.ForceRelease(backend.ForceReleaseRequest{Name: "n"}),
				ParseForceRelease)
		},
		"its lease was over":       func(s *store) { s.do("del", "n") },
		"the number was lost, too": func(s *store) { s.do("flushall") },
		"the number has an expiry": func(s *store) {
			s.free("A")
			s.do("expire", "redisson_lock_token:{n}", "100")
		},
		"Redisson has counted": func(s *store) {
			s.free("A")
			s.do("incr", "redisson_lock_token:{n}")
		},
		"Redisson has begun anew": func(s *store) {
			s.free("A")
			s.do("set", "redisson_lock_token:{n}", "1")
		},
		"the server's clock was put back": func(s *store) {
			s.free("A")
			s.do("incrby", "redisson_lock_token:{n}", "3600000000")
		},
		"a plain lock was there meanwhile": func(s *store) {
			s.free("A")
			s.run(Acquire(backend.AcquireRequest{Name: "n", Owner: "P", Lease: unit}))
			s.free("P")
		},
		"it was held twice, and released": func(s *store) { s.number("A"); s.free("A") },
		"another has tried, and it is free": func(s *store) {
			s.play("number B 10 = wait 10")
			s.free("A")
		},
	}
	everywhere(t, func(t *testing.T, s *store) {
		for what, happens := range between {
			s.do("flushall")
			last := s.number("A")
			happens(s)
			if recorded, ok := s.do("get", "redisson_lock_token:{n}").(string); ok {
				known, _ := strconv.ParseUint(recorded, 10, 64)
				last = max(last, known)
			}
			if next := s.number("B"); next <= last {
				t.Errorf("%s: %d after %d", what, next, last)
			}
		}
	})
}

// An owner that acquires again keeps its number, and only its holds are counted up.
func TestNumberOfAHold(t *testing.T) {
	everywhere(t, func(t *testing.T, s *store) {
		first := s.number("A")
		s.play(fmt.Sprintf(`
			number A 20 = count 2, number %[1]d
			number A 5 = count 3, number %[1]d
			state = n[A:3] 5, redisson_lock_token:{n}=%[1]d for ever
			number B 10 = wait 5
			state = n[A:3] 5, redisson_lock_token:{n}=%[1]d for ever
			published`, first))
		s.do("del", "redisson_lock_token:{n}")
		if again := s.number("A"); again <= first {
			t.Errorf("the number was lost: %d after %d", again, first)
		}
		s.play("published")
	})
}

// Numbers beyond those that Lua counts exactly still grow by one.
func TestLargeNumbers(t *testing.T) {
	everywhere(t, func(t *testing.T, s *store) {
		for _, last := range []string{"9007199254740992", "9007199254740993",
			"123456789123456789"} {
			s.do("set", "redisson_lock_token:{n}", last)
			want, _ := strconv.ParseUint(last, 10, 64)
			if got := s.number("A"); got != want+1 {
				t.Errorf("%d after %s", got, last)
			}
			s.free("A")
		}
	})
}

// The number is the time by the server's clock, to the microsecond.
func TestNumberIsTheTime(t *testing.T) {
	everywhere(t, func(t *testing.T, s *store) {
		before := time.Now()
		n := s.number("A")
		if d := time.UnixMicro(int64(n)).Sub(before); d < -time.Millisecond || d > time.Hour {
			t.Errorf("%d is %v from now", n, d)
		}
	})
}

func TestFencedConflicts(t *testing.T) {
	t.Parallel()
	for name, is := range map[string]string{
		"a number that is text":      ":set redisson_lock_token:{n} seven",
		"a number that is negative":  ":set redisson_lock_token:{n} -7",
		"a number that is too large": ":set redisson_lock_token:{n} 9223372036854775807",
		"no number":                  ":set redisson_lock_token:{n} 7.5",
		"an empty number":            ":set redisson_lock_token:{n} 07x",
		"a hash for a number":        ":hset redisson_lock_token:{n} 1 1",
		"one's own hold, no number": ":hset n A 1\n:pexpire n 9000000\n:set " +
			"redisson_lock_token:{n} seven",
		"those who read":     ":hset n mode read B 1\n:pexpire n 9000000",
		"one who writes":     ":hset n mode write A:write 1 A 1\n:pexpire n 9000000",
		"text":               ":set n text",
		"a list":             ":rpush n A",
		"a hash":             ":hset n user bob",
		"a hash with a mode": ":hset n mode dark\n:pexpire n 9000000",
	} {
		t.Run(name, func(t *testing.T) {
			everywhere(t, func(t *testing.T, s *store) {
				s.play(is)
				before := s.state()
				s.play("number A 10 = conflict")
				if after := s.state(); after != before {
					t.Errorf("%s is %s now", before, after)
				}
			})
		})
	}
}

// An attempt that has to wait ignores the number. A lock without an expiry lasts for ever.
func TestFencedWaits(t *testing.T) {
	everywhere(t, func(t *testing.T, s *store) {
		s.play(`
			:hset n B 1
			number A 10 = wait for ever
			:pexpire n 9000000
			:set redisson_lock_token:{n} 7
			number A 10 = wait 9
			state = n[B:1] 9, redisson_lock_token:{n}=7 for ever
			:del n`)
		// An owner that is called mode is one all the same.
		s.number("mode")
		s.number("mode")
		s.play("number A 10 = wait 10")
	})
}

func TestFencedSlots(t *testing.T) {
	for name, good := range map[string]bool{
		"a": true, "{a}b": true, "a{b}c": true, "{a}{b}": true, "a{b}}": true,
		"a{b": false, "{}x": false, "a}b": false, "}": false,
	} {
		for _, k := range []backend.Kind{backend.Fenced, backend.Read, backend.Write} {
			err := checkSlots(name, kindOf(k).keys(name, "owner")...)
			if (err == nil) != good || err != nil && backend.KindOf(err) != backend.Refused {
				t.Errorf("%v, %q: %v", k, name, err)
			}
		}
	}
}

func TestParseGrant(t *testing.T) {
	const none = ""
	for _, c := range []struct {
		reply              any
		grant, fencedGrant string // none: an error
	}{
		{[]any{int64(1)}, "{true 1 0s 0}", none},
		{[]any{int64(7)}, "{true 7 0s 0}", none},
		{[]any{int64(1), "5"}, none, "{true 1 0s 5}"},
		{[]any{int64(2), "18446744073709551615"}, none, "{true 2 0s 18446744073709551615}"},
		{int64(-1), "{false 0 -1ms 0}", "{false 0 -1ms 0}"},
		{int64(0), "{false 0 0s 0}", "{false 0 0s 0}"},
		{int64(5), "{false 0 5ms 0}", "{false 0 5ms 0}"},
		{int64(-2), none, none}, {nil, none, none}, {"1", none, none}, {"OK", none, none},
		{int64(math.MinInt64), none, none},
		{true, none, none}, {1.0, none, none}, {[]any{}, none, none}, {[]any{int64(0)}, none, none},
		{[]any{int64(-1)}, none, none},
		{[]any{"1"}, none, none}, {[]any{nil}, none, none}, {[]any{int64(1), "0"}, none, none},
		{[]any{int64(1), ""}, none, none},
		{[]any{int64(1), "-1"}, none, none}, {[]any{int64(1), int64(5)}, none, none},
		{[]any{int64(0), "5"}, none, none},
		{[]any{nil, "5"}, none, none}, {[]any{int64(1), "5", "6"}, none, none},
		{[]any{int64(1), "18446744073709551616"}, none, none},
	} {
		check := func(what, want string, res backend.AcquireResult, err error) {
			if want != none && (err != nil || fmt.Sprint(res) != want) {
				t.Errorf("%s: %v is %v, %v; want %s", what, c.reply, res, err, want)
			}
			if want == none &&
				(err == nil || backend.KindOf(err) != backend.Unknown ||
					res != backend.AcquireResult{}) {
				t.Errorf("%s: %v is %v, %v; want an error of kind Unknown", what, c.reply, res, err)
			}
		}
		res, err := ParseGrant(c.reply)
		check("read or write", c.grant, res, err)
		res, err = ParseFenced(c.reply)
		check("fenced", c.fencedGrant, res, err)
	}
}
