package dlock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/dlock/internal/protocol"
	"github.com/seed951563bd/distsync/dlock/internal/steps"
)

// Locker is a distributed lock that behaves like a [sync.Mutex]. It implements [sync.Locker].
//
// Calls that name no owner are plain calls. Together they have at most one hold at a time, which
// any goroutine may release. A second Lock waits, even in the same goroutine. Once locked, a Locker
// stays locked until it is unlocked, even after its hold was lost. Otherwise a late unlock would
// release another goroutine's hold. Another Locker for the same name, from any client, competes for
// the lock, and can get it after the loss.
//
// Making a Locker is cheap and does no I/O. A handler can make one per request.
//
// If the context of a call names an owner (see [WithOwner]), the call acts for that owner, and
// re-enters its hold. The same is true if the context comes from a [Hold] of the same lock, for
// example from [Locker.Do]. Unlock with the context that you locked with. With the context of a
// Hold that has ended, locking and unlocking fail with [ErrLost] or [ErrNotHeld].
//
// If a Locker is dropped while its plain calls hold the lock, the client logs that when it notices,
// and keeps renewing the lock. A Locker is safe for concurrent use. It must not be copied. Its
// methods panic if it is nil or wasn't made by a [Client], or if their context is nil.
type Locker struct {
	client *Client
	name   string
	kind   protocol.Kind
	owner  Owner     // the owner that plain calls act for; zero if there is none
	plain  *variable // the state of the plain calls, and usually their party (see self)

	defaults []AcquireOption // for its acquiring calls; usually none
}

// A variable is the state of a Locker's plain calls. Like a mutex, it knows whether it is locked,
// but not who locked it. It doesn't refer to its Locker, so that a dropped Locker can be detected.
type variable struct {
	watched atomic.Bool // whether the client notices if the Locker is dropped

	// Guarded by Client.mu.
	waiting int32 // plain calls in the queue
	hold    *hold // the current hold; nil once it is unlocked or, for a read lock, lost
	owed    int   // unlocks still expected for lost read locks that state.forget removed
}

// newLocker returns a Locker for a kind of lock.
func newLocker(c *Client, kind protocol.Kind, name string) *Locker {
	l := new(Locker)
	l.make(c, kind, name)
	return l
}

func (l *Locker) make(c *Client, kind protocol.Kind, name string) {
	if c == nil || c.store == nil {
		panic("dlock: a Client that is nil, or wasn't made by New")
	}
	l.client, l.name, l.kind, l.plain = c, name, kind, new(variable)
}

func (l *Locker) mustBeMade() {
	if l == nil || l.client == nil {
		panic("dlock: a Locker that is nil, or wasn't made by a Client")
	}
}

// Name returns the lock's name.
func (l *Locker) Name() string { l.mustBeMade(); return l.name }

// For returns a Locker for the same lock whose plain calls act for o. That Locker can be locked
// again while o holds the lock, and must be unlocked as many times. For panics if o is zero.
func (l *Locker) For(o Owner) *Locker {
	l.mustBeMade()
	o.mustBeSomebody("For")
	bound := newLocker(l.client, l.kind, l.name)
	bound.owner, bound.defaults = o, l.defaults
	return bound
}

// With returns a Locker for the same lock whose acquiring calls have these options as defaults.
// They are applied after the defaults of l, and before a call's own options. If an option is given
// twice, the last one counts. If the plain calls of l act for an owner, those of the new Locker act
// for the same owner, so With and [Locker.For] can be called in either order. Otherwise the plain
// calls of l and of the new Locker are separate, as with any two Lockers for one name (see
// [Client.Locker]).
//
// The defaults also apply to Lock. Use With if code takes a [sync.Locker] and its lock needs a
// [FixedLease] or a [RenewedLease]. Lock ignores [Wait], since it couldn't report that it gave up.
// TryLock with Wait as a default waits that long. With Wait(0) it doesn't wait.
//
// If an option is invalid, such as nil or a lease that is too short, With itself doesn't fail.
// Instead, the new Locker's calls fail, and its Lock panics.
func (l *Locker) With(opts ...AcquireOption) *Locker {
	l.mustBeMade()
	with := newLocker(l.client, l.kind, l.name)
	with.owner, with.defaults = l.owner, slices.Concat(l.defaults, opts)
	return with
}

