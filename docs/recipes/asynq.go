package recipes

import (
	"context"

	"github.com/hibiken/asynq"

	"github.com/seed951563bd/distsync/dlock"
)

func enqueueWrong(
	redis asynq.RedisConnOpt, opts *asynq.SchedulerOpts, register func(*asynq.Scheduler) error,
) (*asynq.Scheduler, error) {
	scheduler := asynq.NewScheduler(redis, opts)
	if err := register(scheduler); err != nil {
		return nil, err
	}
	return scheduler, scheduler.Start() // in each replica
}

func enqueueWrongToo(ctx context.Context, election *dlock.Election,
	redis asynq.RedisConnOpt, opts *asynq.SchedulerOpts, register func(*asynq.Scheduler) error,
) error {
	return election.Run(ctx, func(context.Context) error {
		scheduler := asynq.NewScheduler(redis, opts)
		if err := register(scheduler); err != nil {
			return err
		}
		return scheduler.Run() // until there is a signal
	})
}

func enqueueOnLeader(ctx context.Context, election *dlock.Election,
	redis asynq.RedisConnOpt, opts *asynq.SchedulerOpts, register func(*asynq.Scheduler) error,
) error {
	return election.Run(ctx, func(ctx context.Context) error {
		// A scheduler can't be started twice, so each term gets a new one.
		scheduler := asynq.NewScheduler(redis, opts)
		if err := register(scheduler); err != nil {
			return err
		}
		if err := scheduler.Start(); err != nil {
			return err
		}
		defer scheduler.Shutdown() // the next leader starts when this returns
		<-ctx.Done()
		return nil
	})
}
