package dlock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/seed951563bd/distsync/backend"
)

// Locker is a distributed lock that behaves like a [sync.Mutex]. It implements [sync.Locker].
//
// Calls that name no owner are plain calls: one hold at a time, from a lock to its unlock, by any
// goroutine. A second Lock waits, in the same goroutine too. Once locked, a Locker stays shut until
// it is unlocked, even after its hold was lost: otherwise a late unlock would release another
// goroutine's hold. Another Locker for the same name, from any client, competes for the lock and
// isn't shut by that.
//
// Making a Locker is cheap and does no I/O: in a handler make one per request.
//
// A call whose context names an owner (see [WithOwner]), or comes from a [Hold] of the same lock,
// such as that of a [Locker.Do], acts for that owner or hold, and re-enters it. Unlock with the
// context that you locked with. With the context of a Hold that is over, both fail: [ErrLost] or
// [ErrNotHeld].
//
// A Locker that is dropped while its plain calls have the lock is logged when that is found, and
// the lock goes on being renewed. A Locker is safe for concurrent use. It must not be copied. Its
// methods panic if it is nil or wasn't made by a [Client], or if their context is nil.
type Locker struct {
	client *Client
	name   string
	kind   backend.Kind
	owner  Owner     // whose the plain calls are; zero: the variable's
	plain  *variable // what the plain calls have

	defaults []AcquireOption // of its acquiring calls; none as a rule
}

// A variable is what the plain calls of a Locker have: as a mutex does, it says whether it is locked, not by
// whom. Nothing of this package refers to its Locker, so that one that is dropped can be found.
type variable struct {
	watched atomic.Bool // for being dropped

	// Guarded by Client.mu.
	waiting int32 // plain calls in the queue
	hold    *hold // from a lock to its unlock; of readers, while it isn't lost
	owed    int   // unlocks that readers owe for what was lost, and the client has forgotten
}

// newLocker returns a Locker for a kind of lock.
func newLocker(c *Client, kind backend.Kind, name string) *Locker {
	l := new(Locker)
	l.make(c, kind, name)
	return l
}

func (l *Locker) make(c *Client, kind backend.Kind, name string) {
	if c == nil || c.session == nil {
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

// For returns a Locker for the same lock whose plain calls act for o. It can be locked again while
// o holds it, and is free after as many unlocks. It panics if o is zero.
func (l *Locker) For(o Owner) *Locker {
	l.mustBeMade()
	o.mustBeSomebody("For")
	bound := newLocker(l.client, l.kind, l.name)
	bound.owner, bound.defaults = o, l.defaults
	return bound
}

// With returns a Locker for the same lock whose acquiring calls have these options as defaults.
// They come after the defaults of l, and before a call's own options; the last one counts. If the
// plain calls of l act for an owner, so do those of the new Locker. Otherwise they are separate, as
// with another Locker of that name (see [Client.Locker]). So the order of With and [Locker.For]
// makes no difference.
//
// Lock has these defaults, too: use With where code wants a [sync.Locker] and the lock a
// [FixedLease] or a [RenewedLease]. Lock ignores [Wait], since it couldn't report that it has no
// lock. TryLock with Wait as a default waits that long; Wait(0) has it not wait.
//
// An invalid option (nil, a lease that is too short) makes the calls fail, and Lock panic. With
// itself doesn't fail.
func (l *Locker) With(opts ...AcquireOption) *Locker {
	l.mustBeMade()
	with := newLocker(l.client, l.kind, l.name)
	with.owner, with.defaults = l.owner, slices.Concat(l.defaults, opts)
	return with
}

// Lock waits until it has the lock, which is then renewed until [Locker.Unlock]. While the store
// can't be reached or returns errors, it keeps trying and logs that now and then, also with an
// error such as a wrong password. It panics where waiting can't help, with an [*Error]. That wraps
// [ErrClosed] if the client is closed, [ErrConflict] if the name holds something else,
// [ErrUpgrade], or [errors.ErrUnsupported] if the store lacks the kind of lock. Or it says that the
// name is empty, or which option of [Locker.With] is invalid.
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
		l.client.pause(ctx, tries.next(firstReport, longestReport))
	}
}

