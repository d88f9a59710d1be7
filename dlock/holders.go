package dlock

import "github.com/seed951563bd/distsync/dlock/internal/protocol"

// Before a client asks the store, it looks at its own holds. They can let a call in, keep it out,
// or be what an unlock is about. Holds that have expired don't count: a look ends them.

// excludes reports whether this client has a hold that excludes the call. It ignores the holds of
// the given party, unless the lock is a semaphore.
func (o *object) excludes(s *state, a *acquisition, but party) bool {
	if o == nil {
		return false
	}
	if a.kind.Many() {
		return o.exhausted(s, a)
	}
	if h := o.alone; h != nil && h.party != but && h.check(s) {
		return true
	}
	return !a.kind.Shared() && o.isRead(s, but)
}

// exhausted is like exhausts, but first ends holds that have expired.
func (o *object) exhausted(s *state, a *acquisition) bool {
	if !o.exhausts(a) {
		return false
	}
	for h := range o.permitted() {
		h.check(s)
	}
	return o.exhausts(a)
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

// current returns p's hold of the given kind, or nil.
func (o *object) current(s *state, kind protocol.Kind, p party) *hold {
	if o == nil {
		return nil
	}
	h := o.alone
	if kind.Shared() {
		h = o.reader(p)
	}
	if h == nil || h.party != p || h.kind != kind || !h.check(s) {
		return nil
	}
	return h
}

// ownHold returns the hold of a call's party, or nil. It returns an error if the party already
// holds the lock in a way that rules out what the call asks for.
func (a *acquisition) ownHold(s *state) (*hold, error) {
	o := s.object(a.kind, a.name)
	if h := o.current(s, a.kind, a.party); h != nil || o == nil {
		return h, nil
	}
	alone := o.alone
	switch {
	case alone != nil && alone.party == a.party && alone.check(s):
		if !a.kind.Shared() {
			return nil, errOtherKind
		}
		return alone, nil
	case !a.kind.Shared() && o.reader(a.party) != nil && o.reader(a.party).check(s):
		return nil, ErrUpgrade
	default:
		return nil, nil
	}
}

// reads reports whether the call wants to read and its party already holds the lock for reading,
// because another of the party's calls was faster.
func (a *acquisition) reads(s *state) bool {
	return a.kind.Shared() && a.variable() == nil &&
		s.object(a.kind, a.name).current(s, a.kind, a.party) != nil
}

// reenters reports whether the call's party has a hold. The call either re-enters that hold or is
// excluded by it.
func (a *acquisition) reenters(s *state) bool {
	if a.variable() != nil || a.kind.Many() {
		return false
	}
	h, err := a.ownHold(s)
	return h != nil || err != nil
}

// known returns an error if the client knows, without asking the store, that the call can't have
// the lock.
func (a *acquisition) known(s *state) error {
	var but party
	if v := a.variable(); v == nil {
		but = a.party
	} else if h := v.hold; h != nil && !h.check(s) && h.state == lost && v.hold == h {
		return errNotUnlocked // not for readers, since their v.hold is nil after a loss
	}
	o := s.object(a.kind, a.name)
	switch held := o.excludes(s, a, but); {
	case held && !a.kind.Many():
		return errHeldHere
	case held || a.kind.Many() && o != nil && o.queue != nil:
		return errHeld
	default:
		return nil
	}
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
