package faults_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/dlock/shards"
	"github.com/seed951563bd/distsync/internal/test/history"
	"github.com/seed951563bd/distsync/internal/test/testservers"
)

const (
	shardCount   = 12
	mostReplicas = 5
)

// A ledger takes the writes of the runs of shards, in memory that all processes share. It refuses
// tokens that are smaller than the largest that it has seen.
type ledger struct {
	shards  [shardCount]page
	refused [mostReplicas]atomic.Uint64 // refused writes of each replica
}

type page struct {
	newest atomic.Uint64
	by     atomic.Int64 // the replica that wrote last, counted from 1
}

// write writes for a replica with a token. It returns false if the ledger refuses that.
func (l *ledger) write(shard int, number uint64, replica int) bool {
	p := &l.shards[shard]
	for {
		newest := p.newest.Load()
		if number < newest {
			l.refused[replica].Add(1)
			return false
		}
		if p.newest.CompareAndSwap(newest, number) {
			p.by.Store(int64(replica + 1))
			return true
		}
	}
}

// even says whether all shards were last written by these replicas, by each the same number.
func (l *ledger) even(replicas ...int) bool {
	var load [mostReplicas]int
	for i := range l.shards {
		if by := l.shards[i].by.Load(); by > 0 {
			load[by-1]++
		}
	}
	for _, r := range replicas {
		if load[r] != shardCount/len(replicas) {
			return false
		}
	}
	return true
}

// keep is the run of a shard. It writes again and again, and only after each write checks whether
// it must end. A write may be refused only if the run can't rely on the shard any more.
func (l *ledger) keep(ctx context.Context, replica int, u *history.Party, s *shards.Shard) error {
	shard, err := strconv.Atoi(s.Name())
	if err != nil {
		return err
	}
	for {
		written := l.write(shard, s.Token(), replica)
		if u.Check(ctx) && !written {
			return fmt.Errorf("shard %d is another's, and its run by replica %d goes on", shard,
				replica)
		}
		if ctx.Err() != nil {
			return nil
		}
		time.Sleep(20 * time.Millisecond) // the work
	}
}

// replicas divides shards among processes. One is killed, one is paused for two leases, and one is
// replaced. No two processes ever run a shard at the same time. A run that can rely on its shard
// has the largest token. A write just after a pause, without a check, is refused.
func replicas(l *lab) {
	dir := l.TempDir()
	books, unmap, err := mapped[ledger](filepath.Join(dir, "ledger"))
	must(l.T, err)
	defer unmap()
	var all []*process
	start := func() {
		s, i := *l.store, len(all)
		s.name = fmt.Sprintf("%s%s %d %s", replicaPrefix, dir, i, s.name)
		p := (&lab{T: l.T, store: &s, lock: l.lock, kinds: l.kinds}).process(l.server.Addr)
		all = append(all, p)
		if got := p.says("it"); got != "joined" {
			l.Fatalf("replica %d: %s", i, got)
		}
	}
	begin := time.Now()
	var last [shardCount]uint64
	even := func(what string, replicas ...int) {
		l.Helper()
		testservers.Until(l.T, what+": all have the same number of shards", func() bool {
			for i, p := range all {
				select {
				case got := <-p.of("it"):
					l.Fatalf("replica %d, while %s: %s", i, what, got)
				default:
				}
			}
			return books.even(replicas...)
		})
		moves := 0
		for i := range books.shards {
			if now := books.shards[i].newest.Load(); now != last[i] {
				moves, last[i] = moves+1, now
			}
		}
		l.Logf("%-30s %v, %d moves", what, time.Since(begin).Round(10*time.Millisecond), moves)
		begin = time.Now()
	}
	for range 4 {
		start()
	}
	even("four have started", 0, 1, 2, 3)
	all[0].kill()
	even("one is killed", 1, 2, 3)

	all[1].stop()
	paused := time.Now()
	even("one is paused", 2, 3)
	l.pass(paused.Add(2 * childLease))
	before := books.refused[1].Load()
	all[1].cont()
	begin = time.Now()
	even("it goes on", 1, 2, 3)
	if books.refused[1].Load() == before {
		l.Error("what a process wrote after a pause was accepted")
	}

	start()
	leave := func(i int) {
		must(l.T, all[i].stdin.Close())
		if got := all[i].says("it"); got != "over" {
			l.Errorf("replica %d: %s", i, got)
		}
		<-all[i].exited
	}
	leave(2)
	even("one is deployed anew", 1, 3, 4)
	for _, i := range []int{1, 3, 4} {
		leave(i)
	}
	l.judge(dir, mostReplicas)
}

