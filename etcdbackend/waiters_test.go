package etcdbackend_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/dlock"
	"github.com/seed951563bd/distsync/etcdbackend"
	"github.com/seed951563bd/distsync/internal/test/testservers"
	"github.com/seed951563bd/distsync/internal/test/wiretest"
)

// waitingFor returns how many keys there are of those that wait for a lock.
func waitingFor(t *testing.T, cli *clientv3.Client, name string) int {
	t.Helper()
	return int(wiretest.Must[*clientv3.GetResponse](t)(
		cli.Get(t.Context(), key(name)+"\x00", clientv3.WithPrefix(), clientv3.WithCountOnly())).
		Count)
}

// TestLine: the waiter that came first is woken, and each other only when it is the first.
func TestLine(t *testing.T) {
	t.Parallel()
	server := testservers.Etcd(t)
	admin := connect(t, server.Addr)
	holder := open(t, admin)
	wiretest.Must[backend.AcquireResult](t)(holder.Acquire(t.Context(), acquire(alice)))
	const n = 4
	var waiters [n]session
	var subs [n]backend.Subscription
	var woken [n]atomic.Int32
	order := make(chan int, 100)
	for i := range n {
		waiters[i] = open(t, connect(t, server.Addr))
		sub, err := waiters[i].Subscribe(t.Context(),
			backend.SubscribeRequest{Name: "n", Wake: func(backend.Wakeup) {
				woken[i].Add(1)
				order <- i
			}})
		if err != nil {
			t.Fatal(err)
		}
		subs[i] = sub
		etcdbackend.Delay(waiters[i], time.Hour)
		if got := waitingFor(t, admin, "n"); got != i+1 {
			t.Fatalf("%d keys of %d who wait", got, i+1)
		}
	}
	req := release(alice)
	req.AskWaiting = true
	if res := wiretest.Must[backend.ReleaseResult](t)(
		holder.Release(t.Context(), req)); !res.Counted || res.Waiting != 1 {
		t.Errorf("a release that others wait for: %+v", res)
	}
	for i := range n {
		if got := <-order; got != i {
			t.Fatalf("%d is woken, and it is the turn of %d", got, i)
		}
		owner := fmt.Sprint("waiter ", i)
		if res := wiretest.Must[backend.AcquireResult](t)(
			waiters[i].Acquire(t.Context(), acquire(owner))); !res.Acquired {
			t.Fatalf("%d was woken, and the lock is held", i)
		}
		if got := waitingFor(t, admin, "n"); got != n-1-i {
			t.Errorf("%d keys of %d who wait", got, n-1-i)
		}
		subs[i].Close()
		req := release(owner)
		req.AskWaiting = true
		res := wiretest.Must[backend.ReleaseResult](t)(waiters[i].Release(t.Context(), req))
		if want := min(n-1-i, 1); !res.Counted || res.Waiting != want {
			t.Errorf("a release that %d wait for: %+v", n-1-i, res)
		}
	}
	for i := range n {
		if k := woken[i].Load(); k != 1 {
			t.Errorf("%d was woken %d times", i, k)
		}
	}
}

// TestLineGoesOn: nobody depends on those that are ahead.
func TestLineGoesOn(t *testing.T) {
	t.Parallel()
	server := testservers.Etcd(t)
	admin := connect(t, server.Addr)
	holder := open(t, admin)
	wiretest.Must[backend.AcquireResult](t)(holder.Acquire(t.Context(), acquire(alice)))
	first, second := open(t, connect(t, server.Addr)), open(t, connect(t, server.Addr))
	subscribe(t, first, "n")
	last := subscribe(t, second, "n")
	wiretest.Must[backend.ReleaseResult](t)(holder.Release(t.Context(), release(alice)))
	last.Wait() // though the first doesn't take it

	// A session that has had the lock goes to the end of the line if it is still subscribed.
	wiretest.Must[backend.AcquireResult](t)(first.Acquire(t.Context(), acquire(alice)))
	testservers.Until(t, "who has the lock doesn't wait for it", func() bool {
		return waitingFor(t, admin, "n") == 1
	})
	wiretest.Must[backend.ReleaseResult](t)(first.Release(t.Context(), release(alice)))
	testservers.Until(t, "who is subscribed waits again", func() bool {
		return waitingFor(t, admin, "n") == 2
	})
	var held []int64 // the leases of both
	for _, kv := range wiretest.Must[*clientv3.GetResponse](t)(
		admin.Get(t.Context(), key("n")+"\x00", clientv3.WithPrefix())).Kvs {
		held = append(held, kv.Lease)
	}
	first.Close()
	testservers.Until(t, "who is gone doesn't wait", func() bool {
		for _, id := range held {
			ttl := wiretest.Must[*clientv3.LeaseTimeToLiveResponse](t)(
				admin.TimeToLive(t.Context(), clientv3.LeaseID(id))).TTL
			if ttl < 0 {
				return true
			}
			if ttl < 3 {
				t.Fatal("a lease is left to run out")
			}
		}
		return false
	})
	if n := waitingFor(t, admin, "n"); n != 1 {
		t.Errorf("%d keys of one who waits", n)
	}
}

