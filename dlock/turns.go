package dlock

import "github.com/seed951563bd/distsync/backend"

// A client that has just released a lock is back before the message of that has woken anybody
// elsewhere, and one that the store tells first would be first every time. So who has had a turn lets
// the others have theirs: it sits out as many releases as there are other clients that wait, less the
// one that is followed by its own turn. A client that is alone with a lock never waits; and whoever is
// counted, but doesn't come (a process that stands still, somebody who only listens), is waited for
// now and then only.
//
// Strangers have one turn at a time, while a client hands a lock on inside: see handoverEnd. Where
// both are, clients also let one release more pass.

// A streak is how a client takes a lock again and again, with no more than a moment in between.
type streak struct {
	began instant // or since when it isn't known whether others wait
	last  instant // when the last release began
	turns int     // so far
}

const (
	longestPauseInStreak = 2 * shortestWait
	shortStreak          = 4                 // turns, after which it is asked ...
	longStreak           = 10 * shortestWait // ... or after that time
	mostStreaks          = 128               // that are surely remembered; at most twice as many are
)

// asksWhoWaitsLocked says whether a last release asks the store whether others wait for the lock: where
// they do, or did a moment ago; after a chain; and now and then where this client has locked it just before.
func (c *Client) asksWhoWaitsLocked(cl *claim, now instant) bool {
	if rules[cl.kind].shared || rules[cl.kind].placed {
		return false
	}
	key := cl.object.key()
	s, known := c.streaks.of(key)
	goesOn := known && cl.began-s.last <= longestPauseInStreak
	if !goesOn {
		s = streak{began: cl.began}
	}
	s.turns++
	since := now - s.began
	ask := c.crowds[key] != nil || cl.handed || goesOn && (since >= longStreak || since >= shortestWait && s.turns > shortStreak)
	if ask {
		s.began = now
	}
	s.last = now
	c.streaks.note(key, s)
	return ask
}

// streaks are those of the names that were locked last, at least mostStreaks of them: others come
// and go in between.
type streaks struct{ young, old map[lockKey]streak }

func newStreaks() streaks {
	return streaks{make(map[lockKey]streak), make(map[lockKey]streak)}
}

func (all *streaks) of(key lockKey) (s streak, known bool) {
	if s, known = all.young[key]; !known {
		s, known = all.old[key]
	}
	return s, known
}

// note remembers a streak, and forgets many that are older.
func (all *streaks) note(key lockKey, s streak) {
	if _, known := all.young[key]; !known && len(all.young) >= mostStreaks {
		all.young, all.old = all.old, all.young
		clear(all.young)
	}
	all.young[key] = s
}

// A crowd is the other clients that wait for a lock which this client has had. It is forgotten when
// nothing has been heard of it for a while.
type crowd struct {
	key   lockKey
	skip  int     // how many releases are to pass
	until instant // and until when, at the latest, if none does; 0: this client doesn't sit out
	alarm alarm   // when it is forgotten

	strangers int  // how many of them have one turn at a time: see backend.ReleaseResult
	mixed     bool // and others hand the lock on, as we do

	vain   bool    // the attempt under way follows a wait for releases that didn't come
	absent int     // how many of those who are counted haven't come
	excuse instant // until when they aren't waited for
}

const (
	longestCrowd  = 2000 * shortestWait // for how long a crowd is remembered
	longestExcuse = 20 * shortestWait   // and who didn't come
)

// ring forgets a crowd.
func (cr *crowd) ring(c *Client, _ instant) { delete(c.crowds, cr.key) }

// freedLocked notes that a last release which began at that instant has freed the lock, for which
// others may wait, and what has become of its own message.
func (c *Client) freedLocked(cl *claim, began instant, res backend.ReleaseResult, own message) {
	chain := cl.handed && began >= c.handoverEnd(cl) && c.queueLocked(cl) != nil
	waiting := res.Waiting - c.absentLocked(cl.object.key())
	if waiting > 0 && res.Strangers > 0 {
		waiting = max(waiting+besideStrangers(cl, res), 1)
	}
	switch {
	case waiting > 0 && own == toCome:
		c.standBackLocked(cl, waiting, res)
	case waiting > 0:
		c.standBackLocked(cl, waiting-1, res)
	case chain && own != heard:
		c.standBackLocked(cl, 0, res) // for those who can't be counted: its own message is the signal
	default:
		if res.Counted && res.Waiting == 0 {
			c.dispelLocked(cl.object.key())
		}
		c.wakeLocked(cl)
	}
}

