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

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/internal/test/testservers"
)

// unit is what leases, and time that passes, are whole multiples of in these tests. However slow
// the machine is, it is not over before the test: so what is left of a time, rounded up to a unit,
// is exact.
const unit = 1000 * time.Second

// A store is a server on which scripts are tried, by way of a client that knows nothing of them.
type store struct {
	t        testing.TB
	client   *redis.Client
	messages *redis.PubSub
	dialect  Dialect
}

// everywhere runs a test on each kind of server.
func everywhere(t *testing.T, test func(t *testing.T, s *store)) {
	for name, start := range servers {
		t.Run(name, func(t *testing.T) { test(t, connect(t, start(t))) })
	}
}

var servers = map[string]func(testing.TB) (addr string){
	"redis":     func(t testing.TB) string { return testservers.Redis(t).Addr },
	"valkey":    func(t testing.TB) string { return testservers.Valkey(t).Addr },
	"miniredis": func(t testing.TB) string { return miniredis.RunT(t).Addr() },
}

func connect(t testing.TB, addr string) *store {
	client := redis.NewClient(&redis.Options{Addr: addr, Protocol: 2, DisableIdentity: true,
		MaxRetries: -1, ReadTimeout: testservers.Patience})
	messages := client.PSubscribe(t.Context(), "*")
	t.Cleanup(func() {
		messages.Close()
		client.Close()
	})
	if _, err := messages.Receive(t.Context()); err != nil {
		t.Fatal(err)
	}
	return &store{t: t, client: client, messages: messages}
}

// run carries out a call and returns the reply as sessions give it to the parsers, or an error with
// its kind.
func (s *store) run(c Call) (any, error) {
	reply, err := s.eval(c.Script.Text, c.Keys, c.Args...)
	for err == nil && reply == more {
		reply, err = s.eval(c.Script.Text, c.Keys, c.Args...)
	}
	if err != nil {
		err = ServerError(err.Error(), err)
	}
	return reply, err
}

func (s *store) eval(text string, keys []string, args ...string) (any, error) {
	words := make([]any, len(args))
	for i, arg := range args {
		words[i] = arg
	}
	reply, err := s.client.Eval(context.Background(), text, keys, words...).Result()
	if err == redis.Nil {
		return nil, nil
	}
	return reply, err
}

// do is a plain command.
func (s *store) do(words ...string) any {
	s.t.Helper()
	args := make([]any, len(words))
	for i, word := range words {
		args[i] = word
	}
	reply, err := s.client.Do(context.Background(), args...).Result()
	if err != nil && err != redis.Nil {
		s.t.Fatalf("%q: %v", words, err)
	}
	return reply
}

// published returns what has been published since it was last asked for, in the order of
// publication.
func (s *store) published() string {
	s.t.Helper()
	const end = "that was all"
	s.do("publish", end, "")
	var all []string
	for {
		m, err := s.messages.ReceiveMessage(context.Background())
		if err != nil {
			s.t.Fatal(err)
		}
		if m.Channel == end {
			return strings.Join(all, ", ")
		}
		all = append(all, m.Channel+" "+m.Payload)
	}
}

// state returns all that there is, with the units for which it lasts yet.
func (s *store) state() string {
	s.t.Helper()
	keys := s.client.Keys(context.Background(), "*").Val()
	slices.Sort(keys)
	var all []string
	for _, key := range keys {
		text := key
		switch s.client.Type(context.Background(), key).Val() {
		case "hash":
			fields := s.client.HGetAll(context.Background(), key).Val()
			if key == notes("n") {
				for field := range fields {
					fields[field] = "" // its times are not exact
				}
			}
			text += strings.TrimPrefix(fmt.Sprint(fields), "map")
		case "list":
			text += fmt.Sprint(s.client.LRange(context.Background(), key, 0, -1).Val())
		default:
			if value := s.client.Get(context.Background(), key).Val(); value != "1" {
				text += "=" + value
			}
		}
		all = append(all, text+" "+units(s.do("pttl", key).(int64)))
	}
	return strings.Join(all, ", ")
}

