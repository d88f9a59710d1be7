package main

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/contract/faults"
	"github.com/seed951563bd/distsync/internal/test/testservers"
	"github.com/seed951563bd/distsync/membackend"
)

// memoryStore returns a store in this process. Each client reaches it through a wire that behaves
// like a network.
func memoryStore(testservers.TB) *store {
	return inMemory(membackend.New(), time.Second)
}

func inMemory(b backend.Backend, lease time.Duration) *store {
	looker := b.Open()
	return &store{
		name:  "memory",
		lease: lease,
		join: func() ([]link, []string, dialer) {
			w := newWire()
			return []link{w}, nil, func() (backend.Backend, func(), error) {
				return wired{b, w}, func() {}, nil
			}
		},
		server: func(*checker) []fault { return nil },
		left: func() (n int, err error) {
			for _, name := range names {
				for _, kind := range kindsOf(name) {
					res, err := looker.Look(context.Background(), backend.LookRequest{
						Kind: kind, Name: name, Limit: permits,
					})
					if err != nil {
						return 0, err
					}
					if res.Held {
						n++
					}
				}
			}
			return n, nil
		},
	}
}

// A wire simulates the network between a client and a store in the same process.
type wire struct {
	mu      sync.Mutex
	changed chan struct{} // closed and replaced when a field below changes
	cuts    int
	refused bool
	delay   time.Duration
	blocked faults.Direction
	traps   []*trap
	subs    map[*tap]struct{}
}

// A trap catches a step on a wire, to delay it or to lose its reply.
type trap struct {
	match  func(faults.Request) bool
	hold   bool
	sprung chan struct{}
	open   chan struct{} // closed when the held step may continue
}

func newWire() *wire { return &wire{changed: make(chan struct{}), subs: make(map[*tap]struct{})} }

// change calls f, which changes the wire, and notifies all steps on it.
func (w *wire) change(f func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f()
	close(w.changed)
	w.changed = make(chan struct{})
}

func (w *wire) Cut() {
	w.change(func() { w.cuts++ })
	w.wakeAll()
}

func (w *wire) Refuse(refuse bool)         { w.change(func() { w.refused = refuse }) }
func (w *wire) SetDelay(d time.Duration)   { w.change(func() { w.delay = d }) }
func (w *wire) Block(d faults.Direction)   { w.change(func() { w.blocked |= d }) }
func (w *wire) Unblock(d faults.Direction) { w.change(func() { w.blocked &^= d }) }

func (w *wire) LoseReply(match func(faults.Request) bool) <-chan struct{} {
	return w.set(&trap{match: match}).sprung
}

func (w *wire) Hold(match func(faults.Request) bool) (held <-chan struct{}, deliver func()) {
	t := w.set(&trap{match: match, hold: true, open: make(chan struct{})})
	return t.sprung, func() {
		w.change(func() { w.drop(t) })
		close(t.open)
	}
}

func (w *wire) set(t *trap) *trap {
	t.sprung = make(chan struct{})
	w.change(func() { w.traps = append(w.traps, t) })
	return t
}

// drop removes a trap. The caller must hold w.mu.
func (w *wire) drop(t *trap) {
	for i := range w.traps {
		if w.traps[i] == t {
			w.traps = append(w.traps[:i:i], w.traps[i+1:]...)
			return
		}
	}
}

// spring finds the first trap that catches the next step, removes it, and returns it. If there is
// none, it returns nil.
func (w *wire) spring() (sprung *trap) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, t := range w.traps {
		if t.match(faults.Request{Method: memoryStep}) {
			w.drop(t)
			return t
		}
	}
	return nil
}

// memoryStep is the method name of all requests on a wire.
const memoryStep = "step"

var errCut = errors.New("soak: the wire was cut")

// pass waits until a message has crossed the wire in direction d. It returns an error if the wire
// is cut first.
func (w *wire) pass(d faults.Direction, cuts int) error {
	came := time.Now()
	for {
		w.mu.Lock()
		changed, wait := w.changed, w.delay-time.Since(came)
		cut, blocked := w.cuts != cuts, w.blocked&d != 0
		w.mu.Unlock()
		switch {
		case cut:
			return errCut
		case blocked:
			<-changed
		case wait > 0:
			time.Sleep(wait) // the network's delay
		default:
			return nil
		}
	}
}

// send carries out a step of a store that is reached over the wire.
func send[Req, Res any](
	ctx context.Context, w *wire, do func(context.Context, Req) (Res, error), req Req,
) (Res, error) {
	type answer struct {
		res Res
		err error
	}
	w.mu.Lock()
	refused, cuts := w.refused, w.cuts
	w.mu.Unlock()
	if refused {
		return *new(Res), &backend.Error{Kind: backend.Retry, Err: errCut}
	}
	t := w.spring()
	answers := make(chan answer, 1)
	go func() { // continues if the caller leaves
		a := answer{err: w.pass(faults.ToServer, cuts)}
		if a.err == nil {
			if t != nil && t.hold {
				close(t.sprung)
				<-t.open
			}
			a.res, a.err = do(context.WithoutCancel(ctx), req)
		}
		if err := w.pass(faults.ToClient, cuts); err != nil {
			a.err = err
		}
		if t != nil && !t.hold {
			close(t.sprung)
			a.err = errCut
		}
		answers <- a
	}()
	select {
	case a := <-answers:
		return a.res, a.err
	case <-ctx.Done():
		return *new(Res), ctx.Err()
	}
}

