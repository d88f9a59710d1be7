package contract

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"time"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/dlock"
)

// reentryCases test owners and counts of holds.
var reentryCases = []testCase{
	{name: "an owner's holds are counted",
		rule: "an owner re-enters, and the lock is free after as many unlocks", tags: differs,
		run: locker(counted)},
	{name: "a re-entry is flagged",
		rule: "it is one step with the flag and the number of the hold; a partial release is one " +
			"step",
		run: locker(flagged)},
	{name: "WithOwner",
		rule: "a context's owner is one party in any goroutine, and excludes every other",
		run:  locker(withOwner)},
	{name: "For", rule: "l.For(o) is the same lock, whose plain calls are the owner's",
		run: locker(forOwner)},
	{name: "unlocks pair last in, first out",
		rule: "an owner's latest hold is unlocked first, lost or not", run: locker(lifo)},
	{name: "Do and re-entry",
		rule: "until fn returns, Do's context carries this hold, and the holds of the context " +
			"around it",
		run: locker(doOwns)},
	{name: "Do in the name of an owner",
		rule: "Do with an owner's context holds in that owner's name", run: locker(doWithOwner)},
	{name: "goroutine owners",
		rule: "with this option a goroutine re-enters, excludes other goroutines, and only it " +
			"can unlock",
		run: locker(goroutines)},
	{name: "the key vanishes between lock and re-entry",
		rule: "the re-entry returns ErrLost, and leaves nothing behind",
		tags: differs, run: locker(vanishedReentry)},
	{name: "the key vanishes before a partial unlock", rule: "the partial unlock returns ErrLost",
		run: locker(vanishedPartial)},
	{name: "re-entry and last release of one owner overlap",
		rule: "steps that count are made one at a time, and a number isn't used any more once " +
			"its last release has begun",
		run: locker(overlap)},
	{name: "the same client id twice",
		rule: "two clients with one id exclude each other, and neither frees the other's lock",
		run:  locker(sameID)},
	{name: "a re-entry behind a queue of waiters", rule: "re-entries never queue",
		run: locker(reentryBehindQueue)},
	{name: "an owner's waiters re-enter together",
		rule: "when an owner gets in, its other waiters re-enter at once",
		tags: forReaders, run: locker(joins)},
	{name: "one lease per hold",
		rule: "a watched hold stays watched; a fixed one is prolonged, never shortened, by " +
			"re-entries", run: locker(oneLease)},
	{name: "a watched re-entry into a fixed hold",
		rule: "the hold is renewed until the re-entry is unlocked, and then its lease runs out",
		tags: forReaders, run: locker(watchedReentry)},
}

// ctxOf returns the case's context with a new owner.
func (l *lab) ctxOf() context.Context { return dlock.WithOwner(l.ctx, dlock.NewOwner()) }

// counted tests that only the last unlock frees a lock that its owner has acquired several times.
// In etcd's Mutex and in redislock, the first unlock frees it.
func counted(l *lab) {
	p, q := l.process(), l.process()
	ctx := l.ctxOf()
	lk := p.Locker("a")
	const depth = 5
	for i := range depth {
		if i%2 == 0 {
			l.noError(lk.LockContext(ctx), "LockContext")
		} else if ok, err := lk.TryLock(ctx); err != nil || !ok {
			l.Fatalf("TryLock of a re-entry: %v, %v", ok, err)
		}
		n, err := lk.HoldCount(ctx)
		if err != nil || n != i+1 {
			l.Fatalf("HoldCount after %d locks: %d, %v", i+1, n, err)
		}
	}
	if n := l.look("a", p.owner("a")).Count; n != depth {
		l.Fatalf("the store counts %d holds, want %d", n, depth)
	}
	if n, err := lk.HoldCount(l.ctxOf()); err != nil || n != 0 {
		l.Fatalf("HoldCount of another owner: %d, %v", n, err)
	}
	for i := range depth {
		if l.tryLock(q.Locker("a")) {
			l.Fatalf("another got in after %d of %d unlocks", i, depth)
		}
		l.noError(lk.UnlockContext(ctx), "UnlockContext")
	}
	l.wantFree("a", "after the last unlock")
	l.wantError(lk.UnlockContext(ctx), "one unlock too many", dlock.ErrNotHeld)
}

