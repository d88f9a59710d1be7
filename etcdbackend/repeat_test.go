package etcdbackend

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/dlock"
)

// A hangingEtcd has one key, and does not answer the first transactions that write it.
type hangingEtcd struct {
	pb.KVClient
	granter
	kv      *mvccpb.KeyValue
	rev     int64
	silent  int  // so many transactions are not answered
	carried bool // those are carried out
	sent    int
}

func (e *hangingEtcd) Range(
	context.Context, *pb.RangeRequest, ...grpc.CallOption,
) (*pb.RangeResponse, error) {
	res := &pb.RangeResponse{}
	if e.kv != nil {
		res.Kvs = append(res.Kvs, e.kv)
	}
	return res, nil
}

func (e *hangingEtcd) DeleteRange(
	context.Context, *pb.DeleteRangeRequest, ...grpc.CallOption,
) (*pb.DeleteRangeResponse, error) {
	return &pb.DeleteRangeResponse{}, nil // of whoever waits no more
}

func (e *hangingEtcd) Txn(
	ctx context.Context, req *pb.TxnRequest, opts ...grpc.CallOption,
) (*pb.TxnResponse, error) {
	e.sent++
	if e.sent > e.silent {
		return e.carryOut(req), nil
	}
	seemSent(opts)
	if e.carried && e.sent == 1 {
		e.carryOut(req)
	}
	<-ctx.Done()
	return nil, ctx.Err()
}

func (e *hangingEtcd) carryOut(req *pb.TxnRequest) *pb.TxnResponse {
	now := e.kv
	if now == nil {
		now = &mvccpb.KeyValue{}
	}
	for _, c := range req.Compare {
		if c.Target == pb.Compare_MOD && c.GetModRevision() != now.ModRevision ||
			c.Target == pb.Compare_LEASE && c.GetLease() != now.Lease {
			res, _ := e.Range(context.Background(), nil)
			return &pb.TxnResponse{Responses: []*pb.ResponseOp{
				{Response: &pb.ResponseOp_ResponseRange{ResponseRange: res}},
			}}
		}
	}
	e.rev++
	if put := req.Success[0].GetRequestPut(); put != nil {
		e.kv = &mvccpb.KeyValue{Value: put.Value, ModRevision: e.rev, CreateRevision: e.rev,
			Lease: put.Lease}
	} else {
		e.kv = nil
	}
	return &pb.TxnResponse{Succeeded: true, Header: &pb.ResponseHeader{Revision: e.rev}}
}

// If a member doesn't answer an acquisition, the request is sent to the next member, whose answer
// tells whether it was carried out. It might still be carried out until its lease is revoked, so
// that lease isn't used again.
func TestRepeatedAcquisition(t *testing.T) {
	for _, c := range []struct {
		name    string
		silent  int
		carried bool
		another bool // has the lock by then
		kind    backend.ErrorKind
		failed  bool
	}{
		{name: "no member is silent"},
		{name: "one is", silent: 1},
		{name: "one is, and did it", silent: 1, carried: true},
		{name: "two are", silent: 2},
		{name: "all are", silent: 3, failed: true},
		{name: "all are, and one did it", silent: 3, carried: true, failed: true},
		{name: "one is, and another was faster", silent: 1, another: true, failed: true},
	} {
		synctest.Test(t, func(t *testing.T) {
			etcd := &hangingEtcd{silent: c.silent, carried: c.carried}
			s := newSession(&store{kv: etcd, lease: etcd})
			defer s.Close()
			if c.another { // between the look and the write
				l, err := s.leases.get(t.Context(), 31)
				if err != nil {
					t.Fatal(err)
				}
				s.leases.put(l)
				etcd.rev, etcd.kv = 1,
					&mvccpb.KeyValue{Value: encode(lockRole, record{owner: "another", count: 1}),
						ModRevision: 1, CreateRevision: 1, Lease: 1}
			}
			s.waiters.enter("n")
			s.waiters.all["n"].key = []byte("waits")
			req := backend.AcquireRequest{Name: "n", Owner: "a", Lease: 30 * time.Second}
			res, err := s.Acquire(t.Context(), req)
			switch {
			case c.failed:
				if err == nil || backend.KindOf(err) != backend.Unknown {
					t.Errorf("%s: %+v, %v", c.name, res, err)
				}
			case err != nil || !res.Acquired || res.Count != 1:
				t.Errorf("%s: %+v, %v", c.name, res, err)
			case s.waiters.own("n") != nil:
				t.Errorf("%s: who has the lock still waits for it", c.name)
			}
			s.waiters.leave("n")
			if _, err := s.Release(t.Context(), backend.ReleaseRequest{Name: "n", Owner: "a",
				Lease: 30 * time.Second}); err != nil {
				t.Errorf("%s: release: %v", c.name, err)
			}
			synctest.Wait()
			want := 0
			if c.silent == 0 {
				want = 1
			}
			if alive, _ := etcd.count(); alive != want || s.holds.len() != 0 {
				t.Errorf("%s: %d leases are left, want %d; %d holds", c.name, alive, want,
					s.holds.len())
			}
		})
	}
}

