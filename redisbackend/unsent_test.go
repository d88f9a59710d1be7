package redisbackend_test

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/contract/faults"
	"github.com/seed951563bd/distsync/internal/test/testservers"
	"github.com/seed951563bd/distsync/internal/test/wiretest"
	"github.com/seed951563bd/distsync/redisbackend"
)

// breaker is a limiter that lets nothing pass.
type breaker struct{ err error }

func (b breaker) Allow() error     { return b.err }
func (breaker) ReportResult(error) {}

// A null that somebody else was answered with is no answer to a step.
func TestNullsOfOthers(t *testing.T) {
	anywhere(t, func(t *testing.T, addr string) {
		others := connect(t, addr)
		absent := func(ctx context.Context) error { return others.Get(ctx, "absent").Err() }
		for name, change := range map[string]func(*redis.Options){
			"dialer": func(o *redis.Options) {
				o.DialerRetries = 1
				o.Dialer = func(ctx context.Context, _, _ string) (net.Conn, error) {
					return nil, absent(ctx)
				}
			},
			"credentials": func(o *redis.Options) {
				o.CredentialsProviderContext = func(ctx context.Context) (string, string, error) {
					return "", "", absent(ctx)
				}
			},
			"OnConnect": func(o *redis.Options) {
				o.OnConnect = func(ctx context.Context, _ *redis.Conn) error { return absent(ctx) }
			},
			"limiter": func(o *redis.Options) { o.Limiter = breaker{redis.Nil} },
		} {
			t.Run(name, func(t *testing.T) {
				s := open(t, connect(t, addr, change))
				for i, step := range steps {
					err := step.Run(t.Context(), s)
					if err == nil || errors.Is(err, redis.Nil) {
						t.Errorf("%s: %v", step.Name, err)
					}
					if i < 5 {
						wantKind(t, err, backend.Retry)
					}
				}
			})
		}
		if n := others.DBSize(t.Context()).Val(); n != 0 {
			t.Errorf("%d keys, though nothing was sent", n)
		}
	})
}

// Nor is it where a server has answered: that another has the slot.
func TestNullOnTheWayToAnotherNode(t *testing.T) {
	t.Parallel()
	nodes := testservers.RedisCluster(t, 2)
	_, to := wiretest.Owners(t, nodes, "n")
	var sessions []session
	for range steps[:5] {
		s := open(t, connectCluster(t, nodes, func(o *redis.ClusterOptions) {
			o.DialerRetries = 1
			o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
				if addr == to.Addr {
					return nil, redis.Nil
				}
				return new(net.Dialer).DialContext(ctx, network, addr)
			}
		}))
		// where it is now
		wiretest.Must[backend.LookResult](t)(s.Look(t.Context(), backend.LookRequest{Name: "n"}))
		sessions = append(sessions, s)
	}
	wiretest.NewMove(t, nodes, "n").Finish()
	for i, step := range steps[:5] {
		wantKind(t, step.Run(t.Context(), sessions[i]), backend.Retry)
	}
}

// A step that never left the process was certainly not carried out, and its error says so.
func TestNeverSent(t *testing.T) {
	plain := testservers.Redis(t).Addr
	for name, c := range map[string]struct {
		change func(*redis.Options)
		kind   backend.ErrorKind
	}{
		"circuit breaker": {func(o *redis.Options) {
			o.Limiter = breaker{errors.New("open")}
		}, backend.Retry},
		"TLS to a server without": {func(o *redis.Options) {
			o.DialerRetries = 1
			o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
				conn, err := new(net.Dialer).DialContext(ctx, network, addr)
				if err != nil {
					return nil, err
				}
				client := tls.Client(conn, &tls.Config{InsecureSkipVerify: true})
				conn.Close() // as the server would, after a while
				return client, client.HandshakeContext(ctx)
			}
		}, backend.Retry},
		"OnConnect": {func(o *redis.Options) {
			o.OnConnect = func(ctx context.Context, c *redis.Conn) error {
				return c.EvalSha(ctx, "unknown", nil).Err()
			}
		}, backend.Retry},
		"no such database": {func(o *redis.Options) { o.DB = 99 }, backend.Refused},
	} {
		t.Run(name, func(t *testing.T) {
			s := open(t, connect(t, plain, c.change))
			for _, step := range steps[:5] {
				wantKind(t, step.Run(t.Context(), s), c.kind)
			}
		})
	}
	t.Run("waiting for a connection", func(t *testing.T) {
		client := connect(t, plain, func(o *redis.Options) {
			o.PoolSize, o.PipelinePoolSize = 1, -1
		})
		only := client.Conn() // nobody else gets one
		defer only.Close()
		if err := only.Ping(t.Context()).Err(); err != nil {
			t.Fatal(err)
		}
		s := open(t, client)
		for _, step := range steps[:5] {
			ctx, cancel := context.WithCancel(t.Context())
			go cancel()
			wantKind(t, step.Run(ctx, s), backend.Retry)
		}
	})
}

