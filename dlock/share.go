package dlock

import (
	"context"
	"maps"
	"runtime"
	"slices"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/dlock/internal/protocol"
	"github.com/seed951563bd/distsync/dlock/internal/steps"
)

// The readers of a client share a claim, which one of them acquired. During the hand-over time, new
// readers join the claim without asking the store, unless a writer of this client is waiting. Later
// readers acquire a new claim, so that the store can let a writer of another client go first. The
// last reader of a claim releases it.

// reading holds the readers of this client.
type reading struct {
	holds map[party]*hold // the latest hold of each party
	lent  *claim          // a write lock's claim, while it is lent to readers; otherwise nil
	older []*hold         // the parties' earlier holds, oldest first
	young *claim          // latest claim, which new readers may join
}

// readers returns the holds of all readers.
func (o *object) readers() []*hold {
	if o == nil || o.reading == nil {
		return nil
	}
	return slices.AppendSeq(slices.Clone(o.reading.older), maps.Values(o.reading.holds))
}

// plainShared returns the hold that the next plain unlock of a reading Locker releases, or nil. An
// unlock doesn't say which of the Locker's readers calls it. So plainShared returns a lost hold if
// there is one, and otherwise the hold that ends first, so that the other readers keep the holds
// that last longest. The client may have forgotten lost holds before they were unlocked. If so,
// plainShared returns ErrLost, so that a late unlock of such a hold doesn't release a later hold.
func (v *variable) plainShared(s *state, key lockKey, kind protocol.Kind) (*hold, error) {
	if h := s.lastLoss(lostKey{key, kind, v}); h != nil {
		return h, nil
	}
	if v.owed > 0 {
		v.owed--
		return nil, ErrLost
	}
	return s.objects[key.family][key.name].endsFirst(v), nil
}

// standing returns a valid hold for a call that acquired h. If another plain reader of the same
// Locker has released h in the meantime, the call gets one of the Locker's other holds.
func (h *hold) standing(c *Client) *hold {
	v := h.variable()
	if v == nil || !h.kind.Shared() {
		return h
	}
	s := c.lock()
	defer c.unlock()
	if h.state != released {
		return h
	}
	for _, theirs := range s.objects[protocol.ReadWrites][h.claim.object.name].readers() {
		if theirs.party == h.party && theirs.check(s) {
			return theirs
		}
	}
	return h
}

// endsFirst looks at the holds that a Locker's plain calls acquired, and returns the one that
// expires first. If none of them expires, it returns the oldest.
func (o *object) endsFirst(v *variable) *hold {
	first := o.reader(v)
	if first == nil {
		return nil
	}
	for _, h := range slices.Backward(o.reading.older) {
		if h.party == party(v) && !first.claim.EndsBefore(&h.claim.Promise) {
			first = h
		}
	}
	return first
}

// reader returns a party's latest read hold, or nil.
func (o *object) reader(p party) *hold {
	if o == nil || o.reading == nil {
		return nil
	}
	return o.reading.holds[p]
}

// calls counts the unlocks that the party of a hold still has to make.
func (o *object) calls(h *hold) int {
	latest := o.reader(h.party)
	if !h.kind.Shared() || latest == nil {
		return int(h.count)
	}
	n := int(latest.count)
	for _, older := range o.reading.older {
		if older.party == h.party {
			n += int(older.count)
		}
	}
	return n
}

// forgetReader removes a hold from the readers' holds. If h was its party's latest hold, the
// party's hold before h becomes the latest.
func (o *object) forgetReader(h *hold) {
	r := o.reading
	if r == nil {
		return
	}
	if i := slices.Index(r.older, h); i >= 0 {
		r.older = slices.Delete(r.older, i, i+1)
	}
	if r.holds[h.party] == h {
		delete(r.holds, h.party)
		for i, before := range slices.Backward(r.older) {
			if before.party == h.party {
				r.older = slices.Delete(r.older, i, i+1)
				o.makeLatest(before)
				break
			}
		}
	}
	o.tidyReading()
}

// makeLatest makes a hold the latest of its party.
func (o *object) makeLatest(h *hold) {
	o.reading.holds[h.party] = h
	if v := h.variable(); v != nil {
		v.hold = h
	}
}

// retire stops readers from joining a claim.
func (o *object) retire(cl *claim) {
	if o.reading != nil && o.reading.young == cl {
		o.reading.young = nil
	}
	if o.reading != nil && o.reading.lent == cl {
		o.reading.lent = nil
	}
	o.tidyReading()
}

