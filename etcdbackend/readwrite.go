package etcdbackend

import (
	"cmp"
	"context"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/seed951563bd/distsync/backend"
)

// A scene is the state of a read-write lock as a step sees it. It contains only the parts that the
// step needs.
type scene struct {
	rev   int64    // the revision of this state; 0 if not known
	write record   // the writer's hold
	mine  record   // the read of the step's owner
	reads []record // all reads
	notes []record
}

// lookAround reads the keys on which an attempt depends (see [store.reads]), and returns the scene.
func (s *session) lookAround(ctx context.Context, a *attempt) (scene, error) {
	res, err := s.store.look(ctx, a.ttl, s.store.reads(a)...)
	if err != nil {
		return scene{}, err
	}
	return s.scene(a.id, res)
}

// foundScene returns the scene that a refused attempt saw. The parameter key is the record of the
// key that the attempt wanted to change, as the attempt found it.
func (s *session) foundScene(_ context.Context, a *attempt, key record) (scene, error) {
	switch {
	case a.seen != nil:
		return s.scene(a.id, a.seen)
	case a.id.role == readRole:
		return scene{mine: key}, nil
	default:
		return scene{write: key}, nil
	}
}

// scene parses the answer to an attempt's reads (see [store.reads]). An attempt to write reads the
// lock's key and the readers' keys. An attempt to read reads the reader's own key, the lock's key,
// the notes, and keys of other kinds of lock.
func (s *session) scene(id holdID, res *pb.TxnResponse) (at scene, err error) {
	at.rev = res.Header.GetRevision()
	if id.role == writeRole {
		kvs, err := ranges(res, 2)
		if err != nil {
			return scene{}, err
		}
		if at.write, err = decode(writeRole, first(kvs[0])); err == nil {
			at.reads, err = s.store.decodeAll(id.name, readRole, kvs[1])
		}
		return at, err
	}
	kvs, err := ranges(res, 4)
	if err != nil {
		return scene{}, err
	}
	var errs [4]error
	at.mine, errs[0] = decodeOf(id, first(kvs[0]))
	at.write, errs[1] = decode(writeRole, first(kvs[1]))
	at.notes, errs[2] = s.store.decodeAll(id.name, noteRole, kvs[2])
	errs[3] = none(kvs[3])
	return at, cmp.Or(errs[:]...)
}

// excludeOthers makes an attempt acquire its hold only if no other owner has one.
func (s *session) excludeOthers(a *attempt) {
	limit := int64(0)
	if a.id.role == lockRole && !a.fair {
		limit = 1
		if s.alone.has(a.id.name) {
			return
		}
	}
	beside := s.store.beside(a.id.name)
	a.only = []*pb.Compare{beside.empty()}
	a.look = []*pb.RequestOp{beside.findOp(limit)}
}

// conflicts returns an error if a lock of another kind uses the name. It is called when the key of
// a hold is missing.
func (s *session) conflicts(ctx context.Context, a *attempt) error {
	name := a.id.name
	lock, unshared := rangeOp(s.store.key(name)), s.store.unshared(name).findOp(1)
	ops, allowed := []*pb.RequestOp{unshared}, role("none")
	switch a.id.role {
	case lockRole:
		if s.alone.has(name) {
			return nil
		}
		// owners in line for this lock aren't a conflict
		ops, allowed = []*pb.RequestOp{s.store.beside(name).findOp(1)}, lineRole
	case readRole:
		ops, allowed = []*pb.RequestOp{lock, unshared}, writeRole
	case permitRole:
		ops = []*pb.RequestOp{
			lock, s.store.all(name, readRole).findOp(1), s.store.all(name, lineRole).findOp(1),
		}
	}
	res, err := s.store.look(ctx, a.ttl, ops...)
	if a.id.role == lockRole && refusedBeside(err) {
		s.alone.add(name)
		return nil
	}
	if err != nil {
		return err
	}
	for _, found := range res.Responses {
		kvs := found.GetResponseRange().GetKvs()
		if _, err := s.store.decodeAll(name, allowed, kvs); err != nil {
			return err
		}
	}
	return nil
}

// none returns an error if there are any keys. Such keys belong to another kind of lock.
func none(kvs []*mvccpb.KeyValue) error {
	if kv := first(kvs); kv != nil {
		return conflict(kv)
	}
	return nil
}

// mistaken returns an error if a lock of another kind uses the name. It checks this, by calling
// conflicts, only if an attempt was refused and the hold's key is missing.
func (s *session) mistaken(ctx context.Context, a *attempt, key record) error {
	if !key.free() || a.seen == nil {
		return nil
	}
	return s.conflicts(ctx, a)
}

