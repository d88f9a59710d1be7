package history

import (
	"fmt"
	"time"

	"github.com/seed951563bd/distsync/backend"
)

// loans is the maximum number of holds of a semaphore that a user may have at a time.
const loans = 2

// A pool is the state of a semaphore: the permits of each user. It doesn't include permits that are
// taken in the store without a user's knowledge. [op].out counts those.
type pool struct {
	has [maxUsers * loans]loan
	// struck contains, for each hold that the store lost, the latest time at which its user might
	// still rely on it.
	struck [maxUsers * loans]time.Duration
}

// A loan is one hold of permits. The zero value means that there is none.
type loan struct {
	hold
	permits int
}

// place returns the index in pool.has of the hold that the call concerns.
func (o *op) place() int { return o.user*loans + o.loan }

// next implements [lock].
func (p pool) next(o *op) (bool, lock) {
	if o.kind == wipe {
		for i := range p.has {
			p.struck[i] = p.has[i].strike(p.struck[i])
		}
		return true, p
	}
	switch his, deluded := &p.has[o.place()], o.call <= p.struck[o.place()]; o.kind {
	case acquire:
		ok := p.acquires(o)
		return ok, p
	case unlock:
		ends := his.ended(o)
		ok := his.unlocks(o, deluded)
		if ends {
			p.ends(o)
		}
		return ok, p
	case check:
		ok := his.answers(o, deluded)
		if o.result != yes {
			p.ends(o)
		}
		return ok, p
	case available:
		return p.leaves(o), p
	default: // semaphores have no other calls
		return false, p
	}
}

func (p *pool) acquires(o *op) bool {
	switch {
	case o.result == no:
		return o.out+o.permits > o.least || o.crowded
	case o.result == untold:
		return o.limit == 0 && p.out(o) == 0
	case o.result == tooMany:
		return o.permits > o.least
	case o.result != yes, o.granter == nil && !o.joined:
		return false // the call got no permits, or this can't be its answer
	case o.doomed:
		p.struck[o.place()] = o.until
		p.has[o.place()] = loan{begun(o), o.permits}
		// the call may have got a hold other than the one ended by force
		p.has[o.place()].end = o.call
		return true
	}
	ok := p.out(o)+o.permits <= o.most
	p.has[o.place()] = loan{begun(o), o.permits}
	p.struck[o.place()] = 0
	return ok
}

// leaves reports whether call o, which asks how many permits are available, may have returned the
// correct number.
func (p *pool) leaves(o *op) bool {
	switch o.result {
	case yes:
		return o.count <= max(0, o.most-p.out(o)) && o.count >= o.least-o.out
	case untold:
		return o.limit == 0 && p.out(o) == 0
	default:
		return false
	}
}

// out returns how many permits are certainly taken, because their holds can't have expired.
func (p *pool) out(o *op) (n int) {
	for i := range p.has {
		if h := &p.has[i]; !h.free(o) {
			n += h.permits
		}
	}
	return n
}

// ends records that a hold has ended, and that its user has learned this from call o.
func (p *pool) ends(o *op) {
	if his := &p.has[o.place()]; his.count > 0 {
		his.over = true
	}
	p.struck[o.place()] = 0
}

// String describes the state.
func (p pool) String() string {
	text := "out:"
	for i := range p.has {
		if h := &p.has[i]; h.count > 0 {
			text += fmt.Sprintf(" %d with user %d, %v;", h.permits, i/loans, &h.hold)
		}
	}
	for i, until := range p.struck {
		if until > 0 {
			text += fmt.Sprintf(" user %d was struck;", i/loans)
		}
	}
	return text
}

// several reports whether several owners may hold a lock of this kind at a time.
func several(k backend.Kind) bool { return k == backend.Read || k == backend.Permits }

// limits records, for each call on a semaphore, the lowest and the highest limit that the semaphore
// may have had.
func limits(ops []*op) {
	type told struct{ least, most int }
	all := make(map[string]told)
	for _, o := range ops {
		if o.limit > 0 {
			t, ok := all[o.name]
			if !ok {
				t.least = o.limit
			}
			all[o.name] = told{min(t.least, o.limit), max(t.most, o.limit)}
		}
	}
	for _, o := range ops {
		o.least, o.most = o.limit, o.limit
		switch {
		case o.limit == 0:
			o.least, o.most = all[o.name].least, all[o.name].most
		case o.kind == acquire && o.granter == nil:
			// The call was handed permits that an earlier call had acquired within that call's
			// limit. Since then, calls with a larger limit may have acquired more permits.
			o.most = all[o.name].most
		}
	}
}

// numbersOut records, for each call on a semaphore, the largest number of permits that the store
// may have counted as taken during the call.
func (e *evidence) numbersOut(ops []*op) {
	for _, o := range ops {
		if o.side != backend.Permits {
			continue
		}
		o.out, o.crowded = 0, false
		for key, n := range e.numbers {
			if key.name == o.name && n.haunts(o) {
				o.out += n.permits()
			}
		}
		for _, x := range ops {
			if o.kind != acquire || o.result != no {
				break
			}
			o.crowded = o.crowded || x != o && x.kind == acquire && x.name == o.name &&
				x.client == o.client && x.call <= o.ret && o.call <= x.ret
		}
	}
}

// permits returns the number of permits that each of n's steps asks for.
func (n *number) permits() int { return n.steps[0].permits }
