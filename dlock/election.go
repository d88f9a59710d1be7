package dlock

import (
	"cmp"
	"context"
	"errors"
	"iter"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed951563bd/distsync/backend"
)

// Election lets one of all who campaign under a name lead, in any number of processes. Who leads holds the lock of [Client.FencedLocker] by
// that name, so that each term has a number, and all that is said of locks is said of leaders: one that was paused for
// longer than its lease, or whose store forgets, finds that out when it next looks, and what it wrote meanwhile only a resource that
// compares numbers can refuse.
//
// An Election is one candidate. Making one is cheap and does no I/O. It is safe for concurrent use, and must not be copied.
type Election struct {
	locker Locker
	runs   atomic.Bool
	term   atomic.Pointer[holdContext] // what lead was given; nil while it doesn't run
	join   sync.Once
	joined chan struct{}
}

// Election returns a candidate for the leader of that name. Each call returns a new one, and they compete, also those of one
// client. A store that has no fenced locks answers every call with an error that wraps [errors.ErrUnsupported].
func (c *Client) Election(name string) *Election {
	e := &Election{joined: make(chan struct{})}
	e.locker.make(c, backend.Fenced, name)
	return e
}

// Run campaigns until it has won, and then calls lead. The context of lead has the values of ctx and ends when the term does: when the
// lock is lost (the cause is a [*Loss], see [Hold.Context]), after [Election.Resign] ([ErrResigned]), with ctx, and with the
// client ([ErrClosed]). Its Err looks at the clock. [Token] of it is the number of the term, which is larger than that of any before.
// Whatever ends the term, the lock is renewed as long as it can be, and given up when lead has returned: let it return soon.
//
// Where lead returns while it still leads, Run gives the lock back, and returns what lead did: nil says that all is done. If the
// lock was lost before, or resigned, Run campaigns again whatever lead returned; an error that isn't about its context
// is logged. So it is if only the release finds that the lock was lost.
//
// When ctx ends, or the client is closed, Run gives up what it has, once lead has returned, and
// returns an [*Error] with the context's error and cause, or ErrClosed, and with what lead
// returned, if that was about something else. For a program whose ctx a signal has ended that is no
// failure: err != nil && ctx.Err() == nil tells what is. While the store can't be reached, or
// returns errors, it goes on trying, and logs that now and then; it returns where trying can't
// help: [ErrConflict] if the name holds something that is not a lock, [errors.ErrUnsupported], an
// empty name, lead nil, or another Run of this Election that goes on. What lead returned is joined
// with the error of the release, as in [Locker.Do], if the store hasn't confirmed that. If lead
// panics, or ends its goroutine, the lock is given back. What lead has re-entered, and not given
// back, is given back with it, and that is logged: nobody inside it, such as a goroutine that lead
// has started and not waited for, has the lock any more.
//
// Whatever ctx says about owners and holds, a candidate is a party of its own; with its own context lead re-enters the lock.
func (e *Election) Run(ctx context.Context, lead func(ctx context.Context) error) error {
	l := e.mustBeMade()
	mustBeContext(ctx)
	switch {
	case lead == nil:
		return l.wrap("run", errNoFunction)
	case !e.runs.CompareAndSwap(false, true):
		return l.wrap("run", errRuns)
	}
	defer e.runs.Store(false)
	for {
		won, err := e.campaign(ctx)
		if err != nil {
			return l.wrap("run", err)
		}
		if over, err := e.serve(won, lead); over {
			return err
		}
	}
}

// campaign waits until the lock is had, or there is no point in it any more.
func (e *Election) campaign(ctx context.Context) (stay, error) {
	l := &e.locker
	c := l.client
	var tries backoff
	for {
		won, err := l.enterAs(ctx, caller{party: NewOwner(), alone: true, excluded: e.hasJoined}, acquireOptions{}, nil)
		why := c.over(ctx)
		switch {
		case err == nil:
			e.hasJoined()
			return won, nil
		case why != nil && !says(err, ctx):
			return won, both(why, err) // what the store said came as ctx ended
		case why != nil || isHopeless(err):
			return won, err
		}
		c.warn("cannot campaign yet", "name", l.name, "err", err)
		c.pause(ctx, tries.next(firstReport, longestReport))
	}
}

