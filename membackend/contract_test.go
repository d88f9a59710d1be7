package membackend_test

import (
	"context"
	"testing"

	"go.uber.org/goleak"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/contract"
	"github.com/seed951563bd/distsync/internal/test/apart"
	"github.com/seed951563bd/distsync/membackend"
)

func TestMain(m *testing.M) {
	apart.SideBySide(6)
	goleak.VerifyTestMain(m)
}

func newStore(*testing.T) contract.Store {
	b := membackend.New()
	return contract.Store{
		Backend: func() backend.Backend { return b },
		Wipe:    b.Forget,
	}
}

func TestContract(t *testing.T) {
	if apart.Run(t, 1) {
		return
	}
	contract.Run(t, contract.Harness{NewStore: newStore, Virtual: true})
}

func TestContractInRealTime(t *testing.T) {
	if apart.Run(t, 4) {
		return
	}
	// The other parts take minutes: they are run in virtual time here, and in real time on other
	// stores.
	quick := func(c contract.Case) bool {
		return c.Part != "locker" && c.Part != "locker without hand-over" && apart.Mine(c.String())
	}
	contract.Run(t, contract.Harness{NewStore: newStore, Choose: quick})
}

// A store may declare any of the kinds: here it is Fenced alone.
func TestContractOfOneKind(t *testing.T) {
	if apart.Run(t, 1) {
		return
	}
	contract.Run(t, contract.Harness{Virtual: true, NewStore: func(t *testing.T) contract.Store {
		b := membackend.New()
		return contract.Store{
			Backend: func() backend.Backend {
				return declaring{b, backend.KindsOf(backend.Fenced)}
			},
			Wipe: b.Forget,
		}
	}})
}

// declaring is a store that declares some kinds, and refuses the others.
type declaring struct {
	*membackend.Backend
	kinds backend.Kinds
}

func (b declaring) Limits() backend.Limits {
	limits := b.Backend.Limits()
	limits.Kinds = b.kinds
	return limits
}

func (b declaring) Open() backend.Session { return declaringSession{b.Backend.Open(), b.kinds} }

type declaringSession struct {
	backend.Session
	kinds backend.Kinds
}

// declared makes a step, if it is one about a kind that is declared.
func declared[Req, Res any](
	s declaringSession, ctx context.Context, k backend.Kind, do func(
		context.Context, Req,
	) (Res, error), req Req,
) (res Res, err error) {
	if !s.kinds.Has(k) {
		return res, backend.UnknownKind("a store of some kinds", k)
	}
	return do(ctx, req)
}

func (s declaringSession) Acquire(
	ctx context.Context, req backend.AcquireRequest,
) (backend.AcquireResult, error) {
	return declared(s, ctx, req.Kind, s.Session.Acquire, req)
}

func (s declaringSession) Release(
	ctx context.Context, req backend.ReleaseRequest,
) (backend.ReleaseResult, error) {
	return declared(s, ctx, req.Kind, s.Session.Release, req)
}

func (s declaringSession) Renew(
	ctx context.Context, req backend.RenewRequest,
) (backend.RenewResult, error) {
	return declared(s, ctx, req.Kind, s.Session.Renew, req)
}

func (s declaringSession) ForceRelease(
	ctx context.Context, req backend.ForceReleaseRequest,
) (backend.ForceReleaseResult, error) {
	return declared(s, ctx, req.Kind, s.Session.ForceRelease, req)
}

func (s declaringSession) Look(
	ctx context.Context, req backend.LookRequest,
) (backend.LookResult, error) {
	return declared(s, ctx, req.Kind, s.Session.Look, req)
}

func (s declaringSession) Subscribe(
	ctx context.Context, req backend.SubscribeRequest,
) (backend.Subscription, error) {
	return declared(s, ctx, req.Kind, s.Session.(backend.Notifier).Subscribe, req)
}
