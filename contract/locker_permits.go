package contract

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/dlock"
)

// semaphoreCases test a Semaphore.
var semaphoreCases = []testCase{
	{name: "permits",
		rule: "are acquired all or none, and never more than the limit, in all clients together",
		run:  ofKind(backend.Permits, permitsAtOnce)},
	{name: "uncontended permits", rule: "cost two steps, and Available costs one",
		run: ofKind(backend.Permits, permitsUncontended)},
	{name: "a Do of permits", rule: "returns fn's error, and releases the permits whatever fn does",
		run: ofKind(backend.Permits, permitsDo)},
	{name: "bad input for permits",
		rule: "returns an error, or panics where no error can be returned, and sends nothing",
		run:  ofKind(backend.Permits, permitsBadInput)},
	{name: "permits of nobody knows how many",
		rule: "return ErrNoLimit at once, until the store knows a limit",
		run:  ofKind(backend.Permits, permitsNoLimit)},
	{name: "the number of permits",
		rule: "is the one that each caller names for its own calls, larger or smaller",
		run:  ofKind(backend.Permits, permitsResized)},
	{name: "more permits than before", rule: "wake waiters that use the store's limit",
		run: ofKind(backend.Permits, permitsMore)},
	{name: "permits within permits", rule: "are separate acquisitions, whatever the context holds",
		run: ofKind(backend.Permits, permitsWithin)},
	{name: "first come, first served, for permits",
		rule: "in a client: calls for few permits don't overtake a call for many",
		run:  ofKind(backend.Permits, permitsInTurn)},
	{name: "Wait bounds the wait for permits",
		rule: "Wait(0) makes one attempt, which also fails while others of the client wait",
		tags: ofClient, run: ofKind(backend.Permits, permitsWait)},
	{name: "permits handed on",
		rule: "go to the client's first waiter for the same number, without a request to the " +
			"store",
		run: ofKind(backend.Permits, permitsHandedOn)},
	{name: "permits handed on for a while", rule: "and then other clients get their turn",
		tags: ofClient,
		run:  ofKind(backend.Permits, permitsHandedOnEnds)},
	{name: "permits given back", rule: "wake waiters in every client, as many as can get in",
		tags: Essential,
		run:  ofKind(backend.Permits, permitsWake)},
	{name: "a lost wake-up for permits",
		rule: "a waiter looks again after a third of its lease at the latest",
		tags: ofClient,
		run:  ofKind(backend.Permits, permitsLostWakeup)},
	{name: "permits without notification", rule: "waiters poll",
		run: ofKind(backend.Permits, permitsPolled)},
	{name: "a thousand who wait for permits",
		rule: "cost one subscription, and few steps while no permits are released",
		tags: ofClient,
		run:  ofKind(backend.Permits, permitsThousand)},
	{name: "the permits of the dead", rule: "come back with the lease", tags: Essential,
		run: ofKind(backend.Permits, permitsOfTheDead)},
	{name: "permits that are held",
		rule: "are renewed, each for itself, and no longer than they are held",
		tags: ofClient, run: ofKind(backend.Permits, permitsRenewed)},
	{name: "permits with a fixed lease", rule: "end by themselves, one by one", tags: ofClient,
		run: ofKind(backend.Permits, permitsFixed)},
	{name: "lost permits", rule: "end the contexts of their holders, and Release returns ErrLost",
		tags: ofClient, run: ofKind(backend.Permits, permitsLost)},
	{name: "renewals of permits fail past the lease",
		rule: "the permits count as lost when the lease ends, at the latest",
		tags: ofClient, run: ofKind(backend.Permits, permitsNotRenewed)},
	{name: "permits without an answer", rule: "leave nothing behind, whichever step it was",
		run: ofKind(backend.Permits, permitsWithoutAnswer)},
	{name: "permits granted late", rule: "after their caller has left, are taken back",
		run: ofKind(backend.Permits, permitsLate)},
	{name: "permits handed on during an attempt",
		rule: "are held once: what the store then grants is released, or goes to the next waiter",
		run:  ofKind(backend.Permits, permitsTwice)},
	{name: "a wait for permits that is given up",
		rule: "leaves nothing behind, and doesn't block others",
		run:  ofKind(backend.Permits, permitsGivenUp)},
	{name: "Close with permits",
		rule: "each holder is told, nothing is released, and Release still works",
		run:  ofKind(backend.Permits, permitsClose)},
	{name: "permits and something else",
		rule: "under one name every call returns ErrConflict at once, and nothing is changed",
		run:  ofKind(backend.Permits, permitsConflict)},
	{name: "many who use permits",
		rule: "of several clients, some cancelled at random: never more are inside than the " +
			"limit, and all permits come back",
		tags: Essential, run: ofKind(backend.Permits, permitsCrowd)},
}

// permits calls Acquire, and fails the test on an error.
func (l *lab) permits(s *dlock.Semaphore, n int, opts ...dlock.AcquireOption) *dlock.Hold {
	l.Helper()
	h, err := s.Acquire(l.ctx, n, opts...)
	l.noError(err, "Acquire")
	return h
}

// noPermits fails the test if n permits are available now.
func (l *lab) noPermits(s *dlock.Semaphore, n int, when string) {
	l.Helper()
	_, err := s.Acquire(l.ctx, n, dlock.Wait(0))
	l.wantError(err, fmt.Sprintf("Acquire of %d, %s", n, when), dlock.ErrNotAcquired, dlock.ErrHeld)
}

// waitsFor starts a call that waits for n permits, and releases them once it has them.
func (l *lab) waitsFor(s *dlock.Semaphore, n int) *call {
	return l.start(fmt.Sprintf("a waiter for %d", n), func() error {
		return s.Do(l.ctx, n, func(context.Context) error { return nil })
	})
}

// available fails the test unless Available returns want.
func (l *lab) available(s *dlock.Semaphore, want int, when string) {
	l.Helper()
	n, err := s.Available(l.ctx)
	l.noError(err, "Available")
	if n != want {
		l.Fatalf("%s: %d permits are available, want %d", when, n, want)
	}
}

// manyPermits is a limit that no case reaches.
const manyPermits = 1000

