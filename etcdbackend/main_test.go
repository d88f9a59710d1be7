package etcdbackend_test

import (
	"context"
	"errors"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/goleak"
	"go.uber.org/zap"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/etcdbackend"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	alice = "11111111-1111-1111-1111-111111111111:1"
	bob   = "22222222-2222-2222-2222-222222222222:7"

	lease = 30 * time.Second
)

func connect(t testing.TB, addr string, change ...func(*clientv3.Config)) *clientv3.Client {
	t.Helper()
	return connectAll(t, []string{addr}, change...)
}

func connectAll(t testing.TB, addrs []string, change ...func(*clientv3.Config)) *clientv3.Client {
	t.Helper()
	cfg := clientv3.Config{Endpoints: addrs, Logger: zap.NewNop()}
	for _, c := range change {
		c(&cfg)
	}
	cli, err := clientv3.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cli.Close() })
	return cli
}

func as(user, password string) func(*clientv3.Config) {
	return func(c *clientv3.Config) { c.Username, c.Password = user, password }
}

// session is a session with all that it can do.
type session interface {
	backend.Session
	backend.Notifier
	backend.BatchRenewer
}

func open(t testing.TB, cli *clientv3.Client, opts ...etcdbackend.Option) session {
	t.Helper()
	s := etcdbackend.New(cli, opts...).Open().(session)
	t.Cleanup(func() { s.Close() })
	return s
}

func key(name string) string { return etcdbackend.DefaultPrefix + name }

func acquire(owner string) backend.AcquireRequest {
	return backend.AcquireRequest{Name: "n", Owner: owner, Lease: lease}
}

func reenter(owner string) backend.AcquireRequest {
	req := acquire(owner)
	req.Reentry = true
	return req
}

func release(owner string) backend.ReleaseRequest {
	return backend.ReleaseRequest{Name: "n", Owner: owner, Lease: lease}
}

func renew(owner string) backend.RenewRequest {
	return backend.RenewRequest{Name: "n", Owner: owner, Lease: lease}
}

// steps are all steps, with what the tests do not look at left out.
var steps = []struct {
	name string
	run  func(context.Context, session) error
}{
	{"acquire", func(ctx context.Context, s session) error {
		_, err := s.Acquire(ctx, acquire(alice))
		return err
	}},
	{"release", func(ctx context.Context, s session) error {
		_, err := s.Release(ctx, release(alice))
		return err
	}},
	{"renew", func(ctx context.Context, s session) error {
		_, err := s.Renew(ctx, renew(alice))
		return err
	}},
	{"force-release", func(ctx context.Context, s session) error {
		_, err := s.ForceRelease(ctx, backend.ForceReleaseRequest{Name: "n"})
		return err
	}},
	{"look", func(ctx context.Context, s session) error {
		_, err := s.Look(ctx, backend.LookRequest{Name: "n", Owner: alice})
		return err
	}},
	{"subscribe", func(ctx context.Context, s session) error {
		sub, err := s.Subscribe(ctx, backend.SubscribeRequest{Name: "n", Wake: func(backend.Wakeup) {}})
		if err == nil {
			sub.Close()
		}
		return err
	}},
}

func must[T any](t testing.TB) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func wantKind(t *testing.T, err error, kind backend.ErrorKind) {
	t.Helper()
	if _, ok := errors.AsType[*backend.Error](err); !ok || backend.KindOf(err) != kind {
		t.Errorf("error %v of kind %v, want kind %v", err, backend.KindOf(err), kind)
	}
}
