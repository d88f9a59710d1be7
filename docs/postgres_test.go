package docs_test

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/internal/test/testservers"
	"github.com/seed951563bd/distsync/internal/test/wiretest"
	"github.com/seed951563bd/distsync/postgresbackend"
)

func onPostgres(t *testing.T) place {
	server := testservers.Postgres(t)
	server.SQL(postgresbackend.Schema(postgresbackend.DefaultSchema))
	url := testservers.PostgresURL(server.Addr)
	return place{
		addr: server.Addr,
		env: []string{programs(t,
			map[string]string{"psql": "exec " + testservers.PostgresTool(t, "psql") + ` -X -d '` +
				url + `' "$@"`})},
		empty: func(*testing.T) {
			server.SQL(`TRUNCATE distsync.distsync_v1_lock, distsync.distsync_v1_part,
				distsync.distsync_v1_latch`)
		},
		backend: func(t *testing.T, _ string) backend.Backend {
			pool := wiretest.Must[*pgxpool.Pool](t)(pgxpool.New(t.Context(), url))
			t.Cleanup(pool.Close)
			return postgresbackend.New(pool)
		},
	}
}

var postgresScenes = map[string]scene{
	"locks": func(t *testing.T, p *place) func() {
		p.hold(t, backend.Exclusive, "orders:42", web+":17")
		p.hold(t, backend.Read, "prices", web+":19")
		p.hold(t, backend.Read, "prices", job+":6")
		p.queue(t, backend.Write, "prices", cron+":3", time.Minute)
		p.hold(t, backend.Fair, "till:3", web+":21")
		p.queue(t, backend.Fair, "till:3", job+":7", time.Minute)
		p.permits(t, "mailer", web+":22", 2)
		return nil
	},
	"a lock that won't go": func(t *testing.T, p *place) func() {
		p.hold(t, backend.Exclusive, "orders:42", web+":17")
		return func() {
			p.asks(t, backend.AcquireRequest{Name: "orders:42", Owner: job + ":1"}, true)
		}
	},
}
