package wiretest

import (
	"context"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/seed951563bd/distsync/dlock"
	"github.com/seed951563bd/distsync/internal/test/testservers"
)

// Paused tests a server that doesn't answer for a while. Releases and waiters must not be delayed
// for longer than the pause. The test includes readers, because a read-write lock uses a different
// channel than a plain lock.
func Paused(t *testing.T, p Package, server *testservers.Server) {
	ctx, cancel := context.WithTimeout(t.Context(), testservers.Patience)
	defer cancel()
	b := p.Server(t, server.Addr, Options{})
	holder, waiter := locks(t, b), locks(t, b)
	admin := redis.NewClient(&redis.Options{Addr: server.Addr})
	t.Cleanup(func() { admin.Close() })
	type kind = func(c *dlock.Client, name string) *dlock.Locker
	plain := func(c *dlock.Client, name string) *dlock.Locker { return c.Locker(name) }
	read := func(c *dlock.Client, name string) *dlock.Locker { return c.RWLocker(name).Reader() }
	write := func(c *dlock.Client, name string) *dlock.Locker { return c.RWLocker(name).Writer() }
	for what, k := range map[string]struct{ held, wanted kind }{
		"plain": {plain, plain}, "read": {write, read}, "write": {write, write},
	} {
		for _, first := range []string{"the pause", "the waiter"} {
			name := what + " after " + first
			held, wanted := k.held(holder, name), k.wanted(waiter, name)
			if err := held.LockContext(ctx); err != nil {
				t.Fatal(err)
			}
			pause := func() { server.Do("CLIENT", "PAUSE", "300", "ALL") }
			if first == "the pause" {
				pause()
			}
			in := make(chan error, 1)
			go func() { in <- wanted.LockContext(ctx) }()
			if first == "the waiter" {
				testservers.Until(t, "somebody waits", func() bool {
					channels, err := admin.PubSubChannels(ctx, "*"+name+"*").Result()
					return err == nil && len(channels) > 0
				})
				pause()
			}
			if err := held.UnlockContext(ctx); err != nil {
				t.Errorf("%s: the release: %v", name, err)
			}
			if err := <-in; err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if err := wanted.UnlockContext(ctx); err != nil {
				t.Errorf("%s: the next release: %v", name, err)
			}
		}
	}
}
