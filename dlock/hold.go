package dlock

import (
	"context"
	"runtime"
	"sync/atomic"
	"time"
)

// Hold is a lock that is held, from [Locker.Acquire] to [Hold.Release]. Use it where [Locker.Do]
// doesn't fit, since the code can't be one function. It is safe for concurrent use. All of this is
// also true of the Hold of several locks: see [MultiLocker.Acquire].
//
// A Hold that is dropped without a Release, along with its context, is logged when that is found,
// and goes on being renewed.
type Hold struct {
	stay
	inside atomic.Pointer[holdContext] // once it is asked for: most never are
	given  atomic.Bool                 // back
	watch  runtime.Cleanup
}

// stay is what an acquisition has brought about, and the context that it was made with. Of several locks that is
// all in their own context.
type stay struct {
	locker *Locker
	hold   *hold
	ctx    context.Context
	alone  bool // nobody else is its party: what its function leaves of it was forgotten
	whole  bool // and is given back with it
}

// Acquire waits for the lock as [Locker.LockContext] does, and returns a Hold. If ctx names an
// owner, or comes from another hold of this lock, Acquire re-enters that. Otherwise the Hold is an
// owner of its own: two Holds of one Locker exclude each other, and are separate from the Locker's
// plain calls. With Wait(0) it gives up with [ErrNotAcquired] if another has the lock. The errors
// are those of LockContext. The context of the Hold ends with ctx, so bound only the wait with
// [Wait].
func (l *Locker) Acquire(ctx context.Context, opts ...AcquireOption) (*Hold, error) {
	got, err := l.enter(ctx, acquireOptions{}, opts)
	if err != nil {
		return nil, l.wrap("acquire", err)
	}
	return newHandle(got), nil
}

// newHandle returns what a caller gets that has acquired something.
func newHandle(got stay) *Hold {
	h := &Hold{stay: got}
	h.watch = runtime.AddCleanup(h, got.locker.client.droppedHold, got.hold)
	return h
}

// Context returns a context for the work under the lock. It has the values of the context that
// Acquire was given. It ends
//
//   - when the lock is lost, at the latest when the lease has run out on this machine's clock; the
//     cause is an [*Error] that wraps a [*Loss], and so [ErrLost];
//   - when the client is closed, with cause [ErrClosed];
//   - with the context that Acquire was given;
//   - when the Hold is released.
//
// After a pause of the process the first call of its Err reports a loss; its Done channel, and
// derived contexts, follow a moment later. The context carries the hold: Do, Acquire and
// LockContext of the same lock re-enter it, in any goroutine, also within a hold of another lock.
// Once the hold is over they return [ErrLost], or [ErrNotHeld] if it was given back. For other
// locks the context is as the one that Acquire was given.
func (h *Hold) Context() context.Context {
	s := h.mustBeHeld()
	if all := s.several(); all != nil {
		return all
	}
	if d := h.inside.Load(); d != nil {
		return d
	}
	c := s.locker.client
	d := c.inside(s.ctx, s.hold)
	d.watch = runtime.AddCleanup(d, c.droppedHold, s.hold)
	if !h.inside.CompareAndSwap(nil, d) {
		d.end()
		return h.inside.Load()
	}
	if h.given.Load() {
		d.end()
	}
	h.watch.Stop() // who has the context has not dropped what it is for
	return d
}

// Release gives the lock back, and ends the context. It works even if ctx has ended. It tries for 5
// s or the rest of the lease at most, and no longer than ctx allows. If the store hasn't answered
// by then, the error says so, and the release continues in the background. It returns [ErrLost] if
// the lock was lost, and [ErrNotHeld] if it was given back before.
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
	return s.locker.wrap("release", s.locker.client.releaseWithin(ctx, s.hold))
}

// alreadyGiven is the error of a second Release.
func (h *Hold) alreadyGiven() error {
	if h.several() != nil {
		return &Error{Op: "release", Name: h.Name(), Err: ErrNotHeld}
	}
	return h.locker.wrap("release", ErrNotHeld)
}

// Lost returns a channel that is closed when the lock is lost or the client is closed. A Release
// never closes it. If the store says that it doesn't have the hold, [Hold.Err] returns that at
// once. The channel, like that of the context, is closed after the store was asked who has the
// lock: within a tenth of a second.
func (h *Hold) Lost() <-chan struct{} {
	s := h.mustBeHeld()
	if all := s.several(); all != nil {
		return all.lost
	}
	return s.locker.client.lostChannel(s.hold)
}

