package valkeybackend_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"maps"
	"net"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/valkey-io/valkey-go"
	"go.uber.org/goleak"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/internal/testservers"
	"github.com/seed951563bd/distsync/valkeybackend"
)

func TestMain(m *testing.M) {
	// A client of a cluster that has heard of a change looks into it some time later, even if it has
	// been closed meanwhile.
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/valkey-io/valkey-go.(*call).DelayDo.func1"))
}

const (
	alice = "11111111-1111-1111-1111-111111111111:1"
	bob   = "22222222-2222-2222-2222-222222222222:7"

	lease = 30 * time.Second
)

// onServers runs a test on both kinds of real server, where they are installed.
func onServers(t *testing.T, test func(t *testing.T, server *testservers.Server)) {
	t.Helper()
	t.Run("valkey", func(t *testing.T) { test(t, testservers.Valkey(t)) })
	t.Run("redis", func(t *testing.T) { test(t, testservers.Redis(t)) })
}

// anywhere runs a test on miniredis, too.
func anywhere(t *testing.T, test func(t *testing.T, addr string)) {
	t.Helper()
	t.Run("miniredis", func(t *testing.T) { test(t, miniredis.RunT(t).Addr()) })
	onServers(t, func(t *testing.T, server *testservers.Server) { test(t, server.Addr) })
}

type option = func(*valkey.ClientOption)

