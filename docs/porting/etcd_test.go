package porting

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.uber.org/zap"

	"github.com/seed951563bd/distsync/dlock"
	"github.com/seed951563bd/distsync/etcdbackend"
	"github.com/seed951563bd/distsync/internal/test/testservers"
)

func etcdDo(ctx context.Context, cli *clientv3.Client, name string, work job) error {
	session, err := concurrency.NewSession(cli, concurrency.WithTTL(30))
	if err != nil {
		return err
	}
	defer session.Close()
	mutex := concurrency.NewMutex(session, name)
	if err := mutex.Lock(ctx); err != nil {
		return err
	}
	defer mutex.Unlock(context.WithoutCancel(ctx))
	return work(ctx)
}

func etcdTry(ctx context.Context, session *concurrency.Session, name string, work job) error {
	mutex := concurrency.NewMutex(session, name)
	err := mutex.TryLock(ctx)
	if errors.Is(err, concurrency.ErrLocked) {
		return nil // another is at it
	}
	if err != nil {
		return err
	}
	defer mutex.Unlock(context.WithoutCancel(ctx))
	return work(ctx)
}

func etcdWait(ctx context.Context, session *concurrency.Session, name string, work job) error {
	waiting, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
	defer cancel()
	mutex := concurrency.NewMutex(session, name)
	if err := mutex.Lock(waiting); err != nil {
		return err
	}
	defer mutex.Unlock(context.WithoutCancel(ctx))
	return work(ctx)
}

func etcdWatch(ctx context.Context, session *concurrency.Session, name string, work job) error {
	mutex := concurrency.NewMutex(session, name)
	if err := mutex.Lock(ctx); err != nil {
		return err
	}
	defer mutex.Unlock(context.WithoutCancel(ctx))
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(session.Ctx(), cancel)() // or it works on when the session has ended
	return work(ctx)
}

func etcdFence(
	ctx context.Context, cli *clientv3.Client, session *concurrency.Session, name, state string,
) (bool, error) {
	mutex := concurrency.NewMutex(session, name)
	if err := mutex.Lock(ctx); err != nil {
		return false, err
	}
	defer mutex.Unlock(context.WithoutCancel(ctx))
	res, err := cli.Txn(ctx).If(mutex.IsOwner()).Then(clientv3.OpPut(state, "shipped")).Commit()
	return err == nil && res.Succeeded, err
}

func dlockFence(
	ctx context.Context, cli *clientv3.Client, client *dlock.Client, name, state string,
) (bool, error) {
	h, err := client.FencedLocker(name).Acquire(ctx)
	if err != nil {
		return false, err
	}
	defer h.Release(ctx)
	token, _ := h.Token() // in etcd, the revision in which the lock's key was created
	created := clientv3.CreateRevision(etcdbackend.DefaultPrefix + name)
	isOwner := clientv3.Compare(created, "=", int64(token))
	res, err := cli.Txn(ctx).If(isOwner).Then(clientv3.OpPut(state, "shipped")).Commit()
	return err == nil && res.Succeeded, err
}

func etcdLead(ctx context.Context, cli *clientv3.Client, name, me string, lead job) error {
	for ctx.Err() == nil {
		session, err := concurrency.NewSession(cli, concurrency.WithTTL(30))
		if err != nil {
			return err
		}
		election := concurrency.NewElection(session, name)
		if err := election.Campaign(ctx, me); err != nil {
			session.Close()
			return err
		}
		leading, cancel := context.WithCancel(ctx)
		stop := context.AfterFunc(session.Ctx(), cancel)
		err = lead(leading)
		lost := leading.Err() != nil
		stop()
		cancel()
		election.Resign(context.WithoutCancel(ctx))
		session.Close()
		if !lost {
			return err
		}
	}
	return ctx.Err()
}

func dlockLead(ctx context.Context, client *dlock.Client, name string, lead job) error {
	return client.Election(name).Run(ctx, lead)
}

func etcdObserve(
	ctx context.Context, session *concurrency.Session, name string, seen func(leader string),
) {
	election := concurrency.NewElection(session, name)
	for res := range election.Observe(ctx) {
		seen(string(res.Kvs[0].Value))
	}
}

func dlockObserve(
	ctx context.Context, client *dlock.Client, name string, seen func(leader string),
) {
	for leader, err := range client.Election(name).Changes(ctx) {
		if err == nil {
			seen(leader)
		}
	}
}

func etcdWho(ctx context.Context, cli *clientv3.Client, name string) (string, error) {
	res, err := cli.Get(ctx, name+"/", clientv3.WithFirstCreate()...)
	if err != nil || len(res.Kvs) == 0 {
		return "", err
	}
	return string(res.Kvs[0].Key), nil // "report/694d97a3f0c8b21e": the lease of a session
}

