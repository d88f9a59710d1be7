package docs_test

import (
	"context"
	"errors"
	"net/http"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed951563bd/distsync/dlock"
	"github.com/seed951563bd/distsync/dlocktest"
	"github.com/seed951563bd/distsync/redisbackend"
)

var charge = func(context.Context) error { return nil }

func pay(ctx context.Context, lock *dlock.Locker) int {
	ran, err := lock.TryDo(ctx, charge, dlock.Wait(500*time.Millisecond))
	switch {
	case !ran && err == nil: // another has the lock
		return http.StatusLocked
	case !ran: // the store doesn't answer, or the client is closed
		return http.StatusServiceUnavailable
	case errors.Is(err, dlock.ErrLost): // it was lost while charge ran
		return http.StatusInternalServerError
	}
	if err == nil || errors.Is(err, dlock.ErrUnavailable) { // the unlock isn't confirmed
		return http.StatusOK
	}
	return http.StatusInternalServerError // charge's own error
}

// withStore runs a test of two clients, in virtual time, whose store has faults.
func withStore(
	t *testing.T, run func(t *testing.T, store *dlocktest.Store, one, two *dlock.Client),
) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		store := dlocktest.New(t)
		one, two := dlock.New(store), dlock.New(store)
		defer one.Close()
		defer two.Close()
		run(t, store, one, two)
	})
}

// Each outcome of a TryDo is told from the others as the page does it.
func TestBeforeProductionErrors(t *testing.T) {
	withStore(t, func(t *testing.T, store *dlocktest.Store, one, two *dlock.Client) {
		defer func(usual func(context.Context) error) { charge = usual }(charge)
		lock := one.Locker("lock:orders:42")
		expect := func(when string, want int, fn func(context.Context) error) {
			t.Helper()
			charge = fn
			if got := pay(t.Context(), lock); got != want {
				t.Errorf("%s: %d, want %d", when, got, want)
			}
		}
		nothing := func(context.Context) error { return nil }
		never := func(context.Context) error { t.Error("it runs"); return nil }

		expect("all is well", http.StatusOK, nothing)
		expect("the function fails", http.StatusInternalServerError,
			func(context.Context) error { return errors.New("no stock") })
		expect("another lock is held", http.StatusInternalServerError,
			func(context.Context) error { return dlock.ErrHeld })
		expect("it is lost", http.StatusInternalServerError, func(ctx context.Context) error {
			store.Lose("lock:orders:42")
			<-ctx.Done()
			return nil
		})

		h, err := two.Locker("lock:orders:42").Acquire(t.Context())
		check(t, err)
		expect("another has it", http.StatusLocked, never)
		if ok, err := lock.TryLock(t.Context()); ok || err != nil {
			t.Errorf("TryLock while another has it: %t, %v", ok, err)
		}
		check(t, h.Release(t.Context()))

		store.Fail(-1, nil)
		expect("the store is down", http.StatusServiceUnavailable, never)
		store.Recover()

		goesDown := func(context.Context) error { store.Fail(-1, nil); return nil }
		expect("the unlock isn't confirmed", http.StatusOK, goesDown)
		store.Recover()
		time.Sleep(time.Minute) // it goes on in the background

		err = lock.Do(t.Context(), goesDown)
		store.Recover()
		at, ok := errors.AsType[*dlock.Error](err)
		if !ok || at.Op != "unlock" || !errors.Is(err, dlock.ErrUnavailable) {
			t.Errorf("an unlock that wasn't confirmed: %v", err)
		}
		time.Sleep(time.Minute)

		check(t, one.Close())
		expect("the client is closed", http.StatusServiceUnavailable, never)
	})
}

// With the lease of 30 s, an outage of less than half a lease costs nothing, wherever it begins. An
// outage of more than a lease costs the lock.
func TestBeforeProductionOutages(t *testing.T) {
	for begins := range 11 {
		for _, lasts := range []time.Duration{14 * time.Second, 31 * time.Second} {
			withStore(t, func(t *testing.T, store *dlocktest.Store, one, _ *dlock.Client) {
				h, err := one.Locker("lock:orders:42").Acquire(t.Context())
				check(t, err)
				time.Sleep(time.Duration(begins) * time.Second)
				store.Fail(-1, nil)
				time.Sleep(lasts)
				store.Recover()
				if lost := h.Err() != nil; lost != (lasts > dlock.DefaultLease) {
					t.Errorf("an outage of %v after %d s: %v", lasts, begins, h.Err())
				}
				_ = h.Release(t.Context())
			})
		}
	}
}

