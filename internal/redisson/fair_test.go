package redisson

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed951563bd/distsync/backend"
)

// A lineStore is the fair lock of the name n in a store. Its steps in words are
//
//	lock OWNER LEASE [PLACE]
//	relock OWNER LEASE
//	late OWNER LEASE PLACE
//	keep OWNER,OWNER PLACE
//	unlock OWNER LEASE
//	renew OWNER LEASE
//	force
//	look OWNER
//
// and those of Redisson's in redissonFair. Times are in units. The scripts are told what time it
// is. What they do for a second, three or three hundred they do here for one unit, three or ten: so
// what is found is exact.
type lineStore struct {
	*store
	now *int
}

const (
	shortUnits = 1
	freshUnits = 3
	waitUnits  = 10
	// far from all that ends in many zeros: miniredis writes such a score as 1e+11, and its
	// tonumber can't read that
	startUnits = 1_000_500
)

// lines runs a test on each kind of server.
func lines(t *testing.T, test func(t *testing.T, s lineStore)) {
	everywhere(t, func(t *testing.T, s *store) { test(t, newLine(s)) })
}

func newLine(s *store) lineStore {
	l := lineStore{s, new(int)}
	l.clock(startUnits)
	return l
}

// clock tells the scripts what time it is.
func (s lineStore) clock(now int) {
	*s.now = now
	s.do("set", "clock", fmt.Sprint(now*int(unit/time.Second)))
}

// clear begins anew.
func (s lineStore) clear() {
	s.do("flushall")
	s.clock(startUnits)
}

// inUnits returns a script of ours as it is in a test.
func (s lineStore) inUnits(text string) string {
	s.t.Helper()
	ms := int(unit / time.Millisecond)
	for old, changed := range map[string]string{
		"local short = 1000;":  fmt.Sprintf("local short = %d;", shortUnits*ms),
		"local fresh = 3000;":  fmt.Sprintf("local fresh = %d;", freshUnits*ms),
		"local wait = 300000;": fmt.Sprintf("local wait = %d;", waitUnits*ms),
		"redis.call('time');":  "{redis.call('get', 'clock'), '0'};",
		"redis.call('pexpireat', l.key, whole(l.now + l.left));": "redis.call('pexpire', l.key, whole(l.left));",
	} {
		if strings.Count(text, old) != 1 {
			s.t.Fatalf("the script has %q not just once", old)
		}
		text = strings.Replace(text, old, changed, 1)
	}
	return text
}

// A lineStep is a step in words. Of Redisson's, place is for how long the caller says that it
// waits.
type lineStep struct {
	do, owner    string
	lease, place int
}

func parseLineStep(line string) lineStep {
	words := append(strings.Fields(line), "", "", "", "")
	n := func(i int) int {
		n, err := strconv.Atoi(words[i])
		if err != nil && words[i] != "" {
			panic(line)
		}
		return n
	}
	if words[0] == "keep" {
		return lineStep{do: words[0], owner: words[1], place: n(2)}
	}
	return lineStep{words[0], words[1], n(2), n(3)}
}

