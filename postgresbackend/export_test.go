package postgresbackend

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/seed951563bd/distsync/backend"
)

// Sweep has a session delete what is over, and says how much that was.
func Sweep(ctx context.Context, s backend.Session) (int64, error) { return s.(*session).sweep(ctx) }

// Proves says whether a session takes it for proved that a connection receives what is sent to the
// session, when that has received messages before.
func Proves(s backend.Session, conn *pgx.Conn, before ...string) (bool, error) {
	return s.(*session).proves(conn, &before)
}

// Together carries out acquisitions and releases in one transaction, if they can be, and returns
// what came of each: nil for those that are left to steps of their own.
func Together(
	ctx context.Context, s backend.Session, acquires []backend.AcquireRequest,
	releases []backend.ReleaseRequest,
) (got []*backend.AcquireResult, back []*backend.ReleaseResult) {
	var steps []*step
	for i := range acquires {
		steps = append(steps, &step{acquire: &acquires[i]})
	}
	for i := range releases {
		steps = append(steps, &step{release: &releases[i]})
	}
	for i, r := range s.(*session).carryOut(ctx, steps) {
		done := r.err == nil && !r.left
		switch {
		case i < len(acquires) && done:
			got = append(got, &r.acquired)
		case i < len(acquires):
			got = append(got, nil)
		case done:
			back = append(back, &r.released)
		default:
			back = append(back, nil)
		}
	}
	return got, back
}
