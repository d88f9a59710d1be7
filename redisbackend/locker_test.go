package redisbackend_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/seed951563bd/distsync/dlock"
	"github.com/seed951563bd/distsync/internal/test/testservers"
	"github.com/seed951563bd/distsync/internal/test/wiretest"
	"github.com/seed951563bd/distsync/redisbackend"
)

func client(t *testing.T, addr string, opts ...dlock.Option) *dlock.Client {
	t.Helper()
	c := dlock.New(redisbackend.New(connect(t, addr)), opts...)
	t.Cleanup(func() { c.Close() })
	return c
}

func TestLockAndUnlockAreTwoCommands(t *testing.T) {
	server := testservers.Redis(t)
	l := client(t, server.Addr).Locker("n")
	inside := 0
	pair := func() {
		l.Lock()
		inside++
		l.Unlock()
	}
	pair() // connects, and loads the scripts

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

func TestAThousandWaitersCostOneSubscription(t *testing.T) {
	t.Parallel()
	server := testservers.Redis(t)
	holder, c := client(t, server.Addr), client(t, server.Addr)
	holder.Locker("n").Lock()
	m := wiretest.Watch(t, server.Addr)

	const n = 1000
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	for range n {
		all.Go(func() {
			if err := c.Locker("n").LockContext(ctx); !errors.Is(err, context.Canceled) {
				t.Errorf("a cancelled waiter: %v", err)
			}
		})
	}
	defer all.Wait()
	defer cancel()
	admin := connect(t, server.Addr)
	testservers.Until(t, "a subscription stands", func() bool {
		return len(wiretest.Must[[]string](t)(admin.PubSubChannels(t.Context(), "*").Result())) == 1
	})
	begin := time.Now()
	testservers.Until(t, "some seconds have passed", func() bool {
		return time.Since(begin) > 3*time.Second
	})
	seconds := time.Since(begin).Seconds()
	commands := slices.DeleteFunc(m.Commands(), func(c string) bool {
		return strings.HasPrefix(c, `"PUBSUB"`)
	})
	subscriptions := 0
	for _, c := range commands {
		if strings.HasPrefix(c, `"SUBSCRIBE"`) {
			subscriptions++
		}
	}
	// The head's two tries and the subscription, and then two commands a second.
	if limit := 3 + 2*seconds; subscriptions != 1 || float64(len(commands)) > limit {
		t.Errorf("%d waiters cost %d subscriptions and %d commands in %.1f s; want 1 and at most "+
			"%.0f:\n%s",
			n, subscriptions, len(commands), seconds, limit, strings.Join(commands, "\n"))
	}
}

func TestCallsReturnWithTheirContextWhileTheServerHangs(t *testing.T) {
	t.Parallel()
	server := testservers.Redis(t)
	c := client(t, server.Addr)
	held := c.Locker("held")
	held.Lock()
	if _, err := held.IsLocked(t.Context()); err != nil {
		t.Fatal(err)
	}
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
		"unlock": held.UnlockContext,
	}
	var all sync.WaitGroup
	for name, call := range calls {
		all.Go(func() {
			ctx, cancel := context.WithCancel(t.Context())
			returned := make(chan error)
			go func() { returned <- call(ctx) }()
			cancel()
			err := <-returned
			// An unlock that finds its context over already tries all the same, and says that
			// nothing answered.
			if err == nil || name != "unlock" && !errors.Is(err, context.Canceled) {
				t.Errorf("%s: %v", name, err)
			}
		})
	}
	all.Wait()
	server.Cont()
	testservers.Until(t, "everything is taken back or released", func() bool {
		return server.Do("DBSIZE") == "0"
	})
}
