package dlock

import (
	"context"
	"errors"
	"fmt"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/dlock/internal/steps"
)

// Latch is a distributed count-down latch. Processes count it down, and waiters proceed when the
// count reaches zero. It is open while it has no count: before the first [Latch.Set], and once it
// has been counted down. On Redis and Valkey it is a Redisson RCountDownLatch, which Java programs
// may share.
//
// A latch isn't a lock. It has no holder and no lease. The store doesn't know which processes
// should count down. So if one of them dies, the count stays, and the waiters wait until their
// contexts end. Another process must then count down instead. If the work must go on after a crash,
// use a lock for each part, or [Client.Once]. The store keeps a count until it reaches zero.
//
// An open latch can be set again under the same name. But a waiter that missed the end of the old
// count then waits for the new one as well, and a late CountDown decrements the new count. So use a
// new name for each occasion, such as "import:2026-11-22".
//
// Making a Latch is cheap and does no I/O. It is safe for concurrent use. If the store has no
// latches, every error wraps [errors.ErrUnsupported].
type Latch struct {
	client *Client
	name   string
}

// Latch returns the latch with the given name.
func (c *Client) Latch(name string) *Latch {
	if c == nil || c.store == nil {
		panic("dlock: a Client that is nil, or wasn't made by New")
	}
	return &Latch{c, name}
}

// Name returns the latch's name.
func (l *Latch) Name() string { l.mustBeMade(); return l.name }

// Set gives the latch a count, and reports whether it did. False means that the latch already has a
// count, which is left unchanged. So each participant may call Set. An n below 1 is an error.
//
// It returns the same errors as [Locker.IsLocked]. After [ErrUnavailable] the count might have been
// set, or might be set later.
func (l *Latch) Set(ctx context.Context, n int64) (bool, error) {
	if n < 1 {
		l.mustBeMade()
		return false, l.wrap("set", fmt.Errorf("a count of %d: %w", n, errTooFew))
	}
	res, err := l.step(ctx, backend.LatchRequest{Step: backend.SetLatch, Count: n})
	return res.Set, l.wrap("set", err)
}

// CountDown decrements the count. When the count reaches zero, the waiters proceed. If the latch is
// open, CountDown does nothing.
//
// It returns the same errors as [Locker.IsLocked]. A request that certainly wasn't carried out is
// retried for at most 5 s. After [ErrUnavailable] the count might have been decremented, or might
// be decremented later. A second call might then count twice, and open the latch too early, so
// check [Latch.Count] first.
func (l *Latch) CountDown(ctx context.Context) error {
	l.mustBeMade()
	mustBeContext(ctx)
	within, cancel := context.WithTimeout(ctx, longestRelease)
	defer cancel()
	var tries backoff
	for {
		_, err := l.step(ctx, backend.LatchRequest{Step: backend.CountDown})
		if err == nil || backend.KindOf(err) != backend.Retry || errors.Is(err, ErrClosed) ||
			!l.client.store.Pause(within, tries.next(firstBackoff, longestRelease)) {
			return l.wrap("countdown", err)
		}
	}
}

// Count returns the count, which is 0 if the latch is open. It returns the same errors as
// [Locker.IsLocked].
func (l *Latch) Count(ctx context.Context) (int64, error) {
	res, err := l.step(ctx, backend.LatchRequest{})
	return res.Count, l.wrap("count", err)
}

// Wait waits until the latch is open or ctx ends. It keeps waiting while the store can't be
// reached. The store notifies the client, and Wait also polls now and then. If ctx ends, Wait
// returns the error of ctx, joined with the error of the last request if that failed. It returns
// [ErrClosed] if the client is closed, and the store's error if the store refuses a request.
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
	res, err = steps.Do(ctx, l.client.store, steps.Of(l.client.store.Latcher.Latch), req)
	if err != nil {
		return backend.LatchResult{}, l.client.stepError(ctx, err)
	}
	return res, nil
}

// usable returns an error if the latch can't be used at all.
func (l *Latch) usable(ctx context.Context) error {
	l.mustBeMade()
	mustBeContext(ctx)
	switch {
	case l.name == "":
		return errEmptyName
	case l.client.store.Latcher == nil:
		return l.client.unknownKind(backend.Latch)
	}
	return l.client.over(ctx)
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
