package wiretest

import (
	"context"
	"testing"
	"time"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/internal/test/testservers"
)

// A Listener is subscribed to a name.
type Listener struct {
	Name string
	Sub  backend.Subscription

	t    testing.TB
	woke chan backend.Wakeup
}

// Subscribe returns nil if that fails, which the test does, too. It may be called from any goroutine.
func Subscribe(t testing.TB, s backend.Notifier, name string) *Listener {
	t.Helper()
	return SubscribeTo(t, s, backend.Exclusive, name)
}

// SubscribeTo is Subscribe for a lock of another kind.
func SubscribeTo(t testing.TB, s backend.Notifier, kind backend.Kind, name string) *Listener {
	t.Helper()
	l := &Listener{Name: name, t: t, woke: make(chan backend.Wakeup, 100)}
	ctx, cancel := context.WithTimeout(t.Context(), testservers.Patience)
	defer cancel()
	var err error
	l.Sub, err = s.Subscribe(ctx, backend.SubscribeRequest{Kind: kind, Name: name, Wake: func(w backend.Wakeup) {
		select {
		case l.woke <- w:
		default: // a wake-up too many costs nothing
		}
	}})
	if err != nil {
		t.Errorf("subscribe to %s: %v", name, err)
		return nil
	}
	return l
}

// Wait waits for a wake-up.
func (l *Listener) Wait() (w backend.Wakeup) {
	l.t.Helper()
	select {
	case w = <-l.woke:
	case <-time.After(testservers.Patience):
		l.t.Errorf("nothing has woken who waits for %s", l.Name)
	}
	return w
}

// Heard says whether there was such a wake-up since the last call.
func (l *Listener) Heard(want backend.Wakeup) (heard bool) {
	for {
		select {
		case w := <-l.woke:
			heard = heard || w == want
		default:
			return heard
		}
	}
}

// Free takes a lock and releases it, so that a message is published.
func Free(t testing.TB, s backend.Session, name string) {
	t.Helper()
	Must[backend.AcquireResult](t)(s.Acquire(t.Context(), backend.AcquireRequest{Name: name, Owner: Alice, Lease: Lease}))
	Must[backend.ReleaseResult](t)(s.Release(t.Context(), backend.ReleaseRequest{Name: name, Owner: Alice, Lease: Lease}))
}
