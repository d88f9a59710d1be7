// Package contract is a test suite for stores of distributed locks. To test a backend, an
// implementation of the interfaces in package [github.com/seed951563bd/distsync/backend], call
// [Run]. A failure names the rule that the backend breaks.
//
//	func TestContract(t *testing.T) {
//		contract.Run(t, contract.Harness{
//			NewStore: func(t *testing.T) contract.Store {
//				store := startMyStore(t) // which stops it with t.Cleanup
//				return contract.Store{
//					Backend: func() backend.Backend { return mybackend.New(store.Connect(t)) },
//				}
//			},
//		})
//	}
//
// The fields of [Store] let the suite inject faults, such as a loss of data or of connections.
// Cases that need a missing field are skipped with a message. A store declares its kinds of lock in
// [backend.Limits]. Cases for other kinds are skipped, except one that checks that the store
// refuses them.
//
// The suite has these parts:
//
//   - "steps" checks each step of a session on its own. It follows the documentation of package
//     backend sentence by sentence.
//   - "model" runs random steps by several owners, and compares every answer with a simple model of
//     the lock.
//   - "locker" checks that a [dlock.Locker] works on this store as documented, and that the events
//     of its client's [dlock.Trace] are consistent.
//   - "histories" lets several clients make random calls while it injects faults of all kinds. Then
//     it searches for an order of the calls in which a single lock would have given the same
//     answers. If there is none, it writes the history to a directory and prints its path. With go
//     test -artifacts, that is the artifact directory of the test. Set DISTSYNC_HISTORY_SEED to
//     repeat a run.
//
// Cases about locks that have at most one holder run for plain locks, and again for each other kind
// that has at most one: "as fenced", "as write" and "as fair". Some also run "as read" and, for a
// semaphore with one permit, "as permits". Each kind also has its own cases: about fencing tokens,
// concurrent readers, writers that wait, numbers of permits, and the line of a Fair lock. There are
// also cases for a store that can keep a released lock taken, for a [backend.Inspector] and for a
// [backend.Lister].
//
// In real time, a lease may run out while a busy machine isn't running the test. So a failed case
// is run again, at most twice, if the machine stalled for a moment or its processors were
// overloaded. Failures before the last run are only printed. Cases that look for two holders at the
// same time, and the parts "model" and "histories", aren't run again.
//
// By default all cases run. [Harness].Choose can select cases by part, name and tags.
//
// Tests run serially, because each test checks for leaked goroutines when it ends.
package contract

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/contract/faults"
	"github.com/seed951563bd/distsync/dlock"
)

// A Harness creates stores for the suite and describes how to test them.
type Harness struct {
	// NewStore returns a new, empty store for one test. It registers its cleanup with t.Cleanup,
	// and no goroutine may be left after the cleanup. The suite calls NewStore once per test, never
	// concurrently. If Virtual is set, the call happens inside the test's synctest bubble.
	NewStore func(t *testing.T) Store

	// Virtual says that the store uses the clock of the process, so that tests can run in a bubble
	// of testing/synctest, where waiting takes no time. The whole store must then be in the
	// process: a goroutine that waits for a real network, or for a sync.Mutex, stops the bubble's
	// clock. If Virtual isn't set, the tests run in real time.
	Virtual bool

	// Lingering matches goroutines that the store's client library leaves running for a while after
	// a client is closed. The leak checks ignore these goroutines. Lingering is nil for most
	// stores.
	Lingering []goleak.Option

	// Choose, if not nil, reports whether to run a case. It is called before each case, always in
	// the same order. Cases that it leaves out aren't mentioned in the output. If one variant of a
	// store is tested with all cases, the [Essential] cases can be enough for the others. When you
	// write a new store, begin with the cases of the part "steps".
	Choose func(c Case) bool

	part          string         // part of the suite
	again         bool           // set if cases run again, for another kind or without hand-over
	clientOptions []dlock.Option // extra options of the clients in the cases for Lockers
	// set if the clients have no Trace; otherwise each case checks that the Trace is consistent
	untraced bool
	kind     backend.Kind // kind of lock, in cases that run for several kinds
	lacking  *bool        // set by the first case if the store doesn't support this kind
}

