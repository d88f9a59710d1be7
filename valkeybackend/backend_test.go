package valkeybackend_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/valkey-io/valkey-go"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/contract/faults"
	"github.com/seed951563bd/distsync/internal/test/testservers"
	"github.com/seed951563bd/distsync/internal/test/wiretest"
	"github.com/seed951563bd/distsync/valkeybackend"
)

func TestNewPanics(t *testing.T) {
	t.Parallel()
	wantPanic := func(t *testing.T, client valkey.Client, want string) {
		t.Helper()
		defer func() {
			text, _ := recover().(string)
			if !strings.HasPrefix(text, "valkeybackend: ") || !strings.Contains(text, want) {
				t.Errorf("panic %q, want one that says %q", text, want)
			}
		}()
		valkeybackend.New(client)
	}
	t.Run("nil", func(t *testing.T) { wantPanic(t, nil, "nil client") })
	t.Run("typed nil", func(t *testing.T) { wantPanic(t, (*oneError)(nil), "nil client") })

	mortal := func(o *valkey.ClientOption) { o.ConnLifetime = time.Hour }
	t.Run("connections that expire", func(t *testing.T) {
		wantPanic(t, connect(t, testservers.Valkey(t).Addr, mortal), "ConnLifetime")
	})
	t.Run("connections that expire, with redirects", func(t *testing.T) {
		redirected := func(o *valkey.ClientOption) { o.Standalone.EnableRedirect = true }
		wantPanic(t, connect(t, testservers.Valkey(t).Addr, mortal, redirected), "ConnLifetime")
	})
	t.Run("connections that expire, of a cluster", func(t *testing.T) {
		wantPanic(t, connect(t, testservers.ValkeyCluster(t, 1)[0].Addr, mortal), "ConnLifetime")
	})
}

// Every way to use one server works.
func TestModes(t *testing.T) {
	server := testservers.Valkey(t)
	for name, change := range map[string]option{
		"single":      func(*valkey.ClientOption) {},
		"RESP2":       func(o *valkey.ClientOption) { o.AlwaysRESP2, o.DisableCache = true, true },
		"redirects":   func(o *valkey.ClientOption) { o.Standalone.EnableRedirect = true },
		"no pipeline": func(o *valkey.ClientOption) { o.DisableAutoPipelining = true },
	} {
		t.Run(name, func(t *testing.T) {
			s := open(t, connect(t, server.Addr, change))
			l := subscribe(t, s, "n")
			for _, step := range steps {
				if err := step.Run(t.Context(), s); err != nil {
					t.Errorf("%s: %v", step.Name, err)
				}
			}
			l.Wait()
		})
	}
}

// A caller that waits for a connection which another caller is making doesn't fail when the other
// leaves, whether that one is cancelled or out of time.
func TestConnectionOfAnother(t *testing.T) {
	for _, reason := range []error{context.Canceled, context.DeadlineExceeded} {
		t.Run(reason.Error(), func(t *testing.T) {
			server := testservers.Valkey(t)
			var dials atomic.Int32
			s := open(t, connectLater(t, server.Addr, func(o *valkey.ClientOption) {
				o.PipelineMultiplex = -1 // one connection for all
				o.DialCtxFn = func(
					ctx context.Context, addr string, d *net.Dialer, _ *tls.Config,
				) (net.Conn, error) {
					switch dials.Add(1) {
					case 1: // that of the constructor
						return nil, errors.New("not yet")
					case 2:
						<-ctx.Done()
					}
					return d.DialContext(ctx, "tcp", addr)
				}
			}))
			leaving := &ending{t.Context(), make(chan struct{}), reason}
			left, stays := make(chan error, 1), make(chan error, 1)
			acquire := func(ctx context.Context, owner string, errs chan<- error) {
				_, err := s.Acquire(ctx, wiretest.Acquire(owner))
				errs <- err
			}
			go acquire(leaving, "a:1", left)
			testservers.Until(t, "one dials", func() bool { return dials.Load() == 2 })
			go acquire(t.Context(), "b:1", stays)
			testservers.Until(t, "another waits for it", func() bool {
				return strings.Count(stacks(), "valkey-go.(*mux)._pipe(") == 2
			})
			close(leaving.done)
			if err := <-left; !errors.Is(err, reason) {
				t.Errorf("the one that left: %v", err)
			}
			if err := <-stays; err != nil {
				t.Errorf("the one that stayed: %v", err)
			}
		})
	}
}

