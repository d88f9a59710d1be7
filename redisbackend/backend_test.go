package redisbackend_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/contract/faults"
	"github.com/seed951563bd/distsync/internal/test/testservers"
	"github.com/seed951563bd/distsync/internal/test/wiretest"
	"github.com/seed951563bd/distsync/redisbackend"
)

func TestNewPanics(t *testing.T) {
	ring := redis.NewRing(&redis.RingOptions{})
	defer ring.Close()
	client := connect(t, "127.0.0.1:1")
	pipeliner, err := client.AutoPipeline()
	if err != nil {
		t.Fatal(err)
	}
	for name, client := range map[string]redis.UniversalClient{
		"nil client": nil, "nil client: typed": (*redis.Client)(nil),
		"nil client: cluster": (*redis.ClusterClient)(nil),
		"Ring":                ring, "AutoPipeliner": pipeliner,
		"struct": struct{ redis.UniversalClient }{client},
	} {
		t.Run(name, func(t *testing.T) {
			defer func() {
				want, _, _ := strings.Cut(name, ":")
				text, _ := recover().(string)
				if !strings.HasPrefix(text, "redisbackend: ") || !strings.Contains(text, want) {
					t.Errorf("panic %q, want one that says %q", text, want)
				}
			}()
			redisbackend.New(client)
		})
	}
}

func TestSteps(t *testing.T) {
	anywhere(t, func(t *testing.T, addr string) { wiretest.EachStep(t, addr, on) })
}

func TestReleaseAfterClose(t *testing.T) {
	anywhere(t, func(t *testing.T, addr string) { wiretest.ReleaseAfterClose(t, addr, on) })
}

func TestConflict(t *testing.T) {
	anywhere(t, func(t *testing.T, addr string) { wiretest.Conflict(t, addr, on) })
}

func TestScriptsForgotten(t *testing.T) {
	t.Parallel()
	anywhere(t, func(t *testing.T, addr string) {
		wiretest.ScriptsForgotten(t, addr, func(t testing.TB, addr string) backend.Backend {
			return redisbackend.New(connect(t, addr, func(o *redis.Options) {
				// miniredis interprets thousands of scripts slowly
				o.ReadTimeout = testservers.Patience
			}))
		})
	})
}

func TestKindOfLock(t *testing.T) {
	s := open(t, connect(t, "127.0.0.1:1"))
	_, err := s.Acquire(t.Context(), backend.AcquireRequest{
		Kind: 99, Name: "n", Owner: alice, Lease: lease,
	})
	wantKind(t, err, backend.Refused)
}

// A step whose answer is lost has been carried out once, and says that it doesn't know.
func TestLostReply(t *testing.T) {
	anywhere(t, func(t *testing.T, addr string) {
		ctx := t.Context()
		direct := connect(t, addr)
		p := wiretest.NewProxy(t, addr, faults.RESP)
		client := connect(t, p.Addr(), func(o *redis.Options) {
			o.MaxRetries = 10
			o.MinRetryBackoff = -1
		})
		s := open(t, client)
		holds := func() string { return direct.HGet(ctx, "n", alice).Val() }

		for i, step := range []struct {
			name string
			run  func() error
			want string
		}{
			{"acquire", func() error { _, err := s.Acquire(ctx, acquire(alice)); return err }, "2"},
			{"re-enter", func() error {
				_, err := s.Acquire(ctx, reenter(alice))
				return err
			}, "3"},
			{"release", func() error { _, err := s.Release(ctx, release(alice)); return err }, "2"},
		} {
			if i == 0 { // connections and scripts, before answers are lost
				wiretest.Must[backend.AcquireResult](t)(s.Acquire(ctx, reenter(alice)))
				wiretest.Must[backend.AcquireResult](t)(s.Acquire(ctx, acquire(alice)))
				wiretest.Must[backend.ReleaseResult](t)(s.Release(ctx, release(alice)))
			} else { // new connections for both kinds of call
				client.Ping(ctx)
				client.Pipelined(ctx, func(p redis.Pipeliner) error { p.Ping(ctx); return nil })
			}
			p.LoseReply(wiretest.OnLock)
			wantKind(t, step.run(), backend.Unknown)
			testservers.Until(t, step.name+" is carried out", func() bool {
				return holds() == step.want
			})
		}
		// A step that was repeated would be carried out before this one.
		wiretest.Must[backend.AcquireResult](t)(s.Acquire(ctx, acquire(alice)))
		if got := holds(); got != "3" {
			t.Errorf("%s holds at the end, want 3", got)
		}
	})
}

