package history

import (
	"cmp"
	"slices"
	"time"

	"github.com/seed951563bd/distsync/backend"
)

// A number collects all steps with one owner string: one outermost acquisition, as the store knows
// it. A Read under a Write has its own number.
type number struct {
	client  int             // -1: unknown
	steps   []*step         // in the order of their beginnings
	granted time.Duration   // the earliest time at which the store may have granted it
	handed  []time.Duration // when it was handed over inside its client
	until   time.Duration   // from then on the store doesn't hold it, even without a release
	ghosts  []span
	shaken  bool // the store may have it, or not have it, contrary to what calls were told
}

// A span is an interval of time. As a ghost, it is a time in which the store may hold a number
// although no call says so. For example, a request to acquire it has no answer, or a late one.
type span struct{ from, to time.Duration }

// A numberKey identifies a number.
type numberKey struct {
	name, owner string
	reads       bool
}

func (s *step) key() numberKey { return numberKey{s.name, s.owner, s.side == backend.Read} }

// evidence holds the conclusions about calls that follow from the steps.
type evidence struct {
	rules    Rules
	numbers  map[numberKey]*number
	attempts map[*op][]*step // the acquiring steps of each acquiring call
	granting map[*step]bool  // the attempts that acquired the holds of calls
	notes    []*note
}

// attribute finds out which call each step was made for, and which steps acquired the holds.
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
		if n.client < 0 { // a Read that readers got by sharing a Write
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
		case last != nil && (s == nil || s.owner != last.owner ||
			e.numbers[s.key()].lost(s, o.ret)):
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

// weigh records, for each call, what the steps reveal about it.
func weigh(ops []*op, steps []*step, rules Rules) *evidence {
	e := attribute(ops, steps, rules)
	e.follow(ops)
	for key, n := range e.numbers {
		e.resolve(key, n)
	}
	e.notes = notes(e.numbers)
	for _, s := range steps {
		if s.kind == forceStep && s.op != nil && s.op.side == backend.Read {
			s.op.onWrite = s.op.onWrite || s.side == backend.Write
		}
	}
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
			// it may be carried out at any time; at the end of the history it forbids nothing
			o.ret = forever
		case o.kind == wipe:
			o.forgets = !rules.Lasting
		}
		o.ghost, o.barred = e.haunted(o) || rules.Voted, e.barred(o)
	}
	e.numbersOut(ops)
	return e
}

// sort adds a step to its number, and to its call.
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

// give finds, by the token, the steps that acquired a hold that a user was given.
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

// granter returns the attempt that acquired the hold of an acquiring call, or nil.
func (e *evidence) granter(o *op) (last *step) {
	if o.kind != acquire || o.result != yes {
		return nil
	}
	for _, s := range e.attempts[o] {
		if s.result == granted && s.ret < o.ret && o.mayHave(s) &&
			(last == nil || s.ret > last.ret) {
			last = s
		}
	}
	if last != nil && several(o.side) && e.tookBack(o, last) {
		return nil
	}
	return last
}

// lost reports whether a grant had ended by that time: its owner stood in line after it.
func (n *number) lost(grant *step, by time.Duration) bool {
	return slices.ContainsFunc(n.steps, func(s *step) bool {
		return s.queues() && grant.ret < s.call && s.ret < by
	})
}

// stoodAgain reports whether an owner stood in line again after it had been granted the lock. Its
// client may have asked to keep the place before it heard of the grant. Then it may be granted the
// lock again without hearing of it.
func (n *number) stoodAgain() bool {
	return slices.ContainsFunc(n.steps, func(s *step) bool {
		return s.gets() && n.lost(s, forever)
	})
}

// tookBack reports whether a call's client gave back a grant while it had another hold to share or
// to hand over. Then the call may have that other hold. Either it didn't get the answer with the
// grant, or it was handed the other hold while its attempt was under way.
func (e *evidence) tookBack(o *op, by *step) bool {
	own := e.numbers[by.key()]
	i := slices.IndexFunc(own.steps, func(s *step) bool {
		return s.kind == releaseStep && s.call > by.call
	})
	if i < 0 || own.steps[i].op != nil {
		return false
	}
	for key, n := range e.numbers {
		if n != own && key.name == o.name && n.client == o.client && n.permits() == o.permits &&
			n.grantedBefore(o.ret) && !n.releasedBefore(by.call) {
			return true
		}
	}
	return false
}

// mayHave reports whether a call can have the hold that a step acquired.
func (o *op) mayHave(s *step) bool { return o.holder == "" || o.holder == s.owner }

