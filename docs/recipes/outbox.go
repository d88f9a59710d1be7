package recipes

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/seed951563bd/distsync/dlock"
	"github.com/seed951563bd/distsync/postgresbackend"
)

// An outbox is a table of messages, which are written in the program's transactions and must be
// sent in order: CREATE TABLE outbox (id bigserial PRIMARY KEY, message text NOT NULL).
type outbox struct {
	pool  *pgxpool.Pool
	locks *postgresbackend.Backend
	send  func(ctx context.Context, id int64, message string) error
}

// A querier is a pool or a transaction.
type querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
}

// sendSome sends the oldest messages, deletes them from the table, and returns how many it sent.
func (o *outbox) sendSome(ctx context.Context, db querier) (n int, err error) {
	type row struct {
		ID      int64
		Message string
	}
	rows, err := db.Query(ctx, `SELECT id, message FROM outbox ORDER BY id LIMIT 100`)
	if err != nil {
		return 0, err
	}
	messages, err := pgx.CollectRows(rows, pgx.RowToStructByPos[row])
	if err != nil {
		return 0, err
	}
	for _, m := range messages {
		if err := o.send(ctx, m.ID, m.Message); err != nil {
			return n, err
		}
		if _, err := db.Exec(ctx, `DELETE FROM outbox WHERE id = $1`, m.ID); err != nil {
			return n, err
		}
		n++
	}
	return n, nil
}

func (o *outbox) drainWrong(ctx context.Context, client *dlock.Client) error {
	return client.Locker("lock:outbox").Do(ctx, func(ctx context.Context) error {
		for {
			n, err := o.sendSome(ctx, o.pool)
			if err != nil {
				return err
			}
			if err := pauseIfNone(ctx, n); err != nil {
				return err
			}
		}
	})
}

// drain sends messages whenever this replica holds the lock, until ctx ends.
func (o *outbox) drain(ctx context.Context, client *dlock.Client) error {
	for {
		hold, err := client.FencedLocker("lock:outbox").Acquire(ctx)
		if err != nil {
			return err
		}
		err = o.drainWith(ctx, hold)
		_ = hold.Release(context.WithoutCancel(ctx)) // if it fails, the lease must expire
		if !errors.Is(err, dlock.ErrLost) {
			return err
		}
	}
}

func (o *outbox) drainWith(ctx context.Context, hold *dlock.Hold) error {
	for {
		var n int
		// Use ctx, not the hold's context: a guarded transaction is allowed to run to completion,
		// even if the lock is lost meanwhile.
		err := pgx.BeginFunc(ctx, o.pool, func(tx pgx.Tx) (err error) {
			if err := o.locks.Guard(ctx, tx, hold); err != nil {
				return err
			}
			n, err = o.sendSome(ctx, tx)
			return err
		})
		if err != nil {
			return err
		}
		if err := pauseIfNone(hold.Context(), n); err != nil {
			return err
		}
	}
}

// pauseIfNone waits for a second if no message was sent.
func pauseIfNone(ctx context.Context, sent int) error {
	if sent > 0 {
		return nil
	}
	select {
	case <-time.After(time.Second):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