// Joined returns a channel that is closed once this replica campaigns: [Election.Run] has been
// called, and the store has said that this replica leads, or that another has the lock. It stays
// closed, whatever happens later. This is readiness: report it to a load balancer or to Kubernetes.
// To be the leader isn't. A replica that is ready only while it leads stops a rolling deploy for
// good: the old leader isn't ended before the new replica is ready, which waits for the old leader.
func (e *Election) Joined() <-chan struct{} {
	e.mustBeMade()
	return e.joined
}

func (e *Election) hasJoined() { e.join.Do(func() { close(e.joined) }) }

// says says whether an error tells that the client is closed, or how ctx has ended.
func says(err error, ctx context.Context) bool {
	return errors.Is(err, ErrClosed) || ctx.Err() != nil && errors.Is(err, ctx.Err()) && errors.Is(err, context.Cause(ctx))
}

// serve has lead do what it does while it leads, gives the lock back, and says whether that was all.
func (e *Election) serve(won stay, lead func(ctx context.Context) error) (over bool, err error) {
	l, c := won.locker, won.locker.client
	var term *holdContext
	var said error
	early := false // before the term was over
	won.whole = true
	released := won.run(func(ctx context.Context) error {
		term = ctx.(*holdContext)
		e.term.Store(term)
		defer e.term.Store(nil)
		if term.Err() == nil {
			said = lead(ctx)
			early = term.Err() == nil
		}
		return nil
	})
	wasLost := errors.Is(released, ErrLost)
	if early && !wasLost {
		return true, both(said, released)
	}
	if repeats(said, term) {
		said = nil
	}
	if wasLost {
		released = nil
	}
	if why := c.over(won.ctx); why != nil {
		return true, both(l.wrap("run", why), both(said, released))
	}
	if said != nil {
		c.warn("lead returned an error, and the term was over", "name", l.name, "err", said)
	}
	if released != nil {
		c.warn("unlock", "name", l.name, "err", released)
	}
	if context.Cause(term) == ErrResigned {
		e.sitOut(&won)
	}
	return false, nil
}

// repeats says whether an error only says that the term was over.
func repeats(said error, term *holdContext) bool {
	return errors.Is(said, term.Err()) || errors.Is(said, context.Cause(term)) || errors.Is(said, ErrLost)
}

// sitOut waits until another has what was given back, or for a third of a lease.
func (e *Election) sitOut(before *stay) {
	l, c := before.locker, before.locker.client
	ctx, cancel := context.WithTimeout(before.ctx, c.lease/3)
	defer cancel()
	req := backend.LookRequest{Kind: l.kind, Name: l.name, Owner: before.hold.claim.owner} // who may have it still, in the store
	var looks backoff
	for c.pause(ctx, looks.next(firstPoll, longestPoll)) {
		if res, err := step(ctx, c, backend.Session.Look, req); err == nil && res.Held && res.Count == 0 {
			return
		}
	}
}

// IsLeader says whether lead of [Election.Run] leads now: it runs, and its context isn't over, by the clock. It asks nobody, and what it says may be over
// a moment later.
func (e *Election) IsLeader() bool {
	e.mustBeMade()
	term := e.term.Load()
	return term != nil && term.Err() == nil
}

// Resign ends the context of lead, with the cause [ErrResigned], if it leads. When lead has returned, Run gives the lock back, and doesn't campaign until
// another has the lock, or a third of the client's lease is over. It doesn't wait for that, and does nothing if lead doesn't run.
func (e *Election) Resign() {
	e.mustBeMade()
	if term := e.term.Load(); term != nil && term.Err() == nil {
		term.line.cancel(ErrResigned)
	}
}

