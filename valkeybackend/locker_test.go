package valkeybackend_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/dlock"
	"github.com/seed951563bd/distsync/internal/test/testservers"
	"github.com/seed951563bd/distsync/internal/test/wiretest"
	"github.com/seed951563bd/distsync/redisbackend"
	"github.com/seed951563bd/distsync/valkeybackend"
)

func locks(t *testing.T, b backend.Backend, opts ...dlock.Option) *dlock.Client {
	t.Helper()
	c := dlock.New(b, opts...)
	t.Cleanup(func() { c.Close() })
	return c
}

func TestLockAndUnlockAreTwoCommands(t *testing.T) {
	server := testservers.Valkey(t)
	l := locks(t, valkeybackend.New(connect(t, server.Addr))).Locker("n")
	pair := func() {
		l.Lock()
		defer l.Unlock()
	}
	pair() // loads the scripts

	m := wiretest.Watch(t, server.Addr)
	for range 3 {
		pair()
	}
	commands := m.Commands()
	if len(commands) != 6 {
		t.Fatalf("three uncontended pairs are %d commands:\n%s", len(commands),
			strings.Join(commands, "\n"))
	}
	for i, c := range commands {
		if !strings.HasPrefix(c, `"EVALSHA"`) {
			t.Errorf("command %d is %s", i, c)
		}
	}
}

// Locks of both kinds of client are the same locks: they exclude and wake each other.
func TestTogetherWithGoRedis(t *testing.T) {
	onServers(t, func(t *testing.T, server *testservers.Server) {
		// Nobody looks again within such a lease: a waiter that gets in was woken.
		vk := locks(t, valkeybackend.New(connect(t, server.Addr)), dlock.WithLease(time.Hour))
		rdb := locks(t, redisbackend.New(admin(t, server.Addr)), dlock.WithLease(time.Hour))
		ctx, cancel := context.WithTimeout(t.Context(), testservers.Patience)
		defer cancel()

		t.Run("wake-ups", func(t *testing.T) {
			for i := range 10 {
				holder, waiter := vk.Locker(fmt.Sprint("n", i)), rdb.Locker(fmt.Sprint("n", i))
				if i%2 == 1 {
					holder, waiter = rdb.Locker(waiter.Name()), vk.Locker(waiter.Name())
				}
				holder.Lock()
				if ok, err := waiter.TryLock(ctx); ok || err != nil {
					t.Fatalf("TryLock of what another holds: %v, %v", ok, err)
				}
				waited := make(chan error, 1)
				go func() { waited <- waiter.LockContext(ctx) }()
				testservers.Until(t, "somebody waits", func() bool {
					return server.Do("PUBSUB", "NUMPAT") == "0" &&
						subscribers(server, waiter.Name()) > 0
				})
				holder.Unlock()
				if err := <-waited; err != nil {
					t.Fatalf("who waits: %v", err)
				}
				waiter.Unlock()
			}
		})

		t.Run("exclusion", func(t *testing.T) {
			const goroutines, rounds = 4, 25
			counter := admin(t, server.Addr)
			var all sync.WaitGroup
			for _, c := range []*dlock.Client{vk, rdb} {
				for range goroutines {
					all.Go(func() {
						l := c.Locker("counted")
						for range rounds {
							if err := l.LockContext(ctx); err != nil {
								t.Errorf("lock: %v", err)
								return
							}
							n, _ := counter.Get(ctx, "counter").Int() // there is none at first
							counter.Set(ctx, "counter", n+1, 0)
							l.Unlock()
						}
					})
				}
			}
			all.Wait()
			if n := wiretest.Must[int](t)(counter.Get(ctx, "counter").
				Int()); n != 2*goroutines*rounds {
				t.Errorf("%d additions are left of %d", n, 2*goroutines*rounds)
			}
		})
	})
}

// subscribers is how many wait for a lock, as far as they have subscribed.
func subscribers(server *testservers.Server, name string) int {
	// PUBLISH says how many it has reached, and this message means nothing to them.
	n := 0
	fmt.Sscan(server.Do("PUBLISH", "redisson_lock__channel:{"+name+"}", "anybody?"), &n)
	return n
}