// wired is a backend that is reached through a wire.
type wired struct {
	backend.Backend
	wire *wire
}

func (b wired) Open() backend.Session {
	s := b.Backend.Open()
	n := backend.CapabilitiesOf(s).Notifier
	return &wiredSession{s, n, b.wire}
}

type wiredSession struct {
	far      backend.Session
	notifier backend.Notifier
	wire     *wire
}

func (s *wiredSession) Acquire(
	ctx context.Context, req backend.AcquireRequest,
) (backend.AcquireResult, error) {
	return send(ctx, s.wire, s.far.Acquire, req)
}

func (s *wiredSession) Release(
	ctx context.Context, req backend.ReleaseRequest,
) (backend.ReleaseResult, error) {
	return send(ctx, s.wire, s.far.Release, req)
}

func (s *wiredSession) Renew(
	ctx context.Context, req backend.RenewRequest,
) (backend.RenewResult, error) {
	return send(ctx, s.wire, s.far.Renew, req)
}

func (s *wiredSession) ForceRelease(
	ctx context.Context, req backend.ForceReleaseRequest,
) (backend.ForceReleaseResult, error) {
	return send(ctx, s.wire, s.far.ForceRelease, req)
}

func (s *wiredSession) Look(
	ctx context.Context, req backend.LookRequest,
) (backend.LookResult, error) {
	return send(ctx, s.wire, s.far.Look, req)
}

// KeepPlaces implements [backend.Liner].
func (s *wiredSession) KeepPlaces(
	ctx context.Context, req backend.PlacesRequest,
) (backend.PlacesResult, error) {
	line := backend.CapabilitiesOf(s.far).Liner
	if line == nil {
		return backend.PlacesResult{}, backend.UnknownKind("what is behind the wire", req.Kind)
	}
	return send(ctx, s.wire, line.KeepPlaces, req)
}

// Inspect implements [backend.Inspector].
func (s *wiredSession) Inspect(
	ctx context.Context, req backend.InspectRequest,
) (backend.Inspection, error) {
	i := backend.CapabilitiesOf(s.far).Inspector
	if i == nil {
		return backend.Inspection{}, &backend.Error{
			Kind: backend.Refused, Err: errors.ErrUnsupported,
		}
	}
	return send(ctx, s.wire, i.Inspect, req)
}

func (s *wiredSession) Close() error { return s.far.Close() }

// Subscribe implements [backend.Notifier].
func (s *wiredSession) Subscribe(
	ctx context.Context, req backend.SubscribeRequest,
) (backend.Subscription, error) {
	s.wire.mu.Lock()
	refused := s.wire.refused
	s.wire.mu.Unlock()
	switch {
	case s.notifier == nil:
		return nil, &backend.Error{Kind: backend.Refused, Err: errors.ErrUnsupported}
	case refused:
		return nil, &backend.Error{Kind: backend.Retry, Err: errCut}
	}
	t := &tap{wire: s.wire, wake: req.Wake}
	req.Wake = t.message
	if granted := req.Granted; granted != nil {
		req.Granted = func(g backend.Grant) {
			if !t.lost() {
				granted(g)
			}
		}
	}
	var err error
	if t.Subscription, err = s.notifier.Subscribe(ctx, req); err != nil {
		return nil, err
	}
	s.wire.change(func() { s.wire.subs[t] = struct{}{} })
	return t, nil
}

// A tap is a subscription over a wire.
type tap struct {
	backend.Subscription
	wire *wire
	wake func(backend.Wakeup)
}

// message passes a wake-up message on, or loses it.
func (t *tap) message(w backend.Wakeup) {
	if !t.lost() {
		t.wake(w)
	}
}

// lost reports whether a message would be lost if it were sent now.
func (t *tap) lost() bool {
	t.wire.mu.Lock()
	defer t.wire.mu.Unlock()
	return t.wire.blocked&faults.ToClient != 0 || t.wire.refused
}

func (t *tap) Close() {
	t.wire.change(func() { delete(t.wire.subs, t) })
	t.Subscription.Close()
}

// wakeAll wakes all waiters. It is called when their messages might have been lost.
func (w *wire) wakeAll() {
	w.mu.Lock()
	var all []*tap
	for t := range w.subs {
		all = append(all, t)
	}
	w.mu.Unlock()
	for _, t := range all {
		t.wake(0)
	}
}