// An unlock is answered by the third member that it asks, well before it waits no longer. Two that
// say nothing may be a leader that hangs, and a follower that has passed a request on to it.
func TestReleaseWhileTwoMembersAreSilent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		etcd := &hangingEtcd{}
		c := dlock.New(&Backend{store: &store{kv: etcd, lease: etcd}})
		defer c.Close()
		l := c.Locker("n")
		if err := l.LockContext(t.Context()); err != nil {
			t.Fatal(err)
		}
		etcd.silent = etcd.sent + 2
		begin := time.Now()
		if err := l.UnlockContext(t.Context()); err != nil {
			t.Error(err)
		}
		if took := time.Since(begin); took > 5*longestPatience/2 {
			t.Errorf("took %v", took)
		}
	})
}

// A sulker is an etcd that says nothing to transactions, unless it speaks.
type sulker struct {
	pb.KVClient
	speaks bool
}

func (m *sulker) Txn(
	ctx context.Context, _ *pb.TxnRequest, _ ...grpc.CallOption,
) (*pb.TxnResponse, error) {
	if m.speaks {
		return &pb.TxnResponse{}, nil
	}
	<-ctx.Done()
	return nil, ctx.Err()
}

// Many requests at once that get no answer are one time in a row, so that the next one waits no
// longer.
func TestManySilencesAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		etcd := &sulker{}
		st := &store{kv: etcd}
		once := func() { _, _ = st.once(t.Context(), time.Second, &pb.TxnRequest{}) }
		var all sync.WaitGroup
		for range 10 {
			all.Go(once)
		}
		all.Wait()
		for n, want := range []time.Duration{1, 2, 4, 0, 1} { // seconds
			begin := time.Now()
			etcd.speaks = want == 0
			once()
			if took := time.Since(begin); took != want*time.Second {
				t.Errorf("time %d took %v, want %d s", n+2, took, want)
			}
		}
	})
}

// A ring is an etcd of three members that are asked in turn, of which one hangs.
type ring struct {
	hangingEtcd
	next int // 2 hangs
}

func (r *ring) hangs(ctx context.Context, opts []grpc.CallOption) bool {
	who := r.next
	r.next = (r.next + 1) % 3
	if who < 2 {
		return false
	}
	seemSent(opts)
	<-ctx.Done()
	return true
}

func (r *ring) Range(
	ctx context.Context, req *pb.RangeRequest, opts ...grpc.CallOption,
) (*pb.RangeResponse, error) {
	if r.hangs(ctx, opts) {
		return nil, ctx.Err()
	}
	return r.hangingEtcd.Range(ctx, req, opts...)
}

func (r *ring) Txn(
	ctx context.Context, req *pb.TxnRequest, opts ...grpc.CallOption,
) (*pb.TxnResponse, error) {
	if r.hangs(ctx, opts) {
		return nil, ctx.Err()
	}
	return r.hangingEtcd.Txn(ctx, req, opts...)
}

func (r *ring) LeaseGrant(
	ctx context.Context, req *pb.LeaseGrantRequest, opts ...grpc.CallOption,
) (*pb.LeaseGrantResponse, error) {
	if r.hangs(ctx, opts) {
		return nil, ctx.Err()
	}
	return r.hangingEtcd.LeaseGrant(ctx, req, opts...)
}

func (r *ring) LeaseRevoke(
	ctx context.Context, req *pb.LeaseRevokeRequest, opts ...grpc.CallOption,
) (*pb.LeaseRevokeResponse, error) {
	if r.hangs(ctx, opts) {
		return nil, ctx.Err()
	}
	return r.hangingEtcd.LeaseRevoke(ctx, req, opts...)
}

// A member that hangs costs a second for each request that it gets, however long the lease is.
func TestALockOfALongLeaseBesideAMemberThatHangs(t *testing.T) {
	for next := range 3 {
		synctest.Test(t, func(t *testing.T) {
			etcd := &ring{next: next}
			c := dlock.New(&Backend{store: &store{kv: etcd, lease: etcd}},
				dlock.WithLease(24*time.Hour))
			defer c.Close()
			l := c.Locker("n")
			lock := func(ctx context.Context) error { return l.LockContext(ctx) }
			for _, step := range []func(context.Context) error{lock, l.UnlockContext} {
				begin := time.Now()
				if err := step(t.Context()); err != nil {
					t.Fatal(err)
				}
				if took := time.Since(begin); took > 2*time.Second {
					t.Errorf("took %v with member %d asked first", took, next)
				}
			}
		})
	}
}

// lateContext is one whose timer runs a moment after its deadline.
type lateContext struct {
	context.Context
	deadline time.Time
}

func (c lateContext) Deadline() (time.Time, bool) { return c.deadline, true }

// TestDeadlineBeforeTimer: gRPC may say that a deadline has passed before the context does. That is
// the end of the context all the same, and not something that the store has said.
func TestDeadlineBeforeTimer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		deadline := time.Now().Add(time.Second)
		timer, cancel := context.WithDeadline(t.Context(), deadline.Add(time.Millisecond))
		defer cancel()
		ctx := lateContext{timer, deadline}
		_, err := send(ctx, func(_ context.Context, _ *pb.TxnRequest,
			opts ...grpc.CallOption) (*pb.TxnResponse, error) {
			seemSent(opts)
			time.Sleep(time.Until(deadline))
			err := status.Error(codes.DeadlineExceeded,
				"stream terminated by RST_STREAM with error code: CANCEL")
			for _, opt := range opts {
				if finish, ok := opt.(grpc.OnFinishCallOption); ok {
					finish.OnFinish(err)
				}
			}
			return nil, err
		}, &pb.TxnRequest{})
		if !errors.Is(err, context.DeadlineExceeded) || ctx.Err() == nil {
			t.Errorf("%v, and the context says %v; want the end of the context", err, ctx.Err())
		}
	})
}
