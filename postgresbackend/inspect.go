package postgresbackend

import (
	"context"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/seed951563bd/distsync/backend"
)

// Inspect implements [backend.Inspector].
func (s *session) Inspect(
	ctx context.Context, req backend.InspectRequest,
) (backend.Inspection, error) {
	name := encode(req.Name)
	if err := s.check(ctx, backend.Exclusive, name); err != nil {
		return backend.Inspection{}, err
	}
	if err := s.b.ready(ctx); err != nil {
		return backend.Inspection{}, err
	}
	conn, err := s.conn(ctx, s.b.pool)
	if err != nil {
		return backend.Inspection{}, err
	}
	i, foreign, err := s.inspect(ctx, conn, name)
	if err != nil {
		s.leave(conn, s.b.pool, err)
		return backend.Inspection{}, failed(err)
	}
	conn.Release()
	if foreign {
		return backend.Inspection{}, errConflict
	}
	return i, nil
}

// inspect returns the state of the lock with the given stored name. foreign reports whether its row
// is of an unknown kind.
func (s *session) inspect(
	ctx context.Context, conn *pgxpool.Conn, name string,
) (i backend.Inspection, foreign bool, err error) {
	i.Name = decode(name)
	rows, err := conn.Query(ctx,
		`SELECT role, kind, owner, n, kept, remaining, lim, ahead FROM `+s.b.q+
			`distsync_v1_look($1, $2)`,
		pgx.QueryExecModeExec, name, int64(backend.MostHolders))
	if err != nil {
		return i, false, err
	}
	var (
		role, kind   int16
		owner        *string
		n, lim       int32
		kept         bool
		left, ofRole int64
		alone, all   int
	)
	_, err = pgx.ForEachRow(rows, []any{&role, &kind, &owner, &n, &kept, &left, &lim, &ofRole},
		func() error {
			if role == 0 {
				i.Limit, foreign = int(lim), kind > semaphore
			}
			if owner == nil {
				return nil // the lock has no single holder
			}
			h := backend.Holder{
				Owner: decode(*owner), Count: int(n),
				Remaining: time.Duration(left) * time.Millisecond, Kept: kept,
			}
			switch role {
			case 0:
				alone = 1
				if kind == readWrite {
					i.Kind, h.Kind = backend.Write, backend.Write
				}
			case reading:
				i.Kind, h.Kind, all = backend.Write, backend.Read, int(ofRole)
			case permitted:
				i.Kind, h.Kind, all = backend.Permits, backend.Permits, int(ofRole)
			case inLine:
				i.Line = append(i.Line, h.Owner)
				return nil
			}
			if len(i.Holders) < backend.MostHolders {
				i.Holders = append(i.Holders, h)
			}
			return nil
		})
	i.More = alone + all - len(i.Holders)
	if i.Kind != backend.Permits {
		i.Limit = 0
	}
	return i, foreign, err
}

// longestPage is the maximum number of names on a page of a list.
const longestPage = 1000

// A list has two phases. Names that are stored verbatim come before names that are stored in
// hexadecimal.
const (
	amongTexts = "t"
	amongHex   = "x"
)

// List implements [backend.Lister]. It reads a page of names, in order, and inspects those locks
// that are held. A page also contains the names of free locks.
func (s *session) List(
	ctx context.Context, req backend.ListRequest,
) (res backend.ListResult, err error) {
	if err := s.check(ctx, backend.Exclusive, ""); err != nil {
		return res, err
	}
	if err := s.b.ready(ctx); err != nil {
		return res, err
	}
	phase, after := amongTexts, ""
	if req.After != "" {
		phase, after = req.After[:1], req.After[1:]
	}
	conn, err := s.conn(ctx, s.b.pool)
	if err != nil {
		return res, err
	}
	if res, err = s.list(ctx, conn, req, phase, after); err != nil {
		s.leave(conn, s.b.pool, err)
		return backend.ListResult{}, failed(err)
	}
	conn.Release()
	return res, nil
}

func (s *session) list(
	ctx context.Context, conn *pgxpool.Conn, req backend.ListRequest, phase, after string,
) (res backend.ListResult, err error) {
	from := textOf(req.Prefix)
	if phase == amongHex {
		from = escaped(req.Prefix)
	}
	limit := min(max(req.Limit, 100), longestPage)
	rows, err := conn.Query(ctx, `SELECT name, held FROM `+s.b.q+`distsync_v1_list($1, $2, $3)`,
		pgx.QueryExecModeExec, from, after, int64(limit))
	if err != nil {
		return res, err
	}
	var name string
	var held bool
	var names []string
	seen, past := 0, false
	_, err = pgx.ForEachRow(rows, []any{&name, &held}, func() error {
		seen++
		past = past || !strings.HasPrefix(name, from)
		if !past {
			after = name
			if held && strings.HasPrefix(decode(name), req.Prefix) && len(names) < req.Limit {
				names = append(names, name)
				if len(names) == req.Limit {
					past, seen = true, limit // the next page continues here
				}
			}
		}
		return nil
	})
	if err != nil {
		return res, err
	}
	for _, name := range names {
		i, foreign, err := s.inspect(ctx, conn, name)
		if err != nil {
			return res, err
		}
		if !foreign && !i.Free() {
			res.Locks = append(res.Locks, i)
		}
	}
	switch {
	case seen >= limit && (!past || len(names) == req.Limit):
		res.Next = phase + after
	case phase == amongTexts && req.Prefix != "":
		res.Next = amongHex
	}
	return res, nil
}

// textOf returns the part of a prefix before the first byte that isn't text. Every name that is
// stored as text and has the prefix begins with this part.
func textOf(prefix string) string {
	for i, r := range prefix {
		if r == 0 || r == utf8.RuneError && !strings.HasPrefix(prefix[i:], string(utf8.RuneError)) {
			return prefix[:i]
		}
	}
	return prefix
}
