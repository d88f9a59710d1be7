package dlock

// Permits of a semaphore are held by many at once, each with a claim of his own. What is special about
// them inside a client: it knows what it has out itself, and what the store has refused; and who waits may be
// handed what is given back while an attempt of his own is under way, since that is no reason to do without.

// out is the permits that this client has.
type out struct {
	holds   map[*claim]*hold
	permits int
}

// permitted returns the holds of all who have permits.
func (o *object) permitted() map[*claim]*hold {
	if o.out == nil {
		return nil
	}
	return o.out.holds
}

// holder returns the hold that rests on a claim of permits, or nil.
func (o *object) holder(cl *claim) *hold { return o.permitted()[cl] }

// keepPermits notes that somebody has permits, perhaps those that another had.
func (o *object) keepPermits(h *hold) {
	if o.out == nil {
		o.out = &out{holds: make(map[*claim]*hold)}
	}
	if o.out.holds[h.claim] == nil {
		o.out.permits += h.claim.more.permits
	}
	o.out.holds[h.claim] = h
}

// forgetPermitsLocked notes that permits are given back, or lost.
func (c *Client) forgetPermitsLocked(o *object, h *hold) {
	if o.holder(h.claim) != h {
		return
	}
	c.unscheduleLocked(&h.claim.alarm)
	delete(o.out.holds, h.claim)
	o.out.permits -= h.claim.more.permits
	if len(o.out.holds) == 0 {
		o.out = nil
	}
}

// exhausts says whether what this client has out leaves too few for a call.
func (o *object) exhausts(a *acquisition) bool {
	return o.out != nil && a.o.limit > 0 && o.out.permits+a.o.permits > a.o.limit
}

// exhaustedLocked is exhausts with a look at the clock.
func (c *Client) exhaustedLocked(o *object, a *acquisition) bool {
	if !o.exhausts(a) {
		return false
	}
	for _, h := range o.out.holds {
		c.checkLocked(h)
	}
	return o.exhausts(a)
}

// A refusal is what the store has said last to the lead of a queue: so many are too many.
type refusal struct {
	permits, limit int // 0: nothing that is known
	again          instant
}

// refuses says whether the store would say the same to another, if nothing has happened since.
func (r refusal) refuses(a *acquisition) bool {
	return r.permits > 0 && a.o.permits >= r.permits && (a.o.limit == r.limit || r.limit > 0 && a.o.limit > 0 && a.o.limit < r.limit)
}

// spareLocked lets the next in the queue have what the store has granted to one who had been handed permits meanwhile, or
// gives it back.
func (c *Client) spareLocked(h *hold) {
	if a := c.nextLocked(h.claim, h); a != nil {
		h.state = released
		c.inheritLocked(a, h.claim)
		return
	}
	c.backgroundLocked(func() { c.giveBack(c.ctx, h) })
}
