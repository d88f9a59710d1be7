package dlock

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/dlock/internal/protocol"
	"github.com/seed951563bd/distsync/membackend"
)

// An allLab is what a test of All has at hand.
type allLab struct {
	*testing.T
	relay    *script // nil where the steps of the store never wait
	store    backend.Backend
	c, other *Client // the other on the same store, with nothing in between
	ledger   ledger
}

var abc = []string{"a", "b", "c"}

// withAll runs a test on stores that take several steps at once, that don't, and that never wait.
func withAll(t *testing.T, run func(*allLab), opts ...Option) {
	for _, kind := range []string{"together", "apart", "prompt"} {
		t.Run(kind, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := &allLab{T: t}
				mem := membackend.New()
				if l.store = mem; kind != "prompt" {
					l.relay = newScript(mem).together(kind == "together")
					l.relay.wire = 2 * time.Millisecond
					l.store = l.relay
				}
				l.c = New(l.store, append([]Option{quiet(), l.ledger.trace()}, opts...)...)
				l.other = New(mem, quiet())
				run(l)
				if l.relay != nil {
					l.relay.set(nil)
				}
				// so that take-backs are over, and losses are forgotten
				time.Sleep(3 * DefaultLease)
				l.eventuallyIdle(l.c)
				l.c.Close()
				l.other.Close()
				synctest.Wait()
				l.ledger.balance(t)
			})
		})
	}
}

func (l *allLab) eventuallyIdle(c *Client) {
	l.Helper()
	time.Sleep(lossMemory * c.lease)
	empty(l.T, c)
}

// all returns the Lockers of the tested client together.
func (l *allLab) all(names ...string) *MultiLocker { return All(lockers(l.c, names...)...) }

// holds says which of a, b and c are held in the store.
func (l *allLab) holds() string {
	l.Helper()
	held := ""
	for _, name := range abc {
		is, err := l.other.Locker(name).IsLocked(context.Background())
		if err != nil {
			l.Fatal(err)
		}
		if is {
			held += name
		}
	}
	return held
}

func (l *allLab) wantHeld(when, want string) {
	l.Helper()
	if got := l.holds(); got != want {
		l.Errorf("%s: %q are held, want %q", when, got, want)
	}
}

// wantErr fails the test if err isn't an *Error of that operation, about that lock, with these
// inside.
func (l *allLab) wantErr(what string, err error, op, name string, inside ...error) {
	l.Helper()
	e, ok := errors.AsType[*Error](err)
	if !ok || e.Op != op || e.Name != name {
		l.Errorf("%s: %v; want an *Error of %s about %q", what, err, op, name)
	}
	for _, target := range inside {
		if !errors.Is(err, target) {
			l.Errorf("%s: %v; want one that is %q", what, err, target)
		}
	}
	for _, other := range []error{ErrHeld, ErrUnavailable, ErrNotAcquired, ErrLost,
		context.Canceled, context.DeadlineExceeded} {
		if errors.Is(err, other) &&
			!slices.ContainsFunc(inside, func(e error) bool { return errors.Is(e, other) }) {
			l.Errorf("%s: %v; which should not be %q", what, err, other)
		}
	}
}

func TestAllOrNone(t *testing.T) {
	withAll(t, func(l *allLab) {
		m := l.all("c", "a", "b")
		m.Lock()
		l.wantHeld("locked", "abc")
		m.Unlock()
		l.wantHeld("unlocked", "")
		if ok, err := m.TryLock(l.Context()); !ok || err != nil {
			l.Errorf("TryLock = %v, %v", ok, err)
		}
		l.wantHeld("locked", "abc")
		if err := m.UnlockContext(l.Context()); err != nil {
			l.Error(err)
		}

		mustTry(l.T, l.other.Locker("b"))
		if ok, err := m.TryLock(l.Context()); ok || err != nil {
			l.Errorf("TryLock where one is held = %v, %v", ok, err)
		}
		l.wantHeld("not locked", "b")
		l.wantErr("Wait(0)", m.LockContext(l.Context(), Wait(0)), "lock", "b", ErrNotAcquired,
			ErrHeld)
		began := time.Now()
		l.wantErr("Wait", m.LockContext(l.Context(), Wait(time.Second)), "lock", "b",
			ErrNotAcquired, ErrHeld)
		if took := time.Since(began); took != time.Second {
			l.Errorf("a wait of a second took %v", took)
		}
		ctx, cancel := context.WithTimeout(l.Context(), time.Second)
		defer cancel()
		_, err := m.Acquire(ctx)
		l.wantErr("a deadline", err, "acquire", "b", context.DeadlineExceeded, ErrHeld)
		synctest.Wait()
		l.wantHeld("not locked", "b")
		l.other.Locker("b").ForceUnlock(l.Context())
	})
}

