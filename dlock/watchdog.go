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

// An alarm says when a task is due. It is a field of the task, so that setting it allocates
// nothing.
type alarm struct {
	at    instant
	place int // heap index plus 1; 0: not scheduled
	task  task
}

// A task is work to be done when its alarm rings.
type task interface {
	ring(s *state, now instant)
}

// alarms holds the alarms that are set, and implements [container/heap.Interface].
type alarms struct {
	heap  []*alarm
	batch []*claim // claims to renew together after this ring
}

func (a *alarms) Len() int           { return len(a.heap) }
func (a *alarms) Less(i, j int) bool { return a.heap[i].at < a.heap[j].at }
func (a *alarms) Swap(i, j int) {
	a.heap[i], a.heap[j] = a.heap[j], a.heap[i]
	a.heap[i].place, a.heap[j].place = i+1, j+1
}

func (a *alarms) Push(x any) {
	x.(*alarm).place = len(a.heap) + 1
	a.heap = append(a.heap, x.(*alarm))
}

func (a *alarms) Pop() any {
	last := len(a.heap) - 1
	x := a.heap[last]
	a.heap[last] = nil
	a.heap = a.heap[:last]
	x.place = 0
	return x
}

// schedule sets the time of an alarm, and replaces any earlier time.
func (s *state) schedule(a *alarm, at instant) {
	a.at = at
	if a.place > 0 {
		heap.Fix(&s.alarms, a.place-1)
	} else {
		heap.Push(&s.alarms, a)
	}
	s.arm()
}

// hasten makes an alarm ring at the given instant, unless it is already set to ring earlier.
func (s *state) hasten(a *alarm, at instant) {
	if a.place == 0 || at < a.at {
		s.schedule(a, at)
	}
}

// unschedule cancels an alarm.
func (s *state) unschedule(a *alarm) {
	if a.place > 0 {
		heap.Remove(&s.alarms, a.place-1)
	}
}

// arm sets the timer for the first alarm. The timer might ring too early, but never too late.
func (s *state) arm() {
	if len(s.alarms.heap) == 0 || s.closed {
		return
	}
	first := s.alarms.heap[0].at
	switch {
	case s.timer == nil:
		s.timer = time.AfterFunc(first-s.now(), s.rings)
	case s.armed == 0 || first < s.armed:
		s.timer.Reset(first - s.now())
	default:
		return
	}
	s.armed = first
}

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
		s.settle()
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

// nextLook returns the time at which the watchdog next looks at a claim. The parameter sent is the
// time at which the granted request was sent.
func (cl *claim) nextLook(s *state, sent instant) instant {
	switch {
	case cl.GoesOn():
		return cl.nextRenewal(s, sent, 3)
	case cl.kind.Asserted():
		return min(sent+s.lease/3, cl.Until())
	default:
		return cl.Until()
	}
}

// nextRenewal returns the time of the first renewal after the given instant, which is about 1/part
// of the lease later.
func (cl *claim) nextRenewal(s *state, after instant, part time.Duration) instant {
	most := cl.Lease()
	if cl.kind.Asserted() {
		most = s.lease // even if its own lease is longer
	}
	return cl.Next(after, part, most)
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
