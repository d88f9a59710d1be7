package redisson

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed951563bd/distsync/backend"
)

// A longLine is the line of the lock n, with many in it, and what the scripts do that come to it.
type longLine struct {
	*store
	scripts int // how many were run
	work
	longest time.Duration // until one was answered
}

// work is the most of each that a single script has done.
type work struct {
	commands int // carried out
	struck   int // entries of the list passed, to take others out of it
	read     int // entries that commands returned
}

const (
	inLongLine = 10_000

	// mostCommands is how many commands a script may use, whatever has happened, mostStruck how many
	// entries it may pass as it takes others out, and mostRead how many it may read. A microsecond is
	// enough for some of each.
	mostCommands = 1300
	mostStruck   = 4 * inLongLine
	mostRead     = 3300
)

// countingWork makes a script say what it has done, besides its reply.
const countingWork = `
local commands, struck, read = 0, 0, 0;
local server = redis;
local redis = {};
function redis.call(name, ...)
    commands = commands + 1;
    if (name == 'lrem') then
        struck = struck + server.call('llen', (...));
    end;
    local reply = server.call(name, ...);
    if (type(reply) == 'table') then
        read = read + #reply;
    end;
    return reply;
end;
redis.pcall = redis.call;
local function script()
%s
end;
local reply = script();
return {commands, struck, read, reply};
`

// fill puts so many of ours in line. Their places end at one time from now, and their times for
// Redisson at another; zero: they are lost.
func (l *longLine) fill(place, score time.Duration) (owners []string) {
	l.t.Helper()
	keys, now := fairKeys("n"), time.Now()
	pipe := l.client.Pipeline()
	for i := range inLongLine {
		// their order isn't that of their names
		owner := inLine(fmt.Sprintf("host/1/C:%d", i*7919%inLongLine))
		owners = append(owners, owner)
		pipe.RPush(context.Background(), keys[1], owner)
		if score != 0 {
			pipe.ZAdd(context.Background(), keys[2],
				redis.Z{Score: float64(now.Add(score).UnixMilli()), Member: owner})
		}
		if place != 0 {
			pipe.ZAdd(context.Background(), keys[3],
				redis.Z{Score: float64(now.Add(place).UnixMilli()), Member: owner})
		}
	}
	if _, err := pipe.Exec(context.Background()); err != nil {
		l.t.Fatal(err)
	}
	return owners
}

// send carries out calls as a session does, and looks at each script.
func (l *longLine) send(calls ...Call) (reply any) {
	l.t.Helper()
	for _, c := range calls {
		// A place that is made anew outlasts a standstill of the machine.
		script := strings.Replace(c.Script.Text, "local fresh = 3000;", "local fresh = 3600000;", 1)
		text := fmt.Sprintf(countingWork, script)
		for reply = any(more); reply == more; {
			began := time.Now()
			counted, err := l.eval(text, c.Keys, c.Args...)
			if err != nil {
				l.t.Fatal(err)
			}
			l.longest = max(l.longest, time.Since(began))
			l.scripts++
			words := append(counted.([]any), nil) // a script that replies nothing adds no word
			l.commands = max(l.commands, int(words[0].(int64)))
			l.struck = max(l.struck, int(words[1].(int64)))
			l.read = max(l.read, int(words[2].(int64)))
			reply = words[3]
		}
	}
	return reply
}