// lastAttempt returns the last attempt of a call that holds a Fair lock, or nil. Its number is that
// of the call, since the client gives up each failed attempt together with its number.
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

// follow finds out which numbers were handed over inside a client, without a step. Such a number
// has a holder from one user's unlock until the store's next step about it, but it isn't known
// which user that is.
func (e *evidence) follow(ops []*op) {
	type place struct {
		name  string
		reads bool
		who   int
	}
	// the last number of each user and of each client
	users, clients := make(map[place]*number), make(map[place]*number)
	passing := e.passing(ops)
	for _, o := range slices.SortedFunc(slices.Values(ops), func(a, b *op) int {
		return cmp.Compare(a.ret, b.ret)
	}) {
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
			// without a release, a shared hold stays, and permits are handed over
			o.murky = !e.releases(o)
		case o.kind == unlock && o.result == yes:
			switch n := users[user]; {
			case n == nil:
			case !n.releasedIn(o):
				n.handed = append(n.handed, o.call)
				o.murky = true
			case n.stoodAgain():
				o.murky = true // it may hold the lock again after that was forced
			}
		}
	}
}

// passing returns the attempts that were granted to calls that gave the hold back, or handed it
// over, before they returned. They are in the order of their answers.
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

// passes reports whether the step was granted, and its call may have given the hold back before it
// returned.
func (s *step) passes() bool { return s.result == granted && s.op != nil && s.op.rounds }

// releasedIn reports whether a call sent a release of the number. If the number was handed to
// another user, a release of that user doesn't count.
func (n *number) releasedIn(o *op) bool {
	return slices.ContainsFunc(n.steps, func(s *step) bool {
		// a step at the end of Do belongs to the op of its beginning
		others := s.op != nil && s.op.user != o.user
		return s.kind == releaseStep && !others && o.call < s.call && s.call < o.ret
	})
}

// releases reports whether a call sent a release of any number of its lock.
func (e *evidence) releases(o *op) bool {
	for key, n := range e.numbers {
		if key.name == o.name && slices.ContainsFunc(n.steps, func(s *step) bool {
			return s.kind == releaseStep && s.op != nil && s.op.user == o.user && o.call < s.call &&
				s.call < o.ret
		}) {
			return true
		}
	}
	return false
}

// struckBefore returns a function that reports whether a call may have ended the number by force
// before o returned. The call o was handed the number.
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

// seen returns the beginning of the last step that ran between two times and found the number in
// the store. It returns -1 if there is none.
func (n *number) seen(from, to time.Duration) time.Duration {
	last := time.Duration(-1)
	for _, s := range n.steps {
		if s.call >= from && s.ret <= to && (s.result == granted || s.result == freed) {
			last = s.call
		}
	}
	return last
}

// driftShare is the inverse of the part of a lease that a client doesn't use, since clocks don't
// run alike.
const driftShare = 100

// acquisition records what an acquiring call's attempts reveal about it.
func (e *evidence) acquisition(o *op) {
	o.until, o.granted = forever, o.call
	sent := o.call // the earliest time at which the lease may begin
	if o.number != nil {
		o.until, o.granted, o.shaken = o.number.until, o.number.granted, o.number.shaken
		if o.granter == nil {
			sent = min(sent, o.granted) // the lease of a hold that is handed over began then
		}
	}
	if o.granter != nil && e.rules.Calm {
		sent = max(sent, e.lastAnswer(o, o.granter.call))
	}
	lease := o.lease
	if o.lined && !e.rules.Calm {
		// if the client didn't hear of its grant, the grant may have ended so early
		lease = min(lease, leastGrant)
	}
	// 2 ms are for the fractions of a millisecond that are dropped, by the client and here.
	o.end = sent + lease - lease/driftShare - 2*time.Millisecond
	if e.rules.Calm {
		o.prolongs = o.end
	}
	if e.rules.Renewed && !o.fixed {
		o.end, o.prolongs = forever, forever
	}
}

// usurped records that a hold may have ended early. An earlier grant to another user of the same
// client may be answered after this one. The other hold was ended by force. But because its answer
// comes last, the client takes it for the newer hold.
func (e *evidence) usurped(o *op, ops []*op) {
	for _, late := range ops {
		if several(o.side) && several(late.side) {
			continue // shared holds can exist together
		}
		if late.granter != nil && late.name == o.name && late.client == o.client &&
			late.user != o.user &&
			late.granter.call < o.granted && o.ret < late.ret {
			o.end = min(o.end, max(o.ret, late.call))
		}
	}
}

// lastAnswer returns the time of the last answer to an attempt of the call before a given time.
func (e *evidence) lastAnswer(o *op, before time.Duration) (at time.Duration) {
	for _, s := range e.attempts[o] {
		if s.ret != 0 && s.ret < before {
			at = max(at, s.ret)
		}
	}
	return at
}

