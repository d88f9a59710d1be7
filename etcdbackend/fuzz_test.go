package etcdbackend

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/seed951563bd/distsync/backend"
)

const fuzzOwner = "11111111-1111-1111-1111-111111111111:1"

// Whatever is found under a key, it is a lock that says who has it and how often, or it is refused
// as none.
func FuzzValue(f *testing.F) {
	for _, v := range []string{
		"", "{}", "null", "[]", "1", `{"owner":"a","count":1}`, `{"owner":"a","count":0}`,
		`{"owner":"a","count":-1}`, `{"owner":"a"}`,
		`{"owner_base64":"/w==","count":2}`, `{"owner":"a","owner_base64":"/w==","count":2}`,
		`{"owner":"a","count":1}{}`, `{"owner":"a","count":1} `,
		`{"owner":"a","count":1,"kind":"read"}`,
		`{"owner":"a","count":2,"kind":"permits","limit":3}`,
		`{"owner":"a","count":2,"kind":"permits"}`, `{"owner":"a","kind":"line"}`,
		`{"owner":"a","kind":"line","front":2,"behind_rev":7,"behind_front":1}`,
		`{"owner":"a","kind":"line","count":1}`, `{"owner":"a","count":1e3}`,
		`{"owner":"a","count":99999999999999999999}`, `{"owner":null,"count":1}`,
		`{"owner":"\ud800","count":1}`, `{"OWNER":"a","Count":1}`,
		`{"owner":"a","owner":"","count":1}`, "{\"owner\":\"\xff\",\"count\":1}", "\x00",
	} {
		f.Add([]byte(v), "a", 1)
		f.Add([]byte(v), v, 3)
	}
	f.Fuzz(func(t *testing.T, found []byte, owner string, count int) {
		roles := 0
		for _, as := range []role{lockRole, writeRole, readRole, noteRole, permitRole, lineRole} {
			r, err := decode(as, &mvccpb.KeyValue{
				Key: []byte("k"), Value: found, ModRevision: 7, CreateRevision: 5, Lease: 3,
			})
			if err != nil {
				if !errors.Is(err, backend.ErrConflict) || backend.KindOf(err) != backend.Refused ||
					r != (record{}) {
					t.Errorf("%q: %+v, %v", found, r, err)
				}
				continue
			}
			if again := decoded(t, as, encode(as, r)); r.owner == "" ||
				(r.count < 1) != as.waits() || r.free() || again.owner != r.owner ||
				again.count != r.count {
				t.Errorf("%q is %+v, and %+v when it was written again", found, r, again)
			}
			if roles++; roles > 1 {
				t.Errorf("%q is there for several things", found)
			}
		}
		if owner != "" && count > 0 {
			for _, r := range []record{{owner: owner, count: count},
				{owner: owner, count: count, limit: 5},
				{owner: owner, front: 3, behind: position{5, 2}},
				{owner: owner, waited: 7 * time.Second, first: time.Millisecond}} {
				as := []role{lockRole, writeRole, readRole}
				switch {
				case r.front > 0:
					as = []role{lineRole}
				case r.count == 0:
					as = []role{noteRole}
				case r.limit > 0:
					as = []role{permitRole}
				}
				for _, as := range as {
					st := &store{options: options{prefix: "p"}}
					if id := (holdID{string(found), owner, as}); id.name != "" && as != noteRole {
						if got, _, ok := st.whose(&mvccpb.KeyValue{
							Key: st.keyOf(id), Value: encode(as, r), ModRevision: 1,
						}); !ok || got != id {
							t.Errorf("the key of %+v is %q, which is that of %+v, %v", id,
								st.keyOf(id), got, ok)
						}
					}
					again := decoded(t, as, encode(as, r))
					if again.rev = 0; again != r {
						t.Errorf("%+v is written as %q", r, encode(as, r))
					}
				}
			}
		}
	})
}

func decoded(t *testing.T, as role, value []byte) record {
	t.Helper()
	r, err := decode(as, &mvccpb.KeyValue{Value: value, ModRevision: 1})
	if err != nil {
		t.Errorf("%q: %v", value, err)
	}
	return r
}

