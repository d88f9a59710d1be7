package dlock

import (
	"context"
	"runtime"
	"sync/atomic"
	"time"
)

// Hold is a lock held from [Locker.Acquire] to [Hold.Release]. Use it where [Locker.Do] doesn't
// fit, because the code under the lock can't be a single function. It is safe for concurrent use. A
// Hold of several locks works the same way. See [MultiLocker.Acquire].
//
// If a Hold and its context are dropped without a Release, the client keeps renewing the lock, and
// logs the mistake once it is detected.
type Hold struct {
	stay
	inside atomic.Pointer[holdContext] // made at the first call of Context
	given  atomic.Bool                 // Release was called
	watch  runtime.Cleanup
}

// A stay is an acquired hold, together with the context of its call. For several locks, only ctx is
// set: it is their common context, a *several.
type stay struct {
	locker *Locker
	hold   *hold
	ctx    context.Context
	alone  bool // whether only the called function can re-enter the hold
	whole  bool // whether re-entries that the function didn't unlock are also released
}

// Acquire waits for the lock as [Locker.LockContext] does, and returns a Hold. If ctx names an
// owner, Acquire acts for that owner, and re-enters its hold if it has one. If ctx comes from
// another hold of this lock, Acquire re-enters that hold. Otherwise it acts for a new owner. Two
// Holds with new owners exclude each other, even from one Locker, and are separate from the
// Locker's plain calls. With Wait(0), Acquire gives up with [ErrNotAcquired] if someone else holds
// the lock. Acquire returns the same errors as LockContext. The context of the Hold ends with ctx.
// To bound only the wait, use [Wait].
func (l *Locker) Acquire(ctx context.Context, opts ...AcquireOption) (*Hold, error) {
	got, err := l.enter(ctx, acquireOptions{}, opts)
	if err != nil {
		return nil, l.wrap("acquire", err)
	}
	return newHandle(got), nil
}

// newHandle returns the Hold for a stay.
func newHandle(got stay) *Hold {
	h := &Hold{stay: got}
	h.watch = runtime.AddCleanup(h, got.locker.client.droppedHold, got.hold)
	return h
}

// Context returns a context for the work under the lock. It has the values of the context that
// Acquire was given. It ends
//
//   - when the lock is lost, at the latest when the lease has run out on this machine's clock; the
//     cause is an [*Error] that wraps a [*Loss], and therefore [ErrLost];
//   - when the client is closed, with cause [ErrClosed];
//   - with the context that Acquire was given;
//   - when the Hold is released.
//
// If the lock was lost while the process was paused, the first call to the context's Err reports
// that. A moment later, the Done channel is closed and derived contexts end. The context carries
// the hold. Do, Acquire and LockContext of the same lock re-enter it, in any goroutine, even within
// a hold of another lock. Once the hold has ended they return [ErrLost], or [ErrNotHeld] if it was
// released. For other locks the context acts like the one that Acquire was given.
func (h *Hold) Context() context.Context {
	s := h.mustBeHeld()
	if all := s.several(); all != nil {
		return all
	}
	if d := h.inside.Load(); d != nil {
		return d
	}
	c := s.locker.client
	d := s.hold.inside(s.ctx, c)
	d.watch = runtime.AddCleanup(d, c.droppedHold, s.hold)
	if !h.inside.CompareAndSwap(nil, d) {
		d.end()
		return h.inside.Load()
	}
	if h.given.Load() {
		d.end()
	}
	h.watch.Stop() // the watch on d replaces it, since the caller might keep only the context
	return d
}

// Release releases the lock, and ends the context. It tries for at most five seconds, but not
// beyond the end of the lease. If ctx has already ended, it is ignored. Otherwise ctx also limits
// the time. If the store hasn't answered by then, the error says so, and the release continues in
// the background. It returns [ErrLost] if the lock was lost, and [ErrNotHeld] if it was released
// before.
func (h *Hold) Release(ctx context.Context) error {
	s := h.mustBeHeld()
	mustBeContext(ctx)
	switch all := s.several(); {
	case h.given.Swap(true):
		return h.alreadyGiven()
	case all != nil:
		return all.release(ctx)
	}
	h.watch.Stop()
	if d := h.inside.Load(); d != nil {
		d.end()
	}
	return s.locker.wrap("release", s.hold.releaseWithin(ctx, s.locker.client))
}

