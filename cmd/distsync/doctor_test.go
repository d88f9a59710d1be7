package main

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/seed951563bd/distsync/internal/test/testservers"
)

// diagnose runs the doctor, and returns its checks by name: of several the last that isn't ok.
func diagnose(t *testing.T, args ...string) (checks map[string]check, status int) {
	t.Helper()
	got := inside(t.Context(), append([]string{"doctor", "--json"}, args...)...)
	checks = make(map[string]check)
	for _, c := range lines[check](t, got.stdout) {
		if c.Status != statusOK || checks[c.Check].Status == "" {
			checks[c.Check] = c
		}
		if c.Status != statusOK && c.Todo == "" {
			t.Errorf("what is to be done? %+v", c)
		}
	}
	return checks, got.status
}

// want fails unless a check went so, and says so.
func want(t *testing.T, checks map[string]check, name, status, text string) {
	t.Helper()
	if c := checks[name]; c.Status != status || !strings.Contains(c.Text, text) {
		t.Errorf("%s: %+v, want %s and %q", name, c, status, text)
	}
}

// On a store that is in order all is well, and nothing is left there.
func TestDoctor(t *testing.T) {
	t.Parallel()
	anywhere(t, func(t *testing.T, url string) {
		checks, status := diagnose(t, "--store", url)
		if status != 0 {
			t.Errorf("status %d", status)
		}
		for name, c := range checks {
			if c.Status != statusOK ||
				strings.Contains(c.Text, "://") != (name == "connect" || name == "member") {
				t.Errorf("%s: %+v", name, c)
			}
		}
		names := []string{
			"connect", "messages", "exclusive", "fenced", "read-write", "fair", "permits", "ls",
		}
		switch {
		case strings.HasPrefix(url, "etcd"):
			names = append(names, "member", "quorum", "alarms", "auth")
		case strings.HasPrefix(url, "postgres"):
			names = append(names, "server", "functions", "settings", "tables", "standbys",
				"snapshots", "listeners", "clock")
		default:
			names = append(names, "server", "scripts", "replicas", "eviction", "clock")
		}
		for _, name := range names {
			if checks[name].Text == "" {
				t.Errorf("%s isn't checked", name)
			}
		}
		g := &global{store: url, timeout: testservers.Patience}
		s, err := g.connect(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer s.close()
		testservers.Until(t, "nothing is left", func() bool { return empty(t, s) })

		text := inside(t.Context(), "doctor", "--store", url)
		if text.status != 0 ||
			!strings.Contains(text.stdout, "ok    permits      acquired, renewed and released\n") {
			t.Errorf("for people: %+v", text)
		}
		if quiet := inside(t.Context(), "doctor", "--quiet", "--store", url); quiet.stdout+
			quiet.stderr != "" {
			t.Errorf("quiet: %+v", quiet)
		}
	})
}

// empty says whether there are no keys in a store.
func empty(t *testing.T, s *store) bool {
	t.Helper()
	if s.etcd != nil {
		keys, err := s.etcd.Get(t.Context(), "", clientv3.WithPrefix(), clientv3.WithKeysOnly())
		return err == nil && keys.Count == 0
	}
	if s.postgres != nil { // a row stays for a day when its lock is free
		var held bool
		err := s.postgres.QueryRow(t.Context(),
			`SELECT EXISTS (SELECT FROM distsync.distsync_v1_lock WHERE owner IS NOT NULL)
			OR EXISTS (SELECT FROM distsync.distsync_v1_part WHERE role <> 5)`).Scan(&held)
		return err == nil && !held
	}
	nodes, err := s.nodes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	size, err := nodes[0].do(t.Context(), "DBSIZE")
	return err == nil && size[0] == "0"
}

// The doctor finds a user that may do less than the library needs, and a server that isn't good for
// locks.
func TestDoctorFinds(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]func(testservers.TB, ...string) *testservers.Server{
		"redis":  testservers.Redis,
		"valkey": testservers.Valkey,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := start(t)
			url := func(user string) string {
				return name + "://" + user + ":secret@" + server.Addr
			}
			user := func(name string, rules ...string) {
				server.Do(append([]string{"ACL", "SETUSER", name, "on", ">secret"}, rules...)...)
			}

			user("mute", "~*", "resetchannels", "+@all")
			checks, status := diagnose(t, "--store", url("mute"))
			want(t, checks, "messages", statusFail, "NOPERM")
			if status != exitFailed {
				t.Errorf("no channels: status %d", status)
			}

			user("deaf", "~*", "&*", "+@all", "-publish")
			checks, _ = diagnose(t, "--store", url("deaf"), "--store-timeout", "500ms")
			want(t, checks, "exclusive", statusFail, "")

			user("plain", "~*", "&*", "+@all", "-eval", "-evalsha")
			checks, status = diagnose(t, "--store", url("plain"))
			want(t, checks, "scripts", statusFail, "NOPERM")
			want(t, checks, "exclusive", statusFail, "NOPERM")
			if status != exitFailed {
				t.Errorf("no scripts: status %d", status)
			}

			user("blind", "~lock:*", "~redisson_*", "~{lock:*", "~distsync_*", "&*", "+@all",
				"-info", "-time", "-scan")
			checks, _ = diagnose(t, "--store", url("blind"))
			want(t, checks, "exclusive", statusFail, "NOPERM")
			if c := checks["exclusive"]; !strings.Contains(c.Todo, "--prefix") {
				t.Errorf("the prefix isn't spoken of: %+v", c)
			}
			checks, status = diagnose(t, "--store", url("blind"), "--prefix", "lock:")
			want(t, checks, "exclusive", statusOK, "")
			want(t, checks, "server", statusWarn, "NOPERM")
			want(t, checks, "clock", statusWarn, "NOPERM")
			want(t, checks, "ls", statusWarn, "NOPERM")
			want(t, checks, "fenced", statusWarn, "can't be acquired")
			if status != 0 {
				t.Errorf("warnings: status %d", status)
			}

			server.Do("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
			user("admin", "~*", "&*", "+@all")
			checks, status = diagnose(t, "--store", url("admin"))
			want(t, checks, "eviction", statusWarn, "allkeys-lru")
			if status != 0 {
				t.Errorf("eviction without a limit: status %d", status)
			}
			server.Do("CONFIG", "SET", "maxmemory", "100mb")
			checks, status = diagnose(t, "--store", url("admin"))
			want(t, checks, "eviction", statusFail, "allkeys-lru")
			if status != exitFailed {
				t.Errorf("eviction: status %d", status)
			}
			server.Do("CONFIG", "SET", "maxmemory-policy", "noeviction", "maxmemory", "1500kb")
			checks, _ = diagnose(t, "--store", url("admin"))
			want(t, checks, "eviction", statusWarn, "% of the memory")
		})
	}
}

