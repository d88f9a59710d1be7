package cronlock_test

import (
	"context"
	"fmt"

	"github.com/robfig/cron/v3"

	cronlock "github.com/seed951563bd/distsync/adapters/cron"
	"github.com/seed951563bd/distsync/dlock"
	"github.com/seed951563bd/distsync/membackend"
)

// Each replica does this, with a store that they share: here it is memory, and there is one replica
// only.
func Example() {
	client := dlock.New(membackend.New())
	defer client.Close()
	report := func(ctx context.Context) error { // ctx ends if the lock is lost
		fmt.Println("this replica makes the report")
		return nil
	}

	c := cron.New()
	id, err := c.AddJob("0 * * * *", cronlock.Wrapper(client, "report")(cronlock.Func(report)))
	if err != nil {
		fmt.Println(err)
		return
	}
	c.Start()
	defer c.Stop()
	c.Entry(id).WrappedJob.Run() // as cron does each hour
	// Output: this replica makes the report
}
