// Package cronlock runs jobs of github.com/robfig/cron/v3 on one replica of a service at a time.
// For each run, one replica gets a lock, and the others skip the run.
//
//	package main
//
//	import (
//		"context"
//		"log"
//		"os"
//		"os/signal"
//
//		"github.com/redis/go-redis/v9"
//		"github.com/robfig/cron/v3"
//
//		cronlock "github.com/seed951563bd/distsync/adapters/cron"
//		"github.com/seed951563bd/distsync/dlock"
//		"github.com/seed951563bd/distsync/redisbackend"
//	)
//
//	func main() {
//		rdb := redis.NewClient(&redis.Options{Addr: "localhost:6379"})
//		client := dlock.New(redisbackend.New(rdb))
//		defer client.Close()
//		c := cron.New()
//		_, err := c.AddJob("0 * * * *", cronlock.Wrapper(client, "report")(cronlock.Func(report)))
//		if err != nil {
//			log.Fatal(err)
//		}
//		c.Start()
//		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
//		defer stop()
//		<-ctx.Done()
//		<-c.Stop().Done() // wait for running jobs, before the client is closed
//	}
//
//	func report(ctx context.Context) error { // ctx ends if the lock is lost
//		log.Print("this replica makes the report")
//		return ctx.Err()
//	}
//
// Every replica does this, with a store that they share. On the hour each of them tries once to
// lock "cron:report". The one that gets the lock runs the job, and the lock is renewed until the
// job ends. The others skip this run. If the process dies, the lock ends with its lease (30 s, see
// [dlock.WithLease]), and another replica executes the next run. If a run takes longer than the
// period, no replica starts another until it ends.
//
// If the store doesn't answer within 5 s, the run is also skipped, since it is unknown whether
// another replica runs the job. That is logged as an error (see [WithLogger]).
//
// # Clocks
//
// The clocks of machines differ by a few milliseconds, and a process may start its job late. If the
// lock were released when the job ends, a short job might end before the last replica tries, and
// that replica would run it again. So the lock stays taken until 900 ms after it was acquired, even
// if the job ends or the process dies earlier. [WithAtLeast] sets another time. It must be longer
// than the difference between the replicas' clocks, and shorter than the job's period. If a replica
// dies in that time, etcd may keep the lock for a few more seconds, and meanwhile runs are skipped.
//
// The lock should stay taken for most of the period in two cases:
//   - The schedule counts from the start of each process, as "@every 5m" does. Then the replicas'
//     runs are up to a period apart, even if their clocks agree.
//   - [cron.DelayIfStillRunning] wraps the wrapper of this package. A replica that is late would
//     run a job that another replica ran long before. With the lock, neither this wrapper nor
//     [cron.SkipIfStillRunning] is needed.
//
// # Losses
//
// A cron.Job has no context and no error. A [Func] has both. Its context ends if the lock is lost,
// and its error is logged. Any other job continues when its lock is lost, for example because the
// store was down for longer than the lease. The loss is logged when the job ends. If a job panics,
// the lock is released, whether [cron.Recover] wraps the lock's wrapper, or the other way round.
package cronlock
