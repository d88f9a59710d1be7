package history

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/seed951563bd/distsync/backend"
)

// Rules describe the conditions of a run.
type Rules struct {
	// Calm means that every step succeeded without delay.
	Calm bool

	// Renewed means that every renewal was in time, so that no renewed hold expired. Don't set it
	// if the test uses the real clock on a busy machine, where renewals can be late.
	Renewed bool

	// Late is how long a store may keep a hold after its lease has expired.
	Late time.Duration

	// Blink is how far apart two arrivals must be for the store to know their order. Zero means a
	// few milliseconds.
	Blink time.Duration

	// Lasting means that fencing tokens keep growing after a loss of all data.
	Lasting bool

	// Voted means that a lock is granted by the votes of several stores. A free lock may then seem
	// to be held while another user's votes are released, and some stores may not know of a waiting
	// writer.
	Voted bool

	// Prompt is how long a lock may stay free after a release while a call waits for it. Zero means
	// that this isn't checked.
	Prompt time.Duration
}

// Limits on the search for an order of the calls that explains their answers. If such an order
// exists, the search takes milliseconds, since a history has a few hundred calls for each name. If
// none exists, it can take very long. If another check has already failed, the search only serves
// to give an example of the error. Then its limit is forAnExample, which is shorter.
const (
	patience     = time.Minute
	forAnExample = time.Second
)

// A Verdict is the result of a check.
type Verdict struct {
	Err  error // nil if a correct lock could have produced this history
	info porcupine.LinearizationInfo
}

// Check checks the calls recorded so far. Call it only when no call is in progress.
func (r *Recorder) Check(rules Rules) Verdict {
	r.mu.Lock()
	defer r.mu.Unlock()
	if slices.ContainsFunc(r.ops, func(o *op) bool {
		return o.user >= maxUsers && o.kind != wipe
	}) {
		panic("history: too many users")
	}
	e := weigh(r.ops, r.steps, rules)
	errs := []error{
		r.overlaps(), r.delays(rules.Prompt), r.misnumbered(e), r.overtaken(e), r.outOfTurn(e),
	}
	limit := patience
	if errors.Join(errs...) != nil {
		limit = forAnExample
	}
	var v Verdict
	var result porcupine.CheckResult
	calls := r.operations()
	result, v.info = porcupine.CheckOperationsVerbose(model, calls, limit)
	switch result {
	case porcupine.Illegal:
		errs = append(errs, fmt.Errorf("no order of these calls explains all their answers: %s",
			unexplained(calls, v.info)))
	case porcupine.Unknown:
		errs = append(errs, fmt.Errorf("no order of these calls was found within %v", limit))
	}
	v.Err = errors.Join(errs...)
	return v
}

// CheckTimes checks two rules for the calls recorded so far: no two users could rely on a lock at
// once, and no user acquired a fair lock out of turn. It copes with long records, and with records
// in which some calls are missing.
func (r *Recorder) CheckTimes(rules Rules) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	e := attribute(r.ops, r.steps, rules)
	return errors.Join(r.overlaps(), r.outOfTurn(e))
}

// unexplained describes one call for each lock whose calls have no valid order. The search found
// valid orders for only some of the lock's calls. Of the calls that aren't in the longest of these
// orders, unexplained describes the one that returned first.
func unexplained(calls []porcupine.Operation, info porcupine.LinearizationInfo) string {
	explained := make(map[*op]bool)
	for _, part := range info.PartialLinearizationsOperations() {
		if len(part) == 0 {
			continue
		}
		longest := slices.MaxFunc(part, func(a, b []porcupine.Operation) int {
			return cmp.Compare(len(a), len(b))
		})
		for _, x := range longest {
			explained[x.Input.(*op)] = true
		}
	}
	var all []string
	for _, part := range byName(calls) {
		var first *op
		for _, x := range part {
			if o := x.Input.(*op); !explained[o] && (first == nil || o.ret < first.ret) {
				first = o
			}
		}
		if first != nil {
			all = append(all, fmt.Sprintf("user %d, %q, from %v to %v: %v", first.user, first.name,
				first.call, first.ret, first))
		}
	}
	return strings.Join(all, "; ")
}

// operations returns the calls that the model must explain. It omits calls that failed, except
// unlocks, which may have taken effect. A loss of all data is represented by one call for each
// lock.
func (r *Recorder) operations() (all []porcupine.Operation) {
	for _, o := range r.ops {
		switch {
		case o.kind == wipe:
			for name, side := range r.names() {
				strike := *o
				strike.name, strike.side = name, side
				all = append(all, operation(&strike))
			}
		case o.result != failed, o.kind == unlock, o.kind == forceUnlock:
			all = append(all, operation(o))
		}
	}
	return all
}

