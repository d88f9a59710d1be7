package dlock

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/dlock/internal/protocol"
	"github.com/seed951563bd/distsync/dlock/internal/steps"
)

// An acquisition holds the state of one call that acquires a lock.
type acquisition struct {
	client *Client
	call
	inquiry
	waiting
}

// A call describes what a caller asked for. It is immutable.
type call struct {
	kind     protocol.Kind
	name     string
	party    party
	o        acquireOptions
	bound    *hold         // the hold on this lock in the caller's context, or nil
	partners bool          // whether the party can make other calls that re-enter its hold
	budget   time.Duration // the longest time that the call may wait; 0 if unknown
	quiet    bool          // log no failures, since the error of a bounded wait reports them
	began    instant
	excluded func() // if not nil, called when the store says that someone else has the lock
}

// An inquiry is the state of an acquisition's requests to the store. All attempts use the same
// owner string until the acquisition abandons its claim, so an attempt that the store carries out
// late still belongs to that claim.
type inquiry struct {
	h        *hold   // the hold that the attempts ask for
	within   *hold   // the hold that the call re-enters: the one in its context, or its party's
	attempt  uint64  // the number of the latest attempt
	sent     instant // when that attempt was sent
	seen     uint64  // the number of attempts this client had made when the wait began
	answered bool    // whether the store said, or this client knew, that the lock was held
	here     bool    // whether the holder is another call of this client
	via      Via     // how the call got the lock
	failure  error   // the error of the latest attempt; nil if it was answered
	tries    backoff
	polls    backoff
	reports  backoff // pauses between logged failures
	report   instant // when the next failure may be logged
}

// waiting is the state of an acquisition in a queue. Client.mu guards it.
type waiting struct {
	in         *queue // nil if the call isn't in a queue
	prev, next *acquisition
	signal     chan struct{} // wakes the call to check for changes
	alarm      alarm         // wakes the call for its next look
	since      instant       // when the call began, if it has waited; otherwise 0
	fresh      bool          // whether the call's next move is an attempt
	late       bool          // the grant came too late for the call to renew the lease
	trying     bool          // an attempt is under way
	joined     bool          // another call of the party got the lock, so this one can re-enter it
	handed     *hold         // the hold that was handed to the call, or that it joined
	cut        func()        // cancels the current attempt, when the call gets a hold without it
}

// newAcquisition returns a new or reused acquisition. Reuse is safe, because nothing refers to the
// acquisition of a call that has returned. A reused signal channel might still contain a signal,
// which does no harm.
func (c *Client) newAcquisition() *acquisition {
	if a, ok := c.acquisitions.Get().(*acquisition); ok {
		return a
	}
	return new(acquisition)
}

// errAgain means that the call must start over, for example because the hold that it wanted to
// re-enter is gone, or because its party has acquired a hold in the meantime.
var errAgain = errors.New("again")

// newCall returns the acquisition for a caller's request.
func (l *Locker) newCall(ctx context.Context, who caller, o acquireOptions) *acquisition {
	c := l.client
	a := c.newAcquisition()
	*a = acquisition{
		client: c,
		call: call{
			kind: l.kind, name: l.name, party: who.party, o: o, bound: who.hold, began: c.now(),
			excluded: who.excluded,
		},
		inquiry: inquiry{within: who.hold},
		waiting: waiting{signal: a.signal},
	}
	a.partners = a.variable() == nil && !who.alone
	a.mayTake(ctx)
	return a
}

// carryOut acquires the lock for a call, waiting if necessary, or re-enters the caller's hold. It
// reports the outcome to the traces. The error isn't wrapped in an [Error] yet.
func (a *acquisition) carryOut(ctx context.Context) (h *hold, err error) {
	over, told := false, false
	ctx = a.begins(ctx)
	defer func() { a.cleanUp(ctx, h, over, told) }()
	h, err = a.acquireInTime(ctx)
	over = true
	a.ends(ctx, h, err)
	told = true
	return h, err
}

// cleanUp cleans up after a call. over is true if acquireInTime has returned, and told is true if
// the outcome was reported to the traces. If either is false, something panicked.
func (a *acquisition) cleanUp(ctx context.Context, h *hold, over, told bool) {
	c := a.client
	switch {
	case !over: // a step panicked, or ended its goroutine
		a.forgo()
		a.ends(ctx, nil, errPanicked)
	case !told && h != nil: // a Trace panicked, so the caller doesn't get its hold
		h.letGo(c)
	default:
		c.acquisitions.Put(a)
	}
}

