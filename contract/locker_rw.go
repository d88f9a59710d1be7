package contract

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/dlock"
)

// rwLockerCases test the two sides of an RWLocker.
var rwLockerCases = []testCase{
	{name: "readers and writers",
		rule: "any number of readers of all clients read together, and a writer is alone",
		run:  ofKind(backend.Write, readersAndWriters)},
	{name: "plain reads",
		rule: "of one RWLocker are counted, in any goroutine, as with a sync.RWMutex",
		run:  ofKind(backend.Write, plainReads)},
	{name: "a side that isn't held", rule: "can't be unlocked, and the other side isn't changed",
		run: ofKind(backend.Write, wrongSide)},
	{name: "plain calls of both sides", rule: "wait for each other, because they name no party",
		run: ofKind(backend.Write, bothSides)},
	{name: "what the store says of both sides",
		rule: "IsLocked, TTL, IsHeld and HoldCount report each side by itself",
		run:  ofKind(backend.Write, rwQueries)},
	{name: "readers of one client",
		rule: "join without a request to the store while the shared hold is young, and the last " +
			"one releases it",
		run: ofKind(backend.Write, readersJoin)},
	{name: "readers that come later",
		rule: "ask the store, so that a writer elsewhere gets its turn",
		run:  ofKind(backend.Write, readersAskAnew)},
	{name: "a waiting writer",
		rule: "gets in before readers that came later, in its own client and in others",
		run:  ofKind(backend.Write, writerFirst)},
	{name: "a waiting writer and a stream of readers",
		rule: "the writer isn't starved, although readers keep coming in several clients",
		run:  ofKind(backend.Write, writerAmongReaders)},
	{name: "a writer that gives up", rule: "no longer keeps readers out",
		run: ofKind(backend.Write, writerGivesUp)},
	{name: "a writer that died waiting",
		rule: "keeps readers out for as long as its place lasts, at most",
		run:  ofKind(backend.Write, writerDiesWaiting)},
	{name: "from reading to writing", rule: "returns ErrUpgrade at once, if the party is known",
		run: ofKind(backend.Write, upgrade)},
	{name: "a read under a write",
		rule: "belongs to the party of the write, and each is unlocked by itself",
		run:  ofKind(backend.Write, readUnderWrite)},
	{name: "a downgrade",
		rule: "keeps the read when the write is released, lets other readers in, and keeps " +
			"writers out",
		run: ofKind(backend.Write, downgrade)},
	{name: "a dead reader",
		rule: "keeps writers out for its lease at most, though others read meanwhile",
		run:  ofKind(backend.Write, deadReader)},
	{name: "a lost read", rule: "is reported to all readers that share it",
		run: ofKind(backend.Write, lostRead)},
	{name: "one reader leaves", rule: "the hold of the others is kept for as long as they read",
		run: ofKind(backend.Write, readerLeaves)},
	{name: "reads with a fixed lease", rule: "end by themselves, one by one",
		run: ofKind(backend.Write, fixedReads)},
	{name: "ForceUnlock of a side", rule: "frees that side, and its former holders are told",
		run: ofKind(backend.Write, forceSides)},
	{name: "a read without an answer", rule: "leaves nothing behind, whichever step it was",
		run: ofKind(backend.Write, readWithoutAnswer)},
	{name: "Close with readers", rule: "each is told, and nothing is released",
		run: ofKind(backend.Write, closeWithReaders)},
	{name: "readers who leave as they get in",
		rule: "leave nothing behind, and don't block other readers of the shared hold",
		run:  ofKind(backend.Write, leavingReaders)},
	{name: "a pair guarded by a read-write lock",
		rule: "no reader sees it torn, and no write is lost, by several clients, some " +
			"cancelled at random", tags: Essential | Exclusion,
		run: ofKind(backend.Write, tornPair)},
}

