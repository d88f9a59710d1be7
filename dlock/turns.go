package dlock

import "github.com/seed951563bd/distsync/backend"

// A client that has just released a lock is back before the message of that has woken anybody
// elsewhere, and one that the store tells first would be first every time. So who has had a turn lets
// the others have theirs: it sits out as many releases as there are other clients that wait, less the
// one that is followed by its own turn. A client that is alone with a lock never waits.

// A crowd is the other clients that wait for a lock which this client has had. It is forgotten when
// nothing has been heard of it for a while.
type crowd struct {
	name  string
	skip  int     // how many releases are to pass
	until instant // and until when, at the latest, if none does
	alarm alarm   // when it is forgotten
}

// longestCrowd is for how long a crowd is remembered.
const longestCrowd = 200 * shortestWait

// ring forgets a crowd.
func (cr *crowd) ring(c *Client, _ instant) { delete(c.crowds, cr.name) }

// freedLocked notes that a last release which began at that instant has freed the lock, for which
// others may wait. Own says that its message is still to come here.
func (c *Client) freedLocked(cl *claim, began instant, res backend.ReleaseResult, own bool) {
	switch {
	case res.Counted && res.Waiting > 0:
		c.standBackLocked(cl.name, res.Waiting-1, own)
	case !res.Counted && cl.handed && began >= c.handoverEnd(cl) && c.queues[cl.name] != nil:
		c.standBackLocked(cl.name, 0, own)
	default:
		if res.Counted {
			c.dispelLocked(cl.name)
		}
		c.wakeLocked(cl.name)
	}
}

// standBackLocked lets so many releases of others pass before this client asks for the lock again.
func (c *Client) standBackLocked(name string, releases int, own bool) {
	cr := c.crowds[name]
	if cr == nil {
		cr = &crowd{name: name}
		cr.alarm.task = cr
		c.crowds[name] = cr
	}
	cr.skip = releases
	if own {
		cr.skip++
	}
	c.sitOutLocked(cr, c.queues[name])
}

// sitOutLocked has the first in the queue look again when it is this client's turn, or for a moment
// nobody is heard of.
func (c *Client) sitOutLocked(cr *crowd, q *queue) {
	now := c.now()
	cr.until = now + shortestWait
	c.scheduleLocked(&cr.alarm, now+longestCrowd)
	if q != nil && q.lead != nil {
		c.hearLocked(q, cr.until)
	}
}

// sitsOutLocked says whether a new first in the queue is to let others have a turn.
func (c *Client) sitsOutLocked(q *queue) bool {
	cr := c.crowds[q.name]
	if cr == nil || c.now() >= cr.until {
		return false
	}
	c.hearLocked(q, cr.until)
	return true
}

// passLocked notes a message that the lock was released, and says whether it means others.
func (c *Client) passLocked(q *queue) bool {
	cr := c.crowds[q.name]
	if cr == nil || cr.skip == 0 {
		return false
	}
	cr.skip--
	c.sitOutLocked(cr, q)
	return true
}

// caughtUpLocked notes that this client got the lock: whoever was to come first has.
func (c *Client) caughtUpLocked(name string) {
	if cr := c.crowds[name]; cr != nil {
		cr.skip, cr.until = 0, 0
	}
}

// dispelLocked forgets a crowd.
func (c *Client) dispelLocked(name string) {
	if cr := c.crowds[name]; cr != nil {
		c.unscheduleLocked(&cr.alarm)
		delete(c.crowds, name)
	}
}

// hearLocked has the first in the queue look again when the store says that the lock was released, or
// says that it will say so, but no later than at that instant.
func (c *Client) hearLocked(q *queue, until instant) {
	if q.subscribed == unasked && c.notifier != nil {
		c.subscribeLocked(q)
	}
	c.scheduleLocked(&q.lead.alarm, until)
}
