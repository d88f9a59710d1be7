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
// readers join the claim without asking the store, unless a writer of this client waits. Later
// readers acquire a new claim, so that the store can let a writer of another client go first. The
// last reader of a claim releases it.

// reading holds the readers of this client.
type reading struct {
	holds map[party]*hold // the latest hold of each party
	lent  *claim          // a write lent to readers, or nil
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

// plainSharedLocked returns the hold that the next plain unlock of a reading Locker releases, or
// nil. It can't know which of the Locker's readers unlocks. So it prefers a lost hold, and then the
// hold that ends first. The other readers keep the holds that last longest. If the client has
// forgotten a lost hold, plainSharedLocked returns ErrLost for it. So a late unlock of a lost hold
// doesn't release a later one.
func (c *Client) plainSharedLocked(key lockKey, kind protocol.Kind, v *variable) (*hold, error) {
	if h := c.lastLossLocked(lostKey{key, kind, v}); h != nil {
		return h, nil
	}
	if v.owed > 0 {
		v.owed--
		return nil, ErrLost
	}
	return c.objects[key.family][key.name].endsFirst(v), nil
}

// standing returns a valid hold for a call that acquired h. If another plain reader of the same
// Locker has released h meanwhile, the call gets one of the Locker's other holds.
func (c *Client) standing(h *hold) *hold {
	v := h.variable()
	if v == nil || !h.kind.Shared() {
		return h
	}
	c.mu.Lock()
	defer c.unlock()
	if h.state != released {
		return h
	}
	for _, theirs := range c.objects[protocol.ReadWrites][h.claim.object.name].readers() {
		if theirs.party == h.party && c.checkLocked(theirs) {
			return theirs
		}
	}
	return h
}

// endsFirst returns the hold of a Locker's plain calls that expires first. If none expires, it is
// the oldest.
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

// calls returns the number of unlocks that the party of a hold has yet to make.
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

// forgetReaderLocked removes a hold from the readers' holds. If h was its party's latest hold, the
// party's hold before h becomes the latest.
func (c *Client) forgetReaderLocked(o *object, h *hold) {
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
				c.latestLocked(o, before)
				break
			}
		}
	}
	o.tidyReading()
}

