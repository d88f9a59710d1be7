// Package sqlite keeps locks in a SQLite file, for the processes of one machine. It supports plain
// locks, fenced locks and semaphores. It was written according to docs/stores.md, and passes the
// contract suite.
package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"time"

	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/seed951563bd/distsync/backend"
)

// schema creates three tables. They store the holds of each name, the last token of each name, and
// the limit that a client last passed for each semaphore. The rows with tokens are never deleted.
// Names and owners may be any bytes.
const schema = `
CREATE TABLE IF NOT EXISTS holds (
	name BLOB, owner BLOB, semaphore INTEGER, count INTEGER, expires INTEGER, token INTEGER,
	PRIMARY KEY (name, owner)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS tokens (name BLOB PRIMARY KEY, last INTEGER) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS totals (name BLOB PRIMARY KEY, permits INTEGER) WITHOUT ROWID;`

// synchronous makes commits durable: once a commit has returned, it survives a power failure.
// Otherwise a token that another machine has seen could be used twice.
var synchronous = "FULL"

// Backend keeps locks in a SQLite file. Leases are measured by the machine's clock. So processes on
// two machines must not share the file, and locks are lost when the clock is set forward.
type Backend struct{ db *sql.DB }

// New returns a backend that keeps its locks in the given file. It creates the file if it doesn't
// exist.
func New(file string) (*Backend, error) {
	// A transaction that will write must begin with the file's write lock. Two transactions that
	// began with a read would block each other.
	options := url.Values{
		"_txlock": {"immediate"},
		"_pragma": {"busy_timeout(10000)", "journal_mode(WAL)", "synchronous(" + synchronous + ")"},
	}
	db, err := sql.Open("sqlite", "file:"+(&url.URL{Path: file}).EscapedPath()+"?"+options.Encode())
	if err != nil {
		return nil, err
	}
	// With one connection, the steps of this process wait for each other here, instead of polling
	// the file.
	db.SetMaxOpenConns(1)
	if _, err := db.Exec(schema); err != nil {
		return nil, errors.Join(fmt.Errorf("locks in %s: %w", file, err), db.Close())
	}
	return &Backend{db}, nil
}

// Close closes the file. Call it after the client's Close.
func (b *Backend) Close() error { return b.db.Close() }

// Open returns a session. It is stateless, since all state is in the file.
func (b *Backend) Open() backend.Session { return session{b.db} }

// Limits returns the kinds of lock that are supported besides plain ones.
func (b *Backend) Limits() backend.Limits {
	return backend.Limits{Kinds: backend.KindsOf(backend.Fenced, backend.Permits)}
}

// String returns the store's name for errors.
func (b *Backend) String() string { return "SQLite" }

type session struct{ db *sql.DB }

// Close does nothing, since there is nothing to close.
func (s session) Close() error { return nil }

// A hold is a row of the table holds.
type hold struct {
	owner     string
	semaphore bool
	count     int
	expires   int64 // in nanoseconds, by the machine's clock
	token     uint64
}

// A step is one operation of a session, with its transaction.
type step struct {
	context.Context
	*sql.Tx
	name  []byte
	now   int64
	holds []hold // the name's holds that haven't expired
}

// remaining returns the time until the first hold expires.
func (st *step) remaining() time.Duration {
	if len(st.holds) == 0 {
		return 0
	}
	first := st.holds[0].expires
	for _, h := range st.holds[1:] {
		first = min(first, h.expires)
	}
	return time.Duration(first - st.now)
}

// of returns an owner's hold. If the owner has none, its count is 0.
func (st *step) of(owner string) hold {
	for _, h := range st.holds {
		if h.owner == owner {
			return h
		}
	}
	return hold{owner: owner}
}

