package valkeybackend_test

import (
	"context"
	"fmt"
	"regexp"
	"sync"
	"testing"
	"time"

	"github.com/valkey-io/valkey-go"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/contract/faults"
	"github.com/seed951563bd/distsync/internal/test/testservers"
	"github.com/seed951563bd/distsync/internal/test/wiretest"
	"github.com/seed951563bd/distsync/valkeybackend"
)

func TestSubscribe(t *testing.T) {
	for _, protocol := range []int{2, 3} {
		t.Run(fmt.Sprintf("RESP%d", protocol), func(t *testing.T) {
			anywhere(t, func(t *testing.T, addr string) {
				client := connectSimply(t, addr, func(o *valkey.ClientOption) {
					o.AlwaysRESP2 = protocol == 2
				})
				s, other, admin := open(t, client), open(t, connectSimply(t, addr)), admin(t, addr)
				a, b := subscribe(t, s, "a"), subscribe(t, s, "{b}")
				free(t, other, "a")
				if !a.Wait() {
					t.Error("a release wakes more than one")
				}
				wiretest.Must[backend.AcquireResult](t)(
					other.Acquire(t.Context(), backend.AcquireRequest{
						Name: "{b}", Owner: bob, Lease: lease,
					}))
				wiretest.Must[backend.ForceReleaseResult](t)(
					other.ForceRelease(t.Context(), backend.ForceReleaseRequest{Name: "{b}"}))
				b.Wait()

				// Anybody may publish anything.
				admin.Publish(t.Context(), "redisson_lock__channel:{a}", "nonsense")
				admin.Publish(t.Context(), "redisson_lock__channel:{a}", "1")
				if !a.Wait() {
					t.Error("the message for all wakes one")
				}

				a.Sub.Close()
				a = subscribe(t, s, "a")
				free(t, other, "a")
				a.Wait()
			})
		})
	}
}

var pubsubClient = regexp.MustCompile(` sub=[1-9]`)

// All subscriptions of a session share a connection, and cost the server nothing once given up.
func TestOneConnection(t *testing.T) {
	server := testservers.Valkey(t)
	s := valkeybackend.New(connect(t, server.Addr)).Open().(session)
	admin := admin(t, server.Addr)
	count := func() (channels, clients int) {
		list := wiretest.Must[string](t)(admin.ClientList(t.Context()).Result())
		return len(admin.PubSubChannels(t.Context(), "*").Val()),
			len(pubsubClient.FindAllString(list, -1))
	}
	const n = 2500
	subs := make([]backend.Subscription, n)
	var running sync.WaitGroup
	for i := range n {
		running.Go(func() {
			if l := subscribe(t, s, fmt.Sprint("name", i)); l != nil {
				subs[i] = l.Sub
			}
		})
	}
	running.Wait()
	if t.Failed() {
		return
	}
	if channels, clients := count(); channels != n || clients != 1 {
		t.Errorf("%d channels on %d connections, want %d on 1", channels, clients, n)
	}
	for _, sub := range subs {
		sub.Close()
	}
	testservers.Until(t, "the channels are unsubscribed", func() bool {
		channels, _ := count()
		return channels == 0
	})
	subscribe(t, s, "last")
	s.Close()
	testservers.Until(t, "the connection is closed", func() bool {
		_, clients := count()
		return clients == 0
	})
}

