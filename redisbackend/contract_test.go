package redisbackend_test

import (
	"context"
	"testing"

	"github.com/alicebob/miniredis/v2"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/contract"
	"github.com/seed951563bd/distsync/internal/testservers"
	"github.com/seed951563bd/distsync/redisbackend"
)

func TestContractOnRedis(t *testing.T) {
	server := testservers.Redis(t)
	contract.Run(t, contract.Harness{NewStore: func(t *testing.T) contract.Store {
		return store(t, server.Addr)
	}})
}

func TestContractOnMiniredis(t *testing.T) {
	contract.Run(t, contract.Harness{NewStore: func(t *testing.T) contract.Store {
		s := miniredis.NewMiniRedis()
		s.ClockTTL(true)
		if err := s.StartAddr("127.0.0.1:0"); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(s.Close)
		store := store(t, s.Addr())
		store.BreakSubscriptions = nil // it knows no CLIENT KILL
		return store
	}})
}

// store is what the suite needs, on an empty Redis.
func store(t *testing.T, addr string) contract.Store {
	ctx := context.Background()
	admin := connect(t, addr)
	if err := admin.FlushAll(ctx).Err(); err != nil {
		t.Fatal(err)
	}
	return contract.Store{
		Backend:    func() backend.Backend { return redisbackend.New(connect(t, addr)) },
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
