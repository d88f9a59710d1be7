package etcdbackend

import (
	"context"
	"errors"
	"math"
	"sync/atomic"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/seed951563bd/distsync/backend"
)

// A store sends requests to etcd. It uses the connection of the client, but not the client's own
// KV, Lease and Watcher. While no server can be reached, these three retry reads and grants for
// seconds, and wait for a connection without saying why there is none. They also use goroutines for
// each lease that they renew, and for each key that they watch.
type store struct {
	kv      pb.KVClient
	lease   pb.LeaseClient
	watch   pb.WatchClient
	options options

	// floor is the shortest lease that the server grants, in seconds. It is 0 until the server has
	// granted a longer lease than it was asked for.
	floor atomic.Int64

	// silences is the number of consecutive transactions that weren't answered in time.
	silences atomic.Int32
}

func newStore(cli *clientv3.Client, o options) *store {
	conn := cli.ActiveConnection()
	return &store{
		kv:      pb.NewKVClient(conn),
		lease:   pb.NewLeaseClient(conn),
		watch:   pb.NewWatchClient(conn),
		options: o,
	}
}

// ttl returns the length, in seconds, of the etcd lease that the server will grant for a lock with
// the given lease.
func (st *store) ttl(lease time.Duration) int64 {
	return max(int64((lease+time.Second-1)/time.Second)+spareTTL, st.floor.Load())
}

// An etcd lease is a second longer than the lease of its lock. So an etcd lease that began within
// the last second is still long enough for a lock that begins now.
const (
	spareTTL  = 1 // seconds
	spareTime = spareTTL * 9 * time.Second / 10
)

// send sends one request. If it returns an error, that is a [*backend.Error].
func send[Req, Res any](
	ctx context.Context, do func(context.Context, Req, ...grpc.CallOption) (Res, error), req Req,
) (Res, error) {
	cancelable, cancel := context.WithCancel(clientv3.WithRequireLeader(ctx))
	defer cancel()
	var to peer.Peer // set as soon as the request has a connection
	over := false
	res, err := do(cancelable, req, anyLength, grpc.Peer(&to), grpc.OnFinish(func(err error) {
		// If a request was canceled or timed out, but not by ctx, the client assumes that the
		// request wasn't carried out, and retries it. Canceling the context of the request here
		// prevents that.
		if code := status.Code(err); code == codes.Canceled || code == codes.DeadlineExceeded {
			over = hasEnded(ctx)
			cancel()
		}
	}))
	if err == nil {
		return res, nil
	}
	kinded := withKind(err, to.Addr != nil)
	if over { // the context has ended, whatever the error says
		kinded = &backend.Error{Kind: kinded.Kind, Err: ctx.Err()}
	}
	return res, kinded
}

// anyLength removes gRPC's limit on the length of an answer, as the etcd client does for its own
// requests. The limit is 4 MiB by default. An answer that lists all keys of a semaphore with 30,000
// holders is longer, so such a semaphore could neither grant permits nor be force-released.
var anyLength = grpc.MaxCallRecvMsgSize(math.MaxInt32)

// hasEnded reports whether a context has ended. gRPC compares the deadline itself, and may do so a
// moment before the context's timer fires. So hasEnded waits for the timer.
func hasEnded(ctx context.Context) bool {
	if end, ok := ctx.Deadline(); ok && !time.Now().Before(end) {
		<-ctx.Done()
	}
	return ctx.Err() != nil
}

// insist sends a request, and sends it again if a member doesn't answer within the given patience.
// So the request must be idempotent. The etcd client sends each attempt to the next member, so a
// member that hangs costs only that time. From the third attempt on, the patience doubles with each
// attempt, since all members may be slow.
func insist[Req, Res any](
	ctx context.Context, patience time.Duration,
	do func(context.Context, Req, ...grpc.CallOption) (Res, error), req Req,
) (Res, error) {
	for asked := 1; ; asked++ {
		limited, cancel := context.WithTimeout(ctx, patience)
		res, err := send(limited, do, req)
		silent := limited.Err() != nil
		cancel()
		if err == nil || !silent || ctx.Err() != nil {
			return res, err
		}
		if asked >= 2 {
			patience *= 2
		}
	}
}

