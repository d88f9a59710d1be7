package faults_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/contract/faults"
	"github.com/seed951563bd/distsync/dlock"
	"github.com/seed951563bd/distsync/internal/test/depth"
	"github.com/seed951563bd/distsync/internal/test/testservers"
	"github.com/seed951563bd/distsync/quorumbackend"
)

// quorumOfRedis is three independent servers as one store.
var quorumOfRedis = redisStore("quorum", testservers.Redis, func(
	addrs ...string,
) (backend.Backend, func(), error) {
	var stores []backend.Backend
	var closes []func()
	for _, addr := range addrs {
		b, closeClient, err := connectRedis(addr)
		if err != nil {
			return nil, nil, err
		}
		stores, closes = append(stores, b), append(closes, closeClient)
	}
	return quorumbackend.New(stores...), func() {
		for _, f := range closes {
			f()
		}
	}, nil
})

// threeStores starts the servers of a quorum. The faults hit the victim.
func threeStores(t *testing.T, victim int) *lab {
	servers := []*testservers.Server{
		testservers.Redis(t), testservers.Redis(t), testservers.Redis(t),
	}
	l := newLab(t, quorumOfRedis, nil, servers...)
	l.server = servers[victim]
	return l
}

// ailments are faults of one store of three. None of them keeps a party from the lock, or makes its
// holder lose it. Faults of a connection apply to the connections of all parties.
var ailments = []struct {
	name   string
	strike func(l *lab, ps []*party) (end func())
}{
	{"the reply to an acquisition is lost", each(replyLost(acquire))},
	{"the reply to a renewal is lost", each(replyLost(renew))},
	{"the reply to a release is lost", each(replyLost(release))},
	{"an acquisition is carried out late", each(late(acquire))},
	{"a renewal is carried out late", each(late(renew))},
	{"a release is carried out late", each(late(release))},
	{"connections are cut", each(func(p *party) func() { p.Cut(); return func() {} })},
	{"it can't be reached", each(func(p *party) func() {
		p.Refuse(true)
		p.Cut()
		return func() { p.Refuse(false) }
	})},
	{"it is in a black hole", each(func(p *party) func() {
		p.Block(faults.Both)
		return func() { p.Unblock(faults.Both) }
	})},
	{"its replies are in a black hole", each(func(p *party) func() {
		p.Block(faults.ToClient)
		return func() { p.Unblock(faults.ToClient) }
	})},
	{"it is slow", each(func(p *party) func() {
		p.SetDelay(100 * time.Millisecond)
		return func() { p.SetDelay(0) }
	})},
	{"it hangs", func(l *lab, _ []*party) func() { l.server.Stop(); return l.server.Cont }},
	{"it dies, and comes back empty", func(l *lab, _ []*party) func() {
		l.server.Kill()
		return l.server.Restart
	}},
	{"it restarts empty", func(l *lab, _ []*party) func() { l.server.Restart(); return func() {} }},
	{"it forgets its scripts", func(l *lab, _ []*party) func() {
		l.server.Do("SCRIPT", "FLUSH")
		return func() {}
	}},
	{"it forgets the key", func(l *lab, _ []*party) func() {
		l.store.deleteKey(l.T, l.server.Addr, l.lock)
		return func() {}
	}},
}

// each makes a fault that hits the connections of each party.
func each(strike func(*party) func()) func(*lab, []*party) func() {
	return func(_ *lab, ps []*party) func() {
		var ends []func()
		for _, p := range ps {
			ends = append(ends, strike(p))
		}
		return func() {
			for _, end := range ends {
				end()
			}
		}
	}
}

func replyLost(s step) func(*party) func() {
	return func(p *party) func() {
		p.LoseReply(p.requests(s)[0])
		return func() {}
	}
}

func late(s step) func(*party) func() {
	return func(p *party) func() {
		_, deliver := p.Hold(p.requests(s)[0])
		return deliver
	}
}

// TestQuorum injects faults into each store of three, whichever store is asked first. It does so
// from the start, or when one party has the lock and another wants it.
func TestQuorum(t *testing.T) {
	t.Parallel()
	for row, ailment := range ailments {
		t.Run(ailment.name, func(t *testing.T) {
			t.Parallel()
			for victim := range 3 {
				t.Run(fmt.Sprint("store ", victim+1), func(t *testing.T) {
					if victim != row%3 {
						depth.Needs(t, depth.Change) // each run has each ailment on one store
					}
					t.Parallel()
					l := threeStores(t, victim)
					runs := []struct {
						kinds          []backend.Kind
						early, survive bool
					}{
						{kinds: plain, survive: true},
						{kinds: plain, early: true},
						{kinds: writeRead},
						{kinds: readWrite, early: true},
					}
					for i, run := range runs {
						l.kinds, l.parties, l.lock = run.kinds, 0, fmt.Sprint("n", i)
						begin := time.Now()
						l.warm()
						l.outlive(ailment.strike, run.early, run.survive)
						l.verdict()
						t.Logf("%v, early %v: %v", run.kinds, run.early,
							time.Since(begin).Round(time.Millisecond))
					}
					l.isEmpty()
				})
			}
		})
	}
}

