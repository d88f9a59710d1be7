package postgresbackend

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// preparedAfter is the number of times a connection carries out a statement before preparing it.
// Preparing takes one round trip, and the check for a pooler takes another. Programs that lock only
// a few times save both.
const preparedAfter = 5

// A record counts how often a connection carried out each statement, and lists those that it
// prepared.
type record struct {
	uses     map[string]int
	asked    bool // the check for a pooler was made
	prepares bool // no pooler was found, and no prepared statement has disappeared
	prepared []string
}

// recordKey is the key of the record in a connection's custom data.
const recordKey = "distsync"

// recordOf returns the record of a connection. The record needs no mutex, since a connection has
// only one user at a time.
func recordOf(conn *pgx.Conn) *record {
	data := conn.PgConn().CustomData()
	r, ok := data[recordKey].(*record)
	if !ok {
		r = &record{uses: make(map[string]int)}
		data[recordKey] = r
	}
	return r
}

// prepare prepares a statement once a connection has carried it out several times, which makes a
// lock and unlock a fifth faster. From then on, pgx uses the prepared statement, whatever the
// pool's query execution mode. prepare never carries out the statement itself. If it returns an
// error, the connection is broken.
//
// Behind a pooler, the next statement may go to another server process, where it isn't prepared. To
// detect a pooler, prepare compares the process number that the connection got at its start with
// the number of the process that carries out its statements.
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
		return unlessAnswered(err) // the statement itself will fail in the same way
	}
	r.prepared = append(r.prepared, sql)
	return nil
}

// unlessAnswered returns err, or nil if err came from the server, which means that the connection
// still works.
func unlessAnswered(err error) error {
	if _, ok := errors.AsType[*pgconn.PgError](err); ok {
		return nil
	}
	return err
}

// forgets reports whether err means that a prepared statement is gone, for example because a hook
// of the pool ran DISCARD ALL. In that case nothing was carried out, so the statement can be sent
// again. The connection then prepares no more statements.
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
			return false // the connection has broken
		}
	}
	r.prepared = nil
	return true
}
