package contract

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed951563bd/distsync/backend"
)

// keepFaults are those that are told by the cases for a release with Keep.
var keepFaults = []storeFault{
	{"what is kept lasts for the lease", "keep/kept", false},
	{"what is kept looks held", "keep/kept", true},
	{"what is kept is kept anew", "keep/owner", true},
	{"nothing is kept", "keep/nothing", true},
	{"force leaves what is kept", "keep/force", true},
	{"close ends keeping", "keep/closed session", false},
	{"what is kept is inspected as held", "keep/inspect", false},
	{"keeping frees for a moment", "notifier/kept", false},
	{"broken connection: says Retry", "fragile/release with Keep", false},
	{"keeping gives back all holds", "keep/count", true},
	{"keeping is a lease for what is left", "keep/lease", false},
	{"what is kept never ends", "keep/runs out", true},
	{"what is kept is rounded up", "keep/time", false},
	{"keeping forgets tokens", "keep/token", true},
	{"kept is said to one kind", "keep/other kinds", false},
	{"who waits is given what is kept", "keep/line", true},
	{"heirs keep nothing", "keep/turn", true},
	{"keeping leaves the place", "keep/place", true},
	{"what is kept keeps a late place", "keep/late look", false},
	{"keeping a write ends its owner's read", "keep/write", true},
	{"keeping leaves the note", "keep/note", true},
	{"kept permits are given back", "keep/permits", true},
	{"any number of permits is kept", "keep/other number", false},
	{"whoever watches isn't told of keeping", "keep/watched", false},
}

// coarse are limits of a store that counts leases in seconds.
var coarse = backend.Limits{MinLease: 2 * time.Second, LeaseStep: time.Second}

// fakeKeeps is what the sessions of a fakeStore remember together, for these faults.
type fakeKeeps struct {
	fault string

	mu       sync.Mutex
	acquired map[holdID]bool         // by asking
	kinds    map[string]backend.Kind // of the locks that were kept
}

func newFakeKeeps(fault string) *fakeKeeps {
	return &fakeKeeps{
		fault: fault, acquired: make(map[holdID]bool), kinds: make(map[string]backend.Kind),
	}
}

func (st *fakeKeeps) with(f func()) {
	st.mu.Lock()
	defer st.mu.Unlock()
	f()
}

// keepFake is a session of membackend with one of these faults.
type keepFake struct {
	memSession
	st     *fakeKeeps
	closed atomic.Bool
}

func (s *keepFake) Acquire(
	ctx context.Context, req backend.AcquireRequest,
) (backend.AcquireResult, error) {
	res, err := s.memSession.Acquire(ctx, req)
	s.st.with(func() {
		id := holdID{req.Name, req.Owner}
		s.st.acquired[id] = s.st.acquired[id] || res.Acquired
		if _, kept := s.st.kinds[req.Name]; kept && s.st.fault == "keeping forgets tokens" &&
			res.Token != 0 {
			res.Token = 1
		}
	})
	return res, err
}

