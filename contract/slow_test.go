package contract

import (
	"context"
	"testing"
	"time"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/membackend"
)

// A slowStore takes one step at a time, and its time for each, as a database on a disk may. It has
// neither batches nor notifications.
type slowStore struct {
	backend.Backend
	step time.Duration
	busy chan struct{}
}

func (st slowStore) Open() backend.Session { return slowSession{st.Backend.Open(), st} }

type slowSession struct {
	in backend.Session
	st slowStore
}

func slowly[Req, Res any](
	ctx context.Context, st slowStore, req Req, do func(context.Context, Req) (Res, error),
) (res Res, err error) {
	select {
	case st.busy <- struct{}{}:
	case <-ctx.Done():
		return res, &backend.Error{Kind: backend.Retry, Err: ctx.Err()}
	}
	defer func() { <-st.busy }()
	time.Sleep(st.step)
	return do(ctx, req)
}

func (s slowSession) Acquire(
	ctx context.Context, req backend.AcquireRequest,
) (backend.AcquireResult, error) {
	return slowly(ctx, s.st, req, s.in.Acquire)
}

func (s slowSession) Release(
	ctx context.Context, req backend.ReleaseRequest,
) (backend.ReleaseResult, error) {
	return slowly(ctx, s.st, req, s.in.Release)
}

func (s slowSession) Renew(
	ctx context.Context, req backend.RenewRequest,
) (backend.RenewResult, error) {
	return slowly(ctx, s.st, req, s.in.Renew)
}

func (s slowSession) ForceRelease(
	ctx context.Context, req backend.ForceReleaseRequest,
) (backend.ForceReleaseResult, error) {
	return slowly(ctx, s.st, req, s.in.ForceRelease)
}

func (s slowSession) Look(
	ctx context.Context, req backend.LookRequest,
) (backend.LookResult, error) {
	return slowly(ctx, s.st, req, s.in.Look)
}

func (s slowSession) Close() error { return s.in.Close() }

// runInBubbles runs cases as in real time, with its leases and limits, but in bubbles of
// testing/synctest, where waiting takes no time and the machine is never busy.
func runInBubbles(t *testing.T, h Harness, cases []testCase) {
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			inBubble(t, c.rule, func(t *testing.T) { c.run(newEnv(t, h, c.rule)) })
		})
	}
}

// A store is no worse for being slow.
func TestSlowStore(t *testing.T) {
	runInBubbles(t, Harness{NewStore: func(*testing.T) Store {
		st := slowStore{membackend.New(), 60 * time.Millisecond, make(chan struct{}, 1)}
		return Store{Backend: func() backend.Backend { return st }}
	}}, loadCases)
}

// A farStore is one that requests to acquire take a while to reach, and no others.
type farStore struct{ backend.Backend }

func (st farStore) Open() backend.Session {
	s := st.Backend.Open()
	return farSession{s, s.(backend.Notifier)}
}

type farSession struct {
	backend.Session
	backend.Notifier
}

func (s farSession) Acquire(
	ctx context.Context, req backend.AcquireRequest,
) (backend.AcquireResult, error) {
	time.Sleep(60 * time.Millisecond)
	return s.Session.Acquire(context.WithoutCancel(ctx), req)
}

// A request that is sent before a case goes on may arrive after the case's later requests.
func TestFarStore(t *testing.T) {
	runInBubbles(t, Harness{NewStore: func(*testing.T) Store {
		st := farStore{membackend.New()}
		return Store{Backend: func() backend.Backend { return st }}
	}}, waitCases)
}

// A store that counts in seconds and is half of one late to end a lease says of it what it says of
// one with half a second left.
func TestModelOfALateStore(t *testing.T) {
	end := time.Now()
	now := moment{
		before: end.Add(544 * time.Millisecond), after: end.Add(545 * time.Millisecond),
		slack: time.Second,
	}
	held := object{permits: [len(modelOwners)]ending{1: {end, end}}, told: 4}
	look := modelStep{op: opLook, kind: backend.Permits, owner: "a", name: "sem", limit: 4}
	got := answer{text: permitsSeen(true, 0, 2), remaining: 500 * time.Millisecond}
	for _, want := range held.apply(look, now) {
		if want.text == got.text {
			if complaint := want.compare(got, 0); complaint != "" {
				t.Errorf("%v left: want %s", got.remaining, complaint)
			}
			return
		}
	}
	t.Error("the model has no such answer")
}