// outlive lets parties lock one after the other during a fault of one store, and after it.
func (l *lab) outlive(strike func(*lab, []*party) func(), early, survive bool) {
	ps := []*party{l.proxied(), l.proxied(), l.proxied()}
	end := func() {}
	if early {
		end = strike(l, ps)
	}
	var g *grip
	if early {
		g = ps[0].grab()
	} else {
		g = l.grabEverywhere(ps[0])
		end = strike(l, ps)
	}
	struck := time.Now()
	w := ps[1].reach()
	if survive {
		g.survives(struck)
	}
	if g.kind != backend.Read { // reads don't nest
		must(l.T, g.locker().LockContext(g.ctx))
		must(l.T, g.locker().UnlockContext(g.ctx))
	}
	g.let()
	w.in()
	w.holds()
	end()
	w.let()
	for _, p := range ps {
		l.isFree(p)
	}
}

// grabEverywhere acquires the lock so that every store has it. A grant doesn't wait for the slowest
// store, and the request to that may be canceled. Then grabEverywhere tries again.
func (l *lab) grabEverywhere(p *party) *grip {
	g, asked := p.grab(), time.Now()
	testservers.Until(l.T, "all stores have the lock", func() bool {
		if !slices.ContainsFunc(l.servers, func(s *testservers.Server) bool {
			return s.Do("EXISTS", l.lock) != "1"
		}) {
			return true
		}
		if time.Since(asked) > 3*time.Second {
			g.let()
			g, asked = p.grab(), time.Now()
		}
		return false
	})
	return g
}

// One store of three isn't enough. No party gets the lock, and an attempt returns the reason. The
// holder loses the lock by its own clock.
func TestQuorumTwoDown(t *testing.T) {
	t.Parallel()
	l := threeStores(t, 0)
	a, b, c := l.direct(l.short()), l.direct(), l.direct()
	g := a.grab()
	w := c.reach()
	for _, s := range l.servers[:2] {
		s.Kill()
	}
	l.isTaken(b)
	if ok, err := b.at("other").locker().TryLock(t.Context()); ok || err == nil ||
		errors.Is(err, dlock.ErrHeld) {
		t.Errorf("TryLock with one store of three: %v, %v", ok, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), l.store.lease)
	defer cancel()
	if err := b.at("other").locker().LockContext(ctx); err == nil {
		t.Error("LockContext with one store of three locks")
	}
	g.told()
	if err := g.release(); err == nil {
		t.Error("the end of a hold that two of three stores have lost says nothing")
	}
	for _, s := range l.servers[:2] {
		s.Restart()
	}
	w.in()
	w.let()
	l.isFree(b.at("other"))
	l.verdict()
	l.isEmpty()
}

// A lock that two of three stores have forgotten is lost.
func TestNotPromisedTwoStoresLost(t *testing.T) {
	t.Parallel()
	l := threeStores(t, 0)
	l.absent = true
	a, b := l.direct(dlock.WithLease(long)), l.direct()
	g := l.grabEverywhere(a)
	for _, s := range l.servers[:2] {
		s.Restart()
	}
	l.beside(g, b, func() {})
}

// A store that restarts empty within a lease can give the lock to a second party, if another store
// doesn't have the lock because it was slow.
func TestNotPromisedStoreRestartedEmpty(t *testing.T) {
	t.Parallel()
	l := threeStores(t, 2)
	l.absent = true
	a, b := l.proxied(dlock.WithLease(long)), l.direct()
	a.Block(faults.ToServer)
	g := a.grab()
	l.servers[0].Restart()
	l.beside(g, b, func() { a.Unblock(faults.ToServer) })
}

// beside lets another party get the lock while the first holder doesn't know of its loss. After
// well, the first is told, and the second holds the lock.
func (l *lab) beside(g *grip, p *party, well func()) {
	l.Helper()
	w := p.grab()
	if !g.believes() {
		l.Error("the first was told before the second got in")
	}
	well()
	if err := g.release(); !errors.Is(err, dlock.ErrLost) {
		l.Errorf("the end of the first hold: %v", err)
	}
	w.holds()
	w.let()
}
