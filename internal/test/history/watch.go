package history

import (
	"context"
	"time"

	"github.com/seed951563bd/distsync/backend"
)

// A step records an operation of package backend that was sent to the store.
type step struct {
	kind    stepKind
	op      *op // the call that it was made for, if known
	side    backend.Kind
	name    string
	owner   string
	lease   time.Duration
	reentry bool
	waited  time.Duration
	place   time.Duration // duration of a writer's note or of a place in line; 0 if none
	permits int
	token   uint64 // fencing token of the acquisition
	call    time.Duration
	ret     time.Duration // 0: it has not returned
	result  stepResult
}

type stepKind uint8

const (
	acquireStep stepKind = iota
	renewStep
	releaseStep
	forceStep
	placesStep // KeepPlaces, for one of the owners
	grantStep  // a notification of a grant, not a request
)

type stepResult uint8

const (
	unknown stepResult = iota // no answer; the step may have taken effect, or may still do so
	granted                   // acquired, renewed, or released one of several holds
	freed
	refused // held by another, or not held
	skipped // not carried out, and never will be
)

// Watch returns a backend that passes every step on to b and records it.
//
// If faults are injected between the client and the store, b must be on the store's side of them,
// so that the Recorder learns the outcome of a request even if the client gets no reply.
func (r *Recorder) Watch(b backend.Backend) backend.Backend { return &watched{r, b} }

type watched struct {
	r     *Recorder
	inner backend.Backend
}

// Limits implements [backend.Backend].
func (w *watched) Limits() backend.Limits { return w.inner.Limits() }

// Open implements [backend.Backend]. The session has the capabilities of b's sessions.
func (w *watched) Open() backend.Session {
	inner, can := backend.Open(w.inner)
	return &session{inner, w.r, can}
}

type session struct {
	backend.Session
	r    *Recorder
	bare backend.Capabilities
}

// Capabilities implements [backend.Capable]. Steps that change no lock are not recorded.
func (s *session) Capabilities() backend.Capabilities {
	can := s.bare
	if can.Notifier != nil {
		can.Notifier = s
	}
	if can.BatchRenewer != nil {
		can.BatchRenewer = s
	}
	if can.Batcher != nil {
		can.Batcher = s
	}
	if can.Liner != nil {
		can.Liner = s
	}
	return can
}

func (r *Recorder) stepStarted(s *step) *step {
	r.mu.Lock()
	defer r.mu.Unlock()
	s.call = r.now()
	r.steps = append(r.steps, s)
	return s
}