// replicaPrefix in a child's order makes it call runReplica.
const replicaPrefix = "replica "

// runReplica runs a replica until its input ends.
func runReplica(order string) error {
	var dir, storeName, addr, name string
	var number int
	var lease time.Duration
	var kind backend.Kind
	if _, err := fmt.Sscan(order, &dir, &number, &storeName, &addr, &lease, &name,
		&kind); err != nil {
		return err
	}
	books, unmap, err := mapped[ledger](filepath.Join(dir, "ledger"))
	if err != nil {
		return err
	}
	defer unmap()
	r, c, closeAll, err := telling(diary(dir, number), storeName, addr, lease)
	if err != nil {
		return err
	}
	defer closeAll()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	set := shards.New(c, name, shards.Numbered(shardCount), shards.WithLogger(quiet()))
	go func() {
		<-set.Joined()
		fmt.Println("it joined")
		io.Copy(io.Discard, bufio.NewReader(os.Stdin))
		cancel()
	}()
	var once sync.Once
	var wrong error
	err = set.Run(ctx, func(ctx context.Context, s *shards.Shard) error {
		u := &history.Party{
			User: number, Client: number, Lease: lease, Kind: backend.Fenced, Recorder: r,
			Locker: c.FencedLocker("shards:" + name + "@" + s.Name()),
		}
		u.Given(s.Finishing(), func() {
			if err := books.keep(ctx, number, u, s); err != nil {
				once.Do(func() { wrong = err })
				cancel()
			}
		})
		return nil
	})
	switch {
	case wrong != nil:
		fmt.Println("it", wrong)
	case !errors.Is(err, context.Canceled):
		fmt.Println("it", err)
	default:
		fmt.Println("it over")
	}
	return nil
}

// shardsInChaos divides shards among several clients during random faults of the other rows. No two
// clients ever run a shard at the same time, its tokens grow, and afterwards all clients have the
// same number of shards.
func shardsInChaos(l *lab) {
	const members = 3
	random := seed(l.T)
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	var all sync.WaitGroup
	var parties []*party
	var sets []*shards.Set
	var runs atomic.Int64
	for range members {
		p := l.proxied(l.short())
		set := shards.New(p.client, l.lock, shards.Numbered(shardCount), shards.WithLogger(quiet()))
		parties, sets = append(parties, p), append(sets, set)
		all.Go(func() {
			err := set.Run(ctx, func(ctx context.Context, s *shards.Shard) error {
				at := p.at("shards:" + l.lock + "@" + s.Name()).as(backend.Fenced)
				defer at.watch(s.Finishing())()
				if runs.Add(1)%5 > 0 { // otherwise it returns early
					<-ctx.Done()
				}
				return nil
			})
			if !errors.Is(err, context.Canceled) {
				l.Errorf("Run = %v", err)
			}
		})
	}
	kinds := []backend.Kind{backend.Fenced, backend.Read, backend.Exclusive}
	for begin := time.Now(); time.Since(begin) < 5*time.Second; {
		parties[random.IntN(members)].as(kinds[random.IntN(len(kinds))]).strike(random)
		l.pass(time.Now().Add(rnd(random, 100*time.Millisecond)))
	}
	testservers.Until(l.T, "all have the same number of shards", func() bool {
		for _, set := range sets {
			n := 0
			for _, info := range set.Mine() {
				if info.State == shards.Running || info.State == shards.Failing {
					n++
				}
			}
			if n != shardCount/members {
				return false
			}
		}
		return true
	})
	stop()
	all.Wait()
	l.Logf("%d runs", runs.Load())
}

// quiet returns a logger that discards the log lines during faults.
func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }
