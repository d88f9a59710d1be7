package contract

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/seed951563bd/distsync/backend"
)

// stepCases test the steps of a session.
var stepCases = slices.Concat(
	acquireCases, releaseCases, renewCases, forceCases, lookCases, leaseCases,
	nameCases, concurrencyCases, contextCases, fragileCases,
	notifierCases, batchCases, togetherCases, closeCases, mishapCases, keepCases, keepCountCases,
)

var acquireCases = []testCase{
	{name: "acquire/free",
		rule: "Acquire takes the lock if nobody holds it; it expires after the request's lease",
		tags: forReaders | forPermits,
		run: func(e *env) {
			a, b, lease := e.party("a"), e.party("b"), e.longLease()
			a.seesFree("lock")
			start := time.Now()
			a.acquires("lock", lease)
			a.has("lock", 1)
			b.has("lock", 0)
			b.lasts("lock", lease, start)
		}},
	{name: "acquire/held",
		rule: "If another holds the lock, Acquire changes nothing and reports how long the hold " +
			"lasts",
		run: func(e *env) {
			a, b, lease := e.party("a"), e.party("b"), e.longLease()
			start := time.Now()
			a.acquires("lock", lease)
			a.acquires("lock", lease)
			for _, other := range []time.Duration{lease, 2 * lease, e.legal(lease / 2)} {
				res := b.refused("lock", other)
				if res.Remaining >= 0 { // negative if the store doesn't know it
					e.checkRemaining("Acquire", res.Remaining, lease, start)
				}
			}
			a.has("lock", 2)
			b.has("lock", 0)
			a.lasts("lock", lease, start)
			a.releases("lock", lease, backend.Left)
			a.releases("lock", lease, backend.Freed)
		}},
	{name: "acquire/again", rule: "Acquire adds one hold if the owner holds the lock",
		run: func(e *env) {
			a, lease := e.party("a"), e.longLease()
			for i := range 5 {
				a.acquires("lock", lease)
				a.has("lock", i+1)
			}
		}},
	{name: "acquire/often",
		rule: "An owner may hold the lock some hundreds of times, and each counts",
		run: func(e *env) {
			const often = 300
			a, b, lease := e.party("a"), e.party("b"), e.longLease()
			for i := range often {
				a.reenters("lock", lease, i+1)
			}
			a.has("lock", often)
			for range often - 1 {
				a.releases("lock", lease, backend.Left)
			}
			b.refused("lock", lease)
			a.releases("lock", lease, backend.Freed)
			b.acquires("lock", lease)
		}},
	{name: "acquire/re-entry",
		rule: "The result of a re-entry carries Count; otherwise Reentry changes nothing",
		run: func(e *env) {
			a, b, lease := e.party("a"), e.party("b"), e.longLease()
			// the lock is free, although the request claims to be a re-entry
			a.reenters("lock", lease, 1)
			a.reenters("lock", lease, 2)
			a.acquires("lock", lease)
			a.reenters("lock", lease, 4)
			a.has("lock", 4)
			b.refused("lock", lease)
			a.releases("lock", lease, backend.Left)
			a.reenters("lock", lease, 4)
		}},
	{name: "acquire/lease",
		rule: "With every Acquire the lock expires after that request's lease, whatever it was " +
			"before; a Write not earlier than before", tags: forReaders | forPermits,
		run: func(e *env) {
			a := e.party("a")
			e.leases(a, func(l time.Duration) { a.acquires("lock", l) })
		}},
	{name: "acquire/next",
		rule: "A lock that was freed is free for the next owner, whose count begins anew",
		run: func(e *env) {
			a, b, lease := e.party("a"), e.party("b"), e.longLease()
			for range 3 {
				start := time.Now()
				a.reenters("lock", 2*lease, 1)
				a.lasts("lock", 2*lease, start)
				a.releases("lock", lease, backend.Freed)
				start = time.Now()
				b.reenters("lock", lease, 1)
				b.lasts("lock", lease, start)
				b.reenters("lock", lease, 2)
				b.releases("lock", lease, backend.Left)
				b.releases("lock", lease, backend.Freed)
			}
		}},
}

var releaseCases = []testCase{
	{name: "release/free", rule: "If the lock is free, Release changes nothing",
		tags: forReaders | forPermits,
		run: func(e *env) {
			a := e.party("a")
			a.releases("lock", e.longLease(), backend.NotHeld)
			a.seesFree("lock")
		}},
	{name: "release/another's", rule: "If another holds the lock, Release changes nothing",
		run: func(e *env) {
			a, b, lease := e.party("a"), e.party("b"), e.longLease()
			start := time.Now()
			a.acquires("lock", lease)
			a.acquires("lock", lease)
			for range 3 {
				b.releases("lock", 2*lease, backend.NotHeld)
			}
			a.has("lock", 2)
			a.lasts("lock", lease, start)
			a.releases("lock", lease, backend.Left)
			b.releases("lock", lease, backend.NotHeld)
			a.has("lock", 1)
		}},
	{name: "release/count", rule: "Release releases one hold; with the last one the lock is free",
		run: func(e *env) {
			a, b, lease := e.party("a"), e.party("b"), e.longLease()
			for range 3 {
				a.acquires("lock", lease)
			}
			a.releases("lock", lease, backend.Left)
			a.has("lock", 2)
			b.refused("lock", lease)
			a.releases("lock", lease, backend.Left)
			a.has("lock", 1)
			b.refused("lock", lease)
			a.releases("lock", lease, backend.Freed)
			a.seesFree("lock")
			a.releases("lock", lease, backend.NotHeld)
			b.acquires("lock", lease)
			a.releases("lock", lease, backend.NotHeld)
			b.has("lock", 1)
		}},
	{name: "release/lease",
		rule: "If holds are left after Release, the lock expires after the request's lease; " +
			"a Write not earlier than before",
		run: func(e *env) {
			a, short := e.party("a"), e.legal(e.longLease()/4)
			for range 5 {
				a.acquires("lock", short)
			}
			e.leases(a, func(l time.Duration) { a.releases("lock", l, backend.Left) })
		}},
}

var renewCases = []testCase{
	{name: "renew/held",
		rule: "Renew lets the owner's lock expire after the request's lease, longer or " +
			"shorter, and changes nothing else; a Write expires not earlier than before",
		run: func(e *env) {
			a, b, short := e.party("a"), e.party("b"), e.legal(e.longLease()/4)
			a.acquires("lock", short)
			a.acquires("lock", short)
			e.leases(a, func(l time.Duration) {
				a.renews("lock", l, true)
				a.has("lock", 2)
				b.refused("lock", short)
			})
		}},
	{name: "renew/free", rule: "If the lock is free, Renew changes nothing",
		tags: forReaders | forPermits,
		run: func(e *env) {
			a, lease := e.party("a"), e.longLease()
			a.renews("lock", lease, false)
			a.seesFree("lock")
			a.acquires("lock", lease)
			a.releases("lock", lease, backend.Freed)
			a.renews("lock", lease, false)
			a.seesFree("lock")
		}},
	{name: "renew/another's", rule: "If another holds the lock, Renew changes nothing",
		tags: forReaders | forPermits,
		run: func(e *env) {
			a, b, lease := e.party("a"), e.party("b"), e.longLease()
			start := time.Now()
			a.acquires("lock", lease)
			b.renews("lock", 2*lease, false)
			b.renews("lock", e.legal(time.Millisecond), false)
			a.has("lock", 1)
			a.lasts("lock", lease, start)
		}},
}

var forceCases = []testCase{
	{name: "force/held", rule: "ForceRelease frees the lock, whoever holds it, and however often",
		run: func(e *env) {
			a, b, lease := e.party("a"), e.party("b"), e.longLease()
			for _, p := range []party{a, b} {
				p.acquires("lock", lease)
				p.acquires("lock", lease)
				b.forces("lock", true)
				a.seesFree("lock")
				p.renews("lock", lease, false)
				p.releases("lock", lease, backend.NotHeld)
				p.seesFree("lock")
			}
			a.reenters("lock", lease, 1)
		}},
	{name: "force/free", rule: "ForceRelease reports whether the lock was held",
		tags: forReaders | forPermits,
		run: func(e *env) {
			a := e.party("a")
			a.forces("lock", false)
			a.seesFree("lock")
			a.acquires("lock", e.longLease())
			a.forces("lock", true)
			a.forces("lock", false)
		}},
}

