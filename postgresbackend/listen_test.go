package postgresbackend_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/dlock"
	"github.com/seed951563bd/distsync/internal/test/testservers"
	"github.com/seed951563bd/distsync/internal/test/wiretest"
	"github.com/seed951563bd/distsync/postgresbackend"
)

// listeners returns how many connections listen.
func listeners(t *testing.T, pool *pgxpool.Pool) int {
	return query[int](t, pool,
		`SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'distsync listener%'`)
}

// One connection listens for all names, from the first waiter on. Its notes are deleted some time
// after the last waiter has left, and with the session.
func TestListening(t *testing.T) {
	t.Parallel()
	pool := connect(t, testservers.Postgres(t).Addr)
	migrate(t, pool)
	s := postgresbackend.New(pool).Open().(session)
	wiretest.Must[backend.AcquireResult](t)(s.Acquire(t.Context(), wiretest.Acquire(alice)))
	if n := listeners(t, pool); n != 0 {
		t.Errorf("%d connections listen though nobody waits", n)
	}
	notes := func() int {
		return query[int](t, pool, `SELECT count(*) FROM `+partTable+` WHERE role = 5`)
	}
	var subs []backend.Subscription
	for i := range 10 {
		subs = append(subs, subscribe(t, s,
			backend.SubscribeRequest{Name: fmt.Sprint(i), Wake: func(backend.Wakeup) {}}))
	}
	if n := listeners(t, pool); n != 1 {
		t.Errorf("%d connections listen; want one", n)
	}
	if n := notes(); n != 10 {
		t.Errorf("%d notes; want 10", n)
	}
	for _, sub := range subs[1:] {
		sub.Close()
	}
	testservers.Until(t, "only the note is left of who waits", func() bool { return notes() == 1 })
	s.Close()
	backend.CapabilitiesOf(s).Settle()
	testservers.Until(t, "nothing is left of the session", func() bool {
		return notes() == 0 && listeners(t, pool) == 0
	})
}

// A release without waiters sends no message. A release with waiters sends one when it was
// committed.
func TestMessages(t *testing.T) {
	t.Parallel()
	pool := connect(t, testservers.Postgres(t).Addr)
	migrate(t, pool)
	s := open(t, pool)
	woke := make(chan bool, 100)
	for _, kind := range []backend.Kind{backend.Exclusive, backend.Write, backend.Read,
		backend.Permits} {
		req := backend.AcquireRequest{
			Kind: kind, Name: kind.String(), Owner: alice, Lease: lease, Permits: 1, Limit: 1,
		}
		wiretest.Must[backend.AcquireResult](t)(s.Acquire(t.Context(), req))
		sub := wiretest.Must[backend.Subscription](t)(open(t, pool).
			Subscribe(t.Context(), backend.SubscribeRequest{
				Kind: kind, Name: kind.String(), Wake: func(backend.Wakeup) {
					// A notification is sent only after the release has happened.
					res, err := s.Look(context.Background(), backend.LookRequest{
						Kind: kind, Name: kind.String(), Limit: 1,
					})
					if err != nil || res.Held {
						t.Errorf("%v: told of a release, and it is held: %v, %v", kind, res, err)
					}
					woke <- true
				},
			}))
		wiretest.Must[backend.ReleaseResult](t)(s.Release(t.Context(),
			backend.ReleaseRequest{
				Kind: kind, Name: kind.String(), Owner: alice, Lease: lease, Permits: 1,
			}))
		select {
		case <-woke:
		case <-time.After(testservers.Patience):
			t.Fatalf("%v: nobody was told", kind)
		}
		sub.Close()
	}
}

// A client that polls has no connection that listens.
func TestPolling(t *testing.T) {
	t.Parallel()
	pool := connect(t, testservers.Postgres(t).Addr)
	migrate(t, pool)
	s := open(t, pool, postgresbackend.Polling())
	_, err := s.Subscribe(t.Context(), backend.SubscribeRequest{Name: "n", Wake: func(
		backend.Wakeup,
	) {
	}})
	wiretest.WantKind(t, err, backend.Refused)
	if n := listeners(t, pool); n != 0 {
		t.Errorf("%d connections listen", n)
	}
}

