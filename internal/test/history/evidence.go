package history

import (
	"cmp"
	"slices"
	"time"

	"github.com/seed951563bd/distsync/backend"
)

// A number represents one outermost acquisition. In the store the acquisition has a unique owner
// string, and all steps with that string belong to the number. A Read under a Write has a number of
// its own.
type number struct {
	client  int             // -1: unknown
	steps   []*step         // sorted by start time
	granted time.Duration   // earliest time at which the store may have granted the lock
	handed  []time.Duration // when users of its client handed the hold over
	until   time.Duration   // latest time at which an unreleased hold may still be in the store
	ghosts  []span
	shaken  bool // whether the hold's state in the store may differ from what calls returned
}

// A span is an interval of time. The ghosts of a number are the spans in which the store may have
// its hold although the results of the calls don't show it, for example because a reply was lost or
// came late.
type span struct{ from, to time.Duration }

// A numberKey identifies a number.
type numberKey struct {
	name, owner string
	reads       bool
}

func (s *step) key() numberKey { return numberKey{s.name, s.owner, s.side == backend.Read} }

// evidence holds what the recorded steps reveal about the calls.
type evidence struct {
	rules    Rules
	numbers  map[numberKey]*number
	attempts map[*op][]*step // the acquiring steps of each acquiring call
	granting map[*step]bool  // the attempts that acquired the holds returned by calls
	notes    []*note
}

// attribute determines which call each step was made for, and which step acquired each hold.
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
		if n.client < 0 { // a Read that began by sharing a Write
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

// weigh derives what the steps reveal about each call, and records it in the call.
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
			// it may take effect at any later time, even after the last call of the history
			o.ret = forever
		case o.kind == wipe:
			o.forgets = !rules.Lasting
		}
		o.ghost, o.barred = e.haunted(o) || rules.Voted, e.barred(o)
	}
	e.numbersOut(ops)
	return e
}

// sort adds a step to the steps of its number, and to the attempts of its call.
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

// give adds the attempts of a [Party.Given] call, whose hold was acquired by other code. It finds
// them by the fencing token of the hold.
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

// granter returns the attempt that acquired the hold of call o, or nil if there is none.
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

// lost reports whether a step between the grant and the given time found the owner in line again.
// If so, the grant had ended.
func (n *number) lost(grant *step, by time.Duration) bool {
	return slices.ContainsFunc(n.steps, func(s *step) bool {
		return s.queues() && grant.ret < s.call && s.ret < by
	})
}

// stoodAgain reports whether an owner stood in line again after the store had granted it the lock.
// This happens if the client asks to keep the place before it learns of the grant. The store may
// then grant the owner the lock a second time without the client's knowledge.
func (n *number) stoodAgain() bool {
	return slices.ContainsFunc(n.steps, func(s *step) bool {
		return s.gets() && n.lost(s, forever)
	})
}

// tookBack reports whether the client of call o released the hold that the attempt acquired, while
// it had another hold that o could share or be handed. In that case, o may have returned the other
// hold, either because the client never got the reply to the attempt, or because o was handed the
// other hold during the attempt.
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

// mayHave reports whether the hold that step s acquired may be the one that the call returned.
func (o *op) mayHave(s *step) bool { return o.holder == "" || o.holder == s.owner }

// lastAttempt returns the last attempt of a call that acquired a Fair lock, and nil for other
// calls. The call's hold has the owner string of that attempt, because the client gives up the
// owner string of each failed attempt.
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

// follow determines which numbers were handed over between users of a client. A handover isn't
// recorded as a step, so after a user's unlock, it isn't known who has the hold until the next step
// for the number.
func (e *evidence) follow(ops []*op) {
	type place struct {
		name  string
		reads bool
		who   int
	}
	// the last number of each user, and of each client
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
			// if no release was sent, others still share the hold, or were handed the permits
			o.murky = !e.releases(o)
		case o.kind == unlock && o.result == yes:
			switch n := users[user]; {
			case n == nil:
			case !n.releasedIn(o):
				n.handed = append(n.handed, o.call)
				o.murky = true
			case n.stoodAgain():
				// the owner may have been granted the lock again after a forced unlock
				o.murky = true
			}
		}
	}
}

// passing returns the attempts whose holds were released or handed over before their calls
// returned. The attempts are sorted by the time of their replies.
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

// passes reports whether the step acquired a hold that its call may have given back before it
// returned.
func (s *step) passes() bool { return s.result == granted && s.op != nil && s.op.rounds }

// releasedIn reports whether call o sent a release of the number. It ignores releases by other
// users, to whom the hold may have been handed over.
func (n *number) releasedIn(o *op) bool {
	return slices.ContainsFunc(n.steps, func(s *step) bool {
		// a release at the end of Do is recorded for the op that began Do, not for o
		others := s.op != nil && s.op.user != o.user
		return s.kind == releaseStep && !others && o.call < s.call && s.call < o.ret
	})
}

// releases reports whether call o sent a release for any of its lock's numbers.
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

// struckBefore expects that call o was handed the number's hold. It returns a function that reports
// whether an op is a forced unlock or a wipe that may have ended the hold before o returned.
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

// seen returns the start of the last step, between the given times, that found the number's hold in
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

// driftShare sets how much of a lease a client leaves unused, because clocks can differ in speed.
// The unused part is 1/driftShare of the lease.
const driftShare = 100

