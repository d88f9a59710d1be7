package history

import (
	"cmp"
	"slices"
	"time"
)

// A number is one outermost acquisition as the store knows it: all steps with one owner string.
type number struct {
	steps   []*step         // by their begin
	granted time.Duration   // when the store had it first, at the earliest
	handed  []time.Duration // when it was handed on inside its client
	until   time.Duration   // after that it isn't held any more, even if nobody releases it
	ghosts  []span
	shaken  bool // there are ghosts
}

// A span is a time in which the store may hold a number though no call says so: a request to acquire
// it has no answer, or one that came too late.
type span struct{ from, to time.Duration }

// A numberKey says which.
type numberKey struct{ name, owner string }

// evidence is what the steps tell of the calls.
type evidence struct {
	rules    Rules
	numbers  map[numberKey]*number
	attempts map[*op][]*step // to acquire, for each acquiring call
	granting map[*step]bool  // the attempts that calls have their holds of
}

// weigh notes at each call what the steps tell of it.
func weigh(ops []*op, steps []*step, rules Rules) {
	e := &evidence{
		rules:    rules,
		numbers:  make(map[numberKey]*number),
		attempts: make(map[*op][]*step),
		granting: make(map[*step]bool),
	}
	for _, s := range steps {
		e.sort(s)
	}
	for _, o := range ops {
		if s := e.granter(o); s != nil {
			e.granting[s] = true
			o.number = e.numbers[numberKey{s.name, s.owner}]
			o.granter = s
		}
	}
	e.follow(ops)
	for _, n := range e.numbers {
		e.resolve(n)
	}
	for _, o := range ops {
		switch o.kind {
		case acquire:
			e.acquisition(o)
			e.usurped(o, ops)
			o.doomed = o.reentry == perhaps && slices.ContainsFunc(ops, o.number.struckBefore(o))
		case unlock:
			o.murky = o.murky || !rules.Calm
		case forceUnlock:
			if o.result == failed {
				o.ret = forever // it may be carried out at any time; or at the end, which says nothing
			}
		}
		o.ghost = e.haunted(o)
	}
}

// sort puts a step where it belongs.
func (e *evidence) sort(s *step) {
	if s.kind == forceStep {
		return
	}
	key := numberKey{s.name, s.owner}
	if e.numbers[key] == nil {
		e.numbers[key] = new(number)
	}
	e.numbers[key].steps = append(e.numbers[key].steps, s)
	if s.kind == acquireStep && s.op != nil {
		e.attempts[s.op] = append(e.attempts[s.op], s)
	}
}

// granter returns the attempt that brought about what an acquiring call has, or nil.
func (e *evidence) granter(o *op) (last *step) {
	if o.kind != acquire || o.result != yes {
		return nil
	}
	for _, s := range e.attempts[o] {
		if s.result == granted && s.ret < o.ret && (last == nil || s.ret > last.ret) {
			last = s
		}
	}
	return last
}

// follow finds out which numbers were handed on inside a client, without a word to the store: from
// one user's unlock on until the store hears of it, somebody has the lock, and it is not clear who.
func (e *evidence) follow(ops []*op) {
	type place struct {
		name string
		who  int
	}
	users, clients := make(map[place]*number), make(map[place]*number) // the last number of each
	for _, o := range slices.SortedFunc(slices.Values(ops), func(a, b *op) int { return cmp.Compare(a.ret, b.ret) }) {
		user, client := place{o.name, o.user}, place{o.name, o.client}
		switch {
		case o.kind == acquire && o.result == yes && o.number != nil:
			users[user], clients[client] = o.number, o.number
		case o.kind == acquire && o.result == yes:
			o.number = clients[client]
			users[user] = o.number
		case o.kind == unlock && o.result == yes:
			if n := users[user]; n != nil && !n.releasedIn(o) {
				n.handed = append(n.handed, o.call)
				o.murky = true
			}
		}
	}
}

// releasedIn says whether a call sent a release of the number. Whoever was handed it may have sent
// another meanwhile.
func (n *number) releasedIn(o *op) bool {
	return slices.ContainsFunc(n.steps, func(s *step) bool {
		others := s.op != nil && s.op.user != o.user // the step of an end of Do is that of its beginning
		return s.kind == releaseStep && !others && o.call < s.call && s.call < o.ret
	})
}

