package etcdbackend

import (
	"cmp"
	"context"
	"slices"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/seed951563bd/distsync/backend"
)

// Who waits for a fair lock has a key beside the lock's, a place, and the order is that in which these keys were created. While nobody has the
// lock's own key the first in line has the lock, without a word: when the key before its own is gone it is inside. So there is nothing to hand
// over, nobody has to be told by whoever leaves, and it can't be lost. The place becomes the lock's key when the owner renews or
// asks, which is why the lock's key is taken only where there is no line, or by the first in it.
//
// Being the first lasts: places are only put where somebody else has the lock, as the transaction compares, and those that come
// before others only where somebody has the lock's key. So what was found to be the first is that for as long as its place is there and the lock's key isn't.

// A turn is what a step has found of a lock, and of those who stand in line for it.
type turn struct {
	rev  int64    // at which it was so; 0 if that isn't known
	lock record   // of who has the lock's key
	line []record // in order
}

// holder returns the hold of whoever has the lock. It says whether that is the first in line.
func (at turn) holder() (holder record, first bool) {
	if at.lock.free() && len(at.line) > 0 {
		return at.line[0], true
	}
	return at.lock, false
}

// place returns an owner's place in line.
func (at turn) place(owner string) record {
	if i := slices.IndexFunc(at.line, func(r record) bool { return r.owner == owner }); i >= 0 {
		return at.line[i]
	}
	return record{}
}

// A position is what tells a place from all others: the revision in which it was created, and of those that were created at once
// which it is.
type position struct {
	rev   int64
	front int
}

func (r record) position() position { return position{r.created, r.front} }

// inOrder sorts places. Who has come back goes before all that were there, those who came back at once in their order; but not before
// who was inside.
func inOrder(line []record) {
	slices.SortFunc(line, func(a, b record) int {
		switch {
		case a.front > 0 && b.front > 0:
			return cmp.Or(cmp.Compare(b.created, a.created), cmp.Compare(a.front, b.front))
		case a.front > 0:
			return -1
		case b.front > 0:
			return 1
		default:
			return cmp.Compare(a.created, b.created)
		}
	})
	if len(line) == 0 || line[0].front == 0 {
		return
	}
	inside := slices.IndexFunc(line, func(r record) bool { return r.position() == line[0].behind })
	if inside > 0 {
		first := line[inside]
		copy(line[1:], line[:inside])
		line[0] = first
	}
}

// turn reads the answer to a look at the lock's key, and at all that may be held beside it.
func (s *session) turn(id holdID, res *pb.TxnResponse) (at turn, err error) {
	lock, err := ranged(res, 0)
	if err != nil {
		return turn{}, err
	}
	if len(res.Responses) < 2 || res.Responses[1].GetResponseRange() == nil {
		return turn{}, errShape
	}
	at.rev = res.Header.GetRevision()
	if at.lock, err = decode(lockRole, lock); err != nil {
		return turn{}, err
	}
	at.line, err = s.store.decodeAll(id.name, lineRole, res.Responses[1].GetResponseRange().Kvs)
	inOrder(at.line)
	if holder, first := at.holder(); first && err == nil {
		s.queues.inherits(id.name, holder)
	}
	return at, err
}

// lookAtTurn finds out who has a lock, and who stands in line. Whoever may use the lock's key alone sees no more than that.
func (s *session) lookAtTurn(ctx context.Context, a *attempt) (turn, error) {
	if a.fair || !s.alone.has(a.id.name) {
		res, err := s.store.look(ctx, a.ttl, rangeOp(s.store.key(a.id.name)), s.store.beside(a.id.name).findOp(0))
		switch {
		case err == nil:
			return s.turn(a.id, res)
		case a.fair || !refusedBeside(err):
			return turn{}, err
		}
		s.alone.add(a.id.name)
	}
	key, err := s.store.read(ctx, a.id, a.ttl)
	return turn{lock: key}, err
}

