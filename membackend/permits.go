package membackend

import (
	"fmt"
	"time"

	"github.com/seed951563bd/distsync/backend"
)

// permits is how many one owner has, and until when.
type permits struct {
	n       int
	expires time.Time
	kept    bool // the owner has given them back, but nobody gets them yet
}

// out returns how many permits anybody has.
func (o *object) out() (n int) {
	for _, p := range o.permits {
		n += p.n
	}
	return n
}

// limitOf returns how many permits there are, as a request says or else as was last said.
func (o *object) limitOf(requested int) (int, error) {
	switch {
	case requested > 0:
		return requested, nil
	case len(o.permits) > 0:
		return o.limit, nil
	default:
		return 0, refused(backend.ErrNoLimit)
	}
}

// has says whether the owner has n permits, and takes those that are of another number, so that it has n or none.
func (o *object) has(owner string, n int) (has, taken bool) {
	p, ok := o.permits[owner]
	if p.kept {
		return false, false
	}
	if ok && p.n != n {
		delete(o.permits, owner)
		return false, true
	}
	return ok, false
}

// acquirePermits is Acquire of Permits. Others may get in after it where the owner had another number, and where there are more
// than was said before.
func (o *object) acquirePermits(req backend.AcquireRequest, now time.Time) (res backend.AcquireResult, wakes bool, err error) {
	limit, err := o.limitOf(req.Limit)
	if err != nil {
		return res, false, err
	}
	if req.Permits > limit {
		return res, false, refused(fmt.Errorf("%w: %d of %d", backend.ErrTooMany, req.Permits, limit))
	}
	had := len(o.permits) > 0
	has, taken := o.has(req.Owner, req.Permits)
	if !has && (req.Permits > limit-o.out() || o.permits[req.Owner].kept) {
		return backend.AcquireResult{Remaining: o.firstPermits().Sub(now)}, taken, nil
	}
	wakes, o.limit = had && limit > o.limit, limit // not if it is refused: those who wait for different wholes would wake each other
	if o.permits == nil {
		o.permits = make(map[string]permits)
	}
	o.permits[req.Owner] = permits{n: req.Permits, expires: now.Add(req.Lease)}
	return backend.AcquireResult{Acquired: true, Count: req.Permits}, wakes || taken, nil
}

// firstPermits returns when the first of the permits that are out come back if nobody renews them.
func (o *object) firstPermits() (first time.Time) {
	for _, p := range o.permits {
		if first.IsZero() || p.expires.Before(first) {
			first = p.expires
		}
	}
	return first
}

// releasePermits is Release of Permits.
func (o *object) releasePermits(req backend.ReleaseRequest, now time.Time) (outcome backend.ReleaseOutcome, wakes bool) {
	has, taken := o.has(req.Owner, req.Permits)
	switch {
	case req.Keep > 0 && o.permits[req.Owner].kept:
		return backend.Kept, false
	case !has:
		return backend.NotHeld, taken
	case req.Keep > 0:
		o.permits[req.Owner] = permits{req.Permits, now.Add(req.Keep), true}
		return backend.Kept, false
	}
	delete(o.permits, req.Owner)
	return backend.Freed, true
}

// renewPermits is Renew of Permits.
func (o *object) renewPermits(req backend.RenewRequest, now time.Time) (held, wakes bool) {
	has, taken := o.has(req.Owner, req.Permits)
	if has {
		o.permits[req.Owner] = permits{n: req.Permits, expires: now.Add(req.Lease)}
	}
	return has, taken
}

// lookPermits is Look at Permits.
func (o *object) lookPermits(req backend.LookRequest, now time.Time) (res backend.LookResult, err error) {
	limit, err := o.limitOf(req.Limit)
	if err != nil {
		return res, err
	}
	res.Available = max(0, limit-o.out())
	if len(o.permits) == 0 {
		return res, nil
	}
	var last time.Time
	for _, p := range o.permits {
		last = later(last, p.expires)
	}
	res.Held, res.Remaining = true, last.Sub(now)
	if p := o.permits[req.Owner]; !p.kept {
		res.Count = p.n
	}
	return res, nil
}
