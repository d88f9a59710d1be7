package etcdbackend

import (
	"encoding/json"
	"fmt"
	"unicode/utf8"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/seed951563bd/distsync/backend"
)

// A record is what a key says of its lock. The zero value is a free lock, which has no key.
type record struct {
	owner   string
	count   int
	rev     int64 // in which the key was last changed
	created int64 // the revision in which it was created
	lease   int64 // that it is attached to; 0: none, it never ends
}

func (r record) free() bool { return r.rev == 0 }

// value is the JSON of a record.
type value struct {
	Owner       string `json:"owner,omitempty"`
	OwnerBase64 []byte `json:"owner_base64,omitempty"` // of an owner that JSON can't express
	Count       int    `json:"count"`
}

func encode(owner string, count int) []byte {
	v := value{Owner: owner, Count: count}
	if !utf8.ValidString(owner) {
		v.Owner, v.OwnerBase64 = "", []byte(owner)
	}
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // there is nothing in a value that can't be encoded
	}
	return b
}

// decode reads what was found under a lock's key; nothing was if kv is nil. Fields that it does not
// know may say that this is another kind of lock, so they make it none of ours.
func decode(kv *mvccpb.KeyValue) (record, error) {
	if kv == nil {
		return record{}, nil
	}
	var fields map[string]json.RawMessage
	if json.Unmarshal(kv.Value, &fields) != nil {
		return record{}, conflict(kv)
	}
	for name := range fields {
		switch name {
		case "owner", "owner_base64", "count":
		default: // also OWNER, which package json would take for the same
			return record{}, conflict(kv)
		}
	}
	var v value
	if json.Unmarshal(kv.Value, &v) != nil {
		return record{}, conflict(kv)
	}
	if v.Count < 1 || (v.Owner == "") == (len(v.OwnerBase64) == 0) {
		return record{}, conflict(kv)
	}
	return record{
		owner:   v.Owner + string(v.OwnerBase64),
		count:   v.Count,
		rev:     kv.ModRevision,
		created: kv.CreateRevision,
		lease:   kv.Lease,
	}, nil
}

func conflict(kv *mvccpb.KeyValue) error {
	return &backend.Error{Kind: backend.Refused, Err: fmt.Errorf("etcd: %w: %q = %.60q", backend.ErrConflict, kv.Key, kv.Value)}
}
