package dlock

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/seed951563bd/distsync/backend"
)

// An acquisition is one acquiring call under way.
type acquisition struct {
	call
	inquiry
	waiting
}

// A call is what was asked for, which doesn't change.
type call struct {
	kind     backend.Kind
	name     string
	party    party
	o        acquireOptions
	bound    *hold         // what its context is for: it re-enters that, or nothing
	partners bool          // others may call in the name of its party, and re-enter what that gets
	budget   time.Duration // how long the call may wait; 0: nobody knows
	quiet    bool          // the call ends by itself, and returns why: nothing need be logged
	began    instant
	excluded func() // see caller
}

// inquiry is what has come of asking the store. All attempts of an acquisition share one owner string, so
// that an attempt without an answer which the store carries out late is part of the same hold.
type inquiry struct {
	h        *hold   // what the attempts ask for
	within   *hold   // what the call re-enters: what its context is for, or what its party had when it began
	attempt  uint64  // the number of its own latest
	sent     instant // when that was sent
	seen     uint64  // how many attempts this client had sent before the call waited
	answered bool    // the store said during the call that another has the lock
	here     bool    // it is another call of this client that has it
	via      Via     // how it got what it has
	failure  error   // why the last attempt failed; nil if it was answered
	tries    backoff
	polls    backoff
	reports  backoff // of failures, in the log
	report   instant // when the next is due
}

// waiting is an acquisition's place in the queue, guarded by Client.mu.
type waiting struct {
	in         *queue // nil if it isn't in one
	prev, next *acquisition
	signal     chan struct{} // look again: to ask the store, joined, or handed the lock
	alarm      alarm         // when it looks again at the latest
	since      instant       // when it began to wait; 0: it has asked only
	fresh      bool          // to try
	late       bool          // it was given the lock, too late to renew that
	trying     bool          // an attempt is under way
	joined     bool          // the same party got in elsewhere: it can re-enter
	handed     *hold         // what it was handed by whoever had it before, or joined
	cut        func()        // ends the attempt under way, if a joined one need not wait for it
}

// newAcquisition returns an acquisition, perhaps one that is over: nothing refers to that once its
// call has returned. A signal may be left in it, and one too many does no harm.
func (c *Client) newAcquisition() *acquisition {
	if a, ok := c.acquisitions.Get().(*acquisition); ok {
		return a
	}
	return new(acquisition)
}

// errAgain says that what the call began with has changed: the hold that it wanted to re-enter is
// gone, or there is one now.
var errAgain = errors.New("again")

// acquire gets the lock for a caller: re-enters what it holds, or acquires and waits. What it
// returns instead of a hold is the reason, not yet wrapped.
func (c *Client) acquire(ctx context.Context, l *Locker, who caller, o acquireOptions) (h *hold, err error) {
	return c.carryOut(ctx, c.newCall(ctx, l, who, o))
}

// newCall returns what a caller asks for.
func (c *Client) newCall(ctx context.Context, l *Locker, who caller, o acquireOptions) *acquisition {
	a := c.newAcquisition()
	*a = acquisition{
		call:    call{kind: l.kind, name: l.name, party: who.party, o: o, bound: who.hold, began: c.now(), excluded: who.excluded},
		inquiry: inquiry{within: who.hold},
		waiting: waiting{signal: a.signal},
	}
	a.partners = a.variable() == nil && !who.alone
	a.mayTake(ctx)
	return a
}

// carryOut gets what a call asks for, and tells of it.
func (c *Client) carryOut(ctx context.Context, a *acquisition) (h *hold, err error) {
	over, told := false, false
	ctx = c.begins(ctx, a)
	defer func() { c.leaveCall(ctx, a, h, over, told) }()
	h, err = c.acquireInTime(ctx, a)
	over = true
	c.acquired(ctx, a, h, err)
	told = true
	return h, err
}

