package dlock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/dlock/internal/protocol"
)

// Once runs fn for an occasion of a job, unless another call, in any process, is running fn for
// this occasion or has already succeeded. It is for jobs that every replica starts. The parameter
// name is the name of the job. The occasion is the same for all replicas, for example a date, the
// scheduled time, or the id of a message. Once reports whether this call ran fn:
//
//	true, nil             it ran now, and succeeded
//	false, nil            it has succeeded before, here or elsewhere
//	false, ErrHeld        another call is running it, or was when the store was asked
//	true, fn's error      it ran now, and failed, so the next call runs it again
//	true, another error   it ran now, and succeeded, but it may run again (see below)
//	false, another error  it didn't run, because of the store, ctx or the arguments
//
// Once never waits for another call. Each call is a separate owner, whatever owner ctx names. So
// within fn, a call for the same occasion returns ErrHeld. fn gets the context of a hold (see
// [Hold.Context]): the lock is renewed while fn runs, and the context ends if the lock is lost. If
// fn returns nil, the lock then stays taken for the duration keep, and other calls are told that fn
// has succeeded. If fn returns an error, panics, or ends its goroutine, the lock is free at once.
//
// fn runs at least once for an occasion. It must cope with running more than once, since it can run
// again in three cases:
//
//   - The process dies after fn's work and before the store has answered the release. Then fn runs
//     again when the lease has run out ([WithLease]).
//   - The lock was lost while fn ran, so another call might have begun to run it. The error wraps
//     [ErrLost], with the Op "unlock", even if fn returned nil.
//   - The store didn't answer the release within 5 s. The release goes on in the background, and
//     might come too late. The error wraps [ErrUnavailable], with the Op "unlock".
//
// After the duration keep, the occasion is forgotten, and a later call runs fn again. So keep must
// be longer than the greatest time between the calls of any two replicas. Wrong clocks, late
// starts, and repeated calls after an error increase that time. An hour is right for most jobs.
// Even a day costs no more than one key in the store for a day.
//
// Once fails before fn runs if keep isn't positive or is above ten years, if the occasion is empty,
// or if the store can't keep a lock taken. In the last case the error wraps
// [errors.ErrUnsupported]. Every error is an [*Error] with the Op "once", unless it comes from fn
// or from the release.
//
// The lock is a plain one (see [Client.Locker]). Its name is "once:NAME@OCCASION", such as
// "once:report@2026-11-22", with %25 and %40 for % and @ in the job's name, and %25, %7B and %7D
// for %, { and } in the occasion. [Client.Locks] and [Client.Inspect] find it by that name. Once fn
// has succeeded, their results have Kept set. After [Locker.ForceUnlock] the occasion can run
// again. Braces in the job's name put all its occasions into one slot of a Redis Cluster.
func (c *Client) Once(
	ctx context.Context, name, occasion string, keep time.Duration, fn func(context.Context) error,
) (ran bool, err error) {
	l := newLocker(c, protocol.Kind(backend.Exclusive), onceName(name, occasion))
	switch {
	case name == "":
		err = errEmptyName
	case occasion == "":
		err = errNoOccasion
	}
	return l.once(ctx, err, keep, fn, nil)
}

// Once runs fn under the lock, unless another call, in any process, is running fn or has succeeded
// in running it. After a success, no call runs fn until the successful call's keep time has passed.
// Once is like [Client.Once], but for a plain or fenced lock of any name, and with options. The
// comment of Client.Once explains the results, what happens after a crash, and how to choose keep.
//
// With [Wait], a call waits while another call runs fn. If fn succeeds in that other call, the
// waiting call returns false without an error:
//
//	rates := client.Locker("rates")
//	ran, err := rates.Once(ctx, time.Minute, fetchRates, dlock.Wait(5*time.Second))
//
// Each waiting call is told when fn has succeeded or failed. After a failure, the first waiting
// call that gets the lock runs fn. After a crash, one of them runs fn when the lease has run out.
// If the wait or ctx ends while another call is still running fn, the error wraps [ErrHeld]. The
// default is Wait(0): a single attempt.
//
// The lock doesn't store the result of fn. Before it returns, fn must write its result to a place
// that the other callers read, such as a cache or a database.
func (l *Locker) Once(
	ctx context.Context, keep time.Duration, fn func(context.Context) error, opts ...AcquireOption,
) (ran bool, err error) {
	l.mustBeMade()
	return l.once(ctx, nil, keep, fn, opts)
}

