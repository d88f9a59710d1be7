package dlock

import (
	"slices"
)

// Several parties of a client can read under a lock at once. These functions only keep their holds
// and claims. When they share a claim is decided in share.go.

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

// makeLatest makes a hold the latest of its party.
func (o *object) makeLatest(h *hold) {
	o.reading.holds[h.party] = h
	if v := h.variable(); v != nil {
		v.hold = h
	}
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

// inner returns the claim for the read locks of the party that has the write hold h, or nil.
func (h *hold) inner() *claim {
	if h.claim.more == nil {
		return nil
	}
	return h.claim.more.inner
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
