package etcdbackend

import (
	"bytes"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
)

// The key of a lock is the prefix and its name. There is the hold of whoever has it alone. Of a read-write
// lock there are other keys, one for each hold of a reader and for each note of a waiting writer, of a semaphore
// one for each hold, and of a fair lock one for each who stands in line: the lock's key, a byte 1, a word, and the owner. What begins so may also be the key of a lock with such a name, or one
// that belongs to it. So a key is only that of a hold if its value says so, and the rest of it is the owner that its value names;
// else it is in the way, and neither touched nor taken for anything.

func (st *store) key(name string) []byte { return []byte(st.options.prefix + name) }

func (st *store) keyOf(id holdID) []byte {
	if id.role.beside() {
		return append(st.keysOf(id.name, id.role), id.owner...)
	}
	return st.key(id.name)
}

// keysOf returns what all keys of a role that has its own begin with.
func (st *store) keysOf(name string, as role) []byte {
	return append(append(append(st.key(name), 1), as...), '/')
}

// after returns the end of the range of all keys that begin like this.
func after(prefix []byte) []byte {
	end := bytes.Clone(prefix)
	end[len(end)-1]++
	return end
}

func readOf(id holdID) holdID  { return holdID{id.name, id.owner, readRole} }
func writeOf(id holdID) holdID { return holdID{id.name, id.owner, writeRole} }
func noteOf(id holdID) holdID  { return holdID{id.name, id.owner, noteRole} }

// A span is a range of keys.
type span struct{ key, end []byte }

// all returns the keys of a role that has its own.
func (st *store) all(name string, as role) span {
	keys := st.keysOf(name, as)
	return span{keys, after(keys)}
}

// beside returns the keys of all that may be held beside the lock's own key, of whatever kind. There are none of notes among them.
func (st *store) beside(name string) span {
	return span{st.keysOf(name, lineRole), after(st.keysOf(name, readRole))}
}

// unshared returns those of them that a read-write lock has not.
func (st *store) unshared(name string) span {
	return span{st.keysOf(name, lineRole), after(st.keysOf(name, permitRole))}
}

// find asks for what is in the span, or for no more than so many if limit isn't 0.
func (sp span) find(limit int64) *pb.RangeRequest {
	return &pb.RangeRequest{Key: sp.key, RangeEnd: sp.end, Limit: limit}
}

func (sp span) findOp(limit int64) *pb.RequestOp {
	return &pb.RequestOp{Request: &pb.RequestOp_RequestRange{RequestRange: sp.find(limit)}}
}

// empty says that nothing is there: the revision of what doesn't exist is 0.
func (sp span) empty() *pb.Compare {
	return &pb.Compare{
		Key: sp.key, RangeEnd: sp.end, Result: pb.Compare_EQUAL,
		Target: pb.Compare_CREATE, TargetUnion: &pb.Compare_CreateRevision{},
	}
}

// some says that something is there.
func (sp span) some() *pb.Compare {
	return &pb.Compare{
		Key: sp.key, RangeEnd: sp.end, Result: pb.Compare_GREATER,
		Target: pb.Compare_CREATE, TargetUnion: &pb.Compare_CreateRevision{},
	}
}

// asOf says that nothing has come or changed since a revision.
func (sp span) asOf(rev int64) *pb.Compare {
	return &pb.Compare{
		Key: sp.key, RangeEnd: sp.end, Result: pb.Compare_LESS,
		Target: pb.Compare_MOD, TargetUnion: &pb.Compare_ModRevision{ModRevision: rev + 1},
	}
}

// take deletes what is there and answers with what it was. An end of nil is that of one key.
func (sp span) take() *pb.RequestOp {
	return &pb.RequestOp{Request: &pb.RequestOp_RequestDeleteRange{RequestDeleteRange: &pb.DeleteRangeRequest{
		Key: sp.key, RangeEnd: sp.end, PrevKv: true,
	}}}
}

// taken returns what a transaction has taken.
func taken(res *pb.TxnResponse, i int) []*mvccpb.KeyValue {
	if i >= len(res.Responses) {
		return nil
	}
	return res.Responses[i].GetResponseDeleteRange().GetPrevKvs()
}

// decodeOf reads what was found under the key of a hold.
func decodeOf(id holdID, kv *mvccpb.KeyValue) (record, error) {
	r, err := decode(id.role, kv)
	if err == nil && kv != nil && id.role.beside() && r.owner != id.owner {
		return record{}, conflict(kv)
	}
	return r, err
}

// decodeAll reads what was found among the keys of a role that has its own.
func (st *store) decodeAll(name string, as role, kvs []*mvccpb.KeyValue) ([]record, error) {
	var all []record
	for _, kv := range kvs {
		r, err := decode(as, kv)
		if err != nil {
			return nil, err
		}
		if !bytes.Equal(kv.Key, st.keyOf(holdID{name, r.owner, as})) {
			return nil, conflict(kv)
		}
		all = append(all, r)
	}
	return all, nil
}