// out returns the number of permits that are taken in the store.
func (l *lab) out(name string) int {
	l.Helper()
	res, err := l.other.Look(l.ctx, backend.LookRequest{
		Kind: backend.Permits, Name: name, Limit: manyPermits,
	})
	l.noError(err, "Look")
	return manyPermits - res.Available
}

// wantOut fails the test unless exactly the wanted number of permits is taken in the store.
// eventuallyOut waits until that number is taken.
func (l *lab) wantOut(name string, want int, when string) {
	l.Helper()
	if n := l.out(name); n != want {
		l.Fatalf("%s: %d permits are out, want %d", when, n, want)
	}
}

func (l *lab) eventuallyOut(name string, want int) {
	l.Helper()
	l.eventually(fmt.Sprintf("%d permits of %s are out", want, name), func() bool {
		return l.out(name) == want
	})
}

// takePermits acquires permits for another process, and givePermits releases them.
func (l *lab) takePermits(name, owner string, n, limit int, lease time.Duration) {
	l.Helper()
	req := backend.AcquireRequest{
		Kind: backend.Permits, Name: name, Owner: owner, Lease: lease, Permits: n, Limit: limit,
	}
	res, err := l.other.Acquire(l.ctx, req)
	l.noError(err, "Acquire")
	if !res.Acquired {
		l.Fatalf("another process can't acquire %d of %d permits: %+v", n, limit, res)
	}
}

func (l *lab) givePermits(name, owner string, n int) {
	l.Helper()
	req := backend.ReleaseRequest{
		Kind: backend.Permits, Name: name, Owner: owner, Lease: l.longLease(), Permits: n,
	}
	res, err := l.other.Release(l.ctx, req)
	l.noError(err, "Release")
	if res.Outcome != backend.Freed {
		l.Fatalf("another process gives %d permits back: %v", n, res.Outcome)
	}
}

func permitsAtOnce(l *lab) {
	p, q := l.process(), l.process()
	mine, theirs := p.Semaphore("a", 5), q.Semaphore("a", 5)
	if mine.Name() != "a" {
		l.Errorf("Name() is %q", mine.Name())
	}
	l.available(mine, 5, "before anybody has any")
	two := l.permits(mine, 2)
	if token, ok := two.Token(); ok || two.Name() != "a" {
		l.Errorf("permits have the name %q and the token %d", two.Name(), token)
	}
	three := l.permits(theirs, 2)
	l.noPermits(mine, 2, "while one is left")
	l.noPermits(theirs, 2, "while one is left")
	l.available(mine, 1, "after that")
	one := l.permits(l.process().Semaphore("a", 5), 1)
	l.noPermits(mine, 1, "while none is left")
	l.available(theirs, 0, "while none is left")
	l.release(two)
	l.wantError(two.Release(l.ctx), "the second Release", dlock.ErrNotHeld)
	l.available(theirs, 2, "after a release of two")
	l.noPermits(theirs, 3, "while two are left")
	other := l.permits(p.Semaphore("a", 5), 2)
	for _, h := range []*dlock.Hold{other, one, three} {
		l.release(h)
	}
	l.release(l.permits(theirs, 5))
	l.available(mine, 5, "in the end")
	l.available(p.Semaphore("b", 3), 3, "another name")
}

func permitsUncontended(l *lab) {
	p := l.process()
	s := p.Semaphore("a", 3)
	if n := p.count(which{}); n != 0 {
		l.Fatalf("New and Semaphore sent %d steps", n)
	}
	l.release(l.permits(s, 2))
	l.noError(s.Do(l.ctx, 3, func(context.Context) error { return nil }), "Do")
	l.available(s, 3, "in the end")
	l.settle()
	if got, want := p.kinds(), []stepKind{acquireStep, releaseStep, acquireStep, releaseStep,
		lookStep}; !slices.Equal(got, want) {
		l.Errorf("Acquire and Release, Do, and Available sent %v, want %v", got, want)
	}
	sent := p.steps(which{kind: acquireStep})
	if sent[0].permits != 2 || sent[0].limit != 3 || sent[0].owner == sent[1].owner {
		l.Errorf("two acquisitions of 2 and 3 of 3 sent %+v", sent)
	}
}

func permitsDo(l *lab) {
	p := l.process()
	s := p.Semaphore("a", 3)
	mine := errors.New("fn's")
	if err := s.Do(l.ctx, 2, func(ctx context.Context) error {
		l.wantOut("a", 2, "inside Do")
		if ctx.Err() != nil {
			l.Error("the context of Do is over inside it")
		}
		return mine
	}); err != mine {
		l.Errorf("Do returned %v, want fn's error itself", err)
	}
	l.wantOut("a", 0, "after Do")
	if v := l.wantPanic("Do whose fn panics", func() {
		_ = s.Do(l.ctx, 3, func(context.Context) error { panic("mine") })
	}); v != "mine" {
		l.Errorf("Do panicked with %v", v)
	}
	l.wantOut("a", 0, "after a panic in Do")
	r := p.on(which{kind: releaseStep}, refused)
	err := s.Do(l.ctx, 1, func(context.Context) error { return mine })
	r.off()
	l.wantError(err, "Do whose release is refused", mine, errFault)
}

