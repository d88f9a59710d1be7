package gooselock_test

import (
	"bufio"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pressly/goose/v3"
	"github.com/redis/go-redis/v9"
	_ "modernc.org/sqlite"

	gooselock "github.com/seed951563bd/distsync/adapters/goose"
	"github.com/seed951563bd/distsync/dlock"
	"github.com/seed951563bd/distsync/internal/test/fleet"
	"github.com/seed951563bd/distsync/internal/test/overview"
	"github.com/seed951563bd/distsync/internal/test/stores"
	"github.com/seed951563bd/distsync/internal/test/testservers"
	"github.com/seed951563bd/distsync/membackend"
	"github.com/seed951563bd/distsync/redisbackend"
)

func TestMain(m *testing.M) { fleet.Main(m, replica) }

func TestTheProgramOfTheOverview(t *testing.T) { overview.Compiles(t) }

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func open(file string) (*sql.DB, error) {
	return sql.Open("sqlite", "file:"+file+"?_pragma=busy_timeout(30000)")
}

// newProvider returns goose with a migration that fails if it is run twice, and calls hook first.
func newProvider(db *sql.DB, option goose.ProviderOption, hook func()) (*goose.Provider, error) {
	up := &goose.GoFunc{RunTx: func(ctx context.Context, tx *sql.Tx) error {
		hook()
		_, err := tx.ExecContext(ctx, "CREATE TABLE orders (id INTEGER)")
		return err
	}}
	return goose.NewProvider(goose.DialectSQLite3, db, nil, option,
		goose.WithGoMigrations(goose.NewGoMigration(1, up, nil)),
		goose.WithDisableGlobalRegistry(true))
}

func TestReplicasMigrateOnce(t *testing.T) {
	t.Parallel()
	for name, option := range map[string]func(*gooselock.Locker) goose.ProviderOption{
		"Locker": func(l *gooselock.Locker) goose.ProviderOption {
			return goose.WithLocker(l)
		},
		"SessionLocker": func(l *gooselock.Locker) goose.ProviderOption {
			return goose.WithSessionLocker(l)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			stores.Each(t, func(t *testing.T, connect func() *dlock.Client) {
				file := filepath.Join(t.TempDir(), "db")
				var ran atomic.Int32
				var all sync.WaitGroup
				for range 3 {
					db, err := open(file)
					must(t, err)
					defer db.Close()
					locker := gooselock.New(connect(), "migrations")
					for range 2 { // of a replica may migrate, too
						provider, err := newProvider(db, option(locker), func() {
							ran.Add(1)
							time.Sleep(20 * time.Millisecond) // for another to come in, if it can
						})
						must(t, err)
						all.Go(func() {
							if _, err := provider.Up(t.Context()); err != nil {
								t.Error(err)
							}
						})
					}
				}
				all.Wait()
				if n := ran.Load(); n != 1 {
					t.Errorf("a migration ran %d times", n)
				}
			})
		})
	}
}

func TestWhoWaitsGivesUpWithTheContext(t *testing.T) {
	t.Parallel()
	stores.Each(t, func(t *testing.T, connect func() *dlock.Client) {
		a, b := gooselock.New(connect(), "migrations"), gooselock.New(connect(), "migrations")
		must(t, a.Lock(t.Context(), nil))
		for _, l := range []*gooselock.Locker{a, b} {
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() { done <- l.Lock(ctx, nil) }()
			cancel()
			if err := <-done; !errors.Is(err, context.Canceled) {
				t.Errorf("a Lock that was given up returns %v", err)
			}
		}
		must(t, a.Unlock(t.Context(), nil))
		must(t, b.Lock(t.Context(), nil))
		must(t, b.Unlock(t.Context(), nil))
	})
}

