package dlock

import (
	"context"
	"errors"
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
	mustBeContext(ctx)
	if err := l.mayKeep(name, occasion, keep, fn); err != nil {
		return false, l.wrap("once", err)
	}
	got, err := l.enterAs(ctx, caller{party: NewOwner(), alone: true}, acquireOptions{bounded: true}, nil)
	if isHeld(err) {
		return false, l.wrap("once", l.unlessKept(ctx))
	}
	if err != nil {
		return false, l.wrap("once", err)
	}
	return true, got.run(func(ctx context.Context) error {
		err := fn(ctx)
		if err == nil {
			c.keep(got.hold, keep)
		}
		return err
	})
}

// mayKeep says what speaks against doing something once.
func (l *Locker) mayKeep(name, occasion string, keep time.Duration, fn func(context.Context) error) error {
	switch {
	case name == "":
		return errEmptyName
	case occasion == "":
		return errNoOccasion
	case fn == nil:
		return errNoFunction
	}
	if err := checkKeep(keep); err != nil {
		return err
	}
	return l.keeps()
}

var errNoOccasion = errors.New("the occasion is empty")

// unlessKept is nil if a lock that was held is kept now, and so nobody is inside.
func (l *Locker) unlessKept(ctx context.Context) error {
	switch res, err := l.look(ctx); {
	case err != nil:
		return err // it may have succeeded
	case res.Kept:
		return nil
	default:
		return ErrHeld
	}
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