// alreadyGiven returns the error for a second call of Release.
func (h *Hold) alreadyGiven() error {
	if h.several() != nil {
		return &Error{Op: "release", Name: h.Name(), Err: ErrNotHeld}
	}
	return h.locker.wrap("release", ErrNotHeld)
}

// Lost returns a channel that is closed when the lock is lost or the client is closed. Release
// never closes it. If the store says that it doesn't have the hold, [Hold.Err] reports the loss at
// once. The client then asks the store who holds the lock, so this channel, like the Done channel
// of the context, is closed up to a tenth of a second later.
func (h *Hold) Lost() <-chan struct{} {
	s := h.mustBeHeld()
	if all := s.several(); all != nil {
		return all.lost
	}
	return s.hold.lostChannel(s.locker.client)
}

// Err returns nil while the lock is held. Afterwards it says how the hold ended. After a loss it
// returns an [*Error] that wraps a [*Loss], and therefore [ErrLost]. If the client was closed, it
// returns [ErrClosed]. Once the hold's last release has begun, it returns [ErrNotHeld]. It checks
// the clock, like the Err method of the context.
func (h *Hold) Err() error {
	s, given := h.mustBeHeld(), h.given.Load()
	if all := s.several(); all != nil {
		return all.state(given)
	}
	return s.locker.stateOf(s.hold, given)
}

// Until returns the end of the period in which the lock is guaranteed to be held without further
// renewal, on this process's monotonic clock. To be safe, the period ends before the lease in the
// store, by a hundredth of the lease. Each renewal extends it. A fair lock that the store granted
// to the first in line lasts one to three seconds at first, whatever lease was requested. The first
// renewal, after at most a third of that time, extends it to the whole lease. Code that must stop
// while it still has the lock should call Until repeatedly, since after a loss someone else might
// get the lock earlier.
func (h *Hold) Until() time.Time {
	s := h.mustBeHeld()
	if all := s.several(); all != nil {
		return all.until()
	}
	return s.locker.client.epoch.Add(s.hold.claim.Until())
}

// HolderID returns the id of this hold in the store. It consists of the client's id, a colon and a
// number. No two acquisitions have the same id. A hold that was handed over, or that readers of
// this client share, keeps the id of the acquisition that asked the store.
func (h *Hold) HolderID() string {
	s := h.mustBeHeld()
	if all := s.several(); all != nil {
		return all.each(func(p *part) string { return p.h.claim.owner })
	}
	return s.hold.claim.owner
}

// Token returns the lock's fencing token, if the lock comes from a [Client.FencedLocker]. The token
// is never 0, and is larger than all earlier tokens of this lock. It stays the same after a loss,
// so a resource that has seen a larger token can refuse it.
func (h *Hold) Token() (token uint64, ok bool) {
	s := h.mustBeHeld()
	if all := s.several(); all != nil {
		token = all.token()
	} else {
		token = s.hold.token()
	}
	return token, token != 0
}

// Name returns the lock's name.
func (h *Hold) Name() string {
	s := h.mustBeHeld()
	if all := s.several(); all != nil {
		return all.each(func(p *part) string { return p.locker.name })
	}
	return s.locker.name
}

func (h *Hold) mustBeHeld() *stay {
	if h == nil || h.ctx == nil {
		panic("dlock: a Hold that is nil, or wasn't made by Acquire")
	}
	return &h.stay
}

// Token returns the fencing token of the innermost hold in ctx that has one. See [Hold.Token]. For
// several locks, see [MultiLocker.Acquire].
func Token(ctx context.Context) (token uint64, ok bool) {
	mustBeContext(ctx)
	for id := identityOf(ctx); id != nil; id = id.outer {
		if id.hold == nil {
			continue
		}
		if token := id.hold.token(); token != 0 {
			return token, true
		}
	}
	return 0, false
}

