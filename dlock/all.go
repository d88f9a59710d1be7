package dlock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// MultiLocker treats several locks as one. A call gets all of them or none. It implements
// [sync.Locker]. The locks can be of different kinds, and belong to different clients and stores.
// Its methods behave like a Locker's. The rules of [Locker] for plain calls and owners apply to
// each lock. For example, an owner that already holds one of the locks re-enters it.
//
// A call never waits while it holds some of the locks, so programs that want the same locks in
// different orders can't deadlock. It tries all of them at once. If it can't get one, it releases
// the others and waits for that one alone, as a Locker does. For a fair lock it waits in line. Once
// it has that lock, it tries the others again. While it waits for one lock, it has no place in the
// line of another, so a call for many contended locks might wait for a long time. If two of the
// locks are fair and always have waiters, it might never get both.
//
// Redis, Valkey and PostgreSQL get the requests for the locks on one server in one batch. Other
// stores get one request for each lock, all at the same time. Releases are sent in the same way.
// Locks on several servers aren't acquired at the same instant, but all are held when the call
// returns. A store that doesn't answer for one lock delays the others by at most a second.
//
// Each lock is acquired with the defaults of its Locker (see [Locker.With]), except for [Wait]: the
// shortest Wait among the defaults limits the whole call.
//
// Passing two Lockers for the same lock is an error, even if they are of different kinds, such as
// both sides of an [RWLocker]. If the two Lockers belong to different clients, the mistake goes
// undetected, and the lock is never acquired.
//
// Each attempt at each lock appears in a [Trace], the log and the counters. A MultiLocker is safe
// for concurrent use.
type MultiLocker struct {
	lockers []*Locker // in the order of the arguments of All
	order   []int     // the order in which the locks are tried
	err     error     // why the MultiLocker can't be used; nil if it can
}

// All returns a MultiLocker for the given locks. It does no I/O. If there are no Lockers, if one is
// nil, or if two are for the same lock of one client, every call of the MultiLocker returns an
// error that says so, and Lock and Unlock panic with it.
func All(lockers ...*Locker) *MultiLocker {
	m := &MultiLocker{lockers: slices.Clone(lockers), order: make([]int, len(lockers))}
	m.err = unfit(lockers)
	for i := range m.order {
		m.order[i] = i
	}
	if m.err == nil {
		// Sort by name, so that all processes try the locks in the same order. Calls that want the
		// same locks then conflict at the first of them.
		slices.SortStableFunc(m.order, func(i, j int) int {
			a, b := lockers[i], lockers[j]
			return cmp.Or(strings.Compare(a.name, b.name),
				cmp.Compare(a.kind.Family(), b.kind.Family()))
		})
	}
	return m
}

var errNoLockers = errors.New("there are no Lockers")

// unfit returns the reason why these Lockers can't be locked together, or nil.
func unfit(lockers []*Locker) error {
	if len(lockers) == 0 {
		return errNoLockers
	}
	type lock struct {
		client *Client
		key    lockKey
	}
	seen := make(map[lock]bool, len(lockers))
	for i, l := range lockers {
		if l == nil || l.client == nil {
			return fmt.Errorf("lockers[%d] is nil, or wasn't made by a Client", i)
		}
		if k := (lock{l.client, l.key()}); seen[k] {
			return fmt.Errorf("%q is there twice", l.name)
		} else {
			seen[k] = true
		}
	}
	return nil
}

// usable returns an error that says why the MultiLocker can't be used, or nil.
func (m *MultiLocker) usable(op string) error {
	switch {
	case m == nil:
		panic("dlock: a MultiLocker that is nil")
	case m.err != nil:
		return &Error{Op: op, Name: m.name(), Err: m.err}
	case len(m.lockers) == 0: // it wasn't made by All
		return &Error{Op: op, Err: errNoLockers}
	}
	return nil
}

// name returns the names of the locks.
func (m *MultiLocker) name() string {
	var names []string
	for _, l := range m.lockers {
		if l != nil {
			names = append(names, l.name)
		}
	}
	return strings.Join(names, ", ")
}

