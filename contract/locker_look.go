package contract

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/dlock"
)

// holderCases test calls that return the holders of a lock.
var holderCases = []testCase{
	{name: "the holder of a lock",
		rule: "is reported with the id of its Hold, also after a re-entry, after a hand-over, " +
			"and by another client",
		tags: differs | forReaders | readersDiffer,
		run:  locker(holderOfLock)},
	{name: "the locks of a store",
		rule: "are listed by the prefixes of their names, with the same content as by Inspect",
		tags: differs | forReaders, run: locker(locksOfStore)},
}

// sideCases test the reports about locks that several parties can hold at once.
var sideCases = []testCase{
	{name: "the holders of a read-write lock",
		rule: "are listed by both sides, and readers that share a hold count as one",
		run:  ofKind(backend.Read, holdersOfSides)},
	{name: "the holders of permits",
		rule: "are listed with their numbers, and ForceRelease takes all permits away",
		run:  ofKind(backend.Permits, holdersOfPermits)},
	{name: "a loss of permits has a reason",
		rule: "and the context, the Hold, its release and a Trace report the same one",
		tags: ofClient,
		run:  ofKind(backend.Permits, lossReasons)},
}

// reasonCases test the reported reasons for losses.
var reasonCases = []testCase{
	{name: "a loss has a reason",
		rule: "and the context, the Hold, its release and a Trace report the same one",
		tags: forReaders, run: locker(lossReasons)},
}

// needInspector skips the case for stores that can't report holders.
func (l *lab) needInspector() {
	l.Helper()
	l.skipWithout(backend.CapabilitiesOf(l.other).Inspector != nil, "backend.Inspector")
}

// holder calls Holder, and fails the test on an error.
func (l *lab) holder(lk *dlock.Locker) dlock.Holder {
	l.Helper()
	h, err := lk.Holder(l.ctx)
	l.noError(err, "Holder")
	return h
}

// holders calls Holders, fails the test on an error, and sorts the holders by id.
func (l *lab) holders(of interface {
	Holders(context.Context) ([]dlock.Holder, error)
}) []dlock.Holder {
	l.Helper()
	all, err := of.Holders(l.ctx)
	l.noError(err, "Holders")
	slices.SortFunc(all, func(a, b dlock.Holder) int { return cmp.Compare(a.ID, b.ID) })
	return all
}

// inspect calls Inspect, and fails the test on an error.
func (l *lab) inspect(p *process, name string) dlock.LockInfo {
	l.Helper()
	info, err := p.Inspect(l.ctx, name)
	l.noError(err, "Inspect")
	if info.Name != name || info.More != 0 {
		l.Fatalf("Inspect of %q: %+v", name, info)
	}
	return info
}

// wantHolder fails the test unless h is the only holder of its lock, with the given count,
// according to each of the askers and to h's own process (has).
func (l *lab) wantHolder(has *process, h *dlock.Hold, count int, when string, askers ...*process) {
	l.Helper()
	for _, p := range append(askers, has) {
		lk := p.Locker(h.Name())
		got := l.holder(lk)
		if got.ID != h.HolderID() || got.Client != has.ID() || got.Kind != seenAs(l.kind) ||
			got.Count != count || got.Remaining <= 0 || got.Remaining > l.longLease() {
			l.Fatalf("%s: Holder is %+v; want %q of %q, %v, count %d", when, got, h.HolderID(),
				has.ID(), seenAs(l.kind), count)
		}
		if all := l.holders(lk); len(all) != 1 || !alike(all[0], got) {
			l.Fatalf("%s: Holders are %+v, and Holder is %+v", when, all, got)
		}
		if info := l.inspect(p, h.Name()); len(info.Holders) != 1 || !alike(info.Holders[0], got) {
			l.Fatalf("%s: Inspect says %+v, and Holder %+v", when, info, got)
		}
	}
}

