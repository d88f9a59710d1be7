package etcdbackend_test

import (
	"sync"
	"testing"
	"time"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/internal/test/testservers"
	"github.com/seed951563bd/distsync/internal/test/wiretest"
)

// An ear is what a session is told of the fair lock "n".
type ear struct {
	t      *testing.T
	mu     sync.Mutex
	grants []backend.Grant
	wakes  int
}

func listen(t *testing.T, s session) *ear {
	t.Helper()
	e := &ear{t: t}
	sub := wiretest.Must[backend.Subscription](t)(s.Subscribe(t.Context(), backend.SubscribeRequest{
		Kind: backend.Fair, Name: "n",
		Wake: func(backend.Wakeup) {
			e.mu.Lock()
			defer e.mu.Unlock()
			e.wakes++
		},
		Granted: func(g backend.Grant) {
			e.mu.Lock()
			defer e.mu.Unlock()
			e.grants = append(e.grants, g)
		},
	}))
	t.Cleanup(sub.Close)
	return e
}

// hears waits for the next grant, which must be to that owner, and returns it.
func (e *ear) hears(owner string) (g backend.Grant) {
	e.t.Helper()
	testservers.Until(e.t, "there is a grant to "+owner, func() bool {
		e.mu.Lock()
		defer e.mu.Unlock()
		if len(e.grants) == 0 {
			return false
		}
		g, e.grants = e.grants[0], e.grants[1:]
		return true
	})
	if g.Owner != owner {
		e.t.Fatalf("%.8s is granted the lock, want %.8s", g.Owner, owner)
	}
	return g
}

// stands has an owner stand in line.
func (p party) stands(more ...func(*backend.AcquireRequest)) {
	p.t.Helper()
	if res := p.try(backend.Fair, append(more, waits(0, place))...); res.Acquired {
		p.t.Fatalf("%.8s gets the lock: %+v", p.owner, res)
	}
}

// TestFair: who came first gets it first, and hears of it.
func TestFair(t *testing.T) {
	a, b, c, admin := parties(t)
	ears := []*ear{listen(t, a.s), listen(t, b.s), listen(t, c.s)}
	if res := a.gets(backend.Fair); res.Count != 1 {
		t.Errorf("count %d", res.Count)
	}
	if res := a.gets(backend.Fair); res.Count != 1 {
		t.Errorf("a repeated attempt: count %d", res.Count)
	}
	if res := a.gets(backend.Fair, func(req *backend.AcquireRequest) { req.Reentry = true }); res.Count != 2 {
		t.Errorf("a re-entry: count %d", res.Count)
	}
	if res := b.try(backend.Fair); res.Acquired || res.Remaining > lease {
		t.Errorf("while another has it: %+v", res)
	}
	before := time.Now()
	b.stands()
	c.stands()
	b.stands() // keeps its place
	a.releases(backend.Fair, backend.Left)
	a.releases(backend.Fair, backend.Freed)
	g := ears[1].hears(bob)
	if g.Lease <= 0 || g.Lease > place || g.Since.Before(before) || g.Since.After(time.Now()) {
		t.Errorf("%+v", g)
	}
	b.sees(backend.Fair, true, 1)
	b.sees(backend.Exclusive, true, 1)
	for _, kind := range []backend.Kind{backend.Fair, backend.Exclusive, backend.Fenced} {
		for _, other := range []party{a, c} {
			if res := other.try(kind); res.Acquired || res.Remaining > place {
				t.Errorf("%v beside the first in line: %+v", kind, res)
			}
		}
	}
	b.renews(backend.Fair, true)
	b.sees(backend.Fair, true, 1)
	a.fails(backend.Exclusive, lease)
	b.renews(backend.Fair, true)
	b.releases(backend.Fair, backend.Freed)
	ears[2].hears(carol)
	a.stands()
	c.releases(backend.Fair, backend.Freed)
	ears[0].hears(alice)
	if res := a.gets(backend.Fair, func(req *backend.AcquireRequest) { req.Reentry = true }); res.Count != 2 {
		t.Errorf("a re-entry of the first in line: count %d", res.Count)
	}
	b.stands()
	c.stands()
	b.releases(backend.Fair, backend.NotHeld) // gives up
	c.forces(backend.Fair, true)
	ears[2].hears(carol)
	a.releases(backend.Fair, backend.NotHeld)
	b.stands()
	a.forces(backend.Exclusive, true)
	ears[1].hears(bob)
	b.releases(backend.Fair, backend.Freed)
	b.releases(backend.Fair, backend.NotHeld)
	c.releases(backend.Fair, backend.NotHeld)
	nothingLeft(t, admin, a, b, c)
}
