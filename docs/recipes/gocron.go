package recipes

import (
	"context"

	"github.com/go-co-op/gocron/v2"

	gocronlock "github.com/seed951563bd/distsync/adapters/gocron"
	"github.com/seed951563bd/distsync/dlock"
)

// homemadeLocker is a gocron.Locker as most people write it.
type homemadeLocker struct{ client *dlock.Client }

func (h homemadeLocker) Lock(ctx context.Context, job string) (gocron.Lock, error) {
	l := h.client.Locker("job:" + job)
	if err := l.LockContext(ctx, dlock.Wait(0)); err != nil {
		return nil, err // so gocron skips this run
	}
	return homemadeLock{l}, nil
}

type homemadeLock struct{ l *dlock.Locker }

func (h homemadeLock) Unlock(ctx context.Context) error { return h.l.UnlockContext(ctx) }

func scheduleWrong(
	client *dlock.Client, report func(), opts ...gocron.SchedulerOption,
) (gocron.Scheduler, error) {
	scheduler, err := gocron.NewScheduler(
		append(opts, gocron.WithDistributedLocker(homemadeLocker{client}))...)
	if err != nil {
		return nil, err
	}
	if _, err := scheduler.NewJob(gocron.CronJob("0 * * * *", false), gocron.NewTask(report),
		gocron.WithName("report")); err != nil {
		return nil, err
	}
	scheduler.Start()
	return scheduler, nil
}

func schedule(
	client *dlock.Client, report func(context.Context) error, opts ...gocron.SchedulerOption,
) (gocron.Scheduler, error) {
	locker := gocronlock.NewLocker(client)
	scheduler, err := gocron.NewScheduler(append(opts, gocron.WithDistributedLocker(locker))...)
	if err != nil {
		return nil, err
	}
	task := locker.Task("report", report) // its context ends if the lock is lost
	hourly := gocron.CronJob("0 * * * *", false)
	if _, err := scheduler.NewJob(hourly, task, gocron.WithName("report")); err != nil {
		return nil, err
	}
	scheduler.Start()
	return scheduler, nil
}