// letGo releases a hold that the caller will never receive.
func (h *hold) letGo(c *Client) {
	s := c.lock()
	defer c.unlock()
	s.background(func(c *Client) { h.release(context.Background(), c) })
}

// mayTake records how long the call may wait, if its wait is bounded.
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

// forgo releases everything that a call holds or has asked for, after the call has panicked.
func (a *acquisition) forgo() {
	s := a.client.lock()
	defer a.client.unlock()
	a.dequeue(s)
	h := a.handed
	switch {
	case a.h == nil:
	case a.h.count > 0:
		h, a.h = a.h, nil
	default:
		a.h.claim.Stray() // an attempt might have been sent
	}
	if h != nil {
		s.background(func(c *Client) { h.release(context.Background(), c) })
	}
	a.dropClaim(s)
}

// acquireInTime tries until the call has acquired the lock or can't go on.
func (a *acquisition) acquireInTime(ctx context.Context) (*hold, error) {
	c := a.client
	for {
		if err := c.over(ctx); err != nil {
			return nil, a.giveUp(err)
		}
		h, err := a.acquireOnce(ctx)
		switch {
		case err == nil:
			return h, nil
		case err == errAgain:
			continue
		case !a.retries(ctx, err):
			return nil, final(err)
		}
		a.fail(ctx.Err() != nil, err)
		a.reportFailure(err)
		if !c.store.Pause(ctx, a.tries.next(firstBackoff, longestPause(a.o.lease))) {
			return nil, a.giveUp(c.over(ctx))
		}
	}
}

// firstBackoff is the pause after the first failed attempt.
const firstBackoff = 50 * time.Millisecond

// acquireOnce re-enters, joins or acquires the lock. If others hold the lock, acquireOnce waits,
// unless the call mustn't wait.
func (a *acquisition) acquireOnce(ctx context.Context) (*hold, error) {
	own, err := a.own()
	a.via = ViaStore
	switch {
	case err != nil:
		return nil, err
	case own != nil && own.kind != a.kind:
		return a.readUnder(ctx, own)
	case own != nil && a.kind.Shared():
		a.via = ViaReentry
		return own, a.reenterShared(ctx, own)
	case own != nil:
		a.via = ViaReentry
		return own, a.reenter(ctx, own)
	}
	if h, err := a.share(); h != nil || err != nil {
		return h, err
	}
	if a.single() {
		return a.tryNow(ctx)
	}
	return a.queueUp(ctx)
}

// own returns the party's hold on the lock. The call can re-enter that hold or, if it wants to read
// and the hold is for writing, acquire a read lock as well. If there is no such hold, own returns
// nil, and the call must acquire the lock. If the hold in the caller's context has ended, or the
// hold that the call wanted to re-enter was lost, own returns an error.
func (a *acquisition) own() (*hold, error) {
	if a.variable() != nil || a.kind.Many() {
		return nil, nil
	}
	s := a.client.lock()
	defer a.client.unlock()
	if a.bound != nil {
		if !a.bound.check(s) {
			return nil, a.bound.overError()
		}
		if a.bound.kind == a.kind {
			return a.bound, nil
		}
	}
	h, err := a.ownHold(s)
	if h != nil || err != nil {
		a.within = h
		return h, err
	}
	if h := a.within; h != nil && !h.check(s) && h.state == lost {
		return nil, h.overError()
	}
	a.within = nil
	return nil, nil
}

// ownHold returns the hold of a call's party, or nil. It returns an error if the party already
// holds the lock in a way that rules out what the call asks for.
func (a *acquisition) ownHold(s *state) (*hold, error) {
	o := s.object(a.kind, a.name)
	if h := o.current(s, a.kind, a.party); h != nil || o == nil {
		return h, nil
	}
	alone := o.alone
	switch {
	case alone != nil && alone.party == a.party && alone.check(s):
		if !a.kind.Shared() {
			return nil, errOtherKind
		}
		return alone, nil
	case !a.kind.Shared() && o.reader(a.party) != nil && o.reader(a.party).check(s):
		return nil, ErrUpgrade
	default:
		return nil, nil
	}
}

// whyOver returns the error that says how h ended. It returns nil if h is nil or hasn't ended.
func (h *hold) whyOver(c *Client) error {
	if h == nil {
		return nil
	}
	s := c.lock()
	defer c.unlock()
	if h.check(s) {
		return nil
	}
	return h.overError()
}

