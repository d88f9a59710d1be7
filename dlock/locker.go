package dlock

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/seed951563bd/distsync/backend"
)

// Locker is a distributed lock with the manners of a [sync.Mutex]. It implements [sync.Locker].
//
// Calls that name no owner are plain calls: one hold at a time, from a lock to its unlock, whoever
// makes either. A second Lock waits, in the same goroutine too, and any goroutine may unlock. Once
// locked, a Locker stays shut until it is unlocked, even when the hold has been lost meanwhile:
// otherwise a late unlock would release a hold that another goroutine has since taken. Another
// Locker for the same name, from the same client or not, is a separate contender and isn't kept
// waiting by that.
//
// Making a Locker is cheap and does no I/O: in a handler make one per request.
//
// Calls whose context names an owner (see [WithOwner]), or comes from a [Locker.Do] of the same
// lock, are made in that owner's name, and re-enter what it holds. Unlock with the context that you
// locked with.
//
// A Locker is safe for concurrent use. It must not be copied.
type Locker struct {
	client *Client
	name   string
	owner  Owner // whose the plain calls are; zero: the Locker's

	// Guarded by Client.mu.
	gate   gate    // shut from a plain lock to its unlock
	hold   *hold   // of plain calls
	yields instant // until when the next is to let other clients have a turn
}

// Name returns the lock's name.
func (l *Locker) Name() string { return l.name }

// For returns a Locker for the same lock whose plain calls are made in the name of o: it can be
// locked again while o holds it, and is free after as many unlocks. It panics if o is zero.
func (l *Locker) For(o Owner) *Locker {
	o.mustBeSomebody("For")
	bound := l.client.Locker(l.name)
	bound.owner = o
	return bound
}

// Lock waits until it has the lock, which is then renewed until [Locker.Unlock]. While the store
// can't be reached or returns errors, it keeps trying and logs. It panics where waiting can't help,
// with an [*Error]: one that wraps [ErrClosed] if the client is or gets closed, [ErrConflict] if
// the lock's name holds something that is not a lock, or one that says that the name is empty.
func (l *Locker) Lock() {
	var tries backoff
	ctx := context.Background()
	for {
		_, err := l.acquire(ctx, l.caller(ctx), acquireOptions{patient: true}, nil)
		if err == nil {
			return
		}
		if errors.Is(err, ErrClosed) || errors.Is(err, ErrConflict) || errors.Is(err, errEmptyName) {
			panic(l.wrap("lock", err))
		}
		l.client.logger.Warn("dlock: cannot lock yet", "name", l.name, "err", err)
		l.client.pause(ctx, tries.next(firstBackoff, l.client.lease/3))
	}
}

// Unlock releases the lock. It panics, with an [*Error] that wraps [ErrNotHeld], if the caller
// never had it. If it was lost, or the store can't be reached within 5 s, that is logged; in the
// latter case the release continues in the background.
func (l *Locker) Unlock() {
	err := l.unlock(context.Background())
	switch {
	case errors.Is(err, ErrNotHeld):
		panic(l.wrap("unlock", err))
	case err != nil:
		l.client.logger.Warn("dlock: unlock", "name", l.name, "err", err)
	}
}

// LockContext waits until it has the lock, as long as ctx and [Wait] allow. The lock is renewed
// until it is unlocked, unless [Lease] is given.
//
// Its errors are that of ctx, and its cause if it has another; [ErrNotAcquired] after the wait;
// [ErrLost] if the caller's owner held the lock and lost it while the call re-entered it, or if the
// wait ends on a Locker whose last hold was lost and nobody has unlocked it; [ErrClosed];
// [ErrConflict]; and what the store refuses for good. Where the store was failing while the call
// waited, the error wraps the last of its errors too.
func (l *Locker) LockContext(ctx context.Context, opts ...AcquireOption) error {
	_, err := l.acquire(ctx, l.caller(ctx), acquireOptions{}, opts)
	return l.wrap("lock", err)
}

// TryLock takes the lock if that is possible now, or within [Wait]. False with a nil error means
// exactly one thing: another holds it. The lock is renewed until it is unlocked, unless [Lease] is
// given. Errors are those of [Locker.LockContext], and [ErrLost] if the last hold of this Locker
// was lost, and nobody has unlocked it yet.
func (l *Locker) TryLock(ctx context.Context, opts ...AcquireOption) (bool, error) {
	_, err := l.acquire(ctx, l.caller(ctx), acquireOptions{bounded: true}, opts)
	if isHeld(err) {
		return false, nil
	}
	return err == nil, l.wrap("trylock", err)
}

// UnlockContext releases the lock, or one hold of an owner that has several. It does so even if ctx
// has ended before the call. It tries for at most 5 s or what is left of the lease, and no longer
// than ctx allows; if the store hasn't answered by then the error says so, the caller no longer has
// the lock, and the release continues in the background.
//
// It returns [ErrNotHeld] if the caller never had the lock, and [ErrLost] if the hold was over
// before. The client remembers at most 1,024 losses of owners, for ten of its leases each; after
// that the error is ErrNotHeld.
func (l *Locker) UnlockContext(ctx context.Context) error {
	return l.wrap("unlock", l.unlock(ctx))
}

