package contract

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/dlock"
)

// waitCases test waiters, and check that no wake-up is lost.
var waitCases = []testCase{
	{name: "first come, first served",
		rule: "the waiters of one client get in in the order of their arrival",
		run:  locker(fifo)},
	{name: "a release between try and subscribe",
		rule: "isn't missed: the waiter tries again once it is subscribed",
		tags: Essential | differs | forReaders | readersDiffer,
		run:  locker(releaseBeforeSubscribe)},
	{name: "a release during the attempt",
		rule: "isn't missed: a wake-up counts for the next attempt, whenever it comes",
		tags: forReaders, run: locker(releaseDuringAttempt)},
	{name: "a lost wake-up",
		rule: "a waiter looks again after a third of its own lease at the latest", tags: forReaders,
		run: locker(lostWakeup)},
	{name: "a dead holder", rule: "sends no wake-up: a waiter gets in when the lease is over",
		tags: Essential | differs | seenInLine, run: locker(deadHolder)},
	{name: "the subscriptions break",
		rule: "no release is missed, while a subscription is broken and afterwards",
		tags: Essential | differs,
		run:  locker(brokenSubscription)},
	{name: "the store refuses to notify",
		rule: "waiters poll, and the store isn't asked again during a wait", tags: forReaders,
		run: locker(refusedSubscription)},
	{name: "subscribing fails",
		rule: "waiters poll meanwhile, and the client tries again to subscribe",
		tags: forReaders, run: locker(failingSubscription)},
	{name: "a store that cannot notify", rule: "waiters poll", tags: forReaders,
		run: locker(noNotifier)},
	{name: "a release inside the client", rule: "wakes its next waiter without a message",
		tags: notInLine, run: locker(localWake)},
	{name: "a waiter that leaves", rule: "passes its turn and a wake-up on to the next",
		tags: forReaders | notInLine, run: locker(passOn)},
	{name: "waiters cancelled at random",
		rule: "the others all get in, one at a time, and nothing is left",
		tags: Essential | differs, run: locker(randomCancel)},
	{name: "a thousand waiters",
		rule: "cost one subscription, and few steps while nothing is released", tags: notInLine,
		run: locker(thousandWaiters)},
	{name: "a wait that ends with its context",
		rule: "returns its cause, and leaves nothing behind",
		run:  locker(contextEnds)},
	{name: "a context that is over already", rule: "nothing is sent", tags: forReaders,
		run: locker(contextOver)},
	{name: "a cancelled context returns while the server hangs",
		rule: "every call returns when its context ends, whatever the store's client does",
		run:  locker(cancelWhileHanging)},
	{name: "the store refuses for good", rule: "the error is returned at once, to waiters, too",
		tags: forReaders, run: locker(refusedForGood)},
	{name: "the store fails for a while",
		rule: "Lock goes on until it has the lock; a wait that ends reports the store's error",
		tags: forReaders, run: locker(failsForAWhile)},
	{name: "TryLock of what this client holds", rule: "doesn't ask the store",
		run: locker(tryLockLocal)},
}

func fifo(l *lab) {
	p := l.process()
	l.take("a", "other:1")
	var mu sync.Mutex
	var order []int
	var calls []*call
	const waiters = 10
	for i := range waiters {
		lk := p.Locker("a")
		calls = append(calls, l.start("waiter "+strconv.Itoa(i), func() error {
			if err := lk.LockContext(l.ctx); err != nil {
				return err
			}
			mu.Lock()
			order = append(order, i)
			mu.Unlock()
			return lk.UnlockContext(l.ctx)
		}))
		if i == 0 {
			l.eventually("the first waiter asks", func() bool {
				return p.count(which{kind: acquireStep}) > 0
			})
		}
		l.settle()
	}
	l.noError(l.give("a", "other:1"), "release")
	for _, c := range calls {
		c.ok()
	}
	// In real time, two calls started one after the other may queue in the opposite order.
	if l.h.Virtual && !slices.IsSorted(order) || len(order) != waiters || order[0] != 0 {
		l.Errorf("the waiters got in in the order %v", order)
	}
}

// looks counts the client's requests whose answers show whether the lock is free.
func (p *process) looks(name string) int {
	return p.count(which{kind: acquireStep, name: name}) +
		p.count(which{kind: keepStep, name: name})
}

