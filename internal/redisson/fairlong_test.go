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
	scripts int           // how many were run
	most    int           // commands in one of them
	passed  int           // and entries of the list that others pass to be taken out
	longest time.Duration // until one was answered
}

const (
	inLongLine = 10_000

	// mostCommands is how many commands a script may use, whatever has happened, and mostPassed how
	// many entries it may pass as it takes others out. A microsecond is enough for some of either.
	mostCommands = 1300
	mostPassed   = 4 * inLongLine
)

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
		for reply = any(more); reply == more; {
			length := int(l.do("llen", fairKeys("n")[1]).(int64))
			commands, strikes := l.commands()
			began := time.Now()
			var err error
			if reply, err = l.eval(c.Script.Text, c.Keys, c.Args...); err != nil {
				l.t.Fatal(err)
			}
			l.longest = max(l.longest, time.Since(began))
			l.scripts++
			now, struck := l.commands()
			l.most, l.passed = max(l.most, now-commands), max(l.passed, (struck-strikes)*length)
		}
	}
	return reply
}

// commands returns how many commands the server has carried out, those of scripts and others, and
// how many of these pass a whole list.
func (l *longLine) commands() (all, strikes int) {
	l.t.Helper()
	for line := range strings.Lines(l.do("info", "commandstats").(string)) {
		var calls int
		name, stats, ok := strings.Cut(line, ":calls=")
		if !ok || name == "cmdstat_info" {
			continue
		}
		fmt.Sscan(strings.Split(stats, ",")[0], &calls)
		all += calls
		if name == "cmdstat_lrem" {
			strikes = calls
		}
	}
	return all, strikes
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
				if l.most > mostCommands || l.passed > mostPassed {
					t.Errorf("a script uses %d commands, and passes %d entries", l.most, l.passed)
				}
				t.Logf("%d scripts of up to %d commands that pass up to %d entries; the longest took %v",
					l.scripts, l.most, l.passed, l.longest)
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
	l.do("linsert", fairKeys("n")[1], "after", owner, "java")
	l.do("zadd", fairKeys("n")[2], fmt.Sprint(time.Now().Add(time.Hour).UnixMilli()), "java")
}
