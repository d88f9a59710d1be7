package contract

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/dlock"
)

// fairLockerCases test what only a FairLocker promises.
var fairLockerCases = []testCase{
	{name: "order of arrival",
		rule: "applies to all waiters of all clients, whatever call they use",
		tags: Essential,
		run:  ofKind(backend.Fair, fairOrder)},
	{name: "a lock that is given", rule: "is held without another request to the store",
		run: ofKind(backend.Fair, fairGiven)},
	{name: "a line and TryLock",
		rule: "without a wait TryLock fails while others wait, and leaves no place; with a wait " +
			"it stands in line for that long",
		run: ofKind(backend.Fair, fairTryLock)},
	{name: "a free lock with a line", rule: "goes to the first in line, whoever asks first",
		run: ofKind(backend.Fair, fairFirst)},
	{name: "re-entry past a line",
		rule: "the holder re-enters although others wait, and a repeated attempt isn't counted " +
			"twice",
		run: ofKind(backend.Fair, fairReentry)},
	{name: "places are kept", rule: "for as long as their owners wait",
		run: ofKind(backend.Fair, fairKept)},
	{name: "places that can't be kept", rule: "are restored before those of later waiters",
		tags: ofClient, run: ofKind(backend.Fair, fairKeptInVain)},
	{name: "a place given up", rule: "is gone at once, even if the lock was given to it",
		run: ofKind(backend.Fair, fairGivenUp)},
	{name: "a place given up without an answer",
		rule: "is given up in the end, whichever step comes late",
		run:  ofKind(backend.Fair, fairGivenUpLate)},
	{name: "the places of the dead",
		rule: "delay others by no more than the time that one place lasts, all together",
		tags: Essential, run: ofKind(backend.Fair, fairDeadPlaces)},
	{name: "a place that is kept while the lock is given",
		rule: "and released: the owner has had the lock, and no place is left",
		run:  ofKind(backend.Fair, fairKeptMeanwhile)},
	{name: "a dead one who is given the lock", rule: "delays others by about a second",
		run: ofKind(backend.Fair, fairDeadGranted)},
	{name: "an attempt to stand in line without an answer",
		rule: "is made again, and no waiter loses its turn",
		run:  ofKind(backend.Fair, fairUnanswered)},
	{name: "a grant that is lost", rule: "is detected by a look, and the order stays",
		tags: ofClient,
		run:  ofKind(backend.Fair, fairLostGrant)},
	{name: "every grant is lost", rule: "all waiters get in, in order",
		run: ofKind(backend.Fair, fairNoGrants)},
	{name: "a subscription that breaks while others wait", rule: "no waiter loses its turn",
		run: ofKind(backend.Fair, fairBroken)},
	{name: "a late grant", rule: "is ignored when its time is over",
		run: ofKind(backend.Fair, fairLateGrant)},
	{name: "a grant for one that has gone",
		rule: "is ignored, and a grant that comes twice counts once",
		run:  ofKind(backend.Fair, fairStrayGrant)},
	{name: "a grant that the store can't vouch for", rule: "makes the client ask the store",
		run: ofKind(backend.Fair, fairUnsure)},
	{name: "a lock that was given and can't be renewed",
		rule: "ends after the time for which it was given, counted from the grant",
		run:  ofKind(backend.Fair, fairShortGrant)},
	{name: "a fixed lease of who stood in line",
		rule: "is as long as requested, whatever the store granted first",
		tags: ofClient,
		run:  ofKind(backend.Fair, fairFixed)},
	{name: "the calls of one Locker", rule: "each have a place in line",
		run: ofKind(backend.Fair, fairParked)},
	{name: "a Locker that was lost",
		rule: "lets nobody in before it is unlocked, and keeps no other client waiting",
		tags: ofClient, run: ofKind(backend.Fair, fairParkedLost)},
	{name: "a fair lock that is lost",
		rule: "goes to the next in line, and its former holder is told",
		tags: ofClient, run: ofKind(backend.Fair, fairLost)},
	{name: "a fair lock that is forced",
		rule: "goes to the next in line, in the same client too, and its former holder is told",
		run:  ofKind(backend.Fair, fairForced)},
	{name: "Close in a line", rule: "the client's waiters get ErrClosed, and others get their turn",
		tags: ofClient, run: ofKind(backend.Fair, fairClose)},
	{name: "many in a line", rule: "cost one subscription, and one look a second",
		run: ofKind(backend.Fair, fairMany)},
	{name: "a fair lock and another kind",
		rule: "of the same name exclude each other; a party that holds one of them gets an error " +
			"at once",
		run: ofKind(backend.Fair, fairAndOthers)},
}

// lineDelay is the longest delay caused by a waiter that dies right after it was granted the lock.
// placeLease is how long a place lasts after the last request to keep it.
const (
	lineDelay  = 1500 * time.Millisecond
	placeLease = 3 * time.Second
)

// inLine returns how many of the client's requests for a place in line were carried out.
func (p *process) inLine(name string) (n int) {
	for _, s := range p.steps(which{kind: acquireStep, name: name}) {
		if s.place > 0 && s.carriedOut {
			n++
		}
	}
	return n
}

// inLine calls f, which waits for a lock, in another goroutine. inLine returns when the store has
// given that call a place in line.
func (l *lab) inLine(p *process, name, what string, f func() error) *call {
	l.Helper()
	before := p.inLine(name)
	c := l.start(what, f)
	l.eventually(what+" stands in line", func() bool { return p.inLine(name) > before })
	c.waits()
	return c
}

// waits calls LockContext in another goroutine. waits returns when the store has given that call a
// place in line.
func (l *lab) waits(p *process, name string) *call {
	l.Helper()
	return l.inLine(p, name, "a waiter for "+name, func() error {
		return p.Locker(name).LockContext(l.ctx)
	})
}

// stands puts an owner of another process in line. The owner is dead, so it never asks for the lock
// again.
func (l *lab) stands(name, owner string, place time.Duration) {
	l.Helper()
	res, err := l.other.Acquire(l.ctx, backend.AcquireRequest{
		Kind: l.kind, Name: name, Owner: owner, Lease: l.longLease(), Place: place,
	})
	l.noError(err, "Acquire")
	if res.Acquired {
		l.Fatalf("another process was to wait for %q, and has it", name)
	}
}