// units words a PTTL.
func units(ms int64) string {
	if ms < 0 {
		return "for ever"
	}
	n := int64(unit / time.Millisecond)
	return strconv.FormatInt((ms+n-1)/n, 10)
}

// pass lets units of time pass on the server, for the lock n.
func (s *store) pass(n int) {
	s.t.Helper()
	_, err := s.eval(`
for _, key in ipairs(redis.call('keys', '*')) do
    local left = redis.call('pttl', key);
    if (left >= 0) then
        redis.call('pexpire', key, left - ARGV[1]);
    end;
end;
local notes = redis.call('hgetall', KEYS[1]);
for i = 1, #notes, 2 do
    local since, ends, place = string.match(notes[i + 1], '^(%S+) (%S+) (%S+)$');
    local by = 1000 * ARGV[1];
    local moved = string.format('%.0f %.0f %s', since - by, ends - by, place);
    redis.call('hset', KEYS[1], notes[i], moved);
end;`, []string{notes("n")}, strconv.FormatInt(int64(n)*int64(unit/time.Millisecond), 10))
	if err != nil {
		s.t.Fatal(err)
	}
}

// A step is one of the lock n, in words: what is done, by whom, and times in units.
type step struct {
	do, owner            string
	lease, waited, place int
}

func parseStep(line string) step {
	words := append(strings.Fields(line), "", "")
	n := func(i int) int {
		if i >= len(words) || words[i] == "" {
			return 0
		}
		n, err := strconv.Atoi(words[i])
		if err != nil {
			panic(line)
		}
		return n
	}
	return step{words[0], words[1], n(2), n(3), n(4)}
}

// take carries out a step and words the answer.
func (s *store) take(x step) string {
	s.t.Helper()
	lease := time.Duration(x.lease) * unit
	acquire := backend.AcquireRequest{Name: "n", Owner: x.owner, Lease: lease,
		Waited: time.Duration(x.waited) * unit, Place: time.Duration(x.place) * unit}
	release := backend.ReleaseRequest{Name: "n", Owner: x.owner, Lease: lease}
	renew := backend.RenewRequest{Name: "n", Owner: x.owner, Lease: lease}
	force, look := backend.ForceReleaseRequest{Name: "n"},
		backend.LookRequest{Name: "n", Owner: x.owner}
	switch x.do {
	case "read":
		return say(s, AcquireRead(acquire), ParseGrant)
	case "write":
		return say(s, AcquireWrite(acquire), ParseGrant)
	case "number":
		return say(s, AcquireFenced(acquire), ParseFenced)
	case "unread":
		return say(s, s.dialect.ReleaseRead(release), ParseRelease)
	case "unwrite":
		return say(s, s.dialect.ReleaseWrite(release), ParseRelease)
	case "reread":
		return say(s, RenewReads([]backend.RenewRequest{renew}), parseRenewal)
	case "rewrite":
		return say(s, RenewWrites([]backend.RenewRequest{renew}), parseRenewal)
	case "noreads":
		return say(s, s.dialect.ForceReleaseRead(force), ParseForceRelease)
	case "nowrites":
		return say(s, s.dialect.ForceReleaseWrite(force), ParseForceRelease)
	case "whoreads":
		return say(s, LookRead(look), ParseLookRW)
	case "whowrites":
		return say(s, LookWrite(look), ParseLookRW)
	case "pass":
		s.pass(x.lease)
		return "ok"
	default:
		return s.redisson(x)
	}
}

// say carries out a call and words what the parser makes of the reply.
func say[T any](s *store, c Call, parse func(any) (T, error)) string {
	reply, err := s.run(c)
	var res any
	if err == nil {
		res, err = parse(reply)
	}
	switch {
	case errors.Is(err, backend.ErrConflict) && backend.KindOf(err) == backend.Refused:
		return "conflict"
	case err != nil:
		return fmt.Sprintf("kind %d: %v", backend.KindOf(err), err)
	}
	return word(res)
}

