package dlock

import (
	"context"
	"maps"
	"runtime"
	"slices"

	"github.com/seed951563bd/distsync/backend"
)

// Readers of one client share what the store has granted to one of them: whoever comes while that is
// young joins without a word to the store, unless a writer of this client waits. Later ones acquire
// anew, so that the store can let a writer of another client go first. The last who leaves releases.

// reading is who in this client reads.
type reading struct {
	holds map[party]*hold // the latest of each
	older []*hold         // of Lockers whose plain calls have a later one, too; oldest first
	young *claim          // the latest, which those who come may join
}

// readers returns the holds of all who read.
func (o *object) readers() []*hold {
	if o == nil || o.reading == nil {
		return nil
	}
	return slices.AppendSeq(slices.Clone(o.reading.older), maps.Values(o.reading.holds))
}

// oldest returns the hold of a Locker's plain calls that is given back next. Who of them gives something back isn't known:
// so what remains is always the latest, which protects everybody who is still reading.
func (o *object) oldest(v *variable) *hold {
	if o == nil || o.reading == nil {
		return nil
	}
	if i := slices.IndexFunc(o.reading.older, func(h *hold) bool { return h.party == party(v) }); i >= 0 {
		return o.reading.older[i]
	}
	return o.reading.holds[v]
}

// reader returns the hold with which a party reads, or nil.
func (o *object) reader(p party) *hold {
	if o == nil || o.reading == nil {
		return nil
	}
	return o.reading.holds[p]
}

// calls returns how many calls are to be given back by the party of a hold.
func (o *object) calls(h *hold) int {
	n := int(h.count)
	if o == nil || o.reading == nil {
		return n
	}
	for _, older := range o.reading.older {
		if older.party == h.party {
			n += int(older.count)
		}
	}
	return n
}

// forgetReader takes a hold out of those who read.
func (o *object) forgetReader(h *hold) {
	r := o.reading
	if r == nil {
		return
	}
	if r.holds[h.party] == h {
		delete(r.holds, h.party)
	} else if i := slices.Index(r.older, h); i >= 0 {
		r.older = slices.Delete(r.older, i, i+1)
	}
	o.tidyReading()
}

// retire lets nobody join a claim any more.
func (o *object) retire(cl *claim) {
	if o.reading != nil && o.reading.young == cl {
		o.reading.young = nil
	}
	o.tidyReading()
}

func (o *object) tidyReading() {
	if o.reading != nil && o.reading.young == nil && len(o.reading.holds)+len(o.reading.older) == 0 {
		o.reading = nil
	}
}

// readLocked says whether anybody but that party validly reads.
func (c *Client) readLocked(o *object, but party) bool {
	for _, h := range o.readers() {
		if h.party != but && c.checkLocked(h) {
			return true
		}
	}
	return false
}

// share returns a hold on what other readers of this client have, or nil if a call must ask the store.
func (c *Client) share(a *acquisition) *hold {
	if !rules[a.kind].shared {
		return nil
	}
	c.mu.Lock()
	defer c.unlock()
	o := c.objectLocked(a.kind, a.name)
	if o == nil || o.reading == nil || o.queue != nil && o.queue.writers > 0 {
		return nil
	}
	cl, now := o.reading.young, c.now()
	if cl == nil || now >= c.handoverEnd(cl) || !cl.passes(now) || !cl.suits(a) {
		return nil
	}
	return c.joinReadersLocked(o, cl, a.party)
}

// joinReadersLocked counts one more reader on a claim.
func (c *Client) joinReadersLocked(o *object, cl *claim, p party) *hold {
	h := o.reader(p)
	if h == nil || h.claim != cl {
		h = newHold(p, cl)
	}
	return c.restLocked(o, h)
}

// restLocked counts one more of a reader's calls.
func (c *Client) restLocked(o *object, h *hold) *hold {
	if o.reading == nil {
		o.reading = &reading{holds: make(map[party]*hold)}
	}
	if before := o.reading.holds[h.party]; before != h {
		if before != nil {
			o.reading.older = append(o.reading.older, before)
		}
		o.reading.holds[h.party] = h
		if v := h.variable(); v != nil {
			v.hold = h
		}
		h.claim.more.holds++
	}
	h.count++
	h.claim.more.joins++
	return h
}