// A Store is the store under test, with optional hooks that inject faults into it.
type Store struct {
	// Backend returns a backend for this store. Each call simulates another process, so it returns
	// a backend with its own connection. The cleanup that NewStore registers closes that
	// connection.
	Backend func() backend.Backend

	// The fields below are optional. If one is nil, the tests that need it are skipped with a
	// message.

	// PutForeign stores data that isn't a lock under the key that the store would use for the lock
	// with this name. It is called for several names, and can store different data each time.
	PutForeign func(name string)

	// ForeignIntact reports whether the data that PutForeign stored is still there, unchanged.
	ForeignIntact func(name string) bool

	// Wipe erases all data at once, like a server that restarts without persistence. The store's
	// counters (revisions, versions, ids) must also start over, so it might not be enough to delete
	// everything. Wipe may break connections.
	Wipe func()

	// BreakSubscriptions cuts every client's connection for notifications. The backends should then
	// reconnect.
	BreakSubscriptions func()

	// OwnersApart says that a session doesn't know of locks that another session has acquired, even
	// for the same owner. That is the case if the store combines several stores into a quorum. The
	// suite then skips cases in which two sessions act for one owner, or runs them with a single
	// session. Clients of package dlock work with such a store, because they never share an owner.
	// The store is also allowed to refuse a free lock for a moment, while a failed attempt gives
	// back its votes. The check of histories allows for that.
	OwnersApart bool

	// Fragile returns a backend as Backend does, and a Strike that disturbs its connection to the
	// store. Without Fragile, the suite can't find two mistakes in a backend: repeating a step that
	// might have been carried out, and reporting that such a step wasn't carried out.
	// If the store is a server, put a proxy of package faults between the backend and the server,
	// as in the example.
	Fragile func() (backend.Backend, Strike)

	// Parts contains one function for each part of the store. It is for stores that keep working
	// while any one of their parts is down. Each function makes its part hang, like a stopped
	// process, until resume is called. A part that hangs answers no request and closes no
	// connection. It may carry out the requests later.
	Parts []func() (resume func())
}

// A Strike applies a fault to the nth request, counted from 0, that a backend sends from now on. A
// step can take several requests. The function end reports whether the fault has hit a request. If
// not, end cancels the fault. If the fault held the request back, the store carries that request
// out before end returns. If a harness doesn't support a kind of fault, end returns false.
//
// The method [faults.Proxy.Strike] is a Strike. For a store inside the process, a Strike can
// instead make a step return an error before or after its commit.
type Strike func(blow faults.Blow, n int) (end func() (struck bool))

// Run runs the suite as subtests of t.
func Run(t *testing.T, h Harness) {
	t.Helper()
	if h.NewStore == nil {
		t.Fatal("contract.Run: Harness.NewStore is nil")
	}
	for _, part := range []struct {
		name string
		run  func(*testing.T, Harness)
	}{
		{"steps", runSteps},
		{"model", runModel},
		{"locker", runLocker},
		{"locker without hand-over", runWithoutHandover},
		{"histories", runHistories},
	} {
		t.Run(part.name, func(t *testing.T) {
			h.part = part.name
			part.run(t, h)
		})
	}
}

const (
	// caseLimit is the time limit of a case. When it is reached, the context of the case's env
	// ends, so a case that waits for the store fails. A case that ignores its context can't be
	// stopped. The suite then ends the whole process with a panic, as go test -timeout does.
	caseLimit = 2 * time.Minute

	// virtualCaseLimit is the time limit of a case in a bubble, where waiting costs nothing.
	virtualCaseLimit = 24 * time.Hour
)

// runWithoutHandover runs the cases for Lockers again, with clients whose hand-over is disabled. In
// real time it runs only the cases about waiting.
func runWithoutHandover(t *testing.T, h Harness) {
	h.again = true
	h.clientOptions, h.untraced = []dlock.Option{dlock.WithHandover(0)}, true
	if h.Virtual {
		runCases(t, h, lockerCases)
		runCases(t, h, kindLockerCases)
		runKind(t, h, backend.Write, lockerCases)
		return
	}
	runCases(t, h, waitCases)
}

// testCase is one case of the suite.
type testCase struct {
	name string
	rule string // what the store, or a Locker on it, must do; printed if the test fails
	tags Tags
	run  func(e *env)
}

// env is the environment of a case: a test, and its own store.
type env struct {
	*testing.T
	ctx   context.Context // ends with the case, or at its time limit
	rule  string
	h     Harness
	store Store
	kind  backend.Kind // kind of lock that the case runs for; [backend.Exclusive] by default

	pulse   *pulse
	excused *atomic.Bool // set when a slow machine excuses a failure; nil if failures always count

	clients []*faultyBackend

	limits func() backend.Limits
}

func runCases(t *testing.T, h Harness, cases []testCase) {
	for _, c := range cases {
		c.runIn(t, h)
	}
}

// runCase runs one case, and checks that it ends and leaves no goroutine behind. If excused isn't
// nil, runCase sets it when the machine may have caused a failure.
func runCase(t *testing.T, h Harness, c testCase, excused *atomic.Bool) {
	watchdog := time.AfterFunc(2*caseLimit, func() {
		panic(fmt.Sprintf("%s hangs; the rule of this case: %s", t.Name(), c.rule))
	})
	defer watchdog.Stop()
	if h.Virtual {
		inBubble(t, c.rule, func(t *testing.T) { c.run(newEnv(t, h, c.rule)) })
		return
	}
	allowed := append(slices.Clone(h.Lingering), goleak.IgnoreCurrent())
	// cleanups run in reverse order, so this one runs last
	t.Cleanup(func() { checkLeaks(t, c.rule, allowed) })
	e := newEnv(t, h, c.rule)
	if excused != nil {
		e.pulse, e.excused = startPulse(), excused
		t.Cleanup(e.pulse.end)
	}
	c.run(e)
}