// However many stand in line, and whatever becomes of them, no script keeps the server for long.
func TestLongLine(t *testing.T) {
	t.Parallel()
	realServers(t, func(t *testing.T, s *store) {
		d := Dialect{}
		acquire := func(owner string, place time.Duration) Call {
			return d.AcquireFair(backend.AcquireRequest{Name: "n", Owner: owner, Lease: time.Hour,
				Place: place})
		}
		release := func(owner string) Call {
			return d.ReleaseFair(backend.ReleaseRequest{Name: "n", Owner: owner, Lease: time.Hour})
		}
		keep := func(owners ...string) []Call {
			return d.KeepPlaces(backend.PlacesRequest{Name: "n", Owners: owners, Place: time.Hour})
		}
		const (
			holder, other = "h:0:fair", "o:0:fair"
			over, lasts   = -time.Millisecond, time.Hour
		)
		try, force := acquire(other, 0), d.ForceReleaseFair(backend.ForceReleaseRequest{Name: "n"})
		renew := d.RenewFair([]backend.RenewRequest{{Name: "n", Owner: holder, Lease: time.Hour}})
		var owners []string
		for name, c := range map[string]struct {
			place, score time.Duration
			do           func(l *longLine)
			left         int
		}{
			"others come and go": {lasts, lasts, func(l *longLine) {
				l.send(try, acquire(other, lasts), renew, release(other), release(holder), force)
			}, inLongLine - 2},
			"the last leaves": {lasts, lasts,
				func(l *longLine) { l.send(release(owners[inLongLine-1])) }, inLongLine - 1},
			"they stay": {lasts, lasts, func(l *longLine) { l.send(keep(owners...)...) },
				inLongLine},
			"they come back": {lasts, lasts,
				func(l *longLine) { l.clear(); l.send(keep(owners...)...) }, inLongLine - 1},
			"one comes back": {lasts, lasts, func(l *longLine) { l.send(keep(other)...) },
				inLongLine + 1},
			"dead, one tries": {over, lasts, func(l *longLine) { l.send(try) }, 0},
			"dead, one comes": {over, lasts, func(l *longLine) { l.send(acquire(other, lasts)) },
				1},
			"dead, left":   {over, lasts, func(l *longLine) { l.send(release(holder)) }, 0},
			"dead, forced": {over, lasts, func(l *longLine) { l.send(force) }, 0},
			"dead, renewed": {over, lasts, func(l *longLine) { l.send(renew) },
				inLongLine - placesPortion - 1},
			"not dead at all": {over, lasts, func(l *longLine) { l.send(keep(owners...)...) },
				inLongLine},
			"dead behind one": {over, lasts,
				func(l *longLine) { l.stays(owners[0]); l.send(try, release(holder)) },
				inLongLine - 3},
			"no places":       {0, lasts, func(l *longLine) { l.send(try) }, inLongLine},
			"no places, dead": {0, over, func(l *longLine) { l.send(try) }, 0},
			"no times": {lasts, 0, func(l *longLine) { l.send(keep(owners...)...) },
				inLongLine},
			"no times, one is gone": {lasts, 0, func(l *longLine) {
				l.do("lpop", fairKeys("n")[1])
				l.send(keep(owners...)...)
			}, inLongLine},
			"another list": {lasts, lasts, func(l *longLine) {
				l.do("del", fairKeys("n")[1])
				l.redisson()
				l.send(keep(owners...)...)
			}, inLongLine + 1},
			"no list": {lasts, lasts,
				func(l *longLine) { l.do("del", fairKeys("n")[1]); l.send(try) }, 0},
			"Redisson is next": {lasts, lasts,
				func(l *longLine) { l.redissonAfter(owners[0]); l.send(release(holder)) },
				inLongLine},
		} {
			t.Run(name, func(t *testing.T) {
				s := *s
				s.t = t
				l := longLine{store: &s}
				l.clear()
				l.send(acquire(holder, 0))
				owners = l.fill(c.place, c.score)
				c.do(&l)
				if left := l.do("llen", fairKeys("n")[1]).(int64); left != int64(c.left) {
					t.Errorf("%d are in line, want %d", left, c.left)
				}
				if l.commands > mostCommands || l.struck > mostStruck || l.read > mostRead {
					t.Errorf("one script does too much: of each at most %+v", l.work)
				}
				t.Logf("%d scripts, of each at most %+v; the longest took %v", l.scripts, l.work,
					l.longest)
			})
		}
	})
}

func (l *longLine) clear() { l.do("flushall") }

// stays has one in line live.
func (l *longLine) stays(owner string) {
	l.do("zadd", fairKeys("n")[3], fmt.Sprint(time.Now().Add(time.Hour).UnixMilli()), owner)
}

// redissonAfter puts one of Redisson's behind another in line.
func (l *longLine) redissonAfter(owner string) {
	l.redisson()
	l.do("lrem", fairKeys("n")[1], "1", "java")
	l.do("linsert", fairKeys("n")[1], "after", owner, "java")
}

// redisson puts one of Redisson's at the end of the line.
func (l *longLine) redisson() {
	l.do("rpush", fairKeys("n")[1], "java")
	l.do("zadd", fairKeys("n")[2], fmt.Sprint(time.Now().Add(time.Hour).UnixMilli()), "java")
}