// Here an address is given as one server's, but the server is part of a larger system.
func TestDoctorTopologies(t *testing.T) {
	t.Parallel()
	t.Run("sentinel", func(t *testing.T) {
		t.Parallel()
		s := testservers.ValkeySentinel(t, 1, time.Minute)
		sentinels := strings.Join(s.SentinelAddrs(), ",")
		for _, url := range []string{"redis+sentinel://" + sentinels + "?master_name=" + s.Name,
			"valkey://" + sentinels + "?master_set=" + s.Name} {
			checks, status := diagnose(t, "--store", url)
			want(t, checks, "server", statusOK, "standalone")
			want(t, checks, "replicas", statusWarn, "1 replica")
			if status != 0 {
				t.Errorf("%s: status %d: %+v", url, status, checks)
			}
		}
		s.Master.Do("CONFIG", "SET", "min-replicas-to-write", "1")
		checks, _ := diagnose(t, "--store", "redis://"+s.Master.Addr)
		want(t, checks, "replicas", statusOK, "min-replicas-to-write")
		checks, _ = diagnose(t, "--store", "redis://"+s.SentinelAddrs()[0])
		want(t, checks, "server", statusFail, "sentinel")
		checks, _ = diagnose(t, "--store", "redis://"+s.Replicas[0].Addr)
		want(t, checks, "server", statusFail, "replica")
		want(t, checks, "exclusive", statusFail, "READONLY")
	})
	t.Run("cluster", func(t *testing.T) {
		t.Parallel()
		nodes := testservers.RedisCluster(t, 3)
		for _, url := range []string{"redis+cluster://" + nodes[0].Addr + "," + nodes[1].Addr,
			"valkey://" + nodes[2].Addr} {
			checks, status := diagnose(t, "--store", url)
			for name, c := range checks {
				if c.Status != statusOK {
					t.Errorf("%s: %s: %+v", url, name, c)
				}
			}
			want(t, checks, "cluster", statusOK, "all slots")
			if status != 0 {
				t.Errorf("%s: status %d", url, status)
			}
		}
		checks, status := diagnose(t, "--store", "redis://"+nodes[0].Addr)
		want(t, checks, "server", statusFail, "cluster")
		if status != exitFailed {
			t.Errorf("one server of a cluster: status %d", status)
		}
		web := client(t, "redis+cluster://"+nodes[0].Addr)
		for _, name := range []string{"a", "b", "c", "d", "e"} {
			must(t)(web.Locker(name).Acquire(t.Context()))
		}
		if got := inside(t.Context(), "ls", "--store",
			"valkey://"+nodes[0].Addr); strings.Count(got.stdout, "\n") != 6 {
			t.Errorf("ls in a cluster: %+v", got)
		}
	})
}