// take carries out a step and words the answer.
func (s lineStore) take(x lineStep) string {
	s.t.Helper()
	lease, place, owner := time.Duration(x.lease)*unit, time.Duration(x.place)*unit, inLine(x.owner)
	call := func(c Call) Call {
		c.Script.Text = s.inUnits(c.Script.Text)
		return c
	}
	switch x.do {
	case "lock", "relock", "late":
		req := backend.AcquireRequest{Name: "n", Owner: owner, Lease: lease, Place: place,
			Reentry: x.do == "relock"}
		if x.do == "late" {
			req.Waited = unit
		}
		return say(s.store, call(s.dialect.AcquireFair(req)), ParseQueued)
	case "keep":
		owners := strings.Split(x.owner, ",")
		for i := range owners {
			owners[i] = inLine(owners[i])
		}
		var reply any
		for _, c := range s.dialect.KeepPlaces(backend.PlacesRequest{Name: "n", Owners: owners,
			Place: place}) {
			var err error
			if reply, err = s.run(call(c)); err != nil {
				return err.Error()
			}
		}
		turn, err := ParseTurn(reply)
		if err != nil || turn.At.UnixMilli() != int64(*s.now)*unit.Milliseconds() {
			return fmt.Sprintf("%v, %v at %d", turn, err, *s.now)
		}
		said := "holds " + outOfLine(turn.Holder) + " " + units(turn.Remaining.Milliseconds())
		if turn.Redisson {
			said += ", with Redisson's"
		}
		return said
	case "unlock":
		return say(s.store, call(s.dialect.ReleaseFair(backend.ReleaseRequest{Name: "n",
			Owner: owner, Lease: lease})), ParseRelease)
	case "renew":
		return say(s.store, call(s.dialect.RenewFair([]backend.RenewRequest{{Name: "n",
			Owner: owner, Lease: lease}})), parseRenewal)
	case "force":
		return say(s.store, call(s.dialect.ForceReleaseFair(backend.ForceReleaseRequest{Name: "n"})),
			ParseForceRelease)
	case "pass":
		s.pass(x.lease)
		s.clock(*s.now + x.lease)
		return "ok"
	default:
		return s.redisson(x)
	}
}

// state returns what there is: the lock; the line, with the units that each of ours has of its
// place and, behind a plus, those that each counts for Redisson; and what is left of others, which
// should be nothing.
func (s lineStore) state() string {
	s.t.Helper()
	ctx, keys := context.Background(), fairKeys("n")
	pipe := s.client.Pipeline()
	fields, lasts, line := pipe.HGetAll(ctx, keys[0]), pipe.PTTL(ctx, keys[0]),
		pipe.LRange(ctx, keys[1], 0, -1)
	scores := []*redis.ZSliceCmd{pipe.ZRangeWithScores(ctx, keys[2], 0, -1),
		pipe.ZRangeWithScores(ctx, keys[3], 0, -1)}
	if _, err := pipe.Exec(ctx); err != nil {
		s.t.Fatal(err)
	}
	var all []string
	if len(fields.Val()) > 0 {
		all = append(all, strings.TrimPrefix(fmt.Sprint(fields.Val()),
			"map")+" "+units(lasts.Val().Milliseconds()))
	}
	left := func(cmd *redis.ZSliceCmd) map[string]string {
		m := make(map[string]string)
		for _, z := range cmd.Val() {
			m[z.Member.(string)] = units(max(int64(z.Score)-int64(*s.now)*unit.Milliseconds(), 0))
		}
		return m
	}
	times, places := left(scores[0]), left(scores[1])
	for _, owner := range line.Val() {
		all = append(all, fmt.Sprintf("%s:%s+%s", outOfLine(owner), places[owner], times[owner]))
		delete(times, owner)
		delete(places, owner)
	}
	for _, m := range []map[string]string{times, places} {
		if len(m) > 0 {
			all = append(all, fmt.Sprint("besides ", m))
		}
	}
	return strings.Join(all, " ")
}

// granted words what was published as the model does.
func (s lineStore) published() string {
	s.t.Helper()
	all := strings.Split(s.store.published(), ", ")
	for i, said := range all {
		channel, message, _ := strings.Cut(said, " ")
		if g, ok := ParseGranted(message); ok {
			client, _ := strings.CutPrefix(channel, grantsPrefix)
			owner := outOfLine(g.Owner)
			if g.Name != "n" || client != clientOf(owner) ||
				g.At.UnixMilli() != int64(*s.now)*unit.Milliseconds() {
				s.t.Fatalf("published %q", said)
			}
			all[i] = "gives " + owner
			if g.Lease != shortUnits*unit {
				all[i] += " for " + units(g.Lease.Milliseconds())
			}
		} else if said != "" {
			all[i] = "turn of " + outOfLine(strings.TrimPrefix(channel, Channel("n")+":")) + " " +
				message
		}
	}
	return strings.Join(all, ", ")
}

