package contract

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed951563bd/distsync/backend"
)

var notifierCases = []testCase{
	{name: "notifier/release",
		rule: "After Subscribe has returned, a release of the lock in any session calls Wake",
		tags: forReaders | forPermits | woken,
		run: func(e *env) {
			e.needNotifier()
			a, b, c, lease := e.party("a"), e.party("b"), e.party("c"), e.longLease()
			rungB, subB := b.subscribe("lock")
			rungC, subC := c.subscribe("lock")
			for _, p := range []party{a, b, c} {
				p.acquires("lock", lease)
				rungB.reset()
				rungC.reset()
				p.releases("lock", lease, backend.Freed)
				rungB.waits(e, "a release by "+p.owner)
				rungC.waits(e, "a release by "+p.owner)
			}
			subB.Close()
			a.acquires("lock", lease)
			rungC.reset()
			a.releases("lock", lease, backend.Freed)
			rungC.waits(e, "a release, when another has closed its subscription")
			subC.Close()
		}},
	{name: "notifier/force", rule: "A forced release of a held lock calls Wake",
		tags: forReaders | forPermits | woken,
		run: func(e *env) {
			e.needNotifier()
			a, b := e.party("a"), e.party("b")
			rung, sub := b.subscribe("lock")
			defer sub.Close()
			for _, p := range []party{a, b} {
				a.acquires("lock", e.longLease())
				rung.reset()
				p.forces("lock", true)
				rung.waits(e, "a forced release by "+p.owner)
			}
		}},
	{name: "notifier/last hold",
		rule: "The release that frees the lock calls Wake, after releases that left holds",
		tags: woken,
		run: func(e *env) {
			e.needNotifier()
			a, b, lease := e.party("a"), e.party("b"), e.longLease()
			rung, sub := b.subscribe("lock")
			defer sub.Close()
			for range 3 {
				a.acquires("lock", lease)
			}
			a.releases("lock", lease, backend.Left)
			a.releases("lock", lease, backend.Left)
			rung.reset()
			a.releases("lock", lease, backend.Freed)
			rung.waits(e, "the last release")
		}},
	{name: "notifier/free when woken", rule: "Wake is called when the lock is free, not before",
		tags: woken,
		run: func(e *env) {
			e.needNotifier()
			a, b, lease := e.party("a"), e.party("b"), e.longLease()
			rung, sub := b.subscribe("lock")
			defer sub.Close()
			for range 50 {
				a.acquires("lock", lease)
				rung.reset()
				go a.s.Release(e.ctx, backend.ReleaseRequest{
					Kind: e.kind, Name: "lock", Owner: a.owner, Lease: lease,
				})
				for acquired := false; !acquired; {
					// A spurious Wake may come first. After the last Wake the lock must be free.
					rung.waits(e, "a release")
					res, err := b.s.Acquire(e.ctx, backend.AcquireRequest{
						Kind: e.kind, Name: "lock", Owner: b.owner, Lease: lease,
					})
					if err != nil {
						e.Fatal(err)
					}
					acquired = res.Acquired
				}
				b.releases("lock", lease, backend.Freed)
			}
		}},
	{name: "notifier/at once",
		rule: "A release that happens right after Subscribe has returned calls Wake",
		tags: forReaders | forPermits | woken,
		run: func(e *env) {
			e.needNotifier()
			a, b, lease := e.party("a"), e.party("b"), e.longLease()
			// Use twenty locks at once, so that calls of Subscribe, Release and Close overlap. Half
			// of the subscriptions only watch the holders.
			e.parallel(20, func(i int) error {
				name := fmt.Sprint("lock", i)
				for round := range 15 {
					if res, err := a.s.Acquire(e.ctx, backend.AcquireRequest{
						Kind: e.kind, Name: name, Owner: a.owner, Lease: lease,
					}); err != nil || !res.Acquired {
						return fmt.Errorf("Acquire(%s): %+v, %v", name, res, err)
					}
					rung := newBell()
					sub, err := backend.CapabilitiesOf(b.s).
						Notifier.Subscribe(e.ctx, backend.SubscribeRequest{
						Kind: e.kind, Name: name, Wake: rung.ring, Watches: i%2 == 1,
					})
					if err != nil {
						return fmt.Errorf("Subscribe(%s): %w", name, err)
					}
					if res, err := a.s.Release(e.ctx, backend.ReleaseRequest{
						Kind: e.kind, Name: name, Owner: a.owner, Lease: lease,
					}); err != nil || res.Outcome != backend.Freed {
						return fmt.Errorf("Release(%s): %v, %v", name, res.Outcome, err)
					}
					if err := rung.wait(); err != nil {
						return fmt.Errorf("round %d: after a release of %s, sent when Subscribe "+
							"had returned: %w", round, name, err)
					}
					sub.Close()
				}
				return nil
			})
		}},
	{name: "notifier/closed",
		rule: "After Subscription.Close has returned, Wake is called at most once more",
		tags: forReaders | forPermits | woken,
		run: func(e *env) {
			e.needNotifier()
			a, b, c, lease := e.party("a"), e.party("b"), e.party("c"), e.longLease()
			first, sub := b.subscribe("lock")
			sub.Close()
			before := first.calls()
			// Two other subscriptions show when the notifications of the releases have arrived. One
			// belongs to the same session as the closed one, so its messages arrive in the same
			// way. The other belongs to another session.
			again, sub := b.subscribe("lock")
			defer sub.Close()
			witness, sub2 := c.subscribe("lock")
			defer sub2.Close()
			for range 10 {
				a.acquires("lock", lease)
				again.reset()
				witness.reset()
				a.releases("lock", lease, backend.Freed)
				again.waits(e, "a release")
				witness.waits(e, "a release")
			}
			if n := first.calls() - before; n > 1 {
				e.Fatalf("Wake of a closed subscription was called %d times", n)
			}
		}},
	{name: "notifier/waiting",
		rule: "If asked, Release may report how many sessions other than its own are subscribed, " +
			"and then the number is right",
		tags: forReaders | forPermits | woken,
		run: func(e *env) {
			e.needNotifier()
			a, b, c, lease := e.party("a"), e.party("b"), e.party("c"), e.longLease()
			waiting := func(ask bool) backend.ReleaseResult {
				e.Helper()
				a.acquires("lock", lease)
				res, err := a.s.Release(e.ctx, backend.ReleaseRequest{
					Kind: e.kind, Name: "lock", Owner: "a", Lease: lease, AskWaiting: ask,
				})
				if err != nil || res.Outcome != backend.Freed {
					e.Fatalf("Release: %v, %v; want freed", res.Outcome, err)
				}
				return res
			}
			others := func(when string) {
				e.Helper()
				if res := waiting(true); res.Counted && res.Waiting < 1 {
					e.Fatalf("%s: Release says that nobody else waits", when)
				}
				if res := waiting(false); res.Counted {
					e.Fatalf("%s: Release says that %d others wait, and was not asked", when,
						res.Waiting)
				}
			}
			nobody := func(when string) {
				e.Helper()
				if res := waiting(true); res.Waiting > 0 {
					e.Fatalf("%s: Release says that %d others wait", when, res.Waiting)
				}
			}
			_, elsewhere := b.subscribe("another lock")
			defer elsewhere.Close()
			nobody("nobody is subscribed")
			_, own := a.subscribe("lock")
			_, again := a.subscribe("lock")
			nobody("only the session itself is subscribed")
			_, subB := b.subscribe("lock")
			others("the session itself and another are subscribed")
			own.Close()
			again.Close()
			others("another session is subscribed")
			_, subC := c.subscribe("lock")
			subB.Close()
			others("another session is subscribed, and one was")
			subC.Close()
			e.eventually("nobody else waits when the others have closed their subscriptions",
				func() bool {
					return waiting(true).Waiting == 0
				})
			_, own = a.subscribe("lock")
			defer own.Close()
			e.eventually("nobody else waits when only the session itself is subscribed again",
				func() bool {
					return waiting(true).Waiting == 0
				})
		}},
	{name: "notifier/context", rule: "A subscription outlives the context of the call that made it",
		tags: woken,
		run: func(e *env) {
			e.needNotifier()
			a, b, lease := e.party("a"), e.party("b"), e.longLease()
			ctx, cancel := context.WithCancel(e.ctx)
			rung := newBell()
			sub, err := backend.CapabilitiesOf(b.s).
				Notifier.Subscribe(ctx, backend.SubscribeRequest{
				Kind: e.kind, Name: "lock", Wake: rung.ring,
			})
			cancel()
			if err != nil {
				e.Fatalf("Subscribe: %v", err)
			}
			defer sub.Close()
			for range 5 {
				a.acquires("lock", lease)
				rung.reset()
				a.releases("lock", lease, backend.Freed)
				rung.waits(e, "a release, after the context of Subscribe has ended")
			}
		}},
	{name: "notifier/again",
		rule: "A name may be subscribed to again as soon as its last subscription is closed",
		tags: forReaders | forPermits | woken,
		run: func(e *env) {
			e.needNotifier()
			a, b, lease := e.party("a"), e.party("b"), e.longLease()
			for i := range 100 {
				_, sub := b.subscribe("lock")
				sub.Close()
				rung, sub := b.subscribe("lock")
				if i%2 == 0 {
					// a delayed close must not affect the next subscription
					e.sleep(2 * time.Millisecond)
				}
				a.acquires("lock", lease)
				rung.reset()
				a.releases("lock", lease, backend.Freed)
				rung.waits(e, "a release, with a subscription that followed a closed one")
				sub.Close()
			}
		}},
	{name: "notifier/closed and again",
		rule: "No subscription is lost while subscriptions of many names are closed and made at " +
			"once",
		tags: forReaders | forPermits | woken,
		run: func(e *env) {
			e.needNotifier()
			a, b, lease := e.party("a"), e.party("b"), e.longLease()
			const names = 20
			for range 5 {
				bells, subs := make([]*bell, names), make([]backend.Subscription, names)
				e.parallel(names, func(i int) error {
					for range 1 + rand.IntN(4) {
						if subs[i] != nil {
							subs[i].Close()
						}
						var err error
						bells[i] = newBell()
						subs[i], err = backend.CapabilitiesOf(b.s).
							Notifier.Subscribe(e.ctx, backend.SubscribeRequest{
							Kind: e.kind, Name: fmt.Sprint("lock", i), Wake: bells[i].ring,
						})
						if err != nil {
							return err
						}
					}
					return nil
				})
				e.sleep(2 * time.Millisecond)
				for i := range names {
					name := fmt.Sprint("lock", i)
					a.acquires(name, lease)
					bells[i].reset()
					a.releases(name, lease, backend.Freed)
					bells[i].waits(e, "a release of "+name)
					subs[i].Close()
				}
			}
		}},
	{name: "notifier/many names", rule: "One session can be subscribed to many names", tags: woken,
		run: func(e *env) {
			e.needNotifier()
			a, b, lease := e.party("a"), e.party("b"), e.longLease()
			const names = 500
			bells := make([]*bell, names)
			subs := make([]backend.Subscription, names)
			e.parallel(names, func(i int) (err error) {
				bells[i] = newBell()
				subs[i], err = backend.CapabilitiesOf(b.s).
					Notifier.Subscribe(e.ctx, backend.SubscribeRequest{
					Kind: e.kind, Name: fmt.Sprint("lock", i), Wake: bells[i].ring,
				})
				return err
			})
			for i := range names {
				a.acquires(fmt.Sprint("lock", i), lease)
				bells[i].reset()
			}
			for i := range names {
				a.releases(fmt.Sprint("lock", i), lease, backend.Freed)
			}
			for i := range names {
				bells[i].waits(e, fmt.Sprintf("a release of lock%d", i))
				subs[i].Close()
			}
		}},
	{name: "notifier/names", rule: "Any name can be subscribed to",
		tags: forReaders | forPermits | woken,
		run: func(e *env) {
			e.needNotifier()
			a, b, lease := e.party("a"), e.party("b"), e.longLease()
			for _, name := range e.oddLocks(e.kind) {
				rung, sub := b.subscribe(name)
				a.acquires(name, lease)
				rung.reset()
				a.releases(name, lease, backend.Freed)
				rung.waits(e, fmt.Sprintf("a release of %.40q", name))
				sub.Close()
			}
		}},
	{name: "notifier/context over",
		rule: "Subscribe with a context that has ended doesn't hang, and the session can " +
			"subscribe afterwards",
		tags: woken,
		run: func(e *env) {
			e.needNotifier()
			a, b, lease := e.party("a"), e.party("b"), e.longLease()
			over, cancel := context.WithCancel(e.ctx)
			cancel()
			for range 20 {
				sub, err := backend.CapabilitiesOf(b.s).
					Notifier.Subscribe(over, backend.SubscribeRequest{
					Kind: e.kind, Name: "lock", Wake: newBell().ring,
				})
				if err == nil {
					sub.Close()
				} else if backend.KindOf(err) == backend.Refused {
					e.Fatalf("Subscribe: error %q is of kind Refused; but another could succeed",
						err)
				}
			}
			rung, sub := b.subscribe("lock")
			defer sub.Close()
			a.acquires("lock", lease)
			rung.reset()
			a.releases("lock", lease, backend.Freed)
			rung.waits(e, "a release")
		}},
	{name: "notifier/broken",
		rule: "When a broken subscription works again Wake is called, and later releases call it " +
			"again",
		tags: forReaders | forPermits | woken,
		run: func(e *env) {
			e.needNotifier()
			e.skipWithout(e.store.BreakSubscriptions != nil, "BreakSubscriptions")
			a, b, c, lease := e.party("a"), e.party("b"), e.party("c"), e.longLease()
			names := []string{"lock", "other", "third"}
			for range 3 {
				var bells []*bell
				var subs []backend.Subscription
				for _, name := range names {
					for _, p := range []party{b, c} {
						rung, sub := p.subscribe(name)
						bells, subs = append(bells, rung), append(subs, sub)
					}
				}
				// Reset the bells while no message is under way. After that, only the broken
				// connection can ring them.
				for _, name := range names {
					a.acquires(name, lease)
				}
				for _, rung := range bells {
					rung.reset()
				}
				e.store.BreakSubscriptions()
				for _, rung := range bells {
					rung.waits(e, "a break of the connection")
				}
				for i, name := range names {
					bells[2*i].reset()
					bells[2*i+1].reset()
					a.releases(name, lease, backend.Freed)
					bells[2*i].waits(e, "a release after a break of the connection")
					bells[2*i+1].waits(e, "a release after a break of the connection")
				}
				for _, sub := range subs {
					sub.Close()
				}
			}
		}},
	{name: "notifier/broken and released",
		rule: "A release while the subscription is broken leads to a Wake",
		tags: forReaders | forPermits | woken,
		run: func(e *env) {
			e.needNotifier()
			e.skipWithout(e.store.BreakSubscriptions != nil, "BreakSubscriptions")
			a, b, lease := e.party("a"), e.party("b"), e.longLease()
			rung, sub := b.subscribe("lock")
			defer sub.Close()
			for range 10 {
				a.acquires("lock", lease)
				rung.reset()
				e.store.BreakSubscriptions()
				a.releases("lock", lease, backend.Freed)
				for acquired := false; !acquired; {
					rung.waits(e, "a break of the connection and a release")
					res, err := b.s.Acquire(e.ctx, backend.AcquireRequest{
						Kind: e.kind, Name: "lock", Owner: b.owner, Lease: lease,
					})
					if err != nil {
						e.Fatal(err)
					}
					acquired = res.Acquired
				}
				b.releases("lock", lease, backend.Freed)
			}
		}},
}

