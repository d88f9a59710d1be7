package contract

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed951563bd/distsync/backend"
)

// runSteps runs the cases for the steps of a session. Cases about an exclusive lock run for each
// exclusive kind. Some of them also run for a single reader, and for the only permit of a
// semaphore.
func runSteps(t *testing.T, h Harness) {
	runCases(t, h, tag(Essential, stepCases))
	runCases(t, h, tag(Essential, kindCases))
	for _, k := range []backend.Kind{backend.Fenced, backend.Write} {
		runKind(t, h, k, stepCases)
	}
	// If a store grants the lock to the waiters in line, it isn't required to wake them.
	runKind(t, h, backend.Fair, untagged(stepCases, woken))
	runKind(t, h, backend.Read, tagged(stepCases, forReaders))
	runKind(t, h, backend.Permits, tagged(stepCases, forPermits))
}

// runKind runs cases for a kind of lock other than Exclusive, if the store declares it.
func runKind(t *testing.T, h Harness, k backend.Kind, cases []testCase) {
	t.Run(as(k), func(t *testing.T) {
		h.kind, h.lacking, h.again = k, new(bool), true
		for _, c := range cases {
			if *h.lacking { // found out by the first case
				t.Skipf("the store of this harness has no %v locks", k)
			}
			c.runIn(t, h)
		}
	})
}

// need skips the case unless the store declares all of these kinds.
func (e *env) need(kinds ...backend.Kind) {
	e.Helper()
	for _, k := range kinds {
		e.skipWithout(e.limits().Kinds.Has(k), k.String()+" locks")
	}
}

// kindCases test the differences between kinds of locks, and names that are used for several kinds.
var kindCases = slices.Concat(undeclaredCases, wholeLeaseCases, fencedCases, readCases, writeCases,
	noteCases, rwNotifierCases, permitsCases, tag(InLine, fairCases), conflictCases, inspectCases,
	listCases, keepKindCases, latchCases)

// steps calls each step once for the lock with this name, and returns the errors. A step that finds
// nothing can also say so in its result, without an error.
func (p party) steps(name string) map[string]error {
	ctx, lease := p.e.ctx, p.e.longLease()
	errs := make(map[string]error)
	_, errs["Acquire"] = p.s.Acquire(ctx, p.request(name, lease))
	_, errs["Release"] = p.s.Release(ctx, backend.ReleaseRequest{
		Kind: p.kind, Name: name, Owner: p.owner, Lease: lease, Permits: p.permits,
	})
	renewal := backend.RenewRequest{
		Kind: p.kind, Name: name, Owner: p.owner, Lease: lease, Permits: p.permits,
	}
	_, errs["Renew"] = p.s.Renew(ctx, renewal)
	_, errs["ForceRelease"] = p.s.ForceRelease(ctx,
		backend.ForceReleaseRequest{Kind: p.kind, Name: name})
	_, errs["Look"] = p.s.Look(ctx, backend.LookRequest{
		Kind: p.kind, Name: name, Owner: p.owner, Permits: p.permits, Limit: p.limit,
	})
	_, errs["Look without an owner"] = p.s.Look(ctx, backend.LookRequest{
		Kind: p.kind, Name: name, Limit: p.limit,
	})
	if backend.CapabilitiesOf(p.s).BatchRenewer != nil {
		_, batch := renewBatch(p.e, ctx, p.s, []backend.RenewRequest{renewal})
		errs["RenewBatch"] = batch[0]
	}
	if l := backend.CapabilitiesOf(p.s).Liner; l != nil && p.kind == backend.Fair {
		_, errs["KeepPlaces"] = l.KeepPlaces(ctx, backend.PlacesRequest{
			Kind: p.kind, Name: name, Owners: []string{p.owner}, Place: lease,
		})
	}
	return errs
}

var undeclaredCases = []testCase{
	{name: "kinds/undeclared",
		rule: "A kind that Limits doesn't declare is refused by every step, with an error that " +
			"wraps errors.ErrUnsupported: see UnknownKind",
		run: func(e *env) {
			a, lease := e.party("a"), e.longLease()
			start := time.Now()
			a.acquires("lock", lease)
			for _, k := range []backend.Kind{backend.Fenced, backend.Read, backend.Write,
				backend.Fair, backend.Permits, backend.Kind(200)} {
				if e.limits().Kinds.Has(k) {
					continue
				}
				for _, name := range []string{"lock", "free"} {
					errs := a.as(k).steps(name)
					if n := backend.CapabilitiesOf(a.s).Notifier; n != nil {
						_, errs["Subscribe"] = n.Subscribe(e.ctx, backend.SubscribeRequest{
							Kind: k, Name: name, Wake: func(backend.Wakeup) {},
						})
					}
					for step, err := range errs {
						if err == nil || backend.KindOf(err) != backend.Refused {
							e.Errorf("%s of a %v lock, which isn't declared: error %v; want one "+
								"of kind Refused", step, k, err)
						} else if e.limits().Kinds != 0 && !errors.Is(err, errors.ErrUnsupported) {
							// a backend that declares no kinds may predate this rule
							e.Errorf("%s of a %v lock, which isn't declared: error %q; want one "+
								"that wraps errors.ErrUnsupported", step, k, err)
						}
					}
				}
				a.has("lock", 1)
				a.lasts("lock", lease, start)
				a.seesFree("free")
			}
		}},
}

var wholeLeaseCases = []testCase{
	{name: "kinds/whole lease",
		rule: "A hold has its full lease, even if its session reuses something of an earlier hold",
		run: func(e *env) {
			var kinds []backend.Kind
			for k := backend.Exclusive; k <= backend.Permits; k++ {
				if e.limits().Kinds.Has(k) {
					kinds = append(kinds, k)
				}
			}
			a, b, lease := e.party("a"), e.party("b"), e.longLease()
			for _, k := range kinds {
				a.as(k).acquires(k.String(), lease)
			}
			for _, k := range kinds {
				a.as(k).releases(k.String(), lease, backend.Freed)
			}
			// If the store counted the new leases from the earlier acquisitions, this sleep would
			// make them visibly shorter, even in the store's unit of time.
			e.sleep(4 * e.leaseStep())
			for _, k := range kinds {
				start := time.Now()
				a.as(k).acquires(k.String(), lease)
				b.as(k).lasts(k.String(), lease, start)
			}
		}},
}