// do runs a step in a transaction, which makes the step atomic.
func (s session) do(
	ctx context.Context, kind backend.Kind, name string, f func(st *step) error,
) error {
	if kind != backend.Exclusive && kind != backend.Fenced && kind != backend.Permits {
		return backend.UnknownKind("SQLite", kind)
	}
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return notDone(err)
	}
	defer tx.Rollback() // does nothing after Commit
	// The clock is read after the wait for the file's write lock: an earlier time would be stale.
	st := &step{ctx, tx, []byte(name), time.Now().UnixNano(), nil}
	if err := st.load(kind); err != nil {
		return notDone(err)
	}
	if err := f(st); err != nil {
		return notDone(err)
	}
	return tx.Commit() // an error is of kind Unknown
}

// load reads the holds of the step's name. It returns ErrConflict if they belong to a lock of
// another kind.
func (st *step) load(kind backend.Kind) error {
	rows, err := st.QueryContext(st, `SELECT owner, semaphore, count, expires, token FROM holds
		WHERE name = ? AND expires > ?`, st.name, st.now)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		var h hold
		var owner []byte
		if err := rows.Scan(&owner, &h.semaphore, &h.count, &h.expires, &h.token); err != nil {
			return fmt.Errorf("%w: %w", backend.ErrConflict, err)
		}
		if h.semaphore != (kind == backend.Permits) {
			return backend.ErrConflict
		}
		h.owner = string(owner)
		st.holds = append(st.holds, h)
	}
	return rows.Err()
}

// put writes a hold, or deletes it if its count is 0.
func (st *step) put(h hold) error {
	if h.count == 0 {
		_, err := st.ExecContext(st, `DELETE FROM holds WHERE name = ? AND owner = ?`,
			st.name, []byte(h.owner))
		return err
	}
	_, err := st.ExecContext(st, `INSERT OR REPLACE INTO holds VALUES (?, ?, ?, ?, ?, ?)`,
		st.name, []byte(h.owner), h.semaphore, h.count, h.expires, int64(h.token))
	return err
}

// sweep deletes the expired holds of the name. Otherwise dead holders would leave rows behind.
func (st *step) sweep() error {
	_, err := st.ExecContext(st, `DELETE FROM holds WHERE name = ? AND expires <= ?`, st.name,
		st.now)
	return err
}

func (s session) Acquire(
	ctx context.Context, req backend.AcquireRequest,
) (res backend.AcquireResult, err error) {
	err = s.do(ctx, req.Kind, req.Name, func(st *step) error {
		if req.Kind == backend.Permits {
			return st.acquirePermits(req, &res)
		}
		h := st.of(req.Owner)
		switch {
		case len(st.holds) > 0 && h.count == 0:
			res.Remaining = st.remaining()
			return nil
		case h.count == 0:
			if err := st.sweep(); err != nil {
				return err
			}
			if req.Kind == backend.Fenced {
				if h.token, err = st.nextToken(); err != nil {
					return err
				}
			}
		}
		h.count++
		h.expires = st.now + int64(req.Lease)
		res = backend.AcquireResult{Acquired: true, Count: h.count, Token: h.token}
		return st.put(h)
	})
	return res, err
}

// nextToken returns the next token of the step's name.
func (st *step) nextToken() (token uint64, err error) {
	err = st.QueryRowContext(st, `INSERT INTO tokens VALUES (?, 1)
		ON CONFLICT (name) DO UPDATE SET last = last + 1 RETURNING last`, st.name).Scan(&token)
	return token, err
}

// acquirePermits implements Acquire for permits.
func (st *step) acquirePermits(req backend.AcquireRequest, res *backend.AcquireResult) error {
	limit, err := st.limit(req.Permits, req.Limit)
	if err != nil {
		return err
	}
	h, out := st.of(req.Owner), 0
	for _, other := range st.holds {
		if other.owner != req.Owner {
			out += other.count
		}
	}
	if h.count != req.Permits && out+req.Permits > limit {
		res.Remaining = st.remaining()
		return st.put(hold{owner: req.Owner}) // also deletes a hold of other permits
	}
	if err := st.sweep(); err != nil {
		return err
	}
	if _, err := st.ExecContext(st, `INSERT OR REPLACE INTO totals VALUES (?, ?)`,
		st.name, limit); err != nil {
		return err
	}
	*res = backend.AcquireResult{Acquired: true, Count: req.Permits}
	return st.put(hold{
		owner: req.Owner, semaphore: true, count: req.Permits, expires: st.now + int64(req.Lease),
	})
}