// hasNotifier reports whether the store can notify.
func (l *lab) hasNotifier() bool {
	ok := backend.CapabilitiesOf(l.other).Notifier != nil
	return ok
}

// releaseBeforeSubscribe covers redisson/redisson#763, where waiters miss the release of a lock and
// so don't get the lock.
func releaseBeforeSubscribe(l *lab) {
	l.skipWithout(l.hasNotifier(), "notification")
	for what, moment := range map[string]func(func()) fault{
		"before the subscription reaches the store":  before,
		"after it did, and before that is confirmed": after,
	} {
		p := l.process()
		p.swallow(true) // drops the store's notifications
		l.take(what, "other:1")
		var failed error
		p.next(1, which{kind: subscribeStep}, moment(func() { failed = l.give(what, "other:1") }))
		begin := time.Now()
		l.start("a waiter, with a release "+what, func() error {
			return p.Locker(what).LockContext(l.ctx)
		}).ok()
		l.took(begin, 0, "a wait, with a release "+what)
		l.noError(failed, "the release")
	}
	// Here the lock is released while a subscription fails.
	p := l.process()
	l.take("a", "other:1")
	var failed error
	p.next(1, which{kind: subscribeStep}, func(*transit) error {
		failed = l.give("a", "other:1")
		return failure(backend.Retry)
	})
	l.start("a waiter, with a release when it subscribes in vain", func() error {
		return p.Locker("a").LockContext(l.ctx)
	}).ok()
	l.noError(failed, "the release")
}

func releaseDuringAttempt(l *lab) {
	l.skipWithout(l.hasNotifier(), "notification")
	p := l.process()
	l.take("a", "other:1")
	// Here the second attempt, which follows the subscription, is answered late: after the lock was
	// freed and the client was notified.
	failed := make(chan error, 1)
	second := which{kind: acquireStep, skip: 1}
	if l.kind == backend.Fair {
		second = which{kind: keepStep}
	}
	p.next(1, second, after(func() {
		failed <- l.give("a", "other:1")
		l.settle()
	}))
	begin := time.Now()
	l.start("a waiter", func() error { return p.Locker("a").LockContext(l.ctx) }).ok()
	l.took(begin, 0, "a wait, with a release during the attempt")
	l.noError(<-failed, "the release")
}

func lostWakeup(l *lab) {
	lease := l.lease()
	p := l.process(dlock.WithLease(lease))
	l.take("a", "other:1")
	wait := l.start("a waiter", func() error { return p.Locker("a").LockContext(l.ctx) })
	l.eventually("it asks", func() bool { return p.count(which{kind: acquireStep}) >= 1 })
	l.settle()
	p.swallow(true)
	begin := time.Now()
	l.noError(l.give("a", "other:1"), "release")
	wait.ok()
	l.tookBetween(begin, 0, lease/3+lease/10, "a wait whose wake-up was lost")
}

func deadHolder(l *lab) {
	p := l.process() // its lease plays no part
	for _, deaf := range []bool{false, true} {
		name := strconv.FormatBool(deaf)
		p.swallow(deaf)
		lease := l.shortLease()
		begin := time.Now()
		res, err := l.other.Acquire(l.ctx, backend.AcquireRequest{
			Kind: l.keeper(), Name: name, Owner: "dead:1", Lease: lease,
		})
		if err != nil || !res.Acquired {
			l.Fatalf("Acquire: %+v, %v", res, err)
		}
		lk := p.Locker(name)
		l.start("a waiter behind a dead holder", func() error { return lk.LockContext(l.ctx) }).ok()
		l.tookBetween(begin, lease*9/10, lease+lease/5+10*time.Millisecond,
			"the wait for a dead holder")
		l.unlock(lk)
	}
	// Here a client's process dies, so nothing renews its hold.
	dying := l.process(dlock.WithLease(l.lease()))
	l.lock(dying.Locker("a"))
	wait := l.start("a waiter behind a client that dies", func() error {
		return p.Locker("a").LockContext(l.ctx)
	})
	wait.waits()
	begin := time.Now()
	dying.on(which{}, hangsPolitely)
	wait.ok()
	l.tookBetween(begin, 0, l.lease()+l.lease()/3, "the wait for a client that died")
}

