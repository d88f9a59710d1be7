package faults_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/valkey-io/valkey-go"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/contract/faults"
	"github.com/seed951563bd/distsync/dlock"
	"github.com/seed951563bd/distsync/internal/redisson"
	"github.com/seed951563bd/distsync/internal/test/depth"
	"github.com/seed951563bd/distsync/internal/test/testservers"
	"github.com/seed951563bd/distsync/redisbackend"
	"github.com/seed951563bd/distsync/valkeybackend"
)

// limits has tests that demonstrate the limits of locks, and some remedies.
var limits = []struct {
	name string
	run  func(t *testing.T, s *store)
	on   []string // stores; all if it is empty
}{
	{"a failover to a replica that lags lets two in", failoverLetsTwoIn(1, 0), redisAndValkey},
	{"WithReplicas narrows that", replicasNarrow, redisAndValkey},
	{"WithReplicas does not close it", failoverLetsTwoIn(2, 1), redisAndValkey},
	{"a failover that loses only a re-entry is found at the next unlock", reentryForgotten,
		redisAndValkey},
	{"a holder that ignores its context writes beside the next", contextIgnored, nil},
	{"a process paused between its check and its write writes beside the next", pausedBeforeWrite,
		nil},
	{"a resource that refuses stale numbers is safe from that", staleWriteRefused, nil},
}

func TestNotPromised(t *testing.T) {
	t.Parallel()
	for row, limit := range limits {
		t.Run(limit.name, func(t *testing.T) {
			t.Parallel()
			on := slices.DeleteFunc(slices.Clone(stores), func(s *store) bool {
				return len(limit.on) > 0 && !slices.Contains(limit.on, s.name)
			})
			for i, s := range on {
				t.Run(s.name, func(t *testing.T) {
					if i != row%len(on) {
						depth.Needs(t, depth.Change) // each run shows each limit on one store
					}
					t.Parallel()
					limit.run(t, s)
				})
			}
		})
	}
}

// both fails the test unless two holders rely on the lock at the same moment.
func (l *lab) both(a, b *grip) {
	l.Helper()
	if !a.believes() || !b.believes() {
		l.Errorf("not both believe: %v, %v", context.Cause(a.ctx), context.Cause(b.ctx))
	}
}

// A failover is a lab whose master dies. The test decides which replica becomes the master, and
// when each client is connected to it.
type failover struct {
	*lab
	replicas []*testservers.Server
	acks     int // the number of replicas for which an acquisition waits

	mu    sync.Mutex
	paths map[string]string // the server's address for each client's address
}

func newFailover(t *testing.T, s *store, replicas, acks int) *failover {
	t.Helper()
	start, connect := testservers.RedisReplicated, dialRedis
	if s.name == "valkey" {
		start, connect = testservers.ValkeyReplicated, dialValkey
	}
	f := &failover{acks: acks, paths: make(map[string]string)}
	follow := *s
	follow.connect = func(addrs ...string) (backend.Backend, func(), error) {
		return connect(f, addrs[0])
	}
	f.lab = &lab{T: t, store: &follow, lock: "n"}
	f.master, f.replicas = start(t, replicas)
	f.servers = append([]*testservers.Server{f.master}, f.replicas...)
	return f
}

const (
	// ackTimeout is how long an acquisition waits for replicas.
	ackTimeout = 500 * time.Millisecond

	// failoverLease is the time within which a failover must end, and the next party must get the
	// lock.
	failoverLease = 10 * time.Second
)

func dialRedis(f *failover, addr string) (backend.Backend, func(), error) {
	rdb := redis.NewClient(&redis.Options{Addr: addr, Dialer: func(
		ctx context.Context, _, addr string,
	) (net.Conn, error) {
		return f.dial(ctx, addr)
	}})
	var opts []redisbackend.Option
	if f.acks > 0 {
		opts = append(opts, redisbackend.WithReplicas(f.acks, ackTimeout))
	}
	return redisbackend.New(rdb, opts...), func() { rdb.Close() }, nil
}

func dialValkey(f *failover, addr string) (backend.Backend, func(), error) {
	vk, err := valkey.NewClient(valkey.ClientOption{
		InitAddress: []string{addr}, ForceSingleClient: true,
		// a single connection, so that a client of the new master no longer uses the old one
		PipelineMultiplex: -1,
		DialCtxFn: func(
			ctx context.Context, addr string, _ *net.Dialer, _ *tls.Config,
		) (net.Conn, error) {
			return f.dial(ctx, addr)
		},
	})
	if err != nil {
		return nil, nil, err
	}
	var opts []valkeybackend.Option
	if f.acks > 0 {
		opts = append(opts, valkeybackend.WithReplicas(f.acks, ackTimeout))
	}
	return valkeybackend.New(vk, opts...), vk.Close, nil
}