func readersAndWriters(l *lab) {
	p, q := l.process(), l.process()
	readers := []*dlock.Locker{
		p.as(backend.Read).Locker("a"), p.as(backend.Read).Locker("a"),
		q.as(backend.Read).Locker("a"),
	}
	w := q.Locker("a")
	for _, r := range readers {
		if !l.tryLock(r) {
			l.Fatal("a reader keeps another out")
		}
	}
	if l.tryLock(w) || l.tryLock(p.Locker("a")) {
		l.Fatal("a writer got in beside readers")
	}
	write := l.start("the writer", func() error { return w.LockContext(l.ctx) })
	for _, r := range readers {
		write.waits()
		l.unlock(r)
	}
	write.ok()
	if l.tryLock(p.Locker("a")) {
		l.Fatal("two write at once")
	}
	var reads []*call
	for _, r := range readers {
		if l.tryLock(r) {
			l.Fatal("a reader got in beside a writer")
		}
		reads = append(reads, l.start("a reader", func() error { return r.LockContext(l.ctx) }))
	}
	for _, r := range reads {
		r.waits()
	}
	l.unlock(w)
	for _, r := range reads {
		r.ok() // all three get in together
	}
	for _, r := range readers {
		l.unlock(r)
	}
	l.wantFree("a", "in the end")
	l.as(backend.Read).wantFree("a", "in the end")
}

func plainReads(l *lab) {
	rw := l.process().RWLocker("a")
	if r, w := rw.Reader(), rw.Writer(); rw.Name() != "a" || r != rw.Reader() || w != rw.Writer() ||
		r != rw.RLocker() {
		l.Error("the sides of an RWLocker aren't always the same Lockers")
	}
	const goroutines = 5
	for range goroutines {
		l.start("RLock", func() error { rw.RLock(); return nil }).ok()
	}
	write := l.start("Lock", func() error { rw.Lock(); return nil })
	for range goroutines {
		write.waits()
		l.start("RUnlock", func() error { rw.RUnlock(); return nil }).ok()
	}
	write.ok()
	l.wantPanicError("RUnlock while somebody writes", dlock.ErrNotHeld, rw.RUnlock)
	read := l.start("RLock", func() error { rw.RLock(); return nil })
	read.waits()
	rw.Unlock()
	read.ok()
	rw.RUnlock()
	pass(rw.RLocker())
	pass(rw)
	l.wantPanicError("Unlock of what isn't locked", dlock.ErrNotHeld, rw.Unlock)
	l.wantPanicError("RUnlock of what isn't locked", dlock.ErrNotHeld, rw.RUnlock)
	l.as(backend.Read).wantFree("a", "in the end")
}

func wrongSide(l *lab) {
	rw := l.process().RWLocker("a")
	l.lock(rw.Reader())
	l.wantError(rw.Writer().UnlockContext(l.ctx),
		"an unlock of the writing side while somebody reads", dlock.ErrNotHeld)
	l.as(backend.Read).wantHeld("a", "after that")
	l.unlock(rw.Reader())
	l.lock(rw.Writer())
	err := rw.Reader().UnlockContext(l.ctx)
	l.wantError(err, "an unlock of the reading side while somebody writes", dlock.ErrNotHeld)
	l.not(err, "an unlock of the reading side while somebody writes", dlock.ErrLost)
	l.wantHeld("a", "after that")
	l.unlock(rw.Writer())
	for _, k := range []backend.Kind{backend.Read, backend.Write} {
		l.as(k).wantFree("a", "in the end")
	}
}

func bothSides(l *lab) {
	rw := l.process().RWLocker("a")
	l.lock(rw.Reader())
	if l.tryLock(rw.Writer()) {
		l.Fatal("a plain call writes while another reads")
	}
	l.wantError(rw.Writer().LockContext(l.ctx, dlock.Wait(0)),
		"a plain Lock while a plain RLock has it", dlock.ErrNotAcquired)
	l.unlock(rw.Reader())
	l.lock(rw.Writer())
	if l.tryLock(rw.Reader()) {
		l.Fatal("a plain call reads while another writes")
	}
	l.unlock(rw.Writer())
}