func TestAllWaitsWithNothingInHand(t *testing.T) {
	withAll(t, func(l *allLab) {
		b, c := l.other.Locker("b"), l.other.Locker("c")
		mustTry(l.T, b)
		var in atomic.Bool
		go func() {
			l.all(abc...).Lock()
			in.Store(true)
		}()
		for range 100 {
			time.Sleep(time.Second)
			l.wantHeld("while it waits", "b")
		}
		mustTry(l.T, c)
		b.Unlock()
		time.Sleep(time.Second)
		l.wantHeld("while it waits for another", "c")
		if in.Load() {
			l.Fatal("it has c, which is another's")
		}
		c.Unlock()
		time.Sleep(time.Second)
		if !in.Load() {
			l.Error("it hasn't got in")
		}
		l.wantHeld("when it is in", "abc")
		for _, locker := range lockers(l.c, abc...) {
			if _, err := locker.ForceUnlock(l.Context()); err != nil {
				l.Error(err)
			}
		}
	})
}

func TestAllStandsInLineForAFairLock(t *testing.T) {
	withAll(t, func(l *allLab) {
		fair := l.other.FairLocker("f")
		mustTry(l.T, fair)
		m := All(l.c.Locker("a"), l.c.FairLocker("f"))
		order := make(chan string, 2)
		var all sync.WaitGroup
		all.Go(func() {
			m.Lock()
			order <- "first"
			time.Sleep(time.Second)
			m.Unlock()
		})
		time.Sleep(time.Second)
		all.Go(func() {
			second := l.other.FairLocker("f")
			second.Lock()
			order <- "second"
			second.Unlock()
		})
		time.Sleep(time.Second)
		l.wantHeld("in line", "")
		fair.Unlock()
		all.Wait()
		if a, b := <-order, <-order; a != "first" || b != "second" {
			l.Errorf("%s came before %s", a, b)
		}
	})
}

func TestAllOfBadInput(t *testing.T) {
	c := New(membackend.New(), quiet())
	closed := New(membackend.New(), quiet())
	closed.Close()
	defer c.Close()
	rw, x := c.RWLocker("rw"), c.Locker("x")
	for name, test := range map[string]struct {
		m    *MultiLocker
		name string
		is   error
		says string
	}{
		"none":               {All(), "", nil, "no Lockers"},
		"not made by All":    {new(MultiLocker), "", nil, "no Lockers"},
		"nil":                {All(x, nil), "x", nil, "lockers[1] is nil"},
		"not made":           {All(x, new(Locker)), "x, ", nil, "nil"},
		"the same":           {All(x, x), "x, x", nil, `"x" is there twice`},
		"of the same lock":   {All(x, c.Locker("y"), c.Locker("x")), "x, y, x", nil, "twice"},
		"for another owner":  {All(x, x.For(NewOwner())), "x, x", nil, "twice"},
		"of two kinds":       {All(x, c.FencedLocker("x")), "x, x", nil, "twice"},
		"both sides":         {All(rw.Reader(), rw.Writer()), "rw, rw", nil, "twice"},
		"of a closed client": {All(x, closed.Locker("y")), "y", ErrClosed, "closed"},
		"without a name":     {All(x, c.Locker("")), "", nil, "empty"},
	} {
		t.Run(name, func(t *testing.T) {
			ctx := t.Context()
			calls := map[string]func() error{
				"lock":    func() error { return test.m.LockContext(ctx) },
				"trylock": func() error { _, err := test.m.TryLock(ctx); return err },
				"acquire": func() error { _, err := test.m.Acquire(ctx); return err },
				"do": func() error {
					return test.m.Do(ctx, func(context.Context) error {
						t.Error("it was called")
						return nil
					})
				},
			}
			if test.is == nil {
				calls["unlock"] = func() error { return test.m.UnlockContext(ctx) }
			}
			for op, call := range calls {
				err := call()
				e, ok := errors.AsType[*Error](err)
				if !ok || e.Op != op && op != "unlock" || e.Name != test.name && op != "unlock" ||
					!strings.Contains(err.Error(), test.says) ||
					test.is != nil && !errors.Is(err, test.is) {
					t.Errorf("%s: %v", op, err)
				}
			}
			defer func() {
				if err, _ := recover().(error); err == nil ||
					!strings.Contains(err.Error(), test.says) {
					t.Errorf("Lock panicked with %v", err)
				}
			}()
			test.m.Lock()
		})
	}
	m := All(x)
	for what, call := range map[string]func() error{
		"a negative wait": func() error { return m.LockContext(t.Context(), Wait(-1)) },
		"no lease":        func() error { return m.LockContext(t.Context(), FixedLease(0)) },
		"a nil option":    func() error { return m.LockContext(t.Context(), nil) },
		"no function":     func() error { return m.Do(t.Context(), nil) },
	} {
		if err := call(); err == nil || !strings.Contains(err.Error(), `"x"`) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if ok, err := x.TryLock(t.Context()); !ok || err != nil { // nothing was left behind
		t.Error(ok, err)
	}
	x.Unlock()
	empty(t, c)
}

// A call that held a part while it waits for another would stand still here for ever.
func TestAllInOppositeOrders(t *testing.T) {
	const programs, rounds, names = 8, 20, 10
	for _, stores := range []int{1, 2, names} { // with several, names are no order that all share
		for _, simple := range []bool{true, false} {
			t.Run(fmt.Sprintf("%d stores, apart %v", stores, simple), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					relays := make([]*script, stores)
					for i := range relays {
						relays[i] = newScript(membackend.New()).together(!simple)
						relays[i].wire = 2 * time.Millisecond
					}
					var inside, visits atomic.Int64
					var all sync.WaitGroup
					began := time.Now()
					for program := range programs {
						clients := make([]*Client, stores)
						for i, r := range relays {
							clients[i] = New(r, quiet())
							defer clients[i].Close()
						}
						wanted := make([]*Locker, names)
						for i := range wanted {
							name := fmt.Sprint(i)
							if stores == names {
								name = "x"
							}
							wanted[i] = clients[i%stores].Locker(name)
						}
						if program%2 == 1 {
							slices.Reverse(wanted)
						}
						all.Go(func() {
							for range rounds {
								err := All(wanted...).Do(t.Context(), func(context.Context) error {
									if inside.Add(1) != 1 {
										t.Error("two are inside")
									}
									time.Sleep(time.Millisecond)
									inside.Add(-1)
									visits.Add(1)
									return nil
								})
								if err != nil {
									t.Error(err)
								}
							}
						})
					}
					all.Wait()
					if n := visits.Load(); n != programs*rounds {
						t.Errorf("%d visits", n)
					}
					// One visit takes about 5 ms. The time that conflicts cost is bounded.
					if took := time.Since(began); took > programs*rounds*100*time.Millisecond {
						t.Errorf("%d visits took %v", programs*rounds, took)
					} else {
						t.Logf("%v a visit", took/(programs*rounds))
					}
				})
			})
		}
	}
}