func (f *failover) dial(ctx context.Context, addr string) (net.Conn, error) {
	f.mu.Lock()
	path := f.paths[addr]
	f.mu.Unlock()
	return new(net.Dialer).DialContext(ctx, "tcp", path)
}

// A client is a party that uses a master until hears gives it another.
type client struct {
	*party
	f    *failover
	addr string
}

func (f *failover) client(lease time.Duration) *client {
	f.Helper()
	f.mu.Lock()
	addr := fmt.Sprint("client", len(f.paths), ":1")
	f.paths[addr] = f.master.Addr
	f.mu.Unlock()
	return &client{f.connect([]string{addr}, dlock.WithLease(lease)), f, addr}
}

// hears redirects a client to the new master, and returns when the client is connected to it.
func (c *client) hears(addr string) {
	c.f.Helper()
	c.f.mu.Lock()
	c.f.paths[c.addr] = addr
	c.f.mu.Unlock()
	testservers.Until(c.f.T, "the client speaks to the new master", func() bool {
		_, err := c.locker().IsLocked(c.f.Context())
		return err == nil
	})
}

// cutOff ends the replication from the master to a replica. Later writes don't reach the replica.
func (f *failover) cutOff(replica *testservers.Server) {
	f.Helper()
	replica.Do("REPLICAOF", "127.0.0.1", "1") // no server listens there
}

// follow makes a replica follow a master, and returns when it is up to date.
func (f *failover) follow(replica, master *testservers.Server) {
	f.Helper()
	host, port, err := net.SplitHostPort(master.Addr)
	must(f.T, err)
	replica.Do("REPLICAOF", host, port)
	testservers.Until(f.T, "the replica is up to date", func() bool {
		return strings.Contains(replica.Do("INFO", "replication"), "master_link_status:up")
	})
}

// promote kills the master and makes a replica the master of the others.
func (f *failover) promote(heir *testservers.Server) {
	f.Helper()
	f.master.Kill()
	heir.Do("REPLICAOF", "NO", "ONE")
	for _, replica := range f.replicas {
		if replica != heir {
			f.follow(replica, heir)
		}
	}
	f.master, f.servers = heir, f.replicas
}

// A replica that doesn't know the locks becomes the master. A client of the new master gets the
// lock while the first holder still believes that it holds it. The first holder is told when the
// new master answers a renewal. If it isn't connected to that, it is told when its lease expires.
func failoverLetsTwoIn(replicas, acks int) func(*testing.T, *store) {
	return func(t *testing.T, s *store) {
		f := newFailover(t, s, replicas, acks)
		cutOff, a, b := f.client(failoverLease), f.client(failoverLease), f.client(long)
		lagging := f.replicas[replicas-1]
		f.cutOff(lagging)
		c := cutOff.at("m").grab() // first, so that its lease expires first
		g := a.grab()
		f.promote(lagging)
		b.hears(lagging.Addr)
		w, v := b.grab(), b.at("m").grab()
		f.both(g, w)
		f.both(c, v)

		a.hears(lagging.Addr)
		g.told()
		if !c.believes() {
			f.Error("who is told by a renewal is told no sooner than who is told by its clock")
		}
		c.told()
		cutOff.hears(lagging.Addr)
		g.isLost()
		c.isLost()
		for _, next := range []*grip{w, v} {
			next.holds()
			next.let()
		}
		f.isEmpty()
	}
}

// An acquisition that no replica has acknowledged isn't granted, and is released again. A lock that
// the new master had as a replica stays held.
func replicasNarrow(t *testing.T, s *store) {
	f := newFailover(t, s, 1, 1)
	a, b := f.client(long), f.client(long)
	replica := f.replicas[0]
	f.cutOff(replica)
	ok, err := a.locker().TryLock(t.Context())
	if ok || !errors.Is(err, redisson.ErrNotReplicated) { // both backends export this error
		t.Errorf("TryLock while no replica acknowledges: %v, %v", ok, err)
	}
	f.isEmpty()

	f.follow(replica, f.master)
	g := a.grab()
	f.promote(replica)
	a.hears(replica.Addr)
	b.hears(replica.Addr)
	g.holds()
	f.isTaken(b.party)
	g.let()
	f.verdict()
	f.isEmpty()
}

