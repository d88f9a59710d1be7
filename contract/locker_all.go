package contract

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/dlock"
)

// allCases test dlock.All with several locks in one store.
var allCases = []testCase{
	{name: "several locks",
		rule: "are acquired all or none, and a waiter for one of them holds no other",
		tags: differs, run: locker(allOrNone)},
	{name: "several locks, and one of them lost",
		rule: "all count as lost, and Release releases the others",
		run:  locker(allLost)},
	{name: "several locks, one without an answer", rule: "in the end all are held, or all are free",
		tags: differs, run: locker(allWithoutAnswer)},
	{name: "several locks, one of which hangs", rule: "others can still acquire the rest",
		run: locker(allWhereOneHangs)},
	{name: "several locks in opposite orders", rule: "are acquired without a deadlock",
		run: locker(allInOppositeOrders)},
}

var threeNames = []string{"a", "b", "c"}

// all returns a MultiLocker for several names.
func (p *process) all(names ...string) *dlock.MultiLocker {
	var lockers []*dlock.Locker
	for _, name := range names {
		lockers = append(lockers, p.Locker(name))
	}
	return dlock.All(lockers...)
}

// wantOnly fails the test unless the given names are held, and the rest of threeNames are free.
func (l *lab) wantOnly(when string, held ...string) {
	l.Helper()
	for _, name := range threeNames {
		if is := l.look(name, "").Held; is != slices.Contains(held, name) {
			l.Fatalf("%s: %q is held: %v; of %q only %q should be", when, name, is, threeNames,
				held)
		}
	}
}

// eventuallyOnly waits until the given names are held, and the rest of threeNames are free.
func (l *lab) eventuallyOnly(held ...string) {
	l.Helper()
	l.eventually(fmt.Sprintf("of %q only %q are held", threeNames, held), func() bool {
		return !slices.ContainsFunc(threeNames, func(name string) bool {
			return l.look(name, "").Held != slices.Contains(held, name)
		})
	})
}

func allOrNone(l *lab) {
	p := l.process()
	all := p.all(threeNames...)
	all.Lock()
	l.wantOnly("locked", threeNames...)
	if ok, err := p.all("c", "d").TryLock(l.ctx); ok || err != nil {
		l.Errorf("TryLock of what is held in this client, and another: %v, %v", ok, err)
	}
	l.wantFree("d", "after it")
	all.Unlock()
	l.wantOnly("unlocked")

	l.take("b", "another")
	if ok, err := all.TryLock(l.ctx); ok || err != nil {
		l.Errorf("TryLock where one is held: %v, %v", ok, err)
	}
	l.wantOnly("not locked", "b")
	var err error
	named := func() string {
		if e, ok := errors.AsType[*dlock.Error](err); ok {
			return e.Name
		}
		return ""
	}
	for wait := 10 * time.Millisecond; wait < caseLimit/4; wait *= 2 {
		// On a slow machine the store might not answer within this wait, or might not have carried
		// out the releases of earlier attempts. So try longer waits.
		err = all.LockContext(l.ctx, dlock.Wait(wait))
		if !errors.Is(err, dlock.ErrUnavailable) && named() == "b" {
			break
		}
	}
	l.wantError(err, "LockContext where one is held", dlock.ErrNotAcquired)
	l.not(err, "LockContext where one is held", dlock.ErrUnavailable)
	if named() != "b" {
		l.Errorf("LockContext where b is held names %q", named())
	}
	c := l.start("LockContext", func() error { return all.LockContext(l.ctx) })
	c.waits()
	l.eventuallyOnly("b") // before it waits, the call must release the locks that it got
	l.noError(l.give("b", "another"), "another gives b")
	c.ok()
	l.wantOnly("locked", threeNames...)
	l.noError(all.UnlockContext(l.ctx), "UnlockContext")
	l.wantOnly("unlocked")
}

func allLost(l *lab) {
	p := l.process(dlock.WithLease(l.brisk()))
	h, err := p.all(threeNames...).Acquire(l.ctx)
	l.noError(err, "Acquire")
	l.vanish("b")
	l.eventuallyOver("it is lost", h.Lost())
	l.eventuallyOver("its context has ended", h.Context().Done())
	if loss, ok := errors.AsType[*dlock.Loss](context.Cause(h.Context())); !ok || loss.Name != "b" {
		l.Errorf("the cause of the context: %v; want the loss of b", context.Cause(h.Context()))
	}
	l.wantOnly("nobody has released", "a", "c")
	err = h.Release(l.ctx)
	l.wantError(err, "Release", dlock.ErrLost)
	l.wantOnly("released")
}

// allWithoutAnswer checks calls in which the request for one of the locks gets no answer.
// Afterwards either all locks must be held, or all must be free.
func allWithoutAnswer(l *lab) {
	for what, f := range map[string]fault{
		"reply lost":   replyLost,
		"request lost": requestLost,
		"not sent":     notSent,
	} {
		p := l.process()
		p.plain = true
		p.next(1, which{kind: acquireStep, name: "b"}, f)
		if ok, err := p.all(threeNames...).TryLock(l.ctx); ok ||
			!errors.Is(err, dlock.ErrUnavailable) {
			l.Errorf("%s, TryLock: %v, %v", what, ok, err)
		}
		l.eventuallyOnly()
		p.next(1, which{kind: acquireStep, name: "b"}, f)
		p.next(1, which{kind: releaseStep, name: "b"}, f)
		err := p.all(threeNames...).Do(l.ctx, func(context.Context) error {
			l.wantOnly(what, threeNames...)
			return nil
		})
		l.noError(err, what+", Do")
		l.wantOnly(what + ", after Do")
	}
}

// allWhereOneHangs checks that the other locks are soon released while the request for one lock
// hangs.
func allWhereOneHangs(l *lab) {
	p := l.process()
	r := p.on(which{kind: acquireStep, name: "b"}, hangsPolitely)
	ctx, cancel := context.WithCancel(l.ctx)
	defer cancel()
	c := l.start("LockContext", func() error { return p.all(threeNames...).LockContext(ctx) })
	l.eventually("it has asked twice", func() bool { return r.hits() > 1 })
	l.eventuallyOnly()
	cancel()
	l.wantError(c.result(), "LockContext of what hangs", context.Canceled)
	l.eventuallyOnly()
}

func allInOppositeOrders(l *lab) {
	const processes, rounds = 4, 10
	var inside, visits atomic.Int64
	var all sync.WaitGroup
	errs := make(chan error, processes*rounds)
	for i := range processes {
		p := l.process()
		names := slices.Clone(threeNames)
		if i%2 == 1 {
			slices.Reverse(names)
		}
		all.Go(func() {
			for range rounds {
				errs <- p.all(names...).Do(l.ctx, func(context.Context) error {
					if inside.Add(1) != 1 && l.kind != backend.Read {
						return errors.New("two are inside")
					}
					visits.Add(1)
					inside.Add(-1)
					return nil
				})
			}
		})
	}
	all.Wait()
	close(errs)
	for err := range errs {
		l.noError(err, "Do")
	}
	if n := visits.Load(); n != processes*rounds {
		l.Errorf("%d visits; want %d", n, processes*rounds)
	}
	l.wantOnly("at the end")
}
