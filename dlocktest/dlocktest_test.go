package dlocktest_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/dlock"
	"github.com/seed951563bd/distsync/dlocktest"
)

func quiet() dlock.Option { return dlock.WithLogger(slog.New(slog.DiscardHandler)) }

// clientOf returns a client with the given id. It is closed at the end of the test.
func clientOf(t *testing.T, store *dlocktest.Store, id string, opts ...dlock.Option) *dlock.Client {
	c := dlock.New(store, append(opts, quiet(), dlock.WithClientID(id))...)
	t.Cleanup(func() { c.Close() })
	return c
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func acquire(t *testing.T, l *dlock.Locker, opts ...dlock.AcquireOption) *dlock.Hold {
	t.Helper()
	h, err := l.Acquire(t.Context(), opts...)
	must(t, err)
	return h
}

// everywhere runs a test both in real time and in a bubble.
func everywhere(t *testing.T, test func(t *testing.T)) {
	t.Run("real time", test)
	t.Run("bubble", func(t *testing.T) { synctest.Test(t, test) })
}

// kinds are the ways to acquire the lock "x".
var kinds = map[string]func(c *dlock.Client, ctx context.Context) (*dlock.Hold, error){
	"plain": func(c *dlock.Client, ctx context.Context) (*dlock.Hold, error) {
		return c.Locker("x").Acquire(ctx)
	},
	"fenced": func(c *dlock.Client, ctx context.Context) (*dlock.Hold, error) {
		return c.FencedLocker("x").Acquire(ctx)
	},
	"fair": func(c *dlock.Client, ctx context.Context) (*dlock.Hold, error) {
		return c.FairLocker("x").Acquire(ctx)
	},
	"write": func(c *dlock.Client, ctx context.Context) (*dlock.Hold, error) {
		return c.RWLocker("x").Writer().Acquire(ctx)
	},
	"read": func(c *dlock.Client, ctx context.Context) (*dlock.Hold, error) {
		return c.RWLocker("x").Reader().Acquire(ctx)
	},
	"permits": func(c *dlock.Client, ctx context.Context) (*dlock.Hold, error) {
		return c.Semaphore("x", 3).Acquire(ctx, 2)
	},
	"fixed lease": func(c *dlock.Client, ctx context.Context) (*dlock.Hold, error) {
		return c.Locker("x").Acquire(ctx, dlock.FixedLease(time.Hour))
	},
}

// A holder of a lock of any kind loses it, and finds out at its next renewal, no earlier. A waiter
// gets it next.
func TestLose(t *testing.T) {
	for name, acquire := range kinds {
		if name == "fixed lease" {
			continue // TestLoseAFixedLease tests it
		}
		next := acquire
		if name == "read" {
			next = kinds["write"] // a reader wouldn't have to wait
		}
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := dlocktest.New(t)
				const long = time.Hour
				a, b := clientOf(t, store, "a", dlock.WithLease(long)),
					clientOf(t, store, "b", dlock.WithLease(long))
				held, err := acquire(a, t.Context())
				must(t, err)
				store.Held(t, "x")
				got := make(chan *dlock.Hold)
				go func() {
					h, err := next(b, t.Context())
					if err != nil {
						t.Error(err)
					}
					got <- h
				}()
				synctest.Wait()
				began := time.Now()
				store.Lose("x")
				h := <-got
				if took := time.Since(began); took > 0 {
					t.Errorf("the next has it after %v", took)
				}
				if <-held.Context().Done(); time.Since(began) < long/4 ||
					time.Since(began) > long/3 {
					t.Errorf("the holder is told after %v", time.Since(began))
				}
				l, ok := errors.AsType[*dlock.Loss](context.Cause(held.Context()))
				if !ok || l.Reason != dlock.LossGone && l.Reason != dlock.LossTaken {
					t.Errorf("the cause is %v", context.Cause(held.Context()))
				}
				store.Held(t, "x")
				if err := held.Release(t.Context()); !errors.Is(err, dlock.ErrLost) {
					t.Errorf("Release of what was lost: %v", err)
				}
				must(t, h.Release(t.Context()))
				store.Free(t, "x")
			})
		})
	}
}

