package etcdbackend_test

import (
	"context"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/etcdbackend"
	"github.com/seed951563bd/distsync/internal/test/testservers"
	"github.com/seed951563bd/distsync/internal/test/wiretest"
)

// An invoke sends one request.
type invoke func(ctx context.Context) error

// intercept lets f send the requests of a client, or not.
func intercept(f func(ctx context.Context, req any, send invoke) error) func(*clientv3.Config) {
	return func(cfg *clientv3.Config) {
		cfg.DialOptions = append(cfg.DialOptions, grpc.WithChainUnaryInterceptor(
			func(
				ctx context.Context, method string, req, res any, cc *grpc.ClientConn,
				next grpc.UnaryInvoker, opts ...grpc.CallOption,
			) error {
				return f(ctx, req, func(ctx context.Context) error {
					return next(ctx, method, req, res, cc, opts...)
				})
			}))
	}
}

// unhurried lets each request take up to a minute, whatever time its caller gives it. So a step of
// a test doesn't fail because the machine is busy. It is for servers that answer.
func unhurried(cfg *clientv3.Config) {
	intercept(func(ctx context.Context, _ any, send invoke) error {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		defer cancel()
		return send(ctx)
	})(cfg)
}

// puts says whether a request is a transaction that would write a key.
func puts(req any) bool {
	txn, ok := req.(*pb.TxnRequest)
	return ok && txn.Success[0].GetRequestPut() != nil
}

// TestFullStore: the transaction with which a store becomes full is carried out, and answered as
// those that are refused since it is full.
func TestFullStore(t *testing.T) {
	t.Parallel()
	server := testservers.Etcd(t)
	admin := connect(t, server.Addr)
	full := false
	s := open(t, connect(t, server.Addr, intercept(func(
		ctx context.Context, req any, send invoke,
	) error {
		err := send(ctx)
		if full && puts(req) {
			return rpctypes.ErrGRPCNoSpace
		}
		return err
	})))
	wiretest.Must[backend.AcquireResult](t)(s.Acquire(t.Context(), acquire(alice)))
	full = true
	longer := reenter(alice) // which needs another lease
	longer.Lease = 2 * lease
	_, err := s.Acquire(t.Context(), longer)
	wantKind(t, err, backend.Unknown)
	look := wiretest.Must[backend.LookResult](t)(
		s.Look(t.Context(), backend.LookRequest{Name: "n", Owner: alice}))
	if look.Count != 2 {
		t.Errorf("after a re-entry that was carried out: %+v", look)
	}
	full = false
	for _, want := range []backend.ReleaseOutcome{backend.Left, backend.Freed} {
		if res := wiretest.Must[backend.ReleaseResult](t)(
			s.Release(t.Context(), release(alice))); res.Outcome != want {
			t.Errorf("release: %v, want %v", res.Outcome, want)
		}
	}
	if get(t, admin, key("n")) != nil {
		t.Error("the lock is held")
	}
}

// TestTimeoutsLeaveNoLeases: callers that give up leave no leases behind, however long these would
// be.
func TestTimeoutsLeaveNoLeases(t *testing.T) {
	t.Parallel()
	server := testservers.Etcd(t)
	admin := connect(t, server.Addr)
	var cancel context.CancelFunc
	s := open(t, connect(t, server.Addr, intercept(func(
		ctx context.Context, req any, send invoke,
	) error {
		err := send(ctx)
		if _, ok := req.(*pb.LeaseGrantRequest); ok {
			cancel()
		}
		return err
	})))
	req := acquire(alice)
	req.Lease = time.Hour
	for range 20 {
		var ctx context.Context
		ctx, cancel = context.WithCancel(t.Context())
		if res, err := s.Acquire(ctx, req); err == nil && res.Acquired {
			wiretest.Must[backend.ReleaseResult](t)(s.Release(t.Context(), release(alice)))
		}
		cancel()
	}
	if n := leases(t, admin); n > 2 {
		t.Errorf("%d leases of an hour are left by 20 callers that gave up", n)
	}
	s.Close()
	testservers.Until(t, "Close gives back the leases", func() bool {
		return leases(t, admin) == 0
	})
}