var fencedCases = []testCase{
	{name: "fenced/token",
		rule: "The Token of a Fenced lock is never zero, and grows with every acquisition that " +
			"finds the lock free, however it became so",
		run: func(e *env) {
			e.need(backend.Fenced)
			a, b, plain, lease := e.party("a").as(backend.Fenced), e.party("b").as(backend.Fenced),
				e.party("c"), e.longLease()
			for _, name := range []string{"lock", "other"} {
				var last uint64
				grows := func(res backend.AcquireResult) {
					e.Helper()
					if res.Token <= last {
						e.Fatalf("Token %d after %d; want it to grow", res.Token, last)
					}
					last = res.Token
				}
				grows(a.acquires(name, lease))
				a.releases(name, lease, backend.Freed)
				grows(b.acquires(name, lease))
				b.forces(name, true)
				grows(b.acquires(name, e.shortLease()))
				b.awaitFree(name)
				grows(a.acquires(name, lease))
				plain.forces(name, true)
				plain.acquires(name, lease)
				plain.releases(name, lease, backend.Freed)
				grows(a.acquires(name, lease))
			}
		}},
	{name: "fenced/token of a re-entry",
		rule: "An owner that already holds a Fenced lock gets the Token of its hold, for as long " +
			"as it holds it",
		run: func(e *env) {
			e.need(backend.Fenced)
			a, b, lease := e.party("a").as(backend.Fenced), e.party("b").as(backend.Fenced),
				e.longLease()
			again := e.at(e.session(), "a").as(backend.Fenced)
			for range 2 {
				first := a.acquires("lock", lease)
				b.refused("lock", lease)
				a.renews("lock", lease, true)
				for i, p := range []party{a, again, a} {
					if res := p.reenters("lock", lease, i+2); res.Token != first.Token {
						e.Fatalf("re-entry %d has the token %d, and the hold %d", i+1, res.Token,
							first.Token)
					}
				}
				a.releases("lock", lease, backend.Left)
				if res := a.reenters("lock", lease, 4); res.Token != first.Token {
					e.Fatalf("after a release in part a re-entry has the token %d, and the hold %d",
						res.Token, first.Token)
				}
				a.forces("lock", true)
			}
		}},
	{name: "fenced/tokens in order",
		rule: "A later acquisition of a Fenced lock has a larger Token, whatever others do at " +
			"the same time",
		run: func(e *env) {
			e.need(backend.Fenced)
			const parties, rounds = 6, 10
			lease := e.longLease()
			var tokens []uint64 // guarded by the lock
			var inside atomic.Int32
			all := make([]party, parties)
			for i := range all {
				all[i] = e.party(fmt.Sprint("owner", i)).as(backend.Fenced)
			}
			e.parallel(parties, func(i int) error {
				for range rounds {
					res, err := all[i].insists("lock", lease)
					if err != nil {
						return err
					}
					if n := inside.Add(1); n != 1 {
						return fmt.Errorf("%d owners hold the lock at once", n)
					}
					tokens = append(tokens, res.Token)
					time.Sleep(time.Duration(rand.IntN(500)) * time.Microsecond)
					inside.Add(-1)
					if err := all[i].gives("lock", lease); err != nil {
						return err
					}
				}
				return nil
			})
			for i, token := range tokens[1:] {
				if token <= tokens[i] {
					e.Fatalf("tokens in the order of acquisition: %d; want each larger than the "+
						"one before", tokens)
				}
			}
		}},
	{name: "fenced/and plain",
		rule: "Exclusive and Fenced are kinds of one lock: each excludes the other, sees it, " +
			"frees it by force, and wakes it; only Fenced has tokens",
		run: func(e *env) {
			e.need(backend.Fenced)
			fenced, plain, lease := e.party("a").as(backend.Fenced), e.party("b"), e.longLease()
			for _, ways := range [][2]party{{fenced, plain}, {plain, fenced}} {
				holder, other := ways[0], ways[1]
				start := time.Now()
				if res := holder.acquires("lock",
					lease); (res.Token != 0) != (holder.kind == backend.Fenced) {
					e.Fatalf("the token of a %v lock is %d", holder.kind, res.Token)
				}
				if res := other.refused("lock", lease); res.Remaining >= 0 {
					e.checkRemaining("Acquire", res.Remaining, lease, start)
				}
				other.has("lock", 0)
				other.lasts("lock", lease, start)
				other.renews("lock", lease, false)
				other.releases("lock", lease, backend.NotHeld)
				holder.has("lock", 1)
				if backend.CapabilitiesOf(other.s).Notifier != nil {
					rung, sub := other.subscribe("lock")
					rung.reset()
					holder.releases("lock", lease, backend.Freed)
					rung.waits(e,
						fmt.Sprintf("a release of a %v lock, for a subscription to the %v one,",
							holder.kind, other.kind))
					sub.Close()
				} else {
					holder.releases("lock", lease, backend.Freed)
				}
				other.acquires("lock", lease)
				other.releases("lock", lease, backend.Freed)
				holder.acquires("lock", lease)
				other.forces("lock", true)
				holder.seesFree("lock")
			}
		}},
}

// insists retries until it acquires the lock. Any goroutine may call it.
func (p party) insists(name string, lease time.Duration) (backend.AcquireResult, error) {
	for start := time.Now(); ; {
		res, err := p.s.Acquire(p.e.ctx, p.request(name, lease))
		if err != nil || res.Acquired {
			return res, err
		}
		if time.Since(start) > 30*time.Second {
			return res, fmt.Errorf("%v waits too long for others to release the lock", p)
		}
		time.Sleep(time.Duration(rand.IntN(2000)) * time.Microsecond)
	}
}