// foundTurn returns what an attempt in vain has found, when the lock's key was found to be so.
func (s *session) foundTurn(ctx context.Context, a *attempt, key record) (turn, error) {
	switch {
	case a.seen == nil || !a.fair && (!key.free() || len(a.seen.Responses) < 2 || a.seen.Responses[1].GetResponseRange().GetKvs() == nil):
		return turn{lock: key}, nil
	case a.fair:
		return s.turn(a.id, a.seen)
	default:
		return s.lookAtTurn(ctx, a) // it is held beside its key, and not all of that was read
	}
}

// takes has an attempt take the lock where nobody stands in line, or else as the first who does.
func (s *session) takes(a *attempt, at turn, first bool) {
	a.with = nil
	switch {
	case first:
		place := s.store.keyOf(holdID{a.id.name, at.line[0].owner, lineRole})
		a.only, a.with = same(place, at.line[0]), []*pb.RequestOp{del(place)}
	case a.fair || !s.alone.has(a.id.name):
		a.only = []*pb.Compare{s.store.beside(a.id.name).empty()}
	}
}

// stand has an owner stand in line, if it still is as was seen that another has the lock. If not, it returns what it has found instead.
func (s *session) stand(ctx context.Context, a *attempt, place time.Duration, at turn) (stands bool, found turn, err error) {
	owner := a.id.owner
	q := s.queues.asks(a.id.name, owner, s.store.ttl(place), place)
	l, err := s.placeLease(ctx, q)
	if err != nil {
		return false, at, err
	}
	was := at.place(owner)
	if !was.free() && was.lease == l.id {
		return true, at, nil
	}
	id := holdID{a.id.name, owner, lineRole}
	next := was
	next.owner, next.lease = owner, l.id
	begin := time.Now()
	own, put := same(s.store.keyOf(id), was), s.store.put(id, next)
	res, err := insist(ctx, patience(a.ttl), s.store.kv.Txn, &pb.TxnRequest{
		Compare: append(own, s.stillHeld(a.id.name, at)...),
		Success: []*pb.RequestOp{put},
		Failure: []*pb.RequestOp{
			rangeOp(s.store.key(id.name)),
			s.store.beside(id.name).findOp(0),
			{Request: &pb.RequestOp_RequestTxn{RequestTxn: &pb.TxnRequest{
				Compare: append(slices.Clip(own), s.store.all(id.name, lineRole).some()),
				Success: []*pb.RequestOp{put},
			}}},
		},
	})
	switch {
	case gone(err):
		s.queues.lost(q, l)
		return false, at, nil
	case err != nil:
		s.queues.doubt(id.name, owner)
		return false, at, err
	case res.Succeeded, len(res.Responses) > 2 && res.Responses[2].GetResponseTxn().GetSucceeded():
		rev := res.Header.GetRevision()
		if next.rev = rev; was.free() {
			next.created = rev
		}
		s.queues.stands(q, next)
		s.queues.saw(q, begin, rev)
		return true, at, nil
	}
	if found, err = s.turn(a.id, res); err != nil {
		return false, at, err
	}
	return found.place(owner).lease == l.id, found, nil // it may have been put by a request that had no answer
}

// stillHeld says that another has a lock: somebody stands in line, of whom the last is the least likely to be gone; or the lock's key is
// as it was seen. If somebody else stands in line by now that does as well, but takes a look at all of them.
func (s *session) stillHeld(name string, at turn) []*pb.Compare {
	if n := len(at.line); n > 0 {
		last := at.line[n-1]
		return same(s.store.keyOf(holdID{name, last.owner, lineRole}), last)
	}
	return same(s.store.key(name), at.lock)
}

// placeLease returns the lease for the places of a queue, which has begun just now.
func (s *session) placeLease(ctx context.Context, q *queue) (lease, error) {
	select {
	case q.slot <- struct{}{}:
		defer func() { <-q.slot }()
	case <-ctx.Done():
		return lease{}, ended(ctx)
	}
	for {
		l := s.queues.getLease(q)
		if l.id == 0 {
			l, err := s.leases.get(ctx, q.ttl)
			if err != nil {
				return lease{}, err
			}
			s.queues.begin(q, l)
			continue
		}
		begin := time.Now()
		if begin.Sub(l.since) < spareTime {
			return l, nil
		}
		granted, err := s.keeper.keepAlive(ctx, l.id, l.ttl)
		switch {
		case err != nil:
			return lease{}, notDone(err)
		case granted == 0:
			s.queues.lost(q, l)
			s.leases.distrust()
		default:
			l.ttl, l.since = granted, begin
			s.queues.begin(q, l)
		}
	}
}

