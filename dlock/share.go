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
	lent  *claim          // what was claimed for writing, and is read under by them all; nil if nothing is
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

// plainSharedLocked returns what the next plain unlock of a reading Locker gives back, or nil. Who
// of its readers that is isn't known: first what was lost, then what ends first, so that what
// remains protects everybody who is still reading for as long as possible. A loss that the client
// has forgotten is paid here, and the error says so: what others have got since then isn't given
// back for it, however late its unlock comes.
func (c *Client) plainSharedLocked(key lockKey, kind backend.Kind, v *variable) (*hold, error) {
	if h := c.lastLossLocked(lostKey{key, kind, v}); h != nil {
		return h, nil
	}
	if v.owed > 0 {
		v.owed--
		return nil, ErrLost
	}
	return c.objects[key.family][key.name].endsFirst(v), nil
}

// standing returns a valid hold for a call that has got h. Of plain readers of one Locker another
// may have given that back, and then the call has one of theirs.
func (c *Client) standing(h *hold) *hold {
	v := h.variable()
	if v == nil || !rules[h.kind].shared {
		return h
	}
	c.mu.Lock()
	defer c.unlock()
	if h.state != released {
		return h
	}
	for _, theirs := range c.objects[readWrites][h.claim.object.name].readers() {
		if theirs.party == h.party && c.checkLocked(theirs) {
			return theirs
		}
	}
	return h
}

// endsFirst returns that hold of a Locker's plain calls which ends first by itself, or the oldest.
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

// reader returns the hold with which a party reads, or nil.
func (o *object) reader(p party) *hold {
	if o == nil || o.reading == nil {
		return nil
	}
	return o.reading.holds[p]
}

