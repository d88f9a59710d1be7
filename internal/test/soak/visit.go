package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/dlock"
)

// A user is a goroutine that uses locks. Each use is a visit.
type user struct {
	*party
	dice  *rand.Rand
	owner dlock.Owner
}

// oneIn returns true with a probability of 1/n.
func (u *user) oneIn(n int) bool { return u.dice.IntN(n) == 0 }

// upTo returns a random duration of at most d.
func (u *user) upTo(d time.Duration) time.Duration {
	return time.Duration(u.dice.Int64N(int64(d)) + 1)
}

// pause sleeps for a random duration, which is usually short.
func (u *user) pause(d time.Duration) {
	for u.oneIn(2) {
		d /= 2
	}
	time.Sleep(u.upTo(d)) // simulates the user's own work
}

// A visit is one use of a lock by a user.
type visit struct {
	*user
	line   *line
	use    use
	locker *dlock.Locker
	ctx    context.Context // carries the owner, if the visit has one
	nests  bool            // it may re-enter the lock
	// mixed reports whether other users acquire read holds through the same Locker. If so, the
	// Locker's answers may be about the holds of those users.
	mixed bool
	opts  []dlock.AcquireOption

	hold  hold
	valid func() bool // reports whether the hold is still valid
	count int         // the number of unlocks needed
}

// visit uses a random lock in a random way.
func (u *user) visit() {
	if u.Reopens && u.oneIn(200) {
		u.reopen()
	}
	name := u.Names[u.dice.IntN(len(u.Names))]
	if kindsOf(name)[0] == backend.Permits {
		u.borrow(name)
		return
	}
	if name == elected && !u.oneIn(8) { // otherwise use it like any lock
		u.campaign(name)
		return
	}
	if slices.Contains(divided, name) && u.oneIn(8) { // otherwise use it like any lock
		u.divide()
		return
	}
	v := u.newVisit(name)
	switch {
	case v.locker.Name() == u.Forced && u.oneIn(4):
		v.force()
	case u.oneIn(6):
		v.lock()
	case v.use.kind == backend.Write && u.oneIn(3):
		v.downgrade()
	case u.oneIn(4):
		v.take()
	case u.oneIn(2):
		v.do()
	default:
		v.call()
	}
}

func (u *user) newVisit(name string) *visit {
	v := &visit{user: u, line: u.current(), ctx: context.Background()}
	kinds := kindsOf(name)
	v.use = use{name, kinds[0]}
	if u.oneIn(4) {
		v.use.kind = kinds[len(kinds)-1]
	}
	v.locker = v.use.locker(v.line.client)
	if u.oneIn(4) {
		u.owner = dlock.NewOwner()
	}
	switch u.dice.IntN(4) {
	case 0:
		v.locker, v.mixed = v.line.shared[v.use], v.use.kind == backend.Read
	case 1:
		v.locker, v.nests = v.locker.For(u.owner), true
	case 2:
		v.ctx, v.nests = dlock.WithOwner(v.ctx, u.owner), true
	}
	v.hold = hold{
		Visit: u.next(), Name: name, Asked: now(), Lease: u.Lease,
		Shared: v.use.kind == backend.Read,
	}
	return v
}

// fix gives some acquisitions a fixed lease.
func (v *visit) fix() {
	if v.oneIn(4) {
		v.hold.Lease, v.hold.Fixed = v.Lease/10+v.upTo(v.Lease), true
		v.opts = append(v.opts, dlock.FixedLease(v.hold.Lease))
	}
}

// patience returns a context for one call. Some of the contexts end after a random time.
func (v *visit) patience(ctx context.Context) (context.Context, context.CancelFunc) {
	switch v.dice.IntN(4) {
	case 0:
		return context.WithCancel(ctx)
	case 1:
		return context.WithTimeout(ctx, v.upTo(v.Lease/50))
	default:
		return context.WithTimeout(ctx, v.upTo(2*v.Lease))
	}
}