// renewBatch calls RenewBatch and checks that each request gets exactly one answer.
func renewBatch(
	e *env, ctx context.Context, s backend.Session, reqs []backend.RenewRequest,
) ([]backend.RenewResult, []error) {
	e.Helper()
	var mu sync.Mutex
	returned := false
	answers, results, errs := make([]int, len(reqs)), make([]backend.RenewResult, len(reqs)),
		make([]error, len(reqs))
	backend.CapabilitiesOf(s).BatchRenewer.RenewBatch(ctx, reqs, func(
		i int, res backend.RenewResult, err error,
	) {
		mu.Lock()
		defer mu.Unlock()
		switch {
		case returned:
			e.Errorf("RenewBatch: answer(%d) after it has returned", i)
		case i < 0 || i >= len(reqs):
			e.Errorf("RenewBatch: answer(%d); there are %d requests", i, len(reqs))
		default:
			answers[i]++
			results[i], errs[i] = res, err
		}
	})
	mu.Lock()
	defer mu.Unlock()
	returned = true
	for i, n := range answers {
		if n != 1 {
			e.Fatalf("RenewBatch: request %d of %d was answered %d times; want once", i, len(reqs),
				n)
		}
	}
	return results, errs
}

// renewAll is like renewBatch, but fails the test on an error.
func renewAll(e *env, s backend.Session, reqs []backend.RenewRequest) []backend.RenewResult {
	e.Helper()
	results, errs := renewBatch(e, e.ctx, s, reqs)
	if err := errors.Join(errs...); err != nil {
		e.Fatalf("RenewBatch: %v", err)
	}
	return results
}

