package main

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/valkey-io/valkey-go"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/contract/faults"
	"github.com/seed951563bd/distsync/etcdbackend"
	"github.com/seed951563bd/distsync/internal/test/testservers"
	"github.com/seed951563bd/distsync/redisbackend"
	"github.com/seed951563bd/distsync/valkeybackend"
)

// A store is what locks are kept in, and how it is reached and harmed.
type store struct {
	name      string
	lease     time.Duration // the shortest
	processes int           // that may share it, besides this one

	// join returns the connections of one more client to the store, and how it is dialled through
	// them, here and by their addresses in another process.
	join func() (links []link, addrs []string, dial dialer)

	server func(*checker) []fault // harm to the servers

	// left says how many keys and the like are there.
	left func() (int, error)
}

// A dialer connects to a store.
type dialer = func() (b backend.Backend, hangUp func(), err error)

// stores are the stores by name. Each is started anew.
var stores = map[string]func(testservers.TB) *store{
	"memory": memoryStore,
	"redis":  func(t testservers.TB) *store { return redisStore(t, "redis", testservers.Redis(t)) },
	"valkey": func(t testservers.TB) *store { return redisStore(t, "valkey", testservers.Valkey(t)) },
	"etcd":   etcdStore,
}

// silent is a logger of go-redis, which is told of each connection that breaks.
type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}

func init() { redis.SetLogger(silent{}) }

// dial connects to a store at addresses.
func dial(name string, addrs []string) dialer {
	return func() (backend.Backend, func(), error) {
		switch name {
		case "redis":
			rdb := redis.NewClient(&redis.Options{Addr: addrs[0]})
			return redisbackend.New(rdb), func() { rdb.Close() }, nil
		case "valkey":
			vk, err := valkey.NewClient(valkey.ClientOption{InitAddress: addrs, ForceSingleClient: true})
			if err != nil {
				return nil, nil, err
			}
			return valkeybackend.New(vk), vk.Close, nil
		case "etcd":
			cli, err := clientv3.New(clientv3.Config{Endpoints: addrs, Logger: zap.NewNop()})
			if err != nil {
				return nil, nil, err
			}
			return etcdbackend.New(cli), func() { cli.Close() }, nil
		}
		return nil, nil, fmt.Errorf("no process can reach a store named %q", name)
	}
}

// proxies returns what joins a store through a proxy for each of its servers.
func proxies(t testservers.TB, name string, protocol faults.Protocol, servers []*testservers.Server) func() ([]link, []string, dialer) {
	return func() (links []link, addrs []string, _ dialer) {
		for _, s := range servers {
			p, err := faults.NewProxy(s.Addr, protocol)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { p.Close() })
			links, addrs = append(links, p), append(addrs, p.Addr())
		}
		return links, addrs, dial(name, addrs)
	}
}

// leftKeys counts the keys of a Redis but for the last numbers and for how many permits there are, which stay; and for permits that are
// over, which go when somebody next asks for some.
const leftKeys = `
local left = redis.call('dbsize') - redis.call('exists', KEYS[1], KEYS[2], KEYS[4])
if redis.call('zcount', KEYS[3], '(' .. redis.call('time')[1] * 1000, '+inf') == 0 then
	left = left - redis.call('exists', KEYS[3])
end
return tostring(left)`

func redisStore(t testservers.TB, name string, s *testservers.Server) *store {
	const lease = time.Second
	return &store{
		name:      name,
		lease:     lease,
		processes: 2,
		join:      proxies(t, name, faults.RESP, []*testservers.Server{s}),
		server: func(c *checker) []fault {
			say := func(words ...string) func(context.Context, *chance) bool {
				return func(context.Context, *chance) bool {
					_, err := testservers.Do(s.Addr, words...)
					return err == nil
				}
			}
			restart := func(longest time.Duration) func(context.Context, *chance) bool {
				return func(ctx context.Context, dice *chance) bool {
					c.lose(s.Kill, func() {
						dice.pause(ctx, longest)
						s.Restart()
					})
					return true
				}
			}
			return append(freezes(s, lease),
				fault{"server restarted empty", restart(lease)},
				fault{"server restarted empty at once", restart(lease / 20)},
				fault{"scripts flushed", say("SCRIPT", "FLUSH")},
				fault{"connections killed", say("CLIENT", "KILL", "TYPE", "normal")},
				fault{"subscribers killed", say("CLIENT", "KILL", "TYPE", "pubsub")},
			)
		},
		left: func() (int, error) {
			reply, err := testservers.Do(s.Addr, "EVAL", leftKeys, "4", "redisson_lock_token:{"+numbered+"}", semaphore, "{"+semaphore+"}:timeout", "redisson_lock_token:{"+elected+"}")
			if err != nil {
				return 0, err
			}
			return strconv.Atoi(reply)
		},
	}
}

func etcdStore(t testservers.TB) *store {
	const lease = 2 * time.Second
	members := testservers.EtcdCluster(t, 3)
	var addrs []string
	for _, m := range members {
		addrs = append(addrs, m.Addr)
	}
	return &store{
		name:      "etcd",
		lease:     lease,
		processes: 2,
		join:      proxies(t, "etcd", faults.HTTP2, members),
		server: func(*checker) []fault {
			var all []fault
			for _, m := range members {
				all = append(append(all, freezes(m, lease)...),
					fault{"member killed", func(ctx context.Context, dice *chance) bool {
						m.Kill()
						dice.pause(ctx, 2*lease)
						m.Restart()
						return true
					}})
			}
			return all
		},
		left: func() (int, error) { return etcdLeft(addrs) },
	}
}

func etcdLeft(addrs []string) (int, error) {
	cli, err := clientv3.New(clientv3.Config{Endpoints: addrs, Logger: zap.NewNop()})
	if err != nil {
		return 0, err
	}
	defer cli.Close()
	ctx, cancel := context.WithTimeout(context.Background(), testservers.Patience)
	defer cancel()
	keys, err := cli.Get(ctx, "", clientv3.WithPrefix(), clientv3.WithCountOnly())
	if err != nil {
		return 0, err
	}
	leases, err := cli.Leases(ctx)
	if err != nil {
		return 0, err
	}
	return int(keys.Count) + len(leases.Leases), nil
}
