package contract

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/seed951563bd/distsync/backend"
)

// needBatcher returns the Batcher of a new session. It skips the case if the store can't carry out
// several steps in one batch.
func (e *env) needBatcher() backend.Batcher {
	e.Helper()
	b := backend.CapabilitiesOf(e.session()).Batcher
	e.skipWithout(b != nil, "backend.Batcher")
	return b
}

// replied is the answer to one request in a batch.
type replied[Res any] struct {
	res Res
	err error
}

// allAtOnce sends requests in one batch, and checks that each request gets exactly one answer.
func allAtOnce[Req, Res any](
	e *env, ctx context.Context, what string, batch func(
		context.Context, []Req, func(int, Res, error),
	), reqs []Req,
) []replied[Res] {
	e.Helper()
	var mu sync.Mutex
	returned := false
	answers, all := make([]int, len(reqs)), make([]replied[Res], len(reqs))
	batch(ctx, reqs, func(i int, res Res, err error) {
		mu.Lock()
		defer mu.Unlock()
		switch {
		case returned:
			e.Errorf("%s: answer(%d) after it has returned", what, i)
		case i < 0 || i >= len(reqs):
			e.Errorf("%s: answer(%d); there are %d requests", what, i, len(reqs))
		default:
			answers[i]++
			all[i] = replied[Res]{res, err}
		}
	})
	mu.Lock()
	defer mu.Unlock()
	returned = true
	for i, n := range answers {
		if n != 1 {
			e.Fatalf("%s: request %d of %d was answered %d times; want once", what, i, len(reqs), n)
		}
	}
	return all
}

// wantNoErrors fails the test on an error.
func wantNoErrors[Res any](e *env, what string, all []replied[Res]) {
	e.Helper()
	for i, o := range all {
		if o.err != nil {
			e.Fatalf("%s: request %d: %v", what, i, o.err)
		}
	}
}