// An attempt whose reply is lost is taken back, and so are the others.
func TestAllWhereAReplyIsLost(t *testing.T) {
	for _, op := range []string{"acquire", "release"} {
		t.Run(op, func(t *testing.T) {
			withAll(t, func(l *allLab) {
				if l.relay == nil {
					return
				}
				var lost atomic.Bool
				l.relay.set(func(s *anyStep) {
					s.do()
					if s.op == op && s.name == "b" && !lost.Swap(true) {
						s.fail(&backend.Error{
							Kind: backend.Unknown, Err: errors.New("the connection was cut"),
						})
					}
				})
				if op == "acquire" {
					ok, err := l.all(abc...).TryLock(l.Context())
					if ok {
						l.Error("TryLock = true")
					}
					l.wantErr("TryLock", err, "trylock", "b", ErrUnavailable)
					time.Sleep(2 * time.Second)
					l.wantHeld("after it", "")
					lost.Store(false)
				}
				if err := l.all(abc...).Do(l.Context(), func(context.Context) error {
					l.wantHeld("inside", "abc")
					return nil
				}); err != nil {
					l.Error(err)
				}
				time.Sleep(2 * DefaultLease)
				l.wantHeld("after Do", "")
			})
		})
	}
}

func TestAllIsLostIfOneIs(t *testing.T) {
	withAll(t, func(l *allLab) {
		h, err := l.all("c", "b", "a").Acquire(l.Context())
		if err != nil {
			l.Fatal(err)
		}
		ctx, cancel := context.WithCancel(h.Context())
		defer cancel()
		if h.Err() != nil || ctx.Err() != nil || over(h.Lost()) {
			l.Fatal("it is lost from the start")
		}
		if _, err := l.other.Locker("b").ForceUnlock(l.Context()); err != nil {
			l.Fatal(err)
		}
		time.Sleep(DefaultLease / 2)
		if !over(h.Lost()) || ctx.Err() == nil {
			l.Error("nobody was told")
		}
		for what, err := range map[string]error{
			"cause": context.Cause(h.Context()),
			"Err":   h.Err(),
		} {
			loss, ok := errors.AsType[*Loss](err)
			if !ok || loss.Name != "b" || !errors.Is(err, ErrLost) {
				l.Errorf("%s: %v", what, err)
			}
		}
		l.wantHeld("while nobody has released", "ac")
		err = l.all("b").LockContext(h.Context())
		l.wantErr("re-entry of what is lost", err, "lock", "b", ErrLost, context.Canceled)
		l.wantErr("Release", h.Release(l.Context()), "release", "b", ErrLost)
		l.wantHeld("after Release", "")
		l.wantErr("another Release", h.Release(l.Context()), "release", "c, b, a", ErrNotHeld)
	})
}

