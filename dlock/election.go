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

// Election elects a leader among all candidates of a name, in any number of processes. The leader
// holds the lock of [Client.FencedLocker] with that name, so each term has a number, and leaders
// are promised what holders are. A leader that was paused past its lease, or whose store forgets,
// finds that out when it next looks. Only a resource that compares numbers can refuse its late
// writes.
//
// An Election is one candidate. Making one is cheap and does no I/O. It is safe for concurrent use,
// and must not be copied.
type Election struct {
	locker Locker
	runs   atomic.Bool
	term   atomic.Pointer[holdContext] // what lead was given; nil while it doesn't run
	join   sync.Once
	joined chan struct{}
}

// Election returns a candidate for the leader of that name. Each call returns a new one, and they
// compete, also within one client. If the store has no fenced locks, every error wraps
// [errors.ErrUnsupported].
func (c *Client) Election(name string) *Election {
	e := &Election{joined: make(chan struct{})}
	e.locker.make(c, backend.Fenced, name)
	return e
}

// Run campaigns until it has won, and then calls lead. The context of lead has the values of ctx.
// It ends when the term does: when the lock is lost (the cause is a [*Loss], see [Hold.Context]),
// after [Election.Resign] ([ErrResigned]), with ctx, and with the client ([ErrClosed]). Its Err
// looks at the clock. [Token] of it is the number of the term, which is larger than all before.
// However the term ends, the lock is renewed as long as possible, and given back only when lead has
// returned: so let it return soon.
//
// If lead returns while it leads, Run gives the lock back and returns lead's result; nil says that
// all is done. If the lock was lost before, or the leader resigned, Run campaigns again, whatever
// lead returned; an error of lead that isn't about its context is logged. The same goes if only the
// release finds that the lock was lost.
//
// When ctx ends, or the client is closed, Run gives the lock back once lead has returned. It
// returns an [*Error] with the context's error and cause, or ErrClosed, and with lead's error if
// that is about something else. If a signal has ended ctx, that is no failure: err != nil &&
// ctx.Err() == nil tells failures apart.
//
// While the store can't be reached, or returns errors, Run goes on trying, and logs that now and
// then. It returns where trying can't help: [ErrConflict] if the name holds something that is not a
// lock, [errors.ErrUnsupported], an empty name, a nil lead, or another Run of this Election. If the
// store hasn't confirmed the release, that error is joined with lead's, as in [Locker.Do]. If lead
// panics, or ends its goroutine, the lock is given back. If lead has re-entered the lock and not
// given that back, it is given back with the lock and logged: a goroutine that lead has started and
// not waited for no longer has the lock.
//
// A candidate is an owner of its own, whatever ctx says; lead re-enters the lock with its own
// context.
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
// closed. Report this as readiness to a load balancer or to Kubernetes, and not that the replica
// leads. A replica that is ready only while it leads stops a rolling deploy: the old leader ends
// only after the new replica is ready.
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

// IsLeader says whether this candidate leads now: lead of [Election.Run] runs, and its context
// isn't over, by the clock. It asks nobody. The answer may be out of date a moment later.
func (e *Election) IsLeader() bool {
	e.mustBeMade()
	term := e.term.Load()
	return term != nil && term.Err() == nil
}

// Resign ends the context of lead, with the cause [ErrResigned], if this candidate leads. When lead
// has returned, Run gives the lock back, and campaigns again when another has the lock, or after a
// third of the client's lease. Resign doesn't wait for that, and does nothing unless lead runs.
func (e *Election) Resign() {
	e.mustBeMade()
	if term := e.term.Load(); term != nil && term.Err() == nil {
		term.line.cancel(ErrResigned)
	}
}

// Leader asks the store who leads, in one round trip. It returns the id of that client (see
// [WithClientID]), or nothing. The leader is the holder of the lock in the store. That includes one
// that has resigned and whose lead hasn't returned; one that was killed, until its lease is over;
// and the holder of a plain lock with that name. Errors are those of [Locker.Holder].
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

// Changes returns the leaders as they come and go, as [Election.Leader] does: first the present
// one, then each new one, and "" for none. It is told of releases if the store can tell. It also
// looks when the lease that it saw ends, and each third of the client's lease: a change is noticed
// that late at most. It may miss a leader of a shorter time, leaders that come and go while the
// body of the loop runs, and that the same client was elected again.
//
// An error of the store is returned once when it begins, and the leader again once the store
// answers. The last error says why the loop ends: the error of ctx, [ErrClosed], or one that no
// waiting helps against, as in [Election.Run]. Watching needs no campaign.
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
