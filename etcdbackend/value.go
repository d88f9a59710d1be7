package etcdbackend

import (
	"encoding/json"
	"fmt"
	"time"
	"unicode/utf8"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/seed951563bd/distsync/backend"
)

// A role is what a key is there for. It is the "kind" in its value.
type role string

const (
	lockRole  role = ""      // a hold of a plain or a fenced lock
	writeRole role = "write" // a hold for writing
	readRole  role = "read"  // … and for reading
	noteRole  role = "waits" // somebody waits to write

	permitRole role = "permits" // somebody has some of a semaphore's permits
	lineRole   role = "line"    // somebody stands in line for a fair lock, or is the first, and has it
)

// beside says whether a role has keys of its own beside the lock's.
func (r role) beside() bool { return r != lockRole && r != writeRole }

// waits says whether a role is of those who have nothing yet, which have no count.
func (r role) waits() bool { return r == noteRole || r == lineRole }

// onlyUp says whether the ends of a role only move up.
func (r role) onlyUp() bool { return r == readRole || r == writeRole }

func roleOf(kind backend.Kind) role {
	switch kind {
	case backend.Read:
		return readRole
	case backend.Write:
		return writeRole
	case backend.Permits:
		return permitRole
	default:
		return lockRole
	}
}

// A record is what a key says of its hold. The zero value is that of a hold which has no key.
type record struct {
	owner   string
	count   int
	rev     int64 // in which the key was last changed
	created int64 // the revision in which it was created
	lease   int64 // that it is attached to; 0: none, it never ends

	limit int   // of permits: how many there are, as their owner has said, or had found
	said  int64 // and in which revision that was, if its key was written since: by a renewal

	// Of who has come back to a line, before all others that were there: the how-manieth of those who came at once, and
	// who was inside then by his place.
	front  int
	behind position

	// Of a note: for how long its owner had waited when it was written last, and when it was created; and since when,
	// as only the owner's session knows.
	waited, first time.Duration
	since         time.Time
}

func (r record) free() bool { return r.rev == 0 }

// told returns the revision in which the owner of permits has said how many there are, or 0.
func (r record) told() int64 {
	if r.said > 0 {
		return r.said
	}
	return r.rev
}

// value is the JSON of a record.
type value struct {
	Owner       string `json:"owner,omitempty"`
	OwnerBase64 []byte `json:"owner_base64,omitempty"` // of an owner that JSON can't express
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
		panic(err) // there is nothing in a value that can't be encoded
	}
	return b
}

// decode reads what was found under a key; nothing was if kv is nil. Fields that it does not
// know may say that this is another kind of lock, so they make it none of ours, as does another role.
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
	if v.Kind != as || (v.Count < 1) != as.waits() || v.Front < 0 || (v.Limit < 1) != (as != permitRole) || (v.Owner == "") == (len(v.OwnerBase64) == 0) {
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

// known says whether a value may have a field. It is not OWNER, which package json would take for the same.
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
	return &backend.Error{Kind: backend.Refused, Err: fmt.Errorf("etcd: %w: %q = %.60q", backend.ErrConflict, kv.Key, kv.Value)}
}
