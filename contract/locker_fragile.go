package contract

import (
	"fmt"
	"time"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/contract/faults"
	"github.com/seed951563bd/distsync/dlock"
)

var fragileLockerCases = []testCase{
	{name: "a connection that breaks",
		rule: "no lock is lost and none is left behind, whichever request or reply is lost",
		tags: differs, run: locker(breakingConnection)},
}

// breakingConnection repeats a series of calls. Each time, a fault hits a different request of the
// series. Leases are long, so that the case notices holds that are left behind.
func breakingConnection(l *lab) {
	l.skipWithout(l.store.Fragile != nil, "Fragile")
	back, strike := l.store.Fragile()
	p, q := l.processOn(newFaults(back), dlock.WithLease(l.longLease())), l.process()
	for _, blow := range []faults.Blow{faults.LoseRequest, faults.LoseReply} {
		for n, struck := 0, true; struck; n++ {
			name := fmt.Sprintf("%v, %d", blow, n)
			l.eventually("the connection works again", func() bool {
				_, err := p.Locker(name).IsLocked(l.ctx)
				return err == nil
			})
			end := strike(blow, n)
			l.tryOnce(p, name)
			l.nest(p, q, name)
			struck = end()
			l.eventuallyFree(name)
		}
	}
}

var fragileLineCases = []testCase{
	{name: "a connection that breaks in a line",
		rule: "the waiters get in and no place is left behind, whichever request or reply is lost",
		run:  ofKind(backend.Fair, breakingLine)},
}

// breakingLine repeats a call that waits in line. Each time, a fault hits a different request of
// the call.
func breakingLine(l *lab) {
	l.skipWithout(l.store.Fragile != nil, "Fragile")
	back, strike := l.store.Fragile()
	p := l.processOn(newFaults(back), dlock.WithLease(l.longLease()))
	for _, blow := range []faults.Blow{faults.LoseRequest, faults.LoseReply} {
		for n, struck := 0, true; struck; n++ {
			name := fmt.Sprintf("%v, %d", blow, n)
			l.eventually("the connection works again", func() bool {
				_, err := p.Locker(name).IsLocked(l.ctx)
				return err == nil
			})
			l.take(name, "other:1")
			end := strike(blow, n)
			lk := p.Locker(name)
			wait := l.start("a waiter, "+name, func() error { return lk.LockContext(l.ctx) })
			l.eventually("it stands in line", func() bool { return p.inLine(name) > 0 })
			l.gives(name, "other:1")
			wait.ok()
			l.unlock(lk)
			struck = end()
			begin := time.Now()
			l.leavesNothing(name)
			l.tookBetween(begin, 0, placeLease+lineDelay, "what is left behind, "+name)
		}
	}
}

// tryOnce calls TryLock and, if that acquires the lock, unlocks. TryLock may return an error. But
// it must not report that the lock is held, since nobody holds it.
func (l *lab) tryOnce(p *process, name string) {
	l.Helper()
	lk := p.Locker(name)
	switch ok, err := lk.TryLock(l.ctx); {
	case ok:
		l.unlock(lk)
	case err == nil:
		l.Fatalf("%s: TryLock says that another has the lock, and nobody does", name)
	}
	l.eventuallyFree(name)
}

// nest locks three times with one owner, and unlocks three times.
func (l *lab) nest(p, q *process, name string) {
	l.Helper()
	lk, ctx := p.Locker(name), l.ctxOf()
	for range 3 {
		l.noError(lk.LockContext(ctx), name+": LockContext")
	}
	for held := 3; held > 0; held-- {
		res, err := l.other.Look(l.ctx, backend.LookRequest{
			Kind: l.kind, Name: name, Owner: p.owner(name),
		})
		l.noError(err, "Look")
		if res.Count < held || isOver(lk.Lost(ctx)) {
			l.Fatalf("%s: held %d times, and the store counts %d; lost: %v", name, held, res.Count,
				isOver(lk.Lost(ctx)))
		}
		if l.tryLock(q.Locker(name)) {
			l.Fatalf("%s: another got in", name)
		}
		l.noError(lk.UnlockContext(ctx), name+": UnlockContext")
	}
}