// A connection that breaks is replaced, and everybody is woken, since they may have missed
// something.
func TestSubscriptionSurvives(t *testing.T) {
	t.Parallel()
	anywhere(t, func(t *testing.T, addr string) {
		p := wiretest.NewProxy(t, addr, faults.RESP)
		s, other := open(t, connectSimply(t, p.Addr())), open(t, connectSimply(t, addr))
		listeners := []*wiretest.Listener{subscribe(t, s, "a"), subscribe(t, s, "b")}
		for range 3 {
			p.Cut()
			for _, l := range listeners {
				if !l.Wait() {
					t.Error("a new connection wakes one")
				}
				free(t, other, l.Name)
				l.Wait()
			}
		}
	})
	t.Run("killed by the server", func(t *testing.T) {
		onServers(t, func(t *testing.T, server *testservers.Server) {
			s := open(t, connect(t, server.Addr))
			l := subscribe(t, s, "a")
			server.Do("CLIENT", "KILL", "TYPE", "pubsub")
			l.Wait()
			free(t, s, "a") // its connection was not killed
			l.Wait()
		})
	})
	t.Run("server restarted", func(t *testing.T) {
		server := testservers.Valkey(t)
		s := open(t, connect(t, server.Addr))
		l := subscribe(t, s, "a")
		server.Restart()
		l.Wait()
		// Each of the other connections learns of the restart by failing.
		testservers.Until(t, "the server is used again", func() bool {
			_, err := s.Acquire(t.Context(), backend.AcquireRequest{
				Name: "a", Owner: alice, Lease: lease,
			})
			if err == nil {
				_, err = s.ForceRelease(t.Context(), backend.ForceReleaseRequest{Name: "a"})
			}
			return err == nil
		})
		l.Wait()
	})
	t.Run("server hung", func(t *testing.T) {
		server := testservers.Valkey(t)
		s := open(t, connect(t, server.Addr, impatient))
		l := subscribe(t, s, "a")
		server.Stop()
		// A call gets an error once the client notices the silence.
		_, err := s.Subscribe(t.Context(), backend.SubscribeRequest{Name: "b", Wake: func(
			backend.Wakeup,
		) {
		}})
		if err == nil || backend.KindOf(err) == backend.Refused {
			t.Errorf("subscribe to a server that hangs: %v", err)
		}
		server.Cont()
		l.Wait()
	})
	t.Run("server silent", func(t *testing.T) {
		server := testservers.Valkey(t)
		s := open(t, connect(t, server.Addr, impatient))
		admin := admin(t, server.Addr)
		l := subscribe(t, s, "a")
		server.Stop() // nobody asks anything
		stopped := time.Now()
		testservers.Until(t, "the silence has lasted", func() bool {
			return time.Since(stopped) > time.Second
		})
		server.Cont()
		if !l.Wait() {
			t.Error("a new connection wakes one")
		}
		testservers.Until(t, "there is one connection", func() bool {
			return len(pubsubClient.FindAllString(admin.ClientList(t.Context()).Val(), -1)) == 1
		})
	})
}

func TestSubscribeEnds(t *testing.T) {
	server := testservers.Valkey(t)
	s := valkeybackend.New(connect(t, server.Addr)).Open().(session)
	subscribe(t, s, "a")
	server.Stop()
	defer server.Cont()

	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	_, err := s.Subscribe(ctx, backend.SubscribeRequest{Name: "b", Wake: func(backend.Wakeup) {}})
	wantKind(t, err, backend.Unknown)
	failed := make(chan error)
	go func() {
		_, err := s.Subscribe(t.Context(), backend.SubscribeRequest{Name: "c", Wake: func(
			backend.Wakeup,
		) {
		}})
		failed <- err
	}()
	s.Close() // though the server hangs
	wantKind(t, <-failed, backend.Refused)
}

// A subscription that the server refuses gets an error. Others that share its command don't.
func TestSubscribeRefused(t *testing.T) {
	onServers(t, func(t *testing.T, server *testservers.Server) {
		server.Do("ACL", "SETUSER", "some", "on", ">secret", "~*", "+@all", "resetchannels",
			"&redisson_lock__channel:{good*", "-unsubscribe", "-ping")
		s := open(t, connect(t, server.Addr, as("some"), func(o *valkey.ClientOption) {
			o.Dialer.KeepAlive = 20 * time.Millisecond // how often it pings
		}))
		other := open(t, connect(t, server.Addr))

		var running sync.WaitGroup
		for i := range 20 { // so that some share a command
			running.Go(func() {
				_, err := s.Subscribe(t.Context(), backend.SubscribeRequest{
					Name: fmt.Sprint("bad", i), Wake: func(backend.Wakeup) {},
				})
				wantKind(t, err, backend.Refused)
			})
			running.Go(func() {
				l := subscribe(t, s, fmt.Sprint("good", i))
				free(t, other, l.Name)
				l.Wait()
				// The server refuses to unsubscribe, which must not confuse anybody.
				l.Sub.Close()
				l = subscribe(t, s, l.Name)
				free(t, other, l.Name)
				l.Wait()
			})
		}
		running.Wait()
	})
}

// A subscription gets the next message, even if another of that name ended just before it began.
func TestSubscribeInQuickSuccession(t *testing.T) {
	t.Parallel()
	anywhere(t, func(t *testing.T, addr string) {
		s, other := open(t, connectSimply(t, addr)), open(t, connectSimply(t, addr))
		var running sync.WaitGroup
		for i := range 8 {
			running.Go(func() {
				for j := range 30 {
					l := subscribe(t, s, fmt.Sprint("name", i))
					if l == nil {
						return
					}
					if j%3 == 0 {
						free(t, other, l.Name)
						l.Wait()
					}
					l.Sub.Close()
				}
			})
		}
		running.Wait()
	})
}