// gives releases the owner's last hold. Any goroutine may call it.
func (p party) gives(name string, lease time.Duration) error {
	res, err := p.s.Release(p.e.ctx, backend.ReleaseRequest{
		Kind: p.kind, Name: name, Owner: p.owner, Lease: lease, Permits: p.permits,
	})
	if err == nil && res.Outcome != backend.Freed {
		err = fmt.Errorf("Release by %v, which holds the lock: %v", p, res.Outcome)
	}
	return err
}

// reader and writer each return an owner with its own session. They skip the case if the store has
// no read-write locks.
func (e *env) reader(owner string) party {
	e.Helper()
	e.need(backend.Read, backend.Write)
	return e.party(owner).as(backend.Read)
}

func (e *env) writer(owner string) party { e.Helper(); return e.reader(owner).as(backend.Write) }

// keptOut checks that an Acquire is refused. If the store reports the time that remains until the
// current holds end, keptOut checks it against the lease and start in x.
func (p party) keptOut(name string, x term) {
	p.e.Helper()
	if res := p.refused(name, p.e.longLease()); res.Remaining >= 0 {
		p.e.checkRemaining(fmt.Sprintf("Acquire(%v)", p.kind), res.Remaining, x.lease, x.since)
	}
}

var readCases = []testCase{
	{name: "read/shared",
		rule: "Any number of owners have a Read at once, each of them once, however often they " +
			"acquire it",
		run: func(e *env) {
			a, b, c, lease := e.reader("a"), e.reader("b"), e.reader("c"), e.longLease()
			for _, p := range []party{a, b, a, a} {
				p.acquires("lock", lease)
				p.reenters("lock", lease, 1)
				p.has("lock", 1)
			}
			c.has("lock", 0)
			a.releases("lock", lease, backend.Freed)
			a.has("lock", 0)
			a.releases("lock", lease, backend.NotHeld)
			b.has("lock", 1)
			c.acquires("lock", lease)
			b.releases("lock", lease, backend.Freed)
			c.has("lock", 1)
			c.releases("lock", lease, backend.Freed)
			a.seesFree("lock")
		}},
	{name: "read/excludes writers",
		rule: "While there are readers nobody writes; a Write that isn't acquired reports how " +
			"long the last Read lasts, and changes nothing",
		run: func(e *env) {
			a, b, w, lease := e.reader("a"), e.reader("b"), e.writer("w"), e.longLease()
			start := time.Now()
			a.acquires("lock", lease)
			w.keptOut("lock", term{lease, start})
			b.acquires("lock", 2*lease)
			w.keptOut("lock", term{2 * lease, start})
			w.seesFree("lock") // a Look of kind Write ignores readers
			w.releases("lock", lease, backend.NotHeld)
			w.renews("lock", lease, false)
			b.releases("lock", lease, backend.Freed)
			w.keptOut("lock", term{lease, start})
			a.has("lock", 1)
			a.releases("lock", lease, backend.Freed)
			w.acquires("lock", lease)
			w.has("lock", 1)
		}},
	{name: "read/lease",
		rule: "The lease of a Read never gets shorter, whatever the steps of its owner or of " +
			"others ask for",
		run: func(e *env) {
			a, b, short, lease := e.reader("a"), e.reader("b"), e.legal(e.longLease()/2),
				e.longLease()
			start := time.Now()
			a.acquires("lock", lease)
			for _, step := range []func(){
				func() { a.acquires("lock", short) },
				func() { a.reenters("lock", short, 1) },
				func() { a.renews("lock", short, true) },
				func() { b.acquires("lock", short) },
				func() { b.renews("lock", short, true) },
				func() { b.releases("lock", short, backend.Freed) },
			} {
				step()
				a.lasts("lock", lease, start)
			}
			for i, step := range []func(l time.Duration){
				func(l time.Duration) { a.acquires("lock", l) },
				func(l time.Duration) { a.renews("lock", l, true) },
				// Look reports when the last of the Reads ends
				func(l time.Duration) { b.acquires("lock", l) },
			} {
				l := time.Duration(i+2) * lease
				start = time.Now()
				step(l)
				a.lasts("lock", l, start)
			}
			b.releases("lock", lease, backend.Freed)
			a.lasts("lock", 3*lease, start)
		}},
	{name: "read/each ends by itself",
		rule: "A reader whose lease has run out doesn't keep writers out once the other readers " +
			"have left, even if they still read when it ran out",
		run: func(e *env) {
			dead, b, c, w, lease := e.reader("dead"), e.reader("b"), e.reader("c"), e.writer("w"),
				e.longLease()
			// b acquires before the dead reader does, and c after it
			for _, last := range []party{b, c} {
				b.acquires("lock", lease)
				dead.acquires("lock", e.shortLease())
				c.acquires("lock", lease)
				e.sleep(e.shortLease())
				w.refused("lock", lease)
				last.renews("lock", lease, true)
				for _, p := range []party{b, c} {
					if p.owner != last.owner {
						p.releases("lock", lease, backend.Freed)
					}
				}
				w.refused("lock", lease)
				last.has("lock", 1)
				last.releases("lock", lease, backend.Freed)
				e.eventually("a writer in, after a dead reader", func() bool {
					res := w.asks("lock", 0, 0)
					if atMost := e.shortLease() + e.leaseStep(); !res.Acquired &&
						res.Remaining > atMost {
						e.Fatalf("kept out for %v by what lasts for %v at most", res.Remaining,
							atMost)
					}
					return res.Acquired
				})
				dead.renews("lock", lease, false)
				dead.releases("lock", lease, backend.NotHeld)
				w.has("lock", 1)
				w.releases("lock", lease, backend.Freed)
			}
		}},
	{name: "read/all end",
		rule: "When the leases of all readers have run out a writer gets in, even if no step " +
			"came in between",
		run: func(e *env) {
			a, b, w := e.reader("a"), e.reader("b"), e.writer("w")
			a.acquires("lock", e.shortLease())
			b.acquires("lock", 2*e.shortLease())
			e.eventually("a writer in", func() bool { return w.asks("lock", 0, 0).Acquired })
			a.refused("lock", e.longLease())
			a.releases("lock", e.longLease(), backend.NotHeld)
			w.has("lock", 1)
		}},
	{name: "read/renew", rule: "Renew prolongs the Read of its owner only",
		run: func(e *env) {
			a, b, c, w, lease := e.reader("a"), e.reader("b"), e.reader("c"), e.writer("w"),
				e.longLease()
			for i := 0; ; i++ { // the short lease may expire before it is renewed
				name := fmt.Sprint("lock", i)
				short := e.shortLease() << i
				start := time.Now()
				a.acquires(name, short)
				b.acquires(name, short)
				c.renews(name, lease, false)
				if got := c.look(name).Count; got != 0 {
					e.Fatalf("Look by an owner that doesn't read: count %d", got)
				}
				if !a.renew(name, lease) {
					if elapsed := time.Since(start); elapsed < short-short/50-2*time.Millisecond {
						e.Fatalf("%v after an Acquire with a lease of %v Renew did not find "+
							"the Read", elapsed, short)
					}
					continue
				}
				e.sleep(short + short/2 + e.leaseStep())
				a.has(name, 1)
				w.refused(name, lease)
				a.releases(name, lease, backend.Freed)
				e.eventually("a writer in, as the other's Read is over", func() bool {
					return w.asks(name, 0, 0).Acquired
				})
				return
			}
		}},
	{name: "read/force",
		rule: "ForceRelease of a Read ends all Reads, and does nothing while there is a writer",
		run: func(e *env) {
			a, b, w, lease := e.reader("a"), e.reader("b"), e.writer("w"), e.longLease()
			a.forces("lock", false)
			a.acquires("lock", lease)
			b.acquires("lock", lease)
			w.as(backend.Read).forces("lock", true)
			a.seesFree("lock")
			a.renews("lock", lease, false)
			b.releases("lock", lease, backend.NotHeld)
			w.acquires("lock", lease)
			w.as(backend.Read).acquires("lock", lease)
			a.forces("lock", false)
			w.has("lock", 1)
			w.as(backend.Read).has("lock", 1)
		}},
	{name: "read/owners",
		rule: "Readers are compared for equality only: case, blanks and all characters count",
		run: func(e *env) {
			s, lease := e.reader("a").s, e.longLease()
			var all []party
			for _, name := range oddNames {
				// Redisson uses a field with this name next to the readers' fields, which all
				// contain a colon
				if name != "mode" {
					all = append(all, e.at(s, name).as(backend.Read))
				}
			}
			for _, p := range all {
				if res := p.look("lock"); res.Count != 0 {
					e.Fatalf("%v holds the lock before it has acquired it", p)
				}
				p.acquires("lock", lease)
				p.has("lock", 1)
			}
			for i, p := range all {
				p.renews("lock", lease, true)
				p.releases("lock", lease, backend.Freed)
				p.releases("lock", lease, backend.NotHeld)
				if i < len(all)-1 {
					all[i+1].has("lock", 1)
				}
			}
			all[0].seesFree("lock")
		}},
	{name: "read/batch", rule: "RenewBatch does what Renew does, for requests of different kinds",
		run: func(e *env) {
			e.needBatchRenewer()
			a, lease := e.reader("a"), e.longLease()
			b, w := e.beside(a, "b"), e.beside(a, "w").as(backend.Write)
			plain := a.as(backend.Exclusive)
			start := time.Now()
			a.acquires("read", lease)
			b.acquires("read", lease)
			w.acquires("written", lease)
			w.as(backend.Read).acquires("written", lease)
			plain.acquires("plain", lease)
			reqs := []backend.RenewRequest{
				{Kind: backend.Read, Name: "read", Owner: "a", Lease: 2 * lease},
				{Kind: backend.Write, Name: "written", Owner: "w", Lease: 4 * lease},
				{Kind: backend.Exclusive, Name: "plain", Owner: "a", Lease: 3 * lease},
				{Kind: backend.Read, Name: "written", Owner: "w", Lease: 2 * lease},
				{Kind: backend.Read, Name: "read", Owner: "b", Lease: lease},
				{Kind: backend.Read, Name: "read", Owner: "w", Lease: 9 * lease},
				{Kind: backend.Write, Name: "read", Owner: "a", Lease: 9 * lease},
				{Kind: backend.Write, Name: "written", Owner: "a", Lease: 9 * lease},
				{Kind: backend.Read, Name: "free", Owner: "a", Lease: 9 * lease},
			}
			for i, res := range renewAll(e, a.s, reqs) {
				if want := i < 5; res.Held != want {
					e.Errorf("RenewBatch: request %d, %+v: held %v; want %v", i, reqs[i], res.Held,
						want)
				}
			}
			a.lasts("read", 2*lease, start)
			w.lasts("written", 4*lease, start)
			plain.lasts("plain", 3*lease, start)
			a.seesFree("free")
		}},
	{name: "read/and write at once",
		rule: "A writer is alone: no reader and no other writer sees it at work, while steps of " +
			"all kinds go on",
		tags: Exclusion,
		run: func(e *env) {
			const parties, rounds = 8, 12
			lease := e.longLease()
			var reading, writing atomic.Int32
			// guarded by the lock; mu is for the race detector, which doesn't know about the lock
			pair := [2]int{}
			var mu sync.RWMutex
			all := make([]party, parties)
			for i := range all {
				all[i] = e.reader(fmt.Sprint("owner", i))
			}
			e.parallel(parties, func(i int) error {
				for range rounds {
					p := all[i]
					if i%3 == 0 {
						p = p.as(backend.Write)
					}
					if _, err := p.insists("lock", lease); err != nil {
						return err
					}
					if p.kind == backend.Read {
						reading.Add(1)
						mu.RLock()
						torn := pair[0] != pair[1]
						mu.RUnlock()
						if torn || writing.Load() != 0 {
							return errors.New("a reader is inside with a writer")
						}
						time.Sleep(time.Duration(rand.IntN(500)) * time.Microsecond)
						reading.Add(-1)
					} else {
						if writing.Add(1) != 1 || reading.Load() != 0 {
							return errors.New("a writer is inside with another, or with readers")
						}
						for j := range pair {
							mu.Lock()
							pair[j]++
							mu.Unlock()
							time.Sleep(time.Duration(rand.IntN(200)) * time.Microsecond)
						}
						writing.Add(-1)
					}
					if err := p.gives("lock", lease); err != nil {
						return err
					}
				}
				return nil
			})
			if want := 3 * rounds; pair[0] != want {
				e.Fatalf("counted %d; want %d", pair[0], want)
			}
		}},
}

