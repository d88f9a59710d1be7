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
	others  names // locks that others held when last seen; attempts on them begin with a look
	alone   names // the user has permission only for these locks' own keys
	waits   waits
	places  ownPlaces
	waiters *waiters
	keeper  *keeper
	watcher *watcher
}

func newSession(st *store) *session {
	s := &session{store: st, leases: newLeases(st), holds: newHolds(), keeper: newKeeper(st.lease)}
	s.waiters = newWaiters(st, s.leases)
	s.watcher = newWatcher(st.watch, s.waiters, st.options.checkEvery, func() {
		s.waiters.keep(s.keeper)
	})
	return s
}

// Capabilities implements [backend.Capable].
func (s *session) Capabilities() backend.Capabilities {
	return backend.Capabilities{
		Notifier: s, BatchRenewer: s, Inspector: s, Lister: s, Liner: s, Latcher: s,
		Steps: backend.StepsReturn, Settle: s.settle,
	}
}

// check returns the entry for a kind. It returns an error if the kind isn't supported or ctx has
// ended.
func check(ctx context.Context, kind backend.Kind) (*kind, error) {
	k := kindOf(kind)
	if k == nil {
		return nil, backend.UnknownKind("etcd", kind)
	}
	return k, ended(ctx)
}

// find returns the key that this session last wrote for a hold, as a guess. If there is none, it
// reads the key. A guess suffices for a step that is carried out only if the key is unchanged.
func (s *session) find(ctx context.Context, a *attempt) (record, error) {
	if guess := s.holds.guess(a.id); !guess.free() {
		return guess, nil
	}
	return s.read(ctx, a)
}

// read returns the key of a hold. If there is none, it checks that no lock of another kind uses the
// name.
func (s *session) read(ctx context.Context, a *attempt) (record, error) {
	key, err := s.store.read(ctx, a.id, a.ttl)
	if err == nil && key.free() {
		err = s.conflicts(ctx, a)
	}
	return key, err
}

func (s *session) Acquire(
	ctx context.Context, req backend.AcquireRequest,
) (backend.AcquireResult, error) {
	k, err := check(ctx, req.Kind)
	if err != nil {
		return backend.AcquireResult{}, err
	}
	return k.acquire(s, ctx, k.attempt(req.Name, req.Owner, s.store.ttl(req.Lease)), req)
}

// acquire tries to acquire a lock. It assumes that the lock is free and, if that is right, needs
// only one round trip. But if another owner held the lock when it was last seen, or if a lease
// would have to be granted, acquire reads the keys first.
func (s *session) acquire(
	ctx context.Context, a *attempt, req backend.AcquireRequest,
) (res backend.AcquireResult, err error) {
	s.excludeOthers(a)
	a.onlyUp = a.fair && !req.Reentry
	at := line{lock: s.holds.guess(a.id)}
	var told bool // a message will announce the grant, so the waiter needn't look again
	if a.fair && at.lock.free() && req.Place > 0 {
		// The watcher's line may be out of date. That does no harm, since the request for a place
		// checks whether another owner still holds the lock.
		known, ok := s.watcher.line(req.Name)
		if told = ok && known.place(req.Owner).free(); told {
			at = known
		}
	}
	if !told && at.lock.free() && s.looksFirst(a) {
		at, err = s.beginLine(ctx, a)
	}
	var last record // the last holder whose lease was found to have ended
	done, key, err := transact(ctx, s, a, at, err, s.foundLine, func(at *line) (*change, error) {
		holder, byPlace := at.holder()
		if !holder.free() && holder.owner != req.Owner {
			remaining, over, err := s.wait(ctx, a, req, at, &last, told)
			if over {
				res.Remaining = remaining
				return nil, nil
			}
			return again, err
		}
		next := at.lock
		next.owner = req.Owner
		if byPlace {
			next.count = 1
		}
		if !a.onlyUp || next.count == 0 {
			next.count++
		}
		return s.takes(a, *at, next), nil
	})
	if !done {
		return res, err
	}
	s.others.remove(req.Name)
	res = backend.AcquireResult{Acquired: true, Count: key.count}
	if a.token {
		res.Token = uint64(key.created)
	}
	s.left(ctx, a.id)
	return res, nil
}

