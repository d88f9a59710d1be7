package contract

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed951563bd/distsync/backend"
)

// queuer returns an owner with its own session, or skips the case for stores without Fair locks.
func (e *env) queuer(owner string) party {
	e.Helper()
	e.need(backend.Fair)
	p := e.party(owner).as(backend.Fair)
	if backend.CapabilitiesOf(p.s).Liner == nil {
		e.Fatal("the store declares Fair locks, but its session is no backend.Liner")
	}
	return p
}

// stands asks for a lock that another owner holds, which gives p a place in line.
func (p party) stands(name string, place time.Duration) {
	p.e.Helper()
	if res := p.asks(name, 0, place); res.Acquired {
		p.e.Fatalf("Acquire(%.40q) by %v: acquired; want a place in line, since another holds it",
			name, p)
	}
}

// keep renews the places of the given owners, which use p's session.
func (p party) keep(name string, place time.Duration, owners ...string) backend.PlacesResult {
	p.e.Helper()
	res, err := backend.CapabilitiesOf(p.s).Liner.KeepPlaces(p.e.ctx, backend.PlacesRequest{
		Kind: backend.Fair, Name: name, Owners: owners, Place: place,
	})
	if err != nil {
		p.e.Fatalf("KeepPlaces(%.40q, %.40q): %v", name, owners, err)
	}
	return res
}

// An ear records the grants that a session is notified of.
type ear struct {
	s    backend.Session
	rung chan struct{}

	mu     sync.Mutex
	grants []backend.Grant
	taken  map[string]bool // owners whose grants the case expected
}

// listens subscribes p's session to a lock's grants. It returns nil if the session isn't a
// Notifier.
func (p party) listens(name string) *ear {
	p.e.Helper()
	n := backend.CapabilitiesOf(p.s).Notifier
	if n == nil {
		return nil
	}
	x := &ear{s: p.s, rung: make(chan struct{}, 1), taken: make(map[string]bool)}
	sub, err := n.Subscribe(p.e.ctx, backend.SubscribeRequest{
		Kind: p.kind, Name: name, Wake: func(backend.Wakeup) {}, Granted: x.granted,
	})
	if err != nil {
		p.e.Fatalf("Subscribe(%.40q): %v", name, err)
	}
	p.e.Cleanup(sub.Close)
	return x
}

func (x *ear) granted(g backend.Grant) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.grants = append(x.grants, g)
	select {
	case x.rung <- struct{}{}:
	default:
	}
}

// take removes and returns the first grant to an owner. After that, the method silent accepts
// further grants to that owner.
func (x *ear) take(owner string) (backend.Grant, bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	i := slices.IndexFunc(x.grants, func(g backend.Grant) bool { return g.Owner == owner })
	if i < 0 {
		return backend.Grant{}, false
	}
	x.taken[owner] = true
	g := x.grants[i]
	x.grants = slices.Delete(x.grants, i, i+1)
	return g, true
}

