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

// Permissions tests users that lack permissions for commands within scripts.
func Permissions(t *testing.T, p Package, server *testservers.Server) {
	ctx, cancel := context.WithTimeout(t.Context(), testservers.Patience)
	defer cancel()

	// The documented permissions are enough.
	t.Run("the least", func(t *testing.T) {
		server.Do("ACL", "SETUSER", "least", "on", ">secret", "~lock:*",
			"~redisson_lock__channel:*", "resetchannels", "&redisson_lock__channel:*",
			"-@all", "+eval", "+evalsha", "+exists", "+hexists", "+hincrby", "+hget", "+hkeys",
			"+hlen", "+hvals", "+pexpire", "+pttl", "+del",
			"+publish", "+subscribe", "+unsubscribe", "+ping", "+pubsub",
			"+hello", "+client") // needed by the clients themselves
		s := open(t, p.Server(t, server.Addr, Options{User: "least", Prefix: "lock:"}))
		other := open(t, p.Server(t, server.Addr, Options{}))
		l := Subscribe(t, s, "n")
		for range 2 { // the lock is free again after each round
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

	// Locks work without permission for the channel. A release frees the lock, but can't notify the
	// waiters, so they poll.
	t.Run("no channels", func(t *testing.T) {
		server.Do("ACL", "SETUSER", "mute", "on", ">secret", "~*", "+@all", "resetchannels")
		log := new(record)
		logger := dlock.WithLogger(slog.New(slog.NewTextHandler(log, nil)))
		b := p.Server(t, server.Addr, Options{User: "mute"})
		holder, waiter := locks(t, b, logger).Locker("n"),
			locks(t, b, logger, dlock.WithLease(time.Second)).Locker("n")
		if err := holder.LockContext(ctx); err != nil {
			t.Fatal(err)
		}
		waited := make(chan error, 1)
		go func() { waited <- waiter.LockContext(ctx) }()
		testservers.Until(t, "the waiter's polling is logged", func() bool {
			return log.contains("NOPERM")
		})
		holder.Unlock()
		if err := <-waited; err != nil {
			t.Errorf("who waits: %v", err)
		}
	})

	// Only a release passes the channel's name as a key. Locks work even if the user has no
	// permission for that key.
	t.Run("no channels among the keys", func(t *testing.T) {
		server.Do("ACL", "SETUSER", "narrow", "on", ">secret", "~narrow*", "~{narrow}*",
			"~distsync_rwlock_notes:*", "~redisson_lock_token:*", "&*", "+@all")
		b := p.Server(t, server.Addr, Options{User: "narrow"})
		holder, waiter := locks(t, b), locks(t, b, dlock.WithLease(time.Second))
		for name, kind := range map[string]func(*dlock.Client) *dlock.Locker{
			"plain":  func(c *dlock.Client) *dlock.Locker { return c.Locker("narrow") },
			"fenced": func(c *dlock.Client) *dlock.Locker { return c.FencedLocker("narrow") },
			"read":   func(c *dlock.Client) *dlock.Locker { return c.RWLocker("narrow").Reader() },
			"write":  func(c *dlock.Client) *dlock.Locker { return c.RWLocker("narrow").Writer() },
		} {
			held := kind(holder)
			if err := held.LockContext(ctx); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			waited := make(chan error, 1)
			go func() {
				waited <- kind(waiter).Do(ctx, func(context.Context) error { return nil })
			}()
			if err := held.UnlockContext(ctx); err != nil {
				t.Errorf("%s: unlock: %v", name, err)
			}
			if err := <-waited; err != nil {
				t.Errorf("%s: who waits: %v", name, err)
			}
			testservers.Until(t, name+" is free", func() bool {
				return server.Do("EXISTS", "narrow") == "0"
			})
		}
	})

	// Without permission for PEXPIRE, a lock would never expire. So an attempt fails, and the
	// client releases the lock. Calls that would wait return an error at once, because otherwise
	// they would wait forever.
	t.Run("no expiry", func(t *testing.T) {
		server.Do("ACL", "SETUSER", "eternal", "on", ">secret", "~*", "&*", "+@all", "-pexpire")
		c := locks(t, p.Server(t, server.Addr, Options{User: "eternal"}))
		ok, err := c.Locker("eternal").TryLock(ctx)
		if ok || err == nil || !strings.Contains(err.Error(), "script") {
			t.Errorf("TryLock: %v, %v; want an error about the script", ok, err)
		}
		err = c.Locker("eternal").LockContext(ctx)
		if err == nil || ctx.Err() != nil ||
			!strings.Contains(err.Error(), "permissions that the backend's package") {
			t.Errorf("LockContext: %v, want an error that says what to do", err)
		}
		testservers.Until(t, "it is taken back", func() bool {
			return server.Do("EXISTS", "eternal") == "0"
		})
	})

	// The documented permissions are enough for Once to find that the work is done.
	t.Run("once", func(t *testing.T) {
		key := func(by string) (bool, error) {
			c := locks(t, p.Server(t, server.Addr, Options{User: "least", Prefix: "lock:"}))
			return c.Once(ctx, "report", by, time.Minute, func(context.Context) error {
				return nil
			})
		}
		for _, want := range []bool{true, false} {
			if ran, err := key("today"); ran != want || err != nil {
				t.Errorf("Once: %v, %v; want %v", ran, err, want)
			}
		}
	})
}

// A record holds logged text.
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
