package etcdbackend_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/contract/faults"
	"github.com/seed951563bd/distsync/etcdbackend"
	"github.com/seed951563bd/distsync/internal/test/testservers"
	"github.com/seed951563bd/distsync/internal/test/wiretest"
)

// of says how many permits are asked for, and of how many.
func of(n, limit int) func(*backend.AcquireRequest) {
	return func(req *backend.AcquireRequest) { req.Permits, req.Limit = n, limit }
}

// refused checks that a request for permits would never succeed.
func (p party) refused(n, limit int, want error) {
	p.t.Helper()
	_, err := p.s.Acquire(p.t.Context(), backend.AcquireRequest{
		Kind: backend.Permits, Name: "n", Owner: p.owner, Lease: lease, Permits: n, Limit: limit,
	})
	wantKind(p.t, err, backend.Refused)
	if !errors.Is(err, want) {
		p.t.Fatalf("%d permits of %d: %v, want %v", n, limit, err, want)
	}
}

// returns releases permits, some of which the store may not have.
func (p party) returns(n int, want backend.ReleaseOutcome) {
	p.t.Helper()
	res := wiretest.Must[backend.ReleaseResult](p.t)(
		p.s.Release(p.t.Context(), backend.ReleaseRequest{
			Kind: backend.Permits, Name: "n", Owner: p.owner, Lease: lease, Permits: n,
		}))
	if res.Outcome != want {
		p.t.Fatalf("%.8s returns %d permits: %v, want %v", p.owner, n, res.Outcome, want)
	}
}

// keeps renews permits.
func (p party) keeps(n int, want bool) {
	p.t.Helper()
	res := wiretest.Must[backend.RenewResult](p.t)(
		p.s.Renew(p.t.Context(), backend.RenewRequest{
			Kind: backend.Permits, Name: "n", Owner: p.owner, Lease: lease, Permits: n,
		}))
	if res.Held != want {
		p.t.Fatalf("%.8s renews %d permits: held %v, want %v", p.owner, n, res.Held, want)
	}
}

// counts looks at a semaphore.
func (p party) counts(limit, mine, available int) {
	p.t.Helper()
	res := wiretest.Must[backend.LookResult](p.t)(p.s.Look(p.t.Context(), backend.LookRequest{
		Kind: backend.Permits, Name: "n", Owner: p.owner, Limit: limit,
	}))
	if res.Count != mine || res.Available != available || res.Held != (res.Remaining != 0) ||
		mine > 0 && !res.Held {
		p.t.Fatalf("%.8s looks, with the limit %d: %+v; want count %d, available %d", p.owner,
			limit, res, mine, available)
	}
}