// gives is like give, but fails the test on an error.
func (l *lab) gives(name, owner string) {
	l.Helper()
	l.noError(l.give(name, owner), "release")
}

// has fails the test unless lk holds its lock exactly once, and the lock is held in the store.
func (l *lab) has(p *process, lk *dlock.Locker) {
	l.Helper()
	if n, err := lk.HoldCount(l.ctx); err != nil || n != 1 {
		l.Fatalf("HoldCount of the owner that was given %q: %d, %v; want 1", lk.Name(), n, err)
	}
	if res := l.look(lk.Name(), ""); !res.Held {
		l.Fatalf("%q is held, and free in the store", lk.Name())
	}
}

// leavesNothing fails the test if an owner is left in line for a free lock. In real time it waits a
// moment, because a request to keep a place may have been under way when the lock was freed.
func (l *lab) leavesNothing(name string) {
	l.Helper()
	l.eventuallyFree(name)
	l.eventually("nobody is left in line for "+name, func() bool {
		req := backend.AcquireRequest{
			Kind: l.kind, Name: name, Owner: "probe:1", Lease: l.longLease(),
		}
		res, err := l.other.Acquire(l.ctx, req)
		l.noError(err, "Acquire")
		if !res.Acquired && l.h.Virtual {
			l.Fatalf("somebody was left in line for %q, and has it for %v", name, res.Remaining)
		}
		return res.Acquired
	})
	l.gives(name, "probe:1")
	if l.h.Virtual {
		l.wantFree(name, "after any owner left in line would have got it")
	}
}

// An order records the order in which parties acquired a lock.
type order struct {
	mu  sync.Mutex
	got []int
}

func (o *order) add(i int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.got = append(o.got, i)
}

// check fails the test unless n parties acquired the lock in the order of their numbers.
func (o *order) check(l *lab, n int) {
	l.Helper()
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.got) != n || !slices.IsSorted(o.got) {
		l.Errorf("waiters got in in the order %v, and there were %d of them", o.got, n)
	}
}

func fairOrder(l *lab) {
	clients := []*process{l.process(), l.process(), l.process()}
	shared := clients[1].Locker("a")
	var got order
	var calls []*call
	l.take("a", "other:1")
	for i := range 12 {
		p := clients[i*i%3]
		lk, ctx := p.Locker("a"), l.ctx
		if i%3 == 0 {
			ctx = l.ctxOf()
		}
		inside := func(context.Context) error { got.add(i); return nil }
		calls = append(calls, l.inLine(p, "a", "waiter "+strconv.Itoa(i), func() error {
			switch i % 4 {
			case 0:
				return lk.Do(ctx, inside)
			case 1:
				h, err := lk.Acquire(ctx)
				if err != nil {
					return err
				}
				return errors.Join(inside(ctx), h.Release(ctx))
			case 2:
				ok, err := lk.TryLock(ctx, dlock.Wait(time.Hour))
				if err != nil || !ok {
					return fmt.Errorf("TryLock: %v, %w", ok, err)
				}
				return errors.Join(inside(ctx), lk.UnlockContext(ctx))
			default:
				if p == clients[1] {
					lk = shared
				}
				lk.Lock()
				defer lk.Unlock()
				return inside(ctx)
			}
		}))
	}
	begin := time.Now()
	l.gives("a", "other:1")
	for _, c := range calls {
		c.ok()
	}
	got.check(l, len(calls))
	if l.hasNotifier() {
		l.took(begin, 0, "a lock that passes down the line")
	}
	l.leavesNothing("a")
	for _, p := range clients {
		l.eventually("the subscription is gone", func() bool { return p.subscriptions("a") == 0 })
	}
}

func fairGiven(l *lab) {
	l.skipWithout(l.hasNotifier(), "notification")
	p := l.process()
	var sent []stepKind
	// In real time a waiter might happen to poll at the moment of the release, so run many rounds.
	for range 20 {
		l.take("a", "other:1")
		lk := p.Locker("a")
		wait := l.inLine(p, "a", "a waiter", func() error { return lk.LockContext(l.ctx) })
		l.eventually("it waits, subscribed", func() bool {
			return p.subscriptions("a") == 1 && p.underWay(which{}) == 0
		})
		before := len(p.kinds())
		begin := time.Now()
		l.gives("a", "other:1")
		wait.ok()
		sent = p.kinds()[before:]
		l.took(begin, 0, "getting what is given")
		l.has(p, lk)
		l.unlock(lk)
		l.leavesNothing("a")
		if len(sent) == 0 || l.h.Virtual {
			break
		}
	}
	if len(sent) > 0 {
		l.Errorf("to get what was given the client sent %v", sent)
	}
	if n := p.count(which{kind: grantStep}); n == 0 {
		l.Error("nobody called Granted")
	}
}

func fairTryLock(l *lab) {
	p, q := l.process(), l.process()
	l.take("a", "other:1")
	first := l.waits(p, "a")
	for range 3 {
		for _, c := range []*process{p, q} {
			if l.tryLock(c.Locker("a")) {
				l.Fatal("TryLock got what another has")
			}
			l.wantError(c.Locker("a").LockContext(l.ctx, dlock.Wait(0)), "LockContext with Wait(0)",
				dlock.ErrNotAcquired, dlock.ErrHeld)
		}
	}
	for _, c := range []*process{p, q} {
		for _, s := range c.steps(which{kind: acquireStep})[c.inLine("a"):] {
			if s.place != 0 {
				l.Errorf("TryLock asks for a place of %v", s.place)
			}
		}
	}
	wait := 50 * time.Millisecond
	if !l.h.Virtual {
		wait = 300 * time.Millisecond // time for the store to answer
	}
	begin := time.Now()
	if l.tryLock(q.Locker("a"), dlock.Wait(wait)) {
		l.Fatal("TryLock got what another has")
	}
	l.tookBetween(begin, wait, wait, "TryLock with Wait")
	patient := l.inLine(q, "a", "TryLock with a long Wait", func() error {
		ok, err := q.Locker("a").TryLock(l.ctx, dlock.Wait(time.Hour))
		if err == nil && !ok {
			err = errors.New("false")
		}
		return err
	})
	begin = time.Now()
	l.gives("a", "other:1")
	first.ok()
	patient.waits()
	l.unlockAll("a")
	// the earlier TryLock calls must not have left a place in line ahead of this waiter
	patient.ok()
	if l.hasNotifier() {
		l.took(begin, 0, "a line of two")
	}
	l.unlockAll("a")
	l.leavesNothing("a")
	if !l.tryLock(l.process().Locker("a")) {
		l.Error("TryLock of a free lock without a line says false")
	}
}

