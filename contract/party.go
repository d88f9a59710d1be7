package contract

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/seed951563bd/distsync/backend"
)

// A party is an owner that uses one session, for one kind of lock. Its methods fail the test if a
// step returns an error, or a result other than the one that the method's name promises. They call
// Fatalf, so only the goroutine of the test may call them, unless a method's comment says
// otherwise.
type party struct {
	e     *env
	s     backend.Session
	owner string
	kind  backend.Kind

	permits, limit int // for Permits: how many it asks for, and the semaphore's limit
}

// party returns an owner with its own session.
func (e *env) party(owner string) party { return e.at(e.session(), owner) }

// beside returns another owner for p's kind of lock, with its own session. If the store has
// OwnersApart set, the owner shares p's session instead, because one session must then know the
// holds of both owners.
func (e *env) beside(p party, owner string) party {
	if e.store.OwnersApart {
		return e.at(p.s, owner).as(p.kind)
	}
	return e.party(owner).as(p.kind)
}

// at returns an owner on a session.
func (e *env) at(s backend.Session, owner string) party {
	return party{e: e, s: s, owner: owner}.as(e.kind)
}

// as returns a copy of p for the given kind of lock. A party for Permits asks for the only permit
// of a semaphore.
func (p party) as(k backend.Kind) party {
	p.kind, p.permits, p.limit = k, 0, 0
	if k == backend.Permits {
		p.permits, p.limit = 1, 1
	}
	return p
}

// of returns a copy of p whose requests ask for the given number of permits of a semaphore with the
// given limit. A zero leaves that field of the requests unset.
func (p party) of(permits, limit int) party {
	p.kind, p.permits, p.limit = backend.Permits, permits, limit
	return p
}

// request returns the party's request to acquire a lock.
func (p party) request(name string, lease time.Duration) backend.AcquireRequest {
	return backend.AcquireRequest{
		Kind: p.kind, Name: name, Owner: p.owner, Lease: lease, Permits: p.permits, Limit: p.limit,
	}
}

func (p party) String() string { return fmt.Sprintf("owner %.40q", p.owner) }

// acquires acquires a free lock, or adds a hold if the owner already holds the lock.
func (p party) acquires(name string, lease time.Duration) backend.AcquireResult {
	p.e.Helper()
	req := p.request(name, lease)
	// for a Fair lock, Acquire adds a hold only if the request says that it is a re-entry
	req.Reentry = p.kind == backend.Fair
	res, err := p.s.Acquire(p.e.ctx, req)
	if err != nil {
		p.e.Fatalf("Acquire(%.40q) by %v: %v", name, p, err)
	}
	if !res.Acquired {
		p.e.Fatalf("Acquire(%.40q) by %v: not acquired, lasts %v; want acquired", name, p,
			res.Remaining)
	}
	return res
}

// reenters acquires a lock that the owner already holds. It fails the test unless the owner then
// has count holds.
func (p party) reenters(name string, lease time.Duration, count int) backend.AcquireResult {
	p.e.Helper()
	req := p.request(name, lease)
	req.Reentry = true
	res, err := p.s.Acquire(p.e.ctx, req)
	if err != nil {
		p.e.Fatalf("Acquire(%.40q) by %v, a re-entry: %v", name, p, err)
	}
	if !res.Acquired || res.Count != count {
		p.e.Fatalf("Acquire(%.40q) by %v, a re-entry: acquired %v, count %d; want acquired, "+
			"count %d",
			name, p, res.Acquired, res.Count, count)
	}
	return res
}

// refused tries to acquire a lock that another owner holds. It fails the test if that succeeds.
func (p party) refused(name string, lease time.Duration) backend.AcquireResult {
	p.e.Helper()
	var res backend.AcquireResult
	for _, reentry := range []bool{false, true} {
		var err error
		req := p.request(name, lease)
		req.Reentry = reentry
		res, err = p.s.Acquire(p.e.ctx, req)
		if err != nil {
			p.e.Fatalf("Acquire(%.40q) by %v: %v", name, p, err)
		}
		if res.Acquired {
			p.e.Fatalf("Acquire(%.40q) by %v: acquired; want refused, since another holds it", name,
				p)
		}
	}
	return res
}

