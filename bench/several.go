package main

import (
	"context"
	"crypto/rand"
	"errors"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/valkey-io/valkey-go"

	"github.com/seed951563bd/distsync/dlock"
	"github.com/seed951563bd/distsync/internal/redisson"
)

var workload15 = workload{
	id:    "W15",
	title: "Several locks of one server, all or none: uncontended, one goroutine, its own names",
	about: "All names are in one slot. “one lock” is a single lock of ours, at every point; “one " +
		"after the other” locks all of them in turn. “our scripts, one pipeline” is the same " +
		"steps sent by the bare client. Redisson takes part with its MultiLock.",
	metrics: []metric{
		{"p50", "p50 µs", 0}, {"ratio", "÷ one lock", 2},
		{"twin", "÷ our scripts, one pipeline", 2}, {"p99", "p99 µs", 0},
		{"client", "client CPU µs", 0}, {"server", "server CPU µs", 0},
	},
	stores:  []store{onRedis, onValkey},
	ratioOf: "p50",
	java:    true,
	common: trial{
		Job: jobLoop, Duration: 2 * time.Second, Lease: 30 * time.Second, Naming: ownNames,
		Goroutines: 1, Endless: true,
	},
	points: []point{
		{label: "2 names", quick: true, trial: trial{Count: 2}},
		{label: "10 names", quick: true, trial: trial{Count: 10}},
		{label: "10 names, 1 ms added to a round trip", roundTrip: time.Millisecond,
			trial: trial{Count: 10}},
	},
	run: runPairs,
}

// severalNames returns n names in the same hash slot of a Redis cluster.
func severalNames(prefix string, n int) []string { return lockNames("{"+prefix+"}", n) }

// inTurn is a list of lockers that are locked one after the other, and unlocked in reverse order.
type inTurn []locker

func newInTurn(names []string, one func(name string) locker) inTurn {
	all := make(inTurn, len(names))
	for i, name := range names {
		all[i] = one(name)
	}
	return all
}

func (l inTurn) Lock(ctx context.Context) error {
	for i, one := range l {
		if err := one.Lock(ctx); err != nil {
			return errors.Join(err, l[:i].Unlock())
		}
	}
	return nil
}

func (l inTurn) Unlock() error {
	var errs []error
	for i := range l {
		errs = append(errs, l[len(l)-1-i].Unlock())
	}
	return errors.Join(errs...)
}

// pipelines calls the scripts for several locks in one pipeline, without a lock package. If another
// client holds one of the locks, pipelines releases those that it has acquired, and tries again.
type pipelines struct {
	acquire, release []redisson.Call
	// a null reply is returned as nil
	send func(context.Context, []redisson.Call) (replies []any, err error)
}

func newPipelines(
	names []string, lease time.Duration, send func(context.Context, []redisson.Call) ([]any, error),
) *pipelines {
	p := &pipelines{send: send}
	for _, name := range names {
		calls := scriptCalls(plainLocks, name, rand.Text(), lease)
		p.acquire, p.release = append(p.acquire, calls[0]), append(p.release, calls[1])
	}
	return p
}

func (p *pipelines) Lock(ctx context.Context) error {
	for {
		replies, err := p.send(ctx, p.acquire)
		if err != nil {
			return err
		}
		var had []redisson.Call
		for i, reply := range replies {
			if granted(plainLocks, reply, reply == nil) {
				had = append(had, p.release[i])
			}
		}
		if len(had) == len(p.acquire) {
			return nil
		}
		if _, err := p.send(ctx, had); err != nil {
			return err
		}
	}
}

func (p *pipelines) Unlock() error {
	replies, err := p.send(context.Background(), p.release)
	for _, reply := range replies {
		n, _ := reply.(int64)
		err = errors.Join(err, one(n, nil))
	}
	return err
}

// redisPipelines is a system that uses pipelines with a go-redis client.
type redisPipelines struct {
	*redisScripts
	names int
}

func openRedisPipelines(p place) (system, error) {
	s, err := newRedisScripts(place{addr: p.addr, lease: p.lease})
	return &redisPipelines{s, p.names}, err
}

func (s *redisPipelines) locker(name string, _ int) (locker, error) {
	return newPipelines(severalNames(name, s.names), s.lease, s.sendAll), nil
}

func (s *redisPipelines) sendAll(ctx context.Context, calls []redisson.Call) ([]any, error) {
	pipe := s.rdb.Pipeline()
	for _, call := range calls {
		args := make([]any, len(call.Args))
		for i, arg := range call.Args {
			args[i] = arg
		}
		pipe.EvalSha(ctx, call.Script.SHA1, call.Keys, args...)
	}
	all, err := pipe.Exec(ctx)
	if err != nil && err != redis.Nil {
		return nil, err
	}
	replies := make([]any, len(calls))
	for i, cmd := range all {
		replies[i] = cmd.(*redis.Cmd).Val()
	}
	return replies, nil
}

// valkeyPipelines is a system that uses pipelines with a valkey-go client.
type valkeyPipelines struct {
	*valkeyScripts
	names int
}

func openValkeyPipelines(p place) (system, error) {
	s, err := newValkeyScripts(place{addr: p.addr, lease: p.lease})
	return &valkeyPipelines{s, p.names}, err
}

func (s *valkeyPipelines) locker(name string, _ int) (locker, error) {
	return newPipelines(severalNames(name, s.names), s.lease, s.sendAll), nil
}

func (s *valkeyPipelines) sendAll(ctx context.Context, calls []redisson.Call) ([]any, error) {
	all := make([]valkey.Completed, len(calls))
	for i, call := range calls {
		all[i] = s.build(call)
	}
	replies := make([]any, len(calls))
	for i, r := range s.client.DoMulti(ctx, all...) {
		var err error
		if replies[i], err = r.ToAny(); err != nil && !valkey.IsValkeyNil(err) {
			return nil, err
		}
	}
	return replies, nil
}

// several returns a locker for several names. Depending on the kind, it locks them all at once or
// one after the other.
func (s *dlockSystem) several(name string) locker {
	names := severalNames(name, s.names)
	if s.kind == oneByOne {
		return newInTurn(names, func(name string) locker {
			return dlockLocker{s.client.Locker(name), s.acquire}
		})
	}
	all := make([]*dlock.Locker, len(names))
	for i, name := range names {
		all[i] = s.client.Locker(name)
	}
	return dlockAll{dlock.All(all...)}
}

type dlockAll struct{ l *dlock.MultiLocker }

func (l dlockAll) Lock(ctx context.Context) error { return l.l.LockContext(ctx) }
func (l dlockAll) Unlock() error                  { return l.l.UnlockContext(context.Background()) }
