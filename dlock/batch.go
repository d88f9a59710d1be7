package dlock

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/dlock/internal/steps"
)

// If the store supports batches, a client sends its attempts at several locks in one batch. It also
// sends the releases that end several holds in one batch. The work before and after these requests
// is done for each lock separately.

// A joint is one of several calls that make their attempts together, in one batch.
type joint struct {
	part *part
	a    *acquisition
	ctx  context.Context // for traces
	at   attempt
	h    *hold
	over bool // over and told are as in acquisition.cleanUp
	told bool
}

// attemptTogether makes one attempt at each of several locks of this client.
func (r *round) attemptTogether(c *Client, parts []*part) {
	all := make([]joint, len(parts))
	defer func() {
		for i := range all {
			if j := &all[i]; j.a != nil {
				j.a.cleanUp(j.ctx, j.h, j.over, j.told)
			}
		}
	}()
	var alone sync.WaitGroup
	defer alone.Wait()
	var sent []*joint
	for i, p := range parts {
		p.err = errPanicked // stays if something panics
		j := &all[i]
		j.part, j.a, j.ctx = p, p.single(r), r
		j.ctx = j.a.begins(r)
		if j.a.mustAsk(j.ctx) {
			sent = append(sent, j)
			continue
		}
		alone.Go(func() {
			h, err := j.a.acquireInTime(j.ctx)
			r.heard(err == nil)
			j.finish(h, err)
		})
	}
	r.attemptBatch(c, sent)
}

// mustAsk reports whether a call must ask the store. It returns false if the call has ended, if it
// can re-enter or join a hold, or if the client knows that someone else holds the lock.
func (a *acquisition) mustAsk(ctx context.Context) bool {
	if a.client.over(ctx) != nil {
		return false
	}
	s := a.client.lock()
	defer a.client.unlock()
	own, err := a.own(s)
	return own == nil && err == nil && a.joinable(s) == nil && a.known(s) == nil
}

// attemptBatch sends attempts in one batch, and ends each call with the result of its attempt.
func (r *round) attemptBatch(c *Client, sent []*joint) {
	reqs := make([]backend.AcquireRequest, len(sent))
	for i, j := range sent {
		j.at = j.a.attempting()
		reqs[i] = j.at.req
	}
	heard := func(res backend.AcquireResult, err error) { r.heard(err == nil && res.Acquired) }
	late := func(i int, res backend.AcquireResult, err error) {
		sent[i].at.h.claim.answeredLate(c, res, err)
	}
	reader := steps.Reader[backend.AcquireResult]{
		Context: func(i int) context.Context { return sent[i].ctx }, Heard: heard, Late: late,
	}
	for i, got := range steps.Together(r, c.store, backend.Batcher.AcquireBatch, reqs, reader) {
		j := sent[i]
		_, err := j.a.attempted(j.ctx, j.at, got.Res, got.Err)
		h, err := j.a.tried(err)
		switch {
		case err == nil:
		case err == errAgain:
			h, err = j.a.acquireInTime(j.ctx)
		case j.a.retries(j.ctx, err):
			j.a.fail(j.ctx.Err() != nil, err)
			err = j.a.giveUp(c.over(j.ctx))
		default:
			err = final(err)
		}
		j.finish(h, err)
	}
}

// finish records the result of a call, and reports it to the traces.
func (j *joint) finish(h *hold, err error) {
	j.h, j.over = h, true
	j.a.ends(j.ctx, h, err)
	j.told = true
	j.part.h, j.part.err = h, err
}

// A leaver is a hold that is released in a batch.
type leaver struct {
	part  *part
	d     departure
	since instant
	over  bool
}

// releaseBatch releases holds, in one batch where possible. Holds that can't be in the batch are
// released by separate requests.
func (c *Client) releaseBatch(ctx context.Context, parts []*part, quiet bool) {
	bounded, cancel := longest(ctx, parts).releaseContext(ctx, c, true)
	defer cancel()
	all, others := c.leaveTogether(parts)
	if len(all) == 0 {
		c.releaseApart(ctx, others, quiet)
		return
	}
	if len(others) > 0 { // concurrently with the batch, since either might hang
		var apart sync.WaitGroup
		defer apart.Wait()
		given := ctx
		apart.Go(func() { c.releaseApart(given, others, quiet) })
	}
	ctx = bounded
	reqs := make([]backend.ReleaseRequest, len(all))
	for i, l := range all {
		defer l.cleanUp(ctx, c, quiet)
		reqs[i] = l.part.h.claim.lastRelease(&c.settings, l.d.lease, l.d.ask)
	}
	var slow sync.WaitGroup
	defer slow.Wait()
	reader := steps.Reader[backend.ReleaseResult]{
		Context: func(int) context.Context { return ctx },
	}
	for i, got := range steps.Together(ctx, c.store, backend.Batcher.ReleaseBatch, reqs, reader) {
		l := all[i]
		finish := func() {
			err := l.d.carryOut(ctx, c, func() (backend.ReleaseResult, error) {
				return got.Res, got.Err
			})
			l.over = true
			l.part.err = l.report(ctx, c, err, quiet)
		}
		if got.Err == nil && (got.Res.Outcome == backend.Freed || got.Res.Outcome == backend.Kept) {
			finish()
		} else {
			slow.Go(finish) // finish asks the store again
		}
	}
}