// releases releases one hold, and fails the test unless the outcome is want.
func (p party) releases(name string, lease time.Duration, want backend.ReleaseOutcome) {
	p.e.Helper()
	res, err := p.s.Release(p.e.ctx, backend.ReleaseRequest{
		Kind: p.kind, Name: name, Owner: p.owner, Lease: lease, Permits: p.permits,
	})
	if err != nil {
		p.e.Fatalf("Release(%.40q) by %v: %v", name, p, err)
	}
	if res.Outcome != want {
		p.e.Fatalf("Release(%.40q) by %v: %v; want %v", name, p, res.Outcome, want)
	}
}

// renew renews the owner's hold, and reports whether there was one.
func (p party) renew(name string, lease time.Duration) bool {
	p.e.Helper()
	res, err := p.s.Renew(p.e.ctx, backend.RenewRequest{
		Kind: p.kind, Name: name, Owner: p.owner, Lease: lease, Permits: p.permits,
	})
	if err != nil {
		p.e.Fatalf("Renew(%.40q) by %v: %v", name, p, err)
	}
	return res.Held
}

// renews renews the owner's hold, and fails the test unless renew returns want.
func (p party) renews(name string, lease time.Duration, want bool) {
	p.e.Helper()
	if held := p.renew(name, lease); held != want {
		p.e.Fatalf("Renew(%.40q) by %v: held %v; want %v", name, p, held, want)
	}
}

// forces calls ForceRelease for a lock, and fails the test unless the call reports want.
func (p party) forces(name string, want bool) {
	p.e.Helper()
	res, err := p.s.ForceRelease(p.e.ctx, backend.ForceReleaseRequest{Kind: p.kind, Name: name})
	if err != nil {
		p.e.Fatalf("ForceRelease(%.40q): %v", name, err)
	}
	if res.Released != want {
		p.e.Fatalf("ForceRelease(%.40q): released %v; want %v", name, res.Released, want)
	}
}

// look returns the store's report on a lock. To check how many permits are available, use
// [party.available].
func (p party) look(name string) backend.LookResult {
	p.e.Helper()
	res := p.lookAll(name)
	res.Available = 0
	return res
}

func (p party) lookAll(name string) backend.LookResult {
	p.e.Helper()
	res, err := p.s.Look(p.e.ctx, backend.LookRequest{
		Kind: p.kind, Name: name, Owner: p.owner, Permits: p.permits, Limit: p.limit,
	})
	if err != nil {
		p.e.Fatalf("Look(%.40q) by %v: %v", name, p, err)
	}
	return res
}

// has checks that the lock is held, and that the party has the given number of holds. If that is 0,
// another party must hold the lock.
func (p party) has(name string, count int) {
	p.e.Helper()
	if res := p.look(name); !res.Held || res.Count != count {
		p.e.Fatalf("Look(%.40q) by %v: held %v, count %d; want held, count %d", name, p, res.Held,
			res.Count, count)
	}
}

// seesFree checks that the lock is free.
func (p party) seesFree(name string) {
	p.e.Helper()
	if res := p.look(name); res != (backend.LookResult{}) {
		p.e.Fatalf("Look(%.40q) by %v: %+v; want a free lock, which is the zero value", name, p,
			res)
	}
}

// awaitFree waits for a lock's lease to expire.
func (p party) awaitFree(name string) {
	p.e.Helper()
	p.e.eventually(fmt.Sprintf("lock %.40q free", name), func() bool { return !p.look(name).Held })
	p.seesFree(name)
}

// lasts checks that the lock's remaining time fits the given lease. The parameter since is the
// earliest time at which the lease can have begun.
func (p party) lasts(name string, lease time.Duration, since time.Time) {
	p.e.Helper()
	p.e.checkRemaining(fmt.Sprintf("Look(%.40q) by %v", name, p), p.look(name).Remaining, lease,
		since)
}