func permitsBadInput(l *lab) {
	p := l.process()
	s, told, empty := p.Semaphore("a", 3), p.Semaphore("a", 0), p.Semaphore("", 3)
	fn := func(context.Context) error { l.Error("fn was called"); return nil }
	second := func(_ any, err error) error { return err }
	over, cancel := context.WithCancel(l.ctx)
	cancel()
	for what, c := range map[string]struct {
		err    error
		target error
	}{
		"no permits":                  {second(s.Acquire(l.ctx, 0)), nil},
		"fewer than no permits":       {second(s.Acquire(l.ctx, -1)), nil},
		"fewer than no permits in Do": {s.Do(l.ctx, -3, fn), nil},
		"no permits of 0":             {second(told.Acquire(l.ctx, 0)), nil},
		"more than there are":         {second(s.Acquire(l.ctx, 4)), dlock.ErrTooMany},
		"more than there are, in Do":  {s.Do(l.ctx, 5, fn), dlock.ErrTooMany},
		"more than there are, Wait(0)": {
			second(s.Acquire(l.ctx, 1<<30, dlock.Wait(0))), dlock.ErrTooMany,
		},
		"without a name":           {second(empty.Acquire(l.ctx, 1)), nil},
		"without a name, in Do":    {empty.Do(l.ctx, 1, fn), nil},
		"Available without a name": {second(empty.Available(l.ctx)), nil},
		"without a function":       {s.Do(l.ctx, 1, nil), nil},
		"a lease of 0": {
			second(s.Acquire(l.ctx, 1, dlock.FixedLease(0))), nil,
		},
		"a negative wait":                   {second(s.Acquire(l.ctx, 1, dlock.Wait(-1))), nil},
		"a context that is over":            {second(s.Acquire(over, 1)), context.Canceled},
		"a context that is over, in Do":     {s.Do(over, 1, fn), context.Canceled},
		"Available, a context that is over": {second(s.Available(over)), context.Canceled},
	} {
		l.wantError(c.err, what)
		if c.target != nil {
			l.wantError(c.err, what, c.target)
		}
		for _, target := range []error{dlock.ErrNotAcquired, dlock.ErrHeld, dlock.ErrLost,
			dlock.ErrClosed, dlock.ErrConflict, dlock.ErrTooMany, dlock.ErrNoLimit} {
			if target != c.target {
				l.not(c.err, what, target)
			}
		}
	}
	l.wantPanic("a Semaphore with -1 permits", func() { p.Semaphore("a", -1) })
	if n := p.count(which{}); n != 0 {
		l.Errorf("bad input reached the store: %v", p.kinds())
	}
	l.release(l.permits(s, 3))
}

func permitsNoLimit(l *lab) {
	p, q := l.process(), l.process()
	told := q.Semaphore("a", 0)
	second := func(_ any, err error) error { return err }
	for what, err := range map[string]error{
		"Acquire":              second(told.Acquire(l.ctx, 1)),
		"Acquire with Wait":    second(told.Acquire(l.ctx, 1, dlock.Wait(time.Hour))),
		"Acquire with Wait(0)": second(told.Acquire(l.ctx, 1, dlock.Wait(0))),
		"Do": told.Do(l.ctx, 1, func(context.Context) error {
			return errors.New("fn was called")
		}),
		"Available": second(told.Available(l.ctx)),
	} {
		l.wantError(err, what+" where nobody has said how many there are", dlock.ErrNoLimit)
		l.not(err, what, dlock.ErrUnavailable)
	}
	one := l.permits(p.Semaphore("a", 3), 1)
	l.available(told, 2, "after the store was told of three, and one is out")
	two := l.permits(told, 2)
	l.noPermits(told, 1, "while three of three are out")
	l.noPermits(p.Semaphore("a", 3), 1, "while three of three are out")
	_, err := told.Acquire(l.ctx, 4)
	l.wantError(err, "Acquire of 4 where the store was told of 3", dlock.ErrTooMany)
	l.not(err, "Acquire of 4 where the store was told of 3", dlock.ErrUnavailable)
	wait := l.waitsFor(told, 1)
	wait.waits()
	l.release(two)
	wait.ok()
	l.release(one)
	l.wantOut("a", 0, "in the end")
}

func permitsResized(l *lab) {
	p, q := l.process(), l.process()
	old, grown, shrunk := p.Semaphore("a", 2), q.Semaphore("a", 4), p.Semaphore("a", 1)
	first, second := l.permits(old, 1), l.permits(old, 1)
	l.noPermits(old, 1, "with 2 of 2 out")
	l.available(grown, 2, "of 4 with 2 out")
	two := l.permits(grown, 2)
	l.noPermits(grown, 1, "with 4 of 4 out")
	l.available(old, 0, "of 2 with 4 out")
	wait := l.waitsFor(old, 1)
	wait.waits()
	l.release(two)
	wait.waits() // two of two are still taken
	l.noPermits(shrunk, 1, "of 1 with 2 out")
	l.release(first)
	wait.ok()
	l.eventuallyOut("a", 1)
	l.noPermits(shrunk, 1, "of 1 with 1 out")
	l.available(shrunk, 0, "of 1 with 1 out")
	l.available(old, 1, "of 2 with 1 out")
	l.available(grown, 3, "of 4 with 1 out")
	l.release(second)
	l.release(l.permits(shrunk, 1))
	l.release(l.permits(grown, 4))
	l.wantOut("a", 0, "in the end")
}

func permitsMore(l *lab) {
	p, q := l.process(), l.process()
	l.takePermits("a", "other:1", 2, 2, l.longLease())
	wait := l.waitsFor(p.Semaphore("a", 0), 1)
	wait.waits()
	more := l.permits(q.Semaphore("a", 4), 1)
	begin := time.Now()
	wait.ok()
	if l.hasNotifier() {
		l.took(begin, 0, "getting in after a larger number of permits was named")
	}
	l.release(more)
	l.givePermits("a", "other:1", 2)
}

func permitsWithin(l *lab) {
	for what, p := range map[string]*process{
		"":                           l.process(),
		" with goroutines as owners": l.process(dlock.WithGoroutineOwners()),
	} {
		name := "a" + what
		s := p.Semaphore(name, 4)
		outer := l.permits(s, 1)
		for what, ctx := range map[string]context.Context{
			"a Hold":               outer.Context(),
			"an owner":             l.ctxOf(),
			"an owner in a Hold":   dlock.WithOwner(outer.Context(), dlock.NewOwner()),
			"a Hold in an owner's": dlock.WithOwner(l.ctx, dlock.NewOwner()),
		} {
			first, err := s.Acquire(ctx, 1)
			l.noError(err, "Acquire within the context of "+what)
			second, err := s.Acquire(first.Context(), 2)
			l.noError(err, "Acquire within that")
			l.wantOut(name, 4, "within two acquisitions and the context of "+what)
			_, err = s.Acquire(second.Context(), 1, dlock.Wait(0))
			l.wantError(err, "Acquire of a fifth of four permits, in the context of the others",
				dlock.ErrNotAcquired)
			l.noError(first.Release(ctx), "Release") // Holds may be released in any order
			l.noError(second.Release(l.ctx), "Release")
			l.wantOut(name, 1, "after that")
		}
		// Once a Hold has ended, its context no longer refers to it, and can be used to acquire
		// again.
		after := context.WithoutCancel(outer.Context())
		l.release(outer)
		h, err := s.Acquire(after, 4)
		l.noError(err, "Acquire within the context of a Hold that is over")
		l.release(h)
		// A lock ignores the permits that its caller's context refers to.
		l.noError(s.Do(l.ctx, 1, func(ctx context.Context) error {
			lk := p.Client.Locker("lock" + what)
			return errors.Join(lk.LockContext(ctx), s.Do(ctx, 1, func(context.Context) error {
				return nil
			}), lk.UnlockContext(ctx))
		}), "a lock and permits within permits")
		l.wantOut(name, 0, "in the end")
	}
}

