package etcdbackend_test

import (
	"context"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/internal/testservers"
	"github.com/seed951563bd/distsync/internal/wiretest"
)

// An invoke sends one request.
type invoke func(ctx context.Context) error

// intercept lets f send the requests of a client, or not.
func intercept(f func(ctx context.Context, req any, send invoke) error) func(*clientv3.Config) {
	return func(cfg *clientv3.Config) {
		cfg.DialOptions = append(cfg.DialOptions, grpc.WithChainUnaryInterceptor(
			func(ctx context.Context, method string, req, res any, cc *grpc.ClientConn, next grpc.UnaryInvoker, opts ...grpc.CallOption) error {
				return f(ctx, req, func(ctx context.Context) error { return next(ctx, method, req, res, cc, opts...) })
			}))
	}
}

// puts says whether a request is a transaction that would write a key.
func puts(req any) bool {
	txn, ok := req.(*pb.TxnRequest)
	return ok && txn.Success[0].GetRequestPut() != nil
}

// TestFullStore: the transaction with which a store becomes full is carried out, and answered as those
// that are refused since it is full.
func TestFullStore(t *testing.T) {
	server := testservers.Etcd(t)
	admin := connect(t, server.Addr)
	full := false
	s := open(t, connect(t, server.Addr, intercept(func(ctx context.Context, req any, send invoke) error {
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
	look := wiretest.Must[backend.LookResult](t)(s.Look(t.Context(), backend.LookRequest{Name: "n", Owner: alice}))
	if look.Count != 2 {
		t.Errorf("after a re-entry that was carried out: %+v", look)
	}
	full = false
	for _, want := range []backend.ReleaseOutcome{backend.Left, backend.Freed} {
		if res := wiretest.Must[backend.ReleaseResult](t)(s.Release(t.Context(), release(alice))); res.Outcome != want {
			t.Errorf("release: %v, want %v", res.Outcome, want)
		}
	}
	if get(t, admin, key("n")) != nil {
		t.Error("the lock is held")
	}
}
