package etcdbackend

import (
	"context"
	"slices"
	"sync"
	"time"
)

// A holdID identifies a hold or a note. An owner can hold several locks, and can hold one for
// reading and for writing at once.
type holdID struct {
	name, owner string
	role        role
}

// holds records what a session remembers of its holds: the keys of the holds as last written, and
// the leases that the session granted for them. These leases must be revoked when the holds are
// released.
//
// An entry is dropped when its hold is released. If that never happens, the entry is dropped some
// time after all its leases have certainly run out.
type holds struct {
	mu      sync.Mutex
	entries map[holdID]*entry
	sweepAt int // when there are this many entries, expired ones are dropped
}

type entry struct {
	key    record // as this session last wrote it, so it may be out of date; zero if not known
	leases []leaseUse
	until  time.Time // when all remembered leases have ended
}

type leaseUse struct {
	lease
	step    context.Context // the context of a step that attaches the key to the lease, or nil
	suspect bool            // a request to attach the key to the lease was not answered
}

func newHolds() *holds {
	return &holds{entries: make(map[holdID]*entry), sweepAt: firstSweep}
}

const firstSweep = 128

// keptFor returns how long a lease of ttl seconds is remembered. This is longer than the lease,
// since a new leader restarts all leases, and a slow server ends them late.
func keptFor(ttl int64) time.Duration { return time.Duration(2*ttl+10) * time.Second }

// guess returns the key as the session last wrote it.
func (h *holds) guess(id holdID) record {
	h.mu.Lock()
	defer h.mu.Unlock()
	if e := h.entries[id]; e != nil {
		return e.key
	}
	return record{}
}

// remembers reports whether there is an entry for a hold.
func (h *holds) remembers(id holdID) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.entries[id] != nil
}

// granted returns the lease to which a hold is attached, if this session granted it.
func (h *holds) granted(id holdID, attached int64) (l lease, ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if use := h.entries[id].find(attached); use != nil && !use.since.IsZero() {
		return use.lease, true
	}
	return l, false
}

// use remembers a lease to which a step will attach the key. It returns false if the step's context
// has ended. Then the step must not continue, since another step may already be releasing the hold,
// and wouldn't revoke this lease.
func (h *holds) use(ctx context.Context, id holdID, l lease) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if ctx.Err() != nil {
		return false
	}
	e := h.get(id)
	e.leases = append(e.leases, leaseUse{lease: l, step: ctx})
	e.keep(l.ttl)
	return true
}

// forget drops a lease to which no request can attach a key anymore.
func (h *holds) forget(id holdID, lease int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	e := h.entries[id]
	if e == nil {
		return
	}
	e.remove(lease)
	if len(e.leases) == 0 && e.key.free() {
		delete(h.entries, id)
	}
}

// wrote records the key that a step wrote, and its lease.
func (h *holds) wrote(id holdID, key record, l lease) {
	h.mu.Lock()
	defer h.mu.Unlock()
	e := h.get(id)
	e.key = key
	e.keep(l.ttl)
	if use := e.find(l.id); use != nil {
		use.lease, use.step = l, nil
	}
}

// renewed records that the lease of a hold was renewed.
func (h *holds) renewed(id holdID, lease, ttl int64, since time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	e := h.entries[id]
	if e == nil {
		return
	}
	e.keep(ttl)
	if use := e.find(lease); use != nil {
		use.since = since
	}
}

// doubt drops the remembered key of a hold, because the key in the store may differ by now.
func (h *holds) doubt(id holdID) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if e := h.entries[id]; e != nil {
		e.key = record{}
	}
}

// suspect records that an unanswered request might still attach the key to a lease. The lease is
// revoked when the hold is released.
func (h *holds) suspect(id holdID, lease int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if use := h.entries[id].find(lease); use != nil {
		use.step, use.suspect = nil, true
	}
}

// spare returns and forgets the lease of a deleted key, if another hold can use it. It can if the
// session granted the lease, and knows the outcome of every request that used it.
func (h *holds) spare(id holdID, attached int64) (l lease, ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	e := h.entries[id]
	use := e.find(attached)
	if use == nil || use.suspect || use.step != nil {
		return l, false
	}
	l = use.lease
	e.key = record{}
	e.remove(attached)
	if len(e.leases) == 0 {
		delete(h.entries, id)
	}
	return l, true
}

// take returns and forgets the leases of a hold that is being released. It skips leases that a
// concurrent step is using. But it always returns attached, the lease that the hold's key is
// attached to, unless that is 0.
func (h *holds) take(id holdID, attached int64) []int64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	var taken []int64
	if e := h.entries[id]; e != nil {
		var left []leaseUse
		for _, use := range e.leases {
			switch {
			case use.step != nil && use.step.Err() == nil:
				left = append(left, use)
			case use.id != attached:
				taken = append(taken, use.id)
			}
		}
		e.key, e.leases = record{}, left
		if len(left) == 0 {
			delete(h.entries, id)
		}
	}
	if attached != 0 {
		taken = append(taken, attached)
	}
	return taken
}

// keepLeases remembers leases that couldn't be revoked.
func (h *holds) keepLeases(id holdID, leases []int64, ttl int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	e := h.get(id)
	for _, l := range leases {
		e.leases = append(e.leases, leaseUse{lease: lease{id: l, ttl: ttl}, suspect: true})
	}
	e.keep(ttl)
}

// len returns how many holds are remembered.
func (h *holds) len() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.entries)
}

// get returns the entry of a hold, or a new one. The caller must hold h.mu.
func (h *holds) get(id holdID) *entry {
	e := h.entries[id]
	if e == nil {
		h.sweep()
		e = new(entry)
		h.entries[id] = e
	}
	return e
}

// sweep drops expired entries once there are twice as many entries as after the last sweep. The
// caller must hold h.mu.
func (h *holds) sweep() {
	if len(h.entries) < h.sweepAt {
		return
	}
	now := time.Now()
	for id, e := range h.entries {
		if now.After(e.until) {
			delete(h.entries, id)
		}
	}
	h.sweepAt = max(2*len(h.entries), firstSweep)
}

func (e *entry) keep(ttl int64) {
	if until := time.Now().Add(keptFor(ttl)); until.After(e.until) {
		e.until = until
	}
}

// find returns the element of e.leases for a lease, or nil if there is none. e may be nil.
func (e *entry) find(lease int64) *leaseUse {
	if e == nil {
		return nil
	}
	i := slices.IndexFunc(e.leases, func(use leaseUse) bool { return use.id == lease })
	if i < 0 {
		return nil
	}
	return &e.leases[i]
}

func (e *entry) remove(lease int64) {
	e.leases = slices.DeleteFunc(e.leases, func(use leaseUse) bool { return use.id == lease })
}
