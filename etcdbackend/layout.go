package etcdbackend

import (
	"bytes"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
)

// A lock's own key is the prefix followed by the lock's name. A hold that excludes all others is
// stored under that key. Each other key belongs to one owner. A read-write lock has one for each
// reader, and one for each note of a waiting writer. A semaphore has one for each holder. A fair
// lock has one for each owner in line. Such a key consists of the lock's key, the byte 0x01, a word
// for the role, a slash, and the owner.
//
// Another lock's own key can look the same, if that lock's name contains such an ending. So a key
// is treated as an owner's key only if its value contains the same role and owner. Otherwise a step
// that needs the key fails with a conflict, and doesn't change the key.

func (st *store) key(name string) []byte { return []byte(st.options.prefix + name) }

func (st *store) keyOf(id holdID) []byte {
	if id.role.beside() {
		return append(st.keysOf(id.name, id.role), id.owner...)
	}
	return st.key(id.name)
}

// keysOf returns the prefix of a lock's keys for a role in which each owner has its own key.
func (st *store) keysOf(name string, as role) []byte {
	return append(append(append(st.key(name), 1), as...), '/')
}

// after returns the end of the range of keys with a prefix.
func after(prefix []byte) []byte {
	end := bytes.Clone(prefix)
	end[len(end)-1]++
	return end
}

// placeKey returns the key of an owner's place.
func (st *store) placeKey(name, owner string) []byte {
	return st.keyOf(holdID{name, owner, lineRole})
}

func readOf(id holdID) holdID  { return holdID{id.name, id.owner, readRole} }
func writeOf(id holdID) holdID { return holdID{id.name, id.owner, writeRole} }
func noteOf(id holdID) holdID  { return holdID{id.name, id.owner, noteRole} }

// A span is a range of keys.
type span struct{ key, end []byte }

// all returns the span of a lock's keys for a role in which each owner has its own key.
func (st *store) all(name string, as role) span {
	keys := st.keysOf(name, as)
	return span{keys, after(keys)}
}

// beside returns the span of all keys of a lock's holds and places, whatever the kind of lock,
// except the lock's own key. The span doesn't include notes.
func (st *store) beside(name string) span {
	return span{st.keysOf(name, lineRole), after(st.keysOf(name, readRole))}
}

// unshared is like beside, but leaves out the keys of readers.
func (st *store) unshared(name string) span {
	return span{st.keysOf(name, lineRole), after(st.keysOf(name, permitRole))}
}

// find returns a request that reads the keys of the span, but at most limit keys unless limit is 0.
func (sp span) find(limit int64) *pb.RangeRequest {
	return &pb.RangeRequest{Key: sp.key, RangeEnd: sp.end, Limit: limit}
}

func (sp span) findOp(limit int64) *pb.RequestOp {
	return &pb.RequestOp{Request: &pb.RequestOp_RequestRange{RequestRange: sp.find(limit)}}
}

// empty returns the condition that the span contains no keys. A missing key has revision 0.
func (sp span) empty() *pb.Compare { return sp.created(pb.Compare_EQUAL) }

// some returns the condition that the span contains at least one key.
func (sp span) some() *pb.Compare { return sp.created(pb.Compare_GREATER) }

func (sp span) created(result pb.Compare_CompareResult) *pb.Compare {
	return &pb.Compare{
		Key: sp.key, RangeEnd: sp.end, Result: result,
		Target: pb.Compare_CREATE, TargetUnion: &pb.Compare_CreateRevision{},
	}
}

// asOf returns the condition that no key of the span was created or changed after a revision.
func (sp span) asOf(rev int64) *pb.Compare {
	return &pb.Compare{
		Key: sp.key, RangeEnd: sp.end, Result: pb.Compare_LESS,
		Target: pb.Compare_MOD, TargetUnion: &pb.Compare_ModRevision{ModRevision: rev + 1},
	}
}

// take returns the operation that deletes the keys of the span, which is a single key if sp.end is
// nil. To get the deleted keys, pass the answer to [taken].
func (sp span) take() *pb.RequestOp {
	req := &pb.DeleteRangeRequest{Key: sp.key, RangeEnd: sp.end, PrevKv: true}
	return &pb.RequestOp{Request: &pb.RequestOp_RequestDeleteRange{RequestDeleteRange: req}}
}

// taken returns the keys that operation i of a transaction deleted. That operation must come from
// [span.take].
func taken(res *pb.TxnResponse, i int) []*mvccpb.KeyValue {
	if i >= len(res.Responses) {
		return nil
	}
	return res.Responses[i].GetResponseDeleteRange().GetPrevKvs()
}

// decodeOf returns the record stored under a hold's key. It returns an error for the key of another
// owner.
func decodeOf(id holdID, kv *mvccpb.KeyValue) (record, error) {
	r, err := decode(id.role, kv)
	if err == nil && kv != nil && id.role.beside() && r.owner != id.owner {
		return record{}, conflict(kv)
	}
	return r, err
}

// decodeAll returns the records stored under a lock's keys for a role in which each owner has its
// own key. It returns an error for any other key.
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
