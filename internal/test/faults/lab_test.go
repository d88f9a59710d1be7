package faults_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/contract/faults"
	"github.com/seed951563bd/distsync/dlock"
	"github.com/seed951563bd/distsync/internal/test/depth"
	"github.com/seed951563bd/distsync/internal/test/testservers"
)

const (
	// long is a lease whose end no test waits for. A party that gets the lock sooner was notified,
	// or has polled.
	long = 5 * time.Minute

	// steady is the parties' default lease. Tests wait longer than that, and a hold must then still
	// be held, even on a busy machine.
	steady = 9 * time.Second
)

// A lab has a server, some clients of it, and a referee.
type lab struct {
	*testing.T
	store   *store
	options []dlock.Option // the options of the variant
	servers []*testservers.Server
	server  *testservers.Server // the first
	master  *testservers.Server // the master, if server is a replica or a standby
	clock   *clock              // the server's clock, if the test can set it

	lock string // the name of the parties' lock

	// kinds are the kinds of the parties' locks, in turn. If there are none, all locks are plain.
	kinds   []backend.Kind
	parties int
	clients []*dlock.Client // the clients of all parties
	referee
}

// newLab returns a lab. It first sends each kind of request to the servers, so that they know all
// scripts.
func newLab(t *testing.T, s *store, options []dlock.Option, servers ...*testservers.Server) *lab {
	t.Helper()
	l := &lab{T: t, store: s, options: options, servers: servers, server: servers[0], lock: "n"}
	l.warm()
	return l
}

func (l *lab) warm() {
	l.Helper()
	b, closeClient, err := l.store.connect(l.addrs()...)
	must(l.T, err)
	defer closeClient()
	s := b.Open()
	defer s.Close()
	for _, k := range l.warmed() {
		testservers.Until(l.T, "a server that has begun to answer", func() bool {
			err := askAll(l.Context(), s, k)
			if err != nil && backend.KindOf(err) == backend.Refused {
				l.Fatal(err)
			}
			return err == nil // on a busy machine, a request may time out
		})
	}
}

// askAll sends each of the requests about a lock.
func askAll(ctx context.Context, s backend.Session, k backend.Kind) error {
	const owner, lease = "warm:1", 2 * time.Second
	name, permits := "warm "+k.String(), 0 // a name of its own, since data may stay
	if k == backend.Permits {
		permits = 1
	}
	for range 2 {
		if _, err := s.Acquire(ctx, backend.AcquireRequest{
			Kind: k, Name: name, Owner: owner, Lease: lease, Permits: permits, Limit: permits,
		}); err != nil {
			return err
		}
	}
	if _, err := s.Renew(ctx, backend.RenewRequest{
		Kind: k, Name: name, Owner: owner, Lease: lease, Permits: permits,
	}); err != nil {
		return err
	}
	for range 2 {
		if _, err := s.Release(ctx, backend.ReleaseRequest{
			Kind: k, Name: name, Owner: owner, Lease: lease, Permits: permits,
		}); err != nil {
			return err
		}
	}
	return nil
}

// known says whether the store has locks of these kinds.
func (l *lab) known(kinds []backend.Kind) bool {
	l.Helper()
	b, closeClient, err := l.store.connect(l.addrs()...)
	must(l.T, err)
	defer closeClient()
	return !slices.ContainsFunc(kinds, func(k backend.Kind) bool {
		return !b.Limits().Kinds.Has(k)
	})
}

// warmed returns the kinds of lock whose requests warm sends.
func (l *lab) warmed() []backend.Kind {
	return append([]backend.Kind{backend.Exclusive}, l.kinds...)
}

func (l *lab) addrs() (addrs []string) {
	for _, s := range l.servers {
		addrs = append(addrs, s.Addr)
	}
	return addrs
}

// short is a lease that soon expires.
func (l *lab) short() dlock.Option { return dlock.WithLease(l.store.lease) }

// A party is a client, perhaps with its own proxy, that uses one lock.
type party struct {
	lab    *lab
	client *dlock.Client
	*faults.Proxy
	name string // of the lock
	kind backend.Kind
}