func TestAHoldOfSeveral(t *testing.T) {
	withAll(t, func(l *allLab) {
		m := All(l.c.FencedLocker("b"), l.c.FencedLocker("a"), l.c.Locker("c"))
		type key struct{}
		ctx := context.WithValue(l.Context(), key{}, "value")
		h, err := m.Acquire(ctx, FixedLease(time.Minute))
		if err != nil {
			l.Fatal(err)
		}
		if h.Name() != "b, a, c" || strings.Count(h.HolderID(), ", ") != 2 ||
			!strings.HasPrefix(h.HolderID(), l.c.ID()+":") {
			l.Errorf("Name %q, HolderID %q", h.Name(), h.HolderID())
		}
		inside := h.Context()
		if inside.Value(key{}) != "value" {
			l.Error("the context has lost its values")
		}
		a, err := l.c.FencedLocker("a").Acquire(inside)
		if err != nil {
			l.Fatal(err)
		}
		token, _ := h.Token()
		of, ok := Token(inside)
		if want, _ := a.Token(); !ok || token != want || of != want {
			l.Errorf("tokens %d and %d, want that of a, %d", token, of, want)
		}
		if err := a.Release(l.Context()); err != nil {
			l.Error(err)
		}
		if left := time.Until(h.Until()); left > protocol.Promised(time.Minute) ||
			left < 50*time.Second {
			l.Errorf("Until is in %v", left)
		}
		l.wantHeld("meanwhile", "abc")
		if err := h.Release(inside); err != nil {
			l.Error(err)
		}
		if inside.Err() == nil || over(h.Lost()) || !errors.Is(h.Err(), ErrNotHeld) {
			l.Errorf("after Release: Err of the context %v, of the Hold %v, lost %v", inside.Err(),
				h.Err(), over(h.Lost()))
		}
		l.wantHeld("after it", "")
		l.wantErr("with the context of what was given back", l.c.Locker("c").LockContext(inside),
			"lock", "c", context.Canceled, ErrNotHeld)

		// The earliest counts.
		short := New(l.store, quiet(), WithLease(time.Second))
		defer short.Close()
		h, err = All(l.c.Locker("a"), short.Locker("b")).Acquire(l.Context())
		if err != nil {
			l.Fatal(err)
		}
		if left := time.Until(h.Until()); left > time.Second {
			l.Errorf("Until is in %v", left)
		}
		if err := h.Release(l.Context()); err != nil {
			l.Error(err)
		}
	})
}

func TestAllReenters(t *testing.T) {
	withAll(t, func(l *allLab) {
		owned := WithOwner(l.Context(), NewOwner())
		m, b := l.all(abc...), l.c.Locker("b")
		if err := b.LockContext(owned); err != nil {
			l.Fatal(err)
		}
		if ok, err := m.TryLock(l.Context()); ok || err != nil {
			l.Errorf("TryLock by nobody in particular = %v, %v", ok, err)
		}
		for range 2 {
			if err := m.LockContext(owned); err != nil {
				l.Fatal(err)
			}
		}
		for _, want := range []string{"abc", "b"} {
			if err := m.UnlockContext(owned); err != nil {
				l.Error(err)
			}
			l.wantHeld("unlocked once more", want)
		}
		if err := b.UnlockContext(owned); err != nil {
			l.Error(err)
		}
		l.wantErr("one unlock too many", m.UnlockContext(owned), "unlock", "a", ErrNotHeld)

		err := m.Do(l.Context(), func(ctx context.Context) error {
			return errors.Join(
				m.Do(ctx, func(ctx context.Context) error {
					return b.Do(ctx, func(
						context.Context,
					) error {
						return nil
					})
				}),
				m.LockContext(ctx), b.LockContext(ctx), b.UnlockContext(ctx), m.UnlockContext(ctx),
				l.all("b", "d").Do(ctx, func(ctx context.Context) error {
					// one that is held, and another
					return m.Do(ctx, func(context.Context) error { return nil })
				}))
		})
		if err != nil {
			l.Error(err)
		}
		l.wantHeld("after Do", "")

		// Of two owners.
		x, y := NewOwner(), NewOwner()
		two := All(l.c.Locker("a").For(x), l.c.Locker("b").For(y))
		for range 2 {
			two.Lock()
		}
		two.Unlock()
		l.wantHeld("locked twice and unlocked once", "ab")
		two.Unlock()
		l.wantHeld("unlocked", "")
	})
}

func TestAllOfReadersAndWriters(t *testing.T) {
	withAll(t, func(l *allLab) {
		rw, w := l.c.RWLocker("r"), l.c.RWLocker("w")
		m := All(rw.Reader(), w.Writer(), l.c.Locker("a"))
		m.Lock()
		mustTry(l.T, l.other.RWLocker("r").Reader())
		mustTryNot(l.T, l.other.RWLocker("w").Reader())
		second := All(l.c.RWLocker("r").Reader(), l.c.Locker("b")) // joins
		pass(second)
		m.Unlock()
		mustTry(l.T, l.other.RWLocker("w").Reader())
		for _, name := range []string{"r", "w"} {
			l.other.RWLocker(name).Reader().ForceUnlock(l.Context())
		}
		err := rw.Reader().Do(l.Context(), func(ctx context.Context) error {
			return All(rw.Writer(), l.c.Locker("a")).LockContext(ctx)
		})
		if e, ok := errors.AsType[*Error](err); !ok || e.Name != "r" ||
			!errors.Is(err, ErrUpgrade) {
			l.Errorf("from reading to writing: %v", err)
		}
		l.wantHeld("after it", "")
	})
}

func TestUnlockOfAllByAnother(t *testing.T) {
	withAll(t, func(l *allLab) {
		m := l.all(abc...)
		m.Lock()
		done := make(chan struct{})
		go func() { defer close(done); m.Unlock() }() // any goroutine may, as with a mutex
		<-done
		l.wantHeld("unlocked by another goroutine", "")

		m.Lock()
		l.wantErr("another MultiLocker", l.all(abc...).UnlockContext(l.Context()), "unlock", "a",
			ErrNotHeld)
		l.wantHeld("another tried to unlock it", "abc")
		if err := m.lockers[1].UnlockContext(l.Context()); err != nil {
			l.Error(err)
		}
		func() {
			defer func() {
				err, _ := recover().(error)
				l.wantErr("Unlock of what isn't all locked any more", err, "unlock", "b",
					ErrNotHeld)
			}()
			m.Unlock()
		}()
		l.wantHeld("the others were unlocked all the same", "")
	})
}