var batchCases = []testCase{
	{name: "batch/mixed", rule: "RenewBatch does what Renew does, for each request",
		run: func(e *env) {
			e.needBatchRenewer()
			a, lease := e.party("a"), e.longLease()
			b := e.beside(a, "b")
			start, shorter := time.Now(), e.legal(lease/2)
			a.acquires("mine", lease)
			a.acquires("mine", lease)
			a.acquires("mine, shorter", e.leaseBefore(shorter))
			b.acquires("another's", lease)
			reqs := []backend.RenewRequest{
				{Kind: e.kind, Name: "another's", Owner: "a", Lease: 2 * lease},
				{Kind: e.kind, Name: "mine", Owner: "a", Lease: 2 * lease},
				{Kind: e.kind, Name: "free", Owner: "a", Lease: 2 * lease},
				{Kind: e.kind, Name: "mine, shorter", Owner: "a", Lease: shorter},
				{Kind: e.kind, Name: "another's", Owner: "b", Lease: 3 * lease},
			}
			for i, res := range renewAll(e, a.s, reqs) {
				if want := i == 1 || i >= 3; res.Held != want {
					e.Fatalf("RenewBatch: request %d, %+v: held %v; want %v", i, reqs[i], res.Held,
						want)
				}
			}
			a.lasts("mine", 2*lease, start)
			a.lasts("mine, shorter", shorter, start)
			b.lasts("another's", 3*lease, start)
			a.has("mine", 2)
			b.has("another's", 1)
			b.seesFree("free")
		}},
	{name: "batch/many", rule: "RenewBatch answers each of many requests exactly once",
		tags: forReaders | forPermits,
		run: func(e *env) {
			e.needBatchRenewer()
			const n = 1000
			a, b, lease := e.party("a"), e.party("b"), e.longLease()
			reqs := make([]backend.RenewRequest, n)
			for i := range reqs {
				reqs[i] = backend.RenewRequest{
					Kind: e.kind, Name: fmt.Sprint("lock", i), Owner: "a", Lease: lease,
				}
			}
			owners := []party{a, b, {}} // every third lock is free
			e.parallel(20, func(worker int) error {
				for i := worker; i < n; i += 20 {
					if p := owners[i%3]; p.s != nil {
						if res, err := p.s.Acquire(e.ctx, backend.AcquireRequest{
							Kind: e.kind, Name: reqs[i].Name, Owner: p.owner, Lease: lease,
						}); err != nil || !res.Acquired {
							return fmt.Errorf("Acquire: %+v, %v", res, err)
						}
					}
				}
				return nil
			})
			for i, res := range renewAll(e, a.s, reqs) {
				if want := i%3 == 0; res.Held != want {
					e.Fatalf("RenewBatch: request %d: held %v; want %v", i, res.Held, want)
				}
			}
		}},
	{name: "batch/duplicates",
		rule: "RenewBatch answers each of several requests for one hold; a batch may have no " +
			"request, or one",
		tags: forReaders | forPermits,
		run: func(e *env) {
			e.needBatchRenewer()
			a, lease := e.party("a"), e.longLease()
			a.acquires("lock", lease)
			req := backend.RenewRequest{Kind: e.kind, Name: "lock", Owner: "a", Lease: lease}
			renewAll(e, a.s, nil)
			for _, n := range []int{1, 2, 50} {
				reqs := make([]backend.RenewRequest, n)
				for i := range reqs {
					reqs[i] = req
				}
				for i, res := range renewAll(e, a.s, reqs) {
					if !res.Held {
						e.Fatalf("RenewBatch: request %d of %d for the same hold: not held", i, n)
					}
				}
			}
			a.has("lock", 1)
		}},
	{name: "batch/names", rule: "RenewBatch keeps names and owners apart, whatever they contain",
		tags: forReaders,
		run: func(e *env) {
			e.needBatchRenewer()
			s, lease := e.session(), e.longLease()
			var reqs []backend.RenewRequest
			names := e.oddLocks(e.kind)
			for i, name := range names {
				owner := oddNames[(i+1)%len(oddNames)]
				e.at(s, owner).acquires(name, lease)
				reqs = append(reqs,
					backend.RenewRequest{Kind: e.kind, Name: name, Owner: owner, Lease: 2 * lease},
					backend.RenewRequest{
						Kind: e.kind, Name: name, Owner: oddNames[(i+2)%len(oddNames)],
						Lease: 3 * lease,
					})
			}
			start := time.Now()
			for i, res := range renewAll(e, s, reqs) {
				if want := i%2 == 0; res.Held != want {
					e.Fatalf("RenewBatch: %.40q by %.40q: held %v; want %v", reqs[i].Name,
						reqs[i].Owner, res.Held, want)
				}
			}
			for _, name := range names {
				e.at(s, "nobody").lasts(name, 2*lease, start)
			}
		}},
	{name: "batch/concurrent", rule: "Several batches at once don't disturb each other",
		tags: forReaders | forPermits,
		run: func(e *env) {
			e.needBatchRenewer()
			a, lease := e.party("a"), e.longLease()
			var reqs []backend.RenewRequest
			for i := range 50 {
				a.acquires(fmt.Sprint("lock", i), lease)
				reqs = append(reqs, backend.RenewRequest{
					Kind: e.kind, Name: fmt.Sprint("lock", i), Owner: "a", Lease: lease,
				})
			}
			e.parallel(10, func(int) error {
				var held atomic.Int32
				var failed atomic.Pointer[error]
				backend.CapabilitiesOf(a.s).BatchRenewer.RenewBatch(e.ctx, reqs, func(
					_ int, res backend.RenewResult, err error,
				) {
					if res.Held {
						held.Add(1)
					}
					if err != nil {
						failed.Store(&err)
					}
				})
				if err := failed.Load(); err != nil {
					return *err
				}
				if held.Load() != 50 {
					return fmt.Errorf("RenewBatch: %d of 50 held; want all", held.Load())
				}
				return nil
			})
		}},
	{name: "batch/context over",
		rule: "RenewBatch answers each request exactly once even if its context has ended, and " +
			"reports the truth",
		tags: forReaders | forPermits,
		run: func(e *env) {
			e.needBatchRenewer()
			a, lease := e.party("a"), e.longLease()
			a.acquires("lock", lease)
			over, cancel := context.WithCancel(e.ctx)
			cancel()
			reqs := []backend.RenewRequest{
				{Kind: e.kind, Name: "lock", Owner: "a", Lease: 2 * lease},
				{Kind: e.kind, Name: "free", Owner: "a", Lease: 2 * lease},
			}
			results, errs := renewBatch(e, over, a.s, reqs)
			for i, err := range errs {
				if err != nil && backend.KindOf(err) == backend.Refused {
					e.Fatalf("RenewBatch: error %q is of kind Refused; but another could succeed",
						err)
				}
				if want := i == 0; err == nil && results[i].Held != want {
					e.Fatalf("RenewBatch: request %d: held %v; want %v, or an error", i,
						results[i].Held, want)
				}
			}
			// leave some room, because the remaining time may be rounded up
			renewed := a.look("lock").Remaining > lease+lease/2
			if errs[0] == nil && !renewed {
				e.Fatal("RenewBatch returned no error; want the hold renewed")
			}
			if errs[0] != nil && backend.KindOf(errs[0]) == backend.Retry && renewed {
				e.Fatalf("RenewBatch: error %q is of kind Retry, but the hold was renewed", errs[0])
			}
		}},
	{name: "batch/returns last",
		rule: "RenewBatch returns after the last call of answer has returned, even if its " +
			"context ends meanwhile",
		run: func(e *env) {
			e.needBatchRenewer()
			a, lease := e.party("a"), e.longLease()
			a.acquires("lock", lease)
			a.acquires("other", lease)
			ctx, cancel := context.WithCancel(e.ctx)
			defer cancel()
			reqs := []backend.RenewRequest{
				{Kind: e.kind, Name: "lock", Owner: "a", Lease: 2 * lease},
				{Kind: e.kind, Name: "other", Owner: "a", Lease: 2 * lease},
			}
			var answering, answered atomic.Int32
			backend.CapabilitiesOf(a.s).BatchRenewer.RenewBatch(ctx, reqs, func(
				int, backend.RenewResult, error,
			) {
				if answering.Add(1) == 1 {
					cancel()
					// An incorrect RenewBatch would return during this sleep, before all calls of
					// this function have returned.
					e.sleep(20 * time.Millisecond)
				}
				answered.Add(1)
			})
			if begun, n := answering.Load(), answered.Load(); begun != 2 || n != 2 {
				e.Fatalf("RenewBatch has returned with %d calls of answer under way, and %d "+
					"over; want 2 that are over", begun-n, n)
			}
		}},
}