// variable returns the call's party if this is a plain call of a Locker. Otherwise it returns nil.
func (c *call) variable() *variable {
	v, _ := c.party.(*variable)
	return v
}

// single reports whether the call mustn't wait. Such a call makes one attempt.
func (a *acquisition) single() bool { return a.o.bounded && a.o.wait == 0 }

// retries reports whether the call tries again after err. A call that mustn't wait tries again only
// if its context has ended or the client is closed. That try sends no request, but returns the
// context's error or ErrClosed.
func (a *acquisition) retries(ctx context.Context, err error) bool {
	if isFinal(err) {
		return false
	}
	if _, end := errors.AsType[endError](err); end {
		return false
	}
	return backend.KindOf(err) != backend.Refused && (!a.single() || a.client.over(ctx) != nil)
}

// final returns the error to report to the caller if the call ends with err. It wraps the store's
// errors in ErrUnavailable.
func final(err error) error {
	if isFinal(err) {
		return err
	}
	if _, end := errors.AsType[endError](err); end {
		return err
	}
	return unavailable(err)
}

// isFinal reports whether err is one of this package's errors that end a call.
func isFinal(err error) bool {
	switch err {
	case errHeld, errHeldHere, errNotUnlocked, errOtherKind, ErrUpgrade, ErrLost, ErrNotHeld,
		ErrClosed:
		return true
	}
	_, lost := err.(*Loss)
	return lost
}

// fail records err as the reason why an attempt failed. If cut is set, the attempt failed only
// because the call ended. Such an error says little, so it is ignored if the store has answered
// another attempt, or if another failure is recorded.
func (a *acquisition) fail(cut bool, err error) {
	if !cut || !a.answered && a.failure == nil {
		a.failure = err
	}
}

// errHeld is the error of a call that mustn't wait and finds the lock held.
var errHeld = fmt.Errorf("%w: %w", ErrNotAcquired, ErrHeld)

// heldHere is an ErrHeld whose text says that this client holds the lock.
type heldHere struct{}

func (heldHere) Error() string {
	return "held by another call of this client, and this call isn't made in its name"
}

func (heldHere) Is(target error) bool { return target == ErrHeld }

// errHeldHere is like errHeld, but says that this client itself holds the lock, for another party
// or as a different kind of lock.
var errHeldHere = fmt.Errorf("%w: %w", ErrNotAcquired, heldHere{})

// isHeld reports whether a call ended with errHeld. It returns false for an error that comes from
// the caller, such as the cause of its context, even if that error wraps an earlier errHeld.
func isHeld(err error) bool {
	if end, ok := err.(endError); ok {
		err = end.error
	}
	return isErrHeld(err)
}

// isErrHeld reports whether err means that an attempt found the lock held by someone else.
func isErrHeld(err error) bool { return err == errHeld || err == errHeldHere }

// errWaited is the cause of a call's context when the wait has run out. It is never returned to
// callers, so a context that a caller passes can't have this cause.
var errWaited = errors.New("the wait is over")

// An endError is an error that ends a wait. The call makes no further attempt.
type endError struct{ error }

func (e endError) Unwrap() error { return e.error }

// over returns the reason why a call can't go on, or nil.
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

// giveUp returns the error for a call that ends for the given reason. The error also says what is
// known about the lock. It mentions another holder only if the store reported one during the call,
// or this client knew of one.
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

// waitContext returns a context that ends with the cause errWaited when the call's wait runs out.
func waitContext(ctx context.Context, o acquireOptions) (context.Context, context.CancelFunc) {
	if !o.bounded || o.wait == 0 {
		return ctx, func() {}
	}
	return context.WithTimeoutCause(ctx, o.wait, errWaited)
}

// Pauses between log messages while the store doesn't answer a call.
const (
	firstReport   = time.Second
	longestReport = time.Minute
)

// reportFailure occasionally logs the failed attempts of a call whose wait is unbounded.
func (a *acquisition) reportFailure(err error) {
	now := a.client.now()
	if a.quiet || now < a.report {
		return
	}
	a.report = now + a.reports.next(firstReport, longestReport)
	a.client.warn("cannot lock yet", "name", a.name, "err", err)
}

// tryNow makes the single attempt of a call that doesn't wait. The call never enters the queue.
func (a *acquisition) tryNow(ctx context.Context) (*hold, error) {
	if err := a.known(); err != nil {
		return nil, err
	}
	_, err := a.tryOnce(ctx)
	return a.tried(err)
}

