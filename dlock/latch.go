package dlock

import (
	"context"
	"errors"
	"fmt"

	"github.com/seed951563bd/distsync/backend"
)

// Latch is a distributed count-down latch: some count it down, in any processes, and those who wait
// go on when it is zero. It is open while it has no count: before the first [Latch.Set], and again
// when it has been counted down. On Redis and Valkey it is a Redisson RCountDownLatch, which Java
// programs may share.
//
// It is no lock: nobody holds it, and it has no lease. The store doesn't know who is to count down.
// So where a process dies that was to do so, the count stays as it is, for ever, and those who wait
// do, until their contexts end; somebody must count down in its stead. Where work is to go on after
// a death, take a lock for each part of it, or [Client.Once]. A count also stays in the store until
// it is zero: a name that nobody counts down any more is never forgotten.
//
// A latch can be set anew as soon as it is open, under the same name. Whoever still waits for the
// last count then, and hasn't looked since, waits for the new one, too, and a late CountDown counts
// for that. So a name for each occasion is better, "import:2026-11-22".
//
// Making a Latch is cheap and does no I/O. It is safe for concurrent use. A store that has no
// latches answers every call with an error that wraps [errors.ErrUnsupported].
type Latch struct {
	client *Client
	name   string
}

// Latch returns the latch of that name.
func (c *Client) Latch(name string) *Latch {
	if c == nil || c.session == nil {
		panic("dlock: a Client that is nil, or wasn't made by New")
	}
	return &Latch{c, name}
}

// Name returns the latch's name.
func (l *Latch) Name() string { l.mustBeMade(); return l.name }

// Set gives the latch a count, and says whether it did: false means that it has one already, which
// stays as it is. So each of those who take part may set it. An n below 1 is an error.
//
// Errors are those of [Locker.IsLocked]. After [ErrUnavailable] the count may have been set, or be
// set later.
func (l *Latch) Set(ctx context.Context, n int64) (bool, error) {
	if n < 1 {
		l.mustBeMade()
		return false, l.wrap("set", fmt.Errorf("a count of %d: %w", n, errTooFew))
	}
	res, err := l.step(ctx, backend.LatchRequest{Step: backend.SetLatch, Count: n})
	return res.Set, l.wrap("set", err)
}

// CountDown takes one from the count. If that was the last, those who wait go on. If the latch is
// open it does nothing.
//
// Errors are those of [Locker.IsLocked]. What certainly wasn't carried out is tried again, for 5 s
// at most. After [ErrUnavailable] it may have counted, or count later: to call it again may count
// twice, and open the latch too early; [Latch.Count] may tell.
func (l *Latch) CountDown(ctx context.Context) error {
	l.mustBeMade()
	mustBeContext(ctx)
	within, cancel := context.WithTimeout(ctx, longestRelease)
	defer cancel()
	var tries backoff
	for {
		_, err := l.step(ctx, backend.LatchRequest{Step: backend.CountDown})
		if err == nil || backend.KindOf(err) != backend.Retry || errors.Is(err, ErrClosed) ||
			!l.client.pause(within, tries.next(firstBackoff, longestRelease)) {
			return l.wrap("countdown", err)
		}
	}
}

// Count returns the count: 0 if the latch is open. Errors are those of [Locker.IsLocked].
func (l *Latch) Count(ctx context.Context) (int64, error) {
	res, err := l.step(ctx, backend.LatchRequest{})
	return res.Count, l.wrap("count", err)
}

// Wait waits until the latch is open, as long as ctx allows, also while the store can't be reached.
// It is told when that is, and looks now and then besides. An error is that of ctx, with what the
// store said last if that was one; [ErrClosed]; or what the store refuses.
func (l *Latch) Wait(ctx context.Context) error {
	l.mustBeMade()
	return l.wrap("wait", l.wait(ctx))
}

func (l *Latch) wait(ctx context.Context) error {
	if err := l.usable(ctx); err != nil {
		return err
	}
	var w *lookout
	defer func() { w.close() }()
	for last := error(nil); ; {
		res, err := l.step(ctx, backend.LatchRequest{})
		if err == nil && res.Count <= 0 {
			return nil
		}
		if why := l.client.over(ctx); why != nil {
			return gaveUp(why, last)
		}
		if w == nil {
			w = l.client.lookOut(ctx, backend.SubscribeRequest{Kind: backend.Latch, Name: l.name})
		}
		switch last = err; {
		case err == nil && w.wait(ctx, 0), err != nil && w.waitAfter(ctx, err):
			continue
		}
		if why := l.client.over(ctx); why != nil {
			return gaveUp(why, last)
		}
		return err
	}
}

// step takes a step of the latch.
func (l *Latch) step(
	ctx context.Context, req backend.LatchRequest,
) (res backend.LatchResult, err error) {
	if err := l.usable(ctx); err != nil {
		return res, err
	}
	req.Name = l.name
	res, err = step(ctx, l.client, latchStep, req)
	if err != nil {
		return backend.LatchResult{}, l.client.stepError(ctx, err)
	}
	return res, nil
}

// usable says what speaks against using the latch at all.
func (l *Latch) usable(ctx context.Context) error {
	l.mustBeMade()
	mustBeContext(ctx)
	switch {
	case l.name == "":
		return errEmptyName
	case l.client.latcher == nil:
		return l.client.unknownKind(backend.Latch)
	}
	return l.client.over(ctx)
}

func latchStep(
	s backend.Session, ctx context.Context, req backend.LatchRequest,
) (backend.LatchResult, error) {
	return s.(backend.Latcher).Latch(ctx, req)
}

func (l *Latch) wrap(op string, err error) error {
	if err == nil {
		return nil
	}
	return &Error{Op: op, Name: l.name, Err: err}
}

func (l *Latch) mustBeMade() {
	if l == nil || l.client == nil {
		panic("dlock: a Latch that is nil, or wasn't made by a Client")
	}
}
