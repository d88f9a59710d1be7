package etcdbackend_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/contract/faults"
	"github.com/seed951563bd/distsync/etcdbackend"
	"github.com/seed951563bd/distsync/internal/test/testservers"
	"github.com/seed951563bd/distsync/internal/test/wiretest"
)

func TestNewPanicsOnNil(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("New(nil) didn't panic")
		}
	}()
	etcdbackend.New(nil)
}

// Examples that need a server can't have an output: it may be missing.
func TestExamples(t *testing.T) {
	t.Parallel()
	addr := testservers.Etcd(t).Addr
	cli := connect(t, addr)
	defer func(members []string) { endpoints = members }(endpoints)
	endpoints = []string{addr}

	Example()
	if res := wiretest.Must[*clientv3.GetResponse](t)(
		cli.Get(t.Context(), key("orders:42"))); res.Header.Revision < 3 || res.Count != 0 {
		t.Errorf("after the example there are %d keys of its lock, at revision %d; want that it "+
			"was acquired and released", res.Count, res.Header.Revision)
	}
	ExampleWithPrefix()
	if get(t, cli, "shop/locks/orders:42") == nil {
		t.Error("the lock of the example with a prefix isn't where it says")
	}
}

// get returns a key, or nil.
func get(t *testing.T, cli *clientv3.Client, key string) *mvccpb.KeyValue {
	t.Helper()
	res := wiretest.Must[*clientv3.GetResponse](t)(cli.Get(context.Background(), key))
	if len(res.Kvs) == 0 {
		return nil
	}
	return res.Kvs[0]
}

// leases returns how many leases there are, beside those that sessions keep for their next holds.
func leases(t *testing.T, cli *clientv3.Client, sessions ...session) int {
	t.Helper()
	n := len(wiretest.Must[*clientv3.LeaseLeasesResponse](t)(cli.Leases(context.Background())).
		Leases)
	for _, s := range sessions {
		n -= etcdbackend.Idle(s)
	}
	return n
}

// TestValue: this is what others read, and what other versions must understand.
func TestValue(t *testing.T) {
	t.Parallel()
	cli := connect(t, testservers.Etcd(t).Addr)
	ctx := t.Context()
	for _, c := range []struct{ owner, want string }{
		{alice, `{"owner":"11111111-1111-1111-1111-111111111111:1","count":%d}`},
		{`a"b`, `{"owner":"a\"b","count":%d}`},
		{"é🔒", `{"owner":"é🔒","count":%d}`},
		{"\xff\xfe", `{"owner_base64":"//4=","count":%d}`},
	} {
		s := open(t, cli, etcdbackend.WithPrefix("locks:"))
		for n := 1; n <= 2; n++ {
			if res := wiretest.Must[backend.AcquireResult](t)(
				s.Acquire(ctx, reenter(c.owner))); res.Count != n {
				t.Errorf("%q: count %d, want %d", c.owner, res.Count, n)
			}
			kv := get(t, cli, "locks:n")
			if want := fmt.Sprintf(c.want, n); kv == nil || string(kv.Value) != want {
				t.Errorf("%q: value %v, want %s", c.owner, kv, want)
			}
			if ttl := wiretest.Must[*clientv3.LeaseTimeToLiveResponse](t)(
				cli.TimeToLive(ctx, clientv3.LeaseID(kv.Lease))); ttl.GrantedTTL != 31 {
				t.Errorf("%q: a lease of %d s, want 31", c.owner, ttl.GrantedTTL)
			}
		}
		for _, want := range []backend.ReleaseOutcome{backend.Left, backend.Freed} {
			if res := wiretest.Must[backend.ReleaseResult](t)(
				s.Release(ctx, release(c.owner))); res.Outcome != want {
				t.Errorf("%q: release: %v, want %v", c.owner, res.Outcome, want)
			}
		}
		if get(t, cli, "locks:n") != nil || leases(t, cli, s) != 0 ||
			etcdbackend.Remembered(s) != 0 {
			t.Errorf("%q: the key, a lease (%d) or what the session remembers (%d) is left",
				c.owner, leases(t, cli, s), etcdbackend.Remembered(s))
		}
		s.Close()
		testservers.Until(t, "Close gives back the leases", func() bool {
			return leases(t, cli) == 0
		})
	}
}

