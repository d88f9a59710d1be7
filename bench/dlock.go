package main

import (
	"context"

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

// dlockSystem is a client of ours. Every party has a Locker of its own.
type dlockSystem struct {
	client     *dlock.Client
	closeStore func()
	acquire    []dlock.AcquireOption
}

// withFixedLeases has a client's locks end after a lease instead of being renewed.
func withFixedLeases(open func(place) (system, error)) func(place) (system, error) {
	return func(p place) (system, error) {
		sys, err := open(p)
		if err != nil {
			return nil, err
		}
		s := sys.(*dlockSystem)
		s.acquire = []dlock.AcquireOption{dlock.Lease(p.lease)}
		return s, nil
	}
}

// withRedis, withValkey, withEtcd and withMemory make clients of ours.

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
	return func(p place) (system, error) { return newDlock(membackend.New(), p, func() {}, opts), nil }
}

func newDlock(b backend.Backend, p place, closeStore func(), opts []dlock.Option) system {
	opts = append([]dlock.Option{dlock.WithLease(p.lease)}, opts...)
	return &dlockSystem{client: dlock.New(b, opts...), closeStore: closeStore}
}

func (s *dlockSystem) locker(name string, _ int) (locker, error) {
	return dlockLocker{s.client.Locker(name), s.acquire}, nil
}

func (s *dlockSystem) close() {
	s.client.Close()
	s.closeStore()
}

type dlockLocker struct {
	l    *dlock.Locker
	opts []dlock.AcquireOption
}

func (l dlockLocker) Lock(ctx context.Context) error { return l.l.LockContext(ctx, l.opts...) }
func (l dlockLocker) Unlock() error                  { return l.l.UnlockContext(context.Background()) }
