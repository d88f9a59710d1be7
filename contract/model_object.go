package contract

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/seed951563bd/distsync/backend"
)

// modelOwners are the owners in the sequences. An object refers to them by index.
var modelOwners = [...]string{"a", "b", "c"}

// id returns the owner string of a step. An owner has a different string for each type of lock.
func (s modelStep) id() string {
	switch s.kind {
	case backend.Read, backend.Write:
		return s.owner
	case backend.Fair:
		return s.owner + ", in line"
	case backend.Permits:
		return s.owner + ", at work"
	default:
		return s.owner + ", alone"
	}
}

// kept returns the owner of a kept lock in the model. No step uses this owner.
func (s modelStep) kept() string { return s.id() + ", kept" }

// lockSeen returns a description of Look's answer for a held lock.
func lockSeen(count int, kept bool) string {
	return fmt.Sprintf("held, count %d, kept %v", count, kept)
}

// An ending is the range of time in which something ends. It is a range because the test doesn't
// know exactly when the store carried out the step that set the end. The zero ending means that
// there is nothing to end.
type ending struct{ earliest, latest time.Time }

func (x ending) none() bool { return x == ending{} }

// A hold models a hold that excludes all other owners. If its count is 0, there is no such hold.
type hold struct {
	kind  backend.Kind
	owner string
	count int
	ends  ending
	token uint64
}

// A note models the store's note about a waiting writer, which keeps out later readers.
type note struct{ since, ends ending }

// An object models the lock with a given name. All of its fields are comparable.
type object struct {
	alone   hold
	readers [len(modelOwners)]ending
	notes   [len(modelOwners)]note
	permits [len(modelOwners)]ending
	kept    [len(modelOwners)]bool // whether the permits are released and kept
	told    int                    // the last limit that the store was given; 0 if none
	line    line
	freed   ending // when the last hold ended; used only while owners wait in line
}

// A moment is the range of time in which a step was carried out. slack is the maximum error of the
// store's clock.
type moment struct {
	before, after time.Time
	slack         time.Duration
}

// mayBeOver reports whether a hold, note or place with ending x may have ended.
func (t moment) mayBeOver(x ending) bool {
	return !x.none() && !t.after.Before(x.earliest.Add(-t.slack))
}

// in returns the ending of something that ends d after the moment.
func (t moment) in(d time.Duration) ending { return ending{t.before.Add(d), t.after.Add(d)} }

// longer returns the later of two endings.
func (x ending) longer(y ending) ending {
	if y.earliest.After(x.earliest) {
		x.earliest = y.earliest
	}
	if y.latest.After(x.latest) {
		x.latest = y.latest
	}
	return x
}

// holds returns the ending of the hold that lasts longest.
func (o object) holds() ending {
	x := o.alone.ends
	for _, r := range o.readers {
		x = x.longer(r)
	}
	for _, p := range o.permits {
		x = x.longer(p)
	}
	return x
}

// latest returns the time by which all holds must have ended.
func (o object) latest() time.Time { return o.holds().latest }

// reads reports whether any owner reads.
func (o object) reads() bool { return o.readers != [len(modelOwners)]ending{} }

// lockOf maps the kinds that share a lock, such as Read and Write, to a single kind.
func lockOf(k backend.Kind) backend.Kind {
	switch k {
	case backend.Read, backend.Write:
		return backend.Write
	case backend.Permits:
		return backend.Permits
	default:
		return backend.Exclusive
	}
}

// lock returns the result of lockOf for the object's holds. The object must not be free.
func (o object) lock() backend.Kind {
	switch {
	case o.works():
		return backend.Permits
	case o.reads():
		return backend.Write
	default:
		return lockOf(o.alone.kind)
	}
}

// free reports whether there are no holds.
func (o object) free() bool { return o.alone.count == 0 && !o.reads() && !o.works() }

// passing returns the states in which the object may be at the given moment. If strict is set, a
// hold must have ended if its lease has certainly expired. But a reader's hold may end late while
// there are other readers, because these keep out the same calls anyway.
func (o object) passing(t moment, strict bool) []object {
	all := []object{o}
	over := func(x, last ending, end func(*object)) {
		if !t.mayBeOver(x) {
			return
		}
		must := strict && t.before.After(last.latest.Add(t.slack))
		var next []object
		for _, p := range all {
			if !must {
				next = append(next, p)
			}
			end(&p)
			if !slices.Contains(next, p) {
				next = append(next, p)
			}
		}
		all = next
	}
	over(o.alone.ends, o.alone.ends, func(p *object) { p.alone, p.freed = hold{}, o.alone.ends })
	for i := range o.readers {
		over(o.readers[i], o.holds(), func(p *object) { p.readers[i] = ending{} })
	}
	for i := range o.notes {
		over(o.notes[i].ends, o.notes[i].ends, func(p *object) { p.notes[i] = note{} })
	}
	for i := range o.permits {
		over(o.permits[i], o.permits[i], func(p *object) {
			p.permits[i], p.kept[i] = ending{}, false
		})
	}
	if o.line == (line{}) {
		return all
	}
	var moved []object
	for _, p := range all {
		for _, next := range p.moved(t, strict) {
			if !slices.Contains(moved, next) {
				moved = append(moved, next)
			}
		}
	}
	return moved
}