var togetherCases = []testCase{
	{name: "together/acquire", rule: "AcquireBatch does what Acquire does, for each request",
		run: func(e *env) {
			b, a, other, lease := e.needBatcher(), e.party("a"), e.party("b"), e.longLease()
			a.acquires("mine", lease)
			other.acquires("another's", lease)
			start := time.Now()
			got := allAtOnce(e, e.ctx, "AcquireBatch", b.AcquireBatch, []backend.AcquireRequest{
				{Kind: e.kind, Name: "another's", Owner: "a", Lease: lease},
				{Kind: e.kind, Name: "free", Owner: "a", Lease: lease},
				{Kind: e.kind, Name: "mine", Owner: "a", Lease: 2 * lease, Reentry: true},
				{Kind: e.kind, Name: "free, too", Owner: "c", Lease: 3 * lease},
			})
			wantNoErrors(e, "AcquireBatch", got)
			for i, o := range got {
				if o.res.Acquired != (i > 0) {
					e.Fatalf("AcquireBatch: request %d: acquired %v; want %v", i, o.res.Acquired,
						i > 0)
				}
			}
			e.checkRemaining("AcquireBatch", got[0].res.Remaining, lease, start)
			if got[2].res.Count != 2 {
				e.Fatalf("AcquireBatch, a re-entry: Count %d; want 2", got[2].res.Count)
			}
			other.has("another's", 1)
			a.has("free", 1)
			a.has("mine", 2)
			a.lasts("free", lease, start)
			a.lasts("mine", 2*lease, start)
			c := e.party("c")
			c.has("free, too", 1)
			c.lasts("free, too", 3*lease, start)
		}},
	{name: "together/release", rule: "ReleaseBatch does what Release does, for each request",
		run: func(e *env) {
			b, a, other, lease := e.needBatcher(), e.party("a"), e.party("b"), e.longLease()
			a.acquires("once", lease)
			a.acquires("twice", lease)
			a.acquires("twice", lease)
			other.acquires("another's", lease)
			other.acquires("another's, too", lease)
			start := time.Now()
			got := allAtOnce(e, e.ctx, "ReleaseBatch", b.ReleaseBatch, []backend.ReleaseRequest{
				{Kind: e.kind, Name: "another's", Owner: "a", Lease: lease},
				{Kind: e.kind, Name: "once", Owner: "a", Lease: lease},
				{Kind: e.kind, Name: "twice", Owner: "a", Lease: 2 * lease},
				{Kind: e.kind, Name: "another's, too", Owner: "b", Lease: lease, AskWaiting: true},
				{Kind: e.kind, Name: "free", Owner: "a", Lease: lease},
			})
			wantNoErrors(e, "ReleaseBatch", got)
			for i, want := range []backend.ReleaseOutcome{backend.NotHeld, backend.Freed,
				backend.Left, backend.Freed, backend.NotHeld} {
				if o := got[i].res.Outcome; o != want {
					e.Fatalf("ReleaseBatch: request %d: %v; want %v", i, o, want)
				}
			}
			other.has("another's", 1)
			a.has("twice", 1)
			a.lasts("twice", 2*lease, start)
			a.seesFree("once")
			a.seesFree("another's, too")
		}},
	{name: "together/many",
		rule: "AcquireBatch and ReleaseBatch answer each of many requests exactly once",
		run: func(e *env) {
			const n = 250
			b, other, lease := e.needBatcher(), e.party("b"), e.longLease()
			acquires, releases := make([]backend.AcquireRequest, n),
				make([]backend.ReleaseRequest, n)
			for i := range n {
				name := fmt.Sprint("lock", i)
				if i%10 == 0 {
					other.acquires(name, lease)
				}
				acquires[i] = backend.AcquireRequest{
					Kind: e.kind, Name: name, Owner: "a", Lease: lease,
				}
				releases[i] = backend.ReleaseRequest{
					Kind: e.kind, Name: name, Owner: "a", Lease: lease,
				}
			}
			got := allAtOnce(e, e.ctx, "AcquireBatch", b.AcquireBatch, acquires)
			wantNoErrors(e, "AcquireBatch", got)
			freed := allAtOnce(e, e.ctx, "ReleaseBatch", b.ReleaseBatch, releases)
			wantNoErrors(e, "ReleaseBatch", freed)
			for i := range n {
				if want := i%10 > 0; got[i].res.Acquired != want ||
					(freed[i].res.Outcome == backend.Freed) != want {
					e.Fatalf("request %d: acquired %v, then %v; want acquired %v, and then freed",
						i, got[i].res.Acquired, freed[i].res.Outcome, want)
				}
			}
			allAtOnce(e, e.ctx, "AcquireBatch", b.AcquireBatch, nil)
			allAtOnce(e, e.ctx, "ReleaseBatch", b.ReleaseBatch, nil)
		}},
	{name: "together/notifier", rule: "ReleaseBatch wakes the waiters for each lock that it frees",
		tags: woken,
		run: func(e *env) {
			e.needNotifier()
			b, a, lease := e.needBatcher(), e.party("a"), e.longLease()
			var reqs []backend.ReleaseRequest
			var rung []*bell
			for _, name := range []string{"one", "two", "three"} {
				a.acquires(name, lease)
				bell, sub := e.party("b").subscribe(name)
				defer sub.Close()
				rung = append(rung, bell)
				reqs = append(reqs, backend.ReleaseRequest{
					Kind: e.kind, Name: name, Owner: "a", Lease: lease,
				})
			}
			wantNoErrors(e, "ReleaseBatch",
				allAtOnce(e, e.ctx, "ReleaseBatch", b.ReleaseBatch, reqs))
			for i, bell := range rung {
				bell.waits(e, "the release of "+reqs[i].Name)
			}
		}},
	{name: "together/context over",
		rule: "AcquireBatch and ReleaseBatch answer each request exactly once even if their " +
			"context has ended, and report the truth",
		run: func(e *env) {
			b, a, lease := e.needBatcher(), e.party("a"), e.longLease()
			a.acquires("mine", lease)
			over, cancel := context.WithCancel(e.ctx)
			cancel()
			truth := func(what string, err error, said, done bool) {
				e.Helper()
				switch {
				case err == nil && said != done:
					e.Fatalf("%s says that it was carried out: %v; and it was: %v", what, said,
						done)
				case err != nil && backend.KindOf(err) == backend.Refused:
					e.Fatalf("%s: error %q is of kind Refused; but another could succeed", what,
						err)
				case err != nil && backend.KindOf(err) == backend.Retry && done:
					e.Fatalf("%s: error %q is of kind Retry, but it was carried out", what, err)
				}
			}
			for i, o := range allAtOnce(e, over, "AcquireBatch", b.AcquireBatch,
				[]backend.AcquireRequest{
					{Kind: e.kind, Name: "free 0", Owner: "a", Lease: lease},
					{Kind: e.kind, Name: "free 1", Owner: "a", Lease: lease},
				}) {
				truth("AcquireBatch", o.err, o.res.Acquired,
					a.look(fmt.Sprint("free ", i)).Count == 1)
			}
			o := allAtOnce(e, over, "ReleaseBatch", b.ReleaseBatch,
				[]backend.ReleaseRequest{{Kind: e.kind, Name: "mine", Owner: "a", Lease: lease}})[0]
			truth("ReleaseBatch", o.err, o.res.Outcome == backend.Freed, !a.look("mine").Held)
		}},
}
