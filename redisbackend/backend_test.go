package redisbackend_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
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
	anywhere(t, func(t *testing.T, addr string) {
		ctx := t.Context()
		client := connect(t, addr)
		s := open(t, client)
		look := func(owner string, held bool, count int) {
			t.Helper()
			got := wiretest.Must[backend.LookResult](t)(
				s.Look(ctx, backend.LookRequest{Name: "n", Owner: owner}))
			if got.Held != held || got.Count != count || held != (got.Remaining > 0) ||
				got.Remaining > lease {
				t.Errorf("look: %+v, want held %v, count %d", got, held, count)
			}
		}
		look(alice, false, 0)
		look("", false, 0)
		for count := 1; count <= 2; count++ {
			res := wiretest.Must[backend.AcquireResult](t)(s.Acquire(ctx, reenter(alice)))
			if !res.Acquired || res.Count != count {
				t.Errorf("acquire: %+v, want the count %d", res, count)
			}
		}
		look(alice, true, 2)
		look(bob, true, 0)
		look("", true, 0)
		if res := wiretest.Must[backend.AcquireResult](t)(
			s.Acquire(ctx, reenter(bob))); res.Acquired || res.Remaining <= 0 {
			t.Errorf("acquire by another: %+v", res)
		}
		if !wiretest.Must[backend.RenewResult](t)(s.Renew(ctx, renew(alice))).Held {
			t.Error("renew: lost")
		}
		if wiretest.Must[backend.RenewResult](t)(s.Renew(ctx, renew(bob))).Held {
			t.Error("renew by another: held")
		}
		for _, want := range []backend.ReleaseOutcome{backend.Left, backend.Freed,
			backend.NotHeld} {
			if res := wiretest.Must[backend.ReleaseResult](t)(
				s.Release(ctx, release(alice))); res.Outcome != want {
				t.Errorf("release: %v, want %v", res.Outcome, want)
			}
		}
		wiretest.Must[backend.AcquireResult](t)(s.Acquire(ctx, acquire(alice)))
		for _, want := range []bool{true, false} {
			res := wiretest.Must[backend.ForceReleaseResult](t)(
				s.ForceRelease(ctx, backend.ForceReleaseRequest{Name: "n"}))
			if res.Released != want {
				t.Errorf("force-release: %v, want %v", res.Released, want)
			}
		}

		client.HSet(ctx, "n", alice, 1) // without an expiry
		if res := wiretest.Must[backend.AcquireResult](t)(
			s.Acquire(ctx, acquire(bob))); res.Acquired || res.Remaining >= 0 {
			t.Errorf("acquire of what never ends: %+v", res)
		}
		if res := wiretest.Must[backend.LookResult](t)(
			s.Look(ctx, backend.LookRequest{Name: "n"})); !res.Held || res.Remaining >= 0 {
			t.Errorf("look at what never ends: %+v", res)
		}
	})
}

// The session can be closed while its locks are held, and the client stays open.
func TestReleaseAfterClose(t *testing.T) {
	anywhere(t, func(t *testing.T, addr string) {
		s := redisbackend.New(connect(t, addr)).Open()
		wiretest.Must[backend.AcquireResult](t)(s.Acquire(t.Context(), acquire(alice)))
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		if res := wiretest.Must[backend.ReleaseResult](t)(
			s.Release(t.Context(), release(alice))); res.Outcome != backend.Freed {
			t.Errorf("release: %v", res.Outcome)
		}
	})
}

// Every step refuses a value under the lock's name that isn't a lock, and leaves it alone.
func TestConflict(t *testing.T) {
	anywhere(t, func(t *testing.T, addr string) {
		ctx := t.Context()
		client := connect(t, addr)
		s := open(t, client)
		client.Set(ctx, "n", "precious", 0)
		for _, step := range steps {
			err := step.Run(ctx, s)
			if !errors.Is(err, backend.ErrConflict) {
				t.Errorf("%s: %v, want ErrConflict", step.Name, err)
			}
			wantKind(t, err, backend.Refused)
		}
		if got := client.Get(ctx, "n").Val(); got != "precious" {
			t.Errorf("the key holds %q now", got)
		}
		if ttl := client.PTTL(ctx, "n").Val(); ttl != -1 {
			t.Errorf("the key expires in %v", ttl)
		}
	})
}

func TestKindOfLock(t *testing.T) {
	s := open(t, connect(t, "127.0.0.1:1"))
	_, err := s.Acquire(t.Context(), backend.AcquireRequest{
		Kind: 99, Name: "n", Owner: alice, Lease: lease,
	})
	wantKind(t, err, backend.Refused)
}

// A server forgets its scripts when it restarts.
func TestScriptsForgotten(t *testing.T) {
	t.Parallel()
	anywhere(t, func(t *testing.T, addr string) {
		ctx := t.Context()
		// miniredis interprets thousands of scripts slowly
		client := connect(t, addr, func(o *redis.Options) { o.ReadTimeout = testservers.Patience })
		s := open(t, client)
		for _, step := range steps {
			client.ScriptFlush(ctx)
			if err := step.Run(ctx, s); err != nil {
				t.Errorf("%s: %v", step.Name, err)
			}
		}

		client.FlushAll(ctx)
		client.ScriptFlush(ctx)
		if res := wiretest.Must[backend.AcquireResult](t)(
			s.Acquire(ctx, reenter(alice))); res.Count != 1 {
			t.Errorf("acquired %d times at once", res.Count)
		}

		client.ScriptFlush(ctx)
		reqs := make([]backend.RenewRequest, 2500) // more than one pipeline
		for i := range reqs {
			reqs[i] = renew(alice)
			if i%2 == 1 {
				reqs[i].Owner = bob
			}
		}
		var mu sync.Mutex
		answers := make([]int, len(reqs))
		s.RenewBatch(ctx, reqs, func(i int, res backend.RenewResult, err error) {
			mu.Lock()
			defer mu.Unlock()
			answers[i]++
			if err != nil || res.Held != (i%2 == 0) {
				t.Errorf("renewal %d: %+v, %v", i, res, err)
			}
		})
		if slices.Min(answers) != 1 || slices.Max(answers) != 1 {
			t.Error("not every renewal was answered once")
		}
	})
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
