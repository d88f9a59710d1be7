package redisson_test

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/internal/test/testservers"
)

// placeLease is how long a place in line lasts unless it is kept. Package dlock uses the same time.
const placeLease = 3 * time.Second

// A visitor is an owner in Go at a fair lock, with a session of its own. It asks when the test says
// so. While it waits, it keeps its place each time that a third of the place's lease has passed,
// and it renews a lock that it is granted.
type visitor struct {
	t       *testing.T
	session backend.Session
	name    string
	owner   string
	lease   time.Duration
	told    chan backend.Grant
}

var visitors atomic.Int64

func (l *lab) visitor(t *testing.T, name string) *visitor {
	t.Helper()
	v := &visitor{t: t, session: l.backend(t).Open(), name: name,
		owner: fmt.Sprintf("visitor:%d", visitors.Add(1)), lease: longLease,
		told: make(chan backend.Grant, 100)}
	t.Cleanup(func() { v.session.Close() })
	_, err := v.session.(backend.Notifier).Subscribe(t.Context(), backend.SubscribeRequest{
		Kind: backend.Fair, Name: name,
		Wake:    func(backend.Wakeup) { v.told <- backend.Grant{Owner: v.owner} },
		Granted: func(g backend.Grant) { v.told <- g },
	})
	wantNil(t, "subscribe", err)
	return v
}

// try asks for the lock once. If the lock has a line, try asks for a place that lasts this long. It
// repeats a request that may have been lost, since a repeated request for a fair lock adds no hold.
func (v *visitor) try(place time.Duration) (acquired bool, err error) {
	for range 5 {
		var res backend.AcquireResult
		res, err = v.session.Acquire(v.t.Context(), backend.AcquireRequest{
			Kind: backend.Fair, Name: v.name, Owner: v.owner, Lease: v.lease, Place: place})
		if err == nil || backend.KindOf(err) == backend.Refused {
			return res.Acquired, err
		}
	}
	return false, err
}

func (v *visitor) wantTry(want bool) {
	v.t.Helper()
	if got, err := v.try(0); err != nil || got != want {
		v.t.Errorf("Go: acquire: %v, %v; want %v", got, err, want)
	}
}

// enter waits for the lock in the background.
func (v *visitor) enter(place time.Duration) <-chan error {
	inside := make(chan error, 1)
	var waiting sync.WaitGroup
	v.t.Cleanup(waiting.Wait)
	waiting.Go(func() {
		err := v.wait(place)
		if err != nil && v.t.Context().Err() == nil {
			v.t.Errorf("Go: acquire: %v", err)
		}
		inside <- err
	})
	return inside
}

func (v *visitor) wait(place time.Duration) error {
	for {
		if acquired, err := v.try(place); acquired || err != nil {
			return err
		}
		for asked := false; !asked; {
			select {
			case <-v.t.Context().Done():
				return v.t.Context().Err()
			case g := <-v.told:
				if g.Owner == v.owner && g.Lease > 0 {
					if held, err := v.renew(v.lease); held || err != nil {
						return err
					}
				}
				asked = g.Owner == v.owner
			case <-time.After(place / 3):
				res, err := v.session.(backend.Liner).KeepPlaces(v.t.Context(),
					backend.PlacesRequest{
						Kind: backend.Fair, Name: v.name, Owners: []string{v.owner}, Place: place})
				if err != nil {
					return err
				}
				asked = res.Holder == v.owner
			}
		}
	}
}

// renew makes the hold last for lease from now, since a grant lasts only for a moment.
func (v *visitor) renew(lease time.Duration) (bool, error) {
	res, err := v.session.Renew(v.t.Context(), backend.RenewRequest{
		Kind: backend.Fair, Name: v.name, Owner: v.owner, Lease: lease,
	})
	return res.Held, err
}

// release gives back the lock, or its place in line.
func (v *visitor) release(want backend.ReleaseOutcome) {
	v.t.Helper()
	res, err := v.session.Release(v.t.Context(), backend.ReleaseRequest{
		Kind: backend.Fair, Name: v.name, Owner: v.owner, Lease: longLease,
	})
	if err != nil || res.Outcome != want {
		v.t.Errorf("Go: release: %v, %v; want %v", res.Outcome, err, want)
	}
}

func (v *visitor) force() {
	v.t.Helper()
	res, err := v.session.ForceRelease(v.t.Context(), backend.ForceReleaseRequest{
		Kind: backend.Fair, Name: v.name,
	})
	if err != nil || !res.Released {
		v.t.Errorf("Go: force: %v, %v", res.Released, err)
	}
}

// inLine returns the owners in line for a fair lock, in order.
func (p *place) inLine(t *testing.T, name string) []string {
	t.Helper()
	owners, err := p.admin.LRange(t.Context(), queueKey(name), 0, -1).Result()
	if err != nil {
		t.Fatal(err)
	}
	return owners
}

// wantLine checks which owners are in line.
func (p *place) wantLine(t *testing.T, name string, want ...string) {
	t.Helper()
	if got := p.inLine(t, name); !slices.EqualFunc(got, want, strings.Contains) {
		t.Errorf("in line for %s: %q, want %q", name, got, want)
	}
}

// awaitPlace waits until an owner stands in line, and returns its name there. The name of a client
// in Go is its ID.
func (p *place) awaitPlace(t *testing.T, name, owner string) (called string) {
	t.Helper()
	testservers.Until(t, owner+" stands in line", func() bool {
		line := p.inLine(t, name)
		i := slices.IndexFunc(line, func(o string) bool { return strings.Contains(o, owner) })
		if i >= 0 {
			called = line[i]
		}
		return i >= 0
	})
	return called
}

// awaitListener waits until an owner in line listens to the message that Java sends to the next.
func (p *place) awaitListener(t *testing.T, name, owner string) {
	t.Helper()
	called := p.awaitPlace(t, name, owner)
	testservers.Until(t, owner+" listens", func() bool {
		return p.listeners(t, ownChannel(name, called)) > 0
	})
}
