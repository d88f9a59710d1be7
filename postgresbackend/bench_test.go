package postgresbackend_test

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/internal/test/testservers"
	"github.com/seed951563bd/distsync/internal/test/wiretest"
)

// benchmarked is a server that flushes what is committed, with a table for what is compared: two
// commits of one row each, the least that a lock and an unlock can be.
func benchmarked(b *testing.B, conns int32) *pgxpool.Pool {
	pool := connect(b, testservers.Postgres(b, "fsync=on").Addr, size(conns))
	migrate(b, pool)
	execute(b, pool, `CREATE TABLE bare (name text PRIMARY KEY, n integer NOT NULL) WITH (fillfactor = 50)`)
	execute(b, pool, `INSERT INTO bare SELECT i::text, 0 FROM generate_series(0, 999) i`)
	return pool
}

func bareUpdate(b *testing.B, pool *pgxpool.Pool, name string) {
	if _, err := pool.Exec(b.Context(), `UPDATE bare SET n = n + 1 WHERE name = $1`, name); err != nil {
		b.Error(err)
	}
}

func lockAndUnlock(b *testing.B, s backend.Session, name string) {
	res, err := s.Acquire(b.Context(), backend.AcquireRequest{Name: name, Owner: alice, Lease: lease})
	if err != nil || !res.Acquired {
		b.Error(res, err)
	}
	if _, err := s.Release(b.Context(), backend.ReleaseRequest{Name: name, Owner: alice, Lease: lease}); err != nil {
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
		wiretest.Must[backend.AcquireResult](b)(s.Acquire(b.Context(), backend.AcquireRequest{Name: fmt.Sprint(i), Owner: alice, Lease: lease}))
		reqs[i] = backend.RenewRequest{Name: fmt.Sprint(i), Owner: alice, Lease: lease}
	}
	b.Run("bare", func(b *testing.B) {
		for b.Loop() {
			execute(b, pool, `UPDATE bare SET n = n + 1`)
		}
	})
	b.Run("locks", func(b *testing.B) {
		for b.Loop() {
			s.RenewBatch(context.Background(), reqs, func(_ int, res backend.RenewResult, err error) {
				if !res.Held {
					b.Error(res, err)
				}
			})
		}
	})
}
