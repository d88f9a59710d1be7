package dlock

import (
	"context"
	"slices"

	"github.com/seed951563bd/distsync/dlock/internal/protocol"
)

// A hold ends at its last release, when it is lost, or when the client is closed. Losses are
// remembered until they are unlocked, so that the unlock can say what happened.

// check reports whether a hold can be relied on now. It marks an expired hold as lost.
func (h *hold) check(s *state) bool {
	now := s.now()
	if h.valid(now) {
		return true
	}
	if h.state == live {
		h.lose(s, h.claim.ranOut(s, now))
	}
	return false
}

// lossError returns the error that says how a hold was lost, or nil if it wasn't lost. The contexts
// of the hold end with this error as their cause.
func (h *hold) lossError(c *Client) error {
	s := c.lock()
	defer c.unlock()
	if h.check(s) || h.state != lost {
		return nil
	}
	return h.ended()
}

// lose marks a hold, and all others that share its claim, as lost. It notifies their watchers.
func (h *hold) lose(s *state, w why) {
	if h.state != live {
		return
	}
	h.claim.lose(s, w)
}

// lose marks a claim, and all holds that rest on it, as lost.
func (cl *claim) lose(s *state, w why) {
	if cl.dead || s.closed { // Close has told its holders
		return
	}
	cl.dead = true
	delete(s.troubles, cl)
	s.unschedule(&cl.alarm)
	before := s.lostHolds.Load()
	switch h := cl.object.alone; {
	case h != nil && h.claim == cl:
		h.endLost(s, w)
	case cl.kind.Many():
		cl.more.holder.endLost(s, w)
	default:
		cl.loseReaders(s, w)
	}
	if s.lostHolds.Load() > before {
		s.reportLoss(s.lastLosses[len(s.lastLosses)-1])
	}
	if s.stored(cl.Lease()) > cl.Lease() || cl.Outlives() {
		cl.takeBack(s) // otherwise the store would keep the lock for too long
	}
	cl.mark(s, markFree|markLost)
}

// loseReaders ends all holds of a shared claim that is lost.
func (cl *claim) loseReaders(s *state, w why) {
	o := cl.object
	o.retire(cl)
	if cl.more != nil {
		s.unschedule(&cl.more.lent)
	}
	for _, h := range o.readers() {
		if h.claim == cl {
			h.endLost(s, w)
		}
	}
	o.mark(s, markChanged)
}

// endLost ends one hold on a claim that is lost.
func (h *hold) endLost(s *state, w why) {
	l := h.newLoss(s, w)
	h.state = lost
	h.drop(s)
	h.tell(s, h.recordLoss(s, l))
	v := h.variable()
	if v == nil || h.kind.Shared() {
		s.remember(h)
	}
	if v != nil && h.kind.Shared() && v.hold == h {
		v.hold = nil // other readers of the Locker go on
	}
	if inner := h.endInner(s); inner != nil {
		inner.takeBack(s)
	}
}

// forsake ends a hold because the client is closed.
func (h *hold) forsake(s *state) {
	h.state = forsaken
	h.tell(s, ErrClosed)
	if h.told {
		h.told = false
		e := h.forsakenEvent(s)
		s.trace(func(c *Client) { c.traces.releaseDone(context.Background(), e) })
	}
	s.unschedule(&h.claim.alarm)
}

// drop removes a hold from the client's tables.
func (h *hold) drop(s *state) {
	o := h.claim.object
	switch {
	case h.kind.Shared():
		o.forgetReader(h)
	case h.kind.Many():
		o.forgetPermits(s, h)
	case o.alone == h:
		o.alone = nil
		s.unschedule(&h.claim.alarm)
	}
	o.mark(s, markChanged)
}

// vacate lets the next plain call lock the hold's Locker. It is called when the hold is released.
func (h *hold) vacate(s *state) {
	v := h.variable()
	if v == nil || v.hold != h {
		return
	}
	v.hold = nil
	h.claim.mark(s, markUnlocked)
}

// A lostKey is a key in the table of lost holds. It consists of a lock, a kind and a party.
type lostKey struct {
	lockKey
	kind  protocol.Kind
	party party
}

func (h *hold) lostKey() lostKey { return lostKey{h.claim.object.key(), h.kind, h.party} }

func (l *Locker) lostKey(p party) lostKey { return lostKey{l.key(), l.kind, p} }

// Limits on how long lost holds are remembered.
const (
	maxLosses  = 1024 // the maximum number of lost holds remembered until they are unlocked
	lossMemory = 10   // how long each of them is remembered, in leases
)

// remember remembers a lost hold, so that later unlocks of it can return the loss.
func (s *state) remember(h *hold) {
	key := h.lostKey()
	s.lost[key] = append(s.lost[key], h)
	s.losses = append(s.losses, h)
	if len(s.losses) > maxLosses {
		s.forgot = true
		s.forget(s.losses[0])
	}
	s.schedule(&h.claim.alarm, s.now()+lossMemory*s.lease)
}

// lastLoss returns the latest lost hold with the given key that hasn't been unlocked yet, or nil.
func (s *state) lastLoss(key lostKey) *hold {
	holds := s.lost[key]
	if len(holds) == 0 {
		return nil
	}
	return holds[len(holds)-1]
}

// forgetAll forgets all remembered holds on a claim.
func (s *state) forgetAll(cl *claim) {
	s.forgot = true
	for i := len(s.losses) - 1; i >= 0; i-- {
		if h := s.losses[i]; h.claim == cl {
			s.forget(h)
		}
	}
}

// forget forgets a lost hold, so that a later unlock doesn't find it. If the hold hasn't been
// unlocked yet, the caller must set s.forgot.
func (s *state) forget(h *hold) {
	if i := slices.Index(s.losses, h); i >= 0 {
		s.losses = slices.Delete(s.losses, i, i+1)
	}
	if !slices.ContainsFunc(s.losses, func(x *hold) bool { return x.claim == h.claim }) {
		s.unschedule(&h.claim.alarm)
	}
	if v := h.variable(); v != nil { // the Locker goes on remembering this loss
		v.owed += int(h.count)
		h.count = 0
	}
	key := h.lostKey()
	left := slices.DeleteFunc(s.lost[key], func(x *hold) bool { return x == h })
	if len(left) == 0 {
		delete(s.lost, key)
	} else {
		s.lost[key] = left
	}
}