// grantSharedLocked makes the hold of a reader whom the store has just answered, and lets those who
// wait join.
func (c *Client) grantSharedLocked(o *object, h *hold) *hold {
	cl := h.claim
	under := cl.retain()
	c.restLocked(o, h)
	if under == nil && cl.watched {
		o.reading.young = cl
		c.admitReadersLocked(o, cl)
	}
	c.joinLocked(h)
	return h
}

// admitReadersLocked lets those who wait to read, and came before any that wait to write, join a claim.
func (c *Client) admitReadersLocked(o *object, cl *claim) {
	if c.handover == 0 {
		return
	}
	for q := o.queue; q != nil && q.first != nil; {
		a := q.first
		for a != nil && (a.h != nil && a.h.claim == cl || a.trying) {
			a = a.next // who was just answered
		}
		if a == nil || !rules[a.kind].shared || !cl.suits(a) {
			return
		}
		c.dequeueLocked(a)
		a.handed = c.joinReadersLocked(o, cl, a.party)
		a.notify()
		q = o.queue
	}
}

// retain returns the live hold of the write under which a claim was made, or nil. While there is one the claim
// is kept: another of the same number couldn't be told from it by a late request.
func (cl *claim) retain() *hold {
	if cl.more == nil || cl.more.under == nil || cl.more.under.state != live {
		return nil
	}
	return cl.more.under
}

// endSharedLocked ends a shared claim on which nothing rests: its number is dead.
func (c *Client) endSharedLocked(cl *claim) {
	cl.dead = true
	c.unscheduleLocked(&cl.alarm)
	cl.object.retire(cl)
	c.tidyLocked(cl.object)
}

// loseReadersLocked ends whatever rests on a shared claim that is lost.
func (c *Client) loseReadersLocked(cl *claim, cause error) {
	o := cl.object
	o.retire(cl)
	for _, h := range o.readers() {
		if h.claim == cl {
			c.loseHoldLocked(h, cause)
		}
	}
	c.tidyLocked(o)
}

