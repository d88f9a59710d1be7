package etcdbackend

import (
	"bytes"
	"context"
	"slices"
	"strings"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/seed951563bd/distsync/backend"
)

// A kept lock is a hold with an owner that no client uses, whose name is the former owner's name
// plus a suffix. The hold has its own etcd lease, which is never renewed. To others it looks like
// any held lock. The former owner's requests no longer find its hold. Waiters are notified when the
// lease has ended.
//
// An etcd lease may last up to three seconds longer than the lock must stay taken. That is too long
// for jobs that run every few seconds. So the session that keeps a lock revokes the lease in time.
// If the session is closed or dead by then, the lease runs out. No other key is ever attached to
// this lease, so revoking it is always safe.

const keptSuffix = "-kept"

func keptOf(id holdID) holdID { return holdID{id.name, id.owner + keptSuffix, id.role} }

// keptFrom reports whether a record is a kept lock. If it is, owner is the former owner.
func (r record) keptFrom() (owner string, kept bool) {
	return strings.CutSuffix(r.owner, keptSuffix)
}

// keep releases a hold, and keeps the lock taken for the duration a.keep, which begins shortly
// after the call.
func (s *session) keep(ctx context.Context, a *attempt) (done bool, key record, err error) {
	if err := ended(ctx); err != nil {
		return false, record{}, err
	}
	l, err := s.leases.fresh(ctx, s.store.ttl(a.keep))
	if err != nil {
		return false, record{}, notDone(err)
	}
	id, next := a.id, a.old
	next.owner, next.lease = keptOf(id).owner, l.id
	var ops []*pb.RequestOp
	if id.role.beside() {
		ops = append(ops, del(s.store.keyOf(id)))
		id = keptOf(id)
		next.said = a.old.told()
	}
	swapped, key, err := s.store.swap(ctx, a, a.old, append(ops, s.store.put(id, next))...)
	if swapped != nil || err != nil && backend.KindOf(err) == backend.Unknown {
		s.leases.revokeIn(l, a.keep) // the lock is kept, or might be if there was no answer
	} else {
		s.leases.discard(l)
	}
	return swapped != nil, key, err
}

// isKept reports whether an owner's former hold is kept. The parameter key is the record that was
// read from the lock's own key, or the zero record if there is no such key.
func (s *session) isKept(ctx context.Context, a *attempt, key record) (bool, error) {
	if a.id.role.beside() {
		var err error
		if key, err = s.store.read(ctx, keptOf(a.id), a.ttl); err != nil {
			return false, err
		}
	}
	return key.owner == keptOf(a.id).owner, nil
}

// staysOut reports whether the first event belongs to a step that keeps an owner's permits. That
// step deletes the owner's key and creates the kept one, so no permits become free.
func staysOut(events []*mvccpb.Event) bool {
	e := events[0]
	if e.Type == mvccpb.PUT {
		return bytes.HasSuffix(e.Kv.Key, []byte(keptSuffix))
	}
	return len(events) > 1 && events[1].Type == mvccpb.PUT &&
		string(events[1].Kv.Key) == string(e.Kv.Key)+keptSuffix
}

// keeps reports whether permits that an owner has released are kept.
func (at stock) keeps(id holdID) bool {
	return slices.ContainsFunc(at.holds, func(r record) bool { return r.owner == keptOf(id).owner })
}