func (o *object) tidyReading() {
	if o.reading != nil && o.reading.young == nil && o.reading.lent == nil &&
		len(o.reading.holds)+len(o.reading.older) == 0 {
		o.reading = nil
	}
}

// isRead reports whether any party other than the given one has a valid read hold.
func (o *object) isRead(s *state, but party) bool {
	for _, h := range o.readers() {
		if h.party != but && h.check(s) {
			return true
		}
	}
	return false
}

// share returns a hold that joins the claim of other readers of this client. It returns nil if the
// call must ask the store, and errAgain if the call's party is already reading.
func (a *acquisition) share() (*hold, error) {
	if !a.kind.Shared() {
		return nil, nil
	}
	s := a.client.lock()
	defer a.client.unlock()
	switch cl := a.joinable(s); {
	case cl == nil:
		return nil, nil
	case a.reads(s):
		return nil, errAgain
	default:
		a.via = ViaJoined
		h := a.joinReaders(s, s.object(a.kind, a.name), cl)
		h.offered = false
		return h, nil
	}
}

// joinable returns the claim that a reader may join, or nil.
func (a *acquisition) joinable(s *state) *claim {
	o := s.object(a.kind, a.name)
	if s.closed || o == nil || o.reading == nil || o.queue != nil && o.queue.writers > 0 {
		return nil
	}
	cl, now := o.reading.young, s.now()
	if cl == nil || now >= cl.handoverEnd(s) || !cl.passes(now) || !cl.suits(a) {
		return nil
	}
	return cl
}

// mayShare reports whether a call may join other readers of this client.
func (a *acquisition) mayShare() bool {
	if !a.kind.Shared() {
		return false
	}
	s := a.client.lock()
	defer a.client.mu.Unlock()
	return a.joinable(s) != nil
}

// joinReaders adds a reading call to a claim, and returns its hold.
func (a *acquisition) joinReaders(s *state, o *object, cl *claim) *hold {
	h := o.reader(a.party)
	if h == nil || h.claim != cl {
		h = newHold(a.party, protocol.Kind(backend.Read), cl).beginsLater(s.now())
	} else {
		a.via = ViaReentry
	}
	o.addReader(s, h)
	return h
}

// addReader adds a call to a reader's hold.
func (o *object) addReader(s *state, h *hold) {
	if o.reading == nil {
		o.reading = &reading{holds: make(map[party]*hold)}
	}
	if before := o.reading.holds[h.party]; before != h {
		if before != nil {
			o.reading.older = append(o.reading.older, before)
		}
		o.makeLatest(h)
		h.claim.more.holds++
	}
	h.count++
	h.claim.more.joins++
	if h.variable() == nil {
		o.mark(s, markEntered)
	}
}

// grantShared turns a read lock that the store has just granted into a hold, and lets waiting
// readers join.
func (h *hold) grantShared(s *state, o *object) {
	cl := h.claim
	o.addReader(s, h)
	if cl.retain() == nil && cl.Renewed() && !cl.more.noted {
		o.reading.young = cl
		o.mark(s, markJoinable)
	}
}

// admitReaders lets waiting readers join the youngest claim, up to the first waiting writer.
func (o *object) admitReaders(s *state) {
	if o.queue == nil || o.reading == nil || o.reading.young == nil || s.handover == 0 {
		return
	}
	cl := o.reading.young
	for a := o.queue.first; a != nil; {
		next := a.next
		switch {
		case a.parked(), a.kind.Shared() && a.trying, a.partners && o.reader(a.party) != nil:
			// can't join, waits for an answer, or re-enters
		case !a.kind.Shared(), !cl.suits(a):
			return
		default:
			a.dequeue(s)
			a.via = ViaJoined
			h := a.joinReaders(s, o, cl)
			if h.count == 1 {
				h.offered = true
			}
			a.hand(s, h)
		}
		a = next
	}
}

// retain returns the live write hold whose party reads with this claim, or nil if there is none.
// While the write hold lives, the claim is kept, even without readers. If it weren't kept, and the
// party read again, the new claim would have the same owner string as the old one, so a late
// request for the old claim could affect the new one.
func (cl *claim) retain() *hold {
	if cl.more == nil || cl.more.under == nil || cl.more.under.state != live {
		return nil
	}
	return cl.more.under
}

