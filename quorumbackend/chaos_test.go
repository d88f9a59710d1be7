package quorumbackend_test

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed951563bd/distsync/dlock"
	"github.com/seed951563bd/distsync/internal/test/apart"
	"github.com/seed951563bd/distsync/internal/test/depth"
	"github.com/seed951563bd/distsync/internal/test/testservers"
	"github.com/seed951563bd/distsync/quorumbackend"
)

// chaosLease is that of all locks here. A server that restarts empty stays away for as long.
const chaosLease = 2 * time.Second

// A load is clients that count, guarded by a lock alone. If two hold it at once, a count is lost.
type load struct {
	*testing.T
	all      sync.WaitGroup
	stop     context.CancelFunc
	names    [4]string // of which not all are asked for first at the same store
	counters [4]atomic.Int64
	counted  [4]atomic.Int64
}

func startLoad(t *testing.T, makers []maker) *load {
	l := &load{T: t, names: [4]string{"a", "b", "c", "d"}}
	ctx, stop := context.WithCancel(t.Context())
	l.stop = stop
	for range 8 {
		client := dlock.New(over(t, makers), dlock.WithLease(chaosLease),
			dlock.WithLogger(slog.New(slog.DiscardHandler)))
		l.all.Go(func() {
			defer client.Close()
			for ctx.Err() == nil {
				i := rand.N(len(l.names))
				err := client.Locker(l.names[i]).Do(ctx, func(held context.Context) error {
					n := l.counters[i].Load()
					time.Sleep(rand.N(2 * time.Millisecond))
					if held.Err() != nil {
						return nil // lost, or all is over
					}
					l.counters[i].Store(n + 1)
					l.counted[i].Add(1)
					return nil
				})
				if err != nil && ctx.Err() == nil {
					t.Logf("%s: %v", l.names[i], err)
				}
			}
		})
	}
	return l
}

// progress waits until the clients have counted on.
func (l *load) progress(what string) {
	l.Helper()
	total := func() (n int64) {
		for i := range l.counted {
			n += l.counted[i].Load()
		}
		return n
	}
	before := total()
	testservers.Until(l.T, "the clients go on, with "+what, func() bool {
		return total() >= before+20
	})
}

// end checks that no count was lost, and that nothing is left on any server.
func (l *load) end(servers []*testservers.Server) {
	l.Helper()
	l.stop()
	l.all.Wait()
	for i := range l.names {
		if got, want := l.counters[i].Load(), l.counted[i].Load(); got != want {
			l.Errorf("%s: counted to %d in %d steps", l.names[i], got, want)
		}
	}
	for _, s := range servers {
		testservers.Until(l.T, "nothing is left on any server", func() bool {
			n, err := testservers.Do(s.Addr, "DBSIZE")
			return err == nil && n == "0"
		})
	}
}

// Eight clients count while one server after the other is stopped, flaps, and is killed and comes
// back empty.
func TestCountingThroughFaults(t *testing.T) {
	if apart.Run(t, 1) {
		return
	}
	servers := redises(t)
	l := startLoad(t, []maker{
		onRedis(servers[0].Addr), onRedis(servers[1].Addr), onRedis(servers[2].Addr),
	})
	l.progress("all servers")
	for _, s := range servers {
		s.Stop()
		l.progress("one stopped")
		s.Cont()
	}
	for range 10 {
		s := servers[rand.N(len(servers))]
		s.Stop()
		time.Sleep(rand.N(50 * time.Millisecond))
		s.Cont()
	}
	l.progress("all servers, again")
	lost := servers[rand.N(len(servers))]
	lost.Kill()
	l.progress("one killed")
	time.Sleep(chaosLease + chaosLease/10) // as the documentation demands
	lost.Restart()
	l.progress("one restarted empty")
	l.end(servers)
}