func fairFirst(l *lab) {
	p, q := l.process(), l.process()
	p.swallow(true)
	lease := l.legal(300 * time.Millisecond)
	res, err := l.other.Acquire(l.ctx, backend.AcquireRequest{
		Kind: l.kind, Name: "a", Owner: "dead:1", Lease: lease,
	})
	if err != nil || !res.Acquired {
		l.Fatalf("Acquire: %+v, %v", res, err)
	}
	lk := p.Locker("a")
	wait := l.start("a waiter", func() error { return lk.LockContext(l.ctx) })
	l.eventually("it stands in line", func() bool { return p.inLine("a") > 0 || wait.over() })
	for begin := time.Now(); time.Since(begin) < lease+
		50*time.Millisecond; l.sleep(5 * time.Millisecond) {
		if l.tryLock(q.Locker("a")) {
			l.Fatal("TryLock got a lock for which another stands in line")
		}
	}
	wait.ok()
	l.has(p, lk)
	l.unlock(lk)
	l.leavesNothing("a")
}

func fairReentry(l *lab) {
	p, q := l.process(), l.process()
	lk, ctx := p.Locker("a"), l.ctxOf()
	for what, f := range map[string]fault{
		"reply lost":   replyLost,
		"request lost": requestLost,
		"not sent":     notSent,
	} {
		p.next(2, which{kind: acquireStep}, f)
		l.noError(lk.LockContext(ctx), "LockContext, "+what)
		owner := p.owner("a")
		if n := l.look("a", owner).Count; n != 1 {
			l.Errorf("%s, twice: the store counts %d holds, want 1", what, n)
		}
		wait := l.waits(q, "a")
		same := l.waits(p, "a")
		for range 2 {
			l.noError(lk.LockContext(ctx), "a re-entry past a line")
		}
		if ok, err := lk.TryLock(ctx); err != nil || !ok {
			l.Errorf("TryLock of the holder: %v, %v", ok, err)
		}
		if n := l.look("a", owner).Count; n != 4 {
			l.Errorf("the store counts %d holds, want 4", n)
		}
		for range 4 {
			wait.waits()
			l.noError(lk.UnlockContext(ctx), "UnlockContext")
		}
		wait.ok()
		same.waits()
		l.unlockAll("a")
		same.ok()
		l.unlockAll("a")
		l.leavesNothing("a")
	}
	// Here a waiter is granted the lock and re-enters it. The store must count both holds.
	l.take("a", "other:1")
	wait := l.inLine(p, "a", "an owner", func() error { return lk.LockContext(ctx) })
	owner := p.owner("a")
	l.gives("a", "other:1")
	wait.ok()
	l.noError(lk.LockContext(ctx), "a re-entry of the owner that was given the lock")
	if n := l.look("a", owner).Count; n != 2 {
		l.Errorf("the store counts %d holds, want 2", n)
	}
	l.noError(lk.UnlockContext(ctx), "UnlockContext")
	l.wantHeld("a", "after one of two unlocks")
	l.noError(lk.UnlockContext(ctx), "UnlockContext")
	l.leavesNothing("a")
}

func fairKept(l *lab) {
	p, q := l.process(), l.process()
	l.take("a", "other:1")
	var calls []*call
	var got order
	for i, c := range []*process{p, q, p, q} {
		lk := c.Locker("a")
		calls = append(calls, l.inLine(c, "a", "waiter "+strconv.Itoa(i), func() error {
			return lk.Do(l.ctx, func(context.Context) error { got.add(i); return nil })
		}))
	}
	longer := placeLease + 500*time.Millisecond
	if l.h.Virtual {
		longer = 10 * time.Minute
	}
	begin := time.Now()
	l.sleep(longer)
	seconds := int(time.Since(begin)/time.Second) + 1
	for _, c := range []*process{p, q} {
		if n := c.count(which{kind: acquireStep}); n != 2 {
			l.Errorf("two waiters asked %d times to stand in line", n)
		}
		if n := c.count(which{kind: keepStep}); n > seconds+2 || n < seconds/2 {
			l.Errorf("the places of two waiters were kept %d times in %d s", n, seconds)
		}
	}
	begin = time.Now()
	l.gives("a", "other:1")
	for _, c := range calls {
		c.ok()
	}
	if l.hasNotifier() {
		l.took(begin, 0, "a line of four")
	}
	got.check(l, len(calls))
	l.leavesNothing("a")
}

func fairKeptInVain(l *lab) {
	p, q := l.process(), l.process()
	l.take("a", "other:1")
	var calls []*call
	var got order
	for i, c := range []*process{p, p, q} {
		lk := c.Locker("a")
		calls = append(calls, l.inLine(c, "a", "waiter "+strconv.Itoa(i), func() error {
			return lk.Do(l.ctx, func(context.Context) error { got.add(i); return nil })
		}))
	}
	r := p.on(which{kind: keepStep}, requestLost)
	l.sleep(placeLease + 500*time.Millisecond)
	sent := r.hits()
	if sent < 2 {
		l.Errorf("keeping places that fails was tried %d times", sent)
	}
	r.off()
	begin := p.count(which{kind: keepStep})
	l.eventually("places are kept again", func() bool {
		return slices.ContainsFunc(p.steps(which{kind: keepStep})[begin:], func(s sentStep) bool {
			return s.answered && s.err == nil
		})
	})
	l.gives("a", "other:1")
	for _, c := range calls {
		c.ok()
	}
	got.check(l, len(calls))
	l.leavesNothing("a")
}

