package history

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/dlock"
)

// A Party is one user of one lock. A user is sequential: its calls, for any lock, are made one after
// the other.
type Party struct {
	User   int           // from 0
	Client int           // from 0
	Lease  time.Duration // that the client renews with
	Kind   backend.Kind  // of the Locker
	Locker *dlock.Locker
	Beside *Party // the same user at the other side of a read-write lock; nil if there is none

	// Shared says that other users use the same Locker, and no owner: then a call may wait for
	// them, whatever the lock does.
	Shared bool

	Recorder *Recorder
	held     int
	inside   context.Context // that of the innermost Do, or of the Hold
}

// Held returns how many holds the party has to give back.
func (p *Party) Held() int { return p.held }

func (p *Party) start(o op) *op {
	o.name, o.user, o.client, o.held, o.gated = p.Locker.Name(), p.User, p.Client, p.held, p.Shared
	o.side = p.Kind
	if o.side == backend.Read {
		o.reads = p.held
	} else if p.Beside != nil {
		o.reads = p.Beside.held
	}
	return p.Recorder.started(&o)
}

// holds says whether the user has anything of the lock, by its own count.
func (p *Party) holds() bool { return p.held > 0 || p.Beside != nil && p.Beside.held > 0 }

// Ask is how a lock is asked for.
type Ask struct {
	Try   bool          // TryLock; else LockContext
	Wait  time.Duration // 0: none for TryLock, any for LockContext
	Lease time.Duration // fixed; 0: it is renewed
}

func (a Ask) options() (opts []dlock.AcquireOption) {
	if a.Wait > 0 {
		opts = append(opts, dlock.Wait(a.Wait))
	}
	if a.Lease > 0 {
		opts = append(opts, dlock.FixedLease(a.Lease))
	}
	return opts
}

// op returns the call that asks so; lease is what the client renews with.
func (a Ask) op(name string, lease time.Duration) op {
	o := op{kind: acquire, text: name, lease: lease, waits: a.Wait > 0 || !a.Try}
	if a.Wait > 0 {
		o.text += fmt.Sprintf(", wait %v", a.Wait)
	}
	if a.Lease > 0 {
		o.lease, o.fixed = a.Lease, true
		o.text += fmt.Sprintf(", lease %v", a.Lease)
	}
	return o
}

// Acquire asks for the lock and says whether it was acquired.
func (p *Party) Acquire(ctx context.Context, a Ask) bool {
	name := "LockContext"
	if a.Try {
		name = "TryLock"
	}
	o := p.start(a.op(name, p.Lease))
	ctx = tagged(ctx, o)
	var ok bool
	var err error
	if a.Try {
		ok, err = p.Locker.TryLock(ctx, a.options()...)
	} else {
		err = p.Locker.LockContext(ctx, a.options()...)
		ok = err == nil
	}
	p.acquired(o, ok, err)
	return ok
}

func (p *Party) acquired(o *op, ok bool, err error) {
	res := yes
	switch {
	case ok:
		p.held++
	case err == nil:
		res = no
	case errors.Is(err, dlock.ErrLost) && p.holds():
		res = lost
	case errors.Is(err, dlock.ErrUpgrade):
		res = upgrade
	case errors.Is(err, dlock.ErrConflict):
		res = conflict
	default:
		res = failed // ErrNotAcquired too: it doesn't claim that another holds the lock
	}
	p.Recorder.ended(o, res, err)
}

// Unlock gives back one hold.
func (p *Party) Unlock(ctx context.Context) {
	o := p.start(op{kind: unlock, text: "Unlock"})
	p.unlocked(o, p.Locker.UnlockContext(tagged(ctx, o)))
}

func (p *Party) unlocked(o *op, err error) {
	p.held = max(p.held-1, 0)
	p.Recorder.ended(o, released(err), err)
}

// released returns what it means for a release to be answered so.
func released(err error) result {
	switch {
	case err == nil:
		return yes
	case errors.Is(err, dlock.ErrLost):
		return lost
	case errors.Is(err, dlock.ErrNotHeld):
		return notHeld
	default:
		return failed
	}
}

