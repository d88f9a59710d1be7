package dlock

import "slices"

// When the store grants a claim, a hold begins. Claims of this client that can't exist beside it
// are lost.

// grant records that the store has granted the claim of a hold. It returns the hold.
func (h *hold) grant(s *state, sent instant) *hold {
	cl := h.claim
	cl.began = sent
	cl.alarm.task = cl
	cl.after = uint32(s.attempts)
	cl.supersede(s)
	o := s.open(cl.object)
	cl.object = o
	if cl.kind.Shared() {
		h.grantShared(s, o)
	} else {
		h.count = 1
		if cl.Renewed() {
			h.renewedFrom = 1
		}
		h.install(s)
	}
	s.schedule(&cl.alarm, cl.nextLook(s, sent))
	return h
}

// supersede ends this client's claims that can't coexist with cl, which the store has just granted.
func (cl *claim) supersede(s *state) {
	for _, mine := range s.object(cl.kind, cl.object.name).rivals(cl) {
		mine.lose(s, takenBy(cl.owner))
	}
}

// rivals returns this client's claims that can't coexist with cl in the store. Some of them might
// no longer be valid.
func (o *object) rivals(cl *claim) (all []*claim) {
	if o == nil || cl.kind.Many() {
		return nil
	}
	if o.alone == nil || o.alone != cl.retain() {
		if mine := o.passing(); mine != nil {
			all = append(all, mine)
		}
	}
	if cl.kind.Shared() {
		return all
	}
	for _, h := range o.readers() {
		all = append(all, h.claim)
	}
	if o.reading != nil && o.reading.young != nil {
		all = append(all, o.reading.young) // the claim of a reader that is leaving
	}
	return all
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

// install adds a hold to the client's tables. Waiting calls of the same party can then re-enter the
// hold, unless it is a hold of permits.
func (h *hold) install(s *state) {
	h.claim.object.keep(h)
	if h.kind.Many() {
		return
	}
	if v := h.variable(); v != nil {
		v.hold = h
		return
	}
	h.claim.object.mark(s, markEntered)
}

// overtaken reports whether another attempt of this client acquired the lock while a's attempt was
// under way. The store might have granted either attempt first, so it is unknown which of the two
// claims was lost. If there is such an attempt, overtaken asks the store about its claim, and the
// caller must make a new attempt for a.
func (a *acquisition) overtaken(s *state) (overtaken bool) {
	for _, mine := range s.object(a.kind, a.name).rivals(a.h.claim) {
		if int32(mine.after-uint32(a.attempt)) >= 0 && !mine.dead && s.now() < mine.Until() {
			mine.look(s)
			overtaken = true
		}
	}
	return overtaken
}

// begunSince reports whether this client holds the lock that the acquisition waits for, and got it
// with a request that was sent after the given time.
func (a *acquisition) begunSince(s *state, since instant) bool {
	now := s.now()
	return slices.ContainsFunc(a.in.object.rivals(a.h.claim), func(mine *claim) bool {
		return mine.began > since && !mine.dead && now < mine.Until()
	})
}