func TestAllWhereFnPanics(t *testing.T) {
	withAll(t, func(l *allLab) {
		for what, leave := range map[string]func(){
			"panic":  func() { panic("oops") },
			"Goexit": runtime.Goexit,
		} {
			done := make(chan struct{})
			go func() {
				defer close(done)
				defer func() { _ = recover() }()
				_ = l.all(abc...).Do(l.Context(), func(context.Context) error {
					leave()
					return nil
				})
			}()
			<-done
			l.wantHeld(what, "")
		}
	})
}

// The call returns when its context ends, at whatever moment that is, and leaves nothing.
func TestAllWhereTheContextEnds(t *testing.T) {
	withAll(t, func(l *allLab) {
		b := l.other.Locker("b")
		for after := time.Duration(
			0); after < 40*time.Millisecond; after += 500 * time.Microsecond {
			mustTry(l.T, b)
			time.AfterFunc(20*time.Millisecond, b.Unlock)
			ctx, cancel := context.WithTimeout(l.Context(), after)
			began := time.Now()
			err := l.all(abc...).LockContext(ctx)
			if err == nil {
				if err := l.all(abc...).UnlockContext(l.Context()); !errors.Is(err, ErrNotHeld) {
					l.Errorf("unlock by another: %v", err)
				}
				for _, name := range abc {
					l.c.Locker(name).ForceUnlock(l.Context())
				}
			} else if took := time.Since(began); took != after {
				l.Errorf("a context that ends after %v: the call took %v", after, took)
			}
			cancel()
			time.Sleep(2 * DefaultLease)
			l.wantHeld(fmt.Sprintf("a context that ended after %v", after), "")
		}
	})
}

func TestAllWhereAClientIsClosed(t *testing.T) {
	withAll(t, func(l *allLab) {
		second := New(l.store, quiet())
		m := All(l.c.Locker("a"), second.Locker("b"))

		// While they are held.
		h, err := m.Acquire(l.Context())
		if err != nil {
			l.Fatal(err)
		}
		second.Close()
		if cause := context.Cause(h.Context()); !errors.Is(cause, ErrClosed) || !over(h.Lost()) {
			l.Errorf("one of the clients was closed: cause %v", cause)
		}
		if err := h.Release(l.Context()); err != nil {
			l.Errorf("Release: %v", err)
		}
		l.wantHeld("after Release", "")

		// While the call waits, for either of them.
		for _, waitsFor := range abc[:2] {
			second = New(l.store, quiet())
			m = All(l.c.Locker("a"), second.Locker("b"))
			mustTry(l.T, l.other.Locker(waitsFor))
			done := make(chan error, 1)
			go func() { done <- m.LockContext(l.Context()) }()
			time.Sleep(time.Minute)
			second.Close()
			synctest.Wait()
			select {
			case err := <-done:
				if e, ok := errors.AsType[*Error](err); !ok || e.Name != "b" ||
					!errors.Is(err, ErrClosed) {
					l.Errorf("waiting for %s: %v", waitsFor, err)
				}
			default:
				l.Errorf("waiting for %s: it goes on though the client of b is closed", waitsFor)
			}
			l.other.Locker(waitsFor).ForceUnlock(l.Context())
			time.Sleep(time.Minute)
			l.wantHeld("after it", "")
		}
	})
}

// Goroutines of one client take turns, and a waiter gets all at once.
func TestAllWithinOneClient(t *testing.T) {
	withAll(t, func(l *allLab) {
		var inside, n int
		var all sync.WaitGroup
		for i := range 30 {
			all.Go(func() {
				names := slices.Clone(abc)
				rand.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
				m := l.all(names[:1+i%3]...)
				for range 10 {
					m.Lock()
					if len(m.lockers) == 3 {
						if inside++; inside != 1 {
							l.Error("two are inside")
						}
						time.Sleep(time.Microsecond)
						inside--
						n++
					}
					m.Unlock()
				}
			})
		}
		all.Wait()
		if n != 100 {
			l.Errorf("%d visits", n)
		}
	})
}

// A lock that a call for several gives back, since it hasn't got all, doesn't stay taken. A lock
// that it keeps does.
func TestAllThatStaysTaken(t *testing.T) {
	withAll(t, func(l *allLab) {
		m := l.all("a", "b", "c")
		mustTry(l.T, l.other.Locker("b"))
		l.wantErr("one is held", m.LockContext(l.Context(), AtLeast(time.Hour), Wait(time.Second)),
			"lock", "b", ErrNotAcquired, ErrHeld)
		synctest.Wait()
		l.wantHeld("given up", "b")
		l.other.Locker("b").ForceUnlock(l.Context())

		h, err := m.Acquire(l.Context(), AtLeast(time.Hour))
		if err != nil {
			l.Fatal(err)
		}
		time.Sleep(10 * time.Millisecond)
		if left, err := l.other.Locker("a").TTL(l.Context()); err != nil ||
			left < time.Hour-time.Second {
			l.Errorf("the store keeps it for %v if the holder dies now, %v", left, err)
		}
		time.Sleep(time.Minute)
		mustRelease(l.T, h)
		l.wantHeld("released", "abc")
		time.Sleep(time.Hour - time.Minute)
		l.wantHeld("an hour later", "")

		rw := l.c.RWLocker("rw")
		_, err = All(l.c.Locker("a"), rw.Reader()).Acquire(l.Context(), AtLeast(time.Hour))
		l.wantErr("a reader", err, "racquire", "rw", errors.ErrUnsupported)
		l.wantHeld("a reader", "")
	})
}

