package main

import (
	"context"
	"crypto/rand"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/seed951563bd/distsync/dlock"
)

var etcdContenders = []contender{
	{name: "bare Txn", store: onEtcd, in: []string{"W1"}, role: floor, open: openBareEtcd},
	{name: "bare Txn", store: onEtcd, in: []string{"W2", "W3"}, role: bare, open: openBareEtcd},
	{name: "bare Txn, alone", store: onEtcd, in: []string{"W2", "W3", "W11", "W13"}, role: solo,
		open: openBareEtcd},
	{name: "our steps, bare", store: onEtcd, in: []string{"W1"}, role: twin, open: openEtcdSteps},
	{name: "message, round trip", store: onEtcd, in: []string{"W4"}, role: floor,
		open: openEtcdNotice},
	{name: "concurrency", store: onEtcd, in: []string{"W1", "W2", "W3", "W4", "W5", "W6", "W18"},
		open: openConcurrency},
	{name: "dlock", store: onEtcd,
		in: []string{"W1", "W2", "W3", "W4", "W5", "W6", "W11", "W13", "W18"}, role: ours,
		open: withEtcd()},
	{name: "dlock, fair", store: onEtcd, in: []string{"W3", "W4"}, kind: fairLocks, role: ours,
		open: withEtcd()},
	{name: "dlock, no hand-over", store: onEtcd, in: []string{"W2", "W3"}, role: ours,
		open: withEtcd(dlock.WithHandover(0))},
}

// bareEtcd acquires a lock with a Txn that creates its key, and releases it with a Txn that deletes
// the key. All keys have the same lease. While another client holds the lock, it retries without a
// pause.
type bareEtcd struct {
	client *clientv3.Client
	lease  clientv3.LeaseID
}

func openBareEtcd(p place) (system, error) { return newBareEtcd(p) }

func newBareEtcd(p place) (*bareEtcd, error) {
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{p.addr}})
	if err != nil {
		return nil, err
	}
	granted, err := client.Grant(client.Ctx(), int64(p.lease.Seconds()))
	if err != nil {
		return nil, err
	}
	alive, err := client.KeepAlive(client.Ctx(), granted.ID)
	if err != nil {
		return nil, err
	}
	go func() {
		for range alive { // the channel must be drained
		}
	}()
	return &bareEtcd{client, granted.ID}, nil
}

func (s *bareEtcd) locker(name string, _ int) (locker, error) {
	return &bareEtcdLocker{s, name, rand.Text()}, nil
}

func (s *bareEtcd) close() { s.client.Close() }

type bareEtcdLocker struct {
	*bareEtcd
	name, id string
}

func (l *bareEtcdLocker) Lock(ctx context.Context) error {
	for {
		if done, err := l.try(ctx, l.lease); done || err != nil {
			return err
		}
	}
}

// try makes one attempt.
func (l *bareEtcdLocker) try(ctx context.Context, lease clientv3.LeaseID) (bool, error) {
	res, err := l.client.Txn(ctx).
		If(clientv3.Compare(clientv3.ModRevision(l.name), "=", 0)).
		Then(clientv3.OpPut(l.name, l.id, clientv3.WithLease(lease))).Commit()
	return err == nil && res.Succeeded, err
}

func (l *bareEtcdLocker) Unlock() error {
	res, err := l.client.Txn(context.Background()).
		If(clientv3.Compare(clientv3.Value(l.name), "=", l.id)).
		Then(clientv3.OpDelete(l.name)).Commit()
	if err == nil && !res.Succeeded {
		return errGone
	}
	return err
}

// etcdSteps sends the same requests as package etcdbackend, without using that package. To acquire
// a lock, it creates a key that is attached to its own lease. To release the lock, it deletes the
// key. It reuses the lease for the next hold. If the lease was last granted or renewed more than
// 0.9 s ago, it renews the lease first.
type etcdSteps struct {
	*bareEtcd
	ttl int64

	mu     sync.Mutex
	leases []etcdLease // leases that no key uses now
}

type etcdLease struct {
	id    clientv3.LeaseID
	since time.Time
}