var writeCases = []testCase{
	{name: "write/excludes readers",
		rule: "While there is a writer no other owner reads; a Read that isn't acquired reports " +
			"how long the Write lasts, and changes nothing",
		run: func(e *env) {
			w, a, lease := e.writer("w"), e.reader("a"), e.longLease()
			start := time.Now()
			w.acquires("lock", lease)
			w.acquires("lock", lease)
			a.keptOut("lock", term{lease, start})
			// the Read is refused, no matter how long its owner has waited, or is going to wait
			if res := a.asks("lock", 3*lease, 3*lease); res.Acquired {
				e.Fatal("a Read was acquired while another writes")
			}
			a.seesFree("lock") // a Look of kind Read ignores writers
			a.renews("lock", lease, false)
			a.releases("lock", lease, backend.NotHeld)
			w.has("lock", 2)
			w.lasts("lock", lease, start)
			w.releases("lock", lease, backend.Left)
			a.refused("lock", lease)
			w.releases("lock", lease, backend.Freed)
			a.acquires("lock", lease)
		}},
	{name: "write/own read",
		rule: "The owner of a Write may also read, and each of the two is released by itself",
		run: func(e *env) {
			w, a, lease := e.writer("w"), e.reader("a"), e.longLease()
			r := w.as(backend.Read)
			w.acquires("lock", lease)
			for range 2 {
				r.seesFree("lock")
				r.acquires("lock", lease)
				r.reenters("lock", lease, 1)
				r.has("lock", 1)
				w.has("lock", 1)
				a.has("lock", 0)
				a.refused("lock", lease)
				r.renews("lock", lease, true)
				w.renews("lock", lease, true)
				w.reenters("lock", lease, 2)
				w.releases("lock", lease, backend.Left)
				r.releases("lock", lease, backend.Freed)
				r.releases("lock", lease, backend.NotHeld)
				w.has("lock", 1)
			}
			w.releases("lock", lease, backend.Freed)
			w.seesFree("lock")
			a.acquires("lock", lease)
		}},
	{name: "write/downgrade",
		rule: "An owner that reads under its own Write keeps the Read after the last release of " +
			"the Write: others read beside it, and nobody writes",
		run: func(e *env) {
			w, a, other, lease := e.writer("w"), e.reader("a"), e.writer("other"), e.longLease()
			r := w.as(backend.Read)
			for range 2 {
				w.acquires("lock", lease)
				w.acquires("lock", lease)
				r.acquires("lock", lease)
				w.releases("lock", lease, backend.Left)
				a.refused("lock", lease)
				w.releases("lock", lease, backend.Freed)
				w.releases("lock", lease, backend.NotHeld)
				w.seesFree("lock")
				r.has("lock", 1)
				r.renews("lock", lease, true)
				w.refused("lock", lease)
				other.refused("lock", lease)
				a.acquires("lock", lease)
				r.releases("lock", lease, backend.Freed)
				a.has("lock", 1)
				other.refused("lock", lease)
				a.releases("lock", lease, backend.Freed)
				other.acquires("lock", lease)
				other.releases("lock", lease, backend.Freed)
			}
		}},
	{name: "write/no upgrade",
		rule: "For the owner of a Read, a Write is held by another, even if nobody else reads",
		run: func(e *env) {
			a, lease := e.reader("a"), e.longLease()
			start := time.Now()
			a.acquires("lock", lease)
			a.as(backend.Write).keptOut("lock", term{lease, start})
			a.as(backend.Write).seesFree("lock")
			a.as(backend.Write).releases("lock", lease, backend.NotHeld)
			a.has("lock", 1)
			a.lasts("lock", lease, start)
			a.releases("lock", lease, backend.Freed)
			a.as(backend.Write).acquires("lock", lease)
		}},
	{name: "write/force",
		rule: "ForceRelease of a Write ends it and its owner's Read; it does nothing while there " +
			"are only readers",
		run: func(e *env) {
			w, a, lease := e.writer("w"), e.reader("a"), e.longLease()
			a.as(backend.Write).forces("lock", false)
			a.acquires("lock", lease)
			w.forces("lock", false)
			a.has("lock", 1)
			a.releases("lock", lease, backend.Freed)
			w.acquires("lock", lease)
			w.acquires("lock", lease)
			w.as(backend.Read).acquires("lock", lease)
			a.as(backend.Write).forces("lock", true)
			w.seesFree("lock")
			w.as(backend.Read).seesFree("lock")
			w.as(backend.Read).releases("lock", lease, backend.NotHeld)
			a.as(backend.Write).acquires("lock", lease)
		}},
	{name: "write/own read ends",
		rule: "When the leases have run out, a Write and its owner's Read are gone",
		run: func(e *env) {
			w, a, lease := e.writer("w"), e.reader("a"), e.longLease()
			w.acquires("lock", e.shortLease())
			// if the Write hasn't expired yet, its owner acquires this Read, too
			w.as(backend.Read).asks("lock", 0, 0, e.shortLease())
			e.eventually("another writes", func() bool {
				return a.as(backend.Write).asks("lock", 0, 0).Acquired
			})
			w.renews("lock", lease, false)
			w.as(backend.Read).renews("lock", lease, false)
			w.releases("lock", lease, backend.NotHeld)
			w.as(backend.Read).releases("lock", lease, backend.NotHeld)
			a.as(backend.Write).has("lock", 1)

			w.acquires("written", lease)
			w.as(backend.Read).asks("written", 0, 0, e.shortLease())
			e.eventually("the owner of the Write no longer reads", func() bool {
				res, err := w.s.Look(e.ctx, backend.LookRequest{
					Kind: backend.Read, Name: "written", Owner: w.owner,
				})
				if err != nil || res.Held != (res.Count > 0) {
					e.Fatalf("Look: %+v, %v; nobody but the owner can read", res, err)
				}
				return !res.Held
			})
			w.has("written", 1)
		}},
}

