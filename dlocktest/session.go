package dlocktest

import (
	"context"

	"github.com/seed951563bd/distsync/backend"
)

// session wraps a client's membackend session, and injects the store's faults. It isn't a
// [backend.BatchRenewer]: each hold is renewed by its own step, so that a single renewal can hang.
type session struct {
	memory
	store *Store

	client string // once known; guarded by store.mu
}

// through carries out a step, unless a fault makes it fail.
func through[Req, Res any](
	ctx context.Context, s *session, do func(context.Context, Req) (Res, error), req Req,
) (res Res, err error) {
	_, renews := any(req).(backend.RenewRequest)
	if err := s.store.undergo(ctx, renews); err != nil {
		return res, err
	}
	return do(ctx, req)
}

func (s *session) Acquire(
	ctx context.Context, req backend.AcquireRequest,
) (backend.AcquireResult, error) {
	s.store.mu.Lock()
	s.client = clientOf(req.Owner)
	s.store.mu.Unlock()
	return through(ctx, s, s.memory.Acquire, req)
}

func (s *session) Release(
	ctx context.Context, req backend.ReleaseRequest,
) (backend.ReleaseResult, error) {
	res, err := through(ctx, s, s.memory.Release, req)
	if err != nil {
		s.store.mu.Lock()
		defer s.store.mu.Unlock()
		s.store.owed[req.Owner] = true
	}
	return res, err
}

func (s *session) Renew(
	ctx context.Context, req backend.RenewRequest,
) (backend.RenewResult, error) {
	return through(ctx, s, s.memory.Renew, req)
}

func (s *session) ForceRelease(
	ctx context.Context, req backend.ForceReleaseRequest,
) (backend.ForceReleaseResult, error) {
	return through(ctx, s, s.memory.ForceRelease, req)
}

func (s *session) Look(ctx context.Context, req backend.LookRequest) (backend.LookResult, error) {
	return through(ctx, s, s.memory.Look, req)
}

func (s *session) KeepPlaces(
	ctx context.Context, req backend.PlacesRequest,
) (backend.PlacesResult, error) {
	return through(ctx, s, s.memory.KeepPlaces, req)
}

func (s *session) Inspect(
	ctx context.Context, req backend.InspectRequest,
) (backend.Inspection, error) {
	return through(ctx, s, s.memory.Inspect, req)
}

func (s *session) List(ctx context.Context, req backend.ListRequest) (backend.ListResult, error) {
	return through(ctx, s, s.memory.List, req)
}

func (s *session) Latch(
	ctx context.Context, req backend.LatchRequest,
) (backend.LatchResult, error) {
	return through(ctx, s, s.memory.Latch, req)
}

// Capabilities implements [backend.Capable]. Every step, even one that hangs, returns as soon as
// its context ends.
func (s *session) Capabilities() backend.Capabilities {
	return backend.Capabilities{
		Notifier: s, Inspector: s, Lister: s, Liner: s, Latcher: s,
		Steps: backend.StepsReturn,
	}
}

// Close implements [backend.Session].
func (s *session) Close() error {
	s.store.mu.Lock()
	delete(s.store.sessions, s)
	s.store.mu.Unlock()
	return s.memory.Close()
}

// waiting is the subscription of a client that waits for a lock. The client is woken when the lock
// is released.
type waiting struct {
	backend.Subscription
	s    *session
	name string
}

// Subscribe implements [backend.Notifier].
func (s *session) Subscribe(
	ctx context.Context, req backend.SubscribeRequest,
) (backend.Subscription, error) {
	sub, err := s.memory.Subscribe(ctx, req)
	if err != nil || req.Watches {
		return sub, err
	}
	w := &waiting{sub, s, req.Name}
	s.store.mu.Lock()
	defer s.store.mu.Unlock()
	s.store.waits[w] = true
	return w, nil
}

func (w *waiting) Close() {
	w.s.store.mu.Lock()
	delete(w.s.store.waits, w)
	w.s.store.mu.Unlock()
	w.Subscription.Close()
}
