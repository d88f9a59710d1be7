package dlock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// MultiLocker is several locks as one: a call gets all of them or none. It implements
// [sync.Locker]. The locks may be of any kind, client and store. Its calls act as the calls of its
// Lockers would: what [Locker] says of plain calls and of owners is true of each lock, and an
// owner's holds are re-entered.
//
// It never waits while it has some of the locks. So programs that want the same locks in different
// orders don't wait for each other. It tries all of them at once. If it can't get one, it gives the
// others back, waits for that one alone as a Locker does (for a fair lock in line), and then tries
// the others again. So it keeps no place while it waits for another lock: a call for many contended
// locks gets them late, and perhaps never if two fair locks always have a line.
//
// Locks on one server are acquired, and released, with one write and one reply, each by its own
// request. Locks on several servers aren't acquired at one moment, but are all held when the call
// returns. A store that doesn't answer about one lock delays the others for a second at most.
//
// Each lock is acquired with the defaults of its Locker (see [Locker.With]), except for the wait,
// which is one for all: the shortest of them.
//
// Two Lockers for one lock are an error, also of different kinds, such as both sides of an
// [RWLocker]. If they are of two clients that isn't noticed, and the lock is never acquired.
//
// A [Trace], the log and the counters have each attempt at each lock. A MultiLocker is safe for
// concurrent use.
type MultiLocker struct {
	lockers []*Locker // as they were given
	order   []int     // in which they are tried
	err     error     // why it can't be used
}

// All returns a MultiLocker for these locks. It does no I/O. If there are none, or one is nil, or
// two are for the same lock of one client, every call returns an error that says so, and Lock and
// Unlock panic with it.
func All(lockers ...*Locker) *MultiLocker {
	m := &MultiLocker{lockers: slices.Clone(lockers), order: make([]int, len(lockers))}
	m.err = unfit(lockers)
	for i := range m.order {
		m.order[i] = i
	}
	if m.err == nil {
		// By name, which every process knows: those who want the same locks get in each other's way at the first of them.
		slices.SortStableFunc(m.order, func(i, j int) int {
			a, b := lockers[i], lockers[j]
			return cmp.Or(strings.Compare(a.name, b.name), cmp.Compare(rules[a.kind].family, rules[b.kind].family))
		})
	}
	return m
}

var errNoLockers = errors.New("there are no Lockers")

// unfit says what speaks against locking these together.
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

// usable returns the error of a call of one that can't be used.
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

// Lock waits until it has all locks, which are then renewed until [MultiLocker.Unlock]. It keeps
// trying, and panics, as [Locker.Lock] does; the [*Error] names the lock that it is about.
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
			l.client.pause(ctx, tries.next(firstReport, longestReport))
		}
	}
}

// Unlock releases all locks, each as [Locker.Unlock] does. If one of these panics, the others are
// released first.
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

// LockContext waits until it has all locks, as long as ctx and [Wait] allow, for all together. They
// are renewed until they are unlocked, unless [FixedLease] is given. After an error none is held.
// The errors are those of [Locker.LockContext], and name the lock that was the cause.
func (m *MultiLocker) LockContext(ctx context.Context, opts ...AcquireOption) error {
	_, err := m.acquire(ctx, "lock", false, acquireOptions{}, opts)
	return err
}

// TryLock takes the locks if that is possible now, or within [Wait]. False with a nil error means
// exactly one thing: another holds one of them. (For an [RWLocker] see [Locker.TryLock].) The
// errors are those of [MultiLocker.LockContext].
func (m *MultiLocker) TryLock(ctx context.Context, opts ...AcquireOption) (bool, error) {
	_, err := m.acquire(ctx, "trylock", false, acquireOptions{bounded: true}, opts)
	if e, ok := err.(*Error); ok && isHeld(e.Err) {
		return false, nil
	}
	return err == nil, err
}

// UnlockContext releases the locks, or one hold of an owner on each of them, all at the same time:
// see [Locker.UnlockContext]. An error names its lock; several are joined. The other locks are
// released all the same.
func (m *MultiLocker) UnlockContext(ctx context.Context) error {
	if err := m.usable("unlock"); err != nil {
		return err
	}
	mustBeContext(ctx)
	return joined("unlock", m.unlock(ctx))
}

// Acquire waits for the locks as [MultiLocker.LockContext] does, and returns one Hold of them all.
// It acts for the owner or hold of ctx, as [Locker.Acquire] does; otherwise the Hold is an owner of
// its own.
//
// The Hold is lost when the first of its locks is: its context ends with that loss as its cause.
// The others stay held until its Release. Calls with its context re-enter each of the locks. Its
// Until is the earliest of its locks. Its Name and HolderID are those of all, joined by ", ". Its
// Token, and [Token] of its context, are those of the last Locker given to [All] that has one; to
// get another, acquire that lock with the context. Its Release gives all back at the same time, and
// joins the errors.
func (m *MultiLocker) Acquire(ctx context.Context, opts ...AcquireOption) (*Hold, error) {
	t, err := m.acquire(ctx, "acquire", true, acquireOptions{}, opts)
	if err != nil {
		return nil, err
	}
	return t.handle(ctx), nil
}

// Do acquires the locks as [MultiLocker.Acquire] does, calls fn with the context of the hold, and releases them, also when fn panics or ends
// its goroutine. The errors are those of [Locker.Do].
func (m *MultiLocker) Do(ctx context.Context, fn func(context.Context) error, opts ...AcquireOption) error {
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

// TryDo is [MultiLocker.Do] for work that is skipped while another has one of the locks: see
// [Locker.TryDo].
func (m *MultiLocker) TryDo(ctx context.Context, fn func(context.Context) error, opts ...AcquireOption) (ran bool, err error) {
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

// acquire gets the locks, for a party of its own or for whoever calls.
func (m *MultiLocker) acquire(ctx context.Context, op string, alone bool, o acquireOptions, opts []AcquireOption) (*together, error) {
	if err := m.usable(op); err != nil {
		return nil, err
	}
	t := m.wanted(ctx, alone)
	if failed := t.acquire(ctx, o, opts); failed != nil {
		return nil, failed.error(op)
	}
	return t, nil
}

// wanted returns the locks as a caller wants them, or a party of its own where nobody else is named.
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

// unlock gives back one hold of whoever calls on each of the locks, and returns how that went.
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
		if p.err == errAgain { // it was given back just now by another call, which knew it first
			p.err = p.locker.unlockAs(ctx, p.who)
		}
	}
	return t.given
}

// toUnlock returns what an unlock of a caller gives back, lost or not, or why there is nothing.
func (l *Locker) toUnlock(who caller) (*hold, error) {
	switch {
	case l.name == "":
		return nil, errEmptyName
	case who.hold != nil && who.hold.kind == l.kind:
		return who.hold, nil
	case who.party == party(l.plain):
		return l.plainHold()
	}
	if h := l.client.latest(l, who.party); h != nil {
		return h, nil
	}
	return nil, ErrNotHeld
}
