package contract

import (
	"context"
	"errors"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/dlock"
)

// lossCases test renewals and the loss of a lock.
var lossCases = []testCase{
	{name: "a late unlock after loss frees nobody",
		rule: "it returns ErrLost, and the next holder keeps the lock",
		tags: forReaders,
		run:  locker(lateUnlock)},
	{name: "Lost",
		rule: "is closed if nothing is held and when the hold is lost, and never by an unlock",
		tags: forReaders, run: locker(lostChannel)},
	{name: "ErrLost and ErrNotHeld",
		rule: "a lost hold is told from one that never existed, for ten leases",
		run:  locker(lostOrNotHeld)},
	{name: "a fixed lease", rule: "isn't renewed, and ends", tags: forReaders,
		run: locker(fixedLease)},
	{name: "a watched lock",
		rule: "is renewed in time while it is held, and no longer, next to others with other " +
			"leases",
		tags: forReaders, run: locker(watched)},
	{name: "a renewal fails for a while", rule: "the lock isn't lost", tags: forReaders,
		run: locker(renewalHiccup)},
	{name: "renewals fail past the lease",
		rule: "the lock counts as lost when the promised lease ends, at the latest",
		tags: forReaders,
		run:  locker(renewalsFail)},
	{name: "renewals are never answered", rule: "Lost is closed although no reply ever comes",
		run: locker(renewalsHang)},
	{name: "the lock vanishes from the store", rule: "the next renewal detects it",
		run: locker(vanishedRenewal)},
	{name: "a hung node delays nobody else's renewals",
		rule: "locks whose renewals hang are lost; the others are kept", tags: forReaders,
		run: locker(hungNode)},
	{name: "a store without batches", rule: "renews one by one", tags: forReaders,
		run: locker(noBatches)},
	{name: "Do", rule: "returns fn's error, and releases the lock whatever fn does",
		run: locker(doReturns)},
	{name: "Do and loss",
		rule: "the context ends with cause ErrLost, and Do returns ErrLost even if fn doesn't",
		tags: forReaders, run: locker(doLost)},
	{name: "a failed release after Do",
		rule: "is reported as an Error of the unlock, joined with fn's error",
		run:  locker(doReleaseFails)},
	{name: "a lock after a loss", rule: "is a new hold, on the same Locker",
		run: locker(lockAfterLoss)},
	{name: "a waiter whose client is cut off",
		rule: "returns when its context ends, before the holder leaves", run: locker(cutOffWaiter)},
	{name: "all data is lost", rule: "holders are told, and the lock works again",
		tags: Essential | differs | forReaders | readersDiffer, run: locker(wiped)},
}

// lateUnlock covers a bug in etcd's Mutex: Unlock returns nil although the lease was revoked.
func lateUnlock(l *lab) {
	p, q := l.process(), l.process()
	for name, how := range map[string]dlock.AcquireOption{
		"its lease ran out": dlock.FixedLease(l.shortLease()),
		"it was taken away": dlock.FixedLease(l.longLease()),
	} {
		for _, owned := range []bool{false, true} {
			name := name + strconv.FormatBool(owned)
			ctx := l.ctx
			if owned {
				ctx = l.ctxOf()
			}
			lk, next := p.Locker(name), q.Locker(name)
			l.noError(lk.LockContext(ctx, how), "LockContext")
			if strings.HasPrefix(name, "its lease") {
				l.eventuallyOver("the lock is lost", lk.Lost(ctx))
			} else {
				l.vanish(name)
			}
			l.lock(next)
			l.wantError(lk.UnlockContext(ctx), "the late unlock", dlock.ErrLost)
			l.settle()
			if held, err := next.IsHeld(l.ctx); err != nil || !held {
				l.Errorf("IsHeld of the next holder, after the late unlock: %v, %v", held, err)
			}
			l.unlock(next)
		}
	}
	// Unlock can't return an error, and it must not panic if the hold was lost.
	lk := p.Locker("a")
	l.lock(lk, dlock.FixedLease(l.shortLease()))
	l.eventuallyOver("the lock is lost", lk.Lost(l.ctx))
	lk.Unlock()
}

