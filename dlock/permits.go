package dlock

import "iter"

// Permits of a semaphore are held by many at once, each with a claim of his own. What is special about
// them inside a client: it knows what it has out itself, and what the store has refused; and who waits may be
// handed what is given back while an attempt of his own is under way, since that is no reason to do without.

// out is the permits that this client has: a list of claims.
type out struct {
	first   *claim
	permits int
}

// A permit is a claim's place in that list.
type permit struct {
	holder      *hold // nil if nobody has it
	prev, next  *claim
	many, limit int // how many permits are claimed, and of how many
}

// permitted returns the holds of all who have permits.
func (o *object) permitted() iter.Seq[*hold] {
	return func(yield func(*hold) bool) {
		for cl := o.out.first; cl != nil; {
			next := cl.more.next
			if !yield(cl.more.holder) {
				return
			}
			cl = next
		}
	}
}

// keepPermits notes that somebody has permits, perhaps those that another had.
func (o *object) keepPermits(h *hold) {
	cl := h.claim
	if cl.more.holder == nil {
		cl.more.next = o.out.first
		if o.out.first != nil {
			o.out.first.more.prev = cl
		}
		o.out.first = cl
		o.out.permits += cl.more.many
	}
	cl.more.holder = h
}

// forgetPermitsLocked notes that permits are given back, or lost.
func (c *Client) forgetPermitsLocked(o *object, h *hold) {
	m := h.claim.more
	if m.holder != h {
		return
	}
	c.unscheduleLocked(&h.claim.alarm)
	if m.prev != nil {
		m.prev.more.next = m.next
	} else {
		o.out.first = m.next
	}
	if m.next != nil {
		m.next.more.prev = m.prev
	}
	m.holder, m.prev, m.next = nil, nil, nil
	o.out.permits -= m.many
}

// exhausts says whether what this client has out leaves too few for a call.
func (o *object) exhausts(a *acquisition) bool {
	return o.out.first != nil && a.o.limit > 0 && o.out.permits+a.o.permits > a.o.limit
}

// exhaustedLocked is exhausts with a look at the clock.
func (c *Client) exhaustedLocked(o *object, a *acquisition) bool {
	if !o.exhausts(a) {
		return false
	}
	for h := range o.permitted() {
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