// TestPermits: each owner gets as many permits as are free, has them until it releases them, and
// is told how many there are.
func TestPermits(t *testing.T) {
	t.Parallel()
	a, b, c, admin := parties(t)
	a.counts(5, 0, 5)
	if res := a.gets(backend.Permits, of(2, 5)); res.Count != 2 {
		t.Errorf("count %d", res.Count)
	}
	if kv := get(t, admin, key("n\x01permits/"+alice)); kv == nil ||
		string(kv.Value) != fmt.Sprintf(`{"owner":%q,"count":2,"kind":"permits","limit":5}`,
			alice) || kv.Lease == 0 {
		t.Errorf("the value is %v", kv)
	}
	a.gets(backend.Permits, of(2, 5)) // has them, and gets no more
	b.gets(backend.Permits, of(2, 5))
	c.fails(backend.Permits, lease, of(2, 5))
	c.gets(backend.Permits, of(1, 5))
	c.counts(5, 1, 0)
	c.counts(7, 1, 2)
	c.counts(3, 1, 0)
	a.keeps(2, true)
	a.returns(2, backend.Freed)
	a.returns(2, backend.NotHeld)
	a.keeps(2, false)
	a.counts(5, 0, 2)
	for _, s := range []session{b.s, a.s} { // also by a session that knows nothing of it
		again := party{t, s, bob}
		again.keeps(2, true)
		again.gets(backend.Permits, of(2, 5))
	}
	party{t, a.s, bob}.returns(2, backend.Freed)
	a.forces(backend.Permits, true)
	a.forces(backend.Permits, false)
	c.keeps(1, false)
	c.returns(1, backend.NotHeld)
	b.returns(2, backend.NotHeld) // its session remembers it
	nothingLeft(t, admin, a, b, c)

	// There are as many as the request says, or else as the owners that have some have said last.
	a.refused(1, 0, backend.ErrNoLimit)
	a.refused(3, 2, backend.ErrTooMany)
	a.refused(1, 0, backend.ErrNoLimit)
	if _, err := a.s.Look(t.Context(), backend.LookRequest{
		Kind: backend.Permits, Name: "n",
	}); !errors.Is(err, backend.ErrNoLimit) || backend.KindOf(err) != backend.Refused {
		t.Errorf("looking without a limit: %v", err)
	}
	a.gets(backend.Permits, of(2, 3))
	b.refused(4, 0, backend.ErrTooMany)
	b.fails(backend.Permits, lease, of(2, 0))
	b.gets(backend.Permits, of(3, 5))
	c.fails(backend.Permits, lease, of(1, 0))
	c.counts(0, 0, 0)
	a.gets(backend.Permits, of(2, 7))
	c.counts(0, 0, 2)
	c.gets(backend.Permits, of(2, 0))
	a.returns(2, backend.Freed)
	b.returns(3, backend.Freed)
	b.gets(backend.Permits, of(5, 0)) // it was passed on
	b.returns(5, backend.Freed)
	c.returns(2, backend.Freed)
	b.refused(1, 0, backend.ErrNoLimit)
	nothingLeft(t, admin, a, b, c)
}

// TestPartOfPermits: an owner that asks for another number of permits than it has is taken to have
// lost some. The rest is released, whatever the session knows.
func TestPartOfPermits(t *testing.T) {
	t.Parallel()
	a, b, c, admin := parties(t)
	for _, p := range []party{a, {t, c.s, alice}} {
		for _, n := range []int{1, 2, 4} {
			a.gets(backend.Permits, of(3, 4))
			b.fails(backend.Permits, lease, of(2, 4))
			p.keeps(n, false)
			a.counts(4, 0, 4)
			a.gets(backend.Permits, of(3, 4))
			p.returns(n, backend.NotHeld)
			a.counts(4, 0, 4)
			a.gets(backend.Permits, of(3, 4))
			p.gets(backend.Permits, of(n, 4))
			a.counts(4, n, 4-n)
			a.returns(3, backend.NotHeld)
			p.returns(n, backend.NotHeld)
			a.gets(backend.Permits, of(3, 4))
			b.gets(backend.Permits, of(1, 4))
			if n == 4 {
				p.fails(backend.Permits, lease, of(n, 4))
				p.counts(4, 0, 3)
			}
			a.returns(3, map[bool]backend.ReleaseOutcome{true: backend.NotHeld,
				false: backend.Freed}[n == 4])
			b.returns(1, backend.Freed)
		}
		nothingLeft(t, admin, a, b, c)
	}
}

// TestPermitsRoundTrips: each step sends no more than the requests it needs.
func TestPermitsRoundTrips(t *testing.T) {
	t.Parallel()
	var sent counts
	server := testservers.Etcd(t)
	p := party{t, open(t, connect(t, server.Addr, sent.install)), alice}
	other := party{t, open(t, connect(t, server.Addr)), bob}
	check := func(what string, want map[string]int) {
		t.Helper()
		if got, _ := sent.get(); got != fmt.Sprint(want) {
			t.Errorf("%s sent %v, want %v", what, got, want)
		}
		sent.reset()
	}
	p.gets(backend.Permits)
	check("the first acquisition", map[string]int{rpcTxn: 2, rpcGrant: 1})
	p.keeps(1, true)
	check("a renewal", map[string]int{rpcTxn: 1})
	p.returns(1, backend.Freed)
	check("a release", map[string]int{rpcTxn: 1})
	for range 3 {
		p.gets(backend.Permits)
		check("an acquisition", map[string]int{rpcTxn: 1})
		p.returns(1, backend.Freed)
		check("its release", map[string]int{rpcTxn: 1})
	}
	other.gets(backend.Permits)
	for range 2 {
		p.try(backend.Permits)
		check("an acquisition in vain", map[string]int{rpcTxn: 1, rpcTTL: 1})
	}
	p.gets(backend.Permits, of(1, 2))
	check("an acquisition beside another", map[string]int{rpcTxn: 2})
	p.returns(1, backend.Freed)
	check("its release", map[string]int{rpcTxn: 1})
}

