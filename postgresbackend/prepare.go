package postgresbackend

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// preparedAfter is how often a connection carries out a statement before it prepares it: that takes
// a round trip, and one more to see whether it may. Programs that lock something once have none.
const preparedAfter = 5

// A record is what a connection remembers of the statements that it has carried out.
type record struct {
	uses     map[string]int
	asked    bool // whether the server itself is at the other end
	prepares bool // it is, and nobody takes prepared statements away
	prepared []string
}

// recordKey is where a connection has its record.
const recordKey = "distsync"

// recordOf returns the record of a connection. Whoever has the connection has the record.
func recordOf(conn *pgx.Conn) *record {
	data := conn.PgConn().CustomData()
	r, ok := data[recordKey].(*record)
	if !ok {
		r = &record{uses: make(map[string]int)}
		data[recordKey] = r
	}
	return r
}

// prepare has the server parse a statement once that a connection carries out again and again: a
// lock and unlock takes a fifth less time then. From then on pgx uses what was prepared, whatever
// the mode. An error says that the connection has broken; the statement was not carried out.
//
// By way of a pooler the next statement may go to another server process, which knows nothing of
// what was prepared. A pooler tells its clients the number of no process, or of its own.
func (b *Backend) prepare(ctx context.Context, conn *pgx.Conn, sql string) error {
	if !b.prepares {
		return nil
	}
	r := recordOf(conn)
	n := r.uses[sql]
	if n > preparedAfter || r.asked && !r.prepares {
		return nil
	}
	if r.uses[sql]++; n < preparedAfter {
		return nil
	}
	if !r.asked {
		var pid uint32
		err := conn.QueryRow(ctx, `SELECT pg_backend_pid()`, pgx.QueryExecModeExec).Scan(&pid)
		if err != nil {
			return unlessAnswered(err)
		}
		r.asked, r.prepares = true, pid == conn.PgConn().PID()
		if !r.prepares {
			return nil
		}
	}
	if _, err := conn.Prepare(ctx, sql, sql); err != nil {
		return unlessAnswered(err) // the statement itself will say it
	}
	r.prepared = append(r.prepared, sql)
	return nil
}

// unlessAnswered returns an error that isn't the server's.
func unlessAnswered(err error) error {
	if _, ok := errors.AsType[*pgconn.PgError](err); ok {
		return nil
	}
	return err
}

// forgets says whether an error is one of what was prepared, since somebody has taken that away, as
// a hook of the pool that discards all. Nothing was carried out then, and the connection prepares
// nothing any more: the statement can be sent again.
func forgets(ctx context.Context, conn *pgx.Conn, err error) bool {
	if !isCode(err, noStatement) && !isCode(err, isStatement) && !isCode(err, notSupported) {
		return false
	}
	r := recordOf(conn)
	if len(r.prepared) == 0 {
		return false
	}
	r.asked, r.prepares = true, false
	for _, sql := range r.prepared {
		if conn.Deallocate(ctx, sql) != nil {
			return false // it has broken
		}
	}
	r.prepared = nil
	return true
}