func (s *keepFake) Release(
	ctx context.Context, req backend.ReleaseRequest,
) (res backend.ReleaseResult, err error) {
	st, id := s.st, holdID{req.Name, req.Owner}
	if req.Keep == 0 {
		st.with(func() { delete(st.acquired, id) })
		return s.memSession.Release(ctx, req)
	}
	before, _ := s.memSession.Look(ctx, backend.LookRequest{
		Kind: req.Kind, Name: req.Name, Owner: req.Owner, Permits: req.Permits, Limit: 1000,
	})
	acquire := backend.AcquireRequest{
		Kind: req.Kind, Name: req.Name, Owner: req.Owner, Lease: req.Lease, Permits: req.Permits,
		Limit: 1000,
	}
	plain := req
	plain.Keep = 0
	switch st.fault {
	case "what is kept lasts for the lease":
		req.Keep = req.Lease
	case "what is kept is rounded up":
		req.Keep = max(req.Keep, coarse.MinLease)
	case "nothing is kept":
		if !before.Held && req.Kind != backend.Permits {
			s.memSession.Acquire(ctx, acquire)
			defer func() { res.Outcome = backend.NotHeld }()
		}
	case "close ends keeping":
		if s.closed.Load() {
			return res, &backend.Error{Kind: backend.Refused, Err: errors.New("closed")}
		}
	case "keeping frees for a moment":
		if before.Count == 1 {
			s.memSession.Release(ctx, plain)
			s.memSession.Acquire(ctx, acquire)
		}
	case "keeping gives back all holds":
		for ; before.Count > 1 && req.Kind != backend.Permits; before.Count-- {
			s.memSession.Release(ctx, plain)
		}
	case "keeping is a lease for what is left":
		req.Lease = req.Keep
	case "what is kept never ends":
		req.Keep = never
	case "who waits is given what is kept":
		if before.Count == 1 && req.Kind == backend.Fair {
			s.memSession.Release(ctx, plain)
			return backend.ReleaseResult{Outcome: backend.Kept}, nil
		}
	case "heirs keep nothing":
		asked := false
		st.with(func() { asked = st.acquired[id] })
		if req.Kind == backend.Fair && !asked {
			return s.memSession.Release(ctx, plain)
		}
	case "keeping leaves the place":
		if req.Kind == backend.Fair && before.Count == 0 && !before.Kept {
			return res, nil
		}
	case "what is kept keeps a late place":
		if req.Kind == backend.Fair && before.Kept {
			return backend.ReleaseResult{Outcome: backend.Kept}, nil
		}
	case "keeping leaves the note":
		if req.Kind == backend.Write && before.Count == 0 && !before.Kept {
			return res, nil
		}
	case "kept permits are given back":
		if req.Kind == backend.Permits && before.Count == req.Permits {
			s.memSession.Release(ctx, plain)
			return backend.ReleaseResult{Outcome: backend.Kept}, nil
		}
	case "any number of permits is kept":
		if req.Kind == backend.Permits && before.Count > 0 {
			req.Permits = before.Count
		}
	}
	res, err = s.memSession.Release(ctx, req)
	if res.Outcome != backend.Kept {
		return res, err
	}
	st.with(func() {
		st.kinds[req.Name] = req.Kind
		delete(st.acquired, id)
	})
	switch st.fault {
	case "what is kept is kept anew":
		if before.Kept {
			s.memSession.ForceRelease(ctx, backend.ForceReleaseRequest{
				Kind: req.Kind, Name: req.Name,
			})
			s.memSession.Acquire(ctx, acquire)
			return s.memSession.Release(ctx, req)
		}
	case "keeping a write ends its owner's read":
		if req.Kind == backend.Write {
			s.memSession.Release(ctx, backend.ReleaseRequest{
				Kind: backend.Read, Name: req.Name, Owner: req.Owner,
			})
		}
	}
	return res, err
}

func (s *keepFake) Subscribe(
	ctx context.Context, req backend.SubscribeRequest,
) (backend.Subscription, error) {
	if s.st.fault == "whoever watches isn't told of keeping" {
		req.Watches = false
	}
	return s.memSession.Subscribe(ctx, req)
}

func (s *keepFake) ForceRelease(
	ctx context.Context, req backend.ForceReleaseRequest,
) (backend.ForceReleaseResult, error) {
	if s.st.fault == "force leaves what is kept" {
		if res, _ := s.memSession.Look(ctx, backend.LookRequest{
			Kind: req.Kind, Name: req.Name, Limit: 1,
		}); res.Kept {
			return backend.ForceReleaseResult{}, nil
		}
	}
	return s.memSession.ForceRelease(ctx, req)
}

func (s *keepFake) Look(ctx context.Context, req backend.LookRequest) (backend.LookResult, error) {
	res, err := s.memSession.Look(ctx, req)
	switch s.st.fault {
	case "what is kept looks held":
		res.Kept = false
	case "kept is said to one kind":
		s.st.with(func() { res.Kept = res.Kept && s.st.kinds[req.Name] == req.Kind })
	}
	return res, err
}

func (s *keepFake) Inspect(
	ctx context.Context, req backend.InspectRequest,
) (backend.Inspection, error) {
	res, err := s.memSession.Inspect(ctx, req)
	if s.st.fault == "what is kept is inspected as held" {
		for i := range res.Holders {
			res.Holders[i].Kept = false
		}
	}
	return res, err
}

func (s *keepFake) Close() error {
	s.closed.Store(true)
	return s.memSession.Close()
}
