package contract

import (
	"context"
	"slices"
	"time"

	"github.com/seed951563bd/distsync/backend"
)

// needKeeps skips the case for stores that can't keep a lock taken after its release.
func (e *env) needKeeps() {
	e.Helper()
	e.skipWithout(e.limits().Keeps, "release with Keep")
}

// keeps releases one hold with Keep. If that was the last hold, the lock stays taken for the given
// time.
func (p party) keeps(name string, keep time.Duration, want backend.ReleaseOutcome) {
	p.e.Helper()
	res, err := p.s.Release(p.e.ctx, backend.ReleaseRequest{
		Kind: p.kind, Name: name, Owner: p.owner, Lease: p.e.longLease(), Permits: p.permits,
		Keep: keep, AskWaiting: true,
	})
	if err != nil {
		p.e.Fatalf("Release(%.40q) by %v, keep %v: %v", name, p, keep, err)
	}
	if res.Outcome != want || res.Counted {
		p.e.Fatalf("Release(%.40q) by %v, keep %v: %+v; want %v, and nothing about waiters", name,
			p, keep, res, want)
	}
}

// isKept checks that a lock is kept, for a period of length keep that began at since or later.
func (p party) isKept(name string, keep time.Duration, since time.Time) {
	p.e.Helper()
	res := p.look(name)
	// A look at permits doesn't report Kept.
	if !res.Held || res.Count != 0 || res.Kept != (p.kind != backend.Permits) {
		p.e.Fatalf("Look(%.40q) by %v: %+v; want held by nobody, and kept", name, p, res)
	}
	p.e.checkRemaining("Look", res.Remaining, keep, since)
}