func operation(o *op) porcupine.Operation {
	return porcupine.Operation{
		ClientId: o.user, Input: o, Call: int64(o.call), Return: int64(o.ret),
		Metadata: fmt.Sprintf("client %d, from %v to %v", o.client, o.call, o.ret),
	}
}

// names returns a map from the name of each lock to its kind. For a read-write lock, the kind is
// Write.
func (r *Recorder) names() map[string]backend.Kind {
	all := make(map[string]backend.Kind)
	for _, o := range r.ops {
		switch {
		case o.shares():
			all[o.name] = backend.Write
		case o.name != "":
			all[o.name] = o.side
		}
	}
	return all
}

// A belief is an interval during which a user could rely on a lock.
type belief struct {
	name     string
	side     backend.Kind
	user     int
	from, to time.Duration
	granted  time.Duration // earliest time at which the store may have granted the hold
	permits  int
	most     int // limit when the permits were acquired
}

// overlaps returns an error if two users could rely on a lock at once, unless both are readers. For
// a semaphore, it returns an error if users could rely on more permits than the limit.
func (r *Recorder) overlaps() error {
	byName := make(map[string][]belief)
	for _, b := range r.beliefs() {
		if b.from < b.to {
			byName[b.name] = append(byName[b.name], b)
		}
	}
	for name, all := range byName {
		if all[0].side == backend.Permits {
			if err := crowding(name, all); err != nil {
				return err
			}
			continue
		}
		slices.SortFunc(all, func(a, b belief) int { return cmp.Compare(a.from, b.from) })
		for i, a := range all {
			for _, b := range all[i+1:] {
				if b.from >= a.to {
					break
				}
				if b.user != a.user && (a.side != backend.Read || b.side != backend.Read) {
					return fmt.Errorf("two could rely on %q at once: user %d (%v) from %v to %v, "+
						"and user %d (%v) from %v to %v",
						b.name, a.user, a.side, a.from, a.to, b.user, b.side, b.from, b.to)
				}
			}
		}
	}
	return nil
}

// crowding returns an error if users relied on more permits at once than the largest of their
// limits.
func crowding(name string, all []belief) error {
	slices.SortFunc(all, func(a, b belief) int { return cmp.Compare(a.from, b.from) })
	var inside []belief
	for _, a := range all { // the number of permits in use peaks when a user acquires some
		inside = append(slices.DeleteFunc(inside, func(b belief) bool { return b.to <= a.from }), a)
		out, most := 0, 0
		for _, b := range inside {
			out, most = out+b.permits, max(most, b.most)
		}
		if out > most {
			var who []string
			for _, b := range inside {
				who = append(who, fmt.Sprintf("user %d on %d from %v to %v", b.user, b.permits,
					b.from, b.to))
			}
			return fmt.Errorf("%d permits of %q could be relied on at %v, and there are %d: %s",
				out, name, a.from, most, strings.Join(who, ", "))
		}
	}
	return nil
}

// beliefs returns the intervals during which users could rely on locks. Each extends from the first
// to the last successful check of a hold. But if the lock was force-unlocked, or the store lost its
// data, between these checks, the interval ends at that time.
func (r *Recorder) beliefs() (all []belief) {
	type place struct {
		name  string
		reads bool
		user  int
		loan  int
	}
	now := make(map[place]*belief)
	granted := make(map[place]*op)
	where := func(o *op) place { return place{o.name, o.side == backend.Read, o.user, o.loan} }
	see := func(o *op, at time.Duration) {
		p := where(o)
		if now[p] == nil {
			b := &belief{name: o.name, side: o.side, user: o.user, from: at}
			if g := granted[p]; g != nil {
				b.granted, b.permits, b.most = g.granted, g.permits, g.most
			}
			now[p] = b
		}
		now[p].to = at
	}
	end := func(o *op) {
		if b := now[where(o)]; b != nil {
			all = append(all, *b)
			delete(now, where(o))
		}
	}
	// r.ops is sorted by start time, and the calls of one user don't overlap
	for _, o := range r.ops {
		switch {
		case o.kind == check && o.result == yes:
			see(o, o.call)
		case o.kind == unlock && o.result == yes:
			see(o, o.call) // the hold was valid when the unlock began
			if o.held == 1 {
				end(o)
			}
		case o.kind == acquire && o.result == yes && o.reentry != again:
			end(o)
			granted[where(o)] = o
		case o.kind == unlock, o.kind == check:
			end(o)
		}
	}
	for _, b := range now {
		all = append(all, *b)
	}
	forces := slices.DeleteFunc(slices.Clone(r.ops), func(o *op) bool {
		return o.kind != wipe && o.kind != forceUnlock
	})
	for i := range all {
		all[i].cut(forces)
	}
	return all
}

