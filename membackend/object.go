package membackend

import (
	"slices"
	"time"

	"github.com/seed951563bd/distsync/backend"
)

// object is the state of one name: an exclusive hold, readers, or acquired permits, and the places
// and notes of waiters. Only the owner of a Write may be a reader at the same time. After
// [object.prune], nothing in it has expired.
type object struct {
	alone   hold                 // Exclusive, Fenced, Fair or Write
	readers map[string]time.Time // when each reader's lease expires, by owner
	notes   map[string]note      // the notes of waiting writers, by owner
	permits map[string]permits   // acquired permits, by owner
	// limit is the limit of the last request that got permits. It is meaningless while no permits
	// are held.
	limit int
	// line lists the places of the waiters for a Fair lock, in order.
	line []place
}

// hold is an exclusive hold. If its count is 0, there is none.
type hold struct {
	kind    backend.Kind
	owner   string
	count   int
	expires time.Time
	token   uint64 // not zero after an acquisition as Fenced
	// kept is set if the owner has released the hold, but the lock stays taken.
	kept bool
}

// note records that an owner waits for a Write.
type note struct {
	since, expires time.Time
}

// by reports whether the owner holds h and hasn't released it.
func (h *hold) by(owner string) bool { return h.count > 0 && !h.kept && h.owner == owner }

// keptBy reports whether the lock stays taken although this owner has released it.
func (h *hold) keptBy(owner string) bool { return h.kept && h.owner == owner }

// last makes the hold expire at the given time. It never makes a Write expire earlier.
func (h *hold) last(until time.Time) {
	if h.kind != backend.Write || until.After(h.expires) {
		h.expires = until
	}
}

// prune removes expired holds, notes and places. It reports whether there were any.
func (o *object) prune(now time.Time) (pruned bool) {
	if o.alone.count > 0 && !now.Before(o.alone.expires) {
		o.alone, pruned = hold{}, true
	}
	for owner, expires := range o.readers {
		if !now.Before(expires) {
			delete(o.readers, owner)
			pruned = true
		}
	}
	for owner, n := range o.notes {
		if !now.Before(n.expires) {
			delete(o.notes, owner)
			pruned = true
		}
	}
	for owner, p := range o.permits {
		if !now.Before(p.expires) {
			delete(o.permits, owner)
			pruned = true
		}
	}
	over := func(p place) bool { return !now.Before(p.expires) }
	if slices.ContainsFunc(o.line, over) {
		// Clone the line, since o may be a copy of a stored object that shares it.
		o.line = slices.DeleteFunc(slices.Clone(o.line), over)
		pruned = true
	}
	return pruned
}

// free reports whether there is no holder of any kind.
func (o *object) free() bool {
	return o.alone.count == 0 && len(o.readers) == 0 && len(o.permits) == 0
}

// empty reports whether there is nothing to store.
func (o *object) empty() bool { return o.free() && len(o.notes) == 0 && len(o.line) == 0 }

// next returns the earliest expiry of any part of the object. It returns false if the object is
// empty.
func (o *object) next() (next time.Time, ok bool) {
	earlier := func(t time.Time) {
		if !ok || t.Before(next) {
			next, ok = t, true
		}
	}
	if o.alone.count > 0 {
		earlier(o.alone.expires)
	}
	for _, expires := range o.readers {
		earlier(expires)
	}
	for _, n := range o.notes {
		earlier(n.expires)
	}
	for _, p := range o.permits {
		earlier(p.expires)
	}
	for _, p := range o.line {
		earlier(p.expires)
	}
	return next, ok
}

