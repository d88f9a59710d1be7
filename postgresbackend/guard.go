package postgresbackend

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// ErrLost says that a transaction isn't guarded, since the hold isn't there: its lease ran out, it
// was forced or given back, or the transaction has begun before it was acquired, and can't see it.
var ErrLost = errors.New("the lock isn't held")

// A Hold is a lock that somebody has. The Hold of package dlock is one.
type Hold interface {
	Name() string
	HolderID() string
	Token() (token uint64, ok bool)
}

// Guard makes a transaction of the caller's own one that is over before anybody else gets the lock:
// fencing, and exact, without a number in any table. If it returns nil, whoever wants the lock
// waits until the transaction has ended, whatever becomes of the hold: its lease may run out, it
// may be forced, or given back early. So all that the transaction writes is committed before the
// next holder is told that it has the lock, or nothing is. It holds through a failover, too, since
// lock and data are in one log. If it returns an error, ErrLost or another, roll the transaction
// back.
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
// 40001 instead of ErrLost. Within a savepoint the guard ends when that is rolled back. A
// transaction that is prepared is guarded until it is committed.
//
// Renewals, re-entries and releases go on beside it. A long transaction keeps others out for longer
// than the lease: set idle_in_transaction_session_timeout. The hold may be lost for its client
// meanwhile, though the commit was right.
//
// A hold that is given back before the commit guards against other processes. Within this one a
// plain lock, a Write and permits may pass from goroutine to goroutine without a word to the store,
// and so without waiting for a transaction: give such a hold back after the commit, as Locker.Do
// does, or use a lock of Client.FencedLocker.
//
// A Hold of several locks isn't one here: guard the transaction by each.
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