func permitsInTurn(l *lab) {
	p := l.process()
	l.takePermits("a", "other:1", 3, 4, l.longLease())
	s := p.Semaphore("a", 4)
	var mu sync.Mutex
	var order []int
	var calls []*call
	// Every other waiter asks for all permits, so no two waiters can have permits at the same time.
	for i := range 8 {
		n := 4
		if i%2 == 1 {
			n = 1
		}
		calls = append(calls, l.start("waiter "+strconv.Itoa(i), func() error {
			return s.Do(l.ctx, n, func(context.Context) error {
				mu.Lock()
				order = append(order, i)
				mu.Unlock()
				return nil
			})
		}))
		if i == 0 {
			l.eventually("the first waiter asks", func() bool {
				return p.count(which{kind: acquireStep}) > 0
			})
		}
		l.settle()
	}
	for _, c := range calls {
		c.waits() // even the calls for one permit must wait, although one is available
	}
	l.noPermits(s, 1, "while others of the client wait")
	// another client's calls don't wait behind these
	one := l.permits(l.process().Semaphore("a", 4), 1)
	l.release(one)
	l.givePermits("a", "other:1", 3)
	for _, c := range calls {
		c.ok()
	}
	// In real time, two calls started one after the other may queue in the opposite order.
	if l.h.Virtual && !slices.IsSorted(order) || len(order) != len(calls) || order[0] != 0 {
		l.Errorf("the waiters got in in the order %v", order)
	}
	l.eventuallyOut("a", 0)
}

func permitsWait(l *lab) {
	p := l.process()
	l.takePermits("a", "other:1", 2, 3, l.longLease())
	wait := 30 * time.Millisecond
	if !l.h.Virtual {
		wait = 300 * time.Millisecond // time for the store to answer
	}
	s := p.Semaphore("a", 3)
	begin := time.Now()
	_, err := s.Acquire(l.ctx, 2, dlock.Wait(wait))
	l.wantError(err, "Acquire with Wait", dlock.ErrNotAcquired, dlock.ErrHeld)
	l.not(err, "Acquire with Wait", context.DeadlineExceeded)
	l.tookBetween(begin, wait, wait, "Acquire with Wait")

	begin = time.Now()
	err = s.Do(l.ctx, 2, func(context.Context) error {
		return errors.New("fn was called")
	}, dlock.Wait(wait))
	l.wantError(err, "Do with Wait", dlock.ErrNotAcquired)
	l.tookBetween(begin, wait, wait, "Do with Wait")

	before := p.count(which{kind: acquireStep})
	l.noPermits(s, 2, "while one is left")
	if n := p.count(which{kind: acquireStep}) - before; n != 1 {
		l.Errorf("Acquire with Wait(0) asked %d times, want once", n)
	}
	ctx, cancel := context.WithTimeout(l.ctx, wait)
	defer cancel()
	_, err = s.Acquire(ctx, 2, dlock.Wait(time.Hour))
	l.wantError(err, "Acquire whose context ends before its Wait", context.DeadlineExceeded,
		dlock.ErrHeld)
	l.not(err, "Acquire whose context ends before its Wait", dlock.ErrNotAcquired)

	// One permit is left, but the call at the head of the queue asks for two.
	long := l.waitsFor(s, 2)
	l.eventually("it asks", func() bool {
		return p.underWay(which{kind: acquireStep}) > 0 ||
			p.count(which{kind: acquireStep}) > before+1
	})
	long.waits()
	l.noPermits(s, 1, "while another of the client waits for two")
	l.wantOut("a", 2, "after that")
	l.givePermits("a", "other:1", 2)
	long.ok()
	h, err := s.Acquire(l.ctx, 3, dlock.Wait(0))
	l.noError(err, "Acquire with Wait(0) of what is there")
	l.release(h)
}

func permitsHandedOn(l *lab) {
	p := l.process(dlock.WithHandover(time.Hour))
	p.swallow(true)
	s := p.Semaphore("a", 3)
	h, other := l.permits(s, 2), l.permits(s, 1)
	type turn struct {
		call *call
		hold *dlock.Hold
	}
	var turns []*turn
	for i := range 4 {
		next := &turn{}
		next.call = l.start("waiter "+strconv.Itoa(i), func() (err error) {
			next.hold, err = s.Acquire(l.ctx, 2)
			return err
		})
		turns = append(turns, next)
		next.call.waits()
		l.eventually("it waits", func() bool { return p.underWay(which{}) == 0 })
	}
	before := p.count(which{})
	for len(turns) > 0 {
		begin := time.Now()
		l.release(h)
		i := slices.IndexFunc(turns, func(t *turn) bool {
			if l.h.Virtual {
				return true // the first waiter
			}
			return t.call.over()
		})
		if i < 0 {
			l.eventually("one gets in", func() bool {
				i = slices.IndexFunc(turns, func(t *turn) bool { return t.call.over() })
				return i >= 0
			})
		}
		turns[i].call.ok()
		l.took(begin, 0, "handing permits on inside a client")
		h = turns[i].hold
		turns = slices.Delete(turns, i, i+1)
	}
	if n := p.count(which{}) - before; n != 0 && l.h.Virtual {
		// in real time a waiter may poll
		l.Errorf("handing permits on four times sent %v", p.kinds()[before:])
	}
	l.wantOut("a", 3, "after they were handed on")

	// A call for a different number of permits can't take part in the hand-over. It gets its permit
	// from the store.
	one := l.start("a waiter for another number", func() error {
		h, err := s.Acquire(l.ctx, 1)
		if err != nil {
			return err
		}
		return h.Release(l.ctx)
	})
	one.waits()
	l.release(h)
	one.ok()
	l.release(other)
	l.eventuallyOut("a", 0)
}