// A lock that a call for several gives back may pass to another call of the client, which can rely
// on it for no longer than the store keeps it.
func TestAllThatGivesBackWhatWasToStayTaken(t *testing.T) {
	withAll(t, func(l *allLab) {
		mustTry(l.T, l.other.Locker("b"))
		if l.relay == nil {
			return
		}
		waited := make(chan *Hold)
		go func() {
			time.Sleep(5 * time.Millisecond)
			h, err := l.c.Locker("a").Acquire(context.Background())
			if err != nil {
				l.Error(err)
			}
			waited <- h
		}()
		l.relay.set(func(s *anyStep) {
			if s.do(); s.name == "b" {
				time.Sleep(8 * time.Millisecond)
			}
		})
		err := l.all("a", "b").LockContext(l.Context(), AtLeast(time.Hour), Wait(time.Second))
		l.wantErr("one is held", err, "lock", "b", ErrNotAcquired, ErrHeld)
		h := <-waited
		time.Sleep(time.Minute)
		ttl, err := l.other.Locker("a").TTL(context.Background())
		if until := time.Until(h.Until()); err != nil || until > ttl {
			l.Errorf("held for %v more, where the store keeps it for %v, %v", until, ttl, err)
		}
		mustRelease(l.T, h)
		l.other.Locker("b").ForceUnlock(l.Context())
	})
}

// A call for several locks that fails doesn't change what its owner had before: it neither stays
// taken nor becomes free by that.
func TestAllThatFailsLeavesWhatAnOwnerHas(t *testing.T) {
	withAll(t, func(l *allLab) {
		ctx := WithOwner(l.Context(), NewOwner())
		mustTry(l.T, l.other.Locker("b"))
		a := l.c.Locker("a")
		for _, keeps := range []bool{false, true} {
			var opts []AcquireOption
			if keeps {
				opts = append(opts, AtLeast(10*time.Minute))
			}
			must(l.T, a.LockContext(ctx, opts...))
			if ok, err := l.all("a", "b").TryLock(ctx, AtLeast(time.Hour)); ok || err != nil {
				l.Fatal(ok, err)
			}
			time.Sleep(time.Minute)
			ttl, err := l.other.Locker("a").TTL(context.Background())
			if h := heldOf(l.c, "a"); err != nil ||
				time.Until(l.c.epoch.Add(h.claim.Until())) > ttl {
				l.Errorf("held for %v more, where the store keeps it for %v, %v",
					h.claim.Until()-l.c.now(), ttl, err)
			}
			must(l.T, a.UnlockContext(ctx))
			if want := map[bool]string{false: "b", true: "ab"}[keeps]; l.holds() != want {
				l.Errorf("keeps: %v: %q are held", keeps, l.holds())
			}
			time.Sleep(9 * time.Minute)
			l.wantHeld("later", "b")
		}
		l.other.Locker("b").ForceUnlock(l.Context())
	})
}

// slowToAnswer has the store answer late where it is asked for locks of these names.
func (l *allLab) slowToAnswer(by map[string]time.Duration) {
	l.relay.set(func(s *anyStep) {
		s.do()
		if s.op == "acquire" {
			time.Sleep(by[s.name])
		}
	})
}

// reads reads plainly from one time to another, counted from now.
func reads(rw *RWLocker, from, to time.Duration) {
	time.Sleep(from)
	rw.RLock()
	time.Sleep(to - from)
	rw.RUnlock()
}

// While a call for several locks is under way, unlocks of other plain readers may give back the
// very read that it has got. One of theirs is its own then: it goes on with that, or gives it back.
func TestAllBesidePlainReaders(t *testing.T) {
	for _, lease := range []AcquireOption{FixedLease(5 * time.Second), RenewedLease(DefaultLease)} {
		for _, isHeld := range []bool{true, false} {
			withAll(t, func(l *allLab) {
				if l.relay == nil {
					return
				}
				if isHeld {
					mustTry(l.T, l.other.Locker("b"))
				}
				l.slowToAnswer(map[string]time.Duration{"b": 100 * time.Millisecond})
				rw := l.c.RWLocker("a")
				var all sync.WaitGroup
				all.Go(func() { reads(rw, 0, 70*time.Millisecond) })
				all.Go(func() { reads(rw, 40*time.Millisecond, 60*time.Millisecond) })
				time.Sleep(20 * time.Millisecond) // nobody joins the first reader's hold any more
				both := All(rw.Reader(), l.c.Locker("b"))
				ok, err := both.TryLock(l.Context(), lease)
				if ok == isHeld || err != nil {
					l.Errorf("TryLock = %v, %v, and b is another's: %v", ok, err, isHeld)
				}
				all.Wait()
				theirs := l.other.RWLocker("a").Writer()
				if ok {
					if free, err := theirs.TryLock(l.Context()); free || err != nil {
						l.Errorf("a writer beside the read of All: %v, %v", free, err)
					}
					must(l.T, both.UnlockContext(l.Context()))
				}
				time.Sleep(time.Second)
				wantFree(l.T, l.other, "a")
				l.other.Locker("b").ForceUnlock(l.Context())
			})
		}
	}
}