// leaveCall sees to what is left of a call that is over, and was told, unless something panicked.
func (c *Client) leaveCall(ctx context.Context, a *acquisition, h *hold, over, told bool) {
	switch {
	case !over: // a step panicked, or ended its goroutine
		c.forgo(a)
		c.acquired(ctx, a, nil, errPanicked)
	case !told && h != nil: // a Trace did, and nobody hears what he has got
		c.letGo(h)
	default:
		c.acquisitions.Put(a)
	}
}

// letGo gives back what a call has got that will never return it.
func (c *Client) letGo(h *hold) {
	c.mu.Lock()
	defer c.unlock()
	c.backgroundLocked(func() { c.release(context.Background(), h) })
}

// mayTake notes how long a call may wait, if that is bounded.
func (a *acquisition) mayTake(ctx context.Context) {
	a.budget = a.o.wait
	a.quiet = a.o.bounded
	if end, ok := ctx.Deadline(); ok {
		a.quiet = true
		if left := time.Until(end); a.budget == 0 || left < a.budget {
			a.budget = left
		}
	}
}

// forgo gives up whatever a call has that will never return.
func (c *Client) forgo(a *acquisition) {
	c.mu.Lock()
	defer c.unlock()
	c.dequeueLocked(a)
	h := a.handed
	switch {
	case a.h == nil:
	case a.h.count > 0:
		h, a.h = a.h, nil
	default:
		a.h.claim.Stray() // an attempt may have been sent
	}
	if h != nil {
		c.backgroundLocked(func() { c.release(context.Background(), h) })
	}
	c.abandonLocked(a)
}

// acquireInTime tries until it has the lock or the call cannot go on.
func (c *Client) acquireInTime(ctx context.Context, a *acquisition) (*hold, error) {
	for {
		if err := c.over(ctx); err != nil {
			return nil, a.giveUp(err)
		}
		h, err := c.acquireOnce(ctx, a)
		switch {
		case err == nil:
			return h, nil
		case err == errAgain:
			continue
		case !c.retries(ctx, a, err):
			return nil, c.final(a, err)
		}
		a.fail(ctx.Err() != nil, err)
		c.report(a, err)
		if !c.pause(ctx, a.tries.next(firstBackoff, longestPause(a.o.lease))) {
			return nil, a.giveUp(c.over(ctx))
		}
	}
}

// firstBackoff is the first pause after an attempt that failed.
const firstBackoff = 50 * time.Millisecond

// acquireOnce re-enters, joins, or acquires afresh, and waits for that if it may.
func (c *Client) acquireOnce(ctx context.Context, a *acquisition) (*hold, error) {
	own, err := c.own(a)
	a.via = ViaStore
	switch {
	case err != nil:
		return nil, err
	case own != nil && own.kind != a.kind:
		return c.readUnder(ctx, own, a)
	case own != nil && rules[a.kind].shared:
		a.via = ViaReentry
		return own, c.reenterShared(ctx, own, a)
	case own != nil:
		a.via = ViaReentry
		return own, c.reenter(ctx, own, a)
	}
	if h, err := c.share(a); h != nil || err != nil {
		return h, err
	}
	if a.single() {
		return c.tryNow(ctx, a)
	}
	return c.queueUp(ctx, a)
}

// own returns what the party of a call has of the lock already, or nil if the call is to acquire it: a hold to
// re-enter, or the write to read under. A call that began as a re-entry doesn't become anything else: it
// is an error if that hold is over.
func (c *Client) own(a *acquisition) (*hold, error) {
	if a.variable() != nil || rules[a.kind].many {
		return nil, nil
	}
	c.mu.Lock()
	defer c.unlock()
	if a.bound != nil {
		if !c.checkLocked(a.bound) {
			return nil, a.bound.overError()
		}
		if a.bound.kind == a.kind {
			return a.bound, nil
		}
	}
	h, err := c.ownLocked(a)
	if h != nil || err != nil {
		a.within = h
		return h, err
	}
	if h := a.within; h != nil && !c.checkLocked(h) && h.state == lost {
		return nil, h.overError()
	}
	a.within = nil
	return nil, nil
}

