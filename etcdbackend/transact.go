package etcdbackend

import (
	"context"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
)

// A change describes what a step does to the key of a hold. It is carried out only if the key
// hasn't changed since the step read it.
type change struct {
	old  record          // the key as it was found
	next record          // the new contents of the key; if it has no owner, the key is deleted
	keep time.Duration   // if not 0, how long the lock stays taken instead (see keptSuffix)
	only []*pb.Compare   // further conditions if there was no key
	with []*pb.RequestOp // more operations of the transaction if the change begins or ends the hold
	done *pb.TxnResponse // the answer if the key was deleted
}

// again is a change that a decide function returns when it has read the state of the lock itself.
// transact then calls decide once more, without a transaction in between.
var again = new(change)

// transact carries out a step. The parameter at is the state of the lock as the caller has read it,
// and err is the error of that read. If err is nil, transact repeats the following until the step
// is done. It calls decide with the state. decide returns a change, or nil if the step ends without
// one. Then transact sends a transaction that carries out the change if the key is still the same.
// If it isn't, the transaction reads the current key instead, and found returns the state for that
// key. The result done reports whether a change was carried out, and the result key is the current
// key.
func transact[S any](
	ctx context.Context, s *session, a *attempt, at S, err error,
	found func(context.Context, *attempt, record) (S, error), decide func(at *S) (*change, error),
) (done bool, key record, _ error) {
	for err == nil {
		var c *change
		if c, err = decide(&at); c == nil || err != nil {
			return false, record{}, err
		}
		if c == again {
			continue
		}
		a.change = *c
		if done, key, err = s.carryOut(ctx, a); done || err != nil {
			return done, key, err
		}
		at, err = found(ctx, a, key)
	}
	return false, record{}, err
}

// itself returns the key that it is given. Steps whose state is just the key of their hold use it
// as transact's found function.
func itself(_ context.Context, _ *attempt, key record) (record, error) { return key, nil }

// carryOut carries out the change that an attempt has decided on. It reports whether it did so, and
// returns the current key.
func (s *session) carryOut(ctx context.Context, a *attempt) (done bool, key record, err error) {
	switch {
	case a.keep > 0:
		done, key, err = s.keep(ctx, a)
	case a.next.owner == "":
		done, key, err = s.delete(ctx, a)
	default:
		return s.write(ctx, a, a.old, a.next)
	}
	if err != nil {
		s.holds.doubt(a.id)
		s.holds.suspect(a.id, a.old.lease)
	}
	return done, key, err
}
