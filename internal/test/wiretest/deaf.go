package wiretest

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/dlock"
	"github.com/seed951563bd/distsync/internal/test/testservers"
)

// Deaf tests a server without SUBSCRIBE, or a proxy that doesn't forward it. Each subscription must
// fail with an error that names a remedy, and waiters must poll.
func Deaf(t *testing.T, p Package, server *testservers.Server) {
	ctx, cancel := context.WithTimeout(t.Context(), testservers.Patience)
	defer cancel()
	b := p.Server(t, server.Addr, Options{})

	s := open(t, b)
	for range 3 {
		_, err := s.(backend.Notifier).Subscribe(ctx, backend.SubscribeRequest{
			Name: "n", Wake: func(backend.Wakeup) {},
		})
		WantKind(t, err, backend.Refused)
		if err != nil && !strings.Contains(err.Error(), "connect to the server itself") {
			t.Errorf("%v doesn't say what to do", err)
		}
	}

	log := new(record)
	logger := dlock.WithLogger(slog.New(slog.NewTextHandler(log, nil)))
	holder, waiter := locks(t, b, logger), locks(t, b, logger, dlock.WithLease(time.Second))
	for name, kind := range map[string]func(*dlock.Client) *dlock.Locker{
		"plain": func(c *dlock.Client) *dlock.Locker { return c.Locker("plain") },
		"read":  func(c *dlock.Client) *dlock.Locker { return c.RWLocker("rw").Reader() },
		"fair":  func(c *dlock.Client) *dlock.Locker { return c.FairLocker("fair") },
	} {
		held := kind(holder)
		if name == "read" {
			held = holder.RWLocker("rw").Writer()
		}
		if err := held.LockContext(ctx); err != nil {
			t.Fatal(err)
		}
		waited := make(chan error, 1)
		go func() { waited <- kind(waiter).LockContext(ctx) }()
		testservers.Until(t, "the waiter's polling is logged", func() bool {
			return log.contains("waiters poll")
		})
		held.Unlock()
		if err := <-waited; err != nil {
			t.Errorf("%s: who waits: %v", name, err)
		}
	}
}
