package dlock

import (
	"context"
	"errors"
	"time"

	"github.com/seed951563bd/distsync/dlock/internal/protocol"
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
	spare      bool          // the attempt is spare: see endSpare
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
	a.endSpare(s)
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

// acquireInTime tries until the call has acquired the lock or can't go on. Only here, and where
// requests are sent, does a call wait.
func (a *acquisition) acquireInTime(ctx context.Context) (*hold, error) {
	c := a.client
	for {
		move, h, err := a.nextMove(c.over(ctx))
		switch move {
		case toWait:
			select {
			case <-a.signal:
			case <-ctx.Done():
			}
			continue
		case toTry:
			h, err = a.try(ctx)
		case toReenter:
			h, err = a.enterAgain(ctx, h)
		case toLeave:
			err = a.leave(err)
		}
		switch {
		case err == nil && h != nil:
			return h, nil
		case err == nil, err == errAgain:
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

// nextMove returns what the call does next. The parameter over says why the call must end, or is
// nil. If there is nothing more to do, nextMove returns the call's hold or its error. It returns
// errAgain if it must be called again, and the reason if the call must leave.
func (a *acquisition) nextMove(over error) (move, *hold, error) {
	s := a.client.lock()
	defer a.client.unlock()
	a.trying = false
	if s.closed {
		over = ErrClosed // perhaps only now, and nobody wakes calls that come later
	}
	switch {
	case a.handed != nil:
		h, err := a.take(s, over)
		return toEnd, h, err
	case a.in == nil:
		return a.begin(s, over)
	case over != nil:
		return toLeave, nil, over
	default:
		return a.turn(s), nil, nil
	}
}

// begin returns what a call does that isn't in a queue: re-enter, join or acquire the lock. If the
// call may wait, it first goes to the end of the queue.
func (a *acquisition) begin(s *state, over error) (move, *hold, error) {
	if a.joined { // it left its queue to re-enter the lock
		a.joined = false
		a.dropClaim(s)
	}
	if over != nil {
		return toEnd, nil, a.giveUp(over)
	}
	a.via = ViaStore
	own, err := a.own(s)
	switch {
	case err != nil:
		return toEnd, nil, err
	case own != nil:
		return toReenter, own, nil
	}
	if h := a.share(s); h != nil {
		return toEnd, h, nil
	}
	if !a.single() {
		a.enqueue(s)
		return a.turn(s), nil, nil
	}
	if err := a.known(s); err != nil {
		return toEnd, nil, err
	}
	return toTry, nil, nil
}

// own returns the party's hold on the lock. The call can re-enter that hold or, if it wants to read
// and the hold is for writing, acquire a read lock as well. If there is no such hold, own returns
// nil, and the call must acquire the lock. If the hold in the caller's context has ended, or the
// hold that the call wanted to re-enter was lost, own returns an error.
func (a *acquisition) own(s *state) (*hold, error) {
	if a.variable() != nil || a.kind.Many() {
		return nil, nil
	}
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

// enterAgain re-enters the hold of the call's party, or reads under it.
func (a *acquisition) enterAgain(ctx context.Context, own *hold) (*hold, error) {
	if own.kind != a.kind {
		return a.readUnder(ctx, own)
	}
	a.via = ViaReentry
	if a.kind.Shared() {
		return own, a.reenterShared(ctx, own)
	}
	return own, a.reenter(ctx, own)
}

// try makes an attempt. If it returns neither a hold nor an error, the call keeps waiting. A call
// that waits gives the attempt up if its party acquires the lock by another call.
func (a *acquisition) try(ctx context.Context) (*hold, error) {
	c, given := a.client, ctx
	if !a.single() && (a.variable() == nil || a.kind.Placed()) && !c.store.Prompt() {
		cuttable, cancel := withCancelCause(ctx)
		ctx = cuttable
		cut := func() { cancel(nil) }
		defer cut()
		if a.startsCuttable(cut) {
			return nil, nil
		}
	}
	at := a.attempting()
	res, err := at.h.claim.acquireStep(ctx, c, a.o.lease, at.req)
	remaining, err := a.attempted(ctx, at, res, err)
	if a.single() {
		return a.tried(err)
	}
	return a.triedInTurn(given.Err() != nil, remaining, err)
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
