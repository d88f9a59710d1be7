package etcdbackend

import (
	"bytes"
	"context"
	"strings"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/seed951563bd/distsync/backend"
)

// What is kept of a lock that its last owner has given back is a hold of an owner that nobody is, whose name tells who it was, on a
// lease of its own that nobody renews. So to all others it is a lock as any; no request of the former owner finds what it was
// sent for; and when the lease has run out those who wait are told, as of any.
//
// A lease is as much as three seconds longer than what it is for, which is more than the period of
// some jobs. So the session that keeps a lock revokes the lease in time. The lease itself is for a
// session that is closed or dead by then. Nothing else is ever attached to it, so it may be revoked
// whatever has become of the lock.

const keptSuffix = "-kept"

func keptOf(id holdID) holdID { return holdID{id.name, id.owner + keptSuffix, id.role} }

// keptFrom says whether it is kept, and who has given it back.
func (r record) keptFrom() (owner string, kept bool) { return strings.CutSuffix(r.owner, keptSuffix) }

// keep gives a hold back, if its key is still so, and keeps it for a while from a moment after the call. It says whether it has done so, and
// else how the key is now.
func (s *session) keep(ctx context.Context, a *attempt, old record, d time.Duration) (done bool, key record, err error) {
	if err := ended(ctx); err != nil {
		return false, record{}, err
	}
	l, err := s.leases.fresh(ctx, s.store.ttl(d))
	if err != nil {
		return false, record{}, notDone(err)
	}
	id, next := a.id, old
	next.owner, next.lease = keptOf(id).owner, l.id
	var ops []*pb.RequestOp
	if id.role.beside() {
		ops = append(ops, del(s.store.keyOf(id)))
		id = keptOf(id)
		next.said = old.told()
	}
	swapped, key, err := s.store.swap(ctx, a, old, append(ops, s.store.put(id, next))...)
	if swapped != nil || err != nil && backend.KindOf(err) == backend.Unknown {
		s.leases.revokeIn(l, d) // without an answer, too: it may be kept by that lease, or will be
	} else {
		s.leases.discard(l)
	}
	return swapped != nil, key, err
}

// isKept says whether what an owner had is kept, if it has the key that was found, or none.
func (s *session) isKept(ctx context.Context, a *attempt, key record) (bool, error) {
	if a.id.role.beside() {
		var err error
		if key, err = s.store.read(ctx, keptOf(a.id), a.ttl); err != nil {
			return false, err
		}
	}
	return key.owner == keptOf(a.id).owner, nil
}

// staysOut says whether the first of these events is one of the two which say that permits that somebody had are kept.
func staysOut(events []*mvccpb.Event) bool {
	e := events[0]
	if e.Type == mvccpb.PUT {
		return bytes.HasSuffix(e.Kv.Key, []byte(keptSuffix))
	}
	return len(events) > 1 && events[1].Type == mvccpb.PUT && string(events[1].Kv.Key) == string(e.Kv.Key)+keptSuffix
}

// keeps says whether what an owner had is kept of a semaphore.
func (at stock) keeps(id holdID) bool {
	for _, r := range at.holds {
		if r.owner == keptOf(id).owner {
			return true
		}
	}
	return false
}