// ending is a context that ends when the test says so, for a reason.
type ending struct {
	context.Context
	done   chan struct{}
	reason error
}

func (c *ending) Done() <-chan struct{} { return c.done }

func (c *ending) Deadline() (time.Time, bool) {
	return time.Now().Add(time.Hour), c.reason == context.DeadlineExceeded
}

func (c *ending) Err() error {
	select {
	case <-c.done:
		return c.reason
	default:
		return nil
	}
}

// A dialer that was canceled by its owner is asked no more than a few times, and of any other error
// that is a canceled context nobody knows whether anything was sent.
func TestDialerCanceled(t *testing.T) {
	for name, test := range map[string]struct {
		err   error
		dials int32
		kind  backend.ErrorKind
	}{
		"while dialing":   {&net.OpError{Op: "dial", Err: context.Canceled}, 3, backend.Retry},
		"at another time": {context.Canceled, 1, backend.Unknown},
	} {
		t.Run(name, func(t *testing.T) {
			var dials atomic.Int32
			s := open(t, connectLater(t, testservers.Valkey(t).Addr, func(o *valkey.ClientOption) {
				o.DialCtxFn = func(
					context.Context, string, *net.Dialer, *tls.Config,
				) (net.Conn, error) {
					dials.Add(1)
					return nil, test.err
				}
			}))
			dials.Store(0)
			_, err := s.Acquire(t.Context(), wiretest.Acquire("a:1"))
			if !errors.Is(err, context.Canceled) || dials.Load() != test.dials {
				t.Errorf("acquire: %v, after %d attempts to dial, want %d", err, dials.Load(),
					test.dials)
			}
			wiretest.WantKind(t, err, test.kind)
		})
	}
}

// stacks returns those of all goroutines.
func stacks() string {
	buf := make([]byte, 1<<20)
	return string(buf[:runtime.Stack(buf, true)])
}

func TestSteps(t *testing.T) {
	anywhere(t, func(t *testing.T, addr string) { wiretest.EachStep(t, addr, simply) })
}

func TestReleaseAfterClose(t *testing.T) {
	anywhere(t, func(t *testing.T, addr string) { wiretest.ReleaseAfterClose(t, addr, simply) })
}

func TestConflict(t *testing.T) {
	anywhere(t, func(t *testing.T, addr string) { wiretest.Conflict(t, addr, simply) })
}

func TestScriptsForgotten(t *testing.T) {
	t.Parallel()
	anywhere(t, func(t *testing.T, addr string) { wiretest.ScriptsForgotten(t, addr, simply) })
}

func TestKindOfLock(t *testing.T) {
	s := open(t, connectLater(t, "127.0.0.1:1"))
	_, err := s.Acquire(t.Context(), backend.AcquireRequest{
		Kind: 99, Name: "n", Owner: alice, Lease: lease,
	})
	wantKind(t, err, backend.Refused)
}

