package redisbackend_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/internal/testservers"
	"github.com/seed951563bd/distsync/redisbackend"
)

// listener subscribes to a name.
type listener struct {
	t    *testing.T
	name string
	sub  backend.Subscription
	woke chan backend.Wakeup
}

func subscribe(t *testing.T, s session, name string) *listener {
	t.Helper()
	l := &listener{t: t, name: name, woke: make(chan backend.Wakeup, 100)}
	ctx, cancel := context.WithTimeout(t.Context(), testservers.Patience)
	defer cancel()
	var err error
	l.sub, err = s.Subscribe(ctx, backend.SubscribeRequest{Name: name, Wake: func(w backend.Wakeup) {
		select {
		case l.woke <- w:
		default: // a wake-up too many costs nothing
		}
	}})
	if err != nil {
		t.Errorf("subscribe to %s: %v", name, err)
		return nil
	}
	return l
}

func (l *listener) wait() (w backend.Wakeup) {
	l.t.Helper()
	select {
	case w = <-l.woke:
	case <-time.After(testservers.Patience):
		l.t.Errorf("nothing has woken who waits for %s", l.name)
	}
	return w
}

// free releases a lock, so that a message is published.
func free(t *testing.T, s session, name string) {
	t.Helper()
	must[backend.AcquireResult](t)(s.Acquire(t.Context(), backend.AcquireRequest{Name: name, Owner: alice, Lease: lease}))
	must[backend.ReleaseResult](t)(s.Release(t.Context(), backend.ReleaseRequest{Name: name, Owner: alice, Lease: lease}))
}

func TestSubscribe(t *testing.T) {
	for _, protocol := range []int{2, 3} {
		t.Run(fmt.Sprintf("RESP%d", protocol), func(t *testing.T) {
			anywhere(t, func(t *testing.T, addr string) {
				client := connect(t, addr, func(o *redis.Options) { o.Protocol = protocol })
				s, other := open(t, client), open(t, connect(t, addr))
				a, b := subscribe(t, s, "a"), subscribe(t, s, "{b}")
				free(t, other, "a")
				if a.wait() != backend.WakeOne {
					t.Error("a release wakes more than one")
				}
				must[backend.AcquireResult](t)(other.Acquire(t.Context(), backend.AcquireRequest{Name: "{b}", Owner: bob, Lease: lease}))
				must[backend.ForceReleaseResult](t)(other.ForceRelease(t.Context(), backend.ForceReleaseRequest{Name: "{b}"}))
				b.wait()

				// Anybody may publish anything.
				client.Publish(t.Context(), "redisson_lock__channel:{a}", "nonsense")
				client.Publish(t.Context(), "redisson_lock__channel:{a}", "1")
				if a.wait() != backend.WakeAll {
					t.Error("the message for all wakes one")
				}

				a.sub.Close()
				a = subscribe(t, s, "a")
				free(t, other, "a")
				a.wait()
			})
		})
	}
}

// All subscriptions of a session share a connection, and cost the server nothing once given up.
func TestOneConnection(t *testing.T) {
	server := testservers.Redis(t)
	client := connect(t, server.Addr)
	s := redisbackend.New(client).Open().(session)
	count := func() (channels, clients int) {
		list := client.ClientList(t.Context()).Val()
		return len(client.PubSubChannels(t.Context(), "*").Val()), len(pubsubClient.FindAllString(list, -1))
	}
	const n = 2500
	var mu sync.Mutex
	var subs []backend.Subscription
	var running sync.WaitGroup
	for i := range n {
		running.Go(func() {
			if l := subscribe(t, s, fmt.Sprint("name", i)); l != nil {
				mu.Lock()
				defer mu.Unlock()
				subs = append(subs, l.sub)
			}
		})
	}
	running.Wait()
	if channels, clients := count(); channels != n || clients != 1 {
		t.Errorf("%d channels on %d connections, want %d on 1", channels, clients, n)
	}
	for _, sub := range subs {
		sub.Close()
	}
	testservers.Until(t, "the channels are unsubscribed", func() bool { channels, _ := count(); return channels == 0 })
	s.Close()
	testservers.Until(t, "the connection is closed", func() bool { _, clients := count(); return clients == 0 })
}

