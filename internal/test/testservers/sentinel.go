package testservers

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// A Sentinel is a Redis master with replicas, and the sentinels that watch it. When the master has
// been silent for some time, the sentinels promote a replica.
type Sentinel struct {
	Name      string // of the master, among the sentinels
	Master    *Server
	Replicas  []*Server
	Sentinels []*Server
}

// RedisSentinel starts a redis-server with replicas, and three sentinels. The sentinels consider
// the master dead if it hasn't answered for downAfter. Use a long time if the test doesn't kill the
// master, since a live master on a busy machine might not answer for a while.
func RedisSentinel(t TB, replicas int, downAfter time.Duration) *Sentinel {
	t.Helper()
	return sentinel(t, Redis, "redis-server", replicas, downAfter)
}

// ValkeySentinel is like RedisSentinel, but starts valkey-servers.
func ValkeySentinel(t TB, replicas int, downAfter time.Duration) *Sentinel {
	t.Helper()
	return sentinel(t, Valkey, "valkey-server", replicas, downAfter)
}

const (
	sentinels = 3
	quorum    = 2
)

func sentinel(
	t TB, start func(TB, ...string) *Server, program string, replicas int, downAfter time.Duration,
) *Sentinel {
	t.Helper()
	s := &Sentinel{Name: "main"}
	s.Master, s.Replicas = replicated(t, start, replicas)
	for range sentinels {
		s.Sentinels = append(s.Sentinels,
			Start(t, sentinelSpec(t, program, s.Name, s.Master.port, downAfter)))
	}
	for _, node := range s.Sentinels {
		Until(t, "the sentinels know each other and the replicas", func() bool {
			return strings.Contains(node.Do("INFO", "sentinel"),
				fmt.Sprintf("status=ok,address=%s,slaves=%d,sentinels=%d", s.Master.Addr, replicas,
					sentinels))
		})
	}
	return s
}

// SentinelAddrs returns the addresses of the sentinels.
func (s *Sentinel) SentinelAddrs() (addrs []string) {
	for _, node := range s.Sentinels {
		addrs = append(addrs, node.Addr)
	}
	return addrs
}

// RedisReplicated starts a redis-server with replicas, and waits until they are up to date.
func RedisReplicated(t TB, replicas int) (master *Server, slaves []*Server) {
	t.Helper()
	return replicated(t, Redis, replicas)
}

// ValkeyReplicated is like RedisReplicated, but starts valkey-servers.
func ValkeyReplicated(t TB, replicas int) (master *Server, slaves []*Server) {
	t.Helper()
	return replicated(t, Valkey, replicas)
}

func replicated(t TB, start func(TB, ...string) *Server, n int) (master *Server, slaves []*Server) {
	t.Helper()
	args := []string{"--repl-diskless-sync-delay", "0"}
	master = start(t, args...)
	args = append(args, "--replicaof", "127.0.0.1", strconv.Itoa(master.port))
	for range n {
		slaves = append(slaves, start(t, args...))
	}
	for _, slave := range slaves {
		Until(t, "the replica is up to date", func() bool {
			return strings.Contains(slave.Do("INFO", "replication"), "master_link_status:up")
		})
	}
	return master, slaves
}

func sentinelSpec(t TB, program, name string, master int, downAfter time.Duration) Spec {
	return Spec{
		Program: program,
		Args: func(port int, dir string) []string {
			// A sentinel stores its state in its configuration file, so each has its own.
			config := fmt.Sprintf(`
bind 127.0.0.1
port %d
dir %s
sentinel monitor %s 127.0.0.1 %d %d
sentinel down-after-milliseconds %[3]s %[6]d
sentinel failover-timeout %[3]s 5000
`, port, dir, name, master, quorum, downAfter.Milliseconds())
			path := filepath.Join(dir, "sentinel.conf")
			if err := os.WriteFile(path, []byte(config), 0o600); err != nil {
				t.Fatal(err)
			}
			return []string{path, "--sentinel"}
		},
		Ready: redisReady,
	}
}
