package faults_test

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed951563bd/distsync/dlock"
	"github.com/seed951563bd/distsync/dlock/shards"
	"github.com/seed951563bd/distsync/internal/test/testservers"
	"github.com/seed951563bd/distsync/redisbackend"
)

// BenchmarkShards divides 200 shards among 20 replicas on Redis, with a lease of 3 s. One replica
// vanishes without a release, and another replaces it. Then all are replaced one by one. It reports
// for how long shards had no run, and how many moved.
func BenchmarkShards(b *testing.B) {
	server := testservers.Redis(b)
	for b.Loop() {
		f := &shardFleet{b: b, addr: server.Addr, ended: make(map[string]time.Time)}
		all := make([]*shardReplica, 20)
		for i := range all {
			all[i] = f.start()
		}
		f.settles(all)

		f.reset()
		all[0].vanish()
		vanished := time.Now()
		all[0] = f.start()
		f.settles(all)
		b.ReportMetric(time.Since(vanished).Seconds(), "s/death")
		b.ReportMetric(float64(len(f.gaps)), "moves/death")

		f.reset()
		for i := range all {
			old := all[i]
			all[i] = f.start()
			<-all[i].set.Joined()
			old.stop()
		}
		f.settles(all)
		slices.Sort(f.gaps)
		b.ReportMetric(float64(len(f.gaps)), "moves/deploy")
		b.ReportMetric(float64(f.gaps[len(f.gaps)/2].Microseconds())/1000, "ms-p50/deploy")
		b.ReportMetric(float64(f.gaps[len(f.gaps)-1].Microseconds())/1000, "ms-max/deploy")
		for _, r := range all {
			r.stop()
		}
	}
}

// A shardFleet starts replicas, and records when the runs of their shards ended.
type shardFleet struct {
	b     *testing.B
	addr  string
	mu    sync.Mutex
	ended map[string]time.Time
	gaps  []time.Duration
	n     int
}

type shardReplica struct {
	cli    *redis.Client
	client *dlock.Client
	set    *shards.Set
	cancel context.CancelFunc
	over   chan struct{}
}

func (f *shardFleet) start() *shardReplica {
	f.n++
	cli := redis.NewClient(&redis.Options{Addr: f.addr})
	quiet := slog.New(slog.DiscardHandler)
	client := dlock.New(redisbackend.New(cli), dlock.WithLease(3*time.Second),
		dlock.WithLogger(quiet),
		dlock.WithClientID(fmt.Sprint("replica", f.n)))
	r := &shardReplica{cli: cli, client: client, over: make(chan struct{})}
	r.set = shards.New(client, "billing", shards.Numbered(200), shards.WithLogger(quiet))
	ctx, cancel := context.WithCancel(f.b.Context())
	r.cancel = cancel
	go func() {
		defer close(r.over)
		r.set.Run(ctx, func(ctx context.Context, s *shards.Shard) error {
			f.mu.Lock()
			if at, ok := f.ended[s.Name()]; ok {
				f.gaps = append(f.gaps, time.Since(at))
			}
			f.mu.Unlock()
			<-ctx.Done()
			f.mu.Lock()
			f.ended[s.Name()] = time.Now()
			f.mu.Unlock()
			return nil
		})
	}()
	return r
}

func (f *shardFleet) reset() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.gaps = nil
}

// settles waits until each replica runs ten shards.
func (f *shardFleet) settles(all []*shardReplica) {
	testservers.Until(f.b, "each replica runs ten shards", func() bool {
		for _, r := range all {
			running := 0
			for _, s := range r.set.Mine() {
				if s.State == shards.Running {
					running++
				}
			}
			if running != 10 {
				return false
			}
		}
		return true
	})
}

// vanish cuts a replica off from the server, as if its process were killed.
func (r *shardReplica) vanish() {
	r.cli.Close()
	r.cancel()
	go r.client.Close()
}

func (r *shardReplica) stop() {
	r.cancel()
	<-r.over
	r.client.Close()
	r.cli.Close()
}
