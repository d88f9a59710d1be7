package etcdbackend_test

import (
	"context"
	"errors"
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

func addrs(members []*testservers.Server) []string {
	var all []string
	for _, m := range members {
		all = append(all, m.Addr)
	}
	return all
}

// leader returns the index of the leader among the members that answer, or -1.
func leader(t *testing.T, clients []*clientv3.Client) int {
	for i, c := range clients {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		res, err := c.Status(ctx, c.Endpoints()[0])
		cancel()
		if err == nil && res.Leader == res.Header.MemberId {
			return i
		}
	}
	return -1
}

// TestMembersDieWhileLocksChangeHands kills one member, a follower first and then the leader, and
// brings it back. Nobody may be inside twice, and it must go on.
func TestMembersDieWhileLocksChangeHands(t *testing.T) {
	t.Parallel()
	members := testservers.EtcdCluster(t, 3)
	var single []*clientv3.Client // to each member
	for _, m := range members {
		single = append(single, connect(t, m.Addr))
	}

	const clients, names = 4, 3
	var (
		all    sync.WaitGroup
		inside [names]atomic.Int32
		tokens [names]int // guarded by the locks; the race detector sees to it
		turns  [names]atomic.Int64
	)
	ctx, stop := context.WithCancel(t.Context())
	for i := range clients {
		// Each begins with another member.
		cli := connectAll(t, append(addrs(members)[i%3:], addrs(members)[:i%3]...))
		c := dlock.New(etcdbackend.New(cli), dlock.WithLease(10*time.Second))
		t.Cleanup(func() { c.Close() })
		for n := range names {
			all.Go(func() {
				for ctx.Err() == nil {
					// A hold that is lost, because no member answered for a whole lease, is none:
					// what fn does with ctx must end. Nothing here takes that long.
					err := c.Locker(fmt.Sprint("lock", n)).Do(ctx, func(ctx context.Context) error {
						if k := inside[n].Add(1); k != 1 {
							t.Errorf("%d are inside", k)
						}
						tokens[n]++
						turns[n].Add(1)
						inside[n].Add(-1)
						return nil
					})
					if errors.Is(err, dlock.ErrLost) {
						t.Log(err)
					}
				}
			})
		}
	}
	goesOn := func(what string) {
		t.Helper()
		for n := range names {
			before := turns[n].Load()
			testservers.Until(t, "locks change hands "+what, func() bool {
				return turns[n].Load() > before+20
			})
		}
	}
	goesOn("at first")
	for _, who := range []string{"a follower", "the leader"} {
		var victim int
		testservers.Until(t, "there is a leader", func() bool {
			victim = leader(t, single)
			return victim >= 0
		})
		if who == "a follower" {
			victim = (victim + 1) % 3
		}
		members[victim].Kill()
		goesOn("after the death of " + who)
		members[victim].Restart()
		goesOn("after its return")
	}
	stop()
	all.Wait()
	for n := range names {
		if tokens[n] != int(turns[n].Load()) {
			t.Errorf("lock %d: %d turns, but counted %d", n, turns[n].Load(), tokens[n])
		}
	}
	t.Logf("turns: %d, %d, %d", turns[0].Load(), turns[1].Load(), turns[2].Load())
}

// TestHoldsSurviveTheLeader: the holder of a lock keeps it when the leader dies.
func TestHoldsSurviveTheLeader(t *testing.T) {
	t.Parallel()
	members := testservers.EtcdCluster(t, 3)
	var single []*clientv3.Client
	for _, m := range members {
		single = append(single, connect(t, m.Addr))
	}
	cli := connectAll(t, addrs(members))
	c := dlock.New(etcdbackend.New(cli), dlock.WithLease(15*time.Second))
	defer c.Close()
	l := c.Locker("n")
	l.Lock()
	kv := get(t, cli, key("n"))

	var first int
	testservers.Until(t, "there is a leader", func() bool {
		first = leader(t, single)
		return first >= 0
	})
	members[first].Kill()
	testservers.Until(t, "there is another", func() bool {
		i := leader(t, single)
		return i >= 0 && i != first
	})
	// Renewed once more after that: the lease is longer than it was just now.
	left := func() int64 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		res, err := cli.TimeToLive(ctx, clientv3.LeaseID(kv.Lease))
		if err != nil {
			return -1
		}
		return res.TTL
	}
	lowest := int64(1000)
	testservers.Until(t, "it is renewed", func() bool {
		now := left()
		if now >= 0 {
			lowest = min(lowest, now)
		}
		return now > lowest+1
	})
	select {
	case <-l.Lost(t.Context()):
		t.Error("the lock was lost")
	default:
	}
	if err := l.UnlockContext(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestNoQuorum(t *testing.T) {
	t.Parallel()
	members := testservers.EtcdCluster(t, 3)
	c := dlock.New(etcdbackend.New(connectAll(t, addrs(members))))
	defer c.Close()
	if ok, err := c.Locker("n").TryLock(t.Context()); !ok || err != nil {
		t.Fatal(ok, err)
	}
	s := open(t, connect(t, members[0].Addr))
	wiretest.Must[backend.LookResult](t)(s.Look(t.Context(), backend.LookRequest{Name: "n"}))
	for _, m := range members[1:] {
		m.Kill()
	}
	named := func(what string, err error) {
		t.Helper()
		if err == nil {
			t.Fatalf("%s without a majority: no error", what)
		}
		for _, cause := range []string{"no leader", "timed out", "connection", "leader changed",
			"the store has not answered"} {
			if strings.Contains(err.Error(), cause) {
				return
			}
		}
		t.Errorf("%s without a majority: %v; want the cause", what, err)
	}
	for name, lock := range map[string]func(context.Context) error{
		"a": func(ctx context.Context) error { return c.Locker("a").LockContext(ctx) },
		"b": func(ctx context.Context) error {
			ok, err := c.Locker("b").TryLock(ctx)
			if ok {
				t.Error("TryLock: a lock without a majority")
			}
			return err
		},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		named(name, lock(ctx))
		cancel()
	}
	// As soon as the member that is left has noticed, it says so at once.
	testservers.Until(t, "there is no leader", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := s.Acquire(ctx, acquire(alice))
		return err != nil && strings.Contains(err.Error(), "no leader")
	})
	for _, step := range steps {
		err := step.Run(t.Context(), s)
		wantKind(t, err, backend.Retry)
		if err == nil || !strings.Contains(err.Error(), "no leader") {
			t.Errorf("%s: %v", step.Name, err)
		}
	}
	// With a majority all is well again.
	members[1].Restart()
	testservers.Until(t, "a lock can be had", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		ok, _ := c.Locker("a").TryLock(ctx)
		return ok
	})
}

