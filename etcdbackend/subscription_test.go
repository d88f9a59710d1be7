package etcdbackend_test

import (
	"strings"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/internal/test/testservers"
	"github.com/seed951563bd/distsync/internal/test/wiretest"
)

// An onlooker is told when a subscription breaks, and when it stands again.
type onlooker struct {
	t    *testing.T
	mu   sync.Mutex
	told []error
}

func lookOn(t *testing.T, s session, kind backend.Kind) *onlooker {
	t.Helper()
	o := &onlooker{t: t}
	sub := wiretest.Must[backend.Subscription](t)(s.Subscribe(t.Context(), backend.SubscribeRequest{
		Kind: kind, Name: "n", Wake: func(backend.Wakeup) {}, Granted: func(backend.Grant) {},
		Changed: func(broken error) {
			o.mu.Lock()
			defer o.mu.Unlock()
			o.told = append(o.told, broken)
		},
	}))
	t.Cleanup(sub.Close)
	return o
}

func (o *onlooker) heard() []error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.told
}

// hears waits until the onlooker was told so many things, which must be in turn why it has broken,
// and that it stands again.
func (o *onlooker) hears(n int) {
	o.t.Helper()
	testservers.Until(o.t, "the onlooker is told", func() bool { return len(o.heard()) >= n })
	told := o.heard()
	if len(told) > n {
		o.t.Errorf("told %v; want %d", told, n)
	}
	for i, err := range told {
		if broken := i%2 == 0; broken != (err != nil) {
			o.t.Errorf("told %v", told)
		}
	}
}

// TestChanged: each subscription is told once that the stream has broken, however many attempts
// fail, and once that it stands.
func TestChanged(t *testing.T) {
	t.Parallel()
	// is there again soon
	server := testservers.Etcd(t, "--heartbeat-interval", "20", "--election-timeout", "200")
	var breaker watchBreaker
	s := open(t, connect(t, server.Addr, breaker.install, reconnectAtOnce))
	var all []*onlooker
	for _, kind := range []backend.Kind{backend.Exclusive, backend.Read, backend.Permits,
		backend.Fair} {
		all = append(all, lookOn(t, s, kind))
	}
	hear := func(n int) {
		t.Helper()
		for _, o := range all {
			o.hears(n)
		}
	}
	hear(0)
	breaker.cut()
	hear(2)
	opened := breaker.opened()
	server.Kill()
	hear(3)
	testservers.Until(t, "some attempts fail", func() bool { return breaker.opened() > opened+3 })
	hear(3)
	server.Restart()
	hear(4)
}

// TestChangedWithoutLeader: a member that has lost the others says so.
func TestChangedWithoutLeader(t *testing.T) {
	t.Parallel()
	members := testservers.EtcdCluster(t, 2, "--heartbeat-interval", "20", "--election-timeout",
		"200")
	o := lookOn(t, open(t, connect(t, members[0].Addr)), backend.Exclusive)
	members[1].Kill()
	said := func(what string, last func(error) bool) {
		t.Helper()
		testservers.Until(t, what, func() bool {
			told := o.heard()
			return len(told) > 0 && last(told[len(told)-1])
		})
	}
	said("told that there is no leader", func(err error) bool {
		return err != nil && strings.Contains(err.Error(), "no leader")
	})
	members[1].Restart()
	said("told that there is one", func(err error) bool { return err == nil })
}

// TestChangedForWhoMayNotWatchAnyMore: that is found when the stream has broken.
func TestChangedForWhoMayNotWatchAnyMore(t *testing.T) {
	t.Parallel()
	server := testservers.Etcd(t, "--bcrypt-cost", "4")
	root := connect(t, server.Addr)
	ctx := t.Context()
	for _, user := range []string{"root", "locker"} {
		wiretest.Must[*clientv3.AuthUserAddResponse](t)(root.UserAdd(ctx, user, "secret"))
		wiretest.Must[*clientv3.AuthRoleAddResponse](t)(root.RoleAdd(ctx, user))
		wiretest.Must[*clientv3.AuthUserGrantRoleResponse](t)(root.UserGrantRole(ctx, user, user))
	}
	grant := func(by *clientv3.Client) {
		wiretest.Must[*clientv3.AuthRoleGrantPermissionResponse](t)(
			by.RoleGrantPermission(ctx, "locker",
				key("n"), "", clientv3.PermissionType(clientv3.PermReadWrite)))
	}
	grant(root)
	wiretest.Must[*clientv3.AuthEnableResponse](t)(root.AuthEnable(ctx))
	admin := connect(t, server.Addr, as("root", "secret"))
	var breaker watchBreaker
	s := open(t, connect(t, server.Addr, as("locker", "secret"), breaker.install))
	o := lookOn(t, s, backend.Exclusive)
	wiretest.Must[*clientv3.AuthRoleRevokePermissionResponse](t)(
		admin.RoleRevokePermission(ctx, "locker", key("n"), ""))
	breaker.cut()
	o.hears(1)
	testservers.Until(t, "nobody may subscribe", func() bool {
		sub, err := s.Subscribe(ctx, backend.SubscribeRequest{Name: "n", Wake: func(
			backend.Wakeup,
		) {
		}})
		if err == nil {
			sub.Close()
		}
		return backend.KindOf(err) == backend.Refused
	})
	o.hears(1)
	grant(admin)
	var cut time.Time
	testservers.Until(t, "it stands again", func() bool {
		if time.Since(cut) > time.Second { // a busy machine needs a while to watch again
			breaker.cut()
			cut = time.Now()
		}
		told := o.heard()
		return len(told) > 1 && told[1] == nil
	})
}