func fairGivenUp(l *lab) {
	p, q := l.process(), l.process()
	for name, giveUp := range map[string]func() (*call, func()){
		"its context is cancelled": func() (*call, func()) {
			ctx, cancel := context.WithCancel(l.ctx)
			name := "its context is cancelled"
			return l.inLine(p, name, "a waiter", func() error {
				return p.Locker(name).LockContext(ctx)
			}), cancel
		},
		"it has waited for long enough": func() (*call, func()) {
			name := "it has waited for long enough"
			wait := 300 * time.Millisecond
			c := l.start("a waiter", func() error {
				return p.Locker(name).LockContext(l.ctx, dlock.Wait(wait))
			})
			l.eventually("it stands in line", func() bool { return p.inLine(name) > 0 })
			return c, func() {}
		},
		"in a Do": func() (*call, func()) {
			ctx, cancel := context.WithCancel(l.ctxOf())
			name := "in a Do"
			return l.inLine(p, name, "a waiter", func() error {
				return p.Locker(name).Do(ctx, func(context.Context) error {
					return errors.New("fn was called")
				})
			}), cancel
		},
	} {
		l.take(name, "other:1")
		first, end := giveUp()
		next := l.waits(q, name)
		end()
		l.wantError(first.result(), "a waiter of whom "+name, dlock.ErrHeld)
		l.eventually("it gives up its place", func() bool {
			return slices.ContainsFunc(p.steps(which{kind: releaseStep, name: name}),
				func(s sentStep) bool { return s.carriedOut })
		})
		begin := time.Now()
		l.gives(name, "other:1")
		next.ok()
		if l.hasNotifier() {
			l.took(begin, 0, "getting in when "+name)
		}
		l.unlockAll(name)
		l.leavesNothing(name)
	}

	// The lock is granted to the waiter, but the waiter isn't notified.
	p.swallow(true)
	l.take("a", "other:1")
	ctx, cancel := context.WithCancel(l.ctx)
	defer cancel()
	first := l.inLine(p, "a", "a waiter", func() error { return p.Locker("a").LockContext(ctx) })
	next := l.waits(q, "a")
	l.gives("a", "other:1")
	begin := time.Now()
	cancel()
	if first.result() == nil { // the waiter polled, and acquired the lock
		l.unlockAll("a")
	}
	next.ok()
	if l.hasNotifier() {
		l.took(begin, 0, "getting in after an owner gave up what it was given")
	}
	l.unlockAll("a")
	l.leavesNothing("a")
}

func fairGivenUpLate(l *lab) {
	q := l.process()
	type late struct {
		kind stepKind
		what func(<-chan struct{}) fault
	}
	for name, c := range map[string]late{
		"the step to stand in line comes late":         {acquireStep, hangs},
		"its answer does":                              {acquireStep, replyHangs},
		"it failed, and comes late":                    {acquireStep, late2},
		"the place is kept late":                       {keepStep, hangs},
		"the place is kept, and the answer comes late": {keepStep, replyHangs},
		"keeping it failed, and comes late":            {keepStep, late2},
		"giving it up fails": {releaseStep, func(<-chan struct{}) fault {
			return requestLost
		}},
		"giving it up isn't answered": {releaseStep, func(<-chan struct{}) fault {
			return replyLost
		}},
		"giving it up comes late": {releaseStep, hangs},
	} {
		p := l.process()
		l.take(name, "other:1")
		open := make(chan struct{})
		r := p.next(1, which{kind: c.kind, name: name}, c.what(open))
		ctx, cancel := context.WithCancel(l.ctx)
		first := l.start("a waiter", func() error { return p.Locker(name).LockContext(ctx) })
		if c.kind != releaseStep {
			l.eventually("it asks", func() bool { return r.hits() == 1 })
		} else {
			l.eventually("it stands in line", func() bool { return p.inLine(name) > 0 })
		}
		next := l.waits(q, name)
		cancel()
		l.wantError(first.result(), "a waiter that is cancelled, and "+name, context.Canceled)
		l.eventually("it gives up its place", func() bool {
			return p.count(which{kind: releaseStep, name: name}) > 0
		})
		l.settle()
		close(open)
		l.eventually("nothing is under way", func() bool {
			return p.underWay(which{name: name}) == 0
		})
		if l.h.Virtual {
			// give the client time to release what a late request acquired
			l.sleep(500 * time.Millisecond)
		}
		l.gives(name, "other:1")
		begin := time.Now()
		next.ok()
		if l.hasNotifier() {
			l.took(begin, 0, "getting in after one left, and "+name)
		}
		l.tookBetween(begin, 0, lineDelay, "getting in after one that left, and "+name)
		l.unlockAll(name)
		l.leavesNothing(name)
	}
}

// late2 is the same as the function late. It is for fairGivenUpLate, which declares a type named
// late.
func late2(open <-chan struct{}) fault { return late(open) }

func fairDeadPlaces(l *lab) {
	q := l.process()
	place := 300 * time.Millisecond
	// Here the places expire before the lock is released.
	l.take("a", "other:1")
	for i := range 5 {
		l.stands("a", "dead:"+strconv.Itoa(i), place)
	}
	next := l.waits(q, "a")
	l.sleep(place + 50*time.Millisecond)
	begin := time.Now()
	l.gives("a", "other:1")
	next.ok()
	if l.hasNotifier() {
		l.took(begin, 0, "getting in behind places that are over")
	}
	l.unlockAll("a")
	l.leavesNothing("a")

	// Here the places haven't expired when the lock is released. The first dead owner is granted
	// the lock. The other places expire before that grant does.
	l.take("b", "other:1")
	for i := range 5 {
		l.stands("b", "dead:"+strconv.Itoa(i), place)
	}
	next = l.waits(q, "b")
	begin = time.Now()
	l.gives("b", "other:1")
	next.ok()
	l.tookBetween(begin, 0, lineDelay, "getting in behind five dead places")
	l.unlockAll("b")
	l.leavesNothing("b")

	// Here a client with many places dies.
	if l.h.Virtual {
		dying := l.process()
		l.take("c", "other:1")
		for range 20 {
			l.waits(dying, "c")
		}
		next = l.waits(q, "c")
		dying.dies()
		begin = time.Now()
		l.gives("c", "other:1")
		next.ok()
		l.tookBetween(begin, 0, placeLease+lineDelay, "getting in behind a dead client")
	}
}

