package contract

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/seed951563bd/distsync/dlock"
)

// onceCases test locks that stay taken after their release.
var onceCases = []testCase{
	{name: "AtLeast",
		rule: "the lock stays taken after the unlock until that time is over, or it is forced",
		tags: differs, run: locker(atLeast)},
	{name: "AtLeast and the end of its time", rule: "a waiter gets in then, and no sooner",
		run: locker(atLeastEnds)},
	{name: "AtLeast and a period",
		rule: "a lock that stays taken for most of a period is free when the next begins",
		run:  locker(atLeastOfAPeriod)},
	{name: "AtLeast and a release without an answer",
		rule: "the lock stays taken for the same time, whether the release was carried out or not",
		run:  locker(atLeastUnanswered)},
	{name: "Once",
		rule: "runs once for each occasion, and again if it failed; other callers are told that " +
			"it has run",
		run: locker(onlyOnce)},
	{name: "Once with Wait",
		rule: "others wait: after a failure one of them runs it, after a success none does",
		run:  locker(onceWaiting)},
}

func atLeast(l *lab) {
	l.needKeeps()
	p, q := l.process(), l.process()
	lk, other, d := p.Locker("a"), q.Locker("a"), l.longLease()
	start := time.Now()
	l.lock(lk, dlock.AtLeast(d))
	l.unlock(lk)
	if l.tryLock(other) || l.tryLock(lk) {
		l.Fatal("somebody got a lock that stays taken")
	}
	left, err := other.TTL(l.ctx)
	l.noError(err, "TTL")
	l.checkRemaining("TTL", left, d, start)
	released, err := other.ForceUnlock(l.ctx)
	if l.noError(err, "ForceUnlock"); !released {
		l.Error("ForceUnlock of a lock that stays taken says that it was free")
	}
	l.lock(other, dlock.Wait(l.lease()))
	l.unlock(other)
	l.lock(lk)
	l.unlock(lk)
	l.wantFree("a", "after an unlock without AtLeast")
}

func atLeastEnds(l *lab) {
	l.needKeeps()
	p, q := l.process(), l.process()
	lk, other, d := p.Locker("a"), q.Locker("a"), l.lease()
	start := time.Now()
	l.lock(lk, dlock.AtLeast(d))
	l.unlock(lk)
	var in []*call
	for _, lk := range []*dlock.Locker{lk, other} {
		in = append(in, l.start("a Lock behind AtLeast", func() error {
			if err := lk.LockContext(l.ctx); err != nil {
				return err
			}
			if since := time.Since(start); since < d {
				return errors.New("in after " + since.String())
			}
			return lk.UnlockContext(l.ctx)
		}))
	}
	for _, c := range in {
		c.ok()
	}
}

// atLeastOfAPeriod models a job that runs once in each period, in one of two replicas. After a run
// in one replica, the other replica must get the lock at the beginning of the next period. On a
// busy machine this may fail in some periods, but not in all eight.
func atLeastOfAPeriod(l *lab) {
	l.needKeeps()
	p, q := l.process(), l.process()
	var all []*call
	for _, period := range []time.Duration{time.Second, 2 * time.Second, 5 * time.Second} {
		name := period.String()
		lk, other := p.Locker(name), q.Locker(name)
		all = append(all, l.start("a job each "+name, func() error {
			for range 8 {
				start := time.Now()
				if err := lk.LockContext(l.ctx, dlock.AtLeast(period*9/10)); err != nil {
					return err
				}
				if err := lk.UnlockContext(l.ctx); err != nil {
					return err
				}
				time.Sleep(time.Until(start.Add(period)))
				if ok, err := other.TryLock(l.ctx); err != nil {
					return err
				} else if ok {
					return other.UnlockContext(l.ctx)
				}
			}
			return errors.New("each second run is skipped")
		}))
	}
	for _, c := range all {
		c.ok()
	}
}

func atLeastUnanswered(l *lab) {
	l.needKeeps()
	for what, f := range map[string]fault{"reply lost": replyLost, "request lost": requestLost} {
		p, q := l.process(), l.process()
		lk, other, d := p.Locker(what), q.Locker(what), l.longLease()
		start := time.Now()
		l.lock(lk, dlock.AtLeast(d))
		p.next(1, which{kind: releaseStep}, f)
		l.unlock(lk)
		if l.tryLock(other) {
			l.Fatal("somebody got a lock that stays taken")
		}
		left, err := other.TTL(l.ctx)
		l.noError(err, "TTL")
		l.checkRemaining("TTL", left, d, start)
	}
}

func onlyOnce(l *lab) {
	l.needKeeps()
	p, q := l.process(), l.process()
	failure := errors.New("a failure")
	once := func(p *process, fn func(context.Context) error, ran bool, want error) {
		l.Helper()
		did, err := p.Once(l.ctx, "job", "now", l.longLease(), fn)
		if did != ran || !errors.Is(err, want) {
			l.Fatalf("Once: %v, %v; want %v, %v", did, err, ran, want)
		}
	}
	succeeds := func(context.Context) error { return nil }
	once(p, func(context.Context) error {
		once(q, succeeds, false, dlock.ErrHeld)
		return failure
	}, true, failure)
	start := time.Now()
	once(q, succeeds, true, nil)
	for _, p := range []*process{p, q} {
		once(p, succeeds, false, nil)
	}
	left, err := p.Client.Locker("once:job@now").TTL(l.ctx)
	l.noError(err, "TTL")
	l.checkRemaining("TTL", left, l.longLease(), start)
}

func onceWaiting(l *lab) {
	l.needKeeps()
	l.needNotifier()
	var runs atomic.Int32
	var all []*call
	failure := errors.New("a failure")
	for range 3 {
		p := l.process()
		for range 3 {
			all = append(all, l.start("Once with Wait", func() error {
				_, err := p.Client.Locker("a").Once(l.ctx, l.longLease(), func(
					context.Context,
				) error {
					time.Sleep(20 * time.Millisecond)
					if runs.Add(1) < 3 {
						return failure
					}
					return nil
				}, dlock.Wait(l.longLease()))
				if errors.Is(err, failure) {
					return nil
				}
				return err
			}))
		}
	}
	for _, c := range all {
		c.ok()
	}
	if n := runs.Load(); n != 3 {
		l.Errorf("it ran %d times; want 3, of which two failed", n)
	}
}
