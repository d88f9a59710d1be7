package migratelock_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/fstest"
	"testing/synctest"
	"time"

	"github.com/golang-migrate/migrate/v4"
	"github.com/golang-migrate/migrate/v4/database"
	"github.com/golang-migrate/migrate/v4/database/sqlite"
	"github.com/golang-migrate/migrate/v4/database/stub"
	databasetesting "github.com/golang-migrate/migrate/v4/database/testing"
	"github.com/golang-migrate/migrate/v4/source"
	"github.com/golang-migrate/migrate/v4/source/iofs"
	"github.com/redis/go-redis/v9"

	migratelock "github.com/seed951563bd/distsync/adapters/migrate"
	"github.com/seed951563bd/distsync/backend"
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

// A hooked driver calls a function before each migration.
type hooked struct {
	database.Driver
	hook func()
}

func (h hooked) Run(migration io.Reader) error {
	h.hook()
	return h.Driver.Run(migration)
}

// A slow source calls a function when it is asked for the first migration, which is when the lock
// is held.
type slow struct {
	source.Driver
	hook func()
}

func (s slow) First() (uint, error) {
	s.hook()
	return s.Driver.First()
}

// migrations has one, which fails if it is run twice.
var migrations = fstest.MapFS{"1_orders.up.sql": {Data: []byte("CREATE TABLE orders (id " +
	"INTEGER);")}}

// open returns migrate's own driver for a file.
func open(file string) (database.Driver, error) {
	return new(sqlite.Sqlite).Open("sqlite://" + file + "?_pragma=busy_timeout(30000)")
}

func newMigrate(driver database.Driver, read func()) (*migrate.Migrate, error) {
	files, err := iofs.New(migrations, ".")
	if err != nil {
		return nil, err
	}
	return migrate.NewWithInstance("iofs", slow{files, read}, "sqlite", driver)
}

func nothing() {}

// The tests that each driver of migrate has to pass.
func TestMigratesOwn(t *testing.T) {
	t.Parallel()
	stores.Each(t, func(t *testing.T, connect func() *dlock.Client) {
		files, err := open(filepath.Join(t.TempDir(), "db"))
		must(t, err)
		driver := migratelock.New(files, connect(), "migrations")
		databasetesting.Test(t, driver, []byte("CREATE TABLE orders (id INTEGER);"))
		must(t, driver.Close())
	})
}

func TestReplicasMigrateOnce(t *testing.T) {
	t.Parallel()
	stores.Each(t, func(t *testing.T, connect func() *dlock.Client) {
		file := filepath.Join(t.TempDir(), "db")
		var ran atomic.Int32
		var all sync.WaitGroup
		for range 3 {
			files, err := open(file)
			must(t, err)
			m, err := newMigrate(migratelock.New(hooked{files, func() { ran.Add(1) }}, connect(),
				"migrations"), nothing)
			must(t, err)
			all.Go(func() {
				if err := m.Up(); err != nil && err != migrate.ErrNoChange {
					t.Error(err)
				}
				m.Close()
			})
		}
		all.Wait()
		if n := ran.Load(); n != 1 {
			t.Errorf("a migration ran %d times", n)
		}
	})
}

// migrate gives up after a time, and a lock that came after that would be nobody's.
func TestNoLockComesAfterMigrateHasGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := membackend.New()
		other := stores.NewClient(t, store).Locker("migrations")
		must(t, other.LockContext(t.Context()))
		files, err := new(stub.Stub).Open("stub://")
		must(t, err)
		m, err := newMigrate(migratelock.New(files, stores.NewClient(t, store), "migrations"),
			nothing)
		must(t, err)

		began := time.Now()
		err = m.Up() // with the default LockTimeout
		if !errors.Is(err, database.ErrLocked) || errors.Is(err, migrate.ErrLockTimeout) ||
			!errors.Is(err, dlock.ErrHeld) {
			t.Errorf("another has the lock, and Up returns %v", err)
		}
		if took := time.Since(began); took != migratelock.DefaultWait {
			t.Errorf("it took %v", took)
		}
		must(t, other.UnlockContext(t.Context()))
		time.Sleep(time.Minute)
		if held, err := other.IsLocked(t.Context()); err != nil || held {
			t.Errorf("the lock came later: %v, %v", held, err)
		}
		must(t, m.Up())
	})
}

func TestALockThatMigrateHasLeftIsGivenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := membackend.New()
		other := stores.NewClient(t, store).Locker("migrations")
		must(t, other.LockContext(t.Context()))
		files, err := new(stub.Stub).Open("stub://")
		must(t, err)
		m, err := newMigrate(migratelock.New(files, stores.NewClient(t, store), "migrations",
			migratelock.WithWait(time.Hour)), nothing)
		must(t, err)
		if err := m.Up(); !errors.Is(err, migrate.ErrLockTimeout) {
			t.Errorf("Up returns %v", err)
		}
		must(t, other.UnlockContext(t.Context()))
		synctest.Wait()
		source, database := m.Close()
		must(t, errors.Join(source, database))
		if held, err := other.IsLocked(t.Context()); err != nil || held {
			t.Errorf("the lock is still there: %v, %v", held, err)
		}
	})
}

// A Migrate that waits for less long than its driver leaves a Lock that waits.
func TestALockThatWaitsEndsWhenTheDriverIsClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := membackend.New()
		other := stores.NewClient(t, store).Locker("migrations")
		must(t, other.LockContext(t.Context()))
		files, err := new(stub.Stub).Open("stub://")
		must(t, err)
		d := migratelock.New(files, stores.NewClient(t, store), "migrations",
			migratelock.WithWait(time.Hour))
		locked := make(chan error, 1)
		go func() { locked <- d.Lock() }()
		synctest.Wait()
		must(t, d.Close())
		if err := <-locked; err == nil || !strings.Contains(err.Error(), "driver is closed") {
			t.Errorf("a Lock of a driver that was closed returns %v", err)
		}
		must(t, other.UnlockContext(t.Context()))
		synctest.Wait()
		if held, err := other.IsLocked(t.Context()); err != nil || held {
			t.Errorf("the lock came later: %v, %v", held, err)
		}
		if err := d.Lock(); err == nil || errors.Is(err, database.ErrLocked) {
			t.Errorf("a driver that is closed locks: %v", err)
		}
	})
}

// A hanging store doesn't answer a client that wants a lock.
type hanging struct{ backend.Backend }

func (h hanging) Open() backend.Session { return hangingSession{h.Backend.Open()} }

type hangingSession struct{ backend.Session }

func (hangingSession) Acquire(
	ctx context.Context, _ backend.AcquireRequest,
) (backend.AcquireResult, error) {
	<-ctx.Done()
	return backend.AcquireResult{}, ctx.Err()
}

// migrate would give up, and the lock come later.
func TestAStoreThatHangsKeepsNoLockWaitingForLong(t *testing.T) {
	for wait, bound := range map[time.Duration]time.Duration{
		0:                       5 * time.Second,
		3 * time.Second:         3 * time.Second,
		migratelock.DefaultWait: 10 * time.Second,
	} {
		synctest.Test(t, func(t *testing.T) {
			d := migratelock.New(new(stub.Stub), stores.NewClient(t, hanging{membackend.New()}),
				"migrations", migratelock.WithWait(wait))
			began := time.Now()
			err := d.Lock()
			if took := time.Since(began); took != bound || !errors.Is(err, dlock.ErrUnavailable) ||
				errors.Is(err, database.ErrLocked) {
				t.Errorf("with a wait of %v it took %v: %v", wait, took, err)
			}
		})
	}
}

