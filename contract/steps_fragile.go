package contract

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/contract/faults"
)

// fragileCases test steps whose connection breaks or whose request arrives late. One rule applies
// to all of them: a step is carried out at most once, and its error is truthful.
var fragileCases = []testCase{
	fragileCase("acquire", fragileStep{
		tags: forReaders | forPermits,
		do: func(ctx context.Context, a party, name string) (bool, error) {
			res, err := a.s.Acquire(ctx, backend.AcquireRequest{
				Kind: a.kind, Name: name, Owner: a.owner, Lease: a.e.longLease(),
			})
			return res.Acquired, err
		},
		times: func(e *env, res backend.LookResult) int { return res.Count },
	}),
	fragileCase("re-entry", fragileStep{
		holds: 1,
		do: func(ctx context.Context, a party, name string) (bool, error) {
			res, err := a.s.Acquire(ctx, backend.AcquireRequest{
				Kind: a.kind, Name: name, Owner: a.owner, Lease: a.e.longLease(), Reentry: true,
			})
			return res.Acquired && res.Count == 2, err
		},
		times: func(e *env, res backend.LookResult) int { return res.Count - 1 },
	}),
	fragileCase("release of one of several", fragileStep{
		holds: 3,
		do: func(ctx context.Context, a party, name string) (bool, error) {
			res, err := a.s.Release(ctx, backend.ReleaseRequest{
				Kind: a.kind, Name: name, Owner: a.owner, Lease: a.e.longLease(),
			})
			return res.Outcome == backend.Left, err
		},
		times: func(e *env, res backend.LookResult) int { return 3 - res.Count },
	}),
	fragileCase("last release", fragileStep{
		tags:  forReaders | forPermits,
		holds: 1,
		do: func(ctx context.Context, a party, name string) (bool, error) {
			res, err := a.s.Release(ctx, backend.ReleaseRequest{
				Kind: a.kind, Name: name, Owner: a.owner, Lease: a.e.longLease(),
			})
			return res.Outcome == backend.Freed, err
		},
		times: func(e *env, res backend.LookResult) int { return 1 - res.Count },
	}),
	fragileCase("renew", fragileStep{
		tags:  forReaders | forPermits,
		holds: 1,
		do: func(ctx context.Context, a party, name string) (bool, error) {
			res, err := a.s.Renew(ctx, backend.RenewRequest{
				Kind: a.kind, Name: name, Owner: a.owner, Lease: 2 * a.e.longLease(),
			})
			return res.Held, err
		},
		times: renewed,
	}),
	fragileCase("batch", fragileStep{
		tags:  forReaders | forPermits,
		holds: 1,
		need:  (*env).needBatchRenewer,
		do: func(ctx context.Context, a party, name string) (held bool, err error) {
			reqs := []backend.RenewRequest{{
				Kind: a.kind, Name: name, Owner: a.owner, Lease: 2 * a.e.longLease(),
			}}
			backend.CapabilitiesOf(a.s).BatchRenewer.RenewBatch(ctx, reqs, func(
				_ int, res backend.RenewResult, failed error,
			) {
				held, err = res.Held, failed
			})
			return held, err
		},
		times: renewed,
	}),
	fragileCase("force", fragileStep{
		tags:  forReaders | forPermits,
		holds: 2,
		do: func(ctx context.Context, a party, name string) (bool, error) {
			res, err := a.s.ForceRelease(ctx, backend.ForceReleaseRequest{Kind: a.kind, Name: name})
			return res.Released, err
		},
		times: func(e *env, res backend.LookResult) int {
			if res.Held {
				return 0
			}
			return 1
		},
	}),
}

// renewed returns 1 if the lease was doubled, and 0 otherwise.
func renewed(e *env, res backend.LookResult) int {
	if res.Remaining > e.longLease()+time.Minute {
		return 1
	}
	return 0
}

// A fragileStep is a step to which a fault is applied.
type fragileStep struct {
	tags  Tags
	need  func(*env) // skips the case if the store lacks a feature
	holds int        // number of the owner's holds before the step
	do    func(ctx context.Context, a party, name string) (done bool, err error)
	times func(e *env, after backend.LookResult) int // how often the step was carried out
}

