package contract

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/seed951563bd/distsync/backend"
)

// party is one owner who uses one session, for one kind of lock. Its methods fail the test on an error, or if the answer
// isn't the one that their name says; so they are for the goroutine of the test only.
type party struct {
	e     *env
	s     backend.Session
	owner string
	kind  backend.Kind

	permits, limit int // how many it asks for, and how many there are; of the kind Permits only
}

// party returns an owner on a session of its own.
func (e *env) party(owner string) party { return e.at(e.session(), owner) }

// beside returns an owner of whom p's session must know: one on a session of its own, if the store lets it.
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

// as returns the same owner on the same session, for another kind of lock. As Permits that is the one permit of a
// semaphore that has one.
func (p party) as(k backend.Kind) party {
	p.kind, p.permits, p.limit = k, 0, 0
	if k == backend.Permits {
		p.permits, p.limit = 1, 1
	}
	return p
}

// of returns the same owner on the same session, who asks for this many permits of so many; of 0 it doesn't say.
func (p party) of(permits, limit int) party {
	p.kind, p.permits, p.limit = backend.Permits, permits, limit
	return p
}

// request returns what a party asks for.
func (p party) request(name string, lease time.Duration) backend.AcquireRequest {
	return backend.AcquireRequest{Kind: p.kind, Name: name, Owner: p.owner, Lease: lease, Permits: p.permits, Limit: p.limit}
}

func (p party) String() string { return fmt.Sprintf("owner %.40q", p.owner) }

// acquires takes a lock that is free, or counts one hold more.
func (p party) acquires(name string, lease time.Duration) backend.AcquireResult {
	p.e.Helper()
	req := p.request(name, lease)
	req.Reentry = p.kind == backend.Fair // which else isn't counted once more
	res, err := p.s.Acquire(p.e.ctx, req)
	if err != nil {
		p.e.Fatalf("Acquire(%.40q) by %v: %v", name, p, err)
	}
	if !res.Acquired {
		p.e.Fatalf("Acquire(%.40q) by %v: not acquired, lasts %v; want acquired", name, p, res.Remaining)
	}
	return res
}

// reenters acquires a lock that the owner believes to hold, and then holds count times.
func (p party) reenters(name string, lease time.Duration, count int) backend.AcquireResult {
	p.e.Helper()
	req := p.request(name, lease)
	req.Reentry = true
	res, err := p.s.Acquire(p.e.ctx, req)
	if err != nil {
		p.e.Fatalf("Acquire(%.40q) by %v, a re-entry: %v", name, p, err)
	}
	if !res.Acquired || res.Count != count {
		p.e.Fatalf("Acquire(%.40q) by %v, a re-entry: acquired %v, count %d; want acquired, count %d",
			name, p, res.Acquired, res.Count, count)
	}
	return res
}

// refused tries to acquire a lock that another holds.
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
			p.e.Fatalf("Acquire(%.40q) by %v: acquired; want refused, since another holds it", name, p)
		}
	}
	return res
}

// releases gives back a hold.
func (p party) releases(name string, lease time.Duration, want backend.ReleaseOutcome) {
	p.e.Helper()
	res, err := p.s.Release(p.e.ctx, backend.ReleaseRequest{Kind: p.kind, Name: name, Owner: p.owner, Lease: lease, Permits: p.permits})
	if err != nil {
		p.e.Fatalf("Release(%.40q) by %v: %v", name, p, err)
	}
	if res.Outcome != want {
		p.e.Fatalf("Release(%.40q) by %v: %v; want %v", name, p, res.Outcome, want)
	}
}

// renew renews a hold and returns whether it was one.
func (p party) renew(name string, lease time.Duration) bool {
	p.e.Helper()
	res, err := p.s.Renew(p.e.ctx, backend.RenewRequest{Kind: p.kind, Name: name, Owner: p.owner, Lease: lease, Permits: p.permits})
	if err != nil {
		p.e.Fatalf("Renew(%.40q) by %v: %v", name, p, err)
	}
	return res.Held
}

// renews renews a hold, or finds that there is none.
func (p party) renews(name string, lease time.Duration, want bool) {
	p.e.Helper()
	if held := p.renew(name, lease); held != want {
		p.e.Fatalf("Renew(%.40q) by %v: held %v; want %v", name, p, held, want)
	}
}