// TestPermitsTakenMeanwhile: an attempt that is overtaken between its look and its transaction
// learns from the transaction's answer what there is, without another look. It gets no permits that
// others have.
func TestPermitsTakenMeanwhile(t *testing.T) {
	t.Parallel()
	server := testservers.Etcd(t)
	admin := connect(t, server.Addr)
	others := open(t, connect(t, server.Addr))
	var n int
	var sent atomic.Int32
	p := party{t, open(t, connect(t, server.Addr, intercept(func(
		ctx context.Context, req any, send invoke,
	) error {
		sent.Add(1)
		if n > 0 && puts(req) {
			n--
			party{t, others, fmt.Sprint("other ", n)}.gets(backend.Permits, of(1, 20))
		}
		return send(ctx)
	}))), alice}
	p.gets(backend.Permits, of(1, 20)) // has a lease ready afterwards
	p.returns(1, backend.Freed)
	n = 5
	sent.Store(0)
	p.gets(backend.Permits, of(15, 20))
	if k := sent.Load(); k != 6 {
		t.Errorf("%d requests to be overtaken five times; want 6", k)
	}
	p.returns(15, backend.Freed)
	n = 5
	for i := range 5 {
		party{t, others, fmt.Sprint("other ", i)}.returns(1, backend.Freed)
	}
	if res := p.try(backend.Permits, of(16, 20)); res.Acquired {
		t.Errorf("got 16 of 20 permits of which 5 are out")
	}
	party{t, others, bob}.forces(backend.Permits, true)

	// A plain lock and a reader come in between.
	for _, kind := range []backend.Kind{backend.Exclusive, backend.Write, backend.Read} {
		for name, meanwhile := range map[string]party{
			"another":        {t, others, bob},
			"the same owner": {t, others, alice},
		} {
			overtaken := party{t, open(t, connect(t, server.Addr, intercept(func(
				ctx context.Context, req any, send invoke,
			) error {
				if puts(req) {
					meanwhile.gets(kind)
				}
				return send(ctx)
			}))), alice}
			_, err := overtaken.s.Acquire(t.Context(), backend.AcquireRequest{
				Kind: backend.Permits, Name: "n", Owner: alice, Lease: lease, Permits: 1, Limit: 1,
			})
			wantKind(t, err, backend.Refused)
			if !errors.Is(err, backend.ErrConflict) {
				t.Errorf("%v by %s meanwhile: %v", kind, name, err)
			}
			meanwhile.releases(kind, backend.Freed)
			if keys := keysOf(t, admin); len(keys) != 0 {
				t.Errorf("the keys %q are left", keys)
			}
		}
	}
}

// TestPermitsMeanwhile: permits come in between where another kind is to be had.
func TestPermitsMeanwhile(t *testing.T) {
	t.Parallel()
	server := testservers.Etcd(t)
	others := party{t, open(t, connect(t, server.Addr)), bob}
	for _, kind := range []backend.Kind{backend.Exclusive, backend.Fenced, backend.Write,
		backend.Read} {
		s := open(t, connect(t, server.Addr, intercept(func(
			ctx context.Context, req any, send invoke,
		) error {
			if puts(req) {
				others.gets(backend.Permits)
			}
			return send(ctx)
		})))
		_, err := s.Acquire(t.Context(), backend.AcquireRequest{
			Kind: kind, Name: "n", Owner: alice, Lease: lease,
		})
		wantKind(t, err, backend.Refused)
		if !errors.Is(err, backend.ErrConflict) {
			t.Errorf("%v: %v", kind, err)
		}
		others.returns(1, backend.Freed)
	}
}