// A step whose answer is lost has been carried out once, and says that it doesn't know.
func TestLostReply(t *testing.T) {
	anywhere(t, func(t *testing.T, addr string) {
		ctx := t.Context()
		admin := admin(t, addr)
		p := wiretest.NewProxy(t, addr, faults.RESP)
		client := connectSimply(t, p.Addr(), func(o *valkey.ClientOption) {
			o.PipelineMultiplex = -1 // one connection
			o.RetryDelay = func(int, valkey.Completed, error) time.Duration { return 0 }
		})
		s := open(t, client)
		// makes the scripts known
		wiretest.Must[backend.AcquireResult](t)(s.Acquire(ctx, reenter(alice)))
		wiretest.Must[backend.AcquireResult](t)(s.Acquire(ctx, acquire(alice)))
		wiretest.Must[backend.ReleaseResult](t)(s.Release(ctx, release(alice)))
		wiretest.Must[backend.RenewResult](t)(s.Renew(ctx, renew(alice)))
		holds := func() string { return admin.HGet(ctx, "n", alice).Val() }
		for _, step := range []struct {
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
			testservers.Until(t, "there is a connection", func() bool {
				return client.Do(ctx, client.B().Arbitrary("PING").Build()).Error() == nil
			})
			p.LoseReply(wiretest.OnLock)
			wantKind(t, step.run(), backend.Unknown)
			testservers.Until(t, step.name+" is carried out", func() bool {
				return holds() == step.want
			})
		}
		// A step that was repeated would be carried out before this one.
		testservers.Until(t, "there is a connection", func() bool {
			return client.Do(ctx, client.B().Arbitrary("PING").Build()).Error() == nil
		})
		wiretest.Must[backend.AcquireResult](t)(s.Acquire(ctx, acquire(alice)))
		if got := holds(); got != "3" {
			t.Errorf("%s holds at the end, want 3", got)
		}

		// A step that only reads isn't repeated either.
		p.LoseReply(wiretest.OnLock)
		_, err := s.Look(ctx, backend.LookRequest{Name: "n", Owner: alice})
		wantKind(t, err, backend.Unknown)
	})
}

// Steps wait for their own contexts only, though they share a connection: one that is given up does
// not take the others with it.
func TestContextsOfOthers(t *testing.T) {
	server := testservers.Valkey(t)
	patience, cancel := context.WithTimeout(t.Context(), testservers.Patience)
	defer cancel()
	for _, step := range steps {
		t.Run(step.Name, func(t *testing.T) {
			s := open(t, connect(t, server.Addr, func(o *valkey.ClientOption) {
				o.PipelineMultiplex = -1
			}))
			server.Stop()
			defer server.Cont()
			ctx, cancel := context.WithTimeout(patience, 20*time.Millisecond)
			defer cancel()
			var others [10]chan error
			for i := range others {
				others[i] = make(chan error, 1)
				time.AfterFunc(time.Duration(i)*time.Millisecond, func() {
					_, err := s.Renew(patience, renew(alice))
					others[i] <- err
				})
			}
			if err := step.Run(ctx, s); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%v, want context.DeadlineExceeded", err)
			}
			server.Cont()
			for _, other := range others {
				if err := <-other; err != nil {
					t.Errorf("a step that nobody has given up: %v", err)
				}
			}
		})
	}
}

// A dialer that has one and the same error for every failure doesn't make its client a closed one.
func TestDialerRepeatsItself(t *testing.T) {
	var up atomic.Bool
	down := &net.OpError{Op: "dial", Err: errors.New("down")}
	s := open(t, connectLater(t, testservers.Valkey(t).Addr, func(o *valkey.ClientOption) {
		o.DialCtxFn = func(
			ctx context.Context, addr string, d *net.Dialer, _ *tls.Config,
		) (net.Conn, error) {
			if !up.Load() {
				return nil, down
			}
			return d.DialContext(ctx, "tcp", addr)
		}
	}))
	for range 2 {
		_, err := s.Acquire(t.Context(), acquire(alice))
		wantKind(t, err, backend.Retry)
	}
	up.Store(true)
	for _, step := range steps {
		if err := step.Run(t.Context(), s); err != nil {
			t.Errorf("%s: %v", step.Name, err)
		}
	}
}