func etcdWhoNow(ctx context.Context, client *dlock.Client, name string) (string, error) {
	who, err := client.Locker(name).Holder(ctx)
	if err != nil {
		return "", err
	}
	return who.Client, nil // "web-7/4711/K5JQ…": host, process, and 80 random bits
}

func etcdLocker(session *concurrency.Session, name string) sync.Locker {
	return concurrency.NewLocker(session, name) // panics on any error
}

func dlockLocker(client *dlock.Client, name string) sync.Locker {
	return client.Locker(name) // goes on trying, and logs that
}

func etcdOpen(cli *clientv3.Client) (*concurrency.Session, error) {
	session, err := concurrency.NewSession(cli, concurrency.WithTTL(30))
	return session, err
}

func etcdOpenDlock(cli *clientv3.Client) *dlock.Client {
	client := dlock.New(etcdbackend.New(cli), dlock.WithLease(30*time.Second))
	return client
}

// An etcdLab is an etcd, with a client of ours.
type etcdLab struct {
	cli    *clientv3.Client
	client *dlock.Client
}

// session returns a session, as another process would have it.
func (lab etcdLab) session(t *testing.T) *concurrency.Session {
	s, err := etcdOpen(lab.cli)
	must(t, err)
	t.Cleanup(func() { s.Close() })
	return s
}

// another returns a client of ours, as another process would have it.
func (lab etcdLab) another(t *testing.T, opts ...dlock.Option) *dlock.Client {
	return newClient(t, etcdbackend.New(lab.cli), opts...)
}

func TestEtcd(t *testing.T) {
	t.Parallel()
	server := testservers.Etcd(t)
	cli, err := clientv3.New(clientv3.Config{
		Endpoints: []string{server.Addr}, Logger: zap.NewNop(),
	})
	must(t, err)
	t.Cleanup(func() { cli.Close() })
	must(t, etcdOpenDlock(cli).Close())
	lab := etcdLab{cli: cli}
	lab.client = lab.another(t)
	for name, run := range map[string]func(t *testing.T, lab etcdLab){
		"take and release":        etcdTakes,
		"try once":                etcdTries,
		"wait with a bound":       etcdBound,
		"told of a loss":          etcdTold,
		"a session for two":       etcdOneSession,
		"fencing":                 etcdFences,
		"leader":                  etcdLeads,
		"observe":                 etcdObserves,
		"a leader resigns":        etcdResigns,
		"who has it":              etcdSeen,
		"a sync.Locker":           etcdLockers,
		"Unlock of a lost lock":   etcdLost,
		"a client that is closed": etcdClosed,
		"the same name":           etcdSameName,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			run(t, lab)
		})
	}
}

func etcdTakes(t *testing.T, lab etcdLab) {
	sides(t, func(t *testing.T) {
		excludes(t, func(ctx context.Context, work job) error {
			return etcdDo(ctx, lab.cli, t.Name(), work)
		})
	}, func(t *testing.T) {
		excludes(t, func(ctx context.Context, work job) error {
			return dlockDo(ctx, lab.client, t.Name(), work)
		})
	})
}

func etcdTries(t *testing.T, lab etcdLab) {
	sides(t, func(t *testing.T) {
		skips(t, func(ctx context.Context, work job) error {
			return etcdTry(ctx, lab.session(t), t.Name(), work)
		})
	}, func(t *testing.T) {
		skips(t, func(ctx context.Context, work job) error {
			return dlockTry(ctx, lab.client, t.Name(), work)
		})
	})
}

// The bound of the wait is kept from a first session, which would take long on a busy machine.
func etcdBound(t *testing.T, lab etcdLab) {
	sides(t, func(t *testing.T) {
		held := concurrency.NewMutex(lab.session(t), t.Name())
		must(t, held.Lock(bounded(t)))
		work, done := ran()
		wantErr(t, etcdWait(bounded(t), lab.session(t), t.Name(), work), context.DeadlineExceeded)
		if done.Load() {
			t.Error("it got in while another was inside")
		}
	}, func(t *testing.T) {
		must(t, lab.another(t).Locker(t.Name()).LockContext(bounded(t)))
		work, done := ran()
		wantErr(t, dlockWait(bounded(t), lab.client, t.Name(), work), dlock.ErrNotAcquired)
		if done.Load() {
			t.Error("it got in while another was inside")
		}
	})
}

