package wiretest

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
	"github.com/seed951563bd/distsync/internal/test/testservers"
)

// Addrs returns the addresses of servers.
func Addrs(nodes []*testservers.Server) (addrs []string) {
	for _, node := range nodes {
		addrs = append(addrs, node.Addr)
	}
	return addrs
}

// Owners returns the node that serves the name's slot, and a node that doesn't.
func Owners(
	t testing.TB, nodes []*testservers.Server, name string,
) (has, hasNot *testservers.Server) {
	t.Helper()
	for _, node := range nodes {
		// A node that doesn't serve the slot answers MOVED.
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

// A Move moves a name's slot from one node of a cluster to another, in steps.
type Move struct {
	From, To *testservers.Server

	nodes []*testservers.Server
	name  string
	slot  string
}

// NewMove begins to move the name's slot to another node. Existing keys in the slot stay on the old
// node until they are moved, and new keys go to the new node.
func NewMove(t testing.TB, nodes []*testservers.Server, name string) *Move {
	t.Helper()
	m := &Move{nodes: nodes, name: name}
	m.From, m.To = Owners(t, nodes, name)
	m.slot = m.From.Do("CLUSTER", "KEYSLOT", name)
	m.To.Do("CLUSTER", "SETSLOT", m.slot, "IMPORTING", m.From.Do("CLUSTER", "MYID"))
	m.From.Do("CLUSTER", "SETSLOT", m.slot, "MIGRATING", m.To.Do("CLUSTER", "MYID"))
	return m
}

// Key moves the name's key, if it exists.
func (m *Move) Key() {
	host, port, _ := strings.Cut(m.To.Addr, ":")
	m.From.Do("MIGRATE", host, port, m.name, "0", "5000")
}

// Finish assigns the slot to the new node, in a new epoch. Without a new epoch, the new node might
// believe an older message from the old node, and then no node would own the slot. Finish notifies
// the new node only once. On a second notification, the node would end all subscriptions in the
// slot, and messages would be lost until the clients subscribe again.
func (m *Move) Finish() {
	m.Key()
	m.To.Do("CLUSTER", "BUMPEPOCH")
	id := m.To.Do("CLUSTER", "MYID")
	m.To.Do("CLUSTER", "SETSLOT", m.slot, "NODE", id)
	for _, node := range m.nodes {
		if node != m.To {
			node.Do("CLUSTER", "SETSLOT", m.slot, "NODE", id)
		}
	}
}

// Refusals returns how many times the two nodes refused a command because of a move.
func (m *Move) Refusals() (n int) {
	for _, node := range []*testservers.Server{m.From, m.To} {
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

// TakeOver kills the master that serves the name's slot, and promotes its replica.
func TakeOver(t testing.TB, masters, replicas []*testservers.Server, name string) {
	t.Helper()
	from, _ := Owners(t, masters, name)
	for i, master := range masters {
		if master == from {
			master.Kill()
			replicas[i].Do("CLUSTER", "FAILOVER", "TAKEOVER")
		}
	}
}

// Becomes waits until a server has the given role. It ignores errors, because a sentinel that
// changes a server's role also closes that server's connections.
func Becomes(t testing.TB, server *testservers.Server, role string) {
	t.Helper()
	testservers.Until(t, "a server becomes "+role, func() bool {
		info, err := testservers.Do(server.Addr, "INFO", "replication")
		return err == nil && strings.Contains(info, "role:"+role)
	})
}

// A Handing makes several clients hold a lock in turn until the test ends.
type Handing struct {
	t      testing.TB
	inside atomic.Int32
	turns  atomic.Int64
}

// Hand starts clients, each with its own backend, that take turns with the lock until the test
// ends. The test fails if there are two holders at once.
func Hand(t testing.TB, name string, lease time.Duration, connect func() backend.Backend) *Handing {
	t.Helper()
	h := &Handing{t: t}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	var clients []*dlock.Client
	for range 3 {
		c := dlock.New(connect(), dlock.WithLease(lease),
			dlock.WithLogger(slog.New(slog.NewTextHandler(io.Discard, nil))))
		clients = append(clients, c)
		for range 2 {
			running.Go(func() {
				for ctx.Err() == nil {
					// An error fails only this turn. GoesOn checks that more turns follow.
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

func (h *Handing) turn(context.Context) error {
	if h.inside.Add(1) != 1 {
		h.t.Error("two are inside")
	}
	time.Sleep(time.Millisecond) // the holder's work
	h.turns.Add(1)
	h.inside.Add(-1)
	return nil
}

// GoesOn waits for ten more turns.
func (h *Handing) GoesOn() {
	h.t.Helper()
	want := h.turns.Load() + 10
	testservers.Until(h.t, "the lock goes on changing hands", func() bool {
		return h.turns.Load() >= want
	})
}
