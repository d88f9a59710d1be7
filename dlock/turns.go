package dlock

import "github.com/seed951563bd/distsync/backend"

// Clients that compete for a lock take turns. Otherwise, a client that has just released the lock
// could ask for it again before the store's message wakes the others. And the client that the store
// notifies first would always get the lock. So if n other clients wait, a client that has had a
// turn has its next one after n releases by others: it lets n-1 releases pass, and asks for the
// lock at the next. A client without competitors never waits. Some clients are counted, but don't
// take their turn, because their process is paused or they only listen. This client waits for them
// only occasionally.
//
// Strangers are clients that release the lock after each call. This client can hand it over between
// its own calls, but strangers can't: see handoverEnd. While strangers wait, this client lets more
// or fewer releases pass: see besideStrangers.

// A streak is a series of turns that this client takes at a lock, with only short pauses in
// between.
type streak struct {
	began instant // start, or when others were last counted
	last  instant // when the last release began
	turns int     // the number of turns so far
}

const (
	longestPauseInStreak = 2 * shortestWait
	shortStreak          = 4                 // ask the store after this many turns
	longStreak           = 10 * shortestWait // or after this time
	mostStreaks          = 128               // minimum remembered; the maximum is twice that
)

// asksWhoWaits reports whether a last release should ask the store how many other clients wait for
// the lock. It should ask if others were waiting recently, or the lock was handed over since it was
// acquired. During a long streak it should ask now and then.
func (cl *claim) asksWhoWaits(s *state, now instant) bool {
	if cl.kind.Shared() || cl.kind.Placed() {
		return false
	}
	key := cl.object.key()
	st, known := s.streaks.of(key)
	goesOn := known && cl.began-st.last <= longestPauseInStreak
	if !goesOn {
		st = streak{began: cl.began}
	}
	st.turns++
	since := now - st.began
	long := goesOn && (since >= longStreak || since >= shortestWait && st.turns > shortStreak)
	ask := s.crowds[key] != nil || cl.handed || long
	if ask {
		st.began = now
	}
	st.last = now
	s.streaks.note(key, st)
	return ask
}

// streaks holds the streaks of at least the mostStreaks locks that were released last.
type streaks struct{ young, old map[lockKey]streak }

func (all *streaks) of(key lockKey) (s streak, known bool) {
	if s, known = all.young[key]; !known {
		s, known = all.old[key]
	}
	return s, known
}

// note remembers a streak. To make room, it may forget many older ones.
func (all *streaks) note(key lockKey, s streak) {
	if _, known := all.young[key]; !known && len(all.young) >= mostStreaks {
		all.young, all.old = all.old, all.young
		clear(all.young)
	}
	if all.young == nil {
		all.young = make(map[lockKey]streak)
	}
	all.young[key] = s
}

// A crowd is the set of other clients that wait for a lock that this client has held. It is
// forgotten when there has been no news of it for a while.
type crowd struct {
	key   lockKey
	skip  int     // how many releases this client lets pass
	until instant // other clients go first until then
	alarm alarm   // when the crowd is forgotten

	strangers int  // strangers among them: see backend.ReleaseResult
	mixed     bool // some waiting clients aren't strangers

	second bool // second turn in a row: see secondTurn

	vain   bool    // the awaited release never came
	absent int     // counted clients that missed their turn
	excuse instant // absent clients are ignored until then
}

const (
	longestCrowd  = 2000 * shortestWait // how long a crowd is remembered
	longestExcuse = 20 * shortestWait   // how long absent clients are remembered
)

// ring forgets a crowd.
func (cr *crowd) ring(s *state, _ instant) { delete(s.crowds, cr.key) }

// freed decides, after a last release has freed the lock, whether this client asks for the lock
// again at once or first lets other clients have turns. The release began at the instant began, and
// own says whether the store's message about it has arrived.
func (cl *claim) freed(s *state, began instant, res backend.ReleaseResult, own message) {
	chain := cl.handed && began >= cl.handoverEnd(s) && cl.queue(s) != nil
	waiting := res.Waiting - s.absent(cl.object.key())
	if waiting > 0 && res.Strangers > 0 {
		waiting = max(waiting+besideStrangers(cl, res), 1)
	}
	switch {
	case waiting > 0 && cl.secondTurn(s, res):
		cl.mark(s, markFree)
	case waiting > 0 && own == toCome:
		cl.standBack(s, waiting, res)
	case waiting > 0:
		cl.standBack(s, waiting-1, res)
	case chain && own != heard:
		cl.standBack(s, 0, res) // can't count others: wait for a message
	default:
		if res.Counted && res.Waiting == 0 {
			s.dispel(cl.object.key())
		}
		cl.mark(s, markFree)
	}
}