func word(res any) string {
	switch res := res.(type) {
	case backend.AcquireResult:
		switch {
		case res.Acquired && res.Token > 0:
			return fmt.Sprintf("count %d, number %d", res.Count, res.Token)
		case res.Acquired:
			return fmt.Sprintf("count %d", res.Count)
		}
		return "wait " + units(res.Remaining.Milliseconds())
	case backend.ReleaseResult:
		return res.Outcome.String()
	case backend.RenewResult:
		return map[bool]string{true: "held", false: "lost"}[res.Held]
	case backend.ForceReleaseResult:
		return map[bool]string{true: "released", false: "was free"}[res.Released]
	default:
		look := res.(backend.LookResult)
		if look == (backend.LookResult{}) {
			return "free"
		}
		return fmt.Sprintf("count %d for %s", look.Count, units(look.Remaining.Milliseconds()))
	}
}

// play carries out lines: commands of the server, which begin with a colon; steps, with what they
// are answered behind an equals sign; and "state" and "published", with what there is. A line
// without an equals sign has "" behind it, or is a command.
func (s *store) play(text string) {
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
			got = s.published()
		case strings.HasPrefix(line, "pass"):
			s.pass(parseStep("pass - " + line[len("pass"):]).lease)
		default:
			got = s.take(parseStep(line))
		}
		if got != want {
			s.t.Fatalf("%s = %s\nwant %s, in\n%s", line, got, want, text)
		}
	}
}

