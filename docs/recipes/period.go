package recipes

import (
	"context"
	"log/slog"
	"time"

	"github.com/seed951563bd/distsync/dlock"
)

func reportWrong(
	ctx context.Context, client *dlock.Client, day string, report func(context.Context) error,
) error {
	return client.Locker("report:"+day).Do(ctx, report)
}

func reportAtMost(
	ctx context.Context, client *dlock.Client, day string, report func(context.Context) error,
) error {
	return client.Locker("report:"+day).Do(ctx, report, dlock.Wait(0), dlock.AtLeast(time.Hour))
}

// reportOnce returns when the report of that day is made, by this replica or another.
func reportOnce(
	ctx context.Context, client *dlock.Client, log *slog.Logger, day string,
	report func(context.Context) error,
) error {
	for {
		_, err := client.Once(ctx, "report", day, 24*time.Hour, report)
		if err == nil {
			return nil
		}
		// Another replica is making the report, or the report failed, or the store did.
		log.Info("the report is not made yet", "day", day, "err", err)
		select {
		case <-time.After(time.Minute):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
