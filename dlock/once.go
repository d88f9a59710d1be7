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

// Once runs fn for that occasion of a job unless it has succeeded for it, or is running, anywhere. It is for jobs that every replica starts: name is the job's, and
// the occasion, which is the same for all of them, is what it is done for: a date, the time that it was scheduled for, the id of a message. It says whether fn ran, and of what it
// returns:
//
//	true, nil             it ran now, and succeeded
//	false, nil            it has succeeded before, here or elsewhere
//	false, ErrHeld        another is running it, or was when the store was asked: whether it succeeds nobody knows yet
//	true, fn's error      it ran now, and failed: whoever comes next runs it again
//	true, another error   it ran now, and succeeded, but that couldn't be noted: it may run again
//	false, another error  it wasn't tried: the store, or ctx, or the arguments didn't allow it
//
// Once never waits for another. Every call is a party of its own, whatever ctx holds, so within fn the same occasion is ErrHeld. fn gets the context of a hold,
// see [Hold.Context]: while it runs, its lock is renewed, and the context ends if that is lost. When fn has returned nil, the lock stays taken for keep, counted from then: who calls
// meanwhile is told that it has succeeded. When fn has returned an error, or panicked, or ended its goroutine, the lock is free at once.
//
// It is at least once. Where the process dies between the end of fn's work and the store's answer to the release, fn runs again, when the lease of its lock is over
// ([WithLease]). Where the lock was lost while fn ran another may have begun, and where the store didn't answer within 5 s ([ErrUnavailable]) the release goes on
// in the background and may come too late: if fn returned nil all the same, the error wraps [ErrLost], or ErrUnavailable, with the Op "unlock", and fn may run again. So
// fn should be such that it may.
//
// After keep the occasion is forgotten, and whoever still comes with it runs it again: keep must be longer than any two replicas may be apart, by the skew of their
// clocks, by how late they may start, and by how long one may repeat the call after an error. An hour is right for most jobs, and a day costs no more than a key for that time. A keep that isn't positive, or is longer than ten years,
// is an error, and so is an occasion that is empty; a store that can't keep what is released answers with an error that wraps [errors.ErrUnsupported]. All of this before fn
// runs. Errors are [*Error] with the Op "once", but for fn's own and those of the release.
//
// The lock is a plain one, as that of [Client.Locker]. Its name is "once:NAME@OCCASION", with %25 and %40 for % and @ in the job's name, and %25, %7B and %7D for %, { and } in the
// occasion, so that no two have the same: "once:report@2026-11-22". Under that name it is found in the store, by [Client.Locks] and
// [Client.Inspect], which say with Kept that it has succeeded; and [Locker.ForceUnlock] has the occasion run again. Braces in the
// job's name put all of its occasions into one slot of a Redis Cluster, as they do in the names of other locks.
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

// Once runs fn under the lock unless it has succeeded within the last keep, or is running, anywhere.
// It is [Client.Once] for the lock of that name, be it a plain or a fenced one, with options: what is
// said there of what it returns, of crashes and of keep holds for it, and so does the table. Keep is
// that of the call that ran fn.
//
// With [Wait] others wait until fn has succeeded, which is false and no error, or it is their turn:
//
//	ran, err := client.Locker("rates").Once(ctx, time.Minute, fetchRates, dlock.Wait(5*time.Second))
//
// Each of them is told when fn has succeeded or failed. After a failure one of them runs fn, in no
// particular order; after a crash, when the lease is over. When the wait is over, or ctx, the error
// wraps [ErrHeld] if another is still running it. The default is Wait(0): one attempt.
//
// What fn has computed isn't kept here: fn puts it where the others read it, a cache or a database,
// before it returns.
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
	h.claim.keep(c.now() + d)
}

var (
	onceNames     = strings.NewReplacer("%", "%25", "@", "%40")
	onceOccasions = strings.NewReplacer("%", "%25", "{", "%7B", "}", "%7D") // only the name's braces say anything
)

// onceName returns the name of the lock of a job and an occasion.
func onceName(name, occasion string) string {
	return "once:" + onceNames.Replace(name) + "@" + onceOccasions.Replace(occasion)
}
