// Package cronlock has each run of a job of github.com/robfig/cron/v3 made by one of the replicas of a service, and skipped by the
// others.
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
//		<-c.Stop().Done() // what runs has ended, before the client is closed
//	}
//
//	func report(ctx context.Context) error { // ctx ends if the lock is lost
//		log.Print("this replica makes the report")
//		return ctx.Err()
//	}
//
// Every replica does this, with a store that they share. When the hour strikes each of them tries
// once to lock "cron:report". The one that gets the lock runs the job, and the lock is renewed for
// as long as that takes. The others skip this run. If the process dies, the lock ends with its
// lease (30 s, see [dlock.WithLease]), and the next run is another replica's. While a run takes
// longer than the period no other begins, on any replica.
//
// If the store doesn't answer within 5 s the run is skipped, too, since nobody knows whether another replica runs the job:
// that is logged as an error, see [WithLogger].
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
//   - The schedule is as "@every 5m", whose runs are counted from the start of each process. Replicas then are apart by any
//     part of the period, whatever their clocks say.
//   - [cron.DelayIfStillRunning] is around the lock. A replica that is late would run a job that another has run long
//     before. Neither that nor [cron.SkipIfStillRunning] is needed beside the lock.
//
// # What a job is told
//
// A cron.Job has no context and no error. A [Func] has: its context ends if the lock is lost, and its error is logged.
// Any other job goes on when its lock is lost (the store was away for longer than the lease, say), which is logged when it
// ends. If a job panics the lock is given back, whether [cron.Recover] is around the lock or within.
package cronlock