// goose lets the next Up lock before the last one has unlocked.
func TestTheNextLockMayComeBeforeTheUnlock(t *testing.T) {
	t.Parallel()
	stores.Each(t, func(t *testing.T, connect func() *dlock.Client) {
		l := gooselock.New(connect(), "migrations")
		ctx := t.Context()
		inside := 0
		var all sync.WaitGroup
		for range 20 {
			all.Go(func() {
				if err := l.Lock(ctx, nil); err != nil {
					t.Error(err)
					return
				}
				inside++ // the race detector looks
				if inside != 1 {
					t.Errorf("%d have the lock", inside)
				}
				inside--
				if err := l.Unlock(context.WithoutCancel(ctx), nil); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
	})
}

// Two that migrate exclude each other, whichever owner their context names.
func TestTheContextDoesNotSayWhoLocks(t *testing.T) {
	t.Parallel()
	client := stores.NewClient(t, membackend.New(), dlock.WithGoroutineOwners())
	a, b := gooselock.New(client, "migrations"), gooselock.New(client, "migrations")
	ctx := dlock.WithOwner(t.Context(), dlock.NewOwner())
	must(t, a.Lock(ctx, nil))
	soon, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
	defer cancel()
	if err := b.Lock(soon, nil); !errors.Is(err, dlock.ErrHeld) {
		t.Errorf("while another has the lock it returns %v", err)
	}
	done := make(chan error)
	go func() { done <- a.Unlock(context.Background(), nil) }()
	must(t, <-done)
	must(t, b.Lock(ctx, nil))
	must(t, b.Unlock(ctx, nil))
}

func TestALossIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := membackend.New()
		l := gooselock.New(stores.NewClient(t, store), "migrations")
		must(t, l.Lock(t.Context(), nil))
		_, err := stores.NewClient(t, store).Locker("migrations").ForceUnlock(t.Context())
		must(t, err)
		time.Sleep(dlock.DefaultLease)

		next := make(chan error, 1)
		go func() { next <- l.Lock(t.Context(), nil) }()
		synctest.Wait()
		select {
		case <-next:
			t.Error("it was locked before it was unlocked")
		default:
		}
		if err := l.Unlock(t.Context(), nil); !errors.Is(err, dlock.ErrLost) {
			t.Errorf("the lock was lost, and the unlock returns %v", err)
		}
		must(t, <-next)
		must(t, l.Unlock(t.Context(), nil))
		if err := l.Unlock(t.Context(), nil); !errors.Is(err, dlock.ErrNotHeld) {
			t.Errorf("an unlock too many returns %v", err)
		}
	})
}

func TestTheStoreIsDown(t *testing.T) {
	t.Parallel()
	server := testservers.Redis(t)
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr, MaxRetries: -1})
	t.Cleanup(func() { rdb.Close() })
	l := gooselock.New(stores.NewClient(t, redisbackend.New(rdb)), "migrations")
	server.Kill()
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if err := l.Lock(ctx, nil); !errors.Is(err, dlock.ErrUnavailable) ||
		errors.Is(err, dlock.ErrHeld) {
		t.Errorf("Lock returns %v", err)
	}
}

// By the error of what goose was called for, though the migration went well.
func TestALossIsToldByUp(t *testing.T) {
	t.Parallel()
	for name, option := range map[string]func(*gooselock.Locker) goose.ProviderOption{
		"Locker": func(l *gooselock.Locker) goose.ProviderOption {
			return goose.WithLocker(l)
		},
		"SessionLocker": func(l *gooselock.Locker) goose.ProviderOption {
			return goose.WithSessionLocker(l)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db, err := open(filepath.Join(t.TempDir(), "db"))
			must(t, err)
			defer db.Close()
			client := stores.NewClient(t, membackend.New())
			provider, err := newProvider(db, option(gooselock.New(client, "migrations")), func() {
				_, err := client.Locker("migrations").ForceUnlock(t.Context())
				must(t, err)
			})
			must(t, err)
			results, err := provider.Up(t.Context())
			if !errors.Is(err, dlock.ErrLost) || !strings.Contains(err.Error(), `"migrations"`) {
				t.Errorf("the lock was lost, and Up returns %v, %v", results, err)
			}
			if _, err := provider.Up(t.Context()); err != nil {
				t.Errorf("the next Up returns %v", err)
			}
		})
	}
}

