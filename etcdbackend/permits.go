package etcdbackend

import (
	"cmp"
	"context"
	"fmt"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/seed951563bd/distsync/backend"
)

// Each holder of permits has its own key, separate from the lock's key. The holder's key stores the
// number of its permits, and the semaphore's limit. A step that wants permits first counts the
// acquired ones, or assumes that there are none. It then sends a transaction that takes effect only
// if that is still true, because no key has been created or changed. Otherwise the answer contains
// the current keys.

// A stock is the state of a semaphore, as far as a step has read it.
type stock struct {
	rev   int64    // the revision of this state
	mine  record   // the hold of the step's owner
	holds []record // all holds
}

func (at stock) out() (n int) {
	for _, r := range at.holds {
		n += r.count
	}
	return n
}

// last returns the hold for which the limit was stated most recently.
func (at stock) last() record {
	last := at.mine
	for _, r := range at.holds {
		if r.told() > last.told() {
			last = r
		}
	}
	return last
}

// limit returns the semaphore's limit. It is the limit stated in the call or, if that is 0, the one
// stated most recently.
func (at stock) limit(asked int) (int, error) {
	last := at.last()
	switch {
	case asked > 0:
		return asked, nil
	case last.free():
		return 0, refused(backend.ErrNoLimit)
	default:
		return last.limit, nil
	}
}

func refused(err error) error {
	return &backend.Error{Kind: backend.Refused, Err: fmt.Errorf("etcd: %w", err)}
}

// seePermits makes an attempt read all permits.
func (s *session) seePermits(a *attempt) {
	a.look = []*pb.RequestOp{
		rangeOp(s.store.key(a.id.name)), s.store.beside(a.id.name).findOp(0),
	}
}

// countOut finds out which permits of a semaphore are acquired.
func (s *session) countOut(ctx context.Context, a *attempt) (stock, error) {
	res, err := s.store.look(ctx, a.ttl, s.store.reads(a)...)
	if err != nil {
		return stock{}, err
	}
	return s.stock(a.id, res)
}

// stock parses the answer to the reads (see [store.reads]) of an attempt that wants permits.
func (s *session) stock(id holdID, res *pb.TxnResponse) (at stock, err error) {
	kvs, err := ranges(res, 3)
	if err != nil {
		return stock{}, err
	}
	at.rev = res.Header.GetRevision()
	var errs [3]error
	at.mine, errs[0] = decodeOf(id, first(kvs[0]))
	errs[1] = none(kvs[1])
	at.holds, errs[2] = s.store.decodeAll(id.name, permitRole, kvs[2])
	return at, cmp.Or(errs[:]...)
}

// acquirePermits assumes that no permits are acquired, unless there are signs to the contrary. If
// the assumption is right, it needs one round trip.
func (s *session) acquirePermits(
	ctx context.Context, a *attempt, req backend.AcquireRequest,
) (res backend.AcquireResult, err error) {
	s.seePermits(a)
	a.tells = true
	at := stock{mine: s.holds.guess(a.id)}
	if req.Limit == 0 || at.mine.free() && s.looksFirst(a) {
		at, err = s.countOut(ctx, a)
	}
	var others bool
	done, key, err := transact(ctx, s, a, at, err, s.foundStock, func(at *stock) (*change, error) {
		limit, err := at.limit(req.Limit)
		switch {
		case err != nil:
			return nil, err
		case req.Permits > limit && at.rev == 0:
			*at, err = s.countOut(ctx, a) // nothing was read yet: the lock may be of another kind
			return again, err
		case req.Permits > limit:
			return nil, refused(fmt.Errorf("%w: %d of %d", backend.ErrTooMany, req.Permits, limit))
		case !at.mine.free() && at.mine.count != req.Permits:
			if _, err = s.whole(ctx, a, at.mine, req.Permits); err == nil {
				req.Limit = limit // perhaps no hold states the limit any longer
				*at, err = s.countOut(ctx, a)
			}
			return again, err
		case at.mine.free() && (req.Permits > limit-at.out() || at.keeps(a.id)):
			s.others.add(req.Name)
			res.Remaining = s.soonest(ctx, at.holds)
			return nil, nil
		}
		others = len(at.holds) > 0
		c := &change{old: at.mine, next: at.mine, only: s.noneSince(req.Name, at.rev)}
		c.next.owner, c.next.count, c.next.limit, c.next.said = req.Owner, req.Permits, limit, 0
		return c, nil
	})
	if !done {
		return res, err
	}
	s.hasPermits(req.Name, others)
	return backend.AcquireResult{Acquired: true, Count: key.count}, nil
}

// foundStock returns the state that a refused attempt found.
func (s *session) foundStock(ctx context.Context, a *attempt, _ record) (stock, error) {
	if a.seen == nil {
		return s.countOut(ctx, a)
	}
	return s.stock(a.id, a.seen)
}

