package redisbackend_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/dlock"
	"github.com/seed951563bd/distsync/internal/testservers"
	"github.com/seed951563bd/distsync/redisbackend"
)

// shardChannels counts the sharded channels of a server and the connections that listen to them.
func shardChannels(t *testing.T, server *testservers.Server) (channels, clients int) {
	t.Helper()
	client := connect(t, server.Addr)
	defer client.Close()
	channels = len(must[[]string](t)(client.PubSubShardChannels(t.Context(), "*").Result()))
	for line := range strings.Lines(must[string](t)(client.ClientList(t.Context()).Result())) {
		if strings.Contains(line, " ssub=") && !strings.Contains(line, " ssub=0 ") {
			clients++
		}
	}
	return channels, clients
}

func TestShardedPubSub(t *testing.T) {
	nodes := testservers.RedisCluster(t, 3)
	sharded := redisbackend.WithShardedPubSub()
	for _, protocol := range []int{2, 3} {
		t.Run(fmt.Sprintf("RESP%d", protocol), func(t *testing.T) {
			speak := func(o *redis.ClusterOptions) { o.Protocol = protocol }
			s := redisbackend.New(connectCluster(t, nodes, speak), sharded).Open().(session)
			other := open(t, connectCluster(t, nodes), sharded)
			const n = 30 // on all nodes
			var listeners []*listener
			for i := range n {
				listeners = append(listeners, subscribe(t, s, fmt.Sprint("name", i)))
			}
			for _, node := range nodes {
				if channels, clients := shardChannels(t, node); channels == 0 || clients != 1 {
					t.Errorf("a node with %d channels has %d connections", channels, clients)
				}
			}
			for _, l := range listeners {
				free(t, other, l.name)
				if l.wait() != backend.WakeOne {
					t.Error("a release wakes more than one")
				}
				must[backend.AcquireResult](t)(other.Acquire(t.Context(), backend.AcquireRequest{Name: l.name, Owner: bob, Lease: lease}))
				must[backend.ForceReleaseResult](t)(other.ForceRelease(t.Context(), backend.ForceReleaseRequest{Name: l.name}))
				l.wait()
			}

			// Connections break, and everybody is woken.
			for range 3 {
				for _, node := range nodes {
					node.Do("CLIENT", "KILL", "TYPE", "pubsub")
				}
				for _, l := range listeners {
					if l.wait() != backend.WakeAll {
						t.Error("a new connection wakes one")
					}
				}
			}
			for _, l := range listeners {
				free(t, other, l.name)
				l.wait()
				l.sub.Close()
			}
			testservers.Until(t, "the channels are unsubscribed", func() bool {
				for _, node := range nodes {
					if channels, _ := shardChannels(t, node); channels > 0 {
						return false
					}
				}
				return true
			})

			// A channel comes back, and the session's end closes its connections.
			subscribe(t, s, "name0")
			s.Close()
			testservers.Until(t, "the connections are closed", func() bool {
				for _, node := range nodes {
					if pubsubClient.MatchString(must[string](t)(connect(t, node.Addr).ClientList(t.Context()).Result())) {
						return false
					}
				}
				return true
			})
		})
	}

	t.Run("on the wire", func(t *testing.T) {
		s := open(t, connectCluster(t, nodes), sharded)
		free(t, s, "n")
		owner, _ := owners(t, nodes, "n")
		m := watch(t, owner.Addr)
		free(t, s, "n")
		var published []string
		for _, line := range m.all() {
			if strings.Contains(line, "publish") {
				published = append(published, line)
			}
		}
		if len(published) != 1 || !strings.HasSuffix(published[0], ` lua] `+quoted("spublish", "redisson_lock__channel:{n}", "0")) {
			t.Errorf("published: %q", published)
		}
	})

	t.Run("slots move", func(t *testing.T) {
		s, other := open(t, connectCluster(t, nodes), sharded), open(t, connectCluster(t, nodes), sharded)
		// Two names in the slot, and one that stays.
		a, b := subscribe(t, s, "{moving}a"), subscribe(t, s, "{moving}b")
		stays := subscribe(t, s, "staying")
		for range 4 {
			from, to := owners(t, nodes, "{moving}a")
			newMove(t, nodes, "{moving}a", from, to).finish()
			for _, l := range []*listener{a, b} {
				if l.wait() != backend.WakeAll {
					t.Error("a new server wakes one")
				}
			}
			for _, l := range []*listener{a, b, stays} {
				testservers.Until(t, "it is released", func() bool {
					_, err := other.ForceRelease(t.Context(), backend.ForceReleaseRequest{Name: l.name})
					return err == nil
				})
				free(t, other, l.name)
				l.wait()
			}
			// Who comes now may ask the wrong server first.
			late := open(t, connectCluster(t, nodes), sharded)
			c := subscribe(t, late, "{moving}c")
			free(t, other, c.name)
			c.wait()
		}
	})

	t.Run("the client does not know that slots have moved", func(t *testing.T) {
		client := connectCluster(t, nodes)
		s, other := open(t, client, sharded), open(t, connectCluster(t, nodes), sharded)
		l := subscribe(t, s, "moved") // now it knows where everything is
		l.sub.Close()
		from, to := owners(t, nodes, "moved")
		newMove(t, nodes, "moved", from, to).finish()
		l = subscribe(t, s, "moved")
		free(t, other, "moved")
		l.wait()
	})

	t.Run("in quick succession", func(t *testing.T) {
		s, other := open(t, connectCluster(t, nodes), sharded), open(t, connectCluster(t, nodes), sharded)
		var running sync.WaitGroup
		for i := range 8 {
			running.Go(func() {
				for j := range 30 {
					l := subscribe(t, s, fmt.Sprint("name", i))
					if l == nil {
						return
					}
					if j%3 == 0 {
						free(t, other, l.name)
						l.wait()
					}
					l.sub.Close()
				}
			})
		}
		running.Wait()
	})

	t.Run("locker", func(t *testing.T) {
		holder := dlock.New(redisbackend.New(connectCluster(t, nodes), sharded))
		defer holder.Close()
		waiter := dlock.New(redisbackend.New(connectCluster(t, nodes), sharded))
		defer waiter.Close()
		for i := range 10 {
			name := fmt.Sprint("lock", i)
			held, waits := holder.Locker(name), waiter.Locker(name)
			held.Lock()
			locked := make(chan struct{})
			go func() { waits.Lock(); close(locked) }()
			testservers.Until(t, "it waits", func() bool {
				owner, _ := owners(t, nodes, name)
				channels := must[[]string](t)(connect(t, owner.Addr).PubSubShardChannels(t.Context(), "*{"+name+"}").Result())
				return len(channels) == 1
			})
			held.Unlock()
			<-locked
			waits.Unlock()
		}
	})
}

