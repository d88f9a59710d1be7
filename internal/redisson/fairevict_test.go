package redisson

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/seed951563bd/distsync/backend"
)

// Scripts handle a line in portions. If a server evicts the list or the times, and whatever Redisson
// does between the portions, all whose places are kept are in line, and none of them twice.
func TestEvictedLine(t *testing.T) {
	t.Parallel()
	const waiters = 2*placesPortion + 100
	realServers(t, func(t *testing.T, s *store) {
		for seed := range uint64(20) {
			l := evictedLine{store: s, rnd: rand.New(rand.NewPCG(seed, 0))}
			s.do("flushall")
			l.acquire("h:0", 0)
			var owners []string
			for i := range waiters {
				owner := fmt.Sprintf("%d:%d", i%2, i)
				owners = append(owners, inLine(owner))
				l.acquire(owner, time.Hour)
			}
			for range 12 {
				switch what := l.rnd.IntN(5); what {
				case 0, 1: // the list, the times
					s.do("del", fairKeys("n")[1+what])
				case 2:
					l.redisson()
				case 3:
					l.keep(owners[:1+l.rnd.IntN(waiters)])
				case 4:
					l.acquire("x:1", 0)
				}
			}
			l.keep(owners)
			l.quiet = true // those that were taken out meanwhile come back
			l.keep(owners)
			in := make(map[string]int)
			for _, member := range s.do("lrange", fairKeys("n")[1], "0", "-1").([]any) {
				in[member.(string)]++
			}
			for _, owner := range owners {
				if in[owner] != 1 {
					t.Fatalf("seed %d: %s is in line %d times", seed, owner, in[owner])
				}
			}
		}
	})
}

// An evictedLine is the line of the lock n, in which Redisson's come and go.
type evictedLine struct {
	*store
	rnd   *rand.Rand
	quiet bool // Redisson does nothing between scripts
}

// send carries out a call as a session does. Redisson may do something between its scripts.
func (l evictedLine) send(c Call) {
	l.t.Helper()
	for range 100 {
		reply, err := l.eval(c.Script.Text, c.Keys, c.Args...)
		if err != nil {
			l.t.Fatal(err)
		}
		if reply != more {
			return
		}
		if !l.quiet && l.rnd.IntN(4) == 0 {
			l.redisson()
		}
	}
	l.t.Fatal("the script is never done")
}

func (l evictedLine) acquire(owner string, place time.Duration) {
	l.t.Helper()
	l.send(Dialect{}.AcquireFair(backend.AcquireRequest{
		Name: "n", Owner: inLine(owner), Lease: time.Hour, Place: place,
	}))
}

func (l evictedLine) keep(owners []string) {
	l.t.Helper()
	for _, c := range (Dialect{}).KeepPlaces(backend.PlacesRequest{
		Name: "n", Owners: owners, Place: time.Hour,
	}) {
		l.send(c)
	}
}

// redisson puts one of Redisson's at the end of the line, or takes out the first as Redisson does.
func (l evictedLine) redisson() {
	queue, timeouts := fairKeys("n")[1], fairKeys("n")[2]
	if l.rnd.IntN(2) == 0 {
		java, ends := fmt.Sprint("java", l.rnd.Int()), time.Now().Add(time.Hour).UnixMilli()
		l.do("rpush", queue, java)
		l.do("zadd", timeouts, fmt.Sprint(ends), java)
	} else if first, ok := l.do("lpop", queue).(string); ok {
		l.do("zrem", timeouts, first)
	}
}