// leave gives up an owner's place. It says whether that was the hold of the lock. Else it returns the lock's key.
func (s *session) leave(ctx context.Context, id holdID) (freed bool, key record, err error) {
	place := s.store.keyOf(holdID{id.name, id.owner, lineRole})
	look := []*pb.RequestOp{rangeOp(s.store.key(id.name)), s.store.beside(id.name).findOp(0)}
	was, inside := s.queues.place(id.name, id.owner)
	var at turn
	if was.free() {
		if at, err = s.lookAtTurn(ctx, &attempt{id: id, fair: true}); err == nil {
			was = at.place(id.owner)
		}
	}
	for err == nil && !was.free() {
		req := &pb.TxnRequest{Compare: same(place, was), Success: append(slices.Clone(look), del(place)), Failure: look}
		if inside {
			req.Compare = append(req.Compare, same(s.store.key(id.name), record{})...)
			req.Success = []*pb.RequestOp{del(place)}
		}
		if err = ended(ctx); err != nil {
			break
		}
		var res *pb.TxnResponse
		if res, err = s.store.once(ctx, patience(0), req); err != nil {
			break
		}
		if inside && res.Succeeded {
			s.left(ctx, id)
			return true, record{}, nil
		}
		if at, err = s.turn(id, res); err == nil && res.Succeeded {
			s.left(ctx, id)
			holder, first := at.holder()
			return first && holder.owner == id.owner, at.lock, nil
		}
		was, inside = at.place(id.owner), false
	}
	if err == nil {
		s.left(ctx, id)
	}
	return false, at.lock, err
}

// left forgets a place that isn't there any more. What was sent for it and has no answer must not make it again: it doesn't where
// nobody else stands in line, and else that is found when the places are kept.
func (s *session) left(ctx context.Context, id holdID) {
	l, suspect := s.queues.left(id.name, id.owner)
	switch {
	case l.id == 0:
	case !suspect:
		s.leases.put(l)
	case s.store.revoke(ctx, l.id) != nil:
		s.leases.discard(l)
	}
}

// forceTurn frees a lock, whoever has it. Those who stand in line stay there.
func (s *session) forceTurn(ctx context.Context, req backend.ForceReleaseRequest) (backend.ForceReleaseResult, error) {
	a := s.exclusively(idOf(req.Kind, req.Name, ""), 0, req.Kind)
	at, err := s.lookAtTurn(ctx, a)
	for err == nil {
		holder, first := at.holder()
		if holder.free() {
			return backend.ForceReleaseResult{}, nil
		}
		if err = ended(ctx); err != nil {
			break
		}
		a.id.owner = holder.owner
		key, compare := s.store.key(req.Name), same(s.store.key(req.Name), at.lock)
		if first {
			key = s.store.keyOf(holdID{req.Name, holder.owner, lineRole})
			compare = append(compare, same(key, holder)...)
		}
		var res *pb.TxnResponse
		if res, err = s.store.once(ctx, patience(0), &pb.TxnRequest{Compare: compare, Success: []*pb.RequestOp{del(key)}}); err != nil {
			break
		}
		if res.Succeeded {
			if !first {
				if err := s.giveBack(ctx, a.id, holder.lease, 0); err != nil {
					return backend.ForceReleaseResult{}, inDoubt(err)
				}
			}
			return backend.ForceReleaseResult{Released: true}, nil
		}
		at, err = s.lookAtTurn(ctx, a)
	}
	return backend.ForceReleaseResult{}, err
}

