package valkeybackend

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/valkey-io/valkey-go"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/internal/gather"
	"github.com/seed951563bd/distsync/internal/pubsub"
	"github.com/seed951563bd/distsync/internal/redisson"
)

// session is one client's access to the store.
type session struct {
	client     valkey.Client
	slots      *slots // of the cluster, if it is one; else nil
	dialect    redisson.Dialect
	prefix     string // of keys: names are without it until a step adds it
	replicas   replicas
	probed     atomic.Bool // see probe
	subscriber *pubsub.Subscriber
	sender     *gather.Sender[valkey.Completed, answer] // nil: every step sends for itself
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
	if s.slots != nil {
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
	if err := s.probe(ctx); err != nil {
		return backend.AcquireResult{}, err
	}
	call := redisson.Acquire(req)
	if !req.Reentry && s.replicas.n == 0 {
		res, err := parse(s.run(ctx, call), redisson.ParseAcquire)
		return res, s.orForeign(ctx, req.Name, res.Remaining, err)
	}
	answers := s.acquire(ctx, s.evalSHA(call), req)
	if answers[0].again {
		answers = s.acquire(ctx, s.eval(call), req)
	}
	res, err := s.acquired(answers, req)
	return res, s.orForeign(ctx, req.Name, res.Remaining, err)
}

// orForeign returns the error of a step. If there is none, and what the step found is held for ever, it
// looks whether that is a lock at all.
func (s *session) orForeign(ctx context.Context, name string, remaining time.Duration, err error) error {
	if err != nil || remaining >= 0 {
		return err
	}
	a := s.run(ctx, redisson.IsForeign(name))
	if a.err != nil {
		return nil // it stays what it seems to be
	}
	return redisson.ParseIsForeign(a.reply)
}

// acquire sends the script and, in the same round trip, what else must be known: how many holds the
// owner has if it is a re-entry, and last how many replicas have acknowledged it if that is asked for.
func (s *session) acquire(ctx context.Context, script valkey.Completed, req backend.AcquireRequest) []answer {
	cmds := []valkey.Completed{script}
	if req.Reentry {
		cmds = append(cmds, s.question("HGET", req.Name, req.Owner))
	}
	if s.replicas.n == 0 {
		return s.send(ctx, cmds...)
	}
	return s.sendApart(ctx, append(cmds, s.replicas.command(s.client))...)
}

// acquired reads the answers to what acquire has sent.
func (s *session) acquired(answers []answer, req backend.AcquireRequest) (backend.AcquireResult, error) {
	res, err := parse(answers[0], redisson.ParseAcquire)
	if err != nil || !res.Acquired {
		return res, err
	}
	// From here on it is acquired, and so every error is Unknown.
	if req.Reentry {
		if res.Count, err = parse(answers[1], redisson.ParseCount); err != nil {
			return backend.AcquireResult{}, asUnknown(err)
		}
	}
	if s.replicas.n > 0 {
		acks := answers[len(answers)-1]
		if err := redisson.CheckReplicas(s.replicas.n, acks.reply, acks.err); err != nil {
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
		return parse(s.run(ctx, s.dialect.ReleaseAgain(req)), redisson.ParseReleaseAgain)
	}
	return res, err
}

func (s *session) release(ctx context.Context, req backend.ReleaseRequest) (backend.ReleaseResult, error) {
	if req.AskWaiting {
		return s.releaseAsking(ctx, req)
	}
	return parse(s.run(ctx, s.dialect.Release(req)), redisson.ParseRelease)
}

// releaseAsking releases and asks, in the same round trip, who listens.
func (s *session) releaseAsking(ctx context.Context, req backend.ReleaseRequest) (backend.ReleaseResult, error) {
	own := s.subscriber.Watch(redisson.Channel(req.Name))
	call := s.dialect.Release(req)
	answers := s.send(ctx, s.evalSHA(call), s.countWaiting(req.Name))
	if answers[0].again {
		answers = s.send(ctx, s.eval(call), s.countWaiting(req.Name))
	}
	least, most := own()
	res, err := parse(answers[0], redisson.ParseRelease)
	if err == nil && res.Outcome == backend.Freed {
		s.dialect.AddWaiting(&res, answers[1].reply, answers[1].err, s.slots != nil, least, most)
	}
	return res, err
}

func (s *session) countWaiting(name string) valkey.Completed {
	if s.slots != nil {
		return s.eval(s.dialect.CountWaitingScript(name))
	}
	subcommand, channel := s.dialect.CountWaiting(name)
	return s.client.B().Arbitrary("PUBSUB", subcommand, channel).Build()
}

func (s *session) Renew(ctx context.Context, req backend.RenewRequest) (backend.RenewResult, error) {
	req.Name = s.prefix + req.Name
	if err := s.check(ctx, req.Kind, req.Name); err != nil {
		return backend.RenewResult{}, err
	}
	res, err := parse(s.run(ctx, redisson.Renew(req)), redisson.ParseRenew)
	if err != nil || res.Held {
		return res, err
	}
	return parse(s.run(ctx, redisson.RenewAgain(req)), redisson.ParseRenewAgain)
}

func (s *session) ForceRelease(ctx context.Context, req backend.ForceReleaseRequest) (backend.ForceReleaseResult, error) {
	req.Name = s.prefix + req.Name
	if err := s.check(ctx, req.Kind, req.Name); err != nil {
		return backend.ForceReleaseResult{}, err
	}
	if err := s.probe(ctx); err != nil {
		return backend.ForceReleaseResult{}, err
	}
	return parse(s.run(ctx, s.dialect.ForceRelease(req)), redisson.ParseForceRelease)
}

// Look asks with plain commands, in one round trip.
func (s *session) Look(ctx context.Context, req backend.LookRequest) (backend.LookResult, error) {
	req.Name = s.prefix + req.Name
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
	res, err := redisson.ParseLook(answers[0].reply, answers[1].reply, answers[2].reply)
	return res, s.orForeign(ctx, req.Name, res.Remaining, err)
}

// gathering is a session whose steps go together with those of others, and can be left.
type gathering struct{ *session }

var _ backend.Leavable = gathering{}

func (g gathering) Settle() { g.sender.Settle() }

func (s *session) Close() error {
	s.subscriber.Close()
	return nil
}
