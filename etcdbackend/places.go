package etcdbackend

import (
	"sync"
	"time"

	"github.com/seed951563bd/distsync/backend"
)

// queues holds a session's owners that are in line, for all locks.
type queues struct {
	mu  sync.Mutex // not held during a request or a callback
	all map[string]map[int64]*queue
	n   int // the number of queues so far

	heirs map[string]heir // by lock name
}

// An heir holds a lock because it is the first in line. seen is when the session first saw that.
type heir struct {
	position
	seen time.Time
}

// inherits records that an owner holds the lock by its place. It returns how much of the heir's
// time is left, as far as this session can tell.
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

// A queue holds the owners in line for one lock whose places have the same ttl. These places share
// one lease.
type queue struct {
	name string
	ttl  int64
	slot chan struct{} // taken while the lease is made or renewed

	lease  lease // the lease of the places; id 0: none
	doubt  bool  // a late request may yet create a place
	owners map[string]*standing
	looks  []look // some of the last looks, oldest first
}

// standing is what the session knows of an owner in line.
type standing struct {
	until  time.Time
	doubt  bool   // a request that creates the place has no answer
	place  record // as last created or seen
	inside bool   // when last seen, the owner held the lock by its place
}

// A look is a request that found the lock held by another owner. sent is when the request was sent,
// and rev is the revision at which it looked.
type look struct {
	sent time.Time
	rev  int64
}

const (
	mostLooks  = 8
	looksApart = 100 * time.Millisecond
)

// asks records that an owner is or will be in line, for at least the duration place. If an earlier
// call has recorded a later end, asks keeps that end.
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

// expect records that an owner is or will be in line, for the duration place.
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

// add adds a queue. It occasionally drops queues that can no longer have places. The caller must
// hold qs.mu.
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
	q := &queue{
		name: name, ttl: ttl, slot: make(chan struct{}, 1), owners: make(map[string]*standing),
	}
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

// begin records a new or renewed lease of a queue.
func (qs *queues) begin(q *queue, l lease) {
	qs.mu.Lock()
	defer qs.mu.Unlock()
	q.lease = l
}

// lost records that a lease has ended, and all places with it.
func (qs *queues) lost(q *queue, l lease) {
	qs.mu.Lock()
	defer qs.mu.Unlock()
	if q.lease.id == l.id {
		q.lease = lease{}
	}
}

// saw records a look that was sent at sent and found another owner holding the lock at rev.
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

// doubt records that a late request may yet create a place.
func (qs *queues) doubt(name, owner string) {
	qs.mu.Lock()
	defer qs.mu.Unlock()
	for _, q := range qs.all[name] {
		if o := q.owners[owner]; o != nil {
			o.doubt = true
		}
	}
}

// over reports whether an owner should no longer be in line. It looks at all queues of the lock. If
// a queue has ended, a newer queue may have taken over its lease, and may contain the owner.
func (qs *queues) over(name, owner string, now time.Time) bool {
	qs.mu.Lock()
	defer qs.mu.Unlock()
	for _, q := range qs.all[name] {
		if o := q.owners[owner]; o != nil && !now.After(o.until) {
			return false
		}
	}
	return true
}

// stands records a place that was created.
func (qs *queues) stands(q *queue, place record) {
	qs.mu.Lock()
	defer qs.mu.Unlock()
	if o := q.owners[place.owner]; o != nil {
		o.place, o.inside = place, false
	}
}

// place returns an owner's place as last seen. inside reports whether the owner holds the lock by
// that place.
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

// left forgets a place. If it was the last in its queue, left returns the lease. suspect reports
// whether a late request may yet attach a place to that lease.
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

// grant returns the grant for an owner that acquired the lock at revision rev. If the revision
// isn't known, rev is 0. ok reports whether the owner belongs to this session.
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