func rwQueries(l *lab) {
	p, q := l.process(), l.process()
	ctx := l.ctxOf()
	rw, other := p.RWLocker("a"), q.RWLocker("a")
	expect := func(lk *dlock.Locker, ctx context.Context, when string, locked bool, count int) {
		l.Helper()
		is, err := lk.IsLocked(ctx)
		l.noError(err, "IsLocked")
		held, err := lk.IsHeld(ctx)
		l.noError(err, "IsHeld")
		n, err := lk.HoldCount(ctx)
		l.noError(err, "HoldCount")
		ttl, err := lk.TTL(ctx)
		l.noError(err, "TTL")
		if is != locked || held != (count > 0) || n != count || (ttl > 0) != locked {
			l.Errorf("%s: locked %v, held %v, %d times, for %v; want %v, %d times", when, is, held,
				n, ttl, locked, count)
		}
	}
	expect(rw.Reader(), ctx, "the reading side of what is free", false, 0)
	expect(rw.Writer(), ctx, "the writing side of what is free", false, 0)
	l.noError(rw.Reader().LockContext(ctx), "RLock")
	l.noError(rw.Reader().LockContext(ctx), "a second RLock")
	expect(rw.Reader(), ctx, "the reading side while it is held", true, 2)
	expect(rw.Writer(), ctx, "the writing side while somebody reads", false, 0)
	expect(other.Reader(), l.ctx, "the reading side, of another", true, 0)
	l.noError(rw.Reader().UnlockContext(ctx), "RUnlock")
	expect(rw.Reader(), ctx, "the reading side after one unlock", true, 1)
	l.noError(rw.Reader().UnlockContext(ctx), "RUnlock")
	l.noError(rw.Writer().LockContext(ctx), "Lock")
	expect(rw.Writer(), ctx, "the writing side while it is held", true, 1)
	expect(rw.Reader(), ctx, "the reading side while somebody writes", false, 0)
	expect(other.Writer(), l.ctx, "the writing side, of another", true, 0)
	l.noError(rw.Reader().LockContext(ctx), "a read under the write")
	expect(rw.Writer(), ctx, "the writing side of a party on both", true, 1)
	expect(rw.Reader(), ctx, "the reading side of a party on both", true, 1)
	l.noError(rw.Reader().UnlockContext(ctx), "RUnlock")
	l.noError(rw.Writer().UnlockContext(ctx), "Unlock")
	expect(rw.Writer(), ctx, "the writing side in the end", false, 0)
	expect(rw.Reader(), ctx, "the reading side in the end", false, 0)
}

func readersJoin(l *lab) {
	p, q := l.process(dlock.WithHandover(time.Hour)), l.process()
	rw := p.RWLocker("a")
	ctx := l.ctxOf()
	rw.RLock()
	rw.RLock()
	l.lock(p.RWLocker("a").Reader())
	l.noError(rw.Reader().LockContext(ctx), "RLock of an owner")
	h := l.as(backend.Read).acquire(rw.Reader())
	if got := p.kinds(); len(got) != 1 || got[0] != acquireStep {
		l.Errorf("five readers of one client sent %v, want one acquire", got)
	}
	if n := l.as(backend.Read).look("a", p.owner("a")).Count; n != 1 {
		l.Errorf("the store counts %d, want 1", n)
	}
	write := l.start("a writer of another client", func() error {
		lk := q.Locker("a")
		return errors.Join(lk.LockContext(l.ctx), lk.UnlockContext(l.ctx))
	})
	for _, unlock := range []func(){
		rw.RUnlock,
		func() { l.noError(rw.Reader().UnlockContext(ctx), "RUnlock of the owner") },
		func() { l.release(h) },
		rw.RUnlock,
	} {
		write.waits()
		unlock()
	}
	// One read is left. Its Locker no longer exists, so nothing can end the read with an unlock.
	write.waits()
	if n := p.count(which{kind: releaseStep}); n != 0 {
		l.Errorf("%d releases while somebody of the client reads", n)
	}
	l.as(backend.Read).vanish("a")
	write.ok()
}

func readersAskAnew(l *lab) {
	p := l.process(dlock.WithHandover(0))
	ctx := l.ctxOf()
	rw := p.RWLocker("a")
	l.lock(rw.Reader())
	l.noError(rw.Reader().LockContext(ctx), "RLock of an owner")
	if n := p.count(which{kind: acquireStep}); n != 2 {
		l.Errorf("two readers that may not join sent %d acquisitions", n)
	}
	l.noError(rw.Reader().LockContext(ctx), "a re-entry")
	if n := p.count(which{kind: acquireStep}) + p.count(which{kind: reentryStep}); n != 2 {
		l.Errorf("with a re-entry they sent %d acquisitions", n)
	}
	l.unlock(rw.Reader())
	if l.tryLock(p.Locker("a")) {
		l.Fatal("a writer got in beside a reader of the same client")
	}
	l.noError(rw.Reader().UnlockContext(ctx), "RUnlock")
	l.noError(rw.Reader().UnlockContext(ctx), "RUnlock")
	l.as(backend.Read).wantFree("a", "in the end")
}

// keptOut waits until new readers are kept out because a writer is waiting.
func (l *lab) keptOut(r *dlock.Locker) {
	l.Helper()
	l.eventually("a new reader is kept out", func() bool {
		in := l.tryLock(r)
		if in {
			l.unlock(r)
		}
		return !in
	})
}