// ownLocked returns what a party has, or why it can't have another side of it.
func (c *Client) ownLocked(a *acquisition) (*hold, error) {
	o := c.objectLocked(a.kind, a.name)
	if h := c.currentLocked(o, a.kind, a.party); h != nil || o == nil {
		return h, nil
	}
	alone := o.alone
	switch {
	case alone != nil && alone.party == a.party && c.checkLocked(alone):
		if !rules[a.kind].shared {
			return nil, errOtherKind
		}
		return alone, nil
	case !rules[a.kind].shared && o.reader(a.party) != nil && c.checkLocked(o.reader(a.party)):
		return nil, ErrUpgrade
	default:
		return nil, nil
	}
}

// whyOver says how the hold that a context is for has ended, if it has.
func (c *Client) whyOver(h *hold) error {
	if h == nil {
		return nil
	}
	c.mu.Lock()
	defer c.unlock()
	if c.checkLocked(h) {
		return nil
	}
	return h.overError()
}

// variable returns the Locker whose plain call it is, or nil.
func (c *call) variable() *variable {
	v, _ := c.party.(*variable)
	return v
}

// single says that the call may not wait.
func (a *acquisition) single() bool { return a.o.bounded && a.o.wait == 0 }

// retries says whether the call goes on after an error, if only to find that its time is over.
func (c *Client) retries(ctx context.Context, a *acquisition, err error) bool {
	if isFinal(err) {
		return false
	}
	if _, end := errors.AsType[endError](err); end {
		return false
	}
	return backend.KindOf(err) != backend.Refused && (!a.single() || c.over(ctx) != nil)
}

// final returns the error of a call that ends with err.
func (c *Client) final(a *acquisition, err error) error {
	if isFinal(err) {
		return err
	}
	if _, end := errors.AsType[endError](err); end {
		return err
	}
	return unavailable(err)
}

// isFinal says whether an error of an attempt is this package's own, and ends the call.
func isFinal(err error) bool {
	switch err {
	case errHeld, errHeldHere, errNotUnlocked, errOtherKind, ErrUpgrade, ErrLost, ErrNotHeld, ErrClosed:
		return true
	}
	_, lost := err.(*Loss)
	return lost
}

// fail notes why an attempt failed. One that was cut short by the call's own end says nothing that
// the attempts before it, if there were any, did not.
func (a *acquisition) fail(cut bool, err error) {
	if !cut || !a.answered && a.failure == nil {
		a.failure = err
	}
}

// errHeld is how a call ends that may not wait for whoever has the lock.
var errHeld = fmt.Errorf("%w: %w", ErrNotAcquired, ErrHeld)

// heldHere is ErrHeld where the client knows that it has the lock itself, and says so.
type heldHere struct{}

func (heldHere) Error() string {
	return "held by another call of this client, and this call isn't made in its name"
}

func (heldHere) Is(target error) bool { return target == ErrHeld }

// errHeldHere is errHeld, and tells where the lock is.
var errHeldHere = fmt.Errorf("%w: %w", ErrNotAcquired, heldHere{})

// isHeld says whether a call ended with errHeld, and not with an error of the caller's that wraps
// it, such as the cause of its context.
func isHeld(err error) bool {
	if end, ok := err.(endError); ok {
		err = end.error
	}
	return isErrHeld(err)
}

// isErrHeld says whether that is what an attempt has come to.
func isErrHeld(err error) bool { return err == errHeld || err == errHeldHere }

// errWaited is the cause of a context whose wait is over. No caller ever sees it, so that none can
// bring it back as the cause of a context of its own.
var errWaited = errors.New("the wait is over")

// An endError ended a wait: no further attempt follows.
type endError struct{ error }

func (e endError) Unwrap() error { return e.error }