// secondTurn reports whether this client takes a second turn at once. If several other clients
// wait, and all of them are strangers, secondTurn alternates between true and false. For a lock
// that can be handed over, secondTurn always returns false.
func (cl *claim) secondTurn(s *state, res backend.ReleaseResult) bool {
	cr := s.crowds[cl.object.key()]
	if cl.kind.Passes() || cr == nil || res.Strangers < 2 || res.Strangers < res.Waiting ||
		cl.queue(s) == nil {
		return false
	}
	cr.second = !cr.second
	return cr.second
}

// besideStrangers returns how many more releases this client lets pass because some waiting clients
// are strangers. The result can be negative. The possible values come from measurements, and give
// each side a fair share.
func besideStrangers(cl *claim, res backend.ReleaseResult) (more int) {
	few := 2*res.Strangers <= res.Waiting
	switch {
	case few && !cl.kind.Many(): // where all Redisson clients count as one
		more = 1 // strangers are slower to ask again
	case res.Strangers == res.Waiting:
		more = -1 // a stranger often has two turns in a row
	}
	switch {
	case cl.kind.Many():
		more-- // others also release permits
	case !cl.kind.Passes() && !few:
		more-- // this client is slower than the strangers
	}
	return more
}

// absent returns the number of waiting clients that this client ignores, because they didn't take
// their earlier turns.
func (s *state) absent(key lockKey) int {
	if cr := s.crowds[key]; cr != nil && s.now() < cr.excuse {
		return cr.absent
	}
	return 0
}

// standBack makes this client wait for a number of releases by others before it asks for the lock
// again.
func (cl *claim) standBack(s *state, releases int, res backend.ReleaseResult) {
	key := cl.object.key()
	cr := s.crowds[key]
	if cr == nil {
		cr = &crowd{key: key}
		cr.alarm.task = cr
		s.crowds[key] = cr
	}
	cr.skip = releases
	if res.Counted {
		cr.strangers, cr.mixed = res.Strangers, res.Strangers < res.Waiting
	}
	cr.sitOut(s, cl.queue(s))
}

// sitOut makes the queue's lead wait until it is this client's turn, or until shortestWait has
// passed without news of the other clients.
func (cr *crowd) sitOut(s *state, q *queue) {
	now := s.now()
	cr.until = now + shortestWait
	s.schedule(&cr.alarm, now+longestCrowd)
	if q == nil {
		return
	}
	q.refusal = refusal{} // the store might now grant the request
	if q.lead != nil {
		q.hear(s, cr.until)
	}
}

// sitsOut reports whether a new lead must let other clients go first.
func (q *queue) sitsOut(s *state) bool {
	cr := s.crowds[q.object.key()]
	if cr == nil || s.now() >= cr.until {
		return false
	}
	q.hear(s, cr.until)
	return true
}

// letPass counts a release that the store has reported. It returns true if this client should leave
// the lock to others.
func (q *queue) letPass(s *state) bool {
	cr := s.crowds[q.object.key()]
	if cr == nil || cr.skip == 0 {
		return false
	}
	cr.skip--
	q.again = 0 // others are having their turns
	cr.sitOut(s, q)
	return true
}

// tries records that this client asks for the lock again, and so no longer lets others go first.
// The parameter woken says whether a message woke the lead.
func (s *state) tries(key lockKey, woken bool) {
	if cr := s.crowds[key]; cr != nil {
		cr.vain = !woken && cr.until > 0 && s.now() >= cr.until
		cr.until = 0
	}
}

// caughtUp records that this client acquired the lock. The clients that were let in ahead of it
// have had their turns, or missed them.
func (cl *claim) caughtUp(s *state) {
	cr := s.crowds[cl.object.key()]
	if cr == nil {
		return
	}
	if cr.vain {
		cr.absent, cr.excuse = cr.skip+1, s.now()+longestExcuse
	}
	cr.skip, cr.until = 0, 0
}

// dispel forgets a crowd.
func (s *state) dispel(key lockKey) {
	if cr := s.crowds[key]; cr != nil {
		s.unschedule(&cr.alarm)
		delete(s.crowds, key)
	}
}

// hear makes the queue's lead look at the lock again when the store reports a release, or at the
// given time if there is no report by then. If the lead's wait is bounded, it looks after
// 1/newsShare of the wait, if that is earlier. If the queue isn't subscribed, hear subscribes it,
// which also makes the lead look. hear never postpones a look, so that this client's own releases
// don't delay the lead.
func (q *queue) hear(s *state, until instant) {
	q.mustHear(s)
	a := q.lead
	if a.budget > 0 {
		began := a.since
		if began == 0 {
			began = s.now() // the call has just come
		}
		until = min(until, began+a.budget/newsShare)
	}
	if q.again == 0 || until < q.again {
		q.again = until
	}
	s.schedule(&a.alarm, q.again)
}
