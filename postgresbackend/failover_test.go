package postgresbackend_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/internal/test/testservers"
	"github.com/seed951563bd/distsync/internal/test/wiretest"
)

// either connects to whichever of two servers isn't a standby.
func either(t *testing.T, one, two *testservers.Server) *pgxpool.Pool {
	t.Helper()
	url := fmt.Sprintf("postgres://postgres@%s,%s/postgres?sslmode=disable"+
		"&target_session_attrs=read-write&pool_max_conns=4", one.Addr, two.Addr)
	pool := wiretest.Must[*pgxpool.Pool](t)(pgxpool.New(t.Context(), url))
	t.Cleanup(pool.Close)
	return pool
}

// A standby finds locks held, and grants none. After its promotion it knows the holder, which goes
// on, and keeps others out. If it is synchronous, it certainly has the last acquisition before the
// primary died.
func TestFailover(t *testing.T) {
	t.Parallel()
	for _, synchronous := range []bool{false, true} {
		t.Run(fmt.Sprintf("synchronous %v", synchronous), func(t *testing.T) {
			primary := testservers.Postgres(t)
			standby := testservers.PostgresStandby(t, primary, "standby")
			pool := either(t, primary, standby)
			migrate(t, pool)
			reader := open(t, connect(t, standby.Addr))
			testservers.Until(t, "the standby has the schema", func() bool {
				_, err := reader.Look(t.Context(), backend.LookRequest{Name: "n"})
				return err == nil
			})
			if synchronous {
				primary.SQL(`ALTER SYSTEM SET synchronous_standby_names = 'standby';
					SELECT pg_reload_conf()`)
				testservers.Until(t, "the standby is waited for", func() bool {
					return primary.SQL(
						`SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'`) == "1"
				})
			}
			s := open(t, pool)
			token := wiretest.Must[backend.AcquireResult](t)(s.Acquire(t.Context(),
				backend.AcquireRequest{Kind: backend.Fenced, Name: "n", Owner: alice,
					Lease: lease})).Token
			if !synchronous {
				testservers.Until(t, "the standby has the lock", func() bool {
					return wiretest.Must[backend.LookResult](t)(reader.Look(t.Context(),
						backend.LookRequest{Name: "n", Owner: alice})).Count == 1
				})
				if res := wiretest.Must[backend.AcquireResult](t)(reader.Acquire(t.Context(),
					wiretest.Acquire(bob))); res.Acquired {
					t.Error("acquired on a standby")
				}
				_, err := reader.Release(t.Context(), wiretest.Release(alice))
				wiretest.WantKind(t, err, backend.Retry)
			}
			primary.Kill()
			standby.SQL(`SELECT pg_promote()`)
			var held bool
			testservers.Until(t, "the one that was promoted is found", func() bool {
				res, err := s.Renew(t.Context(), wiretest.Renew(alice))
				held = res.Held
				return err == nil
			})
			if !held {
				t.Fatal("the one that was promoted doesn't know the lock")
			}
			if res := wiretest.Must[backend.AcquireResult](t)(s.Acquire(t.Context(),
				wiretest.Acquire(bob))); res.Acquired {
				t.Error("another got it")
			}
			wiretest.Must[backend.ReleaseResult](t)(s.Release(t.Context(), wiretest.Release(alice)))
			next := wiretest.Must[backend.AcquireResult](t)(s.Acquire(t.Context(),
				backend.AcquireRequest{Kind: backend.Fenced, Name: "n", Owner: bob, Lease: lease}))
			if next.Token <= token {
				t.Errorf("number %d after %d", next.Token, token)
			}
		})
	}
}

// A standby that doesn't confirm keeps steps waiting until their contexts end. Whether they were
// carried out nobody knows.
func TestStandbyIsMissing(t *testing.T) {
	t.Parallel()
	server := testservers.Postgres(t, "synchronous_standby_names=missing",
		"synchronous_commit=local")
	migrate(t, connect(t, server.Addr))
	s := open(t, connect(t, server.Addr, parameter("synchronous_commit", "on")))
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	_, err := s.Acquire(ctx, wiretest.Acquire(alice))
	wiretest.WantKind(t, err, backend.Unknown)
}
