package postgresbackend_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/dlock"
	"github.com/seed951563bd/distsync/internal/test/testservers"
	"github.com/seed951563bd/distsync/internal/test/wiretest"
	"github.com/seed951563bd/distsync/postgresbackend"
)

// benchmarked is a server that flushes commits, with a table for comparison. The minimum for a lock
// and an unlock is two commits of one row each.
func benchmarked(b *testing.B, conns int32) *pgxpool.Pool {
	pool := connect(b, testservers.Postgres(b, "fsync=on").Addr, size(conns))
	migrate(b, pool)
	execute(b, pool,
		`CREATE TABLE bare (name text PRIMARY KEY, n integer NOT NULL) WITH (fillfactor = 50)`)
	execute(b, pool, `INSERT INTO bare SELECT i::text, 0 FROM generate_series(0, 999) i`)
	return pool
}

func bareUpdate(b *testing.B, pool *pgxpool.Pool, name string) {
	if _, err := pool.Exec(b.Context(), `UPDATE bare SET n = n + 1 WHERE name = $1`,
		name); err != nil {
		b.Error(err)
	}
}

func lockAndUnlock(b *testing.B, s backend.Session, name string) {
	res, err := s.Acquire(b.Context(), backend.AcquireRequest{
		Name: name, Owner: alice, Lease: lease,
	})
	if err != nil || !res.Acquired {
		b.Error(res, err)
	}
	if _, err := s.Release(b.Context(), backend.ReleaseRequest{Name: name, Owner: alice,
		Lease: lease}); err != nil {
		b.Error(err)
	}
}

// A lock and unlock alone, and two bare commits.
func BenchmarkAlone(b *testing.B) {
	pool := benchmarked(b, 4)
	b.Run("bare", func(b *testing.B) {
		for b.Loop() {
			bareUpdate(b, pool, "1")
			bareUpdate(b, pool, "1")
		}
	})
	b.Run("lock", func(b *testing.B) {
		s := open(b, pool)
		for b.Loop() {
			lockAndUnlock(b, s, "1")
		}
	})
}

// 64 goroutines, each with a name of its own; and as many bare clients.
func BenchmarkMany(b *testing.B) {
	const many = 64
	pool := benchmarked(b, many)
	each := func(b *testing.B, do func(name string)) {
		var all sync.WaitGroup
		turns := make(chan struct{}, b.N)
		for range b.N {
			turns <- struct{}{}
		}
		close(turns)
		b.ResetTimer()
		for i := range many {
			all.Go(func() {
				for range turns {
					do(fmt.Sprint(i))
				}
			})
		}
		all.Wait()
	}
	b.Run("bare", func(b *testing.B) {
		each(b, func(name string) {
			bareUpdate(b, pool, name)
			bareUpdate(b, pool, name)
		})
	})
	b.Run("lock", func(b *testing.B) {
		s := open(b, pool)
		each(b, func(name string) { lockAndUnlock(b, s, name) })
	})
}

// 1,000 renewals, and one bare UPDATE of as many rows.
func BenchmarkRenew(b *testing.B) {
	const many = 1000
	pool := benchmarked(b, 4)
	s := open(b, pool)
	reqs := make([]backend.RenewRequest, many)
	for i := range reqs {
		wiretest.Must[backend.AcquireResult](b)(s.Acquire(b.Context(),
			backend.AcquireRequest{Name: fmt.Sprint(i), Owner: alice, Lease: lease}))
		reqs[i] = backend.RenewRequest{Name: fmt.Sprint(i), Owner: alice, Lease: lease}
	}
	b.Run("bare", func(b *testing.B) {
		for b.Loop() {
			execute(b, pool, `UPDATE bare SET n = n + 1`)
		}
	})
	b.Run("locks", func(b *testing.B) {
		for b.Loop() {
			s.RenewBatch(context.Background(), reqs, func(
				_ int, res backend.RenewResult, err error,
			) {
				if !res.Held {
					b.Error(res, err)
				}
			})
		}
	})
}

