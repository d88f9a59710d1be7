package contract_test

import (
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/contract"
	"github.com/seed951563bd/distsync/contract/faults"
	"github.com/seed951563bd/distsync/membackend"
	"github.com/seed951563bd/distsync/redisbackend"
)

// A store in memory: in the bubble of testing/synctest its leases run out in no time.
func Example() {
	testContract := func(t *testing.T) {
		contract.Run(t, contract.Harness{
			Virtual: true,
			NewStore: func(t *testing.T) contract.Store {
				store := membackend.New()
				return contract.Store{Backend: func() backend.Backend { return store }}
			},
		})
	}
	_ = testContract // which is TestContract in a file of tests
}

// A harness for a server: a proxy in front of it lets the suite break connections.
func ExampleStore() {
	const addr = "127.0.0.1:6379" // of a server that the test may empty

	testContract := func(t *testing.T) {
		contract.Run(t, contract.Harness{NewStore: func(t *testing.T) contract.Store {
			connect := func(addr string) backend.Backend {
				client := redis.NewClient(&redis.Options{Addr: addr})
				t.Cleanup(func() { client.Close() })
				return redisbackend.New(client)
			}
			return contract.Store{
				Backend: func() backend.Backend { return connect(addr) },
				Fragile: func() (backend.Backend, contract.Strike) {
					// faults.Bytes is for protocols that it doesn't know
					proxy, err := faults.NewProxy(addr, faults.RESP)
					if err != nil {
						t.Fatal(err)
					}
					t.Cleanup(func() { proxy.Close() })
					return connect(proxy.Addr()), proxy.Strike
				},
			}
		}})
	}
	_ = testContract // which is TestContract in a file of tests
}