// play carries out lines, as store.play does.
func (s lineStore) play(text string) {
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
			s.take(parseLineStep("pass - " + line[len("pass"):]))
		default:
			got = s.take(parseLineStep(line))
		}
		if got != want {
			s.t.Fatalf("%s = %s\nwant %s, in\n%s", line, got, want, text)
		}
	}
}

func TestFairStates(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"alone": `
			lock A:1 30 = count 1
			state = [A:1:fair:1] 30
			lock A:1 10 = count 1
			state = [A:1:fair:1] 30
			lock A:1 40 = count 1
			relock A:1 20 = count 2
			state = [A:1:fair:2] 20
			renew A:1 50 = held
			unlock A:1 10 = holds left
			state = [A:1:fair:1] 10
			unlock A:1 10 = freed
			unlock A:1 10 = not held
			renew A:1 10 = lost
			state
			published`,
		"in order": `
			lock A:1 30 3 = count 1
			lock B:1 30 3 = wait 30
			lock A:2 30 3 = wait 30
			lock B:2 30 = wait 30
			lock B:1 30 5 = wait 30
			state = [A:1:fair:1] 30 B:1:5+10 A:2:3+10
			unlock A:1 10 = freed
			published = gives B:1
			state = [B:1:fair:1] 1 A:2:3+10
			lock C:1 30 3 = wait 1
			renew B:1 30 = held
			lock B:1 20 = count 1
			state = [B:1:fair:1] 30 A:2:3+10 C:1:3+10
			unlock B:1 10 = freed
			published = gives A:2
			unlock A:2 10 = freed
			published = gives C:1
			unlock C:1 10 = freed
			published
			state`,
		"giving up": `
			lock A:1 30 = count 1
			lock B:1 30 3 = wait 30
			lock B:2 30 3 = wait 30
			lock B:3 30 3 = wait 30
			unlock B:1 1 = not held
			unlock B:3 1 = not held
			state = [A:1:fair:1] 30 B:2:3+10
			published
			unlock A:1 1 = freed
			published = gives B:2`,
		"places that are over": `
			lock A:1 30 = count 1
			lock B:1 30 3 = wait 30
			lock B:2 30 5 = wait 30
			lock B:3 30 3 = wait 30
			lock B:4 30 9 = wait 30
			pass 2
			keep B:3 3 = holds A:1 28
			pass 2
			state = [A:1:fair:1] 26 B:1:0+6 B:2:1+6 B:3:1+8 B:4:5+6
			keep B:4 3 = holds A:1 26
			state = [A:1:fair:1] 26 B:2:1+6 B:3:1+8 B:4:5+10
			pass 1
			unlock A:1 1 = freed
			published = gives B:4
			state = [B:4:fair:1] 1`,
		"who was given it doesn't answer": `
			lock A:1 30 = count 1
			lock B:1 30 8 = wait 30
			lock C:1 30 8 = wait 30
			unlock A:1 1 = freed
			published = gives B:1
			keep C:1 8 = holds B:1 1
			pass 1
			lock D:1 30 = wait 1
			published = gives C:1
			keep B:1 8 = holds C:1 1
			state = [C:1:fair:1] 1 B:1:8+10`,
		"who lost his place comes back before all others": `
			lock A:1 30 = count 1
			lock B:1 30 3 = wait 30
			lock B:2 30 3 = wait 30
			lock B:3 30 3 = wait 30
			pass 3
			lock C:1 30 3 = wait 27
			keep B:1,B:2,B:3,A:1 5 = holds A:1 27
			state = [A:1:fair:1] 27 B:1:5+10 B:2:5+10 B:3:5+10 C:1:3+10
			force = released
			published = gives B:1
			keep B:1,B:2 5 = holds B:1 1
			pass 1
			keep B:3,B:1 5 = holds B:1 1
			published = gives B:1
			state = [B:1:fair:1] 1 B:2:4+9 B:3:5+10 C:1:2+9`,
		"who hears too late that it was given the lock": `
			lock A:1 30 = count 1
			lock B:1 30 9 = wait 30
			lock C:1 30 9 = wait 30
			unlock A:1 1 = freed
			published = gives B:1
			pass 1
			keep C:1 9 = holds C:1 1
			published = gives C:1
			lock D:1 30 9 = wait 1
			late B:1 30 5 = wait 1
			keep B:1 5 = holds C:1 1
			state = [C:1:fair:1] 1 B:1:5+10 D:1:9+10
			unlock C:1 1 = freed
			published = gives B:1 for 3
			state = [B:1:fair:1] 3 D:1:9+10
			unlock B:1 1 = freed
			published = gives D:1
			pass 1
			lock E:1 1 9 = count 1
			lock F:1 30 9 = wait 1
			pass 1
			late D:1 30 9 = count 1
			state = [D:1:fair:1] 30 F:1:8+9
			late D:1 30 99 = count 1
			late F:1 30 99 = wait 30
			unlock D:1 1 = freed
			published = gives F:1 for 16
			state = [F:1:fair:1] 16`,
		"the lease runs out": `
			lock A:1 5 = count 1
			lock B:1 30 9 = wait 5
			lock B:2 30 9 = wait 5
			pass 5
			state = B:1:4+5 B:2:4+5
			lock C:1 5 = wait 1
			published = gives B:1
			pass 1
			lock B:1 5 3 = wait 1
			published = gives B:2
			pass 1
			lock B:1 5 = count 1
			published
			state = [B:1:fair:1] 5`,
		"the one who asks is first": `
			lock A:1 5 = count 1
			lock B:1 30 9 = wait 5
			pass 5
			lock B:1 30 9 = count 1
			state = [B:1:fair:1] 30
			published`,
		"an unlock leaves the dead behind the first to others": `
			lock A:1 30 = count 1
			lock B:1 30 9 = wait 30
			lock C:1 30 3 = wait 30
			lock B:2 30 9 = wait 30
			pass 4
			unlock A:1 1 = freed
			published = gives B:1
			state = [B:1:fair:1] 1 C:1:0+6 B:2:5+6
			unlock B:1 1 = freed
			published = gives B:2
			state = [B:2:fair:1] 1`,
		"the wait for the one who was first is taken off Redisson's that is next": `
			lock A:1 99 = count 1
			lock B:1 30 3 = wait 99
			jlock J 30 50 = 10
			keep B:1 3 = holds A:1 99, with Redisson's
			unlock A:1 99 = freed
			published = gives B:1
			state = [B:1:fair:1] 1 J:+50`,
		"any step finds what ran out": `
			lock A:1 5 = count 1
			lock B:1 30 9 = wait 5
			lock C:1 30 9 = wait 5
			pass 5
			renew A:1 5 = lost
			published = gives B:1
			pass 1
			unlock A:1 5 = not held
			published = gives C:1
			lock D:1 5 9 = wait 1
			pass 1
			force = was free
			published = gives D:1`,
		"a plain lock of that name": `
			:hset n J 1
			:pexpire n 30000000
			lock A:1 5 9 = wait 30
			keep A:1 9 = holds J 30, with Redisson's
			renew J 5 = lost
			unlock J 5 = not held
			force = released
			published = gives A:1`,
		"the places are lost": `
			lock A:1 30 = count 1
			lock B:1 30 3 = wait 30
			lock B:2 30 3 = wait 30
			:del distsync_fair_places:{n}
			lock C:1 30 5 = wait 30
			state = [A:1:fair:1] 30 B:1:3+10 B:2:3+10 C:1:5+10`,
		"all die together": `
			lock A:1 2 = count 1
			lock B:1 30 3 = wait 2
			lock B:2 30 3 = wait 2
			pass 3
			state = B:1:0+7 B:2:0+7
			pass 7
			state`,
		"all die together, and somebody comes": `
			lock A:1 2 = count 1
			lock B:1 30 3 = wait 2
			lock B:2 30 3 = wait 2
			pass 3
			lock C:1 5 = count 1
			published
			state = [C:1:fair:1] 5`,
		"all die together with one of Redisson's, and somebody comes when that is forgotten": `
			lock A:1 2 = count 1
			jlock J 30 10 = 2
			lock B:1 30 3 = wait 2
			lock B:2 30 3 = wait 2
			pass 99
			state = J:+0 B:1:+0 B:2:+0
			lock C:1 5 = count 1
			published
			state = [C:1:fair:1] 5`,
		"all died long ago, and nothing of them ends": `
			:rpush redisson_lock_queue:{n} A:1:fair A:2:fair B:1:fair
			:zadd redisson_lock_timeout:{n} 1 A:1:fair 1 A:2:fair 1 B:1:fair
			lock C:1 5 = count 1
			published
			state = [C:1:fair:1] 5
			unlock C:1 1 = freed
			published
			state`,
		"Redisson's comes into a line that would end": `
			lock A:1 99 = count 1
			lock B:1 30 3 = wait 99
			jlock J 30 50 = 10
			renew A:1 99 = held
			pass 40
			state = [A:1:fair:1] 59 B:1:+0 J:+20
			renew A:1 99 = held
			state = [A:1:fair:1] 99 J:+20`,
		"the line is lost": `
			lock A:1 30 = count 1
			lock B:1 30 3 = wait 30
			lock B:2 30 3 = wait 30
			:del redisson_lock_queue:{n}
			keep B:2 3 = holds A:1 30
			keep B:1 3 = holds A:1 30
			state = [A:1:fair:1] 30 B:1:3+10 B:2:3+10
			:del redisson_lock_queue:{n}
			unlock A:1 1 = freed
			published
			state`,
		"the times are lost": `
			lock A:1 30 = count 1
			lock B:1 30 3 = wait 30
			lock B:2 30 3 = wait 30
			:del redisson_lock_timeout:{n}
			keep B:1,B:2 3 = holds A:1 30
			state = [A:1:fair:1] 30 B:1:3+10 B:2:3+10
			:del redisson_lock_timeout:{n}
			unlock A:1 1 = freed
			published = gives B:1`,
		"the times are lost, and one had been taken out": `
			lock A:1 30 = count 1
			lock B:1 30 3 = wait 30
			lock B:2 30 3 = wait 30
			:lpop redisson_lock_queue:{n}
			:del redisson_lock_timeout:{n}
			keep B:1,B:2 3 = holds A:1 30
			state = [A:1:fair:1] 30 B:1:3+10 B:2:3+10`,
		"the line is lost, and one of Redisson's comes": `
			lock A:1 30 = count 1
			lock B:1 30 3 = wait 30
			:del redisson_lock_queue:{n}
			jlock J 30 10 = 30
			keep B:1 3 = holds A:1 30, with Redisson's
			state = [A:1:fair:1] 30 B:1:3+30 J:+40`,
		"Redisson's delete": `
			lock A:1 30 = count 1
			lock B:1 30 3 = wait 30
			lock B:2 30 3 = wait 30
			:del n redisson_lock_queue:{n} redisson_lock_timeout:{n}
			jlock J 30 10 = <nil>
			jlock K 30 10 = 30
			keep B:1,B:2 3 = holds J 30, with Redisson's
			state = [J:1] 30 B:1:3+10 B:2:3+30 K:+40`,
	} {
		t.Run(name, func(t *testing.T) {
			lines(t, func(t *testing.T,
				s lineStore) {
				s.play(text)
			})
		})
	}
}

