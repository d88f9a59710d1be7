package contract

import (
	"context"
	"errors"
	"time"

	"github.com/seed951563bd/distsync/dlock"
)

// replyCases test steps whose outcome the client doesn't know.
var replyCases = []testCase{
	{name: "an acquisition without an answer",
		rule: "in the end the caller holds the lock, or the lock is free",
		tags: Essential | differs, run: locker(lostAcquire)},
	{name: "an acquisition without an answer that isn't repeated", rule: "is taken back",
		tags: Essential | forReaders, run: locker(lostTryLock)},
	{name: "an acquisition carried out late", rule: "after its caller has left, is taken back",
		tags: forReaders, run: locker(lateAcquire)},
	{name: "an answer later than its lease",
		rule: "doesn't count as an acquisition, and the acquisition is taken back",
		run:  locker(answerPastLease)},
	{name: "a waiter that got in otherwise",
		rule: "doesn't use the number of its pending attempt, which is taken back",
		run:  locker(joinedInFlight)},
	{name: "a cancelled acquisition", rule: "leaves nothing behind", tags: forReaders,
		run: locker(cancelledAcquire)},
	{name: "a re-entry without an answer",
		rule: "isn't counted, and the last release also releases what the store counts in excess",
		run:  locker(lostReentry)},
	{name: "a re-entry carried out late",
		rule: "after its caller has left, even after the last release, leaves nothing behind",
		run:  locker(lateReentry)},
	{name: "a re-entry in doubt with a short lease",
		rule: "may be carried out late: the client relies on no longer lease than that while the " +
			"hold lasts",
		run: locker(doubtfulLease)},
	{name: "a partial release without an answer",
		rule: "succeeds, isn't sent again, and the last release releases the rest",
		run:  locker(lostPartial)},
	{name: "a last release without an answer",
		rule: "is repeated, succeeds, and never frees the next owner", tags: Essential | differs,
		run: locker(lostRelease)},
	{name: "a last release carried out late",
		rule: "after the next owner got in, doesn't free that owner's lock",
		tags: forReaders, run: locker(lateRelease)},
	{name: "a last release that gets through to nobody",
		rule: "returns in time, and goes on in the background", tags: forReaders,
		run: locker(hangingRelease)},
	{name: "an unlock that goes on in the background",
		rule: "releases the hold that it was called for, and no later one",
		run:  locker(backgroundUnlock)},
	{name: "UnlockContext with a context that is over", rule: "still releases",
		tags: forReaders, run: locker(unlockOverContext)},
	{name: "a renewal carried out late", rule: "after the lock changed hands, changes nothing",
		tags: forReaders, run: locker(lateRenewal)},
	{name: "every fault of every step",
		rule: "no two are ever inside at once, and after the leases the lock is free",
		run:  locker(everyFault)},
}

// lostAcquire covers redis/rueidis#1010, where a command canceled in the pipeline acquires the lock
// later.
func lostAcquire(l *lab) {
	for what, f := range map[string]fault{
		"reply lost":   replyLost,
		"request lost": requestLost,
		"not sent":     notSent,
	} {
		p, q := l.process(), l.process()
		p.next(2, which{kind: acquireStep}, f)
		lk := p.Locker(what)
		l.lock(lk)
		sent := p.steps(which{kind: acquireStep})
		if len(sent) != 3 {
			l.Errorf("%s twice: sent %d acquisitions, want 3", what, len(sent))
		}
		for _, s := range sent {
			if s.owner != sent[0].owner {
				l.Errorf("%s: the attempts of one acquisition have the numbers %q and %q", what,
					sent[0].owner, s.owner)
			}
		}
		if n, err := lk.HoldCount(l.ctx); err != nil || n != 1 {
			l.Errorf("%s: HoldCount: %d, %v", what, n, err)
		}
		if l.tryLock(q.Locker(what)) {
			l.Errorf("%s: another got in", what)
		}
		l.unlock(lk)
		// the unlock repeats the release until nothing is left to release
		l.wantFree(what, "after the unlock, "+what)
		l.lock(q.Locker(what))
		l.settle()
		l.wantHeld(what, "after the next owner got in, "+what)
	}
}

