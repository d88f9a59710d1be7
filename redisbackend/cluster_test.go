package redisbackend_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/internal/test/testservers"
	"github.com/seed951563bd/distsync/internal/test/wiretest"
	"github.com/seed951563bd/distsync/redisbackend"
)

func connectCluster(
	t testing.TB, nodes []*testservers.Server, change ...func(*redis.ClusterOptions),
) *redis.ClusterClient {
	t.Helper()
	opts := &redis.ClusterOptions{Addrs: wiretest.Addrs(nodes)}
	for _, c := range change {
		c(opts)
	}
	client := redis.NewClusterClient(opts)
	t.Cleanup(func() { client.Close() })
	return client
}

// logged gets each line that go-redis logs.
type logged func(line string)

func (l logged) Printf(_ context.Context, format string, args ...any) {
	l(fmt.Sprintf(format, args...))
}

func TestCluster(t *testing.T) {
	t.Parallel()
	nodes := testservers.RedisCluster(t, 3)

	t.Run("steps", func(t *testing.T) {
		s := open(t, connectCluster(t, nodes))
		for _, step := range steps {
			if err := step.Run(t.Context(), s); err != nil {
				t.Errorf("%s: %v", step.Name, err)
			}
		}
	})

	t.Run("several locks", func(t *testing.T) {
		wiretest.TogetherInACluster(t, redisbackend.New(connectCluster(t, nodes)))
	})

	t.Run("reading from replicas", func(t *testing.T) {
		redis.SetLogger(logged(func(line string) {
			if strings.Contains(line, "info for cmd=") { // of a command that it doesn't know
				t.Error(line)
			}
		}))
		defer logging.Enable()
		s := open(t, connectCluster(t, nodes, func(o *redis.ClusterOptions) { o.ReadOnly = true }))
		for _, step := range steps {
			if err := step.Run(t.Context(), s); err != nil {
				t.Errorf("%s: %v", step.Name, err)
			}
		}
	})

	t.Run("one command each", func(t *testing.T) {
		client := connectCluster(t, nodes)
		s := open(t, client)
		wiretest.Must[backend.AcquireResult](t)(s.Acquire(t.Context(), acquire(alice)))
		wiretest.Must[backend.ReleaseResult](t)(s.Release(t.Context(), release(alice)))
		var monitors []*wiretest.Monitor
		for _, node := range nodes {
			monitors = append(monitors, wiretest.Watch(t, node.Addr))
		}
		wiretest.Must[backend.AcquireResult](t)(s.Acquire(t.Context(), acquire(alice)))
		wiretest.Must[backend.ReleaseResult](t)(s.Release(t.Context(), release(alice)))
		var commands []string
		for _, m := range monitors {
			commands = append(commands, m.Commands()...)
		}
		if len(commands) != 2 {
			t.Errorf("acquire and release: %q", commands)
		}
	})

	t.Run("slots", func(t *testing.T) {
		s := open(t, connectCluster(t, nodes))
		for _, name := range []string{"a{b", "{}x", "a}b"} {
			_, err := s.Acquire(t.Context(), backend.AcquireRequest{
				Name: name, Owner: alice, Lease: lease,
			})
			wantKind(t, err, backend.Refused)
			_, err = s.Subscribe(t.Context(), backend.SubscribeRequest{
				Name: name, Wake: func(backend.Wakeup) {},
			})
			wantKind(t, err, backend.Refused)
			s.RenewBatch(t.Context(), []backend.RenewRequest{{
				Name: name, Owner: alice, Lease: lease,
			}},
				func(_ int, _ backend.RenewResult, err error) { wantKind(t, err, backend.Refused) })
		}
	})

	t.Run("wake-ups", func(t *testing.T) {
		s, other := open(t, connectCluster(t, nodes)), open(t, connectCluster(t, nodes))
		for i := range 10 { // on all nodes
			l := subscribe(t, s, fmt.Sprint("name", i))
			free(t, other, l.Name)
			l.Wait()
		}
	})

	t.Run("a node hangs", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		client := connectCluster(t, nodes, func(o *redis.ClusterOptions) {
			o.ReadTimeout = testservers.Patience
		})
		s := open(t, client)
		var reqs []backend.RenewRequest
		onHung := 0
		for i := range 100 {
			name := fmt.Sprint("renewed", i)
			wiretest.Must[backend.AcquireResult](t)(s.Acquire(ctx, backend.AcquireRequest{
				Name: name, Owner: alice, Lease: lease,
			}))
			reqs = append(reqs, backend.RenewRequest{Name: name, Owner: alice, Lease: lease})
			if wiretest.Must[*redis.Client](t)(client.MasterForKey(ctx, name)).Options().
				Addr == nodes[1].Addr {
				onHung++
			}
		}
		if onHung == 0 || onHung == len(reqs) {
			t.Fatalf("%d of %d names on one node", onHung, len(reqs))
		}
		answers := make(chan error, len(reqs))
		renew := func() {
			s.RenewBatch(ctx, reqs, func(_ int, res backend.RenewResult, err error) {
				if err == nil && !res.Held {
					err = fmt.Errorf("lost")
				}
				answers <- err
			})
		}
		renew() // makes connections and the script known
		for range reqs {
			if err := <-answers; err != nil {
				t.Fatal(err)
			}
		}

		nodes[1].Stop()
		done := make(chan struct{})
		go func() { defer close(done); renew() }()
		for range len(reqs) - onHung {
			select {
			case err := <-answers:
				if err != nil {
					t.Errorf("renewal on another node: %v", err)
				}
			case <-time.After(testservers.Patience / 2):
				t.Fatal("a node that hangs delays renewals on others")
			}
		}
		nodes[1].Cont()
		<-done
		if len(answers) != onHung {
			t.Errorf("%d answers of the node that hung, want %d", len(answers), onHung)
		}
	})

	t.Run("a slot moves", func(t *testing.T) {
		ctx := t.Context()
		client := connectCluster(t, nodes)
		s := open(t, client)
		const name = "moving"
		wiretest.Must[*redis.Client](t)(client.MasterForKey(ctx, name)) // the client knows where
		wiretest.NewMove(t, nodes, name).Finish()
		wiretest.Must[backend.AcquireResult](t)(s.Acquire(ctx, backend.AcquireRequest{
			Name: name, Owner: alice, Lease: lease,
		}))
		if res := wiretest.Must[backend.AcquireResult](t)(s.Acquire(ctx, backend.AcquireRequest{
			Name: name, Owner: alice, Lease: lease, Reentry: true,
		})); res.Count != 2 {
			t.Errorf("%d holds after a re-entry", res.Count)
		}
		s.RenewBatch(ctx, []backend.RenewRequest{{Name: name, Owner: alice, Lease: lease}},
			func(_ int, res backend.RenewResult, err error) {
				if err != nil || !res.Held {
					t.Errorf("renewal: %v, %v", res, err)
				}
			})
	})
}

