package quorumbackend_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/valkey-io/valkey-go"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/contract"
	"github.com/seed951563bd/distsync/contract/faults"
	"github.com/seed951563bd/distsync/etcdbackend"
	"github.com/seed951563bd/distsync/internal/test/apart"
	"github.com/seed951563bd/distsync/internal/test/depth"
	"github.com/seed951563bd/distsync/internal/test/testservers"
	"github.com/seed951563bd/distsync/internal/test/wiretest"
	"github.com/seed951563bd/distsync/membackend"
	"github.com/seed951563bd/distsync/quorumbackend"
	"github.com/seed951563bd/distsync/redisbackend"
	"github.com/seed951563bd/distsync/valkeybackend"
)

func TestMain(m *testing.M) {
	apart.SideBySide(12)
	wiretest.VerifyTestMain(m)
}

// On three stores in memory all of the suite is run: time costs nothing there.
func TestContract(t *testing.T) {
	contract.Run(t, contract.Harness{Virtual: true, Choose: notForced, NewStore: func(
		t *testing.T,
	) contract.Store {
		b := quorumbackend.New(membackend.New(), membackend.New(), membackend.New())
		return contract.Store{
			Backend:     func() backend.Backend { return b },
			OwnersApart: true,
		}
	}})
}

// notForced leaves out the histories in which locks are freed by force at any moment. In several
// stores that isn't one step: an owner that is just getting the lock, or waits to write, may be
// refused though in the end nobody has it, or lose its note. No two have the lock for that;
// TestForceWhileCounting sees to it.
func notForced(c contract.Case) bool { return !c.Tags.Has(contract.Forced) }

// With one of three stores down nearly all of the suite is run, too: that one which would be asked
// first.
func TestContractWithAStoreInMemoryDown(t *testing.T) {
	nearly := func(c contract.Case) bool {
		return notForced(c) && c.Part != "locker without hand-over"
	}
	choice := depth.Of[wiretest.Choice](wiretest.StepsAndModel, nearly, nearly)
	wiretest.Suite(t, 1, choice, func() contract.Harness {
		return contract.Harness{Virtual: true, NewStore: func(t *testing.T) contract.Store {
			stores, b := illStores()
			stores[0].fail(&backend.Error{Kind: backend.Retry, Err: errors.New("no connection")})
			return contract.Store{Backend: func() backend.Backend { return b }, OwnersApart: true}
		}}
	})
}

