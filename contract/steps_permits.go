package contract

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/seed951563bd/distsync/backend"
)

// worker returns an owner with its own session. It skips the case if the store has no Permits.
func (e *env) worker(owner string) party {
	e.Helper()
	e.need(backend.Permits)
	return e.party(owner).as(backend.Permits)
}

// available checks how many permits are available if the semaphore has the given limit. A limit of
// 0 stands for the limit that the store was last told.
func (p party) available(name string, limit, want int) {
	p.e.Helper()
	if res := p.of(p.permits, limit).lookAll(name); res.Available != want {
		p.e.Fatalf("Look(%.40q), Limit %d: %+v; want %d available", name, limit, res, want)
	}
}

// waits checks that an Acquire is refused because too few permits are left. If the store reports
// how long it takes until more become available, that time must agree with x, the term of the hold
// that ends first.
func (p party) waits(name string, x term) {
	p.e.Helper()
	p.keptOut(name, x)
	if res := p.look(name); !res.Held || res.Count != 0 {
		p.e.Fatalf("Look(%.40q) by %v, which was kept out: %+v; want held by others, count 0", name,
			p, res)
	}
}

// refusedAs checks that Acquire returns the error want, and that the error's kind is Refused.
func (p party) refusedAs(name string, want error) {
	p.e.Helper()
	if _, err := p.s.Acquire(p.e.ctx, p.request(name, p.e.longLease())); !errors.Is(err, want) ||
		backend.KindOf(err) != backend.Refused {
		p.e.Fatalf("Acquire(%.40q) by %v, %d of %d: error %v; want %v, of kind Refused", name, p,
			p.permits, p.limit, err, want)
	}
}