// All readers of all clients lose the lock, and all permits are lost.
func TestLoseWhatSeveralHave(t *testing.T) {
	for _, kind := range []string{"read", "permits"} {
		t.Run(kind, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := dlocktest.New(t)
				var all []*dlock.Hold
				for _, id := range []string{"a", "b", "c"} {
					c, take := clientOf(t, store, id), kinds[kind]
					if kind == "permits" {
						take = func(c *dlock.Client, ctx context.Context) (*dlock.Hold, error) {
							return c.Semaphore("x", 3).Acquire(ctx, 1)
						}
					}
					h, err := take(c, t.Context())
					must(t, err)
					all = append(all, h)
				}
				store.Lose("x")
				for i, h := range all {
					if <-h.Lost(); !errors.Is(h.Err(), dlock.ErrLost) {
						t.Errorf("%d: %v", i, h.Err())
					}
				}
				store.Free(t, "x")
			})
		})
	}
}

// A client that reads under its own write loses both.
func TestLoseAWriteAndAReadUnderIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := dlocktest.New(t)
		rw, ctx := clientOf(t, store, "a").RWLocker("x"),
			dlock.WithOwner(t.Context(), dlock.NewOwner())
		w, err := rw.Writer().Acquire(ctx)
		must(t, err)
		r, err := rw.Reader().Acquire(ctx)
		must(t, err)
		store.Lose("x")
		<-w.Lost()
		<-r.Lost()
		store.Free(t, "x")
	})
}

// Lose fails the test if the lock is free, even if it stays taken.
func TestLoseWhatNobodyHas(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := new(recorder)
		store := dlocktest.New(r)
		store.Lose("x")
		must(t, acquire(t, clientOf(t, store, "a").Locker("y"), dlock.AtLeast(time.Hour)).
			Release(t.Context()))
		store.Lose("y")
		r.wants(t, []string{"Lose", `nobody has the lock "x"`}, []string{
			"Lose", `nobody has the lock "y"`, "stays taken for another 1h0m0s", `client "a"`,
		})
		if ok, err := clientOf(t, store, "b").Locker("y").TryLock(t.Context()); ok || err != nil {
			t.Errorf("TryLock of what stays taken: %v, %v", ok, err)
		}
	})
}

// A holder with a fixed lease finds out when its lease expires, no earlier.
func TestLoseAFixedLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := dlocktest.New(t)
		h := acquire(t, clientOf(t, store, "a").Locker("x"), dlock.FixedLease(time.Hour))
		began := time.Now()
		store.Lose("x")
		if <-h.Lost(); time.Since(began) < 59*time.Minute {
			t.Errorf("told after %v", time.Since(began))
		}
		if err := h.Release(t.Context()); !errors.Is(err, dlock.ErrLost) {
			t.Errorf("Release: %v", err)
		}
	})
}

var errTest = errors.New("connection refused")

// The next n steps of any clients fail with the given error. Later steps succeed.
func TestFail(t *testing.T) {
	everywhere(t, func(t *testing.T) {
		store := dlocktest.New(t)
		a, b := clientOf(t, store, "a").Locker("x"), clientOf(t, store, "b").Locker("x")
		store.Fail(2, errTest)
		for _, l := range []*dlock.Locker{a, b} {
			if ok, err := l.TryLock(t.Context()); ok || !errors.Is(err, errTest) ||
				!errors.Is(err, dlock.ErrUnavailable) {
				t.Errorf("TryLock = %v, %v", ok, err)
			}
			store.Free(t, "x")
		}
		if ok, err := a.TryLock(t.Context()); !ok || err != nil {
			t.Errorf("TryLock after that = %v, %v", ok, err)
		}
		a.Unlock()
	})
}

