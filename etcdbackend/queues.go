package etcdbackend

import (
	"sync"
	"time"

	"github.com/seed951563bd/distsync/backend"
)

// queues is who stands in line in a session, for which locks.
type queues struct {
	mu  sync.Mutex // never held while anything is sent or called
	all map[string]map[int64]*queue
	n   int // how many queues there were

	heirs map[string]heir // by name of the lock
}

// An heir has a lock as the first in line, and was first seen to.
type heir struct {
	position
	seen time.Time
}

// inherits notes that somebody has the lock by his place, and returns what is left of his time, as far as this session can tell.
func (qs *queues) inherits(name string, place record) time.Duration {
	qs.mu.Lock()
	defer qs.mu.Unlock()
	h, known := qs.heirs[name]
	if !known || h.position != place.position() {
		if qs.heirs == nil || len(qs.heirs) >= mostNames {
			qs.heirs = make(map[string]heir)
		}
		h = heir{place.position(), time.Now()}
		qs.heirs[name] = h
	}
	return heirTime - time.Since(h.seen)
}

// A queue is those who stand in line for one lock, with places that last equally long. They have one lease.
type queue struct {
	name string
	ttl  int64
	slot chan struct{} // is had by whoever lets the lease begin

	lease  lease // that the places are attached to; none is 0
	doubt  bool  // a place may be put late
	owners map[string]*standing
	looks  []look // some of the last, the oldest first
}

// standing is what is known of one who stands in line.
type standing struct {
	until  time.Time
	doubt  bool   // a request that puts the place has no answer
	place  record // as it was last put, or seen
	inside bool   // it was the first then, and nobody had the lock's key
}

// A look is when it was sent that somebody else had the lock, as was found at a revision.
type look struct {
	sent time.Time
	rev  int64
}

const (
	mostLooks  = 8
	looksApart = 100 * time.Millisecond
)

// asks notes that an owner stands in line, or is going to, for so long at least: perhaps for longer already.
func (qs *queues) asks(name, owner string, ttl int64, place time.Duration) *queue {
	qs.mu.Lock()
	until := time.Now().Add(place)
	for _, q := range qs.all[name] {
		if o := q.owners[owner]; o != nil && o.until.After(until) {
			qs.mu.Unlock()
			return q
		}
	}
	qs.mu.Unlock()
	return qs.expect(name, owner, ttl, place)
}

// expect notes that an owner stands in line, or is going to, for so long.
func (qs *queues) expect(name, owner string, ttl int64, place time.Duration) *queue {
	qs.mu.Lock()
	defer qs.mu.Unlock()
	for other, q := range qs.all[name] {
		if other != ttl && q.owners[owner] != nil {
			delete(q.owners, owner)
		}
	}
	q := qs.all[name][ttl]
	if q == nil {
		q = qs.add(name, ttl)
	}
	o := q.owners[owner]
	if o == nil {
		o = new(standing)
		q.owners[owner] = o
	}
	if until := time.Now().Add(place); until.After(o.until) {
		o.until = until
	}
	return q
}

// add makes a queue, and drops those of which nothing can be left, now and then. qs.mu is held.
func (qs *queues) add(name string, ttl int64) *queue {
	if qs.n++; qs.n%firstSweep == 0 {
		qs.sweep(time.Now())
	}
	if qs.all == nil {
		qs.all = make(map[string]map[int64]*queue)
	}
	if qs.all[name] == nil {
		qs.all[name] = make(map[int64]*queue)
	}
	q := &queue{name: name, ttl: ttl, slot: make(chan struct{}, 1), owners: make(map[string]*standing)}
	qs.all[name][ttl] = q
	return q
}

func (qs *queues) sweep(now time.Time) {
	for name, some := range qs.all {
		for ttl, q := range some {
			over := now.Sub(q.lease.since) > keptFor(q.ttl)
			for _, o := range q.owners {
				over = over && now.After(o.until)
			}
			if over {
				delete(some, ttl)
			}
		}
		if len(some) == 0 {
			delete(qs.all, name)
		}
	}
}