// Do calls f while the lock is held, and says whether it was.
func (p *Party) Do(ctx context.Context, a Ask, f func(ctx context.Context)) bool {
	first := p.start(a.op("Do", p.Lease))
	var last *op
	err := p.Locker.Do(tagged(ctx, first), func(in context.Context) error {
		first.asked = true
		first.token, _ = dlock.Token(in)
		p.acquired(first, true, nil)
		outer := p.inside
		p.inside = in
		f(in)
		p.inside = outer
		last = p.start(op{kind: unlock, text: "end of Do"})
		return nil
	}, a.options()...)
	if last == nil {
		p.acquired(first, false, err)
		return false
	}
	p.unlocked(last, err)
	return true
}

// Take asks for a Hold, which is nil if it wasn't acquired.
func (p *Party) Take(ctx context.Context, a Ask) *dlock.Hold {
	o := p.start(a.op("Acquire", p.Lease))
	h, err := p.Locker.Acquire(tagged(ctx, o), a.options()...)
	if err == nil {
		o.asked = true
		o.token, _ = h.Token()
		p.inside = h.Context()
	}
	p.acquired(o, err == nil, err)
	return h
}

// Release gives back what Take has returned.
func (p *Party) Release(ctx context.Context, h *dlock.Hold) {
	o := p.start(op{kind: unlock, text: "Release"})
	p.unlocked(o, h.Release(tagged(ctx, o)))
}

// Given notes a hold that the user didn't ask for itself: it was acquired on its behalf, and is given
// back after f. The context lasts as long as the hold can be relied on.
func (p *Party) Given(in context.Context, f func()) {
	o := op{kind: acquire, text: "given", lease: p.Lease, given: true, asked: true}
	o.token, _ = dlock.Token(in)
	p.acquired(p.start(o), true, nil)
	p.inside = in
	f()
	last := p.start(op{kind: unlock, text: "end of what was given"})
	p.held--
	p.Recorder.ended(last, failed, nil) // it goes on after this
}

// Check says whether the hold can be relied on, by the clock of its holder.
func (p *Party) Check(ctx context.Context) bool {
	o := p.start(op{kind: check, text: "valid?"})
	valid := false
	if p.inside != nil {
		valid = p.inside.Err() == nil
	} else {
		select {
		case <-p.Locker.Lost(ctx):
		default:
			valid = true
		}
	}
	p.answered(o, valid, nil)
	return valid
}

// IsHeld, HoldCount and IsLocked ask what the methods of a Locker ask.
func (p *Party) IsHeld(ctx context.Context) {
	o := p.start(op{kind: isHeld, text: "IsHeld"})
	held, err := p.Locker.IsHeld(tagged(ctx, o))
	p.answered(o, held, err)
}

// HoldCount is described at IsHeld.
func (p *Party) HoldCount(ctx context.Context) {
	o := p.start(op{kind: holdCount, text: "HoldCount"})
	n, err := p.Locker.HoldCount(tagged(ctx, o))
	o.count = n
	p.answered(o, n > 0, err)
}

// IsLocked is described at IsHeld.
func (p *Party) IsLocked(ctx context.Context) {
	o := p.start(op{kind: isLocked, text: "IsLocked"})
	locked, err := p.Locker.IsLocked(tagged(ctx, o))
	p.answered(o, locked, err)
}

// ForceUnlock frees the lock whoever holds it.
func (p *Party) ForceUnlock(ctx context.Context) {
	o := p.start(op{kind: forceUnlock, text: "ForceUnlock"})
	done, err := p.Locker.ForceUnlock(tagged(ctx, o))
	p.answered(o, done, err)
}

func (p *Party) answered(o *op, answer bool, err error) {
	res := no
	switch {
	case err != nil:
		res = failed
	case answer:
		res = yes
	}
	p.Recorder.ended(o, res, err)
}