// A session is told when its lease is gone. Each lock of ours is told separately, also when only
// its key is gone.
func etcdTold(t *testing.T, lab etcdLab) {
	sides(t, func(t *testing.T) {
		// it looks each second
		session, err := concurrency.NewSession(lab.cli, concurrency.WithTTL(3))
		must(t, err)
		t.Cleanup(func() { session.Close() })
		wantErr(t, etcdWatch(bounded(t), session, t.Name(), func(ctx context.Context) error {
			if _, err := lab.cli.Revoke(ctx, session.Lease()); err != nil {
				return err
			}
			<-ctx.Done()
			return ctx.Err()
		}), context.Canceled)
	}, func(t *testing.T) {
		client := lab.another(t)
		err := dlockDo(bounded(t), client, t.Name(), func(ctx context.Context) error {
			if _, err := lab.cli.Delete(ctx, etcdbackend.DefaultPrefix+t.Name()); err != nil {
				return err
			}
			<-ctx.Done()
			return ctx.Err()
		})
		wantErr(t, err, dlock.ErrLost, context.Canceled)
	})
}

// Two mutexes of one session are one holder, who isn't counted.
func etcdOneSession(t *testing.T, lab etcdLab) {
	ctx, session := bounded(t), lab.session(t)
	first, second := concurrency.NewMutex(session, t.Name()),
		concurrency.NewMutex(session, t.Name())
	must(t, first.Lock(ctx))
	must(t, second.Lock(ctx))
	must(t, first.Unlock(ctx))
	other := concurrency.NewMutex(lab.session(t), t.Name())
	must(t, other.TryLock(ctx)) // though second is locked
	must(t, second.Unlock(ctx))

	if ok, err := lab.client.Locker(t.Name()).TryLock(ctx); err != nil || !ok {
		t.Error(ok, err)
	}
	if ok, err := lab.client.Locker(t.Name()).TryLock(ctx); err != nil || ok {
		t.Error(ok, err)
	}
}

func etcdFences(t *testing.T, lab etcdLab) {
	ctx, name := bounded(t), t.Name()
	ok, err := etcdFence(ctx, lab.cli, lab.session(t), name, "state/"+name)
	if err != nil || !ok {
		t.Error(ok, err)
	}
	ok, err = dlockFence(ctx, lab.cli, lab.client, name, "state/"+name)
	if err != nil || !ok {
		t.Error(ok, err)
	}

	// A late request is refused.
	h, err := lab.client.FencedLocker(name).Acquire(ctx)
	must(t, err)
	token, _ := h.Token()
	must(t, h.Release(ctx))
	h, err = lab.another(t).FencedLocker(name).Acquire(ctx)
	must(t, err)
	defer h.Release(ctx)
	late := clientv3.Compare(clientv3.CreateRevision(etcdbackend.DefaultPrefix+name), "=",
		int64(token))
	res, err := lab.cli.Txn(ctx).If(late).Then(clientv3.OpPut("state/"+name, "late")).Commit()
	if err != nil || res.Succeeded {
		t.Error("who had the lock before could write:", err)
	}
}

// Of three candidates one leads, and when it is done the next does.
func etcdLeads(t *testing.T, lab etcdLab) {
	sides(t, func(t *testing.T) {
		excludes(t, func(ctx context.Context, work job) error {
			return etcdLead(ctx, lab.cli, t.Name(), "me", work)
		})
	}, func(t *testing.T) {
		excludes(t, func(ctx context.Context, work job) error {
			return dlockLead(ctx, lab.client, t.Name(), work)
		})
	})
}

func etcdObserves(t *testing.T, lab etcdLab) {
	observe := func(
		t *testing.T, watch func(ctx context.Context, seen func(string)), lead func(
			ctx context.Context, lead job,
		) error,
	) (name string) {
		ctx, cancel := context.WithCancel(bounded(t))
		names := make(chan string, 10)
		var all sync.WaitGroup
		defer all.Wait()
		defer cancel()
		all.Go(func() { watch(ctx, func(leader string) { names <- leader }) })
		all.Go(func() {
			lead(ctx, func(ctx context.Context) error {
				<-ctx.Done()
				return nil
			})
		})
		for name == "" { // ours says first that nobody leads
			select {
			case name = <-names:
			case <-ctx.Done():
				t.Fatal("nobody is seen")
			}
		}
		return name
	}
	sides(t, func(t *testing.T) {
		watching := lab.session(t)
		leader := observe(t, func(ctx context.Context, seen func(string)) {
			etcdObserve(ctx, watching, t.Name(), seen)
		},
			func(ctx context.Context, lead job) error {
				return etcdLead(ctx, lab.cli, t.Name(), "web-7", lead)
			})
		if leader != "web-7" {
			t.Error(leader)
		}
	}, func(t *testing.T) {
		web := lab.another(t, dlock.WithClientID("web-7"))
		leader := observe(t, func(ctx context.Context, seen func(string)) {
			dlockObserve(ctx, lab.client, t.Name(), seen)
		},
			func(ctx context.Context, lead job) error {
				return dlockLead(ctx, web, t.Name(), lead)
			})
		if leader != "web-7" {
			t.Error(leader)
		}
	})
}