var permitsCases = []testCase{
	{name: "permits/count",
		rule: "Owners have as many permits as they asked for, together no more than the limit; " +
			"an owner that can't get all gets none",
		run: func(e *env) {
			a, b, c, d, lease := e.worker("a"), e.worker("b"), e.worker("c"), e.worker("d"),
				e.longLease()
			a.available("lock", 5, 5)
			a.seesFree("lock")
			start := time.Now()
			a.of(2, 5).acquires("lock", lease)
			a.available("lock", 5, 3)
			b.of(2, 5).acquires("lock", lease)
			c.of(2, 5).waits("lock", term{lease, start})
			c.of(5, 5).waits("lock", term{lease, start})
			c.available("lock", 5, 1)
			c.of(1, 5).acquires("lock", lease)
			d.of(1, 5).waits("lock", term{lease, start})
			d.available("lock", 5, 0)
			for _, p := range []party{a.of(2, 5), b.of(2, 5), c.of(1, 5)} {
				p.has("lock", p.permits)
				p.renews("lock", lease, true)
			}
			b.of(2, 5).releases("lock", lease, backend.Freed)
			d.of(3, 5).waits("lock", term{lease, start})
			d.of(2, 5).acquires("lock", lease)
			d.available("another name", 5, 5)
		}},
	{name: "permits/again",
		rule: "An owner that already has as many permits as it asks for has them once, for the " +
			"lease of its last attempt",
		run: func(e *env) {
			a, b, short := e.worker("a").of(2, 5), e.worker("b").of(3, 5), e.legal(e.longLease()/4)
			a.acquires("lock", short)
			e.leases(a, func(l time.Duration) {
				a.acquires("lock", l)
				a.has("lock", 2)
				a.available("lock", 5, 3)
			})
			e.at(e.session(), "a").of(2, 5).acquires("lock", e.longLease())
			b.acquires("lock", e.longLease())
			a.acquires("lock", e.longLease()) // a has these permits already
			a.releases("lock", e.longLease(), backend.Freed)
			a.releases("lock", e.longLease(), backend.NotHeld)
			b.available("lock", 5, 2)
		}},
	{name: "permits/remaining",
		rule: "If permits aren't acquired, the result reports when the first of the taken " +
			"permits end; Look reports when the last do",
		run: func(e *env) {
			a, b, c, lease := e.worker("a").of(1, 3), e.worker("b").of(2, 3),
				e.worker("c").of(1, 3), e.longLease()
			start := time.Now()
			a.acquires("lock", 2*lease)
			b.acquires("lock", lease)
			c.keptOut("lock", term{lease, start})
			c.lasts("lock", 2*lease, start)
			b.renews("lock", 4*lease, true)
			c.keptOut("lock", term{2 * lease, start})
			c.lasts("lock", 4*lease, start)
			a.releases("lock", lease, backend.Freed)
			c.of(2, 3).keptOut("lock", term{4 * lease, start})
		}},
	{name: "permits/another number, refused",
		rule: "An owner that asks for another number and is refused is told when the first " +
			"permits of others end",
		run: func(e *env) {
			a, b, short := e.worker("a"), e.worker("b"), e.legal(50*time.Millisecond)
			a.of(1, 2).acquires("lock", e.longLease())
			start := time.Now()
			b.of(1, 2).acquires("lock", short)
			res, err := a.s.Acquire(e.ctx, a.of(2, 2).request("lock", e.longLease()))
			if err != nil || res.Acquired {
				e.Fatalf("2 of 2 permits, while another has one: %+v, %v", res, err)
			}
			e.checkRemaining("Acquire(2 of 2)", res.Remaining, short, start)
			a.has("lock", 0)
		}},
	{name: "permits/release", rule: "Release releases all permits of its owner only",
		run: func(e *env) {
			a, b, c, lease := e.worker("a").of(3, 5), e.worker("b").of(2, 5),
				e.worker("c").of(3, 5), e.longLease()
			a.acquires("lock", lease)
			b.acquires("lock", lease)
			c.releases("lock", lease, backend.NotHeld)
			c.available("lock", 5, 0)
			a.releases("lock", lease, backend.Freed)
			c.available("lock", 5, 3)
			a.releases("lock", lease, backend.NotHeld)
			a.has("lock", 0)
			b.has("lock", 2)
			c.acquires("lock", lease)
			b.releases("lock", lease, backend.Freed)
			c.releases("lock", lease, backend.Freed)
			c.seesFree("lock")
			c.available("lock", 5, 5)
		}},
	{name: "permits/renew",
		rule: "Renew lets the permits of its owner only expire after the request's lease, longer " +
			"or shorter",
		run: func(e *env) {
			a, b, c, short := e.worker("a").of(2, 5), e.worker("b").of(3, 5),
				e.worker("c").of(2, 5), e.legal(e.longLease()/4)
			c.renews("lock", short, false)
			c.seesFree("lock")
			a.acquires("lock", short)
			start := time.Now()
			b.acquires("lock", short)
			e.leases(a, func(l time.Duration) {
				a.renews("lock", l, true)
				c.renews("lock", l, false)
				a.has("lock", 2)
				c.waits("lock", term{short, start}) // b's permits end first
			})
		}},
	{name: "permits/each end by themselves",
		rule: "When the lease of its permits has run out an owner has none, and others get them, " +
			"whatever else is taken",
		run: func(e *env) {
			dead, b, c, lease := e.worker("dead").of(2, 4), e.worker("b").of(2, 4),
				e.worker("c").of(2, 4), e.longLease()
			b.acquires("lock", lease)
			dead.acquires("lock", e.shortLease())
			e.eventually("permits of a dead worker acquired by another", func() bool {
				return c.asks("lock", 0, 0).Acquired
			})
			dead.renews("lock", lease, false)
			dead.releases("lock", lease, backend.NotHeld)
			dead.has("lock", 0)
			b.has("lock", 2)
			c.has("lock", 2)
			dead.refused("lock", lease)

			// Renewed permits outlive their earlier leases.
			for i := 0; ; i++ { // the short lease may expire before it is renewed
				name, short, start := fmt.Sprint("renewed", i), e.shortLease()<<i, time.Now()
				dead.acquires(name, short)
				b.acquires(name, short)
				if !b.renew(name, lease) {
					if elapsed := time.Since(start); elapsed < short-short/50-2*time.Millisecond {
						e.Fatalf("%v after an Acquire with a lease of %v Renew did not find the "+
							"permits", elapsed, short)
					}
					continue
				}
				e.eventually("those that weren't renewed are over", func() bool {
					return c.of(2, 4).lookAll(name).Available == 2
				})
				b.has(name, 2)
				return
			}
		}},
	{name: "permits/all end",
		rule: "When the leases of all have run out no permit is taken, even if no step came in " +
			"between",
		run: func(e *env) {
			a, b, c := e.worker("a").of(2, 4), e.worker("b").of(2, 4), e.worker("c").of(4, 4)
			a.acquires("lock", e.shortLease())
			b.acquires("lock", 2*e.shortLease())
			e.eventually("all permits acquired", func() bool {
				return c.asks("lock", 0, 0).Acquired
			})
			c.has("lock", 4)
			a.refused("lock", e.longLease())
		}},
	{name: "permits/part of them",
		rule: "If an owner has fewer permits than it should have, the step that finds this " +
			"releases them all",
		run: func(e *env) {
			a, b, lease := e.worker("a"), e.worker("b").of(5, 5), e.longLease()
			// The owner has three permits and asks for four. To the store it looks as if one of
			// four permits was lost.
			for what, step := range map[string]func(name string){
				"renewed":  func(name string) { a.of(4, 5).renews(name, lease, false) },
				"released": func(name string) { a.of(4, 5).releases(name, lease, backend.NotHeld) },
				"acquired": func(name string) {
					a.of(4, 5).acquires(name, lease)
					a.of(4, 5).has(name, 4)
					a.available(name, 5, 1)
					a.of(4, 5).releases(name, lease, backend.Freed)
				},
				"acquired, not enough": func(name string) {
					c := e.worker("c").of(2, 5)
					start := time.Now()
					c.acquires(name, lease)
					a.of(4, 5).waits(name, term{lease, start})
					c.releases(name, lease, backend.Freed)
				},
			} {
				a.of(3, 5).acquires(what, lease)
				step(what)
				a.available(what, 5, 5)
				b.acquires(what, lease)
			}
		}},
	{name: "permits/force",
		rule: "ForceRelease releases the permits of all owners, and reports whether there were " +
			"any",
		run: func(e *env) {
			a, b, c, lease := e.worker("a").of(2, 5), e.worker("b").of(1, 5),
				e.worker("c").of(5, 5), e.longLease()
			c.forces("lock", false)
			a.acquires("lock", lease)
			b.acquires("lock", lease)
			c.forces("lock", true)
			c.seesFree("lock")
			a.renews("lock", lease, false)
			b.releases("lock", lease, backend.NotHeld)
			c.forces("lock", false)
			c.acquires("lock", lease)
		}},
	{name: "permits/limit",
		rule: "A limit applies to the request that names it, whatever limit others name",
		run: func(e *env) {
			a, b, c, lease := e.worker("a"), e.worker("b"), e.worker("c"), e.longLease()
			start := time.Now()
			a.of(2, 2).acquires("lock", lease)
			b.of(1, 2).waits("lock", term{lease, start})
			b.of(3, 5).acquires("lock", lease)
			c.of(1, 2).waits("lock", term{lease, start})
			c.of(1, 5).waits("lock", term{lease, start})
			c.of(1, 6).acquires("lock", lease)
			for limit, want := range map[int]int{1: 0, 5: 0, 6: 0, 7: 1, 10: 4} {
				c.available("lock", limit, want)
			}
			a.of(2, 2).renews("lock", lease, true)
			b.of(3, 5).releases("lock", lease, backend.Freed)
			b.of(1, 3).waits("lock", term{lease, start})
			b.of(1, 4).acquires("lock", lease)
		}},
	{name: "permits/as told",
		rule: "While permits are taken, a request without a limit has the one that the store was " +
			"told last, by any owner",
		run: func(e *env) {
			a, b, c, lease := e.worker("a"), e.worker("b"), e.worker("c"), e.longLease()
			start := time.Now()
			a.of(2, 3).acquires("lock", lease)
			c.available("lock", 0, 1)
			c.of(2, 0).waits("lock", term{lease, start})
			c.of(1, 0).acquires("lock", lease)
			b.of(1, 0).waits("lock", term{lease, start})
			b.of(2, 6).acquires("lock", lease)
			b.available("lock", 0, 1)
			c.of(1, 0).releases("lock", lease, backend.Freed)
			b.available("lock", 0, 2)
			c.of(1, 5).acquires("lock", lease)
			b.available("lock", 0, 0)
			c.of(1, 0).renews("lock", lease, true)
		}},
	{name: "permits/renewals tell nothing", rule: "A renewal doesn't tell the store a limit",
		run: func(e *env) {
			a, b, lease := e.worker("a"), e.worker("b"), e.longLease()
			a.of(2, 9).acquires("lock", lease)
			b.of(1, 12).acquires("lock", lease)
			a.available("lock", 0, 9)
			a.of(2, 9).renews("lock", 2*lease, true)
			a.available("lock", 0, 9)
		}},
	{name: "permits/never told",
		rule: "A request without a limit to a store that was told of none answers ErrNoLimit, of " +
			"kind Refused, and changes nothing",
		run: func(e *env) {
			a, lease := e.worker("a"), e.longLease()
			for range 2 {
				a.of(1, 0).refusedAs("lock", backend.ErrNoLimit)
				for _, owner := range []string{"a", ""} {
					_, err := a.s.Look(e.ctx, backend.LookRequest{
						Kind: backend.Permits, Name: "lock", Owner: owner, Permits: 1,
					})
					if !errors.Is(err, backend.ErrNoLimit) ||
						backend.KindOf(err) != backend.Refused {
						e.Fatalf("Look without a limit: error %v; want ErrNoLimit, of kind Refused",
							err)
					}
				}
			}
			a.of(2, 2).acquires("lock", lease)
			a.of(1, 0).refusedAs("another name", backend.ErrNoLimit)
		}},
	{name: "permits/too many",
		rule: "A request for more permits than the limit answers ErrTooMany, of kind Refused, at " +
			"once, and changes nothing",
		run: func(e *env) {
			a, b, lease := e.worker("a"), e.worker("b"), e.longLease()
			a.of(3, 2).refusedAs("lock", backend.ErrTooMany)
			// a refused request must not set the store's limit
			a.of(1, 0).refusedAs("lock", backend.ErrNoLimit)
			a.of(2, 2).seesFree("lock")
			b.of(2, 3).acquires("lock", lease)
			a.of(4, 3).refusedAs("lock", backend.ErrTooMany)
			a.of(4, 0).refusedAs("lock", backend.ErrTooMany)
			a.of(1, 3).available("lock", 0, 1)
			b.of(2, 3).has("lock", 2)
			a.of(1, 3).acquires("lock", lease)
		}},
	{name: "permits/too many of a lock",
		rule: "A request for too many permits of a lock's name answers ErrConflict, whatever the " +
			"session did before",
		run: func(e *env) {
			a, b, lease := e.worker("a").of(3, 2), e.party("b"), e.longLease()
			b.acquires("lock", lease)
			a.refusedAs("lock", backend.ErrConflict)
			other := a.as(backend.Exclusive)
			other.acquires("another name", lease)
			// after this release, the session might send a cheaper request for permits, which must
			// also find the conflict
			other.releases("another name", lease, backend.Freed)
			a.refusedAs("lock", backend.ErrConflict)
			b.has("lock", 1)
		}},
	{name: "permits/owners",
		rule: "Owners of permits are compared for equality only: case, blanks and all characters " +
			"count",
		run: func(e *env) {
			s, n, lease := e.worker("a").s, len(oddNames), e.longLease()
			for i, name := range oddNames {
				p := e.at(s, name).of(1, n)
				if res := p.look("lock"); res.Count != 0 {
					e.Fatalf("%v has permits before it has acquired any", p)
				}
				p.acquires("lock", lease)
				p.available("lock", n, n-1-i)
			}
			for i, name := range oddNames {
				p := e.at(s, name).of(1, n)
				p.renews("lock", lease, true)
				p.releases("lock", lease, backend.Freed)
				p.releases("lock", lease, backend.NotHeld)
				p.available("lock", n, i+1)
			}
		}},
	{name: "permits/batch",
		rule: "RenewBatch does what Renew does, for permits of different owners and numbers, and " +
			"locks of other kinds",
		run: func(e *env) {
			e.needBatchRenewer()
			a, b, lease := e.worker("a"), e.worker("b"), e.longLease()
			plain := a.as(backend.Exclusive)
			a.of(3, 9).acquires("lock", lease)
			b.of(2, 9).acquires("lock", lease)
			a.of(1, 1).acquires("another", lease)
			b.of(2, 9).acquires("part", lease)
			start := time.Now()
			plain.acquires("plain", lease)
			reqs := []backend.RenewRequest{
				{Kind: backend.Permits, Name: "lock", Owner: "a", Lease: 4 * lease, Permits: 3},
				{Kind: backend.Exclusive, Name: "plain", Owner: "a", Lease: 3 * lease},
				{Kind: backend.Permits, Name: "lock", Owner: "b", Lease: 2 * lease, Permits: 2},
				{Kind: backend.Permits, Name: "another", Owner: "a", Lease: 2 * lease, Permits: 1},
				{Kind: backend.Permits, Name: "lock", Owner: "c", Lease: 9 * lease, Permits: 1},
				{Kind: backend.Permits, Name: "part", Owner: "b", Lease: 9 * lease, Permits: 3},
				{Kind: backend.Permits, Name: "free", Owner: "a", Lease: 9 * lease, Permits: 1},
			}
			for i, res := range renewAll(e, a.s, reqs) {
				if want := i < 4; res.Held != want {
					e.Errorf("RenewBatch: request %d, %+v: held %v; want %v", i, reqs[i], res.Held,
						want)
				}
			}
			a.of(3, 9).lasts("lock", 4*lease, start)
			plain.lasts("plain", 3*lease, start)
			a.lasts("another", 2*lease, start)
			a.available("lock", 9, 4)
			a.available("part", 9, 9)
			a.seesFree("free")
		}},
	{name: "permits/at once",
		rule: "Never more permits are taken than the limit, and all can soon be taken again, " +
			"while steps of all kinds go on",
		tags: Exclusion,
		run: func(e *env) {
			const parties, rounds, limit = 8, 12, 5
			lease := e.longLease()
			var out atomic.Int32
			all := make([]party, parties)
			for i := range all {
				all[i] = e.worker(fmt.Sprint("owner", i))
			}
			e.parallel(parties, func(i int) error {
				for range rounds {
					p := all[i].of(1+rand.IntN(3), limit)
					if _, err := p.insists("lock", lease); err != nil {
						return err
					}
					if n := out.Add(int32(p.permits)); n > limit {
						return fmt.Errorf("%d of %d permits are out", n, limit)
					}
					time.Sleep(time.Duration(rand.IntN(500)) * time.Microsecond)
					if _, err := p.s.Acquire(e.ctx, p.request("lock", lease)); err != nil {
						return err
					}
					out.Add(int32(-p.permits))
					if err := p.gives("lock", lease); err != nil {
						return err
					}
				}
				return nil
			})
			all[0].available("lock", limit, limit)
		}},
	{name: "notifier/permits",
		rule: "A release of permits calls Wake, whatever step made it; so does a request with a " +
			"larger limit than the store was told before",
		run: func(e *env) {
			e.needNotifier()
			a, b, c, lease := e.worker("a"), e.worker("b"), e.worker("c"), e.longLease()
			rung, sub := c.subscribe("lock")
			defer sub.Close()
			wakes := func(what string, step func()) {
				e.Helper()
				rung.reset()
				step()
				rung.waits(e, what)
			}
			for range 2 {
				a.of(1, 5).acquires("lock", lease)
				b.of(3, 5).acquires("lock", lease)
				wakes("a release", func() { b.of(3, 5).releases("lock", lease, backend.Freed) })
				b.of(3, 5).acquires("lock", lease)
				wakes("a renewal that found a part of a hold", func() {
					b.of(4, 5).renews("lock", lease, false)
				})
				b.of(3, 5).acquires("lock", lease)
				wakes("a release that found a part of a hold", func() {
					b.of(4, 5).releases("lock", lease, backend.NotHeld)
				})
				b.of(1, 5).acquires("lock", lease)
				wakes("an attempt that found a part of a hold", func() {
					b.of(4, 5).acquires("lock", lease)
				})
				wakes("an attempt that named a larger limit", func() {
					c.of(1, 6).acquires("lock", lease)
				})
				wakes("a forced release", func() { a.forces("lock", true) })
			}
		}},
}