func writerFirst(l *lab) {
	p, q, r := l.process(), l.process(), l.process()
	reader := p.as(backend.Read).Locker("a")
	l.lock(reader)
	w := q.Locker("a")
	write := l.start("the writer", func() error { return w.LockContext(l.ctx) })
	var late []*dlock.Locker
	for _, c := range []*process{q, r, p} {
		lk := c.as(backend.Read).Locker("a")
		if c == p {
			// during the hand-over time, a new reader can still join the other readers of its
			// client
			l.sleep(2 * dlock.DefaultHandover)
		}
		l.keptOut(lk)
		late = append(late, lk)
	}
	var reads []*call
	var written, early atomic.Bool
	for _, lk := range late {
		reads = append(reads, l.start("a late reader", func() error {
			if err := lk.LockContext(l.ctx); err != nil {
				return err
			}
			if !written.Load() {
				early.Store(true)
			}
			return lk.UnlockContext(l.ctx)
		}))
	}
	write.waits()
	l.unlock(reader)
	write.ok()
	for _, c := range reads {
		if !early.Load() {
			c.waits()
		}
	}
	written.Store(true)
	l.unlock(w)
	for _, c := range reads {
		c.ok()
	}
	// In real time the store may forget the writer before the writer's next request.
	if l.h.Virtual && early.Load() {
		l.Error("a late reader got in before the writer")
	}
	l.eventually("nobody reads", func() bool { return !l.as(backend.Read).look("a", "").Held })
}

func writerAmongReaders(l *lab) {
	const clients, writes = 3, 5
	var stop atomic.Bool
	var reads atomic.Int64
	var readers []*call
	for range clients {
		p := l.process()
		for range 2 {
			lk := p.as(backend.Read).Locker("a")
			readers = append(readers, l.start("a reader", func() error {
				for !stop.Load() {
					if err := lk.LockContext(l.ctx); err != nil {
						return err
					}
					reads.Add(1)
					time.Sleep(rand.N(8 * time.Millisecond)) // so that there is always a reader
					if err := lk.UnlockContext(l.ctx); err != nil {
						return err
					}
				}
				return nil
			}))
		}
	}
	l.eventually("they read", func() bool { return reads.Load() > 10 })
	w := l.process().Locker("a")
	for range writes {
		begin := time.Now()
		l.start("a writer among readers", func() error { return w.LockContext(l.ctx) }).ok()
		l.tookBetween(begin, 0, time.Second, "the wait of a writer among readers")
		l.unlock(w)
		before := reads.Load()
		l.eventually("they read again", func() bool { return reads.Load() > before })
	}
	stop.Store(true)
	for _, c := range readers {
		c.ok()
	}
}

func writerGivesUp(l *lab) {
	p, q, r := l.process(), l.process(), l.process()
	reader, late := p.as(backend.Read).Locker("a"), r.as(backend.Read).Locker("a")
	for what, giveUp := range map[string]func() (wait *call, end func()){
		"its context is cancelled": func() (*call, func()) {
			ctx, cancel := context.WithCancel(l.ctx)
			return l.start("the writer", func() error {
				return q.Locker("a").LockContext(ctx)
			}), cancel
		},
		"it has waited for long enough": func() (*call, func()) {
			wait := 2 * time.Second
			if l.h.Virtual {
				wait = 100 * time.Millisecond
			}
			return l.start("the writer", func() error {
				return q.Locker("a").LockContext(l.ctx, dlock.Wait(wait))
			}), func() {}
		},
	} {
		l.lock(reader)
		wait, end := giveUp()
		if what == "its context is cancelled" {
			l.keptOut(late)
		} else {
			l.settle()
			l.sleep(5 * time.Millisecond) // make the reader arrive later than the writer
		}
		read := l.start("a late reader", func() error { return late.LockContext(l.ctx) })
		if l.h.Virtual {
			// in real time the store may forget the writer before the writer's next request
			read.waits()
		}
		end()
		l.wantError(wait.result(), "a writer of whom "+what)
		begin := time.Now()
		read.ok() // although the other reader hasn't unlocked
		l.tookBetween(begin, 0, 20*time.Millisecond, "letting a reader in after a writer gave up")
		l.unlock(late)
		l.unlock(reader)
	}
}