// once sends a transaction that changes data. If the member doesn't answer in time, it isn't known
// whether the transaction was carried out. One silence may mean that a single member hangs: the one
// that was asked, or one to which it passed the request on. Several silences in a row may mean that
// all members are slow, so each silence after the first doubles the time that the next transaction
// waits. Silences of concurrent transactions count as one.
func (st *store) once(
	ctx context.Context, patience time.Duration, req *pb.TxnRequest,
) (*pb.TxnResponse, error) {
	if err := ended(ctx); err != nil {
		return nil, err
	}
	silences := st.silences.Load()
	slow := min(max(silences-1, 0), maxDoublings)
	limited, cancel := context.WithTimeout(ctx, patience<<slow)
	defer cancel()
	res, err := send(limited, st.kv.Txn, req)
	switch {
	case err == nil:
		st.silences.Store(0)
	case limited.Err() != nil && ctx.Err() == nil:
		st.silences.CompareAndSwap(silences, silences+1)
		return res, &backend.Error{Kind: backend.KindOf(err), Err: errSilent.Err}
	}
	return res, err
}

const maxDoublings = 5 // the maximum number of times the patience doubles

// patience returns how long a member may be silent before another is asked. The request is about a
// lock with a lease of ttl seconds, or about any lock if ttl is 0. The patience is a twelfth of the
// lease, but at least shortestPatience and at most longestPatience. It is short because callers
// wait. For example, an unlock waits for at most five seconds, and needs time to ask other members.
func patience(ttl int64) time.Duration {
	share := time.Duration(ttl) * time.Second / 12
	return min(max(share, shortestPatience), longestPatience)
}

const (
	shortestPatience = 500 * time.Millisecond
	longestPatience  = time.Second
	patienceWithMany = 5 * time.Second // for requests with many keys, which take longer
)

// read reads the key of a hold.
func (st *store) read(ctx context.Context, id holdID, ttl int64) (record, error) {
	res, err := insist(ctx, patience(ttl), st.kv.Range, &pb.RangeRequest{Key: st.keyOf(id)})
	if err != nil {
		return record{}, notDone(err)
	}
	return decodeOf(id, first(res.Kvs))
}

func first(kvs []*mvccpb.KeyValue) *mvccpb.KeyValue {
	if len(kvs) == 0 {
		return nil
	}
	return kvs[0]
}

// look reads several ranges of keys at one revision.
func (st *store) look(
	ctx context.Context, ttl int64, ops ...*pb.RequestOp,
) (*pb.TxnResponse, error) {
	res, err := insist(ctx, patience(ttl), st.kv.Txn, &pb.TxnRequest{Success: ops})
	return res, notDone(err)
}

// readAll reads the keys of several holds at one revision.
func (st *store) readAll(
	ctx context.Context, ids []holdID, ttl int64,
) ([][]*mvccpb.KeyValue, error) {
	ops := make([]*pb.RequestOp, len(ids))
	for i, id := range ids {
		ops[i] = rangeOp(st.keyOf(id))
	}
	res, err := st.look(ctx, ttl, ops...)
	if err != nil {
		return nil, err
	}
	all, err := ranges(res, len(ids))
	return all, notDone(err)
}

// ranges returns the keys that the first n operations of a transaction read.
func ranges(res *pb.TxnResponse, n int) ([][]*mvccpb.KeyValue, error) {
	all := make([][]*mvccpb.KeyValue, n)
	for i := range all {
		if i >= len(res.Responses) || res.Responses[i].GetResponseRange() == nil {
			return nil, errShape
		}
		all[i] = res.Responses[i].GetResponseRange().Kvs
	}
	return all, nil
}

// An attempt tries to write or delete the key of a hold.
type attempt struct {
	id  holdID
	ttl int64 // the length of the hold's lease in seconds; 0 if it doesn't matter

	change
	look []*pb.RequestOp // read after the key if the attempt is refused
	seen *pb.TxnResponse // the answer to a refused attempt, with the results of look

	traits
	tells bool // it states the semaphore's limit
	many  bool // it deletes many keys at once
}

// patience returns how long a member may take to answer the attempt's transaction.
func (a *attempt) patience() time.Duration {
	if a.many {
		return patienceWithMany
	}
	return patience(a.ttl)
}

// manyKeys is the number of keys above which a transaction gets patienceWithMany.
const manyKeys = 1000

// reads returns requests that read the keys on which an attempt depends. The first request reads
// the key of its hold, and the others are those in a.look.
func (st *store) reads(a *attempt) []*pb.RequestOp {
	return append([]*pb.RequestOp{rangeOp(st.keyOf(a.id))}, a.look...)
}