// keepCases test releases with Keep. They run for all kinds of lock that have one holder, and for
// semaphores with one permit.
var keepCases = []testCase{
	{name: "keep/kept",
		rule: "A last release with Keep keeps the lock for that time, longer or shorter than the " +
			"lease: nobody can have it, and Look reports it as Kept from then on only",
		tags: forPermits,
		run: func(e *env) {
			e.needKeeps()
			a, b, lease := e.party("a"), e.party("b"), e.longLease()
			for name, keep := range map[string]time.Duration{
				"longer":  2 * lease,
				"shorter": e.legal(lease / 2),
			} {
				a.acquires(name, lease)
				if b.look(name).Kept {
					e.Fatal("Look: Kept, of a lock that somebody holds")
				}
				start := time.Now()
				a.keeps(name, keep, backend.Kept)
				for _, p := range []party{a, b, e.at(b.s, "")} {
					p.isKept(name, keep, start)
				}
				res := b.refused(name, lease)
				if res.Remaining >= 0 { // negative if the store doesn't know it
					e.checkRemaining("Acquire", res.Remaining, keep, start)
				}
			}
		}},
	{name: "keep/owner",
		rule: "The former owner of a kept lock can't acquire, renew or release it; another " +
			"release with Keep finds it Kept, and changes nothing",
		tags: forPermits,
		run: func(e *env) {
			e.needKeeps()
			a, b, lease := e.party("a"), e.party("b"), e.longLease()
			a.acquires("lock", lease)
			start := time.Now()
			a.keeps("lock", lease, backend.Kept)
			a.refused("lock", 3*lease)
			a.renews("lock", 3*lease, false)
			a.releases("lock", 3*lease, backend.NotHeld)
			a.keeps("lock", 3*lease, backend.Kept)
			b.keeps("lock", 3*lease, backend.NotHeld)
			b.releases("lock", 3*lease, backend.NotHeld)
			b.renews("lock", 3*lease, false)
			b.isKept("lock", lease, start)
		}},
	{name: "keep/nothing",
		rule: "A release with Keep by an owner that holds nothing changes nothing",
		tags: forPermits,
		run: func(e *env) {
			e.needKeeps()
			a, b, lease := e.party("a"), e.party("b"), e.longLease()
			a.keeps("lock", lease, backend.NotHeld)
			a.seesFree("lock")
			start := time.Now()
			b.acquires("lock", lease)
			a.keeps("lock", 2*lease, backend.NotHeld)
			b.has("lock", 1)
			b.lasts("lock", lease, start)
			b.releases("lock", lease, backend.Freed)
			a.seesFree("lock")
		}},
	{name: "keep/force", rule: "ForceRelease frees a kept lock",
		tags: forPermits,
		run: func(e *env) {
			e.needKeeps()
			a, b, lease := e.party("a"), e.party("b"), e.longLease()
			for range 2 {
				a.acquires("lock", lease)
				a.keeps("lock", lease, backend.Kept)
				b.forces("lock", true)
				a.seesFree("lock")
				a.keeps("lock", lease, backend.NotHeld)
			}
			b.acquires("lock", lease)
		}},
	{name: "keep/closed session", rule: "After Session.Close a release with Keep works",
		tags: forPermits,
		run: func(e *env) {
			e.needKeeps()
			back := e.store.Backend()
			closed, open := e.at(back.Open(), "a"), e.party("b")
			closed.acquires("lock", e.longLease())
			if err := closed.s.Close(); err != nil {
				e.Fatalf("Session.Close: %v", err)
			}
			start := time.Now()
			closed.keeps("lock", 2*e.longLease(), backend.Kept)
			open.isKept("lock", 2*e.longLease(), start)
		}},
	{name: "keep/inspect",
		rule: "Inspect reports that a lock is kept, and by whom, if the store knows owners",
		run: func(e *env) {
			e.needKeeps()
			a, lease := e.party("a"), e.longLease()
			s, can := backend.Open(e.store.Backend())
			e.Cleanup(func() { s.Close() })
			w := can.Inspector
			e.skipWithout(w != nil, "backend.Inspector")
			see := func(kept bool, lease time.Duration, since time.Time) {
				e.Helper()
				i, err := w.Inspect(e.ctx, backend.InspectRequest{Name: "lock"})
				if err != nil {
					e.Fatalf("Inspect: %v", err)
				}
				if len(i.Holders) != 1 || i.Kind != seenAs(e.kind) || i.Holders[0].Kept != kept ||
					i.Holders[0].Count != 1 ||
					e.kind != backend.Permits && i.Holders[0].Owner != a.owner {
					e.Fatalf("Inspect: %+v; want %v held once by %v, kept %v", i, e.kind, a, kept)
				}
				e.checkRemaining("Inspect", i.Holders[0].Remaining, lease, since)
			}
			start := time.Now()
			a.acquires("lock", lease)
			see(false, lease, start)
			start = time.Now()
			a.keeps("lock", 2*lease, backend.Kept)
			see(true, 2*lease, start)
		}},
	{name: "notifier/kept", rule: "A release with Keep that keeps the lock calls no Wake",
		tags: forPermits | woken,
		run: func(e *env) {
			e.needNotifier()
			e.needKeeps()
			a, b, lease := e.party("a"), e.party("b"), e.longLease()
			a.acquires("lock", lease)
			a.releases("lock", lease, backend.Freed)
			rung, sub := b.subscribe("lock")
			defer sub.Close()
			const rounds = 10
			for i := range rounds {
				a.acquires("lock", lease)
				a.keeps("lock", lease, backend.Kept)
				b.forces("lock", true)
				e.eventually("Wake called after a forced release", func() bool {
					return rung.calls() > i
				})
			}
			// A few spurious calls are allowed, for example when the session first learns the
			// limit of a semaphore.
			if n := rung.calls(); n > rounds+2 {
				e.Fatalf("Wake was called %d times, for %d forced releases of what was kept", n,
					rounds)
			}
		}},
	fragileCase("release with Keep", fragileStep{
		tags:  forPermits,
		need:  (*env).needKeeps,
		holds: 1,
		do: func(ctx context.Context, a party, name string) (bool, error) {
			res, err := a.s.Release(ctx, backend.ReleaseRequest{
				Kind: a.kind, Name: name, Owner: a.owner, Lease: a.e.longLease(),
				Keep: 2 * a.e.longLease(),
			})
			return res.Outcome == backend.Kept, err
		},
		times: func(e *env, res backend.LookResult) int {
			if !res.Held {
				e.Fatal("a release with Keep has freed the lock")
			}
			return 1 - res.Count
		},
	}),
}

