package wiretest

import (
	"fmt"
	"slices"
	"testing"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/contract/faults"
	"github.com/seed951563bd/distsync/internal/test/testservers"
)

// uncounted stands for the number of waiters if a release doesn't report it.
const uncounted = -1

// others returns the number of other waiters that a release reports, or uncounted.
func others(res backend.ReleaseResult) int {
	if !res.Counted {
		return uncounted
	}
	return res.Waiting
}

// waiting acquires and releases a lock, and returns the number of other waiters that the release
// reports.
func waiting(t *testing.T, s backend.Session, name string) int {
	t.Helper()
	Must[backend.AcquireResult](t)(s.Acquire(t.Context(), backend.AcquireRequest{
		Name: name, Owner: Alice, Lease: Lease,
	}))
	req := backend.ReleaseRequest{Name: name, Owner: Alice, Lease: Lease, AskWaiting: true}
	res := Must[backend.ReleaseResult](t)(s.Release(t.Context(), req))
	if res.Outcome != backend.Freed {
		t.Fatalf("release: %v", res.Outcome)
	}
	return others(res)
}

func wantWaiting(t *testing.T, s backend.Session, name string, want int, when string) {
	t.Helper()
	if got := waiting(t, s, name); got != want {
		t.Errorf("%s: Waiting %d, want %d", when, got, want)
	}
}

// Waiting tests, on one server, that a release reports the right number of waiters.
func Waiting(t *testing.T, p Package, server *testservers.Server) {
	s, other := open(t, p.Server(t, server.Addr, Options{})),
		open(t, p.Server(t, server.Addr, Options{}))
	const channel = "redisson_lock__channel:{n}"

	t.Run("who counts", func(t *testing.T) {
		wantWaiting(t, s, "n", 0, "nobody waits")
		own := Subscribe(t, s, "n")
		wantWaiting(t, s, "n", 0, "the session itself waits")
		client := connect(t, server.Addr)
		java := listen(t, client, channel) // subscribes as Redisson does
		wantWaiting(t, s, "n", 1, "the session itself and a Java program wait")
		own.Sub.Close()
		testservers.Until(t, "only the other waits", func() bool {
			return client.PubSubNumSub(t.Context(), channel).Val()[channel] == 1
		})
		// Until the session knows that its own subscription has ended, it can't tell whose
		// subscription the server counts.
		testservers.Until(t, "a Java program waits", func() bool { return waiting(t, s, "n") == 1 })
		java.Close()
		testservers.Until(t, "nobody waits any more", func() bool {
			return waiting(t, s, "n") == 0
		})
		Subscribe(t, other, "n").Sub.Close()
		testservers.Until(t, "another session waits no more", func() bool {
			return waiting(t, s, "n") == 0
		})
	})

	t.Run("a closed session", func(t *testing.T) {
		closed := p.Server(t, server.Addr, Options{}).Open().(Session)
		Subscribe(t, closed, "n")
		closed.Close()
		l := Subscribe(t, other, "n")
		if got := waiting(t, closed, "n"); got == 0 {
			t.Error("a session that was closed counts itself as one who waits")
		}
		l.Sub.Close() // the server notices the end of the subscription later
		testservers.Until(t, "nobody waits any more", func() bool {
			return waiting(t, s, "n") == 0
		})
	})

	t.Run("on the wire", func(t *testing.T) {
		waiting(t, s, "n")
		m := Watch(t, server.Addr)
		wantWaiting(t, s, "n", 0, "nobody waits")
		wantCommands(t, m,
			`"EVALSHA" "SHA" "1" "n" "30000" `+Quoted(Alice),
			`"EVALSHA" "SHA" "2" "n" `+Quoted(channel, 0, 30000, Alice),
			Quoted("PUBSUB", "NUMSUB", channel))
		// If the server doesn't know the script yet, the session still gets both the result of the
		// release and the number of waiters.
		server.Do("SCRIPT", "FLUSH")
		wantWaiting(t, s, "n", 0, "the script is not known")
	})

	t.Run("in one round trip", func(t *testing.T) {
		proxy := NewProxy(t, server.Addr, faults.RESP)
		far := open(t, p.Server(t, proxy.Addr(), Options{}))
		for range 64 { // a client may use one of several connections at random
			waiting(t, far, "n")
		}
		Must[backend.AcquireResult](t)(far.Acquire(t.Context(), Acquire(Alice)))
		m := Watch(t, server.Addr)
		proxy.Block(faults.ToClient)
		done := make(chan int, 1)
		go func() {
			req := Release(Alice)
			req.AskWaiting = true
			res, _ := far.Release(t.Context(), req)
			done <- others(res)
		}()
		var seen []string
		testservers.Until(t, "both commands come though nothing is answered", func() bool {
			seen = append(seen, m.Commands()...)
			return slices.Contains(seen, Quoted("PUBSUB", "NUMSUB", channel))
		})
		proxy.Unblock(faults.ToClient)
		if got := <-done; got != 0 {
			t.Errorf("Waiting %d", got)
		}
	})

	t.Run("holds are left", func(t *testing.T) {
		Must[backend.AcquireResult](t)(s.Acquire(t.Context(), Acquire(Alice)))
		Must[backend.AcquireResult](t)(s.Acquire(t.Context(), Acquire(Alice)))
		req := Release(Alice)
		req.AskWaiting = true
		for _, want := range []backend.ReleaseResult{
			{Outcome: backend.Left}, {Outcome: backend.Freed, Counted: true},
			{Outcome: backend.NotHeld},
		} {
			if got := Must[backend.ReleaseResult](t)(s.Release(t.Context(), req)); got != want {
				t.Errorf("release: %+v, want %+v", got, want)
			}
		}
	})

	t.Run("it may not be asked", func(t *testing.T) {
		server.Do("ACL", "SETUSER", "incurious", "on", ">secret", "~*", "&*", "+@all", "-pubsub")
		wantWaiting(t, open(t, p.Server(t, server.Addr, Options{User: "incurious"})), "n",
			uncounted, "PUBSUB is not allowed")
	})

	t.Run("sharded", func(t *testing.T) {
		s, other := open(t, p.Server(t, server.Addr, sharded)),
			open(t, p.Server(t, server.Addr, sharded))
		wantWaiting(t, s, "n", 0, "nobody waits")
		Subscribe(t, s, "n")
		wantWaiting(t, s, "n", 0, "the session itself waits")
		Subscribe(t, other, "n")
		wantWaiting(t, s, "n", 1, "another waits")
	})
}