// struckBefore returns whether a call may have ended the number by force before o, which was handed
// it, was over.
func (n *number) struckBefore(o *op) func(*op) bool {
	if n == nil || !n.shaken && n.seen(o.ret, forever) >= 0 {
		return func(*op) bool { return false }
	}
	seen := n.seen(0, o.ret)
	return func(f *op) bool {
		forced := f.kind == wipe || f.kind == forceUnlock && f.name == o.name && f.result != no
		return forced && f.call <= o.ret && seen <= f.ret
	}
}

// seen returns when the store was asked last, between two times, and had the number, or -1.
func (n *number) seen(from, to time.Duration) time.Duration {
	last := time.Duration(-1)
	for _, s := range n.steps {
		if s.call >= from && s.ret <= to && (s.result == granted || s.result == freed) {
			last = s.call
		}
	}
	return last
}

// driftShare is which share of a lease a client gives away, for clocks that don't run alike.
const driftShare = 100

// acquisition notes what the attempts of an acquiring call tell of it.
func (e *evidence) acquisition(o *op) {
	o.until, o.granted = forever, o.call
	sent := o.call // at the earliest
	switch {
	case o.granter == nil:
		o.reentry = perhaps
	case o.granter.reentry:
		o.reentry = again
	}
	if o.number != nil {
		o.until, o.granted, o.shaken = o.number.until, o.number.granted, o.number.shaken
		if o.granter == nil {
			sent = min(sent, o.granted) // the lease that is handed on began then
		}
	}
	if o.granter != nil && e.rules.Calm {
		sent = max(sent, e.lastAnswer(o, o.granter.call))
	}
	// What is shorter than a millisecond is dropped by the client, and what is lost in between by us.
	o.end = sent + o.lease - o.lease/driftShare - 2*time.Millisecond
	if e.rules.Calm {
		o.prolongs = o.end
	}
	if e.rules.Renewed && !o.fixed {
		o.end, o.prolongs = forever, forever
	}
}

// usurped notes that a hold may have ended early: if an answer comes late that gives the lock to
// another user of the same client, that client takes it for the newer one, though it was struck.
func (e *evidence) usurped(o *op, ops []*op) {
	for _, late := range ops {
		if late.granter != nil && late.name == o.name && late.client == o.client && late.user != o.user &&
			late.granter.call < o.granted && o.ret < late.ret {
			o.end = min(o.end, max(o.ret, late.call))
		}
	}
}

// lastAnswer returns when the last attempt before the one that began at that time was answered.
func (e *evidence) lastAnswer(o *op, before time.Duration) (at time.Duration) {
	for _, s := range e.attempts[o] {
		if s.ret != 0 && s.ret < before {
			at = max(at, s.ret)
		}
	}
	return at
}

// haunted says whether the store may have held the lock during a call for somebody who doesn't know.
func (e *evidence) haunted(o *op) bool {
	for key, n := range e.numbers {
		if key.name != o.name {
			continue
		}
		for _, g := range n.ghosts {
			if g.from <= o.ret && o.call <= g.to {
				return true
			}
		}
	}
	return false
}

// resolve finds out when the store may have held a number.
func (e *evidence) resolve(n *number) {
	if i := slices.IndexFunc(n.steps, func(s *step) bool { return s.acquires() }); i >= 0 {
		n.granted = n.steps[i].call
	}
	for _, s := range n.steps {
		switch {
		case s.open():
			n.until = forever
		case s.result == granted && n.until != forever:
			n.until = max(n.until, s.ret+s.lease+e.rules.Late)
		}
	}
	for _, s := range n.steps {
		if s.acquires() && !e.granting[s] {
			n.shaken = true
			gone := forever
			if !s.open() {
				gone = n.goneAfter(s.ret)
			}
			n.ghosts = append(n.ghosts, span{s.call, gone})
		}
	}
	for _, at := range n.handed {
		n.ghosts = append(n.ghosts, span{at, n.goneAfter(at)})
	}
}

// acquires says whether a step has acquired the lock, or may yet.
func (s *step) acquires() bool { return s.kind == acquireStep && (s.open() || s.result == granted) }

// open says whether a step may yet be carried out.
func (s *step) open() bool { return s.ret == 0 || s.result == unknown }

// goneAfter returns when nothing is left of the number, at the latest, in so far as it was brought
// about before.
func (n *number) goneAfter(at time.Duration) time.Duration {
	for _, r := range n.steps {
		if r.kind == releaseStep && r.call > at && r.ret != 0 && (r.result == freed || r.result == refused) {
			return r.ret
		}
	}
	return n.until
}