// Lock waits until it acquires the lock, which is then renewed until [Locker.Unlock]. If the store
// can't be reached or returns an error, even about a wrong password, Lock keeps trying, and logs
// that now and then. If waiting can't help, Lock panics with an [*Error]. It wraps [ErrClosed] if
// the client is closed, [ErrConflict] if the name belongs to other data, [ErrUpgrade], or
// [errors.ErrUnsupported] if the store lacks the kind of lock. Lock also panics with an *Error if
// the name is empty or an option of [Locker.With] is invalid.
func (l *Locker) Lock() {
	l.mustBeMade()
	ctx := context.Background()
	var tries backoff
	for {
		_, err := l.acquire(ctx, l.caller(ctx), acquireOptions{endless: true}, nil)
		if err == nil {
			return
		}
		if isHopeless(err) {
			panic(l.wrap("lock", err))
		}
		l.client.warn("cannot lock yet", "name", l.name, "err", err)
		l.client.store.Pause(ctx, tries.next(firstReport, longestReport))
	}
}

// isHopeless reports whether it is useless to retry after err.
func isHopeless(err error) bool {
	for _, why := range []error{ErrClosed, ErrConflict, ErrUpgrade, errors.ErrUnsupported,
		errEmptyName} {
		if errors.Is(err, why) {
			return true
		}
	}
	_, ok := errors.AsType[optionError](err)
	return ok
}

// Unlock releases the lock. It panics with an [*Error] that wraps [ErrNotHeld] if the caller never
// held it. If the lock was lost, Unlock logs that. If the store can't be reached within 5 s, it
// logs that, and the release continues in the background.
func (l *Locker) Unlock() {
	l.mustBeMade()
	err := l.unlock(context.Background())
	switch {
	case errors.Is(err, ErrNotHeld) && !l.mayHaveLost():
		panic(l.wrap("unlock", err))
	case err != nil:
		l.client.warn("unlock", "name", l.name, "err", err)
	}
}

// mayHaveLost reports whether an unlock that finds no hold might be the unlock of a lost hold that
// the client no longer remembers. That is possible only if the plain calls act for an owner.
func (l *Locker) mayHaveLost() bool {
	c := l.client
	s := c.lock()
	defer c.mu.Unlock()
	return s.forgot && l.self() != party(l.plain)
}

// LockContext waits until it acquires the lock, for as long as ctx and [Wait] allow. The lock is
// renewed until it is unlocked, unless [FixedLease] is given. Without Wait, only ctx limits the
// wait.
//
// Its errors are
//
//   - the error of ctx, and its cause if that is different;
//   - [ErrNotAcquired] if the time limit that Wait sets is reached;
//   - [ErrLost] if the hold that the call re-enters is lost, or if this Locker's last hold was
//     lost and still hasn't been unlocked when the wait ends;
//   - [ErrNotHeld] if ctx comes from a hold of this lock that was released, for example by
//     [Locker.Do];
//   - [ErrClosed] and [ErrConflict].
//
// The error of a call that waited in vain also wraps [ErrHeld] if someone else held the lock, or
// [ErrUnavailable] and the store's error. If the store refuses for good, the call returns
// ErrUnavailable at once. A call that waits without a limit logs now and then that the store is
// unavailable.
func (l *Locker) LockContext(ctx context.Context, opts ...AcquireOption) error {
	l.mustBeMade()
	_, err := l.acquire(ctx, l.caller(ctx), acquireOptions{}, opts)
	return l.wrap("lock", err)
}