// besideStrangers returns how many releases more, or fewer, pass where some who wait are strangers.
// The numbers are those with which each side has a fair share, as measured.
func besideStrangers(cl *claim, res backend.ReleaseResult) (more int) {
	few := 2*res.Strangers <= res.Waiting
	switch {
	case few:
		more = 1 // strangers are slower to come than others of ours
	case res.Strangers == res.Waiting:
		more = -1 // a stranger that has just had a turn often has the next
	}
	switch rule := rules[cl.kind]; {
	case rule.many:
		more-- // others give permits back, too
	case !rule.passes && !few:
		more-- // it has one turn at a time, as they have, and comes later
	}
	return more
}

// absentLocked returns how many of those who wait for a lock aren't waited for.
func (c *Client) absentLocked(key lockKey) int {
	if cr := c.crowds[key]; cr != nil && c.now() < cr.excuse {
		return cr.absent
	}
	return 0
}

// standBackLocked lets so many releases pass before this client asks for the lock again.
func (c *Client) standBackLocked(cl *claim, releases int, res backend.ReleaseResult) {
	key := cl.object.key()
	cr := c.crowds[key]
	if cr == nil {
		cr = &crowd{key: key}
		cr.alarm.task = cr
		c.crowds[key] = cr
	}
	cr.skip = releases
	if res.Counted {
		cr.strangers, cr.mixed = res.Strangers, res.Strangers < res.Waiting
	}
	c.sitOutLocked(cr, c.queueLocked(cl))
}

// A message is what has become of the message of a release of this client's.
type message uint8

const (
	unheard message = iota // this client doesn't listen
	toCome
	heard
)

// sitOutLocked has the first in the queue look again when it is this client's turn, or for a moment
// nobody is heard of.
func (c *Client) sitOutLocked(cr *crowd, q *queue) {
	now := c.now()
	cr.until = now + shortestWait
	c.scheduleLocked(&cr.alarm, now+longestCrowd)
	if q == nil {
		return
	}
	q.refusal = refusal{} // what was refused before may be granted then
	if q.lead != nil {
		c.hearLocked(q, cr.until)
	}
}

// sitsOutLocked says whether a new first in the queue is to let others have a turn.
func (c *Client) sitsOutLocked(q *queue) bool {
	cr := c.crowds[q.object.key()]
	if cr == nil || c.now() >= cr.until {
		return false
	}
	c.hearLocked(q, cr.until)
	return true
}

// passLocked notes a message that the lock was released, and says whether it means others.
func (c *Client) passLocked(q *queue) bool {
	cr := c.crowds[q.object.key()]
	if cr == nil || cr.skip == 0 {
		return false
	}
	cr.skip--
	q.again = 0 // others go on
	c.sitOutLocked(cr, q)
	return true
}

// triesLocked notes that this client asks for the lock again, woken or not: it sits out no longer.
func (c *Client) triesLocked(key lockKey, woken bool) {
	if cr := c.crowds[key]; cr != nil {
		cr.vain = !woken && cr.until > 0 && c.now() >= cr.until
		cr.until = 0
	}
}

// caughtUpLocked notes that this client got the lock: whoever was to come first has, or isn't coming.
func (c *Client) caughtUpLocked(cl *claim) {
	cr := c.crowds[cl.object.key()]
	if cr == nil {
		return
	}
	if cr.vain {
		cr.absent, cr.excuse = cr.skip+1, c.now()+longestExcuse
	}
	cr.skip, cr.until = 0, 0
}

// dispelLocked forgets a crowd.
func (c *Client) dispelLocked(key lockKey) {
	if cr := c.crowds[key]; cr != nil {
		c.unscheduleLocked(&cr.alarm)
		delete(c.crowds, key)
	}
}

// hearLocked has the first in the queue look again when the store says that the lock was released, or
// says that it will say so, but no later than at that instant, or when it was to look again anyway: its
// own client's releases don't put that off. One that doesn't wait for long, sooner.
func (c *Client) hearLocked(q *queue, until instant) {
	if q.subscribed == unsubscribed && c.notifier != nil {
		c.subscribeLocked(q)
	}
	a := q.lead
	if a.budget > 0 {
		began := a.since
		if began == 0 {
			began = c.now() // it comes just now
		}
		until = min(until, began+a.budget/newsShare)
	}
	if q.again == 0 || until < q.again {
		q.again = until
	}
	c.scheduleLocked(&a.alarm, q.again)
}
