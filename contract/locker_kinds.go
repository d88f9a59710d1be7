package contract

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/dlock"
)

// kindLockerCases test the differences between kinds of Lockers.
var kindLockerCases = slices.Concat(fencedLockerCases, sharedNameCases, rwLockerCases,
	tag(InLine, fairLockerCases), tag(InLine, fragileLineCases), semaphoreCases, sideCases)

// ofKind returns a case that runs a function with a lab for the given kind of lock.
func ofKind(k backend.Kind, run func(*lab)) func(*env) {
	return func(e *env) {
		if lengthens(k) {
			e.need(backend.Read, backend.Write)
		}
		e.need(k)
		e.kind = k
		locker(run)(e)
	}
}

// as returns a copy of the lab for another kind of lock.
func (l *lab) as(k backend.Kind) *lab {
	e := *l.env
	e.kind = k
	return &lab{&e, l.other}
}

// as returns the same process for another kind of lock.
func (p *process) as(k backend.Kind) *process { return &process{p.Client, p.faultyBackend, k} }

var fencedLockerCases = []testCase{
	{name: "tokens grow",
		rule: "with every acquisition of every client, also after a loss; a Do, a Hold and " +
			"dlock.Token return them",
		run: ofKind(backend.Fenced, tokensGrow)},
	{name: "the token of a re-entry", rule: "is the token of its hold",
		run: ofKind(backend.Fenced, tokenOfReentry)},
	{name: "each acquisition has its own token", rule: "also inside a client with many waiters",
		tags: Essential,
		run:  ofKind(backend.Fenced, tokenEach)},
	{name: "the innermost token",
		rule: "is what dlock.Token returns; locks without a token don't count",
		run:  ofKind(backend.Fenced, innermostToken)},
	{name: "no token", rule: "other kinds of lock have none",
		run: locker(noToken)},
	{name: "a plain lock and a fenced one",
		rule: "of the same name exclude each other; a party that holds one of them gets an error " +
			"at once",
		run: ofKind(backend.Fenced, fencedAndPlain)},
}

func tokensGrow(l *lab) {
	p, q := l.process(), l.process()
	var last uint64
	grows := func(token uint64, ok bool) {
		l.Helper()
		if !ok || token <= last {
			l.Errorf("the token %d, %v, after %d; want a larger one", token, ok, last)
		}
		last = token
	}
	for _, lk := range []*dlock.Locker{p.Locker("a"), q.Locker("a"), p.Locker("a")} {
		h := l.acquire(lk)
		grows(h.Token())
		if token, ok := dlock.Token(h.Context()); !ok || token != last {
			l.Errorf("dlock.Token is %d, %v, and that of the Hold %d", token, ok, last)
		}
		l.release(h)
		if token, ok := h.Token(); !ok || token != last {
			l.Errorf("after Release the token of a Hold is %d, %v; it was %d", token, ok, last)
		}
		l.noError(lk.Do(l.ctx, func(ctx context.Context) error {
			grows(dlock.Token(ctx))
			return nil
		}), "Do")
		lost := l.acquire(lk, dlock.FixedLease(l.shortLease()))
		grows(lost.Token())
		l.eventuallyOver("the Hold is lost", lost.Lost())
		l.eventuallyFree("a")
		forced := l.acquire(lk)
		grows(forced.Token())
		l.vanish("a")
		h = l.acquire(q.Locker("a"))
		grows(h.Token())
		l.release(h)
		l.wantError(lost.Release(l.ctx), "Release of what was lost", dlock.ErrLost)
		forced.Release(l.ctx)
	}
}

func tokenOfReentry(l *lab) {
	lk := l.process().Locker("a")
	h := l.acquire(lk)
	token, _ := h.Token()
	for range 2 {
		inner, err := lk.Acquire(h.Context())
		l.noError(err, "the re-entry")
		if again, ok := inner.Token(); !ok || again != token {
			l.Errorf("a re-entry has the token %d, %v, and its hold %d", again, ok, token)
		}
		l.noError(lk.Do(inner.Context(), func(ctx context.Context) error {
			if again, ok := dlock.Token(ctx); !ok || again != token {
				l.Errorf("a Do within has the token %d, %v, and its hold %d", again, ok, token)
			}
			return nil
		}), "Do")
		l.release(inner)
	}
	l.release(h)
}

