package recipes

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed951563bd/distsync/dlock"
	"github.com/seed951563bd/distsync/membackend"
)

// A table is a database with one migration, which takes its time, and mustn't be run twice.
type table struct {
	takes    time.Duration
	fails    error
	migrated atomic.Bool
	runs     gauge
}

func (db *table) HasPending(context.Context) (bool, error) {
	time.Sleep(time.Second)
	return !db.migrated.Load(), nil
}

func (db *table) Up(ctx context.Context) (err error) {
	db.runs.around(func() {
		select {
		case <-time.After(db.takes):
			db.migrated.Store(true)
		case <-ctx.Done():
			err = context.Cause(ctx)
		}
	})
	return errors.Join(err, db.fails)
}

// impatient is a table whose migrations don't look at their context, as those that somebody else's
// library runs.
type impatient struct{ *table }

func (db impatient) Up(context.Context) error { return db.table.Up(context.Background()) }

type migrating func(ctx context.Context, client *dlock.Client, db database) error

// startThree starts three replicas, so far apart, and returns what they say once each has started
// or given up.
func startThree(t *testing.T, db database, apart time.Duration, migrate migrating) []error {
	store := membackend.New()
	errs := make([]error, 3)
	var all sync.WaitGroup
	for i := range errs {
		client := replicaOn(t, store)
		all.Go(func() {
			time.Sleep(time.Duration(i) * apart)
			errs[i] = migrate(t.Context(), client, db)
		})
	}
	all.Wait()
	return errs
}

func TestWhoChecksAndThenMigratesDoesItAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := &table{takes: 10 * time.Second}
		startThree(t, db, 100*time.Millisecond, migrateWrong)
		if n := db.runs.entered.Load(); n != 3 {
			t.Errorf("three replicas have run a migration %d times", n)
		}
	})
}

func TestALeaseThatIsShorterThanTheMigration(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := &table{takes: 5 * time.Minute}
		startThree(t, impatient{db}, 100*time.Millisecond, migrateWrong)
		if n := db.runs.most.Load(); n != 3 {
			t.Errorf("%d replicas have migrated at the same time", n)
		}
	})
}

func TestWhoLocksWithoutALimitNeverStarts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cable := &line{Backend: membackend.New()}
		cable.down.Store(true)
		client, started := replicaOn(t, cable), make(chan struct{})
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour) // nobody looks at it
		defer cancel()
		go func() { defer close(started); migrateWrongToo(ctx, client, &table{}) }()
		select {
		case <-started:
			t.Error("it has started without the store")
		case <-time.After(3 * time.Hour):
		}
		cable.down.Store(false)
		<-started
	})
}

func TestMigrationsRunOnceWhileOthersWait(t *testing.T) {
	for _, takes := range []time.Duration{10 * time.Second, 14 * time.Minute} {
		synctest.Test(t, func(t *testing.T) {
			db := &table{takes: takes}
			migrate := func(ctx context.Context, client *dlock.Client, _ database) error {
				defer func() {
					if !db.migrated.Load() {
						t.Error("a replica has started before the database was migrated")
					}
				}()
				return migrateAtStart(ctx, client, impatient{db})
			}
			errs := startThree(t, db, 100*time.Millisecond, migrate)
			if n := db.runs.entered.Load(); n != 1 || errors.Join(errs...) != nil {
				t.Errorf("a migration of %v was run %d times: %v", takes, n, errs)
			}
		})
	}
}

func TestWhoWaitsForAMigrationTooLongSaysSo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := &table{takes: 20 * time.Minute}
		errs := startThree(t, db, 100*time.Millisecond, migrateAtStart)
		if errs[0] != nil || !errors.Is(errs[1], dlock.ErrHeld) ||
			!errors.Is(errs[2], dlock.ErrHeld) || !db.migrated.Load() {
			t.Errorf("a migration of 20 minutes: %v", errs)
		}
	})
}

// It fails for the first, and then for each of the others, which waited.
func TestAMigrationThatFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broken := errors.New("syntax error")
		db := &failing{table{takes: time.Minute, fails: broken}}
		errs := startThree(t, db, 100*time.Millisecond, migrateAtStart)
		for _, err := range errs {
			if !errors.Is(err, broken) || errors.Is(err, dlock.ErrHeld) {
				t.Errorf("a migration that fails: %v", errs)
			}
		}
		if n := db.runs.most.Load(); n != 1 {
			t.Errorf("%d replicas have tried it at the same time", n)
		}
	})
}

// failing is a table whose migration is rolled back.
type failing struct{ table }

func (db *failing) HasPending(context.Context) (bool, error) { return true, nil }

func TestTheNextMigratesIfAReplicaDies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := membackend.New()
		dying := &line{Backend: store}
		first, second := replicaOn(t, dying), replicaOn(t, store)
		db := &table{takes: 5 * time.Minute}
		died := make(chan error, 1)
		go func() { died <- migrateAtStart(t.Context(), first, db) }()
		time.Sleep(time.Minute)
		dying.down.Store(true)
		must(t, migrateAtStart(t.Context(), second, db))
		if n := db.runs.left.Load(); n != 2 || !db.migrated.Load() || db.runs.most.Load() != 1 {
			t.Errorf("one of two replicas was cut off while it migrated: the other has run the "+
				"migration %d times", n-1)
		}
		if err := <-died; !errors.Is(err, dlock.ErrLost) {
			t.Errorf("who was cut off says %v", err)
		}
	})
}
