package contract

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/dlock"
)

// mutexCases test that a Locker behaves like a mutex.
var mutexCases = []testCase{
	{name: "an uncontended Lock and Unlock", rule: "cost two steps, and no other request",
		tags: differs | forReaders, run: locker(uncontended)},
	{name: "two clients exclude each other",
		rule: "while one holds the lock the other doesn't get it, and gets it afterwards",
		tags: Essential | Exclusion | differs, run: locker(twoClients)},
	{name: "a second Lock waits",
		rule: "a Locker is locked once at a time, also within a goroutine, and any goroutine may " +
			"unlock it", run: locker(secondLock)},
	{name: "sync.Cond on a Locker", rule: "code that knows only sync.Locker works with a Locker",
		run: locker(condition)},
	{name: "Unlock of what isn't locked", rule: "panics, and UnlockContext returns ErrNotHeld",
		run: locker(unlockUnlocked)},
	{name: "goroutines sharing a Locker exclude each other past the lease",
		rule: "nobody else locks the Locker before Unlock, even if the lease has ended",
		run:  locker(sharedPastLease)},
	{name: "TryLock answers false only for another holder",
		rule: "false, nil always means that another holds the lock",
		run:  locker(tryLockFalse)},
	{name: "TryLock of a Locker that was lost",
		rule: "returns ErrLost until the Locker is unlocked, and works again afterwards",
		run:  locker(tryLockLost)},
	{name: "two Lockers of a client",
		rule: "are two contenders: neither waits for the other's Unlock once the lock is free",
		run:  locker(twoLockers)},
	{name: "Wait bounds the wait",
		rule: "after it TryLock returns false, and the other calls ErrNotAcquired",
		tags: forReaders, run: locker(boundedWait)},
	{name: "names",
		rule: "every text except the empty one is a name, and each name is a lock of its own",
		run:  locker(names)},
	{name: "bad input",
		rule: "returns an error, or panics where no error can be returned, and sends nothing",
		tags: forReaders, run: locker(badInput)},
	{name: "leases below the store's limits",
		rule: "WithLease panics; Lease is rounded up in the store, but the client stops at the " +
			"requested one",
		tags: forReaders, run: locker(leaseLimits)},
	{name: "something else under the name",
		rule: "every call returns ErrConflict at once, and nothing is changed",
		tags: differs | forReaders | readersDiffer, run: locker(conflict)},
	{name: "ForceUnlock by the holder's own client",
		rule: "frees the lock, and the holder is told at once",
		tags: forReaders,
		run:  locker(forceOwn)},
	{name: "ForceUnlock by another client",
		rule: "frees the lock, and the holder detects it with its next renewal",
		tags: differs,
		run:  locker(forceOther)},
	{name: "what the store says",
		rule: "IsLocked, TTL, IsHeld and HoldCount report whether the lock is held, and by whom",
		tags: differs, run: locker(queries)},
	{name: "the number of an acquisition", rule: "is never used again, by any client",
		tags: forReaders, run: locker(numbers)},
}

func uncontended(l *lab) {
	p := l.process()
	lk := p.Locker("a")
	if n := p.count(which{}); n != 0 {
		l.Fatalf("New and Locker sent %d steps", n)
	}
	pass(lk)
	if got, want := p.kinds(), []stepKind{acquireStep, releaseStep}; !slices.Equal(got, want) {
		l.Errorf("Lock and Unlock sent %v, want %v", got, want)
	}
	l.wantFree("a", "after Unlock")
	l.noError(lk.Do(l.ctx, func(context.Context) error { return nil }), "Do")
	l.settle()
	if got, want := p.kinds(), []stepKind{acquireStep, releaseStep, acquireStep,
		releaseStep}; !slices.Equal(got, want) {
		l.Errorf("with a Do that is %v, want %v", got, want)
	}
}

func twoClients(l *lab) {
	a, b := l.process().Locker("a"), l.process().Locker("a")
	l.lock(a)
	if l.tryLock(b) {
		l.Fatal("two clients have the lock")
	}
	other := l.process().Locker("another")
	if !l.tryLock(other) {
		l.Error("a lock of another name isn't free")
	}
	wait := l.start("b.LockContext", func() error { return b.LockContext(l.ctx) })
	wait.waits()
	l.unlock(a)
	wait.ok()
	if l.tryLock(a) {
		l.Fatal("two clients have the lock, after it changed hands")
	}
	l.unlock(b)
	l.unlock(other)
	l.wantFree("a", "after the last unlock")
}