// checkRemaining checks the remaining time that a step reported for a lease. The parameter since is
// the earliest time at which the lease can have begun. The remaining time must be at most the
// lease, and at least the lease minus the time that has passed since then. If time isn't virtual,
// it may be shorter by another 100 ms, because a server can be interrupted after it has read its
// clock.
func (e *env) checkRemaining(step string, remaining, lease time.Duration, since time.Time) {
	e.Helper()
	unit := e.leaseStep()
	atMost, atLeast := lease+unit, lease-time.Since(since)-2*unit
	if !e.h.Virtual {
		atLeast -= 100 * time.Millisecond
	}
	if remaining < atLeast || remaining > atMost {
		e.Fatalf("%s: Remaining %v; want %v to %v, of a lease of %v", step, remaining, atLeast,
			atMost, lease)
	}
}

// A term is the lease of a hold and the time at which it began. Together they say when the hold
// ends.
type term struct {
	lease time.Duration
	since time.Time
}

// after returns the term that follows x when a step gives the hold another lease. A Read or Write
// keeps the longer of the two leases. Other kinds take the new one.
func (x term) after(k backend.Kind, lease time.Duration, since time.Time) term {
	if lengthens(k) && x.lease > lease {
		return x
	}
	return term{lease, since}
}

// lengthens reports whether a step can only lengthen the lease of a hold of this kind, not shorten
// it.
func lengthens(k backend.Kind) bool { return k == backend.Read || k == backend.Write }

// parallel calls f concurrently with each number from 0 to n-1, and fails the test if any call
// returns an error.
func (e *env) parallel(n int, f func(i int) error) {
	e.Helper()
	errs := make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { errs[i] = f(i) })
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		e.Fatal(err)
	}
}

// A bell counts wake-ups, and lets a test wait for one.
type bell struct {
	rung  chan struct{}
	mu    sync.Mutex
	count int
}

func newBell() *bell { return &bell{rung: make(chan struct{}, 1)} }

func (b *bell) ring(backend.Wakeup) {
	b.mu.Lock()
	b.count++
	b.mu.Unlock()
	select {
	case b.rung <- struct{}{}:
	default:
	}
}

// calls returns how many times ring was called.
func (b *bell) calls() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.count
}

// reset drops a wake-up that hasn't been received by wait.
func (b *bell) reset() {
	select {
	case <-b.rung:
	default:
	}
}

// wait waits for a wake-up. It returns an error if none comes within the time that a working store
// might need on a busy machine.
func (b *bell) wait() error {
	if !rings(b.rung) {
		return errors.New("nobody called Wake")
	}
	return nil
}

func rings(c <-chan struct{}) bool {
	t := time.NewTimer(30 * time.Second)
	defer t.Stop()
	select {
	case <-c:
		return true
	case <-t.C:
		return false
	}
}

// waits calls wait, and fails the test on an error. Only the goroutine of the test may call it.
func (b *bell) waits(e *env, after string) {
	e.Helper()
	if err := b.wait(); err != nil {
		e.Fatalf("after %s: %v", after, err)
	}
}

// subscribe subscribes p's session, which must be a Notifier, to a lock.
func (p party) subscribe(name string) (*bell, backend.Subscription) {
	p.e.Helper()
	b := newBell()
	sub, err := backend.CapabilitiesOf(p.s).
		Notifier.Subscribe(p.e.ctx, backend.SubscribeRequest{
		Kind: p.kind, Name: name, Wake: b.ring,
	})
	if err != nil {
		p.e.Fatalf("Subscribe(%.40q): %v", name, err)
	}
	return b, sub
}

// needNotifier skips the case for stores that can't notify.
func (e *env) needNotifier() {
	e.Helper()
	e.skipWithout(backend.CapabilitiesOf(e.session()).Notifier != nil, "backend.Notifier")
}

// needBatchRenewer skips the case for stores that can't renew in batches.
func (e *env) needBatchRenewer() {
	e.Helper()
	e.skipWithout(backend.CapabilitiesOf(e.session()).BatchRenewer != nil, "backend.BatchRenewer")
}