func fragileCase(name string, step fragileStep) testCase {
	return testCase{name: "fragile/" + name,
		rule: "A step whose connection breaks, or whose request comes late, is not repeated by " +
			"the backend, and tells the truth: done, or not done and never to be (Retry), or " +
			"perhaps (Unknown)",
		tags: step.tags,
		run: func(e *env) {
			e.skipWithout(e.store.Fragile != nil, "Fragile")
			if step.need != nil {
				step.need(e)
			}
			back, strike := e.store.Fragile()
			a := e.at(back.Open(), "a")
			e.Cleanup(func() { a.s.Close() })
			f := &fragile{e, a, e.party("b"), strike, step}
			for _, blow := range []faults.Blow{faults.LoseRequest, faults.LoseReply,
				faults.HoldRequest} {
				f.each(blow)
			}
		}}
}

// A fragile holds the state of a case that applies a fault to a step.
type fragile struct {
	e      *env
	a, b   party // the fault hits a's request, and b checks the result
	strike Strike
	step   fragileStep
}

// each repeats the step until the fault has hit each of the step's requests once.
func (f *fragile) each(blow faults.Blow) {
	f.e.Helper()
	const most = 20
	var verdicts []func()
	for n := range most {
		verdict, struck := f.once(fmt.Sprintf("%v, %d", blow, n), blow, n)
		verdicts = append(verdicts, verdict)
		if struck {
			continue
		}
		if n == 0 && blow != faults.HoldRequest {
			f.e.Fatalf("the harness is wrong: a step takes no request that Strike(%v, 0) strikes",
				blow)
		}
		break
	}
	for _, verdict := range verdicts {
		verdict() // late requests must not have changed the result
	}
}

// once lets a fault hit one request of the step, and checks the result. The function verdict
// repeats the check, to find out whether late requests have changed the result.
func (f *fragile) once(name string, blow faults.Blow, n int) (verdict func(), struck bool) {
	f.e.Helper()
	f.e.eventually("a step without an error, after a connection broke", func() bool {
		_, err := f.a.s.Look(f.e.ctx, backend.LookRequest{
			Kind: f.e.kind, Name: name, Owner: f.a.owner,
		})
		return err == nil
	})
	for range f.step.holds {
		f.e.at(f.b.s, f.a.owner).acquires(name, f.e.longLease())
	}
	done, struck, err := f.do(name, blow, sync.OnceValue(f.strike(blow, n)))
	verdict = func() { f.judge(name, done, err) }
	verdict()
	return verdict, struck
}

// do performs the step, and ends the fault once the step has returned, or should have returned. If
// the fault holds the request back, do cancels the step's context after a short wait. The context
// has no deadline, because a backend could pass a deadline on to the server. If the fault breaks
// the connection, the step must return without being canceled. So do then waits longer before it
// cancels the context, because a server may be slow to answer.
func (f *fragile) do(
	name string, blow faults.Blow, end func() bool,
) (done, struck bool, err error) {
	f.e.Helper()
	patience := 5 * time.Second
	if blow == faults.HoldRequest {
		patience = 100 * time.Millisecond
	}
	ctx, cancel := context.WithCancel(f.e.ctx)
	defer cancel()
	returned := make(chan struct{})
	go func() {
		defer close(returned)
		done, err = f.step.do(ctx, f.a, name)
	}()
	for _, next := range []func(){cancel, func() { end() }} {
		select {
		case <-returned:
		case <-time.After(patience):
			next()
		}
	}
	select {
	case <-returned:
	case <-f.e.ctx.Done():
		f.e.Fatalf("%s: the step has not returned", name)
	}
	return done, end(), err
}

// judge checks whether a step was carried out, and whether its result is truthful.
func (f *fragile) judge(name string, done bool, err error) {
	f.e.Helper()
	var after backend.LookResult
	f.e.eventually("the lock can be looked at", func() (ok bool) {
		var failed error
		after, failed = f.b.s.Look(f.e.ctx, backend.LookRequest{
			Kind: f.e.kind, Name: name, Owner: f.a.owner,
		})
		return failed == nil
	})
	times := f.step.times(f.e, after)
	switch kind := backend.KindOf(err); {
	case times < 0 || times > 1:
		f.e.Fatalf("%s: the step was carried out %d times; want at most once", name, times)
	case err == nil && (!done || times != 1):
		f.e.Fatalf("%s: no error; the answer says done %v; and it was carried out %d times", name,
			done, times)
	case err != nil && kind == backend.Refused:
		f.e.Fatalf("%s: error %q is of kind Refused; but another step could be carried out", name,
			err)
	case err != nil && kind == backend.Retry && times > 0:
		f.e.Fatalf("%s: error %q is of kind Retry, but the step was carried out", name, err)
	}
}