func lostChannel(l *lab) {
	p := l.process()
	lk := p.Locker("a")
	if !isOver(lk.Lost(l.ctx)) {
		l.Error("Lost of what isn't held is open")
	}
	l.lock(lk)
	lost := lk.Lost(l.ctx)
	if lost != lk.Lost(l.ctx) {
		l.Error("Lost of one hold is two channels")
	}
	if isOver(lost) {
		l.Error("Lost of what is held is closed")
	}
	l.unlock(lk)
	l.lock(lk)
	l.settle()
	if isOver(lost) {
		l.Error("Lost was closed by an unlock")
	}
	l.unlock(lk)
	if isOver(lost) {
		l.Error("Lost was closed by an unlock")
	}
	if !isOver(lk.Lost(l.ctx)) {
		l.Error("Lost after the unlock is open")
	}
	// Lost also works when it is first called after the loss.
	l.lock(lk, dlock.FixedLease(l.shortLease()))
	l.sleep(l.shortLease())
	if !isOver(lk.Lost(l.ctx)) {
		l.Error("Lost, asked for after the lease, is open")
	}
	l.wantError(lk.UnlockContext(l.ctx), "the unlock", dlock.ErrLost)
}

func lostOrNotHeld(l *lab) {
	lease := l.legal(200 * time.Millisecond)
	p := l.process(dlock.WithLease(lease))
	lk, ctx, plain := p.Locker("a"), l.ctxOf(), p.Locker("b")
	for range 3 {
		l.noError(lk.LockContext(ctx, dlock.FixedLease(lease*2)), "LockContext")
	}
	l.lock(plain, dlock.FixedLease(lease))
	l.eventuallyOver("the hold is lost", lk.Lost(ctx))
	err := lk.UnlockContext(ctx)
	l.wantError(err, "the first unlock", dlock.ErrLost)
	l.not(err, "the first unlock", dlock.ErrNotHeld)
	l.wantError(lk.UnlockContext(ctx), "the second unlock", dlock.ErrLost)
	l.sleep(10*lease + time.Second)
	err = lk.UnlockContext(ctx)
	l.wantError(err, "an unlock more than ten leases after the loss", dlock.ErrNotHeld)
	l.not(err, "an unlock more than ten leases after the loss", dlock.ErrLost)
	// Until its next unlock, a Locker remembers that its hold was lost, however long that takes.
	l.wantError(plain.UnlockContext(l.ctx), "the unlock of a Locker", dlock.ErrLost)
	l.wantError(plain.UnlockContext(l.ctx), "its second unlock", dlock.ErrNotHeld)
}

func fixedLease(l *lab) {
	p := l.process(dlock.WithLease(l.lease()))
	lk := p.Locker("a")
	lease := l.shortLease()
	begin := time.Now()
	l.lock(lk, dlock.FixedLease(lease))
	l.eventuallyOver("the hold is over", lk.Lost(l.ctx))
	l.took(begin, lease-lease/100, "a fixed lease")
	if held, err := lk.IsHeld(l.ctx); err != nil || held {
		l.Errorf("IsHeld after the lease: %v, %v", held, err)
	}
	l.eventuallyFree("a")
	if n := p.count(which{kind: renewStep}); n != 0 {
		l.Errorf("a fixed lease was renewed %d times", n)
	}
	l.wantError(lk.UnlockContext(l.ctx), "the unlock", dlock.ErrLost)
}

