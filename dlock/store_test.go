package dlock

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed951563bd/distsync/backend"
)

// A script is a store in front of another one, which does what a test says where its steps pass:
// the second acquisition of x is answered late, all releases fail, no message arrives. For each
// sort of step there is a hook:
//
//	store.acquire.set(func(s *acquireStep) {
//		if s.n == 2 && s.name == "x" {
//			s.do()
//			time.Sleep(time.Minute)
//		}
//	})
//
// A step that has neither been carried out nor failed when its function returns is carried out
// then.
type script struct {
	backend.Backend
	limits       backend.Limits
	can          func(*backend.Capabilities) // changes what it can do, unless it is nil
	atOnce       bool                        // it acquires and releases several locks at once
	renewsAtOnce bool                        // it renews many locks at once
	wire         time.Duration               // how long a step of a hold is on its way, at most

	acquire   hook[backend.AcquireRequest, backend.AcquireResult]
	release   hook[backend.ReleaseRequest, backend.ReleaseResult]
	renew     hook[backend.RenewRequest, backend.RenewResult]
	force     hook[backend.ForceReleaseRequest, backend.ForceReleaseResult]
	look      hook[backend.LookRequest, backend.LookResult]
	inspect   hook[backend.InspectRequest, backend.Inspection]
	places    hook[backend.PlacesRequest, backend.PlacesResult]
	latch     hook[backend.LatchRequest, backend.LatchResult]
	batch     hook[[]backend.RenewRequest, struct{}] // several renewals at once
	subscribe hook[backend.SubscribeRequest, backend.Subscription]

	unsubscribed atomic.Int64 // how many subscriptions were given up
	batches      atomic.Int64 // how often several locks were acquired or released at once
	grants       grants

	mu  sync.Mutex
	any func(*anyStep)
	n   int
}

// set has f stand in front of acquisitions, releases and renewals, before their own hooks, or
// nothing.
func (b *script) set(f func(*anyStep)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.any, b.n = f, 0
}

func newScript(b backend.Backend) *script {
	return &script{Backend: b, limits: b.Limits()}
}

// together has it acquire and release several locks at once, each on a way of its own, or doesn't.
func (b *script) together(atOnce bool) *script {
	b.atOnce = atOnce
	return b
}

// but changes what it can do.
func (b *script) but(can func(*backend.Capabilities)) *script {
	b.can = can
	return b
}

// with gives it limits.
func (b *script) with(limits backend.Limits) *script {
	b.limits = limits
	return b
}

// onlySteps can do nothing else, so that it tells of nothing.
func onlySteps(c *backend.Capabilities) { *c = backend.Capabilities{} }

// onlyLatches is onlySteps with latches.
func onlyLatches(c *backend.Capabilities) { *c = backend.Capabilities{Latcher: c.Latcher} }

// neverWaits takes steps in the goroutine of the caller.
func neverWaits(c *backend.Capabilities) { c.Steps = backend.StepsNeverWait }

// returns has its steps return when their context ends.
func returns(c *backend.Capabilities) { c.Steps = backend.StepsReturn }

// far puts the store half a round trip away, and its messages still farther.
func (b *script) far(half, message time.Duration) *script {
	b.acquire.delay(half, half)
	b.release.delay(half, half)
	b.subscribe.set(func(s *subscribeStep) {
		wake := s.req.Wake
		s.req.Wake = func(w backend.Wakeup) { time.AfterFunc(half+message, func() { wake(w) }) }
		time.Sleep(half)
	})
	return b
}

// cut has the store, as long as it is cut off, renew nothing and say nothing of who has a lock.
func (b *script) cut(off bool) {
	if off {
		b.renew.fail(errSevered)
		b.inspect.fail(errSevered)
		return
	}
	b.renew.set(nil)
	b.inspect.set(nil)
}

// wantSteps fails the test unless so many steps have come by.
func (b *script) wantSteps(t *testing.T, acquires, releases int) {
	t.Helper()
	if a, r := b.acquire.count(), b.release.count(); a != acquires || r != releases {
		t.Errorf("%d acquisitions and %d releases in the store, want %d and %d", a, r, acquires,
			releases)
	}
}