// Replies are read as the server has sent them, which is not how valkey-go passes them on.
func TestErrorReplies(t *testing.T) {
	const inScript = "ERR Error running script (call to " +
		"f_0123456789012345678901234567890123456789): "
	server := miniredis.RunT(t)
	b := connectSimply(t, server.Addr(), func(o *valkey.ClientOption) { o.PipelineMultiplex = -1 })
	for _, test := range []struct {
		reply string
		kind  backend.ErrorKind
	}{
		{"ERR max number of clients reached", backend.Retry},
		{inScript + "@user_script:3: @user_script: 3: -READONLY You can't write against a read " +
			"only replica.", backend.Retry},
		{inScript + "@user_script:3: @user_script: 3: NOPERM no", backend.Unknown},
		{"ERR anything else", backend.Unknown},
		{"LOADING the dataset", backend.Retry},
		{"CLUSTERDOWN The cluster is down", backend.Retry},
		{"MOVED 1 127.0.0.1:1", backend.Retry},
		{"NOAUTH Authentication required.", backend.Refused},
	} {
		server.SetError(test.reply)
		for _, step := range steps {
			// Each in a session of its own: one remembers for its next step what is refused for
			// good.
			wantKind(t, step.Run(t.Context(), open(t, b)), test.kind)
		}
	}
	server.SetError("")
}

// It is asked whether the server is there when a connection broke, and no more than once; a step
// that its caller gave up is no reason.
func TestAsksOnce(t *testing.T) {
	server := testservers.Valkey(t)
	s := open(t, connect(t, server.Addr, func(o *valkey.ClientOption) {
		o.PipelineMultiplex = -1
		o.Dialer.KeepAlive = time.Hour // how often valkey-go asks
	}))
	pings := func() string {
		for line := range strings.Lines(server.Do("INFO", "commandstats")) {
			if calls, ok := strings.CutPrefix(line, "cmdstat_ping:calls="); ok {
				calls, _, _ = strings.Cut(calls, ",")
				return calls
			}
		}
		return "0"
	}
	run := func(want string) {
		t.Helper()
		server.Do("CONFIG", "RESETSTAT")
		for _, step := range steps {
			if err := step.Run(t.Context(), s); err != nil {
				t.Errorf("%s: %v", step.Name, err)
			}
		}
		if got := pings(); got != want {
			t.Errorf("%s pings, want %s", got, want)
		}
	}
	run("0")

	server.Stop()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	_, err := s.Acquire(ctx, acquire(alice))
	wantKind(t, err, backend.Unknown)
	server.Cont()
	run("0")

	server.Stop() // so that the step below is on its way when it breaks
	errs := make(chan error)
	go func() {
		_, err := s.Acquire(t.Context(), acquire(alice))
		errs <- err
	}()
	testservers.Until(t, "it is sent", func() bool {
		return strings.Contains(stacks(), "valkey-go.(*pipe).Do(")
	})
	server.Kill()
	wantKind(t, <-errs, backend.Unknown)
	server.Restart()
	run("1")
}

// Where they are answers to what makes a connection, nothing else is sent.
func TestErrorRepliesToConnect(t *testing.T) {
	server := miniredis.RunT(t)
	for reply, kind := range map[string]backend.ErrorKind{
		"ERR max number of clients reached": backend.Retry,
		"ERR anything else":                 backend.Retry,
		"NOAUTH Authentication required.":   backend.Refused,
	} {
		server.SetError(reply)
		s := open(t, connectLater(t, server.Addr(), func(o *valkey.ClientOption) {
			o.DisableCache = true
		}))
		_, err := s.Acquire(t.Context(), acquire(alice))
		wantKind(t, err, backend.Unknown) // see TestErrorsOfOthers
		for _, step := range steps {
			wantKind(t, step.Run(t.Context(), s), kind)
		}
		server.SetError("")
		wiretest.Must[backend.AcquireResult](t)(s.Acquire(t.Context(), acquire(alice)))
	}
}