// Two clients take turns with one lock while the server that is asked first hangs. The next one
// stands still for a moment, again and again, so that each client may get the vote of one server.
// Neither keeps that until the one that hangs has answered: the other would wait for a lease.
func TestTurnsBesideAServerThatHangs(t *testing.T) {
	if apart.Run(t, 1) {
		return
	}
	const (
		name      = "a"
		turnLease = 4 * time.Second // ends before a request that isn't answered
		handOvers = 1000
	)
	servers := redises(t)
	makers := []maker{onRedis(servers[0].Addr), onRedis(servers[1].Addr), onRedis(servers[2].Addr)}
	ctx, stop := context.WithCancel(t.Context())
	var all sync.WaitGroup
	defer all.Wait()
	defer stop()
	turns := make(chan int) // which client has the lock
	first := quorumbackend.Home(name, len(servers))
	servers[first].Stop()
	every(t, 40*time.Millisecond, func(i int) {
		if next := servers[(first+1)%len(servers)]; i%2 == 0 {
			next.Stop()
		} else {
			next.Cont()
		}
	})
	for i := range 2 {
		client := dlock.New(over(t, makers), dlock.WithLease(turnLease),
			dlock.WithLogger(slog.New(slog.DiscardHandler)))
		all.Go(func() {
			defer client.Close()
			for ctx.Err() == nil {
				err := client.Locker(name).Do(ctx, func(held context.Context) error {
					select {
					case turns <- i:
					case <-held.Done():
					}
					return nil
				})
				if err != nil && ctx.Err() == nil {
					t.Logf("client %d: %v", i, err)
				}
			}
		})
	}
	for n, last := 0, -1; n < handOvers; {
		select {
		case i := <-turns:
			if i != last {
				n, last = n+1, i
			}
		case <-time.After(turnLease):
			t.Fatalf("after %d hand-overs nobody gets the lock for a lease", n)
		}
	}
}

// Each server in turn is killed, is away for two leases, and comes back empty, and then the first
// one again, as in a restart of all that goes by the documentation. Locks that are held all the
// while aren't lost, and the clients that count go on.
func TestHoldsOutliveARestartOfEachServer(t *testing.T) {
	depth.Needs(t, depth.Change)
	if apart.Run(t, 1) {
		return
	}
	servers := redises(t)
	makers := []maker{onRedis(servers[0].Addr), onRedis(servers[1].Addr), onRedis(servers[2].Addr)}
	l := startLoad(t, makers)
	client := dlock.New(over(t, makers), dlock.WithLease(chaosLease),
		dlock.WithLogger(slog.New(slog.DiscardHandler)))
	defer client.Close()
	var holds []*dlock.Hold
	var names []string
	for i := range 10 {
		names = append(names, fmt.Sprint("held ", i))
		h, err := client.Locker(names[i]).Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		holds = append(holds, h)
	}
	check := func(when string) {
		t.Helper()
		for i, h := range holds {
			if h.Context().Err() != nil {
				t.Fatalf("%s: %s is lost: %v", when, names[i], context.Cause(h.Context()))
			}
		}
	}
	// A hold is on a server, and was renewed there: so it is known that it is there again.
	renewedOn := func(s *testservers.Server) {
		t.Helper()
		for _, name := range names {
			last := math.MaxInt
			testservers.Until(t, name+" is renewed on each server", func() bool {
				text, err := testservers.Do(s.Addr, "PTTL", name)
				left, bad := strconv.Atoi(text)
				if err != nil || bad != nil || left < 0 {
					return false
				}
				renewed := left > last
				last = left
				return renewed
			})
		}
	}
	for i := range len(servers) + 1 {
		s := servers[i%len(servers)]
		renewedOn(s)
		s.Kill()
		l.progress("one killed")
		time.Sleep(2 * chaosLease)
		check(fmt.Sprintf("restart %d, while it is away", i+1))
		s.Restart()
		l.progress("one restarted empty")
		renewedOn(s)
		check(fmt.Sprintf("restart %d, when it is back", i+1))
	}
	for i, h := range holds {
		if err := h.Release(t.Context()); err != nil {
			t.Errorf("%s: %v", names[i], err)
		}
	}
	l.end(servers)
}
