package etcdbackend

import (
	"context"
	"time"

	"github.com/seed951563bd/distsync/backend"
)

// session is one client's access to the store.
type session struct {
	store   *store
	holds   *holds
	keeper  *keeper
	watcher *watcher
}

var (
	_ backend.Session      = (*session)(nil)
	_ backend.Notifier     = (*session)(nil)
	_ backend.BatchRenewer = (*session)(nil)
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
func (s *session) find(ctx context.Context, id holdID) (record, error) {
	if guess := s.holds.guess(id); !guess.free() {
		return guess, nil
	}
	return s.store.read(ctx, id.name)
}

// Acquire looks first: to find the lock held then takes reads only. To grant a lease that turns out not
// to be needed would take two writes.
func (s *session) Acquire(ctx context.Context, req backend.AcquireRequest) (backend.AcquireResult, error) {
	if err := check(ctx, req.Kind); err != nil {
		return backend.AcquireResult{}, err
	}
	id, ttl := holdID{req.Name, req.Owner}, s.store.ttl(req.Lease)
	key, err := s.find(ctx, id)
	for err == nil {
		if !key.free() && key.owner != req.Owner {
			remaining, now, err := s.remaining(ctx, req.Name, key)
			switch {
			case err != nil:
				return backend.AcquireResult{Remaining: -1}, nil // a watch tells when it ends
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
	key, err := s.find(ctx, id)
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
			if done, key, err = s.delete(ctx, id.name, key); done {
				if err = s.giveBack(ctx, id, lease, ttl); err != nil {
					return backend.ReleaseResult{}, inDoubt(err)
				}
				return backend.ReleaseResult{Outcome: backend.Freed}, nil
			}
			if err != nil {
				s.holds.doubt(id)
			}
		}
	}
	return backend.ReleaseResult{}, err
}

func (s *session) ForceRelease(ctx context.Context, req backend.ForceReleaseRequest) (backend.ForceReleaseResult, error) {
	if err := check(ctx, req.Kind); err != nil {
		return backend.ForceReleaseResult{}, err
	}
	key, err := s.store.read(ctx, req.Name)
	for err == nil {
		if key.free() {
			return backend.ForceReleaseResult{}, nil
		}
		id, lease := holdID{req.Name, key.owner}, key.lease
		var done bool
		if done, key, err = s.delete(ctx, req.Name, key); done {
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
	key, err := s.store.read(ctx, req.Name)
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
		key, err = s.store.read(ctx, name)
	}
	// The server rounds down to seconds. This is wrong by half a second at most; and what is held, if only because
	// the server is late to end it, has some time left.
	return time.Duration(max(left, 0))*time.Second + time.Second/2, key, err
}

// write changes the key of a lock from one record to another of the same owner, which then lasts for
// ttl seconds from a moment after the call. It says whether it has done so, and how the key is now. If it has not,
// and there is no error, it is to be tried again with that.
func (s *session) write(ctx context.Context, id holdID, old, next record, ttl int64) (done bool, key record, err error) {
	if err := ended(ctx); err != nil {
		return false, record{}, err
	}
	next.lease, err = s.prolong(ctx, old, ttl)
	if err != nil {
		return false, record{}, notDone(err)
	}
	fresh := next.lease == 0
	if fresh {
		if next.lease, err = s.store.grant(ctx, ttl); err != nil {
			return false, record{}, err
		}
		if !s.holds.use(ctx, id, next.lease, ttl) {
			return false, record{}, ended(ctx)
		}
	}
	rev, key, err := s.store.swap(ctx, id.name, old, s.store.put(id.name, next))
	if rev != 0 {
		next.rev, next.created = rev, old.created
		if old.free() {
			next.created = rev
		}
		s.holds.wrote(id, next, ttl)
		if fresh {
			s.holds.used(id, next.lease)
			s.outlived(ctx, id, old.lease, ttl)
		}
		return true, next, nil
	}
	switch {
	case gone(err): // the lease ran out, and the key with it if it was there
		s.holds.forget(id, next.lease)
		s.holds.doubt(id)
		key, err = s.store.read(ctx, id.name)
	case err == nil:
		s.holds.doubt(id)
		if fresh {
			s.unneeded(ctx, id, next.lease)
		}
	case backend.KindOf(err) == backend.Unknown:
		s.holds.doubt(id)
		if fresh {
			s.holds.used(id, next.lease)
		}
	case fresh:
		s.unneeded(ctx, id, next.lease)
	}
	return false, key, err
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

// delete deletes the key of a lock if it is still so. It says whether it has done so and, if not, how
// the key is now.
func (s *session) delete(ctx context.Context, name string, old record) (done bool, key record, err error) {
	if err := ended(ctx); err != nil {
		return false, record{}, err
	}
	rev, key, err := s.store.swap(ctx, name, old, s.store.del(name))
	return rev != 0, key, err
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

// unneeded revokes a lease that nothing was attached to, and never will be. If that fails it runs out.
func (s *session) unneeded(ctx context.Context, id holdID, lease int64) {
	s.holds.forget(id, lease)
	_ = s.store.revoke(ctx, lease)
}

func (s *session) Close() error {
	s.keeper.close()
	s.watcher.close()
	return nil
}