func TestErrorsOfTheClient(t *testing.T) {
	t.Run("nobody listens", func(t *testing.T) {
		s := open(t, connectLater(t, fmt.Sprintf("127.0.0.1:%d", testservers.FreePort(t))))
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
		client := connectSimply(t, testservers.Valkey(t).Addr)
		s := open(t, client)
		client.Close()
		_, err := s.Acquire(t.Context(), acquire(alice))
		wantKind(t, err, backend.Unknown) // it might have been sent before
		for _, step := range steps {
			err := step.Run(t.Context(), s)
			wantKind(t, err, backend.Refused)
			if !errors.Is(err, valkey.ErrClosing) {
				t.Errorf("%s: %v, want ErrClosing in it", step.Name, err)
			}
		}
		_, err = s.Subscribe(t.Context(), backend.SubscribeRequest{Name: "n", Wake: func(
			backend.Wakeup,
		) {
		}})
		wantKind(t, err, backend.Refused)
	})
	t.Run("a connection closed", func(t *testing.T) {
		client := &oneError{
			Client: connectSimply(t, testservers.Valkey(t).Addr), err: valkey.ErrClosing,
		}
		s := open(t, client)
		_, err := s.Acquire(t.Context(), acquire(alice))
		wantKind(t, err, backend.Unknown)
	})
	t.Run("caching that the server refuses", func(t *testing.T) {
		server := testservers.Valkey(t)
		server.Do("ACL", "SETUSER", "some", "on", ">secret", "~*", "&*", "+@all",
			"-client|tracking")
		s := open(t, connectLater(t, server.Addr, as("some")))
		_, err := s.Acquire(t.Context(), acquire(alice))
		wantKind(t, err, backend.Refused)
	})
	t.Run("too late", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		s := open(t, connectLater(t, "127.0.0.1:1"))
		for _, step := range steps {
			err := step.Run(ctx, s)
			wantKind(t, err, backend.Retry)
			if !errors.Is(err, context.Canceled) {
				t.Errorf("%s: %v, want context.Canceled in it", step.Name, err)
			}
		}
	})
}

// oneError is a client whose first command fails.
type oneError struct {
	valkey.Client
	err error
}

func (c *oneError) Do(ctx context.Context, cmd valkey.Completed) valkey.ValkeyResult {
	if err := c.err; err != nil {
		c.err = nil
		return valkey.NewErrorResult(err)
	}
	return c.Client.Do(ctx, cmd)
}

func TestServerHangs(t *testing.T) {
	t.Parallel()
	server := testservers.Valkey(t)
	s := open(t, connect(t, server.Addr, impatient))
	for _, step := range steps {
		if err := step.Run(t.Context(), s); err != nil {
			t.Fatal(err)
		}
	}
	server.Stop()
	defer server.Cont()
	_, err := s.Acquire(t.Context(), acquire(alice))
	if dial, ok := errors.AsType[*net.OpError](err); ok && dial.Op == "dial" {
		wantKind(t, err, backend.Retry) // a busy machine is too slow even to connect
	} else {
		wantKind(t, err, backend.Unknown)
	}
	// From now on it is asked whether it is there, and nothing else.
	for _, step := range steps {
		wantKind(t, step.Run(t.Context(), s), backend.Retry)
	}
}