func TestForeignValues(t *testing.T) {
	t.Parallel()
	cli := connect(t, testservers.Etcd(t).Addr)
	for _, value := range []string{
		"", "x", "1", "null", "[]", "{}", `"a"`, `{"owner":"a"}`, `{"count":1}`,
		`{"owner":"a","count":0}`,
		`{"owner":"a","count":-1}`, `{"owner":"","count":1}`,
		`{"owner":"a","owner_base64":"//4=","count":1}`,
		`{"owner":"a","count":1,"kind":"read"}`, `{"owner":"a","count":1} {}`,
		`{"owner":"a","count":"1"}`,
		`{"OWNER":"a","count":1}`, `{"owner":"a","Count":1}`,
	} {
		wiretest.Must[*clientv3.PutResponse](t)(cli.Put(t.Context(), key("n"), value))
		s := open(t, cli)
		for _, step := range wiretest.Steps {
			err := step.Run(t.Context(), s)
			wantKind(t, err, backend.Refused)
			if !errors.Is(err, backend.ErrConflict) {
				t.Errorf("%s on %q: %v, want ErrConflict", step.Name, value, err)
			}
			if kv := get(t, cli, key("n")); kv == nil || string(kv.Value) != value {
				t.Fatalf("%s on %q: changed it to %v", step.Name, value, kv)
			}
		}
	}
	// A value that is written in another way, but says the same, is a lock.
	wiretest.Must[*clientv3.PutResponse](t)(
		cli.Put(t.Context(), key("n"), ` { "count": 2, "owner": "`+alice+`" } `))
	s := open(t, cli)
	look := wiretest.Must[backend.LookResult](t)(
		s.Look(t.Context(), backend.LookRequest{Name: "n", Owner: alice}))
	if !look.Held || look.Count != 2 || look.Remaining >= 0 {
		t.Errorf("a lock without a lease: %+v", look)
	}
	if res := wiretest.Must[backend.RenewResult](t)(
		s.Renew(t.Context(), renew(alice))); !res.Held || get(t, cli, key("n")).Lease == 0 {
		t.Errorf("renewing a lock without a lease: %+v, now %v", res, get(t, cli, key("n")))
	}
}

