package testservers_test

import (
	"strings"
	"testing"
	"time"

	"github.com/seed951563bd/distsync/internal/test/testservers"
)

func TestRedis(t *testing.T) {
	s := testservers.Redis(t, "--maxclients", "50")
	s.Do("SET", "k", "v")
	if got := s.Do("GET", "k"); got != "v" {
		t.Errorf("GET k = %q, want v", got)
	}

	s.Stop()
	answered := make(chan string, 1)
	go func() {
		reply, _ := testservers.Do(s.Addr, "GET", "k")
		answered <- reply
	}()
	s.Cont()
	if got := <-answered; got != "v" {
		t.Errorf("GET k after a stop = %q, want v", got)
	}

	addr := s.Addr
	s.Restart()
	if s.Addr != addr {
		t.Errorf("moved from %s to %s", addr, s.Addr)
	}
	if got := s.Do("GET", "k"); got != "" {
		t.Errorf("GET k after a restart = %q, want nothing", got)
	}

	s.Kill()
	if _, err := testservers.Do(s.Addr, "PING"); err == nil {
		t.Error("a killed server answers")
	}
}

func TestRedisCluster(t *testing.T) {
	nodes := testservers.RedisCluster(t, 3)
	for _, slot := range []string{"0", "16383"} {
		nodes[1].Do("CLUSTER", "COUNTKEYSINSLOT", slot)
	}
}

func TestRedisSentinel(t *testing.T) {
	s := testservers.RedisSentinel(t, 2, 500*time.Millisecond)
	s.Master.Kill()
	testservers.Until(t, "a replica is master", func() bool {
		for _, slave := range s.Replicas {
			// Sentinels that make it the master cut its connections.
			info, err := testservers.Do(slave.Addr, "INFO", "replication")
			if err == nil && strings.Contains(info, "role:master") {
				return true
			}
		}
		return false
	})
}