func fairKeptMeanwhile(l *lab) {
	p, q := l.process(), l.process()
	for what, slow := range map[string]func(<-chan struct{}) fault{
		"the answer comes late": replyHangs,
		"the step comes late":   hangs,
	} {
		l.take(what, "other:1")
		lk := p.Locker(what)
		wait := l.inLine(p, what, "a waiter", func() error { return lk.LockContext(l.ctx) })
		open := make(chan struct{})
		r := p.next(1, which{kind: keepStep, name: what}, slow(open))
		l.eventually("its place is being kept", func() bool { return r.hits() == 1 })
		l.gives(what, "other:1")
		wait.ok()
		// Here the release is under way when KeepPlaces is answered.
		held := make(chan struct{})
		r = p.next(1, which{kind: releaseStep, name: what}, hangs(held))
		unlock := l.start("UnlockContext, and "+what, func() error {
			return lk.UnlockContext(l.ctx)
		})
		l.eventually("the release is sent", func() bool { return r.hits() == 1 })
		close(open)
		l.eventually("the look is answered", func() bool {
			return p.underWay(which{kind: keepStep}) == 0
		})
		l.settle()
		close(held)
		unlock.ok()
		begin := time.Now()
		l.lock(q.Locker(what))
		l.tookBetween(begin, 0, lineDelay, "the next one's turn, when "+what)
		l.unlockAll(what)
		l.eventually("nothing is under way", func() bool { return p.underWay(which{}) == 0 })
		l.leavesNothing(what)
	}
}

func fairDeadGranted(l *lab) {
	q, dying := l.process(), l.process()
	l.take("a", "other:1")
	l.waits(dying, "a")
	var calls []*call
	var got order
	for i := range 3 {
		calls = append(calls, l.inLine(q, "a", "waiter "+strconv.Itoa(i), func() error {
			return q.Locker("a").Do(l.ctx, func(context.Context) error { got.add(i); return nil })
		}))
	}
	dying.dies()
	l.settle()
	begin := time.Now()
	l.gives("a", "other:1")
	for _, c := range calls {
		c.ok()
	}
	// The grant to the dead waiter must expire first. The store decides how long a grant lasts.
	l.tookBetween(begin, 0, lineDelay, "getting in after a dead one was given the lock")
	got.check(l, len(calls))
	l.leavesNothing("a")
}

func fairUnanswered(l *lab) {
	for what, f := range map[string]fault{
		"reply lost":   replyLost,
		"request lost": requestLost,
		"not sent":     notSent,
	} {
		p, q := l.process(), l.process()
		l.take(what, "other:1")
		p.next(2, which{kind: acquireStep, name: what}, f)
		var got order
		enter := func(c *process, i int) *call {
			return l.inLine(c, what, "waiter "+strconv.Itoa(i), func() error {
				return c.Locker(what).Do(l.ctx, func(context.Context) error {
					got.add(i)
					return nil
				})
			})
		}
		first := enter(p, 0)
		second := enter(q, 1)
		l.eventually("the first is answered", func() bool {
			return p.count(which{kind: acquireStep}) >= 3
		})
		if what == "reply lost" {
			l.eventually("each of its attempts to stand in line is carried out", func() bool {
				return p.inLine(what) >= 3
			})
		}
		for _, s := range p.steps(which{kind: acquireStep}) {
			if s.owner != p.owner(what) {
				l.Errorf("%s: the attempts of one acquisition have two numbers", what)
			}
		}
		l.gives(what, "other:1")
		first.ok()
		second.ok()
		got.check(l, 2)
		l.leavesNothing(what)
	}
	// Here Subscribe fails, and requests for a place in line succeed.
	for what, f := range map[string]fault{
		"reply lost":   replyLost,
		"request lost": requestLost,
		"refused":      refused,
	} {
		p := l.process()
		name := "subscribing, " + what
		p.next(2, which{kind: subscribeStep}, f)
		l.take(name, "other:1")
		wait := l.waits(p, name)
		l.gives(name, "other:1")
		begin := time.Now()
		wait.ok()
		l.tookBetween(begin, 0, lineDelay, "getting in where "+name)
		l.unlockAll(name)
		l.leavesNothing(name)
	}
}

func fairLostGrant(l *lab) {
	l.skipWithout(l.hasNotifier(), "notification")
	p, q := l.process(), l.process()
	l.take("a", "other:1")
	r := p.next(1, which{kind: grantStep}, requestLost)
	var got order
	var calls []*call
	for i, c := range []*process{p, q} {
		calls = append(calls, l.inLine(c, "a", "waiter "+strconv.Itoa(i), func() error {
			return c.Locker("a").Do(l.ctx, func(context.Context) error { got.add(i); return nil })
		}))
	}
	begin := time.Now()
	l.gives("a", "other:1")
	for _, c := range calls {
		c.ok()
	}
	if r.hits() == 0 && l.h.Virtual {
		l.Error("no grant was lost")
	}
	l.tookBetween(begin, 0, 2*lineDelay, "two turns, the first of which nobody heard of")
	got.check(l, len(calls))
	l.leavesNothing("a")
}

func fairNoGrants(l *lab) {
	p, q := l.process(), l.process()
	p.swallow(true)
	q.swallow(true)
	l.take("a", "other:1")
	var got order
	var calls []*call
	for i, c := range []*process{p, q, p} {
		calls = append(calls, l.inLine(c, "a", "waiter "+strconv.Itoa(i), func() error {
			return c.Locker("a").Do(l.ctx, func(context.Context) error { got.add(i); return nil })
		}))
	}
	begin := time.Now()
	l.gives("a", "other:1")
	for _, c := range calls {
		c.ok()
	}
	l.tookBetween(begin, 0, time.Duration(len(calls))*2*lineDelay, "a line that gets no messages")
	got.check(l, len(calls))
	l.leavesNothing("a")
}

func fairBroken(l *lab) {
	l.skipWithout(l.store.BreakSubscriptions != nil, "BreakSubscriptions")
	p, q := l.process(), l.process()
	for i := range 4 {
		name := strconv.Itoa(i)
		l.take(name, "other:1")
		var got order
		var calls []*call
		for i, c := range []*process{p, q} {
			calls = append(calls, l.inLine(c, name, "waiter "+strconv.Itoa(i), func() error {
				return c.Locker(name).Do(l.ctx, func(context.Context) error {
					got.add(i)
					return nil
				})
			}))
			l.eventually("it is subscribed", func() bool { return c.subscriptions(name) == 1 })
		}
		if i%2 == 0 {
			l.store.BreakSubscriptions()
			l.gives(name, "other:1")
		} else {
			l.gives(name, "other:1")
			l.store.BreakSubscriptions()
		}
		for _, c := range calls {
			c.ok()
		}
		got.check(l, len(calls))
		l.leavesNothing(name)
	}
}

