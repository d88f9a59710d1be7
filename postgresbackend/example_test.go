package postgresbackend_test

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	_ "github.com/jackc/pgx/v5/stdlib"

	"github.com/seed951563bd/distsync/dlock"
	"github.com/seed951563bd/distsync/postgresbackend"
)

// url is where the database is. TestExamples runs the examples with another.
var url = "postgres://app@db-1,db-2/orders?target_session_attrs=read-write"

func Example() {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, url)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer pool.Close()
	client := dlock.New(postgresbackend.New(pool))
	defer client.Close()

	err = client.Locker("orders:42").Do(ctx, func(ctx context.Context) error {
		// Nobody else is here as long as ctx lasts.
		return nil
	})
	if err != nil {
		fmt.Println(err)
	}
}

// A program that doesn't use PostgreSQL for anything else, and has no migrations.
func ExampleConnect() {
	store, err := postgresbackend.Connect(url, postgresbackend.WithCreate())
	if err != nil {
		fmt.Println(err)
		return
	}
	defer store.Close()
	client := dlock.New(store)
	defer client.Close()

	if err := client.Locker("orders:42").LockContext(context.Background()); err != nil {
		fmt.Println(err)
	}
}

// Even if the lock is lost meanwhile, nobody else gets it before the transaction is over.
func ExampleBackend_Guard() {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, url)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer pool.Close()
	locks := postgresbackend.New(pool)
	client := dlock.New(locks)
	defer client.Close()

	hold, err := client.FencedLocker("accounts").Acquire(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	err = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		if err := locks.Guard(ctx, tx, hold); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, `SELECT 1`) // what the lock is for
		return err
	})
	if err != nil {
		fmt.Println(err)
	}
	if err := hold.Release(ctx); err != nil {
		fmt.Println(err)
	}
}

// The same for a program whose transactions are those of database/sql, with whatever driver.
func ExampleBackend_GuardSQL() {
	ctx := context.Background()
	db, err := sql.Open("pgx", url)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer db.Close()
	locks, err := postgresbackend.Connect(url)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer locks.Close()
	client := dlock.New(locks)
	defer client.Close()

	hold, err := client.FencedLocker("accounts").Acquire(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer hold.Release(ctx)
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer tx.Rollback() // does nothing after Commit
	if err := locks.GuardSQL(ctx, tx, hold); err != nil {
		fmt.Println(err)
		return
	}
	if err := tx.Commit(); err != nil {
		fmt.Println(err)
	}
}
