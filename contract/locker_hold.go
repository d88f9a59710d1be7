package contract

import (
	"context"
	"errors"
	"time"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/dlock"
)

// holdCases test Acquire and its Hold, for code that acquires and releases in different functions.
var holdCases = []testCase{
	{name: "Acquire",
		rule: "two calls on one Locker are two contenders, and neither is a plain call",
		run:  locker(acquireTwice)},
	{name: "Acquire and re-entry",
		rule: "the context of a Hold carries it, in any goroutine, until it is released",
		tags: differs, run: locker(acquireReenters)},
	{name: "Acquire in the name of an owner", rule: "re-enters what the owner holds",
		run: locker(acquireForOwner)},
	{name: "Release",
		rule: "releases the lock even if the contexts have ended, and returns ErrNotHeld the " +
			"second time",
		tags: forReaders, run: locker(releaseOnce)},
	{name: "a Hold that is lost",
		rule: "its channel is closed, its context ends with cause ErrLost, and Release returns " +
			"ErrLost",
		tags: forReaders, run: locker(lostHold)},
	{name: "a Hold and Close",
		rule: "its context ends with cause ErrClosed, and Release still releases", tags: forReaders,
		run: locker(holdAndClose)},
	{name: "holds within holds",
		rule: "each context owns the holds of all contexts around it, even with another lock " +
			"between",
		run: locker(nestedHolds)},
}

// acquire calls Acquire, and fails the test on an error.
func (l *lab) acquire(lk *dlock.Locker, opts ...dlock.AcquireOption) *dlock.Hold {
	l.Helper()
	h, err := lk.Acquire(l.ctx, opts...)
	l.noError(err, "Acquire")
	return h
}

// release calls Release, and fails the test on an error.
func (l *lab) release(h *dlock.Hold) {
	l.Helper()
	l.noError(h.Release(l.ctx), "Release")
}

func acquireTwice(l *lab) {
	p := l.process()
	lk := p.Locker("a")
	h := l.acquire(lk)
	if h.Name() != "a" {
		l.Errorf("Name() is %q", h.Name())
	}
	_, err := lk.Acquire(l.ctx, dlock.Wait(0))
	l.wantError(err, "a second Acquire of the Locker", dlock.ErrNotAcquired)
	if l.tryLock(lk) {
		l.Fatal("a plain call got in beside a Hold")
	}
	l.wantError(lk.UnlockContext(l.ctx), "a plain unlock while a Hold has the lock",
		dlock.ErrNotHeld)
	l.wantHeld("a", "after that")
	second := l.start("a second Acquire", func() error {
		h, err := lk.Acquire(l.ctx)
		if err != nil {
			return err
		}
		return h.Release(l.ctx)
	})
	second.waits()
	l.release(h)
	second.ok()
	l.eventuallyFree("a")
	l.lock(lk)
	_, err = lk.Acquire(l.ctx, dlock.Wait(0))
	l.wantError(err, "Acquire while the Locker is locked", dlock.ErrNotAcquired)
	l.unlock(lk)
	l.wantFree("a", "in the end")
}

func acquireReenters(l *lab) {
	p, q := l.process(), l.process()
	lk, same := p.Locker("a"), p.Locker("a")
	h := l.acquire(lk)
	inner, err := same.Acquire(h.Context())
	l.noError(err, "Acquire with the context of a Hold")
	l.start("a re-entry in another goroutine", func() error {
		return same.LockContext(h.Context())
	}).ok()
	l.noError(lk.Do(inner.Context(), func(ctx context.Context) error {
		if n, err := lk.HoldCount(ctx); err != nil || n != 4 {
			l.Errorf("HoldCount within: %d, %v; want 4", n, err)
		}
		return nil
	}), "Do with the context of a Hold")
	if ok, err := q.Locker("a").TryLock(h.Context()); ok || err != nil {
		l.Errorf("TryLock by another client with the context of a Hold: %v, %v", ok, err)
	}
	l.noError(lk.UnlockContext(h.Context()), "UnlockContext")
	l.release(inner)
	l.wantHeld("a", "while one of two Holds is left")
	after := context.WithoutCancel(h.Context())
	l.release(h)
	l.wantFree("a", "after the last Release")
	_, err = lk.Acquire(after)
	l.wantError(err, "Acquire with the context of a Hold that is over", dlock.ErrNotHeld)
	l.wantFree("a", "after that")
}

func acquireForOwner(l *lab) {
	p := l.process()
	lk, ctx := p.Locker("a"), l.ctxOf()
	l.noError(lk.LockContext(ctx), "LockContext")
	h, err := lk.Acquire(ctx)
	l.noError(err, "Acquire by the owner")
	if n, err := lk.HoldCount(ctx); err != nil || n != 2 {
		l.Errorf("HoldCount of the owner: %d, %v; want 2", n, err)
	}
	_, err = lk.Acquire(l.ctxOf(), dlock.Wait(0))
	l.wantError(err, "Acquire by another owner", dlock.ErrNotAcquired)
	l.release(h)
	l.wantHeld("a", "after the Release of a re-entry")
	l.noError(lk.UnlockContext(ctx), "UnlockContext")
	l.wantFree("a", "in the end")
}

