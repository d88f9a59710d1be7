package contract

import (
	"errors"
	"fmt"
	"time"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/dlock"
)

// A latcher calls the steps of latches in one session.
type latcher struct {
	e *env
	s backend.Session
}

// latcher opens a session. It skips the case if the store has no latches.
func (e *env) latcher() latcher {
	e.Helper()
	s := e.session()
	e.skipWithout(backend.CapabilitiesOf(s).Latcher != nil, "backend.Latcher")
	return latcher{e, s}
}

// does calls a step, and fails the test unless the answer is want.
func (l latcher) does(step backend.LatchStep, name string, n int64, want backend.LatchResult) {
	l.e.Helper()
	res, err := backend.CapabilitiesOf(l.s).Latcher.Latch(l.e.ctx, backend.LatchRequest{
		Step: step, Name: name, Count: n,
	})
	if err != nil || res != want {
		l.e.Fatalf("step %d of latch %.40q, %d: %+v, %v; want %+v", step, name, n, res, err, want)
	}
}

func (l latcher) counts(name string, want int64) {
	l.e.Helper()
	l.does(backend.LookAtLatch, name, 0, backend.LatchResult{Count: want})
}

func (l latcher) countsDown(name string, left int64) {
	l.e.Helper()
	l.does(backend.CountDown, name, 0, backend.LatchResult{Count: left})
}

func (l latcher) sets(name string, n int64) {
	l.e.Helper()
	l.does(backend.SetLatch, name, n, backend.LatchResult{Count: n, Set: true})
}

// latchCases test the latches of a store.
var latchCases = []testCase{
	{name: "latch/count",
		rule: "A latch is open, can be set while it is open, counts down to zero, and is then as " +
			"new; names are separate",
		run: func(e *env) {
			a, b := e.latcher(), e.latcher()
			a.counts("one", 0)
			a.countsDown("one", 0)
			b.sets("two", 1<<40)
			for range 2 {
				a.sets("one", 3)
				b.does(backend.SetLatch, "one", 5, backend.LatchResult{Count: 3})
				b.countsDown("one", 2)
				a.countsDown("one", 1)
				b.counts("one", 1)
				a.countsDown("one", 0)
				b.counts("one", 0)
				b.countsDown("one", 0)
			}
			a.counts("two", 1<<40)
			b.does(backend.SetLatch, "two", 1, backend.LatchResult{Count: 1 << 40})
			b.countsDown("two", 1<<40-1)
		}},
	{name: "latch/together", rule: "Each CountDown counts once, however many count together",
		run: func(e *env) {
			a, b := e.latcher(), e.latcher()
			const n = 100
			a.sets("latch", n+1)
			e.parallel(10, func(i int) error {
				s := backend.CapabilitiesOf([]backend.Session{a.s, b.s}[i%2]).Latcher
				for range n / 10 {
					if _, err := s.Latch(e.ctx, backend.LatchRequest{
						Step: backend.CountDown, Name: "latch",
					}); err != nil {
						return fmt.Errorf("CountDown: %w", err)
					}
				}
				return nil
			})
			a.counts("latch", 1)
		}},
	{name: "latch/set meanwhile",
		rule: "A CountDown while a latch is set takes at most one from the new count",
		run: func(e *env) {
			a, b := e.latcher(), e.latcher()
			const n, many = 1 << 40, 8
			for round := range 30 {
				name := fmt.Sprint("latch", round)
				e.parallel(1+many, func(i int) error {
					s, req := backend.CapabilitiesOf([]backend.Session{a.s, b.s}[i%2]).Latcher,
						backend.LatchRequest{Name: name}
					switch i {
					case 0:
						req.Step, req.Count = backend.SetLatch, n
					default:
						req.Step = backend.CountDown
					}
					_, err := s.Latch(e.ctx, req)
					return err
				})
				res, err := backend.CapabilitiesOf(a.s).
					Latcher.Latch(e.ctx, backend.LatchRequest{Name: name})
				if err != nil || res.Count < n-many || res.Count > n {
					e.Fatalf("a count of %d, %v; want at least %d", res.Count, err, n-many)
				}
			}
		}},
	{name: "latch/locks",
		rule: "A latch isn't a lock: if both have one name, both answer ErrConflict, or they are " +
			"separate",
		run: func(e *env) {
			a, p, lease := e.latcher(), e.party("p"), e.longLease()
			a.sets("latch", 2)
			res, err := p.s.Acquire(e.ctx, backend.AcquireRequest{
				Name: "latch", Owner: "p", Lease: lease,
			})
			if err != nil && !errors.Is(err, backend.ErrConflict) || err == nil && !res.Acquired {
				e.Fatalf("Acquire of a latch: %+v, %v", res, err)
			}
			a.counts("latch", 2)
			p.acquires("lock", lease)
			got, err := backend.CapabilitiesOf(a.s).Latcher.Latch(e.ctx, backend.LatchRequest{
				Step: backend.SetLatch, Name: "lock", Count: 1,
			})
			if err != nil && !errors.Is(err, backend.ErrConflict) || err == nil && !got.Set {
				e.Fatalf("SetLatch of a lock: %+v, %v", got, err)
			}
			_, err = backend.CapabilitiesOf(a.s).Latcher.Latch(e.ctx, backend.LatchRequest{
				Step: backend.CountDown, Name: "lock",
			})
			if err != nil && !errors.Is(err, backend.ErrConflict) {
				e.Fatalf("CountDown of a lock: %v", err)
			}
			p.has("lock", 1)
		}},
	{name: "latch/notifier",
		rule: "The CountDown that opens a latch calls Wake; a release of a lock with that name " +
			"need not",
		run: func(e *env) {
			e.needNotifier()
			a, b := e.latcher(), e.latcher()
			e.parallel(10, func(i int) error {
				name := fmt.Sprint("latch", i)
				for round := range 10 {
					la := backend.CapabilitiesOf(a.s).Latcher
					if res, err := la.Latch(e.ctx, backend.LatchRequest{
						Step: backend.SetLatch, Name: name, Count: 1,
					}); err != nil || !res.Set {
						return fmt.Errorf("SetLatch: %+v, %w", res, err)
					}
					rung := newBell()
					sub, err := backend.CapabilitiesOf(b.s).
						Notifier.Subscribe(e.ctx, backend.SubscribeRequest{
						Kind: backend.Latch, Name: name, Watches: true, Wake: rung.ring,
					})
					if err != nil {
						return fmt.Errorf("Subscribe: %w", err)
					}
					if res, err := la.Latch(e.ctx, backend.LatchRequest{
						Step: backend.CountDown, Name: name,
					}); err != nil || res.Count != 0 {
						return fmt.Errorf("CountDown: %+v, %w", res, err)
					}
					if err := rung.wait(); err != nil {
						return fmt.Errorf("round %d: after a CountDown that was sent when "+
							"Subscribe had returned: %w", round, err)
					}
					sub.Close()
				}
				return nil
			})
		}},
	{name: "latch/broken subscription",
		rule: "Wake is called when a broken subscription works again",
		run: func(e *env) {
			e.needNotifier()
			e.skipWithout(e.store.BreakSubscriptions != nil, "BreakSubscriptions")
			a, b := e.latcher(), e.latcher()
			a.sets("latch", 1)
			rung := newBell()
			sub, err := backend.CapabilitiesOf(b.s).
				Notifier.Subscribe(e.ctx, backend.SubscribeRequest{
				Kind: backend.Latch, Name: "latch", Watches: true, Wake: rung.ring,
			})
			if err != nil {
				e.Fatal(err)
			}
			defer sub.Close()
			e.store.BreakSubscriptions()
			e.eventually("Wake called", func() bool { return rung.calls() > 0 })
		}},
}