// silent checks that no grant came out of turn. A grant without a lease only tells an owner to ask
// again, so it is allowed at any time.
func (x *ear) silent(e *env) {
	e.Helper()
	if x == nil {
		return
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, g := range x.grants {
		if g.Lease != 0 && !x.taken[g.Owner] {
			e.Fatalf("Granted was called for %.40q, whose turn it isn't, or which is of another "+
				"session", g.Owner)
		}
	}
}

// hears waits until p's session is notified of a grant to p.
func (p party) hears(x *ear) backend.Grant {
	p.e.Helper()
	for {
		if g, ok := x.take(p.owner); ok {
			return g
		}
		if !rings(x.rung) {
			p.e.Fatalf("nobody called Granted for %v, whose turn it is", p)
		}
	}
}

// patience is the minimum time that a grant must last. If the steps from the grant to the renewal
// take longer, the machine is too slow for the case.
const patience = 500 * time.Millisecond

// turn waits until p gets the lock for which it stands in line, and then renews the hold. The grant
// must come later than the given time. inTime reports whether the hold was renewed before the short
// grant ended.
func (p party) turn(name string, x *ear, since time.Time) (inTime bool) {
	p.e.Helper()
	if x == nil {
		p.e.eventually(fmt.Sprintf("the lock acquired by %v, whose turn it is", p), func() bool {
			return p.asks(name, 0, p.e.longLease()).Acquired
		})
	} else if g := p.hears(x); g.Lease == 0 {
		p.e.eventually(fmt.Sprintf("the lock acquired by %v, which was told", p), func() bool {
			return p.asks(name, 0, p.e.longLease()).Acquired
		})
	}
	held := p.renew(name, p.e.longLease())
	if elapsed := time.Since(since); !held && elapsed < patience {
		p.e.Fatalf("%v after it was given to %v the lock is lost", elapsed, p)
	}
	if held {
		p.has(name, 1)
	}
	return held
}

// attempts counts the attempts of env.inTime.
var attempts atomic.Int64

// inTime calls attempt until its steps are fast enough for a short grant. If they never are, inTime
// fails the case. Each attempt uses a name of its own, because in a cluster a message for one
// attempt might arrive after the next attempt has subscribed.
func (e *env) inTime(attempt func(name string) (inTime bool)) {
	e.Helper()
	for range 20 {
		if attempt(fmt.Sprint("lock", attempts.Add(1))) {
			return
		}
	}
	e.Fatalf("the machine was never fast enough: a step took more than %v each time", patience)
}

// A queue is a group of owners that wait in line for a lock. For each owner, heard contains the ear
// that records the grants in the owner's session.
type queue struct {
	e     *env
	name  string
	all   []party
	heard []*ear
}

// lineUp subscribes owners to a lock that another owner holds, and puts them in line for it.
func (e *env) lineUp(name string, place time.Duration, all ...party) *queue {
	e.Helper()
	q := &queue{e: e, name: name}
	for _, p := range all {
		q.listen(p)
	}
	for _, p := range all {
		p.stands(name, place)
	}
	return q
}

// listen adds an owner that must be notified of its grant. All owners of a session share one
// subscription.
func (q *queue) listen(p party) {
	q.e.Helper()
	x := (*ear)(nil)
	for _, other := range q.heard {
		if other != nil && other.s == p.s {
			x = other
		}
	}
	if x == nil {
		x = p.listens(q.name)
	}
	q.all, q.heard = append(q.all, p), append(q.heard, x)
}

// turns checks that the owners with these indexes get the lock one after another, each as soon as
// the previous owner has released it. The first grant must come later than the given time.
func (q *queue) turns(since time.Time, order ...int) (inTime bool) {
	q.e.Helper()
	for _, i := range order {
		p := q.all[i]
		if !p.turn(q.name, q.heard[i], since) {
			return false
		}
		for _, x := range q.heard {
			x.silent(q.e)
		}
		since = time.Now()
		p.releases(q.name, q.e.longLease(), backend.Freed)
	}
	return true
}

var fairCases = []testCase{
	{name: "fair/order",
		rule: "Waiters in line get the lock in the order of their arrival, in whatever session, " +
			"and then leave the line",
		run: func(e *env) {
			a, lease := e.queuer("a"), e.longLease()
			b, c := e.queuer("b"), e.queuer("c")
			all := []party{
				b, c, e.at(b.s, "d").as(backend.Fair), e.at(a.s, "e").as(backend.Fair),
				e.queuer("f"),
			}
			e.inTime(func(name string) bool {
				a.acquires(name, lease)
				q := e.lineUp(name, lease, all...)
				all[1].has(name, 0)
				start := time.Now()
				a.releases(name, lease, backend.Freed)
				if !q.turns(start, 0, 1, 2, 3, 4) {
					return false
				}
				a.seesFree(name)
				a.acquires(name, lease)
				return true
			})
		}},
	{name: "fair/again",
		rule: "A holder isn't counted again without Reentry, and is counted once more with it; " +
			"each hold lasts at least as long as the lease",
		run: func(e *env) {
			a, b, lease, shorter := e.queuer("a"), e.queuer("b"), e.longLease(),
				e.legal(e.longLease()/2)
			start := time.Now()
			for _, l := range []time.Duration{lease, lease, shorter, 2 * lease} {
				if res := a.asks("lock", 0, lease, l); !res.Acquired {
					e.Fatal("an attempt by the holder was refused")
				}
				a.has("lock", 1)
				a.lasts("lock", max(l, lease), start)
			}
			a.lasts("lock", 2*lease, start)
			a.reenters("lock", 2*lease, 2)
			if res := e.at(e.session(), "a").as(backend.Fair).asks("lock", 0, 0); !res.Acquired {
				e.Fatal("an attempt by the holder, from another session, was refused")
			}
			a.reenters("lock", 2*lease, 3)
			b.refused("lock", lease)
			a.releases("lock", lease, backend.Left)
			a.releases("lock", lease, backend.Left)
			a.releases("lock", lease, backend.Freed)
			b.acquires("lock", lease) // succeeds only if owner "a" no longer has a place in line
			b.releases("lock", lease, backend.Freed)
			b.seesFree("lock")
		}},
	{name: "fair/given and asked for",
		rule: "An owner that was given the lock just as it asked again holds it once, for the " +
			"lease that it asked for",
		run: func(e *env) {
			a, b, lease := e.queuer("a"), e.queuer("b"), e.longLease()
			e.inTime(func(name string) bool {
				a.acquires(name, lease)
				b.stands(name, lease)
				start := time.Now()
				a.releases(name, lease, backend.Freed)
				if res := b.asks(name, 0, lease); !res.Acquired {
					return time.Since(start) < patience &&
						fails(e, "%v, whose turn it is, was refused", b)
				}
				b.has(name, 1)
				b.lasts(name, lease, start)
				b.releases(name, lease, backend.Freed)
				b.seesFree(name)
				return true
			})
		}},
	{name: "fair/no place", rule: "Without Place a failed attempt changes nothing",
		run: func(e *env) {
			a, b, c, lease := e.queuer("a"), e.queuer("b"), e.queuer("c"), e.longLease()
			start := time.Now()
			a.acquires("lock", lease)
			heard := b.listens("lock")
			b.keptOut("lock", term{lease, start})
			b.refused("lock", 2*lease)
			a.lasts("lock", lease, start)
			a.releases("lock", lease, backend.Freed)
			a.seesFree("lock")
			c.acquires("lock", lease)
			c.releases("lock", lease, backend.Freed)
			heard.silent(e)
		}},
	{name: "fair/remaining",
		rule: "A request that gets or keeps a place reports how long the present hold lasts",
		run: func(e *env) {
			a, b, lease := e.queuer("a"), e.queuer("b"), e.longLease()
			start := time.Now()
			a.acquires("lock", lease)
			told := func(step string, remaining time.Duration, lease time.Duration) {
				e.Helper()
				if remaining >= 0 { // if negative, the store doesn't know the remaining time
					e.checkRemaining(step, remaining, lease, start)
				}
			}
			told("Acquire", b.asks("lock", 0, lease).Remaining, lease)
			told("KeepPlaces", b.keep("lock", lease, "b").Remaining, lease)
			a.renews("lock", 2*lease, true)
			told("Acquire", b.asks("lock", 0, lease).Remaining, 2*lease)
			told("KeepPlaces", b.keep("lock", lease, "b").Remaining, 2*lease)
			a.has("lock", 1)
		}},
	{name: "fair/not before its turn",
		rule: "When a hold has run out, the first in line gets the lock before all later ones, " +
			"even if it wasn't told",
		run: func(e *env) {
			a, b, c, lease := e.queuer("a"), e.queuer("b"), e.queuer("c"), e.longLease()
			for i, place := range []time.Duration{0, lease} {
				name := fmt.Sprint("lock", i)
				a.acquires(name, e.shortLease())
				heard := b.listens(name)
				if b.asks(name, 0, lease).Acquired {
					continue // the short lease had expired
				}
				e.eventually("the lock given to the first in line", func() bool {
					acquired := c.asks(name, 0, place).Acquired
					if b.look(name).Count == 1 {
						return true
					}
					if acquired && heard != nil { // b's grant may have expired
						b.hears(heard)
					}
					return acquired &&
						(heard != nil ||
							fails(e, "%v got the lock before %v, which stands in line", c, b))
				})
			}
		}},
	{name: "fair/moved by any step",
		rule: "If a hold has run out, any step about the lock except Look gives it to the first " +
			"in line; if that one makes the step, it has acquired the lock",
		run: func(e *env) {
			a, b, c, lease := e.queuer("a"), e.queuer("b"), e.queuer("c"), e.longLease()
			var all []func()
			for what, step := range map[string]func(name string){
				"Acquire":              func(name string) { c.asks(name, 0, 0) },
				"Acquire with Place":   func(name string) { c.asks(name, 0, lease) },
				"Acquire by the first": func(name string) { b.asks(name, 0, lease) },
				"Release": func(name string) {
					c.releases(name, lease, backend.NotHeld)
				},
				"Renew":      func(name string) { c.renews(name, lease, false) },
				"KeepPlaces": func(name string) { b.keep(name, lease, "b") },
				"Release by the first": func(name string) {
					a.releases(name, lease, backend.NotHeld)
				},
				"ForceRelease": func(name string) {
					c.s.ForceRelease(e.ctx, backend.ForceReleaseRequest{
						Kind: backend.Fair, Name: name,
					})
				},
			} {
				a.acquires(what, e.shortLease())
				heard := b.listens(what)
				if b.asks(what, 0, lease).Acquired {
					continue // the short lease had expired
				}
				all = append(all, func() {
					e.eventually("the lock given to the first in line, after a hold that ran "+
						"out, by "+what, func() bool {
						if b.look(what).Count == 1 {
							return true
						}
						if heard != nil {
							if _, told := heard.take("b"); told {
								return true
							}
						}
						if !a.look(what).Held {
							step(what)
						}
						return false
					})
				})
			}
			for _, awaits := range all {
				awaits()
			}
		}},
	{name: "fair/dead heir",
		rule: "An owner that was given the lock and doesn't renew it has it for about a second, " +
			"and then the next in line gets it",
		run: func(e *env) {
			a, dead, c, lease := e.queuer("a"), e.queuer("dead"), e.queuer("c"), e.longLease()
			a.acquires("lock", lease)
			q := e.lineUp("lock", lease, dead, c)
			start := time.Now()
			a.releases("lock", lease, backend.Freed)
			if left, atMost := dead.look("lock").
				Remaining, e.legal(time.Second)+4*time.Second; left > atMost {
				e.Fatalf("the lock was given away for %v; want about a second", left)
			}
			e.eventually("the lock given to the next in line, after a dead one", func() bool {
				holder := c.keep("lock", lease, "c").Holder
				if q.heard[1] != nil {
					_, told := q.heard[1].take("c")
					return told || holder == "c"
				}
				return holder == "c"
			})
			if elapsed := time.Since(start); elapsed < patience {
				e.Fatalf("the first in line had the lock for %v; want about a second", elapsed)
			}
			dead.renews("lock", lease, false)
			dead.releases("lock", lease, backend.NotHeld)
		}},
	{name: "fair/place ends",
		rule: "A place that isn't kept ends after Place, and its owner gets nothing; a place " +
			"that is kept goes on",
		run: func(e *env) {
			a, dead, c, d, lease := e.queuer("a"), e.queuer("dead"), e.queuer("c"), e.queuer("d"),
				e.longLease()
			e.inTime(func(name string) bool {
				a.acquires(name, lease)
				forgotten := dead.listens(name)
				dead.stands(name, e.shortLease())
				q := e.lineUp(name, lease, c, d)
				e.sleep(e.shortLease() + e.shortLease()/2 + e.leaseStep())
				start := time.Now()
				a.releases(name, lease, backend.Freed)
				if !q.turns(start, 0, 1) {
					return false
				}
				a.seesFree(name)
				forgotten.silent(e)
				return true
			})
			// Here the dead owner is the only one in line.
			a.acquires("lock", lease)
			dead.stands("lock", e.shortLease())
			e.sleep(e.shortLease() + e.shortLease()/2 + e.leaseStep())
			a.releases("lock", lease, backend.Freed)
			c.acquires("lock", lease)
		}},
	{name: "fair/place kept by asking",
		rule: "A waiter in line that asks again keeps its place, which lasts for Place from now " +
			"on, or longer if it was kept for longer",
		run: func(e *env) {
			a, b, c, d, lease := e.queuer("a"), e.queuer("b"), e.queuer("c"), e.queuer("d"),
				e.longLease()
			e.inTime(func(name string) bool {
				a.acquires(name, lease)
				b.stands(name, e.shortLease())
				q := e.lineUp(name, lease, b, c, d)
				b.stands(name, lease)
				c.stands(name, e.shortLease()) // this must not shorten the life of the place
				d.asks(name, 0, 0)             // this doesn't give up the place
				e.sleep(e.shortLease() + e.shortLease()/2 + e.leaseStep())
				start := time.Now()
				a.releases(name, lease, backend.Freed)
				return q.turns(start, 0, 1, 2)
			})
		}},
	{name: "fair/given up",
		rule: "A Release by an owner that holds nothing gives up its own place only",
		run: func(e *env) {
			a, b, c, d, lease := e.queuer("a"), e.queuer("b"), e.queuer("c"), e.queuer("d"),
				e.longLease()
			e.inTime(func(name string) bool {
				start := time.Now()
				a.acquires(name, lease)
				gone := b.listens(name)
				b.stands(name, lease)
				q := e.lineUp(name, lease, c, d)
				b.releases(name, lease, backend.NotHeld)
				b.releases(name, lease, backend.NotHeld)
				a.has(name, 1)
				a.lasts(name, lease, start)
				start = time.Now()
				a.releases(name, lease, backend.Freed)
				if !c.turn(name, q.heard[0], start) {
					return false
				}
				b.stands(name, lease) // now b is last in line
				start = time.Now()
				c.releases(name, lease, backend.Freed)
				if !d.turn(name, q.heard[1], start) {
					return false
				}
				gone.silent(e)
				b.releases(name, lease, backend.NotHeld)
				d.releases(name, lease, backend.Freed)
				a.seesFree(name)
				gone.silent(e)
				return true
			})
		}},
	{name: "fair/given up too late",
		rule: "If an owner was given the lock just as it gave up its place, its Release gives " +
			"the lock to the next",
		run: func(e *env) {
			a, b, c, lease := e.queuer("a"), e.queuer("b"), e.queuer("c"), e.longLease()
			e.inTime(func(name string) bool {
				a.acquires(name, lease)
				q := e.lineUp(name, lease, b, c)
				start := time.Now()
				a.releases(name, lease, backend.Freed)
				res, err := b.s.Release(e.ctx, backend.ReleaseRequest{
					Kind: backend.Fair, Name: name, Owner: "b", Lease: lease,
				})
				switch {
				case err != nil:
					e.Fatalf("Release: %v", err)
				case res.Outcome != backend.Freed:
					return time.Since(start) < patience &&
						fails(e, "Release by %v, which was given the lock: %v; want freed", b,
							res.Outcome)
				case !c.turn(name, q.heard[1], start):
					return false
				}
				c.releases(name, lease, backend.Freed)
				a.seesFree(name)
				return true
			})
		}},
	{name: "fair/keep",
		rule: "KeepPlaces lets the places of waiters in line end after Place from now on, and " +
			"doesn't move them",
		run: func(e *env) {
			a, b, c, lease := e.queuer("a"), e.queuer("b"), e.queuer("c"), e.longLease()
			d := e.at(b.s, "d").as(backend.Fair)
			short := e.shortLease()
			e.inTime(func(name string) bool {
				a.acquires(name, lease)
				start := time.Now()
				q := e.lineUp(name, short, b, c, d)
				c.keep(name, lease, "c")
				if res := b.keep(name, lease, "d", "b"); res.Holder != "" {
					e.Fatalf("KeepPlaces of %v and %v: Holder %q; want none of them", b, d,
						res.Holder)
				}
				if time.Since(start) >= short-short/50-2*time.Millisecond {
					short *= 2 // the machine was too slow: the places may have expired
					return false
				}
				e.sleep(short + short/2 + e.leaseStep())
				start = time.Now()
				a.releases(name, lease, backend.Freed)
				return q.turns(start, 0, 1, 2)
			})
		}},
	{name: "fair/keep ends", rule: "A place that was kept ends after Place, too",
		run: func(e *env) {
			a, dead, c, lease := e.queuer("a"), e.queuer("dead"), e.queuer("c"), e.longLease()
			e.inTime(func(name string) bool {
				a.acquires(name, lease)
				forgotten := dead.listens(name)
				dead.stands(name, e.shortLease())
				dead.keep(name, e.shortLease(), "dead")
				q := e.lineUp(name, lease, c)
				e.sleep(e.shortLease() + e.shortLease()/2 + e.leaseStep())
				start := time.Now()
				a.releases(name, lease, backend.Freed)
				if !q.turns(start, 0) {
					return false
				}
				forgotten.silent(e)
				return true
			})
		}},
	{name: "fair/back in line",
		rule: "KeepPlaces puts owners that are neither in line nor hold the lock before all " +
			"others, in the order of the request",
		run: func(e *env) {
			a, b, c, lease := e.queuer("a"), e.queuer("b"), e.queuer("c"), e.longLease()
			on := func(p party, owner string) party { return e.at(p.s, owner).as(backend.Fair) }
			x, y, z := on(b, "x"), on(b, "y"), on(b, "z")
			e.inTime(func(name string) bool {
				a.acquires(name, lease)
				q := e.lineUp(name, lease, c, y)
				for _, p := range []party{x, z} {
					q.listen(p)
					p.stands(name, e.shortLease())
				}
				e.sleep(e.shortLease() + e.shortLease()/2 + e.leaseStep())
				b.keep(name, lease, "z", "y", "x")
				for _, p := range q.all {
					p.has(name, 0)
				}
				start := time.Now()
				a.releases(name, lease, backend.Freed)
				return q.turns(start, 3, 2, 0, 1)
			})
		}},
	{name: "fair/keep and hold",
		rule: "KeepPlaces reports which of its owners holds the lock, and gives that one no place",
		run: func(e *env) {
			a, c, lease := e.queuer("a"), e.queuer("c"), e.longLease()
			b := e.at(a.s, "b").as(backend.Fair)
			e.inTime(func(name string) bool {
				a.acquires(name, lease)
				q := e.lineUp(name, lease, b)
				for range 2 {
					if res := a.keep(name, lease, "b", "a"); res.Holder != "a" {
						e.Fatalf("KeepPlaces: Holder %q; want the holder, one of the owners",
							res.Holder)
					}
				}
				if res := c.keep(name, lease, "c"); res.Holder != "" {
					e.Fatalf("KeepPlaces: Holder %q, which isn't among the owners", res.Holder)
				}
				c.releases(name, lease, backend.NotHeld)
				a.has(name, 1)
				start := time.Now()
				a.releases(name, lease, backend.Freed)
				res := a.keep(name, lease, "b")
				if elapsed := time.Since(start); res.Holder != "b" && elapsed < patience {
					e.Fatalf("KeepPlaces: Holder %q; want the one that was just given the lock",
						res.Holder)
				}
				if !q.turns(start, 0) {
					return false
				}
				a.seesFree(name)
				return true
			})
		}},
	{name: "fair/keep what is free",
		rule: "If the lock is free when places are kept, the first in line gets it",
		run: func(e *env) {
			b, c, lease := e.queuer("b"), e.queuer("c"), e.longLease()
			e.inTime(func(name string) bool {
				start := time.Now()
				q := &queue{e: e, name: name}
				q.listen(b)
				q.listen(c)
				res := b.keep(name, lease, "b")
				if res.Holder != "b" {
					e.Fatalf("KeepPlaces of a free lock: Holder %q; want the first", res.Holder)
				}
				if atMost := e.legal(time.Second) + 4*time.Second; res.Remaining > atMost {
					e.Fatalf("KeepPlaces of a free lock: Remaining %v; want about a second",
						res.Remaining)
				}
				c.stands(name, lease)
				return q.turns(start, 0, 1)
			})
		}},
	{name: "fair/told",
		rule: "Granted reports who was given the lock, from what instant on and for how long: " +
			"the store keeps the lock at least that long, and the instant isn't after the grant",
		run: func(e *env) {
			e.needNotifier()
			a, b, other, lease := e.queuer("a"), e.queuer("b"), e.queuer("other"), e.longLease()
			e.inTime(func(name string) bool {
				a.acquires(name, lease)
				q, unheard := e.lineUp(name, lease, b), other.listens(name)
				a.releases(name, lease, backend.Freed)
				released := time.Now()
				g := b.hears(q.heard[0])
				left, now := other.look(name), time.Now()
				switch {
				case g.Lease < 0:
					e.Fatalf("Granted with a lease of %v", g.Lease)
				case g.Lease == 0: // b is told to ask
				case g.Since.After(released):
					e.Fatalf("Granted says that the lock was free until %v after it was given away",
						g.Since.Sub(released))
				case left.Held && g.Since.Add(g.Lease).After(now.Add(left.Remaining+e.leaseStep())):
					e.Fatalf("Granted promises the lock for %v longer than the store keeps it",
						g.Since.Add(g.Lease).Sub(now.Add(left.Remaining)))
				}
				unheard.silent(e)
				return left.Held
			})
		}},
	{name: "fair/told by KeepPlaces",
		rule: "Granted is called whichever step gave the lock away, even a step of the same " +
			"session",
		run: func(e *env) {
			e.needNotifier()
			b, lease := e.queuer("b"), e.longLease()
			c := e.at(b.s, "c").as(backend.Fair)
			e.inTime(func(name string) bool {
				start := time.Now()
				heard := b.listens(name)
				b.keep(name, lease, "b", "c")
				b.hears(heard)
				if !b.renew(name, lease) {
					return time.Since(start) < patience && fails(e, "the lock was lost at once")
				}
				start = time.Now()
				b.releases(name, lease, backend.Freed)
				return c.turn(name, heard, start)
			})
		}},
	{name: "fair/told at once",
		rule: "A grant that is made right after Subscribe has returned calls Granted",
		run: func(e *env) {
			e.needNotifier()
			a, b, lease := e.queuer("a"), e.queuer("b"), e.longLease()
			// Use ten locks at once, so that subscriptions, grants and closings overlap.
			e.parallel(10, func(i int) error {
				name := fmt.Sprint("lock", i)
				for round := range 10 {
					if _, err := a.insists(name, lease); err != nil {
						return err
					}
					x := &ear{rung: make(chan struct{}, 1), taken: make(map[string]bool)}
					sub, err := backend.CapabilitiesOf(b.s).
						Notifier.Subscribe(e.ctx, backend.SubscribeRequest{
						Kind: backend.Fair, Name: name, Wake: func(backend.Wakeup) {},
						Granted: x.granted,
					})
					if err != nil {
						return fmt.Errorf("Subscribe(%s): %w", name, err)
					}
					req := b.request(name, lease)
					req.Place = lease
					if res, err := b.s.Acquire(e.ctx, req); err != nil || res.Acquired {
						return fmt.Errorf("Acquire(%s): %+v, %w; want a place in line", name, res,
							err)
					}
					if err := a.gives(name, lease); err != nil {
						return err
					}
					for told := false; !told; _, told = x.take("b") {
						if !rings(x.rung) {
							return fmt.Errorf("round %d: %s was given away when Subscribe had "+
								"returned, and nobody called Granted", round, name)
						}
					}
					sub.Close()
					if _, err := b.s.Release(e.ctx, backend.ReleaseRequest{
						Kind: backend.Fair, Name: name, Owner: "b", Lease: lease,
					}); err != nil {
						return err
					}
				}
				return nil
			})
		}},
	{name: "fair/told no longer",
		rule: "After Subscription.Close has returned, Granted is called at most once more",
		run: func(e *env) {
			e.needNotifier()
			a, b, lease := e.queuer("a"), e.queuer("b"), e.longLease()
			var calls atomic.Int32
			sub, err := backend.CapabilitiesOf(b.s).
				Notifier.Subscribe(e.ctx, backend.SubscribeRequest{
				Kind: backend.Fair, Name: "lock", Wake: func(backend.Wakeup) {},
				Granted: func(backend.Grant) { calls.Add(1) },
			})
			if err != nil {
				e.Fatalf("Subscribe: %v", err)
			}
			sub.Close()
			// The grants reach another subscription of the same session. If the closed subscription
			// were still open, it would get them, too.
			heard := b.listens("lock")
			for range 5 {
				a.acquires("lock", lease)
				b.stands("lock", lease)
				a.releases("lock", lease, backend.Freed)
				b.hears(heard)
				b.s.Release(e.ctx, backend.ReleaseRequest{
					Kind: backend.Fair, Name: "lock", Owner: "b", Lease: lease,
				})
			}
			if n := calls.Load(); n > 1 {
				e.Fatalf("Granted of a closed subscription was called %d times", n)
			}
		}},
	{name: "fair/told of many", rule: "One session can be told of many locks, with any names",
		run: func(e *env) {
			e.needNotifier()
			a, b, lease := e.queuer("a"), e.queuer("b"), e.longLease()
			names := make([]string, 50)
			heard := make([]*ear, len(names))
			for i := range names {
				names[i] = fmt.Sprint("one of many, ", i)
				a.acquires(names[i], lease)
				heard[i] = b.listens(names[i])
				b.stands(names[i], lease)
			}
			for _, name := range names {
				a.releases(name, lease, backend.Freed)
			}
			for _, x := range heard {
				b.hears(x)
			}
			// Use one name at a time, because a store may keep a single queue for all names that
			// differ only in braces, as Redisson does.
			for _, name := range e.oddLocks(b.kind) {
				x := b.listens(name)
				a.acquires(name, lease)
				b.stands(name, lease)
				a.releases(name, lease, backend.Freed)
				b.hears(x)
				b.s.Release(e.ctx, backend.ReleaseRequest{
					Kind: backend.Fair, Name: name, Owner: "b", Lease: lease,
				})
			}
		}},
	{name: "fair/told after a break",
		rule: "When a broken subscription works again Wake is called, and later grants are told",
		run: func(e *env) {
			e.needNotifier()
			e.skipWithout(e.store.BreakSubscriptions != nil, "BreakSubscriptions")
			a, b, lease := e.queuer("a"), e.queuer("b"), e.longLease()
			for i := range 3 {
				name := fmt.Sprint("lock", i)
				rung, x := newBell(), &ear{
					rung: make(chan struct{}, 1), taken: make(map[string]bool),
				}
				sub, err := backend.CapabilitiesOf(b.s).
					Notifier.Subscribe(e.ctx, backend.SubscribeRequest{
					Kind: backend.Fair, Name: name, Wake: rung.ring, Granted: x.granted,
				})
				if err != nil {
					e.Fatalf("Subscribe: %v", err)
				}
				a.acquires(name, lease)
				b.stands(name, lease)
				rung.reset()
				e.store.BreakSubscriptions()
				rung.waits(e, "a break of the connection")
				a.releases(name, lease, backend.Freed)
				b.hears(x)
				sub.Close()
			}
		}},
	{name: "fair/force",
		rule: "ForceRelease frees the lock, keeps the line, and gives the lock to the first in " +
			"line; it reports whether the lock was held",
		run: func(e *env) {
			a, b, c, lease := e.queuer("a"), e.queuer("b"), e.queuer("c"), e.longLease()
			a.forces("free", false)
			e.inTime(func(name string) bool {
				a.acquires(name, lease)
				a.acquires(name, lease)
				q := e.lineUp(name, lease, b, c)
				start := time.Now()
				c.forces(name, true)
				a.renews(name, lease, false)
				a.releases(name, lease, backend.NotHeld)
				if !b.turn(name, q.heard[0], start) {
					return false
				}
				start = time.Now()
				a.forces(name, true)
				if !q.turns(start, 1) {
					return false
				}
				a.forces(name, false)
				a.seesFree(name)
				return true
			})
		}},
	{name: "fair/and plain",
		rule: "Fair, Exclusive and Fenced are kinds of one lock: each excludes the others, sees " +
			"it, and frees it by force",
		run: func(e *env) {
			fair, lease := e.queuer("a"), e.longLease()
			for _, k := range e.locks()[0] {
				if k == backend.Fair {
					continue
				}
				plain := e.party("b").as(k)
				for i, ways := range [][2]party{{fair, plain}, {plain, fair}} {
					holder, other := ways[0], ways[1]
					name, start := fmt.Sprint(k, i), time.Now()
					holder.acquires(name, lease)
					other.keptOut(name, term{lease, start})
					other.has(name, 0)
					other.lasts(name, lease, start)
					other.renews(name, lease, false)
					other.releases(name, lease, backend.NotHeld)
					holder.has(name, 1)
					other.forces(name, true)
					holder.seesFree(name)
				}
				name := "line for " + k.String()
				plain.acquires(name, lease)
				fair.stands(name, lease)
				plain.has(name, 1)
				plain.releases(name, lease, backend.Freed)
				e.eventually("a Fair lock given to a waiter in line while the name had "+
					"another kind", func() bool {
					return fair.keep(name, lease, "a").Holder == "a"
				})
			}
		}},
	{name: "fair/owners",
		rule: "Waiters in line are compared for equality only: case, blanks and all characters " +
			"count",
		run: func(e *env) {
			a, lease := e.queuer("holder"), e.longLease()
			s := e.session()
			done := 0 // number of odd names tried so far
			e.inTime(func(name string) bool {
				a.acquires(name, lease)
				heard := e.at(s, "").as(backend.Fair).listens(name)
				waiting := oddNames[done:]
				for _, owner := range waiting {
					e.at(s, owner).as(backend.Fair).stands(name, lease)
				}
				start := time.Now()
				a.releases(name, lease, backend.Freed)
				for _, owner := range waiting {
					p := e.at(s, owner).as(backend.Fair)
					if !p.turn(name, heard, start) {
						return false
					}
					done++
					start = time.Now()
					p.releases(name, lease, backend.Freed)
				}
				return true
			})
		}},
	{name: "fair/at once",
		rule: "No two hold the lock at once, and all waiters in line get it, while steps of all " +
			"kinds go on",
		tags: Exclusion,
		run: func(e *env) {
			const sessions, owners, rounds = 3, 3, 6
			lease := e.longLease()
			var inside atomic.Int32
			var all []party
			for i := range sessions {
				s := e.queuer("").s
				for j := range owners {
					all = append(all, e.at(s, fmt.Sprintf("%d:%d", i, j)).as(backend.Fair))
				}
			}
			e.parallel(len(all), func(i int) error {
				for round := range rounds {
					acquired, err := all[i].queuesUntil("lock", lease, (i+round)%4 == 0)
					if err != nil {
						return err
					}
					if !acquired {
						continue
					}
					if n := inside.Add(1); n != 1 {
						return fmt.Errorf("%d owners hold the lock at once", n)
					}
					time.Sleep(time.Duration(rand.IntN(500)) * time.Microsecond)
					inside.Add(-1)
					if err := all[i].gives("lock", lease); err != nil {
						return err
					}
				}
				return nil
			})
			all[0].seesFree("lock")
		}},
	{name: "fair/broken subscription",
		rule: "An owner that wasn't told of its turn because its subscription was broken learns " +
			"of it from KeepPlaces",
		run: func(e *env) {
			e.needNotifier()
			e.skipWithout(e.store.BreakSubscriptions != nil, "BreakSubscriptions")
			a, b, lease := e.queuer("a"), e.queuer("b"), e.longLease()
			a.acquires("lock", lease)
			e.lineUp("lock", lease, b)
			e.store.BreakSubscriptions()
			a.releases("lock", lease, backend.Freed)
			e.eventually("KeepPlaces names the holder", func() bool {
				return b.keep("lock", lease, "b").Holder == "b"
			})
			e.eventually("the lock acquired by the owner that was given it", func() bool {
				return b.asks("lock", 0, lease).Acquired
			})
			b.has("lock", 1)
		}},
	{name: "fair/wiped",
		rule: "After the store has lost its data, former waiters come back with KeepPlaces, and " +
			"the first one that comes back gets the lock",
		run: func(e *env) {
			e.skipWithout(e.store.Wipe != nil, "Wipe")
			a, b, lease := e.queuer("a"), e.queuer("b"), e.longLease()
			a.acquires("lock", lease)
			b.stands("lock", lease)
			e.store.Wipe()
			e.eventually("KeepPlaces names the holder, after Wipe", func() bool {
				res, err := backend.CapabilitiesOf(b.s).
					Liner.KeepPlaces(e.ctx, backend.PlacesRequest{
					Kind: backend.Fair, Name: "lock", Owners: []string{"b"}, Place: lease,
				})
				return err == nil && res.Holder == "b"
			})
			e.eventually("a step of the former holder without an error", func() bool {
				_, err := a.s.Look(e.ctx, backend.LookRequest{
					Kind: backend.Fair, Name: "lock", Owner: "a",
				})
				return err == nil
			})
			a.renews("lock", lease, false)
		}},
	{name: "fair/context over",
		rule: "KeepPlaces with a context that has ended reports the truth, and may be called " +
			"again",
		run: func(e *env) {
			a, b, lease := e.queuer("a"), e.queuer("b"), e.longLease()
			over, cancel := context.WithCancel(e.ctx)
			cancel()
			a.acquires("lock", lease)
			for range 5 {
				res, err := backend.CapabilitiesOf(b.s).
					Liner.KeepPlaces(over, backend.PlacesRequest{
					Kind: backend.Fair, Name: "lock", Owners: []string{"a", "b"}, Place: lease,
				})
				switch {
				case err == nil && res.Holder != "a":
					e.Fatalf("KeepPlaces returned no error, and the holder %q; want \"a\", or "+
						"an error", res.Holder)
				case err != nil && backend.KindOf(err) == backend.Refused:
					e.Fatalf("KeepPlaces: error %q is of kind Refused; but another step could be "+
						"carried out", err)
				}
			}
			if res := b.keep("lock", lease, "b", "a"); res.Holder != "a" {
				e.Fatalf("KeepPlaces: Holder %q; want \"a\"", res.Holder)
			}
		}},
}

// fails fails the test. It returns a bool only so that it can be used in expressions.
func fails(e *env, format string, args ...any) bool {
	e.Helper()
	e.Fatalf(format, args...)
	return false
}

// queuesUntil makes p wait in line until it gets the lock. If givesUp is set, p leaves the line
// unless it gets the lock at once. Any goroutine may call queuesUntil.
func (p party) queuesUntil(
	name string, lease time.Duration, givesUp bool,
) (acquired bool, err error) {
	req := p.request(name, lease)
	req.Place = lease
	for start := time.Now(); ; {
		res, err := p.s.Acquire(p.e.ctx, req)
		switch {
		case err != nil || res.Acquired:
			return res.Acquired, err
		case givesUp:
			_, err := p.s.Release(p.e.ctx, backend.ReleaseRequest{
				Kind: p.kind, Name: name, Owner: p.owner, Lease: lease,
			})
			return false, err
		case time.Since(start) > 30*time.Second:
			return false, fmt.Errorf("%v waits too long for its turn", p)
		}
		time.Sleep(time.Duration(rand.IntN(20)) * time.Millisecond)
		if _, err := backend.CapabilitiesOf(p.s).
			Liner.KeepPlaces(p.e.ctx, backend.PlacesRequest{
			Kind: p.kind, Name: name, Owners: []string{p.owner}, Place: lease,
		}); err != nil {
			return false, err
		}
	}
}
