package postgresbackend_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/internal/test/testservers"
	"github.com/seed951563bd/distsync/internal/test/wiretest"
)

// A waiter that gets no place in line, since somebody kept the row of the lock from all others,
// isn't told that another has the lock. It would believe that it has a place, and come back before
// all others.
func TestNoPlaceIsNoAnswer(t *testing.T) {
	t.Parallel()
	pool := connect(t, testservers.Postgres(t).Addr)
	migrate(t, pool)
	s := open(t, pool)
	req := backend.AcquireRequest{Kind: backend.Fair, Name: "n", Owner: alice, Lease: lease,
		Place: lease}
	wiretest.Must[backend.AcquireResult](t)(s.Acquire(t.Context(), req))
	tx := wiretest.Must[pgx.Tx](t)(pool.Begin(t.Context()))
	defer tx.Rollback(context.Background())
	if _, err := tx.Exec(t.Context(), `SELECT FROM `+lockTable+` FOR UPDATE`); err != nil {
		t.Fatal(err)
	}
	req.Owner = bob
	short, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if res, err := s.Acquire(short, req); err == nil {
		t.Errorf("%+v, without a place", res)
	}
}