// Pairs leave dead rows behind, which autovacuum removes with the schema's settings. The benchmark
// makes a million pairs, or as many as a minute allows.
func BenchmarkBloat(b *testing.B) {
	const many, pairs, most = 64, 1_000_000, time.Minute
	pool := benchmarked(b, 4)
	s := open(b, pool)
	var done atomic.Int64
	var all sync.WaitGroup
	for end := time.Now().Add(most); b.Loop(); end = time.Now() { // once
		for i := range many {
			all.Go(func() {
				for time.Now().Before(end) && done.Add(1) <= pairs {
					lockAndUnlock(b, s, fmt.Sprint(i))
				}
			})
		}
		all.Wait()
	}
	s.Close() // the server's processes report their counts when they end
	backend.CapabilitiesOf(s).Settle()
	stats := func(what string) float64 {
		return query[float64](b, pool, `SELECT `+what+` FROM pg_stat_all_tables
			WHERE relid = '`+lockTable+`'::regclass`)
	}
	n := float64(min(done.Load(), pairs))
	testservers.Until(b, "all is counted", func() bool { return stats(`n_tup_upd`) >= 1.9*n-many })
	b.ReportMetric(n, "pairs")
	b.ReportMetric(stats(`n_dead_tup`), "dead_rows")
	b.ReportMetric(stats(`autovacuum_count`), "vacuums")
	b.ReportMetric(query[float64](b, pool, `SELECT pg_relation_size('`+lockTable+`') / 1024`),
		"KiB")
	b.ReportMetric(stats(`100.0 * n_tup_hot_upd / greatest(n_tup_upd, 1)`), "%HOT")
}

// members returns how many members multixacts have had up to the last checkpoint.
func members(b *testing.B, pool *pgxpool.Pool) int64 {
	return query[int64](b, pool,
		`SELECT next_multi_offset::text::bigint FROM pg_control_checkpoint()`)
}

// 16 clients that read one name; and as many that add and delete a row of their own under an
// advisory lock that they share, which is the least that it can be.
func BenchmarkReaders(b *testing.B) {
	const clients = 16
	pool := benchmarked(b, clients)
	each := func(b *testing.B, do func(owner string)) {
		var all sync.WaitGroup
		for i := range clients {
			all.Go(func() {
				for range (b.N + clients - 1) / clients {
					do(fmt.Sprint("client ", i))
				}
			})
		}
		all.Wait()
	}
	shared := `WITH l AS MATERIALIZED (SELECT pg_advisory_xact_lock_shared(7)) `
	b.Run("bare", func(b *testing.B) {
		each(b, func(owner string) {
			for _, sql := range []string{
				shared + `INSERT INTO bare SELECT $1, 0 FROM l`,
				shared + `DELETE FROM bare WHERE name = $1 AND EXISTS (SELECT FROM l)`,
			} {
				if _, err := pool.Exec(b.Context(), sql, owner); err != nil {
					b.Error(err)
				}
			}
		})
	})
	b.Run("read", func(b *testing.B) {
		sessions := make(map[string]backend.Session)
		for i := range clients {
			sessions[fmt.Sprint("client ", i)] = open(b, pool)
		}
		execute(b, pool, `CHECKPOINT`)
		before := members(b, pool)
		each(b, func(owner string) {
			s := sessions[owner]
			acquire := backend.AcquireRequest{
				Kind: backend.Read, Name: "n", Owner: owner, Lease: lease,
			}
			if res, err := s.Acquire(b.Context(), acquire); err != nil || !res.Acquired {
				b.Error(res, err)
			}
			release := backend.ReleaseRequest{
				Kind: backend.Read, Name: "n", Owner: owner, Lease: lease,
			}
			if _, err := s.Release(b.Context(), release); err != nil {
				b.Error(err)
			}
		})
		execute(b, pool, `CHECKPOINT`)
		b.ReportMetric(float64(members(b, pool)-before), "members")
	})
}