func secondLock(l *lab) {
	lk := l.process().Locker("a")
	lk.Lock()
	second := l.start("the second Lock", func() error { lk.Lock(); return nil })
	second.waits()
	l.start("an Unlock in another goroutine", func() error { return lk.UnlockContext(l.ctx) }).ok()
	second.ok()
	l.wantHeld("a", "after the second Lock")
	lk.Unlock()
	l.wantFree("a", "after the second Unlock")
}

func condition(l *lab) {
	const items, workers = 40, 4
	lk := l.process().Locker("queue")
	cond := sync.NewCond(lk)
	var queue, got []int
	done := false
	var calls []*call
	for range workers {
		calls = append(calls, l.start("a worker", func() error {
			for {
				cond.L.Lock()
				for len(queue) == 0 && !done {
					cond.Wait()
				}
				if len(queue) == 0 {
					cond.L.Unlock()
					return nil
				}
				got, queue = append(got, queue[0]), queue[1:]
				cond.L.Unlock()
			}
		}))
	}
	for i := range items {
		cond.L.Lock()
		queue = append(queue, i)
		cond.L.Unlock()
		cond.Signal()
	}
	cond.L.Lock()
	done = true
	cond.L.Unlock()
	cond.Broadcast()
	for _, c := range calls {
		c.ok()
	}
	if len(got) != items || !slices.IsSorted(got) {
		l.Errorf("taken from the queue: %v", got)
	}
}

func unlockUnlocked(l *lab) {
	p := l.process()
	lk := p.Locker("a")
	l.wantPanicError("Unlock of a new Locker", dlock.ErrNotHeld, lk.Unlock)
	l.wantError(lk.UnlockContext(l.ctx), "UnlockContext of a new Locker", dlock.ErrNotHeld)
	lk.Lock()
	l.wantError(p.Locker("a").UnlockContext(l.ctx), "UnlockContext of another Locker",
		dlock.ErrNotHeld)
	l.wantHeld("a", "after the unlock of another Locker")
	lk.Unlock()
	l.wantPanicError("the second Unlock", dlock.ErrNotHeld, lk.Unlock)
	err := lk.UnlockContext(l.ctx)
	l.wantError(err, "the second UnlockContext", dlock.ErrNotHeld)
	l.not(err, "the second UnlockContext", dlock.ErrLost)
	if e, _ := errors.AsType[*dlock.Error](err); e.Op != "unlock" || e.Name != "a" {
		l.Errorf("the error is of %q %q, want unlock of a", e.Op, e.Name)
	}
}

func sharedPastLease(l *lab) {
	p := l.process()
	lk := p.Locker("a")
	l.lock(lk, dlock.FixedLease(l.shortLease()))
	lost := lk.Lost(l.ctx)
	second := l.start("the second goroutine's LockContext", func() error {
		return lk.LockContext(l.ctx)
	})
	l.eventuallyOver("the first hold is lost", lost)
	l.sleep(2 * l.shortLease()) // meanwhile, the second goroutine must not acquire the lock
	second.waits()
	l.wantFree("a", "while the first goroutine hasn't unlocked")
	l.wantError(lk.UnlockContext(l.ctx), "the late unlock", dlock.ErrLost)
	second.ok()
	l.wantHeld("a", "after the second goroutine got in")
	l.unlock(lk)
	l.wantFree("a", "in the end")
}

func tryLockFalse(l *lab) {
	p := l.process()
	lk := p.Locker("a")
	holder := l.process()
	l.lock(holder.Locker("a"))
	if l.tryLock(lk) {
		l.Fatal("TryLock of what another client holds succeeded")
	}
	l.lock(p.Locker("b"))
	if l.tryLock(p.Locker("b")) {
		l.Fatal("TryLock of what another Locker of the client holds succeeded")
	}
	mine := p.Locker("c")
	l.lock(mine)
	if l.tryLock(mine) {
		l.Fatal("TryLock of what the Locker itself holds succeeded")
	}
	for _, c := range []struct {
		what string
		err  fault
	}{
		{"sent, and no answer", requestLost},
		{"not sent", notSent},
		{"refused", refused},
	} {
		r := p.on(which{kind: acquireStep, name: "free"}, c.err)
		ok, err := p.Locker("free").TryLock(l.ctx)
		l.wantError(err, "TryLock, "+c.what, errFault)
		if ok {
			l.Errorf("TryLock, %s: true and an error", c.what)
		}
		r.off()
	}
	over, cancel := context.WithCancel(l.ctx)
	cancel()
	sent := p.count(which{kind: acquireStep})
	for _, name := range []string{"a", "free"} {
		ok, err := p.Locker(name).TryLock(over)
		l.wantError(err, "TryLock with a context that is over", context.Canceled)
		if ok {
			l.Error("TryLock: true and an error")
		}
	}
	if n := p.count(which{kind: acquireStep}); n != sent {
		l.Error("TryLock with a context that is over asked the store")
	}
}

