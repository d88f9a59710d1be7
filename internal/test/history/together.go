package history

import (
	"context"
	"errors"
	"strings"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/dlock"
)

// TakeAll asks for a Hold of several locks for one user, by way of [dlock.All], which is nil if they weren't acquired. It is recorded as a call for each.
func TakeAll(ctx context.Context, parties []*Party, a Ask) *dlock.Hold {
	var ops []*op
	var lockers []*dlock.Locker
	for _, p := range parties {
		o := p.start(a.op("Acquire of all", p.Lease))
		o.rounds, o.waits = true, false // for the others, too, however free this one is
		ops, lockers = append(ops, o), append(lockers, p.Locker)
	}
	h, err := dlock.All(lockers...).Acquire(tagged(ctx, ops...), a.options()...)
	var holders []string
	if err == nil {
		holders = strings.Split(h.HolderID(), ", ")
	}
	for i, p := range parties {
		if err == nil {
			ops[i].holder = holders[i]
		}
		p.acquired(ops[i], err == nil, errorOf(err, p.Locker.Name(), errOther))
	}
	return h
}

// errOther is what a call says of the locks that it hasn't failed for.
var errOther = errors.New("another of the locks was not acquired")

// ReleaseAll gives back what TakeAll has returned.
func ReleaseAll(ctx context.Context, parties []*Party, h *dlock.Hold) {
	var ops []*op
	for _, p := range parties {
		ops = append(ops, p.start(op{kind: unlock, text: "Release of all"}))
	}
	err := h.Release(tagged(ctx, ops...))
	for i, p := range parties {
		p.unlocked(ops[i], errorOf(err, p.Locker.Name(), nil))
	}
}

// errorOf returns what an error says of a lock, or what it means for that if it is about others.
func errorOf(err error, name string, others error) error {
	if several, ok := err.(interface{ Unwrap() []error }); ok {
		for _, err := range several.Unwrap() {
			if err := errorOf(err, name, nil); err != nil {
				return err
			}
		}
		return others
	}
	if e, ok := errors.AsType[*dlock.Error](err); ok && e.Name != name {
		return others
	}
	return err
}

// takeAll is a round with several locks at once, of which each has one holder: what others of a client join while a call has it, and then gives
// back, can't be told from what they have asked for themselves.
func (u *user) takeAll(ctx context.Context) {
	var parties []*Party
	for _, i := range u.dice.Perm(len(u.w.Locks))[:2+u.dice.IntN(len(u.w.Locks)-1)] {
		if l := u.w.Locks[i]; !several(l.Kind) && l.Kind != backend.Write {
			parties = append(parties, u.party(l))
		}
	}
	if len(parties) < 2 {
		return
	}
	h := TakeAll(ctx, parties, u.askAndWait())
	if h == nil {
		u.pause(ctx, u.upTo(u.w.Pace/8))
		return
	}
	for range u.dice.IntN(3) {
		for _, p := range parties {
			p.Check(h.Context())
		}
		u.pause(ctx, u.upTo(u.w.Pace/4))
	}
	ReleaseAll(ctx, parties, h)
}