// wait handles an attempt to acquire a lock that another owner holds. If the request asks for a
// place, wait puts the request's owner in line. over reports whether the attempt has ended. If so,
// remaining is how much longer the lock will be held, or negative if that isn't known or the hold
// never ends. Otherwise wait has looked again, and has stored in *at what it found. *last is the
// last holder whose lease was found to have ended. If told is true, a message will tell the owner
// when it gets the lock, so wait doesn't determine the remaining time.
func (s *session) wait(
	ctx context.Context, a *attempt, req backend.AcquireRequest, at *line, last *record, told bool,
) (remaining time.Duration, over bool, err error) {
	s.others.add(req.Name)
	dead, err := s.passOver(ctx, req.Name, *at)
	if dead && err == nil {
		*at, err = s.lookAtLine(ctx, a)
	}
	if dead || err != nil {
		return 0, false, err
	}
	holder, _ := at.holder()
	if a.fair && req.Place > 0 && holder.owner != keptOf(a.id).owner {
		var placed bool
		if placed, *at, err = s.takePlace(ctx, a, req.Place, *at); !placed {
			return 0, false, err
		}
	}
	if told {
		return -1, true, nil
	}
	remaining, over, err = s.ends(ctx, req.Name, *at)
	if err != nil {
		return -1, true, nil
	}
	if !over || holder == *last {
		return remaining, true, nil
	}
	*last = holder
	if *at, err = s.lookAtLine(ctx, a); err != nil {
		return -1, true, nil
	}
	return 0, false, nil
}

// beginLine looks at the lock for the first time in an attempt. If the lock isn't fair, beginLine
// reads only the lock's key.
func (s *session) beginLine(ctx context.Context, a *attempt) (line, error) {
	if a.fair {
		return s.lookAtLine(ctx, a)
	}
	key, err := s.store.read(ctx, a.id, a.ttl)
	return line{lock: key}, err
}

// looksFirst reports whether a look should precede an attempt, since the attempt would probably
// fail or need a new lease.
func (s *session) looksFirst(a *attempt) bool {
	return s.others.has(a.id.name) || !s.leases.ready(a.ttl)
}

func (s *session) Release(
	ctx context.Context, req backend.ReleaseRequest,
) (res backend.ReleaseResult, err error) {
	k, err := check(ctx, req.Kind)
	if err != nil {
		return backend.ReleaseResult{}, err
	}
	a := k.attempt(req.Name, req.Owner, s.store.ttl(req.Lease))
	key, err := k.held(s, ctx, a)
	done, _, err := transact(ctx, s, a, key, err, itself, func(key *record) (c *change, err error) {
		c, res, err = s.release(ctx, a, key, req)
		return c, err
	})
	if !done {
		return res, err
	}
	return s.released(ctx, a, req)
}

// release decides how to release a hold. If there is nothing to change, c is nil and res is the
// result.
func (s *session) release(
	ctx context.Context, a *attempt, key *record, req backend.ReleaseRequest,
) (c *change, res backend.ReleaseResult, err error) {
	keeps := req.Keep > 0 && a.keepable
	if a.permits {
		*key, err = s.whole(ctx, a, *key, req.Permits)
	}
	if a.fair && (key.free() || key.owner != req.Owner) {
		var freed bool
		if *key, freed, err = s.leaveLine(ctx, a, *key, keeps); freed {
			res.Outcome = backend.Freed
			return nil, res, inDoubt(s.giveBack(ctx, a.id, 0, a.ttl))
		}
	}
	c = &change{old: *key}
	switch {
	case err != nil:
		return nil, res, err
	case key.free() || key.owner != req.Owner:
		res, err = s.notHeld(ctx, a, *key, keeps)
		return nil, res, err
	case key.count > 1 && !a.permits:
		c.next = *key
		c.next.count--
	case keeps:
		c.keep = req.Keep
	case req.AskWaiting && a.polite:
		c.with = []*pb.RequestOp{s.store.someWaiting(req.Name)}
	}
	return c, res, nil
}

