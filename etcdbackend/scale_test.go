package etcdbackend_test

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/internal/test/depth"
	"github.com/seed951563bd/distsync/internal/test/testservers"
	"github.com/seed951563bd/distsync/internal/test/wiretest"
)

// counts is what a client sends.
type counts struct {
	mu      sync.Mutex
	unary   map[string]int
	streams map[string]int
}

func (c *counts) install(cfg *clientv3.Config) {
	c.reset()
	cfg.DialOptions = append(cfg.DialOptions,
		grpc.WithChainUnaryInterceptor(func(
			ctx context.Context, method string, req, res any, cc *grpc.ClientConn,
			invoke grpc.UnaryInvoker, opts ...grpc.CallOption,
		) error {
			c.mu.Lock()
			c.unary[method]++
			c.mu.Unlock()
			return invoke(ctx, method, req, res, cc, opts...)
		}),
		grpc.WithChainStreamInterceptor(func(
			ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string,
			streamer grpc.Streamer, opts ...grpc.CallOption,
		) (grpc.ClientStream, error) {
			c.mu.Lock()
			c.streams[method]++
			c.mu.Unlock()
			return streamer(ctx, desc, cc, method, opts...)
		}))
}

func (c *counts) reset() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.unary, c.streams = make(map[string]int), make(map[string]int)
}

func (c *counts) get() (unary, streams string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return fmt.Sprint(c.unary), fmt.Sprint(c.streams)
}

const (
	rpcRange  = "/etcdserverpb.KV/Range"
	rpcTxn    = "/etcdserverpb.KV/Txn"
	rpcGrant  = "/etcdserverpb.Lease/LeaseGrant"
	rpcRevoke = "/etcdserverpb.Lease/LeaseRevoke"
	rpcTTL    = "/etcdserverpb.Lease/LeaseTimeToLive"
	rpcAlive  = "/etcdserverpb.Lease/LeaseKeepAlive"
)

// TestRoundTrips: each step sends no more than the requests it needs.
func TestRoundTrips(t *testing.T) {
	t.Parallel()
	var sent counts
	server := testservers.Etcd(t)
	s, other := open(t, connect(t, server.Addr, sent.install)), open(t, connect(t, server.Addr))
	ctx := t.Context()
	check := func(what string, want map[string]int) {
		t.Helper()
		if got, _ := sent.get(); got != fmt.Sprint(want) {
			t.Errorf("%s sent %v, want %v", what, got, want)
		}
		sent.reset()
	}
	wiretest.Must[backend.AcquireResult](t)(s.Acquire(ctx, acquire(alice)))
	check("the first acquisition", map[string]int{rpcRange: 1, rpcGrant: 1, rpcTxn: 1})
	wiretest.Must[backend.AcquireResult](t)(s.Acquire(ctx, reenter(alice)))
	check("a re-entry", map[string]int{rpcTxn: 1})
	wiretest.Must[backend.RenewResult](t)(s.Renew(ctx, renew(alice)))
	check("a renewal", map[string]int{rpcTxn: 1})
	wiretest.Must[backend.ReleaseResult](t)(s.Release(ctx, release(alice)))
	check("a release of one of two", map[string]int{rpcTxn: 1})
	wiretest.Must[backend.ReleaseResult](t)(s.Release(ctx, release(alice)))
	check("a release", map[string]int{rpcTxn: 1})
	for range 3 {
		wiretest.Must[backend.AcquireResult](t)(s.Acquire(ctx, acquire(alice)))
		check("an acquisition", map[string]int{rpcTxn: 1})
		wiretest.Must[backend.ReleaseResult](t)(s.Release(ctx, release(alice)))
		check("its release", map[string]int{rpcTxn: 1})
	}
	wiretest.Must[backend.AcquireResult](t)(other.Acquire(ctx, acquire(bob)))
	wiretest.Must[backend.AcquireResult](t)(s.Acquire(ctx, acquire(alice)))
	check("an acquisition in vain", map[string]int{rpcTxn: 1, rpcTTL: 1})
	wiretest.Must[backend.AcquireResult](t)(s.Acquire(ctx, acquire(alice)))
	check("another", map[string]int{rpcRange: 1, rpcTTL: 1})
	inspect(t, s, "n")
	check("an inspection", map[string]int{rpcTxn: 1, rpcTTL: 1})
	list(t, s, "", 100)
	check("a list of one", map[string]int{rpcRange: 1, rpcTTL: 1})
	wiretest.Must[backend.ReleaseResult](t)(other.Release(ctx, release(bob)))
	wiretest.Must[backend.AcquireResult](t)(s.Acquire(ctx, acquire(alice)))
	check("an acquisition of what another had", map[string]int{rpcRange: 1, rpcTxn: 1})
}