func fairLateGrant(l *lab) {
	l.skipWithout(l.hasNotifier(), "notification")
	p, q := l.process(), l.process()
	l.take("a", "other:1")
	open := make(chan struct{})
	grant := p.next(1, which{kind: grantStep, name: "a"}, late(open))
	lk, next := p.Locker("a"), q.Locker("a")
	wait := l.inLine(p, "a", "the first", func() error { return lk.LockContext(l.ctx) })
	second := l.inLine(q, "a", "the second", func() error { return next.LockContext(l.ctx) })
	// The first client is cut off: its requests don't reach the store, and its grant is delayed.
	var cut []*rule
	for _, k := range []stepKind{acquireStep, keepStep, releaseStep} {
		cut = append(cut, p.on(which{kind: k}, requestLost))
	}
	l.eventually("nothing is under way", func() bool {
		return p.underWay(which{kind: acquireStep}) == 0
	})
	l.gives("a", "other:1")
	second.ok()
	if grant.hits() == 0 {
		l.Fatal("the lock wasn't given to the first")
	}
	wait.waits()
	close(open)
	l.sleep(20 * time.Millisecond)
	wait.waits() // its grant has expired
	l.has(q, next)
	for _, r := range cut {
		r.off()
	}
	l.sleep(20 * time.Millisecond)
	wait.waits()
	l.unlock(next)
	wait.ok()
	l.has(p, lk)
	l.unlock(lk)
	l.leavesNothing("a")
}

func fairStrayGrant(l *lab) {
	l.skipWithout(l.hasNotifier(), "notification")
	p, q := l.process(), l.process()
	// A second copy of the grant arrives after its receiver has released the lock, while another
	// client waits.
	l.take("a", "other:1")
	open := make(chan struct{})
	r := p.next(1, which{kind: grantStep, name: "a"}, func(x *transit) error {
		return errors.Join(x.carryOut(x.ctx), late(open)(x))
	})
	lk, next := p.Locker("a"), q.Locker("a")
	wait := l.inLine(p, "a", "the first", func() error { return lk.LockContext(l.ctx) })
	second := l.inLine(q, "a", "the second", func() error { return next.LockContext(l.ctx) })
	third := l.inLine(p, "a", "the third", func() error { return p.Locker("a").LockContext(l.ctx) })
	l.gives("a", "other:1")
	wait.ok()
	if n, err := lk.HoldCount(l.ctx); err != nil || n != 1 {
		l.Errorf("HoldCount: %d, %v", n, err)
	}
	l.unlock(lk)
	second.ok()
	if r.hits() == 0 && l.h.Virtual {
		l.Error("no grant came twice")
	}
	close(open)
	l.sleep(20 * time.Millisecond)
	third.waits()
	l.has(q, next)
	l.unlock(next)
	third.ok()
	l.unlockAll("a")
	l.leavesNothing("a")

	// The grant arrives twice.
	l.take("b", "other:1")
	p.next(1, which{kind: grantStep, name: "b"}, twice)
	lk = p.Locker("b")
	wait = l.inLine(p, "b", "a waiter", func() error { return lk.LockContext(l.ctx) })
	l.gives("b", "other:1")
	wait.ok()
	l.has(p, lk)
	l.unlock(lk)
	l.leavesNothing("b")

	// The grant arrives after its receiver has given up.
	l.take("c", "other:1")
	gone := make(chan struct{})
	p.next(1, which{kind: grantStep, name: "c"}, late(gone))
	ctx, cancel := context.WithCancel(l.ctx)
	defer cancel()
	wait = l.inLine(p, "c", "a waiter", func() error { return p.Locker("c").LockContext(ctx) })
	second = l.waits(p, "c")
	l.gives("c", "other:1")
	cancel()
	if wait.result() == nil { // the waiter polled, and acquired the lock
		l.unlockAll("c")
	}
	second.ok()
	close(gone)
	l.sleep(20 * time.Millisecond)
	l.wantHeld("c", "after a grant for an owner that has gone")
	l.unlockAll("c")
	l.leavesNothing("c")
}

func fairUnsure(l *lab) {
	l.skipWithout(l.hasNotifier(), "notification")
	p := l.process()
	l.take("a", "other:1")
	r := p.on(which{kind: grantStep}, unsure)
	lk := p.Locker("a")
	wait := l.inLine(p, "a", "a waiter", func() error { return lk.LockContext(l.ctx) })
	begin := time.Now()
	l.gives("a", "other:1")
	wait.ok()
	l.took(begin, 0, "asking about a grant")
	if r.hits() == 0 && l.h.Virtual {
		l.Error("no grant was unsure")
	}
	l.has(p, lk)
	if l.h.Virtual {
		l.sleep(2 * l.calm())
		l.has(p, lk) // the client renews the hold, so it outlives the grant's short lease
	}
	l.unlock(lk)
	l.leavesNothing("a")
}

func fairShortGrant(l *lab) {
	l.skipWithout(l.hasNotifier(), "notification")
	for _, delayed := range []bool{false, true} {
		// In real time the grant might expire before it arrives. Then the waiter has no way to ask
		// for another, so skip this.
		if delayed && !l.h.Virtual {
			continue
		}
		p, q := l.process(), l.process()
		name := strconv.FormatBool(delayed)
		p.on(which{kind: renewStep}, requestLost)
		open := make(chan struct{})
		if delayed {
			p.next(1, which{kind: grantStep, name: name}, late(open))
			p.on(which{kind: keepStep}, requestLost)
			p.on(which{kind: acquireStep, name: name, skip: 1}, requestLost)
		}
		l.take(name, "other:1")
		lk := p.Locker(name)
		wait := l.inLine(p, name, "a waiter", func() error { return lk.LockContext(l.ctx) })
		next := l.waits(q, name)
		begin := time.Now()
		l.gives(name, "other:1")
		if delayed {
			l.sleep(l.shortLease())
			close(open)
		}
		wait.ok()
		if isOver(lk.Lost(l.ctx)) && l.h.Virtual {
			l.Fatal("what was given is lost at once")
		}
		l.eventuallyOver("it is lost", lk.Lost(l.ctx))
		if l.h.Virtual {
			if n := p.count(which{kind: grantStep}); n != 1 {
				l.Fatalf("%d grants", n)
			}
			lease := p.steps(which{kind: grantStep})[0].lease
			l.took(begin, lease-lease/100, "losing what can't be renewed")
		}
		next.ok()
		l.tookBetween(begin, 0, lineDelay, "the next one's turn")
		l.wantError(lk.UnlockContext(l.ctx), "UnlockContext", dlock.ErrLost)
		l.wantHeld(name, "after the unlock of what was lost")
		l.unlockAll(name)
	}
}