// steps returns how many acquisitions, releases and renewals have come by.
func (b *script) steps() int { return b.acquire.count() + b.release.count() + b.renew.count() }

// owners returns those of the acquisitions.
func (b *script) owners() (owners []string) {
	for _, req := range b.acquire.took() {
		owners = append(owners, req.Owner)
	}
	return owners
}

// asked returns the leases of the acquisitions, and how long the releases kept what they gave back,
// since it was last called.
func (b *script) asked() (leases, keeps []time.Duration) {
	for _, req := range b.acquire.took() {
		leases = append(leases, req.Lease)
	}
	for _, req := range b.release.took() {
		keeps = append(keeps, req.Keep)
	}
	return leases, keeps
}

// anyStep is a step of a store: what all of them have.
type anyStep struct {
	ctx  context.Context // of the caller
	op   string          // "acquire", "release", …
	name string          // of the lock
	n    int             // the first, second, … to pass the hook since that was set
	err  error

	run  func(context.Context) (note func())
	done bool // it has been carried out, or has failed
}

// do carries the step out, also when its context has ended: what was sent arrives. It may be called
// later, and again.
func (s *anyStep) do() {
	s.done = true
	s.run(context.WithoutCancel(s.ctx))()
}

// fail answers with an error, without carrying the step out unless that has been done.
func (s *anyStep) fail(err error) { s.done, s.err = true, err }

// lose carries the step out, and its answer is lost.
func (s *anyStep) lose() {
	s.do()
	s.fail(errSevered)
}

// pretend answers with s.res, without carrying the step out.
func (s *anyStep) pretend() { s.fail(nil) }

// doAfter carries the step out later, when it may have been answered.
func (s *anyStep) doAfter(d time.Duration) {
	time.AfterFunc(d, func() { s.run(context.WithoutCancel(s.ctx)) })
}

// waitFor waits for a channel, and fails if the context has ended by then.
func (s *anyStep) waitFor(c <-chan struct{}) {
	if <-c; s.ctx.Err() != nil {
		s.fail(s.ctx.Err())
	}
}

// hang gives no answer before the context ends, and isn't carried out unless that has been done.
func (s *anyStep) hang() {
	<-s.ctx.Done()
	s.fail(&backend.Error{Kind: backend.Unknown, Err: s.ctx.Err()})
}

// hangFor is hang, for some time at most.
func (s *anyStep) hangFor(d time.Duration) {
	select {
	case <-s.ctx.Done():
	case <-time.After(d):
	}
	s.fail(&backend.Error{Kind: backend.Unknown, Err: errors.New("timeout")})
}

// stepOf is a step with what is asked and answered.
type stepOf[Req, Res any] struct {
	anyStep
	req Req
	res Res
}

type (
	acquireStep   = stepOf[backend.AcquireRequest, backend.AcquireResult]
	releaseStep   = stepOf[backend.ReleaseRequest, backend.ReleaseResult]
	renewStep     = stepOf[backend.RenewRequest, backend.RenewResult]
	forceStep     = stepOf[backend.ForceReleaseRequest, backend.ForceReleaseResult]
	lookStep      = stepOf[backend.LookRequest, backend.LookResult]
	inspectStep   = stepOf[backend.InspectRequest, backend.Inspection]
	placesStep    = stepOf[backend.PlacesRequest, backend.PlacesResult]
	latchStep     = stepOf[backend.LatchRequest, backend.LatchResult]
	subscribeStep = stepOf[backend.SubscribeRequest, backend.Subscription]
)

// A hook stands in front of the steps of a sort.
type hook[Req, Res any] struct {
	mu          sync.Mutex
	f           func(*stepOf[Req, Res])
	n           int           // since f was set
	seen        []Req         // since took was called
	there, back time.Duration // how long the steps are on their way
}

// set has f stand in front of the steps from now on, or nothing.
func (h *hook[Req, Res]) set(f func(*stepOf[Req, Res])) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.f, h.n = f, 0
}