// tried returns the result of the single attempt of a call that doesn't wait.
func (a *acquisition) tried(err error) (*hold, error) {
	if err == nil {
		return a.h, nil
	}
	a.abandon()
	if err == errHeld && a.joins() {
		err = errAgain // another goroutine of the same party has acquired the lock
	}
	return nil, err
}

// known returns an error if the client knows, without asking the store, that the call can't have
// the lock.
func (a *acquisition) known() error {
	s := a.client.lock()
	defer a.client.unlock()
	var but party
	if v := a.variable(); v == nil {
		but = a.party
	} else if h := v.hold; h != nil && !h.check(s) && h.state == lost && v.hold == h {
		return errNotUnlocked // not for readers, since their v.hold is nil after a loss
	}
	o := s.object(a.kind, a.name)
	switch held := o.excludes(s, a, but); {
	case held && !a.kind.Many():
		return errHeldHere
	case held || a.kind.Many() && o != nil && o.queue != nil:
		return errHeld
	default:
		return nil
	}
}

// joins reports whether the call's party has acquired the lock since the call began.
func (a *acquisition) joins() bool {
	s := a.client.lock()
	defer a.client.unlock()
	return a.reenters(s)
}

// reads reports whether the call wants to read and its party already holds the lock for reading,
// because another of the party's calls was faster.
func (a *acquisition) reads(s *state) bool {
	return a.kind.Shared() && a.variable() == nil &&
		s.object(a.kind, a.name).current(s, a.kind, a.party) != nil
}

// reenters reports whether the call's party has a hold. The call either re-enters that hold or is
// excluded by it.
func (a *acquisition) reenters(s *state) bool {
	if a.variable() != nil || a.kind.Many() {
		return false
	}
	h, err := a.ownHold(s)
	return h != nil || err != nil
}

// tryOnce asks the store for the lock once. If the error is nil, the call has the lock. If it is
// errHeld, remaining is how long the current hold lasts without renewal.
func (a *acquisition) tryOnce(ctx context.Context) (remaining time.Duration, err error) {
	at := a.attempting()
	res, err := at.h.claim.acquireStep(ctx, a.client, a.o.lease, at.req)
	return a.attempted(ctx, at, res, err)
}

// acquireStep asks the store for a claim. The lease determines how long acquireStep waits for the
// answer. An answer that comes later is passed to answeredLate.
func (cl *claim) acquireStep(
	ctx context.Context, c *Client, lease time.Duration, req backend.AcquireRequest,
) (backend.AcquireResult, error) {
	if c.store.Prompt() {
		return steps.Do(ctx, c.store, backend.Session.Acquire, req)
	}
	late := func(res backend.AcquireResult, err error) { cl.answeredLate(c, res, err) }
	return steps.DoWithin(ctx, c.store, steps.About(lease), late, backend.Session.Acquire, req)
}

// answeredLate records a grant that came after the caller had stopped waiting for it. If the claim
// had been given up by then, answeredLate releases it in the background.
func (cl *claim) answeredLate(c *Client, res backend.AcquireResult, err error) {
	if err != nil || !res.Acquired {
		return
	}
	s := c.lock()
	defer c.unlock()
	cl.StrayUntil(c.now())
	if cl.dead && !cl.leaving {
		cl.takeBack(s)
	}
}

// An attempt is a request for the lock, either prepared or under way.
type attempt struct {
	h      *hold
	lease  time.Duration
	sent   instant
	forced uint64 // the number of this client's force-unlocks when the attempt was sent
	late   bool   // an earlier attempt got the lock, with no time left to renew it
	place  time.Duration
	req    backend.AcquireRequest // built with c.mu held, since the claim can change later
}

