package dlock

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/membackend"
)

// The store tells nothing, and a waiter would ask it later: it is woken by the take-back that
// has freed the lock.
func TestATakeBackWakesAWaiter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		type carryOut = func(context.Context) (backend.AcquireResult, error)
		b := &hooked{Backend: membackend.New()}
		lost := errors.New("the reply is lost")
		var freed time.Time
		b.acquire = func(
			ctx context.Context, _ backend.AcquireRequest, do carryOut,
		) (backend.AcquireResult, error) {
			res, err := do(ctx)
			if lost != nil && err == nil {
				err, lost = lost, nil
			}
			return res, err
		}
		b.release = func(
			ctx context.Context, _ backend.ReleaseRequest,
			do func(context.Context) (backend.ReleaseResult, error),
		) (backend.ReleaseResult, error) {
			time.Sleep(500 * time.Millisecond)
			res, err := do(ctx)
			if freed.IsZero() && res.Outcome == backend.Freed {
				freed = time.Now()
			}
			return res, err
		}
		c := New(silent{b}, quiet())
		defer c.Close()
		if ok, err := c.Locker("x").TryLock(t.Context(), FixedLease(time.Hour)); ok || err == nil {
			t.Fatalf("an attempt without an answer: %v, %v", ok, err)
		}
		time.Sleep(400 * time.Millisecond)
		l := c.Locker("x")
		must(t, l.LockContext(t.Context()))
		if late := time.Since(freed); late > 0 {
			t.Errorf("in %v after the lock was free", late)
		}
		must(t, l.UnlockContext(t.Context()))
		time.Sleep(2 * time.Hour) // until nothing is taken back any more
	})
}