// over returns why a call cannot go on, or nil.
func (c *Client) over(ctx context.Context) error {
	if c.ctx.Err() != nil {
		return ErrClosed
	}
	if ctx.Err() == nil {
		return nil
	}
	if context.Cause(ctx) == errWaited {
		return errWaited
	}
	return ended(ctx)
}

// giveUp returns the error of a call that ends because of why, with what is known of the lock. That
// another holds it is known only if the store said so during the call.
func (a *acquisition) giveUp(why error) error {
	waited := why == errWaited
	if waited {
		why = ErrNotAcquired
	}
	switch {
	case why == ErrClosed:
		return endError{why}
	case a.failure == errNotUnlocked:
		return endError{both(why, errNotUnlocked)}
	case a.failure != nil:
		return endError{both(why, unavailable(a.failure))}
	case a.answered && waited && a.here:
		return endError{errHeldHere}
	case a.answered && waited:
		return endError{errHeld}
	case a.answered && a.here:
		return endError{both(why, heldHere{})}
	case a.answered:
		return endError{both(why, ErrHeld)}
	case waited || a.budget > 0 && a.since > 0:
		return endError{both(why, unavailable(errUnanswered))}
	default:
		return endError{why}
	}
}

// waitContext returns a context that ends with the call's wait, cause errWaited.
func waitContext(ctx context.Context, o acquireOptions) (context.Context, context.CancelFunc) {
	if !o.bounded || o.wait == 0 {
		return ctx, func() {}
	}
	return context.WithTimeoutCause(ctx, o.wait, errWaited)
}

// Pauses between two reports of one call that the store doesn't answer.
const (
	firstReport   = time.Second
	longestReport = time.Minute
)

// report logs a failed attempt of a call that goes on trying for as long as that takes, now and then.
func (c *Client) report(a *acquisition, err error) {
	now := c.now()
	if a.quiet || now < a.report {
		return
	}
	a.report = now + a.reports.next(firstReport, longestReport)
	c.warn("cannot lock yet", "name", a.name, "err", err)
}

// tryNow makes the one attempt of a call that doesn't wait, out of turn.
func (c *Client) tryNow(ctx context.Context, a *acquisition) (*hold, error) {
	if err := c.known(a); err != nil {
		return nil, err
	}
	_, err := c.attempt(ctx, a)
	return c.tried(a, err)
}

// tried returns what the one attempt of a call that doesn't wait has come to.
func (c *Client) tried(a *acquisition, err error) (*hold, error) {
	if err == nil {
		return a.h, nil
	}
	c.abandon(a)
	if err == errHeld && c.joins(a) {
		err = errAgain // held by another goroutine in the same party's name
	}
	return nil, err
}

// known says what keeps a call out that is known without asking the store.
func (c *Client) known(a *acquisition) error {
	c.mu.Lock()
	defer c.unlock()
	var but party
	if v := a.variable(); v == nil {
		but = a.party
	} else if v.hold != nil && !c.checkLocked(v.hold) && v.hold.state == lost {
		return errNotUnlocked
	}
	o := c.objectLocked(a.kind, a.name)
	if c.heldLocked(o, a, but) || rules[a.kind].many && o != nil && o.queue != nil {
		return a.heldBy(o)
	}
	return nil
}

// heldBy returns errHeld, or the one that says that this client has the lock.
func (a *acquisition) heldBy(o *object) error {
	if o.hasForItself(a.kind) {
		return errHeldHere
	}
	return errHeld
}

// hasForItself says whether this client has a lock, as one of that kind, so that whoever asks for
// it might have re-entered it.
func (o *object) hasForItself(kind backend.Kind) bool {
	return o != nil && o.alone != nil && o.alone.kind == kind && o.alone.state == live
}

// joins says whether the party of a call has the lock by now.
func (c *Client) joins(a *acquisition) bool {
	c.mu.Lock()
	defer c.unlock()
	return c.reentersLocked(a)
}

