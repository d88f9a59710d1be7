package etcdbackend

import (
	"context"
	"sync"
	"time"

	"github.com/seed951563bd/distsync/backend"
)

// A holdID names a hold, or a note: an owner may hold several locks, and read what it writes.
type holdID struct {
	name, owner string
	role        role
}

func idOf(kind backend.Kind, name, owner string) holdID { return holdID{name, owner, roleOf(kind)} }

// holds is what a session remembers of holds: the leases that it has granted for them, which must be
// revoked when they are given back, and what their keys were like when they were last written.
//
// An entry is dropped when its hold is given back. One that is never given back is dropped some time
// after its leases must have run out.
type holds struct {
	mu      sync.Mutex
	entries map[holdID]*entry
	sweepAt int // the number of entries at which to look for old ones
}

type entry struct {
	key    record // as it was last written, for a guess; the zero value if that is not known
	leases []leaseUse
	until  time.Time // when all that is remembered has run out
}

type leaseUse struct {
	lease
	step    context.Context // of the step that is just attaching the key to it, or nil
	suspect bool            // a request that attaches the key to it has no answer
}

func newHolds() *holds {
	return &holds{entries: make(map[holdID]*entry), sweepAt: firstSweep}
}

const firstSweep = 128

// keptFor is how long an entry is kept for a lease. A leader that takes over begins all leases anew,
// and a server that is behind is late to end them.
func keptFor(ttl int64) time.Duration { return time.Duration(2*ttl+10) * time.Second }

// guess returns the key as it was when the session last wrote it.
func (h *holds) guess(id holdID) record {
	h.mu.Lock()
	defer h.mu.Unlock()
	if e := h.entries[id]; e != nil {
		return e.key
	}
	return record{}
}

// remembers says whether anything is known of a hold.
func (h *holds) remembers(id holdID) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.entries[id] != nil
}

// granted returns the lease that a hold is attached to, if this session has granted it.
func (h *holds) granted(id holdID, attached int64) (l lease, ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if e := h.entries[id]; e != nil {
		if use := e.find(attached); use != nil && !use.since.IsZero() {
			return use.lease, true
		}
	}
	return l, false
}

// use remembers a lease that a step is going to attach the key to. It returns false if the step must
// not go on, since its context is over: then others may be giving back the hold already, and would
// not know of this lease.
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

// forget drops a lease that nothing can be attached to any more.
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

// wrote notes what a step has written, and the lease that it has attached it to.
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

// renewed notes that the lease of a hold began anew.
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

// doubt drops the guess: the key is not as this session wrote it last.
func (h *holds) doubt(id holdID) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if e := h.entries[id]; e != nil {
		e.key = record{}
	}
}

// suspect notes that a request which may yet attach the key to a lease has no answer. The lease is to be
// revoked when the hold is given back.
func (h *holds) suspect(id holdID, lease int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if e := h.entries[id]; e != nil {
		if use := e.find(lease); use != nil {
			use.step, use.suspect = nil, true
		}
	}
}

// spare returns the lease that the key of a hold was attached to when it was deleted, and forgets it, if it can
// serve another hold: this session has granted it, and knows of all that it has done with it.
func (h *holds) spare(id holdID, attached int64) (l lease, ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	e := h.entries[id]
	if e == nil {
		return l, false
	}
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

// take returns all leases of a hold that is given back, and forgets them: also attached, if it isn't 0.
// Those that a step is using which goes on at the same time are left to it.
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

// keepLeases remembers leases that could not be revoked.
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

// get returns an entry. h.mu is held.
func (h *holds) get(id holdID) *entry {
	e := h.entries[id]
	if e == nil {
		h.sweep()
		e = new(entry)
		h.entries[id] = e
	}
	return e
}

// sweep drops entries that have run out, each time that there are twice as many as the last time left.
// h.mu is held.
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

// find returns what is remembered of a lease, or nil.
func (e *entry) find(lease int64) *leaseUse {
	for i := range e.leases {
		if e.leases[i].id == lease {
			return &e.leases[i]
		}
	}
	return nil
}

func (e *entry) remove(lease int64) {
	for i := range e.leases {
		if e.leases[i].id == lease {
			e.leases = append(e.leases[:i], e.leases[i+1:]...)
			return
		}
	}
}