// Nothing that a dialer or a source of credentials says is a reply of the server's, though they ask
// a Valkey of their own. Nothing is sent then, which is known when the next step asks first.
func TestErrorsOfOthers(t *testing.T) {
	server := testservers.Valkey(t)
	client := connect(t, server.Addr)
	server.Do("SET", "text", "")
	ask := func(words ...string) error {
		return client.Do(t.Context(), client.B().Arbitrary(words...).Build()).Error()
	}
	for name, theirs := range map[string]error{
		"null":     ask("GET", "nothing"),
		"script":   ask("EVALSHA", strings.Repeat("0", 40), "0"),
		"moved":    ask("EVAL", "return redis.error_reply('MOVED 1 127.0.0.1:1')", "0"),
		"anything": errors.New("no idea"),
		"of another dial": fmt.Errorf("vault: %w", &net.OpError{
			Op: "dial", Err: errors.New("connection refused"),
		}),
	} {
		if theirs == nil {
			t.Fatalf("%s: no error", name)
		}
		for who, change := range map[string]option{
			"dialer": func(o *valkey.ClientOption) {
				o.DialCtxFn = func(
					context.Context, string, *net.Dialer, *tls.Config,
				) (net.Conn, error) {
					return nil, theirs
				}
			},
			"credentials": func(o *valkey.ClientOption) {
				o.AuthCredentialsFn = func(
					valkey.AuthCredentialsContext,
				) (valkey.AuthCredentials, error) {
					return valkey.AuthCredentials{}, theirs
				}
			},
		} {
			t.Run(who+"/"+name, func(t *testing.T) {
				s := open(t, connectLater(t, server.Addr, change))
				if res, err := s.Acquire(t.Context(), acquire(alice)); !errors.Is(err, theirs) ||
					backend.KindOf(err) != backend.Unknown {
					t.Errorf("acquire: %+v, %v of kind %d", res, err, backend.KindOf(err))
				}
				for _, step := range steps {
					err := step.Run(t.Context(), s)
					wantKind(t, err, backend.Retry)
					if !errors.Is(err, theirs) {
						t.Errorf("%s: %v", step.Name, err)
					}
				}
				_, err := s.Subscribe(t.Context(), backend.SubscribeRequest{
					Name: "n", Wake: func(backend.Wakeup) {},
				})
				wantKind(t, err, backend.Retry)
			})
		}

		// A connection whose credentials can't be renewed is closed. A step that was sent on it
		// before may have been carried out, and was here, once.
		t.Run("renewed credentials/"+name, func(t *testing.T) {
			p := wiretest.NewProxy(t, server.Addr, faults.RESP)
			fail := make(chan struct{})
			var asked atomic.Int32
			s := open(t, connect(t, p.Addr(), func(o *valkey.ClientOption) {
				o.PipelineMultiplex = -1
				o.AuthCredentialsFn = func(
					valkey.AuthCredentialsContext,
				) (valkey.AuthCredentials, error) {
					if asked.Add(1) != 2 {
						return valkey.AuthCredentials{RefreshAfter: time.Now().
							Add(time.Millisecond)}, nil
					}
					<-fail
					return valkey.AuthCredentials{}, theirs
				}
			}))
			server.Do("DEL", "n")
			wiretest.Must[backend.AcquireResult](t)(s.Acquire(t.Context(), acquire(alice)))
			p.Block(faults.ToClient)
			errs := make(chan error)
			go func() {
				_, err := s.Acquire(t.Context(), acquire(alice))
				errs <- err
			}()
			testservers.Until(t, "it is acquired", func() bool {
				return server.Do("HGET", "n", alice) == "2"
			})
			close(fail)
			wantKind(t, <-errs, backend.Unknown)
			p.Unblock(faults.ToClient)
			testservers.Until(t, "there is a connection", func() bool {
				_, err := s.Look(t.Context(), backend.LookRequest{Name: "n"})
				return err == nil
			})
			if got := server.Do("HGET", "n", alice); got != "2" {
				t.Errorf("%s holds, want 2", got)
			}
		})
	}
}

// When the client is closed nobody knows of what has no answer yet, and nothing is sent after that.
func TestClosedInFlight(t *testing.T) {
	t.Parallel()
	server := testservers.Valkey(t)
	p := wiretest.NewProxy(t, server.Addr, faults.RESP)
	client := connect(t, p.Addr(), func(o *valkey.ClientOption) { o.PipelineMultiplex = -1 })
	s := open(t, client)
	wiretest.Must[backend.AcquireResult](t)(s.Acquire(t.Context(), acquire(alice)))
	p.Block(faults.ToClient)
	errs := make(chan error)
	for range 2 {
		go func() {
			_, err := s.Acquire(t.Context(), acquire(alice))
			errs <- err
		}()
	}
	testservers.Until(t, "both are carried out", func() bool {
		return server.Do("HGET", "n", alice) == "3"
	})
	client.Close()
	for range 2 {
		wantKind(t, <-errs, backend.Unknown)
	}
	for _, step := range steps {
		wantKind(t, step.Run(t.Context(), s), backend.Refused)
	}
}