// A re-entry that was sent on to another node and carried out there, and whose reply was lost,
// doesn't say what the first node has said.
func TestStaleRedirection(t *testing.T) {
	t.Parallel()
	nodes := testservers.RedisCluster(t, 2)
	direct := connectCluster(t, nodes)
	m := wiretest.NewMove(t, nodes, "n")
	p := wiretest.NewProxy(t, m.To.Addr, faults.RESP)
	client := connectCluster(t, nodes, func(o *redis.ClusterOptions) {
		o.Addrs = []string{m.From.Addr}
		o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
			if addr == m.To.Addr {
				addr = p.Addr()
			}
			return new(net.Dialer).DialContext(ctx, network, addr)
		}
	})
	s := open(t, client)
	wiretest.Must[backend.AcquireResult](t)(s.Acquire(t.Context(), acquire(alice)))
	m.Key() // and the slot is still the first node's
	if res := wiretest.Must[backend.AcquireResult](t)(
		s.Acquire(t.Context(), reenter(alice))); res.Count != 2 {
		t.Fatalf("%d holds after a re-entry", res.Count)
	}
	p.LoseReply(func(r faults.Request) bool { return strings.EqualFold(r.Words[0], "asking") })
	_, err := s.Acquire(t.Context(), reenter(alice))
	wantKind(t, err, backend.Unknown)
	m.Finish()
	testservers.Until(t, "the re-entry is carried out", func() bool {
		return direct.HGet(t.Context(), "n", alice).Val() == "3"
	})
}

// Of what it was sent a client that is closed doesn't know what becomes.
func TestClosedMeanwhile(t *testing.T) {
	server := testservers.Redis(t)
	for _, step := range steps[:2] {
		t.Run(step.Name, func(t *testing.T) {
			p := wiretest.NewProxy(t, server.Addr, faults.RESP)
			client := connect(t, p.Addr())
			s := open(t, client)
			if err := step.Run(t.Context(), s); err != nil { // makes a connection
				t.Fatal(err)
			}
			server.Do("FLUSHALL")
			p.Block(faults.ToClient)
			done := make(chan error)
			go func() { done <- step.Run(t.Context(), s) }()
			testservers.Until(t, "it is carried out", func() bool {
				return server.Do("EXISTS", "n") == "1"
			})
			client.Close()
			wantKind(t, <-done, backend.Unknown)
			wantKind(t, step.Run(t.Context(), s), backend.Refused)
		})
	}
}

// hooks are functions around single commands and pipelines.
type hooks struct {
	redis.Hook
	around func(ctx context.Context, cmds []redis.Cmder, send func() error) error
}

func (hooks) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h hooks) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		return h.around(ctx, []redis.Cmder{cmd}, func() error { return next(ctx, cmd) })
	}
}

func (h hooks) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		return h.around(ctx, cmds, func() error { return next(ctx, cmds) })
	}
}

// rewriting is a hook that makes plain text of all that is sent.
func rewriting(_ context.Context, cmds []redis.Cmder, send func() error) error {
	for _, cmd := range cmds {
		for i, arg := range cmd.Args() {
			if text, ok := arg.(interface{ String() string }); ok {
				cmd.Args()[i] = text.String()
			}
		}
	}
	return send()
}

// Where a hook has changed what would have told whether it was sent, nothing is known.
func TestHookRewritesCommands(t *testing.T) {
	server := testservers.Redis(t)
	p := wiretest.NewProxy(t, server.Addr, faults.RESP)
	client := connect(t, p.Addr())
	client.AddHook(hooks{around: rewriting})
	s := open(t, client)
	for _, step := range steps { // the server doesn't know the scripts
		if err := step.Run(t.Context(), s); err != nil {
			t.Errorf("%s: %v", step.Name, err)
		}
	}
	for _, step := range steps[:5] {
		client.Ping(t.Context()) // a new connection
		client.Pipelined(t.Context(), func(p redis.Pipeliner) error {
			p.Ping(t.Context())
			return nil
		})
		p.LoseReply(wiretest.OnLock)
		wantKind(t, step.Run(t.Context(), s), backend.Unknown)
	}
}

// A hook's own error after a step was carried out says nothing of the step.
func TestHookFails(t *testing.T) {
	t.Parallel()
	fails := false
	around := hooks{around: func(_ context.Context, _ []redis.Cmder, send func() error) error {
		err := send()
		if fails {
			err = errors.New("no room for metrics")
		}
		return err
	}}
	single := connect(t, testservers.Redis(t).Addr)
	single.AddHook(around)
	cluster := connectCluster(t, testservers.RedisCluster(t, 2))
	cluster.AddHook(around)
	for name, client := range map[string]redis.UniversalClient{
		"one server": single,
		"cluster":    cluster,
	} {
		t.Run(name, func(t *testing.T) {
			s := redisbackend.New(client).Open().(session)
			fails = false
			for _, step := range steps { // makes the scripts known
				if err := step.Run(t.Context(), s); err != nil {
					t.Errorf("%s: %v", step.Name, err)
				}
			}
			fails = true
			_, err := s.Acquire(t.Context(), acquire(alice))
			wantKind(t, err, backend.Unknown)
			_, err = s.Renew(t.Context(), renew(alice))
			wantKind(t, err, backend.Unknown)
			_, err = s.Release(t.Context(), release(bob)) // a null
			wantKind(t, err, backend.Unknown)
			s.Close()
		})
	}
}
