package contract

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/dlock"
)

// partCases test a store with several parts while one of its parts hangs.
var partCases = []testCase{
	{name: "a hold while a part hangs",
		rule: "stays with its holder while it is renewed, whichever part hangs",
		tags: PartHangs | HoldStays | differs, run: locker(holdBesideAPart)},
	{name: "contenders while a part hangs",
		rule: "get the lock one after the other, whichever part hangs",
		tags: PartHangs | differs, run: locker(contendersBesideAPart)},
	{name: "a waiter while a part hangs", rule: "is woken by a release, whichever part hangs",
		tags: PartHangs | differs,
		run:  locker(waiterBesideAPart)},
	{name: "a release while a part hangs",
		rule: "lets the next one in, whichever part hangs, also when that part is back and the " +
			"holder is gone",
		tags: PartHangs | differs,
		run:  locker(releaseBesideAPart)},
}

// eachPart calls f once for each of the store's parts, while that part hangs. After each call it
// waits for the given lease.
func (l *lab) eachPart(lease time.Duration, f func(name string)) {
	l.Helper()
	l.skipWithout(len(l.store.Parts) > 0, "Parts")
	for i, hang := range l.store.Parts {
		resume := hang()
		running := true
		l.Cleanup(func() {
			if running {
				resume()
			}
		})
		f(fmt.Sprint("part ", i+1))
		resume()
		running = false
		l.sleep(lease) // let renewals restore the holds in the part that hung
		if l.Failed() {
			l.FailNow()
		}
	}
}

// steady returns a lease that outlasts the delay caused by a part that hangs. A store may have to
// elect another leader first, which takes seconds.
func (l *lab) steady() time.Duration {
	if l.h.Virtual {
		return l.lease()
	}
	return l.legal(8 * time.Second)
}

// soon checks that f returns without waiting for a poll. In a bubble, it checks how long f takes.
// In real time, f only has to return.
func (l *lab) soon(what string, f func()) {
	l.Helper()
	begin := time.Now()
	f()
	if took, most := time.Since(begin), l.lease()/4; l.h.Virtual && took > most {
		l.Errorf("%s: took %v; want %v at the most", what, took, most)
	}
}

// unlocks unlocks lk while a part of the store hangs, and reports whether the store answered. In
// real time there may be no answer, because an unlock might stop waiting before another leader is
// elected. The client then continues the release in the background.
func (l *lab) unlocks(lk *dlock.Locker) (answered bool) {
	l.Helper()
	err := lk.UnlockContext(l.ctx)
	if l.unanswered(err) {
		return false
	}
	l.noError(err, "UnlockContext")
	return true
}

// unanswered reports whether err, returned by an unlock, means that the store didn't answer.
func (l *lab) unanswered(err error) bool {
	return !l.h.Virtual && errors.Is(err, dlock.ErrUnavailable)
}

func holdBesideAPart(l *lab) {
	lease := l.steady()
	p, q := l.process(dlock.WithLease(lease)), l.process(dlock.WithLease(lease))
	h := l.acquire(p.Locker("a"))
	l.eachPart(lease, func(name string) {
		for range 2 {
			l.sleep(lease)
			if err := h.Context().Err(); err != nil {
				l.Fatalf("%s hangs: the hold is lost: %v", name, context.Cause(h.Context()))
			}
			if l.tryLock(q.Locker("a")) {
				l.Fatalf("%s hangs: another has got the lock, too", name)
			}
		}
	})
	l.noError(h.Context().Err(), "the context of the hold, when all parts are back")
	l.release(h)
	l.eventuallyFree("a")
}

func contendersBesideAPart(l *lab) {
	const turns = 20
	lease := l.steady()
	p, q := l.process(dlock.WithLease(lease)), l.process(dlock.WithLease(lease))
	l.eachPart(lease, func(name string) {
		var calls []*call
		for _, x := range []*process{p, q} {
			calls = append(calls, l.start("a contender, "+name, func() error {
				for range turns {
					err := x.Locker(name).Do(l.ctx, func(context.Context) error { return nil })
					if err != nil && !l.unanswered(err) {
						return err
					}
				}
				return nil
			}))
		}
		l.soon(name+" hangs: two that compete", func() {
			for _, c := range calls {
				c.ok()
			}
		})
	})
}

func waiterBesideAPart(l *lab) {
	lease := l.steady()
	p, q := l.process(dlock.WithLease(lease)), l.process(dlock.WithLease(lease))
	l.eachPart(lease, func(name string) {
		mine, its := p.Locker(name), q.Locker(name)
		l.lock(mine)
		wait := l.start("a waiter, "+name, func() error { return its.LockContext(l.ctx) })
		wait.waits()
		l.soon(name+" hangs: a waiter", func() {
			l.unlocks(mine)
			wait.ok()
		})
		l.unlocks(its)
	})
}

func releaseBesideAPart(l *lab) {
	q := l.process()
	// The lease is 0, because no hold from an earlier round has to be restored.
	l.eachPart(0, func(name string) {
		lk := q.Locker(name)
		l.lock(lk)
		l.soon(name+" hangs: a release, and the next", func() {
			l.unlocks(lk)
			l.lock(lk)
		})
		l.unlocks(lk)
	})
	for i, hang := range l.store.Parts {
		name := fmt.Sprint("the holder of part ", i+1)
		p := l.process()
		mine, its := p.Locker(name), q.Locker(name)
		l.lock(mine)
		resume := hang()
		if !l.unlocks(mine) { // Close abandons releases, so wait for them first
			l.eventually(name+" has given its lock back", func() bool {
				res, err := l.other.Look(l.ctx, backend.LookRequest{Kind: l.kind, Name: name})
				return err == nil && !res.Held
			})
		}
		l.noError(p.Client.Close(), "Close")
		resume()
		l.soon(name+" is gone: the next", func() {
			l.lock(its)
			l.unlock(its)
		})
	}
}