// Err returns nil while the lock is held. Then it returns how that ended: an [*Error] that wraps a
// [*Loss], and so [ErrLost]; [ErrClosed]; or [ErrNotHeld] once its last release has begun. It looks
// at the clock, like the Err of the context.
func (h *Hold) Err() error {
	s, given := h.mustBeHeld(), h.given.Load()
	if all := s.several(); all != nil {
		return all.state(given)
	}
	return s.locker.stateOf(s.hold, given)
}

// stateOf returns how a hold that may have been given back has ended, or nil.
func (l *Locker) stateOf(h *hold, given bool) error {
	c := l.client
	c.mu.Lock()
	defer c.unlock()
	switch {
	case c.checkLocked(h) && !given:
		return nil
	case h.state == live:
		return l.wrap("hold", ErrNotHeld)
	case h.state == lost:
		return h.ended()
	default:
		return l.wrap("hold", h.overError())
	}
}

// Until returns until when the lock is surely held without further renewal, by this process's
// monotonic clock: a hundredth of the lease before the store lets it end. Each renewal moves it. A
// fair lock that the store gave to the first in line has a second or a few at first, whatever its
// lease. Its first renewal, within a third of that, is for the whole lease. Code that must stop by
// then looks at it again and again: a lock that is lost may be another's before.
func (h *Hold) Until() time.Time {
	s := h.mustBeHeld()
	if all := s.several(); all != nil {
		return all.until()
	}
	return s.locker.client.epoch.Add(s.hold.claim.Until())
}

// HolderID returns what the store knows this hold by: the client's id, a colon and a number. No two
// acquisitions have the same. A hold that was handed over, or that readers of this client share,
// has the id of the one that asked the store.
func (h *Hold) HolderID() string {
	s := h.mustBeHeld()
	if all := s.several(); all != nil {
		return all.each(func(p *part) string { return p.h.claim.owner })
	}
	return s.hold.claim.owner
}

// Token returns the lock's fencing token, if the lock is one of a [Client.FencedLocker]. It is
// never 0, and larger than any before for this lock. It stays the same after a loss, so that a
// resource can refuse it.
func (h *Hold) Token() (token uint64, ok bool) {
	s := h.mustBeHeld()
	if all := s.several(); all != nil {
		token = all.token()
	} else {
		token = s.hold.token()
	}
	return token, token != 0
}