// By the unlock, which has an error then, and by what follows from that.
func TestALossIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := membackend.New()
		files, err := new(stub.Stub).Open("stub://")
		must(t, err)
		d := migratelock.New(files, stores.NewClient(t, store), "migrations")
		m, err := newMigrate(d, func() {
			_, err := stores.NewClient(t, store).Locker("migrations").ForceUnlock(t.Context())
			must(t, err)
			time.Sleep(dlock.DefaultLease)
			if err := d.Lock(); !errors.Is(err, database.ErrLocked) ||
				!strings.Contains(err.Error(), `"migrations"`) {
				t.Errorf("a Lock before the Unlock returns %v", err)
			}
		})
		must(t, err)
		if err := m.Up(); !errors.Is(err, dlock.ErrLost) ||
			!strings.Contains(err.Error(), `"migrations"`) {
			t.Errorf("the lock was lost, and Up returns %v", err)
		}
		if err := m.Up(); err != migrate.ErrLocked {
			t.Errorf("the next Up returns %v", err)
		}
		must(t, d.Lock())
		must(t, d.Unlock())
		if err := d.Unlock(); err != database.ErrNotLocked {
			t.Errorf("an unlock too many returns %v", err)
		}
	})
}

// Every operation of migrate that locks gives the lock back, also if it fails.
func TestAMigrateThatFailsGivesTheLockBack(t *testing.T) {
	t.Parallel()
	stores.Each(t, func(t *testing.T, connect func() *dlock.Client) {
		files, err := open(filepath.Join(t.TempDir(), "db"))
		must(t, err)
		client := connect()
		locker := client.Locker("migrations")
		broken := true
		driver := migratelock.New(failing{files, func() bool {
			return broken
		}}, connect(), "migrations")
		m, err := newMigrate(driver, nothing)
		must(t, err)
		isFree := func(after string) {
			t.Helper()
			if held, err := locker.IsLocked(t.Context()); err != nil || held {
				t.Errorf("after %s the lock is held: %v, %v", after, held, err)
			}
		}
		if err := m.Up(); !errors.Is(err, errBroken) {
			t.Errorf("a migration that fails: %v", err)
		}
		isFree("a migration that failed")
		if err := m.Up(); !errors.As(err, new(migrate.ErrDirty)) {
			t.Errorf("a database that is dirty: %v", err)
		}
		isFree("an Up of what is dirty")
		must(t, locker.LockContext(t.Context()))
		for i, do := range []func() error{func() error { return m.Force(1) }, m.Drop} {
			// after which there is nothing to force
			done := make(chan error, 1)
			go func() { done <- do() }()
			select {
			case err := <-done:
				t.Fatalf("while another has the lock %s returns %v", []string{"Force", "Drop"}[i],
					err)
			case <-time.After(10 * time.Millisecond):
			}
			must(t, locker.UnlockContext(t.Context()))
			must(t, <-done)
			must(t, locker.LockContext(t.Context()))
		}
		must(t, locker.UnlockContext(t.Context()))
		broken = false
		if _, _, err := m.Version(); err != nil && err != migrate.ErrNilVersion {
			t.Error(err)
		}
		isFree("Force, Drop and Version")
		source, database := m.Close()
		must(t, errors.Join(source, database))
	})
}

// A failing driver fails in the middle of a migration.
type failing struct {
	database.Driver
	fails func() bool
}

var errBroken = errors.New("it fails")

func (f failing) Run(migration io.Reader) error {
	if f.fails() {
		io.Copy(io.Discard, migration) // or the goroutine of migrate's that reads it never ends
		return errBroken
	}
	return f.Driver.Run(migration)
}

func TestTheStoreIsDown(t *testing.T) {
	t.Parallel()
	server := testservers.Redis(t)
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr, MaxRetries: -1})
	t.Cleanup(func() { rdb.Close() })
	d := migratelock.New(&stub.Stub{}, stores.NewClient(t, redisbackend.New(rdb)), "migrations",
		migratelock.WithWait(time.Second))
	server.Kill()
	if err := d.Lock(); !errors.Is(err, dlock.ErrUnavailable) ||
		errors.Is(err, database.ErrLocked) {
		t.Errorf("Lock returns %v", err)
	}
}

