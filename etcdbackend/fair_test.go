package etcdbackend_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

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

// TestFair: the first in line gets the lock first, and hears of it.
func TestFair(t *testing.T) {
	t.Parallel()
	a, b, c, admin := parties(t)
	ears := []*ear{listen(t, a.s), listen(t, b.s), listen(t, c.s)}
	if res := a.gets(backend.Fair); res.Count != 1 {
		t.Errorf("count %d", res.Count)
	}
	if res := a.gets(backend.Fair); res.Count != 1 {
		t.Errorf("a repeated attempt: count %d", res.Count)
	}
	if res := a.gets(backend.Fair, func(req *backend.AcquireRequest) {
		req.Reentry = true
	}); res.Count != 2 {
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
	if res := a.gets(backend.Fair, func(req *backend.AcquireRequest) {
		req.Reentry = true
	}); res.Count != 2 {
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

// TestFirstKeepsOthersOut: the first in line that was given the lock has it, whatever kind others
// ask for.
func TestFirstKeepsOthersOut(t *testing.T) {
	t.Parallel()
	a, b, c, admin := parties(t)
	for _, wanted := range []backend.Kind{backend.Read, backend.Write, backend.Permits} {
		for step, run := range kindSteps(wanted) {
			b.gets(backend.Fair)
			a.stands()
			b.releases(backend.Fair, backend.Freed)
			before := state(t, admin)
			if err := run(t.Context(), c.s); !errors.Is(err, backend.ErrConflict) ||
				backend.KindOf(err) != backend.Refused {
				t.Errorf("%s %v: %v", step, wanted, err)
			}
			if after := state(t, admin); after != before {
				t.Errorf("%s %v has changed\n%sto\n%s", step, wanted, before, after)
			}
			a.renews(backend.Fair, true)
			a.releases(backend.Fair, backend.Freed)
		}
		// Nor does anybody stand in line for what is no such lock.
		b.gets(wanted)
		before := state(t, admin)
		for range 2 {
			_, err := a.s.Acquire(t.Context(), backend.AcquireRequest{
				Kind: backend.Fair, Name: "n", Owner: alice, Lease: lease, Place: place,
			})
			_, err2 := a.s.KeepPlaces(t.Context(), backend.PlacesRequest{
				Kind: backend.Fair, Name: "n", Owners: []string{alice}, Place: place,
			})
			if !errors.Is(err, backend.ErrConflict) || !errors.Is(err2, backend.ErrConflict) ||
				backend.KindOf(err2) != backend.Refused {
				t.Errorf("a place in line for %v: %v, %v", wanted, err, err2)
			}
		}
		if after := state(t, admin); after != before {
			t.Errorf("a place in line for %v has changed\n%sto\n%s", wanted, before, after)
		}
		b.releases(wanted, backend.Freed)
		a.releases(backend.Fair, backend.NotHeld)
	}
	nothingLeft(t, admin, a, b, c)
}

// slow opens a session during whose next write meanwhile is called, after the look that came before
// the write.
func slow(t *testing.T, addr string, meanwhile *func()) session {
	return open(t, connect(t, addr, intercept(func(
		ctx context.Context, req any, send invoke,
	) error {
		if f := *meanwhile; f != nil && puts(req) {
			*meanwhile = nil
			f()
		}
		return send(ctx)
	})))
}

// TestTakenMeanwhile: the first in line has the lock by its place, and loses that between its look
// and the request that takes the lock's key. Then the next in line has the lock.
func TestTakenMeanwhile(t *testing.T) {
	t.Parallel()
	server := testservers.Etcd(t)
	b := party{t, open(t, connect(t, server.Addr)), bob}
	c := party{t, b.s, carol}
	var meanwhile func()
	a := party{t, slow(t, server.Addr, &meanwhile), alice}
	for name, takes := range map[string]func(){
		"renewal": func() { a.renews(backend.Fair, false) },
		"attempt": func() {
			if res := a.try(backend.Fair); res.Acquired {
				t.Errorf("beside the next in line: %+v", res)
			}
		},
	} {
		b.gets(backend.Fair)
		a.stands()
		c.stands()
		b.releases(backend.Fair, backend.Freed)
		a.sees(backend.Fair, true, 1)
		meanwhile = func() { b.forces(backend.Fair, true) }
		takes()
		if meanwhile != nil {
			t.Errorf("the %s writes nothing", name)
		}
		c.sees(backend.Fair, true, 1)
		a.releases(backend.Fair, backend.NotHeld)
		c.releases(backend.Fair, backend.Freed)
	}
	nothingLeft(t, connect(t, server.Addr), a, b)
}

// TestRestoredMeanwhile: another gets the lock between the look and the request that restores a
// place before all others. Then the place comes after that other's.
func TestRestoredMeanwhile(t *testing.T) {
	t.Parallel()
	server := testservers.Etcd(t)
	b := party{t, open(t, connect(t, server.Addr)), bob}
	c, d := party{t, b.s, carol}, party{t, b.s, "another"}
	var meanwhile func()
	a := party{t, slow(t, server.Addr, &meanwhile), alice}
	restore := func() (backend.PlacesResult, error) {
		return a.s.KeepPlaces(t.Context(), backend.PlacesRequest{
			Kind: backend.Fair, Name: "n", Owners: []string{alice}, Place: place,
		})
	}
	for _, byPlace := range []bool{false, true} {
		b.gets(backend.Fair)
		c.stands()
		d.stands()
		leaves, next := b, c
		if byPlace {
			b.releases(backend.Fair, backend.Freed)
			leaves, next = c, d
		}
		meanwhile = func() { leaves.releases(backend.Fair, backend.Freed) }
		if res, err := restore(); res.Holder != "" || err != nil || meanwhile != nil {
			t.Errorf("%+v, %v", res, err)
		}
		next.sees(backend.Fair, true, 1)
		next.releases(backend.Fair, backend.Freed)
		a.sees(backend.Fair, true, 1)
		a.releases(backend.Fair, backend.Freed)
		if !byPlace {
			d.releases(backend.Fair, backend.Freed)
		}
	}
	meanwhile = func() { b.gets(backend.Read) }
	if _, err := restore(); !errors.Is(err, backend.ErrConflict) || meanwhile != nil {
		t.Errorf("a reader meanwhile: %v", err)
	}
	b.releases(backend.Read, backend.Freed)
	a.releases(backend.Fair, backend.NotHeld)
	nothingLeft(t, connect(t, server.Addr), a, b)
}

// TestStandsMeanwhile: something happens between a look and the request for a place. The last in
// line leaves, or the lock becomes one of another kind.
func TestStandsMeanwhile(t *testing.T) {
	t.Parallel()
	server := testservers.Etcd(t)
	admin := connect(t, server.Addr)
	b := party{t, open(t, connect(t, server.Addr)), bob}
	c := party{t, b.s, carol}
	var meanwhile func()
	a := party{t, slow(t, server.Addr, &meanwhile), alice}
	other := party{t, b.s, "another"}
	b.gets(backend.Fair)
	other.stands()
	c.stands()
	meanwhile = func() {
		c.releases(backend.Fair, backend.NotHeld)
		b.releases(backend.Fair, backend.Freed)
	}
	a.stands()
	other.sees(backend.Fair, true, 1)
	other.releases(backend.Fair, backend.Freed)
	a.sees(backend.Fair, true, 1)
	a.renews(backend.Fair, true)
	a.releases(backend.Fair, backend.Freed)

	b.gets(backend.Fair)
	meanwhile = func() { b.releases(backend.Fair, backend.Freed) }
	a.gets(backend.Fair, waits(0, place))
	a.releases(backend.Fair, backend.Freed)
	for _, kind := range []backend.Kind{backend.Read, backend.Write, backend.Permits} {
		b.gets(backend.Fair)
		meanwhile = func() {
			b.releases(backend.Fair, backend.Freed)
			b.gets(kind)
		}
		_, err := a.s.Acquire(t.Context(), backend.AcquireRequest{
			Kind: backend.Fair, Name: "n", Owner: alice, Lease: lease, Place: place,
		})
		if !errors.Is(err, backend.ErrConflict) {
			t.Errorf("%v meanwhile: %v", kind, err)
		}
		b.releases(kind, backend.Freed)
		a.releases(backend.Fair, backend.NotHeld)
	}
	nothingLeft(t, admin, a, b)
}

// TestDeadFirst: a first in line that was given the lock, and died, keeps it for some three
// seconds; a dead place keeps nobody.
func TestDeadFirst(t *testing.T) {
	t.Parallel()
	a, b, c, _ := parties(t)
	heard := listen(t, c.s)
	a.gets(backend.Fair)
	b.stands()
	party{t, a.s, "another dead"}.stands()
	c.stands()
	a.releases(backend.Fair, backend.Freed)
	begin := time.Now()
	var keeping sync.WaitGroup
	stop := make(chan struct{})
	keeping.Go(func() {
		for {
			_, err := c.s.KeepPlaces(t.Context(), backend.PlacesRequest{
				Kind: backend.Fair, Name: "n", Owners: []string{carol}, Place: place,
			})
			if err != nil {
				t.Error(err)
			}
			select {
			case <-stop:
				return
			case <-time.After(100 * time.Millisecond):
			}
		}
	})
	heard.hears(carol)
	close(stop)
	keeping.Wait()
	t.Logf("two that died first in line cost %v", time.Since(begin))
	b.renews(backend.Fair, false)
	b.releases(backend.Fair, backend.NotHeld)
	c.renews(backend.Fair, true)
}

// TestPlacesLost: owners whose lease is over come back before all others, in order, but not before
// the one that is inside.
func TestPlacesLost(t *testing.T) {
	t.Parallel()
	a, b, c, admin := parties(t)
	on := func(owner string) party { return party{t, b.s, owner} }
	keep := func(p party, owners ...string) backend.PlacesResult {
		t.Helper()
		return wiretest.Must[backend.PlacesResult](t)(
			p.s.KeepPlaces(t.Context(), backend.PlacesRequest{
				Kind: backend.Fair, Name: "n", Owners: owners, Place: place,
			}))
	}
	lose := func(owner string) {
		t.Helper()
		id := clientv3.LeaseID(get(t, admin, key("n\x01line/"+owner)).Lease)
		wiretest.Must[*clientv3.LeaseRevokeResponse](t)(admin.Revoke(t.Context(), id))
	}
	heard, others := listen(t, b.s), listen(t, c.s)
	a.gets(backend.Fair)
	var owners []string
	const n = 150 // more than one request can put
	for i := range n {
		owners = append(owners, fmt.Sprint("owner ", i))
		on(owners[i]).stands()
	}
	c.stands()
	party{t, c.s, "last"}.stands()
	lose(owners[0])
	if res := keep(b, owners...); res.Holder != "" || res.Remaining <= 0 {
		t.Errorf("%+v", res)
	}
	a.releases(backend.Fair, backend.Freed)
	for _, owner := range owners {
		heard.hears(owner)
		on(owner).releases(backend.Fair, backend.Freed)
	}
	others.hears(carol)
	if res := keep(b, "back 1", "back 2"); res.Holder != "" { // carol is inside
		t.Errorf("%+v", res)
	}
	if res := keep(a, "before them"); res.Holder != "" {
		t.Errorf("%+v", res)
	}
	c.sees(backend.Fair, true, 1)
	c.renews(backend.Fair, true)
	c.releases(backend.Fair, backend.Freed)
	party{t, a.s, "before them"}.releases(backend.Fair, backend.Freed)
	heard.hears("back 1")
	on("back 1").releases(backend.Fair, backend.Freed)
	heard.hears("back 2")
	on("back 2").releases(backend.Fair, backend.Freed)
	others.hears("last")
	party{t, c.s, "last"}.releases(backend.Fair, backend.Freed)
	nothingLeft(t, admin, a, b, c)
}

// TestHundredsInLine: of one client they take one watch, and keeping their places some requests.
func TestHundredsInLine(t *testing.T) {
	t.Parallel()
	const n = 400
	server := testservers.Etcd(t)
	var sent counts
	holder := party{t, open(t, connect(t, server.Addr)), alice}
	s := open(t, connect(t, server.Addr, sent.install))
	heard := listen(t, s)
	holder.gets(backend.Fair)
	var owners []string
	var all sync.WaitGroup
	// a slow server is asked for no more at once than it can answer in time
	room := make(chan struct{}, 100)
	for i := range n {
		owner := fmt.Sprint("owner ", i)
		owners = append(owners, owner)
		room <- struct{}{}
		all.Go(func() {
			party{t, s, owner}.stands()
			<-room
		})
	}
	all.Wait()
	unary, streams := sent.get()
	t.Logf("to stand in line: %s, %s", unary, streams)
	sent.reset()
	begin := time.Now()
	const rounds = 5
	for range rounds {
		wiretest.Must[backend.PlacesResult](t)(s.KeepPlaces(t.Context(), backend.PlacesRequest{
			Kind: backend.Fair, Name: "n", Owners: owners, Place: place,
		}))
	}
	t.Logf("to keep the places once: %v", time.Since(begin)/rounds)
	if unary, _ := sent.get(); unary != fmt.Sprint(map[string]int{rpcTxn: rounds, rpcTTL: rounds}) {
		t.Errorf("to keep the places %d times: %s", rounds, unary)
	}
	holder.releases(backend.Fair, backend.Freed)
	sent.reset()
	begin = time.Now()
	for range n {
		testservers.Until(t, "there is a grant", func() bool {
			heard.mu.Lock()
			defer heard.mu.Unlock()
			return len(heard.grants) > 0
		})
		heard.mu.Lock()
		owner := heard.grants[0].Owner
		heard.mu.Unlock()
		heard.hears(owner)
		party{t, s, owner}.releases(backend.Fair, backend.Freed)
	}
	t.Logf("a turn: %v", time.Since(begin)/n)
	if unary, streams := sent.get(); unary != fmt.Sprint(map[string]int{rpcTxn: n}) ||
		streams != "map[]" {
		t.Errorf("%d turns: %s, %s", n, unary, streams)
	}
}

// A lined is what a fair lock must be like, by the tables of package backend.
type lined struct {
	owner string
	count int
	line  []string
}

func (m *lined) settle() {
	if m.count == 0 && len(m.line) > 0 {
		m.owner, m.count, m.line = m.line[0], 1, m.line[1:]
	}
}

func (m *lined) holds(owner string) bool { return m.count > 0 && m.owner == owner }

func (m *lined) leave(owner string) {
	m.line = slices.DeleteFunc(slices.Clone(m.line), func(o string) bool { return o == owner })
}

func (m *lined) acquire(owner string, stands, reentry bool) (acquired bool) {
	switch {
	case m.holds(owner) && reentry:
		m.count++
	case m.holds(owner):
	case m.count == 0:
		m.owner, m.count = owner, 1
		m.leave(owner)
	default:
		if stands && !slices.Contains(m.line, owner) {
			m.line = append(slices.Clone(m.line), owner)
		}
		return false
	}
	return true
}

func (m *lined) release(owner string) backend.ReleaseOutcome {
	switch {
	case !m.holds(owner):
		m.leave(owner)
		return backend.NotHeld
	case m.count > 1:
		m.count--
		return backend.Left
	default:
		m.count = 0
		return backend.Freed
	}
}

func (m *lined) keep(owners []string) {
	var back []string
	for _, owner := range owners {
		if !m.holds(owner) && !slices.Contains(m.line, owner) && !slices.Contains(back, owner) {
			back = append(back, owner)
		}
	}
	m.line = slices.Concat(back, m.line)
}

// TestFairModel: random steps, by owners whose session needn't be the same each time.
func TestFairModel(t *testing.T) {
	t.Parallel()
	server := testservers.Etcd(t)
	admin := connect(t, server.Addr)
	var sessions []session
	for i := range 3 {
		sessions = append(sessions, open(t, connect(t, server.Addr)))
		if i > 0 {
			listen(t, sessions[i])
		}
	}
	seed := rand.Uint64()
	rnd := rand.New(rand.NewPCG(seed, 0))
	var m lined
	ctx := t.Context()
	someone := func() string { return fmt.Sprint("owner ", rnd.IntN(5)) }
	for step := range 400 {
		s, owner := sessions[rnd.IntN(3)], someone()
		name, want, got := "", "", ""
		switch rnd.IntN(9) {
		case 0, 1, 2:
			req := backend.AcquireRequest{
				Kind: backend.Fair, Name: "n", Owner: owner, Lease: lease,
				Place: []time.Duration{0, place}[rnd.IntN(2)], Reentry: rnd.IntN(3) == 0,
			}
			name = fmt.Sprintf("%+v", req)
			want = fmt.Sprint(m.acquire(owner, req.Place > 0, req.Reentry), nil)
			res, err := s.Acquire(ctx, req)
			got = fmt.Sprint(res.Acquired, err)
		case 3, 4:
			name, want = "release", fmt.Sprint(m.release(owner), nil)
			res, err := s.Release(ctx, backend.ReleaseRequest{
				Kind: backend.Fair, Name: "n", Owner: owner, Lease: lease,
			})
			got = fmt.Sprint(res.Outcome, err)
		case 5:
			name, want = "renew", fmt.Sprint(m.holds(owner), nil)
			res, err := s.Renew(ctx, backend.RenewRequest{
				Kind: backend.Fair, Name: "n", Owner: owner, Lease: lease,
			})
			got = fmt.Sprint(res.Held, err)
		case 6:
			owners := []string{owner, someone()}
			m.keep(owners)
			m.settle()
			holder := ""
			if m.count > 0 && slices.Contains(owners, m.owner) {
				holder = m.owner
			}
			name, want = fmt.Sprintf("keep %q", owners), fmt.Sprint(holder, nil)
			res, err := s.KeepPlaces(ctx, backend.PlacesRequest{
				Kind: backend.Fair, Name: "n", Owners: owners, Place: place,
			})
			got = fmt.Sprint(res.Holder, err)
		case 7:
			if rnd.IntN(3) == 0 {
				name, want = "force", fmt.Sprint(m.count > 0, nil)
				m.count = 0
				res, err := s.ForceRelease(ctx, backend.ForceReleaseRequest{
					Kind: backend.Fair, Name: "n",
				})
				got = fmt.Sprint(res.Released, err)
			}
		case 8:
			if slices.Contains(m.line, owner) {
				name = "the end of a place"
				m.leave(owner)
				wiretest.Must[*clientv3.DeleteResponse](t)(
					admin.Delete(ctx, key("n\x01line/"+owner)))
			}
		}
		m.settle()
		look, err := s.Look(ctx, backend.LookRequest{Kind: backend.Fair, Name: "n", Owner: m.owner})
		if want != got || err != nil || look.Held != (m.count > 0) || look.Count != m.count {
			t.Fatalf("seed %d, step %d, %s by %s: %s, want %s; now %+v, %v, want %+v", seed, step,
				name, owner, got, want, look, err, m)
		}
		if rnd.IntN(3) == 0 { // else the first in line, given the lock, would soon lose it
			s.Renew(ctx, backend.RenewRequest{
				Kind: backend.Fair, Name: "n", Owner: m.owner, Lease: lease,
			})
		}
	}
	// All have their turns, in order.
	for m.count > 0 {
		p := party{t, sessions[rnd.IntN(3)], m.owner}
		p.releases(backend.Fair, m.release(m.owner))
		m.settle()
	}
}

// TestLatePlace: a request for a place that was given up, and taken back, is carried out by the
// server after all.
func TestLatePlace(t *testing.T) {
	t.Parallel()
	server := testservers.Etcd(t)
	admin := connect(t, server.Addr)
	holder := party{t, open(t, connect(t, server.Addr)), bob}
	for _, others := range []bool{false, true} {
		caught := &catcher{caught: make(chan func() error, 1)}
		a := party{t, open(t, connect(t, server.Addr, caught.install)), alice}
		c := party{t, a.s, carol}
		holder.gets(backend.Fair)
		if others {
			c.stands()
		}
		ctx, cancel := context.WithCancel(t.Context())
		failed := make(chan error)
		caught.next.Store(true)
		go func() {
			_, err := a.s.Acquire(ctx, backend.AcquireRequest{
				Kind: backend.Fair, Name: "n", Owner: alice, Lease: lease, Place: place,
			})
			failed <- err
		}()
		late := <-caught.caught
		cancel()
		wantKind(t, <-failed, backend.Unknown)
		a.releases(backend.Fair, backend.NotHeld)
		if err := late(); (err == nil) != others {
			t.Errorf("the late request, with others %v: %v", others, err)
		}
		if others {
			wiretest.Must[backend.PlacesResult](t)(
				c.s.KeepPlaces(t.Context(), backend.PlacesRequest{
					Kind: backend.Fair, Name: "n", Owners: []string{carol}, Place: place,
				}))
			c.releases(backend.Fair, backend.NotHeld)
		}
		if keys := keysOf(t, admin); len(keys) != 1 {
			t.Errorf("with others %v the keys are %q, want that of the holder", others, keys)
		}
		holder.releases(backend.Fair, backend.Freed)
		nothingLeft(t, admin, holder, a)
	}
}

// TestKeepOfThoseWhoLeft: a request keeps the places of owners that leave meanwhile. An owner of
// the same session that comes then stays where it is, on the lease that they had.
func TestKeepOfThoseWhoLeft(t *testing.T) {
	t.Parallel()
	server := testservers.Etcd(t)
	admin := connect(t, server.Addr)
	holder := party{t, open(t, connect(t, server.Addr)), bob}
	var meanwhile func()
	a := party{t, open(t, connect(t, server.Addr, intercept(func(
		ctx context.Context, req any, send invoke,
	) error {
		if f := meanwhile; f != nil {
			meanwhile = nil
			f()
		}
		return send(ctx)
	}))), alice}
	c := party{t, a.s, carol}
	carols := func() *mvccpb.KeyValue { return get(t, admin, key("n\x01line/"+carol)) }
	holder.gets(backend.Fair)
	a.stands()
	lease := get(t, admin, key("n\x01line/"+alice)).Lease
	var came *mvccpb.KeyValue
	meanwhile = func() {
		a.releases(backend.Fair, backend.NotHeld)
		c.stands()
		came = carols()
	}
	wiretest.Must[backend.PlacesResult](t)(a.s.KeepPlaces(t.Context(), backend.PlacesRequest{
		Kind: backend.Fair, Name: "n", Owners: []string{alice}, Place: place,
	}))
	if came == nil || came.Lease != lease {
		t.Fatalf("the lease %x isn't used again: %+v", lease, came)
	}
	if now := carols(); now == nil || now.CreateRevision != came.CreateRevision {
		t.Errorf("the place was %+v, and is %+v", came, now)
	}
	a.releases(backend.Fair, backend.NotHeld)
	c.releases(backend.Fair, backend.NotHeld)
	holder.releases(backend.Fair, backend.Freed)
	nothingLeft(t, admin, holder, a)
}

// TestFairValues: this is what others read, and what other versions must understand.
func TestFairValues(t *testing.T) {
	t.Parallel()
	a, b, c, admin := parties(t)
	want := func(name, value string) {
		t.Helper()
		if kv := get(t, admin, key(name)); kv == nil || string(kv.Value) != value || kv.Lease == 0 {
			t.Errorf("%q is %v, want %s and a lease", name, kv, value)
		}
	}
	a.gets(backend.Fair)
	want("n", fmt.Sprintf(`{"owner":%q,"count":1}`, alice))
	b.stands()
	want("n\x01line/"+bob, fmt.Sprintf(`{"owner":%q,"kind":"line"}`, bob))
	rev := get(t, admin, key("n\x01line/"+bob)).CreateRevision
	a.releases(backend.Fair, backend.Freed)
	wiretest.Must[backend.PlacesResult](t)(c.s.KeepPlaces(t.Context(), backend.PlacesRequest{
		Kind: backend.Fair, Name: "n", Owners: []string{alice, carol}, Place: place,
	}))
	want("n\x01line/"+carol, fmt.Sprintf(`{"owner":%q,"kind":"line","front":2,"behind_rev":%d}`,
		carol, rev))
	b.renews(backend.Fair, true)
	want("n", fmt.Sprintf(`{"owner":%q,"count":1}`, bob))
	if keys := keysOf(t, admin); len(keys) != 3 {
		t.Errorf("the keys are %q, want those of the holder and of two who stand in line", keys)
	}
}
