package backend_test

import (
	"context"
	"fmt"
	"time"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/membackend"
)

// This shows the requests to a store and its answers. Package dlock makes such requests for its
// callers.
func Example() {
	ctx := context.Background()
	session := membackend.New().Open() // each client has a session of its own
	defer session.Close()

	acquire := backend.AcquireRequest{Name: "orders:42", Owner: "alice", Lease: 30 * time.Second}
	res, err := session.Acquire(ctx, acquire)
	fmt.Println("alice:", res.Acquired, err)

	acquire.Owner = "bob"
	res, err = session.Acquire(ctx, acquire)
	fmt.Println("bob:", res.Acquired, err, "and it lasts for", res.Remaining.Round(time.Second))

	renewed, err := session.Renew(ctx, backend.RenewRequest{
		Name: "orders:42", Owner: "alice", Lease: time.Minute,
	})
	fmt.Println("alice still has it:", renewed.Held, err)

	released, err := session.Release(ctx, backend.ReleaseRequest{
		Name: "orders:42", Owner: "alice", Lease: 30 * time.Second,
	})
	fmt.Println("alice:", released.Outcome, err)
	// Output:
	// alice: true <nil>
	// bob: false <nil> and it lasts for 30s
	// alice still has it: true <nil>
	// alice: freed <nil>
}
