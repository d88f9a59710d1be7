package contract

import (
	"context"
	"errors"
	"sync"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/contract/faults"
)

// A fakeLink is what stands between a backend and a fakeStore: each step is one request.
type fakeLink struct {
	*fakeStore

	mu    sync.Mutex
	armed bool
	blow  faults.Blow
	after int // how many requests come first
	late  func()
	hit   bool
}

func (st *fakeStore) fragile() (backend.Backend, Strike) {
	l := &fakeLink{fakeStore: st}
	return l, l.strike
}

func (l *fakeLink) strike(blow faults.Blow, n int) (end func() bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.armed, l.blow, l.after, l.late, l.hit = l.fault != "nothing is struck", blow, n, nil, false
	return func() bool {
		l.mu.Lock()
		late, hit := l.late, l.hit
		l.armed, l.late = false, nil
		l.mu.Unlock()
		if late != nil {
			late()
		}
		return hit
	}
}

// strikes says whether the fault applies to the present request.
func (l *fakeLink) strikes() (faults.Blow, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.armed {
		return 0, false
	}
	l.after--
	if l.after >= 0 {
		return 0, false
	}
	l.armed, l.hit = false, true
	return l.blow, true
}

var errBroken = errors.New("the connection broke")

// send sends a request, to which the fault may apply. How that looks to the caller is up to the
// backend.
func send[Req, Res any](
	ctx context.Context, l *fakeLink, req Req, do func(context.Context, Req) (Res, error),
) (res Res, err error) {
	blow, struck := l.strikes()
	if !struck {
		return do(ctx, req)
	}
	kind := backend.Unknown
	switch {
	case l.fault == "broken connection: says Retry",
		l.fault == "late request: says Retry" && blow == faults.HoldRequest:
		kind = backend.Retry
	case l.fault == "broken connection: says Refused":
		kind = backend.Refused
	}
	switch blow {
	case faults.LoseReply:
		do(ctx, req)
	case faults.HoldRequest:
		l.mu.Lock()
		l.late = func() { do(context.WithoutCancel(ctx), req) }
		l.mu.Unlock()
		<-ctx.Done()
	}
	switch {
	case l.fault == "broken connection: says nothing":
		return res, nil
	case l.fault == "broken connection: repeats" && blow != faults.HoldRequest:
		return do(ctx, req)
	}
	return res, &backend.Error{Kind: kind, Err: errBroken}
}

func (l *fakeLink) Open() backend.Session { return fragileFake{l.fakeStore.Open().(*fake), l} }

// fragileFake is a session on a fakeLink.
type fragileFake struct {
	*fake
	l *fakeLink
}

func (s fragileFake) Acquire(
	ctx context.Context, req backend.AcquireRequest,
) (backend.AcquireResult, error) {
	return send(ctx, s.l, req, s.fake.Acquire)
}

func (s fragileFake) Release(
	ctx context.Context, req backend.ReleaseRequest,
) (backend.ReleaseResult, error) {
	return send(ctx, s.l, req, s.fake.Release)
}

func (s fragileFake) Renew(
	ctx context.Context, req backend.RenewRequest,
) (backend.RenewResult, error) {
	return send(ctx, s.l, req, s.fake.Renew)
}

func (s fragileFake) RenewBatch(
	ctx context.Context, reqs []backend.RenewRequest, answer func(int, backend.RenewResult, error),
) {
	for i, req := range reqs {
		res, err := s.Renew(ctx, req)
		answer(i, res, err)
	}
}

func (s fragileFake) AcquireBatch(
	ctx context.Context, reqs []backend.AcquireRequest, answer func(
		int, backend.AcquireResult, error,
	),
) {
	for i, req := range reqs {
		res, err := s.Acquire(ctx, req)
		answer(i, res, err)
	}
}

func (s fragileFake) ReleaseBatch(
	ctx context.Context, reqs []backend.ReleaseRequest, answer func(
		int, backend.ReleaseResult, error,
	),
) {
	for i, req := range reqs {
		res, err := s.Release(ctx, req)
		answer(i, res, err)
	}
}

func (s fragileFake) ForceRelease(
	ctx context.Context, req backend.ForceReleaseRequest,
) (backend.ForceReleaseResult, error) {
	return send(ctx, s.l, req, s.fake.ForceRelease)
}

func (s fragileFake) KeepPlaces(
	ctx context.Context, req backend.PlacesRequest,
) (backend.PlacesResult, error) {
	return send(ctx, s.l, req, s.fake.KeepPlaces)
}

func (s fragileFake) Look(
	ctx context.Context, req backend.LookRequest,
) (backend.LookResult, error) {
	return send(ctx, s.l, req, s.fake.Look)
}

func (s fragileFake) Inspect(
	ctx context.Context, req backend.InspectRequest,
) (backend.Inspection, error) {
	return send(ctx, s.l, req, s.fake.Inspect)
}

func (s fragileFake) List(
	ctx context.Context, req backend.ListRequest,
) (backend.ListResult, error) {
	return send(ctx, s.l, req, s.fake.List)
}
