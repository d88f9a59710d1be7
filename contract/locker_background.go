package contract

import (
	"context"
	"time"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/dlock"
)

// backgroundCases test what a client does in the background, and what it assumes in the meantime.
// In cases where the end of a lease could hide that the client did nothing, leases last an hour.
var backgroundCases = []testCase{
	{name: "an unlock that failed", rule: "goes on in the background until the store has answered",
		tags: forReaders, run: locker(failedUnlock)},
	{name: "an unlock behind a re-entry that fails",
		rule: "goes on in the background, though the lock is renewed",
		run:  locker(unlockBehindReentry)},
	{name: "unlocks behind a re-entry that fails",
		rule: "report their end once the last of them has succeeded",
		run:  locker(unlocksBehindReentry)},
	{name: "a number that is taken back",
		rule: "lets the next waiter of this client in, without a message",
		run:  locker(takenBackWakes)},
	{name: "a late re-entry with a long lease",
		rule: "is taken back for as long as that lease would have lasted",
		run:  locker(lateLongReentry)},
	{name: "a re-entry that began a fresh hold", rule: "is taken back", run: locker(freshReentry)},
	{name: "an attempt in doubt with a short lease",
		rule: "may be carried out late: the shortest of all leases in doubt counts",
		run:  locker(doubtfulAttempt)},
	{name: "a fixed lease and the next waiter",
		rule: "a waiter that wants a renewed lock gets a renewed one",
		run:  locker(fixedLeaseEndsHere)},
	{name: "subscribing fails all the time", rule: "waiters poll", tags: forReaders,
		run: locker(alwaysFailingSubscription)},
	{name: "renewals that hang", rule: "end with the lock, and their late answers change nothing",
		tags: forReaders,
		run:  locker(renewalsEnd)},
	{name: "renewals that take their time", rule: "count as renewals",
		tags: forReaders,
		run:  locker(slowRenewals)},
	{name: "a question that is answered late", rule: "gets the state at the time of the answer",
		tags: forReaders, run: locker(lateLook)},
	{name: "TryLock beside a waiter on the same Locker", rule: "asks the store, and returns false",
		tags: forReaders, run: locker(tryBesideWaiter)},
	{name: "Close while an unlock is repeated",
		rule: "the unlock reports that the lock was released",
		tags: forReaders,
		run:  locker(closeInUnlock)},
}

func failedUnlock(l *lab) {
	p, q := l.process(dlock.WithLease(l.longLease())), l.process()
	for what, f := range map[string]fault{"request lost": requestLost, "not sent": notSent} {
		lk := p.Locker(what)
		l.lock(lk)
		r := p.on(which{kind: releaseStep, name: what}, f)
		ctx, cancel := context.WithTimeout(l.ctx, 20*time.Millisecond)
		l.wantError(lk.UnlockContext(ctx), "UnlockContext while the store fails",
			context.DeadlineExceeded)
		cancel()
		sent := r.hits()
		l.eventually("it goes on", func() bool { return r.hits() >= sent+3 })
		r.off()
		l.eventuallyFree(what)
		l.lock(q.Locker(what))
	}
}

func unlockBehindReentry(l *lab) {
	p := l.process(dlock.WithLease(l.longLease()))
	lk, ctx := p.Locker("a"), l.ctxOf()
	l.noError(lk.LockContext(ctx), "LockContext")
	fails := make(chan struct{})
	r := p.next(1, which{kind: reentryStep}, func(x *transit) error {
		select {
		case <-fails:
		case <-x.f.ended:
		}
		return requestLost(x)
	})
	reentry := l.start("a re-entry", func() error {
		_, err := lk.TryLock(ctx)
		return err
	})
	l.eventually("the re-entry is sent", func() bool { return r.hits() == 1 })
	short, cancel := context.WithTimeout(ctx, 10*time.Millisecond)
	defer cancel()
	l.wantError(lk.UnlockContext(short), "UnlockContext behind a re-entry that hangs",
		context.DeadlineExceeded)
	l.wantHeld("a", "while the re-entry hangs")
	close(fails)
	l.wantError(reentry.result(), "the re-entry")
	l.eventuallyFree("a")
}

// unlocksBehindReentry makes several unlocks wait for a re-entry. Once the re-entry is answered,
// each unlock decrements the count, and the last one frees the lock.
func unlocksBehindReentry(l *lab) {
	p := l.process()
	lk, ctx := p.Locker("a"), l.ctxOf()
	l.noError(lk.LockContext(ctx), "LockContext")
	l.noError(lk.LockContext(ctx), "LockContext again")
	open := make(chan struct{})
	r := p.next(1, which{kind: reentryStep}, func(x *transit) error {
		select {
		case <-open:
		case <-x.f.ended:
		}
		return refused(x)
	})
	third := l.start("a re-entry", func() error { return lk.LockContext(ctx) })
	l.eventually("it is sent", func() bool { return r.hits() == 1 })
	for range 2 {
		short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
		if err := lk.UnlockContext(short); err != nil {
			l.wantError(err, "an unlock behind a re-entry", dlock.ErrUnavailable)
		}
		cancel()
	}
	close(open)
	if err := third.result(); err == nil {
		l.Error("a re-entry that failed was acquired")
	}
	l.eventuallyFree("a")
}

