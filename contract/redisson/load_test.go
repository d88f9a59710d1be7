package redisson_test

import (
	"context"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed951563bd/distsync/dlock"
	"github.com/seed951563bd/distsync/internal/test/depth"
	"github.com/seed951563bd/distsync/internal/test/testservers"
)

// loads are the kinds of lock that both sides work with under load.
var loads = []struct {
	name, java string
	work       func(*place, *testing.T, *dlock.Client, string, func() bool) (added, read int)
	channel    func(name string) string
}{
	{"plain", "", locking((*dlock.Client).Locker), channel},
	{"fenced", "fenced.", locking((*dlock.Client).FencedLocker), channel},
	{"fair", "fair.", locking((*dlock.Client).FairLocker), channel},
	{"read and write", "both.", (*place).readAndWrite, rwChannel},
	{"permits", "permits.", (*place).havePermits, scChannel},
}

const (
	loadPermits = 2                // of the semaphore; each worker takes one
	loadInside  = time.Millisecond // for how long a worker stays inside
	loadThreads = 2                // of each process
	briefLoad   = 2 * time.Second  // for each kind, unless DISTSYNC_LOAD is set
	loadLease   = 30 * time.Second // the default of both sides
	loadEnd     = 2 * loadLease    // the longest time in which the last worker must get in
	longEnough  = 10 * time.Second // from this length on, the shares are checked
	mostRounds  = 4                // if the share of one side is too small
	warmUp      = 500 * time.Millisecond
)

// TestLoad makes processes of both sides contend for a lock of each kind, without a pause. Nothing
// may be counted twice or lost. In a load of ten seconds or more each side must get its least share
// of the locks, see docs/redisson.md. On a busy machine Java's share is smaller, so such a load
// needs a machine that has nothing else to do. DISTSYNC_LOAD sets how long the load of each kind
// lasts, such as 20s. If it is set, the load runs with each version, on one server and in a
// cluster, and also with one process of one side and three of the other.
func TestLoad(t *testing.T) {
	long, places, sizes := briefLoad, []string{"redis"}, [][2]int{{2, 2}}
	of := versions[:1]
	if text := os.Getenv("DISTSYNC_LOAD"); text != "" {
		var err error
		if long, err = time.ParseDuration(text); err != nil {
			t.Fatal(err)
		}
		places, sizes, of = []string{"redis", "cluster"}, [][2]int{{2, 2}, {1, 3}, {3, 1}, {1, 1}},
			loadVersions
	} else {
		t.Parallel() // the shares aren't checked
	}
	needVersions(t, of)
	for _, name := range places {
		for _, version := range of {
			t.Run(name+"/"+version, func(t *testing.T) {
				load(t, loadPlace(t, name, version), version, sizes, long)
			})
		}
	}
}

// TestLoadBesideUndecided is TestLoad in a cluster in which neither Redisson nor the clients in Go
// use sharded channels, as docs/redisson.md recommends.
func TestLoadBesideUndecided(t *testing.T) {
	depth.Needs(t, depth.Night)
	needVersions(t, []string{undecided})
	load(t, loadPlace(t, "cluster", undecided), undecided, [][2]int{{2, 2}}, briefLoad)
}

// loadPlace starts one server, or a cluster in which clients in Go publish on the channels that
// this version of Redisson uses.
func loadPlace(t *testing.T, name, version string) *place {
	if name == "redis" {
		p := unwatched(t, testservers.Redis(t))
		p.backend = byRedis(p)
		return p
	}
	p := unwatchedCluster(t, "")
	if version == undecided {
		p.backend = byUnshardedCluster(p)
	} else {
		p.sharded, p.backend = true, byCluster(p)
	}
	return p
}

