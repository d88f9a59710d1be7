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

// store sends requests to etcd. It speaks to the connection of the client without what the client's
// own KV, Lease and Watcher add: they repeat reads and grants for seconds while no server can be
// reached, wait for a connection without saying why there is none, and renew and watch at the cost of
// goroutines for each key.
type store struct {
	kv      pb.KVClient
	lease   pb.LeaseClient
	watch   pb.WatchClient
	options options

	// floor is the shortest lease that the server was seen to grant to one who asked for less.
	floor atomic.Int64

	// silences is how many transactions in a row had no answer in time.
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

// ttl returns a lease in seconds, as the server will grant it.
func (st *store) ttl(lease time.Duration) int64 {
	return max(int64((lease+time.Second-1)/time.Second)+spareTTL, st.floor.Load())
}

// Leases are a second longer than the locks that they are for, so that a lease which began within the
// last second can serve a lock that begins now.
const (
	spareTTL  = 1 // seconds
	spareTime = spareTTL * 9 * time.Second / 10
)

// send sends one request. The error that it returns has a kind.
func send[Req, Res any](ctx context.Context, do func(context.Context, Req, ...grpc.CallOption) (Res, error), req Req) (Res, error) {
	cancelable, cancel := context.WithCancel(clientv3.WithRequireLeader(ctx))
	defer cancel()
	var to peer.Peer // is set as soon as there is a connection to send the request on
	over := false
	res, err := do(cancelable, req, anyLength, grpc.Peer(&to), grpc.OnFinish(func(err error) {
		// The client repeats what was cancelled or timed out without the context's doing, as if
		// it could not have been carried out. It doesn't if the context is over.
		if code := status.Code(err); code == codes.Canceled || code == codes.DeadlineExceeded {
			over = hasEnded(ctx)
			cancel()
		}
	}))
	if err == nil {
		return res, nil
	}
	kinded := withKind(err, to.Addr != nil)
	if over { // in whatever words
		kinded = &backend.Error{Kind: kinded.Kind, Err: ctx.Err()}
	}
	return res, kinded
}

// anyLength lets an answer be as long as what there is of a lock, as the client's own requests do
// if it isn't told otherwise. A connection takes 4 MiB by itself, and then a semaphore of which
// 30,000 permits are out could be neither had nor forced.
var anyLength = grpc.MaxCallRecvMsgSize(math.MaxInt32)

// hasEnded says whether a context is over. gRPC looks at the deadline by itself, and may have done so a
// moment before the context's timer ran.
func hasEnded(ctx context.Context) bool {
	if end, ok := ctx.Deadline(); ok && !time.Now().Before(end) {
		<-ctx.Done()
	}
	return ctx.Err() != nil
}

// insist sends a request that may be repeated, since it changes nothing or the second time nothing more. The
// client asks one member after the other: where one says nothing for a while it is the next one's
// turn, so that a member that hangs costs no more than that. The third may take its time.
func insist[Req, Res any](ctx context.Context, patience time.Duration, do func(context.Context, Req, ...grpc.CallOption) (Res, error), req Req) (Res, error) {
	for range 2 {
		limited, cancel := context.WithTimeout(ctx, patience)
		res, err := send(limited, do, req)
		silent := limited.Err() != nil
		cancel()
		if err == nil || !silent || ctx.Err() != nil {
			return res, err
		}
	}
	return send(ctx, do, req)
}

// once sends a transaction that changes something. If the member says nothing for a while, whether that was
// done is unknown. From the second time in a row that there was no answer on, each time doubles how
// long the next waits: it may be that all members are slow. Before, it may be one of them that
// hangs, and another that has passed a request on to it.
func (st *store) once(ctx context.Context, patience time.Duration, req *pb.TxnRequest) (*pb.TxnResponse, error) {
	slow := min(max(st.silences.Load()-1, 0), maxDoublings)
	limited, cancel := context.WithTimeout(ctx, patience<<slow)
	defer cancel()
	res, err := send(limited, st.kv.Txn, req)
	switch {
	case err == nil:
		st.silences.Store(0)
	case limited.Err() != nil && ctx.Err() == nil:
		st.silences.Add(1)
		return res, &backend.Error{Kind: backend.KindOf(err), Err: errSilent.Err}
	}
	return res, err
}

const maxDoublings = 5 // of the patience

// patience is how long a member may say nothing to a request about a lock with a lease of so many
// seconds, or about any if that is 0, before another is asked: a twelfth of it.
func patience(ttl int64) time.Duration {
	share := time.Duration(ttl) * time.Second / patienceShare
	return min(max(share, shortestPatience), longestPatience)
}

const (
	patienceShare    = 12
	shortestPatience = 500 * time.Millisecond
	longestPatience  = 5 * time.Second
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

// look reads several ranges of keys at one moment.
func (st *store) look(ctx context.Context, ttl int64, ops ...*pb.RequestOp) (*pb.TxnResponse, error) {
	res, err := insist(ctx, patience(ttl), st.kv.Txn, &pb.TxnRequest{Success: ops})
	if err != nil {
		return nil, notDone(err)
	}
	return res, nil
}

// readAll reads the keys of several holds at one moment. A nil element stands for none.
func (st *store) readAll(ctx context.Context, ids []holdID, ttl int64) ([]*mvccpb.KeyValue, error) {
	ops := make([]*pb.RequestOp, len(ids))
	for i, id := range ids {
		ops[i] = rangeOp(st.keyOf(id))
	}
	res, err := st.look(ctx, ttl, ops...)
	if err != nil {
		return nil, err
	}
	kvs := make([]*mvccpb.KeyValue, len(ids))
	for i := range kvs {
		if kvs[i], err = ranged(res, i); err != nil {
			return nil, notDone(err)
		}
	}
	return kvs, nil
}

// ranged returns the key that a transaction has read, or nil.
func ranged(res *pb.TxnResponse, i int) (*mvccpb.KeyValue, error) {
	if i >= len(res.Responses) || res.Responses[i].GetResponseRange() == nil {
		return nil, errShape
	}
	return first(res.Responses[i].GetResponseRange().Kvs), nil
}

// An attempt is to write or delete the key of a hold.
type attempt struct {
	id  holdID
	ttl int64 // of the hold, in seconds; 0 if that doesn't matter

	only []*pb.Compare   // what must be so where the hold begins, beside that its key isn't there
	with []*pb.RequestOp // what is done then, beside writing the key
	look []*pb.RequestOp // what is read, after the key, if the attempt is in vain
	seen *pb.TxnResponse // what was read

	fair   bool // all that may be beside the key matters, and is read
	onlyUp bool // what is held ends no sooner for it
	tells  bool // how many permits there are
	many   bool // keys are taken at once, which takes a member its time
	gives  bool // back what is held: an unlock waits for some seconds only
}

// patience is how long a member may say nothing to a transaction.
func (a *attempt) patience() time.Duration {
	if a.many {
		return longestPatience
	}
	if a.gives {
		return patience(givingTTL(a.ttl))
	}
	return patience(a.ttl)
}

// releasePatience leaves an unlock the time to ask other members: it waits for five seconds at the
// most, however long the lease is.
const releasePatience = time.Second

// givingTTL is the lease by which an unlock's requests are patient: the hold's, or one for which
// a member may say nothing for releasePatience.
func givingTTL(ttl int64) int64 {
	return min(ttl, patienceShare*int64(releasePatience/time.Second))
}

// manyKeys is from how many on a transaction takes longer than others.
const manyKeys = 1000

// swap carries out ops if the hold's key is still as old says. If it isn't, swap returns how it is,
// and nothing else was done. Otherwise it returns what was done.
func (st *store) swap(ctx context.Context, a *attempt, old record, ops ...*pb.RequestOp) (done *pb.TxnResponse, now record, err error) {
	key := st.keyOf(a.id)
	req := &pb.TxnRequest{
		Compare: same(key, old),
		Success: ops,
		Failure: append([]*pb.RequestOp{rangeOp(key)}, a.look...),
	}
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
	kv, err := ranged(res, 0)
	if err != nil {
		return nil, record{}, err
	}
	a.seen = res
	now, err = decodeOf(a.id, kv)
	return nil, now, err
}

// same says that a key is as it was read or written. The revision alone does not: an etcd that has lost
// its data, or was set back, counts anew, and another's key may get the same one. No two holds have
// a lease in common.
func same(key []byte, old record) []*pb.Compare {
	// A key that does not exist has the revision 0.
	rev := &pb.Compare{
		Key: key, Result: pb.Compare_EQUAL,
		Target: pb.Compare_MOD, TargetUnion: &pb.Compare_ModRevision{ModRevision: old.rev},
	}
	if old.free() {
		return []*pb.Compare{rev}
	}
	return []*pb.Compare{rev, {
		Key: key, Result: pb.Compare_EQUAL,
		Target: pb.Compare_LEASE, TargetUnion: &pb.Compare_Lease{Lease: old.lease},
	}}
}

func rangeOp(key []byte) *pb.RequestOp {
	return &pb.RequestOp{Request: &pb.RequestOp_RequestRange{RequestRange: &pb.RangeRequest{Key: key}}}
}

func (st *store) put(id holdID, r record) *pb.RequestOp {
	return &pb.RequestOp{Request: &pb.RequestOp_RequestPut{RequestPut: &pb.PutRequest{
		Key: st.keyOf(id), Value: encode(id.role, r), Lease: r.lease,
	}}}
}

func del(key []byte) *pb.RequestOp {
	return &pb.RequestOp{Request: &pb.RequestOp_RequestDeleteRange{RequestDeleteRange: &pb.DeleteRangeRequest{Key: key}}}
}

// grant makes a lease with this id, and returns its length.
func (st *store) grant(ctx context.Context, id, ttl int64) (int64, error) {
	res, err := insist(ctx, patience(ttl), st.lease.LeaseGrant, &pb.LeaseGrantRequest{ID: id, TTL: ttl})
	switch {
	case is(err, rpctypes.ErrLeaseExist): // it was made, and nobody said so
		return ttl, nil
	case err != nil:
		return 0, err
	}
	if res.TTL > ttl {
		st.floor.Store(res.TTL)
	}
	return res.TTL, nil
}

// revoke ends a lease. It is no error if there is none.
func (st *store) revoke(ctx context.Context, lease int64) error {
	_, err := insist(ctx, patience(0), st.lease.LeaseRevoke, &pb.LeaseRevokeRequest{ID: lease})
	if gone(err) {
		return nil
	}
	return err
}

// remaining returns how many seconds of a lease are left, rounded down, and of how many; -1 if there is no
// lease.
func (st *store) remaining(ctx context.Context, lease int64) (left, granted int64, err error) {
	res, err := insist(ctx, patience(0), st.lease.LeaseTimeToLive, &pb.LeaseTimeToLiveRequest{ID: lease})
	switch {
	case gone(err):
		return -1, 0, nil
	case err != nil:
		return 0, 0, notDone(err)
	}
	return res.TTL, res.GrantedTTL, nil
}

// gone says whether a request failed because its lease does not exist any more.
func gone(err error) bool { return is(err, rpctypes.ErrLeaseNotFound) }

// is says whether the error of a request is what etcd calls so.
func is(err, etcd error) bool {
	kinded, ok := errors.AsType[*backend.Error](err)
	return ok && errors.Is(rpctypes.Error(kinded.Err), etcd)
}
