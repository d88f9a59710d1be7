package quorumbackend_test

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed951563bd/distsync/dlock"
	"github.com/seed951563bd/distsync/internal/test/testservers"
	"github.com/seed951563bd/distsync/internal/test/wiretest"
)

// chaosLease is that of all locks here. A server that restarts empty stays away for as long.
const chaosLease = 2 * time.Second

// Eight clients count, guarded by a lock alone, while one server after the other is stopped, flaps, and is killed and comes back empty. No count
// is lost, and when all is over nothing is left on any server.
func TestCountingThroughFaults(t *testing.T) {
	if wiretest.Apart(t) {
		return
	}
	servers := redises(t)
	makers := []maker{onRedis(servers[0].Addr), onRedis(servers[1].Addr), onRedis(servers[2].Addr)}
	names := [...]string{"a", "b", "c", "d"} // of which not all are asked for first at the same store
	var counters [len(names)]atomic.Int64
	var counted [len(names)]atomic.Int64

	ctx, stop := context.WithCancel(t.Context())
	var all sync.WaitGroup
	for range 8 {
		client := dlock.New(over(t, makers), dlock.WithLease(chaosLease), dlock.WithLogger(slog.New(slog.DiscardHandler)))
		all.Go(func() {
			defer client.Close()
			for ctx.Err() == nil {
				i := rand.N(len(names))
				err := client.Locker(names[i]).Do(ctx, func(held context.Context) error {
					n := counters[i].Load()
					time.Sleep(rand.N(2 * time.Millisecond))
					if held.Err() != nil {
						return nil // lost, or all is over
					}
					counters[i].Store(n + 1) // what another has counted since is lost
					counted[i].Add(1)
					return nil
				})
				if err != nil && ctx.Err() == nil {
					t.Logf("%s: %v", names[i], err)
				}
			}
		})
	}
	progress := func(what string) {
		t.Helper()
		var before int64
		for i := range counted {
			before += counted[i].Load()
		}
		testservers.Until(t, "the clients go on, with "+what, func() bool {
			var now int64
			for i := range counted {
				now += counted[i].Load()
			}
			return now >= before+20
		})
	}
	progress("all servers")
	for _, s := range servers {
		s.Stop()
		progress("one stopped")
		s.Cont()
	}
	for range 10 {
		s := servers[rand.N(len(servers))]
		s.Stop()
		time.Sleep(rand.N(50 * time.Millisecond))
		s.Cont()
	}
	progress("all servers, again")
	lost := servers[rand.N(len(servers))]
	lost.Kill()
	progress("one killed")
	time.Sleep(chaosLease + chaosLease/10) // as the documentation demands
	lost.Restart()
	progress("one restarted empty")
	stop()
	all.Wait()

	for i := range names {
		if got, want := counters[i].Load(), counted[i].Load(); got != want {
			t.Errorf("%s: counted to %d in %d steps", names[i], got, want)
		}
	}
	for _, s := range servers {
		testservers.Until(t, "nothing is left on any server", func() bool {
			n, err := testservers.Do(s.Addr, "DBSIZE")
			return err == nil && n == "0"
		})
	}
}
