// Package gocronlock has each run of a job of [github.com/go-co-op/gocron/v2] made by one of the replicas of a service, and
// skipped by the others.
//
//	import gocronlock "github.com/seed951563bd/distsync/adapters/gocron"
//
//	client := dlock.New(redisbackend.New(rdb))
//	locker := gocronlock.NewLocker(client)
//	scheduler, err := gocron.NewScheduler(gocron.WithDistributedLocker(locker))
//	if err != nil {
//		return err
//	}
//	_, err = scheduler.NewJob(gocron.CronJob("0 * * * *", false), locker.Task("report", report), gocron.WithName("report"))
//	if err != nil {
//		return err
//	}
//	scheduler.Start()
//
// Every replica does this, with a store that they share. When the hour strikes each of them tries once to lock "report". The one that has the
// lock runs the job, and the lock is renewed for as long as that takes; the others skip this run. If the process dies, the lock ends with its lease (see [dlock.WithLease]),
// and the next run is another replica's.
//
// # Clocks
//
// Clocks of machines differ by some milliseconds, and processes are late. A job that takes less than that would be over before the last replica
// tries, and run again, once for each replica: that is what happens with a lock that is given back when the job ends. So the lock stays taken until 900 ms after it
// was acquired, however early the job ends, or the process dies; [WithAtLeast] says for how long else. It must be longer than what the replicas' clocks differ by, and shorter than the
// job's period. Of jobs that are counted from the start of each process (a [gocron.DurationJob] without a time to start at), replicas are apart by any
// part of the period, whatever their clocks say: for those it should be most of the period. A Locker may be given to a job of its own with [gocron.WithDistributedJobLocker].
//
// # What a job isn't told
//
// A run that has lost its lock (the store was away for longer than the lease, say) goes on, and gocron has no means to tell it. [Locker.Task] has: the context that it
// passes to the job ends then.
//
// Why a run was skipped says the error that gocron passes to listeners of [gocron.AfterLockError]: [dlock.ErrHeld] if another replica has the
// lock, which is as it should be, and [dlock.ErrUnavailable] if the store didn't answer, which also is logged, as a warning. A run is
// skipped then, too, since nobody knows whether another replica runs it.
//
// # One replica for everything
//
// An [Elector] has all jobs of a scheduler run on one replica, the leader, until that dies or resigns.
package gocronlock