// The same with other goroutines of the owner in whose name the locks are acquired.
func TestAllBesideAnOwnersRead(t *testing.T) {
	withAll(t, func(l *allLab) {
		if l.relay == nil {
			return
		}
		mustTry(l.T, l.other.Locker("b"))
		l.slowToAnswer(map[string]time.Duration{
			"a": 10 * time.Millisecond, "b": 100 * time.Millisecond,
		})
		ctx, rw := WithOwner(l.Context(), NewOwner()), l.c.RWLocker("a")
		var all sync.WaitGroup
		all.Go(func() {
			must(l.T, rw.Reader().LockContext(ctx))
			time.Sleep(50 * time.Millisecond)
			must(l.T, rw.Reader().UnlockContext(ctx))
		})
		time.Sleep(5 * time.Millisecond) // both have asked before either is answered
		if ok, err := All(rw.Reader(), l.c.Locker("b")).TryLock(ctx); ok || err != nil {
			l.Errorf("TryLock = %v, %v", ok, err)
		}
		all.Wait()
		time.Sleep(time.Second)
		wantFree(l.T, l.other, "a")
		l.other.Locker("b").ForceUnlock(l.Context())
	})
}

// A wait that ends while the store is being asked again was for what another had.
func TestAllWhoseWaitEndsDuringAnAttempt(t *testing.T) {
	withAll(t, func(l *allLab) {
		if l.relay == nil {
			return
		}
		mustTry(l.T, l.other.Locker("b"))
		mustTry(l.T, l.other.Locker("a"))
		m := l.all("a", "b")
		go func() {
			time.Sleep(100 * time.Millisecond)
			l.other.Locker("a").ForceUnlock(context.Background())
			l.other.Locker("b").ForceUnlock(context.Background())
			l.relay.set(func(s *anyStep) {
				if s.op == "acquire" && s.name == "b" {
					s.hang()
				}
			})
		}()
		ok, err := m.TryLock(l.Context(), Wait(300*time.Millisecond))
		if ok || err != nil {
			l.Errorf("%v, %v", ok, err)
		}
		l.relay.set(nil)
	})
}

// A Trace that panics as one of several locks is released doesn't keep the others.
func TestAllWhereATracePanics(t *testing.T) {
	var mu sync.Mutex
	panics := false
	withAll(t, func(l *allLab) {
		mu.Lock()
		panics = true
		mu.Unlock()
		func() {
			defer func() { recover() }()
			_ = l.all(abc...).Do(l.Context(), func(context.Context) error { return nil })
		}()
		mu.Lock()
		panics = false
		mu.Unlock()
		synctest.Wait()
		time.Sleep(time.Second)
		l.wantHeld("a Trace panicked", "")
	}, WithTrace(&Trace{ReleaseDone: func(_ context.Context, e ReleaseDone) {
		mu.Lock()
		defer mu.Unlock()
		if panics && e.Name == "c" {
			panic("oops")
		}
	}}))
}

// Several steps are sent together only if there are several.
func TestAllSendsTogether(t *testing.T) {
	withAll(t, func(l *allLab) {
		if l.relay == nil || !l.relay.atOnce {
			return
		}
		l.all(abc...).Lock()
		if n := l.relay.batches.Load(); n != 1 {
			l.Errorf("%d batches for three names", n)
		}
		l.all(abc...).lockers[0].ForceUnlock(l.Context())
		l.all(abc...).lockers[1].ForceUnlock(l.Context())
		l.all(abc...).lockers[2].ForceUnlock(l.Context())
		pass(l.all(abc...))
		if n := l.relay.batches.Load(); n != 3 {
			l.Errorf("%d batches for a pair and a lock of three names", n)
		}
	})
}

// An owner's earlier lock is lost while it asks for several: the error says so.
func TestAllWhileWhatItReentersIsLost(t *testing.T) {
	withAll(t, func(l *allLab) {
		if l.relay == nil {
			return // nothing happens in between
		}
		ctx := WithOwner(l.Context(), NewOwner())
		must(l.T, l.c.Locker("a").LockContext(ctx))
		l.relay.set(func(s *anyStep) {
			s.do()
			if s.op == "acquire" && s.name == "b" {
				time.Sleep(10 * time.Millisecond)
				l.c.Locker("a").ForceUnlock(l.Context())
			}
		})
		ok, err := l.all("a", "b").TryLock(ctx)
		l.wantErr("TryLock", err, "trylock", "a", ErrLost)
		if ok || errors.Is(err, ErrUnavailable) {
			l.Errorf("TryLock = %v, %v", ok, err)
		}
		l.relay.set(nil)
		if err := l.c.Locker("a").UnlockContext(ctx); !errors.Is(err, ErrLost) {
			l.Errorf("the unlock of what was lost: %v", err)
		}
		time.Sleep(time.Second)
		l.wantHeld("after all that", "")
	})
}