func brokenSubscription(l *lab) {
	l.skipWithout(l.store.BreakSubscriptions != nil, "BreakSubscriptions")
	p := l.process()
	for i := range 4 {
		name := strconv.Itoa(i)
		l.take(name, "other:1")
		wait := l.start("a waiter", func() error { return p.Locker(name).LockContext(l.ctx) })
		l.eventually("it waits, subscribed", func() bool { return p.looks(name) >= 2 })
		if i%2 == 0 {
			l.store.BreakSubscriptions()
			l.noError(l.give(name, "other:1"), "a release while the subscription is broken")
		} else {
			l.noError(l.give(name, "other:1"), "a release just before the subscription breaks")
			l.store.BreakSubscriptions()
		}
		wait.ok()
	}
}

func refusedSubscription(l *lab) {
	l.skipWithout(l.hasNotifier(), "notification")
	p := l.process()
	p.on(which{kind: subscribeStep}, refused)
	for i := range 3 {
		name := strconv.Itoa(i)
		l.take(name, "other:1")
		wait := l.start("a waiter", func() error { return p.Locker(name).LockContext(l.ctx) })
		l.eventually("it polls", func() bool { return p.looks(name) >= 4 })
		l.noError(l.give(name, "other:1"), "release")
		wait.ok()
	}
	if n := p.count(which{kind: subscribeStep}); n > 3 {
		l.Errorf("a store that refuses to notify was asked %d times, for three waits", n)
	}
}

func failingSubscription(l *lab) {
	l.skipWithout(l.hasNotifier(), "notification")
	for _, what := range []fault{requestLost, notSent, replyLost} {
		p := l.process()
		r := p.next(3, which{kind: subscribeStep}, what)
		l.take("a", "other:1")
		wait := l.start("a waiter", func() error { return p.Locker("a").LockContext(l.ctx) })
		l.eventually("it polls, and subscribes", func() bool {
			return r.hits() == 3 && p.count(which{kind: subscribeStep}) == 4 && p.looks("a") >= 2
		})
		l.settle()
		l.noError(l.give("a", "other:1"), "release")
		wait.ok()
		l.unlockAll("a")
	}
}

// unlockAll frees a lock by force.
func (l *lab) unlockAll(name string) {
	l.Helper()
	if l.kind == backend.Fair {
		l.settle() // a late KeepPlaces could restore the place of an owner after the forced release
	}
	_, err := l.other.ForceRelease(l.ctx, backend.ForceReleaseRequest{Kind: l.kind, Name: name})
	l.noError(err, "ForceRelease")
}

func noNotifier(l *lab) {
	f := newFaults(l.store.Backend())
	f.hideNotify = true
	p := l.processOn(f)
	l.take("a", "other:1")
	wait := l.start("a waiter", func() error { return p.Locker("a").LockContext(l.ctx) })
	begin := time.Now()
	l.eventually("it polls", func() bool { return p.looks("a") >= 4 })
	l.tookBetween(begin, 0, time.Second, "the first polls")
	l.noError(l.give("a", "other:1"), "release")
	wait.ok()

	// The longer a wait lasts, the less often the client polls.
	begin = time.Now()
	lk := p.Locker("a")
	wait = l.start("the next waiter", func() error { return lk.LockContext(l.ctx) })
	l.sleep(l.shortLease() * 5)
	passed := time.Since(begin)
	// The pauses start at 10 ms and double each time, with jitter. So after n polls, at least
	// (2^n - 1) * 5 ms have passed.
	limit := 2
	for gap := 5 * time.Millisecond; gap < passed; gap *= 2 {
		limit++
	}
	if n := p.looks("a"); n > 6+limit+limit {
		l.Errorf("a waiter polled %d times in %v", n, passed)
	}
	l.unlockAll("a")
	wait.ok()
}