func tryLockLost(l *lab) {
	p := l.process()
	lk := p.Locker("a")
	l.lock(lk, dlock.FixedLease(l.shortLease()))
	l.eventuallyOver("the hold is lost", lk.Lost(l.ctx))
	l.eventuallyFree("a")
	for range 2 {
		ok, err := lk.TryLock(l.ctx)
		l.wantError(err, "TryLock of a Locker whose hold was lost", dlock.ErrLost)
		if ok {
			l.Fatal("TryLock of a Locker whose hold was lost and not unlocked succeeded")
		}
	}
	ok, err := lk.TryLock(l.ctx, dlock.Wait(time.Millisecond))
	if ok || err == nil {
		l.Fatalf("TryLock with a Wait of a Locker whose hold was lost: %v, %v", ok, err)
	}
	l.wantError(lk.UnlockContext(l.ctx), "its unlock", dlock.ErrLost)
	// The Locker can be locked again after a loss, unlike the lock in hashicorp/consul#4902.
	if !l.tryLock(lk) {
		l.Fatal("after the unlock it can't be locked")
	}
	if held, err := lk.IsHeld(l.ctx); err != nil || !held {
		l.Fatalf("IsHeld of the new hold: %v, %v", held, err)
	}
	l.unlock(lk)
}

func twoLockers(l *lab) {
	p := l.process()
	first, second := p.Locker("a"), p.Locker("a")
	l.lock(first, dlock.FixedLease(l.shortLease()))
	wait := l.start("the other Locker's LockContext", func() error {
		return second.LockContext(l.ctx)
	})
	wait.ok() // the lease has expired, although first hasn't unlocked
	l.wantError(first.UnlockContext(l.ctx), "the late unlock", dlock.ErrLost)
	l.wantHeld("a", "after the first Locker's late unlock")
	if held, err := second.IsHeld(l.ctx); err != nil || !held {
		l.Fatalf("IsHeld of the second: %v, %v", held, err)
	}
	l.unlock(second)
}

func boundedWait(l *lab) {
	p := l.process()
	l.take("a", "other:1")
	wait := 30 * time.Millisecond
	if !l.h.Virtual {
		wait = 500 * time.Millisecond // time for the store to answer
	}
	lk := p.Locker("a")

	begin := time.Now()
	if l.tryLock(lk, dlock.Wait(wait)) {
		l.Fatal("TryLock got what another holds")
	}
	l.tookBetween(begin, wait, wait, "TryLock with Wait")

	begin = time.Now()
	err := lk.LockContext(l.ctx, dlock.Wait(wait))
	l.wantError(err, "LockContext with Wait", dlock.ErrNotAcquired)
	l.not(err, "LockContext with Wait", context.DeadlineExceeded)
	l.tookBetween(begin, wait, wait, "LockContext with Wait")

	begin = time.Now()
	err = lk.Do(l.ctx, func(context.Context) error {
		return errors.New("fn was called")
	}, dlock.Wait(wait))
	l.wantError(err, "Do with Wait", dlock.ErrNotAcquired)
	l.tookBetween(begin, wait, wait, "Do with Wait")

	before := p.count(which{kind: acquireStep})
	l.wantError(lk.LockContext(l.ctx, dlock.Wait(0)), "LockContext with Wait(0)",
		dlock.ErrNotAcquired)
	if n := p.count(which{kind: acquireStep}) - before; n != 1 {
		l.Errorf("LockContext with Wait(0) asked %d times, want once", n)
	}

	// If the context ends before the wait does, the error is the context's.
	ctx, cancel := context.WithTimeout(l.ctx, wait)
	defer cancel()
	err = lk.LockContext(ctx, dlock.Wait(time.Hour))
	l.wantError(err, "LockContext whose context ends before its Wait", context.DeadlineExceeded)
	l.not(err, "LockContext whose context ends before its Wait", dlock.ErrNotAcquired)

	got := l.start("TryLock with a long Wait", func() error {
		ok, err := lk.TryLock(l.ctx, dlock.Wait(time.Hour))
		if err == nil && !ok {
			err = errors.New("false")
		}
		return err
	})
	got.waits()
	l.noError(l.give("a", "other:1"), "release")
	got.ok()
	l.unlock(lk)
}

