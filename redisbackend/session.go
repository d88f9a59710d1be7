package redisbackend

import (
	"context"

	"github.com/redis/go-redis/v9"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/internal/redisson"
)

// session is one client's access to the store.
type session struct {
	client     redis.UniversalClient
	cluster    *redis.ClusterClient // the client, if it is one; else nil
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
	if s.cluster != nil {
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
	acquire, count := s.acquireAndCount(ctx, evalSHA(ctx, call), req)
	if acquire.unknownToServer() {
		acquire, count = s.acquireAndCount(ctx, eval(ctx, call), req)
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

func (s *session) acquireAndCount(ctx context.Context, acquire command, req backend.AcquireRequest) (command, command) {
	count := newCommand(ctx, 1, "hget", req.Name, req.Owner)
	s.pipeline(ctx, acquire, count)
	return acquire, count
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
	fields := s.question(ctx, "hlen", req.Name)
	s.pipeline(ctx, fields)
	if _, err := fields.reply(); err != nil {
		return backend.ForceReleaseResult{}, err
	}
	return parse(s.run(ctx, redisson.ForceRelease(req)), redisson.ParseForceRelease)
}

// Look asks with plain commands, in one round trip.
func (s *session) Look(ctx context.Context, req backend.LookRequest) (backend.LookResult, error) {
	if err := s.check(ctx, req.Kind, req.Name); err != nil {
		return backend.LookResult{}, err
	}
	exists := s.question(ctx, "exists", req.Name)
	holds := s.question(ctx, "hget", req.Name, req.Owner)
	if req.Owner == "" {
		holds = s.question(ctx, "hlen", req.Name) // minds the key's type too
	}
	ttl := s.question(ctx, "pttl", req.Name)
	s.pipeline(ctx, exists, holds, ttl)

	var replies [3]any
	for i, cmd := range []command{exists, holds, ttl} {
		var err error
		if replies[i], err = cmd.reply(); err != nil {
			return backend.LookResult{}, err
		}
	}
	if req.Owner == "" {
		replies[1] = nil
	}
	return redisson.ParseLook(replies[0], replies[1], replies[2])
}

// question returns a plain command about a key that is to be answered by the key's master.
func (s *session) question(ctx context.Context, args ...any) command {
	cmd := newCommand(ctx, 1, args...)
	cmd.master = s.cluster != nil && s.cluster.Options().ReadOnly
	return cmd
}

func (s *session) Close() error {
	s.subscriber.close()
	return nil
}