// Do acquires the lock as [Locker.Acquire] does, calls fn with the context of the hold (see
// [Hold.Context]), and releases the lock, even if fn panics or ends its goroutine.
//
// If the lock was not acquired, the error is an [*Error] whose Op is "do". Otherwise it is fn's
// error. If the lock was lost while fn ran, or the release failed, an *Error whose Op is "unlock"
// is joined to it, even if fn returned nil. A loss wraps [ErrLost]. Test for that first, since fn's
// error may just be the error of its context. The release takes at most 5 s, and ends with the
// lease at the latest, whether or not ctx has ended. If fn panics, the error of the release is
// logged.
//
// If fn re-enters the lock with its context and doesn't unlock it again, the lock stays held, since
// a goroutine that fn started might still need it. Do logs that, unless ctx names an owner. Unlock
// it with the context that was passed to fn. To find out whether fn ran, use [Locker.TryDo], or
// record it in fn. Do's error doesn't show that, since fn might return the same kind of error from
// another lock.
func (l *Locker) Do(
	ctx context.Context, fn func(context.Context) error, opts ...AcquireOption,
) error {
	l.mustBeMade()
	if fn == nil {
		return l.wrap("do", errNoFunction)
	}
	got, err := l.enter(ctx, acquireOptions{}, opts)
	if err != nil {
		return l.wrap("do", err)
	}
	return got.run(fn)
}

// TryDo is like [Locker.Do], but skips the work if someone else holds the lock. It acquires the
// lock as [Locker.TryLock] does, at once or within [Wait], and reports whether fn ran. False with a
// nil error means exactly one thing: someone else holds the lock. If fn ran, TryDo returns the same
// error as Do. Otherwise the error is an [*Error] whose Op is "trydo".
func (l *Locker) TryDo(
	ctx context.Context, fn func(context.Context) error, opts ...AcquireOption,
) (ran bool, err error) {
	l.mustBeMade()
	if fn == nil {
		return false, l.wrap("trydo", errNoFunction)
	}
	got, err := l.enter(ctx, acquireOptions{bounded: true}, opts)
	if isHeld(err) {
		return false, nil
	}
	if err != nil {
		return false, l.wrap("trydo", err)
	}
	return true, got.run(fn)
}

// enter acquires the lock for the owner that ctx names, or otherwise for a new owner.
func (l *Locker) enter(ctx context.Context, o acquireOptions, opts []AcquireOption) (stay, error) {
	l.mustBeMade()
	who := l.caller(ctx)
	if who.party == party(l.plain) {
		who = caller{party: NewOwner(), alone: true} // no other call can share its hold
	}
	return l.enterAs(ctx, who, o, opts)
}

// enterAs acquires the lock for a party.
func (l *Locker) enterAs(
	ctx context.Context, who caller, o acquireOptions, opts []AcquireOption,
) (stay, error) {
	h, err := l.acquire(ctx, who, o, opts)
	if err != nil {
		return stay{}, err
	}
	return stay{locker: l, hold: h, ctx: ctx, alone: who.alone}, nil
}

// run calls fn while the lock is held, and then releases the lock.
func (s *stay) run(fn func(context.Context) error) (err error) {
	l := s.locker
	ctx := s.hold.inside(s.ctx, l.client)
	returned := false
	defer func() {
		ctx.end()
		e := l.wrap("unlock", s.giveBack(withoutCancel(s.ctx)))
		if e != nil && !returned {
			l.client.warn("unlock, after a panic", "name", l.name, "err", e)
		}
		err = withUnlock(err, e)
	}()
	err = fn(ctx)
	returned = true
	return err
}

// giveBack releases the hold of a function that has returned. If the function re-entered the lock
// and didn't unlock it again, giveBack logs this. A goroutine that the function started might still
// need the lock, so giveBack releases the re-entries only if s.whole is set.
func (s *stay) giveBack(ctx context.Context) error {
	c := s.locker.client
	err := s.hold.releaseWithin(ctx, c)
	if err != nil || !s.alone {
		return err
	}
	left := s.hold.reportLeft(c, s.whole)
	for ; s.whole && left > 0; left-- {
		if err := s.hold.releaseWithin(ctx, c); err == ErrNotHeld {
			return nil // a goroutine of the function has just released it
		} else if err != nil {
			return err
		}
	}
	return nil
}