var lookCases = []testCase{
	{name: "look/nobody",
		rule: "Look without an owner reports whether the lock is held, and how long it lasts",
		tags: forReaders | forPermits,
		run: func(e *env) {
			a, nobody, lease := e.party("a"), e.party(""), e.longLease()
			nobody.seesFree("lock")
			start := time.Now()
			a.acquires("lock", lease)
			if res := nobody.look("lock"); !res.Held {
				e.Fatal("Look without an owner: not held; want held")
			}
			nobody.lasts("lock", lease, start)
			a.releases("lock", lease, backend.Freed)
			nobody.seesFree("lock")
		}},
	{name: "look/unchanged", rule: "Look changes nothing", tags: forReaders | forPermits,
		run: func(e *env) {
			a, b, lease := e.party("a"), e.party("b"), e.longLease()
			start := time.Now()
			a.acquires("lock", lease)
			e.sleep(2 * e.leaseStep())
			for range 3 {
				a.has("lock", 1)
				b.has("lock", 0)
			}
			if left := a.look("lock").Remaining; left > lease {
				e.Fatalf("Look: Remaining %v, of a lease of %v", left, lease)
			}
			a.lasts("lock", lease, start)
			a.releases("lock", lease, backend.Freed)
			for range 3 {
				b.seesFree("lock")
			}
			b.acquires("lock", lease)
		}},
}

var leaseCases = []testCase{
	{name: "lease/runs out",
		rule: "When the lease has run out the lock is free, and the hold is gone with all " +
			"its counts",
		tags: forPermits,
		run: func(e *env) {
			a, b, long := e.party("a"), e.party("b"), e.longLease()
			a.acquires("lock", e.leaseBefore(e.shortLease()))
			a.acquires("lock", e.shortLease())
			b.awaitFree("lock")
			a.seesFree("lock")
			a.renews("lock", long, false)
			a.releases("lock", long, backend.NotHeld)
			b.forces("lock", false)
			a.seesFree("lock")
			b.acquires("lock", long)
			a.refused("lock", long)
			a.renews("lock", long, false)
			a.releases("lock", long, backend.NotHeld)
			b.has("lock", 1)
		}},
	{name: "lease/runs out for the next",
		rule: "When the lease has run out another can acquire the lock, even if no step came in " +
			"between",
		run: func(e *env) {
			a, b := e.party("a"), e.party("b")
			a.acquires("lock", e.shortLease())
			e.eventually("the lock acquired by another", func() bool {
				res, err := b.s.Acquire(e.ctx, backend.AcquireRequest{
					Kind: e.kind, Name: "lock", Owner: b.owner, Lease: e.longLease(), Reentry: true,
				})
				if err != nil {
					e.Fatal(err)
				}
				if res.Acquired && res.Count != 1 {
					e.Fatalf("Count %d; want 1", res.Count)
				}
				return res.Acquired
			})
			b.has("lock", 1)
			a.has("lock", 0)
		}},
	{name: "lease/same owner afterwards",
		rule: "When the lease has run out, its owner's count begins anew",
		run: func(e *env) {
			a := e.party("a")
			a.acquires("lock", e.leaseBefore(e.shortLease()))
			a.acquires("lock", e.shortLease())
			a.awaitFree("lock")
			a.reenters("lock", e.longLease(), 1)
			a.releases("lock", e.longLease(), backend.Freed)
		}},
	{name: "lease/kept", rule: "The lock is held until its lease has run out, and no shorter",
		tags: forReaders | forPermits,
		run: func(e *env) {
			a, b := e.party("a"), e.party("b")
			unit := e.leaseStep()
			for i, lease := range []time.Duration{e.legal(1), e.legal(1) + unit,
				e.shortLease() + 7*unit} {
				name := fmt.Sprint("lock", i)
				start := time.Now()
				a.acquires(name, lease)
				for b.look(name).Held {
					if time.Since(start) > lease+30*time.Second {
						e.Fatalf("a lock with a lease of %v was held after %v", lease,
							time.Since(start))
					}
					time.Sleep(max(lease/50, time.Millisecond))
				}
				// The store's clock may be coarse, or run slightly faster than the test's.
				if elapsed := time.Since(start); elapsed < lease-lease/50-2*time.Millisecond {
					e.Fatalf("a lock with a lease of %v was free after %v", lease, elapsed)
				}
			}
		}},
	{name: "lease/prolonged by Renew", rule: "A hold that was renewed outlives its first lease",
		run: func(e *env) {
			prolong(e, func(a party, name string) bool { return a.renew(name, e.longLease()) })
		}},
	{name: "lease/prolonged by re-entry",
		rule: "A hold that was re-entered outlives its first lease",
		run: func(e *env) {
			prolong(e, func(a party, name string) bool {
				res, err := a.s.Acquire(e.ctx, backend.AcquireRequest{
					Kind: e.kind, Name: name, Owner: a.owner, Lease: e.longLease(), Reentry: true,
				})
				if err != nil {
					e.Fatal(err)
				}
				return res.Acquired && res.Count > 1
			})
		}},
	{name: "lease/prolonged by Release",
		rule: "A hold that was released in part outlives its first lease",
		run: func(e *env) {
			prolong(e, func(a party, name string) bool {
				res, err := a.s.Release(e.ctx, backend.ReleaseRequest{
					Kind: e.kind, Name: name, Owner: a.owner, Lease: e.longLease(),
				})
				if err != nil {
					e.Fatal(err)
				}
				return res.Outcome == backend.Left
			})
		}},
	{name: "lease/cut short",
		rule: "A hold with a long lease ends early if a later request sets a short one; a " +
			"Read or Write doesn't",
		run: func(e *env) {
			a, long, short := e.party("a"), e.longLease(), e.shortLease()
			for _, name := range []string{"acquire", "renew", "release"} {
				a.acquires(name, long)
				a.acquires(name, long)
			}
			a.acquires("acquire", short)
			a.renews("renew", short, true)
			a.releases("release", short, backend.Left)
			for _, name := range []string{"acquire", "renew", "release"} {
				if !lengthens(e.kind) {
					a.awaitFree(name)
				}
			}
			if lengthens(e.kind) {
				e.sleep(short + short/2 + e.leaseStep())
				for name, count := range map[string]int{"acquire": 3, "renew": 2, "release": 1} {
					a.has(name, count)
				}
			}
		}},
	{name: "lease/of its own", rule: "Each lock has a lease of its own",
		tags: forReaders | forPermits,
		run: func(e *env) {
			a, b, long := e.party("a"), e.party("b"), e.longLease()
			a.acquires("long", long)
			a.acquires("short", e.shortLease())
			b.awaitFree("short")
			a.has("long", 1)
		}},
	{name: "limits", rule: "Limits always returns the same value, and nothing negative in it",
		run: func(e *env) {
			limits := e.store.Backend().Limits()
			if limits.MinLease < 0 || limits.LeaseStep < 0 {
				e.Fatalf("Limits %+v; want nothing negative", limits)
			}
			e.session()
			if again := e.store.Backend().Limits(); again != limits {
				e.Fatalf("Limits %+v, then %+v", limits, again)
			}
		}},
}