var closeCases = []testCase{
	{name: "close/release",
		rule: "After Session.Close locks are still held, Release works, and other sessions go on",
		run: func(e *env) {
			back := e.store.Backend()
			closed, open := e.at(back.Open(), "a"), e.at(back.Open(), "b")
			e.Cleanup(func() { open.s.Close() })
			lease := e.longLease()
			start := time.Now()
			closed.acquires("lock", lease)
			closed.acquires("lock", lease)
			closed.acquires("other", lease)
			if err := closed.s.Close(); err != nil {
				e.Fatalf("Session.Close: %v", err)
			}
			open.has("lock", 0)
			open.lasts("lock", lease, start)
			open.refused("lock", lease)
			closed.releases("lock", lease, backend.Left)
			closed.releases("lock", lease, backend.Freed)
			closed.releases("lock", lease, backend.NotHeld)
			open.acquires("lock", lease)
			closed.releases("lock", lease, backend.NotHeld)
			open.has("lock", 1)
			closed.releases("other", lease, backend.Freed)
			open.releases("lock", lease, backend.Freed)
			fresh := e.at(back.Open(), "c")
			fresh.acquires("lock", lease)
			fresh.s.Close()
		}},
	{name: "close/notifier",
		rule: "Session.Close ends the subscriptions of the session only; its releases still call " +
			"Wake",
		tags: forReaders | forPermits | woken,
		run: func(e *env) {
			e.needNotifier()
			back := e.store.Backend()
			closed, open := e.at(back.Open(), "a"), e.at(back.Open(), "b")
			e.Cleanup(func() { open.s.Close() })
			lease := e.longLease()
			ended, _ := closed.subscribe("lock")
			rung, sub := open.subscribe("lock")
			defer sub.Close()
			closed.acquires("lock", lease)
			rung.reset()
			closed.s.Close()
			before := ended.calls()
			closed.releases("lock", lease, backend.Freed)
			rung.waits(e, "a release by a session that was closed")
			for range 5 {
				open.acquires("lock", lease)
				rung.reset()
				open.releases("lock", lease, backend.Freed)
				rung.waits(e, "a release")
			}
			if n := ended.calls() - before; n > 1 {
				e.Fatalf("Wake was called %d times after Session.Close", n)
			}
		}},
	{name: "close/goroutines",
		rule: "Session.Close ends the goroutines of the session, even if the store's client " +
			"stays open",
		run: func(e *env) {
			const sessions = 50
			back := e.store.Backend()
			use := func() backend.Session {
				p := e.at(back.Open(), "a")
				p.acquires("lock", e.longLease())
				p.releases("lock", e.longLease(), backend.Freed)
				if backend.CapabilitiesOf(p.s).Notifier != nil {
					p.subscribe("lock")
				}
				return p.s
			}
			use().Close() // don't count goroutines that the client starts only once
			before := runtime.NumGoroutine()
			for range sessions {
				use().Close()
			}
			// A client may keep one more connection, for which a server in this process may have
			// one more goroutine. The bound allows for that, but not for one goroutine per session.
			e.eventually("goroutines ended after Session.Close", func() bool {
				return runtime.NumGoroutine() < before+sessions/2
			})
		}},
	{name: "close/concurrent",
		rule: "Session.Close may be called while steps and subscriptions are under way",
		run: func(e *env) {
			for range 10 {
				s := e.store.Backend().Open()
				ctx, cancel := context.WithCancel(e.ctx)
				var wg sync.WaitGroup
				for i := range 8 {
					wg.Go(func() {
						name := fmt.Sprint("lock", i)
						for ctx.Err() == nil {
							// The session is being closed, so any answer is allowed.
							s.Acquire(ctx, backend.AcquireRequest{
								Kind: e.kind, Name: name, Owner: "a", Lease: e.longLease(),
							})
							if n := backend.CapabilitiesOf(s).Notifier; n != nil && i%2 == 0 {
								n.Subscribe(ctx, backend.SubscribeRequest{
									Kind: e.kind, Name: name, Wake: func(backend.Wakeup) {},
								})
							}
							time.Sleep(time.Millisecond)
						}
					})
				}
				e.sleep(time.Duration(rand.IntN(5)) * time.Millisecond)
				if err := s.Close(); err != nil {
					e.Errorf("Session.Close: %v", err)
				}
				cancel()
				wg.Wait()
			}
		}},
}