// asks tries to acquire the lock with the given Waited and Place, and with the long lease unless
// another one is given.
func (p party) asks(
	name string, waited, place time.Duration, lease ...time.Duration,
) backend.AcquireResult {
	p.e.Helper()
	req := p.request(name, p.e.longLease())
	req.Waited, req.Place = waited, place
	if len(lease) > 0 {
		req.Lease = lease[0]
	}
	res, err := p.s.Acquire(p.e.ctx, req)
	if err != nil {
		p.e.Fatalf("Acquire(%.40q, %v) by %v: %v", name, p.kind, p, err)
	}
	return res
}

// queues checks that a Write is refused. The store then keeps a note of the waiting writer.
func (p party) queues(name string, waited, place time.Duration) {
	p.e.Helper()
	if res := p.asks(name, waited, place); res.Acquired {
		p.e.Fatalf("Acquire(%.40q, %v) by %v: acquired; want refused", name, p.kind, p)
	}
}

// barred checks that a Read is refused because of a waiting writer's note. The note must not last
// longer than place.
func (p party) barred(name string, waited, place time.Duration) {
	p.e.Helper()
	res := p.asks(name, waited, 0)
	if res.Acquired {
		p.e.Fatalf("Acquire(%.40q, read) by %v, waited %v: acquired; want it kept out by a "+
			"writer that waits", name, p, waited)
	}
	if atMost := place + p.e.leaseStep(); res.Remaining <= 0 || res.Remaining > atMost {
		p.e.Fatalf("Acquire(%.40q, read) by %v: Remaining %v; want what is left of a note, more "+
			"than zero and %v at most", name, p, res.Remaining, atMost)
	}
}

