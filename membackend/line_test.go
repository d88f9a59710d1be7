package membackend_test

import (
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/membackend"
)

const (
	short = time.Second // for how long the first in line is given the lock
	place = 3 * time.Second
)

// ear is what one session hears of the lock "lock".
type ear struct {
	t *testing.T

	mu     sync.Mutex // the store may call from any goroutine
	grants []backend.Grant
	wakes  int
}

func listen(t *testing.T, s session) *ear {
	t.Helper()
	e := &ear{t: t}
	_, err := s.Subscribe(t.Context(), backend.SubscribeRequest{
		Kind: backend.Fair, Name: "lock",
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
	})
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// hears checks that, since its last call, grants to these owners were reported, just now, and
// besides only wake-ups.
func (e *ear) hears(wakes int, owners ...string) {
	e.t.Helper()
	var want []backend.Grant
	for _, o := range owners {
		want = append(want, backend.Grant{Owner: o, Since: time.Now(), Lease: short})
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if !slices.Equal(e.grants, want) || e.wakes != wakes {
		e.t.Errorf("heard of %v and %d wake-ups; want %v and %d", e.grants, e.wakes, want, wakes)
	}
	e.grants, e.wakes = nil, 0
}

// queue is owners a, b and c of the lock "lock", each with a session of its own and what that
// hears.
func queue(t *testing.T, b *membackend.Backend) (owners [3]side, ears [3]*ear) {
	for i, owner := range []string{"a", "b", "c"} {
		s := open(b)
		owners[i], ears[i] = side{t, s, backend.Fair, owner}, listen(t, s)
	}
	return owners, ears
}

var inLine = backend.AcquireRequest{Place: place}

func (p side) keeps(place time.Duration, want backend.PlacesResult, owners ...string) {
	p.t.Helper()
	res, err := p.s.KeepPlaces(p.t.Context(), backend.PlacesRequest{
		Kind: p.kind, Name: "lock", Owners: owners, Place: place,
	})
	if err != nil || res != want {
		p.t.Fatalf("KeepPlaces(%v): %+v, %v; want %+v", owners, res, err, want)
	}
}

// The first waiter in line gets the lock first, and hears of it in the step that frees it.
func TestLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, e := queue(t, membackend.New())
		p[0].acquires(true)
		p[0].acquires(true) // again, but not once more
		p[0].sees(backend.LookResult{Held: true, Count: 1, Remaining: lease})
		p[1].refused(inLine, lease)
		p[2].refused(inLine, lease)
		time.Sleep(time.Second)
		p[1].refused(inLine, lease-time.Second) // keeps its place
		if res := p[0].acquire(
			backend.AcquireRequest{Reentry: true}); res != (backend.AcquireResult{Acquired: true,
			Count: 2}) {
			t.Errorf("a re-entry: %+v; want count 2", res)
		}
		p[0].releases(backend.Left)
		e[1].hears(0)
		if res := p[0].releases(backend.Freed); res.Counted {
			t.Errorf("a release that gives the lock to the next in line: %+v; want nothing counted",
				res)
		}
		e[0].hears(0)
		e[1].hears(0, "b")
		e[2].hears(0)
		p[1].sees(backend.LookResult{Held: true, Count: 1, Remaining: short})
		p[1].acquires(true) // it was given the lock as it asked, and has it once
		p[1].sees(backend.LookResult{Held: true, Count: 1, Remaining: lease})
		p[0].refused(inLine, lease)
		p[1].forces(true)
		e[2].hears(0, "c")
		p[2].releases(backend.Freed)
		e[0].hears(0, "a")
		p[0].releases(backend.Freed)
		for _, e := range e {
			e.hears(1) // that it is free, with nobody in line
		}
		p[2].acquires(true)
	})
}

// A grant is reported to the session that kept the place last.
func TestPlaceKeptByAnotherSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := membackend.New()
		p, e := queue(t, b)
		p[0].acquires(true)
		p[1].refused(inLine, lease)
		later := open(b)
		hears := listen(t, later)
		req := backend.PlacesRequest{
			Kind: backend.Fair, Name: "lock", Owners: []string{"b"}, Place: place,
		}
		_, err := later.KeepPlaces(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		p[0].releases(backend.Freed)
		e[1].hears(0)
		hears.hears(0, "b")
	})
}

// One attempt without a place changes nothing, and gets nothing that isn't its turn.
func TestBarging(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := membackend.New()
		p, e := queue(t, b)
		p[0].acquires(true)
		p[1].acquires(false)
		p[0].releases(backend.Freed)
		e[1].hears(1)
		e[2].hears(1)
		p[0].acquires(true)
		p[1].refused(backend.AcquireRequest{Place: time.Hour}, lease)
		// so that the table is swept then, and not again as soon as the lease is over
		acquire(t, p[2].s, "another", lease-1)
		time.Sleep(lease)
		for _, kind := range []backend.Kind{backend.Exclusive, backend.Fenced} {
			side{t, p[2].s, kind, "d"}.acquires(false)
		}
		p[2].refused(inLine, short)
		p[1].sees(backend.LookResult{Held: true, Count: 1, Remaining: short})
		p[1].releases(backend.Freed)
		e[2].hears(0, "c")
	})
}