func names(l *lab) {
	p, q := l.process(), l.process()
	odd := []string{
		"a", "A", " ", "a b", "a:b", "a/b", "/a", "../a", "a\\b", "a\n", "\x00", "\xff\xfe", "%s",
		"*", "a*", "[a]", "ключ", "🔒",
		strings.Repeat("n", 1000), "a.b", "#", "?", "'", `"`,
	}
	for _, name := range odd {
		if got := p.Locker(name).Name(); got != name {
			l.Errorf("Name() of %q is %q", name, got)
		}
		if !l.tryLock(p.Locker(name)) {
			l.Errorf("the lock %q isn't free: it is that of another name", name)
		}
	}
	for _, name := range odd {
		if l.tryLock(q.Locker(name)) {
			l.Errorf("two clients have the lock %q", name)
		}
		released, err := q.Locker(name).ForceUnlock(l.ctx)
		if err != nil || !released {
			l.Errorf("ForceUnlock of %q: %v, %v", name, released, err)
		}
	}
}

func badInput(l *lab) {
	p := l.process()
	empty, lk := p.Locker(""), p.Locker("a")
	fn := func(context.Context) error { l.Error("fn was called"); return nil }
	second := func(_ any, err error) error { return err }
	for what, err := range map[string]error{
		"LockContext without a name":   empty.LockContext(l.ctx),
		"TryLock without a name":       second(empty.TryLock(l.ctx)),
		"UnlockContext without a name": empty.UnlockContext(l.ctx),
		"Do without a name":            empty.Do(l.ctx, fn),
		"ForceUnlock without a name":   second(empty.ForceUnlock(l.ctx)),
		"IsLocked without a name":      second(empty.IsLocked(l.ctx)),
		"IsHeld without a name":        second(empty.IsHeld(l.ctx)),
		"HoldCount without a name":     second(empty.HoldCount(l.ctx)),
		"TTL without a name":           second(empty.TTL(l.ctx)),
		"a lease of 0":                 lk.LockContext(l.ctx, dlock.FixedLease(0)),
		"a negative lease":             lk.LockContext(l.ctx, dlock.FixedLease(-time.Second)),
		"a lease under 1 ms": second(
			lk.TryLock(l.ctx, dlock.FixedLease(time.Millisecond-1))),
		"a renewed lease of 0":     lk.LockContext(l.ctx, dlock.RenewedLease(0)),
		"a lease under 1 ms in Do": lk.Do(l.ctx, fn, dlock.FixedLease(time.Microsecond)),
		"a negative wait":          second(lk.TryLock(l.ctx, dlock.Wait(-1))),
		"a negative wait in Do":    lk.Do(l.ctx, fn, dlock.Wait(-time.Second)),
	} {
		l.wantError(err, what)
		for _, target := range []error{dlock.ErrNotAcquired, dlock.ErrNotHeld, dlock.ErrLost,
			dlock.ErrClosed, dlock.ErrConflict} {
			l.not(err, what, target)
		}
	}
	if !isOver(empty.Lost(l.ctx)) {
		l.Error("Lost of a Locker without a name is open")
	}
	l.wantPanic("Lock without a name", empty.Lock)
	l.wantPanic("For the zero Owner", func() { lk.For(dlock.Owner{}) })
	l.wantPanic("WithOwner with the zero Owner", func() { dlock.WithOwner(l.ctx, dlock.Owner{}) })
	l.wantPanic("New without a backend", func() { dlock.New(nil) })
	b := l.store.Backend()
	l.wantPanic("New with a lease under 1 ms", func() {
		dlock.New(b, dlock.WithLease(time.Microsecond))
	})
	l.wantPanic("New with a negative lease", func() { dlock.New(b, dlock.WithLease(-time.Second)) })
	l.wantPanic("New with an empty id", func() { dlock.New(b, dlock.WithClientID("")) })
	if n := p.count(which{}); n != 0 {
		l.Errorf("bad input reached the store: %v", p.kinds())
	}
	// The Locker can still be used.
	if !l.tryLock(lk) {
		l.Error("after bad input the lock isn't free")
	}
}