// token returns the fencing token of a hold, or 0. It needs no mutex.
func (h *hold) token() uint64 {
	if !rules[h.kind].numbered {
		return 0
	}
	return h.claim.token()
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

// Token returns the fencing token of the innermost hold in ctx that has one: see [Hold.Token]. For
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
// [Hold.Context]), and releases it, also when fn panics or ends its goroutine.
//
// If the lock was not acquired, the error is an [*Error] whose Op is "do". Otherwise it is fn's
// error, joined with an *Error whose Op is "unlock" if the lock was lost meanwhile or the release
// failed, even if fn returned nil. A loss wraps [ErrLost]: test for that first, since fn's error
// may be that of its context. The release takes 5 s or the rest of the lease at most, whether or
// not ctx has ended. If fn panics, the error of the release is logged.
//
// If fn re-enters the lock with its context and doesn't give that back, the lock stays held, since
// a goroutine that fn started may be inside. That is logged, unless an owner did it; give it back
// with that context. To know whether fn ran, see [Locker.TryDo], or note it in fn: fn's error may
// be such an error of another lock.
func (l *Locker) Do(ctx context.Context, fn func(context.Context) error, opts ...AcquireOption) error {
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

// TryDo is [Locker.Do] for work that is skipped while another has the lock. It acquires as
// [Locker.TryLock] does, at once or within [Wait], and says whether fn ran. False with a nil error
// means exactly one thing: another holds the lock. If fn ran, the error is as that of Do; otherwise
// it is an [*Error] whose Op is "trydo".
func (l *Locker) TryDo(ctx context.Context, fn func(context.Context) error, opts ...AcquireOption) (ran bool, err error) {
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

// enter acquires the lock for somebody of its own, or for whom ctx names.
func (l *Locker) enter(ctx context.Context, o acquireOptions, opts []AcquireOption) (stay, error) {
	l.mustBeMade()
	who := l.caller(ctx)
	if who.party == party(l.plain) {
		who = caller{party: NewOwner(), alone: true} // its hold is its own
	}
	return l.enterAs(ctx, who, o, opts)
}

// enterAs acquires the lock for that party.
func (l *Locker) enterAs(ctx context.Context, who caller, o acquireOptions, opts []AcquireOption) (stay, error) {
	h, err := l.acquire(ctx, who, o, opts)
	if err != nil {
		return stay{}, err
	}
	return stay{locker: l, hold: h, ctx: ctx, alone: who.alone}, nil
}

// run calls fn while the lock is held, and releases it.
func (s *stay) run(fn func(context.Context) error) (err error) {
	l := s.locker
	ctx := l.client.inside(s.ctx, s.hold)
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

// giveBack gives back what a function was called for, which is over. Where it has re-entered the
// lock and not given that back, the lock goes on being held: perhaps by a goroutine that it has
// started, so that this is only logged, unless the whole is to be given back.
func (s *stay) giveBack(ctx context.Context) error {
	c := s.locker.client
	err := c.releaseWithin(ctx, s.hold)
	if err != nil || !s.alone {
		return err
	}
	left := c.reportLeft(s.hold, s.whole)
	for ; s.whole && left > 0; left-- {
		if err := c.releaseWithin(ctx, s.hold); err == ErrNotHeld {
			return nil // a goroutine that it has started has given it back just now
		} else if err != nil {
			return err
		}
	}
	return nil
}

// reportLeft logs, and returns, how often a hold whose function has returned is still to be given
// back by its party, which nobody else is: what it reads under a write, too.
func (c *Client) reportLeft(h *hold, released bool) (left int) {
	c.mu.Lock()
	defer c.unlock()
	if h.state == live {
		left = int(h.count)
	}
	all := left
	if r := c.presentLocked(h.claim).reader(h.party); r != nil && r != h && r.state == live {
		all += int(r.count)
	}
	what := "a function has returned, and its lock stays held"
	if released {
		what = "a function has returned, and its lock is released"
	}
	if all > 0 {
		c.warnLocked(what+": what it has re-entered isn't given back", "name", h.claim.object.name,
			"kind", h.kind.String(), "holder", h.claim.owner, "count", all)
	}
	return left
}

// withoutCancel is [context.WithoutCancel], for less where ctx never ends.
func withoutCancel(ctx context.Context) context.Context {
	if ctx.Done() == nil {
		return ctx
	}
	return context.WithoutCancel(ctx)
}

// holdContext is the context of a hold. Its Err looks at the clock, and so it is right even when no
// timer has run since the process was paused. Nothing of this package refers to it but its Hold, so that one that is
// dropped can be found.
type holdContext struct {
	context.Context // ends with the caller's, with the hold, and when that is given back
	id              identity
	line            *lifeline
	watch           runtime.Cleanup // that of a Hold: whether it is dropped
}

// A lifeline is how a hold ends a context.
type lifeline struct{ cancel context.CancelCauseFunc }

// Err says whether the context is over.
func (d *holdContext) Err() error {
	if err := d.Context.Err(); err != nil || d.id.client.now() < d.id.hold.claim.Until() {
		return err
	}
	if err := d.id.client.lossOf(d.id.hold); err != nil {
		d.line.cancel(err)
	}
	return d.Context.Err()
}

// Value returns what the caller's context does, and in whose name calls with this one are made.
func (d *holdContext) Value(key any) any {
	if key == (identityKey{}) {
		return &d.id
	}
	return d.Context.Value(key)
}

// inside returns the context for what is done while h is held.
func (c *Client) inside(ctx context.Context, h *hold) *holdContext {
	id := identity{party: h.party, client: c, hold: h, outer: identityOf(ctx)}
	ctx, cancel := withCancelCause(ctx)
	d := &holdContext{Context: ctx, id: id, line: &lifeline{cancel}}
	c.mu.Lock()
	defer c.unlock()
	t := h.watchedLocked()
	if t.contexts == nil {
		t.contexts = make(map[*lifeline]struct{})
	}
	t.contexts[d.line] = struct{}{}
	if h.state != live {
		c.endContextsLocked(h, h.ended())
	}
	return d
}

// end ends the context, since what it is for is given back.
func (d *holdContext) end() {
	d.watch.Stop()
	d.line.cancel(nil)
	c, h := d.id.client, d.id.hold
	c.mu.Lock()
	defer c.mu.Unlock()
	if h.watchers != nil {
		delete(h.watchers.contexts, d.line)
	}
}

// watchedLocked returns who is told when a hold is over.
func (h *hold) watchedLocked() *watchers {
	if h.watchers == nil {
		h.watchers = new(watchers)
	}
	return h.watchers
}

// lostChannel returns a channel that is closed when a hold is lost.
func (c *Client) lostChannel(h *hold) <-chan struct{} {
	c.mu.Lock()
	defer c.unlock()
	c.checkLocked(h)
	t := h.watchedLocked()
	if len(t.over) == 0 {
		t.over = []*notice{h.noticeFor()}
		if h.state == lost || h.state == forsaken {
			t.over[0].give()
		}
	}
	return t.over[0].over
}

// within says whether ctx comes from a hold.
func (h *hold) within(ctx context.Context) bool {
	for id := identityOf(ctx); id != nil; id = id.outer {
		if id.hold == h {
			return true
		}
	}
	return false
}