// Whatever is wrong with a server, nobody gets a lock, and the error says what it is: at once, or
// when the call's context ends.
func TestWrongServers(t *testing.T) {
	t.Parallel()
	server := testservers.Valkey(t)
	server.Do("ACL", "SETUSER", "noscripts", "on", ">secret", "~*", "&*", "+@all", "-eval",
		"-evalsha")
	server.Do("ACL", "SETUSER", "nokeys", "on", ">secret", "~other", "&*", "+@all")
	_, slaves := testservers.ValkeyReplicated(t, 1)
	odd := testservers.Valkey(t, "--rename-command", "EVAL", "")
	for name, test := range map[string]struct {
		addr   string
		change option
		says   string
	}{
		"down": {
			fmt.Sprintf("127.0.0.1:%d", testservers.FreePort(t)), impatient, "connection refused",
		},
		"wrong password": {server.Addr, as("nobody"), "WRONGPASS"},
		"no scripts":     {server.Addr, as("noscripts"), "NOPERM"},
		"no such keys":   {server.Addr, as("nokeys"), "NOPERM"},
		"replica":        {slaves[0].Addr, impatient, "READONLY"},
		"no EVAL":        {odd.Addr, impatient, "EVAL and EVALSHA pass"},
	} {
		t.Run(name, func(t *testing.T) {
			for _, o := range []wiretest.Options{{}, {Sharded: true},
				{Replicas: 1, Timeout: wiretest.Scant}} {
				b := valkeybackend.New(connectLater(t, test.addr, test.change), options(o)...)
				l := locks(t, b).Locker("n")
				if ok, err := l.TryLock(t.Context()); ok || err == nil ||
					!strings.Contains(err.Error(), test.says) {
					t.Errorf("TryLock: %v, %v; want an error that says %s", ok, err, test.says)
				}
				// It may end in the middle of an attempt, of which there is nothing to say then.
				testservers.Until(t, "LockContext says "+test.says, func() bool {
					ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
					defer cancel()
					err := l.LockContext(ctx)
					if err == nil {
						t.Fatal("LockContext: no error")
					}
					return strings.Contains(err.Error(), test.says)
				})
			}
		})
	}
	if n := server.Do("DBSIZE"); n != "0" {
		t.Errorf("%s keys stay behind", n)
	}
}

func TestWithoutSubscriptions(t *testing.T) {
	wiretest.Deaf(t, this, testservers.Valkey(t, "--rename-command", "SUBSCRIBE", ""))
}

func TestPermissions(t *testing.T) {
	t.Parallel()
	onServers(t, func(t *testing.T, server *testservers.Server) {
		wiretest.Permissions(t, this, server)
	})
}

func TestCallsReturnWithTheirContextWhileTheServerHangs(t *testing.T) {
	server := testservers.Valkey(t)
	c := locks(t, valkeybackend.New(connect(t, server.Addr)))
	held := c.Locker("held")
	held.Lock()
	server.Stop()
	defer server.Cont()
	calls := map[string]func(ctx context.Context) error{
		"lock": func(ctx context.Context) error { return c.Locker("a").LockContext(ctx) },
		"trylock": func(ctx context.Context) error {
			_, err := c.Locker("b").TryLock(ctx)
			return err
		},
		"islocked": func(ctx context.Context) error {
			_, err := c.Locker("a").IsLocked(ctx)
			return err
		},
	}
	var all sync.WaitGroup
	for name, call := range calls {
		all.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
			defer cancel()
			if err := call(ctx); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%s: %v", name, err)
			}
		})
	}
	all.Wait()
	server.Cont()
	if err := held.UnlockContext(t.Context()); err != nil {
		t.Error(err)
	}
	testservers.Until(t, "everything is taken back", func() bool {
		return server.Do("DBSIZE") == "0"
	})
}

// A server that answers nobody for a while delays waiters for no longer than that.
func TestServerPauses(t *testing.T) {
	t.Parallel()
	wiretest.Paused(t, this, testservers.Valkey(t))
}