// Both stand in one line.
func TestFairBesideRedisson(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"one after the other": `
			lock A:1 30 = count 1
			jlock J 30 10 = 30
			lock B:1 30 3 = wait 30
			keep B:1 3 = holds A:1 30, with Redisson's
			jlock K 30 10 = 50
			lock B:2 30 3 = wait 30
			state = [A:1:fair:1] 30 J:+40 B:1:3+50 K:+60 B:2:3+70
			unlock A:1 30 = freed
			published = turn of J 0
			keep B:1 3 = holds  for ever, with Redisson's
			published = turn of J 0
			lock C:1 30 = wait for ever
			published = turn of J 0
			jlock J 30 10 = <nil>
			state = [J:1] 30 B:1:3+40 K:+50 B:2:3+60
			junlock J 30 = freed
			published = turn of B:1 0
			keep B:1 3 = holds B:1 1, with Redisson's
			published = gives B:1
			state = [B:1:fair:1] 1 K:+40 B:2:3+50
			unlock B:1 1 = freed
			published = turn of K 0
			jlock K 20 10 = <nil>
			jforce = freed
			published = turn of B:2 0
			jlock L 20 10 = 40
			state = B:2:3+40 L:+50
			jtry L 20 10 = no
			lock B:2 20 3 = count 1
			state = [B:2:fair:1] 20 L:+40`,
		"ours give up": `
			lock A:1 30 = count 1
			lock A:2 30 3 = wait 30
			lock A:3 30 3 = wait 30
			jlock J 30 10 = 10
			state = [A:1:fair:1] 30 A:2:3+10 A:3:3+10 J:+20
			unlock A:2 1 = not held
			unlock A:3 1 = not held
			published
			unlock A:1 1 = freed
			published = turn of J 0`,
		"ours give up while it is free": `
			lock A:1 5 = count 1
			lock A:2 30 30 = wait 5
			jlock J 30 10 = 30
			pass 5
			unlock A:2 1 = not held
			published = turn of J 0`,
		"one of ours dies when it was given it": `
			jlock J 30 10 = <nil>
			lock A:1 30 3 = wait 30
			jlock K 30 10 = 10
			lock B:1 30 99 = wait 30
			jforce = freed
			keep A:1 3 = holds A:1 1, with Redisson's
			published = turn of A:1 0, gives A:1
			pass 1
			keep B:1 99 = holds  for ever, with Redisson's
			published = turn of K 0`,
		"Redisson's die": `
			lock A:1 30 = count 1
			jlock J 30 2 = 30
			lock B:1 30 99 = wait 30
			unlock A:1 1 = freed
			published = turn of J 0
			pass 31
			lock C:1 30 = wait for ever
			published = turn of J 0
			pass 1
			lock C:1 30 = wait 1
			published = gives B:1`,
		"one of Redisson's without a time": `
			lock A:1 30 = count 1
			jlock J 30 2 = 30
			jlock K 30 2 = 32
			:zrem redisson_lock_timeout:{n} J
			unlock A:1 30 = freed
			published = turn of K 0`,
		"Redisson gives up": `
			lock A:1 30 = count 1
			jlock J 30 10 = 30
			lock B:1 30 3 = wait 30
			jquit J 0 10 = <nil>
			state = [A:1:fair:1] 30 B:1:3+40
			unlock A:1 1 = freed
			published = gives B:1`,
		"Redisson waits for longer than others": `
			lock A:1 30 = count 1
			jlock J 30 500 = 30
			lock B:1 30 3 = wait 30
			unlock A:1 1 = freed
			published = turn of J 0
			jlock J 30 500 = <nil>
			jlock K 30 10 = 40
			state = [J:1] 30 B:1:3+40 K:+50`,
	} {
		t.Run(name, func(t *testing.T) {
			lines(t, func(t *testing.T,
				s lineStore) {
				s.play(text)
			})
		})
	}
}

