package redisbackend

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/internal/gather"
	"github.com/seed951563bd/distsync/internal/pubsub"
	"github.com/seed951563bd/distsync/internal/redisson"
)

// session is one client's access to the store.
type session struct {
	client     redis.UniversalClient
	cluster    *redis.ClusterClient // the client, if it is one; else nil
	dialect    redisson.Dialect
	prefix     string // of keys: names are without it until a step adds it
	replicas   replicas
	probed     atomic.Bool // see probe
	subscriber *pubsub.Subscriber
	sender     *gather.Sender[*command, *command] // nil: every step sends for itself
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
	req.Name = s.prefix + req.Name
	if err := s.check(ctx, req.Kind, req.Name); err != nil {
		return backend.AcquireResult{}, err
	}
	if err := s.probe(ctx, req.Name); err != nil {
		return backend.AcquireResult{}, err
	}
	call := redisson.Acquire(req)
	if !req.Reentry && s.replicas.n == 0 {
		reply, err := s.run(ctx, call)
		res, err := parse(reply, err, redisson.ParseAcquire)
		return res, s.orForeign(ctx, req.Name, res.Remaining, err)
	}
	a, err := s.acquire(ctx, evalSHA(ctx, call), req)
	if err == nil && a.script.unknownToServer() {
		a, err = s.acquire(ctx, eval(ctx, call), req)
	}
	if err != nil {
		return backend.AcquireResult{}, err
	}
	res, err := s.acquired(a)
	return res, s.orForeign(ctx, req.Name, res.Remaining, err)
}

// orForeign returns the error of a step. If there is none, and what the step found is held for ever, it
// looks whether that is a lock at all.
func (s *session) orForeign(ctx context.Context, name string, remaining time.Duration, err error) error {
	if err != nil || remaining >= 0 {
		return err
	}
	reply, err := s.run(ctx, redisson.IsForeign(name))
	if err != nil {
		return nil // it stays what it seems to be
	}
	return redisson.ParseIsForeign(reply)
}

// An acquisition is what is sent together to acquire a lock.
type acquisition struct {
	script *command
	count  *command // of the owner's holds; nil if nobody asks
	wait   *command // for replicas; nil if nobody asks
}

// acquire sends the script and, in the same round trip, what else must be known.
func (s *session) acquire(ctx context.Context, script *command, req backend.AcquireRequest) (acquisition, error) {
	a := acquisition{script: script}
	cmds := []*command{script}
	if req.Reentry {
		a.count = ask(ctx, 1, "hget", req.Name, req.Owner)
		cmds = append(cmds, a.count)
	}
	if s.replicas.n == 0 {
		return a, s.send(ctx, cmds...)
	}
	a.wait = s.replicas.command(ctx)
	node, err := s.node(ctx, req.Name)
	if err == nil {
		s.pipeline(ctx, node, append(cmds, a.wait)...)
	}
	return a, err
}

// acquired reads the answers to what acquire has sent.
func (s *session) acquired(a acquisition) (backend.AcquireResult, error) {
	reply, err := a.script.reply()
	res, err := parse(reply, err, redisson.ParseAcquire)
	if err != nil || !res.Acquired {
		return res, err
	}
	// From here on it is acquired, and so every error is Unknown.
	if a.count != nil {
		reply, err := a.count.reply()
		if res.Count, err = parse(reply, err, redisson.ParseCount); err != nil {
			return backend.AcquireResult{}, asUnknown(err)
		}
	}
	if a.wait != nil {
		reply, err := a.wait.reply()
		if err := redisson.CheckReplicas(s.replicas.n, reply, err); err != nil {
			return backend.AcquireResult{}, asUnknown(err)
		}
	}
	return res, nil
}

func (s *session) Release(ctx context.Context, req backend.ReleaseRequest) (backend.ReleaseResult, error) {
	req.Name = s.prefix + req.Name
	if err := s.check(ctx, req.Kind, req.Name); err != nil {
		return backend.ReleaseResult{}, err
	}
	res, err := s.release(ctx, req)
	if redisson.MayHold(res, err) {
		reply, err := s.run(ctx, s.dialect.ReleaseAgain(req))
		return parse(reply, err, redisson.ParseReleaseAgain)
	}
	return res, err
}