// The new master knows the lock, but not its re-entry. It counts one hold where the holder has two,
// and renews it. So the first of two unlocks frees the lock. The holder learns that from the
// answer, but another party may get the lock before.
func reentryForgotten(t *testing.T, s *store) {
	f := newFailover(t, s, 1, 0)
	a, b := f.client(failoverLease), f.client(long)
	replica := f.replicas[0]
	proxy := newProxy(t, replica.Addr, faults.RESP)
	g := a.grab()
	testservers.Until(t, "the replica knows of the lock", func() bool {
		return replica.Do("EXISTS", "n") == "1"
	})
	f.cutOff(replica)
	must(t, a.locker().LockContext(g.ctx))
	f.promote(replica)
	a.hears(proxy.Addr())
	b.hears(replica.Addr)

	left := func() int {
		ms, err := strconv.Atoi(replica.Do("PTTL", "n"))
		must(t, err)
		return ms
	}
	before := left()
	testservers.Until(t, "the new master renews", func() bool { return left() > before })
	if n, err := a.locker().HoldCount(g.ctx); n != 2 || err != nil {
		t.Errorf("HoldCount: %d, %v", n, err)
	}
	f.isTaken(b.party)

	unlock := redisson.Release(backend.ReleaseRequest{}).Script
	replica.Do("SCRIPT", "LOAD", unlock.Text) // otherwise the script is unknown
	held, deliver := proxy.Hold(runs(unlock))
	unlocked := make(chan error, 1)
	go func() { unlocked <- a.locker().UnlockContext(g.ctx) }()
	come(t, "the unlock", held)
	proxy.Block(faults.ToClient)
	deliver()
	w := b.grab()
	f.both(g, w)
	proxy.Unblock(faults.ToClient)
	if err := come(t, "the answer to the unlock", unlocked); !errors.Is(err, dlock.ErrLost) {
		t.Errorf("the first unlock of two: %v", err)
	}
	g.isLost()
	w.holds()
	w.let()
	f.isEmpty()
}

// A holder that can't reach the store works on after its lease, and writes when the next holder has
// the lock. Nothing stops it, although its context has ended.
func contextIgnored(t *testing.T, s *store) {
	l := oneServer(t, s, nil)
	a, b := l.proxied(l.short()), l.direct(dlock.WithLease(long))
	var file string // the resource that the lock protects
	inside, work := make(chan struct{}), make(chan struct{})
	told, done := make(chan error, 1), make(chan error, 1)
	go func() {
		done <- a.locker().Do(context.Background(), func(ctx context.Context) error {
			defer a.watch(ctx)()
			close(inside)
			<-work // it doesn't check ctx
			told <- ctx.Err()
			file = "late"
			return nil
		})
	}()
	come(t, "the first", inside)
	a.Block(faults.Both)
	w := b.grab()
	file = "next"
	close(work)
	if err := come(t, "what the context says", told); err == nil {
		t.Error("the context of a hold that is over tells nothing")
	}
	a.Unblock(faults.Both)
	if err := come(t, "the end of Do", done); !errors.Is(err, dlock.ErrLost) {
		t.Errorf("the end of a Do that wrote late: %v", err)
	}
	if file != "late" {
		t.Errorf("the file is %q: something has kept the late write off", file)
	}
	w.holds()
	w.let()
	l.verdict()
	l.isEmpty()
}

// A check is only true at its moment. A process that is paused after the check writes when it goes
// on, even if the next holder has the lock.
func pausedBeforeWrite(t *testing.T, s *store) {
	f := new(file)
	if wrote := lateWrite(t, s, f); !wrote || f.text != "late" {
		t.Errorf("the file is %q: something has kept the late write off", f.text)
	}
}

// The same happens here, but the file refuses writers with a smaller token than it has seen.
func staleWriteRefused(t *testing.T, s *store) {
	f := &file{looks: true}
	if wrote := lateWrite(t, s, f); wrote || f.text != "next" {
		t.Errorf("the file is %q: the late write wasn't refused", f.text)
	}
}

// lateWrite pauses a process after its check. Meanwhile another party gets the lock and writes.
// Then the process goes on, and tries to write. lateWrite returns whether the file accepted that.
func lateWrite(t *testing.T, s *store, f *file) (wrote bool) {
	t.Helper()
	l := oneServer(t, s, nil)
	l.kinds = fenced
	b := l.direct(dlock.WithLease(long))
	p := l.writer()
	checked := p.says("it")
	p.stop()
	w := b.grab()
	number, _ := dlock.Token(w.ctx)
	if !f.write(number, "next") {
		t.Errorf("number %d was refused", number)
	}
	w.holds()
	p.order("write", "it")
	p.cont()
	said := p.says("it")
	if said != checked {
		t.Errorf("the writer was number %s, and is %s", checked, said)
	}
	stale, err := strconv.ParseUint(said, 10, 64)
	must(t, err)
	wrote = f.write(stale, "late")
	w.holds() // as during the late write
	if got := p.says("it"); !strings.HasPrefix(got, `dlock: unlock "n": lost after`) ||
		!strings.Contains(got, "stood still") {
		t.Errorf("the end of the Do that wrote late: %s", got)
	}
	w.let()
	l.verdict()
	l.isEmpty()
	return wrote
}
