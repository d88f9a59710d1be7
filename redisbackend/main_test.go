package redisbackend_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/internal/testservers"
	"github.com/seed951563bd/distsync/redisbackend"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	alice = "11111111-1111-1111-1111-111111111111:1"
	bob   = "22222222-2222-2222-2222-222222222222:7"

	lease = 30 * time.Second
)

// anywhere runs a test on miniredis, and on a real server where there is one.
func anywhere(t *testing.T, test func(t *testing.T, addr string)) {
	t.Helper()
	t.Run("miniredis", func(t *testing.T) { test(t, miniredis.RunT(t).Addr()) })
	t.Run("redis", func(t *testing.T) { test(t, testservers.Redis(t).Addr) })
}

func connect(t *testing.T, addr string, change ...func(*redis.Options)) *redis.Client {
	t.Helper()
	opts := &redis.Options{Addr: addr}
	for _, c := range change {
		c(opts)
	}
	client := redis.NewClient(opts)
	t.Cleanup(func() { client.Close() })
	return client
}

func as(user string) func(*redis.Options) {
	return func(o *redis.Options) { o.Username, o.Password = user, "secret" }
}

// session is a session with all that it can do.
type session interface {
	backend.Session
	backend.Notifier
	backend.BatchRenewer
}

func open(t *testing.T, client redis.UniversalClient, opts ...redisbackend.Option) session {
	t.Helper()
	s := redisbackend.New(client, opts...).Open().(session)
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

// steps are all steps, with what the tests do not look at left out.
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
	if _, ok := errors.AsType[*backend.Error](err); !ok || backend.KindOf(err) != kind {
		t.Errorf("error %v of kind %v, want kind %v", err, backend.KindOf(err), kind)
	}
}

// monitor records the commands that a server receives.
type monitor struct {
	t    *testing.T
	addr string
	conn net.Conn
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
	m := &monitor{t, addr, conn, bufio.NewReader(conn)}
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

// pubsubClient finds the connections in CLIENT LIST whose last command was about subscriptions.
var pubsubClient = regexp.MustCompile(` cmd=s?(un)?subscribe `)

var monitored = regexp.MustCompile(`^\+[0-9.]+ \[\d+ ([^]]+)\] (.*)$`)

// commands returns the commands since the last call that came from outside of scripts, but for
// those with which go-redis greets a server.
func (m *monitor) commands() (commands []string) {
	m.t.Helper()
	for _, line := range m.all() {
		match := monitored.FindStringSubmatch(line)
		if match[1] != "lua" && !strings.HasPrefix(match[2], `"hello"`) && !strings.HasPrefix(match[2], `"client"`) {
			commands = append(commands, match[2])
		}
	}
	return commands
}

// all returns what the server reports since the last call.
func (m *monitor) all() (lines []string) {
	m.t.Helper()
	const mark = `"ECHO" "mark"`
	if _, err := testservers.Do(m.addr, "ECHO", "mark"); err != nil {
		m.t.Fatal(err)
	}
	for {
		line := m.line()
		match := monitored.FindStringSubmatch(line)
		switch {
		case match == nil:
			m.t.Fatal("MONITOR speaks differently")
		case match[2] == mark:
			return lines
		default:
			lines = append(lines, line)
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