// keepCountCases test counted holds.
var keepCountCases = []testCase{
	{name: "keep/count",
		rule: "A release with Keep that leaves holds acts as any release: they last for the " +
			"lease, and the lock is kept after the last one only",
		run: func(e *env) {
			e.needKeeps()
			a, b, lease := e.party("a"), e.party("b"), e.longLease()
			for range 3 {
				a.acquires("lock", lease)
			}
			for left := 2; left > 0; left-- {
				a.keeps("lock", 2*lease, backend.Left)
				if res := a.look("lock"); res.Count != left || res.Kept {
					e.Fatalf("Look: %+v; want count %d, and not kept", res, left)
				}
			}
			a.renews("lock", lease, true)
			start := time.Now()
			a.keeps("lock", 2*lease, backend.Kept)
			b.isKept("lock", 2*lease, start)
		}},
	{name: "keep/lease",
		rule: "A release with Keep that leaves holds lets them last for the lease; a Write " +
			"doesn't get shorter",
		run: func(e *env) {
			e.needKeeps()
			a, b := e.party("a"), e.party("b")
			a.acquires("lock", e.legal(e.longLease()/4))
			a.acquires("lock", e.legal(e.longLease()/4))
			start := time.Now()
			a.keeps("lock", e.legal(e.longLease()/2), backend.Left)
			b.lasts("lock", e.longLease(), start)
		}},
}

