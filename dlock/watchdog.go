package dlock

import (
	"container/heap"
	"context"
	"math"
	"sync"
	"time"

	"github.com/seed951563bd/distsync/backend"
)

// The watchdog is one timer per client, whatever the number of locks: it rings when the first of
// all alarms is due, and starts what is to be done then. It does no I/O itself.

// An alarm is when a task is due. It is part of the task, so that scheduling allocates nothing.
type alarm struct {
	at    instant
	place int // in the heap, from 1; 0: not scheduled
	task  task
}

// A task is what is done at an alarm.
type task interface {
	ring(c *Client, now instant)
}

// alarms is a heap, for container/heap.
type alarms struct {
	heap  []*alarm
	batch []*claim // collected while ringing: to be renewed together
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

// scheduleLocked lets an alarm ring at that instant, and not at the one it was scheduled for.
func (c *Client) scheduleLocked(a *alarm, at instant) {
	a.at = at
	if a.place > 0 {
		heap.Fix(&c.alarms, a.place-1)
	} else {
		heap.Push(&c.alarms, a)
	}
	c.armLocked()
}

// hastenLocked lets an alarm ring at that instant unless it rings before.
func (c *Client) hastenLocked(a *alarm, at instant) {
	if a.place == 0 || at < a.at {
		c.scheduleLocked(a, at)
	}
}

// unscheduleLocked lets an alarm never ring.
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
		c.timer = time.AfterFunc(first-c.now(), c.ring)
	case c.armed == 0 || first < c.armed:
		c.timer.Reset(first - c.now())
	default:
		return
	}
	c.armed = first
}

// ring does what is due.
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

// ring looks at a claim: it is lost, forgotten, or to be renewed.
func (cl *claim) ring(c *Client, now instant) {
	switch {
	case cl.dead:
		c.forgetAllLocked(cl)
	case now >= cl.Until():
		c.loseClaimLocked(cl, c.ranOutLocked(cl, now))
	case cl.GoesOn() || rules[cl.kind].asserted:
		c.alarms.batch = append(c.alarms.batch, cl)
		c.scheduleLocked(&cl.alarm, c.next(cl, now, 6)) // if it isn't answered by then
	default:
		c.scheduleLocked(&cl.alarm, cl.Until())
	}
}

// nextLook returns when the watchdog looks at a claim that the store granted a request sent at that
// instant.
func (c *Client) nextLook(cl *claim, sent instant) instant {
	switch {
	case cl.GoesOn():
		return c.next(cl, sent, 3)
	case rules[cl.kind].asserted:
		return min(sent+c.lease/3, cl.Until())
	default:
		return cl.Until()
	}
}

// next returns the time of the next renewal where it should be about such a part of a lease after that
// instant.
func (c *Client) next(cl *claim, after instant, part time.Duration) instant {
	most := cl.Lease()
	if rules[cl.kind].asserted {
		most = c.lease // however much longer its own is
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
		c.renewAll(ctx, reqs, func(i int, res backend.RenewResult, err error) {
			failed.add(batch[i], err)
			c.renewed(batch[i], reqs[i].Kind, sent, leases[i], res, err)
		})
		if c.batches != nil && c.tracesSteps {
			c.stepDone(ctx, reqs, sent, failed.first)
		}
		c.roundDone(RenewDone{Locks: len(batch), Failed: len(failed.claims), Took: c.now() - sent, Err: failed.first})
		c.reportRenewals(&failed, len(batch), sent)
	})
}

// reportRenewals logs which locks couldn't be renewed with requests that were sent at that instant,
// and how long they last, but for those that are over, or will be before they are renewed again,
// and for those of which it was logged since the requests were sent: where a store hangs many fail
// at once.
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
		c.warnLocked("renewals failed and will be repeated", "failed", n, "of", of, "names", names, "left", left, "err", failed.first)
	}
}

// renewAll renews in one batch or, where the store has no batches, one by one. It calls answer once
// for each request.
func (c *Client) renewAll(ctx context.Context, reqs []backend.RenewRequest, answer func(int, backend.RenewResult, error)) {
	if c.batches != nil {
		c.batches.RenewBatch(ctx, reqs, answer)
		return
	}
	var all sync.WaitGroup
	for i, req := range reqs {
		all.Go(func() {
			began := c.now()
			res, err := c.session.Renew(ctx, req)
			if c.tracesSteps {
				c.stepDone(ctx, req, began, err)
			}
			answer(i, res, err)
		})
	}
	all.Wait()
}

// renewed notes the answer to a renewal.
func (c *Client) renewed(cl *claim, kind backend.Kind, sent instant, lease time.Duration, res backend.RenewResult, err error) {
	c.mu.Lock()
	defer c.unlock()
	now := c.now()
	if err == nil || backend.KindOf(err) != backend.Unknown {
		cl.RenewalOver()
	}
	switch {
	case cl.dead, c.closed:
		// Its last release has begun, or it is lost for good: no answer changes that.
	case cl.kind != kind:
		// It was downgraded meanwhile, and what was asked about is given back.
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

// failures are the claims that couldn't be renewed, and the first error.
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
