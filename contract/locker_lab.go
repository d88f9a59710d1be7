package contract

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing/synctest"
	"time"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/dlock"
)

// A lab is the environment of a case for a Locker. It is an env with another session, which acts as
// another process. The case uses that session to look at the store and to change it.
type lab struct {
	*env
	other backend.Session
}

// locker returns a case that runs a function with a new lab.
func locker(run func(*lab)) func(*env) {
	return func(e *env) { run(&lab{e, e.session()}) }
}

// A process is a client that uses the store through a faultyBackend.
type process struct {
	*dlock.Client
	*faultyBackend
	kind backend.Kind
}

// Locker returns a Locker for the kind of lock that the case tests.
func (p *process) Locker(name string) *dlock.Locker { return lockerOf(p.Client, p.kind, name) }

func lockerOf(c *dlock.Client, k backend.Kind, name string) *dlock.Locker {
	switch k {
	case backend.Fenced:
		return c.FencedLocker(name)
	case backend.Fair:
		return c.FairLocker(name)
	case backend.Write:
		return c.RWLocker(name).Writer()
	case backend.Read:
		return c.RWLocker(name).Reader()
	default:
		return c.Locker(name)
	}
}

// process returns a client, which is closed when the case ends. In real time its lease doesn't
// expire during the case.
func (l *lab) process(opts ...dlock.Option) *process {
	l.Helper()
	return l.processOn(newFaults(l.store.Backend()), opts...)
}

func (l *lab) processOn(f *faultyBackend, opts ...dlock.Option) *process {
	l.Helper()
	told := newLedger()
	own := []dlock.Option{
		dlock.WithLease(l.calm()), dlock.WithLogger(slog.New(slog.DiscardHandler)),
	}
	if !l.h.untraced {
		own = append(own, told.trace())
	}
	opts = slices.Concat(own, l.h.clientOptions, opts)
	p := &process{dlock.New(f, opts...), f, l.kind}
	l.clients = append(l.clients, f)
	l.Cleanup(func() {
		f.end()
		if err := p.Client.Close(); err != nil {
			l.Errorf("Client.Close: %v", err)
		}
		f.late.Wait()
		for _, b := range f.broken() {
			l.Errorf("the client broke the contract: %s", b)
		}
		for _, w := range told.settles() {
			l.Errorf("what the client tells doesn't add up: %s", w)
		}
	})
	return p
}

// calm returns a lease for cases that don't depend on leases.
func (l *lab) calm() time.Duration {
	if l.h.Virtual {
		return l.lease()
	}
	return l.longLease()
}

// brisk returns the lease for cases in which leases are renewed. In real time it is longer than the
// result of [env.lease], because renewals can be slow on a busy machine.
func (l *lab) brisk() time.Duration {
	if l.h.Virtual {
		return l.lease()
	}
	return l.legal(2500 * time.Millisecond)
}

// settle waits until other goroutines have done their work. In a bubble the wait is exact. In real
// time it is a guess, so a case must not fail because the wait was too short.
func (l *lab) settle() {
	if l.h.Virtual {
		synctest.Wait()
		return
	}
	time.Sleep(20 * time.Millisecond)
}

// A call is a function call in its own goroutine.
type call struct {
	lab  *lab
	what string
	done chan struct{}
	err  error
}

// start calls f in another goroutine, so f must not use the testing.T. The error of f is returned
// by [call.result].
func (l *lab) start(what string, f func() error) *call {
	c := &call{lab: l, what: what, done: make(chan struct{})}
	go func() {
		defer close(c.done)
		defer func() {
			if p := recover(); p != nil {
				c.err = fmt.Errorf("panic: %v", p)
			}
		}()
		c.err = f()
	}()
	return c
}

// over reports whether the call has returned.
func (c *call) over() bool {
	select {
	case <-c.done:
		return true
	default:
		return false
	}
}

// result waits for the call and returns its error.
func (c *call) result() error {
	c.lab.Helper()
	c.lab.eventuallyOver(c.what+" returns", c.done)
	return c.err
}

// ok waits for the call, and fails the test if the call returns an error.
func (c *call) ok() {
	c.lab.Helper()
	c.lab.noError(c.result(), c.what)
}