// WaitingInCluster is like [Waiting], but in a cluster of three masters.
func WaitingInCluster(t *testing.T, p Package, nodes []*testservers.Server) {
	t.Run("sharded", func(t *testing.T) {
		s, other := open(t, p.Cluster(t, nodes, sharded)), open(t, p.Cluster(t, nodes, sharded))
		for i := range 10 {
			name := fmt.Sprint("name", i)
			wantWaiting(t, s, name, 0, "nobody waits")
			Subscribe(t, s, name)
			wantWaiting(t, s, name, 0, "the session itself waits")
			Subscribe(t, other, name)
			wantWaiting(t, s, name, 1, "another waits")
		}
		// After the move, the session asks the new owner of the slot.
		l := Subscribe(t, other, "name0")
		NewMove(t, nodes, "name0").Finish()
		testservers.Until(t, "the other waits at the new server", func() bool { return l.Heard() })
		testservers.Until(t, "the session itself has moved, too, and sees the other", func() bool {
			return waiting(t, s, "name0") == 1
		})
	})

	// A node knows only the subscribers that are connected to it. A release asks only one of the
	// three nodes. If that node knows none, the number is unknown.
	t.Run("not sharded", func(t *testing.T) {
		s, channel := open(t, p.Cluster(t, nodes, Options{})), "redisson_lock__channel:{n}"
		wantWaiting(t, s, "n", uncounted, "nobody waits")
		asked, another := Owners(t, nodes, "n")
		far := listen(t, connect(t, another.Addr), channel)
		wantWaiting(t, s, "n", uncounted, "one waits elsewhere")
		near := listen(t, connect(t, asked.Addr), channel)
		wantWaiting(t, s, "n", 1, "one waits here")
		Subscribe(t, s, "n")
		if got := waiting(t, s, "n"); got == 0 {
			t.Error("three wait, and nobody else is said to")
		}
		far.Close()
		near.Close()
		testservers.Until(t, "only the session itself waits", func() bool {
			return waiting(t, s, "n") == uncounted
		})
	})
}