// isHopeless says whether a Lock can't go on after an error.
func isHopeless(err error) bool {
	for _, why := range []error{ErrClosed, ErrConflict, ErrUpgrade, errors.ErrUnsupported, errEmptyName} {
		if errors.Is(err, why) {
			return true
		}
	}
	_, ok := errors.AsType[optionError](err)
	return ok
}

// Unlock releases the lock. It panics, with an [*Error] that wraps [ErrNotHeld], if the caller
// never had it. If the lock was lost, Unlock logs that. If the store can't be reached within 5 s,
// it logs that, and the release continues in the background.
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

// mayHaveLost says whether the plain calls' owner may have had a hold that was lost so long ago, or
// with so many others, that nothing is known of it any more.
func (l *Locker) mayHaveLost() bool {
	c := l.client
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.forgot && l.self() != party(l.plain)
}

// LockContext waits until it has the lock, as long as ctx and [Wait] allow. The lock is renewed
// until it is unlocked, unless [FixedLease] is given. The default is to wait as long as ctx does.
//
// Its errors are
//
//   - that of ctx, and its cause if that is another;
//   - [ErrNotAcquired] after the wait;
//   - [ErrLost] if the hold that the call re-enters is lost, or if the wait ends on a Locker whose
//     last hold was lost and not unlocked;
//   - [ErrNotHeld] with the context of a Do whose hold was given back;
//   - [ErrClosed] and [ErrConflict].
//
// An error that ended a wait also wraps [ErrHeld] if another had the lock, or [ErrUnavailable] and
// the store's error. A store that refuses for good is ErrUnavailable at once. A call without any
// bound logs, now and then, that the store is unavailable.
func (l *Locker) LockContext(ctx context.Context, opts ...AcquireOption) error {
	l.mustBeMade()
	_, err := l.acquire(ctx, l.caller(ctx), acquireOptions{}, opts)
	return l.wrap("lock", err)
}

// TryLock takes the lock if that is possible now, or within [Wait]. False with a nil error means
// exactly one thing: another holds it. (With an [RWLocker] it may also mean that a writer has
// waited for longer than a reader, the caller or one of this client before it.) The lock is renewed
// until it is unlocked, unless [FixedLease] is given. Errors are those of [Locker.LockContext], and
// [ErrLost] if the last hold of this Locker was lost and not unlocked. A single attempt takes as
// long as ctx and the store's client allow, but no longer than the lease, which counts here as 1 s
// at least and 30 s at most.
func (l *Locker) TryLock(ctx context.Context, opts ...AcquireOption) (bool, error) {
	l.mustBeMade()
	_, err := l.acquire(ctx, l.caller(ctx), acquireOptions{bounded: true}, opts)
	if isHeld(err) {
		return false, nil
	}
	return err == nil, l.wrap("trylock", err)
}

// UnlockContext releases the lock, or one hold of an owner that has several. It works even if ctx
// has ended before the call. It tries for 5 s or the rest of the lease at most, and no longer than
// ctx allows. If the store hasn't answered by then, the error says so, the caller no longer has the
// lock, and the release continues in the background.
//
// It returns [ErrNotHeld] if the caller never had the lock, and [ErrLost] if the hold was over
// before. The client remembers at most 1,024 losses of owners, each for ten leases; after that the
// error is ErrNotHeld. A Locker always remembers the losses of its plain calls.
func (l *Locker) UnlockContext(ctx context.Context) error {
	l.mustBeMade()
	return l.wrap("unlock", l.unlock(ctx))
}

// ForceUnlock frees the lock in the store, whoever holds it, and says whether it was held. It is
// for operators: the holder may still be in its critical section. A holder of this client is told
// at once, one of another client at its next renewal, and one with a [FixedLease] at the end of
// that. Until then two may act at once. ForceUnlock sends one request. After an error of the store
// it is unknown whether that was carried out. If the name holds something that is no lock, the
// error is [ErrConflict], and nothing changes.
func (l *Locker) ForceUnlock(ctx context.Context) (bool, error) {
	l.mustBeMade()
	released, err := l.force(ctx)
	return released, l.wrap("forceunlock", err)
}