// How long a writer waits beside 24 clients that read for 20 ms, again and again: each as a client
// of its own.
func BenchmarkWriterBesideReaders(b *testing.B) {
	const readers = 24
	pool := benchmarked(b, 32)
	client := func() *dlock.Client {
		c := dlock.New(postgresbackend.New(pool), dlock.WithLease(10*time.Second))
		b.Cleanup(func() { c.Close() })
		return c
	}
	ctx, stop := context.WithCancel(b.Context())
	var all, connected sync.WaitGroup
	connected.Add(readers)
	for range readers {
		l := client().RWLocker("n").Reader()
		all.Go(func() {
			_ = l.Do(ctx, func(context.Context) error { return nil }) // all read it in the end
			connected.Done()
			for ctx.Err() == nil {
				_ = l.Do(ctx, func(context.Context) error { // its context ends
					time.Sleep(20 * time.Millisecond)
					return nil
				})
			}
		})
	}
	connected.Wait()
	w := client().RWLocker("n").Writer()
	if err := w.Do(ctx, func(context.Context) error { return nil }); err != nil { // connects
		b.Fatal(err)
	}
	var longest time.Duration
	for b.Loop() {
		began := time.Now()
		if err := w.LockContext(ctx); err != nil {
			b.Fatal(err)
		}
		longest = max(longest, time.Since(began))
		if err := w.UnlockContext(ctx); err != nil {
			b.Fatal(err)
		}
		time.Sleep(20 * time.Millisecond)
	}
	stop()
	all.Wait()
	b.ReportMetric(float64(longest.Milliseconds()), "longest_ms")
}

// Hand-over from one client to another while more connections listen, for other locks.
func BenchmarkListeners(b *testing.B) {
	pool := benchmarked(b, 4)
	holder, waiter := open(b, pool), open(b, pool)
	var others []*pgx.Conn
	for _, more := range []int{0, 98} {
		for range more {
			conn := wiretest.Must[*pgx.Conn](b)(
				pgx.ConnectConfig(b.Context(), pool.Config().ConnConfig))
			b.Cleanup(func() { conn.Close(context.Background()) })
			if _, err := conn.Exec(b.Context(), `LISTEN something_else`); err != nil {
				b.Fatal(err)
			}
			others = append(others, conn)
		}
		b.Run(fmt.Sprint("beside ", len(others)), func(b *testing.B) {
			woken := make(chan struct{}, 1)
			sub, err := waiter.Subscribe(b.Context(), backend.SubscribeRequest{Name: "h",
				Wake: func(backend.Wakeup) {
					select {
					case woken <- struct{}{}:
					default:
					}
				}})
			if err != nil {
				b.Fatal(err)
			}
			defer sub.Close()
			var took []time.Duration
			for b.Loop() {
				lease := backend.AcquireRequest{Name: "h", Owner: alice, Lease: lease}
				if res, err := holder.Acquire(b.Context(), lease); err != nil || !res.Acquired {
					b.Fatal(res, err)
				}
				release := backend.ReleaseRequest{Name: "h", Owner: alice}
				began := time.Now()
				if _, err := holder.Release(b.Context(), release); err != nil {
					b.Fatal(err)
				}
				for got := false; !got; {
					<-woken // or by a message that is late
					res, err := waiter.Acquire(b.Context(), lease)
					if got = res.Acquired; err != nil {
						b.Fatal(err)
					}
				}
				took = append(took, time.Since(began))
				if _, err := waiter.Release(b.Context(), release); err != nil {
					b.Fatal(err)
				}
			}
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)/2].Microseconds()), "p50_µs")
		})
	}
}

// This measures the work of a neighbour in the same database, alone and while 32 clients contend
// for a lock.
func BenchmarkNeighbour(b *testing.B) {
	pool := benchmarked(b, 40)
	transactions := func(b *testing.B) {
		for b.Loop() {
			bareUpdate(b, pool, "1")
		}
	}
	b.Run("alone", transactions)
	b.Run("beside contenders", func(b *testing.B) {
		ctx, stop := context.WithCancel(b.Context())
		var all sync.WaitGroup
		var clients []*dlock.Client
		for range 32 {
			c := dlock.New(postgresbackend.New(pool), dlock.WithHandover(0),
				dlock.WithLease(10*time.Second))
			clients = append(clients, c)
			all.Go(func() {
				for ctx.Err() == nil {
					_ = c.Locker("n").Do(ctx, func(context.Context) error { // its context ends
						time.Sleep(5 * time.Millisecond)
						return nil
					})
				}
			})
		}
		transactions(b)
		stop()
		all.Wait()
		for _, c := range clients {
			c.Close()
		}
	})
}
