package contract

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/membackend"
)

// partFaults are ways in which a store of several parts can be wrong while one of them hangs, and
// the cases that tell.
var partFaults = []storeFault{
	{"renewals wait for all parts", "a hold while a part hangs", false},
	{"attempts wait for all parts", "contenders while a part hangs", false},
	{"a release wakes by the part that hangs", "a waiter while a part hangs", false},
	{"a release leaves what hangs", "a release while a part hangs", false},
	{"releases wait for all parts", "a release while a part hangs", false},
}

// A partedStore is one of two parts which both have all that there is: while one hangs it is as
// good as new, but for a fault.
type partedStore struct {
	*membackend.Backend
	fault string
	mu    sync.Mutex
	hangs chan struct{} // closed when the part that hangs is back; nil if none does
	since time.Time     // it hangs
}

// choice is how long a store with the fault "a leader is chosen" answers nothing once a part hangs:
// longer than an unlock waits. It is no fault in real time.
const choice = 7 * time.Second

func (st *partedStore) store() Store {
	part := func() (resume func()) {
		st.mu.Lock()
		defer st.mu.Unlock()
		st.hangs, st.since = make(chan struct{}), time.Now()
		return func() {
			st.mu.Lock()
			defer st.mu.Unlock()
			close(st.hangs)
			st.hangs = nil
		}
	}
	return Store{Backend: func() backend.Backend { return st }, Parts: []func() func(){part, part}}
}

// hit returns what to wait for if the store has a fault that shows now; nil if not.
func (st *partedStore) hit(fault string) chan struct{} {
	if st.fault != fault {
		return nil
	}
	st.mu.Lock()
	defer st.mu.Unlock()
	return st.hangs
}

// leader returns what to wait for until there is a leader; nil if there is one.
func (st *partedStore) leader() <-chan time.Time {
	if st.hit("a leader is chosen") == nil {
		return nil
	}
	st.mu.Lock()
	defer st.mu.Unlock()
	return time.After(time.Until(st.since.Add(choice)))
}

func (st *partedStore) Open() backend.Session { return &partedSession{st.Backend.Open(), st} }

type partedSession struct {
	backend.Session
	st *partedStore
}

// await waits for the part that hangs, if a fault has it do that, or for a leader.
func (s *partedSession) await(ctx context.Context, fault string) error {
	back := s.st.hit(fault)
	leader := s.st.leader()
	if back == nil && leader == nil {
		return nil
	}
	select {
	case <-back:
		return nil
	case <-leader:
		return nil
	case <-ctx.Done():
		return &backend.Error{Kind: backend.Retry, Err: ctx.Err()}
	}
}

func (s *partedSession) Acquire(
	ctx context.Context, req backend.AcquireRequest,
) (backend.AcquireResult, error) {
	if err := s.await(ctx, "attempts wait for all parts"); err != nil {
		return backend.AcquireResult{}, err
	}
	return s.Session.Acquire(ctx, req)
}

func (s *partedSession) Renew(
	ctx context.Context, req backend.RenewRequest,
) (backend.RenewResult, error) {
	if err := s.await(ctx, "renewals wait for all parts"); err != nil {
		return backend.RenewResult{}, err
	}
	return s.Session.Renew(ctx, req)
}

func (s *partedSession) Release(
	ctx context.Context, req backend.ReleaseRequest,
) (backend.ReleaseResult, error) {
	if s.st.hit("a release leaves what hangs") != nil {
		return backend.ReleaseResult{Outcome: backend.Freed}, nil
	}
	if err := s.await(ctx, "releases wait for all parts"); err != nil {
		return backend.ReleaseResult{}, err
	}
	return s.Session.Release(ctx, req)
}

func (s *partedSession) Subscribe(
	ctx context.Context, req backend.SubscribeRequest,
) (backend.Subscription, error) {
	wake := req.Wake
	req.Wake = func(w backend.Wakeup) {
		if s.st.hit("a release wakes by the part that hangs") == nil {
			wake(w)
		}
	}
	return s.Session.(backend.Notifier).Subscribe(ctx, req)
}

// runParts runs the cases for stores of several parts that are to catch a fault; all of them if
// there is none.
func runParts(t *testing.T, fault string) {
	cases := partCases
	if i := slices.IndexFunc(partFaults, func(f storeFault) bool {
		return f.fault == fault
	}); i >= 0 {
		cases = pick(partCases, partFaults[i].caughtBy)
	}
	newStore := func(*testing.T) Store {
		return (&partedStore{Backend: membackend.New(), fault: fault}).store()
	}
	runCases(t, Harness{Virtual: true, NewStore: newStore}, cases)
}

// In real time a store may take longer to choose another leader than an unlock waits for it.
func TestPartsThatChooseALeader(t *testing.T) {
	// with the lease that it has there the hold would be lost
	cases := slices.DeleteFunc(slices.Clone(partCases), func(c testCase) bool {
		return c.name == "a hold while a part hangs"
	})
	runInBubbles(t, Harness{NewStore: func(*testing.T) Store {
		return (&partedStore{Backend: membackend.New(), fault: "a leader is chosen"}).store()
	}}, cases)
}