func tokenEach(l *lab) {
	const goroutines, rounds = 8, 4
	clients := []*process{l.process(), l.process()}
	shared := clients[0].Locker("a")
	var tokens []uint64 // guarded by the lock
	var calls []*call
	for i := range goroutines {
		calls = append(calls, l.start("a user", func() error {
			for range rounds {
				lk := shared
				if i%2 == 0 {
					lk = clients[i/2%2].Locker("a")
				}
				err := lk.Do(l.ctx, func(ctx context.Context) error {
					token, ok := dlock.Token(ctx)
					if !ok {
						return errors.New("no token")
					}
					tokens = append(tokens, token)
					return nil
				})
				if err != nil {
					return err
				}
			}
			return nil
		}))
	}
	for _, c := range calls {
		c.ok()
	}
	if len(tokens) != goroutines*rounds {
		l.Fatalf("%d tokens, want %d", len(tokens), goroutines*rounds)
	}
	for i, token := range tokens[1:] {
		if token <= tokens[i] {
			l.Fatalf("the tokens in the order of acquisition: %d; want each larger than the "+
				"one before", tokens)
		}
	}
}

func innermostToken(l *lab) {
	p := l.process()
	plain := p.as(backend.Exclusive)
	expect := func(ctx context.Context, where string, want uint64) {
		l.Helper()
		if token, ok := dlock.Token(ctx); token != want || ok != (want != 0) {
			l.Errorf("%s: the token %d, %v; want %d", where, token, ok, want)
		}
	}
	expect(l.ctx, "outside", 0)
	l.noError(plain.Locker("p").Do(l.ctx, func(ctx context.Context) error {
		expect(ctx, "within a plain lock", 0)
		return p.Locker("x").Do(ctx, func(ctx context.Context) error {
			x, ok := dlock.Token(ctx)
			if !ok {
				l.Error("no token within a fenced lock")
			}
			return plain.Locker("q").Do(ctx, func(ctx context.Context) error {
				expect(ctx, "within a plain lock in a fenced one", x)
				err := p.Locker("z").Do(ctx, func(ctx context.Context) error {
					if _, ok := dlock.Token(ctx); !ok {
						l.Error("no token within a second fenced lock")
					}
					return p.Locker("x").Do(ctx, func(ctx context.Context) error {
						expect(ctx, "within a re-entry of the first", x)
						return nil
					})
				})
				expect(ctx, "after the second", x)
				return err
			})
		})
	}), "Do")
}

func noToken(l *lab) {
	p := l.process()
	kinds := []backend.Kind{backend.Exclusive}
	for _, k := range []backend.Kind{backend.Read, backend.Write, backend.Fair} {
		if l.limits().Kinds.Has(k) {
			kinds = append(kinds, k)
		}
	}
	for _, k := range kinds {
		h := l.as(k).acquire(p.as(k).Locker(k.String()))
		if token, ok := h.Token(); ok || token != 0 {
			l.Errorf("a Hold of a %v lock has the token %d, %v", k, token, ok)
		}
		if token, ok := dlock.Token(h.Context()); ok || token != 0 {
			l.Errorf("within a %v lock dlock.Token is %d, %v", k, token, ok)
		}
		l.release(h)
	}
}

func fencedAndPlain(l *lab) {
	p, q := l.process(), l.process()
	for _, ways := range [][2]backend.Kind{{backend.Fenced, backend.Exclusive},
		{backend.Exclusive, backend.Fenced}} {
		mine, others := p.as(ways[0]).Locker("a"), ways[1]
		h := l.acquire(mine)
		if l.tryLock(p.as(others).Locker("a")) || l.tryLock(q.as(others).Locker("a")) {
			l.Fatalf("a %v lock was acquired beside a %v one", others, ways[0])
		}
		_, err := p.as(others).Locker("a").Acquire(h.Context())
		l.wantError(err, "Acquire of the other kind by the party that has the one",
			dlock.ErrConflict)
		wait := l.start("a waiter for the other kind", func() error {
			lk := q.as(others).Locker("a")
			return errors.Join(lk.LockContext(l.ctx), lk.UnlockContext(l.ctx))
		})
		wait.waits()
		l.release(h)
		wait.ok()
		l.eventuallyFree("a")
	}
}

var sharedNameCases = []testCase{
	{name: "one name for two kinds",
		rule: "exclusive locks and other kinds can't share a name: ErrConflict at once, and " +
			"nothing is changed",
		run: locker(nameTwice)},
	{name: "a store without that kind", rule: "every call returns errors.ErrUnsupported at once",
		run: locker(kindMissing)},
}