// ForceUnlock frees the lock in the store, whoever holds it, and says whether anybody did. It is
// for operators: the holder may still be in its critical section. A holder of this client is told
// at once, one of another client when it next renews, and one with a fixed [Lease] when that ends;
// until then nothing keeps it apart from the next. It sends one request; after an error of the
// store it is unknown whether that was carried out.
func (l *Locker) ForceUnlock(ctx context.Context) (bool, error) {
	if err := l.usable(ctx); err != nil {
		return false, l.wrap("forceunlock", err)
	}
	c := l.client
	c.mu.Lock()
	var mine *claim
	if h := c.holds[l.name]; h != nil {
		mine = h.claim
	}
	c.mu.Unlock()
	res, err := step(ctx, c, backend.Session.ForceRelease, backend.ForceReleaseRequest{Name: l.name})
	if err != nil {
		return false, l.wrap("forceunlock", l.stepError(ctx, err))
	}
	c.mu.Lock()
	defer c.unlock()
	if mine != nil {
		c.lose(mine.holder, ErrLost)
	}
	if h := c.holds[l.name]; h != nil && h.watched {
		c.schedule(&h.alarm, c.now()) // granted meanwhile: it may have been struck
	}
	c.wake(l.name)
	return res.Released, nil
}

// IsLocked asks the store whether anybody holds the lock: one round trip. Like those of the other
// questions its errors are that of ctx, [ErrClosed], [ErrConflict], and what the store says.
func (l *Locker) IsLocked(ctx context.Context) (bool, error) {
	res, err := l.look(ctx, "")
	return res.Held, l.wrap("islocked", err)
}

// TTL asks the store how long the lock lasts if nobody renews it: 0 if it is free, negative if it
// never ends or the store doesn't know.
func (l *Locker) TTL(ctx context.Context) (time.Duration, error) {
	res, err := l.look(ctx, "")
	return res.Remaining, l.wrap("ttl", err)
}

// IsHeld says whether the caller holds the lock, both by this client's own clock and in the store.
// With an error it is false.
func (l *Locker) IsHeld(ctx context.Context) (bool, error) {
	n, err := l.held(ctx)
	return n > 0, l.wrap("isheld", err)
}

// HoldCount returns how often the caller must unlock the lock to release it fully: 0 if it isn't
// held, either by this client's own clock or in the store.
func (l *Locker) HoldCount(ctx context.Context) (int, error) {
	n, err := l.held(ctx)
	return n, l.wrap("holdcount", err)
}

// Lost returns a channel that is closed when the caller's present hold is lost or the client is
// closed. It is closed already if the caller doesn't hold the lock, and never closed by an unlock.
func (l *Locker) Lost(ctx context.Context) <-chan struct{} {
	p := l.caller(ctx)
	c := l.client
	c.mu.Lock()
	defer c.unlock()
	h := l.present(p)
	if h == nil {
		over := make(chan struct{})
		close(over)
		return over
	}
	if h.over == nil {
		h.over = make(chan struct{})
	}
	return h.over
}

// acquire gets the lock for a party.
func (l *Locker) acquire(ctx context.Context, p party, o acquireOptions, opts []AcquireOption) (*hold, error) {
	if err := l.usable(ctx); err != nil {
		return nil, err
	}
	o, err := l.client.options(o, opts)
	if err != nil {
		return nil, err
	}
	ctx, cancel := waitContext(ctx, o)
	defer cancel()
	if p != party(l) {
		return l.client.acquire(ctx, l.name, p, o, 0)
	}
	return l.acquirePlain(ctx, o)
}

// acquirePlain gets the lock for a plain call: through the gate.
func (l *Locker) acquirePlain(ctx context.Context, o acquireOptions) (*hold, error) {
	seen, err := l.enter(ctx, o)
	if err != nil {
		return nil, err
	}
	if h, err := l.find(ctx, o); err != nil || h != nil {
		return h, err
	}
	h, err := l.client.acquire(ctx, l.name, l, o, seen)
	if err != nil {
		l.openGate()
		return nil, err
	}
	l.client.mu.Lock()
	l.hold = h
	l.client.mu.Unlock()
	return h, nil
}

// enter waits for the gate. If it had to, it says how many attempts were sent before.
func (l *Locker) enter(ctx context.Context, o acquireOptions) (seen uint64, err error) {
	if l.slip() {
		return 0, nil
	}
	if o.bounded && o.wait == 0 {
		return 0, l.enterNow(ctx)
	}
	if !o.fixed {
		l.client.mu.Lock()
		l.gate.waiting++
		l.client.mu.Unlock()
	}
	seen = l.client.sent()
	err = l.waitAtGate(ctx, o, seen)
	switch {
	case o.fixed:
	case err == nil:
		l.client.mu.Lock()
		l.gate.waiting--
		l.client.mu.Unlock()
	default:
		l.giveUpWaiting()
	}
	return seen, err
}

