package main

import (
	"context"
	"errors"
	"time"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/dlock"
)

// A borrowing is a visit that uses a semaphore: a user acquires permits, and gives them back.
type borrowing struct {
	*visit
	semaphore *dlock.Semaphore
}

// borrow acquires some permits of a semaphore in a random way, and releases them.
func (u *user) borrow(name string) {
	limit := permits
	if u.oneIn(6) {
		limit++
	}
	v := &visit{
		user: u, line: u.current(), ctx: context.Background(), use: use{name, backend.Permits},
	}
	v.hold = hold{
		Visit: u.next(), Name: name, Asked: now(), Lease: u.Lease, Shared: true,
		Permits: 1 + u.dice.IntN(permits), Limit: limit,
	}
	b := &borrowing{v, v.line.client.Semaphore(name, limit)}
	v.fix()
	if u.oneIn(2) {
		b.do()
	} else {
		b.take()
	}
	v.leave()
}

// patience returns the options and the context for one call. A timer cancels the context after a
// random time. As soon as the user has the permits, it must stop the timer by calling in(), which
// returns false if the timer has already fired.
func (b *borrowing) patience() (
	ctx context.Context, opts []dlock.AcquireOption, in func() bool, cancel context.CancelFunc,
) {
	opts = b.opts
	if b.oneIn(3) {
		opts = append(opts, dlock.Wait(b.upTo(b.Lease)))
	} else if b.oneIn(4) {
		opts = append(opts, dlock.Wait(0))
	}
	ctx, cancel = context.WithCancel(b.ctx)
	timer := time.AfterFunc(b.upTo(2*b.Lease), cancel)
	return ctx, opts, timer.Stop, cancel
}

func (b *borrowing) do() {
	ctx, opts, in, cancel := b.patience()
	defer cancel()
	lost := false
	err := b.semaphore.Do(ctx, b.hold.Permits, func(ctx context.Context) error {
		if in() {
			lost = b.stayWith(ctx, "Do")
		}
		return nil
	}, opts...)
	b.expectPermits("Do", err, lost)
}

func (b *borrowing) take() {
	ctx, opts, in, cancel := b.patience()
	defer cancel()
	h, err := b.semaphore.Acquire(ctx, b.hold.Permits, opts...)
	b.expectPermits("Acquire", err, false)
	if err != nil {
		return
	}
	lost := in() && b.stayWith(h.Context(), "Acquire")
	b.expectPermits("Release", h.Release(b.ctx), lost)
}

// expectPermits reports a violation if no fault explains err, or if the permits were lost and err
// doesn't say so.
func (b *borrowing) expectPermits(what string, err error, lost bool) {
	b.expect(what, err)
	if errors.Is(err, dlock.ErrTooMany) || errors.Is(err, dlock.ErrNoLimit) {
		b.wrong("%s: %v", what, err)
	}
	if lost && !errors.Is(err, dlock.ErrLost) {
		b.wrong("%s, though the permits were lost, returned %v", what, err)
	}
}

// stayWith does random things while permits are held, and reports whether the permits were lost.
func (b *borrowing) stayWith(ctx context.Context, how string) (lost bool) {
	b.enter(how)
	b.valid = func() bool { return ctx.Err() == nil }
	b.linger(func() {
		ctx, cancel := context.WithTimeout(b.ctx, b.Lease)
		defer cancel()
		_, err := b.semaphore.Available(ctx)
		b.expectPermits("Available", err, false)
	})
	lost = ctx.Err() != nil && errors.Is(context.Cause(ctx), dlock.ErrLost)
	b.hold.Lost = lost
	b.report(0)
	return lost
}
