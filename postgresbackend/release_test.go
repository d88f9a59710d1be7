package postgresbackend_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/internal/test/testservers"
	"github.com/seed951563bd/distsync/internal/test/wiretest"
)

// Nothing waits until the end of a hold is flushed. What keeps others out is flushed: a hold that
// is left, a lock that is kept, and a grant that outlasts the hold before it.
func TestReleasesThatAreFlushed(t *testing.T) {
	t.Parallel()
	pool := connect(t, testservers.Postgres(t).Addr)
	migrate(t, pool)
	ctx, s := t.Context(), open(t, pool)
	const (
		plain = `release(1::smallint, $1, $2, '', 1000, $3::bigint, false)`
		write = `release(2::smallint, $1, $2, '', 1000, $3::bigint, false)`
		part  = `leave(1::smallint, $1, $2, '', 1, $3::bigint, false)`
		share = `leave(4::smallint, $1, $2, '', 1, $3::bigint, false)`
		fair  = `fair(2::smallint, $1, ARRAY[$2], '', 1000, 0, false, $3::bigint, false)`
	)
	for what, c := range map[string]struct {
		kind    backend.Kind
		release string
		lease   time.Duration
		again   bool // the owner has it twice
		next    bool // another is in line
		keep    int  // in milliseconds
		status  int
		flushed bool
	}{
		"plain": {release: plain, status: 2},
		"plain, held twice": {
			release: plain, again: true, status: 1, flushed: true,
		},
		"plain, kept": {release: plain, keep: 1000, status: 3, flushed: true},
		"write":       {kind: backend.Write, release: write, status: 2},
		"read":        {kind: backend.Read, release: part, status: 2},
		"permit":      {kind: backend.Permits, release: share, status: 2},
		"permit, kept": {
			kind: backend.Permits, release: share, keep: 1000, status: 3, flushed: true,
		},
		"fair": {kind: backend.Fair, release: fair, status: 2},
		"fair, held twice": {
			kind: backend.Fair, release: fair, again: true, status: 1, flushed: true,
		},
		"fair, kept": {
			kind: backend.Fair, release: fair, keep: 1000, status: 3, flushed: true,
		},
		"fair, and granted": {kind: backend.Fair, release: fair, next: true, status: 2},
		"fair, a short hold": {
			kind: backend.Fair, release: fair, next: true, lease: time.Second, status: 2,
			flushed: true,
		},
	} {
		t.Run(what, func(t *testing.T) {
			req := backend.AcquireRequest{Kind: c.kind, Name: what, Owner: alice, Lease: time.Hour,
				Permits: 1, Limit: 1}
			acquire := func() { wiretest.Must[backend.AcquireResult](t)(s.Acquire(ctx, req)) }
			if c.lease > 0 {
				req.Lease = c.lease
			}
			acquire()
			if c.again {
				req.Reentry = true
				acquire()
			}
			if c.next {
				req.Owner, req.Place = bob, time.Hour
				acquire()
			}
			tx := wiretest.Must[pgx.Tx](t)(pool.Begin(ctx))
			defer tx.Rollback(context.Background())
			var status int
			var commit string
			err := errors.Join(
				tx.QueryRow(ctx, `SELECT status FROM distsync.distsync_v1_`+c.release, what, alice,
					c.keep).Scan(&status),
				tx.QueryRow(ctx, `SHOW synchronous_commit`).Scan(&commit))
			if err != nil || status != c.status || (commit == "on") != c.flushed {
				t.Errorf("status %d, synchronous_commit %s, %v; want %d, flushed: %v", status,
					commit, err, c.status, c.flushed)
			}
		})
	}
}

// A session that subscribes while a release tells another is told, too, or finds the lock free.
func TestAskingBesideAReleaseThatHasTold(t *testing.T) {
	t.Parallel()
	pool := connect(t, testservers.Postgres(t).Addr)
	migrate(t, pool)
	ctx := t.Context()
	first, second := open(t, pool), open(t, pool)
	wiretest.Must[backend.AcquireResult](t)(first.Acquire(ctx, wiretest.Acquire(alice)))
	subscription := backend.SubscribeRequest{Name: "n", Wake: func(backend.Wakeup) {}}
	defer subscribe(t, first, subscription).Close()
	tx := wiretest.Must[pgx.Tx](t)(pool.Begin(ctx))
	defer tx.Rollback(context.Background())
	var status int
	err := tx.QueryRow(ctx, `SELECT status FROM distsync.distsync_v1_release(
		1::smallint, 'n', $1, '', 1000, 0, false)`, alice).Scan(&status)
	if err != nil || status != 2 {
		t.Fatal(status, err)
	}
	done := make(chan backend.AcquireResult, 1)
	go func() {
		defer subscribe(t, second, subscription).Close()
		done <- wiretest.Must[backend.AcquireResult](t)(second.Acquire(ctx, wiretest.Acquire(bob)))
	}()
	testservers.Until(t, "it waits for the release, or was answered", func() bool {
		return len(done) > 0 || waiting(t, pool, "%") > 0
	})
	if err := tx.Commit(ctx); err != nil {
		t.Fatal(err)
	}
	if res := <-done; !res.Acquired {
		t.Errorf("%+v, and nobody is told that it is free", res)
	}
}

// A lock that was released just before its server crashed is free at the latest when the lease of
// its last hold is over.
func TestCrashAfterARelease(t *testing.T) {
	t.Parallel()
	server := testservers.Postgres(t, "wal_writer_delay=10s")
	pool := connect(t, server.Addr)
	migrate(t, pool)
	ctx, s := t.Context(), open(t, pool)
	req := wiretest.Acquire(alice)
	req.Lease = 2 * time.Second
	wiretest.Must[backend.AcquireResult](t)(s.Acquire(ctx, req))
	wiretest.Must[backend.ReleaseResult](t)(s.Release(ctx, wiretest.Release(alice)))
	server.Restart()
	testservers.Until(t, "another gets the lock", func() bool {
		res, err := s.Acquire(ctx, wiretest.Acquire(bob))
		return err == nil && res.Acquired
	})
}