// acquisition records what the attempts of an acquiring call reveal about it.
func (e *evidence) acquisition(o *op) {
	o.until, o.granted = forever, o.call
	sent := o.call // earliest time at which the lease may begin
	if o.number != nil {
		o.until, o.granted, o.shaken = o.number.until, o.number.granted, o.number.shaken
		if o.granter == nil {
			sent = min(sent, o.granted) // a hold that was handed over keeps its lease
		}
	}
	if o.granter != nil && e.rules.Calm {
		sent = max(sent, e.lastAnswer(o, o.granter.call))
	}
	lease := o.lease
	if o.lined && !e.rules.Calm {
		// a grant that the client didn't learn of may have lasted for only leastGrant
		lease = min(lease, leastGrant)
	}
	// Subtract 2 ms for the fractions of a millisecond that the client and this package drop.
	o.end = sent + lease - lease/driftShare - 2*time.Millisecond
	if e.rules.Calm {
		o.prolongs = o.end
	}
	if e.rules.Renewed && !o.fixed {
		o.end, o.prolongs = forever, forever
	}
}

// usurped records that the hold of call o may have ended early, because its client mistook an older
// hold for a newer one. That can happen if another user of the client was granted the lock, that
// hold was ended by force before o was granted the lock, and o then returned before the other
// user's call got its reply.
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

// lastAnswer returns the time of the last reply to an attempt of call o before the given time.
func (e *evidence) lastAnswer(o *op, before time.Duration) (at time.Duration) {
	for _, s := range e.attempts[o] {
		if s.ret != 0 && s.ret < before {
			at = max(at, s.ret)
		}
	}
	return at
}

// join records what a call holds if it acquired nothing itself: either it is a Read that shares its
// client's hold for reading or for writing, or permits were handed over to it. If the client has
// several such holds, it isn't known which one the call got.
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
	o.end = o.call // the hold may have been about to expire
	if e.rules.Renewed && !o.fixed {
		o.end, o.prolongs = forever, forever
	}
}

// haunted reports whether the store may have held the lock during call o because of a hold that no
// user knows of.
func (e *evidence) haunted(o *op) bool {
	for key, n := range e.numbers {
		if key.name == o.name && o.meets(key, n) && n.haunts(o) {
			return true
		}
	}
	return false
}

// haunts reports whether the number's hold may have been in the store during call o, although no
// call's answer shows it.
func (n *number) haunts(o *op) bool {
	return slices.ContainsFunc(n.ghosts, func(g span) bool {
		return g.from <= o.ret && o.call <= g.to
	})
}

// meets reports whether a call may find the hold of a number. On a read-write lock, that depends on
// the side. A call that acquires a Write meets both sides. A call that acquires a Read meets only
// Writes, since readers don't exclude each other. A call that queries or force-unlocks a side meets
// only the holds of that side, with one exception: on the reading side, it also meets a Write that
// its own client has handed over. Readers of that client may already share the Write without the
// store's knowledge, even if their calls haven't returned yet.
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

// resolve determines the period in which the store may have contained the hold of the given number.
func (e *evidence) resolve(key numberKey, n *number) {
	if i := slices.IndexFunc(n.steps, func(s *step) bool {
		return s.acquires() || s.queues()
	}); i >= 0 {
		n.granted = n.steps[i].call
	}
	n.until = e.over(n)
	key.reads = !key.reads
	if beside := e.numbers[key]; beside != nil {
		// the store may keep a single expiry for the Read and the Write of one owner
		n.until = max(n.until, e.over(beside))
	}
	n.shaken = n.stoodAgain()
	for _, s := range n.steps {
		lines := s.queues() || s.kind == placesStep && s.result != skipped
		if s.acquires() && (!e.granting[s] || several(s.side)) || lines {
			// Even an answered request can leave a ghost, because a Read may be shared, permits
			// are counted separately, and an owner in line may be granted the lock without a
			// request. In these three cases, an answered request alone doesn't set n.shaken,
			// because repeating it doesn't add another hold.
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

// over returns the latest time at which the store may contain the hold of a number, judging only by
// the number's own steps.
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

// releasedBefore reports whether the last release of the number had begun before the given time.
// For kinds with one holder, it ignores an unanswered release, because the owner may have released
// only a re-entry.
func (n *number) releasedBefore(at time.Duration) bool {
	return slices.ContainsFunc(n.steps, func(s *step) bool {
		last := several(s.side) || s.result == freed || s.result == refused
		return s.kind == releaseStep && last && s.call < at
	})
}

// grantedBefore reports whether the number had been acquired before the given time.
func (n *number) grantedBefore(at time.Duration) bool {
	return slices.ContainsFunc(n.steps, func(s *step) bool {
		return s.kind == acquireStep && s.ret < at && s.ret != 0 && s.result == granted
	})
}

// acquires reports whether a step acquired the lock, or may still do so.
func (s *step) acquires() bool { return s.kind == acquireStep && (s.open() || s.result == granted) }

// gets reports whether a step shows that its owner holds the lock.
func (s *step) gets() bool {
	return s.result == granted &&
		(s.kind == acquireStep || s.kind == placesStep || s.kind == grantStep)
}

// open reports whether a step may still take effect.
func (s *step) open() bool { return s.ret == 0 || s.result == unknown }

// goneAfter returns the latest time at which the number's hold may still be in the store, if no
// request after the given time acquires it again.
func (n *number) goneAfter(at time.Duration) time.Duration {
	for _, r := range n.steps {
		released := r.kind == releaseStep && (r.result == freed || r.result == refused)
		if r.call > at && r.ret != 0 && (released || r.queues()) {
			return r.ret
		}
	}
	return n.until
}
