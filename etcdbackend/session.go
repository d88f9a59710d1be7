package etcdbackend

import (
	"context"
	"errors"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/seed951563bd/distsync/backend"
)

// session is one client's access to the store.
type session struct {
	store   *store
	leases  *leases
	holds   *holds
	others  others
	line    *line
	keeper  *keeper
	watcher *watcher
}

func newSession(st *store) *session {
	s := &session{store: st, leases: newLeases(st), holds: newHolds(), keeper: newKeeper(st.lease)}
	s.line = newLine(st, s.leases)
	s.watcher = newWatcher(st.watch, s.line, st.options.checkEvery, func() { s.line.keep(s.keeper) })
	return s
}

var (
	_ backend.Session      = (*session)(nil)
	_ backend.Notifier     = (*session)(nil)
	_ backend.BatchRenewer = (*session)(nil)
	_ backend.Leavable     = (*session)(nil)
)

// check returns an error if a request must not be sent.
func check(ctx context.Context, kind backend.Kind) error {
	if kind != backend.Exclusive {
		return errKind
	}
	return ended(ctx)
}

// find returns the key of a hold's lock, or a guess: what this session wrote last. A guess is good
// enough for what is only done if the key is still so.
func (s *session) find(ctx context.Context, id holdID, ttl int64) (record, error) {
	if guess := s.holds.guess(id); !guess.free() {
		return guess, nil
	}
	return s.store.read(ctx, id.name, ttl)
}

// Acquire takes the lock to be free if nothing speaks against it: then it is acquired in one round trip.
// It looks first where another had it when it was last seen, and where a lease would have to be granted.
func (s *session) Acquire(ctx context.Context, req backend.AcquireRequest) (backend.AcquireResult, error) {
	if err := check(ctx, req.Kind); err != nil {
		return backend.AcquireResult{}, err
	}
	id, ttl := holdID{req.Name, req.Owner}, s.store.ttl(req.Lease)
	key := s.holds.guess(id)
	var err error
	if key.free() && (s.others.have(req.Name) || !s.leases.ready(ttl)) {
		key, err = s.store.read(ctx, req.Name, ttl)
	}
	for err == nil {
		if !key.free() && key.owner != req.Owner {
			s.others.hold(req.Name)
			remaining, now, err := s.remaining(ctx, req.Name, key)
			switch {
			case err != nil:
				return backend.AcquireResult{Remaining: -1}, nil
			case now == key:
				return backend.AcquireResult{Remaining: remaining}, nil
			}
			key = now
			continue
		}
		next := key
		next.owner, next.count = req.Owner, key.count+1
		var done bool
		if done, key, err = s.write(ctx, id, key, next, ttl); done {
			s.others.left(req.Name)
			return backend.AcquireResult{Acquired: true, Count: key.count, Token: uint64(key.created)}, nil
		}
	}
	return backend.AcquireResult{}, err
}

func (s *session) Release(ctx context.Context, req backend.ReleaseRequest) (backend.ReleaseResult, error) {
	if err := check(ctx, req.Kind); err != nil {
		return backend.ReleaseResult{}, err
	}
	id, ttl := holdID{req.Name, req.Owner}, s.store.ttl(req.Lease)
	key, err := s.find(ctx, id, ttl)
	for err == nil {
		var done bool
		switch {
		case key.free() || key.owner != req.Owner:
			// A request of this hold that comes late must not lock any more.
			if err = s.giveBack(ctx, id, 0, ttl); err != nil {
				return backend.ReleaseResult{}, notDone(err)
			}
			return backend.ReleaseResult{Outcome: backend.NotHeld}, nil
		case key.count > 1:
			next := key
			next.count--
			if done, key, err = s.write(ctx, id, key, next, ttl); done {
				return backend.ReleaseResult{Outcome: backend.Left}, nil
			}
		default:
			lease := key.lease
			var ops []*pb.RequestOp
			if req.AskWaiting {
				ops = append(ops, s.store.countWaiting(req.Name))
			}
			var freed *pb.TxnResponse
			if freed, key, err = s.delete(ctx, id.name, ttl, key, ops...); freed != nil {
				if spare, ok := s.holds.spare(id, lease); ok {
					s.leases.put(spare)
					lease = 0
				}
				if err = s.giveBack(ctx, id, lease, ttl); err != nil {
					return backend.ReleaseResult{}, inDoubt(err)
				}
				return s.freed(req, freed), nil
			}
			if err != nil {
				s.holds.doubt(id)
				s.holds.suspect(id, lease)
			}
		}
	}
	return backend.ReleaseResult{}, err
}

// freed returns the answer to a release that has freed the lock. If others of this session's client wait
// they take the last place in the line.
func (s *session) freed(req backend.ReleaseRequest, done *pb.TxnResponse) backend.ReleaseResult {
	res := backend.ReleaseResult{Outcome: backend.Freed}
	if len(done.Responses) > 1 {
		res.Counted, res.Waiting = true, s.line.others(req.Name, waiting(done, 1))
	}
	if res.Waiting > 0 {
		s.others.hold(req.Name) // soon
	}
	if s.line.subscribed(req.Name) {
		s.leases.background(func(ctx context.Context) { s.line.stand(ctx, req.Name) })
	}
	return res
}

