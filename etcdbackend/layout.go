package etcdbackend

import (
	"bytes"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
)

// The key of a lock is the prefix and its name. There is the hold of whoever has it alone. Of a read-write
// lock there are other keys, one for each hold of a reader and for each note of a waiting writer: the lock's
// key, a byte 1, a word, and the owner. What begins so may also be the key of a lock with such a name, or one
// that belongs to it. So a key is only that of a hold if its value says so, and the rest of it is the owner that its value names;
// else it is in the way, and neither touched nor taken for anything.

func (st *store) key(name string) []byte { return []byte(st.options.prefix + name) }

func (st *store) keyOf(id holdID) []byte {
	switch id.role {
	case readRole, noteRole:
		return append(st.keysOf(id.name, id.role), id.owner...)
	default:
		return st.key(id.name)
	}
}

// keysOf returns what the keys of all readers or notes begin with.
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

// all returns the range of the keys of all readers or notes, or of no more than so many if limit isn't 0.
func (st *store) all(name string, as role, limit int64) *pb.RangeRequest {
	keys := st.keysOf(name, as)
	return &pb.RangeRequest{Key: keys, RangeEnd: after(keys), Limit: limit}
}

func (st *store) rangeAll(name string, as role, limit int64) *pb.RequestOp {
	return &pb.RequestOp{Request: &pb.RequestOp_RequestRange{RequestRange: st.all(name, as, limit)}}
}

// none says that there are no readers or notes: the revision of what doesn't exist is 0.
func (st *store) none(name string, as role) *pb.Compare {
	keys := st.keysOf(name, as)
	return &pb.Compare{
		Key: keys, RangeEnd: after(keys), Result: pb.Compare_EQUAL,
		Target: pb.Compare_CREATE, TargetUnion: &pb.Compare_CreateRevision{},
	}
}

// noneSince says that no reader or note has come or changed since a revision.
func (st *store) noneSince(name string, as role, rev int64) *pb.Compare {
	keys := st.keysOf(name, as)
	return &pb.Compare{
		Key: keys, RangeEnd: after(keys), Result: pb.Compare_LESS,
		Target: pb.Compare_MOD, TargetUnion: &pb.Compare_ModRevision{ModRevision: rev + 1},
	}
}

// take deletes a range of keys and answers with what it was.
func take(key, end []byte) *pb.RequestOp {
	return &pb.RequestOp{Request: &pb.RequestOp_RequestDeleteRange{RequestDeleteRange: &pb.DeleteRangeRequest{
		Key: key, RangeEnd: end, PrevKv: true,
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
	if err == nil && kv != nil && r.owner != id.owner && (id.role == readRole || id.role == noteRole) {
		return record{}, conflict(kv)
	}
	return r, err
}

// decodeAll reads what was found among the keys of readers or notes.
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