// limit returns the semaphore's limit: the limit of the request or, if that is 0, the last one that
// the store was given. The store forgets a semaphore's limit when none of its permits are held.
func (st *step) limit(permits, limit int) (int, error) {
	if limit == 0 && len(st.holds) > 0 {
		err := st.QueryRowContext(st, `SELECT permits FROM totals WHERE name = ?`, st.name).
			Scan(&limit)
		if err != nil {
			return 0, err
		}
	}
	switch {
	case limit == 0:
		return 0, backend.ErrNoLimit
	case permits > limit:
		return 0, backend.ErrTooMany
	}
	return limit, nil
}

// mine returns the owner's hold. If that hold has a different number of permits than the request,
// mine deletes it, and returns a hold with count 0.
func (st *step) mine(kind backend.Kind, owner string, permits int) (hold, error) {
	h := st.of(owner)
	if kind == backend.Permits && h.count != permits {
		h = hold{owner: owner}
		return h, st.put(h)
	}
	return h, nil
}

func (s session) Release(
	ctx context.Context, req backend.ReleaseRequest,
) (res backend.ReleaseResult, err error) {
	err = s.do(ctx, req.Kind, req.Name, func(st *step) error {
		h, err := st.mine(req.Kind, req.Owner, req.Permits)
		if err != nil || h.count == 0 {
			return err
		}
		if h.semaphore || h.count == 1 {
			h.count, res.Outcome = 0, backend.Freed
		} else {
			h.count, res.Outcome = h.count-1, backend.Left
			h.expires = st.now + int64(req.Lease)
		}
		return st.put(h)
	})
	return res, err
}

func (s session) Renew(
	ctx context.Context, req backend.RenewRequest,
) (res backend.RenewResult, err error) {
	err = s.do(ctx, req.Kind, req.Name, func(st *step) error {
		h, err := st.mine(req.Kind, req.Owner, req.Permits)
		if err != nil || h.count == 0 {
			return err
		}
		res.Held = true
		h.expires = st.now + int64(req.Lease)
		return st.put(h)
	})
	return res, err
}

func (s session) ForceRelease(
	ctx context.Context, req backend.ForceReleaseRequest,
) (res backend.ForceReleaseResult, err error) {
	err = s.do(ctx, req.Kind, req.Name, func(st *step) error {
		res.Released = len(st.holds) > 0
		_, err := st.ExecContext(st, `DELETE FROM holds WHERE name = ?`, st.name)
		return err
	})
	return res, err
}

func (s session) Look(
	ctx context.Context, req backend.LookRequest,
) (res backend.LookResult, err error) {
	err = s.do(ctx, req.Kind, req.Name, func(st *step) error {
		out := 0
		for _, h := range st.holds {
			// until the last of the holds expires
			res.Remaining = max(res.Remaining, time.Duration(h.expires-st.now))
			out += h.count
		}
		res.Held, res.Count = out > 0, st.of(req.Owner).count
		if req.Kind != backend.Permits {
			return nil
		}
		limit, err := st.limit(0, req.Limit)
		res.Available = max(limit-out, 0)
		return err
	})
	return res, err
}

// notDone turns the error of a step into a [backend.Error]. The step has changed nothing, since its
// transaction wasn't committed.
func notDone(err error) error {
	if errors.Is(err, backend.ErrConflict) || errors.Is(err, backend.ErrNoLimit) ||
		errors.Is(err, backend.ErrTooMany) {
		return &backend.Error{Kind: backend.Refused, Err: err}
	}
	kind := backend.Retry
	if e, ok := errors.AsType[*sqlite.Error](err); ok {
		switch e.Code() & 0xff {
		case sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_CANTOPEN,
			sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT:
			kind = backend.Refused // only a person can fix this
		}
	}
	return &backend.Error{Kind: kind, Err: err}
}