// A leader that resigns there goes on with its work. Here lead is told, and nobody else leads
// before it has returned.
func etcdResigns(t *testing.T, lab etcdLab) {
	ctx := bounded(t)
	first, second := concurrency.NewElection(lab.session(t), t.Name()),
		concurrency.NewElection(lab.session(t), t.Name())
	must(t, first.Campaign(ctx, "first"))
	must(t, first.Resign(ctx))
	must(t, second.Campaign(ctx, "second"))
	wantErr(t, first.Proclaim(ctx, "first"), concurrency.ErrElectionNotLeader)
	must(t, first.Resign(ctx)) // of what it doesn't have

	election := lab.another(t).Election(t.Name())
	done := make(chan error)
	ctx, cancel := context.WithCancel(ctx)
	led := 0
	go func() {
		done <- election.Run(ctx, func(ctx context.Context) error {
			led++
			if led == 1 {
				election.Resign()
				<-ctx.Done()
				wantErr(t, context.Cause(ctx), dlock.ErrResigned)
				leader, err := election.Leader(context.WithoutCancel(ctx))
				if err != nil || leader == "" {
					t.Error("nobody leads before lead has returned:", err)
				}
				return nil
			}
			cancel() // it has been elected again, since nobody else was
			return nil
		})
	}()
	wantErr(t, <-done, context.Canceled)
	if led != 2 {
		t.Errorf("it led %d times", led)
	}
}

func etcdSeen(t *testing.T, lab etcdLab) {
	ctx := bounded(t)
	mutex := concurrency.NewMutex(lab.session(t), t.Name())
	must(t, mutex.Lock(ctx))
	who, err := etcdWho(ctx, lab.cli, t.Name())
	if err != nil || who != mutex.Key() {
		t.Error(who, err)
	}
	must(t, lab.client.Locker(t.Name()).LockContext(ctx))
	who, err = etcdWhoNow(ctx, lab.client, t.Name())
	if err != nil || who != lab.client.ID() {
		t.Error(who, err)
	}
}

// A locker from NewLocker doesn't exclude the goroutines that share it.
func etcdLockers(t *testing.T, lab etcdLab) {
	theirs := etcdLocker(lab.session(t), t.Name())
	theirs.Lock()
	theirs.Lock() // gets in
	defer theirs.Unlock()
	ours := dlockLocker(lab.client, t.Name())
	excludes(t, func(ctx context.Context, work job) error {
		ours.Lock()
		defer ours.Unlock()
		return work(ctx)
	})
}

func etcdLost(t *testing.T, lab etcdLab) {
	ctx := bounded(t)
	session := lab.session(t)
	mutex := concurrency.NewMutex(session, t.Name())
	must(t, mutex.Lock(ctx))
	_, err := lab.cli.Revoke(ctx, session.Lease())
	must(t, err)
	must(t, concurrency.NewMutex(lab.session(t), t.Name()).TryLock(ctx)) // another has it
	must(t, mutex.Unlock(ctx))                                           // and nothing is said
	wantErr(t, mutex.Unlock(ctx), concurrency.ErrLockReleased)
	if err := mutex.Lock(ctx); !errors.Is(err, rpctypes.ErrLeaseNotFound) {
		t.Error(err)
	}

	h, err := lab.client.Locker(t.Name()).Acquire(ctx)
	must(t, err)
	_, err = lab.another(t).Locker(t.Name()).ForceUnlock(ctx)
	must(t, err)
	wantErr(t, h.Release(ctx), dlock.ErrLost)
	wantErr(t, h.Release(ctx), dlock.ErrNotHeld)
}

// A session that is closed gives back all that it had; a client that is closed gives nothing back.
func etcdClosed(t *testing.T, lab etcdLab) {
	ctx := bounded(t)
	session, err := etcdOpen(lab.cli)
	must(t, err)
	must(t, concurrency.NewMutex(session, t.Name()).Lock(ctx))
	must(t, session.Close())
	must(t, concurrency.NewMutex(lab.session(t), t.Name()).TryLock(ctx))

	client := lab.another(t)
	h, err := client.Locker(t.Name()).Acquire(ctx)
	must(t, err)
	must(t, client.Close())
	if ok, err := lab.client.Locker(t.Name()).TryLock(ctx); err != nil || ok {
		t.Error(ok, err)
	}
	must(t, h.Release(ctx))
	if ok, err := lab.client.Locker(t.Name()).TryLock(ctx); err != nil || !ok {
		t.Error(ok, err)
	}
}

// The two have different keys, and know nothing of each other.
func etcdSameName(t *testing.T, lab etcdLab) {
	ctx := bounded(t)
	must(t, concurrency.NewMutex(lab.session(t), t.Name()).Lock(ctx))
	must(t, lab.client.Locker(t.Name()).LockContext(ctx, dlock.Wait(0)))
	must(t, concurrency.NewMutex(lab.session(t), etcdbackend.DefaultPrefix+t.Name()).TryLock(ctx))
}
