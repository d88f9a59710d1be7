package main

import (
	"context"
	"fmt"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/internal/test/apart"
	"github.com/seed951563bd/distsync/membackend"
)

func TestMain(m *testing.M) {
	if text := os.Getenv(childSetting); text != "" {
		if err := runChild(text); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(2)
		}
		return
	}
	apart.SideBySide(6)
	goleak.VerifyTestMain(m)
}

// lines is a writer to a test's log.
type lines struct{ t *testing.T }

func (l lines) Write(p []byte) (int, error) {
	l.t.Logf("%s", p)
	return len(p), nil
}

// soakFor runs a short soak on a store.
func soakFor(t *testing.T, st *store, length time.Duration, patience int) summary {
	t.Helper()
	s := &soak{
		t: t, store: st, seed: 1, length: length, episode: length, patience: patience,
		log: lines{t},
	}
	return s.run(t.Context())
}

const (
	patient   = 600
	impatient = 10
)

func TestMemory(t *testing.T) {
	t.Parallel()
	sum := soakFor(t, memoryStore(t), 2*time.Second, patient)
	if !sum.good() {
		t.Errorf("%+v", sum)
	}
}

// TestProcesses runs clients in child processes.
func TestProcesses(t *testing.T) {
	t.Parallel()
	sum := soakFor(t, stores["redis"](t), 3*time.Second, patient)
	if !sum.good() {
		t.Errorf("%+v", sum)
	}
}

// A broken store is a correct store whose sessions are faulty.
type broken struct {
	*membackend.Backend
	open func(goodSession) backend.Session
}

type goodSession interface {
	backend.Session
	backend.Notifier
	backend.Liner
	backend.Inspector
}

func (b broken) Open() backend.Session { return b.open(b.Backend.Open().(goodSession)) }

func soakBroken(t *testing.T, open func(goodSession) backend.Session) summary {
	t.Helper()
	return soakFor(t, inMemory(broken{membackend.New(), open}, 500*time.Millisecond), time.Second,
		impatient)
}

// expectViolation runs a soak on a broken store until it finds a violation. Some faults take long
// to find, because few users use the lock that is affected.
func expectViolation(t *testing.T, open func(goodSession) backend.Session) {
	t.Helper()
	var sum summary
	for range 30 { // on a busy machine, little happens in one soak
		if sum = soakBroken(t, open); sum.Violations > 0 {
			return
		}
	}
	t.Errorf("no violation was seen: %+v", sum)
}

// generous grants every acquisition.
type generous struct{ goodSession }

func (s generous) Acquire(
	ctx context.Context, req backend.AcquireRequest,
) (backend.AcquireResult, error) {
	res, err := s.goodSession.Acquire(ctx, req)
	if err != nil || res.Acquired {
		return res, err
	}
	for _, kind := range kindsOf(req.Name) { // including permits
		s.ForceRelease(ctx, backend.ForceReleaseRequest{Kind: kind, Name: req.Name})
	}
	return s.goodSession.Acquire(ctx, req)
}

// generousTo grants every acquisition of one lock.
type generousTo struct {
	generous
	name string
}

func (s generousTo) Acquire(
	ctx context.Context, req backend.AcquireRequest,
) (backend.AcquireResult, error) {
	if req.Name != s.name {
		return s.goodSession.Acquire(ctx, req)
	}
	return s.generous.Acquire(ctx, req)
}

func TestTwoLeaders(t *testing.T) {
	t.Parallel()
	expectViolation(t, func(s goodSession) backend.Session {
		return generousTo{generous{s}, elected}
	})
}

func TestTwoRunsOfAShard(t *testing.T) {
	t.Parallel()
	expectViolation(t, func(s goodSession) backend.Session {
		return generousTo{generous{s}, divided[0]}
	})
}

func TestViolation(t *testing.T) {
	t.Parallel()
	expectViolation(t, func(s goodSession) backend.Session { return generous{s} })
}

