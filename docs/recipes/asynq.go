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
		// a new scheduler for each term, since none can be started twice
		scheduler := asynq.NewScheduler(redis, opts)
		if err := register(scheduler); err != nil {
			return err
		}
		if err := scheduler.Start(); err != nil {
			return err
		}
		defer scheduler.Shutdown() // the next leader begins when this has returned
		<-ctx.Done()
		return nil
	})
}
