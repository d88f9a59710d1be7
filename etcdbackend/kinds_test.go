package etcdbackend

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/seed951563bd/distsync/backend"
)

func TestKindsOfErrors(t *testing.T) {
	for _, c := range []struct {
		err          error
		sent, unsent backend.ErrorKind
	}{
		{rpctypes.ErrGRPCNoLeader, backend.Retry, backend.Retry},
		{rpctypes.ErrGRPCRequestTooManyRequests, backend.Retry, backend.Retry},
		{rpctypes.ErrGRPCLeaseNotFound, backend.Retry, backend.Retry},
		{rpctypes.ErrGRPCInvalidAuthToken, backend.Retry, backend.Retry},
		{rpctypes.ErrGRPCAuthOldRevision, backend.Retry, backend.Retry},
		{rpctypes.ErrGRPCNoSpace, backend.Unknown, backend.Retry}, // it may have been carried out
		{rpctypes.ErrGRPCTimeout, backend.Unknown, backend.Retry},
		{rpctypes.ErrGRPCLeaderChanged, backend.Unknown, backend.Retry},
		{rpctypes.ErrGRPCStopped, backend.Unknown, backend.Retry},
		{rpctypes.ErrGRPCPermissionDenied, backend.Refused, backend.Refused},
		{rpctypes.ErrGRPCUserEmpty, backend.Refused, backend.Refused},
		{rpctypes.ErrGRPCAuthFailed, backend.Refused, backend.Refused},
		{rpctypes.ErrGRPCRequestTooLarge, backend.Refused, backend.Refused},
		{status.Error(codes.Unavailable, "broken"), backend.Unknown, backend.Retry},
		{status.Error(codes.Canceled, "x"), backend.Unknown, backend.Retry},
		{errClientClosed, backend.Unknown, backend.Refused},
		{errOverlong, backend.Unknown, backend.Retry}, // it may be the answer that was
		{errors.New("x"), backend.Unknown, backend.Retry},
	} {
		if sent, unsent := withKind(c.err, true).Kind, withKind(c.err, false).
			Kind; sent != c.sent || unsent != c.unsent {
			t.Errorf("%v: kind %v, want %v; if it was not sent %v, want %v", c.err, sent, c.sent,
				unsent, c.unsent)
		}
	}
}

var errOverlong = status.Error(codes.ResourceExhausted,
	"grpc: received message larger than max (5000000 vs. 4194304)")

// A look whose answer is too long is refused, not retried: the next answer would be as long.
func TestOverlongAnswers(t *testing.T) {
	for err, want := range map[error]backend.ErrorKind{
		errOverlong: backend.Refused,
		status.Error(codes.ResourceExhausted, "RST_STREAM with ENHANCE_YOUR_CALM"): backend.Retry,
		rpctypes.ErrGRPCRequestTooManyRequests:                                     backend.Retry,
	} {
		if got := backend.KindOf(notDone(withKind(err, true))); got != want {
			t.Errorf("%v: kind %v, want %v", err, got, want)
		}
	}
}

// A held is an etcd in which another has a lock, whose lease has some seconds left.
type held struct {
	pb.KVClient
	pb.LeaseClient
	left int64
}

func (h held) Range(
	context.Context, *pb.RangeRequest, ...grpc.CallOption,
) (*pb.RangeResponse, error) {
	return &pb.RangeResponse{Kvs: []*mvccpb.KeyValue{{Value: encode(lockRole,
		record{owner: "another", count: 1}), ModRevision: 7, CreateRevision: 7, Lease: 1}}}, nil
}

func (h held) Txn(
	ctx context.Context, _ *pb.TxnRequest, _ ...grpc.CallOption,
) (*pb.TxnResponse, error) {
	lock, _ := h.Range(ctx, nil)
	return &pb.TxnResponse{Responses: []*pb.ResponseOp{
		{Response: &pb.ResponseOp_ResponseRange{ResponseRange: lock}},
		{Response: &pb.ResponseOp_ResponseRange{ResponseRange: &pb.RangeResponse{}}},
	}}, nil
}

