package contract

import (
	"context"
	"errors"
	"time"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/dlock"
)

// closingCases test Client.Close. After every case the suite checks that no goroutine is left.
var closingCases = []testCase{
	{name: "Close with waiters", rule: "every waiter gets ErrClosed, and Lock panics with it",
		run: locker(closeWaiters)},
	{name: "Close with holders",
		rule: "Lost is closed, the context of Do ends with cause ErrClosed, and nothing is " +
			"released",
		tags: forReaders, run: locker(closeHolders)},
	{name: "unlock after Close", rule: "releases, once, and Unlock doesn't panic",
		run: locker(unlockAfterClose)},
	{name: "calls after Close", rule: "return ErrClosed, and send nothing",
		tags: forReaders,
		run:  locker(afterClose)},
	{name: "Close while steps hang",
		rule: "callers that wait for them get ErrClosed, and no goroutine is left when they end",
		run:  locker(closeHanging)},
	{name: "Close while a number is taken back", rule: "ends the taking back, too",
		tags: forReaders,
		run:  locker(closeTakeBack)},
	{name: "Close while subscribing", rule: "no subscription is left", tags: forReaders,
		run: locker(closeSubscribing)},
	{name: "Close twice, and at once", rule: "has no further effect, and does no harm",
		tags: forReaders, run: locker(closeTwice)},
}

func closeWaiters(l *lab) {
	p := l.process()
	l.take("a", "other:1")
	shared := p.Locker("b")
	l.lock(shared)
	second := func(_ any, err error) error { return err }
	calls := []*call{
		l.start("LockContext", func() error { return p.Locker("a").LockContext(l.ctx) }),
		l.start("the next LockContext", func() error {
			return p.Locker("a").LockContext(context.Background())
		}),
		l.start("LockContext of an owner", func() error {
			return p.Locker("a").LockContext(l.ctxOf())
		}),
		l.start("LockContext behind a gate", func() error { return shared.LockContext(l.ctx) }),
		l.start("TryLock with Wait", func() error {
			return second(p.Locker("a").TryLock(l.ctx, dlock.Wait(time.Hour)))
		}),
		l.start("Do", func() error {
			return p.Locker("a").Do(l.ctx, func(context.Context) error {
				return errors.New("fn was called")
			})
		}),
		l.start("Lock", func() error { return panicOf(p.Locker("a").Lock) }),
		l.start("Lock behind a gate", func() error { return panicOf(shared.Lock) }),
	}
	for _, c := range calls {
		c.waits()
	}
	l.noError(p.Client.Close(), "Close")
	for _, c := range calls {
		l.wantError(c.result(), c.what+", when the client is closed", dlock.ErrClosed)
	}
	l.noError(l.give("a", "other:1"), "release")
	l.settle()
	if l.kind == backend.Fair {
		// A waiter might still have its place in line. If the store grants the lock to that waiter,
		// the lock becomes free when the grant expires.
		l.eventuallyFree("a")
	}
	l.wantFree("a", "after Close and the release")
	if n := p.subscriptions("a"); n != 0 {
		l.Errorf("%d subscriptions are left", n)
	}
}

// panicOf returns the error that f panicked with.
func panicOf(f func()) (err error) {
	defer func() {
		p := recover()
		if e, ok := p.(error); ok {
			err = e
		}
	}()
	f()
	return errors.New("no panic")
}

func closeHolders(l *lab) {
	p := l.process()
	lk, ctx := p.Locker("a"), l.ctxOf()
	l.noError(lk.LockContext(ctx), "LockContext")
	lost := lk.Lost(ctx)
	inside := make(chan struct{})
	do := l.start("Do", func() error {
		return p.Locker("b").Do(l.ctx, func(ctx context.Context) error {
			close(inside)
			<-ctx.Done()
			return context.Cause(ctx)
		})
	})
	l.eventuallyOver("Do is inside", inside)
	l.noError(p.Client.Close(), "Close")
	if !isOver(lost) {
		l.Error("Lost is open after Close")
	}
	l.wantHeld("a", "after Close: somebody may be inside")
	if err := do.result(); !errors.Is(err, dlock.ErrClosed) || errors.Is(err, dlock.ErrLost) {
		l.Errorf("Do, inside when the client is closed: %v", err)
	}
	l.wantFree("b", "after Do, which releases also after Close")
	if !isOver(lk.Lost(ctx)) {
		l.Error("Lost, asked for after Close, is open")
	}

	// Closing a client doesn't release its holds, which end with their leases.
	q := l.process(dlock.WithLease(l.lease()))
	l.lock(q.Locker("c"))
	l.noError(q.Client.Close(), "Close")
	begin := time.Now()
	l.eventuallyFree("c")
	l.tookBetween(begin, 0, l.lease()+time.Second, "the lease of what a closed client held")
	if n := q.count(which{kind: renewStep}); n > 0 && l.h.Virtual {
		l.Errorf("renewed %d times after Close", n)
	}
}

