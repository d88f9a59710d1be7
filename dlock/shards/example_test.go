package shards_test

import (
	"context"
	"fmt"

	"github.com/seed951563bd/distsync/dlock"
	"github.com/seed951563bd/distsync/dlock/shards"
	"github.com/seed951563bd/distsync/membackend"
)

func Example() {
	client := dlock.New(membackend.New())
	defer client.Close()

	ctx, cancel := context.WithCancel(context.Background()) // in a service: until SIGTERM
	set := shards.New(client, "billing", []string{"eu", "us"})
	invoices := make(chan string, 2)
	err := set.Run(ctx, func(ctx context.Context, s *shards.Shard) error {
		invoices <- s.Name()
		if len(invoices) == 2 {
			cancel() // this replica is to end
		}
		<-ctx.Done()
		return nil // from here on another replica may run it
	})
	fmt.Println(ctx.Err() != nil, err)
	fmt.Println(len(invoices), "shards have been run by this replica, since it was the only one")
	// Output:
	// true dlock: run "shards:billing": context canceled
	// 2 shards have been run by this replica, since it was the only one
}

func ExampleOf() {
	fmt.Println("tenant-17 belongs to shard", shards.Of("tenant-17", 64))
	// Output: tenant-17 belongs to shard 8
}