// TestNothingIsAskedOfReplicas has a client prefer replicas for commands that only read. Those of a
// lock go to masters all the same: a replica may not know yet who has it.
func TestNothingIsAskedOfReplicas(t *testing.T) {
	t.Parallel()
	masters := testservers.RedisCluster(t, 3)
	replicas := testservers.RedisClusterReplicas(t, masters)
	asked := func() (n int) {
		for _, replica := range replicas {
			stats := replica.Do("INFO", "commandstats")
			for _, verb := range []string{"eval", "evalsha", "exists", "hget", "pttl"} {
				n += strings.Count(stats, "cmdstat_"+verb+":")
			}
		}
		return n
	}
	reset := func() {
		for _, replica := range replicas {
			replica.Do("CONFIG", "RESETSTAT")
		}
	}
	reset()
	// A node lists its replica only when that has copied something.
	testservers.Until(t, "a replica is asked what isn't about locks", func() bool {
		opts := &redis.ClusterOptions{Addrs: wiretest.Addrs(masters), ReadOnly: true}
		client := redis.NewClusterClient(opts)
		defer client.Close()
		client.Set(t.Context(), "{n}data", "1", 0)
		client.Exists(t.Context(), "{n}data")
		return asked() > 0
	})
	for name, change := range map[string]func(*redis.ClusterOptions){
		"read only":  func(o *redis.ClusterOptions) { o.ReadOnly = true },
		"by latency": func(o *redis.ClusterOptions) { o.RouteByLatency = true },
		"randomly":   func(o *redis.ClusterOptions) { o.RouteRandomly = true },
	} {
		t.Run(name, func(t *testing.T) {
			reset()
			s := open(t, connectCluster(t, masters, change))
			for range 5 {
				for _, step := range steps {
					if err := step.Run(t.Context(), s); err != nil {
						t.Errorf("%s: %v", step.Name, err)
					}
				}
			}
			if n := asked(); n > 0 {
				t.Errorf("replicas were asked %d kinds of question", n)
			}
		})
	}
}
