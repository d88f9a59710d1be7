package recipes

import (
	"context"
	"time"

	"github.com/seed951563bd/distsync/dlock"
)

func sweepWrong(ctx context.Context, lock *dlock.Locker, sweep func(context.Context) error) error {
	if err := lock.LockContext(ctx, dlock.Wait(0)); err != nil {
		return nil // another is sweeping
	}
	defer lock.Unlock()
	return sweep(ctx)
}

func sweepWrongToo(ctx context.Context, lock *dlock.Locker, sweep func(context.Context) error) error {
	return lock.Do(ctx, sweep, dlock.Wait(0), dlock.FixedLease(10*time.Minute)) // it never takes longer
}

// sweepUnlessRunning says whether it swept: false and nil if another is sweeping. An error is the sweep's, or the
// store's: if that doesn't answer nobody knows whether another is sweeping.
func sweepUnlessRunning(ctx context.Context, lock *dlock.Locker, sweep func(context.Context) error) (swept bool, err error) {
	return lock.TryDo(ctx, sweep)
}