// A migration that fails, or whose context ends in its middle, gives the lock back.
func TestAMigrationThatFailsGivesTheLockBack(t *testing.T) {
	t.Parallel()
	stores.Each(t, func(t *testing.T, connect func() *dlock.Client) {
		db, err := open(filepath.Join(t.TempDir(), "db"))
		must(t, err)
		defer db.Close()
		client := connect()
		ctx, cancel := context.WithCancel(t.Context())
		provider, err := newProvider(db, goose.WithLocker(gooselock.New(client, "migrations")),
			cancel)
		must(t, err)
		if _, err := provider.Up(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("a migration whose context ended returns %v", err)
		}
		if held, err := client.Locker("migrations").IsLocked(t.Context()); err != nil || held {
			t.Errorf("after that the lock is held: %v, %v", held, err)
		}
		if _, err := provider.Up(t.Context()); err != nil {
			t.Errorf("the next Up returns %v", err)
		}
		if _, err := provider.Up(t.Context()); err != nil {
			t.Errorf("an Up with nothing to do returns %v", err)
		}
		if _, err := provider.ApplyVersion(t.Context(), 1, true); err == nil {
			t.Error("a migration was applied twice")
		}
		if held, err := client.Locker("migrations").IsLocked(t.Context()); err != nil || held {
			t.Errorf("in the end the lock is held: %v, %v", held, err)
		}
	})
}

func TestWhatCannotBe(t *testing.T) {
	client := stores.NewClient(t, membackend.New())
	for name, make := range map[string]func(){
		"without a client": func() { gooselock.New(nil, "migrations") },
		"without a name":   func() { gooselock.New(client, "") },
	} {
		func() {
			defer func() {
				if said, ok := recover().(string); !ok ||
					!strings.HasPrefix(said, "gooselock: New: ") {
					t.Errorf("a Locker was made %s, or: %v", name, said)
				}
			}()
			make()
		}()
	}
}

// replica is a process that migrates by order: "up", or "hang", whose migration never ends. It says
// "begun", "ran", "done", or what went wrong.
func replica(what string) error {
	addr, file, _ := strings.Cut(what, " ")
	rdb := redis.NewClient(&redis.Options{Addr: addr})
	client := dlock.New(redisbackend.New(rdb), dlock.WithLease(2*time.Second),
		dlock.WithLogger(slog.New(slog.DiscardHandler)))
	db, err := open(file)
	if err != nil {
		return err
	}
	for orders := bufio.NewScanner(os.Stdin); orders.Scan(); {
		provider, err := newProvider(db, goose.WithLocker(gooselock.New(client, "migrations")),
			func() {
				fmt.Println("begun")
				if orders.Text() == "hang" {
					select {}
				}
				fmt.Println("ran")
			})
		if err != nil {
			return err
		}
		go func() {
			if _, err := provider.Up(context.Background()); err != nil {
				fmt.Println(err)
				return
			}
			fmt.Println("done")
		}()
	}
	return nil
}

func TestAMigrationOfAProcessThatIsKilledRunsElsewhereOnce(t *testing.T) {
	t.Parallel()
	server, file := testservers.Redis(t), filepath.Join(t.TempDir(), "db")
	all := make([]*fleet.Replica, 3)
	for i := range all {
		all[i] = fleet.Start(t, server.Addr+" "+file)
	}
	dying, others := all[0], all[1:]
	dying.Order("hang")
	dying.Await("begun")
	for _, r := range others {
		r.Order("up")
	}
	testservers.Until(t, "the others wait for the lock", func() bool {
		return strings.Count(server.Do("CLIENT", "LIST", "TYPE", "pubsub"), "id=") == 2
	})
	dying.Kill()
	for _, r := range others {
		r.Await("done")
	}
	if n := fleet.Count("ran", all...); n != 1 {
		t.Errorf("a migration ran %d times", n)
	}
}