// admitted checks that a Read is acquired, even if there are notes of waiting writers.
func (p party) admitted(name string, waited time.Duration) {
	p.e.Helper()
	if res := p.asks(name, waited, 0); !res.Acquired {
		p.e.Fatalf(
			"Acquire(%.40q, read) by %v, waited %v: kept out, Remaining %v; want it acquired", name,
			p, waited, res.Remaining)
	}
	p.has(name, 1)
}

var noteCases = []testCase{
	{name: "note/bars",
		rule: "A Read isn't acquired while there is a note of a Write that has waited longer, " +
			"even if nobody writes; the result reports how long the note lasts",
		run: func(e *env) {
			a, c, w, other := e.reader("a"), e.reader("c"), e.writer("w"), e.writer("other")
			place := e.legal(e.longLease() / 4)
			a.acquires("lock", e.longLease())
			w.queues("lock", 0, place)
			// make sure that w began to wait before c, even as measured by a coarse clock
			e.sleep(2 * e.leaseStep())
			c.barred("lock", 0, place)
			c.has("lock", 0)
			c.releases("lock", e.longLease(), backend.NotHeld)
			c.admitted("another name", 0)
			a.releases("lock", e.longLease(), backend.Freed)
			a.seesFree("lock")
			c.barred("lock", 0, place)
			// A note doesn't bar writers.
			other.acquires("lock", e.longLease())
			other.releases("lock", e.longLease(), backend.Freed)
			c.barred("lock", 0, place)
			w.acquires("lock", e.longLease())
			c.refused("lock", e.longLease())
		}},
	{name: "note/who came before",
		rule: "A Read that has waited longer than the Write of a note isn't barred by it",
		run: func(e *env) {
			a, c, w, place := e.reader("a"), e.reader("c"), e.writer("w"), e.longLease()
			a.acquires("lock", e.longLease())
			w.queues("lock", time.Hour, place)
			c.barred("lock", 0, place)
			c.barred("lock", 40*time.Minute, place)
			c.admitted("lock", 80*time.Minute)
			c.has("lock", 1)
		}},
	{name: "note/those inside", rule: "A note doesn't bar owners that already read or write",
		run: func(e *env) {
			a, w, waiting, place := e.reader("a"), e.writer("w"), e.writer("waiting"), e.longLease()
			a.acquires("lock", e.longLease())
			waiting.queues("lock", time.Hour, place)
			a.reenters("lock", e.longLease(), 1)
			a.renews("lock", e.longLease(), true)
			w.acquires("written", e.longLease())
			waiting.queues("written", time.Hour, place)
			w.as(backend.Read).admitted("written", 0)
			w.releases("written", e.longLease(), backend.Freed)
			w.as(backend.Read).reenters("written", e.longLease(), 1)
			a.barred("written", 0, place)
		}},
	{name: "note/ends",
		rule: "A note ends after Place, and no sooner; without Place there is none, and other " +
			"kinds leave none",
		run: func(e *env) {
			a, c, w := e.reader("a"), e.reader("c"), e.writer("w")
			a.acquires("lock", e.longLease())
			w.queues("lock", time.Hour, 0)
			c.admitted("lock", 0)
			c.releases("lock", e.longLease(), backend.Freed)
			a.as(backend.Write).acquires("read", e.longLease())
			c.asks("read", time.Hour, e.longLease())
			a.as(backend.Write).releases("read", e.longLease(), backend.Freed)
			a.admitted("read", 0)
			plain := w.as(backend.Exclusive)
			a.as(backend.Exclusive).acquires("plain", e.longLease())
			plain.asks("plain", time.Hour, e.longLease())
			a.as(backend.Exclusive).releases("plain", e.longLease(), backend.Freed)
			a.admitted("plain", 0)

			place := e.shortLease()
			start := time.Now()
			w.queues("lock", time.Hour, place)
			e.eventually("a reader in, after a writer that doesn't ask again", func() bool {
				return c.asks("lock", 0, 0).Acquired
			})
			if elapsed := time.Since(start); elapsed < place-place/50-2*time.Millisecond {
				e.Fatalf("a note of %v was over after %v", place, elapsed)
			}
		}},
	{name: "note/renewed",
		rule: "With every attempt a note lasts for Place once more, and keeps the earliest time " +
			"since when the Write has waited",
		run: func(e *env) {
			a, c, w, place := e.reader("a"), e.reader("c"), e.writer("w"), e.longLease()
			a.acquires("lock", e.longLease())
			w.queues("lock", time.Hour, e.shortLease())
			w.queues("lock", time.Hour, place)
			e.sleep(e.shortLease() + e.shortLease()/2 + e.leaseStep())
			c.barred("lock", 0, place)
			w.queues("lock", 0, place)
			c.barred("lock", 40*time.Minute, place)
			w.queues("lock", 2*time.Hour, place)
			c.barred("lock", 80*time.Minute, place)
			c.admitted("lock", 3*time.Hour)
		}},
	{name: "note/given up",
		rule: "Release of a Write takes back its owner's note, even if the owner held nothing, " +
			"and no other note",
		run: func(e *env) {
			a, c, w, other, place := e.reader("a"), e.reader("c"), e.writer("w"), e.writer("other"),
				e.longLease()
			a.acquires("lock", e.longLease())
			w.queues("lock", time.Hour, place)
			other.queues("lock", 3*time.Hour, place)
			other.releases("lock", e.longLease(), backend.NotHeld)
			c.barred("lock", 0, place)
			// releasing a Read doesn't remove the note of its owner's waiting Write
			w.as(backend.Read).releases("lock", e.longLease(), backend.NotHeld)
			c.barred("lock", 0, place)
			// c has waited longer than w. The owner named "other" has waited even longer, but its
			// note is gone.
			c.admitted("lock", 2*time.Hour)
			c.releases("lock", e.longLease(), backend.Freed)
			w.releases("lock", e.longLease(), backend.NotHeld)
			c.admitted("lock", 0)
		}},
	{name: "note/conflict",
		rule: "A note still bars Reads after another lock had the name: a step that answers " +
			"ErrConflict, including the owner's Release, doesn't take it back",
		run: func(e *env) {
			a, c, w, plain := e.reader("a"), e.reader("c"), e.writer("w"), e.party("plain")
			lease, place := e.longLease(), e.longLease()
			a.acquires("lock", lease)
			w.queues("lock", time.Hour, place)
			a.releases("lock", lease, backend.Freed)
			plain.acquires("lock", lease)
			e.conflict(w, "lock")
			plain.releases("lock", lease, backend.Freed)
			c.barred("lock", 0, place)
		}},
	{name: "note/many",
		rule: "However many writers wait, the owner of the Write can write once more, and read",
		run: func(e *env) {
			w, lease := e.writer("w"), e.longLease()
			w.acquires("lock", lease)
			for i := range 20 {
				e.writer(fmt.Sprint("waits ", i)).queues("lock", time.Hour, lease)
			}
			w.reenters("lock", lease, 2)
			w.as(backend.Read).acquires("lock", lease)
			w.releases("lock", lease, backend.Left)
			w.reenters("lock", lease, 2)
		}},
	{name: "note/acquired", rule: "A note ends when its owner acquires the Write",
		run: func(e *env) {
			a, c, w, other, place := e.reader("a"), e.reader("c"), e.writer("w"), e.writer("other"),
				e.longLease()
			a.acquires("lock", e.longLease())
			w.queues("lock", 2*time.Hour, place)
			a.releases("lock", e.longLease(), backend.Freed)
			if res := w.asks("lock", 2*time.Hour, place); !res.Acquired {
				e.Fatal("a Write was refused, though nobody reads or writes")
			}
			other.queues("lock", time.Hour, place)
			w.forces("lock", true)
			c.barred("lock", 0, place)
			c.admitted("lock", 90*time.Minute) // other's note is left
		}},
	{name: "note/of several",
		rule: "If several notes bar a Read, the result reports when the last one ends",
		run: func(e *env) {
			a, c, v, w := e.reader("a"), e.reader("c"), e.writer("v"), e.writer("w")
			first, last := e.legal(e.longLease()/4), e.legal(e.longLease()/2)
			a.acquires("lock", e.longLease())
			start := time.Now()
			v.queues("lock", time.Hour, last)
			w.queues("lock", time.Hour, first)
			e.checkRemaining("Acquire", c.asks("lock", 0, 0).Remaining, last, start)
			v.releases("lock", e.longLease(), backend.NotHeld)
			c.barred("lock", 0, first)
		}},
}