// notHeld returns the result of a release by an owner that holds nothing. key is the key that the
// release found.
func (s *session) notHeld(
	ctx context.Context, a *attempt, key record, keeps bool,
) (backend.ReleaseResult, error) {
	// This keeps a late request of this hold from acquiring the lock.
	if err := s.giveBack(ctx, a.id, 0, a.ttl); err != nil {
		return backend.ReleaseResult{}, notDone(err)
	}
	if keeps {
		if kept, err := s.isKept(ctx, a, key); kept || err != nil {
			return backend.ReleaseResult{Outcome: backend.Kept}, err
		}
	}
	return backend.ReleaseResult{Outcome: backend.NotHeld}, s.mistaken(ctx, a, key)
}

// released returns the result of a release that was carried out. If the lock is free and other
// calls of this client wait, the session goes to the end of the queue of waiting sessions.
func (s *session) released(
	ctx context.Context, a *attempt, req backend.ReleaseRequest,
) (res backend.ReleaseResult, err error) {
	switch {
	case a.keep > 0:
		s.joinAgain(req.Name)
		return backend.ReleaseResult{Outcome: backend.Kept}, inDoubt(s.givenBack(ctx, a))
	case a.next.owner != "":
		return backend.ReleaseResult{Outcome: backend.Left}, nil
	}
	if err := s.givenBack(ctx, a); err != nil {
		return backend.ReleaseResult{}, inDoubt(err)
	}
	res.Outcome = backend.Freed
	if !a.polite {
		return res, nil
	}
	if len(a.done.Responses) > 1 {
		res.Counted, res.Waiting = true, s.waiters.others(req.Name,
			a.done.Responses[1].GetResponseRange().GetKvs())
	}
	if res.Waiting > 0 {
		s.others.add(req.Name) // one of the waiting sessions will soon have the lock
	}
	s.joinAgain(req.Name)
	return res, nil
}

// guessed returns the key that this session last wrote for a hold.
func (s *session) guessed(_ context.Context, a *attempt) (record, error) {
	return s.holds.guess(a.id), nil
}

// givenBack reuses or revokes the leases of a hold that has just been released.
func (s *session) givenBack(ctx context.Context, a *attempt) error {
	attached := a.old.lease
	if spare, ok := s.holds.spare(a.id, attached); ok {
		s.leases.put(spare)
		attached = 0
	}
	return s.giveBack(ctx, a.id, attached, a.ttl)
}

// joinAgain puts the session at the end of the queue for a lock, if it is subscribed and has no
// key.
func (s *session) joinAgain(name string) {
	if s.waiters.subscribed(name) {
		s.leases.background(func(ctx context.Context) { s.waiters.join(ctx, name) })
	}
}

func (s *session) ForceRelease(
	ctx context.Context, req backend.ForceReleaseRequest,
) (backend.ForceReleaseResult, error) {
	k, err := check(ctx, req.Kind)
	if err != nil {
		return backend.ForceReleaseResult{}, err
	}
	return k.force(s, ctx, k.attempt(req.Name, "", 0), req)
}

func (s *session) Look(ctx context.Context, req backend.LookRequest) (backend.LookResult, error) {
	k, err := check(ctx, req.Kind)
	if err != nil {
		return backend.LookResult{}, err
	}
	return k.look(s, ctx, k.attempt(req.Name, req.Owner, 0), req)
}

// forceWrite force-releases a writer's hold, and the same owner's read hold, if there is one.
func (s *session) forceWrite(
	ctx context.Context, a *attempt, _ backend.ForceReleaseRequest,
) (backend.ForceReleaseResult, error) {
	key, err := s.read(ctx, a)
	id := a.id
	done, _, err := transact(ctx, s, a, key, err, itself, func(key *record) (*change, error) {
		if key.free() {
			return nil, s.mistaken(ctx, a, *key)
		}
		id.owner, _ = key.keptFrom()
		read := span{key: s.store.keyOf(readOf(id))}
		return &change{old: *key, with: []*pb.RequestOp{read.take()}}, nil
	})
	if !done {
		return backend.ForceReleaseResult{}, err
	}
	err = s.giveBack(ctx, id, a.old.lease, 0)
	if read := first(taken(a.done, 1)); read != nil && err == nil {
		err = s.giveBack(ctx, readOf(id), read.Lease, 0)
	}
	if err != nil {
		return backend.ForceReleaseResult{}, inDoubt(err)
	}
	return backend.ForceReleaseResult{Released: true}, nil
}

