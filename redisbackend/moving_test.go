package redisbackend_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/dlock"
	"github.com/seed951563bd/distsync/internal/testservers"
	"github.com/seed951563bd/distsync/redisbackend"
)

// owners returns the node that has the name's slot, and one that has not.
func owners(t *testing.T, nodes []*testservers.Server, name string) (has, hasNot *testservers.Server) {
	t.Helper()
	for _, node := range nodes {
		// A node that does not have the slot says MOVED.
		if _, err := testservers.Do(node.Addr, "EXISTS", name); err == nil {
			has = node
		} else {
			hasNot = node
		}
	}
	if has == nil || hasNot == nil {
		t.Fatal("nobody has the slot, or everybody")
	}
	return has, hasNot
}

// A move is that of a name's slot from one node of a cluster to another, in steps.
type move struct {
	nodes    []*testservers.Server
	from, to *testservers.Server
	name     string
	slot     string
}

// newMove begins a move: what is in the slot is still where it was, what is new goes to the new node.
func newMove(t *testing.T, nodes []*testservers.Server, name string, from, to *testservers.Server) *move {
	t.Helper()
	m := &move{nodes: nodes, from: from, to: to, name: name, slot: from.Do("CLUSTER", "KEYSLOT", name)}
	to.Do("CLUSTER", "SETSLOT", m.slot, "IMPORTING", from.Do("CLUSTER", "MYID"))
	from.Do("CLUSTER", "SETSLOT", m.slot, "MIGRATING", to.Do("CLUSTER", "MYID"))
	return m
}

// key moves the name's key, if there is one.
func (m *move) key() {
	host, port, _ := strings.Cut(m.to.Addr, ":")
	m.from.Do("MIGRATE", host, port, m.name, "0", "5000")
}

// finish gives the slot to the new node.
func (m *move) finish() {
	m.key()
	id := m.to.Do("CLUSTER", "MYID")
	m.to.Do("CLUSTER", "SETSLOT", m.slot, "NODE", id)
	for _, node := range m.nodes {
		node.Do("CLUSTER", "SETSLOT", m.slot, "NODE", id)
	}
}

// handing is a lock that changes hands among several clients all the time.
type handing struct {
	t      *testing.T
	inside atomic.Int32
	turns  atomic.Int64
}

// hand lets clients take the lock by turns until the test ends.
func hand(t *testing.T, name string, lease time.Duration, connector connector, opts ...redisbackend.Option) *handing {
	t.Helper()
	h := &handing{t: t}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	var clients []*dlock.Client
	for range 3 {
		c := dlock.New(redisbackend.New(connector(t), opts...), dlock.WithLease(lease),
			dlock.WithLogger(slog.New(slog.NewTextHandler(io.Discard, nil))))
		clients = append(clients, c)
		for range 2 {
			running.Go(func() {
				for ctx.Err() == nil {
					// An error is a turn that failed; that turns go on is looked at elsewhere.
					_ = c.Locker(name).Do(ctx, h.turn)
				}
			})
		}
	}
	t.Cleanup(func() {
		cancel()
		running.Wait()
		for _, c := range clients {
			c.Close()
		}
	})
	return h
}

func (h *handing) turn(context.Context) error {
	if h.inside.Add(1) != 1 {
		h.t.Error("two are inside")
	}
	time.Sleep(time.Millisecond) // the work
	h.turns.Add(1)
	h.inside.Add(-1)
	return nil
}

// goesOn waits until the lock has changed hands some more times.
func (h *handing) goesOn() {
	h.t.Helper()
	want := h.turns.Load() + 10
	testservers.Until(h.t, "the lock goes on changing hands", func() bool { return h.turns.Load() >= want })
}

