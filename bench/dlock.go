package main

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/redis/go-redis/v9"
	"github.com/valkey-io/valkey-go"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/dlock"
	"github.com/seed951563bd/distsync/etcdbackend"
	"github.com/seed951563bd/distsync/membackend"
	"github.com/seed951563bd/distsync/redisbackend"
	"github.com/seed951563bd/distsync/valkeybackend"
)

// dlockSystem is a system that uses a dlock.Client. Each party has its own Locker.
type dlockSystem struct {
	client     *dlock.Client
	kind       kind
	names      int // number of names, for a lock on several names
	closeStore func()
	acquire    []dlock.AcquireOption

	mu   sync.Mutex
	both map[string]*dlock.RWLocker // by name, shared by all parties of the process
}

// withFixedLeases wraps open so that locks have fixed leases, which are not renewed.
func withFixedLeases(open func(place) (system, error)) func(place) (system, error) {
	return func(p place) (system, error) {
		sys, err := open(p)
		if err != nil {
			return nil, err
		}
		s := sys.(*dlockSystem)
		s.acquire = []dlock.AcquireOption{dlock.FixedLease(p.lease)}
		return s, nil
	}
}

// withRedis, withValkey, withEtcd and withMemory return functions that open a dlock client on the
// respective store.

func withRedis(opts ...dlock.Option) func(place) (system, error) {
	return func(p place) (system, error) {
		rdb := redis.NewClient(&redis.Options{Addr: p.addr})
		return newDlock(redisbackend.New(rdb), p, func() { rdb.Close() }, opts), nil
	}
}

func withValkey(opts ...dlock.Option) func(place) (system, error) {
	return func(p place) (system, error) {
		client, err := valkey.NewClient(valkey.ClientOption{InitAddress: []string{p.addr}})
		if err != nil {
			return nil, err
		}
		return newDlock(valkeybackend.New(client), p, client.Close, opts), nil
	}
}

func withEtcd(opts ...dlock.Option) func(place) (system, error) {
	return func(p place) (system, error) {
		client, err := clientv3.New(clientv3.Config{Endpoints: []string{p.addr}})
		if err != nil {
			return nil, err
		}
		return newDlock(etcdbackend.New(client), p, func() { client.Close() }, opts), nil
	}
}

func withMemory(opts ...dlock.Option) func(place) (system, error) {
	return func(p place) (system, error) {
		return newDlock(membackend.New(), p, func() {}, opts), nil
	}
}

// counting returns a Trace that counts all events and sums their durations.
func counting() *dlock.Trace {
	var starts, ends, releases, steps, renewals, losses atomic.Uint64
	var waited, held, took atomic.Int64
	return &dlock.Trace{
		AcquireStart: func(ctx context.Context, _ dlock.AcquireStart) context.Context {
			starts.Add(1)
			return ctx
		},
		AcquireDone: func(_ context.Context, e dlock.AcquireDone) {
			ends.Add(1)
			waited.Add(int64(e.Waited))
		},
		ReleaseDone: func(_ context.Context, e dlock.ReleaseDone) {
			releases.Add(1)
			held.Add(int64(e.Held))
		},
		StepDone: func(_ context.Context, e dlock.StepDone) {
			steps.Add(1)
			took.Add(int64(e.Took))
		},
		RenewDone: func(e dlock.RenewDone) { renewals.Add(uint64(e.Locks)) },
		Lost:      func(*dlock.Loss) { losses.Add(1) },
	}
}

func newDlock(b backend.Backend, p place, closeStore func(), opts []dlock.Option) system {
	opts = append([]dlock.Option{dlock.WithLease(p.lease)}, opts...)
	return &dlockSystem{
		client: dlock.New(b, opts...), kind: p.kind, names: p.names, closeStore: closeStore,
		both: make(map[string]*dlock.RWLocker),
	}
}

func (s *dlockSystem) locker(name string, _ int) (locker, error) {
	switch s.kind {
	case fencedLocks:
		return dlockLocker{s.client.FencedLocker(name), s.acquire}, nil
	case readLocks:
		return dlockLocker{s.client.RWLocker(name).Reader(), s.acquire}, nil
	case writeLocks:
		return dlockLocker{s.client.RWLocker(name).Writer(), s.acquire}, nil
	case bothSides:
		return s.rwLocker(name), nil
	case fairLocks:
		return dlockLocker{s.client.FairLocker(name), s.acquire}, nil
	case permits:
		return &dlockPermit{s: s.client.Semaphore(name, mostInside)}, nil
	case allOfThem, oneByOne:
		return s.several(name), nil
	default:
		return dlockLocker{s.client.Locker(name), s.acquire}, nil
	}
}

func (s *dlockSystem) rwLocker(name string) locker {
	s.mu.Lock()
	defer s.mu.Unlock()
	rw := s.both[name]
	if rw == nil {
		rw = s.client.RWLocker(name)
		s.both[name] = rw
	}
	return dlockRWLocker{dlockLocker{rw.Writer(), s.acquire}, dlockLocker{rw.Reader(), s.acquire}}
}

type dlockRWLocker struct {
	dlockLocker
	reader dlockLocker
}

func (l dlockRWLocker) shared() locker { return l.reader }

// dlockPermit acquires one of mostInside permits.
type dlockPermit struct {
	s *dlock.Semaphore
	h *dlock.Hold
}

func (p *dlockPermit) Lock(ctx context.Context) (err error) {
	p.h, err = p.s.Acquire(ctx, 1)
	return err
}

func (p *dlockPermit) Unlock() error { return p.h.Release(context.Background()) }

func (s *dlockSystem) close() {
	s.client.Close()
	s.closeStore()
}

type dlockLocker struct {
	l    *dlock.Locker
	opts []dlock.AcquireOption
}

func (l dlockLocker) Lock(ctx context.Context) error { return l.l.LockContext(ctx, l.opts...) }
func (l dlockLocker) Unlock() error {
	return l.l.UnlockContext(context.Background())
}
