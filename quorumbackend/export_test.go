package quorumbackend

import (
	"context"
	"time"

	"github.com/seed951563bd/distsync/backend"
)

// Home returns the number of the store that is asked first for a name.
var Home = home

// Patient returns the backend as one that waits for every store, however busy the machine is.
func Patient(b backend.Backend) backend.Backend {
	q := *b.(*quorum)
	q.patience = time.Minute
	return &q
}

// RenewLate renews a lock as a renewal does that has found it held, and has been overtaken since by
// its release.
func RenewLate(
	ctx context.Context, s backend.Session, req backend.RenewRequest,
) (held bool, err error) {
	q := s.(*session)
	q.mu.Lock()
	h := q.holds[key{req.Kind, req.Name, req.Owner}]
	q.mu.Unlock()
	return q.renew(ctx, h, req.Lease)
}

// MostMenders is how many requests at a time ask a store for what it lacks.
const MostMenders = mostMenders

// LeastSplit is for how long an attempt that was split isn't repeated, at least.
const LeastSplit = leastSplit

// ContestFor is for how long the stores are asked in order after a sign that others want a lock.
const ContestFor = contestFor
