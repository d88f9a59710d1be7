package etcdbackend

import (
	"cmp"
	"context"
	"slices"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/seed951563bd/distsync/backend"
)

// A waiter for a fair lock has a place, which is a key of its own, separate from the lock's key.
// The places are in the order in which these keys were created, but places that were lost and
// restored come before the others. While the lock's own key doesn't exist, the first in line holds
// the lock. So the next waiter holds the lock as soon as the key before its own is gone. A release
// needs no message, so no message can be lost. When the first in line renews its hold, or tries to
// acquire the lock again, it replaces its place with the lock's key. So only the first in line can
// create the lock's key, unless there is no line.
//
// The first in line stays first as long as its place exists and the lock's key doesn't. While it
// holds the lock by its place, restored places go behind it. The transaction that creates a place
// checks that the lock hasn't changed since it was read.

// A line records what a step knows about a lock and the places in line for it.
type line struct {
	rev    int64    // the revision of this state; 0 if not known
	lock   record   // the lock's key
	places []record // in order
}

// holder returns the record of the current hold, or the zero record if nobody holds the lock.
// byPlace reports whether the holder is the first in line, and holds the lock by its place.
func (at line) holder() (holder record, byPlace bool) {
	if at.lock.free() && len(at.places) > 0 {
		return at.places[0], true
	}
	return at.lock, false
}

// place returns an owner's place in line.
func (at line) place(owner string) record {
	if i := slices.IndexFunc(at.places, func(r record) bool { return r.owner == owner }); i >= 0 {
		return at.places[i]
	}
	return record{}
}

// A position identifies a place. It consists of the revision in which the place was created and, if
// several places were restored together, the place's number among them.
type position struct {
	rev   int64
	front int
}

func (r record) position() position { return position{r.created, r.front} }