func lostTryLock(l *lab) {
	p, q := l.process(), l.process()
	p.plain = true
	p.next(1, which{kind: acquireStep}, replyLost)
	lk := p.Locker("a")
	ok, err := lk.TryLock(l.ctx)
	l.wantError(err, "TryLock without an answer", errFault)
	if ok {
		l.Error("TryLock without an answer: true")
	}
	l.eventuallyFree("a")
	next := q.Locker("a")
	l.lock(next)
	// For the length of a lease, the client keeps sending releases for the abandoned owner. That
	// must not affect the next holder.
	if l.h.Virtual {
		l.sleep(2 * l.calm())
	}
	l.wantHeld("a", "while a number of another is taken back")
	l.unlock(next)
	if !l.tryLock(lk) {
		l.Error("after the taking back the Locker can't be locked")
	}
	l.unlock(lk)
}

func lateAcquire(l *lab) {
	p := l.process()
	p.plain = true
	leave := map[string]func(lk *dlock.Locker, r *rule) error{
		"TryLock": func(lk *dlock.Locker, _ *rule) error {
			_, err := lk.TryLock(l.ctx)
			return err
		},
		"LockContext, cancelled": func(lk *dlock.Locker, r *rule) error {
			ctx, cancel := context.WithCancel(l.ctx)
			defer cancel()
			c := l.start("LockContext", func() error { return lk.LockContext(ctx) })
			l.eventually("it has asked", func() bool { return r.hits() > 0 })
			cancel()
			return c.result()
		},
		"LockContext, its Wait over": func(lk *dlock.Locker, r *rule) error {
			for { // the wait may end before the first request
				if err := lk.LockContext(l.ctx, dlock.Wait(20*time.Millisecond)); err == nil ||
					r.hits() > 0 {
					return err
				}
			}
		},
	}
	for name, way := range leave {
		open := make(chan struct{})
		r := p.on(which{kind: acquireStep, name: name}, late(open))
		err := way(p.Locker(name), r)
		r.off()
		if err == nil {
			l.Fatalf("%s without an answer: no error", name)
		}
		// The late acquisition arrives after the client has asked the store to release that hold.
		l.eventually("it is taken back", func() bool {
			return p.count(which{kind: releaseStep, name: name}) >= 2
		})
		close(open)
		l.eventually("the acquisition is carried out, late", func() bool {
			return p.steps(which{kind: acquireStep, name: name})[0].carriedOut
		})
		l.eventuallyFree(name)
		l.lock(p.Locker(name))
	}
}

func answerPastLease(l *lab) {
	p := l.process()
	lk := p.Locker("a")
	open := make(chan struct{})
	r := p.next(1, which{kind: acquireStep}, replyHangs(open))
	c := l.start("TryLock", func() error {
		ok, err := lk.TryLock(l.ctx, dlock.FixedLease(l.shortLease()))
		if ok {
			return errors.New("true")
		}
		return err
	})
	l.eventually("it is carried out", func() bool {
		return r.hits() == 1 && p.steps(which{kind: acquireStep})[0].carriedOut
	})
	l.eventuallyFree("a")
	l.take("a", "other:1") // the first lease has expired, so another owner can acquire the lock
	close(open)
	err := c.result()
	l.wantError(err, "TryLock, answered after its lease")
	l.settle()
	l.wantHeld("a", "after the answer that came too late")
	l.noError(l.give("a", "other:1"), "release")

	// After the late answer, LockContext tries again with a new owner string. Requests that it sent
	// before the answer came carry the first owner string.
	open = make(chan struct{})
	r = p.next(1, which{kind: acquireStep}, replyHangs(open))
	before := p.count(which{kind: acquireStep})
	c = l.start("LockContext", func() error {
		return lk.LockContext(l.ctx, dlock.FixedLease(l.shortLease()))
	})
	l.eventually("it is carried out", func() bool {
		return r.hits() == 1 && p.steps(which{kind: acquireStep})[before].carriedOut
	})
	l.eventuallyFree("a")
	asked := p.count(which{kind: acquireStep}) - before
	close(open)
	c.ok()
	sent := p.steps(which{kind: acquireStep})[before:]
	if len(sent) < 2 || asked == 1 && sent[0].owner == sent[1].owner {
		l.Errorf("after an answer that came too late: %d attempts, and the first two have the "+
			"same number", len(sent))
	}
	if err := lk.UnlockContext(l.ctx); err != nil {
		l.wantError(err, "the unlock", dlock.ErrLost) // on a busy machine the hold may be lost
	}

	// Here the store grants the lock only after the lease has expired by the client's clock. The
	// client must release the hold.
	open = make(chan struct{})
	r = p.next(1, which{kind: acquireStep, name: "b"}, hangs(open))
	c = l.start("TryLock", func() error {
		_, err := p.Locker("b").TryLock(l.ctx, dlock.FixedLease(l.shortLease()))
		return err
	})
	l.eventually("it is sent", func() bool { return r.hits() == 1 })
	l.sleep(l.shortLease())
	close(open)
	l.wantError(c.result(), "TryLock, carried out and answered after its lease")
	l.eventuallyFree("b")
	if p.count(which{kind: releaseStep, name: "b"}) == 0 {
		l.Error("an acquisition answered too late wasn't taken back")
	}
}