// alike reports whether two reports, possibly made at different times, describe the same holder.
func alike(a, b dlock.Holder) bool {
	a.Remaining, b.Remaining = 0, 0
	return a == b
}

func holderOfLock(l *lab) {
	l.needInspector()
	p, q := l.process(), l.process()
	lk := p.Locker("a")
	for _, asks := range []*process{p, q} {
		if h := l.holder(asks.Locker("a")); h != (dlock.Holder{}) {
			l.Fatalf("the holder of a free lock is %+v", h)
		}
		if all := l.holders(asks.Locker("a")); len(all) != 0 {
			l.Fatalf("the holders of a free lock are %+v", all)
		}
		if info := l.inspect(asks, "a"); len(info.Holders) != 0 {
			l.Fatalf("Inspect of a free lock: %+v", info)
		}
	}
	h := l.acquire(lk)
	l.wantHolder(p, h, 1, "once acquired", q)
	inner, err := lk.Acquire(h.Context())
	l.noError(err, "the re-entry")
	l.wantHolder(p, h, l.look("a", h.HolderID()).Count, "re-entered", q)
	l.release(inner)
	l.wantHolder(p, h, 1, "after the re-entry", q)

	var next *dlock.Hold
	wait := l.start("a second Acquire", func() (err error) {
		next, err = lk.Acquire(l.ctx)
		return err
	})
	if l.kind != backend.Read {
		wait.waits()
	}
	l.release(h)
	wait.ok()
	l.wantHolder(p, next, 1, "after the next of the same client got it", q)
	l.release(next)
	h = l.acquire(q.Locker("a"))
	l.wantHolder(q, h, 1, "of another client", p)
	l.release(h)
	l.eventually("nobody has it", func() bool { return l.holder(lk) == dlock.Holder{} })

	_, err = lk.Holder(ended())
	l.wantError(err, "Holder with a context that is over", context.Canceled)
	_, err = p.Inspect(l.ctx, "")
	l.wantError(err, "Inspect of an empty name")
}

// ended returns a context that is already canceled.
func ended() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}

func locksOfStore(l *lab) {
	l.needInspector()
	l.skipWithout(backend.CapabilitiesOf(l.other).Lister != nil, "backend.Lister")
	pages := newFaults(l.store.Backend())
	pages.page = 2
	p, q := l.processOn(pages), l.process()
	holds := make(map[string]*dlock.Hold)
	for i, name := range []string{"jobs/1", "jobs/2", "jobs*", "other", "jobs/3"} {
		holds[name] = l.acquire([]*process{p, q}[i%2].Locker(name))
	}
	listed := func(prefix string) (names []string) {
		l.Helper()
		for info, err := range p.Locks(l.ctx, prefix) {
			l.noError(err, "Locks")
			h := holds[info.Name]
			if h == nil || len(info.Holders) != 1 || info.Holders[0].ID != h.HolderID() {
				l.Fatalf("Locks(%q): %+v; want what is held, by %q", prefix, info, h.HolderID())
			}
			names = append(names, info.Name)
		}
		slices.Sort(names)
		return slices.Compact(names)
	}
	for prefix, want := range map[string]string{
		"jobs/": "jobs/1 jobs/2 jobs/3",
		"jobs*": "jobs*",
		"jobs":  "jobs* jobs/1 jobs/2 jobs/3",
		"":      "jobs* jobs/1 jobs/2 jobs/3 other",
		"none":  "",
	} {
		if got := strings.Join(listed(prefix), " "); got != want {
			l.Errorf("Locks(%q) are %q; want %q", prefix, got, want)
		}
	}
	for range p.Locks(l.ctx, "") { // the iterator must stop at a break
		break
	}
	l.release(holds["jobs/2"])
	l.eventually("released locks are no longer listed", func() bool {
		return !slices.Contains(listed("jobs/"), "jobs/2")
	})
	for _, err := range p.Locks(ended(), "") {
		l.wantError(err, "Locks with a context that is over", context.Canceled)
	}
}