func TestNoLeaseIsLeft(t *testing.T) {
	t.Parallel()
	cli := connect(t, testservers.Etcd(t).Addr)
	s, other := open(t, cli), open(t, cli)
	ctx := t.Context()
	check := func(what string, want int) {
		t.Helper()
		if n := leases(t, cli, s, other); n != want {
			t.Errorf("after %s there are %d leases, want %d", what, n, want)
		}
	}
	longer := reenter(alice)
	longer.Lease = 2 * lease
	wiretest.Must[backend.AcquireResult](t)(s.Acquire(ctx, acquire(alice)))
	wiretest.Must[backend.AcquireResult](t)(other.Acquire(ctx, acquire(bob)))
	check("an acquisition, and one in vain", 1)
	wiretest.Must[backend.AcquireResult](t)(s.Acquire(ctx, longer))
	check("a re-entry with another lease", 1)
	wiretest.Must[backend.RenewResult](t)(s.Renew(ctx, renew(alice)))
	check("a renewal with another lease", 1)
	wiretest.Must[backend.ReleaseResult](t)(s.Release(ctx, release(alice)))
	check("a release of one of two", 1)
	wiretest.Must[backend.ForceReleaseResult](t)(
		other.ForceRelease(ctx, backend.ForceReleaseRequest{Name: "n"}))
	check("a forced release", 0)
	wiretest.Must[backend.ReleaseResult](t)(s.Release(ctx, release(alice)))
	if n := etcdbackend.Remembered(s) + etcdbackend.Remembered(other); n != 0 {
		t.Errorf("%d holds are remembered", n)
	}

	// Of many that want a lock that is free one gets it. The others keep their leases for the next
	// time.
	for range 10 {
		var all sync.WaitGroup
		for i := range 10 {
			all.Go(func() {
				if _, err := s.Acquire(ctx, acquire(fmt.Sprint(i))); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		check("many acquisitions at once", 1)
		for i := range 10 {
			wiretest.Must[backend.ReleaseResult](t)(s.Release(ctx, release(fmt.Sprint(i))))
		}
		check("their releases", 0)
		if n := etcdbackend.Idle(s); n > 10 {
			t.Errorf("%d leases are kept", n)
		}
	}
	if n := etcdbackend.Remembered(s); n != 0 {
		t.Errorf("%d holds are remembered", n)
	}
}

// TestLateRequest: a request that was given up, and taken back, is carried out by the server after
// all.
func TestLateRequest(t *testing.T) {
	t.Parallel()
	server := testservers.Etcd(t)
	admin := connect(t, server.Addr)
	for name, takeBack := range map[string]func(s, other session) error{
		"released": func(s, _ session) error {
			res, err := s.Release(t.Context(), release(alice))
			if err == nil && res.Outcome != backend.NotHeld {
				err = errors.New(res.Outcome.String())
			}
			return err
		},
		"overtaken and released": func(s, other session) error {
			_, err := other.Acquire(t.Context(), acquire(bob))
			if err == nil {
				_, err = s.Release(t.Context(), release(alice))
			}
			if err == nil {
				_, err = other.Release(t.Context(), release(bob))
			}
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			caught := &catcher{caught: make(chan func() error, 1)}
			s := open(t, connect(t, server.Addr, caught.install))
			other := open(t, admin)

			ctx, cancel := context.WithCancel(t.Context())
			failed := make(chan error)
			caught.next.Store(true)
			go func() {
				_, err := s.Acquire(ctx, acquire(alice))
				failed <- err
			}()
			late := <-caught.caught
			cancel()
			wantKind(t, <-failed, backend.Unknown)
			if n := etcdbackend.Remembered(s); n != 1 {
				t.Errorf("%d holds are remembered, want that in doubt", n)
			}
			if err := takeBack(s, other); err != nil {
				t.Fatal(err)
			}
			if err := late(); status.Code(err) != codes.NotFound {
				t.Errorf("the late request: %v; want: no such lease", err)
			}
			if kv := get(t, admin, key("n")); kv != nil {
				t.Errorf("the late request has locked: %v", kv)
			}
			if n := etcdbackend.Remembered(s); n != 0 {
				t.Errorf("%d holds are remembered", n)
			}
		})
	}

	// Without a take-back it locks, for the owner that it was for.
	caught := &catcher{caught: make(chan func() error, 1)}
	s := open(t, connect(t, server.Addr, caught.install))
	ctx, cancel := context.WithCancel(t.Context())
	caught.next.Store(true)
	go s.Acquire(ctx, acquire(alice))
	late := <-caught.caught
	cancel()
	if err := late(); err != nil {
		t.Fatal(err)
	}
	if res := wiretest.Must[backend.AcquireResult](t)(
		s.Acquire(t.Context(), reenter(alice))); res.Count != 2 {
		t.Errorf("count %d after a late acquisition and another", res.Count)
	}
	wiretest.Must[backend.ReleaseResult](t)(s.Release(t.Context(), release(alice)))
	wiretest.Must[backend.ReleaseResult](t)(s.Release(t.Context(), release(alice)))
	if n := leases(t, admin, s); n != 0 || etcdbackend.Remembered(s) != 0 {
		t.Errorf("%d leases are left, and %d holds remembered", n, etcdbackend.Remembered(s))
	}
}

// A catcher keeps a client's next transaction that writes from being sent, until it is told to.
type catcher struct {
	next   atomic.Bool
	caught chan func() error
}

func (c *catcher) install(cfg *clientv3.Config) {
	cfg.DialOptions = append(cfg.DialOptions, grpc.WithChainUnaryInterceptor(c.unary))
}

func (c *catcher) unary(
	ctx context.Context, method string, req, res any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker,
	opts ...grpc.CallOption,
) error {
	txn, ok := req.(*pb.TxnRequest)
	if !ok || txn.Success[0].GetRequestPut() == nil || !c.next.CompareAndSwap(true, false) {
		return invoke(ctx, method, req, res, cc, opts...)
	}
	// Now the caller's context ends, as that of a request that was sent.
	for _, opt := range opts {
		if p, ok := opt.(grpc.PeerCallOption); ok {
			p.PeerAddr.Addr = &net.TCPAddr{}
		}
	}
	c.caught <- func() error { return invoke(context.WithoutCancel(ctx), method, req, res, cc) }
	<-ctx.Done()
	return status.FromContextError(ctx.Err()).Err()
}

func TestKeyDeletedUnderLiveLease(t *testing.T) {
	t.Parallel()
	cli := connect(t, testservers.Etcd(t).Addr)
	ctx := t.Context()
	s := open(t, cli)
	wiretest.Must[backend.AcquireResult](t)(s.Acquire(ctx, acquire(alice)))
	before := leases(t, cli)
	wiretest.Must[*clientv3.DeleteResponse](t)(cli.Delete(ctx, key("n")))
	if n := leases(t, cli); n != before {
		t.Fatalf("%d leases before, and %d after the key was deleted", before, n)
	}
	if res := wiretest.Must[backend.RenewResult](t)(s.Renew(ctx, renew(alice))); res.Held {
		t.Error("renewed a lock whose key was deleted")
	}
	// Another's lock, under a key that is attached to the hold's own lease.
	wiretest.Must[backend.AcquireResult](t)(open(t, cli).Acquire(ctx, acquire(bob)))
	if res := wiretest.Must[backend.RenewResult](t)(s.Renew(ctx, renew(alice))); res.Held {
		t.Error("renewed another's lock")
	}
	if res := wiretest.Must[backend.ReleaseResult](t)(
		s.Release(ctx, release(alice))); res.Outcome != backend.NotHeld {
		t.Errorf("released another's lock: %v", res.Outcome)
	}
	if n := leases(t, cli); n != 1 {
		t.Errorf("%d leases are left; want that of the other", n)
	}
}

// TestUnknownIsNotRepeated: the client library repeats what was cancelled by anybody but its
// caller.
func TestUnknownIsNotRepeated(t *testing.T) {
	t.Parallel()
	for _, code := range []codes.Code{codes.Canceled, codes.DeadlineExceeded, codes.Unavailable,
		codes.Unknown, codes.Internal, codes.Aborted} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		fake := &fakeEtcd{code: code}
		server := grpc.NewServer()
		pb.RegisterKVServer(server, fake)
		pb.RegisterLeaseServer(server, fake)
		var serving sync.WaitGroup
		serving.Go(func() { server.Serve(l) })
		t.Cleanup(func() {
			server.Stop()
			serving.Wait()
		})
		s := open(t, connect(t, l.Addr().String()))
		_, err = s.Acquire(t.Context(), acquire(alice))
		wantKind(t, err, backend.Unknown)
		if n := fake.txns.Load(); n != 1 {
			t.Errorf("a transaction that failed with %v was sent %d times", code, n)
		}
	}
}

type fakeEtcd struct {
	pb.UnimplementedKVServer
	pb.UnimplementedLeaseServer
	code codes.Code
	txns atomic.Int32
}

func (f *fakeEtcd) Range(context.Context, *pb.RangeRequest) (*pb.RangeResponse, error) {
	return &pb.RangeResponse{}, nil
}

func (f *fakeEtcd) LeaseGrant(
	context.Context, *pb.LeaseGrantRequest,
) (*pb.LeaseGrantResponse, error) {
	return &pb.LeaseGrantResponse{ID: 1, TTL: 30}, nil
}

func (f *fakeEtcd) Txn(context.Context, *pb.TxnRequest) (*pb.TxnResponse, error) {
	f.txns.Add(1)
	return nil, status.Error(f.code, "broken")
}

func TestServerDown(t *testing.T) {
	t.Parallel()
	server := testservers.Etcd(t)
	s := open(t, connect(t, server.Addr))
	wiretest.Must[backend.AcquireResult](t)(s.Acquire(t.Context(), acquire(alice)))
	fresh := open(t, connect(t, server.Addr))
	server.Kill()
	for _, step := range steps {
		for _, s := range []session{s, fresh} {
			err := step.Run(t.Context(), s)
			if err == nil || backend.KindOf(err) == backend.Refused {
				t.Errorf("%s: %v of kind %v, want another could succeed", step.Name, err,
					backend.KindOf(err))
			}
		}
		err := step.Run(t.Context(), fresh)
		wantKind(t, err, backend.Retry)
		if err == nil || !regexp.MustCompile("connection error|broken pipe|connection reset").
			MatchString(err.Error()) {
			t.Errorf("%s: %v; want the cause", step.Name, err)
		}
	}
}

func TestHungServer(t *testing.T) {
	t.Parallel()
	server := testservers.Etcd(t)
	s := open(t, connect(t, server.Addr))
	wiretest.Must[backend.AcquireResult](t)(s.Acquire(t.Context(), acquire(alice)))
	wiretest.Must[backend.RenewResult](t)(s.Renew(t.Context(), renew(alice)))
	server.Stop()
	for _, step := range steps {
		ctx, cancel := context.WithCancel(t.Context())
		failed := make(chan error)
		go func() { failed <- step.Run(ctx, s) }()
		cancel()
		if err := <-failed; err == nil {
			t.Errorf("%s: no error", step.Name)
		}
	}
	server.Cont()
	testservers.Until(t, "all is well", func() bool {
		res, err := s.Renew(t.Context(), renew(alice))
		return err == nil && res.Held || get(t, connect(t, server.Addr), key("n")) == nil
	})
}

// TestAuth: no password, a wrong one, and one without permission for the keys.
func TestAuth(t *testing.T) {
	t.Parallel()
	// The server is slow to compare passwords if it isn't told otherwise.
	server := testservers.Etcd(t, "--bcrypt-cost", "4")
	root := connect(t, server.Addr)
	ctx := t.Context()
	for _, user := range []string{"root", "locker", "stranger"} {
		wiretest.Must[*clientv3.AuthUserAddResponse](t)(root.UserAdd(ctx, user, "secret"))
		wiretest.Must[*clientv3.AuthRoleAddResponse](t)(root.RoleAdd(ctx, user))
		wiretest.Must[*clientv3.AuthUserGrantRoleResponse](t)(root.UserGrantRole(ctx, user, user))
	}
	wiretest.Must[*clientv3.AuthRoleGrantPermissionResponse](t)(
		root.RoleGrantPermission(ctx, "locker",
			key(""), clientv3.GetPrefixRangeEnd(key("")),
			clientv3.PermissionType(clientv3.PermReadWrite)))
	nobody := open(t, connect(t, server.Addr))
	wiretest.Must[*clientv3.AuthEnableResponse](t)(root.AuthEnable(ctx))
	admin := connect(t, server.Addr, as("root", "secret"))

	stranger := open(t, connect(t, server.Addr, as("stranger", "secret")))
	for _, step := range steps {
		for who, s := range map[string]session{"nobody": nobody, "stranger": stranger} {
			err := step.Run(ctx, s)
			wantKind(t, err, backend.Refused)
			if err == nil || !strings.Contains(err.Error(), "user name is empty") &&
				!strings.Contains(err.Error(), "permission denied") {
				t.Errorf("%s by %s: %v", step.Name, who, err)
			}
		}
	}
	if n := len(wiretest.Must[*clientv3.GetResponse](t)(admin.Get(ctx, "", clientv3.WithPrefix())).
		Kvs); n != 0 {
		t.Errorf("%d keys were made by who may not", n)
	}

	changed := open(t, connect(t, server.Addr, as("locker", "secret")))
	locker := open(t, connect(t, server.Addr, as("locker", "secret")))
	listener := subscribe(t, locker, "n")
	wiretest.Must[backend.AcquireResult](t)(locker.Acquire(ctx, acquire(alice)))
	wiretest.Must[backend.RenewResult](t)(locker.Renew(ctx, renew(alice)))
	// This ends all tokens of the user, also those that the streams were opened with.
	wiretest.Must[*clientv3.AuthUserChangePasswordResponse](t)(
		admin.UserChangePassword(ctx, "locker", "secret"))
	testservers.Until(t, "renewals work with a new token", func() bool {
		res, err := locker.Renew(ctx, renew(alice))
		return err == nil && res.Held
	})
	testservers.Until(t, "subscriptions work with a new token", func() bool {
		sub, err := locker.Subscribe(ctx, backend.SubscribeRequest{Name: "m", Wake: func(
			backend.Wakeup,
		) {
		}})
		if err == nil {
			sub.Close()
		}
		return err == nil
	})
	wiretest.Must[backend.ReleaseResult](t)(locker.Release(ctx, release(alice)))
	listener.Wait()

	wiretest.Must[*clientv3.AuthUserChangePasswordResponse](t)(
		admin.UserChangePassword(ctx, "locker", "another"))
	for _, step := range steps {
		err := step.Run(ctx, changed)
		wantKind(t, err, backend.Refused)
		if err == nil || !strings.Contains(err.Error(), "authentication failed") {
			t.Errorf("%s with a wrong password: %v", step.Name, err)
		}
	}
}

// TestBatchWithWhatMayNotBeRead: renewals of others must not fail with it.
func TestBatchWithWhatMayNotBeRead(t *testing.T) {
	t.Parallel()
	server := testservers.Etcd(t, "--bcrypt-cost", "4", "--max-txn-ops", "10")
	root := connect(t, server.Addr)
	ctx := t.Context()
	for _, user := range []string{"root", "locker"} {
		wiretest.Must[*clientv3.AuthUserAddResponse](t)(root.UserAdd(ctx, user, "secret"))
		wiretest.Must[*clientv3.AuthRoleAddResponse](t)(root.RoleAdd(ctx, user))
		wiretest.Must[*clientv3.AuthUserGrantRoleResponse](t)(root.UserGrantRole(ctx, user, user))
	}
	wiretest.Must[*clientv3.AuthRoleGrantPermissionResponse](t)(
		root.RoleGrantPermission(ctx, "locker",
			key("mine"), clientv3.GetPrefixRangeEnd(key("mine")),
			clientv3.PermissionType(clientv3.PermReadWrite)))
	wiretest.Must[*clientv3.AuthEnableResponse](t)(root.AuthEnable(ctx))

	s := open(t, connect(t, server.Addr, as("locker", "secret")))
	var reqs []backend.RenewRequest
	for i := range 50 {
		name := fmt.Sprint("mine", i)
		if i == 17 {
			name = "another's"
		} else {
			wiretest.Must[backend.AcquireResult](t)(s.Acquire(ctx, backend.AcquireRequest{
				Name: name, Owner: alice, Lease: lease,
			}))
		}
		reqs = append(reqs, backend.RenewRequest{Name: name, Owner: alice, Lease: lease})
	}
	var mu sync.Mutex
	s.RenewBatch(ctx, reqs, func(i int, res backend.RenewResult, err error) {
		mu.Lock()
		defer mu.Unlock()
		if i == 17 {
			wantKind(t, err, backend.Refused)
		} else if err != nil || !res.Held {
			t.Errorf("renewal %d: %+v, %v", i, res, err)
		}
	})
}

func TestLongElectionTimeout(t *testing.T) {
	t.Parallel()
	// This server keeps no lease for less than 8 s.
	cli := connect(t, testservers.Etcd(t, "--heartbeat-interval", "500", "--election-timeout",
		"5000").Addr)
	s := open(t, cli)
	req := acquire(alice)
	req.Lease = s2
	for range 3 {
		wiretest.Must[backend.AcquireResult](t)(s.Acquire(t.Context(), req))
		wiretest.Must[backend.RenewResult](t)(s.Renew(t.Context(), backend.RenewRequest{
			Name: "n", Owner: alice, Lease: s2,
		}))
	}
	kv := get(t, cli, key("n"))
	wiretest.Must[backend.RenewResult](t)(s.Renew(t.Context(), backend.RenewRequest{
		Name: "n", Owner: alice, Lease: s2,
	}))
	if again := get(t, cli, key("n")); again.Lease != kv.Lease ||
		again.ModRevision != kv.ModRevision {
		t.Error("each renewal writes")
	}
	if n := leases(t, cli); n != 1 {
		t.Errorf("%d leases", n)
	}
}

const s2 = 2 * time.Second

func TestSilentWatchIsReplaced(t *testing.T) {
	t.Parallel()
	server := testservers.Etcd(t)
	var breaker watchBreaker // only counts
	s := open(t, connect(t, server.Addr, breaker.install),
		etcdbackend.CheckEvery(50*time.Millisecond))
	listener := subscribe(t, s, "n")
	server.Stop() // its connections stay
	defer server.Cont()
	opened := breaker.opened()
	testservers.Until(t, "another stream is opened", func() bool {
		return breaker.opened() > opened
	})
	server.Cont()
	listener.Wait()
}

// TestCompaction: a watch that begins now needs no history.
func TestCompaction(t *testing.T) {
	t.Parallel()
	server := testservers.Etcd(t)
	admin := connect(t, server.Addr)
	between := wiretest.NewProxy(t, server.Addr, faults.HTTP2)
	s, other := open(t, connect(t, between.Addr())), open(t, admin)
	ctx := t.Context()
	listener := subscribe(t, s, "n")
	for i := range 10 {
		wiretest.Must[backend.AcquireResult](t)(other.Acquire(ctx, acquire(bob)))
		if i%2 == 0 {
			between.Cut()
		}
		wiretest.Must[backend.ReleaseResult](t)(other.Release(ctx, release(bob)))
		put := wiretest.Must[*clientv3.PutResponse](t)(admin.Put(ctx, "x", ""))
		wiretest.Must[*clientv3.CompactResponse](t)(
			admin.Compact(ctx, put.Header.Revision, clientv3.WithCompactPhysical()))
		listener.Wait()
	}
}