// connect returns a client with valkey-go's defaults that is closed with the test.
func connect(t *testing.T, addr string, change ...option) valkey.Client {
	t.Helper()
	client, err := dial(t, addr, change...)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// connectSimply returns a client that asks nothing of the server but the essential, for miniredis.
func connectSimply(t *testing.T, addr string, change ...option) valkey.Client {
	t.Helper()
	simple := func(o *valkey.ClientOption) { o.DisableCache, o.ForceSingleClient = true, true }
	return connect(t, addr, append([]option{simple}, change...)...)
}

// connectLater returns a client that has perhaps not reached the server.
func connectLater(t *testing.T, addr string, change ...option) valkey.Client {
	t.Helper()
	client, _ := dial(t, addr, append([]option{func(o *valkey.ClientOption) { o.ForceSingleClient = true }}, change...)...)
	if client == nil {
		t.Fatal("no client")
	}
	return client
}

func dial(t *testing.T, addr string, change ...option) (valkey.Client, error) {
	opts := valkey.ClientOption{InitAddress: []string{addr}}
	for _, c := range change {
		c(&opts)
	}
	client, err := valkey.NewClient(opts)
	if client != nil {
		t.Cleanup(client.Close)
	}
	return client, err
}

// as is for a user who has this password.
func as(user string) option {
	return func(o *valkey.ClientOption) { o.Username, o.Password = user, "secret" }
}

// impatient lets a client give up a server that hangs.
func impatient(o *valkey.ClientOption) {
	o.Dialer.Timeout = 200 * time.Millisecond
	o.Dialer.KeepAlive = 20 * time.Millisecond
	o.ConnWriteTimeout = 100 * time.Millisecond
}

// admin returns a client of another kind, to look at and change what is on a server.
func admin(t *testing.T, addr string) *redis.Client {
	t.Helper()
	client := redis.NewClient(&redis.Options{Addr: addr})
	t.Cleanup(func() { client.Close() })
	return client
}

// session is a session with all that it can do.
type session interface {
	backend.Session
	backend.Notifier
	backend.BatchRenewer
}

func open(t *testing.T, client valkey.Client) session {
	t.Helper()
	s := valkeybackend.New(client).Open().(session)
	t.Cleanup(func() { s.Close() })
	return s
}

func acquire(owner string) backend.AcquireRequest {
	return backend.AcquireRequest{Name: "n", Owner: owner, Lease: lease}
}

func reenter(owner string) backend.AcquireRequest {
	req := acquire(owner)
	req.Reentry = true
	return req
}

func release(owner string) backend.ReleaseRequest {
	return backend.ReleaseRequest{Name: "n", Owner: owner, Lease: lease}
}

func renew(owner string) backend.RenewRequest {
	return backend.RenewRequest{Name: "n", Owner: owner, Lease: lease}
}

// steps are all steps, with what the tests do not look at left out. Those that look only are last.
var steps = []struct {
	name string
	run  func(context.Context, session) error
}{
	{"acquire", func(ctx context.Context, s session) error {
		_, err := s.Acquire(ctx, acquire(alice))
		return err
	}},
	{"re-enter", func(ctx context.Context, s session) error {
		_, err := s.Acquire(ctx, reenter(alice))
		return err
	}},
	{"release", func(ctx context.Context, s session) error {
		_, err := s.Release(ctx, release(alice))
		return err
	}},
	{"renew", func(ctx context.Context, s session) error {
		_, err := s.Renew(ctx, renew(alice))
		return err
	}},
	{"renew in a batch", func(ctx context.Context, s session) (err error) {
		s.RenewBatch(ctx, []backend.RenewRequest{renew(alice)}, func(_ int, _ backend.RenewResult, e error) { err = e })
		return err
	}},
	{"force-release", func(ctx context.Context, s session) error {
		_, err := s.ForceRelease(ctx, backend.ForceReleaseRequest{Name: "n"})
		return err
	}},
	{"look", func(ctx context.Context, s session) error {
		_, err := s.Look(ctx, backend.LookRequest{Name: "n", Owner: alice})
		return err
	}},
	{"look for nobody", func(ctx context.Context, s session) error {
		_, err := s.Look(ctx, backend.LookRequest{Name: "n"})
		return err
	}},
}

const writing = 6 // how many of the steps write

func must[T any](t *testing.T) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func wantKind(t *testing.T, err error, kind backend.ErrorKind) {
	t.Helper()
	if !isKind(err, kind) {
		t.Errorf("error %v of kind %v, want kind %v", err, backend.KindOf(err), kind)
	}
}

func isKind(err error, kind backend.ErrorKind) bool {
	return err != nil && backend.KindOf(err) == kind
}

// wantHash checks the hash under a key, and that its time to live was set to ttl just now.
func wantHash(t *testing.T, client *redis.Client, key string, want map[string]string, ttl time.Duration) {
	t.Helper()
	if got := client.HGetAll(t.Context(), key).Val(); !maps.Equal(got, want) {
		t.Errorf("HGETALL %s = %v, want %v", key, got, want)
	}
	// The server keeps the moment of expiry exactly, so the slack is for a slow test.
	if got := client.PTTL(t.Context(), key).Val(); got > ttl || ttl > 0 && got < ttl/2 {
		t.Errorf("PTTL %s = %v, want just under %v", key, got, ttl)
	}
}

// monitor records the commands that a server receives.
type monitor struct {
	t    *testing.T
	addr string
	r    *bufio.Reader
}

func watch(t *testing.T, addr string) *monitor {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	conn.SetDeadline(time.Now().Add(testservers.Patience))
	io.WriteString(conn, "MONITOR\r\n")
	m := &monitor{t, addr, bufio.NewReader(conn)}
	if line := m.line(); line != "+OK" {
		t.Fatalf("MONITOR: %s", line)
	}
	return m
}

func (m *monitor) line() string {
	line, err := m.r.ReadString('\n')
	if err != nil {
		m.t.Fatal(err)
	}
	return strings.TrimSpace(line)
}

var (
	monitored = regexp.MustCompile(`^\+[0-9.]+ \[\d+ ([^]]+)\] (.*)$`)
	household = regexp.MustCompile(`(?i)^"(hello|client|ping|cluster|command)"`) // what clients send on their own
)

// commands returns the commands since the last call that came from outside of scripts and are not
// the clients' own.
func (m *monitor) commands() []string {
	m.t.Helper()
	const mark = `"ECHO" "mark"`
	if _, err := testservers.Do(m.addr, "ECHO", "mark"); err != nil {
		m.t.Fatal(err)
	}
	var commands []string
	for {
		match := monitored.FindStringSubmatch(m.line())
		switch {
		case match == nil:
			m.t.Fatal("MONITOR speaks differently")
		case match[2] == mark:
			return commands
		case match[1] == "lua", household.MatchString(match[2]):
		default:
			commands = append(commands, match[2])
		}
	}
}

// quoted writes a command as MONITOR does.
func quoted(args ...any) string {
	words := make([]string, len(args))
	for i, arg := range args {
		words[i] = fmt.Sprintf("%q", fmt.Sprint(arg))
	}
	return strings.Join(words, " ")
}