func TestOpen(t *testing.T) {
	t.Parallel()
	client := stores.NewClient(t, membackend.New())
	a, err := migratelock.New(new(stub.Stub), client, "migrations", migratelock.WithWait(0)).
		Open("stub://")
	must(t, err)
	b := migratelock.New(new(stub.Stub), client, "migrations", migratelock.WithWait(0))
	must(t, a.Lock())
	if err := b.Lock(); !errors.Is(err, database.ErrLocked) {
		t.Errorf("what Open returns has another lock: %v", err)
	}
	must(t, a.Unlock())
	must(t, b.Lock())
	must(t, b.Unlock())
}

func TestWhatCannotBe(t *testing.T) {
	client := stores.NewClient(t, membackend.New())
	for name, make := range map[string]func(){
		"without a driver": func() { migratelock.New(nil, client, "migrations") },
		"without a client": func() { migratelock.New(new(stub.Stub), nil, "migrations") },
		"without a name":   func() { migratelock.New(new(stub.Stub), client, "") },
		"with an option nil": func() {
			migratelock.New(new(stub.Stub), client, "migrations", nil)
		},
		"with a negative wait": func() {
			migratelock.New(new(stub.Stub), client, "migrations", migratelock.WithWait(-1))
		},
	} {
		func() {
			defer func() {
				if said, ok := recover().(string); !ok ||
					!strings.HasPrefix(said, "migratelock: New: ") {
					t.Errorf("a Driver was made %s, or: %v", name, said)
				}
			}()
			make()
		}()
	}
}

// replica is a process that migrates by order: "up"; "hang before" a migration, or "hang within"
// it. It says "begun", "ran", "done", or what went wrong.
func replica(what string) error {
	addr, file, _ := strings.Cut(what, " ")
	rdb := redis.NewClient(&redis.Options{Addr: addr})
	client := dlock.New(redisbackend.New(rdb), dlock.WithLease(2*time.Second),
		dlock.WithLogger(slog.New(slog.DiscardHandler)))
	for orders := bufio.NewScanner(os.Stdin); orders.Scan(); {
		order := orders.Text()
		hangs := func(here string) func() {
			return func() {
				if order == "hang "+here {
					fmt.Println("begun")
					select {}
				}
				if here == "within" {
					fmt.Println("ran")
				}
			}
		}
		files, err := open(file)
		if err != nil {
			return err
		}
		m, err := newMigrate(migratelock.New(hooked{files, hangs("within")}, client, "migrations"),
			hangs("before"))
		if err != nil {
			return err
		}
		go func() {
			if err := m.Up(); err != nil && err != migrate.ErrNoChange {
				fmt.Println(err)
				return
			}
			fmt.Println("done")
		}()
	}
	return nil
}

// killed has three replicas migrate, of which the first is killed while it hangs.
func killed(t *testing.T, hang string) (all []*fleet.Replica) {
	server, file := testservers.Redis(t), filepath.Join(t.TempDir(), "db")
	for range 3 {
		all = append(all, fleet.Start(t, server.Addr+" "+file))
	}
	all[0].Order(hang)
	all[0].Await("begun")
	for _, r := range all[1:] {
		r.Order("up")
	}
	testservers.Until(t, "the others wait for the lock", func() bool {
		return strings.Count(server.Do("CLIENT", "LIST", "TYPE", "pubsub"), "id=") == 2
	})
	all[0].Kill()
	return all
}

func TestAMigrationOfAProcessThatIsKilledRunsElsewhereOnce(t *testing.T) {
	t.Parallel()
	all := killed(t, "hang before")
	for _, r := range all[1:] {
		r.Await("done")
	}
	if n := fleet.Count("ran", all...); n != 1 {
		t.Errorf("a migration ran %d times", n)
	}
}

// migrate wants somebody to look at what was begun.
func TestAMigrationInWhoseMiddleAProcessIsKilledDoesNotRunAgain(t *testing.T) {
	t.Parallel()
	all := killed(t, "hang within")
	for _, r := range all[1:] {
		r.Await(migrate.ErrDirty{Version: 1}.Error())
	}
	if n := fleet.Count("ran", all...); n != 0 {
		t.Errorf("a migration ran %d times more", n)
	}
}