// TryLock acquires the lock if it can do so now, or within [Wait]. False with a nil error always
// means that someone else holds it, except with an [RWLocker], where it can also mean that a writer
// has waited longer than the caller, or than an earlier reader of this client. The lock is renewed
// until it is unlocked, unless [FixedLease] is given. TryLock returns the same errors as
// [Locker.LockContext]. If the last hold of this Locker was lost, and hasn't been unlocked, the
// error is [ErrLost], even without a wait. A single attempt takes as long as ctx and the store's
// client allow, but no longer than the lease. For this limit, the lease counts as at least 1 s and
// at most 30 s.
func (l *Locker) TryLock(ctx context.Context, opts ...AcquireOption) (bool, error) {
	l.mustBeMade()
	_, err := l.acquire(ctx, l.caller(ctx), acquireOptions{bounded: true}, opts)
	if isHeld(err) {
		return false, nil
	}
	return err == nil, l.wrap("trylock", err)
}

// UnlockContext releases the lock. If an owner has locked it several times, UnlockContext undoes
// one of these acquisitions. It works even if ctx has ended before the call. It tries for at most 5
// s, but not beyond the end of the lease, nor for longer than ctx allows. If the store hasn't
// answered by then, the error says so, the caller no longer holds the lock, and the release
// continues in the background.
//
// It returns [ErrNotHeld] if the caller never held the lock, and [ErrLost] if the hold had already
// been lost. The client remembers at most 1,024 losses of owners, each for ten leases. After that,
// the error is ErrNotHeld. A Locker always remembers the losses of its plain calls.
func (l *Locker) UnlockContext(ctx context.Context) error {
	l.mustBeMade()
	return l.wrap("unlock", l.unlock(ctx))
}

// ForceUnlock frees the lock in the store, whichever client holds it, and reports whether it was
// held. It is for operators, since the holder might still be in its critical section. A holder in
// this client is told at once. A holder in another client is told at its next renewal or, with a
// [FixedLease], at the end of its lease. Until then two holders might act at once. ForceUnlock
// sends one request. After an error from the store, it is unknown whether the request was carried
// out. It might still be carried out later, and would then free the lock even if the lock has a new
// holder. If the name belongs to data that isn't a lock, the error is [ErrConflict], and nothing
// changes.
func (l *Locker) ForceUnlock(ctx context.Context) (bool, error) {
	l.mustBeMade()
	released, err := l.force(ctx)
	return released, l.wrap("forceunlock", err)
}

// force frees the Locker's lock, whichever client holds it.
func (l *Locker) force(ctx context.Context) (bool, error) {
	if err := l.usable(ctx); err != nil {
		return false, err
	}
	c := l.client
	for {
		kind := l.storedKind()
		mine := l.claims(kind)
		req := backend.ForceReleaseRequest{Kind: backend.Kind(kind), Name: l.name}
		res, err := steps.Do(ctx, c.store, backend.Session.ForceRelease, req)
		if err != nil {
			return false, c.stepError(ctx, err)
		}
		// If the store found no readers, this client's readers might share a write lock, and still
		// hold it.
		if res.Released || !kind.Shared() {
			l.struck(kind, mine)
		}
		if res.Released || l.storedKind() == kind {
			return res.Released, nil
		}
	}
}

// claims returns this client's claims on the Locker's lock that end with a ForceUnlock of the given
// kind.
func (l *Locker) claims(kind protocol.Kind) []*claim {
	s := l.client.lock()
	defer l.client.unlock()
	return s.object(l.kind, l.name).claims(kind)
}

// claims returns this client's claims on a lock that a ForceUnlock of the given kind ends. A read
// lock that a party took under its write lock ends together with the write lock, and not when read
// locks are freed.
func (o *object) claims(kind protocol.Kind) []*claim {
	var claims []*claim
	if o != nil && kind.Many() {
		for h := range o.permitted() {
			claims = append(claims, h.claim)
		}
		return claims
	}
	if o != nil && o.alone != nil && !kind.Shared() {
		claims = append(claims, o.alone.claim)
	}
	for _, h := range o.readers() {
		if h.claim.goesWith(kind) && !slices.Contains(claims, h.claim) {
			claims = append(claims, h.claim)
		}
	}
	if o != nil && o.reading != nil && o.reading.young != nil && o.reading.young.goesWith(kind) &&
		!slices.Contains(claims, o.reading.young) {
		claims = append(claims, o.reading.young) // its last reader is leaving
	}
	return claims
}