func writerDiesWaiting(l *lab) {
	r := l.process()
	_, err := l.other.Acquire(l.ctx, backend.AcquireRequest{
		Kind: backend.Read, Name: "a", Owner: "other:1", Lease: l.longLease(),
	})
	l.noError(err, "Acquire")
	place := l.legal(300 * time.Millisecond)
	req := backend.AcquireRequest{
		Kind: backend.Write, Name: "a", Owner: "dead:1", Lease: l.longLease(), Waited: time.Hour,
		Place: place,
	}
	res, err := l.other.Acquire(l.ctx, req)
	l.noError(err, "Acquire")
	if res.Acquired {
		l.Fatal("a writer got in beside a reader")
	}
	begin := time.Now()
	late := r.as(backend.Read).Locker("a")
	l.lock(late)
	l.tookBetween(begin, 0, place+time.Second, "the wait of a reader for a dead writer")
	l.unlock(late)
}

func upgrade(l *lab) {
	p := l.process()
	rw := p.RWLocker("a")
	ctx := l.ctxOf()
	second := func(_ any, err error) error { return err }
	refusals := func(ctx context.Context, who string) {
		l.Helper()
		for what, err := range map[string]error{
			"LockContext":       rw.Writer().LockContext(ctx),
			"TryLock":           second(rw.Writer().TryLock(ctx)),
			"TryLock with Wait": second(rw.Writer().TryLock(ctx, dlock.Wait(time.Hour))),
			"Acquire":           second(rw.Writer().Acquire(ctx)),
			"Do": rw.Writer().Do(ctx, func(context.Context) error {
				return errors.New("fn was called")
			}),
			"another RWLocker's Do": p.RWLocker("a").Writer().Do(ctx, func(context.Context) error {
				return errors.New("fn was called")
			}),
		} {
			l.wantError(err, what+" of the writing side by "+who, dlock.ErrUpgrade)
		}
	}
	l.noError(rw.Reader().LockContext(ctx), "RLock")
	before := p.count(which{})
	refusals(ctx, "an owner that reads")
	if n := p.count(which{}) - before; n != 0 {
		l.Errorf("to refuse to write while reading took %d steps", n)
	}
	if held, err := rw.Reader().IsHeld(ctx); err != nil || !held {
		l.Errorf("after that the read is held: %v, %v", held, err)
	}
	l.noError(rw.Reader().UnlockContext(ctx), "RUnlock")
	h := l.as(backend.Read).acquire(rw.Reader())
	refusals(h.Context(), "a Hold that reads")
	l.release(h)
	l.noError(rw.Writer().LockContext(ctx), "Lock after the read was released")
	l.noError(rw.Writer().UnlockContext(ctx), "Unlock")
	l.wantFree("a", "in the end")
}

func readUnderWrite(l *lab) {
	p, q := l.process(), l.process()
	rw := p.RWLocker("a")
	ctx, other := l.ctxOf(), l.ctxOf()
	l.noError(rw.Writer().LockContext(ctx), "Lock")
	for range 2 {
		l.noError(rw.Reader().LockContext(ctx), "a read under the write")
		l.noError(rw.Reader().LockContext(ctx), "a second one")
		if ok, err := rw.Reader().TryLock(other); ok || err != nil {
			l.Errorf("TryLock of the reading side by another owner: %v, %v", ok, err)
		}
		if l.tryLock(rw.Reader()) || l.tryLock(q.RWLocker("a").Reader()) {
			l.Fatal("another reads beside a writer that reads, too")
		}
		l.noError(rw.Writer().LockContext(ctx), "a re-entry of the write")
		l.noError(rw.Reader().UnlockContext(ctx), "RUnlock")
		l.noError(rw.Writer().UnlockContext(ctx), "Unlock of the re-entry")
		l.noError(rw.Reader().UnlockContext(ctx), "RUnlock")
		l.wantError(rw.Reader().UnlockContext(ctx), "one RUnlock too many", dlock.ErrNotHeld)
		l.wantHeld("a", "after the reads under the write")
	}
	l.noError(rw.Writer().UnlockContext(ctx), "Unlock")
	l.as(backend.Read).wantFree("a", "in the end")
	l.wantFree("a", "in the end")

	// The same must work with the contexts of Do.
	l.noError(rw.Writer().Do(l.ctx, func(ctx context.Context) error {
		return rw.Reader().Do(ctx, func(ctx context.Context) error {
			return rw.Writer().Do(ctx, func(ctx context.Context) error {
				l.wantHeld("a", "within three Do")
				return nil
			})
		})
	}), "Do of the writing side, of the reading, and of the writing again")
	l.as(backend.Read).wantFree("a", "after that")
}

