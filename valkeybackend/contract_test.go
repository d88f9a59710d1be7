package valkeybackend_test

import (
	"context"
	"testing"

	"github.com/valkey-io/valkey-go"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/contract"
	"github.com/seed951563bd/distsync/contract/faults"
	"github.com/seed951563bd/distsync/internal/test/depth"
	"github.com/seed951563bd/distsync/internal/test/testservers"
	"github.com/seed951563bd/distsync/internal/test/wiretest"
	"github.com/seed951563bd/distsync/valkeybackend"
)

func TestContractOnValkey(t *testing.T) {
	choice := depth.Of[wiretest.Choice](wiretest.Essential, nil, nil)
	wiretest.Suite(t, 5, choice, func() contract.Harness {
		server := testservers.Valkey(t)
		all := []*testservers.Server{server}
		return contract.Harness{NewStore: func(t *testing.T) contract.Store {
			at := func(addr string) backend.Backend {
				return valkeybackend.New(connected(t, connect(t, addr)))
			}
			store := wiretest.Store(t, all, func(t *testing.T) backend.Backend {
				return valkeybackend.New(connected(t, connect(t, server.Addr)))
			})
			store.Fragile = wiretest.Fragile(t, server.Addr, faults.RESP, at)
			return store
		}}
	})
}

func TestContractOnRedis(t *testing.T) {
	depth.Needs(t, depth.Change)
	wiretest.Suite(t, 1, wiretest.StepsAndModel, func() contract.Harness {
		server := testservers.Redis(t)
		all := []*testservers.Server{server}
		return contract.Harness{NewStore: func(t *testing.T) contract.Store {
			return wiretest.Store(t, all, func(t *testing.T) backend.Backend {
				return valkeybackend.New(connected(t, connect(t, server.Addr)))
			})
		}}
	})
}

// A node of a cluster that hangs delays nobody whose locks are at other nodes. It takes minutes, in
// real time.
func TestContractOnClusterWithParts(t *testing.T) {
	depth.Needs(t, depth.Night)
	nodes := testservers.ValkeyCluster(t, 4)
	contract.Run(t, contract.Harness{
		Choose: wiretest.PartHangs, Lingering: wiretest.ValkeyLingers(),
		NewStore: func(t *testing.T) contract.Store {
			store := wiretest.Store(t, nodes, func(t *testing.T) backend.Backend {
				return valkeybackend.New(connected(t, connectCluster(t, nodes)))
			})
			store.Parts = wiretest.NodesWithout(t, nodes)
			return store
		},
	})
}

func TestContractOnClusterWithShardedPubSub(t *testing.T) {
	depth.Needs(t, depth.Change)
	wiretest.Suite(t, 1, wiretest.StepsAndModel, func() contract.Harness {
		nodes := testservers.ValkeyCluster(t, 3)
		newStore := func(t *testing.T) contract.Store {
			return wiretest.Store(t, nodes, func(t *testing.T) backend.Backend {
				client := connected(t, connectCluster(t, nodes))
				return valkeybackend.New(client, valkeybackend.WithShardedPubSub())
			})
		}
		return contract.Harness{Lingering: wiretest.ValkeyLingers(), NewStore: newStore}
	})
}

func TestContractOnSentinelWithReplicas(t *testing.T) {
	depth.Needs(t, depth.Change)
	wiretest.Suite(t, 1, wiretest.StepsAndModel, func() contract.Harness {
		s := testservers.ValkeySentinel(t, 2, wiretest.Never)
		master := []*testservers.Server{s.Master}
		return contract.Harness{NewStore: func(t *testing.T) contract.Store {
			return wiretest.Store(t, master, func(t *testing.T) backend.Backend {
				return this.Sentinel(t, s, wiretest.Options{Replicas: 2, Timeout: wiretest.Ample})
			})
		}}
	})
}

// connected returns a client that has all its connections. It makes each when it first picks it, at
// random, and one that it makes while it is being closed it forgets to close: the suite would find
// that where it closes everything while steps are under way.
func connected(t testing.TB, client valkey.Client) valkey.Client {
	t.Helper()
	for range 64 { // to miss one of four by chance has odds of one to 25 million
		for _, node := range client.Nodes() {
			cmd := client.B().Arbitrary("PUBLISH", "nobody", "hears this").Build()
			wiretest.Must[int64](t)(node.Do(context.Background(), cmd).AsInt64())
		}
	}
	return client
}
