package main

import (
	"context"
	"slices"
	"time"

	"github.com/seed951563bd/distsync/dlock"
)

// stay does random things while a lock is held.
func (v *visit) stay() {
	v.linger(func() {
		switch {
		case v.count > 1 && v.oneIn(2):
			v.unlock()
			v.count--
			v.again("partial unlock")
		case v.nests && v.count < 4:
			if how, ok := v.acquire(); ok {
				v.count++
				v.again("nested " + how)
			} else {
				v.again("failed " + how)
			}
		}
	})
}

// stayInside does random things inside a Do.
func (v *visit) stayInside(ctx context.Context) {
	v.linger(func() {
		inner := *v
		inner.hold.Reentered, inner.hold.Lease = true, v.Lease
		inner.opts = append(slices.Clip(v.opts), dlock.Wait(v.upTo(v.Lease)))
		v.hold.Reentered = true
		v.report(0)
		inner.run(ctx, "nested Do")
	})
}

// again reports a new hold by a call that was meant to re-enter the lock. Such a call acquires the
// lock anew if the lock has been lost.
func (v *visit) again(how string) {
	v.hold.Reentered = true
	v.enter(how)
}

// linger does random things while the lock is held. One of them is to call nest.
func (v *visit) linger(nest func()) {
	v.check(0)
	for range 1 + v.dice.IntN(4) {
		switch v.dice.IntN(8) {
		case 0, 1, 2:
			v.increment()
		case 3:
			nest()
		case 4:
			if v.locker != nil {
				v.ask()
			}
		default:
			v.pause(10 * time.Millisecond)
		}
		v.check(0)
	}
	switch {
	case v.hold.Fixed && v.oneIn(30): // longer than its fixed lease
		v.sit(v.hold.Lease + v.Lease/8)
	case v.oneIn(150): // long enough to be renewed
		v.sit(v.upTo(6 * v.Lease))
	}
}

// sit keeps the lock for the duration d, and checks the hold from time to time.
func (v *visit) sit(d time.Duration) {
	for end := time.Now().Add(d); time.Now().Before(end); {
		time.Sleep(v.Lease / 8)
		v.check(0)
	}
}

// increment replaces the version in the cell. If the user only reads, increment instead checks
// whether another user replaces the version.
func (v *visit) increment() {
	if v.hold.Permits > 0 {
		return // other holders may be inside
	}
	cell := v.cell(v.hold.Name)
	version := cell.Load()
	if v.oneIn(4) {
		v.pause(5 * time.Millisecond)
	}
	if !v.hold.Shared {
		cell.Store(v.next())
	} else if cell.Load() == version {
		version = 0
	}
	v.check(version)
}

// ask queries the lock's state. Any answer is accepted.
func (v *visit) ask() {
	ctx, cancel := context.WithTimeout(v.ctx, v.upTo(v.Lease))
	defer cancel()
	var err error
	switch v.dice.IntN(3) {
	case 0:
		_, err = v.locker.IsLocked(ctx)
	case 1:
		_, err = v.locker.TTL(ctx)
	default:
		_, err = v.locker.HoldCount(ctx)
	}
	v.expect("a question", err)
}
