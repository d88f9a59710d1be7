package postgresbackend_test

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/contract/faults"
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
	t.Parallel()
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
		req := back(name, alice)
		req.AskWaiting = true // as clients ask that take many turns
		res := wiretest.Must[backend.ReleaseResult](t)(s.Release(ctx, req))
		if want := (backend.ReleaseResult{Outcome: backend.Freed, Counted: true}); res != want {
			t.Errorf("%s: %+v, want %+v", name, res, want)
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

// Releases in a shared transaction count the clients that wait, if their requests ask for it. A
// client asks now and then while it takes one turn after another. In a separate statement, each of
// these releases would need a commit of its own.
func TestReleasesTogetherCountWaiters(t *testing.T) {
	t.Parallel()
	pool := connect(t, testservers.Postgres(t).Addr)
	migrate(t, pool)
	ctx, s, other := t.Context(), open(t, pool), open(t, pool)
	subscribe(t, other, backend.SubscribeRequest{Name: "awaited", Wake: func(backend.Wakeup) {}})
	var releases []backend.ReleaseRequest
	for _, name := range []string{"awaited", "alone", "awaited by nobody who asks"} {
		wiretest.Must[backend.AcquireResult](t)(s.Acquire(ctx, exclusively(name, alice)))
		req := back(name, alice)
		req.AskWaiting = len(releases) < 2
		releases = append(releases, req)
	}
	_, gone := postgresbackend.Together(ctx, s, nil, releases)
	for i, want := range []backend.ReleaseResult{
		{Outcome: backend.Freed, Counted: true, Waiting: 1},
		{Outcome: backend.Freed, Counted: true},
		{Outcome: backend.Freed},
	} {
		if gone[i] == nil || *gone[i] != want {
			t.Errorf("%s: %+v, want %+v", releases[i].Name, gone[i], want)
		}
	}
}

// A transaction of several steps doesn't take over what it has released itself: it would have its
// row locked in a way that guards let pass.
func TestStepsTogetherAcquireFirst(t *testing.T) {
	t.Parallel()
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
	t.Parallel()
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
	t.Parallel()
	pool := connect(t, testservers.Postgres(t).Addr)
	migrate(t, pool)
	ctx, s := t.Context(), open(t, pool)
	wiretest.Must[backend.AcquireResult](t)(s.Acquire(ctx, exclusively("held", alice)))
	execute(t, pool, `CREATE OR REPLACE FUNCTION distsync.distsync_v1_release_all(p_names text[],
		p_owners text[], p_session text, p_asks boolean[])
		RETURNS TABLE (i bigint, tell boolean, waiting bigint) LANGUAGE plpgsql AS $f$
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
	if n := query[int](t, pool, `SELECT count(*) FROM `+lockTable+` WHERE owner = $1`,
		bob); n != 0 {
		t.Errorf("%d locks have an owner, after a transaction that was rolled back", n)
	}
	for _, req := range acquires {
		res := wiretest.Must[backend.AcquireResult](t)(s.Acquire(ctx, req))
		if !res.Acquired || res.Count != 1 {
			t.Errorf("%s: %+v; want that it is held once", req.Name, res)
		}
	}
	// For its callers all goes on, one by one.
	s.(backend.Batcher).ReleaseBatch(ctx, releases, func(
		i int, res backend.ReleaseResult, err error,
	) {
		if err != nil || res.Outcome != backend.Freed {
			t.Errorf("%s: %+v, %v", releases[i].Name, res, err)
		}
	})
}

// A connection that breaks while a transaction of several steps is under way leaves each of them
// in doubt: none is sent again.
func TestStepsTogetherBreak(t *testing.T) {
	t.Parallel()
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

// A step whose reply is lost may have been carried out, whether it shares a transaction or not.
func TestLostReplies(t *testing.T) {
	t.Parallel()
	server := testservers.Postgres(t)
	migrate(t, connect(t, server.Addr))
	proxy := wiretest.Must[*faults.Proxy](t)(faults.NewProxy(server.Addr, faults.Bytes))
	t.Cleanup(func() { proxy.Close() })
	ctx, s := t.Context(), open(t, connect(t, proxy.Addr()))
	lose := func(function string) {
		proxy.LoseReply(func(r faults.Request) bool {
			return bytes.Contains(r.Bytes, []byte(".distsync_v1_"+function+"("))
		})
	}
	for n := 1; n <= 3; n++ {
		var acquires []backend.AcquireRequest
		var releases []backend.ReleaseRequest
		for i := range n {
			name := fmt.Sprintf("%d of %d", i, n)
			acquires = append(acquires, exclusively(name, alice))
			releases = append(releases, back(name, alice))
		}
		answers := 0
		answered := func(step string) func(int, error) {
			return func(i int, err error) {
				answers++
				if err == nil {
					t.Errorf("%s %s: no error, though the reply was lost", step, acquires[i].Name)
					return
				}
				wiretest.WantKind(t, err, backend.Unknown)
			}
		}
		function := "acquire"
		if n > 1 {
			function = "acquire_all"
		}
		lose(function)
		acquired := answered("acquire")
		s.(backend.Batcher).AcquireBatch(ctx, acquires,
			func(i int, _ backend.AcquireResult, err error) { acquired(i, err) })
		lose(strings.Replace(function, "acquire", "release", 1))
		released := answered("release")
		s.(backend.Batcher).ReleaseBatch(ctx, releases,
			func(i int, _ backend.ReleaseResult, err error) { released(i, err) })
		if answers != 2*n {
			t.Errorf("%d steps: %d answers", 2*n, answers)
		}
	}
}

// insertRow has a transaction of its own create the row of a lock. Steps that would, wait for it.
func insertRow(t *testing.T, pool *pgxpool.Pool, name string) pgx.Tx {
	t.Helper()
	tx := wiretest.Must[pgx.Tx](t)(pool.Begin(t.Context()))
	t.Cleanup(func() { _ = tx.Rollback(context.Background()) })
	_, err := tx.Exec(t.Context(), `INSERT INTO sound.distsync_v1_lock (name) VALUES ($1)`, name)
	if err != nil {
		t.Fatal(err)
	}
	return tx
}

// acquireTogether acquires plain locks together, and sends what came of each.
func acquireTogether(t *testing.T, s backend.Session, results chan<- backend.AcquireResult,
	owner string, names ...string) {
	var reqs []backend.AcquireRequest
	for _, name := range names {
		reqs = append(reqs, exclusively(name, owner))
	}
	go s.(backend.Batcher).AcquireBatch(t.Context(), reqs,
		func(i int, res backend.AcquireResult, err error) {
			if err != nil {
				t.Errorf("%s: %v", names[i], err)
			}
			results <- res
		})
}

// next returns the next value, for which a test has patience.
func next[T any](t *testing.T, values <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-values:
	case <-time.After(testservers.Patience):
		t.Fatal("no answer")
	}
	return v
}

// A session that asks to be told of several locks takes them in the order of their names. Steps
// that go together take those first that have a row: so they may wait for each other. It is the
// steps that give way soon, and each is carried out by itself. The server would take longer to
// notice; here it doesn't at all.
func TestStepsTogetherGiveWay(t *testing.T) {
	t.Parallel()
	pool := connect(t, testservers.Postgres(t, "deadlock_timeout=1h").Addr)
	text := strings.NewReplacer(`"distsync"`, "sound", `'distsync'`, "'sound'",
		"SET lock_timeout = '250ms'", "SET lock_timeout = '3s'", // long enough for what follows
	).Replace(postgresbackend.Schema(postgresbackend.DefaultSchema))
	execute(t, pool, text, pgx.QueryExecModeSimpleProtocol)
	ctx, s := t.Context(), open(t, pool, postgresbackend.WithSchema("sound"))
	execute(t, pool, `INSERT INTO sound.distsync_v1_lock (name) VALUES ('z')`)
	other := insertRow(t, pool, "a")
	results, asked := make(chan backend.AcquireResult), make(chan error)
	acquireTogether(t, s, results, alice, "a", "m", "z")
	testservers.Until(t, "the steps have z, and wait for a", func() bool {
		return waiting(t, pool, "%") == 1
	})
	go func() {
		_, err := pool.Exec(ctx, `SELECT sound.distsync_v1_ask('{m,z}', '{1,1}', $1)`,
			strings.Repeat("s", 26))
		asked <- err
	}()
	testservers.Until(t, "the session that asks has m, and waits for z", func() bool {
		return waiting(t, pool, "%") == 2
	})
	if err := other.Rollback(ctx); err != nil { // from here on the steps wait for m
		t.Fatal(err)
	}
	for range 3 {
		if res := next(t, results); !res.Acquired {
			t.Errorf("%+v; want that each is acquired in the end", res)
		}
	}
	if err := next(t, asked); err != nil {
		t.Errorf("to ask: %v", err)
	}
}

// Steps that go together create rows in the order of their names, whatever the order of the steps:
// so those of two sessions never wait for each other.
func TestStepsTogetherCreateRowsInOrder(t *testing.T) {
	t.Parallel()
	pool := connect(t, testservers.Postgres(t, "deadlock_timeout=1h").Addr)
	b := install(t, pool, nil) // in which steps wait for long
	one, two := b.Open(), b.Open()
	defer one.Close()
	defer two.Close()
	other := insertRow(t, pool, "x")
	results, refused := make(chan backend.AcquireResult), make(chan backend.AcquireResult)
	acquireTogether(t, one, results, alice, "b", "x", "a")
	testservers.Until(t, "the first steps wait for x", func() bool {
		return waiting(t, pool, "%") == 1
	})
	acquireTogether(t, two, refused, bob, "a", "b")
	testservers.Until(t, "the second steps wait for the first", func() bool {
		return waiting(t, pool, "%") == 2
	})
	if err := other.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if res := next(t, results); !res.Acquired {
			t.Errorf("%+v; want that the first steps acquire", res)
		}
	}
	for range 2 {
		if res := next(t, refused); res.Acquired {
			t.Errorf("%+v; want that the second find the locks held", res)
		}
	}
}