// A client that could not connect, and is closed then, is refused like any other that was.
func TestClosedAfterFailedDial(t *testing.T) {
	server := testservers.Valkey(t)
	client := connect(t, server.Addr)
	s := open(t, client)
	server.Kill()
	testservers.Until(t, "nobody can connect", func() bool {
		_, err := s.Acquire(t.Context(), acquire(alice))
		return wiretest.IsKind(err, backend.Retry)
	})
	server.Restart()
	client.Close()
	_, err := s.Acquire(t.Context(), acquire(alice))
	wantKind(t, err, backend.Retry) // still that it can't connect
	for _, step := range steps {
		err := step.Run(t.Context(), s)
		wantKind(t, err, backend.Refused)
		if !errors.Is(err, valkey.ErrClosing) {
			t.Errorf("%s: %v, want ErrClosing in it", step.Name, err)
		}
	}
	if list := server.Do("CLIENT", "LIST"); strings.Count(list, "\n") > 1 {
		t.Errorf("connections of a closed client:\n%s", list)
	}
}

func TestServerDies(t *testing.T) {
	server := testservers.Valkey(t)
	s := open(t, connect(t, server.Addr))
	wiretest.Must[backend.AcquireResult](t)(s.Acquire(t.Context(), acquire(alice)))
	server.Kill()
	for _, step := range steps {
		var err error
		testservers.Until(t, step.Name+" says that there is no server", func() bool {
			err = step.Run(t.Context(), s)
			return wiretest.IsKind(err, backend.Retry)
		})
	}
	server.Restart()
	testservers.Until(t, "the server is used again", func() bool {
		_, err := s.Acquire(t.Context(), acquire(alice))
		return err == nil
	})
}

func TestErrorsOfTheServer(t *testing.T) {
	onServers(t, func(t *testing.T, server *testservers.Server) {
		wiretest.ServerErrors(t, this, server)
	})
}

func TestPasswords(t *testing.T) { onServers(t, testPasswords) }

func testPasswords(t *testing.T, server *testservers.Server) {
	ctx := t.Context()
	t.Run("wrong password", func(t *testing.T) {
		if _, err := dial(t, server.Addr, as("nobody")); err == nil ||
			!strings.Contains(err.Error(), "WRONGPASS") {
			t.Errorf("a new client: %v", err)
		}
		s := open(t, connectLater(t, server.Addr, as("nobody")))
		_, err := s.Acquire(ctx, acquire(alice))
		wantKind(t, err, backend.Unknown) // see TestErrorsOfOthers
		for _, step := range steps {
			wantKind(t, step.Run(ctx, s), backend.Refused)
		}
		_, err = s.Subscribe(ctx, backend.SubscribeRequest{
			Name: "n", Wake: func(backend.Wakeup) {},
		})
		wantKind(t, err, backend.Refused)
	})
	t.Run("no password", func(t *testing.T) {
		server.Do("CONFIG", "SET", "requirepass", "secret")
		s := open(t, connectLater(t, server.Addr))
		_, err := s.Acquire(ctx, acquire(alice))
		wantKind(t, err, backend.Unknown)
		for _, step := range steps {
			wantKind(t, step.Run(ctx, s), backend.Refused)
		}
		with := redis.NewClient(&redis.Options{Addr: server.Addr, Password: "secret"})
		defer with.Close()
		wiretest.Must[string](t)(with.ConfigSet(ctx, "requirepass", "").Result())
	})
}