// lookAtHolder reports who has a lock.
func (s *session) lookAtHolder(ctx context.Context, req backend.LookRequest) (backend.LookResult, error) {
	a := &attempt{id: idOf(req.Kind, req.Name, req.Owner), fair: req.Kind == backend.Fair}
	at, err := s.lookAtTurn(ctx, a)
	var last record
	for err == nil {
		holder, first := at.holder()
		if holder.free() {
			return backend.LookResult{}, nil
		}
		res := backend.LookResult{Held: true}
		switch {
		case holder.owner != req.Owner:
		case first:
			res.Count = 1
		default:
			res.Count = holder.count
		}
		_, res.Kept = holder.keptFrom()
		var over bool
		if res.Remaining, over, err = s.ends(ctx, req.Name, at); err == nil && (!over || holder == last) {
			return res, nil
		}
		if last = holder; err == nil {
			at, err = s.lookAtTurn(ctx, a)
		}
	}
	return backend.LookResult{}, err
}

// ends returns how long a lock is held, negative if that doesn't end, and whether it is over: perhaps there is something else by now.
func (s *session) ends(ctx context.Context, name string, at turn) (remaining time.Duration, over bool, err error) {
	holder, first := at.holder()
	if holder.lease == 0 {
		return -1, false, nil
	}
	left, _, err := s.store.remaining(ctx, holder.lease)
	remaining = lasts(left)
	if first {
		remaining = min(remaining, s.queues.inherits(name, holder))
	}
	return max(remaining, 0), left < 0, err
}

// An heir, who has the lock as the first in line, is taken for dead if it doesn't take the lock's key for so long, counted by whoever
// waits for it, from when that was seen. The heir counts from before it could have been.
const heirTime = 3 * time.Second

// passOver takes the place of an heir who is taken for dead, and says whether there was one.
func (s *session) passOver(ctx context.Context, name string, at turn) (dead bool, err error) {
	heir, first := at.holder()
	if !first || s.queues.inherits(name, heir) > 0 {
		return false, nil
	}
	place := s.store.keyOf(holdID{name, heir.owner, lineRole})
	_, err = insist(ctx, patience(0), s.store.kv.Txn, &pb.TxnRequest{
		Compare: append(same(s.store.key(name), at.lock), same(place, heir)...),
		Success: []*pb.RequestOp{del(place)},
	})
	if err != nil {
		return true, notDone(err)
	}
	return true, nil
}

// takeTurn has the first in line take the lock's key, or an owner who has it keep it.
func (s *session) takeTurn(ctx context.Context, id holdID, ttl int64) (held bool, err error) {
	a := s.exclusively(id, ttl, backend.Fair)
	at, err := s.lookAtTurn(ctx, a)
	for err == nil {
		holder, first := at.holder()
		if holder.free() || holder.owner != id.owner {
			return false, nil
		}
		next := at.lock
		if first {
			next.owner, next.count = id.owner, 1
		}
		s.takes(a, at, first)
		var done bool
		var key record
		if done, key, err = s.write(ctx, a, at.lock, next); done {
			s.left(ctx, id)
			return true, nil
		}
		if err == nil {
			at, err = s.foundTurn(ctx, a, key)
		}
	}
	return false, err
}

// KeepPlaces lets the lease of all places begin anew, and looks whether they are there.
func (s *session) KeepPlaces(ctx context.Context, req backend.PlacesRequest) (backend.PlacesResult, error) {
	if err := check(ctx, req.Kind); err != nil {
		return backend.PlacesResult{}, err
	}
	a := &attempt{id: holdID{name: req.Name}, ttl: s.store.ttl(req.Place), fair: true}
	var q *queue
	for _, owner := range req.Owners {
		q = s.queues.expect(req.Name, owner, a.ttl, req.Place)
	}
	if q == nil {
		return backend.PlacesResult{}, nil
	}
	for {
		l, err := s.placeLease(ctx, q)
		if err != nil {
			return backend.PlacesResult{}, err
		}
		begin := time.Now()
		at, err := s.lookAtTurn(ctx, a)
		if err != nil {
			return backend.PlacesResult{}, notDone(err)
		}
		wrong, err := s.passOver(ctx, req.Name, at)
		if err == nil && !wrong {
			wrong, err = s.mend(ctx, q, l, req.Owners, at)
		}
		if err != nil {
			return backend.PlacesResult{}, err
		}
		if wrong {
			continue
		}
		holder, first := at.holder()
		if first && slices.Contains(req.Owners, holder.owner) {
			// Nobody knows for how long others will wait for it. Now it is on a lease.
			id := holdID{req.Name, holder.owner, lockRole}
			if _, err := s.takeTurn(ctx, id, s.store.ttl(heirTime)); err != nil {
				return backend.PlacesResult{}, err
			}
			continue
		}
		s.queues.saw(q, begin, at.rev)
		remaining, _, err := s.ends(ctx, req.Name, at)
		if err != nil {
			remaining = -1
		}
		res := backend.PlacesResult{Remaining: remaining}
		if slices.Contains(req.Owners, holder.owner) {
			res.Holder = holder.owner
		}
		return res, nil
	}
}

