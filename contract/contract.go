// Package contract is the test suite that every store for distributed locks passes. If you write a
// backend (see package [github.com/seed951563bd/distsync/backend]), call [Run] in a test: a failure
// names the rule that was broken.
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
// The fields of [Store] make a store lose its data or its connections, among others. Cases that need
// a missing field are skipped, and say so. A store declares its kinds of lock in [backend.Limits]:
// cases for other kinds are skipped, except one that checks that the store refuses them.
//
// The suite has these parts:
//
//   - "steps" checks each step of a session on its own, sentence by sentence of the comments in package
//     backend.
//   - "model" runs random steps by several owners and compares every answer with a plain model of what a
//     name can hold.
//   - "locker" checks that a [dlock.Locker] keeps its promises on this store, and that the trace of
//     its client adds up in each case.
//   - "histories" has random users of several clients make calls, with faults of all kinds in between.
//     It looks for an order of their calls in which one lock could have given these answers. If there
//     is none, the history is written into a folder whose path is printed, or into the artifacts of
//     go test -artifacts; DISTSYNC_HISTORY_SEED repeats it.
//
// Cases about a lock with one holder are run for plain locks, and again for each other such kind: "as
// fenced", "as write" and "as fair"; some also "as read", and "as permits" for a semaphore with one
// permit. Each kind has cases of its own, too: tokens; readers beside readers, and notes of writers;
// permits, their number, and that all come back; the order of a line, and its places. If the store
// can keep a released lock taken, that is tested, and so are an [backend.Inspector] and a
// [backend.Lister].
//
// In real time leases go on while a machine does something else. A case that fails while the machine
// stood still for a moment, or while many more wanted its processors than it has, is run again, twice
// at most, and the first failures are only printed. That isn't done for cases that look whether two
// have a lock at once, nor for "model" and "histories".
//
// All cases are run, or those that [Harness].Choose chooses by their part, name and tags.
//
// Tests run one after the other, since each checks at its end that no goroutine is left behind.
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

// Harness makes stores for the suite.
type Harness struct {
	// NewStore returns an empty store for one test, and cleans up with t.Cleanup: after that no
	// goroutine may be left. The suite calls it once per test, and not concurrently. If Virtual is
	// set, it is called inside the bubble of that test.
	NewStore func(t *testing.T) Store

	// Virtual says that the store's time is that of the process, so that every test can run in a
	// bubble of testing/synctest, in which time costs nothing. The whole store must then be in the
	// process: a goroutine that waits for a real network, or for a sync.Mutex, stops the bubble's
	// clock. Otherwise real time passes.
	Virtual bool

	// Lingering names goroutines that the store's client library leaves behind for some time after
	// it was closed. No test waits for them. It is nil for most.
	Lingering []goleak.Option

	// Choose, unless it is nil, says which cases are run. It is asked before anything of a case is
	// done, always in the same order, and nothing is printed of those that it leaves out. A store
	// that is looked at beside a sibling may do with a part of the suite, or with its [Essential]
	// cases; a store that is being written may begin with its "steps".
	Choose func(c Case) bool

	part          string         // of the suite
	again         bool           // the cases have been run in another way
	clientOptions []dlock.Option // of the clients in the cases for Lockers, beside their own
	untraced      bool           // they tell nobody what they do: otherwise it is looked whether that adds up
	kind          backend.Kind   // of the locks in cases that run for several
	lacking       *bool          // set if the store doesn't have that kind
}

// Store is one store as the suite uses it.
type Store struct {
	// Backend returns a backend on this store. Each call returns what another process would have,
	// with its own connection. The cleanup of NewStore's t closes what it opens.
	Backend func() backend.Backend

	// The fields below are optional. Where one is nil the tests that need it are skipped, and say
	// so.

	// PutForeign puts something that is no lock in the place of the lock of this name. It is called
	// for several names, and may put something else each time.
	PutForeign func(name string)

	// ForeignIntact says whether the thing that PutForeign put there is still there, unchanged.
	ForeignIntact func(name string) bool

	// Wipe loses all data at once, like a server that restarts without persistence. The store's
	// counters (revisions, versions, ids) begin anew, so deleting everything is not enough if they
	// go on counting. Connections may break or not.
	Wipe func()

	// BreakSubscriptions cuts every client's connection for notifications. The backends should
	// reconnect.
	BreakSubscriptions func()

	// OwnersApart says that only the session that acquired a lock knows an owner's holds, since no
	// two clients have the same owner. Cases in which two sessions act for one owner are skipped
	// then, or use one session.
	OwnersApart bool

	// Fragile returns a backend as Backend does, and a Strike that harms its connection to the
	// store. Only with it can the suite find a backend that repeats steps which may have been
	// carried out, or says that they were not. If the store is a server, put a proxy of package
	// faults in between; see the example.
	Fragile func() (backend.Backend, Strike)

	// Parts are for a store of several parts that goes on without any one of them. Each hangs one
	// part until resume is called, like a stopped process: it answers nothing, closes no
	// connection, and may carry out later what it was asked meanwhile.
	Parts []func() (resume func())
}

