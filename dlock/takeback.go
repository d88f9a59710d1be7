package dlock

import (
	"context"
	"time"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/dlock/internal/steps"
)

// A takeBack releases a claim that no party uses any longer. It repeats the release until the store
// has answered. If another request for the claim is unanswered, the store might carry it out later,
// which would bring the claim back. So the takeBack goes on until the lease of the latest such
// request would have expired, and then makes one more release. If the store doesn't answer that
// one, the takeBack repeats it for a minute, or for a lease if that is longer, and then ends. If a
// request is carried out even later, nobody can acquire the lock for the length of a lease, but the
// lock never has two holders.
type takeBack struct {
	alarm    alarm
	claim    *claim
	tries    backoff
	patience backoff   // timeout of the next attempt
	next     *takeBack // next in takeBacks
}

// takeBacks holds the take-backs that are due. During an outage they accumulate, and sending all of
// them at once could overload the store afterwards. So they take turns, latest first. A take-back
// that was tried before comes last, since it probably concerns a node that hangs.
type takeBacks struct {
	first, last *takeBack
	running     int
	failing     backoff // backoff since the last answered take-back
	resume      instant // no take-back begins before this time
	alarm       alarm
}

const (
	mostTakeBacks       = 64          // the maximum number of take-backs under way
	firstPatience       = time.Second // the first timeout; later ones double
	longestIntermission = time.Second // the longest pause during an outage
)

// takeBack starts releasing a claim in the background. The client must not ask for this claim
// again.
func (cl *claim) takeBack(s *state) {
	if cl.back || s.closed {
		return
	}
	cl.back = true
	t := &takeBack{claim: cl}
	t.alarm.task = t
	s.schedule(&t.alarm, s.now())
}

// ring puts the takeBack in line for its turn.
func (t *takeBack) ring(s *state, now instant) {
	all := &s.takeBacks
	switch {
	case all.first == nil:
		all.first, all.last = t, t
	case t.tries == backoff{}:
		all.first, t.next = t, all.first
	default:
		all.last.next, all.last = t, t
	}
	all.ring(s, now)
}

// ring starts the take-backs that are due, up to mostTakeBacks at a time.
func (all *takeBacks) ring(s *state, now instant) {
	for all.first != nil && all.running < mostTakeBacks {
		if now < all.resume {
			all.alarm.task = all
			s.schedule(&all.alarm, all.resume)
			return
		}
		t := all.first
		all.first, t.next = t.next, nil
		all.running++
		s.background(func(c *Client) { t.releaseAgain(c) })
	}
}

// releaseAgain makes one attempt of a takeBack.
func (t *takeBack) releaseAgain(c *Client) {
	ctx, cancel := context.WithTimeout(c.ctx, t.patience.next(firstPatience, longestRelease))
	defer cancel()
	sent := c.now()
	c.mu.Lock()
	lease := c.stored(t.claim.Lease())
	req := t.claim.lastRelease(&c.settings, lease, false) // with the latest Keep
	c.mu.Unlock()
	res, err := steps.Do(ctx, c.store, backend.Session.Release, req)

	s := c.lock()
	defer c.unlock()
	if s.closed {
		return
	}
	all, now := &s.takeBacks, c.now()
	all.running--
	answered := err == nil || backend.KindOf(err) == backend.Refused
	switch {
	case answered:
		all.failing.reset()
		all.resume = 0
	case now >= all.resume:
		all.resume = now + all.failing.next(firstBackoff, longestIntermission)
	}
	t.tookBack(s, sent, res, err, answered)
	all.ring(s, now)
}

// tookBack processes the answer to an attempt, and schedules the next one if it is needed. sent is
// the time when the attempt was sent.
func (t *takeBack) tookBack(
	s *state, sent instant, res backend.ReleaseResult, err error, answered bool,
) {
	cl, now := t.claim, s.now()
	switch {
	case err == nil && res.Outcome == backend.Left:
		s.schedule(&t.alarm, now)
		return
	case err == nil && res.Outcome == backend.Freed:
		cl.mark(s, markFree)
	case err == nil && res.Outcome == backend.Kept:
		cl.staysTaken(s)
	}
	if cl.TakenBack(sent, answered) {
		cl.back = false
		return
	}
	next := now + t.tries.next(firstBackoff, longestPause(s.stored(cl.Lease())))
	if sent < cl.Horizon() {
		next = min(next, max(cl.Horizon(), now))
	}
	s.schedule(&t.alarm, next)
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