var mishapCases = []testCase{
	{name: "conflict",
		rule: "Every step that finds data that isn't a lock answers ErrConflict, of kind " +
			"Refused, and doesn't change it",
		run: func(e *env) {
			e.skipWithout(e.store.PutForeign != nil && e.store.ForeignIntact != nil,
				"PutForeign and ForeignIntact")
			for kind := range 4 { // the harness may store several kinds of data
				e.conflicts(fmt.Sprint("foreign", kind))
			}
			e.party("b").acquires("another name", e.longLease())
		}},
	{name: "wipe",
		rule: "After the store has lost its data all locks are free, and former holders begin " +
			"anew",
		run: func(e *env) {
			e.skipWithout(e.store.Wipe != nil, "Wipe")
			a, b, lease := e.party("a"), e.party("b"), e.longLease()
			for _, name := range []string{"released", "renewed", "re-entered", "acquired"} {
				a.acquires(name, lease)
				a.acquires(name, lease)
			}
			e.store.Wipe()
			for _, p := range []party{a, b} {
				e.eventually("a step without an error after Wipe", func() bool {
					_, err := p.s.Look(e.ctx, backend.LookRequest{
						Kind: e.kind, Name: "released", Owner: p.owner,
					})
					return err == nil
				})
			}
			a.seesFree("released")
			a.releases("released", lease, backend.NotHeld)
			a.renews("renewed", lease, false)
			a.seesFree("renewed")
			a.reenters("re-entered", lease, 1)
			a.releases("re-entered", lease, backend.Freed)
			b.reenters("acquired", lease, 1)
			a.releases("acquired", lease, backend.NotHeld)
			a.refused("acquired", lease)
			b.has("acquired", 1)
		}},
	{name: "wipe/counts",
		rule: "A former holder doesn't change what another acquired after the loss, even if the " +
			"store counts anew",
		run: func(e *env) {
			e.skipWithout(e.store.Wipe != nil, "Wipe")
			a, b, lease := e.party("a"), e.party("b"), e.longLease()
			names := []string{"renewed", "released", "re-entered"}
			// Each party begins with an empty store and makes the same calls, so the store gives
			// the locks of both parties the same revisions, versions or ids.
			for _, p := range []party{a, b} {
				e.store.Wipe()
				for _, p := range []party{a, b} {
					e.eventually("a step without an error after Wipe", func() bool {
						_, err := p.s.Look(e.ctx, backend.LookRequest{
							Kind: e.kind, Name: "renewed",
						})
						return err == nil
					})
				}
				for _, name := range names {
					p.acquires(name, lease)
				}
			}
			a.renews("renewed", 2*lease, false)
			a.releases("released", lease, backend.NotHeld)
			if res, err := a.s.Acquire(e.ctx, backend.AcquireRequest{
				Kind: e.kind, Name: "re-entered", Owner: a.owner, Lease: lease, Reentry: true,
			}); err != nil || res.Acquired {
				e.Fatalf("a re-entry into what another holds: acquired %v, %v", res.Acquired, err)
			}
			for _, name := range names {
				b.has(name, 1)
			}
			b.renews("renewed", lease, true)
			b.releases("released", lease, backend.Freed)
			b.reenters("re-entered", lease, 2)
		}},
	{name: "wipe/notifier",
		rule: "After the store has lost its data, releases call Wake again, without a new " +
			"subscription",
		tags: forReaders | forPermits | woken,
		run: func(e *env) {
			e.needNotifier()
			e.skipWithout(e.store.Wipe != nil, "Wipe")
			a, b, lease := e.party("a"), e.party("b"), e.longLease()
			rung, sub := b.subscribe("lock")
			defer sub.Close()
			a.acquires("lock", lease)
			e.store.Wipe()
			// The subscription may miss releases until it has been reopened. After that, a release
			// must reach it.
			e.eventually("Wake after a release after Wipe", func() bool {
				rung.reset()
				if _, err := a.s.Acquire(e.ctx, backend.AcquireRequest{
					Kind: e.kind, Name: "lock", Owner: "a", Lease: lease,
				}); err != nil {
					return false
				}
				if _, err := a.s.Release(e.ctx, backend.ReleaseRequest{
					Kind: e.kind, Name: "lock", Owner: "a", Lease: lease,
				}); err != nil {
					return false
				}
				select {
				case <-rung.rung:
					return true
				case <-time.After(100 * time.Millisecond):
					return false
				}
			})
		}},
}