// readsLocked says whether the party of a call reads already, by another call that was faster.
func (c *Client) readsLocked(a *acquisition) bool {
	return rules[a.kind].shared && a.variable() == nil &&
		c.currentLocked(c.objectLocked(a.kind, a.name), a.kind, a.party) != nil
}

// reentersLocked says whether a call can re-enter what its party has, or is kept out by that.
func (c *Client) reentersLocked(a *acquisition) bool {
	if a.variable() != nil || rules[a.kind].many {
		return false
	}
	h, err := c.ownLocked(a)
	return h != nil || err != nil
}

// attempt asks the store for the lock once. A nil error means that a.h is held now. If it is
// errHeld, remaining is how long the present hold would last.
func (c *Client) attempt(ctx context.Context, a *acquisition) (remaining time.Duration, err error) {
	at := c.attempting(a)
	res, err := c.acquireStep(ctx, at.h.claim, a.o.lease, at.req)
	return c.attempted(ctx, a, at, res, err)
}

// An attempt is one that is under way.
type attempt struct {
	h      *hold
	lease  time.Duration
	sent   instant
	forced uint64 // how many locks this client had forced before
	late   bool   // it was given the lock too late
	place  time.Duration
	req    backend.AcquireRequest // made under the mutex: the claim may be granted from now on
}

// attempting notes that an attempt goes out now.
func (c *Client) attempting(a *acquisition) attempt {
	c.mu.Lock()
	defer c.mu.Unlock()
	if a.h == nil {
		a.h = c.claimForLocked(a)
	}
	at := attempt{
		h: a.h, lease: c.stored(a.o.asked()), sent: c.now(), forced: c.forced.Load(),
		late: a.late, place: linePlace,
	}
	if a.in != nil && a.in.placed {
		at.place = a.in.placeLasts()
	}
	a.late = false
	at.h.claim.Sent(at.sent, at.lease)
	c.attempts++
	a.attempt, a.sent = c.attempts, at.sent
	at.req = c.attemptRequestLocked(a, at)
	return at
}

// attempted notes what an attempt was answered.
func (c *Client) attempted(ctx context.Context, a *acquisition, at attempt, res backend.AcquireResult, err error) (time.Duration, error) {
	remaining, err := c.answered(a, at, res, err)
	if err == nil && c.forced.Load() != at.forced {
		c.confirm(ctx, at.h.claim, c.forcedLocked)
	}
	return remaining, err
}

// answered notes the answer to an attempt to get h.
func (c *Client) answered(a *acquisition, at attempt, res backend.AcquireResult, err error) (remaining time.Duration, _ error) {
	h, sent := at.h, at.sent
	c.mu.Lock()
	defer c.unlock()
	if a.in != nil && a.in.placed && err == nil {
		a.in.took(c.now()-sent, false, nil)
	}
	switch {
	case err != nil:
		a.late = a.late || at.late
		if backend.KindOf(err) == backend.Unknown {
			h.claim.Stray()
			h.claim.Unanswered(a.o.asked())
		}
		if c.closed && backend.KindOf(err) == backend.Refused {
			err = both(ErrClosed, err) // the session is closed, too
		}
		return 0, err
	case a.handed == h: // the store gave it away, and said so, before the answer to this came
		if res.Acquired && c.checkLocked(h) {
			h.claim.Granted(sent, a.o.asked())
		}
		return 0, nil
	case !res.Acquired:
		h.claim.noted = h.claim.noted || (rules[a.kind].notes || rules[a.kind].placed) && !a.single()
		return res.Remaining, errHeld
	}
	h.claim.Granted(sent, a.o.asked())
	h.claim.noted = rules[a.kind].placed // until it is granted: who is late has had his turn
	if h.claim.more != nil {
		h.claim.more.token = res.Token
	}
	if err := c.unusableLocked(a); err != nil {
		h.claim.Stray() // it may be in the store, and nobody has it
		return 0, err
	}
	if c.readsLocked(a) {
		c.supersedeLocked(h.claim)
		c.takeBackLocked(h.claim) // with two holds, nobody could say which of them an unlock is for
		return 0, errAgain
	}
	if a.handed != nil {
		spare := c.grantLocked(h, sent) // goes to whoever is next, or back
		c.backgroundLocked(func() { c.release(c.ctx, spare) })
		a.h = nil
		return 0, nil
	}
	h.claim.noted = false
	if a.o.keeps {
		h.claim.Keep(c.now()+a.o.atLeast, sent)
	}
	a.h = c.grantLocked(h, sent)
	c.caughtUpLocked(h.claim)
	c.dequeueLocked(a)
	return 0, nil
}