// hasty grants every read, even while another user writes.
type hasty struct{ goodSession }

func (s hasty) Acquire(
	ctx context.Context, req backend.AcquireRequest,
) (backend.AcquireResult, error) {
	if req.Kind == backend.Read {
		return backend.AcquireResult{Acquired: true, Count: 1}, nil
	}
	return s.goodSession.Acquire(ctx, req)
}

func (s hasty) Renew(ctx context.Context, req backend.RenewRequest) (backend.RenewResult, error) {
	if req.Kind == backend.Read {
		return backend.RenewResult{Held: true}, nil
	}
	return s.goodSession.Renew(ctx, req)
}

func (s hasty) Look(ctx context.Context, req backend.LookRequest) (backend.LookResult, error) {
	if req.Kind == backend.Read && req.Owner != "" {
		return backend.LookResult{Held: true, Count: 1}, nil
	}
	return s.goodSession.Look(ctx, req)
}

func TestReadersBesideWriters(t *testing.T) {
	t.Parallel()
	expectViolation(t, func(s goodSession) backend.Session { return hasty{s} })
}

// lavish grants more permits than any limit.
type lavish struct{ goodSession }

func (s lavish) Acquire(
	ctx context.Context, req backend.AcquireRequest,
) (backend.AcquireResult, error) {
	req.Limit *= 2
	return s.goodSession.Acquire(ctx, req)
}

func TestTooManyPermits(t *testing.T) {
	t.Parallel()
	expectViolation(t, func(s goodSession) backend.Session { return lavish{s} })
}

// forgetful restarts its fencing tokens from time to time.
type forgetful struct {
	goodSession
	numbers *atomic.Uint64
}

func (s forgetful) Acquire(
	ctx context.Context, req backend.AcquireRequest,
) (backend.AcquireResult, error) {
	res, err := s.goodSession.Acquire(ctx, req)
	if res.Token != 0 {
		res.Token = 1 + s.numbers.Add(1)%3
	}
	return res, err
}

func TestNumbersThatShrink(t *testing.T) {
	t.Parallel()
	var numbers atomic.Uint64
	expectViolation(t, func(s goodSession) backend.Session { return forgetful{s, &numbers} })
}

// greedy ignores releases.
type greedy struct{ goodSession }

func (s greedy) Acquire(
	ctx context.Context, req backend.AcquireRequest,
) (backend.AcquireResult, error) {
	req.Lease = time.Hour
	return s.goodSession.Acquire(ctx, req)
}

func (s greedy) Renew(ctx context.Context, req backend.RenewRequest) (backend.RenewResult, error) {
	req.Lease = time.Hour
	return s.goodSession.Renew(ctx, req)
}

func (greedy) Release(context.Context, backend.ReleaseRequest) (backend.ReleaseResult, error) {
	return backend.ReleaseResult{Outcome: backend.Freed}, nil
}

func TestLeak(t *testing.T) {
	t.Parallel()
	sum := soakBroken(t, func(s goodSession) backend.Session { return greedy{s} })
	if sum.Leaked == 0 {
		t.Errorf("no leak was seen: %+v", sum)
	}
}

// hanging answers a number of acquisitions, and hangs on all later ones.
type hanging struct {
	goodSession
	answers *atomic.Int64 // the number of answers left
	over    <-chan struct{}
}

func (s hanging) Acquire(
	ctx context.Context, req backend.AcquireRequest,
) (backend.AcquireResult, error) {
	if s.answers.Add(-1) < 0 {
		<-s.over
	}
	return s.goodSession.Acquire(ctx, req)
}

func TestStuck(t *testing.T) {
	t.Parallel()
	var answers atomic.Int64
	answers.Store(20)
	over := make(chan struct{})
	defer close(over)
	sum := soakBroken(t, func(s goodSession) backend.Session { return hanging{s, &answers, over} })
	if sum.Stuck == 0 || sum.Violations > 0 {
		t.Errorf("want somebody stuck, and no violation: %+v", sum)
	}
}
