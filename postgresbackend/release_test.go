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
// is left, a lock that is kept, and a grant.
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
		"fair, and granted": {
			kind: backend.Fair, release: fair, next: true, status: 2, flushed: true,
		},
	} {
		t.Run(what, func(t *testing.T) {
			req := backend.AcquireRequest{Kind: c.kind, Name: what, Owner: alice, Lease: time.Hour,
				Permits: 1, Limit: 1}
			acquire := func() { wiretest.Must[backend.AcquireResult](t)(s.Acquire(ctx, req)) }
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

// Messages and sweeps aren't flushed either.
func TestMessagesAreNotFlushed(t *testing.T) {
	t.Parallel()
	pool := connect(t, testservers.Postgres(t).Addr)
	migrate(t, pool)
	ctx := t.Context()
	for what, sql := range map[string]string{
		"a message": `SELECT distsync.distsync_v1_tell('n', 'o')`,
		"a sweep":   `SELECT distsync.distsync_v1_sweep(0, 10)`,
	} {
		tx := wiretest.Must[pgx.Tx](t)(pool.Begin(ctx))
		var commit string
		_, err := tx.Exec(ctx, sql)
		err = errors.Join(err, tx.QueryRow(ctx, `SHOW synchronous_commit`).Scan(&commit),
			tx.Rollback(ctx))
		if err != nil || commit != "off" {
			t.Errorf("%s: synchronous_commit %s, %v", what, commit, err)
		}
	}
}

// A release that a crash of the server takes back only keeps others out until the lease is over.
func TestCrashAfterARelease(t *testing.T) {
	t.Parallel()
	server := testservers.Postgres(t, "wal_writer_delay=10s") // nothing else flushes the release
	pool := connect(t, server.Addr)
	migrate(t, pool)
	ctx, s := t.Context(), open(t, pool)
	tried := func() (res backend.AcquireResult) {
		testservers.Until(t, "the server answers", func() (answered bool) {
			var err error
			res, err = s.Acquire(ctx, wiretest.Acquire(bob))
			return err == nil
		})
		return res
	}
	for range 10 {
		req := wiretest.Acquire(alice)
		req.Lease = 3 * time.Second
		wiretest.Must[backend.AcquireResult](t)(s.Acquire(ctx, req))
		wiretest.Must[backend.ReleaseResult](t)(s.Release(ctx, wiretest.Release(alice)))
		server.Restart()
		if !tried().Acquired {
			testservers.Until(t, "another gets the lock", func() bool { return tried().Acquired })
			return
		}
		// the release was flushed, or the restart took longer than the lease
		wiretest.Must[backend.ReleaseResult](t)(s.Release(ctx, wiretest.Release(bob)))
	}
	t.Error("no crash took a release back: was it flushed?")
}
