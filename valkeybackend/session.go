package valkeybackend

import (
	"context"

	"github.com/valkey-io/valkey-go"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/internal/redisson"
)

// session is one client's access to the store.
type session struct {
	client     valkey.Client
	cluster    bool
	subscriber *subscriber
}

var (
	_ backend.Session      = (*session)(nil)
	_ backend.Notifier     = (*session)(nil)
	_ backend.BatchRenewer = (*session)(nil)
)

// check returns an error if a request must not be sent.
func (s *session) check(ctx context.Context, kind backend.Kind, name string) error {
	if kind != backend.Exclusive {
		return errKind
	}
	if s.cluster {
		if err := redisson.CheckSlot(name); err != nil {
			return err
		}
	}
	return ended(ctx)
}

func (s *session) Acquire(ctx context.Context, req backend.AcquireRequest) (backend.AcquireResult, error) {
	if err := s.check(ctx, req.Kind, req.Name); err != nil {
		return backend.AcquireResult{}, err
	}
	if req.Reentry {
		return s.reenter(ctx, req)
	}
	return parse(s.run(ctx, redisson.Acquire(req)), redisson.ParseAcquire)
}

// reenter acquires and, in the same round trip, asks for the count.
func (s *session) reenter(ctx context.Context, req backend.AcquireRequest) (backend.AcquireResult, error) {
	call := redisson.Acquire(req)
	acquire, count := s.acquireAndCount(ctx, s.evalSHA(call), req)
	if acquire.again {
		acquire, count = s.acquireAndCount(ctx, s.eval(call), req)
	}
	res, err := parse(acquire, redisson.ParseAcquire)
	if err != nil || !res.Acquired {
		return res, err
	}
	if res.Count, err = parse(count, redisson.ParseCount); err != nil {
		return backend.AcquireResult{}, asUnknown(err) // it was acquired, after all
	}
	return res, nil
}

func (s *session) acquireAndCount(ctx context.Context, script valkey.Completed, req backend.AcquireRequest) (acquire, count answer) {
	answers := s.send(ctx, script, s.question("HGET", req.Name, req.Owner))
	return answers[0], answers[1]
}

func (s *session) Release(ctx context.Context, req backend.ReleaseRequest) (backend.ReleaseResult, error) {
	if err := s.check(ctx, req.Kind, req.Name); err != nil {
		return backend.ReleaseResult{}, err
	}
	return parse(s.run(ctx, redisson.Release(req)), redisson.ParseRelease)
}

func (s *session) Renew(ctx context.Context, req backend.RenewRequest) (backend.RenewResult, error) {
	if err := s.check(ctx, req.Kind, req.Name); err != nil {
		return backend.RenewResult{}, err
	}
	return parse(s.run(ctx, redisson.Renew(req)), redisson.ParseRenew)
}

// ForceRelease asks first whether the key is a lock: the script deletes anything.
func (s *session) ForceRelease(ctx context.Context, req backend.ForceReleaseRequest) (backend.ForceReleaseResult, error) {
	if err := s.check(ctx, req.Kind, req.Name); err != nil {
		return backend.ForceReleaseResult{}, err
	}
	if a := s.send(ctx, s.question("HLEN", req.Name))[0]; a.err != nil {
		return backend.ForceReleaseResult{}, a.err
	}
	return parse(s.run(ctx, redisson.ForceRelease(req)), redisson.ParseForceRelease)
}

// Look asks with plain commands, in one round trip.
func (s *session) Look(ctx context.Context, req backend.LookRequest) (backend.LookResult, error) {
	if err := s.check(ctx, req.Kind, req.Name); err != nil {
		return backend.LookResult{}, err
	}
	holds := s.question("HGET", req.Name, req.Owner)
	if req.Owner == "" {
		holds = s.question("HLEN", req.Name) // minds the key's type too
	}
	answers := s.send(ctx, s.question("EXISTS", req.Name), holds, s.question("PTTL", req.Name))
	for _, a := range answers {
		if a.err != nil {
			return backend.LookResult{}, a.err
		}
	}
	if req.Owner == "" {
		answers[1].reply = nil
	}
	return redisson.ParseLook(answers[0].reply, answers[1].reply, answers[2].reply)
}

func (s *session) Close() error {
	s.subscriber.close()
	return nil
}
