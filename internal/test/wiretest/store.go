package wiretest

import (
	"context"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/contract"
	"github.com/seed951563bd/distsync/contract/faults"
	"github.com/seed951563bd/distsync/internal/test/testservers"
)

// Store returns a store for the contract suite. It empties the given masters: a single server, or
// all masters of a cluster. The function connectBackend creates the backends.
func Store(
	t *testing.T, masters []*testservers.Server, connectBackend func(*testing.T) backend.Backend,
) contract.Store {
	ctx := context.Background()
	var nodes []*redis.Client
	for _, master := range masters {
		nodes = append(nodes, connect(t, master.Addr))
	}
	var all redis.UniversalClient = nodes[0]
	if len(masters) > 1 {
		all = redis.NewClusterClient(&redis.ClusterOptions{Addrs: Addrs(masters)})
		t.Cleanup(func() { all.Close() })
	}
	wipe := func() {
		for _, node := range nodes {
			Must[string](t)(node.FlushAll(ctx).Result())
		}
	}
	wipe()
	data := &foreign{client: all, dumps: make(map[string]string)}
	return contract.Store{
		Backend:       func() backend.Backend { return connectBackend(t) },
		PutForeign:    data.put,
		ForeignIntact: data.intact,
		Wipe:          wipe,
		BreakSubscriptions: func() {
			for _, node := range nodes {
				Must[int64](t)(node.ClientKillByFilter(ctx, "TYPE", "pubsub").Result())
			}
		},
	}
}

// Fragile returns a value for the field Fragile of [contract.Store]. The backends connect through a
// proxy, whose address is passed to connectBackend.
func Fragile(
	t *testing.T, server string, protocol faults.Protocol, connectBackend func(
		addr string,
	) backend.Backend,
) func() (backend.Backend, contract.Strike) {
	return func() (backend.Backend, contract.Strike) {
		p := NewProxy(t, server, protocol)
		return connectBackend(p.Addr()), p.Strike
	}
}

// foreign writes keys that have the names of locks, but hold other data: a string, and three
// different hashes, in turn.
type foreign struct {
	client redis.UniversalClient
	dumps  map[string]string // the data under each name
}

func (f *foreign) put(name string) {
	ctx := context.Background()
	switch len(f.dumps) % 4 {
	case 0:
		f.client.Set(ctx, name, "foreign", 0)
	case 1:
		f.client.HSet(ctx, name, "name", "bob")
	case 2:
		f.client.HSet(ctx, name, "name", "bob", "visits", "12")
	case 3:
		f.client.HSet(ctx, name, "mode", "read", "name", "bob")
	}
	f.dumps[name] = f.client.Dump(ctx, name).Val()
}

func (f *foreign) intact(name string) bool {
	ctx := context.Background()
	return f.client.Dump(ctx, name).Val() == f.dumps[name] && f.client.PTTL(ctx, name).Val() == -1
}
