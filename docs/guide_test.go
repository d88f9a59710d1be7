//lint:file-ignore SA4006,SA2001 the lines are as the guide prints them, each by itself

package docs_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"

	"github.com/seed951563bd/distsync/dlock"
	"github.com/seed951563bd/distsync/dlock/shards"
	"github.com/seed951563bd/distsync/internal/test/testservers"
	"github.com/seed951563bd/distsync/membackend"
	"github.com/seed951563bd/distsync/postgresbackend"
	"github.com/seed951563bd/distsync/quorumbackend"
	"github.com/seed951563bd/distsync/redisbackend"
)

// inMemory runs code of a document with a client and a context, in virtual time, and fails if
// something is held afterwards.
func inMemory(t *testing.T, code func(t *testing.T, ctx context.Context, client *dlock.Client)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		client := dlock.New(membackend.New())
		defer client.Close()
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		code(t, ctx, client)
		if held := client.Holds(); len(held) > 0 {
			t.Errorf("still held: %v", held)
		}
	})
}

func check(t *testing.T, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Error(err)
	}
}

func TestGuideLocker(t *testing.T) {
	inMemory(t, func(t *testing.T, ctx context.Context, client *dlock.Client) {
		runs := 0
		job := func(context.Context) error { runs++; return nil }

		l := client.Locker("lock:orders:42") // cheap, no I/O: in a handler, one per request

		l.Lock() // a sync.Locker, for code that takes one
		l.Unlock()

		err := l.LockContext(ctx)  // as long as ctx allows
		err = l.UnlockContext(ctx) // works after ctx has ended, too

		ok, err := l.TryLock(ctx) // now or not at all; false means that another holds it
		if ok {
			err = l.UnlockContext(ctx)
		}
		ok, err = l.TryLock(ctx, dlock.Wait(500*time.Millisecond), dlock.FixedLease(10*time.Second))
		if ok {
			err = l.UnlockContext(ctx)
		}

		err = l.LockContext(ctx, dlock.RenewedLease(5*time.Minute)) // renewed like any other
		err = l.UnlockContext(ctx)

		ran, err := l.TryDo(ctx, job) // skip the job if another is at it

		// options for code that can't give any
		var mu sync.Locker = l.With(dlock.RenewedLease(5 * time.Second))

		mu.Lock()
		mu.Unlock()
		check(t, err)
		if !ok || !ran || runs != 1 {
			t.Errorf("TryLock: %v, TryDo: %v, and the job ran %d times", ok, ran, runs)
		}
	})
}

func TestGuideHold(t *testing.T) {
	inMemory(t, func(t *testing.T, ctx context.Context, client *dlock.Client) {
		ship := func(ctx context.Context, order int) error { return ctx.Err() }
		shipped := func() error {
			h, err := client.Locker("lock:orders:42").Acquire(ctx) // a *dlock.Hold
			if err != nil {
				return err
			}
			defer h.Release(ctx)         // works after ctx has ended; ErrLost if the lock was lost
			return ship(h.Context(), 42) // the context ends when the hold does
		}
		check(t, shipped())
	})
}

func TestGuideReadAndWrite(t *testing.T) {
	inMemory(t, func(t *testing.T, ctx context.Context, client *dlock.Client) {
		read := 0
		readPrices := func(context.Context) error { read++; return nil }

		rw := client.RWLocker("lock:prices")                        // has all methods of a sync.RWMutex
		err := rw.Reader().Do(ctx, readPrices)                      // both sides are Lockers
		err = rw.Writer().Do(ctx, func(ctx context.Context) error { // a writer may read as well
			return rw.Reader().Do(ctx, readPrices)
		})

		check(t, err)
		if read != 2 {
			t.Errorf("read %d times", read)
		}
	})
}

// A table takes the place of a database.
type table struct{ token int64 }

func (t *table) ExecContext(_ context.Context, _ string, args ...any) (int, error) {
	if token := args[1].(int64); token >= t.token {
		t.token = token
		return 1, nil
	}
	return 0, nil
}

func TestGuideFenced(t *testing.T) {
	inMemory(t, func(t *testing.T, ctx context.Context, client *dlock.Client) {
		db, balance := new(table), 100

		err := client.FencedLocker("lock:account:7").Do(ctx, func(ctx context.Context) error {
			token, _ := dlock.Token(ctx) // larger than any before
			_, err := db.ExecContext(ctx,
				`UPDATE account SET balance = $1, token = $2 WHERE id = 7 AND token <= $2`,
				balance, int64(token))
			return err // look at how many rows that were: none if the token is stale
		})

		check(t, err)
		if db.token == 0 {
			t.Error("there was no token")
		}
	})
}

