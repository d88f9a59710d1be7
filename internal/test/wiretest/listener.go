package wiretest

import (
	"context"
	"testing"
	"time"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/internal/test/testservers"
)

// A Listener holds a subscription to a name.
type Listener struct {
	Name string
	Sub  backend.Subscription

	t    testing.TB
	woke chan bool
}

// Subscribe subscribes to the lock with the given name. If it can't, the test fails and Subscribe
// returns nil. Subscribe may be called from any goroutine.
func Subscribe(t testing.TB, s backend.Notifier, name string) *Listener {
	t.Helper()
	return SubscribeTo(t, s, backend.Exclusive, name)
}

// SubscribeTo is like Subscribe, but for a lock of another kind.
func SubscribeTo(t testing.TB, s backend.Notifier, kind backend.Kind, name string) *Listener {
	t.Helper()
	l := &Listener{Name: name, t: t, woke: make(chan bool, 100)}
	ctx, cancel := context.WithTimeout(t.Context(), testservers.Patience)
	defer cancel()
	wake := func(backend.Wakeup) {
		select {
		case l.woke <- true:
		default: // further wake-ups may be dropped
		}
	}
	var err error
	for {
		l.Sub, err = s.Subscribe(ctx, backend.SubscribeRequest{Kind: kind, Name: name, Wake: wake})
		if err == nil || ctx.Err() != nil || backend.KindOf(err) == backend.Refused {
			break
		}
		time.Sleep(10 * time.Millisecond) // it is repeated, as package dlock does
	}
	if err != nil {
		t.Errorf("subscribe to %s: %v", name, err)
		return nil
	}
	return l
}

// Wait waits for a wake-up and returns true. If none comes, Wait fails the test and returns false.
func (l *Listener) Wait() bool {
	l.t.Helper()
	select {
	case <-l.woke:
		return true
	case <-time.After(testservers.Patience):
		l.t.Errorf("nothing has woken those who wait for %s", l.Name)
		return false
	}
}

// Heard reports whether there has been a wake-up since the last call to Heard.
func (l *Listener) Heard() (heard bool) {
	for {
		select {
		case <-l.woke:
			heard = true
		default:
			return heard
		}
	}
}

// Free acquires a lock and releases it, so that a message is published.
func Free(t testing.TB, s backend.Session, name string) {
	t.Helper()
	Must[backend.AcquireResult](t)(s.Acquire(t.Context(), backend.AcquireRequest{
		Name: name, Owner: Alice, Lease: Lease,
	}))
	Must[backend.ReleaseResult](t)(s.Release(t.Context(), backend.ReleaseRequest{
		Name: name, Owner: Alice, Lease: Lease,
	}))
}