// cleanUp runs after a batch, and gives back the slot of a hold in it. If a panic has cut the batch
// short, cleanUp treats the hold's release as unanswered.
func (l *leaver) cleanUp(ctx context.Context, c *Client, quiet bool) {
	h := l.part.h
	if h.slot != nil {
		defer func() { <-h.slot }()
	}
	if !l.over { // something panicked
		l.d.released(c, backend.ReleaseResult{}, errUnanswered)
		l.report(ctx, c, errPanicked, quiet)
	}
}

// longest returns the hold that determines how long the release of several holds may take. That is
// the hold that ctx comes from, if there is one, and otherwise the hold that stays valid longest.
func longest(ctx context.Context, parts []*part) *hold {
	h := parts[0].h
	for _, p := range parts {
		if p.h.within(ctx) {
			return p.h
		}
		if p.h.claim.Until() > h.claim.Until() {
			h = p.h
		}
	}
	return h
}

// leaveTogether begins the releases that can be sent in one batch, if there are at least two. It
// returns these releases, and the parts whose holds must be released separately.
func (c *Client) leaveTogether(parts []*part) (all []*leaver, others []*part) {
	s := c.lock()
	defer c.unlock()
	now := c.now()
	for _, p := range parts {
		if p.h.goesWithOthers(now) {
			all = append(all, &leaver{part: p, since: p.h.since()})
		} else {
			others = append(others, p)
		}
	}
	if len(all) == 1 {
		if p := all[0].part; p.h.slot != nil {
			<-p.h.slot
		}
		return nil, parts
	}
	for _, l := range all {
		l.part.err = errPanicked // stays if something panics
		l.d = l.part.h.depart(s, l.part.h.releases(s), now)
	}
	return all, others
}

// goesWithOthers reports whether a hold can be released in a batch. It can if its next release ends
// it, with nothing else to be done first. If the result is true, goesWithOthers has also acquired
// the hold's slot, unless that is nil.
func (h *hold) goesWithOthers(now instant) bool {
	if h.kind.Shared() || !h.valid(now) || h.count != 1 || h.inner() != nil {
		return false
	}
	select {
	case h.slot <- struct{}{}:
		return true
	default:
		return h.slot == nil
	}
}

// report reports the outcome of a hold's release to the traces, and returns its error.
func (l *leaver) report(ctx context.Context, c *Client, err error, quiet bool) error {
	h := l.part.h
	err = h.explained(c, err)
	debug := !quiet && c.log.logger.Enabled(ctx, slog.LevelDebug)
	if len(c.traces) == 0 && !debug {
		if !quiet {
			c.counts.released.Add(1)
		}
		return err
	}
	e := ReleaseDone{Name: h.claim.object.name, Kind: backend.Kind(h.kind), HolderID: h.claim.owner,
		Held: l.d.began - l.since, Took: c.now() - l.d.began, Err: err}
	switch tell := h.setOutcome(c, &e, false); {
	case !quiet:
		return c.gaveUp(ctx, e, tell, debug)
	case tell && e.Outcome != UnlockStillHeld && e.Outcome != UnlockAlreadyLost:
		c.traces.releaseDone(ctx, e)
	}
	return err
}

// releaseApart releases each hold in a separate request.
func (c *Client) releaseApart(ctx context.Context, parts []*part, quiet bool) {
	var tasks []func()
	for _, p := range parts {
		p.err = errPanicked // stays if it panics
		tasks = append(tasks, func() {
			if quiet {
				p.err = p.h.release(ctx, c)
			} else {
				p.err = p.h.giveUp(ctx, c)
			}
		})
	}
	if !c.store.Prompt() {
		atOnce(tasks)
		return
	}
	for _, task := range slices.Backward(tasks) {
		defer task() // even if a Trace panics
	}
}

// heard records an answer. The first answer and the first refusal each shorten the time that the
// round waits for the other answers.
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

// single returns an acquisition that makes a single attempt at the part.
func (p *part) single(ctx context.Context) *acquisition {
	o := p.o
	o.bounded, o.wait = true, 0
	a := p.newCall(ctx, o)
	a.answered = p.refused
	return a
}

// bound makes the round end after r.patience.
func (r *round) bound() {
	r.end = time.Now().Add(r.patience)
	r.timer = time.AfterFunc(r.patience, func() { r.cut(errWaited) })
}

// newCall returns an acquisition for this part alone.
func (p *part) newCall(ctx context.Context, o acquireOptions) *acquisition {
	a := p.locker.newCall(ctx, p.who, o)
	if a.within == nil {
		a.within = p.within
	}
	return a
}

// atOnce runs all tasks concurrently, and returns when they have ended.
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