func flagged(l *lab) {
	p := l.process()
	ctx := l.ctxOf()
	lk := p.Locker("a")
	for range 3 {
		l.noError(lk.LockContext(ctx), "LockContext")
	}
	for range 3 {
		l.noError(lk.UnlockContext(ctx), "UnlockContext")
	}
	l.noError(lk.LockContext(ctx), "LockContext")
	l.noError(lk.UnlockContext(ctx), "UnlockContext")
	l.settle()
	want := []stepKind{
		acquireStep, reentryStep, reentryStep, releaseStep, releaseStep, releaseStep, acquireStep,
		releaseStep,
	}
	if got := p.kinds(); !slices.Equal(got, want) {
		l.Fatalf("sent %v\nwant %v", got, want)
	}
	steps := p.steps(which{})
	for i, s := range steps {
		if s.lease != l.calm() {
			l.Errorf("step %d, %v, asks for a lease of %v, want %v", i, s.kind, s.lease, l.calm())
		}
		if hold := i / 6; s.owner != steps[hold*6].owner {
			l.Errorf("step %d, %v, is by %q, and the hold is %q's", i, s.kind, s.owner,
				steps[hold*6].owner)
		}
	}
	if steps[0].owner == steps[6].owner {
		l.Error("two outermost acquisitions have one number")
	}
}

func withOwner(l *lab) {
	p := l.process()
	ctx, other := l.ctxOf(), l.ctxOf()
	lk := p.Locker("a")
	l.noError(lk.LockContext(ctx), "LockContext")
	l.start("a re-entry in another goroutine", func() error { return lk.LockContext(ctx) }).ok()
	l.noError(p.Locker("a").LockContext(ctx), "a re-entry by another Locker")
	if ok, err := lk.TryLock(other); err != nil || ok {
		l.Fatalf("another owner's TryLock: %v, %v", ok, err)
	}
	if l.tryLock(lk) {
		l.Fatal("a plain TryLock got in while an owner is inside")
	}
	l.wantError(lk.UnlockContext(other), "another owner's unlock", dlock.ErrNotHeld)
	l.wantError(lk.UnlockContext(l.ctx), "a plain unlock", dlock.ErrNotHeld)
	if !isOver(lk.Lost(other)) || isOver(lk.Lost(ctx)) {
		l.Error("want Lost closed for parties that hold nothing, and for no other")
	}
	inner := dlock.WithOwner(ctx, dlock.NewOwner())
	if ok, err := lk.TryLock(inner); err != nil || ok {
		l.Fatalf("the innermost owner of a context counts: %v, %v", ok, err)
	}
	wait := l.start("another owner's LockContext", func() error { return lk.LockContext(other) })
	for range 3 {
		wait.waits()
		l.noError(lk.UnlockContext(ctx), "UnlockContext")
	}
	wait.ok()
	l.noError(lk.UnlockContext(other), "UnlockContext")
	l.wantFree("a", "in the end")
}

func forOwner(l *lab) {
	p := l.process()
	o := dlock.NewOwner()
	lk := p.Locker("a")
	mine := lk.For(o)
	if mine.Name() != "a" {
		l.Errorf("Name() is %q", mine.Name())
	}
	mine.Lock()
	mine.Lock()
	if ok, err := lk.For(o).TryLock(l.ctx); err != nil || !ok {
		l.Fatalf("TryLock of another For of the same owner: %v, %v", ok, err)
	}
	l.noError(lk.LockContext(dlock.WithOwner(l.ctx, o)), "LockContext with the owner's context")
	if n, err := mine.HoldCount(l.ctx); err != nil || n != 4 {
		l.Fatalf("HoldCount: %d, %v", n, err)
	}
	if ok, err := lk.For(dlock.NewOwner()).TryLock(l.ctx); err != nil || ok {
		l.Fatalf("For another owner: %v, %v", ok, err)
	}
	l.wantPanicError("Unlock of a plain Locker while an owner is inside", dlock.ErrNotHeld,
		lk.Unlock)
	for range 4 {
		l.wantHeld("a", "before the last Unlock")
		mine.Unlock()
	}
	l.wantFree("a", "after the last Unlock")
	l.wantPanicError("one Unlock too many", dlock.ErrNotHeld, mine.Unlock)
}