func localWake(l *lab) {
	p := l.process()
	p.swallow(true)
	first, second := p.Locker("a"), p.Locker("a")
	l.lock(first)
	wait := l.start("a waiter of the same client", func() error {
		return second.LockContext(l.ctx)
	})
	wait.waits()
	begin := time.Now()
	l.unlock(first)
	wait.ok()
	l.took(begin, 0, "handing the lock on inside a client")
	// A loss also wakes the waiter.
	if l.h.Virtual {
		lossy := l.process()
		lossy.swallow(true)
		holder, next := lossy.Locker("b"), lossy.Locker("b")
		l.lock(holder)
		lost := holder.Lost(l.ctx)
		l.sleep(l.calm() / 4)
		wait = l.start("a waiter of the same client", func() error {
			return next.LockContext(l.ctx)
		})
		wait.waits()
		l.vanish("b")
		l.eventuallyOver("the loss", lost)
		begin = time.Now()
		wait.ok()
		l.took(begin, 0, "getting in after a loss inside the client")
	}
	// A ForceUnlock also wakes the waiter.
	wait = l.start("a waiter of the same client", func() error { return first.LockContext(l.ctx) })
	wait.waits()
	if _, err := p.Locker("a").ForceUnlock(l.ctx); err != nil {
		l.Fatal(err)
	}
	wait.ok()
	l.wantError(second.UnlockContext(l.ctx), "the unlock of the former holder", dlock.ErrLost)
	l.unlock(first)
}

func passOn(l *lab) {
	p := l.process()
	// Here the first waiter leaves while its attempt is under way. The wake-up was used for that
	// attempt, so the next waiter must try.
	l.take("a", "other:1")
	ctx, cancel := context.WithCancel(l.ctx)
	defer cancel()
	first := l.start("the first waiter", func() error { return p.Locker("a").LockContext(ctx) })
	l.eventually("it asks", func() bool { return p.count(which{kind: acquireStep}) >= 1 })
	l.settle()
	second := l.start("the second waiter", func() error { return p.Locker("a").LockContext(l.ctx) })
	second.waits()
	open := make(chan struct{})
	defer close(open)
	r := p.next(1, which{kind: acquireStep}, hangs(open))
	l.eventually("what was sent before is answered", func() bool {
		return p.underWay(which{kind: acquireStep}) == r.hits()
	})
	l.noError(l.give("a", "other:1"), "release")
	l.eventually("the first waiter tries again", func() bool { return r.hits() == 1 })
	cancel()
	l.wantError(first.result(), "the first waiter", context.Canceled)
	second.ok()
	l.unlockAll("a")

	// Here the first waiter leaves while no attempt is under way. The notification is lost, so the
	// next waiter must try before it waits.
	p.swallow(true)
	l.take("b", "other:1")
	ctx, cancel = context.WithCancel(l.ctx)
	defer cancel()
	first = l.start("the first waiter", func() error { return p.Locker("b").LockContext(ctx) })
	l.eventually("it asks", func() bool {
		return p.count(which{kind: acquireStep, name: "b"}) >= 1
	})
	l.settle()
	second = l.start("the second waiter", func() error { return p.Locker("b").LockContext(l.ctx) })
	second.waits()
	l.noError(l.give("b", "other:1"), "release")
	cancel()
	l.wantError(first.result(), "the first waiter", context.Canceled)
	second.ok()
}

func randomCancel(l *lab) {
	clients := []*process{l.process(), l.process(), l.process()}
	const waiters, rounds = 8, 5
	pause := 30 * time.Millisecond
	var inside presence
	var calls []*call
	for c, p := range clients {
		p.plain = true
		shared := p.Locker("a")
		for w := range waiters {
			who := fmt.Sprintf("client %d, waiter %d", c, w)
			lk := shared
			if w%2 == 0 {
				lk = p.Locker("a")
			}
			patient := w%4 == 3
			calls = append(calls, l.start(who, func() error {
				for range rounds {
					ctx, cancel := context.WithCancel(l.ctx)
					if !patient {
						cancel()
						ctx, cancel = context.WithTimeout(l.ctx, rand.N(pause))
					}
					err := lk.LockContext(ctx)
					cancel()
					if err != nil {
						if patient || !errors.Is(err, context.DeadlineExceeded) {
							return err
						}
						continue
					}
					inside.enter(who)
					time.Sleep(rand.N(2 * time.Millisecond))
					inside.leave()
					if err := lk.UnlockContext(l.ctx); err != nil {
						return err
					}
				}
				return nil
			}))
		}
	}
	for _, c := range calls {
		c.ok()
	}
	l.noError(inside.check(), "exclusion")
	l.eventuallyFree("a")
	for _, p := range clients {
		l.eventually("the subscription is gone", func() bool { return p.subscriptions("a") == 0 })
	}
}

