package recipes

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/seed951563bd/distsync/dlock"
	"github.com/seed951563bd/distsync/postgresbackend"
)

func advisoryWrong(ctx context.Context, pool *pgxpool.Pool, db database) error {
	if _, err := pool.Exec(ctx, `SELECT pg_advisory_lock(42)`); err != nil {
		return err
	}
	defer pool.Exec(ctx, `SELECT pg_advisory_unlock(42)`) // on whichever connection is free
	return migrate(ctx, db)
}

func advisoryWrongToo(ctx context.Context, pool *pgxpool.Pool, db database) error {
	conn, err := pool.Acquire(ctx) // the lock is tied to this connection
	if err != nil {
		return err
	}
	defer conn.Release()
	if _, err := conn.Exec(ctx, `SELECT pg_advisory_lock(42)`); err != nil {
		return err
	}
	defer conn.Exec(ctx, `SELECT pg_advisory_unlock(42)`)
	return migrate(ctx, db)
}

// migrateGuarded runs the migrations that the database lacks. Each runs in a transaction that ends
// before another replica begins to migrate.
func migrateGuarded(
	ctx context.Context, client *dlock.Client, locks *postgresbackend.Backend,
	pool *pgxpool.Pool, migrations []string,
) error {
	hold, err := client.FencedLocker("lock:migrations").Acquire(ctx, dlock.Wait(15*time.Minute))
	if err != nil {
		return err
	}
	defer hold.Release(context.WithoutCancel(ctx))
	for n, migration := range migrations {
		err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			if err := locks.Guard(ctx, tx, hold); err != nil {
				return err // another replica may be migrating
			}
			_, err := tx.Exec(ctx, `CREATE TABLE IF NOT EXISTS migration (n integer PRIMARY KEY)`)
			if err != nil {
				return err
			}
			var done int
			err = tx.QueryRow(ctx, `SELECT count(*) FROM migration`).Scan(&done)
			if err != nil || n < done {
				return err // nil: the database has this migration
			}
			if _, err := tx.Exec(ctx, migration); err != nil {
				return err
			}
			_, err = tx.Exec(ctx, `INSERT INTO migration VALUES ($1)`, n)
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}