// force forces the lock.
func (v *visit) force() {
	ctx, cancel := context.WithTimeout(v.ctx, v.Lease)
	defer cancel()
	_, err := v.locker.ForceUnlock(ctx)
	v.expect("ForceUnlock", err)
}

// lock makes a visit that uses Lock and Unlock, which return no errors.
func (v *visit) lock() {
	if v.ctx != context.Background() {
		// Lock takes no context, so it can't act for an owner.
		v.ctx, v.nests = context.Background(), false
	}
	if !v.survive("Lock", v.locker.Lock) {
		return
	}
	v.count = 1
	v.enter("Lock")
	v.stay()
	for range v.count {
		v.survive("Unlock", v.locker.Unlock)
	}
	v.leave()
}

// survive calls a function that may panic with an error. It ignores the panic if the client is
// closed, and passes any other error to expect. If the value of the panic isn't an error, survive
// panics with it again.
func (v *visit) survive(what string, call func()) (returned bool) {
	defer func() {
		switch r := recover().(type) {
		case nil:
		case error:
			if !errors.Is(r, dlock.ErrClosed) {
				v.expect(what, r)
			}
		default:
			panic(r)
		}
	}()
	call()
	return true
}

// call makes a visit that acquires and unlocks the lock with methods that return errors.
func (v *visit) call() {
	v.fix()
	how, ok := v.acquire()
	if !ok {
		return
	}
	v.count = 1
	v.enter(how)
	v.stay()
	for range v.count {
		v.unlock()
	}
	v.leave()
}

// acquire acquires the lock with a randomly chosen method.
func (v *visit) acquire() (how string, ok bool) {
	ctx, cancel := v.patience(v.ctx)
	defer cancel()
	var err error
	switch v.dice.IntN(4) {
	case 0:
		how = "TryLock"
		ok, err = v.locker.TryLock(ctx, v.opts...)
	case 1:
		how = "TryLock that waits"
		ok, err = v.locker.TryLock(ctx, append(v.opts, dlock.Wait(v.upTo(v.Lease)))...)
	default:
		how = "LockContext"
		err = v.locker.LockContext(ctx, v.opts...)
		ok = err == nil
	}
	v.expect(how, err)
	return how, ok
}

func (v *visit) unlock() {
	ctx, cancel := v.ctx, context.CancelFunc(func() {})
	if v.oneIn(4) {
		ctx, cancel = context.WithTimeout(ctx, v.upTo(v.Lease/20))
	}
	defer cancel()
	v.expect("UnlockContext", v.locker.UnlockContext(ctx))
}

// do is a visit with Do.
func (v *visit) do() {
	v.fix()
	ctx, cancel := v.patience(v.ctx)
	defer cancel()
	v.run(ctx, "Do")
	v.leave()
}

// take is a visit with Acquire.
func (v *visit) take() {
	v.fix()
	ctx, cancel := v.patience(v.ctx)
	defer cancel()
	h, err := v.locker.Acquire(ctx, v.opts...)
	v.expect("Acquire", err)
	if err != nil {
		return
	}
	v.hold.Number, _ = h.Token()
	v.numbered()
	v.enter("Acquire")
	v.valid = func() bool { return h.Context().Err() == nil }
	v.stayInside(h.Context())
	lost := h.Context().Err() != nil && errors.Is(context.Cause(h.Context()), dlock.ErrLost)
	v.hold.Lost = lost
	v.report(0)
	if err = h.Release(v.ctx); lost && !errors.Is(err, dlock.ErrLost) {
		v.wrong("Release, though the lock was lost, returned %v", err)
	}
	v.expect("Release", err)
	v.leave()
}

// numbered reports a violation if the hold of a fenced lock has no fencing token, or if the hold of
// a lock of another kind has one.
func (v *visit) numbered() {
	if (v.hold.Number != 0) != (v.use.kind == backend.Fenced) {
		v.wrong("a hold of kind %v has number %d", v.use.kind, v.hold.Number)
	}
}