// keepKindCases test Keep for a single kind of lock, or for all kinds together.
var keepKindCases = []testCase{
	{name: "keep/watched",
		rule: "A release with Keep that keeps an Exclusive or a Fenced lock calls Wake of " +
			"sessions that watch it",
		run: func(e *env) {
			e.needNotifier()
			e.needKeeps()
			a, b, lease := e.party("a"), e.party("b"), e.longLease()
			for _, k := range []backend.Kind{backend.Exclusive, backend.Fenced} {
				if !e.limits().Kinds.Has(k) {
					continue
				}
				name, rung := k.String(), newBell()
				sub, err := backend.CapabilitiesOf(b.s).
					Notifier.Subscribe(e.ctx, backend.SubscribeRequest{
					Name: name, Wake: rung.ring, Watches: true,
				})
				if err != nil {
					e.Fatalf("Subscribe(%s): %v", name, err)
				}
				waits, sub2 := b.subscribe(name) // a second subscription in the same session
				for range 10 {
					a.as(k).acquires(name, lease)
					e.eventually("silence", func() bool {
						before := rung.calls()
						e.sleep(20 * time.Millisecond)
						return rung.calls() == before
					})
					before := rung.calls()
					a.as(k).keeps(name, lease, backend.Kept)
					e.eventually("Wake called after a release that keeps the lock", func() bool {
						return rung.calls() > before
					})
					b.forces(name, true)
				}
				e.eventually("Wake called of waiters, too, after a forced release",
					func() bool { return waits.calls() > 0 })
				sub.Close()
				sub2.Close()
			}
		}},
	{name: "keep/runs out",
		rule: "A kept lock is free when the time is over, and no sooner; then all begins anew, " +
			"for its former owner and for others, and the first in line gets it",
		run: func(e *env) {
			e.needKeeps()
			kinds := []backend.Kind{
				backend.Exclusive, backend.Fenced, backend.Write, backend.Fair, backend.Permits,
			}
			kinds = slices.DeleteFunc(kinds, func(k backend.Kind) bool {
				return !e.limits().Kinds.Has(k)
			})
			a, b, keep, lease := e.party("a"), e.party("b"), e.shortLease(), e.longLease()
			since := make(map[backend.Kind]time.Time)
			for _, k := range kinds {
				a.as(k).acquires(k.String(), lease)
				since[k] = time.Now()
				a.as(k).keeps(k.String(), keep, backend.Kept)
			}
			if e.limits().Kinds.Has(backend.Fair) {
				a.as(backend.Fair).acquires("line", lease)
				b.as(backend.Fair).stands("line", lease)
				a.as(backend.Fair).keeps("line", keep, backend.Kept)
			}
			for _, k := range kinds {
				a, b, name := a.as(k), b.as(k), k.String()
				b.awaitFree(name)
				if elapsed := time.Since(since[k]); elapsed < keep-keep/50-2*time.Millisecond {
					e.Fatalf("%v: what was to be kept for %v was free after %v", k, keep, elapsed)
				}
				a.keeps(name, keep, backend.NotHeld)
				b.reenters(name, lease, 1)
				a.keeps(name, keep, backend.NotHeld)
				b.has(name, 1)
				b.releases(name, lease, backend.Freed)
				a.reenters(name, lease, 1)
				a.releases(name, lease, backend.Freed)
			}
			if e.limits().Kinds.Has(backend.Fair) {
				e.eventually("the lock given to the first in line, when it is no longer kept",
					func() bool {
						return b.keep("line", lease, "b").Holder == "b"
					})
			}
		}},
	{name: "keep/time",
		rule: "A lock that is kept for a time that no lease may have is free before the next " +
			"lease would be over",
		run: func(e *env) {
			e.needKeeps()
			a, b, lease := e.party("a"), e.party("b"), e.longLease()
			keep := max(e.limits().MinLease, e.leaseStep()) / 2
			// a lock is kept for at least a millisecond, but half a lease can be shorter
			keep = max(keep, time.Millisecond)
			for try := 1; ; try++ {
				a.acquires("lock", lease)
				start := time.Now()
				a.keeps("lock", keep, backend.Kept)
				b.awaitFree("lock")
				elapsed := time.Since(start)
				switch {
				case elapsed < keep-keep/50-2*time.Millisecond:
					e.Fatalf("what was to be kept for %v was free after %v", keep, elapsed)
				case elapsed < e.legal(keep) || keep == e.legal(keep):
					return
				case try == 10:
					e.Fatalf("kept for %v: free after %v, the tenth time", keep, elapsed)
				}
			}
		}},
	{name: "keep/token",
		rule: "The token of a hold stays the same until the lock is kept, and the next token is " +
			"larger",
		run: func(e *env) {
			e.need(backend.Fenced)
			e.needKeeps()
			a, b, lease := e.party("a").as(backend.Fenced), e.party("b").as(backend.Fenced),
				e.longLease()
			first := a.acquires("lock", lease).Token
			a.keeps("lock", lease, backend.Kept)
			b.forces("lock", true)
			if next := b.acquires("lock", lease).Token; next <= first {
				e.Fatalf("token %d, after %d", next, first)
			}
		}},
	{name: "keep/other kinds",
		rule: "A lock that is kept as Exclusive, Fenced or Fair excludes the other two, and they " +
			"find it kept, too",
		run: func(e *env) {
			e.needKeeps()
			kinds := []backend.Kind{backend.Exclusive, backend.Fenced, backend.Fair}
			kinds = slices.DeleteFunc(kinds, func(k backend.Kind) bool {
				return !e.limits().Kinds.Has(k)
			})
			a, b, lease := e.party("a"), e.party("b"), e.longLease()
			for _, k := range kinds {
				name := k.String()
				a.as(k).acquires(name, lease)
				start := time.Now()
				a.as(k).keeps(name, 2*lease, backend.Kept)
				for _, other := range kinds {
					b.as(other).refused(name, lease)
					b.as(other).isKept(name, 2*lease, start)
				}
			}
		}},
	{name: "keep/line",
		rule: "Waiters in line for a Fair lock don't get a kept lock; a late request doesn't put " +
			"its former owner in line",
		run: func(e *env) {
			e.needKeeps()
			a, b, lease := e.queuer("a"), e.queuer("b"), e.longLease()
			x := b.listens("lock")
			a.acquires("lock", lease)
			b.stands("lock", lease)
			start := time.Now()
			a.keeps("lock", lease, backend.Kept)
			a.asks("lock", 0, lease)
			if res := b.keep("lock", lease, "b"); res.Holder != "" {
				e.Fatalf("KeepPlaces: %q has the lock; want nobody, since it is kept", res.Holder)
			}
			x.silent(e)
			a.isKept("lock", lease, start)
			b.forces("lock", true)
			b.has("lock", 1)
			b.releases("lock", lease, backend.Freed)
			a.seesFree("lock")
		}},
	{name: "keep/late look",
		rule: "If a late KeepPlaces gave the former owner of a kept lock a place, the next " +
			"release finds the lock Kept and removes that place",
		run: func(e *env) {
			e.needKeeps()
			a, b, lease := e.queuer("a"), e.queuer("b"), e.longLease()
			a.acquires("lock", lease)
			a.keeps("lock", lease, backend.Kept)
			a.keep("lock", lease, "a")
			a.keeps("lock", lease, backend.Kept)
			b.forces("lock", true)
			b.acquires("lock", lease)
			b.releases("lock", lease, backend.Freed)
		}},
	{name: "keep/turn",
		rule: "An owner that got a Fair lock in its turn, and hasn't asked for it since, can " +
			"keep it",
		run: func(e *env) {
			e.needKeeps()
			a, b, lease := e.queuer("a"), e.queuer("b"), e.longLease()
			a.acquires("lock", lease)
			b.stands("lock", lease)
			a.releases("lock", lease, backend.Freed)
			start := time.Now()
			b.keeps("lock", lease, backend.Kept)
			a.isKept("lock", lease, start)
			b.keeps("lock", 2*lease, backend.Kept)
			a.refused("lock", lease)
			a.isKept("lock", lease, start)
		}},
	{name: "keep/place", rule: "A release with Keep by an owner in line gives up the place",
		run: func(e *env) {
			e.needKeeps()
			a, b, c, lease := e.queuer("a"), e.queuer("b"), e.queuer("c"), e.longLease()
			a.acquires("lock", lease)
			b.stands("lock", lease)
			c.stands("lock", lease)
			b.keeps("lock", lease, backend.NotHeld)
			a.releases("lock", lease, backend.Freed)
			c.has("lock", 1)
		}},
	{name: "keep/write",
		rule: "While a Write is kept, no other owner reads or writes; its owner's Reads stay, " +
			"and it may read again; its owner leaves no note",
		run: func(e *env) {
			e.needKeeps()
			w, a, lease := e.writer("w"), e.reader("a"), e.longLease()
			r := w.as(backend.Read)
			w.acquires("lock", lease)
			r.acquires("lock", lease)
			w.keeps("lock", 2*lease, backend.Kept)
			a.refused("lock", lease)
			w.refused("lock", lease)
			w.asks("lock", 0, lease)
			r.has("lock", 1)
			r.renews("lock", lease, true)
			r.acquires("lock", lease)
			r.has("lock", 1)
			if res := r.look("lock"); res.Kept {
				e.Fatal("Look at a Read: Kept")
			}
			r.releases("lock", lease, backend.Freed)
			a.refused("lock", lease)
			w.forces("lock", true)
			a.acquires("lock", lease)
		}},
	{name: "keep/note", rule: "A release with Keep takes back the note of a Write",
		run: func(e *env) {
			e.needKeeps()
			w, a, b, lease := e.writer("w"), e.reader("a"), e.reader("b"), e.longLease()
			a.acquires("lock", lease)
			w.asks("lock", time.Hour, lease)
			b.refused("lock", lease)
			w.keeps("lock", lease, backend.NotHeld)
			b.acquires("lock", lease)
		}},
	{name: "keep/permits",
		rule: "Kept permits stay taken for that time; others are granted, but not to their owner",
		run: func(e *env) {
			e.need(backend.Permits)
			e.needKeeps()
			a, b, lease := e.party("a").of(2, 5), e.party("b").of(2, 5), e.longLease()
			a.acquires("sem", lease)
			a.keeps("sem", 2*lease, backend.Kept)
			if w := backend.CapabilitiesOf(a.s).Inspector; w != nil {
				i, err := w.Inspect(e.ctx, backend.InspectRequest{Name: "sem"})
				if err != nil || len(i.Holders) != 1 || !i.Holders[0].Kept ||
					i.Holders[0].Count != 2 {
					e.Fatalf("Inspect: %+v, %v; want 2 permits that are kept", i, err)
				}
			}
			a.available("sem", 5, 3)
			a.refused("sem", lease)
			a.keeps("sem", 3*lease, backend.Kept)
			b.acquires("sem", lease)
			b.of(2, 5).has("sem", 2)
			e.at(b.s, "c").of(2, 5).refused("sem", lease)
			b.releases("sem", lease, backend.Freed)
			a.available("sem", 5, 3)
			b.forces("sem", true)
			a.available("sem", 5, 5)
		}},
	{name: "keep/other number",
		rule: "A release with Keep of another number of permits than the owner has releases them",
		run: func(e *env) {
			e.need(backend.Permits)
			e.needKeeps()
			a, lease := e.party("a"), e.longLease()
			a.of(2, 5).acquires("sem", lease)
			a.of(3, 5).keeps("sem", lease, backend.NotHeld)
			a.of(2, 5).available("sem", 5, 5)
		}},
}