// An outcome is a possible answer to a step, with the state of the object after the step.
type outcome struct {
	text     string
	next     object
	numbered bool // the answer has a token
	fresh    bool // the token is a new one

	// Bounds of the remaining time that the store reports. If known is false, the store isn't
	// required to report any.
	remaining *[2]time.Duration
	known     bool
}

// heldByOther is the answer to a step that found another owner's hold, and otherKind is the answer
// to one that found another kind of lock.
const heldByOther, otherKind = "refused", "conflict"

// compare returns "" if the answer is right. Otherwise it returns what the answer should have been.
func (w outcome) compare(got answer, last uint64) string {
	switch {
	case got.text != w.text:
		return w.text
	case w.remaining != nil && (w.known || got.remaining >= 0) &&
		(got.remaining < w.remaining[0] || got.remaining > w.remaining[1]):
		return fmt.Sprintf("%s, Remaining %v to %v, not %v", w.text, w.remaining[0], w.remaining[1],
			got.remaining)
	case w.fresh && got.token <= last:
		return fmt.Sprintf("%s, a token larger than %d, not %d", w.text, last, got.token)
	case w.numbered && !w.fresh && got.token != w.next.alone.token:
		return fmt.Sprintf("%s, the token %d, not %d", w.text, w.next.alone.token, got.token)
	case !w.numbered && got.token != 0 && w.next.alone.kind == backend.Write:
		return w.text + ", no token"
	}
	return ""
}

// left returns the bounds of the remaining time that a step is allowed to report. A store that ends
// holds late can report remaining time even for an expired lease.
func (t moment) left(x ending) *[2]time.Duration {
	return &[2]time.Duration{
		x.earliest.Sub(t.after) - t.slack, max(x.latest.Sub(t.before), 0) + t.slack,
	}
}

// apply returns the possible outcomes of a step. Each contains the answer, in the format of
// modelRun.do, and the object after the step.
func (o object) apply(s modelStep, t moment) (results []outcome) {
	if !o.free() && lockOf(s.kind) != o.lock() {
		all := []outcome{{text: otherKind, next: o}}
		if t.mayBeOver(o.holds()) && (s.op == opAcquire || s.op == opReenter) {
			// the hold might have ended after the refusal, but before the store read the kind
			all = append(all, outcome{text: heldByOther, next: o})
		}
		return all
	}
	i := slices.Index(modelOwners[:], s.owner)
	var all []outcome
	if o.told != 0 && lockOf(s.kind) != backend.Permits {
		// The store may remember the semaphore's limit. Then the name can't be used for other
		// locks.
		defer func() { results = append(results, outcome{text: otherKind, next: o}) }()
	}
	switch {
	case s.kind == backend.Permits:
		return o.applyPermits(s, i, t)
	case s.kind == backend.Fair || o.line != line{}:
		return o.applyInLine(s, i, t)
	}
	switch s.op {
	case opAcquire, opReenter:
		if s.kind == backend.Read {
			all = o.acquireRead(s, i, t)
		} else {
			all = o.acquire(s, i, t)
		}
	case opRelease:
		all = o.release(s, i, t)
	case opRenew:
		all = o.renew(s, i, t)
	case opForce:
		all = o.force(s)
	default:
		all = o.look(s, i, t)
	}
	for k := range all {
		all[k].next.share()
	}
	return all
}

// share allows a Write and its owner's Read to end either together or separately, because a store
// may keep a single expiry for both.
func (o *object) share() {
	if o.alone.kind != backend.Write || o.alone.count == 0 {
		return
	}
	for i := range o.readers {
		if !o.readers[i].none() {
			last := o.holds().latest
			o.alone.ends.latest, o.readers[i].latest = last, last
		}
	}
}

// last gives a hold a lease that begins at t. It never makes a Write end earlier.
func (h *hold) last(lease time.Duration, t moment) {
	x := t.in(lease)
	if h.kind == backend.Write {
		x = h.ends.longer(x)
	}
	h.ends = x
}

func acquired(s modelStep, count int) string {
	if s.op == opReenter {
		return fmt.Sprintf("acquired, count %d", count)
	}
	return "acquired"
}

func (o object) acquire(s modelStep, i int, t moment) []outcome {
	mine := o.alone.count > 0 && o.alone.owner == s.id()
	if !mine && !o.free() {
		w := outcome{text: heldByOther, next: o, remaining: t.left(o.holds())}
		if s.kind == backend.Write && o.alone.owner != s.kept() {
			w.next.notes[i].leave(s, t)
		}
		return []outcome{w}
	}
	w := outcome{
		numbered: s.kind == backend.Fenced, fresh: s.kind == backend.Fenced && !mine, next: o,
	}
	h := &w.next.alone
	if !mine {
		*h = hold{kind: s.kind, owner: s.id()}
		w.next.freed = ending{}
		if s.kind == backend.Write {
			w.next.notes[i] = note{}
		}
	}
	h.count++
	h.last(s.lease, t)
	w.text = acquired(s, h.count)
	return []outcome{w}
}