// TestTenThousandHeldLocks: ten thousand locks are renewed over one stream.
func TestTenThousandHeldLocks(t *testing.T) {
	n := depth.Of(1000, 1000, 10_000)
	server := testservers.Etcd(t)
	var sent counts
	cli := connect(t, server.Addr, sent.install)
	s := open(t, cli)
	ctx := t.Context()
	reqs := make([]backend.RenewRequest, n)
	for i := range reqs {
		reqs[i] = backend.RenewRequest{
			Name:  fmt.Sprint("lock", i),
			Owner: fmt.Sprintf("11111111-1111-1111-1111-111111111111:%d", i),
			Lease: 10 * time.Minute,
		}
	}
	wiretest.Must[backend.LookResult](t)(s.Look(ctx, backend.LookRequest{Name: "n"})) // connects
	idle, heap := runtime.NumGoroutine(), heapInUse()
	begin := time.Now()
	var all sync.WaitGroup
	var next atomic.Int64
	for range 64 {
		all.Go(func() {
			for i := next.Add(1) - 1; i < int64(n); i = next.Add(1) - 1 {
				req := backend.AcquireRequest{
					Name: reqs[i].Name, Owner: reqs[i].Owner, Lease: reqs[i].Lease,
				}
				if res, err := s.Acquire(ctx, req); err != nil || !res.Acquired {
					t.Errorf("acquire: %+v, %v", res, err)
				}
			}
		})
	}
	all.Wait()
	t.Logf("acquired in %v", time.Since(begin))

	// on a slow machine leases that were granted ahead have begun anew already
	_, opened := sent.get()
	sent.reset()
	const rounds = 3
	var most atomic.Int64
	var total time.Duration
	cpu := cpuTime()
	for range rounds {
		begin = time.Now()
		var held atomic.Int64
		s.RenewBatch(ctx, reqs, func(_ int, res backend.RenewResult, err error) {
			switch {
			case err != nil:
				t.Errorf("renew: %v", err)
			case res.Held:
				if held.Add(1)%1000 == 0 {
					most.Store(max(most.Load(), int64(runtime.NumGoroutine())))
				}
			}
		})
		total += time.Since(begin)
		if held.Load() != int64(n) {
			t.Errorf("%d of %d renewed", held.Load(), n)
		}
	}
	cpu = cpuTime() - cpu
	unary, streams := sent.get()
	reads := (n + 127) / 128 * rounds
	if want := fmt.Sprint(map[string]int{rpcTxn: reads}); unary != want {
		t.Errorf("the renewals sent %v, want %v", unary, want)
	}
	one, none := fmt.Sprint(map[string]int{rpcAlive: 1}), fmt.Sprint(map[string]int{})
	if !(opened == none && streams == one || opened == one && streams == none) {
		t.Errorf("the renewals opened the streams %v, after %v; want one in all", streams, opened)
	}
	if extra := most.Load() - int64(idle); extra > 20 {
		t.Errorf("the renewals took %d goroutines", extra)
	}
	t.Logf("%d renewals: %v and %v of CPU of this process; at most %d goroutines more than when "+
		"idle; %d bytes a lock",
		n, total/rounds, cpu/rounds, most.Load()-int64(idle), (heapInUse()-heap)/int64(n))
	runtime.KeepAlive(reqs)
}

func heapInUse() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

func cpuTime() time.Duration {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// fill puts many keys, some of which have a lease in common.
func fill(t *testing.T, cli *clientv3.Client, n int, key, value func(owner string) string) {
	t.Helper()
	const atOnce = 100 // as many as a transaction may put
	for i := 0; i < n; i += atOnce {
		l := wiretest.Must[*clientv3.LeaseGrantResponse](t)(cli.Grant(t.Context(), 600))
		var ops []clientv3.Op
		for j := range atOnce {
			// as long as that, or it would take ten times as many
			owner := fmt.Sprintf("%01000d", i+j)
			ops = append(ops, clientv3.OpPut(key(owner), value(owner), clientv3.WithLease(l.ID)))
		}
		wiretest.Must[*clientv3.TxnResponse](t)(cli.Txn(t.Context()).Then(ops...).Commit())
	}
}

// An answer about a lock may be longer than the 4 MiB that a connection takes by default.
func TestManyHolders(t *testing.T) {
	t.Parallel()
	cli := connect(t, testservers.Etcd(t).Addr)
	s := open(t, cli)
	p := party{t, s, alice}
	const n = 2500

	keys := func(role string) func(string) string {
		return func(owner string) string { return key("n\x01" + role + "/" + owner) }
	}
	fill(t, cli, n, keys("permits"), func(owner string) string {
		return fmt.Sprintf(`{"owner":%q,"count":1,"kind":"permits","limit":100000}`, owner)
	})
	l := wiretest.SubscribeTo(t, s, backend.Permits, "n")
	defer l.Sub.Close()
	p.gets(backend.Permits, of(1, n+1))
	if res := (party{t, s, bob}).try(backend.Permits, of(1, n+1)); res.Acquired {
		t.Error("more permits are out than there are")
	}
	p.counts(n+2, 1, 1)
	p.forces(backend.Permits, true)
	l.Wait()

	fill(t, cli, n, keys("read"), func(owner string) string {
		return fmt.Sprintf(`{"owner":%q,"count":1,"kind":"read"}`, owner)
	})
	if res := p.try(backend.Write); res.Acquired {
		t.Error("somebody writes beside readers")
	}
	p.sees(backend.Read, true, 0)
	p.forces(backend.Read, true)
	p.gets(backend.Write)
}