// Leader asks the store who leads, in one round trip, and returns the id of that client, see [WithClientID], or nothing if nobody leads. It is whoever has the
// lock, as the store knows: also one who has resigned, whose lead hasn't returned; who was killed, until its lease is over; and who has a plain
// lock by that name. Errors are those of [Locker.Holder].
func (e *Election) Leader(ctx context.Context) (string, error) {
	l := e.mustBeMade()
	holders, err := l.holders(ctx)
	return leaderOf(holders), l.wrap("leader", err)
}

func leaderOf(holders []Holder) string {
	if len(holders) == 0 {
		return ""
	}
	return cmp.Or(holders[0].Client, holders[0].ID)
}

// Changes returns the leaders as they come and go, by what [Election.Leader] says: first who leads now, then each who is another, and nothing for nobody. It is told
// of releases where the store can tell, looks when what it has seen ends, and otherwise each third of the client's lease: so late a change is noticed at the most. Who
// leads for a shorter time than that may not be seen, and neither are those who come and go while the body of the loop runs, or that a client was elected again.
//
// An error of the store is returned once, when it begins; once the store answers again, so is who leads. The last it returns is why it ends: the error of ctx,
// [ErrClosed], or one that no waiting helps against, as in [Election.Run]. To watch isn't to campaign; who isn't a candidate may.
func (e *Election) Changes(ctx context.Context) iter.Seq2[string, error] {
	l := e.mustBeMade()
	mustBeContext(ctx)
	return func(yield func(string, error) bool) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		w := &watch{locker: l}
		leader, err := w.look(ctx)
		for yield(leader, l.wrap("changes", err)) && !w.endsWith(ctx, err) {
			if w.woken == nil {
				w.woken = l.Released(ctx)
			}
			leader, err = w.next(ctx, leader, err)
		}
	}
}

// A watch looks who leads.
type watch struct {
	locker   *Locker
	woken    <-chan struct{} // the lock was released
	pause    time.Duration   // until the next look
	looks    backoff         // while nobody leads
	failures backoff
}

// endsWith says whether no look can follow an error.
func (w *watch) endsWith(ctx context.Context, err error) bool {
	return err != nil && (isHopeless(err) || w.locker.client.over(ctx) != nil)
}

// next waits until there is something else to say.
func (w *watch) next(ctx context.Context, last string, failed error) (string, error) {
	for {
		w.wait(ctx)
		leader, err := w.look(ctx)
		switch {
		case err == nil && (failed != nil || leader != last), err != nil && failed == nil, w.endsWith(ctx, err):
			return leader, err
		}
	}
}

// look asks who leads, and decides when to ask again.
func (w *watch) look(ctx context.Context) (string, error) {
	third := longestPause(w.locker.client.lease)
	bounded, cancel := context.WithTimeout(ctx, third)
	defer cancel()
	holders, err := w.locker.holders(bounded)
	if err != nil {
		if bounded.Err() != nil && ctx.Err() == nil && !errors.Is(err, ErrClosed) {
			err = unavailable(errUnanswered)
		}
		w.pause = w.failures.next(firstBackoff, third)
		return "", err
	}
	w.failures.reset()
	if len(holders) == 0 || holders[0].Remaining == 0 {
		w.pause = w.looks.next(firstPoll, third)
		return leaderOf(holders), nil
	}
	w.looks.reset()
	w.pause = third
	if left := holders[0].Remaining; left > 0 {
		w.pause = min(third, left+time.Millisecond)
	}
	return leaderOf(holders), nil
}

// wait waits until the next look, which a release brings on. After that somebody else will lead soon.
func (w *watch) wait(ctx context.Context) {
	c := w.locker.client
	if !c.pause(ctx, shortestWait) {
		return // there may be very many releases
	}
	timer := time.NewTimer(w.pause - shortestWait)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-w.woken:
		w.looks.reset()
	case <-ctx.Done():
	case <-c.ctx.Done():
	}
}

func (e *Election) mustBeMade() *Locker {
	if e == nil || e.locker.client == nil {
		panic("dlock: an Election that is nil, or wasn't made by a Client")
	}
	return &e.locker
}

var errRuns = errors.New("another Run of this Election goes on")