// unusableLocked says why an acquisition that the store has just granted cannot be used, if so.
func (c *Client) unusableLocked(a *acquisition) error {
	switch v := a.variable(); {
	case c.closed:
		return ErrClosed
	case !a.h.valid(c.now()):
		return errLate
	case rules[a.kind].numbered && a.h.claim.token() == 0:
		return errNoToken
	case c.overtakenLocked(a):
		return errAgain
	case v != nil && v.hold != nil && v.hold.state != released && !rules[a.kind].shared:
		if rules[a.kind].placed {
			c.loseLocked(v.hold, takenBy(a.h.claim.owner)) // the store wouldn't have granted what is held
		}
		return errAgain // the Locker was locked meanwhile, and that hold is lost, or will soon be found to be
	default:
		return nil
	}
}

// confirm asks the store whether it still has a claim that may be lost, until it has said so. Whoever holds the claim by then is
// told, by way of lost.
func (c *Client) confirm(ctx context.Context, cl *claim, lost func(*claim)) {
	if c.confirmed(ctx, cl, lost) {
		return
	}
	c.mu.Lock()
	defer c.unlock()
	c.backgroundLocked(func() {
		var tries backoff
		for c.pause(c.ctx, tries.next(firstBackoff, longestPause(c.lease))) && !c.confirmed(c.ctx, cl, lost) {
		}
	})
}

// confirmed asks once, and says whether it is clear now.
func (c *Client) confirmed(ctx context.Context, cl *claim, lost func(*claim)) bool {
	c.mu.Lock()
	req := cl.lookRequest()
	c.unlock()
	res, err := step(ctx, c, backend.Session.Look, req)
	c.mu.Lock()
	defer c.unlock()
	if cl.kind != req.Kind {
		return false // it has been downgraded, and what was asked about given back
	}
	if isDisplaced(err) {
		res, err = backend.LookResult{}, nil
	}
	if err == nil && res.Count == 0 && !cl.dead {
		lost(cl)
	}
	return err == nil || backend.KindOf(err) == backend.Refused || cl.dead || c.now() >= cl.Until()
}

// attemptRequestLocked asks for the lock. A call that goes on waiting may leave a note of that.
func (c *Client) attemptRequestLocked(a *acquisition, at attempt) backend.AcquireRequest {
	req := at.h.claim.acquireRequest(at.lease, false)
	switch r := rules[a.kind]; {
	case a.single():
	case r.family == readWrites:
		req.Waited, req.Place = c.now()-a.began, a.placeLease()
	case r.placed:
		req.Place = at.place
		if at.late {
			req.Waited = c.now() - a.began
		}
	}
	return req
}

// placeLease returns for how long the store is to know that a call waits, if nothing more is heard of it.
func (a *acquisition) placeLease() time.Duration {
	if !rules[a.kind].notes {
		return 0
	}
	return min(longestPlace, max(a.o.lease, shortestPlace))
}

// A place in the store ends with a few seconds when nobody renews it, and is renewed each time that a third of it
// has passed.
const (
	longestPlace  = 3 * time.Second
	shortestPlace = 300 * time.Millisecond
)