// startLoader starts a process of Java's that listens on the channels on which clients in Go
// publish. A Redisson that decides by the answer of one node may listen elsewhere. Then another
// process is started.
func (p *place) startLoader(t *testing.T, version string) *peer {
	t.Helper()
	elsewhere := *p
	elsewhere.sharded = !p.sharded
	for range 20 {
		java := startPeer(t, version, p.config, loadLease)
		if version != undecided {
			return java
		}
		name := fmt.Sprint("listens:", java.cmd.Process.Pid)
		holder, waiter := java.thread(t), java.thread(t)
		holder.want("locked", "lock", name)
		locked := waiter.start("lock", name)
		here := false
		testservers.Until(t, "Java listens", func() bool {
			here = p.listeners(t, channel(name)) > 0
			return here || elsewhere.listeners(t, channel(name)) > 0
		})
		if !here {
			java.kill()
			continue
		}
		holder.want("unlocked", "unlock", name)
		if got := receive(t, "the next thread has the lock", locked); got != "locked" {
			t.Fatal(got)
		}
		waiter.want("unlocked", "unlock", name)
		return java
	}
	t.Fatal("no process of Java's listens to the channels of clients in Go")
	return nil
}

func load(t *testing.T, p *place, version string, sizes [][2]int, long time.Duration) {
	var peers []*peer
	var clients []*dlock.Client
	for _, size := range sizes {
		for len(clients) < size[0] {
			clients = append(clients, p.client(t, dlock.WithLease(loadLease)))
		}
		for len(peers) < size[1] {
			peers = append(peers, p.startLoader(t, version))
		}
	}
	for i, k := range loads {
		t.Run(k.name, func(t *testing.T) {
			for j, size := range sizes {
				name := fmt.Sprintf("load%d:%d", i, j)
				p.contend(t, name+":warm", clients[:size[0]], peers[:size[1]], i, warmUp)
				least := leastShare(k.name, size)
				var all, java int
				for round := 1; round <= mostRounds; round++ {
					ours, theirs := p.contend(t, fmt.Sprint(name, ":", round), clients[:size[0]],
						peers[:size[1]], i, long)
					all, java = all+ours+theirs, java+theirs
					t.Logf("%d Go and %d Java processes: %d and %d times, Go has %.0f %%", size[0],
						size[1], ours, theirs, percent(ours, ours+theirs))
					// The shares of two rounds can differ by ten points, so a small share gets more
					// rounds.
					share := percent(all-java, all)
					if long < longEnough || min(share, 100-share) >= least {
						break
					}
					if round == mostRounds {
						t.Errorf("%d Go and %d Java processes: Go has %.0f %% in %d rounds; "+
							"want %.0f %% for each side", size[0], size[1], share, round, least)
					}
				}
			}
		})
	}
}

// leastShare returns the least share of each side, in percent: more if both sides have as many
// processes, and several. A fair lock goes by arrival, so one process of four gets a quarter.
func leastShare(kind string, size [2]int) float64 {
	switch {
	case kind == "fair" && size[0] != size[1]:
		return 20
	case size == [2]int{2, 2}:
		return 35
	default:
		return 30
	}
}

func percent(part, all int) float64 { return 100 * float64(part) / float64(max(all, 1)) }

