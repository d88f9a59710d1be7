package contract

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/contract/faults"
)

// watcher returns a party with its own session that can inspect locks. It skips the case if the
// store can't inspect.
func (e *env) watcher() party {
	e.Helper()
	p := e.party("nobody")
	e.skipWithout(backend.CapabilitiesOf(p.s).Inspector != nil, "backend.Inspector")
	return p
}

// lister returns a party with its own session that can list locks. It skips the case if the store
// can't list.
func (e *env) lister() party {
	e.Helper()
	p := e.party("nobody")
	e.skipWithout(backend.CapabilitiesOf(p.s).Lister != nil, "backend.Lister")
	return p
}

// A share is one holder's part of a lock.
type share struct {
	party
	count int
	term
}

// A view is a lock as an Inspector should report it.
type view struct {
	shares []share
	line   []string // owners in line
	limit  int
}

// seenAs returns the kind that an Inspector reports for a lock or a holder. Inspectors don't
// distinguish the three kinds of plain locks.
func seenAs(k backend.Kind) backend.Kind {
	if k == backend.Fenced || k == backend.Fair {
		return backend.Exclusive
	}
	return k
}

// seen checks what a step reports about a lock. It tells owners of permits apart by their number of
// permits, because some stores don't know the owners.
func (e *env) seen(step string, got backend.Inspection, name string, want view) {
	e.Helper()
	step = fmt.Sprintf("%s of %.40q", step, name)
	if got.Name != name || got.More != 0 || len(got.Holders) != len(want.shares) ||
		got.Free() != (len(want.shares) == 0) {
		e.Fatalf("%s: %+v; want %d holders, and no more", step, got, len(want.shares))
	}
	if limit := got.Limit; limit != want.limit && (limit != 0 || len(want.shares) > 0) {
		e.Fatalf("%s: Limit %d; want %d", step, limit, want.limit)
	}
	if !slices.Equal(got.Line, want.line) {
		e.Fatalf("%s: Line %.40q; want %.40q", step, got.Line, want.line)
	}
	writes := func(h backend.Holder) bool { return h.Kind == backend.Write }
	if i := slices.IndexFunc(got.Holders, writes); i > 0 {
		e.Fatalf("%s: %+v; want the writer before the readers", step, got.Holders)
	}
	holders := slices.SortedFunc(slices.Values(got.Holders), func(a, b backend.Holder) int {
		return cmp.Or(cmp.Compare(b.Kind, a.Kind),
			inOrder(a.Kind, a.Owner, b.Owner, a.Count, b.Count))
	})
	shares := slices.SortedFunc(slices.Values(want.shares), func(a, b share) int {
		return cmp.Or(cmp.Compare(b.kind, a.kind),
			inOrder(a.kind, a.owner, b.owner, a.count, b.count))
	})
	owners := make(map[string]bool)
	for i, x := range shares {
		h, kind := holders[i], seenAs(x.kind)
		if h.Kind != kind || h.Count != x.count || kind != backend.Permits && h.Owner != x.owner {
			e.Fatalf("%s: %+v; want %.40q, %v, count %d", step, h, x.owner, kind, x.count)
		}
		if kind == backend.Permits && owners[h.Owner] {
			e.Fatalf(
				"%s: %+v; want each owner's permits together, and no two owners to be the same",
				step, got.Holders)
		}
		owners[h.Owner] = true
		e.checkRemaining(fmt.Sprintf("%s, what %.40q has", step, x.owner), h.Remaining, x.lease,
			x.since)
		if kind == backend.Read {
			kind = backend.Write
		}
		if got.Kind != kind {
			e.Fatalf("%s: %v; want %v", step, got.Kind, kind)
		}
	}
}

func inOrder(k backend.Kind, a, b string, n, m int) int {
	if k == backend.Permits {
		return cmp.Compare(n, m)
	}
	return cmp.Compare(a, b)
}

func (p party) inspect(name string) backend.Inspection {
	p.e.Helper()
	i, err := backend.CapabilitiesOf(p.s).
		Inspector.Inspect(p.e.ctx, backend.InspectRequest{Name: name})
	if err != nil {
		p.e.Fatalf("Inspect(%.40q): %v", name, err)
	}
	return i
}

// inspects checks Inspect's report on a name.
func (p party) inspects(name string, want view) {
	p.e.Helper()
	p.e.seen("Inspect", p.inspect(name), name, want)
}

