package testservers

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Redis starts a redis-server without persistence, and passes it the additional arguments args.
func Redis(t TB, args ...string) *Server {
	t.Helper()
	return Start(t, redisSpec("redis-server", args))
}

// Valkey is like Redis, but starts a valkey-server.
func Valkey(t TB, args ...string) *Server {
	t.Helper()
	return Start(t, redisSpec("valkey-server", args))
}

func redisSpec(program string, args []string) Spec {
	return Spec{
		Program: program,
		Args:    func(port int, dir string) []string { return redisArgs(port, dir, args) },
		Ready:   redisReady,
	}
}

func redisReady(addr string) error {
	_, err := Do(addr, "PING")
	return err
}

func redisArgs(port int, dir string, more []string) []string {
	args := []string{
		"--bind", "127.0.0.1", "--port", strconv.Itoa(port), "--dir", dir,
		"--save", "", "--appendonly", "no",
	}
	return append(args, more...)
}

// RedisCluster starts a cluster of n masters, without replicas, that share the slots evenly.
func RedisCluster(t TB, n int) []*Server {
	t.Helper()
	return cluster(t, Redis, n)
}

// ValkeyCluster is like RedisCluster, but starts valkey-servers.
func ValkeyCluster(t TB, n int) []*Server {
	t.Helper()
	return cluster(t, Valkey, n)
}

// RedisClusterReplicas starts a replica for each master of a cluster, and waits until they are up
// to date.
func RedisClusterReplicas(t TB, masters []*Server) []*Server {
	t.Helper()
	return clusterReplicas(t, Redis, masters)
}

// ValkeyClusterReplicas is like RedisClusterReplicas, but starts valkey-servers.
func ValkeyClusterReplicas(t TB, masters []*Server) []*Server {
	t.Helper()
	return clusterReplicas(t, Valkey, masters)
}

func clusterReplicas(t TB, start func(TB, ...string) *Server, masters []*Server) []*Server {
	t.Helper()
	replicas := make([]*Server, len(masters))
	for i, master := range masters {
		replica, bus := clusterNode(t, start)
		master.Do("CLUSTER", "MEET", "127.0.0.1", strconv.Itoa(replica.port), bus)
		replicas[i] = replica
	}
	for i, master := range masters {
		Until(t, "the replica knows its master", func() bool {
			_, err := Do(replicas[i].Addr, "CLUSTER", "REPLICATE", master.Do("CLUSTER", "MYID"))
			return err == nil
		})
	}
	for i, replica := range replicas {
		Until(t, "the replica is up to date, and everybody knows it", func() bool {
			id := replica.Do("CLUSTER", "MYID")
			for _, node := range slices.Concat(masters, replicas) {
				if !regexp.MustCompile(id + `.*slave ` + masters[i].Do("CLUSTER", "MYID")).
					MatchString(node.Do("CLUSTER", "NODES")) {
					return false
				}
			}
			return strings.Contains(replica.Do("INFO", "replication"), "master_link_status:up")
		})
	}
	// a replica that doesn't know the slots wouldn't take over
	awaitSlots(t, replicas, len(masters))
	return replicas
}

const slots = 16384

// clusterNode starts a node that knows no other nodes, and returns the port of its cluster bus.
func clusterNode(t TB, start func(TB, ...string) *Server) (node *Server, bus string) {
	t.Helper()
	bus = strconv.Itoa(FreePort(t))
	return start(t, "--cluster-enabled", "yes", "--cluster-port", bus, "--repl-diskless-sync-delay",
		"0",
		"--cluster-require-full-coverage", "no", "--cluster-node-timeout", "60000"), bus
}

func cluster(t TB, start func(TB, ...string) *Server, n int) []*Server {
	t.Helper()
	nodes := make([]*Server, n)
	buses := make([]string, n)
	for i := range nodes {
		nodes[i], buses[i] = clusterNode(t, start)
		nodes[i].Do("CLUSTER", "SET-CONFIG-EPOCH", strconv.Itoa(i+1))
		nodes[i].Do("CLUSTER", "ADDSLOTSRANGE", strconv.Itoa(i*slots/n),
			strconv.Itoa((i+1)*slots/n-1))
	}
	for i := range nodes[1:] {
		nodes[0].Do("CLUSTER", "MEET", "127.0.0.1", strconv.Itoa(nodes[i+1].port), buses[i+1])
	}
	awaitSlots(t, nodes, n)
	awaitBus(t, nodes)
	return nodes
}

// awaitSlots waits until the nodes know which masters serve which slots.
func awaitSlots(t TB, nodes []*Server, masters int) {
	t.Helper()
	for _, node := range nodes {
		Until(t, "the cluster agrees", func() bool {
			info := node.Do("CLUSTER", "INFO")
			return strings.Contains(info, "cluster_state:ok") &&
				strings.Contains(info, fmt.Sprintf("cluster_slots_assigned:%d\r\n", slots)) &&
				strings.Contains(info, fmt.Sprintf("cluster_size:%d\r\n", masters))
		})
	}
}

// Do sends one command to a server that speaks RESP, and returns the reply as text. The reply must
// be a simple string, a number or a bulk string. The test fails on an error.
func (s *Server) Do(args ...string) string {
	s.t.Helper()
	reply, err := Do(s.Addr, args...)
	if err != nil {
		s.t.Fatalf("%s: %v", joined(args), err)
	}
	return reply
}

// Do is like [Server.Do], but for any address. It opens a connection for each command.
func Do(addr string, args ...string) (string, error) {
	conn, err := net.DialTimeout("tcp", addr, Patience)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(Patience))

	var b strings.Builder
	fmt.Fprintf(&b, "*%d\r\n", len(args))
	for _, arg := range args {
		fmt.Fprintf(&b, "$%d\r\n%s\r\n", len(arg), arg)
	}
	if _, err := io.WriteString(conn, b.String()); err != nil {
		return "", err
	}
	return readReply(bufio.NewReader(conn))
}

func readReply(r *bufio.Reader) (string, error) {
	line, err := r.ReadString('\n')
	if err != nil {
		return "", err
	}
	kind, text := line[0], strings.TrimRight(line[1:], "\r\n")
	switch kind {
	case '+', ':':
		return text, nil
	case '-':
		return "", errors.New(text)
	case '$':
		n, err := strconv.Atoi(text)
		if err != nil || n < 0 {
			return "", err
		}
		bulk := make([]byte, n+2)
		_, err = io.ReadFull(r, bulk)
		return string(bulk[:n]), err
	default:
		return "", fmt.Errorf("a reply of a kind that tests don't need: %q", line)
	}
}