// TestHandOver: two clients take turns. Their leases are so long that only wake-ups can tell them.
func TestHandOver(t *testing.T) {
	t.Parallel()
	server := testservers.Etcd(t)
	ctx, cancel := context.WithTimeout(t.Context(), testservers.Patience)
	defer cancel()
	const turns = 50
	var sent [2]counts
	var inside atomic.Int32
	var all sync.WaitGroup
	for i := range sent {
		cli := connect(t, server.Addr, sent[i].install)
		c := dlock.New(etcdbackend.New(cli), dlock.WithLease(time.Hour))
		t.Cleanup(func() { c.Close() })
		l := c.Locker("n")
		all.Go(func() {
			for range turns {
				if err := l.LockContext(ctx); err != nil {
					t.Errorf("lock: %v", err)
					return
				}
				if n := inside.Add(1); n != 1 {
					t.Errorf("%d are inside", n)
				}
				inside.Add(-1)
				if err := l.UnlockContext(ctx); err != nil {
					t.Errorf("unlock: %v", err)
				}
			}
		})
	}
	all.Wait()
	for i := range sent {
		sent[i].mu.Lock()
		// A turn looks when it begins, when it is subscribed, and when it was woken; and once more
		// if it was woken by one whose lock the other got.
		if n := sent[i].unary[rpcRange]; n > 5*turns {
			t.Errorf("%d turns took %d reads", turns, n)
		}
		sent[i].mu.Unlock()
	}
}

// TestAFollowerHangs: a member that says nothing, as one does whose disk is stuck, costs clients
// no more than some patience. The majority is well.
func TestAFollowerHangs(t *testing.T) {
	t.Parallel()
	members := testservers.EtcdCluster(t, 3)
	var single []*clientv3.Client
	for _, m := range members {
		single = append(single, connect(t, m.Addr))
	}
	c := dlock.New(etcdbackend.New(connectAll(t, addrs(members))), dlock.WithLease(6*time.Second))
	defer c.Close()
	for i := range 6 { // there are connections to all members
		if err := c.Locker(fmt.Sprint("warm", i)).Do(t.Context(), func(context.Context) error {
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	var victim int
	testservers.Until(t, "there is a leader", func() bool {
		victim = leader(t, single)
		return victim >= 0
	})
	victim = (victim + 1) % 3
	members[victim].Stop()
	defer members[victim].Cont()
	for i := range 6 {
		ctx, cancel := context.WithTimeout(t.Context(), testservers.Patience)
		l := c.Locker(fmt.Sprint("lock", i))
		if err := l.LockContext(ctx); err != nil {
			t.Error(err)
		} else if err := l.UnlockContext(t.Context()); err != nil {
			t.Error(err)
		}
		cancel()
	}
}

// TestAFollowerHangsWithKinds: as for plain locks, so for the others.
func TestAFollowerHangsWithKinds(t *testing.T) {
	t.Parallel()
	members := testservers.EtcdCluster(t, 3)
	var single []*clientv3.Client
	for _, m := range members {
		single = append(single, connect(t, m.Addr))
	}
	c := dlock.New(etcdbackend.New(connectAll(t, addrs(members))), dlock.WithLease(6*time.Second))
	defer c.Close()
	lockers := func(name string) []*dlock.Locker {
		rw := c.RWLocker("rw " + name)
		return []*dlock.Locker{c.FencedLocker("fenced " + name), rw.Reader(), rw.Writer()}
	}
	for i := range 2 {
		for _, l := range lockers(fmt.Sprint("warm", i)) {
			if err := l.Do(t.Context(), func(context.Context) error { return nil }); err != nil {
				t.Fatal(err)
			}
		}
	}
	var victim int
	testservers.Until(t, "there is a leader", func() bool {
		victim = leader(t, single)
		return victim >= 0
	})
	victim = (victim + 1) % 3
	members[victim].Stop()
	defer members[victim].Cont()
	for i := range 3 {
		for _, l := range lockers(fmt.Sprint("lock", i)) {
			ctx, cancel := context.WithTimeout(t.Context(), testservers.Patience)
			if err := l.LockContext(ctx); err != nil {
				t.Error(err)
			} else if err := l.UnlockContext(t.Context()); err != nil {
				t.Error(err)
			}
			cancel()
		}
	}
}
