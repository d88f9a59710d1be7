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

func sweepWrongToo(
	ctx context.Context, lock *dlock.Locker, sweep func(context.Context) error,
) error {
	// a sweep never takes longer
	return lock.Do(ctx, sweep, dlock.Wait(0), dlock.FixedLease(10*time.Minute))
}

// sweepUnlessRunning calls sweep, and reports whether it did. It returns false and nil if another
// replica is sweeping. Errors come from the sweep or from the store. If the store doesn't answer,
// it is unknown whether another replica is sweeping.
func sweepUnlessRunning(
	ctx context.Context, lock *dlock.Locker, sweep func(context.Context) error,
) (swept bool, err error) {
	return lock.TryDo(ctx, sweep)
}