func permitsHandedOnEnds(l *lab) {
	p, q := l.process(dlock.WithHandover(dlock.DefaultHandover)), l.process()
	s := p.Semaphore("a", 2)
	var stop atomic.Bool
	var turns atomic.Int64
	var calls []*call
	for range 6 {
		calls = append(calls, l.start("a user", func() error {
			for !stop.Load() {
				err := s.Do(l.ctx, 1, func(context.Context) error {
					turns.Add(1)
					time.Sleep(time.Millisecond)
					return nil
				})
				if err != nil {
					return err
				}
			}
			return nil
		}))
	}
	l.eventually("they use them", func() bool { return turns.Load() > 10 })
	for range 3 {
		begin := time.Now()
		got := l.waitsFor(q.Semaphore("a", 2), 1)
		got.ok()
		l.tookBetween(begin, 0, 10*time.Second, "the wait of another client")
	}
	stop.Store(true)
	for _, c := range calls {
		c.ok()
	}
	l.eventuallyOut("a", 0)
}

func permitsWake(l *lab) {
	p, q := l.process(), l.process()
	l.takePermits("a", "other:1", 4, 4, l.longLease())
	var calls []*call
	inside, leave := make(chan struct{}, 4), make(chan struct{})
	for i := range cap(inside) {
		s := []*process{p, q}[i%2].Semaphore("a", 4)
		c := l.start("a waiter", func() error {
			return s.Do(l.ctx, 1, func(context.Context) error {
				inside <- struct{}{}
				<-leave
				return nil
			})
		})
		calls = append(calls, c)
		c.waits()
	}
	begin := time.Now()
	l.givePermits("a", "other:1", 4)
	l.eventually("all are inside at once", func() bool { return len(inside) == cap(inside) })
	if l.hasNotifier() {
		l.tookBetween(begin, 0, 2*dlock.DefaultHandover,
			"letting four in after four were given back")
	}
	l.wantOut("a", 4, "with four inside")
	close(leave)
	for _, c := range calls {
		c.ok()
	}
	l.wantOut("a", 0, "in the end")
	for _, c := range []*process{p, q} {
		l.eventually("the subscription is gone", func() bool { return c.subscriptions("a") == 0 })
	}
}

func permitsLostWakeup(l *lab) {
	lease := l.lease()
	p := l.process(dlock.WithLease(lease))
	l.takePermits("a", "other:1", 1, 2, l.longLease())
	wait := l.waitsFor(p.Semaphore("a", 2), 2)
	l.eventually("it asks", func() bool { return p.count(which{kind: acquireStep}) >= 1 })
	l.settle()
	p.swallow(true)
	begin := time.Now()
	l.givePermits("a", "other:1", 1)
	wait.ok()
	l.tookBetween(begin, 0, lease/3+lease/10, "a wait whose wake-up was lost")
}

func permitsPolled(l *lab) {
	f := newFaults(l.store.Backend())
	f.hideNotify = true
	p := l.processOn(f)
	l.takePermits("a", "other:1", 1, 1, l.longLease())
	wait := l.waitsFor(p.Semaphore("a", 1), 1)
	l.eventually("it polls", func() bool { return p.count(which{kind: acquireStep}) >= 4 })
	l.givePermits("a", "other:1", 1)
	wait.ok()
	l.wantOut("a", 0, "in the end")
}

func permitsThousand(l *lab) {
	p := l.process()
	l.takePermits("a", "other:1", 2, 2, l.longLease())
	const waiters = 1000
	ctx, cancel := context.WithCancel(l.ctx)
	defer cancel()
	s := p.Semaphore("a", 2)
	var calls []*call
	for i := range waiters {
		calls = append(calls, l.start("a waiter", func() error {
			_, err := s.Acquire(ctx, 1+i%2)
			return err
		}))
	}
	l.eventually("they wait", func() bool { return p.count(which{kind: acquireStep}) >= 1 })
	l.settle()
	l.sleep(time.Second)
	polls := 0
	if !l.hasNotifier() {
		polls = 8 // the pauses between polls grow from 10 ms to 1 s
	}
	if n := p.count(which{}); n > 7+polls {
		l.Errorf("1,000 waiters sent %d steps in a second, and nothing was released", n)
	}
	if n := p.count(which{kind: subscribeStep}); n > 1 {
		l.Errorf("1,000 waiters subscribed %d times", n)
	}
	l.givePermits("a", "other:1", 2)
	in := func() (n int) {
		for _, c := range calls {
			if c.over() {
				n++
			}
		}
		return n
	}
	l.eventually("somebody returns", func() bool { return in() > 0 })
	l.settle()
	if n := in(); n > 2 {
		l.Errorf("%d waiters got in", n)
	}
	cancel()
	got := 0
	for _, c := range calls {
		if c.result() == nil {
			got++
		}
	}
	if got > 2 {
		l.Errorf("%d waiters got permits of two", got)
	}
	l.eventually("the subscription is gone", func() bool { return p.subscriptions("a") == 0 })
	l.eventually("pending requests of cancelled calls are taken back", func() bool {
		return l.out("a") <= 2
	})
}

func permitsOfTheDead(l *lab) {
	p := l.process() // its lease plays no part
	for _, deaf := range []bool{true, false} {
		if !deaf && !l.h.Virtual {
			continue // in real time no notification arrives, so both rounds would be the same
		}
		name := strconv.FormatBool(deaf)
		p.swallow(deaf)
		lease := l.shortLease()
		begin := time.Now()
		l.takePermits(name, "dead:1", 2, 3, lease)
		s := p.Semaphore(name, 3)
		one := l.permits(s, 1)
		l.waitsFor(s, 2).ok()
		l.tookBetween(begin, lease*9/10, lease+lease/5+10*time.Millisecond,
			"the wait for permits of the dead")
		l.release(one)
	}
	// Here a client's process dies, so nothing renews its permits.
	p.swallow(false)
	dying := l.process(dlock.WithLease(l.lease()))
	l.permits(dying.Semaphore("a", 3), 1)
	l.permits(dying.Semaphore("a", 3), 2)
	wait := l.waitsFor(p.Semaphore("a", 3), 3)
	wait.waits()
	begin := time.Now()
	dying.dies()
	wait.ok()
	l.tookBetween(begin, 0, l.lease()+l.lease()/3, "the wait for a client that died")
	l.eventuallyOut("a", 0)
}