func lifo(l *lab) {
	p := l.process()
	ctx := l.ctxOf()
	lk := p.Locker("a")
	l.noError(lk.LockContext(ctx, dlock.FixedLease(l.shortLease())), "the first lock")
	l.eventuallyOver("the first hold is lost", lk.Lost(ctx))
	l.eventuallyFree("a")
	l.noError(lk.LockContext(ctx), "the second lock")
	l.noError(lk.LockContext(ctx), "its re-entry")
	if n, err := lk.HoldCount(ctx); err != nil || n != 2 {
		l.Errorf("HoldCount of the second hold: %d, %v", n, err)
	}
	l.noError(lk.UnlockContext(ctx), "the unlock of the re-entry")
	l.noError(lk.UnlockContext(ctx), "the unlock of the second hold")
	l.wantFree("a", "after that")
	l.wantError(lk.UnlockContext(ctx), "the unlock of the first hold", dlock.ErrLost)
	err := lk.UnlockContext(ctx)
	l.wantError(err, "one unlock too many", dlock.ErrNotHeld)
	l.not(err, "one unlock too many", dlock.ErrLost)
}

func doOwns(l *lab) {
	p, q := l.process(), l.process()
	lk, same, another := p.Locker("a"), p.Locker("a"), p.Locker("b")
	var kept context.Context
	err := lk.Do(l.ctx, func(ctx context.Context) error {
		kept = ctx
		if err := lk.Do(ctx, func(ctx context.Context) error {
			return same.Do(ctx, func(ctx context.Context) error {
				if n, err := lk.HoldCount(ctx); err != nil || n != 3 {
					l.Errorf("HoldCount in two nested Do: %d, %v", n, err)
				}
				return nil
			})
		}); err != nil {
			return err
		}
		if err := l.start("a re-entry in another goroutine", func() error {
			return same.LockContext(ctx)
		}).result(); err != nil {
			return err
		}
		if err := same.UnlockContext(ctx); err != nil {
			return err
		}
		if ok, err := lk.TryLock(l.ctx); ok || err != nil {
			l.Errorf("TryLock with the context from outside: %v, %v", ok, err)
		}
		if ok, err := q.Locker("a").TryLock(ctx); ok || err != nil {
			l.Errorf("TryLock by another client, with the context of Do: %v, %v", ok, err)
		}
		// The context of Do refers only to the hold on the lock that Do was called for.
		if err := another.LockContext(ctx); err != nil {
			return err
		}
		if ok, err := p.Locker("b").TryLock(ctx); ok || err != nil {
			l.Errorf("TryLock of another name with the context of Do, while it is held: %v, %v", ok,
				err)
		}
		if ok, err := another.TryLock(ctx); ok || err != nil {
			l.Errorf("a plain Locker was locked twice with the context of a Do of another "+
				"name: %v, %v", ok, err)
		}
		return another.UnlockContext(l.ctx)
	})
	l.noError(err, "Do")
	l.wantFree("a", "after Do")
	if kept.Err() == nil {
		l.Error("the context of Do goes on after Do")
	}
	// After Do has returned, its context refers to no hold, so it can neither re-enter nor unlock.
	after := context.WithoutCancel(kept)
	l.wantError(lk.UnlockContext(after), "an unlock with the context of a Do that is over",
		dlock.ErrNotHeld)
	_, err = lk.TryLock(after)
	l.wantError(err, "TryLock with the context of a Do that is over", dlock.ErrNotHeld)
	l.wantFree("a", "after that")
}