// latestLocked makes a hold the latest of its party.
func (c *Client) latestLocked(o *object, h *hold) {
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

// readLocked reports whether there is a valid read hold, apart from those of one party.
func (c *Client) readLocked(o *object, but party) bool {
	for _, h := range o.readers() {
		if h.party != but && c.checkLocked(h) {
			return true
		}
	}
	return false
}

// share returns a hold that joins the claim of other readers of this client. It returns nil if the
// call must ask the store, and errAgain if the call's party is already reading.
func (c *Client) share(a *acquisition) (*hold, error) {
	if !a.kind.Shared() {
		return nil, nil
	}
	c.mu.Lock()
	defer c.unlock()
	switch cl := c.sharedLocked(a); {
	case cl == nil:
		return nil, nil
	case c.readsLocked(a):
		return nil, errAgain
	default:
		a.via = ViaJoined
		h := c.joinReadersLocked(c.objectLocked(a.kind, a.name), cl, a)
		h.offered = false
		return h, nil
	}
}

// sharedLocked returns the claim that a reader may join, or nil.
func (c *Client) sharedLocked(a *acquisition) *claim {
	o := c.objectLocked(a.kind, a.name)
	if c.closed || o == nil || o.reading == nil || o.queue != nil && o.queue.writers > 0 {
		return nil
	}
	cl, now := o.reading.young, c.now()
	if cl == nil || now >= c.handoverEnd(cl) || !cl.passes(now) || !cl.suits(a) {
		return nil
	}
	return cl
}

// mayShare reports whether a call may join other readers of this client.
func (c *Client) mayShare(a *acquisition) bool {
	if !a.kind.Shared() {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.sharedLocked(a) != nil
}

// joinReadersLocked adds a reading call to a claim, and returns its hold.
func (c *Client) joinReadersLocked(o *object, cl *claim, a *acquisition) *hold {
	h := o.reader(a.party)
	if h == nil || h.claim != cl {
		h = newHold(a.party, protocol.Kind(backend.Read), cl).beginsLater(c.now())
	} else {
		a.via = ViaReentry
	}
	c.restLocked(o, h)
	c.joinLocked(h)
	return h
}

// restLocked adds a call to a reader's hold.
func (c *Client) restLocked(o *object, h *hold) {
	if o.reading == nil {
		o.reading = &reading{holds: make(map[party]*hold)}
	}
	if before := o.reading.holds[h.party]; before != h {
		if before != nil {
			o.reading.older = append(o.reading.older, before)
		}
		c.latestLocked(o, h)
		h.claim.more.holds++
	}
	h.count++
	h.claim.more.joins++
}

// grantSharedLocked turns a read that the store has just granted into a hold, and lets waiting
// readers join.
func (c *Client) grantSharedLocked(o *object, h *hold) *hold {
	cl := h.claim
	under := cl.retain()
	c.restLocked(o, h)
	if under == nil && cl.Renewed() && !cl.more.noted {
		o.reading.young = cl
		c.admitReadersLocked(o, cl)
	}
	c.joinPartiesLocked(o.queue, func(a *acquisition) bool {
		return a.h != h && o.reader(a.party) != nil
	})
	return h
}

// admitReadersLocked lets waiting readers join a claim, up to the first waiting writer.
func (c *Client) admitReadersLocked(o *object, cl *claim) {
	if c.handover == 0 {
		return
	}
	for q := o.queue; q != nil && q.first != nil; {
		a := q.first
		for a != nil && (a.parked() || a.kind.Shared() &&
			(a.trying || a.h != nil && a.h.claim == cl)) {
			a = a.next // can't join, or waits for an answer
		}
		if a == nil || !a.kind.Shared() || !cl.suits(a) {
			return
		}
		c.dequeueLocked(a)
		a.via = ViaJoined
		h := c.joinReadersLocked(o, cl, a)
		if h.count == 1 {
			h.offered = true
		}
		c.handLocked(a, h)
		q = o.queue
	}
}

// retain returns the live hold of the write under which a claim was made, or nil. While that hold
// lives, the claim is kept, even without readers. Otherwise a new claim would have the same owner
// string, and a late request for the old claim could affect the new one.
func (cl *claim) retain() *hold {
	if cl.more == nil || cl.more.under == nil || cl.more.under.state != live {
		return nil
	}
	return cl.more.under
}

// endSharedLocked ends a shared claim that has no holds left. Its owner string isn't used again.
func (c *Client) endSharedLocked(cl *claim) {
	cl.dead = true
	delete(c.troubles, cl)
	c.unscheduleLocked(&cl.alarm)
	c.unscheduleLocked(&cl.more.lent)
	cl.object.retire(cl)
	c.tidyLocked(cl.object)
}

// loseReadersLocked ends all holds of a shared claim that is lost.
func (c *Client) loseReadersLocked(cl *claim, w why) {
	o := cl.object
	o.retire(cl)
	if cl.more != nil {
		c.unscheduleLocked(&cl.more.lent)
	}
	for _, h := range o.readers() {
		if h.claim == cl {
			c.loseHoldLocked(h, w)
		}
	}
	c.tidyLocked(o)
}

// releaseShared performs one release of a reader's hold.
func (c *Client) releaseShared(ctx context.Context, h *hold) error {
	c.mu.Lock()
	cl := h.claim
	switch {
	case h.state == released, h.count <= 0:
		c.unlock()
		return errAgain
	case h.state == forsaken:
		tell, before := c.departForsakenLocked(h)
		c.unlock()
		if !tell {
			return nil
		}
		return c.releaseForsaken(ctx, h, before)
	case !c.checkLocked(h):
		c.releaseLostLocked(h)
		c.unlock()
		return ErrLost
	}
	h.count--
	if h.count > 0 {
		if h.count < h.renewedFrom {
			c.endRenewalLocked(h)
		}
		c.unlock()
		return nil
	}
	h.state = released
	c.endContextsLocked(h, ErrNotHeld)
	c.dropLocked(h)
	c.bequeathLocked(h)
	c.vacateLocked(h)
	if !h.leaves() || c.passOnLocked(cl) {
		c.unlock()
		return nil
	}
	if cl.retain() != nil {
		c.unscheduleLocked(&cl.alarm) // the read is released with the write
		c.unlock()
		return nil
	}
	if joins := cl.more.joins; c.mayBeJoinedLocked(cl) {
		c.unlock()
		runtime.Gosched() // another goroutine may be about to join
		c.mu.Lock()
		switch {
		case cl.more.holds > 0 || cl.more.joins != joins:
			c.unlock()
			return nil
		case cl.dead:
			c.takeBackLocked(cl) // the claim has been lost
			c.unlock()
			return nil
		}
	}
	q := c.postponeLocked(cl)
	c.endSharedLocked(cl)
	c.unlock()
	return c.releaseRead(ctx, h, q)
}

// mayBeJoinedLocked reports whether a new reader could join a claim that has no holders left.
func (c *Client) mayBeJoinedLocked(cl *claim) bool {
	now, reading := c.now(), cl.object.reading
	return now < c.handoverEnd(cl) && cl.passes(now) && reading != nil && reading.young == cl
}

// releaseRead performs the last release of a shared claim whose last hold was h.
func (c *Client) releaseRead(ctx context.Context, h *hold, q *queue) error {
	ctx, cancel := c.releaseContext(ctx, h, true)
	defer cancel()
	c.mu.Lock()
	d := c.departLocked(h, q, c.now())
	c.unlock()
	err := c.free(ctx, d)
	if err == ErrLost {
		c.mu.Lock()
		defer c.unlock()
		h.noticeLocked() // calls that began with h may still read
	}
	return err
}

// bequeathLocked passes the notices of a released hold to another hold of its party, since calls
// that watch these notices may still be reading.
func (c *Client) bequeathLocked(h *hold) {
	heir := h.claim.object.reader(h.party)
	if h.watchers == nil || heir == nil {
		return
	}
	t := heir.watchedLocked()
	for _, n := range h.watchers.over {
		if !slices.Contains(t.over, n) {
			t.over = append(t.over, n)
		}
	}
}

// mostNotices limits the number of notices of a hold. Later calls share one of them. Notices can't
// be dropped, since it is unknown which calls still read.
const mostNotices = 8

// noticeFor returns the notice for the first call that watches a hold for its loss. The notice is
// new, unless another hold of the same party already has mostNotices. Then noticeFor returns one of
// those, which then signals the loss of either hold.
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
func (c *Client) drainShared(ctx context.Context, cl *claim) (err error) {
	err = errUnanswered // stays if the step panics
	defer func() {
		c.mu.Lock()
		defer c.unlock()
		if cl.Strays() || err != nil && err != ErrLost {
			c.takeBackLocked(cl)
		}
	}()
	_, err = c.drain(ctx, cl, c.stored(cl.Lease()), false)
	return err
}

// endRenewalLocked ends the renewal that a reader's re-entry began, so that the claim has a fixed
// lease again.
func (c *Client) endRenewalLocked(h *hold) {
	cl, now := h.claim, c.now()
	h.renewedFrom = 0
	cl.EndRenewal(now)
	c.scheduleLocked(&cl.alarm, c.nextLook(cl, now))
}

// reenterShared re-enters a reader's hold. If the claim is renewed, that needs no request.
// Otherwise reenterShared first asks the store to keep the claim for longer.
func (c *Client) reenterShared(ctx context.Context, h *hold, a *acquisition) error {
	c.mu.Lock()
	if !c.checkLocked(h) {
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
		c.loseLocked(h, gone)
	case err != nil && h.state == live:
		return err
	}
	if !c.checkLocked(h) {
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
	c.prolongLocked(h, now, lease, asked)
	return nil
}

// readUnder acquires a read under the write of the same party. While the write lasts, all reads
// under it share one claim, with the write's owner string. Each further read repeats the claim's
// request.
func (c *Client) readUnder(ctx context.Context, w *hold, a *acquisition) (*hold, error) {
	c.mu.Lock()
	inner, err := c.innerLocked(w, a)
	if err != nil {
		c.unlock()
		return nil, err
	}
	sent, lease := c.now(), c.stored(a.o.lease)
	inner.Sent(sent, lease)
	c.unlock()

	res, err := c.acquireStep(ctx, inner, a.o.lease, inner.acquireRequest(lease, false))

	c.mu.Lock()
	defer c.unlock()
	if now := c.now(); inner.more.holds > 0 && now >= inner.Until() {
		c.loseClaimLocked(inner, c.ranOutLocked(inner, now)) // no answer could change that
	}
	switch {
	case err != nil:
		if backend.KindOf(err) == backend.Unknown {
			inner.Stray()
		}
		if inner.dead && inner.Strays() {
			c.takeBackLocked(inner) // the write has ended, and so must the read
		}
		return nil, err
	case !res.Acquired:
		c.loseLocked(w, gone) // the store would grant a writer's read
		return nil, errAgain
	case c.closed:
		return nil, ErrClosed
	case inner.dead:
		inner.Stray()
		c.takeBackLocked(inner) // the request may have followed the release
		return nil, errAgain
	}
	inner.Granted(sent, a.o.lease)
	if c.now() >= inner.Until() {
		return nil, errLate
	}
	first := inner.more.holds == 0
	if first { // otherwise another read already uses the claim
		inner.began, inner.after = sent, uint32(c.attempts)
	}
	inner.alarm.task = inner
	h := c.joinReadersLocked(c.openLocked(inner.object), inner, a)
	switch {
	case first:
		inner.Want(a.o.lease, !a.o.fixed)
	case !inner.Renewed() && !a.o.fixed:
		inner.Want(a.o.lease, true)
		h.renewedFrom = h.count
	}
	c.scheduleLocked(&inner.alarm, c.nextLook(inner, sent))
	return h, nil
}

// innerLocked returns the claim for the reads under a write. It creates the claim if there is none.
func (c *Client) innerLocked(w *hold, a *acquisition) (*claim, error) {
	if !c.checkLocked(w) {
		return nil, errAgain
	}
	inner := w.inner()
	if inner == nil {
		inner = &claim{object: w.claim.object, kind: a.kind, owner: w.claim.owner,
			more: &more{under: w}}
		inner.Want(a.o.lease, false)
		w.claim.more.inner = inner
	}
	if inner.dead {
		return nil, ErrLost
	}
	return inner, nil
}

// endInnerLocked records that a write has ended. If its holder has read under it, and no longer
// does, endInnerLocked returns the claim of those reads, which must be released with the write.
func (c *Client) endInnerLocked(h *hold) *claim {
	inner := h.inner()
	if inner == nil {
		return nil
	}
	inner.more.under = nil
	if inner.more.holds > 0 || inner.dead {
		return nil
	}
	c.endSharedLocked(inner)
	return inner
}

// inner returns the claim for the reads under a write, or nil.
func (h *hold) inner() *claim {
	if h.claim.more == nil {
		return nil
	}
	return h.claim.more.inner
}
