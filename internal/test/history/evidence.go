package history

import (
	"cmp"
	"slices"
	"time"

	"github.com/seed951563bd/distsync/backend"
)

// A number is one outermost acquisition as the store knows it: all steps with one owner string. What
// is read within a Write has a number of its own here.
type number struct {
	client  int             // -1: nobody knows
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
type numberKey struct {
	name, owner string
	reads       bool
}

func (s *step) key() numberKey { return numberKey{s.name, s.owner, s.side == backend.Read} }

// evidence is what the steps tell of the calls.
type evidence struct {
	rules    Rules
	numbers  map[numberKey]*number
	attempts map[*op][]*step // to acquire, for each acquiring call
	granting map[*step]bool  // the attempts that calls have their holds of
	notes    []*note
}

// attribute finds out which call each step was for, and which holds came about by which.
func attribute(ops []*op, steps []*step, rules Rules) *evidence {
	e := &evidence{
		rules:    rules,
		numbers:  make(map[numberKey]*number),
		attempts: make(map[*op][]*step),
		granting: make(map[*step]bool),
	}
	for _, s := range steps {
		e.sort(s)
	}
	for key, n := range e.numbers {
		if n.client < 0 { // a Read for those who shared a Write
			key.reads = !key.reads
			if beside := e.numbers[key]; beside != nil {
				n.client = beside.client
			}
		}
	}
	for _, o := range ops {
		e.give(o)
		s, last := e.granter(o), e.lastAttempt(o)
		if o.holder != "" {
			o.number = e.numbers[numberKey{o.name, o.holder, o.side == backend.Read}]
		}
		switch {
		case last != nil && (s == nil || s.owner != last.owner):
			o.number, o.lined = e.numbers[last.key()], true
		case s != nil:
			e.granting[s] = true
			o.number = e.numbers[s.key()]
			o.granter = s
		}
		switch {
		case o.lined:
		case o.granter == nil:
			o.reentry = perhaps
		case o.granter.reentry:
			o.reentry = again
		}
	}
	limits(ops)
	return e
}

// weigh notes at each call what the steps tell of it.
func weigh(ops []*op, steps []*step, rules Rules) *evidence {
	e := attribute(ops, steps, rules)
	e.follow(ops)
	for key, n := range e.numbers {
		e.resolve(key, n)
	}
	e.notes = notes(e.numbers)
	for _, o := range ops {
		switch {
		case o.kind == acquire && several(o.side) && o.granter == nil:
			e.join(o, ops)
			e.usurped(o, ops)
		case o.kind == acquire:
			e.acquisition(o)
			e.usurped(o, ops)
			o.doomed = o.reentry == perhaps && slices.ContainsFunc(ops, o.number.struckBefore(o))
		case o.kind == unlock:
			o.murky = o.murky || !rules.Calm
		case o.kind == forceUnlock && o.result == failed:
			o.ret = forever // it may be carried out at any time; or at the end, which says nothing
		case o.kind == wipe:
			o.forgets = !rules.Lasting
		}
		o.ghost, o.barred = e.haunted(o) || rules.Voted, e.barred(o)
	}
	e.numbersOut(ops)
	return e
}

// sort puts a step where it belongs.
func (e *evidence) sort(s *step) {
	if s.kind == forceStep {
		return
	}
	n := e.numbers[s.key()]
	if n == nil {
		n = &number{client: -1}
		e.numbers[s.key()] = n
	}
	n.steps = append(n.steps, s)
	if s.kind == acquireStep && s.op != nil {
		n.client = s.op.client
		e.attempts[s.op] = append(e.attempts[s.op], s)
	}
}

// give finds out by its number which steps have acquired what a user was given.
func (e *evidence) give(o *op) {
	if !o.given {
		return
	}
	for key, n := range e.numbers {
		if key.name != o.name || !slices.ContainsFunc(n.steps, func(s *step) bool {
			return s.kind == acquireStep && s.result == granted && s.token == o.token
		}) {
			continue
		}
		n.client = o.client
		for _, s := range n.steps {
			if s.kind == acquireStep {
				e.attempts[o] = append(e.attempts[o], s)
				o.call = min(o.call, s.call)
			}
		}
	}
}

// granter returns the attempt that brought about what an acquiring call has, or nil.
func (e *evidence) granter(o *op) (last *step) {
	if o.kind != acquire || o.result != yes {
		return nil
	}
	for _, s := range e.attempts[o] {
		if s.result == granted && s.ret < o.ret && o.mayHave(s) && (last == nil || s.ret > last.ret) {
			last = s
		}
	}
	if last != nil && several(o.side) && e.tookBack(o, last) {
		return nil
	}
	return last
}

// tookBack says whether a call's client has taken back what it was granted, without a word from a
// user, while there was something to share, or to be handed. Then the call may have that: it did not
// hear of the grant, or it was handed something else while its attempt was under way.
func (e *evidence) tookBack(o *op, by *step) bool {
	own := e.numbers[by.key()]
	i := slices.IndexFunc(own.steps, func(s *step) bool { return s.kind == releaseStep && s.call > by.call })
	if i < 0 || own.steps[i].op != nil {
		return false
	}
	for key, n := range e.numbers {
		if n != own && key.name == o.name && n.client == o.client && n.permits() == o.permits && n.grantedBefore(o.ret) && !n.releasedBefore(by.call) {
			return true
		}
	}
	return false
}

// mayHave says whether a call can have what a step has acquired.
func (o *op) mayHave(s *step) bool { return o.holder == "" || o.holder == s.owner }

// lastAttempt returns the last attempt of a call that has a Fair lock, or nil: what has come in vain is given up with its number.
func (e *evidence) lastAttempt(o *op) (last *step) {
	if o.kind != acquire || o.result != yes || o.side != backend.Fair {
		return nil
	}
	for _, s := range e.attempts[o] {
		if s.call < o.ret && o.mayHave(s) && (last == nil || s.call > last.call) {
			last = s
		}
	}
	return last
}

// follow finds out which numbers were handed on inside a client, without a word to the store: from
// one user's unlock on until the store hears of it, somebody has the lock, and it is not clear who.
func (e *evidence) follow(ops []*op) {
	type place struct {
		name  string
		reads bool
		who   int
	}
	users, clients := make(map[place]*number), make(map[place]*number) // the last number of each
	passing := e.passing(ops)
	for _, o := range slices.SortedFunc(slices.Values(ops), func(a, b *op) int { return cmp.Compare(a.ret, b.ret) }) {
		for ; len(passing) > 0 && passing[0].ret < o.ret; passing = passing[1:] {
			s := passing[0]
			clients[place{s.name, s.side == backend.Read, s.op.client}] = e.numbers[s.key()]
		}
		reads := o.side == backend.Read
		user, client := place{o.name, reads, o.user}, place{o.name, reads, o.client}
		switch {
		case o.kind == acquire && o.result == yes && o.number != nil:
			users[user], clients[client] = o.number, o.number
		case o.kind == acquire && o.result == yes && o.side != backend.Permits:
			o.number = clients[client]
			users[user] = o.number
		case o.kind == unlock && o.result == yes && several(o.side):
			o.murky = !e.releases(o) // what others share stays, and permits are handed on
		case o.kind == unlock && o.result == yes:
			if n := users[user]; n != nil && !n.releasedIn(o) {
				n.handed = append(n.handed, o.call)
				o.murky = true
			}
		}
	}
}

// passing returns the attempts that were granted to calls which gave that back, or handed it on, before they were over; by when they were answered.
func (e *evidence) passing(ops []*op) (all []*step) {
	for _, o := range ops {
		for _, s := range e.attempts[o] {
			if s.passes() && o.granter != s {
				all = append(all, s)
			}
		}
	}
	slices.SortFunc(all, func(a, b *step) int { return cmp.Compare(a.ret, b.ret) })
	return all
}

// passes says whether a call that may give back what it has got before it is over has got it by the step.
func (s *step) passes() bool { return s.result == granted && s.op != nil && s.op.rounds }

// releasedIn says whether a call sent a release of the number. Whoever was handed it may have sent
// another meanwhile.
func (n *number) releasedIn(o *op) bool {
	return slices.ContainsFunc(n.steps, func(s *step) bool {
		others := s.op != nil && s.op.user != o.user // the step of an end of Do is that of its beginning
		return s.kind == releaseStep && !others && o.call < s.call && s.call < o.ret
	})
}

// releases says whether a call sent a release of anything.
func (e *evidence) releases(o *op) bool {
	for key, n := range e.numbers {
		if key.name == o.name && slices.ContainsFunc(n.steps, func(s *step) bool {
			return s.kind == releaseStep && s.op != nil && s.op.user == o.user && o.call < s.call && s.call < o.ret
		}) {
			return true
		}
	}
	return false
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
	if o.number != nil {
		o.until, o.granted, o.shaken = o.number.until, o.number.granted, o.number.shaken
		if o.granter == nil {
			sent = min(sent, o.granted) // the lease that is handed on began then
		}
	}
	if o.granter != nil && e.rules.Calm {
		sent = max(sent, e.lastAnswer(o, o.granter.call))
	}
	lease := o.lease
	if o.lined && !e.rules.Calm {
		lease = min(lease, leastGrant) // if nothing is heard of it after that
	}
	// What is shorter than a millisecond is dropped by the client, and what is lost in between by us.
	o.end = sent + lease - lease/driftShare - 2*time.Millisecond
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
		if several(o.side) && several(late.side) {
			continue // they can stand together
		}
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

// join notes what a Read shares that no request of its own brought about: something that its client
// has, for reading, or for writing; or what permits were handed to a call. It isn't known what, where that client has several.
func (e *evidence) join(o *op, ops []*op) {
	o.granted = o.call
	if o.result != yes {
		return
	}
	for key, n := range e.numbers {
		if key.name != o.name || n.client != o.client || n.permits() != o.permits || !n.grantedBefore(o.ret) || n.releasedBefore(o.call) {
			continue
		}
		o.joined, o.lent = true, o.lent || o.shares() && !key.reads
		o.granted, o.until = min(o.granted, n.granted), max(o.until, n.until)
		o.shaken = o.shaken || n.shaken
		o.doomed = o.doomed || slices.ContainsFunc(ops, n.struckBefore(o))
	}
	o.end = o.call // what it shares may have been about to end
	if e.rules.Renewed && !o.fixed {
		o.end, o.prolongs = forever, forever
	}
}

// haunted says whether the store may have held the lock during a call for somebody who doesn't know.
func (e *evidence) haunted(o *op) bool {
	for key, n := range e.numbers {
		if key.name == o.name && o.meets(key, n) && n.haunts(o) {
			return true
		}
	}
	return false
}

// haunts says whether the store may have held the number during a call, though no other says so.
func (n *number) haunts(o *op) bool {
	return slices.ContainsFunc(n.ghosts, func(g span) bool { return g.from <= o.ret && o.call <= g.to })
}

// meets says whether a call may find what has that number. Readers don't meet readers; but a call that
// asks, or uses force, means one side. The reading side is asked about with what its client's readers
// were lent, too, and they may not have heard of that yet: the store knows it as a Write.
func (o *op) meets(key numberKey, n *number) bool {
	switch {
	case !o.shares():
		return true
	case o.kind == acquire:
		return o.side == backend.Write || !key.reads
	case o.side == backend.Read:
		return key.reads || n.client == o.client && len(n.handed) > 0
	default:
		return !key.reads
	}
}

// resolve finds out when the store may have held a number.
func (e *evidence) resolve(key numberKey, n *number) {
	if i := slices.IndexFunc(n.steps, func(s *step) bool { return s.acquires() || s.queues() }); i >= 0 {
		n.granted = n.steps[i].call
	}
	n.until = e.over(n)
	key.reads = !key.reads
	if beside := e.numbers[key]; beside != nil { // what one owner reads and writes may have one expiry
		n.until = max(n.until, e.over(beside))
	}
	for _, s := range n.steps {
		lines := s.queues() || s.kind == placesStep && s.result != skipped
		if s.acquires() && (!e.granting[s] || several(s.side)) || lines {
			// A Read is shared, permits and who has them are counted on their own, and who stands in line may be given the
			// lock, without a word; and to acquire any of them again doesn't count.
			n.shaken = n.shaken || s.open() && !lines || !several(s.side) && !lines && !s.passes() || n.releasedBefore(s.ret)
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

// over returns when the store holds a number no more, as far as its own steps tell.
func (e *evidence) over(n *number) (until time.Duration) {
	for _, s := range n.steps {
		switch {
		case s.kind == placesStep, s.queues():
			until = max(until, s.ret+s.place+longestGrant+e.rules.Late)
		case s.open():
			return forever
		case s.result == granted:
			until = max(until, s.ret+s.lease+e.rules.Late)
		}
	}
	return until
}

// releasedBefore says whether the last release of the number had begun then. One of a Write without an answer may have been
// that of a re-entry.
func (n *number) releasedBefore(at time.Duration) bool {
	return slices.ContainsFunc(n.steps, func(s *step) bool {
		last := several(s.side) || s.result == freed || s.result == refused
		return s.kind == releaseStep && last && s.call < at
	})
}

// grantedBefore says whether the number had been acquired then.
func (n *number) grantedBefore(at time.Duration) bool {
	return slices.ContainsFunc(n.steps, func(s *step) bool {
		return s.kind == acquireStep && s.ret < at && s.ret != 0 && s.result == granted
	})
}

// acquires says whether a step has acquired the lock, or may yet.
func (s *step) acquires() bool { return s.kind == acquireStep && (s.open() || s.result == granted) }

// gets says whether a step tells that its owner has the lock.
func (s *step) gets() bool {
	return s.result == granted && (s.kind == acquireStep || s.kind == placesStep || s.kind == grantStep)
}

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
