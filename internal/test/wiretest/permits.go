package wiretest

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/internal/test/testservers"
)

// numbers returns the values of Permits and Limit that a step has by default. For a semaphore these
// are 1 and 1, and for other kinds 0 and 0.
func numbers(kind backend.Kind) (permits, limit int) {
	if kind == backend.Permits {
		return 1, 1
	}
	return 0, 0
}

// The second key of the semaphore "n", and its channel.
const (
	permitsKey     = "{n}:timeout"
	permitsChannel = "redisson_sc:{n}"
)

// alicesPermits and bobsPermits are the prefixes of the ids of Alice's and Bob's permits.
var alicesPermits, bobsPermits = permitsOf(Alice), permitsOf(Bob)

func permitsOf(owner string) string {
	sum := sha256.Sum256([]byte(owner))
	return string(sum[:12])
}

// gets returns a step that asks a semaphore for permits.
func gets(owner string, permits, limit int) taken {
	return func(ctx context.Context, s Session) (string, error) {
		req := Acquire(owner)
		req.Kind, req.Permits, req.Limit = backend.Permits, permits, limit
		res, err := s.Acquire(ctx, req)
		switch {
		case errors.Is(err, backend.ErrNoLimit), errors.Is(err, backend.ErrTooMany):
			return err.Error(), nil
		case !res.Acquired && res.Remaining > 0:
			return "held", err
		default:
			return fmt.Sprint("acquired ", res.Count), err
		}
	}
}

// puts returns a step that releases permits.
func puts(owner string, permits int) taken {
	return func(ctx context.Context, s Session) (string, error) {
		req := Release(owner)
		req.Kind, req.Permits = backend.Permits, permits
		res, err := s.Release(ctx, req)
		return res.Outcome.String(), err
	}
}

var permitsOnWire = []wired{
	{"of nobody knows how many", gets(Alice, 2, 0), backend.ErrNoLimit.Error(),
		[]any{3, "n", permitsKey, permitsChannel, 30000, alicesPermits, 2, 0, 10000}, ""},
	{"two of three", gets(Alice, 2, 3), "acquired 2",
		[]any{3, "n", permitsKey, permitsChannel, 30000, alicesPermits, 2, 3, 10000}, "1"},
	{"two of three again", gets(Alice, 2, 3), "acquired 2",
		[]any{3, "n", permitsKey, permitsChannel, 30000, alicesPermits, 2, 3, 10000}, ""},
	{"too many", gets(Bob, 4, 0), backend.ErrTooMany.Error(),
		[]any{3, "n", permitsKey, permitsChannel, 30000, bobsPermits, 4, 0, 10000}, ""},
	{"more than there are now", gets(Bob, 2, 0), "held",
		[]any{3, "n", permitsKey, permitsChannel, 30000, bobsPermits, 2, 0, 10000}, ""},
	{"the last", acquires(backend.Permits, Bob), "held",
		[]any{3, "n", permitsKey, permitsChannel, 30000, bobsPermits, 1, 1, 10000}, ""},
	{"the last of more", gets(Bob, 1, 4), "acquired 1",
		[]any{3, "n", permitsKey, permitsChannel, 30000, bobsPermits, 1, 4, 10000}, "1"},
	{"renew one", renews(backend.Permits, Bob), "true",
		[]any{3, "n", permitsKey, permitsChannel, 30000, bobsPermits, 1}, ""},
	{"renew one in a batch", renewsInBatch(backend.Permits, Bob), "true",
		[]any{3, "n", permitsKey, permitsChannel, 30000, bobsPermits, 1}, ""},
	{"give two back", puts(Alice, 2), "freed",
		[]any{3, "n", permitsKey, permitsChannel, alicesPermits, 2}, "3"},
	{"give back what is back", puts(Alice, 2), "not held",
		[]any{3, "n", permitsKey, permitsChannel, alicesPermits, 2}, ""},
	{"renew what is back", renews(backend.Permits, Alice), "false",
		[]any{3, "n", permitsKey, permitsChannel, 30000, alicesPermits, 1}, ""},
	{"force", forces(backend.Permits), "true", []any{3, "n", permitsKey, permitsChannel}, "4"},
	{"force what is back", forces(backend.Permits), "false",
		[]any{3, "n", permitsKey, permitsChannel}, ""},
}