// once implements both Once methods. wrong is an error in the caller's arguments, or nil.
func (l *Locker) once(
	ctx context.Context, wrong error, keep time.Duration, fn func(context.Context) error,
	opts []AcquireOption,
) (ran bool, err error) {
	mustBeContext(ctx)
	if wrong == nil {
		wrong = l.mayKeep(keep, fn)
	}
	if wrong != nil {
		return false, l.wrap("once", wrong)
	}
	h, err := l.unlessKept(ctx, opts)
	if h == nil {
		return false, l.wrap("once", err)
	}
	in := stay{locker: l, hold: h, ctx: ctx, alone: true}
	return true, in.run(func(ctx context.Context) error {
		err := fn(ctx)
		if err == nil {
			h.keep(l.client, keep)
		}
		return err
	})
}

// mayKeep returns an error if the Locker can't run fn, or can't then keep the lock taken for the
// given time.
func (l *Locker) mayKeep(keep time.Duration, fn func(context.Context) error) error {
	if fn == nil {
		return errNoFunction
	}
	if err := checkKeep(keep); err != nil {
		return err
	}
	if l.kind.Family() != protocol.Locks || l.kind.Placed() {
		return fmt.Errorf("there is no Once of a %v lock, but of plain and fenced ones: %w", l.kind,
			errors.ErrUnsupported)
	}
	return l.keeps()
}

var errNoOccasion = errors.New("the occasion is empty")

// unlessKept acquires the lock for a new owner. If the lock is kept, which means that fn has
// already succeeded in another call, unlessKept returns neither a hold nor an error.
func (l *Locker) unlessKept(ctx context.Context, opts []AcquireOption) (*hold, error) {
	if err := l.usable(ctx); err != nil {
		return nil, err
	}
	o, err := l.options(acquireOptions{bounded: true}, opts)
	if err != nil {
		return nil, err
	}
	ctx, cancel := waitContext(ctx, o)
	defer cancel()
	who := caller{party: NewOwner(), alone: true}
	opts = append(slices.Clip(opts), Wait(0))
	var (
		w    *lookout
		last error // the store's last answer
	)
	defer func() { w.close() }()
	for free := true; ; {
		tries, res := free, backend.LookResult{}
		if tries {
			h, e := l.acquire(ctx, who, acquireOptions{}, opts)
			if e == nil {
				return h, nil
			}
			err = e
		}
		if !tries || isHeld(err) {
			last = ErrHeld
			switch res, err = l.look(ctx); {
			case err == nil && res.Kept:
				return nil, nil
			case err == nil:
				err = ErrHeld
			}
		}
		if o.wait == 0 {
			return nil, err
		}
		if why := l.client.over(ctx); why != nil {
			if last == nil && !errors.Is(err, errWaited) {
				return nil, err // err already wraps why
			}
			return nil, gaveUp(why, last)
		}
		last, free = err, !res.Held
		switch {
		case free && !tries && err == ErrHeld: // the lock has just become free
			continue
		case w == nil:
			w = l.client.lookOut(ctx, backend.SubscribeRequest{
				Kind: l.kind.Family().Representative(), Name: l.name,
			})
		}
		if err == ErrHeld && w.wait(ctx, res.Remaining) || err != ErrHeld && w.waitAfter(ctx, err) {
			continue
		}
		if why := l.client.over(ctx); why != nil {
			return nil, gaveUp(why, last)
		}
		return nil, err
	}
}

// gaveUp returns the error of a call that couldn't wait any longer. why is the reason, and last is
// the error of its last request to the store, or nil.
func gaveUp(why, last error) error {
	switch why {
	case ErrClosed:
		return why
	case errWaited:
		why = ErrNotAcquired
	}
	return both(why, last)
}

// keep keeps the lock of a hold taken for d from now, even if the hold is released earlier.
func (h *hold) keep(c *Client, d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	cl := h.claim
	cl.Keep(c.now()+d, cl.Confirmed(cl.began))
}

var (
	onceNames = strings.NewReplacer("%", "%25", "@", "%40")

	// Braces in a key determine its slot in a Redis Cluster. A job's name is allowed to contain
	// such braces. An occasion isn't, so its braces are escaped.
	onceOccasions = strings.NewReplacer("%", "%25", "{", "%7B", "}", "%7D")
)

// onceName returns the name of the lock for an occasion of a job.
func onceName(name, occasion string) string {
	return "once:" + onceNames.Replace(name) + "@" + onceOccasions.Replace(occasion)
}