// leave adds or renews the note of a waiting writer.
func (n *note) leave(s modelStep, t moment) {
	// a re-entry asks for no place, so the store is free to keep or remove an earlier note
	if s.op == opReenter {
		if !n.ends.none() {
			n.ends.earliest = t.before
		}
		return
	}
	since := t.in(-s.waited)
	if !n.ends.none() {
		// The writer counts as waiting from the earlier of the two times.
		if n.since.earliest.Before(since.earliest) {
			since.earliest = n.since.earliest
		}
		if n.since.latest.Before(since.latest) {
			since.latest = n.since.latest
		}
	}
	*n = note{since, t.in(s.place)}
}

func (o object) acquireRead(s modelStep, i int, t moment) []outcome {
	in := outcome{text: acquired(s, 1), next: o}
	in.next.readers[i] = o.readers[i].longer(t.in(s.lease))
	switch {
	case !o.readers[i].none(), o.alone.count > 0 && o.alone.owner == s.id():
		return []outcome{in}
	case o.alone.count > 0:
		left := t.left(o.holds())
		left[0] = t.left(o.alone.ends)[0]
		return []outcome{{text: heldByOther, next: o, remaining: left}}
	}
	waited := s.waited
	if s.op == opReenter {
		waited = 0
	}
	must, may := o.bars(i, t.in(-waited), t)
	switch {
	case may.none():
		return []outcome{in}
	case must.none():
		must = ending{t.before, t.before}
	}
	left := t.left(must.longer(may))
	left[0] = max(t.left(must)[0], 1)
	left[1] = max(left[1], time.Millisecond)
	out := outcome{text: heldByOther, next: o, remaining: left, known: true}
	if must.latest.After(t.before) {
		return []outcome{out}
	}
	return []outcome{in, out}
}

// bars returns two endings that say how long notes keep out a Read. The store must refuse the Read
// until the first, and is allowed to refuse it until the second. Notes that certainly keep the Read
// out count for both endings. The owner's own note, and notes that are about as old as the Read,
// count only for the second.
func (o object) bars(i int, arrived ending, t moment) (must, may ending) {
	for j, n := range o.notes {
		if n.ends.none() {
			continue
		}
		if n.since.latest.Before(arrived.earliest.Add(-3*t.slack)) && j != i {
			must = must.longer(n.ends)
		}
		if n.since.earliest.Before(arrived.latest.Add(3 * t.slack)) {
			may = may.longer(n.ends)
		}
	}
	return must, may
}

func (o object) release(s modelStep, i int, t moment) []outcome {
	w := outcome{text: backend.NotHeld.String(), next: o}
	if s.kind == backend.Read {
		if !o.readers[i].none() {
			w.text, w.next.readers[i] = backend.Freed.String(), ending{}
		}
		return []outcome{w}
	}
	if s.kind == backend.Write {
		w.next.notes[i] = note{}
	}
	switch h := &w.next.alone; {
	case h.count > 0 && h.owner == s.kept() && s.keep > 0:
		w.text = backend.Kept.String()
	case h.count == 0 || h.owner != s.id():
	case h.count == 1 && s.keep > 0:
		w.text, h.owner, h.ends = backend.Kept.String(), s.kept(), t.in(s.keep)
	case h.count == 1:
		w.text, *h = backend.Freed.String(), hold{}
	default:
		w.text = backend.Left.String()
		h.count--
		h.last(s.lease, t)
	}
	return []outcome{w}
}

func (o object) renew(s modelStep, i int, t moment) []outcome {
	w := outcome{text: "held", next: o}
	switch {
	case s.kind == backend.Read && !o.readers[i].none():
		w.next.readers[i] = o.readers[i].longer(t.in(s.lease))
	case s.kind != backend.Read && o.alone.count > 0 && o.alone.owner == s.id():
		w.next.alone.last(s.lease, t)
	default:
		w.text = "not held"
	}
	return []outcome{w}
}

func (o object) force(s modelStep) []outcome {
	if o.free() || (s.kind == backend.Read) != (o.alone.count == 0) {
		return []outcome{{text: "was free", next: o}}
	}
	return []outcome{{text: "released", next: object{notes: o.notes, told: o.told, line: o.line}}}
}

func (o object) look(s modelStep, i int, t moment) []outcome {
	w := outcome{text: "free", next: o}
	x, count := o.alone.ends, o.alone.count
	if o.alone.owner != s.id() {
		count = 0
	}
	held := o.alone.count > 0
	if s.kind == backend.Read {
		x, count, held = object{readers: o.readers}.holds(), 0, o.reads()
		if !o.readers[i].none() {
			count = 1
		}
	}
	if held {
		kept := s.kind != backend.Read && strings.HasSuffix(o.alone.owner, ", kept")
		w.text, w.remaining, w.known = lockSeen(count, kept), t.left(x), true
		w.remaining[1] = max(w.remaining[1], t.left(o.holds())[1])
	}
	return []outcome{w}
}