func fairFixed(l *lab) {
	p, q := l.process(), l.process()
	short, long := l.legal(200*time.Millisecond), l.legal(2500*time.Millisecond)
	for name, lease := range map[string]time.Duration{
		"shorter": short,
		"longer":  long,
		"free":    short,
	} {
		lk, next := p.Locker(name), q.Locker(name)
		if name == "free" { // the lock is free, so no grant is involved
			l.lock(lk, dlock.FixedLease(lease))
		} else {
			l.take(name, "other:1")
			wait := l.inLine(p, name, "a waiter with a lease", func() error {
				return lk.LockContext(l.ctx, dlock.FixedLease(lease))
			})
			l.gives(name, "other:1")
			wait.ok()
		}
		begin := time.Now()
		second := l.start("the next", func() error { return next.LockContext(l.ctx) })
		l.eventuallyOver("the lease is over", lk.Lost(l.ctx))
		if p.limits().MinLease <= short {
			l.tookBetween(begin, lease-lease/100-time.Millisecond, lease-lease/100+time.Millisecond,
				"a fixed lease, "+name)
		}
		second.ok()
		if passed := time.Since(begin); l.h.Virtual &&
			(passed < lease-lease/100 || passed > max(lease, time.Second)+lineDelay) {
			l.Errorf("%s: the next got in after %v, behind a lease of %v", name, passed, lease)
		}
		l.wantError(lk.UnlockContext(l.ctx), "UnlockContext", dlock.ErrLost)
		l.has(q, next)
		l.unlock(next)
		l.leavesNothing(name)
	}
	// A granted lock is released before the grant's short lease has expired.
	l.take("b", "other:1")
	lk := p.Locker("b")
	wait := l.inLine(p, "b", "a waiter with a lease", func() error {
		return lk.LockContext(l.ctx, dlock.FixedLease(long))
	})
	l.gives("b", "other:1")
	wait.ok()
	l.unlock(lk)
	l.leavesNothing("b")
}

func fairParked(l *lab) {
	p, q := l.process(), l.process()
	shared, other := p.Locker("a"), q.Locker("a")
	var got order
	var calls []*call
	l.lock(shared)
	for i, lk := range []*dlock.Locker{shared, other, shared, shared, other} {
		c := p
		if lk == other {
			c = q
		}
		calls = append(calls, l.inLine(c, "a", "waiter "+strconv.Itoa(i), func() error {
			lk.Lock()
			defer lk.Unlock()
			got.add(i)
			return nil
		}))
	}
	if l.tryLock(shared) || l.tryLock(other) {
		l.Fatal("TryLock got what is held")
	}
	begin := time.Now()
	shared.Unlock()
	for _, c := range calls {
		c.ok()
	}
	if l.hasNotifier() {
		l.took(begin, 0, "a line of plain calls")
	}
	got.check(l, len(calls))
	l.leavesNothing("a")
}

func fairParkedLost(l *lab) {
	p, q := l.process(), l.process()
	shared := p.Locker("a")
	l.lock(shared, dlock.FixedLease(l.shortLease()))
	lost := shared.Lost(l.ctx)
	second := l.start("a second Lock of the Locker", func() error {
		return shared.LockContext(l.ctx)
	})
	l.eventuallyOver("the first hold is lost", lost)
	begin := time.Now()
	other := q.Locker("a")
	l.lock(other)
	l.tookBetween(begin, 0, lineDelay, "the wait for a Locker that was lost")
	for range 3 {
		second.waits()
		l.unlock(other)
		l.lock(other)
	}
	_, err := shared.TryLock(l.ctx)
	l.wantError(err, "TryLock of a Locker that was lost", dlock.ErrLost)
	l.wantError(shared.UnlockContext(l.ctx), "the late unlock", dlock.ErrLost)
	second.waits()
	l.unlock(other)
	second.ok()
	l.has(p, shared)
	l.unlock(shared)
	l.leavesNothing("a")
}

func fairLost(l *lab) {
	p, q := l.process(dlock.WithLease(l.brisk())), l.process()
	lk := p.Locker("a")
	h := l.acquire(lk)
	next := l.waits(q, "a")
	after := l.waits(p, "a")
	l.vanish("a")
	next.ok()
	l.eventuallyOver("the former holder is told", h.Lost())
	l.eventuallyOver("its context ends", h.Context().Done())
	if cause := context.Cause(h.Context()); !errors.Is(cause, dlock.ErrLost) {
		l.Errorf("the context of a Hold that was lost ended with cause %v", cause)
	}
	l.wantError(h.Release(l.ctx), "Release", dlock.ErrLost)
	after.waits()
	l.wantHeld("a", "after the Release of what was lost")
	l.unlockAll("a")
	after.ok()
	l.unlockAll("a")

	if l.store.Wipe == nil {
		return
	}
	// The store loses everything, including the line. The waiter then asks again and acquires the
	// lock.
	h = l.acquire(lk)
	next = l.waits(p, "a")
	l.store.Wipe()
	l.eventuallyOver("the former holder is told", h.Lost())
	next.ok()
}

