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

// Several locks are acquired together in rounds. A round makes one attempt at each lock that the
// call doesn't hold yet, all concurrently. If one attempt is refused, the call releases all its
// locks at once. Then it waits for the refused lock alone, as a Locker does. When it has acquired
// that lock, it makes the next round, for the other locks.
//
// Calls that repeatedly conflict with each other pause between their rounds. The pause is random
// and grows. If several locks are refused, a call waits for the one whose name comes first. So if
// several calls want the same locks, one gets the first of these locks, and the others wait for it.

// together is the state of a call for several locks.
type together struct {
	parts []*part // in the order of attempts
	given []*part // the same parts, in the caller's order
	tries backoff
}

// A part is one of the locks that a call acquires together, with the call's state for that lock.
type part struct {
	locker  *Locker
	who     caller
	o       acquireOptions
	atLeast time.Duration // the minimum time for which the lock stays taken
	within  *hold         // the party's earlier hold, or nil
	refused bool          // the store's last answer was a refusal
	h       *hold         // the call's hold, or nil
	err     error         // why the call has no hold
}

func (p *part) error(op string) error { return p.locker.wrap(op, p.err) }

// joined returns the joined errors of the parts.
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
	// longestRound limits how long the call keeps some of the locks while it waits for answers
	// about the others.
	longestRound = time.Second

	// shortestRound is the minimum time that the other attempts get once one has been refused.
	shortestRound = 20 * time.Millisecond

	// The first and the longest pause after a conflict. Each pause is shortened by a random amount,
	// up to half.
	firstConflict   = time.Millisecond
	longestConflict = 100 * time.Millisecond
)

