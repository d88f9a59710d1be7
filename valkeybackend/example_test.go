package valkeybackend_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/valkey-io/valkey-go"

	"github.com/seed951563bd/distsync/dlock"
	"github.com/seed951563bd/distsync/valkeybackend"
)

// One replica makes the report, and the others that come at the same time don't.
func Example() {
	server, err := miniredis.Run() // a server would be running already
	if err != nil {
		panic(err)
	}
	defer server.Close()

	client, err := valkey.NewClient(valkey.ClientOption{
		InitAddress:       []string{server.Addr()},
		DisableCache:      true, // these two are for the server above
		ForceSingleClient: true,
	})
	if err != nil {
		panic(err)
	}
	defer client.Close()

	locks := dlock.New(valkeybackend.New(client))
	defer locks.Close()

	report := locks.Locker("lock:report")
	err = report.Do(context.Background(), func(ctx context.Context) error {
		fmt.Println("making the report") // with ctx, which ends if the lock is lost
		return nil
	}, dlock.Wait(0))
	if errors.Is(err, dlock.ErrHeld) {
		fmt.Println("another is making it")
	} else if err != nil {
		fmt.Println(err)
	}
	// Output: making the report
}

// The name of a lock is its key, behind the prefix. Redisson calls this one lock:orders:42.
func ExampleWithPrefix() {
	server, err := miniredis.Run() // a server would be running already
	if err != nil {
		panic(err)
	}
	defer server.Close()

	client, err := valkey.NewClient(valkey.ClientOption{
		InitAddress:       []string{server.Addr()},
		DisableCache:      true, // these two are for the server above
		ForceSingleClient: true,
	})
	if err != nil {
		panic(err)
	}
	defer client.Close()

	locks := dlock.New(valkeybackend.New(client, valkeybackend.WithPrefix("lock:")))
	defer locks.Close()

	err = locks.Locker("orders:42").Do(context.Background(), func(ctx context.Context) error {
		fmt.Println(server.Keys())
		return nil
	})
	if err != nil {
		fmt.Println(err)
	}
	// Output:
	// [lock:orders:42]
}

// A lock counts as acquired when one replica has it, or isn't acquired after half a second.
func ExampleWithReplicas() {
	client, err := valkey.NewClient(valkey.ClientOption{
		InitAddress: []string{"sentinel1:26379", "sentinel2:26379", "sentinel3:26379"},
		Sentinel:    valkey.SentinelOption{MasterSet: "main"},
	})
	if err != nil {
		fmt.Println("no sentinel answers:", err)
		return
	}
	defer client.Close()

	locks := dlock.New(valkeybackend.New(client,
		valkeybackend.WithReplicas(1, 500*time.Millisecond)))
	defer locks.Close()

	ok, err := locks.Locker("lock:orders:42").TryLock(context.Background())
	switch {
	case errors.Is(err, valkeybackend.ErrNotReplicated):
		fmt.Println("no replica has the lock, so nobody has:", err)
	case err != nil:
		fmt.Println("the store does not answer:", err)
	default:
		fmt.Println("locked:", ok)
	}
}

// In a cluster, together with Java programs that use Redisson.
func ExampleWithShardedPubSub() {
	client, err := valkey.NewClient(valkey.ClientOption{
		InitAddress: []string{"node1:6379", "node2:6379", "node3:6379"},
	})
	if err != nil {
		fmt.Println("no node answers:", err)
		return
	}
	defer client.Close()

	locks := dlock.New(valkeybackend.New(client, valkeybackend.WithShardedPubSub()))
	defer locks.Close()

	err = locks.Locker("lock:orders:42").Do(context.Background(), func(ctx context.Context) error {
		return nil // the work
	})
	if err != nil {
		fmt.Println(err)
	}
}