// inBubble is like synctest.Test, with two differences. If f skips its test, t is skipped as well.
// If goroutines are left in the bubble, only this test fails: the panic of synctest is recovered.
func inBubble(t *testing.T, rule string, f func(t *testing.T)) {
	var inner *testing.T
	defer func() {
		if p := recover(); p != nil {
			t.Errorf("%v: goroutines wait for what will never come, or were "+
				"left behind; the rule of this case: %s",
				p, rule)
		}
	}()
	synctest.Test(t, func(t *testing.T) {
		inner = t
		f(t)
	})
	if inner.Skipped() {
		t.SkipNow()
	}
}

// checkLeaks fails t if goroutines are left, other than the allowed ones.
func checkLeaks(t *testing.T, rule string, allowed []goleak.Option) {
	// goleak itself retries for less than two seconds, which isn't enough on a busy machine.
	var err error
	for range 10 {
		if err = goleak.Find(allowed...); err == nil {
			return
		}
	}
	t.Errorf("goroutines left behind: %v; the rule of this case: %s", err, rule)
}

func newEnv(t *testing.T, h Harness, rule string) *env {
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the rule of this case: %s", rule)
		}
	})
	limit := caseLimit
	if h.Virtual {
		limit = virtualCaseLimit
	}
	e := &env{T: t, rule: rule, h: h, store: h.NewStore(t), kind: h.kind}
	if h.kind == backend.Permits {
		e.store = e.store.withOnePermit()
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	t.Cleanup(cancel)
	e.ctx = ctx
	e.limits = sync.OnceValue(func() backend.Limits { return e.store.Backend().Limits() })
	if h.kind != backend.Exclusive && !e.limits().Kinds.Has(h.kind) {
		*h.lacking = true
		e.skipWithout(false, h.kind.String()+" locks")
	}
	return e
}

// session opens a session on a new backend, as another process would. The session is closed when
// the case ends.
func (e *env) session() backend.Session {
	e.Helper()
	s := e.store.Backend().Open()
	e.Cleanup(func() {
		if err := s.Close(); err != nil {
			e.Errorf("Session.Close: %v", err)
		}
	})
	return s
}

// lease returns a lease for tests in which leases are renewed or expire. It is long enough for a
// test that is a little slow, and short enough to wait for. In a bubble it is 30 s, otherwise a
// second, or the shortest lease of the store if that is longer.
func (e *env) lease() time.Duration {
	if e.h.Virtual {
		return e.legal(30 * time.Second)
	}
	return e.legal(time.Second)
}

// longLease returns a lease that doesn't expire during the case, however slow the machine.
func (e *env) longLease() time.Duration { return e.legal(time.Hour) }

// shortLease returns a lease for tests that wait until it expires. It might expire even before the
// next step is sent.
func (e *env) shortLease() time.Duration { return e.legal(100 * time.Millisecond) }

// legal returns the shortest lease of at least d that the store's limits allow.
func (e *env) legal(d time.Duration) time.Duration {
	l, step := e.limits(), e.leaseStep()
	d = max(d, l.MinLease)
	return (d + step - 1) / step * step
}

// leaseStep returns the unit in which the store counts leases.
func (e *env) leaseStep() time.Duration {
	if step := e.limits().LeaseStep; step > 0 {
		return step
	}
	return time.Millisecond
}

// sleep waits for d, to let leases expire. To wait for anything else, use eventually.
func (e *env) sleep(d time.Duration) { time.Sleep(d) }

// eventually waits until cond returns true. It fails the test if that takes longer than a working
// store could need, even on a busy machine.
func (e *env) eventually(what string, cond func() bool) {
	e.Helper()
	limit := 30 * time.Second
	if e.h.Virtual {
		limit = 5 * time.Minute // longer than e.lease, which is 30 s or more in a bubble
	}
	start := time.Now()
	for pause := time.Millisecond; !cond(); pause = min(2*pause, 50*time.Millisecond) {
		if time.Since(start) > limit {
			e.Fatalf("after %v still not: %s", limit, what)
		}
		time.Sleep(pause)
	}
}

// skipWithout skips a case that needs a certain capability, if the store doesn't have it. The
// string describes the capability.
func (e *env) skipWithout(has bool, what string) {
	e.Helper()
	if !has {
		e.Skipf("the store of this harness has no %s", what)
	}
}