func (s *session) ForceRelease(ctx context.Context, req backend.ForceReleaseRequest) (backend.ForceReleaseResult, error) {
	if err := check(ctx, req.Kind); err != nil {
		return backend.ForceReleaseResult{}, err
	}
	key, err := s.store.read(ctx, req.Name, 0)
	for err == nil {
		if key.free() {
			return backend.ForceReleaseResult{}, nil
		}
		id, lease := holdID{req.Name, key.owner}, key.lease
		var freed *pb.TxnResponse
		if freed, key, err = s.delete(ctx, req.Name, 0, key); freed != nil {
			if err := s.giveBack(ctx, id, lease, 0); err != nil {
				return backend.ForceReleaseResult{}, inDoubt(err)
			}
			return backend.ForceReleaseResult{Released: true}, nil
		}
	}
	return backend.ForceReleaseResult{}, err
}

func (s *session) Look(ctx context.Context, req backend.LookRequest) (backend.LookResult, error) {
	if err := check(ctx, req.Kind); err != nil {
		return backend.LookResult{}, err
	}
	key, err := s.store.read(ctx, req.Name, 0)
	for err == nil {
		if key.free() {
			return backend.LookResult{}, nil
		}
		res := backend.LookResult{Held: true}
		if key.owner == req.Owner {
			res.Count = key.count
		}
		var now record
		if res.Remaining, now, err = s.remaining(ctx, req.Name, key); err == nil && now == key {
			return res, nil
		}
		key = now
	}
	return backend.LookResult{}, err
}

// remaining returns how long a lock that is held lasts; negative if it doesn't end. If its lease
// turns out to be over, it reads the key again, which may have been deleted, or moved to another
// lease. In any case it returns how the key is now.
func (s *session) remaining(ctx context.Context, name string, key record) (time.Duration, record, error) {
	if key.lease == 0 {
		return -1, key, nil
	}
	left, err := s.store.remaining(ctx, key.lease)
	if err == nil && left < 0 {
		key, err = s.store.read(ctx, name, 0)
	}
	// The server rounds down to seconds. This is wrong by half a second at most; and what is held, if only because
	// the server is late to end it, has some time left.
	return time.Duration(max(left-spareTTL, 0))*time.Second + time.Second/2, key, err
}

// write changes the key of a lock from one record to another of the same owner, which then lasts for
// ttl seconds from a moment after the call. It says whether it has done so, and how the key is now. If it has not,
// and there is no error, it is to be tried again with that.
func (s *session) write(ctx context.Context, id holdID, old, next record, ttl int64) (done bool, key record, err error) {
	if err := ended(ctx); err != nil {
		return false, record{}, err
	}
	begin := time.Now()
	if next.lease, err = s.prolong(ctx, old, ttl); err != nil {
		return false, record{}, notDone(err)
	}
	if next.lease != 0 {
		return s.put(ctx, id, old, next, lease{next.lease, ttl, begin}, false)
	}
	return s.writeFresh(ctx, id, old, next, ttl)
}

// writeFresh is write with a lease that the key was not attached to before.
func (s *session) writeFresh(ctx context.Context, id holdID, old, next record, ttl int64) (done bool, key record, err error) {
	begin := time.Now()
	l, err := s.leases.get(ctx, ttl)
	if err != nil {
		return false, record{}, err
	}
	if !s.holds.use(ctx, id, l) {
		s.leases.put(l)
		return false, record{}, ended(ctx)
	}
	next.lease = l.id
	if begin.Sub(l.since) > spareTime {
		done, key, err = s.putAndKeep(ctx, id, old, next, l)
	} else {
		done, key, err = s.put(ctx, id, old, next, l, true)
	}
	if done {
		s.outlived(ctx, id, old.lease, ttl)
	}
	return done, key, err
}

// putAndKeep writes a key that it attaches to a lease which began some time ago, and lets that begin anew
// at the same time.
func (s *session) putAndKeep(ctx context.Context, id holdID, old, next record, l lease) (done bool, key record, err error) {
	begin := time.Now()
	kept := make(chan bool, 1)
	asks := []*ask{{lease: l.id, answer: func(ttl int64, err error) { kept <- err == nil && ttl == l.ttl }}}
	s.keeper.send(asks, l.ttl)
	stop := context.AfterFunc(ctx, func() { s.keeper.abandon(asks, ctx.Err()) })
	defer stop()
	done, key, err = s.put(ctx, id, old, next, l, true)
	if !done {
		return done, key, err
	}
	if <-kept {
		s.holds.renewed(id, l.id, l.ttl, begin)
		return true, key, nil
	}
	// The lock is held, but not for long enough. A lease that is granted now need not be kept.
	s.leases.distrust()
	for done = false; !done; {
		if key.free() || key.owner != id.owner || key.count != next.count {
			return false, record{}, inDoubt(errShort)
		}
		if done, key, err = s.writeFresh(ctx, id, key, key, l.ttl); err != nil {
			return false, record{}, inDoubt(err)
		}
	}
	return true, key, nil
}