// TestPermitsOfTheDead come back with their lease.
func TestPermitsOfTheDead(t *testing.T) {
	t.Parallel()
	a, b, _, admin := parties(t)
	listener := wiretest.SubscribeTo(t, b.s, backend.Permits, "n")
	a.gets(backend.Permits, of(3, 4), func(req *backend.AcquireRequest) { req.Lease = s2 })
	b.fails(backend.Permits, s2, of(2, 4))
	b.gets(backend.Permits, of(1, 4))
	testservers.Until(t, "who waits is told that they have come back", func() bool {
		return listener.Heard() && party{t, b.s, carol}.try(backend.Permits, of(3, 4)).Acquired
	})
	a.keeps(3, false)
	a.returns(3, backend.NotHeld)
	b.returns(1, backend.Freed)
	party{t, b.s, carol}.returns(3, backend.Freed)
	if keys := keysOf(t, admin); len(keys) != 1 { // that of the one who still waits
		t.Errorf("the keys %q are left", keys)
	}
}

// TestLatePermits: a request that was given up, and taken back, is carried out by the server after
// all.
func TestLatePermits(t *testing.T) {
	t.Parallel()
	server := testservers.Etcd(t)
	caught := &catcher{caught: make(chan func() error, 1)}
	p := party{t, open(t, connect(t, server.Addr, caught.install)), alice}
	ctx, cancel := context.WithCancel(t.Context())
	failed := make(chan error)
	caught.next.Store(true)
	go func() {
		_, err := p.s.Acquire(ctx, backend.AcquireRequest{
			Kind: backend.Permits, Name: "n", Owner: alice, Lease: lease, Permits: 2, Limit: 2,
		})
		failed <- err
	}()
	late := <-caught.caught
	cancel()
	wantKind(t, <-failed, backend.Unknown)
	p.returns(2, backend.NotHeld)
	if err := late(); err == nil {
		t.Error("the late request was carried out")
	}
	nothingLeft(t, connect(t, server.Addr), p)
}

// TestPermitsOnABrokenConnection: whatever was carried out of what has no answer, never more are
// out than there are, and what is taken back is.
func TestPermitsOnABrokenConnection(t *testing.T) {
	t.Parallel()
	server := testservers.Etcd(t)
	admin := connect(t, server.Addr)
	between := wiretest.NewProxy(t, server.Addr, faults.HTTP2)
	const limit = 5
	var inside atomic.Int32
	var got atomic.Int64
	ctx, stop := context.WithCancel(t.Context())
	var all sync.WaitGroup
	for i := range 4 {
		s := open(t, connect(t, between.Addr(), reconnectAtOnce))
		all.Go(func() {
			for turn := 0; ctx.Err() == nil; turn++ {
				owner, n := fmt.Sprintf("%d of %d", turn, i), 1+turn%3
				res, err := s.Acquire(ctx, backend.AcquireRequest{
					Kind: backend.Permits, Name: "n", Owner: owner, Lease: lease, Permits: n,
					Limit: limit,
				})
				if err == nil && res.Acquired {
					if now := inside.Add(int32(n)); now > limit {
						t.Errorf("%d permits are out", now)
					}
					got.Add(1)
					inside.Add(int32(-n))
				}
				for { // as it is taken back
					_, err := s.Release(t.Context(), backend.ReleaseRequest{
						Kind: backend.Permits, Name: "n", Owner: owner, Lease: lease, Permits: n,
					})
					if err == nil {
						break
					}
				}
			}
		})
	}
	for range 10 {
		before := got.Load()
		testservers.Until(t, "permits are given", func() bool { return got.Load() > before+5 })
		between.Cut()
	}
	stop()
	all.Wait()
	if keys := keysOf(t, admin); len(keys) != 0 {
		t.Errorf("the keys %q are left", keys)
	}
}

