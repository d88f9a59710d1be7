package etcdbackend_test

import (
	"context"
	"slices"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/etcdbackend"
	"github.com/seed951563bd/distsync/internal/test/apart"
	"github.com/seed951563bd/distsync/internal/test/wiretest"
)

func TestMain(m *testing.M) {
	apart.SideBySide(16)
	wiretest.VerifyTestMain(m)
}

const (
	alice = wiretest.Alice
	bob   = wiretest.Bob
	lease = wiretest.Lease
)

var (
	acquire   = wiretest.Acquire
	reenter   = wiretest.Reenter
	release   = wiretest.Release
	renew     = wiretest.Renew
	wantKind  = wiretest.WantKind
	subscribe = wiretest.Subscribe
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

type session interface {
	wiretest.Session
	backend.Liner
	backend.Inspector
	backend.Lister
}

func open(t testing.TB, cli *clientv3.Client, opts ...etcdbackend.Option) session {
	t.Helper()
	s := etcdbackend.New(cli, opts...).Open().(session)
	t.Cleanup(func() { s.Close() })
	return s
}

func key(name string) string { return etcdbackend.DefaultPrefix + name }

// steps are all steps, and a subscription.
var steps = append(slices.Clip(wiretest.Steps), wiretest.Step{
	Name: "subscribe", Run: func(ctx context.Context, s wiretest.Session) error {
		sub, err := s.Subscribe(ctx, backend.SubscribeRequest{Name: "n", Wake: func(
			backend.Wakeup,
		) {
		}})
		if err == nil {
			sub.Close()
		}
		return err
	},
})
