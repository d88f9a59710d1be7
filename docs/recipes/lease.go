package recipes

import (
	"context"
	"time"

	"github.com/seed951563bd/distsync/dlock"
)

func makeReportWrong(
	ctx context.Context, lock *dlock.Locker, report func(context.Context) error,
) error {
	return lock.Do(ctx, report, dlock.FixedLease(5*time.Minute)) // a report never takes longer
}

func makeReport(ctx context.Context, lock *dlock.Locker, report func(context.Context) error) error {
	return lock.Do(ctx, func(ctx context.Context) error { // the lock is renewed until this returns
		ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
		defer cancel()
		return report(ctx)
	})
}
