package postgresbackend

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/seed951563bd/distsync/backend"
)

// ErrLost means that a transaction isn't guarded, because it found no such hold in the database.
// Either the hold's lease expired, or the hold was released by its holder or by force, or the
// transaction began before the acquisition and can't see it. ErrLost wraps dlock.ErrLost.
var ErrLost = fmt.Errorf("%w: the lock isn't held", backend.ErrLost)

// A Hold is a held lock, such as a Hold of package dlock.
type Hold interface {
	Name() string
	HolderID() string
	Token() (token uint64, ok bool)
}

// Guard makes sure that the caller's transaction has ended before another holder gets the lock.
// This is exact fencing, and needs no token in any table. If Guard returns nil, other acquisitions
// of the lock wait until the transaction has ended. They do so even if the hold's lease expires, or
// if the hold is released early or by force. So the transaction is committed before the next holder
// gets the lock, or not at all. That also holds through a failover, since the lock and the data are
// in the same write-ahead log. If Guard returns [ErrLost] or another error, roll the transaction
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
// The transaction must be in the database that stores the lock, and must not be read-only. A
// transaction in REPEATABLE READ or SERIALIZABLE must have begun after the lock was acquired, and
// may fail with 40001 instead of ErrLost. A guard within a savepoint ends if the savepoint is
// rolled back. A prepared transaction is guarded until it ends.
//
// A guard doesn't block renewals, re-entries or releases. A long transaction may keep others out
// for longer than the lease, so set idle_in_transaction_session_timeout and statement_timeout. The
// commit is safe even if the client loses the hold in the meantime.
//
// If you release the hold before the commit, Guard keeps out only other processes. The client can
// hand over a plain lock, a Write or permits within this process, without a request to the store.
// Then goroutines of this process get the lock before the transaction ends. Release such a hold
// after the commit, as Locker.Do does, or use a lock of Client.FencedLocker.
//
// In code that has only the context of a Locker.Do, acquire the lock again with that context. That
// returns a Hold, which the code must release.
//
// A Hold of several locks isn't supported. Acquire each lock separately, and call Guard with each
// Hold.
func (b *Backend) Guard(ctx context.Context, tx pgx.Tx, hold Hold) error {
	var held bool
	args := append([]any{pgx.QueryExecModeExec}, guardArgs(hold)...)
	return guarded(hold, &held, tx.QueryRow(ctx, b.guardCall(), args...).Scan(&held))
}

// GuardSQL is like [Backend.Guard], but for a transaction of package database/sql.
func (b *Backend) GuardSQL(ctx context.Context, tx *sql.Tx, hold Hold) error {
	var held bool
	return guarded(hold, &held,
		tx.QueryRowContext(ctx, b.guardCall(), guardArgs(hold)...).Scan(&held))
}

func (b *Backend) guardCall() string { return `SELECT ` + b.q + `distsync_v1_guard($1, $2, $3)` }

func guardArgs(hold Hold) []any {
	token, _ := hold.Token()
	return []any{encode(hold.Name()), encode(hold.HolderID()), int64(token)}
}

// guarded turns the result of Guard's query into the error that Guard returns.
func guarded(hold Hold, held *bool, err error) error {
	switch {
	case err != nil:
		return fmt.Errorf("postgres: guard by %q: %w", hold.Name(), err)
	case !*held:
		return fmt.Errorf("postgres: guard by %q: %w", hold.Name(), ErrLost)
	}
	return nil
}
