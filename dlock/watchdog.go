package dlock

import (
	"container/heap"
	"context"
	"math"
	"sync"
	"time"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/dlock/internal/protocol"
)

// The watchdog is one timer per client, whatever the number of locks. It rings when the first alarm
// is due, and starts the work for it. It does no I/O itself.

// ring runs all tasks that are due.
func (c *Client) ring() {
	s := c.lock()
	defer c.unlock()
	if s.closed {
		return
	}
	s.armed = 0
	now := c.now()
	if due := s.alarms.next(now); now-due >= shortestStall {
		s.stalled = stall{due, now}
	}
	for len(s.alarms.heap) > 0 && s.alarms.heap[0].at <= now {
		heap.Pop(&s.alarms).(*alarm).task.ring(s, now)
		s.settles()
	}
	if batch := s.alarms.batch; len(batch) > 0 {
		s.alarms.batch = nil
		s.renew(batch, now)
	}
	s.arm()
}

// ring forgets the lost holds on a dead claim, ends an expired claim, and collects a claim that is
// due for renewal.
func (cl *claim) ring(s *state, now instant) {
	switch {
	case cl.dead:
		s.forgetAll(cl)
	case now >= cl.Until():
		cl.lose(s, cl.ranOut(s, now))
	case cl.GoesOn() || cl.kind.Asserted():
		s.alarms.batch = append(s.alarms.batch, cl)
		s.schedule(&cl.alarm, cl.nextRenewal(s, now, 6)) // in case there's no answer by then
	default:
		s.schedule(&cl.alarm, cl.Until())
	}
}

// renew starts the renewal of a batch.
func (s *state) renew(batch []*claim, sent instant) {
	reqs := make([]backend.RenewRequest, len(batch))
	leases := make([]time.Duration, len(batch))
	latest := sent
	for i, cl := range batch {
		lease, asked := cl.Renewal(sent)
		leases[i], reqs[i] = lease, cl.renewRequest(s.stored(asked))
		cl.RenewalSent(sent, asked, reqs[i].Lease)
		latest = max(latest, cl.Until())
	}
	s.background(func(c *Client) {
		ctx, cancel := context.WithTimeout(c.ctx, latest-c.now())
		defer cancel()
		var failed failures
		c.store.Renew(ctx, reqs, func(i int, res backend.RenewResult, err error) {
			failed.add(batch[i], err)
			batch[i].renewalAnswered(c, protocol.Kind(reqs[i].Kind), sent, leases[i], res, err)
		})
		c.roundDone(RenewDone{Locks: len(batch), Failed: len(failed.claims), Took: c.now() - sent,
			Err: failed.first})
		failed.report(c, len(batch), sent)
	})
}

// report logs which locks couldn't be renewed by requests that were sent at the given time, and how
// much of their leases remains. It leaves out locks that have ended, or will end before their next
// renewal. It also leaves out locks that have been logged since the requests were sent, because
// many renewals fail at once if a store hangs.
func (f *failures) report(c *Client, of int, sent instant) {
	if len(f.claims) == 0 || c.ctx.Err() != nil {
		return
	}
	s := c.lock()
	defer c.unlock()
	const most = 10
	var names []string
	now, left, n := c.now(), time.Duration(math.MaxInt64), 0
	for _, cl := range f.claims {
		w := s.troubles[cl]
		if cl.dead || w.err == nil || w.said > sent || cl.alarm.at >= cl.Until() {
			continue
		}
		w.said = now
		s.troubles[cl] = w
		n++
		left = min(left, cl.Until()-now)
		if len(names) < most {
			names = append(names, cl.object.name)
		}
	}
	if n > 0 {
		s.warn("renewals failed and will be repeated", "failed", n, "of", of, "names", names,
			"left", left, "err", f.first)
	}
}

// renewalAnswered processes the answer to a renewal.
func (cl *claim) renewalAnswered(
	c *Client, kind protocol.Kind, sent instant, lease time.Duration, res backend.RenewResult,
	err error,
) {
	s := c.lock()
	defer c.unlock()
	now := c.now()
	if err == nil || backend.KindOf(err) != backend.Unknown {
		cl.RenewalOver()
	}
	switch {
	case cl.dead, s.closed:
		// The claim's last release has begun, or the claim was lost. No answer changes that.
	case cl.kind != kind:
		// The claim was downgraded. The request was for the write lock, which this client is
		// releasing.
	case isDisplaced(err):
		cl.foundGone(s)
	case err != nil:
		cl.troubled(s, why{err: err})
		s.schedule(&cl.alarm, min(cl.alarm.at, cl.nextRenewal(s, now, 16)))
	case !res.Held:
		cl.foundGone(s)
	case now >= cl.Until():
		cl.lose(s, cl.ranOut(s, now))
	default:
		delete(s.troubles, cl)
		cl.RenewalGranted(sent, lease)
		s.schedule(&cl.alarm, max(cl.nextLook(s, sent), now))
	}
}

// failures holds the claims that couldn't be renewed, and the first error.
type failures struct {
	mu     sync.Mutex
	claims []*claim
	first  error
}

func (f *failures) add(cl *claim, err error) {
	if err == nil {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.claims = append(f.claims, cl)
	if f.first == nil {
		f.first = err
	}
}
