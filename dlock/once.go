package dlock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/seed951563bd/distsync/backend"
)

// Once runs fn for an occasion of a job, unless fn has succeeded for it, or is running, anywhere.
// It is for jobs that every replica starts. The name is the job's. The occasion is the same for all
// replicas: a date, the scheduled time, the id of a message. Once says whether fn ran:
//
//	true, nil             it ran now, and succeeded
//	false, nil            it has succeeded before, here or elsewhere
//	false, ErrHeld        another is running it, or was when the store was asked
//	true, fn's error      it ran now, and failed: the next call runs it again
//	true, another error   it ran now, and succeeded, but that couldn't be noted: it may run again
//	false, another error  it wasn't tried: the store, or ctx, or the arguments didn't allow it
//
// Once never waits for another. Every call is an owner of its own, whatever ctx says, so within fn
// the same occasion is ErrHeld. fn gets the context of a hold (see [Hold.Context]): its lock is
// renewed while it runs, and the context ends if the lock is lost. If fn returns nil, the lock
// stays taken for keep from then on, and other calls are told that fn has succeeded. If fn returns
// an error, panics, or ends its goroutine, the lock is free at once.
//
// fn runs at least once, and may run again in three cases, so it should allow for that:
//
//   - The process dies after fn's work and before the store has answered the release. Then fn runs
//     again when the lease is over ([WithLease]).
//   - The lock was lost while fn ran, so another may have begun. The error wraps [ErrLost], with
//     the Op "unlock", also if fn returned nil.
//   - The store didn't answer the release within 5 s. The release goes on in the background, and
//     may come too late. The error wraps [ErrUnavailable], with the Op "unlock".
//
// After keep the occasion is forgotten, and a later call runs fn again. So keep must be longer than
// any two replicas may be apart: by their clocks, by a late start, and by repeated calls after an
// error. An hour is right for most jobs; a day costs no more than a key for that time.
//
// These are errors before fn runs: a keep that isn't positive, or above ten years; an empty
// occasion; and a store that can't keep a lock taken, which wraps [errors.ErrUnsupported]. Errors
// are [*Error] with the Op "once", except fn's own and those of the release.
//
// The lock is a plain one, as that of [Client.Locker]. Its name is "once:NAME@OCCASION", such as
// "once:report@2026-11-22", with %25 and %40 for % and @ in the job's name, and %25, %7B and %7D
// for %, { and } in the occasion. [Client.Locks] and [Client.Inspect] find it by that name, and say
// with Kept that fn has succeeded. [Locker.ForceUnlock] has the occasion run again. Braces in the
// job's name put all its occasions into one slot of a Redis Cluster.
func (c *Client) Once(ctx context.Context, name, occasion string, keep time.Duration, fn func(context.Context) error) (ran bool, err error) {
	l := newLocker(c, backend.Exclusive, onceName(name, occasion))
	switch {
	case name == "":
		err = errEmptyName
	case occasion == "":
		err = errNoOccasion
	}
	return l.once(ctx, err, keep, fn, nil)
}

// Once runs fn under the lock unless fn has succeeded within the last keep, or is running,
// anywhere. It is [Client.Once] for a plain or fenced lock of any name, with options: its results,
// crashes and keep are as there. The keep of the call that ran fn counts.
//
// With [Wait] others wait until fn has succeeded, which is false and no error, or until it is their
// turn:
//
//	ran, err := client.Locker("rates").Once(ctx, time.Minute, fetchRates, dlock.Wait(5*time.Second))
//
// Each of them is told when fn has succeeded or failed. After a failure one of them runs fn, in no
// particular order; after a crash, when the lease is over. When the wait or ctx is over, the error
// wraps [ErrHeld] if another is still running fn. The default is Wait(0): one attempt.
//
// The result of fn isn't kept here: before it returns, fn puts it where the others read it, such as
// a cache or a database.
func (l *Locker) Once(ctx context.Context, keep time.Duration, fn func(context.Context) error, opts ...AcquireOption) (ran bool, err error) {
	l.mustBeMade()
	return l.once(ctx, nil, keep, fn, opts)
}

// once is Once, unless wrong says that the call can't be made.
func (l *Locker) once(ctx context.Context, wrong error, keep time.Duration, fn func(context.Context) error, opts []AcquireOption) (ran bool, err error) {
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
			l.client.keep(h, keep)
		}
		return err
	})
}

// mayKeep says what speaks against doing something once.
func (l *Locker) mayKeep(keep time.Duration, fn func(context.Context) error) error {
	if fn == nil {
		return errNoFunction
	}
	if err := checkKeep(keep); err != nil {
		return err
	}
	if l.kind != backend.Exclusive && l.kind != backend.Fenced {
		return fmt.Errorf("there is no Once of a %v lock, but of plain and fenced ones: %w", l.kind, errors.ErrUnsupported)
	}
	return l.keeps()
}

var errNoOccasion = errors.New("the occasion is empty")

// unlessKept acquires the lock for a party of its own. Without a hold and an error the lock is kept,
// and so nobody is inside.
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
		last error // what is known
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
				return nil, err // it says all of that
			}
			return nil, gaveUp(why, last)
		}
		last, free = err, !res.Held
		switch {
		case free && !tries && err == ErrHeld: // it has just become so
			continue
		case w == nil:
			w = l.client.lookOut(ctx, backend.SubscribeRequest{
				Kind: rules[l.kind].family.representative(), Name: l.name,
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

// gaveUp is the error of a call that has waited until it couldn't go on, with what it knew last.
func gaveUp(why, last error) error {
	switch why {
	case ErrClosed:
		return why
	case errWaited:
		why = ErrNotAcquired
	}
	return both(why, last)
}

// keep has the lock of a hold stay taken for so long from now.
func (c *Client) keep(h *hold, d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	cl := h.claim
	cl.Keep(c.now()+d, cl.Confirmed(cl.began))
}

var (
	onceNames     = strings.NewReplacer("%", "%25", "@", "%40")
	onceOccasions = strings.NewReplacer("%", "%25", "{", "%7B", "}", "%7D") // only the name's braces say anything
)

// onceName returns the name of the lock of a job and an occasion.
func onceName(name, occasion string) string {
	return "once:" + onceNames.Replace(name) + "@" + onceOccasions.Replace(occasion)
}