// mend sees to it that all owners have places on the lease of their queue, and nobody else has. It says whether something was wrong.
func (s *session) mend(ctx context.Context, q *queue, l lease, owners []string, at turn) (wrong bool, err error) {
	name := q.name
	m := menders{}
	now := time.Now()
	for i, place := range at.line {
		if i == 0 && at.lock.free() {
			continue // it has the lock, for as long as it was told
		}
		id := holdID{name, place.owner, lineRole}
		key := s.store.keyOf(id)
		switch wanted := slices.Contains(owners, place.owner); {
		case wanted && place.lease != l.id:
			next := place
			next.lease = l.id
			m = append(m, mending{same(key, place), s.store.put(id, next)})
		case !wanted && place.lease == l.id && s.queues.over(q, place.owner, now):
			m = append(m, mending{same(key, place), del(key)})
		}
	}
	if len(m) > 0 {
		return true, s.mendAll(ctx, q, l, m)
	}
	var back []string
	for _, owner := range owners {
		if at.place(owner).free() && at.lock.owner != owner && !slices.Contains(back, owner) {
			back = append(back, owner)
		}
	}
	if len(back) == 0 {
		return false, nil
	}
	return true, s.comeBack(ctx, q, l, back, at)
}

// A mending changes a key, if it is as was seen.
type mending struct {
	only []*pb.Compare
	do   *pb.RequestOp
}

type menders []mending

// mostMended is how many keys are changed in one transaction. A server allows 128 comparisons, two for each.
const mostMended = 60

// mendAll carries out what has become necessary; what was changed meanwhile is looked at again.
func (s *session) mendAll(ctx context.Context, q *queue, l lease, m menders) error {
	for some := range slices.Chunk(m, mostMended) {
		req := &pb.TxnRequest{}
		for _, m := range some {
			req.Compare = append(req.Compare, m.only...)
			req.Success = append(req.Success, m.do)
		}
		if done, err := s.mendSome(ctx, q, l, req); err != nil || !done {
			return err
		}
	}
	return nil
}

func (s *session) mendSome(ctx context.Context, q *queue, l lease, req *pb.TxnRequest) (done bool, err error) {
	res, err := insist(ctx, patience(l.ttl), s.store.kv.Txn, req)
	switch {
	case gone(err):
		s.queues.lost(q, l)
		return false, nil
	case err != nil:
		return false, inDoubt(err)
	}
	return res.Succeeded, nil
}

// comeBack puts owners who have lost their places before all others, but for the first who has the lock by his place: nobody comes
// before who is inside.
func (s *session) comeBack(ctx context.Context, q *queue, l lease, owners []string, at turn) error {
	only := same(s.store.key(q.name), at.lock)
	back := record{lease: l.id}
	if holder, first := at.holder(); first {
		back.behind = holder.position()
		only = append(only, same(s.store.keyOf(holdID{q.name, holder.owner, lineRole}), holder)...)
	} else if holder.free() {
		only = append(only, s.store.beside(q.name).empty())
	}
	// Who comes later comes before: so the first of them last.
	for n := len(owners); n > 0; n -= mostMended {
		req := &pb.TxnRequest{Compare: slices.Clone(only)}
		for i := max(n-mostMended, 0); i < n; i++ {
			id := holdID{q.name, owners[i], lineRole}
			back.owner, back.front = owners[i], 1+i
			req.Compare = append(req.Compare, same(s.store.keyOf(id), record{})...)
			req.Success = append(req.Success, s.store.put(id, back))
		}
		if done, err := s.mendSome(ctx, q, l, req); err != nil || !done {
			return err // it isn't as it was seen any more
		}
	}
	return nil
}