func takenBackWakes(l *lab) {
	p := l.process(dlock.WithLease(l.longLease()))
	p.swallow(true)
	p.next(1, which{kind: acquireStep}, replyLost)
	r := p.on(which{kind: releaseStep}, notSent)
	_, err := p.Locker("a").TryLock(l.ctx)
	l.wantError(err, "TryLock without an answer", errFault)
	wait := l.start("a waiter", func() error { return p.Locker("a").LockContext(l.ctx) })
	l.eventually("it asks", func() bool { return p.count(which{kind: acquireStep}) >= 2 })
	wait.waits()
	begin := time.Now()
	r.off()
	wait.ok()
	l.tookBetween(begin, 0, time.Minute, "the wait for a number that is taken back")
}

func lateLongReentry(l *lab) {
	short := l.lease()
	p := l.process()
	lk, ctx := p.Locker("a"), l.ctxOf()
	l.noError(lk.LockContext(ctx, dlock.FixedLease(short)), "LockContext")
	open := make(chan struct{})
	p.next(1, which{kind: reentryStep}, late(open))
	_, err := lk.TryLock(ctx, dlock.FixedLease(l.longLease()))
	l.wantError(err, "a re-entry without an answer", errFault)
	if err := lk.UnlockContext(ctx); err != nil {
		l.wantError(err, "UnlockContext", dlock.ErrLost) // on a busy machine the hold may be lost
	}
	l.sleep(2 * short)
	close(open)
	l.eventually("the re-entry is carried out, late", func() bool {
		return p.steps(which{kind: reentryStep})[0].carriedOut
	})
	l.eventuallyFree("a")
}

func freshReentry(l *lab) {
	p := l.process(dlock.WithLease(l.longLease()))
	lk, ctx := p.Locker("a"), l.ctxOf()
	l.noError(lk.LockContext(ctx), "LockContext")
	l.vanish("a")
	l.wantError(lk.LockContext(ctx), "a re-entry of what is gone", dlock.ErrLost)
	l.eventuallyFree("a")
}

func doubtfulAttempt(l *lab) {
	short, long := l.lease(), l.legal(10*l.lease())
	p, q := l.process(), l.process()
	for name, second := range map[string]bool{"one": false, "two": true} {
		lk, ctx := p.Locker(name), l.ctxOf()
		open := make(chan struct{})
		p.next(1, which{kind: acquireStep, name: name}, late(open))
		l.noError(lk.LockContext(ctx, dlock.FixedLease(short)), "LockContext")
		if second {
			p.next(1, which{kind: reentryStep, name: name}, requestLost)
			_, err := lk.TryLock(ctx, dlock.FixedLease(l.legal(2*short)))
			l.wantError(err, "a re-entry without an answer")
		}
		if err := lk.LockContext(ctx, dlock.FixedLease(long)); err != nil {
			l.wantError(err, "a longer re-entry", dlock.ErrLost) // on a busy machine
			continue
		}
		close(open) // the late attempt will set the hold's lease in the store back to the short one
		l.eventually("the attempt is carried out, late", func() bool {
			return p.steps(which{kind: acquireStep, name: name})[0].carriedOut
		})
		l.lock(q.Locker(name))
		if !isOver(lk.Lost(ctx)) {
			l.Errorf("%s in doubt: another has the lock, and the holder believes in a lease that "+
				"a late attempt has shortened", name)
		}
	}
}

func fixedLeaseEndsHere(l *lab) {
	lease := l.brisk()
	p := l.process(dlock.WithLease(lease))
	fixed, next := p.Locker("a"), p.Locker("a")
	l.lock(fixed, dlock.FixedLease(lease))
	wait := l.start("a waiter", func() error { return next.LockContext(l.ctx) })
	wait.waits()
	l.unlock(fixed)
	wait.ok()
	l.sleep(lease * 5 / 4)
	if held, err := next.IsHeld(l.ctx); err != nil || !held {
		l.Errorf("IsHeld, after more than a lease: %v, %v", held, err)
	}
	l.unlock(next)
}