// waits fails the test if the call has already returned.
func (c *call) waits() {
	c.lab.Helper()
	c.lab.settle()
	if c.over() {
		c.lab.Fatalf("%s: is over (error %v), and should wait", c.what, c.err)
	}
}

// noError fails the test on an error.
func (l *lab) noError(err error, what string) {
	l.Helper()
	if err != nil {
		l.Fatalf("%s: %v", what, err)
	}
}

// wantError fails the test if err isn't an *Error that wraps each of the targets.
func (l *lab) wantError(err error, what string, targets ...error) {
	l.Helper()
	if _, ok := errors.AsType[*dlock.Error](err); !ok {
		l.Fatalf("%s: got %v, want a *dlock.Error", what, err)
	}
	for _, target := range targets {
		if !errors.Is(err, target) {
			l.Fatalf("%s: got %q, want one that is %q", what, err, target)
		}
	}
}

// not is the opposite of wantError: it fails the test if err wraps the target.
func (l *lab) not(err error, what string, target error) {
	l.Helper()
	if errors.Is(err, target) {
		l.Fatalf("%s: got %q, which should not be %q", what, err, target)
	}
}

// tryLock calls TryLock, and fails the test on an error.
func (l *lab) tryLock(lk *dlock.Locker, opts ...dlock.AcquireOption) bool {
	l.Helper()
	ok, err := lk.TryLock(l.ctx, opts...)
	l.noError(err, "TryLock")
	return ok
}

// lock calls LockContext, and unlock calls UnlockContext. They fail the test on an error.
func (l *lab) lock(lk *dlock.Locker, opts ...dlock.AcquireOption) {
	l.Helper()
	l.noError(lk.LockContext(l.ctx, opts...), "LockContext")
}

func (l *lab) unlock(lk *dlock.Locker) {
	l.Helper()
	l.noError(lk.UnlockContext(l.ctx), "UnlockContext")
}

// pass locks and unlocks lk, like code that knows only sync.Locker.
func pass(lk sync.Locker) {
	lk.Lock()
	defer lk.Unlock()
}

// wantPanic fails the test if f doesn't panic, and returns the panic value.
func (l *lab) wantPanic(what string, f func()) (value any) {
	l.Helper()
	defer func() {
		if value = recover(); value == nil {
			l.Fatalf("%s: didn't panic", what)
		}
	}()
	f()
	return nil
}

// wantPanicError is like wantPanic, for a panic with an *Error that wraps the target.
func (l *lab) wantPanicError(what string, target error, f func()) {
	l.Helper()
	err, _ := l.wantPanic(what, f).(error)
	l.wantError(err, what+" panicked", target)
}

// look asks the store about a lock.
func (l *lab) look(name, owner string) backend.LookResult {
	l.Helper()
	req := backend.LookRequest{Kind: l.kind, Name: name, Owner: owner}
	res, err := l.other.Look(l.ctx, req)
	l.noError(err, "Look")
	if owner == "" || !l.store.OwnersApart {
		return res
	}
	// with OwnersApart, only the owner's own session can see the hold
	for _, f := range l.clients {
		if own, err := f.opened.Look(l.ctx, req); err == nil && own.Count > 0 {
			return own
		}
	}
	return res
}

// wantFree fails the test if the lock isn't free in the store now.
func (l *lab) wantFree(name, when string) {
	l.Helper()
	if l.kind == backend.Fair {
		// A late KeepPlaces can put a waiter back in line although it already holds the lock. The
		// client removes it from the line at once.
		if !l.h.Virtual {
			l.eventuallyFree(name)
			return
		}
		l.settle()
	}
	if res := l.look(name, ""); res.Held {
		l.Fatalf("%s: the store still holds %q, for %v", when, name, res.Remaining)
	}
}

// wantHeld fails the test if the lock is free in the store.
func (l *lab) wantHeld(name, when string) {
	l.Helper()
	if !l.look(name, "").Held {
		l.Fatalf("%s: %q is free in the store", when, name)
	}
}

// eventuallyFree waits until the lock is free in the store.
func (l *lab) eventuallyFree(name string) {
	l.Helper()
	l.eventually(name+" is free in the store", func() bool { return !l.look(name, "").Held })
}