// claimForLocked makes what an acquisition asks for, under an owner string of its own.
func (c *Client) claimForLocked(a *acquisition) *hold {
	all := new(struct {
		hold   hold
		claim  claim
		object object
	})
	o := c.objectLocked(a.kind, a.name)
	if o == nil {
		o = &all.object
		o.name, o.family = a.name, rules[a.kind].family
	}
	cl := &all.claim
	cl.object, cl.kind, cl.owner = o, a.kind, c.nextOwnerLocked(a.o.note)
	cl.Want(a.o.lease, !a.o.fixed)
	if a.kind != backend.Exclusive {
		cl.more = &more{permit: permit{many: a.o.permits, limit: a.o.limit}, noted: a.o.noted}
	}
	all.hold.rest(a.party, a.kind, cl)
	return &all.hold
}

// abandon ends what an acquisition asked for without having it: no attempt for it follows.
func (c *Client) abandon(a *acquisition) {
	c.mu.Lock()
	defer c.unlock()
	c.abandonLocked(a)
}

func (c *Client) abandonLocked(a *acquisition) {
	if a.h != nil {
		a.h.claim.dead = true
		if a.h.claim.Strays() || a.h.claim.noted {
			c.takeBackLocked(a.h.claim)
		}
	}
	a.h = nil
}

// reenter counts one hold more. Steps that count are made one at a time.
func (c *Client) reenter(ctx context.Context, h *hold, a *acquisition) error {
	a.answered = false // by another, before its own party got in
	select {
	case h.slot <- struct{}{}:
		defer func() { <-h.slot }()
	case <-ctx.Done():
		return a.giveUp(c.over(ctx))
	case <-c.ctx.Done():
		return ErrClosed
	}
	c.mu.Lock()
	if !c.checkLocked(h) {
		c.unlock()
		return errAgain
	}
	cl, now := h.claim, c.now()
	count := h.count + 1
	lease, asked := cl.Reentry(now, a.o.lease)
	asked = max(asked, a.o.atLeast)
	cl.StepSent(now, asked, c.stored(asked))
	c.unlock()

	res, err := c.acquireStep(ctx, cl, lease, cl.acquireRequest(c.stored(asked), true))

	c.mu.Lock()
	defer c.unlock()
	cl.StepOver()
	if err == nil && res.Acquired && res.Count >= int(count) && c.checkLocked(h) {
		h.count, h.offered = count, false
		if !cl.Renewed() && !a.o.fixed {
			cl.Renew()
			h.renewedFrom = count
		}
		if a.o.keeps {
			cl.Keep(c.now()+a.o.atLeast, now)
		}
		c.prolongLocked(h, now, lease, asked)
		return nil
	}
	return c.failReentryLocked(h, asked, res, err)
}

// prolongLocked notes an answer that granted the lease asked for in a counting step; lease is what the next renewal asks for.
func (c *Client) prolongLocked(h *hold, sent instant, lease, asked time.Duration) {
	cl := h.claim
	cl.StepGranted(sent, lease, asked)
	c.scheduleLocked(&cl.alarm, c.nextLook(cl, sent))
}

// failReentryLocked returns what a re-entry that isn't counted any more says, and notes what it told
// us of the hold.
func (c *Client) failReentryLocked(h *hold, lease time.Duration, res backend.AcquireResult, err error) error {
	cl := h.claim
	if err != nil && backend.KindOf(err) == backend.Unknown || err == nil && res.Acquired {
		cl.Stray()
		cl.Unanswered(lease)
	}
	switch {
	case h.state == forsaken:
		return ErrClosed
	case h.state == live && err != nil && !isDisplaced(err):
		return err
	}
	// The store says that the hold is gone, or our own clock said so meanwhile.
	w := gone
	if err != nil && !isDisplaced(err) {
		w = c.ranOutLocked(cl, c.now())
	}
	c.loseLocked(h, w)
	if cl.Strays() {
		c.takeBackLocked(cl)
	}
	return h.overError()
}