func leaseLimits(l *lab) {
	limits := l.limits()
	p := l.process()
	if limits.MinLease > time.Millisecond {
		l.wantPanic("New with a lease below the store's limits", func() {
			dlock.New(l.store.Backend(), dlock.WithLease(limits.MinLease-time.Millisecond))
		})
	}
	// faultyBackend checks that each request is within the store's limits.
	whole := 7 * time.Millisecond
	if !l.h.Virtual {
		whole = 507 * time.Millisecond // long enough for the answer to arrive within the lease
	}
	lease := whole + 300*time.Microsecond
	lk := p.Locker("a")
	begin := time.Now()
	l.lock(lk, dlock.FixedLease(lease))
	l.eventuallyOver("the hold is over", lk.Lost(l.ctx))
	if p.limits() == (backend.Limits{}) {
		l.took(begin, whole-whole/100, "a hold with a lease of a fraction of a millisecond more")
	}
	if got, want := p.steps(which{kind: acquireStep})[0].lease, l.legal(whole); got != want {
		l.Errorf("the store is asked for a lease of %v, want %v", got, want)
	}
	l.eventuallyFree("a")
	l.wantError(lk.UnlockContext(l.ctx), "the unlock", dlock.ErrLost)

	renewed := p.Locker("b")
	l.lock(renewed, dlock.RenewedLease(time.Second+300*time.Microsecond))
	if got, want := p.steps(which{kind: acquireStep, name: "b"})[0].lease, l.legal(
		time.Second); got != want {
		l.Errorf("the store is asked for a renewed lease of %v, want %v", got, want)
	}
	renewed.UnlockContext(l.ctx) // on a busy machine the hold may be lost
}

func (p *process) limits() backend.Limits { return p.inner.Limits() }

func conflict(l *lab) {
	l.skipWithout(l.store.PutForeign != nil, "PutForeign")
	p := l.process()
	l.store.PutForeign("a")
	lk := p.Locker("a")
	second := func(_ any, err error) error { return err }
	for what, err := range map[string]error{
		"LockContext":       lk.LockContext(l.ctx),
		"TryLock":           second(lk.TryLock(l.ctx)),
		"TryLock with Wait": second(lk.TryLock(l.ctx, dlock.Wait(time.Hour))),
		"Do": lk.Do(l.ctx, func(context.Context) error {
			return errors.New("fn was called")
		}),
		"ForceUnlock": second(lk.ForceUnlock(l.ctx)),
		"IsLocked":    second(lk.IsLocked(l.ctx)),
		"TTL":         second(lk.TTL(l.ctx)),
	} {
		l.wantError(err, what, dlock.ErrConflict)
	}
	l.wantPanicError("Lock", dlock.ErrConflict, lk.Lock)
	l.wantError(lk.UnlockContext(l.ctx), "UnlockContext of what was never locked", dlock.ErrNotHeld)
	if l.store.ForeignIntact != nil && !l.store.ForeignIntact("a") {
		l.Error("what was stored under the name has been changed")
	}
}

func forceOwn(l *lab) {
	p := l.process()
	lk, operator := p.Locker("a"), p.Locker("a")
	if released, err := operator.ForceUnlock(l.ctx); err != nil || released {
		l.Fatalf("ForceUnlock of a free lock: %v, %v", released, err)
	}
	l.lock(lk)
	lost := lk.Lost(l.ctx)
	if released, err := operator.ForceUnlock(l.ctx); err != nil || !released {
		l.Fatalf("ForceUnlock: %v, %v", released, err)
	}
	if !isOver(lost) {
		l.Error("Lost is still open after a ForceUnlock by the same client")
	}
	if held, err := lk.IsHeld(l.ctx); err != nil || held {
		l.Errorf("IsHeld: %v, %v", held, err)
	}
	l.lock(operator)
	l.wantError(lk.UnlockContext(l.ctx), "the unlock", dlock.ErrLost)
	l.wantHeld("a", "after the unlock of the former holder")
	l.unlock(operator)
	if n := p.count(which{kind: forceStep}); n != 2 {
		l.Errorf("two calls of ForceUnlock sent %d steps", n)
	}
	r := p.on(which{kind: forceStep}, replyLost)
	_, err := lk.ForceUnlock(l.ctx)
	l.wantError(err, "ForceUnlock without an answer", errFault)
	if r.hits() != 1 {
		l.Errorf("ForceUnlock without an answer was sent %d times, want once", r.hits())
	}
}