func joinedInFlight(l *lab) {
	p := l.process()
	o := dlock.NewOwner()
	ctx := dlock.WithOwner(l.ctx, o)
	lk := p.Locker("a")
	open := make(chan struct{})
	r := p.next(1, which{kind: acquireStep}, hangs(open))
	first := l.start("the first attempt", func() error { return lk.LockContext(ctx) })
	l.eventually("it is sent", func() bool { return r.hits() == 1 })
	// TryLock doesn't wait for the first call's attempt
	if ok, err := lk.TryLock(ctx); err != nil || !ok {
		l.Fatalf("TryLock: %v, %v", ok, err)
	}
	close(open)
	first.ok()
	if n, err := lk.HoldCount(ctx); err != nil || n != 2 {
		l.Errorf("HoldCount: %d, %v, want 2", n, err)
	}
	l.noError(lk.UnlockContext(ctx), "UnlockContext")
	l.wantHeld("a", "after one of two unlocks")
	l.noError(lk.UnlockContext(ctx), "UnlockContext")
	l.eventuallyFree("a")

	// Here the store grants the first call's attempt, and the answer is delayed. In the meantime
	// the owner's second call acquires the lock.
	open = make(chan struct{})
	r = p.next(1, which{kind: acquireStep, name: "b"}, replyHangs(open))
	lk = p.Locker("b")
	first = l.start("the first attempt", func() error { return lk.LockContext(ctx) })
	l.eventually("it is sent", func() bool { return r.hits() == 1 })
	l.vanishOnce("b")
	if ok, err := lk.TryLock(ctx); err != nil || !ok {
		l.Fatalf("TryLock: %v, %v", ok, err)
	}
	close(open)
	first.ok()
	if n := l.look("b", p.owner("b")).Count; n != 2 {
		l.Errorf("the store counts %d holds of the number that is held, want 2", n)
	}
	l.noError(lk.UnlockContext(ctx), "UnlockContext")
	l.noError(lk.UnlockContext(ctx), "UnlockContext")
	l.eventuallyFree("b")
}

// vanishOnce waits until the lock is held in the store, and then deletes it.
func (l *lab) vanishOnce(name string) {
	l.Helper()
	l.eventually(name+" is held in the store", func() bool { return l.look(name, "").Held })
	l.vanish(name)
}

func cancelledAcquire(l *lab) {
	p := l.process()
	p.plain = true
	lk := p.Locker("a")
	// Here the acquisition is carried out, but its answer comes after the call has returned.
	open := make(chan struct{})
	r := p.next(1, which{kind: acquireStep}, replyHangs(open))
	ctx, cancel := context.WithCancel(l.ctx)
	defer cancel()
	c := l.start("LockContext", func() error { return lk.LockContext(ctx) })
	l.eventually("it is sent", func() bool { return r.hits() == 1 })
	l.eventually("it is carried out", func() bool { return l.look("a", "").Held })
	cancel()
	l.wantError(c.result(), "LockContext, cancelled", context.Canceled)
	close(open)
	l.eventuallyFree("a")

	// Here the call is canceled while it waits for the lock. It must leave nothing behind, and the
	// next release must not give it the lock.
	l.take("b", "other:1")
	ctx, cancel = context.WithCancel(l.ctx)
	defer cancel()
	c = l.start("LockContext", func() error { return p.Locker("b").LockContext(ctx) })
	c.waits()
	cancel()
	l.wantError(c.result(), "LockContext, cancelled", context.Canceled)
	l.noError(l.give("b", "other:1"), "release")
	l.settle()
	l.wantFree("b", "after the only waiter was cancelled")
	l.eventually("the subscription is gone", func() bool { return p.subscriptions("b") == 0 })
}