// list returns all locks whose names begin with a prefix. It reads pages of at most limit locks.
// The function between is called before each page except the first.
func (p party) list(prefix string, limit int, between func()) (locks []backend.Inspection) {
	p.e.Helper()
	for req := (backend.ListRequest{Prefix: prefix, Limit: limit}); ; between() {
		res, err := backend.CapabilitiesOf(p.s).Lister.List(p.e.ctx, req)
		if err != nil {
			p.e.Fatalf("List(%.40q), after %.40q: %v", prefix, req.After, err)
		}
		for _, i := range res.Locks {
			if !strings.HasPrefix(i.Name, prefix) || i.Free() {
				p.e.Fatalf("List(%.40q): %+v; want the prefix, and a holder", prefix, i)
			}
		}
		locks = append(locks, res.Locks...)
		if req.After = res.Next; req.After == "" {
			return locks
		}
	}
}

// lists checks that List reports exactly the wanted locks for a prefix, in pages of at most limit
// locks.
func (p party) lists(prefix string, limit int, want ...string) {
	p.e.Helper()
	if got, want := namesOf(p.list(prefix, limit, func() {})), slices.Sorted(
		slices.Values(want)); !slices.Equal(got, want) {
		p.e.Fatalf("List(%.40q) in pages of %d: %d locks, %.40q; want %d, %.40q", prefix, limit,
			len(got), got, len(want), want)
	}
}

