package postgresbackend

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/puddle/v2"

	"github.com/seed951563bd/distsync/backend"
)

var (
	errClosed   = errors.New("the session is closed")
	errConflict = refused(backend.ErrConflict)
)

// refused wraps err as an error of kind Refused: the step wasn't carried out, and repeating it is
// pointless.
func refused(err error) error {
	return &backend.Error{Kind: backend.Refused, Err: fmt.Errorf("postgres: %w", err)}
}

// retry wraps err as an error of kind Retry: the step wasn't carried out, and can be repeated.
func retry(err error) error {
	return &backend.Error{Kind: backend.Retry, Err: fmt.Errorf("postgres: %w", err)}
}

// ended returns an error if ctx has ended. It is called before anything is sent, so the kind of the
// error is Retry.
func ended(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return retry(err)
	}
	return nil
}

// unconnected adds a kind to an error that occurred before a connection was established.
func unconnected(err error) error {
	kind := backend.Retry
	if pgErr, ok := errors.AsType[*pgconn.PgError](err); ok {
		kind = kindOf(pgErr.Code)
	}
	if errors.Is(err, puddle.ErrClosedPool) {
		kind = backend.Refused
	}
	return &backend.Error{Kind: kind, Err: fmt.Errorf("postgres: %w", err)}
}

// failed adds a kind to the error of a statement. Severity ERROR means that everything was rolled
// back. After any other error, or if the connection breaks, the statement may have been committed.
func failed(err error) error {
	kind := backend.Unknown
	pgErr, ok := errors.AsType[*pgconn.PgError](err)
	switch {
	case ok && severe(pgErr) == "ERROR":
		kind = kindOf(pgErr.Code)
		if hint := hints[pgErr.Code]; hint != "" {
			err = fmt.Errorf("%w: %s", err, hint)
		}
	case !ok && unsent(err):
		kind = backend.Retry
	}
	return &backend.Error{Kind: kind, Err: fmt.Errorf("postgres: %w", err)}
}

// unsent reports whether err means that nothing was sent, because the context had already ended.
// pgconn.SafeToRetry alone isn't enough: it is also true if the connection broke while the answers
// to a batch were read, since pgx then returns the same error as for a closed connection.
func unsent(err error) bool {
	return pgconn.SafeToRetry(err) &&
		(errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded))
}

// severe returns the severity of an error in English. Servers before version 9.6 send it only in
// the language of their messages.
func severe(err *pgconn.PgError) string {
	if err.SeverityUnlocalized != "" {
		return err.SeverityUnlocalized
	}
	return err.Severity
}

const (
	readOnly     = "25006" // the server is a standby, or is no longer the primary
	deadlock     = "40P01"
	lockTimeout  = "55P03"
	notInSchema  = "42883"
	noSuchSchema = "3F000"
	noRight      = "42501"
	noStatement  = "26000" // a prepared statement is gone
	isStatement  = "42P05" // a prepared statement with that name already exists
	notSupported = "0A000" // also returned if the columns of a prepared statement changed
)

// hints maps error codes to remedies.
var hints = map[string]string{
	notInSchema: "the functions of postgresbackend aren't there: run the text of " +
		"postgresbackend.Schema, or use WithCreate",
	noSuchSchema: "the schema of postgresbackend isn't there: run the text of " +
		"postgresbackend.Schema, or use WithCreate",
	noRight: "the role needs USAGE of the schema, and EXECUTE of its functions",
	"DS001": "set default_transaction_isolation of the role, or of the connections, to read " +
		"committed",
}

// kindOf returns the kind of an error with the given SQLSTATE code. It assumes that the statement
// that failed had no effect.
func kindOf(code string) backend.ErrorKind {
	switch code {
	case "DS001", "DS002", "DS003", noSuchSchema:
		return backend.Refused
	}
	switch code[:min(2, len(code))] {
	case "28", "3D", "42", "22", "54", "0A":
		// These classes are, in this order: invalid authorization, no such database, missing
		// privileges or unknown names, invalid data, limit exceeded, and unsupported feature.
		return backend.Refused
	}
	return backend.Retry
}

// isCode reports whether err is an error from the server with the given SQLSTATE code.
func isCode(err error, code string) bool {
	pgErr, ok := errors.AsType[*pgconn.PgError](err)
	return ok && pgErr.Code == code
}
