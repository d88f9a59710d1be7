package dlock

import (
	"context"
	"errors"
	"iter"
	"slices"
	"sync"
	"time"

	"github.com/seed951563bd/distsync/backend"
)

// Several locks are acquired together in rounds. A round makes one attempt at each of those that aren't there yet, all at the same time; if one
// isn't granted, all that are there are given back at once. Then the one that was refused is waited for, by the ways of a single lock and with
// nothing else in hand, and with that the next round is made for the others.
//
// Those who get in each other's way again and again pause in between, for a time that is drawn by lot and grows. It is the first in an order by name
// that is waited for if several are refused: so of all who want the same locks one has that, and the others wait for it.

// together is a call for several locks.
type together struct {
	parts []*part // in the order in which they are tried
	given []*part // the same, in the order in which they were given
	tries backoff
}

// A part is one of several locks.
type part struct {
	locker  *Locker
	who     caller
	o       acquireOptions
	atLeast time.Duration // for how long it is to stay taken once all are there; 0: for no longer than it is held
	within  *hold         // what the party had when the call began, or nil
	refused bool          // another had it when the store was last heard of
	h       *hold         // what it has; nil: nothing
	err     error         // why it has nothing
}

func (p *part) error(op string) error { return p.locker.wrap(op, p.err) }

// joined returns the errors of parts as one.
func joined(op string, parts []*part) error {
	var errs []error
	for _, p := range parts {
		if p.err != nil {
			errs = append(errs, p.error(op))
		}
	}
	if len(errs) == 1 {
		return errs[0]
	}
	return errors.Join(errs...)
}

const (
	// longestRound is how long some of the locks are kept for the answers about others.
	longestRound = time.Second

	// shortestRound is how long the others have for their answers when one was refused, at least.
	shortestRound = 20 * time.Millisecond

	// What a conflict is followed by, at first and at most, before jitter.
	firstConflict   = time.Millisecond
	longestConflict = 100 * time.Millisecond
)

// acquire gets all parts, and returns nil, or one that it didn't get, with why. None is held then.
func (t *together) acquire(ctx context.Context, o acquireOptions, opts []AcquireOption) *part {
	if p := t.prepare(ctx, o, opts); p != nil {
		return p
	}
	ctx, cancel := t.waitContext(ctx)
	defer cancel()
	over := false
	defer func() {
		if !over { // a step or a Trace panicked, or ended its goroutine
			t.abandon()
		}
	}()
	failed := t.acquireInTime(ctx)
	over = true
	if failed == nil {
		t.watchVariables()
		t.keep()
	}
	return failed
}

// prepare says what speaks against a part, before anything is tried.
func (t *together) prepare(ctx context.Context, o acquireOptions, opts []AcquireOption) *part {
	for _, p := range t.parts {
		c := p.locker.client
		if err := p.locker.usable(ctx); err != nil {
			p.err = both(err, c.whyOver(p.who.hold))
			return p
		}
		if p.o, p.err = p.locker.options(o, opts); p.err != nil {
			return p
		}
		p.atLeast, p.o.atLeast, p.o.keeps = p.o.atLeast, 0, false
		if p.who.party != party(p.locker.plain) {
			p.within = p.locker.present(p.who)
		}
	}
	t.agree()
	return nil
}

// agree has all parts wait for the shortest of the times that their Lockers have as defaults: the wait is one for all.
func (t *together) agree() {
	shortest := t.parts[0].o
	for _, p := range t.parts {
		if p.o.bounded && (!shortest.bounded || p.o.wait < shortest.wait) {
			shortest = p.o
		}
	}
	for _, p := range t.parts {
		p.o.wait, p.o.bounded = shortest.wait, shortest.bounded
	}
}

// watchVariables has Lockers found that are dropped with the MultiLocker.
func (t *together) watchVariables() {
	for _, p := range t.parts {
		if p.who.party == party(p.locker.plain) {
			p.locker.client.watchVariable(p.locker)
		}
	}
}

// keep has all stay taken for as long as that was asked for. Before that each could yet be given back: to another of the client
// it would pass with a promise that nobody renews, and what an owner had before would stay taken.
func (t *together) keep() {
	for _, p := range t.parts {
		if p.atLeast > 0 {
			p.locker.client.keepFromNow(p.h, p.atLeast)
		}
	}
}