func forceOther(l *lab) {
	p, q := l.process(dlock.WithLease(l.brisk())), l.process()
	lk := p.Locker("a")
	l.lock(lk)
	lost := lk.Lost(l.ctx)
	waiter := l.process().Locker("a")
	wait := l.start("a waiter", func() error { return waiter.LockContext(l.ctx) })
	wait.waits()
	if released, err := q.Locker("a").ForceUnlock(l.ctx); err != nil || !released {
		l.Fatalf("ForceUnlock: %v, %v", released, err)
	}
	wait.ok()
	l.eventuallyOver("the former holder is told", lost)
	l.wantError(lk.UnlockContext(l.ctx), "the unlock", dlock.ErrLost)
	l.wantHeld("a", "after the unlock of the former holder")
	l.unlock(waiter)
}

func queries(l *lab) {
	p, q := l.process(), l.process()
	lk, other := p.Locker("a"), q.Locker("a")
	state := func(lk *dlock.Locker) string {
		l.Helper()
		locked, err := lk.IsLocked(l.ctx)
		l.noError(err, "IsLocked")
		held, err := lk.IsHeld(l.ctx)
		l.noError(err, "IsHeld")
		n, err := lk.HoldCount(l.ctx)
		l.noError(err, "HoldCount")
		ttl, err := lk.TTL(l.ctx)
		l.noError(err, "TTL")
		left := "nothing"
		if ttl > 0 {
			left = "something"
		}
		if ttl > l.longLease() {
			l.Errorf("TTL is %v, and no lease is longer than %v", ttl, l.longLease())
		}
		return fmt.Sprintf("locked %v, held %v, count %d, %s left", locked, held, n, left)
	}
	want := func(when string, lk *dlock.Locker, want string) {
		l.Helper()
		if got := state(lk); got != want {
			l.Errorf("%s: %s\nwant %s", when, got, want)
		}
	}
	const free = "locked false, held false, count 0, nothing left"
	want("free", lk, free)
	l.lock(lk)
	want("held", lk, "locked true, held true, count 1, something left")
	want("held by another client", other, "locked true, held false, count 0, something left")
	want("held by another Locker", p.Locker("a"),
		"locked true, held false, count 0, something left")
	if l.h.Virtual {
		ttl, err := other.TTL(l.ctx)
		l.noError(err, "TTL")
		if ttl != l.calm() {
			l.Errorf("TTL just after the lock is %v, want %v", ttl, l.calm())
		}
	}
	l.vanish("a")
	want("vanished from the store", lk, free)
	l.take("a", "other:1")
	want("taken by another while we believe in it", lk,
		"locked true, held false, count 0, something left")
	if err := lk.UnlockContext(l.ctx); err == nil {
		l.Error("the unlock of a lock that another has: no error")
	}
	l.noError(l.give("a", "other:1"), "release")
	want("in the end", lk, free)

	broken := p.on(which{kind: lookStep}, requestLost)
	second := func(_ any, err error) error { return err }
	l.lock(lk)
	for what, err := range map[string]error{
		"IsLocked":  second(lk.IsLocked(l.ctx)),
		"IsHeld":    second(lk.IsHeld(l.ctx)),
		"HoldCount": second(lk.HoldCount(l.ctx)),
		"TTL":       second(lk.TTL(l.ctx)),
	} {
		l.wantError(err, what+" while the store fails", errFault)
	}
	broken.off()
	l.unlock(lk)
}

func numbers(l *lab) {
	// Two clients have the same id, for example because a host name was given twice by mistake.
	// Even so, neither may own the other's holds.
	p := l.process(dlock.WithClientID("host"))
	q := l.process(dlock.WithClientID("host"))
	if p.ID() != "host" {
		l.Errorf("ID() is %q", p.ID())
	}
	if a, b := l.process().ID(), l.process().ID(); a == b || a == "" {
		l.Errorf("two clients without an id have %q and %q", a, b)
	}
	o := dlock.NewOwner()
	for i := range 5 {
		for _, c := range []*process{p, q} {
			lk := c.Locker("a")
			if i%2 == 1 {
				lk = lk.For(o)
			}
			l.lock(lk)
			l.unlock(lk)
			l.noError(lk.Do(l.ctx, func(context.Context) error { return nil }), "Do")
		}
	}
	seen := map[string]bool{}
	for _, c := range []*process{p, q} {
		for _, s := range c.steps(which{kind: acquireStep}) {
			if seen[s.owner] {
				l.Errorf("two acquisitions are by %q", s.owner)
			}
			seen[s.owner] = true
			if !strings.HasPrefix(s.owner, "host:") {
				l.Errorf("the owner %q isn't <client id>:<number>", s.owner)
			}
		}
	}
}
