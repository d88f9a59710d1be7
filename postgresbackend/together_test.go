package postgresbackend_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/internal/test/testservers"
	"github.com/seed951563bd/distsync/internal/test/wiretest"
	"github.com/seed951563bd/distsync/postgresbackend"
)

func exclusively(name, owner string) backend.AcquireRequest {
	return backend.AcquireRequest{Name: name, Owner: owner, Lease: lease}
}

func back(name, owner string) backend.ReleaseRequest {
	return backend.ReleaseRequest{Name: name, Owner: owner, Lease: lease}
}

// Steps of many goroutines share transactions, acquisitions and releases alike.
func TestStepsShareATransaction(t *testing.T) {
	pool := connect(t, testservers.Postgres(t).Addr)
	migrate(t, pool)
	ctx, s := t.Context(), open(t, pool)
	const many = 32
	lock := func(name string) {
		res := wiretest.Must[backend.AcquireResult](t)(s.Acquire(ctx, exclusively(name, alice)))
		if !res.Acquired || res.Count != 1 {
			t.Errorf("%s: %+v", name, res)
		}
	}
	unlock := func(name string) {
		res := wiretest.Must[backend.ReleaseResult](t)(s.Release(ctx, back(name, alice)))
		if res.Outcome != backend.Freed {
			t.Errorf("%s: %+v", name, res)
		}
	}
	for i := 0; i < many; i += 2 {
		lock(fmt.Sprint(i))
	}
	testservers.Until(t, "a lock was acquired with the release of another", func() bool {
		var all sync.WaitGroup
		for i := range many {
			first, then := lock, unlock
			if i%2 == 0 {
				first, then = unlock, lock
			}
			all.Go(func() {
				for range 3 {
					first(fmt.Sprint(i))
					then(fmt.Sprint(i))
				}
			})
		}
		all.Wait()
		return query[bool](t, pool, `SELECT EXISTS (SELECT FROM `+lockTable+` a, `+lockTable+` b
			WHERE a.xmin = b.xmin AND a.owner IS NOT NULL AND b.owner IS NULL)`)
	})
}

// A transaction of several steps doesn't take over what it has released itself: it would have its
// row locked in a way that guards let pass.
func TestStepsTogetherAcquireFirst(t *testing.T) {
	pool := connect(t, testservers.Postgres(t).Addr)
	migrate(t, pool)
	ctx, s := t.Context(), open(t, pool)
	wiretest.Must[backend.AcquireResult](t)(s.Acquire(ctx, exclusively("n", alice)))
	got, gone := postgresbackend.Together(ctx, s,
		[]backend.AcquireRequest{exclusively("n", bob), exclusively("m", bob)},
		[]backend.ReleaseRequest{back("n", alice)})
	if got[0] == nil || got[0].Acquired || got[0].Remaining <= 0 {
		t.Errorf("what is released in the same transaction: %+v; want that it is held", got[0])
	}
	if got[1] == nil || !got[1].Acquired || gone[0] == nil || gone[0].Outcome != backend.Freed {
		t.Errorf("the others: %+v, %+v", got[1], gone[0])
	}
}

// A row that somebody keeps locked holds up no step that goes together with others.
func TestStepsTogetherPassARowThatIsLocked(t *testing.T) {
	pool := connect(t, testservers.Postgres(t).Addr)
	migrate(t, pool)
	ctx, s := t.Context(), open(t, pool)
	for _, name := range []string{"free", "free, locked"} {
		wiretest.Must[backend.AcquireResult](t)(s.Acquire(ctx, exclusively(name, alice)))
		wiretest.Must[backend.ReleaseResult](t)(s.Release(ctx, back(name, alice)))
	}
	for _, name := range []string{"held", "held, locked"} {
		wiretest.Must[backend.AcquireResult](t)(s.Acquire(ctx, exclusively(name, alice)))
	}
	tx := wiretest.Must[pgx.Tx](t)(pool.Begin(ctx))
	defer tx.Rollback(ctx)
	_, err := tx.Exec(ctx, `SELECT FROM `+lockTable+` WHERE name LIKE '%locked' FOR UPDATE`)
	if err != nil {
		t.Fatal(err)
	}
	got, gone := postgresbackend.Together(ctx, s,
		[]backend.AcquireRequest{exclusively("free, locked", bob), exclusively("free", bob)},
		[]backend.ReleaseRequest{back("held, locked", alice), back("held", alice)})
	if got[0] != nil || gone[0] != nil {
		t.Errorf("done beside somebody who has the row: %+v, %+v", got[0], gone[0])
	}
	if got[1] == nil || !got[1].Acquired || gone[1] == nil || gone[1].Outcome != backend.Freed {
		t.Errorf("held up: %+v, %+v", got[1], gone[1])
	}
	// To the caller it is a step that takes longer.
	done := make(chan backend.ReleaseResult)
	go func() {
		done <- wiretest.Must[backend.ReleaseResult](t)(s.Release(ctx, back("held, locked", alice)))
	}()
	testservers.Until(t, "the release waits for the row", func() bool {
		return query[bool](t, pool,
			`SELECT count(*) > 0 FROM pg_stat_activity WHERE wait_event_type = 'Lock'`)
	})
	if err := tx.Rollback(ctx); err != nil {
		t.Fatal(err)
	}
	if res := <-done; res.Outcome != backend.Freed {
		t.Errorf("the release that waited: %+v", res)
	}
}