// downgrade makes a visit that writes, and then continues as a reader.
func (v *visit) downgrade() {
	v.locker, v.ctx, v.nests = v.use.locker(v.line.client),
		dlock.WithOwner(context.Background(), v.owner), true
	how, ok := v.acquire()
	if !ok {
		return
	}
	v.enter(how)
	v.increment()
	r := *v
	r.use.kind = backend.Read
	r.locker = r.use.locker(v.line.client)
	r.hold.Shared, r.hold.Asked = true, now()
	read := false
	if how, read = r.acquire(); read {
		r.enter("downgrade by " + how)
		r.check(0)
	}
	v.check(0)
	v.unlock()
	v.leave()
	if read {
		r.linger(func() {})
		r.unlock()
		r.leave()
	}
}

// run acquires the lock with Do, which may be nested in another Do.
func (v *visit) run(ctx context.Context, how string) {
	over, lost := false, false
	err := v.locker.Do(ctx, func(inside context.Context) error {
		v.hold.Number, _ = dlock.Token(inside)
		v.numbered()
		v.enter(how)
		v.valid = func() bool {
			if inside.Err() != nil {
				over = true
			} else if over {
				v.wrong("a context that was over isn't any more")
			}
			return !over
		}
		v.stayInside(inside)
		lost = inside.Err() != nil && errors.Is(context.Cause(inside), dlock.ErrLost)
		v.hold.Lost = lost
		v.report(0)
		return nil
	}, v.opts...)
	v.expect("Do", err)
	if lost && !errors.Is(err, dlock.ErrLost) {
		v.wrong("Do, whose context had ended because the lock was lost, returned %v", err)
	}
}

// expect reports errors that no fault explains.
func (v *visit) expect(what string, err error) {
	switch {
	case errors.Is(err, dlock.ErrConflict):
	case !errors.Is(err, dlock.ErrNotHeld):
		return
	case (v.nests || v.mixed) && now()-v.hold.Asked > lossMemory*v.Lease:
		return // the client has since forgotten the loss
	}
	v.wrong("%s: %v", what, err)
}

// lossMemory is the number of leases for which a client remembers that an owner lost a lock.
const lossMemory = 10

func (v *visit) wrong(format string, args ...any) {
	v.tell(event{Wrong: fmt.Sprintf(format, args...) + ": " + v.hold.String()})
}

// enter reports that the lock was acquired.
func (v *visit) enter(how string) {
	v.hold.ID, v.hold.How = v.next(), how
	v.hold.In, v.hold.Until, v.hold.Lost = now(), 0, false
	v.valid = v.isHeld
	v.report(0)
}

// leave reports that the visit has ended.
func (v *visit) leave() { v.tell(event{}) }

// check reports an event with the given version if the lock is still held. A writer passes the
// version that it has just replaced, and a reader passes a version that a writer replaced during
// the reader's visit. If there is no such version, they pass 0.
func (v *visit) check(version uint64) {
	at := now()
	if !v.valid() {
		return
	}
	v.hold.Until = at
	v.report(version)
}

func (v *visit) report(version uint64) {
	h := v.hold
	if h.Shared {
		h.Saw = version
	} else {
		h.Read = version
	}
	v.tell(event{Hold: &h})
}

// isHeld reports whether the lock is still held, for a hold without a context of its own. If the
// store doesn't answer, isHeld returns false.
func (v *visit) isHeld() bool {
	if v.mixed {
		return false // the answer may concern another user's hold
	}
	ctx, cancel := context.WithTimeout(v.ctx, v.Lease)
	defer cancel()
	held, err := v.locker.IsHeld(ctx)
	v.expect("IsHeld", err)
	if !held && err == nil && !v.hold.Lost {
		v.hold.Lost = true
		v.report(0)
	}
	return held
}