// goesWith reports whether a ForceUnlock of the given kind ends cl, which is a claim of readers.
func (cl *claim) goesWith(kind protocol.Kind) bool {
	if !cl.kind.Shared() {
		return !kind.Shared() // it is a lent write
	}
	return kind.Shared() == (cl.retain() == nil)
}

// struck is called after the store has carried out a ForceUnlock by this client. It ends the claims
// in mine, which this client held before the request. Claims that the client acquired while the
// request was under way may have ended too, so struck asks the store about them.
func (l *Locker) struck(kind protocol.Kind, mine []*claim) {
	c := l.client
	s := c.lock()
	defer c.unlock()
	c.forced.Add(1)
	s.struckAt = c.now()
	for _, cl := range mine {
		cl.forced(s)
	}
	o := s.object(l.kind, l.name)
	for _, cl := range o.claims(kind) {
		s.background(func(c *Client) { cl.confirm(c.ctx, c, (*claim).forced) })
	}
	if o != nil {
		o.mark(s, markFree)
	}
}

// IsLocked asks the store whether the lock is held, in one round trip. It can return the error of
// ctx, [ErrClosed], [ErrConflict], or an error of the store. So can the other methods that ask the
// store.
func (l *Locker) IsLocked(ctx context.Context) (bool, error) {
	l.mustBeMade()
	res, err := l.look(ctx)
	return res.Held, l.wrap("islocked", err)
}

// TTL asks the store how long the lock will last without renewal. The result is 0 if the lock is
// free. It is negative if the lock never expires or the store doesn't know.
func (l *Locker) TTL(ctx context.Context) (time.Duration, error) {
	l.mustBeMade()
	res, err := l.look(ctx)
	return res.Remaining, l.wrap("ttl", err)
}

// IsHeld reports whether the caller holds the lock, according to both this client's clock and the
// store. If it returns an error, the result is false.
func (l *Locker) IsHeld(ctx context.Context) (bool, error) {
	l.mustBeMade()
	n, err := l.count(ctx)
	return n > 0, l.wrap("isheld", err)
}

// HoldCount returns the number of unlocks that the caller needs to fully release the lock. It is 0
// unless the caller holds the lock according to both this client's clock and the store.
func (l *Locker) HoldCount(ctx context.Context) (int, error) {
	l.mustBeMade()
	n, err := l.count(ctx)
	return n, l.wrap("holdcount", err)
}

// Lost returns a channel that is closed when the caller's current hold is lost or the client is
// closed. It is already closed if the caller doesn't hold the lock. An unlock never closes it.
// Plain calls that read through one Locker can't be told apart, so if one of their holds is lost,
// the channels of the others might also be closed.
func (l *Locker) Lost(ctx context.Context) <-chan struct{} {
	l.mustBeMade()
	if h := l.present(l.caller(ctx)); h != nil {
		return h.lostChannel(l.client)
	}
	over := make(chan struct{})
	close(over)
	return over
}

// acquire acquires the lock for a caller, with options.
func (l *Locker) acquire(
	ctx context.Context, who caller, o acquireOptions, opts []AcquireOption,
) (*hold, error) {
	if err := l.usable(ctx); err != nil {
		return nil, both(err, who.hold.whyOver(l.client))
	}
	o, err := l.options(o, opts)
	if err != nil {
		return nil, err
	}
	ctx, cancel := waitContext(ctx, o)
	defer cancel()
	h, err := l.newCall(ctx, who, o).carryOut(ctx)
	if err == nil && who.party == party(l.plain) {
		l.watchVariable()
	}
	return h, err
}