// lasts returns how much longer a hold lasts, given the remaining seconds of its lease. The server
// rounds these down, so the result is off by at most half a second. The result is always more than
// 0, since a hold that the server ends late still exists.
func lasts(left int64) time.Duration {
	return time.Duration(max(left-spareTTL, 0))*time.Second + time.Second/2
}

// write changes the key of a hold from one record to another. The key then lasts for at least the
// lock's lease, measured from the beginning of the call. done reports whether write changed the
// key, and key is the current key. If write didn't change it, and there is no error, the caller
// tries again with that key.
func (s *session) write(
	ctx context.Context, a *attempt, old, next record,
) (done bool, key record, err error) {
	if err := ended(ctx); err != nil {
		return false, record{}, err
	}
	l, err := s.prolong(ctx, a, old)
	if err != nil {
		return false, record{}, notDone(err)
	}
	if l.id != 0 {
		next.lease = l.id
		return s.put(ctx, a, old, next, l, false)
	}
	return s.writeFresh(ctx, a, old, next)
}

// writeFresh is like write, but uses a lease to which the key wasn't attached before.
func (s *session) writeFresh(
	ctx context.Context, a *attempt, old, next record,
) (done bool, key record, err error) {
	begin := time.Now()
	l, err := s.leases.get(ctx, a.ttl)
	if err != nil {
		return false, record{}, err
	}
	if !s.holds.use(ctx, a.id, l) {
		s.leases.put(l)
		return false, record{}, ended(ctx)
	}
	next.lease = l.id
	if begin.Sub(l.since) > spareTime {
		done, key, err = s.putAndKeep(ctx, a, old, next, l)
	} else {
		done, key, err = s.put(ctx, a, old, next, l, true)
	}
	if done {
		s.outlived(ctx, a.id, old.lease, a.ttl)
	}
	return done, key, err
}

// putAndKeep writes a key and attaches it to a lease that began some time ago. At the same time it
// renews that lease.
func (s *session) putAndKeep(
	ctx context.Context, a *attempt, old, next record, l lease,
) (done bool, key record, err error) {
	begin := time.Now()
	kept := make(chan bool, 1)
	asks := []*ask{{lease: l.id, answer: func(ttl int64, err error) {
		kept <- err == nil && ttl == l.ttl
	}}}
	s.keeper.send(asks, l.ttl)
	stop := context.AfterFunc(ctx, func() { s.keeper.abandon(asks, ctx.Err()) })
	defer stop()
	done, key, err = s.put(ctx, a, old, next, l, true)
	if !done {
		return done, key, err
	}
	if <-kept {
		s.holds.renewed(a.id, l.id, l.ttl, begin)
		return true, key, nil
	}
	// The lock is held, but not for long enough. So attach the key to a new lease, which needs no
	// renewal yet.
	s.leases.distrust()
	for done = false; !done; {
		if key.free() || key.owner != a.id.owner || key.count != next.count {
			return false, record{}, inDoubt(errShort)
		}
		if done, key, err = s.writeFresh(ctx, a, key, key); err != nil {
			return false, record{}, inDoubt(err)
		}
	}
	return true, key, nil
}