// Without an error, the steps fail with an error that says that the store is down. An error that
// has a kind keeps it.
func TestFailKinds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := dlocktest.New(t)
		s := store.Open()
		defer s.Close()
		refused := fmt.Errorf("wrapped: %w", &backend.Error{Kind: backend.Refused, Err: errTest})
		for _, test := range []struct {
			err  error
			want backend.ErrorKind
			text string
		}{
			{nil, backend.Retry, "the store is down"},
			{errTest, backend.Retry, "connection refused"},
			{refused, backend.Refused, "wrapped: connection refused"},
			{&backend.Error{Kind: backend.Unknown, Err: errTest}, backend.Unknown,
				"connection refused"},
		} {
			store.Fail(1, test.err)
			_, err := s.Look(t.Context(), backend.LookRequest{Name: "x"})
			if err == nil || backend.KindOf(err) != test.want ||
				!strings.Contains(err.Error(), test.text) {
				t.Errorf("Fail(1, %v): %v, of kind %v", test.err, err, backend.KindOf(err))
			}
		}
		store.Fail(0, errTest)
		_, err := s.Look(t.Context(), backend.LookRequest{Name: "x"})
		must(t, err)
	})
}

// All steps fail while the store is down. After Recover waiters get locks, and pending releases are
// sent.
func TestFailUntilRecover(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := dlocktest.New(t)
		a, b := clientOf(t, store, "a").Locker("x"), clientOf(t, store, "b").Locker("x")
		a.Lock()
		store.Fail(-1, errTest)
		if err := a.UnlockContext(t.Context()); !errors.Is(err, errTest) {
			t.Errorf("Unlock = %v", err)
		}
		if err := b.LockContext(t.Context(), dlock.Wait(time.Second)); !errors.Is(err,
			dlock.ErrUnavailable) {
			t.Errorf("LockContext = %v", err)
		}
		for what, f := range map[string]func() error{
			"ForceUnlock": func() error { _, err := b.ForceUnlock(t.Context()); return err },
			"IsLocked":    func() error { _, err := b.IsLocked(t.Context()); return err },
			"Holder":      func() error { _, err := b.Holder(t.Context()); return err },
		} {
			if err := f(); !errors.Is(err, errTest) {
				t.Errorf("%s = %v", what, err)
			}
		}
		store.Held(t, "x")
		store.Recover()
		must(t, b.LockContext(t.Context()))
		b.Unlock()
	})
}

// Hanging steps return when their contexts end, and aren't carried out.
func TestHang(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := dlocktest.New(t)
		l := clientOf(t, store, "a").Locker("x")
		store.Hang(1)
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		defer cancel()
		if err := l.LockContext(ctx); !errors.Is(err, context.DeadlineExceeded) ||
			!errors.Is(err, dlock.ErrUnavailable) {
			t.Errorf("LockContext = %v", err)
		}
		store.Free(t, "x")
		must(t, l.LockContext(t.Context()))
		l.Unlock()
	})
}

// Hanging steps are carried out at Recover.
func TestHangUntilRecover(t *testing.T) {
	everywhere(t, func(t *testing.T) {
		store := dlocktest.New(t)
		l := clientOf(t, store, "a").Locker("x")
		store.Hang(-1)
		locked := make(chan error)
		go func() { locked <- l.LockContext(t.Context()) }()
		time.Sleep(20 * time.Millisecond)
		select {
		case err := <-locked:
			t.Fatalf("locked: %v", err)
		default:
		}
		store.Free(t, "x")
		store.Recover()
		must(t, <-locked)
		store.Held(t, "x")
		l.Unlock()
	})
}

// If a step hangs until its context ends, the error says that its outcome is unknown. If a step was
// never sent, the error says that it wasn't carried out.
func TestHangKinds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := dlocktest.New(t)
		s := store.Open()
		defer s.Close()
		store.Hang(1)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		for _, want := range []backend.ErrorKind{backend.Unknown, backend.Retry} {
			if _, err := s.Look(ctx, backend.LookRequest{Name: "x"}); !errors.Is(err,
				context.DeadlineExceeded) || backend.KindOf(err) != want {
				t.Errorf("Look: %v, of kind %v; want %v", err, backend.KindOf(err), want)
			}
		}
	})
}