func openEtcdSteps(p place) (system, error) {
	bare, err := newBareEtcd(p)
	if err != nil {
		return nil, err
	}
	return &etcdSteps{bareEtcd: bare, ttl: int64(p.lease.Seconds())}, nil
}

func (s *etcdSteps) locker(name string, _ int) (locker, error) {
	return &etcdStepsLocker{etcdSteps: s, bare: bareEtcdLocker{s.bareEtcd, name, rand.Text()}}, nil
}

// take returns a lease that was granted or renewed in the last 0.9 s.
func (s *etcdSteps) take(ctx context.Context) (etcdLease, error) {
	s.mu.Lock()
	var l etcdLease
	if n := len(s.leases); n > 0 {
		l, s.leases = s.leases[n-1], s.leases[:n-1]
	}
	s.mu.Unlock()
	now := time.Now()
	switch {
	case l.id == 0:
		granted, err := s.client.Grant(ctx, s.ttl)
		if err != nil {
			return etcdLease{}, err
		}
		return etcdLease{granted.ID, now}, nil
	case now.Sub(l.since) > 900*time.Millisecond:
		_, err := s.client.KeepAliveOnce(ctx, l.id)
		return etcdLease{l.id, now}, err
	default:
		return l, nil
	}
}

func (s *etcdSteps) put(l etcdLease) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.leases = append(s.leases, l)
}

type etcdStepsLocker struct {
	*etcdSteps
	bare  bareEtcdLocker
	lease etcdLease // lease of the current hold
}

func (l *etcdStepsLocker) Lock(ctx context.Context) error {
	for {
		var err error
		if l.lease, err = l.take(ctx); err != nil {
			return err
		}
		if done, err := l.bare.try(ctx, l.lease.id); done || err != nil {
			return err
		}
		l.put(l.lease)
	}
}

func (l *etcdStepsLocker) Unlock() error {
	if err := l.bare.Unlock(); err != nil {
		return err
	}
	l.put(l.lease)
	return nil
}

// etcdNotice is like bareEtcd, but waits for the key's deletion before it retries.
type etcdNotice struct{ *bareEtcd }

func openEtcdNotice(p place) (system, error) {
	bare, err := newBareEtcd(p)
	if err != nil {
		return nil, err
	}
	return &etcdNotice{bare}, nil
}

func (s *etcdNotice) locker(name string, _ int) (locker, error) {
	return &etcdNoticeLocker{bareEtcdLocker: bareEtcdLocker{s.bareEtcd, name, rand.Text()}}, nil
}

type etcdNoticeLocker struct {
	bareEtcdLocker
	deleted clientv3.WatchChan // nil before the first wait
}

func (l *etcdNoticeLocker) Lock(ctx context.Context) error {
	for {
		if done, err := l.try(ctx, l.lease); done || err != nil {
			return err
		}
		if l.deleted == nil {
			l.deleted = l.client.Watch(l.client.Ctx(), l.name, clientv3.WithFilterPut(),
				clientv3.WithCreatedNotify())
		}
		select {
		case <-l.deleted: // the first response confirms that the watch exists
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// concurrencySystem uses etcd's concurrency package. Locks of the same session don't exclude each
// other, so each party has its own session.
type concurrencySystem struct {
	client *clientv3.Client
	ttl    int

	mu       sync.Mutex
	sessions map[int]*concurrency.Session // by party
}

func openConcurrency(p place) (system, error) {
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{p.addr}})
	if err != nil {
		return nil, err
	}
	return &concurrencySystem{client: client, ttl: int(p.lease.Seconds()),
		sessions: make(map[int]*concurrency.Session)}, nil
}

func (s *concurrencySystem) locker(name string, party int) (locker, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sessions[party] == nil {
		session, err := concurrency.NewSession(s.client, concurrency.WithTTL(s.ttl))
		if err != nil {
			return nil, err
		}
		s.sessions[party] = session
	}
	return concurrencyLocker{concurrency.NewMutex(s.sessions[party], name)}, nil
}

func (s *concurrencySystem) close() { s.client.Close() }

type concurrencyLocker struct{ m *concurrency.Mutex }

func (l concurrencyLocker) Lock(ctx context.Context) error { return l.m.Lock(ctx) }
func (l concurrencyLocker) Unlock() error {
	return l.m.Unlock(context.Background())
}