// A connection that breaks is replaced, and everybody is woken, since they may have missed something.
func TestSubscriptionSurvives(t *testing.T) {
	anywhere(t, func(t *testing.T, addr string) {
		p := newProxy(t, addr)
		s := open(t, connect(t, p.Addr().String()))
		other := open(t, connect(t, addr))
		listeners := []*listener{subscribe(t, s, "a"), subscribe(t, s, "b")}
		for range 3 {
			p.cut()
			for _, l := range listeners {
				if l.wait() != backend.WakeAll {
					t.Error("a new connection wakes one")
				}
				free(t, other, l.name)
				l.wait()
			}
		}
	})
	t.Run("killed by the server", func(t *testing.T) {
		server := testservers.Redis(t)
		client := connect(t, server.Addr)
		s := open(t, client)
		l := subscribe(t, s, "a")
		client.ClientKillByFilter(t.Context(), "TYPE", "pubsub")
		l.wait()
		free(t, s, "a")
		l.wait()
	})
	t.Run("server restarted", func(t *testing.T) {
		server := testservers.Redis(t)
		s := open(t, connect(t, server.Addr))
		l := subscribe(t, s, "a")
		server.Restart()
		l.wait()
		// The pool of other connections learns of the restart by failing.
		testservers.Until(t, "the server is used again", func() bool {
			_, err := s.Acquire(t.Context(), backend.AcquireRequest{Name: "a", Owner: alice, Lease: lease})
			return err == nil
		})
		must[backend.ForceReleaseResult](t)(s.ForceRelease(t.Context(), backend.ForceReleaseRequest{Name: "a"}))
		l.wait()
	})
	t.Run("server hung", func(t *testing.T) {
		server := testservers.Redis(t)
		client := connect(t, server.Addr, func(o *redis.Options) { o.ReadTimeout = 100 * time.Millisecond })
		s := open(t, client, redisbackend.CheckEvery(20*time.Millisecond))
		l := subscribe(t, s, "a")
		server.Stop()
		// Who asks now gets an error, when the silence is noticed.
		_, err := s.Subscribe(t.Context(), backend.SubscribeRequest{Name: "b", Wake: func(backend.Wakeup) {}})
		if err == nil || backend.KindOf(err) == backend.Refused {
			t.Errorf("subscribe to a server that hangs: %v", err)
		}
		server.Cont()
		l.wait()
	})
}

func TestSubscribeEnds(t *testing.T) {
	server := testservers.Redis(t)
	client := connect(t, server.Addr)
	s := redisbackend.New(client).Open().(session)
	subscribe(t, s, "a")
	server.Stop()
	defer server.Cont()

	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if _, err := s.Subscribe(ctx, backend.SubscribeRequest{Name: "b", Wake: func(backend.Wakeup) {}}); err == nil {
		t.Error("subscribed to a server that hangs")
	}
	failed := make(chan error)
	go func() {
		_, err := s.Subscribe(t.Context(), backend.SubscribeRequest{Name: "c", Wake: func(backend.Wakeup) {}})
		failed <- err
	}()
	s.Close() // though the server hangs
	wantKind(t, <-failed, backend.Refused)
}

// Who is refused is told so, and only who is.
func TestSubscribeRefused(t *testing.T) {
	server := testservers.Redis(t)
	server.Do("ACL", "SETUSER", "some", "on", ">secret", "~*", "+@all", "resetchannels",
		"&redisson_lock__channel:{good*", "-unsubscribe", "-ping")
	client := connect(t, server.Addr, as("some"))
	s := open(t, client, redisbackend.CheckEvery(250*time.Millisecond))
	other := open(t, connect(t, server.Addr))

	var running sync.WaitGroup
	for i := range 20 { // so that some share a command
		running.Go(func() {
			_, err := s.Subscribe(t.Context(), backend.SubscribeRequest{Name: fmt.Sprint("bad", i), Wake: func(backend.Wakeup) {}})
			wantKind(t, err, backend.Refused)
		})
		running.Go(func() {
			l := subscribe(t, s, fmt.Sprint("good", i))
			free(t, other, l.name)
			l.wait()
			// The server refuses to unsubscribe, which must not confuse anybody.
			l.sub.Close()
			l = subscribe(t, s, l.name)
			free(t, other, l.name)
			l.wait()
		})
	}
	running.Wait()
}

// Whoever is subscribed gets the next message, whatever was asked for before.
func TestSubscribeInQuickSuccession(t *testing.T) {
	anywhere(t, func(t *testing.T, addr string) {
		s, other := open(t, connect(t, addr)), open(t, connect(t, addr))
		var running sync.WaitGroup
		for i := range 8 {
			running.Go(func() {
				for j := range 30 {
					l := subscribe(t, s, fmt.Sprint("name", i))
					if l == nil {
						return
					}
					if j%3 == 0 {
						free(t, other, l.name)
						l.wait()
					}
					l.sub.Close()
				}
			})
		}
		running.Wait()
	})
}
