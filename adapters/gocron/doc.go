// Package gocronlock has each run of a job of github.com/go-co-op/gocron/v2 made by one of the replicas of a service, and
// skipped by the others.
//
//	package main
//
//	import (
//		"context"
//		"log"
//		"os"
//		"os/signal"
//
//		"github.com/go-co-op/gocron/v2"
//		"github.com/redis/go-redis/v9"
//
//		gocronlock "github.com/seed951563bd/distsync/adapters/gocron"
//		"github.com/seed951563bd/distsync/dlock"
//		"github.com/seed951563bd/distsync/redisbackend"
//	)
//
//	func main() {
//		rdb := redis.NewClient(&redis.Options{Addr: "localhost:6379"})
//		client := dlock.New(redisbackend.New(rdb))
//		defer client.Close()
//		locker := gocronlock.NewLocker(client)
//		scheduler, err := gocron.NewScheduler(gocron.WithDistributedLocker(locker))
//		if err != nil {
//			log.Fatal(err)
//		}
//		hourly := gocron.CronJob("0 * * * *", false)
//		_, err = scheduler.NewJob(hourly, locker.Task("report", report), gocron.WithName("report"))
//		if err != nil {
//			log.Fatal(err)
//		}
//		scheduler.Start()
//		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
//		defer stop()
//		<-ctx.Done()
//		if err := scheduler.Shutdown(); err != nil { // before the client is closed
//			log.Print(err)
//		}
//	}
//
//	func report(ctx context.Context) error { // ctx ends if the lock is lost, and at Shutdown
//		log.Print("this replica makes the report")
//		return ctx.Err()
//	}
//
// Every replica does this, with a store that they share. When the hour strikes each of them tries
// once to lock "gocron:report". The one that gets the lock runs the job, and the lock is renewed
// for as long as that takes. The others skip this run. If the process dies, the lock ends with its
// lease (30 s, see [dlock.WithLease]), and the next run is another replica's. A job that needn't
// hear of a loss may be any gocron.NewTask, without [Locker.Task].
//
// The lock has the job's name, with "gocron:" in front: distsync watch gocron:report says who has
// it. So give each job a name of its own, the same on all replicas. Without gocron.WithName it has
// the name of its function, which functions that are made in a loop share, and which may be another
// in the next version of the program. Two jobs of one name exclude each other, which is logged.
//
// # Clocks
//
// Clocks of machines differ by some milliseconds, and processes are late. If the lock were given
// back when the job ends, a job that takes less than that would be over before the last replica
// tries, and run once for each replica. So the lock stays taken until 900 ms after it was acquired,
// however early the job ends, or the process dies. [WithAtLeast] sets another time: it must be
// longer than the replicas' clocks differ, and shorter than the job's period. Where a replica dies
// in that time, etcd may keep the lock for some seconds more, and runs are skipped meanwhile.
//
// It should be most of the period in two cases:
//   - Runs are counted from the start of each process (a [gocron.DurationJob] without a time to start at). Replicas then
//     are apart by any part of the period, whatever their clocks say.
//   - Runs wait for each other (gocron.WithLimitConcurrentJobs, or gocron.WithSingletonMode, with gocron.LimitModeWait).
//     A replica that is late would run a job that another has run long before. gocron.LimitModeReschedule skips such runs.
//
// Jobs that differ in that can each have a Locker of their own, with [gocron.WithDistributedJobLocker].
//
// # What a job isn't told
//
// A run that has lost its lock (the store was away for longer than the lease, say) goes on, and gocron has no means to
// tell it. [Locker.Task] has: the context that it passes to the job ends then.
//
// Why a run was skipped is in the error that gocron passes to listeners of [gocron.AfterLockError]. [dlock.ErrHeld] means
// that another replica has the lock, which is as it should be. [dlock.ErrUnavailable] means that the store didn't answer,
// so that nobody knows whether another replica runs the job: that is also logged, as a warning.
//
// # One replica for everything
//
// An [Elector] has all jobs of a scheduler run on one replica, the leader, until that dies or resigns, whatever the clocks say:
//
//	elector := gocronlock.NewElector(client, "leader")
//	go func() { log.Print(elector.Run(ctx)) }()
//	scheduler, err := gocron.NewScheduler(gocron.WithDistributedElector(elector))
//	...
//	scheduler.NewJob(gocron.DurationJob(time.Minute), elector.Task(sweep))
//
// While the store is away the leader leads until its lease is over, and then nobody does. All campaign again by themselves
// when the store is back. A leader that was cut off, or paused, for longer than its lease finds that out when it next looks
// at its clock: see [dlock.Election].
package gocronlock
