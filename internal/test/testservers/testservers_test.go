package testservers_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
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

// The go command may still be writing the program for another process.
func TestProgramIsBeingWritten(t *testing.T) {
	redis, err := os.ReadFile(testservers.Program(t, "redis-server"))
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "server")
	if err := os.WriteFile(path, redis, 0o700); err != nil {
		t.Fatal(err)
	}
	writing, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	starting, written := make(chan struct{}), make(chan struct{})
	begin := sync.OnceFunc(func() { close(starting) })
	go func() {
		defer close(written)
		<-starting
		time.Sleep(50 * time.Millisecond) // so that it is started once, probably
		writing.Close()
	}()
	testservers.Start(t, testservers.Spec{
		Program: path,
		Args: func(port int, dir string) []string {
			begin()
			return []string{
				"--bind", "127.0.0.1", "--port", strconv.Itoa(port), "--dir", dir, "--save", "",
			}
		},
		Ready: func(addr string) error {
			_, err := testservers.Do(addr, "PING")
			return err
		},
	})
	<-written
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
			// The sentinels may cut its connections when they make it the master.
			info, err := testservers.Do(slave.Addr, "INFO", "replication")
			if err == nil && strings.Contains(info, "role:master") {
				return true
			}
		}
		return false
	})
}

// Servers are copies of one run of initdb, but don't share data.
func TestPostgresIsCopied(t *testing.T) {
	testservers.PostgresTool(t, "initdb") // skips the test without PostgreSQL
	cache := t.TempDir()
	t.Setenv("HOME", cache)
	t.Setenv("XDG_CACHE_HOME", cache)
	kept := func() (paths []string) {
		t.Helper()
		err := filepath.WalkDir(cache, func(path string, entry fs.DirEntry, err error) error {
			if err == nil && entry.Name() == "postgresql.conf" {
				paths = append(paths, path)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		return paths
	}
	first := testservers.Postgres(t)
	first.SQL("CREATE TABLE mine (n int)")
	before := kept()
	if len(before) == 0 {
		t.Fatal("nothing is kept")
	}
	second := testservers.Postgres(t)
	if n := second.SQL("SELECT count(*) FROM pg_tables WHERE tablename = 'mine'"); n != "0" {
		t.Errorf("the second server has %s tables of the first", n)
	}
	if after := kept(); !slices.Equal(before, after) {
		t.Errorf("kept are %q, and were %q", after, before)
	}
}

func TestPostgres(t *testing.T) {
	primary := testservers.Postgres(t)
	standby := testservers.PostgresStandby(t, primary, "standby")
	bouncer := testservers.PgBouncer(t, primary, "pool_mode = transaction")
	do := func(s *testservers.Server, sql string) string { t.Helper(); return s.SQL(sql) }
	do(primary, `CREATE TABLE k AS SELECT 'v' AS v`)
	testservers.Until(t, "the standby follows", func() bool {
		return do(standby, `SELECT coalesce(to_regclass('k')::text, '')`) == "k" &&
			do(standby, `SELECT v FROM k`) == "v"
	})
	if got := do(bouncer, `SELECT v FROM k`); got != "v" {
		t.Errorf("by way of the pooler it says %q", got)
	}

	primary.Stop()
	answered := make(chan string, 1)
	go func() { answered <- do(primary, `SELECT v FROM k`) }()
	primary.Cont()
	if got := <-answered; got != "v" {
		t.Errorf("after a stop it says %q", got)
	}

	primary.Restart()
	if got := do(primary, `SELECT v FROM k`); got != "v" {
		t.Errorf("after a restart it says %q; want what it had", got)
	}
	primary.Kill()
	do(standby, `SELECT pg_promote()::text`)
	if got := do(standby,
		`SELECT pg_is_in_recovery()::text || (SELECT v FROM k)`); got != "falsev" {
		t.Errorf("the standby that was promoted says %q", got)
	}
}