// leases checks that a hold gets the lease that a step requests for it.
func (e *env) leases(a party, step func(lease time.Duration)) {
	e.Helper()
	var x term
	lease := e.longLease()
	for _, l := range []time.Duration{lease, 2 * lease, e.legal(lease / 2), 3 * lease} {
		start := time.Now()
		step(l)
		x = x.after(e.kind, l, start)
		a.lasts("lock", x.lease, x.since)
	}
}

// leaseBefore returns the first lease of a hold that later gets a short lease. The first lease is
// long, except for kinds whose leases are never shortened.
func (e *env) leaseBefore(short time.Duration) time.Duration {
	if lengthens(e.kind) {
		return short
	}
	return e.longLease()
}

// prolong checks that a step makes a hold outlive its earlier lease. The hold has a count of 2 and
// a short lease. If the lease expires before the step, as can happen on a slow machine, prolong
// tries again with a longer one.
func prolong(e *env, step func(a party, name string) (held bool)) {
	e.Helper()
	a, b := e.party("a"), e.party("b")
	lease := e.shortLease()
	for i := 0; ; i++ {
		name := fmt.Sprint("lock", i)
		start := time.Now()
		a.acquires(name, lease)
		a.acquires(name, lease)
		if step(a, name) {
			// After the sleep the first lease has certainly expired, even by the store's clock.
			e.sleep(lease + lease/2 + e.leaseStep())
			b.refused(name, lease)
			if a.look(name).Count == 0 {
				e.Fatal("the hold was gone after its first lease")
			}
			return
		}
		if elapsed := time.Since(start); elapsed < lease-lease/50-2*time.Millisecond {
			e.Fatalf("%v after an Acquire with a lease of %v the step did not find the hold",
				elapsed, lease)
		}
		lease *= 2
	}
}

