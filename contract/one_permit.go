package contract

import (
	"context"

	"github.com/seed951563bd/distsync/backend"
)

// withOnePermit returns the store with sessions for cases about locks in general: who asks for Permits and doesn't say how
// many asks for the one permit that there is.
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

// Open returns a session that implements the optional interfaces which the cases know, if the store's own does.
func (b onePermitBackend) Open() backend.Session {
	s := onePermit{b.Backend.Open()}
	n := backend.CapabilitiesOf(s.Session).Notifier
	notifies := n != nil
	r := backend.CapabilitiesOf(s.Session).BatchRenewer
	batches := r != nil
	switch {
	case notifies && batches:
		return struct {
			onePermit
			backend.Notifier
			onePermitBatch
		}{s, n, onePermitBatch{r}}
	case notifies:
		return struct {
			onePermit
			backend.Notifier
		}{s, n}
	case batches:
		return struct {
			onePermit
			onePermitBatch
		}{s, onePermitBatch{r}}
	default:
		return s
	}
}

// onePermit is a session that fills in the numbers where there are none.
type onePermit struct{ backend.Session }

func (s onePermit) Acquire(ctx context.Context, req backend.AcquireRequest) (backend.AcquireResult, error) {
	if req.Permits == 0 {
		req.Permits, req.Limit = 1, 1
	}
	return s.Session.Acquire(ctx, req)
}

func (s onePermit) Release(ctx context.Context, req backend.ReleaseRequest) (backend.ReleaseResult, error) {
	req.Permits = max(req.Permits, 1)
	return s.Session.Release(ctx, req)
}

func (s onePermit) Renew(ctx context.Context, req backend.RenewRequest) (backend.RenewResult, error) {
	req.Permits = max(req.Permits, 1)
	return s.Session.Renew(ctx, req)
}

func (s onePermit) Look(ctx context.Context, req backend.LookRequest) (backend.LookResult, error) {
	if req.Permits == 0 {
		req.Permits, req.Limit = 1, 1
	}
	return s.Session.Look(ctx, req)
}

type onePermitBatch struct{ r backend.BatchRenewer }

func (b onePermitBatch) RenewBatch(ctx context.Context, reqs []backend.RenewRequest, answer func(i int, res backend.RenewResult, err error)) {
	filled := make([]backend.RenewRequest, len(reqs))
	for i, req := range reqs {
		req.Permits = max(req.Permits, 1)
		filled[i] = req
	}
	b.r.RenewBatch(ctx, filled, answer)
}