// Without a cluster it is a matter of other commands only.
func TestShardedPubSubOnOneServer(t *testing.T) {
	server := testservers.Redis(t)
	sharded := redisbackend.WithShardedPubSub()
	s, other := open(t, connect(t, server.Addr), sharded), open(t, connect(t, server.Addr), sharded)
	for _, step := range steps {
		if err := step.run(t.Context(), s); err != nil {
			t.Errorf("%s: %v", step.name, err)
		}
	}
	l := subscribe(t, s, "n")
	free(t, other, "n")
	l.wait()
	server.Do("CLIENT", "KILL", "TYPE", "pubsub")
	l.wait()
}

// Servers before Redis 7 know no sharded channels; miniredis answers as they do.
func TestShardedPubSubOnOldServer(t *testing.T) {
	server := miniredis.RunT(t)
	s := open(t, connect(t, server.Addr()), redisbackend.WithShardedPubSub())
	want := func(err error) {
		t.Helper()
		wantKind(t, err, backend.Refused)
		if !strings.Contains(fmt.Sprint(err), "needs Redis 7") {
			t.Errorf("error %v", err)
		}
	}
	server.HSet("n", alice, "1")
	_, err := s.Acquire(t.Context(), acquire(alice))
	want(err)
	_, err = s.ForceRelease(t.Context(), backend.ForceReleaseRequest{Name: "n"})
	want(err)
	_, err = s.Subscribe(t.Context(), backend.SubscribeRequest{Name: "n", Wake: func(backend.Wakeup) {}})
	want(err)
	if got := server.HGet("n", alice); got != "1" {
		t.Errorf("the lock is held %q times now", got)
	}
	c := dlock.New(redisbackend.New(connect(t, server.Addr()), redisbackend.WithShardedPubSub()))
	defer c.Close()
	if err := c.Locker("a").LockContext(t.Context()); err == nil || !strings.Contains(err.Error(), "needs Redis 7") {
		t.Errorf("LockContext: %v", err)
	}
}

func TestShardedPubSubRefused(t *testing.T) {
	nodes := testservers.RedisCluster(t, 3)
	for _, node := range nodes {
		node.Do("ACL", "SETUSER", "some", "on", ">secret", "~*", "+@all", "resetchannels",
			"&redisson_lock__channel:{good*", "-sunsubscribe", "-pubsub")
	}
	s := open(t, connectCluster(t, nodes, func(o *redis.ClusterOptions) { o.Username, o.Password = "some", "secret" }),
		redisbackend.WithShardedPubSub())
	other := open(t, connectCluster(t, nodes), redisbackend.WithShardedPubSub())
	var running sync.WaitGroup
	for i := range 10 {
		running.Go(func() {
			_, err := s.Subscribe(t.Context(), backend.SubscribeRequest{Name: fmt.Sprint("bad", i), Wake: func(backend.Wakeup) {}})
			wantKind(t, err, backend.Refused)
		})
		running.Go(func() {
			l := subscribe(t, s, fmt.Sprint("good", i))
			if l == nil {
				return
			}
			free(t, other, l.name)
			l.wait()
			l.sub.Close()
			l = subscribe(t, s, l.name)
			free(t, other, l.name)
			l.wait()
		})
	}
	running.Wait()
}
