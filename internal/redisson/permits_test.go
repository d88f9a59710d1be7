package redisson

import (
	"context"
	"encoding/binary"
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

// A semaphore is that of the name n in a store. Its steps in words are
//
//	get OWNER COUNT LEASE LIMIT
//	put OWNER COUNT
//	renew OWNER COUNT LEASE
//	all
//	look OWNER COUNT LIMIT
//
// and those of Redisson's in redissonPermits.
type semaphore struct{ *store }

// semaphores runs a test on each kind of server.
func semaphores(t *testing.T, test func(t *testing.T, s semaphore)) {
	everywhere(t, func(t *testing.T, s *store) { test(t, semaphore{s}) })
}

// fresh returns the same without anything in it, for a test.
func (s semaphore) fresh(t *testing.T) semaphore {
	s.do("flushall")
	s.published()
	fresh := *s.store
	fresh.t = t
	return semaphore{&fresh}
}

// playEach plays texts, each on a semaphore of its own.
func playEach(t *testing.T, texts map[string]string) {
	semaphores(t, func(t *testing.T, s semaphore) {
		for name, text := range texts {
			t.Run(name, func(t *testing.T) { s.fresh(t).play(text) })
		}
	})
}

// A permitStep is a step in words.
type permitStep struct {
	do, owner           string
	count, lease, limit int
}

func parsePermitStep(line string) permitStep {
	words := append(strings.Fields(line), "", "", "", "", "")
	n := func(i int) int {
		n, err := strconv.Atoi(words[i])
		if err != nil && words[i] != "" {
			panic(line)
		}
		return n
	}
	x := permitStep{do: words[0], owner: words[1], count: n(2)}
	switch x.do {
	case "look":
		x.limit = n(3)
	default:
		x.lease, x.limit = n(3), n(4)
	}
	return x
}

// take carries out a step and words the answer.
func (s semaphore) take(x permitStep) string {
	s.t.Helper()
	lease, owner := leaseOf(x), holder(x.owner)
	switch x.do {
	case "get":
		return s.said(s.dialect.AcquirePermits(
			backend.AcquireRequest{Name: "n", Owner: owner, Lease: lease, Permits: x.count,
				Limit: x.limit}), ParsePermits)
	case "put":
		return say(s.store,
			s.dialect.ReleasePermits(
				backend.ReleaseRequest{Name: "n", Owner: owner, Permits: x.count}), ParseRelease)
	case "renew":
		return say(s.store,
			s.dialect.RenewPermits([]backend.RenewRequest{{Name: "n", Owner: owner, Lease: lease,
				Permits: x.count}}), parseRenewal)
	case "lose": // one of an owner's ids is lost, and counted as available
		s.do("zrem", ids("n"), holder(x.owner)+
			string(binary.BigEndian.AppendUint32(nil, uint32(math.MaxUint32-x.count))))
		s.do("incr", "n")
		return ""
	case "all":
		return say(s.store, s.dialect.ForceReleasePermits(backend.ForceReleaseRequest{Name: "n"}),
			ParseForceRelease)
	case "look":
		return s.looks(x)
	default:
		return s.redisson(x)
	}
}

// leaseOf is a little less than what the step says: so what is left of it is exact once it is
// rounded up, though the server rounds up to milliseconds when it ends.
func leaseOf(x permitStep) time.Duration {
	return time.Duration(x.lease)*unit - 10*time.Millisecond
}

// said is say for an answer that may be one of the errors about numbers of permits.
func (s semaphore) said(c Call, parse func(any) (backend.AcquireResult, error)) string {
	s.t.Helper()
	said := ""
	got := say(s.store, c, func(reply any) (backend.AcquireResult, error) {
		res, err := parse(reply)
		said = numberError(err)
		return res, err
	})
	if said != "" {
		return said
	}
	return got
}

// numberError words an error about a number of permits.
func numberError(err error) string {
	if backend.KindOf(err) == backend.Refused {
		for _, known := range []error{backend.ErrNoLimit, errTooManyAtOnce, backend.ErrTooMany} {
			if errors.Is(err, known) {
				return known.Error()
			}
		}
	}
	return ""
}

func (s semaphore) looks(x permitStep) string {
	s.t.Helper()
	owner := ""
	if x.owner != "-" {
		owner = holder(x.owner)
	}
	req := backend.LookRequest{Name: "n", Owner: owner, Permits: x.count, Limit: x.limit}
	reply, err := s.run(LookPermits(req))
	if errors.Is(err, backend.ErrConflict) && backend.KindOf(err) == backend.Refused {
		return "conflict"
	}
	if err != nil {
		return err.Error()
	}
	res, err := ParseLookPermits(req, reply)
	switch {
	case err != nil && numberError(err) != "":
		return numberError(err)
	case err != nil:
		return err.Error()
	case !res.Held:
		return fmt.Sprintf("%d available", res.Available)
	}
	return fmt.Sprintf("%d available, out %s, has %d", res.Available,
		units(res.Remaining.Milliseconds()), res.Count)
}

// state returns what there is, with the units for which it lasts yet.
func (s semaphore) state() string {
	s.t.Helper()
	var all []string
	ctx := context.Background()
	if n, err := s.client.Get(ctx, "n").Result(); err == nil {
		all = append(all, fmt.Sprintf("%s %s", n, units(s.do("pttl", "n").(int64))))
	}
	var out []string
	now := time.Now().UnixMilli()
	for _, z := range s.client.ZRangeWithScores(ctx, "{n}:timeout", 0, -1).Val() {
		left := "never"
		if z.Score != 922337203685477 {
			left = units(max(int64(z.Score)-now, 0))
		}
		out = append(out, called(z.Member.(string))+":"+left)
	}
	if len(out) > 0 {
		slices.Sort(out)
		all = append(all, fmt.Sprintf("%v %s", out, units(s.do("pttl", "{n}:timeout").(int64))))
	}
	return strings.Join(all, ", ")
}

// called returns what an id is called: the owner and a number, or the text that it begins with.
func called(id string) string {
	for _, owner := range []string{"A", "B", "C", "D"} {
		if number, ok := strings.CutPrefix(id, holder(owner)); ok && len(number) == 4 {
			return fmt.Sprint(owner, math.MaxUint32-binary.BigEndian.Uint32([]byte(number)))
		}
	}
	return strings.TrimRight(id, "_")
}

// pass lets units of time pass on the server.
func (s semaphore) pass(n int) {
	s.t.Helper()
	_, err := s.eval(`
for _, key in ipairs(redis.call('keys', '*')) do
    local left = redis.call('pttl', key);
    if (left >= 0) then
        redis.call('pexpire', key, left - ARGV[1]);
    end;
end;
local ids = redis.call('zrange', KEYS[1], 0, -1, 'withscores');
for i = 1, #ids, 2 do
    if (tonumber(ids[i + 1]) < 922337203685477) then
        redis.call('zincrby', KEYS[1], -ARGV[1], ids[i]);
    end;
end;`, []string{"{n}:timeout"}, strconv.FormatInt(int64(n)*unit.Milliseconds(), 10))
	if err != nil {
		s.t.Fatal(err)
	}
}

// play carries out lines as those of a store's play.
func (s semaphore) play(text string) {
	s.t.Helper()
	for line := range strings.Lines(text) {
		line, want, _ := strings.Cut(strings.TrimSpace(line), " = ")
		var got string
		switch {
		case line == "":
			continue
		case line[0] == ':':
			s.do(strings.Fields(line[1:])...)
		case line == "state":
			got = s.state()
		case line == "published":
			got = strings.ReplaceAll(s.published(), PermitsChannel("n")+" ", "")
		case strings.HasPrefix(line, "pass"):
			s.pass(parsePermitStep("pass - " + line[len("pass"):]).count)
		default:
			got = s.take(parsePermitStep(line))
		}
		if got != want {
			s.t.Fatalf("%s = %s\nwant %s, in\n%s", line, got, want, text)
		}
	}
}

func TestPermits(t *testing.T) {
	playEach(t, map[string]string{
		"some of three": `
			get A 1 10 3 = count 1
			get B 2 20 3 = count 2
			state = 0 for ever, [A0:10 B0:20 B1:20] for ever
			get C 1 10 3 = wait 10
			look C 1 3 = 0 available, out 20, has 0
			look B 2 3 = 0 available, out 20, has 2
			look - 0 3 = 0 available, out 20, has 0
			published = 2
			put A 1 = freed
			put A 1 = not held
			published = 1
			get C 1 10 3 = count 1
			put B 2 = freed
			put C 1 = freed
			state = 3 for ever
			look B 2 3 = 3 available
			published = 2, 3`,
		"all at once or none": `
			get A 1 10 3 = count 1
			get B 3 10 3 = wait 10
			state = 2 for ever, [A0:10] for ever
			get C 2 10 3 = count 2
			put A 1 = freed
			get B 3 10 3 = wait 10
			put C 2 = freed
			get B 3 10 3 = count 3
			state = 0 for ever, [B0:10 B1:10 B2:10] for ever`,
		"repeated": `
			get A 2 10 3 = count 2
			get A 2 30 3 = count 2
			get A 2 20 3 = count 2
			state = 1 for ever, [A0:20 A1:20] for ever
			published = 1`,
		"renewed": `
			get A 2 10 3 = count 2
			get B 1 10 3 = count 1
			renew A 2 30 = held
			state = 0 for ever, [A0:30 A1:30 B0:10] for ever
			renew A 2 5 = held
			renew C 1 5 = lost
			state = 0 for ever, [A0:5 A1:5 B0:10] for ever
			look A 2 3 = 0 available, out 10, has 2
			published = 1`,
		"too many, and nobody knows": `
			get A 1 10 0 = the number of permits is not known
			look A 1 0 = the number of permits is not known
			look A 1 3 = 3 available
			put A 1 = not held
			renew A 1 10 = lost
			all = was free
			get A 4 10 3 = more permits than there are
			state
			get A 2 10 3 = count 2
			get B 4 10 3 = more permits than there are
			get B 4 10 0 = more permits than there are
			get B 2 10 0 = wait 10
			get B 1 10 0 = count 1
			state = 0 for ever, [A0:10 A1:10 B0:10] for ever
			look B 1 0 = 0 available, out 10, has 1
			put A 2 = freed
			look B 1 0 = 2 available, out 10, has 1
			published = 1, 2`,
		"far too many": `
			get A 10001 10 10001 = more permits than there are: at most 10000 can be acquired at once
			get A 2000000000 10 0 = the number of permits is not known
			state
			get A 1 10 9223372036854775807 = count 1
			get B 1 10 9223372036854775807 = count 1
			state = 2147483645 for ever, [A0:10 B0:10] for ever
			look A 1 0 = 2147483645 available, out 10, has 1
			look A 1 9223372036854775807 = 9223372036854775805 available, out 10, has 1
			published = 2147483646`,
		"what is over": `
			get A 2 10 3 = count 2
			get B 1 20 3 = count 1
			published = 1
			pass 10
			look A 2 3 = 2 available, out 10, has 0
			look B 1 0 = 2 available, out 10, has 1
			state = 0 for ever, [A0:0 A1:0 B0:10] for ever
			get C 3 10 3 = wait 10
			published = 2
			state = 2 for ever, [B0:10] for ever
			get C 3 10 3 = wait 10
			published
			pass 10
			get C 3 10 3 = count 3
			state = 0 for ever, [C0:10 C1:10 C2:10] for ever
			published = 0`,
		"over before its renewal": `
			get A 2 10 3 = count 2
			published = 1
			pass 10
			renew A 2 10 = lost
			state = 3 for ever
			published = 3
			get A 2 10 3 = count 2
			pass 10
			put A 2 = not held
			state = 3 for ever
			published = 3
			get A 2 10 3 = count 2
			pass 10
			get A 2 10 3 = count 2
			state = 1 for ever, [A0:10 A1:10] for ever
			pass 10
			all = was free
			state = 3 for ever
			published = 1, 3`,
		"others' are over": `
			get A 1 10 3 = count 1
			get B 1 30 3 = count 1
			pass 10
			renew B 1 30 = held
			state = 2 for ever, [B0:30] for ever
			published = 2, 2
			get A 1 10 3 = count 1
			pass 10
			put B 1 = freed
			state = 3 for ever
			published = 3`,
		"forced": `
			get A 2 10 3 = count 2
			get B 1 10 3 = count 1
			published = 1
			all = released
			state = 3 for ever
			published = 3
			all = was free
			put A 2 = not held
			renew B 1 10 = lost
			published`,
		"another number": `
			get A 1 10 5 = count 1
			get A 3 20 5 = count 3
			state = 2 for ever, [A0:20 A1:20 A2:20] for ever
			get A 2 10 5 = count 2
			state = 3 for ever, [A0:10 A1:10] for ever
			published = 4, 2, 3
			get B 3 10 5 = count 3
			get A 3 10 5 = wait 10
			state = 2 for ever, [B0:10 B1:10 B2:10] for ever
			published = 2
			renew B 2 10 = lost
			state = 5 for ever
			published = 5
			get A 4 10 5 = count 4
			put A 3 = not held
			state = 5 for ever
			published = 5
			get A 1 10 5 = count 1
			look A 3 5 = 4 available, out 10, has 1
			renew A 2 10 = lost
			state = 5 for ever
			published = 5`,
		"one is missing": `
			get A 3 10 5 = count 3
			published = 2
			lose A 0
			look A 3 5 = 3 available, out 10, has 2
			renew A 3 10 = lost
			published = 5
			state = 5 for ever
			get A 3 10 5 = count 3
			lose A 2
			get A 3 10 5 = count 3
			state = 2 for ever, [A0:10 A1:10 A2:10] for ever
			published = 2
			lose A 1
			put A 3 = not held
			state = 5 for ever
			published = 5`,
		"more of them": `
			get A 1 10 1 = count 1
			get B 1 10 1 = wait 10
			get B 1 10 2 = count 1
			state = 0 for ever, [A0:10 B0:10] for ever
			get C 1 10 4 = count 1
			state = 1 for ever, [A0:10 B0:10 C0:10] for ever
			published = 0, 0, 1`,
		"fewer of them": `
			get A 3 10 4 = count 3
			get B 1 10 2 = wait 10
			look B 1 2 = 0 available, out 10, has 0
			state = 1 for ever, [A0:10 A1:10 A2:10] for ever
			get A 3 10 2 = more permits than there are
			get A 3 10 3 = count 3
			get C 1 10 4 = count 1
			get C 1 10 2 = count 1
			state = -2 for ever, [A0:10 A1:10 A2:10 C0:10] for ever
			get B 1 10 2 = wait 10
			published = 1, 0
			put A 3 = freed
			put C 1 = freed
			published = 1, 2
			get B 1 10 0 = count 1
			state = 1 for ever, [B0:10] for ever
			get D 1 20 4 = count 1
			published = 2`,
		"others have miscounted": `
			get A 1 10 3 = count 1
			:set n 100
			get B 2 10 3 = count 2
			state = 0 for ever, [A0:10 B0:10 B1:10] for ever
			:set n -7
			put B 2 = freed
			state = -5 for ever, [A0:10] for ever
			get B 2 10 3 = count 2
			put A 1 = freed
			state = 1 for ever, [B0:10 B1:10] for ever
			published = 2, 0, 0, 1`,
		"the number is lost": `
			get A 1 10 3 = count 1
			published = 2
			:del n
			get B 1 10 0 = the number of permits is not known
			get A 1 20 0 = the number of permits is not known
			renew A 1 30 = held
			state = [A0:30] for ever
			get B 1 10 3 = count 1
			published = 1
			:del n
			put A 1 = freed
			state = [B0:10] for ever
			published = 0
			pass 10
			get B 1 10 0 = the number of permits is not known
			state = [B0:0] for ever`,
		"the ids are lost": `
			get A 2 10 3 = count 2
			published = 1
			:del {n}:timeout
			renew A 2 10 = lost
			look A 2 3 = 3 available
			get B 3 10 3 = count 3
			state = 0 for ever, [B0:10 B1:10 B2:10] for ever
			published = 0`,
		"it has an expiry": `
			:set n 3
			:pexpire n 50000000
			get A 1 10 0 = count 1
			state = 2 50, [A0:10] 50
			put A 1 = freed
			state = 3 50
			pass 10
			get A 1 90 5 = count 1
			state = 4 40, [A0:90] 40
			:persist n
			renew A 1 90 = held
			state = 4 for ever, [A0:90] for ever
			:pexpire n 20000000
			renew A 1 90 = held
			state = 4 20, [A0:90] 20
			published = 3, 4`,
	})
}

// Every step refuses a key that isn't a semaphore, and leaves it alone.
func TestPermitsConflict(t *testing.T) {
	things := map[string]string{
		"a lock":                   ":hset n A 1\n:pexpire n 9000000",
		"those who read":           ":hset n mode read A 1\n:pexpire n 9000000",
		"text":                     ":set n text",
		"a fraction":               ":set n 7.5",
		"a large number":           ":set n 1234567890123456",
		"a list":                   ":rpush n 3",
		"ids that are none":        ":set {n}:timeout 3",
		"ids that are none, and 3": ":set {n}:timeout 3\n:set n 3",
		"ids that are a list":      ":rpush {n}:timeout 3\n:set n 3",
	}
	semaphores(t, func(t *testing.T, s semaphore) {
		for name, is := range things {
			t.Run(name, func(t *testing.T) {
				s := s.fresh(t)
				s.play(is)
				before := s.store.state()
				for _, step := range []string{"get A 1 10 3", "get A 1 10 0", "put A 1",
					"renew A 1 10", "all", "look A 1 3", "look - 0 0"} {
					s.play(step + " = conflict")
				}
				if after := s.store.state(); after != before {
					t.Errorf("%s is %s now", before, after)
				}
				s.play("published")
			})
		}
	})
}

// A semaphore is nothing that other kinds touch, also when nobody has any of its permits.
func TestPermitsAreNoLock(t *testing.T) {
	semaphores(t, func(t *testing.T, s semaphore) {
		for _, is := range []string{"get A 1 10 3 = count 1", "put A 1 = freed"} {
			s.play(is)
			before := s.state()
			for kind := range kinds {
				k := kindOf(backend.Kind(kind))
				if k == nil || backend.Kind(kind) == backend.Permits {
					continue
				}
				owner := k.called("A")
				for what, call := range map[string]Call{
					"acquire": k.acquire(s.dialect, backend.AcquireRequest{
						Name: "n", Owner: owner, Lease: unit, Place: unit,
					}),
					"release": k.release(s.dialect, backend.ReleaseRequest{
						Name: "n", Owner: owner, Lease: unit,
					}),
					"renew": k.renew(s.dialect, backend.RenewRequest{
						Name: "n", Owner: owner, Lease: unit,
					}),
					"force": k.force(s.dialect, backend.ForceReleaseRequest{Name: "n"}),
				} {
					if _, err := s.run(call); !errors.Is(err, backend.ErrConflict) ||
						backend.KindOf(err) != backend.Refused {
						t.Errorf("%v, %s: %v", backend.Kind(kind), what, err)
					}
				}
			}
			if after := s.state(); after != before {
				t.Errorf("%s is %s now", before, after)
			}
		}
	})
}

// Thousands that are over, or are taken at once, are no more than Lua can take.
func TestThousandsOfPermits(t *testing.T) {
	t.Parallel()
	realServers(t, func(t *testing.T, plain *store) {
		s := semaphore{plain}
		const many = 9_000
		s.play(fmt.Sprintf(`
			get A %[1]d 10 %[1]d = count %[1]d
			renew A %[1]d 20 = held
			get B 1 10 %[1]d = wait 20
			put A %[1]d = freed
			look A %[1]d 0 = %[1]d available
			get A %[1]d 10 %[1]d = count %[1]d
			pass 10
			get B 1 10 %[1]d = count 1
			look A %[1]d 0 = %[2]d available, out 10, has 0
			published = 0, %[1]d, %[2]d`, many, many-1))
	})
}