// swap carries out ops if the hold's key still equals old. If old is the zero record, swap instead
// requires that the key doesn't exist and that the conditions in a.only hold. If a condition
// doesn't hold, swap changes nothing, and returns the current key. Otherwise it returns the answer
// to the transaction.
func (st *store) swap(
	ctx context.Context, a *attempt, old record, ops ...*pb.RequestOp,
) (done *pb.TxnResponse, now record, err error) {
	req := &pb.TxnRequest{Compare: same(st.keyOf(a.id), old), Success: ops, Failure: st.reads(a)}
	if old.free() {
		req.Compare = append(req.Compare, a.only...)
	}
	a.seen = nil
	res, err := st.once(ctx, a.patience(), req)
	switch {
	case err != nil:
		return nil, record{}, err
	case res.Succeeded:
		return res, record{}, nil
	}
	kvs, err := ranges(res, 1)
	if err != nil {
		return nil, record{}, err
	}
	a.seen = res
	now, err = decodeOf(a.id, first(kvs[0]))
	return nil, now, err
}

// same returns the condition that a key hasn't changed since it was read or written. The revision
// alone isn't enough. An etcd that has lost its data, or was restored from a snapshot, reuses some
// revisions, so another owner's key may have the same revision. So same also compares the leases,
// whose ids are random.
func same(key []byte, old record) []*pb.Compare {
	if old.free() {
		return []*pb.Compare{unchanged(key, 0)}
	}
	return []*pb.Compare{unchanged(key, old.rev), {
		Key: key, Result: pb.Compare_EQUAL,
		Target: pb.Compare_LEASE, TargetUnion: &pb.Compare_Lease{Lease: old.lease},
	}}
}

// unchanged returns the condition that a key was last changed at revision rev or, if rev is 0, that
// it doesn't exist.
func unchanged(key []byte, rev int64) *pb.Compare {
	return &pb.Compare{
		Key: key, Result: pb.Compare_EQUAL,
		Target: pb.Compare_MOD, TargetUnion: &pb.Compare_ModRevision{ModRevision: rev},
	}
}

func rangeOp(key []byte) *pb.RequestOp {
	req := &pb.RangeRequest{Key: key}
	return &pb.RequestOp{Request: &pb.RequestOp_RequestRange{RequestRange: req}}
}

func (st *store) put(id holdID, r record) *pb.RequestOp {
	return putOp(st.keyOf(id), encode(id.role, r), r.lease)
}

func putOp(key, value []byte, lease int64) *pb.RequestOp {
	req := &pb.PutRequest{Key: key, Value: value, Lease: lease}
	return &pb.RequestOp{Request: &pb.RequestOp_RequestPut{RequestPut: req}}
}

func del(key []byte) *pb.RequestOp {
	req := &pb.DeleteRangeRequest{Key: key}
	return &pb.RequestOp{Request: &pb.RequestOp_RequestDeleteRange{RequestDeleteRange: req}}
}

// grant creates a lease with the given id, and returns its length.
func (st *store) grant(ctx context.Context, id, ttl int64) (int64, error) {
	req := &pb.LeaseGrantRequest{ID: id, TTL: ttl}
	res, err := insist(ctx, patience(ttl), st.lease.LeaseGrant, req)
	switch {
	case is(err, rpctypes.ErrLeaseExist): // created by an earlier request whose answer was lost
		return ttl, nil
	case err != nil:
		return 0, err
	}
	if res.TTL > ttl {
		st.floor.Store(res.TTL)
	}
	return res.TTL, nil
}

// revoke ends a lease. It isn't an error if the lease doesn't exist.
func (st *store) revoke(ctx context.Context, lease int64) error {
	_, err := insist(ctx, patience(0), st.lease.LeaseRevoke, &pb.LeaseRevokeRequest{ID: lease})
	if gone(err) {
		return nil
	}
	return err
}

// remaining returns how many seconds of a lease are left, rounded down, and how many were granted.
// If there is no such lease, left is -1.
func (st *store) remaining(ctx context.Context, lease int64) (left, granted int64, err error) {
	req := &pb.LeaseTimeToLiveRequest{ID: lease}
	res, err := insist(ctx, patience(0), st.lease.LeaseTimeToLive, req)
	switch {
	case gone(err):
		return -1, 0, nil
	case err != nil:
		return 0, 0, notDone(err)
	}
	return res.TTL, res.GrantedTTL, nil
}

// gone reports whether a request failed because its lease no longer exists.
func gone(err error) bool { return is(err, rpctypes.ErrLeaseNotFound) }

// is reports whether a request's error is the given etcd error.
func is(err, etcd error) bool {
	kinded, ok := errors.AsType[*backend.Error](err)
	return ok && errors.Is(rpctypes.Error(kinded.Err), etcd)
}