func permitsRenewed(l *lab) {
	lease := l.brisk()
	p := l.process(dlock.WithLease(lease))
	s := p.Semaphore("a", 6)
	one, two, three := l.permits(s, 1), l.permits(s, 2), l.permits(s, 3)
	owner := p.owner("a")
	l.release(one)
	l.sleep(lease * 5 / 4)
	l.wantOut("a", 5, "after more than a lease")
	l.release(two)
	if l.h.Virtual {
		l.sleep(lease * 5 / 4)
	}
	if isOver(three.Lost()) {
		l.Error("permits were lost after others of the client were given back")
	}
	l.wantOut("a", 3, "after more than a lease, and others were given back")
	l.release(three)
	given := time.Now()
	if l.h.Virtual {
		l.sleep(lease / 2)
	}
	for _, s := range p.steps(which{kind: renewStep, owner: owner}) {
		if s.at.After(given) {
			l.Errorf("renewed %v after the release", s.at.Sub(given))
		}
	}
	l.wantOut("a", 0, "in the end")
}

func permitsFixed(l *lab) {
	p := l.process()
	s := p.Semaphore("a", 3)
	short := l.legal(2 * l.shortLease())
	begin := time.Now()
	one := l.permits(s, 1, dlock.FixedLease(short))
	two := l.permits(s, 2, dlock.FixedLease(l.longLease()))
	l.eventuallyOver("the short one is over", one.Lost())
	l.took(begin, short-short/100, "permits with a fixed lease")
	wait := l.waitsFor(s, 1) // the call might wait, since the store can end the lease a little late
	wait.ok()
	if isOver(two.Lost()) {
		l.Error("permits with a long lease ended with one that had a short one")
	}
	if n := p.count(which{kind: renewStep}); n != 0 {
		l.Errorf("fixed leases were renewed %d times", n)
	}
	l.wantError(one.Release(l.ctx), "Release of what is over", dlock.ErrLost)
	l.eventuallyOut("a", 2)
	l.release(two)
	l.wantOut("a", 0, "in the end")
}

func permitsLost(l *lab) {
	p, q := l.process(dlock.WithLease(l.brisk())), l.process()
	s := p.Semaphore("a", 3)
	one, two := l.permits(s, 1), l.permits(s, 2)
	do := l.start("a waiter", func() error {
		return q.Semaphore("a", 3).Do(l.ctx, 3, func(context.Context) error { return nil })
	})
	do.waits()
	l.vanish("a")
	do.ok()
	for _, h := range []*dlock.Hold{one, two} {
		l.eventuallyOver("the Hold is lost", h.Lost())
		l.eventuallyOver("its context has ended", h.Context().Done())
		if cause := context.Cause(h.Context()); !errors.Is(cause, dlock.ErrLost) {
			l.Errorf("the context of lost permits ended with cause %v", cause)
		}
	}
	next := l.permits(q.Semaphore("a", 3), 3)
	for _, h := range []*dlock.Hold{one, two} {
		l.wantError(h.Release(l.ctx), "Release of what was lost", dlock.ErrLost)
		l.wantError(h.Release(l.ctx), "the second Release", dlock.ErrNotHeld)
	}
	l.settle()
	l.wantOut("a", 3, "after the Release of lost permits")
	l.release(next)
	err := s.Do(l.ctx, 2, func(ctx context.Context) error {
		l.vanish("a")
		l.eventuallyOver("the context ends", ctx.Done())
		return nil
	})
	l.wantError(err, "Do, lost", dlock.ErrLost)
	l.release(l.permits(s, 3))
}

func permitsNotRenewed(l *lab) {
	lease := l.lease()
	p, q := l.process(dlock.WithLease(lease)), l.process()
	var holds []*dlock.Hold
	begin := time.Now()
	for name, what := range map[string]fault{
		"request lost": requestLost,
		"not sent":     notSent,
		"hangs":        hangsPolitely,
	} {
		p.on(which{kind: renewStep, name: name}, what)
		holds = append(holds, l.permits(p.Semaphore(name, 3), 2))
	}
	for _, h := range holds {
		l.eventuallyOver("the permits are lost, "+h.Name(), h.Lost())
		l.took(begin, lease-lease/100, "losing the permits, "+h.Name())
	}
	for _, h := range holds {
		next := l.permits(q.Semaphore(h.Name(), 3), 3)
		l.wantError(h.Release(l.ctx), "Release, "+h.Name(), dlock.ErrLost)
		l.settle()
		l.wantOut(h.Name(), 3, "after the late release")
		l.release(next)
	}
}

func permitsWithoutAnswer(l *lab) {
	p, q := l.process(dlock.WithLease(l.longLease())), l.process()
	for what, f := range map[string]fault{
		"reply lost":   replyLost,
		"request lost": requestLost,
		"not sent":     notSent,
	} {
		s := p.Semaphore(what, 5)
		p.next(2, which{kind: acquireStep, name: what}, f)
		h := l.permits(s, 2)
		l.wantOut(what, 2, "after an acquisition that was tried again, "+what)
		l.noPermits(q.Semaphore(what, 5), 4, "while three are left, "+what)
		p.next(2, which{kind: releaseStep, name: what}, f)
		l.release(h)
		l.wantOut(what, 0, "after a release that was tried again, "+what)
		l.wantError(h.Release(l.ctx), "the second Release", dlock.ErrNotHeld)

		// With Wait(0), Acquire makes a single attempt.
		p.next(1, which{kind: acquireStep, name: what}, f)
		_, err := s.Acquire(l.ctx, 3, dlock.Wait(0))
		l.wantError(err, "Acquire with Wait(0), "+what, errFault)
		l.eventuallyOut(what, 0)

		// If a release fails, the client repeats it in the background. The repeated release must
		// not affect another party's permits.
		h = l.permits(s, 2)
		r := p.on(which{kind: releaseStep, name: what}, f)
		ctx, cancel := context.WithTimeout(l.ctx, 20*time.Millisecond)
		l.wantError(h.Release(ctx), "Release while the store fails")
		cancel()
		next := l.permits(q.Semaphore(what, 5), 3)
		l.wantError(h.Release(l.ctx), "the second Release", dlock.ErrNotHeld)
		r.off()
		l.eventuallyOut(what, 3)
		l.release(next)
		l.available(s, 5, "in the end, "+what)
	}
	r := p.on(which{kind: lookStep}, requestLost)
	_, err := p.Semaphore("a", 1).Available(l.ctx)
	l.wantError(err, "Available without an answer", errFault, dlock.ErrUnavailable)
	r.off()
}