// A hanging renewal is carried out at ResumeRenewals. Other steps don't hang.
func TestRenewalsThatHang(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := dlocktest.New(t)
		s := store.Open()
		defer s.Close()
		_, err := s.Acquire(t.Context(), backend.AcquireRequest{
			Name: "x", Owner: "a:1", Lease: time.Minute,
		})
		must(t, err)
		store.PauseRenewals()
		store.Fail(1, errTest) // a fault of Fail doesn't affect renewals
		renewed := make(chan bool)
		go func() {
			res, err := s.Renew(t.Context(), backend.RenewRequest{
				Name: "x", Owner: "a:1", Lease: time.Hour,
			})
			renewed <- res.Held && err == nil
		}()
		synctest.Wait()
		store.PauseRenewals()
		if _, err := s.Look(t.Context(), backend.LookRequest{Name: "x"}); !errors.Is(err, errTest) {
			t.Errorf("Look = %v", err)
		}
		store.ResumeRenewals()
		if !<-renewed {
			t.Error("not renewed")
		}
		res, err := s.Look(t.Context(), backend.LookRequest{Name: "x", Owner: "a:1"})
		if err != nil || res.Remaining != time.Hour {
			t.Errorf("Look = %+v, %v", res, err)
		}
		_, err = s.Release(t.Context(), backend.ReleaseRequest{Name: "x", Owner: "a:1"})
		must(t, err)
	})
}

// Several faults take effect one after the other.
func TestFaultsAddUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := dlocktest.New(t)
		s := store.Open()
		defer s.Close()
		other := errors.New("another")
		store.Fail(1, errTest)
		store.Hang(1)
		store.Fail(1, other)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		for i, want := range []error{errTest, context.DeadlineExceeded, other, nil} {
			if i == 2 {
				ctx = t.Context()
			}
			if _, err := s.Look(ctx, backend.LookRequest{Name: "x"}); !errors.Is(err, want) ||
				want == nil && err != nil {
				t.Errorf("step %d: %v; want %v", i, err, want)
			}
		}
	})
}

// A client can be closed while its steps hang, and its locks can be released after that.
func TestCloseWhileStepsHang(t *testing.T) {
	everywhere(t, func(t *testing.T) {
		store := dlocktest.New(t)
		c := clientOf(t, store, "a")
		h := acquire(t, c.Locker("x"))
		store.Hang(-1)
		failed := make(chan error)
		go func() { failed <- c.Locker("y").LockContext(context.Background()) }()
		time.Sleep(20 * time.Millisecond) // by then, it hangs or finds the client closed
		must(t, c.Close())
		if err := <-failed; !errors.Is(err, dlock.ErrClosed) {
			t.Errorf("Lock = %v", err)
		}
		store.Recover()
		if err := h.Release(t.Context()); err != nil {
			t.Errorf("Release after Close: %v", err)
		}
		store.Free(t, "x")
	})
}

// While renewals are paused, a lock ends with its lease: its holder is notified of the reason, and
// a waiter gets the lock. After ResumeRenewals a holder keeps its lock for as long as it wants.
func TestPauseRenewals(t *testing.T) {
	for name, acquire := range kinds {
		if name == "fixed lease" {
			continue
		}
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := dlocktest.New(t)
				a, b := clientOf(t, store, "a"), clientOf(t, store, "b")
				held, err := acquire(a, t.Context())
				must(t, err)
				store.PauseRenewals()
				store.PauseRenewals() // a second call has no effect
				began := time.Now()
				<-held.Context().Done()
				l, ok := errors.AsType[*dlock.Loss](context.Cause(held.Context()))
				if took := time.Since(began); !ok || l.Reason != dlock.LossExpired ||
					took > dlock.DefaultLease || took < dlock.DefaultLease/2 {
					t.Errorf("after %v: %v", took, context.Cause(held.Context()))
				}
				next, err := acquire(b, t.Context())
				must(t, err)
				if took := time.Since(began); took > dlock.DefaultLease+time.Second {
					t.Errorf("the next got in after %v", took)
				}
				store.ResumeRenewals()
				store.ResumeRenewals()
				time.Sleep(time.Hour)
				must(t, next.Err())
				must(t, next.Release(t.Context()))
			})
		})
	}
}

// A pause that is shorter than the lease causes no loss, because the hanging renewals are carried
// out at its end.
func TestPauseRenewalsForAMoment(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := dlocktest.New(t)
		h := acquire(t, clientOf(t, store, "a").Locker("x"))
		store.PauseRenewals()
		time.Sleep(dlock.DefaultLease * 2 / 3)
		store.ResumeRenewals()
		time.Sleep(time.Hour)
		must(t, h.Err())
		must(t, h.Release(t.Context()))
	})
}

