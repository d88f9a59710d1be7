package etcdbackend

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"

	"github.com/seed951563bd/distsync/backend"
)

// members is an etcd of which the first so many members asked say nothing, and the next answers.
type members struct {
	pb.KVClient
	pb.LeaseClient
	silent int
	answer *pb.TxnResponse
}

func (m *members) Txn(
	ctx context.Context, _ *pb.TxnRequest, _ ...grpc.CallOption,
) (*pb.TxnResponse, error) {
	if m.silent > 0 {
		m.silent--
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return m.answer, nil
}

func (m *members) session() *session {
	return newSession(&store{kv: m, lease: m})
}

// A read is sent to the next member if one is silent, and each one has more time if many are.
func TestRenewalsDoNotWaitForAMemberThatHangs(t *testing.T) {
	answer := &pb.TxnResponse{Responses: []*pb.ResponseOp{
		{Response: &pb.ResponseOp_ResponseRange{ResponseRange: &pb.RangeResponse{}}},
	}}
	for silent, most := range []time.Duration{0, 1, 2, 4, 8} { // seconds
		synctest.Test(t, func(t *testing.T) {
			begin := time.Now()
			m := &members{silent: silent, answer: answer}
			_, err := m.session().store.readAll(t.Context(), []holdID{{name: "n"}}, 3600)
			if took := time.Since(begin); err != nil || took > most*time.Second {
				t.Errorf("%d members are silent: %v, after %v", silent, err, took)
			}
		})
	}
}

// An answer of the wrong shape is an error, and nothing worse.
func TestAnswersOfTheWrongShape(t *testing.T) {
	for _, answer := range []*pb.TxnResponse{
		{},
		{Responses: []*pb.ResponseOp{{}}},
		{Responses: []*pb.ResponseOp{{Response: &pb.ResponseOp_ResponsePut{}}}},
	} {
		s := (&members{answer: answer}).session()
		res, err := s.Renew(t.Context(), backend.RenewRequest{Name: "n", Owner: "a",
			Lease: time.Second})
		if res.Held || err == nil {
			t.Errorf("Renew: %v, %v", res, err)
		}
		if _, _, err := s.store.swap(t.Context(), &attempt{id: holdID{name: "n"}, ttl: 30},
			record{}, nil); backend.KindOf(err) != backend.Unknown || err == nil {
			t.Errorf("swap: %v", err)
		}
		s.Close()
	}
}
