package quorumbackend_test

import (
	"os"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/valkey-io/valkey-go"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/contract"
	"github.com/seed951563bd/distsync/contract/faults"
	"github.com/seed951563bd/distsync/etcdbackend"
	"github.com/seed951563bd/distsync/internal/test/testservers"
	"github.com/seed951563bd/distsync/internal/test/wiretest"
	"github.com/seed951563bd/distsync/membackend"
	"github.com/seed951563bd/distsync/quorumbackend"
	"github.com/seed951563bd/distsync/redisbackend"
	"github.com/seed951563bd/distsync/valkeybackend"
)

func TestMain(m *testing.M) {
	wiretest.SideBySide()
	wiretest.VerifyTestMain(m)
}

// On three stores in memory all of the suite is run: time costs nothing there.
func TestContract(t *testing.T) {
	contract.Run(t, contract.Harness{Virtual: true, NewStore: func(*testing.T) contract.Store {
		stores := []*membackend.Backend{membackend.New(), membackend.New(), membackend.New()}
		b := quorumbackend.New(stores[0], stores[1], stores[2])
		return contract.Store{
			Backend:     func() backend.Backend { return b },
			OwnersApart: true,
		}
	}})
}

// A maker makes backends on one server. Each is as another process would have it.
type maker func(t *testing.T) backend.Backend

func onRedis(addr string) maker {
	return func(t *testing.T) backend.Backend {
		client := redis.NewClient(&redis.Options{Addr: addr})
		t.Cleanup(func() { client.Close() })
		return redisbackend.New(client)
	}
}

func onValkey(addr string) maker {
	return func(t *testing.T) backend.Backend {
		client, err := valkey.NewClient(valkey.ClientOption{InitAddress: []string{addr}, DisableCache: true})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(client.Close)
		return valkeybackend.New(client)
	}
}

func onEtcd(addr string) maker {
	return func(t *testing.T) backend.Backend {
		client, err := clientv3.New(clientv3.Config{Endpoints: []string{addr}, Logger: zap.NewNop()})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { client.Close() })
		return etcdbackend.New(client)
	}
}

// over returns a backend over all of them.
func over(t *testing.T, makers []maker) backend.Backend {
	stores := make([]backend.Backend, len(makers))
	for i, m := range makers {
		stores[i] = m(t)
	}
	return quorumbackend.New(stores...)
}

// redises starts servers.
func redises(t *testing.T) []*testservers.Server {
	return []*testservers.Server{testservers.Redis(t), testservers.Redis(t), testservers.Redis(t)}
}

// storeOf is what the suite needs, on servers that it empties. The function is called once for each test.
func storeOf(t *testing.T, servers []*testservers.Server, makers []maker) contract.Store {
	var each []contract.Store
	for _, s := range servers {
		each = append(each, wiretest.Store(t, []*testservers.Server{s}, nil))
	}
	all := func(f func(contract.Store)) func() {
		return func() {
			for _, store := range each {
				f(store)
			}
		}
	}
	return contract.Store{
		Backend:     func() backend.Backend { return over(t, makers) },
		OwnersApart: true,
		Wipe:        all(func(s contract.Store) { s.Wipe() }),
		PutForeign: func(name string) {
			all(func(s contract.Store) { s.PutForeign(name) })()
		},
		ForeignIntact: func(name string) bool {
			intact := true
			all(func(s contract.Store) { intact = intact && s.ForeignIntact(name) })()
			return intact
		},
		BreakSubscriptions: all(func(s contract.Store) { s.BreakSubscriptions() }),
	}
}

// only skips all parts of the suite but these.
func only(t *testing.T, parts ...string) {
	t.Helper()
	_, name, _ := strings.Cut(t.Name(), "/")
	for _, part := range parts {
		if strings.HasPrefix(name, part) {
			return
		}
	}
	t.Skip("run on other stores")
}

func TestContractOnRedis(t *testing.T) {
	if wiretest.Apart(t) {
		return
	}
	servers := redises(t)
	makers := []maker{onRedis(servers[0].Addr), onRedis(servers[1].Addr), onRedis(servers[2].Addr)}
	contract.Run(t, contract.Harness{NewStore: func(t *testing.T) contract.Store {
		only(t, "steps", "model")
		return storeOf(t, servers, makers)
	}})
}

var _ = os.Getenv
var _ faults.Blow
var _ = onValkey
var _ = onEtcd