func fairForced(l *lab) {
	p, q := l.process(), l.process()
	lk := p.Locker("a")
	if released, err := q.Locker("a").ForceUnlock(l.ctx); err != nil || released {
		l.Fatalf("ForceUnlock of a free lock: %v, %v", released, err)
	}
	l.lock(lk)
	lost := lk.Lost(l.ctx)
	first, second := p.Locker("a"), q.Locker("a")
	next := l.inLine(p, "a", "a waiter of the same client", func() error {
		return first.LockContext(l.ctx)
	})
	after := l.inLine(q, "a", "a waiter of another", func() error {
		return second.LockContext(l.ctx)
	})
	force := func(c *process) {
		l.Helper()
		begin := time.Now()
		if released, err := c.Locker("a").ForceUnlock(l.ctx); err != nil || !released {
			l.Fatalf("ForceUnlock: %v, %v", released, err)
		}
		l.took(begin, 0, "ForceUnlock")
	}
	begin := time.Now()
	force(p)
	next.ok()
	if l.hasNotifier() {
		l.took(begin, 0, "getting what was forced")
	}
	if !isOver(lost) {
		l.Error("Lost is still open after a ForceUnlock by the same client")
	}
	l.has(p, first)
	l.wantError(lk.UnlockContext(l.ctx), "the unlock of the former holder", dlock.ErrLost)
	after.waits()
	l.has(p, first)
	force(q)
	after.ok()
	l.has(q, second)
	l.wantError(first.UnlockContext(l.ctx), "the unlock of the next former holder",
		dlock.ErrLost)
	l.unlock(second)
	l.leavesNothing("a")
}

func fairClose(l *lab) {
	p, q := l.process(), l.process()
	lk := p.Locker("a")
	l.lock(lk)
	shared := []*call{
		l.waits(p, "a"),
		l.inLine(p, "a", "a second call", func() error { return lk.LockContext(l.ctx) }),
		l.inLine(p, "a", "Lock", func() error { return panicOf(p.Locker("a").Lock) }),
	}
	lost := lk.Lost(l.ctx)
	next := l.waits(q, "a")
	l.noError(p.Client.Close(), "Close")
	for _, c := range shared {
		l.wantError(c.result(), c.what+", when the client is closed", dlock.ErrClosed)
	}
	if !isOver(lost) {
		l.Error("Lost is open after Close")
	}
	l.wantHeld("a", "after Close")
	next.waits()
	begin := time.Now()
	l.noError(lk.UnlockContext(l.ctx), "UnlockContext after Close")
	next.ok()
	l.tookBetween(begin, 0, placeLease+lineDelay, "getting in after those of a closed client")
	l.unlockAll("a")
	l.leavesNothing("a")
	if n := p.subscriptions("a"); n != 0 {
		l.Errorf("%d subscriptions are left", n)
	}
}

func fairMany(l *lab) {
	waiters := 1000
	if !l.h.Virtual {
		waiters = 100
	}
	p, q := l.process(), l.process()
	l.take("a", "other:1")
	ctx, cancel := context.WithCancel(l.ctx)
	defer cancel()
	var in atomic.Int32
	var calls []*call
	for range waiters {
		calls = append(calls, l.start("a waiter", func() error {
			return p.Locker("a").Do(ctx, func(context.Context) error { in.Add(1); return nil })
		}))
	}
	l.eventually("they stand in line", func() bool { return p.inLine("a") >= waiters })
	l.settle()
	before, begin := p.count(which{}), time.Now()
	l.sleep(1500 * time.Millisecond)
	seconds := int(time.Since(begin)/time.Second) + 1
	if n := p.count(which{}) - before; n > 2*seconds {
		l.Errorf("%d waiters sent %d steps in %d s, and nothing was released", waiters, n, seconds)
	}
	if n := p.count(which{kind: subscribeStep}); n > 1 {
		l.Errorf("%d waiters subscribed %d times", waiters, n)
	}
	if n := p.count(which{kind: acquireStep}); n != waiters {
		l.Errorf("%d waiters asked %d times to stand in line", waiters, n)
	}
	last := l.waits(q, "a")
	cancel()
	for _, c := range calls {
		l.wantError(c.result(), c.what+" that is cancelled", context.Canceled)
	}
	l.eventually("they give up their places", func() bool {
		left := 0
		for _, s := range p.steps(which{kind: releaseStep}) {
			if s.carriedOut {
				left++
			}
		}
		return left >= waiters
	})
	begin = time.Now()
	l.gives("a", "other:1")
	last.ok()
	if l.hasNotifier() {
		l.took(begin, 0, "getting in after many have left")
	}
	if n := in.Load(); n != 0 {
		l.Errorf("%d cancelled waiters got in", n)
	}
	l.eventually("the subscription is gone", func() bool { return p.subscriptions("a") == 0 })
}

func fairAndOthers(l *lab) {
	p, q := l.process(dlock.WithLease(l.brisk())), l.process(dlock.WithLease(l.brisk()))
	others := []backend.Kind{backend.Exclusive}
	if l.limits().Kinds.Has(backend.Fenced) {
		others = append(others, backend.Fenced)
	}
	for _, k := range others {
		for _, ways := range [][2]backend.Kind{{backend.Fair, k}, {k, backend.Fair}} {
			mine, other := p.as(ways[0]).Locker("a"), ways[1]
			h := l.acquire(mine)
			if l.tryLock(p.as(other).Locker("a")) || l.tryLock(q.as(other).Locker("a")) {
				l.Fatalf("a %v lock was acquired beside a %v one", other, ways[0])
			}
			for _, way := range []func(context.Context) error{
				func(ctx context.Context) error {
					_, err := p.as(other).Locker("a").Acquire(ctx)
					return err
				},
				func(ctx context.Context) error {
					_, err := p.as(other).Locker("a").TryLock(ctx)
					return err
				},
			} {
				l.wantError(way(h.Context()), "the other kind by the party that has the one",
					dlock.ErrConflict)
			}
			l.release(h)
			l.eventuallyFree("a")
		}
	}
	// One waiter stands in line, and the other doesn't. Both must get in, although a store isn't
	// required to wake one of them when the other releases.
	h := l.acquire(p.Locker("b"))
	fair := l.inLine(q, "b", "a waiter in line", func() error {
		lk := q.Locker("b")
		return errors.Join(lk.LockContext(l.ctx), lk.UnlockContext(l.ctx))
	})
	plain := l.start("a plain waiter", func() error {
		lk := q.as(backend.Exclusive).Locker("b")
		return errors.Join(lk.LockContext(l.ctx), lk.UnlockContext(l.ctx))
	})
	plain.waits()
	l.release(h)
	fair.ok()
	plain.ok()
	h = l.as(backend.Exclusive).acquire(p.as(backend.Exclusive).Locker("b"))
	fair = l.inLine(q, "b", "a waiter in line", func() error {
		lk := q.Locker("b")
		return errors.Join(lk.LockContext(l.ctx), lk.UnlockContext(l.ctx))
	})
	l.release(h)
	fair.ok()
	l.leavesNothing("b")
}