func permitsLate(l *lab) {
	p := l.process(dlock.WithLease(l.longLease()))
	p.plain = true
	leave := map[string]func(s *dlock.Semaphore, r *rule) error{
		"Wait(0)": func(s *dlock.Semaphore, _ *rule) error {
			_, err := s.Acquire(l.ctx, 2, dlock.Wait(0))
			return err
		},
		"cancelled": func(s *dlock.Semaphore, r *rule) error {
			ctx, cancel := context.WithCancel(l.ctx)
			defer cancel()
			c := l.start("Acquire", func() error { _, err := s.Acquire(ctx, 2); return err })
			l.eventually("it has asked", func() bool { return r.hits() > 0 })
			cancel()
			return c.result()
		},
		"its Wait over": func(s *dlock.Semaphore, _ *rule) error {
			_, err := s.Acquire(l.ctx, 2, dlock.Wait(20*time.Millisecond))
			return err
		},
	}
	for name, way := range leave {
		open := make(chan struct{})
		r := p.on(which{kind: acquireStep, name: name}, late(open))
		err := way(p.Semaphore(name, 3), r)
		r.off()
		if err == nil {
			l.Fatalf("%s without an answer: no error", name)
		}
		// The late acquisition arrives after the client has asked the store to take it back.
		l.eventually("it is taken back", func() bool {
			return p.count(which{kind: releaseStep, name: name}) >= 2
		})
		close(open)
		l.eventually("the acquisition is carried out, late", func() bool {
			return p.steps(which{kind: acquireStep, name: name})[0].carriedOut
		})
		l.eventuallyOut(name, 0)
		l.release(l.permits(p.Semaphore(name, 3), 3))
	}
	// A release that is carried out late must not release the permits that another owner has by
	// then.
	s := p.Semaphore("a", 2)
	open := make(chan struct{})
	h := l.permits(s, 2)
	before := p.count(which{kind: releaseStep, name: "a"})
	p.next(1, which{kind: releaseStep, name: "a"}, late(open))
	l.release(h)
	next := l.permits(s, 2)
	close(open)
	l.eventually("the late release is carried out", func() bool {
		return p.steps(which{kind: releaseStep, name: "a"})[before].carriedOut
	})
	l.wantOut("a", 2, "after a late release by their former holder")
	l.release(next)
}

func permitsTwice(l *lab) {
	p := l.process(dlock.WithHandover(time.Hour), dlock.WithLease(l.longLease()))
	s := p.Semaphore("a", 4)
	h := l.permits(s, 2)
	l.takePermits("a", "other:1", 2, 4, l.longLease())
	// The next waiter's first attempt succeeds, but the answer comes only after the waiter has been
	// handed permits.
	open := make(chan struct{})
	r := p.next(1, which{kind: acquireStep, name: "a"}, hangs(open))
	got := make(chan *dlock.Hold, 2)
	acquire := func() error {
		h, err := s.Acquire(l.ctx, 2)
		got <- h
		return err
	}
	first := l.start("the first waiter", acquire)
	l.eventually("it asks", func() bool { return r.hits() == 1 })
	l.release(h)
	l.givePermits("a", "other:1", 2)
	second := l.start("the second waiter", acquire)
	l.settle()
	close(open)
	first.ok()
	second.ok()
	l.eventuallyOut("a", 4)
	l.release(<-got)
	l.release(<-got)
	l.eventuallyOut("a", 0)

	// The same happens here, but no other call is waiting.
	h = l.permits(s, 2)
	l.takePermits("a", "other:1", 2, 4, l.longLease())
	open = make(chan struct{})
	r = p.next(1, which{kind: acquireStep, name: "a"}, hangs(open))
	first = l.start("a waiter", acquire)
	l.eventually("it asks", func() bool { return r.hits() == 1 })
	l.release(h)
	l.givePermits("a", "other:1", 2)
	close(open)
	first.ok()
	l.eventually("what it asked for is answered", func() bool {
		return p.underWay(which{kind: acquireStep}) == 0
	})
	l.eventuallyOut("a", 2)
	l.release(<-got)
	l.eventuallyOut("a", 0)
}

func permitsGivenUp(l *lab) {
	p := l.process()
	l.takePermits("a", "other:1", 2, 3, l.longLease())
	s := p.Semaphore("a", 3)
	// A waiter that asks for two permits gives up. One permit is available, so the next waiter,
	// which asks for one, must get it without a release.
	ctx, cancel := context.WithCancel(l.ctx)
	defer cancel()
	large := l.start("a waiter for two", func() error { _, err := s.Acquire(ctx, 2); return err })
	asked := 1
	if l.hasNotifier() {
		asked = 2 // it asks again after it has subscribed
	}
	l.eventually("it waits, and knows why", func() bool {
		return p.count(which{kind: acquireStep}) >= asked && p.underWay(which{}) == 0
	})
	large.waits()
	small := l.waitsFor(s, 1)
	small.waits()
	begin := time.Now()
	cancel()
	l.wantError(large.result(), "the waiter for two", context.Canceled, dlock.ErrHeld)
	small.ok()
	l.took(begin, 0, "getting in after a waiter for more has left")
	l.givePermits("a", "other:1", 2)
	l.wantOut("a", 0, "after that")

	// Here the call gives up while its attempt is under way.
	open := make(chan struct{})
	r := p.next(1, which{kind: acquireStep}, hangs(open))
	ctx, cancel = context.WithCancel(l.ctx)
	defer cancel()
	first := l.start("a waiter", func() error { _, err := s.Acquire(ctx, 3); return err })
	l.eventually("it asks", func() bool { return r.hits() == 1 })
	next := l.waitsFor(s, 3)
	cancel()
	l.wantError(first.result(), "the waiter", context.Canceled)
	next.ok()
	close(open)
	l.eventuallyOut("a", 0)
	l.eventually("the subscription is gone", func() bool { return p.subscriptions("a") == 0 })
}