// noneSince returns the condition that no key of a semaphore was created or changed after a
// revision, and that no lock of another kind uses the name.
func (s *session) noneSince(name string, rev int64) []*pb.Compare {
	return append(same(s.store.key(name), record{}), s.store.beside(name).asOf(rev))
}

// hasPermits records that an owner of this session acquired permits. The parameter says whether
// other owners hold permits, too. If calls of the session are waiting for permits, the session goes
// to the end of the queue.
func (s *session) hasPermits(name string, others bool) {
	if others {
		s.others.add(name)
	} else {
		s.others.remove(name)
	}
	s.joinAgain(name)
}

// permits is a subscription's view of a semaphore. Released permits go first to the
// clients that began to wait earlier, and this client is woken if some are left.
type permits struct {
	keys  []byte // prefix of the keys
	free  int    // an upper bound on the number of permits released, and not taken since
	limit int    // the semaphore's limit, as last stated; 0 if it isn't known
	due   bool   // a waiter must be woken once the sessions ahead have had their turn
}

// unknownPermits stands for an unknown number of released permits. It is more than all waiters are
// likely to take before the next release.
const unknownPermits = 1 << 20

// changed updates p for an event about a key of permits.
func (p *permits) changed(e *mvccpb.Event) {
	if e.Type == mvccpb.DELETE {
		was, err := decode(permitRole, e.PrevKv)
		if err != nil || was.free() {
			was.count = unknownPermits // the number is no longer known
		}
		p.free += was.count
		p.due = true
		return
	}
	now, err := decode(permitRole, e.Kv)
	if err != nil {
		return
	}
	if created(e) {
		p.free = max(p.free-now.count, 0)
	}
	if more := now.limit - p.limit; more > 0 {
		p.free += more
		p.due = true
	}
	p.limit = now.limit
	p.due = p.due && p.free > 0
}

// told records that a waiter was woken.
func (p *permits) told() {
	if p != nil {
		p.due = false
	}
}

// whole releases all permits of an owner, unless the owner holds exactly the given number. It
// returns the owner's key in its new state.
func (s *session) whole(ctx context.Context, a *attempt, key record, permits int) (record, error) {
	done, now, err := transact(ctx, s, a, key, nil, itself, func(now *record) (*change, error) {
		if key = *now; key.free() || key.count == permits {
			return nil, nil
		}
		return &change{old: key}, nil
	})
	if !done {
		return key, err
	}
	return now, inDoubt(s.giveBack(ctx, a.id, key.lease, a.ttl))
}

// soonest returns the time until the first permits expire. It is negative if that isn't known, or
// if asking would take many requests. Waiters are notified of the expiry anyway.
func (s *session) soonest(ctx context.Context, holds []record) time.Duration {
	if len(holds) > mostAsked {
		return -1
	}
	left, err := s.remainingAll(ctx, leasesOf(holds))
	if err != nil {
		return -1
	}
	soonest := time.Duration(-1)
	for i, l := range left {
		if ends := lasts(l.seconds); holds[i].lease != 0 && (soonest < 0 || ends < soonest) {
			soonest = ends
		}
	}
	return soonest
}

func leasesOf(holds []record) (leases []int64) {
	for _, r := range holds {
		leases = append(leases, r.lease)
	}
	return leases
}

// forcePermits releases all acquired permits.
func (s *session) forcePermits(
	ctx context.Context, a *attempt, _ backend.ForceReleaseRequest,
) (backend.ForceReleaseResult, error) {
	s.seePermits(a)
	at, err := s.countOut(ctx, a)
	done, _, err := transact(ctx, s, a, at, err, s.foundStock, func(at *stock) (*change, error) {
		if len(at.holds) == 0 {
			return nil, nil
		}
		a.many = len(at.holds) > manyKeys
		return &change{
			only: s.noneSince(a.id.name, at.rev),
			with: []*pb.RequestOp{s.store.all(a.id.name, permitRole).take()},
		}, nil
	})
	if !done {
		return backend.ForceReleaseResult{}, err
	}
	return s.forced(ctx, a, permitRole)
}

func (s *session) lookAtPermits(
	ctx context.Context, a *attempt, req backend.LookRequest,
) (backend.LookResult, error) {
	s.seePermits(a)
	at, err := s.countOut(ctx, a)
	if err != nil {
		return backend.LookResult{}, err
	}
	limit, err := at.limit(req.Limit)
	if err != nil {
		return backend.LookResult{}, err
	}
	res := backend.LookResult{
		Held: len(at.holds) > 0, Count: at.mine.count, Available: max(limit-at.out(), 0),
	}
	res.Remaining, err = s.last(ctx, leasesOf(at.holds))
	return res, err
}