// watched covers two bugs in other libraries. In redis/rueidis#923 renewals drift by the sum of all
// delays. In redisson/redisson#7272 renewals continue after the unlock.
func watched(l *lab) {
	lease := l.brisk()
	p := l.process(dlock.WithLease(lease))
	lk, ctx := p.Locker("a"), l.ctxOf()
	l.noError(lk.LockContext(ctx), "LockContext")
	owner, lost := p.owner("a"), lk.Lost(ctx)
	short, long := l.acquire(l.process(dlock.WithLease(l.longLease())).Locker("short"),
		dlock.RenewedLease(lease)), l.acquire(p.Locker("long"), dlock.RenewedLease(l.longLease()))
	length := lease * 5 / 4
	if l.h.Virtual {
		length = 100 * lease
	}
	for begin := time.Now(); time.Since(begin) < length; {
		l.sleep(lease / 7)
		res := l.look("a", owner)
		if res.Count != 1 || isOver(lost) {
			l.Fatalf("after %v: %+v", time.Since(begin), res)
		}
		if l.h.Virtual && res.Remaining < lease*6/10 {
			l.Fatalf("after %v only %v are left of a lease of %v", time.Since(begin), res.Remaining,
				lease)
		}
	}
	// A hold is renewed three times per lease. The bounds leave some room, because the client
	// shifts renewals in order to send them in batches.
	leases := int(length / lease)
	if n := p.count(which{kind: renewStep, name: "a"}); n < 2*leases ||
		l.h.Virtual && n > 5*leases {
		l.Errorf("renewed %d times in %v, with a lease of %v", n, length, lease)
	}
	if left := l.look("short", "").Remaining; isOver(short.Lost()) || left > lease+2*l.leaseStep() {
		l.Errorf("with a lease of its own of %v, of a client with %v, a lock has %v left: %v",
			lease, l.longLease(), left, short.Err())
	}
	if left := l.look("long", "").Remaining; isOver(long.Lost()) || left < l.longLease()/2 {
		l.Errorf("with a lease of its own of %v, of a client with %v, a lock has %v left: %v",
			l.longLease(), lease, left, long.Err())
	}
	l.release(short)
	l.release(long)
	l.noError(lk.UnlockContext(ctx), "UnlockContext")
	sent := time.Now()
	l.sleep(lease / 2)
	for _, s := range p.steps(which{kind: renewStep, name: "a"}) {
		if s.at.After(sent) {
			l.Errorf("renewed %v after the unlock", s.at.Sub(sent))
		}
	}
}

// renewalHiccup covers hashicorp/consul#830, where a single failed request counts as a loss, and
// cozy/cozy-stack#4911.
func renewalHiccup(l *lab) {
	lease := l.brisk()
	p := l.process(dlock.WithLease(lease))
	type hold struct {
		lk *dlock.Locker
		r  *rule
	}
	var holds []hold
	for name, what := range map[string]fault{
		"reply lost":   replyLost,
		"request lost": requestLost,
		"not sent":     notSent,
		"refused":      refused,
	} {
		lk := p.Locker(name)
		l.lock(lk)
		holds = append(holds, hold{lk, p.next(2, which{kind: renewStep, name: name}, what)})
	}
	// The first renewal of this lock hangs, so the client must send another one.
	open := make(chan struct{})
	hung := p.Locker("hangs")
	l.lock(hung)
	holds = append(holds, hold{hung, p.next(1, which{kind: renewStep, name: "hangs"}, hangs(open))})
	l.sleep(lease * 5 / 4)
	for _, h := range holds {
		if h.r.hits() == 0 {
			l.Errorf("%s: not renewed in more than a lease", h.lk.Name())
		}
		if isOver(h.lk.Lost(l.ctx)) {
			l.Errorf("%s: the lock was lost", h.lk.Name())
		}
	}
	close(open)
	l.settle()
	for _, h := range holds {
		if held, err := h.lk.IsHeld(l.ctx); err != nil || !held {
			l.Errorf("%s: IsHeld: %v, %v", h.lk.Name(), held, err)
		}
		if err := h.lk.UnlockContext(l.ctx); err != nil {
			l.Errorf("%s: UnlockContext: %v", h.lk.Name(), err)
		}
	}
}

func renewalsFail(l *lab) {
	lease := l.lease()
	p := l.process(dlock.WithLease(lease))
	waiter := l.process()
	var lks []*dlock.Locker
	begin := time.Now()
	for name, what := range map[string]fault{
		"request lost": requestLost,
		"not sent":     notSent,
		"refused":      refused,
	} {
		p.on(which{kind: renewStep, name: name}, what)
		lk := p.Locker(name)
		l.lock(lk)
		lks = append(lks, lk)
	}
	for _, lk := range lks {
		l.eventuallyOver("the lock is lost, "+lk.Name(), lk.Lost(l.ctx))
		l.took(begin, lease-lease/100, "losing the lock, "+lk.Name())
	}
	for _, lk := range lks {
		l.start("the next", func() error {
			return waiter.Locker(lk.Name()).LockContext(l.ctx)
		}).ok()
		l.wantError(lk.UnlockContext(l.ctx), "UnlockContext, "+lk.Name(), dlock.ErrLost)
		l.wantHeld(lk.Name(), "after the late unlock")
	}
}

