package recipes

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/seed951563bd/distsync/dlock"
)

// database is the part of goose.Provider that runs migrations.
type database interface {
	HasPending(ctx context.Context) (bool, error)
	Up(ctx context.Context) error // runs the pending migrations
}

func migrateWrong(ctx context.Context, client *dlock.Client, db database) error {
	pending, err := db.HasPending(ctx)
	if err != nil || !pending {
		return err
	}
	lock := client.Locker("lock:migrations")
	return lock.Do(ctx, db.Up, dlock.FixedLease(time.Minute)) // the migrations take seconds
}

func migrateWrongToo(ctx context.Context, client *dlock.Client, db database) error {
	lock := client.Locker("lock:migrations")
	lock.Lock()
	defer lock.Unlock()
	return migrate(ctx, db)
}

// migrateAtStart returns when all migrations of this version of the program have run. After an
// error, the program should exit and be restarted.
func migrateAtStart(ctx context.Context, client *dlock.Client, db database) error {
	err := client.Locker("lock:migrations").Do(ctx, func(ctx context.Context) error {
		return migrate(ctx, db)
	}, dlock.Wait(15*time.Minute)) // longer than migrations take
	if errors.Is(err, dlock.ErrHeld) {
		return fmt.Errorf("another replica has been migrating for 15 minutes: %w", err)
	}
	return err
}

func migrate(ctx context.Context, db database) error {
	pending, err := db.HasPending(ctx) // another replica may have run them
	if err != nil || !pending {
		return err
	}
	return db.Up(ctx)
}