// fail has all steps fail from now on, without being carried out.
func (h *hook[Req, Res]) fail(err error) {
	h.set(func(s *stepOf[Req, Res]) { s.fail(err) })
}

// hang has all steps hang from now on.
func (h *hook[Req, Res]) hang() { h.set(func(s *stepOf[Req, Res]) { s.hang() }) }

// lose has the answers of all steps get lost from now on.
func (h *hook[Req, Res]) lose() { h.set(func(s *stepOf[Req, Res]) { s.lose() }) }

// delay has the steps take that long to get there, and their answers to come back.
func (h *hook[Req, Res]) delay(there, back time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.there, h.back = there, back
}

// count returns how many steps have come by since took was called.
func (h *hook[Req, Res]) count() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.seen)
}

// took returns what was asked for since it was last called.
func (h *hook[Req, Res]) took() []Req {
	h.mu.Lock()
	defer h.mu.Unlock()
	seen := h.seen
	h.seen = nil
	return seen
}

// pass has a step pass, which run takes. Before the hook, b.any stands in front of it, if there is
// b.
func (h *hook[Req, Res]) pass(
	ctx context.Context, b *script, op, name string, req Req,
	run func(context.Context, Req) (Res, error),
) (none Res, err error) {
	s := &stepOf[Req, Res]{anyStep: anyStep{ctx: ctx, op: op, name: name}, req: req}
	s.run = func(ctx context.Context) func() {
		res, err := run(ctx, s.req)
		return func() { s.res, s.err = res, err }
	}
	bare := b == nil || b.pass(&s.anyStep)
	h.mu.Lock()
	h.seen = append(h.seen, req)
	h.n++
	s.n = h.n
	f, there, back := h.f, h.there, h.back
	h.mu.Unlock()
	time.Sleep(there)
	if f != nil && !s.done {
		f(s)
	}
	switch {
	case s.done:
	case bare && f == nil && there == 0:
		s.run(ctx)()
	default:
		s.do()
	}
	time.Sleep(back)
	if s.err != nil {
		return none, s.err
	}
	return s.res, nil
}

// pass has a step of a hold pass, and says whether nothing has stood in front of it.
func (b *script) pass(s *anyStep) (bare bool) {
	b.mu.Lock()
	b.n++
	s.n = b.n
	f, wire := b.any, b.wire
	b.mu.Unlock()
	if wire > 0 {
		time.Sleep(wire/2 + rand.N(wire/2))
	}
	if f != nil {
		f(s)
	}
	return f == nil && wire == 0
}

func (b *script) Open() backend.Session {
	s, can := backend.Open(b.Backend)
	return &scripted{s, b, can}
}

func (b *script) Limits() backend.Limits { return b.limits }

type scripted struct {
	backend.Session
	b      *script
	behind backend.Capabilities // of the store behind
}

func (s *scripted) Capabilities() backend.Capabilities {
	can := backend.Capabilities{
		Notifier: s, Inspector: s, Liner: s, Latcher: s,
	}
	if s.b.atOnce {
		can.Batcher = s
	}
	if s.b.renewsAtOnce {
		can.BatchRenewer = s
	}
	if s.b.can != nil {
		s.b.can(&can)
	}
	return can
}

func (s *scripted) Acquire(
	ctx context.Context, req backend.AcquireRequest,
) (backend.AcquireResult, error) {
	return s.b.acquire.pass(ctx, s.b, "acquire", req.Name, req, s.Session.Acquire)
}

func (s *scripted) Release(
	ctx context.Context, req backend.ReleaseRequest,
) (backend.ReleaseResult, error) {
	return s.b.release.pass(ctx, s.b, "release", req.Name, req, s.Session.Release)
}

func (s *scripted) Renew(
	ctx context.Context, req backend.RenewRequest,
) (backend.RenewResult, error) {
	return s.b.renew.pass(ctx, s.b, "renew", req.Name, req, s.Session.Renew)
}

func (s *scripted) ForceRelease(
	ctx context.Context, req backend.ForceReleaseRequest,
) (backend.ForceReleaseResult, error) {
	return s.b.force.pass(ctx, nil, "force", req.Name, req, s.Session.ForceRelease)
}

