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
	"github.com/seed951563bd/distsync/dlock/internal/protocol"
	"github.com/seed951563bd/distsync/dlock/internal/steps"
)

// Election elects a leader among all candidates with the same name, in any number of processes. The
// leader holds the lock of [Client.FencedLocker] with that name. So each term has a number, and the
// guarantees for holders apply to leaders. A leader that was paused past its lease, or whose store
// loses its data, finds that out when it next checks. Only a resource that compares numbers can
// refuse its late writes.
//
// An Election is one candidate. Making one is cheap and does no I/O. It is safe for concurrent use,
// and must not be copied.
type Election struct {
	locker Locker
	runs   atomic.Bool
	term   atomic.Pointer[holdContext] // the context of lead while it runs, and nil otherwise
	join   sync.Once
	joined chan struct{}
}

// Election returns a candidate in the election with the given name. Each call returns a new
// candidate. Candidates compete even within one client. If the store doesn't support fenced locks,
// every error wraps [errors.ErrUnsupported].
func (c *Client) Election(name string) *Election {
	e := &Election{joined: make(chan struct{})}
	e.locker.make(c, protocol.Kind(backend.Fenced), name)
	return e
}

// Run campaigns until it has won, and then calls lead. The context of lead carries ctx's values.
// It ends with the term: when the lock is lost (the cause is a [*Loss], see [Hold.Context]), after
// [Election.Resign] (the cause is [ErrResigned]), when ctx ends, or when the client is closed
// ([ErrClosed]). The context's Err checks the clock. Its [Token] is the number of the term, which
// is larger than all earlier ones. However the term ends, the lock is renewed for as long as
// possible, and is released only when lead has returned. So lead should return soon after the end
// of its context.
//
// If lead returns before its term ends, Run releases the lock and returns lead's result, which may
// be nil. If the lock was lost before lead returned, or the leader resigned, Run campaigns again,
// whatever lead returned. It logs lead's error, unless that error only says that the context has
// ended. Run also campaigns again if the loss is found only at the release.
//
// When ctx ends, or the client is closed, Run releases the lock once lead has returned. It returns
// an [*Error] with the context's error and cause, or ErrClosed, and with lead's error if that says
// something else. A program whose ctx is ended by a signal hasn't failed, so check for failures
// with err != nil && ctx.Err() == nil.
//
// While the store can't be reached, or returns errors, Run keeps trying, and logs that now and
// then. It returns an error if trying again can't help, for example [ErrConflict] if the name
// belongs to data that isn't a lock, or [errors.ErrUnsupported]. It also returns an error at once
// if the name is empty, lead is nil, or another Run of this Election is in progress. If the store
// hasn't confirmed the release, the error of the release is joined with lead's, as in [Locker.Do].
// If lead panics, or ends its goroutine, the lock is released. If lead has re-entered the lock and
// not unlocked it again, Run also releases that re-entry, and logs it. A goroutine that lead
// started, and that continues after lead has returned, no longer holds the lock.
//
// Each candidate is a separate owner, even if ctx names an owner. lead can re-enter the lock with
// the context that it was given.
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

// campaign waits until the candidate has acquired the lock or must give up.
func (e *Election) campaign(ctx context.Context) (stay, error) {
	l := &e.locker
	c := l.client
	var tries backoff
	for {
		who := caller{party: NewOwner(), alone: true, excluded: e.hasJoined}
		won, err := l.enterAs(ctx, who, acquireOptions{}, nil)
		why := c.over(ctx)
		switch {
		case err == nil:
			e.hasJoined()
			return won, nil
		case says(err, ctx):
			return won, err
		case why != nil || isHopeless(err):
			return won, both(why, err) // the store might have answered just as ctx ended
		}
		c.warn("cannot campaign yet", "name", l.name, "err", err)
		c.store.Pause(ctx, tries.next(firstReport, longestReport))
	}
}

// Joined returns a channel that is closed once this replica takes part in the election:
// [Election.Run] was called, and the store has said that this replica leads, or that the lock is
// held. The channel stays closed even after Run has returned. Use it, rather than leadership, to
// report readiness to a load balancer or to Kubernetes. A replica that is ready only while it leads
// blocks a rolling deploy, since the old leader ends only after the new replica is ready.
func (e *Election) Joined() <-chan struct{} {
	e.mustBeMade()
	return e.joined
}

func (e *Election) hasJoined() { e.join.Do(func() { close(e.joined) }) }