func doWithOwner(l *lab) {
	p := l.process()
	ctx, other := l.ctxOf(), l.ctxOf()
	lk := p.Locker("a")
	l.noError(lk.LockContext(ctx), "LockContext")
	l.noError(lk.Do(ctx, func(inside context.Context) error {
		if n, err := lk.HoldCount(ctx); err != nil || n != 2 {
			l.Errorf("HoldCount of the owner inside Do: %d, %v", n, err)
		}
		if err := lk.LockContext(inside); err != nil {
			return err
		}
		return lk.UnlockContext(ctx)
	}), "Do")
	if n, err := lk.HoldCount(ctx); err != nil || n != 1 {
		l.Errorf("HoldCount after Do: %d, %v", n, err)
	}
	if err := lk.Do(other, func(context.Context) error { return nil },
		dlock.Wait(0)); !errors.Is(err, dlock.ErrNotAcquired) {
		l.Errorf("Do of another owner: %v", err)
	}
	l.noError(p.Locker("b").LockContext(ctx), "LockContext")
	l.noError(lk.Do(ctx, func(inside context.Context) error {
		// For other names, the context of Do has the same owner as the outer context.
		if ok, err := p.Locker("b").TryLock(inside); err != nil || !ok {
			l.Errorf("TryLock of what the owner holds of another name, with the context of "+
				"Do: %v, %v", ok, err)
		}
		if err := p.Locker("b").UnlockContext(inside); err != nil {
			return err
		}
		// WithOwner inside Do takes precedence over the hold of that Do.
		if ok, err := lk.TryLock(dlock.WithOwner(inside, dlock.NewOwner())); err != nil || ok {
			l.Errorf("TryLock of another owner inside Do: %v, %v", ok, err)
		}
		return nil
	}), "Do")
	l.noError(p.Locker("b").UnlockContext(ctx), "UnlockContext")
	l.noError(lk.UnlockContext(ctx), "UnlockContext")
	l.noError(lk.Do(ctx, func(context.Context) error {
		// The outer context works inside Do, too, because the hold that Do acquired belongs to the
		// owner of that context.
		if ok, err := lk.TryLock(ctx); err != nil || !ok {
			l.Errorf("TryLock of the owner inside its Do: %v, %v", ok, err)
		}
		return lk.UnlockContext(ctx)
	}), "Do as the outermost")
	l.wantFree("a", "in the end")
}

func goroutines(l *lab) {
	p := l.process(dlock.WithGoroutineOwners())
	lk := p.Locker("a")
	lk.Lock()
	lk.Lock()
	p.Locker("a").Lock()
	if n, err := lk.HoldCount(l.ctx); err != nil || n != 3 {
		l.Fatalf("HoldCount: %d, %v", n, err)
	}
	err := l.start("another goroutine's unlock", func() error {
		return lk.UnlockContext(l.ctx)
	}).result()
	l.wantError(err, "another goroutine's unlock", dlock.ErrNotHeld)
	l.start("another goroutine's TryLock", func() error {
		ok, err := lk.TryLock(l.ctx)
		if ok {
			return errors.New("true")
		}
		return err
	}).ok()
	other := l.start("another goroutine's Lock", func() error {
		pass(lk)
		return nil
	})
	for range 3 {
		other.waits()
		lk.Unlock()
	}
	other.ok()
	l.wantFree("a", "in the end")
	l.noError(lk.Do(l.ctx, func(ctx context.Context) error {
		pass(lk) // plain calls work here: their owner is this goroutine, which holds the lock
		return l.start("a re-entry with the context of Do in another goroutine", func() error {
			return lk.Do(ctx, func(context.Context) error { return nil })
		}).result()
	}), "Do")
	l.wantFree("a", "after Do")
}