// force frees what the Locker is for, whoever has it.
func (l *Locker) force(ctx context.Context) (bool, error) {
	if err := l.usable(ctx); err != nil {
		return false, err
	}
	c := l.client
	for {
		kind := l.storedKind()
		mine := c.claimsOf(l, kind)
		req := backend.ForceReleaseRequest{Kind: kind, Name: l.name}
		res, err := step(ctx, c, backend.Session.ForceRelease, req)
		if err != nil {
			return false, c.stepError(ctx, err)
		}
		if res.Released || !rules[kind].shared { // readers whom nobody struck may be those under a write
			c.struck(l, kind, mine)
		}
		if res.Released || l.storedKind() == kind {
			return res.Released, nil
		}
	}
}

// claimsOf returns what this client has claimed of a Locker's lock, of that kind.
func (c *Client) claimsOf(l *Locker, kind backend.Kind) []*claim {
	c.mu.Lock()
	defer c.unlock()
	return c.claimsLocked(c.objectLocked(l.kind, l.name), kind)
}

// claimsLocked returns what this client has claimed of a lock of that kind: what goes if it is forced. What somebody who
// has the lock alone reads as well goes with that, and not with what others read.
func (c *Client) claimsLocked(o *object, kind backend.Kind) []*claim {
	var claims []*claim
	if o != nil && rules[kind].many {
		for h := range o.permitted() {
			claims = append(claims, h.claim)
		}
		return claims
	}
	if o != nil && o.alone != nil && !rules[kind].shared {
		claims = append(claims, o.alone.claim)
	}
	for _, h := range o.readers() {
		if h.claim.goesWith(kind) && !slices.Contains(claims, h.claim) {
			claims = append(claims, h.claim)
		}
	}
	if o != nil && o.reading != nil && o.reading.young != nil && o.reading.young.goesWith(kind) && !slices.Contains(claims, o.reading.young) {
		claims = append(claims, o.reading.young) // its last reader is just leaving
	}
	return claims
}

// goesWith says whether a claim under which somebody reads ends if a lock of that kind is forced.
func (cl *claim) goesWith(kind backend.Kind) bool {
	if !rules[cl.kind].shared {
		return !rules[kind].shared // it is lent
	}
	return rules[kind].shared == (cl.retain() == nil)
}

// struck tells whom a forced lock was taken from: whoever holds what this client had
// before. What was granted meanwhile may have been struck, too: the store knows.
func (c *Client) struck(l *Locker, kind backend.Kind, mine []*claim) {
	c.mu.Lock()
	defer c.unlock()
	c.forced.Add(1)
	c.struckAt = c.now()
	for _, cl := range mine {
		c.forcedLocked(cl)
	}
	o := c.objectLocked(l.kind, l.name)
	for _, cl := range c.claimsLocked(o, kind) {
		c.backgroundLocked(func() { c.confirm(c.ctx, cl, c.forcedLocked) })
	}
	if o := c.objectLocked(l.kind, l.name); o != nil && o.queue != nil {
		c.wakeQueueLocked(o.queue)
	}
}

// forcedLocked ends a claim that this client has struck.
func (c *Client) forcedLocked(cl *claim) { c.loseClaimLocked(cl, why{reason: LossForced}) }

// IsLocked asks the store whether the lock is held, in one round trip. Its errors are that of ctx,
// [ErrClosed], [ErrConflict] and the store's, as for the other questions.
func (l *Locker) IsLocked(ctx context.Context) (bool, error) {
	l.mustBeMade()
	res, err := l.look(ctx)
	return res.Held, l.wrap("islocked", err)
}

// TTL asks the store how long the lock lasts without renewal: 0 if it is free, negative if it never
// ends or the store doesn't know.
func (l *Locker) TTL(ctx context.Context) (time.Duration, error) {
	l.mustBeMade()
	res, err := l.look(ctx)
	return res.Remaining, l.wrap("ttl", err)
}

// IsHeld says whether the caller holds the lock, both by this client's own clock and in the store.
// With an error the answer is false.
func (l *Locker) IsHeld(ctx context.Context) (bool, error) {
	l.mustBeMade()
	n, err := l.count(ctx)
	return n > 0, l.wrap("isheld", err)
}