// Strike hits the nth request, from 0, of those that a backend sends from now on; a step may take
// several. End says whether there was such a request. If there was none, it calls the blow off. A
// request that was held back is carried out before end returns. If a harness doesn't have a blow,
// end says false.
//
// It is the method Strike of [faults.Proxy]. A store inside the process may let a commit fail
// before or after it has happened.
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
	// caseLimit is how long a case may take before the suite gives up on it. A case that only
	// waits for the store fails by itself at that point, since the context of its env ends; one
	// that hangs in code that looks at no context ends the process, as go test -timeout does,
	// because there is no other way to stop it.
	caseLimit = 2 * time.Minute

	// virtualCaseLimit is when the env's context ends in a bubble, where waiting is free.
	virtualCaseLimit = 24 * time.Hour
)

// runWithoutHandover runs again the cases for Lockers in which a lock may be handed on inside a client,
// for clients that don't do that: all of them where time costs nothing.
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

// testCase is one test of the suite.
type testCase struct {
	name string
	rule string // what a store, or a Locker on it, must do; shown when the test fails
	tags Tags
	run  func(e *env)
}

// env is what a case has at hand: a test, and a store of its own.
type env struct {
	*testing.T
	ctx   context.Context // ends with the case, or when it takes too long
	rule  string
	h     Harness
	store Store
	kind  backend.Kind // that the case is run for: [backend.Exclusive], but where it says otherwise

	pulse   *pulse
	excused *atomic.Bool // set when the machine was the excuse for what went wrong; nil: it is none

	clients []*faultyBackend

	limits func() backend.Limits
}

func runCases(t *testing.T, h Harness, cases []testCase) {
	for _, c := range cases {
		c.runIn(t, h)
	}
}

// runCase runs one case and what every case is checked for: that it ends, and that it leaves no
// goroutine behind. It sets excused, if that isn't nil, where the machine may be at fault for what was wrong.
func runCase(t *testing.T, h Harness, c testCase, excused *atomic.Bool) {
	watchdog := time.AfterFunc(2*caseLimit, func() {
		panic(fmt.Sprintf("%s hangs\nrule: %s", t.Name(), c.rule))
	})
	defer watchdog.Stop()
	if h.Virtual {
		inBubble(t, c.rule, func(t *testing.T) { c.run(newEnv(t, h, c.rule)) })
		return
	}
	allowed := append(slices.Clone(h.Lingering), goleak.IgnoreCurrent())
	t.Cleanup(func() { checkLeaks(t, c.rule, allowed) }) // the first cleanup is the last to run
	e := newEnv(t, h, c.rule)
	if excused != nil {
		e.pulse, e.excused = startPulse(), excused
		t.Cleanup(e.pulse.end)
	}
	c.run(e)
}

// inBubble is synctest.Test, but for two things: a skip inside is a skip outside, and the panic about
// goroutines that are left in the bubble becomes a failure of this test alone.
func inBubble(t *testing.T, rule string, f func(t *testing.T)) {
	var inner *testing.T
	defer func() {
		if p := recover(); p != nil {
			t.Errorf("%v: goroutines wait for what will never come, or were left behind\nrule: %s", p, rule)
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

// checkLeaks fails t if goroutines are left but for those allowed.
func checkLeaks(t *testing.T, rule string, allowed []goleak.Option) {
	// goleak itself looks for less than two seconds, which a busy machine exceeds.
	var err error
	for range 10 {
		if err = goleak.Find(allowed...); err == nil {
			return
		}
	}
	t.Errorf("goroutines left behind: %v\nrule: %s", err, rule)
}

func newEnv(t *testing.T, h Harness, rule string) *env {
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("rule: %s", rule)
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

// session opens a session on a backend of its own, as another process would, and closes it when the
// case ends.
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

// lease returns a lease for tests in which leases are renewed or run out: long enough not to run out
// where the test is merely slow in between, short enough to be waited for. In a bubble it is 30 s,
// otherwise a second or what the store can do.
func (e *env) lease() time.Duration {
	if e.h.Virtual {
		return e.legal(30 * time.Second)
	}
	return e.legal(time.Second)
}

// longLease returns a lease that doesn't run out during the case, however slow the machine.
func (e *env) longLease() time.Duration { return e.legal(time.Hour) }

// shortLease returns a lease to be waited for. It may be over before the next step is sent.
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

// sleep lets d pass. Its use is to let leases run out; for everything else there is eventually.
func (e *env) sleep(d time.Duration) { time.Sleep(d) }

// eventually waits until cond says true, and fails the test if that takes longer than any working
// store on a busy machine could.
func (e *env) eventually(what string, cond func() bool) {
	e.Helper()
	limit := 30 * time.Second
	if e.h.Virtual {
		limit = 5 * time.Minute // must cover lease, which is longer there
	}
	start := time.Now()
	for pause := time.Millisecond; !cond(); pause = min(2*pause, 50*time.Millisecond) {
		if time.Since(start) > limit {
			e.Fatalf("after %v still not: %s", limit, what)
		}
		time.Sleep(pause)
	}
}

// skipWithout skips the case if the harness lacks something.
func (e *env) skipWithout(has bool, what string) {
	e.Helper()
	if !has {
		e.Skipf("the store of this harness has no %s", what)
	}
}
