package contract

import (
	"context"

	"github.com/seed951563bd/distsync/backend"
)

// withOnePermit returns a variant of the store that lets the general lock cases run on semaphores.
// In this variant, a request for Permits that gives no number asks for one permit of a semaphore
// that has only one.
func (st Store) withOnePermit() Store {
	open, fragile := st.Backend, st.Fragile
	st.Backend = func() backend.Backend { return onePermitBackend{open()} }
	if fragile != nil {
		st.Fragile = func() (backend.Backend, Strike) {
			b, strike := fragile()
			return onePermitBackend{b}, strike
		}
	}
	return st
}

type onePermitBackend struct{ backend.Backend }

func (b onePermitBackend) Open() backend.Session {
	s, can := backend.Open(b.Backend)
	return onePermit{s, can}
}

// A onePermit is a session whose requests ask for the only permit of a semaphore, unless they say
// how many permits they want.
type onePermit struct {
	backend.Session
	bare backend.Capabilities
}

// Capabilities implements [backend.Capable].
func (s onePermit) Capabilities() backend.Capabilities {
	can := s.bare
	if can.BatchRenewer != nil {
		can.BatchRenewer = s
	}
	if can.Batcher != nil {
		can.Batcher = s
	}
	return can
}

// The functions below fill in the permits and the limit, if a request leaves them out.

func acquiresOne(req backend.AcquireRequest) backend.AcquireRequest {
	if req.Permits == 0 {
		req.Permits, req.Limit = 1, 1
	}
	return req
}

func releasesOne(req backend.ReleaseRequest) backend.ReleaseRequest {
	req.Permits = max(req.Permits, 1)
	return req
}

func renewsOne(req backend.RenewRequest) backend.RenewRequest {
	req.Permits = max(req.Permits, 1)
	return req
}

// each applies f to every request, and returns the results.
func each[Req any](reqs []Req, f func(Req) Req) []Req {
	filled := make([]Req, len(reqs))
	for i, req := range reqs {
		filled[i] = f(req)
	}
	return filled
}

func (s onePermit) Acquire(
	ctx context.Context, req backend.AcquireRequest,
) (backend.AcquireResult, error) {
	return s.Session.Acquire(ctx, acquiresOne(req))
}

func (s onePermit) Release(
	ctx context.Context, req backend.ReleaseRequest,
) (backend.ReleaseResult, error) {
	return s.Session.Release(ctx, releasesOne(req))
}

func (s onePermit) Renew(
	ctx context.Context, req backend.RenewRequest,
) (backend.RenewResult, error) {
	return s.Session.Renew(ctx, renewsOne(req))
}

func (s onePermit) Look(ctx context.Context, req backend.LookRequest) (backend.LookResult, error) {
	if req.Permits == 0 {
		req.Permits, req.Limit = 1, 1
	}
	return s.Session.Look(ctx, req)
}

func (s onePermit) RenewBatch(
	ctx context.Context, reqs []backend.RenewRequest, answer func(int, backend.RenewResult, error),
) {
	s.bare.BatchRenewer.RenewBatch(ctx, each(reqs, renewsOne), answer)
}

func (s onePermit) AcquireBatch(
	ctx context.Context, reqs []backend.AcquireRequest, answer func(
		int, backend.AcquireResult, error,
	),
) {
	s.bare.Batcher.AcquireBatch(ctx, each(reqs, acquiresOne), answer)
}

func (s onePermit) ReleaseBatch(
	ctx context.Context, reqs []backend.ReleaseRequest, answer func(
		int, backend.ReleaseResult, error,
	),
) {
	s.bare.Batcher.ReleaseBatch(ctx, each(reqs, releasesOne), answer)
}