// thousandWaiters covers redis/rueidis#602, where waiters can end up retrying without a pause.
func thousandWaiters(l *lab) {
	p := l.process()
	l.take("a", "other:1")
	const waiters = 1000
	ctx, cancel := context.WithCancel(l.ctx)
	defer cancel()
	var calls []*call
	for range waiters {
		lk := p.Locker("a")
		calls = append(calls, l.start("a waiter", func() error { return lk.LockContext(ctx) }))
	}
	l.eventually("they wait", func() bool { return p.count(which{kind: acquireStep}) >= 1 })
	l.settle()
	before := p.count(which{})
	begin := time.Now()
	l.sleep(2 * time.Second)
	seconds := int(time.Since(begin)/time.Second) + 1
	polls := 0
	if !l.hasNotifier() {
		polls = 8 // the pauses between polls grow from 10 ms to 1 s
	}
	if n := p.count(which{}) - before; n > 2*seconds+polls {
		l.Errorf("1,000 waiters sent %d steps in %d s, and nothing was released", n, seconds)
	}
	if n := p.count(which{kind: subscribeStep}); n > 1 {
		l.Errorf("1,000 waiters subscribed %d times", n)
	}
	if n := p.count(which{}); n > 5+polls {
		l.Errorf("1,000 waiters sent %d steps in all", n)
	}
	l.noError(l.give("a", "other:1"), "release")
	in := func() (n int) {
		for _, c := range calls {
			if c.over() {
				n++
			}
		}
		return n
	}
	l.eventually("one returns", func() bool { return in() == 1 })
	l.settle()
	if n := in(); n != 1 {
		l.Errorf("%d waiters got in", n)
	}
	cancel()
	failed := 0
	for _, c := range calls {
		if c.result() != nil {
			failed++
		}
	}
	if failed != waiters-1 {
		l.Errorf("%d waiters were cancelled, want %d", failed, waiters-1)
	}
	l.eventually("the subscription is gone", func() bool { return p.subscriptions("a") == 0 })
}

// contextEnds covers go-redsync/redsync#164, where the error doesn't say that the context ended.
func contextEnds(l *lab) {
	p := l.process(dlock.WithLease(l.longLease()))
	l.take("a", "other:1")
	cause := errors.New("the cause")
	lk := p.Locker("a")
	ways := map[string]func(ctx context.Context) error{
		"LockContext": func(ctx context.Context) error { return lk.LockContext(ctx) },
		"LockContext behind the gate": func(ctx context.Context) error {
			shut := p.Locker("b")
			if err := shut.LockContext(l.ctx); err != nil {
				return err
			}
			return errors.Join(shut.LockContext(ctx), shut.UnlockContext(l.ctx))
		},
		"LockContext behind another waiter": func(ctx context.Context) error {
			head, cancel := context.WithCancel(l.ctx)
			c := l.start("the head", func() error { return p.Locker("a").LockContext(head) })
			err := lk.LockContext(ctx)
			cancel()
			<-c.done
			return err
		},
		"LockContext of an owner": func(ctx context.Context) error {
			return lk.LockContext(dlock.WithOwner(ctx, dlock.NewOwner()))
		},
		"TryLock with Wait": func(ctx context.Context) error {
			_, err := lk.TryLock(ctx, dlock.Wait(time.Hour))
			return err
		},
		"Do": func(ctx context.Context) error {
			return lk.Do(ctx, func(context.Context) error { return nil })
		},
		"LockContext of a new owner": func(ctx context.Context) error {
			return lk.For(dlock.NewOwner()).LockContext(ctx)
		},
	}
	for what, way := range ways {
		ctx, cancel := context.WithTimeout(l.ctx, 10*time.Millisecond)
		err := way(ctx)
		cancel()
		if !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, dlock.ErrNotAcquired) {
			l.Errorf("%s with a deadline: %v", what, err)
		}
		ctx2, cancel2 := context.WithCancelCause(l.ctx)
		c := l.start(what, func() error { return way(ctx2) })
		l.settle()
		cancel2(cause)
		if err := c.result(); !errors.Is(err, context.Canceled) || !errors.Is(err, cause) {
			l.Errorf("%s, cancelled with a cause: %v", what, err)
		}
	}
	l.noError(l.give("a", "other:1"), "release")
	l.eventuallyFree("a") // a canceled call's attempt can take effect late, but is then undone
	l.lock(lk)
	l.unlock(lk)
}