func renewalsHang(l *lab) {
	lease := l.lease()
	p := l.process(dlock.WithLease(lease))
	open := make(chan struct{})
	p.on(which{kind: renewStep}, hangs(open))
	lk := p.Locker("a")
	begin := time.Now()
	l.lock(lk)
	l.eventuallyOver("the lock is lost", lk.Lost(l.ctx))
	l.took(begin, lease-lease/100, "losing the lock")
	close(open) // a late answer must not revive the hold
	l.settle()
	if !isOver(lk.Lost(l.ctx)) {
		l.Error("a late answer brought a lost lock back")
	}
	l.eventuallyFree("a")
	l.wantError(lk.UnlockContext(l.ctx), "UnlockContext", dlock.ErrLost)

	// Here the first renewal is answered late. The new lease counts from the time when the renewal
	// was sent.
	if l.h.Virtual {
		slow := make(chan struct{})
		q := l.process(dlock.WithLease(lease))
		lk := q.Locker("slow")
		r := q.next(1, which{kind: renewStep}, replyHangs(slow))
		l.lock(lk)
		l.eventually("the first renewal is sent", func() bool { return r.hits() == 1 })
		sent := q.steps(which{kind: renewStep})[0].at
		q.on(which{kind: renewStep}, requestLost)
		l.sleep(lease / 4)
		close(slow)
		l.eventuallyOver("the lock is lost", lk.Lost(l.ctx))
		l.took(sent, lease-lease/100, "losing a lock whose renewal was answered late")
		l.wantError(lk.UnlockContext(l.ctx), "UnlockContext", dlock.ErrLost)
	}

	// Here the acquisition is answered late. The lease counts from the time when the acquisition
	// was sent.
	slow := make(chan struct{})
	q := l.process()
	r := q.next(1, which{kind: acquireStep}, replyHangs(slow))
	lk = q.Locker("b")
	begin = time.Now()
	c := l.start("LockContext", func() error {
		return lk.LockContext(l.ctx, dlock.FixedLease(lease))
	})
	l.eventually("it is sent", func() bool { return r.hits() == 1 })
	l.sleep(lease / 2)
	close(slow)
	c.ok()
	l.eventuallyOver("its lease is over", lk.Lost(l.ctx))
	l.took(begin, lease-lease/100, "a lease whose answer came late")
	if err := lk.UnlockContext(l.ctx); !errors.Is(err, dlock.ErrLost) {
		l.Errorf("UnlockContext: %v", err)
	}
}

func vanishedRenewal(l *lab) {
	lease := l.brisk()
	p := l.process(dlock.WithLease(lease))
	for _, taken := range []bool{false, true} {
		name := strconv.FormatBool(taken)
		lk := p.Locker(name)
		l.lock(lk)
		lost := lk.Lost(l.ctx)
		begin := time.Now()
		l.vanish(name)
		if taken {
			l.take(name, "other:1")
		}
		l.eventuallyOver("the lock is lost", lost)
		l.tookBetween(begin, 0, lease/3, "noticing it")
		l.wantError(lk.UnlockContext(l.ctx), "UnlockContext", dlock.ErrLost)
		if res := l.look(name, ""); res.Held != taken {
			l.Errorf("in the end: %+v", res)
		}
	}
}

func hungNode(l *lab) {
	lease := l.brisk()
	p := l.process(dlock.WithLease(lease))
	open := make(chan struct{})
	defer close(open)
	var good, hung []*dlock.Locker
	for i := range 20 {
		name := strconv.Itoa(i)
		if i%2 == 0 {
			p.on(which{kind: renewStep, name: name}, hangs(open))
		}
		lk := p.Locker(name)
		l.lock(lk)
		if i%2 == 0 {
			hung = append(hung, lk)
		} else {
			good = append(good, lk)
		}
	}
	for _, lk := range hung {
		l.eventuallyOver("a lock whose renewals hang is lost", lk.Lost(l.ctx))
	}
	l.sleep(lease / 4)
	for _, lk := range good {
		if isOver(lk.Lost(l.ctx)) {
			l.Errorf("the lock %s was lost, and its renewals don't hang", lk.Name())
		}
		if l.h.Virtual {
			if left := l.look(lk.Name(), "").Remaining; left < lease*6/10 {
				l.Errorf("%v are left of the lease of the lock %s", left, lk.Name())
			}
		}
	}
	if l.h.Virtual {
		fresh := p.Locker("fresh")
		l.lock(fresh)
		l.sleep(10 * lease)
		if isOver(fresh.Lost(l.ctx)) {
			l.Error("a fresh lock was lost")
		}
	}
}