// options applies the Locker's defaults and opts to o, and checks the result.
func (l *Locker) options(o acquireOptions, opts []AcquireOption) (acquireOptions, error) {
	switch {
	case len(opts) == 0:
		opts = l.defaults
	case len(l.defaults) > 0:
		opts = slices.Concat(l.defaults, opts)
	}
	o, err := l.client.options(o, opts)
	o.site = l.client.callers.note()
	if err == nil && o.keeps {
		err = l.keeps()
	}
	if err == nil && o.noted && !l.kind.Shared() {
		err = fmt.Errorf("a %v lock's holder has no note: %w", l.kind, errors.ErrUnsupported)
	}
	if err != nil {
		err = optionError{err}
	}
	return o, err
}

// An optionError reports an invalid option. It ends the call.
type optionError struct{ error }

func (e optionError) Unwrap() error { return e.error }

// unlock releases one hold of the caller.
func (l *Locker) unlock(ctx context.Context) error {
	if l.name == "" {
		return errEmptyName
	}
	return l.unlockAs(ctx, l.caller(ctx))
}

func (l *Locker) unlockAs(ctx context.Context, who caller) error {
	switch {
	case who.hold != nil && who.hold.kind == l.kind:
		return who.hold.releaseWithin(ctx, l.client)
	case who.party != party(l.plain):
		return l.releaseParty(ctx, who.party)
	default:
		return l.unlockPlain(ctx)
	}
}

// unlockPlain releases the hold of plain calls.
func (l *Locker) unlockPlain(ctx context.Context) error {
	for {
		h, err := l.plainHold()
		if err != nil {
			return err
		}
		if err := h.giveUp(ctx, l.client); err != errAgain {
			return err
		}
		if !l.kind.Shared() {
			return ErrNotHeld
		}
		// Other calls have fully released that hold in the meantime. Try another hold of the
		// Locker.
	}
}

// plainHold returns the hold that a plain unlock releases. If several calls read through one
// Locker, plainHold returns lost holds before valid ones. So the readers with valid holds keep
// them, no matter which of the calls unlocks first.
func (l *Locker) plainHold() (*hold, error) {
	c := l.client
	s := c.lock()
	defer c.mu.Unlock()
	o := s.object(l.kind, l.name)
	if l.kind.Shared() {
		if h, err := l.plain.plainShared(s, l.key(), l.kind); h != nil || err != nil {
			return h, err
		}
	} else if h := l.plain.hold; h != nil && !h.offered && h.state != released {
		return h, nil
	}
	switch {
	case o == nil || o.alone == nil || o.alone == l.plain.hold || o.alone.kind != l.kind:
		return nil, ErrNotHeld
	case o.alone.variable() == nil:
		return nil, errOwners
	default:
		return nil, errElsewhere
	}
}

// usable returns the reason why the Locker can't be used, or nil.
func (l *Locker) usable(ctx context.Context) error {
	mustBeContext(ctx)
	if l.name == "" {
		return errEmptyName
	}
	if c := l.client; !c.store.Limits.Kinds.Has(backend.Kind(l.kind)) || l.kind.Placed() &&
		c.store.Liner == nil {
		return c.unknownKind(backend.Kind(l.kind))
	}
	return l.client.over(ctx)
}

// unknownKind returns the error for a kind of lock that the store doesn't support. It includes the
// reason, if the store gives one.
func (c *Client) unknownKind(k backend.Kind) error {
	err := backend.UnknownKind(c.store.Name, k)
	if c.store.WhyNot != nil {
		if why := c.store.WhyNot(k); why != "" {
			return fmt.Errorf("%w: %s", err, why)
		}
	}
	return err
}

// keeps returns the reason why the lock can't stay taken after its release, or nil.
func (l *Locker) keeps() error {
	switch {
	case l.kind.Shared():
		return fmt.Errorf("a %v lock can't be kept: %w", l.kind, errors.ErrUnsupported)
	case !l.client.store.Limits.Keeps:
		return fmt.Errorf("%s can't keep what is released: %w", l.client.store.Name,
			errors.ErrUnsupported)
	default:
		return nil
	}
}