// Lock waits until it has all locks. They are then renewed until [MultiLocker.Unlock]. It retries
// and panics under the same conditions as [Locker.Lock]. The [*Error] of a panic names the lock
// that caused it.
func (m *MultiLocker) Lock() {
	if err := m.usable("lock"); err != nil {
		panic(err)
	}
	ctx := context.Background()
	var tries backoff
	for {
		t := m.wanted(ctx, false)
		failed := t.acquire(ctx, acquireOptions{endless: true}, nil)
		if failed == nil {
			return
		}
		if l := failed.locker; isHopeless(failed.err) {
			panic(failed.error("lock"))
		} else {
			l.client.warn("cannot lock yet", "name", l.name, "err", failed.err)
			l.client.store.Pause(ctx, tries.next(firstReport, longestReport))
		}
	}
}

// Unlock releases all locks, each as [Locker.Unlock] does. If the release of one of them panics,
// Unlock still releases the others before it panics.
func (m *MultiLocker) Unlock() {
	if err := m.usable("unlock"); err != nil {
		panic(err)
	}
	var wrong error
	for _, p := range m.unlock(context.Background()) {
		switch l := p.locker; {
		case errors.Is(p.err, ErrNotHeld) && !l.mayHaveLost():
			wrong = cmp.Or(wrong, p.error("unlock"))
		case p.err != nil:
			l.client.warn("unlock", "name", l.name, "err", p.err)
		}
	}
	if wrong != nil {
		panic(wrong)
	}
}

// LockContext waits until it has all locks. ctx and [Wait] limit the total time. The locks are
// renewed until they are unlocked, unless [FixedLease] is given. If the call fails, it holds none
// of them. It returns the same errors as [Locker.LockContext], with the name of the lock that
// couldn't be acquired.
func (m *MultiLocker) LockContext(ctx context.Context, opts ...AcquireOption) error {
	_, err := m.acquire(ctx, "lock", false, acquireOptions{}, opts)
	return err
}

// TryLock acquires the locks if it can do so now, or within [Wait]. False with a nil error means
// exactly one thing: someone else holds one of them. (For an [RWLocker], see [Locker.TryLock].)
// TryLock returns the same errors as [MultiLocker.LockContext].
func (m *MultiLocker) TryLock(ctx context.Context, opts ...AcquireOption) (bool, error) {
	_, err := m.acquire(ctx, "trylock", false, acquireOptions{bounded: true}, opts)
	if e, ok := err.(*Error); ok && isHeld(e.Err) {
		return false, nil
	}
	return err == nil, err
}

// UnlockContext releases all locks concurrently, each as [Locker.UnlockContext] does: if ctx names
// an owner, it releases one hold of that owner on each lock. Each error names its lock, and several
// errors are joined. A failure doesn't stop the release of the other locks.
func (m *MultiLocker) UnlockContext(ctx context.Context) error {
	if err := m.usable("unlock"); err != nil {
		return err
	}
	mustBeContext(ctx)
	return joined("unlock", m.unlock(ctx))
}

// Acquire waits for the locks as [MultiLocker.LockContext] does, and returns a single Hold for all
// of them. It acts for the owner or hold of ctx, as [Locker.Acquire] does. If ctx has neither,
// Acquire acts for a new owner.
//
// The Hold is lost as soon as one of its locks is lost. The Hold's context then ends with that loss
// as its cause, but the other locks stay held until [Hold.Release]. Calls with the Hold's context
// re-enter each of the locks. [Hold.Until] returns the earliest of the locks' times. [Hold.Name]
// and [Hold.HolderID] return the names and the holder IDs of all locks, joined by ", ".
// [Hold.Token], and [Token] of the Hold's context, return the token of the last Locker given to
// [All] that has tokens. To get the token of another lock, acquire that lock again with the Hold's
// context. [Hold.Release] releases all locks concurrently, and joins the errors.
func (m *MultiLocker) Acquire(ctx context.Context, opts ...AcquireOption) (*Hold, error) {
	t, err := m.acquire(ctx, "acquire", true, acquireOptions{}, opts)
	if err != nil {
		return nil, err
	}
	return t.handle(ctx), nil
}

