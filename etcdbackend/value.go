package etcdbackend

import (
	"encoding/json"
	"fmt"
	"time"
	"unicode/utf8"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/seed951563bd/distsync/backend"
)

// A role is the purpose of a key. It is the "kind" in the key's value.
type role string

const (
	lockRole  role = ""      // a hold of a plain or a fenced lock
	writeRole role = "write" // a hold for writing
	readRole  role = "read"  // a hold for reading
	noteRole  role = "waits" // the note of a waiting writer

	permitRole role = "permits" // a hold of a semaphore's permits
	// a place in line for a fair lock; the first place can be a hold
	lineRole role = "line"
)

// beside reports whether each owner with this role has a key of its own, separate from the lock's
// key.
func (r role) beside() bool { return r != lockRole && r != writeRole }

// waits reports whether a role is for waiters, whose keys contain no count.
func (r role) waits() bool { return r == noteRole || r == lineRole }

// A record is the contents of a hold's key. The zero value stands for a missing key.
type record struct {
	owner   string
	count   int
	rev     int64 // the revision at which the key was last changed
	created int64 // the revision at which it was created
	lease   int64 // the key's lease; 0 if it has none, so that the hold never ends

	limit int   // for permits: the semaphore's limit that their owner stated, or else found
	said  int64 // the revision at which limit was stated; 0 if it was stated at rev

	// These fields are set if the owner lost its place in line, came back, and was put at the
	// front. The field front numbers the owners that came back together, from 1. If the first in
	// line held the lock by its place at that time, the owners that came back were put behind it.
	// In that case, the field behind is the position of the holder's place.
	front  int
	behind position

	// These fields are for a note. waited is how long its owner had waited when the note was last
	// written, and first is how long it had waited when the note was created. since is the time at
	// which the wait began. Only the owner's session sets since.
	waited, first time.Duration
	since         time.Time
}

func (r record) free() bool { return r.rev == 0 }

// told returns the revision at which the owner of permits stated the limit, or 0.
func (r record) told() int64 {
	if r.said > 0 {
		return r.said
	}
	return r.rev
}

// A value is the JSON form of a record.
type value struct {
	Owner       string `json:"owner,omitempty"`
	OwnerBase64 []byte `json:"owner_base64,omitempty"` // for an owner that JSON can't express
	Count       int    `json:"count,omitempty"`
	Kind        role   `json:"kind,omitempty"`
	Limit       int    `json:"limit,omitempty"`
	Said        int64  `json:"said,omitempty"`
	Front       int    `json:"front,omitempty"`
	BehindRev   int64  `json:"behind_rev,omitempty"`
	BehindFront int    `json:"behind_front,omitempty"`
	Waited      int64  `json:"waited_ms,omitempty"`
	First       int64  `json:"first_ms,omitempty"`
}

func encode(as role, r record) []byte {
	v := value{
		Owner: r.owner, Count: r.count, Kind: as, Limit: r.limit, Said: r.said,
		Front: r.front, BehindRev: r.behind.rev, BehindFront: r.behind.front,
		Waited: r.waited.Milliseconds(), First: r.first.Milliseconds(),
	}
	if !utf8.ValidString(r.owner) {
		v.Owner, v.OwnerBase64 = "", []byte(r.owner)
	}
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // all values can be encoded
	}
	return b
}

// decode returns the record that a key contains. kv is nil if the key doesn't exist. decode rejects
// a value with another role or an unknown field, because such a key may belong to another kind of
// lock.
func decode(as role, kv *mvccpb.KeyValue) (record, error) {
	if kv == nil {
		return record{}, nil
	}
	var fields map[string]json.RawMessage
	if json.Unmarshal(kv.Value, &fields) != nil {
		return record{}, conflict(kv)
	}
	for name := range fields {
		if !known(as, name) {
			return record{}, conflict(kv)
		}
	}
	var v value
	if json.Unmarshal(kv.Value, &v) != nil {
		return record{}, conflict(kv)
	}
	if v.Kind != as || (v.Count < 1) != as.waits() || v.Front < 0 ||
		(v.Limit < 1) != (as != permitRole) || (v.Owner == "") == (len(v.OwnerBase64) == 0) {
		return record{}, conflict(kv)
	}
	return record{
		owner:   v.Owner + string(v.OwnerBase64),
		count:   v.Count,
		rev:     kv.ModRevision,
		created: kv.CreateRevision,
		lease:   kv.Lease,
		limit:   v.Limit,
		said:    v.Said,
		front:   v.Front,
		behind:  position{v.BehindRev, v.BehindFront},
		waited:  time.Duration(v.Waited) * time.Millisecond,
		first:   time.Duration(v.First) * time.Millisecond,
	}, nil
}

// known reports whether a value can contain a field, given the role of its key. It returns false
// for OWNER, which package json would read as owner.
func known(as role, field string) bool {
	switch field {
	case "owner", "owner_base64", "count":
		return true
	case "kind":
		return as != lockRole
	case "limit", "said":
		return as == permitRole
	case "front", "behind_rev", "behind_front":
		return as == lineRole
	case "waited_ms", "first_ms":
		return as == noteRole
	default:
		return false
	}
}

func conflict(kv *mvccpb.KeyValue) error {
	return &backend.Error{
		Kind: backend.Refused, Err: fmt.Errorf("etcd: %w: %q = %.60q", backend.ErrConflict, kv.Key,
			kv.Value),
	}
}