// TestLeaseThatCannotBeKept: a hold that has a used lease needs it to begin anew. If that fails it
// gets a fresh one.
func TestLeaseThatCannotBeKept(t *testing.T) {
	t.Parallel()
	server := testservers.Etcd(t)
	admin := connect(t, server.Addr)
	s := open(t, connect(t, server.Addr, func(cfg *clientv3.Config) {
		cfg.DialOptions = append(cfg.DialOptions, grpc.WithChainStreamInterceptor(
			func(
				context.Context, *grpc.StreamDesc, *grpc.ClientConn, string, grpc.Streamer,
				...grpc.CallOption,
			) (grpc.ClientStream, error) {
				return nil, rpctypes.ErrGRPCNoLeader
			}))
	}))
	var last int64
	for range 3 {
		if res := wiretest.Must[backend.AcquireResult](t)(
			s.Acquire(t.Context(), acquire(alice))); !res.Acquired || res.Count != 1 {
			t.Errorf("%+v", res)
		}
		kv := get(t, admin, key("n"))
		if kv.Lease == last {
			t.Error("the lease of the last hold serves this one, and did not begin anew")
		}
		last = kv.Lease
		wiretest.Must[backend.ReleaseResult](t)(s.Release(t.Context(), release(alice)))
		etcdbackend.Age(s, time.Second)
	}
	testservers.Until(t, "leases that are not used are revoked", func() bool {
		return leases(t, admin, s) == 0
	})
}

// TestUsedLeaseBeginsAnew: a hold has all of its lease, though that served another before.
func TestUsedLeaseBeginsAnew(t *testing.T) {
	t.Parallel()
	server := testservers.Etcd(t)
	admin := connect(t, server.Addr)
	s := open(t, connect(t, server.Addr))
	req := acquire(alice)
	req.Lease = 5 * time.Second
	wiretest.Must[backend.AcquireResult](t)(s.Acquire(t.Context(), req))
	first := get(t, admin, key("n")).Lease
	left := func() int64 {
		return wiretest.Must[*clientv3.LeaseTimeToLiveResponse](t)(
			admin.TimeToLive(t.Context(), clientv3.LeaseID(first))).TTL
	}
	testservers.Until(t, "some of it is over", func() bool { return left() <= 4 })
	wiretest.Must[backend.ReleaseResult](t)(s.Release(t.Context(), release(alice)))
	wiretest.Must[backend.AcquireResult](t)(s.Acquire(t.Context(), req))
	if kv := get(t, admin, key("n")); kv.Lease == first && left() < 5 {
		t.Errorf("%d s are left of a lease of 5 s that began just now", left())
	}
}

// TestUsedLeaseBeginsAnewInLine: a place in line has all of its lease, though that served a hold
// before.
func TestUsedLeaseBeginsAnewInLine(t *testing.T) {
	t.Parallel()
	const place = 8 * time.Second
	server := testservers.Etcd(t)
	admin := connect(t, server.Addr)
	s, other := open(t, connect(t, server.Addr)), open(t, connect(t, server.Addr))
	fair := func(s session, owner string, place time.Duration) {
		t.Helper()
		wiretest.Must[backend.AcquireResult](t)(s.Acquire(t.Context(), backend.AcquireRequest{
			Kind: backend.Fair, Name: "n", Owner: owner, Lease: lease, Place: place,
		}))
	}
	fair(other, bob, 0)
	used := backend.AcquireRequest{Name: "used", Owner: alice, Lease: place}
	wiretest.Must[backend.AcquireResult](t)(s.Acquire(t.Context(), used))
	first := get(t, admin, key("used")).Lease
	left := func() int64 {
		return wiretest.Must[*clientv3.LeaseTimeToLiveResponse](t)(
			admin.TimeToLive(t.Context(), clientv3.LeaseID(first))).TTL
	}
	testservers.Until(t, "some of it is over", func() bool { return left() < 8 })
	wiretest.Must[backend.ReleaseResult](t)(s.Release(t.Context(), backend.ReleaseRequest{
		Name: "used", Owner: alice, Lease: place,
	}))
	fair(s, alice, place)
	places := wiretest.Must[*clientv3.GetResponse](t)(
		admin.Get(t.Context(), key("n\x01"), clientv3.WithPrefix()))
	if places.Count != 1 {
		t.Fatalf("%d places: %v", places.Count, places.Kvs)
	}
	if kv := places.Kvs[0]; kv.Lease == first && left() < 8 {
		t.Errorf("%d s are left of a place of 8 s that began just now", left())
	} else if kv.Lease != first {
		t.Log("the place has another lease, since this took too long")
	}
}