func contextOver(l *lab) {
	p := l.process()
	lk := p.Locker("a")
	ctx, cancel := context.WithCancel(l.ctx)
	cancel()
	second := func(_ any, err error) error { return err }
	for what, err := range map[string]error{
		"LockContext": lk.LockContext(ctx),
		"Do": lk.Do(ctx, func(context.Context) error {
			return errors.New("fn was called")
		}),
		"TryLock":     second(lk.TryLock(ctx)),
		"ForceUnlock": second(lk.ForceUnlock(ctx)),
		"IsLocked":    second(lk.IsLocked(ctx)),
		"TTL":         second(lk.TTL(ctx)),
	} {
		l.wantError(err, what+" with a context that is over", context.Canceled)
	}
	if n := p.count(which{}); n != 0 {
		l.Errorf("with a context that is over, the store was asked: %v", p.kinds())
	}
	if !l.tryLock(lk) {
		l.Error("after that, the lock isn't free")
	}
}

func cancelWhileHanging(l *lab) {
	p := l.process()
	held, deep := p.Locker("held"), p.Locker("deep").For(dlock.NewOwner())
	l.lock(held)
	l.lock(deep)
	l.lock(deep)
	partial := p.Locker("partial").For(dlock.NewOwner())
	l.lock(partial)
	l.lock(partial)
	open := make(chan struct{})
	var rules []*rule
	for _, kind := range []stepKind{acquireStep, reentryStep, releaseStep, lookStep, forceStep} {
		// these steps hang even after the context has ended
		rules = append(rules, p.on(which{kind: kind}, hangs(open)))
	}
	second := func(_ any, err error) error { return err }
	type way struct {
		what string
		do   func(context.Context) error
	}
	var calls []*call
	ctx, cancel := context.WithCancel(l.ctx)
	defer cancel()
	for _, w := range []way{
		{"LockContext", func(ctx context.Context) error { return p.Locker("a").LockContext(ctx) }},
		{"LockContext of an owner", func(ctx context.Context) error {
			return p.Locker("b").For(dlock.NewOwner()).LockContext(ctx)
		}},
		{"TryLock", func(ctx context.Context) error { return second(p.Locker("c").TryLock(ctx)) }},
		{"TryLock with Wait", func(ctx context.Context) error {
			return second(p.Locker("d").TryLock(ctx, dlock.Wait(time.Hour)))
		}},
		{"Do", func(ctx context.Context) error {
			return p.Locker("e").Do(ctx, func(context.Context) error {
				return errors.New("fn was called")
			})
		}},
		{"a re-entry", func(ctx context.Context) error { return deep.LockContext(ctx) }},
		{"UnlockContext", held.UnlockContext},
		{"IsLocked", func(ctx context.Context) error {
			return second(p.Locker("f").IsLocked(ctx))
		}},
		{"TTL", func(ctx context.Context) error { return second(p.Locker("f").TTL(ctx)) }},
		{"ForceUnlock", func(ctx context.Context) error {
			return second(p.Locker("g").ForceUnlock(ctx))
		}},
	} {
		calls = append(calls, l.start(w.what, func() error { return w.do(ctx) }))
	}
	free := l.start("a partial UnlockContext", func() error { return partial.UnlockContext(ctx) })
	hits := func() (n int) {
		for _, r := range rules {
			n += r.hits()
		}
		return n
	}
	l.eventually("every call has sent its step", func() bool { return hits() == len(calls)+1 })
	for _, c := range calls {
		c.waits()
	}
	begin := time.Now()
	cancel()
	for _, c := range calls {
		l.wantError(c.result(), c.what+", cancelled", context.Canceled)
	}
	free.ok() // a partial unlock succeeds even if its request gets no answer
	l.took(begin, 0, "returning after the context ended")
	for _, r := range rules {
		r.off()
	}
	close(open) // now the store carries out the requests that hung
	l.unlock(deep)
	l.unlock(deep)
	l.unlock(partial)
	for _, name := range []string{"a", "b", "c", "d", "e", "g", "held", "deep", "partial"} {
		l.eventuallyFree(name)
	}
	// The hanging requests for other names must not affect a new name.
	l.lock(p.Locker("h"))
}

