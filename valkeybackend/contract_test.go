package valkeybackend_test

import (
	"context"
	"testing"

	"github.com/valkey-io/valkey-go"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/contract"
	"github.com/seed951563bd/distsync/internal/testservers"
	"github.com/seed951563bd/distsync/valkeybackend"
)

func TestContractOnValkey(t *testing.T) {
	server := testservers.Valkey(t)
	contract.Run(t, contract.Harness{NewStore: func(t *testing.T) contract.Store {
		return store(t, server.Addr)
	}})
}

func TestContractOnRedis(t *testing.T) {
	server := testservers.Redis(t)
	contract.Run(t, contract.Harness{NewStore: func(t *testing.T) contract.Store {
		return store(t, server.Addr)
	}})
}

// store is what the suite needs, on an empty server.
func store(t *testing.T, addr string) contract.Store {
	ctx := context.Background()
	admin := admin(t, addr)
	must[string](t)(admin.FlushAll(ctx).Result())
	return contract.Store{
		Backend:    func() backend.Backend { return valkeybackend.New(connected(t, addr)) },
		PutForeign: func(name string) { must[string](t)(admin.Set(ctx, name, "foreign", 0).Result()) },
		ForeignIntact: func(name string) bool {
			value, err := admin.Get(ctx, name).Result()
			return err == nil && value == "foreign"
		},
		Wipe: func() { must[string](t)(admin.FlushAll(ctx).Result()) },
		BreakSubscriptions: func() {
			must[int64](t)(admin.ClientKillByFilter(ctx, "TYPE", "pubsub").Result())
		},
	}
}

// connected returns a client that has all its connections. It makes each when it first picks it, at
// random, and one that it makes while it is being closed it forgets to close: the suite would find
// that where it closes everything while steps are under way.
func connected(t *testing.T, addr string) valkey.Client {
	t.Helper()
	client := connect(t, addr)
	for range 64 { // to miss one of four by chance has odds of one to 25 million
		cmd := client.B().Arbitrary("EXISTS").Keys("n").Build()
		must[bool](t)(client.Do(context.Background(), cmd).AsBool())
	}
	return client
}