// keepFromNow has the lock of a hold stay taken, and lets the store know of that at once.
func (c *Client) keepFromNow(h *hold, d time.Duration) {
	c.mu.Lock()
	defer c.unlock()
	if !c.checkLocked(h) {
		return
	}
	cl, now := h.claim, c.now()
	cl.Lengthens(d)
	cl.Keep(now+d, cl.Confirmed(cl.began))
	c.hastenLocked(&cl.alarm, now)
}

// waitContext returns a context that ends with the wait, and when any of several clients is closed.
func (t *together) waitContext(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := waitContext(ctx, t.parts[0].o)
	var clients []*Client
	for c := range byClient(t.parts) {
		clients = append(clients, c)
	}
	if len(clients) == 1 {
		return ctx, cancel // each call looks after its own
	}
	ctx, end := context.WithCancelCause(ctx)
	ends := []func() bool{func() bool { end(nil); cancel(); return true }}
	for _, c := range clients {
		ends = append(ends, context.AfterFunc(c.ctx, func() { end(ErrClosed) }))
	}
	return ctx, func() {
		for _, end := range ends {
			end()
		}
	}
}

// acquireInTime makes rounds until it has all or can't go on.
func (t *together) acquireInTime(ctx context.Context) *part {
	for waited := false; ; waited = true {
		began := time.Now()
		failed := t.round(ctx)
		if failed == nil {
			return nil
		}
		t.giveBack(ctx)
		c := failed.locker.client
		if !failed.waits() {
			return t.blame(failed)
		}
		if waited {
			c.pause(ctx, t.tries.next(max(firstConflict, min(time.Since(began), longestConflict)), longestConflict))
		}
		a := failed.newCall(ctx, failed.o)
		failed.inform(a)
		if failed.h, failed.err = c.carryOut(ctx, a); failed.err != nil {
			return t.blame(failed)
		}
		failed.refused = false
	}
}

// blame returns the part that a call has failed for: if a client was closed, one of that.
func (t *together) blame(failed *part) *part {
	if !errors.Is(failed.err, ErrClosed) {
		return failed
	}
	for _, p := range t.parts {
		if p.locker.client.ctx.Err() != nil {
			p.err = ErrClosed
			return p
		}
	}
	return failed
}

// newCall returns a call for the part alone.
func (p *part) newCall(ctx context.Context, o acquireOptions) *acquisition {
	a := p.locker.client.newCall(ctx, p.locker, p.who, o)
	if a.within == nil {
		a.within = p.within
	}
	return a
}

// single returns a call that is a single attempt at the part.
func (p *part) single(ctx context.Context) *acquisition {
	o := p.o
	o.bounded, o.wait = true, 0
	a := p.newCall(ctx, o)
	a.answered = p.refused
	return a
}

// inform tells a call what is known of the part.
func (p *part) inform(a *acquisition) {
	if a.answered = isErrHeld(p.err); !a.answered {
		a.failure = p.err
	}
}

// hopeless says whether it makes no sense to wait for the part.
func (p *part) hopeless() bool {
	return !isErrHeld(p.err) && p.err != errNotUnlocked && (isFinal(p.err) || backend.KindOf(p.err) == backend.Refused)
}

// waits says whether a call goes on after the attempt at the part has failed.
func (p *part) waits() bool {
	_, end := errors.AsType[endError](p.err)
	return !end && !p.hopeless() && (!p.o.bounded || p.o.wait > 0)
}

// weight says how much the failure of the part says about the call.
func (p *part) weight() int {
	switch {
	case p.err == nil:
		return 0
	case p.hopeless():
		return 3
	case errors.Is(p.err, ErrHeld) && !p.waits():
		return 2 // that is sure, whatever became of the others
	default:
		return 1
	}
}

// refused returns the part which the last round has failed for, or nil.
func (t *together) refused() *part {
	p := slices.MaxFunc(t.parts, func(p, q *part) int { return p.weight() - q.weight() }) // the first of them
	if p.err == nil {
		return nil
	}
	return p
}

// A round is one attempt at each part that isn't there yet.
type round struct {
	context.Context // that the attempts are made with
	cut             context.CancelCauseFunc
	began           time.Time
	patience        time.Duration

	mu     sync.Mutex
	left   int // without an answer
	failed bool
	timer  *time.Timer // cuts it short; nil before the first answer, if nothing is there yet
	end    time.Time   // at the latest
}

// bound has the round end in time, from now on.
func (r *round) bound() {
	r.end = time.Now().Add(r.patience)
	r.timer = time.AfterFunc(r.patience, func() { r.cut(errWaited) })
}