// Whatever an etcd answers, a lock is acquired only by a transaction that succeeded, another holds
// it only if it was found under the key, and no step goes on when the server has nothing to say.
func FuzzAnswers(f *testing.F) {
	free, mine, others := []byte{0}, []byte{1, 1, 5}, []byte{2, 2, 5}
	for step := range byte(30) {
		f.Add(step, free)
		f.Add(step, bytes.Repeat(mine, 8))
		f.Add(step, bytes.Repeat(others, 8))
		// a renewal that succeeds
		f.Add(step, append([]byte{0, 1, 7}, bytes.Repeat([]byte{30}, 20)...))
		f.Add(step, append([]byte{0, 2, 7}, bytes.Repeat([]byte{30}, 20)...))
		f.Add(step, bytes.Repeat([]byte{0, 30, 9, 9}, 8))
		f.Add(step, bytes.Repeat([]byte{3, 9, 0, 0xff}, 8))
		f.Add(step, []byte{0, 10, 1, 1, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15})
	}
	f.Fuzz(func(t *testing.T, step byte, data []byte) {
		kind := []backend.Kind{backend.Exclusive, backend.Fenced, backend.Write, backend.Read,
			backend.Permits, backend.Fair}[step/5%6]
		etcd := &fuzzedEtcd{data: bytes.NewReader(data), alone: kindOf(kind).role}
		switch kind {
		case backend.Read:
			etcd.alone = writeRole
		case backend.Permits:
			etcd.alone = lockRole
		}
		s := newSession(&store{kv: etcd, lease: etcd})
		defer s.Close()
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		lease := 30 * time.Second
		var err error
		switch step % 5 {
		case 0:
			var res backend.AcquireResult
			res, err = s.Acquire(ctx, backend.AcquireRequest{
				Kind: kind, Name: "n", Owner: fuzzOwner, Lease: lease, Permits: 1, Limit: 2,
			})
			if res.Acquired != etcd.changed || res.Acquired && res.Count < 1 ||
				err == nil && !res.Acquired && !etcd.anothers {
				t.Errorf("Acquire: %+v, %v", res, err)
			}
		case 1:
			var res backend.ReleaseResult
			res, err = s.Release(ctx, backend.ReleaseRequest{
				Kind: kind, Name: "n", Owner: fuzzOwner, Lease: lease, Permits: 1,
			})
			if err == nil && (res.Outcome != backend.NotHeld) != etcd.changed {
				t.Errorf("Release: %v", res)
			}
		case 2:
			var res backend.RenewResult
			res, err = s.Renew(ctx, backend.RenewRequest{
				Kind: kind, Name: "n", Owner: fuzzOwner, Lease: lease, Permits: 1,
			})
			if res.Held && (err != nil || !etcd.mine) {
				t.Errorf("Renew: %v, %v", res, err)
			}
		case 3:
			var res backend.LookResult
			res, err = s.Look(ctx, backend.LookRequest{
				Kind: kind, Name: "n", Owner: fuzzOwner, Limit: 2,
			})
			if res.Held && !etcd.mine && !etcd.anothers || res.Count > 0 && !etcd.mine ||
				res.Count < 0 {
				t.Errorf("Look: %+v, %v", res, err)
			}
		case 4:
			var res backend.ForceReleaseResult
			res, err = s.ForceRelease(ctx, backend.ForceReleaseRequest{Kind: kind, Name: "n"})
			if res.Released && !etcd.changed {
				t.Errorf("ForceRelease: %+v, %v", res, err)
			}
		}
		if ctx.Err() != nil {
			t.Errorf("step %d goes on for ever", step%5)
		}
	})
}

// A fuzzedEtcd answers with what its data says, and with errors when it has no more.
type fuzzedEtcd struct {
	pb.KVClient
	pb.LeaseClient
	mu       sync.Mutex // for the data
	data     *bytes.Reader
	alone    role // of the lock's key
	changed  bool // a transaction succeeded
	mine     bool // a key was found to be fuzzOwner's
	anothers bool // … or another's, or a reader's or a note
}

func (e *fuzzedEtcd) number() int64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	var b [8]byte
	n, _ := e.data.ReadByte()
	if n < 200 {
		return int64(n)
	}
	_, _ = e.data.Read(b[:])
	return int64(binary.LittleEndian.Uint64(b[:]))
}

func (e *fuzzedEtcd) err() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.data.Len() == 0 {
		return status.Error(codes.Unavailable, "no more")
	}
	return nil
}

func (e *fuzzedEtcd) kvs(req *pb.RangeRequest) []*mvccpb.KeyValue {
	as, beside := e.alone, req.GetRangeEnd() != nil
	switch key := string(req.GetKey()); {
	case strings.Contains(key, "\x01read/"):
		as = readRole
	case strings.Contains(key, "\x01waits/"):
		as = noteRole
	case strings.Contains(key, "\x01line/") && beside && e.number()%2 == 0:
		as, req = permitRole,
			&pb.RangeRequest{Key: []byte(strings.Replace(key, "line", "permits", 1))}
	case strings.Contains(key, "\x01line/") && beside && e.alone == writeRole:
		as, req = readRole, &pb.RangeRequest{Key: []byte(strings.Replace(key, "line", "read", 1))}
	case strings.Contains(key, "\x01line/"):
		as = lineRole
	case strings.Contains(key, "\x01permits/"):
		as = permitRole
	}
	found := func(owner string, count int) []byte {
		if as.waits() {
			count = 0
		}
		if beside && owner != fuzzOwner || beside && as != lineRole {
			e.anothers = true
		}
		r := record{owner: owner, count: count}
		if as == permitRole {
			r.limit = 2
		}
		return encode(as, r)
	}
	kv := &mvccpb.KeyValue{Key: req.GetKey(), ModRevision: 1, CreateRevision: 1}
	switch n := e.number(); n % 5 {
	case 1:
		kv.Value, e.mine = found(fuzzOwner, 1+int(uint64(n)%3)), true
	case 2:
		kv.Value, e.anothers = found("another", 1), true
	case 3:
		kv.Value = []byte(strings.Repeat("x", int(uint64(n)%50)))
	default:
		return nil
	}
	if beside {
		var v value
		_ = json.Unmarshal(kv.Value, &v)
		kv.Key = append(bytes.Clone(kv.Key), v.Owner...)
	}
	kv.Lease = e.number()
	return []*mvccpb.KeyValue{kv}
}