// locker returns a new Locker of the party's lock.
func (p *party) locker() *dlock.Locker {
	switch p.kind {
	case backend.Fenced:
		return p.client.FencedLocker(p.name)
	case backend.Read:
		return p.client.RWLocker(p.name).Reader()
	case backend.Write:
		return p.client.RWLocker(p.name).Writer()
	case backend.Fair:
		return p.client.FairLocker(p.name)
	case backend.Permits:
		panic("a semaphore has no Locker")
	default:
		return p.client.Locker(p.name)
	}
}

// semaphore returns a semaphore with a single permit, which is a lock without owners.
func (p *party) semaphore() *dlock.Semaphore { return p.client.Semaphore(p.name, 1) }

// do runs f with the lock, or with the permit.
func (p *party) do(
	ctx context.Context, f func(context.Context) error, opts ...dlock.AcquireOption,
) error {
	if p.kind == backend.Permits {
		return p.semaphore().Do(ctx, 1, f, opts...)
	}
	return p.locker().Do(ctx, f, opts...)
}

// try makes one attempt. It returns a function that releases the lock, or nil if another party
// holds it.
func (p *party) try(ctx context.Context) (giveBack func(), err error) {
	if p.kind == backend.Permits {
		h, err := p.semaphore().Acquire(ctx, 1, dlock.Wait(0))
		switch {
		case errors.Is(err, dlock.ErrHeld):
			return nil, nil
		case err != nil:
			return nil, err
		}
		return func() { h.Release(ctx) }, nil
	}
	l := p.locker()
	if ok, err := l.TryLock(ctx); !ok {
		return nil, err
	}
	return l.Unlock, nil
}

// isHeld asks the store whether the hold of a context is still held.
func (p *party) isHeld(ctx context.Context) (bool, error) {
	if p.kind == backend.Permits { // no other party has the permit while the hold is held
		n, err := p.semaphore().Available(ctx)
		return n == 0, err
	}
	return p.locker().IsHeld(ctx)
}

// as returns the same party at a lock of another kind.
func (p *party) as(k backend.Kind) *party {
	other := *p
	other.kind = k
	return &other
}

// requests returns the requests that the party sends for a step.
func (p *party) requests(s step) []func(faults.Request) bool {
	return p.lab.store.requests(p.kind)[s]
}

// at returns the same party at another lock.
func (p *party) at(name string) *party {
	other := *p
	other.name = name
	return &other
}

// direct returns a party that is connected to the servers.
func (l *lab) direct(more ...dlock.Option) *party {
	l.Helper()
	return l.connect(l.addrs(), more...)
}

// proxied returns a party that is connected to the server through a proxy, and to others directly.
func (l *lab) proxied(more ...dlock.Option) *party {
	l.Helper()
	proxy := newProxy(l.T, l.server.Addr, l.store.protocol)
	addrs := l.addrs()
	addrs[slices.Index(addrs, l.server.Addr)] = proxy.Addr()
	p := l.connect(addrs, more...)
	p.Proxy = proxy
	return p
}

func (l *lab) connect(addrs []string, more ...dlock.Option) *party {
	l.Helper()
	b, closeClient, err := l.store.connect(addrs...)
	must(l.T, err)
	l.Cleanup(closeClient)
	options := append([]dlock.Option{
		dlock.WithLease(steady),
		dlock.WithLogger(slog.New(slog.NewTextHandler(io.Discard, nil))),
	}, l.options...)
	c := dlock.New(b, append(options, more...)...)
	l.Cleanup(func() { c.Close() })
	l.clients = append(l.clients, c)
	return &party{lab: l, client: c, name: l.lock, kind: l.nextKind()}
}

// nextKind returns the kind of the next party's locks.
func (l *lab) nextKind() backend.Kind {
	k := l.kindOf(l.parties)
	l.parties++
	return k
}

// kindOf returns the kind of the locks of the nth party.
func (l *lab) kindOf(n int) backend.Kind {
	if len(l.kinds) == 0 {
		return backend.Exclusive
	}
	return l.kinds[n%len(l.kinds)]
}

// requests returns the next party's requests of one step.
func (l *lab) requests(s step) []func(faults.Request) bool {
	return l.store.requests(l.kindOf(l.parties))[s]
}

// A grip is a hold, or the wait for it.
type grip struct {
	*party
	ctx    context.Context // the hold's context; set before inside is closed
	inside chan struct{}   // closed when the lock is granted
	leave  chan struct{}
	done   chan error // receives the result of Do
	cancel context.CancelFunc
}

