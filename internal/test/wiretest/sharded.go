package wiretest

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/contract/faults"
	"github.com/seed951563bd/distsync/internal/test/testservers"
)

var sharded = Options{Sharded: true}

// shardChannels counts the sharded channels of a server, and the connections that listen to them.
func shardChannels(t *testing.T, server *testservers.Server) (channels, clients int) {
	t.Helper()
	client := connect(t, server.Addr)
	defer client.Close()
	channels = len(Must[[]string](t)(client.PubSubShardChannels(t.Context(), "*").Result()))
	for line := range strings.Lines(Must[string](t)(client.ClientList(t.Context()).Result())) {
		if strings.Contains(line, " ssub=") && !strings.Contains(line, " ssub=0 ") {
			clients++
		}
	}
	return channels, clients
}

// Sharded tests sharded pub/sub in a cluster of three masters.
func Sharded(t *testing.T, p Package, nodes []*testservers.Server) {
	t.Run("subscriptions", func(t *testing.T) { shardedSubscriptions(t, p, nodes) })

	t.Run("on the wire", func(t *testing.T) {
		s := open(t, p.Cluster(t, nodes, sharded))
		Free(t, s, "n")
		owner, _ := Owners(t, nodes, "n")
		m := Watch(t, owner.Addr)
		Free(t, s, "n")
		commands := m.All()
		want := Command{Text: Quoted("SPUBLISH", "redisson_lock__channel:{n}", "0"), InScript: true}
		if !slices.Contains(commands, want) {
			t.Errorf("commands: %v", commands)
		}
	})

	t.Run("slots move", func(t *testing.T) {
		s, other := open(t, p.Cluster(t, nodes, sharded)), open(t, p.Cluster(t, nodes, sharded))
		// Two names are in a slot that moves, and one is in a slot that stays.
		a, b := Subscribe(t, s, "{moving}a"), Subscribe(t, s, "{moving}b")
		stays := Subscribe(t, s, "staying")
		for range 4 {
			NewMove(t, nodes, "{moving}a").Finish()
			for _, l := range []*Listener{a, b} {
				testservers.Until(t, "a new server wakes all", func() bool { return l.Heard() })
			}
			for _, l := range []*Listener{a, b, stays} {
				testservers.Until(t, "it is released", func() bool {
					_, err := other.ForceRelease(t.Context(),
						backend.ForceReleaseRequest{Name: l.Name})
					return err == nil
				})
				Free(t, other, l.Name)
				testservers.Until(t, "a release wakes one", func() bool { return l.Heard() })
			}
			// A new subscriber may ask the wrong server first.
			late := open(t, p.Cluster(t, nodes, sharded))
			c := Subscribe(t, late, "{moving}c")
			Free(t, other, c.Name)
			c.Wait()
		}
	})

	t.Run("the client does not know that slots have moved", func(t *testing.T) {
		s, other := open(t, p.Cluster(t, nodes, sharded)), open(t, p.Cluster(t, nodes, sharded))
		l := Subscribe(t, s, "moved") // now the session knows which node has the slot
		l.Sub.Close()
		NewMove(t, nodes, "moved").Finish()
		l = Subscribe(t, s, "moved")
		Free(t, other, "moved")
		l.Wait()
	})

	t.Run("in quick succession", func(t *testing.T) {
		QuickSuccession(t, open(t, p.Cluster(t, nodes, sharded)),
			open(t, p.Cluster(t, nodes, sharded)))
	})

	t.Run("locker", func(t *testing.T) {
		holder, waiter := locks(t, p.Cluster(t, nodes, sharded)),
			locks(t, p.Cluster(t, nodes, sharded))
		for i := range 10 {
			name := fmt.Sprint("lock", i)
			held, waits := holder.Locker(name), waiter.Locker(name)
			held.Lock()
			locked := make(chan struct{})
			go func() { waits.Lock(); close(locked) }()
			testservers.Until(t, "it waits", func() bool {
				owner, _ := Owners(t, nodes, name)
				client := connect(t, owner.Addr)
				defer client.Close()
				return len(Must[[]string](t)(client.PubSubShardChannels(t.Context(), "*{"+name+"}").
					Result())) == 1
			})
			held.Unlock()
			<-locked
			waits.Unlock()
		}
	})
}

func shardedSubscriptions(t *testing.T, p Package, nodes []*testservers.Server) {
	s := p.Cluster(t, nodes, sharded).Open().(Session)
	other := open(t, p.Cluster(t, nodes, sharded))
	const n = 30 // spread over all nodes
	var listeners []*Listener
	for i := range n {
		listeners = append(listeners, Subscribe(t, s, fmt.Sprint("name", i)))
	}
	for _, node := range nodes {
		if channels, clients := shardChannels(t, node); channels == 0 || clients != 1 {
			t.Errorf("a node with %d channels has %d connections", channels, clients)
		}
	}
	for _, l := range listeners {
		Free(t, other, l.Name)
		if !l.Wait() {
			t.Error("a release wakes more than one")
		}
		Must[backend.AcquireResult](t)(other.Acquire(t.Context(), backend.AcquireRequest{
			Name: l.Name, Owner: Bob, Lease: Lease,
		}))
		Must[backend.ForceReleaseResult](t)(
			other.ForceRelease(t.Context(), backend.ForceReleaseRequest{Name: l.Name}))
		l.Wait()
	}

	// When connections break, every subscriber is woken.
	for range 3 {
		for _, node := range nodes {
			node.Do("CLIENT", "KILL", "TYPE", "pubsub")
		}
		for _, l := range listeners {
			if !l.Wait() {
				t.Error("a new connection wakes one")
			}
		}
	}
	for _, l := range listeners {
		Free(t, other, l.Name)
		l.Wait()
		l.Sub.Close()
	}
	everywhere := func(what string, ok func(channels, clients int) bool) {
		testservers.Until(t, what, func() bool {
			return !slices.ContainsFunc(nodes, func(node *testservers.Server) bool {
				return !ok(shardChannels(t, node))
			})
		})
	}
	everywhere("the channels are unsubscribed", func(channels, _ int) bool { return channels == 0 })

	// Closing the session must close its connections, even if it has subscribed again.
	Subscribe(t, s, "name0")
	s.Close()
	everywhere("the connections are closed", func(channels, clients int) bool {
		return channels == 0 && clients == 0
	})
}