func noBatches(l *lab) {
	f := newFaults(l.store.Backend())
	f.hideBatches = true
	lease := l.brisk()
	p := l.processOn(f, dlock.WithLease(lease))
	var lks []*dlock.Locker
	for i := range 5 {
		lk := p.Locker(strconv.Itoa(i))
		l.lock(lk)
		lks = append(lks, lk)
	}
	p.on(which{kind: renewStep, name: "0"}, hangsPolitely)
	l.sleep(lease * 5 / 4)
	for i, lk := range lks {
		if lost := isOver(lk.Lost(l.ctx)); lost != (i == 0) {
			l.Errorf("lock %d is lost: %v", i, lost)
		}
	}
	if n := len(p.batchSizes()); n != 0 {
		l.Errorf("%d batches", n)
	}
}

func doReturns(l *lab) {
	p := l.process()
	lk := p.Locker("a")
	mine := errors.New("fn's")
	err := lk.Do(l.ctx, func(ctx context.Context) error {
		l.wantHeld("a", "inside Do")
		if ctx.Err() != nil {
			l.Error("the context of Do is over inside it")
		}
		return mine
	})
	if err != mine {
		l.Errorf("Do returned %v, want fn's error itself", err)
	}
	l.wantFree("a", "after Do")
	l.noError(lk.Do(l.ctx, func(context.Context) error { return nil }), "Do")
	if v := l.wantPanic("Do whose fn panics", func() {
		_ = lk.Do(l.ctx, func(context.Context) error { panic("mine") })
	}); v != "mine" {
		l.Errorf("Do panicked with %v", v)
	}
	l.wantFree("a", "after a panic in Do")
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		_ = lk.Do(l.ctx, func(context.Context) error { runtime.Goexit(); return nil })
	}()
	l.eventuallyOver("the goroutine ends", gone)
	l.wantFree("a", "after Goexit in Do")

	cause := errors.New("the cause")
	ctx, cancel := context.WithCancelCause(l.ctx)
	err = lk.Do(ctx, func(ctx context.Context) error {
		cancel(cause)
		l.eventuallyOver("the context inside ends with the caller's", ctx.Done())
		return context.Cause(ctx)
	})
	if err != cause {
		l.Errorf("the cause inside Do is %v", err)
	}
	l.wantFree("a", "after Do")
	// Concurrent calls of Do on one Locker compete for the lock like different parties.
	var inside presence
	var calls []*call
	for range 5 {
		calls = append(calls, l.start("Do", func() error {
			return lk.Do(l.ctx, func(context.Context) error {
				inside.enter("Do")
				time.Sleep(2 * time.Millisecond)
				inside.leave()
				return nil
			})
		}))
	}
	for _, c := range calls {
		c.ok()
	}
	l.noError(inside.check(), "exclusion")
	if inside.visits != 5 {
		l.Errorf("%d visits, want 5", inside.visits)
	}
}

