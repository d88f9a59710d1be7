package gocronlock_test

import (
	"context"
	"fmt"
	"time"

	"github.com/go-co-op/gocron/v2"

	gocronlock "github.com/seed951563bd/distsync/adapters/gocron"
	"github.com/seed951563bd/distsync/dlock"
	"github.com/seed951563bd/distsync/membackend"
)

// Each replica does this, with a store that they share: here it is memory, and there is one replica
// only.
func Example() {
	client := dlock.New(membackend.New())
	defer client.Close()
	locker := gocronlock.NewLocker(client)
	scheduler, err := gocron.NewScheduler(gocron.WithDistributedLocker(locker))
	if err != nil {
		fmt.Println(err)
		return
	}
	done := make(chan struct{})
	report := func(ctx context.Context) error { // ctx ends if the lock is lost
		fmt.Println("this replica makes the report")
		close(done)
		return nil
	}
	_, err = scheduler.NewJob(
		gocron.OneTimeJob(gocron.OneTimeJobStartImmediately()), // or CronJob("0 * * * *", false)
		locker.Task("report", report),
		gocron.WithName("report"),
	)
	if err != nil {
		fmt.Println(err)
		return
	}
	scheduler.Start()
	<-done
	if err := scheduler.Shutdown(); err != nil {
		fmt.Println(err)
	}
	// Output: this replica makes the report
}

// A job that is counted from the start of its process has a Locker of its own, whose at-least time
// is most of the period.
func ExampleWithAtLeast() {
	client := dlock.New(membackend.New())
	defer client.Close()
	scheduler, err := gocron.NewScheduler()
	if err != nil {
		fmt.Println(err)
		return
	}
	defer scheduler.Shutdown()
	locker := gocronlock.NewLocker(client, gocronlock.WithAtLeast(4*time.Minute+50*time.Second))
	_, err = scheduler.NewJob(
		gocron.DurationJob(5*time.Minute),
		gocron.NewTask(func() { fmt.Println("every five minutes, on one replica") }),
		gocron.WithName("sweep"),
		gocron.WithDistributedJobLocker(locker),
	)
	fmt.Println(err)
	// Output: <nil>
}