func lostReentry(l *lab) {
	for what, f := range map[string]fault{
		"reply lost":   replyLost,
		"request lost": requestLost,
		"not sent":     notSent,
	} {
		p := l.process()
		lk, ctx := p.Locker(what), l.ctxOf()
		l.noError(lk.LockContext(ctx), "LockContext")
		p.next(1, which{kind: reentryStep}, f)
		ok, err := lk.TryLock(ctx)
		l.wantError(err, "a re-entry, "+what, errFault)
		if ok {
			l.Error("true and an error")
		}
		if n, err := lk.HoldCount(ctx); err != nil || n != 1 {
			l.Errorf("HoldCount after a re-entry, %s: %d, %v", what, n, err)
		}
		p.next(2, which{kind: reentryStep}, f)
		l.noError(lk.LockContext(ctx), "a re-entry that is tried again, "+what)
		if n, err := lk.HoldCount(ctx); err != nil || n != 2 {
			l.Errorf("HoldCount after a re-entry that was tried again, %s: %d, %v", what, n, err)
		}
		l.noError(lk.UnlockContext(ctx), "UnlockContext")
		l.wantHeld(what, "after one of two unlocks, "+what)
		l.noError(lk.UnlockContext(ctx), "UnlockContext")
		l.wantFree(what, "after the last unlock, "+what)
	}
}

func lateReentry(l *lab) {
	p, q := l.process(), l.process()
	lk, ctx := p.Locker("a"), l.ctxOf()
	for _, taken := range []bool{false, true} {
		l.noError(lk.LockContext(ctx), "LockContext")
		open := make(chan struct{})
		p.next(1, which{kind: reentryStep}, late(open))
		_, err := lk.TryLock(ctx)
		l.wantError(err, "a re-entry without an answer", errFault)
		l.noError(lk.UnlockContext(ctx), "UnlockContext")
		l.wantFree("a", "after the last unlock")
		if taken {
			l.lock(q.Locker("a"))
		}
		// No hold with this owner string is left in the store, so the late re-entry would begin a
		// new hold.
		owner, before := p.owner("a"), p.count(which{kind: releaseStep})
		close(open)
		if taken {
			l.settle()
			l.wantHeld("a", "after a late re-entry of an earlier holder")
			if res := l.look("a", owner); res.Count != 0 {
				l.Errorf("a late re-entry got in: %+v", res)
			}
			continue
		}
		l.eventually("the number is released again", func() bool {
			return p.count(which{kind: releaseStep}) > before
		})
		l.eventuallyFree("a")
		l.sleep(10 * time.Millisecond)
		l.eventuallyFree("a")
	}
}

func doubtfulLease(l *lab) {
	short, long := l.lease(), l.legal(10*l.lease())
	p, q := l.process(), l.process()
	lk, ctx := p.Locker("a"), l.ctxOf()
	open := make(chan struct{})
	p.next(1, which{kind: reentryStep}, late(open))
	l.noError(lk.LockContext(ctx, dlock.FixedLease(short)), "LockContext")
	_, err := lk.TryLock(ctx, dlock.FixedLease(short))
	l.wantError(err, "a re-entry without an answer", errFault)
	if err := lk.LockContext(ctx, dlock.FixedLease(long)); err != nil {
		// on a busy machine the hold may be lost
		l.wantError(err, "a longer re-entry", dlock.ErrLost)
		return
	}
	close(open) // in the store, the late re-entry sets the hold's lease back to the short one
	next := q.Locker("a")
	l.lock(next)
	if !isOver(lk.Lost(ctx)) {
		l.Error("another has the lock, and the holder believes in a lease that a late re-entry " +
			"has shortened")
	}
}