func (h held) LeaseTimeToLive(
	context.Context, *pb.LeaseTimeToLiveRequest, ...grpc.CallOption,
) (*pb.LeaseTimeToLiveResponse, error) {
	return &pb.LeaseTimeToLiveResponse{TTL: h.left}, nil
}

// A lock that is held always has some time left: a negative time would mean that it never ends.
func TestRemaining(t *testing.T) {
	for left, want := range map[int64]time.Duration{
		0:  time.Second / 2,
		1:  time.Second / 2,
		2:  3 * time.Second / 2,
		31: 61 * time.Second / 2,
	} {
		h := held{left: left}
		s := newSession(&store{kv: h, lease: h})
		look, err := s.Look(t.Context(), backend.LookRequest{Name: "n"})
		if err != nil || !look.Held || look.Remaining != want {
			t.Errorf("%d s left: %+v, %v; want %v", left, look, err, want)
		}
		res, err := s.Acquire(t.Context(), backend.AcquireRequest{
			Name: "n", Owner: "a", Lease: time.Minute,
		})
		if err != nil || res.Acquired || res.Remaining != want {
			t.Errorf("%d s left: %+v, %v; want %v", left, res, err, want)
		}
		s.Close()
	}
}

// A mute is an etcd that has a lock of ours, and says nothing on streams. A batch's context ends
// just before its read is answered.
type mute struct {
	*streamer
	pb.KVClient
	cancel context.CancelFunc
}

func (m mute) Txn(context.Context, *pb.TxnRequest, ...grpc.CallOption) (*pb.TxnResponse, error) {
	m.cancel()
	time.Sleep(time.Millisecond) // lets the functions run that wait for the end of the context
	found := &pb.RangeResponse{Kvs: []*mvccpb.KeyValue{{
		Value: encode(lockRole, record{owner: "a", count: 1}), ModRevision: 7,
		CreateRevision: 7, Lease: 1,
	}}}
	return &pb.TxnResponse{Responses: []*pb.ResponseOp{
		{Response: &pb.ResponseOp_ResponseRange{ResponseRange: found}},
	}}, nil
}

// A renewal whose context ends is answered then, also if its keep-alive was not yet sent.
func TestRenewalEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		m := mute{streamer: newStreamer(), cancel: cancel}
		s := newSession(&store{kv: m, lease: m})
		defer s.Close()
		begin := time.Now()
		res, err := s.Renew(ctx, backend.RenewRequest{Name: "n", Owner: "a", Lease: time.Minute})
		if res.Held || !errors.Is(err, context.Canceled) ||
			time.Since(begin) > 100*time.Millisecond {
			t.Errorf("%+v, %v after %v", res, err, time.Since(begin))
		}
	})
}

// An etcd that was set back may have another's lock under the revision of ours, while our lease
// lives.
func TestRenewalLooksAtTheLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := mute{streamer: newStreamer(), cancel: func() {}}
		s := newSession(&store{kv: m, lease: m})
		defer s.Close()
		id := holdID{name: "n", owner: "b"}
		s.holds.wrote(id, record{owner: "b", count: 1, rev: 7, created: 7, lease: 5},
			lease{id: 5, ttl: 61})
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go func() {
			select {
			case id := <-m.sent:
				m.res <- &pb.LeaseKeepAliveResponse{ID: id, TTL: 61}
			case <-ctx.Done():
			}
		}()
		res, err := s.Renew(t.Context(), backend.RenewRequest{
			Name: id.name, Owner: id.owner, Lease: time.Minute,
		})
		if err != nil || res.Held {
			t.Errorf("renewed another's lock: %+v, %v", res, err)
		}
	})
}

// The suite leaves out each kind that isn't declared, and doesn't say so.
func TestAllKindsAreDeclared(t *testing.T) {
	for k := backend.Exclusive; k <= backend.Permits; k++ {
		if !new(Backend).Limits().Kinds.Has(k) {
			t.Errorf("%v isn't declared", k)
		}
	}
}