// round makes an attempt at all parts that aren't there yet, and returns one that wasn't granted, or nil.
func (t *together) round(ctx context.Context) *part {
	if t.keptOut(ctx) {
		return t.refused()
	}
	r := &round{began: time.Now(), patience: longestRound}
	missing := make([]*part, 0, len(t.parts))
	for _, p := range t.parts {
		if p.h == nil {
			missing = append(missing, p)
			r.patience = min(r.patience, max(p.o.lease/3, shortestWait))
		}
	}
	r.left = len(missing)
	r.Context, r.cut = context.WithCancelCause(ctx)
	defer r.over()
	if n := len(missing); 0 < n && n < len(t.parts) {
		r.bound() // some are kept already
	}
	var tasks []func()
	for c, parts := range byClient(missing) {
		tasks = append(tasks, c.tasks(r, parts)...)
	}
	atOnce(tasks)
	r.over()
	for _, p := range t.parts {
		p.settle(ctx)
	}
	return t.refused()
}

// keptOut says whether this process knows, without asking anybody, that it can't have all. Then nothing was asked for.
func (t *together) keptOut(ctx context.Context) bool {
	for _, p := range t.parts {
		p.err = nil // of the last round
	}
	for _, p := range t.parts {
		if p.h != nil || p.who.hold != nil {
			continue // it is there, or is re-entered, or isn't
		}
		c, a := p.locker.client, p.single(ctx)
		if c.known(a) == nil {
			c.acquisitions.Put(a)
			continue
		}
		if p.h, p.err = c.carryOut(ctx, a); p.err != nil { // it says so, and tells
			return true
		}
	}
	return false
}

// byClient groups parts by whose they are.
func byClient(parts []*part) iter.Seq2[*Client, []*part] {
	return func(yield func(*Client, []*part) bool) {
		for rest := parts; len(rest) > 0; {
			c := rest[0].locker.client
			isOther := func(p *part) bool { return p.locker.client != c }
			if !slices.ContainsFunc(rest, isOther) {
				yield(c, rest)
				return
			}
			var mine, others []*part
			for _, p := range rest {
				if isOther(p) {
					others = append(others, p)
				} else {
					mine = append(mine, p)
				}
			}
			if !yield(c, mine) {
				return
			}
			rest = others
		}
	}
}

// atOnce runs all at the same time, and returns when they are over.
func atOnce(tasks []func()) {
	if len(tasks) == 0 {
		return
	}
	var running sync.WaitGroup
	defer running.Wait()
	for _, task := range tasks[1:] {
		running.Go(task)
	}
	tasks[0]()
}

// tasks returns what is to be done for a round at the store of a client, all at the same time.
func (c *Client) tasks(r *round, parts []*part) (tasks []func()) {
	switch {
	case c.prompt:
		return []func(){func() {
			for _, p := range parts {
				if r.attempt(p); p.err != nil {
					return // the rest would be given back
				}
			}
		}}
	case c.batcher != nil && len(parts) > 1:
		return []func(){func() { c.attemptTogether(r, parts) }}
	}
	for _, p := range parts {
		tasks = append(tasks, func() { r.attempt(p) })
	}
	return tasks
}

// attempt makes the attempt at one part.
func (r *round) attempt(p *part) {
	p.err = errPanicked // unless it returns
	p.h, p.err = p.locker.client.carryOut(r, p.single(r))
	r.heard(p.err == nil)
}

// heard notes an answer. Those that don't come for long after the first, or after one that was no, aren't waited for.
func (r *round) heard(granted bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.left--
	switch {
	case r.left == 0:
		if r.timer != nil {
			r.timer.Stop()
		}
		return
	case r.timer == nil:
		r.bound()
	}
	if !granted && !r.failed {
		r.failed = true
		r.timer.Reset(min(time.Until(r.end), max(shortestRound, 4*time.Since(r.began))))
	}
}

// over ends the round.
func (r *round) over() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.timer != nil {
		r.timer.Stop()
	}
	r.cut(nil)
}

// settle looks what has become of a part in a round that is over.
func (p *part) settle(ctx context.Context) {
	_, cut := errors.AsType[endError](p.err)
	c := p.locker.client
	if p.h != nil {
		p.h = c.standing(p.h)
	}
	p.refused = isErrHeld(p.err) || p.refused && p.err != nil
	switch {
	case cut:
		p.err = p.cutShort(c.over(ctx))
	case p.h == nil:
	case c.whyOver(p.h) == nil:
	case p.h == p.within:
		p.err = c.whyOver(p.h)
	default:
		p.err = unavailable(errBrief)
	}
}