// vanish deletes a lock from the store, as a failover or an operator might.
func (l *lab) vanish(name string) {
	l.Helper()
	res, err := l.other.ForceRelease(l.ctx, backend.ForceReleaseRequest{Kind: l.kind, Name: name})
	l.noError(err, "ForceRelease")
	if !res.Released {
		l.Fatalf("%q is free, and should be held", name)
	}
}

// keeper returns the kind of lock that another process takes to exclude the kind under test.
func (l *lab) keeper() backend.Kind {
	if l.kind == backend.Read {
		return backend.Write
	}
	return l.kind
}

// take acquires the lock for another process, with a lease that doesn't expire during the case.
func (l *lab) take(name, owner string) {
	l.Helper()
	res, err := l.other.Acquire(l.ctx, backend.AcquireRequest{
		Kind: l.keeper(), Name: name, Owner: owner, Lease: l.longLease(),
	})
	l.noError(err, "Acquire")
	if !res.Acquired {
		l.Fatalf("another process can't acquire %q: %+v", name, res)
	}
}

// give releases the lock that take acquired for another process. It returns the error, instead of
// failing the test, because a fault might call it in another goroutine.
func (l *lab) give(name, owner string) error {
	res, err := l.other.Release(context.WithoutCancel(l.ctx), backend.ReleaseRequest{
		Kind: l.keeper(), Name: name, Owner: owner, Lease: l.longLease(),
	})
	if err == nil && res.Outcome != backend.Freed {
		err = fmt.Errorf("another process released %q: %v", name, res.Outcome)
	}
	return err
}

// isOver reports whether a channel is closed.
func isOver(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// eventuallyOver waits until a channel is closed.
func (l *lab) eventuallyOver(what string, c <-chan struct{}) {
	l.Helper()
	limit := 30 * time.Second
	if l.h.Virtual {
		limit = time.Hour
	}
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-c:
	case <-timer.C:
		l.Fatalf("after %v still not: %s", limit, what)
	}
}

// took fails the test unless exactly the given time has passed since begin. In real time it checks
// nothing.
func (l *lab) took(begin time.Time, want time.Duration, what string) {
	l.Helper()
	if got := time.Since(begin); l.h.Virtual && got != want {
		l.Errorf("%s: took %v, want %v", what, got, want)
	}
}

// tookBetween fails the test unless the time since begin is within the given bounds. It is for
// waits with jitter. In real time it checks only the lower bound.
func (l *lab) tookBetween(begin time.Time, from, to time.Duration, what string) {
	l.Helper()
	got := time.Since(begin)
	if got < from || l.h.Virtual && got > to {
		l.Errorf("%s: took %v, want %v to %v", what, got, from, to)
	}
}

// A presence detects two holders at once.
type presence struct {
	mu     sync.Mutex
	inside string
	clash  error
	visits int
}

// enter records that a holder of the lock has begun its work. leave records that it has finished.
func (p *presence) enter(who string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.inside != "" && p.clash == nil {
		p.clash = fmt.Errorf("%s got in while %s is inside", who, p.inside)
	}
	p.inside = who
	p.visits++
}

func (p *presence) leave() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.inside = ""
}

// check returns an error if two holders were inside at once.
func (p *presence) check() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.clash
}

// beliefs records the periods during which each holder could rely on the lock.
type beliefs struct {
	mu    sync.Mutex
	begin time.Time
	spans []span
}

type span struct {
	who      string
	from, to time.Duration // at both moments the hold was valid
}

// hold does the work of a holder. The function valid reports whether the holder may still rely on
// the lock.
func (b *beliefs) hold(who string, valid func() bool, work func()) {
	now := func() time.Duration { return time.Since(b.begin) }
	s := span{who: who, from: now()}
	if !valid() {
		return
	}
	s.to = s.from
	work()
	// the time is read before valid is called, so the hold was still valid at that time
	if at := now(); valid() {
		s.to = at
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.spans = append(b.spans, s)
}

// check returns an error if two holders relied on the lock at once.
func (b *beliefs) check() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	spans := slices.SortedFunc(slices.Values(b.spans), func(x, y span) int {
		return cmp.Compare(x.from, y.from)
	})
	var last span
	for i, s := range spans {
		if i > 0 && s.from < last.to {
			return fmt.Errorf("two believed that they had the lock: %+v and %+v", last, s)
		}
		if i == 0 || s.to > last.to {
			last = s
		}
	}
	return nil
}