func lostPartial(l *lab) {
	for what, f := range map[string]fault{
		"reply lost":   replyLost,
		"request lost": requestLost,
		"not sent":     notSent,
	} {
		p := l.process()
		lk, ctx := p.Locker(what), l.ctxOf()
		for range 3 {
			l.noError(lk.LockContext(ctx), "LockContext")
		}
		p.next(1, which{kind: releaseStep}, f)
		l.noError(lk.UnlockContext(ctx), "a partial unlock, "+what)
		if n := p.count(which{kind: releaseStep}); n != 1 {
			l.Errorf("a partial unlock, %s, was sent %d times", what, n)
		}
		if n, err := lk.HoldCount(ctx); err != nil || n != 2 {
			l.Errorf("HoldCount after a partial unlock, %s: %d, %v", what, n, err)
		}
		l.noError(lk.LockContext(ctx), "a re-entry after a partial unlock, "+what)
		for range 2 {
			l.noError(lk.UnlockContext(ctx), "UnlockContext")
			l.wantHeld(what, "before the last unlock")
		}
		l.noError(lk.UnlockContext(ctx), "the last unlock")
		l.wantFree(what, "after the last unlock, "+what)
	}
}

// lostRelease makes a client repeat releases that may have been carried out. Redisson uses
// redisson_unlock_latch for such releases.
func lostRelease(l *lab) {
	for what, f := range map[string]fault{
		"reply lost":   replyLost,
		"request lost": requestLost,
		"not sent":     notSent,
	} {
		p, q := l.process(), l.process()
		lk := p.Locker(what)
		l.lock(lk)
		wait := l.start("the next owner", func() error { return q.Locker(what).LockContext(l.ctx) })
		wait.waits()
		p.next(2, which{kind: releaseStep}, f)
		l.noError(lk.UnlockContext(l.ctx), "UnlockContext, "+what)
		wait.ok()
		l.settle()
		if n := l.look(what, q.owner(what)).Count; n != 1 {
			l.Errorf("%s: the store counts %d holds of the next owner, want 1", what, n)
		}
		l.wantError(lk.UnlockContext(l.ctx), "a second unlock", dlock.ErrNotHeld)
		l.wantHeld(what, "after the second unlock")
	}
}

func lateRelease(l *lab) {
	p, q := l.process(), l.process()
	open := make(chan struct{})
	lk := p.Locker("a")
	l.lock(lk)
	p.next(1, which{kind: releaseStep}, late(open))
	l.unlock(lk) // the first release is delayed, and the second is answered
	l.lock(lk)   // this is the same Locker as before
	close(open)
	l.eventually("the late release is carried out", func() bool {
		return p.steps(which{kind: releaseStep})[0].carriedOut
	})
	l.wantHeld("a", "after a late release of an earlier hold of the same Locker")
	l.unlock(lk)
	open = make(chan struct{})
	before := p.count(which{kind: releaseStep})
	l.lock(lk)
	p.next(1, which{kind: releaseStep}, late(open))
	l.unlock(lk)
	l.lock(q.Locker("a"))
	close(open)
	l.eventually("the late release is carried out", func() bool {
		return p.steps(which{kind: releaseStep})[before].carriedOut
	})
	l.wantHeld("a", "after a late release of an earlier owner")
}