func (s *scripted) Look(ctx context.Context, req backend.LookRequest) (backend.LookResult, error) {
	return s.b.look.pass(ctx, nil, "look", req.Name, req, s.Session.Look)
}

func (s *scripted) Inspect(
	ctx context.Context, req backend.InspectRequest,
) (backend.Inspection, error) {
	return s.b.inspect.pass(ctx, nil, "inspect", req.Name, req, s.behind.Inspector.Inspect)
}

func (s *scripted) KeepPlaces(
	ctx context.Context, req backend.PlacesRequest,
) (backend.PlacesResult, error) {
	return s.b.places.pass(ctx, nil, "places", req.Name, req, s.behind.Liner.KeepPlaces)
}

func (s *scripted) Latch(
	ctx context.Context, req backend.LatchRequest,
) (backend.LatchResult, error) {
	return s.b.latch.pass(ctx, nil, "latch", req.Name, req, s.behind.Latcher.Latch)
}

func (s *scripted) RenewBatch(
	ctx context.Context, reqs []backend.RenewRequest, answer func(int, backend.RenewResult, error),
) {
	_, err := s.b.batch.pass(ctx, nil, "batch", "", slices.Clone(reqs),
		func(ctx context.Context, reqs []backend.RenewRequest) (struct{}, error) {
			s.behind.BatchRenewer.RenewBatch(ctx, reqs, answer)
			return struct{}{}, nil
		})
	for i := range reqs {
		if err != nil {
			answer(i, backend.RenewResult{}, err)
		}
	}
}

func (s *scripted) AcquireBatch(
	ctx context.Context, reqs []backend.AcquireRequest, answer func(
		int, backend.AcquireResult, error,
	),
) {
	s.each(len(reqs), func(i int) {
		res, err := s.Acquire(ctx, reqs[i])
		answer(i, res, err)
	})
}

func (s *scripted) ReleaseBatch(
	ctx context.Context, reqs []backend.ReleaseRequest, answer func(
		int, backend.ReleaseResult, error,
	),
) {
	s.each(len(reqs), func(i int) {
		res, err := s.Release(ctx, reqs[i])
		answer(i, res, err)
	})
}

func (s *scripted) each(n int, step func(int)) {
	s.b.batches.Add(1)
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() { step(i) })
	}
	all.Wait()
}

func (s *scripted) Subscribe(
	ctx context.Context, req backend.SubscribeRequest,
) (backend.Subscription, error) {
	if granted := req.Granted; granted != nil {
		req.Granted = func(g backend.Grant) { s.b.grants.pass(func() { granted(g) }) }
	}
	sub, err := s.b.subscribe.pass(ctx, nil, "subscribe", req.Name, req,
		s.behind.Notifier.Subscribe)
	if err != nil {
		return nil, err
	}
	return countedSub{sub, &s.b.unsubscribed}, nil
}

// countedSub is a subscription whose end is counted.
type countedSub struct {
	backend.Subscription
	n *atomic.Int64
}

func (s countedSub) Close() {
	s.n.Add(1)
	if s.Subscription != nil { // there is none where the hook says so
		s.Subscription.Close()
	}
}

// grants are what a store says of locks that it gives to those in line.
type grants struct {
	mu   sync.Mutex
	mode grantMode
	kept []func()
	late time.Duration // how long they are on their way
}

type grantMode uint8

const (
	arrive grantMode = iota
	vanish
	linger // until they are delivered
)

// set says what becomes of them from now on.
func (g *grants) set(mode grantMode) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.mode = mode
}

func (g *grants) pass(tell func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch g.mode {
	case arrive:
		time.AfterFunc(g.late, tell)
	case linger:
		g.kept = append(g.kept, tell)
	}
}

// deliver has those arrive that stayed.
func (g *grants) deliver() {
	g.mu.Lock()
	kept := g.kept
	g.kept = nil
	g.mu.Unlock()
	for _, tell := range kept {
		tell()
	}
	synctest.Wait()
}