// refusedForGood covers a bug in valkeylock, which waits forever if the server answers each attempt
// with NOREPLICAS.
func refusedForGood(l *lab) {
	p := l.process()
	l.take("a", "other:1")
	second := func(_ any, err error) error { return err }
	lk := p.Locker("a")
	wait := l.start("a waiter", func() error { return lk.LockContext(l.ctx) })
	next := l.start("the next waiter", func() error { return p.Locker("a").LockContext(l.ctx) })
	wait.waits()
	r, keeping := p.on(which{kind: acquireStep}, refused), p.on(which{kind: keepStep}, refused)
	l.eventually("what was sent before is answered", func() bool {
		return p.underWay(which{}) == 0
	})
	// a release would grant a Fair lock to its waiter without another request
	if l.kind != backend.Fair {
		l.noError(l.give("a", "other:1"), "release")
	}
	l.wantError(wait.result(), "a waiter whose store begins to refuse", errFault)
	l.wantError(next.result(), "the waiter after it", errFault)
	sent := p.count(which{kind: acquireStep})
	for what, err := range map[string]error{
		"LockContext":       lk.LockContext(l.ctx),
		"TryLock":           second(lk.TryLock(l.ctx)),
		"TryLock with Wait": second(lk.TryLock(l.ctx, dlock.Wait(time.Hour))),
		"Do": lk.Do(l.ctx, func(context.Context) error {
			return errors.New("fn was called")
		}),
	} {
		l.wantError(err, what+", refused", errFault)
		l.not(err, what+", refused", dlock.ErrNotAcquired)
	}
	if n := p.count(which{kind: acquireStep}) - sent; n != 4 {
		l.Errorf("four calls that are refused sent %d steps", n)
	}
	r.off()
	keeping.off()
	if l.kind == backend.Fair {
		l.noError(l.give("a", "other:1"), "release")
	}
	l.lock(lk)
	r = p.on(which{kind: releaseStep}, refused)
	l.wantError(lk.UnlockContext(l.ctx), "UnlockContext, refused", errFault)
	r.off()
}

func failsForAWhile(l *lab) {
	p := l.process()
	for _, what := range []fault{requestLost, notSent} {
		// A call that may wait tries again.
		p.next(3, which{kind: acquireStep}, what)
		lk := p.Locker("a")
		l.start("Lock", func() error { lk.Lock(); return nil }).ok()
		l.unlock(lk)
		p.next(3, which{kind: acquireStep}, what)
		l.start("LockContext", func() error { return lk.LockContext(l.ctx) }).ok()
		l.unlock(lk)
		// If a call runs out of time, its error wraps the store's last error. An error of
		// LockContext also wraps context.DeadlineExceeded or ErrNotAcquired.
		r := p.on(which{kind: acquireStep}, what)
		ctx, cancel := context.WithTimeout(l.ctx, 100*time.Millisecond)
		l.wantError(lk.LockContext(ctx), "LockContext while the store fails",
			context.DeadlineExceeded, errFault)
		cancel()
		l.wantError(lk.LockContext(l.ctx, dlock.Wait(100*time.Millisecond)),
			"LockContext with Wait while the store fails", dlock.ErrNotAcquired, errFault)
		ok, err := lk.TryLock(l.ctx, dlock.Wait(100*time.Millisecond))
		l.wantError(err, "TryLock with Wait while the store fails", errFault)
		if ok {
			l.Error("TryLock: true and an error")
		}
		r.off()
		l.eventuallyFree("a")
	}
	// Lock can't return an error, so it retries even after a refusal.
	r := p.on(which{kind: acquireStep}, refused)
	lk := p.Locker("b")
	lock := l.start("Lock", func() error { lk.Lock(); return nil })
	l.eventually("Lock has tried again", func() bool { return r.hits() >= 2 })
	r.off()
	lock.ok()
	l.unlock(lk)
}

func tryLockLocal(l *lab) {
	p := l.process()
	l.lock(p.Locker("a"))
	sent := p.count(which{})
	for range 100 {
		if l.tryLock(p.Locker("a")) {
			l.Fatal("TryLock got what the client holds")
		}
	}
	if n := p.count(which{}) - sent; n != 0 {
		l.Errorf("TryLock of what the client holds itself sent %d steps", n)
	}
}