func (qs *queues) getLease(q *queue) lease {
	qs.mu.Lock()
	defer qs.mu.Unlock()
	return q.lease
}

// begin notes that the lease of a queue has begun.
func (qs *queues) begin(q *queue, l lease) {
	qs.mu.Lock()
	defer qs.mu.Unlock()
	q.lease = l
}

// lost notes that a lease is over, and all places with it.
func (qs *queues) lost(q *queue, l lease) {
	qs.mu.Lock()
	defer qs.mu.Unlock()
	if q.lease.id == l.id {
		q.lease = lease{}
	}
}

// saw notes a look that was sent, and found at a revision that another has the lock.
func (qs *queues) saw(q *queue, sent time.Time, rev int64) {
	qs.mu.Lock()
	defer qs.mu.Unlock()
	if n := len(q.looks); n > 0 && sent.Sub(q.looks[n-1].sent) < looksApart {
		return
	}
	if q.looks = append(q.looks, look{sent, rev}); len(q.looks) > mostLooks {
		q.looks = q.looks[1:]
	}
}

// doubt notes that a place may be put late.
func (qs *queues) doubt(name, owner string) {
	qs.mu.Lock()
	defer qs.mu.Unlock()
	for _, q := range qs.all[name] {
		if o := q.owners[owner]; o != nil {
			o.doubt = true
		}
	}
}

// over says whether an owner should stand in line no more.
func (qs *queues) over(q *queue, owner string, now time.Time) bool {
	qs.mu.Lock()
	defer qs.mu.Unlock()
	o := q.owners[owner]
	return o == nil || now.After(o.until)
}

// stands notes a place that was put.
func (qs *queues) stands(q *queue, place record) {
	qs.mu.Lock()
	defer qs.mu.Unlock()
	if o := q.owners[place.owner]; o != nil {
		o.place, o.inside = place, false
	}
}

// place returns an owner's place as it was last seen, and whether the owner has the lock by that.
func (qs *queues) place(name, owner string) (place record, inside bool) {
	qs.mu.Lock()
	defer qs.mu.Unlock()
	for _, q := range qs.all[name] {
		if o := q.owners[owner]; o != nil {
			return o.place, o.inside
		}
	}
	return record{}, false
}

// left forgets a place. It returns the lease if there are no others any more, and whether nothing may be attached to it.
func (qs *queues) left(name, owner string) (spare lease, suspect bool) {
	qs.mu.Lock()
	defer qs.mu.Unlock()
	for ttl, q := range qs.all[name] {
		o := q.owners[owner]
		if o == nil {
			continue
		}
		q.doubt = q.doubt || o.doubt
		if delete(q.owners, owner); len(q.owners) > 0 {
			continue
		}
		spare, suspect = q.lease, q.doubt
		if delete(qs.all[name], ttl); len(qs.all[name]) == 0 {
			delete(qs.all, name)
		}
	}
	return spare, suspect
}

// grant returns what is to be said of an owner who has got the lock, at a revision if that isn't 0. It says whether that is one of this session's.
func (qs *queues) grant(name string, place record, rev int64) (g backend.Grant, ok bool) {
	qs.mu.Lock()
	defer qs.mu.Unlock()
	for _, q := range qs.all[name] {
		o := q.owners[place.owner]
		if o == nil {
			continue
		}
		g = backend.Grant{Owner: place.owner, Since: time.Now()}
		if q.lease.id != place.lease {
			return g, true
		}
		for i := len(q.looks) - 1; i >= 0; i-- {
			if q.looks[i].rev < rev {
				end := q.lease.since.Add(time.Duration(q.lease.ttl) * time.Second)
				g.Since, g.Lease = q.looks[i].sent, min(end.Sub(q.looks[i].sent), heirTime)
				if o.place, o.inside = place, true; end.After(o.until) {
					o.until = end
				}
				break
			}
		}
		return g, true
	}
	return g, false
}