// The first in line gets a lock that ran out, also if nobody sends a step. Nobody waits for a dead
// owner for longer than a second.
func TestLineMovesByItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := membackend.New()
		p, e := queue(t, b)
		p[0].acquires(true)
		for _, p := range p[1:] {
			p.refused(backend.AcquireRequest{Place: time.Hour}, lease)
		}
		for _, e := range e[1:] {
			e.hears(0)
		}
		for i, after := range []time.Duration{lease, short} {
			time.Sleep(after)
			synctest.Wait()
			e[1+i].hears(0, p[1+i].owner)
		}
		time.Sleep(short)
		synctest.Wait()
		e[0].hears(0)
		if objects, _, timer := b.Size(); objects != 0 || timer {
			t.Errorf("in the end: %d objects, timer %v; want nothing", objects, timer)
		}
	})
}

// The first step after the end of a hold gives the lock to the first in line, whoever's step it is.
func TestEveryStepSettles(t *testing.T) {
	for name, step := range map[string]func(p side){
		"Acquire": func(p side) { p.refused(backend.AcquireRequest{}, short) },
		"Acquire, re-entry": func(p side) {
			p.refused(backend.AcquireRequest{Reentry: true}, short)
		},
		"Acquire, in line": func(p side) { p.refused(inLine, short) },
		"Release":          func(p side) { p.releases(backend.NotHeld) },
		"ForceRelease":     func(p side) { p.forces(false) },
		"KeepPlaces": func(p side) {
			p.keeps(place, backend.PlacesResult{Holder: "b", Remaining: short}, "b")
		},
		"Renew": func(p side) { p.renews(false) },
		"Acquire, exclusive": func(p side) {
			side{p.t, p.s, backend.Exclusive, "d"}.acquires(false)
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := membackend.New()
				p, e := queue(t, b)
				p[0].acquires(true)
				p[1].refused(backend.AcquireRequest{Place: time.Hour}, lease)
				// so that the table is swept then, and not again as soon as the lease is over
				acquire(t, p[2].s, "another", lease-1)
				time.Sleep(lease)
				p[0].sees(backend.LookResult{}) // a look doesn't
				to := e[1]
				if name == "KeepPlaces" {
					to = e[2] // which asked last for the place
				}
				to.hears(0)
				step(p[2])
				to.hears(0, "b")
			})
		})
	}
}

func (p side) renews(want bool) {
	p.t.Helper()
	res, err := p.s.Renew(p.t.Context(), backend.RenewRequest{
		Kind: p.kind, Name: "lock", Owner: p.owner, Lease: lease,
	})
	if err != nil || res.Held != want {
		p.t.Fatalf("Renew(%v) by %s: %v, %v; want %v", p.kind, p.owner, res.Held, err, want)
	}
}

// A place ends unless it is kept, or when it is given up. An owner that had one and lost it comes
// back before all others.
func TestPlaces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := membackend.New()
		p, e := queue(t, b)
		p[0].acquires(true)
		p[1].refused(inLine, lease)
		p[2].refused(inLine, lease)
		time.Sleep(2 * time.Second)
		p[1].keeps(place, backend.PlacesResult{Remaining: lease - 2*time.Second}, "b")
		// no place for the holder of the lock
		p[0].keeps(place, backend.PlacesResult{Holder: "a", Remaining: lease - 2*time.Second}, "a")
		time.Sleep(time.Second)
		synctest.Wait()
		if n := b.Holds("lock"); n != 2 {
			t.Errorf("%d holds and places; want that of a, and b's place", n)
		}
		// it is kept for longer than that
		p[1].refused(backend.AcquireRequest{Place: 1}, lease-3*time.Second)
		time.Sleep(time.Second)
		p[2].keeps(place, backend.PlacesResult{Remaining: lease - 4*time.Second}, "c", "d")
		p[0].releases(backend.Freed)
		e[2].hears(0, "c")
		p[2].releases(backend.Freed)
		e[2].hears(0, "d")
		p[0].refused(inLine, short)
		p[1].releases(backend.NotHeld) // gives up
		side{t, p[2].s, backend.Fair, "d"}.releases(backend.Freed)
		e[0].hears(0, "a")
		e[1].hears(0)
	})
}

// A waiter whose session is closed isn't told, and costs the others a second.
func TestClosedInLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, e := queue(t, membackend.New())
		p[0].acquires(true)
		p[1].refused(backend.AcquireRequest{Place: time.Hour}, lease)
		p[2].refused(backend.AcquireRequest{Place: time.Hour}, lease)
		p[1].s.Close()
		p[0].releases(backend.Freed)
		e[1].hears(0)
		e[2].hears(0)
		time.Sleep(short)
		synctest.Wait()
		e[2].hears(0, "c")
	})
}

// Granted may use the store, since no mutex is held while it runs.
func TestGrantedMayUseTheStore(t *testing.T) {
	b := membackend.New()
	p, _ := queue(t, b)
	_, err := p[1].s.Subscribe(t.Context(), backend.SubscribeRequest{
		Kind: backend.Fair, Name: "lock", Wake: func(backend.Wakeup) {}, Granted: func(
			backend.Grant,
		) {
			p[1].releases(backend.Freed)
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	p[0].acquires(true)
	p[1].acquire(inLine)
	p[0].releases(backend.Freed)
	p[0].acquires(true)
}
