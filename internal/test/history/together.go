package history

import (
	"context"
	"errors"
	"strings"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/dlock"
)

// TakeAll acquires a Hold of several locks for one user, with [dlock.All]. It returns nil if that
// failed. It records a call for each lock.
func TakeAll(ctx context.Context, parties []*Party, a Ask) *dlock.Hold {
	var ops []*op
	var lockers []*dlock.Locker
	for _, p := range parties {
		o := p.start(a.op("Acquire of all", p.Lease))
		// the call can give this lock back, and leave it free while it waits for another one
		o.rounds, o.waits = true, false
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

// errOther is the error recorded for a lock if the call failed because of another lock.
var errOther = errors.New("another of the locks was not acquired")

// ReleaseAll gives back a Hold of TakeAll.
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

// errorOf returns the part of err that concerns the named lock. If err concerns only other locks,
// errorOf returns the parameter others.
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

// takeAll is a round that acquires several locks at once. It uses only kinds of lock that have a
// single holder. With other kinds, a call could acquire a hold, let other users share it, and then
// give it back because another lock is taken. The check couldn't tell such a hold from one that
// those users acquired themselves.
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