// The states of a lock that Redisson's would have, too, but for the holds of a reader, which are
// one, and the expiry of a writer's, which doesn't add up.
func TestRWStates(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"readers": `
			read A 10 = count 1
			read A 5 = count 1
			read B 20 = count 1
			state = n[A:1 B:1 mode:read] 20, {n}:A:rwlock_timeout:1 10, {n}:B:rwlock_timeout:1 20
			write C 10 = wait 20
			whoreads A = count 1 for 20
			whoreads C = count 0 for 20
			whowrites A = free
			unread B = freed
			published
			state = n[A:1 mode:read] 10, {n}:A:rwlock_timeout:1 10
			unread B = not held
			unread A = freed
			published = redisson_rwlock:{n} 0
			state
			unread A = not held
			published`,
		"a writer": `
			write A 10 = count 1
			write A 20 = count 2
			write A 5 = count 3
			state = n[A:write:3 mode:write] 20
			whowrites A = count 3 for 20
			whowrites B = count 0 for 20
			whoreads A = free
			write B 10 = wait 20
			read B 10 = wait 20
			unwrite A 30 = holds left
			state = n[A:write:2 mode:write] 30
			unwrite B 10 = not held
			unwrite A 10 = holds left
			state = n[A:write:1 mode:write] 30
			published
			unwrite A 10 = freed
			published = redisson_rwlock:{n} 1
			state
			unwrite A 10 = not held
			published`,
		"reading while writing": `
			write A 10 = count 1
			read A 20 = count 1
			state = n[A:1 A:write:1 mode:write] 20, {n}:A:rwlock_timeout:1 20
			whoreads A = count 1 for 20
			whoreads B = count 0 for 20
			whowrites A = count 1 for 20
			read B 10 = wait 20
			unread A = freed
			published
			state = n[A:write:1 mode:write] 20
			unread A = not held
			unwrite A 10 = freed
			state`,
		"going on to read": `
			write A 20 = count 1
			read A 10 = count 1
			unwrite A 10 = freed
			published = redisson_rwlock:{n} 1
			state = n[A:1 mode:read] 10, {n}:A:rwlock_timeout:1 10
			read B 5 = count 1
			write A 10 = wait 10
			unread A = freed
			state = n[B:1 mode:read] 5, {n}:B:rwlock_timeout:1 5`,
		"the read under a write is over": `
			read A 10 = count 1
			unread A = freed
			write A 30 = count 1
			read A 10 = count 1
			pass 20
			published = redisson_rwlock:{n} 0
			state = n[A:1 A:write:1 mode:write] 10
			whoreads A = free
			whoreads B = free
			whoreads A:write = free
			whowrites B = count 0 for 10
			unwrite A 10 = freed
			published = redisson_rwlock:{n} 1
			state`,
		"nobody gets from reading to writing": `
			read A 10 = count 1
			write A 10 = wait 10
			state = n[A:1 mode:read] 10, {n}:A:rwlock_timeout:1 10`,
		"renewals": `
			reread A 10 = lost
			rewrite A 10 = lost
			read A 10 = count 1
			read B 20 = count 1
			reread A 15 = held
			state = n[A:1 B:1 mode:read] 20, {n}:A:rwlock_timeout:1 15, {n}:B:rwlock_timeout:1 20
			reread A 5 = held
			reread A 30 = held
			reread C 40 = lost
			rewrite A 40 = lost
			state = n[A:1 B:1 mode:read] 30, {n}:A:rwlock_timeout:1 30, {n}:B:rwlock_timeout:1 20
			unread A = freed
			unread B = freed
			write A 10 = count 1
			rewrite A 20 = held
			rewrite A 5 = held
			rewrite B 30 = lost
			reread A 30 = lost
			state = n[A:write:1 mode:write] 20`,
		"a dead reader": `
			read dead 10 = count 1
			read A 30 = count 1
			pass 15
			state = n[A:1 dead:1 mode:read] 15, {n}:A:rwlock_timeout:1 15
			reread A 30 = held
			unread A = freed
			published = redisson_rwlock:{n} 0
			state`,
		"a dead reader outlives a live one": `
			read dead 20 = count 1
			read A 30 = count 1
			unread A = freed
			published
			state = n[dead:1 mode:read] 20, {n}:dead:rwlock_timeout:1 20`,
		"a reader that comes back too late": `
			read late 10 = count 1
			read A 30 = count 1
			pass 15
			whoreads late = count 0 for 15
			reread late 10 = lost
			state = n[A:1 late:1 mode:read] 15, {n}:A:rwlock_timeout:1 15
			read late 20 = count 1
			state = n[A:1 late:1 mode:read] 20, {n}:A:rwlock_timeout:1 15, {n}:late:rwlock_timeout:1 20
			whoreads late = count 1 for 20
			unread A = freed
			read A 60 = count 1
			pass 21
			unread late = not held
			state = n[A:1 mode:read] 39, {n}:A:rwlock_timeout:1 39
			published
			read late 10 = count 1
			pass 11
			unread A = freed
			published = redisson_rwlock:{n} 0
			unread late = not held
			state`,
		"a late reader is barred as a new one is": `
			read late 10 = count 1
			read A 30 = count 1
			write W 10 0 40 = wait 30
			read late 10 = count 1
			pass 15
			read late 10 = wait 25
			unread A = freed
			state = distsync_rwlock_notes:{n}[W:write:] 25`,
		"readers are forced": `
			noreads = was free
			read A 10 = count 1
			read B 10 = count 1
			nowrites = was free
			noreads = released
			published = redisson_rwlock:{n} 0
			state
			noreads = was free
			published`,
		"a writer is forced": `
			nowrites = was free
			write A 10 = count 1
			write A 10 = count 2
			read A 10 = count 1
			write B 10 0 5 = wait 10
			noreads = was free
			nowrites = released
			published = redisson_rwlock:{n} 1
			state = distsync_rwlock_notes:{n}[B:write:] 5
			nowrites = was free
			published`,
		"without an expiry": `
			:hset n mode read A 1 B 2
			read A 10 = count 1
			state = n[A:1 B:2 mode:read] 10, {n}:A:rwlock_timeout:1 10
			:persist n
			write C 10 = wait for ever
			whoreads A = count 1 for for ever
			reread A 10 = held
			state = n[A:1 B:2 mode:read] 10, {n}:A:rwlock_timeout:1 10
			:persist n
			unread A = freed
			state`,
		"a count that nobody has counted": `
			:hset n mode read B 1000000000000
			:pexpire n 9000000
			read A 10 = count 1
			unread A = freed
			state
			:hset n mode read B 1000000000000
			:pexpire n 9000000
			noreads = released
			state`,
		"owners that look like something else": `
			read mode 10 = count 1
			read A:write 10 = count 1
			read A:write: 10 = count 1
			state = n[A:write::1 A:write:::1 mode:read mode::1] 10, {n}:A:write:::rwlock_timeout:1 10, {n}:A:write::rwlock_timeout:1 10, {n}:mode::rwlock_timeout:1 10
			reread mode 10 = held
			whoreads A:write = count 1 for 10
			unread mode = freed
			unread A:write = freed
			unread A = not held
			unread A:write: = freed
			state
			write A 10 = count 1
			unread A:write = not held
			rewrite mode 10 = lost
			unwrite A 10 = freed
			state`,
	} {
		t.Run(name, func(t *testing.T) {
			everywhere(t, func(t *testing.T, s *store) { s.play(text) })
		})
	}
}