func downgrade(l *lab) {
	p, q := l.process(), l.process()
	rw, other := p.RWLocker("a"), q.RWLocker("a")
	ctx := l.ctxOf()
	l.noError(rw.Writer().LockContext(ctx), "Lock")
	l.noError(rw.Reader().LockContext(ctx), "RLock")
	wait := l.start("a reader of another client", func() error {
		return other.Reader().LockContext(l.ctx)
	})
	same := l.start("a reader of the same client", func() error {
		return rw.Reader().LockContext(l.ctx)
	})
	wait.waits()
	same.waits()
	begin := time.Now()
	l.noError(rw.Writer().UnlockContext(ctx), "Unlock")
	wait.ok()
	same.ok()
	l.tookBetween(begin, 0, 20*time.Millisecond, "letting readers in after a downgrade")
	if l.tryLock(other.Writer()) || l.tryLock(rw.Writer()) {
		l.Fatal("a writer got in beside a reader that goes on")
	}
	l.wantError(rw.Writer().LockContext(ctx), "Lock by a reader that goes on", dlock.ErrUpgrade)
	l.unlock(other.Reader())
	l.unlock(rw.Reader())
	if isOver(rw.Reader().Lost(ctx)) {
		l.Error("the read was lost in a downgrade")
	}
	if l.tryLock(other.Writer()) {
		l.Fatal("a writer got in beside the last reader")
	}
	l.noError(rw.Reader().UnlockContext(ctx), "RUnlock")
	l.lock(other.Writer())
	l.unlock(other.Writer())
	l.as(backend.Read).wantFree("a", "in the end")
}

func deadReader(l *lab) {
	p, q := l.process(), l.process()
	short := l.legal(l.shortLease() * 3)
	res, err := l.other.Acquire(l.ctx, backend.AcquireRequest{
		Kind: backend.Read, Name: "a", Owner: "dead:1", Lease: short,
	})
	l.noError(err, "Acquire")
	if !res.Acquired {
		l.Fatal("a reader was refused")
	}
	begin := time.Now()
	reader := p.as(backend.Read).Locker("a")
	l.lock(reader)
	w := q.Locker("a")
	write := l.start("the writer", func() error { return w.LockContext(l.ctx) })
	write.waits()
	l.sleep(time.Until(begin.Add(short + l.leaseStep())))
	write.waits() // the living reader keeps the writer out
	begin = time.Now()
	l.unlock(reader)
	write.ok()
	l.tookBetween(begin, 0, 20*time.Millisecond, "letting a writer in after the last reader alive")
	l.unlock(w)

	// If the only reader is dead, the lock is free when that reader's lease expires.
	_, err = l.other.Acquire(l.ctx, backend.AcquireRequest{
		Kind: backend.Read, Name: "b", Owner: "dead:1", Lease: l.shortLease(),
	})
	l.noError(err, "Acquire")
	l.lock(q.Locker("b"))
}

func lostRead(l *lab) {
	p := l.process(dlock.WithLease(l.brisk()), dlock.WithHandover(time.Hour))
	rw, ctx := p.RWLocker("a"), l.ctxOf()
	l.noError(rw.Reader().LockContext(ctx), "RLock of an owner")
	l.noError(rw.Reader().LockContext(ctx), "a re-entry")
	rw.RLock()
	h := l.as(backend.Read).acquire(rw.Reader())
	if n := p.count(which{kind: acquireStep}); n != 1 {
		l.Fatalf("three readers of one client sent %d acquisitions; want one that they share", n)
	}
	of, plain := rw.Reader().Lost(ctx), rw.Reader().Lost(l.ctx)
	l.as(backend.Read).vanish("a")
	for what, lost := range map[string]<-chan struct{}{
		"the owner":       of,
		"the plain calls": plain,
		"the Hold":        h.Lost(),
	} {
		l.eventuallyOver(what+" is told", lost)
	}
	l.eventuallyOver("the context of the Hold ends", h.Context().Done())
	l.wantError(rw.Reader().UnlockContext(ctx), "RUnlock of the owner", dlock.ErrLost)
	l.wantError(rw.Reader().UnlockContext(ctx), "its second RUnlock", dlock.ErrLost)
	l.wantError(rw.Reader().UnlockContext(l.ctx), "RUnlock", dlock.ErrLost)
	l.wantError(h.Release(l.ctx), "Release", dlock.ErrLost)
	l.lock(rw.Writer())
	l.unlock(rw.Writer())
	pass(rw.RLocker())
}