func holdersOfSides(l *lab) {
	l.env.need(backend.Read, backend.Write)
	l.needInspector()
	p, q := l.process(), l.process()
	rw, theirs := p.RWLocker("a"), q.RWLocker("a")
	sides := func(when string, readers []*dlock.Hold, writer *dlock.Hold) {
		l.Helper()
		var want []string
		for _, h := range readers {
			want = append(want, h.HolderID())
		}
		slices.Sort(want)
		want = slices.Compact(want)
		var got []string
		for _, h := range l.holders(rw.Reader()) {
			if h.Kind != backend.Read || h.Count != 1 {
				l.Fatalf("%s: a reader is %+v", when, h)
			}
			got = append(got, h.ID)
		}
		if !slices.Equal(got, want) {
			l.Fatalf("%s: %q read; want %q", when, got, want)
		}
		var writes string
		if writer != nil {
			writes = writer.HolderID()
		}
		if h := l.holder(theirs.Writer()); h.ID != writes ||
			writer != nil && h.Kind != backend.Write {
			l.Fatalf("%s: %+v writes; want %q", when, h, writes)
		}
	}
	sides("at first", nil, nil)
	a := l.acquire(rw.Reader())
	sides("while one reads", []*dlock.Hold{a}, nil)
	joined, b := l.acquire(rw.Reader()), l.acquire(theirs.Reader())
	sides("while two clients read", []*dlock.Hold{a, joined, b}, nil)
	l.release(a)
	sides("while one of each reads", []*dlock.Hold{joined, b}, nil)
	l.release(joined)
	l.release(b)
	w := l.acquire(rw.Writer())
	sides("while one writes", nil, w)
	r, err := rw.Reader().Acquire(w.Context())
	l.noError(err, "Acquire of the reading side by the writer")
	sides("while the writer also reads", []*dlock.Hold{r}, w)
	l.release(w)
	sides("while the former writer reads", []*dlock.Hold{r}, nil)
	l.release(r)
	_, err = p.as(backend.Exclusive).Locker("a").Holder(l.ctx)
	l.noError(err, "Holder of a plain lock, of a name that nobody uses any more")
	w = l.acquire(rw.Writer())
	_, err = p.as(backend.Exclusive).Locker("a").Holder(l.ctx)
	l.wantError(err, "Holder of a plain lock where there is a read-write lock", dlock.ErrConflict)
	l.release(w)
}

func holdersOfPermits(l *lab) {
	l.needInspector()
	p, q := l.process(), l.process()
	mine, theirs := p.Semaphore("a", 5), q.Semaphore("a", 5)
	counts := func(when string, want ...int) {
		l.Helper()
		var got []int
		for _, h := range l.holders(mine) {
			if h.Kind != backend.Permits || h.Remaining <= 0 {
				l.Fatalf("%s: %+v", when, h)
			}
			got = append(got, h.Count)
		}
		slices.Sort(got)
		if !slices.Equal(got, want) {
			l.Fatalf("%s: %d permits are out; want %d", when, got, want)
		}
	}
	counts("at first")
	a, b := l.permits(mine, 2), l.permits(theirs, 1)
	counts("while two have some", 1, 2)
	if info := l.inspect(p, "a"); info.Kind != backend.Permits || info.Limit != 5 ||
		len(info.Holders) != 2 {
		l.Errorf("Inspect says %+v; want 5 permits, and their holders", info)
	}
	l.release(a)
	counts("while one has one", 1)
	released, err := mine.ForceRelease(l.ctx)
	l.noError(err, "ForceRelease")
	if !released {
		l.Error("ForceRelease found nothing")
	}
	counts("after ForceRelease")
	if released, err := mine.ForceRelease(l.ctx); err != nil || released {
		l.Errorf("a second ForceRelease: %v, %v", released, err)
	}
	l.wantError(b.Release(l.ctx), "Release of what was forced", dlock.ErrLost)
}