// cut ends the belief early if the lock was force-unlocked, or the store lost its data, while the
// belief lasted. From then on, the user no longer holds the lock.
func (b *belief) cut(forces []*op) {
	for _, o := range forces {
		forced := o.kind == wipe ||
			o.kind == forceUnlock && o.name == b.name && o.result != no &&
				(o.side != backend.Read || b.side == backend.Read)
		if forced && b.granted <= o.ret && o.call < b.to {
			b.to = max(b.from, o.call)
		}
	}
}

// misnumbered returns an error if a user got a fencing token other than the one that the store
// issued.
func (r *Recorder) misnumbered(e *evidence) error {
	for _, o := range r.ops {
		switch {
		case !o.asked:
		case o.side != backend.Fenced && o.token != 0:
			return fmt.Errorf("user %d has %q as number %d, though it is %v", o.user, o.name,
				o.token, o.side)
		case o.side == backend.Fenced && o.token == 0:
			return fmt.Errorf("user %d has %q without a number", o.user, o.name)
		case o.granter != nil &&
			!slices.ContainsFunc(e.attempts[o], func(s *step) bool {
				return s.result == granted && s.token == o.token
			}):
			return fmt.Errorf("user %d has %q as number %d, and the store gave it number %d",
				o.user, o.name, o.token, o.granter.token)
		}
	}
	return nil
}

// delays returns an error if a call waited for longer than limit while the lock was free.
func (r *Recorder) delays(limit time.Duration) error {
	if limit == 0 {
		return nil
	}
	for _, f := range r.gaps() {
		for _, o := range r.ops {
			if o.kind != acquire || !o.waits || o.gated || o.name != f.name {
				continue
			}
			from, to := max(o.call, f.from), min(o.ret, f.to)
			if o.side == backend.Permits && (f.taken+o.permits > o.least || r.behind(o, from)) {
				continue
			}
			if to-from > limit {
				return fmt.Errorf("user %d waited for %q from %v to %v, though it was free from "+
					"%v to %v",
					o.user, o.name, o.call, o.ret, f.from, f.to)
			}
		}
	}
	return nil
}

// behind reports whether o may have waited behind another call of its client. Such a call began
// before o, or at about the same time, and was still waiting for permits at the given time.
func (r *Recorder) behind(o *op, at time.Duration) bool {
	return slices.ContainsFunc(r.ops, func(x *op) bool {
		return x != o && x.kind == acquire && x.name == o.name && x.client == o.client &&
			x.call < o.call+leastBlink && x.ret > at
	})
}

// A gap is an interval in which a lock is certainly free. In a gap of a semaphore, some permits may
// still be taken. The field taken is the largest possible number of these.
type gap struct {
	name  string
	taken int
	span
}

// takenBeside returns how many other holds may still be in the store after a step has released a
// hold. For a Read, these are the holds of other readers. For a Write, it is the Read of the same
// owner, if there is one. For permits, takenBeside returns the number of other permits that may
// still be taken.
func (r *Recorder) takenBeside(freed *step) (n int) {
	if !several(freed.side) && freed.side != backend.Write {
		return 0
	}
	taken := make(map[numberKey]int)
	for _, s := range r.steps {
		switch {
		case s.name != freed.name || s.call >= freed.ret || s.kind == forceStep:
		case s.acquires():
			taken[s.key()] = max(1, s.permits)
		case s.kind == releaseStep:
			taken[s.key()] = 0
		}
	}
	for _, left := range taken {
		n += left
	}
	return n
}

// gaps returns the gaps that begin with a release and end with the next acquisition. If a step
// before the acquisition finds a holder, there was no gap: the store had already granted the lock
// to the next owner in line, without a request.
func (r *Recorder) gaps() (all []gap) {
	for _, s := range r.steps {
		if s.result != freed {
			continue
		}
		taken := r.takenBeside(s)
		if taken > 0 && s.side != backend.Permits {
			continue
		}
		free, held := gap{s.name, taken, span{s.ret, forever}}, forever
		for _, a := range r.steps {
			// The release wakes waiters before it returns, so an acquisition may return before the
			// release does.
			switch {
			case a.name != s.name:
			case a.gets() && a.ret > s.call:
				free.to = min(free.to, a.call)
			case a.side == backend.Fair && (a.result == granted || a.result == freed) &&
				a.call > s.ret:
				held = min(held, a.call)
			}
		}
		if free.to < held || held == forever {
			all = append(all, free)
		}
	}
	return all
}