// TestPermitsWake: waiters are told when permits come back, one after the other while some are
// left. They aren't told when permits are taken.
func TestPermitsWake(t *testing.T) {
	t.Parallel()
	a, b, c, admin := parties(t)
	first := wiretest.SubscribeTo(t, b.s, backend.Permits, "n")
	second := wiretest.SubscribeTo(t, c.s, backend.Permits, "n")
	for _, s := range []session{b.s, c.s} {
		etcdbackend.Delay(s, time.Hour)
	}
	a.gets(backend.Permits, of(3, 3))
	other := party{t, a.s, "another"}
	first.Wait() // it didn't know how many there are
	wiretest.Must[backend.ReleaseResult](t)(a.s.Release(t.Context(), backend.ReleaseRequest{
		Kind: backend.Permits, Name: "n", Owner: alice, Lease: lease, Permits: 3, AskWaiting: true,
	}))
	first.Wait()
	b.gets(backend.Permits, of(2, 3))
	second.Wait() // one is left
	testservers.Until(t, "who has permits stands at the end", func() bool {
		return waitingFor(t, admin, "n") == 2
	})
	c.gets(backend.Permits, of(1, 3))
	testservers.Until(t, "who has permits stands at the end", func() bool {
		return waitingFor(t, admin, "n") == 2
	})

	a.forces(backend.Permits, true)
	first.Wait()
	other.gets(backend.Permits, of(1, 3))
	second.Wait()                     // it is before the first now, or nobody is before it
	a.gets(backend.Permits, of(2, 4)) // there are more
	first.Wait()
	other.returns(1, backend.Freed)
	a.returns(2, backend.Freed)
}

// had is what one owner has of a semaphore.
type had struct{ n, limit, when int }

// A counted is what a semaphore must be like, by the tables of package backend.
type counted struct {
	had   map[string]had
	steps int
}

func (m *counted) out() (n int) {
	for _, h := range m.had {
		n += h.n
	}
	return n
}

func (m *counted) limit(asked int) int {
	last := had{limit: 0}
	for _, h := range m.had {
		if h.when > last.when {
			last = h
		}
	}
	if asked > 0 {
		return asked
	}
	return last.limit
}

// whole reports whether an owner has n permits. If it has another number of them, whole releases
// them.
func (m *counted) whole(owner string, n int) bool {
	h, ok := m.had[owner]
	if ok && h.n != n {
		delete(m.had, owner)
		return false
	}
	return ok
}

func (m *counted) acquire(owner string, n, asked int) (bool, error) {
	limit := m.limit(asked)
	switch {
	case limit == 0:
		return false, backend.ErrNoLimit
	case n > limit:
		return false, backend.ErrTooMany
	}
	if !m.whole(owner, n) && n > limit-m.out() {
		return false, nil
	}
	m.steps++
	m.had[owner] = had{n, limit, m.steps}
	return true, nil
}

