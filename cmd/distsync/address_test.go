package main

import (
	"crypto/tls"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed951563bd/distsync/internal/test/testservers"
)

// Wrong URLs are refused with a reason, and without what may be a password.
func TestWrongURLs(t *testing.T) {
	for url, want := range map[string]string{
		"":                                "DISTSYNC_STORE",
		"memory://":                       "memory",
		"memory:":                         "memory",
		"localhost:6379":                  "scheme",
		"secret@localhost":                "scheme",
		"://secret@localhost":             "scheme",
		"Secret://localhost":              "scheme",
		"http://u:secret@localhost":       "http://",
		"redis+fast://u:secret@localhost": "redis+cluster://",
		"redis://":                        "no host",
		"redis://u:secret@":               "no host",
		"redis://u:sec/ret@localhost":     "%2F",
		"redis://u:sec?ret@localhost":     "%3F",
		"redis://u:sec#ret@localhost":     "%23",
		"redis://u:secret@localhost?client_name=a@b":               "%40",
		"redis://u:sec%ret@localhost":                              "%25",
		"redis://u:secret@localhost:port":                          `host "localhost"`,
		"redis://u:secret@localhost:123456":                        `host "localhost"`,
		"redis://u:secret@::1:6379":                                "[::1]",
		"redis://u:secret@host name":                               "host name",
		"redis://u:secret@a\x1b[31m":                               `a\x1b`,
		"redis://u:secret@a,b":                                     "redis+cluster://",
		"redis://u:secret@a,":                                      "a host is empty",
		"redis+cluster://u:secret@a,":                              "a host is empty",
		"redis://u:secret@a/x":                                     "database",
		"redis://u:secret@a/1/2":                                   "path",
		"redis://u:secret@a?wrong=1":                               "wrong",
		"redis://u:secret@a?db=%zz":                                "hexadecimal",
		"redis://u:secret@a?max_retries=x":                         "max_retries",
		"redis://u:secret":                                         `host "u"`,
		"redis://:sec:ret":                                         `host ""`,
		"unix://":                                                  "unix socket",
		"redis+sentinel://u:secret@a,b":                            "master_name",
		"redis+sentinel://a?master_name=m&password=secret&wrong=1": "wrong",
		"redis+sentinel://a?master_name=m&replica_only=true":       "master",
		"redis+sentinel://a?master_name=m&route_randomly=true":     "master",
		"redis+cluster://u:secret@a?wrong=1":                       "wrong",
		"valkey://u:secret@a/x":                                    "database",
		"valkey://u:secret@a?wrong=1":                              "wrong",
		"valkey://u:secret@a?dial_timeout=x":                       "dial",
		"etcd://u:secret@a/path":                                   "--prefix",
		"etcd://u:secret@a?wrong=1":                                "wrong",
		"etcd://u:secret@a?skip_verify=true":                       "etcds://",
		"etcds://u:secret@a?skip_verify=maybe":                     "maybe",
		"etcds://u:secret@a?cacert=/none":                          "/none",
		"etcds://u:secret@a?cacert=/dev/null":                      "no certificate",
		"etcds://u:secret@a?cert=/none":                            "cert",
	} {
		got := inside(t.Context(), "ls", "--store", url)
		if got.status != exitUsage || got.stdout != "" || !strings.Contains(got.stderr, want) ||
			strings.Contains(got.stderr, "ret") && strings.Contains(got.stderr, "sec") {
			t.Errorf("%s: status %d, %swant %d and %q, and no password", url, got.status,
				got.stderr, exitUsage, want)
		}
		if strings.Count(got.stderr, "\n") != 1 || strings.ContainsAny(got.stderr, "\x1b") {
			t.Errorf("%s: not a line of text: %q", url, got.stderr)
		}
	}
}

// No message about a URL cites the part before its @, in any spelling.
func FuzzPasswords(f *testing.F) {
	for _, text := range []string{"", "/", "?", "#", "%", "@", ":", ",", "[", "]", " ", "\x1b",
		"%zz", "a@b", "?x=", "//", "\\"} {
		f.Add("redis", text, "")
		f.Add("etcd+x", "", text)
		f.Add("valkey", text, text)
	}
	f.Fuzz(func(t *testing.T, scheme, before, after string) {
		const secret = "6379-secret"
		if strings.Contains(scheme, secret) {
			return
		}
		a, err := parseStore(scheme + "://u:" + before + secret + after + "@localhost:1")
		if err != nil && strings.Contains(err.Error(), secret) {
			t.Error(err)
		}
		if err == nil && (strings.Contains(a.String(), secret) || a.path+a.query != "") {
			t.Errorf("%+v", a)
		}
	})
}