// put changes a key from one record to another, and attaches it to l. fresh says whether the key is
// attached to l for the first time.
func (s *session) put(
	ctx context.Context, a *attempt, old, next record, l lease, fresh bool,
) (done bool, key record, err error) {
	id := a.id
	if id.role == permitRole && !a.tells {
		next.said = old.told()
	}
	ops := []*pb.RequestOp{s.store.put(id, next)}
	var own []byte
	if old.free() {
		ops = append(ops, a.with...)
		if id.role != readRole {
			own = s.waiters.own(id.name)
		}
	}
	if own != nil {
		ops = append(ops, del(own))
	}
	swapped, key, repeated, err := s.swapOnLease(ctx, a, old, ops, l, fresh)
	if old.free() && id.role == lockRole && !a.fair && (own != nil || a.only != nil) &&
		refusedBeside(err) {
		s.waiters.served(id.name, own) // the user can't have created that key
		s.alone.add(id.name)
		a.only, a.look = nil, nil
		swapped, key, repeated, err = s.swapOnLease(ctx, a, old, ops[:1], l, fresh)
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
		done = true // the first request was carried out
	case repeated: // the first request might still be carried out
		err = errSilent
	case gone(err): // the lease has ended, and with it the key, if there was one
		s.holds.forget(id, l.id)
		s.holds.doubt(id)
		s.leases.distrust()
		key, err = s.store.read(ctx, id, a.ttl)
		return false, key, err
	}
	if done {
		s.waiters.served(id.name, own)
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

// swapOnLease writes a key. If the server doesn't answer and the lease is fresh, it sends the
// request again, so that another member answers. No other request attaches a key to that lease, so
// the lease of the current key shows whether an earlier request was carried out. repeated reports
// whether several requests were sent. If so, the caller must treat the lease as suspect.
func (s *session) swapOnLease(
	ctx context.Context, a *attempt, old record, ops []*pb.RequestOp, l lease, fresh bool,
) (done *pb.TxnResponse, key record, repeated bool, err error) {
	for try := range 3 {
		done, key, err = s.store.swap(ctx, a, old, ops...)
		if !fresh || !errors.Is(err, errSilent.Err) {
			return done, key, try > 0, err
		}
	}
	return done, key, true, err
}

// prolong renews the lease of a key, and returns that lease. It returns the zero lease if the key
// needs a new one, because the key has no lease, the lease has ended, or its length isn't a.ttl. If
// a.onlyUp is set (for a read, a write or a repeated request), the hold must not become shorter. So
// if the lease has another length, but lasts for at least a.ttl more seconds, prolong returns it
// without renewing it.
func (s *session) prolong(ctx context.Context, a *attempt, key record) (lease, error) {
	id, ttl := a.id, a.ttl
	if key.free() || key.lease == 0 || s.keeper.closed() {
		return lease{}, nil
	}
	begin := time.Now()
	if a.onlyUp && !s.lastsFor(id, key, ttl) {
		left, granted, err := s.store.remaining(ctx, key.lease)
		switch {
		case err != nil:
			return lease{}, err
		case left >= ttl:
			return lease{key.lease, granted, begin.Add(time.Duration(left-granted) * time.Second)},
				nil
		case granted != ttl:
			return lease{}, nil
		}
	}
	granted, err := s.keeper.keepAlive(ctx, key.lease, ttl)
	if err != nil || granted != ttl {
		return lease{}, err
	}
	return lease{key.lease, ttl, begin}, nil
}

// lastsFor reports whether the lease of a hold is known to have a length of ttl seconds.
func (s *session) lastsFor(id holdID, key record, ttl int64) bool {
	l, ok := s.holds.granted(id, key.lease)
	return ok && l.ttl == ttl
}

// delete deletes the key of a hold.
func (s *session) delete(ctx context.Context, a *attempt) (done bool, key record, err error) {
	ops := a.with
	if !a.old.free() {
		ops = append([]*pb.RequestOp{del(s.store.keyOf(a.id))}, a.with...)
	}
	a.done, key, err = s.store.swap(ctx, a, a.old, ops...)
	if len(a.with) > 0 && a.id.role == lockRole && refusedBeside(err) {
		a.done, key, err = s.store.swap(ctx, a, a.old, ops[0])
	}
	return a.done != nil, key, err
}

// refusedBeside reports whether a transaction might have been refused because of keys other than
// the lock's own. For example, the user might lack permission for the keys of waiters.
func refusedBeside(err error) bool {
	return err != nil && backend.KindOf(err) == backend.Refused &&
		!errors.Is(err, backend.ErrConflict)
}

// giveBack revokes all leases of a hold whose key no longer exists in the store.
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

// outlived revokes the former lease of a hold's key, after the key was attached to another lease.
// If that fails, the lease is revoked when the hold is released.
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
	s.leases.close(s.waiters.close())
	s.keeper.close()
	s.watcher.close()
	return nil
}

// settle waits for work that steps left behind in goroutines, such as revoking leases.
func (s *session) settle() { s.leases.settle() }