// TestPermitsModel: random steps, by owners whose session needn't be the same each time.
func TestPermitsModel(t *testing.T) {
	t.Parallel()
	server := testservers.Etcd(t)
	admin := connect(t, server.Addr)
	var sessions []session
	for range 3 {
		sessions = append(sessions, open(t, connect(t, server.Addr)))
	}
	seed := rand.Uint64()
	rnd := rand.New(rand.NewPCG(seed, 0))
	m := counted{had: make(map[string]had)}
	ctx := t.Context()
	for step := range 400 {
		s, owner, n, limit := sessions[rnd.IntN(3)], fmt.Sprint("owner ", rnd.IntN(4)),
			1+rnd.IntN(3), rnd.IntN(7)
		name, want, got := "", "", ""
		switch rnd.IntN(8) {
		case 0, 1, 2:
			name = "acquire"
			ok, err := m.acquire(owner, n, limit)
			res, e := s.Acquire(ctx, backend.AcquireRequest{
				Kind: backend.Permits, Name: "n", Owner: owner, Lease: lease, Permits: n,
				Limit: limit,
			})
			want, got = fmt.Sprint(ok, err != nil),
				fmt.Sprint(res.Acquired, e != nil && errors.Is(e, err))
			if ok && res.Count != n || !ok && err == nil && res.Remaining <= 0 {
				t.Errorf("seed %d, step %d: %+v", seed, step, res)
			}
		case 3, 4:
			name = "release"
			outcome := backend.NotHeld
			if m.whole(owner, n) {
				outcome = backend.Freed
				delete(m.had, owner)
			}
			res, e := s.Release(ctx, backend.ReleaseRequest{
				Kind: backend.Permits, Name: "n", Owner: owner, Lease: lease, Permits: n,
			})
			want, got = fmt.Sprint(outcome, nil), fmt.Sprint(res.Outcome, e)
		case 5:
			name = "renew"
			want = fmt.Sprint(m.whole(owner, n), nil)
			res, e := s.Renew(ctx, backend.RenewRequest{
				Kind: backend.Permits, Name: "n", Owner: owner, Lease: lease, Permits: n,
			})
			got = fmt.Sprint(res.Held, e)
		case 6:
			if rnd.IntN(10) == 0 {
				name = "force"
				want = fmt.Sprint(len(m.had) > 0, nil)
				clear(m.had)
				res, e := s.ForceRelease(ctx, backend.ForceReleaseRequest{
					Kind: backend.Permits, Name: "n",
				})
				got = fmt.Sprint(res.Released, e)
			}
		case 7:
			if kv := get(t, admin, key("n\x01permits/"+owner)); kv != nil && rnd.IntN(4) == 0 {
				name = "the end of a lease"
				wiretest.Must[*clientv3.LeaseRevokeResponse](t)(
					admin.Revoke(ctx, clientv3.LeaseID(kv.Lease)))
				delete(m.had, owner)
			}
		}
		look, err := s.Look(ctx, backend.LookRequest{
			Kind: backend.Permits, Name: "n", Owner: owner, Limit: limit,
		})
		if limit = m.limit(limit); limit == 0 {
			if !errors.Is(err, backend.ErrNoLimit) {
				t.Errorf("seed %d, step %d: %v", seed, step, err)
			}
			continue
		}
		look.Remaining = 0
		if now := (backend.LookResult{
			Held: len(m.had) > 0, Count: m.had[owner].n, Available: max(0, limit-m.out()),
		}); want != got || err != nil || look != now {
			t.Fatalf("seed %d, step %d, %s by %s, %d permits: %s, want %s; now %+v, %v, want %+v",
				seed, step, name, owner, n, got, want, look, err, now)
		}
	}
}

// Too many permits of what is another lock are a conflict, also where the session has a lease to
// spare and so would not look first.
func TestTooManyPermitsOfALock(t *testing.T) {
	t.Parallel()
	server := testservers.Etcd(t)
	wiretest.Must[backend.AcquireResult](t)(open(t, connect(t, server.Addr)).Acquire(t.Context(),
		acquire(alice)))
	s := open(t, connect(t, server.Addr))
	other := backend.AcquireRequest{Name: "other", Owner: bob, Lease: lease}
	wiretest.Must[backend.AcquireResult](t)(s.Acquire(t.Context(), other))
	wiretest.Must[backend.ReleaseResult](t)(s.Release(t.Context(),
		backend.ReleaseRequest{Name: "other", Owner: bob, Lease: lease}))
	if etcdbackend.Idle(s) == 0 {
		t.Fatal("there is no lease to spare")
	}
	_, err := s.Acquire(t.Context(), backend.AcquireRequest{
		Kind: backend.Permits, Name: "n", Owner: bob, Lease: lease, Permits: 3, Limit: 2,
	})
	if !errors.Is(err, backend.ErrConflict) {
		t.Errorf("%v, want a conflict", err)
	}
}