func (r *Recorder) stepEnded(s *step, result stepResult, err error) {
	switch {
	case err == nil:
	case backend.KindOf(err) == backend.Unknown:
		result = unknown
	default:
		result = skipped
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	s.ret, s.result = r.now(), result
	r.tellStep(s)
}

// numbered records the fencing token that a step returned.
func (r *Recorder) numbered(s *step, token uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s.token = token
}

func orRefused(done bool, result stepResult) stepResult {
	if done {
		return result
	}
	return refused
}

func (s *session) Acquire(
	ctx context.Context, req backend.AcquireRequest,
) (backend.AcquireResult, error) {
	st := s.r.stepStarted(acquisition(ctx, req))
	res, err := s.Session.Acquire(ctx, req)
	s.r.acquired(st, res, err)
	return res, err
}

func acquisition(ctx context.Context, req backend.AcquireRequest) *step {
	return &step{
		kind: acquireStep, op: tag(ctx, req.Name), side: req.Kind, name: req.Name, owner: req.Owner,
		lease:   req.Lease,
		reentry: req.Reentry, waited: req.Waited, place: req.Place, permits: req.Permits,
	}
}

func (r *Recorder) acquired(s *step, res backend.AcquireResult, err error) {
	r.numbered(s, res.Token)
	r.stepEnded(s, orRefused(res.Acquired, granted), err)
}

func (s *session) Release(
	ctx context.Context, req backend.ReleaseRequest,
) (backend.ReleaseResult, error) {
	st := s.r.stepStarted(release(ctx, req))
	res, err := s.Session.Release(ctx, req)
	s.r.released(st, res, err)
	return res, err
}

func release(ctx context.Context, req backend.ReleaseRequest) *step {
	return &step{
		kind: releaseStep, op: tag(ctx, req.Name), side: req.Kind, name: req.Name, owner: req.Owner,
		lease: req.Lease, permits: req.Permits,
	}
}

func (r *Recorder) released(s *step, res backend.ReleaseResult, err error) {
	outcome := refused
	switch res.Outcome {
	case backend.Left:
		outcome = granted
	case backend.Freed:
		outcome = freed
	}
	r.stepEnded(s, outcome, err)
}

func (s *session) Renew(
	ctx context.Context, req backend.RenewRequest,
) (backend.RenewResult, error) {
	st := s.r.stepStarted(renewal(req))
	res, err := s.Session.Renew(ctx, req)
	s.r.stepEnded(st, orRefused(res.Held, granted), err)
	return res, err
}

func renewal(req backend.RenewRequest) *step {
	return &step{
		kind: renewStep, side: req.Kind, name: req.Name, owner: req.Owner, lease: req.Lease,
		permits: req.Permits,
	}
}

func (s *session) ForceRelease(
	ctx context.Context, req backend.ForceReleaseRequest,
) (backend.ForceReleaseResult, error) {
	st := s.r.stepStarted(&step{
		kind: forceStep, op: tag(ctx, req.Name), side: req.Kind, name: req.Name,
	})
	res, err := s.Session.ForceRelease(ctx, req)
	s.r.stepEnded(st, orRefused(res.Released, freed), err)
	return res, err
}

// KeepPlaces implements [backend.Liner]. It records one step for each owner.
func (s *session) KeepPlaces(
	ctx context.Context, req backend.PlacesRequest,
) (backend.PlacesResult, error) {
	steps := make([]*step, len(req.Owners))
	for i, owner := range req.Owners {
		steps[i] = s.r.stepStarted(&step{
			kind: placesStep, side: req.Kind, name: req.Name, owner: owner, place: req.Place,
		})
	}
	res, err := s.bare.Liner.KeepPlaces(ctx, req)
	for i, owner := range req.Owners {
		s.r.stepEnded(steps[i], orRefused(owner == res.Holder, granted), err)
	}
	return res, err
}

// Subscribe implements [backend.Notifier].
func (s *session) Subscribe(
	ctx context.Context, req backend.SubscribeRequest,
) (backend.Subscription, error) {
	if tell := req.Granted; tell != nil {
		req.Granted = func(g backend.Grant) {
			st := s.r.stepStarted(&step{
				kind: grantStep, side: req.Kind, name: req.Name, owner: g.Owner, lease: g.Lease,
			})
			s.r.stepEnded(st, orRefused(g.Lease > 0, granted), nil)
			tell(g)
		}
	}
	return s.bare.Notifier.Subscribe(ctx, req)
}

// RenewBatch implements [backend.BatchRenewer].
func (s *session) RenewBatch(
	ctx context.Context, reqs []backend.RenewRequest, answer func(int, backend.RenewResult, error),
) {
	steps := make([]*step, len(reqs))
	for i, req := range reqs {
		steps[i] = s.r.stepStarted(renewal(req))
	}
	s.bare.BatchRenewer.RenewBatch(ctx, reqs, func(i int, res backend.RenewResult, err error) {
		s.r.stepEnded(steps[i], orRefused(res.Held, granted), err)
		answer(i, res, err)
	})
}

// AcquireBatch and ReleaseBatch implement [backend.Batcher].
func (s *session) AcquireBatch(
	ctx context.Context, reqs []backend.AcquireRequest, answer func(
		int, backend.AcquireResult, error,
	),
) {
	steps := make([]*step, len(reqs))
	for i, req := range reqs {
		steps[i] = s.r.stepStarted(acquisition(ctx, req))
	}
	s.bare.Batcher.AcquireBatch(ctx, reqs, func(i int, res backend.AcquireResult, err error) {
		s.r.acquired(steps[i], res, err)
		answer(i, res, err)
	})
}

func (s *session) ReleaseBatch(
	ctx context.Context, reqs []backend.ReleaseRequest, answer func(
		int, backend.ReleaseResult, error,
	),
) {
	steps := make([]*step, len(reqs))
	for i, req := range reqs {
		steps[i] = s.r.stepStarted(release(ctx, req))
	}
	s.bare.Batcher.ReleaseBatch(ctx, reqs, func(i int, res backend.ReleaseResult, err error) {
		s.r.released(steps[i], res, err)
		answer(i, res, err)
	})
}
