package postgresbackend

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// ErrLost says that a transaction isn't guarded, because the hold isn't there: its lease ran out,
// it was forced or given back, or the transaction began before it was acquired, and can't see it.
var ErrLost = errors.New("the lock isn't held")

// A Hold is a lock that is held, such as the Hold of package dlock.
type Hold interface {
	Name() string
	HolderID() string
	Token() (token uint64, ok bool)
}

// Guard makes a transaction of the caller's own one that is over before anybody else gets the lock:
// exact fencing, without a number in any table. If it returns nil, others that want the lock wait
// until the transaction has ended, even if the hold's lease runs out, or it is forced or given back
// early. So all writes of the transaction are committed before the next holder is told that it has
// the lock, or none are. That holds through a failover, too, since lock and data are in one log. If
// it returns an error, ErrLost or another, roll the transaction back.
//
//	err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
//		if err := locks.Guard(ctx, tx, hold); err != nil {
//			return err
//		}
//		_, err := tx.Exec(ctx, `UPDATE account SET …`)
//		return err
//	})
//
// The transaction must be one of the database that has the lock, and not a read-only one. One in
// REPEATABLE READ or SERIALIZABLE must have begun after the lock was acquired, and may fail with
// 40001 instead of ErrLost. Within a savepoint the guard ends when that is rolled back. A prepared
// transaction is guarded until it is committed.
//
// Renewals, re-entries and releases go on beside it. A long transaction keeps others out for longer
// than the lease: set idle_in_transaction_session_timeout. The client may lose the hold meanwhile,
// though the commit was right.
//
// A hold that is given back before the commit guards against other processes only. Within this one
// a plain lock, a Write and permits may be handed over without asking the store, and so without
// waiting for a transaction. Give such a hold back after the commit, as Locker.Do does, or use a
// lock of Client.FencedLocker.
//
// A Hold of several locks doesn't work here: guard the transaction by each.
func (b *Backend) Guard(ctx context.Context, tx pgx.Tx, hold Hold) error {
	var held bool
	args := append([]any{pgx.QueryExecModeExec}, guardArgs(hold)...)
	return guarded(hold, &held, tx.QueryRow(ctx, b.guardCall(), args...).Scan(&held))
}

// GuardSQL is [Backend.Guard] for a transaction of package database/sql.
func (b *Backend) GuardSQL(ctx context.Context, tx *sql.Tx, hold Hold) error {
	var held bool
	return guarded(hold, &held, tx.QueryRowContext(ctx, b.guardCall(), guardArgs(hold)...).Scan(&held))
}

func (b *Backend) guardCall() string { return `SELECT ` + b.q + `distsync_v1_guard($1, $2, $3)` }

func guardArgs(hold Hold) []any {
	token, _ := hold.Token()
	return []any{encode(hold.Name()), encode(hold.HolderID()), int64(token)}
}

// guarded returns the error of a guard that was asked for.
func guarded(hold Hold, held *bool, err error) error {
	switch {
	case err != nil:
		return fmt.Errorf("postgres: guard by %q: %w", hold.Name(), err)
	case !*held:
		return fmt.Errorf("postgres: guard by %q: %w", hold.Name(), ErrLost)
	}
	return nil
}