// The state at the beginning of a wait is old at its end: the Locker was unlocked meanwhile, and
// another has the lock.
func TestAllForgetsThatALockerWasNotUnlocked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := membackend.New()
		c, other := New(mem, quiet()), New(mem, quiet())
		defer c.Close()
		defer other.Close()
		run := func(try func(l *Locker) (bool, error)) {
			l := c.Locker("a")
			l.Lock()
			if _, err := other.Locker("a").ForceUnlock(t.Context()); err != nil {
				t.Fatal(err)
			}
			o := other.Locker("a")
			o.Lock()
			time.Sleep(DefaultLease) // it is found to be lost
			// somebody of this client waits before, and leads
			first := make(chan error)
			go func() { first <- c.Locker("a").LockContext(t.Context(), Wait(5*time.Minute)) }()
			time.Sleep(time.Second)
			type res struct {
				ok  bool
				err error
			}
			done := make(chan res)
			go func() { ok, err := try(l); done <- res{ok, err} }()
			time.Sleep(time.Second)
			if err := l.UnlockContext(t.Context()); !errors.Is(err, ErrLost) {
				t.Fatal(err)
			}
			r := <-done
			if r.ok || r.err != nil {
				t.Errorf("TryLock: %v, %v; another has the lock, and the Locker was unlocked a "+
					"minute ago", r.ok, r.err)
			}
			o.Unlock()
			<-first
			c.Locker("a").ForceUnlock(t.Context())
			time.Sleep(time.Second)
		}
		run(func(l *Locker) (bool, error) { return l.TryLock(t.Context(), Wait(time.Minute)) })
		run(func(l *Locker) (bool, error) {
			return All(l, c.Locker("b")).TryLock(t.Context(), Wait(time.Minute))
		})
	})
}

// The same of a failure, where the store has said since then that another has the lock.
func TestAllForgetsAFailureOfBefore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, multi := range []bool{false, true} {
			mem := membackend.New()
			r := newScript(mem).together(true)
			c, other := New(r, quiet()), New(mem, quiet())
			o := other.Locker("a")
			o.Lock()
			first := make(chan error)
			go func() { first <- c.Locker("a").LockContext(t.Context(), Wait(5*time.Minute)) }()
			time.Sleep(time.Second)
			failed := false
			r.set(func(s *anyStep) {
				if s.op == "acquire" && s.name == "a" && !failed {
					failed = true
					s.fail(&backend.Error{Kind: backend.Retry, Err: errors.New("once")})
				}
			})
			var ok bool
			var err error
			if multi {
				ok, err = All(c.Locker("a"), c.Locker("b")).TryLock(t.Context(), Wait(time.Minute))
			} else {
				ok, err = c.Locker("a").TryLock(t.Context(), Wait(time.Minute))
			}
			if ok || err != nil {
				t.Errorf("multi %v: after a minute in which the store says that another has "+
					"it: %v, %v", multi, ok, err)
			}
			o.Unlock()
			<-first
			c.Close()
			other.Close()
			r.set(nil)
		}
	})
}

// The context ends just when a round has been cut short: the error says so, and nothing of a wait.
func TestAllContextEndsAsARoundIsCut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newScript(membackend.New())
		ctx, cancel := context.WithCancel(t.Context())
		c := New(r, quiet(), WithTrace(&Trace{AcquireDone: func(_ context.Context, e AcquireDone) {
			if e.Outcome != OutcomeAcquired {
				cancel() // something else was tired of it, just now
			}
		}}))
		defer c.Close()
		r.set(func(s *anyStep) {
			if s.op == "acquire" && s.name == "b" {
				s.hang()
			}
		})
		err := All(c.Locker("a"), c.Locker("b")).LockContext(ctx)
		if !errors.Is(err, context.Canceled) || errors.Is(err, ErrNotAcquired) {
			t.Errorf("%v; the context was canceled, and there was no wait", err)
		}
		r.set(nil)
	})
}

// Lost is final: Err of a Hold of several locks says so after its Release, too.
func TestAllHoldStaysLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := membackend.New()
		c, other := New(mem, quiet()), New(mem, quiet())
		defer c.Close()
		defer other.Close()
		single, err := c.Locker("x").Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		h, err := All(c.Locker("a"), c.Locker("b")).Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		other.Locker("b").ForceUnlock(t.Context())
		other.Locker("x").ForceUnlock(t.Context())
		time.Sleep(DefaultLease)
		if !errors.Is(h.Err(), ErrLost) || !errors.Is(single.Err(), ErrLost) {
			t.Fatal(h.Err(), single.Err())
		}
		h.Release(t.Context())
		single.Release(t.Context())
		if err := single.Err(); !errors.Is(err, ErrLost) {
			t.Errorf("single: after the Release Err is %v", err)
		}
		if err := h.Err(); !errors.Is(err, ErrLost) {
			t.Errorf("several: after the Release Err is %v", err)
		}
	})
}