func (s *session) release(ctx context.Context, req backend.ReleaseRequest) (backend.ReleaseResult, error) {
	if req.AskWaiting {
		return s.releaseAsking(ctx, req)
	}
	reply, err := s.run(ctx, s.dialect.Release(req))
	return parse(reply, err, redisson.ParseRelease)
}

// releaseAsking releases and asks, in the same round trip, who listens.
func (s *session) releaseAsking(ctx context.Context, req backend.ReleaseRequest) (backend.ReleaseResult, error) {
	own := s.subscriber.Watch(redisson.Channel(req.Name))
	call := s.dialect.Release(req)
	script, listeners := evalSHA(ctx, call), s.countWaiting(ctx, req.Name)
	err := s.send(ctx, script, listeners)
	if err == nil && script.unknownToServer() {
		script, listeners = eval(ctx, call), s.countWaiting(ctx, req.Name)
		err = s.send(ctx, script, listeners)
	}
	least, most := own()
	if err != nil {
		return backend.ReleaseResult{}, err
	}
	reply, err := script.reply()
	res, err := parse(reply, err, redisson.ParseRelease)
	if err == nil && res.Outcome == backend.Freed {
		reply, err := listeners.reply()
		s.dialect.AddWaiting(&res, reply, err, s.cluster != nil, least, most)
	}
	return res, err
}

func (s *session) countWaiting(ctx context.Context, name string) *command {
	if s.cluster != nil {
		return eval(ctx, s.dialect.CountWaitingScript(name))
	}
	subcommand, channel := s.dialect.CountWaiting(name)
	return ask(ctx, 0, "pubsub", subcommand, channel)
}

func (s *session) Renew(ctx context.Context, req backend.RenewRequest) (backend.RenewResult, error) {
	req.Name = s.prefix + req.Name
	if err := s.check(ctx, req.Kind, req.Name); err != nil {
		return backend.RenewResult{}, err
	}
	reply, err := s.run(ctx, redisson.Renew(req))
	res, err := parse(reply, err, redisson.ParseRenew)
	if err != nil || res.Held {
		return res, err
	}
	reply, err = s.run(ctx, redisson.RenewAgain(req))
	return parse(reply, err, redisson.ParseRenewAgain)
}

func (s *session) ForceRelease(ctx context.Context, req backend.ForceReleaseRequest) (backend.ForceReleaseResult, error) {
	req.Name = s.prefix + req.Name
	if err := s.check(ctx, req.Kind, req.Name); err != nil {
		return backend.ForceReleaseResult{}, err
	}
	if err := s.probe(ctx, req.Name); err != nil {
		return backend.ForceReleaseResult{}, err
	}
	reply, err := s.run(ctx, s.dialect.ForceRelease(req))
	return parse(reply, err, redisson.ParseForceRelease)
}

// Look asks with plain commands, in one round trip.
func (s *session) Look(ctx context.Context, req backend.LookRequest) (backend.LookResult, error) {
	req.Name = s.prefix + req.Name
	if err := s.check(ctx, req.Kind, req.Name); err != nil {
		return backend.LookResult{}, err
	}
	exists := s.question(ctx, "exists", req.Name)
	holds := s.question(ctx, "hget", req.Name, req.Owner)
	if req.Owner == "" {
		holds = s.question(ctx, "hlen", req.Name) // minds the key's type too
	}
	ttl := s.question(ctx, "pttl", req.Name)
	if err := s.send(ctx, exists, holds, ttl); err != nil {
		return backend.LookResult{}, err
	}
	var replies [3]any
	for i, cmd := range []*command{exists, holds, ttl} {
		var err error
		if replies[i], err = cmd.reply(); err != nil {
			return backend.LookResult{}, err
		}
	}
	if req.Owner == "" {
		replies[1] = nil
	}
	res, err := redisson.ParseLook(replies[0], replies[1], replies[2])
	return res, s.orForeign(ctx, req.Name, res.Remaining, err)
}

// question returns a plain command about a key that is to be answered by the key's master.
func (s *session) question(ctx context.Context, args ...any) *command {
	cmd := ask(ctx, 1, args...)
	cmd.master = s.cluster != nil && s.cluster.Options().ReadOnly
	return cmd
}

// gathering is a session whose steps go together with those of others, and can be left.
type gathering struct{ *session }

var _ backend.Leavable = gathering{}

func (g gathering) Settle() { g.sender.Settle() }

func (s *session) Close() error {
	s.subscriber.Close()
	return nil
}