func TestGuidePermits(t *testing.T) {
	inMemory(t, func(t *testing.T, ctx context.Context, client *dlock.Client) {
		mail := "Dear customer"
		send := func(context.Context, string) error { return nil }

		slots := client.Semaphore("slots:mailer", 10)             // at most 10, in all processes together
		err := slots.Do(ctx, 1, func(ctx context.Context) error { // ctx ends if the permit is lost
			return send(ctx, mail)
		})
		h, err := slots.Acquire(ctx, 4) // four at once, or none; a *dlock.Hold
		n, err := slots.Available(ctx)  // 6, if nobody else has any

		check(t, err, h.Release(ctx))
		if n != 6 {
			t.Errorf("%d are available", n)
		}
	})
}

func TestGuideFair(t *testing.T) {
	inMemory(t, func(t *testing.T, ctx context.Context, client *dlock.Client) {
		serve := func(context.Context) error { return nil }

		l := client.FairLocker("lock:till:3") // a Locker, with all that a Locker has
		err := l.Do(ctx, serve)

		check(t, err)
	})
}

func TestGuideSeveral(t *testing.T) {
	inMemory(t, func(t *testing.T, ctx context.Context, client *dlock.Client) {
		from, to := "7", "8"
		transfer := func(context.Context, string, string) error { return nil }

		both := dlock.All(client.Locker("account:"+from), client.Locker("account:"+to)) // all or none
		err := both.Do(ctx, func(ctx context.Context) error {
			return transfer(ctx, from, to) // ctx ends when either of them is lost
		})

		check(t, err)
	})
}