// HoldCount returns how many unlocks of the caller release the lock fully. It is 0 if the caller
// doesn't hold it, by this client's own clock or in the store.
func (l *Locker) HoldCount(ctx context.Context) (int, error) {
	l.mustBeMade()
	n, err := l.count(ctx)
	return n, l.wrap("holdcount", err)
}

// Lost returns a channel that is closed when the caller's present hold is lost or the client is
// closed. It is closed already if the caller doesn't hold the lock. An unlock never closes it.
// Plain reads through one Locker can't be told apart: if one is lost, the others may be told, too.
func (l *Locker) Lost(ctx context.Context) <-chan struct{} {
	l.mustBeMade()
	if h := l.present(l.caller(ctx)); h != nil {
		return l.client.lostChannel(h)
	}
	over := make(chan struct{})
	close(over)
	return over
}

// acquire gets the lock for a caller.
func (l *Locker) acquire(ctx context.Context, who caller, o acquireOptions, opts []AcquireOption) (*hold, error) {
	if err := l.usable(ctx); err != nil {
		return nil, both(err, l.client.whyOver(who.hold))
	}
	o, err := l.options(o, opts)
	if err != nil {
		return nil, err
	}
	ctx, cancel := waitContext(ctx, o)
	defer cancel()
	h, err := l.client.acquire(ctx, l, who, o)
	if err == nil && who.party == party(l.plain) {
		l.client.watchVariable(l)
	}
	return h, err
}

// options applies the Locker's defaults and opts to what a call for the lock does otherwise, and checks the outcome.
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
	if err == nil && o.noted && !rules[l.kind].shared {
		err = fmt.Errorf("a %v lock's holder has no note: %w", l.kind, errors.ErrUnsupported)
	}
	if err != nil {
		err = optionError{err}
	}
	return o, err
}

// An optionError says what is wrong with an option. No further call helps.
type optionError struct{ error }

func (e optionError) Unwrap() error { return e.error }

// unlock gives back one hold of whoever calls.
func (l *Locker) unlock(ctx context.Context) error {
	if l.name == "" {
		return errEmptyName
	}
	return l.unlockAs(ctx, l.caller(ctx))
}

func (l *Locker) unlockAs(ctx context.Context, who caller) error {
	switch {
	case who.hold != nil && who.hold.kind == l.kind:
		return l.client.releaseWithin(ctx, who.hold)
	case who.party != party(l.plain):
		return l.client.releaseParty(ctx, l, who.party)
	default:
		return l.unlockPlain(ctx)
	}
}

// unlockPlain gives back the hold of plain calls.
func (l *Locker) unlockPlain(ctx context.Context) error {
	for {
		h, err := l.plainHold()
		if err != nil {
			return err
		}
		if err := l.client.giveUpHold(ctx, h); err != errAgain {
			return err
		}
		if !rules[l.kind].shared {
			return ErrNotHeld
		}
		// Others have given back the rest of what was found, each his own: there is one more for this one.
	}
}