func vanishedReentry(l *lab) {
	p := l.process()
	for _, taken := range []bool{false, true} {
		name := "a" + strconv.FormatBool(taken)
		ctx := l.ctxOf()
		lk := p.Locker(name)
		l.noError(lk.LockContext(ctx), "LockContext")
		lost := lk.Lost(ctx)
		l.vanish(name)
		if taken {
			l.take(name, "other:1")
		}
		l.wantError(lk.LockContext(ctx), "the re-entry", dlock.ErrLost)
		if !isOver(lost) {
			l.Error("Lost is open after a re-entry was told so")
		}
		if !taken {
			l.eventuallyFree(name) // the re-entry had begun a new hold
		}
		l.wantError(lk.UnlockContext(ctx), "the unlock", dlock.ErrLost)
		l.wantError(lk.UnlockContext(ctx), "one unlock too many", dlock.ErrNotHeld)
		if taken {
			l.settle()
			l.wantHeld(name, "after the unlock of the lost hold")
			l.noError(l.give(name, "other:1"), "release")
		}
		l.noError(lk.LockContext(ctx), "a new lock after the loss")
		l.noError(lk.UnlockContext(ctx), "its unlock")
	}
}

func vanishedPartial(l *lab) {
	p := l.process()
	lk := p.Locker("a")
	ctx := l.ctxOf()
	l.noError(lk.LockContext(ctx), "LockContext")
	l.noError(lk.LockContext(ctx), "the re-entry")
	l.vanish("a")
	l.wantError(lk.UnlockContext(ctx), "the partial unlock", dlock.ErrLost)
	if !isOver(lk.Lost(ctx)) {
		l.Error("Lost is open after a partial unlock was told so")
	}
	l.wantError(lk.UnlockContext(ctx), "the last unlock", dlock.ErrLost)

	// Here the lock was lost, and then acquired again by a re-entry whose answer didn't arrive.
	l.noError(lk.LockContext(ctx), "LockContext")
	l.noError(lk.LockContext(ctx), "the re-entry")
	l.vanish("a")
	_, err := l.other.Acquire(l.ctx, backend.AcquireRequest{
		Kind: l.kind, Name: "a", Owner: p.owner("a"), Lease: l.calm(),
	})
	l.noError(err, "Acquire")
	l.wantError(lk.UnlockContext(ctx), "the partial unlock that freed the lock", dlock.ErrLost)
	l.wantError(lk.UnlockContext(ctx), "the last unlock", dlock.ErrLost)
	l.eventuallyFree("a")
}

func overlap(l *lab) {
	p := l.process()
	lk := p.Locker("a")
	ctx := l.ctxOf()

	// An unlock during a re-entry waits for the re-entry's answer.
	l.noError(lk.LockContext(ctx), "LockContext")
	open := make(chan struct{})
	r := p.next(1, which{kind: reentryStep}, hangs(open))
	reentry := l.start("the re-entry", func() error { return lk.LockContext(ctx) })
	l.eventually("the re-entry is sent", func() bool { return r.hits() == 1 })
	unlock := l.start("the unlock", func() error { return lk.UnlockContext(ctx) })
	unlock.waits()
	if n := p.count(which{kind: releaseStep}); n != 0 {
		l.Fatal("a release was sent while a re-entry of the same hold had no answer")
	}
	close(open)
	reentry.ok()
	unlock.ok()
	if n := l.look("a", p.owner("a")).Count; n != 1 {
		l.Fatalf("the store counts %d holds, want 1", n)
	}

	// A re-entry during the last release must use a new owner string.
	first := p.owner("a")
	open = make(chan struct{})
	r = p.next(1, which{kind: releaseStep}, hangs(open))
	unlock = l.start("the last unlock", func() error { return lk.UnlockContext(ctx) })
	l.eventually("the release is sent", func() bool { return r.hits() == 1 })
	again := l.start("the next lock", func() error { return lk.LockContext(ctx) })
	again.waits()
	close(open)
	unlock.ok()
	again.ok()
	if p.owner("a") == first {
		l.Error("a number was used again after its last release began")
	}
	if n := p.count(which{kind: reentryStep}); n != 1 {
		l.Errorf("sent %d re-entries, want 1", n)
	}
	l.noError(lk.UnlockContext(ctx), "UnlockContext")

	// Here several goroutines lock and unlock concurrently.
	var calls []*call
	const goroutines, rounds = 8, 10
	for range goroutines {
		calls = append(calls, l.start("an overlapping user", func() error {
			for range rounds {
				if err := lk.LockContext(ctx); err != nil {
					return err
				}
				if n, err := lk.HoldCount(ctx); err != nil || n == 0 {
					return errors.Join(err, errors.New("HoldCount of the holder is 0"))
				}
				if err := lk.UnlockContext(ctx); err != nil {
					return err
				}
			}
			return nil
		}))
	}
	for _, c := range calls {
		c.ok()
	}
	// if the lock is Fair, the place of an owner that re-entered may remain for a moment
	l.eventuallyFree("a")
}