func TestGuideLeader(t *testing.T) {
	inMemory(t, func(t *testing.T, ctx context.Context, client *dlock.Client) {
		ctx, stop := context.WithCancel(ctx)
		sendInvoices := func(ctx context.Context, term uint64) {
			if term > 0 {
				stop()
			}
		}

		election := client.Election("billing")
		err := election.Run(ctx, func(ctx context.Context) error { // in every process: one is in here
			term, _ := dlock.Token(ctx) // larger than any before: late writes can be refused
			for ctx.Err() == nil {      // ends when it leads no longer
				sendInvoices(ctx, term)
			}
			return nil
		})
		if err != nil && ctx.Err() == nil { // after a SIGTERM ctx has ended: no failure
			log.Fatal(err)
		}

		if !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
}

func TestGuideShards(t *testing.T) {
	inMemory(t, func(t *testing.T, ctx context.Context, client *dlock.Client) {
		ctx, stop := context.WithCancel(ctx)
		var mu sync.Mutex
		handled := map[string]bool{}
		next := func(_ context.Context, shard string) (string, error) { return shard, nil }
		handle := func(ctx context.Context, shard string, token uint64) error {
			mu.Lock()
			if handled[shard] = token > 0; len(handled) == 64 {
				stop()
			}
			mu.Unlock()
			time.Sleep(time.Second) // virtual
			return ctx.Err()
		}

		set := shards.New(client, "billing", shards.Numbered(64))              // or any list of names
		err := set.Run(ctx, func(ctx context.Context, s *shards.Shard) error { // in every replica
			for ctx.Err() == nil { // ends when the shard is to go elsewhere, and when it is lost
				batch, err := next(ctx, s.Name())
				if err != nil {
					return err // this replica tries again in a second
				}
				if err := handle(s.Finishing(), batch, s.Token()); err != nil {
					return err
				}
			}
			return nil // from here on another replica may run it
		})

		if !errors.Is(err, context.Canceled) || len(handled) != 64 {
			t.Error(err, handled)
		}
	})
}

func TestGuideOnce(t *testing.T) {
	inMemory(t, func(t *testing.T, ctx context.Context, client *dlock.Client) {
		made := 0
		makeReport := func(context.Context) error { made++; return nil }
		replica := func() {
			scheduled := "2026-11-22T03:00" // the same for all replicas, wherever and whenever they run
			ran, err := client.Once(ctx, "report", scheduled, time.Hour, makeReport)
			switch {
			case errors.Is(err, dlock.ErrHeld): // another is making it now
			case err != nil: // the store; or the report, if ran is true: the next one tries again
			case ran: // made it
			default: // it is made
			}
			check(t, err)
		}
		for range 3 {
			replica()
		}
		if made != 1 {
			t.Errorf("made %d reports", made)
		}
	})
	inMemory(t, func(t *testing.T, ctx context.Context, client *dlock.Client) {
		var runs atomic.Int32
		fetched := 0
		fetchRates := func(context.Context) error {
			fetched++
			time.Sleep(3 * time.Second)
			return nil
		}
		var all sync.WaitGroup
		for range 5 {
			all.Go(func() {
				ran, err := client.Locker("rates").Once(ctx, time.Minute, fetchRates, dlock.Wait(5*time.Second))
				check(t, err)
				if ran {
					runs.Add(1)
				}
			})
		}
		all.Wait()
		if runs.Load() != 1 || fetched != 1 {
			t.Errorf("fetched %d times, and %d calls say so", fetched, runs.Load())
		}
	})
}

func TestGuideLatch(t *testing.T) {
	inMemory(t, func(t *testing.T, ctx context.Context, client *dlock.Client) {
		go func() {
			for range 2 {
				time.Sleep(time.Second)
				check(t, client.Latch("import:2026-11-22").CountDown(ctx))
			}
		}()
		latch := client.Latch("import:2026-11-22")
		_, set := latch.Set(ctx, 3)     // by each of them: the first sets it
		counted := latch.CountDown(ctx) // in each of three processes, when its part is done
		opened := latch.Wait(ctx)       // until all three have counted down
		check(t, errors.Join(set, counted, opened))
	})
}

func TestGuideSeenFromOutside(t *testing.T) {
	inMemory(t, func(t *testing.T, ctx context.Context, client *dlock.Client) {
		l := client.Locker("lock:orders:42")
		check(t, l.LockContext(ctx))

		// who.Client is "web-7/4711/K5JQ…": host, process, and 80 random bits
		who, err := client.Locker("lock:orders:42").Holder(ctx)
		holds, waits := client.Holds(), client.Waits() // of this client; Losses() are, too
		for lock, err := range client.Locks(ctx, "lock:orders:") {
			fmt.Println(lock.Name, lock.Holders, err) // all in the store, in pages
		}

		check(t, err)
		if who.Client != client.ID() || len(holds) != 1 || len(waits) != 0 {
			t.Errorf("%v has it; held: %v, waited for: %v", who, holds, waits)
		}

		counted := map[dlock.LossReason]int{}
		h, err := client.Locker("lock:orders:43").Acquire(ctx)
		check(t, err)
		_, err = l.ForceUnlock(ctx)
		check(t, err)
		_, err = client.Locker("lock:orders:43").ForceUnlock(ctx)
		check(t, err)
		ctx = h.Context()

		// It is in what Release and UnlockContext return, too.
		if l, ok := errors.AsType[*dlock.Loss](context.Cause(ctx)); ok {
			// lock:orders:42: lost after 41s: the lease ran out: not renewed for 29.7s: dial tcp: …
			log.Print(l.Name, ": ", l)
			counted[l.Reason]++ // expired, gone, taken, forced, paused or lease
		}

		if len(counted) != 1 {
			t.Errorf("counted %v", counted)
		}
		if err := errors.Join(h.Release(ctx), l.UnlockContext(ctx)); !errors.Is(err,
			dlock.ErrLost) {
			t.Error(err)
		}
	})
}

// The guide's section about PostgreSQL is run on one.
func TestGuidePostgres(t *testing.T) {
	server := testservers.Postgres(t)
	pool, err := pgxpool.New(t.Context(), testservers.PostgresURL(server.Addr))
	check(t, err)
	defer pool.Close()
	for _, sql := range []string{postgresbackend.Schema("distsync"),
		`CREATE TABLE account AS SELECT 42 AS id, 7 AS balance`} {
		_, err := pool.Exec(t.Context(), sql, pgx.QueryExecModeSimpleProtocol)
		check(t, err)
	}
	locks := postgresbackend.New(pool) // a *pgxpool.Pool
	client := dlock.New(locks)
	defer client.Close()

	check(t, guarded(t.Context(), pool, locks, client))
	var balance int
	check(t, pool.QueryRow(t.Context(), `SELECT balance FROM account`).Scan(&balance))
	if balance != 8 {
		t.Errorf("the balance is %d, want 8", balance)
	}
}

func guarded(
	ctx context.Context, pool *pgxpool.Pool, locks *postgresbackend.Backend, client *dlock.Client,
) error {
	hold, err := client.FencedLocker("account:42").Acquire(ctx)
	if err != nil {
		return err
	}
	defer hold.Release(context.WithoutCancel(ctx))
	return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		if err := locks.Guard(ctx, tx, hold); err != nil {
			return err // another may have the lock
		}
		_, err := tx.Exec(ctx, `UPDATE account SET balance = balance + 1 WHERE id = 42`)
		return err
	})
}

func TestGuideQuorum(t *testing.T) {
	rdb1, rdb2, rdb3 := new(redis.Client), new(redis.Client), new(redis.Client)
	for _, rdb := range []**redis.Client{&rdb1, &rdb2, &rdb3} {
		// to be made is all that is asked of it: New does no I/O
		*rdb = redis.NewClient(&redis.Options{Addr: "localhost:0"})
		defer (*rdb).Close()
	}

	one, two, three := redisbackend.New(rdb1), redisbackend.New(rdb2), redisbackend.New(rdb3)
	client := dlock.New(quorumbackend.New(one, two, three))

	check(t, client.Close())
}