func releaseOnce(l *lab) {
	p := l.process()
	lk := p.Locker("a")
	ctx, cancel := context.WithCancel(l.ctx)
	h, err := lk.Acquire(ctx)
	l.noError(err, "Acquire")
	lost := h.Lost()
	cancel()
	if !isOver(h.Context().Done()) || context.Cause(h.Context()) != context.Canceled {
		l.Errorf("the context of a Hold whose caller has gone: %v", context.Cause(h.Context()))
	}
	l.wantHeld("a", "after the context of Acquire has ended")
	l.noError(h.Release(ctx), "Release with a context that is over")
	l.wantFree("a", "after Release")
	err = h.Release(l.ctx)
	l.wantError(err, "the second Release", dlock.ErrNotHeld)
	l.not(err, "the second Release", dlock.ErrLost)
	if isOver(lost) || isOver(h.Lost()) {
		l.Error("Lost is closed by a Release")
	}
	h = l.acquire(lk)
	l.release(h)
	if h.Context().Err() == nil {
		l.Error("the context of a Hold goes on after Release")
	}
	next := l.acquire(lk)
	l.wantError(h.Release(l.ctx), "the second Release, while another has the lock",
		dlock.ErrNotHeld)
	l.wantHeld("a", "after that")
	l.release(next)
}

func lostHold(l *lab) {
	p := l.process()
	lk := p.Locker("a")
	h := l.acquire(lk, dlock.FixedLease(l.shortLease()))
	token, numbered := h.Token()
	l.eventuallyOver("the Hold is lost", h.Lost())
	l.eventuallyOver("its context has ended", h.Context().Done())
	if cause := context.Cause(h.Context()); !errors.Is(cause, dlock.ErrLost) {
		l.Errorf("the context of a Hold that was lost ended with cause %v", cause)
	}
	l.eventuallyFree("a")
	next := l.acquire(lk)
	l.wantError(h.Release(l.ctx), "Release of what was lost", dlock.ErrLost)
	l.wantError(h.Release(l.ctx), "the second Release", dlock.ErrNotHeld)
	l.wantHeld("a", "after the Release of the lost hold")
	if again, ok := h.Token(); again != token || ok != numbered ||
		numbered != (l.kind == backend.Fenced) {
		l.Errorf("the token of a %v lock is %d, %v, and %d, %v after a loss", l.kind, token,
			numbered, again, ok)
	}
	l.release(next)
}

func holdAndClose(l *lab) {
	p := l.process()
	lk := p.Locker("a")
	h := l.acquire(lk)
	l.noError(p.Client.Close(), "Close")
	l.eventuallyOver("the context has ended", h.Context().Done())
	if cause := context.Cause(h.Context()); !errors.Is(cause, dlock.ErrClosed) {
		l.Errorf("the context of a Hold ended with cause %v when the client was closed", cause)
	}
	if !isOver(h.Lost()) {
		l.Error("Lost is open after Close")
	}
	l.wantHeld("a", "after Close")
	l.noError(h.Release(l.ctx), "Release after Close")
	l.wantFree("a", "after Release")
	_, err := lk.Acquire(l.ctx)
	l.wantError(err, "Acquire after Close", dlock.ErrClosed)
}

func nestedHolds(l *lab) {
	p := l.process()
	x, y := p.Locker("x"), p.Locker("y")
	outer := l.acquire(x)
	between, err := y.Acquire(outer.Context())
	l.noError(err, "Acquire of another lock within a Hold")
	inner, err := x.Acquire(between.Context(), dlock.Wait(time.Minute))
	l.noError(err, "Acquire of the first lock within both")
	if n, err := x.HoldCount(inner.Context()); err != nil || n != 2 {
		l.Errorf("HoldCount of the first: %d, %v; want 2", n, err)
	}
	if n, err := y.HoldCount(inner.Context()); err != nil || n != 1 {
		l.Errorf("HoldCount of the one between: %d, %v; want 1", n, err)
	}
	l.release(outer) // Holds may be released in any order
	l.wantHeld("x", "while the inner Hold is left")
	l.release(between)
	l.release(inner)
	l.wantFree("x", "in the end")
	l.wantFree("y", "in the end")

	// WithOwner inside Do takes precedence over the hold of that Do.
	l.noError(x.Do(l.ctx, func(ctx context.Context) error {
		_, err := x.Acquire(dlock.WithOwner(ctx, dlock.NewOwner()), dlock.Wait(0))
		l.wantError(err, "Acquire by an owner that is named within a Do", dlock.ErrNotAcquired)
		return nil
	}), "Do")
}