// Where one statement of a transaction fails nothing of it was done, whatever the others have
// answered: each step is carried out by itself, once.
func TestStepsTogetherFail(t *testing.T) {
	pool := connect(t, testservers.Postgres(t).Addr)
	migrate(t, pool)
	ctx, s := t.Context(), open(t, pool)
	wiretest.Must[backend.AcquireResult](t)(s.Acquire(ctx, exclusively("held", alice)))
	execute(t, pool, `CREATE OR REPLACE FUNCTION distsync.distsync_v1_release_all(p_names text[],
		p_owners text[]) RETURNS TABLE (i bigint, tell boolean) LANGUAGE plpgsql AS $f$
		BEGIN RAISE EXCEPTION 'no room' USING ERRCODE = '53100'; END $f$`)
	acquires := []backend.AcquireRequest{exclusively("new", bob), exclusively("other", bob)}
	releases := []backend.ReleaseRequest{back("held", alice), back("new", bob)}
	got, gone := postgresbackend.Together(ctx, s, acquires, releases[:1])
	for _, res := range got {
		if res != nil {
			t.Errorf("acquired in a transaction that was rolled back: %+v", *res)
		}
	}
	if gone[0] != nil {
		t.Errorf("released in a transaction that was rolled back: %+v", *gone[0])
	}
	if n := query[int](t, pool, `SELECT count(*) FROM `+lockTable+` WHERE owner = $1`, bob); n != 0 {
		t.Errorf("%d locks have an owner, after a transaction that was rolled back", n)
	}
	for _, req := range acquires {
		res := wiretest.Must[backend.AcquireResult](t)(s.Acquire(ctx, req))
		if !res.Acquired || res.Count != 1 {
			t.Errorf("%s: %+v; want that it is held once", req.Name, res)
		}
	}
	// For its callers all goes on, one by one.
	s.(backend.Batcher).ReleaseBatch(ctx, releases, func(i int, res backend.ReleaseResult, err error) {
		if err != nil || res.Outcome != backend.Freed {
			t.Errorf("%s: %+v, %v", releases[i].Name, res, err)
		}
	})
}

// A connection that breaks while a transaction of several steps is under way leaves each of them
// in doubt: none is sent again.
func TestStepsTogetherBreak(t *testing.T) {
	pool := connect(t, testservers.Postgres(t).Addr)
	migrate(t, pool)
	ctx, s := t.Context(), open(t, pool)
	tx := wiretest.Must[pgx.Tx](t)(pool.Begin(ctx))
	defer tx.Rollback(ctx)
	_, err := tx.Exec(ctx, `INSERT INTO `+lockTable+` (name) VALUES ('new')`)
	if err != nil {
		t.Fatal(err)
	}
	execute(t, pool, strings.ReplaceAll(postgresbackend.Schema(postgresbackend.DefaultSchema),
		"SET lock_timeout = '250ms'", "SET lock_timeout = '30s'"), pgx.QueryExecModeSimpleProtocol)
	acquires := []backend.AcquireRequest{exclusively("new", alice), exclusively("other", alice)}
	failed := make(chan error, len(acquires))
	go s.(backend.Batcher).AcquireBatch(ctx, acquires,
		func(_ int, res backend.AcquireResult, err error) { failed <- err })
	testservers.Until(t, "the server process that waits for the row is ended", func() bool {
		return query[int](t, pool, `SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
			WHERE wait_event_type = 'Lock'`) > 0
	})
	for range acquires {
		select {
		case err := <-failed:
			wiretest.WantKind(t, err, backend.Unknown)
		case <-time.After(testservers.Patience):
			t.Fatal("no answer")
		}
	}
}