// join records what a call holds if it acquired nothing itself. A Read then shares a hold of its
// client, for reading or for writing. For permits, the call was handed a hold. If the client has
// several holds, it isn't known which one it is.
func (e *evidence) join(o *op, ops []*op) {
	o.granted = o.call
	if o.result != yes {
		return
	}
	for key, n := range e.numbers {
		if key.name != o.name || n.client != o.client || n.permits() != o.permits ||
			!n.grantedBefore(o.ret) || n.releasedBefore(o.call) {
			continue
		}
		o.joined, o.lent = true, o.lent || o.shares() && !key.reads
		o.granted, o.until = min(o.granted, n.granted), max(o.until, n.until)
		o.shaken = o.shaken || n.shaken
		o.doomed = o.doomed || slices.ContainsFunc(ops, n.struckBefore(o))
	}
	o.end = o.call // the hold may have been about to end
	if e.rules.Renewed && !o.fixed {
		o.end, o.prolongs = forever, forever
	}
}

// haunted reports whether the store may have held the lock during a call because of a hold that no
// user knows of.
func (e *evidence) haunted(o *op) bool {
	for key, n := range e.numbers {
		if key.name == o.name && o.meets(key, n) && n.haunts(o) {
			return true
		}
	}
	return false
}

// haunts reports whether the store may have held the number during a call, although no call says
// so.
func (n *number) haunts(o *op) bool {
	return slices.ContainsFunc(n.ghosts, func(g span) bool {
		return g.from <= o.ret && o.call <= g.to
	})
}

// meets reports whether a call may find the hold of that number. Readers don't meet readers. A call
// that asks, or uses force, concerns one side. The reading side includes a Write of the client that
// was handed over, since readers may share it. Their calls may not have returned yet. The store
// knows the hold as a Write.
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
	if i := slices.IndexFunc(n.steps, func(s *step) bool {
		return s.acquires() || s.queues()
	}); i >= 0 {
		n.granted = n.steps[i].call
	}
	n.until = e.over(n)
	key.reads = !key.reads
	if beside := e.numbers[key]; beside != nil {
		// the Read and the Write of one owner may share their expiry
		n.until = max(n.until, e.over(beside))
	}
	n.shaken = n.stoodAgain()
	for _, s := range n.steps {
		lines := s.queues() || s.kind == placesStep && s.result != skipped
		if s.acquires() && (!e.granting[s] || several(s.side)) || lines {
			// Such a hold is a ghost for other calls, even if its request was answered. A Read may
			// be shared, permits are counted apart, and an owner in line may be granted the lock
			// without a request. An answered request of these kinds doesn't make the number shaken
			// by itself, since its repetition adds no hold.
			n.shaken = n.shaken || s.open() && !lines ||
				!several(s.side) && !lines && !s.passes() || n.releasedBefore(s.ret)
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

// over returns when the store no longer holds a number, as far as its own steps show.
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

// releasedBefore reports whether the last release of the number had begun before that time. For a
// kind with one holder, a release without an answer may have been that of a re-entry, so it doesn't
// count.
func (n *number) releasedBefore(at time.Duration) bool {
	return slices.ContainsFunc(n.steps, func(s *step) bool {
		last := several(s.side) || s.result == freed || s.result == refused
		return s.kind == releaseStep && last && s.call < at
	})
}

// grantedBefore reports whether the number had been acquired before that time.
func (n *number) grantedBefore(at time.Duration) bool {
	return slices.ContainsFunc(n.steps, func(s *step) bool {
		return s.kind == acquireStep && s.ret < at && s.ret != 0 && s.result == granted
	})
}

// acquires reports whether a step acquired the lock, or may yet do so.
func (s *step) acquires() bool { return s.kind == acquireStep && (s.open() || s.result == granted) }

// gets reports whether a step shows that its owner holds the lock.
func (s *step) gets() bool {
	return s.result == granted &&
		(s.kind == acquireStep || s.kind == placesStep || s.kind == grantStep)
}

// open reports whether a step may yet be carried out.
func (s *step) open() bool { return s.ret == 0 || s.result == unknown }

// goneAfter returns the latest time at which the store may still have the number because of a
// request before that time.
func (n *number) goneAfter(at time.Duration) time.Duration {
	for _, r := range n.steps {
		released := r.kind == releaseStep && (r.result == freed || r.result == refused)
		if r.call > at && r.ret != 0 && (released || r.queues()) {
			return r.ret
		}
	}
	return n.until
}
