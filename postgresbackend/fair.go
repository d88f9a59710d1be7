package postgresbackend

import (
	"context"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/seed951563bd/distsync/backend"
)

// grantLease is the lease of a fair lock that is handed to the first waiter in line. The waiter's
// session counts the lease from the time at which it last read the line. While calls wait, it reads
// the line about once a second.
const grantLease = 2 * time.Second

// Operations on fair locks, numbered as in schema.sql.
const (
	fairAcquire int16 = iota + 1
	fairRelease
	fairKeep
	fairSee
	fairForce
)

type fairRequest struct {
	do           int16
	name         string // as stored, like the owners
	owners       []string
	lease, place time.Duration
	again        bool
	keep         time.Duration
}

type fairAnswer struct {
	status                        int16
	held                          *int32
	holder                        *string
	left, token                   *int64
	grantedOwner, grantedTo, stir *string
	tell                          bool
}

// fair carries out a step of a fair lock and notifies the sessions that it affects.
func (s *session) fair(
	ctx context.Context, pool *pgxpool.Pool, req fairRequest,
) (a fairAnswer, err error) {
	if req.owners == nil {
		req.owners = []string{""}
	}
	c := &call{
		sql: `SELECT status, held, holder, remaining, num, granted_owner, granted_session, ` +
			`stirs, tell FROM ` + s.b.q + `distsync_v1_fair(` + strconv.Itoa(int(req.do)) +
			`::smallint, $1, $2::text[], $3, $4, $5, $6, $7, $8)`,
		dest: []any{
			&a.status, &a.held, &a.holder, &a.left, &a.token, &a.grantedOwner, &a.grantedTo,
			&a.stir, &a.tell,
		},
		some: func() bool { return a.grantedTo != nil || a.stir != nil || a.tell },
		after: func(ctx context.Context, conn *pgxpool.Conn) {
			switch {
			case a.grantedTo != nil:
				s.notify(ctx, conn, *a.grantedTo, grantMessage(*a.token, *a.grantedOwner, req.name))
			case a.stir != nil:
				s.notify(ctx, conn, *a.stir, tellFreed+req.name)
			default:
				s.telling(req.name, tellFreed)(ctx, conn)
			}
		},
	}
	for n := 1; ; n++ {
		// An attempt does nothing if it should hand the lock to the first waiter in line, but
		// another transaction has locked the row. If that happens in each attempt, the last attempt
		// carries out its step anyway, and leaves the hand-over to the next step for the lock.
		weak := n >= mostRepeats
		c.args = []any{
			req.name, req.owners, s.id, ms(req.lease), ms(req.place), req.again, ms(req.keep), weak,
		}
		sent := time.Now()
		err := s.do(ctx, pool, c)
		switch {
		case err != nil:
			return a, err
		case a.status == isAgain && !weak:
			continue
		case a.status == isForeign:
			return a, errConflict
		case a.status == isHeld && a.token != nil && req.do != fairRelease:
			s.saw(req.name, *a.token, sent)
		}
		return a, nil
	}
}

// notify sends a message to one session.
func (s *session) notify(ctx context.Context, conn *pgxpool.Conn, session, message string) {
	// If the message is lost, the session notices the change when it polls.
	s.say(ctx, conn, `SELECT pg_notify($1, $2)`, channel(session), message)
}

func (s *session) acquireFair(
	ctx context.Context, req backend.AcquireRequest, name, owner string,
) (res backend.AcquireResult, err error) {
	a, err := s.fair(ctx, s.b.pool, fairRequest{
		do: fairAcquire, name: name, owners: []string{owner}, lease: req.Lease, place: req.Place,
		again: req.Reentry,
	})
	switch {
	case err != nil:
		// The statement may have failed because it waited too long for other steps. Report the
		// error, since the owner then has no place in line and must not rely on one.
		return res, err
	case a.status == isDone:
		return backend.AcquireResult{Acquired: true, Count: int(*a.held)}, nil
	default:
		return backend.AcquireResult{Remaining: span(a.left)}, nil
	}
}

func (s *session) releaseFair(
	ctx context.Context, req backend.ReleaseRequest, name, owner string,
) (res backend.ReleaseResult, err error) {
	a, err := s.fair(ctx, s.lane(), fairRequest{
		do: fairRelease, name: name, owners: []string{owner}, lease: req.Lease, keep: req.Keep,
	})
	if err != nil {
		return res, err
	}
	res.Outcome, err = outcome(a.status)
	return res, err
}

// KeepPlaces implements [backend.Liner].
func (s *session) KeepPlaces(
	ctx context.Context, req backend.PlacesRequest,
) (res backend.PlacesResult, err error) {
	name, owners := encode(req.Name), make([]string, len(req.Owners))
	for i, owner := range req.Owners {
		owners[i] = encode(owner)
	}
	if err := s.check(ctx, req.Kind, name, owners...); err != nil {
		return res, err
	}
	a, err := s.fair(ctx, s.lane(), fairRequest{
		do: fairKeep, name: name, owners: owners, place: req.Place,
	})
	if err != nil {
		return res, err
	}
	if a.holder != nil {
		res.Holder = decode(*a.holder)
	}
	res.Remaining = span(a.left)
	return res, nil
}

// grantMessage returns the message that tells an owner that it was given a lock. token identifies
// that acquisition.
func grantMessage(token int64, owner, name string) string {
	return "g" + strconv.FormatInt(token, 10) + " " + strconv.Itoa(len(owner)) + " " + owner + name
}

// parseGrant parses a message from grantMessage, without its first letter.
func parseGrant(message string) (token int64, owner, name string, ok bool) {
	number, rest, found := strings.Cut(message, " ")
	length, rest, found2 := strings.Cut(rest, " ")
	token, err := strconv.ParseInt(number, 10, 64)
	n, err2 := strconv.Atoi(length)
	if !found || !found2 || err != nil || err2 != nil || n < 0 || n > len(rest) {
		return 0, "", "", false
	}
	return token, rest[:n], rest[n:], true
}

// sightings holds the last sighting of each fair lock that a session's callers wait for.
type sightings struct {
	mu   sync.Mutex
	seen map[string]sighting
}

// A sighting records an answer that reported a lock as held by another owner. token identifies the
// acquisition by which that owner got it. Later acquisitions have larger tokens.
type sighting struct {
	token int64
	sent  time.Time // when the request was sent
}

// watch sets whether sightings of a lock are recorded.
func (v *sightings) watch(name string, yes bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if !yes {
		delete(v.seen, name)
		return
	}
	if v.seen == nil {
		v.seen = make(map[string]sighting)
	}
	if _, ok := v.seen[name]; !ok {
		v.seen[name] = sighting{}
	}
}

// saw records a sighting.
func (v *sightings) saw(name string, token int64, sent time.Time) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if old, ok := v.seen[name]; ok && sent.After(old.sent) {
		v.seen[name] = sighting{token, sent}
	}
}

// grant returns the grant for a waiter that was given a lock. token identifies that acquisition. If
// it is larger than the token of the last sighting, the waiter didn't hold the lock yet when the
// sighting's request was sent. Then the lease can safely be counted from that time, without the
// server's clock.
func (v *sightings) grant(name, owner string, token int64) backend.Grant {
	v.mu.Lock()
	defer v.mu.Unlock()
	g := backend.Grant{Owner: owner}
	if seen := v.seen[name]; !seen.sent.IsZero() && token > seen.token {
		g.Since, g.Lease = seen.sent, grantLease
	}
	return g
}