// conflicts stores foreign data under a name, and checks that every step returns ErrConflict and
// leaves the data alone.
func (e *env) conflicts(name string) {
	e.Helper()
	a, lease := e.party("a"), e.longLease()
	e.store.PutForeign(name)
	if !e.store.ForeignIntact(name) {
		e.Fatal("the harness is wrong: ForeignIntact is false right after PutForeign")
	}
	check := func(step string, err error) {
		e.Helper()
		if !errors.Is(err, backend.ErrConflict) {
			e.Errorf("%s: error %v; want ErrConflict", step, err)
		} else if kind := backend.KindOf(err); kind != backend.Refused {
			e.Errorf("%s: error %q is of kind %d; want Refused", step, err, kind)
		}
		if !e.store.ForeignIntact(name) {
			e.Fatalf("%s has changed what is no lock", step)
		}
	}
	for range 2 {
		_, err := a.s.Acquire(e.ctx, backend.AcquireRequest{
			Kind: e.kind, Name: name, Owner: "a", Lease: lease,
		})
		check("Acquire", err)
		_, err = a.s.Acquire(e.ctx, backend.AcquireRequest{
			Kind: e.kind, Name: name, Owner: "a", Lease: lease, Reentry: true,
		})
		check("Acquire, a re-entry", err)
		_, err = a.s.Release(e.ctx, backend.ReleaseRequest{
			Kind: e.kind, Name: name, Owner: "a", Lease: lease,
		})
		check("Release", err)
		_, err = a.s.Renew(e.ctx, backend.RenewRequest{
			Kind: e.kind, Name: name, Owner: "a", Lease: lease,
		})
		check("Renew", err)
		_, err = a.s.ForceRelease(e.ctx, backend.ForceReleaseRequest{Kind: e.kind, Name: name})
		check("ForceRelease", err)
		_, err = a.s.Look(e.ctx, backend.LookRequest{Kind: e.kind, Name: name, Owner: "a"})
		check("Look", err)
		_, err = a.s.Look(e.ctx, backend.LookRequest{Kind: e.kind, Name: name})
		check("Look without an owner", err)
	}
	if backend.CapabilitiesOf(a.s).BatchRenewer != nil {
		a.acquires(name+" lock", lease)
		start := time.Now()
		results, errs := renewBatch(e, e.ctx, a.s, []backend.RenewRequest{
			{Kind: e.kind, Name: name, Owner: "a", Lease: lease},
			{Kind: e.kind, Name: name + " lock", Owner: "a", Lease: 2 * lease},
		})
		check("RenewBatch", errs[0])
		if errs[1] != nil || !results[1].Held {
			e.Fatalf("RenewBatch, the request beside the conflict: held %v, %v; want held",
				results[1].Held, errs[1])
		}
		a.lasts(name+" lock", 2*lease, start)
	}
}