// releaseShared gives back one of a reader's calls.
func (c *Client) releaseShared(ctx context.Context, h *hold) error {
	c.mu.Lock()
	cl := h.claim
	switch {
	case h.state == released, h.count <= 0:
		c.unlock()
		return errAgain
	case h.state == forsaken:
		return c.releaseForsakenLocked(ctx, h)
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
	c.bequeathLocked(h)
	c.dropLocked(h)
	c.vacateLocked(h)
	cl.more.holds--
	if cl.more.holds > 0 {
		c.unlock()
		return nil
	}
	if cl.retain() != nil {
		c.unscheduleLocked(&cl.alarm) // it is released with the write
		c.unlock()
		return nil
	}
	return c.releaseClaimLocked(ctx, h)
}

// bequeathLocked lets those who want to know when a Locker's plain calls lose what they have hear of its latest
// hold, now that this one is given back: they may be reading still.
func (c *Client) bequeathLocked(h *hold) {
	v := h.variable()
	if v == nil || h.told == nil || v.hold == nil || v.hold == h {
		return
	}
	t := v.hold.tellsLocked()
	t.over = append(t.over, h.told.over...)
}

// releaseClaimLocked releases a shared claim that its last holder has left, unless somebody joins it before
// that is sent: who is about to, and only waits for a processor, is let go first. It unlocks c.mu.
func (c *Client) releaseClaimLocked(ctx context.Context, h *hold) error {
	cl := h.claim
	if now := c.now(); now < c.handoverEnd(cl) && cl.passes(now) && cl.object.reading != nil && cl.object.reading.young == cl {
		joins := cl.more.joins
		c.unlock()
		runtime.Gosched()
		c.mu.Lock()
		if cl.more.holds > 0 || cl.more.joins != joins || cl.dead {
			c.unlock()
			return nil
		}
	}
	c.endSharedLocked(cl)
	now, lease := c.now(), c.stored(cl.lease)
	cl.sending(now, lease)
	c.unlock()
	ctx, cancel := c.releaseContext(ctx, h, true)
	defer cancel()
	err := errUnanswered // unless the step panics
	defer func() { c.releasedShared(cl, err) }()
	_, err = c.drain(ctx, cl, lease, false)
	return err
}

// releasedShared lets others have what was released, or may have been.
func (c *Client) releasedShared(cl *claim, err error) {
	c.mu.Lock()
	defer c.unlock()
	c.wakeLocked(cl)
	if cl.unsure || err != nil && err != ErrLost {
		c.takeBackLocked(cl)
	}
}

// endRenewalLocked leaves what a reader has with the lease that it had before a re-entry that was to be renewed.
func (c *Client) endRenewalLocked(h *hold) {
	cl, now := h.claim, c.now()
	cl.watched, h.renewedFrom = false, 0
	cl.lease = cl.remaining(now)
	c.scheduleLocked(&cl.alarm, c.nextLook(cl, now))
}

// A reader's re-entry is counted here. Only where what it has isn't renewed the store must be asked to keep it
// for longer.
func (c *Client) reenterShared(ctx context.Context, h *hold, a *acquisition) error {
	c.mu.Lock()
	if !c.checkLocked(h) {
		c.unlock()
		return errAgain
	}
	cl, now := h.claim, c.now()
	if cl.watched {
		h.count++
		c.unlock()
		return nil
	}
	lease := cl.reentryLease(a.o, now)
	cl.sending(now, c.stored(lease))
	c.unlock()

	res, err := step(ctx, c, backend.Session.Renew, cl.renewRequest(c.stored(lease)))

	c.mu.Lock()
	defer c.unlock()
	switch {
	case err == nil && !res.Held:
		c.loseLocked(h, ErrLost)
	case err != nil && h.state == live:
		return err
	}
	if h.state == forsaken {
		return ErrClosed
	}
	if !c.checkLocked(h) {
		return ErrLost
	}
	h.count++
	if !a.o.fixed {
		cl.watched, h.renewedFrom = true, h.count
	}
	c.prolongLocked(h, now, lease)
	return nil
}

// readUnder reads under the write that the same party has. There is one claim for that, of the write's number, for as
// long as the write lasts: reading again repeats what was asked for before.
func (c *Client) readUnder(ctx context.Context, w *hold, a *acquisition) (*hold, error) {
	c.mu.Lock()
	inner, err := c.innerLocked(w, a)
	if err != nil {
		c.unlock()
		return nil, err
	}
	sent, lease := c.now(), c.stored(a.o.lease)
	inner.sending(sent, lease)
	c.unlock()

	res, err := step(ctx, c, backend.Session.Acquire, inner.acquireRequest(lease, false))

	c.mu.Lock()
	defer c.unlock()
	switch {
	case err != nil:
		inner.unsure = inner.unsure || backend.KindOf(err) == backend.Unknown
		return nil, err
	case !res.Acquired:
		c.loseLocked(w, ErrLost) // else the store would have granted it
		return nil, errAgain
	case c.closed:
		return nil, ErrClosed
	case inner.dead:
		inner.unsure = true
		c.takeBackLocked(inner) // it may have been carried out after its release
		return nil, errAgain
	}
	inner.extend(sent, a.o.lease)
	if c.now() >= inner.until() {
		return nil, errLate
	}
	inner.began, inner.alarm.task = sent, inner
	h := c.joinReadersLocked(c.openLocked(inner.object), inner, a.party)
	c.joinLocked(h)
	c.scheduleLocked(&inner.alarm, c.nextLook(inner, sent))
	return h, nil
}

// innerLocked returns the claim with which the holder of a write reads.
func (c *Client) innerLocked(w *hold, a *acquisition) (*claim, error) {
	if !c.checkLocked(w) {
		return nil, errAgain
	}
	inner := w.inner()
	if inner == nil {
		inner = &claim{object: w.claim.object, kind: a.kind, owner: w.claim.owner, more: &more{under: w}}
		w.claim.more.inner = inner
	}
	if inner.dead {
		return nil, ErrLost
	}
	if inner.more.holds == 0 {
		inner.lease, inner.watched = a.o.lease, !a.o.fixed
	}
	return inner, nil
}

// endInnerLocked notes that a write is over, and returns what its holder has read under it and doesn't any
// more: that is to be released with it.
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

// inner returns what the holder of a write has read under it, or nil.
func (h *hold) inner() *claim {
	if h.claim.more == nil {
		return nil
	}
	return h.claim.more.inner
}