func unlockAfterClose(l *lab) {
	p, q := l.process(), l.process()
	held, owned, ctx := p.Locker("held"), p.Locker("owned"), l.ctxOf()
	taken, hangs, plain := p.Locker("taken"), p.Locker("hangs"), p.Locker("plain")
	over := p.Locker("over")
	for _, lk := range []*dlock.Locker{held, taken, hangs, plain, over} {
		l.lock(lk)
	}
	l.noError(owned.LockContext(ctx), "LockContext")
	l.noError(owned.LockContext(ctx), "LockContext")
	l.noError(p.Client.Close(), "Close")

	l.noError(held.UnlockContext(l.ctx), "UnlockContext after Close")
	l.wantFree("held", "after that")
	if n := p.count(which{kind: releaseStep, name: "held"}); n != 1 {
		l.Errorf("an unlock after Close sent %d releases, want 1", n)
	}
	l.wantError(held.UnlockContext(l.ctx), "the second UnlockContext", dlock.ErrNotHeld)
	l.noError(owned.UnlockContext(ctx), "a partial unlock after Close")
	l.wantHeld("owned", "after that")
	l.noError(owned.UnlockContext(ctx), "the last unlock after Close")
	l.wantFree("owned", "after that")
	l.wantError(owned.UnlockContext(ctx), "an unlock too many after Close", dlock.ErrNotHeld)
	if n := p.count(which{kind: releaseStep, name: "owned"}); n != 2 {
		l.Errorf("two unlocks after Close, and one too many, sent %d releases", n)
	}
	plain.Unlock()
	l.wantFree("plain", "after Unlock after Close")
	cancelled, cancel := context.WithCancel(l.ctx)
	cancel()
	l.noError(over.UnlockContext(cancelled),
		"UnlockContext after Close, with a context that is over")

	l.vanish("taken")
	l.lock(q.Locker("taken"))
	l.wantError(taken.UnlockContext(l.ctx), "UnlockContext after Close and a loss", dlock.ErrLost)
	l.wantHeld("taken", "after that")

	p.on(which{kind: releaseStep, name: "hangs"}, hangsPolitely)
	short, cancel := context.WithTimeout(l.ctx, 10*time.Millisecond)
	defer cancel()
	l.wantError(hangs.UnlockContext(short), "UnlockContext after Close while the store hangs")

	// Here the hold is lost before Close. Unlock doesn't panic in that case either.
	r := l.process()
	lost := r.Locker("lost")
	l.lock(lost, dlock.FixedLease(l.shortLease()))
	l.eventuallyOver("it is lost", lost.Lost(l.ctx))
	l.noError(r.Client.Close(), "Close")
	lost.Unlock()
}

func afterClose(l *lab) {
	p := l.process()
	lk := p.Locker("a")
	l.noError(p.Client.Close(), "Close")
	second := func(_ any, err error) error { return err }
	for what, err := range map[string]error{
		"LockContext": lk.LockContext(l.ctx),
		"TryLock":     second(lk.TryLock(l.ctx)),
		"TryLock with Wait, of an owner": second(lk.For(dlock.NewOwner()).
			TryLock(l.ctx, dlock.Wait(time.Hour))),
		"Do": lk.Do(l.ctx, func(context.Context) error {
			return errors.New("fn was called")
		}),
		"ForceUnlock":                 second(lk.ForceUnlock(l.ctx)),
		"IsLocked":                    second(lk.IsLocked(l.ctx)),
		"IsHeld":                      second(lk.IsHeld(l.ctx)),
		"HoldCount":                   second(lk.HoldCount(l.ctx)),
		"TTL":                         second(lk.TTL(l.ctx)),
		"LockContext of a new Locker": p.Locker("b").LockContext(context.Background()),
	} {
		l.wantError(err, what+" after Close", dlock.ErrClosed)
	}
	l.wantPanicError("Lock after Close", dlock.ErrClosed, lk.Lock)
	l.wantError(lk.UnlockContext(l.ctx), "UnlockContext of what was never locked", dlock.ErrNotHeld)
	if !isOver(lk.Lost(l.ctx)) {
		l.Error("Lost after Close is open")
	}
	if n := p.count(which{}); n != 0 {
		l.Errorf("after Close %v was sent", p.kinds())
	}
}

