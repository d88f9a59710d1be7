package contract

import (
	"fmt"
	"slices"
	"time"

	"github.com/seed951563bd/distsync/backend"
)

// The store gives these answers when a request for permits can never succeed, because it knows no
// limit for the semaphore, or because the request is for more permits than the limit.
const noLimit, tooMany = "no limit", "too many"

// works reports whether any owner holds permits.
func (o object) works() bool { return o.permits != [len(modelOwners)]ending{} }

// out returns the number of permits that are taken. Each owner takes either none or the number that
// modelStep.permits returns.
func (o object) out() (n int) {
	for i, x := range o.permits {
		if !x.none() {
			n += 1 + i
		}
	}
	return n
}

// permitsSeen describes a look's answer about permits.
func permitsSeen(held bool, count, available int) string {
	return fmt.Sprintf("held %v, count %d, available %d", held, count, available)
}

// applyPermits implements apply for Permits.
func (o object) applyPermits(s modelStep, i int, t moment) []outcome {
	mine := !o.permits[i].none() && !o.kept[i]
	w := outcome{next: o}
	switch s.op {
	case opAcquire, opReenter, opLook:
		return o.limited(s, i, t)
	case opRelease:
		w.text = backend.NotHeld.String()
		switch {
		case o.kept[i] && s.keep > 0:
			w.text = backend.Kept.String()
		case mine && s.keep > 0:
			w.text, w.next.permits[i], w.next.kept[i] = backend.Kept.String(), t.in(s.keep), true
		case mine:
			w.text, w.next.permits[i] = backend.Freed.String(), ending{}
		}
	case opRenew:
		w.text = "not held"
		if mine {
			w.text, w.next.permits[i] = "held", t.in(s.lease)
		}
	default: // opForce
		w.text = "was free"
		if o.works() {
			w.text, w.next.permits, w.next.kept = "released", [len(modelOwners)]ending{},
				[len(modelOwners)]bool{}
		}
	}
	return []outcome{w}
}

// limited implements apply for steps that depend on the semaphore's limit. If no permits are taken,
// the store may have forgotten the limit that a step set.
func (o object) limited(s modelStep, i int, t moment) (all []outcome) {
	limit := s.limit
	if limit == 0 {
		if !o.works() {
			forgot := outcome{text: noLimit, next: o}
			forgot.next.told = 0
			all = append(all, forgot)
		}
		limit = o.told
	}
	if limit == 0 {
		return all
	}
	if s.op == opLook {
		return append(all, o.lookPermits(limit, i, t))
	}
	return append(all, o.acquirePermits(s, limit, i, t)...)
}

func (o object) lookPermits(limit, i int, t moment) outcome {
	count := 0
	if !o.permits[i].none() && !o.kept[i] {
		count = 1 + i
	}
	w := outcome{text: permitsSeen(o.works(), count, max(0, limit-o.out())), next: o}
	if o.works() {
		w.remaining, w.known = t.left(o.holds()), true
	}
	return w
}

func (o object) acquirePermits(s modelStep, limit, i int, t moment) []outcome {
	in := outcome{text: acquired(s, s.permits()), next: o}
	in.next.told, in.next.permits[i] = limit, t.in(s.lease)
	switch {
	case s.permits() > limit:
		return []outcome{{text: tooMany, next: o}}
	case !o.kept[i] && (!o.permits[i].none() || o.out()+s.permits() <= limit):
		return []outcome{in}
	}
	out := outcome{text: heldByOther, next: o, remaining: t.left(o.firstPermits())}
	told := out
	told.next.told = limit
	return []outcome{told, out} // the store may remember the limit even if it refuses the call
}

// firstPermits returns the ending of the permits that end first.
func (o object) firstPermits() (first ending) {
	for _, x := range o.permits {
		switch {
		case x.none():
		case first.none():
			first = x
		default:
			if x.earliest.Before(first.earliest) {
				first.earliest = x.earliest
			}
			if x.latest.Before(first.latest) {
				first.latest = x.latest
			}
		}
	}
	return first
}

// line is the model of a Fair lock's waiters, in order.
type line [len(modelOwners)]place

// A place is an owner's place in line. The zero place belongs to nobody.
type place struct {
	owner string
	ends  ending
}

// leave removes an owner's place, if it has one.
func (l *line) leave(owner string) {
	rest := slices.DeleteFunc(slices.Clone(l[:]), func(p place) bool { return p.owner == owner })
	*l = line{}
	copy(l[:], rest)
}

func (l *line) index(owner string) int {
	return slices.IndexFunc(l[:], func(p place) bool { return p.owner == owner })
}

// stand extends the lifetime of an owner's place in line. If the owner has no place, stand adds one
// at the end.
func (l *line) stand(owner string, ends ending) {
	if i := l.index(owner); i >= 0 {
		l[i].ends = l[i].ends.longer(ends)
		return
	}
	l[l.index("")] = place{owner, ends}
}

// keep renews the places of the given owners. Owners without a place get one at the front.
func (l *line) keep(owners []string, ends ending) {
	var back []place
	for _, owner := range owners {
		if i := l.index(owner); i >= 0 {
			l[i].ends = ends
		} else {
			back = append(back, place{owner, ends})
		}
	}
	all := append(back, l[:]...)
	copy(l[:], all)
}