// reach begins to acquire the lock in the background.
func (p *party) reach(opts ...dlock.AcquireOption) *grip {
	g := &grip{
		party: p, inside: make(chan struct{}), leave: make(chan struct{}),
		done: make(chan error, 1),
	}
	outer, cancel := context.WithCancel(context.Background())
	g.cancel = cancel
	p.lab.Cleanup(cancel)
	go func() {
		g.done <- p.do(outer, func(ctx context.Context) error {
			g.ctx = ctx
			watched := p.watch(ctx)
			close(g.inside)
			select {
			case <-g.leave:
			case <-outer.Done():
			}
			watched()
			return nil
		}, opts...)
	}()
	return g
}

// grab acquires the lock, and waits until it is granted.
func (p *party) grab(opts ...dlock.AcquireOption) *grip {
	p.lab.Helper()
	g := p.reach(opts...)
	g.in()
	return g
}

// in waits until the lock is granted.
func (g *grip) in() {
	g.lab.Helper()
	select {
	case <-g.inside:
	case err := <-g.done:
		g.lab.Fatalf("not granted: %v", err)
	case <-time.After(testservers.Patience):
		g.lab.Fatal("never granted")
	}
}

// release releases the lock, and returns the result of Do.
func (g *grip) release() error {
	g.lab.Helper()
	close(g.leave)
	return come(g.lab.T, "the end of Do", g.done)
}

// let releases the lock, which must work. The exception is a fair lock that the party was given
// just before, for a second. A server on a busy machine may not answer in that time, and then the
// hold expires.
func (g *grip) let() {
	g.lab.Helper()
	err := g.release()
	if g.kind == backend.Fair && errors.Is(err, dlock.ErrUnavailable) {
		g.lab.Logf("given back without an answer: %v", err)
		return
	}
	must(g.lab.T, err)
}

// believes says whether the holder still relies on its hold.
func (g *grip) believes() bool { return g.ctx.Err() == nil }

// queue begins to wait for a lock that another party holds. The party must have a proxy. queue
// returns when the waiter has subscribed to releases, and has tried once more. The party must not
// have waited before, since a client may keep a subscription for a while.
func (p *party) queue() *grip {
	p.lab.Helper()
	held, deliver := p.Hold(p.requests(subscribe)[0])
	g := p.reach()
	come(p.lab.T, "the waiter's subscription", held)
	looks, look := p.Hold(p.lab.store.looks(p.kind))
	deliver()
	come(p.lab.T, "the waiter's second attempt", looks)
	look()
	p.Settle()
	return g
}

// isLost waits until the holder is told of the loss, and releases. The release must return
// dlock.ErrLost.
func (g *grip) isLost() {
	g.lab.Helper()
	g.told()
	if err := g.release(); !errors.Is(err, dlock.ErrLost) {
		g.lab.Errorf("the end of a lost hold: %v", err)
	}
}

// told waits until the holder is told of the loss.
func (g *grip) told() {
	g.lab.Helper()
	come(g.lab.T, "the end of the holder's context", g.ctx.Done())
	if cause := context.Cause(g.ctx); !errors.Is(cause, dlock.ErrLost) {
		g.lab.Errorf("the holder's context ends with cause %v", cause)
	}
}

// survives waits until a steady lease that was last renewed at since has expired. The hold must
// still be held then.
func (g *grip) survives(since time.Time) {
	g.lab.Helper()
	g.lab.pass(since.Add(steady * 5 / 4))
	g.holds()
}

// holds fails the test unless the holder relies on its hold, and the store has it.
func (g *grip) holds() {
	g.lab.Helper()
	ctx, cancel := context.WithTimeout(g.ctx, testservers.Patience)
	defer cancel()
	if held, err := g.isHeld(ctx); !held || err != nil || !g.believes() {
		g.lab.Errorf("the hold isn't one any more: %v, %v, %v", held, err, context.Cause(g.ctx))
	}
}

// pass waits until a moment.
func (l *lab) pass(moment time.Time) { time.Sleep(time.Until(moment)) }

// isFree acquires and releases the lock.
func (l *lab) isFree(p *party) {
	l.Helper()
	p.grab().let()
}