// inOrder sorts places. An owner whose place was restored goes before all owners that were in line
// at that time. Owners whose places were restored together keep their order. But an owner that held
// the lock by its place at that time stays first.
func inOrder(places []record) {
	slices.SortFunc(places, func(a, b record) int {
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
	if len(places) == 0 || places[0].front == 0 {
		return
	}
	behind := places[0].behind
	i := slices.IndexFunc(places, func(r record) bool { return r.position() == behind })
	if i > 0 {
		holder := places[i]
		copy(places[1:], places[:i])
		places[0] = holder
	}
}

// line parses the answer to a request that read the lock's key and all keys in the span that
// [store.beside] returns.
func (s *session) line(id holdID, res *pb.TxnResponse) (at line, err error) {
	kvs, err := ranges(res, 2)
	if err != nil {
		return line{}, err
	}
	at.rev = res.Header.GetRevision()
	if at.lock, err = decode(lockRole, first(kvs[0])); err != nil {
		return line{}, err
	}
	at.places, err = s.store.decodeAll(id.name, lineRole, kvs[1])
	inOrder(at.places)
	if holder, byPlace := at.holder(); byPlace && err == nil {
		s.places.timeLeft(id.name, holder)
	}
	return at, err
}

// lookAtLine finds out which owner holds a lock, and which owners are in line. If the user has
// permission only for the lock's own key, lookAtLine reads only that key.
func (s *session) lookAtLine(ctx context.Context, a *attempt) (line, error) {
	if a.fair || !s.alone.has(a.id.name) {
		res, err := s.store.look(ctx, a.ttl, rangeOp(s.store.key(a.id.name)),
			s.store.beside(a.id.name).findOp(0))
		switch {
		case err == nil:
			return s.line(a.id, res)
		case a.fair || !refusedBeside(err):
			return line{}, err
		}
		s.alone.add(a.id.name)
	}
	key, err := s.store.read(ctx, a.id, a.ttl)
	return line{lock: key}, err
}

// foundLine returns the state that a refused attempt found. key is the lock's key in that state.
func (s *session) foundLine(ctx context.Context, a *attempt, key record) (line, error) {
	switch {
	case a.seen == nil || !a.fair &&
		(!key.free() || len(a.seen.Responses) < 2 ||
			a.seen.Responses[1].GetResponseRange().GetKvs() == nil):
		return line{lock: key}, nil
	case a.fair:
		return s.line(a.id, a.seen)
	default:
		return s.lookAtLine(ctx, a) // the first in line holds the lock; not all places were read
	}
}

// takes returns the change that writes the lock's key. If there is no such key yet, the change has
// a condition: the line must be empty or, if the first in line holds the lock by its place, that
// place must be unchanged.
func (s *session) takes(a *attempt, at line, next record) *change {
	c := &change{old: at.lock, next: next, only: a.only}
	switch holder, byPlace := at.holder(); {
	case byPlace:
		place := s.store.placeKey(a.id.name, holder.owner)
		c.only, c.with = same(place, holder), []*pb.RequestOp{del(place)}
	case a.fair || !s.alone.has(a.id.name):
		c.only = []*pb.Compare{s.store.beside(a.id.name).empty()}
	}
	return c
}

// takePlace puts an owner in line, provided that the lock is still held by another owner. If it
// isn't, takePlace returns the state that it found.
func (s *session) takePlace(
	ctx context.Context, a *attempt, place time.Duration, at line,
) (placed bool, found line, err error) {
	owner := a.id.owner
	set := s.places.asks(a.id.name, owner, s.store.ttl(place), place)
	l, err := s.placeLease(ctx, set)
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
		s.places.lost(set, l)
		return false, at, nil
	case err != nil:
		s.places.doubt(id.name, owner)
		return false, at, err
	case res.Succeeded, len(res.Responses) > 2 && res.Responses[2].GetResponseTxn().GetSucceeded():
		rev := res.Header.GetRevision()
		if next.rev = rev; was.free() {
			next.created = rev
		}
		s.places.placed(set, next)
		s.places.saw(set, begin, rev)
		return true, at, nil
	}
	if found, err = s.line(a.id, res); err != nil {
		return false, at, err
	}
	// an unanswered request may have put the place there
	return found.place(owner).lease == l.id, found, nil
}

// stillHeld returns a condition that is true only while another owner holds the lock. It requires
// that the last place in line hasn't changed or, if there is no line, that the lock's key hasn't.
// The last place is used because it is the least likely to be gone. If the condition fails, but
// there is still a line, takePlace puts the owner in line anyway. That is slower, since the answer
// then contains all places.
func (s *session) stillHeld(name string, at line) []*pb.Compare {
	if n := len(at.places); n > 0 {
		last := at.places[n-1]
		return same(s.store.placeKey(name, last.owner), last)
	}
	return same(s.store.key(name), at.lock)
}

// placeLease returns the lease for the places of a set. The lease was granted or renewed within
// the last second.
func (s *session) placeLease(ctx context.Context, set *placeSet) (lease, error) {
	select {
	case set.slot <- struct{}{}:
		defer func() { <-set.slot }()
	case <-ctx.Done():
		return lease{}, ended(ctx)
	}
	for {
		l := s.places.getLease(set)
		if l.id == 0 {
			l, err := s.leases.get(ctx, set.ttl)
			if err != nil {
				return lease{}, err
			}
			s.places.begin(set, l)
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
			s.places.lost(set, l)
			s.leases.distrust()
		default:
			l.ttl, l.since = granted, begin
			s.places.begin(set, l)
		}
	}
}

// leaveLine implements Release for an owner that doesn't have the lock's key.
func (s *session) leaveLine(
	ctx context.Context, a *attempt, key record, keeps bool,
) (now record, freed bool, err error) {
	if keeps {
		// An owner that holds the lock by its place, whether it knows that or not, must first take
		// the lock's key, since a place can't be kept.
		taking := *a
		done, err := s.takeLock(ctx, &taking)
		if done {
			key = s.holds.guess(a.id)
		}
		if err != nil || !key.free() && key.owner == a.id.owner {
			return key, false, err
		}
	}
	freed, key, err = s.leave(ctx, a)
	return key, freed, err
}

// leave gives up an owner's place. freed reports whether the owner held the lock by that place. If
// not, leave returns the lock's key.
func (s *session) leave(ctx context.Context, a *attempt) (freed bool, key record, err error) {
	id := a.id
	place := s.store.placeKey(id.name, id.owner)
	look := []*pb.RequestOp{rangeOp(s.store.key(id.name)), s.store.beside(id.name).findOp(0)}
	was, holds := s.places.find(id.name, id.owner)
	var at line
	if was.free() {
		if at, err = s.lookAtLine(ctx, &attempt{id: id, traits: a.traits}); err == nil {
			was = at.place(id.owner)
		}
	}
	for err == nil && !was.free() {
		req := &pb.TxnRequest{
			Compare: same(place, was), Success: append(slices.Clone(look), del(place)),
			Failure: look,
		}
		if holds {
			req.Compare = append(req.Compare, same(s.store.key(id.name), record{})...)
			req.Success = []*pb.RequestOp{del(place)}
		}
		var res *pb.TxnResponse
		if res, err = s.store.once(ctx, patience(0), req); err != nil {
			break
		}
		if holds && res.Succeeded {
			s.left(ctx, id)
			return true, record{}, nil
		}
		if at, err = s.line(id, res); err == nil && res.Succeeded {
			s.left(ctx, id)
			holder, byPlace := at.holder()
			return byPlace && holder.owner == id.owner, at.lock, nil
		}
		was, holds = at.place(id.owner), false
	}
	if err == nil {
		s.left(ctx, id)
	}
	return false, at.lock, err
}

// left forgets a place that no longer exists. A request that is still unanswered might create the
// place again. To prevent that, left revokes the place's lease if no other call of the session is
// in line. If there are others, the next KeepPlaces deletes the place if it was created again.
func (s *session) left(ctx context.Context, id holdID) {
	l, suspect := s.places.left(id.name, id.owner)
	switch {
	case l.id == 0:
	case !suspect:
		s.leases.put(l)
	case s.store.revoke(ctx, l.id) != nil:
		s.leases.discard(l)
	}
}

// forceHolder frees a lock, whichever owner holds it. The waiters stay in line.
func (s *session) forceHolder(
	ctx context.Context, a *attempt, _ backend.ForceReleaseRequest,
) (backend.ForceReleaseResult, error) {
	at, err := s.lookAtLine(ctx, a)
	for err == nil {
		holder, byPlace := at.holder()
		if holder.free() {
			return backend.ForceReleaseResult{}, nil
		}
		a.id.owner = holder.owner
		key, compare := s.store.key(a.id.name), same(s.store.key(a.id.name), at.lock)
		if byPlace {
			key = s.store.placeKey(a.id.name, holder.owner)
			compare = append(compare, same(key, holder)...)
		}
		var res *pb.TxnResponse
		if res, err = s.store.once(ctx, patience(0), &pb.TxnRequest{
			Compare: compare, Success: []*pb.RequestOp{del(key)},
		}); err != nil {
			break
		}
		if res.Succeeded {
			if !byPlace {
				if err := s.giveBack(ctx, a.id, holder.lease, 0); err != nil {
					return backend.ForceReleaseResult{}, inDoubt(err)
				}
			}
			return backend.ForceReleaseResult{Released: true}, nil
		}
		at, err = s.lookAtLine(ctx, a)
	}
	return backend.ForceReleaseResult{}, err
}

// lookAtHolder implements Look for a lock that one owner holds. If the lease of the hold has ended,
// it looks again, since the key may have been deleted, or moved to another lease.
func (s *session) lookAtHolder(
	ctx context.Context, a *attempt, req backend.LookRequest,
) (backend.LookResult, error) {
	look := s.lookAtLine
	if a.id.role == writeRole {
		look = func(ctx context.Context, a *attempt) (line, error) {
			key, err := s.read(ctx, a)
			return line{lock: key}, err
		}
	}
	at, err := look(ctx, a)
	for err == nil {
		holder, byPlace := at.holder()
		if holder.free() {
			return backend.LookResult{}, nil
		}
		res := backend.LookResult{Held: true}
		switch {
		case holder.owner != req.Owner:
		case byPlace:
			res.Count = 1
		default:
			res.Count = holder.count
		}
		_, res.Kept = holder.keptFrom()
		var over bool
		if res.Remaining, over, err = s.ends(ctx, req.Name, at); err == nil && !over {
			return res, nil
		}
		if err == nil {
			at, err = look(ctx, a)
		}
		if now, _ := at.holder(); err == nil && now == holder {
			return res, nil
		}
	}
	return backend.LookResult{}, err
}

// ends returns how much longer a lock will be held. The time is negative if the hold never ends.
// over reports whether the hold has already ended, so that another may have begun.
func (s *session) ends(
	ctx context.Context, name string, at line,
) (remaining time.Duration, over bool, err error) {
	holder, byPlace := at.holder()
	if holder.lease == 0 {
		return -1, false, nil
	}
	left, _, err := s.store.remaining(ctx, holder.lease)
	remaining = lasts(left)
	if byPlace {
		remaining = min(remaining, s.places.timeLeft(name, holder))
	}
	return max(remaining, 0), left < 0, err
}

// firstTime is how long the first in line may hold the lock by its place. In that time it must
// create the lock's key. Otherwise it counts as dead. Waiters count the time from when they first
// saw that it holds the lock. The owner itself starts counting before it can hold the lock, so its
// time is up earlier.
const firstTime = 3 * time.Second

// passOver reports whether the first in line counts as dead. If so, it removes that place.
func (s *session) passOver(ctx context.Context, name string, at line) (dead bool, err error) {
	holder, byPlace := at.holder()
	if !byPlace || s.places.timeLeft(name, holder) > 0 {
		return false, nil
	}
	place := s.store.placeKey(name, holder.owner)
	_, err = insist(ctx, patience(0), s.store.kv.Txn, &pb.TxnRequest{
		Compare: append(same(s.store.key(name), at.lock), same(place, holder)...),
		Success: []*pb.RequestOp{del(place)},
	})
	return true, notDone(err)
}

// takeLock replaces the place of the first in line with the lock's key, or renews the key if the
// owner already has it. It returns false if the owner doesn't hold the lock.
func (s *session) takeLock(ctx context.Context, a *attempt) (held bool, err error) {
	s.excludeOthers(a)
	at, err := s.lookAtLine(ctx, a)
	held, _, err = transact(ctx, s, a, at, err, s.foundLine, func(at *line) (*change, error) {
		holder, byPlace := at.holder()
		if holder.free() || holder.owner != a.id.owner {
			return nil, nil
		}
		next := at.lock
		if byPlace {
			next.owner, next.count = a.id.owner, 1
		}
		return s.takes(a, *at, next), nil
	})
	if held {
		s.left(ctx, a.id)
	}
	return held, err
}

// KeepPlaces renews the lease of all places, and restores missing ones.
func (s *session) KeepPlaces(
	ctx context.Context, req backend.PlacesRequest,
) (backend.PlacesResult, error) {
	if _, err := check(ctx, req.Kind); err != nil {
		return backend.PlacesResult{}, err
	}
	a := kindOf(backend.Fair).attempt(req.Name, "", s.store.ttl(req.Place))
	var set *placeSet
	for _, owner := range req.Owners {
		set = s.places.expect(req.Name, owner, a.ttl, req.Place)
	}
	if set == nil {
		return backend.PlacesResult{}, nil
	}
	for {
		l, err := s.placeLease(ctx, set)
		if err != nil {
			return backend.PlacesResult{}, err
		}
		begin := time.Now()
		at, err := s.lookAtLine(ctx, a)
		if err != nil {
			return backend.PlacesResult{}, notDone(err)
		}
		wrong, err := s.repair(ctx, set, l, req.Owners, at)
		if err != nil {
			return backend.PlacesResult{}, err
		}
		if wrong {
			continue
		}
		s.places.saw(set, begin, at.rev)
		remaining, _, err := s.ends(ctx, req.Name, at)
		if err != nil {
			remaining = -1
		}
		res := backend.PlacesResult{Remaining: remaining}
		if holder, _ := at.holder(); slices.Contains(req.Owners, holder.owner) {
			res.Holder = holder.owner
		}
		return res, nil
	}
}

// repair checks a line for several problems, and deals with the first that it finds. wrong reports
// whether it found one.
func (s *session) repair(
	ctx context.Context, set *placeSet, l lease, owners []string, at line,
) (wrong bool, err error) {
	if wrong, err = s.passOver(ctx, set.name, at); wrong || err != nil {
		return wrong, err
	}
	if wrong, err = s.mend(ctx, set, l, owners, at); wrong || err != nil {
		return wrong, err
	}
	holder, byPlace := at.holder()
	if !byPlace || !slices.Contains(owners, holder.owner) {
		return false, nil
	}
	// The session doesn't know when other waiters will pass this owner over. So the owner takes the
	// lock's key, with its own lease.
	a := kindOf(backend.Fair).attempt(set.name, holder.owner, s.store.ttl(firstTime))
	_, err = s.takeLock(ctx, a)
	return true, err
}

// mend repairs the places of a set. Afterwards each of the given owners has a place with the set's
// lease, and no other owner has one. mend reports whether it found anything to repair.
func (s *session) mend(
	ctx context.Context, set *placeSet, l lease, owners []string, at line,
) (wrong bool, err error) {
	var m []mending
	now := time.Now()
	for i, place := range at.places {
		if i == 0 && at.lock.free() {
			continue // the first in line holds the lock by this place, so its lease isn't changed
		}
		id := holdID{set.name, place.owner, lineRole}
		key := s.store.keyOf(id)
		switch wanted := slices.Contains(owners, place.owner); {
		case wanted && place.lease != l.id:
			next := place
			next.lease = l.id
			m = append(m, mending{same(key, place), s.store.put(id, next)})
		case !wanted && place.lease == l.id && s.places.over(set.name, place.owner, now):
			m = append(m, mending{same(key, place), del(key)})
		}
	}
	if len(m) > 0 {
		return true, s.mendAll(ctx, set, l, nil, m)
	}
	only, m := s.comeBack(set, l, owners, at)
	return len(m) > 0, s.mendAll(ctx, set, l, only, m)
}

// A mending repairs one key, provided that the key hasn't changed since it was read.
type mending struct {
	only []*pb.Compare
	do   *pb.RequestOp
}

// mostMended is the maximum number of keys that one transaction repairs. A server allows 128
// comparisons, and each key needs two.
const mostMended = 60

// mendAll carries out all mendings, in transactions of at most mostMended keys. Each transaction
// also requires the conditions that comeBack returned, if any. If a condition fails, because a key
// has changed since it was read, mendAll stops, and the caller looks again.
func (s *session) mendAll(
	ctx context.Context, set *placeSet, l lease, only []*pb.Compare, m []mending,
) error {
	for some := range slices.Chunk(m, mostMended) {
		req := &pb.TxnRequest{Compare: slices.Clone(only)}
		for _, m := range some {
			req.Compare = append(req.Compare, m.only...)
			req.Success = append(req.Success, m.do)
		}
		res, err := insist(ctx, patience(l.ttl), s.store.kv.Txn, req)
		switch {
		case gone(err):
			s.places.lost(set, l)
			return nil
		case err != nil:
			return inDoubt(err)
		case !res.Succeeded:
			return nil
		}
	}
	return nil
}

// comeBack finds the owners that have lost their places. It returns mendings that put them at the
// front of the line or, if the first in line holds the lock by its place, directly behind that
// place. It also returns the conditions for these mendings: that the lock hasn't changed since it
// was read.
func (s *session) comeBack(
	set *placeSet, l lease, owners []string, at line,
) (only []*pb.Compare, m []mending) {
	only = same(s.store.key(set.name), at.lock)
	back := record{lease: l.id}
	if holder, byPlace := at.holder(); byPlace {
		back.behind = holder.position()
		only = append(only, same(s.store.placeKey(set.name, holder.owner), holder)...)
	} else if holder.free() {
		only = append(only, s.store.beside(set.name).empty())
	}
	for i, owner := range owners {
		if !at.place(owner).free() || at.lock.owner == owner || slices.Contains(owners[:i], owner) {
			continue
		}
		id := holdID{set.name, owner, lineRole}
		back.owner = owner
		back.front++
		m = append(m, mending{same(s.store.keyOf(id), record{}), s.store.put(id, back)})
	}
	// Each transaction puts its owners ahead of the owners in earlier transactions, so the last
	// owners go into the first transaction.
	slices.Reverse(m)
	return only, m
}
