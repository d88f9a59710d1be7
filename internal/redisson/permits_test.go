package redisson

import (
	"context"
	"errors"
	"fmt"
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
		return s.said(s.dialect.AcquirePermits(backend.AcquireRequest{Name: "n", Owner: owner, Lease: lease, Permits: x.count, Limit: x.limit}), ParsePermits)
	case "put":
		return say(s.store, s.dialect.ReleasePermits(backend.ReleaseRequest{Name: "n", Owner: owner, Permits: x.count}), ParseRelease)
	case "renew":
		return say(s.store, s.dialect.RenewPermits([]backend.RenewRequest{{Name: "n", Owner: owner, Lease: lease, Permits: x.count}}), parseRenewal)
	case "all":
		return say(s.store, s.dialect.ForceReleasePermits(backend.ForceReleaseRequest{Name: "n"}), ParseForceRelease)
	case "look":
		return s.looks(x)
	default:
		return s.redisson(x)
	}
}

// leaseOf is a little less than what the step says: so what is left of it is exact once it is rounded up, though the server
// rounds up to milliseconds when it ends.
func leaseOf(x permitStep) time.Duration { return time.Duration(x.lease)*unit - 10*time.Millisecond }

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
		for _, known := range []error{backend.ErrNoLimit, backend.ErrTooMany, errTooManyAtOnce} {
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
	return fmt.Sprintf("%d available, others for %s, has %d", res.Available, units(res.Remaining.Milliseconds()), res.Count)
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
			left = strconv.FormatInt((int64(z.Score)-now+unit.Milliseconds()-1)/unit.Milliseconds(), 10)
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
			return owner + strconv.Itoa(int(number[0])<<24+int(number[1])<<16+int(number[2])<<8+int(number[3]))
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
	for name, text := range map[string]string{
		"some of three": `
			get A 1 10 3 = count 1
			get B 2 20 3 = count 2
			state = 0 for ever, [A0:10 B0:20 B1:20] for ever
			get C 1 10 3 = wait 10
			look C 1 3 = 0 available, others for 20, has 0
			look B 2 3 = 0 available, others for 20, has 2
			look - 0 3 = 0 available, others for 20, has 0
			put A 1 = freed
			put A 1 = not held
			published = 2, 1
			get C 1 10 3 = count 1
			put B 2 = freed
			put C 1 = freed
			state = 3 for ever
			look B 2 3 = 3 available
			published = 2, 3`,
	} {
		t.Run(name, func(t *testing.T) {
			semaphores(t, func(t *testing.T, s semaphore) { s.play(text) })
		})
	}
}