// acquireWrite acquires the lock for a writer. Like acquire, it first assumes that the lock is
// free.
func (s *session) acquireWrite(
	ctx context.Context, a *attempt, req backend.AcquireRequest,
) (res backend.AcquireResult, err error) {
	s.excludeOthers(a)
	at := scene{write: s.holds.guess(a.id)}
	if at.write.free() && s.looksFirst(a) {
		at, err = s.lookAround(ctx, a)
	}
	done, key, err := transact(ctx, s, a, at, err, s.foundScene, func(at *scene) (*change, error) {
		if others := at.others(req.Owner); len(others) > 0 {
			s.others.add(req.Name)
			over := req.Place <= 0 || at.write.owner == keptOf(a.id).owner
			var err error
			if !over {
				over, *at, err = s.leaveNote(ctx, a, req, *at)
			}
			if over {
				res.Remaining = s.longest(ctx, others)
				return nil, nil
			}
			return again, err
		}
		c := &change{old: at.write, next: at.write, only: a.only}
		if s.holds.remembers(noteOf(a.id)) {
			c.with = []*pb.RequestOp{del(s.store.keyOf(noteOf(a.id)))}
		}
		c.next.owner, c.next.count = req.Owner, at.write.count+1
		return c, nil
	})
	if !done {
		return res, err
	}
	s.others.remove(req.Name)
	if a.old.free() && a.with != nil {
		s.dropNote(noteOf(a.id))
	}
	return backend.AcquireResult{Acquired: true, Count: key.count}, nil
}

// others returns the leases of the holds that keep an owner from writing.
func (at scene) others(owner string) (leases []int64) {
	if !at.write.free() {
		if at.write.owner == owner {
			return nil
		}
		leases = append(leases, at.write.lease)
	}
	return append(leases, leasesOf(at.reads)...) // even the owner's own read keeps it from writing
}

// acquireRead acquires the lock for a reader. Like acquire, it first assumes that no writer or note
// keeps the reader out, unless [session.looksFirst] returns true.
func (s *session) acquireRead(
	ctx context.Context, a *attempt, req backend.AcquireRequest,
) (res backend.AcquireResult, err error) {
	w := s.waits.find(a.id, req.Waited)
	lock, notes := s.store.key(req.Name), s.store.all(req.Name, noteRole)
	unshared := s.store.unshared(req.Name)
	a.look = []*pb.RequestOp{rangeOp(lock), notes.findOp(0), unshared.findOp(1)}
	at := scene{mine: s.holds.guess(a.id), write: s.holds.guess(writeOf(a.id))}
	if at.mine.free() && at.write.free() && s.looksFirst(a) {
		at, err = s.lookAround(ctx, a)
	}
	done, _, err := transact(ctx, s, a, at, err, s.foundScene, func(at *scene) (*change, error) {
		if remaining, out := s.keptOut(ctx, a.id, w, *at); out {
			s.others.add(req.Name)
			s.waits.goOn(a.id, w, at.rev)
			res.Remaining = remaining
			return nil, nil
		}
		c := &change{old: at.mine, next: at.mine, only: same(lock, at.write)}
		if at.write.free() {
			c.only = append(c.only, unshared.empty())
			if len(at.notes) == 0 {
				c.only = append(c.only, notes.empty())
			}
		}
		c.next.owner, c.next.count = req.Owner, 1
		return c, nil
	})
	if !done {
		return res, err
	}
	s.others.remove(req.Name)
	s.waits.end(a.id)
	return backend.AcquireResult{Acquired: true, Count: 1}, nil
}

// heldRead returns the record of a read that its owner is about to release. The record may be out
// of date. heldRead also notes in the session that the owner no longer waits to read.
func (s *session) heldRead(ctx context.Context, a *attempt) (record, error) {
	s.waits.end(a.id)
	return s.find(ctx, a)
}

// keptOut reports whether a writer or a note keeps a reader out, and for how long.
func (s *session) keptOut(ctx context.Context, id holdID, w wait, at scene) (time.Duration, bool) {
	switch {
	case !at.mine.free() || at.write.owner == id.owner:
		return 0, false
	case !at.write.free():
		return s.longest(ctx, []int64{at.write.lease}), true
	default:
		return s.barred(ctx, w, at.notes)
	}
}