// TestLeaseThatIsGone: a lease that was kept for the next hold is not there any more.
func TestLeaseThatIsGone(t *testing.T) {
	t.Parallel()
	server := testservers.Etcd(t)
	admin := connect(t, server.Addr)
	s := open(t, connect(t, server.Addr))
	for range 3 {
		for _, name := range []string{"a", "b", "c"} {
			wiretest.Must[backend.AcquireResult](t)(
				s.Acquire(t.Context(), backend.AcquireRequest{
					Name: name, Owner: alice, Lease: lease,
				}))
		}
		for _, name := range []string{"a", "b", "c"} {
			wiretest.Must[backend.ReleaseResult](t)(
				s.Release(t.Context(), backend.ReleaseRequest{
					Name: name, Owner: alice, Lease: lease,
				}))
		}
		for _, l := range wiretest.Must[*clientv3.LeaseLeasesResponse](t)(
			admin.Leases(t.Context())).Leases {
			wiretest.Must[*clientv3.LeaseRevokeResponse](t)(admin.Revoke(t.Context(), l.ID))
		}
	}
	if res := wiretest.Must[backend.AcquireResult](t)(
		s.Acquire(t.Context(), acquire(alice))); !res.Acquired {
		t.Errorf("%+v", res)
	}
	if get(t, admin, key("n")) == nil {
		t.Error("the lock is free")
	}
}

// TestLeaseEndsDuringARenewal: a lock is not renewed whose lease ends between the look and the
// message.
func TestLeaseEndsDuringARenewal(t *testing.T) {
	t.Parallel()
	server := testservers.Etcd(t)
	admin := connect(t, server.Addr)
	var between func()
	s := open(t, connect(t, server.Addr, intercept(func(
		ctx context.Context, req any, send invoke,
	) error {
		err := send(ctx)
		if txn, ok := req.(*pb.TxnRequest); ok && between != nil &&
			txn.Success[0].GetRequestRange() != nil {
			f := between
			between = nil
			f()
		}
		return err
	})))
	wiretest.Must[backend.AcquireResult](t)(s.Acquire(t.Context(), acquire(alice)))
	held := clientv3.LeaseID(get(t, admin, key("n")).Lease)
	between = func() {
		wiretest.Must[*clientv3.LeaseRevokeResponse](t)(admin.Revoke(t.Context(), held))
	}
	if res := wiretest.Must[backend.RenewResult](t)(s.Renew(t.Context(), renew(alice))); res.Held {
		t.Error("renewed a lock whose lease has ended")
	}
}

// TestDoubtfulLeaseIsRevoked: a write without an answer leaves no lease when its hold is given
// back, though the context of that step never ends.
func TestDoubtfulLeaseIsRevoked(t *testing.T) {
	t.Parallel()
	server := testservers.Etcd(t)
	admin := connect(t, server.Addr)
	for _, carriedOut := range []bool{false, true} {
		broken := true
		s := open(t, connect(t, server.Addr, intercept(func(
			ctx context.Context, req any, send invoke,
		) error {
			if !broken || !puts(req) {
				return send(ctx)
			}
			if err := send(ctx); err != nil || carriedOut {
				return rpctypes.ErrGRPCLeaderChanged
			}
			wiretest.Must[*clientv3.DeleteResponse](t)(admin.Delete(ctx, key("n")))
			return rpctypes.ErrGRPCLeaderChanged
		})))
		_, err := s.Acquire(context.Background(), acquire(alice))
		wantKind(t, err, backend.Unknown)
		broken = false
		want := backend.NotHeld
		if carriedOut {
			want = backend.Freed
		}
		if res := wiretest.Must[backend.ReleaseResult](t)(
			s.Release(t.Context(), release(alice))); res.Outcome != want {
			t.Errorf("%v, want %v", res.Outcome, want)
		}
		if n := leases(t, admin); n != 0 || etcdbackend.Idle(s) != 0 ||
			etcdbackend.Remembered(s) != 0 {
			t.Errorf("%d leases are left, %d for the next hold; %d holds are remembered", n,
				etcdbackend.Idle(s), etcdbackend.Remembered(s))
		}
	}
}
