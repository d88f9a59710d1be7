package dlock

import "iter"

// Several holders can hold permits of one semaphore at the same time, each with its own claim. A
// client treats permits specially in two ways. First, it counts the permits that it holds and
// remembers the last request that was refused, so it doesn't send requests that would fail. Second,
// released permits can be handed to a call while its own attempt is under way.

// An out is a linked list of the claims on permits that this client holds.
type out struct {
	first   *claim
	permits int
}

// A permit holds those fields of a claim that only claims on permits need, such as the links in the
// list of claims (see out).
type permit struct {
	holder      *hold // nil if no hold rests on it
	prev, next  *claim
	many, limit int // permits claimed, and the semaphore's limit
}

// permitted returns the holds of permits.
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

// keepPermits records a hold of permits. If the permits were handed over from another hold, their
// claim is already in the list.
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

// forgetPermits removes a hold whose permits were released or lost.
func (o *object) forgetPermits(s *state, h *hold) {
	m := h.claim.more
	if m.holder != h {
		return
	}
	s.unschedule(&h.claim.alarm)
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

// exhausts reports whether this client's own holds leave too few permits for a call.
func (o *object) exhausts(a *acquisition) bool {
	return o.out.first != nil && a.o.limit > 0 && o.out.permits+a.o.permits > a.o.limit
}

// A refusal describes the latest request that the store refused because it asked for more permits
// than were left. The request came from the lead of the queue.
type refusal struct {
	permits, limit int // permits is 0 if nothing was refused
	again          instant
}

// refuses reports whether the store would also refuse call a, if nothing has changed since the
// refusal r.
func (r refusal) refuses(a *acquisition) bool {
	return r.permits > 0 && a.o.permits >= r.permits &&
		(a.o.limit == r.limit || r.limit > 0 && a.o.limit > 0 && a.o.limit < r.limit)
}