// In real time leases expire, too.
func TestPauseRenewalsInRealTime(t *testing.T) {
	store := dlocktest.New(t)
	h := acquire(t, clientOf(t, store, "a", dlock.WithLease(100*time.Millisecond)).Locker("x"))
	store.PauseRenewals()
	<-h.Lost()
	if !errors.Is(h.Err(), dlock.ErrLost) {
		t.Errorf("lost: %v", h.Err())
	}
	store.ResumeRenewals()
	h = acquire(t, clientOf(t, store, "b").Locker("x"))
	must(t, h.Release(t.Context()))
}

// After Wipe waiters get the locks, and holders find out at their next renewal.
func TestWipe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := dlocktest.New(t)
		a, b := clientOf(t, store, "a"), clientOf(t, store, "b")
		held := acquire(t, a.FencedLocker("x"))
		got := make(chan *dlock.Hold)
		go func() { got <- acquire(t, b.FencedLocker("x")) }()
		synctest.Wait()
		began := time.Now()
		store.Wipe()
		next := <-got
		if took := time.Since(began); took > time.Second {
			t.Errorf("the next got in after %v", took)
		}
		must(t, held.Err()) // it doesn't know yet
		<-held.Lost()
		if took := time.Since(began); took > dlock.DefaultLease/3 {
			t.Errorf("the holder was told after %v", took)
		}
		before, _ := held.Token()
		if after, _ := next.Token(); after <= before {
			t.Errorf("token %d after %d", after, before)
		}
		must(t, next.Release(t.Context()))
	})
}

// The errors of Held and Free name the holder and its kind of hold.
func TestAssertions(t *testing.T) {
	for name, test := range map[string]struct {
		take func(t *testing.T, c *dlock.Client)
		says []string
	}{
		"plain": {
			func(t *testing.T, c *dlock.Client) { c.Locker("x").Lock() },
			[]string{`client "web-1"`},
		},
		"fair": {
			func(t *testing.T, c *dlock.Client) { c.FairLocker("x").Lock() },
			[]string{`client "web-1"`},
		},
		"write": {
			func(t *testing.T, c *dlock.Client) { c.RWLocker("x").Lock() },
			[]string{`client "web-1" (write)`},
		},
		"read": {
			func(t *testing.T, c *dlock.Client) { c.RWLocker("x").RLock() },
			[]string{`client "web-1" (read)`},
		},
		"re-entry": {func(t *testing.T, c *dlock.Client) {
			l := c.Locker("x").For(dlock.NewOwner())
			l.Lock()
			l.Lock()
		}, []string{`client "web-1" (2 times)`}},
		"permits": {func(t *testing.T, c *dlock.Client) {
			for n := 1; n <= 2; n++ {
				_, err := c.Semaphore("x", 9).Acquire(t.Context(), n)
				must(t, err)
			}
		}, []string{`client "web-1" (1 permit)`, `client "web-1" (2 permits)`}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := new(recorder)
				store := dlocktest.New(t)
				store.Held(r, "x")
				store.Free(t, "x")
				test.take(t, clientOf(t, store, "web-1"))
				store.Held(t, "x")
				store.Free(r, "x")
				r.wants(t, []string{"Held", `nobody has the lock "x"`},
					append(test.says, "Free", `the lock "x" is held by`))
				store.Wipe()
			})
		})
	}
}

// A kept lock is neither held nor free. The errors of the assertions name its former holder.
func TestAssertionsOfWhatStaysTaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := new(recorder)
		store := dlocktest.New(t)
		must(t, acquire(t, clientOf(t, store, "a").Locker("x"), dlock.AtLeast(time.Minute)).
			Release(t.Context()))
		store.Held(r, "x")
		store.Free(r, "x")
		r.wants(t, []string{"Held", `"x"`, `another 1m0s`, `client "a"`}, []string{
			"Free", `"x"`, `another 1m0s`, `client "a"`,
		})
		time.Sleep(time.Minute)
		store.Free(t, "x")
	})
}