// forces frees a lock, or finds it free.
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

// look reports on a lock. How many permits aren't out is told by [party.available].
func (p party) look(name string) backend.LookResult {
	p.e.Helper()
	res := p.lookAll(name)
	res.Available = 0
	return res
}

func (p party) lookAll(name string) backend.LookResult {
	p.e.Helper()
	res, err := p.s.Look(p.e.ctx, backend.LookRequest{Kind: p.kind, Name: name, Owner: p.owner, Permits: p.permits, Limit: p.limit})
	if err != nil {
		p.e.Fatalf("Look(%.40q) by %v: %v", name, p, err)
	}
	return res
}

// has checks that the party holds the lock this often. With 0 another must hold it.
func (p party) has(name string, count int) {
	p.e.Helper()
	if res := p.look(name); !res.Held || res.Count != count {
		p.e.Fatalf("Look(%.40q) by %v: held %v, count %d; want held, count %d", name, p, res.Held, res.Count, count)
	}
}

// seesFree checks that nobody holds the lock.
func (p party) seesFree(name string) {
	p.e.Helper()
	if res := p.look(name); res != (backend.LookResult{}) {
		p.e.Fatalf("Look(%.40q) by %v: %+v; want a free lock, which is the zero value", name, p, res)
	}
}

// awaitFree waits until the lease of a lock has run out.
func (p party) awaitFree(name string) {
	p.e.Helper()
	p.e.eventually(fmt.Sprintf("lock %.40q free", name), func() bool { return !p.look(name).Held })
	p.seesFree(name)
}

// lasts checks that the lock expires after lease, counted from a moment between since and now.
func (p party) lasts(name string, lease time.Duration, since time.Time) {
	p.e.Helper()
	p.e.checkRemaining(fmt.Sprintf("Look(%.40q) by %v", name, p), p.look(name).Remaining, lease, since)
}

// checkRemaining checks what a step has said to be left of a lease that began between since and now.
// A busy machine makes the answer smaller, never larger, and it is measured how much; but a server that isn't let run
// between its look at the clock and the step counts from earlier.
func (e *env) checkRemaining(step string, remaining, lease time.Duration, since time.Time) {
	e.Helper()
	unit := e.leaseStep()
	atMost, atLeast := lease+unit, lease-time.Since(since)-2*unit
	if !e.h.Virtual {
		atLeast -= 100 * time.Millisecond
	}
	if remaining < atLeast || remaining > atMost {
		e.Fatalf("%s: Remaining %v; want %v to %v, of a lease of %v", step, remaining, atLeast, atMost, lease)
	}
}

// A term is what is known of the end of a hold: the lease that it has, and since when.
type term struct {
	lease time.Duration
	since time.Time
}

// after returns the term of a hold of this kind that was given a lease once more. It is that lease, whatever it was
// before; but a Read or Write lasts no shorter than it did.
func (x term) after(k backend.Kind, lease time.Duration, since time.Time) term {
	if lengthens(k) && x.lease > lease {
		return x
	}
	return term{lease, since}
}

// lengthens says whether a hold of this kind never ends earlier than it would have.
func lengthens(k backend.Kind) bool { return k == backend.Read || k == backend.Write }

// parallel calls f with 0 to n-1 at once, and fails the test if any of them returned an error.
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

// bell counts wake-ups and can be waited for.
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

// calls returns how often ring was called.
func (b *bell) calls() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.count
}

// reset forgets a ringing that nobody has waited for.
func (b *bell) reset() {
	select {
	case <-b.rung:
	default:
	}
}

// wait waits for a ringing; it returns an error if there is none for longer than any working store on
// a busy machine could take.
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

// waits is wait for the goroutine of the test.
func (b *bell) waits(e *env, after string) {
	e.Helper()
	if err := b.wait(); err != nil {
		e.Fatalf("after %s: %v", after, err)
	}
}

// subscribe subscribes the session of p, which must be a Notifier.
func (p party) subscribe(name string) (*bell, backend.Subscription) {
	p.e.Helper()
	b := newBell()
	sub, err := backend.CapabilitiesOf(p.s).Notifier.Subscribe(p.e.ctx, backend.SubscribeRequest{Kind: p.kind, Name: name, Wake: b.ring})
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