// Correct URLs give these addresses.
func TestURLs(t *testing.T) {
	for _, c := range []struct{ url, scheme, want string }{
		{"redis://localhost", "redis", "redis://localhost:6379"},
		{"redis://u:p%40%2F@[::1]:1234/3?dial_timeout=2s", "redis",
			"redis://u:p%40%2F@[::1]:1234/3?dial_timeout=2s"},
		{"redis://:p@[::1]", "redis", "redis://:p@[::1]:6379"},
		{"redis+sentinel://a,b:1,c?master_name=m", "redis",
			"redis://a:26379?master_name=m&addr=b%3A1&addr=c%3A26379"},
		{"valkey://a", "valkey", "valkey://a:6379"},
		{"unix:///var/run/redis.sock?db=2", "unix", "unix:///var/run/redis.sock?db=2"},
	} {
		a, err := parseAddress(c.url)
		if err != nil {
			t.Errorf("%s: %v", c.url, err)
			continue
		}
		if got := a.url(c.scheme); got != c.want {
			t.Errorf("%s is passed on as %s, want %s", c.url, got, c.want)
		}
	}

	g := &global{timeout: time.Second}
	s := open(t, g, "rediss+cluster://alice:se%2Fcret@a:1,b?read_timeout=2s")
	o := s.redis.(*redis.ClusterClient).Options()
	if strings.Join(o.Addrs, " ") != "a:1 b:6379" || o.Username != "alice" ||
		o.Password != "se/cret" || o.TLSConfig == nil || o.ReadTimeout != 2*time.Second {
		t.Errorf("cluster: %+v", o)
	}
	s = open(t, g, "redis://bob:secret@a/5")
	if o := s.redis.(*redis.Client).Options(); o.Addr != "a:6379" || o.Username != "bob" ||
		o.Password != "secret" || o.DB != 5 || o.ReadTimeout != time.Second {
		t.Errorf("one server: %+v", o)
	}
	s = open(t, g, "redis://a?master_name=m")
	if o := s.redis.(*redis.Client).Options(); o.Addr != "FailoverClient" {
		t.Errorf("with a master's name it isn't Sentinel, but %s", o.Addr)
	}
}

// open opens a store on Redis, without asking it.
func open(t *testing.T, g *global, url string) *store {
	t.Helper()
	a, err := parseStore(url)
	if err != nil {
		t.Fatal(err)
	}
	s := &store{address: a}
	if err := s.openRedis(g); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.close)
	return s
}

func TestEtcdTLS(t *testing.T) {
	parse := func(url string) (*tls.Config, error) {
		a, err := parseStore(url)
		if err != nil {
			t.Fatal(err)
		}
		return a.etcdTLS()
	}
	if c, err := parse("etcd://a"); c != nil || err != nil {
		t.Errorf("without TLS: %v, %v", c, err)
	}
	c, err := parse("etcds://a?server_name=b&skip_verify=true")
	if err != nil || c.ServerName != "b" || !c.InsecureSkipVerify {
		t.Errorf("with TLS: %+v, %v", c, err)
	}
}

// These servers don't exist, or accept and never answer, or refuse.
func TestUnreachable(t *testing.T) {
	t.Parallel()
	server := testservers.Redis(t)
	server.Do("CONFIG", "SET", "requirepass", "secret")
	silent := testservers.Redis(t)
	silent.Stop()
	t.Cleanup(silent.Cont)
	socket := filepath.Join(t.TempDir(), "none.sock")
	for _, c := range []struct{ url, want string }{
		{"redis://u:hidden@127.0.0.1:1", "refused"},
		{"redis+cluster://u:hidden@127.0.0.1:1,127.0.0.1:2", "refused"},
		{"redis+sentinel://u:hidden@127.0.0.1:1?master_name=m&password=hidden", "sentinel"},
		{"valkey://u:hidden@127.0.0.1:1", "refused"},
		{"etcd://u:hidden@127.0.0.1:1", "refused"},
		{"etcds://u:hidden@127.0.0.1:1", "refused"},
		{"unix://" + socket, "no such file"},
		{"redis://u:hidden@" + silent.Addr, "no answer within 500ms"},
		{"redis+cluster://u:hidden@" + silent.Addr, "no answer within 500ms"},
		{"valkey://u:hidden@" + silent.Addr, "no answer within 500ms"},
		{"etcd://u:hidden@" + silent.Addr, "no answer within 500ms"},
		{"redis://u:hidden@" + server.Addr, "refuses this user or password: WRONGPASS"},
		{"redis://" + server.Addr, "refuses this user or password: NOAUTH"},
		{"valkey://u:hidden@" + server.Addr, "refuses this user or password: WRONGPASS"},
		{"rediss://u:hidden@" + server.Addr, "no answer within 500ms"},
		{"redis+cluster://:secret@" + server.Addr, "cluster"},
	} {
		t.Run(c.url, func(t *testing.T) {
			t.Parallel()
			timeout := "500ms"
			if !strings.Contains(c.want, timeout) {
				timeout = "20s"
			}
			got := inside(t.Context(), "ls", "--store-timeout", timeout, "--store", c.url)
			if strings.HasPrefix(c.want, "refuses this user or password") {
				if asked := inside(t.Context(), "doctor", "--store",
					c.url); asked.status != exitUnavailable ||
					!strings.Contains(asked.stdout, "→ are the user and the password") {
					t.Errorf("doctor: %+v", asked)
				}
			}
			if got.status != exitUnavailable || got.stdout != "" ||
				!strings.Contains(got.stderr, c.want) {
				t.Errorf("status %d, %swant %d and %q", got.status, got.stderr, exitUnavailable,
					c.want)
			}
			if strings.Contains(got.stderr, "hidden") || strings.Contains(got.stderr, "secret") {
				t.Errorf("the password is shown: %s", got.stderr)
			}
		})
	}
}