// ShardedOnOneServer tests sharded channels on a server outside a cluster. There, they differ from
// other channels only in their commands.
func ShardedOnOneServer(t *testing.T, p Package, server *testservers.Server) {
	s, other := open(t, p.Server(t, server.Addr, sharded)),
		open(t, p.Server(t, server.Addr, sharded))
	for _, step := range Steps {
		if err := step.Run(t.Context(), s); err != nil {
			t.Errorf("%s: %v", step.Name, err)
		}
	}
	l := Subscribe(t, s, "n")
	Free(t, other, "n")
	l.Wait()
	server.Do("CLIENT", "KILL", "TYPE", "pubsub")
	l.Wait()
}

// ShardedTogether tests that a client subscribes to many sharded channels in one round trip, though
// each needs a separate command.
func ShardedTogether(t *testing.T, p Package, server *testservers.Server) {
	proxy := NewProxy(t, server.Addr, faults.RESP)
	s := open(t, p.Server(t, proxy.Addr(), sharded))
	const n = 50
	var listeners []*Listener
	for i := range n {
		listeners = append(listeners, Subscribe(t, s, fmt.Sprint("name", i)))
	}
	held, deliver := proxy.Hold(func(r faults.Request) bool {
		return strings.EqualFold(r.Words[0], "SSUBSCRIBE")
	})
	proxy.Cut() // the next connection subscribes to all channels
	<-held
	proxy.Block(faults.ToClient)
	deliver()
	testservers.Until(t, "all are subscribed while the client has no answer", func() bool {
		channels, _ := shardChannels(t, server)
		return channels == n
	})
	proxy.Unblock(faults.ToClient)
	for _, l := range listeners {
		if !l.Wait() {
			t.Error("a new connection wakes one")
		}
	}
}

// ShardedRefused tests a client without permission for some sharded channels, in a cluster of three
// masters. Only the subscriptions to these channels fail.
func ShardedRefused(t *testing.T, p Package, nodes []*testservers.Server) {
	for _, node := range nodes {
		node.Do("ACL", "SETUSER", "some", "on", ">secret", "~*", "+@all", "resetchannels",
			"&redisson_lock__channel:{good*", "-sunsubscribe", "-pubsub")
	}
	s := open(t, p.Cluster(t, nodes, Options{User: "some", Sharded: true}))
	other := open(t, p.Cluster(t, nodes, sharded))
	var running sync.WaitGroup
	for i := range 10 {
		running.Go(func() {
			_, err := s.Subscribe(t.Context(), backend.SubscribeRequest{
				Name: fmt.Sprint("bad", i), Wake: func(backend.Wakeup) {},
			})
			WantKind(t, err, backend.Refused)
		})
		running.Go(func() {
			l := Subscribe(t, s, fmt.Sprint("good", i))
			if l == nil {
				return
			}
			Free(t, other, l.Name)
			l.Wait()
			l.Sub.Close()
			l = Subscribe(t, s, l.Name)
			Free(t, other, l.Name)
			l.Wait()
		})
	}
	running.Wait()
}

// ShardedOnOldServer tests that each step fails at once on a server without sharded channels. The
// server at addr must not require a password.
func ShardedOnOldServer(t *testing.T, b backend.Backend, addr string) {
	client := connect(t, addr)
	client.HSet(t.Context(), "n", Alice, "1")
	s := open(t, b)
	want := func(err error) {
		t.Helper()
		WantKind(t, err, backend.Refused)
		if !strings.Contains(fmt.Sprint(err), "needs Redis 7") {
			t.Errorf("error %v", err)
		}
	}
	_, err := s.Acquire(t.Context(), Acquire(Alice))
	want(err)
	_, err = s.ForceRelease(t.Context(), backend.ForceReleaseRequest{Name: "n"})
	want(err)
	_, err = s.Subscribe(t.Context(), backend.SubscribeRequest{Name: "n", Wake: func(
		backend.Wakeup,
	) {
	}})
	want(err)
	if got := client.HGet(t.Context(), "n", Alice).Val(); got != "1" {
		t.Errorf("the lock is held %q times now", got)
	}
	if err := locks(t, b).Locker("a").LockContext(t.Context()); err == nil ||
		!strings.Contains(err.Error(), "needs Redis 7") {
		t.Errorf("LockContext: %v", err)
	}
}