func readerLeaves(l *lab) {
	lease := l.brisk()
	p, q := l.process(dlock.WithLease(lease), dlock.WithHandover(time.Hour)), l.process()
	rw, ctx := p.RWLocker("a"), l.ctxOf()
	rw.RLock()
	l.noError(rw.Reader().LockContext(ctx), "RLock of an owner")
	h := l.as(backend.Read).acquire(rw.Reader())
	lost := rw.Reader().Lost(ctx)
	rw.RUnlock() // this reader's request acquired the hold that all three share
	l.release(h)
	l.sleep(lease * 5 / 4)
	if isOver(lost) {
		l.Fatal("a read was lost after others that shared it had left")
	}
	if l.tryLock(q.Locker("a")) {
		l.Fatal("a writer got in beside a reader that others have left")
	}
	l.noError(rw.Reader().UnlockContext(ctx), "RUnlock")
	l.as(backend.Read).wantFree("a", "in the end")
}

func fixedReads(l *lab) {
	p, q := l.process(), l.process()
	rw := p.RWLocker("a")
	short, long := l.legal(2*l.shortLease()), l.longLease()
	one, err := rw.Reader().Acquire(l.ctx, dlock.FixedLease(short))
	l.noError(err, "Acquire")
	other, err := rw.Reader().Acquire(l.ctx, dlock.FixedLease(long))
	l.noError(err, "Acquire")
	l.eventuallyOver("the short read is lost", one.Lost())
	if isOver(other.Lost()) {
		l.Error("a read with a long lease ended with one that had a short one")
	}
	if l.tryLock(q.Locker("a")) {
		l.Fatal("a writer got in beside a reader")
	}
	l.wantError(one.Release(l.ctx), "Release of the short read", dlock.ErrLost)
	if l.tryLock(q.Locker("a")) {
		l.Fatal("a writer got in beside a reader, after another's late Release")
	}
	l.release(other)
	l.lock(q.Locker("a"))
}

func forceSides(l *lab) {
	p, q := l.process(), l.process()
	rw, other := p.RWLocker("a"), q.RWLocker("a")
	force := func(lk *dlock.Locker, want bool) {
		l.Helper()
		released, err := lk.ForceUnlock(l.ctx)
		if err != nil || released != want {
			l.Fatalf("ForceUnlock: %v, %v; want %v", released, err, want)
		}
	}
	force(rw.Reader(), false)
	force(rw.Writer(), false)
	mine, theirs := l.as(backend.Read).acquire(rw.Reader()),
		l.as(backend.Read).acquire(other.Reader())
	force(other.Writer(), false)
	force(other.Reader(), true)
	if !isOver(theirs.Lost()) {
		l.Error("the client that forced the readers out doesn't tell its own")
	}
	l.wantError(theirs.Release(l.ctx), "Release by its own client", dlock.ErrLost)
	l.lock(other.Writer())
	l.wantError(mine.Release(l.ctx), "Release by another client", dlock.ErrLost)
	force(rw.Reader(), false)
	l.wantHeld("a", "after that")
	force(rw.Writer(), true)
	l.wantError(other.Writer().UnlockContext(l.ctx), "Unlock of the former holder", dlock.ErrLost)

	// If the write lock is force-released, the owner's reads end, too.
	ctx := l.ctxOf()
	l.noError(rw.Writer().LockContext(ctx), "Lock")
	l.noError(rw.Reader().LockContext(ctx), "RLock")
	force(rw.Writer(), true)
	l.as(backend.Read).wantFree("a", "after a forced write")
	l.lock(other.Writer())
	rw.Reader().UnlockContext(ctx)
	rw.Writer().UnlockContext(ctx)
	l.wantHeld("a", "after the unlocks of the former holders")
	l.unlock(other.Writer())
}

func readWithoutAnswer(l *lab) {
	p, q := l.process(), l.process()
	reads := l.as(backend.Read)
	for _, blow := range []struct {
		what string
		do   fault
	}{{"request lost", requestLost}, {"reply lost", replyLost}, {"not sent", notSent}} {
		name := blow.what
		lk := p.as(backend.Read).Locker(name)
		p.next(1, which{kind: acquireStep, name: name}, blow.do)
		l.lock(lk) // the client asks again
		if l.tryLock(q.Locker(name)) {
			l.Fatalf("%s: a writer got in beside a reader", name)
		}
		p.next(1, which{kind: releaseStep, name: name}, blow.do)
		l.unlock(lk)
		l.eventually(name+": nobody reads", func() bool { return !reads.look(name, "").Held })
		r := p.on(which{kind: acquireStep, name: name}, blow.do)
		_, err := lk.TryLock(l.ctx)
		l.wantError(err, name+": TryLock", errFault)
		r.off()
		l.eventually(name+": nobody reads", func() bool { return !reads.look(name, "").Held })
		l.lock(q.Locker(name))
	}
}

