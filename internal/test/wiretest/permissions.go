package wiretest

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/dlock"
	"github.com/seed951563bd/distsync/internal/test/testservers"
)

// Permissions tests locks of users who may not do all that a lock needs, in the middle of scripts.
func Permissions(t *testing.T, p Package, server *testservers.Server) {
	ctx, cancel := context.WithTimeout(t.Context(), testservers.Patience)
	defer cancel()

	// What the documentation asks for is enough.
	t.Run("the least", func(t *testing.T) {
		server.Do("ACL", "SETUSER", "least", "on", ">secret", "~lock:*", "~redisson_lock__channel:*", "resetchannels", "&redisson_lock__channel:*",
			"-@all", "+eval", "+evalsha", "+exists", "+hexists", "+hincrby", "+hget", "+hlen", "+hvals", "+pexpire", "+pttl", "+del",
			"+publish", "+subscribe", "+unsubscribe", "+ping", "+pubsub",
			"+hello", "+client") // of the clients themselves
		s := open(t, p.Server(t, server.Addr, Options{User: "least", Prefix: "lock:"}))
		other := open(t, p.Server(t, server.Addr, Options{}))
		l := Subscribe(t, s, "n")
		for range 2 { // the second time nothing is held
			for _, step := range Steps {
				if err := step.Run(ctx, s); err != nil {
					t.Errorf("%s: %v", step.Name, err)
				}
			}
			Must[backend.ReleaseResult](t)(s.Release(ctx, Release(Bob)))
		}
		wantWaiting(t, s, "n", 0, "nobody else waits")
		l.Wait()
		connect(t, server.Addr).HSet(ctx, "lock:user", "name", "bob")
		_, err := s.Acquire(ctx, backend.AcquireRequest{Name: "user", Owner: Alice, Lease: Lease})
		WantKind(t, err, backend.Refused)
		Free(t, other, "lock:n")
		l.Wait()
	})

	// Without permission for the channel locks work: the release frees, and says that it could tell
	// nobody; who waits looks again.
	t.Run("no channels", func(t *testing.T) {
		server.Do("ACL", "SETUSER", "mute", "on", ">secret", "~*", "+@all", "resetchannels")
		log := new(record)
		logger := dlock.WithLogger(slog.New(slog.NewTextHandler(log, nil)))
		b := p.Server(t, server.Addr, Options{User: "mute"})
		holder, waiter := locks(t, b, logger).Locker("n"), locks(t, b, logger, dlock.WithLease(time.Second)).Locker("n")
		if err := holder.LockContext(ctx); err != nil {
			t.Fatal(err)
		}
		waited := make(chan error, 1)
		go func() { waited <- waiter.LockContext(ctx) }()
		testservers.Until(t, "the waiter's polling is logged", func() bool { return log.contains("NOPERM") })
		holder.Unlock()
		if err := <-waited; err != nil {
			t.Errorf("who waits: %v", err)
		}
	})

	// Without permission for PEXPIRE a lock would never end. Nobody gets it, and it is taken back.
	t.Run("no expiry", func(t *testing.T) {
		server.Do("ACL", "SETUSER", "eternal", "on", ">secret", "~*", "&*", "+@all", "-pexpire")
		c := locks(t, p.Server(t, server.Addr, Options{User: "eternal"}))
		ok, err := c.Locker("eternal").TryLock(ctx)
		if ok || err == nil || !strings.Contains(err.Error(), "script") {
			t.Errorf("TryLock: %v, %v; want an error about the script", ok, err)
		}
		testservers.Until(t, "it is taken back", func() bool { return server.Do("EXISTS", "eternal") == "0" })
	})
}

// A record is what was logged.
type record struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (r *record) Write(b []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.text.Write(b)
}

func (r *record) contains(text string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return strings.Contains(r.text.String(), text)
}