// Every step refuses a key that isn't a fair lock, and leaves it alone.
func TestFairConflicts(t *testing.T) {
	t.Parallel()
	steps := []string{"lock A:1 30 3", "relock A:1 30", "keep A:1 3", "unlock A:1 3", "renew A:1 3",
		"force"}
	for name, put := range map[string]string{
		"text":                ":set n text",
		"a read-write lock":   ":hset n mode read A 1",
		"somebody's hash":     ":hset n field value other value",
		"a line that is text": ":set redisson_lock_queue:{n} text",
		"times that are text": ":set redisson_lock_timeout:{n} text",
		"places as text":      ":set distsync_fair_places:{n} text",
		"times that are text, though one waits": `
			:hset n A:1:fair 1
			:pexpire n 30000000
			:rpush redisson_lock_queue:{n} B:1:fair
			:zadd distsync_fair_places:{n} 9000000000000 B:1:fair
			:set redisson_lock_timeout:{n} text`,
	} {
		t.Run(name, func(t *testing.T) {
			lines(t, func(t *testing.T, s lineStore) {
				for _, x := range steps {
					s.clear()
					s.play(put)
					before := s.dump()
					if got := s.take(parseLineStep(x)); got != "conflict" &&
						!strings.Contains(got, "in use for another kind") {
						t.Errorf("%s = %s", x, got)
					}
					if after := s.dump(); after != before {
						t.Errorf("%s leaves %s, not %s", x, after, before)
					}
				}
			})
		})
	}
}