func (e *fuzzedEtcd) Range(
	_ context.Context, req *pb.RangeRequest, _ ...grpc.CallOption,
) (*pb.RangeResponse, error) {
	return &pb.RangeResponse{Kvs: e.kvs(req)}, e.err()
}

func (e *fuzzedEtcd) Txn(
	_ context.Context, req *pb.TxnRequest, _ ...grpc.CallOption,
) (*pb.TxnResponse, error) {
	res := &pb.TxnResponse{
		Header:    &pb.ResponseHeader{Revision: 9},
		Succeeded: e.number()%2 == 0 || len(req.Compare) == 0,
	}
	if err := e.err(); err != nil {
		return nil, err
	}
	e.changed = e.changed || res.Succeeded && len(req.Compare) > 0
	ops := req.Success
	if !res.Succeeded {
		ops = req.Failure
	}
	for _, op := range ops {
		res.Responses = append(res.Responses, &pb.ResponseOp{Response: &pb.ResponseOp_ResponseRange{
			ResponseRange: &pb.RangeResponse{Kvs: e.kvs(op.GetRequestRange())}}})
	}
	return res, nil
}

func (e *fuzzedEtcd) LeaseGrant(
	context.Context, *pb.LeaseGrantRequest, ...grpc.CallOption,
) (*pb.LeaseGrantResponse, error) {
	return &pb.LeaseGrantResponse{ID: e.number(), TTL: e.number()}, e.err()
}

func (e *fuzzedEtcd) LeaseRevoke(
	context.Context, *pb.LeaseRevokeRequest, ...grpc.CallOption,
) (*pb.LeaseRevokeResponse, error) {
	if e.number()%2 == 1 {
		return nil, rpctypes.ErrGRPCLeaseNotFound
	}
	return &pb.LeaseRevokeResponse{}, e.err()
}

func (e *fuzzedEtcd) LeaseTimeToLive(
	context.Context, *pb.LeaseTimeToLiveRequest, ...grpc.CallOption,
) (*pb.LeaseTimeToLiveResponse, error) {
	return &pb.LeaseTimeToLiveResponse{TTL: e.number()}, e.err()
}

func (e *fuzzedEtcd) LeaseKeepAlive(
	ctx context.Context, _ ...grpc.CallOption,
) (pb.Lease_LeaseKeepAliveClient, error) {
	return &fuzzedStream{etcd: e, ctx: ctx, asked: make(chan int64, 10)}, e.err()
}

// A fuzzedStream answers for each lease that is to be kept alive, until there is no more data.
type fuzzedStream struct {
	pb.Lease_LeaseKeepAliveClient
	etcd  *fuzzedEtcd
	ctx   context.Context
	asked chan int64
}

func (s *fuzzedStream) Send(req *pb.LeaseKeepAliveRequest) error {
	s.asked <- req.ID
	return nil
}

func (s *fuzzedStream) Recv() (*pb.LeaseKeepAliveResponse, error) {
	select {
	case id := <-s.asked:
		return &pb.LeaseKeepAliveResponse{ID: id, TTL: s.etcd.number()}, s.etcd.err()
	case <-s.ctx.Done():
		return nil, s.ctx.Err()
	}
}

func (s *fuzzedStream) CloseSend() error { return nil }

// The key of a lock is its name under the prefix, whatever bytes that has.
func FuzzKeys(f *testing.F) {
	f.Add("dlock/", "n", "m")
	f.Add("", "a/b", "a")
	f.Add("\xff", "\x00", "")
	f.Fuzz(func(t *testing.T, prefix, name, other string) {
		st := &store{options: options{prefix: prefix}}
		if got, ok := strings.CutPrefix(string(st.key(name)), prefix); !ok || got != name {
			t.Errorf("the key of %q under %q is %q", name, prefix, st.key(name))
		}
		if bytes.Equal(st.key(name), st.key(other)) != (name == other) {
			t.Errorf("%q and %q have one key", name, other)
		}
	})
}
