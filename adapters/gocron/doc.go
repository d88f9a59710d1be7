// Package gocronlock runs jobs of github.com/go-co-op/gocron/v2 on one replica of a service at a
// time. For each run, one replica gets a lock, and the others skip the run.
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
// Every replica runs this program, and they share a store. On the hour each of them tries once to
// lock "gocron:report". The one that gets the lock runs the job, and the lock is renewed until the
// job ends. The others skip this run. If the process dies, the lock ends with its lease (30 s, see
// [dlock.WithLease]), and another replica does the next run. A job that needs no notification of a
// loss can use gocron.NewTask instead of [Locker.Task].
//
// The lock's name is "gocron:" followed by the job's name. The command distsync watch gocron:report
// shows which replica holds it. Give each job a name of its own, which is the same on all replicas.
// Without gocron.WithName a job has the name of its function. Functions that are made in a loop
// share a name, and the name may change with the next version of the program. Two jobs with one
// name exclude each other, and a warning is logged.
//
// # Clocks
//
// The clocks of machines differ by a few milliseconds, and a process may start its job late. If the
// lock were released when the job ends, a short job might end before the last replica tries, and
// that replica would run it again. So the lock stays taken until 900 ms after it was acquired, even
// if the job ends or the process dies earlier. [WithAtLeast] sets another time. It must be longer
// than the difference between the replicas' clocks, and shorter than the job's period. If a replica
// dies in that time, etcd may keep the lock for a few seconds longer, and runs in those seconds are
// skipped.
//
// The lock should stay taken for most of the period in two cases:
//   - Runs are counted from the start of each process (a [gocron.DurationJob] without a time to
//     start at). Then the replicas' runs are up to a period apart, even if their clocks agree.
//   - Runs wait for each other (gocron.WithLimitConcurrentJobs, or gocron.WithSingletonMode, with
//     gocron.LimitModeWait). A replica that is late would run a job that another replica ran
//     long before. gocron.LimitModeReschedule skips such runs.
//
// If jobs need different times, give each a Locker of its own, with
// [gocron.WithDistributedJobLocker].
//
// # Losses and skipped runs
//
// A run continues even if it has lost its lock, for example because the store was down for longer
// than the lease. gocron can't notify the job, but [Locker.Task] can. It passes the job a context
// that ends when the lock is lost.
//
// gocron passes the reason for a skipped run, as an error, to the listeners of
// [gocron.AfterLockError]. [dlock.ErrHeld] means that another replica holds the lock, which is
// normal. [dlock.ErrUnavailable] means that the store didn't answer, so that it is unknown whether
// another replica runs the job. That is also logged as a warning.
//
// # One replica for everything
//
// With an [Elector], all jobs of a scheduler run on one replica, the leader, until the leader dies
// or resigns. The clocks need not agree:
//
//	elector := gocronlock.NewElector(client, "leader")
//	go func() { log.Print(elector.Run(ctx)) }()
//	scheduler, err := gocron.NewScheduler(gocron.WithDistributedElector(elector))
//	...
//	scheduler.NewJob(gocron.DurationJob(time.Minute), elector.Task(sweep))
//
// While the store is down, the leader leads until its lease expires, and then no replica leads.
// When the store is back, all replicas campaign again automatically. A leader that was cut off or
// paused for longer than its lease notices the loss when it next checks its clock (see
// [dlock.Election]).
package gocronlock