// dump words all keys.
func (s lineStore) dump() string {
	ctx := context.Background()
	values := make(map[string]string)
	for _, key := range s.client.Keys(ctx, "[^c]*").Val() {
		values[key] = s.client.Get(ctx, key).Val() + fmt.Sprint(s.client.HGetAll(ctx, key).Val())
	}
	return fmt.Sprint(values)
}

// As many as a client may have come, keep their places in one script, come back when all are lost,
// and leave.
func TestThousandPlaces(t *testing.T) {
	t.Parallel()
	lines(t, func(t *testing.T, s lineStore) {
		const n = 1000
		owners := make([]string, n)
		for i := range owners {
			owners[i] = fmt.Sprintf("A:%d", i)
		}
		all := strings.Join(owners, ",")
		s.play("lock Z:1 500 = count 1")
		line := func() []string {
			return s.client.LRange(t.Context(), fairKeys("n")[1], 0, -1).Val()
		}
		check := func(what string, from int) {
			t.Helper()
			if got := line(); len(got) != n-from || got[0] != inLine(owners[from]) ||
				!slices.IsSortedFunc(got, byNumber) {
				t.Fatalf("%s: %d in line: %.100q", what, len(got), got)
			}
		}
		for _, owner := range owners {
			s.take(lineStep{"lock", owner, 30, 3})
		}
		check("they came", 0)
		s.play("keep " + all + " 4 = holds Z:1 500")
		check("they are kept", 0)
		s.play("pass 5\nlock Z:2 1 = wait 495")
		if len(line()) != 0 {
			t.Fatal("they should be gone")
		}
		s.play("keep " + all + " 4 = holds Z:1 495")
		check("they have come back", 0)
		s.play("unlock Z:1 1 = freed\npublished = gives A:0")
		check("the first has it", 1)
		for i, owner := range owners[:n-1] {
			s.take(lineStep{"unlock", owner, 1, 0})
			if got, want := s.published(), "gives "+owners[i+1]; got != want {
				t.Fatalf("published %q, want %q", got, want)
			}
		}
	})
}

func byNumber(a, b string) int {
	number := func(owner string) int {
		n, _ := strconv.Atoi(strings.TrimPrefix(outOfLine(owner), "A:"))
		return n
	}
	return number(a) - number(b)
}