// isTaken fails the test unless another party holds the lock.
func (l *lab) isTaken(p *party) {
	l.Helper()
	giveBack, err := p.try(l.Context())
	must(l.T, err)
	if giveBack != nil {
		l.Error("somebody else has got in")
		giveBack()
	}
}

// isEmpty waits until the store has no data of locks any more.
func (l *lab) isEmpty() {
	l.Helper()
	l.everywhere("the store is empty", l.store.empty)
}

// isUnlocked waits until no lock is in the store any more. At night, it waits until the store is
// empty. In other runs, end finds data that doesn't disappear.
func (l *lab) isUnlocked() {
	l.Helper()
	if l.store.unlocked == nil || depth.Now() == depth.Night {
		l.isEmpty()
		return
	}
	l.everywhere("no lock is left", l.store.unlocked)
}

// everywhere waits until a condition holds on all servers.
func (l *lab) everywhere(what string, is func(*testing.T, string) bool) {
	l.Helper()
	testservers.Until(l.T, what, func() bool {
		return !slices.ContainsFunc(l.servers, func(s *testservers.Server) bool {
			return !is(l.T, s.Addr)
		})
	})
}

// end waits until the store is empty. The parties no longer need their clients. These may keep data
// other than locks for a while. Runs at night wait for the end of that. Other runs close the
// clients first.
func (l *lab) end() {
	l.Helper()
	l.isUnlocked()
	if depth.Now() < depth.Night {
		for _, c := range l.clients {
			c.Close()
		}
	}
	l.isEmpty()
}

// A referee records which holders rely on the lock, and when.
type referee struct {
	mu      sync.Mutex
	beliefs []*belief
	numbers map[string]uint64 // the last token of each fenced lock
	absent  bool              // two holders are allowed, since the store forgets the lock
}

// watch makes the referee watch a holder. The holder's token must be larger than all earlier ones.
func (p *party) watch(ctx context.Context) (stop func()) {
	stop = p.lab.look(p.name, p.kind == backend.Read, func() bool { return ctx.Err() == nil })
	number, ok := dlock.Token(ctx)
	r := &p.lab.referee
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case ok != (p.kind == backend.Fenced):
		p.lab.Errorf("a hold of a lock that is %v has number %d", p.kind, number)
	case ok && number <= r.numbers[p.name] && ctx.Err() != nil: // it was lost before this check
	case ok && number <= r.numbers[p.name]:
		p.lab.Errorf("number %d was given out after %d", number, r.numbers[p.name])
	case ok:
		if r.numbers == nil {
			r.numbers = make(map[string]uint64)
		}
		r.numbers[p.name] = number
	}
	return stop
}

// A belief is a time throughout which a holder relied on the lock. Losses are final, so a holder
// that relied on it at the beginning and at the end also did in between.
type belief struct {
	lock       string
	shared     bool // with other shared beliefs
	begin, end time.Time
}

// look watches a holder until it stops relying on its hold, or until stop is called.
func (r *referee) look(lock string, shared bool, believes func() bool) (stop func()) {
	b := &belief{lock: lock, shared: shared}
	look := func() bool {
		before := time.Now()
		if !believes() {
			return false
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		if b.begin.IsZero() {
			b.begin = time.Now() // the holder believed before this moment
		}
		if before.After(b.begin) {
			b.end = before // and still believes after that one
		}
		return true
	}
	over, done := make(chan struct{}), make(chan struct{})
	look()
	go func() {
		defer close(done)
		for look() {
			select {
			case <-over:
				look()
				return
			case <-time.After(time.Millisecond):
			}
		}
	}()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.beliefs = append(r.beliefs, b)
	return func() {
		close(over)
		<-done
	}
}

// verdict fails the test if two holders ever relied on the lock at the same time. No holder may be
// watched any more.
func (l *lab) verdict() {
	l.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, a := range l.beliefs {
		for _, b := range l.beliefs[:i] {
			begin, end := later(a.begin, b.begin), a.end
			if b.end.Before(end) {
				end = b.end
			}
			if a.lock == b.lock && !(a.shared && b.shared) && end.After(begin) && !l.absent {
				l.Errorf("two believed that they have the lock, for %v at least", end.Sub(begin))
			}
		}
	}
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
