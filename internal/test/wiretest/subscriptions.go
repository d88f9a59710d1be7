package wiretest

import (
	"context"
	"fmt"
	"regexp"
	"sync"
	"testing"
	"time"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/contract/faults"
	"github.com/seed951563bd/distsync/internal/test/testservers"
)

// Messages checks that a release or a force-release wakes those who have subscribed to the lock, as
// the messages of others do.
func Messages(t *testing.T, addr string, on Maker) {
	s, other := open(t, on(t, addr)), open(t, on(t, addr))
	a, b := Subscribe(t, s, "a"), Subscribe(t, s, "{b}")
	Free(t, other, "a")
	if !a.Wait() {
		t.Error("a release wakes more than one")
	}
	Must[backend.AcquireResult](t)(other.Acquire(t.Context(), backend.AcquireRequest{
		Name: "{b}", Owner: Bob, Lease: Lease,
	}))
	Must[backend.ForceReleaseResult](t)(
		other.ForceRelease(t.Context(), backend.ForceReleaseRequest{Name: "{b}"}))
	b.Wait()

	// Anybody may publish anything.
	admin := connect(t, addr)
	admin.Publish(t.Context(), "redisson_lock__channel:{a}", "nonsense")
	admin.Publish(t.Context(), "redisson_lock__channel:{a}", "1")
	if !a.Wait() {
		t.Error("the message for all wakes one")
	}

	a.Sub.Close()
	a = Subscribe(t, s, "a")
	Free(t, other, "a")
	a.Wait()
}

// Subscribed finds the connections with subscriptions in the answer to CLIENT LIST.
var Subscribed = regexp.MustCompile(` sub=[1-9]`)

// OneConnection checks that all subscriptions of a session share a connection, and cost the server
// nothing once they have ended.
func OneConnection(t *testing.T, addr string, on Maker) {
	client := connect(t, addr)
	s := on(t, addr).Open().(Session)
	count := func() (channels, clients int) {
		list := client.ClientList(t.Context()).Val()
		return len(client.PubSubChannels(t.Context(), "*").Val()),
			len(Subscribed.FindAllString(list, -1))
	}
	const n = 2500
	var mu sync.Mutex
	var subs []backend.Subscription
	var running sync.WaitGroup
	for i := range n {
		running.Go(func() {
			if l := Subscribe(t, s, fmt.Sprint("name", i)); l != nil {
				mu.Lock()
				defer mu.Unlock()
				subs = append(subs, l.Sub)
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
	if t.Failed() {
		return
	}
	testservers.Until(t, "the channels are unsubscribed", func() bool {
		channels, _ := count()
		return channels == 0
	})
	Subscribe(t, s, "last")
	s.Close()
	testservers.Until(t, "the connection is closed", func() bool {
		_, clients := count()
		return clients == 0
	})
}

// QuickSuccession checks that a subscription gets the next message, even if another of that name
// ended just before it began.
func QuickSuccession(t *testing.T, s, other Session) {
	var running sync.WaitGroup
	for i := range 8 {
		running.Go(func() {
			for j := range 30 {
				l := Subscribe(t, s, fmt.Sprint("name", i))
				if l == nil {
					return
				}
				if j%3 == 0 {
					Free(t, other, l.Name)
					l.Wait()
				}
				l.Sub.Close()
			}
		})
	}
	running.Wait()
}

// Survives checks that a connection that breaks is replaced, and that everybody is woken then,
// since messages may have been missed.
func Survives(t *testing.T, addr string, on Maker) {
	p := NewProxy(t, addr, faults.RESP)
	s, other := open(t, on(t, p.Addr())), open(t, on(t, addr))
	listeners := []*Listener{Subscribe(t, s, "a"), Subscribe(t, s, "b")}
	for range 3 {
		p.Cut()
		for _, l := range listeners {
			if !l.Wait() {
				t.Error("a new connection wakes one")
			}
			Free(t, other, l.Name)
			l.Wait()
		}
	}
}

// SurvivesAKill is Survives, for a server that closes the connection.
func SurvivesAKill(t *testing.T, server *testservers.Server, on Maker) {
	s := open(t, on(t, server.Addr))
	l := Subscribe(t, s, "a")
	server.Do("CLIENT", "KILL", "TYPE", "pubsub")
	l.Wait()
	Free(t, s, "a") // its connection was not killed
	l.Wait()
}

// SurvivesARestart is Survives, for a server that is restarted.
func SurvivesARestart(t *testing.T, server *testservers.Server, on Maker) {
	s := open(t, on(t, server.Addr))
	l := Subscribe(t, s, "a")
	server.Restart()
	l.Wait()
	// Each of the other connections learns of the restart by failing.
	testservers.Until(t, "the server is used again", func() bool {
		req := Acquire(Alice)
		req.Name = "a"
		_, err := s.Acquire(t.Context(), req)
		if err == nil {
			_, err = s.ForceRelease(t.Context(), backend.ForceReleaseRequest{Name: "a"})
		}
		return err == nil
	})
	l.Wait()
}

// SubscribeEnds checks that a call to Subscribe ends with its context, or with the session,
// although the server hangs.
func SubscribeEnds(t *testing.T, server *testservers.Server, on Maker) {
	s := on(t, server.Addr).Open().(Session)
	Subscribe(t, s, "a")
	server.Stop()
	defer server.Cont()

	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	subscribing := func(ctx context.Context, name string) error {
		_, err := s.Subscribe(ctx, backend.SubscribeRequest{
			Name: name, Wake: func(backend.Wakeup) {},
		})
		return err
	}
	WantKind(t, subscribing(ctx, "b"), backend.Unknown)
	failed := make(chan error)
	go func() { failed <- subscribing(t.Context(), "c") }()
	s.Close()
	WantKind(t, <-failed, backend.Refused)
}

// SubscribeRefused checks that a subscription that the server refuses gets an error, and that
// others that share its command get none. The function open returns a session for the given user.
func SubscribeRefused(t *testing.T, server *testservers.Server, open func(user string) Session) {
	server.Do("ACL", "SETUSER", "some", "on", ">secret", "~*", "+@all", "resetchannels",
		"&redisson_lock__channel:{good*", "-unsubscribe", "-ping")
	s, other := open("some"), open("")
	var running sync.WaitGroup
	for i := range 20 { // so that some share a command
		running.Go(func() {
			_, err := s.Subscribe(t.Context(), backend.SubscribeRequest{
				Name: fmt.Sprint("bad", i), Wake: func(backend.Wakeup) {},
			})
			WantKind(t, err, backend.Refused)
		})
		running.Go(func() {
			l := Subscribe(t, s, fmt.Sprint("good", i))
			Free(t, other, l.Name)
			l.Wait()
			// The server refuses to unsubscribe, which must not confuse anybody.
			l.Sub.Close()
			l = Subscribe(t, s, l.Name)
			Free(t, other, l.Name)
			l.Wait()
		})
	}
	running.Wait()
}

// SurvivesAHang checks that Subscribe returns an error once the client notices that the server is
// silent. The client of s must give up such a server soon. Later s wakes its subscribers.
func SurvivesAHang(t *testing.T, server *testservers.Server, s Session) {
	l := Subscribe(t, s, "a")
	server.Stop()
	_, err := s.Subscribe(t.Context(), backend.SubscribeRequest{
		Name: "b", Wake: func(backend.Wakeup) {},
	})
	if err == nil || backend.KindOf(err) == backend.Refused {
		t.Errorf("subscribe to a server that hangs: %v", err)
	}
	server.Cont()
	l.Wait()
}