// namesOf returns the sorted names of locks, without duplicates.
func namesOf(locks []backend.Inspection) []string {
	names := make([]string, len(locks))
	for i, l := range locks {
		names[i] = l.Name
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// declared returns the given kinds that the store supports.
func (e *env) declared(kinds ...backend.Kind) []backend.Kind {
	return slices.DeleteFunc(kinds, func(k backend.Kind) bool { return !e.limits().Kinds.Has(k) })
}

// allKinds returns all kinds that the store supports.
func (e *env) allKinds() []backend.Kind { return slices.Concat(e.locks()...) }

// sample acquires a lock of each kind that the store supports. Each lock is named after its kind,
// with a prefix. sample returns the expected report on each lock.
func (e *env) sample(prefix string, lease time.Duration) map[string]view {
	e.Helper()
	all, s := make(map[string]view), e.session()
	for _, k := range e.allKinds() {
		name, start := prefix+k.String(), time.Now()
		a, b := e.at(s, "a").as(k), e.at(s, "b").as(k)
		v := view{}
		switch k {
		case backend.Read:
			a.acquires(name, lease)
			b.acquires(name, lease)
			v.shares = []share{{a, 1, term{lease, start}}, {b, 1, term{lease, start}}}
		case backend.Permits:
			a, b = a.of(2, 5), b.of(1, 5)
			a.acquires(name, lease)
			b.acquires(name, lease)
			v = view{
				shares: []share{{a, 2, term{lease, start}}, {b, 1, term{lease, start}}}, limit: 5,
			}
		default:
			a.acquires(name, lease)
			a.acquires(name, lease)
			v.shares = []share{{a, 2, term{lease, start}}}
			if k == backend.Fair || k == backend.Write {
				b.stands(name, e.longLease())
			}
			if k == backend.Fair {
				v.line = []string{"b"}
			}
		}
		all[name] = v
	}
	return all
}

// same checks that the locks of a sample are unchanged. The holders must still have their holds and
// leases, and other owners must be refused, unless the lock can be shared. Then same releases the
// locks.
func (e *env) same(sample map[string]view) {
	e.Helper()
	for name, v := range sample {
		for _, x := range v.shares {
			x.has(name, x.count)
			x.lasts(name, x.lease, x.since)
			if x.kind != backend.Read && x.kind != backend.Permits {
				e.at(x.s, "c").as(x.kind).refused(name, e.longLease())
			}
		}
		for _, x := range v.shares {
			if x.kind != backend.Permits {
				for range x.count - 1 {
					x.releases(name, e.longLease(), backend.Left)
				}
			}
			x.releases(name, e.longLease(), backend.Freed)
		}
	}
}

var inspectCases = []testCase{
	{name: "inspect/free",
		rule: "Inspect reports a lock as free if it was never used, was released, or was forced",
		run: func(e *env) {
			w, a, lease := e.watcher(), e.party("a"), e.longLease()
			for _, k := range e.allKinds() {
				a, name := a.as(k), k.String()
				w.inspects(name, view{})
				a.acquires(name, lease)
				a.releases(name, lease, backend.Freed)
				w.inspects(name, view{limit: a.limit})
				a.acquires(name, lease)
				a.forces(name, true)
				w.inspects(name, view{limit: a.limit})
			}
		}},
	{name: "inspect/plain",
		rule: "Inspect reports the holder of a plain lock, however it was acquired, the number " +
			"of holds, and how long they last",
		run: func(e *env) {
			w, s, lease := e.watcher(), e.session(), e.longLease()
			for _, k := range e.declared(backend.Exclusive, backend.Fenced, backend.Fair) {
				a, b, name, start := e.at(s, "a").as(k), e.at(w.s, "b").as(k), k.String(),
					time.Now()
				a.acquires(name, lease)
				w.inspects(name, view{shares: []share{{a, 1, term{lease, start}}}})
				start = time.Now()
				a.acquires(name, 2*lease)
				b.refused(name, lease)
				for _, who := range []party{w, a, b} {
					who.inspects(name, view{shares: []share{{a, 2, term{2 * lease, start}}}})
				}
				start = time.Now()
				a.renews(name, 3*lease, true)
				w.inspects(name, view{shares: []share{{a, 2, term{3 * lease, start}}}})
				start = time.Now()
				a.releases(name, lease, backend.Left)
				w.inspects(name, view{shares: []share{{a, 1, term{lease, start}}}})
				a.releases(name, lease, backend.Freed)
				start = time.Now()
				b.acquires(name, lease)
				w.inspects(name, view{shares: []share{{b, 1, term{lease, start}}}})
			}
		}},
	{name: "inspect/readers", rule: "Inspect lists all readers, and how long each lasts",
		run: func(e *env) {
			e.need(backend.Read)
			w, s, lease, start := e.watcher(), e.session(), e.longLease(), time.Now()
			var all []share
			for i, owner := range []string{"a", "b", "c"} {
				p, x := e.at(s, owner).as(backend.Read), term{time.Duration(i+1) * lease, start}
				p.acquires("lock", x.lease)
				all = append(all, share{p, 1, x})
				w.inspects("lock", view{shares: all})
			}
			all[0].acquires("lock", 2*lease) // a repeated Read adds no holder
			all[0].lease = 2 * lease
			w.inspects("lock", view{shares: all})
			all[1].releases("lock", lease, backend.Freed)
			w.inspects("lock", view{shares: []share{all[0], all[2]}})
		}},
	{name: "inspect/writer",
		rule: "Inspect lists the writer before the same owner as a reader, and no waiters",
		run: func(e *env) {
			e.need(backend.Read, backend.Write)
			w, s, lease, start := e.watcher(), e.session(), e.longLease(), time.Now()
			a, b := e.at(s, "a").as(backend.Write), e.at(s, "b").as(backend.Write)
			x := term{lease, start}
			a.acquires("lock", lease)
			a.acquires("lock", lease)
			w.inspects("lock", view{shares: []share{{a, 2, x}}})
			a.as(backend.Read).acquires("lock", lease)
			b.stands("lock", lease)
			for range 10 { // a store may report the holders in any order
				w.inspects("lock", view{shares: []share{{a, 2, x}, {a.as(backend.Read), 1, x}}})
			}
			a.releases("lock", lease, backend.Left)
			w.inspects("lock", view{shares: []share{{a, 1, x}, {a.as(backend.Read), 1, x}}})
			a.releases("lock", lease, backend.Freed)
			w.inspects("lock", view{shares: []share{{a.as(backend.Read), 1, x}}})
			a.as(backend.Read).releases("lock", lease, backend.Freed)
			w.inspects("lock", view{}) // the remaining note isn't a hold
		}},
	{name: "inspect/permits",
		rule: "Inspect reports how many permits each owner has, and the limit that the store was " +
			"told last",
		run: func(e *env) {
			w, a, lease, start := e.watcher(), e.worker("a").of(2, 9), e.longLease(), time.Now()
			b, c := e.at(a.s, "b").of(3, 9), e.at(a.s, "c").of(1, 12)
			x := term{lease, start}
			a.acquires("lock", lease)
			w.inspects("lock", view{shares: []share{{a, 2, x}}, limit: 9})
			b.acquires("lock", lease)
			w.inspects("lock", view{shares: []share{{a, 2, x}, {b, 3, x}}, limit: 9})
			who := func(count int) string {
				holders := w.inspect("lock").Holders
				return holders[slices.IndexFunc(holders, func(h backend.Holder) bool {
					return h.Count == count
				})].Owner
			}
			before := who(3)
			e.at(w.s, "b").of(3, 9).renews("lock", 2*lease, true)
			if now := who(3); now != before {
				e.Fatalf("Inspect: the permits of %q are %q's after a renewal by another session "+
					"of the same owner; want the same", before, now)
			}
			y := term{2 * lease, start}
			w.inspects("lock", view{shares: []share{{a, 2, x}, {b, 3, y}}, limit: 9})
			c.acquires("lock", 2*lease)
			w.inspects("lock", view{shares: []share{{a, 2, x}, {b, 3, y}, {c, 1, y}}, limit: 12})
			a.releases("lock", lease, backend.Freed)
			w.inspects("lock", view{shares: []share{{b, 3, y}, {c, 1, y}}, limit: 12})
		}},
	{name: "inspect/line", rule: "Inspect reports the waiters in line for a Fair lock, in order",
		run: func(e *env) {
			e.need(backend.Fair)
			w, a, lease, start := e.watcher(), e.queuer("owner 5"), e.longLease(), time.Now()
			a.acquires("lock", lease)
			is := func(owners ...string) {
				e.Helper()
				w.inspects("lock", view{shares: []share{{a, 1, term{lease, start}}}, line: owners})
			}
			is()
			waiters := make(map[string]party)
			for i, owner := range []string{"owner 7", "owner 1", "owner 9", "owner 3"} {
				waiters[owner] = e.at(a.s, owner).as(backend.Fair)
				waiters[owner].stands("lock", lease)
				is([]string{"owner 7", "owner 1", "owner 9", "owner 3"}[:i+1]...)
			}
			waiters["owner 1"].releases("lock", lease, backend.NotHeld)
			is("owner 7", "owner 9", "owner 3")
			waiters["owner 9"].keep("lock", lease, "owner 9")
			waiters["owner 7"].stands("lock", lease)
			is("owner 7", "owner 9", "owner 3")
			waiters["owner 1"].stands("lock", lease)
			is("owner 7", "owner 9", "owner 3", "owner 1")
		}},
	{name: "inspect/over",
		rule: "Inspect leaves out holds, permits and places that have ended, and prolongs none",
		run: func(e *env) {
			w, p, short, long := e.watcher(), e.party("a"), e.shortLease(), e.longLease()
			// the expected reports after the short leases have expired
			seen := make(map[string]view)
			for _, k := range e.allKinds() {
				p.as(k).acquires(k.String(), short)
				seen[k.String()] = view{}
			}
			if e.limits().Kinds.Has(backend.Permits) {
				a, start := p.of(2, 5), time.Now()
				a.acquires("some of several", long)
				e.at(p.s, "b").of(1, 5).acquires("some of several", short)
				seen["some of several"] = view{shares: []share{{a, 2, term{long, start}}}, limit: 5}
			}
			if e.limits().Kinds.Has(backend.Fair) {
				a, start := p.as(backend.Fair), time.Now()
				a.acquires("line", long)
				e.at(p.s, "b").as(backend.Fair).stands("line", short)
				e.at(p.s, "c").as(backend.Fair).stands("line", long)
				seen["line"] = view{shares: []share{{a, 1, term{long, start}}}, line: []string{"c"}}
			}
			e.eventually("Inspect finds nothing that is over", func() bool {
				over := 0
				// inspect all names in each round: if an inspection prolonged a lease, that lease
				// would never expire
				for name, want := range seen {
					if i := w.inspect(name); len(i.Holders) != len(want.shares) ||
						len(i.Line) != len(want.line) {
						over++
					}
				}
				return over == 0
			})
			for name, want := range seen {
				// don't compare free semaphores: the store may still know their limits
				if len(want.shares) > 0 {
					w.inspects(name, want)
				}
			}
		}},
	{name: "inspect/unchanged", rule: "Inspect changes nothing",
		run: func(e *env) {
			w := e.watcher()
			sample := e.sample("", e.longLease())
			for range 3 {
				for name := range sample {
					w.inspect(name)
				}
			}
			e.same(sample)
		}},
	{name: "inspect/most",
		rule: "Inspect lists at most MostHolders holders of a lock, and reports how many more " +
			"there are",
		run: func(e *env) {
			e.need(backend.Read)
			const n = backend.MostHolders + 5
			w, s, lease := e.watcher(), e.session(), e.longLease()
			e.parallel(20, func(worker int) error {
				for i := worker; i < n; i += 20 {
					p := e.at(s, fmt.Sprint("reader ", i)).as(backend.Read)
					if res, err := p.s.Acquire(e.ctx, p.request("lock", lease)); err != nil ||
						!res.Acquired {
						return fmt.Errorf("Acquire: %+v, %v", res, err)
					}
				}
				return nil
			})
			i := w.inspect("lock")
			readers := make(map[string]bool)
			for _, h := range i.Holders {
				if h.Count != 1 || h.Kind != backend.Read ||
					!strings.HasPrefix(h.Owner, "reader ") {
					e.Fatalf("Inspect of a lock with many readers: %+v", h)
				}
				readers[h.Owner] = true
			}
			if len(readers) != backend.MostHolders || len(i.Holders) != backend.MostHolders ||
				i.More != n-backend.MostHolders {
				e.Fatalf("Inspect of a lock with %d readers: %d of them, of %d names, and %d "+
					"more; want %d", n, len(i.Holders), len(readers), i.More, backend.MostHolders)
			}
		}},
	{name: "inspect/conflict",
		rule: "Inspect of data that isn't a lock answers ErrConflict, of kind Refused, and " +
			"doesn't change it",
		run: func(e *env) {
			e.skipWithout(e.store.PutForeign != nil && e.store.ForeignIntact != nil,
				"PutForeign and ForeignIntact")
			w := e.watcher()
			for kind := range 4 {
				name := fmt.Sprint("foreign", kind)
				e.store.PutForeign(name)
				i, err := backend.CapabilitiesOf(w.s).
					Inspector.Inspect(e.ctx, backend.InspectRequest{Name: name})
				if !errors.Is(err, backend.ErrConflict) || backend.KindOf(err) != backend.Refused {
					e.Errorf("Inspect: %+v, error %v; want ErrConflict, of kind Refused", i, err)
				}
				if !e.store.ForeignIntact(name) {
					e.Fatal("Inspect has changed what is no lock")
				}
			}
			w.inspects("another name", view{})
		}},
	{name: "inspect/names",
		rule: "Inspect tells names and owners apart as the steps do, and reports them unchanged",
		run: func(e *env) {
			w, s, lease := e.watcher(), e.session(), e.longLease()
			names := e.oddLocks(e.kind)
			held := make(map[string]share)
			for i, name := range names {
				p, start := e.at(s, oddNames[(i+7)%len(oddNames)]), time.Now()
				for range 1 + i%3 {
					p.acquires(name, lease)
				}
				held[name] = share{p, 1 + i%3, term{lease, start}}
			}
			for name, x := range held {
				w.inspects(name, view{shares: []share{x}})
			}
			if e.limits().Kinds.Has(backend.Read) {
				var all []share
				for _, owner := range oddNames {
					x := share{e.at(s, owner).as(backend.Read), 1, term{lease, time.Now()}}
					x.acquires("read by all", lease)
					all = append(all, x)
				}
				w.inspects("read by all", view{shares: all})
			}
			if e.limits().Kinds.Has(backend.Fair) {
				e.at(s, "has it").as(backend.Fair).acquires("in line", lease)
				for _, owner := range oddNames {
					e.at(s, owner).as(backend.Fair).stands("in line", lease)
				}
				if i := w.inspect("in line"); !slices.Equal(i.Line, oddNames) {
					e.Fatalf("Inspect: Line %.40q; want %.40q", i.Line, oddNames)
				}
			}
		}},
	{name: "inspect/broken connection",
		rule: "Inspect whose connection breaks returns an error, or what is true",
		run: func(e *env) {
			_, a, lease := e.watcher(), e.party("a"), e.longLease()
			start := time.Now()
			a.acquires("lock", lease)
			a.acquires("lock", lease)
			e.unbroken(func(p party) error {
				i, err := backend.CapabilitiesOf(p.s).
					Inspector.Inspect(e.ctx, backend.InspectRequest{Name: "lock"})
				if err == nil {
					e.seen("Inspect", i, "lock", view{shares: []share{{a, 2, term{lease, start}}}})
				}
				return err
			})
		}},
}

// unbroken checks that look copes with broken connections. It calls look repeatedly. The connection
// breaks at look's first request in the first call, at its second request in the second call, and
// so on. After a series of calls in which the requests are lost, another series loses the replies.
// If look returns an error, its kind must not be Refused.
func (e *env) unbroken(look func(p party) error) {
	e.Helper()
	e.skipWithout(e.store.Fragile != nil, "Fragile")
	back, strike := e.store.Fragile()
	p := e.at(back.Open(), "b")
	e.Cleanup(func() { p.s.Close() })
	for _, blow := range []faults.Blow{faults.LoseRequest, faults.LoseReply} {
		for n := 0; ; n++ {
			e.eventually("a look without an error, after a connection broke", func() bool {
				return look(p) == nil
			})
			end := strike(blow, n)
			err := look(p)
			if backend.KindOf(err) == backend.Refused {
				e.Fatalf("%v, %d: error %q is of kind Refused; but another look could be had", blow,
					n, err)
			}
			if struck := end(); !struck {
				if n == 0 {
					e.Fatalf("the harness is wrong: a look takes no request that Strike(%v, 0) "+
						"strikes", blow)
				}
				break
			}
		}
	}
}

// begun returns the names that begin with the given prefix.
func begun(names []string, prefix string) []string {
	return slices.DeleteFunc(slices.Clone(names), func(name string) bool {
		return !strings.HasPrefix(name, prefix)
	})
}

var listCases = []testCase{
	{name: "list/prefix",
		rule: "List returns exactly the locks whose names begin with the prefix, whatever " +
			"characters these have",
		run: func(e *env) {
			l, s, lease := e.lister(), e.session(), e.longLease()
			l.lists("", 10)
			l.lists("lock", 10)
			names := e.oddLocks(e.kind)
			for _, name := range names {
				e.at(s, "a").acquires(name, lease)
			}
			l.lists("", 1000, names...)
			for _, prefix := range []string{
				"l", "lock", "lock:", "lo*", "l?", "l?ck", "*", "?", "[", "[a-z]", "[^x]", `\`,
				`\*`, "{", "{lock}", "{a}", "a", "/", "a/", "/*", "..",
				"a\x00", "\x00", "\n", "é", "e", "зам", "锁", "🔒", "%", "%s", "nn",
				strings.Repeat("n", 1000), "none",
			} {
				l.lists(prefix, 1000, begun(names, prefix)...)
			}
		}},
	{name: "list/bytes",
		rule: "A prefix for List may be any text, and may end in the middle of a character",
		run: func(e *env) {
			l, s, names := e.lister(), e.session(), e.oddLocks(e.kind)
			for _, name := range names {
				e.at(s, "a").acquires(name, e.longLease())
			}
			for _, prefix := range []string{"\xff", "\xff\xfe", "\xc3", "\xe9\x94",
				"\xf0\x9f\x94"} {
				l.lists(prefix, 1000, begun(names, prefix)...)
			}
		}},
	{name: "list/pages",
		rule: "List returns all locks in pages, however large, until Next is empty",
		run: func(e *env) {
			l, s, lease := e.lister(), e.session(), e.longLease()
			var names []string
			for i := range 60 {
				names = append(names, fmt.Sprint("lock ", i))
				e.at(s, fmt.Sprint("owner ", i)).acquires(names[i], lease)
			}
			for _, limit := range []int{1, 2, 7, 59, 60, 61, 100_000} {
				l.lists("lock ", limit, names...)
			}
			l.lists("lock 1", 3, "lock 1", "lock 10", "lock 11", "lock 12", "lock 13", "lock 14",
				"lock 15", "lock 16", "lock 17", "lock 18", "lock 19")
		}},
	{name: "list/changes",
		rule: "A lock that is held from the first page to the last is listed, whatever is " +
			"acquired and released meanwhile",
		run: func(e *env) {
			l, a, lease := e.lister(), e.party("a"), e.longLease()
			var stay []string
			goes := func(i int) string { return fmt.Sprintf("%02d goes", i) }
			for i := range 40 {
				stay = append(stay, fmt.Sprintf("%02d stays", i))
				a.acquires(stay[i], lease)
				a.acquires(goes(i), lease)
			}
			for _, limit := range []int{1, 5} {
				n := 0
				locks := l.list("", limit, func() {
					if n < 40 {
						a.releases(goes(n), lease, backend.Freed)
						a.acquires(fmt.Sprintf("%02d comes", 40+n), lease)
						n++
					}
				})
				got := namesOf(locks)
				for _, name := range stay {
					if !slices.Contains(got, name) {
						e.Fatalf("List in pages of %d: %q is missing, which was held all the time",
							limit, name)
					}
				}
				for i := range n {
					a.acquires(goes(i), lease)
					a.releases(fmt.Sprintf("%02d comes", 40+i), lease, backend.Freed)
				}
			}
		}},
	{name: "list/content",
		rule: "List reports the same as Inspect about locks of all kinds, and each holder once",
		run: func(e *env) {
			l := e.lister()
			sample := e.sample("kind: ", e.longLease())
			for _, limit := range []int{1, 100} {
				locks := l.list("kind", limit, func() {})
				for _, i := range locks {
					if _, ok := sample[i.Name]; !ok {
						e.Fatalf("List: %+v; which nobody has", i)
					}
					e.seen("List", i, i.Name, sample[i.Name])
				}
				if got := namesOf(locks); len(got) != len(sample) {
					e.Fatalf("List: %q; want all of %d", got, len(sample))
				}
			}
		}},
	{name: "list/free",
		rule: "List returns no free locks: released, forced, or run out, even if the store keeps " +
			"data of them",
		run: func(e *env) {
			l, s, lease := e.lister(), e.session(), e.longLease()
			for _, k := range e.allKinds() {
				a, b := e.at(s, "a").as(k), e.at(s, "b").as(k)
				for _, name := range []string{"released, ", "forced, "} {
					a.acquires(name+k.String(), lease)
				}
				a.acquires("run out, "+k.String(), e.shortLease())
				a.releases("released, "+k.String(), lease, backend.Freed)
				b.forces("forced, "+k.String(), true)
			}
			e.eventually("List finds no lock", func() bool {
				return len(l.list("", 5, func() {})) == 0
			})
		}},
	{name: "list/foreign", rule: "List goes on after data that isn't a lock, and doesn't change it",
		run: func(e *env) {
			e.skipWithout(e.store.PutForeign != nil && e.store.ForeignIntact != nil,
				"PutForeign and ForeignIntact")
			l, a := e.lister(), e.party("a")
			for i := range 8 {
				a.acquires(fmt.Sprint("lock", i), e.longLease())
				e.store.PutForeign(fmt.Sprint("foreign", i))
			}
			for _, limit := range []int{1, 100} {
				got := namesOf(l.list("", limit, func() {}))
				for i := range 8 {
					if !slices.Contains(got, fmt.Sprint("lock", i)) {
						e.Fatalf("List: %q; want all locks", got)
					}
					if !e.store.ForeignIntact(fmt.Sprint("foreign", i)) {
						e.Fatal("List has changed what is no lock")
					}
				}
			}
		}},
	{name: "list/unchanged", rule: "List changes nothing",
		run: func(e *env) {
			l := e.lister()
			sample := e.sample("", e.longLease())
			for range 3 {
				l.list("", 2, func() {})
			}
			e.same(sample)
		}},
	{name: "list/broken connection",
		rule: "List whose connection breaks returns an error, or a page without a gap",
		run: func(e *env) {
			l, a := e.lister(), e.party("a")
			var names []string
			for i := range 5 {
				names = append(names, fmt.Sprint("lock ", i))
				a.acquires(names[i], e.longLease())
			}
			l.lists("", 2, names...)
			e.unbroken(func(p party) error {
				var got []backend.Inspection
				for req := (backend.ListRequest{Limit: 2}); ; {
					res, err := backend.CapabilitiesOf(p.s).Lister.List(e.ctx, req)
					if err != nil {
						return err
					}
					got = append(got, res.Locks...)
					if req.After = res.Next; req.After == "" {
						break
					}
				}
				if got := namesOf(got); !slices.Equal(got, names) {
					e.Fatalf("List: %q, and no error; want %q", got, names)
				}
				return nil
			})
		}},
}