func closeHanging(l *lab) {
	second := func(_ any, err error) error { return err }
	for how, hang := range map[string]func(<-chan struct{}) fault{
		"whatever their contexts say": hangs,
		"until their contexts end":    func(<-chan struct{}) fault { return hangsPolitely },
	} {
		p := l.process(dlock.WithLease(l.lease()))
		deep, held := p.Locker("deep "+how).For(dlock.NewOwner()), p.Locker("held "+how)
		l.lock(deep)
		l.lock(held)
		l.lock(p.Locker("renewed " + how))
		open := make(chan struct{})
		p.on(which{}, hang(open))
		calls := []*call{
			l.start("LockContext", func() error { return p.Locker("a").LockContext(l.ctx) }),
			l.start("TryLock", func() error { return second(p.Locker("b").TryLock(l.ctx)) }),
			l.start("a re-entry", func() error { return deep.LockContext(l.ctx) }),
			l.start("IsLocked", func() error { return second(p.Locker("c").IsLocked(l.ctx)) }),
			l.start("ForceUnlock", func() error {
				return second(p.Locker("d").ForceUnlock(l.ctx))
			}),
		}
		unlock := l.start("UnlockContext", func() error { return held.UnlockContext(l.ctx) })
		for _, c := range append(calls, unlock) {
			c.waits()
		}
		l.eventually("a renewal hangs, too", func() bool {
			return p.count(which{kind: renewStep}) > 0
		})
		closing := l.start("Close", p.Client.Close)
		for _, c := range calls {
			l.wantError(c.result(), c.what+", when the client is closed", dlock.ErrClosed)
		}
		if err := unlock.result(); err == nil {
			l.Error("UnlockContext without an answer: no error")
		}
		closing.ok()
		close(open)
	}
}

func closeTakeBack(l *lab) {
	p := l.process()
	p.next(1, which{kind: acquireStep}, replyLost)
	p.on(which{kind: releaseStep}, notSent)
	_, err := p.Locker("a").TryLock(l.ctx)
	l.wantError(err, "TryLock without an answer", errFault)
	l.eventually("it is being taken back", func() bool {
		return p.count(which{kind: releaseStep}) >= 2
	})
	l.noError(p.Client.Close(), "Close")
	n := p.count(which{kind: releaseStep})
	l.sleep(100 * time.Millisecond)
	if m := p.count(which{kind: releaseStep}); m != n {
		l.Errorf("%d releases after Close", m-n)
	}
}

func closeSubscribing(l *lab) {
	l.skipWithout(l.hasNotifier(), "notification")
	for how, hang := range map[string]func(<-chan struct{}) fault{
		"it hangs whatever its context says": hangs,
		"its answer hangs":                   replyHangs,
		"until its context ends":             func(<-chan struct{}) fault { return hangsPolitely },
	} {
		p := l.process()
		l.take(how, "other:1")
		open := make(chan struct{})
		r := p.on(which{kind: subscribeStep}, hang(open))
		wait := l.start("a waiter", func() error { return p.Locker(how).LockContext(l.ctx) })
		l.eventually("it subscribes", func() bool { return r.hits() == 1 })
		closing := l.start("Close", p.Client.Close)
		l.wantError(wait.result(), "a waiter, "+how, dlock.ErrClosed)
		close(open)
		closing.ok()
		l.eventually("no subscription is left", func() bool { return p.subscriptions(how) == 0 })
	}
}

func closeTwice(l *lab) {
	p := l.process()
	lk := p.Locker("a")
	l.lock(lk)
	var calls []*call
	for range 4 {
		calls = append(calls, l.start("Close", p.Client.Close))
	}
	calls = append(calls, l.start("UnlockContext", func() error {
		if err := lk.UnlockContext(l.ctx); !errors.Is(err, dlock.ErrClosed) {
			return err
		}
		return nil
	}))
	for _, c := range calls {
		c.ok()
	}
	l.noError(p.Client.Close(), "Close")
}