func permitsClose(l *lab) {
	p := l.process()
	s := p.Semaphore("a", 3)
	one, two := l.permits(s, 1), l.permits(s, 2)
	calls := []*call{l.waitsFor(s, 1), l.waitsFor(s, 3), l.waitsFor(p.Semaphore("a", 0), 1)}
	for _, c := range calls {
		c.waits()
	}
	lost := one.Lost()
	l.noError(p.Client.Close(), "Close")
	for _, c := range calls {
		l.wantError(c.result(), c.what+", when the client is closed", dlock.ErrClosed)
	}
	for _, h := range []*dlock.Hold{one, two} {
		l.eventuallyOver("the context has ended", h.Context().Done())
		if cause := context.Cause(h.Context()); !errors.Is(cause, dlock.ErrClosed) {
			l.Errorf("the context of permits ended with cause %v when the client was closed", cause)
		}
	}
	if !isOver(lost) || !isOver(two.Lost()) {
		l.Error("Lost is open after Close")
	}
	l.wantOut("a", 3, "after Close")
	l.release(one)
	l.wantOut("a", 2, "after a Release after Close")
	l.release(two)
	l.wantOut("a", 0, "after both")
	sent := p.count(which{})
	_, err := s.Acquire(l.ctx, 1)
	l.wantError(err, "Acquire after Close", dlock.ErrClosed)
	_, err = s.Available(l.ctx)
	l.wantError(err, "Available after Close", dlock.ErrClosed)
	l.wantError(s.Do(l.ctx, 1, func(context.Context) error { return errors.New("fn was called") }),
		"Do after Close", dlock.ErrClosed)
	if n := p.count(which{}); n != sent {
		l.Errorf("after Close %v was sent", p.kinds()[sent:])
	}
}

func permitsConflict(l *lab) {
	p, q := l.process(), l.process()
	second := func(_ any, err error) error { return err }
	refuses := func(s *dlock.Semaphore, where string) {
		l.Helper()
		for what, err := range map[string]error{
			"Acquire":              second(s.Acquire(l.ctx, 1)),
			"Acquire with Wait":    second(s.Acquire(l.ctx, 1, dlock.Wait(time.Hour))),
			"Acquire with Wait(0)": second(s.Acquire(l.ctx, 1, dlock.Wait(0))),
			"Do": s.Do(l.ctx, 1, func(context.Context) error {
				return errors.New("fn was called")
			}),
			"Available": second(s.Available(l.ctx)),
		} {
			l.wantError(err, what+" of permits where there is "+where, dlock.ErrConflict)
		}
	}
	kinds := []backend.Kind{backend.Exclusive}
	for _, k := range []backend.Kind{backend.Fenced, backend.Fair, backend.Read, backend.Write} {
		if l.limits().Kinds.Has(k) {
			kinds = append(kinds, k)
		}
	}
	for _, k := range kinds {
		mine, name := p.as(k).Locker(k.String()), k.String()
		l.lock(mine)
		for _, c := range []*process{p, q} {
			refuses(c.Semaphore(name, 3), "a "+name+" lock")
		}
		if held, err := mine.IsHeld(l.ctx); err != nil || !held {
			l.Fatalf("a %v lock was harmed: %v, %v", k, held, err)
		}
		l.unlock(mine)

		name = "permits, " + name
		h := l.permits(p.Semaphore(name, 3), 2)
		for _, c := range []*process{p, q} {
			lk := c.as(k).Locker(name)
			for what, err := range map[string]error{
				"LockContext": lk.LockContext(l.ctx),
				"TryLock":     second(lk.TryLock(l.ctx)),
				"Acquire":     second(lk.Acquire(l.ctx)),
				"within":      second(lk.Acquire(h.Context())),
				"ForceUnlock": second(lk.ForceUnlock(l.ctx)),
				"IsLocked":    second(lk.IsLocked(l.ctx)),
				"TTL":         second(lk.TTL(l.ctx)),
			} {
				l.wantError(err, what+" of a "+k.String()+" lock where there are permits",
					dlock.ErrConflict)
			}
		}
		l.wantOut(name, 2, "after another kind was asked for")
		if isOver(h.Lost()) {
			l.Fatal("permits were harmed")
		}
		l.release(h)
	}
	if l.store.PutForeign != nil {
		l.store.PutForeign("foreign")
		refuses(p.Semaphore("foreign", 3), "no lock")
		if l.store.ForeignIntact != nil && !l.store.ForeignIntact("foreign") {
			l.Error("what was stored under the name has been changed")
		}
	}
}

func permitsCrowd(l *lab) {
	const users, rounds, limit = 8, 6, 5
	clients := []*process{l.process(), l.process(), l.process()}
	var inside, visits atomic.Int64
	var calls []*call
	for c, p := range clients {
		p.plain = true
		shared := p.Semaphore("a", limit)
		for u := range users {
			patient := u%4 == 3
			calls = append(calls, l.start(fmt.Sprintf("client %d, user %d", c, u), func() error {
				s := shared
				if u%2 == 0 {
					s = p.Semaphore("a", limit)
				}
				for range rounds {
					ctx, cancel := context.WithCancel(l.ctx)
					if !patient {
						cancel()
						ctx, cancel = context.WithTimeout(l.ctx, rand.N(20*time.Millisecond))
					}
					n := 1 + rand.IntN(3)
					h, err := s.Acquire(ctx, n)
					cancel()
					if err != nil {
						if patient || !errors.Is(err, context.DeadlineExceeded) {
							return err
						}
						continue
					}
					visits.Add(1)
					now := inside.Add(int64(n))
					time.Sleep(rand.N(2 * time.Millisecond))
					inside.Add(-int64(n))
					if err := h.Release(l.ctx); err != nil {
						return err
					}
					if now > limit {
						return fmt.Errorf("%d permits of %d are held at once", now, limit)
					}
				}
				return nil
			}))
		}
	}
	for _, c := range calls {
		c.ok()
	}
	if n := visits.Load(); n < int64(len(clients)*users/4*rounds) {
		l.Errorf("%d visits", n)
	}
	l.eventuallyOut("a", 0)
	l.available(clients[0].Semaphore("a", limit), limit, "in the end")
	for _, p := range clients {
		l.eventually("the subscription is gone", func() bool { return p.subscriptions("a") == 0 })
	}
}