// cutShort returns the error of an attempt that was cut short, by the end of its round or by that of the call, and why the latter has ended.
func (p *part) cutShort(why error) error {
	switch {
	case why == nil:
		return unavailable(errUnanswered)
	case why == errWaited, errors.Is(p.err, why), !errors.Is(p.err, ErrNotAcquired):
		return p.err
	}
	var a acquisition // the call has ended just after the round
	if a.answered = errors.Is(p.err, ErrHeld); !a.answered {
		a.failure = errUnanswered
	}
	return a.giveUp(why)
}

// giveBack gives back all that is there, at once: if ctx is over, or the client closed, without waiting for it.
func (t *together) giveBack(ctx context.Context) {
	var held []*part
	for _, p := range t.parts {
		if p.h != nil {
			held = append(held, &part{locker: p.locker, h: p.h})
			p.h = nil
		}
	}
	if t.parts[0].locker.client.over(ctx) == nil { // where there are several clients, ctx ends with each
		releaseParts(ctx, held, true)
		return
	}
	for c, parts := range byClient(held) {
		c.letGoTogether(withoutCancel(ctx), parts)
	}
}

// letGoTogether gives back what nobody waits for any more.
func (c *Client) letGoTogether(ctx context.Context, parts []*part) {
	c.mu.Lock()
	here := c.closed || c.prompt // else it goes on after a Close, or takes no time
	if !here {
		c.backgroundLocked(func() { c.releaseTogether(ctx, parts, true) })
	}
	c.unlock()
	if here {
		ctx, cancel := context.WithTimeout(ctx, closePatience)
		defer cancel()
		c.releaseTogether(ctx, parts, true)
	}
}

// abandon gives back what a call has that will never return.
func (t *together) abandon() {
	for _, p := range t.parts {
		if p.h != nil {
			p.locker.client.letGo(p.h)
		}
	}
}

// releaseParts gives back one hold on each part, all at the same time, and notes how that went. Quiet is for what nobody's call
// gives back.
func releaseParts(ctx context.Context, parts []*part, quiet bool) {
	var tasks []func()
	for c, parts := range byClient(parts) {
		tasks = append(tasks, func() { c.releaseTogether(ctx, parts, quiet) })
	}
	atOnce(tasks)
}

// releaseTogether is releaseParts for those of one client. What is handed on to somebody who waits comes after the rest, or soon: he may want
// that, too.
func (c *Client) releaseTogether(ctx context.Context, parts []*part, quiet bool) {
	var first, then []*part
	for _, p := range slices.Backward(parts) { // so that who waits for the first finds the others free
		if c.hasSuccessor(p.h) {
			then = append(then, p)
		} else {
			first = append(first, p)
		}
	}
	if c.prompt {
		defer c.releaseApart(ctx, then, quiet) // also if a Trace panics
	} else if len(then) > 0 {
		var last sync.WaitGroup
		defer last.Wait()
		soon, now := context.WithTimeout(ctx, shortestRound) // the store may hang for the others
		defer now()
		last.Go(func() {
			<-soon.Done()
			c.releaseApart(ctx, then, quiet)
		})
	}
	if c.batcher != nil && !c.prompt && len(first) > 1 {
		c.releaseBatch(ctx, first, quiet)
	} else {
		c.releaseApart(ctx, first, quiet)
	}
}

// hasSuccessor says whether a hold is handed on when it is given back.
func (c *Client) hasSuccessor(h *hold) bool {
	if rules[h.kind].shared {
		return false
	}
	c.mu.Lock()
	defer c.unlock()
	return c.successorLocked(h) != nil
}

// releaseApart gives back holds each by itself.
func (c *Client) releaseApart(ctx context.Context, parts []*part, quiet bool) {
	var tasks []func()
	for _, p := range parts {
		p.err = errPanicked // unless it returns
		tasks = append(tasks, func() {
			if quiet {
				p.err = c.release(ctx, p.h)
			} else {
				p.err = c.giveUpHold(ctx, p.h)
			}
		})
	}
	if !c.prompt {
		atOnce(tasks)
		return
	}
	for _, task := range slices.Backward(tasks) {
		defer task() // also if a Trace panics
	}
}