// A doom is a way to lose a lock.
type doom struct {
	opts    []dlock.AcquireOption
	strike  func(name string)
	reasons []dlock.LossReason // any of these may be reported
	by      string             // the owner in a LossTaken
	err     error              // wrapped by Err
}

func lossReasons(l *lab) {
	told, q := newLedger(), l.process()
	p := l.process(dlock.WithLease(l.brisk()), told.trace())
	knows := backend.CapabilitiesOf(l.other).Inspector != nil
	taken := doom{strike: func(name string) {
		l.vanish(name)
		if l.kind == backend.Permits {
			l.takePermits(name, "other:1", 1, 1, l.longLease())
		} else {
			l.take(name, "other:1")
		}
	}, reasons: []dlock.LossReason{dlock.LossTaken}, by: "other:1"}
	if !knows || l.kind == backend.Permits { // for permits, a loss doesn't name another owner
		taken.reasons, taken.by = []dlock.LossReason{dlock.LossGone}, ""
	}
	l.struck(p, told, map[string]doom{
		"forced by this client": {
			strike: func(name string) {
				if !l.forces(p, name) {
					l.Error("the client that has it can't force it")
				}
			},
			reasons: []dlock.LossReason{dlock.LossForced},
		},
		"forced by another": {
			strike:  func(name string) { l.forces(q, name) },
			reasons: []dlock.LossReason{dlock.LossGone},
		},
		"taken": taken,
		"cut off": {
			strike:  func(name string) { p.on(which{kind: renewStep, name: name}, requestLost) },
			reasons: []dlock.LossReason{dlock.LossExpired},
			err:     errFault,
		},
		"fixed": {
			opts:    []dlock.AcquireOption{dlock.FixedLease(l.shortLease())},
			strike:  func(string) {},
			reasons: []dlock.LossReason{dlock.LossLease},
		},
	})
	if l.store.Wipe != nil {
		var once sync.Once
		wiped := doom{
			strike:  func(string) { once.Do(l.store.Wipe) },
			reasons: []dlock.LossReason{dlock.LossGone},
		}
		if !l.h.Virtual { // the store may be unavailable for longer than the lease
			wiped.reasons = append(wiped.reasons, dlock.LossExpired)
		}
		l.struck(p, told, map[string]doom{"wiped": wiped})
	}
}

// forces makes a client force-release a lock, or a semaphore's permits.
func (l *lab) forces(p *process, name string) (forced bool) {
	l.Helper()
	var err error
	if l.kind == backend.Permits {
		forced, err = p.Semaphore(name, 1).ForceRelease(l.ctx)
	} else {
		forced, err = p.Locker(name).ForceUnlock(l.ctx)
	}
	l.noError(err, "to force "+name)
	return forced
}

// gets acquires a lock, or the only permit of a semaphore.
func (l *lab) gets(p *process, name string, opts ...dlock.AcquireOption) *dlock.Hold {
	l.Helper()
	if l.kind == backend.Permits {
		return l.permits(p.Semaphore(name, 1), 1, opts...)
	}
	return l.acquire(p.Locker(name), opts...)
}