// Behind PgBouncer in transaction mode all steps work, nobody can be told of releases, and the
// client says so once.
func TestBouncer(t *testing.T) {
	t.Parallel()
	server := testservers.Postgres(t)
	pool := connect(t, server.Addr)
	migrate(t, pool)
	for _, mode := range []string{"transaction", "session"} {
		t.Run(mode, func(t *testing.T) {
			bouncer := testservers.PgBouncer(t, server, "pool_mode = "+mode,
				"default_pool_size = 20")
			var log syncBuffer
			logger := slog.New(slog.NewTextHandler(&log, nil))
			var inside int // guarded by the lock
			var turns atomic.Int64
			ctx, stop := context.WithCancel(t.Context())
			defer stop()
			var all sync.WaitGroup
			for range 2 {
				c := dlock.New(postgresbackend.New(connect(t, bouncer.Addr)),
					dlock.WithLogger(logger), dlock.WithHandover(0), dlock.WithLease(3*time.Second))
				defer c.Close()
				for range 2 {
					all.Go(func() {
						for ctx.Err() == nil {
							err := c.Locker("both "+mode).Do(ctx, func(context.Context) error {
								inside++
								defer func() { inside-- }()
								if turns.Add(1); inside != 1 {
									t.Error("two are inside")
								}
								return nil
							})
							if err != nil && ctx.Err() == nil {
								t.Error(err)
							}
						}
					})
				}
			}
			said := func() int { return strings.Count(log.String(), "waiters poll") }
			testservers.Until(t, "both clients listen, or know that they can't", func() bool {
				return (listeners(t, pool) == 2 && mode == "session" || said() == 2) &&
					turns.Load() >= 20
			})
			stop()
			all.Wait()
			if n := said(); (mode == "transaction") != (n == 2) || mode == "session" && n > 0 {
				t.Errorf("it is said %d times by two clients that they poll:\n%s", n, log.String())
			}
		})
	}
}

// A connection that has received a message, but doesn't receive those of its session, is no
// listener. Behind a pooler the answer to LISTEN may bring messages that are for others.
func TestForeignMessagesProveNothing(t *testing.T) {
	t.Parallel()
	server := testservers.Postgres(t)
	pool := connect(t, server.Addr)
	migrate(t, pool)
	conn, err := pgx.ConnectConfig(t.Context(), pool.Config().ConnConfig)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.WithoutCancel(t.Context()))
	hears, err := postgresbackend.Proves(open(t, pool), conn, "", "oa lock")
	if hears || err != nil {
		t.Errorf("a connection that doesn't listen: %t, %v", hears, err)
	}
}

// syncBuffer is a buffer that several write to.
type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// A waiter that subscribes while the last hold is being released is notified, or finds the lock
// free. It waits for a release that isn't committed yet and has not seen it subscribe.
func TestAskingBesideARelease(t *testing.T) {
	t.Parallel()
	pool := connect(t, testservers.Postgres(t).Addr)
	migrate(t, pool)
	ctx, s := t.Context(), open(t, pool)
	for _, c := range []struct {
		held, wanted backend.Kind
		release      string // by its name and owner
	}{
		{backend.Exclusive, backend.Exclusive, `release(1::smallint, $1, $2, '', 1000, 0, false)`},
		{backend.Read, backend.Write, `leave(1::smallint, $1, $2, '', 1, 0, false)`},
		{backend.Permits, backend.Permits, `leave(4::smallint, $1, $2, '', 1, 0, false)`},
		{backend.Permits, backend.Permits, `renew_part(4::smallint, $1, $2, 2, 1000)`},
		{backend.Permits, backend.Permits, `force(3::smallint, 4::smallint, $1)`},
	} {
		t.Run(c.release, func(t *testing.T) {
			req := backend.AcquireRequest{Kind: c.held, Name: c.release, Owner: alice, Lease: lease,
				Permits: 1, Limit: 1}
			wiretest.Must[backend.AcquireResult](t)(s.Acquire(ctx, req))
			tx := wiretest.Must[pgx.Tx](t)(pool.Begin(ctx))
			defer tx.Rollback(ctx)
			args := []any{req.Name, alice}[:strings.Count(c.release, "$")]
			var tells bool
			err := tx.QueryRow(ctx, `SELECT tell FROM distsync.distsync_v1_`+c.release, args...).
				Scan(&tells)
			if err != nil {
				t.Fatal(err)
			}
			req.Kind, req.Owner = c.wanted, bob
			done := make(chan backend.AcquireResult, 1)
			go func() {
				defer subscribe(t, s, backend.SubscribeRequest{
					Kind: req.Kind, Name: req.Name, Wake: func(backend.Wakeup) {},
				}).Close()
				done <- wiretest.Must[backend.AcquireResult](t)(s.Acquire(ctx, req))
			}()
			testservers.Until(t, "whoever asks waits for the release, or was answered",
				func() bool {
					return len(done) > 0 || query[bool](t, pool,
						`SELECT count(*) > 0 FROM pg_stat_activity WHERE wait_event_type = 'Lock'`)
				})
			if err := tx.Commit(ctx); err != nil {
				t.Fatal(err)
			}
			if res := <-done; !res.Acquired && !tells {
				t.Errorf("%+v, and nobody is told that it is free", res)
			}
		})
	}
}