func TestErrorsOfTheClient(t *testing.T) {
	t.Run("nobody listens", func(t *testing.T) {
		addr := fmt.Sprintf("127.0.0.1:%d", testservers.FreePort(t))
		s := open(t, connect(t, addr, func(o *redis.Options) { o.DialerRetries = 1 }))
		for _, step := range steps {
			wantKind(t, step.Run(t.Context(), s), backend.Retry)
		}
		_, err := s.Subscribe(t.Context(), backend.SubscribeRequest{Name: "n", Wake: func(
			backend.Wakeup,
		) {
		}})
		wantKind(t, err, backend.Retry)
	})
	t.Run("closed", func(t *testing.T) {
		client := redis.NewClient(&redis.Options{
			Addr: "127.0.0.1:1", DialerRetries: 1, PoolSize: 1,
		})
		s := open(t, client)
		wantKind(t, steps[0].Run(t.Context(), s), backend.Retry) // go-redis remembers why
		client.Close()
		for _, step := range steps {
			wantKind(t, step.Run(t.Context(), s), backend.Refused)
		}
	})
	t.Run("too late", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		s := open(t, connect(t, "127.0.0.1:1"))
		for _, step := range steps {
			err := step.Run(ctx, s)
			wantKind(t, err, backend.Retry)
			if !errors.Is(err, context.Canceled) {
				t.Errorf("%s: %v, want context.Canceled in it", step.Name, err)
			}
		}
	})
}

// A server that hangs may yet carry out a step that was written to it. It doesn't answer new
// connections, so nothing is written to those.
func TestServerHangs(t *testing.T) {
	t.Parallel()
	server := testservers.Redis(t)
	var sessions []session
	for _, step := range steps { // each with a connection that stands
		client := connect(t, server.Addr)
		if err := step.Run(t.Context(), open(t, client)); err != nil {
			t.Fatal(err)
		}
		sessions = append(sessions, open(t, client.WithTimeout(50*time.Millisecond)))
	}
	server.Stop()
	defer server.Cont()
	for i, step := range steps {
		wantKind(t, step.Run(t.Context(), sessions[i]), backend.Unknown)
	}
	for i, step := range steps[:5] {
		wantKind(t, step.Run(t.Context(), sessions[i]), backend.Retry)
	}
}

func TestErrorsOfTheServer(t *testing.T) { wiretest.ServerErrors(t, this, testservers.Redis(t)) }

func TestWrongPassword(t *testing.T) {
	server := testservers.Redis(t)
	s := open(t, connect(t, server.Addr, as("nobody")))
	for _, step := range steps {
		wantKind(t, step.Run(t.Context(), s), backend.Refused)
	}
}

// The server's clock is its own business. This needs miniredis, whose clock can be set.
func TestServerClock(t *testing.T) {
	for _, off := range []time.Duration{time.Hour, -time.Hour} {
		ctx := t.Context()
		server := miniredis.RunT(t)
		server.SetTime(time.Now().Add(off))
		client := connect(t, server.Addr())
		s := open(t, client)
		wiretest.Must[backend.AcquireResult](t)(s.Acquire(ctx, acquire(alice)))
		wantHash(t, client, "n", map[string]string{alice: "1"}, lease)
		wiretest.Must[backend.RenewResult](t)(s.Renew(ctx, renew(alice)))
		wantHash(t, client, "n", map[string]string{alice: "1"}, lease)
		server.FastForward(lease)
		if res := wiretest.Must[backend.AcquireResult](t)(
			s.Acquire(ctx, acquire(bob))); !res.Acquired {
			t.Errorf("clock off by %v: the lease does not end", off)
		}
	}
}
