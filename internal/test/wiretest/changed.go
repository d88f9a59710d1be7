package wiretest

import (
	"errors"
	"testing"
	"time"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/internal/test/testservers"
)

// Changed tests that a subscriber is notified when its connection breaks, and when it is subscribed
// again, on one server or a cluster.
func Changed(t *testing.T, servers []*testservers.Server, b backend.Backend) {
	for _, kind := range []backend.Kind{backend.Exclusive, backend.Write, backend.Permits,
		backend.Fair} {
		t.Run(kind.String(), func(t *testing.T) {
			s := open(t, b)
			name := "changed " + kind.String()
			subscribe := func() (sub backend.Subscription, changes chan error, woke chan bool) {
				changes, woke = make(chan error, 100), make(chan bool, 100)
				sub = Must[backend.Subscription](t)(
					s.Subscribe(t.Context(), backend.SubscribeRequest{Kind: kind, Name: name,
						Wake:    func(backend.Wakeup) { woke <- true },
						Granted: func(backend.Grant) {},
						Changed: func(broken error) { changes <- broken },
					}))
				return sub, changes, woke
			}
			sub, changes, woke := subscribe()
			// a fair lock has a channel for each waiting client: here for b and c
			if kind == backend.Fair {
				for _, req := range []backend.AcquireRequest{{Owner: "a:1"},
					{Owner: "b:1", Place: Lease}, {Owner: "c:1", Place: Lease}} {
					req.Kind, req.Name, req.Lease = kind, name, Lease
					Must[backend.AcquireResult](t)(s.Acquire(t.Context(), req))
				}
			}
			for range 2 {
				if len(changes) > 0 {
					t.Fatalf("told %v although nothing has broken", <-changes)
				}
				for _, server := range servers {
					server.Do("CLIENT", "KILL", "TYPE", "pubsub")
				}
				if err := change(t, changes); err == nil {
					t.Error("told that it stands, and not that it broke")
				} else if _, kinded := errors.AsType[*backend.Error](err); !kinded {
					t.Errorf("it broke: %v, which has no kind", err)
				}
				if err := change(t, changes); err != nil {
					t.Errorf("told again: %v", err)
				}
				select {
				case <-woke:
				case <-time.After(testservers.Patience):
					t.Error("nobody was woken")
				}
			}
			_, witness, _ := subscribe()
			sub.Close()
			for _, server := range servers {
				server.Do("CLIENT", "KILL", "TYPE", "pubsub")
			}
			change(t, witness)
			change(t, witness)
			if len(changes) > 0 {
				t.Errorf("told %v after Close", <-changes)
			}
		})
	}
}

func change(t *testing.T, changes <-chan error) error {
	t.Helper()
	select {
	case err := <-changes:
		return err
	case <-time.After(testservers.Patience):
		t.Fatal("nobody was told")
		return nil
	}
}