// seeReads finds out who reads and who writes. It prepares an attempt to write, reads the keys that
// this attempt needs, and returns the attempt and the scene.
func (s *session) seeReads(ctx context.Context, reads *attempt) (*attempt, scene, error) {
	a := &attempt{id: writeOf(reads.id)}
	s.excludeOthers(a)
	at, err := s.lookAround(ctx, a)
	return a, at, err
}

// forceReads ends all reads, unless there is a writer.
func (s *session) forceReads(
	ctx context.Context, a *attempt, _ backend.ForceReleaseRequest,
) (backend.ForceReleaseResult, error) {
	a, at, err := s.seeReads(ctx, a)
	done, _, err := transact(ctx, s, a, at, err, s.foundScene, func(at *scene) (*change, error) {
		if !at.write.free() || len(at.reads) == 0 {
			return nil, nil
		}
		// The reads are deleted only if no key has been created or changed since the readers were
		// listed. A new key might belong to another lock.
		reads := s.store.all(a.id.name, readRole)
		a.many = len(at.reads) > manyKeys
		return &change{
			only: []*pb.Compare{reads.asOf(at.rev)}, with: []*pb.RequestOp{reads.take()},
		}, nil
	})
	if !done {
		return backend.ForceReleaseResult{}, err
	}
	return s.forced(ctx, a, readRole)
}

// forced returns the result of a step that deleted all holds of a role.
func (s *session) forced(
	ctx context.Context, a *attempt, as role,
) (backend.ForceReleaseResult, error) {
	all, err := s.store.decodeAll(a.id.name, as, taken(a.done, 0))
	if err == nil {
		err = s.giveBackAll(ctx, a.id.name, as, all)
	}
	if err != nil {
		return backend.ForceReleaseResult{}, inDoubt(err)
	}
	return backend.ForceReleaseResult{Released: len(all) > 0}, nil
}

// giveBackAll revokes the leases of holds that were force-released.
func (s *session) giveBackAll(ctx context.Context, name string, as role, holds []record) error {
	errs := make([]error, len(holds))
	each(len(holds), func(i int) {
		errs[i] = s.giveBack(ctx, holdID{name, holds[i].owner, as}, holds[i].lease, 0)
	})
	return cmp.Or(errs...)
}

func (s *session) lookAtReads(
	ctx context.Context, a *attempt, req backend.LookRequest,
) (backend.LookResult, error) {
	_, at, err := s.seeReads(ctx, a)
	if err != nil || len(at.reads) == 0 {
		return backend.LookResult{}, err
	}
	res := backend.LookResult{Held: true}
	for _, r := range at.reads {
		if r.owner == req.Owner {
			res.Count = 1
		}
	}
	res.Remaining, err = s.last(ctx, leasesOf(at.reads))
	return res, err
}

// longest returns the time until the last of the given leases expires. It is negative if that isn't
// known, or if asking would take many requests. Waiters are notified of the expiry anyway.
func (s *session) longest(ctx context.Context, leases []int64) time.Duration {
	if len(leases) > mostAsked {
		return -1
	}
	left, err := s.last(ctx, leases)
	if err != nil {
		return -1
	}
	return left
}

// last returns the time until the last of the given leases expires. It is negative if one of the
// leases is 0, because that hold never ends.
func (s *session) last(ctx context.Context, leases []int64) (last time.Duration, err error) {
	left, err := s.remainingAll(ctx, leases)
	for i := range left {
		if leases[i] == 0 {
			return -1, nil
		}
		last = max(last, lasts(left[i].seconds))
	}
	return last, err
}

// A timeLeft contains the remaining time and the granted time of a lease, in seconds.
type timeLeft struct{ seconds, granted int64 }

func (s *session) remainingAll(ctx context.Context, leases []int64) ([]timeLeft, error) {
	left, errs := make([]timeLeft, len(leases)), make([]error, len(leases))
	each(len(leases), func(i int) {
		if leases[i] != 0 {
			left[i].seconds, left[i].granted, errs[i] = s.store.remaining(ctx, leases[i])
		}
	})
	if err := cmp.Or(errs...); err != nil {
		return nil, err
	}
	return left, nil
}

// each calls f for all numbers from 0 to n-1, several at a time.
func each(n int, f func(i int)) {
	if n == 1 {
		f(0)
		return
	}
	var all sync.WaitGroup
	free := make(chan struct{}, leasesAtOnce)
	for i := range n {
		free <- struct{}{}
		all.Go(func() {
			f(i)
			<-free
		})
	}
	all.Wait()
}

const (
	leasesAtOnce = 8
	mostAsked    = 16
)
