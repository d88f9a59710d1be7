package valkeybackend_test

import (
	"context"
	"fmt"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/valkey-io/valkey-go"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/valkeybackend"
)

// Programs hand the backend to dlock.New. Here it is asked directly.
func ExampleNew() {
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

	session := valkeybackend.New(client).Open()
	defer session.Close()

	for _, owner := range []string{"alice", "bob"} {
		res, err := session.Acquire(context.Background(), backend.AcquireRequest{
			Name: "orders:42", Owner: owner, Lease: 10 * time.Second,
		})
		fmt.Println(owner, res.Acquired, err)
	}
	// Output:
	// alice true <nil>
	// bob false <nil>
}