// waitAtGate waits for the gate. Seen is how many attempts were sent before the call.
func (l *Locker) waitAtGate(ctx context.Context, o acquireOptions, seen uint64) error {
	e := l.comeToGate()
	if e == nil {
		return nil
	}
	defer l.client.entrants.Put(e)
	long := time.NewTimer(o.lease)
	defer long.Stop()
	var news <-chan time.Time
	if o.bounded {
		timer := time.NewTimer(o.wait / newsShare)
		defer timer.Stop()
		news = timer.C
	}
	for {
		select {
		case <-e.signal:
			return nil
		case <-news:
			l.client.inquire(l.name, seen)
		case <-long.C:
			l.client.logger.Warn("dlock: waiting for longer than a lease for a Locker that is locked", "name", l.name)
		case <-ctx.Done():
			if l.goFromGate(e) {
				return l.giveUp(l.client.over(ctx), seen)
			}
			return nil
		case <-l.client.ctx.Done():
			if l.goFromGate(e) {
				return ErrClosed
			}
			return nil
		}
	}
}

// enterNow goes through the gate if it is open, or says why it is shut: errHeld if the lock is
// held. Where another goroutine is just acquiring or releasing it, only the store knows.
func (l *Locker) enterNow(ctx context.Context) error {
	seen := l.client.sent()
	for range 3 {
		if err := l.shut(seen); err != nil {
			return err
		}
		res, err := l.look(ctx, "")
		switch {
		case err != nil:
			return err
		case res.Held:
			return errHeld
		case l.slip():
			return nil
		}
	}
	return errBusy
}

// giveUp returns the error of a call that ends at the gate because of why.
func (l *Locker) giveUp(why error, seen uint64) error {
	shut := l.shut(seen)
	switch {
	case why == errWaited && shut == errHeld:
		return errHeld
	case why == errWaited && shut == nil:
		return both(ErrNotAcquired, errBusy)
	case why == errWaited:
		return both(ErrNotAcquired, shut)
	case shut == errHeld:
		return why
	default:
		return both(why, shut)
	}
}

// shut says what is known of why the gate is shut: errHeld if the lock is held, or was at some time
// since so many attempts were sent; nil if nothing is known.
func (l *Locker) shut(seen uint64) error {
	c := l.client
	c.mu.Lock()
	defer c.unlock()
	if h := l.hold; h != nil {
		if c.check(h) {
			return errHeld
		}
		return fmt.Errorf("%w: %w", errNotUnlocked, ErrLost)
	}
	q := c.queues[l.name]
	switch {
	case q == nil:
		return nil
	case q.failure != nil:
		return q.failure
	case q.refused > seen:
		return errHeld
	default:
		return nil
	}
}

// unlock gives back one hold of whoever calls.
func (l *Locker) unlock(ctx context.Context) error {
	if l.name == "" {
		return errEmptyName
	}
	p := l.caller(ctx)
	if p != party(l) {
		return l.client.releaseParty(ctx, l.name, p)
	}
	c := l.client
	c.mu.Lock()
	h := l.hold
	if l.gate.left { // it is that of whoever comes through the gate next, and the caller's no more
		c.unlock()
		return ErrNotHeld
	}
	if h != nil && l.leave(h) {
		c.unlock()
		return nil
	}
	l.hold = nil
	c.mu.Unlock()
	if h == nil {
		return ErrNotHeld
	}
	defer l.openGate()
	return c.release(ctx, h)
}

// usable says what speaks against using the Locker at all.
func (l *Locker) usable(ctx context.Context) error {
	if l.name == "" {
		return errEmptyName
	}
	return l.client.over(ctx)
}

// look asks the store about the lock, and about an owner unless that is empty.
func (l *Locker) look(ctx context.Context, owner string) (backend.LookResult, error) {
	if err := l.usable(ctx); err != nil {
		return backend.LookResult{}, err
	}
	res, err := step(ctx, l.client, backend.Session.Look, backend.LookRequest{Name: l.name, Owner: owner})
	if err != nil {
		return backend.LookResult{}, l.stepError(ctx, err)
	}
	return res, nil
}

// stepError is the error of a single step: with the end of ctx, if that is why.
func (l *Locker) stepError(ctx context.Context, err error) error {
	if why := l.client.over(ctx); why != nil {
		return both(why, err)
	}
	return err
}

// held returns the caller's own count, 0 if its hold isn't valid here and in the store.
func (l *Locker) held(ctx context.Context) (int, error) {
	if err := l.usable(ctx); err != nil {
		return 0, err
	}
	p := l.caller(ctx)
	c := l.client
	c.mu.Lock()
	h := l.present(p)
	c.unlock()
	if h == nil {
		return 0, nil
	}
	res, err := l.look(ctx, h.owner)
	if err != nil || res.Count == 0 {
		return 0, err
	}
	c.mu.Lock()
	defer c.unlock()
	if l.present(p) != h {
		return 0, nil
	}
	return h.count, nil
}

// present returns the valid hold of p, or nil. c.mu is held.
func (l *Locker) present(p party) *hold {
	return l.client.current(l.name, p)
}

// wrap makes an error of this package's; nil stays nil.
func (l *Locker) wrap(op string, err error) error {
	if err == nil {
		return nil
	}
	return &Error{Op: op, Name: l.name, Err: err}
}
