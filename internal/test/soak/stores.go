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
	"github.com/seed951563bd/distsync/postgresbackend"
	"github.com/seed951563bd/distsync/quorumbackend"
	"github.com/seed951563bd/distsync/redisbackend"
	"github.com/seed951563bd/distsync/valkeybackend"
)

// A store describes a running store of locks, with functions that connect to it and disturb it.
type store struct {
	name      string
	lease     time.Duration // the shortest lease of its clients
	processes int           // number of child processes that also use the store

	names []string // the locks that it supports; if nil, all

	// join returns the links through which another client reaches the store. addrs are their
	// addresses, for use in a child process. dial connects over the links.
	join func() (links []link, addrs []string, dial dialer)

	server func(*checker) []fault // the faults of the servers

	// left counts the keys and other data in the store, except what free locks may leave behind.
	left func() (int, error)
}

// locks returns the names of the locks that users use.
func (s *store) locks() []string {
	if s.names != nil {
		return s.names
	}
	return names
}

// A dialer connects to a store.
type dialer = func() (b backend.Backend, hangUp func(), err error)

// stores maps the name of each store to a function that starts a new one.
var stores = map[string]func(testservers.TB) *store{
	"memory": memoryStore,
	"redis": func(t testservers.TB) *store {
		return redisStore(t, "redis", testservers.Redis(t))
	},
	"valkey": func(t testservers.TB) *store {
		return redisStore(t, "valkey", testservers.Valkey(t))
	},
	"etcd":     etcdStore,
	"postgres": postgresStore,
	"quorum":   quorumStore,
}

// silent is a logger for go-redis that drops its messages about broken connections.
type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}

func init() { redis.SetLogger(silent{}) }

// dial returns a dialer for the named store at the given addresses.
func dial(name string, addrs []string) dialer {
	return func() (backend.Backend, func(), error) {
		switch name {
		case "redis":
			rdb := redis.NewClient(&redis.Options{Addr: addrs[0]})
			return redisbackend.New(rdb), func() { rdb.Close() }, nil
		case "valkey":
			vk, err := valkey.NewClient(valkey.ClientOption{
				InitAddress: addrs, ForceSingleClient: true,
			})
			if err != nil {
				return nil, nil, err
			}
			return valkeybackend.New(vk), vk.Close, nil
		case "quorum":
			var all []*redis.Client
			var voters []backend.Backend
			for _, addr := range addrs {
				rdb := redis.NewClient(&redis.Options{Addr: addr})
				all, voters = append(all, rdb), append(voters, redisbackend.New(rdb))
			}
			return quorumbackend.New(voters...), func() {
				for _, rdb := range all {
					rdb.Close()
				}
			}, nil
		case "etcd":
			cli, err := clientv3.New(clientv3.Config{Endpoints: addrs, Logger: zap.NewNop()})
			if err != nil {
				return nil, nil, err
			}
			return etcdbackend.New(cli), func() { cli.Close() }, nil
		case "postgres":
			b, err := postgresbackend.Connect(testservers.PostgresURL(addrs[0]))
			if err != nil {
				return nil, nil, err
			}
			return b, b.Close, nil
		}
		return nil, nil, fmt.Errorf("no process can reach a store named %q", name)
	}
}

// proxies returns the join function for a store. That function puts a proxy in front of each
// server.
func proxies(
	t testservers.TB, name string, protocol faults.Protocol, servers []*testservers.Server,
) func() ([]link, []string, dialer) {
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

// leftKeys is a script that counts the keys in Redis. It ignores keys that are allowed to remain:
// fencing tokens and semaphores' limits, which stay forever, and expired permits, which the next
// acquisition removes.
const leftKeys = `
local left = redis.call('dbsize') - redis.call('exists', KEYS[1], KEYS[2], unpack(KEYS, 4))
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
		left: func() (int, error) { return redisLeft(s) },
	}
}

func redisLeft(s *testservers.Server) (int, error) {
	keys := []string{
		"redisson_lock_token:{" + numbered + "}", semaphore, "{" + semaphore + "}:timeout",
	}
	for _, name := range append([]string{elected}, divided...) {
		keys = append(keys, "redisson_lock_token:{"+name+"}")
	}
	words := append([]string{"EVAL", leftKeys, strconv.Itoa(len(keys))}, keys...)
	reply, err := testservers.Do(s.Addr, words...)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(reply)
}

// quorumStore returns a quorum of three servers. Only one server at a time is frozen or restarted.
// A restarted server has lost its data. It was down for longer than any lease, so no hold depends
// on that data.
func quorumStore(t testservers.TB) *store {
	const lease = time.Second
	voters := []*testservers.Server{
		testservers.Redis(t), testservers.Redis(t), testservers.Redis(t),
	}
	return &store{
		name:      "quorum",
		lease:     lease,
		processes: 2,
		names:     []string{names[forced], "a", "b", "rw", "wr"},
		join:      proxies(t, "quorum", faults.RESP, voters),
		server: func(*checker) []fault {
			var all []fault
			for _, s := range voters {
				all = append(append(all, freezes(s, lease)...),
					fault{"one of three restarted empty", func(
						ctx context.Context, _ *chance,
					) bool {
						s.Kill()
						wait(context.WithoutCancel(ctx), 3*lease)
						s.Restart()
						return true
					}})
			}
			return all
		},
		left: func() (sum int, _ error) {
			for _, s := range voters {
				n, err := redisLeft(s)
				if err != nil {
					return 0, err
				}
				sum += n
			}
			return sum, nil
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

// postgresStore returns a PostgreSQL server, which keeps committed data after a crash. A loss of
// its data is simulated: the tables are emptied while no client is connected.
func postgresStore(t testservers.TB) *store {
	const lease = time.Second
	s := testservers.Postgres(t)
	s.SQL(postgresbackend.Schema(postgresbackend.DefaultSchema))
	return &store{
		name:      "postgres",
		lease:     lease,
		processes: 2,
		join:      proxies(t, "postgres", faults.Bytes, []*testservers.Server{s}),
		server: func(c *checker) []fault {
			say := func(sql string) func(context.Context, *chance) bool {
				return func(context.Context, *chance) bool {
					_, err := testservers.SQL(s.Addr, sql)
					return err == nil
				}
			}
			const others = `SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
				WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'`
			return append(freezes(s, lease),
				fault{"server killed", func(ctx context.Context, dice *chance) bool {
					s.Kill()
					dice.pause(ctx, 2*lease)
					s.Restart()
					return true
				}},
				fault{"server restarted empty", func(ctx context.Context, dice *chance) bool {
					c.lose(s.Kill, func() {
						dice.pause(ctx, lease)
						s.Restart()
						s.SQL(`TRUNCATE distsync.distsync_v1_lock, distsync.distsync_v1_part,
							distsync.distsync_v1_latch`)
					})
					return true
				}},
				fault{"connections killed", say(others)},
				fault{
					"subscribers killed",
					say(others + ` AND application_name LIKE 'distsync listener%'`),
				},
				fault{"vacuumed", say(`VACUUM FULL distsync.distsync_v1_lock`)},
			)
		},
		left: func() (int, error) {
			n, err := testservers.SQL(s.Addr,
				`SELECT (SELECT count(*) FROM distsync.distsync_v1_lock
					WHERE expires > clock_timestamp() AND owner IS NOT NULL)
				+ (SELECT count(*) FROM distsync.distsync_v1_part
					WHERE expires > clock_timestamp() AND role <> 5)`)
			if err != nil {
				return 0, err
			}
			return strconv.Atoi(n)
		},
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