// With any of three stores hanging the suite asks for progress, and that nothing is lost.
func TestContractWithParts(t *testing.T) {
	contract.Run(t, contract.Harness{Virtual: true, Choose: wiretest.PartHangs,
		NewStore: func(t *testing.T) contract.Store {
			stores, b := illStores()
			store := contract.Store{Backend: func() backend.Backend { return b }, OwnersApart: true}
			for _, s := range stores {
				store.Parts = append(store.Parts, func() (resume func()) {
					s.hang()
					return s.wake
				})
			}
			return store
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
		client, err := valkey.NewClient(valkey.ClientOption{
			InitAddress: []string{addr}, DisableCache: true,
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(client.Close)
		return valkeybackend.New(client)
	}
}

func onEtcd(addr string) maker {
	return func(t *testing.T) backend.Backend {
		client, err := clientv3.New(clientv3.Config{
			Endpoints: []string{addr}, Logger: zap.NewNop(),
		})
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

// patientOver returns one that waits for every store, so that a busy machine doesn't leave a lock
// without the slowest vote.
func patientOver(t *testing.T, makers []maker) backend.Backend {
	return quorumbackend.Patient(over(t, makers))
}

// redises starts servers.
func redises(t *testing.T) []*testservers.Server {
	return []*testservers.Server{testservers.Redis(t), testservers.Redis(t), testservers.Redis(t)}
}

// storeOf is what the suite needs, on servers that it empties. The function is called once for each
// test.
func storeOf(
	t *testing.T, servers []*testservers.Server, open func() backend.Backend,
) contract.Store {
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
		Backend:     open,
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

func TestContractOnRedis(t *testing.T) {
	choice := depth.Of[wiretest.Choice](wiretest.PlainStepsAndModel, wiretest.StepsAndModel,
		wiretest.StepsAndModel)
	wiretest.Suite(t, 2, choice, func() contract.Harness {
		servers := redises(t)
		makers := []maker{
			onRedis(servers[0].Addr), onRedis(servers[1].Addr), onRedis(servers[2].Addr),
		}
		return contract.Harness{NewStore: func(t *testing.T) contract.Store {
			return storeOf(t, servers, func() backend.Backend { return patientOver(t, makers) })
		}}
	})
}

// The stores are of three makes. Their limits add up: leases are whole seconds, from 2 s.
func TestContractOnAMix(t *testing.T) {
	choice := wiretest.Named(t,
		"steps/acquire", "steps/release", "steps/renew", "steps/force", "steps/look", "steps/names",
		"steps/concurrency/counts", "steps/concurrency/ex", "steps/limits", "steps/notifier/re",
		"steps/notifier/force", "steps/notifier/names", "steps/batch", "steps/close",
		"steps/read/sh",
		"steps/read/ex", "steps/write", "steps/as write/acquire", "model",
	)
	wiretest.Suite(t, 2, choice, func() contract.Harness {
		servers := []*testservers.Server{testservers.Redis(t), testservers.Valkey(t)}
		etcd := testservers.Etcd(t)
		makers := []maker{onRedis(servers[0].Addr), onValkey(servers[1].Addr), onEtcd(etcd.Addr)}
		return contract.Harness{NewStore: func(t *testing.T) contract.Store {
			store := storeOf(t, servers, func() backend.Backend { return patientOver(t, makers) })
			emptyEtcd(t, etcd.Addr)
			// There is more to these in etcd.
			store.PutForeign, store.ForeignIntact, store.BreakSubscriptions, store.Wipe = nil, nil,
				nil, nil
			return store
		}}
	})
}

// emptyEtcd takes all locks out of an etcd.
func emptyEtcd(t *testing.T, addr string) {
	t.Helper()
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{addr}, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if _, err := client.Delete(t.Context(), "", clientv3.WithPrefix()); err != nil {
		t.Fatal(err)
	}
}

// The suite's steps with one of three servers that isn't as it should be, all the time: that which
// is asked first for most locks.
func testWithOne(
	t *testing.T, parts []string, open func(*testing.T, []maker) backend.Backend,
	harm func(t *testing.T, server *testservers.Server, p *faults.Proxy),
) {
	testWith(t, quorumbackend.Home("lock", 3), parts, open, harm)
}

func testWith(
	t *testing.T, ill int, parts []string, open func(*testing.T, []maker) backend.Backend,
	harm func(t *testing.T, server *testservers.Server, p *faults.Proxy),
) {
	wiretest.Suite(t, 2, wiretest.Named(t, parts...), func() contract.Harness {
		servers := redises(t)
		p := wiretest.NewProxy(t, servers[ill].Addr, faults.RESP)
		var makers []maker
		for i, s := range servers {
			if i == ill {
				makers = append(makers, onRedis(p.Addr()))
				continue
			}
			makers = append(makers, onRedis(s.Addr))
		}
		return contract.Harness{NewStore: func(t *testing.T) contract.Store {
			store := storeOf(t, servers, func() backend.Backend { return open(t, makers) })
			t.Cleanup(func() { p.Unblock(faults.Both); p.Cut() })
			harm(t, servers[ill], p)
			return store
		}}
	})
}

// mostSteps are those that don't depend on which of several is first, or on the note of a writer
// that waits: that is left at one store, and is lost with it.
var mostSteps = []string{"steps/acquire", "steps/release", "steps/renew", "steps/force",
	"steps/look", "steps/lease/cut", "steps/lease/prol",
	"steps/concurrency/counts", "steps/concurrency/exclusion", "steps/notifier/release",
	"steps/notifier/force", "steps/notifier/context", "steps/batch/mixed", "steps/batch/many",
	"steps/close/release", "steps/close/notifier", "steps/wipe",
	"steps/read", "steps/write", "steps/as write/acquire", "steps/as write/release"}

func TestContractWithAStoreDown(t *testing.T) {
	testWithOne(t, mostSteps, over, func(t *testing.T, _ *testservers.Server, p *faults.Proxy) {
		p.Refuse(true)
		p.Cut()
	})
}

// Each session waits for it anew, so this is only for some.
func TestContractWithAStoreThatHangs(t *testing.T) {
	depth.Needs(t, depth.Change)
	parts := []string{"steps/acquire", "steps/release", "steps/renew", "steps/force",
		"steps/batch/mixed", "steps/notifier/release",
		"steps/close/release", "steps/write/excl"}
	testWithOne(t, parts, over, func(t *testing.T, _ *testservers.Server, p *faults.Proxy) {
		p.Block(faults.Both)
	})
}

// A session that doesn't know yet how slow it is may be done before it has answered, and takes back
// late what came late: so no lock changes hands here.
func TestContractWithASlowStore(t *testing.T) {
	depth.Needs(t, depth.Change)
	testWithOne(t, []string{"steps/acquire/free", "steps/acquire/again", "steps/renew",
		"steps/force/held", "steps/look"}, over,
		func(t *testing.T, _ *testservers.Server, p *faults.Proxy) {
			p.SetDelay(15 * time.Millisecond)
		})
}

// A store that hangs carries out its requests when it is back, and they are taken back only then.
// Until then it refuses others. As this store is the one that is asked first, only clients that
// wait get a lock that another had: the parts here hand over in no other way.
func TestContractWithAStoreThatComesAndGoes(t *testing.T) {
	testWithOne(t, []string{"steps/acquire/free", "steps/acquire/again", "steps/renew/held",
		"steps/renew/another",
		"locker/a second Lock", "locker/a counter", "locker/waiters cancelled"}, over, comesAndGoes)
}

func TestContractWithALaterStoreThatComesAndGoes(t *testing.T) {
	depth.Needs(t, depth.Change)
	testWith(t, (quorumbackend.Home("lock", 3)+1)%3, mostSteps, over, comesAndGoes)
}

func comesAndGoes(t *testing.T, _ *testservers.Server, p *faults.Proxy) {
	every(t, 50*time.Millisecond, func(i int) {
		if i%2 == 0 {
			p.Block(faults.Both)
		} else {
			p.Unblock(faults.Both)
		}
	})
}

// Of two that want a lock at the same time each may have the vote of one store. The one that gets
// the vote of the store that forgets can be without a majority in the next moment. So here nobody
// competes, and no writer waits. A session that is closed wakes nobody where there is nothing to
// release. Where a write was forgotten the read under it outlives a forced release: see
// TestForcedWriteThatAStoreHasForgotten. And every vote is waited for: a lock that was taken
// without the slowest is lost with the next one that is forgotten, as it should be.
func TestContractWithAStoreThatForgets(t *testing.T) {
	depth.Needs(t, depth.Change)
	parts := slices.DeleteFunc(slices.Clone(mostSteps), func(part string) bool {
		return strings.Contains(part, "concurrency") || part == "steps/read" ||
			part == "steps/write" || part == "steps/close/notifier"
	})
	parts = append(parts, "steps/read/shared", "steps/read/excludes", "steps/read/lease",
		"steps/read/each", "steps/read/all", "steps/read/renew",
		"steps/read/force", "steps/read/owners", "steps/read/batch", "steps/write/ex",
		"steps/write/own", "steps/write/down", "steps/write/no")
	testWithOne(t, parts, patientOver, func(
		t *testing.T, server *testservers.Server, _ *faults.Proxy,
	) {
		every(t, 20*time.Millisecond, func(int) { testservers.Do(server.Addr, "FLUSHALL") })
	})
}

// every does something again and again until the test ends.
func every(t *testing.T, pause time.Duration, f func(i int)) {
	ctx, cancel := context.WithCancel(t.Context())
	var done sync.WaitGroup
	done.Go(func() {
		for i := 0; ctx.Err() == nil; i++ {
			f(i)
			select {
			case <-ctx.Done():
			case <-time.After(pause):
			}
		}
	})
	t.Cleanup(func() { cancel(); done.Wait() })
}
