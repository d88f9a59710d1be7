package history

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/dlock"
)

// A Party is one user of one lock. A user has at most one call in progress, across all locks.
type Party struct {
	User   int           // from 0
	Client int           // from 0
	Lease  time.Duration // the client's lease for renewed holds
	Kind   backend.Kind  // kind of the Locker
	Locker *dlock.Locker
	Beside *Party // same user on the other side of a read-write lock; otherwise nil

	// Shared reports whether other users call the same Locker without a [dlock.Owner] to tell them
	// apart. A call may then wait for those users even if the lock is free.
	Shared bool

	Recorder *Recorder
	held     int
	inside   context.Context // context of the innermost Do, or of the Hold
}

// Held returns how many holds the party hasn't released yet.
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

// holds reports whether the user holds any side of the lock, by its own count.
func (p *Party) holds() bool { return p.held > 0 || p.Beside != nil && p.Beside.held > 0 }

// Ask holds the options of an acquiring call.
type Ask struct {
	Try   bool          // TryLock instead of LockContext
	Wait  time.Duration // 0 means a single attempt for TryLock, and no limit for LockContext
	Lease time.Duration // the fixed lease; 0 if the hold is renewed
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

// op returns the op for a call with these options. lease is the client's lease for renewed holds.
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

// Acquire tries to acquire the lock, and reports whether it did.
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
		res = failed // even for ErrNotAcquired, which doesn't prove that another owner holds it
	}
	p.Recorder.ended(o, res, err)
}

// Unlock releases one hold, and records the answer.
func (p *Party) Unlock(ctx context.Context) {
	o := p.start(op{kind: unlock, text: "Unlock"})
	p.unlocked(o, p.Locker.UnlockContext(tagged(ctx, o)))
}

func (p *Party) unlocked(o *op, err error) {
	p.held = max(p.held-1, 0)
	p.Recorder.ended(o, released(err), err)
}

// released returns the result of a release that returned err.
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

// Do acquires the lock and calls f while it is held. It reports whether the lock was acquired.
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

// Take acquires a Hold. It returns nil if that failed.
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

// Release releases a Hold that Take returned, and records the answer.
func (p *Party) Release(ctx context.Context, h *dlock.Hold) {
	o := p.start(op{kind: unlock, text: "Release"})
	p.unlocked(o, h.Release(tagged(ctx, o)))
}

// Given calls f, and records that the user holds the lock during that call. Other code must have
// acquired the hold, and must release it after Given returns. The parameter in is the context of
// the hold. It ends when the hold can no longer be relied on.
func (p *Party) Given(in context.Context, f func()) {
	o := op{kind: acquire, text: "given", lease: p.Lease, given: true, asked: true}
	o.token, _ = dlock.Token(in)
	p.acquired(p.start(o), true, nil)
	p.inside = in
	f()
	last := p.start(op{kind: unlock, text: "end of what was given"})
	p.held--
	p.Recorder.ended(last, failed, nil) // unknown, since the other code releases the hold later
}

// Check reports whether the hold is still valid according to its holder's clock, and records the
// answer.
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

// IsHeld calls the Locker's IsHeld method, and records the answer.
func (p *Party) IsHeld(ctx context.Context) {
	o := p.start(op{kind: isHeld, text: "IsHeld"})
	held, err := p.Locker.IsHeld(tagged(ctx, o))
	p.answered(o, held, err)
}

// HoldCount calls the Locker's HoldCount method, and records the answer.
func (p *Party) HoldCount(ctx context.Context) {
	o := p.start(op{kind: holdCount, text: "HoldCount"})
	n, err := p.Locker.HoldCount(tagged(ctx, o))
	o.count = n
	p.answered(o, n > 0, err)
}

// IsLocked calls the Locker's IsLocked method, and records the answer.
func (p *Party) IsLocked(ctx context.Context) {
	o := p.start(op{kind: isLocked, text: "IsLocked"})
	locked, err := p.Locker.IsLocked(tagged(ctx, o))
	p.answered(o, locked, err)
}

// ForceUnlock frees the lock, whoever holds it, and records the answer.
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
