package etcdbackend_test

import (
	"context"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/contract"
	"github.com/seed951563bd/distsync/contract/faults"
	"github.com/seed951563bd/distsync/etcdbackend"
	"github.com/seed951563bd/distsync/internal/test/depth"
	"github.com/seed951563bd/distsync/internal/test/testservers"
	"github.com/seed951563bd/distsync/internal/test/wiretest"
)

func TestContract(t *testing.T) {
	choice := depth.Of[wiretest.Choice](wiretest.Essential, nil, nil)
	wiretest.Suite(t, 12, choice, func() contract.Harness {
		server := testservers.Etcd(t)
		return contract.Harness{NewStore: func(t *testing.T) contract.Store {
			return store(t, server.Addr)
		}}
	})
}

// store is what the suite needs, on an etcd without locks.
func store(t *testing.T, addr string) contract.Store {
	ctx := context.Background()
	at := &address{now: addr}
	admin := connect(t, addr, at.install)
	var breaker watchBreaker
	wiretest.Must[*clientv3.DeleteResponse](t)(admin.Delete(ctx, "", clientv3.WithPrefix()))
	return contract.Store{
		Backend: func() backend.Backend {
			return etcdbackend.New(connect(t, addr, at.install, breaker.install))
		},
		PutForeign: func(name string) {
			wiretest.Must[*clientv3.PutResponse](t)(admin.Put(ctx, key(name), "foreign"))
		},
		ForeignIntact: func(name string) bool {
			res, err := admin.Get(ctx, key(name))
			return err == nil && res.Count == 1 && string(res.Kvs[0].Value) == "foreign"
		},
		// Deleting all keys is not enough: revisions would go on.
		Wipe:               func() { at.move(testservers.Etcd(t).Addr) },
		BreakSubscriptions: breaker.cut,
		Fragile: wiretest.Fragile(t, addr, faults.HTTP2, func(addr string) backend.Backend {
			return etcdbackend.New(connect(t, addr, reconnectAtOnce))
		}),
	}
}

// With any of three members hanging the suite asks for progress, and that nothing is lost. Clients
// are set as New says: else each third request goes to the member that hangs, for as long as it
// does. It takes minutes, in real time. A quorum of stores has the same cases in virtual time, on
// every change.
func TestContractWithParts(t *testing.T) {
	depth.Needs(t, depth.Night)
	members := testservers.EtcdCluster(t, 3)
	run := func(
		what string, chosen func(contract.Case) bool,
		parts func(t *testing.T) []*testservers.Server,
	) {
		t.Run(what, func(t *testing.T) {
			contract.Run(t, contract.Harness{Choose: chosen, NewStore: func(
				t *testing.T,
			) contract.Store {
				store := contract.Store{Backend: func() backend.Backend {
					return etcdbackend.New(connectAll(t, addrs(members), keepingAlive))
				}}
				for _, m := range parts(t) {
					store.Parts = append(store.Parts, func() func() { m.Stop(); return m.Cont })
				}
				return store
			}})
		})
	}
	run("any", func(c contract.Case) bool {
		return c.Tags.Has(contract.PartHangs) && !c.Tags.Has(contract.HoldStays)
	}, func(*testing.T) []*testservers.Server { return members })
	// A leader that goes on after longer than a lease may end holds that are in order: see the
	// package's documentation.
	run("followers", func(c contract.Case) bool { return c.Tags.Has(contract.HoldStays) },
		func(t *testing.T) []*testservers.Server { return followers(t, members) })
}

// followers returns the members that don't lead.
func followers(t *testing.T, members []*testservers.Server) []*testservers.Server {
	t.Helper()
	var single []*clientv3.Client
	for _, m := range members {
		single = append(single, connect(t, m.Addr))
	}
	leads := -1
	testservers.Until(t, "there is a leader", func() bool {
		leads = leader(t, single)
		return leads >= 0
	})
	return slices.Delete(slices.Clone(members), leads, leads+1)
}

// keepingAlive lets a client leave a member that hangs, as soon as gRPC allows.
func keepingAlive(c *clientv3.Config) {
	c.DialKeepAliveTime, c.DialKeepAliveTimeout = 10*time.Second, 3*time.Second
}

// An address is where the clients that it is installed in find etcd.
type address struct {
	mu    sync.Mutex
	now   string
	conns []net.Conn
}

func (a *address) install(c *clientv3.Config) {
	c.DialOptions = append(c.DialOptions, grpc.WithContextDialer(a.dial))
}

func (a *address) dial(ctx context.Context, _ string) (net.Conn, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", a.now)
	if err == nil {
		a.conns = append(a.conns, conn)
	}
	return conn, err
}

// move takes all clients to another etcd.
func (a *address) move(to string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.now = to
	for _, conn := range a.conns {
		conn.Close()
	}
	a.conns = nil
}

// reconnectAtOnce lets a client whose connection was broken not wait for a second before the next.
func reconnectAtOnce(c *clientv3.Config) {
	at := backoff.Config{BaseDelay: time.Millisecond, Multiplier: 1, MaxDelay: time.Millisecond}
	c.DialOptions = append(c.DialOptions, grpc.WithConnectParams(grpc.ConnectParams{
		Backoff: at, MinConnectTimeout: testservers.Patience,
	}))
}

// A watchBreaker breaks the streams of watches of the clients that it is installed in, and nothing
// else.
type watchBreaker struct {
	mu      sync.Mutex
	cancels map[int]context.CancelFunc
	next    int
}

func (b *watchBreaker) install(c *clientv3.Config) {
	c.DialOptions = append(c.DialOptions, grpc.WithChainStreamInterceptor(b.stream))
}

func (b *watchBreaker) stream(
	ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string,
	streamer grpc.Streamer, opts ...grpc.CallOption,
) (grpc.ClientStream, error) {
	if method == "/etcdserverpb.Watch/Watch" {
		ctx = b.add(ctx)
	}
	return streamer(ctx, desc, cc, method, opts...)
}

func (b *watchBreaker) add(ctx context.Context) context.Context {
	ctx, cancel := context.WithCancel(ctx)
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.cancels == nil {
		b.cancels = make(map[int]context.CancelFunc)
	}
	id := b.next
	b.next++
	b.cancels[id] = cancel
	context.AfterFunc(ctx, func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		delete(b.cancels, id)
	})
	return ctx
}

func (b *watchBreaker) cut() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, cancel := range b.cancels {
		cancel()
	}
}

// opened returns how many streams were opened so far.
func (b *watchBreaker) opened() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.next
}