// acquire acquires all parts and returns nil. If it can't, it acquires none, and returns a part
// whose err says why.
func (t *together) acquire(ctx context.Context, o acquireOptions, opts []AcquireOption) *part {
	if p := t.prepare(ctx, o, opts); p != nil {
		return p
	}
	ctx, cancel := t.waitContext(ctx)
	defer cancel()
	over := false
	defer func() {
		if !over { // a panic, or the goroutine ended
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

// prepare sets up the parts before the first attempt. If a part makes the call impossible, prepare
// returns that part.
func (t *together) prepare(ctx context.Context, o acquireOptions, opts []AcquireOption) *part {
	for _, p := range t.parts {
		c := p.locker.client
		if err := p.locker.usable(ctx); err != nil {
			p.err = both(err, p.who.hold.whyOver(c))
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

// agree gives all parts the same wait: the shortest of the default waits of their Lockers.
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

// watchVariables calls watchVariable for the locks that are held by the plain calls of their
// Lockers.
func (t *together) watchVariables() {
	for _, p := range t.parts {
		if p.who.party == party(p.locker.plain) {
			p.locker.watchVariable()
		}
	}
}

// keep keeps all locks taken for the time that the caller asked for. acquire calls it only once the
// call holds all locks. If it were called earlier, a lock that the call had to release again would
// stay taken, even one that the call's owner already held before the call.
func (t *together) keep() {
	for _, p := range t.parts {
		if p.atLeast > 0 {
			p.h.keepFromNow(p.locker.client, p.atLeast)
		}
	}
}

// keepFromNow makes the hold's lock stay taken for at least d, counted from now. It sends the
// change to the store at once.
func (h *hold) keepFromNow(c *Client, d time.Duration) {
	s := c.lock()
	defer c.unlock()
	if !h.check(s) {
		return
	}
	cl, now := h.claim, c.now()
	cl.Lengthens(d)
	cl.Keep(now+d, cl.Confirmed(cl.began))
	s.hasten(&cl.alarm, now)
}

// waitContext returns a context that ends when the call's wait runs out. If there are several
// clients, it also ends when one of them is closed.
func (t *together) waitContext(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := waitContext(ctx, t.parts[0].o)
	var clients []*Client
	for c := range byClient(t.parts) {
		clients = append(clients, c)
	}
	if len(clients) == 1 {
		return ctx, cancel // each call watches its own client
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

// acquireInTime makes rounds until it has acquired all parts, and returns nil. If it can't go on,
// it returns the part that failed.
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
			first := max(firstConflict, min(time.Since(began), longestConflict))
			c.store.Pause(ctx, t.tries.next(first, longestConflict))
		}
		a := failed.newCall(ctx, failed.o)
		failed.inform(a)
		if failed.h, failed.err = a.carryOut(ctx); failed.err != nil {
			return t.blame(failed)
		}
		failed.refused = false
	}
}

// blame returns the part to report as the cause of the call's failure. If a client was closed,
// blame returns a part of that client.
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

// inform passes the result of the last attempt at the part to an acquisition.
func (p *part) inform(a *acquisition) {
	if a.answered = isErrHeld(p.err); !a.answered {
		a.failure = p.err
	}
}

// hopeless reports whether it is useless to wait for the part.
func (p *part) hopeless() bool {
	return !isErrHeld(p.err) && p.err != errNotUnlocked &&
		(isFinal(p.err) || backend.KindOf(p.err) == backend.Refused)
}

// waits reports whether the call should wait for the part after a failed attempt.
func (p *part) waits() bool {
	_, end := errors.AsType[endError](p.err)
	return !end && !p.hopeless() && (!p.o.bounded || p.o.wait > 0)
}

// weight returns how important the part's error is for the whole call. It returns 0 if there is no
// error.
func (p *part) weight() int {
	switch {
	case p.err == nil:
		return 0
	case p.hopeless():
		return 3
	case errors.Is(p.err, ErrHeld) && !p.waits():
		return 2 // certain, whatever the other answers were
	default:
		return 1
	}
}

// refused returns the part with the most important error in the last round, or nil if there was no
// error.
func (t *together) refused() *part {
	p := slices.MaxFunc(t.parts, func(p, q *part) int { return p.weight() - q.weight() })
	if p.err == nil {
		return nil
	}
	return p
}

// A round makes one attempt at each part that has no hold yet.
type round struct {
	context.Context // for the attempts
	cut             context.CancelCauseFunc
	began           time.Time
	patience        time.Duration

	mu     sync.Mutex
	left   int // the number of attempts without an answer
	failed bool
	timer  *time.Timer // cuts the round short; nil while the round has no time limit
	end    time.Time   // the latest end of the round
}

// round makes one attempt at each part that has no hold yet. It returns a part that wasn't granted,
// or nil.
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
		r.bound() // others might wait for the locks that the call holds
	}
	var tasks []func()
	for c, parts := range byClient(missing) {
		tasks = append(tasks, r.tasks(c, parts)...)
	}
	atOnce(tasks)
	r.over()
	for _, p := range t.parts {
		p.settle(ctx)
	}
	return t.refused()
}

// keptOut reports whether this process knows, without asking the store, that the call can't get all
// locks. If it returns true, no request has been sent to the store.
func (t *together) keptOut(ctx context.Context) bool {
	for _, p := range t.parts {
		p.err = nil // forget the error of the last round
	}
	for _, p := range t.parts {
		if p.h != nil || p.who.hold != nil {
			continue // already held, or can be re-entered
		}
		c, a := p.locker.client, p.single(ctx)
		s := c.lock()
		known := a.known(s)
		c.unlock()
		if known == nil {
			c.acquisitions.Put(a)
			continue
		}
		if p.h, p.err = a.carryOut(ctx); p.err != nil { // carryOut also tells the traces
			return true
		}
	}
	return false
}

// byClient groups parts by client.
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

// tasks returns the tasks of a round for the parts of one client. The tasks can run concurrently.
func (r *round) tasks(c *Client, parts []*part) (tasks []func()) {
	switch {
	case c.store.Prompt():
		return []func(){func() {
			for _, p := range parts {
				if r.attempt(p); p.err != nil {
					return // the call would release the others anyway
				}
			}
		}}
	case c.store.Batcher != nil && len(parts) > 1:
		return []func(){func() { r.attemptTogether(c, parts) }}
	}
	for _, p := range parts {
		tasks = append(tasks, func() { r.attempt(p) })
	}
	return tasks
}

// attempt makes the attempt at one part.
func (r *round) attempt(p *part) {
	p.err = errPanicked // stays if it panics
	p.h, p.err = p.single(r).carryOut(r)
	r.heard(p.err == nil)
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

// settle sets a part's hold and error after a round.
func (p *part) settle(ctx context.Context) {
	_, cut := errors.AsType[endError](p.err)
	c := p.locker.client
	if p.h != nil {
		p.h = p.h.standing(c)
	}
	p.refused = isErrHeld(p.err) || p.refused && p.err != nil
	switch {
	case cut:
		p.err = p.cutShort(c.over(ctx))
	case p.h == nil:
	case p.h.whyOver(c) == nil:
	case p.h == p.within:
		p.err = p.h.whyOver(c)
	default:
		p.err = unavailable(errBrief)
	}
}

// cutShort returns the error of an attempt that was cut short by the end of its round or of the
// call. The parameter why is the reason for the end of the call, or nil if the call hasn't ended.
func (p *part) cutShort(why error) error {
	switch {
	case why == nil:
		return unavailable(errUnanswered)
	case why == errWaited, errors.Is(p.err, why), !errors.Is(p.err, ErrNotAcquired):
		return p.err
	}
	var a acquisition // the call ended just after the round
	if a.answered = errors.Is(p.err, ErrHeld); !a.answered {
		a.failure = errUnanswered
	}
	return a.giveUp(why)
}

// giveBack releases all holds at once. If ctx has ended, or the client is closed, it doesn't wait
// for the releases.
func (t *together) giveBack(ctx context.Context) {
	var held []*part
	for _, p := range t.parts {
		if p.h != nil {
			held = append(held, &part{locker: p.locker, h: p.h})
			p.h = nil
		}
	}
	if t.parts[0].locker.client.over(ctx) == nil { // ctx also ends when another client is closed
		releaseParts(ctx, held, true)
		return
	}
	for c, parts := range byClient(held) {
		c.letGoTogether(withoutCancel(ctx), parts)
	}
}

// letGoTogether releases holds without making the caller wait.
func (c *Client) letGoTogether(ctx context.Context, parts []*part) {
	s := c.lock()
	here := s.closed || c.store.Prompt() // otherwise release in the background
	if !here {
		s.background(func(c *Client) { c.releaseTogether(ctx, parts, true) })
	}
	c.unlock()
	if here {
		ctx, cancel := context.WithTimeout(ctx, closePatience)
		defer cancel()
		c.releaseTogether(ctx, parts, true)
	}
}

// abandon releases the holds of a call that won't return, because it panicked or its goroutine
// ended.
func (t *together) abandon() {
	for _, p := range t.parts {
		if p.h != nil {
			p.h.letGo(p.locker.client)
		}
	}
}

// releaseParts releases each part's hold once, all concurrently, and records the results. If quiet
// is true, it doesn't report the releases to the traces.
func releaseParts(ctx context.Context, parts []*part, quiet bool) {
	var tasks []func()
	for c, parts := range byClient(parts) {
		tasks = append(tasks, func() { c.releaseTogether(ctx, parts, quiet) })
	}
	atOnce(tasks)
}

// releaseTogether is like releaseParts, but for the parts of one client. Holds that will be handed
// over come last, because the calls that receive them might also want the other locks. But a
// hand-over waits for at most shortestRound, in case the other releases hang.
func (c *Client) releaseTogether(ctx context.Context, parts []*part, quiet bool) {
	var first, then []*part
	for _, p := range slices.Backward(parts) { // the first lock last
		if p.h.hasSuccessor(c) {
			then = append(then, p)
		} else {
			first = append(first, p)
		}
	}
	if c.store.Prompt() {
		defer c.releaseApart(ctx, then, quiet) // even if a Trace panics
	} else if len(then) > 0 {
		var last sync.WaitGroup
		defer last.Wait()
		soon, now := context.WithTimeout(ctx, shortestRound) // the other releases might hang
		defer now()
		last.Go(func() {
			<-soon.Done()
			c.releaseApart(ctx, then, quiet)
		})
	}
	if c.store.Batcher != nil && !c.store.Prompt() && len(first) > 1 {
		c.releaseBatch(ctx, first, quiet)
	} else {
		c.releaseApart(ctx, first, quiet)
	}
}

// hasSuccessor reports whether a release would hand the hold over to another call.
func (h *hold) hasSuccessor(c *Client) bool {
	if h.kind.Shared() {
		return false
	}
	s := c.lock()
	defer c.unlock()
	return h.successor(s) != nil
}