// Permits checks that each step on a semaphore is one script, with the right keys, arguments and
// messages.
func Permits(t *testing.T, p Package, server *testservers.Server) {
	s, client := open(t, p.Server(t, server.Addr, Options{})), connect(t, server.Addr)
	t.Run("the server doesn't know the scripts", func(t *testing.T) {
		m := Watch(t, server.Addr)
		for _, c := range permitsOnWire {
			server.Do("SCRIPT", "FLUSH")
			m.All()
			c.take(t, s)
			wantScriptCall(t, m.Commands(), c.sends...)
		}
		client.Del(t.Context(), "n") // removes the limit
	})
	for _, c := range permitsOnWire {
		c.take(t, s)
	}
	client.Del(t.Context(), "n")
	t.Run("it knows them", func(t *testing.T) {
		m, messages := Watch(t, server.Addr), listen(t, client, permitsChannel)
		m.All()
		for _, c := range permitsOnWire {
			c.take(t, s)
			wantCommands(t, m, `"EVALSHA" "SHA" `+Quoted(c.sends...))
			if c.message != "" {
				wantMessage(t, messages, permitsChannel, c.message)
			}
		}
		client.Publish(t.Context(), permitsChannel, "the end")
		wantMessage(t, messages, permitsChannel, "the end")
		if keys, left := client.Keys(t.Context(), "*").Val(), client.Get(t.Context(), "n").
			Val(); fmt.Sprint(keys) != "[n]" || left != "4" {
			t.Errorf("keys %q are left, and %s permits", keys, left)
		}
	})
	t.Run("look", func(t *testing.T) {
		m := Watch(t, server.Addr)
		look := func(owner string, limit int) string {
			t.Helper()
			m.All()
			res := Must[backend.LookResult](t)(s.Look(t.Context(),
				backend.LookRequest{
					Kind: backend.Permits, Name: "n", Owner: owner, Permits: 2, Limit: limit,
				}))
			if got := m.Commands(); len(got) != 1 {
				t.Errorf("it was looked at with %q", got)
			}
			return fmt.Sprint(res.Held, " ", res.Count, " ", res.Available)
		}
		for _, c := range []struct {
			owner string
			limit int
			want  string
		}{{"", 0, "false 0 4"}, {Alice, 7, "false 0 7"}} {
			if got := look(c.owner, c.limit); got != c.want {
				t.Errorf("%q sees %s, want %s", c.owner, got, c.want)
			}
		}
		Must[string](t)(gets(Alice, 2, 4)(t.Context(), s))
		for _, c := range []struct {
			owner string
			limit int
			want  string
		}{{"", 0, "true 0 2"}, {Alice, 0, "true 2 2"}, {Bob, 3, "true 0 1"},
			{Alice, 1, "true 2 0"}} {
			if got := look(c.owner, c.limit); got != c.want {
				t.Errorf("%q sees %s, want %s", c.owner, got, c.want)
			}
		}
		Must[string](t)(puts(Alice, 2)(t.Context(), s))
	})
	t.Run("from an acquisition to its release", func(t *testing.T) {
		c := locks(t, p.Server(t, server.Addr, Options{}))
		pair := func() {
			h, err := c.Semaphore("another", 3).Acquire(t.Context(), 2)
			if err != nil {
				t.Fatal(err)
			}
			if err := h.Release(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		pair() // makes the scripts known to the server
		m := Watch(t, server.Addr)
		pair()
		if got := m.Commands(); len(got) != 2 || !strings.HasPrefix(got[0], `"EVALSHA"`) ||
			!strings.HasPrefix(got[1], `"EVALSHA"`) {
			t.Errorf("%q", got)
		}
	})
	t.Run("who waits", func(t *testing.T) {
		other := open(t, p.Server(t, server.Addr, Options{}))
		own, others := SubscribeTo(t, s, backend.Permits, "n"),
			SubscribeTo(t, other, backend.Permits, "n")
		Must[string](t)(gets(Alice, 2, 4)(t.Context(), s))
		req := Release(Alice)
		req.Kind, req.Permits, req.AskWaiting = backend.Permits, 2, true
		res := Must[backend.ReleaseResult](t)(s.Release(t.Context(), req))
		if want := (backend.ReleaseResult{
			Outcome: backend.Freed, Counted: true, Waiting: 1,
		}); res != want {
			t.Errorf("%+v, want %+v", res, want)
		}
		for _, l := range []*Listener{own, others} {
			l.Wait()
			l.Sub.Close()
		}
	})
	t.Run("a name in braces", func(t *testing.T) { refusesBraces(t, p, server, backend.Permits) })
}
