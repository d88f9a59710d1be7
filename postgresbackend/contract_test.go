package postgresbackend_test

import (
	"context"
	"errors"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/contract"
	"github.com/seed951563bd/distsync/contract/faults"
	"github.com/seed951563bd/distsync/internal/test/depth"
	"github.com/seed951563bd/distsync/internal/test/testservers"
	"github.com/seed951563bd/distsync/internal/test/wiretest"
	"github.com/seed951563bd/distsync/postgresbackend"
)

func TestContract(t *testing.T) {
	choice := depth.Of[wiretest.Choice](wiretest.Essential, nil, nil)
	wiretest.Suite(t, 10, choice, func() contract.Harness {
		server := testservers.Postgres(t)
		migrate(t, connect(t, server.Addr))
		return contract.Harness{NewStore: func(t *testing.T) contract.Store {
			return store(t, server.Addr)
		}}
	})
}

const (
	lockTable = postgresbackend.DefaultSchema + ".distsync_v1_lock"
	partTable = postgresbackend.DefaultSchema + ".distsync_v1_part"

	latchTable = postgresbackend.DefaultSchema + ".distsync_v1_latch"
)

// store is what the suite needs, on a server without locks.
func store(t *testing.T, addr string) contract.Store {
	admin := connect(t, addr)
	wipe := func() {
		for { // a step that is late may want the tables in another order
			_, err := admin.Exec(context.Background(),
				`TRUNCATE `+lockTable+`, `+partTable+`, `+latchTable)
			if pgErr, ok := errors.AsType[*pgconn.PgError](err); ok && pgErr.Code == "40P01" {
				continue
			}
			if err != nil {
				t.Fatal(err)
			}
			return
		}
	}
	wipe()
	return contract.Store{
		Backend: func() backend.Backend { return postgresbackend.New(connect(t, addr)) },
		PutForeign: func(name string) {
			execute(t, admin, `INSERT INTO `+lockTable+
				` (name, kind, owner, count) VALUES ($1, 99, 'foreign', 7)`, name)
		},
		ForeignIntact: func(name string) bool {
			var intact bool
			err := admin.QueryRow(context.Background(),
				`SELECT kind = 99 AND owner = 'foreign' AND count = 7 AND token = 0
				AND expires = 'epoch' AND asked = 'epoch' FROM `+lockTable+` WHERE name = $1`,
				name).Scan(&intact)
			return err == nil && intact
		},
		Wipe: wipe,
		BreakSubscriptions: func() {
			execute(t, admin,
				`SELECT pg_terminate_backend(pid) FROM pg_stat_activity
				WHERE application_name LIKE 'distsync listener%'`)
		},
		Fragile: wiretest.Fragile(t, addr, faults.Bytes, func(addr string) backend.Backend {
			return postgresbackend.New(connect(t, addr, func(c *pgxpool.Config) { c.MaxConns = 1 }))
		}),
	}
}