// contend makes clients and processes of Java's work with one lock for some time, and returns how
// often each side was inside.
func (p *place) contend(
	t *testing.T, name string, clients []*dlock.Client, peers []*peer, kind int, long time.Duration,
) (ours, theirs int) {
	t.Helper()
	k := loads[kind]
	arguments := []any{loadInside, long}
	if k.name == "permits" {
		arguments = []any{1, loadPermits, loadInside, long}
		peers[0].thread(t).want("true", "permits.trySetPermits", name, loadPermits)
	}
	var java []<-chan string
	for _, peer := range peers {
		for range loadThreads {
			th := peer.thread(t)
			th.kind = k.java
			java = append(java, th.start("work", name, arguments...))
		}
	}
	var running sync.WaitGroup
	var added, read atomic.Int64
	end := time.Now().Add(long)
	for _, c := range clients {
		for range loadThreads {
			running.Go(func() {
				a, r := k.work(p, t, c, name, func() bool { return time.Now().Before(end) })
				added.Add(int64(a))
				read.Add(int64(r))
			})
		}
	}
	running.Wait()
	ours = int(added.Load() + read.Load())
	stop := p.nudge(t, k.channel(name))
	for _, done := range java {
		var a, r int
		answer := receiveWithin(t, loadEnd, "Java is done", done)
		if _, err := fmt.Sscanf(answer, "%d,%d", &a, &r); err != nil {
			t.Errorf("Java: %s", answer)
		}
		added.Add(int64(a))
		theirs += a + r
	}
	stop()
	want, counter := added.Load(), name+":counter"
	if k.name == "permits" {
		want, counter = 0, name+":inside"
	}
	if n, err := p.admin.Get(t.Context(), counter).Int64(); err != nil || n != want {
		t.Errorf("counted %d, %v; want %d", n, err, want)
	}
	return ours, theirs
}

// locking returns a function that does what Peer.work does, with locks of a kind.
func locking(
	kind func(*dlock.Client, string) *dlock.Locker,
) func(*place, *testing.T, *dlock.Client, string, func() bool) (int, int) {
	return func(
		p *place, t *testing.T, c *dlock.Client, name string, goesOn func() bool,
	) (added, _ int) {
		for goesOn() {
			if err := kind(c, name).Do(t.Context(), func(ctx context.Context) error {
				return p.add(ctx, name)
			}); err != nil {
				t.Errorf("Go: %v", err)
				return
			}
			added++
		}
		return added, 0
	}
}

// add adds one to the counter of a lock. It isn't atomic, so it loses what another adds at the same
// time.
func (p *place) add(ctx context.Context, name string) error {
	n, err := p.admin.Get(ctx, name+":counter").Int()
	if err != nil && err != redis.Nil {
		return err
	}
	time.Sleep(loadInside)
	return p.admin.Set(ctx, name+":counter", n+1, 0).Err()
}

// readAndWrite is the same with a read-write lock. Every fourth time it reads, otherwise it writes.
func (p *place) readAndWrite(
	t *testing.T, c *dlock.Client, name string, goesOn func() bool,
) (added, read int) {
	rw := c.RWLocker(name)
	for goesOn() {
		side, count, do := rw.Writer(), &added, p.add
		if (added+read)%4 == 3 {
			side, count, do = rw.Reader(), &read, p.readTwice
		}
		if err := side.Do(t.Context(), func(ctx context.Context) error {
			return do(ctx, name)
		}); err != nil {
			t.Errorf("Go: %v", err)
			return
		}
		*count++
	}
	return added, read
}

// readTwice checks that the counter doesn't change between two reads.
func (p *place) readTwice(ctx context.Context, name string) error {
	before := p.admin.Get(ctx, name+":counter").Val()
	time.Sleep(loadInside)
	if after := p.admin.Get(ctx, name+":counter").Val(); after != before {
		return fmt.Errorf("somebody writes: %q, then %q", before, after)
	}
	return nil
}

// havePermits is the same with a semaphore.
func (p *place) havePermits(
	t *testing.T, c *dlock.Client, name string, goesOn func() bool,
) (n, _ int) {
	s := c.Semaphore(name, loadPermits)
	for goesOn() {
		err := s.Do(t.Context(), 1, func(ctx context.Context) error {
			if out, err := p.admin.IncrBy(ctx, name+":inside", 1).Result(); err != nil ||
				out > loadPermits {
				return fmt.Errorf("%d inside, %w", out, err)
			}
			time.Sleep(loadInside)
			return p.admin.DecrBy(ctx, name+":inside", 1).Err()
		})
		if err != nil {
			t.Errorf("Go: %v", err)
			return
		}
		n++
	}
	return n, 0
}