func alwaysFailingSubscription(l *lab) {
	for what, f := range map[string]fault{
		"request lost": requestLost,
		"not sent":     notSent,
		"none":         nil,
	} {
		faulty := newFaults(l.store.Backend())
		faulty.hideNotify = f == nil
		p := l.processOn(faulty, dlock.WithLease(l.longLease()))
		if f != nil {
			p.on(which{kind: subscribeStep}, f)
		}
		l.take(what, "other:1")
		wait := l.start("a waiter", func() error { return p.Locker(what).LockContext(l.ctx) })
		l.eventually("it polls", func() bool { return p.looks(what) >= 5 })
		if l.h.Virtual {
			l.sleep(10 * time.Minute) // the waiter keeps polling, at least once a second
		}
		begin := time.Now()
		l.noError(l.give(what, "other:1"), "release")
		wait.ok()
		l.tookBetween(begin, 0, 1200*time.Millisecond, "getting in by polling")
	}
}

func renewalsEnd(l *lab) {
	lease := l.lease()
	p := l.process(dlock.WithLease(lease))
	lk, ctx := p.Locker("a"), l.ctxOf()
	p.on(which{kind: renewStep}, hangsPolitely)
	l.noError(lk.LockContext(ctx), "LockContext")
	l.eventuallyOver("the lock is lost", lk.Lost(ctx))
	l.eventually("no renewal is under way", func() bool {
		return p.underWay(which{kind: renewStep}) == 0
	})
	l.wantError(lk.UnlockContext(ctx), "UnlockContext", dlock.ErrLost)

	q := l.process(dlock.WithLease(lease))
	lk = q.Locker("b")
	open := make(chan struct{})
	q.on(which{kind: renewStep}, func(x *transit) error {
		if err := x.carryOut(context.WithoutCancel(x.ctx)); err != nil {
			return err
		}
		select {
		case <-open: // this fault ignores the context of the step
		case <-x.f.ended:
		}
		return nil
	})
	l.noError(lk.LockContext(ctx), "LockContext")
	l.eventuallyOver("the lock is lost", lk.Lost(ctx))
	close(open)
	l.sleep(lease * 5 / 4)
	l.wantError(lk.UnlockContext(ctx), "UnlockContext, after renewals were answered too late",
		dlock.ErrLost)
}

func slowRenewals(l *lab) {
	lease := l.brisk()
	p := l.process(dlock.WithLease(lease))
	p.on(which{kind: renewStep}, func(x *transit) error {
		timer := time.NewTimer(lease / 4)
		defer timer.Stop()
		select {
		case <-timer.C:
			return x.carryOut(x.ctx)
		case <-x.ctx.Done():
		case <-x.f.ended:
		}
		return failure(backend.Unknown)
	})
	lk := p.Locker("a")
	l.lock(lk)
	length := lease * 5 / 4
	if l.h.Virtual {
		length = 20 * lease
	}
	l.sleep(length)
	if held, err := lk.IsHeld(l.ctx); err != nil || !held {
		l.Errorf("IsHeld, after %v: %v, %v", length, held, err)
	}
}

func lateLook(l *lab) {
	p := l.process()
	lk := p.Locker("a")
	l.lock(lk, dlock.FixedLease(l.lease()))
	open := make(chan struct{})
	p.next(1, which{kind: lookStep}, replyHangs(open))
	var held bool
	ask := l.start("IsHeld", func() (err error) {
		held, err = lk.IsHeld(l.ctx)
		return err
	})
	l.eventually("it is answered by the store", func() bool {
		sent := p.steps(which{kind: lookStep})
		return len(sent) > 0 && sent[0].carriedOut || isOver(lk.Lost(l.ctx))
	})
	l.eventuallyOver("the hold is over", lk.Lost(l.ctx))
	close(open)
	ask.ok()
	if held {
		l.Error("IsHeld says true when the hold is over")
	}
}

func tryBesideWaiter(l *lab) {
	p := l.process()
	l.take("a", "other:1")
	shared := p.Locker("a")
	wait := l.start("a waiter", func() error { return shared.LockContext(l.ctx) })
	l.eventually("it asks", func() bool { return p.count(which{kind: acquireStep}) > 0 })
	wait.waits()
	for range 3 {
		if l.tryLock(shared) {
			l.Fatal("TryLock got what another process holds")
		}
	}
	l.noError(l.give("a", "other:1"), "release")
	wait.ok()
}

func closeInUnlock(l *lab) {
	p := l.process()
	lk := p.Locker("a")
	l.lock(lk)
	r := p.next(1, which{kind: releaseStep}, replyLost)
	unlock := l.start("UnlockContext", func() error { return lk.UnlockContext(l.ctx) })
	l.eventually("its first release is lost", func() bool {
		return r.hits() == 1 && p.underWay(which{kind: releaseStep}) == 0
	})
	l.noError(p.Client.Close(), "Close")
	unlock.ok()
	l.wantFree("a", "after the unlock")
}