func nameTwice(l *lab) {
	l.env.need(backend.Read, backend.Write)
	p, q := l.process(), l.process()
	second := func(_ any, err error) error { return err }
	pairs := [][]backend.Kind{{backend.Exclusive}, {backend.Read, backend.Write}}
	for _, k := range []backend.Kind{backend.Fenced, backend.Fair} {
		if l.limits().Kinds.Has(k) {
			pairs[0] = append(pairs[0], k)
		}
	}
	for i, held := range pairs {
		for _, k := range held {
			mine := p.as(k).Locker("a")
			l.lock(mine)
			for _, other := range pairs[1-i] {
				for _, lk := range []*dlock.Locker{p.as(other).Locker("a"),
					q.as(other).Locker("a")} {
					for what, err := range map[string]error{
						"LockContext":       lk.LockContext(l.ctx),
						"TryLock":           second(lk.TryLock(l.ctx)),
						"TryLock with Wait": second(lk.TryLock(l.ctx, dlock.Wait(time.Hour))),
						"Acquire":           second(lk.Acquire(l.ctx)),
						"Do": lk.Do(l.ctx, func(context.Context) error {
							return errors.New("fn was called")
						}),
						"ForceUnlock": second(lk.ForceUnlock(l.ctx)),
						"IsLocked":    second(lk.IsLocked(l.ctx)),
						"TTL":         second(lk.TTL(l.ctx)),
					} {
						l.wantError(err, what+" of a "+other.String()+" lock where there is a "+
							k.String()+" one", dlock.ErrConflict)
					}
					l.wantPanicError("Lock", dlock.ErrConflict, lk.Lock)
				}
			}
			if isOver(mine.Lost(l.ctx)) || !l.as(k).look("a", p.owner("a")).Held {
				l.Fatalf("a %v lock was harmed", k)
			}
			l.unlock(mine)
		}
	}
}

// A plainStore is a store that supports plain locks only.
type plainStore struct{ backend.Backend }

func (st plainStore) Limits() backend.Limits {
	limits := st.Backend.Limits()
	limits.Kinds = 0
	return limits
}

func (st plainStore) Open() backend.Session { return plainSession{st.Backend.Open()} }

type plainSession struct{ backend.Session }

func only(k backend.Kind) error {
	if k == backend.Exclusive {
		return nil
	}
	return backend.UnknownKind("the store of this case", k)
}

func (s plainSession) Acquire(
	ctx context.Context, req backend.AcquireRequest,
) (backend.AcquireResult, error) {
	if err := only(req.Kind); err != nil {
		return backend.AcquireResult{}, err
	}
	return s.Session.Acquire(ctx, req)
}

func (s plainSession) ForceRelease(
	ctx context.Context, req backend.ForceReleaseRequest,
) (backend.ForceReleaseResult, error) {
	if err := only(req.Kind); err != nil {
		return backend.ForceReleaseResult{}, err
	}
	return s.Session.ForceRelease(ctx, req)
}

func (s plainSession) Look(
	ctx context.Context, req backend.LookRequest,
) (backend.LookResult, error) {
	if err := only(req.Kind); err != nil {
		return backend.LookResult{}, err
	}
	return s.Session.Look(ctx, req)
}

func kindMissing(l *lab) {
	p := l.processOn(newFaults(plainStore{l.store.Backend()}))
	second := func(_ any, err error) error { return err }
	mine := p.Locker("a")
	l.lock(mine)
	for _, k := range []backend.Kind{backend.Fenced, backend.Fair, backend.Read, backend.Write} {
		lk := p.as(k).Locker("b")
		for what, err := range map[string]error{
			"LockContext":       lk.LockContext(l.ctx),
			"TryLock":           second(lk.TryLock(l.ctx)),
			"TryLock with Wait": second(lk.TryLock(l.ctx, dlock.Wait(time.Hour))),
			"Acquire":           second(lk.Acquire(l.ctx)),
			"Do": lk.Do(l.ctx, func(context.Context) error {
				return errors.New("fn was called")
			}),
			"ForceUnlock": second(lk.ForceUnlock(l.ctx)),
			"IsLocked":    second(lk.IsLocked(l.ctx)),
			"TTL":         second(lk.TTL(l.ctx)),
		} {
			l.wantError(err, what+" of a "+k.String()+" lock", errors.ErrUnsupported)
		}
		l.wantPanicError("Lock of a "+k.String()+" lock", errors.ErrUnsupported, lk.Lock)
	}
	s := p.Semaphore("b", 3)
	for what, err := range map[string]error{
		"Acquire":           second(s.Acquire(l.ctx, 1)),
		"Acquire with Wait": second(s.Acquire(l.ctx, 1, dlock.Wait(time.Hour))),
		"Do": s.Do(l.ctx, 1, func(context.Context) error {
			return errors.New("fn was called")
		}),
		"Available": second(s.Available(l.ctx)),
	} {
		l.wantError(err, what+" of permits", errors.ErrUnsupported)
	}
	l.unlock(mine)
	l.wantFree("b", "after that")
}

// A pair has two fields, which holders of the write lock set one after the other. Holders of the
// read lock must always see them equal.
type pair struct {
	// for the race detector, which doesn't see that the distributed lock orders the accesses
	mu   sync.Mutex
	x, y int
}

func (p *pair) write() {
	p.mu.Lock()
	p.x++
	p.mu.Unlock()
	time.Sleep(200 * time.Microsecond)
	p.mu.Lock()
	p.y++
	p.mu.Unlock()
}

func (p *pair) read() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.x != p.y {
		return errors.New("a reader sees what a writer is at")
	}
	return nil
}
