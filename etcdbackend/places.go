package etcdbackend

import (
	"slices"
	"sync"
	"time"

	"github.com/seed951563bd/distsync/backend"
)

// ownPlaces holds a session's places in line, for all locks.
type ownPlaces struct {
	mu  sync.Mutex // not held during a request or a callback
	all map[string]map[int64]*placeSet
	n   int // the number of sets so far

	firsts map[string]firstPlace // by lock name
}

// A firstPlace is the place of an owner that holds the lock as the first in line, while the lock
// has no key. The field seen is the time when the session first saw that.
type firstPlace struct {
	position
	seen time.Time
}

// timeLeft returns how much of firstTime is left for an owner that holds the lock as the first in
// line. The time is counted from the first call of timeLeft for that place.
func (ps *ownPlaces) timeLeft(name string, place record) time.Duration {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	h, known := ps.firsts[name]
	if !known || h.position != place.position() {
		if ps.firsts == nil || len(ps.firsts) >= mostNames {
			ps.firsts = make(map[string]firstPlace)
		}
		h = firstPlace{place.position(), time.Now()}
		ps.firsts[name] = h
	}
	return firstTime - time.Since(h.seen)
}

// A placeSet holds places with the same ttl, in line for the same lock. They share one lease.
type placeSet struct {
	name string
	ttl  int64
	slot chan struct{} // holds a value while the lease is being granted or renewed

	lease  lease // the lease of the places; its id is 0 if there is none
	doubt  bool  // a late request might still create a place
	owners map[string]*place
	looks  []look // some of the last looks, oldest first
}

// A place records what the session knows about an owner in line.
type place struct {
	until time.Time
	doubt bool   // a request that creates the place wasn't answered
	key   record // as last created or seen
	holds bool   // when last seen, the owner was first in line and so held the lock
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

// asks records that an owner is or will be in line, for at least the given duration. If an earlier
// call has recorded a later end, asks keeps that end.
func (ps *ownPlaces) asks(name, owner string, ttl int64, lasts time.Duration) *placeSet {
	ps.mu.Lock()
	set, o := ps.of(name, owner)
	longer := o != nil && o.until.After(time.Now().Add(lasts))
	ps.mu.Unlock()
	if longer {
		return set
	}
	return ps.expect(name, owner, ttl, lasts)
}

// of returns an owner's place, and the set that contains it. If the owner isn't known, both are
// nil. The caller must hold ps.mu.
func (ps *ownPlaces) of(name, owner string) (*placeSet, *place) {
	for _, set := range ps.all[name] {
		if o := set.owners[owner]; o != nil {
			return set, o
		}
	}
	return nil, nil
}

// expect records that an owner is or will be in line, for the given duration.
func (ps *ownPlaces) expect(name, owner string, ttl int64, lasts time.Duration) *placeSet {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	if set, _ := ps.of(name, owner); set != nil && set.ttl != ttl {
		delete(set.owners, owner)
	}
	set := ps.all[name][ttl]
	if set == nil {
		set = ps.add(name, ttl)
	}
	o := set.owners[owner]
	if o == nil {
		o = new(place)
		set.owners[owner] = o
	}
	if until := time.Now().Add(lasts); until.After(o.until) {
		o.until = until
	}
	return set
}

// add adds a set. It occasionally drops sets that can no longer contain places. The caller must
// hold ps.mu.
func (ps *ownPlaces) add(name string, ttl int64) *placeSet {
	if ps.n++; ps.n%firstSweep == 0 {
		ps.sweep(time.Now())
	}
	if ps.all == nil {
		ps.all = make(map[string]map[int64]*placeSet)
	}
	if ps.all[name] == nil {
		ps.all[name] = make(map[int64]*placeSet)
	}
	set := &placeSet{
		name: name, ttl: ttl, slot: make(chan struct{}, 1), owners: make(map[string]*place),
	}
	ps.all[name][ttl] = set
	return set
}

func (ps *ownPlaces) sweep(now time.Time) {
	for name, some := range ps.all {
		for ttl, set := range some {
			over := now.Sub(set.lease.since) > keptFor(set.ttl)
			for _, o := range set.owners {
				over = over && now.After(o.until)
			}
			if over {
				delete(some, ttl)
			}
		}
		if len(some) == 0 {
			delete(ps.all, name)
		}
	}
}

func (ps *ownPlaces) getLease(set *placeSet) lease {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	return set.lease
}

// begin records a new or renewed lease of a set.
func (ps *ownPlaces) begin(set *placeSet, l lease) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	set.lease = l
}

// lost records that a lease has ended, so that its places no longer exist.
func (ps *ownPlaces) lost(set *placeSet, l lease) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	if set.lease.id == l.id {
		set.lease = lease{}
	}
}

// saw records a look that was sent at the given time, and found that another owner held the lock at
// revision rev.
func (ps *ownPlaces) saw(set *placeSet, sent time.Time, rev int64) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	if n := len(set.looks); n > 0 && sent.Sub(set.looks[n-1].sent) < looksApart {
		return
	}
	if set.looks = append(set.looks, look{sent, rev}); len(set.looks) > mostLooks {
		set.looks = set.looks[1:]
	}
}

// doubt records that a late request might still create a place.
func (ps *ownPlaces) doubt(name, owner string) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	if _, o := ps.of(name, owner); o != nil {
		o.doubt = true
	}
}

// over reports whether an owner should no longer be in line. It looks for the owner in all sets of
// the lock, since a newer set may have taken over the lease of a set that has ended.
func (ps *ownPlaces) over(name, owner string, now time.Time) bool {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	_, o := ps.of(name, owner)
	return o == nil || now.After(o.until)
}

// placed records a place that was created.
func (ps *ownPlaces) placed(set *placeSet, place record) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	if o := set.owners[place.owner]; o != nil {
		o.key, o.holds = place, false
	}
}

// find returns an owner's place as last seen. The result holds reports whether the owner, as the
// first in line, held the lock at that time.
func (ps *ownPlaces) find(name, owner string) (key record, holds bool) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	if _, o := ps.of(name, owner); o != nil {
		return o.key, o.holds
	}
	return record{}, false
}

// left forgets a place. If it was the last in its set, left returns the lease. suspect reports
// whether a late request might still attach a place to that lease.
func (ps *ownPlaces) left(name, owner string) (spare lease, suspect bool) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	set, o := ps.of(name, owner)
	if o == nil {
		return lease{}, false
	}
	set.doubt = set.doubt || o.doubt
	if delete(set.owners, owner); len(set.owners) > 0 {
		return lease{}, false
	}
	if delete(ps.all[name], set.ttl); len(ps.all[name]) == 0 {
		delete(ps.all, name)
	}
	return set.lease, set.doubt
}

// grant returns the grant for an owner that acquired the lock at revision rev. If the revision
// isn't known, rev is 0. ok reports whether the owner belongs to this session.
func (ps *ownPlaces) grant(name string, place record, rev int64) (g backend.Grant, ok bool) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	set, o := ps.of(name, place.owner)
	if o == nil {
		return g, false
	}
	g = backend.Grant{Owner: place.owner, Since: time.Now()}
	if set.lease.id != place.lease {
		return g, true
	}
	for _, l := range slices.Backward(set.looks) {
		if l.rev < rev {
			end := set.lease.since.Add(time.Duration(set.lease.ttl) * time.Second)
			g.Since, g.Lease = l.sent, min(end.Sub(l.sent), firstTime)
			if o.key, o.holds = place, true; end.After(o.until) {
				o.until = end
			}
			break
		}
	}
	return g, true
}
