package membackend

import (
	"fmt"
	"time"

	"github.com/seed951563bd/distsync/backend"
)

// permits describes the permits that one owner holds.
type permits struct {
	n       int
	expires time.Time
	// kept is set if the owner has released the permits, but they stay taken.
	kept bool
}

// out returns the number of acquired permits.
func (o *object) out() (n int) {
	for _, p := range o.permits {
		n += p.n
	}
	return n
}

// limitOf returns the limit of a request. If the request has none, it returns the limit of the last
// request that got permits.
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

// has reports whether the owner holds n permits. If the owner holds a different number of permits,
// they are all taken away, and the result taken is true.
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

// acquirePermits implements Acquire for Permits. The result wakes is true if waiters might get
// permits now. That is so if the limit has grown, or if the owner had a different number of permits
// than it asks for, and so lost them.
func (o *object) acquirePermits(
	req backend.AcquireRequest, now time.Time,
) (res backend.AcquireResult, wakes bool, err error) {
	limit, err := o.limitOf(req.Limit)
	if err != nil {
		return res, false, err
	}
	if req.Permits > limit {
		return res, false,
			refused(fmt.Errorf("%w: %d of %d", backend.ErrTooMany, req.Permits, limit))
	}
	had := len(o.permits) > 0
	has, taken := o.has(req.Owner, req.Permits)
	if !has && (req.Permits > limit-o.out() || o.permits[req.Owner].kept) {
		return backend.AcquireResult{Remaining: o.firstPermits().Sub(now)}, taken, nil
	}
	// A refused request doesn't change the limit. Otherwise waiters with different limits would
	// keep waking each other.
	wakes, o.limit = had && limit > o.limit, limit
	if o.permits == nil {
		o.permits = make(map[string]permits)
	}
	o.permits[req.Owner] = permits{n: req.Permits, expires: now.Add(req.Lease)}
	return backend.AcquireResult{Acquired: true, Count: req.Permits}, wakes || taken, nil
}

// firstPermits returns the earliest time at which an owner's permits expire.
func (o *object) firstPermits() (first time.Time) {
	for _, p := range o.permits {
		if first.IsZero() || p.expires.Before(first) {
			first = p.expires
		}
	}
	return first
}

// releasePermits implements Release for Permits.
func (o *object) releasePermits(
	req backend.ReleaseRequest, now time.Time,
) (outcome backend.ReleaseOutcome, wakes bool) {
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

// renewPermits implements Renew for Permits.
func (o *object) renewPermits(req backend.RenewRequest, now time.Time) (held, wakes bool) {
	has, taken := o.has(req.Owner, req.Permits)
	if has {
		o.permits[req.Owner] = permits{n: req.Permits, expires: now.Add(req.Lease)}
	}
	return has, taken
}

// lookPermits implements Look for Permits.
func (o *object) lookPermits(
	req backend.LookRequest, now time.Time,
) (res backend.LookResult, err error) {
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