func hangingRelease(l *lab) {
	p, q := l.process(dlock.WithLease(l.calm())), l.process()
	lk := p.Locker("a")
	l.lock(lk)
	open := make(chan struct{})
	r := p.on(which{kind: releaseStep, name: "a"}, hangs(open))
	ctx, cancel := context.WithTimeout(l.ctx, 20*time.Millisecond)
	defer cancel()
	err := lk.UnlockContext(ctx)
	l.wantError(err, "UnlockContext while the store hangs", context.DeadlineExceeded)
	l.wantError(lk.UnlockContext(l.ctx), "the next UnlockContext: the caller no longer holds it",
		dlock.ErrNotHeld)
	if !isOver(lk.Lost(l.ctx)) {
		l.Error("Lost is open after an unlock that failed")
	}
	sent := p.steps(which{kind: renewStep})
	r.off()
	close(open)
	l.eventuallyFree("a")
	l.lock(q.Locker("a"))
	if l.h.Virtual {
		l.sleep(2 * l.calm())
		for _, s := range p.steps(which{kind: renewStep})[len(sent):] {
			l.Errorf("renewed after its unlock: %+v", s)
		}
	}

	// If the caller sets no limit, an unlock waits for 5 s, or until the lease ends if that is
	// earlier.
	if !l.h.Virtual {
		return
	}
	lk = p.Locker("b")
	l.lock(lk)
	r = p.on(which{kind: releaseStep, name: "b"}, requestLost)
	begin := time.Now()
	l.wantError(lk.UnlockContext(l.ctx), "UnlockContext while the store fails")
	l.took(begin, 5*time.Second, "UnlockContext while the store fails")
	r.off()
	l.eventuallyFree("b")
	lk = p.Locker("c")
	l.lock(lk, dlock.FixedLease(3*time.Second))
	p.on(which{kind: releaseStep, name: "c"}, requestLost)
	begin = time.Now()
	l.wantError(lk.UnlockContext(l.ctx), "UnlockContext while the store fails")
	l.took(begin, 3*time.Second-30*time.Millisecond,
		"UnlockContext, with less than 5 s left, while the store fails")
}

func backgroundUnlock(l *lab) {
	lease := l.lease()
	p := l.process(dlock.WithLease(l.calm()))
	lk, ctx := p.Locker("a"), l.ctxOf()
	l.noError(lk.LockContext(ctx, dlock.FixedLease(lease)), "LockContext")
	open := make(chan struct{})
	r := p.next(1, which{kind: reentryStep}, hangs(open))
	reentry := l.start("a re-entry", func() error { return lk.LockContext(ctx) })
	l.eventually("the re-entry is sent", func() bool { return r.hits() == 1 })
	// The unlock waits for the re-entry until its own context ends.
	short, cancel := context.WithTimeout(ctx, 10*time.Millisecond)
	defer cancel()
	l.wantError(lk.UnlockContext(short), "UnlockContext behind a re-entry that hangs")
	l.eventuallyOver("the hold is lost", lk.Lost(ctx))
	l.eventuallyFree("a")
	l.noError(lk.LockContext(ctx), "the next lock of the same owner")
	owner := p.owner("a")
	if l.h.Virtual {
		// The unlock in the background stops waiting for the re-entry, and then tries again.
		l.sleep(lease / 2)
	}
	close(open)
	l.wantError(reentry.result(), "the re-entry into what is lost by now", dlock.ErrLost)
	l.sleep(lease / 2)
	if res := l.look("a", owner); res.Count != 1 {
		l.Errorf("the store counts %d holds of what was taken later, want 1", res.Count)
	}
	if n, err := lk.HoldCount(ctx); err != nil || n != 1 {
		l.Errorf("HoldCount of what was taken later: %d, %v", n, err)
	}
}

// unlockOverContext covers blnkfinance/blnk#354 and similar issues, where a lock stayed locked
// because it was unlocked with the context of a finished request.
func unlockOverContext(l *lab) {
	p := l.process()
	over, cancel := context.WithCancel(l.ctx)
	cancel()
	lk := p.Locker("a")
	l.lock(lk)
	l.noError(lk.UnlockContext(over), "UnlockContext with a context that is over")
	l.wantFree("a", "after that")

	ctx := l.ctxOf()
	overOwner, cancel := context.WithCancel(ctx)
	cancel()
	l.noError(lk.LockContext(ctx), "LockContext")
	l.noError(lk.LockContext(ctx), "LockContext")
	l.noError(lk.UnlockContext(overOwner), "a partial UnlockContext with a context that is over")
	l.noError(lk.UnlockContext(overOwner), "the last UnlockContext with a context that is over")
	l.wantFree("a", "after that")

	ended, cancel := context.WithCancel(l.ctx)
	l.noError(lk.Do(ended, func(context.Context) error { cancel(); return nil }),
		"Do whose context ends inside")
	l.wantFree("a", "after that")
}