// oddNames are names and owners that a store could confuse with each other, or with names that it
// uses internally.
var oddNames = []string{
	"lock", "Lock", "LOCK", "lock ", " lock", "lock:1", "lock:", ":", "lock1", "lock/1", "/",
	"a/../lock", ".", "..",
	"{lock}", "{lock", "lock}", "{}", "{a}{b}", "x{lock}y",
	"*", "l?ck", "[a-z]", `\`, `"`, `'`, "`", "a\nb", "a\r\nb", "\n", "\t", "a\x00b", "a", "ab",
	"\xff\xfe", "%s", "%2F",
	"mode", "count", "owner", "0", "1", "-1", "nil", "null", "true",
	"é", "e\u0301", "замок", "锁", "🔒", "\u202elock",
	strings.Repeat("n", 1000), strings.Repeat("n", 999), strings.Repeat("锁", 333),
}

// oddLocks returns the odd names that the store accepts as names of locks. If the store refuses a
// name, every step must refuse the name and change nothing. A cluster must refuse names whose
// braces would put a lock's keys into different slots.
func (e *env) oddLocks(kind backend.Kind) []string {
	e.Helper()
	s := e.session()
	var names []string
	for _, name := range oddNames {
		_, err := s.Look(e.ctx, backend.LookRequest{Kind: kind, Name: name})
		if err == nil {
			names = append(names, name)
			continue
		}
		_, second := s.Acquire(e.ctx, backend.AcquireRequest{
			Kind: kind, Name: name, Owner: "a", Lease: e.longLease(),
		})
		if backend.KindOf(err) != backend.Refused || backend.KindOf(second) != backend.Refused {
			e.Fatalf("the name %.40q: Look answers %v, and Acquire %v; want no error, or twice "+
				"one of kind Refused", name, err, second)
		}
	}
	if len(names) < len(oddNames)/2 {
		e.Fatalf("the store refuses %d of %d names", len(oddNames)-len(names), len(oddNames))
	}
	return names
}

var nameCases = []testCase{
	{name: "names/of locks",
		rule: "Each accepted name is a lock of its own: case, blanks and all characters count",
		run: func(e *env) {
			a, b, lease := e.party("a"), e.party("b"), e.longLease()
			names := e.oddLocks(e.kind)
			for i, name := range names {
				a.seesFree(name)
				// Each lock has a different number of holds, to tell the locks apart.
				for range 1 + i%3 {
					a.acquires(name, lease)
				}
			}
			for i, name := range names {
				a.has(name, 1+i%3)
				b.refused(name, lease)
				a.renews(name, lease, true)
			}
			for i, name := range names {
				for range i % 3 {
					a.releases(name, lease, backend.Left)
				}
				a.releases(name, lease, backend.Freed)
				a.seesFree(name)
			}
		}},
	{name: "names/of owners",
		rule: "Owners are compared for equality only: case, blanks and all characters count",
		run: func(e *env) {
			lease := e.longLease()
			s := e.session()
			for i, name := range oddNames {
				owner := e.at(s, name)
				other := e.at(s, oddNames[(i+1)%len(oddNames)])
				owner.reenters("lock", lease, 1)
				owner.reenters("lock", lease, 2)
				owner.has("lock", 2)
				other.refused("lock", lease)
				other.renews("lock", lease, false)
				other.releases("lock", lease, backend.NotHeld)
				other.has("lock", 0)
				owner.releases("lock", lease, backend.Left)
				owner.releases("lock", lease, backend.Freed)
			}
			// Each odd owner tries to release a lock that it doesn't hold.
			holder := e.at(s, "lock:1")
			holder.acquires("lock", lease)
			for _, name := range oddNames {
				if name != holder.owner {
					e.at(s, name).releases("lock", lease, backend.NotHeld)
				}
			}
			holder.has("lock", 1)
		}},
	{name: "names/and owners", rule: "Names and owners don't run together",
		run: func(e *env) {
			lease := e.longLease()
			s := e.session()
			pairs := []struct{ name, owner string }{
				{"ab", "c"}, {"a", "bc"}, {"a:b", "d"}, {"b", "a"}, {"c", "ab"}, {"bc", "a:b"},
				{"a:", "b"}, {"{a}:b", "c"}, {"d", "d"},
			}
			for _, p := range pairs {
				e.at(s, p.owner).reenters(p.name, lease, 1)
			}
			for _, p := range pairs {
				e.at(s, p.owner).has(p.name, 1)
				e.at(s, p.owner).releases(p.name, lease, backend.Freed)
			}
		}},
	{name: "names/sessions",
		rule: "An owner is the same in every session, and each session sees what the others do",
		run: func(e *env) {
			e.skipWithout(!e.store.OwnersApart, "owners that several sessions know")
			lease := e.longLease()
			back := e.store.Backend()
			first, second, third := e.party("a"), e.party("a"), e.at(back.Open(), "a")
			fourth := e.at(back.Open(), "a") // on the same Backend as the third
			e.Cleanup(func() { third.s.Close(); fourth.s.Close() })
			first.reenters("lock", lease, 1)
			second.reenters("lock", lease, 2)
			third.reenters("lock", lease, 3)
			fourth.reenters("lock", lease, 4)
			first.has("lock", 4)
			fourth.releases("lock", lease, backend.Left)
			third.releases("lock", lease, backend.Left)
			second.releases("lock", lease, backend.Left)
			first.releases("lock", lease, backend.Freed)
			fourth.seesFree("lock")
		}},
}

var concurrencyCases = []testCase{
	{name: "concurrency/one wins",
		rule: "If several owners acquire a free lock at once, exactly one gets it",
		tags: forPermits,
		run: func(e *env) {
			const sessions, owners, rounds = 6, 4, 15
			lease := e.longLease()
			var parties []party
			for i := range sessions {
				s := e.session()
				for j := range owners {
					parties = append(parties, e.at(s, fmt.Sprintf("%d:%d", i, j)))
				}
			}
			for range rounds {
				won := make([]bool, len(parties))
				e.parallel(len(parties), func(i int) error {
					res, err := parties[i].s.Acquire(e.ctx, backend.AcquireRequest{
						Kind: e.kind, Name: "lock", Owner: parties[i].owner, Lease: lease,
					})
					won[i] = res.Acquired
					return err
				})
				winner := slices.Index(won, true)
				if winner < 0 || slices.Contains(won[winner+1:], true) {
					e.Fatalf("acquired, by owner: %v; want exactly one", won)
				}
				parties[winner].releases("lock", lease, backend.Freed)
			}
		}},
	{name: "concurrency/counts",
		rule: "Steps of one owner that run at once all count, and exactly one release is the last",
		tags: Exclusion,
		run: func(e *env) {
			const k = 32
			lease := e.longLease()
			a := e.party("a")
			sessions := []backend.Session{a.s, e.beside(a, "a").s, e.beside(a, "a").s}
			for range 5 {
				seen := make([]bool, k+1)
				counts := make([]int, k)
				e.parallel(k, func(i int) error {
					res, err := sessions[i%3].Acquire(e.ctx, backend.AcquireRequest{
						Kind: e.kind, Name: "lock", Owner: "a", Lease: lease, Reentry: true,
					})
					if err == nil && !res.Acquired {
						err = errors.New("re-entry: not acquired")
					}
					counts[i] = res.Count
					return err
				})
				a.has("lock", k)
				// A store can read the count after the step. So two calls are allowed to report
				// the same count, but a count of 0 is wrong.
				for _, n := range counts {
					if n < 1 || n > k {
						e.Fatalf("Count %d; want 1 to %d", n, k)
					}
					seen[n] = true
				}
				if !seen[k] {
					e.Fatalf("counts %v; the last of all must have seen %d", counts, k)
				}
				var freed, left atomic.Int32
				e.parallel(k, func(i int) error {
					res, err := sessions[i%3].Release(e.ctx, backend.ReleaseRequest{
						Kind: e.kind, Name: "lock", Owner: "a", Lease: lease,
					})
					switch res.Outcome {
					case backend.Freed:
						freed.Add(1)
					case backend.Left:
						left.Add(1)
					}
					return err
				})
				if freed.Load() != 1 || left.Load() != k-1 {
					e.Fatalf("%d releases: %d freed the lock and %d left holds; want 1 and %d", k,
						freed.Load(), left.Load(), k-1)
				}
				a.seesFree("lock")
			}
		}},
	{name: "concurrency/exclusion",
		rule: "Two owners never hold a lock at once, while steps of all kinds go on",
		tags: Exclusion | forPermits,
		run: func(e *env) {
			const parties, rounds = 8, 15
			lease := e.longLease()
			var inside atomic.Int32
			// The lock guards the variable counter. The race detector doesn't know about the lock.
			// It accepts the accesses because they are ordered by operations on inside, an atomic
			// variable.
			counter := 0
			sessions := make([]backend.Session, parties)
			for i := range sessions {
				sessions[i] = e.session()
			}
			e.parallel(parties, func(i int) error {
				s, owner := sessions[i], fmt.Sprint("owner", i)
				for range rounds {
					for start := time.Now(); ; {
						res, err := s.Acquire(e.ctx, backend.AcquireRequest{
							Kind: e.kind, Name: "lock", Owner: owner, Lease: lease,
						})
						if err != nil {
							return err
						}
						if res.Acquired {
							break
						}
						// Owners that don't hold the lock try steps that must have no effect.
						if res, err := s.Release(e.ctx, backend.ReleaseRequest{
							Kind: e.kind, Name: "lock", Owner: owner, Lease: lease,
						}); err != nil || res.Outcome != backend.NotHeld {
							return fmt.Errorf("Release by %s, which doesn't hold the lock: %v, %v",
								owner, res.Outcome, err)
						}
						if res, err := s.Renew(e.ctx, backend.RenewRequest{
							Kind: e.kind, Name: "lock", Owner: owner, Lease: lease,
						}); err != nil || res.Held {
							return fmt.Errorf("Renew by %s, which doesn't hold the lock: %v, %v",
								owner, res.Held, err)
						}
						if time.Since(start) > 30*time.Second {
							return fmt.Errorf("%s waits too long for others to release the lock",
								owner)
						}
						time.Sleep(time.Duration(rand.IntN(2000)) * time.Microsecond)
					}
					if n := inside.Add(1); n != 1 {
						return fmt.Errorf("%d owners hold the lock at once", n)
					}
					counter++
					time.Sleep(time.Duration(rand.IntN(500)) * time.Microsecond)
					if res, err := s.Renew(e.ctx, backend.RenewRequest{
						Kind: e.kind, Name: "lock", Owner: owner, Lease: lease,
					}); err != nil || !res.Held {
						return fmt.Errorf("Renew by %s, which holds the lock: %v, %v", owner,
							res.Held, err)
					}
					inside.Add(-1)
					if res, err := s.Release(e.ctx, backend.ReleaseRequest{
						Kind: e.kind, Name: "lock", Owner: owner, Lease: lease,
					}); err != nil || res.Outcome != backend.Freed {
						return fmt.Errorf("Release by %s, which holds the lock: %v, %v", owner,
							res.Outcome, err)
					}
				}
				return nil
			})
			if counter != parties*rounds {
				e.Fatalf("counted %d; want %d", counter, parties*rounds)
			}
		}},
	{name: "concurrency/many locks", rule: "Steps on different locks don't disturb each other",
		run: func(e *env) {
			lease := e.longLease()
			s := e.session()
			e.parallel(100, func(i int) error {
				name, owner := fmt.Sprint("lock", i), fmt.Sprint("owner", i)
				for range 5 {
					res, err := s.Acquire(e.ctx, backend.AcquireRequest{
						Kind: e.kind, Name: name, Owner: owner, Lease: lease, Reentry: true,
					})
					if err != nil || !res.Acquired || res.Count != 1 {
						return fmt.Errorf("Acquire(%s): %+v, %v", name, res, err)
					}
					rel, err := s.Release(e.ctx, backend.ReleaseRequest{
						Kind: e.kind, Name: name, Owner: owner, Lease: lease,
					})
					if err != nil || rel.Outcome != backend.Freed {
						return fmt.Errorf("Release(%s): %v, %v", name, rel.Outcome, err)
					}
				}
				return nil
			})
		}},
}

var contextCases = []testCase{
	{name: "context/ended",
		rule: "A step whose context has already ended reports the truth: done, not done (Retry), " +
			"or perhaps done (Unknown)",
		tags: forReaders | forPermits,
		run: func(e *env) {
			a, lease := e.party("a"), e.longLease()
			over, cancel := context.WithCancel(e.ctx)
			cancel()
			late, cancel := context.WithDeadline(e.ctx, time.Now().Add(-time.Hour))
			defer cancel()

			// truth compares the error of a step with the state of the store. The parameter done
			// says whether the step had an effect in the store.
			truth := func(step string, err error, done bool) {
				e.Helper()
				switch {
				case err == nil && !done:
					e.Fatalf("%s returned no error; want it done", step)
				case err != nil && backend.KindOf(err) == backend.Refused:
					e.Fatalf("%s: error %q is of kind Refused; but another step could be "+
						"carried out", step, err)
				case err != nil && backend.KindOf(err) == backend.Retry && done:
					e.Fatalf("%s: error %q is of kind Retry, but the step was carried out", step,
						err)
				}
			}
			for i, ctx := range []context.Context{over, late} {
				name := func(step string) string { return fmt.Sprint(step, i) }
				_, err := a.s.Acquire(ctx, backend.AcquireRequest{
					Kind: e.kind, Name: name("acquire"), Owner: a.owner, Lease: lease,
				})
				truth("Acquire", err, a.look(name("acquire")).Held)

				a.acquires(name("release"), lease)
				_, err = a.s.Release(ctx, backend.ReleaseRequest{
					Kind: e.kind, Name: name("release"), Owner: a.owner, Lease: lease,
				})
				truth("Release", err, !a.look(name("release")).Held)

				a.acquires(name("force"), lease)
				_, err = a.s.ForceRelease(ctx, backend.ForceReleaseRequest{
					Kind: e.kind, Name: name("force"),
				})
				truth("ForceRelease", err, !a.look(name("force")).Held)

				a.acquires(name("renew"), lease)
				_, err = a.s.Renew(ctx, backend.RenewRequest{
					Kind: e.kind, Name: name("renew"), Owner: a.owner, Lease: 2 * lease,
				})
				// The comparison leaves some room, because the remaining time may be rounded up.
				truth("Renew", err, a.look(name("renew")).Remaining > lease+lease/2)

				if res, err := a.s.Look(ctx, backend.LookRequest{
					Kind: e.kind, Name: name("renew"), Owner: a.owner,
				}); err == nil && !res.Held {
					e.Fatal("Look returned no error and a free lock; want held, or an error")
				} else if err != nil && backend.KindOf(err) == backend.Refused {
					e.Fatalf("Look: error %q is of kind Refused; but another step could be "+
						"carried out", err)
				}
			}
			a.acquires("afterwards", lease) // the session still works
		}},
	{name: "context/ends meanwhile",
		rule: "A step whose context ends meanwhile reports the truth, too",
		tags: forReaders | forPermits,
		run: func(e *env) {
			a, b, lease := e.party("a"), e.party("b"), e.longLease()
			for i := range 50 {
				name := fmt.Sprint("lock", i)
				ctx, cancel := context.WithCancel(e.ctx)
				if i%2 == 0 {
					go cancel()
				} else {
					t := time.AfterFunc(time.Duration(rand.IntN(300))*time.Microsecond, cancel)
					defer t.Stop()
				}
				res, err := a.s.Acquire(ctx, backend.AcquireRequest{
					Kind: e.kind, Name: name, Owner: a.owner, Lease: lease,
				})
				cancel()
				held := b.look(name).Held
				switch {
				case err == nil && (!res.Acquired || !held):
					e.Fatalf("Acquire: acquired %v, no error; afterwards held %v", res.Acquired,
						held)
				case err != nil && backend.KindOf(err) == backend.Retry && held:
					e.Fatalf("Acquire: error %q is of kind Retry, but the lock was acquired", err)
				case err != nil && backend.KindOf(err) == backend.Refused:
					e.Fatalf("Acquire: error %q is of kind Refused; but another step could be "+
						"carried out", err)
				}
			}
		}},
}