// A slot moves from node to node while the lock in it changes hands. Nothing is lost, so nobody is
// ever inside with another.
func TestLockIsMoved(t *testing.T) {
	t.Parallel()
	for name, opts := range map[string][]redisbackend.Option{
		"plain":           nil,
		"sharded pub/sub": {redisbackend.WithShardedPubSub()},
	} {
		t.Run(name, func(t *testing.T) {
			nodes := testservers.RedisCluster(t, 3)
			h := hand(t, "n", lease, clustered(nodes), opts...)
			h.goesOn()
			for range 5 {
				from, to := owners(t, nodes, "n")
				m := newMove(t, nodes, "n", from, to)
				// Until the key has moved the old node has it and after that the new one, and both
				// refuse to release: the key and the channel aren't both there.
				begin := asked(t, from, to)
				testservers.Until(t, "somebody meets the slot between the nodes", func() bool { return asked(t, from, to) > begin })
				m.key()
				begin = asked(t, from, to)
				testservers.Until(t, "somebody meets the key on its new node", func() bool { return asked(t, from, to) > begin })
				m.finish()
				h.goesOn()
			}
		})
	}
}

// asked is how often two nodes have refused a command.
func asked(t *testing.T, nodes ...*testservers.Server) (n int) {
	t.Helper()
	for _, node := range nodes {
		for line := range strings.Lines(node.Do("INFO", "errorstats")) {
			kind, count, _ := strings.Cut(strings.TrimSpace(line), ":count=")
			var i int
			if kind == "errorstat_TRYAGAIN" || kind == "errorstat_ASK" {
				fmt.Sscan(count, &i)
			}
			n += i
		}
	}
	return n
}

// becomes waits until a server has a role. Sentinels that give it one cut its connections.
func becomes(t *testing.T, server *testservers.Server, role string) {
	t.Helper()
	testservers.Until(t, "a server becomes "+role, func() bool {
		info, err := testservers.Do(server.Addr, "INFO", "replication")
		return err == nil && strings.Contains(info, "role:"+role)
	})
}

// A replica becomes the master and the master a replica, by order, while a lock changes hands. Every
// acquisition has reached the only replica before, so nobody is ever inside with another. The old
// master goes on answering for a while, then with READONLY, and the new one has no scripts.
func TestFailover(t *testing.T) {
	t.Parallel()
	s := testservers.RedisSentinel(t, 1, never)
	h := hand(t, "n", 2*time.Second, failover(s), redisbackend.WithReplicas(1, time.Second))
	h.goesOn()
	s.Sentinels[0].Do("SENTINEL", "FAILOVER", s.Name)
	becomes(t, s.Replicas[0], "master")
	becomes(t, s.Master, "slave")
	h.goesOn()
}

// A master dies, and comes back empty as a replica of the one that took its place.
func TestMasterDies(t *testing.T) {
	t.Parallel()
	s := testservers.RedisSentinel(t, 1, time.Second)
	h := hand(t, "n", 2*time.Second, failover(s), redisbackend.WithReplicas(1, time.Second))
	h.goesOn()
	s.Master.Kill()
	becomes(t, s.Replicas[0], "master")
	s.Master.Restart()
	h.goesOn()
}

// In a cluster nobody tells the client that a replica has taken over from a master that died.
func TestClusterMasterDies(t *testing.T) {
	t.Parallel()
	for name, opts := range map[string][]redisbackend.Option{
		"plain":           nil,
		"sharded pub/sub": {redisbackend.WithShardedPubSub()},
	} {
		t.Run(name, func(t *testing.T) {
			masters := testservers.RedisCluster(t, 3)
			replicas := testservers.RedisClusterReplicas(t, masters)
			client := connectCluster(t, masters)
			s, other := open(t, client, opts...), open(t, connectCluster(t, masters), opts...)
			l := subscribe(t, s, "n")
			free(t, other, "n")
			l.wait()
			from, _ := owners(t, masters, "n")
			for i, master := range masters {
				if master == from {
					master.Kill()
					replicas[i].Do("CLUSTER", "FAILOVER", "TAKEOVER")
				}
			}
			l.wait() // the connection, and perhaps the channel, is somewhere else now
			testservers.Until(t, "the new master is used", func() bool {
				_, err := other.Acquire(t.Context(), acquire(alice))
				return err == nil
			})
			must[backend.ReleaseResult](t)(other.Release(t.Context(), release(alice)))
			l.wait()
		})
	}
}