// look asks the store about the lock. If the lock seems free, but its kind in the store has changed
// in the meantime, look asks again. The kind changes when a write lock is lent to readers, or
// downgraded to a read lock.
func (l *Locker) look(ctx context.Context) (backend.LookResult, error) {
	for {
		kind := l.storedKind()
		res, err := l.lookFor(ctx, backend.LookRequest{Kind: backend.Kind(kind), Name: l.name})
		if err != nil || res.Held || l.storedKind() == kind {
			return res, err
		}
	}
}

// storedKind returns the kind that the Locker's lock has in the store. If readers of this client
// share a write lock, that is the write lock's kind.
func (l *Locker) storedKind() protocol.Kind {
	if cl := l.lent(); cl != nil {
		return protocol.Kind(backend.Write)
	}
	return l.kind
}

// lent returns the claim for a write lock that readers of this client share, or nil. While they
// share it, the store knows only a writer. lent returns nil unless the Locker is for reading.
func (l *Locker) lent() *claim {
	if !l.kind.Shared() {
		return nil
	}
	c := l.client
	s := c.lock()
	defer c.mu.Unlock()
	if o := s.object(l.kind, l.name); o != nil && o.reading != nil {
		return o.reading.lent
	}
	return nil
}

func (l *Locker) lookFor(ctx context.Context, req backend.LookRequest) (backend.LookResult, error) {
	if err := l.usable(ctx); err != nil {
		return backend.LookResult{}, err
	}
	res, err := steps.Do(ctx, l.client.store, backend.Session.Look, req)
	if err != nil {
		return backend.LookResult{}, l.client.stepError(ctx, err)
	}
	return res, nil
}

// stepError returns the error of a single step. If the step failed because ctx ended, the error
// says so.
func (c *Client) stepError(ctx context.Context, err error) error {
	err = unavailable(err)
	if why := c.over(ctx); why != nil {
		return both(why, err)
	}
	return err
}

// count returns the number of unlocks after which the caller no longer holds the lock. It is 0
// unless the caller's hold is valid according to both this client and the store.
func (l *Locker) count(ctx context.Context) (int, error) {
	if err := l.usable(ctx); err != nil {
		return 0, err
	}
	who := l.caller(ctx)
	for {
		h, req := l.asked(who)
		if h == nil {
			return 0, nil
		}
		res, err := l.lookFor(ctx, req)
		if n, ok := l.counted(who, h, protocol.Kind(req.Kind), res); ok || err != nil {
			return n, err
		}
	}
}

// asked returns the caller's valid hold, and a request that asks the store about it. If there is no
// such hold, the returned hold is nil.
func (l *Locker) asked(who caller) (*hold, backend.LookRequest) {
	s := l.client.lock()
	defer l.client.unlock()
	h := l.presentTo(s, who)
	if h == nil {
		return nil, backend.LookRequest{}
	}
	return h, h.claim.lookRequest()
}

// counted computes the result of count from the store's answer about the caller's hold h. ok is
// false if the claim was downgraded after the request was made.
func (l *Locker) counted(
	who caller, h *hold, kind protocol.Kind, res backend.LookResult,
) (n int, ok bool) {
	c := l.client
	s := c.lock()
	defer c.unlock()
	switch {
	case l.presentTo(s, who) != h:
		return 0, true
	case h.claim.kind != kind:
		return 0, false // the claim has been downgraded
	case res.Count == 0:
		return 0, true
	default:
		return s.object(l.kind, l.name).calls(h), true
	}
}

// present returns the valid hold of a caller, or nil.
func (l *Locker) present(who caller) *hold {
	s := l.client.lock()
	defer l.client.unlock()
	return l.presentTo(s, who)
}

func (l *Locker) presentTo(s *state, who caller) *hold {
	if who.hold == nil || who.hold.kind != l.kind {
		h := s.object(l.kind, l.name).current(s, l.kind, who.party)
		if h != nil && h.offered {
			return nil // not yet accepted by the call that it was offered to
		}
		return h
	}
	if !who.hold.check(s) {
		return nil
	}
	return who.hold
}