func sameID(l *lab) {
	p, q := l.process(dlock.WithClientID("host")), l.process(dlock.WithClientID("host"))
	o := dlock.NewOwner()
	ctx := dlock.WithOwner(l.ctx, o)
	a, b := p.Locker("a"), q.Locker("a")
	l.noError(a.LockContext(ctx), "LockContext")
	if ok, err := b.TryLock(ctx); err != nil || ok {
		l.Fatalf("TryLock by the other client with that id: %v, %v", ok, err)
	}
	if l.tryLock(b) {
		l.Fatal("two clients with one id have the lock")
	}
	wait := l.start("the other client", func() error { return b.LockContext(ctx) })
	wait.waits()
	l.wantError(q.Locker("a").UnlockContext(l.ctx), "an unlock by the other client",
		dlock.ErrNotHeld)
	l.noError(a.LockContext(ctx), "a re-entry")
	l.noError(a.UnlockContext(ctx), "UnlockContext")
	wait.waits()
	l.noError(a.UnlockContext(ctx), "UnlockContext")
	wait.ok()
	if n, err := b.HoldCount(ctx); err != nil || n != 1 {
		l.Errorf("HoldCount of the other client: %d, %v", n, err)
	}
	l.noError(b.UnlockContext(ctx), "UnlockContext")
	l.wantFree("a", "in the end")
}

func reentryBehindQueue(l *lab) {
	p := l.process()
	lk := p.Locker("a")
	ctx := l.ctxOf()
	l.noError(lk.LockContext(ctx), "LockContext")
	var waiters []*call
	for i := range 20 {
		waiter, other := p.Locker("a"), l.ctx
		if i%2 == 0 {
			other = l.ctxOf()
		}
		waiters = append(waiters, l.start("a waiter", func() error {
			if err := waiter.LockContext(other); err != nil {
				return err
			}
			return waiter.UnlockContext(other)
		}))
	}
	foreign := l.process().Locker("a")
	waiters = append(waiters, l.start("a waiter of another client", func() error {
		return errors.Join(foreign.LockContext(l.ctx), foreign.UnlockContext(l.ctx))
	}))
	l.settle()
	for range 3 {
		again := l.start("a re-entry behind a queue", func() error { return lk.LockContext(ctx) })
		again.ok()
		if ok, err := lk.TryLock(ctx); err != nil || !ok {
			l.Fatalf("TryLock behind a queue: %v, %v", ok, err)
		}
		l.noError(lk.UnlockContext(ctx), "UnlockContext")
	}
	for range 4 {
		for _, w := range waiters {
			if w.over() {
				l.Fatalf("a waiter got in: %v", w.err)
			}
		}
		l.noError(lk.UnlockContext(ctx), "UnlockContext")
	}
	for _, w := range waiters {
		w.ok()
	}
	l.wantFree("a", "in the end")
}