// lastReader returns when the last reader's lease expires.
func (o *object) lastReader() (last time.Time) {
	for _, expires := range o.readers {
		last = later(last, expires)
	}
	return last
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// conflicts reports whether the name is in use for a kind of lock that is incompatible with k.
func (o *object) conflicts(k backend.Kind) bool {
	if o.free() {
		return false
	}
	readWrite, permits := len(o.readers) > 0 || o.alone.kind == backend.Write, len(o.permits) > 0
	return readWrite != (k == backend.Read || k == backend.Write) ||
		permits != (k == backend.Permits)
}

// acquire implements Acquire for the exclusive kinds. It doesn't set the hold's token.
func (o *object) acquire(req backend.AcquireRequest, now time.Time) backend.AcquireResult {
	h := &o.alone
	if !h.by(req.Owner) && !o.open(req.Owner) {
		if req.Kind == backend.Write && req.Place > 0 && !h.keptBy(req.Owner) {
			o.note(req, now)
		}
		return backend.AcquireResult{Remaining: o.remaining(now)}
	}
	if h.count == 0 {
		*h = hold{kind: req.Kind, owner: req.Owner}
		if req.Kind == backend.Write {
			delete(o.notes, req.Owner)
		}
	}
	h.count++
	h.last(now.Add(req.Lease))
	return backend.AcquireResult{Acquired: true, Count: h.count}
}

// remaining returns how much longer the lock will be held. If the lock is free now, the current
// step will give it to the first in line, for grantLease.
func (o *object) remaining(now time.Time) time.Duration {
	if o.free() {
		return grantLease // for the first in line
	}
	return later(o.alone.expires, o.lastReader()).Sub(now)
}

// note records that an owner waits for a Write. If the owner already has a note, that note is
// renewed.
func (o *object) note(req backend.AcquireRequest, now time.Time) {
	since := now.Add(-req.Waited)
	if n, ok := o.notes[req.Owner]; ok && n.since.Before(since) {
		since = n.since
	}
	if o.notes == nil {
		o.notes = make(map[string]note)
	}
	o.notes[req.Owner] = note{since, now.Add(req.Place)}
}

// acquireRead implements Acquire for Read.
func (o *object) acquireRead(req backend.AcquireRequest, now time.Time) backend.AcquireResult {
	expires, again := o.readers[req.Owner]
	if !again && !o.alone.by(req.Owner) {
		if o.alone.count > 0 {
			return backend.AcquireResult{Remaining: o.alone.expires.Sub(now)}
		}
		if left := o.barred(now.Add(-req.Waited), now); left > 0 {
			return backend.AcquireResult{Remaining: left}
		}
	}
	if o.readers == nil {
		o.readers = make(map[string]time.Time)
	}
	o.readers[req.Owner] = later(expires, now.Add(req.Lease))
	return backend.AcquireResult{Acquired: true, Count: 1}
}

// barred returns how long a reader must wait for writers that began to wait earlier, or 0. The
// parameter since is the time at which the reader began to wait.
func (o *object) barred(since, now time.Time) (left time.Duration) {
	for _, n := range o.notes {
		if n.since.Before(since) {
			left = max(left, n.expires.Sub(now), time.Millisecond)
		}
	}
	return left
}

// release implements Release for the exclusive kinds.
func (o *object) release(
	req backend.ReleaseRequest, now time.Time,
) (outcome backend.ReleaseOutcome, wakes bool) {
	if _, ok := o.notes[req.Owner]; ok && req.Kind == backend.Write {
		delete(o.notes, req.Owner)
		wakes = true
	}
	h := &o.alone
	if req.Kind == backend.Fair && !h.by(req.Owner) {
		o.leave(req.Owner)
	}
	switch {
	case req.Keep > 0 && h.keptBy(req.Owner):
		return backend.Kept, false
	case !h.by(req.Owner):
		return backend.NotHeld, wakes
	case h.count > 1:
		h.count--
		h.last(now.Add(req.Lease))
		return backend.Left, wakes
	case req.Keep > 0:
		h.kept, h.expires = true, now.Add(req.Keep)
		return backend.Kept, false
	default:
		*h = hold{}
		return backend.Freed, true
	}
}

// releaseRead implements Release for Read.
func (o *object) releaseRead(owner string) (outcome backend.ReleaseOutcome, wakes bool) {
	if _, ok := o.readers[owner]; !ok {
		return backend.NotHeld, false
	}
	delete(o.readers, owner)
	return backend.Freed, o.free()
}

// renew implements Renew for the exclusive kinds.
func (o *object) renew(req backend.RenewRequest, now time.Time) (held bool) {
	held = o.alone.by(req.Owner)
	if held {
		o.alone.last(now.Add(req.Lease))
	}
	return held
}

// renewRead implements Renew for Read.
func (o *object) renewRead(req backend.RenewRequest, now time.Time) (held bool) {
	expires, held := o.readers[req.Owner]
	if held {
		o.readers[req.Owner] = later(expires, now.Add(req.Lease))
	}
	return held
}

// force implements ForceRelease. It keeps the notes, since their writers are still waiting.
func (o *object) force(k backend.Kind) (released bool) {
	shared := k == backend.Read || k == backend.Permits
	if o.free() || shared != (o.alone.count == 0) {
		return false
	}
	o.alone, o.readers, o.permits = hold{}, nil, nil
	return true
}

// look implements Look for the exclusive kinds.
func (o *object) look(req backend.LookRequest, now time.Time) (res backend.LookResult) {
	if o.alone.count == 0 {
		return res
	}
	if o.alone.by(req.Owner) {
		res.Count = o.alone.count
	}
	res.Held, res.Remaining, res.Kept = true, o.alone.expires.Sub(now), o.alone.kept
	return res
}

// lookRead implements Look for Read.
func (o *object) lookRead(req backend.LookRequest, now time.Time) (res backend.LookResult) {
	if len(o.readers) == 0 {
		return res
	}
	if _, ok := o.readers[req.Owner]; ok {
		res.Count = 1
	}
	res.Held, res.Remaining = true, o.lastReader().Sub(now)
	return res
}