// calls returns how many calls are to be given back by the party of a hold.
func (o *object) calls(h *hold) int {
	latest := o.reader(h.party)
	if !rules[h.kind].shared || latest == nil {
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

// forgetReaderLocked takes a hold out of those who read. Where it was a party's latest the one before is.
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

// latestLocked makes a hold its party's latest.
func (c *Client) latestLocked(o *object, h *hold) {
	o.reading.holds[h.party] = h
	if v := h.variable(); v != nil {
		v.hold = h
	}
}

// retire lets nobody join a claim any more.
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
	if o.reading != nil && o.reading.young == nil && o.reading.lent == nil && len(o.reading.holds)+len(o.reading.older) == 0 {
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
func (c *Client) share(a *acquisition) (*hold, error) {
	if !rules[a.kind].shared {
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

// sharedLocked returns what a reader may join, or nil.
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

// mayShare says whether a call may join other readers of this client.
func (c *Client) mayShare(a *acquisition) bool {
	if !rules[a.kind].shared {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.sharedLocked(a) != nil
}

// joinReadersLocked counts one more reader on a claim.
func (c *Client) joinReadersLocked(o *object, cl *claim, a *acquisition) *hold {
	h := o.reader(a.party)
	if h == nil || h.claim != cl {
		h = newHold(a.party, backend.Read, cl).beginsLater(c.now())
	} else {
		a.via = ViaReentry
	}
	c.restLocked(o, h)
	c.joinLocked(h)
	return h
}

// restLocked counts one more of a reader's calls.
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

// grantSharedLocked makes the hold of a reader whom the store has just answered, and lets those who
// wait join.
func (c *Client) grantSharedLocked(o *object, h *hold) *hold {
	cl := h.claim
	under := cl.retain()
	c.restLocked(o, h)
	if under == nil && cl.Renewed() && !cl.more.noted {
		o.reading.young = cl
		c.admitReadersLocked(o, cl)
	}
	c.joinPartiesLocked(o.queue, func(a *acquisition) bool { return a.h != h && o.reader(a.party) != nil })
	return h
}

// admitReadersLocked lets those who wait to read, and came before any that wait to write, join a claim.
func (c *Client) admitReadersLocked(o *object, cl *claim) {
	if c.handover == 0 {
		return
	}
	for q := o.queue; q != nil && q.first != nil; {
		a := q.first
		for a != nil && (a.parked() || rules[a.kind].shared && (a.trying || a.h != nil && a.h.claim == cl)) {
			a = a.next // who can't come, or is being answered
		}
		if a == nil || !rules[a.kind].shared || !cl.suits(a) {
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
	delete(c.troubles, cl)
	c.unscheduleLocked(&cl.alarm)
	c.unscheduleLocked(&cl.more.lent)
	cl.object.retire(cl)
	c.tidyLocked(cl.object)
}

// loseReadersLocked ends whatever rests on a shared claim that is lost.
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
	c.dropLocked(h)
	c.bequeathLocked(h)
	c.vacateLocked(h)
	if !h.leaves() || c.passOnLocked(cl) {
		c.unlock()
		return nil
	}
	if cl.retain() != nil {
		c.unscheduleLocked(&cl.alarm) // it is released with the write
		c.unlock()
		return nil
	}
	err := c.releaseClaimLocked(ctx, h)
	if err == ErrLost {
		c.mu.Lock()
		defer c.unlock()
		h.noticeLocked() // who began with it, and reads on with another, has lost it all the same
	}
	return err
}

// bequeathLocked lets those who want to know when a party loses what it has hear of another hold that it has, now that
// this one is given back: they may be reading still.
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

// mostNotices is how many notices a hold has before those who come later share one of them. Each
// may be of somebody who reads still, and nobody knows of whom.
const mostNotices = 8

// noticeFor returns the notice for whoever is the first to ask about a hold: one of his own, or
// that of a hold of the same party which has many already. What is lost of these two then counts as
// lost for both.
func (h *hold) noticeFor() *notice {
	if rules[h.kind].shared && h.state == live {
		for _, other := range h.claim.object.readers() {
			if other.party == h.party && other.watchers != nil && len(other.watchers.over) >= mostNotices {
				return other.watchers.over[0]
			}
		}
	}
	return &notice{over: make(chan struct{})}
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
		if cl.more.holds > 0 || cl.more.joins != joins {
			c.unlock()
			return nil
		}
		if cl.dead {
			c.takeBackLocked(cl) // it was lost meanwhile
			c.unlock()
			return nil
		}
	}
	q := c.postponeLocked(cl)
	c.endSharedLocked(cl)
	c.unlock()
	ctx, cancel := c.releaseContext(ctx, h, true)
	defer cancel()
	c.mu.Lock()
	return c.freeLocked(ctx, h, q, c.now())
}

// drainShared releases a shared claim that has ended.
func (c *Client) drainShared(ctx context.Context, cl *claim) (err error) {
	err = errUnanswered // unless the step panics
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

// endRenewalLocked leaves what a reader has with the lease that it had before a re-entry that was to be renewed.
func (c *Client) endRenewalLocked(h *hold) {
	cl, now := h.claim, c.now()
	h.renewedFrom = 0
	cl.EndRenewal(now)
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
	if cl.Renewed() {
		h.count++
		h.offered = false
		c.unlock()
		return nil
	}
	lease, asked := cl.Reentry(now, a.o.lease)
	cl.StepSent(now, asked, c.stored(asked))
	c.unlock()

	res, err := step(ctx, c, backend.Session.Renew, cl.renewRequest(c.stored(asked)))

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
			return errAgain // by another call of the same party, meanwhile
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
	inner.Sent(sent, lease)
	c.unlock()

	res, err := c.acquireStep(ctx, inner, a.o.lease, inner.acquireRequest(lease, false))

	c.mu.Lock()
	defer c.unlock()
	if now := c.now(); inner.more.holds > 0 && now >= inner.Until() {
		c.loseClaimLocked(inner, c.ranOutLocked(inner, now)) // no answer brings that back
	}
	switch {
	case err != nil:
		if backend.KindOf(err) == backend.Unknown {
			inner.Stray()
		}
		if inner.dead && inner.Strays() {
			c.takeBackLocked(inner) // the write has ended, and with it what is to be released
		}
		return nil, err
	case !res.Acquired:
		c.loseLocked(w, gone) // else the store would have granted it
		return nil, errAgain
	case c.closed:
		return nil, ErrClosed
	case inner.dead:
		inner.Stray()
		c.takeBackLocked(inner) // it may have been carried out after its release
		return nil, errAgain
	}
	inner.Granted(sent, a.o.lease)
	if c.now() >= inner.Until() {
		return nil, errLate
	}
	first := inner.more.holds == 0
	if first { // else somebody has it since then
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

// innerLocked returns the claim with which the holder of a write reads.
func (c *Client) innerLocked(w *hold, a *acquisition) (*claim, error) {
	if !c.checkLocked(w) {
		return nil, errAgain
	}
	inner := w.inner()
	if inner == nil {
		inner = &claim{object: w.claim.object, kind: a.kind, owner: w.claim.owner, more: &more{under: w}}
		inner.Want(a.o.lease, false)
		w.claim.more.inner = inner
	}
	if inner.dead {
		return nil, ErrLost
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
