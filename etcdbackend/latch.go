package etcdbackend

import (
	"context"
	"strconv"
	"strings"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/seed951563bd/distsync/backend"
)

// The count of a latch is stored in a key that has no lease, and is deleted when the latch opens. A
// lock whose name ends in the way that the keys of latches do can have the same key as a latch. So
// the value says whether the key belongs to a latch.

const (
	latchRole  role   = "count"
	latchValue string = "latch "
)

func (st *store) latchKey(name string) []byte { return st.keysOf(name, latchRole) }

// Latch implements [backend.Latcher].
func (s *session) Latch(
	ctx context.Context, req backend.LatchRequest,
) (backend.LatchResult, error) {
	if err := ended(ctx); err != nil {
		return backend.LatchResult{}, err
	}
	key := s.store.latchKey(req.Name)
	res, err := insist(ctx, patience(0), s.store.kv.Range, &pb.RangeRequest{Key: key})
	if err != nil {
		return backend.LatchResult{}, notDone(err)
	}
	for kv := first(res.Kvs); ; {
		n, err := latchCount(kv)
		if err != nil {
			return backend.LatchResult{}, err
		}
		result, op := backend.LatchResult{Count: n}, (*pb.RequestOp)(nil)
		switch {
		case req.Step == backend.SetLatch && n == 0:
			result, op = backend.LatchResult{Count: req.Count, Set: true}, putLatch(key, req.Count)
		case req.Step == backend.CountDown && n > 1:
			result.Count, op = n-1, putLatch(key, n-1)
		case req.Step == backend.CountDown && n == 1:
			result.Count, op = 0, del(key)
		default:
			return result, nil
		}
		txn, err := s.store.once(ctx, patience(0), &pb.TxnRequest{
			Compare: sameLatch(key, kv),
			Success: []*pb.RequestOp{op},
			Failure: []*pb.RequestOp{rangeOp(key)},
		})
		if err != nil {
			return backend.LatchResult{}, err
		}
		if txn.Succeeded {
			return result, nil
		}
		kvs, err := ranges(txn, 1)
		if err != nil {
			return backend.LatchResult{}, err
		}
		kv = first(kvs[0])
	}
}

// latchCount returns the count in a latch's key, or 0 if there is none.
func latchCount(kv *mvccpb.KeyValue) (int64, error) {
	if kv == nil {
		return 0, nil
	}
	count, ok := strings.CutPrefix(string(kv.Value), latchValue)
	n, err := strconv.ParseInt(count, 10, 64)
	if !ok || err != nil || n < 1 {
		return 0, conflict(kv)
	}
	return n, nil
}

func putLatch(key []byte, n int64) *pb.RequestOp {
	return putOp(key, strconv.AppendInt([]byte(latchValue), n, 10), 0)
}

// sameLatch returns the condition that a key hasn't changed since it was read. The revision alone
// isn't enough (see the function same).
func sameLatch(key []byte, kv *mvccpb.KeyValue) []*pb.Compare {
	if kv == nil {
		return same(key, record{})
	}
	return []*pb.Compare{unchanged(key, kv.ModRevision), {
		Key: key, Result: pb.Compare_EQUAL,
		Target: pb.Compare_VALUE, TargetUnion: &pb.Compare_Value{Value: kv.Value},
	}}
}

// subscribeLatch implements Subscribe for a latch. Waiters are notified of every change to its key.
func (s *session) subscribeLatch(
	ctx context.Context, req backend.SubscribeRequest,
) (backend.Subscription, error) {
	if err := ended(ctx); err != nil {
		return nil, err
	}
	sub := &subscription{
		watcher: s.watcher, name: req.Name, key: s.store.latchKey(req.Name), watches: true,
		wake: func() { req.Wake(0) }, changed: req.Changed, answer: make(chan error, 1),
	}
	if err := s.watcher.add(sub); err != nil {
		return nil, err
	}
	return sub.wait(ctx)
}