func joins(l *lab) {
	p := l.process()
	ctx, other := l.ctxOf(), l.ctxOf()
	l.take("a", "other:1")
	lk := p.Locker("a")
	wait := func(what string, ctx context.Context) *call {
		c := l.start(what, func() error { return lk.LockContext(ctx) })
		l.settle()
		return c
	}
	mine := []*call{wait("the owner", ctx)}
	theirs := wait("another owner", other)
	for range 3 {
		mine = append(mine, wait("the same owner, behind another", ctx))
	}
	// The other owner may have queued first. In that case it gets the lock first.
	l.noError(l.give("a", "other:1"), "release")
	l.eventually("an owner is in", func() bool { return mine[0].over() || theirs.over() })
	if l.kind == backend.Read || theirs.over() { // all readers get in at once
		theirs.ok()
		l.noError(lk.UnlockContext(other), "UnlockContext")
		theirs = nil
	}
	for _, c := range mine {
		c.ok() // although the owner hasn't unlocked
	}
	if theirs != nil {
		theirs.waits()
	}
	if n, err := lk.HoldCount(ctx); err != nil || n != len(mine) {
		l.Errorf("HoldCount: %d, %v, want %d", n, err, len(mine))
	}
	for range mine {
		l.noError(lk.UnlockContext(ctx), "UnlockContext")
	}
	if theirs != nil {
		theirs.ok()
		l.noError(lk.UnlockContext(other), "UnlockContext")
	}
	l.eventuallyFree("a")
}

func oneLease(l *lab) {
	p := l.process()
	ctx := l.ctxOf()
	long, longer := l.legal(10*time.Minute), l.legal(20*time.Minute)

	// A re-entry's FixedLease is ignored if the hold is renewed.
	lk := p.Locker("watched")
	l.noError(lk.LockContext(ctx), "LockContext")
	l.noError(lk.LockContext(ctx, dlock.FixedLease(l.shortLease())), "a leased re-entry")
	l.noError(lk.UnlockContext(ctx), "UnlockContext")
	for _, s := range p.steps(which{name: "watched"}) {
		if s.lease != l.calm() {
			l.Errorf("a %v of a watched hold asks for %v, want %v", s.kind, s.lease, l.calm())
		}
	}
	if left := l.look("watched", "").Remaining; left <= l.shortLease() {
		l.Errorf("a leased re-entry into a watched hold shortened it to %v", left)
	}
	l.noError(lk.UnlockContext(ctx), "UnlockContext")

	// A re-entry can lengthen a fixed hold, but never shortens it.
	lk = p.Locker("fixed")
	l.noError(lk.LockContext(ctx, dlock.FixedLease(long)), "LockContext")
	l.noError(lk.LockContext(ctx, dlock.FixedLease(l.shortLease())), "a shorter re-entry")
	if left := l.look("fixed", "").Remaining; left < long/2 {
		l.Errorf("a re-entry shortened the hold to %v", left)
	}
	l.noError(lk.LockContext(ctx, dlock.FixedLease(longer)), "a longer re-entry")
	if left := l.look("fixed", "").Remaining; left < long {
		l.Errorf("a longer re-entry prolonged the hold to %v only", left)
	}
	l.noError(lk.UnlockContext(ctx), "UnlockContext")
	if left := l.look("fixed", "").Remaining; left < long {
		l.Errorf("a partial unlock shortened the hold to %v", left)
	}
	l.noError(lk.UnlockContext(ctx), "UnlockContext")
	l.noError(lk.UnlockContext(ctx), "UnlockContext")
	if n := p.count(which{kind: renewStep, name: "fixed"}); n != 0 {
		l.Errorf("a fixed hold was renewed %d times", n)
	}
}

func watchedReentry(l *lab) {
	p := l.process(dlock.WithLease(l.brisk()))
	ctx := l.ctxOf()
	lk := p.Locker("a")
	l.noError(lk.LockContext(ctx, dlock.FixedLease(l.brisk())), "the fixed lock")
	l.noError(lk.LockContext(ctx), "the watched re-entry")
	lost := lk.Lost(ctx)
	l.sleep(l.brisk() * 5 / 4)
	if isOver(lost) {
		l.Fatal("the hold was lost, although it was re-entered without a lease")
	}
	l.wantHeld("a", "after the fixed lease")
	l.noError(lk.UnlockContext(ctx), "UnlockContext of the re-entry")
	l.eventuallyOver("what is left of a fixed lease ends", lost)
	l.wantError(lk.UnlockContext(ctx), "UnlockContext of a hold with a fixed lease", dlock.ErrLost)
	l.eventuallyFree("a")
}
