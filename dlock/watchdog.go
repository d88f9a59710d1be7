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
	ring(c *Client, now instant)
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

// scheduleLocked sets the time of an alarm, and replaces any earlier time.
func (c *Client) scheduleLocked(a *alarm, at instant) {
	a.at = at
	if a.place > 0 {
		heap.Fix(&c.alarms, a.place-1)
	} else {
		heap.Push(&c.alarms, a)
	}
	c.armLocked()
}

// hastenLocked makes an alarm ring at the instant at, unless it is already set to ring earlier.
func (c *Client) hastenLocked(a *alarm, at instant) {
	if a.place == 0 || at < a.at {
		c.scheduleLocked(a, at)
	}
}

// unscheduleLocked cancels an alarm.
func (c *Client) unscheduleLocked(a *alarm) {
	if a.place > 0 {
		heap.Remove(&c.alarms, a.place-1)
	}
}

// armLocked sets the timer for the first alarm. It may ring too early, never too late.
func (c *Client) armLocked() {
	if len(c.alarms.heap) == 0 || c.closed {
		return
	}
	first := c.alarms.heap[0].at
	switch {
	case c.timer == nil:
		c.timer = time.AfterFunc(first-c.now(), c.rings)
	case c.armed == 0 || first < c.armed:
		c.timer.Reset(first - c.now())
	default:
		return
	}
	c.armed = first
}

// ring runs all tasks that are due.
func (c *Client) ring() {
	c.mu.Lock()
	defer c.unlock()
	if c.closed {
		return
	}
	c.armed = 0
	now := c.now()
	if due := c.alarms.nextLocked(now); now-due >= shortestStall {
		c.stalled = stall{due, now}
	}
	for len(c.alarms.heap) > 0 && c.alarms.heap[0].at <= now {
		heap.Pop(&c.alarms).(*alarm).task.ring(c, now)
	}
	if batch := c.alarms.batch; len(batch) > 0 {
		c.alarms.batch = nil
		c.renewLocked(batch, now)
	}
	c.armLocked()
}

// ring forgets the lost holds on a dead claim, ends an expired claim, and collects a claim that is
// due for renewal.
func (cl *claim) ring(c *Client, now instant) {
	switch {
	case cl.dead:
		c.forgetAllLocked(cl)
	case now >= cl.Until():
		c.loseClaimLocked(cl, c.ranOutLocked(cl, now))
	case cl.GoesOn() || cl.kind.Asserted():
		c.alarms.batch = append(c.alarms.batch, cl)
		c.scheduleLocked(&cl.alarm, c.next(cl, now, 6)) // in case there's no answer by then
	default:
		c.scheduleLocked(&cl.alarm, cl.Until())
	}
}

// nextLook returns when the watchdog next looks at a claim. sent is when the request that the store
// granted was sent.
func (c *Client) nextLook(cl *claim, sent instant) instant {
	switch {
	case cl.GoesOn():
		return c.next(cl, sent, 3)
	case cl.kind.Asserted():
		return min(sent+c.lease/3, cl.Until())
	default:
		return cl.Until()
	}
}

// next returns the time of the next renewal, about lease/part later than after. With part 3, that
// is a third of a lease.
func (c *Client) next(cl *claim, after instant, part time.Duration) instant {
	most := cl.Lease()
	if cl.kind.Asserted() {
		most = c.lease // even if its own lease is longer
	}
	return cl.Next(after, part, most)
}

// renewLocked starts the renewal of a batch.
func (c *Client) renewLocked(batch []*claim, sent instant) {
	reqs := make([]backend.RenewRequest, len(batch))
	leases := make([]time.Duration, len(batch))
	latest := sent
	for i, cl := range batch {
		lease, asked := cl.Renewal(sent)
		leases[i], reqs[i] = lease, cl.renewRequest(c.stored(asked))
		cl.RenewalSent(sent, asked, reqs[i].Lease)
		latest = max(latest, cl.Until())
	}
	c.backgroundLocked(func() {
		ctx, cancel := context.WithTimeout(c.ctx, latest-c.now())
		defer cancel()
		var failed failures
		c.store.Renew(ctx, reqs, func(i int, res backend.RenewResult, err error) {
			failed.add(batch[i], err)
			c.renewed(batch[i], protocol.Kind(reqs[i].Kind), sent, leases[i], res, err)
		})
		c.roundDone(RenewDone{Locks: len(batch), Failed: len(failed.claims), Took: c.now() - sent,
			Err: failed.first})
		c.reportRenewals(&failed, len(batch), sent)
	})
}

// reportRenewals logs which locks couldn't be renewed, and how much of their leases remains. sent
// is when the requests were sent. The log leaves out locks that have ended or will end before their
// next renewal. It also leaves out locks that were logged after sent, since many renewals fail at
// once if a store hangs.
func (c *Client) reportRenewals(failed *failures, of int, sent instant) {
	if len(failed.claims) == 0 || c.ctx.Err() != nil {
		return
	}
	c.mu.Lock()
	defer c.unlock()
	const most = 10
	var names []string
	now, left, n := c.now(), time.Duration(math.MaxInt64), 0
	for _, cl := range failed.claims {
		w := c.troubles[cl]
		if cl.dead || w.err == nil || w.said > sent || cl.alarm.at >= cl.Until() {
			continue
		}
		w.said = now
		c.troubles[cl] = w
		n++
		left = min(left, cl.Until()-now)
		if len(names) < most {
			names = append(names, cl.object.name)
		}
	}
	if n > 0 {
		c.warnLocked("renewals failed and will be repeated", "failed", n, "of", of, "names", names,
			"left", left, "err", failed.first)
	}
}

// renewed processes the answer to a renewal.
func (c *Client) renewed(
	cl *claim, kind protocol.Kind, sent instant, lease time.Duration, res backend.RenewResult,
	err error,
) {
	c.mu.Lock()
	defer c.unlock()
	now := c.now()
	if err == nil || backend.KindOf(err) != backend.Unknown {
		cl.RenewalOver()
	}
	switch {
	case cl.dead, c.closed:
		// The claim's last release has begun, or the claim was lost. No answer changes that.
	case cl.kind != kind:
		// The claim has been downgraded. The request was for the write, which is released.
	case isDisplaced(err):
		c.goneLocked(cl)
	case err != nil:
		c.troubledLocked(cl, why{err: err})
		c.scheduleLocked(&cl.alarm, min(cl.alarm.at, c.next(cl, now, 16)))
	case !res.Held:
		c.goneLocked(cl)
	case now >= cl.Until():
		c.loseClaimLocked(cl, c.ranOutLocked(cl, now))
	default:
		delete(c.troubles, cl)
		cl.RenewalGranted(sent, lease)
		c.scheduleLocked(&cl.alarm, max(c.nextLook(cl, sent), now))
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