// struck acquires two locks for each doom: one with Acquire and, unless the kind is Permits, one
// with a plain Locker. Then it applies the dooms, and checks how the losses are reported.
func (l *lab) struck(p *process, told *ledger, dooms map[string]doom) {
	l.Helper()
	holds, plain, began := make(map[string]*dlock.Hold), make(map[string]*dlock.Locker), time.Now()
	for name, d := range dooms {
		holds[name] = l.gets(p, name, d.opts...)
		if err := holds[name].Err(); err != nil && len(d.opts) == 0 {
			l.Errorf("%s: Err is %v, and it is held", name, err)
		}
		holds[name].Context()
		if l.kind != backend.Permits {
			plain[name] = p.Locker(name + ", plainly")
			l.lock(plain[name], d.opts...)
		}
	}
	for name, d := range dooms {
		d.strike(name)
		if lk := plain[name]; lk != nil {
			d.strike(lk.Name())
		}
	}
	for name, d := range dooms {
		l.mourn(p, told, holds[name], d, began)
		if lk := plain[name]; lk != nil {
			// A loss names the new holder only once the store has reported that holder. So
			// don't unlock before the trace has reported the loss.
			l.eventually(lk.Name()+": a Trace is told", func() bool {
				return len(told.lossesOf(lk.Name())) > 0
			})
			if !isOver(lk.Lost(l.ctx)) {
				l.Errorf("%s: it is lost, and Lost is open", lk.Name())
			}
			err := lk.UnlockContext(l.ctx)
			loss, ok := errors.AsType[*dlock.Loss](err)
			if all := told.lossesOf(lk.Name()); !ok || !slices.Contains(d.reasons, loss.Reason) ||
				len(all) != 1 || all[0] != loss {
				l.Errorf("%s: the unlock says %v, and a Trace was told of %v; want both to be "+
					"lost, %v", lk.Name(), err, all, d.reasons)
			}
		}
	}
}

// mourn checks what is reported about a hold that is lost.
func (l *lab) mourn(p *process, told *ledger, h *dlock.Hold, d doom, began time.Time) {
	l.Helper()
	name := h.Name()
	l.eventuallyOver(name+": the context ends", h.Context().Done())
	cause := context.Cause(h.Context())
	loss, ok := errors.AsType[*dlock.Loss](cause)
	if e, isError := errors.AsType[*dlock.Error](cause); !ok || !isError || e.Op != "hold" ||
		e.Name != name || !errors.Is(cause, dlock.ErrLost) {
		l.Fatalf("%s: the cause is %v (%[2]T); want an Error of the hold that wraps a Loss", name,
			cause)
	}
	if !slices.Contains(d.reasons, loss.Reason) {
		l.Errorf("%s: lost, %v: %v; want %v", name, loss.Reason, loss, d.reasons)
	}
	took := time.Since(began)
	if loss.Name != name || loss.Kind != l.kind || loss.Holder != h.HolderID() || loss.Held < 0 ||
		loss.Held > took || loss.Unconfirmed < 0 || loss.Unconfirmed > took ||
		loss.At.Before(began) || loss.At.After(time.Now()) {
		l.Errorf("%s: %+v, which isn't true of %q, %v after all began", name, *loss, h.HolderID(),
			took)
	}
	if loss.Reason == dlock.LossTaken && loss.TakenBy != d.by ||
		loss.Reason != dlock.LossTaken && loss.TakenBy != "" {
		l.Errorf("%s: lost to %q; want %q", name, loss.TakenBy, d.by)
	}
	if d.err != nil && !errors.Is(loss.Err, d.err) ||
		d.err == nil && loss.Err != nil && loss.Reason != dlock.LossExpired {
		l.Errorf("%s: the store said %v; want %v", name, loss.Err, d.err)
	}
	for what, err := range map[string]error{"Err": h.Err(), "Release": h.Release(l.ctx)} {
		if other, ok := errors.AsType[*dlock.Loss](err); !ok || other != loss {
			l.Errorf("%s: %s says %v, and the context %v", name, what, err, loss)
		}
	}
	l.eventually(name+": a Trace is told", func() bool { return len(told.lossesOf(name)) > 0 })
	if all := told.lossesOf(name); len(all) != 1 || all[0] != loss {
		l.Errorf("%s: a Trace was told of %v, and the context of %v", name, all, loss)
	}
	if !slices.ContainsFunc(p.Losses(), func(other dlock.Loss) bool { return other == *loss }) {
		l.Errorf("%s: the client remembers %v", name, p.Losses())
	}
	if h.Until().After(loss.At) && loss.Reason == dlock.LossExpired {
		l.Errorf("%s: surely held until %v, and lost at %v", name, h.Until(), loss.At)
	}
}