func closeWithReaders(l *lab) {
	p := l.process(dlock.WithHandover(time.Hour))
	rw, ctx := p.RWLocker("a"), l.ctxOf()
	rw.RLock()
	l.noError(rw.Reader().LockContext(ctx), "RLock")
	h := l.as(backend.Read).acquire(rw.Reader())
	wait := l.start("a writer", func() error { return rw.Writer().LockContext(l.ctx) })
	wait.waits()
	lost := []<-chan struct{}{rw.Reader().Lost(l.ctx), rw.Reader().Lost(ctx), h.Lost()}
	l.noError(p.Client.Close(), "Close")
	l.wantError(wait.result(), "a writer whose client was closed", dlock.ErrClosed)
	for _, c := range lost {
		if !isOver(c) {
			l.Error("Lost is open after Close")
		}
	}
	l.as(backend.Read).wantHeld("a", "after Close")
	l.release(h)
	l.noError(rw.Reader().UnlockContext(ctx), "RUnlock after Close")
	over, cancel := context.WithCancel(l.ctx)
	cancel()
	l.noError(rw.Reader().UnlockContext(over), "RUnlock after Close, with a context that is over")
	l.eventually("nobody reads", func() bool { return !l.as(backend.Read).look("a", "").Held })
}

// leavingReaders cancels most of the waiting readers at the moment when their client gets the lock.
// The lab also checks that the Trace reports the end of their shared hold.
func leavingReaders(l *lab) {
	rounds := 200
	if !l.h.Virtual {
		rounds = 20
	}
	p := l.process()
	rw := p.RWLocker("a")
	for range rounds {
		l.as(backend.Read).take("a", "other:1")
		ctx, cancel := context.WithCancel(l.ctx)
		var calls []*call
		for i := range 4 {
			ctx := ctx
			if i == 0 {
				ctx = l.ctx
			}
			calls = append(calls, l.start("a reader", func() error {
				if err := rw.Reader().LockContext(ctx); err != nil {
					if !errors.Is(err, context.Canceled) {
						return err
					}
					return nil
				}
				return rw.Reader().UnlockContext(l.ctx)
			}))
		}
		l.settle()
		r := p.next(1, which{kind: acquireStep}, after(cancel))
		l.noError(l.as(backend.Read).give("a", "other:1"), "the writer's release")
		for _, c := range calls {
			c.ok()
		}
		cancel()
		r.off()
		l.as(backend.Read).eventuallyFree("a")
	}
}

func tornPair(l *lab) {
	const users, rounds = 4, 10
	clients := []*process{l.process(), l.process(), l.process()}
	var guarded pair
	var writes atomic.Int64
	var calls []*call
	for c, p := range clients {
		rw := p.RWLocker("a")
		for u := range users {
			who := fmt.Sprintf("client %d, user %d", c, u)
			patient := u < 2
			calls = append(calls, l.start(who, func() error {
				for round := range rounds {
					ctx, cancel := context.WithCancel(l.ctx)
					if !patient {
						cancel()
						ctx, cancel = context.WithTimeout(l.ctx, rand.N(20*time.Millisecond))
					}
					lk, work := rw.Reader(), guarded.read
					if (u+round)%3 == 0 {
						lk, work = rw.Writer(), func() error {
							guarded.write()
							writes.Add(1)
							return nil
						}
					}
					err := lk.LockContext(ctx)
					cancel()
					switch {
					case err == nil:
						if err := errors.Join(work(), lk.UnlockContext(l.ctx)); err != nil {
							return err
						}
					case patient || !errors.Is(err, context.DeadlineExceeded):
						return err
					}
				}
				return nil
			}))
		}
	}
	for _, c := range calls {
		c.ok()
	}
	if n := int(writes.Load()); guarded.x != n || guarded.y != n {
		l.Errorf("%d writes, and the pair is %d, %d", n, guarded.x, guarded.y)
	}
	for _, k := range []backend.Kind{backend.Read, backend.Write} {
		l.as(k).eventuallyFree("a")
	}
}