// put changes a key from one record to another, which is attached to a lease: the one that it was
// attached to before, or a fresh one.
func (s *session) put(ctx context.Context, id holdID, old, next record, l lease, fresh bool) (done bool, key record, err error) {
	ops := []*pb.RequestOp{s.store.put(id.name, next)}
	var place []byte
	if old.free() {
		place = s.line.own(id.name)
	}
	if place != nil {
		ops = append(ops, del(place))
	}
	swapped, key, repeated, err := s.swapOnLease(ctx, id, old, ops, l, fresh)
	if place != nil && refusedBeside(err) {
		s.line.served(id.name, place) // it isn't there, then
		swapped, key, repeated, err = s.swapOnLease(ctx, id, old, ops[:1], l, fresh)
	}
	if repeated {
		s.holds.suspect(id, l.id)
	}
	switch {
	case swapped != nil:
		rev := swapped.Header.GetRevision()
		key, key.rev, key.created = next, rev, old.created
		if old.free() {
			key.created = rev
		}
		done = true
	case repeated && err == nil && key.owner == id.owner && key.lease == l.id:
		done = true // the first time
	case repeated: // what was sent first may yet be carried out
		err = errSilent
	case gone(err): // the lease ran out, and the key with it if it was there
		s.holds.forget(id, l.id)
		s.holds.doubt(id)
		s.leases.distrust()
		key, err = s.store.read(ctx, id.name, l.ttl)
		return false, key, err
	}
	if done {
		s.line.served(id.name, place)
		s.holds.wrote(id, key, l)
		return true, key, nil
	}
	s.holds.doubt(id)
	switch {
	case err != nil && backend.KindOf(err) == backend.Unknown:
		s.holds.suspect(id, l.id)
	case fresh:
		s.holds.forget(id, l.id)
		s.leases.put(l)
	}
	return false, key, err
}

// swapOnLease writes a key. If a member says nothing it is another's turn where the lease is fresh, and so
// tells whether it was done the first time: nobody else attaches a key to it. It says whether there
// was more than one turn: then the lease is suspect for good.
func (s *session) swapOnLease(ctx context.Context, id holdID, old record, ops []*pb.RequestOp, l lease, fresh bool) (done *pb.TxnResponse, key record, repeated bool, err error) {
	for turn := range 3 {
		done, key, err = s.store.swap(ctx, id.name, l.ttl, old, ops...)
		if !fresh || !errors.Is(err, errSilent.Err) {
			return done, key, turn > 0, err
		}
	}
	return done, key, true, err
}

// prolong lets the lease of a key begin anew, and returns it. It returns 0 if the key needs another:
// it has none, or one of another length, or one that has ended.
func (s *session) prolong(ctx context.Context, key record, ttl int64) (int64, error) {
	if key.free() || key.lease == 0 || s.keeper.closed() {
		return 0, nil
	}
	granted, err := s.keeper.keepAlive(ctx, key.lease, ttl)
	if err != nil || granted != ttl {
		return 0, err
	}
	return key.lease, nil
}

// delete deletes the key of a lock if it is still so, and carries out ops. It returns nil and how the key
// is now if it has not.
func (s *session) delete(ctx context.Context, name string, ttl int64, old record, ops ...*pb.RequestOp) (done *pb.TxnResponse, key record, err error) {
	if err := ended(ctx); err != nil {
		return nil, record{}, err
	}
	deletion := del(s.store.key(name))
	done, key, err = s.store.swap(ctx, name, ttl, old, append([]*pb.RequestOp{deletion}, ops...)...)
	if len(ops) > 0 && refusedBeside(err) {
		done, key, err = s.store.swap(ctx, name, ttl, old, deletion)
	}
	return done, key, err
}

// refusedBeside says whether a transaction may have been refused for what it does beside a lock's own
// key: perhaps its user may not use the keys of those who wait.
func refusedBeside(err error) bool {
	return err != nil && backend.KindOf(err) == backend.Refused && !errors.Is(err, backend.ErrConflict)
}

// giveBack revokes all leases of a hold that isn't in the store any more.
func (s *session) giveBack(ctx context.Context, id holdID, lease, ttl int64) error {
	leases := s.holds.take(id, lease)
	for i, lease := range leases {
		if err := s.store.revoke(ctx, lease); err != nil {
			s.holds.keepLeases(id, leases[i:], ttl)
			return err
		}
	}
	return nil
}

// outlived revokes a lease that the key was moved away from. If that fails it is done when the hold
// is given back.
func (s *session) outlived(ctx context.Context, id holdID, lease, ttl int64) {
	if lease == 0 {
		return
	}
	if s.store.revoke(ctx, lease) == nil {
		s.holds.forget(id, lease)
	} else {
		s.holds.keepLeases(id, []int64{lease}, ttl)
	}
}

func (s *session) Close() error {
	s.leases.close(s.line.close())
	s.keeper.close()
	s.watcher.close()
	return nil
}

// Settle waits for what goes on behind steps that have returned: leases that are granted or revoked.
func (s *session) Settle() { s.leases.settle() }