func TestNotes(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"who comes later waits": `
			read A 20 = count 1
			write W 10 0 5 = wait 20
			state = distsync_rwlock_notes:{n}[W:write:] 5, n[A:1 mode:read] 20, {n}:A:rwlock_timeout:1 20
			read B 10 = wait 5
			unread A = freed
			read B 10 = wait 5
			read B 10 1 = count 1
			write W 10 2 5 = wait 10
			read C 10 1 = wait 5
			read C 10 3 = count 1
			published = redisson_rwlock:{n} 0`,
		"who writes leaves no note": `
			write A 10 0 5 = count 1
			write A 10 0 5 = count 2
			state = n[A:write:2 mode:write] 10
			write W 10 = wait 10
			state = n[A:write:2 mode:write] 10
			write W 10 0 5 = wait 10
			unwrite A 10 = holds left
			unwrite A 10 = freed
			write W 10 0 5 = count 1
			state = n[W:write:1 mode:write] 10
			unwrite W 10 = freed
			state`,
		"holders don't wait": `
			read A 20 = count 1
			write W 10 9 5 = wait 20
			read A 30 = count 1
			state = distsync_rwlock_notes:{n}[W:write:] 5, n[A:1 mode:read] 30, {n}:A:rwlock_timeout:1 30
			unread A = freed
			write A 10 = count 1
			write W 10 9 5 = wait 10
			read A 10 = count 1`,
		"one who writes is waited for, not a note": `
			write A 20 = count 1
			write W 10 9 5 = wait 20
			read B 10 = wait 20`,
		"giving up": `
			read A 20 = count 1
			write W 10 0 5 = wait 20
			unwrite V 10 = not held
			published
			unwrite W 10 = not held
			published = redisson_rwlock:{n} 1
			read B 10 = count 1
			unwrite W 10 = not held
			published`,
		"the earliest arrival counts": `
			read A 20 = count 1
			write W 10 8 5 = wait 20
			write W 10 1 5 = wait 20
			read B 10 7 = wait 5
			read B 10 9 = count 1`,
		"a note ends": `
			read A 20 = count 1
			write W 10 0 5 = wait 20
			write V 10 9 3 = wait 20
			pass 2
			read B 10 = wait 3
			read B 10 5 = wait 1
			pass 2
			read B 10 = wait 1
			read B 10 5 = count 1
			state = distsync_rwlock_notes:{n}[V:write: W:write:] 1, n[A:1 B:1 mode:read] 16, {n}:A:rwlock_timeout:1 16, {n}:B:rwlock_timeout:1 10
			write W 10 0 5 = wait 16
			state = distsync_rwlock_notes:{n}[W:write:] 5, n[A:1 B:1 mode:read] 16, {n}:A:rwlock_timeout:1 16, {n}:B:rwlock_timeout:1 10
			pass 6
			state = n[A:1 B:1 mode:read] 10, {n}:A:rwlock_timeout:1 10, {n}:B:rwlock_timeout:1 4
			read C 10 = count 1`,
		"a note that has ended is made anew": `
			read A 20 = count 1
			write W 10 8 2 = wait 20
			write V 10 0 9 = wait 20
			pass 3
			write W 10 1 2 = wait 17
			read B 10 2 = wait 6
			read B 10 4 = count 1`,
		"before the clock was put back": `
			read A 90 = count 1
			write W 10 0 5 = wait 90
			pass -50
			read B 10 = count 1
			write W 10 0 5 = wait 140
			read C 10 = wait 5
			pass 6
			read C 10 = count 1`,
		"what is no note": `
			:hset distsync_rwlock_notes:{n} V:write junk
			:pexpire distsync_rwlock_notes:{n} 1000000
			read A 20 = count 1
			write W 10 0 5 = wait 20
			state = distsync_rwlock_notes:{n}[W:write:] 5, n[A:1 mode:read] 20, {n}:A:rwlock_timeout:1 20`,
	} {
		t.Run(name, func(t *testing.T) {
			everywhere(t, func(t *testing.T, s *store) { s.play(text) })
		})
	}
}