// attempting prepares an attempt, and records it as sent.
func (a *acquisition) attempting() attempt {
	c := a.client
	s := c.lock()
	defer c.mu.Unlock()
	if a.h == nil {
		a.h = a.newClaim(s)
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
	s.attempts++
	a.attempt, a.sent = s.attempts, at.sent
	at.req = at.request(s, a)
	return at
}

// attempted processes the answer to an attempt. If the lock was granted, but this client has
// force-unlocked any lock since the attempt was sent, attempted asks the store whether the claim
// still exists.
func (a *acquisition) attempted(
	ctx context.Context, at attempt, res backend.AcquireResult, err error,
) (time.Duration, error) {
	remaining, err := a.conclude(at, res, err)
	if err == nil && a.client.forced.Load() != at.forced {
		at.h.claim.confirm(ctx, a.client, (*claim).forced)
	}
	return remaining, err
}

// conclude processes the answer to an attempt. If it returns a nil error, the call has acquired
// a.h, or was handed a.handed.
func (a *acquisition) conclude(
	at attempt, res backend.AcquireResult, err error,
) (remaining time.Duration, _ error) {
	c := a.client
	h, sent := at.h, at.sent
	s := c.lock()
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
		if s.closed && backend.KindOf(err) == backend.Refused {
			err = both(ErrClosed, err) // the client has closed the session
		}
		return 0, err
	case a.handed == h: // the notification of the grant came before this answer
		if res.Acquired && h.check(s) {
			h.claim.Granted(sent, a.o.asked())
		}
		return 0, nil
	case !res.Acquired:
		h.claim.noted = h.claim.noted || (a.kind.Notes() || a.kind.Placed()) && !a.single()
		return res.Remaining, errHeld
	}
	h.claim.Granted(sent, a.o.asked())
	h.claim.noted = a.kind.Placed() // abandoning the claim must also give up the place in line
	if h.claim.more != nil {
		h.claim.more.token = res.Token
	}
	if err := a.unusable(s); err != nil {
		h.claim.Stray() // the store might keep the claim, although no call uses it
		return 0, err
	}
	if a.reads(s) {
		h.claim.supersede(s)
		h.claim.takeBack(s) // with two holds, an unlock wouldn't know which one to release
		return 0, errAgain
	}
	if a.handed != nil {
		spare := h.grant(s, sent) // the call needs only the hold that it was handed
		s.background(func(c *Client) { spare.release(c.ctx, c) })
		a.h = nil
		return 0, nil
	}
	h.claim.noted = false
	if a.o.keeps {
		h.claim.Keep(c.now()+a.o.atLeast, sent)
	}
	a.h = h.grant(s, sent)
	h.claim.caughtUp(s)
	a.dequeue(s)
	return 0, nil
}

// unusable returns an error if the client can't use the claim that the store has just granted.
func (a *acquisition) unusable(s *state) error {
	switch v := a.variable(); {
	case s.closed:
		return ErrClosed
	case !a.h.valid(s.now()):
		return errLate
	case a.kind.Numbered() && a.h.claim.token() == 0:
		return errNoToken
	case a.overtaken(s):
		return errAgain
	case v != nil && v.hold != nil && v.hold.state != released && !a.kind.Shared():
		if a.kind.Placed() {
			v.hold.lose(s, takenBy(a.h.claim.owner)) // the store grants only a free lock
		}
		return errAgain // another call locked the Locker in the meantime, and lost the lock
	default:
		return nil
	}
}

// confirm asks the store whether a claim still exists. If it doesn't, confirm calls the function
// lost. If the store gives no answer, confirm keeps asking in the background.
func (cl *claim) confirm(ctx context.Context, c *Client, lost func(*claim, *state)) {
	if cl.confirmOnce(ctx, c, lost) {
		return
	}
	s := c.lock()
	defer c.unlock()
	s.background(func(c *Client) {
		var tries backoff
		for c.store.Pause(c.ctx, tries.next(firstBackoff, longestPause(c.lease))) &&
			!cl.confirmOnce(c.ctx, c, lost) {
		}
	})
}

// confirmOnce asks the store once whether a claim still exists. If it doesn't, confirmOnce calls
// the function lost. It returns false if the store must be asked again.
func (cl *claim) confirmOnce(ctx context.Context, c *Client, lost func(*claim, *state)) bool {
	c.mu.Lock()
	req := cl.lookRequest()
	c.unlock()
	res, err := steps.Do(ctx, c.store, backend.Session.Look, req)
	s := c.lock()
	defer c.unlock()
	if backend.Kind(cl.kind) != req.Kind {
		return false // the claim was downgraded meanwhile, so the answer is about the write lock
	}
	if isDisplaced(err) {
		res, err = backend.LookResult{}, nil
	}
	if err == nil && res.Count == 0 && !cl.dead {
		lost(cl, s)
	}
	return err == nil || backend.KindOf(err) == backend.Refused || cl.dead || c.now() >= cl.Until()
}

// request returns the request that an attempt sends. If the call can wait, the request also
// registers the call as a waiting writer, or gives it a place in the line of a fair lock.
func (at attempt) request(s *state, a *acquisition) backend.AcquireRequest {
	req := at.h.claim.acquireRequest(at.lease, false)
	switch {
	case a.single():
	case a.kind.Family() == protocol.ReadWrites:
		req.Waited, req.Place = s.now()-a.began, a.placeLease()
	case a.kind.Placed():
		req.Place = at.place
		if at.late {
			req.Waited = s.now() - a.began
		}
	}
	return req
}