// TestWhoWatchesIsNotInLine: a client that only watches isn't in line, so it keeps nobody waiting,
// and waits for nobody.
func TestWhoWatchesIsNotInLine(t *testing.T) {
	t.Parallel()
	server := testservers.Etcd(t)
	admin := connect(t, server.Addr)
	holder, watcher, waiter := open(t, admin), open(t, connect(t, server.Addr)),
		open(t, connect(t, server.Addr))
	woken, turn := make(chan bool, 100), make(chan bool, 100)
	for _, sub := range []struct {
		s       session
		watches bool
		woken   chan bool
	}{{watcher, true, woken}, {waiter, false, turn}} {
		req := backend.SubscribeRequest{Name: "n", Watches: sub.watches, Wake: func(
			backend.Wakeup,
		) {
			sub.woken <- true
		}}
		wiretest.Must[backend.Subscription](t)(sub.s.Subscribe(t.Context(), req))
		etcdbackend.Delay(sub.s, time.Hour)
	}
	if n := waitingFor(t, admin, "n"); n != 1 {
		t.Errorf("%d keys of one who waits", n)
	}
	wiretest.Must[backend.AcquireResult](t)(holder.Acquire(t.Context(), acquire(alice)))
	<-woken
	wiretest.Must[backend.ReleaseResult](t)(holder.Release(t.Context(), release(alice)))
	<-woken
	<-turn
	watcher.Close()
	if n := waitingFor(t, admin, "n"); n != 1 {
		t.Errorf("%d keys of one who waits", n)
	}
}

// TestWaitingIsKept: a client that waits for long keeps its place.
func TestWaitingIsKept(t *testing.T) {
	t.Parallel()
	server := testservers.Etcd(t)
	admin := connect(t, server.Addr)
	s := open(t, connect(t, server.Addr), etcdbackend.CheckEvery(2*time.Second))
	subscribe(t, s, "n")
	res := wiretest.Must[*clientv3.GetResponse](t)(
		admin.Get(t.Context(), key("n")+"\x00", clientv3.WithPrefix()))
	id := clientv3.LeaseID(res.Kvs[0].Lease)
	last := int64(1 << 62)
	testservers.Until(t, "its lease begins anew", func() bool {
		left := wiretest.Must[*clientv3.LeaseTimeToLiveResponse](t)(
			admin.TimeToLive(t.Context(), id)).TTL
		defer func() { last = left }()
		return left > last
	})
}

// TestHerd: a hand-over among many processes costs etcd fewer requests than a herd would send.
func TestHerd(t *testing.T) {
	t.Parallel()
	t.Run("plain", func(t *testing.T) {
		herd(t, 1, func(c *dlock.Client) *dlock.Locker { return c.Locker("n") })
	})
	t.Run("write", func(t *testing.T) {
		herd(t, 2, func(c *dlock.Client) *dlock.Locker { return c.RWLocker("n").Writer() })
	})
}

// herd lets processes take turns, in each of which each may send so many requests.
func herd(t *testing.T, most int, locker func(*dlock.Client) *dlock.Locker) {
	server := testservers.Etcd(t)
	const processes, turns = 20, 100
	var sent [processes]counts
	var taken atomic.Int64
	var all sync.WaitGroup
	ctx, cancel := context.WithTimeout(t.Context(), 2*testservers.Patience)
	defer cancel()
	for i := range processes {
		c := dlock.New(etcdbackend.New(connect(t, server.Addr, sent[i].install)))
		t.Cleanup(func() { c.Close() })
		l := locker(c)
		all.Go(func() {
			for taken.Add(1) <= turns {
				if err := l.LockContext(ctx); err != nil {
					t.Error(err)
					return
				}
				time.Sleep(10 * time.Millisecond) // the work
				l.Unlock()
			}
		})
	}
	all.Wait()
	requests := 0
	for i := range sent {
		sent[i].mu.Lock()
		for method, n := range sent[i].unary {
			if !strings.Contains(method, "Auth") {
				requests += n
			}
		}
		sent[i].mu.Unlock()
	}
	// A turn takes six or seven requests where nothing else goes on. A herd would send two or three
	// for each process, and one more where processes leave notes.
	if each := requests / turns; each > most*processes {
		t.Errorf("a turn takes %d requests", each)
	} else {
		t.Logf("a turn takes %.1f requests", float64(requests)/turns)
	}
}

// TestExactPermission: a user that may only read and write the lock's own key can't stand in line.
// It can do everything else.
func TestExactPermission(t *testing.T) {
	t.Parallel()
	server := testservers.Etcd(t, "--bcrypt-cost", "4")
	root := connect(t, server.Addr)
	ctx := t.Context()
	for _, user := range []string{"root", "locker"} {
		wiretest.Must[*clientv3.AuthUserAddResponse](t)(root.UserAdd(ctx, user, "secret"))
		wiretest.Must[*clientv3.AuthRoleAddResponse](t)(root.RoleAdd(ctx, user))
		wiretest.Must[*clientv3.AuthUserGrantRoleResponse](t)(root.UserGrantRole(ctx, user, user))
	}
	wiretest.Must[*clientv3.AuthRoleGrantPermissionResponse](t)(
		root.RoleGrantPermission(ctx, "locker",
			key("n"), "", clientv3.PermissionType(clientv3.PermReadWrite)))
	wiretest.Must[*clientv3.AuthEnableResponse](t)(root.AuthEnable(ctx))
	s := open(t, connect(t, server.Addr, as("locker", "secret")))
	listener := subscribe(t, s, "n")
	for range 2 {
		if res := wiretest.Must[backend.AcquireResult](t)(
			s.Acquire(ctx, acquire(alice))); !res.Acquired {
			t.Errorf("%+v", res)
		}
		req := release(alice)
		req.AskWaiting = true
		if res := wiretest.Must[backend.ReleaseResult](t)(
			s.Release(ctx, req)); res.Outcome != backend.Freed || res.Counted {
			t.Errorf("%+v", res)
		}
		listener.Wait()
	}
}