// latchLockerCases test a [dlock.Latch].
var latchLockerCases = []testCase{
	{name: "latch",
		rule: "waiters for a latch go on when it has been counted down, in any client, and no " +
			"sooner",
		run: locker(latchOpens)},
}

func latchOpens(l *lab) {
	p, q := l.process(), l.process()
	latch, other := p.Client.Latch("a"), q.Client.Latch("a")
	if backend.CapabilitiesOf(l.session()).Latcher == nil {
		if _, err := latch.Count(l.ctx); !errors.Is(err, errors.ErrUnsupported) {
			l.Errorf("Count on a store without latches: %v", err)
		}
		l.skipWithout(false, "backend.Latcher")
	}
	l.noError(latch.Wait(l.ctx), "Wait for a latch that is open")
	set, err := other.Set(l.ctx, 2)
	if l.noError(err, "Set"); !set {
		l.Fatal("Set says that it is counting already")
	}
	var all []*call
	for i := range 6 {
		all = append(all, l.start("Wait", func() error {
			la := []*dlock.Latch{latch, other}[i%2]
			if err := la.Wait(l.ctx); err != nil {
				return err
			}
			if n, err := la.Count(l.ctx); err != nil || n != 0 {
				return fmt.Errorf("a count of %d after Wait, %v", n, err)
			}
			return nil
		}))
	}
	l.noError(latch.CountDown(l.ctx), "CountDown")
	time.Sleep(20 * time.Millisecond)
	if n, err := other.Count(l.ctx); err != nil || n != 1 {
		l.Fatalf("Count: %d, %v", n, err)
	}
	l.noError(other.CountDown(l.ctx), "CountDown")
	for _, c := range all {
		c.ok()
	}
}