func lateRenewal(l *lab) {
	p, q := l.process(dlock.WithLease(l.lease())), l.process()
	open := make(chan struct{})
	lk := p.Locker("a")
	l.lock(lk)
	r := p.next(1, which{kind: renewStep}, late(open))
	l.eventually("it is renewed", func() bool { return r.hits() == 1 })
	if err := lk.UnlockContext(l.ctx); err != nil {
		l.wantError(err, "UnlockContext", dlock.ErrLost) // on a busy machine the hold may be lost
	}
	l.eventuallyFree("a")
	l.lock(q.Locker("a"))
	left := l.look("a", "").Remaining
	close(open)
	l.settle()
	if res := l.look("a", q.owner("a")); res.Count != 1 || res.Remaining < left-l.lease()/2 {
		l.Errorf("a late renewal of an earlier owner changed the hold: %+v", res)
	}
	// Here a renewal is answered only after the Locker was unlocked and locked again. The answer
	// must not affect the new hold.
	open = make(chan struct{})
	mine := p.Locker("b")
	l.lock(mine)
	r = p.next(1, which{kind: renewStep, name: "b"}, replyHangs(open))
	l.eventually("it is renewed", func() bool { return r.hits() == 1 })
	if err := mine.UnlockContext(l.ctx); err != nil {
		l.wantError(err, "UnlockContext", dlock.ErrLost)
	}
	l.lock(mine, dlock.FixedLease(l.longLease()))
	lost := mine.Lost(l.ctx)
	close(open)
	l.settle()
	if isOver(lost) {
		l.Error("the answer to a renewal of an earlier hold ended the next")
	}
	l.unlock(mine)
}

// everyFault applies each fault to each kind of step of one client, while another client contends
// for the lock. In each round a client locks, re-enters, and unlocks twice.
func everyFault(l *lab) {
	lease := l.lease()
	kinds := []stepKind{acquireStep, reentryStep, releaseStep, renewStep}
	type trial struct {
		name string
		kind stepKind
		skip int
		what func(open <-chan struct{}) fault
	}
	var trials []trial
	for _, kind := range kinds {
		for skip := range 2 {
			for how, what := range map[string]func(<-chan struct{}) fault{
				"reply lost":     func(<-chan struct{}) fault { return replyLost },
				"request lost":   func(<-chan struct{}) fault { return requestLost },
				"not sent":       func(<-chan struct{}) fault { return notSent },
				"hangs":          hangs,
				"reply hangs":    replyHangs,
				"late":           late,
				"hangs politely": func(<-chan struct{}) fault { return hangsPolitely },
			} {
				trials = append(trials, trial{
					kind.String() + ", " + how + ", after " + string(rune('0'+skip)), kind, skip,
					what,
				})
			}
		}
	}
	// To save real time, all trials run at once. They can, because they use different names.
	p, q := l.process(dlock.WithLease(lease)), l.process(dlock.WithLease(lease))
	var calls []*call
	for _, tr := range trials {
		calls = append(calls, l.start(tr.name, func() error {
			open := make(chan struct{})
			p.next(1, which{kind: tr.kind, name: tr.name, skip: tr.skip}, tr.what(open))
			timer := time.AfterFunc(lease/4, func() { close(open) })
			defer timer.Stop()
			inside := beliefs{begin: time.Now()}
			visit := func(c *process, who string) error {
				o := dlock.NewOwner()
				ctx, cancel := context.WithTimeout(dlock.WithOwner(l.ctx, o), 3*lease)
				defer cancel()
				err := c.Locker(tr.name).Do(ctx, func(in context.Context) error {
					inside.hold(who, func() bool { return in.Err() == nil }, func() {
						again, cancel := context.WithTimeout(in, lease/10)
						defer cancel()
						_ = c.Locker(tr.name).Do(again, func(context.Context) error { return nil })
						if tr.kind == renewStep {
							select {
							case <-in.Done():
							case <-time.After(lease / 2):
							}
						}
					})
					return nil
				})
				if errors.Is(err, dlock.ErrNotHeld) || errors.Is(err, dlock.ErrConflict) {
					return err
				}
				return nil
			}
			one := make(chan error, 1)
			go func() { one <- visit(q, "q") }()
			err := errors.Join(visit(p, "p"), visit(p, "p"), <-one, inside.check())
			return err
		}))
	}
	for _, c := range calls {
		c.ok()
	}
	for _, tr := range trials {
		l.eventuallyFree(tr.name)
	}
}