// A reader that a note keeps out is told at least a millisecond: zero would be read as a lock that
// ends now.
func TestNoteNeverAnswersZero(t *testing.T) {
	everywhere(t, func(t *testing.T, s *store) {
		s.play("read A 20 = count 1")
		req := backend.AcquireRequest{Name: "n", Owner: "W", Lease: time.Second,
			Place: time.Nanosecond}
		if c := AcquireWrite(req); c.Args[3] != "1" {
			t.Errorf("a place of 1 ns is sent as %s", c.Args[3])
		}
		req.Place = 50 * time.Millisecond
		if _, err := s.run(AcquireWrite(req)); err != nil {
			t.Fatal(err)
		}
		testservers.Until(t, "the note ends", func() bool {
			reply, err := s.run(AcquireRead(backend.AcquireRequest{Name: "n", Owner: "B",
				Lease: time.Second}))
			if err != nil {
				t.Fatal(err)
			}
			res, err := ParseGrant(reply)
			if err != nil || !res.Acquired && (res.Remaining < time.Millisecond ||
				res.Remaining > req.Place) {
				t.Fatal(res, err)
			}
			return res.Acquired
		})
	})
}

// Every step refuses a key that isn't a read-write lock, and leaves it alone.
func TestRWConflicts(t *testing.T) {
	t.Parallel()
	steps := []string{"read A 10 0 5", "write A 10 0 5", "unread A", "unwrite A 10", "reread A 10",
		"rewrite A 10", "whoreads A", "whowrites A"}
	for name, c := range map[string]struct {
		is      string
		refused []string
	}{
		"a plain lock": {":hset n B 1\n:pexpire n 9000000",
			append(steps, "noreads", "nowrites")},
		"one's own plain lock": {":hset n A 1\n:pexpire n 9000000",
			append(steps, "noreads", "nowrites")},
		"text": {":set n text", append(steps, "noreads", "nowrites")},
		"a list": {":rpush n mode read",
			append(steps, "noreads", "nowrites")},
		"a hash": {":hset n user bob", append(steps, "noreads", "nowrites")},
		"a hash with a mode": {":hset n mode dark user bob",
			append(steps, "noreads", "nowrites")},
		"a mode and nothing": {":hset n mode read",
			append(steps, "noreads", "nowrites")},
		"a mode and no holds": {":hset n mode write user bob",
			append(steps, "noreads", "nowrites")},
		"with an expiry": {":hset n mode read user bob\n:pexpire n 9000000",
			[]string{"read A 10", "noreads"}},
		"a lock for ever, to be forced": {":hset n mode read B 1", []string{"noreads"}},
	} {
		t.Run(name, func(t *testing.T) {
			everywhere(t, func(t *testing.T, s *store) {
				s.play(c.is)
				before := s.state()
				for _, step := range c.refused {
					s.play(step + " = conflict")
				}
				if after := s.state(); after != before {
					t.Errorf("%s is %s now", before, after)
				}
				s.play("published")
			})
		})
	}
}

// A key of another type where notes are left is found before anything is written.
func TestNotesConflict(t *testing.T) {
	everywhere(t, func(t *testing.T, s *store) {
		s.play(`
			:set distsync_rwlock_notes:{n} text
			read A 10 = conflict
			write A 10 = conflict
			unwrite A 10 = conflict
			state = distsync_rwlock_notes:{n}=text for ever
			:del distsync_rwlock_notes:{n}
			write B 10 = count 1
			:set distsync_rwlock_notes:{n} text
			write A 10 0 5 = conflict
			unwrite A 10 = conflict
			write A 10 = wait 10
			unwrite B 10 = freed
			state = distsync_rwlock_notes:{n}=text for ever`)
	})
}