// plainHold returns what a plain unlock gives back. Of several that read through one Locker those whose hold was lost
// come first: whoever of them this is, what the others have stays.
func (l *Locker) plainHold() (*hold, error) {
	c := l.client
	c.mu.Lock()
	defer c.mu.Unlock()
	o := c.objectLocked(l.kind, l.name)
	if rules[l.kind].shared {
		if h, err := c.plainSharedLocked(l.key(), l.kind, l.plain); h != nil || err != nil {
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

func (l *Locker) key() lockKey { return lockKey{rules[l.kind].family, l.name} }

func (l *Locker) lostKey(p party) lostKey { return lostKey{l.key(), l.kind, p} }

// usable says what speaks against using the Locker at all.
func (l *Locker) usable(ctx context.Context) error {
	mustBeContext(ctx)
	if l.name == "" {
		return errEmptyName
	}
	if c := l.client; !c.limits.Kinds.Has(l.kind) || rules[l.kind].placed && c.liner == nil {
		return c.unknownKind(l.kind)
	}
	return l.client.over(ctx)
}

// unknownKind is the error of a call for a kind of lock that the store lacks, with the reason if there is one.
func (c *Client) unknownKind(k backend.Kind) error {
	err := backend.UnknownKind(c.store, k)
	if c.whyNot != nil {
		if why := c.whyNot(k); why != "" {
			return fmt.Errorf("%w: %s", err, why)
		}
	}
	return err
}

// keeps says why what is released can't be kept, if so.
func (l *Locker) keeps() error {
	switch {
	case rules[l.kind].shared:
		return fmt.Errorf("a %v lock can't be kept: %w", l.kind, errors.ErrUnsupported)
	case !l.client.limits.Keeps:
		return fmt.Errorf("%s can't keep what is released: %w", l.client.store, errors.ErrUnsupported)
	default:
		return nil
	}
}

// look asks the store about the lock.
func (l *Locker) look(ctx context.Context) (backend.LookResult, error) {
	for {
		kind := l.storedKind()
		res, err := l.lookFor(ctx, backend.LookRequest{Kind: kind, Name: l.name})
		if err != nil || res.Held || l.storedKind() == kind {
			return res, err
		}
	}
}

// storedKind returns what the store knows of the Locker's side: readers of this client may just share what was claimed for
// writing.
func (l *Locker) storedKind() backend.Kind {
	if cl := l.lent(); cl != nil {
		return backend.Write
	}
	return l.kind
}

// lent returns what readers of this client share that was claimed for writing, if the Locker is
// that of readers. The store knows of a writer only.
func (l *Locker) lent() *claim {
	if !rules[l.kind].shared {
		return nil
	}
	c := l.client
	c.mu.Lock()
	defer c.mu.Unlock()
	if o := c.objectLocked(l.kind, l.name); o != nil && o.reading != nil {
		return o.reading.lent
	}
	return nil
}

func (l *Locker) lookFor(ctx context.Context, req backend.LookRequest) (backend.LookResult, error) {
	if err := l.usable(ctx); err != nil {
		return backend.LookResult{}, err
	}
	res, err := step(ctx, l.client, backend.Session.Look, req)
	if err != nil {
		return backend.LookResult{}, l.client.stepError(ctx, err)
	}
	return res, nil
}

// stepError is the error of a single step: with the end of ctx, if that is why.
func (c *Client) stepError(ctx context.Context, err error) error {
	err = unavailable(err)
	if why := c.over(ctx); why != nil {
		return both(why, err)
	}
	return err
}

// count returns the caller's own count, 0 if its hold isn't valid here and in the store.
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
		if n, ok := l.counted(who, h, req.Kind, res); ok || err != nil {
			return n, err
		}
	}
}

// asked returns the valid hold of a caller, or nil, and how to ask the store about it.
func (l *Locker) asked(who caller) (*hold, backend.LookRequest) {
	l.client.mu.Lock()
	defer l.client.unlock()
	h := l.presentLocked(who)
	if h == nil {
		return nil, backend.LookRequest{}
	}
	return h, h.claim.lookRequest()
}

// counted returns what a caller has, if the store has been asked about what its hold still rests on.
func (l *Locker) counted(who caller, h *hold, kind backend.Kind, res backend.LookResult) (n int, ok bool) {
	c := l.client
	c.mu.Lock()
	defer c.unlock()
	switch {
	case l.presentLocked(who) != h:
		return 0, true
	case h.claim.kind != kind:
		return 0, false // it was downgraded meanwhile
	case res.Count == 0:
		return 0, true
	default:
		return c.objectLocked(l.kind, l.name).calls(h), true
	}
}

// present returns the valid hold of a caller, or nil.
func (l *Locker) present(who caller) *hold {
	l.client.mu.Lock()
	defer l.client.unlock()
	return l.presentLocked(who)
}

func (l *Locker) presentLocked(who caller) *hold {
	if who.hold == nil || who.hold.kind != l.kind {
		h := l.client.currentLocked(l.client.objectLocked(l.kind, l.name), l.kind, who.party)
		if h != nil && h.offered {
			return nil // its call has not returned, and may not take it
		}
		return h
	}
	if !l.client.checkLocked(who.hold) {
		return nil
	}
	return who.hold
}

// wrap makes an error of this package's; nil stays nil.
func (l *Locker) wrap(op string, err error) error {
	if err == nil {
		return nil
	}
	if rules[l.kind].shared {
		op = "r" + op
	}
	return &Error{Op: op, Name: l.name, Err: err}
}