// The shortest and the longest time that a grant is allowed to last. A grant should last about a
// second.
const shortest, longest = 500 * time.Millisecond, 5 * time.Second

// settle grants the lock to the first in line, unless it is held. The parameter x says when the
// lock became free.
func (o object) settle(x ending) object {
	if o.alone.count > 0 || o.line == (line{}) {
		return o
	}
	first := o.line[0].owner
	o.line.leave(first)
	o.alone = hold{
		kind: backend.Fair, owner: first, count: 1, ends: ending{
			x.earliest.Add(shortest), x.latest.Add(longest),
		},
	}
	o.freed = ending{}
	return o
}

// moved returns the possible states of an object after time has passed. The caller has already
// removed expired holds. Some places in line may have expired. The store may have granted the lock
// to the first in line and, if that grant expired because the owner was dead, to the next. But some
// stores grant the lock only in the next step.
func (o object) moved(t moment, strict bool) (all []object) {
	for left := range 1 << len(o.line) { // for each set of owners whose places may have expired
		p, possible, finally := o, true, true
		for i, at := range o.line {
			switch {
			case left>>i&1 == 0:
				finally = finally &&
					!(strict && at.owner != "" && t.before.After(at.ends.latest.Add(t.slack)))
			case at.owner != "" && t.mayBeOver(at.ends):
				p.line.leave(at.owner)
			default:
				possible = false
			}
		}
		if !possible {
			continue
		}
		if finally {
			all = append(all, p)
		}
		if p.alone.count == 0 && p.line != (line{}) && !p.freed.none() &&
			!p.line[0].ends.latest.Before(p.freed.earliest.Add(-t.slack)) {
			all = append(all, p.settle(ending{p.freed.earliest, t.after}).passing(t, strict)...)
		}
	}
	return all
}

// applyInLine implements apply for a Fair lock, and for other kinds of lock while owners stand in
// line for the name.
func (o object) applyInLine(s modelStep, i int, t moment) []outcome {
	if s.kind != backend.Fair {
		return o.applyBeside(s, i, t)
	}
	mine := o.alone.count > 0 && o.alone.owner == s.id()
	now := ending{t.before, t.after}
	w := outcome{next: o}
	h, l := &w.next.alone, &w.next.line
	switch {
	case s.op == opLook:
		return o.look(s, i, t)
	case s.op == opKeep:
		return []outcome{o.keepPlaces(s, t)}
	case s.op == opForce:
		w = o.force(s)[0]
		w.next = w.next.settle(now)
	case s.op == opRenew:
		w = o.renew(s, i, t)[0]
		w.next = w.next.settle(now)
	case s.op == opRelease:
		w = o.release(s, i, t)[0]
		if !mine {
			w.next.line.leave(s.id())
		}
		w.next = w.next.settle(now)
	case mine && s.op == opAcquire:
		w.text = "acquired"
		h.ends = h.ends.longer(t.in(s.lease))
	case mine, h.count == 0 && (l[0].owner == s.id() || *l == line{}):
		l.leave(s.id())
		w = w.next.acquire(s, i, t)[0]
	default:
		w.next = w.next.settle(now)
		w.text, w.remaining = heldByOther, t.left(w.next.alone.ends)
		if s.op == opAcquire && s.place > 0 && o.alone.owner != s.kept() {
			w.next.line.stand(s.id(), t.in(s.place))
		}
	}
	return []outcome{w}
}

// keepPlaces implements apply for KeepPlaces.
func (o object) keepPlaces(s modelStep, t moment) outcome {
	var owners []string
	holder := ""
	for _, s.owner = range s.owners {
		if o.alone.count == 0 || o.alone.owner != s.id() {
			owners = append(owners, s.id())
		}
	}
	o.line.keep(owners, t.in(s.place))
	o = o.settle(ending{t.before, t.after})
	for _, s.owner = range s.owners {
		if o.alone.owner == s.id() {
			holder = s.id()
		}
	}
	return outcome{text: "holder " + holder, next: o, remaining: t.left(o.alone.ends)}
}

// applyBeside implements apply for a step on another kind of lock, while owners stand in line for
// the Fair lock of that name. The store may grant the Fair lock to the first in line, as in a step
// on a Fair lock, or ignore the line.
func (o object) applyBeside(s modelStep, i int, t moment) (all []outcome) {
	now := ending{t.before, t.after}
	var plain []outcome
	switch s.op {
	case opAcquire, opReenter:
		plain = o.acquire(s, i, t)
		if given := o.settle(now); o.alone.count == 0 {
			plain = append(plain, outcome{
				text: heldByOther, next: given, remaining: t.left(given.alone.ends),
			})
		}
	case opRelease:
		plain = o.release(s, i, t)
	case opRenew:
		plain = o.renew(s, i, t)
	case opForce:
		plain = o.force(s)
	default:
		return o.look(s, i, t)
	}
	for _, w := range plain {
		given := w
		given.next = w.next.settle(now)
		if w.next.alone.count == 0 {
			w.next.freed = now
			all = append(all, w)
		}
		all = append(all, given)
	}
	return all
}