// An etcd that is full, and users.
func TestDoctorFindsInEtcd(t *testing.T) {
	t.Parallel()
	server := testservers.Etcd(t)
	cli, err := clientv3.New(clientv3.Config{
		Endpoints: []string{server.Addr}, Logger: zap.NewNop(),
	})
	if err != nil {
		t.Fatal(err)
	}
	defer cli.Close()
	ctx, cancel := context.WithTimeout(t.Context(), testservers.Patience)
	defer cancel()
	do := func(_ any, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}

	checks, status := diagnose(t, "--store", "etcd://"+server.Addr+",127.0.0.1:1",
		"--store-timeout", "2s")
	want(t, checks, "member", statusWarn, "127.0.0.1:1")
	want(t, checks, "quorum", statusOK, "single")
	if status != 0 {
		t.Errorf("a member that isn't there: status %d", status)
	}

	do(cli.UserAdd(ctx, "root", "secret"))
	do(cli.UserGrantRole(ctx, "root", "root"))
	do(cli.RoleAdd(ctx, "app"))
	do(cli.RoleGrantPermission(ctx, "app", "app/", clientv3.GetPrefixRangeEnd("app/"),
		clientv3.PermissionType(clientv3.PermReadWrite)))
	do(cli.UserAdd(ctx, "app", "secret"))
	do(cli.UserGrantRole(ctx, "app", "app"))
	do(cli.AuthEnable(ctx))
	checks, status = diagnose(t, "--store", "etcd://app:secret@"+server.Addr)
	want(t, checks, "auth", statusOK, "log in")
	want(t, checks, "exclusive", statusFail, "permission denied")
	if status != exitFailed {
		t.Errorf("no permission: status %d", status)
	}
	checks, status = diagnose(t, "--store", "etcd://app:secret@"+server.Addr, "--prefix", "app/")
	want(t, checks, "exclusive", statusOK, "")
	want(t, checks, "permits", statusOK, "")
	if status != 0 {
		t.Errorf("with the prefix: status %d: %+v", status, checks)
	}
	got := inside(ctx, "doctor", "--store", "etcd://app:hidden@"+server.Addr)
	if got.status != exitUnavailable || strings.Contains(got.stdout+got.stderr, "hidden") ||
		!strings.Contains(got.stdout, "invalid user ID or password") {
		t.Errorf("a wrong password: %+v", got)
	}
}

// A cluster of which a member is gone, and that is full.
func TestDoctorFindsInEtcdCluster(t *testing.T) {
	t.Parallel()
	members := testservers.EtcdCluster(t, 3, "--quota-backend-bytes", "1000000")
	var addrs []string
	for _, m := range members {
		addrs = append(addrs, m.Addr)
	}
	url := "etcd://" + strings.Join(addrs, ",")
	checks, status := diagnose(t, "--store", url)
	want(t, checks, "quorum", statusOK, "1 may fail")
	if status != 0 {
		t.Errorf("status %d: %+v", status, checks)
	}

	members[2].Kill()
	cli, err := clientv3.New(clientv3.Config{Endpoints: addrs[:2], Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	defer cli.Close()
	testservers.Until(t, "it is full", func() bool {
		_, err := cli.Put(t.Context(), "filler", strings.Repeat("x", 300_000))
		return errors.Is(err, rpctypes.ErrNoSpace)
	})
	checks, status = diagnose(t, "--store", url, "--store-timeout", "2s")
	want(t, checks, "member", statusWarn, members[2].Addr)
	want(t, checks, "quorum", statusWarn, "2 of 3")
	want(t, checks, "alarms", statusFail, "is full")
	want(t, checks, "space", statusWarn, "MB are used")
	want(t, checks, "exclusive", statusFail, "space exceeded")
	if status != exitFailed {
		t.Errorf("status %d", status)
	}

	members[1].Kill() // nobody has a majority any more
	got := inside(t.Context(), "doctor", "--store", url, "--store-timeout", "1s")
	if got.status != exitUnavailable || !strings.Contains(got.stdout, "fail  connect") {
		t.Errorf("without a majority: %+v", got)
	}
}
