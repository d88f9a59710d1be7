package membackend

import (
	"slices"
	"time"

	"github.com/seed951563bd/distsync/backend"
)

const (
	// grantLease is the lease of a lock that is given to the first in line. It bounds how long a
	// dead waiter delays the others.
	grantLease = time.Second

	// longestGrant is the maximum lease of a lock that is given to the first in line. The lease is
	// longer than grantLease if that waiter learned of an earlier grant too late.
	longestGrant = 16 * grantLease
)

// place is an owner's entry in the line for a Fair lock.
type place struct {
	owner string
	// s is the session that last asked for the place. It is notified when the owner gets the lock.
	s       *session
	expires time.Time
	// longer is added to grantLease when the owner gets the lock.
	longer time.Duration
}

// inLine returns the index of the owner's place, or -1.
func (o *object) inLine(owner string) int {
	return slices.IndexFunc(o.line, func(p place) bool { return p.owner == owner })
}

// open reports whether an owner that doesn't hold the lock can acquire it now.
func (o *object) open(owner string) bool {
	return o.free() && (len(o.line) == 0 || o.line[0].owner == owner)
}

// leave removes the owner from the line.
func (o *object) leave(owner string) {
	if i := o.inLine(owner); i >= 0 {
		o.line = slices.Delete(o.line, i, i+1)
	}
}

// settle gives the lock to the first in line if the lock is free. It returns that owner's place,
// and whether the lock was given.
func (o *object) settle(now time.Time) (first place, granted bool) {
	if len(o.line) == 0 || !o.free() {
		return place{}, false
	}
	first = o.line[0]
	o.leave(first.owner)
	o.alone = hold{
		kind: backend.Fair, owner: first.owner, count: 1,
		expires: now.Add(grantLease + first.longer),
	}
	return first, true
}

// acquireFair implements Acquire for Fair locks. The parameter s is the session of the request's
// owner.
func (o *object) acquireFair(
	req backend.AcquireRequest, s *session, now time.Time,
) backend.AcquireResult {
	if h := &o.alone; h.by(req.Owner) && !req.Reentry {
		h.expires = later(h.expires, now.Add(req.Lease))
		return backend.AcquireResult{Acquired: true, Count: h.count}
	}
	if req.Place > 0 && req.Waited > 0 && !o.alone.keptBy(req.Owner) {
		o.comeBack(req.Owner, s, now, req.Place)
	}
	res := o.acquire(req, now)
	switch {
	case res.Acquired:
		o.leave(req.Owner)
	case req.Place > 0 && !o.alone.keptBy(req.Owner):
		o.stand(req.Owner, s, now.Add(req.Place))
	}
	return res
}

// stand extends the owner's place in line until the given time, unless the place already lasts
// longer. If the owner has no place, stand adds one at the end.
func (o *object) stand(owner string, s *session, until time.Time) {
	if i := o.inLine(owner); i >= 0 {
		o.line[i].s, o.line[i].expires = s, later(o.line[i].expires, until)
		return
	}
	o.line = append(o.line, place{owner: owner, s: s, expires: until})
}

// comeBack is like stand, but for an owner that learned too late that it had been given the lock.
// If the owner isn't in line, it goes to the front. An owner that requests a longer place will also
// be given the lock with a longer lease.
func (o *object) comeBack(owner string, s *session, now time.Time, lasts time.Duration) {
	i := o.inLine(owner)
	if i < 0 {
		i = 0
		o.line = slices.Insert(o.line, 0, place{owner: owner, s: s, expires: now.Add(lasts)})
	}
	o.line[i].longer = min(max(lasts-3*grantLease, 0), longestGrant-grantLease)
}

// keepPlaces extends the places that a session's owners have in line. Owners that have lost their
// places return to the front of the line.
func (o *object) keepPlaces(owners []string, s *session, until time.Time) {
	kept := make(map[string]bool, len(owners))
	for _, owner := range owners {
		kept[owner] = o.alone.by(owner)
	}
	for i, p := range o.line {
		if _, ok := kept[p.owner]; ok {
			o.line[i].s, o.line[i].expires = s, until
			kept[p.owner] = true
		}
	}
	var back []place
	for _, owner := range owners {
		if !kept[owner] {
			back = append(back, place{owner: owner, s: s, expires: until})
			kept[owner] = true
		}
	}
	o.line = slices.Concat(back, o.line)
}