func doLost(l *lab) {
	lease := l.lease()
	p := l.process(dlock.WithLease(lease))
	p.on(which{kind: renewStep}, requestLost)
	lk := p.Locker("a")
	mine := errors.New("fn's")
	begin := time.Now()
	err := lk.Do(l.ctx, func(ctx context.Context) error {
		l.eventuallyOver("the context ends", ctx.Done())
		l.took(begin, lease-lease/100, "losing the lock")
		if !errors.Is(context.Cause(ctx), dlock.ErrLost) ||
			!errors.Is(ctx.Err(), context.Canceled) {
			l.Errorf("the context ended with %v, cause %v", ctx.Err(), context.Cause(ctx))
		}
		child, cancel := context.WithCancel(ctx)
		defer cancel()
		l.eventuallyOver("a context made from it ends, too", child.Done())
		if !errors.Is(context.Cause(child), dlock.ErrLost) {
			l.Errorf("the cause of a context made from it is %v", context.Cause(child))
		}
		// Once the hold of a Do call has expired, the call's context can't be used to lock again.
		l.eventuallyFree("a")
		_, err := p.Locker("a").TryLock(context.WithoutCancel(ctx))
		l.wantError(err, "TryLock with the context of a Do that is lost", dlock.ErrLost)
		return mine
	})
	if !errors.Is(err, mine) || !errors.Is(err, dlock.ErrLost) {
		l.Errorf("Do, lost: %v", err)
	}
	err = p.Locker("b").Do(l.ctx, func(ctx context.Context) error {
		l.eventuallyOver("the context ends", ctx.Done())
		return nil
	}, dlock.FixedLease(l.shortLease()))
	if !errors.Is(err, dlock.ErrLost) {
		l.Errorf("Do, lost, whose fn returned nil: %v", err)
	}
	// Here fn doesn't notice the loss.
	err = p.Locker("c").Do(l.ctx,
		func(context.Context) error { l.sleep(l.shortLease()); return nil },
		dlock.FixedLease(l.shortLease()))
	if !errors.Is(err, dlock.ErrLost) {
		l.Errorf("Do, lost while fn didn't look: %v", err)
	}
}

func doReleaseFails(l *lab) {
	p := l.process()
	mine := errors.New("fn's")
	r := p.on(which{kind: releaseStep}, refused)
	err := p.Locker("a").Do(l.ctx, func(context.Context) error { return mine })
	r.off()
	l.wantError(err, "Do whose release is refused", mine, errFault)
	if e, _ := errors.AsType[*dlock.Error](err); e.Op != "unlock" || e.Name != "a" {
		l.Errorf("the error is of %q %q, want unlock of a", e.Op, e.Name)
	}
}

// lockAfterLoss covers hashicorp/consul#4902, where a lock can't be locked again after a loss.
func lockAfterLoss(l *lab) {
	p := l.process()
	lk, ctx := p.Locker("a"), l.ctxOf()
	for _, ctx := range []context.Context{l.ctx, ctx} {
		for range 3 {
			l.noError(lk.LockContext(ctx, dlock.FixedLease(l.shortLease())), "LockContext")
			l.eventuallyOver("the hold is lost", lk.Lost(ctx))
			l.wantError(lk.UnlockContext(ctx), "UnlockContext", dlock.ErrLost)
			l.noError(lk.LockContext(ctx), "LockContext after the loss")
			if held, err := lk.IsHeld(ctx); err != nil || !held {
				l.Errorf("IsHeld: %v, %v", held, err)
			}
			l.noError(lk.UnlockContext(ctx), "UnlockContext")
			l.wantFree("a", "after that")
		}
	}
	if n := p.count(which{kind: reentryStep}); n != 0 {
		l.Errorf("sent %d re-entries into holds that are over", n)
	}
}

// cutOffWaiter covers etcd-io/etcd#19597, where a waiter whose session has expired returns only
// when its predecessor leaves.
func cutOffWaiter(l *lab) {
	p := l.process()
	l.take("a", "other:1")
	ctx, cancel := context.WithCancel(l.ctx)
	defer cancel()
	wait := l.start("a waiter", func() error { return p.Locker("a").LockContext(ctx) })
	wait.waits()
	for _, kind := range []stepKind{acquireStep, releaseStep, subscribeStep} {
		p.on(which{kind: kind}, hangsPolitely)
	}
	cancel()
	l.wantError(wait.result(), "a waiter that is cut off", context.Canceled)
	l.wantHeld("a", "after that")
}

func wiped(l *lab) {
	l.skipWithout(l.store.Wipe != nil, "Wipe")
	p := l.process(dlock.WithLease(l.brisk()))
	lk := p.Locker("a")
	l.lock(lk)
	lost := lk.Lost(l.ctx)
	l.store.Wipe()
	l.eventuallyOver("the holder is told", lost)
	l.wantError(lk.UnlockContext(l.ctx), "UnlockContext", dlock.ErrLost)
	l.lock(lk)
	var res backend.LookResult
	l.eventually("it can be looked at", func() bool {
		var err error
		res, err = l.other.Look(l.ctx, backend.LookRequest{Kind: l.kind, Name: "a"})
		return err == nil
	})
	if !res.Held {
		l.Error("the lock after the loss isn't in the store")
	}
}