// placeLease returns how long the store remembers, after each request, that this call is waiting to
// write. It returns 0 if the call doesn't want to write.
func (a *acquisition) placeLease() time.Duration {
	if !a.kind.Notes() {
		return 0
	}
	return min(longestPlace, max(a.o.lease, shortestPlace))
}

// The store remembers a waiting writer after each request, for the length of the lease that the
// writer wants, but within these limits. The first call in the queue repeats its request three
// times in that period.
const (
	longestPlace  = 3 * time.Second
	shortestPlace = 300 * time.Millisecond
)

// newClaim creates the claim that an acquisition asks for, with a new owner string. It returns the
// hold for that claim.
func (a *acquisition) newClaim(s *state) *hold {
	all := new(struct {
		hold   hold
		claim  claim
		object object
	})
	o := s.object(a.kind, a.name)
	if o == nil {
		o = &all.object
		o.name, o.family = a.name, a.kind.Family()
	}
	cl := &all.claim
	cl.object, cl.kind, cl.owner = o, a.kind, s.nextOwner(a.o.note)
	cl.Want(a.o.lease, !a.o.fixed)
	if backend.Kind(a.kind) != backend.Exclusive {
		cl.more = &more{permit: permit{many: a.o.permits, limit: a.o.limit}, noted: a.o.noted}
	}
	all.hold.rest(a.party, a.kind, cl)
	return &all.hold
}

// abandon gives up the claim that an acquisition asked for but didn't get. The acquisition doesn't
// ask for that claim again.
func (a *acquisition) abandon() {
	s := a.client.lock()
	defer a.client.unlock()
	a.dropClaim(s)
}

func (a *acquisition) dropClaim(s *state) {
	if a.h != nil {
		a.h.claim.dead = true
		if a.h.claim.Strays() || a.h.claim.noted {
			a.h.claim.takeBack(s)
		}
	}
	a.h = nil
}

// reenter increments the count of a hold, in the store and in the client. It first waits until no
// other re-entry or release of the hold is under way.
func (a *acquisition) reenter(ctx context.Context, h *hold) error {
	c := a.client
	a.answered = false // an earlier answer was about the previous holder
	select {
	case h.slot <- struct{}{}:
		defer func() { <-h.slot }()
	case <-ctx.Done():
		return a.giveUp(c.over(ctx))
	case <-c.ctx.Done():
		return ErrClosed
	}
	s := c.lock()
	if !h.check(s) {
		c.unlock()
		return errAgain
	}
	cl, now := h.claim, c.now()
	count := h.count + 1
	lease, asked := cl.Reentry(now, a.o.lease)
	asked = max(asked, a.o.atLeast)
	cl.StepSent(now, asked, c.stored(asked))
	c.unlock()

	res, err := cl.acquireStep(ctx, c, lease, cl.acquireRequest(c.stored(asked), true))

	c.mu.Lock()
	defer c.unlock()
	cl.StepOver()
	if err == nil && res.Acquired && res.Count >= int(count) && h.check(s) {
		h.count, h.offered = count, false
		if !cl.Renewed() && !a.o.fixed {
			cl.Renew()
			h.renewedFrom = count
		}
		if a.o.keeps {
			cl.Keep(c.now()+a.o.atLeast, now)
		}
		h.prolong(s, now, lease, asked)
		return nil
	}
	return h.failReentry(s, asked, res, err)
}

// prolong records that the store granted a re-entry or a partial release. The parameters are the
// time when the request was sent, the lease that renewals ask for from now on, and the lease that
// the request asked for.
func (h *hold) prolong(s *state, sent instant, lease, asked time.Duration) {
	cl := h.claim
	cl.StepGranted(sent, lease, asked)
	s.schedule(&cl.alarm, cl.nextLook(s, sent))
}

// failReentry returns the error of a re-entry that failed. It records what the answer says about
// the hold.
func (h *hold) failReentry(
	s *state, lease time.Duration, res backend.AcquireResult, err error,
) error {
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
	// Either the store says that the hold is gone, or the hold has expired.
	w := gone
	if err != nil && !isDisplaced(err) {
		w = cl.ranOut(s, s.now())
	}
	h.lose(s, w)
	if cl.Strays() {
		cl.takeBack(s)
	}
	return h.overError()
}