var ship = func(context.Context) error { return nil }

func handle(ctx context.Context, client *dlock.Client) (ran bool, err error) {
	deadline, _ := ctx.Deadline() // that of the call, which Lambda always sets
	lease := dlock.FixedLease(time.Until(deadline) + time.Second)
	return client.Locker("lock:orders:42").TryDo(ctx, ship, lease)
}

// A function that is frozen in the middle of a call gives way when the call's time is over.
func TestBeforeProductionFrozenFunction(t *testing.T) {
	withStore(t, func(t *testing.T, _ *dlocktest.Store, one, two *dlock.Client) {
		thaw, began := make(chan struct{}), time.Now()
		defer func(usual func(context.Context) error) { ship = usual }(ship)
		ship = func(context.Context) error { <-thaw; return nil }
		ended := make(chan error)
		go func() {
			ctx, cancel := context.WithTimeout(t.Context(), 15*time.Second)
			defer cancel()
			ran, err := handle(ctx, one)
			if !ran {
				t.Error("the function did not run")
			}
			ended <- err
		}()
		synctest.Wait() // it has the lock
		h, err := two.Locker("lock:orders:42").Acquire(t.Context())
		check(t, err)
		if waited := time.Since(began); waited < 15*time.Second || waited > 17*time.Second {
			t.Errorf("the next call got the lock after %v", waited)
		}
		close(thaw)
		if err := <-ended; !errors.Is(err, dlock.ErrLost) {
			t.Errorf("the call that was frozen: %v", err)
		}
		check(t, h.Release(t.Context()))
	})
}

// With the lease of the page a lock outlives a breakpoint of half an hour.
func TestBeforeProductionBreakpoint(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		t.Setenv("DEBUGGING", "1")
		store := dlocktest.New(t)

		lease := dlock.DefaultLease
		if os.Getenv("DEBUGGING") != "" {
			lease = time.Hour
		}
		client := dlock.New(store, dlock.WithLease(lease))

		defer client.Close()
		h, err := client.Locker("lock:orders:42").Acquire(t.Context())
		check(t, err)
		store.PauseRenewals()
		time.Sleep(30 * time.Minute)
		check(t, h.Err(), h.Release(t.Context()))
	})
}

// Close ends waits and holds, and releases nothing.
func TestBeforeProductionClose(t *testing.T) {
	withStore(t, func(t *testing.T, _ *dlocktest.Store, one, two *dlock.Client) {
		h, err := one.Locker("lock:orders:42").Acquire(t.Context())
		check(t, err)
		wait := make(chan error)
		go func() { wait <- one.Locker("lock:orders:42").LockContext(t.Context()) }()
		synctest.Wait()

		check(t, one.Close())

		if err := <-wait; !errors.Is(err, dlock.ErrClosed) {
			t.Errorf("the wait ended with %v", err)
		}
		if <-h.Context().Done(); !errors.Is(context.Cause(h.Context()), dlock.ErrClosed) {
			t.Errorf("the hold's context ended with %v", context.Cause(h.Context()))
		}
		if ran, err := two.Locker("lock:orders:42").TryDo(t.Context(), ship); ran || err != nil {
			t.Errorf("another got in at once: %t, %v", ran, err)
		}
		check(t, two.Locker("lock:orders:42").Do(t.Context(), ship)) // when the lease is over
	})

	shutDown := func(
		ctx context.Context, server *http.Server, client *dlock.Client, rdb *redis.Client,
	) error {
		return errors.Join(server.Shutdown(ctx), client.Close(), rdb.Close()) // in this order
	}
	rdb := redis.NewClient(&redis.Options{Addr: "localhost:0"})
	check(t, shutDown(t.Context(), new(http.Server), dlock.New(redisbackend.New(rdb)), rdb))
}