// endShared ends a shared claim that has no holds left. Its owner string isn't used again.
func (cl *claim) endShared(s *state) {
	cl.dead = true
	delete(s.troubles, cl)
	s.unschedule(&cl.alarm)
	s.unschedule(&cl.more.lent)
	cl.object.retire(cl)
	cl.object.mark(s, markChanged)
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

// releaseShared performs one release of a reader's hold.
func (h *hold) releaseShared(ctx context.Context, c *Client) error {
	s := c.lock()
	cl := h.claim
	switch {
	case h.state == released, h.count <= 0:
		c.unlock()
		return errAgain
	case h.state == forsaken:
		tell, before := h.departForsaken(s)
		c.unlock()
		if !tell {
			return nil
		}
		return h.releaseForsaken(ctx, c, before)
	case !h.check(s):
		h.releaseLost(s)
		c.unlock()
		return ErrLost
	}
	h.count--
	if h.count > 0 {
		if h.count < h.renewedFrom {
			h.endRenewal(s)
		}
		c.unlock()
		return nil
	}
	h.state = released
	h.endContexts(s, ErrNotHeld)
	h.drop(s)
	h.bequeath()
	h.vacate(s)
	if !h.leaves() || cl.passOn(s) {
		c.unlock()
		return nil
	}
	if cl.retain() != nil {
		s.unschedule(&cl.alarm) // the claim will be released with the write lock
		c.unlock()
		return nil
	}
	if joins := cl.more.joins; cl.mayBeJoined(s) {
		c.unlock()
		runtime.Gosched() // another goroutine might be about to join
		c.mu.Lock()
		switch {
		case cl.more.holds > 0 || cl.more.joins != joins:
			c.unlock()
			return nil
		case cl.dead:
			cl.takeBack(s) // the claim has been lost
			c.unlock()
			return nil
		}
	}
	q := cl.postpone(s)
	cl.endShared(s)
	c.unlock()
	return h.releaseRead(ctx, c, q)
}

// mayBeJoined reports whether a new reader could join a claim that has no holders left.
func (cl *claim) mayBeJoined(s *state) bool {
	now, reading := s.now(), cl.object.reading
	return now < cl.handoverEnd(s) && cl.passes(now) && reading != nil && reading.young == cl
}

// releaseRead performs the last release of a shared claim whose last hold was h.
func (h *hold) releaseRead(ctx context.Context, c *Client, q *queue) error {
	ctx, cancel := h.releaseContext(ctx, c, true)
	defer cancel()
	s := c.lock()
	d := h.depart(s, q, c.now())
	c.unlock()
	err := d.free(ctx, c)
	if err == ErrLost {
		c.mu.Lock()
		defer c.unlock()
		h.giveNotices() // calls that watch h might still be reading under the lock
	}
	return err
}

// bequeath passes the notices of a released hold to another hold of its party, since calls that
// watch these notices might still be reading.
func (h *hold) bequeath() {
	heir := h.claim.object.reader(h.party)
	if h.watchers == nil || heir == nil {
		return
	}
	t := heir.watched()
	for _, n := range h.watchers.over {
		if !slices.Contains(t.over, n) {
			t.over = append(t.over, n)
		}
	}
}

// mostNotices limits the number of notices of a hold. Later calls share one of them. Notices can't
// be dropped, since it is unknown which calls are still reading under the lock.
const mostNotices = 8

// noticeFor returns the notice for a hold that has none yet. The notice is new, unless another hold
// of the same party already has mostNotices notices. In that case, noticeFor returns one of these,
// and the two holds share it: it is given when either of them is lost.
func (h *hold) noticeFor() *notice {
	if h.kind.Shared() && h.state == live {
		for _, other := range h.claim.object.readers() {
			if other.party == h.party && other.watchers != nil &&
				len(other.watchers.over) >= mostNotices {
				return other.watchers.over[0]
			}
		}
	}
	return &notice{over: make(chan struct{})}
}

// drainShared releases a shared claim that has ended.
func (cl *claim) drainShared(ctx context.Context, c *Client) (err error) {
	err = errUnanswered // stays if the step panics
	defer func() {
		s := c.lock()
		defer c.unlock()
		if cl.Strays() || err != nil && err != ErrLost {
			cl.takeBack(s)
		}
	}()
	_, err = cl.drain(ctx, c, c.stored(cl.Lease()), false)
	return err
}

// endRenewal ends the renewal that a reader's re-entry began, so that the claim has a fixed lease
// again.
func (h *hold) endRenewal(s *state) {
	cl, now := h.claim, s.now()
	h.renewedFrom = 0
	cl.EndRenewal(now)
	s.schedule(&cl.alarm, cl.nextLook(s, now))
}

// reenterShared re-enters a reader's hold. If the claim is being renewed, that needs no request.
// Otherwise reenterShared first asks the store to keep the claim for longer.
func (a *acquisition) reenterShared(ctx context.Context, h *hold) error {
	c := a.client
	s := c.lock()
	if !h.check(s) {
		c.unlock()
		return errAgain
	}
	cl, now := h.claim, c.now()
	if cl.Renewed() {
		h.count++
		h.offered = false
		c.unlock()
		return nil
	}
	lease, asked := cl.Reentry(now, a.o.lease)
	cl.StepSent(now, asked, c.stored(asked))
	c.unlock()

	res, err := steps.Do(ctx, c.store, backend.Session.Renew, cl.renewRequest(c.stored(asked)))

	c.mu.Lock()
	defer c.unlock()
	cl.StepOver()
	switch {
	case err == nil && !res.Held, isDisplaced(err):
		h.lose(s, gone)
	case err != nil && h.state == live:
		return err
	}
	if !h.check(s) {
		if h.state == released {
			return errAgain // another call of the party released it
		}
		return h.overError()
	}
	h.count++
	h.offered = false
	if !a.o.fixed {
		cl.Renew()
		h.renewedFrom = h.count
	}
	h.prolong(s, now, lease, asked)
	return nil
}

// readUnder acquires a read lock for a party that holds the write lock. As long as the party holds
// the write lock, all its read locks share one claim, with the owner string of the write lock. For
// each further read lock, the request for that claim is sent again.
func (a *acquisition) readUnder(ctx context.Context, w *hold) (*hold, error) {
	c := a.client
	s := c.lock()
	inner, err := w.innerFor(s, a)
	if err != nil {
		c.unlock()
		return nil, err
	}
	sent, lease := c.now(), c.stored(a.o.lease)
	inner.Sent(sent, lease)
	c.unlock()

	res, err := inner.acquireStep(ctx, c, a.o.lease, inner.acquireRequest(lease, false))

	c.mu.Lock()
	defer c.unlock()
	if now := c.now(); inner.more.holds > 0 && now >= inner.Until() {
		inner.lose(s, inner.ranOut(s, now)) // no answer could change that
	}
	switch {
	case err != nil:
		if backend.KindOf(err) == backend.Unknown {
			inner.Stray()
		}
		if inner.dead && inner.Strays() {
			inner.takeBack(s) // the write lock has ended, so the read lock must end, too
		}
		return nil, err
	case !res.Acquired:
		w.lose(s, gone) // the store refuses the writer's read lock only if the write lock is gone
		return nil, errAgain
	case s.closed:
		return nil, ErrClosed
	case inner.dead:
		inner.Stray()
		inner.takeBack(s) // the request might have followed the release
		return nil, errAgain
	}
	inner.Granted(sent, a.o.lease)
	if c.now() >= inner.Until() {
		return nil, errLate
	}
	first := inner.more.holds == 0
	if first { // later read locks don't change these
		inner.began, inner.after = sent, uint32(s.attempts)
	}
	inner.alarm.task = inner
	h := a.joinReaders(s, s.open(inner.object), inner)
	switch {
	case first:
		inner.Want(a.o.lease, !a.o.fixed)
	case !inner.Renewed() && !a.o.fixed:
		inner.Want(a.o.lease, true)
		h.renewedFrom = h.count
	}
	s.schedule(&inner.alarm, inner.nextLook(s, sent))
	return h, nil
}

// innerFor returns the claim for the read locks of the party that has the write hold h. It creates
// the claim if there is none.
func (h *hold) innerFor(s *state, a *acquisition) (*claim, error) {
	if !h.check(s) {
		return nil, errAgain
	}
	inner := h.inner()
	if inner == nil {
		inner = &claim{object: h.claim.object, kind: a.kind, owner: h.claim.owner,
			more: &more{under: h}}
		inner.Want(a.o.lease, false)
		h.claim.more.inner = inner
	}
	if inner.dead {
		return nil, ErrLost
	}
	return inner, nil
}

// endInner records that a write hold has ended. If its party took read locks in the meantime, and
// has unlocked them all, endInner returns the claim for these read locks. That claim must be
// released together with the write lock.
func (h *hold) endInner(s *state) *claim {
	inner := h.inner()
	if inner == nil {
		return nil
	}
	inner.more.under = nil
	if inner.more.holds > 0 || inner.dead {
		return nil
	}
	inner.endShared(s)
	return inner
}

// inner returns the claim for the read locks of the party that has the write hold h, or nil.
func (h *hold) inner() *claim {
	if h.claim.more == nil {
		return nil
	}
	return h.claim.more.inner
}