// Do acquires the locks as [MultiLocker.Acquire] does, calls fn with the context of the hold, and
// releases the locks. It releases them even if fn panics or ends its goroutine. Do returns the same
// errors as [Locker.Do].
func (m *MultiLocker) Do(
	ctx context.Context, fn func(context.Context) error, opts ...AcquireOption,
) error {
	if err := m.usable("do"); err != nil {
		return err
	}
	if fn == nil {
		return &Error{Op: "do", Name: m.name(), Err: errNoFunction}
	}
	t, err := m.acquire(ctx, "do", true, acquireOptions{}, opts)
	if err != nil {
		return err
	}
	return t.run(ctx, fn)
}

// TryDo is like [MultiLocker.Do], but skips the work if someone else holds one of the locks. See
// [Locker.TryDo].
func (m *MultiLocker) TryDo(
	ctx context.Context, fn func(context.Context) error, opts ...AcquireOption,
) (ran bool, err error) {
	if err := m.usable("trydo"); err != nil {
		return false, err
	}
	if fn == nil {
		return false, &Error{Op: "trydo", Name: m.name(), Err: errNoFunction}
	}
	t, err := m.acquire(ctx, "trydo", true, acquireOptions{bounded: true}, opts)
	if e, ok := err.(*Error); ok && isHeld(e.Err) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return true, t.run(ctx, fn)
}

// acquire acquires the locks for the caller. If the context names no owner, and alone is set, the
// call acts for a new owner.
func (m *MultiLocker) acquire(
	ctx context.Context, op string, alone bool, o acquireOptions, opts []AcquireOption,
) (*together, error) {
	if err := m.usable(op); err != nil {
		return nil, err
	}
	t := m.wanted(ctx, alone)
	if failed := t.acquire(ctx, o, opts); failed != nil {
		return nil, failed.error(op)
	}
	return t, nil
}

// wanted returns the parts of a call, one for each lock. If the context names no owner, and alone
// is set, the parts belong to a new owner.
func (m *MultiLocker) wanted(ctx context.Context, alone bool) *together {
	t := &together{parts: make([]*part, len(m.order)), given: make([]*part, len(m.order))}
	parts := make([]part, len(m.order))
	var own Owner
	for i, place := range m.order {
		p := &parts[i]
		p.locker = m.lockers[place]
		p.who = p.locker.caller(ctx)
		if alone && p.who.party == party(p.locker.plain) {
			if own == (Owner{}) {
				own = NewOwner()
			}
			p.who = caller{party: own, alone: true}
		}
		t.parts[i], t.given[place] = p, p
	}
	return t
}

// unlock releases one hold of the caller on each of the locks, and returns the results.
func (m *MultiLocker) unlock(ctx context.Context) []*part {
	t := m.wanted(ctx, false)
	var found []*part
	for _, p := range t.parts {
		if p.h, p.err = p.locker.toUnlock(p.who); p.h != nil {
			found = append(found, p)
		}
	}
	releaseParts(ctx, found, false)
	for _, p := range t.parts {
		if p.err == errAgain { // another call has just released it
			p.err = p.locker.unlockAs(ctx, p.who)
		}
	}
	return t.given
}

// toUnlock returns the hold that an unlock by the caller would release. This hold may already be
// lost. If there is no hold, toUnlock returns the reason.
func (l *Locker) toUnlock(who caller) (*hold, error) {
	switch {
	case l.name == "":
		return nil, errEmptyName
	case who.hold != nil && who.hold.kind == l.kind:
		return who.hold, nil
	case who.party == party(l.plain):
		return l.plainHold()
	}
	if h := l.latest(who.party); h != nil {
		return h, nil
	}
	return nil, ErrNotHeld
}