// says reports whether err already says why the call ended. It does if it wraps ErrClosed, or both
// the error and the cause of ctx.
func says(err error, ctx context.Context) bool {
	return errors.Is(err, ErrClosed) ||
		ctx.Err() != nil && errors.Is(err, ctx.Err()) && errors.Is(err, context.Cause(ctx))
}

// serve calls lead, and then releases the lock. over reports whether Run must return.
func (e *Election) serve(won stay, lead func(ctx context.Context) error) (over bool, err error) {
	l, c := won.locker, won.locker.client
	var term *holdContext
	var said error
	early := false // lead returned before the term ended
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

// repeats reports whether the error that lead returned says only that its term has ended.
func repeats(said error, term *holdContext) bool {
	return errors.Is(said, term.Err()) || errors.Is(said, context.Cause(term)) ||
		errors.Is(said, ErrLost)
}

// sitOut waits until someone else holds the lock that this candidate released, but for at most a
// third of a lease.
func (e *Election) sitOut(before *stay) {
	l, c := before.locker, before.locker.client
	ctx, cancel := context.WithTimeout(before.ctx, c.lease/3)
	defer cancel()
	// Ask for the count of this candidate's own hold, which the store might still have. If the lock
	// is held and that count is 0, someone else holds the lock.
	req := backend.LookRequest{
		Kind: backend.Kind(l.kind), Name: l.name, Owner: before.hold.claim.owner,
	}
	var looks backoff
	for c.store.Pause(ctx, looks.next(firstPoll, longestPoll)) {
		res, err := steps.Do(ctx, c.store, backend.Session.Look, req)
		if err == nil && res.Held && res.Count == 0 {
			return
		}
	}
}

// IsLeader reports whether this candidate leads now, that is, whether the lead function of
// [Election.Run] is running and its context hasn't ended. IsLeader also checks the clock, but
// doesn't ask the store. The answer might be out of date a moment later.
func (e *Election) IsLeader() bool {
	e.mustBeMade()
	term := e.term.Load()
	return term != nil && term.Err() == nil
}

// Resign ends the context of lead, with the cause [ErrResigned], if this candidate leads. When lead
// has returned, Run releases the lock. It campaigns again when someone else holds the lock, or
// after a third of the client's lease. Resign doesn't wait for that. It does nothing unless lead is
// running.
func (e *Election) Resign() {
	e.mustBeMade()
	if term := e.term.Load(); term != nil && term.Err() == nil {
		term.line.cancel(ErrResigned)
	}
}

// Leader asks the store who leads, in one round trip. It returns the id of the leading client (see
// [WithClientID]), or "" if there is none. The leader is the holder of the lock in the store. That
// includes a leader that has resigned but whose lead hasn't returned, a leader that was killed but
// whose lease hasn't run out, and the holder of a plain lock with that name. Leader returns the
// same errors as [Locker.Holder].
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

// Changes returns an iterator over the leaders as they come and go. It yields what
// [Election.Leader] returns, beginning with the current leader, then each new one, and "" when
// there is none. The store notifies Changes of releases if it can. Changes also asks the store at
// the end of the leader's lease, and each time a third of the client's lease has passed. So it
// notices a change within a third of the client's lease. It can miss leaders that lead for a
// shorter time, leaders that come and go while the body of the loop runs, and the re-election of
// the same client.
//
// While the store returns errors, Changes yields only the first of them. When the store answers
// again, Changes yields the leader again. The last error says why the loop ends. It is the error of
// ctx, [ErrClosed], or an error that retrying can't fix, as in [Election.Run]. A program can watch
// an election without taking part in it.
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

// A watch repeatedly asks who leads.
type watch struct {
	locker   *Locker
	woken    <-chan struct{} // receives a value when the lock is released
	pause    time.Duration   // until the next look
	looks    backoff         // pauses while there is no leader
	failures backoff
}

// endsWith reports whether an error ends the watch.
func (w *watch) endsWith(ctx context.Context, err error) bool {
	return err != nil && (isHopeless(err) || w.locker.client.over(ctx) != nil)
}

// next waits until there is a change to report, and returns it.
func (w *watch) next(ctx context.Context, last string, failed error) (string, error) {
	for {
		w.wait(ctx)
		leader, err := w.look(ctx)
		switch {
		case err == nil && (failed != nil || leader != last), err != nil && failed == nil,
			w.endsWith(ctx, err):
			return leader, err
		}
	}
}

// look asks the store who leads, and sets the pause until the next look.
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

// wait waits until the next look. A release shortens the wait, since there will soon be another
// leader.
func (w *watch) wait(ctx context.Context) {
	c := w.locker.client
	// This pause limits the number of looks if there are many releases.
	if !c.store.Pause(ctx, shortestWait) {
		return
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