// rwNotifierCases test which events of a read-write lock wake waiters.
var rwNotifierCases = []testCase{
	{name: "notifier/write",
		rule: "The last release of a Write calls Wake, even if its owner goes on reading; so " +
			"does a forced release",
		run: func(e *env) {
			e.needNotifier()
			a, w, lease := e.reader("a"), e.writer("w"), e.longLease()
			rung, sub := a.subscribe("lock")
			defer sub.Close()
			asWriter, sub2 := a.as(backend.Write).subscribe("lock")
			defer sub2.Close()
			for what, step := range map[string]func(){
				"a release of a Write": func() { w.releases("lock", lease, backend.Freed) },
				"a forced Write":       func() { a.as(backend.Write).forces("lock", true) },
				"a downgrade": func() {
					w.as(backend.Read).acquires("lock", lease)
					w.releases("lock", lease, backend.Freed)
				},
			} {
				w.acquires("lock", lease)
				w.acquires("lock", lease)
				w.releases("lock", lease, backend.Left)
				rung.reset()
				asWriter.reset()
				step()
				rung.waits(e, what)
				asWriter.waits(e, what)
				a.as(backend.Read).forces("lock", what == "a downgrade")
			}
		}},
	{name: "notifier/last reader",
		rule: "The release of the last Read calls Wake, and so does a forced release of Reads",
		run: func(e *env) {
			e.needNotifier()
			a, b, w, lease := e.reader("a"), e.reader("b"), e.writer("w"), e.longLease()
			rung, sub := w.subscribe("lock")
			defer sub.Close()
			for what, step := range map[string]func(){
				"the last reader has left": func() {
					a.releases("lock", lease, backend.Freed)
					rung.reset()
					b.releases("lock", lease, backend.Freed)
				},
				"readers were forced": func() { a.forces("lock", true) },
			} {
				a.acquires("lock", lease)
				b.acquires("lock", lease)
				rung.reset()
				step()
				rung.waits(e, what)
				w.acquires("lock", lease)
				w.releases("lock", lease, backend.Freed)
			}
		}},
	{name: "notifier/note", rule: "A note that is given up calls Wake",
		run: func(e *env) {
			e.needNotifier()
			a, c, w, lease := e.reader("a"), e.reader("c"), e.writer("w"), e.longLease()
			rung, sub := c.subscribe("lock")
			defer sub.Close()
			a.acquires("lock", lease)
			for range 3 {
				w.queues("lock", time.Hour, lease)
				rung.reset()
				w.releases("lock", lease, backend.NotHeld)
				rung.waits(e, "a note that was given up")
				c.admitted("lock", 0)
				c.releases("lock", lease, backend.Freed)
			}
		}},
}

var conflictCases = []testCase{
	{name: "kinds/of one name",
		rule: "Until it is free, a name is one owner's lock, a read-write lock, or permits: a " +
			"step of another of these answers ErrConflict, of kind Refused, and changes nothing",
		run: func(e *env) {
			lease := e.longLease()
			a, b := e.party("a"), e.party("b") // no owner uses two kinds of lock
			locks := e.locks()
			e.skipWithout(len(locks) > 1, "locks but those of one owner")
			for i, held := range locks {
				for _, k := range held {
					name := k.String()
					holder, others := a.as(k),
						slices.Concat(slices.Delete(slices.Clone(locks), i, i+1)...)
					start := time.Now()
					holder.acquires(name, lease)
					for _, other := range others {
						e.conflict(b.as(other), name)
					}
					holder.has(name, 1)
					holder.lasts(name, lease, start)
					holder.releases(name, lease, backend.Freed)
					if k == backend.Permits {
						// the store may remember the limit forever, and then the name can't be used
						// for other locks
						continue
					}
					for _, other := range others {
						b.as(other).acquires(name, lease)
						b.as(other).releases(name, lease, backend.Freed)
					}
				}
			}
		}},
	{name: "kinds/after another",
		rule: "A name whose holds have all run out is free for locks of any kind, except that a " +
			"name of permits may stay a semaphore's",
		run: func(e *env) {
			a, b := e.party("a"), e.party("b")
			locks := e.locks()
			e.skipWithout(len(locks) > 1, "locks but those of one owner")
			type pair struct{ first, then backend.Kind }
			var pairs []pair
			for i, first := range locks {
				for j, then := range locks {
					if i != j && first[0] != backend.Permits {
						pairs = append(pairs, pair{first[i%len(first)], then[j%len(then)]})
					}
				}
			}
			for i, p := range pairs {
				a.as(p.first).acquires(fmt.Sprint("lock", i), e.shortLease())
			}
			for i, p := range pairs {
				name := fmt.Sprint("lock", i)
				e.eventually(fmt.Sprintf("a %v lock after a %v one", p.then, p.first), func() bool {
					res, err := b.s.Acquire(e.ctx, b.as(p.then).request(name, e.longLease()))
					if err != nil && !errors.Is(err, backend.ErrConflict) {
						e.Fatal(err)
					}
					// Acquire can be refused without an error if the lock expires after the
					// refusal, but before the store reads the lock's kind.
					return err == nil && res.Acquired
				})
				b.as(p.then).has(name, 1)
			}
		}},
}

// locks returns the kinds that the store declares, in groups. Within a group, a name stands for a
// single lock.
func (e *env) locks() (locks [][]backend.Kind) {
	for _, kinds := range [][]backend.Kind{{backend.Exclusive, backend.Fenced, backend.Fair},
		{backend.Read, backend.Write}, {backend.Permits}} {
		declared := slices.DeleteFunc(kinds, func(k backend.Kind) bool {
			return !e.limits().Kinds.Has(k)
		})
		if len(declared) > 0 {
			locks = append(locks, declared)
		}
	}
	return locks
}

// conflict checks that every step of p returns ErrConflict, because the name belongs to another
// kind of lock.
func (e *env) conflict(p party, name string) {
	e.Helper()
	for step, err := range p.steps(name) {
		if !errors.Is(err, backend.ErrConflict) || backend.KindOf(err) != backend.Refused {
			e.Errorf("%s of a %v lock by %v, where the name has another kind: error %v; want "+
				"ErrConflict, of kind Refused", step, p.kind, p, err)
		}
	}
}
